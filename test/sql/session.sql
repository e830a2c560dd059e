\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- Lifetime session: held until the database session that acquired it ends
--
-- Properties: such a holding has an end only if a ttl was given, and always ends with its
-- session, without any process acting. Until then it is a holding like any other. Its session
-- is the last one that passed lifetime => 'session'.
--
-- Turns red when: the holding outlives its session, or ends before; it gets an end that no call
-- asked for; a new session with the same process id, or the same owner, keeps it alive.

-- Waits until a former session of ours has ended, after a reconnect
CREATE TABLE t.session (pid int, since timestamptz);
CREATE FUNCTION t.remember() RETURNS void LANGUAGE sql AS $$
	DELETE FROM t.session;
	INSERT INTO t.session SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid();
$$;
CREATE FUNCTION t.gone() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1..100000 LOOP
		PERFORM pg_stat_clear_snapshot();
		IF NOT EXISTS (SELECT FROM pg_stat_activity a JOIN t.session s ON a.pid = s.pid AND a.backend_start = s.since) THEN
			RETURN true;
		END IF;
		PERFORM pg_sleep(0.01);
	END LOOP;
	RETURN false;
END
$$;
CREATE VIEW t.bound AS SELECT key, mode, CASE WHEN owner LIKE '%-1' THEN owner END AS owner, pid = pg_backend_pid() AS to_this, backend_start = (SELECT a.backend_start FROM pg_stat_activity a WHERE a.pid = pg_backend_pid()) AS since_its_start,
	CASE WHEN expires_at = 'infinity' THEN 'never' WHEN expires_at > clock_timestamp() THEN 'later' ELSE 'before' END AS expires, released FROM app_lock ORDER BY key, slot;

--
-- Without a ttl it has no end of its own
--
SELECT fencing_token AS token, acquired_at AS since FROM lock_acquire('k', owner => 'alice-1', holder => 'Alice', meta => '{"a": 1}', lifetime => 'session') \gset
SELECT s.* FROM lock_acquire('k2', NULL, 'alice-1', 'exclusive', '0', 'Alice', NULL, 'session') g, t.show(g) s;
SELECT expires_at, s.* FROM lock_try_acquire('k3', mode => 'shared', lifetime => 'session') g, t.show(g) s;
SELECT * FROM t.bound;
SELECT key, locked, mode, owner, holder, fencing_token = :token AS token, acquired_at = :'since' AS since, expires_at, ttl_remaining, lifetime, holders, pid = pg_backend_pid() AS pid, meta FROM lock_status('k');
SELECT key, expires_at, ttl_remaining, lifetime, pid = pg_backend_pid() AS pid FROM lock_status() ORDER BY key;
SELECT lock_is_held('k', 'alice-1'), lock_holder('k');
-- the settings for ttl do not apply
SET atomic_lock.default_ttl = '25 h';
SELECT status, expires_at FROM lock_acquire('k4', owner => 'alice-1', lifetime => 'session');
RESET atomic_lock.default_ttl;
-- refused
SELECT replace(t.raises($$SELECT lock_acquire('k', owner => 'bob-1')$$), pg_backend_pid()::text, '<this>') AS answer;
SELECT acquired, status, mode, owner, holder, acquired_at = :'since' AS since, expires_at FROM lock_try_acquire('k', owner => 'bob-1');
SELECT status, holder, expires_at FROM lock_try_acquire('k', owner => 'bob-1', wait => '10 ms');
SELECT status FROM lock_try_acquire('k', owner => 'bob-1', mode => 'shared', lifetime => 'session');
SELECT t.raises($$SELECT lock_release('k', 'bob-1')$$) ~ '^LK003' AS refused, t.raises($$SELECT lock_extend('k', 'bob-1')$$) ~ '^LK003' AS refused;
-- sharers of all lifetimes
SELECT status FROM lock_acquire('k3', '10 min', 'bob-1', 'shared', holder => 'Bob');
SELECT holders, lifetime, expires_at FROM lock_status('k3');
SELECT split_part(t.raises($$SELECT lock_acquire('k3', owner => 'carol-1')$$), E'\n', 1) ~ 'is held by .* and 1 other$' AS told;

