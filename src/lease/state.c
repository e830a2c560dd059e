/*-------------------------------------------------------------------------
 *
 * state.c
 *		What there is of a key, and what an owner may do with it.
 *
 * Model: look, claim, look again.  A verb first looks at the rows of the key without
 * any lock.  Where that refuses the caller, it is finished and has written nothing.
 * Otherwise it claims the key and judges the rows a second time: what it sees under
 * the claim stays so until the transaction ends, and only then does it write.
 *
 * Of an owner's own rows that are over, the newest tells what became of its holding,
 * for as long as nobody has been given the row.
 *
 * Locking rules: see claim/claim.c for what meets what.  The verbs wait for claims.
 * A verb that refuses after it has claimed drops the claim again.  The caller has
 * app_lock open with RowExclusiveLock, and has checked that the transaction may write.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/owner.h"
#include "base/str.h"
#include "base/testpoint.h"
#include "claim/claim.h"
#include "claim/claimed.h"
#include "claim/durability.h"
#include "claim/held.h"
#include "claim/holding.h"
#include "lease/state.h"
#include "shmem/queue.h"
#include "shmem/sole.h"
#include "table/app_lock.h"

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

/* A lease was granted to an owner or extended, and is written. */
void
al_lease_written(const AlKey *key, const AlOwner *owner, const AlHolding *holding)
{
	al_claimed_granted(key, owner, al_held_until(holding));
	al_durability_granted();
}

/*
 * Has this transaction kept the key of a row from others, since it has written or
 * pinned the row?  What was forgotten, an administrator has ended.
 */
bool
al_is_kept(const AlKey *key, const AlHolding *row)
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

/* What of the state of a key is live: a list of AlHolding * */
List *
al_live_holdings(const AlState *state, TimestampTz now)
{
	List	   *holdings = NIL;
	ListCell   *cell;

	if (al_is_live(&state->exclusive, now))
		holdings = lappend(holdings, unconstify(AlHolding *, &state->exclusive));
	foreach(cell, state->shared)
	{
		if (al_is_live(lfirst(cell), now))
			holdings = lappend(holdings, lfirst(cell));
	}
	return list_concat(holdings, state->mine);
}

/*
 * Find the rows of shared holdings, unless it is known that there are none since
 * state->exclusive was found
 */
void
al_find_shared(Relation rel, const AlKey *key, AlState *state)
{
	state->shared = NIL;
	if (!state->exclusive.is_alone)
		state->shared = al_table_find_all(rel, key, AL_SLOT_EXCLUSIVE + 1,
										  &state->exclusive.is_alone);
}

/*
 * Look at all that there is of a key, but for other transactions: all rows as they
 * were at one moment.  Without a claim this is the only look that can tell that
 * somebody does not hold the key: of two looks at different rows, the first can be
 * before the holding moved from one row to the other, and the second after it did.
 */
void
al_look(Relation rel, const AlKey *key, AlState *state)
{
	uint64		made = al_sole_entries(key);
	bool		is_alone = made != 0 && al_sole_is_known(key);

	state->shared = NIL;
	state->mine = al_held_mine(key);
	if (is_alone)
	{
		al_table_find(rel, key, &state->exclusive);
		/* There are no other rows as long as the index was given none. */
		if (made == al_sole_entries(key))
			return;
	}
	state->shared = al_table_find_all(rel, key, AL_SLOT_EXCLUSIVE, &is_alone);
	if (state->shared != NIL && !al_is_shared(linitial(state->shared)))
	{
		state->exclusive = *(AlHolding *) linitial(state->shared);
		state->shared = list_delete_first(state->shared);
	}
	else
		al_table_no_row(key, AL_SLOT_EXCLUSIVE, &state->exclusive);
	state->exclusive.is_alone = is_alone;
}

