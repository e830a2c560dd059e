\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- lock_fetch: lock a row's key, then read the row
--
-- Properties: lock_fetch acquires the key made of the table and the primary key, and returns
-- the row as it is after that. However the value is written, the key is the same. Without a row
-- there is no lock. It returns nothing that the caller could not read. iso_guard_levels shows
-- that the row is read after the grant.
--
-- Turns red when: the lock stays although there is no row; the key depends on how the value was
-- written; a row is returned that the caller may not see.

CREATE FUNCTION t.fetch(id text, o text DEFAULT 'alice-1') RETURNS text LANGUAGE sql AS $$
	SELECT t.raises(format('SELECT * FROM lock_fetch(NULL::t.orders, %L, owner => %L)', id, o))
$$;
-- The one key that is held
CREATE FUNCTION t.key() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN (SELECT key FROM lock_status());
END
$$;
CREATE TABLE t.orders (gone int, id int PRIMARY KEY, name text, "Odd ""Col" int, twice int GENERATED ALWAYS AS (id * 2) STORED);
ALTER TABLE t.orders DROP gone;
INSERT INTO t.orders VALUES (1, 'one', 7), (2, 'two', NULL), (42, repeat('x', 100000), NULL);

--
-- The row and its lock
--
SELECT * FROM lock_fetch(NULL::t.orders, '1', owner => 'alice-1');
SELECT key, locked, mode, lifetime, lock_is_held(key, 'alice-1') AS alice, ttl_remaining BETWEEN '4 min' AND '5 min' AS default_ttl FROM lock_status('orders:1');
-- all arguments, by position
SELECT name FROM lock_fetch(NULL::t.orders, '2', '1 hour', 'alice-1', '0', 'another key');
SELECT key, ttl_remaining > '59 min' AS ttl FROM lock_status() ORDER BY key;
-- again: the same grant
SELECT fencing_token AS token FROM lock_status('orders:1') \gset
SELECT id FROM lock_fetch(NULL::t.orders, '1', '2 hours', 'alice-1', wait => '1 s');
SELECT fencing_token = :token AS same_token, ttl_remaining > '1 hour' AS extended FROM lock_status('orders:1');
-- the owner from the setting; an owner is required, since a generated one would not be returned
SELECT t.raises($$SELECT * FROM lock_fetch(NULL::t.orders, '1')$$);
SET atomic_lock.owner = 'alice-1';
SELECT id FROM lock_fetch(NULL::t.orders, '1');
RESET atomic_lock.owner;
-- the row argument only gives the type
SELECT o.id, f.id FROM t.orders o, LATERAL lock_fetch(o, '1', owner => 'alice-1') f WHERE o.id = 2;
SELECT length(name) FROM lock_fetch(NULL::t.orders, '42', owner => 'alice-1');
-- in the select list, for many rows, in a write
SELECT (lock_fetch(NULL::t.orders, i::text, owner => 'alice-1')).id FROM generate_series(1, 3) i;
UPDATE t.orders o SET "Odd ""Col" = 8 FROM lock_fetch(NULL::t.orders, '1', owner => 'alice-1') f WHERE o.id = f.id RETURNING o.*;
SELECT lock_release_all('alice-1');

-- Held by another owner: the same error as lock_acquire, and no row
SELECT holder FROM lock_acquire('orders:1', '1 hour', 'bob-1', holder => 'Bob');
SELECT t.fetch('1');
SELECT t.timeout($$SELECT * FROM lock_fetch(NULL::t.orders, '1', owner => 'alice-1', wait => '1 ms')$$);
SELECT t.fetch('1', 'bob-1'), (SELECT mode FROM lock_convert('orders:1', 'bob-1', 'shared')), t.fetch('1') ~ '^55P03' AS shared;
SET atomic_lock.on_reacquire = error;
SELECT t.code($$SELECT * FROM lock_fetch(NULL::t.orders, '1', owner => 'bob-1')$$);
RESET atomic_lock.on_reacquire;
SELECT lock_release('orders:1', 'bob-1');

