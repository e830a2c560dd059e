\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- Mode shared: leases that expire, and the rows that they leave
--
-- Properties: an expired or released sharer blocks no caller. Its row is reused by the next
-- sharer, so a key never has more rows than it had sharers at once. A sweep removes the
-- remaining rows, in batches, and no row of a live lease.
--
-- Turns red when: an expired lease blocks an exclusive request; rows of sharers pile up; a
-- sweep removes too many rows, or leaves some; an owner gets the answer that belongs to
-- another's lease.
--
-- The rows of each sharer, from which refusals are made
CREATE VIEW t.readers AS SELECT key, mode, owner, holder, released, expires_at <= clock_timestamp() AS expired FROM app_lock ORDER BY key, fencing_token;

--
-- Leases that expire
--
SELECT g.acquired FROM lock_acquire('e', '1 hour', 'alice-1', 'shared', holder => 'Alice') g;
SELECT g.acquired FROM lock_acquire('e', '20 ms', 'bob-1', 'shared', holder => 'Bob') g;
SELECT t.expire('e', 'bob-1');
SELECT holder, holders FROM lock_status('e');
SELECT t.raises($$SELECT lock_acquire('e', owner => 'dora-1')$$) ~ '"e" is held by Alice\n' AS one;
SELECT t.raises($$SELECT lock_release('e', 'bob-1')$$);
SELECT t.raises($$SELECT lock_extend('e', 'bob-1')$$);
SELECT lock_try_release('e', 'bob-1') AS bob, lock_try_extend('e', 'bob-1') AS extended;
-- its row is reused by the next sharer, and then the former lease is unknown
SELECT count(*) AS rows FROM app_lock WHERE key = 'e';
SELECT g.acquired FROM lock_acquire('e', '1 hour', 'carol-1', 'shared') g;
SELECT count(*) AS rows FROM app_lock WHERE key = 'e';
SELECT lock_try_release('e', 'bob-1') AS bob;
-- all leases have expired: none blocks
SELECT g.acquired FROM lock_acquire('e2', '1 hour', 'alice-1', 'shared') g;
SELECT g.acquired FROM lock_acquire('e2', '1 hour', 'bob-1', 'shared') g;
SELECT t.run_out('e2', 'alice-1'), t.run_out('e2', 'bob-1');
SELECT locked FROM lock_status('e2');
SELECT lock_try_release('e2', 'alice-1') AS alice, lock_try_release('e2', 'dora-1') AS dora;
SELECT s.status, s.mode FROM lock_acquire('e2', '1 hour', 'dora-1') g, t.show(g) s;
-- expired, and acquired again by its owner: a new grant
SELECT fencing_token AS old FROM lock_acquire('e3', '20 ms', 'alice-1', 'shared', meta => '1') \gset
SELECT t.expire('e3');
SELECT s.status, fencing_token > :old AS token_rises FROM lock_acquire('e3', '1 hour', 'alice-1', 'shared') g, t.show(g) s;
SELECT meta IS NULL AS meta_gone, holders FROM lock_status('e3');
SELECT count(*) AS rows FROM app_lock WHERE key = 'e3';
-- an exclusive waiter gets the key when the last of them has expired
SELECT b.status, b.acquired_at >= greatest(a.expires_at, c.expires_at) AS after_their_end
FROM lock_acquire('e4', '40 ms', 'alice-1', 'shared') a, lock_acquire('e4', '120 ms', 'bob-1', 'shared') c, LATERAL lock_acquire(left(a.key || c.key, 2), '1 hour', 'dora-1', wait => '1 min') b;
-- a shared waiter gets it when the exclusive lease has
SELECT b.status, b.mode, b.acquired_at >= a.expires_at AS after_its_end
FROM lock_acquire('e5', '100 ms', 'alice-1') a, LATERAL lock_acquire(a.key, '1 hour', 'bob-1', 'shared', wait => '1 min') b;
-- a sharer does not wait for other sharers
SELECT s.status, s.waited FROM lock_acquire('e5', '1 hour', 'carol-1', 'shared', wait => '1 min') g, t.show(g) s;

--
-- Rows of ended holdings are reused
--
CREATE PROCEDURE t.come_and_go(k text, n int) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1..n LOOP
		PERFORM lock_acquire(k, '1 hour', 'reader-' || i, 'shared');
		COMMIT;
		PERFORM lock_release(k, 'reader-' || i);
		COMMIT;
	END LOOP;
END
$$;
CALL t.come_and_go('rows', 100);
SELECT count(*) <= 2 AS few FROM app_lock WHERE key = 'rows';
-- while others stay
SELECT count(*) FROM generate_series(1, 5) i, LATERAL lock_acquire('rows', '1 hour', 'stays-' || i, 'shared');
CALL t.come_and_go('rows', 100);
SELECT count(*) <= 7 AS few FROM app_lock WHERE key = 'rows';
SELECT holders FROM lock_status('rows');
-- with generated owners, and leases that expire
DO $$
BEGIN
	FOR i IN 1..20 LOOP
		PERFORM lock_acquire('rows 2', '1 ms', mode => 'shared');
		PERFORM pg_sleep(0.002);
	END LOOP;
