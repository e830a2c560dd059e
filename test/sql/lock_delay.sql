\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- atomic_lock.lock_delay: which ends leave a key closed, and for how long
--
-- Properties: if the holder vanished, its key stays closed for lock_delay, counted from the end
-- of the lease or the death of the session; a sweep does not open it. If the owner or an
-- administrator ended the lease, the key is open.
--
-- Turns red when: a sweep removes the row that keeps a key closed; the delay of a dead session
-- restarts with every look, or never ends; a release, forced or not, leaves the key closed.
--
-- wait.sql, shared_limits.sql and sets.sql test the answers for a closed key.
CREATE FUNCTION t.try(k text, o text DEFAULT 'zoe-1', mode text DEFAULT 'exclusive') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text;
BEGIN
	answer := (lock_try_acquire(k, '1 hour', o, mode)).status;
	RAISE SQLSTATE 'RB000';		-- leave the key as it was for the next call
EXCEPTION
	WHEN SQLSTATE 'RB000' THEN RETURN answer;
END
$$;
-- Wait until a key is open, and acquire it
CREATE FUNCTION t.take(k text) RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
	g	lock_grant;
BEGIN
	FOR i IN 1..100000 LOOP
		g := lock_try_acquire(k, '1 hour', 'zoe-1');
		IF g.acquired THEN
			RETURN g.acquired_at;
		END IF;
		PERFORM pg_sleep(0.005);
	END LOOP;
	RAISE '"%" does not open', k;
END
$$;

-- Ended by the owner or an administrator
SELECT count(lock_acquire('open: ' || k, '1 hour', 'alice-1')) FROM unnest(ARRAY['released', 'all released', 'forced', 'stolen and released', 'given and released', 'converted and released', 'extended and released']) k;
SELECT count(lock_acquire('open: ' || k, '1 hour', 'bob-1', 'shared')) FROM unnest(ARRAY['shared, released', 'shared, forced']) k;
SELECT status FROM lock_acquire('open: session, released', owner => 'alice-1', lifetime => 'session');
SELECT status FROM lock_acquire('open: transaction', owner => 'alice-1', lifetime => 'transaction');
BEGIN;
SELECT status FROM lock_acquire('open: rolled back', '1 hour', 'alice-1');
ROLLBACK;
SELECT lock_release('open: released', 'alice-1'), force_release('open: forced', 'why'), force_release('open: shared, forced', 'why'),
	lock_release('open: shared, released', 'bob-1'), lock_release('open: session, released', 'alice-1');
SELECT (lock_steal('open: stolen and released', 'dba-1', 'why')).status, lock_release('open: stolen and released', 'dba-1');
SELECT (lock_transfer('open: given and released', 'alice-1', 'carol-1')).status, lock_release('open: given and released', 'carol-1');
SELECT (lock_convert('open: converted and released', 'alice-1', 'shared')).status, lock_release('open: converted and released', 'alice-1');
SELECT lock_extend('open: extended and released', 'alice-1', '2 hours') IS NOT NULL AS extended, lock_release('open: extended and released', 'alice-1');
SELECT lock_release_all('alice-1');

-- Expired, or ended with the session
SELECT count(lock_acquire('closed: ' || k, '20 ms', 'alice-1')) FROM unnest(ARRAY['expired', 'given', 'set', 'converted']) k;
SELECT count(lock_acquire('closed: ' || k, '1 hour', 'alice-1')) FROM unnest(ARRAY['extended', 'stolen']) k;
SELECT status FROM lock_acquire('closed: shared', '20 ms', 'alice-1', 'shared');
SELECT count(*) FROM lock_try_acquire_all(ARRAY['closed: set'], '20 ms', 'alice-1');
SELECT lock_extend('closed: extended', 'alice-1', '20 ms') IS NOT NULL AS extended;
SELECT status FROM lock_steal('closed: stolen', 'dba-1', 'why', '20 ms');
SELECT status FROM lock_acquire('closed: session with a ttl', '20 ms', owner => 'alice-1', lifetime => 'session');
SELECT status FROM lock_acquire('closed: given', '1 hour', 'bob-1', wait => '1 min');
SELECT status FROM lock_transfer('closed: given', 'bob-1', 'carol-1', ttl => '20 ms');
SELECT status FROM lock_acquire('closed: converted', '30 min', 'bob-1', wait => '1 min');
SELECT status FROM lock_convert('closed: converted', 'bob-1', 'shared');
SELECT lock_extend('closed: converted', 'bob-1', '20 ms') IS NOT NULL AS extended;
SELECT status FROM lock_acquire('closed: session', owner => 'alice-1', lifetime => 'session');
SELECT status FROM lock_acquire('closed: session, shared', owner => 'alice-1', mode => 'shared', lifetime => 'session');
SELECT count(t.expire(key)) FROM app_lock WHERE key ~ '^closed' AND expires_at <> 'infinity';
\c -
SET client_min_messages = warning;
SELECT count(t.expire(key)) FROM app_lock WHERE key ~ '^closed';

