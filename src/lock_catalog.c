/*-------------------------------------------------------------------------
 *
 * lock_catalog.c
 *		Where the objects of the extension are in this database.
 *
 * Model: the extension may be in any schema, and may be dropped and created
 * again while a session goes on, so OIDs are looked up when they are first
 * needed and forgotten when the relation cache says that one of the tables
 * changed.  What the rest relies on is checked here, once for each change:
 * that the columns are those of lock_table.h (a library newer or older than
 * the installed script must not read them), and that there is no index which
 * direct table access cannot keep up to date without running user code.
 *
 * Nothing here looks at search_path.
 *
 * Locking rules: a relation is opened with the lock that the caller asks for;
 * the cache is believed only if it is still valid once that lock is held.
 *
 * IDENTIFICATION
 *		src/lock_catalog.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "atomic_lock.h"
#include "catalog/indexing.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_type_d.h"
#include "commands/extension.h"
#include "compat.h"
#include "lock_table.h"
#include "nodes/primnodes.h"
#include "parser/parse_func.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"

static struct
{
	bool		valid;			/* OIDs below are right */
	bool		checked;		/* app_lock is as it must be */
	Oid			app_lock;
	Oid			fence;
	Oid			epoch;
	Oid			audit;
	Oid			force_release;
}			catalog;

static void
relcache_callback(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == catalog.app_lock ||
		relid == catalog.fence || relid == catalog.epoch ||
		relid == catalog.audit)
	{
		catalog.valid = false;
		catalog.checked = false;
		al_fence_forget_epoch();
	}
}

void
al_catalog_init(void)
{
	CacheRegisterRelcacheCallback(relcache_callback, (Datum) 0);
}

static void
raise_not_installed(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("extension \"atomic_lock\" is not installed in this database"),
			 errhint("Use CREATE EXTENSION atomic_lock.")));
}

static Oid
extension_schema(void)
{
	Relation	rel;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	Oid			schema = InvalidOid;

	rel = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber,
				F_NAMEEQ, CStringGetDatum("atomic_lock"));
	scan = systable_beginscan(rel, ExtensionNameIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		schema = ((Form_pg_extension) GETSTRUCT(tuple))->extnamespace;
	systable_endscan(scan);
	table_close(rel, AccessShareLock);

	if (!OidIsValid(schema))
		raise_not_installed();
	return schema;
}

static Oid
relation_in(Oid schema, const char *name)
{
	Oid			oid = get_relname_relid(name, schema);

	if (!OidIsValid(oid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("relation \"%s\" of extension \"atomic_lock\" is missing", name),
				 errhint("Drop the extension and create it again.")));
	return oid;
}

static void
look_up(void)
{
	Oid			schema = extension_schema();
	Oid			argtypes[] = {TEXTOID, TEXTOID};
	List	   *name;

	catalog.app_lock = relation_in(schema, "app_lock");
	catalog.fence = relation_in(schema, "app_lock_fence");
	catalog.epoch = relation_in(schema, "app_lock_epoch");
	catalog.audit = relation_in(schema, "lock_audit");
	name = list_make2(makeString(get_namespace_name(schema)),
					  makeString(pstrdup("force_release")));
	catalog.force_release = LookupFuncName(name, lengthof(argtypes), argtypes, true);
	catalog.checked = false;
	catalog.valid = true;
}

/*
 * Open one of our relations, whose OID is in the cache.  A relation that was
 * dropped between the look and the lock is looked for again.
 */
static Relation
open_cached(const Oid *oid, LOCKMODE lockmode)
{
	for (int attempt = 0; attempt < 10; attempt++)
	{
		Relation	rel;

		if (!catalog.valid)
			look_up();
		rel = try_relation_open(*oid, lockmode);
		if (rel && catalog.valid)
			return rel;
		if (rel)
			relation_close(rel, lockmode);
		catalog.valid = false;
	}
	raise_not_installed();
	return NULL;				/* keep compiler quiet */
}

static void
raise_columns(Relation rel)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table \"%s\" does not have the columns this version of atomic_lock expects",
					RelationGetRelationName(rel)),
			 errhint("Use ALTER EXTENSION atomic_lock UPDATE, and do not alter the table.")));
}

static void
check_column_count(Relation rel, int natts)
{
	if (RelationGetDescr(rel)->natts != natts)
		raise_columns(rel);
}

