/*-------------------------------------------------------------------------
 *
 * claim.c
 *		Claims: what an unfinished transaction has on a key.
 *
 * Model: a claim is a heavyweight lock that lasts until its transaction ends,
 * on the 64-bit hash of the key.  Whoever changes a holding has a claim on
 * its key first, so that nobody else can be changing it, and keeps it until
 * the change is visible to all or undone.  Two keys with one hash would share
 * their claims, never their holdings; since the hash has a secret (base/hash.c),
 * nobody can construct such keys.
 *
 * The tag is an advisory lock's, with classes of our own in the field that
 * pg_locks shows as objsubid: 1 and 2 are the application's advisory locks,
 * which therefore never meet ours.  Deadlock detection, lock_timeout,
 * pg_locks and pg_blocking_pids() work as for any lock.
 *
 *		class			on					mode
 *		key				key					of what is done, see below
 *		holding			key and owner		AccessExclusive; ShareUpdateExclusive to
 *											extend it, AccessShare to pin it
 *		transaction		key					Share or Exclusive
 *		upgrade			key					AccessExclusive
 *
 *		done with the key						mode				meets
 *		exclusive: acquire, release, transfer;
 *		convert, force, steal, sweep			AccessExclusive		nothing
 *		exclusive: extend						ShareRowExclusive	pins
 *		exclusive: pin							RowShare			all but the first
 *		shared: acquire, release, extend ...	RowExclusive		itself, pins
 *		shared: pin								AccessShare			all but the first
 *
 * A pin keeps a lease from being taken, even one whose time is up.  It lets
 * extensions pass, and so must let those pass that share the key.  A pin of a
 * shared lease is on the holding too.  Who is to share a key whose exclusive
 * lease ran out asks whether it is pinned: which others have a lock that meets
 * Exclusive, and none that meets Share?  Once the lease has run out nobody can
 * pin it any more, so to ask once is enough.  A transaction that pins a lease
 * must not be taken for one that only shares the key, though it may do that
 * too, or with another key of the same hash.  What it does second it claims in
 * a mode that lets nobody share: ShareRowExclusive to pin, AccessExclusive to
 * share.
 *
 * Shared holdings of different owners do not exclude each other.  What is done
 * with the shared holding of one owner excludes the rest by a claim on that
 * holding, which is taken later where the owner is yet to be generated.  A
 * shared acquire must not meet an extension of an exclusive lease: until that
 * commits it would judge the old expiry.
 *
 * A holding with the lifetime of a transaction has no row, it is a claim on
 * the key.  The transaction class says so to those who ask; see claim/held.c.
 * The upgrade class makes sure that only one waits to turn a shared holding of
 * a key into the exclusive one: two would wait for each other.
 *
 * Locking rules: acquire and sweep try, the others wait.  A claim under
 * which nothing was written is dropped, so that a refused call keeps nobody
 * out.  Key first, then holding.  No claim is taken while a buffer or LWLock
 * is held.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/resowner.h"

#include "atomic_lock.h"
#include "base/compat.h"
#include "base/owner.h"
#include "claim/claim.h"
#include "claim/claimed.h"
#include "shmem/queue.h"
#include "shmem/shmem.h"

/* Classes of tags */
#define KEY			1706
#define HOLDING		1707
#define TRANSACTION	1708
#define UPGRADE		1709

static void
set_tag(LOCKTAG *tag, uint16 class, uint64 hash)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) (hash >> 32),
						 (uint32) hash, class);
}

/*
 * Claims belong to the (sub)transaction that writes under them, not to the
 * portal that happens to run: a cursor that fails in a subtransaction takes
 * its own locks along, though an outer transaction's rows may rest on them.
 */
static bool
acquire_in_transaction(const LOCKTAG *tag, LOCKMODE mode, bool wait)
{
	ResourceOwner saved = CurrentResourceOwner;
	LockAcquireResult result;

	CurrentResourceOwner = CurTransactionResourceOwner;
	result = LockAcquire(tag, mode, false, !wait);
	CurrentResourceOwner = saved;
	return result != LOCKACQUIRE_NOT_AVAIL;
}

static void
release_in_transaction(const LOCKTAG *tag, LOCKMODE mode)
{
	ResourceOwner saved = CurrentResourceOwner;

	CurrentResourceOwner = CurTransactionResourceOwner;
	LockRelease(tag, mode, false);
	CurrentResourceOwner = saved;
}

/* How the key itself is claimed */
static LOCKMODE
key_mode(const AlClaim *claim)
{
	switch (claim->mode)
	{
		case AL_CLAIM_PIN:
			return claim->holding != 0 ? AccessShareLock : RowShareLock;
		case AL_CLAIM_SHARE:
		case AL_CLAIM_SHARE_EXTEND:
			return RowExclusiveLock;
		case AL_CLAIM_EXTEND:
			return ShareRowExclusiveLock;
		case AL_CLAIM_TAKE:
			break;
	}
	return AccessExclusiveLock;
}

