\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- Waiting, as far as one session can see it: arguments, ends of a wait, and what it leaves
-- behind
--
-- Properties: the answers are the same with shared memory and without. A wait lasts as long as
-- was asked for, or until the blocking lease has expired or the key opens. A request that need
-- not or cannot wait is answered at once.
--
-- Turns red when: a wait ends early, or lasts for minutes; a lease is granted before the
-- blocking one has ended; a time-out writes, keeps a claim or a waiter, or has the message of a
-- refusal without a wait.
--
-- Waits of minutes are requested but never take place, so this file is quick.

-- An acquire's answer, with the wait compared to the time that was asked for
CREATE FUNCTION t.waited(g lock_grant, asked interval, OUT status text, OUT acquired boolean, OUT holder text, OUT waited text) LANGUAGE sql AS $$
	SELECT g.status, g.acquired, g.holder, CASE WHEN g.waited < asked THEN 'less' WHEN g.waited > '1 min' THEN 'more' ELSE 'right' END
$$;
-- Claims and waiters that a wait left behind
CREATE FUNCTION t.left_over(OUT claims bigint, OUT waiters bigint) LANGUAGE plpgsql AS $$
BEGIN
	SELECT count(*) INTO claims FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory';
	BEGIN
		SELECT count(*) INTO waiters FROM lock_waiters;
	EXCEPTION
		WHEN object_not_in_prerequisite_state THEN	-- waiters poll here
			waiters := 0;
	END;
END
$$;

SELECT acquired_at AS since, expires_at AS until
FROM lock_acquire('held', '1 hour', 'alice-1', holder => 'Alice') \gset

--
-- Arguments are checked before the wait
--
SELECT w, t.raises(format('SELECT lock_acquire(''held'', wait => %s)', w)) AS acquire
FROM unnest(ARRAY['''-1 us''', '''5 min 1 us''', '''1 mon''', '''-1 mon 31 days''']) w;
SELECT w, t.code(format('SELECT lock_try_acquire(''held'', wait => %s)', w)) AS held, t.code(format('SELECT lock_try_acquire(''free'', wait => %s)', w)) AS free
FROM unnest(ARRAY['''-1 us''', '''5 min 1 us''', '''1 mon''', '''-1 mon 31 days''', '''soon''', '''0''', '''1 us''', '''00:00:00.01''', '''1 day -23:59:59.99''']) w;
-- exactly the limit
SELECT status FROM lock_try_acquire('limit', wait => '5 min');
-- invalid even if the owner has the lock
SELECT t.code($$SELECT lock_acquire('held', owner => 'alice-1', wait => '-1 s')$$);
-- other arguments are checked with a wait, too
SELECT a, t.code(format('SELECT lock_try_acquire(''held'', wait => ''1 min'', %s)', a)) AS code
FROM unnest(ARRAY['ttl => ''0''', 'owner => ''''', 'mode => ''x''', 'mode => NULL', 'lifetime => ''x''', 'lifetime => NULL', 'holder => repeat(''x'', 256)', 'meta => to_jsonb(repeat(''x'', 10000))']) a;

-- The limit is a setting.
SET atomic_lock.max_wait = '20 ms';
SELECT t.raises($$SELECT lock_acquire('held', wait => '21 ms')$$);
SELECT status FROM lock_try_acquire('held', wait => '20 ms');
SET atomic_lock.max_wait = 0;
SELECT t.raises($$SELECT lock_acquire('held', wait => '1 us')$$);
SELECT status FROM lock_try_acquire('held', wait => '0');
RESET atomic_lock.max_wait;

