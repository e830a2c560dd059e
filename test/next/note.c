/*-------------------------------------------------------------------------
 *
 * note.c
 *		lock_note(), of the version 1.1 that only tests have.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "fmgr.h"
#include "utils/rel.h"

#include "base/key.h"
#include "base/str.h"
#include "claim/holding.h"
#include "table/app_lock.h"
#include "table/catalog.h"
#include "table/columns.h"

/* lock_note(key) */
AL_FUNCTION(atomic_lock_note)
{
	Relation	rel = al_open_app_lock(AccessShareLock);
	AlHolding	holding;
	AlKey		key;
	Datum		note = 0;
	bool		is_null = true;

	al_key_init(&key, al_string(PG_GETARG_TEXT_PP(0)));
	if (al_table_find_slot(rel, &key, AL_SLOT_EXCLUSIVE, &holding))
		note = heap_getattr(holding.tuple, Anum_app_lock_note, RelationGetDescr(rel), &is_null);
	table_close(rel, AccessShareLock);
	if (is_null)
		PG_RETURN_NULL();
	PG_RETURN_DATUM(note);
}
