/*
 * clock.h
 *		Clocks and durations.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_BASE_CLOCK_H
#define AL_BASE_CLOCK_H

#include "datatype/timestamp.h"

extern TimestampTz al_add_duration(TimestampTz time, int64 duration);
extern int64 al_monotonic_now(void);

#endif							/* AL_BASE_CLOCK_H */
