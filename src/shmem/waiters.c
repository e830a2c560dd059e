/*-------------------------------------------------------------------------
 *
 * waiters.c
 *		The queue of waiters: join, sleep, wake.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: step 4 in atomic_lock.h.  A wake-up is not a grant: it only makes the waiter
 * look at the row again, and the row and the claim decide.
 *
 * 1. A waiter joins the queue of the key, first come, first served.
 * 2. It looks at the row.  If the key is not free, it sleeps.
 * 3. A transaction that changes the key makes the change visible, gives back the claim,
 *	  and only then looks for waiters.  So a waiter either sees the change in step 2 or
 *	  is woken, and no wake-up is lost.
 * 4. A woken waiter continues with step 2, until it has the key or gives up, and leaves.
 * 5. A waiter that leaves without the key wakes the next one if it was first.  One that takes
 *	  the key exclusively wakes none: the end of its transaction does.  One that takes a
 *	  share, from any position, wakes the first of the others at once if that can share too.
 *
 * Normally only the first waiter is woken and may take the key.  Exceptions:
 *
 * - Waiters of an owner that has got the key on another connection are woken, and take it
 *	 from any position.
 * - A waiter that would share the key with any number of others is open.  It counts as first
 *	 if all before it are open.
 * - An upgrade, from shared to exclusive, stands before all others: while that share lasts,
 *	 no other waiter can have the key exclusively.
 * - A waiter that has been "due" for more than a second does not run, perhaps because it was
 *	 stopped.  It is passed over until it runs: the next one counts as first, and another owner
 *	 may wait to upgrade.
 * - While the key is offered to a ticket, only that ticket's owner gets it, from any position.
 *
 * A sleeping waiter notes in "due" when it will look again by itself: after one second at the
 * latest, since some ends wake no waiter, such as COMMIT PREPARED; sooner at its deadline or
 * its next search for a deadlock; and, if it is first, when the obstacle ends.  A waiter that
 * is awake has been due since it began to look.  A commit that leaves the key held beyond a
 * waiter's "due" does not wake it, unless it is awake, passed over or behind a claim.
 *
 * Without a queue (shmem/shmem.c), waiters look again after pauses that grow from 5
 * to 100 ms, in no order.
 *
 * Locking rules: one LWLock guards the queue.  It is held for a walk over one bucket or over
 * the slots, and never while something may raise, allocate or sleep.  In another backend's
 * slot, only "due", "woken" and the links may be changed.  The atomics (the number of waiters
 * in a bucket, "woken" and "sweeping") are also used without the lock.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/clock.h"
#include "base/compat.h"
#include "base/errors.h"
#include "base/owner.h"
#include "base/settings.h"
#include "base/str.h"
#include "base/testpoint.h"
#include "shmem/shmem.h"
#include "shmem/waiters.h"

#ifdef AL_TEST_HOOKS
#define LONGEST_SLEEP	AL_MS_TO_US(al_test_sleep_cap_ms)
#else
#define LONGEST_SLEEP	INT64CONST(1000000)
#endif

/* All in microseconds */
#define PASSED_OVER_AFTER	LONGEST_SLEEP
#define SHORTEST_PAUSE		INT64CONST(5000)
#define LONGEST_PAUSE		INT64CONST(100000)

typedef struct Slot
{
	AlWaiter	waiter;
	pg_atomic_uint32 woken;		/* 1: woken; set by others, cleared by the waiter */
	pg_atomic_uint32 sweeping;	/* process id of the slot's backend while it sweeps; or 0 */
	bool		asleep;			/* it has looked, and sleeps or is about to */
	bool		behind_claim;	/* when asleep: a claim is in its way, not a lease */
	int			previous;		/* in the bucket; -1: none */
	int			next;
} Slot;

#define BUCKETS	256

typedef struct Bucket
{
	pg_atomic_uint32 waiters;	/* read without the lock */
	int			first;			/* slot, or -1 */
	int			last;
} Bucket;

typedef struct Queue
{
	LWLock		lock;			/* for everything except the atomics */
	uint64		last_id;
	Bucket		buckets[BUCKETS];
	Slot		slots[FLEXIBLE_ARRAY_MEMBER];	/* MaxBackends, by proc number */
} Queue;

