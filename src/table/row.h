/*
 * row.h
 *		Reading and forming rows of app_lock.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_TABLE_ROW_H
#define AL_TABLE_ROW_H

#include "utils/relcache.h"

#include "claim/holding.h"

extern void al_row_read(Relation rel, HeapTuple tuple, AlHolding *holding);
extern void al_row_peek(Relation rel, HeapTuple tuple, AlHolding *holding);
extern HeapTuple al_row_form(Relation rel, const AlHolding *holding);

#endif							/* AL_TABLE_ROW_H */
