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
 * Where synchronous standbys are wanted, PostgreSQL acknowledges a commit whose
 * wait for them was cancelled, with a warning that no driver looks at.  The new
 * primary may not know of it, so for a grant that will not do: it is in doubt,
 * and its connection ends without an acknowledgement.  Whether it is in doubt is
 * judged by what the standbys have confirmed, not by how the wait ended; the client
 * is told when the claims are gone, so that it can acquire again at once.
 *
 * The keys that the transaction has claimed are kept here too.  When it ends,
 * or rolls back to a savepoint, the claims go, and whoever waits for one of
 * these keys is woken: after the outcome is visible and the claims are gone,
 * which is when the resource owner has released its locks.  With a key go the
 * pins on it (lock_pin.c), since a pin is worth as much as its claim.
 *
 * Locking: none of its own.  Nothing here raises after pre-commit; what comes
 * after it may flush WAL and wait for a standby, as a commit does, and takes
 * the locks of the queue and of synchronous replication for a moment.
 *
 * IDENTIFICATION
 *		src/claim/claimed.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "common/hashfn.h"
#include "base/compat.h"
#include "executor/instrument.h"
#include "lock_lease.h"
#include "lock_stat.h"
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
	int			count;			/* of claims; 0: all given back */
	int			previous;		/* claimed at a level above it, too: where; or -1 */
	int			changes;		/* how many of them are not only to pin */
	int32		slot;			/* of the row that was written last ... */
	ItemPointerData row;		/* ... and where it is; invalid: none */
	AlPin	   *pins;			/* newest first, those of levels above at the end */
} ClaimedKey;

/* Which entry of a key is the newest */
typedef struct ClaimedPlace
{
	uint64		hash;
	int			place;
	char		status;
} ClaimedPlace;

#define SH_PREFIX places
#define SH_ELEMENT_TYPE ClaimedPlace
#define SH_KEY_TYPE uint64
#define SH_KEY hash
#define SH_HASH_KEY(table, key) murmurhash32((uint32) ((key) ^ ((key) >> 32)))
#define SH_EQUAL(table, a, b) ((a) == (b))
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

#define PLACES_KEPT 1024		/* a larger table is not kept for the next transaction */

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
	bool		granted;		/* or extended a lease */
	bool		force_flush;	/* ... that must be durable */
	XactWrote	wrote;
	int64		wal_records;	/* of pgWalUsage, after the last release */
}			xact;

/*
 * Keys claimed by the current transaction, in the order of their levels.  In
 * TopTransactionContext, which outlives the release of the locks.
 */
static ClaimedKey *claimed = NULL;
static places_hash *places = NULL;	/* empty between transactions */
static int	claims = 0;
static int	keys = 0;			/* claimed, each counted once */
static int	claims_size = 0;
static bool wake_pending = false;	/* a subtransaction is being rolled back */
static uint64 changes = 1;		/* see al_xact_changes() */

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
 * Has this commit to be confirmed by standbys, and is not yet?  As
 * SyncRepWaitForLSN() sees it, at the level of the commit.  Of the record of
 * PREPARE it is only known where it begins; a standby that has confirmed a part of it
 * has done so to the end of a page.
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
	if (places && places->size > PLACES_KEPT)
	{
		places_destroy(places);
		places = NULL;
	}
	else if (places && places->members > 0)
		places_reset(places);
}

/* The newest entry of a key */
static ClaimedKey *
find_claimed(uint64 hash)
{
	ClaimedPlace *place = claims > 0 ? places_lookup(places, hash) : NULL;

	return place ? &claimed[place->place] : NULL;
}

/* What was claimed of a key at a level is gone; what was above it is the newest */
static void
unlink_claimed(const ClaimedKey *key)
{
	if (key->previous >= 0)
		places_lookup(places, key->hash)->place = key->previous;
	else
	{
		places_delete(places, key->hash);
		keys--;
	}
}

/* Take the last entry off */
static void
pop_claimed(void)
{
	ClaimedKey *key = &claimed[--claims];

	if (key->count > 0)
		unlink_claimed(key);
}

/*
 * Wake those who wait for the keys that were claimed at a level or below it, and
 * tell everybody where their rows are, if they have come to stay
 */
