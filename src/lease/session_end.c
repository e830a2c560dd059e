/*-------------------------------------------------------------------------
 *
 * lock_session.c
 *		Holdings with the lifetime of a session.
 *
 * Model: such a holding is a row like a lease, which names the session: its
 * process id and the start of its backend, as pg_stat_activity shows them.
 * Anybody can see whether that backend still runs; where it does not, the
 * holding has ended, whatever became of the session.  That survives what
 * a session-level advisory lock would not: pg_advisory_unlock_all(), and a
 * process id that is used again.
 *
 * A session that ends in an orderly way also ends its holdings in the table, in
 * a transaction of its own, whose commit wakes who waits for them.  So does
 * DISCARD ALL, with which a pooler gives a connection to somebody else.  For
 * that the session keeps a list of keys; it may have more than it holds.
 *
 * Of a session that did not get that far it is not known when it ended; what
 * lock_delay is counted from then is a moment by which it had.  Sessions that
 * leave something behind note when, in shared memory; of those before a crash, or
 * on another server, it is when this server could first be written to.
 *
 * A standby cannot see the sessions of its primary: there they all live.
 *
 * Locking rules: at its end a session waits for nobody.  What others have
 * claimed, the whole table while somebody alters it, and what there is no time for
 * is left to those who find that the session is gone.
 *
 * IDENTIFICATION
 *		src/lease/session_end.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "base/compat.h"
#include "lock_lease.h"
#include "lock_stat.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "tcop/utility.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

/* Claims taken in one transaction at the end of a session */
#define BATCH	500

/*
 * Microseconds that the end of a session may take, which nobody can interrupt.  Whatever
 * it holds then is free all the same, only that nobody is woken for it.
 */
#ifdef AL_TEST_HOOKS
double		al_test_longest_exit_ms = 1000;

#define LONGEST_EXIT	AL_MS_TO_US(al_test_longest_exit_ms)
#else
#define LONGEST_EXIT	INT64CONST(1000000)
#endif

/*
 * By a secret of the session: that of the database may become another one, where
 * the extension is created again
 */
typedef struct NotedKey
{
	AlHash		hash;
	AlString	name;
} NotedKey;

static HTAB *noted = NULL;
static AlHash secret;
static long prune_at = 64;

static ProcessUtility_hook_type previous_process_utility = NULL;

/* Does the session with this process id and start of its backend still run? */
bool
al_session_is_alive(int pid, TimestampTz backend_start)
{
	PgBackendStatus *entries;

	if (RecoveryInProgress() || MyBEEntry == NULL)
		return true;
	if (pid == MyProcPid)
		return backend_start == MyStartTimestamp;

	entries = al_backend_entries();
	for (int i = 0; i < MaxBackends; i++)
	{
		volatile PgBackendStatus *entry = &entries[i];
		int			entry_pid = entry->st_procpid;
		TimestampTz entry_start = 0;

		if (entry_pid != pid)
			continue;
		for (;;)
		{
			int			before;
			int			after;

			pgstat_begin_read_activity(entry, before);
			entry_pid = entry->st_procpid;
			entry_start = entry->st_proc_start_timestamp;
			pgstat_end_read_activity(entry, after);
			if (pgstat_read_activity_complete(before, after))
				break;
			CHECK_FOR_INTERRUPTS();
		}
		if (entry_pid == pid && entry_start == backend_start)
			return true;
	}
	return false;
}

/* Note that something had happened by now, if it is not noted yet; returns what is */
static TimestampTz
note_now(pg_atomic_uint64 *noted_at, TimestampTz before)
{
	uint64		expected = before;

	(void) pg_atomic_compare_exchange_u64(noted_at, &expected, GetCurrentTimestamp());
	return (TimestampTz) pg_atomic_read_u64(noted_at);
}

/* The server can be written to; sessions of before, or of another server, had ended */
TimestampTz
al_session_begin(void)
{
	return note_now(&al_stats()->writable_at, 0);
}

