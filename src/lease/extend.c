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

#include "atomic_lock.h"
#include "base/clock.h"
#include "base/settings.h"
#include "claim/claim.h"
#include "claim/holding.h"
#include "lease/extend.h"
#include "lease/state.h"
#include "shmem/stat.h"

/*
 * Extend a lease to ttl microseconds from now.  ttl 0 repeats the last one, and never
 * shortens the lease.  A holding without an end of its own stays so.  "seen" is as in
 * AlOwnClaim.  Outcomes: AL_EXTENDED; those of al_claim_own(), AL_LIFETIME_EXCEEDED.
 */
void
al_lease_extend(Relation rel, const AlKey *key, const AlOwner *owner,
				const AlHolding *seen, int64 ttl, AlResult *result)
{
	AlOwnClaim	ask = {rel, key, owner, AL_CLAIM_EXTEND, .seen = seen, .result = result};
	AlHolding  *own = al_claim_own(&ask);
	TimestampTz limit;
	TimestampTz end;

	if (own == NULL)
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
		end = al_add_duration(result->at, ttl);
	}
	else
	{
		ttl = Min(own->ttl, AL_MS_TO_US(al_max_ttl_ms));
		end = Max(al_add_duration(result->at, ttl), own->expires_at);
	}
	if (end > limit && limit <= own->expires_at)
	{
		al_claim_drop(&ask.claim);
		result->outcome = AL_LIFETIME_EXCEEDED;
		return;
	}
	own->expires_at = Min(end, limit);
	if (!al_put_over(rel, key, own))
	{
		al_claim_drop(&ask.claim);
		result->outcome = AL_EXPIRED;
		return;
	}
	result->holding = *own;
	al_lease_written(key, owner, own, false);
	al_stat_count(AL_COUNT_EXTENDS, 1);
}
