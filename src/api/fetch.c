/*-------------------------------------------------------------------------
 *
 * fetch.c
 *		lock_fetch(): lock a row's key, then read the row.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: a row that is read before it is locked may be stale once the lock is granted.
 *
 * 1. The call makes the key, with the template of the table's guard.  If that has columns
 *    besides the primary key, the row is read once for them.  If it has a separator, the key
 *    is a path, and its folders are locked, too.
 * 2. It claims the keys, waiting if need be.
 * 3. It reads the row with a snapshot taken after that.  If there is no row, it drops the
 *    claims, and nothing has been written.  If the row is not as expected, it raises LK012.
 * 4. If the row makes another key (the id 1.0 finds the row of 1), it drops the claim and
 *    begins again with the row's key.
 * 5. It writes the lease and returns the row.
 *
 * Row security may show the row only to the holder of its lock.  With row security, the
 * lease is written before step 3, in a subtransaction that is rolled back if there is no
 * row or it makes another key.
 *
 * A holding that the owner has already is extended, and keeps mode and lifetime: a call
 * that only wants to read the row must not change them.
 *
 * Under REPEATABLE READ and SERIALIZABLE the rest of the transaction uses an older
 * snapshot.  The row is read with that one too, and 40001 is raised if the versions
 * differ, because the transaction would decide on stale data.
 *
 * The query has the caller's privileges and row security.  Row security policies, and the
 * types of the expected values, are user code that may use the same key, so the key is judged
 * again before the lease is written.
 *
 * Locking rules: those of acquire.  app_lock stays open while the row is read.  The table
 * is closed while the call waits for the key, except that a read of the row in step 1 or 4
 * keeps the lock that the query took.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_class.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "nodes/makefuncs.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/fmgroids.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/resowner.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/tuplestore.h"
#include "utils/typcache.h"

#include "atomic_lock.h"
#include "api/args.h"
#include "base/errors.h"
#include "base/key.h"
#include "base/path.h"
#include "base/settings.h"
#include "base/str.h"
#include "guard/template.h"
#include "guard/trigger.h"
#include "lease/acquire.h"
#include "lease/attempt.h"
#include "lease/path.h"
#include "lease/report.h"
#include "lease/state.h"
#include "table/catalog.h"

/* The row to be read */
typedef struct Target
{
	Relation	rel;
	int			nkeys;			/* number of columns of the primary key */
	AttrNumber	columns[INDEX_MAX_KEYS];
	Oid			types[INDEX_MAX_KEYS];
	Oid			operators[INDEX_MAX_KEYS];	/* equality */
	Datum		values[INDEX_MAX_KEYS];
	bool	   *is_expected;	/* for each column: must the row have this value? */
	Datum	   *expected;
	bool	   *expected_nulls;
	AlTemplate	template;		/* of the key */
	SPIPlanPtr	plan;
} Target;

/* Append "left operator right" to a query */
static void
append_operator(StringInfo query, const char *left, Oid operator, const char *right)
{
	HeapTuple	tuple = SearchSysCache1(OPEROID, ObjectIdGetDatum(operator));
	Form_pg_operator form;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for operator %u", operator);
	form = (Form_pg_operator) GETSTRUCT(tuple);
	appendStringInfo(query, "%s OPERATOR(%s.%s) %s", left,
					 quote_identifier(get_namespace_name(form->oprnamespace)),
					 NameStr(form->oprname), right);
	ReleaseSysCache(tuple);
}

static void
raise_dropped(void)
{
	ereport(ERROR,
			(al_errcode(ERRCODE_UNDEFINED_TABLE),
			 errmsg("the table was dropped while lock_fetch waited")));
}

/*
 * Open the table whose row type is the type of an argument.  Raises 42809 if it is not the
 * row type of a table, 42P01 if the table was dropped, 42501 if the role may not read it.
 */
