/*-------------------------------------------------------------------------
 *
 * history.c
 *		lock_held_at(): who held a key at a moment.
 *
 * Model: lock_history says from when to when each grant lasted.  The end of a lease that
 * has expired is written there when somebody takes or sweeps its row, and until then
 * its row in app_lock tells the end.
 *
 * Locking rules: both tables are opened with AccessShareLock; no claims.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "api/args.h"
#include "base/str.h"
#include "claim/holding.h"
#include "lease/state.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/history.h"
#include "table/scan.h"

PG_FUNCTION_INFO_V1(atomic_lock_held_at);

/* A grant is looked for so often in both tables, between which it may have moved. */
#define MOST_LOOKS	3

#define COLUMN(column) (Anum_lock_history_##column - 1)

/* The row in app_lock of a grant; NULL: there is none any more */
static const AlHolding *
find_row(const AlState *state, int64 fencing_token)
{
	ListCell   *cell;

	if (ItemPointerIsValid(&state->rows.exclusive.tid) &&
		state->rows.exclusive.fencing_token == fencing_token)
		return &state->rows.exclusive;
	foreach(cell, state->rows.shared)
	{
		if (((AlHolding *) lfirst(cell))->fencing_token == fencing_token)
			return lfirst(cell);
	}
	return NULL;
}

/*
 * Fill in the end of a grant that lock_history does not know.  False: nobody knows it,
 * since the policy asked for no history when it ended.
 */
static bool
add_end(const AlState *state, TimestampTz now, Datum *values, bool *nulls)
{
	const AlHolding *row = find_row(state, DatumGetInt64(values[COLUMN(fencing_token)]));

	if (row == NULL)
		return false;
	if (al_is_live(row, now))
		return true;
	values[COLUMN(ended_at)] = TimestampTzGetDatum(row->released_at != 0 ? row->released_at :
												   al_ended_at(row));
	values[COLUMN(ended_by)] =
		CStringGetTextDatum(al_history_word(row, row->released_at != 0 ? AL_ENDED_RELEASED :
											AL_ENDED_EXPIRED));
	nulls[COLUMN(ended_at)] = nulls[COLUMN(ended_by)] = false;
	return true;
}

/*
 * Put a row for each grant of a key that lasted at a moment.  False: of one of them the
 * end is not known.
 */
static bool
put_grants(const AlKey *key, TimestampTz at, const AlState *state,
		   Tuplestorestate *store, TupleDesc desc)
{
	static const AttrNumber column = Anum_lock_history_key;
	Relation	rel = al_open_history(AccessShareLock);
	TimestampTz now = GetCurrentTimestamp();
	bool		is_known = true;
	AlScan		scan;
	ScanKeyData scan_key;
	HeapTuple	tuple;

	ScanKeyInit(&scan_key, column, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(al_string_text(key->name)));
	al_scan_begin(&scan, rel, al_scan_index(rel, 1, &column), 1, &scan_key);
	while (HeapTupleIsValid(tuple = al_scan_next(&scan)))
	{
		Datum		values[Natts_lock_history];
		bool		nulls[Natts_lock_history];

		heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
		if (DatumGetTimestampTz(values[COLUMN(acquired_at)]) > at)
			continue;
		if (nulls[COLUMN(ended_at)] && !add_end(state, now, values, nulls))
		{
			is_known = false;
			continue;
		}
		if (nulls[COLUMN(ended_at)] || at < DatumGetTimestampTz(values[COLUMN(ended_at)]))
			tuplestore_putvalues(store, desc, values + 1, nulls + 1);	/* without the key */
	}
	al_scan_end(&scan);
	table_close(rel, AccessShareLock);
	return is_known;
}

/* lock_held_at(key, at): rows of lock_history */
Datum
atomic_lock_held_at(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Relation	rel = al_open_app_lock(AccessShareLock);
	AlKey		key;
	AlState		state;

	InitMaterializedSRF(fcinfo, 0);
	al_key_arg(fcinfo, 0, &key);
	if (PG_ARGISNULL(1))
		al_raise_null("at");
	for (int looks = 1;; looks++)
	{
		al_look(rel, &key, NULL, AL_LOOK_ALL, &state);
		if (put_grants(&key, PG_GETARG_TIMESTAMPTZ(1), &state,
					   rsinfo->setResult, rsinfo->setDesc) || looks == MOST_LOOKS)
			break;
		tuplestore_clear(rsinfo->setResult);
	}
	table_close(rel, AccessShareLock);
	return (Datum) 0;
}
