/*
 * publish.h
 *		Publishing grants, and the end of holdings.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_LEASE_PUBLISH_H
#define AL_LEASE_PUBLISH_H

#include "utils/relcache.h"

#include "atomic_lock.h"
#include "base/policy.h"
#include "claim/holding.h"
#include "table/history.h"

extern void al_publish_by_policy(const AlKey *key, const AlHolding *holding, TimestampTz at,
								 bool is_new);
extern void al_publish_end(const AlKey *key, const AlHolding *holding, TimestampTz at,
						   AlEndedBy ended_by, const text *reason);

extern void al_publish_commit(bool is_prepared);
extern void al_publish_forget(void);

/* Publish a grant that has a row, made at "at"; "is_new": its owner did not have a row before */
static inline void
al_publish_grant(const AlKey *key, const AlHolding *holding, TimestampTz at, bool is_new)
{
	if (al_policy_any())
		al_publish_by_policy(key, holding, at, is_new);
}

#endif							/* AL_LEASE_PUBLISH_H */
