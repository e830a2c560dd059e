/*-------------------------------------------------------------------------
 *
 * sole.c
 *		Which keys have no row but the one in slot 0.
 *
 * Model: whoever wants such a key for itself need not look for those who share
 * it.  Unlike a hint (hint.c), this is believed.  It is said by whoever has
 * claimed the key for itself and has found nothing else in the index: no row, not
 * even a dead one that a rollback could bring back.  It is taken back by whoever
 * has claimed the key to share it, before the first such row is made.  These two
 * claims exclude each other.  Two keys with one hash would share their claims, but
 * not this: an entry is the key's check, which has 64 more bits, in the place that
 * the hash says (base/hash.c).  Entries may be lost at any time.  Nothing is said in a
 * transaction that has emptied or created the table: a rollback would bring back
 * the rows.
 *
 * Where it is not known, one look before the claim is enough all the same, if the
 * index was given no entry in the meantime.  The same goes for a key of which there
 * is no row at all, not even one that is not committed yet.  So there are counters
 * of index entries, by the hash of the key.  Whoever makes an entry counts it while
 * the claim is still there: a later look has seen it, or else it is counted by the
 * time that the key can be claimed.
 *
 * All of this must be the same for all sessions, so nothing is known where there is
 * no shared memory, or not yet.
 *
 * Locking: none of its own.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"

#include "atomic_lock.h"
#include "shmem/shmem.h"
#include "shmem/sole.h"

#define PLACES		(256 * 1024)
#define COUNTERS	1024		/* of entries of the index */

static pg_atomic_uint64 *entries = NULL;
static pg_atomic_uint64 *counters = NULL;

static Size
sole_size(void)
{
	return (PLACES + COUNTERS) * sizeof(pg_atomic_uint64);
}

static void
init_sole(void *memory)
{
	al_shmem_init_words(memory, PLACES + COUNTERS);
}

static void
attach_sole(void *memory)
{
	entries = memory;
	counters = entries + PLACES;
}

const AlShmemPart al_sole_part = {sole_size, init_sole, attach_sole};

/* What a key is entered as, and in which place */
static uint64
entry_of(const AlKey *key, pg_atomic_uint64 **place)
{
	*place = &entries[hash_combine64(key->hash, murmurhash32(MyDatabaseId)) % PLACES];
	return hash_combine64(key->check, MyDatabaseId);
}

/* Is it known that a key has no row but the one in slot 0? */
bool
al_sole_is_known(const AlKey *key)
{
	pg_atomic_uint64 *place;
	uint64		entry;

	if (entries == NULL)
		return false;
	entry = entry_of(key, &place);
	return entry != 0 && pg_atomic_read_u64(place) == entry;
}

/*
 * Say so, or take it back.  The key is claimed: by AL_CLAIM_TAKE to say it, by
 * AL_CLAIM_SHARE at least to take it back, whichever key has the place.
 */
void
al_sole_set(const AlKey *key, bool is_sole)
{
	pg_atomic_uint64 *place;
	uint64		entry;

	if (entries == NULL)
		return;
	entry = entry_of(key, &place);
	if (!is_sole)
		entry = 0;
	if (pg_atomic_read_u64(place) != entry)
		pg_atomic_write_u64(place, entry);
}

/* How many entries the index was given for a key, and for others; 0: not known */
uint64
al_sole_entries(const AlKey *key)
{
	if (counters == NULL)
		return 0;
	return pg_atomic_read_u64(&counters[key->hash % COUNTERS]) + 1;
}

/* One more was made, under a claim. */
void
al_sole_entry_made(const AlKey *key)
{
	if (counters)
		(void) pg_atomic_fetch_add_u64(&counters[key->hash % COUNTERS], 1);
}
