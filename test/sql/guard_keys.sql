\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\set include :srcdir '/sql/include/orders.sql'
\i :setup
-- The guard of lock_protect: the key of a row, in partitions and children, too
--
-- Properties: a guard builds the key as lock_key does. It writes each type with the type's
-- output function, under any settings of the writer, and uses the row as other triggers have
-- left it. A row that moves between partitions needs both keys. Partitions and children are
-- guarded like their parent.
--
-- Turns red when: a key is built from another column than the template's, or from its value
-- before other triggers; a setting changes the key; a partition or child has no guard.
SELECT lock_protect('t.lines', 'order:{order_id}');

-- Keys
--
-- every type, written by its output function and escaped as in lock_key
CREATE TYPE t.mood AS ENUM ('fine', 'so, so');
CREATE TYPE t.pair AS (a int, b text);
CREATE DOMAIN t.sku AS varchar(9) CHECK (VALUE <> '');
CREATE TABLE t.types (small smallint, num int, big bigint, id uuid, word text, short varchar(9), padded char(5), day date, amount numeric(9, 2), state t.mood, code t.sku, bin bytea, yes bool, list int[], words text[], comp t.pair, data jsonb, span int4range, nasty text,
	rest int, twice int GENERATED ALWAYS AS (num * 2) STORED);
