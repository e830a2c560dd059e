\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- sql/compat/session_end.sql: the locks of an application's session end with it
--
-- Properties:
-- - A DELETE on the sessions table releases, in its transaction, all locks that the owners of
--   the deleted rows hold, whichever role deletes, however many rows and locks there are. One
--   later CALL releases the locks that a single transaction cannot.
-- - No state of a lock, and no missing object, makes a DELETE fail, and no id keeps the locks
--   of other sessions.
-- - A session whose id changes keeps its locks, and gets those of no other session.
-- - Other roles cannot use the functions, nor have their own called.
--
-- Turns red when: locks of an ended session stay, or those of another end; 1,500 locks are too
-- many; a DELETE fails; an UPDATE of many ids transfers locks along the chain; a role without
-- rights can call a function; a function of the extension is called with argument types that it
-- does not have. test/t/clients/session_end.pl shows that a DELETE waits for no one.

\set script :srcdir '/../sql/compat/session_end.sql'
DROP SCHEMA IF EXISTS regress_al_shop CASCADE;
DROP ROLE IF EXISTS regress_al_locks, regress_al_web, regress_al_other;
CREATE ROLE regress_al_locks;
CREATE ROLE regress_al_web;
CREATE ROLE regress_al_other;
SELECT lock_grant_access('regress_al_locks', 'user') \g /dev/null
CREATE SCHEMA regress_al_shop;
CREATE TABLE regress_al_shop.sessions (id varchar(255) PRIMARY KEY, payload text);
CREATE TABLE regress_al_shop.spring_session (primary_id char(36) PRIMARY KEY, session_id char(36) NOT NULL);
CREATE TABLE regress_al_shop."odd $$ tabs" (owner text, part int DEFAULT 1) PARTITION BY LIST (part);
CREATE TABLE regress_al_shop.tabs_1 PARTITION OF regress_al_shop."odd $$ tabs" FOR VALUES IN (1);
CREATE TABLE regress_al_shop.tabs_2 PARTITION OF regress_al_shop."odd $$ tabs" FOR VALUES IN (2);
GRANT TRIGGER ON regress_al_shop."odd $$ tabs", regress_al_shop.tabs_1, regress_al_shop.tabs_2 TO regress_al_locks;
GRANT CREATE, USAGE ON SCHEMA regress_al_shop TO regress_al_locks;
GRANT USAGE ON SCHEMA regress_al_shop TO regress_al_web, regress_al_other;
GRANT TRIGGER ON regress_al_shop.sessions, regress_al_shop.spring_session TO regress_al_locks;
GRANT SELECT, INSERT, UPDATE, DELETE ON regress_al_shop.sessions, regress_al_shop.spring_session TO regress_al_web;
\set schema regress_al_shop
\set ECHO none
SET ROLE regress_al_locks;
\set table regress_al_shop.sessions
\i :script
\i :script
\set table regress_al_shop.spring_session
\set column session_id
\set digest off
\i :script
\set table 'regress_al_shop."odd $$ tabs"'
\set column owner
\i :script
RESET ROLE;
\set ON_ERROR_STOP off
\set ECHO all

CREATE FUNCTION t.held() RETURNS text LANGUAGE sql AS $$
	SELECT coalesce(string_agg(key || ' ' || holder, ', ' ORDER BY key), '-') FROM lock_status() WHERE locked
$$;
CREATE FUNCTION t.lock(session text, VARIADIC keys text[]) RETURNS bigint LANGUAGE sql AS $$
	SELECT count(*) FROM lock_acquire_all(keys, '10 min', encode(sha256(session::bytea), 'hex'), holder => session)
$$;

-- A role without an access level logs out, and deletes old sessions
INSERT INTO regress_al_shop.sessions SELECT 's' || i FROM generate_series(1, 5) i;
SELECT t.lock('s1', 'a', 'b'), t.lock('s2', 'c'), t.lock('s3', 'd'), t.lock('s4', 'e');
SET ROLE regress_al_web;
DELETE FROM regress_al_shop.sessions WHERE id = 's1';
RESET ROLE;
SELECT t.held();
BEGIN;
DELETE FROM regress_al_shop.sessions WHERE id IN ('s2', 's3', 's5');
SELECT t.held();
ROLLBACK;
SELECT t.held();
DELETE FROM regress_al_shop.sessions WHERE id IN ('s2', 's3', 's5', 'none');
SELECT t.held();

