/*-------------------------------------------------------------------------
 *
 * lock_lease.c
 *		The verbs on what somebody holds: release, extend, transfer, end.
 *
 * Model: look, claim, look again.  A verb first looks at the rows of the key
 * without any lock; where that refuses the caller, it is finished and has
 * written nothing.  Otherwise it claims the key and judges the rows a second
 * time: what it sees under the claim stays so until the transaction ends, and
 * only then it writes.
 *
 * A key has one exclusive holding, or any number of shared ones; some may be
 * without a row (lock_held.c).  A holding is live while it is not released,
 * the clock is before expires_at, and the session or transaction with which
 * it ends still runs.  The clock is the server's, read at each judging.
 *
 * Of an owner's own rows that are over the newest tells what became of its
 * holding, for as long as nobody has been given the row.
 *
 * Locking rules: see lock_claim.c for what meets what.  The verbs wait for
 * claims.  One that refuses after it has claimed drops
 * the claim again.  The caller has app_lock open with RowExclusiveLock, and has
 * checked that the transaction may write.
 *
 * IDENTIFICATION
 *		src/lease/state.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "common/int.h"
#include "base/compat.h"
#include "lock_lease.h"
#include "lock_stat.h"
#include "utils/timestamp.h"

/* A moment and a duration later, at most the last timestamp there is */
TimestampTz
al_add_duration(TimestampTz time, int64 duration)
{
	int64		sum;

	if (pg_add_s64_overflow(time, duration, &sum) || sum >= END_TIMESTAMP)
		return END_TIMESTAMP - 1;
	return sum;
}

/* The last moment to which a holding may be extended */
TimestampTz
al_end_of_life(const AlHolding *holding)
{
	if (al_max_lifetime_ms <= 0)
		return DT_NOEND;
	return al_add_duration(holding->acquired_at, AL_MS_TO_US(al_max_lifetime_ms));
}

/* Has the session with which a holding ends gone? */
static bool
is_orphaned(const AlHolding *holding)
{
	return holding->lifetime == AL_SESSION &&
		!al_session_is_alive(holding->pid, holding->backend_start);
}

/*
 * Until when a holding that nobody released keeps its key closed: lock_delay
 * from its end, or from when its session had died at the latest.  Before that,
 * as far as its end is known; DT_NOEND: it is not.
 */
TimestampTz
al_closed_until(const AlHolding *holding)
{
	TimestampTz ended_at = holding->expires_at;

	if (is_orphaned(holding))
	{
		if (al_lock_delay_ms <= 0)
			return DT_NOBEGIN;
		ended_at = Min(ended_at, al_session_ended_by(holding));
	}
	if (ended_at == DT_NOEND)
		return DT_NOEND;
	return al_add_duration(ended_at, AL_MS_TO_US(al_lock_delay_ms));
}

bool
al_is_live(const AlHolding *holding, TimestampTz now)
{
	if (holding->lifetime == AL_TRANSACTION)
		return true;
	return ItemPointerIsValid(&holding->tid) && holding->released_at == 0 &&
		now < holding->expires_at && !is_orphaned(holding);
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
	for (const AlPin *pin = al_xact_pins(key->hash); pin; pin = pin->next)
	{
		if (pin->fencing_token == row->fencing_token && al_string_equal(pin->key, key->name))
			return true;
	}
	return false;
}

bool
al_is_owned_by(const AlHolding *holding, const AlOwner *owner)
{
	if (owner->generated)
		return false;
	/* NULL: it is nobody's, or nobody can know whose it is. */
	return holding->owner && al_owner_equal(al_string(holding->owner), owner->name);
}

bool
al_is_shared(const AlHolding *holding)
{
	return holding->slot != AL_SLOT_EXCLUSIVE;
}

/*
 * Until when a holding that is written keeps whoever waits for the key from it.
 * 0: not known, since others may share it too, or since its session may end, or
 * have ended, at any time.
 */
TimestampTz
al_held_until(const AlHolding *holding)
{
	return al_is_shared(holding) || holding->lifetime == AL_SESSION ? 0 : holding->expires_at;
}

/* What of the state of a key is live: a list of AlHolding * */
static List *
live_holdings(const AlState *state, TimestampTz now)
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

