/*-------------------------------------------------------------------------
 *
 * contention.c
 *		The most contended keys: those most often refused or waited for.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: a key has counts for the current window of five minutes and the one before, so the
 * figures cover five to ten minutes.  A few hundred keys of all databases have entries.  The hash
 * of a key selects a set of eight entries, where a new key replaces the least contended.  So the
 * most contended keys have entries, and lack only what was counted before they got one.
 *
 * Locking rules: counters are atomic.  An entry changes its key or window under the lock of this
 * part.  If that lock is not free, nothing is counted, so a refusal waits for nothing.  A count
 * that meets such a change may go to the other key.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "shmem/contention.h"
#include "shmem/shmem.h"

#define WINDOW	(5 * USECS_PER_MINUTE)

typedef struct Contended
{
	pg_atomic_uint64 tag;		/* hash of key and database; 0: unused */
	pg_atomic_uint64 window;	/* the latest window with a count */
	pg_atomic_uint64 refusals[2];	/* in even and odd windows, as below */
	pg_atomic_uint64 waits[2];
	pg_atomic_uint64 waited[2]; /* microseconds in total */
	pg_atomic_uint64 longest[2];	/* microseconds */
	pg_atomic_uint64 last_at;	/* a TimestampTz */
	Oid			database;		/* the rest is under the lock */
	int			key_length;
	char		key[AL_MAX_KEY_BYTES];
} Contended;

#define SETS	32
#define WAYS	8

typedef struct Memory
{
	LWLock		lock;
	Contended	entries[SETS][WAYS];
} Memory;

static Memory *memory = NULL;	/* until this process attaches */

static void
init_entries(void *address)
{
	Memory	   *new_memory = address;

	al_shmem_init_lock(&new_memory->lock);
	for (int i = 0; i < SETS * WAYS; i++)
	{
		Contended  *entry = &new_memory->entries[0][0] + i;

		al_shmem_init_words(&entry->tag, 1);
		al_shmem_init_words(&entry->window, 1);
		al_shmem_init_words(entry->refusals, 2);
		al_shmem_init_words(entry->waits, 2);
		al_shmem_init_words(entry->waited, 2);
		al_shmem_init_words(entry->longest, 2);
		al_shmem_init_words(&entry->last_at, 1);
	}
}

const AlShmemPart al_contention_part = {sizeof(Memory), 0, init_entries, (void **) &memory};

static uint64
tag_of(const AlKey *key)
{
	return Max(hash_combine64(key->hash, murmurhash32(MyDatabaseId)), 1);
}

static uint64
score(Contended *entry, uint64 window)
{
	uint64		last = pg_atomic_read_u64(&entry->window);
	uint64		sum = 0;

	for (uint64 i = window - 1; i <= window; i++)
	{
		if (i == last || i == last - 1)
			sum += pg_atomic_read_u64(&entry->refusals[i & 1]) +
				pg_atomic_read_u64(&entry->waits[i & 1]);
	}
	return sum;
}

static void
clear(Contended *entry, uint64 window)
{
	int			i = window & 1;

	pg_atomic_write_u64(&entry->refusals[i], 0);
	pg_atomic_write_u64(&entry->waits[i], 0);
	pg_atomic_write_u64(&entry->waited[i], 0);
	pg_atomic_write_u64(&entry->longest[i], 0);
}

/* Another process may have read the clock later, and be in the next window. */
static bool
is_current(uint64 last, uint64 window)
{
	return last == window || last == window + 1;
}

/* Move an entry to the current window.  The lock is held exclusively. */
static void
move_to(Contended *entry, uint64 window)
{
	uint64		last = pg_atomic_read_u64(&entry->window);

	Assert(LWLockHeldByMeInMode(&memory->lock, LW_EXCLUSIVE));
	if (is_current(last, window))
		return;
	clear(entry, window);
	if (last + 1 != window)
		clear(entry, window - 1);
	pg_atomic_write_u64(&entry->window, window);
}

/* The entry of a key, or NULL; without the lock, only one in the current window */
static Contended *
find(uint64 tag, uint64 window, bool is_locked)
{
	Contended  *set = memory->entries[tag % SETS];

	Assert(is_locked == LWLockHeldByMeInMode(&memory->lock, LW_EXCLUSIVE));
	for (int i = 0; i < WAYS; i++)
	{
		if (pg_atomic_read_u64(&set[i].tag) == tag &&
			(is_locked || is_current(pg_atomic_read_u64(&set[i].window), window)))
			return &set[i];
	}
	return NULL;
}

