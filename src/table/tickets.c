/*-------------------------------------------------------------------------
 *
 * tickets.c
 *		Rows of app_lock_queue: tickets, offers, and tickets that are void.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: a ticket is a position in the line for a key that no connection waits for.
 *
 * 1. A ticket is a row with a number, which is drawn like a fencing token, so numbers rise in the
 *    order of arrival.
 * 2. It is valid until it expires, and while the key is offered to it, unless a policy keeps its
 *    role from the key.
 * 3. The transaction that releases the key offers it to the first ticket, in row 0 of the key:
 *    the number of the ticket, and the end of the offer.  A row of its own, since the releaser
 *    and the ticket's owner must not wait for each other's unfinished transaction.
 * 4. The grant deletes the ticket.  If the owner does not take the key in time, the ticket has
 *    lapsed, and the next offer deletes it.
 * 5. A ticket that another transaction is writing cannot be deleted at once.  Then a row with a
 *    negative number says that it is void, until a sweep deletes both.
 *
 * Rows are read and written as those of app_lock are.
 *
 * Locking rules: app_lock_queue is opened with RowExclusiveLock to write, which is kept.  A
 * ticket is written by its owner, which has claimed the ticket (lease/enqueue.c), and deleted by
 * a sweep after its end.  A transaction writes row 0 under its AL_CLAIM_TAKE on the key.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/indexing.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/clock.h"
#include "base/compat.h"
#include "base/errors.h"
#include "base/key.h"
#include "base/owner.h"
#include "base/policy.h"
#include "base/str.h"
#include "base/testpoint.h"
#include "claim/claim.h"
#include "claim/claimed.h"
#include "shmem/tickets.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/scan.h"
#include "table/tickets.h"

#define VALUE(column) values[Anum_queue_##column - 1]
#define IS_NULL(column) nulls[Anum_queue_##column - 1]

/* How long a row says that a ticket is void, in microseconds */
#define VOID_FOR	(7 * USECS_PER_DAY)

/* The content of row 0 of a key.  It fits no row of another key: numbers are unique. */
typedef struct Offer
{
	int64		number;			/* of the ticket; 0: none */
	TimestampTz until;
} Offer;

/* Read any row.  Texts are valid as long as the tuple.  Row 0 is kept in *offer, or NULL. */
static void
read_row(Relation rel, HeapTuple tuple, AlTicket *row, Offer *offer)
{
	Datum		values[Natts_queue];
	bool		nulls[Natts_queue];

	memset(row, 0, sizeof(AlTicket));
	heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
	row->tid = tuple->t_self;
	row->key = al_string(DatumGetTextPP(VALUE(key)));
	row->number = DatumGetInt64(VALUE(ticket));
	row->expires_at = DatumGetTimestampTz(VALUE(expires_at));
	if (row->number == 0 && offer)
	{
		offer->number = IS_NULL(offered) ? 0 : DatumGetInt64(VALUE(offered));
		offer->until = row->expires_at;
	}
	if (row->number <= 0)
		return;
	row->queued_at = DatumGetTimestampTz(VALUE(queued_at));
	row->offer = DatumGetInt64(VALUE(offer_us));
	row->offered_until = offer && row->number == offer->number ? offer->until : 0;
	row->role = DatumGetObjectId(VALUE(role));
	/* Somebody may have written the row by hand.  No call can present an empty owner. */
	row->holder = IS_NULL(holder) ? al_string_text(al_cstring("")) : DatumGetTextPP(VALUE(holder));
	row->owner = IS_NULL(owner) ? al_string_text(al_cstring("")) : DatumGetTextPP(VALUE(owner));
}

/* The end of a ticket that is not void */
static TimestampTz
valid_until(const AlTicket *ticket)
{
	return ticket->offered_until != 0 ? ticket->offered_until : ticket->expires_at;
}

