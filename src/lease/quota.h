/*
 * quota.h
 *		How many keys a role may hold.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_LEASE_QUOTA_H
#define AL_LEASE_QUOTA_H

#include "nodes/pg_list.h"
#include "utils/relcache.h"

#include "atomic_lock.h"
#include "lease/attempt.h"

/* A holding that is about to be written */
typedef struct AlQuotaUse
{
	const AlKey *key;
	Oid			role;
	bool		is_new;			/* false: it moves to another row */
	bool		in_transaction; /* it has no row */
	bool		is_ticket;		/* it is a ticket */
} AlQuotaUse;

extern List *al_quota_claim(Relation rel, const AlQuotaUse *uses, int count,
							const AlOwner *owner);
extern List *al_quota_claim_ticket(Relation rel, const AlKey *key, const AlOwner *owner, Oid role);
extern void al_quota_check(Relation rel, const AlAttempt *attempt);
extern List *al_quota_claim_attempts(Relation rel, const AlAttempt *attempts, int count);
extern void al_quota_end(List *quotas);

#endif							/* AL_LEASE_QUOTA_H */
