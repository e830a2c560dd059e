/*
 * tickets.h
 *		Until when this database may have tickets.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_SHMEM_TICKETS_H
#define AL_SHMEM_TICKETS_H

#include "datatype/timestamp.h"

#include "shmem/stat.h"

/* Only for al_tickets_none() */
extern AlTicketed *al_tickets_here;
extern AlTicketed *al_tickets_without_entry;

/*
 * Is it known that this database has had no ticket since the server started?  Never true
 * without shared memory.  Inline, since most databases never have one.
 */
static inline bool
al_tickets_none(void)
{
	return al_tickets_here && pg_atomic_read_u64(&al_tickets_here->is_counted) != 0 &&
		pg_atomic_read_u64(&al_tickets_here->until) == 0 &&
		pg_atomic_read_u64(&al_tickets_without_entry->until) == 0;
}

extern bool al_tickets_is_counted(void);
extern bool al_tickets_any(void);
extern void al_tickets_note(TimestampTz until);
extern bool al_tickets_is_shared(void);
extern void al_tickets_forget(void);
extern void al_tickets_begin_count(void);
extern void al_tickets_end_count(void);

#endif							/* AL_SHMEM_TICKETS_H */
