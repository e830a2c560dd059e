/*-------------------------------------------------------------------------
 *
 * policies.c
 *		Reading and writing policies.
 *
 * Model: a policy is a row of app_lock_policy, with null for each part that it leaves
 * to shorter prefixes and settings.  Each role whose members may change the keys has a
 * row of its own besides, so that a dump can leave out those that have been dropped:
 * a restored cluster may have given their numbers to other roles.
 *
 * The table is written below the executor.  Who writes it tells all sessions by an
 * invalidation of the table, which takes effect with the commit; so does a trigger for
 * rows that come from a dump or are written by hand.
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
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/rel.h"

#include "atomic_lock.h"
#include "base/policy.h"
#include "base/str.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/policies.h"
#include "table/scan.h"

StaticAssertDecl(Natts_policy == Anum_policy_first_part - 1 + AL_POLICY_PARTS,
				 "each part of a policy has a column");

/* Make room for one more policy */
static AlPolicy *
next_policy(MemoryContext context, AlPolicy **policies, int count)
{
	if (count == 0)
		*policies = MemoryContextAlloc(context, 8 * sizeof(AlPolicy));
	else if (count >= 8 && (count & (count - 1)) == 0)
		*policies = repalloc_huge(*policies, 2 * (Size) count * sizeof(AlPolicy));
	return memset(&(*policies)[count], 0, sizeof(AlPolicy));
}

/* Read a row; that of a role has the role, and no parts */
static void
read_row(Relation rel, HeapTuple tuple, AlPolicy *policy)
{
	Datum		values[Natts_policy];
	bool		nulls[Natts_policy];
	Oid			admitted;

	heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
	policy->prefix = al_string(DatumGetTextPCopy(values[Anum_policy_prefix - 1]));
	admitted = DatumGetObjectId(values[Anum_policy_admitted - 1]);
	if (OidIsValid(admitted))
		policy->roles = list_make1_oid(admitted);
	for (int part = 0; part < AL_POLICY_PARTS; part++)
		policy->parts[part] = nulls[Anum_policy_first_part - 1 + part] ? -1 :
			DatumGetInt64(values[Anum_policy_first_part - 1 + part]);
}

/* By prefix; the roles of a policy come after it */
static int
compare_rows(const void *a, const void *b)
{
	const AlPolicy *x = a;
	const AlPolicy *y = b;
	int			order = al_string_compare(x->prefix, y->prefix);

	return order != 0 ? order : (x->roles != NIL) - (y->roles != NIL);
}

/*
 * All policies, as of now: see AlPolicySource.  A role without a policy, which somebody
 * must have written by hand, admits nobody to anything.
 */
AlPolicy *
al_policies_read(MemoryContext context, int *count)
{
	Relation	rel = al_open_policies(AccessShareLock);
	MemoryContext old_context = MemoryContextSwitchTo(context);
	AlPolicy   *policies = NULL;
	AlScan		scan;
	HeapTuple	tuple;
	int			rows = 0;

	al_scan_begin(&scan, rel, InvalidOid, 0, NULL);
	while (HeapTupleIsValid(tuple = al_scan_next(&scan)))
		read_row(rel, tuple, next_policy(context, &policies, rows++));
	al_scan_end(&scan);
	table_close(rel, AccessShareLock);
	if (rows > 0)
		qsort(policies, rows, sizeof(AlPolicy), compare_rows);

	*count = 0;
	for (int i = 0; i < rows; i++)
	{
		AlPolicy   *last = *count > 0 ? &policies[*count - 1] : NULL;

		if (policies[i].roles == NIL)
			policies[(*count)++] = policies[i];
		else if (last && al_string_equal(last->prefix, policies[i].prefix))
			last->roles = list_concat(last->roles, policies[i].roles);
	}
	MemoryContextSwitchTo(old_context);
	return policies;
}

/*
 * Let all sessions read the policies again: this one after the command, others after the
 * commit.
 */
void
al_policies_changed(void)
{
	Relation	rel = al_open_policies(AccessShareLock);

	CacheInvalidateRelcache(rel);
	table_close(rel, AccessShareLock);
}

static void
insert_row(Relation rel, const AlPolicy *policy, Oid admitted)
{
	Datum		values[Natts_policy];
	bool		nulls[Natts_policy] = {0};

	values[Anum_policy_prefix - 1] = PointerGetDatum(al_string_text(policy->prefix));
	values[Anum_policy_admitted - 1] = ObjectIdGetDatum(admitted);
	for (int part = 0; part < AL_POLICY_PARTS; part++)
	{
		values[Anum_policy_first_part - 1 + part] = Int64GetDatum(policy->parts[part]);
		nulls[Anum_policy_first_part - 1 + part] = OidIsValid(admitted) || policy->parts[part] < 0;
	}
	CatalogTupleInsert(rel, heap_form_tuple(RelationGetDescr(rel), values, nulls));
}

/* Delete the rows of a prefix; false: there are none */
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

/* Finish a change, which others may not make at the same time */
static void
close_changed(Relation rel)
{
	CacheInvalidateRelcache(rel);
	CommandCounterIncrement();
	table_close(rel, NoLock);
}

/* Let a policy replace the one with its prefix. */
void
al_policies_put(const AlPolicy *policy)
{
	Relation	rel = al_open_policies(ShareRowExclusiveLock);
	ListCell   *cell;

	(void) delete_rows(rel, policy->prefix);
	insert_row(rel, policy, InvalidOid);
	foreach(cell, policy->roles)
		insert_row(rel, policy, lfirst_oid(cell));
	close_changed(rel);
}

/* Drop the policy with a prefix; false: there is none */
bool
al_policies_drop(AlString prefix)
{
	Relation	rel = al_open_policies(ShareRowExclusiveLock);
	bool		found = delete_rows(rel, prefix);

	close_changed(rel);
	return found;
}
