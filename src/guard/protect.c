/*-------------------------------------------------------------------------
 *
 * protect.c
 *		lock_protect(), lock_unprotect(): put a guard on a table, and remove it.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: a guard is two triggers (guard/trigger.c), one for rows and one for TRUNCATE.
 * Ordinary commands create and drop them with the caller's privileges.  There is no other
 * record, so dumps and renames keep the guard.  PostgreSQL clones the row trigger to
 * partitions; the trigger for TRUNCATE, and both triggers of inheritance children, are
 * created here.  A partition that is added later has only the row trigger, so a hook
 * refuses to truncate it, where the library is loaded.
 *
 * Locking rules: the table and its descendants are locked with ShareRowExclusiveLock,
 * like CREATE TRIGGER does, until the transaction ends.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "catalog/dependency.h"
#include "catalog/objectaccess.h"
#include "catalog/objectaddress.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "commands/extension.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "base/compat.h"
#include "base/errors.h"
#include "base/path.h"
#include "base/settings.h"
#include "base/str.h"
#include "guard/protect.h"
#include "guard/template.h"
#include "guard/trigger.h"
#include "table/catalog.h"

static object_access_hook_type previous_object_access_hook = NULL;

static const char *
kind_detail(char relkind)
{
	switch (relkind)
	{
		case RELKIND_VIEW:
			return "A view has no rows of its own.";
		case RELKIND_MATVIEW:
			return "The rows of a materialized view cannot be changed one by one.";
		case RELKIND_FOREIGN_TABLE:
			return "The rows of a foreign table can be changed on the foreign server, without a guard.";
		default:
			return "The relation is not a table.";
	}
}

/* The ancestor whose guard a partition inherits; InvalidOid: none */
static Oid
guarded_ancestor(Oid relid)
{
	Oid			found = InvalidOid;
	ListCell   *cell;

	foreach(cell, get_partition_ancestors(relid))
	{
		Relation	rel = table_open(lfirst_oid(cell), AccessShareLock);
		const Trigger *guard = al_find_trigger(rel, AL_ROW_TRIGGER);
		bool		is_own = guard && !guard->tgisclone;

		if (guard)
			found = lfirst_oid(cell);
		table_close(rel, AccessShareLock);
		if (is_own)
			break;
	}
	return found;
}

/*
 * The OIDs of the table argument and its descendants, the table first, all locked.
 * Raises 22004, 42P01, 42809, 42501; 55000 for a partition that inherits its guard.
 */
static List *
family_arg(FunctionCallInfo fcinfo)
{
	Oid			relid;
	char		relkind;
	List	   *family;
	Relation	rel;
	const Trigger *guard;

	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(al_errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("relation must not be null")));
	relid = PG_GETARG_OID(0);
	relkind = get_rel_relkind(relid);
	if (relkind == '\0')
		ereport(ERROR,
				(al_errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));
	if (relkind != RELKIND_RELATION && relkind != RELKIND_PARTITIONED_TABLE)
		ereport(ERROR,
				(al_errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("relation \"%s\" cannot be protected", get_rel_name(relid)),
				 errdetail_internal("%s", kind_detail(relkind)),
				 errhint("Protect the tables that contain the rows.")));
	if (!al_is_table_owner(relid))
		aclcheck_error(ACLCHECK_NOT_OWNER, get_relkind_objtype(relkind), get_rel_name(relid));
	if (getExtensionOfObject(RelationRelationId, relid) == get_extension_oid("atomic_lock", true))
		ereport(ERROR,
				(al_errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("table \"%s\" of extension \"atomic_lock\" cannot be protected", get_rel_name(relid))));

	rel = table_open(relid, ShareRowExclusiveLock);
	family = find_all_inheritors(relid, ShareRowExclusiveLock, NULL);
	Assert(linitial_oid(family) == relid);
	guard = al_find_trigger(rel, AL_ROW_TRIGGER);
	if (guard && guard->tgisclone)
	{
		const char *parent = get_rel_name(guarded_ancestor(relid));

		ereport(ERROR,
				(al_errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("partition \"%s\" inherits its guard from table \"%s\"",
						RelationGetRelationName(rel), parent),
				 errhint("Call the function for table \"%s\".", parent)));
	}
	table_close(rel, NoLock);
	return family;
}

