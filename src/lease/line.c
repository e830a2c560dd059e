/*-------------------------------------------------------------------------
 *
 * line.c
 *		The line for a key: those who wait for it without a connection.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: who may be granted a key is decided by an attempt (lease/attempt.c).  The line
 * only says whose turn it is: that of the ticket with the lowest number (table/tickets.c),
 * or of a waiter who came before (shmem/waiters.c).  Waiters and tickets are one line, in
 * the order of arrival.
 *
 * When a transaction has let go of a key, its commit offers the key to the first
 * ticket: until the offer ends, nobody else gets the key.  An offer that was not taken
 * costs the ticket.  Then the next ticket is the first, and its owner may take the key at
 * once; it is told so by the sweep, which makes the next offer.  Where a commit cannot make
 * an offer, or may not know that there is one to make, the launcher is woken, and a sweep of
 * the queue does so: two transactions let go of shares of a key at the same time; a ticket is
 * written while the key is let go of; a waiter who came first gives up; a transaction that
 * holds the key rolls back.
 *
 * Locking rules: to make an offer takes the claim of whoever takes the key, which is tried
 * without waiting.  So nobody who waits in line can make others wait.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/clock.h"
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

/* A key that this transaction has let go of, or that a sweep looks at */
typedef struct LetGo
{
	AlKey		key;
	bool		is_swept;
} LetGo;

/* A list of LetGo *, in TopTransactionContext */
static List *let_go = NIL;

/* This transaction has written a ticket for one of them. */
static bool has_ticket = false;

/* A sweep shall see who is to be offered a key, when this transaction is over. */
static bool missed = false;

/*
 * Keys whose tickets this transaction has given up: the hash of each, in
 * TopTransactionContext, which outlives the release of the locks
 */
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
}

/* This transaction has let go of a key, while there are tickets. */
void
al_line_let_go(const AlKey *key)
{
	add_key(key, false);
}

/*
 * This transaction has given up a ticket.  A waiter may sleep behind the ticket of a key that
 * nobody has, and we need not have a claim on the key, whose end would wake that waiter.
 */
void
al_line_left(const AlKey *key)
{
	MemoryContext old_context;

	add_key(key, false);
	old_context = MemoryContextSwitchTo(TopTransactionContext);
	left = lappend(left, &((LetGo *) llast(let_go))->key.hash);
	MemoryContextSwitchTo(old_context);
}

/* The commit of this sweep is to look whether a key can be offered. */
void
al_line_swept(const AlKey *key)
{
	add_key(key, true);
}

/*
 * This transaction has written a ticket for a key.  Whoever lets go of the key meanwhile
 * does not see it.
 */
void
al_line_ticket_written(const AlKey *key)
{
	al_line_let_go(key);
	has_ticket = true;
}

/* Somebody in line may have to be offered a key, and this transaction cannot do that. */
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

/* May the key be granted to anybody?  This transaction is about to commit. */
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
 * Offer a key to the first ticket, if the key is free and its first waiter came later; and
 * end a ticket that did not take its offer.  Where a waiter is first, it is woken when
 * the claim goes, with the commit.  Where a sweep cannot do so, the next one looks again.
 */
static void
offer(Relation rel, const AlKey *key, bool is_swept)
{
	AlTicket	nobody = {.number = 0};
	AlClaim		claim;
	AlLine		line;

	if (!is_key_free(rel, key))
	{
		/* Others may be letting go of it, too. */
		missed = missed || (!is_swept && al_claim_has_others(key->hash));
		return;
	}
	if (!al_claim_try(&claim, key, NULL, AL_CLAIM_TAKE))
	{
		missed = missed || !is_swept;
		return;
	}
	/* A ticket may be about to be committed, by somebody who sees our claim no more. */
	if (!al_tickets_look(key, NULL, &line) && !is_swept && al_tickets_is_pending(key))
		missed = true;
	AL_TEST_POINT("before-offer");
	if (!is_key_free(rel, key) || line.is_offered)
	{
		al_claim_drop(&claim);
		return;
	}
	if (line.lapsed.number != 0)
		al_ticket_lapse(key, &line.lapsed);
	if (line.first.number == 0)
		(void) al_ticket_offer(key, &nobody, 0);
	else if (al_waiters_precede(key, false, line.first.number, NULL))
		return;
	/* An offer that nobody hears of would end before it is taken. */
	else if (!al_events_begin())
		missed = true;
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

/* The transaction is about to commit: offer what it has let go of. */
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
		/* Whoever alters or locks our tables keeps nobody from committing. */
		missed = true;
		let_go = NIL;
		return;
	}
	/* Almost no key has a ticket.  A swept one has an offer to end, whose ticket is gone. */
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
	/* No transaction leaves more tickets than it may claim, and not all are first. */
	al_claimed_lift_limit();
	/* An offer that is lost is lost together with the release. */
	al_durability_before_release();
	foreach(cell, let_go)
	{
		const LetGo *key = lfirst(cell);

		/* Another transaction that has claimed it is about to commit, and has looked for tickets. */
		if (has_ticket)
			al_claim_await_others(key->key.hash);
		CHECK_FOR_INTERRUPTS();
		offer(rel, &key->key, key->is_swept);
	}
	al_durability_released();
	table_close(rel, NoLock);
	let_go = NIL;
}

/* The locks of the transaction have been released.  Raises nothing. */
void
al_line_released(bool committed)
{
	ListCell   *cell;

	if (committed)
		foreach(cell, left)
			al_waiters_wake(*(const uint64 *) lfirst(cell), 0, 0);
	left = NIL;
}

/* The transaction is over. */
void
al_line_forget(void)
{
	let_go = NIL;
	has_ticket = false;
}
