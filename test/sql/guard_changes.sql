\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\set include :srcdir '/sql/include/guarded.sql'
\i :setup
-- lock_protect, lock_guards: guards of tables that change
--
-- Properties: a guard follows every change of its table, or it refuses the next write and
-- lock_guards says why. A guard is just its triggers, so it goes wherever triggers go.
-- Partitions and children have their parent's guard. DROP EXTENSION leaves the tables as they
-- are.
--
-- Turns red when: a write passes because the guard is broken; an existing partition or child
-- has no guard; lock_guards shows no problem where there is one.
CREATE FOREIGN DATA WRAPPER regress_al_fdw;
CREATE SERVER regress_al_server FOREIGN DATA WRAPPER regress_al_fdw;
CREATE TABLE t.part (id int PRIMARY KEY, name text) PARTITION BY RANGE (id);
SELECT lock_protect('t.orders', 'order:{id}');

--
-- Later changes of the table
--
CREATE FUNCTION t.now_says(VARIADIC keys text[]) RETURNS TABLE (key text, answer text) LANGUAGE sql AS $$
	SELECT k, split_part(t.with_key(k, 'UPDATE ' || (SELECT relation FROM lock_guards WHERE relation::text ~ 'order') || ' SET rest = 1'), E'\n', 1) FROM unnest(keys) k
$$;
ALTER TABLE t.orders ADD rest int, DROP twice;
SET atomic_lock.enforce_guards = off;
DELETE FROM t.orders WHERE id = 2;
RESET atomic_lock.enforce_guards;
SELECT * FROM t.now_says('order:1', 'order:2');
-- the table and its schema are renamed
ALTER TABLE t.orders RENAME TO "Ordêrs 'x"";--";
CREATE SCHEMA "S p";
ALTER TABLE t."Ordêrs 'x"";--" SET SCHEMA "S p";
ALTER SCHEMA "S p" RENAME TO "S'q";
SELECT relation, key_template, problem FROM lock_guards;
SELECT t.with_key('order:1', $$UPDATE "S'q"."Ordêrs 'x"";--" SET rest = 1$$) AS mine, split_part(t.with_key('order:2', $$UPDATE "S'q"."Ordêrs 'x"";--" SET rest = 1$$), E'\n', 1) AS refused, split_part(t.raises($$TRUNCATE "S'q"."Ordêrs 'x"";--"$$), E'\n', 1) AS truncate;
SELECT lock_protect($$"S'q"."Ordêrs 'x"";--"$$, 'o/{id}'), t.with_key('o/1', $$UPDATE "S'q"."Ordêrs 'x"";--" SET rest = 1$$);
SELECT lock_unprotect($$"S'q"."Ordêrs 'x"";--"$$), lock_protect($$"S'q"."Ordêrs 'x"";--"$$, 'order:{id}');
ALTER TABLE "S'q"."Ordêrs 'x"";--" SET SCHEMA t;
ALTER TABLE t."Ordêrs 'x"";--" RENAME TO orders;
DROP SCHEMA "S'q";
-- a column of the template is renamed: all writes are refused until lock_protect is called
-- again
ALTER TABLE t.orders RENAME id TO order_id;
SELECT t.as(NULL, 'UPDATE t.orders SET rest = 1') AS no_owner, t.with_key('order:1', 'UPDATE t.orders SET rest = 1') AS former_key, t.code('DELETE FROM t.orders') AS delete, t.code('UPDATE t.orders SET rest = 1 WHERE false') AS no_row;
SELECT relation, key_template, problem FROM lock_guards;
SELECT lock_protect('t.orders', 'order:{order_id}');
SELECT problem FROM lock_guards;
SELECT * FROM t.now_says('order:1', 'order:2');
-- another column takes the name
ALTER TABLE t.orders RENAME order_id TO former;
ALTER TABLE t.orders RENAME name TO order_id;
SELECT * FROM t.now_says('order:1', 'order:one');
-- dropped; added again; changed to another type; behind a dropped column
SELECT lock_protect('t.orders', 'order:{rest}');
ALTER TABLE t.orders DROP rest;
SELECT t.as(NULL, 'DELETE FROM t.orders'), problem FROM lock_guards;
ALTER TABLE t.orders ADD rest int DEFAULT 5;
SELECT split_part(t.with_key('order:5', 'DELETE FROM t.orders'), E'\n', 1) AS added_again, problem FROM lock_guards;
ALTER TABLE t.orders ALTER rest TYPE text USING 'r' || rest;
SELECT split_part(t.with_key('order:r5', 'DELETE FROM t.orders'), E'\n', 1) AS other_type, split_part(t.with_key('order:5', 'DELETE FROM t.orders'), E'\n', 1) AS former_key;
ALTER TABLE t.orders DROP former;
SELECT split_part(t.with_key('order:r5', 'DELETE FROM t.orders'), E'\n', 1) AS behind_a_dropped_one;
-- generated columns: a BEFORE trigger does not see their values
ALTER TABLE t.orders DROP rest;
ALTER TABLE t.orders ADD base int DEFAULT 1, ADD rest int GENERATED ALWAYS AS (base) STORED;
SELECT t.as(NULL, 'DELETE FROM t.orders') AS answer, problem FROM lock_guards;
ALTER TABLE t.orders ALTER rest DROP EXPRESSION;
SELECT split_part(t.with_key('order:1', 'DELETE FROM t.orders'), E'\n', 1) AS no_more, problem FROM lock_guards;
-- rewritten, clustered, moved to another tablespace
VACUUM FULL t.orders;
SELECT split_part(t.with_key('order:1', 'DELETE FROM t.orders'), E'\n', 1) AS after_vacuum_full, split_part(t.with_key('order:2', 'DELETE FROM t.orders'), E'\n', 1) AS refused;

