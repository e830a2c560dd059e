\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- Mode shared: transactions, savepoints, two-phase commit, isolation levels
--
-- Properties: sharers of a transaction exclude its own exclusive requests. Rolling back a
-- transaction or savepoint undoes its changes to sharers. A prepared transaction with a share
-- admits sharers only. Functions raise in a read-only transaction. Every isolation level gives
-- the same answers.
--
-- Turns red when: a rollback leaves a sharer, or loses one; an exclusive request is granted
-- beside a sharer of the same transaction; an old snapshot decides.

-- Transactions and savepoints
--
-- two sharers in one transaction, and an exclusive request
BEGIN;
SELECT g.status FROM lock_acquire('tx', '1 hour', 'alice-1', 'shared', holder => 'Alice') g;
SELECT g.status FROM lock_acquire('tx', '30 min', 'bob-1', 'shared', holder => 'Bob') g;
SELECT status, holder FROM lock_try_acquire('tx', owner => 'carol-1');
SELECT t.raises($$SELECT lock_acquire('tx', owner => 'carol-1')$$);
SELECT lock_release('tx', 'alice-1'), lock_release('tx', 'bob-1');
SELECT status FROM lock_try_acquire('tx', '1 hour', 'carol-1');
SELECT status, mode FROM lock_try_acquire('tx', '1 hour', 'alice-1', 'shared');
COMMIT;
SELECT mode, holders, lock_is_held('tx', 'carol-1') AS carol FROM lock_status('tx');
SELECT lock_release('tx', 'carol-1');
-- rolled back
BEGIN;
SELECT fencing_token AS token FROM lock_acquire('tx', '1 hour', 'alice-1', 'shared') \gset
ROLLBACK;
SELECT locked, lock_try_release('tx', 'alice-1') FROM lock_status('tx');
SELECT status, fencing_token > :token AS token_rises FROM lock_acquire('tx', '1 hour', 'alice-1', 'shared');
BEGIN;
SELECT g.status FROM lock_acquire('tx', '1 hour', 'bob-1', 'shared') g;
SELECT lock_release('tx', 'alice-1');
SELECT lock_extend('tx', 'bob-1', '2 hours') IS NOT NULL AS extended;
ROLLBACK;
SELECT holders, lock_is_held('tx', 'alice-1') AS alice, lock_is_held('tx', 'bob-1') AS bob FROM lock_status('tx');
-- a savepoint
BEGIN;
SAVEPOINT a;
SELECT g.status FROM lock_acquire('tx', '1 hour', 'bob-1', 'shared') g;
SAVEPOINT b;
SELECT g.status FROM lock_acquire('tx', '1 hour', 'carol-1', 'shared') g;
SELECT lock_release('tx', 'alice-1');
SELECT holders FROM lock_status('tx');
ROLLBACK TO b;
SELECT holders FROM lock_status('tx');
RELEASE a;
COMMIT;
SELECT o, lock_is_held('tx', o) FROM unnest(ARRAY['alice-1', 'bob-1', 'carol-1']) o;
-- a sharer becomes exclusive in a savepoint that is rolled back
SELECT lock_release('tx', 'bob-1');
SELECT fencing_token AS token, expires_at AS until FROM lock_status('tx') \gset
BEGIN;
SAVEPOINT a;
SELECT status, mode FROM lock_acquire('tx', '2 hours', 'alice-1');
SELECT status, mode FROM lock_try_acquire('tx', '2 hours', 'bob-1', 'shared');
ROLLBACK TO a;
SELECT mode, fencing_token = :token AS same_token, expires_at = :'until' AS same_until FROM lock_status('tx');
SELECT status, mode FROM lock_try_acquire('tx', '2 hours', 'bob-1', 'shared');
COMMIT;
SELECT mode, holders FROM lock_status('tx');
-- blocks that fail
DO $$
BEGIN
	FOR i IN 1..20 LOOP
		BEGIN
			PERFORM lock_acquire('block', '1 hour', 'reader-' || i, 'shared');
			IF i % 2 = 0 THEN
				RAISE 'out';
			END IF;
		EXCEPTION WHEN raise_exception THEN
			NULL;
		END;
	END LOOP;
