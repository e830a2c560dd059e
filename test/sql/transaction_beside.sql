\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\set include :srcdir '/sql/include/unwritten.sql'
\i :setup
-- Lifetime transaction: beside sharers, and beside other holdings of its owner
--
-- Properties: such a holding shares a key with others, and changes its mode as a lease does. A
-- lease or session holding that its owner has before, or gets later, is neither doubled nor
-- ended by it.
--
-- Turns red when: the owner's lease ends with the transaction, or gets another token; a lease
-- pinned this way is lost when it expires; a conversion admits two exclusive holders.

--
-- Sharers, and conversions
--
BEGIN;
SELECT s.* FROM lock_acquire('s', owner => 'alice-1', mode => 'shared', holder => 'Alice', lifetime => 'transaction') g, t.show(g) s;
SELECT status, mode FROM lock_acquire('s', owner => 'bob-1', mode => 'shared', holder => 'Bob', lifetime => 'transaction');
SELECT locked, mode, lifetime, holders FROM lock_status('s');
SELECT count(*) FROM lock_status();
SELECT status, mode, holder IN ('Alice', 'Bob') AS holder FROM lock_try_acquire('s', owner => 'carol-1');
SELECT t.refused($$SELECT lock_acquire('s', owner => 'carol-1')$$) ~ '^55P03: lock "s" is held by (Alice|Bob) and 1 other\n' AS told;
SELECT t.code($$SELECT lock_convert('s', 'alice-1')$$) AS convert, status, holder FROM lock_try_acquire('s', owner => 'alice-1', lifetime => 'transaction');
SELECT lock_release('s', 'bob-1');
SELECT fencing_token AS token FROM lock_status('s') \gset
SELECT s.status, s.mode, fencing_token > :token AS token_rises, expires_at FROM lock_convert('s', 'alice-1') g, t.show(g) s;
SELECT status FROM lock_try_acquire('s', owner => 'bob-1', mode => 'shared');
SELECT status, mode FROM lock_convert('s', 'alice-1');
SELECT status, mode FROM lock_convert('s', 'alice-1', 'shared');
SELECT status, mode FROM lock_try_acquire('s', owner => 'bob-1', mode => 'shared', lifetime => 'transaction');
SELECT lock_release('s', 'bob-1');
SELECT status, mode, expires_at FROM lock_acquire('s', owner => 'alice-1', lifetime => 'transaction');
SELECT lock_is_held('s', 'alice-1'), mode, lifetime, holders FROM lock_status('s');
SELECT * FROM t.written();
COMMIT;
SELECT locked FROM lock_status('s');
-- beside sharers with leases
SELECT g.status FROM lock_acquire('s', '1 hour', 'alice-1', 'shared', holder => 'Alice') g;
SELECT t.fingerprint() AS before \gset
BEGIN;
SELECT status FROM lock_acquire('s', owner => 'bob-1', mode => 'shared', holder => 'Bob', lifetime => 'transaction');
SELECT mode, holders FROM lock_status('s');
SELECT status FROM lock_try_acquire('s', owner => 'carol-1', lifetime => 'transaction');
SELECT t.code($$SELECT lock_convert('s', 'alice-1')$$), t.code($$SELECT lock_convert('s', 'bob-1')$$);
SELECT lock_release('s', 'bob-1');
SELECT holders FROM lock_status('s');
COMMIT;
SELECT t.fingerprint() = :'before' AS unchanged;
SELECT lock_release('s', 'alice-1');

