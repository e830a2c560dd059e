/*
 * app_lock.h
 *		Reading and writing app_lock.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_TABLE_APP_LOCK_H
#define AL_TABLE_APP_LOCK_H

#include "utils/relcache.h"

#include "atomic_lock.h"
#include "claim/holding.h"

/* For al_table_find_by_hint(): the row that al_sharers_note_over() noted last */
#define AL_SLOT_ANY		(-1)

struct ScanKeyData;
struct SnapshotData;

extern Oid al_table_key_index(Relation rel);
extern Oid al_table_owner_index(Relation rel);
extern void al_table_set_crowd(const AlKey *key, bool is_crowd);
extern bool al_table_is_crowd(const AlKey *key);
extern void al_table_scan_keys(struct ScanKeyData *keys, const AlKey *key, bool and_above,
							   int32 slot);
extern bool al_table_find_by_hint(Relation rel, const AlKey *key, int32 slot,
								  struct SnapshotData *snapshot, AlHolding *holding);
extern bool al_table_find_update(Relation rel, const AlKey *key,
								 const AlHolding *version,
								 struct SnapshotData *snapshot, AlHolding *update);
extern bool al_table_find_next(Relation rel, const AlKey *key, AlHolding *holding);
extern void al_table_no_row(const AlKey *key, int32 slot, AlHolding *holding);
extern bool al_table_find_seen(Relation rel, const AlKey *key, int32 slot,
							   struct SnapshotData *snapshot, AlHolding *holding);
extern bool al_table_find_slot(Relation rel, const AlKey *key, int32 slot,
							   AlHolding *holding);
extern BlockNumber al_table_next_block(Relation rel, const AlHolding *holding);
extern bool al_table_find(Relation rel, const AlKey *key, AlHolding *holding);
extern void al_table_find_again(Relation rel, const AlKey *key, AlHolding *holding);
extern void al_table_put(Relation rel, const AlKey *key, AlHolding *holding);
extern bool al_table_try_put(Relation rel, const AlKey *key, AlHolding *holding);
extern bool al_table_try_delete(Relation rel, AlHolding *holding);

#endif							/* AL_TABLE_APP_LOCK_H */