/* Is this what a transaction held, which has a row by now? */
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
 * All live holdings of a key, those of other transactions included, for people
 * and for those who wait: a list of AlHolding *, as of "now".  An exclusive
 * lease that is live is the only holding, or an unfinished transaction of the
 * same owner keeps it from being taken; then that is all to look at.  Otherwise
 * the transactions come before the rows: one that has ended meanwhile has made
 * visible what became of its holding.
 */
List *
al_holdings_of_key(Relation rel, const AlKey *key, TimestampTz *now)
{
	AlState    *state = palloc0(sizeof(AlState));
	List	   *others;
	List	   *holdings;
	ListCell   *cell;

	al_table_find(rel, key, &state->exclusive);
	state->mine = al_held_mine(key);
	*now = GetCurrentTimestamp();
	if (al_is_live(&state->exclusive, *now))
		return al_live_holdings(state, *now);

	AL_TEST_POINT("reader-between");
	others = al_held_by_others(key);
	al_look(rel, key, state);
	*now = GetCurrentTimestamp();
	holdings = al_live_holdings(state, *now);
	foreach(cell, others)
	{
		if (has_become_row(lfirst(cell), holdings))
			others = foreach_delete_current(others, cell);
	}
	return list_concat(holdings, others);
}

/*
 * Leases in the way of a waiter: a list of AlHolding *.  Its own is not, and
 * others that share the key are not for who shares it, unless somebody waits
 * to have it alone.
 */
