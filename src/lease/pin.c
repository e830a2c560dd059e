/*-------------------------------------------------------------------------
 *
 * pin.c
 *		Pins: a transaction relies on a holding until it ends.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: a pin is a claim (AL_CLAIM_PIN) by a transaction that has found its owner's holding
 * live.  While the pin lasts, other transactions may extend the holding, but cannot take,
 * release, transfer, convert, force or sweep it, not even after it has expired.  So what the
 * transaction writes is committed while the owner has the key, or not at all.
 *
 * 1. Claim the holding and judge it by the clock, once.
 * 2. Note the pin with the transaction's claims (claim/claimed.c).  It proves the holding as long
 *    as the claim exists.
 * 3. After each change that the transaction itself makes, compare the pin with the row: the same
 *    grant, not released.
 *
 * Locking rules: a pin waits for transactions that are changing the holding.  app_lock stays
 * locked with AccessShareLock to the end of the transaction, or of the cursor that pinned, so
 * that no session can drop the table.  A pin writes nothing: no transaction id, no WAL.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/hash.h"
#include "base/key.h"
#include "base/owner.h"
#include "base/str.h"
#include "claim/claim.h"
#include "claim/claimed.h"
#include "claim/holding.h"
#include "claim/tx_holdings.h"
#include "lease/pin.h"
#include "lease/state.h"
#include "table/app_lock.h"
#include "table/catalog.h"

/* The last answer; valid while al_claimed_changes() is still last_changes */
static const AlPin *last = NULL;
static uint64 last_changes = 0;

static const AlPin *
remember(const AlPin *pin)
{
	last = pin;
	last_changes = al_claimed_changes();
	return pin;
}

/* Does the pinned holding still exist, after this transaction has changed something? */
static bool
is_still_there(const AlKey *key, AlPin *pin)
{
	Relation	rel = al_open_app_lock(AccessShareLock);
	AlHolding	holding;
	bool		found;
	ListCell   *cell;

	found = al_table_find_slot(rel, key, pin->slot, &holding) &&
		holding.released_at == 0 && holding.fencing_token == pin->fencing_token;
	table_close(rel, AccessShareLock);
	foreach(cell, found ? NIL : al_tx_mine(key))
		found = found || ((AlHolding *) lfirst(cell))->fencing_token == pin->fencing_token;
	if (found)
		pin->seen = al_claimed_changes();
	return found;
}

static const AlPin *
find_pin(const AlKey *key, AlString owner)
{
	for (AlPin *pin = al_claimed_pins(key->hash); pin; pin = pin->next)
	{
		if (al_string_equal(pin->key, key->name) &&
			al_owner_equal(pin->owner, owner) &&
			(pin->seen == al_claimed_changes() || is_still_there(key, pin)))
			return remember(pin);
	}
	return NULL;
}

/* Note that this transaction, which has claimed the key, pins a holding */
const AlPin *
al_pin_note(const AlKey *key, const AlHolding *holding)
{
	AlString	owner = al_string(holding->owner);
	char	   *data = MemoryContextAlloc(TopTransactionContext,
										  sizeof(AlPin) + key->name.len + owner.len);
	AlPin	   *pin = (AlPin *) data;

	Assert(al_claimed_has(key->hash));

	data += sizeof(AlPin);
	memcpy(data, key->name.data, key->name.len);
	memcpy(data + key->name.len, owner.data, owner.len);
	pin->key.data = data;
	pin->key.len = key->name.len;
	pin->owner.data = data + key->name.len;
	pin->owner.len = owner.len;
	pin->fencing_token = holding->fencing_token;
	pin->slot = holding->slot;
	pin->seen = al_claimed_changes();
	al_claimed_pin(key->hash, pin, al_held_until(holding));
	return remember(pin);
}

static bool
is_live_of(const AlHolding *holding, AlString owner)
{
	return holding->owner && al_owner_equal(al_string(holding->owner), owner) &&
		al_is_live(holding, GetCurrentTimestamp());
}

/*
 * Pin the exclusive lease of a key for the owner of the last pin, whose leases are often in
 * adjacent rows.  Claims the key only after a look that finds the lease, since a claim refuses
 * other calls.  False, and nothing is claimed: no such lease, or the claim was not free.
 */
static bool
pin_next(Relation rel, const AlKey *key, AlString owner, AlHolding *holding)
{
	AlClaim		claim;

	if (!((al_table_find_next(rel, key, holding) || al_table_find(rel, key, holding)) &&
		  is_live_of(holding, owner)) ||
		!al_claim_try(&claim, key, NULL, AL_CLAIM_PIN))
		return false;
	al_table_find_again(rel, key, holding);
	if (is_live_of(holding, owner))
		return true;
	al_claim_drop(&claim);
	return false;
}

/*
 * Pin an owner's holding of a key until the transaction ends, or return the existing pin.  NULL:
 * an outcome of al_claim_own().  Waits, and raises the errors of al_claim().
 */
const AlPin *
al_pin(AlString name, AlString owner_name, AlResult *result)
{
	AlKey		key;
	AlOwner		owner;
	AlOwnClaim	ask;
	const AlPin *pin;
	Relation	rel;
	bool		is_last_owner;
	uint32		version;

	is_last_owner = last_changes == al_claimed_changes() && al_owner_equal(last->owner, owner_name);
	if (is_last_owner && al_string_equal(last->key, name))
		return last;

	version = al_secret_version();
	al_key_init(&key, name);
	pin = find_pin(&key, owner_name);
	if (pin)
		return pin;

	rel = al_open_app_lock(AccessShareLock);
	if (version != al_secret_version())
		al_key_init(&key, name);
	if (is_last_owner && pin_next(rel, &key, owner_name, &ask.state.rows.exclusive))
	{
		table_close(rel, NoLock);
		return al_pin_note(&key, &ask.state.rows.exclusive);
	}
	al_owner_init(&owner, owner_name);
	ask = (AlOwnClaim) {rel, &key, &owner, AL_CLAIM_PIN, .result = result};
	if (!al_claim_own(&ask))
	{
		table_close(rel, AccessShareLock);
		return NULL;
	}
	table_close(rel, NoLock);
	return al_pin_note(&key, ask.own);
}
