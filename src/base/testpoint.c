/*-------------------------------------------------------------------------
 *
 * testpoint.c
 *		Points at which a test can stop a backend.
 *
 * Locking: a test point waits for the test's advisory lock.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/settings.h"
#include "base/testpoint.h"

#ifdef AL_TEST_HOOKS

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/proc.h"

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

#endif							/* AL_TEST_HOOKS */
