/*-------------------------------------------------------------------------
 *
 * lock_key.c
 *		Checks of what callers hand in: keys, owners, labels, durations.
 *
 * Model: a function here takes an argument by number and answers a value that
 * the rest of the code can rely on, or raises.  Keys, owners and labels are
 * bytes: no case folding, no normalization, no collation.  An owner is a
 * secret, so no message made here contains one.
 *
 * Here is also how the value of a column becomes a part of a key.
 *
 * Locking: none.
 *
 * IDENTIFICATION
 *		src/api/args.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "atomic_lock.h"
#include "catalog/pg_type.h"
#include "common/int.h"
#include "base/compat.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/guc.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/* Was atomic_lock.owner, as it is, found to be text in the database's encoding? */
static bool owner_is_verified = false;

/* The bytes of a detoasted text datum, which must outlive the result */
AlString
al_string(text *datum)
{
	AlString	string;

	string.data = VARDATA_ANY(datum);
	string.len = VARSIZE_ANY_EXHDR(datum);
	return string;
}

AlString
al_cstring(const char *cstring)
{
	AlString	string = {cstring, strlen(cstring)};

	return string;
}

bool
al_string_equal(AlString a, AlString b)
{
	return a.len == b.len && memcmp(a.data, b.data, a.len) == 0;
}

/*
 * Are these the same owner?  Whoever tries to guess one learns nothing about it
 * but its length from the time that this takes.  An empty owner is nobody.
 */
bool
al_owner_equal(AlString a, AlString b)
{
	uint64		difference = 0;
	int			i = 0;

	if (a.len != b.len || a.len == 0)
		return false;
	for (; i + 8 <= a.len; i += 8)
	{
		uint64		x;
		uint64		y;

		memcpy(&x, a.data + i, 8);
		memcpy(&y, b.data + i, 8);
		difference |= x ^ y;
	}
	for (; i < a.len; i++)
		difference |= (unsigned char) (a.data[i] ^ b.data[i]);
	return difference == 0;
}

text *
al_string_text(AlString string)
{
	return cstring_to_text_with_len(string.data, string.len);
}

/* Are 0x80 to 0x9f control characters, in the encoding of the database? */
static bool
has_c1_bytes(void)
{
	int			encoding = GetDatabaseEncoding();

	return (encoding >= PG_LATIN1 && encoding <= PG_LATIN10) ||
		(encoding >= PG_ISO_8859_5 && encoding <= PG_ISO_8859_8);
}

/*
 * How many bytes of a string are whole characters that fit into so many.  The last
 * character of what is not valid in the encoding may claim to be longer than it is.
 */
int
al_clip_length(AlString string, int size)
{
	return Min(pg_mbcliplen(string.data, string.len, size), string.len);
}

/*
 * A key or label as messages show it: control characters, which could forge
 * lines in a log or move the cursor of a terminal, become \xNN.
 */
char *
al_display(AlString string)
{
	StringInfoData buf;
	bool		utf8 = GetDatabaseEncoding() == PG_UTF8;
	bool		c1_bytes = has_c1_bytes();

	initStringInfo(&buf);
	for (int i = 0; i < string.len; i++)
	{
		unsigned char c = string.data[i];

		if (c < 0x20 || c == 0x7f || (c1_bytes && c >= 0x80 && c < 0xa0))
			appendStringInfo(&buf, "\\x%02x", c);
		else if (utf8 && c == 0xc2 && i + 1 < string.len &&
				 (unsigned char) string.data[i + 1] < 0xa0)
			appendStringInfo(&buf, "\\x%02x", (unsigned char) string.data[++i]);
		else
			appendStringInfoChar(&buf, c);
	}
	return buf.data;
}

/* Raise 22023 unless a string has min to max bytes.  "what" names it in messages. */
static AlString
checked_length(AlString string, const char *what, int min, int max)
{
	if (string.len < min || string.len > max)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), al_hide_owners(),
				 errmsg("%s must be %d to %d bytes long", what, min, max),
				 errdetail("It has %d bytes.", string.len)));
	return string;
}

static AlString
checked_text(FunctionCallInfo fcinfo, int argno, const char *what, int min, int max)
{
	return checked_length(al_string(PG_GETARG_TEXT_PP(argno)), what, min, max);
}

static void
raise_null(const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), al_hide_owners(),
			 errmsg("%s must not be null", what)));
}

/* Order of keys: that of their bytes */
int
al_key_compare(const AlKey *a, const AlKey *b)
{
	int			order = memcmp(a->name.data, b->name.data, Min(a->name.len, b->name.len));

	return order != 0 ? order : a->name.len - b->name.len;
}

/* Raise 22023 unless this can be a key */
AlString
al_check_key(AlString name)
{
	return checked_length(name, "lock key", 1, AL_MAX_KEY_BYTES);
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
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), al_hide_owners(),
				 errmsg("keys must be a one-dimensional array of 1 to %d lock keys", AL_MAX_KEYS),
				 elements == 0 ? errdetail("It is empty.") :
				 ARR_NDIM(array) != 1 ? errdetail("It has %d dimensions.", ARR_NDIM(array)) :
				 errdetail("It has %d.", elements)));

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

