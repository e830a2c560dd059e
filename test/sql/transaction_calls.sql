\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\set include :srcdir '/sql/include/unwritten.sql'
\i :setup
-- Lifetime transaction: many keys, transfers, force, the sweep, and arguments
--
-- Properties: a transaction holds as many keys as max_claims_per_transaction allows.
-- lock_release_all includes them. A transfer gives them to an owner that has them to the end of
-- the transaction. The transaction itself can force them; a sweep does not end them. Arguments
-- that only a lease can have are refused, and settings for leases do not apply. Two-phase
-- commit and every isolation level give the same answers.
--
-- Turns red when: one of these functions misses such a holding, or doubles it; an invalid
-- argument is accepted; a message shows an owner.

--
-- Many keys; all of an owner; transfers; force
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
-- transferred: the new owner has it to the end of the transaction
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
-- to a sharer: the two merge
BEGIN;
SELECT g.status FROM lock_acquire('give', owner => 'alice-1', mode => 'shared', lifetime => 'transaction') g;
SELECT g.status FROM lock_acquire('give', owner => 'bob-1', mode => 'shared', lifetime => 'transaction') g;
SELECT g.status, g.mode FROM lock_transfer('give', 'alice-1', 'bob-1') g;
SELECT holders FROM lock_status('give');
SELECT lock_release('give', 'bob-1'), lock_try_release('give', 'bob-1') <> 'released' AS once, lock_holder('give');
COMMIT;
-- to an owner with a lease: the lease stays, with a new token
SELECT fencing_token AS lease FROM lock_acquire('give', '1 hour', 'bob-1', 'shared', holder => 'Bob') \gset
BEGIN;
SELECT fencing_token AS token FROM lock_acquire('give', owner => 'alice-1', mode => 'shared', lifetime => 'transaction') \gset
SELECT g.status, g.owner, fencing_token > :token AND fencing_token > :lease AS token_rises FROM lock_transfer('give', 'alice-1', 'bob-1', 'Bob') g;
SELECT lock_is_held('give', 'alice-1') AS alice, lock_is_held('give', 'bob-1') AS bob, fencing_token > :token AS token_rises, holders FROM lock_status('give');
COMMIT;
SELECT fencing_token > :token AS token_rises, lifetime, holders FROM lock_status('give');
SELECT lock_release('give', 'bob-1');
-- forced by the transaction that holds it
TRUNCATE lock_audit;
BEGIN;
SELECT g.status FROM lock_acquire('force', owner => 'alice-1', holder => 'Alice', lifetime => 'transaction') g;
SELECT force_release('force', 'why'), lock_is_held('force', 'alice-1');
SELECT status FROM lock_try_acquire('force', owner => 'bob-1', lifetime => 'transaction');
COMMIT;
SELECT action, previous_holder FROM lock_audit;
-- a sweep ignores it
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
-- settings for leases do not apply
SET atomic_lock.default_ttl = '25 h';
SET atomic_lock.max_lifetime = '1 ms';
SET atomic_lock.lock_delay = '1 h';
SELECT status, expires_at FROM lock_acquire('args', owner => 'alice-1', lifetime => 'transaction');
SELECT status FROM lock_try_acquire('args', owner => 'bob-1', lifetime => 'transaction');
RESET atomic_lock.default_ttl;
RESET atomic_lock.max_lifetime;
RESET atomic_lock.lock_delay;
-- but a key that is closed after a lease expired stays closed
SELECT g.status FROM lock_acquire('closed', '20 ms', 'alice-1', holder => 'Alice') g;
SELECT t.expire('closed', 'alice-1');
SET atomic_lock.lock_delay = '1 h';
SELECT split_part(t.raises($$SELECT lock_acquire('closed', owner => 'bob-1', lifetime => 'transaction')$$), E'\n', 1);
RESET atomic_lock.lock_delay;
-- a key with a row, and one that is held
SELECT status FROM lock_acquire('closed', owner => 'bob-1', lifetime => 'transaction');
SELECT g.status FROM lock_acquire('held', '1 hour', 'alice-1', holder => 'Alice') g;
SELECT t.raises($$SELECT lock_acquire('held', owner => 'bob-1', lifetime => 'transaction')$$);
BEGIN;
SELECT status FROM lock_try_acquire('held', owner => 'bob-1', lifetime => 'transaction');
SELECT status FROM lock_try_acquire('held', owner => 'bob-1', mode => 'shared', lifetime => 'transaction', wait => '10 ms');
SELECT t.claims(), pg_current_xact_id_if_assigned() IS NULL AS no_transaction_id;
COMMIT;
-- a wait until the blocking lease expires
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

-- At every isolation level, with an old snapshot
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

-- Two-phase commit: the holding ends at COMMIT PREPARED.
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