static Relation
open_table(FunctionCallInfo fcinfo, int argno)
{
	Relation	rel;
	Oid			type = get_fn_expr_argtype(fcinfo->flinfo, argno);
	Oid			relid = OidIsValid(type) ? get_typ_typrelid(type) : InvalidOid;
	char		relkind = OidIsValid(relid) ? get_rel_relkind(relid) : 0;

	if (OidIsValid(type) && !SearchSysCacheExists1(TYPEOID, ObjectIdGetDatum(type)))
		raise_dropped();
	if (relkind != RELKIND_RELATION && relkind != RELKIND_PARTITIONED_TABLE)
		ereport(ERROR,
				(al_errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("lock_fetch needs the row type of a table"),
				 OidIsValid(type) ?
				 errdetail("The argument has type %s.",
						   format_type_extended(type, -1, FORMAT_TYPE_ALLOW_INVALID)) : 0,
				 errhint("Pass a null value of the row type of the table, such as NULL::orders.")));
	if (pg_class_aclcheck(relid, GetUserId(), ACL_SELECT) != ACLCHECK_OK &&
		pg_attribute_aclcheck_all(relid, GetUserId(), ACL_SELECT, ACLMASK_ALL) != ACLCHECK_OK)
		aclcheck_error(ACLCHECK_NO_PRIV, get_relkind_objtype(relkind), get_rel_name(relid));
	rel = try_table_open(relid, AccessShareLock);
	if (rel == NULL)
		raise_dropped();
	return rel;
}

/* Open the index of the primary key; raises 42704 if the table has no primary key */
static Relation
open_primary_key(Relation rel)
{
	List	   *indexes = RelationGetIndexList(rel);
	ListCell   *cell;

	foreach(cell, indexes)
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);

		if (index->rd_index->indisprimary)
			return index;
		index_close(index, AccessShareLock);
	}
	ereport(ERROR,
			(al_errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("table \"%s\" has no primary key", RelationGetRelationName(rel)),
			 errhint("lock_fetch needs a primary key to find a row."),
			 errtable(rel)));
	return NULL;				/* keep compiler quiet */
}

/* Find the columns of the primary key and their equality operators; raises 0A000 */
static void
find_primary_key(Target *target)
{
	Relation	index = open_primary_key(target->rel);

	target->nkeys = index->rd_index->indnkeyatts;
	for (int i = 0; i < target->nkeys; i++)
	{
		AttrNumber	column = index->rd_index->indkey.values[i];
		Oid			type = index->rd_opcintype[i];

		target->columns[i] = column;
		target->types[i] = TupleDescAttr(RelationGetDescr(target->rel), column - 1)->atttypid;
		target->operators[i] = index->rd_rel->relam != BTREE_AM_OID ? InvalidOid :
			get_opfamily_member(index->rd_opfamily[i], type, type, BTEqualStrategyNumber);
		if (!OidIsValid(target->operators[i]))
			ereport(ERROR,
					(al_errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("lock_fetch cannot use the primary key of table \"%s\"",
							RelationGetRelationName(target->rel)),
					 errdetail("The primary key is not a B-tree index."),
					 errtable(target->rel)));
	}
	index_close(index, AccessShareLock);
	Assert(target->nkeys > 0);
}

static const char *
column_name(const Target *target, int i)
{
	return NameStr(TupleDescAttr(RelationGetDescr(target->rel), target->columns[i] - 1)->attname);
}

/* The member of a JSON object for a column, as text for the type's input function */
static char *
member_text(const Target *target, Jsonb *object, int i)
{
	const char *name = column_name(target, i);
	JsonbValue	buffer;
	JsonbValue *member = getKeyJsonValueFromContainer(&object->root, name, strlen(name), &buffer);
	Jsonb	   *json;

	if (member == NULL || member->type == jbvNull)
		ereport(ERROR,
				(al_errcode(member ? ERRCODE_NULL_VALUE_NOT_ALLOWED : ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg(member ? "column \"%s\" of the id must not be null" :
						"the id has no value for column \"%s\"", name),
				 errdetail("The column is part of the primary key of table \"%s\".",
						   RelationGetRelationName(target->rel))));
	if (member->type == jbvString)
		return pnstrdup(member->val.string.val, member->val.string.len);
	json = JsonbValueToJsonb(member);
	return JsonbToCString(NULL, &json->root, VARSIZE(json));
}

/*
 * Read the id into the target's values.  The id is the text of the only column of the
 * primary key, or a JSON object.  Raises 22023 for an object with other members, 22004
 * for a NULL in it, and errors of input functions.
 */
static void
read_id(Target *target, char *id)
{
	Jsonb	   *object = NULL;

	if (target->nkeys > 1)
	{
		object = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(id)));
		if (!JB_ROOT_IS_OBJECT(object) || (int) JB_ROOT_COUNT(object) != target->nkeys)
			ereport(ERROR,
					(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("the id must be a JSON object with the %d columns of the primary key",
							target->nkeys),
					 errdetail("The primary key of table \"%s\" has several columns; the first is \"%s\".",
							   RelationGetRelationName(target->rel), column_name(target, 0))));
	}
	for (int i = 0; i < target->nkeys; i++)
	{
		/* A copy: the lookup of a type may have the relation read anew. */
		FormData_pg_attribute column = *TupleDescAttr(RelationGetDescr(target->rel),
													  target->columns[i] - 1);
		Oid			input;
		Oid			param;

		getTypeInputInfo(column.atttypid, &input, &param);
		target->values[i] = OidInputFunctionCall(input,
												 object ? member_text(target, object, i) : id,
												 param, column.atttypmod);
	}
}

