/*
 * session_end.h
 *		Ending the holdings of a session.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_LEASE_SESSION_END_H
#define AL_LEASE_SESSION_END_H

#include "atomic_lock.h"

extern void al_session_end_note(Relation rel, const AlKey *key);
extern void al_session_end_init(void);

#endif							/* AL_LEASE_SESSION_END_H */
