/*
 * state.h
 *		What there is of a key, and what can come of a verb.
 */
#ifndef AL_LEASE_STATE_H
#define AL_LEASE_STATE_H

#include "utils/relcache.h"

#include "atomic_lock.h"
#include "base/settings.h"
#include "claim/claim.h"
#include "claim/holding.h"
#include "shmem/queue.h"

typedef enum AlOutcome
{
	/* done; the result's holding is the one that was written */
	AL_ACQUIRED,
	AL_REACQUIRED,
	AL_RELEASED,
	AL_EXTENDED,

	/* refused, nothing written; the holding, if any, says why */
	AL_HELD,					/* by somebody else */
	AL_HELD_BY_OWNER,			/* by the caller's own, and that is an error */
	AL_CLAIMED,					/* an unfinished transaction has the key */
	AL_IN_TRANSACTION,			/* likewise, and only its end can help */
	AL_CLOSED,					/* ran out less than lock_delay ago */
	AL_QUEUED,					/* somebody who waits for it comes first */
	AL_TIMEOUT,					/* waited in vain */
	AL_DEADLOCK,				/* waiting would never have ended */
	AL_NOT_FOUND,
	AL_NOT_OWNER,
	AL_ALREADY_RELEASED,
	AL_EXPIRED,
	AL_LIFETIME_EXCEEDED,
	AL_NO_LEASE					/* a ttl for what ends with a transaction */
} AlOutcome;

typedef struct AlResult
{
	AlOutcome	outcome;
	AlHolding	holding;
	int			others;			/* AL_HELD: how many more hold the key */
	TimestampTz at;				/* the moment of judging */
	AlOutcome	obstacle;		/* AL_TIMEOUT, AL_DEADLOCK: what was in the way */
	int			blocker;		/* AL_CLAIMED, AL_IN_TRANSACTION: process id, or 0 */
	bool		is_in_use;		/* AL_NOT_FOUND: an unfinished transaction holds it */
	char	   *first;			/* AL_QUEUED: label of the first in the queue */
	char	   *cycle;			/* AL_DEADLOCK: who waits for whom */
	int64		waited;			/* microseconds */
} AlResult;

/* What is asked of a key, or of each of a set */
typedef struct AlAcquire
{
	AlOwner		owner;
	int64		ttl;			/* 0: without end, but for the lifetime */
	bool		is_shared;
	bool		is_convert;		/* change the mode of what the owner has */
	int64		wait;			/* longest; 0: not at all */
	AlLifetime	lifetime;
	AlReacquire on_reacquire;	/* what to do where the owner has it already */
	text	   *holder;			/* NULL: not given */
	text	   *default_holder; /* the label where none is given */
	struct varlena *meta;		/* NULL: not given */
} AlAcquire;

/* What there is of a key, as far as it was looked for */
typedef struct AlState
{
	AlHolding	exclusive;		/* the row in slot 0, dead or alive, or none */
	List	   *shared;			/* other rows, AlHolding * */
	List	   *mine;			/* of the own transaction, AlHolding * */
} AlState;

extern bool al_is_granted(const AlResult *result);
extern AlOutcome al_obstacle(const AlResult *result);
extern void al_lease_written(const AlKey *key, const AlOwner *owner, const AlHolding *holding);
extern bool al_is_kept(const AlKey *key, const AlHolding *row);
extern List *al_live_holdings(const AlState *state, TimestampTz now);
extern void al_find_shared(Relation rel, const AlKey *key, AlState *state);
extern void al_look(Relation rel, const AlKey *key, AlState *state);
extern List *al_holdings_of_key(Relation rel, const AlKey *key, TimestampTz *now);
extern List *al_waiter_obstacles(Relation rel, const AlWaiter *waiter);
extern AlOutcome al_judge_owner(const AlState *state, const AlOwner *owner,
								AlResult *result, AlHolding **own);
extern bool al_claim_own(Relation rel, const AlKey *key, const AlOwner *owner,
						 AlClaimMode mode, const AlHolding *seen, AlState *state,
						 AlHolding **own, AlClaim *claim, AlResult *result);

#endif							/* AL_LEASE_STATE_H */
