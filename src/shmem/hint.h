/*
 * hint.h
 *		Where the row of a key was last seen.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_SHMEM_HINT_H
#define AL_SHMEM_HINT_H

#include "storage/itemptr.h"

#include "shmem/shmem.h"

extern const AlShmemPart al_hint_part;

extern bool al_hint_get(uint64 key_hash, int32 slot, ItemPointer tid);
extern void al_hint_set(uint64 key_hash, int32 slot, ItemPointer tid);

#endif							/* AL_SHMEM_HINT_H */
