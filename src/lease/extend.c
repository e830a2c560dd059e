/*-------------------------------------------------------------------------
 *
 * extend.c
 *		Extending a lease.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Locking rules: waits for the key's claim in the mode that lets pins pass, for a share also for
 * the claim of the share, and keeps them until the transaction ends, if it wrote.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/clock.h"
#include "base/errors.h"
#include "base/str.h"
#include "claim/claim.h"
#include "claim/holding.h"
#include "lease/extend.h"
#include "lease/state.h"
#include "lease/terms.h"
#include "shmem/stat.h"

/*
 * Extend a lease to ttl microseconds from now.  AL_NO_TTL repeats the ttl in the row, cut to
 * max_ttl, and keeps the later of the old and the new end.  A holding with the lifetime of a
 * transaction does not change.  Outcomes: AL_EXTENDED; those of al_claim_own();
 * AL_LIFETIME_EXCEEDED, if the holding already ends at the cap by max_lifetime or later, and the
 * new end would be after it.  Raises 42501, 22023, and the errors of al_claim().
 */
void
al_lease_extend(Relation rel, const AlKey *key, const AlOwner *owner,
				const AlHolding *seen, int64 ttl, AlResult *result)
{
	AlOwnClaim	ask = {rel, key, owner, AL_CLAIM_EXTEND, .seen = seen, .result = result};
	AlHolding  *own;
	TimestampTz limit;
	TimestampTz end;
	TimestampTz former_end;

	al_terms_admit(key);
	al_terms_check_ttl(key, ttl);
	own = al_claim_own(&ask);
	if (own == NULL)
		return;
	result->outcome = AL_EXTENDED;
	if (own->lifetime == AL_TRANSACTION)
	{
		al_stat_count(AL_COUNT_EXTENDS, 1);
		return;
	}

	limit = al_end_of_life(own);
	if (ttl != AL_NO_TTL)
	{
		own->ttl = ttl;
		end = al_add_duration(result->at, ttl);
	}
	else
	{
		ttl = al_terms_cap(key, own->ttl);
		end = Max(al_add_duration(result->at, ttl), own->expires_at);
	}
	if (end > limit && limit <= own->expires_at)
	{
		al_claim_drop(&ask.claim);
		result->outcome = AL_LIFETIME_EXCEEDED;
		return;
	}
	former_end = own->expires_at;
	own->expires_at = Min(end, limit);
	if (!al_overwrite_row(rel, key, own))
	{
		al_trace(DEBUG1, "lock \"%s\": the share expired, or its row was locked, before its extension was written",
				 al_display(key->name));
		al_claim_drop(&ask.claim);
		own->expires_at = former_end;
		al_tell_unwritten(own, result);
		return;
	}
	result->holding = *own;
	al_note_written(key, owner, own, false);
	al_stat_count(AL_COUNT_EXTENDS, 1);
}
