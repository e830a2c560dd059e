/*-------------------------------------------------------------------------
 *
 * sharers.c
 *		Rows of the shared holdings of a key.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: a key may have thousands of sharers, so the cost of a call must not grow with their
 * number.  The share of one owner is found by the index of owners, which has every row of a
 * shared holding.  A call that needs to know the sharers counts them up to a limit, and reads a
 * few rows and the one that lasts longest.  Only a call that ends all holdings, or searches for a
 * deadlock, reads all rows.
 *
 * Each shared holding has a slot of its own.  Slots are spread over all numbers, so the rows that
 * follow any number are a sample.  A new holding takes the row that was released last, or an
 * ended one of a sample, which keeps the number of rows within a few times the largest number of
 * holdings at one time.
 *
 * Locking rules: those of table/app_lock.c.  al_sharers_count() says more.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/transam.h"
#include "access/xact.h"
#include "common/pg_prng.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/errors.h"
#include "base/owner.h"
#include "base/str.h"
#include "base/testpoint.h"
#include "claim/claim.h"
#include "claim/holding.h"
#include "shmem/hint.h"
#include "table/app_lock.h"
#include "table/entries.h"
#include "table/pending.h"
#include "table/row.h"
#include "table/sharers.h"

/* The number of rows of a key that are always read; a key with more has a crowd */
#define FEW		16

/* The rows in a sample, and the number of samples in which to look for an ended row */
#define SAMPLE	4
#define SAMPLES	4

/* The number of ended rows that suffices to take one of them */
#define ENOUGH	3

/* The number of consecutive tokens that have neighbouring slots */
#define NEIGHBOURS	8

/* The number of entries for one row that are skipped before a search for the next slot */
#define SKIPPED	20

/* An owner's shared holdings of a key, live or ended, that "given" (NULL: now) sees: AlHolding * */
List *
al_sharers_of_owner(Relation rel, const AlKey *key, const AlOwner *owner, Snapshot given)
{
	AlEntries	entries;
	ScanKeyData scan_key;
	ItemPointer tid;
	HeapTupleData tuple;
	List	   *holdings = NIL;

	if (owner->generated || owner->name.len == 0)
		return NIL;
	ScanKeyInit(&scan_key, 1, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(al_owner_index_hash(owner->name, key->name)));
	al_entries_begin(&entries, rel, al_table_owner_index(rel), given, 1, &scan_key);
	while ((tid = al_entries_next(&entries)) != NULL)
	{
		AlHolding  *holding;

		if (entries.snapshot == NULL)
			entries.snapshot = RegisterSnapshot(GetLatestSnapshot());
		if (!al_entries_row(&entries, tid, &tuple))
			continue;
		holding = palloc(sizeof(AlHolding));
		al_row_read(rel, &tuple, holding);
		if (holding->slot >= AL_SLOT_FIRST_SHARED && al_is_owned_by(holding, owner) &&
			al_string_equal(holding->key, key->name))
		{
			al_hint_set(key->hash, holding->slot, &holding->tid);
			holdings = lappend(holdings, holding);
		}
	}
	al_entries_end(&entries);
	if (given == NULL && entries.snapshot)
		UnregisterSnapshot(entries.snapshot);
	return holdings;
}

/* Read a version of a row again; the snapshot that saw it must still be registered */
static void
read_version(Relation rel, ItemPointer tid, AlHolding *holding)
{
	HeapTupleData tuple;
	Buffer		buffer;

	tuple.t_self = *tid;
	if (!heap_fetch(rel, SnapshotAny, &tuple, &buffer, false))
		elog(ERROR, "row of a shared holding has gone");
	al_row_read(rel, &tuple, holding);
	ReleaseBuffer(buffer);
}

/* A scan of the primary key for the rows of a key, each in a slot of its own */
typedef struct SlotScan
{
	AlEntries	entries;
	const AlKey *key;
	bool		own_snapshot;	/* the scan takes it, no caller gave it */
	int32		last_found;		/* the last slot with a row; -1: none */
	int			skipped;		/* entries for that slot since then */
} SlotScan;

static void
begin_slots(SlotScan *scan, Relation rel, const AlKey *key, int32 first_slot, Snapshot given)
{
	ScanKeyData keys[2];

	al_table_scan_keys(keys, key, true, first_slot);
	al_entries_begin(&scan->entries, rel, al_table_key_index(rel), given, 2, keys);
	scan->key = key;
	scan->own_snapshot = given == NULL;
	scan->last_found = -1;
	scan->skipped = 0;
}

