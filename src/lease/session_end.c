/*-------------------------------------------------------------------------
 *
 * session_end.c
 *		Ending the holdings of a session, when the session ends.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: a holding with the lifetime of a session is a row that names the session
 * (shmem/session.c).  The holding ends when that session no longer runs, however the
 * session ended.
 *
 *	1.	The session notes the keys of such holdings in a list, which may also contain keys
 *		that it no longer holds.
 *	2.	At an orderly end it ends the holdings in the table, by transactions of its own,
 *		whose commits wake waiters.
 *	3.	DISCARD ALL does the same, since a pooler then gives the connection to another client.
 *
 * Locking rules: at its end a session waits for no lock.  It leaves holdings whose keys
 * others have claimed, or all if the table is locked or a second has passed, to sessions
 * that find that this one no longer runs.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "tcop/utility.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/clock.h"
#include "base/errors.h"
#include "base/hash.h"
#include "base/key.h"
#include "base/owner.h"
#include "base/settings.h"
#include "base/str.h"
#include "base/testpoint.h"
#include "claim/claim.h"
#include "claim/claimed.h"
#include "claim/durability.h"
#include "claim/holding.h"
#include "lease/publish.h"
#include "lease/report.h"
#include "lease/session_end.h"
#include "lease/state.h"
#include "shmem/session.h"
#include "shmem/stat.h"
#include "table/app_lock.h"
#include "table/catalog.h"
#include "table/events.h"

static int
compare_owners(const ListCell *a, const ListCell *b)
{
	return al_string_compare(al_string(((AlHolding *) lfirst(a))->owner),
							 al_string(((AlHolding *) lfirst(b))->owner));
}

/* This session's holdings of a key, AlHolding * in *state, in the order of their owners */
static List *
find_mine(Relation rel, const AlKey *key, AlState *state)
{
	List	   *mine = NIL;
	ListCell   *cell;

	al_look(rel, key, NULL, AL_LOOK_ALL, state);
	foreach(cell, al_live_holdings(state, GetCurrentTimestamp()))
	{
		if (al_is_of_this_session(lfirst(cell)))
			mine = lappend(mine, lfirst(cell));
	}
	list_sort(mine, compare_owners);
	return mine;
}

/* Does this session have a holding of the key, or may it have one when others commit? */
static bool
holds_key(Relation rel, const AlKey *key)
{
	AlState		state;

	return al_claimed_has(key->hash) || al_claim_has_others(key->hash) ||
		find_mine(rel, key, &state) != NIL;
}

/*
 * Let this session's holdings of a key expire now; without "wait", skip claimed ones.  True: one
 * has changed meanwhile, and may be in another row now, so call this again.  With "wait", raises
 * 55P03 for a share whose row is locked by hand.
 */
static bool
end_key(Relation rel, const AlKey *key, bool wait)
{
	AlState		state;
	ListCell   *cell;
	bool		has_changed = false;

	/* A prepared transaction may have a holding of this session, too. */
	bool		left = !wait && al_claim_has_others(key->hash);

	foreach(cell, find_mine(rel, key, &state))
	{
		AlHolding	holding = *(AlHolding *) lfirst(cell);
		bool		is_shared = al_is_shared(&holding);
		TimestampTz now;
		AlOwner		owner;
		AlClaim		claim;
		AlClaimMode mode = is_shared ? AL_CLAIM_SHARE : AL_CLAIM_TAKE;

		al_owner_init(&owner, al_string(holding.owner));
		AL_TEST_POINT("session-end");
		if (wait)
			al_claim(&claim, key, is_shared ? &owner : NULL, mode);
		else if (!al_claim_try(&claim, key, is_shared ? &owner : NULL, mode))
		{
			al_trace(DEBUG1, "lock \"%s\": not ended with its session, since another transaction has claimed it",
					 al_display(key->name));
			left = true;
			continue;
		}

		al_table_find_slot(rel, key, holding.slot, &holding);
		now = GetCurrentTimestamp();
		/* An owner that was removed by hand is empty, which al_is_owned_by() never matches. */
		if (!al_is_live(&holding, now) || !al_is_of_this_session(&holding) ||
			!al_string_equal(al_string(holding.owner), owner.name))
		{
			al_claim_drop(&claim);
			has_changed = true;
			continue;
		}
		al_durability_before_release();
		al_stat_changed();
		/* An expired lease shows when it ended, which a dead session does not. */
		holding.lifetime = AL_LEASE;
		holding.expires_at = now;
		/* ttl 0 marks it: al_publish_end() sends the event of its end now, and not again. */
		holding.ttl = 0;
		if (!is_shared && wait)
			al_table_put(rel, key, &holding);
		else if (!al_table_try_put(rel, key, &holding))
		{
			al_table_find_slot(rel, key, holding.slot, &holding);
			if (wait && al_is_of_this_session(&holding) &&
				al_is_live(&holding, GetCurrentTimestamp()))
			{
				AlResult	locked = {.outcome = AL_IN_TRANSACTION,.blocker = AL_ROW_LOCKED};

				al_raise(key, &locked);
			}
			left = true;
			continue;
		}
		al_publish_end(key, &holding, now, AL_ENDED_SESSION, NULL);
		al_durability_released();
	}
	if (left)
		al_session_left();
	return has_changed;
}

