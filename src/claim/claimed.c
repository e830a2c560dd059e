/*-------------------------------------------------------------------------
 *
 * claimed.c
 *		The keys that the current transaction has claimed.
 *
 * Model: when the transaction ends, or rolls back to a savepoint, the claims go, and
 * whoever waits for one of these keys is woken: after the outcome is visible and the
 * claims are gone, which is when the resource owner has released its locks.  With a
 * key go the pins on it (lease/pin.c), since a pin is worth as much as its claim.
 *
 * Locking: none of its own.  Nothing here raises once the commit has begun.
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
#include "shmem/queue.h"

/* A key that the transaction has claimed */
typedef struct ClaimedKey
{
	uint64		hash;
	TimestampTz held_until;		/* 0: not known */
	uint64		owner_hash;		/* of whom it was granted to, if so */
	int			level;			/* of nesting, at which it was claimed */
	int			count;			/* of claims; 0: all given back */
	int			previous;		/* claimed at a level above it, too: where; or -1 */
	int			changes;		/* how many of them are not only to pin */
	int32		slot;			/* of the row that was written last ... */
	ItemPointerData row;		/* ... and where it is; invalid: none */
	AlPin	   *pins;			/* newest first, those of levels above at the end */
} ClaimedKey;

/* Which entry of a key is the newest */
typedef struct ClaimedPlace
{
	uint64		hash;
	int			place;
	char		status;
} ClaimedPlace;

#define SH_PREFIX places
#define SH_ELEMENT_TYPE ClaimedPlace
#define SH_KEY_TYPE uint64
#define SH_KEY hash
#define SH_HASH_KEY(table, key) murmurhash32((uint32) ((key) ^ ((key) >> 32)))
#define SH_EQUAL(table, a, b) ((a) == (b))
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

#define PLACES_KEPT 1024		/* a larger table is not kept for the next transaction */

/*
 * Keys claimed by the current transaction, in the order of their levels.  In
 * TopTransactionContext, which outlives the release of the locks.
 */
static ClaimedKey *claimed = NULL;
static places_hash *places = NULL;	/* empty between transactions */
static int	claims = 0;
static int	keys = 0;			/* claimed, each counted once */
static int	claims_size = 0;
static bool wake_pending = false;	/* a subtransaction is being rolled back */
static bool has_no_limit = false;	/* this transaction may claim any number */
static uint64 changes = 1;		/* see al_claimed_changes() */

/* Forget all of them: they are over, or a prepared transaction has them now. */
void
al_claimed_forget(void)
{
	claimed = NULL;
	claims = keys = claims_size = 0;
	wake_pending = has_no_limit = false;
	if (places && places->size > PLACES_KEPT)
	{
		places_destroy(places);
		places = NULL;
	}
	else if (places && places->members > 0)
		places_reset(places);
}

/* The newest entry of a key */
static ClaimedKey *
find_claimed(uint64 hash)
{
	ClaimedPlace *place = claims > 0 ? places_lookup(places, hash) : NULL;

	return place ? &claimed[place->place] : NULL;
}

/* What was claimed of a key at a level is gone; what was above it is the newest */
static void
unlink_claimed(const ClaimedKey *key)
{
	if (key->previous >= 0)
		places_lookup(places, key->hash)->place = key->previous;
	else
	{
		places_delete(places, key->hash);
		keys--;
	}
}

/*
 * Wake those who wait for the keys that were claimed at a level of nesting or below
 * it.  Where that is committed, leave hints to where their rows are.
 */
static void
wake(int level, bool committed)
{
	while (claims > 0 && claimed[claims - 1].level >= level)
	{
		ClaimedKey	key = claimed[--claims];

		if (committed && ItemPointerIsValid(&key.row))
			al_hint_set(key.hash, key.slot, &key.row);
		if (key.count == 0)
			continue;
		unlink_claimed(&key);
		al_queue_wake(key.hash, committed || key.changes == 0 ? key.held_until : 0,
					  key.owner_hash);
	}
}

/* The locks of the transaction have been released.  Raises nothing. */
void
al_claimed_released(bool committed)
{
	if (claimed == NULL)
		return;
	/* An error while aborting would make PostgreSQL abort again, without end. */
	if (committed)
		AL_TEST_POINT("before-wake");
	wake(0, committed);
	al_claimed_forget();
}

/* A level of nesting is rolled back; its locks will be released next. */
void
al_claimed_subabort(int level)
{
	al_claimed_changed();
	wake_pending = claims > 0 && claimed[claims - 1].level >= level;
}

/*
 * Locks of a subtransaction have been released, if one was rolled back.  What else
 * is released with resources of its own (a portal) did not hold claims.
 */
void
al_claimed_subreleased(int level)
{
	if (!wake_pending)
		return;
	wake_pending = false;
	wake(level, false);
}

