/*-------------------------------------------------------------------------
 *
 * lock_stat.h
 *		What is counted in shared memory, and what the sweeper keeps there.
 *
 * IDENTIFICATION
 *		src/lock_stat.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef ATOMIC_LOCK_STAT_H
#define ATOMIC_LOCK_STAT_H

#include "atomic_lock.h"
#include "lock_wait.h"
#include "port/atomics.h"
#include "storage/lwlock.h"

/* In the order of the columns of lock_stats, but for those in between */
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
	AL_COUNT_LONGEST_WAIT,		/* the same */
	AL_COUNTERS
} AlCounter;

#define AL_COUNTERS_AT_COMMIT	AL_COUNT_REFUSALS

/* What a sweep did */
typedef struct AlSweepRecord
{
	TimestampTz started_at;		/* 0: there was none */
	TimestampTz ended_at;
	int64		removed;
	bool		by_worker;
} AlSweepRecord;

/* What is known about a database.  Its backends keep it from being dropped. */
typedef struct AlDatabase
{
	pg_atomic_uint64 counters[AL_COUNTERS];
	pg_atomic_uint64 since;		/* a TimestampTz */
	pg_atomic_uint64 changes;	/* rises with each transaction that leaves more to sweep */
	pg_atomic_uint64 sweep_from;	/* block at which the next sweep begins */
	Oid			oid;			/* the rest is under the lock; 0: not in use */
	AlSweepRecord last_sweep;
	TimestampTz failed_at;		/* when a worker failed here; 0: the last did not */
} AlDatabase;

/* The first place is for all databases that have found no other. */
#define AL_DATABASES	512

/* What came of the visit of a worker to a database */
typedef enum AlVisitResult
{
	AL_VISIT_FAILED,			/* it did not say */
	AL_VISIT_DONE,
	AL_VISIT_UNFINISHED,		/* there may be more to remove */
	AL_VISIT_AWAY,				/* somebody else wants the database, or the table */
	AL_VISIT_NO_EXTENSION
} AlVisitResult;

/* A visit is over after that long; where more is to be done, another follows. */
#ifdef AL_TEST_HOOKS
extern double al_test_longest_visit_ms;

#define AL_LONGEST_VISIT	AL_MS_TO_US(al_test_longest_visit_ms)
#else
#define AL_LONGEST_VISIT	(10 * USECS_PER_SEC)
#endif

/* How the launcher and its worker talk; there is one worker at a time */
typedef struct AlVisit
{
	Oid			database;
	AlVisitResult result;
	TimestampTz next_due;		/* when the next row will be over, if known */
} AlVisit;

/* A key that many want, and how much: in the current window of time and before */
typedef struct AlWanted
{
	pg_atomic_uint64 tag;		/* hash of key and database; 0: not in use */
	pg_atomic_uint64 window;	/* number of the current one */
	pg_atomic_uint64 refusals[2];	/* of even and of odd windows, as those below */
	pg_atomic_uint64 waits[2];
	pg_atomic_uint64 waited[2];
	pg_atomic_uint64 longest[2];
	pg_atomic_uint64 last_at;
	Oid			database;		/* the rest is under the lock */
	int			key_length;
	char		key[AL_MAX_KEY_BYTES];
} AlWanted;

#define AL_WANTED_SETS	32
#define AL_WANTED_WAYS	8

/* A session that has ended and left something behind that it held */
typedef struct AlLeft
{
	int			pid;			/* 0: not in use */
	TimestampTz backend_start;
	TimestampTz at;
} AlLeft;

#define AL_LEFT		128

typedef struct AlStats
{
	LWLock		lock;
	pg_atomic_uint64 writable_at;	/* by when those of before had; see lock_session.c */
	AlLeft		left[AL_LEFT];	/* under the lock, as next_left */
	pg_atomic_uint64 left_at;	/* by when those had that are not there any more */
	int			next_left;		/* which entry is the oldest */
	pid_t		launcher_pid;	/* 0: does not run; this and the next by the lock */
	TimestampTz launcher_failed_at; /* no worker could be started; 0: the last could */
	AlVisit		visit;
	AlDatabase	databases[AL_DATABASES];
	AlWanted	wanted[AL_WANTED_SETS][AL_WANTED_WAYS];
} AlStats;

/* lock_shmem.c */
extern AlStats *al_stats(void);

/* lock_stat.c */
extern AlDatabase *al_stat_database(void);
extern AlDatabase *al_stat_place(AlStats *stats, Oid oid);
extern AlDatabase *al_stat_find(AlStats *stats, Oid database);
extern void al_stat_count(AlCounter counter, int64 count);
extern void al_stat_changed(void);
extern void al_stat_waited(const AlKey *key, int64 waited);
extern void al_stat_commit(void);
extern void al_stat_abort(void);
extern void al_stat_subcommit(int level);
extern void al_stat_subabort(int level);
extern void al_stat_swept(TimestampTz started_at, int64 removed, bool by_worker);
extern AlStats *al_stats_or_raise(const char *what);
extern Datum al_database_name(Oid oid);

/* lock_contention.c */
extern void al_wanted_count(const AlKey *key, TimestampTz at, bool is_wait, int64 waited);
extern void al_wanted_reset(Oid database);

#endif							/* ATOMIC_LOCK_STAT_H */