/* The events argument, in the syntax of CREATE TRIGGER; raises 22004, 22021, 22023 */
static char *
events_arg(FunctionCallInfo fcinfo, int argno)
{
	static const char *const words[] = {"insert", "update", "delete"};
	bool		wanted[lengthof(words)] = {0};
	ArrayType  *array;
	ArrayIterator iterator;
	Datum		element;
	bool		is_null;
	StringInfoData events;

	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(al_errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("events must not be null")));
	array = PG_GETARG_ARRAYTYPE_P(argno);
	iterator = array_create_iterator(array, 0, NULL);
	while (array_iterate(iterator, &element, &is_null))
	{
		char	   *word;
		int			i = 0;

		if (is_null)
			ereport(ERROR,
					(al_errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("events must not be null")));
		word = text_to_cstring(DatumGetTextPP(element));
		while (i < (int) lengthof(words) && pg_strcasecmp(word, words[i]) != 0)
			i++;
		if (i == (int) lengthof(words))
		{
			(void) al_check_encoding(al_cstring(word), "event");
			ereport(ERROR,
					(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("invalid event: \"%s\"", al_display(al_cstring(word))),
					 errhint("Valid events are insert, update and delete.")));
		}
		wanted[i] = true;
	}
	array_free_iterator(iterator);

	initStringInfo(&events);
	for (int i = 0; i < (int) lengthof(words); i++)
	{
		if (wanted[i])
			appendStringInfo(&events, "%s%s", events.len > 0 ? " OR " : "", words[i]);
	}
	if (events.len == 0)
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("there must be at least one event"),
				 errhint("Valid events are insert, update and delete.")));
	return events.data;
}

/* Would a trigger fire in this session? */
static bool
fires(const Trigger *trigger)
{
	if (trigger->tgenabled == TRIGGER_FIRES_ALWAYS)
		return true;
	return trigger->tgenabled ==
		(SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA ?
		 TRIGGER_FIRES_ON_REPLICA : TRIGGER_FIRES_ON_ORIGIN);
}

/* Refuse TRUNCATE of a table that has a guard but may lack the trigger for TRUNCATE */
static void
object_access(ObjectAccessType access, Oid class, Oid object, int sub_object, void *arg)
{
	if (previous_object_access_hook)
		previous_object_access_hook(access, class, object, sub_object, arg);
	if (access == OAT_TRUNCATE && class == RelationRelationId && al_enforce_guards &&
		pg_class_aclcheck(object, GetUserId(), ACL_TRUNCATE) == ACLCHECK_OK)
	{
		/* TRUNCATE calls the hook before it locks the table. */
		Relation	rel = try_relation_open(object, AccessShareLock);
		const Trigger *guard = rel ? al_find_trigger(rel, AL_ROW_TRIGGER) : NULL;

		if (guard && fires(guard))
			al_refuse_truncate(rel);
		if (rel)
			relation_close(rel, AccessShareLock);
	}
}

void
al_protect_init(void)
{
	previous_object_access_hook = object_access_hook;
	object_access_hook = object_access;
}

static char *
table_name(Relation rel)
{
	return quote_qualified_identifier(get_namespace_name(RelationGetNamespace(rel)),
									  RelationGetRelationName(rel));
}

static void
run(const char *command)
{
	int			result = SPI_execute(command, false, 0);

	if (result != SPI_OK_UTILITY)
		elog(ERROR, "SPI_execute failed: %s", SPI_result_code_string(result));
}

/*
 * Create or replace a trigger.  A trigger that was enabled as ALWAYS or REPLICA stays so,
 * although CREATE OR REPLACE resets that.  Raises 55006 if a schema was renamed at the
 * same time, so that the statement created something else.
 */