/* Is a ticket valid, provided that it is not void?  Not if its role may not have the key */
static bool
is_valid(const AlTicket *ticket, TimestampTz now)
{
	return now < valid_until(ticket) && al_policy_admits(ticket->key, ticket->role);
}

static AlTicket *
copy_ticket(const AlTicket *ticket)
{
	AlTicket   *copy = palloc(sizeof(AlTicket));

	*copy = *ticket;
	copy->key = al_string(al_string_text(ticket->key));
	copy->holder = al_string_text(al_string(ticket->holder));
	copy->owner = al_string_text(al_string(ticket->owner));
	return copy;
}

/* Set two scan keys: rows of a key with a number, or also with higher ones */
static void
set_keys(ScanKey keys, const AlKey *key, StrategyNumber strategy, int64 number)
{
	ScanKeyInit(&keys[0], Anum_queue_key, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(al_string_text(key->name)));
	ScanKeyInit(&keys[1], Anum_queue_ticket, strategy,
				strategy == BTEqualStrategyNumber ? F_INT8EQ : F_INT8GE, Int64GetDatum(number));
}

/* Begin to read the rows of a key in the order of their numbers */
static void
begin_rows(AlScan *scan, Relation rel, const AlKey *key, StrategyNumber strategy, int64 number)
{
	ScanKeyData keys[2];

	set_keys(keys, key, strategy, number);
	al_scan_begin_ordered(scan, rel, lengthof(keys), keys, NULL);
}