-- The id changes at login: the session's locks stay, with their labels.
UPDATE regress_al_shop.sessions SET payload = 'x';
SET ROLE regress_al_web;
UPDATE regress_al_shop.sessions SET id = 's6';
RESET ROLE;
SELECT t.held(), lock_is_held('e', regress_al_shop.session_end_owner('s6'));
DELETE FROM regress_al_shop.sessions;
SELECT t.held();

-- The column itself is the owner; other modes and lifetimes; a guest without locks
INSERT INTO regress_al_shop.spring_session VALUES ('1', '0d4f5f2e-90a8-4c1c-8d2c-6c2e3c0a7b11'), ('2', 'x');
SELECT status FROM lock_acquire('a', owner => '0d4f5f2e-90a8-4c1c-8d2c-6c2e3c0a7b11', mode => 'shared');
SELECT status FROM lock_acquire('b', owner => '0d4f5f2e-90a8-4c1c-8d2c-6c2e3c0a7b11', lifetime => 'session');
SELECT status FROM lock_acquire('a', owner => 'other', mode => 'shared', holder => 'other');
DELETE FROM regress_al_shop.spring_session;
SELECT t.held(), lock_release('a', 'other');

-- A value that cannot be an owner does not keep the locks of other sessions.
INSERT INTO regress_al_shop."odd $$ tabs" VALUES ('t1'), (''), (repeat('x', 256)), (NULL), (repeat('x', 255)), ('t2');
SELECT lock_acquire_all('{a,b}', owner => 't1'), lock_acquire('c', owner => 't2'), lock_acquire('d', owner => repeat('x', 255)) \g /dev/null
UPDATE regress_al_shop."odd $$ tabs" SET owner = 't3' WHERE owner = repeat('x', 256);
UPDATE regress_al_shop."odd $$ tabs" SET owner = repeat('x', 256) WHERE owner IN ('t3', '');
DELETE FROM regress_al_shop."odd $$ tabs";
SELECT t.held(), count(*) AS later FROM regress_al_shop.session_end_later;

-- One statement changes many ids: no session gets the locks of another.
INSERT INTO regress_al_shop."odd $$ tabs" VALUES ('9001'), ('9002'), ('9003');
SELECT lock_acquire(o, owner => o) FROM unnest('{9001,9002,9003}'::text[]) o \g /dev/null
UPDATE regress_al_shop."odd $$ tabs" SET owner = owner::int + 1;
SELECT string_agg(o || ' has ' || key, ', ' ORDER BY key) FROM unnest('{9001,9002,9003,9004}'::text[]) o, lock_held(o);
-- Two sessions become one, and one becomes two.
UPDATE regress_al_shop."odd $$ tabs" SET owner = '9001' WHERE owner <> '9004';
DELETE FROM regress_al_shop."odd $$ tabs" WHERE owner = '9004';
ALTER TABLE regress_al_shop."odd $$ tabs" ADD n serial;
UPDATE regress_al_shop."odd $$ tabs" SET owner = 9010 + n;
SELECT string_agg(o || ' has ' || key, ', ' ORDER BY key) FROM unnest('{9001,9002,9003,9004}'::text[]) o, lock_held(o);
-- Several rows of one session get the same new id.
UPDATE regress_al_shop."odd $$ tabs" SET owner = '9001';
UPDATE regress_al_shop."odd $$ tabs" SET owner = 't1';
SELECT lock_release_all(o) FROM unnest('{9001,9002,9003,t1}'::text[]) o \g /dev/null
SELECT lock_acquire('a', owner => 't1', holder => 'tab') \g /dev/null
UPDATE regress_al_shop."odd $$ tabs" SET owner = 't2';
SELECT t.held(), lock_is_held('a', 't2');
UPDATE regress_al_shop."odd $$ tabs" SET part = 1;
SELECT lock_is_held('a', 't2');
DELETE FROM regress_al_shop."odd $$ tabs";
SELECT t.held();

