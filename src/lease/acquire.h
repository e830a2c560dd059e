/*
 * acquire.h
 *		Acquire, convert and steal.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_LEASE_ACQUIRE_H
#define AL_LEASE_ACQUIRE_H

#include "atomic_lock.h"
#include "lease/attempt.h"
#include "lease/state.h"

extern AlAttempt *al_attempts_at(const AlKey *keys, int count, AlAcquire *requests,
								 const bool *is_shared, AlResult *results);
extern int al_attempt_all(Relation *rel, AlAttempt *attempts, int count);
extern bool al_grant_all(Relation rel, AlAttempt *attempts, int count);
extern void al_lease_acquire(Relation *rel, const AlKey *key, AlAcquire *request,
							 AlResult *result);
extern int al_lease_acquire_all(Relation *rel, const AlKey *keys, int count,
								AlAcquire *requests, const bool *is_shared,
								AlResult *results);
extern List *al_lease_steal(Relation rel, const AlKey *key, AlAcquire *request,
							const text *reason, AlResult *result);
extern List *al_lease_steal_grant(Relation rel, const AlKey *key, AlAcquire *request,
								  int64 token, const text *reason, AlResult *result);

#endif							/* AL_LEASE_ACQUIRE_H */
