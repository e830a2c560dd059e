/*-------------------------------------------------------------------------
 *
 * scan.c
 *		Scans of our tables that see the newest committed state.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: a snapshot is taken for each scan, at every isolation level.  Predicate
 * locks are taken for MVCC snapshots only, so a SERIALIZABLE transaction scans with
 * SnapshotAny and applies the MVCC snapshot itself.
 *
 * Locking rules: the relation is open with AccessShareLock at least.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/relscan.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_index.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/errors.h"
#include "table/scan.h"

/*
 * An index whose first columns are "columns", each in rising order of its collation; 0: none.  It
 * is a B-tree of the whole table, or of the rows with an owner_hash (table/catalog.c).  Never
 * remembered, because REINDEX CONCURRENTLY replaces it.
 */
Oid
al_scan_index(Relation rel, int count, const AttrNumber *columns)
{
	List	   *indexes = RelationGetIndexList(rel);
	Oid			found = InvalidOid;

	/* The primary key, which callers seldom look for, usually comes first. */
	for (int n = list_length(indexes) - 1; n >= 0 && !OidIsValid(found); n--)
	{
		Relation	index = index_open(list_nth_oid(indexes, n), AccessShareLock);
		bool		fits = index->rd_index->indisvalid && index->rd_index->indnkeyatts >= count;

		for (int i = 0; fits && i < count; i++)
			fits = index->rd_index->indkey.values[i] == columns[i] &&
				(index->rd_indoption[i] & INDOPTION_DESC) == 0 &&
				index->rd_indcollation[i] ==
				TupleDescAttr(RelationGetDescr(rel), columns[i] - 1)->attcollation;
		if (fits)
			found = RelationGetRelid(index);
		index_close(index, AccessShareLock);
	}
	list_free(indexes);
	return found;
}

/* Begin to scan a relation as al_scan_begin_seen() does, as of now */
void
al_scan_begin(AlScan *scan, Relation rel, Oid index, int nkeys, ScanKey keys)
{
	al_scan_begin_seen(scan, rel, index, nkeys, keys, NULL);
}

/*
 * Begin to scan a relation by an index, or as a whole if "index" is 0.  Keys are in terms of the
 * columns of the relation.  "given": a snapshot registered until the scan ends; NULL: take one.
 */
void
al_scan_begin_seen(AlScan *scan, Relation rel, Oid index, int nkeys, ScanKey keys,
				   Snapshot given)
{
	/* GetLatestSnapshot() fails in parallel mode. */
	PreventCommandIfParallelMode("functions of atomic_lock");

	Assert(CheckRelationLockedByMe(rel, AccessShareLock, true));
	scan->rel = rel;
	scan->index = NULL;
	scan->own_snapshot = given == NULL;
	scan->snapshot = given ? given : RegisterSnapshot(GetLatestSnapshot());
	scan->recheck = IsolationIsSerializable();
	scan->scan = systable_beginscan(rel, index, OidIsValid(index),
									scan->recheck ? SnapshotAny : scan->snapshot,
									nkeys, keys);
}

/* As al_scan_begin_seen(), in the order of the primary key, even without system indexes */
void
al_scan_begin_ordered(AlScan *scan, Relation rel, int nkeys, ScanKey keys, Snapshot given)
{
	PreventCommandIfParallelMode("functions of atomic_lock");

	Assert(CheckRelationLockedByMe(rel, AccessShareLock, true));
	list_free(RelationGetIndexList(rel));
	if (!OidIsValid(rel->rd_pkindex))
		ereport(ERROR,
				(al_errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" is missing its primary key", RelationGetRelationName(rel)),
				 errhint("Drop the extension and create it again.")));
	scan->rel = rel;
	scan->index = index_open(rel->rd_pkindex, AccessShareLock);
	scan->own_snapshot = given == NULL;
	scan->snapshot = given ? given : RegisterSnapshot(GetLatestSnapshot());
	scan->recheck = IsolationIsSerializable();
	scan->scan = systable_beginscan_ordered(rel, scan->index,
											scan->recheck ? SnapshotAny : scan->snapshot,
											nkeys, keys);
}

/* The next row, valid until the next call; NULL at the end */
HeapTuple
al_scan_next(AlScan *scan)
{
	HeapTuple	tuple;

	for (;;)
	{
		tuple = scan->index ? systable_getnext_ordered(scan->scan, ForwardScanDirection) :
			systable_getnext(scan->scan);
		if (!HeapTupleIsValid(tuple))
			return NULL;
		CHECK_FOR_INTERRUPTS();
		if (!scan->recheck ||
			table_tuple_satisfies_snapshot(scan->rel, scan->scan->slot,
										   scan->snapshot))
			return tuple;
	}
}

void
al_scan_end(AlScan *scan)
{
	if (scan->index)
	{
		systable_endscan_ordered(scan->scan);
		index_close(scan->index, AccessShareLock);
	}
	else
		systable_endscan(scan->scan);
	if (scan->own_snapshot)
		UnregisterSnapshot(scan->snapshot);
}

/* Lock a row before an update; false, without waiting: others change it, or have since the read */
bool
al_try_lock_row(Relation rel, ItemPointer tid)
{
	HeapTupleData tuple;
	Buffer		buffer;
	TM_FailureData failure;
	TM_Result	result;

	Assert(ItemPointerIsValid(tid));
	Assert(CheckRelationLockedByMe(rel, RowExclusiveLock, true));
	tuple.t_self = *tid;
	result = heap_lock_tuple(rel, &tuple, GetCurrentCommandId(true), LockTupleNoKeyExclusive,
							 LockWaitSkip, false, &buffer, &failure);
	ReleaseBuffer(buffer);
	return result == TM_Ok;
}

/* Begin to scan "count" blocks from "block", which exists, on; the first follows the last */
void
al_scan_begin_at(AlScan *scan, Relation rel, BlockNumber block, BlockNumber count)
{
	al_scan_begin(scan, rel, InvalidOid, 0, NULL);
	heap_setscanlimits(scan->scan->scan, block, count);
}
