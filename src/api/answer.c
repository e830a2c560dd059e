/*-------------------------------------------------------------------------
 *
 * answer.c
 *		Answers of SQL functions.
 *
 * Copyright (c) 2026, atomic_lock contributors
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

/* The name of a database, of type name; 0 if the database was dropped */
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

const char *
al_status_word(const AlResult *result)
{
	static const char *const words[] = {
		[AL_ACQUIRED] = "acquired",
		[AL_REACQUIRED] = "reacquired",
		[AL_RELEASED] = "released",
		[AL_EXTENDED] = "extended",
		[AL_HELD] = "held",
		[AL_HELD_BY_OWNER] = "held_by_owner",
		[AL_CLAIMED] = "pending",
		[AL_IN_TRANSACTION] = "pending",
		[AL_CLOSED] = "held",
		[AL_QUEUED] = "held",
		[AL_TIMEOUT] = "timeout",
		[AL_DEADLOCK] = "deadlock",
		[AL_NOT_FOUND] = "not_found",
		[AL_NOT_OWNER] = "not_owner",
		[AL_ALREADY_RELEASED] = "already_released",
		[AL_EXPIRED] = "expired",
		[AL_FORCED] = "forced",
		[AL_LIFETIME_EXCEEDED] = "lifetime_exceeded",
		[AL_CHANGED] = "changed",
		[AL_NO_LEASE] = "held",
		[AL_DENIED] = "denied"
	};

	StaticAssertStmt(lengthof(words) == AL_DENIED + 1, "each outcome has a word");
	Assert(result->outcome <= AL_DENIED);
	if (result->outcome == AL_CLAIMED && result->holding.lifetime == AL_TRANSACTION)
		return "held";
	return words[result->outcome];
}

enum
{
	ACQUIRED, STATUS, KEY, MODE, OWNER, FENCING_TOKEN, ACQUIRED_AT,
	EXPIRES_AT, WAITED, HOLDER, TTL_REMAINING, HOLDERS, MAX_HOLDERS
};

/* Is there a holding to show?  Not for a waiter; for a claim only if its holder is known. */
static bool
has_holding(const AlResult *result)
{
	AlOutcome	outcome = al_refusal(result);

	if (outcome == AL_CLAIMED)
		return result->holding.holder != NULL;
	return outcome != AL_QUEUED && outcome != AL_IN_TRANSACTION && outcome != AL_NOT_FOUND;
}

/* The columns of a lock_grant: the granted holding, or the one in the way without its owner */
void
al_grant_columns(const AlKey *key, const AlOwner *owner, const AlResult *result,
			 Datum *values, bool *nulls)
{
	static text *granted[AL_REACQUIRED + 1];
	static Interval no_wait;
	const AlHolding *holding = &result->holding;
	AlOutcome	obstacle = al_refusal(result);
	bool		acquired = al_is_granted(result);

	Assert(!acquired || (owner->name.len > 0 && holding->fencing_token != 0));
	Assert(result->waited >= 0);
	memset(nulls, 0, AL_GRANT_COLUMNS * sizeof(bool));
	values[ACQUIRED] = BoolGetDatum(acquired);
	if (acquired)
		values[STATUS] = PointerGetDatum(al_word_text(&granted[result->outcome],
													  al_status_word(result)));
	else
		values[STATUS] = CStringGetTextDatum(al_status_word(result));
	values[KEY] = PointerGetDatum(al_string_text(key->name));
	if (acquired)
	{
		values[OWNER] = PointerGetDatum(al_string_text(owner->name));
		values[FENCING_TOKEN] = Int64GetDatum(holding->fencing_token);
	}
	else
		nulls[OWNER] = nulls[FENCING_TOKEN] = true;

	if (!has_holding(result))
	{
		nulls[MODE] = nulls[ACQUIRED_AT] = nulls[EXPIRES_AT] = true;
		nulls[HOLDER] = obstacle != AL_QUEUED;
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
	values[WAITED] = result->waited == 0 ? IntervalPGetDatum(&no_wait) :
		al_interval_datum(result->waited);
	nulls[TTL_REMAINING] = !acquired || nulls[EXPIRES_AT];
	if (!nulls[TTL_REMAINING])
		values[TTL_REMAINING] = al_interval_datum(holding->expires_at - result->at);
	values[HOLDERS] = Int32GetDatum(acquired ? result->holders :
									obstacle != AL_HELD && !result->is_full ? 0 :
									Min(result->others + 1,
										Max(AL_MOST_COUNTED, result->max_holders)));
	values[MAX_HOLDERS] = Int32GetDatum(result->max_holders);
}

/*
 * A row of the composite type that the function returns.  get_call_result_type() would copy its
 * descriptor, which takes as long as making the row.
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
