\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- Transactions, savepoints and statements in one session
--
-- Properties: every call takes part in its transaction and savepoint: a rollback undoes it
-- completely, and a refusal that is caught leaves earlier locks. Calls see the changes of
-- earlier calls in the same statement, at every isolation level. A key changed by a prepared
-- transaction is neither held nor free until its end.
--
-- Turns red when: a lock survives a rollback or is lost by one; a token is reused; a call in
-- one statement acts twice, or on an old snapshot.
--

-- An acquire that is rolled back was never held, and its token is not reused.
BEGIN;
SELECT fencing_token AS token FROM lock_acquire('k', '10 min', 'alice-1') \gset
SELECT lock_is_held('k', 'alice-1');
ROLLBACK;
SELECT locked FROM lock_status('k');
SELECT lock_try_release('k', 'alice-1');
SELECT status, fencing_token > :token AS token_rises FROM lock_acquire('k', '10 min', 'bob-1');

-- A release that is rolled back has no effect,
SELECT fencing_token AS token, expires_at AS until FROM lock_status('k') \gset
BEGIN;
SELECT lock_release('k', 'bob-1');
SELECT locked FROM lock_status('k');
ROLLBACK;
SELECT lock_is_held('k', 'bob-1'), fencing_token = :token AS same_token, expires_at = :'until' AS same_until FROM lock_status('k');

-- nor has an extension or a repeated acquire.
BEGIN;
SELECT lock_extend('k', 'bob-1', '1 hour') > :'until' AS extended;
SELECT status FROM lock_acquire('k', '2 hours', 'bob-1', holder => 'Bob');
ROLLBACK;
SELECT expires_at = :'until' AS same_until, holder = 'Bob' AS new_label FROM lock_status('k');

-- Two owners in one transaction: the second is refused by the first.
BEGIN;
SELECT s.* FROM lock_try_acquire('k2', '10 min', 'alice-1', holder => 'Alice') g, t.show(g) s;
SELECT s.* FROM lock_try_acquire('k2', '10 min', 'bob-1') g, t.show(g) s;
SELECT t.raises($$SELECT lock_acquire('k2', '10 min', 'bob-1')$$);
SELECT lock_try_release('k2', 'bob-1'), lock_release('k2', 'alice-1');
SELECT s.status FROM lock_try_acquire('k2', '10 min', 'bob-1') g, t.show(g) s;
COMMIT;
SELECT lock_is_held('k2', 'bob-1'), lock_is_held('k2', 'alice-1');

-- An error undoes the grant with the transaction.
BEGIN;
SELECT acquired FROM lock_acquire('k3', '10 min', 'alice-1');
\set VERBOSITY sqlstate
SELECT lock_acquire('k2', '10 min', 'alice-1');
SELECT lock_status('k3');
\set VERBOSITY default
COMMIT;
SELECT locked FROM lock_status('k3');

-- Savepoints: acquire
BEGIN;
SAVEPOINT s;
SELECT fencing_token AS token FROM lock_acquire('k3', '10 min', 'alice-1') \gset
ROLLBACK TO s;
SELECT locked FROM lock_status('k3');
SELECT status, fencing_token > :token AS token_rises FROM lock_acquire('k3', '10 min', 'bob-1');
RELEASE s;
COMMIT;
SELECT lock_is_held('k3', 'bob-1');
-- release
BEGIN;
SAVEPOINT s;
SELECT lock_release('k3', 'bob-1');
SELECT locked FROM lock_status('k3');
ROLLBACK TO s;
SELECT lock_is_held('k3', 'bob-1');
COMMIT;
SELECT lock_is_held('k3', 'bob-1');
-- released, and acquired by another owner, in a savepoint that is rolled back
BEGIN;
SELECT fencing_token AS token FROM lock_status('k3') \gset
SAVEPOINT a;
SELECT lock_release('k3', 'bob-1');
SAVEPOINT b;
SELECT status FROM lock_acquire('k3', '10 min', 'alice-1');
RELEASE b;
SELECT lock_is_held('k3', 'alice-1');
ROLLBACK TO a;
SELECT lock_is_held('k3', 'bob-1'), fencing_token = :token AS same_token FROM lock_status('k3');
SELECT lock_release('k3', 'bob-1');
COMMIT;
-- kept in released savepoints, undone in rolled-back ones
BEGIN;
SELECT acquired FROM lock_acquire('s0', '10 min', 'alice-1');
SAVEPOINT a;
SELECT acquired FROM lock_acquire('s1', '10 min', 'alice-1');
SAVEPOINT b;
SELECT acquired FROM lock_acquire('s2', '10 min', 'alice-1');
ROLLBACK TO b;
SELECT acquired FROM lock_acquire('s3', '10 min', 'alice-1');
RELEASE a;
COMMIT;
SELECT k, lock_is_held(k, 'alice-1') FROM unnest(ARRAY['s0', 's1', 's2', 's3']) k;
SELECT lock_release_all('alice-1');

