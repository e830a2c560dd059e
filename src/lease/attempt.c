/*-------------------------------------------------------------------------
 *
 * attempt.c
 *		One attempt to get a key: may it be granted, and under which claim?
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: look, claim, look again, as in lease/state.c.  The first look only has to
 * find the usual refusals and which claim is needed.  The look under the claim
 * decides, and under the claim the grant is written (lease/grant.c).
 *
 * An owner that has the key converts it, or acquires it in a stronger mode, without
 * waiting in the queue: while it holds the key, no waiter can have the key
 * exclusively.
 *
 * Where no more than a number of owners may share the key, they are counted last, while
 * nobody else can be let in by a limit.  Those who are let in without one are not kept
 * out, and count from the moment at which they are seen.
 *
 * Locking rules: claims are tried, without waiting, except for those of a sweep, or of a
 * transaction that has ended, which are usually gone within milliseconds: an attempt tries
 * for half a second to get past one.  A refused attempt drops its claim.  The seats of a key are
 * claimed last, and waited for: nobody who has them waits for anything else.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/compat.h"
#include "base/settings.h"
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

/* How often an attempt that meets such a claim tries again, and microseconds in between */
#define MOST_RETRIES	500
#define RETRY_PAUSE		1000L

static bool
is_unreleased(const AlHolding *row)
{
	return ItemPointerIsValid(&row->tid) && row->released_at == 0;
}

/* A row that keeps the key closed, or NULL; shared ones keep nobody from sharing it */
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

		/* Only min_hold lets what is left of a former share delay the owner itself. */
		if (al_is_closed(row, now) &&
			(attempt->own == NULL || !al_is_owned_by(row, &attempt->request->owner) ||
			 now < al_min_held_until(row)) &&
			(last == NULL || al_closed_until(row) > al_closed_until(last)))
			last = row;
	}
	return last;
}

/* Does the mode of a holding allow all that is asked for? */
static bool
is_enough(const AlHolding *holding, bool is_shared)
{
	return is_shared || !al_is_shared(holding);
}

/* Take a live holding into account; result->holding is the longest one in the way */
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
 * The oldest holding among those that this transaction has, and those that are over
 * but whose key the transaction has kept from others since; or NULL.  Its life goes
 * on in a new grant, for whichever owner: nobody may hold a lock for longer than
 * max_lifetime by releasing it and acquiring it again.
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
			 (!al_is_live(holding, attempt->result->at) && al_is_kept(attempt->key, holding))) &&
			(first == NULL || holding->acquired_at < first->acquired_at))
			first = holding;
	}
	return first;
}

/*
 * Would the grant end at once, since nothing is left of its life?  Not if it renews
 * what the owner has and keeps the end of that, as renew() in lease/grant.c does.
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

/*
 * Find what the owner has and what is in its way among the holdings seen, and the mode and
 * lifetime that the owner is to have.
 */
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
	/* The one among them that lasts longest is in the list. */
	if (result->others >= 0 && !request->is_shared)
		result->others += attempt->state.rows.more;
	if (request->keeps_own && attempt->own)
	{
		attempt->is_shared = al_is_shared(attempt->own);
		attempt->lifetime = attempt->own->lifetime;
	}
}

/* The outcome for an owner that has the key; AL_ACQUIRED: the owner needs a new grant */
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
	/* A shared lease cannot become exclusive just until the transaction ends. */
	if (attempt->lifetime == AL_TRANSACTION && own->lifetime != AL_TRANSACTION)
		return refuse(attempt->result, own, AL_HELD_BY_OWNER);
	return AL_ACQUIRED;
}

/* What the request leads to, by the holdings seen and the clock */
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
 * Would taking the key overtake anybody, in a call or with a ticket?  While the key is
 * offered to a ticket, nobody else gets it.  "first" is as for al_waiters_precede().
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
			/* The key is free, and nobody has told those who may have it. */
			if (!line.is_offered)
				al_line_missed();
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
 * Does somebody come first?  Not if the owner has the key, or if this transaction has
 * taken it, or released it: what is not committed was never offered to others.  Who only
 * shares the key lets nobody else in.
 */
