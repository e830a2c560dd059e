/*-------------------------------------------------------------------------
 *
 * claim.c
 *		Claims: locks on keys that an unfinished transaction has.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: step 3 in atomic_lock.h.  A claim is a heavyweight lock on the 64-bit hash of a key,
 * held until its transaction ends.  Keys with equal hashes share claims, but not holdings; the
 * hash has a secret (base/hash.c), so nobody can construct such keys.
 *
 * The tag is an advisory lock's, with classes of our own in the field that pg_locks shows as
 * objsubid, where the application's advisory locks have 1 or 2.  Deadlock detection,
 * lock_timeout, pg_locks and pg_blocking_pids() work as for any lock.
 *
 *		class			on					mode
 *		key				key					see below
 *		holding			key and owner		AccessExclusive; ShareUpdateExclusive to
 *											extend it, AccessShare to pin it
 *		transaction		key					Share or Exclusive
 *		upgrade			key					AccessExclusive
 *		seats			key					Exclusive
 *		quota			policy and role		Exclusive or AccessShare
 *						key and owner		Exclusive: the owner's ticket
 *
 *		action on the key						mode				lets pass
 *		exclusive: acquire, release, transfer;
 *		convert, force, steal, sweep			AccessExclusive		nothing
 *		exclusive: extend						ShareRowExclusive	pins
 *		exclusive: pin							RowShare			all but the first
 *		shared: acquire, release, extend ...;
 *		force and steal with its token			RowExclusive		this line, pins
 *		shared: pin								AccessShare			all but the first
 *
 * A pin protects a lease from being taken, even after the lease has expired.  It lets extensions
 * pass, and no lock mode does that without letting shared claims pass too.  So a caller that
 * wants to share a key whose exclusive lease has expired asks whether that lease is pinned
 * (al_claim_may_share()).  A pin of a shared lease is on the holding too.
 *
 * Shared holdings of different owners do not exclude each other.  Actions on one owner's share
 * are serialized by a claim on that holding, which is taken later if the owner is yet to be
 * generated.  A shared acquire excludes extensions of an exclusive lease, or it would judge the
 * old expiry.
 *
 * The transaction class tells others that a claim is a holding without a row
 * (claim/tx_holdings.c).  The upgrade class serves servers without a queue of waiters
 * (shmem/waiters.c): it lets only one session at a time wait to convert a share of a key to
 * exclusive, since two would wait for each other.
 *
 * The seats class serializes the callers that count the sharers of a key with a limit, the quota
 * class those that count the keys of a role.  Both are held from the count until the holding is
 * written, and while waiting for quotas only.  A transaction that shares a key without a row
 * counts as one sharer, even for several owners.  One that holds keys without a row keeps
 * AccessShare on the quota, so that others count it.
 *
 * Locking rules: acquire, convert and sweep only try to claim keys; force and steal try for a
 * while (al_lease_claim_soon()); release, extend, transfer and pin wait.  All wait for seats and
 * then for quotas.  A caller that has written nothing drops its claim, so a refused call blocks
 * no other.  The key is claimed before the holding, and two shares of a key in the order of their
 * owners.  No claim is taken while a buffer or LWLock is held.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lock.h"
#include "utils/resowner.h"

#include "atomic_lock.h"
#include "base/compat.h"
#include "base/errors.h"
#include "base/owner.h"
#include "base/str.h"
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
#define SEATS		1710
#define QUOTA		1711

/* How often al_claim_await_others() looks, and the pause between looks in microseconds */
#define MOST_LOOKS		20
#define LOOK_PAUSE		1000L

static void
set_tag(LOCKTAG *tag, uint16 class, uint64 hash)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) (hash >> 32),
						 (uint32) hash, class);
}

/*
 * Claims belong to the (sub)transaction that writes under them.  A cursor that fails in a
 * subtransaction releases its portal's locks, but rows of the outer transaction may depend on
 * them.
 */