-- Released, acquired again, then rolled back: the old lease with the old token
SELECT fencing_token AS token FROM lock_acquire('k4', '10 min', 'alice-1') \gset
BEGIN;
SELECT lock_release('k4', 'alice-1');
SELECT status, fencing_token > :token AS token_rises FROM lock_acquire('k4', '10 min', 'alice-1');
ROLLBACK;
SELECT fencing_token = :token AS same_token FROM lock_status('k4');
SELECT lock_release('k4', 'alice-1');

-- Nested EXCEPTION blocks, ten deep; the odd ones fail.
CREATE FUNCTION t.nest(level int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF level > 10 THEN
		RETURN;
	END IF;
	BEGIN
		PERFORM lock_acquire('nest:' || level, '10 min', 'alice-1');
		IF level = 5 THEN
			PERFORM lock_release('k2', 'bob-1');
		END IF;
		IF level % 2 = 1 THEN
			RAISE 'out';
		END IF;
	EXCEPTION WHEN raise_exception THEN
		NULL;
	END;
	PERFORM t.nest(level + 1);
END
$$;
SELECT t.nest(1);
SELECT string_agg(key, ' ' ORDER BY length(key), key) FROM lock_status() WHERE key LIKE 'nest:%';
SELECT lock_is_held('k2', 'bob-1');
SELECT lock_release_all('alice-1');
-- A refusal is caught, and earlier locks stay.
DO $$
BEGIN
	PERFORM lock_acquire('caught', '10 min', 'alice-1');
	BEGIN
		PERFORM lock_acquire('k2', '10 min', 'alice-1');
	EXCEPTION WHEN lock_not_available THEN
		PERFORM lock_acquire('instead', '10 min', 'alice-1');
	END;
	BEGIN
		PERFORM lock_release('never', 'alice-1');
	EXCEPTION WHEN SQLSTATE 'LK002' THEN
		PERFORM lock_acquire('instead 2', '10 min', 'alice-1');
	END;
END
$$;
SELECT lock_release_all('alice-1');

-- The same key several times in one statement
SELECT i, s.status FROM generate_series(1, 3) i, LATERAL lock_try_acquire('one' || i * 0) g, t.show(g) s;
SELECT t.raises($$SELECT lock_acquire('two' || i * 0) FROM generate_series(1, 3) i$$);
SELECT locked FROM lock_status('two0');
SELECT count(DISTINCT fencing_token) AS tokens, min(status), max(status) FROM generate_series(1, 3) i, LATERAL lock_acquire('three' || i * 0, owner => 'alice-1') g;
SELECT (lock_acquire('four', owner => 'alice-1')).status AS a, lock_release('four', 'alice-1') AS b, lock_try_release('four', 'alice-1') AS c,
	(lock_acquire('four', owner => 'bob-1')).status AS d, (lock_try_acquire('four', owner => 'alice-1')).status AS e,
	lock_extend('four', 'bob-1') IS NOT NULL AS f, lock_try_release('four', 'bob-1') AS g, lock_holder('four') AS h;
-- the composite is expanded with one call for each column
SELECT (lock_acquire('five', '10 min', 'alice-1')).* \gset five_
SELECT :'five_status' AS status, lock_release('five', 'alice-1');
-- release and acquire, many times in one statement
SELECT count(DISTINCT a.fencing_token) AS tokens, bool_and(a.acquired) AS acquired, bool_and(r) AS released
FROM generate_series(1, 50) i, LATERAL lock_acquire('six' || i * 0, owner => 'alice-' || i) a, LATERAL lock_release(a.key, a.owner) r;

-- In all kinds of statements
CREATE TABLE jobs (id int PRIMARY KEY, token bigint, note text);
INSERT INTO jobs SELECT i, fencing_token FROM generate_series(1, 3) i, LATERAL lock_acquire(lock_key('jobs', i::text), owner => 'alice-1');
UPDATE jobs SET note = (lock_try_acquire(lock_key('jobs', id::text), owner => 'bob-1')).status;
WITH r AS (DELETE FROM jobs WHERE lock_is_held(lock_key('jobs', id::text), 'alice-1') RETURNING id, note, lock_release(lock_key('jobs', id::text), 'alice-1') AS released)
SELECT * FROM r ORDER BY id;
CREATE TABLE defaults (id int, owner text DEFAULT (lock_acquire('default')).owner);
INSERT INTO defaults VALUES (1);
SELECT lock_is_held('default', owner) FROM defaults;
SELECT t.code('INSERT INTO defaults VALUES (2)');
DROP TABLE defaults;
-- triggers, in statements that fail and in others
CREATE FUNCTION t.lock_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM lock_acquire(lock_key('jobs', NEW.id::text), owner => 'trigger');
	RETURN NEW;
END
$$;
CREATE TRIGGER lock_job BEFORE INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION t.lock_job();
INSERT INTO jobs VALUES (7), (8);
SELECT t.code('INSERT INTO jobs VALUES (9), (9)');
SELECT string_agg(key, ' ' ORDER BY key) FROM lock_status() WHERE key LIKE 'jobs:%';
DROP TABLE jobs;
-- in a deferred trigger at commit
CREATE TABLE late (id int);
CREATE FUNCTION t.lock_late() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM lock_acquire(lock_key('late', NEW.id::text), owner => 'trigger');
	RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER lock_late AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION t.lock_late();
BEGIN;
INSERT INTO late VALUES (1);
SELECT locked FROM lock_status('late:1');
COMMIT;
SELECT locked FROM lock_status('late:1');
SELECT acquired FROM lock_acquire('late:2', owner => 'alice-1');
\set VERBOSITY sqlstate
BEGIN;
INSERT INTO late VALUES (3), (2);
COMMIT;
\set VERBOSITY default
SELECT count(*) AS rows, (lock_status('late:3')).locked FROM late;
DROP TABLE late;
SELECT lock_release_all('trigger') > 0 AS released, lock_release_all('alice-1') > 0 AS released;

-- Cursors
BEGIN;
DECLARE c CURSOR FOR SELECT i, (lock_try_acquire('cursor:' || i, owner => 'alice-1')).status FROM generate_series(1, 5) i;
FETCH 2 FROM c;
SAVEPOINT s;
FETCH 1 FROM c;
ROLLBACK TO s;
CLOSE c;
COMMIT;
SELECT string_agg(key, ' ' ORDER BY key) FROM lock_status() WHERE key LIKE 'cursor:%';
BEGIN;
DECLARE c CURSOR WITH HOLD FOR SELECT i, (lock_try_acquire('hold:' || i, owner => 'alice-1')).status FROM generate_series(1, 2) i;
COMMIT;
FETCH ALL FROM c;
CLOSE c;
SELECT lock_release_all('alice-1');

-- Procedures that commit and roll back
CREATE PROCEDURE t.work() LANGUAGE plpgsql AS $$
BEGIN
	PERFORM lock_acquire('proc:1', '10 min', 'alice-1');
	COMMIT;
	PERFORM lock_acquire('proc:2', '10 min', 'alice-1');
	ROLLBACK;
	PERFORM lock_acquire('proc:3', '10 min', 'alice-1');
	PERFORM lock_release('proc:1', 'alice-1');
	COMMIT AND CHAIN;
	PERFORM lock_acquire('proc:4', '10 min', 'alice-1');
	RAISE 'no more';
END
$$;
\set VERBOSITY terse
CALL t.work();
\set VERBOSITY default
SELECT string_agg(key, ' ' ORDER BY key) FROM lock_status() WHERE key LIKE 'proc:%';
SELECT lock_release_all('alice-1');

-- Two-phase commit: a key changed by a prepared transaction is neither held nor free.
SELECT current_setting('max_prepared_transactions')::int > 0 AS twophase \gset
\if :twophase
SET lock_timeout = '20 ms';
CREATE FUNCTION t.others(k text) RETURNS TABLE (call text, answer text) LANGUAGE sql AS $$
	SELECT c, split_part(t.raises(format('SELECT ' || c, k)), E'\nCONTEXT', 1)
	FROM unnest(ARRAY['lock_acquire(%L)', 'lock_acquire(%L, owner => ''alice-1'')', 'lock_release(%L, ''alice-1'')', 'lock_extend(%L, ''alice-1'')',
		'lock_release(%L, ''bob-1'')', 'force_release(%L, ''why'')', 'lock_steal(%L, ''dba-1'', ''why'')', 'lock_release_all(''alice-1'')', 'lock_extend_all(''alice-1'')']) c
$$;
-- a new lease
BEGIN;
SELECT acquired FROM lock_acquire('2pc', '10 min', 'alice-1', holder => 'Alice');
PREPARE TRANSACTION 'regress_al_1';
SELECT * FROM t.others('2pc');
SELECT s.* FROM lock_try_acquire('2pc', owner => 'bob-1') g, t.show(g) s;
SELECT locked FROM lock_status('2pc');
COMMIT PREPARED 'regress_al_1';
SELECT lock_is_held('2pc', 'alice-1'), status FROM lock_try_acquire('2pc', owner => 'bob-1');
-- a release
BEGIN;
SELECT lock_release('2pc', 'alice-1');
PREPARE TRANSACTION 'regress_al_2';
SELECT * FROM t.others('2pc');
SELECT lock_is_held('2pc', 'alice-1');
ROLLBACK PREPARED 'regress_al_2';
SELECT lock_is_held('2pc', 'alice-1');
-- an extension
BEGIN;
SELECT lock_extend('2pc', 'alice-1', '1 hour') IS NOT NULL AS extended;
PREPARE TRANSACTION 'regress_al_3';
SELECT * FROM t.others('2pc');
SELECT ttl_remaining < interval '11 min' AS not_yet FROM lock_status('2pc');
COMMIT PREPARED 'regress_al_3';
SELECT ttl_remaining > interval '59 min' AS extended FROM lock_status('2pc');
-- an expired lease and a new grant, both not yet visible to others; a sweep skips the key
SELECT lock_extend('2pc', 'alice-1', '5 ms') IS NOT NULL AS extended;
SELECT t.expire('2pc');
SELECT acquired FROM lock_acquire('2pc other', '5 ms', 'alice-1');
SELECT t.expire('2pc other');
BEGIN;
SELECT acquired FROM lock_acquire('2pc', '10 min', 'bob-1');
PREPARE TRANSACTION 'regress_al_4';
SELECT lock_sweep(), lock_sweep();
SELECT status, holder FROM lock_try_acquire('2pc', owner => 'carol-1');
ROLLBACK PREPARED 'regress_al_4';
SELECT lock_sweep();
SELECT status FROM lock_try_acquire('2pc', owner => 'carol-1');
SELECT lock_release('2pc', 'carol-1');
RESET lock_timeout;
\else
\echo max_prepared_transactions is 0
\endif

-- At every isolation level a transaction sees its own changes at once, even with an old
-- snapshot.
CREATE FUNCTION t.story(k text DEFAULT 'level') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text := current_setting('transaction_isolation');
	g		lock_grant;
BEGIN
	FOR i IN 1..2 LOOP
		g := lock_acquire(k, '10 min', 'alice-1');
		answer := concat_ws(' ', answer, g.status, (lock_try_acquire(k, owner => 'alice-1')).status, (lock_try_acquire(k, owner => 'bob-1')).status,
			(lock_status(k)).locked, lock_is_held(k, 'alice-1'), lock_extend(k, 'alice-1', '1 hour') > g.expires_at,
			lock_try_release(k, 'bob-1'), lock_try_release(k, 'alice-1'), lock_try_release(k, 'alice-1'));
		g := lock_acquire(k, '5 ms', 'alice-1');
		PERFORM t.expire(k);
		answer := concat_ws(' ', answer, lock_try_release(k, 'alice-1'), (lock_acquire(k, owner => 'bob-1')).status,
			lock_try_release(k, 'alice-1'), force_release(k, 'test'), lock_try_release(k, 'bob-1'));
	END LOOP;
	RETURN answer;
END
$$;
:at_every_level
BEGIN ISOLATION LEVEL READ UNCOMMITTED;
SELECT t.story('level');
ROLLBACK;

-- 500 savepoints, each with one key
CREATE FUNCTION t.many() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1..500 LOOP
		BEGIN
			PERFORM lock_acquire('many:' || i, '10 min', 'alice-1');
			IF i % 5 = 0 THEN
				RAISE 'out';
			END IF;
		EXCEPTION WHEN raise_exception THEN
			NULL;
		END;
	END LOOP;
END
$$;
SELECT t.many();
SELECT count(*) FROM lock_status() WHERE key LIKE 'many:%';
SELECT lock_release_all('alice-1');