--
-- With a ttl it also ends by the clock
--
SELECT s.* FROM lock_acquire('ttl', '10 min', 'alice-1', holder => 'Alice', lifetime => 'session') g, t.show(g) s;
SELECT expires_at IS NOT NULL AS expires, ttl_remaining > '9 min' AS remaining, lifetime, pid = pg_backend_pid() AS pid FROM lock_status('ttl');
SELECT * FROM t.bound WHERE key = 'ttl';
SELECT g.status FROM lock_acquire('short', '20 ms', 'alice-1', lifetime => 'session') g;
SELECT t.expire('short');
SELECT locked FROM lock_status('short');
SELECT lock_try_release('short', 'alice-1');
SELECT status FROM lock_try_acquire('short', '1 min', 'bob-1');
SELECT t.code($$SELECT lock_acquire('x', '0', lifetime => 'session')$$) AS zero, t.code($$SELECT lock_acquire('x', '25 h', lifetime => 'session')$$) AS long, t.code($$SELECT lock_acquire('x', meta => to_jsonb(repeat('x', 10000)), lifetime => 'session')$$) AS meta;

--
-- Extended
--
SELECT lock_extend('k', 'alice-1'), lock_try_extend('k', 'alice-1');
SELECT expires_at FROM lock_status('k');
SELECT lock_extend('k', 'alice-1', '10 min') BETWEEN clock_timestamp() + interval '9 min' AND clock_timestamp() + interval '10 min' AS ten_minutes;
SELECT lifetime, ttl_remaining > '9 min' AS remaining, pid = pg_backend_pid() AS pid FROM lock_status('k');
SELECT lock_extend('k', 'alice-1') BETWEEN clock_timestamp() + interval '9 min' AND clock_timestamp() + interval '10 min' AS repeats;
SELECT lock_extend_all('alice-1') AS all;
SELECT expires_at FROM lock_status('k2');
SELECT lock_extend_all('alice-1', '30 min') AS all;
SELECT key, ttl_remaining BETWEEN '29 min' AND '30 min' AS extended, lifetime FROM lock_status() WHERE lock_is_held(key, 'alice-1') ORDER BY key;
-- max_lifetime applies to sessions, too
SELECT g.status FROM lock_acquire('life', owner => 'alice-1', lifetime => 'session') g;
SET atomic_lock.max_lifetime = '1 h';
SELECT t.code($$SELECT lock_acquire('x', '61 min', 'alice-1', lifetime => 'session')$$) AS acquire, t.code($$SELECT lock_extend('life', 'alice-1', '61 min')$$) AS extend;
SELECT lock_extend('life', 'alice-1', '30 min') < acquired_at + interval '1 h' AS within FROM lock_status('life');
SELECT lock_extend('life', 'alice-1', '1 h') = acquired_at + interval '1 h' AS to_its_end FROM lock_status('life');
SELECT t.code($$SELECT lock_extend('life', 'alice-1')$$);
SELECT expires_at = acquired_at + interval '1 h' AS to_its_end FROM lock_acquire('life 2', owner => 'alice-1', lifetime => 'session');
RESET atomic_lock.max_lifetime;

--
-- Reacquired: the last request decides
--
SELECT fencing_token AS token, acquired_at AS since FROM lock_acquire('re', '10 min', 'alice-1') \gset
SELECT status, fencing_token = :token AS same_token, acquired_at = :'since' AS same_since FROM lock_acquire('re', owner => 'alice-1', lifetime => 'session');
SELECT lifetime, pid = pg_backend_pid() AS pid FROM lock_status('re');
SELECT * FROM t.bound WHERE key = 're';
SELECT status, fencing_token = :token AS same_token, expires_at IS NOT NULL AS expires FROM lock_acquire('re', '20 min', 'alice-1', lifetime => 'lease');
SELECT lifetime, ttl_remaining BETWEEN '19 min' AND '20 min' AS remaining, pid FROM lock_status('re');
SELECT * FROM t.bound WHERE key = 're';
SELECT status, fencing_token = :token AS same_token FROM lock_acquire('re', '30 min', 'alice-1', lifetime => 'session');
SELECT lifetime, ttl_remaining BETWEEN '29 min' AND '30 min' AS remaining, pid = pg_backend_pid() AS pid FROM lock_status('re');
SELECT status, mode FROM lock_acquire('re', owner => 'alice-1', mode => 'shared', lifetime => 'session');
-- idempotent
SELECT g.status FROM lock_acquire('re 2', owner => 'alice-1', lifetime => 'session') g;
SELECT g.status, g.expires_at FROM lock_acquire('re 2', owner => 'alice-1', lifetime => 'session') g;
SET atomic_lock.on_reacquire = error;
SELECT l, t.code(format('SELECT lock_acquire(''re'', owner => ''alice-1'', lifetime => %L)', l)) AS acquire, g.status FROM unnest(ARRAY['lease', 'session', 'transaction']) l, LATERAL lock_try_acquire('re', owner => 'alice-1', lifetime => l) g;
RESET atomic_lock.on_reacquire;

