/*
 * policies.h
 *		Reading and writing policies.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_TABLE_POLICIES_H
#define AL_TABLE_POLICIES_H

#include "utils/palloc.h"

#include "atomic_lock.h"
#include "base/policy.h"

extern AlPolicy *al_policies_read(MemoryContext context, int *count);
extern bool al_policies_put(AlString prefix, const AlPolicy *policy);
extern void al_policies_changed(void);

#endif							/* AL_TABLE_POLICIES_H */