/* How the holding is claimed with its key, where it is */
static LOCKMODE
holding_mode(const AlClaim *claim)
{
	switch (claim->mode)
	{
		case AL_CLAIM_PIN:
			return AccessShareLock;
		case AL_CLAIM_SHARE_EXTEND:
			return ShareUpdateExclusiveLock;
		default:
			return AccessExclusiveLock;
	}
}

/* Has this transaction pinned the exclusive lease of a key? */
static bool
has_pinned(uint64 hash)
{
	for (const AlPin *pin = al_claimed_pins(hash); pin; pin = pin->next)
	{
		if (pin->slot == AL_SLOT_EXCLUSIVE)
			return true;
	}
	return false;
}

/* Give the claim on the key itself back */
static void
give_back(const AlClaim *claim)
{
	LOCKTAG		tag;

	set_tag(&tag, KEY, claim->hash);
	release_in_transaction(&tag, key_mode(claim));
	al_claimed_remove(claim->hash, claim->is_pin);
	if (claim->mode == AL_CLAIM_TAKE || claim->mode == AL_CLAIM_EXTEND ||
		(claim->mode == AL_CLAIM_PIN && claim->holding == 0))
		al_queue_wake(claim->hash, 0, 0);
	else
		al_queue_wake_exclusive(claim->hash);
}

static bool
claim_internal(AlClaim *claim, const AlKey *key, const AlOwner *owner,
			   AlClaimMode mode, bool wait)
{
	LOCKTAG		tag;

	set_tag(&tag, KEY, key->hash);
	claim->hash = key->hash;
	claim->holding = owner && !owner->generated ? al_holding_hash(key, owner) : 0;
	claim->first = !al_claimed_has(key->hash);
	claim->mode = mode;
	claim->is_pin = mode == AL_CLAIM_PIN;
	if ((mode == AL_CLAIM_SHARE || mode == AL_CLAIM_SHARE_EXTEND) && has_pinned(key->hash))
		claim->mode = AL_CLAIM_TAKE;
	else if (claim->is_pin && claim->holding == 0 && al_claimed_is_changing(key->hash))
		claim->mode = AL_CLAIM_EXTEND;

	(void) al_shmem_attach();	/* for the wake-up when it is given back */
	al_claimed_reserve(key->hash);
	if (!acquire_in_transaction(&tag, key_mode(claim), wait))
		return false;
	al_claimed_add(key->hash, claim->is_pin);
	if (claim->holding == 0)
		return true;

	set_tag(&tag, HOLDING, claim->holding);
	if (acquire_in_transaction(&tag, holding_mode(claim), wait))
		return true;
	give_back(claim);
	return false;
}

/*
 * Claim a key until the transaction ends, waiting for unfinished transactions
 * that have it; "owner", where it is not NULL, says whose shared holding is
 * claimed.  Raises what any
 * lock wait can: 55P03 after lock_timeout, 40P01, 57014; 54000 beyond
 * atomic_lock.max_claims_per_transaction.
 */
void
al_claim(AlClaim *claim, const AlKey *key, const AlOwner *owner, AlClaimMode mode)
{
	(void) claim_internal(claim, key, owner, mode, true);
}

/*
 * The same without waiting: false where an unfinished transaction has the key.
 * Then the claim says what was wanted.
 */
bool
al_claim_try(AlClaim *claim, const AlKey *key, const AlOwner *owner, AlClaimMode mode)
{
	return claim_internal(claim, key, owner, mode, false);
}

/* Claim a shared holding whose owner was just generated */
void
al_claim_holding(const AlKey *key, const AlOwner *owner)
{
	LOCKTAG		tag;

	set_tag(&tag, HOLDING, al_holding_hash(key, owner));
	(void) acquire_in_transaction(&tag, AccessExclusiveLock, true);
}

/*
 * May a key be shared whose exclusive lease ran out and was not released?  Not
 * where somebody else has pinned the lease.  The key is claimed to be shared.
 */
bool
al_claim_may_share(const AlClaim *claim)
{
	LOCKTAG		tag;
	VirtualTransactionId *all;
	VirtualTransactionId *sharers;

	if (claim->mode == AL_CLAIM_TAKE)
		return true;
	set_tag(&tag, KEY, claim->hash);
	all = GetLockConflicts(&tag, ExclusiveLock, NULL);
	sharers = GetLockConflicts(&tag, ShareLock, NULL);
	for (; VirtualTransactionIdIsValid(*all); all++)
	{
		const VirtualTransactionId *sharer = sharers;

		while (VirtualTransactionIdIsValid(*sharer) &&
			   !VirtualTransactionIdEquals(*all, *sharer))
			sharer++;
		if (!VirtualTransactionIdIsValid(*sharer))
			return false;
	}
	return true;
}

/*
 * Give a claim back under which nothing was written.  What the transaction
 * had claimed before stays.  Somebody may have met the claim and wait since.
 */
