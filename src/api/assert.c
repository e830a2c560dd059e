/*-------------------------------------------------------------------------
 *
 * assert.c
 *		lock_assert(), lock_assert_fence(): pin a holding.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Locking rules: those of pins (lease/pin.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "atomic_lock.h"
#include "api/args.h"
#include "base/settings.h"
#include "claim/claimed.h"
#include "lease/pin.h"
#include "lease/report.h"
#include "lease/state.h"
#include "table/catalog.h"

/*
 * lock_assert(key, owner): the fencing token; LK006 if the owner does not hold the key, LK005 if
 * the session presents another grant
 */
AL_FUNCTION(atomic_lock_assert)
{
	AlKey		key;
	AlOwner		owner;
	AlResult	result;
	const AlPin *pin;

	PreventCommandDuringRecovery("lock_assert()");
	al_key_arg(fcinfo, 0, &key);
	al_owner_arg(fcinfo, 1, &owner);
	pin = al_pin(key.name, owner.name, &result);
	if (pin == NULL)
		al_raise_not_held(&key, &result);
	if (!al_is_session_token(pin->fencing_token))
		al_raise_other_grant(&key, owner.name, NULL);
	PG_RETURN_INT64(pin->fencing_token);
}

/*
 * lock_assert_fence(key, fencing_token, owner): void, or LK005.  A pin makes others wait, so it
 * needs the owner as a proof: applications pass tokens on.
 */
AL_FUNCTION(atomic_lock_assert_fence)
{
	AlKey		key;
	AlOwner		owner;
	int64		token;
	AlResult	result;
	const AlPin *pin;

	PreventCommandDuringRecovery("lock_assert_fence()");
	al_key_arg(fcinfo, 0, &key);
	if (PG_ARGISNULL(1))
		al_raise_null("fencing token");
	token = PG_GETARG_INT64(1);
	al_owner_arg(fcinfo, 2, &owner);
	pin = al_pin(key.name, owner.name, &result);
	if (pin == NULL || pin->fencing_token != token)
		al_raise_bad_token(&key, token, pin ? NULL : &result);
	PG_RETURN_VOID();
}
