\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- Lifetime transaction: held until the transaction that acquired it has ended
--
-- Properties: nothing is written, no row and no transaction id; for the rest of
-- the transaction it is a holding like any other, with a token that rises; with
-- the end of the transaction, or of the savepoint, nothing is left of it.  A
-- lease of its owner that it finds, or gets, is neither doubled nor ended by it.
--
-- Turns red when: it outlives its transaction or savepoint; another owner of the
-- same transaction is let in; it writes; a token is given twice.

CREATE FUNCTION t.written(OUT no_live_row boolean, OUT no_transaction_id boolean) LANGUAGE sql AS $$
	SELECT NOT EXISTS (SELECT FROM app_lock WHERE NOT released AND expires_at > clock_timestamp()), pg_current_xact_id_if_assigned() IS NULL
$$;
CREATE FUNCTION t.claims() RETURNS bigint LANGUAGE sql AS $$
	SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND objsubid BETWEEN 1706 AND 1711 AND mode <> 'AccessShareLock'
$$;
-- The process of a message is another each time, and its number may be that of a SQLSTATE.
CREATE FUNCTION t.refused(stmt text) RETURNS text LANGUAGE sql AS $$
	SELECT regexp_replace(replace(t.raises(stmt), 'process ' || pg_backend_pid(), 'process <this>'), 'waited for [0-9]+ ms', 'waited for <n> ms')
$$;

--
-- Held, and written nowhere
--
BEGIN;
SELECT s.*, expires_at FROM lock_acquire('k', owner => 'alice-1', holder => 'Alice', lifetime => 'transaction') g, t.show(g) s;
SELECT * FROM t.written();
SELECT key, locked, mode, owner, holder, fencing_token > 0 AS token, acquired_at BETWEEN now() AND clock_timestamp() AS since, expires_at, ttl_remaining, lifetime, holders, pid = pg_backend_pid() AS pid, meta FROM lock_status('k');
SELECT lock_is_held('k', 'alice-1') AS alice, lock_is_held('k', 'bob-1') AS bob, lock_holder('k');
SELECT key, locked, mode, holder, lifetime, holders, pid = pg_backend_pid() AS pid FROM lock_status();
-- another owner is refused, though it is the same transaction
SELECT t.refused($$SELECT lock_acquire('k', owner => 'bob-1')$$);
SELECT l, m, acquired, status, mode, owner, holder, acquired_at IS NOT NULL AS since, expires_at
FROM unnest(ARRAY['lease', 'session', 'transaction']) l, unnest(ARRAY['exclusive', 'shared']) m, LATERAL lock_try_acquire('k', owner => 'bob-1', mode => m, lifetime => l);
SELECT t.refused($$SELECT lock_release('k', 'bob-1')$$);
SELECT t.refused($$SELECT lock_extend('k', 'bob-1')$$);
SELECT lock_try_release('k', 'bob-1'), lock_try_extend('k', 'bob-1'), t.code($$SELECT lock_convert('k', 'bob-1', 'shared')$$) AS convert, t.code($$SELECT lock_transfer('k', 'bob-1', 'carol-1')$$) AS transfer;
SELECT * FROM t.written();
COMMIT;
-- gone with the transaction
SELECT locked FROM lock_status('k');
SELECT lock_is_held('k', 'alice-1'), lock_holder('k'), lock_try_release('k', 'alice-1');
SELECT * FROM t.written();
-- the token rises over those that were written nowhere
BEGIN;
SELECT fencing_token AS token FROM lock_acquire('k', owner => 'alice-1', lifetime => 'transaction') \gset
ROLLBACK;
SELECT locked FROM lock_status('k');
BEGIN;
SELECT s.owner, fencing_token > :token AS token_rises, fencing_token AS token FROM lock_try_acquire('k', lifetime => 'transaction', wait => '1 min') g, t.show(g) s \gset
COMMIT;
SELECT :'token_rises' AS token_rises, :'owner' AS owner;
SELECT fencing_token > :token AS token_rises, lock_release('k', 'bob-1') FROM lock_acquire('k', '1 min', 'bob-1');
-- where a statement is a transaction
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
-- Again, by the same owner: the same grant
--
BEGIN;
SELECT fencing_token AS token, acquired_at AS since FROM lock_acquire('again', owner => 'alice-1', holder => 'Alice', lifetime => 'transaction') \gset
SELECT status, mode, owner, expires_at, fencing_token = :token AS same_token, acquired_at = :'since' AS same_since FROM lock_acquire('again', owner => 'alice-1', lifetime => 'transaction');
SELECT status, fencing_token = :token AS same_token FROM lock_try_acquire('again', owner => 'alice-1', mode => 'shared', lifetime => 'transaction', wait => '1 min');
SET LOCAL atomic_lock.on_reacquire = error;
SELECT m, l, t.refused(format('SELECT lock_acquire(''again'', owner => ''alice-1'', mode => %L, lifetime => %L)', m, l)) AS answer, g.acquired, g.status
FROM unnest(ARRAY['exclusive', 'shared']) m, unnest(ARRAY['lease', 'session', 'transaction']) l, LATERAL lock_try_acquire('again', owner => 'alice-1', mode => m, lifetime => l) g;
COMMIT;
-- extended: to no end
BEGIN;
SELECT g.status FROM lock_acquire('extend', owner => 'alice-1', lifetime => 'transaction') g;
SELECT lock_extend('extend', 'alice-1'), lock_try_extend('extend', 'alice-1', '1 min'), lock_extend('extend', 'alice-1', '1 hour');
SELECT t.code($$SELECT lock_extend('extend', 'alice-1', '25 h')$$);
SELECT expires_at, lifetime FROM lock_status('extend');
SELECT * FROM t.written();
-- released: it is another's in the same transaction, and again
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
-- Readers, and the way between the modes
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
-- beside readers that have leases
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

