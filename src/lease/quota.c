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
 * A place in line (lease/line.c) counts as a key of its role, since it will be one, unless
 * its owner shares the key already.
 *
 * What an unfinished transaction has acquired counts, since it may commit, and what it
 * has released counts, too, since it may roll back.  A dirty snapshot sees both versions
 * of a row.  Holdings without a row are counted by their claims, which do not tell keys
 * apart.
 *
 * Locking rules: whoever writes a live holding has its quotas claimed from before it is
 * judged for the last time until it is written: exclusively to count, where the holding
 * is new, and else so that a count meanwhile cannot miss a holding that expires or
 * moves to another row.  All quotas of a call are claimed at once, in the order of their
 * hashes, after the places of its keys.  Meanwhile nobody waits for another claim.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/errors.h"
#include "base/hash.h"
#include "base/key.h"
#include "base/owner.h"
#include "base/policy.h"
#include "base/str.h"
#include "base/testpoint.h"
#include "claim/claim.h"
#include "claim/held.h"
#include "claim/holding.h"
#include "lease/attempt.h"
#include "lease/quota.h"
#include "lease/state.h"
#include "shmem/tickets.h"
#include "table/app_lock.h"
#include "table/columns.h"
#include "table/owner_rows.h"
#include "table/row.h"
#include "table/scan.h"
#include "table/tickets.h"

/* A quota, and what is to be written under it */
typedef struct Counted
{
	const AlPolicy *policy;
	AlPolicyPart part;
	const AlOwner *owner;		/* whose keys; NULL: those of the role */
	Oid			role;
	uint64		hash;			/* what is claimed */
	int			new_keys;
	const AlKey **keys;			/* to be held, in order */
	int			in_transaction; /* so many of them without a row */
	const AlOwner *taker;		/* who is to hold them */
	const AlKey *place;			/* where a place in line is to be taken; or NULL */
	int			tickets;		/* counted: places in line of the role */
} Counted;

static uint64
hash_of(const Counted *quota)
{
	StringInfoData name;
	AlString	string;
	AlHash		hash;

	initStringInfo(&name);
	appendBinaryStringInfo(&name, (const char *) &quota->part, sizeof(quota->part));
	appendBinaryStringInfo(&name, (const char *) &quota->policy->prefix.len, sizeof(int));
	appendBinaryStringInfo(&name, quota->policy->prefix.data, quota->policy->prefix.len);
	if (quota->owner)
		appendBinaryStringInfo(&name, quota->owner->name.data, quota->owner->name.len);
	else
		appendBinaryStringInfo(&name, (const char *) &quota->role, sizeof(Oid));
	string.data = name.data;
	string.len = name.len;
	al_hash_for(AL_HASH_QUOTAS, string, &hash);
	pfree(name.data);
	return hash.words[0];
}

/* Note a quota that a use is under, if it is under one */
static int
add_use(Counted *quotas, int count, int max_keys, const AlQuotaUse *use, AlPolicyPart part)
{
	const AlPolicy *policy = al_policy_for(use->key->name, part);
	const AlOwner *owner = part == AL_MAX_KEYS_PER_OWNER ? use->owner : NULL;
	Counted    *quota = quotas;

	if (policy == NULL || (owner && owner->name.len == 0))
		return count;
	while (quota < quotas + count &&
		   (quota->policy != policy || quota->part != part || quota->owner != owner ||
			(owner == NULL && quota->role != use->role)))
		quota++;
	if (quota == quotas + count)
	{
		memset(quota, 0, sizeof(Counted));
		quota->policy = policy;
		quota->part = part;
		quota->owner = owner;
		quota->role = use->role;
		quota->taker = use->owner;
		quota->keys = palloc(max_keys * sizeof(AlKey *));
		quota->hash = hash_of(quota);
		count++;
	}
	if (use->is_new && use->is_place)
		quota->place = use->key;
	else if (use->is_new)
	{
		quota->keys[quota->new_keys++] = use->key;
		quota->in_transaction += use->lifetime == AL_TRANSACTION;
	}
	return count;
}

static int
compare_claims(const void *a, const void *b)
{
	uint64		hash_a = ((const AlQuotaClaim *) a)->hash;
	uint64		hash_b = ((const AlQuotaClaim *) b)->hash;

	return hash_a < hash_b ? -1 : hash_a > hash_b;
}

static int
compare_names(const void *a, const void *b)
{
	return al_string_compare(*(const AlString *) a, (*(const AlKey *const *) b)->name);
}

/* Is a key one of those that the quota is for, other than those to be held? */
static bool
is_counted(const Counted *quota, AlString key)
{
	return al_policy_for(key, quota->part) == quota->policy &&
		bsearch(&key, quota->keys, quota->new_keys, sizeof(AlKey *), compare_names) == NULL;
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
		int64		first = al_owner_first_hash(quota->owner->name);

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
	bool		is_null;
	Datum		value = heap_getattr(tuple, Anum_app_lock_owner, RelationGetDescr(rel), &is_null);

	return !is_null && al_owner_equal(al_string(DatumGetTextPP(value)), owner->name);
}

