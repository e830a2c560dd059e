\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- atomic_lock.max_claims_per_transaction: the number of keys that a transaction may touch
--
-- Properties: each key counts once per transaction, whichever calls touch it; reads and
-- refusals do not count. Rolling back a savepoint gives its keys back. Calls for many keys do
-- all of them or none.
--
-- Turns red when: the count leaks from a failed block or is lost at RELEASE; a call passes the
-- limit; lock_release_all releases a part.
--
SET atomic_lock.max_claims_per_transaction = 3;

-- One key too many, in one statement and in several
SELECT t.raises($$SELECT lock_acquire('k:' || i) FROM generate_series(1, 4) i$$);
SELECT count(*) FROM lock_status();
BEGIN;
SELECT count(*) FROM generate_series(1, 3) i, LATERAL lock_acquire('k:' || i, '10 min', 'alice-1');
SELECT t.code($$SELECT lock_acquire('k:4', owner => 'alice-1')$$) AS acquire, t.code($$SELECT lock_try_acquire('k:4', owner => 'alice-1')$$) AS try_acquire,
	t.code($$SELECT lock_steal('k:4', 'alice-1', 'why')$$) AS steal;
-- touching the same keys again does not count
SELECT count(*) FROM generate_series(1, 30) i, LATERAL lock_acquire('k:' || 1 + i % 3, owner => 'alice-1');
SELECT lock_extend_all('alice-1', '1 hour');
SELECT lock_release('k:1', 'alice-1'), (lock_acquire('k:1', owner => 'bob-1')).status, force_release('k:1', 'why'), (lock_steal('k:1', 'alice-1', 'why')).status;
SELECT lock_release_all('alice-1');
-- neither do reads and refusals
SELECT count(*) FROM generate_series(1, 30) i, LATERAL lock_status('x:' || i);
SELECT count(*) FROM generate_series(1, 30) i, LATERAL lock_try_release('x:' || i, 'alice-1');
COMMIT;

-- Every transaction starts from zero.
SELECT count(*) FROM generate_series(1, 3) i, LATERAL lock_acquire('l:' || i, '10 min', 'alice-1');
SELECT count(*) FROM generate_series(4, 6) i, LATERAL lock_acquire('l:' || i, '10 min', 'alice-1');
BEGIN;
SELECT count(*) FROM generate_series(1, 30) i, LATERAL lock_try_acquire('l:' || 1 + i % 6, owner => 'bob-1') WHERE status = 'held';
SELECT count(*) FROM generate_series(7, 9) i, LATERAL lock_acquire('l:' || i, '10 min', 'carol-1');
COMMIT;

-- Extending and releasing count, too.
BEGIN;
SELECT count(*) FROM generate_series(1, 3) i, LATERAL lock_extend('l:' || i, 'alice-1', '1 hour');
SELECT count(*) FROM generate_series(1, 3) i WHERE lock_release('l:' || i, 'alice-1');
SELECT t.code($$SELECT lock_extend('l:4', 'alice-1')$$) AS extend, t.code($$SELECT lock_try_release('l:4', 'alice-1')$$) AS release, t.code($$SELECT force_release('l:4', 'why')$$) AS force;
ROLLBACK;
BEGIN;
SELECT count(*) FROM generate_series(1, 3) i WHERE lock_release('l:' || i, 'alice-1');
SELECT t.code($$SELECT lock_release('l:4', 'alice-1')$$) AS release;
ROLLBACK;

-- All or nothing: with more leases than the limit, lock_release_all releases none,
SELECT t.raises($$SELECT lock_release_all('alice-1')$$);
SELECT t.code($$SELECT lock_extend_all('alice-1', '1 hour')$$);
SELECT count(*) FROM lock_status() WHERE key LIKE 'l:%' AND ttl_remaining < interval '11 min';
-- and releases all once the limit allows it.
SET atomic_lock.max_claims_per_transaction = 6;
SELECT lock_extend_all('alice-1', '1 hour'), lock_release_all('alice-1');
SET atomic_lock.max_claims_per_transaction = 3;

-- Rolling back a savepoint gives its keys back.
BEGIN;
SELECT acquired FROM lock_acquire('s:0', owner => 'alice-1');
SAVEPOINT a;
SELECT count(*) FROM generate_series(1, 2) i, LATERAL lock_acquire('s:' || i, owner => 'alice-1');
SAVEPOINT b;
SELECT t.code($$SELECT lock_acquire('s:3')$$);
ROLLBACK TO a;
SELECT count(*) FROM generate_series(3, 4) i, LATERAL lock_acquire('s:' || i, owner => 'alice-1');
SELECT t.code($$SELECT lock_acquire('s:5')$$);
SAVEPOINT c;
RELEASE c;
SELECT t.code($$SELECT lock_acquire('s:5')$$);
ROLLBACK TO a;
SELECT acquired FROM lock_acquire('s:5', owner => 'alice-1');
RELEASE a;
SELECT acquired FROM lock_acquire('s:6', owner => 'alice-1');
SELECT t.code($$SELECT lock_acquire('s:7')$$);
COMMIT;
SELECT string_agg(key, ' ' ORDER BY key) FROM lock_status() WHERE key LIKE 's:%';
-- Keys of a released savepoint still count after a later savepoint is rolled back.
BEGIN;
SAVEPOINT a;
SELECT count(*) FROM generate_series(1, 3) i, LATERAL lock_acquire('r:' || i, owner => 'alice-1');
RELEASE a;
SAVEPOINT b;
ROLLBACK TO b;
SELECT t.code($$SELECT lock_acquire('r:4')$$);
ROLLBACK;
-- in a hundred blocks that fail
DO $$
BEGIN
	FOR i IN 1..100 LOOP
		BEGIN
			PERFORM lock_acquire('loop:' || i), lock_acquire('loop:x' || i);
			RAISE 'out';
		EXCEPTION WHEN raise_exception THEN
			NULL;
		END;
	END LOOP;
	PERFORM lock_acquire('loop:1'), lock_acquire('loop:2'), lock_acquire('loop:3');
END
$$;
-- in blocks that succeed, keys add up
DO $$
BEGIN
	FOR i IN 11..14 LOOP
		BEGIN
			PERFORM lock_acquire('loop:' || i);
		EXCEPTION WHEN program_limit_exceeded THEN
			RAISE WARNING 'refused at %', i;
		END;
	END LOOP;
END
$$;

-- The default allows a thousand keys.
RESET atomic_lock.max_claims_per_transaction;
BEGIN;
SELECT count(*) FROM generate_series(1, 1000) i, LATERAL lock_acquire('t:' || i, '10 min', 'dora-1');
SELECT lock_extend_all('dora-1', '1 hour');
SELECT t.code($$SELECT lock_acquire('t:1001')$$);
SELECT lock_release_all('dora-1');
ROLLBACK;
SELECT count(*) FROM lock_status() WHERE key LIKE 't:%';
