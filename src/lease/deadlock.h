/*
 * deadlock.h
 *		Deadlocks among waiters.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_LEASE_DEADLOCK_H
#define AL_LEASE_DEADLOCK_H

extern char *al_deadlock_find(Relation rel);

#endif							/* AL_LEASE_DEADLOCK_H */
