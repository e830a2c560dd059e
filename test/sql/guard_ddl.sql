\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\set include :srcdir '/sql/include/guarded.sql'
\i :setup
-- lock_protect, lock_unprotect, lock_guards: installing and listing guards
--
-- Properties: lock_protect refuses a template that could never work, and a relation that is no
-- table of the caller's. Guards are replaced and removed within the calling transaction.
--
-- Turns red when: a template is accepted that yields no key; a role can guard the table of
-- another; a replaced or removed guard is still in force.
--
-- guard_changes tests changes of guarded tables, and guard tests refusals.

--
-- Installed, replaced, removed
--
SELECT count(*) FROM lock_guards;
SELECT lock_protect('t.orders', 'order:{id}');
SELECT * FROM t.triggers('t.orders');
SELECT * FROM lock_guards;
-- again: another template and other events replace the guard, also for an existing plan
PREPARE w AS UPDATE t.orders SET name = 'x' WHERE id = 1;
SELECT t.with_key('order:1', 'EXECUTE w') AS by_id, t.with_key('n:one', 'EXECUTE w') ~ '^LK006' AS by_name;
SELECT lock_protect('t.orders', 'n:{name}', '{insert,update,delete}');
SELECT t.with_key('order:1', 'EXECUTE w') ~ '^LK006' AS by_id, t.with_key('n:one', 'UPDATE t.orders SET "Odd ""Col" = 1 WHERE id = 1') AS by_name;
SELECT relation, key_template, events, state, parent, problem FROM lock_guards;
SELECT tgname FROM t.triggers('t.orders');
-- events are a set, in any case and order; the default is update and delete
CREATE FUNCTION t.events(e text[]) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
	PERFORM lock_protect('t.orders', 'order:{id}', e);
	RETURN (SELECT events FROM lock_guards);
END
$$;
SELECT e AS asked, t.events(e::text[]) AS had FROM unnest(ARRAY['{update}', '{DELETE,Insert}', '{delete,update,delete,update}', '{insert}', '{delete,insert,update}']) e;
SELECT lock_protect(relation => 't.orders', key_template => 'order:{id}', events => '{delete}');
SELECT events FROM lock_guards;
SELECT lock_protect('t.orders', 'order:{id}');
SELECT events FROM lock_guards;
-- removed once
SELECT lock_unprotect('t.orders');
SELECT t.as(NULL, 'UPDATE t.orders SET name = ''x'''), t.as(NULL, 'TRUNCATE t.orders');
SELECT count(*) FROM lock_guards;
SELECT count(*) FROM t.triggers('t.orders');
SELECT t.raises($$SELECT lock_unprotect('t.orders')$$);
-- in a transaction or savepoint that is rolled back
BEGIN;
SELECT lock_protect('t.orders', 'order:{id}');
SELECT t.as(NULL, 'EXECUTE w') ~ '^LK006' AS refused;
ROLLBACK;
SELECT t.as(NULL, 'EXECUTE w'), count(*) FROM lock_guards;
SELECT lock_protect('t.orders', 'order:{id}');
BEGIN;
SAVEPOINT a;
SELECT lock_unprotect('t.orders');
SELECT t.as(NULL, 'EXECUTE w');
ROLLBACK TO a;
SELECT t.as(NULL, 'EXECUTE w') ~ '^LK006' AS refused;
COMMIT;

--
-- Refused
--
SELECT a, t.raises('SELECT lock_protect(' || a || ')') AS answer FROM unnest(ARRAY['NULL, ''x''', '''t.orders'', NULL', '''t.orders'', ''x'', NULL', '''t.orders'', ''x'', ''{NULL}''', '''t.orders'', ''x'', ''{update,NULL}''',
	'''t.orders'', ''x'', ''{}''', '''t.orders'', ''x'', ''{select}''', '''t.orders'', ''x'', ''{update,truncate}''', '''t.orders'', ''x'', ''{""}''',
	'''t.nowhere'', ''x''', '0, ''x''', '4294967294, ''x''']) WITH ORDINALITY u(a, i) ORDER BY i;
