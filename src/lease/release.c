/*-------------------------------------------------------------------------
 *
 * release.c
 *		Ending holdings: release by the owner, and end by an administrator.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Locking rules: those of lease/state.c.  An administrator does not wait for a claim,
 * but is told who has it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/owner.h"
#include "base/str.h"
#include "base/testpoint.h"
#include "claim/claim.h"
#include "claim/durability.h"
#include "claim/holding.h"
#include "claim/tx_holdings.h"
#include "lease/line.h"
#include "lease/publish.h"
#include "lease/release.h"
#include "lease/state.h"
#include "lease/terms.h"
#include "shmem/stat.h"
#include "shmem/tickets.h"
#include "table/app_lock.h"
#include "table/pending.h"
#include "table/sharers.h"
#include "table/tickets.h"

/* To end a holding by force, a claim is tried so often, after so many microseconds */
#define MOST_TRIES		500
#define TRY_PAUSE		1000L

/* Write that a holding is over; "forget": as if its owner had never had it */
void
al_end_row(Relation rel, const AlKey *key, AlHolding *holding, TimestampTz now, bool forget)
{
	holding->released_at = now;
	holding->meta = NULL;
	if (forget)
		holding->owner = NULL;
	al_table_put(rel, key, holding);
}

static void
forget_row(Relation rel, const AlKey *key, const AlOwner *owner, AlHolding *row)
{
	if (row->released_at == 0 || !al_is_owned_by(row, owner))
		return;
	row->owner = al_string_text(al_cstring(""));
	(void) al_table_try_put(rel, key, row);
}

/*
 * An owner is granted a key: take its name from the rows that it has released before.
 * Otherwise one of them would be its newest row once the row of the grant is swept or
 * taken, and a lost lease would look released.  The rows still keep the key closed.  The
 * grant may be about to be written over the exclusive row, or over a share: that is spared.
 */
void
al_forget_released(Relation rel, const AlKey *key, const AlOwner *owner, AlRows *rows,
				   bool spare_exclusive, bool spare_share)
{
	ListCell   *cell;

	if (!spare_exclusive)
		forget_row(rel, key, owner, &rows->exclusive);
	foreach(cell, rows->shared)
	{
		AlHolding  *row = lfirst(cell);

		if (spare_share && row->released_at != 0 && al_is_owned_by(row, owner) &&
			!al_is_closed(row, GetCurrentTimestamp()))
			spare_share = false;
		else
			forget_row(rel, key, owner, row);
	}
}

/* A row is taken or ended: if it was not released, note that its lease expired */
void
al_note_expired(const AlKey *key, const AlHolding *row)
{
	if (!ItemPointerIsValid(&row->tid) || row->released_at != 0)
		return;
	al_stat_count(AL_COUNT_EXPIRATIONS, 1);
	al_publish_end(key, row, al_ended_at(row), AL_ENDED_EXPIRED, NULL);
}

/* End what an owner holds by this transaction, except for the holding "but" */
void
al_end_mine(const AlKey *key, const AlState *state, const AlOwner *owner,
			const AlHolding *but, AlEndedBy ended_by)
{
	ListCell   *cell;

	foreach(cell, state->mine)
	{
		if (lfirst(cell) == but || !al_is_owned_by(lfirst(cell), owner))
			continue;
		al_tx_end(lfirst(cell), false);
		al_publish_end(key, lfirst(cell), GetCurrentTimestamp(), ended_by, NULL);
		al_stat_count(AL_COUNT_RELEASES, 1);
	}
}

/*
 * Release what an owner holds.  "seen" is as in AlOwnClaim.  Outcomes: AL_RELEASED,
 * and the others of al_claim_own().  Raises 42501.
 */
void
al_lease_release(Relation rel, const AlKey *key, const AlOwner *owner,
				 const AlHolding *seen, AlResult *result)
{
	AlOwnClaim	ask = {rel, key, owner, AL_CLAIM_TAKE, .seen = seen, .result = result};
	AlHolding  *own;

	al_terms_admit(key);
	own = al_claim_own(&ask);
	if (own == NULL)
		return;

	al_end_mine(key, &ask.state, owner, NULL, AL_ENDED_RELEASED);
	if (own->lifetime == AL_TRANSACTION)
		return;
	al_durability_before_release();
	own->released_at = result->at;
	own->meta = NULL;
	if (!al_put_over(rel, key, own))
	{
		al_claim_drop(&ask.claim);
		result->outcome = AL_EXPIRED;
		return;
	}
	if (al_is_shared(own))
		al_sharers_note_over(key, &own->tid);
	al_publish_end(key, own, result->at, AL_ENDED_RELEASED, NULL);
	/* Drop a ticket that this owner took concurrently in another session. */
	if (!al_is_shared(own) && !al_tickets_none())
		(void) al_tickets_drop(key, owner);
	result->holding = *own;
	al_durability_released();
	al_stat_count(AL_COUNT_RELEASES, 1);
}

/*
 * Claim as al_claim() does; false where another transaction has claimed the key since we
 * began.  Most are about to go: those of heartbeats, sweeps, and of who was refused.
 * Where others have come instead of them, we wait for those, or a busy key could never
 * be had.
 */
