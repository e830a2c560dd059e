\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- lock_sweep: rows of ended leases are deleted
--
-- Properties: a sweep deletes rows that expired, or were released longer than
-- released_retention ago, up to max_rows, and no row of a live or closed key. Repeated sweeps
-- reach the whole table. No answer depends on a sweep, apart from what it forgets, and tokens
-- still rise.
--
-- Turns red when: a live row, or one released recently, is deleted; a sweep misses rows,
-- exceeds its limit, or writes without need; a swept key gets a lower token.
--
SELECT lock_sweep();

-- Live leases and recently released keys stay; expired ones are deleted.
SELECT count(*) FROM generate_series(1, 3) i, LATERAL lock_acquire('live:' || i, '1 hour', 'alice-1');
SELECT count(*) FROM generate_series(1, 4) i, LATERAL lock_acquire('released:' || i, '1 hour', 'alice-1');
SELECT bool_and(lock_release('released:' || i, 'alice-1')) FROM generate_series(1, 4) i;
SELECT count(*) FROM generate_series(1, 5) i, LATERAL lock_acquire('expired:' || i, '20 ms', 'alice-1', meta => to_jsonb(i));
SELECT t.expire('expired:5');
SELECT split_part(key, ':', 1) AS keys, count(*) FROM app_lock GROUP BY 1 ORDER BY 1;
SELECT lock_sweep();
SELECT split_part(key, ':', 1) AS keys, count(*) FROM app_lock GROUP BY 1 ORDER BY 1;
SELECT lock_sweep();
-- after the sweep, expired keys are not found, and released ones are as before
SELECT lock_try_release('expired:1', 'alice-1'), lock_try_release('released:1', 'alice-1'), lock_try_release('live:1', 'bob-1');

-- Keys released longer ago than released_retention are deleted.
UPDATE app_lock SET expires_at = expires_at - interval '59 min' WHERE released AND key IN ('released:1', 'released:2');
SELECT lock_sweep();
UPDATE app_lock SET expires_at = expires_at - interval '61 min' WHERE released AND key IN ('released:1', 'released:2');
SELECT lock_sweep();
SELECT key FROM app_lock WHERE key LIKE 'released%' ORDER BY 1;
-- The retention counts from the release, however short the lease was.
SELECT acquired FROM lock_acquire('brief', '1 min', 'alice-1');
SELECT lock_release('brief', 'alice-1');
UPDATE app_lock SET acquired_at = acquired_at - interval '30 min', expires_at = expires_at - interval '30 min' WHERE key = 'brief';
SELECT lock_sweep();
SELECT lock_try_release('brief', 'alice-1');
-- A swept key is acquired anew, with a higher token.
SELECT fencing_token AS token FROM app_lock WHERE key = 'released:3' \gset
UPDATE app_lock SET expires_at = expires_at - interval '2 hours' WHERE released AND key = 'released:3';
SELECT lock_sweep();
SELECT s.status, fencing_token > :token AS token_rises FROM lock_acquire('released:3', '1 hour', 'alice-1') g, t.show(g) s;

-- max_rows
SELECT t.raises($$SELECT lock_sweep(0)$$);
SELECT t.raises($$SELECT lock_sweep(-1)$$);
SELECT t.raises($$SELECT lock_sweep(-9223372036854775808)$$) ~ '^22023' AS refused;
SELECT count(*) FROM generate_series(1, 10) i, LATERAL lock_acquire('e:' || i, '20 ms');
SELECT t.expire('e:10');
SELECT lock_sweep(3);
SELECT lock_sweep(1);
SELECT count(*) FROM app_lock WHERE key LIKE 'e:%';
SELECT lock_sweep(9223372036854775807);
SELECT lock_sweep(max_rows => 5);
-- sweep_batch is the default
SHOW atomic_lock.sweep_batch;
SELECT count(*) FROM generate_series(1, 1000) i, LATERAL lock_acquire('e:' || i, '20 ms');
SELECT count(*) FROM generate_series(1001, 1100) i, LATERAL lock_acquire('e:' || i, '20 ms');
SELECT t.expire('e:1000'), t.expire('e:1100');
SELECT lock_sweep();
SELECT lock_sweep(NULL);
-- never more than one transaction may claim
SELECT count(*) FROM generate_series(1, 10) i, LATERAL lock_acquire('e:' || i, '20 ms');
SELECT t.expire('e:10');
SET atomic_lock.max_claims_per_transaction = 4;
SELECT lock_sweep();
SELECT lock_sweep(100);
RESET atomic_lock.max_claims_per_transaction;
SELECT lock_sweep(100);