static void
end_slots(SlotScan *scan)
{
	al_entries_end(&scan->entries);
	if (scan->own_snapshot && scan->entries.snapshot)
		UnregisterSnapshot(scan->entries.snapshot);
}

/* The next entry of a slot whose row was not found yet; NULL at the end */
static ItemPointer
next_slot(SlotScan *scan, int32 *slot)
{
	ItemPointer tid;

	while ((tid = al_entries_next(&scan->entries)) != NULL)
	{
		ScanKeyData keys[2];

		*slot = al_entries_slot(&scan->entries);
		if (*slot != scan->last_found)
		{
			scan->skipped = 0;
			return tid;
		}
		if (++scan->skipped > SKIPPED && *slot < PG_INT32_MAX)
		{
			al_table_scan_keys(keys, scan->key, true, *slot + 1);
			index_rescan(scan->entries.scan, keys, 2, NULL, 0);
		}
	}
	return NULL;
}

/*
 * Read the row in the slot of an entry, as a whole or by al_row_peek(); false: no row.  A hint
 * leads to the current version, if an old snapshot keeps many entries alive.
 */
static bool
read_slot(SlotScan *scan, ItemPointer tid, int32 slot, bool whole, AlHolding *holding)
{
	AlEntries  *entries = &scan->entries;
	Relation	rel = entries->scan->heapRelation;
	HeapTupleData tuple;

	/* Usually there are no shared holdings, and then no snapshot is needed. */
	if (entries->snapshot == NULL)
		entries->snapshot = RegisterSnapshot(GetLatestSnapshot());
	if (slot == AL_SLOT_EXCLUSIVE &&
		al_table_find_by_hint(rel, scan->key, slot, entries->snapshot, holding))
		;
	else if (al_entries_row(entries, tid, &tuple))
	{
		if (whole)
			al_row_read(rel, &tuple, holding);
		else
			al_row_peek(rel, &tuple, holding);
	}
	else if (slot == AL_SLOT_EXCLUSIVE ||
			 !al_table_find_by_hint(rel, scan->key, slot, entries->snapshot, holding))
		return false;
	scan->last_found = slot;
	return true;
}

/* Add a row to a list, and read it as a whole if that is not done yet */
static List *
add_shared_row(SlotScan *scan, List *rows, const AlHolding *holding)
{
	AlHolding  *copy = palloc(sizeof(AlHolding));

	*copy = *holding;
	if (copy->tuple == NULL)
		read_version(scan->entries.scan->heapRelation, (ItemPointer) &holding->tid, copy);
	return lappend(rows, copy);
}

/* Count a live row, and keep the two that last longest; list a row that keeps the key closed */
static void
count_row(SlotScan *scan, AlRows *rows, AlHolding *longest, const AlHolding *row, TimestampTz now)
{
	rows->is_complete = false;
	if (al_is_live(row, now))
	{
		rows->more++;
		if (row->expires_at > longest[0].expires_at)
		{
			longest[1] = longest[0];
			longest[0] = *row;
		}
		else if (row->expires_at > longest[1].expires_at)
			longest[1] = *row;
	}
	else if (al_is_closed(row, now))
		rows->shared = add_shared_row(scan, rows->shared, row);
}

/*
 * Look at the rows of a key, from a slot on, as "given" sees them (NULL: as of now).  With "all",
 * or if there are few rows, the list has all of them.  Otherwise it has at most FEW rows, the two
 * live ones that last longest, and those that keep the key closed.  Other live ones are counted,
 * up to a total of AL_MOST_COUNTED + 2: a message names one sharer and "at least 100 others", and
 * one may be the owner's own.  The list has a live row if there is any.
 *
 * rows->exclusive.sole says whether the index has no entries for shared holdings, dead or alive.
 * If first_slot is above 0, no other field of it is set.
 */
