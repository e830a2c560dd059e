/*-------------------------------------------------------------------------
 *
 * lock_lease.c
 *		The verbs on leases: acquire, release, extend, end, steal, sweep.
 *
 * Model: look, claim, look again.  A verb first looks at the row without any
 * lock; where that refuses the caller, it is finished and has written
 * nothing.  Otherwise it claims the key and judges the row a second time:
 * what it sees under the claim stays so until the transaction ends, and only
 * then it writes.
 *
 * A lease is live while it is not released and the clock is before
 * expires_at.  The clock is the server's, read at each judging.
 *
 * Locking rules: see lock_claim.c for what meets what.  Acquire and sweep
 * never wait for a claim, the others do.  Where acquire may wait, it does so
 * in the queue of lock_wait.c, holding nothing of this call.  A verb that
 * refuses after it has claimed drops the claim again.  The caller has app_lock
 * open with RowExclusiveLock, and has checked that the transaction may write.
 *
 * IDENTIFICATION
 *		src/lock_lease.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "common/int.h"
#include "compat.h"
#include "lock_lease.h"
#include "lock_wait.h"
#include "storage/ipc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/* Microseconds between two searches for a deadlock by one waiter */
#define SEARCH_INTERVAL		INT64CONST(1000000)

/* A moment and a duration later, at most the last timestamp there is */
static TimestampTz
add_duration(TimestampTz time, int64 duration)
{
	int64		sum;

	if (pg_add_s64_overflow(time, duration, &sum) || sum >= END_TIMESTAMP)
		return END_TIMESTAMP - 1;
	return sum;
}

bool
al_is_live(const AlHolding *holding, TimestampTz now)
{
	return ItemPointerIsValid(&holding->tid) && holding->released_at == 0 &&
		now < holding->expires_at;
}

/*
 * Find the live lease in the way of a waiter, whose key may be cut.  False
 * where there is none.
 */
bool
al_waiter_holding(Relation rel, const AlWaiter *waiter, AlHolding *holding)
{
	AlKey		key = {.name = {waiter->key, waiter->key_length}, .hash = waiter->hash};

	if (!waiter->key_is_cut)
		al_table_find(rel, &key, holding);
	else
		al_table_find_by_start(rel, &key, holding);
	return al_is_live(holding, GetCurrentTimestamp());
}

static bool
is_owned_by(const AlHolding *holding, const AlOwner *owner)
{
	return ItemPointerIsValid(&holding->tid) && holding->owner && !owner->generated &&
		al_string_equal(al_string(holding->owner), owner->name);
}

/* The last moment to which a lease may be extended */
static TimestampTz
end_of_life(const AlHolding *holding)
{
	if (al_max_lifetime_ms <= 0)
		return DT_NOEND;
	return add_duration(holding->acquired_at, AL_MS_TO_US(al_max_lifetime_ms));
}

/* Give a holding to the owner of a request, as of result->at */
static void
grant(Relation rel, AlAcquire *request, AlResult *result)
{
	AlHolding  *holding = &result->holding;

	if (request->owner.generated)
		al_owner_generate(&request->owner);
	holding->fencing_token = al_fence_next();
	holding->acquired_at = result->at;
	holding->expires_at = add_duration(result->at, request->ttl);
	holding->ttl = request->ttl;
	holding->mode = request->mode;
	holding->holder = request->holder ? request->holder : al_holder_default();
	holding->owner = al_string_text(request->owner.name);
	if (!request->owner.generated)
	{
		/* A hash that no longer fits is harmless, and leaving it keeps HOT. */
		holding->has_owner_hash = true;
		holding->owner_hash = (int32) request->owner.hash;
	}
	holding->released_at = 0;
	holding->meta = request->meta;
	al_table_put(rel, holding);
	al_xact_granted(&request->key, &request->owner, holding->expires_at);
	result->outcome = AL_ACQUIRED;
}

/* What acquire would do, or why not, going by a row and the clock */
static AlOutcome
judge_acquire(const AlAcquire *request, AlResult *result)
{
	const AlHolding *holding = &result->holding;

	result->at = GetCurrentTimestamp();
	if (al_is_live(holding, result->at))
	{
		if (!is_owned_by(holding, &request->owner))
			return AL_HELD;
		return al_on_reacquire == AL_REACQUIRE_ERROR ? AL_HELD_BY_OWNER : AL_REACQUIRED;
	}
	if (ItemPointerIsValid(&holding->tid) && holding->released_at == 0 &&
		result->at < add_duration(holding->expires_at, AL_MS_TO_US(al_lock_delay_ms)))
		return AL_CLOSED;
	return AL_ACQUIRED;
}

