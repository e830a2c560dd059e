/*-------------------------------------------------------------------------
 *
 * lock_guard.c
 *		The guard of a table: no write without the lock that covers the row.
 *
 * Model: lock_protect() puts a trigger on the table, which is all that says
 * that it is protected.  Before a row is written, the trigger makes the key of
 * it out of its template and columns, and pins the key for the session's
 * atomic_lock.owner (lock_pin.c), who has to hold it alone.  The trigger's name
 * sorts behind all others that anybody is likely to have, so that it sees the
 * row as they have left it.
 *
 * It is a trigger before the row, not after it: a statement that takes longer
 * than the lease has its pins by then, and one that may not write learns it at
 * the first row and not after the last.
 *
 * The template is read, and its columns are looked up by name, for each
 * statement and relation, whose columns are the relation's own: what has been
 * dropped or renamed since is found at the next write.
 *
 * Locking rules: those of pins.  The writer's privileges on atomic_lock do not
 * matter, nor do those of anybody else: nothing but output functions of the
 * columns' types is run.
 *
 * IDENTIFICATION
 *		src/guard/trigger.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/partition.h"
#include "catalog/pg_attribute.h"
#include "commands/trigger.h"
#include "base/compat.h"
#include "base/errors.h"
#include "lib/stringinfo.h"
#include "lock_lease.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/syscache.h"

PG_FUNCTION_INFO_V1(atomic_lock_guard);
PG_FUNCTION_INFO_V1(atomic_lock_guard_problem);

/* A piece of a template: literal bytes, or a column */
typedef struct Piece
{
	AlString	literal;
	AttrNumber	column;			/* 0: literal */
	AlPart		part;
} Piece;

/* A template as it was read for a relation */
typedef struct Guard
{
	Oid			relid;
	int			count;
	Piece	   *pieces;
} Guard;

/* Why a template does not do */
typedef struct Problem
{
	int			sqlstate;
	char	   *message;
	const char *detail;
	const char *hint;
} Problem;

/* Enough of a text to know it again */
static char *
show_start(const char *text)
{
	AlString	start = al_cstring(text);

	start.len = al_clip_length(start, NAMEDATALEN);
	return al_display(start);
}

static bool
bad_template(Problem *problem, const char *template, const char *detail)
{
	problem->sqlstate = ERRCODE_INVALID_PARAMETER_VALUE;
	problem->message = psprintf("invalid key template: \"%s\"", show_start(template));
	problem->detail = detail;
	problem->hint = "A template is text with names of columns in braces, such as \"order:{id}\"; \"{{\" is a brace.";
	return false;
}

/* Number and type of a column, or 0, and why */
static AttrNumber
find_column(Oid relid, const char *name, Oid *type, Problem *problem)
{
	HeapTuple	tuple = strlen(name) < NAMEDATALEN ? SearchSysCacheAttName(relid, name) : NULL;
	AttrNumber	column = 0;

	if (!HeapTupleIsValid(tuple) || ((Form_pg_attribute) GETSTRUCT(tuple))->attnum < 0)
	{
		problem->sqlstate = ERRCODE_UNDEFINED_COLUMN;
		problem->message = psprintf("column \"%s\" of relation \"%s\" does not exist",
									show_start(name), get_rel_name(relid));
		problem->detail = "The key template of the table's guard names it.";
		problem->hint = "Use lock_protect with a template that fits the table.";
	}
	else if (((Form_pg_attribute) GETSTRUCT(tuple))->attgenerated)
	{
		problem->sqlstate = ERRCODE_FEATURE_NOT_SUPPORTED;
		problem->message = psprintf("generated column \"%s\" cannot be part of a key template", name);
		problem->detail = "It is computed after the guard has looked at the row.";
		problem->hint = "Use the columns that it is computed from.";
	}
	else
	{
		column = ((Form_pg_attribute) GETSTRUCT(tuple))->attnum;
		*type = ((Form_pg_attribute) GETSTRUCT(tuple))->atttypid;
	}
	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	return column;
}

static Piece *
add_piece(Guard *guard)
{
	if (guard->count % 8 == 0)
		guard->pieces = guard->count == 0 ? palloc(8 * sizeof(Piece)) :
			repalloc(guard->pieces, (guard->count + 8) * sizeof(Piece));
	memset(&guard->pieces[guard->count], 0, sizeof(Piece));
	return &guard->pieces[guard->count++];
}

