/*
 * quota.h
 *		How many keys an owner or a role may hold.
 */
#ifndef AL_LEASE_QUOTA_H
#define AL_LEASE_QUOTA_H

#include "storage/lockdefs.h"
#include "utils/relcache.h"

#include "atomic_lock.h"
#include "lease/attempt.h"

/* A holding or a place in line that is about to be written */
typedef struct AlQuotaUse
{
	const AlKey *key;
	const AlOwner *owner;
	Oid			role;
	bool		is_new;			/* the owner does not hold the key yet */
	AlLifetime	lifetime;
	bool		is_place;		/* in line, besides whatever is held of the key */
} AlQuotaUse;

typedef struct AlQuotaClaim
{
	uint64		hash;
	LOCKMODE	mode;
} AlQuotaClaim;

/* The quotas that are claimed until those holdings are written */
typedef struct AlQuota
{
	int			count;
	AlQuotaClaim *claims;
} AlQuota;

extern void al_quota_claim(Relation rel, const AlQuotaUse *uses, int count, AlQuota *quota);
extern void al_quota_check(Relation rel, const AlAttempt *attempt);
extern bool al_quota_claim_attempts(Relation rel, AlAttempt *attempts, int count,
									AlQuota *quota);
extern void al_quota_end(AlQuota *quota);

#endif							/* AL_LEASE_QUOTA_H */