/* When a session that runs no more has left a holding behind; 0: it did not say */
static TimestampTz
find_left(AlStats *stats, const AlHolding *holding)
{
	TimestampTz at = 0;

	LWLockAcquire(&stats->lock, LW_SHARED);
	for (int i = 0; i < AL_LEFT; i++)
	{
		const AlLeft *left = &stats->left[i];

		if (left->pid == holding->pid && left->backend_start == holding->backend_start)
			at = left->at;
	}
	LWLockRelease(&stats->lock);
	return at;
}

/*
 * By when the session with which a holding ends had ended, which runs no more.
 * Without shared memory that may be when the holding runs out, or if it does not,
 * as early as when the session began.
 */
TimestampTz
al_session_ended_by(const AlHolding *holding)
{
	AlStats    *stats = al_stats();
	TimestampTz ended_by = stats ? find_left(stats, holding) : 0;

	if (ended_by != 0)
		return ended_by;
	ended_by = stats ? al_session_begin() : al_writable_since();
	if (ended_by >= holding->backend_start)
		return ended_by;
	ended_by = stats ? (TimestampTz) pg_atomic_read_u64(&stats->left_at) : 0;
	if (ended_by >= holding->backend_start)
		return ended_by;

	/* It is none of these, and left nothing that had not run out. */
	if (holding->expires_at <= GetCurrentTimestamp())
		return holding->expires_at;
	if (stats)
		return note_now(&stats->left_at, ended_by);
	return holding->expires_at == DT_NOEND ? holding->backend_start : holding->expires_at;
}

/* This session ends and has left something behind that it held */
void
al_session_left(void)
{
	AlStats    *stats = al_stats();
	AlLeft	   *left = NULL;

	if (stats == NULL)
		return;
	LWLockAcquire(&stats->lock, LW_EXCLUSIVE);
	for (int i = 0; i < AL_LEFT; i++)
	{
		if (stats->left[i].pid == MyProcPid && stats->left[i].backend_start == MyStartTimestamp)
			left = &stats->left[i];
	}
	if (left == NULL)
	{
		left = &stats->left[stats->next_left];
		stats->next_left = (stats->next_left + 1) % AL_LEFT;
		/* What had the place is not there any more. */
		if (left->pid != 0)
			pg_atomic_write_u64(&stats->left_at,
								Max(pg_atomic_read_u64(&stats->left_at), (uint64) left->at));
	}
	left->pid = MyProcPid;
	left->backend_start = MyStartTimestamp;
	left->at = GetCurrentTimestamp();
	LWLockRelease(&stats->lock);
}

/* Is the holding one that ends with this session? */
bool
al_session_is_mine(const AlHolding *holding)
{
	return holding->lifetime == AL_SESSION && holding->pid == MyProcPid &&
		holding->backend_start == MyStartTimestamp;
}

/* The next noted key; false at the end */
static bool
next_noted(HASH_SEQ_STATUS *status, AlKey *key)
{
	NotedKey   *entry = hash_seq_search(status);

	if (entry == NULL)
		return false;
	al_key_init(key, entry->name);
	return true;
}

static void
forget(const AlKey *key)
{
	char	   *name = (char *) key->name.data;
	AlHash		hash;

	al_hash_bytes(&secret, key->name, &hash);
	(void) hash_search(noted, &hash, HASH_REMOVE, NULL);
	pfree(name);
}

/* End what this session holds of so many noted keys, which are forgotten */
static void
end_some(Relation rel, int max_keys)
{
	HASH_SEQ_STATUS status;
	AlKey		key;

	hash_seq_init(&status, noted);
	while (next_noted(&status, &key))
	{
		if (max_keys-- == 0)
		{
			hash_seq_term(&status);
			break;
		}
		al_lease_end_session(rel, &key, false);
		forget(&key);
	}
}

/* After at_exit(), even if that has failed */
static void
after_exit(int code, Datum arg)
{
	if (noted && hash_get_num_entries(noted) > 0)
		al_session_left();
}

