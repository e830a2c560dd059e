/*-------------------------------------------------------------------------
 *
 * claim.c
 *		Claims: what an unfinished transaction has on a key.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: a claim is a heavyweight lock on the 64-bit hash of a key, held until its
 * transaction ends.  Whoever changes a holding claims its key first, so that nobody
 * else can be changing the holding until the change is visible to all or undone.
 * Keys with equal hashes share claims, but not holdings.  The hash has a secret
 * (base/hash.c), so nobody can construct such keys.
 *
 * The tag is an advisory lock's, with classes of our own in the field that pg_locks
 * shows as objsubid.  Advisory locks of the application have 1 or 2 there, so they
 * never conflict with claims.  Deadlock detection, lock_timeout, pg_locks and
 * pg_blocking_pids() work as for any lock.
 *
 *		class			on					mode
 *		key				key					see below
 *		holding			key and owner		AccessExclusive; ShareUpdateExclusive to
 *											extend it, AccessShare to pin it
 *		transaction		key					Share or Exclusive
 *		upgrade			key					AccessExclusive
 *		seats			key					Exclusive
 *		quota			policy and role		Exclusive or AccessShare
 *
 *		done with the key						mode				lets pass
 *		exclusive: acquire, release, transfer;
 *		convert, force, steal, sweep			AccessExclusive		nothing
 *		exclusive: extend						ShareRowExclusive	pins
 *		exclusive: pin							RowShare			all but the first
 *		shared: acquire, release, extend ...;
 *		force and steal with its token			RowExclusive		itself, pins
 *		shared: pin								AccessShare			all but the first
 *
 * A pin keeps a lease from being taken, even after the lease has expired.  It lets
 * extensions pass, and no lock mode does that without letting shared claims pass too.
 * So anyone who wants to share a key whose exclusive lease has expired asks whether
 * that lease is pinned: see al_claim_may_share().  A pin of a shared lease is on the
 * holding too.
 *
 * Shared holdings of different owners do not exclude each other.  What is done with
 * the shared holding of one owner is serialized by a claim on that holding, which is
 * taken later where the owner is yet to be generated.  A shared acquire excludes
 * extensions of an exclusive lease, or it would judge the old expiry.
 *
 * A holding with the lifetime of a transaction has no row: it is a claim on the key,
 * and the transaction class tells others that it is one (claim/tx_holdings.c).  The upgrade
 * class lets only one session at a time wait to convert a shared holding of a key to
 * exclusive.  Two would wait for each other.
 *
 * Where a limit says how many may share a key, the seats class serializes the callers
 * that count.  It is held from the count until the new holding is written, and never
 * while waiting.  A transaction that shares the key without a row counts as one, however
 * many owners it does so for.
 *
 * The quota class does the same for the keys of a role, which a policy limits.  Exclusive
 * is held from the count until the new holding is written.  A transaction that holds keys
 * without a row keeps AccessShare, by which others count it.
 *
 * Locking rules: acquire, convert and sweep only try to claim keys; the others wait.
 * Everybody waits for seats and then for quotas, which are soon given back.  A
 * claim under which nothing was written is dropped, so that a refused call keeps
 * nobody out.  The key is claimed before the holding.  No claim is taken while a
 * buffer or LWLock is held.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/resowner.h"

#include "atomic_lock.h"
#include "base/compat.h"
#include "base/owner.h"
#include "base/testpoint.h"
#include "claim/claim.h"
#include "claim/claimed.h"
#include "shmem/shmem.h"
#include "shmem/waiters.h"

/* Classes of tags */
#define KEY			1706
#define HOLDING		1707
#define TRANSACTION	1708
#define UPGRADE		1709
#define PLACES		1710
#define QUOTA		1711

/* So often al_claim_await_others() looks, and the pause between in microseconds */
#define MOST_LOOKS		20
#define LOOK_PAUSE		1000L

static void
set_tag(LOCKTAG *tag, uint16 class, uint64 hash)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) (hash >> 32),
						 (uint32) hash, class);
}

