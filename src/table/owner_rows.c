/*-------------------------------------------------------------------------
 *
 * lock_owner.c
 *		Owners that acquire makes, and which rows an owner has.
 *
 * Model: app_lock_owner_idx finds rows by their owner, but an entry in it costs
 * space and an update that is not HOT.  So the row of a single exclusive lease
 * whose owner was generated with it is not in the index.  Instead the owner says
 * in which block of the table the row was written.  Generated owners of anything
 * else are in the index, as those are that the application named.
 *
 * A generated owner is a UUID v4.  Its last 16 bits are a checksum of the others,
 * and the 24 before are the lower ones of the number of the block, or all set
 * where the index has the row.  That leaves 82 random bits.
 *
 * A row moves to another block where an update found no room, or when somebody
 * rewrites the table.  What an owner says is believed only where the row is
 * there, be it released: an owner is generated for one row.  Otherwise the whole
 * table is looked through.
 *
 * Locking: none.  The caller has app_lock open.
 *
 * IDENTIFICATION
 *		src/table/owner_rows.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "access/xact.h"
#include "common/hashfn.h"
#include "base/compat.h"
#include "lock_table.h"
#include "storage/bufmgr.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#define UUID_BYTES	16
#define UUID_CHARS	36

/* How many blocks have names of their own, and what stands for the index */
#define PLACES		(UINT32_C(1) << 24)
#define IN_INDEX	(PLACES - 1)

static uint16
uuid_checksum(const unsigned char *uuid)
{
	return (uint16) DatumGetUInt32(hash_any(uuid, UUID_BYTES - 2));
}

/*
 * Make the owner that al_owner_arg_or_new() left open, of a row that is, or is
 * going to be, in this block; or in the index, if owner->in_index
 */
void
al_owner_generate(AlOwner *owner, BlockNumber block)
{
	static const char hex[] = "0123456789abcdef";
	static unsigned char pool[32 * UUID_BYTES]; /* a call costs more than bytes */
	static int	left = 0;
	unsigned char uuid[UUID_BYTES];
	char	   *out = palloc(UUID_CHARS);
	uint16		checksum;
	uint32		place = block % PLACES;

	if (left == 0)
	{
		if (!pg_strong_random(pool, sizeof(pool)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR), al_hide_owners(),
					 errmsg("could not generate random values")));
		left = sizeof(pool);
	}
	left -= UUID_BYTES;
	memcpy(uuid, pool + left, UUID_BYTES);
	explicit_bzero(pool + left, UUID_BYTES);
	if (place == IN_INDEX)
		owner->in_index = true;
	if (owner->in_index)
		place = IN_INDEX;
	uuid[6] = (uuid[6] & 0x0f) | 0x40;	/* version 4 */
	uuid[8] = (uuid[8] & 0x3f) | 0x80;	/* variant of RFC 9562 */
	uuid[11] = place >> 16;
	uuid[12] = place >> 8 & 0xff;
	uuid[13] = place & 0xff;
	checksum = uuid_checksum(uuid);
	uuid[14] = checksum >> 8;
	uuid[15] = checksum & 0xff;

	owner->name.data = out;
	owner->name.len = UUID_CHARS;
	for (int i = 0; i < UUID_BYTES; i++)
	{
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*out++ = '-';
		*out++ = hex[uuid[i] >> 4];
		*out++ = hex[uuid[i] & 0x0f];
	}
	/* The row of a single lease is not claimed by its owner. */
	owner->hash = owner->in_index ? al_owner_hash(owner->name) : 0;
}

/*
 * Could al_owner_generate() have made this?  Never wrong about one that it made;
 * of other UUIDs one in 65536 passes too.  "place" is what it says about its row.
 */
static bool
read_place(AlString owner, uint32 *place)
{
	unsigned char uuid[UUID_BYTES];
	const char *in = owner.data;

	if (owner.len != UUID_CHARS)
		return false;
	for (int i = 0; i < UUID_BYTES; i++)
	{
		unsigned char byte = 0;

		if ((i == 4 || i == 6 || i == 8 || i == 10) && *in++ != '-')
			return false;
		for (int nibble = 0; nibble < 2; nibble++, in++)
		{
			if (*in >= '0' && *in <= '9')
				byte = byte << 4 | (*in - '0');
			else if (*in >= 'a' && *in <= 'f')
				byte = byte << 4 | (*in - 'a' + 10);
			else
				return false;
		}
		uuid[i] = byte;
	}
	*place = (uint32) uuid[11] << 16 | uuid[12] << 8 | uuid[13];
	return uuid_checksum(uuid) == (uuid[14] << 8 | uuid[15]);
}

bool
al_owner_looks_generated(AlString owner)
{
	uint32		place;

	return read_place(owner, &place);
}