/* What this transaction holds without a row, each key once: AlHolding * */
static List *
find_mine(const Counted *quota)
{
	List	   *mine = NIL;
	ListCell   *cell;
	ListCell   *other;

	foreach(cell, al_held_mine(NULL))
	{
		AlHolding  *holding = lfirst(cell);
		bool		is_known = !is_counted(quota, holding->key) ||
			(quota->owner ? !al_is_owned_by(holding, quota->owner) : holding->role != quota->role);

		foreach(other, mine)
			is_known = is_known || al_string_equal(((AlHolding *) lfirst(other))->key, holding->key);
		if (!is_known)
			mine = lappend(mine, holding);
	}
	return mine;
}

/* How many keys are held by rows, those left out that are in the list without a row */
static int
count_rows(Relation rel, const Counted *quota, List *mine)
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
		ListCell   *cell;
		bool		is_mine = false;

		CHECK_FOR_INTERRUPTS();
		al_row_peek(rel, tuple, &row);
		AL_TEST_POINT("counting-keys");
		if (quota->owner == NULL && !al_string_begins(row.key, quota->policy->prefix))
		{
			if (scan->irel)
				break;
			continue;			/* somebody has turned the indexes off */
		}
		if ((row.key.len == last_length && memcmp(row.key.data, last, last_length) == 0) ||
			(quota->owner ? !is_of_owner(rel, tuple, quota->owner) : row.role != quota->role) ||
			!al_is_live(&row, now) || !is_counted(quota, row.key))
			continue;
		last_length = Min(row.key.len, AL_MAX_KEY_BYTES);
		memcpy(last, row.key.data, last_length);
		foreach(cell, mine)
			is_mine = is_mine || al_string_equal(((AlHolding *) lfirst(cell))->key, row.key);
		count += !is_mine;
	}
	systable_endscan(scan);
	return count;
}

/*
 * How many keys an owner holds by rows of which the index of owners does not know: one
 * that acquire generated before there was a quota
 */