StaticAssertDecl(sizeof(Slot) <= 1500, "a slot must stay small");

static Queue *queue = NULL;		/* until this process attaches */
static Slot *my_slot = NULL;	/* while waiting in a queue */
static int64 next_pause;		/* microseconds, while waiting without a queue */

static void
init_queue(void *memory)
{
	Queue	   *new_queue = memory;

	al_shmem_init_lock(&new_queue->lock);
	for (int i = 0; i < BUCKETS; i++)
	{
		pg_atomic_init_u32(&new_queue->buckets[i].waiters, 0);
		new_queue->buckets[i].first = new_queue->buckets[i].last = -1;
	}
	for (int i = 0; i < MaxBackends; i++)
	{
		pg_atomic_init_u32(&new_queue->slots[i].woken, 0);
		pg_atomic_init_u32(&new_queue->slots[i].sweeping, 0);
	}
}

const AlShmemPart al_waiters_part = {offsetof(Queue, slots), sizeof(Slot), init_queue, (void **) &queue};

static Bucket *
bucket_of(uint64 hash)
{
	Assert(queue != NULL);
	return &queue->buckets[hash % BUCKETS];
}

/* Would a waiter share its key with any number of others? */
static bool
is_open(const Slot *slot)
{
	return slot->waiter.is_shared && slot->waiter.max_holders == 0;
}

static bool
has_hash(const Slot *slot, uint64 hash)
{
	return slot->waiter.hash == hash && slot->waiter.database == MyDatabaseId;
}

AlKey
al_waiter_key(const AlWaiter *waiter)
{
	AlKey		key = {{waiter->key, waiter->key_length}, waiter->hash, waiter->check};

	return key;
}

/* Does a waiter come before a ticket for a key?  An upgrade comes before all. */
bool
al_waiter_precedes(const AlWaiter *waiter, const AlKey *key, int64 ticket)
{
	return waiter->hash == key->hash && (waiter->is_upgrade || waiter->arrival < ticket) &&
		al_string_equal(al_waiter_key(waiter).name, key->name);
}

/* Points into the waiter; empty if the owner is not generated yet */
AlString
al_waiter_owner(const AlWaiter *waiter)
{
	AlString	owner = {waiter->owner, waiter->owner_length};

	return owner;
}

/* Does a waiter for a key with the same hash wait for this key? */
static bool
has_name(const Slot *slot, const AlKey *key)
{
	return al_string_equal(al_waiter_key(&slot->waiter).name, key->name);
}

/* Has a waiter not run for too long?  Then the others must not wait for it. */
static bool
is_passed_over(const Slot *slot, int64 now)
{
	return now - slot->waiter.due > PASSED_OVER_AFTER;
}

/* The first waiter for a hash from a slot on, in order; -1 at the end.  The lock is held. */
static int
next_waiter(int slot, uint64 hash)
{
	Assert(LWLockHeldByMe(&queue->lock));
	while (slot >= 0 && !has_hash(&queue->slots[slot], hash))
		slot = queue->slots[slot].next;
	return slot;
}

#define FOR_EACH_WAITER(i, hash) \
	for (int i = next_waiter(bucket_of(hash)->first, hash); i >= 0; \
		 i = next_waiter(queue->slots[i].next, hash))

/*
 * Put a slot into its bucket.  An upgrade goes to the front, even before an earlier one.  A
 * waiter with a ticket goes before the first waiter for its key with a higher "arrival", upgrades
 * aside.  Any other goes to the end, even if its "arrival" is lower than that of the last.
 */
static void
link_slot(Slot *slot)
{
	Bucket	   *bucket = bucket_of(slot->waiter.hash);
	AlKey		key = al_waiter_key(&slot->waiter);
	int			number = slot - queue->slots;

	Assert(LWLockHeldByMeInMode(&queue->lock, LW_EXCLUSIVE));
	Assert(number >= 0 && number < MaxBackends);
	slot->next = slot->waiter.is_upgrade ? bucket->first : -1;
	for (int i = slot->waiter.has_ticket ? next_waiter(bucket->first, slot->waiter.hash) : -1;
		 i >= 0 && slot->next < 0; i = next_waiter(queue->slots[i].next, slot->waiter.hash))
	{
		if (queue->slots[i].waiter.arrival > slot->waiter.arrival &&
			!queue->slots[i].waiter.is_upgrade && has_name(&queue->slots[i], &key))
			slot->next = i;
	}
	slot->previous = slot->next < 0 ? bucket->last : queue->slots[slot->next].previous;
	if (slot->previous >= 0)
		queue->slots[slot->previous].next = number;
	else
		bucket->first = number;
	if (slot->next >= 0)
		queue->slots[slot->next].previous = number;
	else
		bucket->last = number;
	pg_atomic_fetch_add_u32(&bucket->waiters, 1);
}

