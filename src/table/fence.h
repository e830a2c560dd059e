/*
 * fence.h
 *		Fencing tokens, and the secret of the hashes.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_TABLE_FENCE_H
#define AL_TABLE_FENCE_H

#include "base/hash.h"

extern int64 al_fence_draw(int count);
extern bool al_fence_secret(AlHash *secret);

#endif							/* AL_TABLE_FENCE_H */
