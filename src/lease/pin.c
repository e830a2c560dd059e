/*-------------------------------------------------------------------------
 *
 * pin.c
 *		Pins: to rely on a holding until the transaction ends.
 *
 * Model: a pin is a claim (AL_CLAIM_PIN) by a transaction that has found its
 * owner's holding live.  While it is there nobody else can take, release,
 * transfer, convert, force or sweep the holding, not even when its time is up;
 * extending it passes.  So what the transaction writes is committed while the
 * owner has the key, or not at all.
 *
 * The clock is asked once, when the holding is pinned.  From then on the pin
 * proves it, and is kept in memory: with the claims of the transaction
 * (xact.c), so that it goes when its claim goes, at the end or with a
 * savepoint.  The only one who can end a pinned holding is the transaction
 * itself.  Whenever it has changed anything, what is in memory is compared with
 * the row again: the same grant, not released, is still proven.
 *
 * Locking rules: a pin waits for unfinished transactions that are changing the
 * holding.  app_lock stays locked with AccessShareLock to the end of the
 * transaction, or of the cursor in which it was pinned, so that nobody drops it,
 * and with it what was proven.  Nothing is written: no transaction id, no WAL.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/hash.h"
#include "base/key.h"
#include "base/owner.h"
#include "base/str.h"
#include "claim/claim.h"
#include "claim/claimed.h"
#include "claim/held.h"
#include "claim/holding.h"
#include "lease/pin.h"
#include "lease/state.h"
#include "table/app_lock.h"
#include "table/catalog.h"

/* The pin that was asked for last; there while nothing has changed since */
static const AlPin *last = NULL;
static uint64 last_changes = 0;

static const AlPin *
remember(const AlPin *pin)
{
	last = pin;
	last_changes = al_claimed_changes();
	return pin;
}

/* Is what was pinned still there?  Asked only after this transaction has changed something. */
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
	foreach(cell, found ? NIL : al_held_mine(key))
		found = found || ((AlHolding *) lfirst(cell))->fencing_token == pin->fencing_token;
	if (found)
		pin->seen = al_claimed_changes();
	return found;
}

/* Find what this transaction has pinned of a key, for an owner */
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

/* Note that a holding was pinned, by a claim of this transaction */
const AlPin *
al_pin_note(const AlKey *key, const AlHolding *holding)
{
	AlString	owner = al_string(holding->owner);
	char	   *data = MemoryContextAlloc(TopTransactionContext,
										  sizeof(AlPin) + key->name.len + owner.len);
	AlPin	   *pin = (AlPin *) data;

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

/*
 * Pin the exclusive lease of a key for an owner who is likely to have it, since a
 * statement that writes many rows usually may: claim, then look, once.  False: it
 * did not work out, and nothing is claimed.
 */
static bool
claim_first(Relation rel, const AlKey *key, AlString owner, AlHolding *holding)
{
	AlClaim		claim;

	if (!al_claim_try(&claim, key, NULL, AL_CLAIM_PIN))
		return false;
	if ((al_table_find_next(rel, key, holding) || al_table_find(rel, key, holding)) &&
		holding->owner && al_owner_equal(al_string(holding->owner), owner) &&
		al_is_live(holding, GetCurrentTimestamp()))
		return true;
	al_claim_drop(&claim);
	return false;
}

/*
 * Pin what an owner holds of a key until the transaction ends, or find that it
 * has been.  NULL where the owner does not hold it, with what al_judge_owner()
 * has to say of that.  Waits for unfinished transactions; raises what a claim
 * can.
 */
const AlPin *
al_pin(AlString name, AlString owner_name, AlResult *result)
{
	AlKey		key;
	AlOwner		owner;
	AlState		state;
	AlHolding  *own;
	AlClaim		claim;
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
	if (is_last_owner && claim_first(rel, &key, owner_name, &state.exclusive))
	{
		table_close(rel, NoLock);
		return al_pin_note(&key, &state.exclusive);
	}
	al_owner_init(&owner, owner_name);
	if (!al_claim_own(rel, &key, &owner, AL_CLAIM_PIN, NULL, &state, &own, &claim, result))
	{
		table_close(rel, AccessShareLock);
		return NULL;
	}
	table_close(rel, NoLock);
	return al_pin_note(&key, own);
}
