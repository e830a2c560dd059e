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
 * The keys that the transaction has claimed are kept here too.  When it ends,
 * or rolls back to a savepoint, the claims go, and whoever waits for one of
 * these keys is woken: after the outcome is visible and the claims are gone,
 * which is when the resource owner has released its locks.
 *
 * Locking: none of its own.  Nothing here raises after pre-commit; what comes
 * after it may flush WAL and wait for a standby, as a commit does, and takes
 * the lock of the queue for a moment.
 *
 * IDENTIFICATION
 *		src/lock_xact.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "compat.h"
#include "executor/instrument.h"
#include "lock_lease.h"
#include "lock_wait.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

/* A key that the transaction has claimed */
typedef struct ClaimedKey
{
	uint64		hash;
	TimestampTz held_until;		/* 0: not known */
	uint64		owner_hash;		/* of whom it was granted to, if so */
	int			level;			/* of nesting, at which it was claimed */
	bool		first;			/* not claimed at a level above it, too */
} ClaimedKey;

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
}			xact;

/*
 * Keys claimed by the current transaction, in the order of their levels.  In
 * TopTransactionContext, which outlives the release of the locks.
 */
static ClaimedKey *claimed = NULL;
static int	claims = 0;
static int	keys = 0;			/* claimed, each counted once */
static int	claims_size = 0;
static bool wake_pending = false;	/* a subtransaction is being rolled back */

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
forget_claims(void)
{
	claimed = NULL;
	claims = keys = claims_size = 0;
	wake_pending = false;
}

/* Wake those who wait for the keys that were claimed at a level or below it */
static void
wake_waiters(int level, bool committed)
{
	while (claims > 0 && claimed[claims - 1].level >= level)
	{
		claims--;
		if (claimed[claims].first)
			keys--;
		al_wait_wake(claimed[claims].hash,
					 committed ? claimed[claims].held_until : 0,
					 claimed[claims].owner_hash);
	}
}

/*
 * The locks of a transaction or subtransaction have been released.  Of a
 * subtransaction that commits they have not, and what else is released with
 * its own resources (a portal) did not hold claims.
 */
static void
release_callback(ResourceReleasePhase phase, bool isCommit, bool isTopLevel, void *arg)
{
	if (phase != RESOURCE_RELEASE_AFTER_LOCKS || claimed == NULL)
		return;
	if (isTopLevel)
	{
		wake_waiters(0, isCommit);
		forget_claims();
	}
	else if (wake_pending)
	{
		wake_pending = false;
		wake_waiters(GetCurrentTransactionNestLevel(), false);
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
			if (event == XACT_EVENT_PREPARE)
				forget_claims();	/* they stay, and are nobody's */
			al_held_abort(0);
			relaxed = false;
			memset(&xact, 0, sizeof(xact));
			break;
		case XACT_EVENT_PARALLEL_PRE_COMMIT:
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PARALLEL_ABORT:
			break;
	}
}

/* A subtransaction commits: its claims are those of the one above it */
static void
lower_claims(int level)
{
	int			first = claims;
	int			kept;

	while (first > 0 && claimed[first - 1].level >= level)
		first--;
	kept = first;
	for (int i = first; i < claims; i++)
	{
		ClaimedKey	key = claimed[i];
		int			j = first - 1;

		while (j >= 0 && claimed[j].level == level - 1 && claimed[j].hash != key.hash)
			j--;
		key.level = level - 1;
		if (j >= 0 && claimed[j].hash == key.hash && claimed[j].level == level - 1)
		{
			key.first = claimed[j].first;
			claimed[j] = key;
		}
		else
			claimed[kept++] = key;
	}
	claims = kept;
}

static void
subxact_callback(SubXactEvent event, SubTransactionId mySubid,
				 SubTransactionId parentSubid, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();

	if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		al_held_abort(level);
		wake_pending = claims > 0 && claimed[claims - 1].level >= level;
	}
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
	{
		al_held_commit(level);
		lower_claims(level);
	}
}

void
al_xact_init(void)
{
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
	RegisterResourceReleaseCallback(release_callback, NULL);
}

/*
 * A claim is about to be taken.  Where it is the first of its key, raises 54000
 * if it is one too many.  Makes room to note it: once it is there, nothing may
 * go wrong.
 */
void
al_xact_before_claim(bool first)
{
	if (first && keys >= al_max_claims)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED), al_hide_owners(),
				 errmsg("a transaction may touch at most %d lock keys", al_max_claims),
				 errhint("Use several transactions, or ask an administrator to raise atomic_lock.max_claims_per_transaction and max_locks_per_transaction.")));

	if (claims == claims_size)
	{
		int			size = Max(claims_size * 2, 8);

		if (claimed == NULL)
			claimed = MemoryContextAlloc(TopTransactionContext, size * sizeof(ClaimedKey));
		else
			claimed = repalloc_huge(claimed, size * sizeof(ClaimedKey));
		claims_size = size;
	}
}

static ClaimedKey *
find_claimed(uint64 hash)
{
	for (int i = claims - 1; i >= 0; i--)
	{
		if (claimed[i].hash == hash)
			return &claimed[i];
	}
	return NULL;
}

/* A claim was taken, for what is not known yet */
void
al_xact_claimed(uint64 hash, bool first)
{
	ClaimedKey *key = first ? NULL : find_claimed(hash);
	int			level = GetCurrentTransactionNestLevel();

	/* A rollback to a savepoint leaves a weaker claim, but it wakes. */
	if (key == NULL || key->level < level)
	{
		key = &claimed[claims++];
		key->hash = hash;
		key->level = level;
		key->first = first;
		keys += first;
	}
	key->held_until = 0;
	key->owner_hash = 0;
}

/* The first claim of a key was given back */
void
al_xact_unclaimed(uint64 hash)
{
	ClaimedKey *key = find_claimed(hash);

	if (key)
	{
		claims--;
		keys--;
		memmove(key, key + 1, (claimed + claims - key) * sizeof(ClaimedKey));
	}
}

/* How many keys this transaction has claimed */
int
al_xact_claims(void)
{
	return keys;
}

/*
 * A lease was granted or extended: its commit must be flushed, and need not
 * wake those who look at the key before "held_until" (0: all must be woken).
 */
void
al_xact_granted(const AlKey *key, const AlOwner *owner, TimestampTz held_until)
{
	ClaimedKey *note = find_claimed(key->hash);

	if (note && note->level == GetCurrentTransactionNestLevel())
		note->held_until = held_until;
	if (note && !owner->generated)
		note->owner_hash = owner->hash;
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
