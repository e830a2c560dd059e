/*
 * points.h
 *		Test points at calls that read or change shared state.
 *
 * The Makefile includes this file before each file of a build with AL_TEST_HOOKS.  These
 * points have no name in the source; the explorer names them CALL@FUNCTION.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/procarray.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/testpoint.h"

#define AL_TEST_PASS(call) al_test_pass(call, __func__)

#define pg_usleep(...) al_test_usleep(__VA_ARGS__)
#define LockAcquire(...) (AL_TEST_PASS("LockAcquire"), LockAcquire(__VA_ARGS__))
#define LockRelease(...) (AL_TEST_PASS("LockRelease"), LockRelease(__VA_ARGS__))
#define GetLockConflicts(...) (AL_TEST_PASS("GetLockConflicts"), GetLockConflicts(__VA_ARGS__))
#define LWLockAcquire(...) (AL_TEST_PASS("LWLockAcquire"), LWLockAcquire(__VA_ARGS__))
#define GetLatestSnapshot() (AL_TEST_PASS("GetLatestSnapshot"), GetLatestSnapshot())
#define GetCurrentTimestamp() (AL_TEST_PASS("GetCurrentTimestamp"), GetCurrentTimestamp())
#define ReadBuffer(...) (AL_TEST_PASS("ReadBuffer"), ReadBuffer(__VA_ARGS__))
#define heap_fetch(...) (AL_TEST_PASS("heap_fetch"), heap_fetch(__VA_ARGS__))
#define heap_lock_tuple(...) (AL_TEST_PASS("heap_lock_tuple"), heap_lock_tuple(__VA_ARGS__))
#define heap_delete(...) (AL_TEST_PASS("heap_delete"), heap_delete(__VA_ARGS__))
#define simple_heap_insert(...) (AL_TEST_PASS("insert"), simple_heap_insert(__VA_ARGS__))
#define simple_heap_update(...) (AL_TEST_PASS("update"), simple_heap_update(__VA_ARGS__))
#define simple_heap_delete(...) (AL_TEST_PASS("delete"), simple_heap_delete(__VA_ARGS__))