static bool
claim_soon(AlClaim *claim, const AlKey *key, const AlOwner *owner, AlClaimMode mode)
{
	VirtualTransactionId *first = NULL;

	for (int tries = 0; tries < MOST_TRIES; tries++)
	{
		if (al_claim_try(claim, key, owner, mode))
			return true;
		if (first == NULL)
			first = al_claim_others(key->hash);
		CHECK_FOR_INTERRUPTS();
		pg_usleep(TRY_PAUSE);
	}
	for (const VirtualTransactionId *now = al_claim_others(key->hash);
		 VirtualTransactionIdIsValid(*now); now++)
	{
		for (const VirtualTransactionId *then = first; VirtualTransactionIdIsValid(*then); then++)
		{
			if (VirtualTransactionIdEquals(*now, *then))
				return false;
		}
	}
	al_claim(claim, key, owner, mode);
	return true;
}

/*
 * al_claim(), which waits no longer than claim_soon() does.  False: AL_IN_TRANSACTION,
 * and the result says which process is in the way.
 */
bool
al_lease_claim_soon(Relation rel, const AlKey *key, const AlOwner *owner, AlClaimMode mode,
					AlClaim *claim, AlResult *result)
{
	const AlHolding *pending;

	if (claim_soon(claim, key, owner, mode))
		return true;
	pending = mode == AL_CLAIM_TAKE ? al_pending_find(rel, key, NULL) : NULL;
	result->outcome = AL_IN_TRANSACTION;
	result->blocker = pending ? pending->pid : al_claim_blocker(claim);
	return false;
}

/* Nobody holds a key: tell who has the offer, or until when the key is closed */
static void
tell_kept(Relation rel, const AlKey *key, AlResult *result)
{
	TimestampTz closed_until = al_closed_until_all(rel, key);
	AlLine		line;

	result->ticket = 0;
	result->kept_until = closed_until == DT_NOBEGIN ? 0 : closed_until;
	if (al_tickets_none() || !al_tickets_look(key, NULL, &line) || !line.is_offered)
		return;
	result->ticket = line.first.number;
	result->first = text_to_cstring(line.first.holder);
	result->kept_until = line.until;
}

/*
 * End all holdings of a key, whoever has them, and return copies of what they were: a
 * list of AlHolding *.  A key that min_hold or lock_delay keeps closed is open then, and that
 * alone is AL_RELEASED, too.  Former owners are forgotten: they find no lock, not a
 * released one.  Outcomes: AL_RELEASED, AL_NOT_FOUND, and the key stays claimed;
 * without a claim AL_IN_TRANSACTION, where another transaction holds the key to its
 * end, or has claimed it and does not end soon.  Waits for those that come after us.
 */
List *
al_lease_end(Relation rel, const AlKey *key, AlClaim *claim, AlEndedBy ended_by,
			 const text *reason, AlResult *result)
{
	List	   *others = al_tx_by_others(key);
	List	   *ended = NIL;
	AlState		state;
	TimestampTz now;
	bool		was_closed = false;
	ListCell   *cell;

	if (others != NIL)
	{
		result->outcome = AL_IN_TRANSACTION;
		result->blocker = ((AlHolding *) linitial(others))->pid;
		return NIL;
	}

	if (!al_lease_claim_soon(rel, key, NULL, AL_CLAIM_TAKE, claim, result))
		return NIL;
	AL_TEST_POINT("ending");
	al_look(rel, key, NULL, AL_LOOK_ALL, &state);
	now = GetCurrentTimestamp();
	foreach(cell, al_live_holdings(&state, now))
	{
		AlHolding  *holding = lfirst(cell);
		AlHolding  *copy = palloc(sizeof(AlHolding));

		*copy = *holding;
		ended = lappend(ended, copy);
		al_publish_end(key, copy, now, ended_by, reason);
		if (holding->lifetime == AL_TRANSACTION)
			al_tx_end(holding, true);
		else
			al_end_row(rel, key, holding, now, true);
	}
	foreach(cell, lcons(&state.rows.exclusive, state.rows.shared))
	{
		AlHolding  *row = lfirst(cell);

		if (!al_is_closed(row, now))
			continue;
		al_note_expired(key, row);
		/* It ended when it did, as lock_held_at() tells where no history was asked for. */
		al_end_row(rel, key, row, row->released_at != 0 ? row->released_at : Min(al_ended_at(row), now), true);
		was_closed = true;
	}
	if (was_closed && al_tickets_any())
		al_line_let_go(key);
	result->outcome = ended != NIL || was_closed ? AL_RELEASED : AL_NOT_FOUND;
	result->is_in_use = false;
	if (result->outcome == AL_NOT_FOUND)
		tell_kept(rel, key, result);
	return ended;
}

/* Which of these holdings did a grant make?  NULL: none */
static AlHolding *
of_grant(List *holdings, int64 token)
{
	ListCell   *cell;

	foreach(cell, holdings)
	{
		AlHolding  *holding = lfirst(cell);

		if (holding->fencing_token == token)
			return holding;
	}
	return NULL;
}

