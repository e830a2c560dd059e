/*-------------------------------------------------------------------------
 *
 * worker.c
 *		The worker of the background sweep, which visits one database.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: the worker sweeps in batches, each in its own transaction, and rests between them.  If
 * another session wants the database for itself or has locked app_lock, the worker exits, and the
 * launcher starts another one at the next interval, or after a pause if a request for an offer is
 * left.
 *
 * The worker connects as the bootstrap superuser, and overrides settings of the database and of
 * roles.  The sweep itself runs as the owner of app_lock, like VACUUM, and runs no user code.
 * The worker does not wait for locks on our tables, for a flush or for a standby, and waits at
 * most a second for any other lock.
 *
 * Locking rules: the lock of AlSweeper is held only to copy a few fields.
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
#include "base/errors.h"
#include "base/settings.h"
#include "shmem/shmem.h"
#include "shmem/stat.h"
#include "sweep/sweep.h"
#include "sweep/worker.h"
#include "table/catalog.h"

PGDLLEXPORT void atomic_lock_sweeper_main(Datum arg);

/* Length of a rest in proportion to the batch before it, to keep other sessions fast */
#define REST_PER_WORK	5

/* Blocks per batch: limits a transaction that finds little to remove */
#define BATCH_BLOCKS	10000

static AlSweeper *sweeper = NULL;	/* NULL until this process attaches */

static void
init_sweeper(void *memory)
{
	al_shmem_init_lock(&((AlSweeper *) memory)->lock);
}

const AlShmemPart al_sweeper_part = {sizeof(AlSweeper), 0, init_sweeper, (void **) &sweeper};

/* NULL until this process has attached to shared memory */
AlSweeper *
al_sweeper(void)
{
	return sweeper;
}

/* Lock a database as a new session does, until the transaction ends; false: DDL wants it */
bool
al_lock_database(Oid database)
{
	LOCKTAG		tag;

	Assert(OidIsValid(database) && IsTransactionState());
	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, database, 0);
	return LockAcquire(&tag, RowExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

static void
override(const char *name, const char *value)
{
	SetConfigOption(name, value, PGC_SUSET, PGC_S_OVERRIDE);
}

/* Number of rows to remove per transaction, at most a sixteenth of the lock table */
static int
batch_size(void)
{
	int64		entries = (int64) max_locks_per_xact * (MaxBackends + max_prepared_xacts);

	return (int) Max(Min(al_sweep_batch, entries / 16), 1);
}

/* Sweep a batch, of all tables or only of app_lock_queue; false: *result says why not */
static bool
sweep_batch(AlSwept *swept, bool is_first, bool only_queue, AlVisitResult *result)
{
	Relation	rel = NULL;
	bool		missing = false;
	Oid			user;
	int			security;

	Assert(!IsTransactionState());
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

/* Let the database's owner end this process: DROP DATABASE ... WITH (FORCE) checks its role */
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

/* Sweep the database with this OID, and report to the launcher */
void
atomic_lock_sweeper_main(Datum arg)
{
	TimestampTz started_at = GetCurrentTimestamp();
	AlVisitResult result = AL_VISIT_UNFINISHED;
	int64		begun = al_monotonic_now();
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
	Assert(sweeper != NULL);	/* there is a launcher, so the module is preloaded */
	LWLockAcquire(&sweeper->lock, LW_SHARED);
	only_queue = sweeper->visit.database == MyDatabaseId && sweeper->visit.only_queue;
	LWLockRelease(&sweeper->lock);
	pgstat_report_activity(STATE_RUNNING, "sweeping expired locks");

	for (bool is_first = true; result == AL_VISIT_UNFINISHED &&
		 (is_first || al_monotonic_now() < begun + AL_LONGEST_VISIT); is_first = false)
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
	al_trace(DEBUG1, "visit removed %lld expired or released locks%s", (long long) removed,
			 result == AL_VISIT_UNFINISHED ? ", and more may be left" : "");

	LWLockAcquire(&sweeper->lock, LW_EXCLUSIVE);
	if (sweeper->visit.database == MyDatabaseId)
	{
		sweeper->visit.result = result;
		sweeper->visit.next_due = swept.next_due;
	}
	LWLockRelease(&sweeper->lock);
}
