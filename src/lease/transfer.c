/*-------------------------------------------------------------------------
 *
 * transfer.c
 *		Handing a holding over to another owner.
 *
 * Locking rules: those of lease/state.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"

#include "atomic_lock.h"
#include "base/clock.h"
#include "base/owner.h"
#include "base/str.h"
#include "claim/claim.h"
#include "claim/held.h"
#include "claim/holding.h"
#include "lease/release.h"
#include "lease/state.h"
#include "lease/transfer.h"
#include "shmem/stat.h"
#include "table/app_lock.h"
#include "table/fence.h"

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
		{
			result->outcome = AL_NO_LEASE;
			return;
		}
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
			al_lease_written(key, new_owner, other);
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
	own->holder = holder;
	own->owner = al_string_text(new_owner->name);
	own->has_owner_hash = true;
	own->owner_hash = al_owner_index_hash(new_owner->name);
	if (own->lifetime == AL_TRANSACTION)
	{
		al_end_mine(&state, new_owner, own);
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
	al_end_mine(&state, new_owner, own);
	result->holding = *own;
	al_lease_written(key, new_owner, own);
	al_stat_changed();
}
