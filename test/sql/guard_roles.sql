\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\set include :srcdir '/sql/include/orders.sql'
\i :setup
-- The guard of lock_protect: roles that are subject to it, and roles that may turn it off
--
-- Properties:
-- - A guard asks every role for the key's owner, and the role needs no right on our tables.
-- - A writer evades it neither by a setting nor by names in search_path. A role that may set
--   atomic_lock.enforce_guards can turn it off, and replication does.
-- - A message reveals no more of a row than the writer may read.
-- - Every isolation level gives the same answers, and a session that has not loaded our library
--   yet is refused, too.
--
-- Turns red when: a role evades the guard without the right to turn it off; code of another
-- role runs in a guard; a key is shown to a writer who may not read its column; an old snapshot
-- decides; TRUNCATE passes in a new session.
CREATE TABLE t.part (id int, region text) PARTITION BY LIST (region);
CREATE TABLE t.part_rest PARTITION OF t.part DEFAULT;
INSERT INTO t.part VALUES (1, 'eu');
CREATE TABLE t.types (word text);
INSERT INTO t.types VALUES ('x');
SELECT lock_protect('t.lines', 'order:{order_id}'), lock_protect('t.part', 'part:{id}'), lock_protect('t.types', '{word}');

--
-- Roles that are subject to it
--
DROP ROLE IF EXISTS regress_al_writer, regress_al_mallory;
CREATE ROLE regress_al_writer;
CREATE ROLE regress_al_mallory;
GRANT SELECT, INSERT, UPDATE, DELETE ON t.lines TO regress_al_writer;
SELECT status FROM lock_acquire('order:1', '1 hour', 'alice-1', holder => 'Alice') UNION ALL SELECT status FROM lock_acquire('order:2', '1 hour', 'bob-1', holder => 'Bob');
-- a writer needs no right on our objects
SELECT p FROM unnest(ARRAY['SELECT', 'UPDATE']) p WHERE has_table_privilege('regress_al_writer', 'app_lock', p);
SET SESSION AUTHORIZATION regress_al_writer;
SELECT t.code('SELECT lock_assert(''order:1'', ''alice-1'')') AS no_right, t.as('alice-1', 'UPDATE t.lines SET text = ''x'' WHERE order_id = 1') AS mine, t.as('alice-1', 'UPDATE t.lines SET text = ''x'' WHERE order_id = 2') AS another_s;
-- and cannot evade the guard: by the setting, another trigger, or hostile names
SELECT stmt, t.code(stmt) FROM unnest(ARRAY['SET atomic_lock.enforce_guards = off', 'SET LOCAL atomic_lock.enforce_guards = on', 'SELECT set_config(''atomic_lock.enforce_guards'', ''off'', false)', 'ALTER ROLE regress_al_writer SET atomic_lock.enforce_guards = off',
	'ALTER TABLE t.lines DISABLE TRIGGER "~atomic_lock_guard"', 'DROP TRIGGER "~atomic_lock_guard" ON t.lines', 'SET session_replication_role = replica', 'TRUNCATE t.lines', 'SELECT lock_unprotect(''t.lines'')', 'SELECT lock_protect(''t.lines'', ''x'')', 'SELECT lock_guard()']) WITH ORDINALITY u(stmt, i) ORDER BY i;
