/*-------------------------------------------------------------------------
 *
 * policy.c
 *		lock_set_policy(), lock_drop_policy(), lock_policy(): rules of an administrator
 *		for keys with a prefix.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Locking rules: those of table/policies.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "api/args.h"
#include "api/policy.h"
#include "base/errors.h"
#include "base/policy.h"
#include "base/str.h"
#include "table/catalog.h"
#include "table/policies.h"

#define LONGEST		(100 * 365 * USECS_PER_DAY)

/* The parts, in the order of the arguments of lock_set_policy() and the columns of lock_policy() */
static const struct
{
	const char *name;
	AlPolicyPart part;
}			arguments[] = {
	{"default_ttl", AL_DEFAULT_TTL},
	{"max_ttl", AL_MAX_TTL},
	{"max_wait", AL_MAX_WAIT},
	{"max_lifetime", AL_MAX_LIFETIME},
	{"lock_delay", AL_LOCK_DELAY},
	{"min_hold", AL_MIN_HOLD},
	{"max_holders", AL_MAX_HOLDERS},
	{"max_keys_per_role", AL_MAX_KEYS_PER_ROLE},
	{"roles", AL_ROLES},
	{"history", AL_HISTORY},
	{"notify", AL_NOTIFY}
};

StaticAssertDecl(lengthof(arguments) == AL_POLICY_PARTS, "each part of a policy has an argument");

static AlString
prefix_arg(FunctionCallInfo fcinfo)
{
	if (PG_ARGISNULL(0))
		al_raise_null("prefix");
	return al_check_text(al_string(PG_GETARG_TEXT_PP(0)), "prefix", 0, AL_MAX_KEY_BYTES);
}

/* An argument that is a duration (in microseconds) or a number */
static int64
number_arg(FunctionCallInfo fcinfo, int argno, const char *name, AlPolicyPart part)
{
	bool		is_ttl = part == AL_DEFAULT_TTL || part == AL_MAX_TTL;
	int64		value;

	Assert(part < AL_HISTORY);
	if (part > AL_MIN_HOLD)
	{
		value = PG_GETARG_INT32(argno);
		if (value < 1)
			ereport(ERROR,
					(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("%s must be at least 1, not %d", name, (int) value),
					 errhint("Leave it null for what shorter prefixes say.")));
		return value;
	}
	value = al_ttl_arg(fcinfo, argno);
	if (value < (is_ttl ? AL_MIN_TTL : 0) || value > LONGEST)
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be between %s and 36500 days", name, is_ttl ? "1ms" : "0"),
				 errhint("Months and years are not allowed.")));
	return value;
}

/* The roles argument: a list of OIDs without duplicates */
static List *
roles_arg(FunctionCallInfo fcinfo, int argno)
{
	ArrayType  *array = PG_GETARG_ARRAYTYPE_P(argno);
	ArrayIterator iterator = array_create_iterator(array, 0, NULL);
	List	   *roles = NIL;
	Datum		element;
	bool		is_null;

	while (array_iterate(iterator, &element, &is_null))
	{
		if (is_null)
			al_raise_null("role");
		if (!SearchSysCacheExists1(AUTHOID, element))
			ereport(ERROR,
					(al_errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("role with OID %u does not exist", DatumGetObjectId(element))));
		roles = list_append_unique_oid(roles, DatumGetObjectId(element));
	}
	if (roles == NIL)
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("roles must not be empty"),
				 errhint("Leave it null for what shorter prefixes say.")));
	return roles;
}

static void
raise_longer(const char *what, const char *limit)
{
	ereport(ERROR,
			(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("%s must not be longer than %s", what, limit)));
}

/* lock_set_policy(prefix, default_ttl, ...), with the arguments in "arguments": void */
AL_FUNCTION(atomic_lock_set_policy)
{
	AlPolicy	policy = {.prefix = prefix_arg(fcinfo)};
	int64	   *parts = policy.parts;

	al_prevent_writing("lock_set_policy()");
	for (int i = 0; i < AL_POLICY_PARTS; i++)
	{
		AlPolicyPart part = arguments[i].part;

		parts[part] = -1;
		if (PG_ARGISNULL(i + 1))
			continue;
		if (part == AL_ROLES)
			policy.roles = roles_arg(fcinfo, i + 1);
		if (part >= AL_HISTORY)
			parts[part] = part == AL_ROLES || PG_GETARG_BOOL(i + 1);
		else
			parts[part] = number_arg(fcinfo, i + 1, arguments[i].name, part);
	}
	if (parts[AL_MAX_TTL] >= 0 && parts[AL_DEFAULT_TTL] > parts[AL_MAX_TTL])
		raise_longer("default_ttl", "max_ttl");
	if (parts[AL_MAX_LIFETIME] > 0 && parts[AL_DEFAULT_TTL] > parts[AL_MAX_LIFETIME])
		raise_longer("default_ttl", "max_lifetime");
	(void) al_policies_put(policy.prefix, &policy);
	PG_RETURN_VOID();
}

