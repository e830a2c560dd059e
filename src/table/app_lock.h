/*
 * app_lock.h
 *		Reading and writing app_lock.
 */
#ifndef AL_TABLE_APP_LOCK_H
#define AL_TABLE_APP_LOCK_H

#include "storage/buf.h"
#include "utils/relcache.h"

#include "atomic_lock.h"
#include "claim/holding.h"

struct IndexScanDescData;
struct SnapshotData;

extern Oid al_table_key_index(Relation rel);
extern Oid al_table_owner_index(Relation rel);
extern bool al_table_fetch(struct IndexScanDescData *scan, ItemPointer tid, Buffer buffer,
						   struct SnapshotData *snapshot, AlHolding *holding);
extern bool al_table_find_update(Relation rel, const AlKey *key,
								 const AlHolding *version,
								 struct SnapshotData *snapshot, AlHolding *update);
extern bool al_table_find_next(Relation rel, const AlKey *key, AlHolding *holding);
extern void al_table_no_row(const AlKey *key, int32 slot, AlHolding *holding);
extern bool al_table_find_slot(Relation rel, const AlKey *key, int32 slot,
							   AlHolding *holding);
extern BlockNumber al_table_next_block(Relation rel, const AlHolding *holding);
extern bool al_table_find(Relation rel, const AlKey *key, AlHolding *holding);
extern List *al_table_find_all(Relation rel, const AlKey *key, int32 first_slot,
							   bool *is_alone);
extern void al_table_find_again(Relation rel, const AlKey *key, AlHolding *holding);
extern void al_table_put(Relation rel, const AlKey *key, AlHolding *holding);
extern bool al_table_try_put(Relation rel, const AlKey *key, AlHolding *holding);
extern bool al_table_try_delete(Relation rel, AlHolding *holding);

#endif							/* AL_TABLE_APP_LOCK_H */
