\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- One way to build keys: lock_key, the template of a guard, and lock_fetch
--
-- Properties: the same values make the same key in all three, for every type and under any
-- session setting. Different values make different keys, even for two adjacent text columns.
-- lock_fetch locks the key that the guard of its table asks for.
--
-- Turns red when: one of them writes or escapes a value differently; a setting matters;
-- lock_fetch ignores the guard.

CREATE TYPE t.mood AS ENUM ('fine', 'so:so');
CREATE DOMAIN t.sku AS char(5);
CREATE TYPE t.pair AS (a text, b timestamptz);

-- The key that a guard asks for, taken from its message
CREATE FUNCTION t.asked(stmt text) RETURNS text LANGUAGE sql AS $$
	SELECT substring(split_part(t.raises(stmt), E'\n', 1) FROM '^LK006: lock "(.*)" is not held by this owner$')
$$;

-- The keys that each of them makes for a row of a table with one column
CREATE FUNCTION t.keys(type text, id text) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
	keys	text[];
BEGIN
	EXECUTE format('CREATE TABLE t.doc (id %s PRIMARY KEY)', type);
	EXECUTE format('INSERT INTO t.doc VALUES (%L)', id);
	-- a number among the parts selects the variant for any type
	EXECUTE 'SELECT ARRAY[lock_key(''doc'', id), ''doc'' || substr(lock_key(1, id), 2)] FROM t.doc' INTO keys;
	EXECUTE format('SELECT count(*) FROM lock_fetch(NULL::t.doc, %L)', id);
	keys[3] := (SELECT key FROM lock_status());
	PERFORM lock_release_all();
	PERFORM lock_protect('t.doc', 'doc:{id}');
	keys[4] := t.asked('DELETE FROM t.doc');
	EXECUTE format('SELECT count(*) FROM lock_fetch(NULL::t.doc, %L)', id);
	keys[5] := (SELECT key FROM lock_status());
	DELETE FROM t.doc;
	PERFORM lock_release_all();
	DROP TABLE t.doc;
	RETURN keys;
END
$$;

-- Repeats this under each of several settings: the number of different keys, and the key
CREATE FUNCTION t.one_key(type text, id text, OUT keys bigint, OUT key text) LANGUAGE plpgsql AS $$
DECLARE
	setting	text[];
	found	text[] := t.keys(type, id);
BEGIN
	FOREACH setting SLICE 1 IN ARRAY ARRAY[['TimeZone', 'Pacific/Chatham'], ['DateStyle', 'German, DMY'], ['IntervalStyle', 'sql_standard'], ['bytea_output', 'escape'], ['extra_float_digits', '-9'], ['quote_all_identifiers', 'on'], ['search_path', 't, public']] LOOP
		found := found || t.keys(type, id) || (SELECT t.keys(type, id) FROM set_config(setting[1], setting[2], false));
		EXECUTE format('RESET %I', setting[1]);
	END LOOP;
	SELECT count(DISTINCT k), min(k) INTO keys, key FROM unnest(found || ARRAY['']) k WHERE k IS DISTINCT FROM '';
	keys := keys + (SELECT count(*) FROM unnest(found) k WHERE k IS NULL);
END
$$;

