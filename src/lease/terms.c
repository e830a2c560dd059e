/*-------------------------------------------------------------------------
 *
 * terms.c
 *		The terms of a request, according to policies and settings.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: before a verb changes a key, it asks here whether the caller may, and for how long.
 * A value above a limit is an error, which names the key and the policy or the setting.  A
 * default ttl is cut instead, so that a policy does not break calls that pass none.  A waiter
 * asks again at each attempt, so that a new policy applies to it too.
 *
 * Counts are in other files: of holders in lease/attempt.c, of keys in lease/quota.c.
 *
 * Locking: none.  app_lock is open, so the policies are known.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/guc.h"

#include "atomic_lock.h"
#include "base/errors.h"
#include "base/policy.h"
#include "base/str.h"
#include "lease/state.h"
#include "lease/terms.h"
#include "table/catalog.h"

bool
al_terms_is_admitted(const AlKey *key)
{
	return al_policy_admits(key->name, GetUserId());
}

/* May a caller of force_release() use it for a key?  An administrator could change the policy. */
bool
al_terms_may_force(const AlKey *key)
{
	return al_terms_is_admitted(key) || al_is_admin();
}

/* Raise 42501 if a policy reserves a key for roles, and the caller is a member of none */
void
al_terms_admit(const AlKey *key)
{
	if (!al_policy_any() || al_terms_is_admitted(key))
		return;
	ereport(ERROR,
			(al_errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for lock \"%s\"", al_display(key->name)),
			 errdetail("The policy for prefix \"%s\" reserves it for members of certain roles.",
					   al_display(al_policy_for(key->name, AL_ROLES)->prefix)),
			 errhint("lock_policy(key) shows these roles.")));
}

/* A duration in the largest unit that shows it exactly, as settings are shown */
static char *
show_duration(int64 microseconds)
{
	static const struct
	{
		int64		length;
		const char *name;
	}			units[] = {
		{USECS_PER_DAY, "d"}, {USECS_PER_HOUR, "h"}, {USECS_PER_MINUTE, "min"}, {USECS_PER_SEC, "s"}, {1000, "ms"}
	};

	for (int i = 0; i < (int) lengthof(units); i++)
	{
		if (microseconds != 0 && microseconds % units[i].length == 0)
			return psprintf(INT64_FORMAT "%s", microseconds / units[i].length, units[i].name);
	}
	return microseconds == 0 ? "0" : psprintf(INT64_FORMAT "us", microseconds);
}

/* Raise 22023: a duration is out of range.  "key" is NULL where the value is for many keys */
static void
raise_range(const AlKey *key, const char *what, const char *least, AlPolicyPart part,
			const char *setting)
{
	const AlPolicy *policy = key ? al_policy_for(key->name, part) : NULL;

	if (policy == NULL)
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be between %s and %s", what, least,
						GetConfigOptionByName(setting, NULL, false)),
				 errhint("The setting %s is the upper limit.  Months and years are not allowed.", setting)));
	ereport(ERROR,
			(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("%s for lock \"%s\" must be between %s and %s", what, al_display(key->name),
					least, show_duration(policy->parts[part])),
			 errhint("The policy for prefix \"%s\" sets the upper limit.  Months and years are not allowed.",
					 al_display(policy->prefix))));
}

static void
raise_ttl(const AlKey *key)
{
	raise_range(key, "ttl", "1ms", AL_MAX_TTL, "atomic_lock.max_ttl");
}

static void
raise_lifetime(const AlKey *key)
{
	const AlPolicy *policy = al_policy_for(key->name, AL_MAX_LIFETIME);

	if (policy == NULL)
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("ttl must not be longer than atomic_lock.max_lifetime (%s)",
						GetConfigOptionByName("atomic_lock.max_lifetime", NULL, false))));
	ereport(ERROR,
			(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("ttl for lock \"%s\" must not be longer than max_lifetime (%s)",
					al_display(key->name), show_duration(policy->parts[AL_MAX_LIFETIME])),
			 errdetail("The policy for prefix \"%s\" sets max_lifetime.",
					   al_display(policy->prefix))));
}

/* The errdetail that names the origin of max_holders; "why" ends the sentence */
static int
detail_limited(const AlKey *key, const char *why)
{
	const AlPolicy *policy = al_policy_for(key->name, AL_MAX_HOLDERS);

	if (policy)
		return errdetail("The policy for prefix \"%s\" sets max_holders, %s.",
						 al_display(policy->prefix), why);
	return errdetail("The call passes max_holders, %s.", why);
}

/* The ttl of a new lease where the call passes none.  Raises 22023. */
static int64
default_ttl(const AlKey *key, int64 max_ttl, int64 max_lifetime)
{
	int64		ttl = al_policy_value(key->name, AL_DEFAULT_TTL);

	if (al_policy_for(key->name, AL_DEFAULT_TTL) || al_policy_for(key->name, AL_MAX_TTL))
		ttl = Min(ttl, max_ttl);
	else if (ttl > max_ttl)
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("atomic_lock.default_ttl must not be longer than atomic_lock.max_ttl"),
				 errhint("Pass a ttl, or change one of the settings.")));
	if (max_lifetime > 0 && (al_policy_for(key->name, AL_DEFAULT_TTL) ||
							 al_policy_for(key->name, AL_MAX_LIFETIME)))
		ttl = Min(ttl, max_lifetime);
	return ttl;
}

