/*-------------------------------------------------------------------------
 *
 * replication.c
 *		app_lock_keep_own(), a trigger: a subscriber keeps its own locks.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: locks, tickets and history belong to one server, but a publication FOR ALL
 * TABLES includes their tables.  Rows of the publisher would end locks of the subscriber,
 * and a key on both servers would stop the replication of all tables with a unique
 * violation.  So this trigger, which fires in replication only, makes the workers of
 * logical replication skip these rows.  Our own code writes rows without triggers.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "fmgr.h"
#include "replication/logicalworker.h"

#include "base/errors.h"

/* No check of the version: an error would stop the replication of all tables. */
PG_FUNCTION_INFO_V1(atomic_lock_keep_own);

/* Only workers of logical replication skip rows; a restore as replica writes them. */
Datum
atomic_lock_keep_own(PG_FUNCTION_ARGS)
{
	const TriggerData *trigger = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(al_errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("app_lock_keep_own() must be called as a trigger")));
	if (IsLogicalWorker())
		PG_RETURN_POINTER(NULL);
	PG_RETURN_POINTER(TRIGGER_FIRED_BY_UPDATE(trigger->tg_event) ? trigger->tg_newtuple : trigger->tg_trigtuple);
}
