/*-------------------------------------------------------------------------
 *
 * trigger.c
 *		The guard of a table: a write needs the lock that covers the row.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: lock_protect() creates a trigger on the table, which is the only record that
 * the table is protected.
 *
 * 1. Before a row is written, the trigger makes the row's key from its template.
 * 2. It pins that key (lease/pin.c) for the owner in atomic_lock.owner, who must hold the
 *    key in exclusive mode.  The pin keeps the holding to the end of the transaction.  With a
 *    separator, it pins the folders of the key from the top, in any mode, down to the first
 *    key that the owner holds in exclusive mode: that has everything below it.
 * 3. If an UPDATE changes the key, the new key is pinned too.
 *
 * The trigger's name makes it fire after other BEFORE triggers, so it sees the row as they
 * left it.  If another trigger could fire later, every write fails.  An AFTER trigger
 * would fail too late in a statement that takes longer than the lease; see doc/design.md.
 *
 * Locking rules: those of pins.  The writer needs no privileges on atomic_lock.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/pg_trigger.h"
#include "commands/trigger.h"
#include "lib/stringinfo.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "atomic_lock.h"
#include "base/errors.h"
#include "base/key.h"
#include "base/owner.h"
#include "base/partition.h"
#include "base/path.h"
#include "base/settings.h"
#include "base/str.h"
#include "claim/claimed.h"
#include "guard/template.h"
#include "guard/trigger.h"
#include "lease/pin.h"
#include "lease/report.h"
#include "lease/state.h"
#include "shmem/shmem.h"
#include "shmem/stat.h"
#include "table/catalog.h"

/* May both roles see the key?  A foreign key's action runs as the table's owner. */
static bool
may_see_key(const AlTemplate *guard, Relation rel)
{
	return al_template_may_see_key(guard, rel, GetUserId()) &&
		al_template_may_see_key(guard, rel, GetOuterUserId());
}

/*
 * Pin the keys of a path from the top, down to the first one that the owner holds in exclusive
 * mode.  Returns -1; or the index of the key that is missing, with the reason in
 * result->outcome: AL_CHANGED if the owner holds it by another grant than the session presents.
 */
static int
pin_path(const AlPath *path, AlString owner, AlResult *result)
{
	for (int i = 0; i < path->count; i++)
	{
		const AlPin *pin = al_pin(al_path_key(path, i), owner, result);

		if (pin == NULL)
			return i;
		Assert(pin->slot >= AL_SLOT_EXCLUSIVE);
		result->outcome = AL_HELD_BY_OWNER;
		if (pin->slot != AL_SLOT_EXCLUSIVE && i == path->count - 1)
			return i;
		result->outcome = AL_CHANGED;
		if (!al_is_session_token(pin->fencing_token))
			return i;
		if (pin->slot == AL_SLOT_EXCLUSIVE)
			return -1;
	}
	pg_unreachable();
}

/*
 * Pin the lock that covers a row.  If the session's owner does not hold the lock in
 * exclusive mode, raises as al_raise_guard() does; LK005 if the owner holds it by another
 * grant than the session presents; LK010 for a key of another server.
 */
static void
guard_row(const AlTemplate *guard, Relation rel, HeapTuple row)
{
	StringInfoData buffer;
	AlString	name;
	AlPath		path;
	AlKey		key;
	AlResult	result = {.outcome = AL_NOT_FOUND};
	AlString	owner = {0};
	bool		has_owner;
	bool		may_see;
	int			missing;

	initStringInfo(&buffer);
	al_template_key(guard, rel, row, &buffer);
	name = (AlString) {buffer.data, buffer.len};
	al_check_text(name, "lock key", 1, AL_MAX_KEY_BYTES);
	al_template_path(guard, rel, name, &path);
	for (int i = 0; i < path.count; i++)
	{
		if (al_is_elsewhere(al_path_key(&path, i)))
			al_raise_partition(al_path_key(&path, i), may_see_key(guard, rel));
	}

	has_owner = al_owner_of_session(&owner);
	missing = has_owner ? pin_path(&path, owner, &result) : path.count - 1;
	if (missing < 0)
		return;
	(void) al_shmem_attach();
	al_stat_count(AL_COUNT_GUARD_REFUSALS, 1);
	al_key_init(&key, al_path_key(&path, missing));
	may_see = may_see_key(guard, rel);
	if (result.outcome == AL_CHANGED)
		al_raise_other_grant(may_see ? &key : NULL, owner, rel);
	al_raise_guard(may_see ? &key : NULL, has_owner ? &result : NULL, rel,
				   guard->separator.len > 0);
}

