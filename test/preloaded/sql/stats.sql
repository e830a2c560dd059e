\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/../sql/include/setup.sql'
\set include :srcdir '/../sql/include/counted.sql'
\i :setup
-- lock_stats: what each verb counts
--
-- Properties: each verb counts its grants, refusals and ends. An end that no call reported,
-- such as an expiry, is counted once, by the next grant or the sweep. No grant and no end
-- counts twice or is missed, so at any time grants = releases + expirations + forced + holdings
-- that are not released.
--
-- Turns red when: a verb does not count; a call that only sees an end counts it.
--
-- stats_transactions tests the counts of transactions.
SELECT lock_stats_reset();
SELECT t.counted() AS since_the_reset, t.adds_up();

--
-- One key
--
\set ECHO none
CALL t.play(
	$$(lock_acquire('k', '1 hour', 'alice-1')).status$$,
	$$(lock_acquire('k', '1 hour', 'alice-1')).status$$,
	$$(lock_try_acquire('k', '1 hour', 'bob-1')).status$$,
	$$(lock_acquire('k', '1 hour', 'bob-1')).status$$,
	$$(lock_try_acquire('k', '1 hour', 'bob-1', wait => '10 ms')).status$$,
	$$(lock_acquire('k', '1 hour', 'bob-1', wait => '10 ms')).status$$,
	$$(lock_acquire('k', '1 hour', 'alice-1', wait => '10 ms')).status$$,
	$$(lock_acquire('k', '-1 s', 'bob-1')).status$$,
	$$lock_extend('k', 'alice-1') IS NULL$$,
	$$lock_try_extend('k', 'alice-1') IS NULL$$,
	$$lock_try_extend('k', 'bob-1') IS NULL$$,
	$$lock_extend('k', 'bob-1') IS NULL$$,
	$$lock_try_release('k', 'bob-1')$$,
	$$lock_release('k', 'bob-1')$$,
	$$lock_is_held('k', 'alice-1')$$,
	$$holder IS NULL FROM lock_status('k')$$,
	$$lock_assert('k', 'alice-1') IS NULL$$,
	$$lock_assert('k', 'bob-1') IS NULL$$,
	$$(lock_convert('k', 'alice-1', 'shared')).status$$,
	$$(lock_acquire('k', '1 hour', 'bob-1', 'shared')).status$$,
	$$(lock_acquire('k', '1 hour', 'bob-1', 'shared')).status$$,
	$$(lock_convert('k', 'alice-1')).status$$,
	$$(lock_convert('k', 'alice-1', wait => '10 ms')).status$$,
	$$(lock_transfer('k', 'alice-1', 'carol-1')).status$$,
	$$(lock_transfer('k', 'carol-1', 'bob-1')).status$$,
	$$lock_release('k', 'bob-1')$$,
	$$lock_try_release('k', 'bob-1')$$,
	$$lock_release('k', 'bob-1')$$);
\set ECHO all
:played
SELECT t.adds_up();

-- The owner's own key, with on_reacquire = error
SET atomic_lock.on_reacquire = error;
\set ECHO none
CALL t.play(
	$$(lock_acquire('own', '1 hour', 'alice-1')).status$$,
	$$(lock_try_acquire('own', '1 hour', 'alice-1')).status$$,
	$$(lock_acquire('own', '1 hour', 'alice-1')).status$$,
	$$lock_release('own', 'alice-1')$$);
\set ECHO all
:played
RESET atomic_lock.on_reacquire;

