/*-------------------------------------------------------------------------
 *
 * history.c
 *		lock_held_at(): who held a key at a moment.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: lock_history has the beginning and the end of each grant.  The end of an expired
 * lease is written when its row in app_lock is reused or swept.  Until then, the end is
 * taken from that row.
 *
 * Locking rules: both tables are opened with AccessShareLock; no claims.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "atomic_lock.h"
#include "api/args.h"
#include "base/str.h"
#include "claim/holding.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/history.h"
#include "table/scan.h"
#include "table/sharers.h"

#define COLUMN(column) (Anum_lock_history_##column - 1)

/*
 * Fill in an end that lock_history does not have.  False: the grant ends before "at", which may
 * be in the future, or its end was not recorded.
 */
static bool
add_end(const AlRows *rows, TimestampTz now, TimestampTz at, Datum *values, bool *nulls)
{
	const AlHolding *row = al_sharers_find_token(rows, DatumGetInt64(values[COLUMN(fencing_token)]));

	if (row == NULL)
		return false;
	if (al_is_live(row, now))
		return at < row->expires_at;
	values[COLUMN(ended_at)] = TimestampTzGetDatum(row->released_at != 0 ? row->released_at :
												   Max(al_ended_at(row), row->acquired_at));
	values[COLUMN(ended_by)] =
		CStringGetTextDatum(al_history_word(row, row->released_at != 0 ? AL_ENDED_RELEASED :
											AL_ENDED_EXPIRED));
	nulls[COLUMN(ended_at)] = nulls[COLUMN(ended_by)] = false;
	return true;
}

/* lock_held_at(key, at): rows of lock_history, read with the same snapshot as app_lock */
AL_FUNCTION(atomic_lock_held_at)
{
	static const AttrNumber column = Anum_lock_history_key;
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Relation	app_lock = al_open_app_lock(AccessShareLock);
	Relation	rel = al_open_history(AccessShareLock);
	TimestampTz now = GetCurrentTimestamp();
	Snapshot	snapshot;
	AlKey		key;
	AlRows		rows;
	TimestampTz at;
	AlScan		scan;
	ScanKeyData scan_key;
	HeapTuple	tuple;

	PreventCommandIfParallelMode("lock_held_at()");
	InitMaterializedSRF(fcinfo, 0);
	al_key_arg(fcinfo, 0, &key);
	if (PG_ARGISNULL(1))
		al_raise_null("at");
	at = PG_GETARG_TIMESTAMPTZ(1);

	snapshot = RegisterSnapshot(GetLatestSnapshot());
	al_sharers_look(app_lock, &key, AL_SLOT_EXCLUSIVE, true, snapshot, &rows);
	ScanKeyInit(&scan_key, column, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(al_string_text(key.name)));
	al_scan_begin_seen(&scan, rel, al_scan_index(rel, 1, &column), 1, &scan_key, snapshot);
	while (HeapTupleIsValid(tuple = al_scan_next(&scan)))
	{
		Datum		values[Natts_lock_history];
		bool		nulls[Natts_lock_history];

		heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
		if (DatumGetTimestampTz(values[COLUMN(acquired_at)]) > at ||
			(nulls[COLUMN(ended_at)] && !add_end(&rows, now, at, values, nulls)))
			continue;
		if (nulls[COLUMN(ended_at)] || at < DatumGetTimestampTz(values[COLUMN(ended_at)]))
			tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc,
								 values + 1, nulls + 1);	/* without the key */
	}
	al_scan_end(&scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	table_close(app_lock, AccessShareLock);
	return (Datum) 0;
}
