/*-------------------------------------------------------------------------
 *
 * clock.c
 *		Clocks and durations.
 *
 * Locking: none.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "common/int.h"
#include "miscadmin.h"
#include "portability/instr_time.h"

#include "base/clock.h"

/* A moment and a duration later, at most the last timestamp there is */
TimestampTz
al_add_duration(TimestampTz time, int64 duration)
{
	int64		sum;

	if (pg_add_s64_overflow(time, duration, &sum) || sum >= END_TIMESTAMP)
		return END_TIMESTAMP - 1;
	return sum;
}

/* Microseconds of a clock that nobody sets, the same in all processes */
int64
al_monotonic_now(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return (int64) INSTR_TIME_GET_MICROSEC(now);
}