-- Sets: every grant counts, but a refusal of the set counts once, and so does its wait.
\set ECHO none
CALL t.play(
	$$count(*) FROM lock_acquire_all(ARRAY['s3', 's1', 's2', 's1'], '1 hour', 'alice-1')$$,
	$$count(*) FROM lock_acquire_all(ARRAY['s3', 's1', 's2', 's4'], '1 hour', 'alice-1')$$,
	$$status FROM lock_try_acquire_all(ARRAY['a', 's1', 's2'], '1 hour', 'bob-1')$$,
	$$status FROM lock_acquire_all(ARRAY['a', 's1', 's2'], '1 hour', 'bob-1')$$,
	$$status FROM lock_try_acquire_all(ARRAY['a', 's1', 's2'], '1 hour', 'bob-1', wait => '10 ms')$$,
	$$lock_extend_all('alice-1')$$,
	$$lock_extend_all('bob-1')$$,
	$$lock_release_all('alice-1')$$,
	$$lock_release_all('alice-1')$$);
\set ECHO all
:played
SELECT t.adds_up();

-- Two holdings of an owner: one of the transaction, and a lease transferred to it
BEGIN;
SELECT (lock_acquire('two', owner => 'carol-1', mode => 'shared')).status, (lock_acquire('two', owner => 'alice-1', mode => 'shared', lifetime => 'transaction')).status, (lock_transfer('two', 'carol-1', 'alice-1')).status, lock_release('two', 'alice-1'), lock_is_held('two', 'alice-1');
COMMIT;
:counted
SELECT t.adds_up();

-- Lifetimes: a transaction's holding counts as released at its end, unless it was a lease
-- before.
\set ECHO none
CALL t.play(
	$$(lock_acquire('s', owner => 'alice-1', lifetime => 'session')).status$$,
	$$(lock_acquire('s', owner => 'alice-1', lifetime => 'session')).status$$,
	$$(lock_try_acquire('s', owner => 'bob-1', lifetime => 'session')).status$$,
	$$(lock_acquire('s', '1 hour', 'alice-1')).status$$,
	$$(lock_acquire('s', owner => 'alice-1', lifetime => 'transaction')).status$$,
	$$lock_release('s', 'alice-1')$$,
	$$(lock_acquire('t', owner => 'alice-1', lifetime => 'transaction')).status$$,
	$$(lock_acquire('t', owner => 'alice-1', mode => 'shared', lifetime => 'transaction')).status$$,
	$$(lock_acquire('t', owner => 'alice-1', lifetime => 'transaction')).status, (lock_acquire('t', owner => 'alice-1', lifetime => 'transaction')).status$$,
	$$(lock_acquire('t', owner => 'alice-1', lifetime => 'transaction')).status, lock_release('t', 'alice-1')$$,
	$$(lock_acquire('t', owner => 'alice-1', lifetime => 'transaction')).status, lock_release('t', 'alice-1'), 1 / (length(lock_try_release('t', 'bob-1')) - 9)$$,
	$$(lock_acquire('t', owner => 'alice-1', lifetime => 'transaction')).status, (lock_acquire('t', '1 hour', 'alice-1')).status$$,
	$$lock_release('t', 'alice-1')$$,
	$$(lock_acquire('t', owner => 'alice-1', lifetime => 'transaction')).status, (lock_transfer('t', 'alice-1', 'bob-1')).status, (lock_try_acquire('t', owner => 'alice-1')).status$$);
\set ECHO all
:played
SELECT t.adds_up();

-- By force
\set ECHO none
CALL t.play(
	$$force_release('f', 'why')$$,
	$$(lock_acquire('f', '1 hour', 'alice-1')).status$$,
	$$force_release('f', 'why')$$,
	$$count(lock_acquire('f', '1 hour', o, 'shared')) FROM unnest(ARRAY['alice-1', 'bob-1']) o$$,
	$$lock_force_release('f', 'why')$$,
	$$(lock_steal('f', 'dba-1', 'why')).status$$,
	$$(lock_steal('f', 'dba-2', 'why')).status$$,
	$$(lock_steal('f', 'dba-2', 'why')).status$$,
	$$lock_try_release('f', 'dba-1')$$,
	$$lock_try_release('f', 'dba-2')$$,
	$$count(lock_acquire('f', '1 hour', o, 'shared')) FROM unnest(ARRAY['alice-1', 'bob-1', 'carol-1']) o$$,
	$$(lock_steal('f', 'dba-1', 'why')).status$$,
	$$(lock_steal('f', 'dba-1', NULL)).status$$,
	$$lock_release('f', 'dba-1')$$,
	$$(lock_acquire('f', owner => 'alice-1', lifetime => 'session')).status$$,
	$$lock_force_release('f', 'why')$$);
