/*-------------------------------------------------------------------------
 *
 * row.c
 *		Reading and forming rows of app_lock.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: table/catalog.c has checked that the columns are those of table/columns.h.
 * A row may have fewer columns than the table, because nulls at its end are left
 * out, or because it is older than a column.  Missing columns are null.
 *
 * Locking: none.  The caller has app_lock open.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "atomic_lock.h"
#include "base/compat.h"
#include "base/str.h"
#include "claim/holding.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/row.h"

/* Read a row.  Pointers of the holding lead into a copy of the row. */
void
al_row_read(Relation rel, HeapTuple tuple, AlHolding *holding)
{
	Datum		values[Natts_app_lock];
	bool		nulls[Natts_app_lock];

#define VALUE(column) values[Anum_app_lock_##column - 1]
#define IS_NULL(column) nulls[Anum_app_lock_##column - 1]

	Assert(RelationGetDescr(rel)->natts == Natts_app_lock);
	holding->tuple = heap_copytuple(tuple);
	holding->tid = tuple->t_self;
	heap_deform_tuple(holding->tuple, RelationGetDescr(rel), values, nulls);

	holding->fencing_token = DatumGetInt64(VALUE(fencing_token));
	holding->acquired_at = DatumGetTimestampTz(VALUE(acquired_at));
	holding->expires_at = DatumGetTimestampTz(VALUE(expires_at));
	holding->ttl = DatumGetInt64(VALUE(ttl_us));
	holding->slot = DatumGetInt32(VALUE(slot));
	holding->role = DatumGetObjectId(VALUE(role));
	holding->sole = AL_SOLE_UNKNOWN;
	holding->key = al_string(DatumGetTextPP(VALUE(key)));
	holding->holder = DatumGetTextPP(VALUE(holder));
	holding->owner = IS_NULL(owner) ? NULL : DatumGetTextPP(VALUE(owner));
	holding->has_owner_hash = !IS_NULL(owner_hash);
	holding->owner_hash = IS_NULL(owner_hash) ? 0 : DatumGetInt64(VALUE(owner_hash));
	holding->released_at = DatumGetBool(VALUE(released)) ? holding->expires_at : 0;
	holding->meta = IS_NULL(meta) ? NULL : (struct varlena *) DatumGetPointer(VALUE(meta));
	holding->lifetime = IS_NULL(pid) ? AL_LEASE : AL_SESSION;
	holding->pid = IS_NULL(pid) ? 0 : DatumGetInt32(VALUE(pid));
	holding->backend_start = IS_NULL(backend_start) ? 0 :
		DatumGetTimestampTz(VALUE(backend_start));

	/* Somebody has updated the row by hand.  No call can present an empty owner. */
	if (holding->owner == NULL && holding->released_at == 0)
		holding->owner = cstring_to_text("");
}

/* The columns before the key, which are at the same place in every row */
typedef struct FirstColumns
{
	int64		fencing_token;
	TimestampTz acquired_at;
	TimestampTz expires_at;
	int64		ttl_us;
	int32		slot;
	Oid			mode;
	Oid			role;
	char		key[FLEXIBLE_ARRAY_MEMBER]; /* a varlena, and then "released" */
} FirstColumns;

/*
 * Read only the key, the slot, the role, the token and the columns that say whether the holding
 * is live: much cheaper than al_row_read().  The key is valid as long as the tuple.
 */
void
al_row_peek(Relation rel, HeapTuple tuple, AlHolding *holding)
{
	TupleDesc	desc = RelationGetDescr(rel);
	const FirstColumns *first = (const FirstColumns *)
		((char *) tuple->t_data + tuple->t_data->t_hoff);
	bool		is_null;
	Datum		value;

	memset(holding, 0, sizeof(AlHolding));
	holding->tid = tuple->t_self;
	holding->fencing_token = first->fencing_token;
	holding->slot = first->slot;
	holding->role = first->role;
	holding->acquired_at = first->acquired_at;
	holding->expires_at = first->expires_at;
	holding->key.data = VARDATA_ANY(first->key);
	holding->key.len = VARSIZE_ANY_EXHDR(first->key);
	if (first->key[VARSIZE_ANY(first->key)])
		holding->released_at = holding->expires_at;
	value = heap_getattr(tuple, Anum_app_lock_pid, desc, &is_null);
	if (is_null)
		return;
	holding->lifetime = AL_SESSION;
	holding->pid = DatumGetInt32(value);
	value = heap_getattr(tuple, Anum_app_lock_backend_start, desc, &is_null);
	holding->backend_start = is_null ? 0 : DatumGetTimestampTz(value);
}

/* Form a tuple of the first columns of app_lock only */
static HeapTuple
form_first_columns(TupleDesc desc, int natts, Datum *values, bool *nulls)
{
	static TupleDesc first_columns[Natts_app_lock];

	Assert(natts > Anum_app_lock_holder - 1 && natts < Natts_app_lock);
	if (first_columns[natts] == NULL)
	{
		MemoryContext old_context = MemoryContextSwitchTo(TopMemoryContext);
		TupleDesc	first = CreateTemplateTupleDesc(natts);

		for (int i = 1; i <= natts; i++)
			TupleDescCopyEntry(first, i, desc, i);
		TupleDescFinalize(first);
		MemoryContextSwitchTo(old_context);
		first_columns[natts] = first;
	}
	return heap_form_tuple(first_columns[natts], values, nulls);
}

/* Form the row of a holding, without the nulls at its end, which takes less space and time */
HeapTuple
al_row_form(Relation rel, const AlHolding *holding)
{
	Datum		values[Natts_app_lock];
	bool		nulls[Natts_app_lock] = {0};
	int			natts = Natts_app_lock;

	Assert(holding->lifetime != AL_TRANSACTION && holding->holder != NULL);
	Assert(holding->owner != NULL || holding->released_at != 0);
	Assert(holding->slot >= AL_SLOT_EXCLUSIVE);
	VALUE(fencing_token) = Int64GetDatum(holding->fencing_token);
	VALUE(acquired_at) = TimestampTzGetDatum(holding->acquired_at);
	VALUE(released) = BoolGetDatum(holding->released_at != 0);
	VALUE(expires_at) = TimestampTzGetDatum(holding->released_at != 0 ?
											holding->released_at : holding->expires_at);
	VALUE(ttl_us) = Int64GetDatum(holding->ttl);
	VALUE(slot) = Int32GetDatum(holding->slot);
	VALUE(role) = ObjectIdGetDatum(holding->role);
	VALUE(key) = PointerGetDatum(al_string_text(holding->key));
	VALUE(mode) = al_mode_value(holding->slot != AL_SLOT_EXCLUSIVE);
	VALUE(holder) = PointerGetDatum(holding->holder);
	VALUE(owner) = PointerGetDatum(holding->owner);
	IS_NULL(owner) = holding->owner == NULL;
	VALUE(owner_hash) = Int64GetDatum(holding->owner_hash);
	IS_NULL(owner_hash) = !holding->has_owner_hash;
	VALUE(meta) = PointerGetDatum(holding->meta);
	IS_NULL(meta) = holding->meta == NULL;
	VALUE(pid) = Int32GetDatum(holding->pid);
	VALUE(backend_start) = TimestampTzGetDatum(holding->backend_start);
	IS_NULL(pid) = IS_NULL(backend_start) = holding->lifetime != AL_SESSION;

	while (nulls[natts - 1])
		natts--;
	if (natts < Natts_app_lock)
		return form_first_columns(RelationGetDescr(rel), natts, values, nulls);
	return heap_form_tuple(RelationGetDescr(rel), values, nulls);
}
