/*-------------------------------------------------------------------------
 *
 * session.c
 *		Which sessions still run, and when others had ended.
 *
 * Model: a holding that ends with its session names it by its process id and the
 * start of its backend, as pg_stat_activity shows them.  Anybody can see whether that
 * backend still runs.
 *
 * Of a session that did not end in an orderly way it is not known when it ended; what
 * lock_delay is counted from then is a moment by which it had.  Sessions that leave
 * something behind note when, in shared memory.  For those before a crash, or on
 * another server, it is when this server could first be written to.
 *
 * A standby cannot see the sessions of its primary: there they all live.
 *
 * Locking rules: the list of sessions is under the lock of the statistics.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "tcop/utility.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "shmem/session.h"
#include "shmem/shmem.h"

/* A session that has ended and left something behind that it held */
typedef struct Left
{
	int			pid;			/* 0: not in use */
	TimestampTz backend_start;
	TimestampTz at;
} Left;

#define LEFT		128

typedef struct Sessions
{
	LWLock		lock;			/* for all but the atomics */
	pg_atomic_uint64 writable_at;	/* since then the server can be written to */
	pg_atomic_uint64 left_at;	/* no entry that was overwritten was later */
	int			next_left;		/* which entry is the oldest */
	Left		left[LEFT];
} Sessions;

static Sessions *sessions = NULL;	/* until this process attaches */

static Size
sessions_size(void)
{
	return sizeof(Sessions);
}

static void
init_sessions(void *memory)
{
	Sessions   *new_sessions = memory;

	al_shmem_init_lock(&new_sessions->lock);
	al_shmem_init_words(&new_sessions->writable_at, 1);
	al_shmem_init_words(&new_sessions->left_at, 1);
}

static void
attach_sessions(void *memory)
{
	sessions = memory;
}

const AlShmemPart al_session_part = {sessions_size, init_sessions, attach_sessions};

/* Does the session with this process id and start of its backend still run? */
bool
al_session_is_alive(int pid, TimestampTz backend_start)
{
	PgBackendStatus *entries;

	if (RecoveryInProgress() || MyBEEntry == NULL)
		return true;
	if (pid == MyProcPid)
		return backend_start == MyStartTimestamp;

	entries = al_backend_entries();
	for (int i = 0; i < MaxBackends; i++)
	{
		volatile PgBackendStatus *entry = &entries[i];
		int			entry_pid = entry->st_procpid;
		TimestampTz entry_start = 0;

		if (entry_pid != pid)
			continue;
		for (;;)
		{
			int			before;
			int			after;

			pgstat_begin_read_activity(entry, before);
			entry_pid = entry->st_procpid;
			entry_start = entry->st_proc_start_timestamp;
			pgstat_end_read_activity(entry, after);
			if (pgstat_read_activity_complete(before, after))
				break;
			CHECK_FOR_INTERRUPTS();
		}
		if (entry_pid == pid && entry_start == backend_start)
			return true;
	}
	return false;
}

/* Note that something had happened by now, if it is not noted yet; returns what is */
static TimestampTz
note_now(pg_atomic_uint64 *noted_at, TimestampTz before)
{
	uint64		expected = before;

	(void) pg_atomic_compare_exchange_u64(noted_at, &expected, GetCurrentTimestamp());
	return (TimestampTz) pg_atomic_read_u64(noted_at);
}

/* The server can be written to; sessions of before, or of another server, had ended */
TimestampTz
al_session_begin(void)
{
	return note_now(&sessions->writable_at, 0);
}

/* When a session that runs no more has left a holding behind; 0: it did not say */
static TimestampTz
find_left(int pid, TimestampTz backend_start)
{
	TimestampTz at = 0;

	LWLockAcquire(&sessions->lock, LW_SHARED);
	for (int i = 0; i < LEFT; i++)
	{
		const Left *left = &sessions->left[i];

		if (left->pid == pid && left->backend_start == backend_start)
			at = left->at;
	}
	LWLockRelease(&sessions->lock);
	return at;
}

/*
 * By when a session had ended that runs no more, and that had a holding until
 * "expires_at".  Without shared memory that may be when the holding expires, or
 * if it does not, as early as when the session began.
 */
TimestampTz
al_session_ended_by(int pid, TimestampTz backend_start, TimestampTz expires_at)
{
	TimestampTz ended_by = sessions ? find_left(pid, backend_start) : 0;

	if (ended_by != 0)
		return ended_by;
	ended_by = sessions ? al_session_begin() : al_writable_since();
	if (ended_by >= backend_start)
		return ended_by;
	ended_by = sessions ? (TimestampTz) pg_atomic_read_u64(&sessions->left_at) : 0;
	if (ended_by >= backend_start)
		return ended_by;

	/* It is none of these, and left nothing that had not run out. */
	if (expires_at <= GetCurrentTimestamp())
		return expires_at;
	if (sessions)
		return note_now(&sessions->left_at, ended_by);
	return expires_at == DT_NOEND ? backend_start : expires_at;
}

/* This session ends and has left something behind that it held */
void
al_session_left(void)
{
	Left	   *left = NULL;

	if (sessions == NULL)
		return;
	LWLockAcquire(&sessions->lock, LW_EXCLUSIVE);
	for (int i = 0; i < LEFT; i++)
	{
		if (sessions->left[i].pid == MyProcPid && sessions->left[i].backend_start == MyStartTimestamp)
			left = &sessions->left[i];
	}
	if (left == NULL)
	{
		left = &sessions->left[sessions->next_left];
		sessions->next_left = (sessions->next_left + 1) % LEFT;
		/* What had the place is not there any more. */
		if (left->pid != 0)
			pg_atomic_write_u64(&sessions->left_at,
								Max(pg_atomic_read_u64(&sessions->left_at), (uint64) left->at));
	}
	left->pid = MyProcPid;
	left->backend_start = MyStartTimestamp;
	left->at = GetCurrentTimestamp();
	LWLockRelease(&sessions->lock);
}
