\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- Tokens and owners: what other roles see, and what use it is to them
--
-- Properties: a fencing token works only together with the owner, and is shown only to the
-- owner and to monitors; with the token alone, no caller can pin a holding and so keep its
-- owner from releasing it. Foreign code that runs within a call cannot change the call's owner.
-- The only privilege needed is EXECUTE. No lock is left to a session whose user did not ask for
-- it.
--
-- Turns red when: a token pins, or is shown, without its owner; a setting that changes during a
-- call changes the owner; USAGE on the schema is required where the call does not name it; an
-- index expression leaves a lock to a superuser.

DROP ROLE IF EXISTS regress_al_user, regress_al_monitor, regress_al_admin, regress_al_viewer;
CREATE ROLE regress_al_user;
CREATE ROLE regress_al_monitor;
CREATE ROLE regress_al_admin;
CREATE ROLE regress_al_viewer;
SELECT lock_grant_access(r, 'user') FROM unnest(ARRAY['regress_al_user', 'regress_al_monitor', 'regress_al_admin', 'regress_al_viewer']::regrole[]) r \g /dev/null
SELECT lock_grant_access('regress_al_monitor', 'monitor'), lock_grant_access('regress_al_admin', 'admin') \g /dev/null
CREATE FUNCTION t.fence(k text, token bigint, o text) RETURNS text LANGUAGE sql AS $$
	SELECT t.code(format('SELECT lock_assert_fence(%L, %s, %L)', k, token, o))
$$;

--
-- lock_assert_fence checks the owner, too
--
SELECT fencing_token AS token FROM lock_acquire('k', '1 hour', 'alice-1', holder => 'Alice') \gset
SELECT lock_assert_fence('k', :token, 'alice-1') IS NOT NULL AS by_position, lock_assert_fence(key => 'k', fencing_token => :token, owner => 'alice-1') IS NOT NULL AS by_name;
SET atomic_lock.owner = 'alice-1';
SELECT lock_assert_fence('k', :token) IS NOT NULL AS by_setting, lock_assert_fence('k', :token, NULL) IS NOT NULL AS null_is_the_default, t.fence('k', :token, 'bob-1') AS argument_counts;
SET atomic_lock.owner = 'bob-1';
SELECT t.code(format('SELECT lock_assert_fence(''k'', %s)', :token)) AS another_setting, t.fence('k', :token, 'alice-1') AS argument_counts;
RESET atomic_lock.owner;
SELECT t.raises(format('SELECT lock_assert_fence(''k'', %s)', :token)) AS no_owner;
SELECT left(o, 8) AS o, t.fence('k', :token, o) FROM unnest(ARRAY['', repeat('x', 256), 'alice-2', 'ALICE-1', 'alice-1 ', repeat('x', 255)]) WITH ORDINALITY u(o, i) ORDER BY i;
-- right and wrong tokens get the same answer, which contains no token
SELECT count(DISTINCT replace(t.raises(format('SELECT lock_assert_fence(''k'', %s, ''bob-1'')', x)), x::text, '<token>')) AS answers FROM unnest(ARRAY[:token, :token - 1, :token + 1]) x;
SELECT w, left(a, 6) AS answer, a ~ '[0-9]{6,}' AS tells_one FROM unnest(ARRAY['alice-1', 'bob-1']) w, t.raises(format('SELECT lock_assert_fence(''k'', 1, %L)', w)) a;
SELECT a ~ 'alice|bob' AS tells_owner FROM t.raises(format('SELECT lock_assert_fence(''k'', %s, ''bob-1'')', :token)) a;
-- a pin belongs to its owner, and is of no use to another
BEGIN;
SELECT t.fence('k', :token, 'bob-1') AS bob;
SELECT lock_assert_fence('k', :token, 'alice-1') IS NOT NULL AS alice;
SELECT t.fence('k', :token, 'bob-1') AS bob, lock_assert('k', 'alice-1') = :token AS alice;
SELECT t.fence('k', :token, 'bob-1') AS bob, t.code($$SELECT lock_assert('k', 'bob-1')$$) AS bob;
ROLLBACK;
-- each sharer has its own token
SELECT fencing_token AS alice FROM lock_acquire('s', '1 hour', 'alice-1', 'shared') \gset
SELECT fencing_token AS bob FROM lock_acquire('s', '1 hour', 'bob-1', 'shared') \gset
SELECT o, t.fence('s', :alice, o) AS alice, t.fence('s', :bob, o) AS bob, t.fence('s', :bob + 1, o) AS later FROM unnest(ARRAY['alice-1', 'bob-1', 'carol-1']) o;
BEGIN;
SELECT lock_assert_fence('s', :alice, 'alice-1') IS NOT NULL AS alice, lock_assert_fence('s', :bob, 'bob-1') IS NOT NULL AS bob;
SELECT t.fence('s', :alice, 'bob-1') AS swapped, t.fence('s', :bob, 'alice-1') AS swapped;
ROLLBACK;
-- lifetimes session and transaction; ended holdings
BEGIN;
SELECT l, t.fence(l, g.fencing_token, 'alice-1') AS alice, t.fence(l, g.fencing_token, 'bob-1') AS bob FROM unnest(ARRAY['session', 'transaction']) l, LATERAL lock_acquire(l, owner => 'alice-1', lifetime => l) g;
COMMIT;
SELECT lock_release('session', 'alice-1'), t.fence('session', fencing_token, 'alice-1') AS alice, t.fence('session', fencing_token, 'bob-1') AS bob FROM app_lock WHERE key = 'session';
-- after a transfer the token is the new owner's
SELECT fencing_token AS new_token FROM lock_transfer('k', 'alice-1', 'carol-1', 'Carol') \gset
SELECT o, t.fence('k', :token, o) AS old_token, t.fence('k', :new_token, o) AS new_token FROM unnest(ARRAY['alice-1', 'carol-1']) o;
SELECT status FROM lock_transfer('k', 'carol-1', 'alice-1', 'Alice');
-- a role with level user that knows the token cannot keep the key with it
SELECT fencing_token AS token FROM app_lock WHERE key = 'k' \gset
SET SESSION AUTHORIZATION regress_al_user;
SET atomic_lock.owner = 'mallory-1';
BEGIN;
SELECT t.code(format('SELECT lock_assert_fence(''k'', %s)', :token)) AS by_setting, t.fence('k', :token, 'mallory-1') AS by_argument;
SELECT * FROM t.left_open();
COMMIT;
RESET atomic_lock.owner;
RESET SESSION AUTHORIZATION;

