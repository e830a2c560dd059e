/*-------------------------------------------------------------------------
 *
 * lock_acquire.c
 *		Acquire: one key or a set, in any mode and lifetime; convert; steal.
 *
 * Model: as in lock_lease.c, look, claim, look again, write.  The first look
 * leaves out what it can: it only has to find the usual refusals, and which
 * claim is needed.  What is seen under the claim decides.
 *
 * An attempt ends with a refusal, or with a claim under which the grant can be
 * written and nothing in the way.  So a set is attempted key by key, in the
 * order of keys, and written when all are claimed: until then nothing has been
 * written that would have to be undone.  What the owner holds already is
 * claimed last, since its heartbeats would wait for that claim.
 *
 * Who waits does so in the queue of lock_wait.c, for one key at a time, and has
 * claims on nothing but the keys of the set before it.
 *
 * Convert is an acquire by an owner who has the key, and keeps all but the
 * mode; an acquire that asks for more than the owner has does the same.  It
 * needs not stand in line, because nobody in line can have the key for itself
 * before.  Two who wait for each other to leave are told apart by a claim: the
 * second is refused.
 *
 * Locking rules: claims are only tried.  A refused attempt drops its claim, and
 * those of the set.  app_lock is closed while a call sleeps.
 *
 * IDENTIFICATION
 *		src/lock_acquire.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "compat.h"
#include "lock_lease.h"
#include "lock_wait.h"
#include "storage/ipc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/* Microseconds between two searches for a deadlock by one waiter */
#define SEARCH_INTERVAL		INT64CONST(1000000)

typedef struct Attempt
{
	const AlKey *key;
	AlAcquire  *request;
	AlResult   *result;
	AlState		state;
	AlHolding  *own;			/* what the owner has, in the state; or NULL */
	bool		is_claimed;
	AlClaim		claim;
} Attempt;

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

static bool
is_unreleased(const AlHolding *row)
{
	return ItemPointerIsValid(&row->tid) && row->released_at == 0;
}

/* Is a row closed because it was not released, but ran out a moment ago? */
static bool
is_closed(const AlHolding *row, TimestampTz now)
{
	return is_unreleased(row) && now >= row->expires_at &&
		now < al_add_duration(row->expires_at, AL_MS_TO_US(al_lock_delay_ms));
}

/* Which row keeps the key closed, if one does?  Those who shared it keep nobody from sharing it. */
static const AlHolding *
find_closed(const Attempt *attempt)
{
	TimestampTz now = attempt->result->at;
	const AlHolding *last = NULL;
	ListCell   *cell;

	if (is_closed(&attempt->state.exclusive, now))
		return &attempt->state.exclusive;
	foreach(cell, attempt->request->is_shared ? NIL : attempt->state.shared)
	{
		const AlHolding *row = lfirst(cell);

		if (is_closed(row, now) &&
			!(attempt->own && al_is_owned_by(row, &attempt->request->owner)) &&
			(last == NULL || row->expires_at > last->expires_at))
			last = row;
	}
	return last;
}

/* Does a holding allow all that is asked for? */
static bool
is_enough(const AlHolding *holding, const AlAcquire *request)
{
	return request->is_shared || !al_is_shared(holding);
}

/*
 * Take a holding, if it is live, into account: as what the owner has, or as what
 * is in the way, of which result->holding becomes what lasts longest.
 */
static void
consider(Attempt *attempt, AlHolding *holding)
{
	const AlAcquire *request = attempt->request;
	AlResult   *result = attempt->result;

	if (!al_is_live(holding, result->at))
		return;
	if (al_is_owned_by(holding, &request->owner))
	{
		if (attempt->own == NULL || !is_enough(attempt->own, request))
			attempt->own = holding;
	}
	else if (!request->is_shared || !al_is_shared(holding))
	{
		if (result->others < 0 || holding->expires_at > result->holding.expires_at)
			result->holding = *holding;
		result->others++;
	}
}

/*
 * What would come of the request, or why not, going by the rows and the clock.
 */