static bool
acquire_in_transaction(const LOCKTAG *tag, LOCKMODE mode, bool wait)
{
	ResourceOwner saved = CurrentResourceOwner;
	LockAcquireResult result;

	Assert(IsTransactionState() && CritSectionCount == 0);
	/* An exiting process holds off interrupts; otherwise an LWLock would do so. */
	Assert(InterruptHoldoffCount == 0 || proc_exit_inprogress);
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

/* Give back the claim on the key, and wake the waiters that may have met it */
static void
give_back(const AlClaim *claim)
{
	LOCKTAG		tag;

	Assert(claim->hash != 0 && al_claimed_has(claim->hash));
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
	{
		al_trace(DEBUG3, "another transaction has claimed the key");
		return false;
	}
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
 * Claim a key until the transaction ends, and the shared holding of "owner" unless that is NULL.
 * Waits for unfinished transactions.  Raises the errors of any lock wait (55P03 after
 * lock_timeout, 40P01, 57014), and 54000 beyond atomic_lock.max_claims_per_transaction.
 */
void
al_claim(AlClaim *claim, const AlKey *key, const AlOwner *owner, AlClaimMode mode)
{
	(void) claim_internal(claim, key, owner, mode, true);
}

/* al_claim() without waiting; false: another transaction has the key, see al_claim_blocker() */
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

	Assert(al_claimed_has(key->hash));
	set_tag(&tag, HOLDING, al_holding_hash(key, owner));
	(void) acquire_in_transaction(&tag, AccessExclusiveLock, true);
}

/*
 * May the key of this claim be shared, although its exclusive lease has expired unreleased?  Not
 * if another transaction has pinned that lease: it has a lock that conflicts with Exclusive, but
 * none that conflicts with Share.  An expired lease cannot be pinned, so one look is enough.  If
 * a transaction both pins and shares, its second claim conflicts with Share (claim_internal()).
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
 * Give back a claim after writing nothing under it; earlier claims of the transaction stay.
 * Wakes waiters, since one may have met the claim and sleep since then.
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
 * Declare the transaction's claim on a key to be a holding.  This also locks app_lock, so that
 * the extension is not dropped meanwhile, or created with another secret: the caller's lock
 * belongs to the portal, which may fail in a subtransaction while the claim stays.
 */
void
al_claim_transaction(const AlKey *key, bool is_shared, Oid app_lock)
{
	LOCKTAG		tag;

	Assert(al_claimed_has(key->hash) && OidIsValid(app_lock));
	SET_LOCKTAG_RELATION(tag, MyDatabaseId, app_lock);
	(void) acquire_in_transaction(&tag, RowExclusiveLock, true);
	set_tag(&tag, TRANSACTION, key->hash);
	(void) acquire_in_transaction(&tag, is_shared ? ShareLock : ExclusiveLock, true);
}

/* Claim the seats of a key, to count them and take one.  Raises the errors of a lock wait. */
void
al_claim_seats(const AlKey *key)
{
	LOCKTAG		tag;

	set_tag(&tag, SEATS, key->hash);
	(void) acquire_in_transaction(&tag, ExclusiveLock, true);
}

void
al_claim_seats_end(const AlKey *key)
{
	LOCKTAG		tag;

	set_tag(&tag, SEATS, key->hash);
	release_in_transaction(&tag, ExclusiveLock);
}

/* Claim a quota, to count or to be counted.  Raises the errors of a lock wait. */
void
al_claim_quota(uint64 hash, LOCKMODE mode)
{
	LOCKTAG		tag;

	Assert(mode == ExclusiveLock || mode == AccessShareLock);
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
 * Claim the ticket of an owner for a key; only other sessions of the owner wait for that.  It
 * counts as a claimed key, since it takes as much room.
 */
void
al_claim_ticket(const AlKey *key, const AlOwner *owner)
{
	uint64		hash = al_holding_hash(key, owner);

	al_claimed_reserve(hash);
	al_claim_quota(hash, ExclusiveLock);
	al_claimed_add(hash, true);
}

/* Claim a ticket unless another session of the owner has it; not counted as a key */
void
al_claim_ticket_try(const AlKey *key, const AlOwner *owner)
{
	LOCKTAG		tag;

	set_tag(&tag, QUOTA, al_holding_hash(key, owner));
	(void) acquire_in_transaction(&tag, ExclusiveLock, false);
}

/* Give back the claim on a ticket after writing nothing under it */
void
al_claim_ticket_end(const AlKey *key, const AlOwner *owner)
{
	uint64		hash = al_holding_hash(key, owner);

	al_claim_quota_end(hash);
	al_claimed_remove(hash, true);
}

/* Begin to wait to convert a share of a key; false: another session already does. */
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

/* Other transactions that have claimed a key: an array that ends with an invalid one */
VirtualTransactionId *
al_claim_others(uint64 hash)
{
	LOCKTAG		tag;

	set_tag(&tag, KEY, hash);
	return GetLockConflicts(&tag, AccessExclusiveLock, NULL);
}

/* Numbers (PGPROC) of other transactions whose locks conflict with a mode; -1 for prepared ones */
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
	/* The array has room for all backends; during recovery it is static. */
	if (!RecoveryInProgress())
		pfree(vxids);
	return procs;
}

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

/* Other transactions that hold a key until they end; see conflicts() for the list */
List *
al_claim_transactions(uint64 hash, bool is_exclusive)
{
	return conflicts(TRANSACTION, hash, is_exclusive ? ShareLock : AccessExclusiveLock);
}

/* The number of other transactions that share a key until they end */
int
al_claim_count_transactions(uint64 hash)
{
	return al_claim_transactions(hash, true) != NIL ? 0 :
		list_length(al_claim_transactions(hash, false));
}

/* How many other transactions hold keys without a row under a quota that we have claimed */
int
al_claim_count_quota(uint64 hash)
{
	return list_length(conflicts(QUOTA, hash, AccessExclusiveLock));
}

/*
 * Has another transaction claimed a key, or the shared holding of "owner" unless that is NULL,
 * without holding the key until it ends?  *pid: the process of one, 0 if all are prepared.
 * Sweeps are left out: they will end soon.
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

/* Has this transaction an AL_CLAIM_TAKE on a hash, which excludes all others? */
bool
al_claim_is_mine_alone(uint64 hash)
{
	LOCKTAG		tag;

	set_tag(&tag, KEY, hash);
	return al_lock_is_mine(&tag, AccessExclusiveLock);
}

bool
al_claim_has_others(uint64 hash)
{
	return conflicts(KEY, hash, AccessExclusiveLock) != NIL;
}

/* Wait a while for other transactions that have claimed the key.  Raises on interrupts. */
void
al_claim_await_others(uint64 hash)
{
	for (int looks = 0; looks < MOST_LOOKS && al_claim_has_others(hash); looks++)
	{
		al_trace(DEBUG2, "waiting for others that have claimed the key, look %d of %d",
				 looks + 1, MOST_LOOKS);
		CHECK_FOR_INTERRUPTS();
		pg_usleep(LOOK_PAUSE);
	}
}

bool
al_claim_has_holding(const AlKey *key, const AlOwner *owner, int *pid)
{
	List	   *procs = conflicts(HOLDING, al_holding_hash(key, owner), AccessExclusiveLock);
	List	   *pids = pids_of(procs);

	*pid = pids == NIL ? 0 : linitial_int(pids);
	return procs != NIL;
}

/*
 * Is another transaction extending the owner's lease?  An extension of an exclusive lease
 * conflicts with RowExclusive, not with AccessShare.
 */
bool
al_claim_is_extended(const AlKey *key, const AlOwner *owner, bool is_shared)
{
	if (is_shared)
		return conflicts(HOLDING, al_holding_hash(key, owner), ShareUpdateExclusiveLock) != NIL;
	return list_length(conflicts(KEY, key->hash, RowExclusiveLock)) >
		list_length(conflicts(KEY, key->hash, AccessShareLock));
}

/* Process ids of backends that have claimed a key, or only of those that prevent sharing */
List *
al_claim_blockers(uint64 hash, bool prevents_sharing)
{
	return pids_of(conflicts(KEY, hash, prevents_sharing ? RowExclusiveLock : AccessExclusiveLock));
}

/* The transactions in the way of a failed al_claim_try(); see conflicts() for the list */
static List *
blockers(const AlClaim *claim)
{
	List	   *procs = conflicts(KEY, claim->hash, key_mode(claim));

	if (claim->holding != 0)
		procs = list_concat(procs, conflicts(HOLDING, claim->holding, holding_mode(claim)));
	/* Otherwise a pin was in the way, which only al_claim_may_share() notices. */
	if (procs == NIL && claim->mode == AL_CLAIM_SHARE)
		procs = conflicts(KEY, claim->hash, ExclusiveLock);
	return procs;
}

/*
 * The process id of one backend in the way of a failed al_claim_try(), for messages; 0: none, or
 * only prepared transactions are in the way
 */
int
al_claim_blocker(const AlClaim *claim)
{
	List	   *pids = pids_of(blockers(claim));

	return pids == NIL ? 0 : linitial_int(pids);
}

/*
 * Has every transaction in the way of a failed al_claim_try() ended?  It keeps its locks for a
 * moment after the server has stopped listing it among the conflicts.
 */
bool
al_claim_is_ending(const AlClaim *claim)
{
	return blockers(claim) == NIL;
}
