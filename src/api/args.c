/*-------------------------------------------------------------------------
 *
 * args.c
 *		Arguments of SQL functions, checked.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: each function takes the number of an argument and returns its value, or raises:
 * 22004 for a NULL, 22021 for a text that is invalid in the encoding of the database, 22023
 * for any other invalid value.  lease/terms.c has the limits of durations, since policies set
 * them.  An owner is a secret, so no message shows one.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "common/int.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "api/args.h"
#include "base/errors.h"
#include "base/key.h"
#include "base/owner.h"
#include "base/path.h"
#include "base/settings.h"
#include "base/str.h"

static AlString
checked_text(FunctionCallInfo fcinfo, int argno, const char *what, int min, int max)
{
	return al_check_text(al_string(PG_GETARG_TEXT_PP(argno)), what, min, max);
}

/* Raise 22004 */
void
al_raise_null(const char *what)
{
	ereport(ERROR,
			(al_errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("%s must not be null", what)));
}

void
al_key_arg(FunctionCallInfo fcinfo, int argno, AlKey *key)
{
	if (PG_ARGISNULL(argno))
		al_raise_null("lock key");
	al_key_init(key, al_check_key(al_string(PG_GETARG_TEXT_PP(argno))));
}

static int
compare_keys(const void *a, const void *b)
{
	return al_key_compare(a, b);
}

/* A set of 1 to AL_MAX_KEYS keys, sorted and without duplicates */
AlKey *
al_keys_arg(FunctionCallInfo fcinfo, int argno, int *count)
{
	ArrayType  *array;
	ArrayIterator iterator;
	Datum		element;
	bool		is_null;
	AlKey	   *keys;
	int			elements;
	int			distinct = 0;

	if (PG_ARGISNULL(argno))
		al_raise_null("keys");
	array = PG_GETARG_ARRAYTYPE_P(argno);
	elements = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	if (ARR_NDIM(array) != 1 || elements > AL_MAX_KEYS)
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("keys must be a one-dimensional array of 1 to %d lock keys", AL_MAX_KEYS),
				 elements == 0 ? errdetail("The array is empty.") :
				 ARR_NDIM(array) != 1 ? errdetail("The array has %d dimensions.", ARR_NDIM(array)) :
				 errdetail("The array has %d keys.", elements)));

	keys = palloc(elements * sizeof(AlKey));
	elements = 0;
	iterator = array_create_iterator(array, 0, NULL);
	while (array_iterate(iterator, &element, &is_null))
	{
		if (is_null)
			al_raise_null("lock key");
		al_key_init(&keys[elements++], al_check_key(al_string(DatumGetTextPP(element))));
	}
	array_free_iterator(iterator);

	qsort(keys, elements, sizeof(AlKey), compare_keys);
	for (int i = 0; i < elements; i++)
	{
		if (i == 0 || !al_string_equal(keys[i].name, keys[i - 1].name))
			keys[distinct++] = keys[i];
	}
	*count = distinct;
	return keys;
}

void
al_path_arg(FunctionCallInfo fcinfo, int argno, int separator_argno, AlPath *path)
{
	AlString	name;

	if (PG_ARGISNULL(argno))
		al_raise_null("lock path");
	if (PG_ARGISNULL(separator_argno))
		al_raise_null("separator");
	name = checked_text(fcinfo, argno, "lock path", 1, AL_MAX_KEY_BYTES);
	al_path_split(name, al_check_separator(al_string(PG_GETARG_TEXT_PP(separator_argno))), path);
}

AlKey *
al_path_keys(const AlPath *path)
{
	AlKey	   *keys = palloc(path->count * sizeof(AlKey));

	for (int i = 0; i < path->count; i++)
		al_key_init(&keys[i], al_check_key(al_path_key(path, i)));
	return keys;
}

/* The owner argument, or for NULL atomic_lock.owner; false if that is not set either */
static bool
named_owner(FunctionCallInfo fcinfo, int argno, AlOwner *owner)
{
	AlString	name;

	if (!PG_ARGISNULL(argno))
		name = checked_text(fcinfo, argno, "lock owner", 1, AL_MAX_OWNER_BYTES);
	else if (!al_owner_of_session(&name))
		return false;
	al_owner_init(owner, name);
	return true;
}

/* The owner argument, or for NULL atomic_lock.owner */
void
al_owner_arg(FunctionCallInfo fcinfo, int argno, AlOwner *owner)
{
	if (!named_owner(fcinfo, argno, owner))
		ereport(ERROR,
				(al_errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("lock owner must not be null"),
				 errhint("Pass the owner that lock_acquire returned, or set atomic_lock.owner.")));
}

