/*-------------------------------------------------------------------------
 *
 * pending.c
 *		What unfinished transactions of others have written of keys.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: a transaction that has a key in hand has written a row version that nobody
 * else sees yet, with the label of the holder.  A dirty snapshot sees it, and who
 * wrote it.  That costs those who write nothing.  It is for people, and for those who
 * have to know whom to wait for: the transaction may roll back, or end while we
 * look, so nothing may be granted by it.
 *
 * A dirty snapshot is no MVCC snapshot, so there are no predicate locks.
 *
 * Locking rules: app_lock is open with AccessShareLock at least.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/subtrans.h"
#include "access/transam.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#include "atomic_lock.h"
#include "base/str.h"
#include "claim/holding.h"
#include "shmem/sole.h"
#include "table/app_lock.h"
#include "table/columns.h"
#include "table/pending.h"
#include "table/row.h"

/*
 * So many versions of the rows of a key, of unfinished transactions, are looked at.  A
 * transaction can make any number of them, and others shall not pay for that.
 */
#define MOST_VERSIONS	1000

/* Has the same transaction written the row anew, other than in what it rolled back? */
bool
al_pending_is_superseded(HeapTupleHeader header)
{
	return !(header->t_infomask & HEAP_XMAX_INVALID) &&
		!HeapTupleHeaderIsOnlyLocked(header) &&
		!TransactionIdDidAbort(HeapTupleHeaderGetUpdateXid(header));
}

/*
 * The process whose transaction this is, or was a moment ago; 0: it is prepared, or has
 * ended.  What precedes our snapshots has ended, and its parent may be unknown by now.
 */
int
al_pending_process(TransactionId xid)
{
	if (TransactionIdPrecedes(xid, TransactionXmin))
		return 0;
	return BackendXidGetPid(SubTransGetTopmostTransaction(xid));
}

/*
 * What a version of a row says that a dirty snapshot has seen, if it is the last one that
 * an unfinished transaction has written.  Its "pid" is that of the transaction, 0 if it
 * is prepared.
 */
static bool
read_pending(Relation rel, HeapTuple tuple, const SnapshotData *dirty, AlHolding *holding)
{
	if (!TransactionIdIsValid(dirty->xmin) || al_pending_is_superseded(tuple->t_data))
		return false;
	al_row_read(rel, tuple, holding);
	holding->meta = NULL;		/* it may be gone before it is fetched */
	holding->pid = al_pending_process(dirty->xmin);
	return true;
}

/* The rows of a key from a slot on, or of all keys where that is NULL */
static List *
scan_pending(Relation rel, const AlKey *key, int32 first_slot)
{
	SnapshotData dirty;
	ScanKeyData scan_keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;
	List	   *holdings = NIL;
	int			versions = 0;

	if (key)
	{
		ScanKeyInit(&scan_keys[0], Anum_app_lock_key, BTEqualStrategyNumber, F_TEXTEQ,
					PointerGetDatum(al_string_text(key->name)));
		ScanKeyInit(&scan_keys[1], Anum_app_lock_slot, BTGreaterEqualStrategyNumber, F_INT4GE,
					Int32GetDatum(first_slot));
	}
	InitDirtySnapshot(dirty);
	scan = systable_beginscan(rel, key ? al_table_key_index(rel) : InvalidOid, key != NULL,
							  &dirty, key ? 2 : 0, scan_keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		AlHolding  *holding;

		CHECK_FOR_INTERRUPTS();
		if (key && TransactionIdIsValid(dirty.xmin) && ++versions > MOST_VERSIONS)
			break;
		holding = palloc(sizeof(AlHolding));
		if (read_pending(rel, tuple, &dirty, holding))
			holdings = lappend(holdings, holding);
		else
			pfree(holding);
	}
	systable_endscan(scan);
	return holdings;
}

/*
 * The holdings of a key, or of all keys where that is NULL, that unfinished transactions of
 * others have written, released or not: a list of AlHolding *, without "meta".  On a
 * standby, which knows no processes, there are none.
 */
List *
al_pending_holdings(Relation rel, const AlKey *key)
{
	return RecoveryInProgress() ? NIL : scan_pending(rel, key, AL_SLOT_EXCLUSIVE);
}

/* Does the owner hold this, or where that is NULL, anybody? */
static bool
is_of(const AlHolding *holding, const AlOwner *owner)
{
	return owner ? al_is_owned_by(holding, owner) : holding->released_at == 0;
}

/*
 * The first of them of a key: that of an owner; or where that is NULL, what anybody holds
 * by it, best of all alone.  NULL: there is none.  From a row that is there already the
 * next version is followed, since the index may lead to many that are dead.
 */
AlHolding *
al_pending_find(Relation rel, const AlKey *key, const AlOwner *owner)
{
	AlHolding  *holding = palloc(sizeof(AlHolding));
	AlHolding	version;
	AlHolding  *first = NULL;
	int32		first_slot = AL_SLOT_EXCLUSIVE;
	SnapshotData dirty;
	ListCell   *cell;

	if (RecoveryInProgress())
		return NULL;
	InitDirtySnapshot(dirty);
	if (al_table_find(rel, key, &version))
	{
		for (int versions = 0; versions < MOST_VERSIONS &&
			 al_table_find_update(rel, key, &version, &dirty, holding); versions++)
		{
			version = *holding;
			if (read_pending(rel, version.tuple, &dirty, holding) && is_of(holding, owner))
				return holding;
		}
		if (al_sole_is_known(key))
			return NULL;
		first_slot++;
	}
	foreach(cell, scan_pending(rel, key, first_slot))
	{
		AlHolding  *pending = lfirst(cell);

		if (is_of(pending, owner) &&
			(first == NULL || pending->fencing_token < first->fencing_token))
			first = pending;
	}
	return first;
}
