/*-------------------------------------------------------------------------
 *
 * settings.c
 *		Settings, and variables that tests can set.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: durations are real numbers of milliseconds, so that both '500ms' and '30d' fit.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/varlena.h"

#include "atomic_lock.h"
#include "base/compat.h"
#include "base/errors.h"
#include "base/policy.h"
#include "base/settings.h"

#define SECOND_MS	1000.0
#define MINUTE_MS	(60 * SECOND_MS)
#define HOUR_MS		(60 * MINUTE_MS)
#define YEAR_MS		(365 * 24 * HOUR_MS)

char	   *al_owner_setting = NULL;
bool		al_owner_setting_is_verified = false;
static char *fencing_token_setting = NULL;
static int64 accepted_token = 0;
double		al_released_retention_ms = HOUR_MS;
double		al_history_retention_ms = 90 * 24 * HOUR_MS;
int			al_on_reacquire = AL_REACQUIRE_EXTEND;
int			al_acquire_durability = AL_ACQUIRE_FORCED;
int			al_release_durability = AL_RELEASE_RELAXED;
double		al_sweep_interval_ms = MINUTE_MS;
char	   *al_sweep_databases = NULL;
int			al_sweep_batch = 1000;
int			al_max_claims = 1000;
int			al_max_tickets = 10000;
int			al_partitions = 0;
int			al_partition = -1;
bool		al_enforce_guards = true;

#ifdef AL_TEST_HOOKS
char	   *al_test_pause_at = NULL;
int			al_test_hash_bits = 64;
double		al_test_sleep_cap_ms = 1000;
double		al_test_longest_exit_ms = 1000;
double		al_test_sweep_ahead_ms = 0;
double		al_test_longest_visit_ms = 10000;
double		al_test_notify_full = 0.5;
#endif

static const struct config_enum_entry on_reacquire_options[] = {
	{"extend", AL_REACQUIRE_EXTEND, false},
	{"error", AL_REACQUIRE_ERROR, false},
	{NULL, 0, false}
};

static const struct config_enum_entry acquire_durability_options[] = {
	{"forced", AL_ACQUIRE_FORCED, false},
	{"session", AL_ACQUIRE_SESSION, false},
	{NULL, 0, false}
};

static const struct config_enum_entry release_durability_options[] = {
	{"relaxed", AL_RELEASE_RELAXED, false},
	{"session", AL_RELEASE_SESSION, false},
	{NULL, 0, false}
};

/* Refuse a long owner with a message that, unlike the server's own, does not show it */
static bool
check_owner(char **newval, void **extra, GucSource source)
{
	if (*newval == NULL || strlen(*newval) <= AL_MAX_OWNER_BYTES)
		return true;
	GUC_check_errcode(ERRCODE_INVALID_PARAMETER_VALUE);
	GUC_check_errmsg("invalid value for parameter \"atomic_lock.owner\"");
	GUC_check_errdetail("An owner must not be longer than %d bytes.", AL_MAX_OWNER_BYTES);
	return false;
}

/* The encoding of the new value has not been checked yet. */
static void
assign_owner(const char *newval, void *extra)
{
	al_owner_setting_is_verified = false;
}

static void
assign_fencing_token(const char *newval, void *extra)
{
	accepted_token = 0;
}

/* The fencing tokens that the session presents: int64 *; NIL: none are set.  Raises 22023. */
List *
al_session_tokens(void)
{
	List	   *tokens = NIL;
	const char *p = fencing_token_setting;

	for (bool more = p && *p; more;)
	{
		int64	   *token = palloc(sizeof(int64));
		char	   *end;
		bool		is_token;

		CHECK_FOR_INTERRUPTS();
		errno = 0;
		*token = strtoll(p, &end, 10);
		is_token = errno == 0 && *token > 0;
		end += strspn(end, " ");
		if (!is_token || (*end != ',' && *end != '\0'))
			ereport(ERROR,
					(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("invalid value for parameter \"%s\"", "atomic_lock.fencing_token"),
					 errdetail("The value must be a comma-separated list of fencing tokens.")));
		tokens = lappend(tokens, token);
		more = *end == ',';
		p = end + 1;
	}
	return tokens;
}

/* Does the session present this fencing token, or none at all?  Raises 22023. */
bool
al_is_session_token(int64 token)
{
	List	   *tokens;
	ListCell   *cell;

	if (fencing_token_setting == NULL || fencing_token_setting[0] == '\0' ||
		token == accepted_token)
		return true;
	tokens = al_session_tokens();
	foreach(cell, tokens)
	{
		if (*(int64 *) lfirst(cell) == token)
			accepted_token = token;
	}
	list_free_deep(tokens);
	return token == accepted_token;
}

/* Split sweep_databases into names that point into "copy"; false if it is not a list */
bool
al_split_names(const char *list, char **copy, List **names)
{
	*copy = pstrdup(list);
	return SplitIdentifierString(*copy, ',', names);
}