static AlOutcome
judge(Attempt *attempt)
{
	const AlAcquire *request = attempt->request;
	AlResult   *result = attempt->result;
	const AlHolding *closed;
	ListCell   *cell;

	attempt->own = NULL;
	result->others = -1;
	result->at = GetCurrentTimestamp();
	consider(attempt, &attempt->state.exclusive);
	foreach(cell, attempt->state.shared)
		consider(attempt, lfirst(cell));
	foreach(cell, attempt->state.mine)
		consider(attempt, lfirst(cell));

	if (request->is_convert)
	{
		if (attempt->own == NULL)
			return al_judge_owner(&attempt->state, &request->owner, result, &attempt->own);
		if (al_is_shared(attempt->own) == request->is_shared)
			return AL_REACQUIRED;
	}
	else if (attempt->own)
	{
		if (al_on_reacquire == AL_REACQUIRE_ERROR)
		{
			result->holding = *attempt->own;
			return AL_HELD_BY_OWNER;
		}
		if (is_enough(attempt->own, request))
			return AL_REACQUIRED;

		/* A lease that is shared cannot be had alone just for a while. */
		if (request->lifetime == AL_TRANSACTION && attempt->own->lifetime != AL_TRANSACTION)
		{
			result->holding = *attempt->own;
			return AL_HELD_BY_OWNER;
		}
	}
	if (result->others >= 0)
		return AL_HELD;
	closed = attempt->own && !al_is_shared(attempt->own) ? NULL : find_closed(attempt);
	if (closed)
	{
		result->holding = *closed;
		return AL_CLOSED;
	}
	return AL_ACQUIRED;
}

/*
 * Does somebody who waits come first?  Not where the owner has the key, nor
 * where our own transaction has: what it released and has not committed was
 * never on offer.
 */
static bool
is_queued(const Attempt *attempt, char **first)
{
	return attempt->own == NULL &&
		al_wait_behind(attempt->key, attempt->request->is_shared, first) &&
		!al_claim_is_mine(attempt->key->hash);
}

/*
 * Look at the rows of the key without a claim.  An exclusive lease is all there
 * is.  Whoever wants to share the key has to know before the claim only whether
 * the owner has it already, for whom those who wait need not be asked, and for
 * whose transaction another claim is needed.
 */
static void
look(Relation rel, Attempt *attempt, bool all)
{
	const AlAcquire *request = attempt->request;
	AlState    *state = &attempt->state;

	al_table_find(rel, attempt->key, &state->exclusive);
	state->shared = NIL;
	state->mine = al_held_mine(attempt->key);
	if (!all)
	{
		if (al_is_live(&state->exclusive, GetCurrentTimestamp()))
			return;
		if (request->is_shared && !request->is_convert &&
			request->lifetime != AL_TRANSACTION &&
			!al_wait_behind(attempt->key, true, NULL))
			return;
	}
	state->shared = al_table_find_shared(rel, attempt->key, false);
}

/* The same, with a claim */
static void
look_again(Relation rel, Attempt *attempt)
{
	AlState    *state = &attempt->state;

	al_table_find_again(rel, attempt->key, &state->exclusive);
	state->shared = NIL;
	if (attempt->claim.mode == AL_CLAIM_EXTEND)
		return;
	state->shared = al_table_find_shared(rel, attempt->key,
										 attempt->claim.mode == AL_CLAIM_TAKE);
}

