/*
 * owner_rows.h
 *		Which rows an owner has.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_TABLE_OWNER_ROWS_H
#define AL_TABLE_OWNER_ROWS_H

#include "utils/relcache.h"

#include "atomic_lock.h"
#include "claim/holding.h"

/* What an owner has of a key */
typedef struct AlOwned
{
	AlKey		key;
	AlHolding  *row;			/* as it was found; or what a transaction holds */
} AlOwned;

extern List *al_owner_rows(Relation rel, const AlOwner *owner);

#endif							/* AL_TABLE_OWNER_ROWS_H */
