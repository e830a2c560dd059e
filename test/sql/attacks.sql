\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- Objects that others put into schemas, to have them used in place of ours
--
-- Properties: functions, operators, types and relations in a hostile search_path or temporary
-- schema are never used, for a superuser, an administrator and a user. CREATE EXTENSION takes
-- over no existing object.
--
-- Turns red when: a name in the script or in C code is resolved by search_path; a SECURITY
-- DEFINER function does not set its path; the script uses CREATE OR REPLACE or IF NOT EXISTS.
--
DROP ROLE IF EXISTS regress_al_mallory, regress_al_user, regress_al_admin;
CREATE ROLE regress_al_mallory;
CREATE ROLE regress_al_user;
CREATE ROLE regress_al_admin;
SELECT lock_grant_access('regress_al_user', 'user'), lock_grant_access('regress_al_admin', 'admin');
CREATE SCHEMA mallory AUTHORIZATION regress_al_mallory;

-- Each of these objects raises an error if it is used.
SET ROLE regress_al_mallory;
GRANT USAGE ON SCHEMA mallory TO PUBLIC;
CREATE FUNCTION mallory.captured() RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RAISE 'captured'; END$$;
DO $$
DECLARE
	f	text;
	ops	text;
BEGIN
	-- operators for the types of catalogs and leases
	FOREACH f IN ARRAY ARRAY['text', 'name', 'oid', 'bigint', 'integer', 'timestamptz', 'interval', 'boolean', 'regrole', 'bytea', 'jsonb', '"char"', 'anyelement'] LOOP
		EXECUTE format('CREATE FUNCTION mallory.op(%s, %1$s) RETURNS boolean LANGUAGE sql AS ''SELECT mallory.captured()''', f);
		FOREACH ops IN ARRAY ARRAY['=', '<>', '<', '>', '<=', '>=', '||', '+', '-', '~'] LOOP
			EXECUTE format('CREATE OPERATOR mallory.%s (FUNCTION = mallory.op, LEFTARG = %s, RIGHTARG = %2$s)', ops, f);
		END LOOP;
	END LOOP;
	-- functions, with exactly matching or better matching argument types
	FOREACH f IN ARRAY ARRAY['format(text, text)', 'format(text, regprocedure, text)', 'format(text, name, text)', 'format(text, VARIADIC text[])',
		'now()', 'clock_timestamp()', 'statement_timestamp()', 'transaction_timestamp()', 'sha256(bytea)', 'encode(bytea, text)', 'hashtext(text)',
		'gen_random_uuid()', 'nextval(regclass)', 'has_schema_privilege(regrole, name, text)', 'has_schema_privilege(oid, name, text)',
		'has_function_privilege(name, oid, text)', 'octet_length(text)', 'length(text)', 'coalesce(text)', 'quote_ident(text)', 'inet_client_addr()',
		'lock_acquire(text)', 'lock_release(text)', 'lock_status(varchar)', 'lock_waiters()', 'force_release(varchar, varchar)',
		'app_lock_change_access(regrole, text, boolean)', 'array_agg(text)', 'unnest(text[])', 'pg_advisory_xact_lock(bigint)'] LOOP
		EXECUTE format('CREATE FUNCTION mallory.%s RETURNS boolean LANGUAGE sql AS ''SELECT mallory.captured()''', f);
	END LOOP;
	-- relations, types
	FOREACH f IN ARRAY ARRAY['app_lock', 'lock_audit', 'lock_waiters', 'pg_proc', 'pg_roles', 'pg_extension', 'pg_namespace', 'pg_depend', 'pg_class', 'pg_settings'] LOOP
		EXECUTE format('CREATE VIEW mallory.%I AS SELECT mallory.captured() AS oid', f);
	END LOOP;
	FOREACH f IN ARRAY ARRAY['text', 'name', 'interval', 'bigint', 'int8', 'jsonb', 'regrole', 'regclass', 'regprocedure', 'timestamptz'] LOOP
		EXECUTE format('CREATE DOMAIN mallory.%I AS pg_catalog.int4 CHECK (mallory.captured())', f);
	END LOOP;
	CREATE SEQUENCE mallory.app_lock_fence START 1000000;
	CREATE TYPE mallory.lock_grant AS (captured boolean);