/* The trigger of a table with this name, or NULL */
const Trigger *
al_find_trigger(Relation rel, const char *name)
{
	const TriggerDesc *desc = rel->trigdesc;

	for (int i = 0; desc && i < desc->numtriggers; i++)
	{
		if (strcmp(desc->triggers[i].tgname, name) == 0)
			return &desc->triggers[i];
	}
	return NULL;
}

/* Can lock_protect() have given a trigger its arguments: a template, perhaps a separator? */
static bool
has_template(const Trigger *guard)
{
	return guard->tgnargs == 1 || guard->tgnargs == 2;
}

/*
 * Read the template of a guard into the current memory context; false if there is no guard.
 * Raises as al_template_require() does.
 */
bool
al_template_of_guard(Relation rel, const Trigger *guard, AlTemplate *template)
{
	if (guard == NULL || !has_template(guard))
		return false;
	/* Copies: the lookups of columns may have the relation's triggers read anew. */
	al_template_require(rel, pstrdup(guard->tgargs[0]),
						guard->tgnargs == 2 ? pstrdup(guard->tgargs[1]) : NULL, template);
	return true;
}

/* Can two triggers fire in the same session? */
static bool
fire_together(const Trigger *a, const Trigger *b)
{
	return a->tgenabled != TRIGGER_DISABLED && b->tgenabled != TRIGGER_DISABLED &&
		(a->tgenabled == b->tgenabled || a->tgenabled == TRIGGER_FIRES_ALWAYS ||
		 b->tgenabled == TRIGGER_FIRES_ALWAYS);
}

/*
 * Can an UPDATE that a guard has judged move a row to this partition?  BEFORE INSERT
 * triggers of the partition then see the row after the guard.
 */
static bool
takes_moved_rows(Relation rel, const Trigger *guard)
{
	return rel->rd_rel->relispartition &&
		TRIGGER_FOR_UPDATE(guard->tgtype) && !TRIGGER_FOR_INSERT(guard->tgtype);
}

/*
 * A BEFORE trigger that could change a row after the guard has seen it, or NULL.  It fires
 * after the guard, at INSERT or UPDATE, if that is an event of the guard.  PostgreSQL
 * fires the triggers of a relation in the order of their list.
 */
static const Trigger *
find_later_trigger(Relation rel, const Trigger *guard)
{
	const TriggerDesc *desc = rel->trigdesc;
	bool		takes_moved = takes_moved_rows(rel, guard);
	bool		is_later = false;

	for (int i = 0; desc && i < desc->numtriggers; i++)
	{
		const Trigger *other = &desc->triggers[i];
		int16		events = guard->tgtype & other->tgtype &
			(TRIGGER_TYPE_INSERT | TRIGGER_TYPE_UPDATE);

		if (other->tgoid == guard->tgoid)
			is_later = true;
		else if (((is_later && events != 0) || (takes_moved && TRIGGER_FOR_INSERT(other->tgtype))) &&
				 other->tgfoid != guard->tgfoid &&
				 TRIGGER_FOR_ROW(other->tgtype) && TRIGGER_FOR_BEFORE(other->tgtype) &&
				 fire_together(guard, other))
			return other;
	}
	return NULL;
}

static char *
later_trigger_message(Relation rel, const Trigger *later)
{
	return psprintf("trigger \"%s\" of table \"%s\" fires after the guard", later->tgname,
					RelationGetRelationName(rel));
}

/* Raise 55000 if another trigger could change a row after the guard has seen it */
void
al_require_last_trigger(Relation rel, const Trigger *guard)
{
	const Trigger *later = find_later_trigger(rel, guard);

	if (later)
		ereport(ERROR,
				(al_errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg_internal("%s", later_trigger_message(rel, later)),
				 takes_moved_rows(rel, guard) && TRIGGER_FOR_INSERT(later->tgtype) ?
				 errdetail("It could change a row that an UPDATE moves to this partition, which the guard \"%s\" has seen before.",
						   guard->tgname) :
				 errdetail("BEFORE triggers fire in the byte order of their names, and this one could change the row that the guard \"%s\" has seen.",
						   guard->tgname),
				 takes_moved_rows(rel, guard) && TRIGGER_FOR_INSERT(later->tgtype) ?
				 errhint("Call lock_protect with \"insert\" among the events, too.") :
				 errhint("Rename the trigger with ALTER TRIGGER ... RENAME TO, so that its name sorts before that of the guard."),
				 errtable(rel)));
}

