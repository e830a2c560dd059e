/*-------------------------------------------------------------------------
 *
 * lock_fence.c
 *		Fencing tokens: numbers that rise with every grant.
 *
 * Model: a token is an epoch in the upper bits and a number drawn from the
 * sequence app_lock_fence in the lower 44.
 *
 * The number is drawn while the key is claimed, so that two grants of a key
 * draw in the order in which they are granted.  nextval() is not used, for
 * two reasons: it would change what lastval() answers the session, which some
 * drivers rely on, and it hands out numbers whose WAL is not flushed, which a
 * crash can hand out again.  Here the sequence is logged DRAW_AHEAD numbers
 * in advance and that record is flushed before any of them is used, so a
 * number that anybody has seen never comes back, committed or not.  The
 * relation stays an ordinary sequence for pg_dump, setval() and ALTER.
 *
 * What the sequence cannot survive is a copy of the database that misses the
 * last WAL: a promoted standby, a point-in-time recovery, a restored dump.
 * There the epoch rises.  app_lock_epoch says for one system identifier what
 * epoch its first timeline has, and the last timeline that was seen:
 *
 *		same system identifier:		epoch = base + current timeline - 1
 *		another (restore, upgrade):	new base = base + last timeline + slack
 *
 * Both follow from the committed row alone, so backends agree while the row
 * is still being brought up to date, and nobody has to wait for that.  The
 * slack is for promotions of the old server after its dump was taken.
 *
 * Locking rules: one writer of app_lock_epoch at a time, by a claim that is
 * tried, never waited for.  The sequence's only page is locked exclusively
 * while a number is drawn, over a flush of WAL once in DRAW_AHEAD draws.
 *
 * IDENTIFICATION
 *		src/lock_fence.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/generic_xlog.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "atomic_lock.h"
#include "catalog/indexing.h"
#include "commands/sequence.h"
#include "compat.h"
#include "lock_table.h"
#include "storage/bufmgr.h"

#define NUMBER_BITS		44
#define MAX_NUMBER		((INT64CONST(1) << NUMBER_BITS) - 1)
#define MAX_EPOCH		(PG_INT64_MAX >> NUMBER_BITS)
#define DRAW_AHEAD		1024
#define RESTORE_SLACK	16

typedef struct EpochRow
{
	bool		found;
	bool		committed;		/* not written by this transaction */
	ItemPointerData tid;
	uint64		system_identifier;
	int32		base;
	int32		timeline;
} EpochRow;

/* The epoch of this server and timeline, once app_lock_epoch says the same */
static int64 cached_epoch = -1;
static TimeLineID cached_timeline;

/* The relation cache says that something changed */
void
al_fence_forget_epoch(void)
{
	cached_epoch = -1;
}

static void
read_epoch(Relation rel, EpochRow *row)
{
	AlScan		scan;
	HeapTuple	tuple;

	memset(row, 0, sizeof(EpochRow));
	al_scan_begin(&scan, rel, InvalidOid, 0, NULL);
	tuple = al_scan_next(&scan);
	if (HeapTupleIsValid(tuple))
	{
		Datum		values[Natts_app_lock_epoch];
		bool		nulls[Natts_app_lock_epoch];

		heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
		row->found = true;
		row->committed =
			!TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data));
		row->tid = tuple->t_self;
		row->system_identifier =
			DatumGetInt64(values[Anum_app_lock_epoch_system_identifier - 1]);
		row->base = DatumGetInt32(values[Anum_app_lock_epoch_base - 1]);
		row->timeline = DatumGetInt32(values[Anum_app_lock_epoch_timeline - 1]);
	}
	al_scan_end(&scan);
}

static void
write_epoch(Relation rel, EpochRow *row)
{
	Datum		values[Natts_app_lock_epoch];
	bool		nulls[Natts_app_lock_epoch] = {0};
	HeapTuple	tuple;

	values[Anum_app_lock_epoch_system_identifier - 1] =
		Int64GetDatum((int64) row->system_identifier);
	values[Anum_app_lock_epoch_base - 1] = Int32GetDatum(row->base);
	values[Anum_app_lock_epoch_timeline - 1] = Int32GetDatum(row->timeline);
	values[Anum_app_lock_epoch_singleton - 1] = BoolGetDatum(true);
	tuple = heap_form_tuple(RelationGetDescr(rel), values, nulls);
	if (row->found)
		CatalogTupleUpdate(rel, &row->tid, tuple);
	else
		CatalogTupleInsert(rel, tuple);
	CommandCounterIncrement();
}

