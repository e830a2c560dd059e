/*-------------------------------------------------------------------------
 *
 * cron.c
 *		Have pg_cron sweep.
 *
 * Model: pg_cron lives in one database of the server, cron.database_name.  If that is
 * not our database, a short-lived worker connects to it as the current role, does
 * there what we would do here, and is waited for.  Its transaction commits whatever
 * becomes of ours.
 *
 * Everything runs with the rights of the caller.  Anybody may have made a schema named
 * cron, so its objects are used only where they belong to the extension pg_cron.
 *
 * Locking: none.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_type_d.h"
#include "commands/dbcommands.h"
#include "common/string.h"
#include "executor/spi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "base/errors.h"
#include "base/str.h"
#include "sweep/cron.h"
#include "table/catalog.h"

PGDLLEXPORT void atomic_lock_scheduler_main(Datum arg);

/* The request and its answer; for the worker, in a dynamic segment */
typedef struct Request
{
	bool		is_schedule;	/* false: unschedule */
	int			encoding;		/* of all text here */
	char		database[NAMEDATALEN];	/* which is to be swept */
	char		job[NAMEDATALEN];	/* pg_cron cuts longer names */
	char		schedule[256];
	char		command[4 * NAMEDATALEN + 128];

	bool		is_done;
	int64		answer;			/* id of the job, or number of jobs ended */
	int			sqlstate;
	char		message[512];
	char		hint[1024];
} Request;

/* The worker's bgw_extra */
typedef struct Errand
{
	Oid			role;
	dsm_handle	handle;
} Errand;

/* What a statement with text parameters returns; null where that is no row */
static Datum
query(const char *statement, int nargs, const char *const *args, bool *is_null)
{
	Oid			types[4];
	Datum		values[4] = {0};
	char		nulls[4] = {0};

	Assert(nargs <= 4);
	for (int i = 0; i < nargs; i++)
	{
		types[i] = TEXTOID;
		values[i] = args[i] ? CStringGetTextDatum(args[i]) : 0;
		nulls[i] = args[i] ? ' ' : 'n';
	}
	if (SPI_execute_with_args(statement, nargs, types, values, nulls, false, 1) < 0)
		elog(ERROR, "could not run \"%s\"", statement);
	*is_null = true;
	return SPI_processed == 0 ? 0 :
		SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, is_null);
}

/* The bigint that a statement with text parameters returns; -1: no row */
static int64
run(const char *statement, int nargs, const char *const *args)
{
	bool		is_null;
	Datum		answer = query(statement, nargs, args, &is_null);

	return is_null ? -1 : DatumGetInt64(answer);
}

/*
 * What the current role lacks to change schedules: GRANT statements, or an empty
 * string; NULL where pg_cron is not installed here, with a function cron.schedule() of
 * three texts.  Functions are looked up in the catalog, since their names could not
 * be without the right to look into the schema.
 */
static char *
missing_grants(const char *scheduling_function)
{
	bool		is_null;
	Datum		answer = query("SELECT CASE WHEN bool_or(proname = 'schedule' AND proargtypes = '25 25 25') THEN"
							   " concat_ws('; ', CASE WHEN NOT has_schema_privilege(pronamespace, 'USAGE')"
							   " THEN format('GRANT USAGE ON SCHEMA cron TO %I', CURRENT_USER) END,"
							   " string_agg(format('GRANT EXECUTE ON FUNCTION %s TO %I', p.oid::regprocedure, CURRENT_USER),"
							   " '; ' ORDER BY proname) FILTER (WHERE NOT has_function_privilege(p.oid, 'EXECUTE')"
							   " AND (proname = $1 OR proname = 'unschedule' AND proargtypes[0] = 'int8'::regtype)),"
							   " (SELECT format('GRANT SELECT ON TABLE cron.job TO %I', CURRENT_USER) FROM pg_class c"
							   " WHERE relname = 'job' AND relnamespace = pronamespace"
							   " AND NOT has_table_privilege(c.oid, 'SELECT'))) END"
							   " FROM pg_extension e"
							   " JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass"
							   " AND d.refobjid = e.oid AND d.deptype = 'e' AND d.classid = 'pg_proc'::regclass"
							   " JOIN pg_proc p ON p.oid = d.objid JOIN pg_namespace n ON n.oid = pronamespace"
							   " WHERE extname = 'pg_cron' AND nspname = 'cron' GROUP BY pronamespace",
							   1, &scheduling_function, &is_null);

	return is_null ? NULL : TextDatumGetCString(answer);
}

