/*-------------------------------------------------------------------------
 *
 * claimed.c
 *		The keys that the current transaction has claimed.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: step 6 in atomic_lock.h.  When the transaction, or a subtransaction that rolls back,
 * has released its locks, the first waiter for each key is woken, and with it the waiters of
 * the owner that got the key.  A waiter that is due while the key stays held is left asleep.
 * The pins on a key (lease/pin.c) end with its claim, which protects them.
 *
 * A key has an entry for each level of nesting that has claimed it, in the order of the
 * levels: a rollback drops the entries of its level, and what is left is still claimed.
 *
 * Locking: none of its own.  After pre-commit, no function here raises.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "utils/memutils.h"

#include "atomic_lock.h"
#include "base/errors.h"
#include "base/settings.h"
#include "base/testpoint.h"
#include "claim/claimed.h"
#include "shmem/hint.h"
#include "shmem/waiters.h"

typedef struct ClaimedKey
{
	uint64		hash;
	TimestampTz held_until;		/* held at least until then if we commit; 0: not known */
	uint64		owner_hash;		/* the waiters of this owner are woken at the end; 0: none */
	int			level;			/* of nesting at which it was claimed */
	int			claim_count;	/* 0: all given back */
	int			previous;		/* index of the key's entry of an outer level; or -1 */
	int			changes;		/* claims that are for more than a pin */
	int			freed;			/* holdings ended, minus holdings begun */
	int32		slot;			/* of the row that was written last ... */
	ItemPointerData row;		/* ... and where it is; invalid: none */
	AlPin	   *pins;			/* newest first, then those of outer levels */
} ClaimedKey;

typedef struct ClaimedIndex
{
	uint64		hash;
	int			index;
	char		status;
} ClaimedIndex;

#define SH_PREFIX claimed_index
#define SH_ELEMENT_TYPE ClaimedIndex
#define SH_KEY_TYPE uint64
#define SH_KEY hash
#define SH_HASH_KEY(table, key) murmurhash32((uint32) ((key) ^ ((key) >> 32)))
#define SH_EQUAL(table, a, b) ((a) == (b))
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

/* A larger table is not kept for the next transaction. */
#define INDEX_KEPT 1024

/* In the order of their levels.  TopTransactionContext outlives the release of the locks. */
static ClaimedKey *claimed = NULL;
static claimed_index_hash *by_hash = NULL;	/* empty between transactions */
static int	entries = 0;
static int	distinct_keys = 0;
static int	entries_size = 0;
static bool wake_pending = false;	/* a subtransaction is being rolled back */
static bool has_no_limit = false;	/* this transaction may claim any number */
static uint64 changes = 1;		/* see al_claimed_changes() */

/* Forget all claims: they have ended, or belong to a prepared transaction now. */
void
al_claimed_forget(void)
{
	claimed = NULL;
	entries = distinct_keys = entries_size = 0;
	wake_pending = has_no_limit = false;
	if (by_hash && by_hash->size > INDEX_KEPT)
	{
		claimed_index_destroy(by_hash);
		by_hash = NULL;
	}
	else if (by_hash && by_hash->members > 0)
		claimed_index_reset(by_hash);
}

static ClaimedKey *
find_claimed(uint64 hash)
{
	ClaimedIndex *entry = entries > 0 ? claimed_index_lookup(by_hash, hash) : NULL;

	return entry ? &claimed[entry->index] : NULL;
}

/* Make the entry of the outer level the newest one of the key. */
static void
unlink_claimed(const ClaimedKey *key)
{
	Assert(distinct_keys > 0 && key->previous < entries);
	if (key->previous >= 0)
		claimed_index_lookup(by_hash, key->hash)->index = key->previous;
	else
	{
		claimed_index_delete(by_hash, key->hash);
		distinct_keys--;
	}
}

/*
 * Drop the entries of a level and those nested in it, newest first, and wake the waiters for
 * the key of each.  On commit, leave hints to the rows that were written.  Raises nothing.
 */
