/*
 * enqueue.h
 *		Taking and giving up a ticket for a key.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_LEASE_ENQUEUE_H
#define AL_LEASE_ENQUEUE_H

#include "utils/relcache.h"

#include "atomic_lock.h"
#include "lease/state.h"
#include "table/tickets.h"

extern void al_lease_enqueue(Relation *rel, const AlKey *key, AlAcquire *request, int64 offer,
							 int64 keep, AlResult *result, AlTicket *ticket, int *position);
extern bool al_lease_leave(const AlKey *key, const AlOwner *owner);

#endif							/* AL_LEASE_ENQUEUE_H */