void
al_sharers_look(Relation rel, const AlKey *key, int32 first_slot, bool all, Snapshot given,
				AlRows *rows)
{
	TimestampTz now = GetCurrentTimestamp();
	int			few = al_table_is_crowd(key) ? 0 : FEW;
	SlotScan	scan;
	ItemPointer tid;
	int32		slot;
	AlHolding	longest[2] = {{.expires_at = DT_NOBEGIN}, {.expires_at = DT_NOBEGIN}};
	int			found = 0;
	int			live = 0;
	bool		is_alone = true;

	Assert(first_slot >= AL_SLOT_EXCLUSIVE);
	rows->shared = NIL;
	rows->is_complete = true;
	rows->more = 0;
	if (first_slot == AL_SLOT_EXCLUSIVE)
		al_table_no_row(key, AL_SLOT_EXCLUSIVE, &rows->exclusive);
	begin_slots(&scan, rel, key, first_slot, given);
	while ((rows->is_complete || all || live < AL_MOST_COUNTED + 2) &&
		   (tid = next_slot(&scan, &slot)) != NULL)
	{
		AlHolding	holding;
		bool		whole = all || found < few || slot == AL_SLOT_EXCLUSIVE;

		is_alone = is_alone && slot == AL_SLOT_EXCLUSIVE;
		if (!read_slot(&scan, tid, slot, whole, &holding))
			continue;
		if (slot == AL_SLOT_EXCLUSIVE)
		{
			al_hint_set(key->hash, slot, &holding.tid);
			rows->exclusive = holding;
			continue;
		}
		found++;
		live += al_is_live(&holding, now);
		if (whole)
			rows->shared = add_shared_row(&scan, rows->shared, &holding);
		else
			count_row(&scan, rows, longest, &holding, now);
	}
	rows->exclusive.sole = is_alone ? AL_SOLE_ROW : AL_SOLE_UNKNOWN;
	al_table_set_crowd(key, found > FEW);
	/* One of them may be the owner's own. */
	for (int i = 0; i < (int) lengthof(longest) && rows->more > 0; i++, rows->more--)
		rows->shared = add_shared_row(&scan, rows->shared, &longest[i]);
	end_slots(&scan);
}

/* The row with a fencing token, among those that a look has found; or NULL */
const AlHolding *
al_sharers_find_token(const AlRows *rows, int64 fencing_token)
{
	ListCell   *cell;

	if (ItemPointerIsValid(&rows->exclusive.tid) && rows->exclusive.fencing_token == fencing_token)
		return &rows->exclusive;
	foreach(cell, rows->shared)
	{
		if (((AlHolding *) lfirst(cell))->fencing_token == fencing_token)
			return lfirst(cell);
	}
	return NULL;
}

/* Note the row of a shared holding that ends: the next grant of a share takes it. */
void
al_sharers_note_over(const AlKey *key, ItemPointer tid)
{
	al_hint_set(key->hash, AL_SLOT_ANY, tid);
}

/* The row that al_sharers_note_over() noted last, if that is still known, in a list */
List *
al_sharers_noted(Relation rel, const AlKey *key)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	AlHolding  *holding = palloc(sizeof(AlHolding));
	bool		found = al_table_find_by_hint(rel, key, AL_SLOT_ANY, snapshot, holding);

	UnregisterSnapshot(snapshot);
	return found && holding->slot >= AL_SLOT_FIRST_SHARED ? list_make1(holding) : NIL;
}

/* Read at most "most" rows from a slot on, and list those free to be taken; returns a count */
static int
sample(Relation rel, const AlKey *key, int32 slot, int most, List **over)
{
	TimestampTz now = GetCurrentTimestamp();
	SlotScan	scan;
	ItemPointer tid;
	int			found = 0;

	begin_slots(&scan, rel, key, slot, NULL);
	while (found < most && list_length(*over) < ENOUGH && (tid = next_slot(&scan, &slot)) != NULL)
	{
		AlHolding	holding;

		if (!read_slot(&scan, tid, slot, false, &holding))
			continue;
		found++;
		if (!al_is_live(&holding, now) && !al_is_closed(&holding, now))
			*over = add_shared_row(&scan, *over, &holding);
	}
	end_slots(&scan);
	return found;
}

/* Some ended rows of shares that do not keep the key closed: AlHolding *; samples in a crowd */
List *
al_sharers_over(Relation rel, const AlKey *key)
{
	List	   *over = NIL;
	int			found = 0;

	for (int i = 0; i < SAMPLES && over == NIL && al_table_is_crowd(key); i++)
		found += sample(rel, key, (int32) pg_prng_uint64_range(&pg_global_prng_state, 1, PG_INT32_MAX),
						SAMPLE, &over);
	if (over != NIL || found == SAMPLES * SAMPLE)
		return over;
	/* A sample began among the highest slots, or there is no crowd. */
	found = sample(rel, key, AL_SLOT_FIRST_SHARED, FEW + 1, &over);
	al_table_set_crowd(key, found > FEW);
	return over;
}

/*
 * A slot for a new shared holding.  The lower bits of the fencing token decide, so no two
 * transactions choose the same slot before 2^31 tokens are drawn.  Tokens drawn together have
 * neighbouring slots, far from others: multiplying by an odd number permutes the numbers.
 */
