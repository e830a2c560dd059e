/*-------------------------------------------------------------------------
 *
 * answer.c
 *		Answers of SQL functions.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_database.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/typcache.h"

#include "atomic_lock.h"
#include "api/answer.h"
#include "api/args.h"
#include "base/errors.h"
#include "base/str.h"
#include "claim/holding.h"
#include "lease/state.h"

Datum
al_interval_datum(int64 microseconds)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->time = microseconds;
	return IntervalPGetDatum(interval);
}

/* The name of a database, of type name; 0: it has been dropped */
Datum
al_database_name(Oid oid)
{
	HeapTuple	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(oid));
	Datum		name = 0;

	if (HeapTupleIsValid(tuple))
	{
		name = DirectFunctionCall1(namein,
								   CStringGetDatum(NameStr(((Form_pg_database) GETSTRUCT(tuple))->datname)));
		ReleaseSysCache(tuple);
	}
	return name;
}

static const char *
status_of(AlOutcome outcome)
{
	switch (outcome)
	{
		case AL_ACQUIRED:
			return "acquired";
		case AL_REACQUIRED:
			return "reacquired";
		case AL_TIMEOUT:
			return "timeout";
		case AL_DEADLOCK:
			return "deadlock";
		default:
			return "held";
	}
}

enum
{
	ACQUIRED, STATUS, KEY, MODE, OWNER, FENCING_TOKEN, ACQUIRED_AT,
	EXPIRES_AT, WAITED, HOLDER
};

/*
 * The columns of a lock_grant: the holding that was granted, or the one in the way,
 * whose owner is not shown.
 */
void
al_grant_columns(const AlKey *key, const AlOwner *owner, const AlResult *result,
			 Datum *values, bool *nulls)
{
	const AlHolding *holding = &result->holding;
	AlOutcome	obstacle = al_obstacle(result);
	bool		acquired = al_is_granted(result);

	memset(nulls, 0, AL_GRANT_COLUMNS * sizeof(bool));
	values[ACQUIRED] = BoolGetDatum(acquired);
	values[STATUS] = CStringGetTextDatum(status_of(result->outcome));
	values[KEY] = PointerGetDatum(al_string_text(key->name));
	if (acquired)
	{
		values[OWNER] = PointerGetDatum(al_string_text(owner->name));
		values[FENCING_TOKEN] = Int64GetDatum(holding->fencing_token);
	}
	else
		nulls[OWNER] = nulls[FENCING_TOKEN] = true;

	/* A claim or a waiter in the way is not a holding. */
	if (obstacle == AL_CLAIMED || obstacle == AL_QUEUED)
	{
		nulls[MODE] = nulls[ACQUIRED_AT] = nulls[EXPIRES_AT] = true;
		nulls[HOLDER] = obstacle == AL_CLAIMED;
		values[HOLDER] = nulls[HOLDER] ? 0 : CStringGetTextDatum(result->first);
	}
	else
	{
		values[MODE] = PointerGetDatum(al_mode_text(al_is_shared(holding)));
		values[ACQUIRED_AT] = TimestampTzGetDatum(holding->acquired_at);
		values[EXPIRES_AT] = TimestampTzGetDatum(holding->expires_at);
		nulls[EXPIRES_AT] = holding->expires_at == DT_NOEND;
		values[HOLDER] = PointerGetDatum(holding->holder);
	}
	values[WAITED] = al_interval_datum(result->waited);
}

/*
 * A row of the composite type that the function returns.  get_call_result_type() would
 * copy the type's descriptor, which costs as much as making the row.
 */
Datum
al_row_datum(FunctionCallInfo fcinfo, int columns, Datum *values, bool *nulls)
{
	TupleDesc	desc = lookup_rowtype_tupdesc(get_fn_expr_rettype(fcinfo->flinfo), -1);
	HeapTuple	tuple;

	if (desc->natts != columns)
		elog(ERROR, "return type must have %d columns", columns);
	tuple = heap_form_tuple(desc, values, nulls);
	ReleaseTupleDesc(desc);
	return HeapTupleGetDatum(tuple);
}

Datum
al_grant_datum(FunctionCallInfo fcinfo, const AlKey *key, const AlOwner *owner,
			   const AlResult *result)
{
	Datum		values[AL_GRANT_COLUMNS];
	bool		nulls[AL_GRANT_COLUMNS];

	al_grant_columns(key, owner, result, values, nulls);
	return al_row_datum(fcinfo, AL_GRANT_COLUMNS, values, nulls);
}