static void
unlink_slot(Slot *slot)
{
	Bucket	   *bucket = bucket_of(slot->waiter.hash);

	Assert(LWLockHeldByMeInMode(&queue->lock, LW_EXCLUSIVE));
	Assert(slot->waiter.id != 0 && pg_atomic_read_u32(&bucket->waiters) > 0);
	if (slot->previous >= 0)
		queue->slots[slot->previous].next = slot->next;
	else
		bucket->first = slot->next;
	if (slot->next >= 0)
		queue->slots[slot->next].previous = slot->previous;
	else
		bucket->last = slot->previous;
	pg_atomic_fetch_sub_u32(&bucket->waiters, 1);
	slot->waiter.id = 0;
	explicit_bzero(slot->waiter.owner, sizeof(slot->waiter.owner));
}

/* Wake the waiters of an owner that now has the key */
static void
wake_owner(uint64 hash, uint64 owner_hash)
{
	Assert(LWLockHeldByMeInMode(&queue->lock, LW_EXCLUSIVE));
	Assert(owner_hash != 0);
	FOR_EACH_WAITER(i, hash)
	{
		Slot	   *slot = &queue->slots[i];

		if (slot->waiter.owner_hash == owner_hash && slot != my_slot)
		{
			pg_atomic_write_u32(&slot->woken, 1);
			SetLatch(&GetPGProcByNumber(i)->procLatch);
		}
	}
}

/*
 * Wake the first waiter for a hash that is not passed over, and those before it.  If it is open,
 * also wake the open waiters after it, up to the first that is not.  Let a waiter sleep on if it
 * is due by "held_until", of al_monotonic_now(), and no claim is in its way.
 */
static void
wake_first(uint64 hash, int64 held_until)
{
	int64		now = al_monotonic_now();
	bool		among_open = false;

	Assert(LWLockHeldByMeInMode(&queue->lock, LW_EXCLUSIVE));
	FOR_EACH_WAITER(i, hash)
	{
		Slot	   *slot = &queue->slots[i];
		bool		passed_over = is_passed_over(slot, now);

		if (among_open && !is_open(slot))
			break;
		if (slot != my_slot &&
			(passed_over || !slot->asleep || slot->behind_claim ||
			 slot->waiter.due > held_until))
		{
			slot->waiter.due = Min(slot->waiter.due, now);
			pg_atomic_write_u32(&slot->woken, 1);
			SetLatch(&GetPGProcByNumber(i)->procLatch);
		}
		if (passed_over)
			continue;
		if (!is_open(slot))
			break;
		among_open = true;
	}
}

/* May there be a waiter for a hash?  The change that the waiter waits for must be visible. */
static bool
may_have_waiters(uint64 hash)
{
	if (queue == NULL)
		return false;
	/* A waiter joins, then looks at the row; we changed the row, then look for waiters. */
	pg_memory_barrier();
	return pg_atomic_read_u32(&bucket_of(hash)->waiters) != 0;
}

/* As al_waiters_wake(), for a claim that lets sharers pass: no waiter if the first is open */
void
al_waiters_wake_strict(uint64 hash)
{
	int64		now;

	if (!may_have_waiters(hash))
		return;
	Assert(!LWLockHeldByMe(&queue->lock));
	now = al_monotonic_now();
	LWLockAcquire(&queue->lock, LW_EXCLUSIVE);
	FOR_EACH_WAITER(i, hash)
	{
		if (is_passed_over(&queue->slots[i], now))
			continue;
		if (!is_open(&queue->slots[i]))
			wake_first(hash, PG_INT64_MIN);
		break;
	}
	LWLockRelease(&queue->lock);
}

