/*
 * held.h
 *		Holdings with the lifetime of a transaction.
 */
#ifndef AL_CLAIM_HELD_H
#define AL_CLAIM_HELD_H

#include "nodes/pg_list.h"

#include "atomic_lock.h"
#include "claim/holding.h"
#include "shmem/shmem.h"

extern const AlShmemPart al_held_part;

extern void al_held_add(const AlKey *key, const AlOwner *owner,
						const AlHolding *holding);
extern void al_held_change(const AlHolding *holding, const AlOwner *owner);
extern void al_held_end(const AlHolding *holding, bool forced);
extern List *al_held_mine(const AlKey *key);
extern const AlHolding *al_held_ended(const AlKey *key);
extern int al_held_count(void);
extern List *al_held_by_others(const AlKey *key);
extern AlHolding *al_held_elsewhere(const AlKey *key, const AlOwner *owner, bool *is_in_use);
extern List *al_held_shown(void);
extern void al_held_abort(int level);
extern void al_held_commit(int level);

#endif							/* AL_CLAIM_HELD_H */
