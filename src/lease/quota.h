/*
 * quota.h
 *		How many keys an owner or a role may hold.
 */
#ifndef AL_LEASE_QUOTA_H
#define AL_LEASE_QUOTA_H

#include "utils/relcache.h"

#include "atomic_lock.h"

/* The quotas that are claimed for a holding, until that is written */
typedef struct AlQuota
{
	int			count;
	bool		to_count;
	uint64		hashes[2];
} AlQuota;

extern void al_quota_take(Relation rel, const AlKey *key, const AlOwner *owner, Oid role,
						  AlLifetime lifetime, AlQuota *quota);
extern void al_quota_keep(const AlKey *key, const AlOwner *owner, Oid role, AlQuota *quota);
extern void al_quota_end(AlQuota *quota);

#endif							/* AL_LEASE_QUOTA_H */