-- Earlier holdings of the owner
--
-- a lease: reacquired unchanged, and pinned to the end of the transaction although it expires
SELECT fencing_token AS token, expires_at AS until FROM lock_acquire('lease', '1 hour', 'alice-1', holder => 'Alice', meta => '1') \gset
BEGIN;
SELECT status, mode, owner, holder, fencing_token = :token AS same_token, expires_at = :'until' AS same_until FROM lock_acquire('lease', owner => 'alice-1', lifetime => 'transaction');
SELECT holder, lifetime, meta FROM lock_status('lease');
SELECT status FROM lock_try_acquire('lease', owner => 'bob-1');
COMMIT;
SELECT lifetime, fencing_token = :token AS same_token FROM lock_status('lease');
SELECT lock_release('lease', 'alice-1');
SELECT g.status FROM lock_acquire('lease', '1 hour', 'alice-1', holder => 'Alice') g;
BEGIN;
SELECT status FROM lock_acquire('lease', owner => 'alice-1', lifetime => 'transaction');
SELECT t.run_out('lease', 'alice-1');
COMMIT;
SELECT locked FROM lock_status('lease');
SELECT lock_try_release('lease', 'alice-1');
SELECT status FROM lock_try_acquire('lease', '1 min', 'bob-1');
SELECT lock_release('lease', 'bob-1');
-- a session's holding
SELECT fencing_token AS token FROM lock_acquire('session', owner => 'alice-1', lifetime => 'session') \gset
BEGIN;
SELECT status, expires_at, fencing_token = :token AS same_token FROM lock_acquire('session', owner => 'alice-1', lifetime => 'transaction');
COMMIT;
SELECT lifetime, pid = pg_backend_pid() AS pid FROM lock_status('session');
SELECT lock_release('session', 'alice-1');
-- the other way round: the holding gets a row, with the same token
BEGIN;
SELECT fencing_token AS token, acquired_at AS since FROM lock_acquire('row', owner => 'alice-1', holder => 'Alice', lifetime => 'transaction') \gset
SELECT status, mode, holder, fencing_token = :token AS same_token, acquired_at = :'since' AS same_since, expires_at > clock_timestamp() + interval '9 min' AS expires FROM lock_acquire('row', '10 min', 'alice-1', meta => '1');
SELECT fencing_token = :token AS same_token, lifetime, holders, meta FROM lock_status('row');
COMMIT;
SELECT fencing_token = :token AS same_token, holder, lifetime, holders, meta FROM lock_status('row');
SELECT lock_release('row', 'alice-1'), lock_try_release('row', 'alice-1') AS again;
BEGIN;
SELECT g.status FROM lock_acquire('row', owner => 'alice-1', mode => 'shared', lifetime => 'transaction') g;
SELECT status, mode, expires_at FROM lock_acquire('row', owner => 'alice-1', mode => 'shared', lifetime => 'session');
SELECT lifetime, holders FROM lock_status('row');
COMMIT;
SELECT mode, lifetime, holders FROM lock_status('row');
SELECT lock_release('row', 'alice-1');
SELECT expires_at IS NULL AS endless FROM lock_acquire('row', owner => 'alice-1', lifetime => 'session');
SELECT lock_release('row', 'alice-1');
BEGIN;
SELECT g.status FROM lock_acquire('row', owner => 'alice-1', lifetime => 'transaction') g;
SELECT s.status, s.seconds BETWEEN 600 AND 660 AS expires FROM lock_acquire('row', '10 min', owner => 'alice-1', lifetime => 'session') g, t.show(g) s;
SELECT lifetime, ttl_remaining BETWEEN '9 min' AND '10 min' AS remaining FROM lock_status('row');
ROLLBACK;
-- and becomes exclusive
BEGIN;
SELECT fencing_token AS token, acquired_at AS since FROM lock_acquire('row', owner => 'alice-1', mode => 'shared', holder => 'Alice', lifetime => 'transaction') \gset
SELECT status, mode, holder, fencing_token > :token AS token_rises, acquired_at = :'since' AS same_since, expires_at IS NOT NULL AS expires FROM lock_acquire('row', '10 min', 'alice-1');
SELECT mode, lifetime, holders FROM lock_status('row');
COMMIT;
SELECT lock_release('row', 'alice-1');
-- a shared lease does not become exclusive for the transaction: lock_convert is needed
SELECT g.status FROM lock_acquire('row', '1 hour', 'alice-1', 'shared', holder => 'Alice') g;
BEGIN;
SELECT t.refused($$SELECT lock_acquire('row', owner => 'alice-1', lifetime => 'transaction')$$);
SELECT acquired, status, mode FROM lock_try_acquire('row', owner => 'alice-1', lifetime => 'transaction');
SELECT status, mode, expires_at IS NOT NULL AS expires FROM lock_acquire('row', owner => 'alice-1', mode => 'shared', lifetime => 'transaction');
SELECT mode, lifetime, holders FROM lock_status('row');
COMMIT;
SELECT lock_release('row', 'alice-1');
-- rolling back a savepoint removes the row, and the earlier holding stays
BEGIN;
SELECT g.status FROM lock_acquire('row', owner => 'alice-1', lifetime => 'transaction') g;
SAVEPOINT a;
SELECT g.status FROM lock_acquire('row', '10 min', owner => 'alice-1') g;
ROLLBACK TO a;
SELECT lifetime, expires_at, lock_is_held('row', 'alice-1') FROM lock_status('row');
SELECT status FROM lock_try_acquire('row', owner => 'bob-1');
COMMIT;
SELECT locked FROM lock_status('row');
-- one release ends both
BEGIN;
SELECT g.status FROM lock_acquire('row', owner => 'alice-1', lifetime => 'transaction') g;
SELECT g.status FROM lock_acquire('row', '10 min', owner => 'alice-1') g;
SELECT lock_release('row', 'alice-1'), lock_is_held('row', 'alice-1');
SELECT status FROM lock_try_acquire('row', '1 min', owner => 'bob-1');
ROLLBACK;
SELECT locked FROM lock_status('row');
