/*-------------------------------------------------------------------------
 *
 * clock.c
 *		Clocks and durations.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/int.h"
#include "portability/instr_time.h"

#include "base/clock.h"

/* The time after a duration in microseconds, but at most the last timestamp */
TimestampTz
al_add_duration(TimestampTz time, int64 duration)
{
	int64		sum;

	if (pg_add_s64_overflow(time, duration, &sum) || sum >= END_TIMESTAMP)
		return END_TIMESTAMP - 1;
	return sum;
}

/* Microseconds of a clock that cannot be set; all processes share it */
int64
al_monotonic_now(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return (int64) INSTR_TIME_GET_MICROSEC(now);
}