static void
end_entries(int level, bool committed)
{
	while (entries > 0 && claimed[entries - 1].level >= level)
	{
		ClaimedKey	key = claimed[--entries];

		if (committed && ItemPointerIsValid(&key.row))
			al_hint_set(key.hash, key.slot, &key.row);
		if (key.claim_count == 0)
			continue;
		unlink_claimed(&key);
		/* A rollback undoes a grant, but not the lease that was only pinned. */
		al_waiters_wake(key.hash, committed || key.changes == 0 ? key.held_until : 0,
						key.owner_hash);
	}
}

/* The locks of the transaction have been released.  Raises nothing. */
void
al_claimed_released(bool committed)
{
	has_no_limit = false;		/* also where nothing was claimed */
	if (claimed == NULL)
		return;
	/* An error while aborting would make PostgreSQL abort again, without end. */
	if (committed)
		AL_TEST_POINT("before-wake");
	end_entries(0, committed);
	al_claimed_forget();
}

void
al_claimed_subabort(int level)
{
	Assert(level > 1);
	al_claimed_changed();
	wake_pending = entries > 0 && claimed[entries - 1].level >= level;
}

/*
 * A resource owner below the top one, such as a portal's, has released its locks.  True: it was
 * that of a subtransaction which claimed keys and is being rolled back.
 */
bool
al_claimed_subreleased(int level)
{
	if (!wake_pending)
		return false;
	wake_pending = false;
	end_entries(level, false);
	return true;
}

/* A subtransaction commits: its claims now belong to the outer level. */
void
al_claimed_subcommit(int level)
{
	int			first = entries;
	int			kept;

	Assert(level > 1);
	while (first > 0 && claimed[first - 1].level >= level)
		first--;
	kept = first;
	for (int i = first; i < entries; i++)
	{
		ClaimedKey	key = claimed[i];
		ClaimedKey *outer = key.previous >= 0 ? &claimed[key.previous] : NULL;

		if (key.claim_count == 0)
			continue;
		key.level = level - 1;
		if (outer == NULL || outer->level != level - 1)
		{
			claimed_index_lookup(by_hash, key.hash)->index = kept;
			claimed[kept++] = key;
			continue;
		}
		claimed_index_lookup(by_hash, key.hash)->index = key.previous;
		key.claim_count += outer->claim_count;
		key.freed += outer->freed;
		if (key.changes == 0)
		{
			outer->pins = key.pins;
			outer->claim_count = key.claim_count;
			outer->freed = key.freed;
		}
		else
		{
			key.previous = outer->previous;
			key.changes += outer->changes;
			*outer = key;
		}
	}
	entries = kept;
}

/* Make room for al_claimed_add(), which must not fail.  Raises 54000 at the limit. */
void
al_claimed_reserve(uint64 hash)
{
	if (distinct_keys >= al_max_claims && !has_no_limit && find_claimed(hash) == NULL)
		ereport(ERROR,
				(al_errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("a transaction may touch at most %d lock keys", al_max_claims),
				 errhint("Use several transactions, or ask an administrator to raise atomic_lock.max_claims_per_transaction and max_locks_per_transaction.")));

	if (entries == entries_size)
	{
		int			size = Max(entries_size * 2, 8);

		if (claimed == NULL)
			claimed = MemoryContextAlloc(TopTransactionContext, size * sizeof(ClaimedKey));
		else
			claimed = repalloc_huge(claimed, size * sizeof(ClaimedKey));
		entries_size = size;
	}
	if (by_hash == NULL)
		by_hash = claimed_index_create(TopMemoryContext, 32, NULL);
	else if (by_hash->members >= by_hash->grow_threshold)
		claimed_index_grow(by_hash, (uint64) by_hash->size * 2);
}

/* Let this transaction claim any number of keys, until it ends. */
void
al_claimed_lift_limit(void)
{
	has_no_limit = true;
}

/* Note a claim, for a pin or anything else.  al_claimed_reserve() has made room. */
void
al_claimed_add(uint64 hash, bool is_pin)
{
	int			level = GetCurrentTransactionNestLevel();
	bool		found;
	ClaimedIndex *entry = claimed_index_insert(by_hash, hash, &found);
	ClaimedKey *key = found ? &claimed[entry->index] : NULL;

	/* The rollback of an inner level wakes waiters, and may leave a weaker claim. */
	if (key == NULL || key->level < level)
	{
		ClaimedKey	new_key = {.hash = hash, .level = level, .previous = -1};

		if (key)
		{
			new_key.previous = entry->index;
			new_key.pins = key->pins;
		}
		else
			distinct_keys++;
		Assert(claimed != NULL && entries < entries_size);
		Assert(entries == 0 || claimed[entries - 1].level <= level);
		entry->index = entries;
		key = &claimed[entries++];
		*key = new_key;
	}
	else if (!is_pin)
	{
		key->held_until = 0;
		key->owner_hash = 0;
	}
	key->claim_count++;
	if (!is_pin)
		key->changes++;
}

