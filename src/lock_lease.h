/*-------------------------------------------------------------------------
 *
 * lock_lease.h
 *		The verbs on leases, and what can come of them.
 *
 * IDENTIFICATION
 *		src/lock_lease.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef ATOMIC_LOCK_LEASE_H
#define ATOMIC_LOCK_LEASE_H

#include "atomic_lock.h"
#include "compat.h"
#include "lock_table.h"
#include "lock_wait.h"

typedef enum AlOutcome
{
	/* done; the result's holding is the one that was written */
	AL_ACQUIRED,
	AL_REACQUIRED,
	AL_RELEASED,
	AL_EXTENDED,

	/* refused, nothing written; the holding, if any, says why */
	AL_HELD,					/* by a live lease */
	AL_HELD_BY_OWNER,			/* by the caller's own, and that is an error */
	AL_CLAIMED,					/* an unfinished transaction has the key */
	AL_CLOSED,					/* ran out less than lock_delay ago */
	AL_QUEUED,					/* somebody who waits for it comes first */
	AL_TIMEOUT,					/* waited in vain */
	AL_DEADLOCK,				/* waiting would never have ended */
	AL_NOT_FOUND,
	AL_NOT_OWNER,
	AL_ALREADY_RELEASED,
	AL_EXPIRED,
	AL_LIFETIME_EXCEEDED
} AlOutcome;

typedef struct AlResult
{
	AlOutcome	outcome;
	AlHolding	holding;
	TimestampTz at;				/* the moment of judging */
	AlOutcome	obstacle;		/* AL_TIMEOUT, AL_DEADLOCK: what was in the way */
	int			rival;			/* AL_CLAIMED: process id, or 0 */
	char	   *first;			/* AL_QUEUED: label of the first in line */
	char	   *circle;			/* AL_DEADLOCK: who waits for whom */
	int64		waited;			/* microseconds */
} AlResult;

typedef struct AlAcquire
{
	AlKey		key;
	AlOwner		owner;
	int64		ttl;
	text	   *mode;
	int64		wait;			/* longest; 0: not at all */
	text	   *holder;			/* NULL: not given */
	struct varlena *meta;		/* NULL: not given */
} AlAcquire;

/* lock_lease.c */
extern bool al_is_live(const AlHolding *holding, TimestampTz now);
extern bool al_waiter_holding(Relation rel, const AlWaiter *waiter, AlHolding *holding);
extern AlOutcome al_obstacle(const AlResult *result);
extern bool al_is_granted(const AlResult *result);
extern void al_lease_acquire(Relation *rel, AlAcquire *request, AlResult *result);
extern void al_lease_release(Relation rel, const AlKey *key, const AlOwner *owner,
							 AlResult *result);
extern void al_lease_extend(Relation rel, const AlKey *key, const AlOwner *owner,
							int64 ttl, AlResult *result);
extern bool al_lease_end(Relation rel, const AlKey *key, AlHolding *ended);
extern void al_lease_steal(Relation rel, AlAcquire *request,
						   AlHolding *ended, AlResult *result);
extern int64 al_lease_sweep(Relation rel, int64 max_rows, TimestampTz now);

/* lock_deadlock.c */
extern char *al_deadlock_find(Relation rel);

/* lock_api.c */
extern int64 al_new_ttl_arg(FunctionCallInfo fcinfo, int argno);
extern Datum al_grant_datum(FunctionCallInfo fcinfo, const AlKey *key,
							const AlOwner *owner, const AlResult *result);

/* lock_report.c */
extern void al_report_init(void);
AL_NORETURN extern void al_raise(const AlKey *key, const AlResult *result);
AL_NORETURN extern void al_raise_not_found(const AlKey *key);

#endif							/* ATOMIC_LOCK_LEASE_H */
