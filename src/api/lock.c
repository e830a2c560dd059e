/*-------------------------------------------------------------------------
 *
 * lock_api.c
 *		SQL-callable functions for applications: check, call, answer.
 *
 * Model: each function checks its arguments, opens app_lock, calls one verb
 * of lock_lease.c and turns the outcome into an answer, or into the error
 * that lock_report.c has for it.  No function here is strict: a NULL that
 * means nothing raises 22004, rather than a NULL that a caller takes for
 * "false".
 *
 * Locking rules: app_lock is opened with RowExclusiveLock, given back at once
 * where nothing was written, and kept until commit otherwise, also by who has only
 * claimed a key: nobody must drop and create the extension under a claim.
 *
 * IDENTIFICATION
 *		src/api/lock.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "base/compat.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "lock_lease.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/typcache.h"

PG_FUNCTION_INFO_V1(atomic_lock_acquire);
PG_FUNCTION_INFO_V1(atomic_lock_try_acquire);
PG_FUNCTION_INFO_V1(atomic_lock_acquire_all);
PG_FUNCTION_INFO_V1(atomic_lock_try_acquire_all);
PG_FUNCTION_INFO_V1(atomic_lock_convert);
PG_FUNCTION_INFO_V1(atomic_lock_transfer);
PG_FUNCTION_INFO_V1(atomic_lock_release);
PG_FUNCTION_INFO_V1(atomic_lock_try_release);
PG_FUNCTION_INFO_V1(atomic_lock_release_all);
PG_FUNCTION_INFO_V1(atomic_lock_extend);
PG_FUNCTION_INFO_V1(atomic_lock_try_extend);
PG_FUNCTION_INFO_V1(atomic_lock_extend_all);
PG_FUNCTION_INFO_V1(atomic_lock_key);

/*
 * The ttl of a new lease: the argument, or atomic_lock.default_ttl.  Raises
 * 22023 where it is longer than the settings allow.
 */
int64
al_new_ttl_arg(FunctionCallInfo fcinfo, int argno)
{
	int64		ttl = al_ttl_arg(fcinfo, argno);

	if (ttl == 0)
	{
		ttl = AL_MS_TO_US(al_default_ttl_ms);
		if (ttl > AL_MS_TO_US(al_max_ttl_ms))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE), al_hide_owners(),
					 errmsg("atomic_lock.default_ttl must not be longer than atomic_lock.max_ttl"),
					 errhint("Pass a ttl, or change one of the settings.")));
	}
	if (al_max_lifetime_ms > 0 && ttl > AL_MS_TO_US(al_max_lifetime_ms))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), al_hide_owners(),
				 errmsg("ttl must not be longer than atomic_lock.max_lifetime (%s)",
						GetConfigOptionByName("atomic_lock.max_lifetime", NULL, false))));
	return ttl;
}

static void
close_app_lock(Relation rel, bool wrote)
{
	table_close(rel, wrote ? NoLock : RowExclusiveLock);
}

Datum
al_interval_datum(int64 microseconds)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->time = microseconds;
	return IntervalPGetDatum(interval);
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
	EXPIRES_AT, WAITED, HOLDER, COLUMNS
};

/*
 * The columns of a lock_grant: the new lease, or who has the key.  "owner" is
 * shown only where the lease is that owner's.
 */
static void
fill_columns(const AlKey *key, const AlOwner *owner, const AlResult *result,
			 Datum *values, bool *nulls)
{
	const AlHolding *holding = &result->holding;
	AlOutcome	obstacle = al_obstacle(result);
	bool		acquired = al_is_granted(result);

	memset(nulls, 0, COLUMNS * sizeof(bool));
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

	/* Of what is no lease, or not yet, there is little to tell. */
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
 * A row of the composite type that the function returns.  get_call_result_type()
 * would make a copy of its descriptor, which costs as much as the row.
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
	Datum		values[COLUMNS];
	bool		nulls[COLUMNS];

	fill_columns(key, owner, result, values, nulls);
	return al_row_datum(fcinfo, COLUMNS, values, nulls);
}

