/*-------------------------------------------------------------------------
 *
 * enqueue.c
 *		Taking and giving up a ticket for a key.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: an owner that cannot acquire a key takes a ticket (lease/line.c), one for each key.
 *
 *	1.	Claim the owner's ticket.
 *	2.	Attempt to acquire the key.  If that succeeds, drop the ticket and return.
 *	3.	Write a ticket, or renew the one that the owner has.
 *	4.	If another session acquired the key for the owner meanwhile, or handed the owner a
 *		share, it did not see the ticket: begin again at 2.
 *
 * Locking rules: the ticket is claimed before the key, to the end of the transaction.  Only
 * sessions of the same owner wait for that.  A grant ends the owner's ticket without waiting
 * for the claim (al_tickets_drop()).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/clock.h"
#include "base/errors.h"
#include "base/owner.h"
#include "base/policy.h"
#include "base/settings.h"
#include "base/str.h"
#include "base/testpoint.h"
#include "claim/claim.h"
#include "claim/durability.h"
#include "claim/holding.h"
#include "lease/acquire.h"
#include "lease/enqueue.h"
#include "lease/line.h"
#include "lease/quota.h"
#include "lease/state.h"
#include "lease/terms.h"
#include "shmem/stat.h"
#include "shmem/waiters.h"
#include "table/app_lock.h"
#include "table/catalog.h"
#include "table/fence.h"
#include "table/tickets.h"

/* Default duration of an offer, in microseconds */
#define DEFAULT_OFFER	USECS_PER_MINUTE

/* Raise 53400 if a role has the maximum number of tickets for a key */
static void
check_count(const AlKey *key, const AlAcquire *request, int of_role)
{
	char	   *role = al_role_name(request->role);

	if (of_role < al_max_tickets)
		return;
	ereport(ERROR,
			(al_errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("too many places in line for lock \"%s\"", al_display(key->name)),
			 errdetail("Role \"%s\" has %d of at most %d places.",
					   role ? al_display(al_cstring(role)) : "?", of_role, al_max_tickets),
			 errhint("Retry later, or ask an administrator to raise atomic_lock.max_queue_places.")));
}

/*
 * Acquire a key, again if a transaction had claimed it: most are about to end.  False: the key
 * is acquired, or refused for a reason that waiting does not remove.
 */
static bool
try_soon(Relation *rel, const AlKey *key, AlAcquire *request, AlResult *result)
{
	al_lease_acquire(rel, key, request, result);
	if (result->outcome == AL_CLAIMED)
	{
		al_trace(DEBUG3, "lock \"%s\": trying again before a ticket is taken", al_display(key->name));
		al_claim_await_others(key->hash);
		al_lease_acquire(rel, key, request, result);
	}
	return result->outcome == AL_HELD || result->outcome == AL_CLAIMED ||
		result->outcome == AL_CLOSED || result->outcome == AL_QUEUED;
}

/* The fencing token of an owner's lease of a key; 0: it has none */
static int64
token_of(Relation rel, const AlKey *key, const AlOwner *owner)
{
	AlState		state;
	AlResult	result;
	AlHolding  *own;

	al_look(rel, key, owner, AL_LOOK_OWN, &state);
	(void) al_judge_owner(&state, owner, &result, &own);
	return own ? own->fencing_token : 0;
}

/*
 * Write a new ticket, or renew the owner's.  False: nothing is written, since another
 * transaction is ending that ticket and may roll back.  Arguments: see al_lease_enqueue().
 */
