/*-------------------------------------------------------------------------
 *
 * history.c
 *		Rows of lock_history: each grant of a key, and its end.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: if the policy of a key asks for history, the transaction that makes a grant writes a row
 * for it, and the transaction that ends the grant adds when and why.  If a lease just expires,
 * the grant or sweep that takes its row adds the end, and until then app_lock has the expiry.  An
 * extension writes nothing.  For a holding with the lifetime of a transaction, the whole row is
 * written when it ends.  The owner appears only as a digest.  Rows are written below the
 * executor.
 *
 * Locking rules: lock_history is opened with RowExclusiveLock, which is kept.  A lock on the
 * table that somebody takes by hand delays the keys whose policy asks for history.  A transaction
 * changes the row of a grant under its claim for the grant, so no transaction waits for a row.
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
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/clock.h"
#include "base/compat.h"
#include "base/errors.h"
#include "base/key.h"
#include "base/policy.h"
#include "base/settings.h"
#include "base/str.h"
#include "claim/holding.h"
#include "claim/tx_holdings.h"
#include "table/audit.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/history.h"
#include "table/scan.h"
#include "table/sharers.h"

#define VALUE(column) values[Anum_lock_history_##column - 1]
#define IS_NULL(column) nulls[Anum_lock_history_##column - 1]

static bool
is_wanted(const AlKey *key)
{
	return al_policy_any() && al_policy_value(key->name, AL_HISTORY) > 0;
}

/* The cause of an end: a verb sees a dead session's holding only as expired */
AlEndedBy
al_history_cause(const AlHolding *holding, AlEndedBy ended_by)
{
	if (ended_by == AL_ENDED_EXPIRED && holding->lifetime == AL_SESSION &&
		al_ended_at(holding) < holding->expires_at)
		return AL_ENDED_SESSION;
	return ended_by;
}

const char *
al_history_word(const AlHolding *holding, AlEndedBy ended_by)
{
	static const char *const words[] = {
		"released", "expired", "forced", "stolen", "transferred", "converted", "session", "transaction"
	};

	return words[al_history_cause(holding, ended_by)];
}

/* Write the row of a grant; "ended_by" is NULL if the grant has not ended. */
static void
insert_grant(const AlKey *key, const AlHolding *holding, TimestampTz acquired_at,
			 TimestampTz ended_at, const char *ended_by)
{
	Relation	rel = al_open_history(RowExclusiveLock);
	char	   *role = al_role_name(holding->role);
	Datum		values[Natts_lock_history] = {0};
	bool		nulls[Natts_lock_history] = {0};

	LOCAL_FCINFO(client_addr, 0);

	Assert(holding->owner != NULL && holding->holder != NULL);
	VALUE(key) = PointerGetDatum(al_string_text(key->name));
	VALUE(mode) = CStringGetTextDatum(al_is_shared(holding) ? "shared" : "exclusive");
	VALUE(fencing_token) = Int64GetDatum(holding->fencing_token);
	VALUE(owner_digest) = al_audit_digest(holding->owner);
	VALUE(holder) = PointerGetDatum(holding->holder);
	VALUE(role) = DirectFunctionCall1(namein, CStringGetDatum(role ? role : psprintf("%u", holding->role)));
	InitFunctionCallInfoData(*client_addr, NULL, 0, InvalidOid, NULL, NULL);
	VALUE(client_addr) = inet_client_addr(client_addr);
	IS_NULL(client_addr) = client_addr->isnull;
	VALUE(application) = CStringGetTextDatum(application_name ? application_name : "");
	VALUE(acquired_at) = TimestampTzGetDatum(acquired_at);
	VALUE(ended_at) = TimestampTzGetDatum(ended_at);
	IS_NULL(ended_at) = IS_NULL(ended_by) = ended_by == NULL;
	if (ended_by)
		VALUE(ended_by) = CStringGetTextDatum(ended_by);
	CatalogTupleInsert(rel, heap_form_tuple(RelationGetDescr(rel), values, nulls));
	CommandCounterIncrement();
	table_close(rel, NoLock);
}

/* Write the beginning of a holding, which was granted at "at". */
void
al_history_begin(const AlKey *key, const AlHolding *holding, TimestampTz at)
{
	if (is_wanted(key))
		insert_grant(key, holding, at, 0, NULL);
}

/* Begin to scan the table for the row of a grant; there is at most one */
static void
scan_for_grant(AlScan *scan, Relation rel, const AlKey *key, int64 token)
{
	static const AttrNumber columns[] = {Anum_lock_history_key, Anum_lock_history_fencing_token};
	ScanKeyData keys[lengthof(columns)];

	ScanKeyInit(&keys[0], columns[0], BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(al_string_text(key->name)));
	ScanKeyInit(&keys[1], columns[1], BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(token));
	al_scan_begin(scan, rel, al_scan_index(rel, lengthof(columns), columns),
				  lengthof(columns), keys);
}

/* The word for how a grant of an owner ended, and when; NULL: not known */
char *
al_history_find_end(const AlKey *key, AlString owner, int64 token, TimestampTz *ended_at)
{
	Relation	rel = al_open_history_now();
	char	   *ended_by = NULL;
	AlScan		scan;
	HeapTuple	tuple;

	if (rel == NULL)
		return NULL;
	scan_for_grant(&scan, rel, key, token);
	tuple = al_scan_next(&scan);
	if (HeapTupleIsValid(tuple))
	{
		char	   *digest = TextDatumGetCString(al_audit_digest(al_string_text(owner)));
		Datum		values[Natts_lock_history];
		bool		nulls[Natts_lock_history];

		heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
		if (!IS_NULL(ended_at) && !IS_NULL(ended_by) && strcmp(TextDatumGetCString(VALUE(owner_digest)), digest) == 0)
		{
			*ended_at = DatumGetTimestampTz(VALUE(ended_at));
			ended_by = TextDatumGetCString(VALUE(ended_by));
		}
	}
	al_scan_end(&scan);
	table_close(rel, AccessShareLock);
	return ended_by;
}

