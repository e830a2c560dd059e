/*-------------------------------------------------------------------------
 *
 * durability.c
 *		How durable the commit of a transaction is.
 *
 * Model: the durability of a transaction follows from what it did with locks.  One
 * that granted or extended a lease is committed with synchronous_commit at least
 * "on": an acknowledged grant must survive a crash.  One that did nothing but release
 * is committed asynchronously: a lost release only leaves a lease to run out.  One
 * that also wrote anything else keeps the session's level, which is why a release
 * notes how much WAL this backend had written: more at commit means somebody else's
 * data.
 *
 * The level is changed where the commit reads it and nowhere earlier, because SET
 * LOCAL would be undone at the end of a function with a SET clause.
 *
 * Where synchronous standbys are wanted, PostgreSQL acknowledges a commit whose wait
 * for them was cancelled, with a warning that no driver looks at.  The new primary may
 * not know of that commit.  For a grant this will not do: it is in doubt, and its
 * connection ends without an acknowledgement.  Whether it is in doubt is judged by
 * what the standbys have confirmed, not by how the wait ended.  The client is told
 * when the claims are gone, so that it can acquire again at once.
 *
 * Locking: SyncRepLock, for a moment.  What comes after the commit may flush WAL and
 * wait for a standby, as a commit does.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "executor/instrument.h"

#include "base/compat.h"
#include "base/settings.h"
#include "claim/durability.h"

/* What the current transaction has written, as far as its commit cares */
typedef enum Wrote
{
	WROTE_NOTHING,				/* nothing of ours */
	WROTE_RELEASES,				/* nothing but releases that may be relaxed */
	WROTE_MORE
} Wrote;

/* State of the current transaction */
static struct
{
	bool		granted;		/* or extended a lease */
	bool		force_flush;	/* ... that must be durable */
	Wrote		wrote;
	int64		wal_records;	/* of pgWalUsage, after the last release */
}			xact;

static int	session_level = -1; /* synchronous_commit to go back to, or -1 */
static bool relaxed = false;	/* this commit is not flushed, because of us */
static bool in_doubt = false;	/* this commit has a grant that a standby may lack */

static void
set_commit_level(int level)
{
	session_level = synchronous_commit;
	synchronous_commit = level;
	assign_synchronous_commit(level, NULL);
}

static void
restore_commit_level(void)
{
	if (session_level < 0)
		return;
	synchronous_commit = session_level;
	assign_synchronous_commit(session_level, NULL);
	session_level = -1;
}

/* The transaction is about to be committed, or prepared. */
void
al_durability_before_commit(bool prepare)
{
	if (xact.force_flush)
	{
		if (synchronous_commit < SYNCHRONOUS_COMMIT_ON)
			set_commit_level(SYNCHRONOUS_COMMIT_ON);
	}
	else if (xact.wrote == WROTE_RELEASES && !prepare &&
			 xact.wal_records == pgWalUsage.wal_records &&
			 synchronous_commit > SYNCHRONOUS_COMMIT_OFF)
	{
		set_commit_level(SYNCHRONOUS_COMMIT_OFF);
		relaxed = true;
	}
}

/*
 * Must standbys confirm this commit, and have they not done so yet?  This is judged as
 * SyncRepWaitForLSN() does it, at the level of the commit.  Of the record of PREPARE
 * it is only known where it begins.  A standby that has confirmed a part of it has
 * done so to the end of a page.
 */
static bool
lacks_standbys(bool prepare)
{
	int			mode = SYNC_REP_WAIT_FLUSH;
	bool		lacks;

	if (!SyncRepRequested() || !al_standbys_wanted())
		return false;
	if (synchronous_commit == SYNCHRONOUS_COMMIT_REMOTE_WRITE)
		mode = SYNC_REP_WAIT_WRITE;
	else if (synchronous_commit == SYNCHRONOUS_COMMIT_REMOTE_APPLY && !prepare)
		mode = SYNC_REP_WAIT_APPLY;

	/* Waiters are let go before it is noted that nobody is to be waited for. */
	LWLockAcquire(SyncRepLock, LW_SHARED);
	if (prepare)
		lacks = WalSndCtl->lsn[mode] <= ProcLastRecPtr ||
			(WalSndCtl->lsn[mode] % XLOG_BLCKSZ == 0 &&
			 WalSndCtl->lsn[mode] < GetXLogInsertRecPtr());
	else
		lacks = WalSndCtl->lsn[mode] < XactLastCommitEnd;
	lacks = lacks && al_standbys_wanted();
	LWLockRelease(SyncRepLock);
	return lacks;
}

/*
 * The transaction has been committed, or prepared: set the session's level again.
 * Where a relaxed commit has more WAL than its own record, somebody else's
 * pre-commit callback wrote after ours: make up for the flush before the client
 * hears of the commit.
 */
void
al_durability_after_commit(bool prepare)
{
	if (xact.granted)
		in_doubt = lacks_standbys(prepare);
	restore_commit_level();
	if (relaxed && pgWalUsage.wal_records > xact.wal_records + 1)
	{
		XLogFlush(XactLastCommitEnd);
		SyncRepWaitForLSN(XactLastCommitEnd, true);
	}
}

/* The transaction is over. */
void
al_durability_at_end(void)
{
	restore_commit_level();
	relaxed = false;
	memset(&xact, 0, sizeof(xact));
}

/* Was the transaction that is over committed in doubt?  True only once. */
bool
al_durability_is_in_doubt(void)
{
	bool		result = in_doubt;

	in_doubt = false;
	return result;
}

/* A lease was granted or extended, so that its commit must be flushed. */
void
al_durability_granted(void)
{
	xact.granted = true;
	if (al_acquire_durability == AL_ACQUIRE_FORCED)
		xact.force_flush = true;
	xact.wrote = WROTE_MORE;
}

/*
 * A lease is about to be released.  Whatever this transaction has written
 * before gave it an xid; what it wrote since its last release is WAL.
 */
void
al_durability_before_release(void)
{
	bool		others_wrote;

	if (xact.wrote == WROTE_NOTHING)
		others_wrote = TransactionIdIsValid(GetTopTransactionIdIfAny());
	else
		others_wrote = xact.wrote == WROTE_MORE ||
			xact.wal_records != pgWalUsage.wal_records;

	if (others_wrote || al_release_durability != AL_RELEASE_RELAXED)
		xact.wrote = WROTE_MORE;
	else
		xact.wrote = WROTE_RELEASES;
}

/* A lease was released */
void
al_durability_released(void)
{
	xact.wal_records = pgWalUsage.wal_records;
}