SELECT a, t.raises('SELECT lock_unprotect(' || a || ')') AS answer FROM unnest(ARRAY['NULL', '''t.nowhere''', '0', '''app_lock''']) WITH ORDINALITY u(a, i) ORDER BY i;
-- templates
SELECT x AS template, t.raises(format('SELECT lock_protect(''t.orders'', %L)', x)) AS answer FROM unnest(ARRAY['', 'a{', 'a{id', 'a{}', '{{{', 'a{{{id', '{ }', '{nothing}', '{ID}', '{ id}', '{id }', '{id}{nothing}', '{ctid}', '{tableoid}', '{xmin}', '{twice}', '{id}{twice}', E'a\nb{no\nthing}', '{Odd "Col}', '{"Odd ""Col"}']) WITH ORDINALITY u(x, i) ORDER BY i;
SELECT t.code($$SELECT lock_protect('t.orders', repeat('x', 1024))$$) AS longest, t.code($$SELECT lock_protect('t.orders', repeat('x', 1025))$$) AS longer, t.code($$SELECT lock_protect('t.orders', 'ä' || repeat('x', 1023))$$) AS bytes_not_characters;
-- errors quote a long argument in short form
SELECT length(t.raises($$SELECT lock_protect('t.orders', repeat('x', 1000000))$$)) < 500 AS text, length(t.raises($$SELECT lock_protect('t.orders', '{' || repeat('x', 1000000) || '}')$$)) < 500 AS name;
-- the keys of valid templates
CREATE FUNCTION t.key_of(template text, key text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM lock_protect('t.orders', template);
	RETURN t.with_key(key, 'DELETE FROM t.orders WHERE id = 1');
END
$$;
SELECT template, key, t.key_of(template, key) AS answer FROM (VALUES ('{id}', '1'), ('{id}{id}', '11'), ('{{id}}', '{id}'), ('{{{id}}}', '{1}'), ('{{{{{id}', '{{1'), ('a}b{id}c}', 'a}b1c}'), ('a}}b{id}}}', 'a}b1}'), ('}', '}'), ('{{', '{'), ('}}}', '}}'),
	('{Odd "Col}', '7'), ('%s{id}%n\', '%s1%n\'), ('ä☃{name}', 'ä☃one'), ('''"$$', '''"$$'), (' {id} ', ' 1 '), ('{name}:{id}', 'one:1')) v (template, key);
-- relations that are no table, or not the caller's
CREATE VIEW t.view AS SELECT * FROM t.orders;
CREATE MATERIALIZED VIEW t.matview AS SELECT * FROM t.orders;
CREATE SEQUENCE t.sequence;
CREATE TYPE t.composite AS (id int);
CREATE FOREIGN DATA WRAPPER regress_al_fdw;
CREATE SERVER regress_al_server FOREIGN DATA WRAPPER regress_al_fdw;
CREATE FOREIGN TABLE t.foreign (id int) SERVER regress_al_server;
CREATE TABLE t.part (id int PRIMARY KEY, name text) PARTITION BY RANGE (id);
SELECT r, t.raises(format('SELECT lock_protect(%L, ''x'')', r)) AS answer FROM unnest(ARRAY['t.view', 't.matview', 't.foreign', 't.sequence', 't.orders_pkey', 't.part_pkey', 't.composite', 'app_lock', 'lock_audit', 'app_lock_fence', 'lock_guards']) WITH ORDINALITY u(r, i) ORDER BY i;
SELECT t.code('SELECT lock_protect(''pg_class'', ''x'')') IN ('42501', '42809') AS refused;
DROP MATERIALIZED VIEW t.matview;
DROP VIEW t.view;
SELECT lock_protect('t.orders', 'order:{id}');
-- temporary and unlogged tables are tables
CREATE TEMP TABLE scratch (id int);
CREATE UNLOGGED TABLE t.unlogged (id int);
INSERT INTO scratch VALUES (1);
INSERT INTO t.unlogged VALUES (1);
SELECT lock_protect('scratch', 's:{id}'), lock_protect('t.unlogged', 'u:{id}');
SELECT t.with_key('s:1', 'DELETE FROM scratch') AS temp, t.with_key('u:1', 'DELETE FROM t.unlogged') AS unlogged, t.with_key('s:1', 'DELETE FROM t.unlogged') ~ '^LK006' AS refused;
DROP TABLE scratch, t.unlogged;
SELECT relation FROM lock_guards;

--
-- Privileges
--
DROP ROLE IF EXISTS regress_al_dba, regress_al_owner, regress_al_user, regress_al_monitor;
CREATE ROLE regress_al_dba;
CREATE ROLE regress_al_owner;
CREATE ROLE regress_al_user;
CREATE ROLE regress_al_monitor;
SELECT lock_grant_access('regress_al_dba', 'admin'), lock_grant_access('regress_al_owner', 'user'), lock_grant_access('regress_al_user', 'user'), lock_grant_access('regress_al_monitor', 'monitor');
CREATE TABLE t.owned (id int);
ALTER TABLE t.owned OWNER TO regress_al_owner;
INSERT INTO t.owned VALUES (1);
GRANT ALL ON t.owned TO regress_al_user;
-- both the access level and ownership of the table are needed
CREATE FUNCTION t.who() RETURNS TABLE (role name, protect text, unprotect text, guards text) LANGUAGE sql AS $$
	SELECT current_user, t.raises('SELECT lock_protect(''t.owned'', ''own:{id}'')'), t.raises('SELECT lock_unprotect(''t.owned'')'), t.code('SELECT * FROM lock_guards')
$$;
SET ROLE regress_al_dba;
SELECT * FROM t.who();
SET ROLE regress_al_owner;
SELECT * FROM t.who();
SET ROLE regress_al_user;
SELECT * FROM t.who();
SET ROLE regress_al_monitor;
SELECT * FROM t.who();
RESET ROLE;
GRANT regress_al_owner TO regress_al_dba;
SET ROLE regress_al_dba;
SELECT lock_protect('t.owned', 'own:{id}');
RESET ROLE;
SET ROLE regress_al_monitor;
SELECT relation, key_template, events, state, parent, problem FROM lock_guards ORDER BY relation::text COLLATE "C";
SELECT t.code('INSERT INTO lock_guards DEFAULT VALUES') AS insert, t.code('DELETE FROM lock_guards') AS delete;
RESET ROLE;
-- the owner of the table can always disable or drop the trigger,
SET ROLE regress_al_owner;
SELECT t.as(NULL, 'DELETE FROM t.owned') ~ '^LK006' AS refused, t.as(NULL, 'ALTER TABLE t.owned DISABLE TRIGGER USER; DELETE FROM t.owned') AS disabled, t.as(NULL, 'DROP TRIGGER "~atomic_lock_guard" ON t.owned; DELETE FROM t.owned') AS dropped, t.code('SELECT lock_unprotect(''t.owned'')') AS unprotect;
-- but cannot create one with our function
SELECT t.code('CREATE TRIGGER mine BEFORE UPDATE ON t.owned FOR EACH ROW EXECUTE FUNCTION public.lock_guard(''x'')');
RESET ROLE;
-- a superuser, and a role whose level was revoked
SELECT lock_unprotect('t.owned'), lock_protect('t.owned', 'own:{id}');
SELECT lock_revoke_access('regress_al_dba', 'admin');
SET ROLE regress_al_dba;
SELECT t.code('SELECT lock_unprotect(''t.owned'')') AS unprotect;
RESET ROLE;
-- a child that belongs to another role
CREATE TABLE t.owned_child () INHERITS (t.owned);
SELECT lock_protect('t.owned', 'own:{id}');
GRANT regress_al_owner TO regress_al_dba;
SELECT lock_grant_access('regress_al_dba', 'admin');
SET ROLE regress_al_dba;
SELECT t.code('SELECT lock_protect(''t.owned'', ''x'')') AS protect, t.code('SELECT lock_unprotect(''t.owned'')') AS unprotect;
RESET ROLE;
DROP TABLE t.owned CASCADE;
DROP OWNED BY regress_al_dba, regress_al_owner, regress_al_user, regress_al_monitor;
DROP ROLE regress_al_dba, regress_al_owner, regress_al_user, regress_al_monitor;
