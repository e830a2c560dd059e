/*-------------------------------------------------------------------------
 *
 * lock_stat.c
 *		Counting what happens to locks, per database.
 *
 * Model: what a transaction does counts when it commits, or is prepared, since
 * nobody is told what becomes of that; a savepoint that is rolled back takes its
 * counts along.  What an acquire was refused counts at
 * once, since the refusal may be what aborts the transaction.  The counts of
 * the transaction are in this process; those of the database in shared memory,
 * in a place that is looked for once by each backend and stays, because nobody
 * drops a database that has backends.
 *
 * So, of what was granted since, grants = releases + expirations + forced + holdings that are not over, or
 * of which nobody has noticed yet, as long as no prepared transaction is rolled
 * back.
 *
 * Where there is no shared memory (lock_shmem.c) nothing is counted.
 *
 * Locking rules: counters are atomic.  Places are given and taken under the
 * lock of the statistics, which is held over nothing that may raise.
 *
 * IDENTIFICATION
 *		src/shmem/stat.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "base/compat.h"
#include "funcapi.h"
#include "lock_lease.h"
#include "lock_stat.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(atomic_lock_stats);
PG_FUNCTION_INFO_V1(atomic_lock_stats_reset);

/* Counts as they were when a level of nesting began to count */
typedef struct Saved
{
	int			level;
	int64		counts[AL_COUNTERS_AT_COMMIT];
} Saved;

/* Of the current transaction */
static int64 counts[AL_COUNTERS_AT_COMMIT];
static bool counted = false;
static bool changed = false;	/* something else than a sweep was done */
static Saved *saved = NULL;		/* in TopTransactionContext, by rising level */
static int	saved_count = 0;
static int	saved_size = 0;

static AlDatabase *my_database = NULL;

/* The place of a database, or NULL.  The lock is held. */
AlDatabase *
al_stat_find(AlStats *stats, Oid database)
{
	for (int i = 1; i < AL_DATABASES; i++)
	{
		if (stats->databases[i].oid == database)
			return &stats->databases[i];
	}
	return NULL;
}

/* The same, giving it one; that for others, if none is left.  The lock is held exclusively. */
AlDatabase *
al_stat_place(AlStats *stats, Oid oid)
{
	AlDatabase *database = al_stat_find(stats, oid);

	if (database)
		return database;
	database = al_stat_find(stats, InvalidOid);
	if (database)
		database->oid = oid;
	else
		database = &stats->databases[0];
	if (pg_atomic_read_u64(&database->since) == 0)
		pg_atomic_write_u64(&database->since, GetCurrentTimestamp());
	return database;
}

/* The place of this database; NULL where there are no statistics */
AlDatabase *
al_stat_database(void)
{
	AlStats    *stats = al_stats();

	if (my_database || stats == NULL)
		return my_database;
	LWLockAcquire(&stats->lock, LW_EXCLUSIVE);
	my_database = al_stat_place(stats, MyDatabaseId);
	LWLockRelease(&stats->lock);
	return my_database;
}

/* Keep the counts, for when this level of nesting is rolled back */
static void
save(int level)
{
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

/*
 * Count something: when the transaction commits, or at once, by which counter
 * it is.  May raise for lack of memory only in a subtransaction.
 */
void
al_stat_count(AlCounter counter, int64 count)
{
	int			level;

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

/* The transaction changes what the sweep looks at, in a way that is not counted */
void
al_stat_changed(void)
{
	counted = changed = true;
}

/* Somebody has stood in line for a key, and does no more.  Raises nothing. */
void
al_stat_waited(const AlKey *key, int64 waited)
{
	AlDatabase *database = al_stat_database();
	pg_atomic_uint64 *longest;
	uint64		before;

	if (database == NULL)
		return;
	(void) pg_atomic_fetch_add_u64(&database->counters[AL_COUNT_WAITS], 1);
	(void) pg_atomic_fetch_add_u64(&database->counters[AL_COUNT_WAITED], waited);
	longest = &database->counters[AL_COUNT_LONGEST_WAIT];
	before = pg_atomic_read_u64(longest);
	while (before < (uint64) waited &&
		   !pg_atomic_compare_exchange_u64(longest, &before, waited))
		;
	al_wanted_count(key, GetCurrentTimestamp(), true, waited);
}

/* An acquire was not granted */
void
al_stat_refused(const AlKey *key, const AlResult *result)
{
	switch (result->outcome)
	{
		case AL_HELD:
		case AL_HELD_BY_OWNER:
		case AL_CLAIMED:
		case AL_CLOSED:
		case AL_QUEUED:
			al_stat_count(AL_COUNT_REFUSALS, 1);
			al_wanted_count(key, result->at, false, 0);
			break;
		case AL_LIFETIME_EXCEEDED:
			al_stat_count(AL_COUNT_REFUSALS, 1);
			break;
		case AL_TIMEOUT:
			al_stat_count(AL_COUNT_TIMEOUTS, 1);
			break;
		case AL_DEADLOCK:
			al_stat_count(AL_COUNT_DEADLOCKS, 1);
			break;
		default:
			break;				/* a convert by who does not hold the key */
	}
}

/* The transaction is over, without more ado */
void
al_stat_abort(void)
{
	if (counted)
		memset(counts, 0, sizeof(counts));
	counted = changed = false;
	saved = NULL;
	saved_count = saved_size = 0;
}

/* The transaction has committed.  Raises nothing. */
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

/* A level of nesting becomes part of the one above it */
void
al_stat_subcommit(int level)
{
	if (saved_count == 0 || saved[saved_count - 1].level < level)
		return;
	if (level == 2 || (saved_count > 1 && saved[saved_count - 2].level == level - 1))
		saved_count--;
	else
		saved[saved_count - 1].level = level - 1;
}

/* A level of nesting is rolled back */
void
al_stat_subabort(int level)
{
	while (saved_count > 0 && saved[saved_count - 1].level >= level)
		memcpy(counts, saved[--saved_count].counts, sizeof(counts));
}

/* Note that this database was swept, whatever becomes of the transaction */
void
al_stat_swept(TimestampTz started_at, int64 removed, bool by_worker)
{
	AlDatabase *database = al_stat_database();

	if (database == NULL)
		return;
	LWLockAcquire(&al_stats()->lock, LW_EXCLUSIVE);
	database->last_sweep.started_at = started_at;
	database->last_sweep.ended_at = GetCurrentTimestamp();
	database->last_sweep.removed = removed;
	database->last_sweep.by_worker = by_worker;
	LWLockRelease(&al_stats()->lock);
}

/* The statistics, or 55000 with what is not known without them */
AlStats *
al_stats_or_raise(const char *what)
{
	if (al_queue() == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE), al_hide_owners(),
				 errmsg("%s", what),
				 errdetail("Before PostgreSQL 17, that is in shared memory only where atomic_lock is preloaded."),
				 errhint("Add atomic_lock to shared_preload_libraries and restart the server.")));
	return al_stats();
}

