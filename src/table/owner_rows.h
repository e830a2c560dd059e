/*
 * owner_rows.h
 *		Finding all rows of an owner.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_TABLE_OWNER_ROWS_H
#define AL_TABLE_OWNER_ROWS_H

#include "utils/relcache.h"

#include "atomic_lock.h"
#include "claim/holding.h"

typedef struct AlOwned
{
	AlKey		key;
	AlHolding  *row;			/* as found; or a holding of a transaction, without a row */
} AlOwned;

extern List *al_owner_rows(Relation rel, const AlOwner *owner);

#endif							/* AL_TABLE_OWNER_ROWS_H */
