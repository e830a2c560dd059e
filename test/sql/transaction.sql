\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\set include :srcdir '/sql/include/unwritten.sql'
\i :setup
-- Lifetime transaction: held until the transaction that acquired it ends
--
-- Properties: nothing is written, no row and no transaction id. For the rest of the transaction
-- it is a holding like any other, with a token that rises. The end of the transaction or
-- savepoint leaves nothing. Acquiring and releasing many of them in one transaction does not
-- become slower.
--
-- Turns red when: a holding outlives its transaction or savepoint; another owner gets the key
-- in the same transaction; an acquire writes; two grants have one token.
--
-- transaction_beside tests the owner's other holdings, and transaction_calls the other
-- functions and the arguments.

--
-- Held without a row
--
BEGIN;
SELECT s.*, expires_at FROM lock_acquire('k', owner => 'alice-1', holder => 'Alice', lifetime => 'transaction') g, t.show(g) s;
SELECT * FROM t.written();
SELECT key, locked, mode, owner, holder, fencing_token > 0 AS token, acquired_at BETWEEN now() AND clock_timestamp() AS since, expires_at, ttl_remaining, lifetime, holders, pid = pg_backend_pid() AS pid, meta FROM lock_status('k');
SELECT lock_is_held('k', 'alice-1') AS alice, lock_is_held('k', 'bob-1') AS bob, lock_holder('k');
SELECT key, locked, mode, holder, lifetime, holders, pid = pg_backend_pid() AS pid FROM lock_status();
-- another owner is refused, even in the same transaction
SELECT t.refused($$SELECT lock_acquire('k', owner => 'bob-1')$$);
SELECT l, m, acquired, status, mode, owner, holder, acquired_at IS NOT NULL AS since, expires_at
FROM unnest(ARRAY['lease', 'session', 'transaction']) l, unnest(ARRAY['exclusive', 'shared']) m, LATERAL lock_try_acquire('k', owner => 'bob-1', mode => m, lifetime => l);
SELECT t.refused($$SELECT lock_release('k', 'bob-1')$$);
SELECT t.refused($$SELECT lock_extend('k', 'bob-1')$$);
SELECT lock_try_release('k', 'bob-1'), lock_try_extend('k', 'bob-1'), t.code($$SELECT lock_convert('k', 'bob-1', 'shared')$$) AS convert, t.code($$SELECT lock_transfer('k', 'bob-1', 'carol-1')$$) AS transfer;
SELECT * FROM t.written();
COMMIT;
-- gone after the transaction
SELECT locked FROM lock_status('k');
SELECT lock_is_held('k', 'alice-1'), lock_holder('k'), lock_try_release('k', 'alice-1');
SELECT * FROM t.written();
-- the token rises above those of grants without a row
BEGIN;
SELECT fencing_token AS token FROM lock_acquire('k', owner => 'alice-1', lifetime => 'transaction') \gset
ROLLBACK;
SELECT locked FROM lock_status('k');
BEGIN;
SELECT s.owner, fencing_token > :token AS token_rises, fencing_token AS token FROM lock_try_acquire('k', lifetime => 'transaction', wait => '1 min') g, t.show(g) s \gset
COMMIT;
SELECT :'token_rises' AS token_rises, :'owner' AS owner;
SELECT fencing_token > :token AS token_rises, lock_release('k', 'bob-1') FROM lock_acquire('k', '1 min', 'bob-1');
-- where each statement is a transaction
SELECT status FROM lock_acquire('statement', owner => 'alice-1', lifetime => 'transaction');
SELECT locked FROM lock_status('statement');
SELECT a.status AS a, b.status AS b, c.status AS c FROM lock_acquire('statement', owner => 'alice-1', lifetime => 'transaction') a, LATERAL lock_acquire(a.key, owner => 'alice-1', lifetime => 'transaction') b, LATERAL lock_try_acquire(b.key, owner => 'bob-1', lifetime => 'transaction') c;
SELECT locked FROM lock_status('statement');
-- a function and a procedure
DO $$
BEGIN
	PERFORM lock_acquire('do', owner => 'alice-1', lifetime => 'transaction');
	COMMIT;
	IF lock_holder('do') IS NOT NULL THEN
		RAISE 'still held';
	END IF;
	PERFORM lock_acquire('do', owner => 'bob-1', lifetime => 'transaction');
	ROLLBACK;
	IF lock_holder('do') IS NOT NULL THEN
		RAISE 'still held';
	END IF;
END
$$;

