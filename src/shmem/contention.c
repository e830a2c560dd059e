/*-------------------------------------------------------------------------
 *
 * lock_contention.c
 *		Which keys are wanted most: refused, or waited for.
 *
 * Model: time goes in windows of five minutes.  A key has counts for the current
 * window and for the one before, so that what is shown is of the last five to
 * ten minutes.  There is room for a few hundred keys of all databases.  Each
 * has one of eight places, by its hash; a key that finds no place takes that of
 * the least wanted of the eight.  So keys that many want are there, and how
 * often is right but for what was counted before a key got its place.
 *
 * Locking rules: counters are atomic.  A place is given to a key, or moved to
 * another window, under the lock of the statistics, and only where that is free:
 * a refusal waits for nothing, the next one will do.  Who counts may count for
 * the key that had the place before, or has it next.
 *
 * IDENTIFICATION
 *		src/shmem/contention.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "base/compat.h"
#include "funcapi.h"
#include "lock_lease.h"
#include "lock_stat.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(atomic_lock_contention);

#define WINDOW	(5 * USECS_PER_MINUTE)

/* All that is counted of a key, copied */
typedef struct Row
{
	uint64		refusals;
	uint64		waits;
	uint64		waited;
	uint64		longest;
	TimestampTz last_at;
	int			key_length;
	char		key[AL_MAX_KEY_BYTES];
} Row;

static uint64
tag_of(const AlKey *key)
{
	return Max(hash_combine64(key->hash, murmurhash32(MyDatabaseId)), 1);
}

/* How much a key was wanted of late; "window" is the current one */
static uint64
score(AlWanted *wanted, uint64 window)
{
	uint64		last = pg_atomic_read_u64(&wanted->window);
	uint64		sum = 0;

	for (uint64 i = window - 1; i <= window; i++)
	{
		if (i == last || i == last - 1)
			sum += pg_atomic_read_u64(&wanted->refusals[i & 1]) +
				pg_atomic_read_u64(&wanted->waits[i & 1]);
	}
	return sum;
}

static void
clear(AlWanted *wanted, uint64 window)
{
	int			i = window & 1;

	pg_atomic_write_u64(&wanted->refusals[i], 0);
	pg_atomic_write_u64(&wanted->waits[i], 0);
	pg_atomic_write_u64(&wanted->waited[i], 0);
	pg_atomic_write_u64(&wanted->longest[i], 0);
}

/* Is this the current window, or the next, of a clock that was read a bit later? */
static bool
is_current(uint64 last, uint64 window)
{
	return last == window || last == window + 1;
}

/* Make a place one of the current window.  The lock is held. */
static void
move_to(AlWanted *wanted, uint64 window)
{
	uint64		last = pg_atomic_read_u64(&wanted->window);

	if (is_current(last, window))
		return;
	clear(wanted, window);
	if (last + 1 != window)
		clear(wanted, window - 1);
	pg_atomic_write_u64(&wanted->window, window);
}

/* The place of a key, if it has one, in the current window */
static AlWanted *
find(AlStats *stats, uint64 tag, uint64 window, bool is_locked)
{
	AlWanted   *set = stats->wanted[tag % AL_WANTED_SETS];

	for (int i = 0; i < AL_WANTED_WAYS; i++)
	{
		if (pg_atomic_read_u64(&set[i].tag) == tag &&
			(is_locked || is_current(pg_atomic_read_u64(&set[i].window), window)))
			return &set[i];
	}
	return NULL;
}

/* Give a key the place of the least wanted.  The lock is held. */
static AlWanted *
replace(AlStats *stats, const AlKey *key, uint64 tag, uint64 window)
{
	AlWanted   *set = stats->wanted[tag % AL_WANTED_SETS];
	AlWanted   *least = &set[0];

	for (int i = 1; i < AL_WANTED_WAYS; i++)
	{
		if (score(&set[i], window) < score(least, window))
			least = &set[i];
	}
	clear(least, 0);
	clear(least, 1);
	least->database = MyDatabaseId;
	least->key_length = key->name.len;
	memcpy(least->key, key->name.data, key->name.len);
	pg_atomic_write_u64(&least->window, window);
	pg_atomic_write_u64(&least->tag, tag);
	return least;
}

/*
 * Somebody was refused a key, or has waited for it so many microseconds.  Raises
 * nothing, waits for nothing.
 */
