/*
 * waiters.h
 *		Calls that wait for a key, in the order of their arrival.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_SHMEM_WAITERS_H
#define AL_SHMEM_WAITERS_H

#include "atomic_lock.h"
#include "shmem/shmem.h"

#define AL_WAITER_HOLDER_BYTES	64

/* A waiter, with the whole key and owner, since hashes decide nothing; a longer label is cut */
typedef struct AlWaiter
{
	uint64		id;				/* of this wait, never reused; 0: not waiting */
	uint64		hash;			/* of the key */
	uint64		check;			/* of the key */
	uint64		owner_hash;		/* 0: the owner is not generated yet */
	TimestampTz since;
	int64		due;			/* it looks again by then; of al_monotonic_now() */
	Oid			database;
	int			pid;
	bool		is_shared;		/* the mode it wants */
	int			max_holders;	/* how many may share the key then; 0: no limit */
	bool		is_upgrade;		/* it converts its owner's shared holding */
	int64		arrival;		/* tickets with lower numbers come before it */
	bool		has_ticket;		/* "arrival" is the number of its owner's ticket */
	int16		key_length;
	int16		owner_length;	/* 0: the owner is not generated yet */
	char		holder[AL_WAITER_HOLDER_BYTES];
	char		owner[AL_MAX_OWNER_BYTES];
	char		key[AL_MAX_KEY_BYTES];
} AlWaiter;

extern const AlShmemPart al_waiters_part;

extern AlKey al_waiter_key(const AlWaiter *waiter);
extern bool al_waiter_precedes(const AlWaiter *waiter, const AlKey *key, int64 ticket);
extern AlString al_waiter_owner(const AlWaiter *waiter);
extern void al_waiters_wake_strict(uint64 hash);
extern void al_waiters_wake(uint64 hash, TimestampTz held_until, uint64 owner_hash);
extern bool al_waiters_join(const AlKey *key, const AlOwner *owner, bool is_shared,
							int max_holders, bool is_upgrade, int64 arrival, bool has_ticket,
							text *holder);
extern void al_waiters_leave(bool granted, int seats_used);
extern bool al_waiters_resign(const AlWaiter *others, int count);
extern void al_waiters_look(void);
extern void al_waiters_sleep(int64 microseconds, bool behind_claim);
extern bool al_waiters_precede(const AlKey *key, bool caller_is_open, int64 arrival, char **first);
extern int64 al_waiters_arrival(void);
extern int	al_waiters_count_before(const AlKey *key, int64 arrival);
extern bool al_waiters_has_strict(const AlWaiter *waiter, bool *limited);
extern int al_waiters_count(const AlKey *key);
extern TimestampTz al_waiters_since(const AlKey *key);
extern AlWaiter *al_waiters_list(int *count);
extern bool al_waiters_of_backend(int pid, AlWaiter *waiter);
extern AlWaiter *al_waiters_of_owner(AlString owner, int *count);
extern void al_waiters_sweep_begin(void);
extern void al_waiters_sweep_end(void);
extern bool al_waiters_is_sweeping(int pid);

#endif							/* AL_SHMEM_WAITERS_H */
