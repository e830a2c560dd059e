/*-------------------------------------------------------------------------
 *
 * grant.c
 *		Writing the grant of an attempt.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: the attempt has left a claim and an outcome.
 *
 * 1. If the holding that the grant builds on has ended since the judgement, write nothing.
 * 2. AL_ACQUIRED (grant_new): draw a fencing token, and write the holding.  A change of mode
 *    moves it to another row.  AL_REACQUIRED (grant_again): renew the row.
 * 3. Give back the seats, and delete the owner's ticket.
 *
 * A shared holding takes the row of a shared holding that has ended, or a new row.
 *
 * Locking rules: the claim of the attempt is kept.  Under it only rows of shared holdings that
 * have ended can change.  If two transactions try to take such a row, the second one takes
 * another row.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/clock.h"
#include "base/errors.h"
#include "base/owner.h"
#include "base/settings.h"
#include "base/str.h"
#include "base/testpoint.h"
#include "claim/claim.h"
#include "claim/claimed.h"
#include "claim/holding.h"
#include "claim/tx_holdings.h"
#include "lease/attempt.h"
#include "lease/grant.h"
#include "lease/pin.h"
#include "lease/publish.h"
#include "lease/release.h"
#include "lease/session_end.h"
#include "lease/state.h"
#include "lease/terms.h"
#include "shmem/stat.h"
#include "shmem/tickets.h"
#include "table/app_lock.h"
#include "table/fence.h"
#include "table/sharers.h"
#include "table/tickets.h"

/* An end that is not after that of the folder above, if the key is part of a path */
static TimestampTz
end_in_path(const AlAttempt *attempt, TimestampTz end)
{
	return attempt->latest_end == 0 ? end : Min(end, attempt->latest_end);
}

static void
set_end(const AlAttempt *attempt, AlHolding *holding)
{
	holding->ttl = attempt->terms.ttl;
	holding->expires_at = holding->ttl == 0 ? DT_NOEND :
		al_add_duration(attempt->result->at, holding->ttl);
	if (attempt->lifetime != AL_TRANSACTION)
		holding->expires_at = Min(holding->expires_at, al_end_of_life(holding));
	holding->expires_at = end_in_path(attempt, holding->expires_at);
	holding->lifetime = attempt->lifetime;
	holding->pid = attempt->lifetime == AL_LEASE ? 0 : MyProcPid;
	holding->backend_start = attempt->lifetime == AL_SESSION ? MyStartTimestamp : 0;
}

/* Renew a holding as the request says, but never set an earlier end */
static void
renew(const AlAttempt *attempt, AlHolding *holding)
{
	const AlAcquire *request = attempt->request;
	TimestampTz previous = holding->expires_at;
	AlLifetime	lifetime = holding->lifetime;

	set_end(attempt, holding);
	if (lifetime != AL_TRANSACTION &&
		(previous != DT_NOEND || attempt->lifetime == AL_SESSION))
		holding->expires_at = Max(holding->expires_at, previous);
	if (request->holder)
		holding->holder = request->holder;
	if (request->meta)
		holding->meta = request->meta;
}

/* The same with request->keeps_own: ttl and end only grow, and a session is kept */
static void
renew_kept(const AlAttempt *attempt, AlHolding *holding)
{
	const AlAcquire *request = attempt->request;

	if (holding->ttl > 0)
	{
		int64		ttl = request->ttl != AL_NO_TTL ? request->ttl :
			al_terms_cap(attempt->key, holding->ttl);
		TimestampTz end = Min(al_add_duration(attempt->result->at, ttl), al_end_of_life(holding));

		holding->expires_at = Max(holding->expires_at, end_in_path(attempt, end));
		holding->ttl = Max(holding->ttl, ttl);
	}
	if (request->holder)
		holding->holder = request->holder;
}

/* Fill a new holding, except for its row, its token, and an owner that names the row */
static void
init_holding(AlAttempt *attempt, AlHolding *holding)
{
	AlAcquire  *request = attempt->request;

	/* The owner generated for a single exclusive lease names the block of its row. */
	if (attempt->is_shared || attempt->lifetime == AL_TRANSACTION)
		request->owner.in_index = true;
	if (request->owner.in_index && request->owner.generated && request->owner.name.len == 0)
		al_owner_generate(&request->owner, InvalidBlockNumber);
	if (request->owner.generated && attempt->is_shared)
		al_claim_holding(attempt->key, &request->owner);
	memset(holding, 0, sizeof(AlHolding));
	ItemPointerSetInvalid(&holding->tid);
	holding->key = attempt->key->name;
	holding->acquired_at = attempt->own ? attempt->own->acquired_at :
		attempt->predecessor ? attempt->predecessor->acquired_at : attempt->result->at;
	set_end(attempt, holding);
	holding->role = attempt->own ? attempt->own->role : request->role;
	holding->holder = request->holder ? request->holder : request->default_holder();
	if (request->owner.name.len > 0)
		holding->owner = al_string_text(request->owner.name);
	holding->meta = request->meta;
}