void
al_wanted_count(const AlKey *key, TimestampTz at, bool is_wait, int64 waited)
{
	AlStats    *stats = al_stats();
	uint64		window = at / WINDOW;
	uint64		tag = tag_of(key);
	AlWanted   *wanted;
	int			i = window & 1;
	uint64		before;

	if (stats == NULL)
		return;
	wanted = find(stats, tag, window, false);
	if (wanted == NULL)
	{
		if (!LWLockConditionalAcquire(&stats->lock, LW_EXCLUSIVE))
			return;
		wanted = find(stats, tag, window, true);
		if (wanted)
			move_to(wanted, window);
		else
			wanted = replace(stats, key, tag, window);
		LWLockRelease(&stats->lock);
	}

	pg_atomic_write_u64(&wanted->last_at, at);
	if (!is_wait)
	{
		(void) pg_atomic_fetch_add_u64(&wanted->refusals[i], 1);
		return;
	}
	(void) pg_atomic_fetch_add_u64(&wanted->waits[i], 1);
	(void) pg_atomic_fetch_add_u64(&wanted->waited[i], waited);
	before = pg_atomic_read_u64(&wanted->longest[i]);
	while (before < (uint64) waited &&
		   !pg_atomic_compare_exchange_u64(&wanted->longest[i], &before, waited))
		;
}

/* Forget the keys of a database */
void
al_wanted_reset(Oid database)
{
	AlStats    *stats = al_stats();

	LWLockAcquire(&stats->lock, LW_EXCLUSIVE);
	for (int i = 0; i < AL_WANTED_SETS * AL_WANTED_WAYS; i++)
	{
		AlWanted   *wanted = &stats->wanted[0][0] + i;

		if (wanted->database != database)
			continue;
		pg_atomic_write_u64(&wanted->tag, 0);
		pg_atomic_write_u64(&wanted->window, 0);
		wanted->database = InvalidOid;
	}
	LWLockRelease(&stats->lock);
}

/* Copy what is known of a place, if it is one of this database; false: nothing */
static bool
copy_row(AlWanted *wanted, uint64 window, Row *row)
{
	uint64		last = pg_atomic_read_u64(&wanted->window);

	if (wanted->database != MyDatabaseId || pg_atomic_read_u64(&wanted->tag) == 0)
		return false;
	row->refusals = row->waits = row->waited = row->longest = 0;
	for (uint64 i = window - 1; i <= window; i++)
	{
		if (i != last && i != last - 1)
			continue;
		row->refusals += pg_atomic_read_u64(&wanted->refusals[i & 1]);
		row->waits += pg_atomic_read_u64(&wanted->waits[i & 1]);
		row->waited += pg_atomic_read_u64(&wanted->waited[i & 1]);
		row->longest = Max(row->longest, pg_atomic_read_u64(&wanted->longest[i & 1]));
	}
	row->last_at = (TimestampTz) pg_atomic_read_u64(&wanted->last_at);
	row->key_length = wanted->key_length;
	memcpy(row->key, wanted->key, wanted->key_length);
	return row->refusals + row->waits > 0;
}

static int
compare_rows(const void *a, const void *b)
{
	const Row  *x = a;
	const Row  *y = b;
	uint64		x_score = x->refusals + x->waits;
	uint64		y_score = y->refusals + y->waits;

	if (x_score != y_score)
		return x_score > y_score ? -1 : 1;
	return x->last_at > y->last_at ? -1 : x->last_at < y->last_at;
}

/* lock_contention(): a row for each key of this database that was wanted, most first */
Datum
atomic_lock_contention(PG_FUNCTION_ARGS)
{
	enum
	{
		KEY, REFUSALS, WAITS, TOTAL_WAIT, LONGEST_WAIT, LAST_AT, COLUMNS
	};
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	AlStats    *stats = al_stats_or_raise("it is not known which locks are wanted most");
	uint64		window = GetCurrentTimestamp() / WINDOW;
	Row		   *rows = palloc(AL_WANTED_SETS * AL_WANTED_WAYS * sizeof(Row));
	int			count = 0;

	InitMaterializedSRF(fcinfo, 0);
	LWLockAcquire(&stats->lock, LW_SHARED);
	for (int i = 0; i < AL_WANTED_SETS * AL_WANTED_WAYS; i++)
	{
		if (copy_row(&stats->wanted[0][0] + i, window, &rows[count]))
			count++;
	}
	LWLockRelease(&stats->lock);
	qsort(rows, count, sizeof(Row), compare_rows);

	for (int i = 0; i < count; i++)
	{
		Row		   *row = &rows[i];
		AlString	key = {row->key, row->key_length};
		Datum		values[COLUMNS];
		bool		nulls[COLUMNS] = {0};

		values[KEY] = PointerGetDatum(al_string_text(key));
		values[REFUSALS] = Int64GetDatum((int64) row->refusals);
		values[WAITS] = Int64GetDatum((int64) row->waits);
		values[TOTAL_WAIT] = al_interval_datum(row->waited);
		values[LONGEST_WAIT] = al_interval_datum(row->longest);
		values[LAST_AT] = TimestampTzGetDatum(row->last_at);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