/* Does another transaction hold a key by this holding, to its end? */
static bool
is_of_other(const AlHolding *holding)
{
	return holding->lifetime == AL_TRANSACTION && holding->tx_index < 0;
}

/*
 * The holding that a grant made, as far as it can be ended.  NULL: AL_IN_TRANSACTION, where
 * an unfinished transaction has it, or may have; otherwise AL_CHANGED, and the result says
 * who holds the key.  Unfinished transactions are looked at first: where one ends in
 * between, its outcome is in the rows.
 */
static AlHolding *
find_grant(Relation rel, const AlKey *key, int64 token, AlResult *result)
{
	bool		is_claimed = al_claim_has_others(key->hash);
	List	   *pending = is_claimed ? al_pending_holdings(rel, key) : NIL;
	int			more;
	List	   *holdings = al_holdings_of_key(rel, key, NULL, AL_LOOK_ALL, &more, &result->at);
	AlHolding  *holding = of_grant(holdings, token);
	const AlHolding *longest = al_longest(holdings);
	const AlHolding *unfinished = holding ? holding : of_grant(pending, token);
	ListCell   *cell;

	if (holding && !is_of_other(holding))
		return holding;
	/* Not all of these tell their tokens. */
	foreach(cell, holdings)
	{
		const AlHolding *other = lfirst(cell);

		if (unfinished == NULL && is_of_other(other) && other->holder == NULL)
			unfinished = other;
	}
	if (unfinished)
	{
		result->outcome = AL_IN_TRANSACTION;
		result->blocker = unfinished->pid;
		return NULL;
	}

	result->outcome = AL_CHANGED;
	result->is_in_use = pending != NIL;
	result->others = list_length(holdings) - 1;
	memset(&result->holding, 0, sizeof(AlHolding));
	if (longest)
		result->holding = *longest;
	else
		tell_kept(rel, key, result);
	return NULL;
}

/*
 * Claim the holding that a grant made, of any owner, so that it can be ended; and return a
 * copy.  NULL: nothing is claimed, and the outcome is AL_CHANGED or AL_IN_TRANSACTION, as
 * find_grant() tells.  A shared holding is claimed as its owner does, so that others who
 * share the key are in nobody's way.
 */
AlHolding *
al_lease_claim_grant(Relation rel, const AlKey *key, int64 token, AlClaim *claim,
					 AlResult *result)
{
	const AlHolding *seen = find_grant(rel, key, token, result);
	bool		is_shared = seen && al_is_shared(seen);
	AlOwner		owner;
	AlState		state;
	AlHolding  *holding;
	AlHolding  *copy;

	if (seen == NULL)
		return NULL;
	al_owner_init(&owner, al_string(seen->owner));
	if (!al_lease_claim_soon(rel, key, is_shared ? &owner : NULL,
							 is_shared ? AL_CLAIM_SHARE : AL_CLAIM_TAKE, claim, result))
		return NULL;
	al_look(rel, key, &owner, AL_LOOK_OWN, &state);
	holding = of_grant(al_live_holdings(&state, GetCurrentTimestamp()), token);
	if (holding == NULL)
	{
		al_claim_drop(claim);
		(void) find_grant(rel, key, token, result);
		return NULL;
	}
	copy = palloc(sizeof(AlHolding));
	*copy = *holding;
	return copy;
}

/*
 * End a holding that al_lease_claim_grant() has claimed, and return what it was.  Its row
 * keeps the key closed no longer; what other rows do is left as it is.  NULL: it has run out
 * meanwhile, and so AL_CHANGED; the claim stays.
 */
AlHolding *
al_lease_end_claimed(Relation rel, const AlKey *key, AlHolding *holding, AlEndedBy ended_by,
					 const text *reason, AlResult *result)
{
	AlHolding  *ended = palloc(sizeof(AlHolding));
	TimestampTz now = GetCurrentTimestamp();

	*ended = *holding;
	if (holding->lifetime == AL_TRANSACTION)
		al_tx_end(holding, true);
	else
	{
		holding->released_at = now;
		holding->meta = NULL;
		holding->owner = NULL;
		/* A new sharer may be taking the row of a share that has expired. */
		if (!al_is_live(ended, now) || !al_put_over(rel, key, holding))
		{
			(void) find_grant(rel, key, ended->fencing_token, result);
			return NULL;
		}
	}
	al_publish_end(key, ended, now, ended_by, reason);
	result->outcome = AL_RELEASED;
	return ended;
}

/*
 * End the holding that a grant made, and no other, by force; returns a list with a copy of it.
 * Outcomes: AL_RELEASED, AL_CHANGED, AL_IN_TRANSACTION.
 */
List *
al_lease_end_grant(Relation rel, const AlKey *key, int64 token, const text *reason,
				   AlResult *result)
{
	AlClaim		claim;
	AlHolding  *holding = al_lease_claim_grant(rel, key, token, &claim, result);
	AlHolding  *ended;

	if (holding == NULL)
		return NIL;
	ended = al_lease_end_claimed(rel, key, holding, AL_ENDED_FORCED, reason, result);
	if (ended)
		return list_make1(ended);
	al_claim_drop(&claim);
	return NIL;
}
