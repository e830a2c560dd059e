\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\set include :srcdir '/sql/include/orders.sql'
\i :setup
-- The guard of lock_protect: a write pins the holding that covers it
--
-- Properties: a write that passes pins the holding to the end of the transaction or savepoint.
-- While the pin lasts, further writes pass although the lease has expired. If the transaction
-- releases, converts or transfers the lease, its next write is judged by that. A prepared
-- transaction keeps the pin. Each key counts once among the claims.
--
-- Turns red when: an expired lease without a pin covers a write; a pin outlives its savepoint;
-- the pin of a shared holding covers a write; another owner uses the pin.
DELETE FROM t.lines WHERE order_id = 1 AND line = 2;
SELECT lock_protect('t.lines', 'order:{order_id}');

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
-- ended by rolling back the savepoint
BEGIN;
SAVEPOINT a;
UPDATE t.lines SET text = 'undone' WHERE order_id = 1;
ROLLBACK TO a;
SELECT claims FROM t.left_open();
SELECT t.run_out('order:1', 'alice-1');
SELECT t.code('UPDATE t.lines SET text = ''x'' WHERE order_id = 1');
ROLLBACK;
-- kept when the savepoint is released; a pin of lock_assert serves as well
BEGIN;
SAVEPOINT a;
SELECT lock_assert('order:1') > 0 AS pinned;
RELEASE a;
SELECT t.run_out('order:1', 'alice-1');
SELECT t.code('UPDATE t.lines SET text = ''x'' WHERE order_id = 1');
ROLLBACK;
-- the pin of a shared holding does not
SELECT mode FROM lock_convert('order:1', mode => 'shared');
BEGIN;
SELECT lock_assert('order:1') > 0 AS pinned, t.code('UPDATE t.lines SET text = ''x'' WHERE order_id = 1') AS shared, (lock_convert('order:1')).mode, t.code('UPDATE t.lines SET text = ''x'' WHERE order_id = 1') AS converted;
SELECT mode, t.code('UPDATE t.lines SET text = ''x'' WHERE order_id = 1') AS converted_back FROM lock_convert('order:1', mode => 'shared');
ROLLBACK;
SELECT mode FROM lock_convert('order:1');
-- the transaction itself ends or transfers the lease; the pin serves no other owner
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
-- A prepared transaction keeps the pin.
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
-- Holdings with lifetime session or transaction cover writes as leases do.
BEGIN;
SELECT l, (lock_acquire('order:1', owner => 'alice-1', lifetime => l)).status, t.as('alice-1', 'UPDATE t.lines SET text = ''x'' WHERE order_id = 1') AS alice, t.as('bob-1', 'UPDATE t.lines SET text = ''x'' WHERE order_id = 1') AS bob, lock_release('order:1', 'alice-1')
FROM unnest(ARRAY['session', 'transaction']) l;
ROLLBACK;
-- Each key counts once.
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
