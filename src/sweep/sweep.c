/*-------------------------------------------------------------------------
 *
 * sweep.c
 *		A sweep: remove rows that are not needed any more.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: correctness never depends on a sweep.  It removes rows of keys that are not used any
 * more, in three steps that share a budget of max_rows:
 *
 * 1. Holdings (app_lock).  A row may go lock_delay after its lease expired or its session died,
 *    or released_retention after its release, but not before min_hold has passed.  Listeners get
 *    an event for each lease that has expired.
 * 2. Tickets and offers that have expired (app_lock_queue).  At commit, free keys are offered to
 *    the next in line (lease/line.c).
 * 3. Old grants (lock_history).
 *
 * For each row of app_lock, a sweep looks, claims and looks again, like all verbs, and skips a
 * key that an unfinished transaction has claimed.  Rows are read in the order of the table, from
 * where the last sweep stopped.  Each sweep begins app_lock_queue at the first key, and its
 * batches continue at the key where the last one stopped.  Keys that are held use up no claim, so
 * they keep no free key from its offer.
 *
 * Locking rules: app_lock is open with RowExclusiveLock.  Claims of removed rows are kept to the
 * end of the transaction.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/clock.h"
#include "base/errors.h"
#include "base/key.h"
#include "base/policy.h"
#include "base/settings.h"
#include "base/str.h"
#include "base/testpoint.h"
#include "claim/claim.h"
#include "claim/claimed.h"
#include "claim/holding.h"
#include "lease/line.h"
#include "lease/publish.h"
#include "lease/state.h"
#include "shmem/stat.h"
#include "shmem/waiters.h"
#include "sweep/sweep.h"
#include "table/app_lock.h"
#include "table/catalog.h"
#include "table/history.h"
#include "table/row.h"
#include "table/scan.h"
#include "table/tickets.h"

#ifdef AL_TEST_HOOKS
#define AHEAD	AL_MS_TO_US(al_test_sweep_ahead_ms)
#else
#define AHEAD	0
#endif

static bool sweeping = false;	/* other backends see this in shmem/waiters.c */

/* When a row may be removed; DT_NOEND: not known */
static TimestampTz
over_at(const AlHolding *holding)
{
	TimestampTz open_at = al_closed_until(holding);

	Assert(holding->lifetime != AL_TRANSACTION);	/* it is a row */
	if (holding->released_at == 0)
		return open_at;
	return Max(open_at, al_add_duration(holding->released_at, AL_MS_TO_US(al_released_retention_ms)));
}

static void
trace_skipped(const AlKey *key, const char *reason)
{
	if (message_level_is_interesting(DEBUG3))
		al_trace(DEBUG3, "sweep skips lock \"%s\": %s", al_display(key->name), reason);
}

/* Remove a row; false if it is claimed, locked or kept by us, or has changed */
static bool
remove_row(Relation rel, HeapTuple tuple, TimestampTz now)
{
	AlHolding	holding;
	AlKey		key;
	AlClaim		claim;

	al_row_read(rel, tuple, &holding);
	al_key_init(&key, holding.key);
	AL_TEST_POINT("sweep-chosen");
	if (!al_claim_try(&claim, &key, NULL, AL_CLAIM_TAKE))
	{
		trace_skipped(&key, "claimed");
		return false;
	}
	al_table_find_again(rel, &key, &holding);
	AL_TEST_POINT("sweep-claimed");
	/* This transaction's next grant continues the life of a row that it keeps (max_lifetime). */
	if (!ItemPointerIsValid(&holding.tid) || now < over_at(&holding) ||
		(al_policy_value(key.name, AL_MAX_LIFETIME) > 0 && al_wrote_or_pinned(&key, &holding)) ||
		!al_table_try_delete(rel, &holding))
	{
		al_claim_drop(&claim);
		trace_skipped(&key, "locked, kept or changed");
		return false;
	}
	if (holding.released_at == 0)
	{
		al_stat_count(AL_COUNT_EXPIRATIONS, 1);
		al_publish_end(&key, &holding, al_ended_at(&holding), AL_ENDED_EXPIRED, NULL);
	}
	AL_TEST_POINT("sweep-removed");
	return true;
}

/*
 * Remove at most max_rows rows of app_lock, from at most max_blocks blocks; fewer when the
 * transaction has max_claims_per_transaction claims.
 */
