/*-------------------------------------------------------------------------
 *
 * stats.c
 *		lock_stats(), lock_contention(): show counters.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Locking rules: those of shmem/stat.c and shmem/contention.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "funcapi.h"
#include "miscadmin.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "atomic_lock.h"
#include "api/answer.h"
#include "base/errors.h"
#include "base/str.h"
#include "shmem/contention.h"
#include "shmem/shmem.h"
#include "shmem/stat.h"
#include "table/catalog.h"

/* Attach to shared memory, or raise 55000 with this message */
static void
attach_or_raise(const char *what)
{
	if (!al_shmem_attach())
		ereport(ERROR,
				(al_errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("%s", what),
				 errdetail("Before PostgreSQL 17, atomic_lock counts only if it is preloaded."),
				 errhint("Add atomic_lock to shared_preload_libraries and restart the server.")));
}

/* lock_stats(): a row for each database with counts */
AL_FUNCTION(atomic_lock_stats)
{
	/* The columns after the name; "since" is before the last one */
	static const AlCounter columns[] = {
		AL_COUNT_GRANTS, AL_COUNT_REGRANTS, AL_COUNT_REFUSALS, AL_COUNT_TIMEOUTS,
		AL_COUNT_DEADLOCKS, AL_COUNT_RELEASES, AL_COUNT_EXTENDS, AL_COUNT_EXPIRATIONS,
		AL_COUNT_STEALS, AL_COUNT_FORCED, AL_COUNT_SWEEPS, AL_COUNT_SWEPT,
		AL_COUNT_WAITS, AL_COUNT_WAITED, AL_COUNT_LONGEST_WAIT, AL_COUNT_GUARD_REFUSALS
	};
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	AlStats    *stats;

	attach_or_raise("lock statistics are not available on this server");
	stats = al_stats();
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
		values[lengthof(columns) + 1] = values[lengthof(columns)];
		values[lengthof(columns)] = TimestampTzGetDatum((TimestampTz) since);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* lock_stats_reset(): set the counters of this database to 0 */
AL_FUNCTION(atomic_lock_stats_reset)
{
	AlDatabase *database;

	attach_or_raise("lock statistics are not available on this server");
	database = al_stat_database();
	for (int i = 0; i < AL_COUNTERS; i++)
		pg_atomic_write_u64(&database->counters[i], 0);
	pg_atomic_write_u64(&database->since, GetCurrentTimestamp());
	al_contention_reset(MyDatabaseId);
	PG_RETURN_VOID();
}

/* lock_contention(): a row for each contended key of this database, worst first */
AL_FUNCTION(atomic_lock_contention)
{
	enum
	{
		KEY, REFUSALS, WAITS, TOTAL_WAIT, LONGEST_WAIT, LAST_AT, COLUMNS
	};
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	AlContention *rows;
	int			count;

	attach_or_raise("contention statistics are not available on this server");
	InitMaterializedSRF(fcinfo, 0);
	rows = al_contention_list(&count);

	for (int i = 0; i < count; i++)
	{
		AlContention *row = &rows[i];
		AlString	key = {row->key, row->key_length};
		Datum		values[COLUMNS];
		bool		nulls[COLUMNS] = {0};

		values[KEY] = PointerGetDatum(al_string_text(key));
		values[REFUSALS] = Int64GetDatum((int64) row->refusals);
		values[WAITS] = Int64GetDatum((int64) row->waits);
		values[TOTAL_WAIT] = al_interval_datum(row->waited);
		values[LONGEST_WAIT] = al_interval_datum(row->longest);
		values[LAST_AT] = TimestampTzGetDatum(row->last_at);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
