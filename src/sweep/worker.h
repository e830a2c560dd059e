/*
 * worker.h
 *		The worker that sweeps a database.
 */
#ifndef AL_SWEEP_WORKER_H
#define AL_SWEEP_WORKER_H

#include "base/settings.h"
#include "shmem/shmem.h"

/* A visit is over after that long; where more is to be done, another follows. */
#ifdef AL_TEST_HOOKS
#define AL_LONGEST_VISIT	AL_MS_TO_US(al_test_longest_visit_ms)
#else
#define AL_LONGEST_VISIT	(10 * USECS_PER_SEC)
#endif

/* What came of the visit of a worker to a database */
typedef enum AlVisitResult
{
	AL_VISIT_FAILED,			/* it did not say */
	AL_VISIT_DONE,
	AL_VISIT_UNFINISHED,		/* there may be more to remove */
	AL_VISIT_AWAY,				/* somebody else wants the database, or the table */
	AL_VISIT_NO_EXTENSION
} AlVisitResult;

/* How the launcher and its worker talk; there is one worker at a time */
typedef struct AlVisit
{
	Oid			database;
	AlVisitResult result;
	TimestampTz next_due;		/* when the next row will be over, if known */
} AlVisit;

/* What is in shared memory of the background sweep */
typedef struct AlSweeper
{
	LWLock		lock;
	pid_t		launcher_pid;	/* 0: does not run */
	TimestampTz launcher_failed_at; /* no worker could be started; 0: the last could */
	AlVisit		visit;
} AlSweeper;

extern const AlShmemPart al_sweeper_part;

extern AlSweeper *al_sweeper(void);
extern bool al_lock_database(Oid database);

#endif							/* AL_SWEEP_WORKER_H */