/* Which of several holdings lasts longest */
const AlHolding *
al_longest(List *holdings)
{
	const AlHolding *longest = NULL;
	ListCell   *cell;

	foreach(cell, holdings)
	{
		const AlHolding *holding = lfirst(cell);

		if (longest == NULL || holding->expires_at > longest->expires_at)
			longest = holding;
	}
	return longest;
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
	uint64		made = al_entries_made(key);
	bool		is_alone = made != 0 && al_known_alone(key);

	state->shared = NIL;
	state->mine = al_held_mine(key);
	if (is_alone)
	{
		al_table_find(rel, key, &state->exclusive);
		/* There are no other rows as long as the index was given none. */
		if (made == al_entries_made(key))
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
		return live_holdings(state, *now);

	AL_INJECTION_POINT("atomic-lock-reader-between");
	others = al_held_by_others(key);
	al_look(rel, key, state);
	*now = GetCurrentTimestamp();
	holdings = live_holdings(state, *now);
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
	bool		among_shared = waiter->is_shared && !al_wait_is_wanted_alone(&key);
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
	live = live_holdings(state, result->at);
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
	AL_INJECTION_POINT("atomic-lock-not-own");
	elsewhere = al_held_elsewhere(key, owner);
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
 * key.  Where nobody can know whether it does, raises 55P03, or says AL_CLAIMED to
 * who pins, since only that knows whether the role may be told the key.
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
			if (mode != AL_CLAIM_PIN)
				al_raise_in_transaction(key, elsewhere->pid);
			result->outcome = AL_CLAIMED;
			result->rival = elsewhere->pid;
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
		AL_INJECTION_POINT("atomic-lock-own-seen");
		al_claim(claim, key, is_shared ? owner : NULL, mode_for(*own, mode));
		AL_INJECTION_POINT("atomic-lock-own-claimed");
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
			AL_INJECTION_POINT("atomic-lock-own-judged");
			return true;
		}

		al_claim_drop(claim);
		if (result->outcome != AL_RELEASED)
			return false;
		/* It was converted before we had the claim, and needs another. */
	}
}

/* Write that a holding is over; "forget": as if its owner never had it */
void
al_end_row(Relation rel, const AlKey *key, AlHolding *holding, TimestampTz now, bool forget)
{
	holding->released_at = now;
	holding->meta = NULL;
	if (forget)
		holding->owner = NULL;
	al_table_put(rel, key, holding);
}

/* End what an owner holds by this transaction, but for one of that */
static void
end_mine(const AlState *state, const AlOwner *owner, const AlHolding *but)
{
	ListCell   *cell;

	foreach(cell, state->mine)
	{
		if (lfirst(cell) == but || !al_is_owned_by(lfirst(cell), owner))
			continue;
		al_held_end(lfirst(cell), false);
		al_stat_count(AL_COUNT_RELEASES, 1);
	}
}

/*
 * Release what an owner holds; for "seen" see al_claim_own().
 *
 * Outcomes: AL_RELEASED; AL_NOT_FOUND, AL_NOT_OWNER, AL_ALREADY_RELEASED,
 * AL_EXPIRED.
 */
void
al_lease_release(Relation rel, const AlKey *key, const AlOwner *owner,
				 const AlHolding *seen, AlResult *result)
{
	AlState		state;
	AlHolding  *own;
	AlClaim		claim;

	if (!al_claim_own(rel, key, owner, AL_CLAIM_TAKE, seen, &state, &own, &claim, result))
		return;

	end_mine(&state, owner, NULL);
	if (own->lifetime == AL_TRANSACTION)
		return;
	al_xact_before_release();
	own->released_at = result->at;
	own->meta = NULL;
	if (al_is_shared(own) && !al_table_try_put(rel, key, own))
	{
		/* It ran out since, and somebody is being given the row. */
		al_claim_drop(&claim);
		result->outcome = AL_EXPIRED;
		return;
	}
	if (!al_is_shared(own))
		al_table_put(rel, key, own);
	result->holding = *own;
	al_xact_released();
	al_stat_count(AL_COUNT_RELEASES, 1);
}

/*
 * Extend a lease to ttl from now; ttl 0 repeats the length last asked for,
 * and never shortens.  What has no end but that of its session or transaction
 * keeps it so.
 *
 * Outcomes: AL_EXTENDED; AL_NOT_FOUND, AL_NOT_OWNER, AL_ALREADY_RELEASED,
 * AL_EXPIRED, AL_LIFETIME_EXCEEDED.
 */
void
al_lease_extend(Relation rel, const AlKey *key, const AlOwner *owner,
				const AlHolding *seen, int64 ttl, AlResult *result)
{
	AlState		state;
	AlHolding  *own;
	TimestampTz limit;
	TimestampTz wanted;
	AlClaim		claim;

	if (!al_claim_own(rel, key, owner, AL_CLAIM_EXTEND, seen, &state, &own, &claim, result))
		return;
	result->outcome = AL_EXTENDED;
	if (own->lifetime == AL_TRANSACTION)
	{
		al_stat_count(AL_COUNT_EXTENDS, 1);
		return;
	}

	limit = al_end_of_life(own);
	if (ttl > 0)
	{
		own->ttl = ttl;
		wanted = al_add_duration(result->at, ttl);
	}
	else
	{
		ttl = Min(own->ttl, AL_MS_TO_US(al_max_ttl_ms));
		wanted = Max(al_add_duration(result->at, ttl), own->expires_at);
	}
	if (wanted > limit && limit <= own->expires_at)
	{
		al_claim_drop(&claim);
		result->outcome = AL_LIFETIME_EXCEEDED;
		return;
	}
	own->expires_at = Min(wanted, limit);
	if (!al_is_shared(own))
		al_table_put(rel, key, own);
	else if (!al_table_try_put(rel, key, own))
	{
		al_claim_drop(&claim);
		result->outcome = AL_EXPIRED;
		return;
	}
	result->holding = *own;
	al_xact_granted(key, owner, al_held_until(own));
	al_stat_count(AL_COUNT_EXTENDS, 1);
}

