/*-------------------------------------------------------------------------
 *
 * lock_status.c
 *		What people see: state of a key, and of all keys.
 *
 * Model: these functions read the newest committed state at every isolation
 * level, write nothing, and work in read-only transactions and on standbys.
 * The owner of a lease is a secret; it is shown to the session that presents
 * it (atomic_lock.owner) and to administrators.
 *
 * Locking rules: app_lock is opened with AccessShareLock; no claims.
 *
 * IDENTIFICATION
 *		src/lock_status.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "compat.h"
#include "funcapi.h"
#include "lock_lease.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(atomic_lock_is_held);
PG_FUNCTION_INFO_V1(atomic_lock_holder);
PG_FUNCTION_INFO_V1(atomic_lock_status);
PG_FUNCTION_INFO_V1(atomic_lock_status_all);
PG_FUNCTION_INFO_V1(atomic_lock_waiters);
PG_FUNCTION_INFO_V1(atomic_lock_longest_wait);

enum
{
	KEY, LOCKED, MODE, OWNER, HOLDER, FENCING_TOKEN, ACQUIRED_AT, EXPIRES_AT,
	TTL_REMAINING, LIFETIME, HOLDERS, WAITERS, PID, META, COLUMNS
};

/*
 * Find the live holdings of a key; the clock is read after the rows.  A meta
 * that is wanted is fetched from TOAST while the table is open.
 */
static List *
find_live(const AlKey *key, bool with_meta, TimestampTz *now)
{
	Relation	rel = al_open_app_lock(AccessShareLock);
	List	   *holdings = al_holdings_of_key(rel, key, now);
	ListCell   *cell;

	foreach(cell, with_meta ? holdings : NIL)
	{
		AlHolding  *holding = lfirst(cell);

		if (holding->meta)
			holding->meta = PG_DETOAST_DATUM(PointerGetDatum(holding->meta));
	}
	table_close(rel, AccessShareLock);
	return holdings;
}

/* Of several holdings of a key, the one to show: the caller's, or the longest */
static const AlHolding *
choose(List *holdings)
{
	ListCell   *cell;

	foreach(cell, holdings)
	{
		const AlHolding *holding = lfirst(cell);

		if (holding->owner && al_owner_is_setting(al_string(holding->owner)))
			return holding;
	}
	return al_longest(holdings);
}

/* lock_is_held(key, owner) */
Datum
atomic_lock_is_held(PG_FUNCTION_ARGS)
{
	AlKey		key;
	AlOwner		owner;
	TimestampTz now;
	bool		is_held = false;
	ListCell   *cell;

	al_key_arg(fcinfo, 0, &key);
	al_owner_arg(fcinfo, 1, &owner);
	foreach(cell, find_live(&key, false, &now))
		is_held = is_held || al_is_owned_by(lfirst(cell), &owner);
	PG_RETURN_BOOL(is_held);
}

