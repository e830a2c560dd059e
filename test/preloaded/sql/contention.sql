\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/../sql/include/setup.sql'
\i :setup
-- lock_contention: the most contended keys
--
-- Properties: a key is listed if a caller was refused it or waited for it, most contended
-- first, even if the transaction was rolled back. The list has room for a limited number of
-- keys, and the most contended stay.
--
-- Turns red when: memory grows with the number of keys; a key refused once displaces one that
-- is refused all the time; keys of another database are shown, or a long key is cut within a
-- character.

-- Is refused a key, that number of times
CREATE FUNCTION t.refuse(k text, times bigint DEFAULT 1) RETURNS bigint LANGUAGE sql AS $$
	SELECT count(*) FILTER (WHERE (lock_try_acquire(k, owner => 'bob-1')).status = 'held') FROM generate_series(1, times)
$$;
CREATE VIEW t.contended AS SELECT key, refusals, waits, total_wait > '0' AS waited FROM lock_contention;

SELECT lock_stats_reset();
SELECT count(*) FROM lock_contention;
SELECT count(lock_acquire(k, '1 hour', 'alice-1')) FROM unnest(ARRAY['a', 'b', 'c', 'd', 'e', 'free']) k;
-- grants are not listed
SELECT lock_release('free', 'alice-1'), (lock_acquire('free', '1 hour', 'bob-1')).status, lock_extend('a', 'alice-1') IS NOT NULL AS extended, lock_try_release('a', 'bob-1'), lock_is_held('a', 'bob-1'), (lock_acquire('a', '1 hour', 'alice-1')).status;
SELECT count(*) FROM lock_contention;

-- The most contended first, refused or waited for
SELECT t.refuse('b', 2), t.refuse('c', 5), t.refuse('a');
SELECT * FROM t.contended;
SELECT status FROM generate_series(1, 3) i, LATERAL lock_try_acquire('d', owner => 'bob-' || i, wait => '10 ms');
SELECT t.refuse('a', 3);
SELECT * FROM t.contended;
SELECT waits, total_wait >= longest_wait AS total, longest_wait > '0' AS longest, longest_wait < total_wait AS less,
	last_at BETWEEN clock_timestamp() - interval '5 min' AND clock_timestamp() AS last_at FROM lock_contention WHERE key = 'd';
SELECT total_wait, longest_wait FROM lock_contention WHERE key = 'c';
SELECT (SELECT last_at FROM lock_contention WHERE key = 'a') > (SELECT last_at FROM lock_contention WHERE key = 'd') AS later;
-- a wait that was granted, and a key that is free by now; on a slow machine the first lease may
-- have expired before the wait
DO $$
BEGIN
	FOR i IN 1 .. 1000 LOOP
		PERFORM lock_acquire('short', '50 ms', 'alice-1');
		EXIT WHEN (lock_acquire('short', '1 hour', 'bob-1', wait => '1 min')).waited > '0';
		PERFORM lock_release('short', 'bob-1');
	END LOOP;
END
$$;
SELECT lock_release('short', 'bob-1'), force_release('a', 'why');
SELECT * FROM t.contended;

-- Refusals of all kinds; they count even if rolled back
SELECT lock_stats_reset();
BEGIN;
SELECT t.refuse('b'), (lock_acquire('f', '1 hour', 'alice-1')).status, t.refuse('f', 2);
SAVEPOINT s;
SELECT t.refuse('c', 4);
ROLLBACK TO s;
ROLLBACK;
SELECT t.code($$SELECT lock_acquire('b', owner => 'bob-1')$$);
SELECT * FROM t.contended;
SELECT lock_stats_reset();
-- of a set: the blocking key
SELECT key, status FROM lock_try_acquire_all(ARRAY['x', 'y', 'd', 'e'], owner => 'bob-1');
-- of owners that have the key already
SELECT count(lock_acquire('s', '1 hour', o, 'shared')) FROM unnest(ARRAY['alice-1', 'bob-1']) o;
SELECT t.code($$SELECT lock_convert('s', 'alice-1')$$);
SELECT t.code($$SELECT lock_convert('s', 'alice-1', wait => '10 ms')$$);
CREATE TABLE t.orders (id int PRIMARY KEY);
INSERT INTO t.orders VALUES (1);
SELECT count(*) FROM lock_fetch(NULL::t.orders, '1', owner => 'alice-1');
SELECT t.code($$SELECT lock_fetch(NULL::t.orders, '1', owner => 'bob-1')$$);
SELECT * FROM t.contended ORDER BY key;

--
-- Limited room
--
SELECT lock_stats_reset();
SELECT count(*) FROM (SELECT lock_acquire('many ' || i, '1 hour', 'alice-1') FROM generate_series(1, 500) i) a;
SELECT count(*) FROM (SELECT lock_acquire('many ' || i, '1 hour', 'alice-1') FROM generate_series(501, 1000) i) a;
SELECT t.refuse('b', 40), t.refuse('c', 20);
SELECT count(t.refuse('many ' || i)) FROM generate_series(1, 1000) i;
SELECT count(*) BETWEEN 100 AND 256 AS bounded, min(refusals), count(DISTINCT key) = count(*) AS once FROM lock_contention WHERE key ~ '^many';
SELECT * FROM t.contended LIMIT 2;
-- a key that becomes contended later enters the list, too
SELECT t.refuse('e', 30);
SELECT * FROM t.contended LIMIT 3;
-- all refusals are still counted in lock_stats
SELECT refusals FROM lock_stats WHERE database = current_database();
TRUNCATE app_lock;

--
-- Long keys: in full
--
SELECT lock_stats_reset();
CREATE TABLE t.long AS SELECT i, k FROM unnest(ARRAY[repeat('long', 255) || '1', repeat('long', 255) || '2',
	repeat('x', 100) || repeat('ü', 400), repeat('x', 101) || repeat('ü', 400), repeat('🔒', 250)]) WITH ORDINALITY u(k, i);
SELECT count(lock_acquire(k, '1 hour', 'alice-1')), sum(t.refuse(k, i)) FROM t.long;
SELECT left(key, 10) AS key, k = key AS same, refusals FROM t.long JOIN lock_contention ON refusals = i ORDER BY i;
-- and also without their rows
TRUNCATE app_lock;
SELECT count(*) FROM t.long JOIN lock_contention ON refusals = i AND k = key;

--
-- Other databases
--
SELECT lock_stats_reset();
SELECT (lock_acquire('k', '1 hour', 'alice-1')).status, t.refuse('k', 3);
SELECT current_database() AS here \gset
DROP DATABASE IF EXISTS regress_al_contention;
CREATE DATABASE regress_al_contention;
\c regress_al_contention
SET client_min_messages = warning;
CREATE EXTENSION atomic_lock;
SELECT count(*) FROM lock_contention;
SELECT status FROM lock_acquire('k', '1 hour', 'alice-1');
SELECT status FROM lock_try_acquire('k', '1 hour', 'bob-1');
SELECT key, refusals FROM lock_contention;
\c :here
SET client_min_messages = warning;
SELECT * FROM t.contended;
SELECT lock_stats_reset();
SELECT * FROM t.contended;
\c regress_al_contention
SET client_min_messages = warning;
SELECT key, refusals FROM lock_contention;
\c :here
DROP DATABASE regress_al_contention;
