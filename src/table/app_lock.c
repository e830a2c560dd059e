/*-------------------------------------------------------------------------
 *
 * app_lock.c
 *		Reading and writing app_lock.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: rows are read and written below the executor.  That is fast and runs no code of users:
 * no triggers, rules, row security or expressions.  The callers check permissions, read-only
 * transactions and recovery; table/catalog.c has checked the columns and the indexes.
 *
 * At every isolation level, reads see the newest committed state and the changes of their own
 * transaction.  They take no predicate locks, or two acquires of different keys whose rows share
 * a page could fail with 40001: see table/entries.c.
 *
 * A key that was ever held exclusively has a row in slot 0; shared holdings have rows in higher
 * slots (table/sharers.c).  A released row stays, and the next grant of its key updates it.  Key
 * and slot never change and owner_hash rarely, so updates are HOT and the indexes do not grow.
 *
 * Locking rules: app_lock is open with AccessShareLock for reads and RowExclusiveLock for writes,
 * which is kept until commit once something is written.  A transaction has claimed the key of
 * each row that it writes (claim/claim.c); the primary key is the last line of defence.  Claims
 * for shared holdings do not exclude each other, so two transactions may choose the same dead
 * row: al_table_try_put() fails for the second.  After each write the command counter is
 * advanced, so that the same statement may write the row again.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "storage/bufmgr.h"
#include "storage/freespace.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#include "atomic_lock.h"
#include "base/compat.h"
#include "base/errors.h"
#include "base/str.h"
#include "claim/claimed.h"
#include "claim/holding.h"
#include "shmem/hint.h"
#include "shmem/sole.h"
#include "table/app_lock.h"
#include "table/columns.h"
#include "table/entries.h"
#include "table/row.h"
#include "table/scan.h"

static void
raise_no_index(Relation rel, const char *column)
{
	ereport(ERROR,
			(al_errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table \"%s\" is missing its index on column \"%s\"",
					RelationGetRelationName(rel), column),
			 errhint("Drop the extension and create it again.")));
}

/* Not remembered, because REINDEX CONCURRENTLY replaces the indexes */
Oid
al_table_key_index(Relation rel)
{
	if (!rel->rd_indexvalid)
		list_free(RelationGetIndexList(rel));
	if (!OidIsValid(rel->rd_pkindex))
		raise_no_index(rel, "key");
	return rel->rd_pkindex;
}

Oid
al_table_owner_index(Relation rel)
{
	const AttrNumber column = Anum_app_lock_owner_hash;
	Oid			index = al_scan_index(rel, 1, &column);

	if (!OidIsValid(index))
		raise_no_index(rel, "owner_hash");
	return index;
}

/* The hash of the last key with a crowd of sharers, whose index entries fill pages; or 0 */
static uint64 crowd = 0;

bool
al_table_is_crowd(const AlKey *key)
{
	return crowd == key->hash;
}

void
al_table_set_crowd(const AlKey *key, bool is_crowd)
{
	if (is_crowd)
		crowd = key->hash;
	else if (al_table_is_crowd(key))
		crowd = 0;
}

/* Set two scan keys of the primary key: rows of a key in a slot, or also in higher ones */
void
al_table_scan_keys(ScanKey keys, const AlKey *key, bool and_above, int32 slot)
{
	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(al_string_text(key->name)));
	ScanKeyInit(&keys[1], 2, and_above ? BTGreaterEqualStrategyNumber : BTEqualStrategyNumber,
				and_above ? F_INT4GE : F_INT4EQ, Int32GetDatum(slot));
}

/* Find the row in a slot of a key by the index.  *holding is a copy of the row. */
static bool
find_by_index(Relation rel, const AlKey *key, int32 slot, Snapshot snapshot,
			  AlHolding *holding)
{
	AlEntries	entries;
	ScanKeyData keys[2];
	HeapTupleData tuple;
	ItemPointer tid;
	bool		found = false;

	al_table_scan_keys(keys, key, false, slot);
	al_entries_begin(&entries, rel, al_table_key_index(rel), snapshot, 2, keys);
	while (!found && (tid = al_entries_next(&entries)) != NULL)
	{
		found = al_entries_row(&entries, tid, &tuple);
		if (found)
			al_row_read(rel, &tuple, holding);
	}
	al_entries_end(&entries);
	return found;
}