/* Is what a generated owner says about the block of its row so? */
bool
al_owner_names_block(const AlOwner *owner, BlockNumber block)
{
	uint32		place;

	return read_place(owner->name, &place) && place == block % PLACES;
}

/* Add a row to those of an owner, with a copy of its own, unless it is over */
static List *
add_row(List *owned, AlHolding *row)
{
	AlOwned    *owns;

	if (row->released_at != 0)
	{
		/* A worker may have left many. */
		heap_freetuple(row->tuple);
		return owned;
	}
	owns = palloc(sizeof(AlOwned));
	owns->row = palloc(sizeof(AlHolding));
	*owns->row = *row;
	al_key_init(&owns->key, row->key);
	return lappend(owned, owns);
}

/*
 * Add what a scan finds of an owner, released rows included.  Does it have rows
 * that its index entries, if there are any, do not lead to?
 */
static bool
scan_for_owner(Relation rel, AlScan *scan, const AlOwner *owner, List **owned)
{
	TupleDesc	desc = RelationGetDescr(rel);
	HeapTuple	tuple;
	bool		outside = false;

	while (HeapTupleIsValid(tuple = al_scan_next(scan)))
	{
		bool		is_null;
		Datum		value = heap_getattr(tuple, Anum_app_lock_owner, desc, &is_null);
		AlHolding	row;

		if (is_null || !al_owner_equal(al_string(DatumGetTextPP(value)), owner->name))
			continue;
		al_row_read(rel, tuple, &row);
		if (!row.has_owner_hash || row.owner_hash != al_owner_index_hash(owner->name))
			outside = true;
		*owned = add_row(*owned, &row);
	}
	al_scan_end(scan);
	return outside;
}

/* Add the row that an owner was generated for; false where it is elsewhere */
static bool
find_in_place(Relation rel, const AlOwner *owner, uint32 place, List **owned)
{
	BlockNumber blocks = RelationGetNumberOfBlocks(rel);

	for (uint64 block = place; block < blocks; block += PLACES)
	{
		AlScan		scan;

		al_scan_begin_at(&scan, rel, (BlockNumber) block, 1);
		if (scan_for_owner(rel, &scan, owner, owned))
			return true;
	}
	return false;
}

/* Add the rows that the index finds.  An ordinary scan would prune their pages. */
static void
find_in_index(Relation rel, const AlOwner *owner, List **owned)
{
	Relation	index;
	Snapshot	snapshot;
	IndexScanDesc scan;
	ScanKeyData scan_key;
	ItemPointer tid;
	Buffer		buffer = InvalidBuffer;

	if (IsolationIsSerializable())
	{
		AlScan		whole;

		ScanKeyInit(&scan_key, Anum_app_lock_owner_hash, BTEqualStrategyNumber, F_INT4EQ,
					Int32GetDatum(al_owner_index_hash(owner->name)));
		al_scan_begin(&whole, rel, al_table_owner_index(rel), 1, &scan_key);
		(void) scan_for_owner(rel, &whole, owner, owned);
		return;
	}

	index = index_open(al_table_owner_index(rel), AccessShareLock);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	scan = al_index_beginscan(rel, index, snapshot, 1);
	ScanKeyInit(&scan_key, 1, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(al_owner_index_hash(owner->name)));
	index_rescan(scan, &scan_key, 1, NULL, 0);
	while ((tid = index_getnext_tid(scan, ForwardScanDirection)) != NULL)
	{
		AlHolding	row;

		/* The rows of a set often share a block. */
		buffer = ReleaseAndReadBuffer(buffer, rel, ItemPointerGetBlockNumber(tid));
		if (!al_table_fetch(scan, tid, buffer, snapshot, &row))
			continue;
		if (row.owner && al_owner_equal(al_string(row.owner), owner->name))
			*owned = add_row(*owned, &row);
		else
			heap_freetuple(row.tuple);
	}
	if (BufferIsValid(buffer))
		ReleaseBuffer(buffer);
	index_endscan(scan);
	UnregisterSnapshot(snapshot);
	index_close(index, AccessShareLock);
}

/*
 * The rows of an owner that are not released: a list of AlOwned *, in no order,
 * and some perhaps twice.  The block comes before the index: a row that gets an
 * entry meanwhile is found by either.
 */
List *
al_owner_rows(Relation rel, const AlOwner *owner)
{
	List	   *owned = NIL;
	uint32		place;
	AlScan		scan;

	PreventCommandIfParallelMode("functions of atomic_lock");
	if (read_place(owner->name, &place) && place != IN_INDEX &&
		!find_in_place(rel, owner, place, &owned))
	{
		al_scan_begin(&scan, rel, InvalidOid, 0, NULL);
		(void) scan_for_owner(rel, &scan, owner, &owned);
	}
	find_in_index(rel, owner, &owned);
	return owned;
}