/* Which claim does it take to do what was judged?  False: none. */
static bool
needs_claim(const Attempt *attempt, AlOutcome outcome, AlClaimMode *mode,
			const AlOwner **owner)
{
	const AlAcquire *request = attempt->request;
	const AlHolding *own = attempt->own;
	bool		is_shared = request->is_shared;

	if (outcome == AL_ACQUIRED)
	{
		is_shared = is_shared && own == NULL;
		*mode = is_shared ? AL_CLAIM_SHARE : AL_CLAIM_TAKE;
	}
	else
	{
		if (request->is_convert ||
			(own->lifetime == AL_TRANSACTION && request->lifetime == AL_TRANSACTION))
			return false;
		is_shared = al_is_shared(own);
		if (request->lifetime == AL_TRANSACTION)
			*mode = AL_CLAIM_PIN;
		else if (is_shared)
			*mode = own->lifetime == AL_TRANSACTION ? AL_CLAIM_SHARE : AL_CLAIM_SHARE_EXTEND;
		else
			*mode = own->lifetime == AL_TRANSACTION ? AL_CLAIM_TAKE : AL_CLAIM_EXTEND;
	}
	*owner = is_shared ? &request->owner : NULL;
	return true;
}

/* Does a claim do for what turned out to need another one? */
static bool
covers(AlClaimMode mode, AlClaimMode needed)
{
	return mode == needed || (mode == AL_CLAIM_SHARE && needed == AL_CLAIM_SHARE_EXTEND);
}

/* Somebody else's claim is in the way: say whose */
static void
explain_claim(Attempt *attempt)
{
	AlResult   *result = attempt->result;
	ListCell   *cell;

	result->outcome = AL_CLAIMED;
	result->others = -1;
	foreach(cell, al_held_by_others(attempt->key))
	{
		const AlHolding *holding = lfirst(cell);

		if (holding->holder == NULL ||
			(attempt->request->is_shared && al_is_shared(holding) &&
			 !al_is_owned_by(holding, &attempt->request->owner)))
			continue;
		result->outcome = AL_HELD;
		result->holding = *holding;
		result->others++;
	}
	if (result->outcome == AL_CLAIMED)
		result->rival = al_claim_rival(&attempt->claim);
}

static void
drop(Attempt *attempt)
{
	if (attempt->is_claimed)
		al_claim_drop(&attempt->claim);
	attempt->is_claimed = false;
}

/*
 * Try to get a key without waiting for anybody, up to the claim under which the
 * grant is written.
 *
 * Outcomes: AL_ACQUIRED, AL_REACQUIRED; AL_HELD, AL_HELD_BY_OWNER, AL_CLAIMED,
 * AL_CLOSED, AL_QUEUED; of convert also AL_NOT_FOUND, AL_NOT_OWNER,
 * AL_ALREADY_RELEASED, AL_EXPIRED.
 */
static void
attempt_now(Relation rel, Attempt *attempt)
{
	AlResult   *result = attempt->result;

	attempt->is_claimed = false;
	for (bool all = false;; all = true)
	{
		const AlOwner *owner = NULL;
		const AlOwner *owner_again = NULL;
		AlClaimMode mode = 0;
		AlClaimMode mode_again = 0;

		CHECK_FOR_INTERRUPTS();
		look(rel, attempt, all);
		result->outcome = judge(attempt);
		if (result->outcome == AL_ACQUIRED && is_queued(attempt, &result->first))
			result->outcome = AL_QUEUED;
		if (!al_is_granted(result) ||
			!needs_claim(attempt, result->outcome, &mode, &owner))
			return;

		if (!al_claim_try(&attempt->claim, attempt->key, owner, mode))
		{
			/* Knowing all, it may be another claim that is needed. */
			if (!all)
				continue;
			explain_claim(attempt);
			return;
		}
		attempt->is_claimed = true;
		look_again(rel, attempt);
		result->outcome = judge(attempt);
		if (al_is_granted(result) &&
			needs_claim(attempt, result->outcome, &mode_again, &owner_again) &&
			covers(mode, mode_again) && owner_again == owner &&
			(result->outcome != AL_ACQUIRED || attempt->own || !attempt->claim.first ||
			 !al_wait_behind(attempt->key, attempt->request->is_shared, NULL)))
		{
			if (result->outcome != AL_ACQUIRED || mode != AL_CLAIM_SHARE ||
				!is_unreleased(&attempt->state.exclusive) ||
				al_claim_try_over(&attempt->claim))
				return;
			drop(attempt);
			explain_claim(attempt);
			return;
		}

		/* It changed under our eyes: it needs another claim, or has a line. */
		drop(attempt);
		if (!al_is_granted(result))
			return;
	}
}

