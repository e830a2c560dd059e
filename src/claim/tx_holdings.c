/*-------------------------------------------------------------------------
 *
 * tx_holdings.c
 *		Holdings with the lifetime of a transaction.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: such a holding is a claim on the key (claim/claim.c), which ends with the
 * transaction, prepared or not.  The holding has no row and needs no transaction id.  The
 * claim tells others which transaction has the key.  This file has the rest: a list of the
 * transaction's holdings.  The first few are shown in shared memory, if there is any, to
 * people and to an owner that calls from another session.
 *
 * The list is a stack of versions.  A holding that is released, converted or transferred
 * gets a new version on top.  A rollback to a savepoint removes the versions made since.
 * Others see a release when the transaction ends, as with leases.
 *
 * Locking rules: a lock of its own protects what is shown, and is held while a few
 * entries are copied.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "atomic_lock.h"
#include "base/compat.h"
#include "base/owner.h"
#include "base/str.h"
#include "base/testpoint.h"
#include "claim/claim.h"
#include "claim/claimed.h"
#include "claim/holding.h"
#include "claim/tx_holdings.h"
#include "shmem/shmem.h"

typedef struct Version
{
	AlHolding	holding;
	uint64		hash;			/* of the key */
	bool		ended;
	bool		forced;			/* ended by an administrator */
	int			level;			/* of nesting at which it was made */
	int			previous;		/* the older version of the holding, or -1 */
	int			next;			/* the newer version, or -1 */
} Version;

/* The part of a holding that others see; the set's texts have key, owner, holder in a row */
typedef struct Shown
{
	uint64		hash;			/* of the key */
	int64		fencing_token;
	TimestampTz acquired_at;
	Oid			role;
	bool		is_shared;
	int16		key_length;
	int16		owner_length;
	int16		holder_length;
	int16		texts_at;		/* offset of the key in the texts of the set */
} Shown;

#define SHOWN		8
#define SHOWN_BYTES	1600	/* at least those of the longest key, owner and holder */

typedef struct ShownSet
{
	int			count;
	int			pid;
	Oid			database;
	int			used;			/* bytes of "texts" */
	Shown		holdings[SHOWN];
	char		texts[SHOWN_BYTES];
} ShownSet;

StaticAssertDecl(SHOWN_BYTES >= AL_MAX_KEY_BYTES + AL_MAX_OWNER_BYTES + AL_MAX_HOLDER_BYTES,
				 "one holding can always be shown");

typedef struct Memory
{
	LWLock		lock;
	ShownSet	sets[FLEXIBLE_ARRAY_MEMBER];	/* MaxBackends, by proc number */
} Memory;

static Memory *memory = NULL;	/* until this process attaches */

/* Versions of the current transaction, in TopTransactionContext */
static Version *versions = NULL;
static int	count = 0;
static int	size = 0;
static bool is_shown = false;	/* others see at least one of them */

static void
init_shown(void *address)
{
	al_shmem_init_lock(&((Memory *) address)->lock);
}

const AlShmemPart al_tx_part = {offsetof(Memory, sets), sizeof(ShownSet), init_shown, (void **) &memory};

/* Is this the newest version of a holding that has not ended? */
static bool
is_held(const Version *version)
{
	return version->next < 0 && !version->ended;
}

static AlString
shown_key(const ShownSet *set, const Shown *shown)
{
	AlString	key = {set->texts + shown->texts_at, shown->key_length};

	return key;
}

static bool
is_in(const ShownSet *set, const Version *version)
{
	for (int i = 0; i < set->count; i++)
	{
		const Shown *shown = &set->holdings[i];
		AlString	key = shown_key(set, shown);
		AlString	owner = {key.data + key.len, shown->owner_length};

		if (shown->hash == version->hash && al_string_equal(key, version->holding.key) &&
			al_owner_equal(owner, al_string(version->holding.owner)))
			return true;
	}
	return false;
}