/* Text of the request in this database's encoding; raises where it has none there */
static char *
text_of(const Request *request, const char *string)
{
	return pg_any_to_server(string, strlen(string), request->encoding);
}

/* Carry out a request in this database; raises as pg_cron does, 55000 without it */
static void
change_schedule(Request *request)
{
	const char *args[] = {
		text_of(request, request->job),
		request->is_schedule ? text_of(request, request->schedule) : NULL,
		text_of(request, request->command),
		request->database
	};
	const char *leftovers[] = {args[0], args[1], args[3]};
	int			guc_level = NewGUCNestLevel();
	bool		is_here = strcmp(request->database, get_database_name(MyDatabaseId)) == 0;
	char	   *missing;

	/* The name of a database is bytes, which must reach pg_cron unchanged. */
	if (request->encoding != GetDatabaseEncoding() && !pg_is_ascii(request->database))
		ereport(ERROR,
				(al_errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("the name of this database cannot be represented in database \"%s\"",
						get_database_name(MyDatabaseId)),
				 errdetail("pg_cron keeps its jobs in that database, which has another encoding, and the name is not ASCII.")));

	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	SPI_connect();
	missing = missing_grants(!request->is_schedule ? NULL :
							 is_here ? "schedule" : "schedule_in_database");
	if (missing == NULL)
		ereport(ERROR,
				(al_errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("extension \"pg_cron\" is not installed in database \"%s\"",
						get_database_name(MyDatabaseId)),
				 errhint("Run CREATE EXTENSION pg_cron there, or add atomic_lock to shared_preload_libraries, so that the server sweeps by itself.")));
	if (missing[0] != '\0')
		ereport(ERROR,
				(al_errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for pg_cron in database \"%s\"",
						get_database_name(MyDatabaseId)),
				 errhint("Run there: %s;", missing)));
	/* Scheduled again, a job would stay inactive, or keep an old name of the database. */
	request->answer = run("SELECT pg_catalog.count(cron.unschedule(jobid)) FROM cron.job"
						  " WHERE jobname OPERATOR(pg_catalog.=) $1"
						  " AND username OPERATOR(pg_catalog.=) CURRENT_USER::pg_catalog.text"
						  " AND (NOT active OR database OPERATOR(pg_catalog.<>) $3"
						  " OR $2::pg_catalog.text IS NULL)", 3, leftovers);
	if (request->is_schedule && is_here)
		request->answer = run("SELECT cron.schedule($1, $2, $3)", 3, args);
	else if (request->is_schedule)
		request->answer = run("SELECT cron.schedule_in_database($1, $2, $3, $4, NULL, true)", 4, args);
	SPI_finish();
	AtEOXact_GUC(true, guc_level);
	request->is_done = true;
}

/* Copy as many whole characters as fit */
static void
copy_clipped(char *to, const char *from, int size)
{
	int			length = al_clip_length(al_cstring(from), size - 1);

	memcpy(to, from, length);
	to[length] = '\0';
}

