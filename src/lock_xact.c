/*-------------------------------------------------------------------------
 *
 * lock_xact.c
 *		What happens at commit, abort, savepoint and prepare.
 *
 * Model: the durability of a transaction follows from what it did with locks.
 * One that granted or extended a lease is committed with synchronous_commit
 * at least "on": an acknowledged grant must survive a crash.  One that did
 * nothing but release is committed asynchronously: a lost release only leaves
 * a lease to run out.  One that also wrote anything else keeps the session's
 * level, which is why a release notes how much WAL this backend had written:
 * more at commit means somebody else's data.
 *
 * The level is changed where the commit reads it and nowhere earlier, because
 * SET LOCAL would be undone at the end of a function with a SET clause.
 *
 * The number of claims is kept here too, since rolling back to a savepoint
 * gives back those taken after it.
 *
 * Locking: none of its own.  Nothing here raises after pre-commit; what comes
 * after it may flush WAL and wait for a standby, as a commit does.
 *
 * IDENTIFICATION
 *		src/lock_xact.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "atomic_lock.h"
#include "compat.h"
#include "executor/instrument.h"
#include "utils/memutils.h"

/* Claims at the start of a subtransaction that took some */
typedef struct SubClaims
{
	int			level;
	int			claims_before;
	struct SubClaims *parent;
} SubClaims;

/* What the current transaction has written, as far as its commit cares */
typedef enum XactWrote
{
	WROTE_NOTHING,				/* nothing of ours */
	WROTE_RELEASES,				/* nothing but releases that may be relaxed */
	WROTE_MORE
} XactWrote;

/* State of the current transaction */
static struct
{
	bool		force_flush;	/* granted something that must be durable */
	XactWrote	wrote;
	int64		wal_records;	/* of pgWalUsage, after the last release */
	int			claims;
	SubClaims  *sub_claims;		/* in TopTransactionContext */
}			xact;

static int	session_level = -1; /* synchronous_commit to go back to, or -1 */
static bool relaxed = false;	/* this commit is not flushed, because of us */

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

static void
before_commit(bool prepare)
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
 * A relaxed commit is over.  If there is more WAL than the commit record,
 * somebody else's pre-commit callback wrote after ours: make up for the flush
 * before the client hears of the commit.
 */
static void
after_commit(void)
{
	if (relaxed && pgWalUsage.wal_records > xact.wal_records + 1)
	{
		XLogFlush(XactLastCommitEnd);
		SyncRepWaitForLSN(XactLastCommitEnd, true);
	}
}

static void
xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			before_commit(false);
			break;
		case XACT_EVENT_PRE_PREPARE:
			before_commit(true);
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			restore_commit_level();
			if (event == XACT_EVENT_COMMIT)
				after_commit();
			relaxed = false;
			memset(&xact, 0, sizeof(xact));
			break;
		case XACT_EVENT_PARALLEL_PRE_COMMIT:
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PARALLEL_ABORT:
			break;
	}
}

static void
subxact_callback(SubXactEvent event, SubTransactionId mySubid,
				 SubTransactionId parentSubid, void *arg)
{
	SubClaims  *sub = xact.sub_claims;
	int			level;

	if (sub == NULL || (event != SUBXACT_EVENT_ABORT_SUB &&
						event != SUBXACT_EVENT_COMMIT_SUB))
		return;
	level = GetCurrentTransactionNestLevel();
	if (sub->level != level)
		return;

	if (event == SUBXACT_EVENT_ABORT_SUB)
		xact.claims = sub->claims_before;
	else if (level > 2 && (sub->parent == NULL || sub->parent->level < level - 1))
	{
		sub->level = level - 1;
		return;
	}
	xact.sub_claims = sub->parent;
	pfree(sub);
}

void
al_xact_init(void)
{
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
}

/*
 * Count a claim that was just taken; raises 54000 where it is one too many.
 * The claim itself is given back by the abort that follows.
 */
void
al_xact_claimed(void)
{
	int			level = GetCurrentTransactionNestLevel();

	if (xact.claims >= al_max_claims)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED), al_hide_owners(),
				 errmsg("a transaction may touch at most %d lock keys", al_max_claims),
				 errhint("Use several transactions, or ask an administrator to raise atomic_lock.max_claims_per_transaction and max_locks_per_transaction.")));

	if (level > 1 && (xact.sub_claims == NULL || xact.sub_claims->level < level))
	{
		SubClaims  *sub = MemoryContextAlloc(TopTransactionContext, sizeof(SubClaims));

		sub->level = level;
		sub->claims_before = xact.claims;
		sub->parent = xact.sub_claims;
		xact.sub_claims = sub;
	}
	xact.claims++;
}

/* How many more claims this transaction may take */
int
al_xact_claims_left(void)
{
	return Max(al_max_claims - xact.claims, 0);
}

/* A claim was given back */
void
al_xact_unclaimed(void)
{
	if (xact.claims > 0)
		xact.claims--;
}

/* A lease was granted or extended: its commit must be flushed */
void
al_xact_granted(void)
{
	if (al_acquire_durability == AL_ACQUIRE_FORCED)
		xact.force_flush = true;
	xact.wrote = WROTE_MORE;
}

/*
 * A lease is about to be released.  Whatever this transaction has written
 * before gave it an xid; what it wrote since its last release is WAL.
 */
void
al_xact_before_release(void)
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
al_xact_released(void)
{
	xact.wal_records = pgWalUsage.wal_records;
}