\set ECHO all
:played
SELECT t.adds_up();

-- lock_fetch: nothing counts if there is no row
CREATE TABLE t.orders (id int PRIMARY KEY, what text);
INSERT INTO t.orders VALUES (1, 'tea');
\set ECHO none
CALL t.play(
	$$what FROM lock_fetch(NULL::t.orders, '1', '1 hour', 'alice-1')$$,
	$$what FROM lock_fetch(NULL::t.orders, '1', '1 hour', 'alice-1')$$,
	$$what FROM lock_fetch(NULL::t.orders, '1', '1 hour', 'bob-1')$$,
	$$what FROM lock_fetch(NULL::t.orders, '1', '1 hour', 'bob-1', '10 ms')$$,
	$$what FROM lock_fetch(NULL::t.orders, '2', '1 hour', 'alice-1')$$,
	$$lock_release_all('alice-1')$$);
\set ECHO all
:played
SELECT t.adds_up();

--
-- Ends that no call reported are counted once, by the next grant or the sweep
--
SELECT count(lock_acquire('x' || i, '20 ms', 'alice-1')) FROM generate_series(1, 6) i;
SELECT count(lock_acquire('x7', '20 ms', o, 'shared')) FROM unnest(ARRAY['alice-1', 'bob-1']) o;
SELECT count(lock_acquire('r' || i, '1 hour', 'alice-1')), count(lock_release('r' || i, 'alice-1')) FROM generate_series(1, 3) i;
SELECT count(t.expire('x' || i)) FROM generate_series(1, 7) i;
UPDATE app_lock SET expires_at = expires_at - interval '2 hours' WHERE released AND key ~ '^r[12]$';
SELECT t.adds_up();
\set ECHO none
CALL t.play(
	$$lock_holder('x1') IS NULL AND NOT lock_is_held('x1', 'alice-1')$$,
	$$lock_try_release('x1', 'alice-1')$$,
	$$lock_release_all('alice-1')$$,
	$$lock_try_extend('x1', 'alice-1') IS NULL$$,
	$$(lock_acquire('x1', '1 hour', 'bob-1')).status$$,
	$$(lock_acquire('x2', '1 hour', 'alice-1')).status$$,
	$$(lock_steal('x3', 'dba-1', 'why')).status$$,
	$$count(*) FROM lock_acquire_all(ARRAY['x1', 'x4'], '1 hour', 'bob-1')$$,
	$$(lock_acquire('r1', '1 hour', 'bob-1')).status$$,
	$$lock_sweep(0)$$,
	$$lock_sweep(1000)$$,
	$$lock_sweep(1000)$$);
\set ECHO all
-- swept: x5, x6, both sharers of x7, and r2, which was released long ago
:played
SELECT t.adds_up();
-- Expired sharers, then an exclusive grant: each is counted, sooner or later
:counted
SELECT count(lock_acquire('w', '20 ms', o, 'shared')) FROM unnest(ARRAY['alice-1', 'bob-1', 'carol-1']) o;
SELECT t.expire('w');
SELECT status FROM lock_acquire('w', '1 hour', 'bob-1', 'shared');
SELECT lock_release('w', 'bob-1');
SELECT t.adds_up();
SELECT status FROM lock_acquire('w', '1 hour', 'alice-1');
SELECT t.adds_up();
SELECT lock_release('w', 'alice-1'), lock_sweep(1000);
:counted
SELECT t.adds_up();