/*
 * Make one of what an owner is handed and what it has of the same key: the lifetime
 * is the stronger one, a lease before a session, and its own session before
 * somebody else's; the end is the later one, as far as each has one.  Its life began
 * with the first of them, and goes on beyond its limit only as far as the new owner's
 * did.
 */
static void
join(AlHolding *handed, const AlHolding *had)
{
	TimestampTz end = Max(handed->expires_at, had->expires_at);

	if (handed->lifetime != had->lifetime && end == DT_NOEND)
		end = Min(handed->expires_at, had->expires_at);
	if (handed->lifetime == AL_SESSION)
	{
		handed->lifetime = had->lifetime;
		handed->pid = had->pid;
		handed->backend_start = had->backend_start;
		if (handed->ttl == 0)
			handed->ttl = had->ttl;
	}
	handed->acquired_at = Min(handed->acquired_at, had->acquired_at);
	/* It must not be a way to live for longer, nor to lose what the new owner had. */
	handed->expires_at = Min(end, Max(al_end_of_life(handed), had->expires_at));
	if (handed->meta == NULL)
		handed->meta = had->meta;
}

/*
 * Hand what an owner holds over to another owner; ttl 0 leaves its end as it
 * is.  Where the new owner shares the key already, the two become one.  It is not
 * acquired anew, since the key was not free: the limit on its life stays.
 *
 * Outcomes: AL_ACQUIRED; AL_NOT_FOUND, AL_NOT_OWNER, AL_ALREADY_RELEASED,
 * AL_EXPIRED, AL_LIFETIME_EXCEEDED.
 */
void
al_lease_transfer(Relation rel, const AlKey *key, const AlOwner *owner,
				  const AlOwner *new_owner, text *holder, int64 ttl, AlResult *result)
{
	AlState		state;
	AlHolding  *own;
	AlHolding  *other = NULL;
	AlClaim		claim;
	AlClaim		new_claim = {0};
	ListCell   *cell;

	for (;;)
	{
		if (!al_claim_own(rel, key, owner, AL_CLAIM_TAKE, NULL, &state, &own, &claim, result))
			return;
		if (own->lifetime == AL_TRANSACTION && ttl > 0)
			al_raise_no_lease("ttl");
		if (!al_is_shared(own) || al_string_equal(owner->name, new_owner->name))
			break;

		al_claim(&new_claim, key, new_owner, AL_CLAIM_SHARE);
		al_look(rel, key, &state);
		if (al_judge_owner(&state, owner, result, &own) == AL_RELEASED &&
			al_is_shared(own))
		{
			foreach(cell, state.shared)
			{
				if (al_is_owned_by(lfirst(cell), new_owner) &&
					al_is_live(lfirst(cell), result->at))
					other = lfirst(cell);
			}
			break;
		}
		/* It ran out while we waited for that claim. */
		al_claim_drop(&new_claim);
		if (claim.hash != 0)
			al_claim_drop(&claim);
	}

	if (ttl > 0 && al_end_of_life(own) <= result->at)
	{
		if (new_claim.hash != 0)
			al_claim_drop(&new_claim);
		al_claim_drop(&claim);
		result->outcome = AL_LIFETIME_EXCEEDED;
		return;
	}
	result->outcome = AL_ACQUIRED;
	if (own->lifetime == AL_TRANSACTION && other)
	{
		/* The new owner has a lease, which goes on beyond this transaction. */
		other->fencing_token = al_fence_draw(1);
		other->acquired_at = Min(other->acquired_at, own->acquired_at);
		if (al_table_try_put(rel, key, other))
		{
			al_held_end(own, false);
			result->holding = *other;
			al_xact_granted(key, new_owner, al_held_until(other));
			al_stat_count(AL_COUNT_RELEASES, 1);
			return;
		}
	}

	own->fencing_token = al_fence_draw(1);
	if (ttl > 0)
	{
		own->ttl = ttl;
		own->expires_at = Min(al_add_duration(result->at, ttl), al_end_of_life(own));
	}
	own->holder = holder ? holder : al_holder_default();
	own->owner = al_string_text(new_owner->name);
	own->has_owner_hash = true;
	own->owner_hash = al_owner_index_hash(new_owner->name);
	if (own->lifetime == AL_TRANSACTION)
	{
		end_mine(&state, new_owner, own);
		al_held_change(own, new_owner);
		result->holding = *own;
		return;
	}
	if (other)
		join(own, other);
	if (!al_is_shared(own))
		al_table_put(rel, key, own);
	else if (!al_table_try_put(rel, key, own))
	{
		/* It ran out since, and somebody is being given the row. */
		if (new_claim.hash != 0)
			al_claim_drop(&new_claim);
		al_claim_drop(&claim);
		result->outcome = AL_EXPIRED;
		return;
	}
	if (other)
	{
		other->released_at = result->at;
		other->owner = NULL;
		other->meta = NULL;
		if (al_table_try_put(rel, key, other))
			al_stat_count(AL_COUNT_RELEASES, 1);
	}
	end_mine(&state, new_owner, own);
	result->holding = *own;
	al_xact_granted(key, new_owner, al_held_until(own));
	al_stat_changed();
}