/* Name of a database; 0: it has been dropped */
Datum
al_database_name(Oid oid)
{
	HeapTuple	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(oid));
	Datum		name = 0;

	if (HeapTupleIsValid(tuple))
	{
		name = DirectFunctionCall1(namein,
								   CStringGetDatum(NameStr(((Form_pg_database) GETSTRUCT(tuple))->datname)));
		ReleaseSysCache(tuple);
	}
	return name;
}

/* lock_stats(): a row for each database in which something was counted */
Datum
atomic_lock_stats(PG_FUNCTION_ARGS)
{
	/* The columns between the name and "since" */
	static const AlCounter columns[] = {
		AL_COUNT_GRANTS, AL_COUNT_REGRANTS, AL_COUNT_REFUSALS, AL_COUNT_TIMEOUTS,
		AL_COUNT_DEADLOCKS, AL_COUNT_RELEASES, AL_COUNT_EXTENDS, AL_COUNT_EXPIRATIONS,
		AL_COUNT_STEALS, AL_COUNT_FORCED, AL_COUNT_SWEEPS, AL_COUNT_SWEPT,
		AL_COUNT_WAITS, AL_COUNT_WAITED, AL_COUNT_LONGEST_WAIT
	};
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	AlStats    *stats = al_stats_or_raise("nothing is counted by this server");

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < AL_DATABASES; i++)
	{
		AlDatabase *database = &stats->databases[i];
		Datum		values[lengthof(columns) + 2];
		bool		nulls[lengthof(columns) + 2] = {0};
		uint64		since;
		Oid			oid;

		LWLockAcquire(&stats->lock, LW_SHARED);
		oid = database->oid;
		since = pg_atomic_read_u64(&database->since);
		for (int j = 0; j < (int) lengthof(columns); j++)
		{
			uint64		count = pg_atomic_read_u64(&database->counters[columns[j]]);

			values[j + 1] = Int64GetDatum((int64) count);
		}
		LWLockRelease(&stats->lock);

		values[0] = al_database_name(oid);
		if (since == 0 || (i > 0 && values[0] == 0))
			continue;
		nulls[0] = values[0] == 0;
		for (int j = 0; j < (int) lengthof(columns); j++)
		{
			if (columns[j] == AL_COUNT_WAITED || columns[j] == AL_COUNT_LONGEST_WAIT)
				values[j + 1] = al_interval_datum(DatumGetInt64(values[j + 1]));
		}
		values[lengthof(columns) + 1] = TimestampTzGetDatum((TimestampTz) since);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* lock_stats_reset(): this database counts from 0 again */
Datum
atomic_lock_stats_reset(PG_FUNCTION_ARGS)
{
	AlDatabase *database;

	(void) al_stats_or_raise("nothing is counted by this server");
	database = al_stat_database();
	for (int i = 0; i < AL_COUNTERS; i++)
		pg_atomic_write_u64(&database->counters[i], 0);
	pg_atomic_write_u64(&database->since, GetCurrentTimestamp());
	al_wanted_reset(MyDatabaseId);
	PG_RETURN_VOID();
}
