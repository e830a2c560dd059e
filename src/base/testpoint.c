/*-------------------------------------------------------------------------
 *
 * testpoint.c
 *		Points at which a test can stop a backend.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: a test chooses one point by atomic_lock.test_pause_at, or stops at all of
 * them with the module of test/explore.  That module finds us by a rendezvous variable.
 *
 * Locking: a backend that stops at the chosen point waits for the test's advisory lock.
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

/*
 * Stops the backend if its test wants that, and returns whether it did.  "function" is NULL
 * for a point that has a name.
 */
typedef bool (*AlTestHook) (const char *point, const char *function);

static AlTestHook *test_hook;

void
al_test_init(void)
{
	test_hook = (AlTestHook *) find_rendezvous_variable("atomic_lock_test_hook");
}

/*
 * If atomic_lock.test_pause_at names this point, wait until the test releases the
 * advisory lock (0, 1706).  A transaction that has ended cannot take a lock: it waits until
 * no transaction of the test has the advisory lock (0, 1707).
 */
void
al_test_pause(const char *point)
{
	LOCKTAG		tag;
	int			lock_timeout = LockTimeout;

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

/*
 * A point that test/explore/points.h has made of a call.  Under an LWLock and in a critical
 * section a backend cannot stop.
 */
void
al_test_pass(const char *call, const char *function)
{
	if (*test_hook && InterruptHoldoffCount == 0 && CritSectionCount == 0)
		(void) (*test_hook) (call, function);
}

/* In place of pg_usleep(): a backend that stops here sleeps for as long as the test says. */
void
al_test_usleep(long microsec)
{
	if (*test_hook == NULL || !(*test_hook) ("sleep", NULL))
		(pg_usleep) (microsec);
}

#endif							/* AL_TEST_HOOKS */
