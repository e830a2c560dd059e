/*-------------------------------------------------------------------------
 *
 * lock_held.c
 *		Holdings with the lifetime of a transaction.
 *
 * Model: such a holding is a claim on the key (lock_claim.c), which excludes
 * whatever else is done with the key and goes when the transaction ends,
 * prepared or not.  It has no row and needs no transaction id.  Here is what
 * is known about it besides: the transaction itself has a list, and the
 * first few of the list are shown to others in shared memory, where there is
 * any.  That is for people; who has the key, the claim says.
 *
 * The list is a stack of versions.  A holding that changes (released,
 * converted, handed over) gets a new version on top, and a rollback to a
 * savepoint takes off those made since.  A release is seen by others
 * when the transaction ends, as that of a lease is.
 *
 * Locking rules: what is shown is written and read under the lock of the
 * queue, held for copying a few entries.
 *
 * IDENTIFICATION
 *		src/lock_held.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "compat.h"
#include "lock_lease.h"
#include "lock_wait.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

typedef struct Version
{
	AlHolding	holding;
	uint64		hash;			/* of the key */
	uint64		owner_hash;
	bool		ended;
	int			level;			/* of nesting, at which it was made */
	int			previous;		/* of the same holding, or -1 */
	int			next;
} Version;

/* Of the current transaction, in TopTransactionContext */
static Version *versions = NULL;
static int	count = 0;
static int	size = 0;
static bool is_shown = false;

static bool
is_held(const Version *version)
{
	return version->next < 0 && !version->ended;
}

/* Let others see what this transaction holds */
static void
show(void)
{
	AlQueue    *queue = al_queue();
	AlShownSet	set;

	if (queue == NULL || (count == 0 && !is_shown))
		return;
	memset(&set, 0, sizeof(set));
	set.database = MyDatabaseId;
	set.pid = MyProcPid;
	for (int i = 0; i < count && set.count < AL_SHOWN; i++)
	{
		const AlHolding *holding = &versions[i].holding;
		AlShown    *shown = &set.holdings[set.count];

		if (!is_held(&versions[i]))
			continue;
		shown->hash = versions[i].hash;
		shown->owner_hash = versions[i].owner_hash;
		shown->fencing_token = holding->fencing_token;
		shown->acquired_at = holding->acquired_at;
		shown->is_shared = holding->slot != AL_SLOT_EXCLUSIVE;
		shown->key_length = al_clip(shown->key, AL_WAITER_KEY_BYTES, holding->key);
		(void) al_clip(shown->holder, AL_WAITER_HOLDER_BYTES - 1, al_string(holding->holder));
		set.count++;
	}
	is_shown = set.count > 0;
	LWLockAcquire(&queue->lock, LW_EXCLUSIVE);
	al_shown()[al_my_proc_number()] = set;
	LWLockRelease(&queue->lock);
}

/*
 * Put a version on top, or where no savepoint lies between them, in the place of
 * the one before, or of a holding that is over.  What it points to must not be
 * shorter-lived, and it must not be in the list itself, which may move.
 */
static void
push(const AlHolding *holding, uint64 hash, uint64 owner_hash, int previous, bool ended)
{
	static int	last_ended = -1;
	int			level = GetCurrentTransactionNestLevel();
	int			place = previous >= 0 ? previous : last_ended;
	Version    *version;

	if (place < 0 || place >= count || versions[place].level != level ||
		(previous < 0 && !(versions[place].ended && versions[place].previous < 0)))
	{
		if (count == size)
		{
			int			new_size = Max(size * 2, 8);

			versions = versions ?
				repalloc_huge(versions, new_size * sizeof(Version)) :
				MemoryContextAlloc(TopTransactionContext, new_size * sizeof(Version));
			size = new_size;
		}
		place = count++;
		versions[place].previous = previous;
		if (previous >= 0)
			versions[previous].next = place;
	}

	version = &versions[place];
	version->holding = *holding;
	version->holding.held = place;
	version->hash = hash;
	version->owner_hash = owner_hash;
	version->ended = ended;
	version->level = level;
	version->next = -1;
	if (ended)
		last_ended = place;
	al_xact_changed();
	show();
}

static AlString
keep_string(AlString string)
{
	AlString	copy = {MemoryContextAlloc(TopTransactionContext, string.len + 1), string.len};

	memcpy((char *) copy.data, string.data, string.len);
	return copy;
}

static text *
keep_text(AlString string)
{
	MemoryContext old_context = MemoryContextSwitchTo(TopTransactionContext);
	text	   *copy = al_string_text(string);

	MemoryContextSwitchTo(old_context);
	return copy;
}

/*
 * The transaction, which has claimed the key, holds it from now on.  Lists an
 * own copy.
 */
