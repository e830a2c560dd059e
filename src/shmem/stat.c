/*-------------------------------------------------------------------------
 *
 * stat.c
 *		Counting what happens to locks, per database.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: changes count when their transaction commits or is prepared, since no code of ours sees
 * the end of a prepared transaction.  A rollback to a savepoint undoes counts.  Refusals and
 * waits count at once, since a refusal may abort the transaction.  A backend looks for the entry
 * of its database once: a database with backends cannot be dropped.
 *
 * So, unless a prepared transaction is rolled back, grants = releases + expirations + forced ends
 * + holdings that are live, or whose end no transaction has recorded yet.
 *
 * Locking rules: counters are atomic.  Entries are assigned and freed under the lock of the
 * statistics.  The code that holds that lock cannot raise.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "shmem/contention.h"
#include "shmem/shmem.h"
#include "shmem/stat.h"

/* The counts as they were before a level of nesting changed them */
typedef struct Saved
{
	int			level;
	int64		counts[AL_COUNTERS_AT_COMMIT];
} Saved;

static int64 counts[AL_COUNTERS_AT_COMMIT];
static bool counted = false;	/* any of them, or "changed" */
static bool changed = false;	/* the transaction did more than sweep */
static Saved *saved = NULL;		/* in TopTransactionContext, by level */
static int	saved_count = 0;
static int	saved_size = 0;

static AlStats *stats = NULL;	/* until this process attaches */
static AlDatabase *my_database = NULL;

static void
init_stats(void *memory)
{
	AlStats    *new_stats = memory;

	al_shmem_init_lock(&new_stats->lock);
	for (int i = 0; i < AL_DATABASES; i++)
	{
		AlDatabase *database = &new_stats->databases[i];

		al_shmem_init_words(database->counters, AL_COUNTERS);
		al_shmem_init_words(&database->since, 1);
		al_shmem_init_words(&database->changes, 1);
		al_shmem_init_words(&database->sweep_from, 1);
		al_shmem_init_words(&database->offers_missed, 1);
		al_shmem_init_words(&database->ticketed.is_counted, 1);
		al_shmem_init_words(&database->ticketed.until, 1);
	}
}

const AlShmemPart al_stat_part = {sizeof(AlStats), 0, init_stats, (void **) &stats};

/* The statistics; NULL if this process has not attached to shared memory. */
AlStats *
al_stats(void)
{
	return stats;
}

/* The entry of a database, or NULL.  The lock is held. */
AlDatabase *
al_stat_find(Oid database)
{
	Assert(LWLockHeldByMe(&stats->lock));
	for (int i = 1; i < AL_DATABASES; i++)
	{
		if (stats->databases[i].oid == database)
			return &stats->databases[i];
	}
	return NULL;
}

/* The entry of a database, or a new one, or the shared one.  The lock is held exclusively. */
AlDatabase *
al_stat_entry(Oid oid)
{
	AlDatabase *database = al_stat_find(oid);

	Assert(LWLockHeldByMeInMode(&stats->lock, LW_EXCLUSIVE));
	Assert(OidIsValid(oid));
	if (database)
		return database;
	database = al_stat_find(InvalidOid);
	if (database)
		database->oid = oid;
	else
		database = &stats->databases[0];
	if (pg_atomic_read_u64(&database->since) == 0)
		pg_atomic_write_u64(&database->since, GetCurrentTimestamp());
	return database;
}

/* The entry of this database; NULL if there are no statistics. */
AlDatabase *
al_stat_database(void)
{
	if (my_database || stats == NULL)
		return my_database;
	LWLockAcquire(&stats->lock, LW_EXCLUSIVE);
	my_database = al_stat_entry(MyDatabaseId);
	LWLockRelease(&stats->lock);
	return my_database;
}

static void
save(int level)
{
	Assert(level > 1);
	if (saved_count == saved_size)
	{
		int			size = Max(saved_size * 2, 4);

		saved = saved ? repalloc(saved, size * sizeof(Saved)) :
			MemoryContextAlloc(TopTransactionContext, size * sizeof(Saved));
		saved_size = size;
	}
	saved[saved_count].level = level;
	memcpy(saved[saved_count].counts, counts, sizeof(counts));
	saved_count++;
}

