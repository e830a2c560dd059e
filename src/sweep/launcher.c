/*-------------------------------------------------------------------------
 *
 * launcher.c
 *		The launcher of the background sweep.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: if the module is preloaded, a launcher without a database runs whenever the server
 * accepts writes.
 *
 * 1. Every sweep_interval, the launcher begins a round.  It reads pg_database, and starts a
 *    worker for each database that may need a sweep, one worker at a time.
 * 2. The worker (sweep/worker.c) sweeps the database and exits.
 * 3. The worker reports when the next row can be removed.  Until then, the database is skipped as
 *    long as no transaction has counted a change there (shmem/stat.c), and while the extension is
 *    missing there or has another version.  But rows can come in ways that are not counted, so
 *    every tenth interval visits it anyway.
 * 4. A failed visit is repeated after a pause that doubles each time, up to ten intervals.
 * 5. A session that may have missed an offer wakes the launcher.  A worker then sweeps only
 *    app_lock_queue of that database.  The request stays until a worker has done that.  It is
 *    tried once a second; after failed visits, and after those that found something locked,
 *    in pauses that double, up to sweep_interval.
 *
 * Intervals are measured by the monotonic clock, so setting the clock delays no sweep.
 *
 * Locking rules: the locks of AlStats and AlSweeper are held one at a time, and never over a call
 * that may raise.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/errors.h"
#include "base/settings.h"
#include "shmem/session.h"
#include "shmem/stat.h"
#include "sweep/launcher.h"
#include "sweep/worker.h"

PGDLLEXPORT void atomic_lock_launcher_main(Datum arg);

/* Shortest time between two rounds for missed offers, in microseconds */
#define SHORTEST_INTERVAL	USECS_PER_SEC

/*
 * A database is visited, or a failed visit repeated, after this number of intervals at the latest
 */
#define INTERVALS_UNSEEN	10

typedef struct Target
{
	Oid			oid;
	NameData	name;
	bool		exists;			/* pg_database had it in this round */
	int			failures;		/* failed visits in a row */
	bool		other_version;	/* the last visit found and logged another version */
	int64		next_visit;		/* no visit before this, by al_monotonic_now() */
	TimestampTz next_due;		/* when a row can be removed; 0: not known */
	int64		unseen_until;	/* visit by then in any case, by al_monotonic_now() */
	uint64		changes;		/* changes_of() when the last visit began */
	int64		pause;			/* after the last visit, if it failed or was in the way */
	int64		next_missed;	/* none for missed offers before this, by al_monotonic_now() */
} Target;

static HTAB *targets = NULL;
static bool is_registered = false;

int64
al_sweep_interval(void)
{
	return AL_MS_TO_US(al_sweep_interval_ms);
}

static MemoryContext round_context = NULL;

static void
end_transaction(void)
{
	CommitTransactionCommand();
	MemoryContextSwitchTo(round_context);
}

static void
launcher_exit(int code, Datum arg)
{
	AlSweeper  *sweeper = al_sweeper();

	LWLockAcquire(&sweeper->lock, LW_EXCLUSIVE);
	if (sweeper->launcher_pid == MyProcPid)
	{
		sweeper->launcher_pid = 0;
		sweeper->visit.database = InvalidOid;
	}
	LWLockRelease(&sweeper->lock);
}

static void
handle_signals(void)
{
	CHECK_FOR_INTERRUPTS();
	/* The postmaster would not restart the launcher after exit code 0. */
	if (ShutdownRequestPending)
		proc_exit(1);
}

static void
sleep_for(int64 microseconds)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 (long) Min((microseconds + 999) / 1000, INT_MAX),
					 al_sweeper_wait_event());
	ResetLatch(MyLatch);
	handle_signals();
}

/* A name in sweep_databases; "*" means all databases except templates */
typedef struct NamedDatabase
{
	const char *name;
	bool		is_all;
	bool		exists;			/* set by is_named() */
} NamedDatabase;

