/*-------------------------------------------------------------------------
 *
 * lock.c
 *		SQL-callable functions for applications: check, call, answer.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: each function checks its arguments, opens app_lock, calls one verb of lease/, and
 * turns the outcome into an answer, or into the error that lease/report.c has for it.  No
 * function here is strict: a NULL argument without a meaning raises 22004, because a
 * caller could take a NULL answer for "false".
 *
 * Locking rules: app_lock is opened with RowExclusiveLock.  The lock is released at once
 * if nothing was written or claimed, and otherwise kept until commit, so that the
 * extension cannot be dropped and created again under a claim.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "atomic_lock.h"
#include "api/answer.h"
#include "api/args.h"
#include "base/errors.h"
#include "base/key.h"
#include "base/partition.h"
#include "base/path.h"
#include "base/settings.h"
#include "claim/holding.h"
#include "claim/tx_holdings.h"
#include "lease/acquire.h"
#include "lease/extend.h"
#include "lease/path.h"
#include "lease/release.h"
#include "lease/report.h"
#include "lease/state.h"
#include "lease/terms.h"
#include "lease/transfer.h"
#include "table/catalog.h"
#include "table/owner_rows.h"

/* Close app_lock, and keep its lock to the end of the transaction if that "wrote" */
static void
close_app_lock(Relation rel, bool wrote)
{
	table_close(rel, wrote ? NoLock : RowExclusiveLock);
}

/* The arguments that all functions that acquire have: from ttl to meta, for paths without mode */
static void
request_args(FunctionCallInfo fcinfo, AlLifetime lifetime, bool has_mode, AlAcquire *request)
{
	int			wait_argno = has_mode ? 4 : 3;

	memset(request, 0, sizeof(AlAcquire));
	request->lifetime = lifetime;
	request->ttl = al_ttl_arg(fcinfo, 1);
	al_owner_arg_or_new(fcinfo, 2, &request->owner);
	request->is_shared = has_mode && al_mode_arg(fcinfo, 3);
	request->wait = al_wait_arg(fcinfo, wait_argno);
	request->on_reacquire = al_on_reacquire;
	request->role = GetUserId();
	request->holder = al_holder_arg(fcinfo, wait_argno + 1);
	request->default_holder = al_holder_default;
	request->meta = al_meta_arg(fcinfo, wait_argno + 2);
	/* The code of a table's owner, as in REINDEX, must leave no lock in the session that runs it. */
	if (lifetime == AL_SESSION && InSecurityRestrictedOperation())
		ereport(ERROR,
				(al_errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("cannot acquire a lock with lifetime \"session\" within security-restricted operation")));
	if (lifetime == AL_TRANSACTION && request->ttl != AL_NO_TTL)
		al_raise_no_lease("ttl");
	if (lifetime == AL_TRANSACTION && request->meta)
		al_raise_no_lease("meta");
}

/*
 * lock_[try_]acquire(key, ttl, owner, mode, wait, holder, meta, lifetime, max_holders,
 * on_reacquire)
 */
static Datum
acquire(FunctionCallInfo fcinfo, const char *function, bool raise)
{
	AlKey		key;
	AlAcquire	request;
	AlResult	result;
	Relation	rel = al_open_for_writing(function);
	bool		acquired;

	al_key_arg(fcinfo, 0, &key);
	request_args(fcinfo, al_lifetime_arg(fcinfo, 7), true, &request);
	request.max_holders = al_max_holders_arg(fcinfo, 8, request.is_shared);
	request.on_reacquire = al_on_reacquire_arg(fcinfo, 9);
	al_terms_set_wait(&key, 1, &request);

	al_lease_acquire(&rel, &key, &request, &result);
	acquired = al_is_granted(&result);
	if (!acquired && raise)
		al_raise(&key, &result);
	close_app_lock(rel, acquired);
	return al_grant_datum(fcinfo, &key, &request.owner, &result);
}

AL_FUNCTION(atomic_lock_acquire)
{
	return acquire(fcinfo, "lock_acquire()", true);
}

AL_FUNCTION(atomic_lock_try_acquire)
{
	return acquire(fcinfo, "lock_try_acquire()", false);
}

/*
 * Acquire a set; arguments as in al_lease_acquire_all().  Returns a row for each key, or if
 * the set is refused, only the row of the refused key.
 */