static bool
is_queued(AlAttempt *attempt, char **first)
{
	attempt->is_ours = al_claimed_count() > 0 && al_claimed_has(attempt->key->hash) &&
		(al_claim_is_mine_alone(attempt->key->hash) || al_claimed_has_freed(attempt->key->hash));
	return attempt->own == NULL && !attempt->is_ours && is_behind(attempt, first);
}

/*
 * Which rows of shared holdings does the request depend on?  Those of others do not keep
 * anybody from sharing the key; a limit counts them apart.
 */
static AlLook
rows_to_see(const AlAttempt *attempt)
{
	/* find_predecessor() wants to see what this transaction has kept. */
	if (attempt->terms.max_lifetime > 0 && al_claimed_has(attempt->key->hash))
		return AL_LOOK_ALL;
	return attempt->request->is_shared ? AL_LOOK_OWN : AL_LOOK_SOME;
}

/*
 * Look at the holdings of the key without a claim.  Unless "all" is wanted, the rows
 * of shared holdings are left out where there is a live exclusive lease.  To share
 * the key without a limit, they matter before the claim only if the owner may have one
 * of them: then it need not wait in the queue, or until a closed key is open, and for
 * the lifetime of a transaction it needs another claim.
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
 * Look at the rows of the key under the claim.  Where there was no row, or no row of
 * a shared holding, there is none now if the index was given no entry since.
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

/* Which claim does the grant need?  *owner is as for al_claim().  False: none. */
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

/* Does the claim do for what was judged under it, and does nobody come before us? */
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

/* Does a pin of an expired exclusive lease keep us from sharing the key? */
static bool
is_pinned(const AlAttempt *attempt, AlClaimMode mode)
{
	return attempt->result->outcome == AL_ACQUIRED && mode == AL_CLAIM_SHARE &&
		is_unreleased(&attempt->state.rows.exclusive) && !al_claim_may_share(&attempt->claim);
}

/* Another transaction's claim is in the way: say whose */
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
			/* If its claim is in the way, it has converted to shared. */
			if (result->outcome == AL_CLAIMED)
				result->holding.lifetime = AL_TRANSACTION;
			continue;
		}
		if (holding->holder == NULL)
		{
			/* It is held by its lifetime, but by whom is not known. */
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

/*
 * An owner that does not hold a key cannot convert it: make sure of that.  What it holds
 * by a transaction of another session, or has acquired in one that is unfinished, is in the
 * way until that ends.
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
	/* A holding that is not shown in shared memory has no label to tell. */
	result->outcome = elsewhere->lifetime == AL_TRANSACTION && elsewhere->holder ? AL_HELD : AL_CLAIMED;
	result->others = elsewhere->lifetime == AL_TRANSACTION ? 0 : -1;
	result->blocker = elsewhere->pid;
	result->holding = *elsewhere;
}

/* Does the grant take one of a limited number of seats? */
static bool
needs_seat(const AlAttempt *attempt)
{
	return attempt->result->outcome == AL_ACQUIRED && attempt->own == NULL &&
		attempt->terms.max_holders > 0;
}

/*
 * Is there a seat for one more among those who share the key?  If not, the result says
 * who is in the way: the holding with whose end there is a seat, or an unfinished
 * transaction.  Unless the seats are claimed, only a refusal is certain.
 */
static bool
has_seat(Relation rel, AlAttempt *attempt)
{
	int			limit = attempt->terms.max_holders;
	AlResult   *result = attempt->result;
	int			in_transactions = list_length(attempt->state.mine) +
		al_claim_count_transactions(attempt->key->hash);
	AlSeats	seats;

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

		/* They may have ended since they were counted, and not all say whose they are. */
		if (transactions != NIL)
			result->holding = *(AlHolding *) linitial(transactions);
		if (result->holding.holder == NULL)
			result->outcome = AL_CLAIMED;
		result->blocker = result->holding.pid;
	}
	return false;
}

/*
 * Take one of a limited number of seats, if there is one.  Nobody else is let in by a
 * limit until it is written.
 */
