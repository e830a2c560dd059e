/*
 * scan.h
 *		Scans that see the newest committed state.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_TABLE_SCAN_H
#define AL_TABLE_SCAN_H

#include "access/attnum.h"
#include "access/htup.h"
#include "access/skey.h"
#include "utils/relcache.h"

typedef struct AlScan
{
	Relation	rel;
	struct SnapshotData *snapshot;
	struct SysScanDescData *scan;
	Relation	index;			/* of a scan in the order of an index; or NULL */
	bool		own_snapshot;	/* the scan took it, no caller gave it */
	bool		recheck;		/* apply the snapshot to each row */
} AlScan;

extern Oid	al_scan_index(Relation rel, int count, const AttrNumber *columns);
extern void al_scan_begin(AlScan *scan, Relation rel, Oid index, int nkeys,
						  ScanKey keys);
extern void al_scan_begin_seen(AlScan *scan, Relation rel, Oid index, int nkeys,
							   ScanKey keys, struct SnapshotData *given);
extern void al_scan_begin_ordered(AlScan *scan, Relation rel, int nkeys, ScanKey keys,
								  struct SnapshotData *given);
extern HeapTuple al_scan_next(AlScan *scan);
extern void al_scan_end(AlScan *scan);
extern bool al_try_lock_row(Relation rel, ItemPointer tid);
extern void al_scan_begin_at(AlScan *scan, Relation rel, BlockNumber block,
							 BlockNumber count);

#endif							/* AL_TABLE_SCAN_H */
