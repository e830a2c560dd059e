/*
 * release.h
 *		Ending holdings.
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
extern void al_note_expired(const AlKey *key, const AlHolding *row);
extern void al_end_mine(const AlKey *key, const AlState *state, const AlOwner *owner,
						const AlHolding *but, AlEndedBy ended_by);
extern void al_lease_release(Relation rel, const AlKey *key, const AlOwner *owner,
							 const AlHolding *seen, AlResult *result);
extern List *al_lease_end(Relation rel, const AlKey *key, AlClaim *claim, AlEndedBy ended_by,
						  AlResult *result);

#endif							/* AL_LEASE_RELEASE_H */
