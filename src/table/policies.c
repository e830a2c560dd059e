/*-------------------------------------------------------------------------
 *
 * policies.c
 *		Reading and writing policies.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: a policy is a row of app_lock_policy, with null for each part that it leaves to shorter
 * prefixes and settings.  Each role whose members may change the keys has a row of
 * app_lock_policy_role, so that a dump can leave out dropped roles: a restored cluster may have
 * given their OIDs to other roles.
 *
 * The table is written below the executor.  A transaction that writes a policy informs all
 * sessions by an invalidation of the table, which takes effect with the commit.  A trigger does
 * the same for rows that come from a dump or are written by hand.
 *
 * Locking rules: a writer takes ShareRowExclusiveLock and keeps it.  A reader takes
 * AccessShareLock, which is given back at once.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/rel.h"

#include "atomic_lock.h"
#include "base/errors.h"
#include "base/policy.h"
#include "base/str.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/policies.h"
#include "table/scan.h"

StaticAssertDecl(Natts_policy == Anum_policy_first_part - 1 + AL_POLICY_PARTS,
				 "each part of a policy has a column");

static int
compare_policies(const void *a, const void *b)
{
	return al_string_compare(((const AlPolicy *) a)->prefix, ((const AlPolicy *) b)->prefix);
}

/* The prefix in a row of either table, valid as long as the tuple */
static AlString
read_prefix(Relation rel, HeapTuple tuple)
{
	bool		is_null;

	return al_string(DatumGetTextPP(heap_getattr(tuple, Anum_policy_prefix,
												 RelationGetDescr(rel), &is_null)));
}

static void
read_policy(Relation rel, HeapTuple tuple, AlPolicy *policy)
{
	Datum		values[Natts_policy];
	bool		nulls[Natts_policy];

	heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
	policy->prefix = al_string(al_string_text(read_prefix(rel, tuple)));
	policy->roles = NIL;
	for (int part = 0; part < AL_POLICY_PARTS; part++)
		policy->parts[part] = nulls[Anum_policy_first_part - 1 + part] ? -1 :
			DatumGetInt64(values[Anum_policy_first_part - 1 + part]);
}

/* Add the roles to their policies, which are in order.  A role without a policy has no effect. */
static void
read_roles(Relation rel, AlPolicy *policies, int count)
{
	AlScan		scan;
	HeapTuple	tuple;

	al_scan_begin(&scan, rel, InvalidOid, 0, NULL);
	while (HeapTupleIsValid(tuple = al_scan_next(&scan)))
	{
		AlPolicy	sought = {.prefix = read_prefix(rel, tuple)};
		AlPolicy   *policy = bsearch(&sought, policies, count, sizeof(AlPolicy), compare_policies);
		bool		is_null;
		Datum		role = heap_getattr(tuple, Anum_policy_role_role, RelationGetDescr(rel), &is_null);

		if (policy)
			policy->roles = lappend_oid(policy->roles, DatumGetObjectId(role));
	}
	al_scan_end(&scan);
}

#define MOST_POLICIES	100000

/* Read all policies as of now: see AlPolicySource.  Raises 53400 if there are too many. */
AlPolicy *
al_policies_read(MemoryContext context, int *count)
{
	Relation	rel = al_open_policies(AccessShareLock);
	Relation	roles = al_open_policy_roles(AccessShareLock);
	MemoryContext old_context = MemoryContextSwitchTo(context);
	int			size = 8;
	AlPolicy   *policies = palloc(size * sizeof(AlPolicy));
	AlScan		scan;
	HeapTuple	tuple;

	*count = 0;
	al_scan_begin(&scan, rel, InvalidOid, 0, NULL);
	while (HeapTupleIsValid(tuple = al_scan_next(&scan)))
	{
		CHECK_FOR_INTERRUPTS();
		if (*count == MOST_POLICIES)
			ereport(ERROR,
					(al_errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
					 errmsg("too many policies"),
					 errdetail("There can be %d.", MOST_POLICIES),
					 errhint("Drop policies with lock_drop_policy().")));
		if (*count == size)
		{
			size *= 2;
			policies = repalloc_huge(policies, size * sizeof(AlPolicy));
		}
		read_policy(rel, tuple, &policies[(*count)++]);
	}
	al_scan_end(&scan);
	qsort(policies, *count, sizeof(AlPolicy), compare_policies);
	read_roles(roles, policies, *count);
	MemoryContextSwitchTo(old_context);
	table_close(roles, AccessShareLock);
	table_close(rel, AccessShareLock);
	al_trace(DEBUG2, "read %d policies", *count);
	return policies;
}

/* Make this session read the policies after the command, and others after the commit. */
void
al_policies_changed(void)
{
	Relation	rel = al_open_policies(AccessShareLock);

	CacheInvalidateRelcache(rel);
	table_close(rel, AccessShareLock);
}

/* Delete the rows of a prefix from one of the tables; false: there were none */
static bool
delete_rows(Relation rel, AlString prefix)
{
	static const AttrNumber column = Anum_policy_prefix;
	AlScan		scan;
	ScanKeyData key;
	HeapTuple	tuple;
	bool		found = false;

	ScanKeyInit(&key, column, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(al_string_text(prefix)));
	al_scan_begin(&scan, rel, al_scan_index(rel, 1, &column), 1, &key);
	while (HeapTupleIsValid(tuple = al_scan_next(&scan)))
	{
		CatalogTupleDelete(rel, &tuple->t_self);
		found = true;
	}
	al_scan_end(&scan);
	return found;
}

/*
 * Replace the policy of a prefix, or drop it (NULL); false if there was none.  No other
 * transaction can change policies until this one ends.
 */
bool
al_policies_put(AlString prefix, const AlPolicy *policy)
{
	Relation	rel = al_open_policies(ShareRowExclusiveLock);
	Relation	roles = al_open_policy_roles(RowExclusiveLock);
	bool		found = delete_rows(rel, prefix);
	Datum		values[Natts_policy];
	bool		nulls[Natts_policy] = {0};
	ListCell   *cell;

	(void) delete_rows(roles, prefix);
	values[Anum_policy_prefix - 1] = PointerGetDatum(al_string_text(prefix));
	foreach(cell, policy ? policy->roles : NIL)
	{
		values[Anum_policy_role_role - 1] = ObjectIdGetDatum(lfirst_oid(cell));
		CatalogTupleInsert(roles, heap_form_tuple(RelationGetDescr(roles), values, nulls));
	}
	for (int part = 0; policy && part < AL_POLICY_PARTS; part++)
	{
		values[Anum_policy_first_part - 1 + part] = Int64GetDatum(policy->parts[part]);
		nulls[Anum_policy_first_part - 1 + part] = policy->parts[part] < 0;
	}
	if (policy)
		CatalogTupleInsert(rel, heap_form_tuple(RelationGetDescr(rel), values, nulls));
	CacheInvalidateRelcache(rel);
	CommandCounterIncrement();
	table_close(roles, NoLock);
	table_close(rel, NoLock);
	return found;
}
