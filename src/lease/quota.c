/*-------------------------------------------------------------------------
 *
 * quota.c
 *		How many keys a role may hold.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: a policy with max_keys_per_role limits the number of different keys that a role holds
 * under it.  For each key, one policy decides this part.  Before a holding is written that is new
 * or moves to another row, its quota is claimed and the keys in app_lock are counted.
 *
 * A ticket (lease/line.c) counts as a key of its role, since it will become one, unless its owner
 * already shares the key.
 *
 * A dirty snapshot sees both versions of a row, so the count includes what an unfinished
 * transaction has acquired, since it may commit, and what it has released, since it may roll
 * back.  A transaction with holdings without a row counts as one key, by a lock that it keeps.
 *
 * Locking rules: all quotas of a call are claimed at once, in the order of their hashes, after
 * the seats of its keys, until the rows are written.  The call waits for no other claim
 * meanwhile.  An extension claims nothing: a count may miss a lease that is extended in the
 * instant of its end.
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
#include "claim/holding.h"
#include "claim/tx_holdings.h"
#include "lease/attempt.h"
#include "lease/quota.h"
#include "lease/state.h"
#include "shmem/tickets.h"
#include "table/app_lock.h"
#include "table/columns.h"
#include "table/row.h"
#include "table/scan.h"
#include "table/tickets.h"

/* A quota, and the keys that are about to be held under it */
typedef struct Counted
{
	const AlPolicy *policy;
	Oid			role;
	uint64		hash;			/* the claim is on it */
	const AlKey **keys;			/* the new ones, sorted by name */
	int			new_keys;
	bool		in_transaction; /* some of them will have no row */
	const AlKey *ticket;		/* of a new ticket; or NULL */
	int			tickets;		/* of the role; set by the count */
} Counted;

static uint64
quota_hash(const Counted *quota)
{
	StringInfoData name;
	AlHash		hash;

	initStringInfo(&name);
	appendBinaryStringInfo(&name, (const char *) &quota->role, sizeof(Oid));
	appendBinaryStringInfo(&name, quota->policy->prefix.data, quota->policy->prefix.len);
	al_hash_for(AL_HASH_QUOTAS, (AlString) {name.data, name.len}, &hash);
	pfree(name.data);
	return hash.words[0];
}

/* Note the quota of a use, if a policy sets one for its key */
static List *
add_use(List *quotas, const AlQuotaUse *use, int max_keys)
{
	const AlPolicy *policy = al_policy_for(use->key->name, AL_MAX_KEYS_PER_ROLE);
	Counted    *quota = NULL;
	ListCell   *cell;

	if (policy == NULL)
		return quotas;
	foreach(cell, quotas)
	{
		Counted    *other = lfirst(cell);

		if (other->policy == policy && other->role == use->role)
			quota = other;
	}
	if (quota == NULL)
	{
		quota = palloc0(sizeof(Counted));
		quota->policy = policy;
		quota->role = use->role;
		quota->hash = quota_hash(quota);
		quota->keys = palloc(max_keys * sizeof(AlKey *));
		quotas = lappend(quotas, quota);
	}
	if (use->is_new && use->is_ticket)
		quota->ticket = use->key;
	else if (use->is_new)
		quota->keys[quota->new_keys++] = use->key;
	quota->in_transaction = quota->in_transaction || use->in_transaction;
	return quotas;
}

static int
compare_hashes(const ListCell *a, const ListCell *b)
{
	uint64		hash_a = ((const Counted *) lfirst(a))->hash;
	uint64		hash_b = ((const Counted *) lfirst(b))->hash;

	return hash_a < hash_b ? -1 : hash_a > hash_b;
}

static int
compare_names(const void *a, const void *b)
{
	return al_string_compare(*(const AlString *) a, (*(const AlKey *const *) b)->name);
}

/* Does the quota count this key, and is it none of the new keys? */
static bool
is_covered(const Counted *quota, AlString key)
{
	return al_policy_for(key, AL_MAX_KEYS_PER_ROLE) == quota->policy &&
		bsearch(&key, quota->keys, quota->new_keys, sizeof(AlKey *), compare_names) == NULL;
}

