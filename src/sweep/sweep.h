/*
 * sweep.h
 *		Sweeping rows of app_lock that are over.
 */
#ifndef AL_SWEEP_SWEEP_H
#define AL_SWEEP_SWEEP_H

/* What a sweep did */
typedef struct AlSwept
{
	int64		removed;		/* the last time */
	uint32		left;			/* blocks it has not looked at yet */
	TimestampTz next_due;		/* when the next row will be over, as far as is known */
} AlSwept;

extern void al_sweep_over(void);
extern void al_sweep_begin(Relation rel, AlSwept *swept);
extern void al_sweep(Relation rel, int64 max_rows, BlockNumber max_blocks,
					 AlSwept *swept);

#endif							/* AL_SWEEP_SWEEP_H */