INSERT INTO t.types VALUES (-1, 42, 9007199254740993, 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', 'Ünï ☃', 'abc', 'ab', '2026-12-31', 1.5, 'so, so', 'X-1', '\x00ff41', true, '{1,2}', '{"a b",NULL,"c,d"}', '(1,"b c")', '{"b": 1, "a": "x"}', '[1,3)', E'{num}\n:''"\\%s');
CREATE TABLE t.keys (col text PRIMARY KEY, key text);
INSERT INTO t.keys VALUES ('small', '-1'), ('num', '42'), ('big', '9007199254740993'), ('id', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'), ('word', 'Ünï ☃'), ('short', 'abc'), ('padded', 'ab'), ('day', '2026-12-31'), ('amount', '1.50'), ('state', 'so, so'), ('code', 'X-1'), ('bin', '\\x00ff41'), ('yes', 't'),
	('list', '{1,2}'), ('words', '{"a b",NULL,"c,d"}'), ('comp', '(1,"b c")'), ('data', '{"a"\: "x", "b"\: 1}'), ('span', '[1,3)'), ('nasty', E'{num}\n\\:''"\\\\%s');
CREATE FUNCTION t.try_type(col text, key text, OUT right_key text, OUT wrong_key text) LANGUAGE plpgsql AS $$
BEGIN
	SET LOCAL DateStyle = 'ISO';
	PERFORM lock_protect('t.types', format('k{%s}', col));
	right_key := t.with_keys(ARRAY['k' || key], 'UPDATE t.types SET rest = 1');
	wrong_key := t.with_keys(ARRAY['k' || key || ' '], 'UPDATE t.types SET rest = 1');
END
$$;
SELECT right_key, wrong_key, string_agg(col, ' ' ORDER BY col) FROM t.keys, t.try_type(col, key) GROUP BY 1, 2;
SELECT count(*) FROM t.keys;
SELECT t.with_keys(ARRAY['a{b}c 42:t/X-1'], 'UPDATE t.types SET rest = 1') AS other, lock_protect('t.types', 'a{{b}}c {num}:{yes}/{code}'), t.with_keys(ARRAY['a{b}c 42:t/X-1'], 'UPDATE t.types SET rest = 1') AS several;
SELECT lock_protect('t.types', repeat('{num}.', 40)), t.with_keys(ARRAY[repeat('42.', 40)], 'UPDATE t.types SET rest = 1') AS many_parts;
-- no setting of the writer changes the key
CREATE TABLE t.formats (day date, span interval, num float8, bin bytea, rest int);
INSERT INTO t.formats VALUES ('2026-12-31', '1 day 02:03', 0.1::float8 + 0.2::float8, '\x00ff41');
SELECT lock_protect('t.formats', '{day}/{span}/{num}/{bin}');
CREATE FUNCTION t.key_under(name text, value text) RETURNS text LANGUAGE plpgsql SET DateStyle = ISO SET IntervalStyle = postgres AS $$
BEGIN
	PERFORM set_config(name, value, true);
	RETURN t.with_keys(ARRAY['2026-12-31/1 day 02\:03\:00/0.30000000000000004/\\x00ff41'], 'UPDATE t.formats SET rest = 1');
END
$$;
SELECT t.key_under(name, value) AS answer, name, value FROM (VALUES ('DateStyle', 'ISO'), ('DateStyle', 'German'), ('IntervalStyle', 'iso_8601'), ('extra_float_digits', '0'), ('extra_float_digits', '1'), ('bytea_output', 'escape')) v (name, value);
-- one key for the whole table
SELECT lock_protect('t.types', 'all of them');
SELECT t.with_keys(ARRAY['all of them'], 'UPDATE t.types SET num = 43, word = NULL') AS answer, t.with_keys(ARRAY['all'], 'UPDATE t.types SET num = 43') AS other;
-- a value that only changes its text form changes the key
SELECT lock_protect('t.types', '{amount}|{short}');
SELECT t.with_keys(ARRAY['1.50|abc'], stmt) AS answer, stmt FROM unnest(ARRAY['UPDATE t.types SET amount = 1.500', 'UPDATE t.types SET amount = 1.51', 'UPDATE t.types SET short = ''abc''', 'UPDATE t.types SET short = ''abc ''']) WITH ORDINALITY u(stmt, i) ORDER BY i;
-- no key
SELECT lock_protect('t.types', '{word}');
SELECT t.with_keys(ARRAY['Ünï ☃'], stmt) AS answer, left(stmt, 60) AS stmt FROM unnest(ARRAY['UPDATE t.types SET word = NULL', 'UPDATE t.types SET word = ''''', 'UPDATE t.types SET word = repeat(''x'', 1024)', 'UPDATE t.types SET word = repeat(''x'', 1025)', 'UPDATE t.types SET word = repeat(''x'', 1000000)']) WITH ORDINALITY u(stmt, i) ORDER BY i;
SELECT t.with_keys(ARRAY['Ünï ☃', repeat('x', 1024)], 'UPDATE t.types SET word = repeat(''x'', 1024)') AS longest;
SET atomic_lock.enforce_guards = off;
UPDATE t.types SET word = NULL;
SET atomic_lock.enforce_guards = on;
SELECT t.told('alice-1', 'UPDATE t.types SET rest = 1') AS from_null, t.told('alice-1', 'DELETE FROM t.types') AS delete, t.told('alice-1', 'UPDATE t.types SET word = ''x''') AS and_to_something;

-- The row after other BEFORE triggers counts; a row that they drop needs no lock.
CREATE TABLE t.triggered (id int, note text);
CREATE FUNCTION t.change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NEW.note = 'drop' THEN
		RETURN NULL;
	ELSIF NEW.note ~ '^[0-9]+$' THEN
		NEW.id := NEW.note;
	END IF;
	RETURN NEW;
END
$$;
INSERT INTO t.triggered VALUES (1);
SELECT lock_protect('t.triggered', 'tr:{id}', '{insert,update}');
CREATE TRIGGER a BEFORE INSERT OR UPDATE ON t.triggered FOR EACH ROW EXECUTE FUNCTION t.change();
CREATE TRIGGER "zz{" BEFORE INSERT OR UPDATE ON t.triggered FOR EACH ROW EXECUTE FUNCTION t.change();
SELECT t.with_keys(keys, stmt) AS answer, keys, stmt FROM (VALUES ('{tr:1}'::text[], 'UPDATE t.triggered SET note = ''x'''), ('{tr:1}', 'UPDATE t.triggered SET note = 2'), ('{tr:1,tr:2}', 'UPDATE t.triggered SET note = 2'), ('{tr:3}', 'UPDATE t.triggered SET note = ''drop'''),
	('{tr:1}', 'INSERT INTO t.triggered VALUES (1, 2)'), ('{tr:2}', 'INSERT INTO t.triggered VALUES (1, 2)'), ('{tr:3}', 'INSERT INTO t.triggered VALUES (1, ''drop'')')) v (keys, stmt);
-- A trigger that writes a guarded table is checked like any writer.
CREATE FUNCTION t.write_order() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN UPDATE t.lines SET text = NEW.note WHERE order_id = NEW.id; RETURN NULL; END';
CREATE TRIGGER after AFTER UPDATE ON t.triggered FOR EACH ROW EXECUTE FUNCTION t.write_order();
SELECT t.with_keys('{tr:1}', 'UPDATE t.triggered SET note = ''x''') AS one, t.with_keys('{tr:1,order:1}', 'UPDATE t.triggered SET note = ''x''') AS both;

--
-- Partitions and children
--
CREATE TABLE t.part (id int, region text, note text) PARTITION BY LIST (region);
CREATE TABLE t.part_eu PARTITION OF t.part FOR VALUES IN ('eu');
-- a partition with another order of columns, and a dropped one
CREATE TABLE t.part_us (gone int, note text, region text, id int);
ALTER TABLE t.part_us DROP gone;
CREATE TABLE t.part_rest PARTITION OF t.part DEFAULT PARTITION BY RANGE (id);
CREATE TABLE t.part_rest_1 PARTITION OF t.part_rest FOR VALUES FROM (0) TO (100);
SELECT lock_protect('t.part', 'part:{id}:{region}');
ALTER TABLE t.part ATTACH PARTITION t.part_us FOR VALUES IN ('us');
INSERT INTO t.part VALUES (1, 'eu'), (2, 'us'), (3, 'xx');
SELECT t.with_keys(keys, stmt) AS answer, keys, stmt FROM (VALUES
	('{part:1:eu}'::text[], 'UPDATE t.part SET note = ''x'' WHERE id = 1'), ('{part:2:us}', 'UPDATE t.part SET note = ''x'' WHERE id = 2'), ('{part:3:xx}', 'DELETE FROM t.part WHERE id = 3'), ('{part:1:eu}', 'DELETE FROM t.part'), ('{part:1:eu,part:2:us,part:3:xx}', 'UPDATE t.part SET note = ''x'''),
	('{part:2:us}', 'UPDATE t.part_us SET note = ''x'''), ('{part:9:xx}', 'UPDATE t.part_us SET note = ''x'''), ('{part:9:xx}', 'DELETE FROM t.part_rest_1'), ('{part:3:xx}', 'DELETE FROM t.part_rest'),
-- a row that moves to another partition needs both keys
	('{part:1:eu}', 'UPDATE t.part SET region = ''us'' WHERE id = 1'), ('{part:1:us}', 'UPDATE t.part SET region = ''us'' WHERE id = 1'), ('{part:1:eu,part:1:us}', 'UPDATE t.part SET region = ''us'' WHERE id = 1'),
	('{part:2:us,part:2:yy}', 'UPDATE t.part SET region = ''yy'' WHERE id = 2'), ('{part:2:us}', 'UPDATE t.part SET region = ''yy'' WHERE id = 2')) v (keys, stmt);
SELECT lock_protect('t.part', 'part:{id}');
SELECT t.with_keys('{part:1}', 'UPDATE t.part SET region = ''us'' WHERE id = 1') AS moved, t.with_keys('{part:9}', 'UPDATE t.part SET region = ''us'' WHERE id = 1') AS not_mine;
-- a guard for only one of the events of such a move
SELECT e, lock_protect('t.part', 'part:{id}:{region}', ARRAY[e]), t.with_keys('{part:1:eu}', 'UPDATE t.part SET region = ''us'' WHERE id = 1') AS from, t.with_keys('{part:1:us}', 'UPDATE t.part SET region = ''us'' WHERE id = 1') AS to FROM unnest(ARRAY['insert', 'update', 'delete']) e;
SELECT lock_protect('t.part', 'part:{id}');
-- a new partition
CREATE TABLE t.part_new PARTITION OF t.part FOR VALUES IN ('new');
INSERT INTO t.part VALUES (4, 'new');
SELECT t.as(NULL, 'DELETE FROM t.part_new') AS nobody, t.as(NULL, 'TRUNCATE t.part_new') AS truncate, t.with_keys('{part:4}', 'DELETE FROM t.part_new') AS holder;
-- none of them can be truncated
SELECT lock_protect('t.part', 'part:{id}');
SELECT t.as(NULL, 'TRUNCATE ' || r) AS answer, r FROM unnest(ARRAY['t.part', 't.part_eu', 't.part_us', 't.part_rest', 't.part_rest_1', 't.part_new', 'ONLY t.part_eu']) r;
-- a detached partition is unguarded
ALTER TABLE t.part DETACH PARTITION t.part_us;
SELECT t.as(NULL, 'UPDATE t.part_us SET note = ''x''') AS detached, t.as(NULL, 'UPDATE t.part SET note = ''x''') AS the_others;

CREATE TABLE t.parent (id int, note text);
CREATE TABLE t.child (extra int) INHERITS (t.parent);
CREATE TABLE t.child_2 (more text, id int, note text);
ALTER TABLE t.child_2 INHERIT t.parent;
CREATE TABLE t.grandchild () INHERITS (t.child);
INSERT INTO t.parent VALUES (1);
INSERT INTO t.child VALUES (2);
INSERT INTO t.child_2 VALUES ('x', 3);
INSERT INTO t.grandchild VALUES (4);
SELECT lock_protect('t.parent', 'inh:{id}');
SELECT t.as(NULL, stmt) AS nobody, t.with_keys('{inh:1,inh:2,inh:3,inh:4}', stmt) AS holder, stmt FROM unnest(ARRAY['UPDATE t.parent SET note = ''x''', 'UPDATE ONLY t.parent SET note = ''x''', 'DELETE FROM t.child', 'DELETE FROM t.child_2', 'UPDATE t.grandchild SET note = ''x''']) WITH ORDINALITY u(stmt, i) ORDER BY i;
SELECT t.with_keys('{inh:1,inh:2,inh:3}', 'UPDATE t.parent SET note = ''x''') AS one_is_missing;
SELECT t.as(NULL, 'TRUNCATE ' || r) AS answer, r FROM unnest(ARRAY['t.parent', 'ONLY t.parent', 't.child', 't.child_2', 't.grandchild']) r;
-- calling lock_protect again guards a new child
CREATE TABLE t.child_3 () INHERITS (t.parent);
INSERT INTO t.child_3 VALUES (5);
SELECT lock_protect('t.parent', 'inh:{id}');
SELECT t.as(NULL, 'DELETE FROM t.child_3') AS nobody, t.with_keys('{inh:5}', 'DELETE FROM t.child_3') AS holder, t.as(NULL, 'TRUNCATE t.child_3') AS truncate;
