/*-------------------------------------------------------------------------
 *
 * status.c
 *		Functions that show the state of one key, and of all keys.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: these functions read the newest committed state at every isolation level,
 * write nothing, and work in read-only transactions and on standbys.  An owner is a
 * secret: only the session that presents it (atomic_lock.owner) sees it.  A fencing
 * token is shown to that session, and to those who may list all holdings.
 *
 * Keys that an unfinished transaction of another session changes are shown as pending:
 * its claims reveal the transaction, and row versions its label (table/pending.c).
 *
 * Locking rules: app_lock is opened with AccessShareLock; no claims.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "atomic_lock.h"
#include "api/answer.h"
#include "api/args.h"
#include "api/status.h"
#include "base/errors.h"
#include "base/hash.h"
#include "base/key.h"
#include "base/owner.h"
#include "base/str.h"
#include "claim/claim.h"
#include "claim/holding.h"
#include "claim/tx_holdings.h"
#include "lease/state.h"
#include "shmem/shmem.h"
#include "shmem/waiters.h"
#include "table/catalog.h"
#include "table/pending.h"
#include "table/row.h"
#include "table/scan.h"
#include "table/tickets.h"

enum
{
	KEY, LOCKED, MODE, OWNER, HOLDER, FENCING_TOKEN, ACQUIRED_AT, EXPIRES_AT,
	TTL_REMAINING, LIFETIME, HOLDERS, WAITERS, PID, META, PENDING, ROLE, CLOSED_UNTIL, QUEUED, COLUMNS
};

/*
 * The live holdings at *now of a key: the owner's, if that is not NULL, and with AL_LOOK_SOME some others; *more is the number of further ones.
 *
 * For lock_status(), "pending_pid" is not NULL.  It is set to the process of an unfinished
 * transaction that claims the key: 0 if prepared, -1 if no transaction does.  Claims are
 * looked at before rows.  "meta" is fetched from TOAST here, while the table is open.
 */
static List *
find_live(const AlKey *key, const AlOwner *owner, AlLook look, int *more,
		  int *pending_pid, TimestampTz *now)
{
	Relation	rel = al_open_app_lock(AccessShareLock);
	List	   *holdings;
	ListCell   *cell;

	if (pending_pid && !al_claim_is_pending(key, NULL, pending_pid))
		*pending_pid = -1;
	holdings = al_holdings_of_key(rel, key, owner, look, more, now);

	foreach(cell, pending_pid ? holdings : NIL)
	{
		AlHolding  *holding = lfirst(cell);

		if (holding->meta)
			holding->meta = PG_DETOAST_DATUM(PointerGetDatum(holding->meta));
	}
	table_close(rel, AccessShareLock);
	return holdings;
}

/* The owner that the session presents, for a search of its rows; or NULL */
static const AlOwner *
find_setting(AlOwner *owner)
{
	memset(owner, 0, sizeof(AlOwner));
	owner->name = al_cstring(al_owner_setting ? al_owner_setting : "");
	return owner->name.len > 0 ? owner : NULL;
}

/* The holding of a key to show: the caller's, or else the one with the latest end; or NULL */
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
AL_FUNCTION(atomic_lock_is_held)
{
	AlKey		key;
	AlOwner		owner;
	TimestampTz now;
	int			more;
	bool		is_held = false;
	ListCell   *cell;

	al_owner_arg(fcinfo, 1, &owner);
	al_key_arg(fcinfo, 0, &key);
	foreach(cell, find_live(&key, &owner, AL_LOOK_OWN, &more, NULL, &now))
		is_held = is_held || al_is_owned_by(lfirst(cell), &owner);
	PG_RETURN_BOOL(is_held);
}

