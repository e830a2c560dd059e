/*-------------------------------------------------------------------------
 *
 * hint.c
 *		Where the row of a key was last seen.
 *
 * Model: as long as any snapshot of the database is old, for example a waiter's,
 * no version of a row that has died since can be removed.  Then the index finds
 * the current row of a busy key behind all of its former versions, at a cost that
 * grows with each update.  So whoever finds a row leaves a hint where it was.
 * Whoever wrote a row leaves one when that is committed.  The next look begins
 * there and follows the chain of updates.
 *
 * A hint is believed in nothing: table/app_lock.c takes what it leads to only
 * where that is a visible version of a row with the key and slot, of which there
 * is only one.  So hints need no locks, may be lost, and may be those of another
 * key or database.  A hint is a tag of 16 bits of the hash of key, slot and
 * database, and the place of the row version in 48 bits, in one atomic word.
 *
 * Locking: none.
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
#define LOCAL_HINTS	8192		/* of a session, where there is no shared memory */

static pg_atomic_uint64 *hints = NULL;
static uint32 hint_count = HINTS;

static Size
hints_size(void)
{
	return HINTS * sizeof(pg_atomic_uint64);
}

static void
init_hints(void *memory)
{
	al_shmem_init_words(memory, HINTS);
}

static void
attach_hints(void *memory)
{
	hints = memory;
}

const AlShmemPart al_hint_part = {hints_size, init_hints, attach_hints};

static uint64
hash_of(uint64 key_hash, int32 slot)
{
	return hash_combine64(key_hash, murmurhash32(MyDatabaseId ^ murmurhash32(slot)));
}

/*
 * The place of a hint; NULL where this session has not attached to shared memory
 * yet: a session that only looks at locks must not fail for lack of memory.
 * Raises 53200 where there is no memory for hints of its own, the first time.
 */
static pg_atomic_uint64 *
place_of(uint64 hash)
{
	if (hints == NULL && !AL_HAS_DSM_REGISTRY)
	{
		hints = MemoryContextAlloc(TopMemoryContext, LOCAL_HINTS * sizeof(pg_atomic_uint64));
		hint_count = LOCAL_HINTS;
		al_shmem_init_words(hints, LOCAL_HINTS);
	}
	return hints ? &hints[hash % hint_count] : NULL;
}

/*
 * Where the row in a slot of a key, by the hash of the key, may be; false where
 * nobody has said.
 */
bool
al_hint_get(uint64 key_hash, int32 slot, ItemPointer tid)
{
	uint64		hash = hash_of(key_hash, slot);
	pg_atomic_uint64 *place = place_of(hash);
	uint64		hint = place ? pg_atomic_read_u64(place) : 0;

	if (hint == 0 || hint >> 48 != hash >> 48)
		return false;
	ItemPointerSet(tid, (BlockNumber) (hint >> 16), (OffsetNumber) hint);
	return true;
}

/*
 * Say that the current row in a slot of a key is here.  Raises nothing where the
 * session has looked for the key before.
 */
void
al_hint_set(uint64 key_hash, int32 slot, ItemPointer tid)
{
	uint64		hash = hash_of(key_hash, slot);
	uint64		hint = (hash >> 48) << 48 |
		(uint64) ItemPointerGetBlockNumber(tid) << 16 |
		ItemPointerGetOffsetNumber(tid);
	pg_atomic_uint64 *place = place_of(hash);

	/* Not writing where nothing changes keeps the cache line shared. */
	if (place && pg_atomic_read_u64(place) != hint)
		pg_atomic_write_u64(place, hint);
}