/* Read the template of the table's guard, or make the default template */
static void
find_template(Target *target)
{
	if (!al_template_of_guard(target->rel, al_find_trigger(target->rel, AL_ROW_TRIGGER),
							  &target->template))
		al_template_default(target->rel, target->columns, target->nkeys, &target->template);
}

/*
 * Read the expected values, the members of a JSON object in valid text.  Raises 22023 if it is
 * no object, 42703 for a member that is no column, and errors of input functions.
 */
static void
read_expected(Target *target, Jsonb *json)
{
	/* A copy: what a conversion runs may change the table. */
	TupleDesc	desc = CreateTupleDescCopy(RelationGetDescr(target->rel));
	Oid			type = RelationGetForm(target->rel)->reltype;
	FmgrInfo	populate;
	JsonbIterator *iterator;
	JsonbValue	member;
	JsonbIteratorToken token;
	HeapTupleData row;
	Datum		record;

	if (!JB_ROOT_IS_OBJECT(json))
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("expect must be a JSON object")));
	target->is_expected = palloc0(desc->natts * sizeof(bool));
	target->expected = palloc0(desc->natts * sizeof(Datum));
	target->expected_nulls = palloc(desc->natts * sizeof(bool));
	memset(target->expected_nulls, true, desc->natts * sizeof(bool));
	iterator = JsonbIteratorInit(&json->root);
	while ((token = JsonbIteratorNext(&iterator, &member, true)) != WJB_DONE)
	{
		char	   *name = token != WJB_KEY ? NULL :
			pnstrdup(member.val.string.val, member.val.string.len);
		int			column = name ? SPI_fnumber(desc, name) : 0;

		if (name && column <= 0)
			ereport(ERROR,
					(al_errcode(ERRCODE_UNDEFINED_COLUMN),
					 errmsg("column \"%s\" of relation \"%s\" does not exist",
							al_display(al_cstring(name)), RelationGetRelationName(target->rel)),
					 errdetail("The object \"expect\" names the column."),
					 errtable(target->rel)));
		if (name)
			target->is_expected[column - 1] = true;
	}

	/* Of a record that is not null, it converts only the columns that are members. */
	fmgr_info(F_JSONB_POPULATE_RECORD, &populate);
	fmgr_info_set_expr((Node *) makeFuncExpr(F_JSONB_POPULATE_RECORD, type,
											 list_make2(makeNullConst(type, -1, InvalidOid),
														makeNullConst(JSONBOID, -1, InvalidOid)),
											 InvalidOid, InvalidOid, COERCE_EXPLICIT_CALL), &populate);
	record = HeapTupleGetDatum(heap_form_tuple(desc, target->expected, target->expected_nulls));
	record = FunctionCall2(&populate, record, JsonbPGetDatum(json));
	row.t_data = DatumGetHeapTupleHeader(record);
	row.t_len = HeapTupleHeaderGetDatumLength(row.t_data);
	heap_deform_tuple(&row, desc, target->expected, target->expected_nulls);
}

/* Are two values of a column equal, or both null?  Types without equality compare as text. */
static bool
is_equal(Form_pg_attribute column, Datum a, bool a_null, Datum b, bool b_null)
{
	TypeCacheEntry *type;
	AlPart		part;
	StringInfoData texts[2];

	if (a_null || b_null)
		return a_null && b_null;
	type = lookup_type_cache(column->atttypid, TYPECACHE_EQ_OPR_FINFO);
	if (OidIsValid(type->eq_opr_finfo.fn_oid))
		return DatumGetBool(FunctionCall2Coll(&type->eq_opr_finfo, column->attcollation, a, b));
	al_part_init(&part, column->atttypid);
	initStringInfo(&texts[0]);
	initStringInfo(&texts[1]);
	al_part_append(&part, a, &texts[0]);
	al_part_append(&part, b, &texts[1]);
	return strcmp(texts[0].data, texts[1].data) == 0;
}

