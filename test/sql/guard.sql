\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- The guard of lock_protect: writes that the lock does not cover are refused
--
-- Properties: whoever writes a row, by whatever statement, needs the row's key
-- for himself, live, at that moment; where an UPDATE changes the key, the new one
-- too; a refusal is LK006, says what there is instead, shows no owner and leaves
-- everything as it was; a write that is let through pins what covers it.  How
-- guards are installed and looked at is shown by guard_ddl, what other
-- transactions can do meanwhile by iso_guard.
--
-- Turns red when: there is a statement that the guard does not see; only the old
-- row or only the new one is looked at; a key is built of another column than the
-- template names, or of its value before other triggers; who may not set
-- atomic_lock.enforce_guards gets around it.

-- What becomes of a statement of that owner (NULL: of none), which is undone
CREATE FUNCTION t.as(o text, stmt text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_catalog.set_config('atomic_lock.owner', coalesce(o, ''), true);
	RETURN t.code(stmt);
END
$$;
CREATE FUNCTION t.told(o text, stmt text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_catalog.set_config('atomic_lock.owner', coalesce(o, ''), true);
	RETURN t.raises(stmt);
END
$$;
-- For an owner and no longer than this statement: the keys, and what becomes of the statement then
CREATE FUNCTION t.with_keys(keys text[], stmt text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text;
BEGIN
	PERFORM lock_acquire_all(keys, '1 hour', 'holder-1');
	answer := t.as('holder-1', stmt);
	PERFORM lock_release_all('holder-1');
	RETURN answer;
END
$$;

CREATE TABLE t.orders (id int PRIMARY KEY, name text UNIQUE, total int);
INSERT INTO t.orders SELECT i, 'order ' || i FROM generate_series(1, 4) i;
-- its lines go by the order's key
CREATE TABLE t.lines (order_id int REFERENCES t.orders ON DELETE CASCADE ON UPDATE CASCADE, line int, text text, PRIMARY KEY (order_id, line));
INSERT INTO t.lines SELECT o, l FROM generate_series(1, 4) o, generate_series(1, 2) l;
CREATE FUNCTION t.content() RETURNS text LANGUAGE sql AS $$
	SELECT md5(string_agg(r, E'\n' ORDER BY r)) FROM (SELECT concat_ws(' ', tableoid, ctid, xmin, o::text) AS r FROM t.orders o UNION ALL SELECT concat_ws(' ', tableoid, ctid, xmin, l::text) FROM t.lines l) c
$$;
SELECT lock_protect('t.orders', 'order:{id}'), lock_protect('t.lines', 'order:{order_id}');
SELECT key, holder FROM lock_acquire('order:1', '1 hour', 'alice-1', holder => 'Alice') UNION ALL SELECT key, holder FROM lock_acquire('order:2', '1 hour', 'bob-1', holder => 'Bob');

--
-- Who may write what
--
SELECT t.content() AS before, t.fingerprint() AS locks \gset
SELECT t.as('alice-1', stmt) AS alice, t.as('bob-1', stmt) AS bob, t.as(NULL, stmt) AS nobody, stmt FROM unnest(ARRAY[
	'UPDATE t.orders SET total = 1 WHERE id = 1', 'DELETE FROM t.lines WHERE order_id = 1', 'UPDATE t.lines SET text = ''x'' WHERE order_id = 1 AND line = 1',
	'UPDATE t.orders SET total = 1 WHERE id = 2', 'UPDATE t.orders SET total = 1 WHERE id = 3', 'UPDATE t.orders SET total = 1', 'DELETE FROM t.lines',
	'UPDATE t.orders SET total = total WHERE id IN (1, 2)', 'UPDATE t.orders SET name = name WHERE id = 1',
-- nothing is written, or nothing that events names
	'UPDATE t.orders SET total = 1 WHERE id = 9', 'UPDATE t.orders SET total = 1 WHERE false', 'SELECT * FROM t.orders FOR UPDATE', 'SELECT * FROM t.orders WHERE id = 2 FOR NO KEY UPDATE', 'INSERT INTO t.orders VALUES (9)', 'INSERT INTO t.lines VALUES (2, 9)', 'LOCK TABLE t.orders',
-- the key changes
	'UPDATE t.lines SET order_id = 2, line = 9 WHERE order_id = 1 AND line = 1', 'UPDATE t.lines SET order_id = 1, line = 9 WHERE order_id = 2 AND line = 1', 'UPDATE t.lines SET order_id = 3, line = 9 WHERE order_id = 1 AND line = 1',
	'UPDATE t.orders SET id = 9 WHERE id = 1', 'UPDATE t.orders SET id = 1 WHERE id = 1']) WITH ORDINALITY u(stmt, i) ORDER BY i;
SELECT t.content() = :'before' AS unchanged, t.fingerprint() = :'locks' AS locks_unchanged;
-- both keys, by one owner
SELECT t.with_keys(keys, 'UPDATE t.lines SET order_id = 4, line = 9 WHERE order_id = 3 AND line = 1') AS answer, keys FROM unnest(ARRAY['3', '4', '34']) k, LATERAL (SELECT array_agg('order:' || c) FROM regexp_split_to_table(k, '') c) a(keys);
-- and not undone
SET atomic_lock.owner = 'alice-1';
UPDATE t.orders SET total = 100 WHERE id = 1 RETURNING *;
DELETE FROM t.lines WHERE order_id = 1 AND line = 2 RETURNING *;
SELECT lock_release('order:1');
SELECT t.code('UPDATE t.orders SET total = 1 WHERE id = 1') AS released;
RESET atomic_lock.owner;

-- Many rows, whose leases lie one after the other: each is looked at
CREATE TABLE t.many (id int PRIMARY KEY, n int);
INSERT INTO t.many SELECT i, 0 FROM generate_series(1, 6) i;
SELECT lock_protect('t.many', 'many:{id}');
SELECT count(*) FROM lock_acquire_all(ARRAY(SELECT 'many:' || i FROM generate_series(1, 6) i), '1 hour', 'many-1');
SELECT t.as('many-1', 'UPDATE t.many SET n = 1') AS live;
SELECT t.run_out('many:4', 'many-1');
SELECT t.as('many-1', 'UPDATE t.many SET n = 1') AS one_ran_out, t.as('many-1', 'UPDATE t.many SET n = 1 WHERE id <> 4') AS others;
SELECT acquired, lock_release('many:4', 'many-1') FROM lock_acquire('many:4', '1 hour', 'many-1');
SELECT t.as('many-1', 'UPDATE t.many SET n = 1') AS one_was_released;
SELECT acquired FROM lock_acquire('many:4', '1 hour', 'many-2');
SELECT t.as('many-1', 'UPDATE t.many SET n = 1') AS one_is_anothers;
SELECT lock_release_all('many-1'), lock_release_all('many-2');
DROP TABLE t.many;

-- In words
CREATE FUNCTION t.situation(k text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM lock_release_all(o) FROM unnest(ARRAY['secret-1', 'secret-2', 'secret-3']) o;
	IF k <> 'never' THEN
		PERFORM lock_acquire('order:4', '1 hour', 'secret-1', CASE k WHEN 'shared' THEN 'shared' ELSE 'exclusive' END, holder => 'Alice');
	END IF;
	CASE k
		WHEN 'released' THEN PERFORM lock_release('order:4', 'secret-1');
		WHEN 'expired' THEN PERFORM t.run_out('order:4', 'secret-1');
		WHEN 'forced' THEN PERFORM force_release('order:4', 'test');
		WHEN 'another''s' THEN PERFORM lock_transfer('order:4', 'secret-1', 'secret-2', 'Bob');
		WHEN 'shared by others' THEN PERFORM lock_transfer('order:4', 'secret-1', 'secret-2', 'Bob'), lock_convert('order:4', 'secret-2', 'shared'), lock_acquire('order:4', '2 hours', 'secret-3', 'shared', holder => 'Carol');
		ELSE NULL;
	END CASE;
END
$$;
CREATE TABLE t.told (id serial, situation text, answer text);
DO $$
DECLARE
	s	text;
BEGIN
	FOREACH s IN ARRAY ARRAY['never', 'released', 'expired', 'forced', 'another''s', 'shared by others', 'shared', 'held'] LOOP
		PERFORM t.situation(s);
		INSERT INTO t.told (situation, answer) VALUES (s, t.told('secret-1', 'UPDATE t.orders SET total = 1 WHERE id = 4'));
	END LOOP;
	INSERT INTO t.told (situation, answer) VALUES ('no owner', t.told(NULL, 'DELETE FROM t.orders WHERE id = 4'));
END
$$;
SELECT situation, answer FROM t.told ORDER BY id;
SELECT count(*) AS owner_shown FROM t.told WHERE answer ~ 'secret';
-- what was shared, converted
SELECT t.situation('shared') \g /dev/null
SELECT t.as('secret-1', 'UPDATE t.orders SET total = 1 WHERE id = 4') AS shared, (lock_convert('order:4', 'secret-1')).mode, t.as('secret-1', 'UPDATE t.orders SET total = 1 WHERE id = 4') AS converted;
SELECT lock_release('order:4', 'secret-1');

--
-- Every way to write
--
PREPARE p AS UPDATE t.orders SET total = 1 WHERE id = 2;
CREATE VIEW t.orders_view AS SELECT id, total FROM t.orders WHERE id < 100;
CREATE FUNCTION t.definer() RETURNS void LANGUAGE sql SECURITY DEFINER AS 'UPDATE t.orders SET total = 1 WHERE id = 2';
CREATE RULE r AS ON INSERT TO t.orders_view DO INSTEAD UPDATE t.orders SET total = 1 WHERE id = 2;
SELECT t.as('bob-1', stmt) AS bob, t.as('alice-1', stmt) AS alice, stmt FROM unnest(ARRAY[
	'EXECUTE p', 'UPDATE t.orders_view SET total = 1 WHERE id = 2', 'DELETE FROM t.orders_view WHERE id = 2', 'INSERT INTO t.orders_view VALUES (1)', 'SELECT t.definer()',
	'WITH w AS (DELETE FROM t.lines WHERE order_id = 2 RETURNING *) SELECT * FROM w', 'UPDATE t.orders o SET total = 1 FROM t.lines l WHERE o.id = l.order_id AND l.order_id = 2', 'DELETE FROM t.lines l USING t.orders o WHERE o.id = l.order_id AND o.id = 2',
	'MERGE INTO t.orders o USING (VALUES (2)) v (id) ON o.id = v.id WHEN MATCHED THEN UPDATE SET total = 1', 'MERGE INTO t.lines l USING (VALUES (2)) v (id) ON l.order_id = v.id WHEN MATCHED THEN DELETE',
	'MERGE INTO t.orders o USING (VALUES (2)) v (id) ON o.id = v.id WHEN MATCHED THEN DO NOTHING', 'MERGE INTO t.orders o USING (VALUES (8)) v (id) ON o.id = v.id WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (v.id)',
	'INSERT INTO t.orders VALUES (2) ON CONFLICT (id) DO UPDATE SET total = 1', 'INSERT INTO t.orders VALUES (2) ON CONFLICT DO NOTHING', 'INSERT INTO t.orders VALUES (8, ''order 2'') ON CONFLICT (name) DO UPDATE SET total = 1', 'INSERT INTO t.orders VALUES (2) ON CONFLICT (id) DO UPDATE SET total = 1 WHERE false',
	'DO $x$ DECLARE c CURSOR FOR SELECT * FROM t.orders WHERE id = 2 FOR UPDATE; BEGIN OPEN c; MOVE c; UPDATE t.orders SET total = 1 WHERE CURRENT OF c; END $x$',
-- foreign keys that do it: the guard of the lines
	'DELETE FROM t.orders WHERE id = 2', 'UPDATE t.orders SET id = 12 WHERE id = 2']) WITH ORDINALITY u(stmt, i) ORDER BY i;
SELECT t.with_keys('{order:3,order:13}', 'UPDATE t.orders SET id = 13 WHERE id = 3') AS cascaded;

-- The lines are guarded where the orders are not.
SELECT lock_unprotect('t.orders');
SELECT t.as('bob-1', stmt) AS bob, t.as('alice-1', stmt) AS alice, stmt FROM unnest(ARRAY[
	'UPDATE t.orders SET total = 1 WHERE id = 2', 'DELETE FROM t.orders WHERE id = 2', 'UPDATE t.orders SET id = 12 WHERE id = 2', 'DELETE FROM t.orders WHERE id IN (2, 3)', 'UPDATE t.orders SET id = id']) WITH ORDINALITY u(stmt, i) ORDER BY i;
SELECT t.with_keys('{order:3,order:13}', 'UPDATE t.orders SET id = 13 WHERE id = 3') AS both_keys;
-- set to null, or to a default that has a key
CREATE TABLE t.notes (id int PRIMARY KEY, order_id int REFERENCES t.orders ON DELETE SET NULL ON UPDATE NO ACTION);
CREATE TABLE t.marks (id int PRIMARY KEY, order_id int DEFAULT 4 REFERENCES t.orders ON DELETE SET DEFAULT);
INSERT INTO t.orders VALUES (10), (11);
INSERT INTO t.notes VALUES (1, 10);
INSERT INTO t.marks VALUES (1, 11);
SELECT lock_protect('t.notes', 'order:{order_id}'), lock_protect('t.marks', 'order:{order_id}');
SELECT t.with_keys('{order:10}', 'DELETE FROM t.orders WHERE id = 10') AS set_null, t.with_keys('{order:11}', 'DELETE FROM t.orders WHERE id = 11') AS set_default, t.with_keys('{order:11,order:4}', 'DELETE FROM t.orders WHERE id = 11') AS with_both_keys;
SELECT lock_unprotect('t.notes');
SELECT t.as(NULL, 'DELETE FROM t.orders WHERE id = 10') AS set_null;
DROP TABLE t.notes, t.marks;

-- INSERT, where events names it: the proposed row, too
SELECT lock_protect('t.orders', 'order:{id}', '{insert,update,delete}');
SELECT t.with_keys(keys, stmt) AS answer, keys, stmt FROM (VALUES
	('{order:9}'::text[], 'INSERT INTO t.orders VALUES (9)'), ('{order:8}', 'INSERT INTO t.orders VALUES (9)'), ('{order:8,order:9}', 'INSERT INTO t.orders SELECT i FROM generate_series(8, 9) i'), ('{order:8}', 'INSERT INTO t.orders SELECT i FROM generate_series(8, 9) i'),
	('{order:9}', 'INSERT INTO t.orders VALUES (NULL)'),
	('{order:1}', 'INSERT INTO t.orders VALUES (1) ON CONFLICT (id) DO UPDATE SET total = 1'), ('{order:1}', 'INSERT INTO t.orders VALUES (1) ON CONFLICT DO NOTHING'), ('{order:9}', 'INSERT INTO t.orders VALUES (1) ON CONFLICT DO NOTHING'),
	('{order:9}', 'INSERT INTO t.orders VALUES (9, ''order 1'') ON CONFLICT (name) DO UPDATE SET total = 1'), ('{order:1}', 'INSERT INTO t.orders VALUES (9, ''order 1'') ON CONFLICT (name) DO UPDATE SET total = 1'), ('{order:1,order:9}', 'INSERT INTO t.orders VALUES (9, ''order 1'') ON CONFLICT (name) DO UPDATE SET total = 1'),
	('{order:9}', 'MERGE INTO t.orders o USING (VALUES (9)) v (id) ON o.id = v.id WHEN NOT MATCHED THEN INSERT VALUES (v.id)'), ('{order:8}', 'MERGE INTO t.orders o USING (VALUES (9)) v (id) ON o.id = v.id WHEN NOT MATCHED THEN INSERT VALUES (v.id)')) v (keys, stmt);
SELECT status FROM lock_acquire_all('{order:8,order:9}', '1 hour', 'carol-1');
SET atomic_lock.owner = 'carol-1';
COPY t.orders (id) FROM stdin;
8
9
\.
SELECT count(*) FROM t.orders WHERE id IN (8, 9);
DELETE FROM t.orders WHERE id IN (8, 9);
\set VERBOSITY sqlstate
COPY t.orders (id) FROM stdin;
9
7
\.
\set VERBOSITY default
SELECT count(*) FROM t.orders WHERE id IN (7, 9);
RESET atomic_lock.owner;
SELECT lock_release_all('carol-1');

-- One event alone
CREATE FUNCTION t.events() RETURNS TABLE (insert text, update text, delete text) LANGUAGE sql AS $$
	SELECT t.as(NULL, 'INSERT INTO t.orders VALUES (20)'), t.as(NULL, 'UPDATE t.orders SET total = 1'), t.as(NULL, 'DELETE FROM t.orders WHERE id = 10')
$$;
SELECT lock_protect('t.orders', 'order:{id}', '{insert}');
SELECT * FROM t.events();
SELECT lock_protect('t.orders', 'order:{id}', '{update}');
SELECT * FROM t.events();
SELECT lock_protect('t.orders', 'order:{id}', '{delete}');
SELECT * FROM t.events();

-- TRUNCATE removes rows that nobody has asked for, so not at all; directly, by CASCADE, with others.
SELECT t.told('alice-1', 'TRUNCATE t.lines');
SELECT t.as('alice-1', stmt) AS answer, stmt FROM unnest(ARRAY['TRUNCATE t.orders CASCADE', 'TRUNCATE t.orders, t.lines', 'TRUNCATE ONLY t.lines RESTART IDENTITY']) stmt;
SELECT lock_unprotect('t.orders');
SELECT t.as('alice-1', 'TRUNCATE t.orders CASCADE') AS cascade_to_the_lines;

--
-- The pin
--
SELECT status FROM lock_acquire('order:1', '1 hour', 'alice-1', holder => 'Alice');
SET atomic_lock.owner = 'alice-1';
BEGIN;
UPDATE t.lines SET text = 'first' WHERE order_id = 1;
SELECT t.run_out('order:1', 'alice-1');
UPDATE t.lines SET text = 'late, but pinned' WHERE order_id = 1 RETURNING *;
COMMIT;
SELECT text, t.code('UPDATE t.lines SET text = ''too late'' WHERE order_id = 1') AS next_transaction FROM t.lines WHERE order_id = 1;
SELECT status FROM lock_acquire('order:1', '1 hour', holder => 'Alice');
-- gone with the savepoint
BEGIN;
SAVEPOINT a;
UPDATE t.lines SET text = 'undone' WHERE order_id = 1;
ROLLBACK TO a;
SELECT claims FROM t.left_open();
SELECT t.run_out('order:1', 'alice-1');
SELECT t.code('UPDATE t.lines SET text = ''x'' WHERE order_id = 1');
ROLLBACK;
-- kept when that is released; one of lock_assert serves as well
BEGIN;
SAVEPOINT a;
SELECT lock_assert('order:1') > 0 AS pinned;
RELEASE a;
SELECT t.run_out('order:1', 'alice-1');
SELECT t.code('UPDATE t.lines SET text = ''x'' WHERE order_id = 1');
ROLLBACK;
-- a pin of a holding that is shared does not
SELECT mode FROM lock_convert('order:1', mode => 'shared');
BEGIN;
SELECT lock_assert('order:1') > 0 AS pinned, t.code('UPDATE t.lines SET text = ''x'' WHERE order_id = 1') AS shared, (lock_convert('order:1')).mode, t.code('UPDATE t.lines SET text = ''x'' WHERE order_id = 1') AS converted;
SELECT mode, t.code('UPDATE t.lines SET text = ''x'' WHERE order_id = 1') AS converted_back FROM lock_convert('order:1', mode => 'shared');
ROLLBACK;
SELECT mode FROM lock_convert('order:1');
-- what the transaction itself does with the lease; it is not another owner's
BEGIN;
UPDATE t.lines SET text = 'written' WHERE order_id = 1;
SAVEPOINT a;
SELECT t.as('bob-1', 'UPDATE t.lines SET text = ''x'' WHERE order_id = 1') AS bob, t.as(NULL, 'UPDATE t.lines SET text = ''x'' WHERE order_id = 1') AS nobody;
ROLLBACK TO a;
SELECT lock_release('order:1'), t.code('UPDATE t.lines SET text = ''x'' WHERE order_id = 1') AS released;
SELECT status, t.code('UPDATE t.lines SET text = ''x'' WHERE order_id = 1') AS acquired FROM lock_acquire('order:1', '1 hour');
ROLLBACK TO a;
SELECT t.code('UPDATE t.lines SET text = ''x'' WHERE order_id = 1') AS release_undone;
SELECT (lock_transfer('order:1', NULL, 'bob-1')).owner, t.as('alice-1', 'UPDATE t.lines SET text = ''x'' WHERE order_id = 1') AS alice, t.as('bob-1', 'UPDATE t.lines SET text = ''x'' WHERE order_id = 1') AS bob;
ROLLBACK TO a;
SELECT force_release('order:1', 'test'), t.code('UPDATE t.lines SET text = ''x'' WHERE order_id = 1') AS forced;
ROLLBACK TO a;
SELECT lock_release('order:1'), text FROM t.lines WHERE order_id = 1;
COMMIT;
SELECT text FROM t.lines WHERE order_id = 1;
RESET atomic_lock.owner;
-- A prepared transaction keeps it.
SELECT current_setting('max_prepared_transactions')::int > 0 AS twophase \gset
\if :twophase
SELECT status FROM lock_acquire('order:1', '1 hour', 'alice-1', holder => 'Alice');
BEGIN;
SET LOCAL atomic_lock.owner = 'alice-1';
UPDATE t.lines SET text = 'prepared' WHERE order_id = 1;
PREPARE TRANSACTION 'regress_al_guard';
SELECT t.run_out('order:1', 'alice-1');
SELECT status FROM lock_try_acquire('order:1', '1 hour', 'bob-1');
COMMIT PREPARED 'regress_al_guard';
SELECT status, (SELECT text FROM t.lines WHERE order_id = 1), lock_release('order:1', 'bob-1') FROM lock_try_acquire('order:1', '1 hour', 'bob-1');
\else
\echo max_prepared_transactions is 0
\endif
-- The lifetimes of the session and of the transaction cover as a lease does.
BEGIN;
SELECT l, (lock_acquire('order:1', owner => 'alice-1', lifetime => l)).status, t.as('alice-1', 'UPDATE t.lines SET text = ''x'' WHERE order_id = 1') AS alice, t.as('bob-1', 'UPDATE t.lines SET text = ''x'' WHERE order_id = 1') AS bob, lock_release('order:1', 'alice-1')
FROM unnest(ARRAY['session', 'transaction']) l;
ROLLBACK;
-- Each key counts, once.
SET atomic_lock.max_claims_per_transaction = 2;
BEGIN;
SELECT status FROM lock_acquire('order:1', lifetime => 'transaction', owner => 'alice-1');
SELECT t.as('alice-1', 'UPDATE t.lines SET text = ''x'' WHERE order_id = 1; UPDATE t.lines SET text = ''y'' WHERE order_id = 1') AS one;
ROLLBACK;
SELECT count(*) FROM generate_series(3, 4) i, LATERAL lock_acquire('order:' || i, '1 hour', 'carol-1');
SELECT status FROM lock_acquire('order:1', '1 hour', 'carol-1');
SELECT t.as('carol-1', 'UPDATE t.lines SET text = ''x'' WHERE order_id IN (3, 4)') AS two, t.as('carol-1', 'UPDATE t.lines SET text = ''x'' WHERE order_id IN (1, 3, 4)') AS three;
RESET atomic_lock.max_claims_per_transaction;
SELECT lock_release_all('carol-1');

--
-- Keys
--
-- every type, as its output function writes it, escaped as lock_key does
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
-- no setting of the writer makes another key of it
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
-- one for the whole table
SELECT lock_protect('t.types', 'all of them');
SELECT t.with_keys(ARRAY['all of them'], 'UPDATE t.types SET num = 43, word = NULL') AS answer, t.with_keys(ARRAY['all'], 'UPDATE t.types SET num = 43') AS other;
-- the value that changes is another key where it is written in another way
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

-- What other BEFORE triggers make of the row counts; what they drop needs no lock.
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
-- A trigger that writes a guarded table is a writer like others.
CREATE FUNCTION t.write_order() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN UPDATE t.lines SET text = NEW.note WHERE order_id = NEW.id; RETURN NULL; END';
CREATE TRIGGER after AFTER UPDATE ON t.triggered FOR EACH ROW EXECUTE FUNCTION t.write_order();
SELECT t.with_keys('{tr:1}', 'UPDATE t.triggered SET note = ''x''') AS one, t.with_keys('{tr:1,order:1}', 'UPDATE t.triggered SET note = ''x''') AS both;

--
-- Partitions and children
--
CREATE TABLE t.part (id int, region text, note text) PARTITION BY LIST (region);
CREATE TABLE t.part_eu PARTITION OF t.part FOR VALUES IN ('eu');
-- its columns are in another order, one is gone
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
-- the row moves: both keys
	('{part:1:eu}', 'UPDATE t.part SET region = ''us'' WHERE id = 1'), ('{part:1:us}', 'UPDATE t.part SET region = ''us'' WHERE id = 1'), ('{part:1:eu,part:1:us}', 'UPDATE t.part SET region = ''us'' WHERE id = 1'),
	('{part:2:us,part:2:yy}', 'UPDATE t.part SET region = ''yy'' WHERE id = 2'), ('{part:2:us}', 'UPDATE t.part SET region = ''yy'' WHERE id = 2')) v (keys, stmt);
SELECT lock_protect('t.part', 'part:{id}');
SELECT t.with_keys('{part:1}', 'UPDATE t.part SET region = ''us'' WHERE id = 1') AS moved, t.with_keys('{part:9}', 'UPDATE t.part SET region = ''us'' WHERE id = 1') AS not_mine;
-- one event alone, of those that a move is made of
SELECT e, lock_protect('t.part', 'part:{id}:{region}', ARRAY[e]), t.with_keys('{part:1:eu}', 'UPDATE t.part SET region = ''us'' WHERE id = 1') AS from, t.with_keys('{part:1:us}', 'UPDATE t.part SET region = ''us'' WHERE id = 1') AS to FROM unnest(ARRAY['insert', 'update', 'delete']) e;
SELECT lock_protect('t.part', 'part:{id}');
-- a new partition
CREATE TABLE t.part_new PARTITION OF t.part FOR VALUES IN ('new');
INSERT INTO t.part VALUES (4, 'new');
SELECT t.as(NULL, 'DELETE FROM t.part_new') AS nobody, t.as(NULL, 'TRUNCATE t.part_new') AS truncate, t.with_keys('{part:4}', 'DELETE FROM t.part_new') AS holder;
-- none of them is truncated
SELECT lock_protect('t.part', 'part:{id}');
SELECT t.as(NULL, 'TRUNCATE ' || r) AS answer, r FROM unnest(ARRAY['t.part', 't.part_eu', 't.part_us', 't.part_rest', 't.part_rest_1', 't.part_new', 'ONLY t.part_eu']) r;
-- detached it is on its own
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
-- a new child has a guard when it is asked for again
CREATE TABLE t.child_3 () INHERITS (t.parent);
INSERT INTO t.child_3 VALUES (5);
SELECT lock_protect('t.parent', 'inh:{id}');
SELECT t.as(NULL, 'DELETE FROM t.child_3') AS nobody, t.with_keys('{inh:5}', 'DELETE FROM t.child_3') AS holder, t.as(NULL, 'TRUNCATE t.child_3') AS truncate;

--
-- Who is subject to it
--
DROP ROLE IF EXISTS regress_al_writer, regress_al_mallory;
CREATE ROLE regress_al_writer;
CREATE ROLE regress_al_mallory;
GRANT SELECT, INSERT, UPDATE, DELETE ON t.lines TO regress_al_writer;
SELECT status FROM lock_acquire('order:1', '1 hour', 'alice-1', holder => 'Alice') UNION ALL SELECT status FROM lock_acquire('order:2', '1 hour', 'bob-1', holder => 'Bob');
-- a writer needs no right on what is ours
SELECT p FROM unnest(ARRAY['SELECT', 'UPDATE']) p WHERE has_table_privilege('regress_al_writer', 'app_lock', p);
SET SESSION AUTHORIZATION regress_al_writer;
SELECT t.code('SELECT lock_assert(''order:1'', ''alice-1'')') AS no_right, t.as('alice-1', 'UPDATE t.lines SET text = ''x'' WHERE order_id = 1') AS mine, t.as('alice-1', 'UPDATE t.lines SET text = ''x'' WHERE order_id = 2') AS another_s;
-- nor gets around it: by the setting, by another trigger, by what is in his way of names
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
-- the message tells no more of a row than the writer may read: whole table, column, parent of a partition, no row security
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
-- operators and types of others, of whatever type a key is made
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
-- an owner that another role has set in a function of his is nobody's to see
CREATE FUNCTION t.for_bob(stmt text) RETURNS text LANGUAGE plpgsql SET atomic_lock.owner = 'bob-1' AS 'BEGIN RETURN t.code(stmt); END';
SELECT t.for_bob('DELETE FROM t.lines WHERE order_id = 2') AS within, t.code('DELETE FROM t.lines WHERE order_id = 2') AS without;

-- atomic_lock.enforce_guards: off for maintenance, by those who may
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
-- Replication brings what a guard has let pass elsewhere: not again, unless the trigger is told to
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

-- Every isolation level: the newest committed state of the lock, whatever the snapshot
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

-- A session that has not called any function of ours yet is refused just so.
\c -
TRUNCATE t.lines;
