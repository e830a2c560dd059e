/*-------------------------------------------------------------------------
 *
 * tickets.c
 *		Keys that may have tickets: places in line that no connection waits for.
 *
 * Model: tickets are rows of a table, and almost no key has any.  So that whoever
 * acquires or releases a key need not look, there is a moment for each of many groups of
 * keys: until then, a ticket for a key of the group may be valid.  It only rises.  Whoever
 * writes a ticket raises it before the commit, so no commit shows a ticket that others do
 * not look for.  A ticket that goes earlier costs the keys of its group some looks.
 *
 * After a start of the server nothing is known of a database until somebody has read
 * its table and raised the moments of all tickets (table/tickets.c).  Tickets that are
 * written meanwhile raise them as well, so the order does not matter.
 *
 * Without shared memory, a session knows one moment for all keys of its database, which it
 * finds by reading the table.  Whoever writes a ticket invalidates the table then, and all
 * sessions read it again.
 *
 * Locking: none; the words are atomic.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "shmem/tickets.h"

#define GROUPS		16384
#define DATABASES	1024
#define PROBES		8

typedef struct Tickets
{
	pg_atomic_uint64 until[GROUPS]; /* 0, or a moment after the year 2000 */
	pg_atomic_uint64 last;		/* the highest of them */
	pg_atomic_uint64 counted[DATABASES];	/* OIDs, each near the place of its hash */
} Tickets;

void	   *al_tickets_memory = NULL;	/* Tickets; NULL: there is no shared memory */

/* The memory in which this session has seen that the tickets of its database are counted */
void	   *al_tickets_counted_in = NULL;
pg_atomic_uint64 *al_tickets_last = NULL;	/* there; NULL: in none */

/* What a session knows without shared memory */
static pg_atomic_uint64 own_last;
static bool own_counted = false;
static uint32 times_forgotten = 0;

#define tickets	((Tickets *) al_tickets_memory)

static void
init_tickets(void *memory)
{
	Tickets    *new_tickets = memory;

	al_shmem_init_words(new_tickets->until, GROUPS);
	al_shmem_init_words(&new_tickets->last, 1);
	al_shmem_init_words(new_tickets->counted, DATABASES);
}

const AlShmemPart al_tickets_part = {sizeof(Tickets), 0, init_tickets, &al_tickets_memory};

static pg_atomic_uint64 *
group_of(const AlKey *key)
{
	return &tickets->until[hash_combine64(key->hash, murmurhash32(MyDatabaseId)) % GROUPS];
}

/* The i-th place that may have this database */
static pg_atomic_uint64 *
counted_place(int i)
{
	return &tickets->counted[(murmurhash32(MyDatabaseId) + i) % DATABASES];
}

static bool
is_counted(void)
{
	bool		counted = tickets == NULL && own_counted;

	if (al_tickets_last && al_tickets_counted_in == al_tickets_memory)
		return true;
	for (int i = 0; i < PROBES && tickets && !counted; i++)
		counted = pg_atomic_read_u64(counted_place(i)) == MyDatabaseId;
	if (counted)
	{
		al_tickets_counted_in = al_tickets_memory;
		al_tickets_last = tickets ? &tickets->last : &own_last;
	}
	return counted;
}

/* Until a moment, or 0: is that over? */
static bool
is_over(uint64 until)
{
	return until == 0 || GetCurrentTimestamp() > (TimestampTz) until;
}

/* May any key of any database have a ticket that is valid? */
bool
al_tickets_any(void)
{
	return !al_tickets_none() && (!is_counted() || !is_over(pg_atomic_read_u64(al_tickets_last)));
}

/* May a key have a ticket that is valid? */
AlTicketed
al_tickets_of(const AlKey *key)
{
	if (!is_counted())
		return AL_TICKETED_UNKNOWN;
	return is_over(pg_atomic_read_u64(tickets ? group_of(key) : &own_last)) ?
		AL_TICKETED_NO : AL_TICKETED_MAYBE;
}

static void
raise_to(pg_atomic_uint64 *word, TimestampTz until)
{
	uint64		known = pg_atomic_read_u64(word);

	while ((TimestampTz) known < until &&
		   !pg_atomic_compare_exchange_u64(word, &known, (uint64) until))
		;
}

/* A ticket for the key may be valid until a moment. */
void
al_tickets_note(const AlKey *key, TimestampTz until)
{
	if (tickets)
		raise_to(group_of(key), until);
	raise_to(tickets ? &tickets->last : &own_last, until);
}

bool
al_tickets_is_shared(void)
{
	return tickets != NULL;
}

/* Without shared memory: tickets may have been written. */
void
al_tickets_forget(void)
{
	own_counted = false;
	pg_atomic_init_u64(&own_last, 0);
	al_tickets_last = NULL;
	times_forgotten++;
}

/* What al_tickets_counted() wants to know: the version before the first row was read */
uint32
al_tickets_version(void)
{
	return times_forgotten;
}

/* All tickets of this database have been noted. */
void
al_tickets_counted(uint32 version)
{
	uint64		nobody = 0;
	int			i = 0;

	if (tickets == NULL)
		own_counted = version == times_forgotten;
	if (is_counted() || tickets == NULL)
		return;
	while (i < PROBES &&
		   !pg_atomic_compare_exchange_u64(counted_place(i), &nobody, MyDatabaseId))
	{
		nobody = 0;
		i++;
	}
	/* Others have all of these places, perhaps databases that were dropped. */
	if (i == PROBES)
		pg_atomic_write_u64(counted_place(0), MyDatabaseId);
}