/* Read a template for a relation, into the current memory context; or say why not */
static bool
read_template(Oid relid, const char *template, Guard *guard, Problem *problem)
{
	StringInfoData literal;
	const char *p = template;
	Size		length = 0;

	memset(guard, 0, sizeof(Guard));
	guard->relid = relid;
	initStringInfo(&literal);
	while (*p)
	{
		if (*p == '{' && p[1] != '{')
		{
			const char *end = strchr(p, '}');
			Piece	   *piece;
			Oid			type;

			if (end == NULL)
				return bad_template(problem, template, "A brace is not closed.");
			if (end == p + 1)
				return bad_template(problem, template, "There is no name between the braces.");
			if (literal.len > 0)
			{
				add_piece(guard)->literal = al_cstring(literal.data);
				initStringInfo(&literal);
			}
			piece = add_piece(guard);
			piece->column = find_column(relid, pnstrdup(p + 1, end - p - 1), &type, problem);
			if (piece->column == 0)
				return false;
			al_part_init(&piece->part, type);
			p = end + 1;
		}
		else
		{
			/* Braces are safe here: in no server encoding are they part of a character. */
			appendStringInfoChar(&literal, *p);
			length++;
			p += (*p == '{' || *p == '}') && p[1] == *p ? 2 : 1;
		}
	}
	if (literal.len > 0)
		add_piece(guard)->literal = al_cstring(literal.data);
	if (guard->count == 0)
		return bad_template(problem, template, "It is empty.");
	if (length > AL_MAX_KEY_BYTES)
		return bad_template(problem, template, "The keys would be too long.");
	return true;
}

/* Raise what is wrong with a template */
static void
raise_problem(Relation rel, const Problem *problem)
{
	ereport(ERROR,
			(errcode(problem->sqlstate), al_hide_owners(),
			 errmsg_internal("%s", problem->message),
			 errdetail_internal("%s", problem->detail),
			 errhint("%s", problem->hint),
			 errtable(rel)));
}

/* The key of a row, into a buffer; raises 22004 for a NULL in it */
static void
make_key(const Guard *guard, Relation rel, HeapTuple row, StringInfo key)
{
	TupleDesc	desc = RelationGetDescr(rel);

	for (int i = 0; i < guard->count; i++)
	{
		Piece	   *piece = &guard->pieces[i];
		Datum		value;
		bool		is_null;

		if (piece->column == 0)
		{
			appendBinaryStringInfo(key, piece->literal.data, piece->literal.len);
			continue;
		}
		value = heap_getattr(row, piece->column, desc, &is_null);
		if (is_null)
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), al_hide_owners(),
					 errmsg("column \"%s\" of protected table \"%s\" must not be null",
							NameStr(TupleDescAttr(desc, piece->column - 1)->attname),
							RelationGetRelationName(rel)),
					 errdetail("It is part of the key of the lock that covers the row."),
					 errtablecol(rel, piece->column)));
		appendStringInfoString(key, al_part_text(&piece->part, value));
	}
}

/* Have two versions of a row the same key? */
static bool
is_same_key(const Guard *guard, Relation rel, HeapTuple old_row, HeapTuple new_row)
{
	TupleDesc	desc = RelationGetDescr(rel);

	for (int i = 0; i < guard->count; i++)
	{
		AttrNumber	column = guard->pieces[i].column;
		Form_pg_attribute attribute;
		Datum		old_value;
		Datum		new_value;
		bool		old_null;
		bool		new_null;

		if (column == 0)
			continue;
		attribute = TupleDescAttr(desc, column - 1);
		old_value = heap_getattr(old_row, column, desc, &old_null);
		new_value = heap_getattr(new_row, column, desc, &new_null);
		if (old_null || new_null ||
			!datum_image_eq(old_value, new_value, attribute->attbyval, attribute->attlen))
			return false;
	}
	return true;
}

/* May a role read the columns of a template in a relation? */
static bool
may_read(const Guard *guard, Oid relid, Oid role)
{
	if (check_enable_rls(relid, role, true) == RLS_ENABLED)
		return false;
	if (pg_class_aclcheck(relid, role, ACL_SELECT) == ACLCHECK_OK)
		return true;
	for (int i = 0; i < guard->count; i++)
	{
		if (guard->pieces[i].column != 0 &&
			(relid != guard->relid ||
			 pg_attribute_aclcheck(relid, guard->pieces[i].column, role, ACL_SELECT) != ACLCHECK_OK))
			return false;
	}
	return true;
}

/*
 * May a role see the key of a row, and with it values of columns?  A partition is
 * usually read through the table that it is a part of.
 */
