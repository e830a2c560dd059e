/*-------------------------------------------------------------------------
 *
 * policy.c
 *		Policies: rules of an administrator for keys with a prefix.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: several policies may have a prefix of the same key.  Each part (max_ttl, history, ...)
 * is decided by itself: by the policy with the longest prefix that sets this part, or else by a
 * setting.  The other layers ask here for one part of one key.
 *
 * 1. A session keeps all policies in memory, ordered by prefix.  Each policy links to the one
 *    with the next shorter prefix of its own prefix.
 * 2. A lookup finds the greatest prefix that does not come after the key.  If a prefix P begins
 *    the key, all strings between P and the key begin with P too.  So the links lead from the
 *    greatest prefix to all prefixes of the key, longest first.
 * 3. An invalidation of the relation cache says that policies may have changed.  It comes with
 *    commits of other sessions, on standbys too, and with commands and rollbacks of this session.
 *    The next opening of app_lock reads the policies again.
 *
 * Locking: none.  A pointer to a policy is valid until app_lock is opened again.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "atomic_lock.h"
#include "base/policy.h"
#include "base/str.h"

static AlPolicySource source;

static MemoryContext context = NULL;	/* of the policies; NULL: never read */
static AlPolicy *policies = NULL;
int			al_policy_count = 0;

/* Values for parts that no policy sets; base/settings.c fills them in, same units */
int64		al_policy_settings[AL_POLICY_PARTS];

/* The key of the last lookup, and the policy with its longest prefix */
static char last_key[AL_MAX_KEY_BYTES];
static int	last_length = -1;	/* -1: nothing is remembered */
static const AlPolicy *last_policy;

static bool is_known = false;
static uint64 times_forgotten = 0;

void
al_policy_init(AlPolicySource policy_source)
{
	Assert(policy_source != NULL);
	source = policy_source;
}

/* Note that policies may have changed; the present ones stay until they are read again */
void
al_policy_forget(void)
{
	is_known = false;
	times_forgotten++;
}

/* Follow the links from "start" to the first policy whose prefix begins the string */
static const AlPolicy *
climb(const AlPolicy *start, AlString string)
{
	while (start && !al_string_begins(string, start->prefix))
		start = start->shorter;
	return start;
}

/*
 * Bring the policies of this session up to date with all commits up to now.  The caller has just
 * opened app_lock, but a transaction that has a lock already gets it again without a look at
 * invalidations.  If policies change while they are read, the next call reads them again.
 */
void
al_policy_refresh(void)
{
	Assert(CritSectionCount == 0);
	AcceptInvalidationMessages();
	if (!is_known)
	{
		uint64		before = times_forgotten;
		MemoryContext new_context = AllocSetContextCreate(CurrentMemoryContext,
														  "atomic_lock policies",
														  ALLOCSET_SMALL_SIZES);
		int			new_count;
		AlPolicy   *new_policies = source(new_context, &new_count);

		for (int i = 0; i < new_count; i++)
		{
			Assert(i == 0 || al_string_compare(new_policies[i - 1].prefix, new_policies[i].prefix) < 0);
			new_policies[i].shorter = i == 0 ? NULL :
				climb(&new_policies[i - 1], new_policies[i].prefix);
		}
		if (context)
			MemoryContextDelete(context);
		context = new_context;
		MemoryContextSetParent(context, TopMemoryContext);
		policies = new_policies;
		last_length = -1;
		al_policy_count = new_count;
		is_known = before == times_forgotten;
	}
}

/* The policy with the longest prefix of a key, or NULL */
static const AlPolicy *
find_longest(AlString key)
{
	int			above = al_policy_count;
	int			first = 0;

	/* Count the prefixes that do not come after the key. */
	while (first < above)
	{
		int			middle = first + (above - first) / 2;

		if (al_string_compare(policies[middle].prefix, key) <= 0)
			first = middle + 1;
		else
			above = middle;
	}
	return first == 0 ? NULL : climb(&policies[first - 1], key);
}

/* The policy that sets a part for a key, or NULL.  Verbs look up many parts of one key. */
const AlPolicy *
al_policy_find(AlString key, AlPolicyPart part)
{
	const AlPolicy *policy;

	Assert(part < AL_POLICY_PARTS);
	if (key.len != last_length || memcmp(key.data, last_key, key.len) != 0)
	{
		last_policy = find_longest(key);
		last_length = key.len <= AL_MAX_KEY_BYTES ? key.len : -1;
		memcpy(last_key, key.data, Max(last_length, 0));
	}
	for (policy = last_policy; policy && policy->parts[part] < 0; policy = policy->shorter)
		;
	return policy;
}

/* Do the policies let a role change a key? */
bool
al_policy_admits(AlString key, Oid role)
{
	const AlPolicy *policy = al_policy_for(key, AL_ROLES);
	ListCell   *cell;

	if (policy == NULL)
		return true;
	/* A dropped role is a member of no role, not even of itself. */
	if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(role)))
		return false;
	foreach(cell, policy->roles)
	{
		if (has_privs_of_role(role, lfirst_oid(cell)))
			return true;
	}
	return superuser_arg(role);
}