/*
 * Claims belong to the (sub)transaction that writes under them, not to the portal
 * that runs.  A cursor that fails in a subtransaction releases its own locks, but
 * rows of the outer transaction may depend on the claims.
 */
static bool
acquire_in_transaction(const LOCKTAG *tag, LOCKMODE mode, bool wait)
{
	ResourceOwner saved = CurrentResourceOwner;
	LockAcquireResult result;

	CurrentResourceOwner = CurTransactionResourceOwner;
	result = LockAcquire(tag, mode, false, !wait);
	CurrentResourceOwner = saved;
	if (result != LOCKACQUIRE_NOT_AVAIL)
		AL_TEST_POINT("claimed");
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

/* Give back the claim on the key, and wake those who may have met it */
static void
give_back(const AlClaim *claim)
{
	LOCKTAG		tag;

	set_tag(&tag, KEY, claim->hash);
	release_in_transaction(&tag, key_mode(claim));
	al_claimed_remove(claim->hash, claim->is_pin);
	if (claim->mode == AL_CLAIM_TAKE || claim->mode == AL_CLAIM_EXTEND ||
		(claim->mode == AL_CLAIM_PIN && claim->holding == 0))
		al_waiters_wake(claim->hash, 0, 0);
	else
		al_waiters_wake_strict(claim->hash);
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
 * Claim a key until the transaction ends.  Where "owner" is not NULL, its shared
 * holding is claimed too.  Waits for unfinished transactions.  Raises what any lock
 * wait can (55P03 after lock_timeout, 40P01, 57014), and 54000 beyond
 * atomic_lock.max_claims_per_transaction.
 */
void
al_claim(AlClaim *claim, const AlKey *key, const AlOwner *owner, AlClaimMode mode)
{
	(void) claim_internal(claim, key, owner, mode, true);
}

/*
 * Claim as al_claim() does, but without waiting.  Returns false where an unfinished
 * transaction has the key; al_claim_blocker() can then tell who has it.
 */
bool
al_claim_try(AlClaim *claim, const AlKey *key, const AlOwner *owner, AlClaimMode mode)
{
	return claim_internal(claim, key, owner, mode, false);
}

/* Claim a shared holding whose owner was just generated, and whose key is claimed */
void
al_claim_holding(const AlKey *key, const AlOwner *owner)
{
	LOCKTAG		tag;

	set_tag(&tag, HOLDING, al_holding_hash(key, owner));
	(void) acquire_in_transaction(&tag, AccessExclusiveLock, true);
}

/*
 * May the key of this claim, whose exclusive lease has expired and was not released,
 * be shared?  Not if another transaction has pinned that lease, that is, has a lock
 * on the key that conflicts with Exclusive, but none that conflicts with Share.  An
 * expired lease cannot be pinned any more, so asking once is enough.  A transaction
 * that pins and also shares, this key or one with the same hash, claims what it does
 * second in a mode that lets nobody share: see claim_internal().
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
 * Give back a claim under which nothing was written.  Earlier claims of the
 * transaction stay.  Somebody may have met the claim and be waiting since, so
 * waiters are woken.
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
 * Declare the transaction's claim on a key to be a holding that ends with it.  While the
 * holding lasts, nobody may drop the extension, or create it with another secret.  The
 * caller's own lock on app_lock does not ensure that: it belongs to the portal, which may
 * fail in a subtransaction while the claim stays.
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
 * Claim the seats of a key, to count them and take one.  Waits for others who count,
 * and raises what any lock wait can.
 */
void
al_claim_seats(const AlKey *key)
{
	LOCKTAG		tag;

	set_tag(&tag, PLACES, key->hash);
	(void) acquire_in_transaction(&tag, ExclusiveLock, true);
}

void
al_claim_seats_end(const AlKey *key)
{
	LOCKTAG		tag;

	set_tag(&tag, PLACES, key->hash);
	release_in_transaction(&tag, ExclusiveLock);
}

/*
 * Claim a quota: Exclusive to count, AccessShare to be counted.  Waits for others, and
 * raises what any lock wait can.
 */
void
al_claim_quota(uint64 hash, LOCKMODE mode)
{
	LOCKTAG		tag;

	set_tag(&tag, QUOTA, hash);
	(void) acquire_in_transaction(&tag, mode, true);
}

void
al_claim_quota_end(uint64 hash)
{
	LOCKTAG		tag;

	set_tag(&tag, QUOTA, hash);
	release_in_transaction(&tag, ExclusiveLock);
}

/*
 * Claim the ticket of an owner for a key, to the end of the transaction.  Only its other
 * sessions wait for that.  It counts as a key that the transaction has claimed, since it
 * takes as much room.
 */
void
al_claim_ticket(const AlKey *key, const AlOwner *owner)
{
	uint64		hash = al_holding_hash(key, owner);

	al_claimed_reserve(hash);
	al_claim_quota(hash, ExclusiveLock);
	al_claimed_add(hash, true);
}

/*
 * Claim a ticket as al_claim_ticket() does, unless another session of the owner has it; not
 * counted as one more key.
 */
void
al_claim_ticket_try(const AlKey *key, const AlOwner *owner)
{
	LOCKTAG		tag;

	set_tag(&tag, QUOTA, al_holding_hash(key, owner));
	(void) acquire_in_transaction(&tag, ExclusiveLock, false);
}

/* Give the ticket back, under which nothing was written */
void
al_claim_ticket_end(const AlKey *key, const AlOwner *owner)
{
	uint64		hash = al_holding_hash(key, owner);

	al_claim_quota_end(hash);
	al_claimed_remove(hash, true);
}

/*
 * Begin to wait for converting a shared holding of a key to exclusive.  Returns
 * false where another session already waits for that.
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

/* Other transactions that have claimed a key: an array with an invalid one at its end */
VirtualTransactionId *
al_claim_others(uint64 hash)
{
	LOCKTAG		tag;

	set_tag(&tag, KEY, hash);
	return GetLockConflicts(&tag, AccessExclusiveLock, NULL);
}

/*
 * Other transactions that have a lock in conflict with a mode, as a list of process
 * numbers (PGPROC), with -1 for each prepared transaction
 */
static List *
conflicts(uint16 class, uint64 hash, LOCKMODE mode)
{
	LOCKTAG		tag;
	VirtualTransactionId *vxids;
	List	   *procs = NIL;

	set_tag(&tag, class, hash);
	vxids = GetLockConflicts(&tag, mode, NULL);
	for (VirtualTransactionId *vxid = vxids; VirtualTransactionIdIsValid(*vxid); vxid++)
	{
		PGPROC	   *proc = al_vxid_proc(*vxid);

		procs = lappend_int(procs, proc ? proc - &ProcGlobal->allProcs[0] : -1);
	}
	/* The array has room for all backends; during recovery it is not ours. */
	if (!RecoveryInProgress())
		pfree(vxids);
	return procs;
}

/* The process ids of a list of process numbers, without prepared transactions */
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
 * Other transactions that hold a key until they end, or only those that hold it
 * exclusively.  See conflicts() for the list.
 */
List *
al_claim_transactions(uint64 hash, bool is_exclusive)
{
	return conflicts(TRANSACTION, hash, is_exclusive ? ShareLock : AccessExclusiveLock);
}

/* How many other transactions share a key until they end */
int
al_claim_count_transactions(uint64 hash)
{
	return al_claim_transactions(hash, true) != NIL ? 0 :
		list_length(al_claim_transactions(hash, false));
}

/* How many other transactions hold keys under a quota without a row; the caller has claimed it */
int
al_claim_count_quota(uint64 hash)
{
	return list_length(conflicts(QUOTA, hash, AccessExclusiveLock));
}

/*
 * Has another transaction claimed a key, or where an owner is given, the shared
 * holding of that, without holding the key to its end?  Then one of those is "pid", 0
 * if all are prepared.  A sweep is not counted: it is about to go.
 */
bool
al_claim_is_pending(const AlKey *key, const AlOwner *owner, int *pid)
{
	List	   *procs = owner ?
		conflicts(HOLDING, al_holding_hash(key, owner), AccessExclusiveLock) :
		conflicts(KEY, key->hash, AccessExclusiveLock);
	bool		found = false;
	ListCell   *cell;

	if (procs != NIL)
		procs = list_difference_int(procs, al_claim_transactions(key->hash, false));
	*pid = 0;
	foreach(cell, procs)
	{
		int			other = lfirst_int(cell) < 0 ? 0 : GetPGProcByNumber(lfirst_int(cell))->pid;

		if (other != 0 && al_waiters_is_sweeping(other))
			continue;
		found = true;
		*pid = Max(*pid, other);
	}
	return found;
}

/* Does this transaction keep everybody else from the keys of a hash, by AL_CLAIM_TAKE? */
bool
al_claim_is_mine_alone(uint64 hash)
{
	LOCKTAG		tag;

	set_tag(&tag, KEY, hash);
	return al_lock_is_mine(&tag, AccessExclusiveLock);
}

/* Has any other transaction claimed the key? */
bool
al_claim_has_others(uint64 hash)
{
	return conflicts(KEY, hash, AccessExclusiveLock) != NIL;
}

/*
 * Give other transactions that have claimed the key a moment to end, as most are about to.
 * Raises what an interrupt does.
 */
void
al_claim_await_others(uint64 hash)
{
	for (int looks = 0; looks < MOST_LOOKS && al_claim_has_others(hash); looks++)
	{
		CHECK_FOR_INTERRUPTS();
		pg_usleep(LOOK_PAUSE);
	}
}

/* Has another transaction claimed the shared holding of an owner?  *pid: 0 if prepared */
bool
al_claim_has_holding(const AlKey *key, const AlOwner *owner, int *pid)
{
	List	   *procs = conflicts(HOLDING, al_holding_hash(key, owner), AccessExclusiveLock);
	List	   *pids = pids_of(procs);

	*pid = pids == NIL ? 0 : linitial_int(pids);
	return procs != NIL;
}

/*
 * Is another transaction extending the owner's lease?  An extension of an exclusive
 * lease is known by its mode: it conflicts with RowExclusive, not with AccessShare.
 */
bool
al_claim_is_extended(const AlKey *key, const AlOwner *owner, bool is_shared)
{
	if (is_shared)
		return conflicts(HOLDING, al_holding_hash(key, owner), ShareUpdateExclusiveLock) != NIL;
	return list_length(conflicts(KEY, key->hash, RowExclusiveLock)) >
		list_length(conflicts(KEY, key->hash, AccessShareLock));
}

/*
 * Process ids of other backends whose unfinished transactions have claimed a key, or only
 * of those that keep others from sharing it
 */
List *
al_claim_blockers(uint64 hash, bool prevents_sharing)
{
	return pids_of(conflicts(KEY, hash, prevents_sharing ? RowExclusiveLock : AccessExclusiveLock));
}

/* Who has what al_claim_try() did not get; see conflicts() for the list */
static List *
blockers(const AlClaim *claim)
{
	List	   *procs = conflicts(KEY, claim->hash, key_mode(claim));

	if (claim->holding != 0)
		procs = list_concat(procs, conflicts(HOLDING, claim->holding, holding_mode(claim)));
	/* Otherwise it is a pin, which only al_claim_may_share() has noticed. */
	if (procs == NIL && claim->mode == AL_CLAIM_SHARE)
		procs = conflicts(KEY, claim->hash, ExclusiveLock);
	return procs;
}

/*
 * The process id of one backend that has what al_claim_try() did not get, for
 * messages.  0: a prepared transaction has it, or nobody does; see al_claim_is_ending().
 */
int
al_claim_blocker(const AlClaim *claim)
{
	List	   *pids = pids_of(blockers(claim));

	return pids == NIL ? 0 : linitial_int(pids);
}

/*
 * Has what al_claim_try() did not get been given back, or is it about to be?  A
 * transaction keeps its locks for a moment after it has ended for all others.  The server
 * does not list it any more then.
 */
bool
al_claim_is_ending(const AlClaim *claim)
{
	return blockers(claim) == NIL;
}
