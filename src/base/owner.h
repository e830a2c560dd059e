/*
 * owner.h
 *		Owners, which prove a holding.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_BASE_OWNER_H
#define AL_BASE_OWNER_H

#include "storage/block.h"

#include "atomic_lock.h"

/* Number of blocks that an owner can tell apart; the last value stands for the index */
#define AL_OWNER_BLOCKS		(UINT32_C(1) << 24)
#define AL_OWNER_IN_INDEX	(AL_OWNER_BLOCKS - 1)

extern bool al_owner_equal(AlString a, AlString b);
extern bool al_owner_is_setting(AlString owner);
extern bool al_owner_of_session(AlString *owner);
extern uint64 al_holding_hash(const AlKey *key, const AlOwner *owner);
extern int64 al_owner_index_hash(AlString owner, AlString key);
extern int64 al_owner_first_hash(AlString owner);
extern void al_owner_init(AlOwner *owner, AlString name);
extern void al_owner_generate(AlOwner *owner, BlockNumber block);
extern bool al_owner_read_block(AlString owner, uint32 *block_bits);
extern bool al_owner_names_block(const AlOwner *owner, BlockNumber block);

#endif							/* AL_BASE_OWNER_H */
