/*-------------------------------------------------------------------------
 *
 * pending.c
 *		Holdings that unfinished transactions of others have written.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: a transaction that has changed a holding has written a row version, with the label of
 * the holder, that others do not see yet.  A dirty snapshot, which takes no predicate locks, sees
 * that version and the transaction that wrote it.  This is for people, and for callers that need
 * to know which transaction they wait for.  It must not decide a grant: the transaction may roll
 * back, or end while we look.
 *
 * Locking rules: app_lock is open with AccessShareLock at least.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/subtrans.h"
#include "access/transam.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#include "atomic_lock.h"
#include "base/errors.h"
#include "base/str.h"
#include "claim/holding.h"
#include "shmem/sole.h"
#include "table/app_lock.h"
#include "table/columns.h"
#include "table/pending.h"
#include "table/row.h"

/* How many unfinished versions of the rows of a key are read; a transaction can write any number */
#define MOST_VERSIONS	1000

/* Has the row a newer version, whose (sub)transaction has not rolled back? */
bool
al_pending_is_superseded(HeapTupleHeader header)
{
	return !(header->t_infomask & HEAP_XMAX_INVALID) &&
		!HeapTupleHeaderIsOnlyLocked(header) &&
		!TransactionIdDidAbort(HeapTupleHeaderGetUpdateXid(header));
}

/*
 * The process of a transaction; 0: it is prepared or has ended.  One before our snapshots has
 * ended, and its parent may be unknown by now.
 */
int
al_pending_process(TransactionId xid)
{
	if (TransactionIdPrecedes(xid, TransactionXmin))
		return 0;
	return BackendXidGetPid(SubTransGetTopmostTransaction(xid));
}

/* Read a version that a dirty snapshot has seen; false unless it is pending and the last */
static bool
read_pending(Relation rel, HeapTuple tuple, const SnapshotData *dirty, AlHolding *holding)
{
	if (!TransactionIdIsValid(dirty->xmin) || al_pending_is_superseded(tuple->t_data))
		return false;
	al_row_read(rel, tuple, holding);
	holding->meta = NULL;		/* a toasted value may have gone before it is fetched */
	holding->pid = al_pending_process(dirty->xmin);
	return true;
}

/* Read the pending rows of a key from a slot on, or of all keys (NULL) */
static List *
scan_pending(Relation rel, const AlKey *key, int32 first_slot)
{
	SnapshotData dirty;
	ScanKeyData scan_keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;
	List	   *holdings = NIL;
	int			versions = 0;

	if (key)
	{
		ScanKeyInit(&scan_keys[0], Anum_app_lock_key, BTEqualStrategyNumber, F_TEXTEQ,
					PointerGetDatum(al_string_text(key->name)));
		ScanKeyInit(&scan_keys[1], Anum_app_lock_slot, BTGreaterEqualStrategyNumber, F_INT4GE,
					Int32GetDatum(first_slot));
	}
	InitDirtySnapshot(dirty);
	scan = systable_beginscan(rel, key ? al_table_key_index(rel) : InvalidOid, key != NULL,
							  &dirty, key ? 2 : 0, scan_keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		AlHolding  *holding;

		CHECK_FOR_INTERRUPTS();
		if (key && TransactionIdIsValid(dirty.xmin) && ++versions > MOST_VERSIONS)
		{
			al_trace(DEBUG1, "a key has more than %d pending row versions", MOST_VERSIONS);
			break;
		}
		holding = palloc(sizeof(AlHolding));
		if (read_pending(rel, tuple, &dirty, holding))
			holdings = lappend(holdings, holding);
		else
			pfree(holding);
	}
	systable_endscan(scan);
	return holdings;
}

/*
 * The holdings of a key, or of all keys (NULL), that unfinished transactions of others have
 * written, released or not: AlHolding *, without "meta".  Empty on a standby.
 */
List *
al_pending_holdings(Relation rel, const AlKey *key)
{
	return RecoveryInProgress() ? NIL : scan_pending(rel, key, AL_SLOT_EXCLUSIVE);
}

/* Does "owner" have this holding, or any owner (NULL)? */
static bool
is_of(const AlHolding *holding, const AlOwner *owner)
{
	return owner ? al_is_owned_by(holding, owner) : holding->released_at == 0;
}

/*
 * The pending holding of a key by "owner", or by any (NULL): the exclusive one, or else the
 * shared one with the lowest fencing token; or NULL.  Next versions of an exclusive row are
 * followed, since the index may lead to many dead ones.
 */
AlHolding *
al_pending_find(Relation rel, const AlKey *key, const AlOwner *owner)
{
	AlHolding  *holding = palloc(sizeof(AlHolding));
	AlHolding	version;
	AlHolding  *first = NULL;
	int32		first_slot = AL_SLOT_EXCLUSIVE;
	SnapshotData dirty;
	ListCell   *cell;

	if (RecoveryInProgress())
		return NULL;
	InitDirtySnapshot(dirty);
	if (al_table_find(rel, key, &version))
	{
		for (int versions = 0; versions < MOST_VERSIONS &&
			 al_table_find_update(rel, key, &version, &dirty, holding); versions++)
		{
			version = *holding;
			if (read_pending(rel, version.tuple, &dirty, holding) && is_of(holding, owner))
				return holding;
		}
		if (al_sole_is_known(key))
			return NULL;
		first_slot++;
	}
	foreach(cell, scan_pending(rel, key, first_slot))
	{
		AlHolding  *pending = lfirst(cell);

		if (is_of(pending, owner) &&
			(first == NULL || pending->fencing_token < first->fencing_token))
			first = pending;
	}
	return first;
}
