/*-------------------------------------------------------------------------
 *
 * tickets.c
 *		Until when this database may have tickets.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: most databases have no tickets.  To spare each acquire and release a look into the
 * table, shared memory has a deadline for each database (shmem/stat.h): until then, a ticket may
 * be valid.  The deadline only rises.  A session that writes a ticket raises it before the
 * commit, so it covers each ticket that others can see.
 *
 * After a start of the server the deadline is unknown until a session has read the table and
 * raised the deadline for all tickets (table/tickets.c).  Tickets that are written meanwhile
 * raise it as well, so the order does not matter.
 *
 * A session whose database has no entry of its own in the statistics assumes that there are
 * tickets, and raises the deadline of the entry that all such databases share.  All sessions heed
 * that one too, since a database may get an entry while the session runs.
 *
 * Without shared memory, a session finds a deadline of its own by reading the table.  A session
 * that writes a ticket then invalidates the table, and all sessions read it again.
 *
 * Locking: none; the words are atomic.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "shmem/stat.h"
#include "shmem/tickets.h"

static AlTicketed own;			/* used without shared memory */
static bool was_forgotten;		/* since al_tickets_begin_count() */

AlTicketed *al_tickets_here = NULL; /* of this database; NULL: not looked up yet */
AlTicketed *al_tickets_without_entry = &own;	/* of databases without an entry */

/* The deadline of this database, or the one that databases without an entry share */
static AlTicketed *
ticketed(void)
{
	AlDatabase *database;

	if (al_tickets_here)
		return al_tickets_here;
	database = al_stat_database();
	if (database == NULL)
		return &own;
	Assert(al_stats() != NULL);
	al_tickets_without_entry = &al_stats()->databases[0].ticketed;
	return al_tickets_here = &database->ticketed;
}

/* Has this database an entry of its own, or no need of one? */
static bool
has_entry(void)
{
	AlDatabase *database = al_stat_database();

	return database == NULL || OidIsValid(database->oid);
}

static bool
is_counted(void)
{
	return pg_atomic_read_u64(&ticketed()->is_counted) != 0;
}

/* Until when a ticket may be valid, if all are counted; 0: there was no ticket */
static TimestampTz
last_moment(void)
{
	uint64		until = pg_atomic_read_u64(&ticketed()->until);

	return (TimestampTz) Max(until, pg_atomic_read_u64(&al_tickets_without_entry->until));
}

/* Does the deadline cover all tickets of this database, or is a count of no use? */
bool
al_tickets_is_counted(void)
{
	return is_counted() || !has_entry();
}

/* May this database have a ticket that is valid? */
bool
al_tickets_any(void)
{
	TimestampTz until;

	if (!is_counted())
		return true;
	pg_read_barrier();
	until = last_moment();
	return until != 0 && GetCurrentTimestamp() <= until;
}

void
al_tickets_note(TimestampTz until)
{
	AlTicketed *here = ticketed();
	uint64		known = pg_atomic_read_u64(&here->until);

	while ((TimestampTz) known < until &&
		   !pg_atomic_compare_exchange_u64(&here->until, &known, (uint64) until))
		;
}

/* Do other sessions see the deadline that this session raises? */
bool
al_tickets_is_shared(void)
{
	return al_stats() != NULL;
}

/* Tickets may have been written: without shared memory, the deadline is unknown now. */
void
al_tickets_forget(void)
{
	pg_atomic_write_u64(&own.is_counted, 0);
	pg_atomic_write_u64(&own.until, 0);
	was_forgotten = true;
}

void
al_tickets_begin_count(void)
{
	was_forgotten = false;
}

/* The caller has read all tickets and called al_tickets_note() for each. */
void
al_tickets_end_count(void)
{
	AlTicketed *here = ticketed();

	pg_write_barrier();
	if (has_entry() && (here != &own || !was_forgotten))
		pg_atomic_write_u64(&here->is_counted, 1);
}