-- Requests that are answered at once
--
-- without wait
SELECT status, waited FROM lock_try_acquire('held');
SELECT status, waited FROM lock_try_acquire('held', wait => '0');
SELECT status, waited FROM lock_try_acquire('held', wait => '1 day -24:00');
-- free
SELECT s.* FROM lock_acquire('free', '1 hour', 'bob-1', wait => '1 min', holder => 'Bob') g, t.show(g) s;
SELECT s.* FROM lock_try_acquire('free 2', '1 hour', 'bob-1', wait => '1 min', holder => 'Bob') g, t.show(g) s;
-- released, and expired
SELECT lock_release('free', 'bob-1');
SELECT status, waited FROM lock_acquire('free', '20 ms', 'carol-1', wait => '1 min');
SELECT t.expire('free');
SELECT status, waited FROM lock_acquire('free', '1 hour', 'bob-1', wait => '1 min');
-- the owner's own key
SELECT status, waited FROM lock_acquire('held', owner => 'alice-1', wait => '1 min');
SELECT status, waited FROM lock_try_acquire('held', owner => 'alice-1', wait => '1 min');
SET atomic_lock.on_reacquire = error;
SELECT t.raises($$SELECT lock_acquire('held', owner => 'alice-1', wait => '1 min')$$);
SELECT acquired, status, waited FROM lock_try_acquire('held', owner => 'alice-1', wait => '1 min');
RESET atomic_lock.on_reacquire;
-- claimed and undone by this transaction
BEGIN;
SAVEPOINT s;
SELECT status FROM lock_acquire('undone', '1 hour', 'alice-1');
ROLLBACK TO s;
SELECT status, waited FROM lock_acquire('undone', '1 hour', 'bob-1', wait => '1 min');
ROLLBACK;
-- one key too many
SET atomic_lock.max_claims_per_transaction = 1;
BEGIN;
SELECT status FROM lock_acquire('one');
SELECT t.code($$SELECT lock_acquire('two', wait => '1 min')$$);
ROLLBACK;
RESET atomic_lock.max_claims_per_transaction;

--
-- The wait timed out
--
SELECT t.timeout($$SELECT lock_acquire('held', wait => '20 ms')$$);
SELECT t.timeout($$SELECT lock_acquire('held', owner => 'bob-1', wait => '20 ms', holder => 'Bob')$$);
\set VERBOSITY sqlstate
SELECT lock_acquire('held', wait => '20 ms');
\set VERBOSITY terse
SELECT lock_acquire('held', wait => '20 ms');
\set VERBOSITY default
-- the answer has the holder, and neither owner nor token
SELECT acquired, status, key, mode, owner, fencing_token, acquired_at >= :'since' AS since, expires_at >= :'until' AS until, holder
FROM lock_try_acquire('held', wait => '20 ms');
-- for as long as was asked
SELECT w, s.* FROM unnest(ARRAY['1 us', '1 ms', '20 ms', '150 ms', '1.2 s']::interval[]) w, lock_try_acquire('held', owner => 'bob-1', wait => w) g, t.waited(g, w) s;
SELECT now() <= clock_timestamp() - interval '140 ms' AS waited_for FROM lock_try_acquire('held', wait => '150 ms');
-- one after the other
SELECT count(*), bool_and(waited >= '5 ms') AS right FROM generate_series(1, 5) i, LATERAL lock_try_acquire('held', owner => 'bob-' || i, wait => '5 ms') WHERE status = 'timeout';
-- long keys and labels, with multibyte characters
SELECT s.status FROM lock_acquire(repeat('ü', 512), '1 hour', repeat('ö', 127), holder => repeat('ä', 127)) g, t.show(g) s;
SELECT status, length(key) AS key, length(holder) AS holder FROM lock_try_acquire(repeat('ü', 512), owner => repeat('é', 127), wait => '5 ms', holder => repeat('€', 85));
SELECT status FROM lock_try_acquire('x' || repeat('ü', 511), owner => repeat('é', 127), wait => '5 ms', holder => repeat('€', 85));
SELECT lock_release('x' || repeat('ü', 511), repeat('é', 127)), lock_release(repeat('ü', 512), repeat('ö', 127));
-- with searches for deadlocks meanwhile
SET deadlock_timeout = '1 ms';
SELECT status FROM lock_try_acquire('held', owner => 'bob-1', wait => '50 ms');
RESET deadlock_timeout;
-- lock_timeout applies to PostgreSQL's locks only
SET lock_timeout = '1 ms';
SELECT s.* FROM lock_try_acquire('held', owner => 'bob-1', wait => '50 ms') g, t.waited(g, '50 ms') s;
RESET lock_timeout;
-- nothing has changed, and nothing is left behind
SELECT count(*) FROM app_lock WHERE key = 'held' AND owner = 'alice-1' AND NOT released;
SELECT coalesce(waiters, 0) AS waiters FROM lock_status('held');
SELECT * FROM t.left_over();

