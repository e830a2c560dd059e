/*-------------------------------------------------------------------------
 *
 * grant.c
 *		Writing what an attempt was granted.
 *
 * Model: under the claim of the attempt nobody else can change what it has
 * seen, but for the rows of shared holdings that are over: more than one may
 * be about to use such a row again.  Who comes second takes another.
 *
 * A holding keeps its row unless its mode changes.  The row in slot 0 is for
 * the exclusive holding; a shared one gets any row above that is over, or a new
 * one.  What has the lifetime of a transaction has no row (claim/held.c).
 *
 * Locking rules: the attempt has its claim, which is kept.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/clock.h"
#include "base/owner.h"
#include "base/str.h"
#include "claim/claim.h"
#include "claim/held.h"
#include "claim/holding.h"
#include "lease/attempt.h"
#include "lease/grant.h"
#include "lease/pin.h"
#include "lease/release.h"
#include "lease/session_end.h"
#include "lease/state.h"
#include "shmem/stat.h"
#include "table/app_lock.h"
#include "table/fence.h"

/* Fill in what the request says about the end of a new holding */
static void
set_end(const AlAcquire *request, TimestampTz at, AlHolding *holding)
{
	holding->ttl = request->ttl;
	holding->expires_at = request->ttl > 0 ? al_add_duration(at, request->ttl) : DT_NOEND;
	if (request->lifetime != AL_TRANSACTION)
		holding->expires_at = Min(holding->expires_at, al_end_of_life(holding));
	holding->lifetime = request->lifetime;
	holding->pid = request->lifetime == AL_LEASE ? 0 : MyProcPid;
	holding->backend_start = request->lifetime == AL_SESSION ? MyStartTimestamp : 0;
}

/*
 * Acquire what the owner has again: the last request says with what it ends,
 * but its time does not become shorter.
 */
static void
renew(const AlAcquire *request, TimestampTz at, AlHolding *holding)
{
	TimestampTz previous = holding->expires_at;
	AlLifetime	lifetime = holding->lifetime;

	set_end(request, at, holding);
	if (lifetime != AL_TRANSACTION &&
		(previous != DT_NOEND || request->lifetime == AL_SESSION))
		holding->expires_at = Max(holding->expires_at, previous);
	if (request->holder)
		holding->holder = request->holder;
	if (request->meta)
		holding->meta = request->meta;
}

/* A new holding, but for its row and token, and its owner where that needs the row */
static void
init_holding(AlAttempt *attempt, AlHolding *holding)
{
	AlAcquire  *request = attempt->request;
	TimestampTz at = attempt->result->at;

	/* Of a single exclusive lease it says where that is, which is not known yet. */
	if (request->is_shared || request->lifetime == AL_TRANSACTION)
		request->owner.in_index = true;
	if (request->owner.in_index && request->owner.generated && request->owner.name.len == 0)
		al_owner_generate(&request->owner, InvalidBlockNumber);
	if (request->owner.generated && request->is_shared)
		al_claim_holding(attempt->key, &request->owner);
	memset(holding, 0, sizeof(AlHolding));
	ItemPointerSetInvalid(&holding->tid);
	holding->key = attempt->key->name;
	holding->acquired_at = attempt->own ? attempt->own->acquired_at :
		attempt->kept ? attempt->kept->acquired_at : at;
	set_end(request, at, holding);
	holding->holder = request->holder ? request->holder : request->default_holder;
	if (request->owner.name.len > 0)
		holding->owner = al_string_text(request->owner.name);
	holding->meta = request->meta;
}

/* A row is written over.  If nobody has released it, it was noticed only now. */
static void
count_expired(const AlHolding *row)
{
	if (ItemPointerIsValid(&row->tid) && row->released_at == 0)
		al_stat_count(AL_COUNT_EXPIRATIONS, 1);
}

