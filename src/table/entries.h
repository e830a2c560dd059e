/*
 * entries.h
 *		Rows of app_lock that an index leads to.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_TABLE_ENTRIES_H
#define AL_TABLE_ENTRIES_H

#include "access/htup.h"
#include "access/skey.h"
#include "storage/buf.h"
#include "utils/relcache.h"

struct IndexScanDescData;
struct SnapshotData;

typedef struct AlEntries
{
	struct IndexScanDescData *scan;
	struct SnapshotData *snapshot;
	Buffer		buffer;			/* page of the last entry, pinned; or invalid */
	Size		room;			/* free bytes on that page */
	Size		length;			/* bytes of the row that was found there; 0: none */
} AlEntries;

extern void al_entries_begin(AlEntries *entries, Relation rel, Oid index,
							 struct SnapshotData *snapshot, int nkeys, ScanKey keys);
extern ItemPointer al_entries_next(AlEntries *entries);
extern int32 al_entries_slot(const AlEntries *entries);
extern bool al_entries_row(AlEntries *entries, ItemPointer tid, HeapTuple tuple);
extern bool al_entries_version(AlEntries *entries, ItemPointer tid, bool first, HeapTuple tuple);
extern void al_entries_unlock(AlEntries *entries);
extern void al_entries_end(AlEntries *entries);
extern void al_prune_if_full(Relation rel, Buffer buffer, Size room, Size length);

#endif							/* AL_TABLE_ENTRIES_H */