/* Fill in what the request says about the end of a new holding */
static void
set_end(const AlAcquire *request, TimestampTz at, AlHolding *holding)
{
	holding->ttl = request->ttl;
	holding->expires_at = request->ttl > 0 ? al_add_duration(at, request->ttl) : DT_NOEND;
	if (request->lifetime != AL_TRANSACTION)
		holding->expires_at = Min(holding->expires_at, al_end_of_life(holding));
	holding->lifetime = request->lifetime;
	holding->pid = request->lifetime == AL_LEASE ? 0 : MyProcPid;
	holding->backend_start = request->lifetime == AL_SESSION ? MyStartTimestamp : 0;
}

/*
 * Acquire what the owner has again: the last request says with what it ends,
 * but its time does not become shorter.
 */
static void
renew(const AlAcquire *request, TimestampTz at, AlHolding *holding)
{
	TimestampTz previous = holding->expires_at;
	AlLifetime	lifetime = holding->lifetime;

	set_end(request, at, holding);
	if (lifetime != AL_TRANSACTION &&
		(previous != DT_NOEND || request->lifetime == AL_SESSION))
		holding->expires_at = Max(holding->expires_at, previous);
	if (request->holder)
		holding->holder = request->holder;
	if (request->meta)
		holding->meta = request->meta;
}

/* A new holding, but for its row and token */
static void
init_holding(Attempt *attempt, AlHolding *holding)
{
	AlAcquire  *request = attempt->request;
	TimestampTz at = attempt->result->at;

	if (request->owner.generated && request->owner.name.len == 0)
	{
		al_owner_generate(&request->owner);
		if (request->is_shared || request->lifetime == AL_TRANSACTION)
			request->owner.hash = al_owner_hash(request->owner.name);
	}
	if (request->owner.generated && request->is_shared)
		al_claim_holding(attempt->key, &request->owner);
	memset(holding, 0, sizeof(AlHolding));
	ItemPointerSetInvalid(&holding->tid);
	holding->key = attempt->key->name;
	holding->acquired_at = at;
	set_end(request, at, holding);
	holding->holder = request->holder ? request->holder : al_holder_default();
	holding->owner = al_string_text(request->owner.name);
	holding->meta = request->meta;
}

/* Put a holding into a row, or into none */
static void
set_row(const AlAcquire *request, const AlHolding *row, AlHolding *holding)
{
	holding->tid = row->tid;
	holding->tuple = row->tuple;
	holding->slot = row->slot;
	holding->has_owner_hash = row->has_owner_hash;
	holding->owner_hash = row->owner_hash;
	if (!request->owner.generated)
	{
		/* A hash that no longer fits is harmless, and leaving it keeps HOT. */
		holding->has_owner_hash = true;
		holding->owner_hash = (int32) request->owner.hash;
	}
}

/*
 * Write a new shared holding: over the row of one that is over and does not keep
 * the key closed, best of all of the same owner, or as a new row.  Of the numbers of slots the lower 31 bits of
 * the fencing token are one that nobody else has.
 */
static void
put_shared(Relation rel, Attempt *attempt, AlHolding *holding)
{
	const AlAcquire *request = attempt->request;
	TimestampTz now = GetCurrentTimestamp();
	AlHolding	no_row = {.slot = AL_SLOT_EXCLUSIVE + 1};
	ListCell   *cell;

	for (int own_rows = 1; own_rows >= 0; own_rows--)
	{
		foreach(cell, attempt->state.shared)
		{
			AlHolding  *row = lfirst(cell);

			if (al_is_live(row, now) || is_closed(row, now) || row == attempt->own ||
				al_is_owned_by(row, &request->owner) != own_rows)
				continue;
			set_row(request, row, holding);
			if (al_table_try_put(rel, holding))
				return;
		}
	}

	no_row.slot += (int32) (holding->fencing_token % (PG_INT32_MAX - 1));
	for (cell = list_head(attempt->state.shared); cell;)
	{
		if (((AlHolding *) lfirst(cell))->slot != no_row.slot)
			cell = lnext(attempt->state.shared, cell);
		else
		{
			no_row.slot = no_row.slot % (PG_INT32_MAX - 1) + 1;
			cell = list_head(attempt->state.shared);
		}
	}
	ItemPointerSetInvalid(&no_row.tid);
	set_row(request, &no_row, holding);
	al_table_put(rel, holding);
}

