/*
 * path.h
 *		Acquiring a key with the folders above it; releasing the key, and those of the
 *		folders that the owner no longer needs.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_LEASE_PATH_H
#define AL_LEASE_PATH_H

#include "utils/relcache.h"

#include "atomic_lock.h"
#include "lease/state.h"

extern void al_lease_path_requests(const AlKey *keys, int count, AlAcquire *requests,
								   bool *is_shared);
extern int al_lease_release_path(Relation *rel, const AlKey *keys, int count, bool is_folder,
								 AlAcquire *convert, AlResult *result, int64 *released);

#endif							/* AL_LEASE_PATH_H */