int32
al_sharers_new_slot(Relation rel, const AlKey *key, int64 fencing_token)
{
	uint32		neighbourhood = (uint32) (fencing_token / NEIGHBOURS) * 0x9e3779b1;
	int32		slot = (int32) ((neighbourhood * NEIGHBOURS | fencing_token % NEIGHBOURS) & PG_INT32_MAX);
	AlHolding	row;

	Assert(slot >= AL_SLOT_EXCLUSIVE);
	while (slot == AL_SLOT_EXCLUSIVE || al_table_find_slot(rel, key, slot, &row))
		slot = slot % PG_INT32_MAX + 1;
	return slot;
}

typedef struct Seat
{
	TimestampTz end;
	ItemPointerData tid;
} Seat;

static int
compare_seats(const void *a, const void *b)
{
	TimestampTz end_a = ((const Seat *) a)->end;
	TimestampTz end_b = ((const Seat *) b)->end;

	return end_a < end_b ? -1 : end_a > end_b;
}

typedef struct Counting
{
	AlEntries	entries;
	const AlKey *key;
	bool		may_rely;		/* others may rely on an expired lease */
	TimestampTz now;
	TransactionId next;			/* later transactions are not counted */
} Counting;

typedef enum Held
{
	NOT_HELD,
	MAY_BE_HELD,
	HELD
} Held;

/* Is this another transaction, which is unfinished for the snapshot, and may commit? */
static bool
is_unfinished(const Counting *counting, TransactionId xid)
{
	return TransactionIdIsNormal(xid) && !TransactionIdIsCurrentTransactionId(xid) &&
		TransactionIdPrecedes(xid, counting->next) &&
		XidInMVCCSnapshot(xid, counting->entries.snapshot) && !TransactionIdDidAbort(xid);
}

/* The transaction that has updated a version of a row; 0: none, or a sweep deleted it */
static TransactionId
updater(HeapTuple tuple)
{
	HeapTupleHeader header = tuple->t_data;

	if (!al_pending_is_superseded(header) || ItemPointerEquals(&header->t_ctid, &tuple->t_self))
		return InvalidTransactionId;
	return HeapTupleHeaderGetUpdateXid(header);
}

/*
 * The snapshot sees a row whose holding has ended.  May the key be held all the same, by that
 * holding or a newer one in the row?  "xid" has updated the row, or 0.  If so, *row is set to the
 * holding, with the process of the transaction.  An expired lease gets no new claims, so asking
 * for a claim before looking for a newer version misses neither.
 */
static bool
may_be_held(const Counting *counting, TransactionId xid, AlHolding *row)
{
	Relation	rel = counting->entries.scan->heapRelation;
	bool		unfinished = is_unfinished(counting, xid);
	AlHolding	again;
	AlOwner		owner;

	if (!unfinished && (row->released_at != 0 || !counting->may_rely))
		return false;
	if (row->tuple == NULL)
		read_version(rel, &row->tid, row);
	row->pid = 0;
	if (unfinished)
	{
		SnapshotData dirty;
		AlHolding	update;

		InitDirtySnapshot(dirty);
		if (al_table_find_update(rel, counting->key, row, &dirty, &update))
			*row = update;
		else
			row->holder = NULL;
		row->pid = al_pending_process(xid);
		return true;
	}
	al_owner_init(&owner, al_string(row->owner));
	if (al_claim_has_holding(counting->key, &owner, &row->pid))
		return true;
	read_version(rel, &row->tid, &again);
	return TransactionIdIsValid(updater(again.tuple));
}

/*
 * Judge a slot by the row that the snapshot sees in it, if an entry or a hint leads there:
 *
 *	live														HELD
 *	ended, and an unfinished transaction has updated it			MAY_BE_HELD
 *	released													NOT_HELD
 *	expired, and the holding is claimed, or has a new version	MAY_BE_HELD
 *	expired														NOT_HELD
 *	no row, but an unfinished transaction has written one		MAY_BE_HELD
 *	no row														NOT_HELD
 *
 * *is_certain: the snapshot sees a row, so further entries add nothing.  *row is set to the
 * row that decided.
 */
