/*-------------------------------------------------------------------------
 *
 * line.c
 *		The line for a key: tickets, which wait without a connection.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: waiters in a call (shmem/waiters.c) and tickets (table/tickets.c) form one line,
 * in the order of arrival.  The line only says whose turn it is.  Whether a key is granted,
 * an attempt decides (lease/attempt.c).
 *
 *	1.	A transaction frees a key that has tickets, and notes the key here.
 *	2.	Its commit offers the key to the first ticket, unless a waiter came before.  Until
 *		the offer ends, only the ticket's owner can get the key.
 *	3.	The owner acquires the key, and its ticket is deleted.
 *	4.	Or the offer ends unused, and the ticket with it.  The owner of the next ticket may
 *		then take the key at once, unless a waiter came before, but has not heard of that:
 *		the next sweep offers the key to that ticket and notifies its owner.
 *
 * An offer can be missed: two transactions release shares of a key at the same time; a
 * ticket is written while the key is released; a waiter that came first gives up; a
 * transaction that has claimed the key rolls back; a set of keys is given up.  Then the
 * launcher is woken, and a sweep of app_lock_queue makes the offer.  A sweep passes over a key
 * that is claimed, so a session that leaves such a key free asks for the next sweep.  A commit that
 * waits for a standby may not see the ticket: then the regular sweep makes the offer.
 *
 * Locking rules: an offer is made under a claim (AL_CLAIM_TAKE), which is tried without
 * waiting; if another transaction has claimed the key, a sweep makes the offer.  So tickets
 * do not make a release wait.  Only a transaction that has written a ticket waits at its
 * commit, up to about 20 ms for each key (al_claim_await_others()).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/clock.h"
#include "base/errors.h"
#include "base/str.h"
#include "base/testpoint.h"
#include "claim/claim.h"
#include "claim/claimed.h"
#include "claim/durability.h"
#include "claim/holding.h"
#include "claim/tx_holdings.h"
#include "lease/line.h"
#include "lease/state.h"
#include "shmem/stat.h"
#include "shmem/waiters.h"
#include "table/app_lock.h"
#include "table/catalog.h"
#include "table/events.h"
#include "table/tickets.h"

/* A key that this transaction has freed, or that a sweep looks at */
typedef struct ToOffer
{
	AlKey		key;
	bool		is_swept;
} ToOffer;

/* Keys that the commit has to look at: ToOffer *, in TopTransactionContext */
static List *to_offer = NIL;

/* This transaction has written a ticket for one of these keys. */
static bool wrote_ticket = false;

/* When this transaction ends, wake the launcher: a sweep has to make an offer. */
static bool missed = false;

/* Pointers to the hashes of keys whose tickets were given up, in TopTransactionContext */
static List *given_up = NIL;

static void
add_key(const AlKey *key, bool is_swept)
{
	MemoryContext old_context;
	ToOffer	   *added;

	if (to_offer != NIL && al_string_equal(((ToOffer *) llast(to_offer))->key.name, key->name))
		return;
	old_context = MemoryContextSwitchTo(TopTransactionContext);
	added = palloc(sizeof(ToOffer));
	added->key = *key;
	added->key.name = al_string(al_string_text(key->name));
	added->is_swept = is_swept;
	to_offer = lappend(to_offer, added);
	MemoryContextSwitchTo(old_context);
}

/* This transaction has freed a key, or a share of it, while there are tickets. */
void
al_line_check_offer(const AlKey *key)
{
	add_key(key, false);
}

/*
 * This transaction has given up a ticket.  If the key is free, a waiter may sleep only because of
 * that, and no claim need end that would wake the waiter: al_line_released() does.
 */
void
al_line_ticket_given_up(const AlKey *key)
{
	MemoryContext old_context;

	add_key(key, false);
	old_context = MemoryContextSwitchTo(TopTransactionContext);
	given_up = lappend(given_up, &((ToOffer *) llast(to_offer))->key.hash);
	MemoryContextSwitchTo(old_context);
}

/* This transaction has written a ticket, which one that frees the key meanwhile may not see. */
void
al_line_ticket_written(const AlKey *key)
{
	al_line_check_offer(key);
	wrote_ticket = true;
}

/* A key may have to be offered, but not by this one: wake the launcher at its end. */
void
al_line_missed(void)
{
	missed = true;
}

bool
al_line_pop_missed(void)
{
	bool		was_missed = missed;

	missed = false;
	return was_missed;
}

bool
al_line_has_to_offer(void)
{
	return to_offer != NIL;
}

/* Would a commit now leave the key free, neither held nor closed? */
static bool
is_key_free(Relation rel, const AlKey *key)
{
	TimestampTz now;
	AlState		state;
	ListCell   *cell;

	if (al_tx_by_others(key) != NIL)
		return false;
	al_look(rel, key, NULL, AL_LOOK_SOME, &state);
	now = GetCurrentTimestamp();
	foreach(cell, lcons(&state.rows.exclusive, state.rows.shared))
	{
		if (al_is_live(lfirst(cell), now) || al_is_closed(lfirst(cell), now))
			return false;
	}
	return true;
}

