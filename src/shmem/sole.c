/*-------------------------------------------------------------------------
 *
 * sole.c
 *		Keys that have no row but the one in slot 0.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: an exclusive acquire of such a key need not look for shared holdings.  Unlike a hint, an
 * entry is believed.  A transaction enters a key under its exclusive claim if the index has
 * nothing else for the key: no row, not even a dead one that a rollback could bring back.  So it
 * enters nothing after it has created or emptied the table.  A transaction clears the entry under
 * its shared claim, before it makes a shared row.  The two claims exclude each other.
 *
 * Keys with equal hashes share claims, but not entries: the hash gives the cell, and the entry is
 * the check (base/hash.c).  Entries may be lost at any time.
 *
 * Without an entry, the look before the claim suffices if no index entry was made since, also for
 * a key without any row.  So each transaction counts the index entries that it makes, by the hash
 * of the key, while it has the claim.  Another transaction that can claim the key then finds the
 * entry counted, or its look has seen the entry.
 *
 * All sessions must agree, so nothing is known without shared memory, or before a session has
 * attached to it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"

#include "atomic_lock.h"
#include "shmem/shmem.h"
#include "shmem/sole.h"

#define CELLS		(256 * 1024)
#define COUNTERS	1024		/* of index entries */

static pg_atomic_uint64 *entries = NULL;

static void
init_sole(void *memory)
{
	al_shmem_init_words(memory, CELLS + COUNTERS);
}

const AlShmemPart al_sole_part = {(CELLS + COUNTERS) * sizeof(pg_atomic_uint64), 0, init_sole, (void **) &entries};

/* The entry that stands for a key, and its cell; they exist. */
static uint64
entry_of(const AlKey *key, pg_atomic_uint64 **cell)
{
	Assert(entries != NULL);
	*cell = &entries[hash_combine64(key->hash, murmurhash32(MyDatabaseId)) % CELLS];
	return hash_combine64(key->check, MyDatabaseId);
}

/* Is it known that a key has no row but the one in slot 0? */
bool
al_sole_is_known(const AlKey *key)
{
	pg_atomic_uint64 *cell;
	uint64		entry;

	if (entries == NULL)
		return false;
	entry = entry_of(key, &cell);
	return entry != 0 && pg_atomic_read_u64(cell) == entry;
}

/* Enter the key, under AL_CLAIM_TAKE; or clear its cell, under AL_CLAIM_SHARE at least */
void
al_sole_set(const AlKey *key, bool is_sole)
{
	pg_atomic_uint64 *cell;
	uint64		entry;

	if (entries == NULL)
		return;
	entry = entry_of(key, &cell);
	if (!is_sole)
		entry = 0;
	if (pg_atomic_read_u64(cell) != entry)
		pg_atomic_write_u64(cell, entry);
}

/* 1 + the number of index entries made for this key and others; 0: not known */
uint64
al_sole_entries(const AlKey *key)
{
	if (entries == NULL)
		return 0;
	return pg_atomic_read_u64(&entries[CELLS + key->hash % COUNTERS]) + 1;
}

/* Was no index entry made for this key since al_sole_entries() returned "since"? */
bool
al_sole_is_unchanged(const AlKey *key, uint64 since)
{
	return since != 0 && since == al_sole_entries(key);
}

/* Count an index entry that the caller has made; it still has the claim on the key. */
void
al_sole_entry_made(const AlKey *key)
{
	if (entries)
		(void) pg_atomic_fetch_add_u64(&entries[CELLS + key->hash % COUNTERS], 1);
}