-- Many small sweeps reach the whole table, each continuing after the previous one.
TRUNCATE app_lock;
CREATE PROCEDURE t.sweep(size int, INOUT sweeps int DEFAULT 0, INOUT removed bigint DEFAULT 0) LANGUAGE plpgsql AS $$
DECLARE
	n	bigint := 1;
BEGIN
	WHILE n > 0 AND sweeps < 100 LOOP
		n := lock_sweep(size);
		COMMIT;
		sweeps := sweeps + 1;
		removed := removed + n;
	END LOOP;
END
$$;
SELECT count(lock_acquire(CASE WHEN i % 10 = 0 THEN 'e:' ELSE 'live:' END || i, CASE WHEN i % 10 = 0 THEN interval '20 ms' ELSE '1 hour' END, 'alice-1', holder => repeat('x', 200))) FROM generate_series(1, 600) i;
SELECT t.expire('e:600');
SELECT pg_relation_size('app_lock') > 10 * 8192 AS many_pages;
CALL t.sweep(7);
SELECT split_part(key, ':', 1) AS keys, count(*) FROM app_lock GROUP BY 1;
-- also rows before the current position: earlier releases lie before later ones
SELECT count(lock_release('live:' || i, 'alice-1')) FROM generate_series(301, 305) i;
UPDATE app_lock SET expires_at = expires_at - interval '61 min' WHERE released;
SELECT lock_sweep(4);
SELECT count(lock_extend('live:' || i, 'alice-1', '1 ms')) FROM generate_series(1, 3) i;
SELECT t.expire('live:3');
CALL t.sweep(1);
SELECT count(*), count(*) FILTER (WHERE released OR expires_at < clock_timestamp()) AS over FROM app_lock;
TRUNCATE app_lock;
-- a table that has become shorter
SELECT acquired FROM lock_acquire('e:1', '20 ms');
SELECT t.expire('e:1');
CALL t.sweep(7);
-- tokens rise however often a key is swept
CREATE TABLE t.token (i int, token bigint);
DO $$
BEGIN
	FOR i IN 1..100 LOOP
		INSERT INTO t.token SELECT i, fencing_token FROM lock_acquire('again', '1 hour', 'alice-1');
		PERFORM lock_release('again', 'alice-1');
		UPDATE app_lock SET expires_at = expires_at - interval '61 min' WHERE released AND key = 'again';
		COMMIT;
		IF lock_sweep() <> 1 THEN
			RAISE 'not swept';
		END IF;
		COMMIT;
	END LOOP;
END
$$;
SELECT count(*), bool_and(token > before) AS rising FROM (SELECT token, lag(token) OVER (ORDER BY i) AS before FROM t.token) s;
SELECT count(lock_acquire('live:' || i, '1 hour', 'alice-1')) FROM generate_series(1, 3) i;

-- Swept and acquired in one transaction; a rollback restores the row.
SELECT acquired FROM lock_acquire('x', '20 ms', 'alice-1');
SELECT t.expire('x');
BEGIN;
SELECT lock_sweep();
SELECT lock_try_release('x', 'alice-1');
SELECT acquired FROM lock_acquire('x', '1 hour', 'bob-1');
SELECT lock_sweep();
SELECT lock_is_held('x', 'bob-1');
ROLLBACK;
SELECT lock_try_release('x', 'alice-1');
SELECT lock_sweep();
SELECT lock_try_release('x', 'alice-1');

-- A lease that expired in its own transaction
BEGIN;
SELECT acquired FROM lock_acquire('own', '20 ms', 'alice-1');
SELECT t.expire('own');
SELECT lock_sweep();
COMMIT;
SELECT count(*) FROM app_lock WHERE key = 'own';

