/*-------------------------------------------------------------------------
 *
 * testpoint.c
 *		Points at which a test can stop a backend.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: a test names one point in atomic_lock.test_pause_at, or stops at all points with
 * the module of test/explore, which sets its hook by a rendezvous variable.
 *
 * Locking: a backend that stops at the named point waits for the test's advisory lock.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/settings.h"
#include "base/testpoint.h"

#ifdef AL_TEST_HOOKS

#include "access/xact.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/proc.h"

/* Stops the backend if its test wants to; did it?  "function" is NULL for a named point. */
typedef bool (*AlTestHook) (const char *point, const char *function);

static AlTestHook *test_hook;

void
al_test_init(void)
{
	test_hook = (AlTestHook *) find_rendezvous_variable("atomic_lock_test_hook");
}

/*
 * If atomic_lock.test_pause_at names this point, wait until the test releases the advisory lock
 * (0, 1706); after the end of a transaction, where a backend cannot take a lock, until no
 * transaction of the test has (0, 1707).
 */
void
al_test_pause(const char *point)
{
	LOCKTAG		tag;
	int			lock_timeout = LockTimeout;

	Assert(CritSectionCount == 0);
	if (*test_hook)
		(void) (*test_hook) (point, NULL);
	if (al_test_pause_at == NULL || strcmp(al_test_pause_at, point) != 0)
		return;
	if (!IsTransactionState())
	{
		SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, 0, 1707, 1);
		while (VirtualTransactionIdIsValid(*GetLockConflicts(&tag, ShareLock, NULL)))
			pg_usleep(1000L);
		return;
	}
	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, 0, 1706, 1);
	LockTimeout = 0;
	(void) LockAcquire(&tag, ShareLock, false, false);
	LockTimeout = lock_timeout;
	LockRelease(&tag, ShareLock, false);
}

/* A point that test/explore/points.h has made of a call */
void
al_test_pass(const char *call, const char *function)
{
	if (*test_hook && InterruptHoldoffCount == 0 && CritSectionCount == 0)
		(void) (*test_hook) (call, function);
}

/* Replaces pg_usleep(): the test decides how long a backend sleeps that stops here */
void
al_test_usleep(long microsec)
{
	if (*test_hook == NULL || !(*test_hook) ("sleep", NULL))
		(pg_usleep) (microsec);
}

#endif							/* AL_TEST_HOOKS */