static bool
may_see_key(const Guard *guard, Relation rel, Oid role)
{
	ListCell   *cell;

	if (may_read(guard, guard->relid, role))
		return true;
	foreach(cell, rel->rd_rel->relispartition ? get_partition_ancestors(guard->relid) : NIL)
	{
		if (may_read(guard, lfirst_oid(cell), role))
			return true;
	}
	return false;
}

/*
 * Pin the lock that covers a row.  Raises LK006 where the session's owner does
 * not have it alone.
 */
static void
guard_row(const Guard *guard, Relation rel, HeapTuple row)
{
	StringInfoData buffer;
	AlString	name;
	AlKey		key;
	AlResult	result = {.outcome = AL_NOT_FOUND};
	const AlPin *pin;
	AlString	owner;
	bool		has_owner;
	bool		may_see;

	initStringInfo(&buffer);
	make_key(guard, rel, row, &buffer);
	name.data = buffer.data;
	name.len = buffer.len;
	al_check_key(name);

	has_owner = al_owner_of_session(&owner);
	if (has_owner)
	{
		pin = al_pin(name, owner, &result);
		if (pin && pin->slot == AL_SLOT_EXCLUSIVE)
			return;
		if (pin)
			result.outcome = AL_HELD_BY_OWNER;
	}
	al_key_init(&key, name);

	/* A foreign key's action runs as the owner of the table, for somebody else. */
	may_see = may_see_key(guard, rel, GetUserId()) && may_see_key(guard, rel, GetOuterUserId());
	al_raise_guard(may_see ? &key : NULL, has_owner ? &result : NULL, rel);
}

/* Raise 55000: the rows of a table cannot go all at once */
void
al_refuse_truncate(Relation rel)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE), al_hide_owners(),
			 errmsg("cannot truncate table \"%s\", which is protected by locks",
					RelationGetRelationName(rel)),
			 errhint("Use DELETE, or set atomic_lock.enforce_guards to off."),
			 errtable(rel)));
	pg_unreachable();
}

/* lock_guard(template): the trigger */
Datum
atomic_lock_guard(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	TriggerEvent event;
	Relation	rel;
	HeapTuple	result;
	Guard	   *guard = fcinfo->flinfo->fn_extra;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_BEFORE(trigger->tg_event) ||
		trigger->tg_trigger->tgnargs != 1 ||
		TRIGGER_FIRED_FOR_ROW(trigger->tg_event) == TRIGGER_FIRED_BY_TRUNCATE(trigger->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED), al_hide_owners(),
				 errmsg("lock_guard() must be called by a trigger that lock_protect() has made")));

	event = trigger->tg_event;
	rel = trigger->tg_relation;
	result = TRIGGER_FIRED_BY_UPDATE(event) ? trigger->tg_newtuple : trigger->tg_trigtuple;
	if (!al_enforce_guards)
		return PointerGetDatum(result);
	if (TRIGGER_FIRED_BY_TRUNCATE(event))
	{
		/* A partition that was detached has lost its guard, and kept this. */
		if (al_find_trigger(rel, AL_ROW_TRIGGER) == NULL)
			return PointerGetDatum(NULL);
		al_refuse_truncate(rel);
	}

	if (guard == NULL || guard->relid != RelationGetRelid(rel))
	{
		MemoryContext old_context = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);
		Problem		problem;

		guard = palloc(sizeof(Guard));
		if (!read_template(RelationGetRelid(rel), trigger->tg_trigger->tgargs[0], guard, &problem))
			raise_problem(rel, &problem);
		MemoryContextSwitchTo(old_context);
		fcinfo->flinfo->fn_extra = guard;
	}
	guard_row(guard, rel, trigger->tg_trigtuple);
	if (TRIGGER_FIRED_BY_UPDATE(event) &&
		!is_same_key(guard, rel, trigger->tg_trigtuple, trigger->tg_newtuple))
		guard_row(guard, rel, trigger->tg_newtuple);
	return PointerGetDatum(result);
}

/* Raise unless a template fits a table */
void
al_check_template(Relation rel, const char *template)
{
	Guard		guard;
	Problem		problem;

	if (!read_template(RelationGetRelid(rel), template, &guard, &problem))
		raise_problem(rel, &problem);
}

/*
 * app_lock_guard_problem(relation, template): NULL where it fits, or why it does
 * not.  The table is not locked, and may be gone.
 */
Datum
atomic_lock_guard_problem(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	Guard		guard;
	Problem		problem = {0};

	if (get_rel_relkind(relid) == '\0' ||
		read_template(relid, text_to_cstring(PG_GETARG_TEXT_PP(1)), &guard, &problem))
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(problem.message));
}
