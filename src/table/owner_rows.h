/*
 * owner_rows.h
 *		Finding all rows and holdings of an owner.
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
extern List *al_owned_in_order(Relation rel, const AlOwner *owner, List *transactions);
extern const AlHolding *al_owned_row(const AlOwned *owned);
extern List *al_owned_live(List *owned, TimestampTz *now);

#endif							/* AL_TABLE_OWNER_ROWS_H */
