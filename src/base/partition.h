/*
 * partition.h
 *		Which server a key belongs to.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_BASE_PARTITION_H
#define AL_BASE_PARTITION_H

#include "atomic_lock.h"
#include "base/settings.h"

extern int	al_partition_of(AlString key, int partitions);
extern void al_raise_partition(AlString key, bool may_see);

/* Does a key belong to another server? */
static inline bool
al_is_elsewhere(AlString key)
{
	return unlikely(al_partitions > 0) && al_partition_of(key, al_partitions) != al_partition;
}

#endif							/* AL_BASE_PARTITION_H */
