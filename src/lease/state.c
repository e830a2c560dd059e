/*-------------------------------------------------------------------------
 *
 * state.c
 *		The state of a key, and what an owner may do with its holding.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: each verb looks at the rows of the key without a lock, returns if they show that the
 * call must be refused, claims the key, looks again, and then writes or drops the claim.  Until
 * our transaction ends, no other can change the rows that the second look has seen, except that a
 * pin lets extensions pass; only the clock moves.
 *
 * If an owner has only ended rows, the one with the highest fencing token tells whether the last
 * holding was released or expired, until another grant takes that row.  A forced end removes the
 * owner from the row, so al_check_forced() looks for it in lock_audit; it counts if its token is
 * not lower.
 *
 * Locking rules: claim/claim.c says which claims conflict, and which verbs wait for claims.  To
 * write, the caller has app_lock open with RowExclusiveLock, and has checked that the transaction
 * may write.  AccessShareLock is enough to read or pin.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/errors.h"
#include "base/owner.h"
#include "base/policy.h"
#include "base/str.h"
#include "base/testpoint.h"
#include "claim/claim.h"
#include "claim/claimed.h"
#include "claim/durability.h"
#include "claim/holding.h"
#include "claim/tx_holdings.h"
#include "lease/state.h"
#include "shmem/sole.h"
#include "shmem/waiters.h"
#include "table/app_lock.h"
#include "table/audit.h"
#include "table/pending.h"

bool
al_is_granted(const AlResult *result)
{
	return result->outcome == AL_ACQUIRED || result->outcome == AL_REACQUIRED;
}

/* The outcome; for AL_TIMEOUT, AL_DEADLOCK and AL_FORCED, the refusal that it replaced */
AlOutcome
al_refusal(const AlResult *result)
{
	if (result->outcome == AL_TIMEOUT || result->outcome == AL_DEADLOCK ||
		result->outcome == AL_FORCED)
		return result->obstacle;
	return result->outcome;
}

/*
 * Note, for the commit, that a granted or extended holding is written: it is to be durable, and
 * need not wake waiters due before the end, unless the holding "lets_in" some that it kept out.
 */
void
al_note_written(const AlKey *key, const AlOwner *owner, const AlHolding *holding, bool lets_in)
{
	bool		is_known = !lets_in && holding->lifetime == AL_LEASE;

	al_claimed_granted(key, owner, is_known ? holding->expires_at : 0, al_is_shared(holding));
	al_durability_granted();
}

/*
 * Has this transaction written or pinned this row, so that nobody else has had the key since?
 * False for a row without an owner, which was ended by force.
 */
bool
al_wrote_or_pinned(const AlKey *key, const AlHolding *row)
{
	if (!ItemPointerIsValid(&row->tid) || row->owner == NULL)
		return false;
	if (TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(row->tuple->t_data)))
		return true;
	for (const AlPin *pin = al_claimed_pins(key->hash); pin; pin = pin->next)
	{
		if (pin->fencing_token == row->fencing_token && al_string_equal(pin->key, key->name))
			return true;
	}
	return false;
}

/* The live holdings in a state: a list of AlHolding * that point into it */
List *
al_live_holdings(const AlState *state, TimestampTz now)
{
	List	   *holdings = NIL;
	ListCell   *cell;

	if (al_is_live(&state->rows.exclusive, now))
		holdings = lappend(holdings, unconstify(AlHolding *, &state->rows.exclusive));
	foreach(cell, state->rows.shared)
	{
		if (al_is_live(lfirst(cell), now))
			holdings = lappend(holdings, lfirst(cell));
	}
	return list_concat(holdings, state->mine);
}

static bool
has_row(List *rows, const AlHolding *row)
{
	ListCell   *cell;

	foreach(cell, rows)
	{
		if (ItemPointerEquals(&((AlHolding *) lfirst(cell))->tid, (ItemPointer) &row->tid))
			return true;
	}
	return false;
}

