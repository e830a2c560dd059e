/*-------------------------------------------------------------------------
 *
 * lock_hint.c
 *		Where the row of a key was last seen.
 *
 * Model: as long as any snapshot of the database is old, a waiter's for one,
 * no version of a row that has died since can be removed.  Then the index
 * finds the current row of a busy key behind all of its former versions, at a
 * cost that grows with each update.  So whoever finds a row leaves a hint
 * where it was, and who looks next begins there and goes on along the chain of
 * updates.
 *
 * A hint is believed in nothing: lock_table.c takes what it leads to only
 * where that is a visible version of a row with the key, of which there is
 * only one.  So hints need no locks, may be lost, and may be those of another
 * key or database.  A hint is a tag of 16 bits of the hash of key and database,
 * and the place of the row version in 48, in one atomic word.
 *
 * Locking: none.
 *
 * IDENTIFICATION
 *		src/lock_hint.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "lock_wait.h"
#include "miscadmin.h"

static uint64
hash_with_database(const AlKey *key)
{
	return hash_combine64(key->hash, murmurhash32(MyDatabaseId));
}

/* NULL: there are no hints yet */
static pg_atomic_uint64 *
place_of(uint64 hash)
{
	pg_atomic_uint64 *hints = al_hints();

	return hints ? &hints[hash % AL_HINTS] : NULL;
}

/* Where the row of a key may be; false where nobody has said */
bool
al_hint_get(const AlKey *key, ItemPointer tid)
{
	uint64		hash = hash_with_database(key);
	pg_atomic_uint64 *place = place_of(hash);
	uint64		hint = place ? pg_atomic_read_u64(place) : 0;

	if (hint == 0 || hint >> 48 != hash >> 48)
		return false;
	ItemPointerSet(tid, (BlockNumber) (hint >> 16), (OffsetNumber) hint);
	return true;
}

/* The current row of a key was seen here */
void
al_hint_set(const AlKey *key, ItemPointer tid)
{
	uint64		hash = hash_with_database(key);
	uint64		hint = (hash >> 48) << 48 |
		(uint64) ItemPointerGetBlockNumber(tid) << 16 |
		ItemPointerGetOffsetNumber(tid);
	pg_atomic_uint64 *place = place_of(hash);

	/* Not to write where nothing changes keeps the cache line shared. */
	if (place && pg_atomic_read_u64(place) != hint)
		pg_atomic_write_u64(place, hint);
}