-- States of the trigger
CREATE FUNCTION t.enabled() RETURNS TABLE (row_trigger text, triggers text, state text) LANGUAGE plpgsql AS $$
DECLARE
	e	text;
BEGIN
	FOREACH e IN ARRAY ARRAY['DISABLE', 'ENABLE REPLICA', 'ENABLE ALWAYS', 'ENABLE'] LOOP
		EXECUTE format('ALTER TABLE t.orders %s TRIGGER "~atomic_lock_guard"', e);
		row_trigger := e;
		triggers := (SELECT string_agg(tgenabled::text, ' ') FROM t.triggers('t.orders'));
		state := (SELECT g.state FROM lock_guards g WHERE relation = 't.orders'::regclass);
		RETURN NEXT;
	END LOOP;
END
$$;
SELECT * FROM t.enabled();
-- lock_protect enables it again
ALTER TABLE t.orders DISABLE TRIGGER ALL;
SELECT lock_protect('t.orders', 'all');
SELECT state, t.code('DELETE FROM t.orders') AS delete, t.code('TRUNCATE t.orders') AS truncate FROM lock_guards;

-- The trigger is all there is: pg_dump's definition of it restores the guard, and LIKE copies
-- none.
SELECT lock_protect('t.orders', E'it''s {rest}\\ {{ \u2603', '{insert,delete}');
CREATE TABLE t.definitions AS SELECT pg_get_triggerdef(oid) AS def FROM pg_trigger WHERE tgrelid = 't.orders'::regclass AND tgname LIKE '~%';
SELECT lock_unprotect('t.orders');
CREATE TABLE t.orders_2 (LIKE t.orders INCLUDING ALL);
SELECT count(*) FROM lock_guards;
DO $$
DECLARE
	d	text;
BEGIN
	FOR d IN SELECT def FROM t.definitions LOOP
		EXECUTE d;
	END LOOP;
END
$$;
SELECT relation, key_template, events, state, problem FROM lock_guards;
SELECT split_part(t.with_key(E'it''s 1\\ { \u2603', 'DELETE FROM t.orders'), E'\n', 1) AS mine, t.code('DELETE FROM t.orders') AS delete, t.code('TRUNCATE t.orders') AS truncate, t.code('UPDATE t.orders SET rest = 2') AS update;
-- a renamed trigger still is the guard
ALTER TRIGGER "~atomic_lock_guard" ON t.orders RENAME TO "~~";
SELECT key_template, t.code('DELETE FROM t.orders') AS delete FROM lock_guards;
ALTER TRIGGER "~~" ON t.orders RENAME TO "~atomic_lock_guard";
SELECT lock_unprotect('t.orders');
SELECT count(*) FROM lock_guards;

