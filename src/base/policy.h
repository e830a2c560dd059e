/*
 * policy.h
 *		Policies: rules of an administrator for keys with a prefix.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_BASE_POLICY_H
#define AL_BASE_POLICY_H

#include "nodes/pg_list.h"
#include "utils/palloc.h"

#include "atomic_lock.h"

/* The parts of a policy; each can be set without the others */
typedef enum AlPolicyPart
{
	/* durations, in microseconds */
	AL_DEFAULT_TTL,
	AL_MAX_TTL,
	AL_MAX_WAIT,
	AL_MAX_LIFETIME,			/* 0: no limit */
	AL_LOCK_DELAY,
	AL_MIN_HOLD,
	/* numbers, at least 1; 0, if no policy sets the part: no limit */
	AL_MAX_HOLDERS,
	AL_MAX_KEYS_PER_ROLE,
	/* flags: 0 or 1 */
	AL_HISTORY,
	AL_NOTIFY,
	AL_ROLES,					/* 1: only members of the roles may change the key */
	AL_POLICY_PARTS
} AlPolicyPart;

typedef struct AlPolicy
{
	AlString	prefix;			/* the policy is for keys that begin with it */
	const struct AlPolicy *shorter; /* policy with the next shorter prefix, or NULL */
	int64		parts[AL_POLICY_PARTS]; /* -1: left to shorter prefixes and settings */
	List	   *roles;			/* OIDs */
} AlPolicy;

/* Reads all policies into a memory context, as an array in the order of prefixes */
typedef AlPolicy *(*AlPolicySource) (MemoryContext context, int *count);

extern int	al_policy_count;
extern int64 al_policy_settings[AL_POLICY_PARTS];

extern void al_policy_init(AlPolicySource policy_source);
extern void al_policy_forget(void);
extern void al_policy_refresh(void);
extern const AlPolicy *al_policy_find(AlString key, AlPolicyPart part);
extern bool al_policy_admits(AlString key, Oid role);

/* Inline, so that a database without policies pays nothing for them */
static inline bool
al_policy_any(void)
{
	return al_policy_count > 0;
}

static inline const AlPolicy *
al_policy_for(AlString key, AlPolicyPart part)
{
	return al_policy_any() ? al_policy_find(key, part) : NULL;
}

/* The value of a part for a key: from a policy, or else from the setting */
static inline int64
al_policy_value(AlString key, AlPolicyPart part)
{
	const AlPolicy *policy = al_policy_for(key, part);

	return policy ? policy->parts[part] : al_policy_settings[part];
}

#endif							/* AL_BASE_POLICY_H */
