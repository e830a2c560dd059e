/*-------------------------------------------------------------------------
 *
 * catalog.c
 *		Finding and opening the objects of the extension in this database.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: the extension may be in any schema, and may be dropped and created again during a
 * session.  So OIDs are looked up when they are first needed, without search_path, and are
 * forgotten when the relation cache says that one of the relations has changed.  After each
 * change, this file checks once what other files rely on: the extension has the version of this
 * library, the relations are as the install script made them, and no index needs user code to be
 * kept up to date.
 *
 * A library serves the SQL objects of its own version and no others.  Each script begins with
 * al_begin_script(), which waits for all transactions that have written, and makes every session
 * compare the versions again.
 *
 * Locking rules: a relation is opened with the lock that the caller asks for.  Taking it
 * processes invalidations, so the OID is compared again under the lock.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_class.h"
#include "catalog/pg_collation_d.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_index.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type_d.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "nodes/primnodes.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "base/compat.h"
#include "base/errors.h"
#include "base/hash.h"
#include "base/policy.h"
#include "shmem/shmem.h"
#include "shmem/tickets.h"
#include "table/catalog.h"
#include "table/columns.h"

/* The default_version of atomic_lock.control; make checkver compares them. */
#define VERSION "1.0"

typedef struct ColumnDefinition
{
	const char *name;
	Oid			type;			/* 0: the enum lock_mode, see find_modes() */
	Oid			collation;		/* 0: any */
} ColumnDefinition;

/* OIDs of the labels of lock_mode: exclusive, shared */
static Oid	modes[2];

static const ColumnDefinition app_lock_columns[Natts_app_lock] = {
	{"fencing_token", INT8OID, InvalidOid},
	{"acquired_at", TIMESTAMPTZOID, InvalidOid},
	{"expires_at", TIMESTAMPTZOID, InvalidOid},
	{"ttl_us", INT8OID, InvalidOid},
	{"slot", INT4OID, InvalidOid},
	{"mode", InvalidOid, InvalidOid},
	{"role", OIDOID, InvalidOid},
	{"key", TEXTOID, C_COLLATION_OID},
	{"released", BOOLOID, InvalidOid},
	{"holder", TEXTOID, InvalidOid},
	{"owner", TEXTOID, InvalidOid},
	{"owner_hash", INT8OID, InvalidOid},
	{"meta", JSONBOID, InvalidOid},
	{"pid", INT4OID, InvalidOid},
	{"backend_start", TIMESTAMPTZOID, InvalidOid},
};

static const ColumnDefinition lock_audit_columns[Natts_lock_audit] = {
	{"at", TIMESTAMPTZOID, InvalidOid},
	{"action", TEXTOID, InvalidOid},
	{"key", TEXTOID, C_COLLATION_OID},
	{"previous_holder", TEXTOID, InvalidOid},
	{"previous_owner_digest", TEXTOID, C_COLLATION_OID},
	{"fencing_token", INT8OID, InvalidOid},
	{"session_role", NAMEOID, InvalidOid},
	{"acting_role", NAMEOID, InvalidOid},
	{"client_addr", INETOID, InvalidOid},
	{"reason", TEXTOID, InvalidOid},
	{"id", UUIDOID, InvalidOid},
};

static const ColumnDefinition policy_columns[Natts_policy] = {
	{"prefix", TEXTOID, C_COLLATION_OID},
	{"default_ttl_us", INT8OID, InvalidOid},
	{"max_ttl_us", INT8OID, InvalidOid},
	{"max_wait_us", INT8OID, InvalidOid},
	{"max_lifetime_us", INT8OID, InvalidOid},
	{"lock_delay_us", INT8OID, InvalidOid},
	{"min_hold_us", INT8OID, InvalidOid},
	{"max_holders", INT8OID, InvalidOid},
	{"max_keys_per_role", INT8OID, InvalidOid},
	{"history", INT8OID, InvalidOid},
	{"notify", INT8OID, InvalidOid},
	{"has_roles", INT8OID, InvalidOid},
};

static const ColumnDefinition policy_role_columns[Natts_policy_role] = {
	{"prefix", TEXTOID, C_COLLATION_OID},
	{"role", REGROLEOID, InvalidOid},
};

static const ColumnDefinition lock_history_columns[Natts_lock_history] = {
	{"key", TEXTOID, C_COLLATION_OID},
	{"mode", TEXTOID, InvalidOid},
	{"fencing_token", INT8OID, InvalidOid},
	{"owner_digest", TEXTOID, C_COLLATION_OID},
	{"holder", TEXTOID, InvalidOid},
	{"role", NAMEOID, InvalidOid},
	{"client_addr", INETOID, InvalidOid},
	{"application", TEXTOID, InvalidOid},
	{"acquired_at", TIMESTAMPTZOID, InvalidOid},
	{"ended_at", TIMESTAMPTZOID, InvalidOid},
	{"ended_by", TEXTOID, InvalidOid},
};

