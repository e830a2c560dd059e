/*-------------------------------------------------------------------------
 *
 * attempt.c
 *		One attempt to get a key: may it be granted, and under which claim?
 *
 * Model: as in lease/state.c, look, claim, look again.  The first look leaves
 * out what it can: it only has to find the usual refusals, and which claim is
 * needed.  What is seen under the claim decides.
 *
 * An attempt ends with a refusal, or with a claim under which the grant can be
 * written (lease/grant.c) and nothing in the way.
 *
 * Convert is an acquire by an owner who has the key, and keeps all but the
 * mode; an acquire that asks for more than the owner has does the same.  It
 * needs not stand in line, because nobody in line can have the key for itself
 * before.
 *
 * A sweep claims keys that are free, for the few milliseconds of a batch, and is
 * waited for that long.
 *
 * Locking rules: claims are only tried.  A refused attempt drops its claim.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/compat.h"
#include "base/settings.h"
#include "base/testpoint.h"
#include "claim/claim.h"
#include "claim/claimed.h"
#include "claim/held.h"
#include "claim/holding.h"
#include "lease/attempt.h"
#include "lease/state.h"
#include "shmem/contention.h"
#include "shmem/queue.h"
#include "shmem/sole.h"
#include "shmem/stat.h"
#include "table/app_lock.h"

/* An acquire that meets a sweep tries again so often, after so many microseconds */
#define MOST_RETRIES	25
#define RETRY_PAUSE		1000L

static bool
is_unreleased(const AlHolding *row)
{
	return ItemPointerIsValid(&row->tid) && row->released_at == 0;
}

/* Does a row keep its key closed: not released, but over since a moment ago? */
bool
al_attempt_is_closed(const AlHolding *row, TimestampTz now)
{
	return al_lock_delay_ms > 0 && is_unreleased(row) && !al_is_live(row, now) &&
		now < al_closed_until(row);
}

/*
 * Which row keeps the key closed, if one does?  Those who shared it keep nobody
 * from sharing it.
 */
