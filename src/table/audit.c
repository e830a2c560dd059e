/*-------------------------------------------------------------------------
 *
 * audit.c
 *		Rows of lock_audit: who ended a lease by force, and why.
 *
 * Model: a forced end of a lease leaves a row in lock_audit, in the same
 * transaction, and a message in the server log, which stays when the transaction
 * rolls back.  Both tell the key, who had it, who ended it and why.  The former
 * owner appears only as a digest, and only in the row.  The row is written below the
 * executor, so that a trigger on lock_audit cannot run with the privileges of a DBA.
 *
 * Locking rules: lock_audit is only inserted into.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/errors.h"
#include "base/str.h"
#include "claim/holding.h"
#include "table/audit.h"
#include "table/catalog.h"
#include "table/columns.h"

/* SHA-256 of an owner, in hex */
static Datum
owner_digest(text *owner)
{
	return DirectFunctionCall2(binary_encode,
							   DirectFunctionCall1(sha256_bytea, PointerGetDatum(owner)),
							   CStringGetTextDatum("hex"));
}

/* The name of a role, or its OID where it has been dropped */
static const char *
role_name(Oid role)
{
	const char *name = GetUserNameFromId(role, true);

	return name ? name : psprintf("%u", role);
}

/* Record the forced end of a holding; "ended" is NULL where the key was free. */
void
al_audit(const char *action, const AlKey *key, const AlHolding *ended, text *reason)
{
	Relation	rel = al_open_audit(RowExclusiveLock);
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
	if (ended)
	{
		VALUE(previous_holder) = PointerGetDatum(ended->holder);
		VALUE(previous_owner_digest) = owner_digest(ended->owner);
		IS_NULL(previous_owner_digest) = VARSIZE_ANY_EXHDR(ended->owner) == 0;
		VALUE(fencing_token) = Int64GetDatum(ended->fencing_token);
	}
	else
		IS_NULL(previous_holder) = IS_NULL(previous_owner_digest) =
			IS_NULL(fencing_token) = true;
	VALUE(session_role) = DirectFunctionCall1(namein, CStringGetDatum(session_role));
	VALUE(acting_role) = DirectFunctionCall1(namein, CStringGetDatum(acting_role));
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
					al_display(al_cstring(acting_role)), al_display(al_string(reason))),
			 errdetail("The lock was held by %s, fencing token %lld.  The session was started by role \"%s\" from %s.",
					   ended ? al_display(al_string(ended->holder)) : "nobody",
					   ended ? (long long) ended->fencing_token : 0LL,
					   al_display(al_cstring(session_role)),
					   client_addr->isnull ? "a Unix-domain socket" :
					   DatumGetCString(DirectFunctionCall1(inet_out, VALUE(client_addr))))));
}