/* If the owner needs no hash, keep the row's former one, so that the update stays HOT */
static void
set_owner_hash(const AlOwner *owner, AlHolding *holding)
{
	if (owner->generated && !owner->in_index)
		return;
	holding->has_owner_hash = true;
	holding->owner_hash = al_owner_index_hash(owner->name, holding->key);
}

/* Place a holding in a row; if "row" has no tid, a new row with its slot will be made */
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

/* Does any transaction rely on an expired lease, or extend it?  Then its row counts as a seat. */
static bool
is_relied_on(const AlKey *key, const AlHolding *row)
{
	AlOwner		owner;
	int			pid;

	if (row->released_at != 0 || row->owner == NULL)
		return false;
	for (const AlPin *pin = al_claimed_pins(key->hash); pin; pin = pin->next)
	{
		if (pin->fencing_token == row->fencing_token)
			return true;
	}
	if (!al_claim_has_others(key->hash))
		return false;
	al_owner_init(&owner, al_string(row->owner));
	return al_claim_has_holding(key, &owner, &pid);
}

/* Write a shared holding over a row that has ended, perhaps another owner's; false: none found */
static bool
put_over_any(Relation rel, AlAttempt *attempt, List *rows, bool is_others, AlHolding *holding)
{
	TimestampTz now = GetCurrentTimestamp();
	ListCell   *cell;

	foreach(cell, rows)
	{
		AlHolding  *row = lfirst(cell);

		/* A row that has ended may still keep the key closed. */
		if (al_is_live(row, now) || al_is_closed(row, now) ||
			(is_others && is_relied_on(attempt->key, row)))
			continue;
		set_row(attempt->request, row, holding);
		if (al_table_try_put(rel, attempt->key, holding))
		{
			al_note_expired(attempt->key, row);
			return true;
		}
	}
	return false;
}

/* Write a shared holding over an ended row, preferably of the same owner, or as a new row */
static void
put_shared(Relation rel, AlAttempt *attempt, AlHolding *holding)
{
	AlRows	   *rows = &attempt->state.rows;
	AlHolding	no_row = {0};
	List	   *own_rows = NIL;
	ListCell   *cell;

	foreach(cell, rows->shared)
	{
		if (al_is_owned_by(lfirst(cell), &attempt->request->owner))
			own_rows = lappend(own_rows, lfirst(cell));
	}
	if (put_over_any(rel, attempt, own_rows, false, holding))
		return;
	if (rows->exclusive.sole == AL_SOLE_UNKNOWN &&
		(put_over_any(rel, attempt, al_sharers_noted(rel, attempt->key), true, holding) ||
		 put_over_any(rel, attempt, al_sharers_over(rel, attempt->key), true, holding)))
		return;
	no_row.slot = al_sharers_new_slot(rel, attempt->key, holding->fencing_token);
	ItemPointerSetInvalid(&no_row.tid);
	set_row(attempt->request, &no_row, holding);
	al_table_put(rel, attempt->key, holding);
}

static void
generate_owner(AlOwner *owner, BlockNumber block, AlHolding *holding)
{
	Assert(owner->generated);
	al_owner_generate(owner, block);
	holding->owner = al_string_text(owner->name);
	set_owner_hash(owner, holding);
}

/*
 * Write an exclusive holding.  A generated owner names the block of its row.  If the row gets
 * into another block, write it again with another owner, the second time one for the index.
 */