/* The arguments from ttl to meta, which all that acquire have in common */
static void
request_args(FunctionCallInfo fcinfo, AlLifetime lifetime, AlAcquire *request)
{
	request->is_convert = false;
	request->lifetime = lifetime;
	request->ttl = lifetime != AL_LEASE && PG_ARGISNULL(1) ? 0 : al_new_ttl_arg(fcinfo, 1);
	al_owner_arg_or_new(fcinfo, 2, &request->owner);
	request->is_shared = al_mode_arg(fcinfo, 3);
	request->wait = al_wait_arg(fcinfo, 4);
	request->holder = al_holder_arg(fcinfo, 5);
	request->meta = al_meta_arg(fcinfo, 6);
	/* Code of others that somebody runs must leave nothing in his session. */
	if (lifetime == AL_SESSION && InSecurityRestrictedOperation())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE), al_hide_owners(),
				 errmsg("cannot acquire a lock with the lifetime of a session within security-restricted operation")));
	if (lifetime == AL_TRANSACTION && request->ttl != 0)
		al_raise_no_lease("ttl");
	if (lifetime == AL_TRANSACTION && request->meta)
		al_raise_no_lease("meta");
}

/*
 * lock_acquire and lock_try_acquire
 *		(key, ttl, owner, mode, wait, holder, meta, lifetime)
 */
static Datum
acquire(FunctionCallInfo fcinfo, const char *function, bool raise)
{
	AlKey		key;
	AlAcquire	request;
	AlResult	result;
	Relation	rel = al_open_for_writing(function);
	bool		acquired;

	al_key_arg(fcinfo, 0, &key);
	request_args(fcinfo, al_lifetime_arg(fcinfo, 7), &request);

	al_lease_acquire(&rel, &key, &request, &result);
	acquired = al_is_granted(&result);
	if (!acquired && raise)
		al_raise(&key, &result);
	close_app_lock(rel, acquired);
	return al_grant_datum(fcinfo, &key, &request.owner, &result);
}

Datum
atomic_lock_acquire(PG_FUNCTION_ARGS)
{
	return acquire(fcinfo, "lock_acquire()", true);
}

Datum
atomic_lock_try_acquire(PG_FUNCTION_ARGS)
{
	return acquire(fcinfo, "lock_try_acquire()", false);
}

/*
 * lock_acquire_all and lock_try_acquire_all
 *		(keys, ttl, owner, mode, wait, holder, meta)
 *
 * A row for each key, or where it is refused, one for the key in the way.
 */