/*
 * Does somebody who waits come first?  Not where our own transaction has the
 * key: what it released and has not committed was never on offer.
 */
static bool
is_queued(const AlAcquire *request, char **first)
{
	return al_wait_behind(&request->key, first) &&
		!al_claim_is_mine(request->key.hash);
}

/*
 * Acquire a key, or extend the lease that the owner has on it already, without
 * waiting for anybody.
 *
 * Outcomes: AL_ACQUIRED, AL_REACQUIRED; AL_HELD, AL_HELD_BY_OWNER, AL_CLAIMED,
 * AL_CLOSED, AL_QUEUED.
 */
static void
acquire_now(Relation rel, AlAcquire *request, AlResult *result)
{
	AlHolding  *holding = &result->holding;
	TimestampTz limit;
	AlClaim		claim;

	for (;;)
	{
		AlOutcome	expected;

		CHECK_FOR_INTERRUPTS();
		al_table_find(rel, &request->key, holding);
		expected = result->outcome = judge_acquire(request, result);
		if (expected == AL_ACQUIRED && is_queued(request, &result->first))
			result->outcome = AL_QUEUED;
		if (!al_is_granted(result))
			return;

		if (!al_claim_try(&claim, &request->key, expected == AL_ACQUIRED ?
						  AL_CLAIM_TAKE : AL_CLAIM_EXTEND))
		{
			result->outcome = AL_CLAIMED;
			result->rival = al_claim_rival(&request->key);
			return;
		}

		al_table_find_again(rel, &request->key, holding);
		result->outcome = judge_acquire(request, result);
		if (result->outcome == expected &&
			(expected != AL_ACQUIRED || !claim.first || !al_wait_behind(&request->key, NULL)))
			break;

		/* It changed under our eyes: it needs another claim, or has a line. */
		al_claim_drop(&claim);
	}

	if (result->outcome == AL_ACQUIRED)
	{
		grant(rel, request, result);
		return;
	}

	limit = end_of_life(holding);
	holding->expires_at = Max(holding->expires_at,
							  Min(add_duration(result->at, request->ttl), limit));
	holding->ttl = request->ttl;
	if (request->holder)
		holding->holder = request->holder;
	if (request->meta)
		holding->meta = request->meta;
	al_table_put(rel, holding);
	al_xact_granted(&request->key, &request->owner, holding->expires_at);
}

bool
al_is_granted(const AlResult *result)
{
	return result->outcome == AL_ACQUIRED || result->outcome == AL_REACQUIRED;
}

/* What kept a request from being granted */
AlOutcome
al_obstacle(const AlResult *result)
{
	if (result->outcome == AL_TIMEOUT || result->outcome == AL_DEADLOCK)
		return result->obstacle;
	return result->outcome;
}

/* Might waiting help? */
static bool
may_pass(AlOutcome outcome)
{
	return outcome == AL_HELD || outcome == AL_CLAIMED ||
		outcome == AL_CLOSED || outcome == AL_QUEUED;
}

/* How long a waiter may sleep as far as the obstacle is concerned */
static int64
time_to_look(const AlAcquire *request, const AlResult *result)
{
	TimestampTz at = result->holding.expires_at;

	/* Those behind need not look when the lease ends, the first will. */
	if ((result->outcome != AL_HELD && result->outcome != AL_CLOSED) ||
		al_wait_behind(&request->key, NULL))
		return PG_INT64_MAX;
	if (result->outcome == AL_CLOSED)
		at = add_duration(at, AL_MS_TO_US(al_lock_delay_ms));
	return Max(at - GetCurrentTimestamp(), 0);
}

static void
leave_queue(int code, Datum arg)
{
	al_wait_end(false);
}

/*
 * Try until the key is granted, or the wait is over; the caller has begun it.
 * What is left in "result" is of the last try.  app_lock is closed while we
 * sleep, or whoever has to lock it otherwise would wait for the wait.
 */