/* Raise LK012 if a row that was read has other values than expected */
static void
check_expected(const Target *target, const AlKey *key, const SPITupleTable *rows)
{
	TupleDesc	desc = CreateTupleDescCopy(RelationGetDescr(target->rel));
	StringInfoData names;

	initStringInfo(&names);
	for (int i = 0; target->is_expected && i < desc->natts; i++)
	{
		Form_pg_attribute column = TupleDescAttr(desc, i);
		bool		is_right = true;

		for (uint64 row = 0; target->is_expected[i] && is_right && row < rows->numvals; row++)
		{
			bool		is_null;
			Datum		value = SPI_getbinval(rows->vals[row], rows->tupdesc, i + 1, &is_null);

			is_right = is_equal(column, value, is_null, target->expected[i], target->expected_nulls[i]);
		}
		if (!is_right)
			appendStringInfo(&names, "%s\"%s\"", names.len > 0 ? ", " : "",
							 al_display(al_cstring(NameStr(column->attname))));
	}
	if (names.len > 0)
		ereport(ERROR,
				(al_errcode(ERRCODE_LOCK_STALE),
				 errmsg("row of table \"%s\" is not as expected, so lock \"%s\" is not granted",
						RelationGetRelationName(target->rel), al_display(key->name)),
				 errdetail("Columns with other values: %s.", names.data),
				 errhint("Read the row again, and show it before you take the lock."),
				 errtable(target->rel)));
}

/* The lock key of a row with these values, one for each column */
static char *
make_key(const Target *target, const Datum *values, const bool *nulls)
{
	StringInfoData key;

	initStringInfo(&key);
	al_template_key_of_values(&target->template, target->rel, values, nulls, &key);
	return key.data;
}

/* The lock key of the requested row; NULL if the template needs more than the id */
static char *
key_of_id(const Target *target)
{
	int			natts = RelationGetNumberOfAttributes(target->rel);
	Datum	   *values = palloc0(natts * sizeof(Datum));
	bool	   *nulls = palloc(natts * sizeof(bool));

	memset(nulls, true, natts * sizeof(bool));
	for (int i = 0; i < target->nkeys; i++)
	{
		values[target->columns[i] - 1] = target->values[i];
		nulls[target->columns[i] - 1] = false;
	}
	for (int i = 0; i < target->template.count; i++)
	{
		AttrNumber	column = target->template.pieces[i].column;

		if (column != 0 && nulls[column - 1])
			return NULL;
	}
	return make_key(target, values, nulls);
}

static void
open_target(FunctionCallInfo fcinfo, Target *target)
{
	target->rel = open_table(fcinfo, 0);
	find_primary_key(target);
	if (PG_ARGISNULL(5))
		find_template(target);
	if (PG_ARGISNULL(1))
		al_raise_null("id");
	(void) al_check_encoding(al_string(PG_GETARG_TEXT_PP(1)), "id");
	read_id(target, text_to_cstring(PG_GETARG_TEXT_PP(1)));
	if (!PG_ARGISNULL(7))
		read_expected(target, PG_GETARG_JSONB_P(7));
}

/*
 * Prepare the query for all columns in their order.  If versions of the row have to be
 * compared, tableoid and ctid follow.
 */
static void
prepare_query(Target *target)
{
	TupleDesc	desc = RelationGetDescr(target->rel);
	StringInfoData query;

	initStringInfo(&query);
	appendStringInfoString(&query, "SELECT ");
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute column = TupleDescAttr(desc, i);

		appendStringInfo(&query, "%s%s", i > 0 ? ", " : "", column->attisdropped ? "NULL" :
						 quote_qualified_identifier("r", NameStr(column->attname)));
	}
	if (IsolationUsesXactSnapshot())
		appendStringInfoString(&query, ", r.tableoid, r.ctid");
	appendStringInfo(&query, " FROM %s AS r",
					 quote_qualified_identifier(get_namespace_name(RelationGetNamespace(target->rel)),
												RelationGetRelationName(target->rel)));
	for (int i = 0; i < target->nkeys; i++)
	{
		appendStringInfoString(&query, i == 0 ? " WHERE " : " AND ");
		append_operator(&query, quote_qualified_identifier("r", column_name(target, i)),
						target->operators[i], psprintf("$%d", i + 1));
	}
	target->plan = SPI_prepare(query.data, target->nkeys, target->types);
	if (target->plan == NULL)
		elog(ERROR, "SPI_prepare failed: %s", SPI_result_code_string(SPI_result));
}