/* A hash that no longer fits is harmless, and leaving it keeps HOT. */
static void
set_owner_hash(const AlOwner *owner, AlHolding *holding)
{
	if (owner->generated && !owner->in_index)
		return;
	holding->has_owner_hash = true;
	holding->owner_hash = al_owner_index_hash(owner->name);
}

/* Put a holding into a row, or into none */
static void
set_row(const AlAcquire *request, const AlHolding *row, AlHolding *holding)
{
	holding->tid = row->tid;
	holding->tuple = row->tuple;
	holding->slot = row->slot;
	holding->has_owner_hash = row->has_owner_hash;
	holding->owner_hash = row->owner_hash;
	set_owner_hash(&request->owner, holding);
}

/*
 * Write a new shared holding: over the row of one that is over and does not keep
 * the key closed, best of all of the same owner, or as a new row.  Its slot is
 * the fencing token modulo the number of slots, which nobody else has.
 */
static void
put_shared(Relation rel, AlAttempt *attempt, AlHolding *holding)
{
	const AlAcquire *request = attempt->request;
	TimestampTz now = GetCurrentTimestamp();
	AlHolding	no_row = {.slot = AL_SLOT_EXCLUSIVE + 1};
	ListCell   *cell;

	for (int own_rows = 1; own_rows >= 0; own_rows--)
	{
		foreach(cell, attempt->state.shared)
		{
			AlHolding  *row = lfirst(cell);

			if (al_is_live(row, now) || al_attempt_is_closed(row, now) || row == attempt->own ||
				al_is_owned_by(row, &request->owner) != own_rows)
				continue;
			set_row(request, row, holding);
			if (al_table_try_put(rel, attempt->key, holding))
			{
				count_expired(row);
				return;
			}
		}
	}

	no_row.slot += (int32) (holding->fencing_token % (PG_INT32_MAX - 1));
	for (cell = list_head(attempt->state.shared); cell;)
	{
		if (((AlHolding *) lfirst(cell))->slot != no_row.slot)
			cell = lnext(attempt->state.shared, cell);
		else
		{
			no_row.slot = no_row.slot % (PG_INT32_MAX - 1) + 1;
			cell = list_head(attempt->state.shared);
		}
	}
	ItemPointerSetInvalid(&no_row.tid);
	set_row(request, &no_row, holding);
	al_table_put(rel, attempt->key, holding);
}

static void
generate_owner(AlOwner *owner, BlockNumber block, AlHolding *holding)
{
	al_owner_generate(owner, block);
	holding->owner = al_string_text(owner->name);
	set_owner_hash(owner, holding);
}

/*
 * Write an exclusive holding.  An owner that is still to be generated says in
 * which block the row is; where it got into another one, another owner is
 * generated, and the row written again.  The index has it if that did not help.
 */
static void
put_exclusive(Relation rel, AlAttempt *attempt, AlHolding *holding)
{
	AlOwner    *owner = &attempt->request->owner;
	bool		names_block = owner->name.len == 0;

	set_row(attempt->request, &attempt->state.exclusive, holding);
	count_expired(&attempt->state.exclusive);
	if (names_block && ItemPointerIsValid(&holding->tid))
		generate_owner(owner, ItemPointerGetBlockNumber(&holding->tid), holding);
	else if (names_block)
	{
		/* Only now it is known how long the row is. */
		generate_owner(owner, 0, holding);
		generate_owner(owner, al_table_next_block(rel, holding), holding);
	}
	al_table_put(rel, attempt->key, holding);
	for (int again = 0; names_block && !owner->in_index; again++)
	{
		BlockNumber block = ItemPointerGetBlockNumber(&holding->tid);

		if (al_owner_names_block(owner, block))
			break;
		owner->in_index = again > 0;
		generate_owner(owner, block, holding);
		al_table_put(rel, attempt->key, holding);
	}
}

