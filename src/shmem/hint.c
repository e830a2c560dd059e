/*-------------------------------------------------------------------------
 *
 * hint.c
 *		Where the row of a key was last seen.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: while an old snapshot exists, such as a waiter's, the index finds the current row of a
 * busy key behind all of its former versions.  So a lookup leaves a hint to the location of the
 * row, and a write leaves one after the commit.  The next lookup begins there and follows the
 * chain of updates.
 *
 * Hints are not believed.  table/app_lock.c accepts only a visible row version with the key and
 * slot, and there is only one.  So hints need no locks, may be lost, and may belong to another
 * key or database.  A hint is one atomic word: 16 bits of the hash of key, slot and database, and
 * 48 bits for the location of the row version.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "shmem/hint.h"
#include "shmem/shmem.h"

#define HINTS		(256 * 1024)
#define LOCAL_HINTS	8192		/* for each session without shared memory */

static pg_atomic_uint64 *hints = NULL;
static uint32 hint_count = HINTS;

static void
init_hints(void *memory)
{
	al_shmem_init_words(memory, HINTS);
}

const AlShmemPart al_hint_part = {HINTS * sizeof(pg_atomic_uint64), 0, init_hints, (void **) &hints};

static uint64
hint_hash(uint64 key_hash, int32 slot)
{
	return hash_combine64(key_hash, murmurhash32(MyDatabaseId ^ murmurhash32(slot)));
}

/*
 * The cell of a hint.  NULL in a session that could attach to shared memory and has not: showing
 * locks must not fail for that.  Without shared memory, the first call may raise 53200.
 */
static pg_atomic_uint64 *
cell_of(uint64 hash)
{
	if (hints == NULL && !AL_HAS_DSM_REGISTRY)
	{
		hints = MemoryContextAlloc(TopMemoryContext, LOCAL_HINTS * sizeof(pg_atomic_uint64));
		hint_count = LOCAL_HINTS;
		al_shmem_init_words(hints, LOCAL_HINTS);
	}
	return hints ? &hints[hash % hint_count] : NULL;
}

/* Set *tid to where the row in a slot of a key may be; false if there is no hint. */
bool
al_hint_get(uint64 key_hash, int32 slot, ItemPointer tid)
{
	uint64		hash = hint_hash(key_hash, slot);
	pg_atomic_uint64 *cell = cell_of(hash);
	uint64		hint = cell ? pg_atomic_read_u64(cell) : 0;

	if (hint == 0 || hint >> 48 != hash >> 48)
		return false;
	ItemPointerSet(tid, (BlockNumber) (hint >> 16), (OffsetNumber) hint);
	return true;
}

/* Note where the current row in a slot of a key is.  Raises nothing after an al_hint_get(). */
void
al_hint_set(uint64 key_hash, int32 slot, ItemPointer tid)
{
	uint64		hash = hint_hash(key_hash, slot);
	uint64		hint = (hash >> 48) << 48 |
		(uint64) ItemPointerGetBlockNumber(tid) << 16 |
		ItemPointerGetOffsetNumber(tid);
	pg_atomic_uint64 *cell = cell_of(hash);

	Assert(ItemPointerIsValid(tid));
	/* A write that changes nothing would take the cache line from other backends. */
	if (cell && pg_atomic_read_u64(cell) != hint)
		pg_atomic_write_u64(cell, hint);
}