END
$$;
RESET ROLE;
-- Temporary tables with the names of our relations and of catalogs
CREATE FUNCTION t.temp_tables() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	CREATE TEMP TABLE app_lock (LIKE public.app_lock INCLUDING ALL);
	CREATE TEMP TABLE lock_audit (LIKE public.lock_audit INCLUDING ALL);
	CREATE TEMP TABLE pg_proc AS SELECT * FROM pg_catalog.pg_proc WHERE false;
	CREATE TEMP TABLE pg_roles AS SELECT * FROM pg_catalog.pg_roles WHERE false;
	CREATE TEMP TABLE pg_extension AS SELECT * FROM pg_catalog.pg_extension WHERE false;
	CREATE TEMP TABLE pg_depend AS SELECT * FROM pg_catalog.pg_depend WHERE false;
	CREATE TEMP TABLE pg_namespace AS SELECT * FROM pg_catalog.pg_namespace WHERE false;
	CREATE TEMP SEQUENCE app_lock_fence START 1000000;
	CREATE DOMAIN pg_temp.text AS pg_catalog.int4;
END
$$;

-- A superuser with a hostile search_path calls everything
SELECT t.temp_tables();
SET search_path = mallory, pg_temp, pg_catalog, public;
SELECT s.* FROM public.lock_acquire('k', '10 min', 'alice-1', holder => 'Alice', meta => '{"a": 1}') g, t.show(g) s;
SELECT s.status FROM public.lock_acquire('k', '10 min', 'alice-1') g, t.show(g) s;
SELECT s.status FROM public.lock_try_acquire('k', '10 min') g, t.show(g) s;
SELECT t.raises('SELECT public.lock_acquire(''k'')');
SELECT s.status FROM public.lock_try_acquire('k', '10 min', wait => '5 ms') g, t.show(g) s;
SELECT t.code('SELECT * FROM public.lock_waiters') OPERATOR(pg_catalog.~) '^(00000|55000)$' AS looked;
SELECT public.lock_try_release('k', 'bob-1'), public.lock_extend('k', 'alice-1') IS NOT NULL AS extended, public.lock_try_extend('k', 'alice-1', '1 hour') IS NOT NULL AS extended,
	public.lock_extend_all('alice-1'), public.lock_is_held('k', 'alice-1'), public.lock_holder('k'), public.lock_key('a', 'b:c');
SELECT key, locked, owner, holder, meta FROM public.lock_status('k');
SELECT key, locked, owner, holder, meta FROM public.lock_status();
SELECT public.force_release('k', 'test');
SELECT s.status FROM public.lock_steal('k', 'dba-1', 'test') g, t.show(g) s;
SELECT public.lock_force_release('k', 'test');
SELECT s.status FROM public.lock_steal('k', 'dba-1', 'test', '1 ms') g, t.show(g) s;
SELECT t.expire('k');
SELECT public.lock_sweep();
SELECT public.lock_release_all('alice-1');
SELECT public.lock_grant_access('regress_al_mallory', 'user'), public.lock_grant_access('regress_al_mallory', 'admin');
SELECT pg_catalog.has_function_privilege('regress_al_mallory', 'public.force_release(pg_catalog.text, pg_catalog.text, pg_catalog.int8)', 'EXECUTE') AS granted;
SELECT public.lock_revoke_access('regress_al_mallory', 'user'), public.lock_revoke_access('regress_al_mallory', 'admin');
SELECT pg_catalog.has_function_privilege('regress_al_mallory', 'public.force_release(pg_catalog.text, pg_catalog.text, pg_catalog.int8)', 'EXECUTE') AS granted;
SELECT s.status FROM public.lock_acquire('k', '10 min', 'alice-1') g, t.show(g) s;
-- nothing was written to the wrong tables
RESET search_path;
SELECT (SELECT count(*) FROM pg_temp.app_lock) AS app_lock, (SELECT count(*) FROM pg_temp.lock_audit) AS lock_audit,
	(SELECT is_called FROM pg_temp.app_lock_fence) AS app_lock_fence, (SELECT is_called FROM mallory.app_lock_fence) AS mallory;
