/*
 * claim.h
 *		Claims: locks on keys that an unfinished transaction has.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_CLAIM_CLAIM_H
#define AL_CLAIM_CLAIM_H

#include "nodes/pg_list.h"
#include "storage/lock.h"

#include "atomic_lock.h"

/* The purpose of a claim on a key; claim.c has the lock mode of each */
typedef enum AlClaimMode
{
	AL_CLAIM_PIN,				/* to rely on a holding */
	AL_CLAIM_SHARE,				/* to begin or end a shared holding */
	AL_CLAIM_SHARE_EXTEND,		/* to extend a shared holding */
	AL_CLAIM_EXTEND,			/* to extend the exclusive holding */
	AL_CLAIM_TAKE				/* for anything else */
} AlClaimMode;

typedef struct AlClaim
{
	uint64		hash;			/* of the key; 0: no claim */
	uint64		holding;		/* of the shared holding, or 0 */
	AlClaimMode mode;
	bool		is_pin;			/* it is for a pin, even if the mode is stronger */
	bool		first;			/* the transaction had no claim on the key before */
} AlClaim;

extern void al_claim(AlClaim *claim, const AlKey *key, const AlOwner *owner,
					 AlClaimMode mode);
extern bool al_claim_try(AlClaim *claim, const AlKey *key, const AlOwner *owner,
						 AlClaimMode mode);
extern void al_claim_holding(const AlKey *key, const AlOwner *owner);
extern bool al_claim_may_share(const AlClaim *claim);
extern void al_claim_drop(const AlClaim *claim);
extern void al_claim_transaction(const AlKey *key, bool is_shared, Oid app_lock);
extern void al_claim_seats(const AlKey *key);
extern void al_claim_seats_end(const AlKey *key);
extern void al_claim_quota(uint64 hash, LOCKMODE mode);
extern void al_claim_quota_end(uint64 hash);
extern int al_claim_count_quota(uint64 hash);
extern void al_claim_ticket(const AlKey *key, const AlOwner *owner);
extern void al_claim_ticket_try(const AlKey *key, const AlOwner *owner);
extern void al_claim_ticket_end(const AlKey *key, const AlOwner *owner);
extern bool al_claim_upgrade(const AlKey *key);
extern void al_claim_upgrade_end(const AlKey *key);
extern List *al_claim_transactions(uint64 hash, bool is_exclusive);
extern int al_claim_count_transactions(uint64 hash);
extern bool al_claim_is_pending(const AlKey *key, const AlOwner *owner, int *pid);
extern VirtualTransactionId *al_claim_others(uint64 hash);
extern bool al_claim_has_others(uint64 hash);
extern void al_claim_await_others(uint64 hash);
extern bool al_claim_is_mine_alone(uint64 hash);
extern bool al_claim_has_holding(const AlKey *key, const AlOwner *owner, int *pid);
extern bool al_claim_is_extended(const AlKey *key, const AlOwner *owner,
								 bool is_shared);
extern List *al_claim_blockers(uint64 hash, bool prevents_sharing);
extern int al_claim_blocker(const AlClaim *claim);
extern bool al_claim_is_ending(const AlClaim *claim);

#endif							/* AL_CLAIM_CLAIM_H */
