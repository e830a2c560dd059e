/*
 * terms.h
 *		The terms of a request, according to policies and settings.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_LEASE_TERMS_H
#define AL_LEASE_TERMS_H

#include "atomic_lock.h"
#include "lease/state.h"

extern bool al_terms_is_admitted(const AlKey *key);
extern bool al_terms_may_force(const AlKey *key);
extern void al_terms_admit(const AlKey *key);
extern void al_terms_of(const AlKey *key, AlAcquire *request, AlTerms *terms);
extern void al_terms_of_set(const AlKey *key, AlAcquire *request, AlTerms *terms);
extern void al_terms_set_wait(const AlKey *keys, int count, AlAcquire *request);
extern int64 al_terms_new_ttl(const AlKey *key, int64 ttl);
extern void al_terms_check_ttl(const AlKey *key, int64 ttl);
extern void al_terms_check_all(int64 ttl);
extern int64 al_terms_cap(const AlKey *key, int64 ttl);

#endif							/* AL_LEASE_TERMS_H */