/* Give a key the entry of the least contended.  The lock is held exclusively. */
static Contended *
replace(const AlKey *key, uint64 tag, uint64 window)
{
	Contended  *set = memory->entries[tag % SETS];
	Contended  *least = &set[0];

	Assert(LWLockHeldByMeInMode(&memory->lock, LW_EXCLUSIVE));
	Assert(key->name.len <= AL_MAX_KEY_BYTES);
	for (int i = 1; i < WAYS; i++)
	{
		if (score(&set[i], window) < score(least, window))
			least = &set[i];
	}
	clear(least, 0);
	clear(least, 1);
	least->database = MyDatabaseId;
	least->key_length = key->name.len;
	memcpy(least->key, key->name.data, key->name.len);
	pg_atomic_write_u64(&least->window, window);
	pg_atomic_write_u64(&least->tag, tag);
	return least;
}

/* Count a refusal, or a wait in microseconds.  Raises nothing and waits for nothing. */
void
al_contention_count(const AlKey *key, TimestampTz at, bool is_wait, int64 waited)
{
	uint64		window = at / WINDOW;
	uint64		tag = tag_of(key);
	Contended  *entry;
	int			i = window & 1;
	uint64		before;

	Assert(waited >= 0);
	if (memory == NULL)
		return;
	entry = find(tag, window, false);
	if (entry == NULL)
	{
		if (!LWLockConditionalAcquire(&memory->lock, LW_EXCLUSIVE))
			return;
		entry = find(tag, window, true);
		if (entry)
			move_to(entry, window);
		else
			entry = replace(key, tag, window);
		LWLockRelease(&memory->lock);
	}

	pg_atomic_write_u64(&entry->last_at, at);
	if (!is_wait)
	{
		(void) pg_atomic_fetch_add_u64(&entry->refusals[i], 1);
		return;
	}
	(void) pg_atomic_fetch_add_u64(&entry->waits[i], 1);
	(void) pg_atomic_fetch_add_u64(&entry->waited[i], waited);
	before = pg_atomic_read_u64(&entry->longest[i]);
	while (before < (uint64) waited &&
		   !pg_atomic_compare_exchange_u64(&entry->longest[i], &before, waited))
		;
}

void
al_contention_reset(Oid database)
{
	Assert(memory != NULL);
	LWLockAcquire(&memory->lock, LW_EXCLUSIVE);
	for (int i = 0; i < SETS * WAYS; i++)
	{
		Contended  *entry = &memory->entries[0][0] + i;

		if (entry->database != database)
			continue;
		pg_atomic_write_u64(&entry->tag, 0);
		pg_atomic_write_u64(&entry->window, 0);
		entry->database = InvalidOid;
	}
	LWLockRelease(&memory->lock);
}

/* Copy the counts of an entry; false if it has none for a key of this database. */
static bool
copy_row(Contended *entry, uint64 window, AlContention *row)
{
	uint64		last = pg_atomic_read_u64(&entry->window);

	Assert(LWLockHeldByMe(&memory->lock));
	if (entry->database != MyDatabaseId || pg_atomic_read_u64(&entry->tag) == 0)
		return false;
	row->refusals = row->waits = row->waited = row->longest = 0;
	for (uint64 i = window - 1; i <= window; i++)
	{
		if (i != last && i != last - 1)
			continue;
		row->refusals += pg_atomic_read_u64(&entry->refusals[i & 1]);
		row->waits += pg_atomic_read_u64(&entry->waits[i & 1]);
		row->waited += pg_atomic_read_u64(&entry->waited[i & 1]);
		row->longest = Max(row->longest, pg_atomic_read_u64(&entry->longest[i & 1]));
	}
	row->last_at = (TimestampTz) pg_atomic_read_u64(&entry->last_at);
	row->key_length = entry->key_length;
	memcpy(row->key, entry->key, entry->key_length);
	return row->refusals + row->waits > 0;
}

static int
compare_rows(const void *a, const void *b)
{
	const AlContention *x = a;
	const AlContention *y = b;
	uint64		x_score = x->refusals + x->waits;
	uint64		y_score = y->refusals + y->waits;

	if (x_score != y_score)
		return x_score > y_score ? -1 : 1;
	return x->last_at > y->last_at ? -1 : x->last_at < y->last_at;
}

/* Keys of this database, the most contended first.  We have attached. */
AlContention *
al_contention_list(int *count)
{
	uint64		window = GetCurrentTimestamp() / WINDOW;
	AlContention *rows = palloc(SETS * WAYS * sizeof(AlContention));

	Assert(memory != NULL);
	*count = 0;
	LWLockAcquire(&memory->lock, LW_SHARED);
	for (int i = 0; i < SETS * WAYS; i++)
	{
		if (copy_row(&memory->entries[0][0] + i, window, &rows[*count]))
			(*count)++;
	}
	LWLockRelease(&memory->lock);
	qsort(rows, *count, sizeof(AlContention), compare_rows);
	return rows;
}