static List *
read_names(void)
{
	char	   *copy;
	List	   *strings;
	List	   *names = NIL;
	ListCell   *cell;

	if (!al_split_names(al_sweep_databases, &copy, &strings))
		return NIL;
	foreach(cell, strings)
	{
		NamedDatabase *name = palloc0(sizeof(NamedDatabase));

		name->name = lfirst(cell);
		name->is_all = strcmp(name->name, "*") == 0;
		names = lappend(names, name);
	}
	return names;
}

/* Do these names select a database?  Marks a name that exists. */
static bool
is_named(List *names, Form_pg_database database)
{
	bool		is_named = false;
	ListCell   *cell;

	foreach(cell, names)
	{
		NamedDatabase *name = lfirst(cell);

		if (strcmp(name->name, NameStr(database->datname)) == 0)
			name->exists = is_named = true;
		if (name->is_all && !database->datistemplate)
			is_named = true;
	}
	return is_named;
}

/* Log the names that do not exist, once after each change of the setting */
static void
report_missing(List *names)
{
	static char *reported = NULL;
	ListCell   *cell;

	if (reported && strcmp(reported, al_sweep_databases) == 0)
		return;
	if (reported)
		pfree(reported);
	reported = MemoryContextStrdup(TopMemoryContext, al_sweep_databases);
	foreach(cell, names)
	{
		const NamedDatabase *name = lfirst(cell);

		if (!name->is_all && !name->exists)
			ereport(LOG,
					(al_hide_owners(),
					 errmsg("database \"%s\" in atomic_lock.sweep_databases does not exist",
							name->name)));
	}
}

/* The OIDs of the AL_DATABASES entries in the statistics; 0: unused */
static Oid *
copy_entries(void)
{
	AlStats    *stats = al_stats();
	Oid		   *entries = palloc(AL_DATABASES * sizeof(Oid));

	LWLockAcquire(&stats->lock, LW_SHARED);
	for (int i = 0; i < AL_DATABASES; i++)
		entries[i] = stats->databases[i].oid;
	LWLockRelease(&stats->lock);
	return entries;
}

/* Free the entries of databases that do not exist any more */
static void
forget_entries(const Oid *entries, List *existing)
{
	AlStats    *stats = al_stats();

	for (int i = 1; i < AL_DATABASES; i++)
	{
		AlDatabase *database = &stats->databases[i];

		if (!OidIsValid(entries[i]) || list_member_oid(existing, entries[i]))
			continue;
		LWLockAcquire(&stats->lock, LW_EXCLUSIVE);
		if (database->oid == entries[i])
		{
			for (int j = 0; j < AL_COUNTERS; j++)
				pg_atomic_write_u64(&database->counters[j], 0);
			pg_atomic_write_u64(&database->since, 0);
			pg_atomic_write_u64(&database->ticketed.is_counted, 0);
			pg_atomic_write_u64(&database->ticketed.until, 0);
			pg_atomic_write_u64(&database->sweep_from, 0);
			pg_atomic_write_u64(&database->offers_missed, 0);
			memset(&database->last_sweep, 0, sizeof(AlSweepRecord));
			database->failed_at = 0;
			database->oid = InvalidOid;
		}
		LWLockRelease(&stats->lock);
	}
}

