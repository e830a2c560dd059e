/*
 * session_end.h
 *		Ending what a session holds.
 */
#ifndef AL_LEASE_SESSION_END_H
#define AL_LEASE_SESSION_END_H

#include "atomic_lock.h"

extern bool al_session_end_has(Relation rel, const AlKey *key);
extern void al_session_end_key(Relation rel, const AlKey *key, bool wait);
extern void al_session_end_note(Relation rel, const AlKey *key);
extern void al_session_end_init(void);

#endif							/* AL_LEASE_SESSION_END_H */
