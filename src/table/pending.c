/*-------------------------------------------------------------------------
 *
 * pending.c
 *		What unfinished transactions of others have written of keys.
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
#include "table/app_lock.h"
#include "table/columns.h"
#include "table/pending.h"
#include "table/row.h"

/*
 * So many versions of the rows of a key are looked at.  A transaction can make any
 * number of them, and others shall not pay for that.
 */
#define MOST_VERSIONS	1000

/* Has the same transaction written the row anew, other than in what it rolled back? */
static bool
is_superseded(HeapTupleHeader header)
{
	return !(header->t_infomask & HEAP_XMAX_INVALID) &&
		!HeapTupleHeaderIsOnlyLocked(header) &&
		!TransactionIdDidAbort(HeapTupleHeaderGetUpdateXid(header));
}

/*
 * What transactions of others that have not ended have written of a key, or of all keys
 * where that is NULL, released or not: a list of AlHolding *, whose "pid" is that of
 * the transaction, 0 if it is prepared, and without "meta".  On a standby, which knows
 * no processes, there are none.
 */
List *
al_pending_holdings(Relation rel, const AlKey *key)
{
	SnapshotData dirty;
	ScanKeyData scan_key;
	SysScanDesc scan;
	HeapTuple	tuple;
	List	   *holdings = NIL;
	int			versions = 0;

	if (RecoveryInProgress())
		return NIL;
	if (key)
		ScanKeyInit(&scan_key, Anum_app_lock_key, BTEqualStrategyNumber, F_TEXTEQ,
					PointerGetDatum(al_string_text(key->name)));
	InitDirtySnapshot(dirty);
	scan = systable_beginscan(rel, key ? al_table_key_index(rel) : InvalidOid, key != NULL,
							  &dirty, key ? 1 : 0, &scan_key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		AlHolding  *holding;

		CHECK_FOR_INTERRUPTS();
		if (key && ++versions > MOST_VERSIONS)
			break;
		if (!TransactionIdIsValid(dirty.xmin) || is_superseded(tuple->t_data))
			continue;
		holding = palloc(sizeof(AlHolding));
		al_row_read(rel, tuple, holding);
		holding->meta = NULL;	/* it may be gone before it is fetched */
		holding->pid = TransactionIdPrecedes(dirty.xmin, TransactionXmin) ? 0 :
			BackendXidGetPid(SubTransGetTopmostTransaction(dirty.xmin));
		holdings = lappend(holdings, holding);
	}
	systable_endscan(scan);
	return holdings;
}

/*
 * One of them of a key: that of an owner; or where that is NULL, what anybody holds by
 * it, best of all alone.  NULL: there is none.
 */
AlHolding *
al_pending_find(Relation rel, const AlKey *key, const AlOwner *owner)
{
	ListCell   *cell;

	foreach(cell, al_pending_holdings(rel, key))
	{
		AlHolding  *holding = lfirst(cell);

		if (owner ? al_is_owned_by(holding, owner) : holding->released_at == 0)
			return holding;
	}
	return NULL;
}
