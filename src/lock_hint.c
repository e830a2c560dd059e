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
 * where that is a visible version of a row with the key and slot, of which there
 * is only one.  So hints need no locks, may be lost, and may be those of another
 * key or database.  A hint is one atomic word: a tag of 16 bits of the hash of
 * key, slot and database; the block in 32; a bit that says that slot 0 seemed
 * to be the only row of its key, which saves looking for others before the key
 * is claimed, not after; and the offset in 15.
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

#define HINT_TAG(hash)	((hash) >> 48 << 48)
#define HINT_ALONE		UINT64CONST(0x8000)
#define HINT_OFFSET		UINT64CONST(0x7fff)

StaticAssertDecl(MaxOffsetNumber <= HINT_OFFSET, "an offset must leave a bit free");

static uint64
hash_of(const AlKey *key, int32 slot)
{
	return hash_combine64(key->hash, murmurhash32(MyDatabaseId ^ murmurhash32(slot)));
}

/* NULL: there are no hints yet */
static pg_atomic_uint64 *
place_of(uint64 hash)
{
	pg_atomic_uint64 *hints = al_hints();

	return hints ? &hints[hash % AL_HINTS] : NULL;
}

/*
 * Where the row in a slot of a key may be, and whether it seemed to be the only
 * one of the key; false where nobody has said.
 */
bool
al_hint_get(const AlKey *key, int32 slot, ItemPointer tid, bool *is_alone)
{
	uint64		hash = hash_of(key, slot);
	pg_atomic_uint64 *place = place_of(hash);
	uint64		hint = place ? pg_atomic_read_u64(place) : 0;

	if (hint == 0 || HINT_TAG(hint) != HINT_TAG(hash))
		return false;
	ItemPointerSet(tid, (BlockNumber) (hint >> 16), (OffsetNumber) (hint & HINT_OFFSET));
	*is_alone = (hint & HINT_ALONE) != 0;
	return true;
}

/* The current row in a slot of a key was seen here */
void
al_hint_set(const AlKey *key, int32 slot, ItemPointer tid)
{
	uint64		hash = hash_of(key, slot);
	pg_atomic_uint64 *place = place_of(hash);
	uint64		old = place ? pg_atomic_read_u64(place) : 0;
	uint64		hint = HINT_TAG(hash) |
		(uint64) ItemPointerGetBlockNumber(tid) << 16 |
		ItemPointerGetOffsetNumber(tid);

	if (HINT_TAG(old) == HINT_TAG(hash))
		hint |= old & HINT_ALONE;
	/* Not to write where nothing changes keeps the cache line shared. */
	if (place && old != hint)
		pg_atomic_write_u64(place, hint);
}

/* Are there rows of a key in other slots than 0? */
void
al_hint_set_alone(const AlKey *key, bool is_alone)
{
	uint64		hash = hash_of(key, 0);
	pg_atomic_uint64 *place = place_of(hash);
	uint64		old = place ? pg_atomic_read_u64(place) : 0;
	uint64		hint = is_alone ? old | HINT_ALONE : old & ~HINT_ALONE;

	if (old != hint && HINT_TAG(old) == HINT_TAG(hash))
		pg_atomic_compare_exchange_u64(place, &old, hint);
}