-- Functions planted in the schema of the extension are not used.
CREATE FUNCTION t.planted() RETURNS text LANGUAGE plpgsql AS 'BEGIN RAISE ''planted, called by %'', current_user; END';
SELECT format('CREATE FUNCTION public.%s RETURNS text LANGUAGE sql AS $f$SELECT t.planted()$f$', f)
FROM unnest(ARRAY['lock_try_transfer(text, text, text, text)', 'lock_try_transfer(text, text, text, text, text)',
	'lock_try_transfer(anyelement, text, text, text)', 'lock_try_release(text, anyelement)', 'lock_held(anyelement)', 'lock_status(anyelement)']) f \gexec
DISCARD PLANS;
INSERT INTO regress_al_shop."odd $$ tabs" VALUES ('t1');
SELECT lock_acquire('a', owner => 't1', holder => 'tab') \g /dev/null
UPDATE regress_al_shop."odd $$ tabs" SET owner = 't2';
SELECT t.held(), lock_is_held('a', 't2');
INSERT INTO regress_al_shop.session_end_later (owner) VALUES ('t3');
SELECT lock_acquire('b', owner => 't3') \g /dev/null
DELETE FROM regress_al_shop."odd $$ tabs";
CALL regress_al_shop.session_end_rest();
SELECT t.held(), count(*) AS later FROM regress_al_shop.session_end_later;
SELECT t.code('SELECT lock_try_transfer(''a''::text, ''t2''::text, ''t1''::text, ''tab''::text)');
SELECT format('DROP FUNCTION %s', p.oid::regprocedure) FROM pg_proc p WHERE prosrc = 'SELECT t.planted()' ORDER BY oid \gexec

-- Rows deleted by a cascade
CREATE TABLE t.users (id int PRIMARY KEY);
INSERT INTO t.users VALUES (1), (2);
ALTER TABLE regress_al_shop.sessions ADD user_id int REFERENCES t.users ON DELETE CASCADE;
INSERT INTO regress_al_shop.sessions VALUES ('s1', '', 1), ('s2', '', 2);
SELECT t.lock('s1', 'a'), t.lock('s2', 'b');
DELETE FROM t.users WHERE id = 1;
SELECT t.held();
DELETE FROM t.users;
SELECT t.held();

-- 10,000 sessions, 700 of them with one lock, and one with 1,500
INSERT INTO regress_al_shop.sessions SELECT 's' || i FROM generate_series(1, 10000) i;
SELECT sum(t.lock('s' || i, 'k' || i)) FROM generate_series(1, 700) i;
SELECT t.lock('s701', VARIADIC ARRAY(SELECT 'm' || i FROM generate_series(1, 900) i));
SELECT t.lock('s701', VARIADIC ARRAY(SELECT 'm' || i FROM generate_series(901, 1500) i));
SELECT t.lock('another', 'z');
SET ROLE regress_al_web;
DELETE FROM regress_al_shop.sessions;
RESET ROLE;
SELECT count(*), (SELECT count(*) FROM regress_al_shop.session_end_later) AS later FROM lock_status();
-- a new connection
\c -
SET client_min_messages = warning;
CALL regress_al_shop.session_end_rest();
SELECT t.held(), (SELECT count(*) FROM regress_al_shop.session_end_later) AS later;

-- If the transaction has almost reached its limit of keys, the script releases everything
-- later.
SET atomic_lock.max_claims_per_transaction = 8;
INSERT INTO regress_al_shop.sessions VALUES ('s1');
SELECT t.lock('s1', 'a', 'b', 'c', 'd');
BEGIN;
SELECT t.lock('another', '1', '2', '3', '4', '5');
DELETE FROM regress_al_shop.sessions;
COMMIT;
SELECT t.held();
CALL regress_al_shop.session_end_rest();
SELECT t.held(), lock_release_all(encode(sha256('another'), 'hex')), (SELECT count(*) FROM regress_al_shop.session_end_later) AS later;
RESET atomic_lock.max_claims_per_transaction;

-- A policy that does not admit the role of the script: the DELETE succeeds, and other sessions'
-- locks end.
INSERT INTO regress_al_shop.sessions VALUES ('s1'), ('s2');
SELECT t.lock('s1', 'secret'), t.lock('s2', 'a');
SELECT lock_set_policy('secret', roles => '{regress_al_other}');
DELETE FROM regress_al_shop.sessions;
CALL regress_al_shop.session_end_rest();
SELECT t.held(), (SELECT count(*) FROM regress_al_shop.session_end_later) AS later;
SELECT lock_drop_policy('secret');
CALL regress_al_shop.session_end_rest();
SELECT t.held(), (SELECT count(*) FROM regress_al_shop.session_end_later) AS later;