/*
 * Wake the first waiter for a hash, unless it can sleep on until "held_until" (0: the key may
 * be free), and all waiters of the owner with "owner_hash" (0: none), who may have the key
 * now.  The change must be visible, and the claim given back.  Raises nothing.
 */
void
al_waiters_wake(uint64 hash, TimestampTz held_until, uint64 owner_hash)
{
	int64		until = PG_INT64_MIN;

	if (!may_have_waiters(hash))
		return;
	Assert(!LWLockHeldByMe(&queue->lock));
	if (held_until != 0)
		until = al_monotonic_now() + Max(held_until - GetCurrentTimestamp(), 0);
	LWLockAcquire(&queue->lock, LW_EXCLUSIVE);
	if (owner_hash != 0)
		wake_owner(hash, owner_hash);
	wake_first(hash, until);
	LWLockRelease(&queue->lock);
}

static void
clip(char *to, int size, AlString from)
{
	int			length = al_clip_length(from, size);

	memcpy(to, from.data, length);
	memset(to + length, 0, size - length);
}

/*
 * Does another owner wait to upgrade its shared holding?  A waiter that is passed over does not
 * count: it may have lost that holding, and would not know.
 */
static bool
has_other_upgrade(const AlKey *key, const AlOwner *owner)
{
	int64		now = al_monotonic_now();

	Assert(LWLockHeldByMe(&queue->lock));
	FOR_EACH_WAITER(i, key->hash)
	{
		const Slot *slot = &queue->slots[i];

		if (slot->waiter.is_upgrade && has_name(slot, key) && !is_passed_over(slot, now) &&
			!al_owner_equal(al_waiter_owner(&slot->waiter), owner->name))
			return true;
	}
	return false;
}

/*
 * Join the queue for a key, if there is a queue.  "arrival": the number of the owner's ticket,
 * one above those of all tickets, or 0 where there are none.  See link_slot() for the position.
 * False: the waiter has not joined, since it would upgrade, and another owner waits to upgrade.
 */
bool
al_waiters_join(const AlKey *key, const AlOwner *owner, bool is_shared,
				int max_holders, bool is_upgrade, int64 arrival, bool has_ticket, text *holder)
{
	Slot	   *slot;
	AlWaiter   *waiter;

	next_pause = SHORTEST_PAUSE;
	if (queue == NULL)
		return true;

	slot = &queue->slots[al_my_proc_number()];
	waiter = &slot->waiter;
	Assert(my_slot == NULL && waiter->id == 0);
	Assert(key->name.len <= AL_MAX_KEY_BYTES && owner->name.len <= AL_MAX_OWNER_BYTES);
	Assert(max_holders >= 0 && !(is_upgrade && is_shared));
	Assert(arrival > 0 || !has_ticket);
	LWLockAcquire(&queue->lock, LW_EXCLUSIVE);
	if (is_upgrade && has_other_upgrade(key, owner))
	{
		LWLockRelease(&queue->lock);
		return false;
	}
	waiter->hash = key->hash;
	waiter->check = key->check;
	waiter->owner_hash = owner->generated ? 0 : owner->hash;
	waiter->since = GetCurrentTimestamp();
	waiter->due = al_monotonic_now();
	waiter->database = MyDatabaseId;
	waiter->pid = MyProcPid;
	waiter->is_shared = is_shared;
	waiter->max_holders = max_holders;
	waiter->is_upgrade = is_upgrade;
	waiter->arrival = arrival;
	waiter->has_ticket = has_ticket;
	waiter->key_length = key->name.len;
	memcpy(waiter->key, key->name.data, key->name.len);
	waiter->owner_length = owner->generated ? 0 : owner->name.len;
	if (waiter->owner_length > 0)
		memcpy(waiter->owner, owner->name.data, waiter->owner_length);
	clip(waiter->holder, AL_WAITER_HOLDER_BYTES - 1, al_string(holder));
	pg_atomic_write_u32(&slot->woken, 0);
	slot->asleep = false;
	/* Where no ticket is left, these came before us, and later tickets get higher numbers. */
	FOR_EACH_WAITER(i, key->hash)
	{
		if (arrival == 0 && has_name(&queue->slots[i], key))
			waiter->arrival = Max(waiter->arrival, queue->slots[i].waiter.arrival);
	}
	waiter->id = ++queue->last_id;
	link_slot(slot);
	my_slot = slot;
	LWLockRelease(&queue->lock);
	al_trace(is_upgrade ? DEBUG1 : DEBUG3, "lock \"%s\": joined the queue%s, arrival %lld",
			 al_display(key->name), is_upgrade ? " to upgrade" : "", (long long) waiter->arrival);
	AL_TEST_POINT("enqueued");
	return true;
}