/*
 * Find the row in slot 0 of a key by the index.  *sole says which entries the key has;
 * AL_SOLE_UNKNOWN also after a look at more than 8 old versions.
 */
static bool
find_exclusive(Relation rel, const AlKey *key, Snapshot snapshot, AlHolding *holding,
			   AlSole *sole)
{
	AlEntries	entries;
	ScanKeyData keys[2];
	ItemPointer tid;
	int			more = 0;
	bool		found = false;

	*sole = AL_SOLE_NONE;
	al_table_scan_keys(keys, key, false, AL_SLOT_EXCLUSIVE);
	al_entries_begin(&entries, rel, al_table_key_index(rel), snapshot, 1, keys);
	while ((tid = al_entries_next(&entries)) != NULL)
	{
		HeapTupleData tuple;

		*sole = AL_SOLE_ROW;
		if (al_entries_slot(&entries) != AL_SLOT_EXCLUSIVE || (found && ++more > 8))
		{
			*sole = AL_SOLE_UNKNOWN;
			break;
		}
		if (!found && al_entries_row(&entries, tid, &tuple))
		{
			al_row_read(rel, &tuple, holding);
			found = true;
		}
	}
	al_entries_end(&entries);
	return found;
}

/* Does the table have a block?  Our lock prevents a truncation, so a cached length suffices. */
static bool
has_block(Relation rel, BlockNumber block)
{
	BlockNumber known = RelationGetSmgr(rel)->smgr_cached_nblocks[MAIN_FORKNUM];

	if (known != InvalidBlockNumber && block < known)
		return true;
	return block < RelationGetNumberOfBlocks(rel);
}

/*
 * Keys used one after the other, as by a statement that updates rows, often have neighbouring
 * rows.  After two neighbours, the next location is as good as a hint.
 */
static ItemPointerData last_tid;
static bool in_sequence = false;

static bool
is_next_tid(ItemPointer tid)
{
	BlockNumber block = ItemPointerGetBlockNumberNoCheck(tid);
	BlockNumber last_block = ItemPointerGetBlockNumberNoCheck(&last_tid);
	OffsetNumber offset = ItemPointerGetOffsetNumberNoCheck(tid);

	return (block == last_block &&
			offset == ItemPointerGetOffsetNumberNoCheck(&last_tid) + 1) ||
		(block == last_block + 1 && offset == FirstOffsetNumber);
}

static void
note_tid(ItemPointer tid)
{
	in_sequence = is_next_tid(tid);
	last_tid = *tid;
}

/*
 * Find the version of the row in a slot of a key, or AL_SLOT_ANY, that a snapshot sees, at a
 * location or by the chain of updates from there.  False: the row may still exist elsewhere.
 */