-- Owners whose locks were forced or have expired meanwhile are forgotten. However many there
-- are of them, and of owners that may not be released yet, one CALL reaches all others.
SELECT lock_acquire('secret' || i, owner => 'kept' || i) FROM generate_series(1, 60) i \g /dev/null
SELECT status FROM lock_acquire('a', owner => 'last');
SELECT lock_set_policy('secret', roles => '{regress_al_other}');
INSERT INTO regress_al_shop.session_end_later (owner) SELECT 'nobody' || i FROM generate_series(1, 60) i;
INSERT INTO regress_al_shop.session_end_later (owner) SELECT 'kept' || i FROM generate_series(1, 60) i;
INSERT INTO regress_al_shop.session_end_later (owner) VALUES ('last');
SET client_min_messages = error;
CALL regress_al_shop.session_end_rest();
SET client_min_messages = warning;
SELECT t.held() ~ '^secret' AS kept, lock_is_held('a', 'last'), count(*), count(tried_at) AS tried FROM regress_al_shop.session_end_later;
SELECT lock_drop_policy('secret');
CALL regress_al_shop.session_end_rest();
SELECT t.held(), count(*) FROM regress_al_shop.session_end_later;

-- Rights to call the functions
SELECT t.lock('s1', 'a');
SET ROLE regress_al_other;
CREATE TEMP TABLE fake (id text);
SELECT t.raises('CREATE TRIGGER fake AFTER DELETE ON fake REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION regress_al_shop.session_end_deleted(''id'', ''digest'')');
SELECT t.raises('CREATE TRIGGER fake AFTER UPDATE ON fake FOR EACH ROW EXECUTE FUNCTION regress_al_shop.session_end_renamed(''id'', ''digest'')');
SELECT t.raises('SELECT regress_al_shop.session_end_release(''{x}'', 1)');
SELECT t.raises('SELECT regress_al_shop.session_end_some()');
SELECT t.raises('CALL regress_al_shop.session_end_rest()');
SELECT t.raises('TABLE regress_al_shop.session_end_later');
DROP TABLE fake;
RESET ROLE;
GRANT EXECUTE ON FUNCTION regress_al_shop.session_end_some TO regress_al_other;
GRANT EXECUTE ON PROCEDURE regress_al_shop.session_end_rest() TO regress_al_other;
SET ROLE regress_al_other;
CALL regress_al_shop.session_end_rest();
RESET ROLE;

-- The type of the column belongs to another role, which made a cast for it: the cast is not
-- called.
CREATE TYPE t.id AS (s text);
CREATE FUNCTION t.evil(t.id) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RAISE 'called as %', current_user;
END
$$;
CREATE CAST (t.id AS text) WITH FUNCTION t.evil(t.id);
CREATE TABLE regress_al_shop.odd (id t.id);
\set ECHO none
\set table regress_al_shop.odd
\set column id
ALTER TABLE regress_al_shop.odd OWNER TO regress_al_locks;
SET ROLE regress_al_locks;
\i :script
RESET ROLE;
\set ON_ERROR_STOP off
\set ECHO all
INSERT INTO regress_al_shop.odd VALUES (ROW('x'));
SELECT status FROM lock_acquire('odd', owner => '(x)');
DELETE FROM regress_al_shop.odd;
SELECT lock_is_held('odd', '(x)');

-- Sessions can be deleted without an access level, and without the extension.
INSERT INTO regress_al_shop.sessions VALUES ('s1'), ('s2');
SELECT lock_revoke_access('regress_al_locks', 'user');
DELETE FROM regress_al_shop.sessions WHERE id = 's1';
UPDATE regress_al_shop.sessions SET id = 's3';
DROP EXTENSION atomic_lock CASCADE;
DELETE FROM regress_al_shop.sessions;
SELECT count(*) FROM regress_al_shop.sessions;

DROP SCHEMA regress_al_shop CASCADE;
DROP ROLE regress_al_locks, regress_al_web, regress_al_other;
