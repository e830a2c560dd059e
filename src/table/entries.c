/*-------------------------------------------------------------------------
 *
 * entries.c
 *		Rows of app_lock that an index leads to.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: the caller has a snapshot and reads the entries of an index one by one.  Each entry
 * leads to a chain of versions, of which the snapshot sees at most one.  At every isolation level
 * this takes no predicate locks: PostgreSQL takes those for MVCC snapshots only, so a
 * SERIALIZABLE transaction reads all versions and applies the snapshot itself.
 *
 * An ordinary index fetch would prune the page at each look, which costs a fifth of an acquire
 * and its release, since pages of app_lock are always nearly full.  So a page is pruned only when
 * the next update would find no room on it, or when an entry leads to nothing.
 *
 * Locking rules: app_lock is open with AccessShareLock at least.  The page of the last entry
 * stays pinned, not locked, until the next one.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "table/entries.h"

/* Prune a page, pinned and not locked, if the next update of a row would find no room. */
void
al_prune_if_full(Relation rel, Buffer buffer, Size room, Size length)
{
	Assert(BufferIsValid(buffer));
	if (room < MAXALIGN(length))
		al_page_prune(rel, buffer);
}

/* Begin to read entries, with keys in terms of the columns of the index. */
void
al_entries_begin(AlEntries *entries, Relation rel, Oid index, Snapshot snapshot, int nkeys,
				 ScanKey keys)
{
	PreventCommandIfParallelMode("functions of atomic_lock");
	Assert(CheckRelationLockedByMe(rel, AccessShareLock, true));
	entries->scan = al_index_beginscan(rel, index_open(index, AccessShareLock), SnapshotAny, nkeys);
	entries->scan->xs_want_itup = true;
	entries->snapshot = snapshot;
	entries->buffer = InvalidBuffer;
	entries->length = 0;
	index_rescan(entries->scan, keys, nkeys, NULL, 0);
}

ItemPointer
al_entries_next(AlEntries *entries)
{
	CHECK_FOR_INTERRUPTS();
	return index_getnext_tid(entries->scan, ForwardScanDirection);
}

/* The slot in the current entry of the primary key */
int32
al_entries_slot(const AlEntries *entries)
{
	bool		is_null;

	return DatumGetInt32(index_getattr(entries->scan->xs_itup, 2, entries->scan->xs_itupdesc,
									   &is_null));
}

/* Pin the page of an entry, and unpin the last one, whose row must not be used any more */
static void
turn_to(AlEntries *entries, ItemPointer tid)
{
	if (entries->length > 0)
		al_prune_if_full(entries->scan->heapRelation, entries->buffer, entries->room,
						 entries->length);
	entries->length = 0;
	if (tid)
		entries->buffer = ReleaseAndReadBuffer(entries->buffer, entries->scan->heapRelation,
											   ItemPointerGetBlockNumber(tid));
}

/* Read the version that the snapshot sees, valid until the next entry; false: none */
bool
al_entries_row(AlEntries *entries, ItemPointer tid, HeapTuple tuple)
{
	Relation	rel = entries->scan->heapRelation;
	bool		recheck = IsolationIsSerializable();
	ItemPointerData member = *tid;
	bool		all_dead = false;
	bool		first = true;
	bool		found;

	Assert(entries->snapshot != NULL);
	turn_to(entries, tid);
	LockBuffer(entries->buffer, BUFFER_LOCK_SHARE);
	do
	{
		found = heap_hot_search_buffer(&member, rel, entries->buffer,
									   recheck ? SnapshotAny : entries->snapshot, tuple,
									   &all_dead, first);
		first = false;
	} while (found && recheck &&
			 !HeapTupleSatisfiesVisibility(tuple, entries->snapshot, entries->buffer));
	entries->room = PageGetHeapFreeSpace(BufferGetPage(entries->buffer));
	LockBuffer(entries->buffer, BUFFER_LOCK_UNLOCK);

	if (found)
		entries->length = tuple->t_len;
	else
	{
		if (!entries->scan->xactStartedInRecovery)
			entries->scan->kill_prior_tuple = all_dead;
		al_page_prune(rel, entries->buffer);
	}
	return found;
}

/*
 * Read the next version, visible or not, in the chain of an entry; false at the end.  *tid is
 * that of the entry, then of the last version.  After true, al_entries_unlock() has to unlock the
 * page.
 */
bool
al_entries_version(AlEntries *entries, ItemPointer tid, bool first, HeapTuple tuple)
{
	if (first)
		turn_to(entries, tid);
	LockBuffer(entries->buffer, BUFFER_LOCK_SHARE);
	if (heap_hot_search_buffer(tid, entries->scan->heapRelation, entries->buffer, SnapshotAny,
							   tuple, NULL, first))
		return true;
	LockBuffer(entries->buffer, BUFFER_LOCK_UNLOCK);
	return false;
}

void
al_entries_unlock(AlEntries *entries)
{
	LockBuffer(entries->buffer, BUFFER_LOCK_UNLOCK);
}

void
al_entries_end(AlEntries *entries)
{
	Relation	index = entries->scan->indexRelation;

	turn_to(entries, NULL);
	if (BufferIsValid(entries->buffer))
		ReleaseBuffer(entries->buffer);
	index_endscan(entries->scan);
	index_close(index, AccessShareLock);
}