static bool
check_sweep_databases(char **newval, void **extra, GucSource source)
{
	char	   *copy;
	List	   *names;
	bool		ok = al_split_names(*newval, &copy, &names);

	if (!ok)
		GUC_check_errdetail("The value must be \"*\" or a comma-separated list of database names.");
	list_free(names);
	pfree(copy);
	return ok;
}

/* Policies can replace these; readers use al_policy_settings, in microseconds */
static double default_ttl_ms = 5 * MINUTE_MS;
static double max_ttl_ms = 24 * HOUR_MS;
static double max_wait_ms = 5 * MINUTE_MS;
static double max_lifetime_ms = 0;
static double lock_delay_ms = 0;

#define ASSIGN_PART(name, part) \
static void \
name(double newval, void *extra) \
{ \
	al_policy_settings[part] = AL_MS_TO_US(newval); \
}

ASSIGN_PART(assign_default_ttl, AL_DEFAULT_TTL)
ASSIGN_PART(assign_max_ttl, AL_MAX_TTL)
ASSIGN_PART(assign_max_wait, AL_MAX_WAIT)
ASSIGN_PART(assign_max_lifetime, AL_MAX_LIFETIME)
ASSIGN_PART(assign_lock_delay, AL_LOCK_DELAY)

static void
define_duration(const char *name, const char *short_desc, const char *long_desc,
				double *variable, double min, double max, GucContext context,
				GucRealAssignHook assign)
{
	Assert(min <= *variable && *variable <= max);
	DefineCustomRealVariable(name, short_desc, long_desc, variable, *variable,
							 min, max, context, GUC_UNIT_MS, NULL, assign, NULL);
}

/*
 * Raise 42501 if the connection request had a setting that the client's role may not set.  The
 * library was not loaded then to refuse it, and PostgreSQL would now leave our default, because
 * the administrator's value is overwritten.
 */
static void
refuse_from_client(void)
{
	static const char *const for_users[] = {"owner", "fencing_token", "default_ttl", "on_reacquire", "release_durability"};
	int			count;
	struct config_generic **settings = al_all_settings(&count);

	for (int i = 0; i < count; i++)
	{
		const struct config_generic *setting = settings[i];
		const char *name = strchr(setting->name, '.');
		bool		may_set = false;

		if (setting->reset_source != PGC_S_CLIENT || setting->reset_scontext != PGC_BACKEND ||
			name == NULL || pg_strncasecmp(setting->name, "atomic_lock.", name + 1 - setting->name) != 0)
			continue;
		for (int j = 0; j < (int) lengthof(for_users); j++)
			may_set = may_set || pg_strcasecmp(name + 1, for_users[j]) == 0;
		if (!may_set &&
			pg_parameter_aclcheck(setting->name, setting->reset_srole, ACL_SET) != ACLCHECK_OK)
			ereport(ERROR,
					(al_errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("permission denied to set parameter \"%s\"", setting->name),
					 errdetail("The client has sent it as it connected."),
					 errhint("Connect without it.")));
	}
}

static void
define_terms(void)
{
	DefineCustomStringVariable("atomic_lock.owner",
							   "Sets the owner that functions use if they are given none.",
							   "The owner proves who holds a lock. Set it for the transaction, and not on a connection of a pool.",
							   &al_owner_setting, "", PGC_USERSET, 0,
							   check_owner, assign_owner, NULL);
	/* Checked at use: a check hook would drop a bad value from before the load with a warning. */
	DefineCustomStringVariable("atomic_lock.fencing_token",
							   "Sets the fencing tokens of the grants that guards and lock_assert accept.",
							   "The value is a comma-separated list. If it is empty, they accept any grant of the owner.",
							   &fencing_token_setting, "", PGC_USERSET, GUC_LIST_INPUT,
							   NULL, assign_fencing_token, NULL);
	define_duration("atomic_lock.default_ttl",
					"Sets the length of a lease that is acquired without a ttl.", NULL,
					&default_ttl_ms, 1, 100 * YEAR_MS, PGC_USERSET, assign_default_ttl);
	define_duration("atomic_lock.max_ttl",
					"Sets the longest ttl that a call may ask for.", NULL,
					&max_ttl_ms, 1, 100 * YEAR_MS, PGC_SUSET, assign_max_ttl);
	define_duration("atomic_lock.max_wait",
					"Sets the longest wait that a call may ask for.", "0 forbids waiting.",
					&max_wait_ms, 0, YEAR_MS, PGC_SUSET, assign_max_wait);
	define_duration("atomic_lock.max_lifetime",
					"Sets the longest life of a lease, with all its extensions and transfers.",
					"0 means no limit.",
					&max_lifetime_ms, 0, 100 * YEAR_MS, PGC_SUSET, assign_max_lifetime);
	define_duration("atomic_lock.lock_delay",
					"Sets how long a key stays closed after its lease expired or its session ended.",
					"A release opens the key at once.",
					&lock_delay_ms, 0, YEAR_MS, PGC_SUSET, assign_lock_delay);
	define_duration("atomic_lock.released_retention",
					"Sets how long a released key is remembered.",
					"Until a sweep removes the key, releasing it again raises LK004 (already released) instead of LK002 (not held).",
					&al_released_retention_ms, 0, 100 * YEAR_MS, PGC_SIGHUP, NULL);
	define_duration("atomic_lock.history_retention",
					"Sets how long rows of lock_history are kept after the grant ended.",
					"The sweep deletes older ones.",
					&al_history_retention_ms, 0, 100 * YEAR_MS, PGC_SIGHUP, NULL);
}