/* Write a holding that is new, or has another mode than before, as a row */
static void
put_row(Relation rel, AlAttempt *attempt, bool is_shared, AlHolding *holding)
{
	AlHolding  *own = attempt->own;

	if (holding->lifetime == AL_SESSION)
		al_session_end_note(rel, attempt->key);
	if (is_shared)
		put_shared(rel, attempt, holding);
	else
		put_exclusive(rel, attempt, holding);
	if (own && own->lifetime == AL_TRANSACTION)
		al_held_end(own, false);
	else if (own)
		al_end_row(rel, attempt->key, own, attempt->result->at, true);
}

/* What was judged, and the claim is there for: a transaction holds the key */
static void
grant_transaction(Relation rel, AlAttempt *attempt)
{
	const AlAcquire *request = attempt->request;
	AlHolding  *own = attempt->own;
	AlHolding  *holding = &attempt->result->holding;
	bool		is_change = own && own->lifetime == AL_TRANSACTION;

	if (is_change)
		*holding = *own;
	else
		init_holding(attempt, holding);
	holding->slot = request->is_shared ? AL_SLOT_EXCLUSIVE + 1 : AL_SLOT_EXCLUSIVE;
	holding->fencing_token = attempt->token ? attempt->token : al_fence_draw(1);
	if (is_change)
		al_held_change(holding, &request->owner);
	else
		al_held_add(attempt->key, &request->owner, holding);
	/* Others know whose it is as soon as they see that it is there. */
	al_claim_transaction(attempt->key, request->is_shared, RelationGetRelid(rel));
}

/* Write what an attempt was granted, as of now */
static void
write_grant(Relation rel, AlAttempt *attempt)
{
	AlAcquire  *request = attempt->request;
	AlResult   *result = attempt->result;
	AlHolding  *holding = &result->holding;
	AlHolding  *own = attempt->own;
	bool		is_shared = request->is_shared;

	result->at = GetCurrentTimestamp();
	if (result->outcome == AL_REACQUIRED)
	{
		*holding = *own;
		if (request->is_convert)
			return;
		if (request->lifetime == AL_TRANSACTION)
		{
			if (own->lifetime != AL_TRANSACTION)
				al_pin_note(attempt->key, own);
			return;
		}
		is_shared = al_is_shared(own);
		renew(request, result->at, holding);
		if (holding->lifetime == AL_SESSION)
			al_session_end_note(rel, attempt->key);
		if (own->lifetime == AL_TRANSACTION)
		{
			put_row(rel, attempt, is_shared, holding);
			al_lease_written(attempt->key, &request->owner, holding);
			return;
		}
		if (!is_shared)
			al_table_put(rel, attempt->key, holding);
		if (!is_shared || al_table_try_put(rel, attempt->key, holding))
		{
			al_lease_written(attempt->key, &request->owner, holding);
			return;
		}
		/* It ran out since, and somebody is being given the row: take another. */
		result->outcome = AL_ACQUIRED;
		attempt->own = own = NULL;
	}

	if (request->is_convert ? own->lifetime == AL_TRANSACTION :
		request->lifetime == AL_TRANSACTION)
	{
		grant_transaction(rel, attempt);
		return;
	}

	if (own && own->lifetime != AL_TRANSACTION)
	{
		*holding = *own;
		if (!request->is_convert)
			renew(request, result->at, holding);
	}
	else
		init_holding(attempt, holding);
	if (own && !request->holder)
		holding->holder = own->holder;
	holding->fencing_token = attempt->token ? attempt->token : al_fence_draw(1);
	holding->released_at = 0;
	put_row(rel, attempt, is_shared, holding);
	al_lease_written(attempt->key, &request->owner, holding);
}

/* The same, and count it */
void
al_grant(Relation rel, AlAttempt *attempt)
{
	write_grant(rel, attempt);
	al_stat_count(attempt->own ? AL_COUNT_REGRANTS : AL_COUNT_GRANTS, 1);
}