/* Add a holding to a set.  Returns false if the set has no room for it. */
static bool
show_one(ShownSet *set, const Version *version)
{
	const AlHolding *holding = &version->holding;
	Shown	   *shown = &set->holdings[set->count];
	AlString	texts[] = {holding->key, al_string(holding->owner), al_string(holding->holder)};
	int			length = 0;

	for (int i = 0; i < (int) lengthof(texts); i++)
		length += texts[i].len;
	if (set->count == SHOWN || set->used + length > SHOWN_BYTES)
		return false;
	shown->hash = version->hash;
	shown->fencing_token = holding->fencing_token;
	shown->acquired_at = holding->acquired_at;
	shown->role = holding->role;
	shown->is_shared = al_is_shared(holding);
	shown->key_length = texts[0].len;
	shown->owner_length = texts[1].len;
	shown->holder_length = texts[2].len;
	shown->texts_at = set->used;
	for (int i = 0; i < (int) lengthof(texts); i++)
	{
		memcpy(set->texts + set->used, texts[i].data, texts[i].len);
		set->used += texts[i].len;
	}
	set->count++;
	return true;
}

/*
 * Show others the holdings of this transaction, and then its former ones, newest first, since for
 * others a former holding lasts until the commit: a lease that it has become is not visible yet,
 * and a rollback to a savepoint may bring back one that was transferred.  Raises nothing.
 */
static void
show(void)
{
	ShownSet   *mine;
	ShownSet	set;
	bool		has_room = true;

	if (memory == NULL || (count == 0 && !is_shown))
		return;
	memset(&set, 0, offsetof(ShownSet, texts));
	set.database = MyDatabaseId;
	set.pid = MyProcPid;
	for (int i = 0; i < count && has_room; i++)
	{
		if (is_held(&versions[i]))
			has_room = show_one(&set, &versions[i]);
	}
	for (int i = count - 1; i >= 0 && has_room; i--)
	{
		if (!is_held(&versions[i]) && !is_in(&set, &versions[i]))
			has_room = show_one(&set, &versions[i]);
	}
	Assert(set.count <= SHOWN && set.used <= SHOWN_BYTES);
	is_shown = set.count > 0;
	mine = &memory->sets[al_my_proc_number()];
	LWLockAcquire(&memory->lock, LW_EXCLUSIVE);
	if (mine->used > set.used)
		explicit_bzero(mine->texts + set.used, mine->used - set.used);
	memcpy(mine, &set, offsetof(ShownSet, texts) + set.used);
	LWLockRelease(&memory->lock);
}

/*
 * The index of an ended holding of the same key and owner, which no rollback to a savepoint can
 * revive, or -1.  Its reuse keeps the list short.
 */
static int
find_ended(const AlHolding *holding, uint64 hash, int level)
{
	for (int i = count - 1; i >= 0 && versions[i].level >= level; i--)
	{
		if (versions[i].ended && versions[i].previous < 0 && versions[i].next < 0 &&
			versions[i].hash == hash &&
			al_string_equal(versions[i].holding.key, holding->key) &&
			al_owner_equal(al_string(versions[i].holding.owner), al_string(holding->owner)))
			return i;
	}
	return -1;
}

/*
 * Put a version on top of the list; returns its index.  If no savepoint was set in between, it
 * takes the index of the previous version, or of an ended holding.  "holding" must not be in the
 * list, which may move, and its pointers must remain valid.  The key is claimed.
 */
static int
push(const AlHolding *holding, uint64 hash, int previous, bool ended)
{
	int			level = GetCurrentTransactionNestLevel();
	int			index = previous >= 0 ? previous : find_ended(holding, hash, level);
	Version    *version;

	Assert(holding->lifetime == AL_TRANSACTION && al_claimed_has(hash));
	Assert(previous < count && (previous < 0 || is_held(&versions[previous])));
	if (index < 0 || versions[index].level != level)
	{
		if (count == size)
		{
			int			new_size = Max(size * 2, 8);

			versions = versions ?
				repalloc_huge(versions, new_size * sizeof(Version)) :
				MemoryContextAlloc(TopTransactionContext, new_size * sizeof(Version));
			size = new_size;
		}
		index = count++;
		versions[index].previous = previous;
		if (previous >= 0)
			versions[previous].next = index;
	}

	version = &versions[index];
	version->holding = *holding;
	version->holding.tx_index = index;
	version->hash = hash;
	version->ended = ended;
	version->forced = false;
	version->level = level;
	version->next = -1;
	al_claimed_changed();
	show();
	return index;
}

static text *
keep_text(AlString string)
{
	MemoryContext old_context = MemoryContextSwitchTo(TopTransactionContext);
	text	   *copy = al_string_text(string);

	MemoryContextSwitchTo(old_context);
	return copy;
}