/* Raise 55000, because TRUNCATE does not check the locks of the rows */
void
al_refuse_truncate(Relation rel)
{
	ereport(ERROR,
			(al_errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("cannot truncate table \"%s\" because its rows are protected by locks",
					RelationGetRelationName(rel)),
			 errhint("Use DELETE, or set atomic_lock.enforce_guards to off."),
			 errtable(rel)));
	pg_unreachable();
}

PG_FUNCTION_INFO_V1(atomic_lock_guard);

/*
 * lock_guard(template [, separator]): the function of row and TRUNCATE triggers.  The version
 * of the library is checked only while guards are enforced.
 */
Datum
atomic_lock_guard(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	TriggerEvent event;
	Relation	rel;
	HeapTuple	result;
	AlTemplate *guard = fcinfo->flinfo->fn_extra;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_BEFORE(trigger->tg_event) ||
		!has_template(trigger->tg_trigger) ||
		TRIGGER_FIRED_FOR_ROW(trigger->tg_event) == TRIGGER_FIRED_BY_TRUNCATE(trigger->tg_event))
		ereport(ERROR,
				(al_errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("lock_guard() was not called by a trigger that lock_protect() created")));

	event = trigger->tg_event;
	rel = trigger->tg_relation;
	result = TRIGGER_FIRED_BY_UPDATE(event) ? trigger->tg_newtuple : trigger->tg_trigtuple;
	if (!al_enforce_guards)
		return PointerGetDatum(result);
	al_check_version();
	if (TRIGGER_FIRED_BY_TRUNCATE(event))
	{
		/* A detached partition loses its row trigger and keeps this one. */
		if (al_find_trigger(rel, AL_ROW_TRIGGER) == NULL)
			return PointerGetDatum(NULL);
		al_refuse_truncate(rel);
	}

	al_require_last_trigger(rel, trigger->tg_trigger);
	if (guard == NULL || guard->relid != RelationGetRelid(rel))
	{
		MemoryContext old_context = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);

		guard = palloc(sizeof(AlTemplate));
		(void) al_template_of_guard(rel, trigger->tg_trigger, guard);
		MemoryContextSwitchTo(old_context);
		fcinfo->flinfo->fn_extra = guard;
	}
	guard_row(guard, rel, trigger->tg_trigtuple);
	if (TRIGGER_FIRED_BY_UPDATE(event) &&
		!al_template_is_same_key(guard, rel, trigger->tg_trigtuple, trigger->tg_newtuple))
		guard_row(guard, rel, trigger->tg_newtuple);
	return PointerGetDatum(result);
}

/*
 * app_lock_guard_problem(relation, guard): why each write will fail that fires the trigger
 * "guard"; NULL if there is no problem, or the table was dropped or cannot be locked at
 * once because it is being altered
 */
AL_FUNCTION(atomic_lock_guard_problem)
{
	Oid			relid = PG_GETARG_OID(0);
	Oid			function = al_guard_function();
	char	   *template = NULL;
	char	   *separator = NULL;
	AlTemplate	ignored;
	AlTemplateProblem problem = {0};
	Relation	rel;

	if (!ConditionalLockRelationOid(relid, AccessShareLock))
		PG_RETURN_NULL();
	rel = try_relation_open(relid, NoLock);
	if (rel)
	{
		const Trigger *guard = al_find_trigger(rel, NameStr(*PG_GETARG_NAME(1)));
		bool		is_guard = guard && guard->tgfoid == function && has_template(guard);
		const Trigger *later = is_guard ? find_later_trigger(rel, guard) : NULL;

		if (is_guard)
			template = pstrdup(guard->tgargs[0]);
		if (is_guard && guard->tgnargs == 2)
			separator = pstrdup(guard->tgargs[1]);
		if (later)
			problem.message = later_trigger_message(rel, later);
		relation_close(rel, NoLock);
	}
	if (template)
		(void) al_template_read(relid, template, separator, &ignored, &problem);
	UnlockRelationOid(relid, AccessShareLock);
	if (problem.message == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(problem.message));
}
