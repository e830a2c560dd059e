/*-------------------------------------------------------------------------
 *
 * tickets.c
 *		lock_channel(), lock_ask(), lock_enqueue(), lock_leave(), lock_queue(): events, and
 *		waiting without a connection.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Locking rules: those of lease/enqueue.c.
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
#include "base/policy.h"
#include "base/settings.h"
#include "base/str.h"
#include "lease/enqueue.h"
#include "lease/report.h"
#include "lease/state.h"
#include "lease/terms.h"
#include "shmem/shmem.h"
#include "shmem/waiters.h"
#include "table/catalog.h"
#include "table/events.h"
#include "table/tickets.h"

#define DEFAULT_KEEP	USECS_PER_HOUR

/* lock_channel(key): the name to LISTEN on */
AL_FUNCTION(atomic_lock_channel)
{
	Relation	rel = al_open_app_lock(AccessShareLock);
	AlKey		key;
	text	   *channel;

	al_key_arg(fcinfo, 0, &key);
	/* Payloads show more than lock_status(key). */
	if (!al_is_monitor())
		al_terms_admit(&key);
	channel = cstring_to_text(al_event_channel(&key));
	table_close(rel, AccessShareLock);
	PG_RETURN_TEXT_P(channel);
}

/* lock_ask(key, message): notify the holders of the key, and return their number */
AL_FUNCTION(atomic_lock_ask)
{
	Relation	rel = al_open_for_writing("lock_ask()");
	AlEvent		event = {.word = "asked", .by = GetUserId()};
	AlKey		key;
	List	   *holdings;
	int			more;
	TimestampTz now;

	al_key_arg(fcinfo, 0, &key);
	event.reason = al_message_arg(fcinfo, 1);
	al_terms_admit(&key);
	holdings = al_holdings_of_key(rel, &key, NULL, AL_LOOK_SOME, &more, &now);
	more += list_length(holdings);
	if (more > 0)
	{
		if (more == 1)
		{
			event.holder = ((AlHolding *) linitial(holdings))->holder;
			event.fencing_token = ((AlHolding *) linitial(holdings))->fencing_token;
		}
		event.from = al_holder_default();
		al_event(&key, &event);
	}
	table_close(rel, RowExclusiveLock);
	PG_RETURN_INT32(more);
}

/* A duration in microseconds, at most max_ttl of the key; 0 for NULL */
static int64
duration_arg(FunctionCallInfo fcinfo, int argno, const char *name, const AlKey *key)
{
	int64		max = al_policy_value(key->name, AL_MAX_TTL);
	int64		value = al_ttl_arg(fcinfo, argno);

	if (value == AL_NO_TTL)
		return 0;
	if (value < AL_MIN_TTL || value > max)
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be between 1ms and max_ttl, which is %lld ms", name,
						(long long) (max / 1000)),
				 errhint("lock_policy(key) shows max_ttl.  Months and years are not allowed.")));
	return value;
}

enum
{
	STATUS, PLACE, KEY, EXPIRES_AT, TTL_REMAINING, OWNER, FENCING_TOKEN, TICKET, HOLDER,
	COLUMNS
};

/* lock_enqueue(key, owner, holder, offer, keep, ttl, meta): a lease, or a ticket */
AL_FUNCTION(atomic_lock_enqueue)
{
	Relation	rel = al_open_for_writing("lock_enqueue()");
	AlKey		key;
	AlAcquire	request = {.lifetime = AL_LEASE, .role = GetUserId(),
		.on_reacquire = al_on_reacquire, .default_holder = al_holder_default};
	int64		offer;
	int64		keep;
	AlResult	result;
	AlTicket	ticket;
	int			position = 0;
	Datum		values[COLUMNS];
	bool		nulls[COLUMNS] = {0};
	TimestampTz expires_at;
	text	   *holder;

	al_key_arg(fcinfo, 0, &key);
	al_owner_arg_or_new(fcinfo, 1, &request.owner);
	request.holder = al_holder_arg(fcinfo, 2);
	offer = duration_arg(fcinfo, 3, "offer", &key);
	keep = duration_arg(fcinfo, 4, "keep", &key);
	if (keep == 0)
		keep = Min(DEFAULT_KEEP, al_policy_value(key.name, AL_MAX_TTL));
	/* The turn may come hours later, and must not be lost because a limit is shorter now. */
	request.ttl = al_ttl_arg(fcinfo, 5);
	if (request.ttl != PG_INT64_MAX)
	{
		int64		max_lifetime = al_policy_value(key.name, AL_MAX_LIFETIME);

		request.ttl = al_terms_cap(&key, request.ttl);
		if (max_lifetime > 0)
			request.ttl = Min(request.ttl, max_lifetime);
	}
	request.meta = al_meta_arg(fcinfo, 6);

	al_lease_enqueue(&rel, &key, &request, offer, keep, &result, &ticket, &position);
	if (!al_is_granted(&result) && ticket.number == 0)
		al_raise(&key, &result);
	Assert(ticket.number == 0 || position > 0);
	table_close(rel, NoLock);

	expires_at = ticket.number != 0 ? ticket.expires_at : result.holding.expires_at;
	holder = result.outcome == AL_QUEUED ? cstring_to_text(result.first) : result.holding.holder;
	values[STATUS] = CStringGetTextDatum(ticket.number != 0 ? "queued" : al_status_word(&result));
	values[PLACE] = Int32GetDatum(position);
	values[KEY] = PointerGetDatum(al_string_text(key.name));
	values[EXPIRES_AT] = TimestampTzGetDatum(expires_at);
	values[TTL_REMAINING] = al_interval_datum(expires_at == DT_NOEND ? 0 : expires_at - GetCurrentTimestamp());
	nulls[EXPIRES_AT] = nulls[TTL_REMAINING] = expires_at == DT_NOEND;
	values[OWNER] = PointerGetDatum(al_string_text(request.owner.name));
	values[FENCING_TOKEN] = Int64GetDatum(result.holding.fencing_token);
	values[TICKET] = Int64GetDatum(ticket.number);
	nulls[FENCING_TOKEN] = ticket.number != 0;
	nulls[PLACE] = nulls[TICKET] = ticket.number == 0;
	values[HOLDER] = PointerGetDatum(holder);
	nulls[HOLDER] = holder == NULL;
	return al_row_datum(fcinfo, COLUMNS, values, nulls);
}