CREATE TEMP TABLE app_lock AS SELECT 'order:2'::text AS key, 'alice-1'::text AS owner;
CREATE FUNCTION pg_temp.lock_assert(text, text) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
SET search_path = pg_temp, t, pg_catalog, public;
SELECT t.as('alice-1', 'UPDATE t.lines SET text = ''x'' WHERE order_id = 1') AS mine, t.as('alice-1', 'UPDATE t.lines SET text = ''x'' WHERE order_id = 2') AS another_s;
SET search_path = '';
SELECT t.as('alice-1', 'UPDATE t.lines SET text = ''x'' WHERE order_id = 1') AS mine, t.as('alice-1', 'UPDATE t.lines SET text = ''x'' WHERE order_id = 2') AS another_s;
RESET search_path;
DROP TABLE pg_temp.app_lock;
RESET SESSION AUTHORIZATION;
-- the message reveals no more of a row than the writer may read: whole table, column, parent of
-- a partition, no row security
REVOKE ALL ON t.lines FROM regress_al_writer;
GRANT UPDATE, DELETE ON t.lines, t.part TO regress_al_writer;
CREATE FUNCTION t.reads(stmt text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text;
BEGIN
	SET LOCAL ROLE regress_al_writer;
	answer := t.told('alice-1', stmt);
	RESET ROLE;
	RETURN answer;
END
$$;
SELECT t.reads('DELETE FROM t.lines') AS nothing;
GRANT SELECT (line) ON t.lines TO regress_al_writer;
SELECT t.reads('DELETE FROM t.lines WHERE line > 0') ~ 'order:[0-9]' AS another_column;
GRANT SELECT (order_id) ON t.lines TO regress_al_writer;
SELECT t.reads('DELETE FROM t.lines WHERE order_id = 4') ~ '"order:4"' AS the_column;
ALTER TABLE t.lines ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON t.lines USING (true);
SELECT t.reads('DELETE FROM t.lines WHERE order_id = 4') ~ 'order:[0-9]' AS row_security;
ALTER TABLE t.lines DISABLE ROW LEVEL SECURITY;
DROP POLICY p ON t.lines;
SELECT t.reads('DELETE FROM t.part') ~ 'part:[0-9]' AS not_the_partition;
GRANT SELECT ON t.part TO regress_al_writer;
SELECT t.reads('DELETE FROM t.part') ~ 'part:[0-9]' AS through_the_parent;
GRANT SELECT, INSERT, UPDATE, DELETE ON t.lines TO regress_al_writer;
-- operators and types of others, for each type of key
CREATE SCHEMA mallory AUTHORIZATION regress_al_mallory;
SET ROLE regress_al_mallory;
CREATE FUNCTION mallory.captured() RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RAISE 'captured'; END$$;
DO $$
DECLARE
	f	text;
BEGIN
	FOREACH f IN ARRAY ARRAY['text', 'integer', 'oid', 'name'] LOOP
		EXECUTE format('CREATE FUNCTION mallory.op(%s, %1$s) RETURNS boolean LANGUAGE sql AS ''SELECT mallory.captured()''', f);
		EXECUTE format('CREATE OPERATOR mallory.= (FUNCTION = mallory.op, LEFTARG = %s, RIGHTARG = %1$s)', f);
	END LOOP;
	CREATE DOMAIN mallory.text AS pg_catalog.int4 CHECK (mallory.captured());
END
$$;
RESET ROLE;
GRANT USAGE ON SCHEMA mallory TO PUBLIC;
PREPARE q AS DELETE FROM t.lines WHERE order_id OPERATOR(pg_catalog.=) 2;
SET search_path = mallory, pg_catalog;
SELECT t.as('bob-1', 'EXECUTE q') AS bob, t.as('alice-1', 'EXECUTE q') AS alice;
RESET search_path;
DROP SCHEMA mallory CASCADE;
-- an owner that another role sets in its function is invisible outside of it
CREATE FUNCTION t.for_bob(stmt text) RETURNS text LANGUAGE plpgsql SET atomic_lock.owner = 'bob-1' AS 'BEGIN RETURN t.code(stmt); END';
SELECT t.for_bob('DELETE FROM t.lines WHERE order_id = 2') AS within, t.code('DELETE FROM t.lines WHERE order_id = 2') AS without;

-- atomic_lock.enforce_guards: off for maintenance, for roles that may set it
BEGIN;
SET LOCAL atomic_lock.enforce_guards = off;
SELECT t.code(stmt), stmt FROM unnest(ARRAY['UPDATE t.lines SET text = ''x''', 'DELETE FROM t.lines', 'TRUNCATE t.lines', 'TRUNCATE t.orders CASCADE', 'UPDATE t.types SET word = NULL', 'TRUNCATE t.part']) WITH ORDINALITY u(stmt, i) ORDER BY i;
SELECT claims FROM t.left_open();
COMMIT;
SELECT t.code('UPDATE t.lines SET text = ''x''') AS on_again;
GRANT SET ON PARAMETER atomic_lock.enforce_guards TO regress_al_writer;
SET ROLE regress_al_writer;
BEGIN;
SET LOCAL atomic_lock.enforce_guards = off;
SELECT t.code('UPDATE t.lines SET text = ''x''') AS who_was_let;
ROLLBACK;
RESET ROLE;
REVOKE SET ON PARAMETER atomic_lock.enforce_guards FROM regress_al_writer;
-- Replicated writes have passed a guard at their origin, so they are not checked again unless
-- the trigger is enabled for replicas
CREATE FUNCTION t.replica() RETURNS TABLE (origin text, replica text, truncate text) LANGUAGE plpgsql AS $$
BEGIN
	origin := t.code('UPDATE t.lines SET text = ''x''');
	SET LOCAL session_replication_role = replica;
	replica := t.code('UPDATE t.lines SET text = ''x''');
	truncate := t.code('TRUNCATE t.lines');
	SET LOCAL session_replication_role = origin;
	RETURN NEXT;
END
$$;
SELECT * FROM t.replica();
ALTER TABLE t.lines ENABLE ALWAYS TRIGGER "~atomic_lock_guard";
SELECT * FROM t.replica();
ALTER TABLE t.lines ENABLE REPLICA TRIGGER "~atomic_lock_guard";
SELECT * FROM t.replica();
ALTER TABLE t.lines DISABLE TRIGGER "~atomic_lock_guard";
SELECT * FROM t.replica();
ALTER TABLE t.lines ENABLE TRIGGER "~atomic_lock_guard";
SELECT * FROM t.replica();

-- At every isolation level the newest committed state of the lock decides, whatever the
-- snapshot
CREATE FUNCTION t.story() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text := current_setting('transaction_isolation');
BEGIN
	FOR i IN 1..2 LOOP
		answer := concat_ws(' ', answer, t.as('dora-1', 'UPDATE t.lines SET text = ''x'' WHERE order_id = 4'), (lock_acquire('order:4', '1 hour', 'dora-1')).status, t.as('dora-1', 'UPDATE t.lines SET text = ''x'' WHERE order_id = 4'), t.as('bob-1', 'UPDATE t.lines SET text = ''x'' WHERE order_id = 4'), lock_release('order:4', 'dora-1'));
	END LOOP;
	RETURN answer;
END
$$;
:at_every_level

DROP OWNED BY regress_al_writer, regress_al_mallory;
DROP ROLE regress_al_writer, regress_al_mallory;

-- A session that has not called any of our functions yet is refused, too.
\c -
TRUNCATE t.lines;
