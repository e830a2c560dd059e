/*-------------------------------------------------------------------------
 *
 * template.c
 *		Key templates: how a guard makes the key of a row.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: a template is text with names of columns in braces.  Values are escaped like
 * parts in lock_key(); the text is not, so a ":" in the text separates parts.  Each
 * statement reads the template anew for each relation and looks up columns by name, so
 * the next write notices a column that was dropped or renamed.  With a separator, the key of
 * a row is a path (base/path.c), and the guard judges its folders, too.
 *
 * Locking: none.  The only user code that runs is output functions of types.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/partition.h"
#include "catalog/pg_attribute.h"
#include "lib/stringinfo.h"
#include "utils/acl.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/syscache.h"

#include "atomic_lock.h"
#include "base/errors.h"
#include "base/key.h"
#include "base/path.h"
#include "base/str.h"
#include "guard/template.h"

/* The first bytes of a text, for a message */
static char *
show_start(const char *text)
{
	AlString	start = al_cstring(text);

	start.len = al_clip_length(start, NAMEDATALEN);
	return al_display(start);
}

static bool
bad_template(AlTemplateProblem *problem, const char *template, const char *detail)
{
	problem->sqlstate = ERRCODE_INVALID_PARAMETER_VALUE;
	problem->message = psprintf("invalid key template: \"%s\"", show_start(template));
	problem->detail = detail;
	problem->hint = "A template is text with column names in braces, such as \"order:{id}\".  Write \"{{\" for a literal brace.";
	return false;
}

/* The number and type of a column; or 0, and in "problem" why a template cannot name it */
static AttrNumber
find_column(Oid relid, const char *name, Oid *type, AlTemplateProblem *problem)
{
	HeapTuple	tuple = strlen(name) < NAMEDATALEN ? SearchSysCacheAttName(relid, name) : NULL;
	AttrNumber	column = 0;

	if (!HeapTupleIsValid(tuple) || ((Form_pg_attribute) GETSTRUCT(tuple))->attnum < 0)
	{
		problem->sqlstate = ERRCODE_UNDEFINED_COLUMN;
		problem->message = psprintf("column \"%s\" of relation \"%s\" does not exist",
									show_start(name), get_rel_name(relid));
		problem->detail = "The key template of the table's guard names the column.";
		problem->hint = "Call lock_protect with a template that matches the table.";
	}
	else if (((Form_pg_attribute) GETSTRUCT(tuple))->attgenerated)
	{
		problem->sqlstate = ERRCODE_FEATURE_NOT_SUPPORTED;
		problem->message = psprintf("generated column \"%s\" cannot be part of a key template", name);
		problem->detail = "The column is computed after the guard has read the row.";
		problem->hint = "Use the columns from which it is computed.";
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

static AlTemplatePiece *
add_piece(AlTemplate *guard)
{
	if (guard->count % 8 == 0)
		guard->pieces = guard->count == 0 ? palloc(8 * sizeof(AlTemplatePiece)) :
			repalloc(guard->pieces, (guard->count + 8) * sizeof(AlTemplatePiece));
	memset(&guard->pieces[guard->count], 0, sizeof(AlTemplatePiece));
	return &guard->pieces[guard->count++];
}

/*
 * Why no row has a valid path: its literals have an empty part, or too many parts.  NULL if a
 * row may have one.  A letter that is not in the separator stands for each value.
 */
static const char *
path_problem(const AlTemplate *guard)
{
	StringInfoData name;
	AlPath		path;
	char		value = 'a';

	while (memchr(guard->separator.data, value, guard->separator.len))
		value++;
	initStringInfo(&name);
	for (int i = 0; i < guard->count; i++)
	{
		if (guard->pieces[i].column != 0)
			appendStringInfoChar(&name, value);
		else
			appendBinaryStringInfo(&name, guard->pieces[i].literal.data, guard->pieces[i].literal.len);
	}
	return al_path_try_split((AlString) {name.data, name.len}, guard->separator, &path);
}

/*
 * Read a template into the current memory context; "separator" is NULL if its keys are no
 * paths.  False, and "problem", if it does not fit.
 */
bool
al_template_read(Oid relid, const char *template, const char *separator, AlTemplate *guard,
				 AlTemplateProblem *problem)
{
	const char *detail;
	StringInfoData literal;
	const char *p = template;
	Size		length = 0;

	memset(guard, 0, sizeof(AlTemplate));
	guard->relid = relid;
	guard->separator = al_cstring("");
	initStringInfo(&literal);
	while (*p)
	{
		if (*p == '{' && p[1] != '{')
		{
			const char *end = strchr(p, '}');
			AlTemplatePiece *piece;
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
			/* A brace is not part of another character in any server encoding. */
			appendStringInfoChar(&literal, *p);
			length++;
			p += (*p == '{' || *p == '}') && p[1] == *p ? 2 : 1;
		}
	}
	if (literal.len > 0)
		add_piece(guard)->literal = al_cstring(literal.data);
	if (guard->count == 0)
		return bad_template(problem, template, "The template is empty.");
	if (length > AL_MAX_KEY_BYTES)
		return bad_template(problem, template, "The keys would be too long.");
	if (separator == NULL)
		return true;
	guard->separator = al_cstring(pstrdup(separator));
	if (!al_is_separator(guard->separator))
		return bad_template(problem, template, "Its separator is invalid.");
	detail = path_problem(guard);
	return detail == NULL ||
		bad_template(problem, template, psprintf("The keys would be no paths: %s.", detail));
}

/* Read a template for a table; raises 22023, 42703 or 0A000 if it does not fit */
void
al_template_require(Relation rel, const char *template, const char *separator, AlTemplate *guard)
{
	AlTemplateProblem problem = {0};

	if (!al_template_read(RelationGetRelid(rel), template, separator, guard, &problem))
		ereport(ERROR,
				(al_errcode(problem.sqlstate),
				 errmsg_internal("%s", problem.message),
				 errdetail_internal("%s", problem.detail),
				 errhint("%s", problem.hint),
				 errtable(rel)));
}

/* The template for a table without a guard: its name, and the columns of its primary key */
void
al_template_default(Relation rel, const AttrNumber *columns, int count, AlTemplate *guard)
{
	StringInfoData name;

	memset(guard, 0, sizeof(AlTemplate));
	guard->relid = RelationGetRelid(rel);
	guard->separator = al_cstring("");
	initStringInfo(&name);
	al_key_append(&name, RelationGetRelationName(rel));
	add_piece(guard)->literal = al_cstring(name.data);
	for (int i = 0; i < count; i++)
	{
		AlTemplatePiece *piece;

		add_piece(guard)->literal = al_cstring(":");
		piece = add_piece(guard);
		piece->column = columns[i];
		al_part_init(&piece->part, TupleDescAttr(RelationGetDescr(rel), columns[i] - 1)->atttypid);
	}
}

/*
 * Append the value of a column to a key.  Raises 22004 for NULL, and 22023 for an empty value at
 * the end of a path, which would be the folder of all rows beside this one.
 */
static void
append_value(const AlTemplate *guard, AlTemplatePiece *piece, Relation rel, Datum value,
			 bool is_null, StringInfo key)
{
	int			length = key->len;

	Assert(piece->column > 0 && piece->column <= RelationGetNumberOfAttributes(rel));
	if (is_null)
		ereport(ERROR,
				(al_errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("column \"%s\" of protected table \"%s\" must not be null",
						NameStr(TupleDescAttr(RelationGetDescr(rel), piece->column - 1)->attname),
						RelationGetRelationName(rel)),
				 errdetail("The column is part of the key of the lock that covers the row."),
				 errtablecol(rel, piece->column)));
	al_part_append(&piece->part, value, key);
	/* cppcheck-suppress knownConditionTrueFalse; al_part_append() lengthens the key */
	if (key->len == length && guard->separator.len > 0 &&
		piece == &guard->pieces[guard->count - 1])
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("column \"%s\" of protected table \"%s\" must not be empty",
						NameStr(TupleDescAttr(RelationGetDescr(rel), piece->column - 1)->attname),
						RelationGetRelationName(rel)),
				 errdetail("The column is the last part of the path that covers the row."),
				 errtablecol(rel, piece->column)));
}

