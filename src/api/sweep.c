/*-------------------------------------------------------------------------
 *
 * sweep.c
 *		lock_sweep(), and the status of the background sweep.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Locking rules: those of sweep/sweep.c.  The locks of AlStats and AlSweeper are held only
 * to copy a few fields.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xlog.h"
#include "commands/dbcommands.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "api/answer.h"
#include "base/errors.h"
#include "base/settings.h"
#include "claim/claimed.h"
#include "shmem/shmem.h"
#include "shmem/stat.h"
#include "sweep/launcher.h"
#include "sweep/sweep.h"
#include "sweep/worker.h"
#include "table/catalog.h"

/* lock_sweep(max_rows): the number of rows removed, of all tables */
AL_FUNCTION(atomic_lock_sweep)
{
	Relation	rel = al_open_for_writing("lock_sweep()");
	int64		max_rows = al_sweep_batch;
	TimestampTz started_at;
	AlSwept		swept;

	if (!PG_ARGISNULL(0))
		max_rows = PG_GETARG_INT64(0);
	if (max_rows < 1)
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_rows must be at least 1")));

	started_at = GetCurrentTimestamp();
	al_sweep_begin(rel, &swept);
	al_sweep(rel, max_rows, InvalidBlockNumber, &swept);
	al_stat_count(AL_COUNT_SWEEPS, 1);
	al_stat_swept(started_at, swept.removed, false);
	table_close(rel, swept.removed > 0 || al_claimed_count() > 0 ? NoLock : RowExclusiveLock);
	PG_RETURN_INT64(swept.removed + swept.tickets + swept.trimmed);
}

/* The state of the launcher, in words; *hint is advice, or NULL */
static char *
describe_launcher(const char **hint)
{
	AlSweeper  *sweeper = al_sweeper();
	Oid			visited = InvalidOid;
	pid_t		pid = 0;
	bool		is_off = true;
	TimestampTz failed_at = 0;

	*hint = NULL;
	if (sweeper)
	{
		LWLockAcquire(&sweeper->lock, LW_SHARED);
		visited = sweeper->visit.database;
		pid = sweeper->launcher_pid;
		is_off = pid == 0 || sweeper->is_off;
		failed_at = sweeper->launcher_failed_at;
		LWLockRelease(&sweeper->lock);
	}

	if (!al_launcher_is_registered())
	{
		*hint = "Add atomic_lock to shared_preload_libraries and restart the server, or have pg_cron sweep by calling lock_schedule_sweep().";
		return "not running: atomic_lock is not preloaded";
	}
	if (RecoveryInProgress())
		return "not running: the server is a standby or in recovery";
	if (al_sweep_interval() <= 0)
	{
		*hint = "Set atomic_lock.sweep_interval and reload the configuration, or have pg_cron sweep by calling lock_schedule_sweep().";
		return is_off ? "turned off: atomic_lock.sweep_interval is 0" :
			"being turned off: this visit to a database is the last";
	}
	if (al_sweep_databases[strspn(al_sweep_databases, " ")] == '\0')
	{
		*hint = "Set atomic_lock.sweep_databases to \"*\" and reload the configuration.";
		return "sweeps no database: atomic_lock.sweep_databases is empty";
	}
	if (pid == 0)
	{
		*hint = "The server starts it again after a few seconds.  If it does not, see the server log: where it says \"too many background workers\", increase max_worker_processes and restart the server.";
		return "not running";
	}
	if (failed_at != 0)
	{
		*hint = "You might need to increase max_worker_processes.";
		return psprintf("running, but could not start a worker at %s",
						timestamptz_to_str(failed_at));
	}
	if (OidIsValid(visited) && get_database_name(visited))
		return psprintf("running, now sweeping database \"%s\"", get_database_name(visited));
	return psprintf("running, sweeps every %s",
					GetConfigOptionByName("atomic_lock.sweep_interval", NULL, false));
}

enum
{
	DATABASE, STATUS, LAST_SWEPT_AT, LAST_REMOVED, LAST_DURATION, HINT, COLUMNS
};

static bool
is_left_out(Oid database)
{
	return al_launcher_is_registered() && !RecoveryInProgress() && al_sweep_interval() > 0 &&
		al_launcher_leaves_out(database);
}

/* The last sweep of a database, in words; NULL: never swept */
static const char *
describe_database(const AlDatabase *database, const char **hint)
{
	const AlSweepRecord *last = &database->last_sweep;

	*hint = NULL;
	if (database->failed_at > last->ended_at)
	{
		*hint = "See the server log.";
		return psprintf("the background sweep failed at %s",
						timestamptz_to_str(database->failed_at));
	}
	/* Calls of lock_sweep() are enough, too. */
	if ((last->started_at == 0 || last->by_worker) && is_left_out(database->oid))
	{
		*hint = "Add it to atomic_lock.sweep_databases and reload the configuration, or have pg_cron sweep by calling lock_schedule_sweep().";
		return "not swept: atomic_lock.sweep_databases leaves it out";
	}
	if (last->started_at == 0)
		return NULL;
	return last->by_worker ? "swept by the background sweep" : "swept by lock_sweep()";
}

static void
put_database(ReturnSetInfo *rsinfo, const AlDatabase *database)
{
	const AlSweepRecord *last = &database->last_sweep;
	const char *hint;
	const char *status = describe_database(database, &hint);
	Datum		values[COLUMNS];
	bool		nulls[COLUMNS];

	values[DATABASE] = status ? al_database_name(database->oid) : 0;
	if (values[DATABASE] == 0)
		return;
	memset(nulls, last->started_at == 0, sizeof(nulls));
	values[STATUS] = CStringGetTextDatum(status);
	values[LAST_SWEPT_AT] = TimestampTzGetDatum(last->ended_at);
	values[LAST_REMOVED] = Int64GetDatum(last->removed);
	values[LAST_DURATION] = al_interval_datum(last->ended_at - last->started_at);
	values[HINT] = hint ? CStringGetTextDatum(hint) : 0;
	nulls[DATABASE] = nulls[STATUS] = false;
	nulls[HINT] = hint == NULL;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * lock_sweeper_status(): a row for the launcher, with null as database, and one for each database
 * that was swept since the start, or is left out
 */
AL_FUNCTION(atomic_lock_sweeper_status)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	AlDatabase	here = {.oid = MyDatabaseId};
	bool		is_here = false;
	AlStats    *stats;
	Datum		values[COLUMNS] = {0};
	bool		nulls[COLUMNS] = {true, false, true, true, true, false};
	const char *hint;

	InitMaterializedSRF(fcinfo, 0);
	(void) al_shmem_attach();
	stats = al_stats();
	values[STATUS] = CStringGetTextDatum(describe_launcher(&hint));
	nulls[HINT] = hint == NULL;
	values[HINT] = hint ? CStringGetTextDatum(hint) : 0;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);

	for (int i = 1; stats && i < AL_DATABASES; i++)
	{
		AlDatabase	database;

		LWLockAcquire(&stats->lock, LW_SHARED);
		database = stats->databases[i];
		LWLockRelease(&stats->lock);
		is_here = is_here || database.oid == MyDatabaseId;
		if (OidIsValid(database.oid))
			put_database(rsinfo, &database);
	}
	/* A database has no entry until something is counted. */
	if (!is_here)
		put_database(rsinfo, &here);
	return (Datum) 0;
}