static void
raise_altered(Relation rel)
{
	ereport(ERROR,
			(al_errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table \"%s\" was altered while lock_fetch waited",
					RelationGetRelationName(rel)),
			 errhint("Retry the statement."),
			 errtable(rel)));
}

/*
 * Do columns have the types of the table's columns?  Execution may make a new plan, and
 * the names may belong to other columns by then.
 */
static bool
is_of_table(Relation rel, TupleDesc columns)
{
	TupleDesc	desc = RelationGetDescr(rel);

	if (columns->natts < desc->natts)
		return false;
	for (int i = 0; i < desc->natts; i++)
	{
		if (!TupleDescAttr(desc, i)->attisdropped &&
			TupleDescAttr(desc, i)->atttypid != TupleDescAttr(columns, i)->atttypid)
			return false;
	}
	return true;
}

/* The rows that a snapshot sees */
static SPITupleTable *
read_rows(Target *target, Snapshot snapshot)
{
	int			result;

	snapshot = RegisterSnapshot(snapshot);
	result = SPI_execute_snapshot(target->plan, target->values, NULL, snapshot,
								  InvalidSnapshot, true, false, 0);
	UnregisterSnapshot(snapshot);
	if (result != SPI_OK_SELECT)
		elog(ERROR, "SPI_execute_snapshot failed: %s", SPI_result_code_string(result));
	if (!is_of_table(target->rel, SPI_tuptable->tupdesc))
		raise_altered(target->rel);
	return SPI_tuptable;
}

/* The lock key of the row that was read, in this memory context; NULL if there is no row */
static char *
key_of_row(const Target *target, const SPITupleTable *rows, MemoryContext context)
{
	Datum	   *values = palloc(rows->tupdesc->natts * sizeof(Datum));
	bool	   *nulls = palloc(rows->tupdesc->natts * sizeof(bool));

	if (rows->numvals == 0)
		return NULL;
	heap_deform_tuple(rows->vals[0], rows->tupdesc, values, nulls);
	return MemoryContextStrdup(context, make_key(target, values, nulls));
}

/* Do two results have the same versions of the same rows? */
static bool
is_same(const Target *target, const SPITupleTable *a, const SPITupleTable *b)
{
	int			natts = RelationGetDescr(target->rel)->natts;

	if (a->numvals != b->numvals)
		return false;
	for (uint64 i = 0; i < a->numvals; i++)
	{
		for (int column = natts + 1; column <= natts + 2; column++)
		{
			bool		is_null;

			if (!datum_image_eq(SPI_getbinval(a->vals[i], a->tupdesc, column, &is_null),
								SPI_getbinval(b->vals[i], b->tupdesc, column, &is_null),
								column == natts + 1, column == natts + 1 ? sizeof(Oid) : sizeof(ItemPointerData)))
				return false;
		}
	}
	return true;
}

/*
 * Read the newest committed version of the row.  Raises 40001 if the rest of the
 * transaction sees another version.
 */
static SPITupleTable *
read_newest(Target *target)
{
	SPITupleTable *visible = IsolationUsesXactSnapshot() ?
		read_rows(target, GetTransactionSnapshot()) : NULL;
	SPITupleTable *newest = read_rows(target, GetLatestSnapshot());

	if (visible && !is_same(target, visible, newest))
		ereport(ERROR,
				(al_errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not serialize access due to concurrent update"),
				 errdetail("The newest version of the row in table \"%s\" is not visible to this transaction.",
						   RelationGetRelationName(target->rel)),
				 errhint("Retry the transaction with lock_fetch as its first statement.")));
	return newest;
}

/* The lock key of the row as it is now, before it is locked; NULL if there is no row */
static char *
find_key(Target *target)
{
	MemoryContext context = CurrentMemoryContext;
	char	   *key;

	SPI_connect();
	prepare_query(target);
	key = key_of_row(target, read_newest(target), context);
	SPI_finish();
	return key;
}

/*
 * Is this the key of the row that was read?  True if there is no row, or the caller has
 * chosen the key ("name" is NULL).  If false, *name is the row's key.
 */