static void
wake_waiters(int level, bool committed)
{
	while (claims > 0 && claimed[claims - 1].level >= level)
	{
		ClaimedKey	key = claimed[claims - 1];

		pop_claimed();
		if (committed && ItemPointerIsValid(&key.row))
			al_hint_set(key.hash, key.slot, &key.row);
		if (key.count > 0)
			al_wait_wake(key.hash, committed || key.changes == 0 ? key.held_until : 0,
						 key.owner_hash);
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
	if (phase != RESOURCE_RELEASE_AFTER_LOCKS)
		return;
	if (isTopLevel)
	{
		al_sweep_over();
		if (claimed)
		{
			/* Where an abort failed, there would be no end of it. */
			if (isCommit)
				AL_INJECTION_POINT("atomic-lock-before-wake");
			wake_waiters(0, isCommit);
			forget_claims();
		}
		/* A client that reads slowly must not be in the way of the waiters. */
		if (in_doubt)
			al_report_doubt();
		in_doubt = false;
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
			if (event != XACT_EVENT_ABORT && xact.granted)
				in_doubt = lacks_standbys(event == XACT_EVENT_PREPARE);
			restore_commit_level();
			if (event == XACT_EVENT_COMMIT)
				after_commit();
			if (event == XACT_EVENT_PREPARE)
				forget_claims();	/* they stay, and are nobody's */
			if (event != XACT_EVENT_ABORT)
			{
				if (al_held_count() > 0)
					al_stat_count(AL_COUNT_RELEASES, al_held_count());
				al_stat_commit();
			}
			al_stat_abort();
			al_held_abort(0);
			al_xact_changed();
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
		ClaimedKey *above = key.previous >= 0 ? &claimed[key.previous] : NULL;

		if (key.count == 0)
			continue;
		key.level = level - 1;
		if (above == NULL || above->level != level - 1)
		{
			places_lookup(places, key.hash)->place = kept;
			claimed[kept++] = key;
			continue;
		}
		places_lookup(places, key.hash)->place = key.previous;
		key.count += above->count;
		if (key.changes == 0)
		{
			above->pins = key.pins;
			above->count = key.count;
		}
		else
		{
			key.previous = above->previous;
			key.changes += above->changes;
			*above = key;
		}
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
		al_stat_subabort(level);
		al_xact_changed();
		wake_pending = claims > 0 && claimed[claims - 1].level >= level;
	}
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
	{
		al_held_commit(level);
		al_stat_subcommit(level);
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
 * A claim is about to be taken.  Raises 54000 if it would be one key too many.  Makes room to note it: once it is there, nothing may
 * go wrong.
 */
void
al_xact_before_claim(uint64 hash)
{
	if (keys >= al_max_claims && find_claimed(hash) == NULL)
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
	if (places == NULL)
		places = places_create(TopMemoryContext, 32, NULL);
	else if (places->members >= places->grow_threshold)
		places_grow(places, (uint64) places->size * 2);
}

/* A claim was taken, for what is not known yet, or to pin a holding */
void
al_xact_claimed(uint64 hash, bool is_pin)
{
	ClaimedKey *key = find_claimed(hash);
	int			level = GetCurrentTransactionNestLevel();

	/* A rollback to a savepoint leaves a weaker claim, but it wakes. */
	if (key == NULL || key->level < level)
	{
		ClaimedKey	new_key = {.hash = hash, .level = level, .previous = -1};
		bool		found;
		ClaimedPlace *place = places_insert(places, hash, &found);

		if (found)
		{
			Assert(key != NULL);
			new_key.previous = place->place;
			new_key.pins = key->pins;
		}
		else
			keys++;
		/* al_xact_before_claim() has made room */
		Assert(claimed != NULL && claims < claims_size);
		place->place = claims;
		key = &claimed[claims++];
		*key = new_key;
	}
	else if (!is_pin)
	{
		key->held_until = 0;
		key->owner_hash = 0;
	}
	key->count++;
	if (!is_pin)
		key->changes++;
}

/* A claim was given back, at the level at which it was taken */
void
al_xact_unclaimed(uint64 hash, bool is_pin)
{
	ClaimedKey *key = find_claimed(hash);

	if (key == NULL)
		return;
	if (!is_pin)
		key->changes--;
	if (--key->count > 0)
		return;
	unlink_claimed(key);
	while (claims > 0 && claimed[claims - 1].count == 0)
		claims--;
}

/* Has this transaction claimed a key for more than to pin its holding? */
bool
al_xact_is_changing(uint64 hash)
{
	ClaimedKey *key = find_claimed(hash);

	while (key && key->changes == 0)
		key = key->previous >= 0 ? &claimed[key->previous] : NULL;
	return key != NULL;
}

/* Has this transaction claimed a key? */
bool
al_xact_is_claimed(uint64 hash)
{
	return find_claimed(hash) != NULL;
}

/* How many keys this transaction has claimed */
int
al_xact_claims(void)
{
	return keys;
}

/*
 * A lease was granted or extended: its commit must be flushed, is not acknowledged
 * while it is in doubt, and need not wake those who look at the key before
 * "held_until" (0: all must be woken).
 */
void
al_xact_granted(const AlKey *key, const AlOwner *owner, TimestampTz held_until)
{
	ClaimedKey *note = find_claimed(key->hash);

	if (note && note->level == GetCurrentTransactionNestLevel())
		note->held_until = held_until;
	if (note && !owner->generated)
		note->owner_hash = owner->hash;
	xact.granted = true;
	if (al_acquire_durability == AL_ACQUIRE_FORCED)
		xact.force_flush = true;
	xact.wrote = WROTE_MORE;
}

/* The pins on keys of a hash: the newest, from which "next" leads to the others */
AlPin *
al_xact_pins(uint64 hash)
{
	ClaimedKey *key = find_claimed(hash);

	return key ? key->pins : NULL;
}

/*
 * A holding was pinned, under a claim of this transaction.  Nobody who looks at
 * the key before "held_until" needs to be woken when it ends.
 */
void
al_xact_pinned(uint64 hash, AlPin *pin, TimestampTz held_until)
{
	ClaimedKey *key = find_claimed(hash);

	if (key == NULL)
		return;
	pin->next = key->pins;
	key->pins = pin;
	if (key->changes == 0)
		key->held_until = held_until;
}

/*
 * This number changes with whatever this transaction changes about holdings, with
 * a rollback to a savepoint, and at the end: what was seen of a holding that
 * the transaction has claimed or pinned stays so while it does not.
 */
uint64
al_xact_changes(void)
{
	return changes;
}

void
al_xact_changed(void)
{
	changes++;
}

/*
 * A row was written: the holding in a slot of a key, by the hash of the key.  Its
 * place is a hint when it is committed: before that it would lead nobody else to
 * the version that they see.
 */
void
al_xact_written(uint64 hash, int32 slot, ItemPointer row)
{
	ClaimedKey *key = find_claimed(hash);

	if (key)
	{
		key->slot = slot;
		key->row = *row;
	}
	al_xact_changed();
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