static void
acquire_in_turn(Relation *rel, AlAcquire *request, AlResult *result)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "lock_acquire wait",
												  ALLOCSET_SMALL_SIZES);
	int64		start = al_monotonic_now();
	int64		next_search = start + INT64CONST(1000) * DeadlockTimeout;

	for (;;)
	{
		MemoryContext old_context;
		int64		sleep;

		MemoryContextReset(context);
		old_context = MemoryContextSwitchTo(context);
		al_wait_look();
		acquire_now(*rel, request, result);
		result->waited = al_monotonic_now() - start;
		result->obstacle = result->outcome;
		if (may_pass(result->outcome))
		{
			if (result->waited >= request->wait)
				result->outcome = AL_TIMEOUT;
			else if (start + result->waited >= next_search)
			{
				result->circle = al_deadlock_find(*rel);
				if (result->circle)
					result->outcome = AL_DEADLOCK;
				next_search = al_monotonic_now() + SEARCH_INTERVAL;
			}
		}
		MemoryContextSwitchTo(old_context);
		if (!may_pass(result->outcome))
			return;

		sleep = Min(time_to_look(request, result),
					Min(start + request->wait, next_search) - al_monotonic_now());
		table_close(*rel, RowExclusiveLock);
		al_wait_sleep(Max(sleep, 0));
		*rel = al_open_app_lock(RowExclusiveLock);
	}
}

/*
 * Acquire a key, or extend the lease that the owner has on it already, waiting
 * for it as long as the request allows.
 *
 * Outcomes: AL_ACQUIRED, AL_REACQUIRED; AL_HELD, AL_HELD_BY_OWNER, AL_CLAIMED,
 * AL_CLOSED, AL_QUEUED where the request does not wait; AL_TIMEOUT, AL_DEADLOCK
 * where it does.  A wait also ends by whatever interrupts raise, and then has
 * left nothing.
 */
void
al_lease_acquire(Relation *rel, AlAcquire *request, AlResult *result)
{
	result->waited = 0;
	acquire_now(*rel, request, result);
	if (request->wait == 0 || !may_pass(result->outcome))
		return;

	PG_ENSURE_ERROR_CLEANUP(leave_queue, (Datum) 0);
	{
		al_wait_begin(&request->key, &request->owner, request->mode,
					  request->holder ? request->holder : al_holder_default());
		acquire_in_turn(rel, request, result);
	}
	PG_END_ENSURE_ERROR_CLEANUP(leave_queue, (Datum) 0);
	al_wait_end(al_is_granted(result));
}

/* May this owner release or extend the holding?  AL_RELEASED: it may. */
static AlOutcome
judge_owner(const AlOwner *owner, AlResult *result)
{
	const AlHolding *holding = &result->holding;

	result->at = GetCurrentTimestamp();
	if (is_owned_by(holding, owner))
	{
		if (holding->released_at != 0)
			return AL_ALREADY_RELEASED;
		return al_is_live(holding, result->at) ? AL_RELEASED : AL_EXPIRED;
	}
	return al_is_live(holding, result->at) ? AL_NOT_OWNER : AL_NOT_FOUND;
}

/*
 * Look at a key, and claim it if the owner may change its holding: true, and
 * what is in the result stays so.  Waits for unfinished transactions.
 */
static bool
claim_own(Relation rel, const AlKey *key, const AlOwner *owner,
		  AlClaimMode mode, AlClaim *claim, AlResult *result)
{
	al_table_find(rel, key, &result->holding);
	result->outcome = judge_owner(owner, result);
	if (result->outcome != AL_RELEASED)
		return false;

	al_claim(claim, key, mode);
	al_table_find_again(rel, key, &result->holding);
	result->outcome = judge_owner(owner, result);
	if (result->outcome != AL_RELEASED)
	{
		al_claim_drop(claim);
		return false;
	}
	return true;
}

/*
 * Release a lease.
 *
 * Outcomes: AL_RELEASED; AL_NOT_FOUND, AL_NOT_OWNER, AL_ALREADY_RELEASED,
 * AL_EXPIRED.
 */
void
al_lease_release(Relation rel, const AlKey *key, const AlOwner *owner, AlResult *result)
{
	AlClaim		claim;

	if (!claim_own(rel, key, owner, AL_CLAIM_TAKE, &claim, result))
		return;

	al_xact_before_release();
	result->holding.released_at = result->at;
	result->holding.meta = NULL;
	al_table_put(rel, &result->holding);
	al_xact_released();
}

/*
 * Extend a lease to ttl from now; ttl 0 repeats the length last asked for,
 * and never shortens.
 *
 * Outcomes: AL_EXTENDED; AL_NOT_FOUND, AL_NOT_OWNER, AL_ALREADY_RELEASED,
 * AL_EXPIRED, AL_LIFETIME_EXCEEDED.
 */