/* Read the whole table, and note until when there may be tickets, committed or not */
static void
recount(void)
{
	Relation	rel = al_open_queue(AccessShareLock);
	SysScanDesc scan;
	HeapTuple	tuple;

	al_tickets_begin_count();
	scan = systable_beginscan(rel, InvalidOid, false, SnapshotAny, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		AlTicket	row;

		CHECK_FOR_INTERRUPTS();
		read_row(rel, tuple, &row, NULL);
		if (row.number >= 0)
			al_tickets_note(row.expires_at);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	al_tickets_end_count();
	al_trace(DEBUG1, "read all tickets, since it was not known until when there are any");
}

/* May the database have a valid ticket?  (On a standby, tickets come without a note.) */
bool
al_tickets_may_be(void)
{
	if (al_tickets_none())
		return false;
	if (!al_tickets_is_counted() && !RecoveryInProgress())
		recount();
	return al_tickets_any();
}

/*
 * The tickets of an owner for a key, valid or not, usually one: AlTicket *.  "offer" is as for
 * read_row().  "dirty": a dirty snapshot, to include tickets that are not committed.
 */
static List *
tickets_of_owner(Relation rel, const AlKey *key, const AlOwner *owner, Offer *offer,
				 SnapshotData *dirty)
{
	static const AttrNumber column = Anum_queue_owner_hash;
	List	   *tickets = NIL;
	AlScan		scan;
	ScanKeyData scan_key;
	HeapTuple	tuple;

	if (owner == NULL || owner->name.len == 0)
		return NIL;
	ScanKeyInit(&scan_key, column, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(al_owner_index_hash(owner->name, key->name)));
	al_scan_begin_seen(&scan, rel, al_scan_index(rel, 1, &column), 1, &scan_key, dirty);
	while (HeapTupleIsValid(tuple = al_scan_next(&scan)))
	{
		AlTicket	row;

		read_row(rel, tuple, &row, offer);
		row.is_pending = dirty && TransactionIdIsValid(dirty->xmin);
		if (row.number > 0 && al_string_equal(row.key, key->name) &&
			al_owner_equal(al_string(row.owner), owner->name))
			tickets = lappend(tickets, copy_ticket(&row));
	}
	al_scan_end(&scan);
	return tickets;
}

/* Numbers of rows that say that a ticket is void: by an offer, or by its owner's grant */
#define VOID_BY_OFFER(number)	(-(number))
#define VOID_BY_OWNER(number)	(PG_INT64_MIN + (number))

/* Does a row say that a ticket is void? */
static bool
is_void(Relation rel, const AlKey *key, int64 number)
{
	bool		found = false;

	Assert(number > 0);
	for (int i = 0; i < 2 && !found; i++)
	{
		AlScan		scan;

		begin_rows(&scan, rel, key, BTEqualStrategyNumber,
				   i == 0 ? VOID_BY_OFFER(number) : VOID_BY_OWNER(number));
		found = HeapTupleIsValid(al_scan_next(&scan));
		al_scan_end(&scan);
	}
	return found;
}

/*
 * Find the first ticket for a key, and the ticket of "owner" unless that is NULL; false: no valid
 * ticket, but perhaps a lapsed one.  Reads few rows after the first valid one.
 */
bool
al_tickets_look(const AlKey *key, const AlOwner *owner, AlLine *line)
{
	TimestampTz now;
	Relation	rel;
	AlScan		scan;
	HeapTuple	tuple;
	AlTicket	row = {.number = 0};
	Offer		offer = {.number = 0};
	ListCell   *cell;

	memset(line, 0, sizeof(AlLine));
	if (!al_tickets_may_be())
		return false;
	rel = al_open_queue(AccessShareLock);
	now = GetCurrentTimestamp();
	begin_rows(&scan, rel, key, BTGreaterEqualStrategyNumber, 0);
	/* A ticket with a lower number may have been committed after the offer. */
	while ((line->first.number == 0 || row.number < offer.number) &&
		   HeapTupleIsValid(tuple = al_scan_next(&scan)))
	{
		read_row(rel, tuple, &row, &offer);
		if (row.offered_until != 0 && now >= row.offered_until)
			line->lapsed = *copy_ticket(&row);
		else if (row.number != 0 && is_valid(&row, now) &&
				 (row.offered_until != 0 || line->first.number == 0) &&
				 !is_void(rel, key, row.number))
			line->first = *copy_ticket(&row);
	}
	al_scan_end(&scan);
	line->is_offered = line->first.offered_until != 0;
	line->until = valid_until(&line->first);
	foreach(cell, line->first.number != 0 ? tickets_of_owner(rel, key, owner, &offer, NULL) : NIL)
	{
		const AlTicket *ticket = lfirst(cell);

		if (ticket->number == line->first.number ||
			(is_valid(ticket, now) && !is_void(rel, key, ticket->number)))
			line->mine = *ticket;
	}
	table_close(rel, AccessShareLock);
	return line->first.number != 0;
}

/* Does a key have a ticket, committed or not? */
bool
al_tickets_is_pending(const AlKey *key)
{
	Relation	rel;
	SnapshotData dirty;
	ScanKeyData keys[2];
	AlScan		scan;
	bool		found;

	if (!al_tickets_may_be())
		return false;
	rel = al_open_queue(AccessShareLock);
	InitDirtySnapshot(dirty);
	set_keys(keys, key, BTGreaterEqualStrategyNumber, 1);
	al_scan_begin_ordered(&scan, rel, lengthof(keys), keys, &dirty);
	found = HeapTupleIsValid(al_scan_next(&scan));
	al_scan_end(&scan);
	table_close(rel, AccessShareLock);
	return found;
}

/* A scan of the valid tickets of keys, in the order of keys and numbers */
typedef struct Reader
{
	Relation	rel;
	AlScan		scan;
	SnapshotData dirty;			/* its xmin: the transaction of an uncommitted row */
	TimestampTz now;
	AlString	prefix;
	text	   *key;			/* of the last row; NULL: no row yet */
	Offer		offer;
	List	   *voids;			/* negative numbers of that key: int64 * */
} Reader;

/* Begin to read tickets of a key or prefix; "dirty": also those not committed yet. */
static void
begin_tickets(Reader *reader, AlString prefix, bool is_key, bool dirty)
{
	ScanKeyData key;

	memset(reader, 0, sizeof(Reader));
	reader->rel = al_open_queue(AccessShareLock);
	reader->now = GetCurrentTimestamp();
	reader->prefix = prefix;
	InitDirtySnapshot(reader->dirty);
	ScanKeyInit(&key, Anum_queue_key, is_key ? BTEqualStrategyNumber : BTGreaterEqualStrategyNumber,
				is_key ? F_TEXTEQ : F_TEXT_GE, PointerGetDatum(al_string_text(prefix)));
	al_scan_begin_ordered(&reader->scan, reader->rel, 1, &key, dirty ? &reader->dirty : NULL);
}

/* Is a ticket void?  Rows that say so have lower numbers, so they were read before. */
static bool
is_known_void(const Reader *reader, int64 number)
{
	ListCell   *cell;

	foreach(cell, reader->voids)
	{
		int64		void_number = *(int64 *) lfirst(cell);

		if (void_number == VOID_BY_OFFER(number) || void_number == VOID_BY_OWNER(number))
			return true;
	}
	return false;
}

/*
 * Read the next valid ticket; false at the end.  Its texts are valid until the next call.
 * "dirty": one that is being renewed may come twice, the new row first.
 */
static bool
next_ticket(Reader *reader, AlTicket *ticket)
{
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = al_scan_next(&reader->scan)))
	{
		Offer		offer = reader->offer;

		read_row(reader->rel, tuple, ticket, &offer);
		/* An offer counts when its transaction has committed. */
		if (!TransactionIdIsValid(reader->dirty.xmin))
			reader->offer = offer;
		if (!al_string_begins(ticket->key, reader->prefix))
			return false;
		if (reader->key == NULL || !al_string_equal(al_string(reader->key), ticket->key))
		{
			reader->key = al_string_text(ticket->key);
			reader->voids = NIL;
		}
		if (ticket->number < 0)
		{
			int64	   *number = palloc(sizeof(int64));

			*number = ticket->number;
			reader->voids = lappend(reader->voids, number);
		}
		else if (ticket->number != 0 && is_valid(ticket, reader->now) &&
				 !is_known_void(reader, ticket->number))
			return true;
	}
	return false;
}