static Datum
acquire_set(FunctionCallInfo fcinfo, Relation rel, const AlKey *keys, int count,
			AlAcquire *requests, const bool *is_shared, bool raise)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	AlResult   *results = palloc(count * sizeof(AlResult));
	int			refused;

	InitMaterializedSRF(fcinfo, 0);
	refused = al_lease_acquire_all(&rel, keys, count, requests, is_shared, results);
	Assert(refused < count);
	if (refused >= 0 && raise)
		al_raise(&keys[refused], &results[refused]);
	close_app_lock(rel, refused < 0);
	for (int i = 0; i < count; i++)
	{
		Datum		values[AL_GRANT_COLUMNS];
		bool		nulls[AL_GRANT_COLUMNS];

		if (refused >= 0 && i != refused)
			continue;
		al_grant_columns(&keys[i], &requests[0].owner, &results[i], values, nulls);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* lock_[try_]acquire_all(keys, ttl, owner, mode, wait, holder, meta, max_holders, modes) */
static Datum
acquire_all(FunctionCallInfo fcinfo, const char *function, bool raise)
{
	AlKey	   *keys;
	int			count;
	bool	   *is_shared;
	bool		any_shared = false;
	AlAcquire	requests[2];	/* exclusive and shared */
	Relation	rel = al_open_for_writing(function);

	keys = al_keys_arg(fcinfo, 0, &count);
	request_args(fcinfo, AL_LEASE, true, &requests[0]);
	is_shared = al_modes_arg(fcinfo, 8, 0, keys, count, requests[0].is_shared);
	for (int i = 0; i < count; i++)
		any_shared |= is_shared[i];
	al_terms_set_wait(keys, count, &requests[0]);
	requests[0].is_shared = false;
	requests[1] = requests[0];
	requests[1].is_shared = true;
	requests[1].max_holders = al_max_holders_arg(fcinfo, 7, any_shared);
	return acquire_set(fcinfo, rel, keys, count, requests, is_shared, raise);
}

AL_FUNCTION(atomic_lock_acquire_all)
{
	return acquire_all(fcinfo, "lock_acquire_all()", true);
}

AL_FUNCTION(atomic_lock_try_acquire_all)
{
	return acquire_all(fcinfo, "lock_try_acquire_all()", false);
}

/*
 * lock_[try_]acquire_path(path, ttl, owner, wait, holder, meta, separator): the folders are
 * shared and the last key is exclusive; all leases have the same length
 */
static Datum
acquire_path(FunctionCallInfo fcinfo, const char *function, bool raise)
{
	AlPath		path;
	AlKey	   *keys;
	bool		is_shared[AL_MAX_PATH];
	AlAcquire	requests[2];	/* exclusive and shared */
	Relation	rel = al_open_for_writing(function);

	al_path_arg(fcinfo, 0, 6, &path);
	keys = al_path_keys(&path);
	request_args(fcinfo, AL_LEASE, false, &requests[0]);
	al_lease_path_requests(keys, path.count, requests, is_shared);
	return acquire_set(fcinfo, rel, keys, path.count, requests, is_shared, raise);
}

AL_FUNCTION(atomic_lock_acquire_path)
{
	return acquire_path(fcinfo, "lock_acquire_path()", true);
}

AL_FUNCTION(atomic_lock_try_acquire_path)
{
	return acquire_path(fcinfo, "lock_try_acquire_path()", false);
}

/* lock_[try_]convert(key, owner, mode, wait) */
static Datum
convert(FunctionCallInfo fcinfo, const char *function, bool raise)
{
	Relation	rel = al_open_for_writing(function);
	AlKey		key;
	AlAcquire	request = {.is_convert = true,.role = GetUserId()};
	AlResult	result;

	al_key_arg(fcinfo, 0, &key);
	al_owner_arg(fcinfo, 1, &request.owner);
	request.is_shared = al_mode_arg(fcinfo, 2);
	request.wait = al_wait_arg(fcinfo, 3);
	al_terms_set_wait(&key, 1, &request);
	request.default_holder = al_holder_default;

	al_lease_acquire(&rel, &key, &request, &result);
	if (!al_is_granted(&result) && raise)
		al_raise(&key, &result);
	close_app_lock(rel, result.outcome == AL_ACQUIRED);
	return al_grant_datum(fcinfo, &key, &request.owner, &result);
}

AL_FUNCTION(atomic_lock_convert)
{
	return convert(fcinfo, "lock_convert()", true);
}

AL_FUNCTION(atomic_lock_try_convert)
{
	return convert(fcinfo, "lock_try_convert()", false);
}

/* lock_[try_]transfer(key, owner, new_owner, holder, ttl) */
static Datum
transfer(FunctionCallInfo fcinfo, const char *function, bool raise)
{
	Relation	rel = al_open_for_writing(function);
	AlKey		key;
	AlOwner		owner;
	AlOwner		new_owner;
	text	   *holder;
	int64		ttl;
	AlResult	result = {0};
	bool		transferred;

	al_key_arg(fcinfo, 0, &key);
	al_owner_arg(fcinfo, 1, &owner);
	al_new_owner_arg(fcinfo, 2, &new_owner);
	holder = al_holder_arg(fcinfo, 3);
	if (holder == NULL)
		holder = al_holder_default();
	ttl = al_ttl_arg(fcinfo, 4);

	al_lease_transfer(rel, &key, &owner, &new_owner, holder, GetUserId(), ttl, &result);
	transferred = al_is_granted(&result);
	if (!transferred && (raise || result.outcome == AL_NO_LEASE))
		al_raise(&key, &result);
	close_app_lock(rel, transferred);
	return al_grant_datum(fcinfo, &key, &new_owner, &result);
}

AL_FUNCTION(atomic_lock_transfer)
{
	return transfer(fcinfo, "lock_transfer()", true);
}

AL_FUNCTION(atomic_lock_try_transfer)
{
	return transfer(fcinfo, "lock_try_transfer()", false);
}

/* lock_release(key, owner): true; a refusal raises */
AL_FUNCTION(atomic_lock_release)
{
	Relation	rel = al_open_for_writing("lock_release()");
	AlKey		key;
	AlOwner		owner;
	AlResult	result;

	al_key_arg(fcinfo, 0, &key);
	al_owner_arg(fcinfo, 1, &owner);
	al_lease_release(rel, &key, &owner, NULL, &result);
	if (result.outcome != AL_RELEASED)
		al_raise(&key, &result);
	close_app_lock(rel, true);
	PG_RETURN_BOOL(true);
}

/* lock_try_release(key, owner): the outcome as a word */
AL_FUNCTION(atomic_lock_try_release)
{
	Relation	rel = al_open_for_writing("lock_try_release()");
	AlKey		key;
	AlOwner		owner;
	AlResult	result;

	al_key_arg(fcinfo, 0, &key);
	al_owner_arg(fcinfo, 1, &owner);
	al_lease_release(rel, &key, &owner, NULL, &result);
	close_app_lock(rel, result.outcome == AL_RELEASED);
	if (result.outcome == AL_IN_TRANSACTION)
		al_raise(&key, &result);
	PG_RETURN_TEXT_P(cstring_to_text(al_status_word(&result)));
}

/* lock_release_path(path, owner, separator): the number of released keys; a refusal raises */
AL_FUNCTION(atomic_lock_release_path)
{
	Relation	rel = al_open_for_writing("lock_release_path()");
	AlPath		path;
	AlKey	   *keys;
	AlAcquire	request = {.is_convert = true, .is_shared = true, .role = GetUserId(),
		.default_holder = al_holder_default};
	AlResult	result;
	int64		released;
	int			refused;

	al_path_arg(fcinfo, 0, 2, &path);
	keys = al_path_keys(&path);
	al_owner_arg(fcinfo, 1, &request.owner);
	refused = al_lease_release_path(&rel, keys, path.count, path.is_folder, &request, &result, &released);
	if (refused >= 0)
		al_raise(&keys[refused], &result);
	close_app_lock(rel, true);
	PG_RETURN_INT64(released);
}

/* lock_[try_]extend(key, owner, ttl): the new end; a refusal raises, or with "try" returns NULL */
static Datum
extend(FunctionCallInfo fcinfo, const char *function, bool raise)
{
	Relation	rel = al_open_for_writing(function);
	AlKey		key;
	AlOwner		owner;
	int64		ttl;
	AlResult	result;

	al_key_arg(fcinfo, 0, &key);
	al_owner_arg(fcinfo, 1, &owner);
	ttl = al_ttl_arg(fcinfo, 2);
	al_lease_extend(rel, &key, &owner, NULL, ttl, &result);
	if (result.outcome != AL_EXTENDED)
	{
		if (raise || result.outcome == AL_IN_TRANSACTION)
			al_raise(&key, &result);
		close_app_lock(rel, false);
		PG_RETURN_NULL();
	}
	close_app_lock(rel, true);
	PG_RETURN_TIMESTAMPTZ(result.holding.expires_at);
}

AL_FUNCTION(atomic_lock_extend)
{
	return extend(fcinfo, "lock_extend()", true);
}

AL_FUNCTION(atomic_lock_try_extend)
{
	return extend(fcinfo, "lock_try_extend()", false);
}

/*
 * Release, extend or transfer all holdings of an owner ("outcome" is AL_RELEASED, AL_EXTENDED
 * or AL_ACQUIRED), and return their number.  Keys are taken in order, so that two such calls
 * cannot deadlock.  Keys that policies reserve for other roles are left out, with a warning.
 */
static int64
for_all(Relation rel, const AlOwner *owner, AlOutcome outcome, int64 ttl,
		const AlOwner *new_owner, text *holder)
{
	List	   *transactions = outcome == AL_EXTENDED ? NIL : al_tx_mine(NULL);
	const AlOwned *previous = NULL;
	ListCell   *cell;
	int64		count = 0;
	int			denied = 0;

	Assert(outcome == AL_RELEASED || outcome == AL_EXTENDED || outcome == AL_ACQUIRED);
	Assert((outcome == AL_ACQUIRED) == (new_owner != NULL && holder != NULL));
	foreach(cell, al_owned_in_order(rel, owner, transactions))
	{
		const AlOwned *owns = lfirst(cell);
		AlResult	result;

		CHECK_FOR_INTERRUPTS();
		if (previous && al_key_compare(&previous->key, &owns->key) == 0)
			continue;
		previous = owns;
		/* If the key's partition has moved, the lease is extended on the other server. */
		if (outcome != AL_RELEASED && al_is_elsewhere(owns->key.name) &&
			al_is_live(owns->row, GetCurrentTimestamp()))
			al_raise_partition(owns->key.name, true);
		if (!al_terms_is_admitted(&owns->key))
		{
			denied++;
			continue;
		}
		if (outcome == AL_RELEASED)
			al_lease_release(rel, &owns->key, owner, al_owned_row(owns), &result);
		else if (outcome == AL_EXTENDED)
			al_lease_extend(rel, &owns->key, owner, al_owned_row(owns),
							al_terms_cap(&owns->key, ttl), &result);
		else
			al_lease_transfer(rel, &owns->key, owner, new_owner, holder, GetUserId(),
							  AL_NO_TTL, &result);
		if (result.outcome == AL_IN_TRANSACTION)
			al_raise(&owns->key, &result);
		if (result.outcome == outcome)
			count++;
	}
	if (denied > 0)
		ereport(WARNING,
				(al_errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg_plural("%d lock of this owner is left as it is", "%d locks of this owner are left as they are",
							   denied, denied),
				 errdetail("Policies reserve such keys for roles of which the caller is no member.")));
	return count;
}

AL_FUNCTION(atomic_lock_release_all)
{
	Relation	rel = al_open_for_writing("lock_release_all()");
	AlOwner		owner;
	int64		count;

	al_owner_arg(fcinfo, 0, &owner);
	count = for_all(rel, &owner, AL_RELEASED, AL_NO_TTL, NULL, NULL);
	close_app_lock(rel, count > 0);
	PG_RETURN_INT64(count);
}

AL_FUNCTION(atomic_lock_extend_all)
{
	Relation	rel = al_open_for_writing("lock_extend_all()");
	AlOwner		owner;
	int64		ttl;
	int64		count;

	al_owner_arg(fcinfo, 0, &owner);
	ttl = al_ttl_arg(fcinfo, 1);
	al_terms_check_all(ttl);
	count = for_all(rel, &owner, AL_EXTENDED, ttl, NULL, NULL);
	close_app_lock(rel, count > 0);
	PG_RETURN_INT64(count);
}

/* lock_transfer_all(owner, new_owner, holder): the number of holdings */
AL_FUNCTION(atomic_lock_transfer_all)
{
	Relation	rel = al_open_for_writing("lock_transfer_all()");
	AlOwner		owner;
	AlOwner		new_owner;
	text	   *holder;
	int64		count;

	al_owner_arg(fcinfo, 0, &owner);
	al_new_owner_arg(fcinfo, 1, &new_owner);
	holder = al_holder_arg(fcinfo, 2);
	if (holder == NULL)
		holder = al_holder_default();
	count = for_all(rel, &owner, AL_ACQUIRED, AL_NO_TTL, &new_owner, holder);
	close_app_lock(rel, count > 0);
	PG_RETURN_INT64(count);
}