-- Triggers created by hand with the guard's function, and direct calls of the function
SELECT t.raises('SELECT lock_guard()');
CREATE FUNCTION t.by_hand(def text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE 'CREATE TRIGGER by_hand ' || def;
	RETURN split_part(t.raises('UPDATE t.orders SET rest = 9'), E'\n', 1);
END
$$;
CREATE FUNCTION t.undone(def text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text;
BEGIN
	BEGIN
		answer := t.by_hand(def);
		RAISE SQLSTATE 'RB000';
	EXCEPTION WHEN SQLSTATE 'RB000' THEN
		RETURN answer;
	END;
END
$$;
SELECT def, t.undone(def) AS answer FROM unnest(ARRAY['BEFORE UPDATE ON t.orders FOR EACH ROW EXECUTE FUNCTION lock_guard()', 'BEFORE UPDATE ON t.orders FOR EACH ROW EXECUTE FUNCTION lock_guard(''{'')', 'BEFORE UPDATE ON t.orders FOR EACH ROW EXECUTE FUNCTION lock_guard(''x'', ''y'', ''z'')', 'AFTER UPDATE ON t.orders FOR EACH ROW EXECUTE FUNCTION lock_guard(''x'')', 'BEFORE UPDATE ON t.orders EXECUTE FUNCTION lock_guard(''x'')', 'AFTER UPDATE ON t.orders EXECUTE FUNCTION lock_guard(''x'')']) WITH ORDINALITY u(def, i) ORDER BY i;
DROP TABLE t.definitions;

--
-- Partitions
--
CREATE TABLE t.part_1 PARTITION OF t.part FOR VALUES FROM (0) TO (10);
CREATE TABLE t.part_2 PARTITION OF t.part FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id);
CREATE TABLE t.part_2_1 PARTITION OF t.part_2 FOR VALUES FROM (10) TO (15);
SELECT lock_protect('t.part', 'part:{id}');
SELECT relation, key_template, events, state, parent, problem FROM lock_guards ORDER BY relation::text COLLATE "C";
-- a partition's guard belongs to the parent
SELECT r, t.raises(format('SELECT lock_protect(%L, ''x'')', r)) AS protect, t.code(format('SELECT lock_unprotect(%L)', r)) AS unprotect FROM unnest(ARRAY['t.part_1', 't.part_2', 't.part_2_1']) r;
SELECT t.raises('SELECT lock_unprotect(''t.part_1'')');
-- a new partition, and one attached with its rows
CREATE TABLE t.part_3 PARTITION OF t.part FOR VALUES FROM (20) TO (30);
CREATE TABLE t.part_4 (name text, id int NOT NULL);
INSERT INTO t.part_4 VALUES ('x', 35);
ALTER TABLE t.part ATTACH PARTITION t.part_4 FOR VALUES FROM (30) TO (40);
SELECT relation, key_template, parent FROM lock_guards ORDER BY relation::text COLLATE "C";
SELECT t.with_key('part:35', 'DELETE FROM t.part_4') AS mine, t.code('DELETE FROM t.part_4') AS nobody;
-- calling lock_protect again adds what new partitions lack
SELECT lock_protect('t.part', 'p{id}', '{delete}');
SELECT r, t.code('TRUNCATE ' || r) AS truncate FROM unnest(ARRAY['t.part_1', 't.part_2', 't.part_2_1', 't.part_3', 't.part_4']) r;
SELECT relation, key_template, events, parent FROM lock_guards ORDER BY relation::text COLLATE "C";
-- a detached partition has no guard, and may get its own; then it cannot be attached unnoticed
ALTER TABLE t.part DETACH PARTITION t.part_4;
SELECT t.code('DELETE FROM t.part_4') AS delete;
SELECT relation FROM lock_guards WHERE relation = 't.part_4'::regclass;
SELECT '00000' IN (t.code('TRUNCATE t.part_4'), t.code('SELECT lock_unprotect(''t.part_4''); TRUNCATE t.part_4')) AS can_be_truncated;
SELECT lock_protect('t.part_4', 'mine:{id}');
SELECT t.code('DELETE FROM t.part_4') AS delete, t.code('TRUNCATE t.part_4') AS truncate, t.with_key('mine:35', 'DELETE FROM t.part_4') AS mine;
SELECT t.code('ALTER TABLE t.part ATTACH PARTITION t.part_4 FOR VALUES FROM (30) TO (40)') AS attach;
SELECT lock_unprotect('t.part_4');
SELECT t.code('TRUNCATE t.part_4') AS truncate;
ALTER TABLE t.part ATTACH PARTITION t.part_4 FOR VALUES FROM (30) TO (40);
SELECT t.with_key('p35', 'DELETE FROM t.part_4') AS mine, t.code('DELETE FROM t.part_4') AS nobody;
-- the guard of one partition only
SELECT lock_unprotect('t.part');
SELECT count(*) FROM lock_guards;
SELECT sum(n) AS left_over FROM unnest(ARRAY['t.part', 't.part_1', 't.part_2', 't.part_2_1', 't.part_3', 't.part_4']) r, LATERAL (SELECT count(*) AS n FROM t.triggers(r::regclass)) c;
SELECT lock_protect('t.part_2', 'two:{id}');
INSERT INTO t.part VALUES (1), (12);
SELECT t.with_key('two:12', 'UPDATE t.part SET name = ''x''') AS mine, t.code('UPDATE t.part SET name = ''x''') AS nobody, t.code('UPDATE t.part_1 SET name = ''x''') AS another_partition, t.code('TRUNCATE t.part') AS truncate;
SELECT relation, parent FROM lock_guards ORDER BY relation::text COLLATE "C";
-- then a guard on the parent: it replaces the partition's own
SELECT lock_protect('t.part', 'part:{id}');
SELECT relation, key_template, parent FROM lock_guards ORDER BY relation::text COLLATE "C";
SELECT tgname FROM t.triggers('t.part_2_1');
SELECT lock_unprotect('t.part');
SELECT sum(n) AS left_over FROM unnest(ARRAY['t.part', 't.part_1', 't.part_2', 't.part_2_1']) r, LATERAL (SELECT count(*) AS n FROM t.triggers(r::regclass)) c;
-- a foreign partition
CREATE TABLE t.far (id int) PARTITION BY RANGE (id);
CREATE FOREIGN TABLE t.far_1 PARTITION OF t.far FOR VALUES FROM (0) TO (10) SERVER regress_al_server;
SELECT t.raises('SELECT lock_protect(''t.far'', ''far:{id}'')');

--
-- Children
--
CREATE TABLE t.parent (id int);
CREATE TABLE t.child (x int) INHERITS (t.parent);
CREATE TABLE t.grandchild () INHERITS (t.child);
SELECT lock_protect('t.parent', 'i{id}');
SELECT relation, key_template, events, state, parent, problem FROM lock_guards ORDER BY relation::text COLLATE "C";
-- one child has another template; the parent's replaces it
SELECT lock_protect('t.child', 'c{id}');
SELECT relation, key_template FROM lock_guards ORDER BY relation::text COLLATE "C";
CREATE TABLE t.child_2 () INHERITS (t.parent);
SELECT lock_protect('t.parent', 'j{id}');
SELECT relation, key_template FROM lock_guards ORDER BY relation::text COLLATE "C";
-- a column of the child alone is not the parent's
SELECT t.state(t.raises($$SELECT lock_protect('t.parent', '{x}')$$)) AS parent, t.state(t.raises($$SELECT lock_protect('t.child', '{x}')$$)) AS child;
SELECT lock_unprotect('t.child_2');
SELECT lock_unprotect('t.parent');
SELECT count(*) FROM lock_guards;

--
-- DROP EXTENSION: the tables stay
--
SELECT lock_protect('t.parent', 'i{id}'), lock_protect('t.part', 'part:{id}');
SELECT t.state(t.raises('DROP EXTENSION atomic_lock'));
INSERT INTO t.parent VALUES (1);
DROP TABLE t.child_2;
DROP EXTENSION atomic_lock CASCADE;
UPDATE t.parent SET id = 2 RETURNING id;
SELECT sum(n) AS left_over FROM unnest(ARRAY['t.part', 't.part_1', 't.parent', 't.child']) r, LATERAL (SELECT count(*) AS n FROM t.triggers(r::regclass)) c;
CREATE EXTENSION atomic_lock;
SELECT count(*) FROM lock_guards;
-- a guard is dropped with its table
SELECT lock_protect('t.parent', 'i{id}');
DROP TABLE t.parent CASCADE;
SELECT count(*) FROM lock_guards;

DROP FOREIGN DATA WRAPPER regress_al_fdw CASCADE;
