/*
 * pending.h
 *		Holdings that unfinished transactions have written.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_TABLE_PENDING_H
#define AL_TABLE_PENDING_H

#include "access/htup.h"
#include "nodes/pg_list.h"
#include "utils/relcache.h"

#include "atomic_lock.h"
#include "claim/holding.h"

extern bool al_pending_is_superseded(HeapTupleHeader header);
extern int	al_pending_process(TransactionId xid);
extern List *al_pending_holdings(Relation rel, const AlKey *key);
extern AlHolding *al_pending_find(Relation rel, const AlKey *key, const AlOwner *owner);

#endif							/* AL_TABLE_PENDING_H */
