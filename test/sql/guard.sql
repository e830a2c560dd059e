\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\set include :srcdir '/sql/include/orders.sql'
\i :setup
-- The guard of lock_protect refuses writes that no lock covers
--
-- Properties: each statement that writes a row needs a live, exclusive holding of the row's key
-- at that moment. An UPDATE that changes the key needs the new key, too. A refusal is LK006,
-- gives the state of the key, shows no owner and changes nothing.
--
-- Turns red when: a statement escapes the guard; only the old row or only the new one is
-- checked; a refusal shows an owner.
--
-- guard_pin tests the pins of writes, guard_keys the keys of rows, guard_roles the roles that
-- are subject to a guard, guard_ddl the creation of guards, and iso_guard other transactions.
SELECT lock_protect('t.orders', 'order:{id}'), lock_protect('t.lines', 'order:{order_id}');
SELECT key, holder FROM lock_acquire('order:1', '1 hour', 'alice-1', holder => 'Alice') UNION ALL SELECT key, holder FROM lock_acquire('order:2', '1 hour', 'bob-1', holder => 'Bob');

--
-- Which owner may write what
--
SELECT t.content() AS before, t.fingerprint() AS locks \gset
SELECT t.as('alice-1', stmt) AS alice, t.as('bob-1', stmt) AS bob, t.as(NULL, stmt) AS nobody, stmt FROM unnest(ARRAY[
	'UPDATE t.orders SET total = 1 WHERE id = 1', 'DELETE FROM t.lines WHERE order_id = 1', 'UPDATE t.lines SET text = ''x'' WHERE order_id = 1 AND line = 1',
	'UPDATE t.orders SET total = 1 WHERE id = 2', 'UPDATE t.orders SET total = 1 WHERE id = 3', 'UPDATE t.orders SET total = 1', 'DELETE FROM t.lines',
	'UPDATE t.orders SET total = total WHERE id IN (1, 2)', 'UPDATE t.orders SET name = name WHERE id = 1',
-- nothing is written, or nothing that the guard's events include
	'UPDATE t.orders SET total = 1 WHERE id = 9', 'UPDATE t.orders SET total = 1 WHERE false', 'SELECT * FROM t.orders FOR UPDATE', 'SELECT * FROM t.orders WHERE id = 2 FOR NO KEY UPDATE', 'INSERT INTO t.orders VALUES (9)', 'INSERT INTO t.lines VALUES (2, 9)', 'LOCK TABLE t.orders',
-- the key changes
	'UPDATE t.lines SET order_id = 2, line = 9 WHERE order_id = 1 AND line = 1', 'UPDATE t.lines SET order_id = 1, line = 9 WHERE order_id = 2 AND line = 1', 'UPDATE t.lines SET order_id = 3, line = 9 WHERE order_id = 1 AND line = 1',
	'UPDATE t.orders SET id = 9 WHERE id = 1', 'UPDATE t.orders SET id = 1 WHERE id = 1']) WITH ORDINALITY u(stmt, i) ORDER BY i;
SELECT t.content() = :'before' AS unchanged, t.fingerprint() = :'locks' AS locks_unchanged;
-- both keys needed, from one owner
SELECT t.with_keys(keys, 'UPDATE t.lines SET order_id = 4, line = 9 WHERE order_id = 3 AND line = 1') AS answer, keys FROM unnest(ARRAY['3', '4', '34']) k, LATERAL (SELECT array_agg('order:' || c) FROM regexp_split_to_table(k, '') c) a(keys);
-- writes that are kept
SET atomic_lock.owner = 'alice-1';
UPDATE t.orders SET total = 100 WHERE id = 1 RETURNING *;
DELETE FROM t.lines WHERE order_id = 1 AND line = 2 RETURNING *;
SELECT lock_release('order:1');
SELECT t.code('UPDATE t.orders SET total = 1 WHERE id = 1') AS released;
RESET atomic_lock.owner;

-- Many rows whose leases are adjacent in the table: each is checked
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

-- The text of refusals
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
-- a shared lease, converted
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
-- foreign key actions: the guard of the lines applies
	'DELETE FROM t.orders WHERE id = 2', 'UPDATE t.orders SET id = 12 WHERE id = 2']) WITH ORDINALITY u(stmt, i) ORDER BY i;
SELECT t.with_keys('{order:3,order:13}', 'UPDATE t.orders SET id = 13 WHERE id = 3') AS cascaded;

-- The lines are guarded although the orders are not.
SELECT lock_unprotect('t.orders');
SELECT t.as('bob-1', stmt) AS bob, t.as('alice-1', stmt) AS alice, stmt FROM unnest(ARRAY[
	'UPDATE t.orders SET total = 1 WHERE id = 2', 'DELETE FROM t.orders WHERE id = 2', 'UPDATE t.orders SET id = 12 WHERE id = 2', 'DELETE FROM t.orders WHERE id IN (2, 3)', 'UPDATE t.orders SET id = id']) WITH ORDINALITY u(stmt, i) ORDER BY i;
SELECT t.with_keys('{order:3,order:13}', 'UPDATE t.orders SET id = 13 WHERE id = 3') AS both_keys;
-- SET NULL, and SET DEFAULT to another key
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

-- INSERT, if the events include it: the proposed row is checked, too
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

-- TRUNCATE removes rows of any key, so it is always refused: directly, by CASCADE, with other
-- tables.
SELECT t.told('alice-1', 'TRUNCATE t.lines');
SELECT t.as('alice-1', stmt) AS answer, stmt FROM unnest(ARRAY['TRUNCATE t.orders CASCADE', 'TRUNCATE t.orders, t.lines', 'TRUNCATE ONLY t.lines RESTART IDENTITY']) stmt;
SELECT lock_unprotect('t.orders');
SELECT t.as('alice-1', 'TRUNCATE t.orders CASCADE') AS cascade_to_the_lines;