/* Update the list of targets from a scan of pg_database, which shows columns of fixed width only */
static void
list_databases(void)
{
	HASH_SEQ_STATUS status;
	Target	   *target;
	Oid		   *entries;
	List	   *names;
	List	   *existing = NIL;
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	Assert(!IsTransactionState());
	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	names = read_names();
	/* Copied before the scan, which then finds each of them that still exists */
	entries = copy_entries();
	hash_seq_init(&status, targets);
	while ((target = hash_seq_search(&status)) != NULL)
		target->exists = false;

	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while (HeapTupleIsValid(tuple = heap_getnext(scan, ForwardScanDirection)))
	{
		Form_pg_database database = (Form_pg_database) GETSTRUCT(tuple);
		bool		found;

		existing = lappend_oid(existing, database->oid);
		/* A limit below -1 marks a database whose DROP was interrupted. */
		if (!is_named(names, database) || !database->datallowconn ||
			database->datconnlimit < -1)
		{
			/* Its request, which nobody serves, must not cause a round each second. */
			(void) al_stat_set_missed(database->oid, false);
			continue;
		}
		target = hash_search(targets, &database->oid, HASH_ENTER, &found);
		if (!found)
			*target = (Target) {.oid = database->oid};
		target->exists = true;
		target->name = database->datname;
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	report_missing(names);

	hash_seq_init(&status, targets);
	while ((target = hash_seq_search(&status)) != NULL)
	{
		if (!target->exists)
			(void) hash_search(targets, &target->oid, HASH_REMOVE, NULL);
	}
	forget_entries(entries, existing);
	end_transaction();
}

/* Does a database exist?  Needs a transaction. */
static bool
exists(Oid oid)
{
	Relation	rel = table_open(DatabaseRelationId, AccessShareLock);
	TableScanDesc scan = table_beginscan_catalog(rel, 0, NULL);
	HeapTuple	tuple;
	bool		found = false;

	while (!found && HeapTupleIsValid(tuple = heap_getnext(scan, ForwardScanDirection)))
		found = ((Form_pg_database) GETSTRUCT(tuple))->oid == oid;
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	return found;
}

/* Number of transactions that have counted something in a database */
static uint64
changes_of(Oid oid)
{
	AlStats    *stats = al_stats();
	AlDatabase *database;
	uint64		changes;

	Assert(stats != NULL);
	LWLockAcquire(&stats->lock, LW_SHARED);
	database = al_stat_find(oid);
	/* Databases without an entry of their own share the first. */
	if (database == NULL)
		database = &stats->databases[0];
	changes = pg_atomic_read_u64(&database->changes);
	LWLockRelease(&stats->lock);
	return changes;
}

/* Does the database exist, and is no session about to drop, rename or copy it? */
static bool
may_visit(const Target *target)
{
	bool		is_free;

	Assert(!IsTransactionState());
	StartTransactionCommand();
	is_free = al_lock_database(target->oid) && exists(target->oid);
	end_transaction();
	return is_free;
}

/* When to try again after this number of failures in a row, by al_monotonic_now() */
static int64
next_try(int failures)
{
	int			intervals = failures < 4 ? 1 << failures : INTERVALS_UNSEEN;

	Assert(failures > 0);
	return al_monotonic_now() + Min(intervals, INTERVALS_UNSEEN) * al_sweep_interval();
}

/* Run a worker in a database and wait for its end; false if it could not be started */
static bool
run_worker(Oid oid, bool only_queue, AlVisit *visit)
{
	AlSweeper  *sweeper = al_sweeper();
	BackgroundWorker worker = {0};
	BackgroundWorkerHandle *handle;
	int64		end = al_monotonic_now() + 2 * AL_LONGEST_VISIT;
	bool		is_started;
	bool		is_ended = false;
	pid_t		pid;

	Assert(OidIsValid(oid) && !IsTransactionState());
	LWLockAcquire(&sweeper->lock, LW_EXCLUSIVE);
	Assert(!OidIsValid(sweeper->visit.database));	/* one visit at a time */
	sweeper->visit = (AlVisit) {.database = oid,.only_queue = only_queue,.result = AL_VISIT_FAILED,.next_due = DT_NOEND};
	LWLockRelease(&sweeper->lock);

	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION |
		AL_BGWORKER_INTERRUPTIBLE;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_main_arg = ObjectIdGetDatum(oid);
	worker.bgw_notify_pid = MyProcPid;
	strlcpy(worker.bgw_library_name, "atomic_lock", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "atomic_lock_sweeper_main",
			sizeof(worker.bgw_function_name));
	strlcpy(worker.bgw_name, "atomic_lock sweeper", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "atomic_lock sweeper", BGW_MAXLEN);
	is_started = RegisterDynamicBackgroundWorker(&worker, &handle);
	while (is_started && GetBackgroundWorkerPid(handle, &pid) != BGWH_STOPPED)
	{
		sleep_for(Max(end - al_monotonic_now(), USECS_PER_SEC));
		if (al_monotonic_now() < end)
			continue;
		/* The worker may be waiting to connect to the database, without a time-out. */
		al_trace(DEBUG1, "terminating the sweep of database %u, which takes too long", oid);
		TerminateBackgroundWorker(handle);
		is_ended = true;
	}

	LWLockAcquire(&sweeper->lock, LW_EXCLUSIVE);
	*visit = sweeper->visit;
	if (is_ended && visit->result == AL_VISIT_FAILED)
		visit->result = AL_VISIT_AWAY;
	sweeper->visit.database = InvalidOid;
	LWLockRelease(&sweeper->lock);
	return is_started;
}

static const char *
result_name(AlVisitResult result)
{
	static const char *const names[] = {
		[AL_VISIT_FAILED] = "failed",
		[AL_VISIT_DONE] = "done",
		[AL_VISIT_UNFINISHED] = "unfinished",
		[AL_VISIT_AWAY] = "the database or a table was not free",
		[AL_VISIT_NO_EXTENSION] = "no extension",
		[AL_VISIT_OTHER_VERSION] = "other version of the extension"
	};

	Assert(result <= AL_VISIT_OTHER_VERSION);
	return names[result];
}

static void
note_failure(Target *target)
{
	target->next_visit = next_try(++target->failures);
	if (target->failures == 1)
		ereport(LOG,
				(al_hide_owners(),
				 errmsg("sweep of database \"%s\" failed", NameStr(target->name)),
				 errdetail("The next attempt is made after %d s, and later ones after at most ten intervals.",
						   (int) ((target->next_visit - al_monotonic_now()) / USECS_PER_SEC))));
}

/* Note whether the versions differ; log it once */
static void
note_version(Target *target, bool other_version)
{
	if (other_version && !target->other_version)
		ereport(LOG,
				(al_errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("no sweep of database \"%s\", where extension \"atomic_lock\" has another version than its library",
						NameStr(target->name)),
				 errhint("Run ALTER EXTENSION atomic_lock UPDATE there.")));
	target->other_version = other_version;
}

static void
show_failure(const Target *target)
{
	AlStats    *stats = al_stats();
	AlDatabase *database;
	bool		failed = target->failures > 0 || target->other_version;

	LWLockAcquire(&stats->lock, LW_EXCLUSIVE);
	database = failed ? al_stat_entry(target->oid) : al_stat_find(target->oid);
	if (database)
		database->failed_at = failed ? GetCurrentTimestamp() : 0;
	LWLockRelease(&stats->lock);
}

/* Has the worker left nothing to do?  Not so if it ended early, or could not begin. */
static bool
is_done(AlVisitResult result)
{
	return result == AL_VISIT_DONE || result == AL_VISIT_NO_EXTENSION ||
		result == AL_VISIT_OTHER_VERSION;
}

/* Visit a database if something may be due there; false if no worker could be started */
static bool
visit(Target *target)
{
	int64		now = al_monotonic_now();
	uint64		changes = changes_of(target->oid);
	AlVisit		visit = {.result = AL_VISIT_AWAY};
	bool		only_queue = now < target->next_visit ||
		(now < target->unseen_until && changes == target->changes &&
		 GetCurrentTimestamp() < target->next_due);
	bool		missed;
	bool		can_visit;
	bool		is_started;

	if (only_queue && now < target->next_missed)
		return true;
	missed = al_stat_set_missed(target->oid, false);
	if (only_queue && !missed)
		return true;
	if (!only_queue)
	{
		target->next_visit = now + al_sweep_interval();
		target->next_due = 0;
	}
	can_visit = may_visit(target);
	is_started = can_visit && run_worker(target->oid, only_queue, &visit);
	if (missed && !is_done(visit.result))
		(void) al_stat_set_missed(target->oid, true);
	if (!can_visit)
	{
		al_trace(DEBUG1, "no sweep of database \"%s\", which is about to be dropped, renamed or copied",
				 NameStr(target->name));
		return true;
	}
	if (!is_started)
		return false;
	al_trace(DEBUG1, "sweep of %sdatabase \"%s\": %s", only_queue ? "the lines of " : "",
			 NameStr(target->name), result_name(visit.result));
	target->pause = is_done(visit.result) || visit.result == AL_VISIT_UNFINISHED ? 0 :
		Min(Max(2 * target->pause, SHORTEST_INTERVAL), al_sweep_interval());
	target->next_missed = al_monotonic_now() + target->pause;
	if (only_queue)
		return true;

	if (visit.result != AL_VISIT_FAILED)
		target->failures = 0;
	else if (may_visit(target))	/* not dropped meanwhile */
		note_failure(target);
	if (visit.result != AL_VISIT_AWAY && visit.result != AL_VISIT_FAILED)
		note_version(target, visit.result == AL_VISIT_OTHER_VERSION);
	show_failure(target);
	if (visit.result == AL_VISIT_UNFINISHED)
		target->next_visit = 0;
	if (is_done(visit.result))
	{
		target->changes = changes;
		target->next_due = visit.next_due;
		target->unseen_until = now + INTERVALS_UNSEEN * al_sweep_interval();
	}
	return true;
}

/* Note that no worker could be started; log the first time in a row */
static void
note_no_worker(const Target *target, int failures)
{
	AlSweeper  *sweeper = al_sweeper();

	LWLockAcquire(&sweeper->lock, LW_EXCLUSIVE);
	sweeper->launcher_failed_at = GetCurrentTimestamp();
	LWLockRelease(&sweeper->lock);
	if (failures == 1)
		ereport(LOG,
				(al_errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("could not start a sweep of database \"%s\"",
						NameStr(target->name)),
				 errdetail("No slot for a background worker is free."),
				 errhint("You might need to increase max_worker_processes.")));
}

/*
 * Visit all databases that may need it; returns when the next round is due, by
 * al_monotonic_now().  "failures" counts rounds in a row that could start no worker.
 */
static int64
do_round(int *failures)
{
	AlSweeper  *sweeper = al_sweeper();
	HASH_SEQ_STATUS status;
	Target	   *target;
	Oid		   *oids;
	int			count = 0;
	bool		is_unfinished = false;

	list_databases();
	oids = palloc(hash_get_num_entries(targets) * sizeof(Oid));
	hash_seq_init(&status, targets);
	while ((target = hash_seq_search(&status)) != NULL)
		oids[count++] = target->oid;

	for (int i = 0; i < count; i++)
	{
		handle_signals();
		/* The new settings may turn the sweep off, or name other databases. */
		if (ConfigReloadPending)
			return 0;
		target = hash_search(targets, &oids[i], HASH_FIND, NULL);
		if (!visit(target))
		{
			target->next_visit = target->next_due = 0;
			note_no_worker(target, ++*failures);
			return next_try(*failures);
		}
		is_unfinished = is_unfinished || target->next_visit == 0;
	}

	*failures = 0;
	LWLockAcquire(&sweeper->lock, LW_EXCLUSIVE);
	sweeper->launcher_failed_at = 0;
	LWLockRelease(&sweeper->lock);
	return is_unfinished ? 0 : al_monotonic_now() + al_sweep_interval();
}

/* Make all databases due, because the settings may have changed */
static void
forget_visits(void)
{
	HASH_SEQ_STATUS status;
	Target	   *target;

	hash_seq_init(&status, targets);
	while ((target = hash_seq_search(&status)) != NULL)
		target->next_visit = target->next_due = 0;
}

void
atomic_lock_launcher_main(Datum arg)
{
	AlSweeper  *sweeper = al_sweeper();
	HASHCTL		info = {.keysize = sizeof(Oid),.entrysize = sizeof(Target)};
	int64		next_round = 0;
	int64		last_round = 0;
	int			failures = 0;

	Assert(sweeper != NULL);	/* the module is preloaded */
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	pqsignal(SIGINT, PG_SIG_IGN);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	before_shmem_exit(launcher_exit, (Datum) 0);
	LWLockAcquire(&sweeper->lock, LW_EXCLUSIVE);
	sweeper->launcher_pid = MyProcPid;
	sweeper->is_off = al_sweep_interval() <= 0;
	sweeper->launcher_failed_at = 0;
	LWLockRelease(&sweeper->lock);
	/* Sessions from before a crash or promotion have ended by now: note the time. */
	(void) al_session_begin();
	round_context = AllocSetContextCreate(TopMemoryContext, "atomic_lock round",
										  ALLOCSET_DEFAULT_SIZES);
	targets = hash_create("atomic_lock databases", 64, &info, HASH_ELEM | HASH_BLOBS);

	for (;;)
	{
		int64		now = al_monotonic_now();

		handle_signals();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			LWLockAcquire(&sweeper->lock, LW_EXCLUSIVE);
			sweeper->is_off = al_sweep_interval() <= 0;
			LWLockRelease(&sweeper->lock);
			forget_visits();
			next_round = 0;
			failures = 0;
		}
		if (now < next_round)
		{
			int64		next = next_round;

			if (al_sweep_interval() > 0 && al_stat_any_missed())
				next = Min(next, last_round + SHORTEST_INTERVAL);
			if (now < next)
			{
				sleep_for(next - now);
				continue;
			}
		}
		MemoryContextSwitchTo(round_context);
		last_round = now;
		if (al_sweep_interval() > 0)
		{
			int64		after = do_round(&failures);

			/* An early round does not delay the regular one. */
			next_round = now < next_round ? Min(after, next_round) : after;
		}
		else
		{
			/* This frees the entries of dropped databases. */
			list_databases();
			next_round = now + USECS_PER_HOUR;
		}
		MemoryContextReset(round_context);
	}
}

