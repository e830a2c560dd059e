/*-------------------------------------------------------------------------
 *
 * quota.c
 *		How many keys an owner or a role may hold.
 *
 * Model: the policy that rules max_keys_per_owner or max_keys_per_role for a key limits
 * how many different keys an owner or a role holds, of all keys for which this policy
 * rules that part.  Keys are counted when a holding begins, from what is in app_lock
 * then.  No count is stored that could be wrong after a crash.
 *
 * What an unfinished transaction has acquired counts, since it may commit, and what it
 * has released counts, too, since it may roll back.  A dirty snapshot sees both versions
 * of a row.  Holdings without a row are counted by their claims.
 *
 * Locking rules: a quota is claimed from the count until the holding is written, so that
 * the next one who counts sees it.  It is the last thing that is claimed, and nobody waits
 * for anything else meanwhile.  That of the owner comes before that of the role.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/errors.h"
#include "base/hash.h"
#include "base/owner.h"
#include "base/policy.h"
#include "base/str.h"
#include "claim/claim.h"
#include "claim/held.h"
#include "claim/holding.h"
#include "lease/quota.h"
#include "table/app_lock.h"
#include "table/columns.h"
#include "table/owner_rows.h"
#include "table/row.h"
#include "table/scan.h"

/* What is counted */
typedef struct Counted
{
	const AlPolicy *policy;
	AlPolicyPart part;
	const AlOwner *owner;		/* whose keys; NULL: those of the role */
	Oid			role;
	const AlKey *key;			/* is not counted: it is the one to be held */
	uint64		hash;			/* of the quota */
} Counted;

/* Which quotas is a holding of the key under?  Returns how many. */
static int
find_quotas(const AlKey *key, const AlOwner *owner, Oid role, Counted *quotas)
{
	int			count = 0;

	for (int by_role = 0; by_role < 2; by_role++)
	{
		Counted    *quota = &quotas[count];
		StringInfoData name;
		AlString	string;
		AlHash		hash;

		memset(quota, 0, sizeof(Counted));
		quota->part = by_role ? AL_MAX_KEYS_PER_ROLE : AL_MAX_KEYS_PER_OWNER;
		quota->policy = al_policy_for(key->name, quota->part);
		/* An owner that is yet to be generated has nothing. */
		if (quota->policy == NULL || (!by_role && owner->name.len == 0))
			continue;
		quota->owner = by_role ? NULL : owner;
		quota->role = role;
		quota->key = key;
		initStringInfo(&name);
		appendBinaryStringInfo(&name, (const char *) &by_role, sizeof(by_role));
		appendBinaryStringInfo(&name, (const char *) &quota->policy->prefix.len, sizeof(int));
		appendBinaryStringInfo(&name, quota->policy->prefix.data, quota->policy->prefix.len);
		if (by_role)
			appendBinaryStringInfo(&name, (const char *) &role, sizeof(role));
		else
			appendBinaryStringInfo(&name, owner->name.data, owner->name.len);
		string.data = name.data;
		string.len = name.len;
		al_hash_for(AL_HASH_QUOTAS, string, &hash);
		pfree(name.data);
		quota->hash = hash.words[0];
		count++;
	}
	return count;
}

/* Is a key one of those that the quota is for, other than the one to be held? */
static bool
is_counted(const Counted *quota, AlString key)
{
	return al_policy_for(key, quota->part) == quota->policy &&
		!al_string_equal(key, quota->key->name);
}

/* Does a key begin with a prefix? */
static bool
has_prefix(AlString key, AlString prefix)
{
	return key.len >= prefix.len && memcmp(key.data, prefix.data, prefix.len) == 0;
}

/*
 * Begin to read the rows that may count, in the order of keys or their hashes: by the
 * index of owners, or for a role by an index of roles and keys, if somebody has made
 * one, or else by the primary key.
 */
static SysScanDesc
begin_rows(Relation rel, const Counted *quota, Snapshot dirty)
{
	static const AttrNumber columns[] = {Anum_app_lock_role, Anum_app_lock_key};
	ScanKeyData keys[2];
	Oid			index;
	int			count = 0;

	if (quota->owner)
	{
		/* The lower half of a hash is that of the key. */
		int64		first = al_owner_index_hash(quota->owner->name, quota->owner->name) &
			~INT64CONST(0xffffffff);

		ScanKeyInit(&keys[0], Anum_app_lock_owner_hash, BTGreaterEqualStrategyNumber, F_INT8GE,
					Int64GetDatum(first));
		ScanKeyInit(&keys[1], Anum_app_lock_owner_hash, BTLessEqualStrategyNumber, F_INT8LE,
					Int64GetDatum(first | INT64CONST(0xffffffff)));
		return systable_beginscan(rel, al_table_owner_index(rel), true, dirty, 2, keys);
	}
	index = al_scan_index(rel, lengthof(columns), columns);
	if (OidIsValid(index))
		ScanKeyInit(&keys[count++], Anum_app_lock_role, BTEqualStrategyNumber, F_OIDEQ,
					ObjectIdGetDatum(quota->role));
	else
		index = al_table_key_index(rel);
	ScanKeyInit(&keys[count++], Anum_app_lock_key, BTGreaterEqualStrategyNumber, F_TEXT_GE,
				PointerGetDatum(al_string_text(quota->policy->prefix)));
	return systable_beginscan(rel, index, true, dirty, count, keys);
}

