/*
 * stat.h
 *		Counters of each database in shared memory, and notes of the sweep.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_SHMEM_STAT_H
#define AL_SHMEM_STAT_H

#include "port/atomics.h"

#include "atomic_lock.h"
#include "shmem/shmem.h"

/* In the order of the columns of lock_stats, which has others in between */
typedef enum AlCounter
{
	/* counted when the transaction commits */
	AL_COUNT_GRANTS,
	AL_COUNT_REGRANTS,
	AL_COUNT_RELEASES,
	AL_COUNT_EXTENDS,
	AL_COUNT_EXPIRATIONS,
	AL_COUNT_STEALS,
	AL_COUNT_FORCED,
	AL_COUNT_SWEEPS,
	AL_COUNT_SWEPT,

	/* counted at once */
	AL_COUNT_REFUSALS,
	AL_COUNT_TIMEOUTS,
	AL_COUNT_DEADLOCKS,
	AL_COUNT_WAITS,
	AL_COUNT_WAITED,			/* microseconds */
	AL_COUNT_LONGEST_WAIT,		/* microseconds */
	AL_COUNT_GUARD_REFUSALS,
	AL_COUNTERS
} AlCounter;

#define AL_COUNTERS_AT_COMMIT	AL_COUNT_REFUSALS

typedef struct AlSweepRecord
{
	TimestampTz started_at;		/* 0: there was no sweep */
	TimestampTz ended_at;
	int64		removed;
	bool		by_worker;
} AlSweepRecord;

/* Until when a database may have tickets; see shmem/tickets.c */
typedef struct AlTicketed
{
	pg_atomic_uint64 is_counted;	/* 1: "until" covers all tickets */
	pg_atomic_uint64 until;		/* a TimestampTz; 0: there was no ticket */
} AlTicketed;

typedef struct AlDatabase
{
	pg_atomic_uint64 counters[AL_COUNTERS];
	pg_atomic_uint64 since;		/* a TimestampTz */
	pg_atomic_uint64 changes;	/* transactions that changed rows that a sweep reads */
	pg_atomic_uint64 sweep_from;	/* the block where the next sweep begins */
	pg_atomic_uint64 offers_missed; /* 1: a free key may have a ticket and no offer */
	AlTicketed	ticketed;
	Oid			oid;			/* 0: unused; from here on under the lock */
	AlSweepRecord last_sweep;
	TimestampTz failed_at;		/* when the last worker failed; 0: it did not */
} AlDatabase;

/* The first entry is for all databases that found no free one. */
#define AL_DATABASES	512

typedef struct AlStats
{
	LWLock		lock;
	AlDatabase	databases[AL_DATABASES];
} AlStats;

extern const AlShmemPart al_stat_part;

extern AlStats *al_stats(void);
extern AlDatabase *al_stat_find(Oid database);
extern AlDatabase *al_stat_entry(Oid oid);
extern AlDatabase *al_stat_database(void);
extern void al_stat_count(AlCounter counter, int64 count);
extern void al_stat_changed(void);
extern void al_stat_missed(void);
extern bool al_stat_set_missed(Oid oid, bool missed);
extern bool al_stat_any_missed(void);
extern void al_stat_waited(const AlKey *key, int64 waited);
extern void al_stat_abort(void);
extern void al_stat_commit(void);
extern void al_stat_subcommit(int level);
extern void al_stat_subabort(int level);
extern void al_stat_swept(TimestampTz started_at, int64 removed, bool by_worker);

#endif							/* AL_SHMEM_STAT_H */