static void
sweep_rows(Relation rel, int64 max_rows, BlockNumber max_blocks, TimestampTz now, AlSwept *swept)
{
	static uint64 stopped_at = 0;	/* block; shared memory has it too, if there is any */
	AlDatabase *database = al_stat_database();
	MemoryContext context;
	BlockNumber blocks = RelationGetNumberOfBlocks(rel);
	BlockNumber looked;
	BlockNumber first;
	AlScan		scan;
	HeapTuple	tuple;

	swept->left = Min(swept->left, blocks);
	looked = Min(swept->left, max_blocks);
	if (looked == 0)
		return;
	if (database)
		stopped_at = pg_atomic_read_u64(&database->sweep_from);
	first = stopped_at < blocks ? (BlockNumber) stopped_at : 0;
	context = AllocSetContextCreate(CurrentMemoryContext, "sweep row", ALLOCSET_SMALL_SIZES);
	al_scan_begin_at(&scan, rel, first, looked);
	while (HeapTupleIsValid(tuple = al_scan_next(&scan)))
	{
		AlHolding	holding;
		TimestampTz over;

		if (swept->removed >= max_rows || al_claimed_count() >= al_max_claims)
		{
			looked = ((uint64) ItemPointerGetBlockNumber(&tuple->t_self) + blocks - first) % blocks;
			break;
		}
		al_row_peek(rel, tuple, &holding);
		over = over_at(&holding);
		if (now >= over)
		{
			MemoryContext old_context = MemoryContextSwitchTo(context);

			if (remove_row(rel, tuple, now))
			{
				swept->removed++;
				over = DT_NOEND;
			}
			MemoryContextSwitchTo(old_context);
			MemoryContextReset(context);
		}
		/* A session may end at any time. */
		else if (holding.lifetime == AL_SESSION && holding.released_at == 0)
			over = now;
		swept->next_due = Min(swept->next_due, over > now ? over - AHEAD : now);
	}
	al_scan_end(&scan);
	MemoryContextDelete(context);
	Assert(looked <= swept->left);
	swept->left -= looked;
	stopped_at = ((uint64) first + looked) % blocks;
	if (database)
		pg_atomic_write_u64(&database->sweep_from, stopped_at);
}

/*
 * Remove expired tickets and offers of at most max_keys keys, and let the commit offer those that
 * are free; fewer when the transaction will have max_claims_per_transaction claims.
 */
static void
sweep_queue(Relation rel, int64 max_rows, int64 max_keys, TimestampTz now, AlSwept *swept)
{
	text	   *next = al_string_text((AlString) {swept->queue_from, swept->queue_from_len});
	MemoryContext context;
	int			offers = 0;
	ListCell   *cell;

	Assert(max_rows > 0 && max_keys > 0);
	context = AllocSetContextCreate(CurrentMemoryContext, "sweep line", ALLOCSET_SMALL_SIZES);
	foreach(cell, al_tickets_sweep(&next, max_keys, max_rows, now, &swept->tickets, &swept->next_due))
	{
		const AlKey *key = lfirst(cell);
		MemoryContext old_context;

		CHECK_FOR_INTERRUPTS();
		if (al_claimed_count() + offers >= al_max_claims)
		{
			next = al_string_text(key->name);
			break;
		}
		old_context = MemoryContextSwitchTo(context);
		if (al_line_swept(rel, key))
			offers++;
		MemoryContextSwitchTo(old_context);
		MemoryContextReset(context);
	}
	MemoryContextDelete(context);
	swept->queue_done = next == NULL;
	if (next)
	{
		swept->queue_from_len = Min(al_string(next).len, AL_MAX_KEY_BYTES);
		memcpy(swept->queue_from, al_string(next).data, swept->queue_from_len);
	}
}

/* End of a transaction, after its claims are gone.  Never raises. */
void
al_sweep_over(void)
{
	if (!sweeping)
		return;
	sweeping = false;
	al_waiters_sweep_end();
}

void
al_sweep_begin(Relation rel, AlSwept *swept)
{
	swept->removed = 0;
	swept->left = RelationGetNumberOfBlocks(rel);
	swept->next_due = DT_NOEND;
	swept->trim_from = DT_NOBEGIN;
	swept->queue_done = false;
	swept->queue_from_len = 0;
}

/*
 * Continue a sweep, and note in "swept" the work done and left.  Removes at most max_rows rows,
 * and reads at most max_blocks blocks of app_lock, and as many keys of app_lock_queue.
 */
void
al_sweep(Relation rel, int64 max_rows, BlockNumber max_blocks, AlSwept *swept)
{
	TimestampTz now = GetCurrentTimestamp() + AHEAD;

	Assert(max_rows > 0 && CheckRelationLockedByMe(rel, RowExclusiveLock, true));
	/* Wait for locks on these tables before keys are claimed. */
	table_close(al_open_history(RowExclusiveLock), NoLock);
	table_close(al_open_queue(RowExclusiveLock), NoLock);
	sweeping = true;
	al_waiters_sweep_begin();
	swept->removed = swept->tickets = 0;
	sweep_rows(rel, max_rows, max_blocks, now, swept);
	/* Events of expired leases come before offers of their keys. */
	if (swept->left == 0 && !swept->queue_done && swept->removed < max_rows)
		sweep_queue(rel, max_rows - swept->removed, max_blocks, now, swept);
	swept->trimmed = al_history_trim(rel, max_rows - swept->removed - swept->tickets,
									 &swept->trim_from);
	/* More tickets or history may be left. */
	if (!swept->queue_done || swept->removed + swept->tickets + swept->trimmed >= max_rows)
		swept->left = Max(swept->left, 1);
	Assert(swept->removed + swept->tickets + swept->trimmed <= max_rows);
	al_stat_count(AL_COUNT_SWEPT, swept->removed);
	al_trace(DEBUG2, "sweep removed %lld holdings, %lld tickets and %lld rows of history; %u blocks are left",
			 (long long) swept->removed, (long long) swept->tickets, (long long) swept->trimmed, swept->left);
}