/* The new_owner argument, which does not default to atomic_lock.owner */
void
al_new_owner_arg(FunctionCallInfo fcinfo, int argno, AlOwner *owner)
{
	if (PG_ARGISNULL(argno))
		al_raise_null("new owner");
	(void) named_owner(fcinfo, argno, owner);
}

/* As al_owner_arg(); or a new owner, generated at the grant: a refusal needs no random bytes */
void
al_owner_arg_or_new(FunctionCallInfo fcinfo, int argno, AlOwner *owner)
{
	if (named_owner(fcinfo, argno, owner))
		return;
	memset(owner, 0, sizeof(AlOwner));
	owner->generated = true;
}

/*
 * The microseconds of an interval, with days of 24 hours.  PG_INT64_MAX, above every limit, if
 * they do not fit, or there are months (an infinite interval has, too).
 */
static int64
interval_length(const Interval *interval)
{
	int64		length;

	if (interval->month != 0 ||
		pg_mul_s64_overflow(interval->day, USECS_PER_DAY, &length) ||
		pg_add_s64_overflow(length, interval->time, &length))
		return PG_INT64_MAX;
	return length == AL_NO_TTL ? length + 1 : length;
}

/* The ttl argument in microseconds, unchecked; AL_NO_TTL for NULL */
int64
al_ttl_arg(FunctionCallInfo fcinfo, int argno)
{
	return PG_ARGISNULL(argno) ? AL_NO_TTL : interval_length(PG_GETARG_INTERVAL_P(argno));
}

/* The wait argument in microseconds, unchecked; AL_LONGEST_WAIT for NULL */
int64
al_wait_arg(FunctionCallInfo fcinfo, int argno)
{
	return PG_ARGISNULL(argno) ? AL_LONGEST_WAIT : interval_length(PG_GETARG_INTERVAL_P(argno));
}

/* The index of a word in "words", which ends with NULL.  Raises 22023 and shows the "list". */
static int
word_of(AlString given, const char *what, const char *const *words, const char *list)
{
	for (int i = 0; words[i]; i++)
	{
		if (al_string_equal(given, al_cstring(words[i])))
			return i;
	}
	(void) al_check_encoding(given, what);
	given.len = al_clip_length(given, 64);
	ereport(ERROR,
			(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid %s: \"%s\"", what, al_display(given)),
			 errhint("The value must be %s.", list)));
	return 0;					/* keep compiler quiet */
}

static int
word_arg(FunctionCallInfo fcinfo, int argno, const char *what,
		 const char *const *words, const char *list)
{
	if (PG_ARGISNULL(argno))
		al_raise_null(what);
	return word_of(al_string(PG_GETARG_TEXT_PP(argno)), what, words, list);
}

/* The on_reacquire argument, or the setting for NULL */
AlReacquire
al_on_reacquire_arg(FunctionCallInfo fcinfo, int argno)
{
	static const char *const words[] = {[AL_REACQUIRE_EXTEND] = "extend", [AL_REACQUIRE_ERROR] = "error", NULL};

	if (PG_ARGISNULL(argno))
		return al_on_reacquire;
	return word_arg(fcinfo, argno, "on_reacquire", words, "extend or error");
}

static const char *const lifetimes[] = {"lease", "session", "transaction", NULL};
static const char *const modes[] = {"exclusive", "shared", NULL};

/* Is the mode argument "shared"? */
bool
al_mode_arg(FunctionCallInfo fcinfo, int argno)
{
	return word_arg(fcinfo, argno, "mode", modes, "exclusive or shared") == 1;
}

/*
 * The modes argument: for each key that al_keys_arg() has returned, is it to be shared?  The
 * array has a mode for each element of the argument with the keys.  NULL: "is_shared" for all.
 */
bool *
al_modes_arg(FunctionCallInfo fcinfo, int argno, int keys_argno, const AlKey *keys, int count,
			 bool is_shared)
{
	bool	   *shared = palloc(count * sizeof(bool));
	bool	   *is_known = palloc0(count * sizeof(bool));
	ArrayType  *array;
	Datum	   *names;
	Datum	   *words;
	bool	   *nulls;
	int			name_count;
	int			word_count;

	memset(shared, is_shared, count);
	if (PG_ARGISNULL(argno))
		return shared;
	array = PG_GETARG_ARRAYTYPE_P(argno);
	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &words, &nulls, &word_count);
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(keys_argno), TEXTOID, -1, false, TYPALIGN_INT,
					  &names, NULL, &name_count);
	for (int i = 0; i < word_count; i++)
	{
		if (!nulls[i])
			(void) al_check_encoding(al_string(DatumGetTextPP(words[i])), "mode");
	}
	if (ARR_NDIM(array) != 1 || word_count != name_count)
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("modes must be a one-dimensional array with a mode for each key")));
	for (int i = 0; i < word_count; i++)
	{
		AlKey		key = {.name = al_string(DatumGetTextPP(names[i]))};
		const AlKey *found = bsearch(&key, keys, count, sizeof(AlKey), compare_keys);

		if (nulls[i])
			al_raise_null("mode");
		is_shared = word_of(al_string(DatumGetTextPP(words[i])), "mode", modes,
							"exclusive or shared") == 1;
		if (is_known[found - keys] && shared[found - keys] != is_shared)
			ereport(ERROR,
					(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("lock key \"%s\" is given with both modes", al_display(key.name))));
		is_known[found - keys] = true;
		shared[found - keys] = is_shared;
	}
	return shared;
}

