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

/* The longest visit with more than one batch, in microseconds; the next visit continues */
#ifdef AL_TEST_HOOKS
#define AL_LONGEST_VISIT	AL_MS_TO_US(al_test_longest_visit_ms)
#else
#define AL_LONGEST_VISIT	(10 * USECS_PER_SEC)
#endif

/* The result of a worker's visit to a database */
typedef enum AlVisitResult
{
	AL_VISIT_FAILED,			/* the worker ended without a report */
	AL_VISIT_DONE,
	AL_VISIT_UNFINISHED,		/* there may be more to remove */
	AL_VISIT_AWAY,				/* the database or app_lock could not be locked at once */
	AL_VISIT_NO_EXTENSION,
	AL_VISIT_OTHER_VERSION		/* the versions of extension and library differ */
} AlVisitResult;

/* The current visit; one runs at a time */
typedef struct AlVisit
{
	Oid			database;		/* InvalidOid: no visit */
	bool		only_queue;		/* sweep app_lock_queue only, for missed offers */
	AlVisitResult result;
	TimestampTz next_due;		/* when the next row can be removed; DT_NOEND: not known */
} AlVisit;

/* The background sweep in shared memory; the lock protects all fields */
typedef struct AlSweeper
{
	LWLock		lock;
	pid_t		launcher_pid;	/* 0: no launcher runs */
	bool		is_off;			/* the launcher has seen that sweep_interval is 0 */
	TimestampTz launcher_failed_at; /* when it could start no worker; 0: it could */
	AlVisit		visit;
} AlSweeper;

extern const AlShmemPart al_sweeper_part;

extern AlSweeper *al_sweeper(void);
extern bool al_lock_database(Oid database);

#endif							/* AL_SWEEP_WORKER_H */