-- The label
SELECT id FROM lock_fetch(NULL::t.orders, '1', owner => 'alice-1', holder => 'Alice');
SELECT id FROM lock_fetch(NULL::t.orders, '1', owner => 'alice-1');
SELECT lock_holder('orders:1'), t.raises($$SELECT * FROM lock_fetch(NULL::t.orders, '1', owner => 'bob-1', holder => 'Bob')$$) ~ 'is held by Alice' AS refused;
SELECT id FROM lock_fetch(NULL::t.orders, '1', owner => 'alice-1', holder => 'Alice''s other tab');
SELECT lock_holder('orders:1'), t.raises(format('SELECT * FROM lock_fetch(NULL::t.orders, ''2'', owner => ''bob-1'', holder => %L)', repeat('x', 256))) AS too_long;
SELECT lock_release('orders:1', 'alice-1');

-- A holding of the owner keeps its mode, lifetime and token. Neither its time left nor the ttl
-- of its heartbeats becomes shorter.
CREATE FUNCTION t.kept(acquire text, fetch_ttl text,
	OUT mode text, OUT lifetime text, OUT same_token boolean, OUT same_pid boolean, OUT seconds numeric, OUT heartbeat numeric)
LANGUAGE plpgsql AS $$
DECLARE
	was	lock_state;
	now	lock_state;
BEGIN
	EXECUTE format('SELECT lock_acquire(''orders:1'', owner => ''alice-1'', %s)', acquire);
	was := lock_status('orders:1');
	EXECUTE format('SELECT lock_fetch(NULL::t.orders, ''1'', %s, ''alice-1'')', fetch_ttl);
	now := lock_status('orders:1');
	mode := now.mode;
	lifetime := now.lifetime;
	same_token := now.fencing_token = was.fencing_token;
	same_pid := now.pid IS NOT DISTINCT FROM was.pid;
	seconds := ceil(extract(epoch FROM now.ttl_remaining));
	PERFORM lock_extend('orders:1', 'alice-1');
	now := lock_status('orders:1');
	heartbeat := ceil(extract(epoch FROM now.ttl_remaining));
	PERFORM lock_release('orders:1', 'alice-1');
END
$$;
SELECT a, coalesce(f, 'NULL') AS fetch, k.* FROM unnest(ARRAY['ttl => ''40 min''', 'ttl => ''1 min''', 'ttl => ''1 min'', mode => ''shared''', 'lifetime => ''session''', 'lifetime => ''session'', ttl => ''40 min''', 'lifetime => ''session'', mode => ''shared''', 'lifetime => ''transaction''', 'lifetime => ''transaction'', mode => ''shared''']) WITH ORDINALITY u(a, i),
	unnest(ARRAY[NULL, '''30 min''']) f, t.kept(a, coalesce(f, 'NULL')) k ORDER BY i, f NULLS FIRST;
-- a shared holding stays shared among others, even with wait
SELECT g.status FROM unnest(ARRAY['alice-1', 'bob-1']) o, lock_acquire('orders:1', '1 hour', o, mode => 'shared') g;
SELECT id FROM lock_fetch(NULL::t.orders, '1', owner => 'alice-1');
SELECT mode, holders FROM lock_status('orders:1');
SELECT count(*) FROM unnest(ARRAY['alice-1', 'bob-1']) o, lock_release('orders:1', o);
-- a holding with lifetime transaction ends with it, and leaves no row
BEGIN;
SELECT status FROM lock_acquire('orders:1', owner => 'alice-1', lifetime => 'transaction');
SELECT id FROM lock_fetch(NULL::t.orders, '1', owner => 'alice-1');
SELECT count(*) FROM app_lock WHERE key = 'orders:1' AND NOT released;
COMMIT;
SELECT locked FROM lock_status('orders:1');

