/*
 * tickets.h
 *		Until when this database may have tickets.
 */
#ifndef AL_SHMEM_TICKETS_H
#define AL_SHMEM_TICKETS_H

#include "datatype/timestamp.h"

extern bool al_tickets_is_counted(void);
extern bool al_tickets_none(void);
extern bool al_tickets_any(void);
extern void al_tickets_note(TimestampTz until);
extern bool al_tickets_is_shared(void);
extern void al_tickets_forget(void);
extern void al_tickets_begin_count(void);
extern void al_tickets_end_count(void);

#endif							/* AL_SHMEM_TICKETS_H */