/* The worker: carry out the request in the database whose OID is the argument */
void
atomic_lock_scheduler_main(Datum arg)
{
	Errand		errand;
	dsm_segment *segment;
	Request    *request;

	memcpy(&errand, MyBgworkerEntry->bgw_extra, sizeof(errand));
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	segment = dsm_attach(errand.handle);
	if (segment == NULL)
		return;					/* the caller has given up */
	request = dsm_segment_address(segment);
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(arg), errand.role, 0);
	/* Override what the role may have set for its sessions */
	SetConfigOption("role", "none", PGC_SUSET, PGC_S_OVERRIDE);
	pgstat_report_activity(STATE_RUNNING, "scheduling sweeps of expired locks");

	PG_TRY();
	{
		Request		copy = *request;

		SetCurrentStatementStartTimestamp();
		StartTransactionCommand();
		XactIsoLevel = XACT_READ_COMMITTED;
		XactReadOnly = XactDeferrable = false;
		PushActiveSnapshot(GetTransactionSnapshot());
		change_schedule(&copy);
		PopActiveSnapshot();
		CommitTransactionCommand();
		*request = copy;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(TopMemoryContext);
		error = CopyErrorData();
		FlushErrorState();
		AbortCurrentTransaction();
		request->sqlstate = error->sqlerrcode;
		request->encoding = GetDatabaseEncoding();
		copy_clipped(request->message, error->message, sizeof(request->message));
		copy_clipped(request->hint, error->hint ? error->hint : "", sizeof(request->hint));
	}
	PG_END_TRY();
}

/* The owner of a schema or database */
static Oid
owner_of(Oid catalog, Oid oid)
{
	bool		is_schema = catalog == NamespaceRelationId;
	HeapTuple	tuple = SearchSysCache1(is_schema ? NAMESPACEOID : DATABASEOID,
										ObjectIdGetDatum(oid));
	Oid			owner;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for %s %u", is_schema ? "schema" : "database", oid);
	owner = is_schema ? ((Form_pg_namespace) GETSTRUCT(tuple))->nspowner :
		((Form_pg_database) GETSTRUCT(tuple))->datdba;
	ReleaseSysCache(tuple);
	return owner;
}

/* An error or the end of the session has ended the wait for the worker */
static void
give_up(int code, Datum handle)
{
	TerminateBackgroundWorker((BackgroundWorkerHandle *) DatumGetPointer(handle));
}

/* Let a worker carry out a request in another database; raises what the worker did */
static void
change_schedule_in(Oid database, Request *request)
{
	dsm_segment *segment = dsm_create(sizeof(Request), 0);
	Errand		errand = {GetUserId(), dsm_segment_handle(segment)};
	BackgroundWorker worker = {0};
	BackgroundWorkerHandle *handle;

	if (!DatumGetBool(DirectFunctionCall2(has_database_privilege_id, ObjectIdGetDatum(database),
										  CStringGetTextDatum("CONNECT"))))
		ereport(ERROR,
				(al_errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for database \"%s\"", get_database_name(database)),
				 errdetail("pg_cron keeps its jobs in that database."),
				 errhint("Run: GRANT CONNECT ON DATABASE %s TO %s;",
						 quote_identifier(get_database_name(database)),
						 quote_identifier(GetUserNameFromId(GetUserId(), false)))));
	memcpy(dsm_segment_address(segment), request, sizeof(Request));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_main_arg = ObjectIdGetDatum(database);
	worker.bgw_notify_pid = MyProcPid;
	memcpy(worker.bgw_extra, &errand, sizeof(errand));
	strlcpy(worker.bgw_library_name, "atomic_lock", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "atomic_lock_scheduler_main",
			sizeof(worker.bgw_function_name));
	strlcpy(worker.bgw_name, "atomic_lock scheduler", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "atomic_lock scheduler", BGW_MAXLEN);
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
		ereport(ERROR,
				(al_errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("could not start a background worker in database \"%s\"",
						get_database_name(database)),
				 errhint("You might need to increase max_worker_processes.")));
	PG_ENSURE_ERROR_CLEANUP(give_up, PointerGetDatum(handle));
	{
		(void) WaitForBackgroundWorkerShutdown(handle);
	}
	PG_END_ENSURE_ERROR_CLEANUP(give_up, PointerGetDatum(handle));
	memcpy(request, dsm_segment_address(segment), sizeof(Request));
	dsm_detach(segment);

	if (!request->is_done && request->message[0] != '\0')
	{
		char	   *message = text_of(request, request->message);
		char	   *hint = text_of(request, request->hint);

		ereport(ERROR,
				(al_errcode(request->sqlstate), errmsg_internal("%s", message),
				 hint[0] ? errhint("%s", hint) : 0));
	}
	if (!request->is_done)
		ereport(ERROR,
				(al_errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("background worker of role \"%s\" could not connect to database \"%s\"",
						GetUserNameFromId(GetUserId(), false), get_database_name(database)),
				 errdetail("pg_cron keeps its jobs in that database."),
				 errhint("See the server log, or have pg_cron run the command \"%s\" in database \"%s\".",
						 request->command, request->database)));
}

