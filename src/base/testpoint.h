/*
 * testpoint.h
 *		Points at which a test can stop a backend, or make it fail.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * A test point exists if the module was built with AL_TEST_HOOKS, or the server with
 * injection points; otherwise it costs nothing.  It must not be in a critical section or
 * under an LWLock.
 *
 * "before-wake", "missed", "leaving" and "exit" are for injection points only.  There the
 * transaction has released its locks, is failing or has ended, so a test must not set
 * atomic_lock.test_pause_at to them: al_test_pause() would take a lock.  At
 * "before-release" the transaction has ended and still has its locks.
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
