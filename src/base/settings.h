/*
 * settings.h
 *		Settings, and variables that tests can set.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_BASE_SETTINGS_H
#define AL_BASE_SETTINGS_H

#include <math.h>

#include "nodes/pg_list.h"

typedef enum AlReacquire
{
	AL_REACQUIRE_EXTEND,
	AL_REACQUIRE_ERROR
} AlReacquire;

typedef enum AlAcquireDurability
{
	AL_ACQUIRE_FORCED,
	AL_ACQUIRE_SESSION
} AlAcquireDurability;

typedef enum AlReleaseDurability
{
	AL_RELEASE_RELAXED,
	AL_RELEASE_SESSION
} AlReleaseDurability;

extern char *al_owner_setting;
extern bool al_owner_setting_is_verified;
extern double al_released_retention_ms;
extern double al_history_retention_ms;
extern int	al_on_reacquire;
extern int	al_acquire_durability;
extern int	al_release_durability;
extern double al_sweep_interval_ms;
extern char *al_sweep_databases;
extern int	al_sweep_batch;
extern int	al_max_claims;
extern int	al_max_tickets;
extern int	al_partitions;
extern int	al_partition;
extern bool al_enforce_guards;

#define AL_MS_TO_US(ms) ((int64) rint((ms) * 1000.0))

#ifdef AL_TEST_HOOKS
extern char *al_test_pause_at;
extern int	al_test_hash_bits;
extern double al_test_sleep_cap_ms;
extern double al_test_longest_exit_ms;
extern double al_test_sweep_ahead_ms;
extern double al_test_longest_visit_ms;
extern double al_test_notify_full;
#endif

extern void al_settings_init(void);
extern bool al_split_names(const char *list, char **copy, List **names);
extern bool al_is_session_token(int64 token);
extern List *al_session_tokens(void);

#endif							/* AL_BASE_SETTINGS_H */