--
-- What the owner has already
--
-- a lease: reacquired as it is, and kept to the end of the transaction, though it runs out
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
-- a session's
SELECT fencing_token AS token FROM lock_acquire('session', owner => 'alice-1', lifetime => 'session') \gset
BEGIN;
SELECT status, expires_at, fencing_token = :token AS same_token FROM lock_acquire('session', owner => 'alice-1', lifetime => 'transaction');
COMMIT;
SELECT lifetime, pid = pg_backend_pid() AS pid FROM lock_status('session');
SELECT lock_release('session', 'alice-1');
-- the other way round: it gets a row, with the same token
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
-- and becomes a writer's
BEGIN;
SELECT fencing_token AS token, acquired_at AS since FROM lock_acquire('row', owner => 'alice-1', mode => 'shared', holder => 'Alice', lifetime => 'transaction') \gset
SELECT status, mode, holder, fencing_token > :token AS token_rises, acquired_at = :'since' AS same_since, expires_at IS NOT NULL AS expires FROM lock_acquire('row', '10 min', 'alice-1');
SELECT mode, lifetime, holders FROM lock_status('row');
COMMIT;
SELECT lock_release('row', 'alice-1');
-- a lease for reading is not made one for writing for a while: that is for lock_convert
SELECT g.status FROM lock_acquire('row', '1 hour', 'alice-1', 'shared', holder => 'Alice') g;
BEGIN;
SELECT t.refused($$SELECT lock_acquire('row', owner => 'alice-1', lifetime => 'transaction')$$);
SELECT acquired, status, mode FROM lock_try_acquire('row', owner => 'alice-1', lifetime => 'transaction');
SELECT status, mode, expires_at IS NOT NULL AS expires FROM lock_acquire('row', owner => 'alice-1', mode => 'shared', lifetime => 'transaction');
SELECT mode, lifetime, holders FROM lock_status('row');
COMMIT;
SELECT lock_release('row', 'alice-1');
-- the row goes with a savepoint, and what was there before it comes back
BEGIN;
SELECT g.status FROM lock_acquire('row', owner => 'alice-1', lifetime => 'transaction') g;
SAVEPOINT a;
SELECT g.status FROM lock_acquire('row', '10 min', owner => 'alice-1') g;
ROLLBACK TO a;
SELECT lifetime, expires_at, lock_is_held('row', 'alice-1') FROM lock_status('row');
SELECT status FROM lock_try_acquire('row', owner => 'bob-1');
COMMIT;
SELECT locked FROM lock_status('row');
-- released after both: neither is left
BEGIN;
SELECT g.status FROM lock_acquire('row', owner => 'alice-1', lifetime => 'transaction') g;
SELECT g.status FROM lock_acquire('row', '10 min', owner => 'alice-1') g;
SELECT lock_release('row', 'alice-1'), lock_is_held('row', 'alice-1');
SELECT status FROM lock_try_acquire('row', '1 min', owner => 'bob-1');
ROLLBACK;
SELECT locked FROM lock_status('row');

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
-- converted and handed on in a savepoint
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
-- an error ends it
BEGIN;
SELECT g.status FROM lock_acquire('error', owner => 'alice-1', lifetime => 'transaction') g;
SELECT 1 / 0;
COMMIT;
SELECT locked FROM lock_status('error');

