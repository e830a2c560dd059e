\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- lock_holder and lock_is_held: the label of a key's holder, and whether an owner holds a key
--
-- Properties: both answer by the clock and the present state, within a statement, too, and
-- write nothing. At expires_at every function treats the lease as ended.
--
-- Turns red when: an ended lease still counts at its expires_at in any function; the label
-- passes for the owner; an answer comes from the snapshot.
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

-- Expired: both answers change at the same moment
SELECT acquired FROM lock_acquire('short', '20 ms', 'alice-1', holder => 'Alice');
SELECT t.expire('short');
SELECT lock_holder('short'), lock_is_held('short', 'alice-1');

-- At exactly expires_at the lease has ended, for every function
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

-- Calls within one statement see the changes of earlier calls.
SELECT lock_holder('one') AS before, (lock_acquire('one', '1 min', 'alice-1', holder => 'Alice')).status,
	lock_holder('one') AS between, lock_is_held('one', 'alice-1'), lock_release('one', 'alice-1'),
	lock_holder('one') AS after, lock_is_held('one', 'alice-1');

-- A statement may check its own right to write.
CREATE TABLE orders (id int PRIMARY KEY, note text);
INSERT INTO orders SELECT i FROM generate_series(1, 3) i;
SELECT acquired FROM lock_acquire(lock_key('orders', '2'), '1 min', 'alice-1');
UPDATE orders SET note = 'by alice' WHERE lock_is_held(lock_key('orders', id::text), 'alice-1');
SELECT * FROM orders ORDER BY id;
DROP TABLE orders;

-- Both write nothing.
BEGIN;
SELECT lock_holder('k'), lock_is_held('k', 'bob-1');
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_transaction_id;
COMMIT;