static const ColumnDefinition queue_columns[Natts_queue] = {
	{"key", TEXTOID, C_COLLATION_OID},
	{"ticket", INT8OID, InvalidOid},
	{"expires_at", TIMESTAMPTZOID, InvalidOid},
	{"queued_at", TIMESTAMPTZOID, InvalidOid},
	{"offer_us", INT8OID, InvalidOid},
	{"offered", INT8OID, InvalidOid},
	{"role", OIDOID, InvalidOid},
	{"holder", TEXTOID, InvalidOid},
	{"owner", TEXTOID, InvalidOid},
	{"owner_hash", INT8OID, InvalidOid},
};

typedef struct CachedRelation
{
	const char *name;
	char		relkind;
	const ColumnDefinition *columns;	/* of a table */
	int			natts;
	Oid			oid;
	bool		checked;		/* check_definition() has found it good */
} CachedRelation;

static CachedRelation app_lock = {
	.name = "app_lock",
	.relkind = RELKIND_RELATION,
	.columns = app_lock_columns,
	.natts = Natts_app_lock
};
static CachedRelation lock_audit = {
	.name = "lock_audit",
	.relkind = RELKIND_RELATION,
	.columns = lock_audit_columns,
	.natts = Natts_lock_audit
};
static CachedRelation app_lock_policy = {
	.name = "app_lock_policy",
	.relkind = RELKIND_RELATION,
	.columns = policy_columns,
	.natts = Natts_policy
};
static CachedRelation app_lock_policy_role = {
	.name = "app_lock_policy_role",
	.relkind = RELKIND_RELATION,
	.columns = policy_role_columns,
	.natts = Natts_policy_role
};
static CachedRelation lock_history = {
	.name = "lock_history",
	.relkind = RELKIND_RELATION,
	.columns = lock_history_columns,
	.natts = Natts_lock_history
};
static CachedRelation app_lock_queue = {
	.name = "app_lock_queue",
	.relkind = RELKIND_RELATION,
	.columns = queue_columns,
	.natts = Natts_queue
};
static CachedRelation fence = {
	.name = "app_lock_fence",
	.relkind = RELKIND_SEQUENCE
};

static CachedRelation *const our_relations[] = {
	&app_lock, &lock_audit, &app_lock_policy, &app_lock_policy_role, &lock_history, &app_lock_queue,
	&fence
};

static bool oids_valid = false;
static uint32 invalidations = 0;
static Oid	lock_status_oid;	/* of the one without arguments; 0: not looked up yet */

static void
relcache_callback(Datum arg, Oid relid)
{
	for (int i = 0; i < (int) lengthof(our_relations); i++)
	{
		if (relid == InvalidOid || relid == our_relations[i]->oid)
		{
			oids_valid = false;
			our_relations[i]->checked = false;
			invalidations++;
			if (our_relations[i] == &fence)
				al_secret_forget();
			if (our_relations[i] == &app_lock_queue)
				al_tickets_forget();
			if (our_relations[i] == &app_lock_policy || our_relations[i] == &app_lock_policy_role)
				al_policy_forget();
		}
	}
}

void
al_catalog_init(void)
{
	CacheRegisterRelcacheCallback(relcache_callback, (Datum) 0);
}

/* As strcmp(), for versions such as 1.0 and 1.10 */
static int
compare_versions(const char *a, const char *b)
{
	for (;;)
	{
		char	   *a_end;
		char	   *b_end;
		long		difference = strtol(a, &a_end, 10) - strtol(b, &b_end, 10);

		if (difference != 0 || *a_end != '.' || *b_end != '.')
			return difference != 0 ? (int) Max(Min(difference, 1), -1) : strcmp(a_end, b_end);
		a = a_end + 1;
		b = b_end + 1;
	}
}

static void
raise_version(const char *version)
{
	ereport(ERROR,
			(al_errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("extension \"atomic_lock\" has version %s in this database, and its library has version %s",
					version, VERSION),
			 compare_versions(version, VERSION) < 0 ?
			 errhint("Run ALTER EXTENSION atomic_lock UPDATE.") :
			 errhint("Install the package of version %s if it is not there, and restart the server.",
					 version)));
}

