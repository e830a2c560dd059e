/*
 * state.h
 *		The state of a key, and the outcomes of verbs.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_LEASE_STATE_H
#define AL_LEASE_STATE_H

#include "utils/relcache.h"

#include "atomic_lock.h"
#include "base/settings.h"
#include "claim/claim.h"
#include "claim/holding.h"
#include "shmem/waiters.h"
#include "table/audit.h"
#include "table/sharers.h"

typedef enum AlOutcome
{
	/* done; result->holding is what was written */
	AL_ACQUIRED,
	AL_REACQUIRED,
	AL_RELEASED,
	AL_EXTENDED,

	/* refused, nothing is written; result->holding, if there is one, says why */
	AL_HELD,					/* by another owner */
	AL_HELD_BY_OWNER,			/* by this owner, in a way that the request excludes */
	AL_CLAIMED,					/* an unfinished transaction has claimed the key */
	AL_IN_TRANSACTION,			/* an unfinished transaction holds the key to its end */
	AL_CLOSED,					/* nobody holds it, but lock_delay or min_hold is not over */
	AL_QUEUED,					/* a waiter comes first */
	AL_TIMEOUT,					/* the request's wait is over */
	AL_DEADLOCK,				/* the wait would never end */
	AL_NOT_FOUND,
	AL_NOT_OWNER,
	AL_ALREADY_RELEASED,
	AL_EXPIRED,
	AL_FORCED,					/* an administrator took it from the owner */
	AL_LIFETIME_EXCEEDED,
	AL_CHANGED,					/* the grant that was named does not hold it any more */
	AL_NO_LEASE,				/* a ttl, for a holding that ends with a transaction */
	AL_DENIED					/* its policy reserves the key for other roles */
} AlOutcome;

typedef struct AlResult
{
	AlOutcome	outcome;
	AlHolding	holding;
	int			others;			/* AL_HELD, AL_NOT_OWNER, is_full: further holdings, or -1 */
	bool		is_full;		/* AL_HELD, AL_CLAIMED: for want of a seat */
	int			holders;		/* granted: with this one; 0: not counted */
	int			max_holders;	/* that may share it; 0: any number */
	TimestampTz at;				/* when this was judged */
	AlOutcome	obstacle;		/* AL_TIMEOUT, AL_DEADLOCK, AL_FORCED: the refusal before it */
	int			blocker;		/* AL_CLAIMED, AL_IN_TRANSACTION: process id, or 0 */
	bool		is_in_use;		/* AL_NOT_FOUND: another transaction holds it */
	char	   *first;			/* AL_QUEUED: label of the first waiter, or of the ticket */
	int64		ticket;			/* that has the key offered until then; 0: the key is closed */
	TimestampTz kept_until;		/* AL_QUEUED, AL_NOT_FOUND, AL_CHANGED; 0: it is not kept */
	char	   *cycle;			/* AL_DEADLOCK: who waits for whom */
	const AlForcedEnd *forced;	/* AL_FORCED: by whom, and why */
	int64		waited;			/* microseconds */
} AlResult;

/* A request for a key, or for each key of a set */
typedef struct AlAcquire
{
	AlOwner		owner;
	int64		ttl;			/* microseconds, or AL_NO_TTL */
	bool		is_shared;
	int			max_holders;	/* that may share it, with the owner; 0: any number */
	bool		is_convert;		/* change the mode of the owner's holding */
	int64		wait;			/* at most, in microseconds; 0: do not wait */
	bool		waits_longest;	/* as max_wait allows; "wait" is cut to that */
	AlLifetime	lifetime;
	Oid			role;			/* that asks */
	AlReacquire on_reacquire;	/* where the owner has the key already */
	text	   *holder;			/* NULL: not given */
	text	   *(*default_holder) (void);	/* makes the label where none is given */
	struct varlena *meta;		/* NULL: not given */
	bool		keeps_own;		/* what the owner has keeps mode, lifetime and session */
} AlAcquire;

/* What a request gets for a key, if that is granted: see lease/terms.c */
typedef struct AlTerms
{
	int64		ttl;			/* microseconds; 0: no end but that of the lifetime */
	int			max_holders;	/* that may share it, with the owner; 0: any number */
	int64		max_lifetime;	/* of the lease with its extensions, microseconds; 0: no limit */
} AlTerms;

/* The holdings of a key, as far as they were looked for */
typedef struct AlState
{
	AlRows		rows;
	List	   *mine;			/* held by this transaction, AlHolding * */
} AlState;

/* What a look at the shared holdings of a key is for */
typedef enum AlLook
{
	AL_LOOK_OWN,				/* the rows of an owner; nothing tells of others */
	AL_LOOK_SOME,				/* those, and who is in the way: see al_sharers_look() */
	AL_LOOK_ALL
} AlLook;

/* What al_claim_own() is asked for, and what it finds */
typedef struct AlOwnClaim
{
	Relation	rel;
	const AlKey *key;
	const AlOwner *owner;
	AlClaimMode mode;			/* if the holding is exclusive: TAKE, EXTEND, PIN */
	const AlHolding *seen;		/* the owner's row, if known: saves a look */
	AlResult   *result;
	AlState		state;
	AlHolding  *own;			/* the owner's holding, in the state; or NULL */
	AlClaim		claim;			/* hash 0: none is needed */
	ItemPointerData waited;		/* row for whose transaction it has waited last */
	TimestampTz waited_end;		/* end of the lease whose extension it has waited for last */
} AlOwnClaim;

extern bool al_is_granted(const AlResult *result);
extern AlOutcome al_obstacle(const AlResult *result);
extern void al_lease_written(const AlKey *key, const AlOwner *owner, const AlHolding *holding,
							 bool lets_in);
extern bool al_is_kept(const AlKey *key, const AlHolding *row);
extern List *al_live_holdings(const AlState *state, TimestampTz now);
extern void al_find_shared(Relation rel, const AlKey *key, const AlOwner *owner, AlLook look,
						   AlState *state);
extern void al_look(Relation rel, const AlKey *key, const AlOwner *owner, AlLook look,
					AlState *state);
extern List *al_holdings_of_key(Relation rel, const AlKey *key, const AlOwner *owner,
								AlLook look, int *more, TimestampTz *now);
extern TimestampTz al_closed_until_all(Relation rel, const AlKey *key);
extern List *al_waiter_obstacles(Relation rel, const AlWaiter *waiter);
extern AlOutcome al_judge_owner(const AlState *state, const AlOwner *owner,
								AlResult *result, AlHolding **own);
extern void al_tell_forced(const AlKey *key, const AlOwner *owner, AlResult *result);
extern AlHolding *al_judge_all(AlOwnClaim *ask);
extern AlHolding *al_where_is_it(AlOwnClaim *ask, bool is_claimed);
extern AlHolding *al_claim_own(AlOwnClaim *ask);
extern bool al_await_own(Relation rel, const AlKey *key, const AlOwner *owner, int64 *waited);
extern bool al_put_over(Relation rel, const AlKey *key, AlHolding *holding);

#endif							/* AL_LEASE_STATE_H */
