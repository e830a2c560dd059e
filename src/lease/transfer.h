/*
 * transfer.h
 *		Transferring a holding to another owner.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_LEASE_TRANSFER_H
#define AL_LEASE_TRANSFER_H

#include "atomic_lock.h"
#include "lease/state.h"

extern void al_lease_transfer(Relation rel, const AlKey *key, const AlOwner *owner,
							  const AlOwner *new_owner, text *holder, Oid role,
							  int64 ttl, AlResult *result);

#endif							/* AL_LEASE_TRANSFER_H */
