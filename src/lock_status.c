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
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(atomic_lock_is_held);
PG_FUNCTION_INFO_V1(atomic_lock_holder);
PG_FUNCTION_INFO_V1(atomic_lock_status);
PG_FUNCTION_INFO_V1(atomic_lock_status_all);
PG_FUNCTION_INFO_V1(atomic_lock_waiters);

enum
{
	KEY, LOCKED, MODE, OWNER, HOLDER, FENCING_TOKEN, ACQUIRED_AT, EXPIRES_AT,
	TTL_REMAINING, LIFETIME, HOLDERS, WAITERS, PID, META, COLUMNS
};

/*
 * Find the live holding of a key; the clock is read after the row.  A meta
 * that is wanted is fetched from TOAST while the table is open.
 */
static bool
find_live(const AlKey *key, bool with_meta, AlHolding *holding, TimestampTz *now)
{
	Relation	rel = al_open_app_lock(AccessShareLock);

	al_table_find(rel, key, holding);
	if (with_meta && holding->meta)
		holding->meta = PG_DETOAST_DATUM(PointerGetDatum(holding->meta));
	table_close(rel, AccessShareLock);
	*now = GetCurrentTimestamp();
	return al_is_live(holding, *now);
}

/* lock_is_held(key, owner) */
Datum
atomic_lock_is_held(PG_FUNCTION_ARGS)
{
	AlKey		key;
	AlOwner		owner;
	AlHolding	holding;
	TimestampTz now;

	al_key_arg(fcinfo, 0, &key);
	al_owner_arg(fcinfo, 1, &owner);
	PG_RETURN_BOOL(find_live(&key, false, &holding, &now) &&
				   al_string_equal(al_string(holding.owner), owner.name));
}

/* lock_holder(key): label of the holder, or NULL */
Datum
atomic_lock_holder(PG_FUNCTION_ARGS)
{
	AlKey		key;
	AlHolding	holding;
	TimestampTz now;

	al_key_arg(fcinfo, 0, &key);
	if (!find_live(&key, false, &holding, &now))
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(holding.holder);
}

/* How many wait for a key; null where this server cannot know */
static void
set_waiters(const AlKey *key, Datum *values, bool *nulls)
{
	int			waiters = al_wait_count(key);

	values[WAITERS] = Int32GetDatum(waiters);
	nulls[WAITERS] = waiters < 0;
}

/* Fill in the columns of lock_status for a live holding */
static void
fill_columns(const AlKey *key, const AlHolding *holding, TimestampTz now, bool admin,
			 Datum *values, bool *nulls)
{
	Interval   *remaining = palloc0(sizeof(Interval));
	AlString	owner = al_string(holding->owner);

	memset(nulls, 0, COLUMNS * sizeof(bool));
	remaining->time = holding->expires_at - now;

	values[KEY] = PointerGetDatum(al_string_text(holding->key));
	values[LOCKED] = BoolGetDatum(true);
	values[MODE] = PointerGetDatum(holding->mode);
	values[OWNER] = PointerGetDatum(holding->owner);
	nulls[OWNER] = !admin && !al_owner_is_setting(owner);
	values[HOLDER] = PointerGetDatum(holding->holder);
	values[FENCING_TOKEN] = Int64GetDatum(holding->fencing_token);
	values[ACQUIRED_AT] = TimestampTzGetDatum(holding->acquired_at);
	values[EXPIRES_AT] = TimestampTzGetDatum(holding->expires_at);
	values[TTL_REMAINING] = IntervalPGetDatum(remaining);
	values[LIFETIME] = CStringGetTextDatum("lease");
	values[HOLDERS] = Int32GetDatum(1);
	set_waiters(key, values, nulls);
	nulls[PID] = true;			/* a lease is no backend's */
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
	AlHolding	holding;
	TimestampTz now;
	TupleDesc	desc;
	Datum		values[COLUMNS];
	bool		nulls[COLUMNS];

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE ||
		desc->natts != COLUMNS)
		elog(ERROR, "return type must be a row");

	al_key_arg(fcinfo, 0, &key);
	if (find_live(&key, true, &holding, &now))
		fill_columns(&key, &holding, now, al_is_admin(), values, nulls);
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
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}

/* lock_status(): a row for every live holding, judged at one moment */
Datum
atomic_lock_status_all(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	MemoryContext row_context;
	Relation	rel;
	AlScan		scan;
	HeapTuple	tuple;
	TimestampTz now;
	bool		admin = al_is_admin();

	InitMaterializedSRF(fcinfo, 0);
	row_context = AllocSetContextCreate(CurrentMemoryContext, "lock_status row",
										ALLOCSET_SMALL_SIZES);

	rel = al_open_app_lock(AccessShareLock);
	al_scan_begin(&scan, rel, InvalidOid, 0, NULL);
	now = GetCurrentTimestamp();
	while (HeapTupleIsValid(tuple = al_scan_next(&scan)))
	{
		MemoryContext old_context = MemoryContextSwitchTo(row_context);
		AlHolding	holding;

		al_table_read(rel, tuple, &holding);
		if (al_is_live(&holding, now))
		{
			AlKey		key;
			Datum		values[COLUMNS];
			bool		nulls[COLUMNS];

			al_key_init(&key, holding.key);
			fill_columns(&key, &holding, now, admin, values, nulls);
			tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
		}
		MemoryContextSwitchTo(old_context);
		MemoryContextReset(row_context);
	}
	al_scan_end(&scan);
	table_close(rel, AccessShareLock);
	MemoryContextDelete(row_context);
	return (Datum) 0;
}

static int
compare_waiters(const void *a, const void *b)
{
	const AlWaiter *x = a;
	const AlWaiter *y = b;

	if (x->hash != y->hash)
		return x->hash < y->hash ? -1 : 1;
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
		AlKey		key = {.name = {waiter->key, waiter->key_length}, .hash = waiter->hash};
		AlHolding	holding;
		bool		is_held = al_waiter_holding(rel, waiter, &holding);
		Datum		values[W_COLUMNS];
		bool		nulls[W_COLUMNS] = {0};

		CHECK_FOR_INTERRUPTS();
		if (waiter->key_is_cut && ItemPointerIsValid(&holding.tid))
			key.name = holding.key;
		place = i > 0 && waiters[i - 1].hash == waiter->hash ? place + 1 : 1;

		values[W_KEY] = PointerGetDatum(al_string_text(key.name));
		values[W_PID] = Int32GetDatum(waiter->pid);
		values[W_HOLDER] = CStringGetTextDatum(waiter->holder);
		values[W_MODE] = CStringGetTextDatum(waiter->mode);
		values[W_SINCE] = TimestampTzGetDatum(waiter->since);
		values[W_PLACE] = Int32GetDatum(place);
		values[W_BLOCKED_BY] = PointerGetDatum(holding.holder);
		nulls[W_BLOCKED_BY] = !is_held;
		values[W_BLOCKING_PID] = Int32GetDatum(al_claim_rival(&key));
		nulls[W_BLOCKING_PID] = DatumGetInt32(values[W_BLOCKING_PID]) == 0;
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	table_close(rel, AccessShareLock);
	return (Datum) 0;
}
