/*
 * attempt.h
 *		An attempt to get a key, from the first look to the grant.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_LEASE_ATTEMPT_H
#define AL_LEASE_ATTEMPT_H

#include "utils/relcache.h"

#include "atomic_lock.h"
#include "claim/claim.h"
#include "claim/holding.h"
#include "lease/state.h"

typedef struct AlAttempt
{
	const AlKey *key;
	AlAcquire  *request;
	AlTerms		terms;			/* of the grant */
	AlResult   *result;
	AlState		state;
	uint64		entries;		/* al_sole_entries() before the first look */
	AlHolding  *own;			/* the owner's holding, in the state; or NULL */
	bool		is_shared;		/* mode of the grant: the request's, or that of "own" if */
	AlLifetime	lifetime;		/* request->keeps_own; the same for the lifetime */
	const AlHolding *predecessor;	/* the grant continues its life; or NULL */
	bool		is_claimed;		/* "claim" is valid */
	bool		is_ours;		/* this transaction already excluded others from the key */
	AlClaim		claim;
	bool		has_seats;		/* al_claim_seats() is held */
	int			seats_used;		/* at the count, with this one; 0: there is no limit */
	TimestampTz soonest;		/* result->is_full: when the first holding ends */
	TimestampTz line_until;		/* end of the first ticket or its offer; DT_NOEND: none */
	int64		token;			/* drawn for the grant; 0: not yet */
	TimestampTz latest_end;		/* of the lease; 0: no limit */
} AlAttempt;

extern bool al_attempt_is_open(const AlAttempt *attempt);
extern void al_attempt_drop(AlAttempt *attempt);
extern void al_attempt_give_up(AlAttempt *attempt);
extern void al_attempt_end_seats(AlAttempt *attempt);
extern void al_attempt(Relation rel, AlAttempt *attempt);
extern void al_attempt_refresh(Relation rel, AlAttempt *attempt);
extern void al_attempt_lost(AlAttempt *attempt);
extern bool al_attempt_is_in_time(AlAttempt *attempt);
extern void al_attempt_explain_pending(Relation rel, AlAttempt *attempt);
extern void al_attempt_count_refusal(const AlKey *key, const AlResult *result);

#endif							/* AL_LEASE_ATTEMPT_H */