/* Write a holding that is new, or has another mode than before, as a row */
static void
put_row(Relation rel, Attempt *attempt, bool is_shared, AlHolding *holding)
{
	AlHolding  *own = attempt->own;

	if (holding->lifetime == AL_SESSION)
		al_session_note(rel, attempt->key);
	if (is_shared)
		put_shared(rel, attempt, holding);
	else
	{
		set_row(attempt->request, &attempt->state.exclusive, holding);
		al_table_put(rel, holding);
	}
	if (own && own->lifetime == AL_TRANSACTION)
		al_held_end(own);
	else if (own)
		al_end_row(rel, own, attempt->result->at, true);
}

/* What was judged, and the claim is there for: a transaction holds the key */
static void
grant_transaction(Attempt *attempt)
{
	const AlAcquire *request = attempt->request;
	AlHolding  *own = attempt->own;
	AlHolding  *holding = &attempt->result->holding;
	bool		is_change = own && own->lifetime == AL_TRANSACTION;

	al_claim_transaction(attempt->key, request->is_shared);
	if (is_change)
		*holding = *own;
	else
		init_holding(attempt, holding);
	holding->slot = request->is_shared ? AL_SLOT_EXCLUSIVE + 1 : AL_SLOT_EXCLUSIVE;
	holding->fencing_token = al_fence_next();
	if (is_change)
		al_held_change(holding, &request->owner);
	else
		al_held_add(attempt->key, &request->owner, holding);
}

