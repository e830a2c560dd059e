/*-------------------------------------------------------------------------
 *
 * lock_sweep.c
 *		Sweep: remove rows of app_lock that are over.
 *
 * Model: nothing depends on a sweep.  An expired lease is free at once, and the
 * next grant of its key takes the row; a sweep removes the rows of keys that
 * nobody wants any more.
 *
 * A row is over when its lease ran out, or its session died, lock_delay ago, or
 * when it was released released_retention ago.  A sweep looks, claims, looks
 * again, as all verbs do, but it never waits for a claim: what an unfinished
 * transaction has claimed it leaves.  Claims are given back when the transaction
 * ends, which wakes those who wait for the keys.
 *
 * A sweep's claims are on keys that are free, and others shall find them so: an
 * acquire that meets one waits for a moment (lock_attempt.c).
 *
 * Rows are taken as they lie in the table.  A sweep begins where the last one has
 * stopped, and comes round; so many small ones do not look at the same rows
 * again and again.
 *
 * Locking rules: app_lock is open with RowExclusiveLock.
 *
 * IDENTIFICATION
 *		src/sweep/sweep.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "base/compat.h"
#include "lock_lease.h"
#include "lock_stat.h"
#include "lock_wait.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#ifdef AL_TEST_HOOKS
double		al_test_sweep_ahead_ms = 0;
bool		al_test_pause_in_sweep = false;
bool		al_test_pause_before_sweep = false;

#define AHEAD	AL_MS_TO_US(al_test_sweep_ahead_ms)
#else
#define AHEAD	0
#endif

PG_FUNCTION_INFO_V1(atomic_lock_sweep);

static bool sweeping = false;	/* and others can see it */

/* When is there nothing left that a row is needed for?  DT_NOEND: not known */
static TimestampTz
over_at(const AlHolding *holding)
{
	if (holding->released_at != 0)
		return al_add_duration(holding->released_at, AL_MS_TO_US(al_released_retention_ms));
	return al_closed_until(holding);
}

/* Remove a row that is over, unless somebody has claimed its key, or locked it; false: it stays */
static bool
remove_row(Relation rel, HeapTuple tuple, TimestampTz now)
{
	AlHolding	holding;
	AlKey		key;
	AlClaim		claim;

	al_row_read(rel, tuple, &holding);
	al_key_init(&key, holding.key);
#ifdef AL_TEST_HOOKS
	al_test_pause(al_test_pause_before_sweep);
#endif
	AL_INJECTION_POINT("atomic-lock-sweep-chosen");
	if (!al_claim_try(&claim, &key, NULL, AL_CLAIM_TAKE))
		return false;
	al_table_find_again(rel, &key, &holding);
	AL_INJECTION_POINT("atomic-lock-sweep-claimed");
	/* By what our own transaction has kept, the life of what it acquires counts. */
	if (!ItemPointerIsValid(&holding.tid) || now < over_at(&holding) ||
		(al_max_lifetime_ms > 0 && al_is_kept(&key, &holding)) ||
		!al_table_try_delete(rel, &holding))
	{
		al_claim_drop(&claim);
		return false;
	}
	if (holding.released_at == 0)
		al_stat_count(AL_COUNT_EXPIRATIONS, 1);
#ifdef AL_TEST_HOOKS
	al_test_pause(al_test_pause_in_sweep);
#endif
	return true;
}

/*
 * Does a process sweep in its transaction?  Then its claims are on keys that
 * are free, and go soon.
 */
bool
al_is_sweeping(int pid)
{
	AlQueue    *queue = al_queue();

	for (int i = 0; queue && i < MaxBackends; i++)
	{
		if (pg_atomic_read_u32(&queue->slots[i].sweeping) == (uint32) pid)
			return true;
	}
	return false;
}

/* The transaction is over, and its claims are gone.  Raises nothing. */
void
al_sweep_over(void)
{
	if (!sweeping)
		return;
	sweeping = false;
	pg_atomic_write_u32(&al_queue()->slots[al_my_proc_number()].sweeping, 0);
}

/* A sweep of the whole table is to begin */
void
al_sweep_begin(Relation rel, AlSwept *swept)
{
	swept->removed = 0;
	swept->left = RelationGetNumberOfBlocks(rel);
	swept->next_due = DT_NOEND;
}

/*
 * Go on with a sweep: remove rows that are over, up to max_rows and to what the
 * transaction may still claim, in up to max_blocks blocks.  Says how many, how many
 * blocks are left, and when the next row will be over, as far as that is known.
 */
void
al_sweep(Relation rel, int64 max_rows, BlockNumber max_blocks, AlSwept *swept)
{
	static uint64 stopped_at = 0;	/* where there is no shared memory */
	AlDatabase *database = al_stat_database();
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "sweep row",
												  ALLOCSET_SMALL_SIZES);
	TimestampTz now = GetCurrentTimestamp() + AHEAD;
	BlockNumber blocks = RelationGetNumberOfBlocks(rel);
	BlockNumber count = Min(Min(swept->left, max_blocks), blocks);
	BlockNumber first;
	BlockNumber looked = count;
	AlScan		scan;

	if (al_queue())
	{
		sweeping = true;
		pg_atomic_write_u32(&al_queue()->slots[al_my_proc_number()].sweeping, MyProcPid);
	}
	if (database)
		stopped_at = pg_atomic_read_u64(&database->sweep_from);
	first = stopped_at < blocks ? (BlockNumber) stopped_at : 0;
	swept->removed = 0;
	al_scan_begin_at(&scan, rel, first, count);
	for (;;)
	{
		HeapTuple	tuple = count > 0 ? al_scan_next(&scan) : NULL;
		MemoryContext old_context;
		AlHolding	holding;
		TimestampTz over;

		if (!HeapTupleIsValid(tuple))
			break;
		if (swept->removed >= max_rows || al_xact_claims() >= al_max_claims)
		{
			BlockNumber block = ItemPointerGetBlockNumber(&tuple->t_self);

			looked = block >= first ? block - first : block + (blocks - first);
			break;
		}
		al_row_peek(rel, tuple, &holding);
		over = over_at(&holding);
		if (now >= over)
		{
			old_context = MemoryContextSwitchTo(context);
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

	swept->left -= Min(looked, swept->left);
	if (blocks == 0)
		swept->left = 0;
	else
		stopped_at = ((uint64) first + looked) % blocks;
	if (database)
		pg_atomic_write_u64(&database->sweep_from, stopped_at);
	al_stat_count(AL_COUNT_SWEPT, swept->removed);
}

/* lock_sweep(max_rows): how many rows were removed */
Datum
atomic_lock_sweep(PG_FUNCTION_ARGS)
{
	Relation	rel = al_open_for_writing("lock_sweep()");
	int64		max_rows = al_sweep_batch;
	TimestampTz started_at;
	AlSwept		swept;

	if (!PG_ARGISNULL(0))
		max_rows = PG_GETARG_INT64(0);
	if (max_rows < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), al_hide_owners(),
				 errmsg("max_rows must be at least 1")));

	started_at = GetCurrentTimestamp();
	al_sweep_begin(rel, &swept);
	al_sweep(rel, max_rows, InvalidBlockNumber, &swept);
	al_stat_count(AL_COUNT_SWEEPS, 1);
	al_stat_swept(started_at, swept.removed, false);
	table_close(rel, swept.removed > 0 ? NoLock : RowExclusiveLock);
	PG_RETURN_INT64(swept.removed);
}
