/*-------------------------------------------------------------------------
 *
 * line.c
 *		The line for a key: those who wait for it without a connection.
 *
 * Model: who may be granted a key is decided by an attempt (lease/attempt.c).  The line
 * only says whose turn it is: that of the ticket with the lowest number (table/tickets.c),
 * or of a waiter who came before (shmem/queue.c).  Waiters and tickets are one line, in
 * the order of arrival.
 *
 * When a transaction has let go of a key, its commit offers the key to the first
 * ticket: until the offer ends, nobody else gets the key.  An offer that was not taken
 * costs the ticket.  Then the next ticket is the first, and its owner may take the key at
 * once; it is told so by the sweep, which makes the next offer.  Where two transactions
 * let go of shares of a key at the same time, or where a ticket is written while the key
 * is let go of, nobody may notice, and the sweep makes the offer, too.
 *
 * Locking rules: to make an offer takes the claim of whoever takes the key, which is tried
 * without waiting.  So nobody who waits in line can make others wait.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/clock.h"
#include "base/str.h"
#include "base/testpoint.h"
#include "claim/claim.h"
#include "claim/claimed.h"
#include "claim/durability.h"
#include "claim/held.h"
#include "claim/holding.h"
#include "lease/line.h"
#include "lease/state.h"
#include "shmem/queue.h"
#include "shmem/stat.h"
#include "table/app_lock.h"
#include "table/catalog.h"
#include "table/events.h"
#include "table/tickets.h"

/* Keys that this transaction may have let go of, in TopTransactionContext */
static List *let_go = NIL;

/* This transaction has let go of a key that may have tickets, or of one of those. */
void
al_line_let_go(const AlKey *key)
{
	MemoryContext old_context;
	AlKey	   *copy;

	if (let_go != NIL && al_string_equal(((AlKey *) llast(let_go))->name, key->name))
		return;
	old_context = MemoryContextSwitchTo(TopTransactionContext);
	copy = palloc(sizeof(AlKey));
	*copy = *key;
	copy->name = al_string(al_string_text(key->name));
	let_go = lappend(let_go, copy);
	MemoryContextSwitchTo(old_context);
}

bool
al_line_has_let_go(void)
{
	return let_go != NIL;
}

/*
 * May the key be granted to anybody?  "at_commit": what this transaction holds without a
 * row is about to end.
 */
static bool
is_free(Relation rel, const AlKey *key, bool at_commit)
{
	TimestampTz now;
	AlState		state;
	ListCell   *cell;

	if (al_held_by_others(key) != NIL)
		return false;
	al_look(rel, key, NULL, AL_LOOK_SOME, &state);
	if (state.mine != NIL && !at_commit)
		return false;
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
 * delete a ticket that did not take its offer.  Where a waiter is first, it is woken when
 * the claim goes.
 */
void
al_line_offer(Relation rel, const AlKey *key, bool at_commit)
{
	AlTicket	nobody = {.number = 0};
	AlTicket	lapsed;
	AlClaim		claim;
	AlLine		line = {.is_offered = false};

	if (!is_free(rel, key, at_commit) || !al_claim_try(&claim, key, NULL, AL_CLAIM_TAKE))
		return;
	(void) al_tickets_look(key, NULL, &line);
	lapsed.tid = line.lapsed;
	AL_TEST_POINT("before-offer");
	if (!is_free(rel, key, at_commit) || line.is_offered ||
		(ItemPointerIsValid(&lapsed.tid) && !al_ticket_delete(&lapsed)))
	{
		al_claim_drop(&claim);
		return;
	}
	if (line.first.number == 0)
		(void) al_ticket_offer(key, &nobody, 0);
	else if (!al_queue_is_behind(key, false, line.first.number, NULL))
	{
		TimestampTz until = al_add_duration(GetCurrentTimestamp(), line.first.offer);
		AlEvent		event = {.word = "offered", .holder = line.first.holder,
			.ticket = line.first.number, .until = until};

		if (!al_ticket_offer(key, &line.first, until))
			return;
		al_event(key, &event);
		al_stat_changed();
	}
}

/* The transaction is about to commit: offer what it has let go of. */
void
al_line_commit(void)
{
	Relation	rel;
	ListCell   *cell;

	if (let_go == NIL)
		return;
	rel = al_open_app_lock(RowExclusiveLock);
	/* Nobody leaves more places than the transaction may claim, and not all are first. */
	al_claimed_lift_limit();
	/* An offer that is lost is lost together with the release. */
	al_durability_before_release();
	foreach(cell, let_go)
		al_line_offer(rel, lfirst(cell), true);
	al_durability_released();
	table_close(rel, NoLock);
	let_go = NIL;
}

/* The transaction is over. */
void
al_line_forget(void)
{
	let_go = NIL;
}