void
al_lease_extend(Relation rel, const AlKey *key, const AlOwner *owner,
				int64 ttl, AlResult *result)
{
	AlHolding  *holding = &result->holding;
	TimestampTz limit;
	TimestampTz wanted;
	AlClaim		claim;

	if (!claim_own(rel, key, owner, AL_CLAIM_EXTEND, &claim, result))
		return;

	limit = end_of_life(holding);
	if (ttl > 0)
	{
		holding->ttl = ttl;
		wanted = add_duration(result->at, ttl);
	}
	else
	{
		ttl = Min(holding->ttl, AL_MS_TO_US(al_max_ttl_ms));
		wanted = Max(add_duration(result->at, ttl), holding->expires_at);
	}
	if (wanted > limit && limit <= holding->expires_at)
	{
		al_claim_drop(&claim);
		result->outcome = AL_LIFETIME_EXCEEDED;
		return;
	}
	holding->expires_at = Min(wanted, limit);
	al_table_put(rel, holding);
	al_xact_granted(key, owner, holding->expires_at);
	result->outcome = AL_EXTENDED;
}

/*
 * End the holding of a key, whoever has it.  Returns false where there is no
 * live one; otherwise "ended" is what it was.  The former owner is forgotten,
 * so that to it the lock is gone, not released.
 */
bool
al_lease_end(Relation rel, const AlKey *key, AlHolding *ended)
{
	AlHolding	holding;
	AlClaim		claim;
	TimestampTz now;

	al_claim(&claim, key, AL_CLAIM_TAKE);
	al_table_find(rel, key, &holding);
	now = GetCurrentTimestamp();
	if (!al_is_live(&holding, now))
	{
		al_claim_drop(&claim);
		return false;
	}
	*ended = holding;
	holding.released_at = now;
	holding.owner = NULL;
	holding.meta = NULL;
	al_table_put(rel, &holding);
	return true;
}

/*
 * Give a key to another owner, whoever has it.  Outcome: AL_ACQUIRED.  "ended"
 * is the holding that it ended; without a valid tid where there was none.
 */
void
al_lease_steal(Relation rel, AlAcquire *request, AlHolding *ended, AlResult *result)
{
	AlClaim		claim;

	al_claim(&claim, &request->key, AL_CLAIM_TAKE);
	al_table_find(rel, &request->key, &result->holding);
	result->at = GetCurrentTimestamp();
	result->waited = 0;
	*ended = result->holding;
	if (!al_is_live(ended, result->at))
		ItemPointerSetInvalid(&ended->tid);
	grant(rel, request, result);
}

/* Is there nothing left that a row is needed for? */
static bool
is_over(TimestampTz expires_at, TimestampTz released_at, TimestampTz now)
{
	if (released_at != 0)
		return now >= add_duration(released_at, AL_MS_TO_US(al_released_retention_ms));
	return now >= add_duration(expires_at, AL_MS_TO_US(al_lock_delay_ms));
}

/*
 * Remove rows that are over, up to max_rows and to what the transaction may
 * still claim, and return how many.  Rows that an unfinished transaction has
 * claimed are skipped.
 */
int64
al_lease_sweep(Relation rel, int64 max_rows, TimestampTz now)
{
	AlScan		scan;
	HeapTuple	tuple;
	int64		removed = 0;

	al_scan_begin(&scan, rel, InvalidOid, 0, NULL);
	while (removed < max_rows && al_xact_claims_left() > 0 &&
		   HeapTupleIsValid(tuple = al_scan_next(&scan)))
	{
		TimestampTz expires_at;
		TimestampTz released_at;
		AlHolding	holding;
		AlKey		key;
		AlClaim		claim;

		al_table_peek(rel, tuple, &expires_at, &released_at);
		if (!is_over(expires_at, released_at, now))
			continue;

		al_table_read(rel, tuple, &holding);
		al_key_init(&key, holding.key);
		if (!al_claim_try(&claim, &key, AL_CLAIM_TAKE))
			continue;
		al_table_find_again(rel, &key, &holding);
		if (ItemPointerIsValid(&holding.tid) &&
			is_over(holding.expires_at, holding.released_at, now))
		{
			al_table_delete(rel, &holding);
			removed++;
		}
		else
			al_claim_drop(&claim);
	}
	al_scan_end(&scan);
	return removed;
}
