/*-------------------------------------------------------------------------
 *
 * lock_table.h
 *		Columns of the tables, and the verbs that read and write app_lock.
 *
 * The columns are those of sql/atomic_lock--1.0.sql, in the same order.
 *
 * IDENTIFICATION
 *		src/lock_table.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef ATOMIC_LOCK_TABLE_H
#define ATOMIC_LOCK_TABLE_H

#include "access/htup.h"
#include "access/skey.h"
#include "atomic_lock.h"
#include "nodes/pg_list.h"
#include "storage/buf.h"
#include "storage/itemptr.h"

#define Anum_app_lock_fencing_token		1
#define Anum_app_lock_acquired_at		2
#define Anum_app_lock_expires_at		3
#define Anum_app_lock_ttl_us			4
#define Anum_app_lock_slot				5
#define Anum_app_lock_mode				6
#define Anum_app_lock_key				7
#define Anum_app_lock_released			8
#define Anum_app_lock_holder			9
#define Anum_app_lock_owner				10
#define Anum_app_lock_owner_hash		11
#define Anum_app_lock_meta				12
#define Anum_app_lock_pid				13
#define Anum_app_lock_backend_start		14
#define Natts_app_lock					14

/* The slot of the exclusive holding; those of shared ones are above. */
#define AL_SLOT_EXCLUSIVE	0

#define Anum_lock_audit_at						1
#define Anum_lock_audit_action					2
#define Anum_lock_audit_key						3
#define Anum_lock_audit_previous_holder			4
#define Anum_lock_audit_previous_owner_digest	5
#define Anum_lock_audit_fencing_token			6
#define Anum_lock_audit_session_role			7
#define Anum_lock_audit_acting_role				8
#define Anum_lock_audit_client_addr				9
#define Anum_lock_audit_reason					10
#define Natts_lock_audit						10

/*
 * A holding: a row of app_lock, or what a transaction has without one
 * (lock_held.c).  Pointers lead into "tuple", or to what is to be written.
 */
typedef struct AlHolding
{
	ItemPointerData tid;		/* invalid: there is no row, or not yet */
	HeapTuple	tuple;
	bool		is_alone;		/* slot 0: when found, the key had no other rows */
	bool		is_new;			/* nor this one, not even a dead or unfinished one */
	AlLifetime	lifetime;
	int64		fencing_token;
	TimestampTz acquired_at;
	TimestampTz expires_at;
	int64		ttl;
	int32		slot;
	AlString	key;
	text	   *holder;
	text	   *owner;			/* NULL after force_release, or not known */
	bool		has_owner_hash;
	int32		owner_hash;
	TimestampTz released_at;	/* 0: not released; in its row it is expires_at */
	struct varlena *meta;		/* jsonb, may be toasted; NULL: none */
	int			pid;			/* of the session, or of the transaction; or 0 */
	TimestampTz backend_start;	/* of the session */
	int			held;			/* AL_TRANSACTION: see lock_held.c */
} AlHolding;

struct IndexScanDescData;

/* A scan that sees the newest committed state; see lock_scan.c */
typedef struct AlScan
{
	Relation	rel;
	struct SnapshotData *snapshot;
	struct SysScanDescData *scan;
	bool		recheck;
} AlScan;

/* A row of an owner */
typedef struct AlOwned
{
	AlKey		key;
	AlHolding  *row;			/* as it was found; NULL: has none */
} AlOwned;

/* lock_scan.c */
extern void al_scan_begin(AlScan *scan, Relation rel, Oid index,
						  int nkeys, ScanKey keys);
extern void al_scan_begin_at(AlScan *scan, Relation rel, BlockNumber block,
							 BlockNumber count);
extern HeapTuple al_scan_next(AlScan *scan);
extern void al_scan_end(AlScan *scan);

/* lock_row.c */
extern void al_row_read(Relation rel, HeapTuple tuple, AlHolding *holding);
extern void al_row_peek(Relation rel, HeapTuple tuple, AlHolding *holding);
extern HeapTuple al_row_form(Relation rel, const AlHolding *holding);

/* lock_owner.c */
extern List *al_owner_rows(Relation rel, const AlOwner *owner);

/* lock_table.c */
extern bool al_table_find(Relation rel, const AlKey *key, AlHolding *holding);
extern bool al_table_find_slot(Relation rel, const AlKey *key, int32 slot,
							   AlHolding *holding);
extern bool al_table_find_next(Relation rel, const AlKey *key, AlHolding *holding);
extern void al_table_no_row(const AlKey *key, int32 slot, AlHolding *holding);
extern void al_table_find_again(Relation rel, const AlKey *key, AlHolding *holding);
extern List *al_table_find_all(Relation rel, const AlKey *key, int32 first_slot,
							   bool *is_alone);
extern BlockNumber al_table_next_block(Relation rel, const AlHolding *holding);
extern bool al_table_fetch(struct IndexScanDescData *scan, ItemPointer tid, Buffer buffer,
						   struct SnapshotData *snapshot, AlHolding *holding);
extern Oid	al_table_owner_index(Relation rel);
extern void al_table_put(Relation rel, const AlKey *key, AlHolding *holding);
extern bool al_table_try_put(Relation rel, const AlKey *key, AlHolding *holding);
extern bool al_table_try_delete(Relation rel, AlHolding *holding);

#endif							/* ATOMIC_LOCK_TABLE_H */
