/*
 * extend.h
 *		Extending a lease.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_LEASE_EXTEND_H
#define AL_LEASE_EXTEND_H

#include "atomic_lock.h"
#include "claim/holding.h"
#include "lease/state.h"

extern void al_lease_extend(Relation rel, const AlKey *key, const AlOwner *owner,
							const AlHolding *seen, int64 ttl, AlResult *result);

#endif							/* AL_LEASE_EXTEND_H */
