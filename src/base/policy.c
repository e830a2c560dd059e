/*-------------------------------------------------------------------------
 *
 * policy.c
 *		Policies: what an administrator has ruled for keys with a prefix.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: each part of what holds for a key is decided by the policy with the longest
 * prefix of the key that rules this part, and where there is none, by a setting.  The
 * rest of the extension asks here for one part of one key, and does not look at
 * settings that a policy can replace.
 *
 * A session keeps all policies in its memory, in the order of their prefixes, each
 * with a link to the policy with the next shorter prefix.  Between that of a key and
 * the greatest prefix that is not above the key in this order, all strings begin with
 * the former.  So a binary search and some steps along the links find it.
 *
 * The relation cache's invalidations say when the policies may have changed: at the
 * commit of others, on a standby too, and at each command and rollback of our own.  They
 * are read again when app_lock is opened next.
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

static MemoryContext context = NULL;	/* of the policies; NULL: there are none */
static AlPolicy *policies = NULL;
int			al_policy_count = 0;

/* What holds where no policy rules; base/settings.c sets it, in the same units */
int64		al_policy_settings[AL_POLICY_PARTS];

/* The last key that was asked about, and the policy with its longest prefix */
static char last_key[AL_MAX_KEY_BYTES];
static int	last_length = -1;	/* -1: there is none */
static const AlPolicy *last_policy;

static bool is_known = false;
static uint64 times_forgotten = 0;

void
al_policy_init(AlPolicySource policy_source)
{
	source = policy_source;
}

/* The policies may have changed.  Those that we have stay until they are read again. */
void
al_policy_forget(void)
{
	is_known = false;
	times_forgotten++;
}

/* The last policy up to "start" along the links whose prefix a string begins with */
static const AlPolicy *
climb(const AlPolicy *start, AlString string)
{
	while (start && !al_string_begins(string, start->prefix))
		start = start->shorter;
	return start;
}

/*
 * Let what we know of policies be up to date: what has been committed up to now, and
 * what this transaction has changed.  The caller has just opened app_lock, which alone
 * would not ensure this: a lock that the transaction has already is given without a look
 * at invalidations.  Where they change while they are read, the next call reads them
 * again.
 */
void
al_policy_refresh(void)
{
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
			new_policies[i].shorter = i == 0 ? NULL :
				climb(&new_policies[i - 1], new_policies[i].prefix);
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

/* The policy with the longest prefix that a key begins with; NULL: there is none */
static const AlPolicy *
find_longest(AlString key)
{
	int			above = al_policy_count;
	int			first = 0;

	/* How many prefixes are not above the key? */
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

/*
 * The policy that rules a part for a key; NULL: none does.  A call asks many times about
 * the same key, so the last one is remembered.
 */
const AlPolicy *
al_policy_find(AlString key, AlPolicyPart part)
{
	const AlPolicy *policy;

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

/* May a role change a key? */
bool
al_policy_admits(AlString key, Oid role)
{
	const AlPolicy *policy = al_policy_for(key, AL_ROLES);
	ListCell   *cell;

	if (policy == NULL)
		return true;
	/* A role that was dropped is a member of none, not even of itself. */
	if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(role)))
		return false;
	foreach(cell, policy->roles)
	{
		if (has_privs_of_role(role, lfirst_oid(cell)))
			return true;
	}
	return superuser_arg(role);
}
