/*-------------------------------------------------------------------------
 *
 * attempt.c
 *		One attempt to get a key.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: look, claim, look again (lease/state.c).
 *
 * 1. Look at the rows without a claim.  This finds the usual refusals, and which claim a grant
 *    needs (is_worth_claiming).
 * 2. Try to take that claim.
 * 3. Look and judge again under the claim (verify).  This decides.  Where the grant needs another
 *    claim by now, drop this one and begin again.
 * 4. Where max_holders limits the sharers, claim the seats and count them.  This keeps out other
 *    callers with a limit.  Those without one count as soon as they are seen.
 * 5. The caller writes the grant under the claim (lease/grant.c).
 *
 * An owner that holds the key is not queued for a stronger mode: while it holds the key, no
 * waiter can have the key exclusively.
 *
 * Locking rules: claims are tried without waiting.  Those of a sweep, or of a transaction that
 * has ended, are usually gone within milliseconds, so an attempt retries for half a second.  A
 * refused attempt drops its claim.  The seats are claimed last, and waited for.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/compat.h"
#include "base/errors.h"
#include "base/settings.h"
#include "base/str.h"
#include "base/testpoint.h"
#include "claim/claim.h"
#include "claim/claimed.h"
#include "claim/holding.h"
#include "claim/tx_holdings.h"
#include "lease/attempt.h"
#include "lease/line.h"
#include "lease/state.h"
#include "lease/terms.h"
#include "shmem/contention.h"
#include "shmem/sole.h"
#include "shmem/stat.h"
#include "shmem/tickets.h"
#include "shmem/waiters.h"
#include "table/app_lock.h"
#include "table/pending.h"
#include "table/tickets.h"

/* Maximum number of retries past such a claim, and the microseconds between them */
#define MOST_RETRIES	500
#define RETRY_PAUSE		1000L

/* Maximum number of claims that an attempt drops because its grant needs another one */
#define MOST_CLAIMS		100

static bool
is_unreleased(const AlHolding *row)
{
	return ItemPointerIsValid(&row->tid) && row->released_at == 0;
}

/* The row that keeps the key closed, or NULL; a shared row does not stop another sharer */
static const AlHolding *
find_closed(const AlAttempt *attempt)
{
	TimestampTz now = attempt->result->at;
	const AlHolding *last = NULL;
	ListCell   *cell;

	if (al_is_closed(&attempt->state.rows.exclusive, now))
		return &attempt->state.rows.exclusive;
	foreach(cell, attempt->is_shared ? NIL : attempt->state.rows.shared)
	{
		const AlHolding *row = lfirst(cell);

		/* An owner's own former share delays that owner by min_hold only. */
		if (al_is_closed(row, now) &&
			(attempt->own == NULL || !al_is_owned_by(row, &attempt->request->owner) ||
			 now < al_min_held_until(row)) &&
			(last == NULL || al_closed_until(row) > al_closed_until(last)))
			last = row;
	}
	return last;
}

/* Is the mode of a holding the requested one, or stronger? */
static bool
is_enough(const AlHolding *holding, bool is_shared)
{
	return is_shared || !al_is_shared(holding);
}