-- nothing is written
SELECT t.fingerprint() AS before \gset
BEGIN;
SELECT status FROM lock_try_acquire('held', wait => '5 ms');
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_transaction_id;
SELECT * FROM t.left_over();
COMMIT;
SELECT t.fingerprint() = :'before' AS unchanged;

--
-- Until the blocking lease expires
--
SELECT expires_at AS until FROM lock_acquire('short', '150 ms', 'alice-1', holder => 'Alice') \gset
SELECT status, owner, holder, acquired_at >= :'until' AS after_its_end, expires_at - acquired_at AS length
FROM lock_acquire('short', '1 hour', 'bob-1', wait => '1 min', holder => 'Bob', meta => '1');
SELECT owner, holder, meta FROM lock_status('short');
SELECT lock_try_release('short', 'alice-1'), lock_try_release('short', 'bob-1');
-- in one transaction, in one statement; the token rises
SELECT b.status, b.fencing_token > a.fencing_token AS token_rises, b.acquired_at >= a.expires_at AS after_its_end
FROM lock_acquire('short', '150 ms', 'alice-1') a, LATERAL lock_try_acquire(a.key, '1 hour', 'bob-1', wait => '1 min') b;
SELECT force_release('short', 'test');
-- with a generated owner
SELECT b.acquired, s.owner, b.acquired_at >= a.expires_at AS after_its_end
FROM lock_acquire('short', '50 ms') a, LATERAL lock_acquire(a.key, '1 hour', wait => '1 min') b, t.show(b) s;
SELECT force_release('short', 'test');
-- at every isolation level; the newest committed state decides
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT b.status, b.acquired_at >= a.expires_at AS after_its_end FROM lock_acquire('rr', '50 ms', 'alice-1') a, LATERAL lock_acquire(a.key, wait => '1 min') b;
SELECT status FROM lock_try_acquire('held', wait => '5 ms');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT b.status, b.acquired_at >= a.expires_at AS after_its_end FROM lock_acquire('ser', '50 ms', 'alice-1') a, LATERAL lock_acquire(a.key, wait => '1 min') b;
SELECT status FROM lock_try_acquire('held', wait => '5 ms');
COMMIT;
-- not long enough
SELECT b.status, b.holder FROM lock_acquire('longer', '1 hour', 'alice-1', holder => 'Alice') a, LATERAL lock_try_acquire(a.key, wait => '20 ms') b;
-- the former owner learns of it
SELECT b.status FROM lock_acquire('lost', '20 ms', 'alice-1') a, LATERAL lock_acquire(a.key, '1 hour', 'bob-1', wait => '1 min') b;
SELECT lock_try_release('lost', 'alice-1'), lock_is_held('lost', 'alice-1'), lock_is_held('lost', 'bob-1');

-- lock_delay: until the key opens
SET atomic_lock.lock_delay = '150 ms';
SELECT b.status, b.acquired_at >= a.expires_at + interval '150 ms' AS after_the_delay
FROM lock_acquire('delay', '20 ms', 'alice-1') a, LATERAL lock_acquire(a.key, '20 ms', 'bob-1', wait => '1 min', holder => 'Bob') b;
SELECT t.expire('delay');
SET atomic_lock.lock_delay = '1 h';
SELECT t.timeout($$SELECT lock_acquire('delay', wait => '20 ms')$$);
SELECT s.* FROM lock_try_acquire('delay', wait => '20 ms') g, t.waited(g, '20 ms') s;
-- the former owner has to wait, too
SELECT status FROM lock_try_acquire('delay', owner => 'bob-1', wait => '20 ms');
RESET atomic_lock.lock_delay;
SELECT status, waited FROM lock_try_acquire('delay', wait => '1 min');

-- Transactions, savepoints, functions
--
-- an aborted transaction does not wait, and loses its locks
BEGIN;
SELECT status FROM lock_acquire('mine', '1 hour', 'bob-1');
\set VERBOSITY terse
SELECT lock_acquire('held', owner => 'bob-1', wait => '20 ms');
SELECT lock_acquire('held', owner => 'bob-1', wait => '1 min');
SELECT lock_try_acquire('held', owner => 'bob-1', wait => '1 min');
\set VERBOSITY default
ROLLBACK;
SELECT locked FROM lock_status('mine');
SELECT * FROM t.left_over();

