/*-------------------------------------------------------------------------
 *
 * lock_claim.c
 *		Claims: what an unfinished transaction has on a key.
 *
 * Model: a claim is a heavyweight lock that lasts until its transaction ends,
 * on the 64-bit hash of the key.  Whoever changes a holding has a claim on
 * its key first, so that nobody else can be changing it, and keeps it until
 * the change is visible to all or undone.  Two keys with one hash share their
 * claims, never their holdings.
 *
 * The tag is an advisory lock's, with a class of our own in the field that
 * pg_locks shows as objsubid: 1 and 2 are the application's advisory locks,
 * which therefore never meet ours.  Deadlock detection, lock_timeout,
 * pg_locks and pg_blocking_pids() work as for any lock.
 *
 *		act										mode				meets
 *		acquire, release, force, steal, sweep	AccessExclusive		nothing
 *		extend									ShareRowExclusive	nothing of these
 *
 * AccessShare is left for what must keep a lease where it is while it may
 * still be extended, RowExclusive for shared holdings, which must not meet
 * an extension: until that commits they would judge the old expiry.
 *
 * Locking rules: acquire and sweep try, the others wait.  A claim under
 * which nothing was written is dropped, so that a refused call keeps nobody
 * out.  No claim is taken while a buffer or LWLock is held.
 *
 * IDENTIFICATION
 *		src/lock_claim.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "lock_wait.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/resowner.h"

#define CLAIM_CLASS		1706

static void
claim_tag(LOCKTAG *tag, uint64 hash)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) (hash >> 32),
						 (uint32) hash, CLAIM_CLASS);
}

/*
 * Claims belong to the (sub)transaction that writes under them, not to the
 * portal that happens to run: a cursor that fails in a subtransaction takes
 * its own locks along, though an outer transaction's rows may rest on them.
 */
static LockAcquireResult
acquire_in_transaction(const LOCKTAG *tag, AlClaimMode mode, bool wait)
{
	ResourceOwner saved = CurrentResourceOwner;
	LockAcquireResult result;

	CurrentResourceOwner = CurTransactionResourceOwner;
	result = LockAcquire(tag, mode, false, !wait);
	CurrentResourceOwner = saved;
	return result;
}

static void
release_in_transaction(const LOCKTAG *tag, AlClaimMode mode)
{
	ResourceOwner saved = CurrentResourceOwner;

	CurrentResourceOwner = CurTransactionResourceOwner;
	LockRelease(tag, mode, false);
	CurrentResourceOwner = saved;
}

/* Has this transaction claimed the key? */
static bool
is_held(const LOCKTAG *tag)
{
	return al_lock_held(tag, AL_CLAIM_EXTEND) || al_lock_held(tag, AL_CLAIM_TAKE);
}

/* The same, of a key by its hash */
bool
al_claim_is_mine(uint64 hash)
{
	LOCKTAG		tag;

	claim_tag(&tag, hash);
	return is_held(&tag);
}

static bool
claim_internal(AlClaim *claim, const AlKey *key, AlClaimMode mode, bool wait)
{
	LOCKTAG		tag;
	LockAcquireResult result;

	claim_tag(&tag, key->hash);
	claim->hash = key->hash;
	claim->mode = mode;
	claim->first = !is_held(&tag);

	(void) al_queue();			/* for the wake-up when it is given back */
	al_xact_before_claim(claim->first);
	result = acquire_in_transaction(&tag, mode, wait);
	if (result == LOCKACQUIRE_NOT_AVAIL)
		return false;
	al_xact_claimed(key->hash, claim->first);
	return true;
}

/*
 * Claim a key until the transaction ends, waiting for unfinished transactions
 * that have it.  Raises what any lock wait can: 55P03 after lock_timeout,
 * 40P01, 57014; 54000 beyond atomic_lock.max_claims_per_transaction.
 */
void
al_claim(AlClaim *claim, const AlKey *key, AlClaimMode mode)
{
	(void) claim_internal(claim, key, mode, true);
}

/* The same without waiting: false where an unfinished transaction has the key */
bool
al_claim_try(AlClaim *claim, const AlKey *key, AlClaimMode mode)
{
	return claim_internal(claim, key, mode, false);
}

/*
 * Give a claim back under which nothing was written.  What the transaction
 * had claimed before stays.  Somebody may have met the claim and wait since.
 */
void
al_claim_drop(const AlClaim *claim)
{
	LOCKTAG		tag;

	claim_tag(&tag, claim->hash);
	release_in_transaction(&tag, claim->mode);
	if (claim->first)
	{
		al_xact_unclaimed(claim->hash);
		al_wait_wake(claim->hash, 0, 0);
	}
}

/* Processes (a list of integers) of others whose unfinished transactions have a key */
List *
al_claim_rivals(uint64 hash)
{
	LOCKTAG		tag;
	VirtualTransactionId *holders;
	List	   *pids = NIL;

	claim_tag(&tag, hash);
	holders = GetLockConflicts(&tag, AccessExclusiveLock, NULL);
	for (; VirtualTransactionIdIsValid(*holders); holders++)
	{
		int			pid = al_vxid_pid(*holders);

		if (pid != 0)
			pids = lappend_int(pids, pid);
	}
	return pids;
}

/*
 * One of them, for messages.  0: a prepared transaction has the key, or nobody
 * any more.
 */
int
al_claim_rival(const AlKey *key)
{
	List	   *pids = al_claim_rivals(key->hash);

	return pids == NIL ? 0 : linitial_int(pids);
}