static int
count_other_rows(Relation rel, const Counted *quota)
{
	TimestampTz now = GetCurrentTimestamp();
	int			count = 0;
	ListCell   *cell;

	if (quota->owner == NULL || quota->owner->generated ||
		!al_owner_looks_generated(quota->owner->name))
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

/* Does an owner hold a key, so that a place in line for it is no further key? */
static bool
is_held(Relation rel, AlString name, AlString owner_name)
{
	AlKey		key;
	AlOwner		owner;
	AlState		state;
	AlHolding  *own;
	AlResult	result;

	al_key_init(&key, name);
	al_owner_init(&owner, owner_name);
	al_look(rel, &key, &owner, AL_LOOK_OWN, &state);
	return al_judge_owner(&state, &owner, &result, &own) == AL_RELEASED;
}

/*
 * How many places in line a role has, for keys of the quota?  What is to be held takes the
 * place of its owner's ticket.
 */
static int
count_tickets(Relation rel, const Counted *quota)
{
	int			count = 0;
	ListCell   *cell;

	if (quota->owner || !al_tickets_any())
		return 0;
	foreach(cell, al_tickets_list(quota->policy->prefix, true))
	{
		const AlTicket *ticket = lfirst(cell);

		CHECK_FOR_INTERRUPTS();
		count += ticket->role == quota->role &&
			al_policy_for(ticket->key, quota->part) == quota->policy &&
			(is_counted(quota, ticket->key) ||
			 !al_owner_equal(al_string(ticket->owner), quota->taker->name)) &&
			!is_held(rel, ticket->key, al_string(ticket->owner));
	}
	return count;
}

/* Raise 53400 for the key that is one too many, where so many are held besides */
static void
raise_quota(const Counted *quota, int held)
{
	int			limit = (int) quota->policy->parts[quota->part];
	int			granted = quota->place ? 0 : Max(limit - held, 0);
	const AlKey *key = quota->place ? quota->place : quota->keys[granted];
	char	   *role = al_role_name(quota->role);

	ereport(ERROR,
			(al_errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("lock \"%s\" would be one key too many for its %s",
					al_display(key->name), quota->owner ? "owner" : "role"),
			 quota->owner ?
			 errdetail("The owner holds %d of at most %d keys, by the policy for prefix \"%s\".",
					   held + granted, limit, al_display(quota->policy->prefix)) :
			 errdetail("Role \"%s\" holds %d of at most %d keys, by the policy for prefix \"%s\".%s",
					   role ? al_display(al_cstring(role)) : "?", held + granted, limit,
					   al_display(quota->policy->prefix),
					   quota->tickets == 0 ? "" :
					   psprintf("  Places in line count, too: %d.", quota->tickets)),
			 errhint("Release other locks, or ask an administrator to raise %s.",
					 quota->owner ? "max_keys_per_owner" : "max_keys_per_role")));
}

/* Count what is held under a quota that is claimed, and take what is to be held */
static void
count_keys(Relation rel, Counted *quota)
{
	List	   *mine = find_mine(quota);
	int			held = list_length(mine);

	held += al_claim_count_quota(quota->hash);
	held += count_rows(rel, quota, mine);
	held += count_other_rows(rel, quota);
	quota->tickets = count_tickets(rel, quota);
	held += quota->tickets;
	if (held + quota->new_keys +
		(quota->place && !is_held(rel, quota->place->name, quota->taker->name)) >
		quota->policy->parts[quota->part])
		raise_quota(quota, held);
	if (quota->in_transaction > 0)
		al_claim_quota_parts(quota->hash, list_length(mine) + quota->in_transaction);
}

/*
 * Claim the quotas of holdings that are about to be written, whose keys are in order.
 * Raises 53400 where an owner or a role would hold more keys than it may.
 */
void
al_quota_claim(Relation rel, const AlQuotaUse *uses, int count, AlQuota *quota)
{
	Counted    *quotas = palloc(2 * count * sizeof(Counted));
	int			found = 0;

	for (int i = 0; i < count; i++)
	{
		found = add_use(quotas, found, count, &uses[i], AL_MAX_KEYS_PER_OWNER);
		found = add_use(quotas, found, count, &uses[i], AL_MAX_KEYS_PER_ROLE);
	}
	quota->count = 0;
	quota->claims = palloc((found + 1) * sizeof(AlQuotaClaim));
	for (int i = 0; i < found; i++)
	{
		quota->claims[i].hash = quotas[i].hash;
		quota->claims[i].mode = quotas[i].new_keys > 0 || quotas[i].place ? ExclusiveLock : RowShareLock;
	}
	qsort(quota->claims, found, sizeof(AlQuotaClaim), compare_claims);
	AL_TEST_POINT("before-quota");
	for (; quota->count < found; quota->count++)
		al_claim_quota(quota->claims[quota->count].hash, quota->claims[quota->count].mode);
	if (found > 0)
		AL_TEST_POINT("before-count");
	for (int i = 0; i < found; i++)
	{
		if (quotas[i].new_keys > 0 || quotas[i].place)
			count_keys(rel, &quotas[i]);
	}
	AL_TEST_POINT("quota-claimed");
}

/* Raise 53400 where an attempt that is refused would be refused by a quota, too. */
void
al_quota_check(Relation rel, const AlAttempt *attempt)
{
	/* As a lease: nothing is held yet that others would have to count. */
	AlQuotaUse	use = {.key = attempt->key, .owner = &attempt->request->owner,
	.role = attempt->request->role, .is_new = true, .lifetime = AL_LEASE};
	AlQuota		quota;

	if (!al_policy_any() || attempt->own || attempt->request->is_convert)
		return;
	al_quota_claim(rel, &use, 1, &quota);
	al_quota_end(&quota);
}

/*
 * Claim the quotas of attempts that are granted, in the order of keys.  False: what an
 * owner had has expired since it was judged, and nothing is claimed.
 */
bool
al_quota_claim_attempts(Relation rel, AlAttempt *attempts, int count, AlQuota *quota)
{
	AlQuotaUse *uses;
	TimestampTz now;

	quota->count = 0;
	if (!al_policy_any())
		return true;
	uses = palloc0(count * sizeof(AlQuotaUse));
	for (int i = 0; i < count; i++)
	{
		AlAcquire  *request = attempts[i].request;
		const AlHolding *own = attempts[i].own;

		/* Others may count what it gets as soon as it has a name. */
		if (request->owner.generated && request->owner.name.len == 0 &&
			al_policy_for(attempts[i].key->name, AL_MAX_KEYS_PER_OWNER))
		{
			request->owner.in_index = true;
			al_owner_generate(&request->owner, InvalidBlockNumber);
		}

		uses[i].key = attempts[i].key;
		uses[i].owner = &request->owner;
		uses[i].role = own ? own->role : request->role;
		uses[i].is_new = own == NULL;
		uses[i].lifetime = request->lifetime;
	}
	al_quota_claim(rel, uses, count, quota);
	if (quota->count == 0)
		return true;
	now = GetCurrentTimestamp();
	for (int i = 0; i < count; i++)
	{
		if (attempts[i].own && !al_is_live(attempts[i].own, now))
		{
			al_quota_end(quota);
			al_attempt_lost(&attempts[i]);
			return false;
		}
	}
	return true;
}

/* The holdings are written, or refused. */
void
al_quota_end(AlQuota *quota)
{
	while (quota->count > 0)
	{
		const AlQuotaClaim *claim = &quota->claims[--quota->count];

		al_claim_quota_end(claim->hash, claim->mode);
	}
}
