/*
 * testpoint.h
 *		Windows between two steps, in which a test can make a backend stand still.
 *
 * A window exists where the module was built with AL_TEST_HOOKS, or the server
 * with injection points; elsewhere it costs nothing.  It must not be within a
 * critical section, nor where an LWLock is held.
 */
#ifndef AL_BASE_TESTPOINT_H
#define AL_BASE_TESTPOINT_H

#include "base/compat.h"

#ifdef AL_TEST_HOOKS
extern void al_test_pause(const char *point);
#else
#define al_test_pause(point) ((void) 0)
#endif

#define AL_TEST_POINT(name) \
	do { \
		al_test_pause(name); \
		AL_INJECTION_POINT("atomic-lock-" name); \
	} while (0)

#endif							/* AL_BASE_TESTPOINT_H */
