/*-------------------------------------------------------------------------
 *
 * scan.c
 *		Scans of our tables that see the newest committed state.
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
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "table/scan.h"

/*
 * An index whose first columns are these, each in rising order of its collation; 0 where
 * there is none.  table/catalog.c has made sure that it is a B-tree of the whole table, or
 * of the rows where owner_hash is not null.  The index is never remembered, because
 * REINDEX CONCURRENTLY replaces it.
 */
Oid
al_scan_index(Relation rel, int count, const AttrNumber *columns)
{
	List	   *indexes = RelationGetIndexList(rel);
	ListCell   *cell;
	Oid			found = InvalidOid;

	foreach(cell, indexes)
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);
		bool		fits = index->rd_index->indisvalid && index->rd_index->indnkeyatts >= count;

		for (int i = 0; fits && i < count; i++)
			fits = index->rd_index->indkey.values[i] == columns[i] &&
				(index->rd_indoption[i] & INDOPTION_DESC) == 0 &&
				index->rd_indcollation[i] ==
				TupleDescAttr(RelationGetDescr(rel), columns[i] - 1)->attcollation;
		if (fits)
			found = lfirst_oid(cell);
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
 * Begin to scan a relation by an index, or as a whole where "index" is 0.  Keys are
 * in terms of the columns of the relation.  A given snapshot is registered until the
 * scan ends; NULL: as of now.
 */
void
al_scan_begin_seen(AlScan *scan, Relation rel, Oid index, int nkeys, ScanKey keys,
				   Snapshot given)
{
	/* GetLatestSnapshot() fails in parallel mode. */
	PreventCommandIfParallelMode("functions of atomic_lock");

	scan->rel = rel;
	scan->own_snapshot = given == NULL;
	scan->snapshot = given ? given : RegisterSnapshot(GetLatestSnapshot());
	scan->recheck = IsolationIsSerializable();
	scan->scan = systable_beginscan(rel, index, OidIsValid(index),
									scan->recheck ? SnapshotAny : scan->snapshot,
									nkeys, keys);
}

/* The next row, valid until the next call; NULL at the end */
HeapTuple
al_scan_next(AlScan *scan)
{
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan->scan)))
	{
		CHECK_FOR_INTERRUPTS();
		if (!scan->recheck ||
			table_tuple_satisfies_snapshot(scan->rel, scan->scan->slot,
										   scan->snapshot))
			return tuple;
	}
	return NULL;
}

void
al_scan_end(AlScan *scan)
{
	systable_endscan(scan->scan);
	if (scan->own_snapshot)
		UnregisterSnapshot(scan->snapshot);
}

/*
 * Begin to scan "count" blocks of a table from "block" on, which it must have.  The
 * first block follows the last one.
 */
void
al_scan_begin_at(AlScan *scan, Relation rel, BlockNumber block, BlockNumber count)
{
	al_scan_begin(scan, rel, InvalidOid, 0, NULL);
	heap_setscanlimits(scan->scan->scan, block, count);
}
