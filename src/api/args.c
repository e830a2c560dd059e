/*-------------------------------------------------------------------------
 *
 * args.c
 *		Arguments of SQL functions, checked.
 *
 * Model: a function here takes an argument by number and returns a value that the
 * rest of the code can rely on, or raises.  An owner is a secret, so no message made
 * here has one.
 *
 * Locking: none.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "common/int.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/guc.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "api/args.h"
#include "base/errors.h"
#include "base/key.h"
#include "base/owner.h"
#include "base/settings.h"
#include "base/str.h"

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
					(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("atomic_lock.default_ttl must not be longer than atomic_lock.max_ttl"),
					 errhint("Pass a ttl, or change one of the settings.")));
	}
	if (al_max_lifetime_ms > 0 && ttl > AL_MS_TO_US(al_max_lifetime_ms))
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("ttl must not be longer than atomic_lock.max_lifetime (%s)",
						GetConfigOptionByName("atomic_lock.max_lifetime", NULL, false))));
	return ttl;
}

static AlString
checked_text(FunctionCallInfo fcinfo, int argno, const char *what, int min, int max)
{
	return al_check_length(al_string(PG_GETARG_TEXT_PP(argno)), what, min, max);
}

static void
raise_null(const char *what)
{
	ereport(ERROR,
			(al_errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("%s must not be null", what)));
}

/* The key argument; raises 22004 for NULL, 22023 for a bad length */
void
al_key_arg(FunctionCallInfo fcinfo, int argno, AlKey *key)
{
	if (PG_ARGISNULL(argno))
		raise_null("lock key");
	al_key_init(key, al_check_key(al_string(PG_GETARG_TEXT_PP(argno))));
}

static int
compare_keys(const void *a, const void *b)
{
	return al_key_compare(a, b);
}

/*
 * The argument that is a set of keys: in their order, each once.  Raises 22004
 * for NULL, 22023 for anything else than 1 to 1000 keys, and what al_key_arg()
 * raises for one of them.
 */
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
		raise_null("keys");
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
			raise_null("lock key");
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

/* Fill in the owner that was named, by argument or by setting; is there one? */
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

/* The owner argument, or atomic_lock.owner; raises 22004 where both are missing */
void
al_owner_arg(FunctionCallInfo fcinfo, int argno, AlOwner *owner)
{
	if (!named_owner(fcinfo, argno, owner))
		ereport(ERROR,
				(al_errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("lock owner must not be null"),
				 errhint("Pass the owner that lock_acquire returned, or set atomic_lock.owner.")));
}

/* An owner argument that must be there; raises 22004 where it is not */
void
al_new_owner_arg(FunctionCallInfo fcinfo, int argno, AlOwner *owner)
{
	if (PG_ARGISNULL(argno))
		raise_null("new owner");
	(void) named_owner(fcinfo, argno, owner);
}

/*
 * The owner argument, or atomic_lock.owner, or one that is to be generated
 * when the lock is granted: random bytes are dear, and a refusal needs none.
 */
void
al_owner_arg_or_new(FunctionCallInfo fcinfo, int argno, AlOwner *owner)
{
	if (named_owner(fcinfo, argno, owner))
		return;
	memset(owner, 0, sizeof(AlOwner));
	owner->generated = true;
}

/*
 * Length of an interval in microseconds, a day being exactly 24 hours.
 * Returns false where it does not fit, and for months and years, whose length
 * depends on the calendar; an infinite interval has months too.
 */
static bool
interval_length(const Interval *interval, int64 *length)
{
	int64		days;

	return interval->month == 0 &&
		!pg_mul_s64_overflow(interval->day, USECS_PER_DAY, &days) &&
		!pg_add_s64_overflow(days, interval->time, length);
}

static void
raise_duration(const char *what, const char *least, const char *setting)
{
	ereport(ERROR,
			(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("%s must be between %s and %s", what, least,
					GetConfigOptionByName(setting, NULL, false)),
			 errhint("The setting %s is the upper limit.  Months and years are not allowed.", setting)));
}