static void
end_tickets(Reader *reader)
{
	al_scan_end(&reader->scan);
	table_close(reader->rel, AccessShareLock);
}

/*
 * The number of valid tickets for a key with numbers below "before"; *of_role: of a role.  Unless
 * "role" is 0, those of unfinished transactions count for it too.  Reads all tickets for the key.
 */
int
al_tickets_count(const AlKey *key, int64 before, Oid role, int *of_role)
{
	Reader		reader;
	AlTicket	ticket;
	int64		last = 0;
	int64		last_before = 0;
	int			count = 0;

	*of_role = 0;
	if (!OidIsValid(role) && !al_tickets_may_be())
		return 0;
	begin_tickets(&reader, key->name, true, OidIsValid(role));
	while (next_ticket(&reader, &ticket))
	{
		*of_role += ticket.role == role && ticket.number != last;
		last = ticket.number;
		/* An uncommitted ticket precedes no other yet. */
		if (ticket.number < before && ticket.number != last_before &&
			!TransactionIdIsValid(reader.dirty.xmin))
		{
			last_before = ticket.number;
			count++;
		}
	}
	end_tickets(&reader);
	return count;
}

/*
 * The valid tickets for keys with a prefix, or for a key, in the order of keys and numbers, and
 * at most "limit" of them: AlTicket *.  "dirty": also those of unfinished transactions.
 */
List *
al_tickets_list(AlString prefix, bool is_key, bool dirty, int limit)
{
	Reader		reader;
	AlTicket	ticket;
	int64		last = 0;
	List	   *tickets = NIL;

	begin_tickets(&reader, prefix, is_key, dirty);
	while (list_length(tickets) < limit && next_ticket(&reader, &ticket))
	{
		CHECK_FOR_INTERRUPTS();
		if (ticket.number != last)
			tickets = lappend(tickets, copy_ticket(&ticket));
		last = ticket.number;
	}
	end_tickets(&reader);
	return tickets;
}