/* Tell the launcher that an offer may have been missed.  Never raises. */
void
al_launcher_tell_missed(void)
{
	AlSweeper  *sweeper = al_sweeper();
	PGPROC	   *launcher;
	pid_t		pid;

	al_stat_missed();
	if (sweeper == NULL)
		return;
	Assert(!LWLockHeldByMe(&sweeper->lock));
	LWLockAcquire(&sweeper->lock, LW_SHARED);
	pid = sweeper->launcher_pid;
	LWLockRelease(&sweeper->lock);
	launcher = pid != 0 ? BackendPidGetProc(pid) : NULL;
	if (launcher)
		SetLatch(&launcher->procLatch);
}

/* Register the launcher, if the module is preloaded */
void
al_launcher_init(void)
{
	BackgroundWorker worker = {0};

	/* pg_upgrade needs the databases for itself. */
	if (!process_shared_preload_libraries_in_progress || IsBinaryUpgrade)
		return;
	is_registered = true;
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = 5;
	strlcpy(worker.bgw_library_name, "atomic_lock", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "atomic_lock_launcher_main",
			sizeof(worker.bgw_function_name));
	strlcpy(worker.bgw_name, "atomic_lock launcher", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "atomic_lock launcher", BGW_MAXLEN);
	RegisterBackgroundWorker(&worker);
}

bool
al_launcher_is_registered(void)
{
	return is_registered;
}

/* Do the settings leave out an existing database?  Needs a connection to a database. */
bool
al_launcher_leaves_out(Oid database)
{
	HeapTuple	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
	bool		is_left_out;

	if (!HeapTupleIsValid(tuple))
		return false;
	is_left_out = !is_named(read_names(), (Form_pg_database) GETSTRUCT(tuple));
	ReleaseSysCache(tuple);
	return is_left_out;
}