/* lock_drop_policy(prefix): whether there was a policy */
AL_FUNCTION(atomic_lock_drop_policy)
{
	AlString	prefix = prefix_arg(fcinfo);

	al_prevent_writing("lock_drop_policy()");
	PG_RETURN_BOOL(al_policies_put(prefix, NULL));
}

/* An interval with days of 24 hours */
static Datum
duration_datum(int64 microseconds)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->day = (int32) (microseconds / USECS_PER_DAY);
	interval->time = microseconds % USECS_PER_DAY;
	return IntervalPGetDatum(interval);
}

/* The value of a part for a key, as lock_policy() shows it; false: no limit */
static bool
show_part(AlString key, AlPolicyPart part, Datum *value)
{
	int64		number = al_policy_value(key, part);

	if (part <= AL_MIN_HOLD)
	{
		*value = duration_datum(number);
		return part != AL_MAX_LIFETIME || number > 0;
	}
	if (part == AL_ROLES)
	{
		List	   *roles = number > 0 ? al_policy_for(key, part)->roles : NIL;
		Datum	   *elements = palloc(Max(list_length(roles), 1) * sizeof(Datum));

		for (int i = 0; i < list_length(roles); i++)
			elements[i] = ObjectIdGetDatum(list_nth_oid(roles, i));
		*value = PointerGetDatum(construct_array(elements, list_length(roles), REGROLEOID,
												 sizeof(Oid), true, TYPALIGN_INT));
		return number > 0;
	}
	if (part >= AL_HISTORY)
		*value = BoolGetDatum(number > 0);
	else
		*value = Int32GetDatum((int32) number);
	return part >= AL_HISTORY || number > 0;
}

/* lock_policy(key): the parts, and a JSON object with the prefix that decides each part */
AL_FUNCTION(atomic_lock_policy)
{
	Relation	rel = al_open_app_lock(AccessShareLock);
	StringInfoData prefixes;
	Datum		values[AL_POLICY_PARTS + 1];
	bool		nulls[AL_POLICY_PARTS + 1] = {0};
	TupleDesc	desc;
	AlKey		key;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	al_key_arg(fcinfo, 0, &key);
	initStringInfo(&prefixes);
	for (int i = 0; i < AL_POLICY_PARTS; i++)
	{
		const AlPolicy *policy = al_policy_for(key.name, arguments[i].part);

		nulls[i] = !show_part(key.name, arguments[i].part, &values[i]);
		if (policy == NULL)
			continue;
		appendStringInfo(&prefixes, "%c\"%s\": ", prefixes.len == 0 ? '{' : ',', arguments[i].name);
		escape_json(&prefixes, text_to_cstring(al_string_text(policy->prefix)));
	}
	appendStringInfoString(&prefixes, prefixes.len == 0 ? "{}" : "}");
	values[AL_POLICY_PARTS] = DirectFunctionCall1(jsonb_in, CStringGetDatum(prefixes.data));
	table_close(rel, AccessShareLock);
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}

/*
 * Append a line for each policy that decides a part for a key, with the names of these parts;
 * or a line that says that there is none.  Each line begins with the newline.
 */
void
al_policies_explain(StringInfo text, AlString key)
{
	const AlPolicy *policies[AL_POLICY_PARTS];
	bool		found = false;

	for (int i = 0; i < AL_POLICY_PARTS; i++)
	{
		int			line = text->len;
		bool		is_said = false;

		policies[i] = al_policy_for(key, arguments[i].part);
		for (int j = 0; j < i; j++)
			is_said = is_said || policies[j] == policies[i];
		if (policies[i] == NULL || is_said)
			continue;
		found = true;
		appendStringInfo(text, "\nThe policy for prefix %s decides ", al_quote(policies[i]->prefix));
		for (int j = i; j < AL_POLICY_PARTS; j++)
		{
			if (al_policy_for(key, arguments[j].part) != policies[i])
				continue;
			if (text->len - line + strlen(arguments[j].name) > 78)
			{
				line = --text->len;	/* in place of the blank */
				appendStringInfoString(text, "\n  ");
			}
			appendStringInfo(text, "%s, ", arguments[j].name);
		}
		text->len -= 2;			/* the last comma */
		appendStringInfoChar(text, '.');
	}
	if (!found)
		appendStringInfoString(text, "\nNo policy applies.");
}

/* app_lock_policy_changed(), a trigger of app_lock_policy for changes by SQL */
AL_FUNCTION(atomic_lock_policy_changed)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(al_errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("app_lock_policy_changed() must be called as a trigger")));
	al_policies_changed();
	PG_RETURN_POINTER(NULL);
}