static bool
is_right_key(const AlKey *key, const Target *target, const SPITupleTable *rows,
			 MemoryContext context, char **name)
{
	if (name == NULL || rows->numvals == 0)
		return true;
	*name = key_of_row(target, rows, context);
	return al_string_equal(key->name, al_cstring(*name));
}

/* Judge the keys again, because row security may have used them or taken long */
static void
refresh(Relation app_lock, AlAttempt *attempts, int count)
{
	for (int i = 0; i < count; i++)
	{
		al_attempt_refresh(app_lock, &attempts[i]);
		if (!al_is_granted(attempts[i].result))
			al_raise(attempts[i].key, attempts[i].result);
	}
}

/* Maximum number of attempts to write a grant while the owner's holding expires */
#define MOST_TRIES	10

/* Write the grants; false if the holding that the first builds on has ended since the attempt */
static bool
write_grants(Relation app_lock, AlAttempt *attempts, int count)
{
	bool		is_written = al_grant_all(app_lock, attempts, count);

	if (!is_written)
		al_trace(DEBUG2, "lock_fetch: the holding has ended, judging the key again");
	return is_written;
}

/*
 * Write the grants, then read the row, for row security that shows it only to the holder.
 * If there is no row, or it has another key, undo the grants and return NULL.
 */
static SPITupleTable *
grant_and_read(Relation app_lock, AlAttempt *attempts, int count, Target *target,
			   MemoryContext name_context, char **name, bool *is_right)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	SPITupleTable *volatile rows = NULL;
	volatile bool is_written = false;
	volatile int tries = 0;

	do
	{
		if (tries++ == MOST_TRIES)
			al_raise(attempts[0].key, attempts[0].result);
		refresh(app_lock, attempts, count);
		BeginInternalSubTransaction(NULL);
		MemoryContextSwitchTo(context);
		PG_TRY();
		{
			is_written = write_grants(app_lock, attempts, count);
			*is_right = false;
			if (is_written)
			{
				rows = read_newest(target);
				*is_right = is_right_key(attempts[count - 1].key, target, rows, name_context, name);
			}
			if (rows && rows->numvals > 0 && *is_right)
				ReleaseCurrentSubTransaction();
			else
			{
				RollbackAndReleaseCurrentSubTransaction();
				rows = NULL;
			}
			MemoryContextSwitchTo(context);
			CurrentResourceOwner = owner;
		}
		PG_CATCH();
		{
			ErrorData  *error;

			MemoryContextSwitchTo(context);
			error = CopyErrorData();
			FlushErrorState();
			RollbackAndReleaseCurrentSubTransaction();
			MemoryContextSwitchTo(context);
			CurrentResourceOwner = owner;
			ReThrowError(error);
		}
		PG_END_TRY();
	} while (!is_written);
	return rows;
}

/*
 * Put rows into the result.  Raises 55000 if the statement expects other columns, because
 * the table was altered during the wait.
 */
static void
put_rows(const Target *target, const ReturnSetInfo *rsinfo, const SPITupleTable *rows)
{
	TupleDesc	expected = rsinfo->setDesc;
	int			natts = rows->tupdesc->natts;
	TupleDesc	desc = RelationGetDescr(target->rel);
	bool		is_good = desc->natts == expected->natts;

	for (int i = 0; is_good && i < expected->natts; i++)
		is_good = TupleDescAttr(expected, i)->attisdropped == TupleDescAttr(desc, i)->attisdropped;
	if (!is_good || !is_of_table(target->rel, expected))
		raise_altered(target->rel);
	for (uint64 i = 0; i < rows->numvals; i++)
	{
		Datum	   *values = palloc(natts * sizeof(Datum));
		bool	   *nulls = palloc(natts * sizeof(bool));

		heap_deform_tuple(rows->vals[i], rows->tupdesc, values, nulls);
		tuplestore_putvalues(rsinfo->setResult, expected, values, nulls);
	}
}

/*
 * Lock a path of keys and put the row, if there is one, into the result.  False if the row has
 * another key than the last one, in *name; then nothing is locked.
 */