/* A subtransaction commits: its claims are those of the one above it. */
void
al_claimed_subcommit(int level)
{
	int			first = claims;
	int			kept;

	while (first > 0 && claimed[first - 1].level >= level)
		first--;
	kept = first;
	for (int i = first; i < claims; i++)
	{
		ClaimedKey	key = claimed[i];
		ClaimedKey *above = key.previous >= 0 ? &claimed[key.previous] : NULL;

		if (key.count == 0)
			continue;
		key.level = level - 1;
		if (above == NULL || above->level != level - 1)
		{
			places_lookup(places, key.hash)->place = kept;
			claimed[kept++] = key;
			continue;
		}
		places_lookup(places, key.hash)->place = key.previous;
		key.count += above->count;
		if (key.changes == 0)
		{
			above->pins = key.pins;
			above->count = key.count;
		}
		else
		{
			key.previous = above->previous;
			key.changes += above->changes;
			*above = key;
		}
	}
	claims = kept;
}

/*
 * A claim is about to be taken: make room to note it, since nothing may go wrong
 * once it is taken.  Raises 54000 if it would be one key too many.
 */
void
al_claimed_reserve(uint64 hash)
{
	if (keys >= al_max_claims && !has_no_limit && find_claimed(hash) == NULL)
		ereport(ERROR,
				(al_errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("a transaction may touch at most %d lock keys", al_max_claims),
				 errhint("Use several transactions, or ask an administrator to raise atomic_lock.max_claims_per_transaction and max_locks_per_transaction.")));

	if (claims == claims_size)
	{
		int			size = Max(claims_size * 2, 8);

		if (claimed == NULL)
			claimed = MemoryContextAlloc(TopTransactionContext, size * sizeof(ClaimedKey));
		else
			claimed = repalloc_huge(claimed, size * sizeof(ClaimedKey));
		claims_size = size;
	}
	if (places == NULL)
		places = places_create(TopMemoryContext, 32, NULL);
	else if (places->members >= places->grow_threshold)
		places_grow(places, (uint64) places->size * 2);
}

/* Let this transaction claim any number of keys. */
void
al_claimed_lift_limit(void)
{
	has_no_limit = true;
}

/* A claim was taken, to pin a holding or for what is not known yet. */
void
al_claimed_add(uint64 hash, bool is_pin)
{
	int			level = GetCurrentTransactionNestLevel();
	bool		found;
	ClaimedPlace *place = places_insert(places, hash, &found);
	ClaimedKey *key = found ? &claimed[place->place] : NULL;

	/* A rollback to a savepoint leaves a weaker claim, but it wakes. */
	if (key == NULL || key->level < level)
	{
		ClaimedKey	new_key = {.hash = hash, .level = level, .previous = -1};

		if (key)
		{
			new_key.previous = place->place;
			new_key.pins = key->pins;
		}
		else
			keys++;
		/* al_claimed_reserve() has made room */
		Assert(claimed != NULL && claims < claims_size);
		place->place = claims;
		key = &claimed[claims++];
		*key = new_key;
	}
	else if (!is_pin)
	{
		key->held_until = 0;
		key->owner_hash = 0;
	}
	key->count++;
	if (!is_pin)
		key->changes++;
}

/* A claim was given back, at the level at which it was taken */
void
al_claimed_remove(uint64 hash, bool is_pin)
{
	ClaimedKey *key = find_claimed(hash);

	if (key == NULL)
		return;
	if (!is_pin)
		key->changes--;
	if (--key->count > 0)
		return;
	unlink_claimed(key);
	while (claims > 0 && claimed[claims - 1].count == 0)
		claims--;
}

/* Has this transaction claimed a key for more than to pin its holding? */
bool
al_claimed_is_changing(uint64 hash)
{
	ClaimedKey *key = find_claimed(hash);

	while (key && key->changes == 0)
		key = key->previous >= 0 ? &claimed[key->previous] : NULL;
	return key != NULL;
}

/* Has this transaction claimed a key? */
bool
al_claimed_has(uint64 hash)
{
	return find_claimed(hash) != NULL;
}

/* How many keys this transaction has claimed */
int
al_claimed_count(void)
{
	return keys;
}

/*
 * A lease was granted to an owner, or extended, under a claim of this transaction.
 * Nobody who looks at the key before "held_until" (0: not known) needs to be woken
 * when it commits, but those who wait for the same owner.
 */
void
al_claimed_granted(const AlKey *key, const AlOwner *owner, TimestampTz held_until)
{
	ClaimedKey *note = find_claimed(key->hash);

	if (note == NULL)
		return;
	if (note->level == GetCurrentTransactionNestLevel())
		note->held_until = held_until;
	if (!owner->generated)
		note->owner_hash = owner->hash;
}

/* The pins on keys of a hash: the newest, from which "next" leads to the others */
AlPin *
al_claimed_pins(uint64 hash)
{
	ClaimedKey *key = find_claimed(hash);

	return key ? key->pins : NULL;
}

/*
 * A holding was pinned, under a claim of this transaction.  Nobody who looks at
 * the key before "held_until" needs to be woken when it ends.
 */
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
 * This number changes with whatever this transaction changes about holdings, with
 * a rollback to a savepoint, and at the end: what was seen of a holding that
 * the transaction has claimed or pinned stays so while it does not.
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
 * A row was written: the holding in a slot of a key, by the hash of the key.  Its
 * place is a hint when it is committed: before that it would lead nobody else to
 * the version that they see.
 */
void
al_claimed_written(uint64 hash, int32 slot, ItemPointer row)
{
	ClaimedKey *key = find_claimed(hash);

	if (key)
	{
		key->slot = slot;
		key->row = *row;
	}
	al_claimed_changed();
}