--
-- Converted and transferred
--
SELECT status, mode, expires_at FROM lock_acquire('conv', owner => 'alice-1', mode => 'shared', lifetime => 'session');
SELECT status, mode, expires_at FROM lock_convert('conv', 'alice-1');
SELECT mode, lifetime, pid = pg_backend_pid() AS pid, expires_at FROM lock_status('conv');
SELECT status, mode FROM lock_convert('conv', 'alice-1', 'shared');
SELECT mode, lifetime, pid = pg_backend_pid() AS pid, expires_at FROM lock_status('conv');
SELECT status, owner, expires_at FROM lock_transfer('conv', 'alice-1', 'bob-1', 'Bob');
SELECT holder, lifetime, pid = pg_backend_pid() AS pid, expires_at FROM lock_status('conv');
SELECT status, expires_at IS NOT NULL AS expires FROM lock_transfer('conv', 'bob-1', 'carol-1', ttl => '10 min');
SELECT lifetime, pid = pg_backend_pid() AS pid, ttl_remaining > '9 min' AS remaining FROM lock_status('conv');

--
-- Released
--
SELECT lock_release('k', 'alice-1'), lock_try_release('k', 'alice-1') AS again;
SELECT t.code($$SELECT lock_release('k', 'alice-1')$$);
SELECT status FROM lock_acquire('k', '1 min', 'bob-1');
SELECT * FROM t.bound WHERE key = 'k';
SELECT lock_release('k', 'bob-1');
SELECT count(*) AS live FROM app_lock WHERE owner = 'alice-1' AND NOT released AND expires_at > clock_timestamp() \gset
SELECT lock_release_all('alice-1') = :live AS all, lock_release_all('alice-1') AS again;
-- by force
TRUNCATE lock_audit;
SELECT fencing_token AS token FROM lock_acquire('force', owner => 'alice-1', holder => 'Alice', lifetime => 'session') \gset
SELECT force_release('force', 'why'), lock_try_release('force', 'alice-1');
SELECT g.status FROM lock_acquire('force', owner => 'alice-1', holder => 'Alice', lifetime => 'session') g;
SELECT s.status, s.seconds FROM lock_steal('force', 'dba-1', 'why', '10 min') g, t.show(g) s;
SELECT lifetime, pid, ttl_remaining > '9 min' AS remaining FROM lock_status('force');
SELECT action, previous_holder, previous_owner_digest = encode(sha256('alice-1'), 'hex') AS digest FROM lock_audit ORDER BY at;
-- it writes a row, like a lease
BEGIN;
SELECT g.status FROM lock_acquire('xid', owner => 'alice-1', lifetime => 'session') g;
SELECT pg_current_xact_id_if_assigned() IS NOT NULL AS transaction_id;
ROLLBACK;
SELECT locked FROM lock_status('xid');
BEGIN;
SAVEPOINT s;
SELECT g.status FROM lock_acquire('xid', owner => 'alice-1', lifetime => 'session') g;
ROLLBACK TO s;
SELECT locked FROM lock_status('xid');
SELECT status FROM lock_try_acquire('xid', '1 min', 'bob-1');
ROLLBACK;
BEGIN READ ONLY;
SELECT t.raises($$SELECT lock_acquire('xid', lifetime => 'session')$$);
COMMIT;
-- a sweep leaves it
SELECT g.status FROM lock_acquire('swept', owner => 'alice-1', lifetime => 'session') g;
SELECT lock_sweep(100000) >= 0 AS swept, lock_is_held('swept', 'alice-1');