void
al_held_add(const AlKey *key, const AlOwner *owner, const AlHolding *holding)
{
	AlHolding	copy = *holding;

	copy.key = keep_string(key->name);
	copy.owner = keep_text(al_string(holding->owner));
	copy.holder = keep_text(al_string(holding->holder));
	(void) al_queue();
	push(&copy, key->hash, owner->hash, -1, false);
}

/* A holding of al_held_mine() has changed in place, or to another owner */
void
al_held_change(const AlHolding *holding, const AlOwner *owner)
{
	AlHolding	copy = *holding;

	copy.key = versions[holding->held].holding.key;
	copy.owner = keep_text(owner->name);
	copy.holder = keep_text(al_string(holding->holder));
	push(&copy, versions[holding->held].hash, owner->hash, holding->held, false);
}

/* A holding of al_held_mine() is over */
void
al_held_end(const AlHolding *holding)
{
	Version		version = versions[holding->held];

	push(&version.holding, version.hash, version.owner_hash, holding->held, true);
}

/*
 * What this transaction holds of a key, or of all keys where that is NULL: a
 * list of AlHolding *, which are copies.
 */
List *
al_held_mine(const AlKey *key)
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

/* How many holdings this transaction has */
int
al_held_count(void)
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
	holding->held = -1;
	holding->lifetime = AL_TRANSACTION;
	holding->slot = is_shared ? AL_SLOT_EXCLUSIVE + 1 : AL_SLOT_EXCLUSIVE;
	holding->expires_at = DT_NOEND;
	holding->pid = pid;
	return holding;
}

static AlHolding *
holding_of(const AlShown *shown, int pid)
{
	AlHolding  *holding = make_holding(shown->is_shared, pid);
	AlString	key = {shown->key, shown->key_length};

	holding->key = al_string(al_string_text(key));
	holding->holder = cstring_to_text(shown->holder);
	holding->fencing_token = shown->fencing_token;
	holding->acquired_at = shown->acquired_at;
	holding->held_by = shown->owner_hash;
	return holding;
}

/* What a process shows, copied; NULL where there is no shared memory */
static AlShownSet *
look_at(int proc)
{
	AlQueue    *queue = al_queue();
	AlShownSet *copy;

	if (queue == NULL)
		return NULL;
	copy = palloc(sizeof(AlShownSet));
	LWLockAcquire(&queue->lock, LW_SHARED);
	*copy = al_shown()[proc];
	LWLockRelease(&queue->lock);
	return copy;
}

/* Is this the holding of a key, and not of another with the same hash? */
static bool
is_key_of(const AlShown *shown, const AlKey *key)
{
	return shown->key_length <= key->name.len &&
		(shown->key_length == key->name.len ||
		 key->name.len > AL_WAITER_KEY_BYTES) &&
		memcmp(shown->key, key->name.data, shown->key_length) == 0;
}

/*
 * What other transactions hold of a key: a list of AlHolding *.  Of those that
 * are not shown, or prepared, only the mode is known, and "holder" is NULL.
 */
List *
al_held_by_others(const AlKey *key)
{
	List	   *procs = al_claim_transactions(key->hash, false);
	List	   *exclusive;
	List	   *holdings = NIL;
	ListCell   *cell;

	if (procs == NIL)
		return NIL;
	exclusive = al_claim_transactions(key->hash, true);
	foreach(cell, procs)
	{
		int			proc = lfirst_int(cell);
		AlShownSet *set = proc < 0 ? NULL : look_at(proc);
		bool		found = false;

		for (int i = 0; set && i < set->count; i++)
		{
			if (set->database != MyDatabaseId || set->holdings[i].hash != key->hash)
				continue;
			found = true;
			if (is_key_of(&set->holdings[i], key))
				holdings = lappend(holdings, holding_of(&set->holdings[i], set->pid));
		}
		if (!found)
			holdings = lappend(holdings,
							   make_holding(!list_member_int(exclusive, proc),
											proc < 0 ? 0 : GetPGProcByNumber(proc)->pid));
	}
	foreach(cell, holdings)
		((AlHolding *) lfirst(cell))->key = key->name;
	return holdings;
}

/* What others show of what their transactions hold in this database */
List *
al_held_shown(void)
{
	List	   *holdings = NIL;

	for (int proc = 0; al_queue() && proc < MaxBackends; proc++)
	{
		AlShownSet *set;

		if (al_shown()[proc].count == 0 || proc == al_my_proc_number())
			continue;
		set = look_at(proc);
		for (int i = 0; i < set->count && set->database == MyDatabaseId; i++)
			holdings = lappend(holdings, holding_of(&set->holdings[i], set->pid));
		pfree(set);
	}
	return holdings;
}

/*
 * What was made at a level of nesting is undone, or all of it is over.  Raises
 * nothing.
 */
void
al_held_abort(int level)
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

/* What was made at a level of nesting now belongs to the one above it */
void
al_held_commit(int level)
{
	for (int i = count - 1; i >= 0 && versions[i].level >= level; i--)
		versions[i].level = level - 1;
}