/* Does the session present this owner as its own? */
bool
al_owner_is_setting(AlString owner)
{
	return al_owner_setting && owner.len > 0 &&
		al_owner_equal(al_cstring(al_owner_setting), owner);
}

/* The setting has a new value, which may have come past all checks of text */
void
al_owner_assign_hook(const char *newval, void *extra)
{
	owner_is_verified = false;
}

/*
 * The owner that the session presents, if it does: a copy, since code of users
 * that runs later may set another one.  Raises 22021 where it is not valid in the
 * encoding of the database: the server checks neither the options with which a
 * session is started nor settings of roles that were made in another database.
 */
bool
al_owner_of_session(AlString *owner)
{
	if (al_owner_setting == NULL || al_owner_setting[0] == '\0')
		return false;
	*owner = al_cstring(pstrdup(al_owner_setting));
	if (!owner_is_verified && !pg_verify_mbstr(GetDatabaseEncoding(), owner->data, owner->len, true))
		ereport(ERROR,
				(errcode(ERRCODE_CHARACTER_NOT_IN_REPERTOIRE), al_hide_owners(),
				 errmsg("invalid byte sequence for encoding \"%s\" in atomic_lock.owner",
						GetDatabaseEncodingName()),
				 errdetail("The setting came with the start of the session, or was made in a database of another encoding."),
				 errhint("Set atomic_lock.owner again.")));
	owner_is_verified = true;
	return true;
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
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), al_hide_owners(),
				 errmsg("lock owner must not be null"),
				 errhint("Pass the owner that lock_acquire answered, or set atomic_lock.owner.")));
}

/* An owner argument that must be there; raises 22004 where it is not */
void
al_new_owner_arg(FunctionCallInfo fcinfo, int argno, AlOwner *owner)
{
	if (PG_ARGISNULL(argno))
		raise_null("new owner");
	(void) named_owner(fcinfo, argno, owner);
}

/* An owner that somebody presents, or that a row has */
void
al_owner_init(AlOwner *owner, AlString name)
{
	owner->name = name;
	owner->generated = owner->in_index = false;
	owner->hash = al_owner_hash(name);
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
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE), al_hide_owners(),
			 errmsg("%s must be between %s and %s", what, least,
					GetConfigOptionByName(setting, NULL, false)),
			 errhint("The upper limit is the setting %s; months and years are not allowed.", setting)));
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
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE), al_hide_owners(),
			 errmsg("invalid %s: \"%s\"", what, al_display(given)),
			 errhint("It must be %s.", list)));
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
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), al_hide_owners(),
				 errmsg("meta must not be larger than %d bytes", AL_MAX_META_BYTES),
				 errdetail("It has %zu bytes.", (size_t) VARSIZE(meta) - VARHDRSZ)));
	return meta;
}

/* Do the settings of a session have no influence on the text of a type's values? */
static bool
is_plain(Oid type)
{
	switch (getBaseType(type))
	{
		case BOOLOID:
		case INT2OID:
		case INT4OID:
		case INT8OID:
		case NUMERICOID:
		case TEXTOID:
		case VARCHAROID:
		case BPCHAROID:
		case NAMEOID:
		case UUIDOID:
			return true;
		default:
			return get_typtype(getBaseType(type)) == TYPTYPE_ENUM;
	}
}

/* Prepare to make values of a type parts of keys */
void
al_part_init(AlPart *part, Oid type)
{
	Oid			output;
	bool		is_varlena;

	getTypeOutputInfo(type, &output, &is_varlena);
	fmgr_info(output, &part->output);
	part->is_plain = is_plain(type);
}

static void
set_for_output(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE,
							 true, 0, false);
}

/*
 * The text of a value, by the output function of its type.  Two sessions must not
 * make different keys of it: dates are ISO, moments UTC, whatever they have set.
 */
char *
al_part_text(AlPart *part, Datum value)
{
	char	   *text;
	int			nest_level;

	if (part->is_plain)
		return OutputFunctionCall(&part->output, value);

	nest_level = NewGUCNestLevel();
	set_for_output("DateStyle", "ISO");
	set_for_output("IntervalStyle", "postgres");
	set_for_output("TimeZone", "UTC");
	set_for_output("bytea_output", "hex");
	set_for_output("quote_all_identifiers", "off");
	set_for_output("lc_monetary", "C");
	set_for_output("search_path", "pg_catalog, pg_temp");
	if (extra_float_digits < 1)
		set_for_output("extra_float_digits", "1");
	text = OutputFunctionCall(&part->output, value);
	AtEOXact_GUC(true, nest_level);
	return text;
}

/* Check atomic_lock.owner, without showing it */
bool
al_owner_check_hook(char **newval, void **extra, GucSource source)
{
	if (*newval == NULL || strlen(*newval) <= AL_MAX_OWNER_BYTES)
		return true;
	GUC_check_errcode(ERRCODE_INVALID_PARAMETER_VALUE);
	GUC_check_errmsg("invalid value for parameter \"atomic_lock.owner\"");
	GUC_check_errdetail("An owner has at most %d bytes.", AL_MAX_OWNER_BYTES);
	return false;
}