/* Look at rows from first_slot on, and at those of an owner (NULL: none).  "own" ignores the slot */
static void
look_at_rows(Relation rel, const AlKey *key, const AlOwner *owner, AlLook look,
			 int32 first_slot, Snapshot snapshot, AlRows *rows)
{
	TimestampTz now;
	ListCell   *cell;

	if (look == AL_LOOK_OWN)
	{
		rows->shared = owner ? al_sharers_of_owner(rel, key, owner, snapshot) : NIL;
		return;
	}
	al_sharers_look(rel, key, first_slot, look == AL_LOOK_ALL, snapshot, rows);
	if (rows->is_complete || owner == NULL)
		return;
	now = GetCurrentTimestamp();
	foreach(cell, al_sharers_of_owner(rel, key, owner, snapshot))
	{
		if (has_row(rows->shared, lfirst(cell)))
			continue;
		rows->shared = lappend(rows->shared, lfirst(cell));
		if (rows->more > 0 && al_is_live(lfirst(cell), now))
			rows->more--;
	}
}

/* Find the rows of shared holdings, unless rows.exclusive.sole or shmem/sole.c excludes them */
void
al_find_shared(Relation rel, const AlKey *key, const AlOwner *owner, AlLook look, AlState *state)
{
	state->rows.shared = NIL;
	state->rows.more = 0;
	if (state->rows.exclusive.sole == AL_SOLE_UNKNOWN && al_sole_is_known(key))
		state->rows.exclusive.sole = AL_SOLE_ROW;
	if (state->rows.exclusive.sole == AL_SOLE_UNKNOWN)
		look_at_rows(rel, key, owner, look, AL_SLOT_FIRST_SHARED, NULL, &state->rows);
}

/*
 * Look at the rows of a key under one snapshot, and at the holdings of this transaction.  Without
 * a claim, only this can show that an owner does not hold the key: separate looks at two rows
 * miss a holding that moves from the second row to the first in between.
 */
void
al_look(Relation rel, const AlKey *key, const AlOwner *owner, AlLook look, AlState *state)
{
	uint64		entries = al_sole_entries(key);
	Snapshot	snapshot;

	PreventCommandIfParallelMode("functions of atomic_lock");
	state->rows.shared = NIL;
	state->rows.more = 0;
	state->mine = al_tx_mine(key);
	if (entries != 0 && al_sole_is_known(key))
	{
		al_table_find(rel, key, &state->rows.exclusive);
		/* The key has no other rows unless the index was given an entry meanwhile. */
		if (al_sole_is_unchanged(key, entries))
			return;
	}
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	if (look == AL_LOOK_OWN)
		al_table_find_seen(rel, key, AL_SLOT_EXCLUSIVE, snapshot, &state->rows.exclusive);
	look_at_rows(rel, key, owner, look, AL_SLOT_EXCLUSIVE, snapshot, &state->rows);
	UnregisterSnapshot(snapshot);
}

/* Has a transaction's holding, seen without a row, become one of these rows? */
static bool
has_become_row(const AlHolding *held, List *holdings)
{
	ListCell   *cell;

	foreach(cell, holdings)
	{
		if (((AlHolding *) lfirst(cell))->fencing_token == held->fencing_token)
			return true;
	}
	return false;
}

/*
 * The live holdings of a key as of *now, including those of other transactions: AlHolding *, with
 * all those of "owner", unless NULL.  *more: the number of live ones left out.  A live exclusive
 * lease, which excludes other owners, is looked for first.  Then transactions come before rows:
 * if one ends in between, its outcome is in the rows.
 */