/* Add to a counter.  Raises only in a subtransaction, for lack of memory. */
void
al_stat_count(AlCounter counter, int64 count)
{
	int			level;

	Assert(counter < AL_COUNTERS && count >= 0);
	if (counter >= AL_COUNTERS_AT_COMMIT)
	{
		AlDatabase *database = al_stat_database();

		if (database)
			(void) pg_atomic_fetch_add_u64(&database->counters[counter], count);
		return;
	}
	level = GetCurrentTransactionNestLevel();
	if (level > 1 && (saved_count == 0 || saved[saved_count - 1].level < level))
		save(level);
	counts[counter] += count;
	counted = true;
	if (counter != AL_COUNT_EXPIRATIONS && counter != AL_COUNT_SWEEPS && counter != AL_COUNT_SWEPT)
		changed = true;
}

/* The transaction changes rows that a sweep reads, but counts nothing. */
void
al_stat_changed(void)
{
	counted = changed = true;
}

/* Ask for a sweep: a free key may have a ticket and no offer.  Raises nothing. */
void
al_stat_missed(void)
{
	AlDatabase *database = al_stat_database();

	if (database)
		pg_atomic_write_u64(&database->offers_missed, 1);
}

/* Set whether a database needs such a sweep; was that so before? */
bool
al_stat_set_missed(Oid oid, bool missed)
{
	AlDatabase *database;

	Assert(stats != NULL);
	LWLockAcquire(&stats->lock, LW_SHARED);
	database = al_stat_find(oid);
	LWLockRelease(&stats->lock);
	return database && pg_atomic_exchange_u64(&database->offers_missed, missed) != 0;
}

/* Is that so for any database that has an entry of its own? */
bool
al_stat_any_missed(void)
{
	Assert(stats != NULL);
	for (int i = 1; i < AL_DATABASES; i++)
	{
		if (pg_atomic_read_u64(&stats->databases[i].offers_missed) != 0)
			return true;
	}
	return false;
}

/* Count a wait for a key that has ended, in microseconds.  Raises nothing. */
void
al_stat_waited(const AlKey *key, int64 waited)
{
	AlDatabase *database = al_stat_database();
	pg_atomic_uint64 *longest;
	uint64		before;

	Assert(waited >= 0);
	if (database == NULL)
		return;
	(void) pg_atomic_fetch_add_u64(&database->counters[AL_COUNT_WAITS], 1);
	(void) pg_atomic_fetch_add_u64(&database->counters[AL_COUNT_WAITED], waited);
	longest = &database->counters[AL_COUNT_LONGEST_WAIT];
	before = pg_atomic_read_u64(longest);
	while (before < (uint64) waited &&
		   !pg_atomic_compare_exchange_u64(longest, &before, waited))
		;
	al_contention_count(key, GetCurrentTimestamp(), true, waited);
}

/* The transaction has ended: drop its counts. */
void
al_stat_abort(void)
{
	if (counted)
		memset(counts, 0, sizeof(counts));
	counted = changed = false;
	saved = NULL;
	saved_count = saved_size = 0;
}

/* The transaction has committed: add its counts.  Raises nothing. */
void
al_stat_commit(void)
{
	AlDatabase *database = counted ? al_stat_database() : NULL;

	if (database)
	{
		for (int i = 0; i < AL_COUNTERS_AT_COMMIT; i++)
		{
			if (counts[i] != 0)
				(void) pg_atomic_fetch_add_u64(&database->counters[i], counts[i]);
		}
		if (changed)
			(void) pg_atomic_fetch_add_u64(&database->changes, 1);
	}
	al_stat_abort();
}

void
al_stat_subcommit(int level)
{
	Assert(level > 1);
	if (saved_count == 0 || saved[saved_count - 1].level < level)
		return;
	if (level == 2 || (saved_count > 1 && saved[saved_count - 2].level == level - 1))
		saved_count--;
	else
		saved[saved_count - 1].level = level - 1;
}

void
al_stat_subabort(int level)
{
	Assert(level > 1);
	while (saved_count > 0 && saved[saved_count - 1].level >= level)
		memcpy(counts, saved[--saved_count].counts, sizeof(counts));
}

/* Note at once, not at commit, that this database was swept. */
void
al_stat_swept(TimestampTz started_at, int64 removed, bool by_worker)
{
	AlDatabase *database = al_stat_database();

	Assert(removed >= 0);
	if (database == NULL)
		return;
	LWLockAcquire(&stats->lock, LW_EXCLUSIVE);
	database->last_sweep.started_at = started_at;
	database->last_sweep.ended_at = GetCurrentTimestamp();
	database->last_sweep.removed = removed;
	database->last_sweep.by_worker = by_worker;
	LWLockRelease(&stats->lock);
}