/*
 * End all holdings of a key, whoever has them, and return what they were: a
 * list of AlHolding *.  The former owners are forgotten, so that to them the
 * lock is gone, not released.  Where there are none, the claim is dropped.
 * Raises 55P03 where another transaction holds it: that would have to end.
 */
List *
al_lease_end(Relation rel, const AlKey *key, AlClaim *claim)
{
	List	   *others = al_held_by_others(key);
	List	   *ended = NIL;
	AlState		state;
	TimestampTz now;
	ListCell   *cell;

	if (others != NIL)
		al_raise_in_transaction(key, ((AlHolding *) linitial(others))->pid);

	al_claim(claim, key, NULL, AL_CLAIM_TAKE);
	al_look(rel, key, &state);
	now = GetCurrentTimestamp();
	foreach(cell, live_holdings(&state, now))
	{
		AlHolding  *holding = lfirst(cell);
		AlHolding  *copy = palloc(sizeof(AlHolding));

		*copy = *holding;
		ended = lappend(ended, copy);
		if (holding->lifetime == AL_TRANSACTION)
			al_held_end(holding, true);
		else
			al_end_row(rel, key, holding, now, true);
	}
	return ended;
}

/*
 * Does this session hold a key by its lifetime, or may it turn out to when an
 * unfinished transaction ends?
 */
bool
al_lease_of_session(Relation rel, const AlKey *key)
{
	AlState		state;
	ListCell   *cell;

	if (al_xact_is_claimed(key->hash) || al_claim_is_others(key->hash))
		return true;
	al_look(rel, key, &state);
	foreach(cell, live_holdings(&state, GetCurrentTimestamp()))
	{
		if (al_session_is_mine(lfirst(cell)))
			return true;
	}
	return false;
}

/*
 * This session is over: let what it holds of a key run out.  Without "wait",
 * what others have claimed is left as it is.
 */
void
al_lease_end_session(Relation rel, const AlKey *key, bool wait)
{
	AlState		state;
	ListCell   *cell;
	bool		left = false;

	al_look(rel, key, &state);
	foreach(cell, live_holdings(&state, GetCurrentTimestamp()))
	{
		AlHolding	holding = *(AlHolding *) lfirst(cell);
		bool		is_shared = al_is_shared(&holding);
		TimestampTz now;
		AlOwner		owner;
		AlClaim		claim;
		AlClaimMode mode = is_shared ? AL_CLAIM_SHARE : AL_CLAIM_TAKE;

		if (!al_session_is_mine(&holding))
			continue;
		al_owner_init(&owner, al_string(holding.owner));
		if (wait)
			al_claim(&claim, key, is_shared ? &owner : NULL, mode);
		else if (!al_claim_try(&claim, key, is_shared ? &owner : NULL, mode))
		{
			left = true;
			continue;
		}

		al_table_find_slot(rel, key, holding.slot, &holding);
		now = GetCurrentTimestamp();
		if (!al_is_live(&holding, now) || !al_session_is_mine(&holding))
		{
			al_claim_drop(&claim);
			continue;
		}
		al_xact_before_release();
		al_stat_changed();
		/* As a lease that ran out: then it is known when. */
		holding.lifetime = AL_LEASE;
		holding.expires_at = now;
		if (is_shared || !wait)
			left = !al_table_try_put(rel, key, &holding) || left;
		else
			al_table_put(rel, key, &holding);
		al_xact_released();
	}
	/* What is prepared may turn out to be ours, too. */
	if (left || (!wait && al_claim_is_others(key->hash)))
		al_session_left();
}