--
-- lock_status shows a token to its owner and to monitors
--
CREATE FUNCTION t.tokens() RETURNS TABLE (key text, locked boolean, owner text, token boolean, holder text) LANGUAGE sql AS $$
	SELECT s.key, s.locked, s.owner, s.fencing_token IS NOT NULL, s.holder FROM unnest(ARRAY['k', 's', 'free']) WITH ORDINALITY u(k, i), lock_status(k) s ORDER BY i
$$;
SET SESSION AUTHORIZATION regress_al_user;
SELECT * FROM t.tokens();
SET atomic_lock.owner = 'alice-1';
SELECT * FROM t.tokens();
SELECT fencing_token = :token AS same FROM lock_status('k');
SET atomic_lock.owner = 'bob-1';
SELECT * FROM t.tokens();
SELECT fencing_token = :bob AS same FROM lock_status('s');
RESET atomic_lock.owner;
-- for holdings of the same session, too, the owner must be presented
SELECT status, fencing_token > 0 AS token FROM lock_acquire('mine', '1 hour', 'user-1');
SELECT fencing_token IS NULL AS hidden, locked FROM lock_status('mine');
BEGIN;
SELECT status, fencing_token > 0 AS token FROM lock_acquire('mine, too', owner => 'user-1', lifetime => 'transaction');
SELECT fencing_token IS NULL AS hidden, locked FROM lock_status('mine, too');
SET LOCAL atomic_lock.owner = 'user-1';
SELECT fencing_token IS NULL AS hidden, locked FROM lock_status('mine, too');
COMMIT;
-- a refusal does not show the token either
SELECT fencing_token, owner, holder FROM lock_try_acquire('k', '1 hour', 'user-1');
SELECT fencing_token, owner, key FROM lock_try_acquire_all(ARRAY['k'], '1 hour', 'user-1');
SELECT stmt FROM unnest(ARRAY['SELECT lock_acquire(''k'', owner => ''user-1'')', 'SELECT lock_release(''k'', ''user-1'')', 'SELECT lock_extend(''k'', ''user-1'')', 'SELECT lock_assert(''k'', ''user-1'')', 'SELECT lock_convert(''k'', ''user-1'')', 'SELECT lock_transfer(''k'', ''user-1'', ''user-2'')', 'SELECT lock_assert_fence(''k'', 1, ''user-1'')']) stmt WHERE position(:'token' IN t.raises(stmt)) > 0;
RESET SESSION AUTHORIZATION;
SET SESSION AUTHORIZATION regress_al_monitor;
SELECT * FROM t.tokens();
SELECT count(*) AS holdings, count(fencing_token) AS tokens, count(owner) AS owners FROM lock_status();
RESET SESSION AUTHORIZATION;
-- nor do administrators see tokens; they need level monitor for that
SET SESSION AUTHORIZATION regress_al_admin;
SELECT * FROM t.tokens();
RESET SESSION AUTHORIZATION;
SELECT lock_revoke_access('regress_al_monitor', 'monitor');
SET SESSION AUTHORIZATION regress_al_monitor;
SELECT * FROM t.tokens();
RESET SESSION AUTHORIZATION;
-- the current role counts
SET ROLE regress_al_user;
SELECT * FROM t.tokens();
RESET ROLE;
SELECT * FROM t.tokens();

