/*-------------------------------------------------------------------------
 *
 * session.c
 *		Which sessions still run, and when the others ended at the latest.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: a holding with the lifetime of a session names its backend by process id and start time.
 * Every backend can see whether that backend still runs.  A standby cannot see the sessions of
 * its primary, and treats all of them as alive.
 *
 * If a session did not end in an orderly way, lock_delay is counted from an upper bound of its
 * end.  A session that leaves holdings behind notes the time in shared memory.  For a session
 * from before a crash, or of another server, the bound is the time at which this server became
 * writable.
 *
 * Locking rules: the list of ended sessions is under the lock of this part.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "miscadmin.h"

#include "base/compat.h"
#include "shmem/session.h"
#include "shmem/shmem.h"

typedef struct Left
{
	int			pid;			/* 0: unused */
	TimestampTz backend_start;
	TimestampTz at;				/* when it noted that */
} Left;

#define LEFT		128

typedef struct Sessions
{
	LWLock		lock;			/* for everything except the atomics */
	pg_atomic_uint64 writable_at;	/* when the server became writable; 0: not noted */
	pg_atomic_uint64 left_at;	/* at or after "at" of each overwritten entry */
	int			next_left;		/* the oldest entry, overwritten next */
	Left		left[LEFT];
} Sessions;

static Sessions *sessions = NULL;	/* until this process attaches */

static void
init_sessions(void *memory)
{
	Sessions   *new_sessions = memory;

	al_shmem_init_lock(&new_sessions->lock);
	al_shmem_init_words(&new_sessions->writable_at, 1);
	al_shmem_init_words(&new_sessions->left_at, 1);
}

const AlShmemPart al_session_part = {sizeof(Sessions), 0, init_sessions, (void **) &sessions};

/*
 * Copy the status entry of a process, its pointers excepted, and its application_name to a
 * buffer of NAMEDATALEN bytes, unless that is NULL.  False: there is no such process.
 */
static bool
read_entry(int pid, PgBackendStatus *copy, char *application)
{
	PgBackendStatus *entries = al_backend_entries();

	for (int i = 0; i < MaxBackends; i++)
	{
		volatile PgBackendStatus *entry = &entries[i];
		int			before;
		int			after;

		if (entry->st_procpid != pid)
			continue;
		for (;;)
		{
			pgstat_begin_read_activity(entry, before);
			memcpy(copy, unvolatize(PgBackendStatus *, entry), sizeof(*copy));
			if (application)
				strlcpy(application, entry->st_appname, NAMEDATALEN);
			pgstat_end_read_activity(entry, after);
			if (pgstat_read_activity_complete(before, after))
				break;
			CHECK_FOR_INTERRUPTS();
		}
		if (copy->st_procpid == pid)
			return true;
	}
	return false;
}

/* Does this session still run?  True on a standby.  Raises only what interrupts raise. */
bool
al_session_is_alive(int pid, TimestampTz backend_start)
{
	PgBackendStatus entry;

	if (RecoveryInProgress() || MyBEEntry == NULL)
		return true;
	if (pid == MyProcPid)
		return backend_start == MyStartTimestamp;
	return read_entry(pid, &entry, NULL) && entry.st_proc_start_timestamp == backend_start;
}

/*
 * What a session does, and its application_name, which all roles may see.  The words are those
 * of pg_stat_activity, but a fast-path function call is "active".  NULL: the session has ended,
 * or is one of the primary.  "": the current role may not see it, the session still starts, or
 * track_activities is off.
 */
const char *
al_session_show(int pid, char *application)
{
	static const char *const states[] = {
		[STATE_IDLE] = "idle",
		[STATE_RUNNING] = "active",
		[STATE_IDLEINTRANSACTION] = "idle in transaction",
		[STATE_FASTPATH] = "active",
		[STATE_IDLEINTRANSACTION_ABORTED] = "idle in transaction (aborted)"
	};
	PgBackendStatus entry;

	if (RecoveryInProgress() || MyBEEntry == NULL || !read_entry(pid, &entry, application))
		return NULL;
	if ((!has_privs_of_role(GetUserId(), entry.st_userid) &&
		 !has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS)) ||
		(unsigned) entry.st_state >= lengthof(states) || states[entry.st_state] == NULL)
		return "";
	return states[entry.st_state];
}

/* Set *noted_at to now, unless it has changed from "before".  Returns its value. */
static TimestampTz
note_now(pg_atomic_uint64 *noted_at, TimestampTz before)
{
	uint64		expected = before;

	(void) pg_atomic_compare_exchange_u64(noted_at, &expected, GetCurrentTimestamp());
	return (TimestampTz) pg_atomic_read_u64(noted_at);
}

/* When it was first noted that the server is writable.  We have attached. */
TimestampTz
al_session_begin(void)
{
	Assert(sessions != NULL);
	return note_now(&sessions->writable_at, 0);
}

/* When a session noted that it leaves holdings behind; 0: never */
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
 * An upper bound of when a session ended that had a holding until "expires_at".  Without shared
 * memory the expiry; without that, perhaps as early as the start of the session.
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

	/* All holdings that the session left behind had expired. */
	if (expires_at <= GetCurrentTimestamp())
		return expires_at;
	if (sessions)
		return note_now(&sessions->left_at, ended_by);
	return expires_at == DT_NOEND ? backend_start : expires_at;
}

/* This session ends and leaves holdings behind. */
void
al_session_left(void)
{
	Left	   *left = NULL;

	if (sessions == NULL)
		return;
	LWLockAcquire(&sessions->lock, LW_EXCLUSIVE);
	Assert(sessions->next_left >= 0 && sessions->next_left < LEFT);
	for (int i = 0; i < LEFT; i++)
	{
		if (sessions->left[i].pid == MyProcPid && sessions->left[i].backend_start == MyStartTimestamp)
			left = &sessions->left[i];
	}
	if (left == NULL)
	{
		left = &sessions->left[sessions->next_left];
		sessions->next_left = (sessions->next_left + 1) % LEFT;
		if (left->pid != 0)
			pg_atomic_write_u64(&sessions->left_at,
								Max(pg_atomic_read_u64(&sessions->left_at), (uint64) left->at));
	}
	left->pid = MyProcPid;
	left->backend_start = MyStartTimestamp;
	left->at = GetCurrentTimestamp();
	LWLockRelease(&sessions->lock);
}