/* Write a row: "values", with a key, a number and an end added */
static void
insert_ticket(Relation rel, const AlKey *key, int64 number, TimestampTz expires_at,
			  Datum *values, bool *nulls)
{
	Assert(CheckRelationLockedByMe(rel, RowExclusiveLock, true));
	VALUE(key) = PointerGetDatum(al_string_text(key->name));
	VALUE(ticket) = Int64GetDatum(number);
	VALUE(expires_at) = TimestampTzGetDatum(expires_at);
	IS_NULL(key) = IS_NULL(ticket) = IS_NULL(expires_at) = false;
	CatalogTupleInsert(rel, heap_form_tuple(RelationGetDescr(rel), values, nulls));
	CommandCounterIncrement();
}

/* Write a ticket, which its owner has claimed.  The owner has no other for this key. */
void
al_ticket_insert(const AlKey *key, AlTicket *ticket)
{
	Relation	rel = al_open_queue(RowExclusiveLock);
	Datum		values[Natts_queue] = {0};
	bool		nulls[Natts_queue] = {0};

	Assert(ticket->number > 0 && ticket->holder != NULL && ticket->owner != NULL);
	Assert(ticket->offer >= 0);
	VALUE(queued_at) = TimestampTzGetDatum(ticket->queued_at);
	VALUE(offer_us) = Int64GetDatum(ticket->offer);
	IS_NULL(offered) = true;
	VALUE(role) = ObjectIdGetDatum(ticket->role);
	VALUE(holder) = PointerGetDatum(ticket->holder);
	VALUE(owner) = PointerGetDatum(ticket->owner);
	VALUE(owner_hash) = Int64GetDatum(al_owner_index_hash(al_string(ticket->owner), key->name));
	insert_ticket(rel, key, ticket->number, ticket->expires_at, values, nulls);
	/* In this order: a session that counts all tickets meanwhile may have missed the row. */
	al_tickets_note(ticket->expires_at);
	if (!al_tickets_is_shared())
		CacheInvalidateRelcache(rel);
	table_close(rel, NoLock);
}

/* Delete a row; false: another transaction is deleting or writing it, or has done so */
bool
al_ticket_delete(const AlTicket *ticket)
{
	Relation	rel = al_open_queue(RowExclusiveLock);
	ItemPointerData tid = ticket->tid;
	bool		deleted = al_heap_try_delete(rel, &tid);

	CommandCounterIncrement();
	table_close(rel, NoLock);
	return deleted;
}

/* Write a row that says that a ticket is void, which another transaction is writing. */
static void
end_number(Relation rel, const AlKey *key, int64 void_number)
{
	Datum		values[Natts_queue] = {0};
	bool		nulls[Natts_queue];

	Assert(void_number < 0);
	memset(nulls, true, sizeof(nulls));
	insert_ticket(rel, key, void_number, al_add_duration(GetCurrentTimestamp(), VOID_FOR), values, nulls);
	al_trace(DEBUG1, "a ticket for lock \"%s\" is void, and another transaction writes it",
			 al_display(key->name));
}

/* End a ticket whose offer was not taken.  The key is claimed. */
void
al_ticket_lapse(const AlKey *key, const AlTicket *ticket)
{
	Relation	rel = al_open_queue(RowExclusiveLock);

	Assert(al_claimed_has(key->hash));
	al_trace(DEBUG1, "ticket %lld missed its offer of lock \"%s\"",
			 (long long) ticket->number, al_display(key->name));
	if (!al_ticket_delete(ticket) && !is_void(rel, key, ticket->number))
		end_number(rel, key, VOID_BY_OFFER(ticket->number));
	table_close(rel, NoLock);
}

/*
 * End the tickets of an owner for a key, even if another session of the owner is writing one;
 * were there any?  Then sessions of the owner that want a ticket wait for this transaction.
 */
