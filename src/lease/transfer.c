/*-------------------------------------------------------------------------
 *
 * transfer.c
 *		Transferring a holding to another owner.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: the holding keeps its row, and its limit by max_lifetime, since the key was never
 * free.  If it is shared and the new owner already shares the key, the two holdings become
 * one.
 *
 * Locking rules: those of lease/state.c.  If the holding is shared, the new owner's share is
 * claimed too, in the order of the owners: otherwise two of them that hand their shares to each
 * other would deadlock.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/clock.h"
#include "base/errors.h"
#include "base/owner.h"
#include "base/str.h"
#include "claim/claim.h"
#include "claim/holding.h"
#include "claim/tx_holdings.h"
#include "lease/publish.h"
#include "lease/quota.h"
#include "lease/release.h"
#include "lease/state.h"
#include "lease/terms.h"
#include "lease/transfer.h"
#include "shmem/stat.h"
#include "table/app_lock.h"
#include "table/fence.h"
#include "table/history.h"
#include "table/scan.h"
#include "table/sharers.h"
#include "table/tickets.h"

/*
 * Merge the new owner's share "had" into the holding that it gets, "handed".  A lease wins over a
 * session, and the new owner's session over the old owner's.  The later end counts, but that of a
 * lease over a session without an end.  max_lifetime counts from the earlier acquired_at, but
 * does not cut the end of the share.
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
	handed->expires_at = Min(end, Max(al_end_of_life(handed), had->expires_at));
	if (handed->meta == NULL)
		handed->meta = had->meta;
}

static void
drop_claims(AlOwnClaim *from, AlClaim *to_claim)
{
	if (to_claim->hash != 0)
		al_claim_drop(to_claim);
	if (from->claim.hash != 0)
		al_claim_drop(&from->claim);
	to_claim->hash = from->claim.hash = 0;
}

/*
 * Claim the holding of the old owner; if it is shared, also the new owner's share: *share, except
 * where a new ttl (microseconds) will be refused.  False: refused, and nothing is claimed.
 */
static bool
claim_both(AlOwnClaim *from, const AlOwner *new_owner, int64 ttl, AlClaim *to_claim,
		   AlHolding **share)
{
	int			order = al_string_compare(from->owner->name, new_owner->name);
	ListCell   *cell;

	for (;;)
	{
		AlHolding  *own = al_claim_own(from);

		if (own == NULL || order == 0 || !al_is_shared(own) ||
			(own->lifetime == AL_TRANSACTION && ttl != AL_NO_TTL))
		{
			if (to_claim->hash != 0)
				al_claim_drop(to_claim);
			to_claim->hash = 0;
			return own != NULL;
		}
		if (to_claim->hash != 0)
			break;

		/* Shares of a key are claimed in the order of their owners. */
		if (order > 0)
			drop_claims(from, to_claim);
		al_claim(to_claim, from->key, new_owner, AL_CLAIM_SHARE);
		/* The holding may have expired meanwhile.  An exclusive one needs a claim of its own. */
		if (!al_look_and_judge(from) || !al_is_shared(from->own))
			drop_claims(from, to_claim);
		else if (order < 0)
			break;
	}

	foreach(cell, al_sharers_of_owner(from->rel, from->key, new_owner, NULL))
	{
		if (al_is_live(lfirst(cell), from->result->at))
			*share = lfirst(cell);
	}
	return true;
}

/* Merge a transaction's shared holding into the new owner's lease; false: that has expired */
static bool
give_to_lease(AlOwnClaim *from, const AlOwner *new_owner, AlHolding *lease)
{
	AlHolding	former = *lease;

	lease->fencing_token = al_fence_draw(1);
	lease->acquired_at = Min(lease->acquired_at, from->own->acquired_at);
	if (!al_table_try_put(from->rel, from->key, lease))
		return false;
	al_tx_end(from->own, false);
	al_publish_end(from->key, from->own, from->result->at, AL_ENDED_TRANSFERRED, NULL);
	al_publish_end(from->key, &former, from->result->at, AL_ENDED_TRANSFERRED, NULL);
	al_history_begin(from->key, lease, from->result->at);
	from->result->holding = *lease;
	al_note_written(from->key, new_owner, lease, true);
	al_stat_count(AL_COUNT_RELEASES, 1);
	return true;
}

/*
 * Write the transferred holding and the share as one row.  False, with the outcome: a row is
 * locked, or the holding has expired.
 */