/* May the first waiter take a share beside those seats?  0: not counted, so it may try */
static bool
may_follow(uint64 hash, int seats_used)
{
	int64		now = al_monotonic_now();

	FOR_EACH_WAITER(i, hash)
	{
		const Slot *slot = &queue->slots[i];

		if (!is_passed_over(slot, now))
			return is_open(slot) ||
				(slot->waiter.is_shared && seats_used < slot->waiter.max_holders);
	}
	return false;
}

/* Leave the queue, and wake the next waiter as step 5 says; see al_waiters_leave() */
static void
leave(bool granted, int seats_used)
{
	Slot	   *slot = my_slot;
	int64		now = al_monotonic_now();
	bool		was_first = false;

	Assert(slot != NULL && slot->waiter.pid == MyProcPid);
	Assert(LWLockHeldByMeInMode(&queue->lock, LW_EXCLUSIVE));
	FOR_EACH_WAITER(i, slot->waiter.hash)
	{
		was_first = &queue->slots[i] == slot;
		if (was_first || !is_passed_over(&queue->slots[i], now))
			break;
	}
	unlink_slot(slot);
	my_slot = NULL;
	/* A seat may have become free after we counted, and that woke only us. */
	if (pg_atomic_read_u32(&slot->woken) != 0)
		seats_used = 0;
	if (granted ? slot->waiter.is_shared && may_follow(slot->waiter.hash, seats_used) : was_first)
		wake_first(slot->waiter.hash, PG_INT64_MIN);
}

/*
 * Leave the queue, if still in it.  "granted": we have taken the key; for a share,
 * "seats_used" counts ours (0: not counted).  Raises nothing.
 */
void
al_waiters_leave(bool granted, int seats_used)
{
	Assert(seats_used >= 0);
	if (my_slot == NULL)
		return;
	LWLockAcquire(&queue->lock, LW_EXCLUSIVE);
	leave(granted, seats_used);
	LWLockRelease(&queue->lock);
}

/*
 * Leave the queue as the victim of a deadlock, unless one of the others in the cycle has
 * left.  Returns whether we left.  So only one of two waiters that find the same cycle leaves.
 */
bool
al_waiters_resign(const AlWaiter *others, int count)
{
	bool		complete = true;

	LWLockAcquire(&queue->lock, LW_EXCLUSIVE);
	for (int i = 0; i < count && complete; i++)
	{
		complete = false;
		FOR_EACH_WAITER(j, others[i].hash)
			complete = complete || queue->slots[j].waiter.id == others[i].id;
	}
	if (complete)
		leave(false, 0);
	LWLockRelease(&queue->lock);
	return complete;
}

/* Called before a look at the row: from now on, a wake-up ends the next sleep at once. */
void
al_waiters_look(void)
{
	if (my_slot == NULL)
		return;
	LWLockAcquire(&queue->lock, LW_EXCLUSIVE);
	pg_atomic_write_u32(&my_slot->woken, 0);
	my_slot->asleep = false;
	my_slot->waiter.due = al_monotonic_now();
	LWLockRelease(&queue->lock);
}

/* Raise if the client is gone, whatever client_connection_check_interval says */
static void
check_client(void)
{
	if (MyProcPort && !pq_check_connection())
	{
		ClientConnectionLost = true;
		InterruptPending = true;
	}
	CHECK_FOR_INTERRUPTS();
}

/*
 * Sleep until woken, for at most "microseconds" and at most a second.  "behind_claim": a
 * claim is in the way, so if we are first, a commit wakes us even where the key stays held.
 * Raises what interrupts raise, also if the client is gone.
 */
