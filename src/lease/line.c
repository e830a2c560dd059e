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
 *		take the key at once.  The sweep then makes the next offer, which notifies it.
 *
 * An offer can be missed: two transactions release shares of a key at the same time; a
 * ticket is written while the key is released; a waiter that came first gives up; a
 * transaction that holds the key rolls back.  Then the launcher is woken, for a sweep of
 * the queue that makes the offer.
 *
 * Locking rules: an offer is made under a claim (AL_CLAIM_TAKE), which is tried without
 * waiting.  So an owner that waits in line cannot make other sessions wait.
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
typedef struct LetGo
{
	AlKey		key;
	bool		is_swept;
} LetGo;

/* A list of LetGo *, in TopTransactionContext */
static List *let_go = NIL;

/* This transaction has written a ticket for one of these keys. */
static bool has_ticket = false;

/* When this transaction ends, wake the launcher: a sweep has to make an offer. */
static bool missed = false;

/* Hashes of keys whose tickets were given up, in TopTransactionContext, which outlives locks */
static List *left = NIL;

static void
add_key(const AlKey *key, bool is_swept)
{
	MemoryContext old_context;
	LetGo	   *added;

	if (let_go != NIL && al_string_equal(((LetGo *) llast(let_go))->key.name, key->name))
		return;
	old_context = MemoryContextSwitchTo(TopTransactionContext);
	added = palloc(sizeof(LetGo));
	added->key = *key;
	added->key.name = al_string(al_string_text(key->name));
	added->is_swept = is_swept;
	let_go = lappend(let_go, added);
	MemoryContextSwitchTo(old_context);
	Assert(IsTransactionState());
}

/* This transaction has freed a key, or a share of it, while there are tickets. */
void
al_line_let_go(const AlKey *key)
{
	add_key(key, false);
}

/*
 * This transaction has given up a ticket.  A waiter may sleep behind that while the key is
 * free.  There may be no claim on the key whose end wakes the waiter: al_line_released() does.
 */
void
al_line_left(const AlKey *key)
{
	MemoryContext old_context;

	add_key(key, false);
	Assert(let_go != NIL && al_string_equal(((LetGo *) llast(let_go))->key.name, key->name));
	old_context = MemoryContextSwitchTo(TopTransactionContext);
	left = lappend(left, &((LetGo *) llast(let_go))->key.hash);
	MemoryContextSwitchTo(old_context);
}

/* The commit of this sweep has to check whether the key can be offered. */
void
al_line_swept(const AlKey *key)
{
	add_key(key, true);
}

/* This transaction has written a ticket, unseen by one that frees the key meanwhile. */
void
al_line_ticket_written(const AlKey *key)
{
	al_line_let_go(key);
	has_ticket = true;
}

/* A key may have to be offered, and this transaction cannot do that. */
void
al_line_missed(void)
{
	missed = true;
}

bool
al_line_take_missed(void)
{
	bool		was_missed = missed;

	missed = false;
	return was_missed;
}

bool
al_line_has_let_go(void)
{
	return let_go != NIL;
}

/* Will the key be free when this transaction, which is about to commit, has committed? */
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

/*
 * Offer a key to its first ticket, if the key is free and no waiter came before; and end a
 * ticket that did not use its offer.  A waiter that came first is woken when the commit gives
 * back the claim.  A sweep that cannot make the offer leaves it to the next one.
 */
static void
offer(Relation rel, const AlKey *key, bool is_swept)
{
	AlTicket	nobody = {.number = 0};
	AlClaim		claim;
	AlLine		line;

	if (!is_key_free(rel, key))
	{
		/* Other transactions may be freeing the key too. */
		missed = missed || (!is_swept && al_claim_has_others(key->hash));
		return;
	}
	if (!al_claim_try(&claim, key, NULL, AL_CLAIM_TAKE))
	{
		al_trace(DEBUG1, "lock \"%s\": not offered, since another transaction has claimed it",
				 al_display(key->name));
		missed = missed || !is_swept;
		return;
	}
	/* A ticket may commit right after us, and its transaction no longer sees our claim. */
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
	/* An offer without its event would end before its owner knows of it. */
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
			al_event(key, &event);
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

	if (let_go == NIL)
		return;
	rel = al_open_now(&missing);
	if (rel == NULL)
	{
		/* Do not wait at commit for a session that alters or locks our tables. */
		al_trace(DEBUG1, "no lock is offered, since the tables of atomic_lock are locked");
		missed = true;
		let_go = NIL;
		return;
	}
	/* Few keys have a ticket.  A swept key may have an offer to end without having a ticket. */
	foreach(cell, let_go)
	{
		const LetGo *key = lfirst(cell);

		if (!key->is_swept && !al_tickets_is_pending(&key->key))
			let_go = foreach_delete_current(let_go, cell);
	}
	if (let_go == NIL)
	{
		table_close(rel, NoLock);
		return;
	}
	/* Offers may need more claims than allowed: at most one for each ticket given up. */
	al_claimed_lift_limit();
	/* The offer needs no flush: a crash that loses the offer loses the release too. */
	al_durability_before_release();
	foreach(cell, let_go)
	{
		const LetGo *key = lfirst(cell);

		/* Another claimant may have looked for tickets before ours, and be about to commit. */
		if (has_ticket)
			al_claim_await_others(key->key.hash);
		CHECK_FOR_INTERRUPTS();
		offer(rel, &key->key, key->is_swept);
	}
	al_durability_released();
	table_close(rel, NoLock);
	let_go = NIL;
}

/* After the release of locks: wake waiters behind tickets that were given up.  Raises nothing. */
void
al_line_released(bool committed)
{
	ListCell   *cell;

	if (committed)
		foreach(cell, left)
			al_waiters_wake(*(const uint64 *) lfirst(cell), 0, 0);
	left = NIL;
}

void
al_line_forget(void)
{
	let_go = NIL;
	has_ticket = false;
}
