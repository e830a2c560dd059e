/*-------------------------------------------------------------------------
 *
 * extend.c
 *		Extending a lease.
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
#include "base/settings.h"
#include "claim/claim.h"
#include "claim/holding.h"
#include "lease/extend.h"
#include "lease/state.h"
#include "shmem/stat.h"
#include "table/app_lock.h"

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
	al_lease_written(key, owner, own);
	al_stat_count(AL_COUNT_EXTENDS, 1);
}
