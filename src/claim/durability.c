/*-------------------------------------------------------------------------
 *
 * durability.c
 *		How durable the commit of a transaction is.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: a transaction that granted or extended a lease commits with synchronous_commit at least
 * "on".  One that only released leases commits asynchronously, because a lost release only leaves
 * a lease that expires.  One that also wrote anything else keeps the level of the session: a
 * release notes how much WAL this backend has written, and more at commit is other data.  The
 * level is changed in the variable that the commit reads, at pre-commit: SET LOCAL would be
 * undone at the end of a function with a SET clause.
 *
 * When the wait for a synchronous standby is cancelled, PostgreSQL acknowledges the commit with a
 * warning, but a new primary may lack that commit.  A grant is then in doubt: its connection ends
 * without an acknowledgement.  The confirmations of the standbys decide that, not the end of the
 * wait.  The client learns of the doubt after the claims have ended, so that it can acquire again
 * at once.
 *
 * Locking: SyncRepLock, for a moment.  The steps after the commit may flush WAL and wait for a
 * standby, as a commit does.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "executor/instrument.h"

#include "base/compat.h"
#include "base/settings.h"
#include "claim/durability.h"

/* The writes of the current transaction that its commit depends on */
typedef enum Wrote
{
	WROTE_NOTHING,				/* nothing of ours */
	WROTE_RELEASES,				/* only releases that may be relaxed */
	WROTE_MORE
} Wrote;

static struct
{
	bool		granted;		/* it granted or extended a lease ... */
	bool		force_flush;	/* ... which must be durable */
	Wrote		wrote;
	int64		wal_records;	/* of pgWalUsage, after the last release */
	uint64		wal_bytes;		/* of pgWalUsage, before a PREPARE */
}			xact;

static int	session_level = -1; /* synchronous_commit to restore, or -1 */
static bool relaxed = false;	/* we made this commit asynchronous */
static bool in_doubt = false;	/* a standby may lack the grant of this commit */

static void
set_commit_level(int level)
{
	Assert(session_level < 0);
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

void
al_durability_before_commit(bool prepare)
{
	Assert(session_level < 0 && !relaxed);
	xact.wal_bytes = pgWalUsage.wal_bytes;
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

/* The end of the record of the PREPARE that this backend has just written, or an upper bound */
static XLogRecPtr
end_of_prepare(void)
{
	XLogRecPtr	end = ProcLastRecPtr;
	uint64		left = MAXALIGN64(pgWalUsage.wal_bytes - xact.wal_bytes);

	Assert(!XLogRecPtrIsInvalid(end));
	for (;;)
	{
		uint64		room = XLOG_BLCKSZ - end % XLOG_BLCKSZ;

		if (left <= room)
			return end + left;
		left -= room;
		end += room;
		end += XLogSegmentOffset(end, wal_segment_size) == 0 ?
			SizeOfXLogLongPHD : SizeOfXLogShortPHD;
	}
}

/* Do standbys still have to confirm this commit, by the rules of SyncRepWaitForLSN()? */
static bool
lacks_standbys(bool prepare)
{
	XLogRecPtr	end = prepare ? end_of_prepare() : XactLastCommitEnd;
	int			mode = SYNC_REP_WAIT_FLUSH;
	bool		lacks;

	if (!SyncRepRequested() || !al_standbys_wanted())
		return false;
	if (synchronous_commit == SYNCHRONOUS_COMMIT_REMOTE_WRITE)
		mode = SYNC_REP_WAIT_WRITE;
	else if (synchronous_commit == SYNCHRONOUS_COMMIT_REMOTE_APPLY && !prepare)
		mode = SYNC_REP_WAIT_APPLY;

	/* The server releases the waiters before it notes that no standby is needed. */
	LWLockAcquire(SyncRepLock, LW_SHARED);
	lacks = WalSndCtl->lsn[mode] < end && al_standbys_wanted();
	LWLockRelease(SyncRepLock);
	return lacks;
}

/*
 * Restore the level of the session.  If a relaxed commit has more WAL than its own record, the
 * pre-commit callback of another module wrote after ours: flush that WAL.
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

void
al_durability_at_end(void)
{
	restore_commit_level();
	relaxed = false;
	memset(&xact, 0, sizeof(xact));
}

/* Was the last transaction committed in doubt?  True only once. */
bool
al_durability_is_in_doubt(void)
{
	bool		result = in_doubt;

	in_doubt = false;
	return result;
}

void
al_durability_granted(void)
{
	xact.granted = true;
	if (al_acquire_durability == AL_ACQUIRE_FORCED)
		xact.force_flush = true;
	xact.wrote = WROTE_MORE;
}

/*
 * Note that a lease is about to be released.  If the transaction wrote anything before its first
 * release, it has an xid; if since its last release, this backend has written more WAL.
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

void
al_durability_released(void)
{
	Assert(xact.wrote != WROTE_NOTHING);
	xact.wal_records = pgWalUsage.wal_records;
}
