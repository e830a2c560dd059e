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
#include "base/compat.h"
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
	AL_HELD,					/* by somebody else */
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
	int			others;			/* AL_HELD: how many more hold the key */
	TimestampTz at;				/* the moment of judging */
	AlOutcome	obstacle;		/* AL_TIMEOUT, AL_DEADLOCK: what was in the way */
	int			rival;			/* AL_CLAIMED: process id, or 0 */
	char	   *first;			/* AL_QUEUED: label of the first in line */
	char	   *circle;			/* AL_DEADLOCK: who waits for whom */
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
	text	   *holder;			/* NULL: not given */
	struct varlena *meta;		/* NULL: not given */
} AlAcquire;

/* What there is of a key, as far as it was looked for */
typedef struct AlState
{
	AlHolding	exclusive;		/* the row in slot 0, dead or alive, or none */
	List	   *shared;			/* other rows, AlHolding * */
	List	   *mine;			/* of the own transaction, AlHolding * */
} AlState;

/* What a sweep did */
typedef struct AlSwept
{
	int64		removed;		/* the last time */
	uint32		left;			/* blocks it has not looked at yet */
	TimestampTz next_due;		/* when the next row will be over, as far as is known */
} AlSwept;

/* lock_lease.c */
extern TimestampTz al_add_duration(TimestampTz time, int64 duration);
extern TimestampTz al_end_of_life(const AlHolding *holding);
extern TimestampTz al_closed_until(const AlHolding *holding);
extern bool al_is_live(const AlHolding *holding, TimestampTz now);
extern bool al_is_kept(const AlKey *key, const AlHolding *row);
extern bool al_is_owned_by(const AlHolding *holding, const AlOwner *owner);
extern TimestampTz al_held_until(const AlHolding *holding);
extern bool al_is_shared(const AlHolding *holding);
extern const AlHolding *al_longest(List *holdings);
extern void al_find_shared(Relation rel, const AlKey *key, AlState *state);
extern List *al_holdings_of_key(Relation rel, const AlKey *key, TimestampTz *now);
extern List *al_waiter_obstacles(Relation rel, const AlWaiter *waiter);
extern AlOutcome al_judge_owner(const AlState *state, const AlOwner *owner,
								AlResult *result, AlHolding **own);
extern void al_look(Relation rel, const AlKey *key, AlState *state);
extern bool al_claim_own(Relation rel, const AlKey *key, const AlOwner *owner,
						 AlClaimMode mode, const AlHolding *seen, AlState *state,
						 AlHolding **own, AlClaim *claim, AlResult *result);
extern void al_end_row(Relation rel, const AlKey *key, AlHolding *holding, TimestampTz now,
					   bool forget);
extern void al_lease_release(Relation rel, const AlKey *key, const AlOwner *owner,
							 const AlHolding *seen, AlResult *result);
extern void al_lease_extend(Relation rel, const AlKey *key, const AlOwner *owner,
							const AlHolding *seen, int64 ttl, AlResult *result);
extern void al_lease_transfer(Relation rel, const AlKey *key, const AlOwner *owner,
							  const AlOwner *new_owner, text *holder, int64 ttl,
							  AlResult *result);
extern List *al_lease_end(Relation rel, const AlKey *key, AlClaim *claim);
extern void al_lease_end_session(Relation rel, const AlKey *key, bool wait);
extern bool al_lease_of_session(Relation rel, const AlKey *key);

/* lock_attempt.c */
extern AlOutcome al_obstacle(const AlResult *result);
extern bool al_is_granted(const AlResult *result);

/* lock_acquire.c */
extern void al_lease_acquire(Relation *rel, const AlKey *key, AlAcquire *request,
							 AlResult *result);
extern int	al_lease_acquire_all(Relation *rel, const AlKey *keys, int count,
								 AlAcquire *request, AlResult *results);
extern List *al_lease_steal(Relation rel, const AlKey *key, AlAcquire *request,
							AlResult *result);

/* lock_held.c */
extern int	al_held_count(void);
extern void al_held_add(const AlKey *key, const AlOwner *owner, const AlHolding *holding);
extern void al_held_change(const AlHolding *holding, const AlOwner *owner);
extern void al_held_end(const AlHolding *holding, bool forced);
extern List *al_held_mine(const AlKey *key);
extern const AlHolding *al_held_ended(const AlKey *key);
extern List *al_held_by_others(const AlKey *key);
extern AlHolding *al_held_elsewhere(const AlKey *key, const AlOwner *owner);
extern List *al_held_shown(void);
extern void al_held_abort(int level);
extern void al_held_commit(int level);

/* lock_pin.c */
extern const AlPin *al_pin_note(const AlKey *key, const AlHolding *holding);
extern const AlPin *al_pin(AlString name, AlString owner_name, AlResult *result);

/* lock_protect.c */

/* Triggers fire in the order of their names: these sort behind others. */
#define AL_ROW_TRIGGER		"~atomic_lock_guard"
#define AL_TRUNCATE_TRIGGER	"~atomic_lock_guard_truncate"

extern void al_protect_init(void);
extern const struct Trigger *al_find_trigger(Relation rel, const char *name);

/* lock_guard.c */
extern void al_check_template(Relation rel, const char *template);
AL_NORETURN extern void al_refuse_truncate(Relation rel);

/* lock_sweep.c */
extern void al_sweep_begin(Relation rel, AlSwept *swept);
extern void al_sweep(Relation rel, int64 max_rows, BlockNumber max_blocks, AlSwept *swept);
extern void al_sweep_over(void);
extern bool al_is_sweeping(int pid);

/* lock_stat.c; more in lock_stat.h */
extern void al_stat_refused(const AlKey *key, const AlResult *result);

/* lock_session.c */
extern void al_session_init(void);
extern TimestampTz al_session_ended_by(const AlHolding *holding);
extern TimestampTz al_session_begin(void);
extern void al_session_left(void);
extern bool al_session_is_alive(int pid, TimestampTz backend_start);
extern bool al_session_is_mine(const AlHolding *holding);
extern void al_session_note(Relation rel, const AlKey *key);

/* lock_deadlock.c */
extern char *al_deadlock_find(Relation rel);

/* lock_api.c */
extern int64 al_new_ttl_arg(FunctionCallInfo fcinfo, int argno);
extern Datum al_interval_datum(int64 microseconds);
extern Datum al_row_datum(FunctionCallInfo fcinfo, int columns, Datum *values,
						  bool *nulls);
extern Datum al_grant_datum(FunctionCallInfo fcinfo, const AlKey *key,
							const AlOwner *owner, const AlResult *result);

/* lock_report.c */
extern void al_report_init(void);
extern void al_report_doubt(void);
AL_NORETURN extern void al_raise(const AlKey *key, const AlResult *result);
AL_NORETURN extern void al_raise_not_found(const AlKey *key);
AL_NORETURN extern void al_raise_not_held(const AlKey *key, const AlResult *result);
AL_NORETURN extern void al_raise_bad_token(const AlKey *key, int64 token,
										   const AlResult *result);
AL_NORETURN extern void al_raise_guard(const AlKey *key, const AlResult *result,
									   Relation table);
AL_NORETURN extern void al_raise_no_lease(const char *what);
AL_NORETURN extern void al_raise_in_transaction(const AlKey *key, int pid);

#endif							/* ATOMIC_LOCK_LEASE_H */