static const AlHolding *
find_closed(const AlAttempt *attempt)
{
	TimestampTz now = attempt->result->at;
	const AlHolding *last = NULL;
	ListCell   *cell;

	if (al_attempt_is_closed(&attempt->state.exclusive, now))
		return &attempt->state.exclusive;
	foreach(cell, attempt->request->is_shared ? NIL : attempt->state.shared)
	{
		const AlHolding *row = lfirst(cell);

		if (al_attempt_is_closed(row, now) &&
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
consider(AlAttempt *attempt, AlHolding *holding)
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
 * The holding that began first of those that this transaction has, or that are over
 * without the key being free to anybody else since; or NULL.  To release a lock and
 * acquire it again, for whichever owner, must not be a way to hold it for longer
 * than atomic_lock.max_lifetime.
 */
static const AlHolding *
find_kept(const AlAttempt *attempt)
{
	const AlHolding *first = NULL;
	ListCell   *cell;

	if (al_max_lifetime_ms <= 0 || !al_claimed_has(attempt->key->hash))
		return NULL;
	first = al_held_ended(attempt->key);
	foreach(cell, list_concat(lcons(unconstify(AlHolding *, &attempt->state.exclusive),
									list_copy(attempt->state.shared)),
							  attempt->state.mine))
	{
		const AlHolding *holding = lfirst(cell);

		if ((holding->lifetime == AL_TRANSACTION ||
			 (!al_is_live(holding, attempt->result->at) && al_is_kept(attempt->key, holding))) &&
			(first == NULL || holding->acquired_at < first->acquired_at))
			first = holding;
	}
	return first;
}

/*
 * Would what is granted be over at once, since nothing is left of its life?  The
 * end of what the owner has stays, if it is later than that.
 */
static bool
is_past_life(const AlAttempt *attempt)
{
	const AlAcquire *request = attempt->request;
	const AlHolding *began = attempt->own ? attempt->own : attempt->kept;

	if (al_max_lifetime_ms <= 0 || began == NULL || request->lifetime == AL_TRANSACTION)
		return false;
	if (attempt->own && attempt->own->lifetime != AL_TRANSACTION &&
		(attempt->own->expires_at != DT_NOEND || request->lifetime == AL_SESSION))
		return false;
	return al_end_of_life(began) <= attempt->result->at;
}

/*
 * What would come of the request, or why not, going by the rows and the clock.
 */
static AlOutcome
judge(AlAttempt *attempt)
{
	const AlAcquire *request = attempt->request;
	AlResult   *result = attempt->result;
	const AlHolding *closed;
	ListCell   *cell;

	attempt->own = NULL;
	attempt->kept = NULL;
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
		if (request->on_reacquire == AL_REACQUIRE_ERROR)
		{
			result->holding = *attempt->own;
			return AL_HELD_BY_OWNER;
		}
		if (is_past_life(attempt))
		{
			result->holding = *attempt->own;
			return AL_LIFETIME_EXCEEDED;
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
	attempt->kept = attempt->own ? NULL : find_kept(attempt);
	if (attempt->kept && is_past_life(attempt))
	{
		result->holding = *attempt->kept;
		return AL_LIFETIME_EXCEEDED;
	}
	return AL_ACQUIRED;
}

/*
 * Does somebody who waits come first?  Not where the owner has the key, nor
 * where our own transaction has: what it released and has not committed was
 * never on offer.
 */
static bool
is_queued(const AlAttempt *attempt, char **first)
{
	return attempt->own == NULL &&
		al_queue_is_behind(attempt->key, attempt->request->is_shared, first) &&
		!al_claimed_has(attempt->key->hash);
}

/*
 * Look at the rows of the key without a claim.  An exclusive lease is all there
 * is.  Whoever wants to share the key has to know before the claim only whether
 * the owner has it already, for whom those who wait need not be asked, and for
 * whose transaction another claim is needed.
 */
static void
look(Relation rel, AlAttempt *attempt, bool all)
{
	const AlAcquire *request = attempt->request;
	AlState    *state = &attempt->state;

	attempt->made = al_sole_entries(attempt->key);
	al_table_find(rel, attempt->key, &state->exclusive);
	state->shared = NIL;
	state->mine = al_held_mine(attempt->key);
	if (!all)
	{
		if (al_is_live(&state->exclusive, GetCurrentTimestamp()))
			return;
		if (request->is_shared && !request->is_convert &&
			request->lifetime != AL_TRANSACTION &&
			!al_queue_is_behind(attempt->key, true, NULL))
			return;
	}
	al_find_shared(rel, attempt->key, state);
}

/*
 * The same, with a claim.  Where there were no rows, or none of shared holdings,
 * and the index was given no entry since, there are none.
 */
static void
look_again(Relation rel, AlAttempt *attempt)
{
	AlState    *state = &attempt->state;
	bool		made = attempt->made == 0 ||
		attempt->made != al_sole_entries(attempt->key);

	if (made || !state->exclusive.is_new)
		al_table_find_again(rel, attempt->key, &state->exclusive);
	state->shared = NIL;
	if (attempt->claim.mode == AL_CLAIM_EXTEND)
		return;
	if (made)
		state->exclusive.is_alone = false;
	al_find_shared(rel, attempt->key, state);
	if (attempt->claim.mode == AL_CLAIM_TAKE && state->exclusive.is_alone &&
		!al_has_new_storage(rel))
		al_sole_set(attempt->key, true);
}

/* Which claim does it take to do what was judged?  False: none. */
static bool
needs_claim(const AlAttempt *attempt, AlOutcome outcome, AlClaimMode *mode,
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
		Assert(request->is_convert || own != NULL);
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
explain_claim(AlAttempt *attempt)
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
		result->blocker = al_claim_blocker(&attempt->claim);
}

/*
 * An owner that does not hold a key, as it seems, cannot convert it: make sure of
 * that by a look at everything at once.  What it holds by a transaction of another
 * session is in the way until that ends.
 */
static void
judge_at_once(Relation rel, AlAttempt *attempt)
{
	AlResult   *result = attempt->result;
	AlHolding  *elsewhere = al_held_elsewhere(attempt->key, &attempt->request->owner,
											   &result->is_in_use);

	al_look(rel, attempt->key, &attempt->state);
	result->outcome = judge(attempt);
	if (attempt->own == NULL && elsewhere)
	{
		/* Of what is not shown there is no label to tell. */
		result->outcome = elsewhere->holder ? AL_HELD : AL_CLAIMED;
		result->holding = *elsewhere;
		result->others = 0;
		result->blocker = elsewhere->pid;
	}
}

void
al_attempt_drop(AlAttempt *attempt)
{
	if (attempt->is_claimed)
		al_claim_drop(&attempt->claim);
	attempt->is_claimed = false;
}

/*
 * Is the claim in the way that of a sweep, which is about to go, or has it gone
 * by now?  Then try again, after a moment, unless that was done often enough.
 */
static bool
may_retry(const AlAttempt *attempt, int *retries)
{
	if (attempt->result->outcome != AL_CLAIMED || *retries >= MOST_RETRIES)
		return false;
	if (attempt->result->blocker == 0)
		*retries = MOST_RETRIES;	/* gone, or a prepared transaction's */
	else if (al_queue_is_sweeping(attempt->result->blocker))
	{
		(*retries)++;
		pg_usleep(RETRY_PAUSE);
	}
	else
		return false;
	return true;
}

/*
 * Try to get a key without waiting for anybody but a sweep, up to the claim under which the
 * grant is written.
 *
 * Outcomes: AL_ACQUIRED, AL_REACQUIRED; AL_HELD, AL_HELD_BY_OWNER, AL_CLAIMED,
 * AL_CLOSED, AL_QUEUED, AL_LIFETIME_EXCEEDED; of convert also AL_NOT_FOUND, AL_NOT_OWNER,
 * AL_ALREADY_RELEASED, AL_EXPIRED.
 */
void
al_attempt(Relation rel, AlAttempt *attempt)
{
	const AlAcquire *request = attempt->request;
	AlResult   *result = attempt->result;
	int			retries = 0;

	attempt->is_claimed = false;
	for (bool all = false;; all = true)
	{
		const AlOwner *owner = NULL;
		const AlOwner *owner_again = NULL;
		AlClaimMode mode = 0;
		AlClaimMode mode_again = 0;

		CHECK_FOR_INTERRUPTS();
		AL_TEST_POINT("before-look");
		look(rel, attempt, all);
		result->outcome = judge(attempt);
		if (request->is_convert && attempt->own == NULL)
			judge_at_once(rel, attempt);
		if (result->outcome == AL_ACQUIRED && is_queued(attempt, &result->first))
			result->outcome = AL_QUEUED;
		if (!al_is_granted(result) ||
			!needs_claim(attempt, result->outcome, &mode, &owner))
			return;

		AL_TEST_POINT("before-claim");
		if (!al_claim_try(&attempt->claim, attempt->key, owner, mode))
		{
			/* Knowing all, it may be another claim that is needed. */
			if (!all)
				continue;
			explain_claim(attempt);
			if (may_retry(attempt, &retries))
				continue;
			return;
		}
		attempt->is_claimed = true;
		AL_TEST_POINT("claimed");
		look_again(rel, attempt);
		result->outcome = judge(attempt);
		if (al_is_granted(result) &&
			needs_claim(attempt, result->outcome, &mode_again, &owner_again) &&
			covers(mode, mode_again) && owner_again == owner &&
			(result->outcome != AL_ACQUIRED || attempt->own || !attempt->claim.first ||
			 !al_queue_is_behind(attempt->key, request->is_shared, NULL)))
		{
			if (result->outcome != AL_ACQUIRED || mode != AL_CLAIM_SHARE ||
				!is_unreleased(&attempt->state.exclusive) ||
				al_claim_may_share(&attempt->claim))
				return;
			al_attempt_drop(attempt);
			explain_claim(attempt);
			return;
		}

		/* It changed under our eyes: it needs another claim, or has a line. */
		al_attempt_drop(attempt);
		if (!al_is_granted(result))
			return;
	}
}

/*
 * Something may have happened since a key was claimed, and the attempt granted.
 * The table was closed, so that its rows are elsewhere by now: find them again.
 * What the owner had may have run out: a claim to extend it does not do for a new
 * grant, so that is attempted anew.  Outcomes: those of al_attempt(); nobody else
 * can have been granted the key under the claim, but our own transaction can.
 */
void
al_attempt_refresh(Relation rel, AlAttempt *attempt)
{
	AlOutcome	now;

	look(rel, attempt, true);
	now = judge(attempt);
	if (now == AL_REACQUIRED || now == AL_HELD || now == AL_HELD_BY_OWNER ||
		now == AL_LIFETIME_EXCEEDED)
		attempt->result->outcome = now;
	else if (attempt->claim.mode == AL_CLAIM_TAKE || attempt->claim.mode == AL_CLAIM_SHARE)
		attempt->result->outcome = AL_ACQUIRED;
	else
	{
		al_attempt_drop(attempt);
		al_attempt(rel, attempt);
	}
}

/* An acquire was not granted */
void
al_attempt_count_refusal(const AlKey *key, const AlResult *result)
{
	switch (result->outcome)
	{
		case AL_HELD:
		case AL_HELD_BY_OWNER:
		case AL_CLAIMED:
		case AL_CLOSED:
		case AL_QUEUED:
			al_stat_count(AL_COUNT_REFUSALS, 1);
			al_contention_count(key, result->at, false, 0);
			break;
		case AL_LIFETIME_EXCEEDED:
			al_stat_count(AL_COUNT_REFUSALS, 1);
			break;
		case AL_TIMEOUT:
			al_stat_count(AL_COUNT_TIMEOUTS, 1);
			break;
		case AL_DEADLOCK:
			al_stat_count(AL_COUNT_DEADLOCKS, 1);
			break;
		default:
			break;				/* a convert by who does not hold the key */
	}
}