--
-- The owner at the beginning of the call counts, whatever runs within it
--
CREATE FUNCTION t.sets(v int) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	-- values of the same length, so that one of them reuses the memory of the first
	PERFORM set_config('atomic_lock.owner', 'other-' || i % 10, false) FROM generate_series(1, 100) i;
	RETURN true;
END
$$;
CREATE DOMAIN t.id AS int CHECK (t.sets(VALUE));
CREATE TABLE t.doc (id t.id PRIMARY KEY, x int);
CREATE TABLE t.docs (id t.id, sub t.id, PRIMARY KEY (id, sub));
CREATE TABLE t.row_doc (id int PRIMARY KEY);
INSERT INTO t.doc VALUES (1, 1), (2, 2);
INSERT INTO t.docs VALUES (1, 1);
INSERT INTO t.row_doc VALUES (1);
ALTER TABLE t.row_doc ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON t.row_doc USING (t.sets(id));
GRANT SELECT ON t.row_doc TO regress_al_user;
-- In a transaction the former value of the setting may be freed.
BEGIN;
SET atomic_lock.owner = 'alice-1';
SELECT id FROM lock_fetch(NULL::t.doc, '1');
SELECT lock_is_held('doc:1', 'alice-1') AS alice, current_setting('atomic_lock.owner') ~ '^other-' AS now_another;
COMMIT;
BEGIN;
SET LOCAL atomic_lock.owner = 'alice-1';
SELECT id FROM lock_fetch(NULL::t.docs, '{"id": 1, "sub": 1}', '1 hour', key => 'docs');
SELECT lock_is_held('docs', 'alice-1') AS alice;
COMMIT;
BEGIN;
SET atomic_lock.owner = 'alice-1';
SELECT id FROM lock_fetch(NULL::t.doc, '2', owner => 'bob-1');
SELECT lock_is_held('doc:2', 'bob-1') AS bob;
COMMIT;
BEGIN;
SET atomic_lock.owner = 'alice-1';
SET LOCAL ROLE regress_al_user;
SELECT id FROM lock_fetch(NULL::t.row_doc, '1');
RESET ROLE;
SELECT lock_is_held('row_doc:1', 'alice-1') AS alice;
COMMIT;
-- no row has another owner
SELECT key, owner FROM app_lock WHERE owner !~ '^(alice|bob|user)-1$' OR octet_length(owner) > 7;
RESET atomic_lock.owner;

--
-- Index expressions, and other code that runs with restricted rights
--
CREATE SCHEMA mallory AUTHORIZATION regress_al_user;
CREATE FUNCTION t.calls(call text, OUT answer text, OUT left_behind text) LANGUAGE plpgsql AS $$
BEGIN
	BEGIN
		EXECUTE call;
		answer := 'done';
	EXCEPTION WHEN OTHERS THEN
		answer := SQLSTATE;
	END;
	left_behind := (lock_status('trap')).lifetime;
	PERFORM lock_try_release('trap', 'mallory-1');