SET atomic_lock.owner = 'alice-1';
SELECT type, id, k.* FROM (VALUES ('text', 'plain'), ('text', ''), ('text', ':'), ('text', '\'), ('text', '\:'), ('text', ':\'), ('text', 'a:b\c::\\'), ('text', ' blanks '), ('text', '{id}'), ('text', '☃:"''$%s'), ('varchar(9)', 'a:b '), ('char(5)', 'a:'), ('t.sku', 'x'), ('name', 'a:b'), ('"char"', ':'),
	('integer', '42'), ('bigint', '-9007199254740993'), ('smallint', '0'), ('numeric', '1.50'), ('double precision', '0.1'), ('real', '1e30'), ('boolean', 'yes'), ('uuid', '{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}'), ('t.mood', 'so:so'), ('bytea', 'a\\b:'),
	('date', '2026-12-31'), ('time', '18:00'), ('timestamp', '2026-12-31 18:00'), ('timestamptz', '2026-12-31 18:00+05:30'), ('interval', '1 day 2 hours'), ('text[]', '{a:b,"c\\"}'), ('timestamptz[]', '{2026-12-31 18:00+05:30}'), ('t.pair', '("a:b",2026-12-31 18:00+05:30)'), ('regclass', 't.pair')) v (type, id), t.one_key(type, id) k;

-- Two adjacent columns: different rows have different keys.
CREATE TABLE t.files (dir text, name text, PRIMARY KEY (dir, name));
INSERT INTO t.files SELECT a, b FROM unnest(ARRAY['', 'a', ':', '\', 'a:', ':a', '\:', '\\']) a, unnest(ARRAY['', 'b', ':', '\', 'b:', ':b', '\:', '\\']) b;
SELECT lock_protect('t.files', 'file:{dir}:{name}');
SELECT count(*) AS rows, count(DISTINCT asked) AS keys, bool_and(asked = lock_key('file', dir, name)) AS same
FROM t.files, t.asked(format('DELETE FROM t.files WHERE dir = %L AND name = %L', dir, name)) asked;
SELECT count(*) FROM t.files f, lock_fetch(NULL::t.files, json_build_object('dir', f.dir, 'name', f.name)::text);
SELECT count(*) AS held FROM t.files WHERE lock_is_held(lock_key('file', dir, name));
SELECT lock_release_all();
-- Text outside of the braces is not escaped.
SELECT lock_protect('t.files', '\:{dir}\{name}');
SELECT t.asked('DELETE FROM t.files WHERE dir = ''a:'' AND name = ''\''');

--
-- lock_fetch locks the key that the guard asks for
--
CREATE TABLE t.orders (id int PRIMARY KEY);
CREATE TABLE t.lines (note text, order_id int, line int, PRIMARY KEY (order_id, line));
CREATE TABLE t.policy (id int PRIMARY KEY, root int, note text DEFAULT '');
INSERT INTO t.orders VALUES (1);
INSERT INTO t.lines VALUES ('x', 1, 1), ('y', 1, 2);
INSERT INTO t.policy VALUES (1, 7), (2, NULL), (3, 8);
SELECT lock_protect('t.orders', 'order:{id}'), lock_protect('t.lines', 'order:{order_id}'), lock_protect('t.policy', 'root:{root}');
-- one lock for the order and its lines
SELECT * FROM lock_fetch(NULL::t.orders, '01');
SELECT * FROM lock_fetch(NULL::t.lines, '{"order_id": 1, "line": 2}');
SELECT key FROM lock_status();
UPDATE t.lines SET note = 'z' WHERE line = 2 RETURNING *;
SELECT lock_release_all();
-- a column that is not part of the id: its value comes from the row; NULL is the guard's error
SELECT id FROM lock_fetch(NULL::t.policy, '1');
SELECT key FROM lock_status();
UPDATE t.policy SET note = 'x' WHERE id = 1 RETURNING *;
SELECT t.raises($$SELECT * FROM lock_fetch(NULL::t.policy, '2')$$) AS fetch, t.raises($$UPDATE t.policy SET note = 'x' WHERE id = 2$$) AS guard;
-- no such row: no result, no lock, nothing written
SELECT t.fingerprint() AS before \gset
BEGIN;
SELECT * FROM lock_fetch(NULL::t.policy, '9', wait => '1 min');
SELECT * FROM t.left_open();
COMMIT;
SELECT t.fingerprint() = :'before' AS unchanged;
-- an explicit key takes precedence; then the column may be null
SELECT id FROM lock_fetch(NULL::t.policy, '2', key => 'mine');
SELECT key FROM lock_status() ORDER BY key;
SELECT lock_release_all();
-- held by another owner
SELECT status FROM lock_acquire('root:7', '1 hour', 'bob-1', holder => 'Bob');
SELECT t.raises($$SELECT * FROM lock_fetch(NULL::t.policy, '1')$$);
SELECT lock_release('root:7', 'bob-1');
-- at every isolation level
CREATE FUNCTION t.story() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text;
BEGIN
	SELECT id || ' by ' || (SELECT key FROM lock_status()) INTO answer FROM lock_fetch(NULL::t.policy, '3');
	UPDATE t.policy SET note = note || 'x' WHERE id = 3;
	PERFORM lock_release_all();
	RETURN answer;
END
$$;
:at_every_level
-- partitions have the guard of their parent, or none
CREATE TABLE t.part (id int PRIMARY KEY, name text) PARTITION BY RANGE (id);
CREATE TABLE t.part_1 (name text, id int NOT NULL);
INSERT INTO t.part_1 VALUES ('in a partition', 1);
ALTER TABLE t.part ATTACH PARTITION t.part_1 FOR VALUES FROM (0) TO (10);
SELECT lock_protect('t.part', 'p/{id}/{name}');
SELECT id FROM lock_fetch(NULL::t.part, '1');
SELECT id FROM lock_fetch(NULL::t.part_1, '1');
SELECT key FROM lock_status();
UPDATE t.part SET id = id RETURNING id;
UPDATE t.part_1 SET id = id RETURNING id;
SELECT lock_release_all();
-- columns and the guard may change
ALTER TABLE t.policy RENAME root TO base;
SELECT t.raises($$SELECT * FROM lock_fetch(NULL::t.policy, '1')$$);
SELECT lock_protect('t.policy', 'root:{base}'), lock_unprotect('t.orders');
ALTER TABLE t.policy DROP note;
SELECT base FROM lock_fetch(NULL::t.policy, '1'), LATERAL (SELECT FROM lock_fetch(NULL::t.orders, '1')) o;
SELECT key FROM lock_status() ORDER BY key;
SELECT lock_release_all();
-- a policy may hide the row until the lock is held; then the key must follow from the id alone
DROP ROLE IF EXISTS regress_al_user;
CREATE ROLE regress_al_user;
SELECT lock_grant_access('regress_al_user', 'user');
GRANT SELECT, UPDATE ON t.policy, t.orders TO regress_al_user;
SELECT lock_protect('t.orders', 'order:{id}');
ALTER TABLE t.orders ENABLE ROW LEVEL SECURITY;
ALTER TABLE t.policy ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON t.orders USING (lock_is_held(lock_key('order', id)));
CREATE POLICY p ON t.policy USING (lock_is_held(lock_key('root', base)));
SET ROLE regress_al_user;
SELECT id FROM lock_fetch(NULL::t.orders, '1');
SELECT id FROM lock_fetch(NULL::t.policy, '1');
SELECT id FROM lock_fetch(NULL::t.policy, '1', key => 'root:7');
SELECT id FROM lock_fetch(NULL::t.policy, '1', key => 'another');
SELECT locked FROM unnest(ARRAY['order:1', 'root:7', 'another']) k, lock_status(k);
RESET ROLE;
DROP OWNED BY regress_al_user;
DROP ROLE regress_al_user;
