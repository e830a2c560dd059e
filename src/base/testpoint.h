/*
 * testpoint.h
 *		Points at which a test can stop a backend, or make it fail.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * A test point exists if the module was built with AL_TEST_HOOKS, or the server with
 * injection points; otherwise it costs nothing.  It must not be in a critical
 * section, nor under an LWLock.
 *
 * "before-wake", "missed", "leaving" and "exit" are for injection points only.  They are where a
 * transaction has released its locks, fails or has ended, so atomic_lock.test_pause_at
 * must not name them: al_test_pause() would take a lock there.  "before-release" is where a
 * transaction has ended and still has its locks.
 */
#ifndef AL_BASE_TESTPOINT_H
#define AL_BASE_TESTPOINT_H

#include "base/compat.h"

#ifdef AL_TEST_HOOKS
extern void al_test_init(void);
extern void al_test_pause(const char *point);
extern void al_test_pass(const char *call, const char *function);
extern void al_test_usleep(long microsec);
#else
#define al_test_init() ((void) 0)
#define al_test_pause(point) ((void) 0)
#endif

#define AL_TEST_POINT(name) \
	do { \
		al_test_pause(name); \
		AL_INJECTION_POINT("atomic-lock-" name); \
	} while (0)

#endif							/* AL_BASE_TESTPOINT_H */