/* lock_holder(key): the label of the holder, or NULL */
AL_FUNCTION(atomic_lock_holder)
{
	AlKey		key;
	const AlHolding *holding;
	TimestampTz now;
	AlOwner		setting;
	int			more;

	al_key_arg(fcinfo, 0, &key);
	holding = choose(find_live(&key, find_setting(&setting), AL_LOOK_SOME, &more, NULL, &now));
	if (holding == NULL || holding->holder == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(holding->holder);
}

/* The number of waiters for a key; null if this server cannot know it */
static void
set_waiters(const AlKey *key, Datum *values, bool *nulls)
{
	int			waiters = al_waiters_count(key);

	values[WAITERS] = Int32GetDatum(waiters);
	nulls[WAITERS] = waiters < 0;
}

/* The number of tickets for a key */
static int
count_queued(const AlKey *key)
{
	int			of_role;

	return al_tickets_count(key, PG_INT64_MAX, InvalidOid, &of_role);
}

/*
 * Fill in the columns of lock_status for a holding of a key that has this number of live
 * holders and of tickets.  With 0 holders, the holding is pending.
 */
static void
fill_columns(const AlKey *key, const AlHolding *holding, int holders, int queued,
			 TimestampTz now, bool is_monitor, Datum *values, bool *nulls)
{
	char	   *role = al_role_name(holding->role);
	bool		has_end = holding->expires_at != DT_NOEND;
	bool		is_known = holding->holder != NULL; /* see al_tx_by_others() */
	bool		is_own = holding->owner && al_owner_is_setting(al_string(holding->owner));

	Assert(holders >= 0 && queued >= 0);
	memset(nulls, 0, COLUMNS * sizeof(bool));
	values[KEY] = PointerGetDatum(al_string_text(holding->key));
	values[LOCKED] = BoolGetDatum(holders > 0);
	values[MODE] = PointerGetDatum(al_mode_text(al_is_shared(holding)));
	values[OWNER] = PointerGetDatum(holding->owner);
	nulls[OWNER] = !is_own;
	values[HOLDER] = PointerGetDatum(holding->holder);
	values[FENCING_TOKEN] = Int64GetDatum(holding->fencing_token);
	values[ACQUIRED_AT] = TimestampTzGetDatum(holding->acquired_at);
	nulls[HOLDER] = nulls[ACQUIRED_AT] = !is_known;
	nulls[FENCING_TOKEN] = !is_known || (!is_own && !is_monitor);
	values[EXPIRES_AT] = TimestampTzGetDatum(holding->expires_at);
	values[TTL_REMAINING] = al_interval_datum(has_end ? holding->expires_at - now : 0);
	nulls[EXPIRES_AT] = nulls[TTL_REMAINING] = !has_end;
	values[LIFETIME] = CStringGetTextDatum(al_lifetime_name(holding->lifetime));
	values[HOLDERS] = Int32GetDatum(holders);
	nulls[HOLDERS] = holders == 0;
	set_waiters(key, values, nulls);
	values[QUEUED] = Int32GetDatum(queued);
	values[PID] = Int32GetDatum(holding->pid);
	nulls[PID] = holding->pid == 0; /* a lease has no backend */
	if (holding->meta)
		values[META] = PointerGetDatum(PG_DETOAST_DATUM(PointerGetDatum(holding->meta)));
	else
		nulls[META] = true;
	values[PENDING] = BoolGetDatum(holders == 0);
	nulls[CLOSED_UNTIL] = true;
	nulls[ROLE] = role == NULL;
	if (role)
		values[ROLE] = DirectFunctionCall1(namein, CStringGetDatum(role));
}

/* Mark the row as pending, for an unfinished transaction of this process; 0: prepared */
static void
set_pending(int pid, Datum *values, bool *nulls)
{
	values[PENDING] = BoolGetDatum(true);
	nulls[PENDING] = false;
	values[PID] = Int32GetDatum(pid);
	nulls[PID] = pid == 0;
}

/*
 * The holding that an unfinished transaction has written for a key without holders.  NULL
 * if it has ended meanwhile; *holdings is read again then.
 */
static const AlHolding *
find_pending(const AlKey *key, const AlOwner *owner, List **holdings, int *more, TimestampTz *now)
{
	Relation	rel = al_open_app_lock(AccessShareLock);
	const AlHolding *pending = al_pending_find(rel, key, NULL);

	if (pending == NULL)
		*holdings = al_holdings_of_key(rel, key, owner, AL_LOOK_SOME, more, now);
	table_close(rel, AccessShareLock);
	return pending;
}

/* Fill in the columns for a free key */
static void
fill_free(const AlKey *key, int queued, Datum *values, bool *nulls)
{
	Relation	rel = al_open_app_lock(AccessShareLock);
	TimestampTz closed_until = al_key_closed_until(rel, key);

	table_close(rel, AccessShareLock);
	memset(nulls, true, COLUMNS * sizeof(bool));
	values[KEY] = PointerGetDatum(al_string_text(key->name));
	values[LOCKED] = values[PENDING] = BoolGetDatum(false);
	nulls[KEY] = nulls[LOCKED] = nulls[PENDING] = false;
	values[QUEUED] = Int32GetDatum(queued);
	nulls[QUEUED] = false;
	/* Waiters may be about to take the key. */
	if (al_waiters_count(key) > 0)
		set_waiters(key, values, nulls);
	values[CLOSED_UNTIL] = TimestampTzGetDatum(closed_until);
	nulls[CLOSED_UNTIL] = closed_until == DT_NOBEGIN;
}

/* Look at a key; also attaches shared memory, for the waiters */
void
al_key_view(AlKeyView *view)
{
	AlOwner		setting;
	const AlOwner *owner = find_setting(&setting);
	const AlHolding *pending = NULL;
	int			more;

	(void) al_shmem_attach();
	view->holdings = find_live(&view->key, owner, AL_LOOK_SOME, &more, &view->pid, &view->now);
	if (view->holdings == NIL && view->pid >= 0)
		pending = find_pending(&view->key, owner, &view->holdings, &more, &view->now);
	/* It may have ended since. */
	if (view->pid >= 0 && pending == NULL && !al_claim_is_pending(&view->key, NULL, &view->pid))
		view->pid = -1;
	view->shown = pending ? pending : choose(view->holdings);
	view->is_own = view->shown && view->shown->owner &&
		al_owner_is_setting(al_string(view->shown->owner));
	view->holders = pending ? 0 : Min(list_length(view->holdings) + more, AL_MOST_COUNTED);
	view->queued = count_queued(&view->key);
	Assert(view->pid >= -1 && view->queued >= 0 && (view->shown || view->holders == 0));
}

/* lock_status(key): always one row */
AL_FUNCTION(atomic_lock_status)
{
	AlKeyView	view;
	Datum		values[COLUMNS];
	bool		nulls[COLUMNS];

	al_key_arg(fcinfo, 0, &view.key);
	al_key_view(&view);
	if (view.shown)
		fill_columns(&view.key, view.shown, view.holders, view.queued, view.now, al_is_monitor(),
					 values, nulls);
	else
		fill_free(&view.key, view.queued, values, nulls);
	if (view.pid >= 0 && (view.shown == NULL || view.holders > 0))
		set_pending(view.pid, values, nulls);
	return al_row_datum(fcinfo, COLUMNS, values, nulls);
}

/* Counts for a key, shared by all of its shared holdings */
typedef struct Sharers
{
	AlHash		key;
	int			count;			/* live holders */
	int			queued;			/* tickets; -1: not counted yet */
} Sharers;

static HTAB *
make_table(const char *name, Size key_size, Size entry_size)
{
	HASHCTL		info = {.keysize = key_size, .entrysize = entry_size,.hcxt = CurrentMemoryContext};

	return hash_create(name, 64, &info, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/* The entry of a holding's key; NULL if "action" is HASH_FIND and there is no entry */
static Sharers *
sharers_of(HTAB *sharers, const AlHolding *holding, HASHACTION action)
{
	AlKey		key;
	AlHash		hash;
	Sharers    *entry;
	bool		found;

	al_key_init(&key, holding->key);
	hash.words[0] = key.hash;
	hash.words[1] = key.check;
	entry = hash_search(sharers, &hash, action, &found);
	if (!found && entry)
	{
		entry->count = 0;
		entry->queued = -1;
	}
	return entry;
}

/* The token of a transaction's holding, which may have become a row meanwhile */
typedef struct HeldToken
{
	int64		fencing_token;
	bool		has_row;
} HeldToken;

/* State of a call of lock_status() */
typedef struct Listing
{
	ReturnSetInfo *rsinfo;
	TimestampTz now;
	HTAB	   *sharers;
	HTAB	   *held;			/* of HeldToken; NULL: transactions hold nothing */
	bool		is_monitor;
} Listing;

static void
list_holding(const Listing *listing, const AlHolding *holding)
{
	Datum		values[COLUMNS];
	bool		nulls[COLUMNS];
	AlKey		key;
	Sharers    *entry = al_is_shared(holding) ?
		sharers_of(listing->sharers, holding, HASH_FIND) : NULL;

	al_key_init(&key, holding->key);
	if (entry && entry->queued < 0)
		entry->queued = count_queued(&key);
	fill_columns(&key, holding, entry ? entry->count : 1, entry ? entry->queued : count_queued(&key),
				 listing->now, listing->is_monitor, values, nulls);
	if (holding->lifetime != AL_TRANSACTION)
	{
		AlOwner		owner;
		int			pid;

		al_owner_init(&owner, al_string(holding->owner));
		if (al_claim_is_pending(&key, al_is_shared(holding) ? &owner : NULL, &pid))
			set_pending(pid, values, nulls);
	}
	tuplestore_putvalues(listing->rsinfo->setResult, listing->rsinfo->setDesc, values, nulls);
}

/* Read all live rows: count the shared ones for each key, or list all */
static void
scan_live(const Listing *listing, bool count)
{
	MemoryContext row_context = AllocSetContextCreate(CurrentMemoryContext, "lock_status row",
													  ALLOCSET_SMALL_SIZES);
	Relation	rel = al_open_app_lock(AccessShareLock);
	AlScan		scan;
	HeapTuple	tuple;

	al_scan_begin(&scan, rel, InvalidOid, 0, NULL);
	while (HeapTupleIsValid(tuple = al_scan_next(&scan)))
	{
		MemoryContext old_context;
		AlHolding	holding;

		al_row_peek(rel, tuple, &holding);
		if (!al_is_live(&holding, listing->now) || (count && !al_is_shared(&holding)))
			continue;
		old_context = MemoryContextSwitchTo(row_context);
		al_row_read(rel, tuple, &holding);
		if (listing->held)
		{
			HeldToken  *token = hash_search(listing->held, &holding.fencing_token,
											HASH_FIND, NULL);

			if (token)
				token->has_row = true;
		}
		if (count)
			sharers_of(listing->sharers, &holding, HASH_ENTER)->count++;
		else
			list_holding(listing, &holding);
		MemoryContextSwitchTo(old_context);
		MemoryContextReset(row_context);
	}
	al_scan_end(&scan);
	table_close(rel, AccessShareLock);
	MemoryContextDelete(row_context);
}

/*
 * List holdings that unfinished transactions have written.  Skip one that is listed
 * already, as a live holding or as a holding of a transaction.
 */
static void
list_pending(const Listing *listing, List *pending, List *held)
{
	Relation	rel = al_open_app_lock(AccessShareLock);
	ListCell   *cell;

	foreach(cell, pending)
	{
		const AlHolding *holding = lfirst(cell);
		List	   *others = NIL;
		AlState		state;
		AlKey		key;
		bool		is_listed = holding->released_at != 0;
		Datum		values[COLUMNS];
		bool		nulls[COLUMNS];
		ListCell   *other;

		al_key_init(&key, holding->key);
		al_look(rel, &key, NULL, AL_LOOK_ALL, &state);
		others = al_live_holdings(&state, listing->now);
		foreach(other, list_concat(others, held))
		{
			const AlHolding *live = lfirst(other);

			if (live->lifetime == AL_TRANSACTION ?
				live->pid == holding->pid && al_string_equal(live->key, holding->key) :
				live->slot == holding->slot || !al_is_shared(live) || !al_is_shared(holding))
				is_listed = true;
		}
		if (is_listed)
			continue;
		fill_columns(&key, holding, 0, count_queued(&key), listing->now, listing->is_monitor, values, nulls);
		tuplestore_putvalues(listing->rsinfo->setResult, listing->rsinfo->setDesc, values, nulls);
	}
	table_close(rel, AccessShareLock);
}

/* The holdings that unfinished transactions have written, of all keys */
static List *
find_all_pending(void)
{
	Relation	rel = al_open_app_lock(AccessShareLock);
	List	   *pending = al_pending_holdings(rel, NULL);

	table_close(rel, AccessShareLock);
	return pending;
}

/*
 * lock_status(): a row for every live holding, judged at one moment, and for every pending
 * one of other keys.  Holdings of transactions are read before rows, since one of them may
 * become a row in between.
 */
AL_FUNCTION(atomic_lock_status_all)
{
	Listing		listing = {.rsinfo = (ReturnSetInfo *) fcinfo->resultinfo};
	List	   *held = list_concat(al_tx_mine(NULL), al_tx_shown());
	List	   *pending = find_all_pending();
	ListCell   *cell;

	InitMaterializedSRF(fcinfo, 0);
	listing.now = GetCurrentTimestamp();
	listing.sharers = make_table("lock_status sharers", sizeof(AlHash), sizeof(Sharers));
	if (held != NIL)
		listing.held = make_table("lock_status held", sizeof(int64), sizeof(HeldToken));
	listing.is_monitor = al_is_monitor();

	foreach(cell, held)
	{
		const AlHolding *holding = lfirst(cell);
		HeldToken  *token = hash_search(listing.held, &holding->fencing_token, HASH_ENTER, NULL);

		token->has_row = false;
	}
	scan_live(&listing, true);
	foreach(cell, held)
	{
		const AlHolding *holding = lfirst(cell);
		const HeldToken *token = hash_search(listing.held, &holding->fencing_token, HASH_FIND, NULL);

		if (al_is_shared(holding) && !token->has_row)
			sharers_of(listing.sharers, holding, HASH_ENTER)->count++;
	}
	scan_live(&listing, false);
	foreach(cell, held)
	{
		const AlHolding *holding = lfirst(cell);
		const HeldToken *token = hash_search(listing.held, &holding->fencing_token, HASH_FIND, NULL);

		if (!token->has_row)
			list_holding(&listing, holding);
	}
	list_pending(&listing, pending, held);
	return (Datum) 0;
}

/* For qsort(): the order of keys, and of the line for a key */
int
al_waiter_compare(const void *a, const void *b)
{
	const AlWaiter *x = a;
	const AlWaiter *y = b;

	AlKey		x_key = al_waiter_key(x);
	AlKey		y_key = al_waiter_key(y);
	int			order = al_key_compare(&x_key, &y_key);

	if (order != 0)
		return order;
	if (x->is_upgrade != y->is_upgrade)
		return x->is_upgrade ? -1 : 1;
	if (x->arrival != y->arrival)
		return x->arrival < y->arrival ? -1 : 1;
	return x->id < y->id ? -1 : 1;
}

/*
 * lock_waiters(): a row for every waiter in this database.  Raises 55000 without shared
 * memory.
 */
AL_FUNCTION(atomic_lock_waiters)
{
	enum
	{
		W_KEY, W_PLACE, W_HOLDER, W_SINCE, W_BLOCKED_BY, W_MODE, W_PID,
		W_BLOCKING_PID, W_COLUMNS
	};
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			count;
	int			position = 0;
	AlKey		previous = {0};
	AlWaiter   *waiters;
	Relation	rel;

	InitMaterializedSRF(fcinfo, 0);
	if (!al_shmem_attach())
		ereport(ERROR,
				(al_errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("list of waiters is not available on this server"),
				 errdetail("Before PostgreSQL 17, waiters join a queue only if atomic_lock is preloaded; on this server, they poll."),
				 errhint("Add atomic_lock to shared_preload_libraries and restart the server.")));
	waiters = al_waiters_list(&count);
	qsort(waiters, count, sizeof(AlWaiter), al_waiter_compare);

	rel = al_open_app_lock(AccessShareLock);
	for (int i = 0; i < count; i++)
	{
		AlWaiter   *waiter = &waiters[i];
		AlKey		key = al_waiter_key(waiter);
		List	   *obstacles = al_waiter_obstacles(rel, waiter);
		List	   *blockers = al_claim_blockers(waiter->hash, false);
		const AlHolding *holding;
		const text *blocker = NULL;
		AlLine		line;
		int			of_role;
		int64		arrival = waiter->is_upgrade ? 0 : waiter->arrival;	/* before all tickets */
		Datum		values[W_COLUMNS];
		bool		nulls[W_COLUMNS] = {0};

		CHECK_FOR_INTERRUPTS();
		if (obstacles == NIL)
			obstacles = al_tx_by_others(&key);
		holding = obstacles ? choose(obstacles) : al_pending_find(rel, &key, NULL);
		position = i > 0 && al_key_compare(&previous, &key) == 0 ? position + 1 : 1;
		previous = key;
		if (holding)
			blocker = holding->holder;
		else if (al_tickets_look(&key, NULL, &line) &&
				 (line.is_offered || line.first.number < arrival))
			blocker = line.first.holder;

		values[W_KEY] = PointerGetDatum(al_string_text(key.name));
		values[W_PID] = Int32GetDatum(waiter->pid);
		values[W_HOLDER] = CStringGetTextDatum(waiter->holder);
		values[W_MODE] = PointerGetDatum(al_mode_text(waiter->is_shared));
		values[W_SINCE] = TimestampTzGetDatum(waiter->since);
		values[W_PLACE] = Int32GetDatum(position + al_tickets_count(&key, arrival, InvalidOid, &of_role));
		nulls[W_BLOCKED_BY] = blocker == NULL;
		values[W_BLOCKED_BY] = PointerGetDatum(blocker);
		nulls[W_BLOCKING_PID] = blockers == NIL;
		values[W_BLOCKING_PID] = Int32GetDatum(blockers ? linitial_int(blockers) : 0);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	table_close(rel, AccessShareLock);
	return (Datum) 0;
}

/* app_lock_count_waiters(key): the number of waiters, for lock_activity; NULL: not known */
AL_FUNCTION(atomic_lock_count_waiters)
{
	AlKey		key;
	int			waiters;

	if (PG_ARGISNULL(0))
		al_raise_null("lock key");
	al_key_init(&key, al_string(PG_GETARG_TEXT_PP(0)));
	(void) al_shmem_attach();
	waiters = al_waiters_count(&key);
	if (waiters < 0)
		PG_RETURN_NULL();
	PG_RETURN_INT32(waiters);
}

/*
 * app_lock_longest_wait(key): the longest current wait; NULL: no waiter is known.  For
 * lock_activity, which also shows keys of partitions that have moved.
 */
AL_FUNCTION(atomic_lock_longest_wait)
{
	AlKey		key;
	TimestampTz since;

	if (PG_ARGISNULL(0))
		al_raise_null("lock key");
	al_key_init(&key, al_string(PG_GETARG_TEXT_PP(0)));
	(void) al_shmem_attach();
	since = al_waiters_since(&key);
	if (since == 0)
		PG_RETURN_NULL();
	PG_RETURN_DATUM(al_interval_datum(Max(GetCurrentTimestamp() - since, 0)));
}
