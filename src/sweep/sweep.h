/*
 * sweep.h
 *		Sweeping rows of app_lock that are over.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_SWEEP_SWEEP_H
#define AL_SWEEP_SWEEP_H

#include "datatype/timestamp.h"
#include "storage/block.h"
#include "utils/relcache.h"

/* A sweep of the whole table, done in one or more calls */
typedef struct AlSwept
{
	int64		removed;		/* rows of app_lock, by the last call */
	int64		tickets;		/* rows of app_lock_queue, by the last call */
	int64		trimmed;		/* rows of lock_history, by the last call */
	TimestampTz trim_from;		/* where that went so far */
	bool		queue_done;		/* app_lock_queue has been swept */
	uint32		left;			/* blocks not looked at yet; at least 1 if there is more to trim */
	TimestampTz next_due;		/* when the next row will be over, if known */
} AlSwept;

extern void al_sweep_over(void);
extern void al_sweep_begin(Relation rel, AlSwept *swept);
extern void al_sweep(Relation rel, int64 max_rows, BlockNumber max_blocks,
					 AlSwept *swept);

#endif							/* AL_SWEEP_SWEEP_H */
