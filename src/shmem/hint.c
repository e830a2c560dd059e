/*-------------------------------------------------------------------------
 *
 * lock_hint.c
 *		Where the row of a key was last seen, and which keys have only one.
 *
 * Model: as long as any snapshot of the database is old, a waiter's for one,
 * no version of a row that has died since can be removed.  Then the index
 * finds the current row of a busy key behind all of its former versions, at a
 * cost that grows with each update.  So whoever finds a row leaves a hint
 * where it was, and whoever wrote one, when that is committed; who looks next
 * begins there and goes on along the chain of updates.
 *
 * A hint is believed in nothing: lock_table.c takes what it leads to only
 * where that is a visible version of a row with the key and slot, of which there
 * is only one.  So hints need no locks, may be lost, and may be those of another
 * key or database.  A hint is a tag of 16 bits of the hash of key, slot and
 * database, and the place of the row version in 48, in one atomic word.
 *
 * Another table says of which keys there are no rows but that in slot 0, so that
 * who wants a key for itself need not look for those who share it.  This is
 * believed.  It is said by whoever has claimed the key for itself, and has found
 * nothing in the index: no row, not even a dead one that a rollback could
 * bring back.  It is taken back by whoever has claimed the key to share it,
 * before the first such row is made; these two claims exclude each other.
 * Two keys could have one hash, and would share their claims, but not this: an entry
 * is the key's check, which has 64 more bits, in the place that the hash says
 * (lock_hash.c).  Entries may be lost at any time.  Nor is it said in a transaction that has emptied the
 * table, or made it: a rollback would bring back the rows.
 *
 * Where it is not known, one look is enough all the same, before the claim, if
 * the index was given no entry in the meantime.  The same goes for a key of which
 * there is no row at all, not even one that is not committed yet.  Of entries of
 * the index there are counters, by the hash of the key.  Whoever makes one counts
 * it while the claim is still there: it was seen by a look that came later, or
 * else is counted by the time that the key can be claimed.
 *
 * Locking: none of its own.
 *
 * IDENTIFICATION
 *		src/shmem/hint.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "lock_table.h"
#include "lock_wait.h"
#include "miscadmin.h"

static uint64
hash_of(uint64 key_hash, int32 slot)
{
	return hash_combine64(key_hash, murmurhash32(MyDatabaseId ^ murmurhash32(slot)));
}

/* NULL: there are no hints yet */
static pg_atomic_uint64 *
place_of(uint64 hash)
{
	uint32		count;
	pg_atomic_uint64 *hints = al_hints(&count);

	return hints ? &hints[hash % count] : NULL;
}

/*
 * Where the row in a slot of a key, by the hash of the key, may be; false where
 * nobody has said
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
 * The current row in a slot of a key is here.  Raises nothing where the key was
 * looked for before in this session.
 */
void
al_hint_set(uint64 key_hash, int32 slot, ItemPointer tid)
{
	uint64		hash = hash_of(key_hash, slot);
	uint64		hint = (hash >> 48) << 48 |
		(uint64) ItemPointerGetBlockNumber(tid) << 16 |
		ItemPointerGetOffsetNumber(tid);
	pg_atomic_uint64 *place = place_of(hash);

	/* Not to write where nothing changes keeps the cache line shared. */
	if (place && pg_atomic_read_u64(place) != hint)
		pg_atomic_write_u64(place, hint);
}

/* What a key is entered as, in which place */
static uint64
alone_entry(const AlKey *key, pg_atomic_uint64 **place)
{
	uint64		hash = hash_of(key->hash, AL_SLOT_EXCLUSIVE);

	*place = &al_alone()[hash % AL_HINTS];
	return hash_combine64(key->check, MyDatabaseId);
}

/* Is it known that a key has no row but that in slot 0? */
bool
al_known_alone(const AlKey *key)
{
	pg_atomic_uint64 *place;
	uint64		entry;

	if (al_alone() == NULL)
		return false;
	entry = alone_entry(key, &place);
	return entry != 0 && pg_atomic_read_u64(place) == entry;
}

/*
 * Say so, or take it back.  The key is claimed: AL_CLAIM_TAKE to say it,
 * AL_CLAIM_SHARE at least to take it back, whichever key has the place.
 */
void
al_set_alone(const AlKey *key, bool is_alone)
{
	pg_atomic_uint64 *place;
	uint64		entry;

	if (al_alone() == NULL)
		return;
	entry = alone_entry(key, &place);
	if (!is_alone)
		entry = 0;
	if (pg_atomic_read_u64(place) != entry)
		pg_atomic_write_u64(place, entry);
}

/* How many entries the index was given for a key, and others; 0: not known */
uint64
al_entries_made(const AlKey *key)
{
	if (al_entry_counters() == NULL)
		return 0;
	return pg_atomic_read_u64(&al_entry_counters()[key->hash % AL_ENTRY_COUNTERS]) + 1;
}

/* One more was made, under a claim */
void
al_entry_made(const AlKey *key)
{
	if (al_entry_counters())
		(void) pg_atomic_fetch_add_u64(&al_entry_counters()[key->hash % AL_ENTRY_COUNTERS], 1);
}
