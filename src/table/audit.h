/*
 * audit.h
 *		Rows of lock_audit.
 */
#ifndef AL_TABLE_AUDIT_H
#define AL_TABLE_AUDIT_H

#include "atomic_lock.h"
#include "claim/holding.h"

extern void al_audit(const char *action, const AlKey *key, const AlHolding *ended,
					 text *reason);

#endif							/* AL_TABLE_AUDIT_H */
