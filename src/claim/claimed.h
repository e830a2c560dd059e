/*
 * claimed.h
 *		The keys that the current transaction has claimed.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_CLAIM_CLAIMED_H
#define AL_CLAIM_CLAIMED_H

#include "storage/itemptr.h"

#include "atomic_lock.h"

/* A holding that the transaction has pinned (lease/pin.c) */
typedef struct AlPin
{
	struct AlPin *next;			/* of the same key, or one with its hash */
	int64		fencing_token;
	int32		slot;
	uint64		seen;			/* al_claimed_changes() at the last look */
	AlString	key;
	AlString	owner;
} AlPin;

extern void al_claimed_forget(void);
extern void al_claimed_released(bool committed);
extern void al_claimed_subabort(int level);
extern bool al_claimed_subreleased(int level);
extern void al_claimed_subcommit(int level);
extern void al_claimed_lift_limit(void);
extern void al_claimed_reserve(uint64 hash);
extern void al_claimed_add(uint64 hash, bool is_pin);
extern void al_claimed_remove(uint64 hash, bool is_pin);
extern bool al_claimed_is_changing(uint64 hash);
extern bool al_claimed_has(uint64 hash);
extern void al_claimed_freed(uint64 hash, int holdings);
extern bool al_claimed_has_freed(uint64 hash);
extern int al_claimed_count(void);
extern void al_claimed_granted(const AlKey *key, const AlOwner *owner, TimestampTz held_until,
							   bool is_shared);
extern AlPin *al_claimed_pins(uint64 hash);
extern void al_claimed_pin(uint64 hash, AlPin *pin, TimestampTz held_until);
extern uint64 al_claimed_changes(void);
extern void al_claimed_changed(void);
extern void al_claimed_written(uint64 hash, int32 slot, ItemPointer row);

#endif							/* AL_CLAIM_CLAIMED_H */
