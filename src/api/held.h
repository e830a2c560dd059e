/*
 * held.h
 *		What an owner holds.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_API_HELD_H
#define AL_API_HELD_H

#include "nodes/pg_list.h"
#include "utils/relcache.h"

#include "atomic_lock.h"
#include "claim/holding.h"
#include "table/owner_rows.h"

extern List *al_owned_in_order(Relation rel, const AlOwner *owner, List *transactions);
extern const AlHolding *al_owned_row(const AlOwned *owned);

#endif							/* AL_API_HELD_H */