/* lock_leave(key, owner): whether the owner had a ticket */
AL_FUNCTION(atomic_lock_leave)
{
	Relation	rel = al_open_for_writing("lock_leave()");
	AlKey		key;
	AlOwner		owner;
	bool		has_left;

	al_key_arg(fcinfo, 0, &key);
	al_owner_arg(fcinfo, 1, &owner);
	has_left = al_lease_leave(&key, &owner);
	table_close(rel, has_left ? NoLock : RowExclusiveLock);
	PG_RETURN_BOOL(has_left);
}

/* lock_queue(): a row for each valid ticket, in the order of keys and positions */
AL_FUNCTION(atomic_lock_queue)
{
	enum
	{
		Q_KEY, Q_PLACE, Q_HOLDER, Q_QUEUED_AT, Q_OFFERED_UNTIL, Q_EXPIRES_AT, Q_OFFER, Q_ROLE,
		Q_TICKET, Q_COLUMNS
	};
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Relation	rel = al_open_app_lock(AccessShareLock);
	AlKey		key = {.hash = 0};
	List	   *tickets;
	AlWaiter   *waiters;
	int			count;
	int			position = 0;
	ListCell   *cell;

	PreventCommandIfParallelMode("lock_queue()");
	(void) al_shmem_attach();
	InitMaterializedSRF(fcinfo, 0);
	tickets = al_tickets_list(al_cstring(""), false, false, PG_INT32_MAX);
	/* If a waiter left between two rows, both tickets would show the same place: copy once. */
	waiters = al_waiters_list(&count);
	foreach(cell, tickets)
	{
		const AlTicket *ticket = lfirst(cell);
		Datum		values[Q_COLUMNS];
		bool		nulls[Q_COLUMNS] = {0};
		char	   *role = al_role_name(ticket->role);
		int			place;

		CHECK_FOR_INTERRUPTS();
		if (key.hash == 0 || !al_string_equal(ticket->key, key.name))
		{
			al_key_init(&key, ticket->key);
			position = 0;
		}
		place = ++position;
		for (int i = 0; i < count; i++)
			place += al_waiter_precedes(&waiters[i], &key, ticket->number);
		values[Q_KEY] = PointerGetDatum(al_string_text(key.name));
		values[Q_PLACE] = Int32GetDatum(place);
		values[Q_HOLDER] = PointerGetDatum(ticket->holder);
		nulls[Q_ROLE] = role == NULL;
		values[Q_ROLE] = role ? DirectFunctionCall1(namein, CStringGetDatum(role)) : 0;
		values[Q_QUEUED_AT] = TimestampTzGetDatum(ticket->queued_at);
		values[Q_EXPIRES_AT] = TimestampTzGetDatum(ticket->expires_at);
		values[Q_OFFER] = al_interval_datum(ticket->offer);
		values[Q_OFFERED_UNTIL] = TimestampTzGetDatum(ticket->offered_until);
		nulls[Q_OFFERED_UNTIL] = ticket->offered_until == 0;
		values[Q_TICKET] = Int64GetDatum(ticket->number);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	table_close(rel, AccessShareLock);
	return (Datum) 0;
}