/* The ttl of a new lease, in microseconds; AL_NO_TTL: use the default.  Raises 22023. */
int64
al_terms_new_ttl(const AlKey *key, int64 ttl)
{
	int64		max_ttl = al_policy_value(key->name, AL_MAX_TTL);
	int64		max_lifetime = al_policy_value(key->name, AL_MAX_LIFETIME);

	if (ttl == AL_NO_TTL)
		ttl = default_ttl(key, max_ttl, max_lifetime);
	else if (ttl < AL_MIN_TTL || ttl > max_ttl)
		raise_ttl(key);
	if (max_lifetime > 0 && ttl > max_lifetime)
		raise_lifetime(key);
	return ttl;
}

/* Set the wait of a request that waits as long as it may: the smallest max_wait of its keys */
void
al_terms_set_wait(const AlKey *keys, int count, AlAcquire *request)
{
	Assert(count > 0);
	if (request->wait != AL_LONGEST_WAIT)
		return;
	request->waits_longest = true;
	request->wait = al_policy_value(keys[0].name, AL_MAX_WAIT);
	for (int i = 1; i < count; i++)
		request->wait = Min(request->wait, al_policy_value(keys[i].name, AL_MAX_WAIT));
}

/* Set the terms of a grant, and cut a longest wait to the key's max_wait.  Raises 42501, 22023. */
void
al_terms_of(const AlKey *key, AlAcquire *request, AlTerms *terms)
{
	int64		max_holders;

	al_terms_admit(key);
	if (request->waits_longest)
		request->wait = Min(request->wait, al_policy_value(key->name, AL_MAX_WAIT));
	if (request->wait < 0 || request->wait > al_policy_value(key->name, AL_MAX_WAIT))
		raise_range(key, "wait", "0", AL_MAX_WAIT, "atomic_lock.max_wait");
	terms->ttl = 0;
	terms->max_holders = 0;
	terms->max_lifetime = al_policy_value(key->name, AL_MAX_LIFETIME);
	if (request->is_convert)
		return;

	if (request->ttl != AL_NO_TTL || request->lifetime == AL_LEASE)
		terms->ttl = al_terms_new_ttl(key, request->ttl);
	if (request->lifetime == AL_TRANSACTION && al_policy_value(key->name, AL_MIN_HOLD) > 0)
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("lock \"%s\" cannot have lifetime \"transaction\"", al_display(key->name)),
				 errdetail("The policy for prefix \"%s\" sets min_hold, and such a lock leaves nothing behind that could keep the key closed.",
						   al_display(al_policy_for(key->name, AL_MIN_HOLD)->prefix)),
				 errhint("Use lifetime \"lease\" or \"session\".")));
	if (!request->is_shared)
		return;
	max_holders = al_policy_value(key->name, AL_MAX_HOLDERS);
	terms->max_holders = request->max_holders == 0 ? max_holders :
		max_holders == 0 ? request->max_holders : Min(request->max_holders, max_holders);
	if (terms->max_holders > 0 && request->lifetime == AL_TRANSACTION)
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("lock \"%s\" cannot have lifetime \"transaction\"", al_display(key->name)),
				 detail_limited(key, "and such a lock leaves no row that could be counted"),
				 errhint("Use lifetime \"lease\" or \"session\".")));
}

/* The same for a key of a set; also raises 22023 if a set with a limit of holders would wait */
void
al_terms_of_set(const AlKey *key, AlAcquire *request, AlTerms *terms)
{
	al_terms_of(key, request, terms);
	if (terms->max_holders > 0 && request->wait > 0)
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("cannot wait for a set with lock \"%s\"", al_display(key->name)),
				 detail_limited(key, "and the set would keep a seat while it waits for other keys"),
				 errhint("Call it without \"wait\", and again later.")));
}

/* Check a ttl for an existing holding of a key.  Raises 22023. */
void
al_terms_check_ttl(const AlKey *key, int64 ttl)
{
	if (ttl != AL_NO_TTL && (ttl < AL_MIN_TTL || ttl > al_policy_value(key->name, AL_MAX_TTL)))
		raise_ttl(key);
}

/* Check a ttl for all holdings of an owner; al_terms_cap() knows policies.  Raises 22023. */
void
al_terms_check_all(int64 ttl)
{
	if (ttl != AL_NO_TTL && (ttl < AL_MIN_TTL || ttl == PG_INT64_MAX ||
							 (!al_policy_any() && ttl > al_policy_settings[AL_MAX_TTL])))
		raise_ttl(NULL);
}

/* Cut a ttl to max_ttl of the key; AL_NO_TTL, the lowest int64, stays as it is */
int64
al_terms_cap(const AlKey *key, int64 ttl)
{
	return Min(ttl, al_policy_value(key->name, AL_MAX_TTL));
}