END
$$;
SELECT count(*) <= 2 AS few FROM app_lock WHERE key = 'rows 2';
-- within one transaction, too
DO $$
BEGIN
	FOR i IN 1..20 LOOP
		PERFORM lock_acquire('rows 3', '1 hour', 'reader-' || i, 'shared');
		PERFORM lock_release('rows 3', 'reader-' || i);
	END LOOP;
END
$$;
SELECT count(*) <= 2 AS few FROM app_lock WHERE key = 'rows 3';
-- sharers after an exclusive holder and vice versa: no owner gets another's answer
SELECT g.acquired FROM lock_acquire('turns', '1 hour', 'alice-1') g;
SELECT lock_release('turns', 'alice-1');
SELECT g.acquired FROM lock_acquire('turns', '1 hour', 'bob-1', 'shared') g;
SELECT lock_try_release('turns', 'alice-1') AS alice, lock_try_release('turns', 'bob-1') AS bob, lock_try_release('turns', 'bob-1') AS again;
SELECT g.acquired FROM lock_acquire('turns', '1 hour', 'alice-1') g;
SELECT lock_try_release('turns', 'bob-1') AS bob, lock_try_release('turns', 'alice-1') AS alice, lock_try_release('turns', 'alice-1') AS again;
-- the owner's last action determines its answer
SELECT g.acquired FROM lock_acquire('newest', '1 hour', 'alice-1') g;
SELECT lock_release('newest', 'alice-1');
SELECT g.acquired FROM lock_acquire('newest', '20 ms', 'alice-1', 'shared') g;
SELECT t.expire('newest');
SELECT lock_try_release('newest', 'alice-1');
SELECT g.acquired FROM lock_acquire('newest', '20 ms', 'alice-1') g;
SELECT t.expire('newest');
SELECT g.acquired FROM lock_acquire('newest', '1 hour', 'alice-1', 'shared') g;
SELECT lock_release('newest', 'alice-1');
SELECT lock_try_release('newest', 'alice-1');
-- many at once
SELECT count(*), count(DISTINCT fencing_token) AS tokens, count(DISTINCT owner) AS owners FROM generate_series(1, 300) i, LATERAL lock_acquire('many', i * interval '1 min', mode => 'shared') WHERE acquired;
SELECT holders FROM lock_status('many');
SELECT count(DISTINCT slot) AS slots, min(slot) > 0 AS above_zero FROM app_lock WHERE key = 'many';
SELECT t.raises($$SELECT lock_acquire('many')$$) ~ ' and at least 100 others\n' AS so_told;

--
-- The sweep
--
SELECT lock_sweep() >= 0 AS swept;
SELECT force_release(key, 'end of test') FROM (SELECT DISTINCT key FROM lock_status()) k;
UPDATE app_lock SET expires_at = expires_at - interval '2 hours' WHERE released;
SELECT lock_sweep(100000) >= 0 AS swept;
SELECT count(*) FROM app_lock;
SELECT g.status FROM lock_acquire('sweep', '1 hour', 'alice-1', 'shared') g;
SELECT g.status FROM lock_acquire('sweep', '1 hour', 'bob-1', 'shared') g;
SELECT g.status FROM lock_acquire('sweep', '1 hour', 'carol-1', 'shared') g;
SELECT g.status FROM lock_acquire('sweep', '1 hour', 'dora-1', 'shared') g;
SELECT lock_release('sweep', 'dora-1');
SELECT t.run_out('sweep', 'bob-1'), t.run_out('sweep', 'carol-1');
SELECT lock_sweep();
SELECT owner, released FROM t.readers;
SELECT lock_try_release('sweep', 'bob-1') AS bob, lock_try_release('sweep', 'dora-1') AS dora, holders FROM lock_status('sweep');
UPDATE app_lock SET expires_at = expires_at - interval '2 hours' WHERE released AND owner = 'dora-1';
SELECT lock_sweep();
SELECT owner FROM t.readers;
SELECT lock_try_release('sweep', 'dora-1') AS dora;
-- batches of limited size
SELECT count(*) FROM generate_series(1, 6) i, LATERAL lock_acquire('sweep', '1 hour', 'reader-' || i, 'shared');
SELECT count(t.run_out('sweep', 'reader-' || i)) FROM generate_series(1, 6) i;
SELECT lock_sweep(4), lock_sweep(4), lock_sweep(4);
SELECT owner FROM t.readers;
-- the last row
SELECT lock_extend('sweep', 'alice-1', '1 ms') IS NOT NULL AS extended;
SELECT t.expire('sweep');
SELECT lock_sweep();
SELECT count(*) FROM app_lock;
SELECT lock_try_release('sweep', 'alice-1');
-- a key whose sweep was rolled back
SELECT g.status FROM lock_acquire('sweep', '20 ms', 'alice-1', 'shared') g;
SELECT t.expire('sweep');
BEGIN;
SELECT lock_sweep();
SELECT g.status FROM lock_acquire('sweep', '1 hour', 'bob-1', 'shared') g;
ROLLBACK;
SELECT lock_try_release('sweep', 'alice-1');
SELECT lock_sweep();