/* Bring a row up to date with this server; false where it already is */
static bool
advance_epoch(EpochRow *row, TimeLineID timeline)
{
	uint64		system_identifier = GetSystemIdentifier();

	if (!row->found)
		row->base = 0;
	else if (row->system_identifier != system_identifier)
		row->base += row->timeline + RESTORE_SLACK;
	else if (row->timeline >= (int32) timeline)
		return false;

	row->system_identifier = system_identifier;
	row->timeline = timeline;
	return true;
}

static int64
current_epoch(void)
{
	TimeLineID	timeline = GetWALInsertionTimeLine();
	Relation	rel;
	EpochRow	row;
	bool		stale;
	int64		epoch;

	/* A backend lives on when its standby is promoted. */
	if (cached_epoch >= 0 && cached_timeline == timeline)
		return cached_epoch;

	rel = al_open_epoch(RowExclusiveLock);
	read_epoch(rel, &row);
	stale = advance_epoch(&row, timeline);
	if (stale && al_claim_epoch_try())
	{
		/* Somebody may have written it between our look and our claim. */
		read_epoch(rel, &row);
		stale = advance_epoch(&row, timeline);
		if (stale)
			write_epoch(rel, &row);
	}

	epoch = (int64) row.base + timeline - 1;
	if (epoch < 0 || epoch > MAX_EPOCH)
		ereport(ERROR,
				(errcode(ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED),
				 errmsg("fencing tokens have reached their last epoch")));
	if (!stale && row.committed)
	{
		cached_epoch = epoch;
		cached_timeline = timeline;
	}
	relation_close(rel, NoLock);
	return epoch;
}

static Form_pg_sequence_data
sequence_data(Page page)
{
	HeapTupleHeader tuple = (HeapTupleHeader)
		PageGetItem(page, PageGetItemId(page, FirstOffsetNumber));

	return (Form_pg_sequence_data) ((char *) tuple + tuple->t_hoff);
}

/* Log and flush the sequence as it will be after DRAW_AHEAD more draws */
static void
log_ahead(Relation rel, Buffer buffer, int64 number)
{
	GenericXLogState *state = GenericXLogStart(rel);
	Form_pg_sequence_data logged;
	XLogRecPtr	lsn;

	logged = sequence_data(GenericXLogRegisterBuffer(state, buffer,
													 GENERIC_XLOG_FULL_IMAGE));
	logged->last_value = Min(number + DRAW_AHEAD, MAX_NUMBER);
	logged->is_called = true;
	logged->log_cnt = 0;
	lsn = GenericXLogFinish(state);
	if (RelationNeedsWAL(rel))
		XLogFlush(lsn);
}

static int64
draw_number(void)
{
	Relation	rel = al_open_fence(RowExclusiveLock);
	Buffer		buffer;
	Page		page;
	Form_pg_sequence_data data;
	int64		number;

	buffer = ReadBuffer(rel, 0);
	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	page = BufferGetPage(buffer);
	data = sequence_data(page);

	number = data->is_called ? data->last_value + 1 : data->last_value;
	if (number < 1 || number > MAX_NUMBER)
	{
		UnlockReleaseBuffer(buffer);
		ereport(ERROR,
				(errcode(ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED),
				 errmsg("sequence \"%s\" has reached its maximum value (%lld)",
						RelationGetRelationName(rel), (long long) MAX_NUMBER),
				 errdetail("Fencing tokens would no longer rise.")));
	}

	/*
	 * As in nextval(), the first draw after a checkpoint has to log: replay
	 * starts there and would not see what was logged before.
	 */
	if (!data->is_called || data->log_cnt < 1 || PageGetLSN(page) <= GetRedoRecPtr())
	{
		log_ahead(rel, buffer, number);
		data->log_cnt = DRAW_AHEAD;
	}
	else
		data->log_cnt--;
	data->last_value = number;
	data->is_called = true;
	MarkBufferDirty(buffer);

	UnlockReleaseBuffer(buffer);
	relation_close(rel, NoLock);
	return number;
}

/*
 * The fencing token of a grant.  The caller has the key claimed for taking.
 * Raises 2200H when there are no more tokens.
 */
int64
al_fence_next(void)
{
	int64		epoch = current_epoch();

	return (epoch << NUMBER_BITS) | draw_number();
}
