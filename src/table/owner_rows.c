/*-------------------------------------------------------------------------
 *
 * owner_rows.c
 *		Finding all rows of app_lock that an owner has, and all its holdings.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: app_lock_owner_idx finds rows by their owner, but an entry in it costs space and an
 * update that is not HOT.  So the row of a single exclusive lease whose owner was generated with
 * it is not in the index.  Instead, the owner has the number of the block in which the row was
 * written (base/owner.c).  All other owners, generated or named, are in the index.
 *
 * A row moves to another block when an update finds no room, or when somebody rewrites the table.
 * If the block has a row of the owner outside the index, even a released one, that is its only
 * one.  Otherwise the whole table is searched.
 *
 * Locking: none.  The caller has app_lock open.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/errors.h"
#include "base/key.h"
#include "base/owner.h"
#include "base/str.h"
#include "claim/holding.h"
#include "table/app_lock.h"
#include "table/columns.h"
#include "table/entries.h"
#include "table/owner_rows.h"
#include "table/row.h"
#include "table/scan.h"

/* Add a copy of a row to the list, unless the row is released. */
static List *
add_owned_row(List *owned, AlHolding *row)
{
	AlOwned    *owns;

	if (row->released_at != 0)
	{
		/* A worker that comes back to its keys may have many of them. */
		heap_freetuple(row->tuple);
		return owned;
	}
	owns = palloc(sizeof(AlOwned));
	owns->row = palloc(sizeof(AlHolding));
	*owns->row = *row;
	al_key_init(&owns->key, row->key);
	return lappend(owned, owns);
}

/* Add the rows of an owner that a scan finds; is any of them, even released, not in the index? */
static bool
scan_for_owner(Relation rel, AlScan *scan, const AlOwner *owner, List **owned)
{
	TupleDesc	desc = RelationGetDescr(rel);
	HeapTuple	tuple;
	bool		outside = false;

	while (HeapTupleIsValid(tuple = al_scan_next(scan)))
	{
		bool		is_null;
		Datum		value = heap_getattr(tuple, Anum_app_lock_owner, desc, &is_null);
		AlHolding	row;

		if (is_null || !al_owner_equal(al_string(DatumGetTextPP(value)), owner->name))
			continue;
		al_row_read(rel, tuple, &row);
		if (!row.has_owner_hash || row.owner_hash != al_owner_index_hash(owner->name, row.key))
			outside = true;
		*owned = add_owned_row(*owned, &row);
	}
	al_scan_end(scan);
	return outside;
}

/* Add the row that an owner was generated for; false: it is not in its block. */
static bool
find_in_block(Relation rel, const AlOwner *owner, uint32 block_bits, List **owned)
{
	BlockNumber blocks = RelationGetNumberOfBlocks(rel);

	for (uint64 block = block_bits; block < blocks; block += AL_OWNER_BLOCKS)
	{
		AlScan		scan;

		al_scan_begin_at(&scan, rel, (BlockNumber) block, 1);
		if (scan_for_owner(rel, &scan, owner, owned))
			return true;
	}
	return false;
}

static void
find_in_index(Relation rel, const AlOwner *owner, List **owned)
{
	int64		first = al_owner_first_hash(owner->name);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	AlEntries	entries;
	ScanKeyData keys[2];
	ItemPointer tid;

	ScanKeyInit(&keys[0], 1, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(first));
	ScanKeyInit(&keys[1], 1, BTLessEqualStrategyNumber, F_INT8LE,
				Int64GetDatum(first | INT64CONST(0xffffffff)));
	al_entries_begin(&entries, rel, al_table_owner_index(rel), snapshot, 2, keys);
	while ((tid = al_entries_next(&entries)) != NULL)
	{
		HeapTupleData tuple;
		AlHolding	row;

		if (!al_entries_row(&entries, tid, &tuple))
			continue;
		al_row_read(rel, &tuple, &row);
		if (row.owner && al_owner_equal(al_string(row.owner), owner->name))
			*owned = add_owned_row(*owned, &row);
		else
			heap_freetuple(row.tuple);
	}
	al_entries_end(&entries);
	UnregisterSnapshot(snapshot);
}

/*
 * The rows of an owner that are not released: AlOwned *, in no order, some perhaps twice.  The
 * block comes before the index: one of the searches finds a row that gets an entry in between.
 */
List *
al_owner_rows(Relation rel, const AlOwner *owner)
{
	List	   *owned = NIL;
	uint32		block_bits;
	AlScan		scan;

	PreventCommandIfParallelMode("functions of atomic_lock");
	if (al_owner_read_block(owner->name, &block_bits) && block_bits != AL_OWNER_IN_INDEX &&
		!find_in_block(rel, owner, block_bits, &owned))
	{
		al_trace(DEBUG1, "row of an owner has left its block, searching all of app_lock");
		al_scan_begin(&scan, rel, InvalidOid, 0, NULL);
		(void) scan_for_owner(rel, &scan, owner, &owned);
	}
	find_in_index(rel, owner, &owned);
	return owned;
}

/* By key; then newest token first; then a row before the transaction's holding it came from */
static int
compare_owned(const ListCell *a, const ListCell *b)
{
	const AlOwned *x = lfirst(a);
	const AlOwned *y = lfirst(b);
	int			order = al_key_compare(&x->key, &y->key);

	if (order != 0)
		return order;
	if (x->row->fencing_token != y->row->fencing_token)
		return x->row->fencing_token > y->row->fencing_token ? -1 : 1;
	return (int) x->row->lifetime - (int) y->row->lifetime;
}

/*
 * The holdings of an owner that are not released: its rows, and its share of "transactions", as
 * AlOwned * in the order of keys; a key can occur twice.  The caller lists transactions before
 * this function reads rows: a holding of a transaction may become a row.
 */
List *
al_owned_in_order(Relation rel, const AlOwner *owner, List *transactions)
{
	List	   *owned = al_owner_rows(rel, owner);
	ListCell   *cell;

	foreach(cell, transactions)
	{
		AlHolding  *holding = lfirst(cell);
		AlOwned    *owns = palloc(sizeof(AlOwned));

		if (!al_is_owned_by(holding, owner))
			continue;
		al_key_init(&owns->key, holding->key);
		owns->row = holding;
		owned = lappend(owned, owns);
	}
	list_sort(owned, compare_owned);
	return owned;
}

/* The row of a holding, which saves a verb its first look; NULL if it has no row */
const AlHolding *
al_owned_row(const AlOwned *owned)
{
	return owned->row->lifetime == AL_TRANSACTION ? NULL : owned->row;
}

/* Those of al_owned_in_order() that are live now (*now), one for each key */
List *
al_owned_live(List *owned, TimestampTz *now)
{
	const AlOwned *previous = NULL;
	List	   *live = NIL;
	ListCell   *cell;

	*now = GetCurrentTimestamp();
	foreach(cell, owned)
	{
		AlOwned    *owns = lfirst(cell);

		if (!al_is_live(owns->row, *now) ||
			(previous && al_key_compare(&previous->key, &owns->key) == 0))
			continue;
		previous = owns;
		live = lappend(live, owns);
	}
	return live;
}