--
-- Many; all of an owner; handed on; by force
--
BEGIN;
SELECT count(*), count(DISTINCT fencing_token) AS tokens FROM generate_series(1, 50) i, LATERAL lock_acquire('many:' || i, owner => 'alice-1', lifetime => 'transaction');
SELECT count(*) FROM generate_series(1, 50) i WHERE lock_is_held('many:' || i, 'alice-1');
SELECT bool_and(locked AND lifetime = 'transaction') FROM generate_series(1, 50) i, LATERAL lock_status('many:' || i);
SELECT count(*) BETWEEN 8 AND 50 AS some, count(*) = count(DISTINCT key) AS once FROM lock_status();
SELECT * FROM t.written();
COMMIT;
SELECT count(*) FROM lock_status();
SET atomic_lock.max_claims_per_transaction = 2;
BEGIN;
SELECT count(*) FROM generate_series(1, 2) i, LATERAL lock_acquire('many:' || i, owner => 'alice-1', lifetime => 'transaction');
SELECT t.code($$SELECT lock_acquire('many:3', owner => 'alice-1', lifetime => 'transaction')$$), (lock_acquire('many:2', owner => 'alice-1', lifetime => 'transaction')).status;
COMMIT;
RESET atomic_lock.max_claims_per_transaction;
BEGIN;
SELECT g.status FROM lock_acquire('all 1', owner => 'alice-1', lifetime => 'transaction') g;
SELECT g.status FROM lock_acquire('all 2', owner => 'alice-1', mode => 'shared', lifetime => 'transaction') g;
SELECT g.status FROM lock_acquire('all 3', owner => 'bob-1', lifetime => 'transaction') g;
SELECT g.status FROM lock_acquire('all 4', '1 min', owner => 'alice-1') g;
SELECT lock_release_all('alice-1'), lock_release_all('alice-1');
SELECT k, lock_holder(k) IS NOT NULL AS held FROM unnest(ARRAY['all 1', 'all 2', 'all 3', 'all 4']) k;
COMMIT;
DELETE FROM app_lock;
-- handed on: the new owner has it to the end of the transaction
BEGIN;
SELECT fencing_token AS token FROM lock_acquire('give', owner => 'alice-1', holder => 'Alice', lifetime => 'transaction') \gset
SAVEPOINT a;
SELECT s.status, s.mode, s.owner, s.holder, expires_at, fencing_token > :token AS token_rises FROM lock_transfer('give', 'alice-1', 'bob-1', 'Bob') g, t.show(g) s;
SELECT lock_is_held('give', 'alice-1') AS alice, lock_is_held('give', 'bob-1') AS bob, lock_try_release('give', 'alice-1'), holder, lifetime, holders FROM lock_status('give');
SELECT t.refused($$SELECT lock_transfer('give', 'bob-1', 'carol-1', ttl => '1 min')$$);
SELECT lock_release('give', 'bob-1'), lock_holder('give');
ROLLBACK TO a;
SELECT lock_is_held('give', 'alice-1') AS alice, lock_is_held('give', 'bob-1') AS bob, fencing_token = :token AS same_token FROM lock_status('give');
SELECT * FROM t.written();
COMMIT;
-- to one that reads it already: the two become one
BEGIN;
SELECT g.status FROM lock_acquire('give', owner => 'alice-1', mode => 'shared', lifetime => 'transaction') g;
SELECT g.status FROM lock_acquire('give', owner => 'bob-1', mode => 'shared', lifetime => 'transaction') g;
SELECT g.status, g.mode FROM lock_transfer('give', 'alice-1', 'bob-1') g;
SELECT holders FROM lock_status('give');
SELECT lock_release('give', 'bob-1'), lock_try_release('give', 'bob-1') <> 'released' AS once, lock_holder('give');
COMMIT;
-- who has a lease for that: the lease stays, with a new token
SELECT fencing_token AS lease FROM lock_acquire('give', '1 hour', 'bob-1', 'shared', holder => 'Bob') \gset
BEGIN;
SELECT fencing_token AS token FROM lock_acquire('give', owner => 'alice-1', mode => 'shared', lifetime => 'transaction') \gset
SELECT g.status, g.owner, fencing_token > :token AND fencing_token > :lease AS token_rises FROM lock_transfer('give', 'alice-1', 'bob-1', 'Bob') g;
SELECT lock_is_held('give', 'alice-1') AS alice, lock_is_held('give', 'bob-1') AS bob, fencing_token > :token AS token_rises, holders FROM lock_status('give');
COMMIT;
SELECT fencing_token > :token AS token_rises, lifetime, holders FROM lock_status('give');
SELECT lock_release('give', 'bob-1');
-- by force, by the transaction that has it
TRUNCATE lock_audit;
BEGIN;
SELECT g.status FROM lock_acquire('force', owner => 'alice-1', holder => 'Alice', lifetime => 'transaction') g;
SELECT force_release('force', 'why'), lock_is_held('force', 'alice-1');
SELECT status FROM lock_try_acquire('force', owner => 'bob-1', lifetime => 'transaction');
COMMIT;
SELECT action, previous_holder FROM lock_audit;
-- the sweep has nothing to do with it
BEGIN;
SELECT g.status FROM lock_acquire('sweep', owner => 'alice-1', lifetime => 'transaction') g;
SELECT lock_sweep(), lock_is_held('sweep', 'alice-1');
COMMIT;