/* Begin to read rows in the order of keys, by an index on role and key if there is one */
static SysScanDesc
begin_role_rows(Relation rel, const Counted *quota, Snapshot dirty)
{
	static const AttrNumber columns[] = {Anum_app_lock_role, Anum_app_lock_key};
	ScanKeyData keys[2];
	Oid			index = al_scan_index(rel, lengthof(columns), columns);
	int			count = 0;

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
has_key(List *holdings, AlString key)
{
	ListCell   *cell;

	foreach(cell, holdings)
	{
		if (al_string_equal(((AlHolding *) lfirst(cell))->key, key))
			return true;
	}
	return false;
}

/* The holdings of this transaction without a row, each key once: AlHolding * */
static List *
find_mine(const Counted *quota)
{
	List	   *mine = NIL;
	ListCell   *cell;

	foreach(cell, al_tx_mine(NULL))
	{
		const AlHolding *holding = lfirst(cell);

		if (holding->role == quota->role && is_covered(quota, holding->key) &&
			!has_key(mine, holding->key))
			mine = lappend(mine, lfirst(cell));
	}
	return mine;
}

/* How many keys are held by rows?  Keys in the list "mine" are not counted. */
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
	scan = begin_role_rows(rel, quota, &dirty);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		AlHolding	row;

		CHECK_FOR_INTERRUPTS();
		al_row_peek(rel, tuple, &row);
		AL_TEST_POINT("counting-keys");
		if (!al_string_begins(row.key, quota->policy->prefix))
		{
			if (scan->irel)
				break;
			continue;			/* not in order: ignore_system_indexes is on */
		}
		if ((row.key.len == last_length && memcmp(row.key.data, last, last_length) == 0) ||
			row.role != quota->role || !al_is_live(&row, now) || !is_covered(quota, row.key))
			continue;
		last_length = Min(row.key.len, AL_MAX_KEY_BYTES);
		memcpy(last, row.key.data, last_length);
		count += !has_key(mine, row.key);
	}
	systable_endscan(scan);
	return count;
}

static bool
owner_holds(Relation rel, AlString name, AlString owner_name)
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

/* Count the role's tickets for keys of the quota, but not "owner"'s for keys about to be held */
static int
count_tickets(Relation rel, const Counted *quota, const AlOwner *owner)
{
	int			count = 0;
	ListCell   *cell;

	if (!al_tickets_any())
		return 0;
	foreach(cell, al_tickets_list(quota->policy->prefix, false, true, PG_INT32_MAX))
	{
		const AlTicket *ticket = lfirst(cell);

		CHECK_FOR_INTERRUPTS();
		count += ticket->role == quota->role &&
			al_policy_for(ticket->key, AL_MAX_KEYS_PER_ROLE) == quota->policy &&
			(is_covered(quota, ticket->key) ||
			 !al_owner_equal(al_string(ticket->owner), owner->name)) &&
			!owner_holds(rel, ticket->key, al_string(ticket->owner));
	}
	return count;
}

/* Raise 53400, naming the first new key for which no room is left beside "held" keys */
static void
raise_quota(const Counted *quota, int held)
{
	int			limit = (int) quota->policy->parts[AL_MAX_KEYS_PER_ROLE];
	const AlKey *key = quota->ticket ? quota->ticket : quota->keys[Max(limit - held, 0)];
	char	   *role = al_role_name(quota->role);

	ereport(ERROR,
			(al_errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("lock \"%s\" would be one key too many for its role", al_display(key->name)),
			 errdetail("Role \"%s\" holds %d of at most %d keys, by the policy for prefix \"%s\".%s",
					   role ? al_display(al_cstring(role)) : "?", held, limit,
					   al_display(quota->policy->prefix),
					   quota->tickets == 0 ? "" :
					   psprintf("  Places in line count, too: %d.", quota->tickets)),
			 errhint("Release other locks, or ask an administrator to raise max_keys_per_role.")));
}