void
al_waiters_sleep(int64 microseconds, bool behind_claim)
{
	int64		end;

	Assert(microseconds >= 0);
	Assert(queue == NULL || !LWLockHeldByMe(&queue->lock));
	microseconds = Min(microseconds, LONGEST_SLEEP);
	if (my_slot == NULL)
	{
		/* With jitter, or all waiters for the key would look at the same time. */
		double		part = 0.5 + pg_prng_double(&pg_global_prng_state) / 2;

		microseconds = Min(microseconds, (int64) (next_pause * part));
		next_pause = Min(next_pause * 3 / 2, LONGEST_PAUSE);
	}
	end = al_monotonic_now() + microseconds;
	AL_TEST_POINT("before-sleep");
	if (my_slot)
	{
		LWLockAcquire(&queue->lock, LW_EXCLUSIVE);
		if (pg_atomic_read_u32(&my_slot->woken) == 0)
		{
			my_slot->waiter.due = end;
			my_slot->behind_claim = behind_claim;
			my_slot->asleep = true;
		}
		LWLockRelease(&queue->lock);
	}

	for (;;)
	{
		int64		left;

		ResetLatch(MyLatch);
		/* This may reset the latch too, but "woken" in the slot remains set. */
		CHECK_FOR_INTERRUPTS();
		left = end - al_monotonic_now();
		if (left <= 0 || (my_slot && pg_atomic_read_u32(&my_slot->woken) != 0))
			break;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 (long) ((left + 999) / 1000), al_wait_event());
	}
	check_client();
	al_trace(DEBUG3, "slept, behind a claim: %d, woken: %d", behind_claim,
			 my_slot != NULL && pg_atomic_read_u32(&my_slot->woken) != 0);
	AL_TEST_POINT("woken");
}

/* The number of our wait: lower tickets come first.  PG_INT64_MAX: we are not in the queue */
int64
al_waiters_arrival(void)
{
	return my_slot ? my_slot->waiter.arrival : PG_INT64_MAX;
}

/*
 * Does a waiter that is not passed over come before the caller?  If the caller is in the queue:
 * one at an earlier position.  Otherwise: one whose number is at most "arrival" (PG_INT64_MAX:
 * any).  Open waiters do not count for an open caller.  *first is set to its label, unless NULL.
 */
bool
al_waiters_precede(const AlKey *key, bool caller_is_open, int64 arrival, char **first)
{
	char		holder[AL_WAITER_HOLDER_BYTES];
	bool		behind = false;
	int64		now;

	if (queue == NULL || pg_atomic_read_u32(&bucket_of(key->hash)->waiters) == 0)
		return false;

	Assert(!LWLockHeldByMe(&queue->lock));
	now = al_monotonic_now();
	LWLockAcquire(&queue->lock, LW_SHARED);
	FOR_EACH_WAITER(i, key->hash)
	{
		Slot	   *slot = &queue->slots[i];

		if (slot == my_slot)
			break;
		if (has_name(slot, key) && !is_passed_over(slot, now) && !(caller_is_open && is_open(slot)) &&
			(my_slot || slot->waiter.arrival <= arrival))
		{
			behind = true;
			memcpy(holder, slot->waiter.holder, sizeof(holder));
			break;
		}
	}
	LWLockRelease(&queue->lock);
	if (behind && first)
		*first = pstrdup(holder);
	return behind;
}

/*
 * Is this waiter, or one before it for its key, not open?  *limited: there are such waiters,
 * and each wants a share with a limit of holders.
 */
bool
al_waiters_has_strict(const AlWaiter *waiter, bool *limited)
{
	AlKey		key = al_waiter_key(waiter);
	bool		found = false;

	*limited = false;
	if (queue == NULL)
		return false;
	LWLockAcquire(&queue->lock, LW_SHARED);
	FOR_EACH_WAITER(i, key.hash)
	{
		const Slot *slot = &queue->slots[i];

		if (has_name(slot, &key) && !is_open(slot))
		{
			*limited = slot->waiter.max_holders > 0 && (*limited || !found);
			found = true;
		}
		if (slot->waiter.id == waiter->id)
			break;
	}
	LWLockRelease(&queue->lock);
	return found;
}