/* Write what an attempt was granted, as of now */
static void
finish(Relation rel, Attempt *attempt)
{
	AlAcquire  *request = attempt->request;
	AlResult   *result = attempt->result;
	AlHolding  *holding = &result->holding;
	AlHolding  *own = attempt->own;
	bool		is_shared = request->is_shared;

	result->at = GetCurrentTimestamp();
	if (result->outcome == AL_REACQUIRED)
	{
		*holding = *own;
		if (request->is_convert || request->lifetime == AL_TRANSACTION)
			return;
		is_shared = al_is_shared(own);
		renew(request, result->at, holding);
		if (holding->lifetime == AL_SESSION)
			al_session_note(rel, attempt->key);
		if (own->lifetime == AL_TRANSACTION)
		{
			put_row(rel, attempt, is_shared, holding);
			al_xact_granted(attempt->key, &request->owner, al_held_until(holding));
			return;
		}
		if (!is_shared)
			al_table_put(rel, holding);
		if (!is_shared || al_table_try_put(rel, holding))
		{
			al_xact_granted(attempt->key, &request->owner, al_held_until(holding));
			return;
		}
		/* It ran out since, and somebody is being given the row: take another. */
		result->outcome = AL_ACQUIRED;
		attempt->own = own = NULL;
	}

	if (request->is_convert ? own->lifetime == AL_TRANSACTION :
		request->lifetime == AL_TRANSACTION)
	{
		grant_transaction(attempt);
		return;
	}

	if (own && own->lifetime != AL_TRANSACTION)
	{
		*holding = *own;
		if (!request->is_convert)
			renew(request, result->at, holding);
	}
	else
		init_holding(attempt, holding);
	if (own)
	{
		holding->acquired_at = own->acquired_at;
		if (!request->holder)
			holding->holder = own->holder;
	}
	holding->fencing_token = al_fence_next();
	holding->released_at = 0;
	put_row(rel, attempt, is_shared, holding);
	al_xact_granted(attempt->key, &request->owner, al_held_until(holding));
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
time_to_look(const Attempt *attempt)
{
	const AlResult *result = attempt->result;
	TimestampTz at = result->holding.expires_at;

	/* Those behind need not look when the lease ends, the first will. */
	if ((result->outcome != AL_HELD && result->outcome != AL_CLOSED) || at == DT_NOEND ||
		al_wait_behind(attempt->key, attempt->request->is_shared, NULL))
		return PG_INT64_MAX;
	if (result->outcome == AL_CLOSED)
		at = al_add_duration(at, AL_MS_TO_US(al_lock_delay_ms));
	return Max(at - GetCurrentTimestamp(), 0);
}

static void
leave_queue(int code, Datum arg)
{
	al_wait_end(false);
}

/* Does the owner share the key, and has to wait until it is alone with it? */
static bool
is_upgrade(const Attempt *attempt)
{
	return attempt->own && al_is_shared(attempt->own) && !attempt->request->is_shared;
}

/*
 * Try until the key is granted, or the wait is over, or it turns out that this
 * is an upgrade and we have not joined the queue as one.  What is left in the
 * result is of the last try.  app_lock is closed while we sleep, or whoever has
 * to lock it otherwise would wait for the wait.
 */
static void
attempt_in_line(Relation *rel, Attempt *attempt, int64 start, int64 *next_search,
				bool as_upgrade)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "lock_acquire wait",
												  ALLOCSET_SMALL_SIZES);
	AlResult   *result = attempt->result;
	int64		wait = attempt->request->wait;

	for (;;)
	{
		MemoryContext old_context;
		int64		sleep;

		MemoryContextReset(context);
		old_context = MemoryContextSwitchTo(context);
		al_wait_look();
		attempt_now(*rel, attempt);
		result->waited = al_monotonic_now() - start;
		result->obstacle = result->outcome;
		if (may_pass(result->outcome))
		{
			if (result->waited >= wait)
				result->outcome = AL_TIMEOUT;
			else if (start + result->waited >= *next_search)
			{
				result->circle = al_deadlock_find(*rel);
				if (result->circle)
					result->outcome = AL_DEADLOCK;
				*next_search = al_monotonic_now() + SEARCH_INTERVAL;
			}
		}
		MemoryContextSwitchTo(old_context);
		if (!may_pass(result->outcome) || is_upgrade(attempt) != as_upgrade)
			return;

		sleep = Min(time_to_look(attempt),
					Min(start + wait, *next_search) - al_monotonic_now());
		table_close(*rel, RowExclusiveLock);
		al_wait_sleep(Max(sleep, 0));
		*rel = al_open_app_lock(RowExclusiveLock);
	}
}

/* Wait in the queue; true: for the request this is the end */
static bool
wait_in_queue(Relation *rel, Attempt *attempt, int64 start, int64 *next_search)
{
	AlAcquire  *request = attempt->request;
	AlResult   *result = attempt->result;
	bool		as_upgrade = is_upgrade(attempt);
	bool		is_first_upgrade = as_upgrade && al_claim_upgrade(attempt->key);

	if (as_upgrade && !is_first_upgrade &&
		!al_wait_is_upgraded_by(attempt->key, &request->owner))
	{
		result->obstacle = result->outcome;
		result->outcome = AL_DEADLOCK;
		result->circle = pstrdup("Another owner shares the lock and waits to have it for itself, too.");
		return true;
	}
	PG_ENSURE_ERROR_CLEANUP(leave_queue, (Datum) 0);
	{
		al_wait_begin(attempt->key, &request->owner, request->is_shared, as_upgrade,
					  request->holder ? request->holder : al_holder_default());
		attempt_in_line(rel, attempt, start, next_search, as_upgrade);
	}
	PG_END_ENSURE_ERROR_CLEANUP(leave_queue, (Datum) 0);
	al_wait_end(al_is_granted(result) && attempt->is_claimed);
	if (is_first_upgrade)
		al_claim_upgrade_end(attempt->key);
	return !may_pass(result->outcome);
}