--
-- Arguments
--
SELECT t.raises($$SELECT lock_acquire('args', '1 min', lifetime => 'transaction')$$);
SELECT t.raises($$SELECT lock_acquire('args', meta => '1', lifetime => 'transaction')$$);
SELECT a, t.code(format('SELECT lock_acquire(''args'', lifetime => ''transaction'', %s)', a)) AS acquire, t.code(format('SELECT lock_try_acquire(''args'', lifetime => ''transaction'', %s)', a)) AS try_acquire
FROM unnest(ARRAY['ttl => ''1 min''', 'ttl => ''0''', 'ttl => NULL', 'meta => ''null''', 'meta => NULL', 'owner => ''''', 'owner => repeat(''x'', 255)', 'owner => repeat(''x'', 256)', 'holder => repeat(''x'', 255)', 'holder => repeat(''x'', 256)', 'mode => ''x''', 'mode => ''shared''', 'wait => ''-1 s''', 'wait => ''1 min''']) WITH ORDINALITY u(a, i) ORDER BY i;
-- settings about leases say nothing
SET atomic_lock.default_ttl = '25 h';
SET atomic_lock.max_lifetime = '1 ms';
SET atomic_lock.lock_delay = '1 h';
SELECT status, expires_at FROM lock_acquire('args', owner => 'alice-1', lifetime => 'transaction');
SELECT status FROM lock_try_acquire('args', owner => 'bob-1', lifetime => 'transaction');
RESET atomic_lock.default_ttl;
RESET atomic_lock.max_lifetime;
RESET atomic_lock.lock_delay;
-- but a key that is closed after a lease ran out is closed
SELECT g.status FROM lock_acquire('closed', '20 ms', 'alice-1', holder => 'Alice') g;
SELECT t.expire('closed', 'alice-1');
SET atomic_lock.lock_delay = '1 h';
SELECT split_part(t.raises($$SELECT lock_acquire('closed', owner => 'bob-1', lifetime => 'transaction')$$), E'\n', 1);
RESET atomic_lock.lock_delay;
-- a key that has a row, and one that is held
SELECT status FROM lock_acquire('closed', owner => 'bob-1', lifetime => 'transaction');
SELECT g.status FROM lock_acquire('held', '1 hour', 'alice-1', holder => 'Alice') g;
SELECT t.raises($$SELECT lock_acquire('held', owner => 'bob-1', lifetime => 'transaction')$$);
BEGIN;
SELECT status FROM lock_try_acquire('held', owner => 'bob-1', lifetime => 'transaction');
SELECT status FROM lock_try_acquire('held', owner => 'bob-1', mode => 'shared', lifetime => 'transaction', wait => '10 ms');
SELECT t.claims(), pg_current_xact_id_if_assigned() IS NULL AS no_transaction_id;
COMMIT;
-- until the lease in the way runs out
SELECT b.status, b.expires_at, b.acquired_at >= a.expires_at AS after_its_end FROM lock_acquire('wait', '60 ms', 'alice-1') a, LATERAL lock_acquire(a.key, owner => 'bob-1', lifetime => 'transaction', wait => '1 min') b;
-- read-only transactions
BEGIN READ ONLY;
SELECT t.raises($$SELECT lock_acquire('ro', lifetime => 'transaction')$$);
COMMIT;
BEGIN;
SELECT g.status FROM lock_acquire('ro', owner => 'alice-1', lifetime => 'transaction') g;
SET TRANSACTION READ ONLY;
SELECT lock_is_held('ro', 'alice-1'), lock_holder('ro') IS NOT NULL AS held, t.code($$SELECT lock_release('ro', 'alice-1')$$);
COMMIT;