/* Count the keys under a claimed quota; raise 53400 if the new ones are too many */
static void
count_keys(Relation rel, Counted *quota, const AlOwner *owner)
{
	List	   *mine = find_mine(quota);
	int			held = list_length(mine) + al_claim_count_quota(quota->hash) +
		count_rows(rel, quota, mine);

	Assert(quota->new_keys > 0 || quota->ticket != NULL);
	quota->tickets = count_tickets(rel, quota, owner);
	held += quota->tickets;
	al_trace(DEBUG3, "quota of prefix \"%s\": %d keys held, %d requested",
			 al_display(quota->policy->prefix), held, quota->new_keys + (quota->ticket != NULL));
	if (held + quota->new_keys + (quota->ticket != NULL) > quota->policy->parts[AL_MAX_KEYS_PER_ROLE])
		raise_quota(quota, held);
	/* From now on, other sessions count this transaction as one key. */
	if (quota->in_transaction)
		al_claim_quota(quota->hash, AccessShareLock);
}

/*
 * Claim the quotas of holdings that are about to be written for an owner, sorted by key, until
 * al_quota_end().  Raises 53400 if a role would hold too many keys, and errors of lock waits.
 */
List *
al_quota_claim(Relation rel, const AlQuotaUse *uses, int count, const AlOwner *owner)
{
	List	   *quotas = NIL;
	ListCell   *cell;

	for (int i = 1; i < count; i++)
		Assert(al_string_compare(uses[i - 1].key->name, uses[i].key->name) < 0);
	for (int i = 0; i < count; i++)
		quotas = add_use(quotas, &uses[i], count);
	list_sort(quotas, compare_hashes);
	AL_TEST_POINT("before-quota");
	foreach(cell, quotas)
		al_claim_quota(((Counted *) lfirst(cell))->hash, ExclusiveLock);
	if (quotas != NIL)
		AL_TEST_POINT("before-count");
	foreach(cell, quotas)
	{
		if (((Counted *) lfirst(cell))->new_keys > 0 || ((Counted *) lfirst(cell))->ticket)
			count_keys(rel, lfirst(cell), owner);
	}
	AL_TEST_POINT("quota-claimed");
	return quotas;
}

/* The same for a ticket; NIL if the owner holds the key, since the ticket does not count */
List *
al_quota_claim_ticket(Relation rel, const AlKey *key, const AlOwner *owner, Oid role)
{
	AlQuotaUse	use = {.key = key, .role = role, .is_new = true, .is_ticket = true};

	if (al_policy_for(key->name, AL_MAX_KEYS_PER_ROLE) == NULL || owner_holds(rel, key->name, owner->name))
		return NIL;
	return al_quota_claim(rel, &use, 1, owner);
}

/* Raise 53400 if a quota would also refuse an attempt that was refused for another reason */
void
al_quota_check(Relation rel, const AlAttempt *attempt)
{
	const AlAcquire *request = attempt->request;
	AlQuotaUse	use = {.key = attempt->key, .role = request->role, .is_new = true};

	if (al_policy_any() && attempt->own == NULL && !request->is_convert)
		al_quota_end(al_quota_claim(rel, &use, 1, &request->owner));
}

List *
al_quota_claim_attempts(Relation rel, const AlAttempt *attempts, int count)
{
	AlQuotaUse *uses;
	int			used = 0;

	if (!al_policy_any())
		return NIL;
	uses = palloc0(count * sizeof(AlQuotaUse));
	for (int i = 0; i < count; i++)
	{
		const AlHolding *own = attempts[i].own;
		/* Others have counted all keys of its transaction as one. */
		bool		is_made_lease = own && own->lifetime == AL_TRANSACTION &&
			attempts[i].lifetime != AL_TRANSACTION && !attempts[i].request->is_convert;

		if (attempts[i].result->outcome == AL_REACQUIRED && !is_made_lease)
			continue;
		uses[used].key = attempts[i].key;
		uses[used].role = own ? own->role : attempts[i].request->role;
		uses[used].is_new = own == NULL || is_made_lease;
		uses[used++].in_transaction = attempts[i].lifetime == AL_TRANSACTION;
	}
	return al_quota_claim(rel, uses, used, &attempts[0].request->owner);
}

/* Give back the quotas: the holdings are written, or refused */
void
al_quota_end(List *quotas)
{
	ListCell   *cell;

	foreach(cell, quotas)
		al_claim_quota_end(((Counted *) lfirst(cell))->hash);
}