static void
define_behaviour(void)
{
	DefineCustomEnumVariable("atomic_lock.on_reacquire",
							 "Sets what an acquire does if the owner already holds the lock.",
							 NULL, &al_on_reacquire, AL_REACQUIRE_EXTEND,
							 on_reacquire_options, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("atomic_lock.acquire_durability",
							 "Sets how durable the commit of a grant or an extension is.",
							 "\"forced\" raises synchronous_commit to \"on\" where it is weaker; \"session\" leaves it as it is.",
							 &al_acquire_durability, AL_ACQUIRE_FORCED,
							 acquire_durability_options, PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("atomic_lock.release_durability",
							 "Sets how durable a commit of nothing but releases is.",
							 "\"relaxed\" makes the commit asynchronous; \"session\" leaves it to synchronous_commit.",
							 &al_release_durability, AL_RELEASE_RELAXED,
							 release_durability_options, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("atomic_lock.enforce_guards",
							 "Makes guards refuse writes to rows whose lock is not held.",
							 "If this is off, guards let everything pass. Turn it off for maintenance only.",
							 &al_enforce_guards, true, PGC_SUSET, 0, NULL, NULL, NULL);
}

static void
define_limits(void)
{
	define_duration("atomic_lock.sweep_interval",
					"Sets the pause between two background sweeps.",
					"0 turns the background sweep off.",
					&al_sweep_interval_ms, 0, YEAR_MS, PGC_SIGHUP, NULL);
	DefineCustomStringVariable("atomic_lock.sweep_databases",
							   "Sets the databases that the background sweep visits.",
							   "The value is a comma-separated list of names, or \"*\" for all databases that allow connections and are not templates.",
							   &al_sweep_databases, "*", PGC_SIGHUP, GUC_LIST_INPUT,
							   check_sweep_databases, NULL, NULL);
	DefineCustomIntVariable("atomic_lock.sweep_batch",
							"Sets how many rows a sweep removes per transaction.",
							NULL, &al_sweep_batch, 1000, 1, 1000000,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("atomic_lock.max_claims_per_transaction",
							"Sets how many keys one transaction may touch.",
							"Each key takes up to three places in the lock table; see max_locks_per_transaction.",
							&al_max_claims, 1000, 1, INT_MAX,
							PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("atomic_lock.max_queue_places",
							"Sets how many places in line a role may have for a key.",
							"Those who wait in a call do not count.", &al_max_tickets, 10000, 0, INT_MAX,
							PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("atomic_lock.partitions",
							"Sets how many partitions all keys have, each on a server of its own.",
							"0 means that this server has all keys.", &al_partitions, 0, 0, INT_MAX,
							PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("atomic_lock.partition",
							"Sets which partition of the keys this server has, counted from 0.",
							"-1 refuses all keys, as while a partition moves.", &al_partition, -1, -1, INT_MAX,
							PGC_SUSET, 0, NULL, NULL, NULL);
}

#ifdef AL_TEST_HOOKS
static void
define_test_settings(void)
{
	define_duration("atomic_lock.test_sleep_cap",
					"Sets the longest sleep of a waiter.", NULL,
					&al_test_sleep_cap_ms, 1, YEAR_MS, PGC_USERSET, NULL);
	DefineCustomStringVariable("atomic_lock.test_pause_at",
							   "Sets the point at which a backend stops until it gets an advisory lock.",
							   NULL, &al_test_pause_at, "", PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("atomic_lock.test_hash_bits",
							"Sets how many bits the hashes of keys and owners have.",
							NULL, &al_test_hash_bits, 64, 0, 64,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
	define_duration("atomic_lock.test_longest_exit",
					"Sets how long the end of a session may take.", NULL,
					&al_test_longest_exit_ms, 0, YEAR_MS, PGC_USERSET, NULL);
	define_duration("atomic_lock.test_sweep_ahead",
					"Sets by how much a sweep takes the clock to be later than it is.", NULL,
					&al_test_sweep_ahead_ms, 0, YEAR_MS, PGC_USERSET, NULL);
	define_duration("atomic_lock.test_longest_visit",
					"Sets how long a worker of the sweep works.", NULL,
					&al_test_longest_visit_ms, 0, YEAR_MS, PGC_USERSET, NULL);
	DefineCustomRealVariable("atomic_lock.test_notify_full",
							 "Sets how full the notification queue is when events are left out.",
							 NULL, &al_test_notify_full, 0.5, 0, 1, PGC_USERSET, 0, NULL, NULL, NULL);
}
#endif

void
al_settings_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		refuse_from_client();
	define_terms();
	define_behaviour();
	define_limits();
#ifdef AL_TEST_HOOKS
	define_test_settings();
#endif
	MarkGUCPrefixReserved("atomic_lock");
}
