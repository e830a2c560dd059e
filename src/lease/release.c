/*-------------------------------------------------------------------------
 *
 * release.c
 *		Ending holdings: release by the owner, and end by an administrator.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: an owner releases its own holding (al_lease_release).  An administrator ends all
 * holdings of a key (al_lease_end), or the one that a grant made, which its fencing token
 * names (al_lease_end_grant).
 *
 * Locking rules: those of lease/state.c.  An administrator's call retries for half a second
 * to get a claim, and is then refused with the process id of the claimant.  A share whose row is
 * locked by hand is refused at once.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/errors.h"
#include "base/owner.h"
#include "base/str.h"
#include "base/testpoint.h"
#include "claim/claim.h"
#include "claim/claimed.h"
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

/* Forced ends: maximum number of tries to claim, and the microseconds between them */
#define MOST_TRIES		500
#define TRY_PAUSE		1000L

/* Write the end of a holding into its row; "forget": remove its owner from the row too */
void
al_end_row(Relation rel, const AlKey *key, AlHolding *holding, TimestampTz now, bool forget)
{
	Assert(al_claimed_has(key->hash) && ItemPointerIsValid(&holding->tid));
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
 * An owner is granted a key: remove the owner from rows that it has released before, or they
 * would make a lost lease look released once its own row is taken.  They still keep the key
 * closed.  "spare_exclusive", "spare_share": skip the exclusive row, or the first share that is
 * not closed, because the grant will be written over it.
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

/* A row is taken or ended: if it was not released, publish and count that its lease expired */
void
al_note_expired(const AlKey *key, const AlHolding *row)
{
	if (!ItemPointerIsValid(&row->tid) || row->released_at != 0)
		return;
	al_stat_count(AL_COUNT_EXPIRATIONS, 1);
	al_publish_end(key, row, al_ended_at(row), AL_ENDED_EXPIRED, NULL);
}

/* End the holdings without a row that this transaction has for an owner, except "but" */
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

/* Release an owner's holding; "seen" and outcomes as in al_claim_own().  Raises 42501. */
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
	if (!al_overwrite_row(rel, key, own))
	{
		al_trace(DEBUG1, "lock \"%s\": the share expired, or its row was locked, before its release was written",
				 al_display(key->name));
		al_claim_drop(&ask.claim);
		own->released_at = 0;
		al_tell_unwritten(own, result);
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
 * Claim as al_claim() does; false if a transaction keeps its claim on the key.  Most claims, of
 * heartbeats, sweeps and refused calls, are about to go.  If all first claimants have gone and
 * others have come, wait for those, or a busy key could never be claimed.
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

/* claim_soon(); false: the outcome is AL_IN_TRANSACTION, with the blocker's process id */
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
	al_trace(DEBUG3, "lock \"%s\": process %d keeps its claim", al_display(key->name),
			 result->blocker);
	return false;
}

/* The key is not held: set the result to its offer, or to the time until which it is closed */
static void
tell_kept(Relation rel, const AlKey *key, AlResult *result)
{
	TimestampTz closed_until = al_key_closed_until(rel, key);
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
 * End all holdings of a key, or open a closed key, and return copies as they were before:
 * AlHolding *.  The rows forget their owners, who then find no lock instead of a released one.
 * Outcomes, with the key claimed: AL_RELEASED, AL_NOT_FOUND; without a claim: AL_IN_TRANSACTION,
 * if another transaction holds the key, or has a claim that claim_soon() did not get past.
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
		/* Keep the moment of the end, which lock_held_at() reads where there is no history. */
		al_end_row(rel, key, row, row->released_at != 0 ? row->released_at : Min(al_ended_at(row), now), true);
		was_closed = true;
	}
	if (was_closed && al_tickets_any())
		al_line_check_offer(key);
	result->outcome = ended != NIL || was_closed ? AL_RELEASED : AL_NOT_FOUND;
	result->is_in_use = false;
	if (result->outcome == AL_NOT_FOUND)
		tell_kept(rel, key, result);
	return ended;
}

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