static void
put_exclusive(Relation rel, AlAttempt *attempt, AlHolding *holding)
{
	AlOwner    *owner = &attempt->request->owner;
	bool		names_block = owner->name.len == 0;

	set_row(attempt->request, &attempt->state.rows.exclusive, holding);
	al_note_expired(attempt->key, &attempt->state.rows.exclusive);
	if (names_block && ItemPointerIsValid(&holding->tid))
		generate_owner(owner, ItemPointerGetBlockNumber(&holding->tid), holding);
	else if (names_block)
	{
		/* The block depends on the length of the row, so the owner must be in it. */
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

/* Write a holding into another row than the owner's former one, and end that one */
static void
put_row(Relation rel, AlAttempt *attempt, bool is_shared, AlHolding *holding)
{
	AlHolding  *own = attempt->own;

	if (holding->lifetime == AL_SESSION)
		al_session_end_note(rel, attempt->key);
	al_forget_released(rel, attempt->key, &attempt->request->owner, &attempt->state.rows,
					   !is_shared, is_shared);
	if (is_shared)
		put_shared(rel, attempt, holding);
	else
		put_exclusive(rel, attempt, holding);
	if (own && own->lifetime == AL_TRANSACTION)
		al_tx_end(own, false);
	else if (own)
		al_end_row(rel, attempt->key, own, attempt->result->at, true);
}

/* Grant the claimed key with the lifetime of the transaction; no row is written */
static void
grant_transaction(Relation rel, AlAttempt *attempt)
{
	const AlAcquire *request = attempt->request;
	AlHolding  *own = attempt->own;
	AlHolding  *holding = &attempt->result->holding;
	bool		is_change = own && own->lifetime == AL_TRANSACTION;

	Assert(al_claimed_has(attempt->key->hash));
	if (is_change)
		*holding = *own;
	else
		init_holding(attempt, holding);
	holding->slot = attempt->is_shared ? AL_SLOT_FIRST_SHARED : AL_SLOT_EXCLUSIVE;
	holding->fencing_token = attempt->token ? attempt->token : al_fence_draw(1);
	holding->granted_at = attempt->result->at;
	if (is_change)
		al_tx_change(holding, &request->owner);
	else
		al_tx_add(attempt->key, &request->owner, holding);
	/* Last, so that a session that sees this claim also sees its holder */
	al_claim_transaction(attempt->key, attempt->is_shared, RelationGetRelid(rel));
}

static void
grant_new(Relation rel, AlAttempt *attempt)
{
	AlAcquire  *request = attempt->request;
	AlHolding  *own = attempt->own;
	AlHolding  *holding = &attempt->result->holding;

	Assert(own || !request->is_convert);
	if (own)
	{
		if (!attempt->is_shared)
			al_trace(DEBUG1, "lock \"%s\": writing an upgrade", al_display(attempt->key->name));
		al_publish_end(attempt->key, own, attempt->result->at, AL_ENDED_CONVERTED, NULL);
	}
	else
		al_claimed_freed(attempt->key->hash, -1);
	if (request->is_convert ? own->lifetime == AL_TRANSACTION :
		attempt->lifetime == AL_TRANSACTION)
	{
		grant_transaction(rel, attempt);
		return;
	}

	if (own && own->lifetime != AL_TRANSACTION)
	{
		*holding = *own;
		if (!request->is_convert)
			renew(attempt, holding);
	}
	else
		init_holding(attempt, holding);
	if (own && !request->holder)
		holding->holder = own->holder;
	holding->fencing_token = attempt->token ? attempt->token : al_fence_draw(1);
	holding->released_at = 0;
	AL_TEST_POINT("token-drawn");
	put_row(rel, attempt, attempt->is_shared, holding);
	al_note_written(attempt->key, &request->owner, holding, own && attempt->is_shared);
	al_publish_grant(attempt->key, holding, attempt->result->at,
					 !own || own->lifetime == AL_TRANSACTION);
}

/* Renew the owner's holding; false: a share that expired, and its row is being taken */
static bool
grant_again(Relation rel, AlAttempt *attempt)
{
	const AlAcquire *request = attempt->request;
	AlResult   *result = attempt->result;
	AlHolding  *own = attempt->own;
	AlHolding  *holding = &result->holding;

	Assert(result->outcome == AL_REACQUIRED && own != NULL);
	*holding = *own;
	if (request->is_convert)
		return true;
	if (attempt->lifetime == AL_TRANSACTION)
	{
		if (own->lifetime != AL_TRANSACTION)
			al_pin_note(attempt->key, own);
		return true;
	}
	if (request->keeps_own)
		renew_kept(attempt, holding);
	else
	{
		renew(attempt, holding);
		if (holding->lifetime == AL_SESSION)
			al_session_end_note(rel, attempt->key);
	}
	if (own->lifetime == AL_TRANSACTION)
	{
		put_row(rel, attempt, al_is_shared(own), holding);
		al_publish_grant(attempt->key, holding, own->granted_at, true);
	}
	else if (!al_overwrite_row(rel, attempt->key, holding))
	{
		al_attempt_lost(attempt);
		return false;
	}
	al_note_written(attempt->key, &request->owner, holding, false);
	return true;
}

/*
 * Write the grant of an attempt as of now, and count it.  The quotas are claimed.  False, and
 * nothing is written: the owner's holding has ended since the judgement.
 */
bool
al_grant(Relation rel, AlAttempt *attempt)
{
	Assert(al_is_granted(attempt->result));
	Assert(CheckRelationLockedByMe(rel, RowExclusiveLock, true));
	if (!al_attempt_is_in_time(attempt))
		return false;
	if (attempt->result->outcome == AL_ACQUIRED)
		grant_new(rel, attempt);
	else if (!grant_again(rel, attempt))
		return false;
	al_attempt_end_seats(attempt);
	/* The ticket of an owner that renews its share is for exclusive mode: keep it. */
	if ((attempt->result->outcome == AL_ACQUIRED || !al_is_shared(&attempt->result->holding)) &&
		!al_tickets_none())
		(void) al_tickets_drop(attempt->key, &attempt->request->owner);
	al_stat_count(attempt->own ? AL_COUNT_REGRANTS : AL_COUNT_GRANTS, 1);
	return true;
}
