/*
 * audit.h
 *		Rows of lock_audit.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_TABLE_AUDIT_H
#define AL_TABLE_AUDIT_H

#include "atomic_lock.h"
#include "claim/holding.h"

typedef struct AlForcedEnd
{
	TimestampTz at;
	int64		fencing_token;	/* of the ended holding */
	char	   *action;
	char	   *role;
	text	   *reason;
} AlForcedEnd;

extern void al_audit(const char *action, const AlKey *key, const AlHolding *ended,
					 text *reason);
extern Datum al_audit_digest(text *owner);
extern const AlForcedEnd *al_audit_find(const AlKey *key, const AlOwner *owner);

#endif							/* AL_TABLE_AUDIT_H */
