/*
 * contention.h
 *		The most contended keys.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_SHMEM_CONTENTION_H
#define AL_SHMEM_CONTENTION_H

#include "atomic_lock.h"
#include "shmem/shmem.h"

typedef struct AlContention
{
	uint64		refusals;
	uint64		waits;
	uint64		waited;			/* microseconds in total */
	uint64		longest;		/* microseconds */
	TimestampTz last_at;
	int			key_length;
	char		key[AL_MAX_KEY_BYTES];
} AlContention;

extern const AlShmemPart al_contention_part;

extern void al_contention_count(const AlKey *key, TimestampTz at, bool is_wait,
								int64 waited);
extern void al_contention_reset(Oid database);
extern AlContention *al_contention_list(int *count);

#endif							/* AL_SHMEM_CONTENTION_H */