-- Every isolation level, with a snapshot that is old
CREATE FUNCTION t.story(k text DEFAULT 'level') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text := current_setting('transaction_isolation');
BEGIN
	FOR i IN 1..2 LOOP
		answer := concat_ws(' ', answer, (lock_acquire(k, owner => 'alice-1', lifetime => 'transaction')).status, (lock_status(k)).lifetime, (lock_try_acquire(k, owner => 'bob-1')).status,
			(lock_acquire(k, owner => 'alice-1', lifetime => 'transaction')).status, (lock_try_acquire(k, owner => 'bob-1', lifetime => 'transaction')).status, lock_extend(k, 'alice-1'), lock_release(k, 'alice-1'), (lock_status(k)).locked);
	END LOOP;
	RETURN answer;
END
$$;
:at_every_level

-- Two-phase commit: the transaction has ended when it is committed.
SELECT current_setting('max_prepared_transactions')::int > 0 AS twophase \gset
\if :twophase
BEGIN;
SELECT g.status FROM lock_acquire('2pc', owner => 'alice-1', holder => 'Alice', lifetime => 'transaction') g;
PREPARE TRANSACTION 'regress_al_transaction';
SELECT status FROM lock_try_acquire('2pc', owner => 'bob-1');
\set VERBOSITY sqlstate
COMMIT PREPARED 'regress_al_transaction';
\set VERBOSITY default
SELECT status FROM lock_try_acquire('2pc', '1 min', owner => 'bob-1');
\else
\echo max_prepared_transactions is 0
\endif

-- Messages show keys and labels with control characters escaped, and no owner.
BEGIN;
SELECT g.status FROM lock_acquire(E'nasty\n', owner => 'secret-1', holder => E'Al\rice', lifetime => 'transaction') g;
SELECT split_part(a, E'\n', 1) AS answer, a ~ 'secret' AS owner_shown FROM unnest(ARRAY[t.raises($$SELECT lock_acquire(E'nasty\n', owner => 'secret-2')$$), t.raises($$SELECT lock_release(E'nasty\n', 'secret-2')$$)]) a;
COMMIT;

--
-- Taken and released again and again in one transaction, locks do not become slower
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