/* The schema of the extension, and its version; not installed: 0, or raises 42704 */
static Oid
extension_schema(bool missing_ok, char **version)
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
	{
		Form_pg_extension form = (Form_pg_extension) GETSTRUCT(tuple);
		bool		is_null;

		schema = form->extnamespace;
		if (version)
			*version = TextDatumGetCString(heap_getattr(tuple, Anum_pg_extension_extversion,
														RelationGetDescr(rel), &is_null));
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);

	if (!OidIsValid(schema) && !missing_ok)
		ereport(ERROR,
				(al_errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("extension \"atomic_lock\" is not installed in this database"),
				 errhint("Use CREATE EXTENSION atomic_lock.")));
	return schema;
}

/* Our function with this name and types of arguments, in the schema of the extension; 0: none */
static Oid
own_function(const char *name, const Oid *types, int count)
{
	return GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid, CStringGetDatum(name),
						   PointerGetDatum(buildoidvector(types, count)),
						   ObjectIdGetDatum(extension_schema(false, NULL)));
}

/* The OID of lock_guard(); 0: it does not exist */
Oid
al_guard_function(void)
{
	return own_function("lock_guard", NULL, 0);
}

/*
 * Look our relations up.  The OIDs are valid if no invalidation came meanwhile.  False with
 * "missing_ok", or raises 42704 or 55000: the extension is not installed or has another version.
 */
static bool
look_up(bool missing_ok)
{
	uint32		seen = invalidations;
	char	   *version;
	Oid			schema = extension_schema(missing_ok, &version);

	lock_status_oid = InvalidOid;
	if (!OidIsValid(schema))
		return false;
	if (strcmp(version, VERSION) != 0)
	{
		al_trace(DEBUG1, "extension has version %s, library has version %s",
				 version, VERSION);
		if (missing_ok)
			return false;
		raise_version(version);
	}
	for (int i = 0; i < (int) lengthof(our_relations); i++)
	{
		Oid			oid = get_relname_relid(our_relations[i]->name, schema);

		if (oid != our_relations[i]->oid)
			our_relations[i]->checked = false;
		our_relations[i]->oid = oid;
	}
	if (!fence.checked)
		al_secret_forget();
	if (!app_lock_policy.checked || !app_lock_policy_role.checked)
		al_policy_forget();
	oids_valid = seen == invalidations;
	al_trace(DEBUG2, "looked up our relations after %u invalidations", seen);
	return true;
}

void
al_check_version(void)
{
	if (!oids_valid)
		(void) look_up(false);
}

/*
 * The install or an update script begins; pg_extension already has the new version.  Raises 55000
 * if that is newer than the library.  An update locks app_lock against all: a transaction that
 * has written with one version must not commit with another.
 */
void
al_begin_script(void)
{
	char	   *version;
	Oid			schema = extension_schema(false, &version);
	Oid			relid = get_relname_relid("app_lock", schema);

	if (compare_versions(version, VERSION) > 0)
		raise_version(version);
	if (!OidIsValid(relid))
		return;
	LockRelationOid(relid, AccessExclusiveLock);
	CacheInvalidateRelcacheByRelid(relid);
	al_trace(DEBUG1, "script of version %s has locked app_lock", version);
}

static void
raise_missing(const char *name)
{
	ereport(ERROR,
			(al_errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("relation \"%s\" of extension \"atomic_lock\" is missing", name),
			 errhint("Drop the extension and create it again.")));
}

/* Set the OIDs in "modes" from the labels of a type; false if it is not lock_mode. */
static bool
find_modes(Oid type)
{
	for (int is_shared = 0; is_shared < 2; is_shared++)
	{
		HeapTuple	label = SearchSysCache2(ENUMTYPOIDNAME, ObjectIdGetDatum(type),
											CStringGetDatum(is_shared ? "shared" : "exclusive"));

		if (!HeapTupleIsValid(label))
			return false;
		modes[is_shared] = ((Form_pg_enum) GETSTRUCT(label))->oid;
		ReleaseSysCache(label);
	}
	return true;
}

/* The value of the column "mode"; app_lock must have been opened before. */
Datum
al_mode_value(bool is_shared)
{
	Assert(OidIsValid(modes[is_shared]));
	return ObjectIdGetDatum(modes[is_shared]);
}