/* lock_holder(key): label of the holder, or NULL */
Datum
atomic_lock_holder(PG_FUNCTION_ARGS)
{
	AlKey		key;
	const AlHolding *holding;
	TimestampTz now;

	al_key_arg(fcinfo, 0, &key);
	holding = choose(find_live(&key, false, &now));
	if (holding == NULL || holding->holder == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(holding->holder);
}

/* How many wait for a key; null where this server cannot know */
static void
set_waiters(const AlKey *key, Datum *values, bool *nulls)
{
	int			waiters = al_wait_count(key);

	values[WAITERS] = Int32GetDatum(waiters);
	nulls[WAITERS] = waiters < 0;
}

/* Fill in the columns of lock_status for one of the live holdings of a key */
static void
fill_columns(const AlKey *key, const AlHolding *holding, int holders, TimestampTz now,
			 bool admin, Datum *values, bool *nulls)
{
	bool		has_end = holding->expires_at != DT_NOEND;
	bool		is_known = holding->holder != NULL; /* see al_held_by_others() */

	memset(nulls, 0, COLUMNS * sizeof(bool));
	values[KEY] = PointerGetDatum(al_string_text(holding->key));
	values[LOCKED] = BoolGetDatum(true);
	values[MODE] = PointerGetDatum(al_mode_text(al_is_shared(holding)));
	values[OWNER] = PointerGetDatum(holding->owner);
	nulls[OWNER] = holding->owner == NULL ||
		(!admin && !al_owner_is_setting(al_string(holding->owner)));
	values[HOLDER] = PointerGetDatum(holding->holder);
	values[FENCING_TOKEN] = Int64GetDatum(holding->fencing_token);
	values[ACQUIRED_AT] = TimestampTzGetDatum(holding->acquired_at);
	nulls[HOLDER] = nulls[FENCING_TOKEN] = nulls[ACQUIRED_AT] = !is_known;
	values[EXPIRES_AT] = TimestampTzGetDatum(holding->expires_at);
	values[TTL_REMAINING] = al_interval_datum(has_end ? holding->expires_at - now : 0);
	nulls[EXPIRES_AT] = nulls[TTL_REMAINING] = !has_end;
	values[LIFETIME] = CStringGetTextDatum(al_lifetime_name(holding->lifetime));
	values[HOLDERS] = Int32GetDatum(holders);
	set_waiters(key, values, nulls);
	values[PID] = Int32GetDatum(holding->pid);
	nulls[PID] = holding->pid == 0; /* a lease is no backend's */
	if (holding->meta)
		values[META] = PointerGetDatum(PG_DETOAST_DATUM(PointerGetDatum(holding->meta)));
	else
		nulls[META] = true;
}

/* lock_status(key): always one row */
Datum
atomic_lock_status(PG_FUNCTION_ARGS)
{
	AlKey		key;
	List	   *holdings;
	TimestampTz now;
	Datum		values[COLUMNS];
	bool		nulls[COLUMNS];

	al_key_arg(fcinfo, 0, &key);
	holdings = find_live(&key, true, &now);
	if (holdings != NIL)
		fill_columns(&key, choose(holdings), list_length(holdings), now, al_is_admin(),
					 values, nulls);
	else
	{
		memset(nulls, true, sizeof(nulls));
		values[KEY] = PointerGetDatum(al_string_text(key.name));
		values[LOCKED] = BoolGetDatum(false);
		nulls[KEY] = nulls[LOCKED] = false;
		/* Nobody has it yet, but some may be about to. */
		if (al_wait_count(&key) > 0)
			set_waiters(&key, values, nulls);
	}
	return al_row_datum(fcinfo, COLUMNS, values, nulls);
}

/* How many share a key */
typedef struct Sharers
{
	uint64		hash;
	int			count;
} Sharers;

static HTAB *
make_sharers(void)
{
	HASHCTL		info = {.keysize = sizeof(uint64), .entrysize = sizeof(Sharers),
	.hcxt = CurrentMemoryContext};

	return hash_create("lock_status sharers", 64, &info, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

static void
count_sharer(HTAB *sharers, uint64 hash)
{
	bool		found;
	Sharers    *entry = hash_search(sharers, &hash, HASH_ENTER, &found);

	entry->count = found ? entry->count + 1 : 1;
}

/*
 * Go over all live holdings that have a row, at one moment: count those that
 * share a key, or put them all into a tuplestore.
 */
static void
scan_live(TimestampTz now, HTAB *sharers, ReturnSetInfo *rsinfo)
{
	MemoryContext row_context = AllocSetContextCreate(CurrentMemoryContext, "lock_status row",
													  ALLOCSET_SMALL_SIZES);
	Relation	rel = al_open_app_lock(AccessShareLock);
	bool		admin = al_is_admin();
	AlScan		scan;
	HeapTuple	tuple;

	al_scan_begin(&scan, rel, InvalidOid, 0, NULL);
	while (HeapTupleIsValid(tuple = al_scan_next(&scan)))
	{
		MemoryContext old_context;
		AlHolding	holding;

		al_row_peek(rel, tuple, &holding);
		if (!al_is_live(&holding, now) || (rsinfo == NULL && !al_is_shared(&holding)))
			continue;
		old_context = MemoryContextSwitchTo(row_context);
		al_row_read(rel, tuple, &holding);
		if (rsinfo)
		{
			Datum		values[COLUMNS];
			bool		nulls[COLUMNS];
			AlKey		key;
			Sharers    *entry;

			al_key_init(&key, holding.key);
			entry = al_is_shared(&holding) ?
				hash_search(sharers, &key.hash, HASH_FIND, NULL) : NULL;
			fill_columns(&key, &holding, entry ? entry->count : 1, now, admin,
						 values, nulls);
			tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
		}
		else
		{
			AlKey		key;

			al_key_init(&key, holding.key);
			count_sharer(sharers, key.hash);
		}
		MemoryContextSwitchTo(old_context);
		MemoryContextReset(row_context);
	}
	al_scan_end(&scan);
	table_close(rel, AccessShareLock);
	MemoryContextDelete(row_context);
}

/* lock_status(): a row for every live holding, judged at one moment */
Datum
atomic_lock_status_all(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	HTAB	   *sharers = make_sharers();
	TimestampTz now = GetCurrentTimestamp();
	List	   *held = list_concat(al_held_mine(NULL), al_held_shown());
	ListCell   *cell;
	bool		admin = al_is_admin();

	InitMaterializedSRF(fcinfo, 0);
	scan_live(now, sharers, NULL);
	foreach(cell, held)
	{
		AlKey		key;

		al_key_init(&key, ((AlHolding *) lfirst(cell))->key);
		if (al_is_shared(lfirst(cell)))
			count_sharer(sharers, key.hash);
	}
	scan_live(now, sharers, rsinfo);
	foreach(cell, held)
	{
		const AlHolding *holding = lfirst(cell);
		Datum		values[COLUMNS];
		bool		nulls[COLUMNS];
		AlKey		key;
		Sharers    *entry;

		al_key_init(&key, holding->key);
		entry = al_is_shared(holding) ?
			hash_search(sharers, &key.hash, HASH_FIND, NULL) : NULL;
		fill_columns(&key, holding, entry ? entry->count : 1, now, admin, values, nulls);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

static int
compare_waiters(const void *a, const void *b)
{
	const AlWaiter *x = a;
	const AlWaiter *y = b;

	if (x->hash != y->hash)
		return x->hash < y->hash ? -1 : 1;
	if (x->is_upgrade != y->is_upgrade)
		return x->is_upgrade ? -1 : 1;
	return x->id < y->id ? -1 : 1;
}

/*
 * lock_waiters(): a row for every backend of this database that waits.  Raises
 * 55000 where there is no queue to look into.
 */
Datum
atomic_lock_waiters(PG_FUNCTION_ARGS)
{
	enum
	{
		W_KEY, W_PID, W_HOLDER, W_MODE, W_SINCE, W_PLACE, W_BLOCKED_BY,
		W_BLOCKING_PID, W_COLUMNS
	};
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			count;
	int			place = 0;
	AlWaiter   *waiters = al_wait_list(&count);
	Relation	rel;

	InitMaterializedSRF(fcinfo, 0);
	if (waiters == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE), al_hide_owners(),
				 errmsg("it is not known who waits for locks"),
				 errdetail("Before PostgreSQL 17, waiters are in a queue only where atomic_lock is preloaded; here they poll."),
				 errhint("Add atomic_lock to shared_preload_libraries and restart the server.")));
	qsort(waiters, count, sizeof(AlWaiter), compare_waiters);

	rel = al_open_app_lock(AccessShareLock);
	for (int i = 0; i < count; i++)
	{
		AlWaiter   *waiter = &waiters[i];
		AlKey	   *key = al_waiter_key(rel, waiter);
		List	   *obstacles = al_waiter_obstacles(rel, waiter);
		List	   *rivals = al_claim_rivals(waiter->hash);
		const AlHolding *holding;
		Datum		values[W_COLUMNS];
		bool		nulls[W_COLUMNS] = {0};

		CHECK_FOR_INTERRUPTS();
		if (obstacles == NIL)
			obstacles = al_held_by_others(key);
		holding = choose(obstacles);
		place = i > 0 && waiters[i - 1].hash == waiter->hash ? place + 1 : 1;

		values[W_KEY] = PointerGetDatum(al_string_text(key->name));
		values[W_PID] = Int32GetDatum(waiter->pid);
		values[W_HOLDER] = CStringGetTextDatum(waiter->holder);
		values[W_MODE] = PointerGetDatum(al_mode_text(waiter->is_shared));
		values[W_SINCE] = TimestampTzGetDatum(waiter->since);
		values[W_PLACE] = Int32GetDatum(place);
		nulls[W_BLOCKED_BY] = holding == NULL || holding->holder == NULL;
		values[W_BLOCKED_BY] = holding ? PointerGetDatum(holding->holder) : 0;
		nulls[W_BLOCKING_PID] = rivals == NIL;
		values[W_BLOCKING_PID] = Int32GetDatum(rivals ? linitial_int(rivals) : 0);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	table_close(rel, AccessShareLock);
	return (Datum) 0;
}

/* app_lock_longest_wait(key): of those who wait for it now; NULL: nobody, or not known */
Datum
atomic_lock_longest_wait(PG_FUNCTION_ARGS)
{
	AlKey		key;
	TimestampTz since;

	al_key_arg(fcinfo, 0, &key);
	since = al_wait_since(&key);
	if (since == 0)
		PG_RETURN_NULL();
	PG_RETURN_DATUM(al_interval_datum(Max(GetCurrentTimestamp() - since, 0)));
}