static Datum
acquire_all(FunctionCallInfo fcinfo, const char *function, bool raise)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	AlKey	   *keys;
	int			count;
	AlAcquire	request;
	AlResult   *results;
	int			refused;
	Relation	rel = al_open_for_writing(function);

	InitMaterializedSRF(fcinfo, 0);
	keys = al_keys_arg(fcinfo, 0, &count);
	request_args(fcinfo, AL_LEASE, &request);
	results = palloc(count * sizeof(AlResult));

	refused = al_lease_acquire_all(&rel, keys, count, &request, results);
	if (refused >= 0 && raise)
		al_raise(&keys[refused], &results[refused]);
	close_app_lock(rel, refused < 0);
	for (int i = 0; i < count; i++)
	{
		Datum		values[COLUMNS];
		bool		nulls[COLUMNS];

		if (refused >= 0 && i != refused)
			continue;
		fill_columns(&keys[i], &request.owner, &results[i], values, nulls);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

Datum
atomic_lock_acquire_all(PG_FUNCTION_ARGS)
{
	return acquire_all(fcinfo, "lock_acquire_all()", true);
}

Datum
atomic_lock_try_acquire_all(PG_FUNCTION_ARGS)
{
	return acquire_all(fcinfo, "lock_try_acquire_all()", false);
}

/* lock_convert(key, owner, mode, wait): the lease in its new mode, or raises */
Datum
atomic_lock_convert(PG_FUNCTION_ARGS)
{
	Relation	rel = al_open_for_writing("lock_convert()");
	AlKey		key;
	AlAcquire	request = {.is_convert = true};
	AlResult	result;

	al_key_arg(fcinfo, 0, &key);
	al_owner_arg(fcinfo, 1, &request.owner);
	request.is_shared = al_mode_arg(fcinfo, 2);
	request.wait = al_wait_arg(fcinfo, 3);

	al_lease_acquire(&rel, &key, &request, &result);
	if (!al_is_granted(&result))
		al_raise(&key, &result);
	close_app_lock(rel, result.outcome == AL_ACQUIRED);
	return al_grant_datum(fcinfo, &key, &request.owner, &result);
}

/* lock_transfer(key, owner, new_owner, holder, ttl): the lease of the new owner, or raises */
Datum
atomic_lock_transfer(PG_FUNCTION_ARGS)
{
	Relation	rel = al_open_for_writing("lock_transfer()");
	AlKey		key;
	AlOwner		owner;
	AlOwner		new_owner;
	text	   *holder;
	int64		ttl = 0;
	AlResult	result;

	al_key_arg(fcinfo, 0, &key);
	al_owner_arg(fcinfo, 1, &owner);
	al_new_owner_arg(fcinfo, 2, &new_owner);
	holder = al_holder_arg(fcinfo, 3);
	if (!PG_ARGISNULL(4))
		ttl = al_new_ttl_arg(fcinfo, 4);

	result.waited = 0;
	al_lease_transfer(rel, &key, &owner, &new_owner, holder, ttl, &result);
	if (!al_is_granted(&result))
		al_raise(&key, &result);
	close_app_lock(rel, true);
	return al_grant_datum(fcinfo, &key, &new_owner, &result);
}

/* lock_release(key, owner): true, or raises */
Datum
atomic_lock_release(PG_FUNCTION_ARGS)
{
	Relation	rel = al_open_for_writing("lock_release()");
	AlKey		key;
	AlOwner		owner;
	AlResult	result;

	al_key_arg(fcinfo, 0, &key);
	al_owner_arg(fcinfo, 1, &owner);
	al_lease_release(rel, &key, &owner, NULL, &result);
	if (result.outcome != AL_RELEASED)
		al_raise(&key, &result);
	close_app_lock(rel, true);
	PG_RETURN_BOOL(true);
}

/* lock_try_release(key, owner): what became of it, in a word */
Datum
atomic_lock_try_release(PG_FUNCTION_ARGS)
{
	Relation	rel = al_open_for_writing("lock_try_release()");
	AlKey		key;
	AlOwner		owner;
	AlResult	result;
	const char *word = NULL;

	al_key_arg(fcinfo, 0, &key);
	al_owner_arg(fcinfo, 1, &owner);
	al_lease_release(rel, &key, &owner, NULL, &result);
	close_app_lock(rel, result.outcome == AL_RELEASED);

	switch (result.outcome)
	{
		case AL_RELEASED:
			word = "released";
			break;
		case AL_NOT_FOUND:
			word = "not_found";
			break;
		case AL_NOT_OWNER:
			word = "not_owner";
			break;
		case AL_ALREADY_RELEASED:
			word = "already_released";
			break;
		case AL_EXPIRED:
			word = "expired";
			break;
		default:
			al_raise(&key, &result);
	}
	PG_RETURN_TEXT_P(cstring_to_text(word));
}

static Datum
extend(FunctionCallInfo fcinfo, const char *function, bool raise)
{
	Relation	rel = al_open_for_writing(function);
	AlKey		key;
	AlOwner		owner;
	int64		ttl;
	AlResult	result;

	al_key_arg(fcinfo, 0, &key);
	al_owner_arg(fcinfo, 1, &owner);
	ttl = al_ttl_arg(fcinfo, 2);
	al_lease_extend(rel, &key, &owner, NULL, ttl, &result);
	if (result.outcome != AL_EXTENDED)
	{
		if (raise)
			al_raise(&key, &result);
		close_app_lock(rel, false);
		PG_RETURN_NULL();
	}
	close_app_lock(rel, true);
	PG_RETURN_TIMESTAMPTZ(result.holding.expires_at);
}

/* lock_extend(key, owner, ttl): the new expiry, or raises */
Datum
atomic_lock_extend(PG_FUNCTION_ARGS)
{
	return extend(fcinfo, "lock_extend()", true);
}

/* lock_try_extend(key, owner, ttl): the new expiry, or NULL */
Datum
atomic_lock_try_extend(PG_FUNCTION_ARGS)
{
	return extend(fcinfo, "lock_try_extend()", false);
}

static int
compare_keys(const ListCell *a, const ListCell *b)
{
	return al_key_compare(&((AlOwned *) lfirst(a))->key, &((AlOwned *) lfirst(b))->key);
}

/*
 * Release or extend every live lease of an owner, and return how many.  Keys
 * are taken in their order, so that two such calls cannot deadlock.
 */
static int64
for_all_of_owner(Relation rel, const AlOwner *owner, bool release, int64 ttl)
{
	List	   *owned = al_owner_rows(rel, owner);
	const AlOwned *previous = NULL;
	ListCell   *cell;
	int64		count = 0;

	foreach(cell, release ? al_held_mine(NULL) : NIL)
	{
		AlHolding  *holding = lfirst(cell);
		AlOwned    *owns = palloc0(sizeof(AlOwned));

		if (!al_is_owned_by(holding, owner))
			continue;
		al_key_init(&owns->key, holding->key);
		owned = lappend(owned, owns);
	}
	list_sort(owned, compare_keys);
	foreach(cell, owned)
	{
		const AlOwned *owns = lfirst(cell);
		AlResult	result;

		CHECK_FOR_INTERRUPTS();
		if (previous && al_key_compare(&previous->key, &owns->key) == 0)
			continue;
		previous = owns;
		if (release)
			al_lease_release(rel, &owns->key, owner, owns->row, &result);
		else
			al_lease_extend(rel, &owns->key, owner, owns->row, ttl, &result);
		if (result.outcome == (release ? AL_RELEASED : AL_EXTENDED))
			count++;
	}
	return count;
}

/* lock_release_all(owner): how many leases were released */
Datum
atomic_lock_release_all(PG_FUNCTION_ARGS)
{
	Relation	rel = al_open_for_writing("lock_release_all()");
	AlOwner		owner;
	int64		count;

	al_owner_arg(fcinfo, 0, &owner);
	count = for_all_of_owner(rel, &owner, true, 0);
	close_app_lock(rel, count > 0);
	PG_RETURN_INT64(count);
}

/* lock_extend_all(owner, ttl): how many leases were extended */
Datum
atomic_lock_extend_all(PG_FUNCTION_ARGS)
{
	Relation	rel = al_open_for_writing("lock_extend_all()");
	AlOwner		owner;
	int64		ttl;
	int64		count;

	al_owner_arg(fcinfo, 0, &owner);
	ttl = al_ttl_arg(fcinfo, 1);
	count = for_all_of_owner(rel, &owner, false, ttl);
	close_app_lock(rel, count > 0);
	PG_RETURN_INT64(count);
}

/* lock_key(VARIADIC parts): the parts joined by ":", unambiguously */
Datum
atomic_lock_key(PG_FUNCTION_ARGS)
{
	ArrayType  *parts;
	ArrayIterator iterator;
	StringInfoData key;
	Datum		part;
	bool		is_null;
	bool		first = true;

	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), al_hide_owners(),
				 errmsg("parts of a lock key must not be null")));
	parts = PG_GETARG_ARRAYTYPE_P(0);
	if (ARR_NDIM(parts) != 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), al_hide_owners(),
				 errmsg("a lock key needs a one-dimensional array of at least one part")));

	initStringInfo(&key);
	iterator = array_create_iterator(parts, 0, NULL);
	while (array_iterate(iterator, &part, &is_null))
	{
		AlString	string;

		if (is_null)
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), al_hide_owners(),
					 errmsg("parts of a lock key must not be null")));
		if (!first)
			appendStringInfoChar(&key, ':');
		first = false;

		/* Server encodings are safe here: neither byte is part of another. */
		string = al_string(DatumGetTextPP(part));
		for (int i = 0; i < string.len; i++)
		{
			if (string.data[i] == ':' || string.data[i] == '\\')
				appendStringInfoChar(&key, '\\');
			appendStringInfoChar(&key, string.data[i]);
		}
	}
	array_free_iterator(iterator);
	PG_RETURN_TEXT_P(cstring_to_text_with_len(key.data, key.len));
}