List *
al_holdings_of_key(Relation rel, const AlKey *key, const AlOwner *owner, AlLook look,
				   int *more, TimestampTz *now)
{
	AlState    *state = palloc0(sizeof(AlState));
	List	   *others;
	List	   *holdings;
	ListCell   *cell;

	al_table_find_slot(rel, key, AL_SLOT_EXCLUSIVE, &state->rows.exclusive);
	state->mine = al_tx_mine(key);
	*more = 0;
	*now = GetCurrentTimestamp();
	if (al_is_live(&state->rows.exclusive, *now))
		return al_live_holdings(state, *now);

	AL_TEST_POINT("reader-between");
	others = al_tx_by_others(key);
	al_look(rel, key, owner, look, state);
	*more = state->rows.more;
	*now = GetCurrentTimestamp();
	holdings = al_live_holdings(state, *now);
	foreach(cell, others)
	{
		if (has_become_row(lfirst(cell), holdings))
			others = foreach_delete_current(others, cell);
	}
	return list_concat(holdings, others);
}

/* Until when ended rows keep a key closed; DT_NOBEGIN: the key is not closed */
TimestampTz
al_key_closed_until(Relation rel, const AlKey *key)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz until = DT_NOBEGIN;
	AlState		state;
	ListCell   *cell;

	if (al_policy_settings[AL_LOCK_DELAY] <= 0 && !al_policy_any())
		return until;
	al_look(rel, key, NULL, AL_LOOK_SOME, &state);
	foreach(cell, lcons(&state.rows.exclusive, state.rows.shared))
	{
		const AlHolding *row = lfirst(cell);

		if (al_is_closed(row, now))
			until = Max(until, al_closed_until(row));
	}
	return until;
}

/*
 * The holdings with rows, of other owners, that keep a waiter from the key: AlHolding *.  Not
 * shared ones, if the waiter and each one before it want to share without a limit.
 */
List *
al_waiter_obstacles(Relation rel, const AlWaiter *waiter)
{
	AlKey		key = al_waiter_key(waiter);
	bool		limited;
	bool		among_shared = waiter->is_shared && !al_waiters_has_strict(waiter, &limited);
	TimestampTz now;
	int			more;
	List	   *obstacles = NIL;
	ListCell   *cell;

	foreach(cell, al_holdings_of_key(rel, &key, NULL, AL_LOOK_ALL, &more, &now))
	{
		const AlHolding *holding = lfirst(cell);

		if (holding->lifetime == AL_TRANSACTION ||
			al_owner_equal(al_waiter_owner(waiter), al_string(holding->owner)) ||
			(among_shared && al_is_shared(holding)))
			continue;
		obstacles = lappend(obstacles, lfirst(cell));
	}
	return obstacles;
}

/*
 * Returns AL_RELEASED, and the holding in *own, if the owner holds the key; the caller
 * replaces that outcome.  Otherwise *own is NULL: AL_NOT_FOUND; or AL_NOT_OWNER,
 * AL_ALREADY_RELEASED or AL_EXPIRED, with the holding in result->holding.
 */
AlOutcome
al_judge_owner(const AlState *state, const AlOwner *owner, AlResult *result,
			   AlHolding **own)
{
	const AlHolding *over = NULL;
	List	   *live = NIL;
	ListCell   *cell;

	*own = NULL;
	result->at = GetCurrentTimestamp();

	/* Usually this is the only holding. */
	if (al_is_owned_by(&state->rows.exclusive, owner) && al_is_live(&state->rows.exclusive, result->at))
		*own = unconstify(AlHolding *, &state->rows.exclusive);
	else
		live = al_live_holdings(state, result->at);
	foreach(cell, live)
	{
		if (*own == NULL && al_is_owned_by(lfirst(cell), owner))
			*own = lfirst(cell);
	}
	if (*own)
	{
		result->holding = **own;
		return AL_RELEASED;
	}

	if (ItemPointerIsValid(&state->rows.exclusive.tid) && al_is_owned_by(&state->rows.exclusive, owner))
		over = &state->rows.exclusive;
	foreach(cell, state->rows.shared)
	{
		const AlHolding *row = lfirst(cell);

		if (al_is_owned_by(row, owner) &&
			(over == NULL || row->fencing_token > over->fencing_token))
			over = row;
	}
	if (over)
	{
		result->holding = *over;
		return over->released_at != 0 ? AL_ALREADY_RELEASED : AL_EXPIRED;
	}
	if (live == NIL)
		return AL_NOT_FOUND;
	result->holding = *al_longest(live);
	result->others = list_length(live) - 1 + state->rows.more;
	return AL_NOT_OWNER;
}

