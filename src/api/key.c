/*-------------------------------------------------------------------------
 *
 * key.c
 *		lock_key(): one way to build keys.
 *
 * Locking: none.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "atomic_lock.h"
#include "base/errors.h"
#include "base/str.h"

PG_FUNCTION_INFO_V1(atomic_lock_key);

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
				(al_errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("parts of a lock key must not be null")));
	parts = PG_GETARG_ARRAYTYPE_P(0);
	if (ARR_NDIM(parts) != 1)
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parts of a lock key must be a one-dimensional array with at least one element")));

	initStringInfo(&key);
	iterator = array_create_iterator(parts, 0, NULL);
	while (array_iterate(iterator, &part, &is_null))
	{
		AlString	string;

		if (is_null)
			ereport(ERROR,
					(al_errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
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
