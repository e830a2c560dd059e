/*
 * cron.h
 *		Sweeps by pg_cron.
 */
#ifndef AL_SWEEP_CRON_H
#define AL_SWEEP_CRON_H

extern int64 al_cron_schedule(const char *schedule, const char *function);

#endif							/* AL_SWEEP_CRON_H */