-- No such row: no result, no lock, and nothing is written
SELECT t.fingerprint() AS before \gset
BEGIN;
SELECT * FROM lock_fetch(NULL::t.orders, '9', owner => 'alice-1');
SELECT * FROM lock_fetch(NULL::t.orders, '9', owner => 'alice-1', wait => '1 min', key => 'mine');
SELECT * FROM t.left_open();
COMMIT;
SELECT t.fingerprint() = :'before' AS unchanged, (lock_status('orders:9')).locked, (lock_status('mine')).locked;
-- an existing holding of the owner stays
SELECT status FROM lock_acquire('orders:9', '1 hour', 'alice-1');
SELECT * FROM lock_fetch(NULL::t.orders, '9', owner => 'alice-1');
SELECT lock_release('orders:9', 'alice-1');

-- The row as the transaction sees it: its own changes, undone with it
BEGIN;
UPDATE t.orders SET name = 'changed' WHERE id = 1;
SELECT name FROM lock_fetch(NULL::t.orders, '1', owner => 'alice-1');
SAVEPOINT a;
DELETE FROM t.orders WHERE id = 2;
SELECT count(*) FROM lock_fetch(NULL::t.orders, '2', owner => 'alice-1');
SELECT locked FROM lock_status('orders:2');
ROLLBACK TO a;
SELECT count(*) FROM lock_fetch(NULL::t.orders, '2', owner => 'alice-1');
SELECT locked FROM lock_status('orders:2');
INSERT INTO t.orders VALUES (3, 'three');
SELECT name FROM lock_fetch(NULL::t.orders, '3', owner => 'alice-1');
ROLLBACK;
SELECT key FROM lock_status();
-- every isolation level
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT name FROM lock_fetch(NULL::t.orders, '1', owner => 'alice-1');
UPDATE t.orders SET name = 'mine' WHERE id = 1;
SELECT name FROM lock_fetch(NULL::t.orders, '1', owner => 'alice-1');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FROM t.orders;
SELECT name FROM lock_fetch(NULL::t.orders, '1', owner => 'alice-1');
SELECT count(*) FROM lock_fetch(NULL::t.orders, '9', owner => 'alice-1');
COMMIT;
SELECT lock_release_all('alice-1');
-- refused in read-only transactions, and beyond the transaction's limit of claims
BEGIN READ ONLY;
SELECT t.fetch('1'), t.fetch('9') ~ '^25006' AS no_row;
COMMIT;
SET atomic_lock.max_claims_per_transaction = 1;
SELECT t.code($$SELECT lock_fetch(NULL::t.orders, i::text, owner => 'alice-1') FROM generate_series(1, 2) i$$);
RESET atomic_lock.max_claims_per_transaction;