/*
 * The ttl argument.  Returns 0 for NULL; raises 22023 outside of 1 ms to
 * atomic_lock.max_ttl.
 */
int64
al_ttl_arg(FunctionCallInfo fcinfo, int argno)
{
	int64		ttl;

	if (PG_ARGISNULL(argno))
		return 0;
	if (!interval_length(PG_GETARG_INTERVAL_P(argno), &ttl) ||
		ttl < AL_MIN_TTL || ttl > AL_MS_TO_US(al_max_ttl_ms))
		raise_duration("ttl", "1ms", "atomic_lock.max_ttl");
	return ttl;
}

/* The wait argument; raises 22023 outside of 0 to atomic_lock.max_wait */
int64
al_wait_arg(FunctionCallInfo fcinfo, int argno)
{
	int64		wait;

	if (PG_ARGISNULL(argno))
		raise_null("wait");
	if (!interval_length(PG_GETARG_INTERVAL_P(argno), &wait) ||
		wait < 0 || wait > AL_MS_TO_US(al_max_wait_ms))
		raise_duration("wait", "0", "atomic_lock.max_wait");
	return wait;
}

/*
 * Fetch an argument that is one of a list of words, and return its number;
 * raises 22023 for any other.
 */
static int
word_arg(FunctionCallInfo fcinfo, int argno, const char *what,
		 const char *const *words, const char *list)
{
	AlString	given;

	if (PG_ARGISNULL(argno))
		raise_null(what);
	given = al_string(PG_GETARG_TEXT_PP(argno));
	for (int i = 0; words[i]; i++)
	{
		if (al_string_equal(given, al_cstring(words[i])))
			return i;
	}
	given.len = al_clip_length(given, 64);
	ereport(ERROR,
			(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid %s: \"%s\"", what, al_display(given)),
			 errhint("The value must be %s.", list)));
	return 0;					/* keep compiler quiet */
}

static const char *const modes[] = {"exclusive", "shared", NULL};
static const char *const lifetimes[] = {"lease", "session", "transaction", NULL};

/* The mode argument: is it "shared"? */
bool
al_mode_arg(FunctionCallInfo fcinfo, int argno)
{
	return word_arg(fcinfo, argno, "mode", modes, "exclusive or shared") == 1;
}

/* The name of a mode; not to be changed or freed */
text *
al_mode_text(bool is_shared)
{
	static text *texts[2];

	if (texts[is_shared] == NULL)
	{
		MemoryContext old_context = MemoryContextSwitchTo(TopMemoryContext);

		texts[is_shared] = cstring_to_text(modes[is_shared]);
		MemoryContextSwitchTo(old_context);
	}
	return texts[is_shared];
}

/* The lifetime argument */
AlLifetime
al_lifetime_arg(FunctionCallInfo fcinfo, int argno)
{
	return (AlLifetime) word_arg(fcinfo, argno, "lifetime", lifetimes,
								 "lease, session or transaction");
}

const char *
al_lifetime_name(AlLifetime lifetime)
{
	return lifetimes[lifetime];
}

/* The holder argument, NULL where none is given */
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
 * What people see where the caller gave no label.  PostgreSQL makes ASCII of the
 * name of an application; that of a role may be text in another encoding.
 */
text *
al_holder_default(void)
{
	const char *role;

	if (application_name && application_name[0] != '\0')
		return cstring_to_text(application_name);
	role = GetUserNameFromId(GetUserId(), false);
	if (!pg_verify_mbstr(GetDatabaseEncoding(), role, strlen(role), true))
		role = psprintf("role %u", GetUserId());
	return cstring_to_text(role);
}

/* The reason argument of what is audited */
text *
al_reason_arg(FunctionCallInfo fcinfo, int argno)
{
	if (PG_ARGISNULL(argno))
		raise_null("reason");
	(void) checked_text(fcinfo, argno, "reason", 1, AL_MAX_REASON_BYTES);
	return PG_GETARG_TEXT_PP(argno);
}

/* The meta argument, NULL where none is given */
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
	return meta;
}