/* Maximum number of keys in one transaction at the end of a session, and of changes of a key */
#define BATCH			500
#define MOST_CHANGES	10

/* Microseconds that the end of a session may take, which nobody can interrupt */
#ifdef AL_TEST_HOOKS
#define LONGEST_EXIT	AL_MS_TO_US(al_test_longest_exit_ms)
#else
#define LONGEST_EXIT	INT64CONST(1000000)
#endif

/* Hashed with a secret of this session, since CREATE EXTENSION changes the database's */
typedef struct NotedKey
{
	AlHash		hash;
	AlString	name;
} NotedKey;

static HTAB *noted = NULL;
static AlHash secret;
static long prune_at = 64;		/* number of keys at which prune() runs */

static ProcessUtility_hook_type previous_process_utility = NULL;

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

/* End this session's holdings of up to max_keys noted keys, and forget these keys */
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
		/* The exit cannot be interrupted, so leave a holding that keeps changing to other sessions. */
		for (int changes = 0; end_key(rel, &key, false); changes++)
		{
			if (changes == MOST_CHANGES)
			{
				al_session_left();
				break;
			}
		}
		forget(&key);
	}
}

/* Runs after at_exit(), even if that has failed */
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
	Assert(noted != NULL);
	AL_TEST_POINT("exit");
	/* No client waits for a flush or a standby. */
	synchronous_commit = SYNCHRONOUS_COMMIT_OFF;
	al_events_wait = false;
	while (hash_get_num_entries(noted) > 0 && al_monotonic_now() < until)
	{
		Relation	rel;
		bool		missing;

		StartTransactionCommand();
		/* The session's defaults might make the transaction fail or wait. */
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
	al_trace(DEBUG1, "the session has ended its locks; %ld keys were not visited",
			 (long) hash_get_num_entries(noted));
}

/* Forget the keys that this session no longer holds */
static void
prune(Relation rel)
{
	HASH_SEQ_STATUS status;
	AlKey		key;

	hash_seq_init(&status, noted);
	while (next_noted(&status, &key))
	{
		if (!holds_key(rel, &key))
			forget(&key);
	}
	prune_at = Max(hash_get_num_entries(noted) * 2, 64);
}

/* Note a key before this session is granted a holding of it; raises XX000 */
void
al_session_end_note(Relation rel, const AlKey *key)
{
	NotedKey   *entry;
	AlHash		hash;
	char	   *name;
	bool		found;

	Assert(!proc_exit_inprogress && IsTransactionState());
	if (noted == NULL)
	{
		HASHCTL		info = {.keysize = sizeof(AlHash), .entrysize = sizeof(NotedKey)};
		HTAB	   *keys;

		if (!pg_strong_random(&secret, sizeof(secret)))
			ereport(ERROR,
					(al_errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random values")));
		keys = hash_create("atomic_lock keys of the session", 64, &info,
						   HASH_ELEM | HASH_BLOBS);
		/* Registering may fail, so set the list, which at_exit() needs, last. */
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
		HASH_SEQ_STATUS status;
		AlKey		key;

		/* Keep the keys in the list, since this may abort.  The next client must hold none. */
		prune(rel);
		al_claimed_lift_limit();
		hash_seq_init(&status, noted);
		while (next_noted(&status, &key))
			while (end_key(rel, &key, true))
				CHECK_FOR_INTERRUPTS();
		al_trace(DEBUG1, "DISCARD ALL has ended the locks of the session, on at most %ld keys",
				 (long) hash_get_num_entries(noted));
		table_close(rel, NoLock);
	}
}

void
al_session_end_init(void)
{
	previous_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
}
