/*-------------------------------------------------------------------------
 *
 * tickets.c
 *		Until when this database may have tickets: positions in the line that no connection
 *		waits for.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: tickets are rows of a table, and most databases have none.  So that an acquire
 * or a release need not look, there is a moment for each database (shmem/stat.h): until
 * then, a ticket may be valid.  It only rises.  A session that writes a ticket raises it
 * before the commit, so no commit shows a ticket that others do not look for.  While
 * there are tickets, each call looks into the index of their table.
 *
 * After a start of the server nothing is known of a database until a session has read
 * the table and raised the moment for all tickets (table/tickets.c).  Tickets that are
 * written meanwhile raise it as well, so the order does not matter.  A session whose
 * database had no entry of its own in the statistics takes it that there are tickets, and
 * raises the moment of the entry that all such databases share.  Others heed that moment,
 * too, since the database may get an entry of its own while the session goes on.
 *
 * Without shared memory, a session has a moment of its own, which it finds by reading
 * the table.  A session that writes a ticket invalidates the table then, and all sessions
 * read it again.
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

AlTicketed *al_tickets_here = NULL; /* that of this database; NULL: not known yet */
AlTicketed *al_tickets_without_entry = &own;	/* that of databases without an entry */

/* The moment of this database, or the one that databases without an entry share */
static AlTicketed *
ticketed(void)
{
	AlDatabase *database;

	if (al_tickets_here)
		return al_tickets_here;
	database = al_stat_database();
	if (database == NULL)
		return &own;
	al_tickets_without_entry = &al_stats()->databases[0].ticketed;
	return al_tickets_here = &database->ticketed;
}

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

/* Until when a ticket may be valid, if they are counted; 0: there was none */
static TimestampTz
last_moment(void)
{
	uint64		until = pg_atomic_read_u64(&ticketed()->until);

	return (TimestampTz) Max(until, pg_atomic_read_u64(&al_tickets_without_entry->until));
}

/* Are the tickets of this database counted, or need not be? */
bool
al_tickets_is_counted(void)
{
	return is_counted() || !has_entry();
}

/* May there be a ticket that is valid? */
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

/* A ticket may be valid until a moment. */
void
al_tickets_note(TimestampTz until)
{
	AlTicketed *here = ticketed();
	uint64		known = pg_atomic_read_u64(&here->until);

	while ((TimestampTz) known < until &&
		   !pg_atomic_compare_exchange_u64(&here->until, &known, (uint64) until))
		;
}

bool
al_tickets_is_shared(void)
{
	return al_stats() != NULL;
}

/* Without shared memory: tickets may have been written. */
void
al_tickets_forget(void)
{
	pg_atomic_write_u64(&own.is_counted, 0);
	pg_atomic_write_u64(&own.until, 0);
	was_forgotten = true;
}

/* The first ticket is about to be read. */
void
al_tickets_begin_count(void)
{
	was_forgotten = false;
}

/* All tickets of this database have been noted. */
void
al_tickets_end_count(void)
{
	AlTicketed *here = ticketed();

	pg_write_barrier();
	if (has_entry() && (here != &own || !was_forgotten))
		pg_atomic_write_u64(&here->is_counted, 1);
}
