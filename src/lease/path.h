/*
 * path.h
 *		Releasing a key, and the folders above it that the owner no longer needs.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_LEASE_PATH_H
#define AL_LEASE_PATH_H

#include "utils/relcache.h"

#include "atomic_lock.h"
#include "lease/state.h"

extern int al_lease_release_path(Relation *rel, const AlKey *keys, int count, bool is_folder,
								 AlAcquire *convert, AlResult *result, int64 *released);

#endif							/* AL_LEASE_PATH_H */