-- a transaction continues after a time-out, and keeps its locks
BEGIN;
SELECT status FROM lock_acquire('mine', '1 hour', 'bob-1');
SAVEPOINT s;
\set VERBOSITY terse
SELECT lock_acquire('held', owner => 'bob-1', wait => '20 ms');
\set VERBOSITY default
ROLLBACK TO s;
SELECT status FROM lock_try_acquire('held', owner => 'bob-1', wait => '20 ms');
SELECT b.status FROM lock_acquire('short 2', '20 ms', 'alice-1') a, LATERAL lock_acquire(a.key, '1 hour', 'bob-1', wait => '1 min') b;
ROLLBACK TO s;
SELECT status FROM lock_acquire('mine too', '1 hour', 'bob-1', wait => '1 min');
COMMIT;
SELECT k, holder IS NOT NULL AS held FROM unnest(ARRAY['mine', 'mine too', 'short 2']) k, lock_holder(k) holder;
SELECT lock_release_all('bob-1') > 0 AS released;

-- a lease undone with its savepoint no longer blocks
BEGIN;
SELECT status FROM lock_acquire('outer', '1 hour', 'alice-1');
SAVEPOINT s;
SELECT status FROM lock_acquire('inner', '1 hour', 'alice-1');
SELECT status FROM lock_try_acquire('inner', owner => 'bob-1', wait => '5 ms');
ROLLBACK TO s;
SELECT status, waited FROM lock_acquire('inner', owner => 'bob-1', wait => '1 min');
SELECT status FROM lock_try_acquire('outer', owner => 'bob-1', wait => '5 ms');
ROLLBACK;

-- caught in a function
CREATE FUNCTION t.patient(k text, w interval) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM lock_acquire(k, '1 hour', 'bob-1', wait => w);
	RETURN 'acquired';
EXCEPTION
	WHEN lock_not_available THEN
		RETURN SQLERRM;
END
$$;
SELECT t.patient('held', '0'), t.patient('held', '20 ms'), t.patient('other', '20 ms');
SELECT lock_release('other', 'bob-1');
-- many times
DO $$
BEGIN
	FOR i IN 1..50 LOOP
		IF t.patient('held', '1 ms') !~ '^timed out' THEN
			RAISE 'not timed out';
		END IF;
	END LOOP;
END
$$;
SELECT * FROM t.left_over();
-- in all kinds of statements
CREATE FUNCTION t.sql_function(w interval) RETURNS text LANGUAGE sql AS $$SELECT status FROM lock_try_acquire('held', owner => 'bob-1', wait => w)$$;
PREPARE p AS SELECT status FROM lock_try_acquire($1, owner => 'bob-1', wait => $2);
SELECT t.sql_function('5 ms');
EXECUTE p('held', '5 ms');
DEALLOCATE p;
BEGIN;
DECLARE c CURSOR FOR SELECT i, status FROM generate_series(1, 3) i, LATERAL lock_try_acquire('held', owner => 'bob-' || i, wait => '5 ms');
FETCH 2 FROM c;
CLOSE c;
SELECT * FROM t.left_over();
COMMIT;

-- Ended by statement_timeout: only what was there before is left.
BEGIN;
SELECT status FROM lock_acquire('mine', '1 hour', 'bob-1');
SAVEPOINT s;
SET LOCAL statement_timeout = '100 ms';
SELECT lock_acquire('held', owner => 'bob-1', wait => '1 min');
ROLLBACK TO s;
SELECT * FROM t.left_over();
COMMIT;
SET statement_timeout = '100 ms'\; SELECT lock_try_acquire('held', owner => 'bob-1', wait => '1 min');
SELECT * FROM t.left_over();
SELECT owner, holder FROM lock_status('held');
SELECT lock_release('mine', 'bob-1');