/* Note a new holding of a key that this transaction has claimed. */
void
al_tx_add(const AlKey *key, const AlOwner *owner, const AlHolding *holding)
{
	AlHolding	copy = *holding;

	copy.key = al_string(keep_text(key->name));
	copy.owner = keep_text(al_string(holding->owner));
	copy.holder = keep_text(al_string(holding->holder));
	(void) push(&copy, key->hash, -1, false);
}

/* Note that a holding of al_tx_mine() has changed, or has a new owner. */
void
al_tx_change(const AlHolding *holding, const AlOwner *owner)
{
	AlHolding	copy = *holding;

	Assert(holding->tx_index >= 0 && holding->tx_index < count);
	copy.key = versions[holding->tx_index].holding.key;
	copy.owner = keep_text(owner->name);
	copy.holder = keep_text(al_string(holding->holder));
	(void) push(&copy, versions[holding->tx_index].hash, holding->tx_index, false);
}

/* Note that a holding of al_tx_mine() has ended; forced: by an administrator. */
void
al_tx_end(const AlHolding *holding, bool forced)
{
	/* push() may move the list, so this is a copy. */
	Version		version = versions[holding->tx_index];
	int			index = push(&version.holding, version.hash, holding->tx_index, true);

	versions[index].forced = forced;
}

/* Copies of the holdings of this transaction, of a key or all (NULL): AlHolding * */
List *
al_tx_mine(const AlKey *key)
{
	List	   *holdings = NIL;

	for (int i = 0; i < count; i++)
	{
		if (is_held(&versions[i]) &&
			(key == NULL || al_string_equal(key->name, versions[i].holding.key)))
		{
			AlHolding  *copy = palloc(sizeof(AlHolding));

			*copy = versions[i].holding;
			holdings = lappend(holdings, copy);
		}
	}
	return holdings;
}

/* A copy of the oldest holding of a key that this transaction ended, not by force; or NULL */
const AlHolding *
al_tx_ended(const AlKey *key)
{
	AlHolding  *first = NULL;

	for (int i = 0; i < count; i++)
	{
		const Version *version = &versions[i];

		if (version->next >= 0 || !version->ended || version->forced ||
			!al_string_equal(key->name, version->holding.key) ||
			(first && first->acquired_at <= version->holding.acquired_at))
			continue;
		if (first == NULL)
			first = palloc(sizeof(AlHolding));
		*first = version->holding;
	}
	return first;
}

int
al_tx_count(void)
{
	int			held = 0;

	for (int i = 0; i < count; i++)
		held += is_held(&versions[i]);
	return held;
}

static AlHolding *
make_holding(bool is_shared, int pid)
{
	AlHolding  *holding = palloc0(sizeof(AlHolding));

	ItemPointerSetInvalid(&holding->tid);
	holding->tx_index = -1;
	holding->lifetime = AL_TRANSACTION;
	holding->slot = is_shared ? AL_SLOT_FIRST_SHARED : AL_SLOT_EXCLUSIVE;
	holding->expires_at = DT_NOEND;
	holding->pid = pid;
	return holding;
}

static AlHolding *
holding_of(const ShownSet *set, const Shown *shown)
{
	AlHolding  *holding = make_holding(shown->is_shared, set->pid);
	AlString	key = shown_key(set, shown);
	const char *owner = key.data + key.len;

	holding->key = al_string(al_string_text(key));
	holding->owner = cstring_to_text_with_len(owner, shown->owner_length);
	holding->holder = cstring_to_text_with_len(owner + shown->owner_length, shown->holder_length);
	holding->fencing_token = shown->fencing_token;
	holding->acquired_at = shown->acquired_at;
	holding->role = shown->role;
	return holding;
}

/* A copy of the set that a process shows; NULL without shared memory */
static ShownSet *
look_at(int proc)
{
	ShownSet   *copy;

	Assert(proc >= 0 && proc < MaxBackends);
	if (memory == NULL)
		return NULL;
	copy = palloc(sizeof(ShownSet));
	LWLockAcquire(&memory->lock, LW_SHARED);
	*copy = memory->sets[proc];
	LWLockRelease(&memory->lock);
	return copy;
}

