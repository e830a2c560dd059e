/*
 * holding.h
 *		Holdings, and questions about one.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_CLAIM_HOLDING_H
#define AL_CLAIM_HOLDING_H

#include "access/htup.h"
#include "nodes/pg_list.h"
#include "storage/itemptr.h"

#include "atomic_lock.h"
#include "shmem/sole.h"

/* A row of app_lock, or a holding without a row (tx_holdings.c); pointers may lead into "tuple" */
typedef struct AlHolding
{
	ItemPointerData tid;		/* invalid: there is no row yet, or never */
	bool		has_owner_hash;
	HeapTuple	tuple;
	AlSole		sole;			/* slot 0: what the look found out about other rows */
	AlLifetime	lifetime;
	int64		fencing_token;
	TimestampTz acquired_at;
	TimestampTz expires_at;
	int64		ttl;			/* microseconds */
	int64		owner_hash;
	int32		slot;
	Oid			role;			/* the role that acquired it */
	AlString	key;
	text	   *holder;
	text	   *owner;			/* NULL: ended by force, or not known */
	TimestampTz released_at;	/* 0: not released; a row has it in expires_at */
	struct varlena *meta;		/* jsonb, may be toasted; NULL: none */
	int			pid;			/* of the session, or of the transaction; or 0 */
	TimestampTz backend_start;	/* of the session */
	int			tx_index;		/* AL_TRANSACTION: its index in tx_holdings.c */
	TimestampTz granted_at;		/* AL_TRANSACTION: when it got its fencing token */
} AlHolding;

extern TimestampTz al_end_of_life(const AlHolding *holding);
extern TimestampTz al_ended_at(const AlHolding *holding);
extern TimestampTz al_min_held_until(const AlHolding *holding);
extern TimestampTz al_closed_until(const AlHolding *holding);
extern bool al_is_closed(const AlHolding *holding, TimestampTz now);
extern bool al_is_live(const AlHolding *holding, TimestampTz now);
extern bool al_is_owned_by(const AlHolding *holding, const AlOwner *owner);
extern bool al_is_shared(const AlHolding *holding);
extern TimestampTz al_held_until(const AlHolding *holding);
extern const AlHolding *al_longest(List *holdings);
extern bool al_is_of_this_session(const AlHolding *holding);

#endif							/* AL_CLAIM_HOLDING_H */
