/*-------------------------------------------------------------------------
 *
 * worker.c
 *		The background sweep: the worker that visits a database.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: the worker sweeps in batches, each in its own transaction, and rests between
 * them.  If somebody wants the database or locks the table, the worker leaves, and the
 * launcher sends another one at the next interval.
 *
 * The worker connects as the bootstrap superuser, and overrides the settings that a
 * database has for its sessions.  The sweep itself runs as the owner of app_lock, as
 * VACUUM would, and runs no code of users: see table/app_lock.c and table/catalog.c.
 *
 * Nothing depends on the sweep, so it waits neither for locks on our tables nor for a
 * flush or a standby, and at most a second for any other lock.
 *
 * Locking rules: AlSweeper has a lock of its own, held only to copy a few fields.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/twophase.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "base/clock.h"
#include "base/compat.h"
#include "base/settings.h"
#include "shmem/shmem.h"
#include "shmem/stat.h"
#include "sweep/sweep.h"
#include "sweep/worker.h"
#include "table/catalog.h"

PGDLLEXPORT void atomic_lock_sweeper_main(Datum arg);

/* Rest in proportion to work, so that other sessions do not become slower */
#define REST_PER_WORK	5

/* Limits the time of a transaction that finds little to remove */
#define BATCH_BLOCKS	10000

static AlSweeper *sweeper = NULL;	/* until this process attaches */

static void
init_sweeper(void *memory)
{
	al_shmem_init_lock(&((AlSweeper *) memory)->lock);
}

const AlShmemPart al_sweeper_part = {sizeof(AlSweeper), 0, init_sweeper, (void **) &sweeper};

/* NULL while this process has not attached to shared memory */
AlSweeper *
al_sweeper(void)
{
	return sweeper;
}

/*
 * Take the lock on a database that a connecting session takes, until the transaction
 * ends.  False: somebody is about to drop, rename or copy the database.
 */
bool
al_lock_database(Oid database)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, database, 0);
	return LockAcquire(&tag, RowExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

static void
override(const char *name, const char *value)
{
	SetConfigOption(name, value, PGC_SUSET, PGC_S_OVERRIDE);
}

/*
 * How many rows to remove per transaction.  Each takes a place in the lock table, of
 * which a batch uses at most a sixteenth.
 */
static int
batch_size(void)
{
	int64		places = (int64) max_locks_per_xact * (MaxBackends + max_prepared_xacts);

	return (int) Max(Min(al_sweep_batch, places / 16), 1);
}

/*
 * Sweep a batch in its own transaction, of the whole table or only the queue; false:
 * nothing could be swept, see result
 */
static bool
sweep_batch(AlSwept *swept, bool is_first, bool only_queue, AlVisitResult *result)
{
	Relation	rel = NULL;
	bool		missing = false;
	Oid			user;
	int			security;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	XactIsoLevel = XACT_READ_COMMITTED;
	XactReadOnly = XactDeferrable = false;
	PushActiveSnapshot(GetTransactionSnapshot());
	*result = AL_VISIT_AWAY;
	if (al_lock_database(MyDatabaseId))
		rel = al_open_now(&missing);
	if (missing)
		*result = al_is_installed() ? AL_VISIT_OTHER_VERSION : AL_VISIT_NO_EXTENSION;
	if (rel)
	{
		GetUserIdAndSecContext(&user, &security);
		SetUserIdAndSecContext(rel->rd_rel->relowner,
							   security | SECURITY_RESTRICTED_OPERATION);
		if (is_first)
		{
			al_sweep_begin(rel, swept);
			if (only_queue)
				swept->left = 0;
			else
				al_stat_count(AL_COUNT_SWEEPS, 1);
		}
		al_sweep(rel, batch_size(), BATCH_BLOCKS, swept);
		SetUserIdAndSecContext(user, security);
		table_close(rel, NoLock);
		*result = swept->left == 0 ? AL_VISIT_DONE : AL_VISIT_UNFINISHED;
	}
	PopActiveSnapshot();
	CommitTransactionCommand();
	pgstat_report_stat(true);
	return rel != NULL;
}

/* Rest, for at most a tenth of a second */
static void
pause_for(int64 microseconds)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 (long) Min(microseconds, USECS_PER_SEC / 10) / 1000,
					 al_sweeper_wait_event());
	ResetLatch(MyLatch);
}

/*
 * Let the owner of the database end this process: DROP DATABASE ... WITH (FORCE)
 * checks the role of each process, which is a superuser here.
 */
static void
set_role_of_process(void)
{
	HeapTuple	tuple;

	StartTransactionCommand();
	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(MyDatabaseId));
	if (HeapTupleIsValid(tuple))
	{
		MyProc->roleId = ((Form_pg_database) GETSTRUCT(tuple))->datdba;
		ReleaseSysCache(tuple);
	}
	CommitTransactionCommand();
}

/* Sweep the database whose OID is the argument, and report to the launcher */
void
atomic_lock_sweeper_main(Datum arg)
{
	TimestampTz started_at = GetCurrentTimestamp();
	AlVisitResult result = AL_VISIT_UNFINISHED;
	int64		end = al_monotonic_now() + AL_LONGEST_VISIT;
	AlSwept		swept = {.next_due = DT_NOEND};
	int64		removed = 0;
	bool		only_queue;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(arg), InvalidOid, 0);
	override("role", "none");
	override("search_path", "");
	override("synchronous_commit", "off");
	override("lock_timeout", "1s");
	override("statement_timeout", "0");
	override("idle_in_transaction_session_timeout", "0");
	if (GetConfigOption("transaction_timeout", true, false))
		override("transaction_timeout", "0");	/* from PostgreSQL 17 on */
	set_role_of_process();
	LWLockAcquire(&sweeper->lock, LW_SHARED);
	only_queue = sweeper->visit.database == MyDatabaseId && sweeper->visit.only_queue;
	LWLockRelease(&sweeper->lock);
	pgstat_report_activity(STATE_RUNNING, "sweeping expired locks");

	for (bool is_first = true; result == AL_VISIT_UNFINISHED && al_monotonic_now() < end;
		 is_first = false)
	{
		int64		batch_at = al_monotonic_now();

		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		if (!sweep_batch(&swept, is_first, only_queue, &result))
			break;
		removed += swept.removed;
		if (!only_queue)
			al_stat_swept(started_at, removed, true);
		if (result == AL_VISIT_UNFINISHED)
			pause_for(REST_PER_WORK * (al_monotonic_now() - batch_at));
	}

	LWLockAcquire(&sweeper->lock, LW_EXCLUSIVE);
	if (sweeper->visit.database == MyDatabaseId)
	{
		sweeper->visit.result = result;
		sweeper->visit.next_due = swept.next_due;
	}
	LWLockRelease(&sweeper->lock);
}
