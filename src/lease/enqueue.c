/*-------------------------------------------------------------------------
 *
 * enqueue.c
 *		Taking and giving up a ticket for a key.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: whoever cannot acquire a key takes a ticket instead (lease/line.c), which is
 * renewed by asking again.  An owner has one ticket for a key.
 *
 * Locking rules: a ticket is claimed by its owner, to the end of the transaction, before
 * the key.  Only sessions of the same owner wait for that claim.  A grant ends the owner's
 * ticket without waiting for the claim (al_tickets_drop()), so al_lease_enqueue() looks for
 * such a grant after it has written a ticket.
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

/* For how long a key is offered where nothing else is asked for, in microseconds */
#define DEFAULT_OFFER	USECS_PER_MINUTE

/* Raise 53400 where a role has so many tickets for a key that it may have no more. */
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
 * Acquire a key, and again where a transaction has it in hand: most are about to end.
 * False: it is acquired, or refused for a reason that waiting does not remove.
 */
static bool
try_soon(Relation *rel, const AlKey *key, AlAcquire *request, AlResult *result)
{
	al_lease_acquire(rel, key, request, result);
	if (result->outcome == AL_CLAIMED)
	{
		al_claim_await_others(key->hash);
		al_lease_acquire(rel, key, request, result);
	}
	return result->outcome == AL_HELD || result->outcome == AL_CLAIMED ||
		result->outcome == AL_CLOSED || result->outcome == AL_QUEUED;
}

/* The fencing token by which an owner has a key exclusively; 0: it does not */
static int64
token_of(Relation rel, const AlKey *key, const AlOwner *owner)
{
	AlHolding	holding;

	if (!al_table_find_slot(rel, key, AL_SLOT_EXCLUSIVE, &holding) ||
		!al_is_owned_by(&holding, owner) || !al_is_live(&holding, GetCurrentTimestamp()))
		return 0;
	return holding.fencing_token;
}

/*
 * Take a ticket, or renew the one that the owner has; false: another transaction is ending
 * that, and may roll back, so it stays as it is.  The arguments are those of
 * al_lease_enqueue().
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
	/* Nobody else of this role is counted meanwhile. */
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
 * Acquire a key, or where that is refused, take a ticket for it, or renew the one that
 * the owner has, which keeps its offer and label where none is given.  "offer" (0: none)
 * and "keep" are in microseconds.  Outcomes: those of al_lease_acquire().  Where the key
 * may be had later, the ticket has a number, and "position" is its position in the line.  Waits for
 * unfinished transactions of other sessions of the owner.  Raises 42501, 53400, what
 * al_terms_of() raises, and what any wait for a lock can.
 */
void
al_lease_enqueue(Relation *rel, const AlKey *key, AlAcquire *request, int64 offer, int64 keep,
				 AlResult *result, AlTicket *ticket, int *position)
{
	int64		waited = 0;
	int64		before;
	int64		now = 0;
	bool		is_written;
	bool		again;

	memset(ticket, 0, sizeof(AlTicket));
	al_terms_admit(key);
	/* What is read of it stays where it is. */
	table_close(al_open_queue(RowExclusiveLock), NoLock);
	/* The owner is the proof of a ticket, too. */
	if (request->owner.generated)
	{
		request->owner.in_index = true;
		al_owner_generate(&request->owner, InvalidBlockNumber);
	}
	al_claim_ticket(key, &request->owner);
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
			/* Another session of the owner may be taking the key, with which the ticket goes. */
		} while (al_await_own(*rel, key, &request->owner, &waited));
		AL_TEST_POINT("before-ticket");
		is_written = write_ticket(*rel, key, request, offer, keep, ticket, position);
		AL_TEST_POINT("ticket-written");
		/*
		 * Another session that took the key before the ticket was there did not see that.
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

/* Give up the ticket of an owner for a key; false: it has none that is valid */
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
		al_line_left(key);
	else
		al_claim_ticket_end(key, owner);
	return line.mine.number != 0;
}