SELECT (SELECT count(*) FROM public.app_lock) AS app_lock, (SELECT count(*) FROM public.lock_audit) AS lock_audit;
\c -
SET client_min_messages = warning;

-- An administrator, who has no privileges on the tables: a SECURITY DEFINER function must not
-- trust the caller's path
GRANT CREATE ON SCHEMA t TO regress_al_admin;
GRANT USAGE ON SCHEMA mallory TO regress_al_admin;
SET SESSION AUTHORIZATION regress_al_admin;
CREATE TEMP VIEW pg_roles AS SELECT mallory.captured() AS oid;
CREATE TEMP VIEW pg_proc AS SELECT mallory.captured() AS oid;
CREATE TEMP VIEW pg_extension AS SELECT mallory.captured() AS oid;
CREATE TEMP TABLE app_lock (key text);
CREATE TEMP TABLE lock_audit (key text);
SET search_path = mallory, pg_temp, pg_catalog, public;
SELECT public.lock_grant_access('regress_al_mallory', 'user');
SELECT pg_catalog.has_function_privilege('regress_al_mallory', 'public.lock_acquire(pg_catalog.text, pg_catalog.interval, pg_catalog.text, pg_catalog.text, pg_catalog.interval, pg_catalog.text, pg_catalog.jsonb, pg_catalog.text, pg_catalog.int4, pg_catalog.text)', 'EXECUTE') AS granted;
SELECT public.lock_revoke_access('regress_al_mallory', 'user');
SELECT public.force_release('k', 'test');
RESET search_path;
SELECT count(*) FROM pg_temp.lock_audit;
RESET SESSION AUTHORIZATION;
SELECT acting_role, reason FROM public.lock_audit ORDER BY at DESC LIMIT 1;
-- The extension has two SECURITY DEFINER functions, and both set the path.
SELECT p.oid::regprocedure, p.proconfig FROM pg_catalog.pg_proc p JOIN pg_depend d ON d.classid = 'pg_catalog.pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
	JOIN pg_catalog.pg_extension e ON d.refobjid = e.oid AND e.extname = 'atomic_lock' WHERE p.prosecdef ORDER BY 1;
\c -
SET client_min_messages = warning;

-- A user
SET SESSION AUTHORIZATION regress_al_user;
CREATE TEMP TABLE app_lock (key text);
CREATE TEMP SEQUENCE app_lock_fence;
SET search_path = mallory, pg_temp, pg_catalog, public;
SELECT s.status FROM public.lock_acquire('k', '10 min', 'alice-1') g, t.show(g) s;
SELECT public.lock_holder('k') IS NOT NULL AS held, public.lock_extend('k', 'alice-1') IS NOT NULL AS extended, public.lock_release('k', 'alice-1') AS released;
RESET search_path;
SELECT count(*) FROM pg_temp.app_lock;
RESET SESSION AUTHORIZATION;
\c -
SET client_min_messages = warning;
DROP SCHEMA mallory CASCADE;