-- No rows to delete: nothing is written
BEGIN;
SELECT lock_sweep();
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_transaction_id;
COMMIT;

-- lock_delay: the key stays closed for a while after its lease expired, and is not swept
-- meanwhile.
SELECT acquired FROM lock_acquire('delay', '20 ms', 'alice-1', holder => 'Alice');
SELECT t.expire('delay');
SET atomic_lock.lock_delay = '1 h';
SELECT lock_sweep();
SELECT locked, holder FROM lock_status('delay');
SELECT s.acquired, s.status, s.owner, s.token FROM lock_try_acquire('delay', '1 min', 'bob-1') g, t.show(g) s;
SELECT t.raises($$SELECT lock_acquire('delay', '1 min', 'bob-1')$$);
-- it affects only calls that would acquire the key
SELECT lock_try_release('delay', 'alice-1'), lock_try_release('delay', 'bob-1'), lock_is_held('delay', 'alice-1');
SELECT t.code($$SELECT lock_extend('delay', 'alice-1')$$), t.code($$SELECT force_release('delay', 'why')$$);
-- an administrator need not wait, and can open the key
SELECT t.code($$SELECT force_release('delay', 'why')$$);
BEGIN;
SELECT acquired FROM lock_steal('delay', 'dba-1', 'no time to wait');
ROLLBACK;
-- no delay after a release
SELECT acquired FROM lock_acquire('clean', '1 min', 'alice-1');
SELECT lock_release('clean', 'alice-1');
SELECT acquired FROM lock_acquire('clean', '1 min', 'bob-1');
-- nor after force_release
SELECT force_release('clean', 'why');
SELECT acquired FROM lock_acquire('clean', '1 min', 'bob-1');
-- after the delay: free, and swept
SET atomic_lock.lock_delay = '10 ms';
SELECT pg_sleep(0.02);
BEGIN;
SELECT acquired FROM lock_acquire('delay', '1 min', 'bob-1');
ROLLBACK;
SELECT lock_sweep();
RESET atomic_lock.lock_delay;
SELECT lock_try_release('delay', 'alice-1');

--
-- Settings of the configuration file
--
\set ECHO none
ALTER SYSTEM SET atomic_lock.released_retention = 0;
ALTER SYSTEM SET atomic_lock.sweep_batch = 2;
SELECT pg_reload_conf() AS reloaded \gset
SELECT 'SELECT CASE WHEN current_setting(''atomic_lock.sweep_batch'') <> ''2'' THEN pg_sleep(' || n * 0.01 || ') END'
FROM generate_series(1, 200) n
\o /dev/null
\gexec
\o
\set ECHO all
SHOW atomic_lock.released_retention;
SHOW atomic_lock.sweep_batch;
-- retention 0: a released key may be deleted at once
SELECT acquired FROM lock_acquire('forget', '1 hour', 'alice-1');
SELECT lock_release('forget', 'alice-1');
SELECT lock_try_release('forget', 'alice-1');
SELECT lock_sweep(1000) > 0 AS swept;
SELECT lock_try_release('forget', 'alice-1');
SELECT lock_is_held('live:1', 'alice-1');
-- a batch of 2
SELECT count(*) FROM generate_series(1, 5) i, LATERAL lock_acquire('e:' || i, '20 ms');
SELECT t.expire('e:5');
SELECT lock_sweep(), lock_sweep(), lock_sweep(), lock_sweep();
\set ECHO none
ALTER SYSTEM RESET atomic_lock.released_retention;
ALTER SYSTEM RESET atomic_lock.sweep_batch;
SELECT pg_reload_conf() AS reloaded \gset
SELECT 'SELECT CASE WHEN current_setting(''atomic_lock.sweep_batch'') = ''2'' THEN pg_sleep(' || n * 0.01 || ') END'
FROM generate_series(1, 200) n
\o /dev/null
\gexec
\o
\set ECHO all
SHOW atomic_lock.released_retention;
SHOW atomic_lock.sweep_batch;
