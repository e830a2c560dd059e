/*
 * sweep.h
 *		Sweeps: removing rows that are not needed any more.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_SWEEP_SWEEP_H
#define AL_SWEEP_SWEEP_H

#include "datatype/timestamp.h"
#include "storage/block.h"
#include "utils/relcache.h"

#include "atomic_lock.h"

/* A sweep of the whole table, in one or more calls of al_sweep() */
typedef struct AlSwept
{
	int64		removed;		/* rows of app_lock, by the last call */
	int64		tickets;		/* rows of app_lock_queue, by the last call */
	int64		trimmed;		/* rows of lock_history, by the last call */
	TimestampTz trim_from;		/* start of the part of lock_history not yet trimmed */
	bool		queue_done;		/* app_lock_queue has been swept */
	int			queue_from_len;
	char		queue_from[AL_MAX_KEY_BYTES];	/* the key of app_lock_queue to continue with */
	uint32		left;			/* blocks of app_lock not read yet; not 0 if other work is left */
	TimestampTz next_due;		/* when the next row can be removed; DT_NOEND: not known */
} AlSwept;

extern void al_sweep_over(void);
extern void al_sweep_begin(Relation rel, AlSwept *swept);
extern void al_sweep(Relation rel, int64 max_rows, BlockNumber max_blocks,
					 AlSwept *swept);

#endif							/* AL_SWEEP_SWEEP_H */