/*
 * Set the outcome AL_FORCED if an administrator ended the last holding of the refused owner.  True:
 * the caller read the rows before this end was found, and must read them again: if the owner is
 * the thief, it has the key again.  *forced, first 0, keeps the token of the end.
 */
bool
al_check_forced(const AlKey *key, const AlOwner *owner, AlResult *result, int64 *forced)
{
	bool		is_over = result->outcome == AL_ALREADY_RELEASED || result->outcome == AL_EXPIRED;
	const AlForcedEnd *end;

	if (!is_over && result->outcome != AL_NOT_FOUND && result->outcome != AL_NOT_OWNER)
		return false;
	AL_TEST_POINT("before-audit");
	end = al_audit_find(key, owner);
	if (end == NULL || (is_over && end->fencing_token < result->holding.fencing_token))
		return false;
	result->forced = end;
	result->obstacle = is_over ? AL_NOT_FOUND : result->outcome;
	result->outcome = AL_FORCED;
	if (end->fencing_token == *forced)
		return false;
	*forced = end->fencing_token;
	return true;
}

/*
 * Claim the key to act on a holding of the owner.  "mode" is for an exclusive holding.  For a
 * shared one, TAKE becomes SHARE and EXTEND becomes SHARE_EXTEND, and the share is claimed too.
 */
static void
claim_for(AlOwnClaim *ask, const AlHolding *holding, AlClaimMode mode)
{
	bool		is_shared = al_is_shared(holding);

	Assert(mode == AL_CLAIM_TAKE || mode == AL_CLAIM_EXTEND || mode == AL_CLAIM_PIN);

	if (is_shared && mode != AL_CLAIM_PIN)
		mode = mode == AL_CLAIM_EXTEND ? AL_CLAIM_SHARE_EXTEND : AL_CLAIM_SHARE;
	al_claim(&ask->claim, ask->key, is_shared ? ask->owner : NULL, mode);
}

static AlHolding *
judge_state(AlOwnClaim *ask)
{
	ask->result->outcome = al_judge_owner(&ask->state, ask->owner, ask->result, &ask->own);
	return ask->own;
}

/* Look again, under one snapshot, and return the owner's holding, or NULL */
AlHolding *
al_look_and_judge(AlOwnClaim *ask)
{
	al_look(ask->rel, ask->key, ask->owner, AL_LOOK_SOME, &ask->state);
	return judge_state(ask);
}

/*
 * Find the holding of an owner that the first look at the rows has missed.  A transaction's
 * holding can become a row, but not the reverse, so look at
 *
 *	1.	the transactions of other sessions;
 *	2.	the rows, under one snapshot;
 *	3.	uncommitted rows of others, if "others_claimed" the key; then at the rows again, since
 *		a row may have been committed between 2 and 3.
 *
 * If the owner holds the key, by a row or in this transaction, sets ask->own and returns NULL.
 * Otherwise returns what to wait for: another transaction's holding of this owner, one whose
 * owner is not known, a row that is not committed, or an expired lease that may be being
 * extended.  If both are NULL, the owner does not hold the key.
 */