/* Is this a holding with the lifetime of another transaction? */
static bool
is_of_other(const AlHolding *holding)
{
	return holding->lifetime == AL_TRANSACTION && holding->tx_index < 0;
}

/*
 * The holding with a fencing token, if it can be ended.  NULL: AL_IN_TRANSACTION, if an
 * unfinished transaction has or may have it; otherwise AL_CHANGED, with the present holding.
 * Transactions come before rows: if one ends in between, its outcome is in the rows.
 */
static AlHolding *
find_grant(Relation rel, const AlKey *key, int64 token, AlResult *result)
{
	bool		others_claimed = al_claim_has_others(key->hash);
	List	   *pending = others_claimed ? al_pending_holdings(rel, key) : NIL;
	int			more;
	List	   *holdings = al_holdings_of_key(rel, key, NULL, AL_LOOK_ALL, &more, &result->at);
	AlHolding  *holding = of_grant(holdings, token);
	const AlHolding *longest = al_longest(holdings);
	const AlHolding *unfinished = holding ? holding : of_grant(pending, token);
	ListCell   *cell;

	if (holding && !is_of_other(holding))
		return holding;
	/* The tokens of some transactions are not known. */
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

/* Say why a holding that find_grant() has returned could not be claimed or written. */
static void
tell_lost(Relation rel, const AlKey *key, int64 token, AlResult *result)
{
	if (find_grant(rel, key, token, result) == NULL)
		return;
	result->outcome = AL_IN_TRANSACTION;
	result->blocker = AL_ROW_LOCKED;
}

/*
 * Claim the holding with a fencing token, as its owner does, and return a copy.  NULL: nothing is
 * claimed, and the outcome is that of find_grant(), or AL_IN_TRANSACTION.
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
	/* A row written by hand may not be found as its owner's. */
	al_look(rel, key, &owner, AL_LOOK_ALL, &state);
	holding = of_grant(al_live_holdings(&state, GetCurrentTimestamp()), token);
	if (holding == NULL)
	{
		al_claim_drop(claim);
		tell_lost(rel, key, token, result);
		return NULL;
	}
	copy = palloc(sizeof(AlHolding));
	*copy = *holding;
	return copy;
}

/*
 * End a holding that al_lease_claim_grant() has claimed; returns a copy as it was before.  Its
 * row no longer keeps the key closed.  NULL, with the claim kept: it has expired (AL_CHANGED), or
 * its row is locked (AL_IN_TRANSACTION).
 */
AlHolding *
al_lease_end_claimed(Relation rel, const AlKey *key, AlHolding *holding, AlEndedBy ended_by,
					 const text *reason, AlResult *result)
{
	AlHolding  *ended = palloc(sizeof(AlHolding));
	TimestampTz now = GetCurrentTimestamp();

	Assert(al_claimed_has(key->hash));
	*ended = *holding;
	if (holding->lifetime == AL_TRANSACTION)
		al_tx_end(holding, true);
	else
	{
		holding->released_at = now;
		holding->meta = NULL;
		holding->owner = NULL;
		/* A new sharer may be taking the row of a share that has expired. */
		if (!al_is_live(ended, now) || !al_overwrite_row(rel, key, holding))
		{
			al_trace(DEBUG1, "lock \"%s\": the lease expired, or its row was locked, before its forced end was written",
					 al_display(key->name));
			tell_lost(rel, key, ended->fencing_token, result);
			return NULL;
		}
	}
	al_publish_end(key, ended, now, ended_by, reason);
	result->outcome = AL_RELEASED;
	return ended;
}

/*
 * End the one holding with a fencing token by force; a list with a copy of it, or NIL.  Outcomes:
 * AL_RELEASED, AL_CHANGED, AL_IN_TRANSACTION.
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