/* Append the key of a row to a buffer; raises 22004 for a NULL in a column of the key */
void
al_template_key(const AlTemplate *guard, Relation rel, HeapTuple row, StringInfo key)
{
	TupleDesc	desc = RelationGetDescr(rel);

	Assert(guard->count > 0 && guard->relid == RelationGetRelid(rel));
	for (int i = 0; i < guard->count; i++)
	{
		AlTemplatePiece *piece = &guard->pieces[i];
		Datum		value;
		bool		is_null;

		if (piece->column == 0)
		{
			appendBinaryStringInfo(key, piece->literal.data, piece->literal.len);
			continue;
		}
		value = heap_getattr(row, piece->column, desc, &is_null);
		append_value(guard, piece, rel, value, is_null, key);
	}
}

/* The same, for a row that is given as the values of all columns */
void
al_template_key_of_values(const AlTemplate *guard, Relation rel,
						  const Datum *values, const bool *nulls, StringInfo key)
{
	Assert(guard->count > 0 && guard->relid == RelationGetRelid(rel));
	for (int i = 0; i < guard->count; i++)
	{
		AlTemplatePiece *piece = &guard->pieces[i];

		if (piece->column == 0)
			appendBinaryStringInfo(key, piece->literal.data, piece->literal.len);
		else
			append_value(guard, piece, rel, values[piece->column - 1], nulls[piece->column - 1], key);
	}
}

/*
 * The path that a row's key is, with its folders; without a separator, the key alone.  Raises
 * 22023 for an invalid path.
 */
void
al_template_path(const AlTemplate *guard, Relation rel, AlString key, AlPath *path)
{
	const char *problem = NULL;

	if (guard->separator.len > 0)
		problem = al_path_try_split(key, guard->separator, path);
	else
		*path = (AlPath) {.name = key, .count = 1, .ends = {key.len}};
	if (problem)
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg_internal("%s", problem),
				 errdetail("The key template of table \"%s\" makes the path of a row.",
						   RelationGetRelationName(rel)),
				 errtable(rel)));
}

/* Do two versions of a row have the same key?  False if that is not certain. */
bool
al_template_is_same_key(const AlTemplate *guard, Relation rel, HeapTuple old_row, HeapTuple new_row)
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

/* May a role read the template's columns of the table, or all columns of an ancestor? */
static bool
may_read(const AlTemplate *guard, Oid relid, Oid role)
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
 * May a role see the values in the key of a row?  Privileges on an ancestor count too,
 * since partitions are usually read through one.
 */
bool
al_template_may_see_key(const AlTemplate *guard, Relation rel, Oid role)
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
