\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- lock_holder and lock_is_held
--
SELECT lock_holder('k'), lock_is_held('k', 'alice-1');
SELECT acquired FROM lock_acquire('k', '10 min', 'alice-1', holder => 'Alice');
SELECT lock_holder('k'), lock_is_held('k', 'alice-1'), lock_is_held('k', 'bob-1'), lock_is_held('K', 'alice-1'),
	lock_is_held('k', 'Alice'), lock_is_held('k', 'alice-1 ');

-- The owner from the setting
SELECT t.raises($$SELECT lock_is_held('k')$$);
SET atomic_lock.owner = 'alice-1';
SELECT lock_is_held('k'), lock_is_held('k', NULL), lock_is_held('k', 'bob-1'), lock_is_held('other');
RESET atomic_lock.owner;

-- Released
SELECT lock_release('k', 'alice-1');
SELECT lock_holder('k'), lock_is_held('k', 'alice-1');

-- Expired: both answer at the same moment
SELECT acquired FROM lock_acquire('short', '20 ms', 'alice-1', holder => 'Alice');
SELECT t.expire('short');
SELECT lock_holder('short'), lock_is_held('short', 'alice-1');

-- At expires_at and not later, for every function alike
SELECT acquired FROM lock_acquire('edge', '1 hour', 'alice-1', holder => 'Alice');
UPDATE app_lock SET expires_at = clock_timestamp() WHERE key = 'edge';
SELECT lock_holder('edge'), lock_is_held('edge', 'alice-1'), locked, (SELECT count(*) FROM lock_status() WHERE key = 'edge') AS all_live,
	lock_try_release('edge', 'alice-1'), lock_try_extend('edge', 'alice-1'), lock_extend_all('alice-1'), lock_release_all('alice-1'),
	t.code($$SELECT force_release('edge', 'why')$$), t.code($$SELECT lock_acquire('edge', owner => 'bob-1')$$), lock_sweep()
FROM lock_status('edge') \gx

-- Forced, stolen
SELECT acquired FROM lock_acquire('k', '10 min', 'alice-1', holder => 'Alice');
SELECT force_release('k', 'test');
SELECT lock_holder('k'), lock_is_held('k', 'alice-1');
SELECT acquired FROM lock_acquire('k', '10 min', 'alice-1', holder => 'Alice');
SELECT acquired FROM lock_steal('k', 'bob-1', 'test', holder => 'Bob');
SELECT lock_holder('k'), lock_is_held('k', 'alice-1'), lock_is_held('k', 'bob-1');

-- Within one statement they see what was done before in it.
SELECT lock_holder('one') AS before, (lock_acquire('one', '1 min', 'alice-1', holder => 'Alice')).status,
	lock_holder('one') AS between, lock_is_held('one', 'alice-1'), lock_release('one', 'alice-1'),
	lock_holder('one') AS after, lock_is_held('one', 'alice-1');

-- A function may test for its own right to write.
CREATE TABLE orders (id int PRIMARY KEY, note text);
INSERT INTO orders SELECT i FROM generate_series(1, 3) i;
SELECT acquired FROM lock_acquire(lock_key('orders', '2'), '1 min', 'alice-1');
UPDATE orders SET note = 'by alice' WHERE lock_is_held(lock_key('orders', id::text), 'alice-1');
SELECT * FROM orders ORDER BY id;
DROP TABLE orders;

-- They write nothing.
BEGIN;
SELECT lock_holder('k'), lock_is_held('k', 'bob-1');
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_transaction_id;
COMMIT;