bool
al_tickets_drop(const AlKey *key, const AlOwner *owner)
{
	Relation	rel;
	bool		found = false;
	SnapshotData dirty;
	ListCell   *cell;

	if (!al_tickets_may_be())
		return false;
	AL_TEST_POINT("dropping-tickets");
	rel = al_open_queue(RowExclusiveLock);
	InitDirtySnapshot(dirty);
	foreach(cell, tickets_of_owner(rel, key, owner, NULL, &dirty))
	{
		const AlTicket *ticket = lfirst(cell);

		if (is_void(rel, key, ticket->number))
			continue;
		if (ticket->is_pending || !al_ticket_delete(ticket))
			end_number(rel, key, VOID_BY_OWNER(ticket->number));
		found = true;
	}
	table_close(rel, NoLock);
	if (found)
		al_claim_ticket_try(key, owner);
	return found;
}

/*
 * Write row 0: an offer until "until", or none for number 0.  The key is claimed.  False, without
 * waiting: somebody writes the row by hand.
 */
bool
al_ticket_offer(const AlKey *key, const AlTicket *ticket, TimestampTz until)
{
	Relation	rel = al_open_queue(RowExclusiveLock);
	Datum		values[Natts_queue] = {0};
	bool		nulls[Natts_queue];
	AlScan		scan;
	HeapTuple	tuple;
	bool		written = true;

	Assert(al_claimed_has(key->hash) && ticket->number >= 0);
	memset(nulls, true, sizeof(nulls));
	VALUE(offered) = Int64GetDatum(ticket->number);
	IS_NULL(offered) = false;
	begin_rows(&scan, rel, key, BTEqualStrategyNumber, 0);
	tuple = al_scan_next(&scan);
	if (!HeapTupleIsValid(tuple))
	{
		if (ticket->number != 0)
			insert_ticket(rel, key, 0, until, values, nulls);
	}
	else if (ticket->number == 0)
		written = al_heap_try_delete(rel, &tuple->t_self);
	else
	{
		written = al_try_lock_row(rel, &tuple->t_self);
		if (written)
		{
			bool		replaces[Natts_queue] = {0};

			VALUE(expires_at) = TimestampTzGetDatum(until);
			IS_NULL(expires_at) = false;
			replaces[Anum_queue_offered - 1] = replaces[Anum_queue_expires_at - 1] = true;
			tuple = heap_modify_tuple(tuple, RelationGetDescr(rel), values, nulls, replaces);
			CatalogTupleUpdate(rel, &tuple->t_self, tuple);
		}
	}
	al_scan_end(&scan);
	CommandCounterIncrement();
	al_tickets_note(until);
	/* Other sessions know a deadline that covers only the end of the ticket. */
	if (!al_tickets_is_shared() && until > ticket->expires_at)
		CacheInvalidateRelcache(rel);
	table_close(rel, NoLock);
	if (!written)
		al_trace(DEBUG1, "somebody else writes the offer of lock \"%s\"",
				 al_display(key->name));
	return written;
}

/* The rows of a key that a sweep has read */
typedef struct SweptKey
{
	text	   *name;			/* NULL: no key yet */
	TimestampTz offered_until;	/* by row 0; 0: there is no row 0 */
	bool		has_line;		/* it has a valid ticket */
	bool		is_offered;		/* to a valid ticket */
	bool		has_lapsed;		/* it has a ticket that missed its offer */
	List	   *voids;			/* rows with negative numbers: AlTicket * */
} SweptKey;

/* Delete a void ticket, and the row that says so; false: it is not void, or being written */
static bool
delete_void(const SweptKey *swept, const AlTicket *ticket)
{
	ListCell   *cell;

	foreach(cell, swept->voids)
	{
		const AlTicket *row = lfirst(cell);

		if (row->number != VOID_BY_OFFER(ticket->number) && row->number != VOID_BY_OWNER(ticket->number))
			continue;
		if (!al_ticket_delete(ticket))
			return false;
		(void) al_ticket_delete(row);
		return true;
	}
	return false;
}

