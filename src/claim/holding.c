/*-------------------------------------------------------------------------
 *
 * holding.c
 *		Questions about a holding, answered by the clock and the policy of its key.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: a key has one exclusive holding, or any number of shared ones.  A holding is
 * live while it is not released, the clock is before expires_at, and the session or
 * transaction that it belongs to still runs.  After its end, a holding may keep its key
 * closed for some time (step 10 in atomic_lock.h).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "atomic_lock.h"
#include "base/clock.h"
#include "base/owner.h"
#include "base/policy.h"
#include "base/str.h"
#include "claim/holding.h"
#include "shmem/session.h"

/* Until when a holding may be extended; DT_NOEND: without limit */
TimestampTz
al_end_of_life(const AlHolding *holding)
{
	int64		max_lifetime = al_policy_value(holding->key, AL_MAX_LIFETIME);

	if (max_lifetime <= 0)
		return DT_NOEND;
	return al_add_duration(holding->acquired_at, max_lifetime);
}

/* Does the holding end with a session, and has that session ended? */
static bool
is_orphaned(const AlHolding *holding)
{
	return holding->lifetime == AL_SESSION &&
		!al_session_is_alive(holding->pid, holding->backend_start);
}

/* When a holding that was not released ended, or will at the latest; DT_NOEND: not known */
TimestampTz
al_ended_at(const AlHolding *holding)
{
	if (!is_orphaned(holding))
		return holding->expires_at;
	return Min(holding->expires_at, al_session_ended_by(holding->pid, holding->backend_start,
														holding->expires_at));
}

/* Until when min_hold keeps the key of an ended holding closed, unless it was ended by force */
TimestampTz
al_min_held_until(const AlHolding *holding)
{
	int64		min_hold = al_policy_value(holding->key, AL_MIN_HOLD);

	/* al_row_peek() does not read the owner. */
	if (min_hold <= 0 || (holding->owner == NULL && holding->tuple))
		return DT_NOBEGIN;
	return al_add_duration(holding->acquired_at, min_hold);
}

/*
 * Until when an ended holding keeps its key closed: until it would have been held for min_hold;
 * and unless it was released, for lock_delay after its end, or after the latest time at which its
 * session can have ended.  DT_NOEND: that is not known.
 */
TimestampTz
al_closed_until(const AlHolding *holding)
{
	int64		delay = al_policy_value(holding->key, AL_LOCK_DELAY);
	TimestampTz until = DT_NOBEGIN;

	if (holding->released_at == 0 && (delay > 0 || !is_orphaned(holding)))
	{
		until = al_ended_at(holding);
		if (until == DT_NOEND)
			return DT_NOEND;
		until = al_add_duration(until, delay);
	}
	return Max(until, al_min_held_until(holding));
}

bool
al_is_closed(const AlHolding *holding, TimestampTz now)
{
	return (al_policy_settings[AL_LOCK_DELAY] > 0 || al_policy_any()) && ItemPointerIsValid(&holding->tid) &&
		!al_is_live(holding, now) && now < al_closed_until(holding);
}

/* False also if there is no row and never was one */
bool
al_is_live(const AlHolding *holding, TimestampTz now)
{
	if (holding->lifetime == AL_TRANSACTION)
		return true;
	return ItemPointerIsValid(&holding->tid) && holding->released_at == 0 &&
		now < holding->expires_at && !is_orphaned(holding);
}

bool
al_is_owned_by(const AlHolding *holding, const AlOwner *owner)
{
	if (owner->generated)
		return false;
	/* NULL: the holding was ended by force, or its owner cannot be known. */
	return holding->owner && al_owner_equal(al_string(holding->owner), owner->name);
}

bool
al_is_shared(const AlHolding *holding)
{
	Assert(holding->slot >= AL_SLOT_EXCLUSIVE);
	return holding->slot != AL_SLOT_EXCLUSIVE;
}

/*
 * Until when a written holding keeps waiters from the key.  0: not known, because waiters may
 * share the key or the session may end at any time.
 */
TimestampTz
al_held_until(const AlHolding *holding)
{
	return al_is_shared(holding) || holding->lifetime == AL_SESSION ? 0 : holding->expires_at;
}

/* The holding that lasts longest; NULL if the list is empty */
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

bool
al_is_of_this_session(const AlHolding *holding)
{
	return holding->lifetime == AL_SESSION && holding->pid == MyProcPid &&
		holding->backend_start == MyStartTimestamp;
}