AlHolding *
al_where_is_it(AlOwnClaim *ask, bool others_claimed)
{
	AlHolding  *elsewhere = al_tx_elsewhere(ask->key, ask->owner, &ask->result->is_in_use);

	if (!al_look_and_judge(ask) && ask->result->outcome == AL_EXPIRED)
	{
		/*
		 * Another call of this owner may have begun to extend the lease before it expired,
		 * so wait for it.  A call that only waits here takes the same claim and looks the
		 * same: wait at most once for each expires_at, or two would wait in turn.
		 */
		if (ask->waited_end != ask->result->holding.expires_at &&
			al_claim_is_extended(ask->key, ask->owner, al_is_shared(&ask->result->holding)))
		{
			ask->waited_end = ask->result->holding.expires_at;
			return &ask->result->holding;
		}
		(void) al_look_and_judge(ask);
	}
	if (ask->own || elsewhere || !others_claimed)
		return ask->own ? NULL : elsewhere;

	/* Wait once for a row version.  A row written by hand, in SQL, comes without a claim. */
	elsewhere = al_pending_find(ask->rel, ask->key, ask->owner);
	if (elsewhere && !(ItemPointerIsValid(&ask->waited) &&
						ItemPointerEquals(&elsewhere->tid, &ask->waited)))
	{
		ask->waited = elsewhere->tid;
		return elsewhere;
	}
	/* The transaction may have committed its row between the two looks. */
	if (!al_look_and_judge(ask) && ask->result->outcome == AL_NOT_FOUND &&
		al_pending_find(ask->rel, ask->key, NULL))
		ask->result->is_in_use = true;
	return NULL;
}

/*
 * Judge without a claim whether the owner holds the key.  If a look at the rows does not find the
 * owner's holding, return the result of al_where_is_it(), except if no other transaction has
 * claimed the key, and a second look, after that, finds the holding, or a live exclusive one of
 * another owner.
 */
static AlHolding *
look_for_own(AlOwnClaim *ask)
{
	AlState    *state = &ask->state;
	bool		was_seen = ask->seen != NULL;
	bool		others_claimed;

	state->rows.shared = NIL;
	state->rows.more = 0;
	state->mine = al_tx_mine(ask->key);
	if (ask->seen && !al_is_shared(ask->seen) && al_is_live(ask->seen, GetCurrentTimestamp()))
		state->rows.exclusive = *ask->seen;
	else if (!al_table_find(ask->rel, ask->key, &state->rows.exclusive) ||
			 !al_is_live(&state->rows.exclusive, GetCurrentTimestamp()))
	{
		AL_TEST_POINT("own-not-exclusive");
		al_find_shared(ask->rel, ask->key, ask->owner, AL_LOOK_OWN, state);
	}
	ask->seen = NULL;
	if (judge_state(ask))
		return NULL;
	AL_TEST_POINT("not-own");
	others_claimed = al_claim_has_others(ask->key->hash);
	/* A transaction may have handed the key to this owner before claims were looked at. */
	if (!others_claimed && al_is_live(&state->rows.exclusive, ask->result->at) &&
		al_table_find(ask->rel, ask->key, &state->rows.exclusive) &&
		(judge_state(ask) || al_is_live(&state->rows.exclusive, ask->result->at)))
		return NULL;
	/* A caller that passes "seen" iterates over committed holdings: skip uncommitted ones. */
	return al_where_is_it(ask, others_claimed && !was_seen);
}