--
-- The end of the session
--
SELECT g.status FROM lock_acquire('end:x', owner => 'alice-1', holder => 'Alice', lifetime => 'session') g;
SELECT g.status FROM lock_acquire('end:s', owner => 'alice-1', mode => 'shared', holder => 'Alice', lifetime => 'session') g;
SELECT g.status FROM lock_acquire('end:s', '1 hour', owner => 'bob-1', mode => 'shared', holder => 'Bob') g;
SELECT g.status FROM lock_acquire('end:ttl', '1 hour', owner => 'alice-1', holder => 'Alice', lifetime => 'session') g;
SELECT g.status FROM lock_acquire('end:lease', owner => 'alice-1', holder => 'Alice', lifetime => 'session') g;
SELECT g.status FROM lock_acquire('end:lease', '1 hour', owner => 'alice-1') g;
SELECT g.status FROM lock_acquire('end:given', owner => 'alice-1', lifetime => 'session') g;
SELECT g.status FROM lock_transfer('end:given', 'alice-1', 'carol-1') g;
SELECT g.status FROM lock_acquire('end:now lease', owner => 'alice-1', lifetime => 'session') g;
SELECT g.status FROM lock_transfer('end:now lease', 'alice-1', 'carol-1') g;
SELECT g.status FROM lock_acquire('end:now lease', '1 hour', 'carol-1') g;
SELECT t.remember();
\c -
SELECT t.gone();
SELECT k, locked, holder, lifetime, holders FROM unnest(ARRAY['end:x', 'end:s', 'end:ttl', 'end:lease', 'end:given', 'end:now lease']) k, lock_status(k);
SELECT key FROM lock_status() WHERE key LIKE 'end:%' ORDER BY key;
SELECT k, lock_is_held(k, 'alice-1'), lock_holder(k), lock_try_release(k, 'alice-1') FROM unnest(ARRAY['end:x', 'end:ttl', 'end:s']) k;
SELECT t.raises($$SELECT lock_release('end:x', 'alice-1')$$);
SELECT t.raises($$SELECT lock_extend('end:x', 'alice-1')$$);
SELECT t.code($$SELECT lock_convert('end:s', 'alice-1')$$), t.code($$SELECT lock_transfer('end:x', 'alice-1', 'bob-1')$$), t.code($$SELECT force_release('end:x', 'why')$$), lock_try_release('end:given', 'carol-1'), lock_try_extend('end:ttl', 'alice-1');
SELECT lock_extend_all('alice-1'), lock_extend_all('bob-1');
SELECT status, mode FROM lock_convert('end:s', 'bob-1');
-- free at once for a waiter
SELECT status FROM lock_acquire('end:x', '1 min', 'bob-1', wait => '1 min');
SELECT lock_try_release('end:x', 'alice-1');
-- the owner on another connection gets a new grant
SELECT status FROM lock_acquire('end:ttl', owner => 'alice-1', lifetime => 'session');
SELECT * FROM t.bound WHERE key = 'end:ttl';
-- a sweep deletes the remaining rows
SELECT lock_sweep(100000) > 0 AS swept;
SELECT key FROM app_lock WHERE key LIKE 'end:%' ORDER BY key;
SELECT lock_try_release('end:given', 'carol-1'), lock_try_release('swept', 'alice-1');
SELECT lock_release_all('alice-1') > 0 AS released, lock_release_all('bob-1') > 0 AS released, lock_release_all('carol-1') > 0 AS released;

-- lock_delay: the key stays closed for a while after its session died
SELECT g.status FROM lock_acquire('delay', owner => 'alice-1', holder => 'Alice', lifetime => 'session') g;
SELECT g.status FROM lock_acquire('clean', owner => 'alice-1', holder => 'Alice', lifetime => 'session') g;
SELECT lock_release('clean', 'alice-1');
SELECT t.remember();
\c -
SELECT t.gone();
SET atomic_lock.lock_delay = '1 h';
SELECT regexp_replace(t.raises($$SELECT lock_acquire('delay', owner => 'bob-1')$$), 'process [0-9]+', 'process <n>');
SELECT s.acquired, s.status, s.owner, s.token FROM lock_try_acquire('delay', '1 min', 'bob-1') g, t.show(g) s;
SELECT lock_sweep(100000) >= 0 AS swept, t.raises($$SELECT lock_acquire('delay', owner => 'bob-1')$$) ~ 'closed' AS still_closed;
SELECT status FROM lock_try_acquire('clean', '1 min', 'bob-1');
RESET atomic_lock.lock_delay;
SELECT status FROM lock_try_acquire('delay', '1 min', 'bob-1');

