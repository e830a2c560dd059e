/*-------------------------------------------------------------------------
 *
 * lock_wait.h
 *		What is in shared memory, first of all the queue of waiters.
 *
 * One slot per backend, since a backend waits for one key at a time.  Slots
 * of waiters are linked in the order in which they came, in buckets by the
 * hash of the key.
 *
 * IDENTIFICATION
 *		src/lock_wait.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef ATOMIC_LOCK_WAIT_H
#define ATOMIC_LOCK_WAIT_H

#include "atomic_lock.h"
#include "port/atomics.h"
#include "storage/lwlock.h"

#define AL_WAITER_HOLDER_BYTES	64

/*
 * Who waits for what.  The key and the owner are whole, since a hash decides
 * nothing: it only finds those who may be meant.  A label that is longer is cut
 * between characters.
 */
typedef struct AlWaiter
{
	uint64		id;				/* of this wait, never used again; 0: none */
	uint64		hash;			/* of the key */
	uint64		check;			/* likewise */
	uint64		owner_hash;		/* 0: an owner that is yet to be generated */
	TimestampTz since;
	int64		due;			/* looks again by then; of al_monotonic_now() */
	Oid			database;
	int			pid;
	bool		is_shared;		/* the mode it wants */
	bool		is_upgrade;		/* of the shared holding that its owner has */
	int16		key_length;
	int16		owner_length;	/* 0: see owner_hash */
	char		holder[AL_WAITER_HOLDER_BYTES];
	char		owner[AL_MAX_OWNER_BYTES];
	char		key[AL_MAX_KEY_BYTES];
} AlWaiter;

typedef struct AlSlot
{
	AlWaiter	waiter;
	pg_atomic_uint32 woken;		/* set by others, cleared by the waiter */
	pg_atomic_uint32 sweeping;	/* process id, while its transaction sweeps; or 0 */
	bool		asleep;			/* or about to; has looked at the row before */
	bool		behind_claim;	/* and met one: any that goes may be it */
	int			previous;		/* in the bucket; -1: none */
	int			next;
} AlSlot;

#define AL_BUCKETS	256

typedef struct AlBucket
{
	pg_atomic_uint32 waiters;	/* read without the lock */
	int			first;			/* slot, or -1 */
	int			last;
} AlBucket;

typedef struct AlQueue
{
	LWLock		lock;			/* for all but the atomics */
	int			tranche;
	uint64		last_id;
	AlBucket	buckets[AL_BUCKETS];
	AlSlot		slots[FLEXIBLE_ARRAY_MEMBER];	/* MaxBackends, by proc number */
} AlQueue;

StaticAssertDecl(sizeof(AlSlot) <= 1500, "a slot must stay small");

/*
 * What a transaction holds itself, as far as others are shown it; see lock_held.c.
 * The texts of a holding are one after the other in those of the set: key, owner,
 * holder.
 */
typedef struct AlShown
{
	uint64		hash;			/* of the key */
	int64		fencing_token;
	TimestampTz acquired_at;
	bool		is_shared;
	int16		key_length;
	int16		owner_length;
	int16		holder_length;
	int16		texts_at;
} AlShown;

#define AL_SHOWN		8
#define AL_SHOWN_BYTES	1600	/* at least those of the longest key, owner and holder */

typedef struct AlShownSet
{
	int			count;
	int			pid;
	Oid			database;
	int			used;			/* bytes of "texts" */
	AlShown		holdings[AL_SHOWN];
	char		texts[AL_SHOWN_BYTES];
} AlShownSet;

StaticAssertDecl(AL_SHOWN_BYTES >= AL_MAX_KEY_BYTES + AL_MAX_OWNER_BYTES + AL_MAX_HOLDER_BYTES,
				 "one holding can always be shown");

/* See lock_hint.c */
#define AL_HINTS	(256 * 1024)	/* and as many places for keys known to be alone */
#define AL_LOCAL_HINTS	8192	/* of a session, where there is no shared memory */
#define AL_ENTRY_COUNTERS 1024	/* counters of entries of the index */

/* lock_shmem.c */
extern void al_shmem_init(void);
extern AlQueue *al_queue(void);
extern AlShownSet *al_shown(void);
extern pg_atomic_uint64 *al_hints(uint32 *count);
extern pg_atomic_uint64 *al_alone(void);
extern pg_atomic_uint64 *al_entry_counters(void);

/* lock_wait.c */
extern int64 al_monotonic_now(void);
extern void al_wait_wake_alone(uint64 hash);
extern void al_wait_begin(const AlKey *key, const AlOwner *owner, bool is_shared,
						  bool is_upgrade, text *holder);
extern void al_wait_end(bool granted);
extern void al_wait_look(void);
extern void al_wait_sleep(int64 microseconds, bool behind_claim);
extern bool al_wait_resign(const AlWaiter *others, int count);
extern bool al_wait_behind(const AlKey *key, bool is_shared, char **first);
extern void al_wait_wake(uint64 hash, TimestampTz held_until, uint64 owner_hash);
extern bool al_wait_is_wanted_alone(const AlKey *key);
extern bool al_wait_is_upgraded_by_others(const AlKey *key, const AlOwner *owner);
extern int	al_wait_count(const AlKey *key);
extern TimestampTz al_wait_since(const AlKey *key);
extern AlWaiter *al_wait_list(int *count);
extern bool al_wait_of_backend(int pid, AlWaiter *waiter);
extern AlWaiter *al_wait_of_owner(AlString owner, int *count);
extern AlKey al_waiter_key(const AlWaiter *waiter);
extern AlString al_waiter_owner(const AlWaiter *waiter);

#ifdef AL_TEST_HOOKS
extern int	al_test_hash_bits;
extern double al_test_longest_exit_ms;
extern double al_test_sleep_cap_ms;
extern bool al_test_pause_after_wake;
extern bool al_test_pause_before_sleep;
extern bool al_test_pause_before_claim;
extern bool al_test_pause_before_queue;
extern void al_test_pause(bool pause);
extern double al_test_sweep_ahead_ms;
extern bool al_test_pause_in_sweep;
extern bool al_test_pause_before_sweep;
#endif

#endif							/* ATOMIC_LOCK_WAIT_H */
