/*-------------------------------------------------------------------------
 *
 * xact.c
 *		The order of what happens at commit, abort, PREPARE and savepoints.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: nobody should rely on the order in which PostgreSQL calls several callbacks
 * of one kind.  So this file alone registers callbacks for transactions and resource
 * owners, and calls the modules in the order that they need.
 *
 * Locking: none of its own.  Nothing here raises after pre-commit.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
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

/*
 * At the end of a transaction, this runs after xact_callback().  A subtransaction
 * that commits keeps its locks.
 */
static void
release_callback(ResourceReleasePhase phase, bool isCommit, bool isTopLevel, void *arg)
{
	if (phase == RESOURCE_RELEASE_BEFORE_LOCKS && isTopLevel)
		AL_TEST_POINT("before-release");
	if (phase != RESOURCE_RELEASE_AFTER_LOCKS)
		return;
	if (!isTopLevel)
	{
		al_claimed_subreleased(GetCurrentTransactionNestLevel());
		return;
	}
	al_sweep_over();
	al_claimed_released(isCommit);
	al_line_released(isCommit);
	if (al_line_take_missed())
	{
		AL_TEST_POINT("missed");
		al_launcher_tell_missed();
	}
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
			/* The claims of a prepared transaction stay, but no session has them. */
			if (event == XACT_EVENT_PREPARE)
				al_claimed_forget();
			forget_transaction();
			break;
		case XACT_EVENT_ABORT:
			/* The background sweep offers what it held to those in line. */
			if (al_tx_count() > 0 && al_tickets_any())
				al_line_missed();
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

	if (event == SUBXACT_EVENT_ABORT_SUB)
	{
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
