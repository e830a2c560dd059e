/*-------------------------------------------------------------------------
 *
 * key.c
 *		lock_key(): make a key of parts.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "atomic_lock.h"
#include "api/args.h"
#include "base/errors.h"
#include "base/str.h"

PG_FUNCTION_INFO_V1(atomic_lock_key);

/* lock_key(VARIADIC parts): the parts joined by ":"; in parts ":" and "\" are escaped */
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
		al_raise_null("parts of a lock key");
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
			al_raise_null("parts of a lock key");
		if (!first)
			appendStringInfoChar(&key, ':');
		first = false;

		/* In no server encoding is either byte part of another character. */
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
