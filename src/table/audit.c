/*-------------------------------------------------------------------------
 *
 * audit.c
 *		Rows of lock_audit: forced ends of leases.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: a forced end of a lease leaves a row in lock_audit, in the same transaction, and a
 * message in the server log, which stays when the transaction rolls back.  Both have the key, its
 * holder, the role that ended the lease, and the reason.  The former owner appears only as a
 * digest, and only in the row: a call that presents the owner learns from the audit how that
 * owner lost the key.  The row is written below the executor, so that no trigger on lock_audit
 * runs with the privileges of a DBA.
 *
 * Locking rules: rows of lock_audit are only inserted.  It is read with AccessShareLock, which is
 * given back at once.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
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
#include "table/scan.h"

#define VALUE(column) values[Anum_lock_audit_##column - 1]
#define IS_NULL(column) nulls[Anum_lock_audit_##column - 1]

/* SHA-256 of an owner, in hex */
Datum
al_audit_digest(text *owner)
{
	return DirectFunctionCall2(binary_encode,
							   DirectFunctionCall1(sha256_bytea, PointerGetDatum(owner)),
							   CStringGetTextDatum("hex"));
}

static const char *
role_name(Oid role)
{
	const char *name = al_role_name(role);

	return name ? name : psprintf("%u", role);
}

/* A stored name of a role; "?" if it is no text in the encoding of this database */
static char *
stored_role(Name name)
{
	/* An older version stored names as they are. */
	if (!al_is_text(al_cstring(NameStr(*name))))
		return pstrdup("?");
	return al_display(al_cstring(NameStr(*name)));
}

/*
 * The last forced end of an owner's holding of a key, by its token; NULL also if the table cannot
 * be read at once.  Without the index, the whole table is read.
 */
const AlForcedEnd *
al_audit_find(const AlKey *key, const AlOwner *owner)
{
	static const AttrNumber columns[] = {Anum_lock_audit_key, Anum_lock_audit_previous_owner_digest};
	Relation	rel = al_open_audit_now();
	AlForcedEnd *last = NULL;
	AlScan		scan;
	ScanKeyData keys[lengthof(columns)];
	HeapTuple	tuple;

	if (rel == NULL)
		return NULL;
	ScanKeyInit(&keys[0], columns[0], BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(al_string_text(key->name)));
	ScanKeyInit(&keys[1], columns[1], BTEqualStrategyNumber, F_TEXTEQ,
				al_audit_digest(al_string_text(owner->name)));
	al_scan_begin(&scan, rel, al_scan_index(rel, lengthof(columns), columns),
				  lengthof(columns), keys);
	while (HeapTupleIsValid(tuple = al_scan_next(&scan)))
	{
		Datum		values[Natts_lock_audit];
		bool		nulls[Natts_lock_audit];

		heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
		if (last && last->fencing_token > DatumGetInt64(VALUE(fencing_token)))
			continue;
		if (last == NULL)
			last = palloc(sizeof(AlForcedEnd));
		last->at = DatumGetTimestampTz(VALUE(at));
		last->fencing_token = DatumGetInt64(VALUE(fencing_token));
		last->action = TextDatumGetCString(VALUE(action));
		last->role = stored_role(DatumGetName(VALUE(acting_role)));
		last->reason = DatumGetTextPCopy(VALUE(reason));
	}
	al_scan_end(&scan);
	table_close(rel, AccessShareLock);
	return last;
}

/* Record the forced end of a holding; "ended" is NULL if the key was free. */
void
al_audit(const char *action, const AlKey *key, const AlHolding *ended, text *reason)
{
	Relation	rel = al_open_audit(RowExclusiveLock);
	const char *session_role = role_name(GetSessionUserId());
	const char *acting_role = role_name(GetUserId());
	Datum		values[Natts_lock_audit] = {0};
	bool		nulls[Natts_lock_audit] = {0};

	LOCAL_FCINFO(client_addr, 0);

	Assert(reason != NULL);
	Assert(ended == NULL || (ended->holder != NULL && ended->owner != NULL));
	VALUE(at) = TimestampTzGetDatum(GetCurrentTimestamp());
	VALUE(action) = CStringGetTextDatum(action);
	VALUE(key) = PointerGetDatum(al_string_text(key->name));
	if (ended)
	{
		VALUE(previous_holder) = PointerGetDatum(ended->holder);
		VALUE(previous_owner_digest) = al_audit_digest(ended->owner);
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
	VALUE(id) = DirectFunctionCall1(gen_random_uuid, (Datum) 0);

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
