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
	/* done; result->holding is the holding as it is now */
	AL_ACQUIRED,
	AL_REACQUIRED,
	AL_RELEASED,
	AL_EXTENDED,

	/* refused, nothing is written; result->holding, if any, is the reason */
	AL_HELD,					/* by another owner */
	AL_HELD_BY_OWNER,			/* by this owner, and the request does not allow that */
	AL_CLAIMED,					/* an unfinished transaction has claimed the key */
	AL_IN_TRANSACTION,			/* an unfinished transaction holds the key until it ends */
	AL_CLOSED,					/* not held, but lock_delay or min_hold keeps it closed */
	AL_QUEUED,					/* a waiter or a ticket comes first */
	AL_TIMEOUT,					/* the request's wait has ended */
	AL_DEADLOCK,				/* the wait would never end */
	AL_NOT_FOUND,
	AL_NOT_OWNER,
	AL_ALREADY_RELEASED,
	AL_EXPIRED,
	AL_FORCED,					/* an administrator ended the owner's holding */
	AL_LIFETIME_EXCEEDED,
	AL_CHANGED,					/* the named grant no longer holds it */
	AL_NO_LEASE,				/* a ttl, for a holding that ends with a transaction */
	AL_DENIED					/* its policy reserves the key for other roles */
} AlOutcome;

/* Not a process: a transaction has locked the row by hand */
#define AL_ROW_LOCKED	(-1)

typedef struct AlResult
{
	AlOutcome	outcome;
	AlHolding	holding;
	int			others;			/* AL_HELD, AL_NOT_OWNER, is_full: further holdings, or -1 */
	bool		is_full;		/* AL_HELD, AL_CLAIMED: all seats are taken */
	bool		is_in_use;		/* AL_NOT_FOUND: another transaction holds it */
	int			holders;		/* granted: number, with this one; 0: not counted */
	int			max_holders;	/* that may share it; 0: any number */
	TimestampTz at;				/* moment of the judgement, or of the grant */
	AlOutcome	obstacle;		/* AL_TIMEOUT, AL_DEADLOCK, AL_FORCED: the refusal before it */
	int			blocker;		/* AL_CLAIMED, AL_IN_TRANSACTION: process id, 0, or AL_ROW_LOCKED */
	char	   *first;			/* AL_QUEUED: label of the first waiter, or of the ticket */
	int64		ticket;			/* that has the offer until kept_until; 0: the key is closed */
	TimestampTz kept_until;		/* AL_QUEUED, AL_NOT_FOUND, AL_CHANGED; 0: not kept */
	char	   *cycle;			/* AL_DEADLOCK: describes the cycle */
	const AlForcedEnd *forced;	/* AL_FORCED: the record in lock_audit */
	int64		waited;			/* microseconds */
} AlResult;

/* A request for a key, or for each key of a set */
typedef struct AlAcquire
{
	AlOwner		owner;
	int64		ttl;			/* microseconds, or AL_NO_TTL */
	bool		is_path;		/* leases have one length, and none outlives that above it */
	bool		is_shared;
	bool		is_convert;		/* change the mode of the owner's holding */
	bool		waits_longest;	/* as long as max_wait allows; "wait" is cut to that */
	bool		keeps_own;		/* the owner's holding keeps mode, lifetime and session */
	int			max_holders;	/* that may share it, with the owner; 0: any number */
	int64		wait;			/* at most, in microseconds; 0: do not wait */
	AlLifetime	lifetime;
	Oid			role;			/* the caller's */
	AlReacquire on_reacquire;	/* if the owner already holds the key */
	text	   *holder;			/* NULL: not given */
	text	   *(*default_holder) (void);	/* makes the label if none is given */
	struct varlena *meta;		/* NULL: not given */
} AlAcquire;

/* The terms on which a request is granted a key: see lease/terms.c */
typedef struct AlTerms
{
	int64		ttl;			/* microseconds; 0: the lifetime alone ends it */
	int			max_holders;	/* that may share it, with the owner; 0: any number */
	int64		max_lifetime;	/* of the lease with its extensions, microseconds; 0: no limit */
} AlTerms;

/* The holdings of a key that a look has found */
typedef struct AlState
{
	AlRows		rows;
	List	   *mine;			/* held by this transaction, AlHolding * */
} AlState;

/* The shared holdings that a look has to find */
typedef enum AlLook
{
	AL_LOOK_OWN,				/* the rows of an owner, no others */
	AL_LOOK_SOME,				/* those and some obstacles: see al_sharers_look() */
	AL_LOOK_ALL
} AlLook;

/* Arguments of al_claim_own(), and what it finds */
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
	ItemPointerData waited;		/* the last row whose transaction it has waited for */
	TimestampTz waited_end;		/* end of the last lease whose extension it has waited for */
} AlOwnClaim;

extern bool al_is_granted(const AlResult *result);
extern AlOutcome al_refusal(const AlResult *result);
extern void al_note_written(const AlKey *key, const AlOwner *owner, const AlHolding *holding,
							 bool lets_in);
extern bool al_wrote_or_pinned(const AlKey *key, const AlHolding *row);
extern List *al_live_holdings(const AlState *state, TimestampTz now);
extern void al_find_shared(Relation rel, const AlKey *key, const AlOwner *owner, AlLook look,
						   AlState *state);
extern void al_look(Relation rel, const AlKey *key, const AlOwner *owner, AlLook look,
					AlState *state);
extern List *al_holdings_of_key(Relation rel, const AlKey *key, const AlOwner *owner,
								AlLook look, int *more, TimestampTz *now);
extern TimestampTz al_key_closed_until(Relation rel, const AlKey *key);
extern List *al_waiter_obstacles(Relation rel, const AlWaiter *waiter);
extern AlOutcome al_judge_owner(const AlState *state, const AlOwner *owner,
								AlResult *result, AlHolding **own);
extern bool al_check_forced(const AlKey *key, const AlOwner *owner, AlResult *result,
							int64 *forced);
extern AlHolding *al_look_and_judge(AlOwnClaim *ask);
extern AlHolding *al_where_is_it(AlOwnClaim *ask, bool others_claimed);
extern AlHolding *al_claim_own(AlOwnClaim *ask);
extern bool al_await_own(Relation rel, const AlKey *key, const AlOwner *owner, int64 *waited);
extern bool al_overwrite_row(Relation rel, const AlKey *key, AlHolding *holding);
extern void al_tell_unwritten(const AlHolding *former, AlResult *result);

#endif							/* AL_LEASE_STATE_H */
