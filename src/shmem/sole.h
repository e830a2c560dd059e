/*
 * sole.h
 *		Keys that have no row but the one in slot 0.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_SHMEM_SOLE_H
#define AL_SHMEM_SOLE_H

#include "atomic_lock.h"
#include "shmem/shmem.h"

/* What a look at the index of app_lock has found out about the rows of a key */
typedef enum AlSole
{
	AL_SOLE_UNKNOWN,			/* the key may have rows of shared holdings */
	AL_SOLE_ROW,				/* it has none but in slot 0 */
	AL_SOLE_NONE				/* it has none, not even a dead or unfinished one */
} AlSole;

extern const AlShmemPart al_sole_part;

extern bool al_sole_is_known(const AlKey *key);
extern void al_sole_set(const AlKey *key, bool is_sole);
extern uint64 al_sole_entries(const AlKey *key);
extern bool al_sole_is_unchanged(const AlKey *key, uint64 since);
extern void al_sole_entry_made(const AlKey *key);

#endif							/* AL_SHMEM_SOLE_H */