static bool
is_of_owner(Relation rel, HeapTuple tuple, const AlOwner *owner)
{
	AlHolding	holding;
	bool		is_owned;

	al_row_read(rel, tuple, &holding);
	is_owned = al_is_owned_by(&holding, owner);
	heap_freetuple(holding.tuple);
	return is_owned;
}

/* How many keys are held by rows that the index leads to */
static int
count_rows(Relation rel, const Counted *quota)
{
	TimestampTz now = GetCurrentTimestamp();
	SnapshotData dirty;
	SysScanDesc scan;
	HeapTuple	tuple;
	char		last[AL_MAX_KEY_BYTES];
	int			last_length = -1;
	int			count = 0;

	InitDirtySnapshot(dirty);
	scan = begin_rows(rel, quota, &dirty);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		AlHolding	row;

		CHECK_FOR_INTERRUPTS();
		al_row_peek(rel, tuple, &row);
		if (quota->owner == NULL && !has_prefix(row.key, quota->policy->prefix))
		{
			if (scan->irel)
				break;
			continue;			/* somebody has turned the indexes off */
		}
		if (!al_is_live(&row, now) || !is_counted(quota, row.key) ||
			(quota->owner ? !is_of_owner(rel, tuple, quota->owner) : row.role != quota->role) ||
			(row.key.len == last_length && memcmp(row.key.data, last, last_length) == 0))
			continue;
		last_length = Min(row.key.len, AL_MAX_KEY_BYTES);
		memcpy(last, row.key.data, last_length);
		count++;
	}
	systable_endscan(scan);
	return count;
}

/* How many keys an owner holds by rows of which the index of owners does not know */
static int
count_other_rows(Relation rel, const Counted *quota)
{
	TimestampTz now = GetCurrentTimestamp();
	int			count = 0;
	ListCell   *cell;

	if (quota->owner == NULL || !al_owner_looks_generated(quota->owner->name))
		return 0;
	foreach(cell, al_owner_rows(rel, quota->owner))
	{
		const AlHolding *row = ((AlOwned *) lfirst(cell))->row;

		count += al_is_live(row, now) && is_counted(quota, row->key) &&
			!(row->has_owner_hash &&
			  row->owner_hash == al_owner_index_hash(quota->owner->name, row->key));
	}
	return count;
}

/* How many keys are held by this transaction without a row */
static int
count_mine(const Counted *quota)
{
	int			count = 0;
	ListCell   *cell;

	foreach(cell, al_held_mine(NULL))
	{
		const AlHolding *holding = lfirst(cell);

		count += is_counted(quota, holding->key) &&
			(quota->owner ? al_is_owned_by(holding, quota->owner) : holding->role == quota->role);
	}
	return count;
}

static void
raise_quota(const Counted *quota, int count)
{
	const char *part = quota->owner ? "max_keys_per_owner" : "max_keys_per_role";
	char	   *role = GetUserNameFromId(quota->role, true);
	char	   *who = quota->owner ? pstrdup("this owner") :
		psprintf("role \"%s\"", role ? al_display(al_cstring(role)) : "?");

	ereport(ERROR,
			(al_errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("lock \"%s\" would be one key too many for %s", al_display(quota->key->name), who),
			 errdetail("It holds %d of at most " INT64_FORMAT " keys, by the policy for prefix \"%s\".",
					   count, quota->policy->parts[quota->part], al_display(quota->policy->prefix)),
			 errhint("Release other locks, or ask an administrator to raise %s.", part)));
}

/*
 * Claim the quotas of a holding that is about to begin.  Raises 53400 where the owner or
 * the role holds as many keys as it may.
 */
void
al_quota_take(Relation rel, const AlKey *key, const AlOwner *owner, Oid role,
			  AlLifetime lifetime, AlQuota *quota)
{
	Counted		quotas[2];

	quota->count = 0;
	quota->to_count = true;
	for (int i = find_quotas(key, owner, role, quotas); i > 0; i--)
	{
		const Counted *counted = &quotas[quota->count];
		int			mine = count_mine(counted);
		int			count;

		al_claim_quota(counted->hash, true);
		quota->hashes[quota->count++] = counted->hash;
		count = mine + count_rows(rel, counted) + count_other_rows(rel, counted) +
			al_claim_count_quota(counted->hash);
		if (count >= counted->policy->parts[counted->part])
			raise_quota(counted, count);
		if (lifetime == AL_TRANSACTION)
			al_claim_quota_parts(counted->hash, mine + 1);
	}
}

/*
 * Claim the quotas of a holding that is about to be extended.  If it has expired since,
 * it must not be extended: others may not have counted it.
 */
void
al_quota_keep(const AlKey *key, const AlOwner *owner, Oid role, AlQuota *quota)
{
	Counted		quotas[2];

	quota->count = 0;
	quota->to_count = false;
	for (int i = find_quotas(key, owner, role, quotas); i > 0; i--)
	{
		al_claim_quota(quotas[quota->count].hash, false);
		quota->hashes[quota->count] = quotas[quota->count].hash;
		quota->count++;
	}
}

/* The holding is written, or refused. */
void
al_quota_end(AlQuota *quota)
{
	while (quota->count > 0)
		al_claim_quota_end(quota->hashes[--quota->count], quota->to_count);
}