END
$$;
SET SESSION AUTHORIZATION regress_al_user;
CREATE FUNCTION mallory.lock(i int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE coalesce(nullif(current_setting('t.call', true), ''), 'SELECT 1');
	RETURN i;
END
$$;
CREATE TABLE mallory.trap (i int);
INSERT INTO mallory.trap SELECT generate_series(1, 2);
CREATE INDEX trap_idx ON mallory.trap (mallory.lock(i));
CREATE MATERIALIZED VIEW mallory.view AS SELECT mallory.lock(i) FROM mallory.trap;
RESET SESSION AUTHORIZATION;
CREATE TABLE t.operations (id serial, operation text);
INSERT INTO t.operations (operation) VALUES ('REINDEX INDEX mallory.trap_idx'), ('ANALYZE mallory.trap'), ('REFRESH MATERIALIZED VIEW mallory.view'), ('CREATE INDEX ON mallory.trap ((mallory.lock(i) + 1))'), ('CLUSTER mallory.trap USING trap_idx');
-- lifetime session is refused there, and no lock is left
SET t.call = $$SELECT public.lock_acquire('trap', owner => 'mallory-1', lifetime => 'session')$$;
SELECT operation, c.* FROM t.operations, t.calls(operation) c ORDER BY id;
SET t.call = $$SELECT public.lock_acquire('trap', '1 hour', owner => 'mallory-1', mode => 'shared', lifetime => 'session')$$;
SELECT operation, c.* FROM t.operations, t.calls(operation) c ORDER BY id;
SET t.call = $$SELECT public.lock_try_acquire('trap', owner => 'mallory-1', lifetime => 'session')$$;
SELECT operation, c.* FROM t.operations, t.calls(operation) c ORDER BY id;
-- the error
\set VERBOSITY sqlstate
REINDEX INDEX mallory.trap_idx;
\set VERBOSITY default
-- nor can a lease become a session's holding
SET t.call = $$SELECT public.lock_acquire('trap', '1 hour', owner => 'mallory-1'), public.lock_acquire('trap', owner => 'mallory-1', lifetime => 'session')$$;
SELECT operation, c.* FROM t.operations, t.calls(operation) c ORDER BY id;
SELECT count(*) AS of_this_session FROM app_lock WHERE pid = pg_backend_pid() AND key = 'trap' AND NOT released;
-- a lease, or a holding of the transaction, is allowed
SET t.call = $$SELECT public.lock_acquire('trap', '1 hour', owner => 'mallory-1')$$;
SELECT operation, c.* FROM t.operations, t.calls(operation) c ORDER BY id;
SET t.call = $$SELECT public.lock_acquire('trap', owner => 'mallory-1', lifetime => 'transaction')$$;
BEGIN;
SELECT operation, c.* FROM t.operations, t.calls(operation) c ORDER BY id;
COMMIT;
SELECT locked FROM lock_status('trap');
-- code that runs without such restrictions, or as SECURITY DEFINER, may do it
RESET t.call;
SELECT status, lifetime FROM lock_acquire('own', owner => 'me-1', lifetime => 'session') g, lock_status(g.key);
SET t.call = $$SELECT public.lock_acquire('trap', owner => 'mallory-1', lifetime => 'session')$$;
INSERT INTO mallory.trap VALUES (3);
SELECT lifetime, lock_release('trap', 'mallory-1') FROM lock_status('trap');
ALTER FUNCTION mallory.lock(int) SECURITY DEFINER;
SELECT mallory.lock(1);
SELECT lifetime, lock_release('trap', 'mallory-1') FROM lock_status('trap');
RESET t.call;
SELECT lock_release('own', 'me-1');

--
-- Through a view of another role, for a role that cannot name the functions
--
DROP EXTENSION atomic_lock;
CREATE SCHEMA regress_al_locks;
CREATE EXTENSION atomic_lock SCHEMA regress_al_locks;
SELECT regress_al_locks.lock_grant_access(r, l) FROM unnest(ARRAY['regress_al_user', 'regress_al_viewer']::regrole[]) r, unnest(ARRAY['user', 'monitor']) l \g /dev/null
GRANT CREATE ON SCHEMA t TO regress_al_viewer;
SELECT status FROM regress_al_locks.lock_acquire('k', '1 hour', 'alice-1', holder => 'Alice');
SET SESSION AUTHORIZATION regress_al_viewer;
CREATE VIEW t.one AS SELECT s.key, s.locked, s.holder, s.owner, s.fencing_token IS NOT NULL AS token, regress_al_locks.lock_holder('k') AS lock_holder, regress_al_locks.lock_is_held('k', 'alice-1') AS held FROM regress_al_locks.lock_status('k') s;
CREATE VIEW t.every AS SELECT s.key, s.holder, s.owner, s.fencing_token IS NOT NULL AS token FROM regress_al_locks.lock_status() s;
GRANT SELECT ON t.one, t.every TO regress_al_user;
RESET SESSION AUTHORIZATION;
REVOKE USAGE ON SCHEMA regress_al_locks FROM regress_al_user;
SET SESSION AUTHORIZATION regress_al_user;
SELECT t.code($$SELECT regress_al_locks.lock_status('k')$$) AS by_name;
SELECT * FROM t.one;
SELECT * FROM t.every;
RESET SESSION AUTHORIZATION;
SELECT regress_al_locks.lock_revoke_access('regress_al_user', 'monitor');
SET SESSION AUTHORIZATION regress_al_user;
SELECT * FROM t.one;
SELECT t.code('SELECT * FROM t.every');
RESET SESSION AUTHORIZATION;
\c -
SET client_min_messages = warning;
SET SESSION AUTHORIZATION regress_al_user;
SELECT * FROM t.one;
SET atomic_lock.owner = 'alice-1';
SELECT * FROM t.one;
RESET SESSION AUTHORIZATION;

DROP EXTENSION atomic_lock CASCADE;
DROP SCHEMA regress_al_locks, mallory CASCADE;
DROP OWNED BY regress_al_user, regress_al_monitor, regress_al_admin, regress_al_viewer CASCADE;
DROP ROLE regress_al_user, regress_al_monitor, regress_al_admin, regress_al_viewer;