END
$$;
SELECT holders FROM lock_status('block');
-- in one statement
SELECT (lock_acquire('one', '1 min', 'alice-1', 'shared')).status AS a, (lock_acquire('one', '1 min', 'bob-1', 'shared')).status AS b, (lock_try_acquire('one', '1 min', 'carol-1')).status AS c,
	lock_release('one', 'alice-1') AS d, (lock_try_acquire('one', '1 min', 'bob-1')).mode AS e, (lock_try_acquire('one', '1 min', 'alice-1', 'shared')).status AS f, lock_release('one', 'bob-1') AS g, lock_holder('one') AS h;

-- Read-only transactions
BEGIN READ ONLY;
SELECT t.raises($$SELECT lock_acquire('ro', mode => 'shared')$$);
SELECT t.code($$SELECT lock_try_acquire('ro', mode => 'shared')$$), t.code($$SELECT lock_try_acquire('tx', owner => 'alice-1', mode => 'shared')$$);
SELECT mode, holders FROM lock_status('tx');
COMMIT;

-- Two-phase commit: a prepared share admits sharers, and no exclusive holder.
SELECT current_setting('max_prepared_transactions')::int > 0 AS twophase \gset
\if :twophase
BEGIN;
SELECT g.status FROM lock_acquire('2pc', '10 min', 'alice-1', 'shared', holder => 'Alice') g;
PREPARE TRANSACTION 'regress_al_shared';
SELECT status, holder FROM lock_try_acquire('2pc', '10 min', 'bob-1', 'shared', holder => 'Bob');
SELECT status, holder FROM lock_try_acquire('2pc', '10 min', 'carol-1');
SELECT lock_release('2pc', 'bob-1');
SELECT status, holder FROM lock_try_acquire('2pc', '10 min', 'carol-1');
SELECT locked FROM lock_status('2pc');
COMMIT PREPARED 'regress_al_shared';
SELECT holder, holders FROM lock_status('2pc');
SELECT status, holder FROM lock_try_acquire('2pc', '10 min', 'carol-1');
-- a prepared release of one of two shares
SELECT status FROM lock_acquire('2pc', '10 min', 'bob-1', 'shared', holder => 'Bob');
BEGIN;
SELECT lock_release('2pc', 'bob-1');
PREPARE TRANSACTION 'regress_al_shared';
SELECT status FROM lock_try_acquire('2pc', '10 min', 'carol-1');
SELECT status FROM lock_try_acquire('2pc', '10 min', 'dora-1', 'shared');
ROLLBACK PREPARED 'regress_al_shared';
SELECT lock_is_held('2pc', 'alice-1') AS alice, lock_is_held('2pc', 'bob-1') AS bob, lock_is_held('2pc', 'dora-1') AS dora;
\else
\echo max_prepared_transactions is 0
\endif

-- At every isolation level, with an old snapshot
CREATE FUNCTION t.story(k text DEFAULT 'level') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text := current_setting('transaction_isolation');
	g		lock_grant;
BEGIN
	FOR i IN 1..2 LOOP
		g := lock_acquire(k, '10 min', 'alice-1', 'shared');
		answer := concat_ws(' ', answer, g.status, (lock_try_acquire(k, owner => 'bob-1', mode => 'shared')).status, (lock_try_acquire(k, owner => 'carol-1')).status, (lock_try_acquire(k, owner => 'alice-1')).status,
			(lock_status(k)).holders, lock_is_held(k, 'alice-1'), lock_extend(k, 'alice-1', '1 hour') > g.expires_at,
			lock_try_release(k, 'bob-1'), lock_try_release(k, 'bob-1'), (lock_try_acquire(k, owner => 'alice-1')).mode, (lock_try_acquire(k, owner => 'bob-1', mode => 'shared')).status,
			lock_try_release(k, 'alice-1'), lock_try_release(k, 'alice-1'));
		g := lock_acquire(k, '5 ms', 'alice-1', 'shared');
		PERFORM t.expire(k);
		answer := concat_ws(' ', answer, lock_try_release(k, 'alice-1'), (lock_acquire(k, owner => 'bob-1', mode => 'shared')).status, force_release(k, 'test'), lock_try_release(k, 'bob-1'));
	END LOOP;
	RETURN answer;
END
$$;
:at_every_level