/*
 * Raise unless the columns are those that lock_table.h names: a tuple formed
 * or read by other ones would be garbage.
 */
static void
check_app_lock_columns(Relation rel)
{
	static const struct
	{
		const char *name;
		Oid			type;
	}			columns[Natts_app_lock] = {
		{"fencing_token", INT8OID},
		{"acquired_at", TIMESTAMPTZOID},
		{"expires_at", TIMESTAMPTZOID},
		{"ttl_us", INT8OID},
		{"slot", INT4OID},
		{"key", TEXTOID},
		{"mode", TEXTOID},
		{"holder", TEXTOID},
		{"owner", TEXTOID},
		{"owner_hash", INT4OID},
		{"released_at", TIMESTAMPTZOID},
		{"meta", JSONBOID},
	};

	check_column_count(rel, Natts_app_lock);
	for (int i = 0; i < Natts_app_lock; i++)
	{
		Form_pg_attribute column = TupleDescAttr(RelationGetDescr(rel), i);

		if (column->attisdropped || column->atttypid != columns[i].type ||
			strcmp(NameStr(column->attname), columns[i].name) != 0)
			raise_columns(rel);
	}
}

/*
 * Raise unless every index can be kept up to date without an executor: plain
 * columns, unique at once or not at all, no predicate but the one of
 * app_lock_owner_idx.
 */
static void
check_indexes(Relation rel)
{
	List	   *indexes = RelationGetIndexList(rel);
	ListCell   *cell;

	foreach(cell, indexes)
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);
		List	   *predicate = RelationGetIndexPredicate(index);
		bool		ok = index->rd_rel->relam == BTREE_AM_OID &&
			index->rd_index->indimmediate &&
			!index->rd_index->indisexclusion &&
			RelationGetIndexExpressions(index) == NIL;

		if (ok && predicate != NIL)
		{
			NullTest   *test = (NullTest *) linitial(predicate);

			ok = RelationGetRelid(rel) == catalog.app_lock &&
				list_length(predicate) == 1 && IsA(test, NullTest) &&
				test->nulltesttype == IS_NOT_NULL && IsA(test->arg, Var) &&
				((Var *) test->arg)->varattno == Anum_app_lock_owner_hash &&
				index->rd_index->indkey.values[0] == Anum_app_lock_owner_hash;
		}
		if (!ok)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("index \"%s\" on table \"%s\" is not supported by atomic_lock",
							RelationGetRelationName(index), RelationGetRelationName(rel)),
					 errdetail("Only plain B-tree indexes can be kept up to date without running user code."),
					 errhint("Drop the index.")));
		index_close(index, AccessShareLock);
	}
	list_free(indexes);
}

/*
 * Open app_lock.  Raises 42704 where the extension is not installed, 55000
 * where somebody has changed the table so that we cannot use it.
 */
Relation
al_open_app_lock(LOCKMODE lockmode)
{
	Relation	rel = open_cached(&catalog.app_lock, lockmode);

	if (!catalog.checked)
	{
		check_app_lock_columns(rel);
		check_indexes(rel);
		if (catalog.valid)
			catalog.checked = true;
	}
	return rel;
}

/*
 * Open app_lock for a function that writes.  Also raises 25006 in a read-only
 * transaction and on a standby; "function" is named in the message.
 */
Relation
al_open_for_writing(const char *function)
{
	PreventCommandDuringRecovery(function);
	PreventCommandIfReadOnly(function);
	PreventCommandIfParallelMode(function);
	return al_open_app_lock(RowExclusiveLock);
}

Relation
al_open_fence(LOCKMODE lockmode)
{
	return open_cached(&catalog.fence, lockmode);
}

Relation
al_open_epoch(LOCKMODE lockmode)
{
	return open_cached(&catalog.epoch, lockmode);
}

/* Open lock_audit; raises 55000 as for app_lock */
Relation
al_open_audit(LOCKMODE lockmode)
{
	Relation	rel = open_cached(&catalog.audit, lockmode);

	check_column_count(rel, Natts_lock_audit);
	check_indexes(rel);
	return rel;
}

/*
 * Is the current role an administrator of locks?  Those who may end anybody's
 * lease are, and the owner of the extension always may.
 */
bool
al_is_admin(void)
{
	if (!catalog.valid)
		look_up();
	return OidIsValid(catalog.force_release) &&
		al_may_execute(catalog.force_release, GetUserId());
}
