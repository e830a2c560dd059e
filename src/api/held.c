/*-------------------------------------------------------------------------
 *
 * held.c
 *		lock_held(), lock_heartbeat(): list and extend the holdings of an owner.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: an owner that comes back, after a restart or on another connection, lists its
 * holdings.  table/owner_rows.c finds its rows; holdings of transactions have no rows.  A
 * heartbeat extends key by key and answers for each: one lost lease must not keep the
 * others from being extended.
 *
 * Locking rules: lock_held() opens app_lock with AccessShareLock and claims nothing.
 * lock_heartbeat() claims as lock_extend() does, in the order of keys.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "atomic_lock.h"
#include "api/answer.h"
#include "api/args.h"
#include "base/key.h"
#include "base/partition.h"
#include "base/str.h"
#include "claim/holding.h"
#include "claim/tx_holdings.h"
#include "lease/extend.h"
#include "lease/state.h"
#include "lease/terms.h"
#include "table/catalog.h"
#include "table/owner_rows.h"

/* Fill in the end of a lease, and the time left at "now" */
static void
put_end(TimestampTz end, TimestampTz now, Datum *values, bool *nulls, int expires_at,
		int ttl_remaining)
{
	nulls[expires_at] = nulls[ttl_remaining] = end == DT_NOEND;
	if (end == DT_NOEND)
		return;
	values[expires_at] = TimestampTzGetDatum(end);
	values[ttl_remaining] = al_interval_datum(end - now);
}

/* lock_held(owner): a row for each key.  Transactions come before rows: one may become a row. */
AL_FUNCTION(atomic_lock_held)
{
	enum
	{
		KEY, MODE, LIFETIME, FENCING_TOKEN, ACQUIRED_AT, EXPIRES_AT, TTL_REMAINING, META,
		COLUMNS
	};
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Relation	rel = al_open_app_lock(AccessShareLock);
	List	   *transactions = list_concat(al_tx_mine(NULL), al_tx_shown());
	AlOwner		owner;
	TimestampTz now;
	ListCell   *cell;

	InitMaterializedSRF(fcinfo, 0);
	al_owner_arg(fcinfo, 0, &owner);
	foreach(cell, al_owned_live(al_owned_in_order(rel, &owner, transactions), &now))
	{
		const AlHolding *holding = ((AlOwned *) lfirst(cell))->row;
		Datum		values[COLUMNS];
		bool		nulls[COLUMNS] = {0};

		values[KEY] = PointerGetDatum(al_string_text(holding->key));
		values[MODE] = PointerGetDatum(al_mode_text(al_is_shared(holding)));
		values[LIFETIME] = CStringGetTextDatum(al_lifetime_name(holding->lifetime));
		values[FENCING_TOKEN] = Int64GetDatum(holding->fencing_token);
		values[ACQUIRED_AT] = TimestampTzGetDatum(holding->acquired_at);
		put_end(holding->expires_at, now, values, nulls, EXPIRES_AT, TTL_REMAINING);
		nulls[META] = holding->meta == NULL;
		if (holding->meta)
			values[META] = PointerGetDatum(PG_DETOAST_DATUM(PointerGetDatum(holding->meta)));
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	table_close(rel, AccessShareLock);
	return (Datum) 0;
}

/* Extend an owner's holding of a key, and add a row with the outcome */
static bool
beat(ReturnSetInfo *rsinfo, Relation rel, const AlKey *key, const AlOwner *owner,
	 const AlHolding *seen, int64 ttl)
{
	enum
	{
		KEY, STATUS, EXPIRES_AT, TTL_REMAINING, COLUMNS
	};
	AlResult	result = {.outcome = AL_DENIED};
	Datum		values[COLUMNS];
	bool		nulls[COLUMNS] = {0};
	bool		is_held;

	CHECK_FOR_INTERRUPTS();
	if (al_terms_is_admitted(key))
		al_lease_extend(rel, key, owner, seen, al_terms_cap(key, ttl), &result);
	is_held = result.outcome == AL_EXTENDED || result.outcome == AL_LIFETIME_EXCEEDED;
	values[KEY] = PointerGetDatum(al_string_text(key->name));
	values[STATUS] = CStringGetTextDatum(al_status_word(&result));
	put_end(is_held ? result.holding.expires_at : DT_NOEND, result.at, values, nulls,
			EXPIRES_AT, TTL_REMAINING);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	return result.outcome == AL_EXTENDED;
}

/* lock_heartbeat(keys, owner, ttl): a row for each key */
AL_FUNCTION(atomic_lock_heartbeat)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Relation	rel = al_open_for_writing("lock_heartbeat()");
	AlKey	   *keys = NULL;
	int			count = 0;
	AlOwner		owner;
	int64		ttl;
	bool		wrote = false;
	List	   *all = NIL;
	TimestampTz now;
	ListCell   *cell;

	InitMaterializedSRF(fcinfo, 0);
	if (!PG_ARGISNULL(0))
		keys = al_keys_arg(fcinfo, 0, &count);
	al_owner_arg(fcinfo, 1, &owner);
	ttl = al_ttl_arg(fcinfo, 2);
	al_terms_check_all(ttl);

	for (int i = 0; i < count; i++)
		wrote |= beat(rsinfo, rel, &keys[i], &owner, NULL, ttl);
	if (keys == NULL)
		all = al_owned_live(al_owned_in_order(rel, &owner, al_tx_mine(NULL)), &now);
	foreach(cell, all)
	{
		const AlOwned *owned = lfirst(cell);

		if (al_is_elsewhere(owned->key.name))
			al_raise_partition(owned->key.name, true);
		wrote |= beat(rsinfo, rel, &owned->key, &owner, al_owned_row(owned), ttl);
	}
	table_close(rel, wrote ? NoLock : RowExclusiveLock);
	return (Datum) 0;
}