void
al_claimed_remove(uint64 hash, bool is_pin)
{
	ClaimedKey *key = find_claimed(hash);

	if (key == NULL)
		return;
	Assert(key->level == GetCurrentTransactionNestLevel());
	Assert(key->claim_count > 0 && (is_pin || key->changes > 0));
	if (!is_pin)
		key->changes--;
	if (--key->claim_count > 0)
		return;
	unlink_claimed(key);
	while (entries > 0 && claimed[entries - 1].claim_count == 0)
		entries--;
}

/* Has this transaction claimed a key for more than a pin? */
bool
al_claimed_is_changing(uint64 hash)
{
	ClaimedKey *key = find_claimed(hash);

	while (key && key->changes == 0)
		key = key->previous >= 0 ? &claimed[key->previous] : NULL;
	return key != NULL;
}

bool
al_claimed_has(uint64 hash)
{
	return find_claimed(hash) != NULL;
}

/* The transaction has ended "holdings" of the key; negative: it has begun them. */
void
al_claimed_freed(uint64 hash, int holdings)
{
	ClaimedKey *key = find_claimed(hash);

	if (key)
		key->freed += holdings;
}

/* Has this transaction ended more holdings of a key than it has begun? */
bool
al_claimed_has_freed(uint64 hash)
{
	ClaimedKey *key = find_claimed(hash);
	int			freed = 0;

	for (; key; key = key->previous >= 0 ? &claimed[key->previous] : NULL)
		freed += key->freed;
	return freed > 0;
}

/* The number of claimed keys, tickets included */
int
al_claimed_count(void)
{
	return distinct_keys;
}

/*
 * Note that a lease was granted or extended under a claim of this transaction.  Until
 * "held_until" (0: not known) the commit wakes only waiters of this owner, and those due later.
 * For a share that counts only if it was the only change: another one may have freed a seat.
 */
void
al_claimed_granted(const AlKey *key, const AlOwner *owner, TimestampTz held_until,
				   bool is_shared)
{
	ClaimedKey *note = find_claimed(key->hash);

	if (note == NULL)
		return;
	if (note->level == GetCurrentTransactionNestLevel())
		note->held_until = is_shared && (note->changes > 1 || note->previous >= 0) ? 0 : held_until;
	if (!owner->generated)
		note->owner_hash = owner->hash;
}

/* The newest pin on the keys of a hash; "next" leads to the others. */
AlPin *
al_claimed_pins(uint64 hash)
{
	ClaimedKey *key = find_claimed(hash);

	return key ? key->pins : NULL;
}

/* Note a pin.  Waiters that look again before "held_until" need not be woken at its end. */
void
al_claimed_pin(uint64 hash, AlPin *pin, TimestampTz held_until)
{
	ClaimedKey *key = find_claimed(hash);

	if (key == NULL)
		return;
	pin->next = key->pins;
	key->pins = pin;
	if (key->changes == 0)
		key->held_until = held_until;
}

/*
 * This number changes whenever this transaction changes a holding, rolls back to a savepoint, or
 * ends.  Until then, an earlier look at a holding under its claim or pin is still true.
 */
uint64
al_claimed_changes(void)
{
	return changes;
}

void
al_claimed_changed(void)
{
	changes++;
}

/*
 * Note the location of a row that was written.  It becomes a hint at commit: before, it would
 * lead others to a version that they do not see.
 */
void
al_claimed_written(uint64 hash, int32 slot, ItemPointer row)
{
	ClaimedKey *key = find_claimed(hash);

	Assert(ItemPointerIsValid(row));
	if (key)
	{
		key->slot = slot;
		key->row = *row;
	}
	al_claimed_changed();
}