-- A session that has ended
SELECT status FROM lock_acquire('session 1', owner => 'alice-1', lifetime => 'session');
SELECT status FROM lock_acquire('session 2', owner => 'alice-1', lifetime => 'session');
:counted
\c -
SET client_min_messages = warning;
SELECT t.expire('session 1'), t.expire('session 2');
SELECT status FROM lock_acquire('session 1', '1 hour', 'bob-1', wait => '1 min');
SELECT lock_sweep(1000) > 0 AS swept;
SELECT replace(t.counted(), ', waits 1', '') AS counted;
SELECT t.adds_up();

-- Expired leases that keep their key closed until an administrator opens or steals it
SELECT lock_set_policy('min ', min_hold => '1 hour');
SELECT count(lock_acquire('min ' || i, '20 ms', 'alice-1')) FROM generate_series(1, 2) i;
SELECT count(lock_acquire('min 3', ttl, o, 'shared')) FROM (VALUES ('alice-1', interval '20 ms'), ('bob-1', '20 ms'), ('carol-1', '1 hour')) v (o, ttl);
SELECT lock_release('min 3', 'carol-1');
SELECT count(t.expire('min ' || i)) FROM generate_series(1, 3) i;
SELECT t.adds_up();
\set ECHO none
CALL t.play(
	$$force_release('min 1', 'why')$$,
	$$(lock_steal('min 2', 'dba-1', 'why')).status$$,
	$$force_release('min 3', 'why')$$,
	$$lock_try_force_release('min 3', 'why')$$,
	$$lock_drop_policy('min ')$$,
	$$(lock_acquire('min 1', '1 hour', 'bob-1')).status$$,
	$$(lock_acquire('min 3', '1 hour', 'bob-1', 'shared')).status$$);
\set ECHO all
:played
SELECT t.adds_up();

--
-- Waits
--
SELECT lock_stats_reset();
-- Refused writes are counted, also without an owner, and although the write is rolled back
CREATE TABLE t.guarded (id int PRIMARY KEY, note text);
INSERT INTO t.guarded VALUES (1), (2);
SELECT lock_protect('t.guarded', 'guarded:{id}');
SELECT t.code('UPDATE t.guarded SET note = 1'), t.code('DELETE FROM t.guarded');
SELECT status FROM lock_acquire('guarded:1', owner => 'ann');
SET atomic_lock.owner = 'ann';
SELECT t.code('UPDATE t.guarded SET note = 1 WHERE id = 1'), t.code('UPDATE t.guarded SET note = 2'), t.code('UPDATE t.guarded SET id = 3 WHERE id = 1');
SET atomic_lock.fencing_token = '1';
SELECT t.code('UPDATE t.guarded SET note = 3 WHERE id = 1');
RESET atomic_lock.fencing_token;
RESET atomic_lock.owner;
SELECT guard_refusals, refusals FROM lock_stats WHERE database = current_database();
-- a path counts once, whichever key is missing; a row that is not as expected counts nowhere
SELECT lock_protect('t.guarded', 'x/y/{id}', separator => '/');
SELECT status FROM lock_acquire('x/', owner => 'ann', mode => 'shared');
SELECT t.code('UPDATE t.guarded SET note = 1'), t.code($$SELECT set_config('atomic_lock.owner', 'ann', true); UPDATE t.guarded SET note = 1$$);
SELECT guard_refusals, refusals, grants FROM lock_stats WHERE database = current_database();
SELECT t.code($$SELECT lock_fetch(NULL::t.guarded, '1', owner => 'ann', expect => '{"note": "x"}')$$);
SELECT guard_refusals, refusals, grants FROM lock_stats WHERE database = current_database();
DROP TABLE t.guarded;
SELECT lock_release_all('ann');
SELECT lock_stats_reset();
SELECT waits, total_wait, longest_wait FROM lock_stats WHERE database = current_database();
SELECT status FROM lock_acquire('held', '1 hour', 'alice-1');
SELECT status FROM lock_try_acquire('held', wait => '40 ms');
SELECT status FROM lock_try_acquire('held', wait => '20 ms');
SELECT waits, timeouts, refusals, total_wait >= longest_wait AS total, longest_wait > '0' AS longest, longest_wait < total_wait AS less
FROM lock_stats WHERE database = current_database();
-- a wait that was granted; on a slow machine the first lease may expire before the wait
DO $$
BEGIN
	FOR i IN 1 .. 1000 LOOP
		PERFORM lock_stats_reset();
		PERFORM lock_acquire('short', '50 ms', 'alice-1');
		EXIT WHEN (lock_acquire('short', '1 hour', 'bob-1', wait => '1 min')).waited > '0';
		PERFORM lock_release('short', 'bob-1');
	END LOOP;
