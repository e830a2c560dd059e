/*-------------------------------------------------------------------------
 *
 * atomic_lock.h
 *		Limits, the few types that every layer needs, and the life of a lock.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * The life of a lock, from the call to the sweep.  The header of each file named here has the
 * details.
 *
 * 1. A function such as lock_acquire() checks its arguments, opens app_lock and calls a verb
 *    (api/lock.c).  The verb asks the policies whether the caller may change the key, and for how
 *    long (lease/terms.c).
 * 2. An attempt looks at the rows of the key without a lock (lease/attempt.c, table/app_lock.c).
 *    A live holding of another owner, or somebody earlier in the line, refuses the request, and
 *    nothing was written.
 * 3. Otherwise the attempt claims the key: it takes a heavyweight lock on the hash of the key,
 *    without waiting (claim/claim.c, claim/claimed.c), and looks again.  This look stays true
 *    until the transaction ends, since nobody else can change the key meanwhile.
 * 4. A refused request that may wait joins the waiters in shared memory (shmem/waiters.c) and
 *    repeats steps 2 and 3 after each wake-up (lease/acquire.c).  A client without a connection
 *    takes a ticket, a row of app_lock_queue (lease/enqueue.c).  Waiters and tickets are one
 *    line, in the order of arrival (lease/line.c).
 * 5. The grant draws a fencing token (table/fence.c) and writes the row of the holding
 *    (lease/grant.c): in slot 0 of the key if it is exclusive, in a higher slot if it is shared
 *    (table/sharers.c).  A holding with the lifetime of a transaction has no row: the claim is
 *    the holding (claim/tx_holdings.c).
 * 6. The commit of a grant is flushed (claim/durability.c).  When the server has released the
 *    transaction's locks, claims included, the first waiter for each claimed key is woken, unless
 *    the key stays held (xact.c, claim/claimed.c).
 * 7. While the lease lasts, its owner may extend it (lease/extend.c) or hand it over
 *    (lease/transfer.c).  A transaction that relies on the lease pins it (lease/pin.c), as the
 *    trigger of a guarded table does (guard/trigger.c).
 * 8. A holding ends when its owner releases it (lease/release.c), when an administrator ends it
 *    (api/admin.c), when the clock reaches its expiry, or with its session (lease/session_end.c).
 *    A release marks the row and keeps it.  An expiry writes nothing: the grant that takes the
 *    row next, or a sweep, records the end.  Each recorded end is passed to history, listeners
 *    and the line (lease/publish.c).
 * 9. A transaction that released the key offers it to the first ticket just before it commits
 *    (lease/line.c).  If it wrote nothing else, the commit is asynchronous.  It wakes the first
 *    waiter as in step 6.
 * 10. lock_delay and min_hold may keep the key closed for a while (claim/holding.c).  Then the
 *     next grant of the key overwrites the row, as in step 5.
 * 11. A sweep deletes rows that no grant has reused, each under a claim as in step 3
 *     (sweep/sweep.c).  The launcher starts a worker where a sweep is due (sweep/launcher.c,
 *     sweep/worker.c).
 *
 *-------------------------------------------------------------------------
 */
#ifndef ATOMIC_LOCK_H
#define ATOMIC_LOCK_H

#include "datatype/timestamp.h"

#define AL_MAX_KEY_BYTES	1024
#define AL_MAX_OWNER_BYTES	255
#define AL_MAX_HOLDER_BYTES 255
#define AL_MAX_MESSAGE_BYTES	1024
#define AL_MAX_META_BYTES	8192
#define AL_MAX_REASON_BYTES 1024
#define AL_MIN_TTL			INT64CONST(1000)	/* microseconds */
#define AL_NO_TTL			PG_INT64_MIN	/* the caller named no ttl */
#define AL_LONGEST_WAIT		PG_INT64_MIN	/* as long as max_wait allows */
#define AL_MAX_KEYS			1000	/* in a set */

/* The latest end of a holding */
typedef enum AlLifetime
{
	AL_LEASE,					/* its expiry */
	AL_SESSION,					/* the session, or an expiry if it has one */
	AL_TRANSACTION				/* the transaction; such a holding has no row */
} AlLifetime;

/* Bytes that are not terminated, such as those of a text datum */
typedef struct AlString
{
	const char *data;
	int			len;
} AlString;

typedef struct AlKey
{
	AlString	name;
	uint64		hash;			/* claims are taken on it */
	uint64		check;			/* hash and check together stand for the name */
} AlKey;

typedef struct AlOwner
{
	AlString	name;
	bool		generated;		/* made for this grant, so nobody else knows it */
	bool		in_index;		/* generated, but in the index of owners */
	uint64		hash;			/* leads to its waits; see al_holding_hash() */
} AlOwner;

/* The slot of the exclusive holding; shared holdings have higher slots. */
#define AL_SLOT_EXCLUSIVE	0
#define AL_SLOT_FIRST_SHARED	1

#endif							/* ATOMIC_LOCK_H */