void
al_claim_drop(const AlClaim *claim)
{
	LOCKTAG		tag;

	if (claim->holding != 0)
	{
		set_tag(&tag, HOLDING, claim->holding);
		release_in_transaction(&tag, holding_mode(claim));
	}
	give_back(claim);
}

/*
 * Say that the claim which this transaction has on a key is a holding that ends with
 * it.  As long as it lasts nobody must drop the extension, or create it with another
 * secret.  The lock that the caller has on app_lock would do, but it belongs to the
 * portal, which may fail in a subtransaction while the claim stays.
 */
void
al_claim_transaction(const AlKey *key, bool is_shared, Oid app_lock)
{
	LOCKTAG		tag;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, app_lock);
	(void) acquire_in_transaction(&tag, RowExclusiveLock, true);
	set_tag(&tag, TRANSACTION, key->hash);
	(void) acquire_in_transaction(&tag, is_shared ? ShareLock : ExclusiveLock, true);
}

/*
 * Begin to wait for turning a shared holding of a key into the exclusive one;
 * false where somebody else does.
 */
bool
al_claim_upgrade(const AlKey *key)
{
	LOCKTAG		tag;

	set_tag(&tag, UPGRADE, key->hash);
	return acquire_in_transaction(&tag, AccessExclusiveLock, false);
}

void
al_claim_upgrade_end(const AlKey *key)
{
	LOCKTAG		tag;

	set_tag(&tag, UPGRADE, key->hash);
	release_in_transaction(&tag, AccessExclusiveLock);
}

/*
 * Other transactions that have a lock in conflict with a mode: a list of
 * process numbers (PGPROC), -1 for a prepared transaction.
 */
static List *
conflicts(const LOCKTAG *tag, LOCKMODE mode)
{
	VirtualTransactionId *vxids = GetLockConflicts(tag, mode, NULL);
	List	   *procs = NIL;

	for (; VirtualTransactionIdIsValid(*vxids); vxids++)
	{
		PGPROC	   *proc = al_vxid_proc(*vxids);

		procs = lappend_int(procs, proc ? proc - &ProcGlobal->allProcs[0] : -1);
	}
	return procs;
}

/* The process ids of a list of process numbers */
static List *
pids_of(List *procs)
{
	List	   *pids = NIL;
	ListCell   *cell;

	foreach(cell, procs)
	{
		int			pid = lfirst_int(cell) < 0 ? 0 : GetPGProcByNumber(lfirst_int(cell))->pid;

		if (pid != 0)
			pids = lappend_int(pids, pid);
	}
	return pids;
}

/*
 * Other transactions that hold a key to their end, or only those that hold it
 * exclusively: a list of process numbers, -1 for a prepared transaction.
 */
List *
al_claim_transactions(uint64 hash, bool is_exclusive)
{
	LOCKTAG		tag;

	set_tag(&tag, TRANSACTION, hash);
	return conflicts(&tag, is_exclusive ? ShareLock : AccessExclusiveLock);
}

/* Has any other transaction claimed the key? */
bool
al_claim_is_others(uint64 hash)
{
	LOCKTAG		tag;

	set_tag(&tag, KEY, hash);
	return conflicts(&tag, AccessExclusiveLock) != NIL;
}

/*
 * Is a session of the owner extending its lease?  That of an exclusive one has a
 * claim that nothing else is done under.
 */
bool
al_claim_is_extended(const AlKey *key, const AlOwner *owner, bool is_shared)
{
	LOCKTAG		tag;

	if (is_shared)
	{
		set_tag(&tag, HOLDING, al_holding_hash(key, owner));
		return conflicts(&tag, ShareUpdateExclusiveLock) != NIL;
	}
	set_tag(&tag, KEY, key->hash);
	return list_length(conflicts(&tag, RowExclusiveLock)) >
		list_length(conflicts(&tag, AccessShareLock));
}

/* Processes (a list of integers) of others whose unfinished transactions have a key */
List *
al_claim_blockers(uint64 hash)
{
	LOCKTAG		tag;

	set_tag(&tag, KEY, hash);
	return pids_of(conflicts(&tag, AccessExclusiveLock));
}

/*
 * One of those who have what al_claim_try() did not get, for messages.  0: a
 * prepared transaction has it, or nobody any more.
 */
int
al_claim_blocker(const AlClaim *claim)
{
	LOCKTAG		tag;
	List	   *pids;

	set_tag(&tag, KEY, claim->hash);
	pids = pids_of(conflicts(&tag, key_mode(claim)));
	if (pids == NIL && claim->holding != 0)
	{
		set_tag(&tag, HOLDING, claim->holding);
		pids = pids_of(conflicts(&tag, holding_mode(claim)));
	}
	if (pids == NIL && claim->mode == AL_CLAIM_SHARE)
	{
		/* It is a pin; see al_claim_may_share(). */
		set_tag(&tag, KEY, claim->hash);
		pids = pids_of(conflicts(&tag, ExclusiveLock));
	}
	return pids == NIL ? 0 : linitial_int(pids);
}