END
$$;
SELECT grants, expirations, waits, timeouts FROM lock_stats WHERE database = current_database();

--
-- Reset
--
SELECT since AS before FROM lock_stats WHERE database = current_database() \gset
SELECT lock_stats_reset();
SELECT since > :'before' AND since <= clock_timestamp() AS since_now, total_wait, longest_wait FROM lock_stats WHERE database = current_database();
SELECT count(*) FROM t.counter WHERE value <> 0;
-- a reset is not rolled back, since it is not transactional
SELECT status FROM lock_acquire('held', '1 hour', 'alice-1');
BEGIN;
SELECT lock_stats_reset();
ROLLBACK;
SELECT count(*) FROM t.counter WHERE value <> 0;

--
-- lock_sweeper_status: a row for this database, since it was swept
--
SELECT lock_sweep(1000) >= 0 AS swept;
SELECT lock_stats_reset();
DELETE FROM t.seen;
SELECT database IS NULL AS launcher, database = current_database() AS this, status IS NOT NULL AS status, last_swept_at, last_removed, last_duration, hint IS NOT NULL AS hint
FROM lock_sweeper_status() WHERE database IS NULL;
SELECT count(lock_acquire(k, '20 ms', 'alice-1')) FROM unnest(ARRAY['z1', 'z2', 'z3']) k;
SELECT count(t.expire(k)) FROM unnest(ARRAY['z1', 'z2', 'z3']) k;
SELECT clock_timestamp() AS before \gset
SELECT lock_sweep(2);
SELECT last_swept_at BETWEEN :'before' AND clock_timestamp() AS last_swept_at, last_removed, last_duration BETWEEN '0' AND '1 min' AS last_duration FROM lock_sweeper_status() WHERE database = current_database();
SELECT lock_sweep(2);
SELECT last_removed FROM lock_sweeper_status() WHERE database = current_database();
:counted

--
-- Other databases
--
DROP DATABASE IF EXISTS regress_al_stats;
CREATE DATABASE regress_al_stats;
SELECT current_database() AS here \gset
SELECT count(*) FROM lock_stats WHERE database = 'regress_al_stats';
\c regress_al_stats
SET client_min_messages = warning;
CREATE EXTENSION atomic_lock;
SELECT status FROM lock_acquire('k', '1 hour', 'alice-1');
SELECT status FROM lock_try_acquire('k', '1 hour', 'bob-1');
SELECT grants, refusals FROM lock_stats WHERE database = current_database();
SELECT status FROM lock_acquire('k2', '1 hour', 'alice-1');
\c :here
SET client_min_messages = warning;
SELECT grants, refusals FROM lock_stats WHERE database = 'regress_al_stats';
SELECT count(*) AS never_swept FROM lock_sweeper_status() WHERE database = 'regress_al_stats';
SELECT count(*) FROM t.counter WHERE value <> 0;
SELECT lock_stats_reset();
SELECT grants, refusals FROM lock_stats WHERE database = 'regress_al_stats';
SELECT count(*) = count(DISTINCT database) AS once, bool_and(database IN (SELECT datname FROM pg_database)) AS existing FROM lock_stats;
DROP DATABASE regress_al_stats;
SELECT count(*) FROM lock_stats WHERE database = 'regress_al_stats';