/* Raise 55000 unless a relation is as the install script made it */
static void
check_definition(Relation rel, const CachedRelation *cached)
{
	bool		ok = rel->rd_rel->relkind == cached->relkind &&
		rel->rd_rel->relpersistence == RELPERSISTENCE_PERMANENT;

	if (ok && cached->relkind == RELKIND_RELATION)
		ok = rel->rd_rel->relam == HEAP_TABLE_AM_OID &&
			RelationGetDescr(rel)->natts == cached->natts;
	for (int i = 0; ok && i < cached->natts; i++)
	{
		Form_pg_attribute column = TupleDescAttr(RelationGetDescr(rel), i);

		ok = !column->attisdropped &&
			(OidIsValid(cached->columns[i].type) ?
			 column->atttypid == cached->columns[i].type : find_modes(column->atttypid)) &&
			(!OidIsValid(cached->columns[i].collation) ||
			 column->attcollation == cached->columns[i].collation) &&
			strcmp(NameStr(column->attname), cached->columns[i].name) == 0;
	}
	if (!ok)
		ereport(ERROR,
				(al_errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("definition of relation \"%s\" does not match this version of atomic_lock",
						RelationGetRelationName(rel)),
				 errhint("Undo what was altered in the relation, or drop the extension and create it again.")));
}

/*
 * Is an index without a condition, or is its condition that of app_lock_owner_idx?  Read from the
 * catalog: the relation cache would simplify it, and call functions in it.
 */
static bool
has_good_predicate(Relation rel, Relation index)
{
	bool		is_null;
	Datum		value = SysCacheGetAttr(INDEXRELID, index->rd_indextuple,
										Anum_pg_index_indpred, &is_null);
	NullTest   *test;

	if (is_null)
		return true;
	test = stringToNode(TextDatumGetCString(value));
	return RelationGetRelid(rel) == app_lock.oid && IsA(test, NullTest) &&
		test->nulltesttype == IS_NOT_NULL && IsA(test->arg, Var) &&
		((Var *) test->arg)->varattno == Anum_app_lock_owner_hash &&
		index->rd_index->indkey.values[0] == Anum_app_lock_owner_hash;
}

/* Raise 55000 unless each index can be kept up to date without an executor. */
static void
check_indexes(Relation rel)
{
	List	   *indexes = RelationGetIndexList(rel);
	ListCell   *cell;

	foreach(cell, indexes)
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);

		if (index->rd_rel->relam != BTREE_AM_OID ||
			!index->rd_index->indimmediate ||
			index->rd_index->indisexclusion ||
			!heap_attisnull(index->rd_indextuple, Anum_pg_index_indexprs, NULL) ||
			(index->rd_index->indisprimary && RelationGetRelid(rel) == app_lock.oid &&
			 (index->rd_index->indnkeyatts != 2 ||
			  index->rd_index->indkey.values[0] != Anum_app_lock_key ||
			  index->rd_index->indkey.values[1] != Anum_app_lock_slot)) ||
			!has_good_predicate(rel, index))
			ereport(ERROR,
					(al_errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("index \"%s\" on table \"%s\" is not supported by atomic_lock",
							RelationGetRelationName(index), RelationGetRelationName(rel)),
					 errdetail("Only plain B-tree indexes can be kept up to date without running user code."),
					 errhint("Drop the index.")));
		index_close(index, AccessShareLock);
	}
	list_free(indexes);
}

/*
 * Open one of our relations.  With "missing_ok", NULL if there is no extension of this version or
 * no relation; otherwise raises 42704 or 55000.  Raises 55000 if it was changed.
 */
static Relation
open_cached(CachedRelation *cached, LOCKMODE lockmode, bool missing_ok)
{
	Assert(IsTransactionState() && lockmode != NoLock);
	for (;;)
	{
		Relation	rel;
		Oid			oid;

		if (!oids_valid && !look_up(missing_ok))
			return NULL;
		oid = cached->oid;
		if (!OidIsValid(oid))
		{
			oids_valid = false;
			if (missing_ok)
				return NULL;
			raise_missing(cached->name);
		}

		rel = try_relation_open(oid, lockmode);
		if (!oids_valid && !look_up(missing_ok))
		{
			if (rel)
				relation_close(rel, lockmode);
			return NULL;
		}
		if (rel && cached->oid == oid)
		{
			if (!cached->checked)
			{
				uint32		before = invalidations;

				check_definition(rel, cached);
				check_indexes(rel);
				cached->checked = invalidations == before;
			}
			return rel;
		}

		/* It was dropped, and perhaps created again, before we had the lock. */
		CHECK_FOR_INTERRUPTS();
		if (rel)
			relation_close(rel, lockmode);
		else
			oids_valid = false;
	}
}

Relation
al_open_app_lock(LOCKMODE lockmode)
{
	Relation	rel = open_cached(&app_lock, lockmode, false);

	al_policy_refresh();
	return rel;
}

