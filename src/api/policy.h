/*
 * policy.h
 *		The policies of a key, in words.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_API_POLICY_H
#define AL_API_POLICY_H

#include "lib/stringinfo.h"

#include "atomic_lock.h"

extern void al_policies_explain(StringInfo text, AlString key);

#endif							/* AL_API_POLICY_H */