static bool
follow(Relation rel, const AlKey *key, int32 slot, ItemPointerData tid, Snapshot snapshot,
	   AlHolding *holding)
{
	TransactionId previous_xmax = InvalidTransactionId;
	bool		found = false;
	bool		more = true;

	/*
	 * The location or a link may lead out of the table: VACUUM may have cut off its end, while a
	 * version that an aborted transaction left still links there.  A row that was moved to
	 * another partition has a link to no block.
	 */
	while (more && !found && has_block(rel, ItemPointerGetBlockNumberNoCheck(&tid)))
	{
		Buffer		buffer = ReadBuffer(rel, ItemPointerGetBlockNumber(&tid));
		OffsetNumber offset = ItemPointerGetOffsetNumber(&tid);
		Page		page = BufferGetPage(buffer);
		HeapTupleData tuple;
		Size		room;

		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		more = offset >= FirstOffsetNumber && offset <= PageGetMaxOffsetNumber(page) &&
			ItemIdIsNormal(PageGetItemId(page, offset));
		if (more)
		{
			ItemId		item = PageGetItemId(page, offset);
			HeapTupleHeader header = (HeapTupleHeader) PageGetItem(page, item);

			tuple.t_data = header;
			tuple.t_len = ItemIdGetLength(item);
			tuple.t_tableOid = RelationGetRelid(rel);
			tuple.t_self = tid;

			/* Another row may have taken the location that a link leads to. */
			more = !TransactionIdIsValid(previous_xmax) ||
				TransactionIdEquals(previous_xmax, HeapTupleHeaderGetXmin(header));
			found = more && HeapTupleSatisfiesVisibility(&tuple, snapshot, buffer);
			more = more && !(header->t_infomask & HEAP_XMAX_INVALID) &&
				!HeapTupleHeaderIsOnlyLocked(header) &&
				!ItemPointerEquals(&tid, &header->t_ctid);
			if (more)
			{
				tid = header->t_ctid;
				previous_xmax = HeapTupleHeaderGetUpdateXid(header);
			}
		}
		room = PageGetHeapFreeSpace(page);
		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);

		if (found)
		{
			al_row_read(rel, &tuple, holding);
			if ((holding->slot != slot && slot != AL_SLOT_ANY) ||
				!al_string_equal(holding->key, key->name))
				more = found = false;
			else
				al_prune_if_full(rel, buffer, room, tuple.t_len);
		}
		ReleaseBuffer(buffer);
		CHECK_FOR_INTERRUPTS();
	}
	return found;
}

/*
 * Find the row in a slot of a key without the index.  A row found in a sequence gets no hint,
 * which would displace that of a key used more often.
 */
bool
al_table_find_by_hint(Relation rel, const AlKey *key, int32 slot, Snapshot snapshot, AlHolding *holding)
{
	ItemPointerData tid;
	bool		has_hint = al_hint_get(key->hash, slot, &tid);

	if (!has_hint && slot == AL_SLOT_EXCLUSIVE && in_sequence)
	{
		tid = last_tid;
		ItemPointerSetOffsetNumber(&tid, ItemPointerGetOffsetNumberNoCheck(&tid) + 1);
		in_sequence = follow(rel, key, slot, tid, snapshot, holding);
		return in_sequence;
	}
	if (!has_hint || !follow(rel, key, slot, tid, snapshot, holding))
		return false;
	al_hint_set(key->hash, slot, &holding->tid);
	return true;
}

bool
al_table_find_update(Relation rel, const AlKey *key, const AlHolding *version,
					 Snapshot snapshot, AlHolding *update)
{
	ItemPointerData next = version->tuple->t_data->t_ctid;

	return !ItemPointerEquals(&next, &version->tuple->t_self) &&
		follow(rel, key, version->slot, next, snapshot, update);
}

/* Find the exclusive row of a key at the next location of a sequence; false: not there */
bool
al_table_find_next(Relation rel, const AlKey *key, AlHolding *holding)
{
	HeapTupleData tuple;
	Buffer		buffer;

	if (!in_sequence || !has_block(rel, ItemPointerGetBlockNumberNoCheck(&last_tid)))
		return false;
	tuple.t_self = last_tid;
	ItemPointerSetOffsetNumber(&tuple.t_self, ItemPointerGetOffsetNumberNoCheck(&last_tid) + 1);
	if (!heap_fetch(rel, SnapshotSelf, &tuple, &buffer, false))
		return false;
	al_row_read(rel, &tuple, holding);
	ReleaseBuffer(buffer);
	if (holding->slot != AL_SLOT_EXCLUSIVE || !al_string_equal(holding->key, key->name))
		return false;
	note_tid(&tuple.t_self);
	return true;
}

void
al_table_no_row(const AlKey *key, int32 slot, AlHolding *holding)
{
	memset(holding, 0, sizeof(AlHolding));
	ItemPointerSetInvalid(&holding->tid);
	holding->slot = slot;
	holding->key = key->name;
}

/*
 * A snapshot as of now for a look by a hint, as most are: to register it would take a tenth more.
 * That look takes no other snapshot, and the active one of the statement keeps the rows.
 */
static Snapshot
as_of_now(SnapshotData *place)
{
	*place = *GetLatestSnapshot();
	place->copied = false;
	place->active_count = 1;	/* from 18 on, PostgreSQL asserts that it is in use */
	return place;
}

