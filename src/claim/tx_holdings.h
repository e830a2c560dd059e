/*
 * tx_holdings.h
 *		Holdings with the lifetime of a transaction.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_CLAIM_TX_HOLDINGS_H
#define AL_CLAIM_TX_HOLDINGS_H

#include "nodes/pg_list.h"

#include "atomic_lock.h"
#include "claim/holding.h"
#include "shmem/shmem.h"

extern const AlShmemPart al_tx_part;

extern void al_tx_add(const AlKey *key, const AlOwner *owner,
					  const AlHolding *holding);
extern void al_tx_change(const AlHolding *holding, const AlOwner *owner);
extern void al_tx_end(const AlHolding *holding, bool forced);
extern List *al_tx_mine(const AlKey *key);
extern const AlHolding *al_tx_ended(const AlKey *key);
extern int al_tx_count(void);
extern List *al_tx_by_others(const AlKey *key);
extern AlHolding *al_tx_elsewhere(const AlKey *key, const AlOwner *owner, bool *is_in_use);
extern List *al_tx_shown(void);
extern void al_tx_abort(int level);
extern void al_tx_commit(int level);

#endif							/* AL_CLAIM_TX_HOLDINGS_H */