static void
make_trigger(Oid relid, const char *name, const char *events, const char *level,
			 const char *function)
{
	Relation	rel = table_open(relid, NoLock);
	const Trigger *former = al_find_trigger(rel, name);
	const Trigger *made;
	char		state = former ? former->tgenabled : TRIGGER_FIRES_ON_ORIGIN;
	char	   *table = table_name(rel);

	Assert(CheckRelationLockedByMe(rel, ShareRowExclusiveLock, true));
	table_close(rel, NoLock);
	al_trace(DEBUG2, "creating trigger \"%s\" of table %s", name, table);
	run(psprintf("CREATE OR REPLACE TRIGGER %s BEFORE %s ON %s FOR EACH %s EXECUTE FUNCTION %s",
				 quote_identifier(name), events, table, level, function));
	if (state == TRIGGER_FIRES_ALWAYS || state == TRIGGER_FIRES_ON_REPLICA)
		run(psprintf("ALTER TABLE %s ENABLE %s TRIGGER %s", table,
					 state == TRIGGER_FIRES_ALWAYS ? "ALWAYS" : "REPLICA",
					 quote_identifier(name)));

	rel = table_open(relid, NoLock);
	made = al_find_trigger(rel, name);
	if (made == NULL || made->tgfoid != al_guard_function())
		ereport(ERROR,
				(al_errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("schemas were renamed while table \"%s\" was to be protected",
						RelationGetRelationName(rel))));
	table_close(rel, NoLock);
}

/* lock_protect(relation, key_template, events, separator): void */
AL_FUNCTION(atomic_lock_protect)
{
	List	   *family;
	char	   *template;
	char	   *separator = NULL;
	char	   *events;
	char	   *function;
	ListCell   *cell;

	al_prevent_writing("lock_protect()");
	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(al_errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("key template must not be null")));
	(void) al_check_encoding(al_string(PG_GETARG_TEXT_PP(1)), "key template");
	template = text_to_cstring(PG_GETARG_TEXT_PP(1));
	events = events_arg(fcinfo, 2);
	if (!PG_ARGISNULL(3))
	{
		(void) al_check_separator(al_string(PG_GETARG_TEXT_PP(3)));
		separator = text_to_cstring(PG_GETARG_TEXT_PP(3));
	}
	family = family_arg(fcinfo);
	function = psprintf("%s(%s%s%s)",
						quote_qualified_identifier(get_namespace_name(get_func_namespace(fcinfo->flinfo->fn_oid)),
												   "lock_guard"),
						quote_literal_cstr(template), separator ? ", " : "",
						separator ? quote_literal_cstr(separator) : "");

	SPI_connect();
	foreach(cell, family)
	{
		Relation	rel = table_open(lfirst_oid(cell), NoLock);
		char		relkind = rel->rd_rel->relkind;
		bool		is_clone = rel->rd_rel->relispartition && lfirst_oid(cell) != linitial_oid(family);
		AlTemplate	guard;

		if (relkind == RELKIND_RELATION || relkind == RELKIND_PARTITIONED_TABLE)
			al_template_require(rel, template, separator, &guard);
		table_close(rel, NoLock);
		if (relkind != RELKIND_RELATION && relkind != RELKIND_PARTITIONED_TABLE)
			continue;
		if (!is_clone)
			make_trigger(lfirst_oid(cell), AL_ROW_TRIGGER, events, "ROW", function);
		make_trigger(lfirst_oid(cell), AL_TRUNCATE_TRIGGER, "TRUNCATE", "STATEMENT", function);
		rel = table_open(lfirst_oid(cell), NoLock);
		al_require_last_trigger(rel, al_find_trigger(rel, AL_ROW_TRIGGER));
		table_close(rel, NoLock);
	}
	SPI_finish();
	PG_RETURN_VOID();
}

/* lock_unprotect(relation): void; raises 42704 if the table has no guard */
AL_FUNCTION(atomic_lock_unprotect)
{
	static const char *const names[] = {AL_ROW_TRIGGER, AL_TRUNCATE_TRIGGER};
	List	   *family;
	ListCell   *cell;
	bool		found = false;

	al_prevent_writing("lock_unprotect()");
	family = family_arg(fcinfo);

	SPI_connect();
	foreach(cell, family)
	{
		for (int i = 0; i < (int) lengthof(names); i++)
		{
			Relation	rel = table_open(lfirst_oid(cell), NoLock);
			const Trigger *trigger = al_find_trigger(rel, names[i]);
			bool		is_own = trigger && !trigger->tgisclone;
			char	   *name = table_name(rel);

			table_close(rel, NoLock);
			if (!is_own)
				continue;
			run(psprintf("DROP TRIGGER %s ON %s", quote_identifier(names[i]), name));
			found = true;
		}
	}
	SPI_finish();
	if (!found)
		ereport(ERROR,
				(al_errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("table \"%s\" is not protected", get_rel_name(linitial_oid(family)))));
	PG_RETURN_VOID();
}