static bool
write_row(AlOwnClaim *from, const AlOwner *new_owner, const AlHolding *former, AlHolding *share)
{
	AlHolding  *own = from->own;

	if (share)
		join(own, share);
	if ((share && !al_try_lock_row(from->rel, &share->tid)) ||
		!al_overwrite_row(from->rel, from->key, own))
	{
		al_tell_unwritten(former, from->result);
		return false;
	}
	al_publish_end(from->key, former, from->result->at, AL_ENDED_TRANSFERRED, NULL);
	al_history_begin(from->key, own, from->result->at);
	if (share)
	{
		al_publish_end(from->key, share, from->result->at, AL_ENDED_TRANSFERRED, NULL);
		share->released_at = from->result->at;
		share->owner = NULL;
		share->meta = NULL;
		if (al_table_try_put(from->rel, from->key, share))
			al_stat_count(AL_COUNT_RELEASES, 1);
	}
	al_end_mine(from->key, &from->state, new_owner, own, AL_ENDED_TRANSFERRED);
	al_note_written(from->key, new_owner, own, share != NULL);
	al_stat_changed();
	return true;
}

/*
 * Write the transferred holding.  "share": the new owner's own, or NULL.  ttl in microseconds;
 * AL_NO_TTL: keep the end.  False, with the outcome: it has expired, or a row is locked.
 */
static bool
write_handed_over(AlOwnClaim *from, const AlOwner *new_owner, text *holder, Oid role, int64 ttl,
				  AlHolding *share)
{
	AlHolding  *own = from->own;
	AlHolding	former = *own;

	/* The holding may have expired while the quotas were claimed. */
	if (!al_is_live(own, from->result->at))
	{
		from->result->outcome = AL_EXPIRED;
		return false;
	}
	if (!al_string_equal(from->owner->name, new_owner->name))
	{
		AlState		former_rows;

		al_look(from->rel, from->key, new_owner, AL_LOOK_OWN, &former_rows);
		al_forget_released(from->rel, from->key, new_owner, &former_rows.rows, false, false);
	}
	own->fencing_token = al_fence_draw(1);
	if (ttl != AL_NO_TTL)
	{
		own->ttl = ttl;
		own->expires_at = Min(al_add_duration(from->result->at, ttl), al_end_of_life(own));
	}
	own->holder = holder;
	own->role = role;
	own->owner = al_string_text(new_owner->name);
	own->has_owner_hash = true;
	own->owner_hash = al_owner_index_hash(new_owner->name, from->key->name);
	if (own->lifetime != AL_TRANSACTION)
		return write_row(from, new_owner, &former, share);
	al_end_mine(from->key, &from->state, new_owner, own, AL_ENDED_TRANSFERRED);
	al_publish_end(from->key, &former, from->result->at, AL_ENDED_TRANSFERRED, NULL);
	own->granted_at = from->result->at;
	al_tx_change(own, new_owner);
	return true;
}

/*
 * Transfer an owner's holding.  ttl in microseconds; AL_NO_TTL: keep the end.  Outcomes:
 * AL_ACQUIRED; of al_claim_own(), AL_LIFETIME_EXCEEDED, AL_NO_LEASE.  Raises 42501, 22023, 53400.
 */
void
al_lease_transfer(Relation rel, const AlKey *key, const AlOwner *owner,
				  const AlOwner *new_owner, text *holder, Oid role, int64 ttl,
				  AlResult *result)
{
	AlOwnClaim	from = {rel, key, owner, AL_CLAIM_TAKE, .result = result};
	AlClaim		to_claim = {0};
	AlHolding  *share = NULL;
	AlQuotaUse	use = {.key = key, .role = role, .is_new = true};
	List	   *quotas;

	al_terms_admit(key);
	if (ttl != AL_NO_TTL)
		ttl = al_terms_new_ttl(key, ttl);
	if (!claim_both(&from, new_owner, ttl, &to_claim, &share))
		return;
	use.in_transaction = from.own->lifetime == AL_TRANSACTION;
	if (ttl != AL_NO_TTL && (use.in_transaction || al_end_of_life(from.own) <= result->at))
	{
		drop_claims(&from, &to_claim);
		result->outcome = use.in_transaction ? AL_NO_LEASE : AL_LIFETIME_EXCEEDED;
		return;
	}
	result->outcome = AL_ACQUIRED;
	if (!use.in_transaction || share == NULL || !give_to_lease(&from, new_owner, share))
	{
		bool		is_written;

		quotas = al_quota_claim(rel, &use, 1, new_owner);
		if (quotas != NIL)
			result->at = GetCurrentTimestamp();
		is_written = write_handed_over(&from, new_owner, holder, role, ttl, share);
		al_quota_end(quotas);
		if (!is_written)
		{
			al_trace(DEBUG1, "lock \"%s\": the holding expired, or a row was locked, before its transfer was written",
					 al_display(key->name));
			drop_claims(&from, &to_claim);
			return;
		}
		result->holding = *from.own;
	}
	(void) al_tickets_drop(key, new_owner);
}