--
-- Statements that end the session's holdings, and statements that do not
--
SELECT g.status FROM lock_acquire('ends', owner => 'alice-1', lifetime => 'session') g;
SELECT g.status FROM lock_acquire('ends', owner => 'alice-1', lifetime => 'session') g;
SELECT pg_advisory_unlock_all();
SELECT lock_is_held('ends', 'alice-1');
DISCARD PLANS;
DISCARD SEQUENCES;
DISCARD TEMP;
RESET ALL;
DEALLOCATE ALL;
CLOSE ALL;
RESET SESSION AUTHORIZATION;
SELECT lock_is_held('ends', 'alice-1');
BEGIN;
SELECT 1 / 0;
ROLLBACK;
SELECT lock_is_held('ends', 'alice-1');
DISCARD ALL;
SELECT lock_is_held('ends', 'alice-1');
SELECT lock_try_release('ends', 'alice-1');
SELECT status FROM lock_try_acquire('ends', '1 min', 'bob-1');
SELECT lock_release('ends', 'bob-1');
-- the session continues, and may acquire again
SELECT g.status FROM lock_acquire('ends', owner => 'alice-1', lifetime => 'session') g;
SELECT lock_is_held('ends', 'alice-1');
SELECT lock_release('ends', 'alice-1');
-- rolling back an acquire leaves the session's other holdings
SELECT g.status FROM lock_acquire('ends 1', owner => 'alice-1', lifetime => 'session') g;
BEGIN;
SELECT g.status FROM lock_acquire('ends 2', owner => 'alice-1', lifetime => 'session') g;
ROLLBACK;
SELECT lock_is_held('ends 1', 'alice-1') AS ends_1, lock_is_held('ends 2', 'alice-1') AS ends_2;
SELECT lock_release('ends 1', 'alice-1');
SELECT g.status FROM lock_acquire('ends 3', owner => 'alice-1', lifetime => 'session') g;
SELECT lock_is_held('ends 3', 'alice-1');

-- The process id of an ended session may be reused: the start time decides.
SELECT g.status FROM lock_acquire('reused', owner => 'alice-1', lifetime => 'session') g;
UPDATE app_lock SET backend_start = backend_start - interval '1 day' WHERE key = 'reused';
SELECT lock_is_held('reused', 'alice-1'), lock_holder('reused'), locked FROM lock_status('reused');
SELECT lock_try_release('reused', 'alice-1');
SELECT status FROM lock_try_acquire('reused', '1 min', 'bob-1');
SELECT g.status FROM lock_acquire('no process', owner => 'alice-1', lifetime => 'session') g;
UPDATE app_lock SET pid = -1 WHERE key = 'no process';
SELECT lock_is_held('no process', 'alice-1'), lock_holder('no process'), locked FROM lock_status('no process');
SELECT lock_try_release('no process', 'alice-1');
SELECT status FROM lock_try_acquire('no process', '1 min', 'bob-1');

-- At every isolation level, with an old snapshot
CREATE FUNCTION t.story(k text DEFAULT 'level') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text := current_setting('transaction_isolation');
BEGIN
	FOR i IN 1..2 LOOP
		answer := concat_ws(' ', answer, (lock_acquire(k, owner => 'alice-1', lifetime => 'session')).status, (lock_status(k)).lifetime, (lock_try_acquire(k, owner => 'bob-1')).status,
			(lock_acquire(k, owner => 'alice-1')).status, (lock_status(k)).lifetime, (lock_acquire(k, owner => 'alice-1', lifetime => 'session')).status, lock_extend(k, 'alice-1') IS NOT NULL, lock_release(k, 'alice-1'));
	END LOOP;
	RETURN answer;
END
$$;
:at_every_level

-- DISCARD ALL may claim any number of keys; afterwards the limit applies again, also if there
-- was nothing to release.
SELECT status FROM lock_acquire('discarded', owner => 'alice-1', lifetime => 'session');
SELECT lock_release('discarded', 'alice-1');
DISCARD ALL;
SET atomic_lock.max_claims_per_transaction = 3;
SELECT count(*) FROM generate_series(1, 4) i, LATERAL lock_acquire('discarded:' || i);
RESET atomic_lock.max_claims_per_transaction;