Relation
al_open_policies(LOCKMODE lockmode)
{
	return open_cached(&app_lock_policy, lockmode, false);
}

Relation
al_open_policy_roles(LOCKMODE lockmode)
{
	return open_cached(&app_lock_policy_role, lockmode, false);
}

Relation
al_open_history(LOCKMODE lockmode)
{
	return open_cached(&lock_history, lockmode, false);
}

Relation
al_open_queue(LOCKMODE lockmode)
{
	return open_cached(&app_lock_queue, lockmode, false);
}

/* Raise 25006 in a read-only transaction or on a standby, and 25000 in parallel mode. */
void
al_prevent_writing(const char *function)
{
	PreventCommandDuringRecovery(function);
	PreventCommandIfReadOnly(function);
	PreventCommandIfParallelMode(function);
}

/* al_prevent_writing(), attach shared memory, and open app_lock to write to it. */
Relation
al_open_for_writing(const char *function)
{
	al_prevent_writing(function);
	(void) al_shmem_attach();
	return al_open_app_lock(RowExclusiveLock);
}

bool
al_is_installed(void)
{
	return OidIsValid(get_extension_oid("atomic_lock", true));
}

/*
 * Open app_lock to write to it, without waiting.  NULL: a lock is not free; or, if *missing is
 * set, the extension is not installed or has another version.
 */
Relation
al_open_now(bool *missing)
{
	static CachedRelation *const others[] = {
		&app_lock_policy, &app_lock_policy_role, &lock_history, &app_lock_queue, &fence
	};
	Relation	rel;

	*missing = false;
	if (!ConditionalLockRelationOid(ExtensionRelationId, AccessShareLock))
		return NULL;
	if (!oids_valid && !look_up(true))
	{
		*missing = true;
		return NULL;
	}
	if (!OidIsValid(app_lock.oid) || !ConditionalLockRelationOid(app_lock.oid, RowExclusiveLock))
		return NULL;
	/* The caller may have to read all of them, and to write to history and queue. */
	for (int i = 0; i < (int) lengthof(others); i++)
	{
		bool		is_written = others[i] == &lock_history || others[i] == &app_lock_queue;

		if (!OidIsValid(others[i]->oid) ||
			!ConditionalLockRelationOid(others[i]->oid, is_written ? RowExclusiveLock : AccessShareLock))
			return NULL;
	}
	rel = open_cached(&app_lock, RowExclusiveLock, true);
	if (rel)
		al_policy_refresh();
	return rel;
}

Relation
al_open_fence(LOCKMODE lockmode)
{
	return open_cached(&fence, lockmode, false);
}

/* Open a table to read it; NULL if that would have to wait for a lock */
static Relation
open_now(CachedRelation *table)
{
	Oid			oid;
	Relation	rel;

	if (!oids_valid && !look_up(true))
		return NULL;
	oid = table->oid;
	if (!OidIsValid(oid) || !ConditionalLockRelationOid(oid, AccessShareLock))
		return NULL;
	rel = open_cached(table, AccessShareLock, true);
	UnlockRelationOid(oid, AccessShareLock);
	return rel;
}

Relation
al_open_audit_now(void)
{
	return open_now(&lock_audit);
}

Relation
al_open_history_now(void)
{
	return open_now(&lock_history);
}

Relation
al_open_audit(LOCKMODE lockmode)
{
	return open_cached(&lock_audit, lockmode, false);
}

/*
 * May the current role see the holdings of others?  Yes if it may execute lock_status().  A
 * caller that comes through a view of another role need not have USAGE on our schema.
 */
bool
al_is_monitor(void)
{
	if (!oids_valid)
		(void) look_up(false);
	if (!OidIsValid(lock_status_oid))
		lock_status_oid = own_function("lock_status", NULL, 0);
	return OidIsValid(lock_status_oid) && al_may_execute(lock_status_oid, GetUserId());
}

/* May the current role call our function with this name and types of arguments? */
bool
al_may_call(const char *function, const Oid *types, int count)
{
	Oid			oid = own_function(function, types, count);

	return OidIsValid(oid) && al_may_execute(oid, GetUserId());
}

/* Does the current role have level user?  Yes if it may execute lock_release_all(). */
bool
al_is_user(void)
{
	static const Oid types[] = {TEXTOID};

	return al_may_call("lock_release_all", types, lengthof(types));
}

/* Does the current role have level admin?  Yes if it may execute lock_grant_access(). */
bool
al_is_admin(void)
{
	static const Oid types[] = {REGROLEOID, TEXTOID};

	return al_may_call("lock_grant_access", types, lengthof(types));
}