/* The number of waiters for a key; -1 without a queue */
int
al_waiters_count(const AlKey *key)
{
	int			count = 0;

	if (queue == NULL)
		return -1;
	if (pg_atomic_read_u32(&bucket_of(key->hash)->waiters) == 0)
		return 0;
	LWLockAcquire(&queue->lock, LW_SHARED);
	FOR_EACH_WAITER(i, key->hash)
		count += has_name(&queue->slots[i], key);
	LWLockRelease(&queue->lock);
	return count;
}

/* The number of waiters for a key that come before a ticket: earlier ones, and upgrades */
int
al_waiters_count_before(const AlKey *key, int64 arrival)
{
	int			count = 0;

	if (queue == NULL || pg_atomic_read_u32(&bucket_of(key->hash)->waiters) == 0)
		return 0;
	LWLockAcquire(&queue->lock, LW_SHARED);
	FOR_EACH_WAITER(i, key->hash)
		count += al_waiter_precedes(&queue->slots[i].waiter, key, arrival);
	LWLockRelease(&queue->lock);
	return count;
}

/* Since when the longest waiter for a key waits; 0: no waiter, or no queue */
TimestampTz
al_waiters_since(const AlKey *key)
{
	TimestampTz since = 0;

	if (queue == NULL || pg_atomic_read_u32(&bucket_of(key->hash)->waiters) == 0)
		return 0;
	LWLockAcquire(&queue->lock, LW_SHARED);
	FOR_EACH_WAITER(i, key->hash)
	{
		if (has_name(&queue->slots[i], key) &&
			(since == 0 || queue->slots[i].waiter.since < since))
			since = queue->slots[i].waiter.since;
	}
	LWLockRelease(&queue->lock);
	return since;
}

/* Copy the waiters of this database, or of an owner, in no order; NULL without a queue */
static AlWaiter *
collect(const AlString *owner, int *count)
{
	AlWaiter   *waiters;

	*count = 0;
	if (queue == NULL)
		return NULL;
	waiters = palloc_extended(mul_size(MaxBackends, sizeof(AlWaiter)), MCXT_ALLOC_HUGE);
	LWLockAcquire(&queue->lock, LW_SHARED);
	for (int i = 0; i < MaxBackends; i++)
	{
		const AlWaiter *waiter = &queue->slots[i].waiter;

		if (waiter->id != 0 && waiter->database == MyDatabaseId &&
			(owner == NULL || al_owner_equal(al_waiter_owner(waiter), *owner)))
			waiters[(*count)++] = *waiter;
	}
	LWLockRelease(&queue->lock);
	return waiters;
}

AlWaiter *
al_waiters_list(int *count)
{
	return collect(NULL, count);
}

/* Copy the waiter of a backend; false if it does not wait.  We have attached. */
bool
al_waiters_of_backend(int pid, AlWaiter *waiter)
{
	bool		found = false;

	Assert(queue != NULL);
	LWLockAcquire(&queue->lock, LW_SHARED);
	for (int i = 0; i < MaxBackends && !found; i++)
	{
		const AlWaiter *candidate = &queue->slots[i].waiter;

		found = candidate->id != 0 && candidate->pid == pid &&
			candidate->database == MyDatabaseId;
		if (found)
			*waiter = *candidate;
	}
	LWLockRelease(&queue->lock);
	return found;
}

AlWaiter *
al_waiters_of_owner(AlString owner, int *count)
{
	return collect(&owner, count);
}

/* Show others that this backend sweeps, so that they retry past its claims */
void
al_waiters_sweep_begin(void)
{
	if (queue)
		pg_atomic_write_u32(&queue->slots[al_my_proc_number()].sweeping, MyProcPid);
}

/* The sweeping transaction has ended, and its claims are gone.  Raises nothing. */
void
al_waiters_sweep_end(void)
{
	if (queue)
		pg_atomic_write_u32(&queue->slots[al_my_proc_number()].sweeping, 0);
}

bool
al_waiters_is_sweeping(int pid)
{
	for (int i = 0; queue && i < MaxBackends; i++)
	{
		if (pg_atomic_read_u32(&queue->slots[i].sweeping) == (uint32) pid)
			return true;
	}
	return false;
}
