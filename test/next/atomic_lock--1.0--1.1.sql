/* test/next/atomic_lock--1.0--1.1.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION atomic_lock UPDATE TO '1.1'" to load this file. \quit

-- The script of a version that exists for tests only: a column, a function, and another body of
-- the guards' function. It also shows how an update script looks: see "The next version" in
-- doc/design.md. The DO block that each script begins with comes here; the tests take it from
-- the script of this version.
SELECT app_lock_begin_script();

ALTER TABLE app_lock ADD COLUMN note text;

COMMENT ON COLUMN app_lock.note IS 'atomic_lock.note of whoever wrote the row';

CREATE FUNCTION lock_note(key text)
RETURNS text
AS 'MODULE_PATHNAME', 'atomic_lock_note'
LANGUAGE C STABLE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_note(text) IS
'returns what the exclusive holding of "key" has as its note';

CREATE OR REPLACE FUNCTION lock_guard()
RETURNS trigger
AS 'MODULE_PATHNAME', 'atomic_lock_guard'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 2;

-- The new function belongs to level user.
DO $$
BEGIN
	EXECUTE (SELECT pg_catalog.replace(pg_catalog.pg_get_functiondef(p.oid), '''lock_leave'']', '''lock_leave'', ''lock_note'']')
		FROM pg_catalog.pg_extension e
			JOIN pg_catalog.pg_proc p ON p.pronamespace OPERATOR(pg_catalog.=) e.extnamespace
		WHERE e.extname OPERATOR(pg_catalog.=) 'atomic_lock' AND p.proname OPERATOR(pg_catalog.=) 'app_lock_change_access');
END
$$;

SELECT app_lock_refresh_access();