--
-- Acquired again by the same owner: the same grant
--
BEGIN;
SELECT fencing_token AS token, acquired_at AS since FROM lock_acquire('again', owner => 'alice-1', holder => 'Alice', lifetime => 'transaction') \gset
SELECT status, mode, owner, expires_at, fencing_token = :token AS same_token, acquired_at = :'since' AS same_since FROM lock_acquire('again', owner => 'alice-1', lifetime => 'transaction');
SELECT status, fencing_token = :token AS same_token FROM lock_try_acquire('again', owner => 'alice-1', mode => 'shared', lifetime => 'transaction', wait => '1 min');
SET LOCAL atomic_lock.on_reacquire = error;
SELECT m, l, t.refused(format('SELECT lock_acquire(''again'', owner => ''alice-1'', mode => %L, lifetime => %L)', m, l)) AS answer, g.acquired, g.status
FROM unnest(ARRAY['exclusive', 'shared']) m, unnest(ARRAY['lease', 'session', 'transaction']) l, LATERAL lock_try_acquire('again', owner => 'alice-1', mode => m, lifetime => l) g;
COMMIT;
-- extended: still without an end
BEGIN;
SELECT g.status FROM lock_acquire('extend', owner => 'alice-1', lifetime => 'transaction') g;
SELECT lock_extend('extend', 'alice-1'), lock_try_extend('extend', 'alice-1', '1 min'), lock_extend('extend', 'alice-1', '1 hour');
SELECT t.code($$SELECT lock_extend('extend', 'alice-1', '25 h')$$);
SELECT expires_at, lifetime FROM lock_status('extend');
SELECT * FROM t.written();
-- released: free for another owner in the same transaction, and again
SELECT lock_release('extend', 'alice-1');
SELECT locked, lock_is_held('extend', 'alice-1') FROM lock_status('extend');
SELECT t.state(t.raises($$SELECT lock_release('extend', 'alice-1')$$)) IN ('LK002', 'LK004') AS refused;
SELECT status FROM lock_acquire('extend', owner => 'bob-1', lifetime => 'transaction');
SELECT lock_try_release('extend', 'alice-1') AS alice, lock_try_release('extend', 'bob-1') AS bob;
SELECT status FROM lock_acquire('extend', owner => 'alice-1', mode => 'shared', lifetime => 'transaction');
SELECT * FROM t.written();
COMMIT;
SELECT locked FROM lock_status('extend');

--
-- Savepoints
--
BEGIN;
SAVEPOINT a;
SELECT g.status FROM lock_acquire('sp', owner => 'alice-1', lifetime => 'transaction') g;
ROLLBACK TO a;
SELECT locked FROM lock_status('sp');
SELECT g.status FROM lock_acquire('sp', owner => 'bob-1', lifetime => 'transaction') g;
SAVEPOINT b;
SELECT lock_release('sp', 'bob-1');
SELECT locked FROM lock_status('sp');
SELECT g.status FROM lock_acquire('sp', owner => 'carol-1', lifetime => 'transaction') g;
ROLLBACK TO b;
SELECT lock_is_held('sp', 'bob-1') AS bob, lock_is_held('sp', 'carol-1') AS carol;
SAVEPOINT c;
SELECT lock_release('sp', 'bob-1');
RELEASE c;
SELECT locked FROM lock_status('sp');
SAVEPOINT d;
SELECT g.status FROM lock_acquire('sp', owner => 'dora-1', lifetime => 'transaction') g;
RELEASE d;
SELECT lock_is_held('sp', 'dora-1');
ROLLBACK TO a;
SELECT locked FROM lock_status('sp');
SELECT t.claims();
COMMIT;
-- converted and transferred in a savepoint
BEGIN;
SELECT fencing_token AS token FROM lock_acquire('sp', owner => 'alice-1', mode => 'shared', lifetime => 'transaction') \gset
SAVEPOINT a;
SELECT g.mode FROM lock_convert('sp', 'alice-1') g;
ROLLBACK TO a;
SELECT mode, fencing_token = :token AS same_token FROM lock_status('sp');
SELECT status FROM lock_try_acquire('sp', owner => 'bob-1', mode => 'shared', lifetime => 'transaction');
COMMIT;
-- blocks that fail
BEGIN;
DO $$
BEGIN
	FOR i IN 1..20 LOOP
		BEGIN
			PERFORM lock_acquire('block:' || i, owner => 'alice-1', lifetime => 'transaction');
			IF i % 2 = 0 THEN
				RAISE 'out';
			END IF;
		EXCEPTION WHEN raise_exception THEN
			NULL;
		END;
	END LOOP;
END
$$;
SELECT string_agg(i::text, ' ' ORDER BY i) AS held FROM generate_series(1, 20) i WHERE lock_is_held('block:' || i, 'alice-1');
SELECT count(*) AS held FROM generate_series(1, 20) i, LATERAL lock_try_acquire('block:' || i, owner => 'bob-1', lifetime => 'transaction') g WHERE g.status = 'held';
COMMIT;
SELECT count(*) AS held FROM lock_status();
-- an error ends the holding
BEGIN;
SELECT g.status FROM lock_acquire('error', owner => 'alice-1', lifetime => 'transaction') g;
SELECT 1 / 0;
COMMIT;
SELECT locked FROM lock_status('error');

--
-- Repeated acquires and releases in one transaction do not become slower
--
SET statement_timeout = '60s';
DO $$
BEGIN
	FOR i IN 1 .. 5000 LOOP
		FOR k IN 1 .. 3 LOOP
			PERFORM lock_acquire('again-' || k, owner => 'o-' || i % 7, lifetime => 'transaction');
			PERFORM lock_release('again-' || k, 'o-' || i % 7);
		END LOOP;
	END LOOP;
END
$$;
RESET statement_timeout;