/* Find the row in a slot of a key that a snapshot sees; false: *holding as by al_table_no_row() */
bool
al_table_find_seen(Relation rel, const AlKey *key, int32 slot, Snapshot snapshot,
				   AlHolding *holding)
{
	bool		found = al_table_find_by_hint(rel, key, slot, snapshot, holding);

	if (!found)
	{
		snapshot = RegisterSnapshot(snapshot);
		found = find_by_index(rel, key, slot, snapshot, holding);
		UnregisterSnapshot(snapshot);
		if (found)
			al_hint_set(key->hash, slot, &holding->tid);
		else
			al_table_no_row(key, slot, holding);
	}
	if (found)
		note_tid(&holding->tid);
	return found;
}

bool
al_table_find_slot(Relation rel, const AlKey *key, int32 slot, AlHolding *holding)
{
	SnapshotData now;

	PreventCommandIfParallelMode("functions of atomic_lock");
	return al_table_find_seen(rel, key, slot, as_of_now(&now), holding);
}

/* Does the table have this block, with "room" bytes free? */
static bool
has_room(Relation rel, BlockNumber block, Size room)
{
	Buffer		buffer;
	bool		found;

	if (block == InvalidBlockNumber || !has_block(rel, block))
		return false;
	buffer = ReadBuffer(rel, block);
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	found = PageGetHeapFreeSpace(BufferGetPage(buffer)) >= room;
	UnlockReleaseBuffer(buffer);
	return found;
}

/* The block that a new row will likely be in: heap_insert() tries it first, or has to add it */
BlockNumber
al_table_next_block(Relation rel, const AlHolding *holding)
{
	BlockNumber block = RelationGetTargetBlock(rel);
	BlockNumber blocks;
	HeapTuple	tuple;
	Size		room;

	tuple = al_row_form(rel, holding);
	room = MAXALIGN(tuple->t_len) + RelationGetTargetPageFreeSpace(rel, HEAP_DEFAULT_FILLFACTOR);
	heap_freetuple(tuple);
	if (has_room(rel, block, room))
		return block;
	block = GetPageWithFreeSpace(rel, Min(room, MaxHeapTupleSize));
	if (block == InvalidBlockNumber)
	{
		blocks = RelationGetNumberOfBlocks(rel);
		if (blocks == 0 || !has_room(rel, blocks - 1, room))
			return blocks;
		block = blocks - 1;
	}
	RelationSetTargetBlock(rel, block);
	return block;
}

/*
 * Find the row of the exclusive holding of a key as of now.  holding->sole is known only if no
 * hint led to the row and the key has no crowd.
 */
bool
al_table_find(Relation rel, const AlKey *key, AlHolding *holding)
{
	SnapshotData now;
	Snapshot	snapshot;
	bool		found;
	AlSole		sole;

	if (al_table_is_crowd(key))
		return al_table_find_slot(rel, key, AL_SLOT_EXCLUSIVE, holding);
	PreventCommandIfParallelMode("functions of atomic_lock");
	snapshot = as_of_now(&now);
	found = al_table_find_by_hint(rel, key, AL_SLOT_EXCLUSIVE, snapshot, holding);
	if (!found)
	{
		snapshot = RegisterSnapshot(snapshot);
		found = find_exclusive(rel, key, snapshot, holding, &sole);
		UnregisterSnapshot(snapshot);
		if (found)
			al_hint_set(key->hash, AL_SLOT_EXCLUSIVE, &holding->tid);
		else
			al_table_no_row(key, AL_SLOT_EXCLUSIVE, holding);
		holding->sole = sole;
	}
	if (found)
		note_tid(&holding->tid);
	return found;
}

/*
 * Look again, under a claim, at a holding that was found without one.  If the same row version,
 * by the same transaction, is there and not outdated, it is the last one.
 */
