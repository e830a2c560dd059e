/*
 * tickets.h
 *		Keys that may have tickets: places in line that no connection waits for.
 */
#ifndef AL_SHMEM_TICKETS_H
#define AL_SHMEM_TICKETS_H

#include "datatype/timestamp.h"

#include "atomic_lock.h"
#include "shmem/shmem.h"

typedef enum AlTicketed
{
	AL_TICKETED_NO,
	AL_TICKETED_MAYBE,
	AL_TICKETED_UNKNOWN			/* nobody has counted the tickets of this database */
} AlTicketed;

extern const AlShmemPart al_tickets_part;

/* Only for al_tickets_none() */
extern void *al_tickets_memory;
extern void *al_tickets_counted_in;
extern pg_atomic_uint64 *al_tickets_last;

/*
 * Is it known that there has been no ticket since the server started?  Whoever has none
 * shall not pay for them, so this is decided in place.
 */
static inline bool
al_tickets_none(void)
{
	return al_tickets_counted_in == al_tickets_memory && al_tickets_last &&
		pg_atomic_read_u64(al_tickets_last) == 0;
}

extern bool al_tickets_any(void);
extern AlTicketed al_tickets_of(const AlKey *key);
extern void al_tickets_note(const AlKey *key, TimestampTz until);
extern uint32 al_tickets_version(void);
extern void al_tickets_counted(uint32 version);
extern void al_tickets_forget(void);
extern bool al_tickets_is_shared(void);

#endif							/* AL_SHMEM_TICKETS_H */