List *
al_waiter_obstacles(Relation rel, const AlWaiter *waiter)
{
	AlKey		key = al_waiter_key(waiter);
	bool		among_shared = waiter->is_shared && !al_queue_has_exclusive(&key);
	TimestampTz now;
	List	   *obstacles = NIL;
	ListCell   *cell;

	foreach(cell, al_holdings_of_key(rel, &key, &now))
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
 * May this owner do something with its holding?  AL_RELEASED: it may, and "own"
 * is it.  Otherwise result->holding says why not.
 */
AlOutcome
al_judge_owner(const AlState *state, const AlOwner *owner, AlResult *result,
			   AlHolding **own)
{
	const AlHolding *over = NULL;
	List	   *live;
	ListCell   *cell;

	*own = NULL;
	result->at = GetCurrentTimestamp();

	/* Usually it is this, and all there is. */
	if (al_is_owned_by(&state->exclusive, owner) && al_is_live(&state->exclusive, result->at))
	{
		*own = unconstify(AlHolding *, &state->exclusive);
		result->holding = **own;
		return AL_RELEASED;
	}
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

	if (ItemPointerIsValid(&state->exclusive.tid) && al_is_owned_by(&state->exclusive, owner))
		over = &state->exclusive;
	foreach(cell, state->shared)
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
	result->others = list_length(live) - 1;
	return AL_NOT_OWNER;
}

/*
 * The claim for what an owner does with its holding: AL_CLAIM_TAKE, _EXTEND or
 * _PIN, or what this is where the holding is shared
 */
static AlClaimMode
mode_for(const AlHolding *own, AlClaimMode mode)
{
	if (!al_is_shared(own) || mode == AL_CLAIM_PIN)
		return mode;
	return mode == AL_CLAIM_EXTEND ? AL_CLAIM_SHARE_EXTEND : AL_CLAIM_SHARE;
}

/*
 * Look at a key without a claim: may the owner do something with its holding?  The
 * cheap look comes first, and is enough to say that it may, or that somebody else
 * has the key alone.  Otherwise returns what a transaction of another session has to
 * be waited for: what the owner holds by it, or may hold, or its lease, which has run
 * out and is being extended; or NULL.
 */
static AlHolding *
look_for_own(Relation rel, const AlKey *key, const AlOwner *owner, const AlHolding *seen,
			 AlState *state, AlHolding **own, AlResult *result)
{
	AlHolding  *elsewhere;

	state->shared = NIL;
	state->mine = al_held_mine(key);
	if (seen && !al_is_shared(seen) && al_is_live(seen, GetCurrentTimestamp()))
		state->exclusive = *seen;
	else if (!al_table_find(rel, key, &state->exclusive) ||
			 !al_is_live(&state->exclusive, GetCurrentTimestamp()))
		al_find_shared(rel, key, state);
	result->outcome = al_judge_owner(state, owner, result, own);
	if (result->outcome == AL_RELEASED || al_is_live(&state->exclusive, result->at))
		return NULL;

	/* Of what a transaction held, the rows tell once it has ended. */
	AL_TEST_POINT("not-own");
	elsewhere = al_held_elsewhere(key, owner, &result->is_in_use);
	al_look(rel, key, state);
	result->outcome = al_judge_owner(state, owner, result, own);
	if (result->outcome == AL_EXPIRED)
	{
		/* It had not when the owner began to extend it, if it does. */
		if (al_claim_is_extended(key, owner, al_is_shared(&result->holding)))
			return &result->holding;
		al_look(rel, key, state);
		result->outcome = al_judge_owner(state, owner, result, own);
	}
	return result->outcome == AL_RELEASED ? NULL : elsewhere;
}

/*
 * Look at a key, and claim it if the owner may change its holding, or pin it:
 * true, and "own", which is in the state, stays so.  Waits for unfinished
 * transactions, and so for that of another session in which the owner holds the
 * key.  Where nobody can know whether it does, the outcome is AL_IN_TRANSACTION.
 * A holding of the own transaction needs no claim; then claim->hash is 0.
 * "seen" is a row of the owner that the caller has found, or NULL, and saves the
 * first look.
 */
bool
al_claim_own(Relation rel, const AlKey *key, const AlOwner *owner, AlClaimMode mode,
			 const AlHolding *seen, AlState *state, AlHolding **own, AlClaim *claim,
			 AlResult *result)
{
	for (;;)
	{
		AlHolding  *elsewhere;
		bool		is_shared;

		CHECK_FOR_INTERRUPTS();
		claim->hash = 0;
		elsewhere = look_for_own(rel, key, owner, seen, state, own, result);
		seen = NULL;
		if (elsewhere && elsewhere->owner == NULL)
		{
			/*
			 * Nobody can know whose it is.  It may be prepared, and wait for the very
			 * connection that a wait of ours would keep.
			 */
			result->outcome = AL_IN_TRANSACTION;
			result->blocker = elsewhere->pid;
			return false;
		}
		if (elsewhere)
		{
			/* Claim what meets the claim that there is, or this would be no wait. */
			bool		is_own_share = al_is_shared(elsewhere);
			AlClaimMode meets = elsewhere->lifetime == AL_TRANSACTION ?
				AL_CLAIM_TAKE : AL_CLAIM_EXTEND;

			if (is_own_share)
				meets = meets == AL_CLAIM_TAKE ? AL_CLAIM_SHARE : AL_CLAIM_SHARE_EXTEND;
			al_claim(claim, key, is_own_share ? owner : NULL, meets);
			al_claim_drop(claim);
			continue;
		}
		if (result->outcome != AL_RELEASED)
			return false;
		if ((*own)->lifetime == AL_TRANSACTION)
			return true;

		is_shared = al_is_shared(*own);
		AL_TEST_POINT("own-seen");
		al_claim(claim, key, is_shared ? owner : NULL, mode_for(*own, mode));
		AL_TEST_POINT("own-claimed");
		al_table_find_again(rel, key, *own);
		result->outcome = al_judge_owner(state, owner, result, own);
		if (result->outcome != AL_RELEASED)
		{
			/* It is over, or in another row now. */
			al_look(rel, key, state);
			result->outcome = al_judge_owner(state, owner, result, own);
		}
		if (result->outcome == AL_RELEASED && al_is_shared(*own) == is_shared)
		{
			AL_TEST_POINT("own-judged");
			return true;
		}

		al_claim_drop(claim);
		if (result->outcome != AL_RELEASED)
			return false;
		/* It was converted before we had the claim, and needs another. */
	}
}