static void
at_exit(int code, Datum arg)
{
	int64		until = al_monotonic_now() + LONGEST_EXIT;

	AbortOutOfAnyTransaction();
	AL_INJECTION_POINT("atomic-lock-exit");
	/* Nobody is there to wait for a flush, or for a standby. */
	synchronous_commit = SYNCHRONOUS_COMMIT_OFF;
	while (hash_get_num_entries(noted) > 0 && al_monotonic_now() < until)
	{
		Relation	rel;
		bool		missing;

		StartTransactionCommand();
		/* What the session has set as its default could wait, too. */
		XactIsoLevel = XACT_READ_COMMITTED;
		XactReadOnly = XactDeferrable = false;
		PushActiveSnapshot(GetTransactionSnapshot());
		rel = al_open_now(&missing);
		if (rel)
		{
			end_some(rel, Min(BATCH, al_max_claims));
			table_close(rel, NoLock);
		}
		PopActiveSnapshot();
		CommitTransactionCommand();
		if (rel == NULL)
			break;
	}
}

/* Forget those keys of which this session holds nothing any more */
static void
prune(Relation rel)
{
	HASH_SEQ_STATUS status;
	AlKey		key;

	hash_seq_init(&status, noted);
	while (next_noted(&status, &key))
	{
		if (!al_lease_of_session(rel, &key))
			forget(&key);
	}
	prune_at = Max(hash_get_num_entries(noted) * 2, 64);
}

/* This session is about to hold a key */
void
al_session_note(Relation rel, const AlKey *key)
{
	NotedKey   *entry;
	AlHash		hash;
	char	   *name;
	bool		found;

	if (noted == NULL)
	{
		HASHCTL		info = {.keysize = sizeof(AlHash), .entrysize = sizeof(NotedKey)};
		HTAB	   *keys;

		if (!pg_strong_random(&secret, sizeof(secret)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR), al_hide_owners(),
					 errmsg("could not generate random values")));
		keys = hash_create("atomic_lock keys of the session", 64, &info,
						   HASH_ELEM | HASH_BLOBS);
		/* They may raise; at_exit() must never be without the list. */
		before_shmem_exit(after_exit, (Datum) 0);
		before_shmem_exit(at_exit, (Datum) 0);
		noted = keys;
	}
	al_hash_bytes(&secret, key->name, &hash);
	if (hash_search(noted, &hash, HASH_FIND, NULL))
		return;
	if (hash_get_num_entries(noted) >= prune_at)
		prune(rel);

	name = MemoryContextAlloc(TopMemoryContext, key->name.len);
	memcpy(name, key->name.data, key->name.len);
	entry = hash_search(noted, &hash, HASH_ENTER, &found);
	entry->name.data = name;
	entry->name.len = key->name.len;
}

/*
 * End all that this session holds, in the current transaction, which may fail;
 * so nothing is forgotten.  No limit on claims: what is left would be somebody
 * else's.
 */
static void
end_all(Relation rel)
{
	HASH_SEQ_STATUS status;
	AlKey		key;
	int			max_claims = al_max_claims;

	prune(rel);
	al_max_claims = INT_MAX;
	PG_TRY();
	{
		hash_seq_init(&status, noted);
		while (next_noted(&status, &key))
			al_lease_end_session(rel, &key, true);
	}
	PG_FINALLY();
	{
		al_max_claims = max_claims;
	}
	PG_END_TRY();
}

/* DISCARD ALL ends what a session has, and so what it holds */
static void
process_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
				ProcessUtilityContext context, ParamListInfo params,
				QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	bool		discard_all = IsA(pstmt->utilityStmt, DiscardStmt) &&
		((DiscardStmt *) pstmt->utilityStmt)->target == DISCARD_ALL;

	if (previous_process_utility)
		previous_process_utility(pstmt, queryString, readOnlyTree, context, params,
								 queryEnv, dest, qc);
	else
		standard_ProcessUtility(pstmt, queryString, readOnlyTree, context, params,
								queryEnv, dest, qc);

	if (discard_all && noted && hash_get_num_entries(noted) > 0 &&
		al_is_installed())
	{
		Relation	rel = al_open_app_lock(RowExclusiveLock);

		end_all(rel);
		table_close(rel, NoLock);
	}
}

void
al_session_init(void)
{
	previous_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
}