/*
 * A superuser's job calls a function of the extension, in our schema, in this database, by
 * their names.  Raise 42501 if the owner of any of these is not a superuser, and so could
 * put another one in its place.
 */
static void
check_owners(const char *schema)
{
	Oid			database_owner = owner_of(DatabaseRelationId, MyDatabaseId);
	Oid			schema_owner = owner_of(NamespaceRelationId, get_namespace_oid(schema, false));
	const struct
	{
		const char *what;
		const char *name;
		Oid			owner;
	}			owned[] = {
		{"Database", get_database_name(MyDatabaseId), database_owner},
		{"Extension", "atomic_lock", al_extension_owner()},
		{"Schema", schema, schema_owner == ROLE_PG_DATABASE_OWNER ? database_owner : schema_owner}
	};

	for (int i = 0; i < (int) lengthof(owned); i++)
	{
		if (superuser_arg(owned[i].owner))
			continue;
		ereport(ERROR,
				(al_errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("superusers cannot schedule sweeps of this database"),
				 errdetail("%s \"%s\" belongs to role \"%s\", which could make the job run other code as superuser.",
						   owned[i].what, owned[i].name, GetUserNameFromId(owned[i].owner, false)),
				 errhint("Use SET ROLE to become a role that has access level admin and is not a superuser.")));
	}
}

/*
 * Have pg_cron sweep this database by a schedule, in place of any former one; or where
 * the schedule is NULL, end that.  Returns the id of the job, or the number of jobs
 * ended.  Messages name "function".  Raises 22023 where the schedule is too long, 42501
 * where a superuser's job could run code of others, and as pg_cron does.
 */
int64
al_cron_schedule(const char *schedule, const char *function)
{
	Request		request = {.is_schedule = schedule != NULL};
	const char *cron_database = GetConfigOption("cron.database_name", true, false);
	const char *database = get_database_name(MyDatabaseId);
	const char *schema;
	char	   *body;

	if (schedule && strlcpy(request.schedule, schedule, sizeof(request.schedule)) >= sizeof(request.schedule))
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("schedule must not be longer than %d bytes",
						(int) sizeof(request.schedule) - 1)));
	al_prevent_writing(function);
	/* Where pg_cron is not loaded, any role can set this placeholder. */
	if (GetConfigOptionFlags("cron.database_name", true) & GUC_CUSTOM_PLACEHOLDER)
		cron_database = NULL;
	schema = al_schema_name();
	strlcpy(request.database, database, sizeof(request.database));
	request.encoding = GetDatabaseEncoding();
	if (snprintf(request.job, sizeof(request.job), "atomic_lock sweep of %s",
				 database) >= (int) sizeof(request.job))
		snprintf(request.job, sizeof(request.job), "atomic_lock sweep of database %u",
				 MyDatabaseId);
	if (request.is_schedule && superuser())
		check_owners(schema);

	/*
	 * Sweep in transactions of 1000 rows.  The owner of the database can set the
	 * search_path of the session that runs this, so all names are qualified.
	 */
	body = psprintf("BEGIN WHILE %s.lock_sweep(1000::pg_catalog.int8)"
					" OPERATOR(pg_catalog.=) 1000::pg_catalog.int8 LOOP COMMIT; END LOOP; END",
					quote_identifier(schema));
	snprintf(request.command, sizeof(request.command), "DO %s", quote_literal_cstr(body));

	if (cron_database == NULL || strcmp(cron_database, database) == 0)
		change_schedule(&request);
	else
		change_schedule_in(get_database_oid(cron_database, false), &request);
	return request.answer;
}