static Held
judge_slot(const Counting *counting, AlEntries *entries, ItemPointerData tid, int32 slot,
		   bool *is_certain, AlHolding *row)
{
	Relation	rel = entries->scan->heapRelation;
	bool		is_seen = false;
	bool		is_pending = false;
	TransactionId xid = InvalidTransactionId;
	AlHolding	hinted;
	HeapTupleData tuple;

	for (bool first = true; !is_seen && al_entries_version(entries, &tid, first, &tuple); first = false)
	{
		is_seen = HeapTupleSatisfiesVisibility(&tuple, entries->snapshot, entries->buffer);
		is_pending = is_pending ||
			(!is_seen && is_unfinished(counting, HeapTupleHeaderGetXmin(tuple.t_data)));
		if (is_seen)
			xid = updater(&tuple);
		al_entries_unlock(entries);
		if (is_seen)
			al_row_peek(rel, &tuple, row);
		else if (is_pending)
			al_row_read(rel, &tuple, row);
	}
	*is_certain = is_seen;
	if (!is_seen && al_table_find_by_hint(rel, counting->key, slot, entries->snapshot, &hinted))
	{
		*row = hinted;
		xid = updater(hinted.tuple);
		*is_certain = true;
	}
	if (*is_certain && al_is_live(row, counting->now))
		return HELD;
	if (*is_certain)
		return may_be_held(counting, xid, row) ? MAY_BE_HELD : NOT_HELD;
	if (!is_pending)
		return NOT_HELD;
	row->pid = al_pending_process(HeapTupleHeaderGetXmin(row->tuple->t_data));
	return MAY_BE_HELD;
}

/*
 * Count the sharers of a key: another one may share it if they are fewer than "limit".  They are
 * counted up to the limit, or up to AL_MOST_COUNTED if that is higher.
 *
 * With "is_claimed", the caller has claimed the seats of the key, so no limit admits another
 * sharer meanwhile.  A sharer that was admitted before has written a row: the snapshot sees the
 * row, or its transaction as unfinished.  A holding that an unfinished transaction has ended
 * counts as held, one that it has begun as pending.  Later transactions do not count: one may
 * have ended a holding that the snapshot still sees, and have begun another.
 */
void
al_sharers_count(Relation rel, const AlKey *key, int limit, bool is_claimed, AlSeats *seats)
{
	Counting	counting = {.key = key,.now = GetCurrentTimestamp()};
	Snapshot	snapshot;
	AlEntries  *entries = &counting.entries;
	ScanKeyData keys[2];
	ItemPointer tid;
	int			most = Max(limit, AL_MOST_COUNTED);
	int			size = 16;
	Seat	   *held = palloc(size * sizeof(Seat));
	int32		slot = -1;
	Held		state = NOT_HELD;
	bool		is_certain = false;

	Assert(limit >= 0);
	memset(seats, 0, sizeof(AlSeats));
	seats->soonest = DT_NOEND;
	/* A lease that was live a moment ago may have been claimed since, but no older one. */
	counting.may_rely = is_claimed && al_claim_has_others(key->hash);
	counting.next = ReadNextTransactionId();
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	AL_TEST_POINT("counting");
	al_table_scan_keys(keys, key, true, AL_SLOT_FIRST_SHARED);
	al_entries_begin(entries, rel, al_table_key_index(rel), snapshot, 2, keys);
	while (seats->held < most && (tid = al_entries_next(entries)) != NULL)
	{
		AlHolding	row;
		Held		now;

		if (al_entries_slot(entries) != slot)
		{
			slot = al_entries_slot(entries);
			state = NOT_HELD;
			is_certain = false;
		}
		if (is_certain)
			continue;
		now = judge_slot(&counting, entries, *tid, slot, &is_certain, &row);
		if (now <= state)
			continue;
		if (now == MAY_BE_HELD && seats->pending++ == 0)
		{
			row.meta = NULL;	/* a toasted value may have gone before it is fetched */
			seats->one_pending = row;
		}
		if (now == HELD)
		{
			seats->pending -= state == MAY_BE_HELD;
			if (seats->held == size)
			{
				size *= 2;
				held = repalloc_huge(held, size * sizeof(Seat));
			}
			held[seats->held].end = row.expires_at;
			held[seats->held++].tid = row.tid;
			seats->soonest = Min(seats->soonest, row.expires_at);
		}
		state = now;
	}
	if (seats->held >= limit && limit > 0)
	{
		qsort(held, seats->held, sizeof(Seat), compare_seats);
		read_version(rel, &held[seats->held - limit].tid, &seats->first);
	}
	al_entries_end(entries);
	UnregisterSnapshot(snapshot);
	pfree(held);
	Assert(seats->pending >= 0 && seats->held <= most);
	if (seats->held + seats->pending >= limit)
		al_trace(DEBUG3, "lock \"%s\" has %d seats held and %d pending, limit %d",
				 al_display(key->name), seats->held, seats->pending, limit);
}