/* Write the end of a holding, passed as it was before, if its grant has a row. */
void
al_history_end(const AlKey *key, const AlHolding *holding, TimestampTz at, AlEndedBy ended_by)
{
	Relation	rel;
	AlScan		scan;
	HeapTuple	tuple;

	if (!is_wanted(key))
		return;
	if (holding->lifetime == AL_TRANSACTION)
	{
		insert_grant(key, holding, holding->granted_at, at, al_history_word(holding, ended_by));
		return;
	}
	rel = al_open_history(RowExclusiveLock);
	scan_for_grant(&scan, rel, key, holding->fencing_token);
	tuple = al_scan_next(&scan);
	if (HeapTupleIsValid(tuple) && heap_attisnull(tuple, Anum_lock_history_ended_at, NULL))
	{
		Datum		values[Natts_lock_history] = {0};
		bool		nulls[Natts_lock_history] = {0};
		bool		replaces[Natts_lock_history] = {0};

		/* The end of a dead session may be known only as the start of that session. */
		VALUE(ended_at) = TimestampTzGetDatum(Max(at, holding->acquired_at));
		VALUE(ended_by) = CStringGetTextDatum(al_history_word(holding, ended_by));
		replaces[Anum_lock_history_ended_at - 1] = replaces[Anum_lock_history_ended_by - 1] = true;
		tuple = heap_modify_tuple(tuple, RelationGetDescr(rel), values, nulls, replaces);
		CatalogTupleUpdate(rel, &tuple->t_self, tuple);
		CommandCounterIncrement();
	}
	al_scan_end(&scan);
	table_close(rel, NoLock);
}

/* The rows of the last key that is_orphan() has looked at */
typedef struct Looked
{
	MemoryContext context;
	AlString	name;
	AlRows		rows;
} Looked;

/* Has a grant ended without a note, since its policy asked for no history then? */
static bool
is_orphan(Relation app_lock, HeapTuple tuple, TupleDesc desc, Looked *looked)
{
	Datum		values[Natts_lock_history];
	bool		nulls[Natts_lock_history];
	AlString	name;

	heap_deform_tuple(tuple, desc, values, nulls);
	name = al_string(DatumGetTextPP(VALUE(key)));
	if (looked->name.data == NULL || !al_string_equal(name, looked->name))
	{
		MemoryContext old_context;
		AlKey		key;

		MemoryContextReset(looked->context);
		old_context = MemoryContextSwitchTo(looked->context);
		looked->name = al_string(al_string_text(name));
		al_key_init(&key, looked->name);
		al_sharers_look(app_lock, &key, AL_SLOT_EXCLUSIVE, true, NULL, &looked->rows);
		MemoryContextSwitchTo(old_context);
	}
	return al_sharers_find_token(&looked->rows, DatumGetInt64(VALUE(fencing_token))) == NULL;
}

/*
 * Delete at most "max_rows" rows of grants that ended longer than history_retention ago, and of
 * orphans that began as long ago, the oldest first; returns how many.  Skips rows that others are
 * changing.  *from: the acquired_at to begin with, set for the next call.
 */
int64
al_history_trim(Relation app_lock, int64 max_rows, TimestampTz *from)
{
	static const AttrNumber column = Anum_lock_history_acquired_at;
	Relation	rel = al_open_history(RowExclusiveLock);
	TupleDesc	desc = RelationGetDescr(rel);
	TimestampTz before = al_add_duration(GetCurrentTimestamp(),
										 -AL_MS_TO_US(al_history_retention_ms));
	Looked		looked = {.context = AllocSetContextCreate(CurrentMemoryContext, "rows of a key",
														   ALLOCSET_SMALL_SIZES)};
	AlScan		scan;
	ScanKeyData keys[2];
	HeapTuple	tuple;
	int64		trimmed = 0;

	ScanKeyInit(&keys[0], column, BTGreaterEqualStrategyNumber, F_TIMESTAMPTZ_GE,
				TimestampTzGetDatum(*from));
	ScanKeyInit(&keys[1], column, BTLessStrategyNumber, F_TIMESTAMPTZ_LT,
				TimestampTzGetDatum(before));
	al_scan_begin(&scan, rel, al_scan_index(rel, 1, &column), lengthof(keys), keys);
	while (trimmed < max_rows && HeapTupleIsValid(tuple = al_scan_next(&scan)))
	{
		bool		has_no_end;
		bool		is_null;
		Datum		ended_at = heap_getattr(tuple, Anum_lock_history_ended_at, desc, &has_no_end);
		ItemPointerData tid = tuple->t_self;

		*from = DatumGetTimestampTz(heap_getattr(tuple, column, desc, &is_null));
		if ((has_no_end ? is_orphan(app_lock, tuple, desc, &looked) :
			 DatumGetTimestampTz(ended_at) < before) &&
			al_heap_try_delete(rel, &tid))
			trimmed++;
	}
	al_scan_end(&scan);
	MemoryContextDelete(looked.context);
	if (trimmed > 0)
	{
		CommandCounterIncrement();
		al_trace(DEBUG1, "deleted %lld old rows of lock_history", (long long) trimmed);
	}
	table_close(rel, NoLock);
	return trimmed;
}
