/*
 * worker.h
 *		The worker that sweeps a database.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_SWEEP_WORKER_H
#define AL_SWEEP_WORKER_H

#include "datatype/timestamp.h"

#include "base/settings.h"
#include "shmem/shmem.h"

/* The longest visit, in microseconds; another one does what is left. */
#ifdef AL_TEST_HOOKS
#define AL_LONGEST_VISIT	AL_MS_TO_US(al_test_longest_visit_ms)
#else
#define AL_LONGEST_VISIT	(10 * USECS_PER_SEC)
#endif

/* The result of a worker's visit to a database */
typedef enum AlVisitResult
{
	AL_VISIT_FAILED,			/* the worker reported nothing */
	AL_VISIT_DONE,
	AL_VISIT_UNFINISHED,		/* there may be more to remove */
	AL_VISIT_AWAY,				/* somebody wants the database, or locks the table */
	AL_VISIT_NO_EXTENSION,
	AL_VISIT_OTHER_VERSION		/* the extension has not the version of the library */
} AlVisitResult;

/* The current visit; there is one at a time */
typedef struct AlVisit
{
	Oid			database;
	bool		only_queue;		/* it was said that an offer may have been missed */
	AlVisitResult result;
	TimestampTz next_due;		/* when the next row will be over, if known */
} AlVisit;

/* The background sweep in shared memory, under the lock */
typedef struct AlSweeper
{
	LWLock		lock;
	pid_t		launcher_pid;	/* 0: no launcher runs */
	bool		is_off;			/* the launcher knows that it is to sweep nothing */
	TimestampTz launcher_failed_at; /* to start a worker; 0: the last one started */
	AlVisit		visit;
} AlSweeper;

extern const AlShmemPart al_sweeper_part;

extern AlSweeper *al_sweeper(void);
extern bool al_lock_database(Oid database);

#endif							/* AL_SWEEP_WORKER_H */