static bool
write_ticket(Relation rel, const AlKey *key, const AlAcquire *request, int64 offer, int64 keep,
			 AlTicket *ticket, int *position)
{
	List	   *quotas = NIL;
	bool		is_new;
	uint64		line_hash = hash_combine64(key->hash, murmurhash32(request->role));
	AlLine		line;
	int			of_role;

	(void) al_tickets_look(key, &request->owner, &line);
	if (line.mine.number != 0 && !al_ticket_delete(&line.mine))
	{
		*ticket = line.mine;
		(void) al_tickets_look(key, &request->owner, &line);
		if (line.mine.number == ticket->number)
		{
			*position = 1 + al_tickets_count(key, ticket->number, InvalidOid, &of_role) +
				al_waiters_count_before(key, ticket->number);
			return false;
		}
	}
	is_new = line.mine.number == 0;
	if (is_new)
		quotas = al_quota_claim_ticket(rel, key, &request->owner, request->role);
	/* Serialize the sessions that count tickets of this role for this key. */
	al_claim_quota(line_hash, ExclusiveLock);
	*position = 1 + al_tickets_count(key, is_new ? PG_INT64_MAX : line.mine.number,
								  request->role, &of_role);
	if (is_new)
		check_count(key, request, of_role);

	(void) al_tickets_drop(key, &request->owner);
	memset(ticket, 0, sizeof(AlTicket));
	ticket->number = is_new ? al_fence_draw(1) : line.mine.number;
	ticket->queued_at = is_new ? GetCurrentTimestamp() : line.mine.queued_at;
	ticket->expires_at = al_add_duration(GetCurrentTimestamp(), keep);
	ticket->offer = offer != 0 ? offer : is_new ?
		Min(DEFAULT_OFFER, al_policy_value(key->name, AL_MAX_TTL)) : line.mine.offer;
	ticket->role = is_new ? request->role : line.mine.role;
	ticket->holder = request->holder ? request->holder :
		is_new ? request->default_holder() : line.mine.holder;
	ticket->owner = al_string_text(request->owner.name);
	al_ticket_insert(key, ticket);
	al_claim_quota_end(line_hash);
	al_quota_end(quotas);
	*position += al_waiters_count_before(key, ticket->number);
	return true;
}

/*
 * Acquire a key; if that is refused, take a ticket, or renew the owner's.  "offer" (0: not
 * given) and "keep" are in microseconds.  A renewal keeps the offer and label that the call
 * does not give.  Outcomes: those of al_lease_acquire().  If waiting can help, ticket->number
 * and *position, the position in the line, are set; otherwise the number is 0.  Waits for
 * unfinished transactions of the owner in other sessions.  Raises 42501, 53400, the errors
 * of al_terms_of(), and those of any wait for a lock.
 */
void
al_lease_enqueue(Relation *rel, const AlKey *key, AlAcquire *request, int64 offer, int64 keep,
				 AlResult *result, AlTicket *ticket, int *position)
{
	int64		waited = 0;
	int64		before;
	int64		now;
	bool		is_written;
	bool		again;

	memset(ticket, 0, sizeof(AlTicket));
	al_terms_admit(key);
	/* Keep the lock to the end, so that rows of app_lock_queue stay in place. */
	table_close(al_open_queue(RowExclusiveLock), NoLock);
	/* The owner proves a ticket too, so it is needed before any grant. */
	if (request->owner.generated)
	{
		request->owner.in_index = true;
		al_owner_generate(&request->owner, InvalidBlockNumber);
	}
	al_claim_ticket(key, &request->owner);
	now = token_of(*rel, key, &request->owner);
	do
	{
		before = now;
		do
		{
			if (!try_soon(rel, key, request, result))
			{
				if (ticket->number != 0)
					(void) al_tickets_drop(key, &request->owner);
				ticket->number = 0;
				return;
			}
			/* Another session of the owner may be taking the key, which ends the ticket. */
		} while (al_await_own(*rel, key, &request->owner, &waited));
		AL_TEST_POINT("before-ticket");
		is_written = write_ticket(*rel, key, request, offer, keep, ticket, position);
		AL_TEST_POINT("ticket-written");
		/*
		 * A session that took the key before the ticket was written did not see the ticket.
		 * Transactions come before rows, for the reason given at al_holdings_of_key().
		 */
		again = al_await_own(*rel, key, &request->owner, &waited);
		AL_TEST_POINT("ticket-awaited");
		if (!again)
			now = token_of(*rel, key, &request->owner);
	} while (again || now > before);
	if (!is_written)
		return;
	al_durability_granted();
	al_stat_changed();
	al_line_ticket_written(key);
}

/* Give up the ticket of an owner for a key; false: the owner has no valid ticket */
bool
al_lease_leave(const AlKey *key, const AlOwner *owner)
{
	AlLine		line;

	if (!al_tickets_may_be())
		return false;
	al_claim_ticket(key, owner);
	AL_TEST_POINT("leaving-line");
	(void) al_tickets_look(key, owner, &line);
	if (al_tickets_drop(key, owner))
		al_line_ticket_given_up(key);
	else
		al_claim_ticket_end(key, owner);
	return line.mine.number != 0;
}
