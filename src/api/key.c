/*-------------------------------------------------------------------------
 *
 * key.c
 *		lock_key(): make a key of parts.  lock_path(): the folders above a key.
 *		lock_partition(): the partition of a key.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: there are two functions lock_key().  PostgreSQL calls the one for text if all
 * parts are text, or parameters and literals of unknown type.  The other one takes "any";
 * if it were the only one, PostgreSQL would refuse a parameter of unknown type.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "api/args.h"
#include "base/errors.h"
#include "base/key.h"
#include "base/partition.h"
#include "base/path.h"
#include "base/str.h"

PG_FUNCTION_INFO_V1(atomic_lock_key);
PG_FUNCTION_INFO_V1(atomic_lock_key_any);
PG_FUNCTION_INFO_V1(atomic_lock_path);
PG_FUNCTION_INFO_V1(atomic_lock_partition);

static void
append(StringInfo key, bool first, AlPart *part, Datum value, bool is_null)
{
	if (is_null)
		al_raise_null("parts of a lock key");
	if (!first)
		appendStringInfoChar(key, ':');
	al_part_append(part, value, key);
}

/* lock_key(VARIADIC array): its elements joined by ":" */
Datum
atomic_lock_key(PG_FUNCTION_ARGS)
{
	ArrayType  *parts;
	ArrayIterator iterator;
	AlPart		part;
	StringInfoData key;
	Datum		value;
	bool		is_null;

	if (PG_ARGISNULL(0))
		al_raise_null("parts of a lock key");
	parts = PG_GETARG_ARRAYTYPE_P(0);
	if (ARR_NDIM(parts) != 1)
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parts of a lock key must be a one-dimensional array with at least one element")));

	initStringInfo(&key);
	al_part_init(&part, ARR_ELEMTYPE(parts));
	iterator = array_create_iterator(parts, 0, NULL);
	for (bool first = true; array_iterate(iterator, &value, &is_null); first = false)
		append(&key, first, &part, value, is_null);
	array_free_iterator(iterator);
	PG_RETURN_TEXT_P(al_string_text(al_check_encoding((AlString) {key.data, key.len}, "lock key")));
}

/* lock_key(VARIADIC parts): the same, with parts of any types */
Datum
atomic_lock_key_any(PG_FUNCTION_ARGS)
{
	StringInfoData key;

	if (get_fn_expr_variadic(fcinfo->flinfo))
		return atomic_lock_key(fcinfo);
	initStringInfo(&key);
	for (int i = 0; i < PG_NARGS(); i++)
	{
		Oid			type = get_fn_expr_argtype(fcinfo->flinfo, i);
		AlPart		part;

		if (!OidIsValid(type))
			ereport(ERROR,
					(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("could not determine the type of a part of a lock key")));
		al_part_init(&part, type);
		append(&key, i == 0, &part, PG_GETARG_DATUM(i), PG_ARGISNULL(i));
	}
	PG_RETURN_TEXT_P(al_string_text(al_check_encoding((AlString) {key.data, key.len}, "lock key")));
}

/* lock_path(path, separator): the folders above a key, and the key */
Datum
atomic_lock_path(PG_FUNCTION_ARGS)
{
	AlPath		path;
	Datum		keys[AL_MAX_PATH];

	al_path_arg(fcinfo, 0, 1, &path);
	for (int i = 0; i < path.count; i++)
		keys[i] = PointerGetDatum(al_string_text(al_path_key(&path, i)));
	PG_RETURN_ARRAYTYPE_P(construct_array(keys, path.count, TEXTOID, -1, false, TYPALIGN_INT));
}

/* lock_partition(key, partitions): for routers, so the key may be of any length and server */
Datum
atomic_lock_partition(PG_FUNCTION_ARGS)
{
	if (PG_ARGISNULL(0))
		al_raise_null("lock key");
	if (PG_ARGISNULL(1))
		al_raise_null("partitions");
	if (PG_GETARG_INT32(1) < 1)
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("partitions must be at least 1, not %d", PG_GETARG_INT32(1))));
	PG_RETURN_INT32(al_partition_of(al_check_encoding(al_string(PG_GETARG_TEXT_PP(0)), "lock key"),
									PG_GETARG_INT32(1)));
}