/* If the key is free, the commit of this sweep has to check whether it can be offered. */
bool
al_line_swept(Relation rel, const AlKey *key)
{
	bool		is_free = is_key_free(rel, key);

	if (is_free)
		add_key(key, true);
	return is_free;
}

/*
 * Offer a key to its first ticket, if the key is free and no waiter came before; and end a ticket
 * that did not use its offer.  The end of the claim wakes a waiter that came first.  A sweep that
 * finds the key claimed leaves the offer to the next sweep.
 */
static void
offer(Relation rel, const AlKey *key, bool is_swept)
{
	AlTicket	nobody = {.number = 0};
	AlClaim		claim;
	AlLine		line;
	bool		others_claimed = !is_swept && al_claim_has_others(key->hash);

	if (!is_key_free(rel, key))
	{
		AL_TEST_POINT("not-free");
		/* Transactions that were there before we read the rows may be freeing the key too. */
		missed = missed || others_claimed;
		return;
	}
	if (!al_claim_try(&claim, key, NULL, AL_CLAIM_TAKE))
	{
		al_trace(DEBUG1, "lock \"%s\": not offered, since another transaction has claimed it",
				 al_display(key->name));
		missed = missed || !is_swept;
		return;
	}
	/*
	 * A ticket that is not committed is not seen here, and its transaction may miss us too:
	 * it may look for our claim after that has gone.  Leave that to a sweep.
	 */
	if (!al_tickets_look(key, NULL, &line) && !is_swept && al_tickets_is_pending(key))
		missed = true;
	AL_TEST_POINT("before-offer");
	if (!is_key_free(rel, key) || line.is_offered)
	{
		al_claim_drop(&claim);
		return;
	}
	if (line.lapsed.number != 0)
	{
		al_trace(DEBUG1, "lock \"%s\": ticket %lld did not use its offer", al_display(key->name),
				 (long long) line.lapsed.number);
		al_ticket_lapse(key, &line.lapsed);
	}
	if (line.first.number == 0)
		(void) al_ticket_offer(key, &nobody, 0);
	else if (al_waiters_precede(key, false, line.first.number, NULL))
		return;
	/* Without its event, the offer might end before the ticket's owner learns of it. */
	else if (!al_events_begin())
	{
		al_trace(DEBUG1, "lock \"%s\": not offered, since no event can be sent now",
				 al_display(key->name));
		missed = true;
	}
	else
	{
		TimestampTz until = al_add_duration(GetCurrentTimestamp(), line.first.offer);
		AlEvent		event = {.word = "offered", .holder = line.first.holder,
			.ticket = line.first.number, .until = until};

		if (al_ticket_offer(key, &line.first, until))
		{
			al_trace(DEBUG2, "lock \"%s\": offered to ticket %lld", al_display(key->name),
					 (long long) line.first.number);
			al_event(key, &event);
		}
		al_stat_changed();
	}
}

/* The transaction is about to commit: offer the keys that it has freed. */
void
al_line_commit(void)
{
	Relation	rel;
	bool		missing;
	ListCell   *cell;

	if (to_offer == NIL)
		return;
	rel = al_open_now(&missing);
	if (rel == NULL)
	{
		/* Do not wait at commit for a session that alters or locks our tables. */
		al_trace(DEBUG1, "no lock is offered, since the tables of atomic_lock are locked");
		missed = true;
		to_offer = NIL;
		return;
	}
	/* Leave out keys without a ticket; but a swept one may have an offer to withdraw. */
	foreach(cell, to_offer)
	{
		const ToOffer *key = lfirst(cell);

		if (!key->is_swept && !al_tickets_is_pending(&key->key))
			to_offer = foreach_delete_current(to_offer, cell);
	}
	if (to_offer == NIL)
	{
		table_close(rel, NoLock);
		return;
	}
	/* At most one more claim for each ticket that was written or given up */
	al_claimed_lift_limit();
	/* A crash that loses the offer also loses what freed the key: no flush is needed. */
	al_durability_before_release();
	/*
	 * A transaction that frees a key may have looked before our ticket: let it commit.  Do so
	 * before the first event, which takes the lock that all sessions need to notify.
	 */
	foreach(cell, to_offer)
	{
		if (wrote_ticket)
			al_claim_await_others(((ToOffer *) lfirst(cell))->key.hash);
	}
	foreach(cell, to_offer)
	{
		const ToOffer *key = lfirst(cell);

		CHECK_FOR_INTERRUPTS();
		offer(rel, &key->key, key->is_swept);
	}
	al_durability_released();
	table_close(rel, NoLock);
	to_offer = NIL;
}

/* After the release of locks: wake waiters behind tickets that were given up.  Raises nothing. */
void
al_line_released(bool committed)
{
	ListCell   *cell;

	if (committed)
		foreach(cell, given_up)
			al_waiters_wake(*(const uint64 *) lfirst(cell), 0, 0);
	given_up = NIL;
}

void
al_line_forget(void)
{
	to_offer = NIL;
	wrote_ticket = false;
}