/* The max_holders argument, which includes the caller; 0: no limit */
int
al_max_holders_arg(FunctionCallInfo fcinfo, int argno, bool is_shared)
{
	int			max_holders;

	if (PG_ARGISNULL(argno))
		return 0;
	max_holders = PG_GETARG_INT32(argno);
	if (max_holders < 1)
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_holders must be at least 1, not %d", max_holders)));
	if (!is_shared)
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_holders is for shared locks only"),
				 errhint("Pass mode => 'shared'.  An exclusive lock has one holder.")));
	return max_holders;
}

/* The text of a word, made once and kept in "kept"; must not be changed or freed */
text *
al_word_text(text **kept, const char *word)
{
	if (*kept == NULL)
	{
		MemoryContext old_context = MemoryContextSwitchTo(TopMemoryContext);

		*kept = cstring_to_text(word);
		MemoryContextSwitchTo(old_context);
	}
	return *kept;
}

text *
al_mode_text(bool is_shared)
{
	static text *texts[2];

	return al_word_text(&texts[is_shared], modes[is_shared]);
}

AlLifetime
al_lifetime_arg(FunctionCallInfo fcinfo, int argno)
{
	return (AlLifetime) word_arg(fcinfo, argno, "lifetime", lifetimes,
								 "lease, session or transaction");
}

const char *
al_lifetime_name(AlLifetime lifetime)
{
	Assert(lifetime <= AL_TRANSACTION);
	return lifetimes[lifetime];
}

/* The holder argument; NULL if it is NULL or empty */
text *
al_holder_arg(FunctionCallInfo fcinfo, int argno)
{
	AlString	holder;

	if (PG_ARGISNULL(argno))
		return NULL;
	holder = checked_text(fcinfo, argno, "holder", 0, AL_MAX_HOLDER_BYTES);
	return holder.len > 0 ? PG_GETARG_TEXT_PP(argno) : NULL;
}

/*
 * The default label of a holding: application_name, which PostgreSQL keeps to ASCII, or
 * the name of the role, which may be in any encoding.
 */
text *
al_holder_default(void)
{
	if (application_name && application_name[0] != '\0')
		return cstring_to_text(application_name);
	return cstring_to_text(al_role_name(GetUserId()));
}

text *
al_reason_arg(FunctionCallInfo fcinfo, int argno)
{
	if (PG_ARGISNULL(argno))
		al_raise_null("reason");
	(void) checked_text(fcinfo, argno, "reason", 1, AL_MAX_REASON_BYTES);
	return PG_GETARG_TEXT_PP(argno);
}

text *
al_message_arg(FunctionCallInfo fcinfo, int argno)
{
	if (PG_ARGISNULL(argno))
		return NULL;
	(void) checked_text(fcinfo, argno, "message", 0, AL_MAX_MESSAGE_BYTES);
	return PG_GETARG_TEXT_PP(argno);
}

/* Raise 22021 unless all strings in a JSON value are valid in the encoding of the database. */
void
al_check_json(Jsonb *json, const char *what)
{
	JsonbIterator *iterator = JsonbIteratorInit(&json->root);
	JsonbValue	value;
	JsonbIteratorToken token;

	while ((token = JsonbIteratorNext(&iterator, &value, false)) != WJB_DONE)
	{
		if ((token == WJB_KEY || token == WJB_VALUE || token == WJB_ELEM) && value.type == jbvString)
			(void) al_check_encoding((AlString) {value.val.string.val, value.val.string.len}, what);
	}
}

struct varlena *
al_meta_arg(FunctionCallInfo fcinfo, int argno)
{
	struct varlena *meta;

	if (PG_ARGISNULL(argno))
		return NULL;
	meta = (struct varlena *) PG_GETARG_JSONB_P(argno);
	if (VARSIZE(meta) - VARHDRSZ > AL_MAX_META_BYTES)
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("meta must not be larger than %d bytes", AL_MAX_META_BYTES),
				 errdetail("It has %zu bytes.", (size_t) VARSIZE(meta) - VARHDRSZ)));
	al_check_json((Jsonb *) meta, "meta");
	return meta;
}
