/*-------------------------------------------------------------------------
 *
 * xact.c
 *		The order of steps at commit, abort, PREPARE and savepoints.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: PostgreSQL promises no order for several callbacks of one kind.  So only this
 * file registers callbacks for transactions and resource owners, and calls the modules
 * in the order that they need (steps 6 and 9 of atomic_lock.h):
 *
 *	1. Before the commit: publish ends and make offers, then choose the durability.
 *	2. After the commit, with all locks still held: restore the session's durability,
 *	   add to the counters, and forget what the transaction held.
 *	3. When the locks have been released: wake waiters, then the launcher, and tell the
 *	   client if its grant is in doubt.
 *
 * Locking: none of its own.  After pre-commit, no step raises.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/resowner.h"

#include "base/testpoint.h"
#include "claim/claimed.h"
#include "claim/durability.h"
#include "claim/tx_holdings.h"
#include "lease/line.h"
#include "lease/publish.h"
#include "lease/report.h"
#include "shmem/stat.h"
#include "shmem/tickets.h"
#include "sweep/launcher.h"
#include "sweep/sweep.h"
#include "table/events.h"
#include "xact.h"

/* If a sweep has to make an offer, wake the launcher. */
static void
tell_missed(void)
{
	if (!al_line_pop_missed())
		return;
	AL_TEST_POINT("missed");
	al_launcher_tell_missed();
}

/* Step 3, after xact_callback().  A subtransaction that commits keeps its locks. */
static void
release_callback(ResourceReleasePhase phase, bool isCommit, bool isTopLevel, void *arg)
{
	Assert(CritSectionCount == 0);
	if (phase == RESOURCE_RELEASE_BEFORE_LOCKS && isTopLevel)
		AL_TEST_POINT("before-release");
	if (phase != RESOURCE_RELEASE_AFTER_LOCKS)
		return;
	if (!isTopLevel)
	{
		/* The outer transaction may go on for long. */
		if (al_claimed_subreleased(GetCurrentTransactionNestLevel()))
			tell_missed();
		return;
	}
	al_sweep_over();
	al_claimed_released(isCommit);
	al_line_released(isCommit);
	tell_missed();
	/* This comes last, since a client that reads slowly must not delay waiters. */
	if (al_durability_is_in_doubt())
		al_report_doubt();
}

/* The transaction has ended: forget what this backend knows of it. */
static void
forget_transaction(void)
{
	al_stat_abort();
	al_tx_abort(0);
	al_publish_forget();
	al_claimed_changed();
	al_durability_at_end();
}

/* A rollback may free keys, but cannot offer them: leave that to a sweep. */
static void
note_freed(void)
{
	if (al_claimed_count() > 0 && al_tickets_any())
		al_line_missed();
}

/* Steps 1 and 2 */
static void
xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			al_publish_commit(event == XACT_EVENT_PRE_PREPARE);
			al_durability_before_commit(event == XACT_EVENT_PRE_PREPARE);
			AL_TEST_POINT("before-commit");
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PREPARE:
			al_durability_after_commit(event == XACT_EVENT_PREPARE);
			if (al_tx_count() > 0)
				al_stat_count(AL_COUNT_RELEASES, al_tx_count());
			al_stat_commit();
			/* The claims of a prepared transaction stay, but belong to no session. */
			if (event == XACT_EVENT_PREPARE)
				al_claimed_forget();
			forget_transaction();
			break;
		case XACT_EVENT_ABORT:
			note_freed();
			forget_transaction();
			break;
		case XACT_EVENT_PARALLEL_PRE_COMMIT:
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PARALLEL_ABORT:
			break;
	}
}

static void
subxact_callback(SubXactEvent event, SubTransactionId mySubid,
				 SubTransactionId parentSubid, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();

	Assert(level > 1);
	if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		note_freed();
		al_tx_abort(level);
		al_events_subabort(level);
		al_stat_subabort(level);
		al_claimed_subabort(level);
	}
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
	{
		al_tx_commit(level);
		al_events_subcommit(level);
		al_stat_subcommit(level);
		al_claimed_subcommit(level);
	}
}

void
al_xact_init(void)
{
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
	RegisterResourceReleaseCallback(release_callback, NULL);
}