/* Note a live holding as the owner's or as an obstacle; result->holding: the longest obstacle */
static void
consider(AlAttempt *attempt, AlHolding *holding)
{
	const AlAcquire *request = attempt->request;
	AlResult   *result = attempt->result;

	if (!al_is_live(holding, result->at))
		return;
	if (al_is_owned_by(holding, &request->owner))
	{
		if (attempt->own == NULL || !is_enough(attempt->own, request->is_shared))
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
 * The holding whose life a new grant continues, or NULL: the oldest among those of this
 * transaction, and those that ended while it kept the key from others.  Of any owner: releasing a
 * lock and acquiring it again must not extend it beyond max_lifetime.
 */
static const AlHolding *
find_predecessor(const AlAttempt *attempt)
{
	const AlHolding *first = NULL;
	ListCell   *cell;

	if (attempt->terms.max_lifetime <= 0 || !al_claimed_has(attempt->key->hash))
		return NULL;
	first = al_tx_ended(attempt->key);
	foreach(cell, list_concat(lcons(unconstify(AlHolding *, &attempt->state.rows.exclusive),
									list_copy(attempt->state.rows.shared)),
							  attempt->state.mine))
	{
		const AlHolding *holding = lfirst(cell);

		if ((holding->lifetime == AL_TRANSACTION ||
			 (!al_is_live(holding, attempt->result->at) &&
			  al_wrote_or_pinned(attempt->key, holding))) &&
			(first == NULL || holding->acquired_at < first->acquired_at))
			first = holding;
	}
	return first;
}

/*
 * Would the grant end at once because max_lifetime has passed?  Not a renewal that keeps its end.
 */
static bool
is_past_life(const AlAttempt *attempt)
{
	const AlHolding *began = attempt->own ? attempt->own : attempt->predecessor;

	if (began == NULL || attempt->lifetime == AL_TRANSACTION || attempt->terms.max_lifetime <= 0)
		return false;
	if (attempt->own && attempt->own->lifetime != AL_TRANSACTION &&
		(attempt->own->expires_at != DT_NOEND || attempt->lifetime == AL_SESSION))
		return false;
	return al_end_of_life(began) <= attempt->result->at;
}

static AlOutcome
refuse(AlResult *result, const AlHolding *why, AlOutcome outcome)
{
	result->holding = *why;
	return outcome;
}

/* Find the owner's holding and the obstacles; choose mode and lifetime of the grant */
static void
take_stock(AlAttempt *attempt)
{
	const AlAcquire *request = attempt->request;
	AlResult   *result = attempt->result;
	ListCell   *cell;

	attempt->own = NULL;
	attempt->predecessor = NULL;
	attempt->is_shared = request->is_shared;
	attempt->lifetime = request->lifetime;
	result->is_full = false;
	result->others = -1;
	result->at = GetCurrentTimestamp();
	consider(attempt, &attempt->state.rows.exclusive);
	foreach(cell, attempt->state.rows.shared)
		consider(attempt, lfirst(cell));
	foreach(cell, attempt->state.mine)
		consider(attempt, lfirst(cell));
	/* The list contains the one that lasts longest. */
	if (result->others >= 0 && !request->is_shared)
		result->others += attempt->state.rows.more;
	if (request->keeps_own && attempt->own)
	{
		attempt->is_shared = al_is_shared(attempt->own);
		attempt->lifetime = attempt->own->lifetime;
	}
}

/* The outcome for an owner that holds the key; AL_ACQUIRED: a new grant is needed */
static AlOutcome
judge_own(const AlAttempt *attempt)
{
	const AlAcquire *request = attempt->request;
	const AlHolding *own = attempt->own;

	if (request->is_convert)
		return al_is_shared(own) == attempt->is_shared ? AL_REACQUIRED : AL_ACQUIRED;
	if (request->on_reacquire == AL_REACQUIRE_ERROR)
		return refuse(attempt->result, own, AL_HELD_BY_OWNER);
	if (is_past_life(attempt))
		return refuse(attempt->result, own, AL_LIFETIME_EXCEEDED);
	if (is_enough(own, attempt->is_shared))
		return AL_REACQUIRED;
	/* A shared lease cannot become exclusive for the rest of a transaction only. */
	if (attempt->lifetime == AL_TRANSACTION && own->lifetime != AL_TRANSACTION)
		return refuse(attempt->result, own, AL_HELD_BY_OWNER);
	return AL_ACQUIRED;
}

/* The outcome of the request, according to the holdings seen and the clock */
static AlOutcome
judge(AlAttempt *attempt)
{
	AlResult   *result = attempt->result;
	AlOutcome	outcome = AL_ACQUIRED;
	const AlHolding *closed;

	take_stock(attempt);
	if (attempt->own)
		outcome = judge_own(attempt);
	else if (attempt->request->is_convert)
		return al_judge_owner(&attempt->state, &attempt->request->owner, result, &attempt->own);
	if (outcome != AL_ACQUIRED)
		return outcome;
	if (result->others >= 0)
		return AL_HELD;
	closed = attempt->own && !al_is_shared(attempt->own) ? NULL : find_closed(attempt);
	if (closed)
		return refuse(result, closed, AL_CLOSED);
	attempt->predecessor = attempt->own ? NULL : find_predecessor(attempt);
	if (attempt->predecessor && is_past_life(attempt))
		return refuse(result, attempt->predecessor, AL_LIFETIME_EXCEEDED);
	return AL_ACQUIRED;
}

/* Would the request share the key with any number of others? */
bool
al_attempt_is_open(const AlAttempt *attempt)
{
	return attempt->request->is_shared && attempt->terms.max_holders == 0;
}

/*
 * Does a waiter or a ticket come before this request?  While the key is offered to a ticket, only
 * that ticket's owner gets it.  "first" is as for al_waiters_precede().
 */
static bool
is_behind(AlAttempt *attempt, char **first)
{
	int64		arrival = al_waiters_arrival();
	AlLine		line;

	attempt->line_until = DT_NOEND;
	if (!al_tickets_none() && al_tickets_look(attempt->key, &attempt->request->owner, &line))
	{
		if (line.mine.number != 0)
			arrival = Min(arrival, line.mine.number);
		if (line.is_offered && line.first.number == line.mine.number)
			return false;
		if (line.is_offered || line.first.number < arrival)
		{
			attempt->line_until = line.until;
			/* The key is free, but no commit has offered it to the first ticket. */
			if (!line.is_offered)
			{
				al_trace(DEBUG1, "lock \"%s\": free, but not offered to ticket %lld",
						 al_display(attempt->key->name), (long long) line.first.number);
				al_line_missed();
			}
			if (first)
			{
				*first = text_to_cstring(line.first.holder);
				attempt->result->ticket = line.first.number;
				attempt->result->kept_until = line.is_offered ? line.until : 0;
			}
			return true;
		}
	}
	return al_waiters_precede(attempt->key, al_attempt_is_open(attempt), arrival, first);
}

/*
 * Must the request queue behind others?  Not if the owner holds the key, or if this transaction
 * has taken the key exclusively or released it: before the commit, it is not free for others.
 */
static bool
is_queued(AlAttempt *attempt, char **first)
{
	attempt->is_ours = al_claimed_count() > 0 && al_claimed_has(attempt->key->hash) &&
		(al_claim_is_mine_alone(attempt->key->hash) || al_claimed_has_freed(attempt->key->hash));
	return attempt->own == NULL && !attempt->is_ours && is_behind(attempt, first);
}

/* The rows of shared holdings that decide: for a sharer its own; has_seat() counts others */
static AlLook
rows_to_see(const AlAttempt *attempt)
{
	/* find_predecessor() needs the rows that this transaction has kept. */
	if (attempt->terms.max_lifetime > 0 && al_claimed_has(attempt->key->hash))
		return AL_LOOK_ALL;
	return attempt->request->is_shared ? AL_LOOK_OWN : AL_LOOK_SOME;
}

/*
 * Look at the holdings of the key without a claim.  Unless "all" is set, skip the rows of
 * shared holdings where a live exclusive lease decides; and for a request to share without a
 * limit, unless a share of the same owner would matter: it passes the queue and a closed
 * key, and needs another claim for the lifetime of a transaction.
 */
static void
look(Relation rel, AlAttempt *attempt, bool all)
{
	const AlAcquire *request = attempt->request;
	AlState    *state = &attempt->state;

	attempt->entries = al_sole_entries(attempt->key);
	al_table_find(rel, attempt->key, &state->rows.exclusive);
	state->rows.shared = NIL;
	state->rows.more = 0;
	state->mine = al_tx_mine(attempt->key);
	if (!all)
	{
		TimestampTz now = GetCurrentTimestamp();

		if (al_is_live(&state->rows.exclusive, now))
			return;
		if (al_attempt_is_open(attempt) && !request->is_convert &&
			request->lifetime != AL_TRANSACTION &&
			!al_is_closed(&state->rows.exclusive, now) &&
			!al_waiters_precede(attempt->key, true, PG_INT64_MAX, NULL) &&
			!al_tickets_may_be())
			return;
	}
	AL_TEST_POINT("exclusive-seen");
	al_find_shared(rel, attempt->key, &request->owner, rows_to_see(attempt), state);
}

/*
 * Look at the rows of the key under the claim.  Rows that the first look did not find do not
 * exist if the index was given no entry since.
 */
static void
look_again(Relation rel, AlAttempt *attempt)
{
	AlState    *state = &attempt->state;
	bool		is_unchanged = al_sole_is_unchanged(attempt->key, attempt->entries);

	if (!is_unchanged || state->rows.exclusive.sole != AL_SOLE_NONE)
		al_table_find_again(rel, attempt->key, &state->rows.exclusive);
	state->rows.shared = NIL;
	state->rows.more = 0;
	if (attempt->claim.mode == AL_CLAIM_EXTEND)
		return;
	if (!is_unchanged)
		state->rows.exclusive.sole = AL_SOLE_UNKNOWN;
	al_find_shared(rel, attempt->key, &attempt->request->owner, rows_to_see(attempt), state);
	if (attempt->claim.mode == AL_CLAIM_TAKE && state->rows.exclusive.sole != AL_SOLE_UNKNOWN &&
		!al_has_new_storage(rel))
		al_sole_set(attempt->key, true);
}

/* The claim that the grant needs: *mode, and *owner as for al_claim().  False: no claim. */
static bool
needs_claim(const AlAttempt *attempt, AlClaimMode *mode, const AlOwner **owner)
{
	const AlAcquire *request = attempt->request;
	const AlHolding *own = attempt->own;
	bool		is_new = attempt->result->outcome == AL_ACQUIRED;
	bool		is_shared;

	Assert(is_new || request->is_convert || own != NULL);
	if (!is_new && (request->is_convert || (own->lifetime == AL_TRANSACTION &&
											attempt->lifetime == AL_TRANSACTION)))
		return false;
	is_shared = is_new ? attempt->is_shared && own == NULL : al_is_shared(own);
	if (!is_new && attempt->lifetime == AL_TRANSACTION)
		*mode = AL_CLAIM_PIN;
	else if (is_new || own->lifetime == AL_TRANSACTION)
		*mode = is_shared ? AL_CLAIM_SHARE : AL_CLAIM_TAKE;
	else
		*mode = is_shared ? AL_CLAIM_SHARE_EXTEND : AL_CLAIM_EXTEND;
	*owner = is_shared ? &request->owner : NULL;
	return true;
}

/* Does the claim allow the outcome that was judged under it, and is nobody before us? */
static bool
is_claim_enough(AlAttempt *attempt, AlClaimMode mode, const AlOwner *owner)
{
	AlClaimMode needed;
	const AlOwner *needed_owner;

	if (!needs_claim(attempt, &needed, &needed_owner) || needed_owner != owner ||
		(mode != needed && (mode != AL_CLAIM_SHARE || needed != AL_CLAIM_SHARE_EXTEND)))
		return false;
	return attempt->result->outcome != AL_ACQUIRED || attempt->own ||
		attempt->is_ours || !is_behind(attempt, NULL);
}

/* Has another transaction pinned an expired exclusive lease, so that we must not share? */
static bool
is_pinned(const AlAttempt *attempt, AlClaimMode mode)
{
	return attempt->result->outcome == AL_ACQUIRED && mode == AL_CLAIM_SHARE &&
		is_unreleased(&attempt->state.rows.exclusive) && !al_claim_may_share(&attempt->claim);
}

/* Another transaction's claim is in the way: describe it in the result */
static void
explain_claim(AlAttempt *attempt)
{
	AlResult   *result = attempt->result;
	ListCell   *cell;

	result->outcome = AL_CLAIMED;
	result->others = -1;
	memset(&result->holding, 0, sizeof(AlHolding));
	foreach(cell, al_tx_by_others(attempt->key))
	{
		const AlHolding *holding = lfirst(cell);

		if (attempt->is_shared && al_is_shared(holding) && holding->owner &&
			!al_is_owned_by(holding, &attempt->request->owner))
		{
			/* A sharer whose claim is in the way has converted to shared. */
			if (result->outcome == AL_CLAIMED)
				result->holding.lifetime = AL_TRANSACTION;
			continue;
		}
		if (holding->holder == NULL)
		{
			/* The transaction holds the key, but its holder is not known. */
			if (result->outcome == AL_CLAIMED)
				result->holding = *holding;
			continue;
		}
		result->outcome = AL_HELD;
		result->holding = *holding;
		result->others++;
	}
	if (result->outcome == AL_CLAIMED)
		result->blocker = al_claim_blocker(&attempt->claim);
}

/* The process id of a backend that extends the owner's lease, or 0 */
static int
extending_backend(const AlKey *key, const AlOwner *owner, bool is_shared)
{
	List	   *pids;
	int			pid;

	if (is_shared)
	{
		(void) al_claim_has_holding(key, owner, &pid);
		return pid;
	}
	pids = al_claim_blockers(key->hash, true);
	return pids == NIL ? 0 : linitial_int(pids);
}

/*
 * Look thoroughly for the holding to convert, which the first look did not find.  One in an
 * unfinished transaction of another session is an obstacle.
 */
static void
judge_at_once(Relation rel, AlAttempt *attempt)
{
	AlResult   *result = attempt->result;
	AlOwnClaim	ask = {.rel = rel, .key = attempt->key, .owner = &attempt->request->owner, .result = result};
	const AlHolding *elsewhere = al_where_is_it(&ask, al_claim_has_others(attempt->key->hash));

	if (elsewhere == NULL)
	{
		attempt->state = ask.state;
		result->outcome = judge(attempt);
		return;
	}
	/* The label of a holding that shared memory does not show is not known. */
	result->outcome = elsewhere->lifetime == AL_TRANSACTION && elsewhere->holder ? AL_HELD : AL_CLAIMED;
	result->others = elsewhere->lifetime == AL_TRANSACTION ? 0 : -1;
	result->blocker = elsewhere->pid;
	/* The row of an expired lease that is being extended does not name the extending backend. */
	if (elsewhere == &result->holding)
		result->blocker = extending_backend(attempt->key, &attempt->request->owner,
											al_is_shared(elsewhere));
	else
		result->holding = *elsewhere;
}

static bool
needs_seat(const AlAttempt *attempt)
{
	return attempt->result->outcome == AL_ACQUIRED && attempt->own == NULL &&
		attempt->terms.max_holders > 0;
}

/*
 * Is a seat free?  If not, the result has the holding whose end frees one, or an unfinished
 * transaction.  Without a claim on the seats, only a refusal is certain.
 */
static bool
has_seat(Relation rel, AlAttempt *attempt)
{
	int			limit = attempt->terms.max_holders;
	AlResult   *result = attempt->result;
	int			in_transactions = list_length(attempt->state.mine) +
		al_claim_count_transactions(attempt->key->hash);
	AlSeats		seats;

	al_sharers_count(rel, attempt->key, Max(limit - in_transactions, 0),
					 attempt->has_seats, &seats);
	seats.held += in_transactions;
	result->holders = seats.held + 1;
	attempt->seats_used = result->holders + seats.pending;
	if (attempt->seats_used <= limit)
		return true;

	result->is_full = true;
	attempt->soonest = seats.soonest;
	result->others = seats.held - 1;
	result->outcome = seats.held >= limit ? AL_HELD : AL_CLAIMED;
	result->holding = seats.first;
	if (result->outcome == AL_CLAIMED)
	{
		result->holding = seats.one_pending;
		result->blocker = result->holding.pid;
	}
	else if (in_transactions >= limit)
	{
		List	   *transactions = list_concat(list_copy(attempt->state.mine),
											   al_tx_by_others(attempt->key));

		/* They may have ended since they were counted, and some have no known holder. */
		if (transactions != NIL)
			result->holding = *(AlHolding *) linitial(transactions);
		if (result->holding.holder == NULL)
			result->outcome = AL_CLAIMED;
		result->blocker = result->holding.pid;
	}
	return false;
}

/* Claim the seats, and take one; al_attempt_end_seats() gives back the claim */
static bool
take_seat(Relation rel, AlAttempt *attempt)
{
	al_claim_seats(attempt->key);
	attempt->has_seats = true;
	return has_seat(rel, attempt);
}

void
al_attempt_end_seats(AlAttempt *attempt)
{
	if (attempt->has_seats)
		al_claim_seats_end(attempt->key);
	attempt->has_seats = false;
}

void
al_attempt_drop(AlAttempt *attempt)
{
	al_attempt_end_seats(attempt);
	if (attempt->is_claimed)
		al_claim_drop(&attempt->claim);
	attempt->is_claimed = false;
}

/* Drop an attempt that could have been granted.  A sweep may have found the key claimed. */
void
al_attempt_give_up(AlAttempt *attempt)
{
	if (attempt->is_claimed && al_tickets_is_pending(attempt->key))
		al_line_missed();
	al_attempt_drop(attempt);
}

/* Turn a grant into a refusal that names nobody */
static void
refuse_as_claimed(AlAttempt *attempt)
{
	AlResult   *result = attempt->result;

	memset(&result->holding, 0, sizeof(AlHolding));
	result->outcome = AL_CLAIMED;
	result->others = -1;
	result->is_full = false;
	result->blocker = 0;
}

/* Is the claim in the way one of a sweep, or gone or about to go, so that we may retry? */
static bool
may_retry(AlAttempt *attempt, int *retries)
{
	int			blocker = attempt->result->blocker;

	if (attempt->result->outcome != AL_CLAIMED || *retries >= MOST_RETRIES)
		return false;
	AL_TEST_POINT("claim-explained");
	if (blocker != 0 && !al_waiters_is_sweeping(blocker))
	{
		/* A sweep may have ended since its claim was seen. */
		explain_claim(attempt);
		if (attempt->result->blocker == blocker && !al_waiters_is_sweeping(blocker))
			return false;
	}
	al_trace(DEBUG3, "lock \"%s\": trying again past a claim of process %d, %d retries before",
			 al_display(attempt->key->name), blocker, *retries);
	if (blocker == 0 && !al_claim_is_ending(&attempt->claim))
		*retries = MOST_RETRIES;	/* a prepared transaction's, or one that is new */
	/* Before the first retry the claim has usually gone, so do not pause. */
	if ((*retries)++ > 0)
		pg_usleep(RETRY_PAUSE);
	return true;
}

/* Look without a claim.  True: try the claim of *mode and *owner; false: the outcome is final */
static bool
is_worth_claiming(Relation rel, AlAttempt *attempt, bool all, AlClaimMode *mode,
				  const AlOwner **owner)
{
	AlResult   *result = attempt->result;

	AL_TEST_POINT("before-look");
	look(rel, attempt, all);
	result->outcome = judge(attempt);
	if (attempt->request->is_convert && attempt->own == NULL)
		judge_at_once(rel, attempt);
	if (needs_seat(attempt) && !has_seat(rel, attempt))
	{
		al_trace(DEBUG3, "lock \"%s\": %d of %d seats are taken", al_display(attempt->key->name),
				 attempt->seats_used - 1, attempt->terms.max_holders);
		return false;
	}
	if (result->outcome == AL_ACQUIRED && is_queued(attempt, &result->first))
		result->outcome = AL_QUEUED;
	return al_is_granted(result) && needs_claim(attempt, mode, owner);
}

/* Look again, under the claim.  False: the claim is dropped, and a grant needs another one. */
static bool
verify(Relation rel, AlAttempt *attempt, AlClaimMode mode, const AlOwner *owner)
{
	AlResult   *result = attempt->result;

	Assert(!attempt->has_seats && attempt->claim.hash == attempt->key->hash);
	attempt->is_claimed = true;
	AL_TEST_POINT("claimed");
	look_again(rel, attempt);
	result->outcome = judge(attempt);
	if (al_is_granted(result) && is_claim_enough(attempt, mode, owner))
	{
		if (is_pinned(attempt, mode))
			explain_claim(attempt);
		else if (!needs_seat(attempt) || take_seat(rel, attempt))
			return true;
	}
	al_trace(DEBUG3, "lock \"%s\": dropping the claim of mode %d after outcome %d",
			 al_display(attempt->key->name), (int) mode, (int) result->outcome);
	al_attempt_drop(attempt);
	return false;
}

/*
 * Try to get a key.  A granted attempt keeps its claim until the caller has written the grant;
 * others keep none.  Outcomes: AL_ACQUIRED, AL_REACQUIRED; AL_HELD, AL_HELD_BY_OWNER, AL_CLAIMED,
 * AL_CLOSED, AL_QUEUED, AL_LIFETIME_EXCEEDED; of convert also those of al_judge_owner().  Raises
 * the errors of al_terms_of().
 */
void
al_attempt(Relation rel, AlAttempt *attempt)
{
	AlResult   *result = attempt->result;
	int			retries = 0;
	int			claims = 0;

	attempt->is_claimed = false;
	attempt->has_seats = false;
	attempt->seats_used = 0;
	result->holders = 0;
	al_terms_of(attempt->key, attempt->request, &attempt->terms);
	result->max_holders = attempt->terms.max_holders;
	result->is_in_use = false;
	result->kept_until = 0;
	for (bool all = false;; all = true)
	{
		const AlOwner *owner = NULL;
		AlClaimMode mode = 0;

		CHECK_FOR_INTERRUPTS();
		if (!is_worth_claiming(rel, attempt, all, &mode, &owner))
		{
			if (!al_is_granted(result))
				al_trace(DEBUG3, "lock \"%s\": refused without a claim, outcome %d",
						 al_display(attempt->key->name), (int) result->outcome);
			return;
		}
		AL_TEST_POINT("before-claim");
		if (al_claim_try(&attempt->claim, attempt->key, owner, mode))
		{
			if (verify(rel, attempt, mode, owner) || !al_is_granted(result))
				return;
			/* Rows that were written by hand may say something else under each claim. */
			if (++claims == MOST_CLAIMS)
			{
				refuse_as_claimed(attempt);
				return;
			}
		}
		/* Else look at the rows that the first look left out: they may need another claim. */
		else if (all)
		{
			explain_claim(attempt);
			if (!may_retry(attempt, &retries))
				return;
		}
	}
}

/*
 * Judge an attempt again that was granted, or lost by al_grant(), after a wait with the claim
 * kept and the table closed: rows may have moved, this transaction may have been granted the key,
 * and the owner's holding may have expired.  If a new grant needs another claim, the key is
 * attempted anew.  Outcomes: those of al_attempt().
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
	else if (attempt->is_claimed &&
			 (attempt->claim.mode == AL_CLAIM_TAKE || attempt->claim.mode == AL_CLAIM_SHARE))
		attempt->result->outcome = AL_ACQUIRED;
	else
	{
		al_trace(DEBUG3, "lock \"%s\": attempted anew after the wait for other keys",
				 al_display(attempt->key->name));
		al_attempt_drop(attempt);
		al_attempt(rel, attempt);
	}
}

/* Turn a grant into a refusal: the owner's holding has expired, and its row may be taken */
void
al_attempt_lost(AlAttempt *attempt)
{
	al_trace(DEBUG1, "lock \"%s\": the grant expired before it was written",
			 al_display(attempt->key->name));
	refuse_as_claimed(attempt);
}

/*
 * Set result->at to the moment of the grant.  False, and the attempt is refused: the owner's
 * holding, or the life that the grant continues, has ended since.
 */
bool
al_attempt_is_in_time(AlAttempt *attempt)
{
	attempt->result->at = GetCurrentTimestamp();
	if ((attempt->own == NULL || al_is_live(attempt->own, attempt->result->at)) &&
		(attempt->request->is_convert || !is_past_life(attempt)))
		return true;
	al_attempt_lost(attempt);
	return false;
}

/*
 * If an unfinished transaction's claim is in the way and it has written a row, put that into
 * result->holding, whose holder then is the new one.
 */
void
al_attempt_explain_pending(Relation rel, AlAttempt *attempt)
{
	const AlAcquire *request = attempt->request;
	AlResult   *result = attempt->result;
	const AlHolding *pending;

	if (al_refusal(result) != AL_CLAIMED || result->holding.lifetime == AL_TRANSACTION ||
		result->is_full)
		return;
	pending = al_pending_find(rel, attempt->key, NULL);
	if (pending == NULL || (attempt->is_shared && al_is_shared(pending) &&
							!al_is_owned_by(pending, &request->owner)))
		return;
	result->holding = *pending;
	result->blocker = pending->pid;
}

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
			break;				/* a convert by an owner that does not hold the key */
	}
}
