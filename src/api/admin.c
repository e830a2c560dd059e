/*-------------------------------------------------------------------------
 *
 * lock_admin.c
 *		Functions for DBAs: force, steal, and the audit.
 *
 * Model: a forced end of a lease leaves a row in lock_audit, in the same
 * transaction, and a line in the server log, which stays when the transaction
 * rolls back.  Both say which key, who had it, who ended it and why; the
 * former owner appears in the audit as a digest only, and nowhere else.  The
 * row is written as those of app_lock are, below the executor, so that a
 * trigger on lock_audit cannot run with the privileges of a DBA.
 *
 * Locking rules: those of the verbs in lock_lease.c; lock_audit is only ever
 * inserted into.
 *
 * IDENTIFICATION
 *		src/api/admin.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "base/compat.h"
#include "lock_lease.h"
#include "lock_stat.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(atomic_lock_force_release);
PG_FUNCTION_INFO_V1(atomic_lock_steal);

/* SHA-256 of an owner, in hex */
static Datum
owner_digest(text *owner)
{
	return DirectFunctionCall2(binary_encode,
							   DirectFunctionCall1(sha256_bytea, PointerGetDatum(owner)),
							   CStringGetTextDatum("hex"));
}

/* Name of a role, or its number where it has been dropped meanwhile */
static const char *
role_name(Oid role)
{
	const char *name = GetUserNameFromId(role, true);

	return name ? name : psprintf("%u", role);
}

static Datum
role_datum(const char *name)
{
	return DirectFunctionCall1(namein, CStringGetDatum(name));
}

static char *
display_role(const char *name)
{
	return al_display(al_cstring(name));
}

/* Record that somebody ended a holding, or where that is NULL none, by force */
static void
audit(const char *action, const AlKey *key, const AlHolding *ended, text *reason)
{
	Relation	rel = al_open_audit(RowExclusiveLock);
	bool		was_held = ended != NULL;
	const char *session_role = role_name(GetSessionUserId());
	const char *acting_role = role_name(GetUserId());
	Datum		values[Natts_lock_audit] = {0};
	bool		nulls[Natts_lock_audit] = {0};

	LOCAL_FCINFO(client_addr, 0);

#define VALUE(column) values[Anum_lock_audit_##column - 1]
#define IS_NULL(column) nulls[Anum_lock_audit_##column - 1]

	VALUE(at) = TimestampTzGetDatum(GetCurrentTimestamp());
	VALUE(action) = CStringGetTextDatum(action);
	VALUE(key) = PointerGetDatum(al_string_text(key->name));
	if (was_held)
	{
		VALUE(previous_holder) = PointerGetDatum(ended->holder);
		VALUE(previous_owner_digest) = owner_digest(ended->owner);
		IS_NULL(previous_owner_digest) = VARSIZE_ANY_EXHDR(ended->owner) == 0;
		VALUE(fencing_token) = Int64GetDatum(ended->fencing_token);
	}
	else
		IS_NULL(previous_holder) = IS_NULL(previous_owner_digest) =
			IS_NULL(fencing_token) = true;
	VALUE(session_role) = role_datum(session_role);
	VALUE(acting_role) = role_datum(acting_role);
	InitFunctionCallInfoData(*client_addr, NULL, 0, InvalidOid, NULL, NULL);
	VALUE(client_addr) = inet_client_addr(client_addr);
	IS_NULL(client_addr) = client_addr->isnull;
	VALUE(reason) = PointerGetDatum(reason);

	CatalogTupleInsert(rel, heap_form_tuple(RelationGetDescr(rel), values, nulls));
	CommandCounterIncrement();
	table_close(rel, NoLock);

	ereport(LOG,
			(al_hide_owners(),
			 errmsg("%s of lock \"%s\" by role \"%s\": %s", action, al_display(key->name),
					display_role(acting_role), al_display(al_string(reason))),
			 errdetail("Held by %s, fencing token %lld; session of role \"%s\" from %s.",
					   was_held ? al_display(al_string(ended->holder)) : "nobody",
					   was_held ? (long long) ended->fencing_token : 0LL,
					   display_role(session_role),
					   client_addr->isnull ? "a local socket" :
					   DatumGetCString(DirectFunctionCall1(inet_out, VALUE(client_addr))))));
}

/* force_release(key, reason), also lock_force_release: true, or LK002 */
Datum
atomic_lock_force_release(PG_FUNCTION_ARGS)
{
	Relation	rel = al_open_for_writing("force_release()");
	AlKey		key;
	text	   *reason;
	List	   *ended;
	ListCell   *cell;
	AlClaim		claim;

	al_key_arg(fcinfo, 0, &key);
	reason = al_reason_arg(fcinfo, 1);
	ended = al_lease_end(rel, &key, &claim);
	if (ended == NIL)
	{
		al_claim_drop(&claim);
		al_raise_not_found(&key);
	}
	foreach(cell, ended)
		audit("force_release", &key, lfirst(cell), reason);
	al_stat_count(AL_COUNT_FORCED, list_length(ended));
	table_close(rel, NoLock);
	PG_RETURN_BOOL(true);
}

/* lock_steal(key, new_owner, reason, ttl, holder): the new lease */
Datum
atomic_lock_steal(PG_FUNCTION_ARGS)
{
	Relation	rel = al_open_for_writing("lock_steal()");
	AlAcquire	request = {0};
	AlKey		key;
	text	   *reason;
	List	   *ended;
	ListCell   *cell;
	AlResult	result;

	al_key_arg(fcinfo, 0, &key);
	al_owner_arg(fcinfo, 1, &request.owner);
	reason = al_reason_arg(fcinfo, 2);
	request.ttl = al_new_ttl_arg(fcinfo, 3);
	request.holder = al_holder_arg(fcinfo, 4);

	ended = al_lease_steal(rel, &key, &request, &result);
	foreach(cell, ended)
		audit("lock_steal", &key, lfirst(cell), reason);
	if (ended == NIL)
		audit("lock_steal", &key, NULL, reason);
	al_stat_count(AL_COUNT_STEALS, 1);
	al_stat_count(AL_COUNT_FORCED, list_length(ended));
	table_close(rel, NoLock);
	return al_grant_datum(fcinfo, &key, &request.owner, &result);
}
