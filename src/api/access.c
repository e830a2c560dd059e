/*-------------------------------------------------------------------------
 *
 * access.c
 *		Functions that scripts of the extension call, and that grant access.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: a script begins with app_lock_begin_script(), and ends with
 * app_lock_repeat_access(), which grants new objects to the roles that have their level.
 * A library runs the scripts of all versions up to its own, so these functions do not
 * check the version as all others do (table/catalog.h).  Nor does
 * app_lock_prevent_writing(), so access can be granted and revoked between a restart and
 * the update.
 *
 * A role has a level if it may execute one function, which is named here for each level.
 * For admin that is lock_grant_access(): with it, a role could grant itself the rest.  The
 * other functions of supervisor belong to admin too, so app_lock_supervisor() only marks the
 * level.  The owner of the extension has all levels.  An owner that is not a superuser needs
 * grants, because the script of a trusted extension runs, and creates objects, as a superuser.
 *
 * Locking rules: those of app_lock_change_access(); app_lock is locked first.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/extension.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"

#include "table/catalog.h"

PG_FUNCTION_INFO_V1(atomic_lock_begin_script);
PG_FUNCTION_INFO_V1(atomic_lock_repeat_access);
PG_FUNCTION_INFO_V1(atomic_lock_prevent_writing);

/* app_lock_begin_script() */
Datum
atomic_lock_begin_script(PG_FUNCTION_ARGS)
{
	al_begin_script();
	PG_RETURN_VOID();
}

/*
 * app_lock_repeat_access().  PostgreSQL takes grants by a script for a part of the extension:
 * pg_dump leaves them out, and from version 17 on they keep the role from being dropped.  So
 * these grants are made as if no script were running.
 */
Datum
atomic_lock_repeat_access(PG_FUNCTION_ARGS)
{
	bool		in_script = creating_extension;
	const char *schema;
	int			guc_level = NewGUCNestLevel();

	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	creating_extension = false;
	PG_TRY();
	{
		SPI_connect();
		/* The lock keeps this name from passing to another schema until the end. */
		if (SPI_execute("SELECT nspname FROM pg_namespace JOIN pg_extension e"
						" ON e.extnamespace = pg_namespace.oid WHERE extname = 'atomic_lock'"
						" FOR NO KEY UPDATE OF pg_namespace", false, 0) < 0 || SPI_processed != 1)
			elog(ERROR, "could not find the schema of the extension");
		schema = quote_identifier(SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1));
		if (SPI_execute(psprintf("SELECT %s.app_lock_change_access(grantee::regrole, level, true)"
								 " FROM (VALUES ('user', 'lock_release_all(text)'),"
								 " ('monitor', 'lock_status()'), ('supervisor', 'app_lock_supervisor()'),"
								 " ('admin', 'lock_grant_access(regrole, text)')) l (level, function)"
								 " JOIN pg_proc ON pg_proc.oid = to_regprocedure(%s || '.' || function),"
								 " aclexplode(proacl) WHERE grantee NOT IN (0, proowner)"
								 " UNION ALL"
								 " SELECT %s.app_lock_change_access(extowner::regrole, level, true)"
								 " FROM pg_extension JOIN pg_roles r ON r.oid = extowner,"
								 " unnest('{user,monitor,supervisor,admin}'::text[]) level"
								 " WHERE extname = 'atomic_lock' AND NOT rolsuper",
								 schema, quote_literal_cstr(schema), schema), false, 0) < 0)
			elog(ERROR, "could not repeat access");
		SPI_finish();
	}
	PG_FINALLY();
	{
		creating_extension = in_script;
	}
	PG_END_TRY();
	AtEOXact_GUC(true, guc_level);
	PG_RETURN_VOID();
}

/* app_lock_prevent_writing(), for functions in SQL */
Datum
atomic_lock_prevent_writing(PG_FUNCTION_ARGS)
{
	al_prevent_writing(PG_ARGISNULL(0) ? "functions of atomic_lock" :
					   text_to_cstring(PG_GETARG_TEXT_PP(0)));
	PG_RETURN_VOID();
}