static bool
fetch_by_keys(FunctionCallInfo fcinfo, Target *target, AlAttempt *attempts, int count,
			  char **name)
{
	const AlKey *key = attempts[count - 1].key;
	MemoryContext context = CurrentMemoryContext;
	Relation	app_lock = al_open_app_lock(RowExclusiveLock);
	bool		has_waited = attempts[0].request->wait > 0;
	bool		is_granted;
	bool		is_right;
	SPITupleTable *rows;
	int			refused;

	for (int i = 0; i < count; i++)
		al_key_recheck(attempts[i].key);
	/* DDL on the table must not queue behind a waiter. */
	if (has_waited)
		table_close(target->rel, AccessShareLock);
	refused = al_attempt_all(&app_lock, attempts, count);
	if (refused >= 0)
		al_raise(attempts[refused].key, attempts[refused].result);
	if (has_waited)
	{
		AlString	separator = target->template.separator;

		open_target(fcinfo, target);
		if (name && !al_string_equal(separator, target->template.separator))
			raise_altered(target->rel);
	}

	SPI_connect();
	prepare_query(target);
	is_granted = check_enable_rls(RelationGetRelid(target->rel), InvalidOid,
								  true) == RLS_ENABLED;
	if (is_granted)
		rows = grant_and_read(app_lock, attempts, count, target, context, name, &is_right);
	else
	{
		rows = read_newest(target);
		is_right = is_right_key(key, target, rows, context, name);
	}
	if (rows && rows->numvals > 0 && is_right)
	{
		check_expected(target, key, rows);
		for (int tries = 0; !is_granted; tries++)
		{
			if (tries == MOST_TRIES)
				al_raise(attempts[0].key, attempts[0].result);
			refresh(app_lock, attempts, count);
			is_granted = write_grants(app_lock, attempts, count);
		}
		put_rows(target, (ReturnSetInfo *) fcinfo->resultinfo, rows);
		table_close(app_lock, NoLock);
	}
	else
	{
		for (int i = 0; i < count; i++)
			al_attempt_give_up(&attempts[i]);
		table_close(app_lock, RowExclusiveLock);
	}
	SPI_finish();
	return is_right;
}

/* Hide the statement, which may contain an owner, in all errors of the call */
static void
hide_statement(void *arg)
{
	errhidestmt(true);
	errhidecontext(true);
}

/* lock_fetch(row_type, id, ttl, owner, wait, key, holder, expect): the row, or none */
AL_FUNCTION(atomic_lock_fetch)
{
	Target		target = {0};
	AlKey		key;
	AlPath		path;
	AlAcquire	requests[2] = {0};	/* exclusive and shared */
	AlAcquire  *request = &requests[0];
	bool		is_shared[AL_MAX_PATH];
	AlResult	results[AL_MAX_PATH];
	bool		is_default_key = PG_ARGISNULL(5);
	char	   *name = NULL;
	ErrorContextCallback callback = {.callback = hide_statement,.previous = error_context_stack};

	error_context_stack = &callback;
	/* Wait for DDL on app_lock here, while no other table is locked. */
	table_close(al_open_for_writing("lock_fetch()"), RowExclusiveLock);
	request->ttl = al_ttl_arg(fcinfo, 2);
	request->keeps_own = true;
	al_owner_arg(fcinfo, 3, &request->owner);
	request->wait = al_wait_arg(fcinfo, 4);
	request->on_reacquire = al_on_reacquire;
	request->role = GetUserId();
	request->holder = al_holder_arg(fcinfo, 6);
	request->default_holder = al_holder_default;
	if (!is_default_key)
		al_key_arg(fcinfo, 5, &key);
	if (!PG_ARGISNULL(7))
		al_check_json(PG_GETARG_JSONB_P(7), "expect");

	open_target(fcinfo, &target);
	InitMaterializedSRF(fcinfo, 0);
	if (is_default_key)
	{
		name = key_of_id(&target);
		if (name == NULL)
			name = find_key(&target);
	}
	while (name || !is_default_key)
	{
		AlKey	   *keys = &key;

		path.count = 1;
		if (is_default_key)
		{
			al_template_path(&target.template, target.rel, al_check_key(al_cstring(name)), &path);
			keys = al_path_keys(&path);
		}
		al_lease_path_requests(keys, path.count, requests, is_shared);
		if (fetch_by_keys(fcinfo, &target,
						  al_attempts_at(keys, path.count, requests, is_shared, results),
						  path.count, is_default_key ? &name : NULL))
			break;
		al_trace(DEBUG2, "lock_fetch: the row has another key than its id, locking that one");
		request->wait = Max(request->wait - results[0].waited, 0);
		CHECK_FOR_INTERRUPTS();
	}
	table_close(target.rel, AccessShareLock);
	error_context_stack = callback.previous;
	return (Datum) 0;
}
