/*
 * release.h
 *		Ending holdings.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_LEASE_RELEASE_H
#define AL_LEASE_RELEASE_H

#include "atomic_lock.h"
#include "claim/claim.h"
#include "claim/holding.h"
#include "lease/state.h"
#include "table/history.h"

extern void al_end_row(Relation rel, const AlKey *key, AlHolding *holding,
					   TimestampTz now, bool forget);
extern void al_forget_released(Relation rel, const AlKey *key, const AlOwner *owner,
							   AlRows *rows, bool spare_exclusive, bool spare_share);
extern void al_note_expired(const AlKey *key, const AlHolding *row);
extern void al_end_mine(const AlKey *key, const AlState *state, const AlOwner *owner,
						const AlHolding *but, AlEndedBy ended_by);
extern void al_lease_release(Relation rel, const AlKey *key, const AlOwner *owner,
							 const AlHolding *seen, AlResult *result);
extern bool al_lease_claim_soon(Relation rel, const AlKey *key, const AlOwner *owner,
								AlClaimMode mode, AlClaim *claim, AlResult *result);
extern List *al_lease_end(Relation rel, const AlKey *key, AlClaim *claim, AlEndedBy ended_by,
						  const text *reason, AlResult *result);
extern AlHolding *al_lease_claim_grant(Relation rel, const AlKey *key, int64 token,
									   AlClaim *claim, AlResult *result);
extern AlHolding *al_lease_end_claimed(Relation rel, const AlKey *key, AlHolding *holding,
									   AlEndedBy ended_by, const text *reason,
									   AlResult *result);
extern List *al_lease_end_grant(Relation rel, const AlKey *key, int64 token,
								const text *reason, AlResult *result);

#endif							/* AL_LEASE_RELEASE_H */