/* Maximum number of times that al_tx_by_others() looks */
#define MOST_LOOKS	10

/*
 * al_tx_by_others() at one moment.  *is_changed: a transaction that is not shown has ended or was
 * prepared meanwhile, so its holding may be gone, or its mode wrong.
 */
static List *
look_at_others(const AlKey *key, bool *is_changed)
{
	List	   *procs = al_claim_transactions(key->hash, false);
	List	   *exclusive;
	List	   *unknown = NIL;
	List	   *holdings = NIL;
	ListCell   *cell;

	*is_changed = false;
	if (procs == NIL)
		return NIL;
	(void) al_shmem_attach();
	AL_TEST_POINT("tx-between");
	exclusive = al_claim_transactions(key->hash, true);
	AL_TEST_POINT("tx-listed");
	foreach(cell, procs)
	{
		int			proc = lfirst_int(cell);
		ShownSet   *set = proc < 0 ? NULL : look_at(proc);
		bool		found = false;

		for (int i = 0; set && i < set->count; i++)
		{
			if (set->database != MyDatabaseId || set->holdings[i].hash != key->hash)
				continue;
			found = true;
			/* Another key may have the same hash. */
			if (al_string_equal(shown_key(set, &set->holdings[i]), key->name))
				holdings = lappend(holdings, holding_of(set, &set->holdings[i]));
		}
		if (set)
			pfree(set);
		if (found)
			continue;
		unknown = lappend_int(unknown, proc);
		holdings = lappend(holdings,
						   make_holding(!list_member_int(exclusive, proc),
										proc < 0 ? 0 : GetPGProcByNumber(proc)->pid));
	}
	*is_changed = unknown != NIL &&
		list_difference_int(unknown, al_claim_transactions(key->hash, false)) != NIL;
	foreach(cell, holdings)
		((AlHolding *) lfirst(cell))->key = key->name;
	return holdings;
}

/*
 * Holdings of a key that other transactions have: AlHolding *.  If one is prepared or not shown,
 * only its mode is known, and "holder" is NULL.
 */
List *
al_tx_by_others(const AlKey *key)
{
	bool		is_changed;
	List	   *holdings = look_at_others(key, &is_changed);

	for (int looks = 1; is_changed && looks < MOST_LOOKS; looks++)
	{
		CHECK_FOR_INTERRUPTS();
		holdings = look_at_others(key, &is_changed);
	}
	return holdings;
}

/*
 * The holding of a key that an owner has in another transaction; if there is none, one whose
 * owner cannot be known, or NULL.  *is_in_use: does another transaction hold the key?
 */
AlHolding *
al_tx_elsewhere(const AlKey *key, const AlOwner *owner, bool *is_in_use)
{
	AlHolding  *unknown = NULL;
	List	   *others = al_tx_by_others(key);
	ListCell   *cell;

	*is_in_use = others != NIL;
	foreach(cell, others)
	{
		AlHolding  *holding = lfirst(cell);

		if (al_is_owned_by(holding, owner))
			return holding;
		if (holding->owner == NULL)
			unknown = holding;
	}
	return unknown;
}

/* The holdings in this database that other backends show: a list of AlHolding * */
List *
al_tx_shown(void)
{
	List	   *holdings = NIL;

	for (int proc = 0; al_shmem_attach() && proc < MaxBackends; proc++)
	{
		ShownSet   *set;

		if (memory->sets[proc].count == 0 || proc == al_my_proc_number())
			continue;
		set = look_at(proc);
		for (int i = 0; i < set->count && set->database == MyDatabaseId; i++)
			holdings = lappend(holdings, holding_of(set, &set->holdings[i]));
		pfree(set);
	}
	return holdings;
}

/* Undo the versions made at a level; 0: the transaction has ended.  Raises nothing. */
void
al_tx_abort(int level)
{
	bool		changed = false;

	while (count > 0 && versions[count - 1].level >= level)
	{
		count--;
		if (versions[count].previous >= 0)
			versions[versions[count].previous].next = -1;
		changed = true;
	}
	if (changed)
		show();
	if (level == 0)
	{
		versions = NULL;
		size = 0;
	}
}

void
al_tx_commit(int level)
{
	Assert(level > 1);
	for (int i = count - 1; i >= 0 && versions[i].level >= level; i--)
		versions[i].level = level - 1;
}