void
al_table_find_again(Relation rel, const AlKey *key, AlHolding *holding)
{
	HeapTupleData tuple;
	Buffer		buffer;
	bool		same = false;

	Assert(al_claimed_has(key->hash));
	tuple.t_self = holding->tid;
	if (ItemPointerIsValid(&tuple.t_self) &&
		heap_fetch(rel, SnapshotSelf, &tuple, &buffer, false))
	{
		same = HeapTupleHeaderGetRawXmin(tuple.t_data) ==
			HeapTupleHeaderGetRawXmin(holding->tuple->t_data);
		ReleaseBuffer(buffer);
	}
	if (!same)
		al_table_find_slot(rel, key, holding->slot, holding);
}

/*
 * Make index entries for a row version that is not heap-only.  The only condition is that of
 * app_lock_owner_idx (table/catalog.c).  An update passes indexUnchanged, even if owner_hash has
 * changed: then indexes remove entries of dead versions before they grow.  No update changes the
 * primary key, so it is not checked again, which would cost a look at each former version.
 */
static void
insert_index_entries(Relation rel, HeapTuple tuple, bool is_update)
{
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsHeapTuple);
	List	   *indexes = RelationGetIndexList(rel);
	ListCell   *cell;

	ExecStoreHeapTuple(tuple, slot, false);
	foreach(cell, indexes)
	{
		Relation	index = index_open(lfirst_oid(cell), RowExclusiveLock);
		IndexInfo  *info = BuildIndexInfo(index);
		Datum		values[INDEX_MAX_KEYS];
		bool		nulls[INDEX_MAX_KEYS];

		if (info->ii_ReadyForInserts)
		{
			FormIndexDatum(info, slot, NULL, values, nulls);
			if (info->ii_Predicate == NIL || !nulls[0])
				index_insert(index, values, nulls, &tuple->t_self, rel,
							 index->rd_index->indisunique &&
							 !(is_update && index->rd_index->indisprimary) ?
							 UNIQUE_CHECK_YES : UNIQUE_CHECK_NO,
							 is_update,
							 info);
		}
		index_close(index, RowExclusiveLock);
	}
	list_free(indexes);
	ExecDropSingleTupleTableSlot(slot);
}

/*
 * Write a holding over its row, which no other transaction can be changing, or as a new row.  The
 * key is claimed.  Raises 23505 or XX000 if somebody writes to the table by hand.
 */
void
al_table_put(Relation rel, const AlKey *key, AlHolding *holding)
{
	HeapTuple	tuple = al_row_form(rel, holding);
	bool		is_update = ItemPointerIsValid(&holding->tid);
	bool		is_shared = holding->slot != AL_SLOT_EXCLUSIVE;
	bool		needs_entries = true;

	Assert(al_string_equal(key->name, holding->key));
	Assert(al_claimed_has(key->hash));
	Assert(CheckRelationLockedByMe(rel, RowExclusiveLock, true));

	/* From now on, an exclusive acquire must look for shared holdings of the key. */
	if (is_shared)
		al_sole_set(key, false);

	if (is_update)
		needs_entries = al_heap_update(rel, &holding->tid, tuple);
	else
		simple_heap_insert(rel, tuple);
	if (needs_entries)
	{
		insert_index_entries(rel, tuple, is_update);
		al_sole_entry_made(key);
	}
	holding->tid = tuple->t_self;
	al_claimed_written(key->hash, holding->slot, &holding->tid);
	CommandCounterIncrement();
}

/*
 * Write a holding over a row that others may be changing; false if they are, or have changed it
 * since it was read.  The row is locked first, because that can skip a locked row.
 */
bool
al_table_try_put(Relation rel, const AlKey *key, AlHolding *holding)
{
	if (!al_try_lock_row(rel, &holding->tid))
	{
		al_trace(DEBUG2, "another transaction changes the row of lock \"%s\" in slot %d",
				 al_display(key->name), holding->slot);
		return false;
	}
	al_table_put(rel, key, holding);
	return true;
}

/* Remove the row of a holding whose key is claimed; false, without waiting: somebody locks it */
bool
al_table_try_delete(Relation rel, AlHolding *holding)
{
	Assert(CheckRelationLockedByMe(rel, RowExclusiveLock, true));
	Assert(al_claimed_count() > 0);
	if (!al_heap_try_delete(rel, &holding->tid))
		return false;
	al_claimed_changed();
	CommandCounterIncrement();
	return true;
}
