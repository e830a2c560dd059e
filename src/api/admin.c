/*-------------------------------------------------------------------------
 *
 * admin.c
 *		force_release(), lock_try_force_release(), lock_steal(): functions for
 *		administrators and supervisors.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Locking rules: those of lease/release.c and lease/acquire.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "atomic_lock.h"
#include "api/answer.h"
#include "api/args.h"
#include "claim/claim.h"
#include "lease/acquire.h"
#include "lease/release.h"
#include "lease/report.h"
#include "lease/state.h"
#include "lease/terms.h"
#include "shmem/stat.h"
#include "table/audit.h"
#include "table/catalog.h"

/* Arguments: key, reason, fencing token of the one holding to end (NULL: end all) */
static AlOutcome
force_release(FunctionCallInfo fcinfo, const char *function, bool raise)
{
	Relation	rel = al_open_for_writing(function);
	AlKey		key;
	text	   *reason;
	List	   *ended;
	ListCell   *cell;
	AlClaim		claim;
	AlResult	result;

	al_key_arg(fcinfo, 0, &key);
	reason = al_reason_arg(fcinfo, 1);
	if (!al_terms_may_force(&key))
		al_terms_admit(&key);
	if (PG_ARGISNULL(2))
		ended = al_lease_end(rel, &key, &claim, AL_ENDED_FORCED, reason, &result);
	else
		ended = al_lease_end_grant(rel, &key, PG_GETARG_INT64(2), reason, &result);
	Assert(ended == NIL || result.outcome == AL_RELEASED);
	if (result.outcome != AL_RELEASED && raise)
		al_raise(&key, &result);
	if (result.outcome == AL_NOT_FOUND)
		al_claim_drop(&claim);
	foreach(cell, ended)
		al_audit("force_release", &key, lfirst(cell), reason);
	if (ended == NIL && result.outcome == AL_RELEASED)
		al_audit("force_release", &key, NULL, reason);	/* the key was only closed */
	al_stat_count(AL_COUNT_FORCED, list_length(ended));
	table_close(rel, result.outcome == AL_RELEASED ? NoLock : RowExclusiveLock);
	return result.outcome;
}

/* force_release(key, reason, fencing_token), also lock_force_release: true, or LK002, LK011 */
AL_FUNCTION(atomic_lock_force_release)
{
	(void) force_release(fcinfo, "force_release()", true);
	PG_RETURN_BOOL(true);
}

/* lock_try_force_release(key, reason, fencing_token): the outcome, in a word */
AL_FUNCTION(atomic_lock_try_force_release)
{
	AlResult	result = {.outcome = force_release(fcinfo, "lock_try_force_release()", false)};

	PG_RETURN_TEXT_P(cstring_to_text(al_status_word(&result)));
}

/* lock_steal(key, new_owner, reason, ttl, holder, fencing_token): the new lease */
AL_FUNCTION(atomic_lock_steal)
{
	Relation	rel = al_open_for_writing("lock_steal()");
	AlAcquire	request = {0};
	AlKey		key;
	text	   *reason;
	List	   *ended;
	ListCell   *cell;
	AlResult	result = {0};

	al_key_arg(fcinfo, 0, &key);
	al_owner_arg(fcinfo, 1, &request.owner);
	reason = al_reason_arg(fcinfo, 2);
	request.ttl = al_ttl_arg(fcinfo, 3);
	request.role = GetUserId();
	request.holder = al_holder_arg(fcinfo, 4);
	request.default_holder = al_holder_default;

	if (PG_ARGISNULL(5))
		ended = al_lease_steal(rel, &key, &request, reason, &result);
	else
		ended = al_lease_steal_grant(rel, &key, &request, PG_GETARG_INT64(5), reason, &result);
	if (result.outcome == AL_HELD_BY_OWNER)
		al_raise_new_owner(&key, &result);
	if (!al_is_granted(&result))
		al_raise(&key, &result);
	foreach(cell, ended)
		al_audit("lock_steal", &key, lfirst(cell), reason);
	if (ended == NIL)
		al_audit("lock_steal", &key, NULL, reason);
	al_stat_count(AL_COUNT_STEALS, 1);
	al_stat_count(AL_COUNT_FORCED, list_length(ended));
	table_close(rel, NoLock);
	return al_grant_datum(fcinfo, &key, &request.owner, &result);
}
