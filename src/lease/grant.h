/*
 * grant.h
 *		Writing the grant of an attempt.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_LEASE_GRANT_H
#define AL_LEASE_GRANT_H

#include "lease/attempt.h"

extern bool al_grant(Relation rel, AlAttempt *attempt);

#endif							/* AL_LEASE_GRANT_H */