--
-- CREATE EXTENSION takes over no existing object
--
DROP EXTENSION atomic_lock CASCADE;
CREATE SCHEMA prepared AUTHORIZATION regress_al_mallory;
CREATE FUNCTION t.attempt(stmt text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	state	text;
BEGIN
	EXECUTE stmt;
	BEGIN
		CREATE EXTENSION atomic_lock SCHEMA prepared;
		state := 'created';
	EXCEPTION WHEN OTHERS THEN
		state := SQLSTATE;
	END;
	RAISE SQLSTATE 'RB000' USING MESSAGE = state || ' ' || (SELECT count(*) FROM pg_extension WHERE extname = 'atomic_lock');
EXCEPTION WHEN SQLSTATE 'RB000' THEN
	RETURN SQLERRM;
END
$$;
SELECT stmt, t.attempt('SET LOCAL ROLE regress_al_mallory; ' || stmt || '; RESET ROLE') FROM unnest(ARRAY[
	'CREATE TABLE prepared.app_lock (key text)',
	'CREATE TABLE prepared.lock_audit (key text)',
	'CREATE VIEW prepared.lock_audit AS SELECT 1',
	'CREATE SEQUENCE prepared.app_lock_fence',
	'CREATE TABLE prepared.app_lock_pkey (key text)',
	'CREATE TYPE prepared.lock_grant AS (acquired boolean)',
	'CREATE TABLE prepared.lock_grant (acquired boolean)',
	'CREATE FUNCTION prepared.lock_release(text, text) RETURNS boolean LANGUAGE sql AS ''SELECT true''',
	'CREATE FUNCTION prepared.lock_key(text[]) RETURNS text LANGUAGE sql AS ''SELECT 1::text''',
	'CREATE FUNCTION prepared.app_lock_change_access(regrole, text, boolean) RETURNS void LANGUAGE sql AS ''''',
	'CREATE FUNCTION prepared.lock_grant_access(regrole, text) RETURNS void LANGUAGE sql AS ''''']) stmt;
-- Objects that merely look similar are left alone, and not called.
SELECT t.attempt('SET LOCAL ROLE regress_al_mallory;
	CREATE FUNCTION prepared.captured(regrole, text) RETURNS boolean LANGUAGE plpgsql AS ''BEGIN RAISE ''''captured''''; END'';
	CREATE OPERATOR prepared.= (FUNCTION = prepared.captured, LEFTARG = regrole, RIGHTARG = text);
	CREATE FUNCTION prepared.pg_extension_config_dump(text, text) RETURNS void LANGUAGE plpgsql AS ''BEGIN RAISE ''''captured''''; END'';
	CREATE FUNCTION prepared.lock_acquire(varchar) RETURNS text LANGUAGE sql AS ''SELECT 1::text'';
	CREATE FUNCTION prepared.app_lock_change_access(regrole, varchar, boolean) RETURNS void LANGUAGE plpgsql AS ''BEGIN RAISE ''''captured''''; END'';
	RESET ROLE; SET LOCAL search_path = prepared, pg_catalog');
DROP SCHEMA prepared;
-- A role with CREATE on the database can create the extension; other roles cannot.
SET ROLE regress_al_mallory;
\set VERBOSITY sqlstate
CREATE EXTENSION atomic_lock;
\set VERBOSITY default
RESET ROLE;
GRANT CREATE ON DATABASE :"DBNAME" TO regress_al_mallory;
SET ROLE regress_al_mallory;
CREATE SCHEMA prepared;
CREATE EXTENSION atomic_lock SCHEMA prepared;
SELECT count(*) FROM prepared.lock_activity;
DROP SCHEMA prepared CASCADE;
RESET ROLE;
REVOKE CREATE ON DATABASE :"DBNAME" FROM regress_al_mallory;

-- Schemas with names that need quotes
CREATE SCHEMA "a'b$$;""c";
CREATE EXTENSION atomic_lock SCHEMA "a'b$$;""c";
SELECT extnamespace::regnamespace FROM pg_extension WHERE extname = 'atomic_lock';
SET search_path = "a'b$$;""c", public;
SELECT s.status FROM lock_acquire('k', '10 min', 'alice-1', holder => 'Alice') g, t.show(g) s;
SELECT lock_grant_access('regress_al_user', 'user'), lock_grant_access('regress_al_admin', 'admin');
SET ROLE regress_al_user;
SELECT lock_release('k', 'alice-1');
RESET ROLE;
SELECT lock_revoke_access('regress_al_user', 'user'), lock_revoke_access('regress_al_admin', 'admin');
SELECT has_function_privilege('regress_al_user', 'lock_holder(text)', 'EXECUTE') AS still;
RESET search_path;
DROP SCHEMA "a'b$$;""c" CASCADE;
SELECT count(*) FROM pg_extension WHERE extname = 'atomic_lock';
CREATE EXTENSION atomic_lock;

DROP OWNED BY regress_al_mallory, regress_al_user, regress_al_admin;
DROP ROLE regress_al_mallory, regress_al_user, regress_al_admin;