static bool
take_seat(Relation rel, AlAttempt *attempt)
{
	al_claim_seats(attempt->key);
	attempt->has_seats = true;
	return has_seat(rel, attempt);
}

/* The seat of an attempt is written, or given up. */
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

/* May an attempt try again, because a sweep claimed the key, or the claim has gone? */
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
	else if (blocker == 0 && !al_claim_is_ending(&attempt->claim))
		*retries = MOST_RETRIES;	/* a prepared transaction's, or one that is new */
	/* What was in the way has usually gone by now. */
	if ((*retries)++ > 0)
		pg_usleep(RETRY_PAUSE);
	return true;
}

/*
 * Look without a claim.  True: the key may be granted under a claim of this mode, with
 * *owner as for al_claim().  False: the outcome is final.
 */
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
		return false;
	if (result->outcome == AL_ACQUIRED && is_queued(attempt, &result->first))
		result->outcome = AL_QUEUED;
	return al_is_granted(result) && needs_claim(attempt, mode, owner);
}

/*
 * Look again, under the claim.  False: the claim is dropped; and if the outcome is a grant
 * all the same, that needs another claim.
 */
static bool
verify(Relation rel, AlAttempt *attempt, AlClaimMode mode, const AlOwner *owner)
{
	AlResult   *result = attempt->result;

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
	al_attempt_drop(attempt);
	return false;
}

/*
 * Try to get a key, up to the claim under which the grant is written.  Outcomes:
 * AL_ACQUIRED, AL_REACQUIRED; AL_HELD, AL_HELD_BY_OWNER, AL_CLAIMED, AL_CLOSED,
 * AL_QUEUED, AL_LIFETIME_EXCEEDED; of convert also those of al_judge_owner().  Raises
 * what al_terms_of() raises.
 */
void
al_attempt(Relation rel, AlAttempt *attempt)
{
	AlResult   *result = attempt->result;
	int			retries = 0;

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
			return;
		AL_TEST_POINT("before-claim");
		if (al_claim_try(&attempt->claim, attempt->key, owner, mode))
		{
			if (verify(rel, attempt, mode, owner) || !al_is_granted(result))
				return;
		}
		/* What the first look left out may call for another claim. */
		else if (all)
		{
			explain_claim(attempt);
			if (!may_retry(attempt, &retries))
				return;
		}
	}
}

/*
 * Judge a granted attempt again, after its claim was kept for some time with the
 * table closed.  Rows may have moved, this transaction may have been granted the key,
 * and what the owner had may have expired.  A claim to extend that does not do for a
 * new grant, so the key is attempted anew.  Outcomes: those of al_attempt().
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
		al_attempt_drop(attempt);
		al_attempt(rel, attempt);
	}
}

/*
 * What the owner had has expired since a granted attempt was judged, and another
 * transaction may be taking its row: the attempt is refused, unless it is made again.
 */
void
al_attempt_lost(AlAttempt *attempt)
{
	AlResult   *result = attempt->result;

	memset(&result->holding, 0, sizeof(AlHolding));
	result->outcome = AL_CLAIMED;
	result->others = -1;
	result->is_full = false;
	result->blocker = 0;
}

/*
 * Set the moment of a grant, which is later than that of its judgement.  False: what the
 * grant relies on has ended in between, and the attempt is lost.
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
 * The claim of an unfinished transaction is in the way: for whom, as far as that has
 * written it?  Then result->holding has a holder.
 */
void
al_attempt_explain_pending(Relation rel, AlAttempt *attempt)
{
	const AlAcquire *request = attempt->request;
	AlResult   *result = attempt->result;
	const AlHolding *pending;

	if (al_obstacle(result) != AL_CLAIMED || result->holding.lifetime == AL_TRANSACTION ||
		result->is_full)
		return;
	pending = al_pending_find(rel, attempt->key, NULL);
	if (pending == NULL || (attempt->is_shared && al_is_shared(pending) &&
							!al_is_owned_by(pending, &request->owner)))
		return;
	result->holding = *pending;
	result->blocker = pending->pid;
}

/* Count an acquire that was not granted */
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