/*
 * Try to get a key, waiting as long as the request allows, counted from
 * "start".  Outcomes: those of attempt_now() where the request does not wait,
 * AL_TIMEOUT and AL_DEADLOCK where it does.  A wait also ends by whatever
 * interrupts raise, and then has left nothing.
 */
static void
attempt_in_turn(Relation *rel, Attempt *attempt, int64 start)
{
	int64		next_search;

	attempt->result->waited = 0;
	attempt_now(*rel, attempt);
	if (attempt->request->wait == 0)
		return;
	next_search = al_monotonic_now() + INT64CONST(1000) * DeadlockTimeout;
	while (may_pass(attempt->result->outcome) &&
		   !wait_in_queue(rel, attempt, start, &next_search))
		;
}

/*
 * Acquire a key, or renew what the owner has of it already, waiting for it as
 * long as the request allows; or convert it.
 *
 * Outcomes: those of attempt_in_turn().
 */
void
al_lease_acquire(Relation *rel, const AlKey *key, AlAcquire *request, AlResult *result)
{
	Attempt		attempt = {.key = key, .request = request, .result = result};

	attempt_in_turn(rel, &attempt, request->wait > 0 ? al_monotonic_now() : 0);
	if (al_is_granted(result))
		finish(*rel, &attempt);
}

/*
 * The table was closed since a key was claimed, so that its rows may be
 * elsewhere by now: find them again.  Under the claim nobody else can have been
 * granted the key; but what the owner had may have run out, and is then granted
 * anew.
 */
static void
refresh(Relation rel, Attempt *attempt)
{
	AlOutcome	outcome = attempt->result->outcome;

	look(rel, attempt, true);
	if (judge(attempt) != outcome)
		attempt->result->outcome = AL_ACQUIRED;
}

/*
 * Acquire a set of keys, which are in order: all or none.  The wait is for the
 * whole set.  Returns -1 where all are granted, otherwise which one is in the
 * way; of the others the results say nothing then.
 */
int
al_lease_acquire_all(Relation *rel, const AlKey *keys, int count,
					 AlAcquire *request, AlResult *results)
{
	Attempt    *attempts = palloc0(count * sizeof(Attempt));
	bool	   *is_own = palloc0(count * sizeof(bool));
	int64		start = al_monotonic_now();
	int64		waited = 0;

	for (int pass = 0; pass < 2; pass++)
	{
		for (int i = 0; i < count; i++)
		{
			Attempt    *attempt = &attempts[i];

			if (pass == 1 && !is_own[i])
				continue;
			attempt->key = &keys[i];
			attempt->request = request;
			attempt->result = &results[i];
			attempt_in_turn(rel, attempt, start);
			waited = Max(waited, results[i].waited);
			if (!al_is_granted(&results[i]))
			{
				for (int j = 0; j < count; j++)
					drop(&attempts[j]);
				return i;
			}
			if (pass == 0 && results[i].outcome == AL_REACQUIRED)
			{
				drop(attempt);
				is_own[i] = true;
			}
		}
	}

	for (int i = 0; i < count; i++)
	{
		results[i].waited = waited;
		if (waited > 0)
			refresh(*rel, &attempts[i]);
		finish(*rel, &attempts[i]);
	}
	return -1;
}

/*
 * Give a key to another owner, whoever has it.  Outcome: AL_ACQUIRED.  Returns
 * what it ended: a list of AlHolding *.
 */
List *
al_lease_steal(Relation rel, const AlKey *key, AlAcquire *request, AlResult *result)
{
	Attempt		attempt = {.key = key, .request = request, .result = result};
	List	   *ended = al_lease_end(rel, key, &attempt.claim);

	al_table_find(rel, key, &attempt.state.exclusive);
	result->outcome = AL_ACQUIRED;
	result->waited = 0;
	finish(rel, &attempt);
	return ended;
}
