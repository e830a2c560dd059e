/*-------------------------------------------------------------------------
 *
 * lock_attempt.h
 *		An attempt to get a key, from the first look to the grant.
 *
 * IDENTIFICATION
 *		src/lock_attempt.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef ATOMIC_LOCK_ATTEMPT_H
#define ATOMIC_LOCK_ATTEMPT_H

#include "lock_lease.h"

typedef struct AlAttempt
{
	const AlKey *key;
	AlAcquire  *request;
	AlResult   *result;
	AlState		state;
	uint64		made;			/* al_entries_made() before it was looked at */
	AlHolding  *own;			/* what the owner has, in the state; or NULL */
	const AlHolding *kept;		/* whose life goes on in what is granted; or NULL */
	bool		is_claimed;
	AlClaim		claim;
	int64		token;			/* drawn for what is granted; 0: not yet */
} AlAttempt;

/* lock_attempt.c */
extern bool al_attempt_is_closed(const AlHolding *row, TimestampTz now);
extern void al_attempt(Relation rel, AlAttempt *attempt);
extern void al_attempt_drop(AlAttempt *attempt);
extern void al_attempt_refresh(Relation rel, AlAttempt *attempt);

/* lock_acquire.c */
extern void al_attempt_in_turn(Relation *rel, AlAttempt *attempt);

/* lock_grant.c */
extern void al_grant(Relation rel, AlAttempt *attempt);

#endif							/* ATOMIC_LOCK_ATTEMPT_H */
