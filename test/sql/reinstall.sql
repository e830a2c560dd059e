\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- The extension in any schema, dropped and created again in one session
--
-- Properties: after DROP EXTENSION nothing is left and calls fail cleanly; after CREATE
-- EXTENSION the same session, with its cached plans and functions, uses the new tables, in any
-- schema, also within one transaction. A transaction that holds a lock and drops the extension
-- can commit.
--
-- Turns red when: a cached OID or plan of the dropped extension is used; a name is resolved by
-- search_path; the commit fails or crashes after the drop.
--
SELECT acquired FROM lock_acquire('k', '10 min', 'alice-1');
CREATE FUNCTION t.again() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN concat_ws(' ', (lock_acquire('k', '10 min', 'bob-1')).status, lock_holder('k') IS NOT NULL, (lock_status('k')).locked, lock_try_release('k', 'bob-1'));
END
$$;
SELECT t.again() FROM force_release('k', 'why');
PREPARE p AS SELECT (lock_try_acquire('p', '10 min', 'alice-1')).status;
EXECUTE p;

-- After the drop nothing is left, and calls raise suitable errors.
DROP EXTENSION atomic_lock;
SELECT to_regclass('app_lock'), to_regclass('app_lock_fence'), to_regclass('lock_audit'), to_regtype('lock_grant'), to_regproc('lock_acquire');
\set VERBOSITY sqlstate
SELECT lock_acquire('k');
EXECUTE p;
SELECT t.again();
\set VERBOSITY default

-- Created again: empty, and everything works, also in functions compiled before.
CREATE EXTENSION atomic_lock;
SELECT * FROM lock_status();
SELECT t.again();
EXECUTE p;
SELECT lock_is_held('p', 'alice-1');
DEALLOCATE p;

-- In one transaction, with leases before and after
BEGIN;
SELECT acquired FROM lock_acquire('k', '10 min', 'alice-1');
DROP EXTENSION atomic_lock;
CREATE EXTENSION atomic_lock;
SELECT acquired FROM lock_acquire('k', '10 min', 'bob-1');
SELECT lock_is_held('p', 'alice-1');
ROLLBACK;
SELECT lock_is_held('p', 'alice-1'), (lock_status('k')).locked;
BEGIN;
SAVEPOINT s;
DROP EXTENSION atomic_lock;
ROLLBACK TO s;
SELECT lock_release('p', 'alice-1');
COMMIT;
BEGIN;
DROP EXTENSION atomic_lock;
CREATE EXTENSION atomic_lock;
SELECT acquired FROM lock_acquire('k', '10 min', 'bob-1');
COMMIT;
SELECT lock_is_held('k', 'bob-1');
SELECT t.again() FROM lock_release('k', 'bob-1');

-- Ten times in one session
DO $$
BEGIN
	FOR i IN 1..10 LOOP
		DROP EXTENSION atomic_lock;
		CREATE EXTENSION atomic_lock;
		ASSERT (lock_acquire('k', '10 min', 'alice-1')).acquired;
		ASSERT (lock_try_acquire('k', '10 min', 'bob-1')).status = 'held';
	END LOOP;
END
$$;
SELECT lock_release('k', 'alice-1');

-- In another schema, in the search_path or outside of it
DROP EXTENSION atomic_lock;
CREATE SCHEMA locks;
CREATE EXTENSION atomic_lock SCHEMA locks;
SELECT to_regclass('app_lock'), to_regclass('locks.app_lock');
SELECT s.status, s.owner FROM locks.lock_acquire('k', '10 min', 'alice-1') g, t.show(g) s;
SELECT locks.lock_holder('k') IS NOT NULL AS held, locks.lock_extend('k', 'alice-1') IS NOT NULL AS extended, locks.lock_release('k', 'alice-1');
SET search_path = locks, public;
SELECT t.again();
RESET search_path;
SET search_path = '';
SELECT (locks.lock_acquire('k', '10 min', 'alice-1')).status, locks.lock_release_all('alice-1'), locks.lock_key('a', 'b');
RESET search_path;
DROP ROLE IF EXISTS regress_al_user;
CREATE ROLE regress_al_user;
SELECT locks.lock_grant_access('regress_al_user', 'user');
SET ROLE regress_al_user;
SELECT (locks.lock_acquire('k', '10 min', 'alice-1')).status, locks.lock_release_all('alice-1');
RESET ROLE;
-- the schema is renamed
ALTER SCHEMA locks RENAME TO locks_2;
SELECT (locks_2.lock_acquire('k', '10 min', 'alice-1')).status, locks_2.lock_release_all('alice-1');
SELECT locks_2.lock_revoke_access('regress_al_user', 'user');
SELECT has_function_privilege('regress_al_user', 'locks_2.lock_holder(text)', 'EXECUTE') AS still;
DROP OWNED BY regress_al_user;
DROP ROLE regress_al_user;
SELECT t.code('ALTER EXTENSION atomic_lock SET SCHEMA public');
-- tables with the same names elsewhere are ignored
CREATE TABLE public.app_lock (key text);
SELECT (locks_2.lock_acquire('k', '10 min', 'alice-1')).status;
SELECT count(*) FROM public.app_lock;
DROP TABLE public.app_lock;
DROP SCHEMA locks_2 CASCADE;
SELECT count(*) FROM pg_extension WHERE extname = 'atomic_lock';
CREATE EXTENSION atomic_lock;
SELECT t.again();

-- Creating it twice is an error, or does nothing.
\set VERBOSITY sqlstate
CREATE EXTENSION atomic_lock;
\set VERBOSITY default
CREATE EXTENSION IF NOT EXISTS atomic_lock;
SELECT extversion, extrelocatable, extconfig IS NOT NULL AS dumped FROM pg_extension WHERE extname = 'atomic_lock';

-- A version that does not exist
SELECT t.code('ALTER EXTENSION atomic_lock UPDATE TO ''0.0.1''') AS update;
-- The script alone is refused by psql; see its first lines.
SELECT t.code('ALTER EXTENSION atomic_lock UPDATE') AS update_to_itself;

-- A transaction that holds a lock with lifetime transaction, under a policy with history, may
-- drop the extension and commit.
CREATE SCHEMA holding;
DROP EXTENSION atomic_lock;
CREATE EXTENSION atomic_lock SCHEMA holding;
SET search_path = holding, public;
\set hold 'SELECT lock_set_policy(\'\', history => true); BEGIN; SELECT (lock_acquire(\'k\', owner => \'alice-1\', lifetime => \'transaction\')).status;'
:hold
DROP EXTENSION atomic_lock;
COMMIT;
CREATE EXTENSION atomic_lock SCHEMA holding;
:hold
DROP EXTENSION atomic_lock;
CREATE EXTENSION atomic_lock SCHEMA holding;
COMMIT;
SELECT count(*) FROM lock_history;
:hold
SAVEPOINT s;
DROP EXTENSION atomic_lock;
ROLLBACK TO s;
COMMIT;
SELECT key, ended_by FROM lock_history;
:hold
DROP SCHEMA holding CASCADE;
COMMIT;
RESET search_path;
CREATE EXTENSION atomic_lock;
SELECT current_setting('max_prepared_transactions')::int > 0 AS twophase \gset
\if :twophase
:hold
DROP EXTENSION atomic_lock;
PREPARE TRANSACTION 'regress_al_reinstall';
COMMIT PREPARED 'regress_al_reinstall';
CREATE EXTENSION atomic_lock;
\endif
SELECT t.again();