/* All rows of a key were read: add it to "keys" if an offer may have to be made or ended */
static List *
end_swept_key(const SweptKey *swept, List *keys, TimestampTz now, TimestampTz *next_due)
{
	AlKey	   *key;

	/* The key may become free at any time, for a ticket that has no offer. */
	if (swept->has_lapsed || (swept->has_line && !swept->is_offered))
		*next_due = now;
	else if (swept->offered_until == 0 || swept->has_line || now < swept->offered_until)
	{
		if (swept->name)
			pfree(swept->name);
		return keys;
	}
	key = palloc(sizeof(AlKey));
	al_key_init(key, al_string(swept->name));
	return lappend(keys, key);
}

/* Delete a row that has ended, or note it in *swept.  Returns whether it was deleted. */
static bool
sweep_row(SweptKey *swept, const AlTicket *row, TimestampTz now, TimestampTz *next_due)
{
	TimestampTz until = valid_until(row);

	if (row->number == 0)
		swept->offered_until = until;
	else if (now >= until && row->offered_until == 0)
		return al_ticket_delete(row);
	else if (now >= until)
		swept->has_lapsed = true;	/* the next offer deletes it, under a claim */
	else if (row->number > 0 && delete_void(swept, row))
		return true;
	else
	{
		if (row->number < 0)
		{
			AlTicket   *copy = palloc(sizeof(AlTicket));

			*copy = *row;
			swept->voids = lappend(swept->voids, copy);
		}
		else if (al_policy_admits(row->key, row->role))
		{
			swept->has_line = true;
			swept->is_offered |= row->offered_until != 0;
		}
		*next_due = Min(*next_due, until);
	}
	return false;
}

/*
 * Delete at most "max_rows" rows that have ended, of at most "max_keys" keys from *from on; *from
 * becomes the key to continue with, or NULL at the end; *removed: the number of rows; *next_due
 * is lowered to when the next row ends.  Returns the keys with an offer to be made or ended:
 * AlKey *.
 */
List *
al_tickets_sweep(text **from, int64 max_keys, int64 max_rows, TimestampTz now, int64 *removed,
				 TimestampTz *next_due)
{
	Relation	rel = al_open_queue(RowExclusiveLock);
	SweptKey	swept = {.name = NULL};
	Offer		offer = {.number = 0};
	List	   *keys = NIL;
	AlScan		scan;
	ScanKeyData key;
	HeapTuple	tuple;

	*removed = 0;
	ScanKeyInit(&key, Anum_queue_key, BTGreaterEqualStrategyNumber, F_TEXT_GE,
				PointerGetDatum(*from));
	*from = NULL;
	al_scan_begin_ordered(&scan, rel, 1, &key, NULL);
	while (HeapTupleIsValid(tuple = al_scan_next(&scan)))
	{
		AlTicket	row;
		bool		is_new;

		read_row(rel, tuple, &row, &offer);
		is_new = swept.name == NULL || !al_string_equal(row.key, al_string(swept.name));
		if (*removed >= max_rows || (is_new && max_keys-- == 0))
		{
			*from = al_string_text(row.key);
			break;
		}
		if (is_new)
		{
			keys = end_swept_key(&swept, keys, now, next_due);
			swept = (SweptKey) {.name = al_string_text(row.key)};
		}
		*removed += sweep_row(&swept, &row, now, next_due);
	}
	keys = end_swept_key(&swept, keys, now, next_due);
	al_scan_end(&scan);
	table_close(rel, NoLock);
	if (*removed >= max_rows)
		*next_due = now;
	if (*removed > 0 || keys != NIL)
		al_trace(DEBUG1, "sweep deleted %lld rows of app_lock_queue, %d keys may need an offer",
				 (long long) *removed, list_length(keys));
	return keys;
}
