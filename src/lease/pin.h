/*
 * pin.h
 *		Pins: a transaction relies on a holding until it ends.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_LEASE_PIN_H
#define AL_LEASE_PIN_H

#include "atomic_lock.h"
#include "claim/claimed.h"
#include "claim/holding.h"
#include "lease/state.h"

extern const AlPin *al_pin_note(const AlKey *key, const AlHolding *holding);
extern const AlPin *al_pin(AlString name, AlString owner_name, AlResult *result);

#endif							/* AL_LEASE_PIN_H */