SET atomic_lock.lock_delay = '1 h';
CREATE VIEW t.keys AS SELECT DISTINCT key FROM app_lock ORDER BY key;
SELECT key, t.try(key) FROM t.keys UNION SELECT key, t.try(key) FROM unnest(ARRAY['open: transaction', 'open: rolled back', 'never']) key ORDER BY 1;
-- A closed key that was shared can still be shared, and the former owner has to wait, too,
-- since its work may be unfinished.
SELECT key, t.try(key, mode => 'shared') AS shared, t.try(key, 'alice-1') AS by_alice FROM t.keys WHERE key ~ '^closed';
-- The sweep keeps the rows of closed keys.
SELECT lock_sweep(1000);
UPDATE app_lock SET expires_at = expires_at - interval '2 hours' WHERE released;
SELECT lock_sweep(1000);
SELECT key, t.try(key) FROM t.keys;
-- Administrators are not delayed.
BEGIN;
SELECT status FROM lock_steal('closed: expired', 'dba-1', 'why');
SELECT status FROM lock_steal('closed: session', 'dba-1', 'why');
ROLLBACK;
SELECT t.code($$SELECT force_release('closed: expired', 'why')$$);
-- Without a delay every key is open.
RESET atomic_lock.lock_delay;
SELECT count(*), count(*) FILTER (WHERE t.try(key) = 'acquired') AS open FROM t.keys;
BEGIN;
SELECT lock_sweep(1000);
ROLLBACK;
-- The delay ends by the clock: an hour after each end.
SET atomic_lock.lock_delay = '1 h';
SELECT lock_sweep(1000);
UPDATE app_lock SET expires_at = expires_at - interval '1 hour' WHERE key <> 'closed: stolen';
SELECT count(*), count(*) FILTER (WHERE t.try(key) = 'acquired') AS open FROM t.keys;
SELECT lock_sweep(1000);
SELECT * FROM t.keys;
TRUNCATE app_lock;

-- The start of the delay
--
-- is the end of the lease
SET atomic_lock.lock_delay = '100 ms';
SELECT expires_at AS until FROM lock_acquire('from', '10 ms', 'alice-1') \gset
SELECT t.take('from') >= :'until'::timestamptz + '100 ms' AS after_the_delay;
-- the end of the session, not the first or the last look at the key afterwards
SELECT status FROM lock_acquire('session', owner => 'alice-1', lifetime => 'session');
SELECT status FROM lock_acquire('session, waited', owner => 'alice-1', lifetime => 'session');
SELECT clock_timestamp() AS before \gset
\c -
SET client_min_messages = warning;
SET atomic_lock.lock_delay = '300 ms';
SELECT t.take('session') >= :'before'::timestamptz + '300 ms' AS after_the_delay;
SELECT status FROM lock_try_acquire('session, waited', owner => 'zoe-1');
-- the end of the lease, if that came before the end of its session
SELECT expires_at AS until FROM lock_acquire('session, ttl', '20 ms', 'alice-1', lifetime => 'session') \gset
SELECT t.expire('session, ttl');
\c -
SET client_min_messages = warning;
SET atomic_lock.lock_delay = '300 ms';
SELECT t.take('session, ttl') >= :'until'::timestamptz + '300 ms' AS after_the_delay;
-- a session whose end is unknown: long ago, if the server has been up for longer
SELECT status FROM lock_acquire('lost', owner => 'alice-1', lifetime => 'session');
UPDATE app_lock SET backend_start = backend_start - interval '1 day' WHERE key = 'lost';
SET atomic_lock.lock_delay = '1 d';
SELECT t.try('lost'), lock_sweep(1000);
SET atomic_lock.lock_delay = '1 ms';
SELECT t.take('lost') IS NOT NULL AS opened;

--
-- A superuser's setting applies to all roles
--
CREATE ROLE regress_al_user;
SELECT lock_grant_access('regress_al_user', 'user');
SELECT status FROM lock_acquire('who', '10 ms', 'alice-1');
SELECT t.expire('who');
SET atomic_lock.lock_delay = '1 h';
SET ROLE regress_al_user;
SELECT t.code($$SET atomic_lock.lock_delay = 0$$), status FROM lock_try_acquire('who', owner => 'bob-1');
RESET ROLE;
RESET atomic_lock.lock_delay;
DROP OWNED BY regress_al_user;
DROP ROLE regress_al_user;