/* al_claim_own(), without the outcome AL_FORCED */
static AlHolding *
claim_own(AlOwnClaim *ask)
{
	AlResult   *result = ask->result;

	ItemPointerSetInvalid(&ask->waited);
	ask->waited_end = 0;
	for (;;)
	{
		AlHolding  *elsewhere;
		bool		is_shared;

		CHECK_FOR_INTERRUPTS();
		ask->claim.hash = 0;
		result->is_in_use = false;
		result->kept_until = 0;
		elsewhere = look_for_own(ask);
		if (elsewhere && elsewhere->owner == NULL)
		{
			/* Do not wait: if it is prepared, our client may be the one to send COMMIT PREPARED. */
			result->outcome = AL_IN_TRANSACTION;
			result->blocker = elsewhere->pid;
			return NULL;
		}
		if (elsewhere)
		{
			/* Wait for that transaction by a claim that conflicts with its claim. */
			al_trace(DEBUG3, "waiting for a transaction that has or extends this owner's lock, process %d (0: not known)",
					 elsewhere->pid);
			claim_for(ask, elsewhere, elsewhere->lifetime == AL_TRANSACTION ?
					  AL_CLAIM_TAKE : AL_CLAIM_EXTEND);
			al_claim_drop(&ask->claim);
			continue;
		}
		if (ask->own == NULL || ask->own->lifetime == AL_TRANSACTION)
			return ask->own;

		is_shared = al_is_shared(ask->own);
		AL_TEST_POINT("own-seen");
		claim_for(ask, ask->own, ask->mode);
		AL_TEST_POINT("own-claimed");
		al_table_find_again(ask->rel, ask->key, ask->own);
		/* If that row is no longer live, the owner may have another one by now. */
		if ((judge_state(ask) || al_look_and_judge(ask)) && al_is_shared(ask->own) == is_shared)
		{
			AL_TEST_POINT("own-judged");
			return ask->own;
		}

		al_claim_drop(&ask->claim);
		if (ask->own == NULL)
			return NULL;
		/* The holding was converted before we had the claim, and needs another claim. */
		al_trace(DEBUG3, "the lock was converted meanwhile, claiming it again");
	}
}

/*
 * Claim the key if the owner holds it.  Returns the holding, with the outcome AL_RELEASED, which
 * the caller replaces; until our transaction ends, no other can end it, nor extend it unless the
 * mode is AL_CLAIM_PIN.  Or returns NULL, with the reason as the outcome, and keeps no claim.  A
 * holding of this transaction needs no claim.  Waits for unfinished transactions.  Outcomes
 * besides those of al_judge_owner(): AL_FORCED; AL_IN_TRANSACTION, where a transaction of an
 * unknown owner holds the key.  Raises the errors of al_claim().
 */
AlHolding *
al_claim_own(AlOwnClaim *ask)
{
	int64		forced = 0;
	AlHolding  *own;

	do
		own = claim_own(ask);
	while (own == NULL && al_check_forced(ask->key, ask->owner, ask->result, &forced));
	Assert(own == NULL || ask->claim.hash == 0 || al_claimed_has(ask->key->hash));
	return own;
}

/*
 * If another transaction has written an uncommitted row of this owner, wait until it ends.
 * False, without waiting: there is no such row; it was waited for before (token *waited); or it is
 * prepared, and our client may be the one to send COMMIT PREPARED.  Raises the errors of
 * al_claim().
 */
bool
al_await_own(Relation rel, const AlKey *key, const AlOwner *owner, int64 *waited)
{
	AlOwnClaim	ask = {.rel = rel, .key = key, .owner = owner};
	AlHolding  *pending = al_claim_has_others(key->hash) ? al_pending_find(rel, key, owner) : NULL;

	/* A row written by hand, in SQL, comes without a claim: so claims are looked at first. */
	if (pending == NULL || pending->pid == 0 || pending->fencing_token == *waited)
		return false;
	*waited = pending->fencing_token;
	claim_for(&ask, pending, AL_CLAIM_EXTEND);
	al_claim_drop(&ask.claim);
	return true;
}

/*
 * Write a holding over its row.  False, and nothing is written: it is shared, and its row was
 * changed or locked since, probably by a sharer that takes the expired row.
 */
bool
al_overwrite_row(Relation rel, const AlKey *key, AlHolding *holding)
{
	Assert(ItemPointerIsValid(&holding->tid) && holding->lifetime != AL_TRANSACTION);
	if (al_is_shared(holding))
		return al_table_try_put(rel, key, holding);
	al_table_put(rel, key, holding);
	return true;
}

/* Say why al_overwrite_row() has written nothing; "former" is the holding as it was before */
void
al_tell_unwritten(const AlHolding *former, AlResult *result)
{
	bool		is_live = al_is_live(former, GetCurrentTimestamp());

	result->outcome = is_live ? AL_IN_TRANSACTION : AL_EXPIRED;
	result->blocker = AL_ROW_LOCKED;
}