--
-- Level user may wait; monitors can see the waiters
--
DROP ROLE IF EXISTS regress_al_user, regress_al_monitor;
CREATE ROLE regress_al_user;
CREATE ROLE regress_al_monitor;
SELECT lock_grant_access('regress_al_user', 'user'), lock_grant_access('regress_al_monitor', 'monitor');
SET SESSION AUTHORIZATION regress_al_user;
SELECT status FROM lock_try_acquire('held', owner => 'bob-1', wait => '5 ms');
SELECT t.timeout($$SELECT lock_acquire('held', owner => 'bob-1', wait => '5 ms')$$);
SET atomic_lock.max_wait = '1 h';
SELECT t.raises('SELECT * FROM lock_waiters');
SELECT t.raises('SELECT lock_waiters()');
RESET SESSION AUTHORIZATION;
SET SESSION AUTHORIZATION regress_al_monitor;
SELECT t.code($$SELECT lock_acquire('held', wait => '1 min')$$);
SELECT t.code('SELECT * FROM lock_waiters') IN ('00000', CASE WHEN current_setting('server_version_num')::int < 170000 THEN '55000' END) AS allowed;
RESET SESSION AUTHORIZATION;
-- The owner of the extension may look, too, also in a read-only transaction.
BEGIN READ ONLY;
SELECT t.code('SELECT * FROM lock_waiters') IN ('00000', CASE WHEN current_setting('server_version_num')::int < 170000 THEN '55000' END) AS allowed;
COMMIT;
DROP OWNED BY regress_al_user, regress_al_monitor;
DROP ROLE regress_al_user, regress_al_monitor;

SELECT lock_release('held', 'alice-1');

--
-- NULL: as long as max_wait allows, which a policy may set; for a set, the lowest max_wait
--
SELECT lock_set_policy('brief:', max_wait => '50 ms'), lock_set_policy('never:', max_wait => '0');
SELECT count(lock_acquire(k, '1 hour', 'holder-1')) FROM unnest(ARRAY['any', 'brief:k', 'never:k']) k;
CREATE FUNCTION t.waits(call text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN regexp_replace(t.raises('SELECT ' || call), 'for \d+ ms', 'for N ms');
END
$$;
SELECT t.waits($$lock_acquire('brief:k', owner => 'bob-1', wait => NULL)$$);
SELECT t.waits($$lock_acquire('never:k', owner => 'bob-1', wait => NULL)$$);
SELECT waited BETWEEN '50 ms' AND '4 min' AS as_the_policy_says, status FROM lock_try_acquire('brief:k', owner => 'bob-1', wait => NULL);
SET atomic_lock.max_wait = '60 ms';
SELECT waited BETWEEN '60 ms' AND '4 min' AS as_the_setting_says, status FROM lock_try_acquire('any', owner => 'bob-1', wait => NULL);
SELECT waited BETWEEN '50 ms' AND '4 min' AS the_least, status FROM lock_try_acquire_all('{any,brief:free}', owner => 'bob-1', wait => NULL);
SELECT waited = '0' AS not_at_all, status FROM lock_try_acquire_all('{any,never:free}', owner => 'bob-1', wait => NULL);
RESET atomic_lock.max_wait;
-- a free key does not wait, and an upgrade does
SELECT status FROM lock_acquire('brief:free', owner => 'bob-1', wait => NULL);
SELECT count(lock_acquire('brief:shared', '1 hour', o, 'shared')) FROM unnest(ARRAY['holder-1', 'bob-1']) o;
SELECT waited BETWEEN '50 ms' AND '4 min' AS as_the_policy_says, status FROM lock_try_convert('brief:shared', 'bob-1', wait => NULL);
-- lock_fetch of a row whose key differs once it is read: the max_wait of that key counts, too
CREATE TABLE other (id numeric PRIMARY KEY);
INSERT INTO other VALUES (1.0);
SELECT lock_set_policy('other:1.0', max_wait => '0');
SELECT status FROM lock_acquire('other:1.0', '1 hour', 'holder-1');
SELECT t.waits($$lock_fetch(NULL::other, '1', owner => 'bob-1', wait => NULL)$$) ~ 'timed out' AS waited;
CREATE TABLE brief (id int PRIMARY KEY);
INSERT INTO brief VALUES (1);
SELECT t.waits($$lock_fetch(NULL::brief, '1', owner => 'bob-1', key => 'brief:k', wait => NULL)$$);