-- Keys
--
-- all ways to write a value give one key
SELECT u.id, f.name, lock_release('orders:1', 'alice-1') FROM unnest(ARRAY['1', '001', ' 1 ', '+1']) u(id), LATERAL lock_fetch(NULL::t.orders, u.id, owner => 'alice-1') f;
SELECT id, t.fetch(id) AS answer FROM unnest(ARRAY['', 'x', '1.0', '1; DROP TABLE t.orders', '99999999999', NULL, '{"id": 1}']) WITH ORDINALITY u(id, i) ORDER BY i;
-- every type
CREATE TYPE t.mood AS ENUM ('fine', 'so, so');
CREATE DOMAIN t.sku AS varchar(9) CHECK (VALUE ~ '-');
CREATE FUNCTION t.try_type(type text, id text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text;
BEGIN
	EXECUTE format('CREATE TABLE t.typed (id %s PRIMARY KEY)', type);
	EXECUTE format('INSERT INTO t.typed VALUES (%L)', id);
	EXECUTE format('SELECT f.id::text FROM lock_fetch(NULL::t.typed, %L, owner => ''alice-1'') f', id) INTO answer;
	answer := (SELECT concat(answer, ' by ', key) FROM lock_status());
	PERFORM lock_release_all('alice-1');
	DROP TABLE t.typed;
	RETURN answer;
END
$$;
SET DateStyle = ISO;
SELECT type, id, t.try_type(type, id) FROM (VALUES ('bigint', ' 9007199254740993'), ('uuid', '{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}'), ('text', 'a:b "c" \ ☃'), ('text', ''), ('varchar(3)', 'abc '), ('char(3)', 'a'), ('date', 'Dec 31 2026'), ('numeric(9,2)', '1.5'), ('boolean', 'yes'),
	('t.mood', 'so, so'), ('t.sku', 'X-1'), ('bytea', 'a\\b'), ('int[]', '{1, 2}'), ('timestamp', '2026-12-31')) v (type, id);
SELECT t.code($$SELECT t.try_type('text', repeat('x', 1018))$$) AS longest, t.code($$SELECT t.try_type('text', repeat('x', 1019))$$) AS longer;
-- equal values that look different: the key uses the value in the row
CREATE TABLE t.equal (id numeric PRIMARY KEY DEFERRABLE);
INSERT INTO t.equal VALUES (1), (2.50);
SELECT u.id, f.id, t.key() AS key, lock_release_all('alice-1') FROM unnest(ARRAY['1.0', '1', '2.5', '2.500']) u(id), LATERAL lock_fetch(NULL::t.equal, u.id, owner => 'alice-1') f;
-- no setting of the caller changes the key
SET DateStyle = German;
SELECT t.try_type('date', '31.12.2026');
RESET DateStyle;
-- several columns: an object with all of them, in the order of the primary key
CREATE TABLE t.lines (note text, line smallint, order_id int, sku text, PRIMARY KEY (order_id, sku, line));
INSERT INTO t.lines VALUES ('x', 3, 1, 'a"b');
SELECT f.*, t.key() AS key, lock_release_all('alice-1') FROM unnest(ARRAY['{"order_id": 1, "sku": "a\"b", "line": 3}', '{"line": "3", "sku": "a\u0022b", "order_id": 1}']) id, LATERAL lock_fetch(NULL::t.lines, id, owner => 'alice-1') f;
SELECT id, t.raises(format('SELECT * FROM lock_fetch(NULL::t.lines, %L, owner => ''alice-1'')', id)) AS answer FROM unnest(ARRAY['1', '', '[1, "a", 3]', 'null', '{}', '{"order_id": 1, "sku": "a\"b"}', '{"order_id": 1, "sku": "a\"b", "line": 3, "note": "x"}', '{"order_id": 1, "sku": "a\"b", "line": null}',
	'{"order_id": 1, "sku": "a\"b", "line": [3]}', '{"order_id": 1, "sku": "a\"b", "line": 3.5}', '{"order_id": 1, "sku": "a\"b", "line": 99999}', '{"order_id": "x", "sku": "a", "line": 3}', '{"order_id": 1, "sku": "none", "line": 3}', '{"order_id": 1']) WITH ORDINALITY u(id, i) ORDER BY i;
SELECT count(*) FROM lock_status();

--
-- Tables
--
CREATE TABLE t."Wéird ""t'a{b}" ("I d" int, "$1" text, PRIMARY KEY ("I d", "$1"));
INSERT INTO t."Wéird ""t'a{b}" VALUES (1, '$2');
CREATE TABLE t.part (id int PRIMARY KEY, name text) PARTITION BY RANGE (id);
CREATE TABLE t.part_1 (name text, id int NOT NULL);
ALTER TABLE t.part ATTACH PARTITION t.part_1 FOR VALUES FROM (0) TO (10);
INSERT INTO t.part VALUES (1, 'in a partition');
CREATE TABLE t.parent (id int PRIMARY KEY, name text);
CREATE TABLE t.child () INHERITS (t.parent);
INSERT INTO t.child VALUES (1, 'in a child');
CREATE TEMP TABLE scratch (id int PRIMARY KEY);
INSERT INTO scratch VALUES (1);
CREATE TABLE t.included (id int, name text, PRIMARY KEY (id) INCLUDE (name));
INSERT INTO t.included VALUES (1, 'x');
SELECT f.*, t.key() AS key, lock_release_all('alice-1') FROM lock_fetch(NULL::t."Wéird ""t'a{b}", '{"I d": 1, "$1": "$2"}', owner => 'alice-1') f;
SELECT f.*, t.key() AS key, lock_release_all('alice-1') FROM lock_fetch(NULL::t.part, '1', owner => 'alice-1') f;
SELECT f.*, t.key() AS key, lock_release_all('alice-1') FROM lock_fetch(NULL::t.part_1, '1', owner => 'alice-1') f;
SELECT f.*, t.key() AS key, lock_release_all('alice-1') FROM lock_fetch(NULL::t.parent, '1', owner => 'alice-1') f;
SELECT f.*, t.key() AS key, lock_release_all('alice-1') FROM lock_fetch(NULL::scratch, '1', owner => 'alice-1') f;
SELECT f.*, t.key() AS key, lock_release_all('alice-1') FROM lock_fetch(NULL::t.included, '1', owner => 'alice-1') f;
-- arguments that are no table, or have no primary key
CREATE VIEW t.view AS SELECT * FROM t.orders;
CREATE TABLE t.no_key (id int UNIQUE NOT NULL);
CREATE TYPE t.composite AS (id int);
CREATE DOMAIN t.domain AS t.orders;
SELECT x, t.raises(format('SELECT lock_fetch(%s, ''1'', owner => ''alice-1'')', x)) AS answer FROM unnest(ARRAY['NULL::int', 'NULL::t.composite', 'NULL::t.view', 'NULL::t.no_key', 'NULL::t.child', 'NULL::t.orders[]', 'ROW(1)', 'NULL::lock_grant']) WITH ORDINALITY u(x, i) ORDER BY i;
SELECT a, split_part(t.raises('SELECT lock_fetch(NULL::t.orders, ' || a || ')'), E'\n', 1) AS answer
FROM unnest(ARRAY['''1'', ''0'', ''o''', '''1'', ''25 h'', ''o''', '''1'', NULL, ''''', '''1'', owner => ''o'', wait => ''6 min''', '''1'', owner => ''o'', key => ''''', '''1'', owner => ''o'', key => repeat(''x'', 1025)']) WITH ORDINALITY u(a, i) ORDER BY i;
SELECT count(*) FROM lock_status();

--
-- Privileges
--
DROP ROLE IF EXISTS regress_al_user, regress_al_mallory;
CREATE ROLE regress_al_user;
CREATE ROLE regress_al_mallory;
CREATE FUNCTION t.as_user() RETURNS TABLE (one text, two text) LANGUAGE sql AS $$
	SELECT t.fetch('1'), t.fetch('2')
$$;
GRANT SELECT ON t.orders TO regress_al_user;
SET ROLE regress_al_user;
SELECT one FROM t.as_user();
RESET ROLE;
SELECT lock_grant_access('regress_al_user', 'user');
REVOKE SELECT ON t.orders FROM regress_al_user;
SET ROLE regress_al_user;
SELECT one FROM t.as_user();
RESET ROLE;
-- SELECT on all columns of the row is needed
GRANT SELECT (id, name) ON t.orders TO regress_al_user;
SET ROLE regress_al_user;
SELECT one FROM t.as_user();
RESET ROLE;
GRANT SELECT ("Odd ""Col", twice) ON t.orders TO regress_al_user;
SET ROLE regress_al_user;
SELECT one FROM t.as_user();
RESET ROLE;
-- a caller without the right to read does not wait
REVOKE SELECT (twice) ON t.orders FROM regress_al_user;
SELECT status FROM lock_acquire('orders:1', '1 hour', 'bob-1');
SET ROLE regress_al_user;
SELECT t.code($$SELECT * FROM lock_fetch(NULL::t.orders, '1', owner => 'alice-1', wait => '1 s')$$);
RESET ROLE;
SELECT lock_release('orders:1', 'bob-1');
GRANT SELECT ON t.orders TO regress_al_user;
ALTER TABLE t.orders ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON t.orders FOR SELECT TO regress_al_user USING (id = 1);
SELECT t.fingerprint() AS before \gset
SET ROLE regress_al_user;
SELECT f.id, (lock_status('orders:' || i)).locked FROM generate_series(1, 2) i LEFT JOIN LATERAL lock_fetch(NULL::t.orders, i::text, owner => 'alice-1') f ON true;
SELECT lock_release('orders:1', 'alice-1');
SET row_security = off;
SELECT t.state(one) AS one FROM t.as_user();
RESET row_security;
RESET ROLE;
SELECT count(*) AS the_owner_sees FROM lock_fetch(NULL::t.orders, '2', owner => 'alice-1');
DROP POLICY p ON t.orders;
ALTER TABLE t.orders DISABLE ROW LEVEL SECURITY;
SELECT lock_release_all('alice-1');

-- Hostile objects in the caller's search_path
CREATE SCHEMA mallory AUTHORIZATION regress_al_mallory;
SET ROLE regress_al_mallory;
CREATE FUNCTION mallory.captured() RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RAISE 'captured'; END$$;
DO $$
DECLARE
	f	text;
BEGIN
	FOREACH f IN ARRAY ARRAY['text', 'integer', 'smallint', 'oid', 'name', 'json', 'jsonb'] LOOP
		EXECUTE format('CREATE FUNCTION mallory.op(%s, %1$s) RETURNS boolean LANGUAGE sql AS ''SELECT mallory.captured()''', f);
		EXECUTE format('CREATE OPERATOR mallory.= (FUNCTION = mallory.op, LEFTARG = %s, RIGHTARG = %1$s)', f);
	END LOOP;
	FOREACH f IN ARRAY ARRAY['text', 'int4', 'integer', 'json', 'jsonb', 'regclass'] LOOP
		EXECUTE format('CREATE DOMAIN mallory.%I AS pg_catalog.int8 CHECK (mallory.captured())', f);
	END LOOP;
	CREATE TABLE mallory.orders (captured boolean);
	CREATE TABLE mallory.lines (captured boolean);
END
$$;
GRANT USAGE ON SCHEMA mallory TO PUBLIC;
RESET ROLE;
SET search_path = mallory, pg_catalog;
SELECT f.name FROM public.lock_fetch(NULL::t.orders, '1', owner => 'alice-1') f;
SELECT f.note FROM public.lock_fetch(NULL::t.lines, '{"order_id": 1, "sku": "a\"b", "line": 3}', owner => 'alice-1') f;
SET search_path = '';
SELECT f.name FROM public.lock_fetch(NULL::t.orders, '1', owner => 'alice-1') f;
RESET search_path;
SELECT key FROM lock_status() ORDER BY key;
SELECT lock_release_all('alice-1');
DROP SCHEMA mallory CASCADE;

-- With a guard: lock, read, write
SELECT lock_protect('t.orders', 'orders:{id}');
SET atomic_lock.owner = 'alice-1';
SELECT t.code('UPDATE t.orders SET name = ''x'' WHERE id = 1') AS before, name FROM lock_fetch(NULL::t.orders, '1');
UPDATE t.orders SET name = 'written' WHERE id = 1;
SELECT lock_release('orders:1'), t.code('UPDATE t.orders SET name = ''x'' WHERE id = 1') AS after;
RESET atomic_lock.owner;

DROP OWNED BY regress_al_user, regress_al_mallory;
DROP ROLE regress_al_user, regress_al_mallory;
