\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- lock_convert: from shared to exclusive and back, without a gap
--
-- Properties: a sharer becomes exclusive when there is no other sharer, and an exclusive holder
-- can share at any time. Each change is a grant with a new token; start, end, label and meta of
-- the lease stay. An owner that holds nothing converts nothing.
--
-- Turns red when: an exclusive grant is made beside a live sharer; the row of the old mode
-- stays beside the new one; a refused or needless change writes.

-- Live rows of a key
CREATE FUNCTION t.live(k text) RETURNS TABLE (mode text, above_zero boolean, owner text, holder text) LANGUAGE sql AS $$
	SELECT mode, slot > 0, owner, holder FROM app_lock WHERE key = k AND NOT released AND expires_at > clock_timestamp() ORDER BY slot
$$;

--
-- Up and down
--
SELECT fencing_token AS token, acquired_at AS since, expires_at AS until
FROM lock_acquire('k', '10 min', 'alice-1', 'shared', holder => 'Alice', meta => '{"a": 1}') \gset
SELECT s.acquired, s.status, s.key, s.mode, s.owner, s.seconds, s.waited, s.holder, fencing_token > :token AS token_rises, acquired_at = :'since' AS same_since, expires_at = :'until' AS same_until
FROM lock_convert('k', 'alice-1') g, t.show(g) s;
SELECT * FROM t.live('k');
SELECT mode, holders, lifetime, meta, acquired_at = :'since' AS same_since, expires_at = :'until' AS same_until FROM lock_status('k');
SELECT status, mode, holder FROM lock_try_acquire('k', owner => 'bob-1', mode => 'shared');
SELECT fencing_token AS token FROM lock_status('k') \gset
SELECT s.acquired, s.status, s.key, s.mode, s.owner, s.seconds, s.waited, s.holder, fencing_token > :token AS token_rises, acquired_at = :'since' AS same_since, expires_at = :'until' AS same_until
FROM lock_convert('k', 'alice-1', 'shared') g, t.show(g) s;
SELECT * FROM t.live('k');
SELECT meta FROM lock_status('k');
-- others may share now
SELECT status, mode FROM lock_try_acquire('k', '10 min', 'bob-1', 'shared', holder => 'Bob');
-- by name, by position, and with the owner from the setting
SELECT lock_release('k', 'bob-1');
SELECT status, mode FROM lock_convert(key => 'k', owner => 'alice-1', mode => 'exclusive', wait => '1 min');
SELECT status, mode, waited FROM lock_convert('k', 'alice-1', 'shared', '1 min');
SET atomic_lock.owner = 'alice-1';
SELECT status, mode, owner FROM lock_convert('k');
SELECT status, mode FROM lock_convert('k', mode => 'shared');
RESET atomic_lock.owner;
-- many times: at most two rows
SELECT count(*), count(DISTINCT g.fencing_token) AS tokens, bool_and(g.status = 'acquired') AS acquired, bool_and(g.acquired_at = :'since' AND g.expires_at = :'until') AS same
FROM generate_series(1, 20) i, LATERAL lock_convert('k', 'alice-1', CASE i % 2 WHEN 1 THEN 'exclusive' ELSE 'shared' END) g;
SELECT count(*) <= 3 AS few FROM app_lock WHERE key = 'k';
SELECT * FROM t.live('k');
-- the last requested ttl is kept
SELECT lock_extend('k', 'alice-1') BETWEEN clock_timestamp() + interval '9 min' AND clock_timestamp() + interval '10 min' AS repeats;
-- a generated owner
SELECT owner FROM lock_acquire('g', mode => 'shared') \gset
SELECT s.status, s.mode, s.owner, g.owner = :'owner' AS same_owner FROM lock_convert('g', :'owner') g, t.show(g) s;
SELECT lock_release('g', :'owner');
-- an owner has one holding, however often it was converted
SELECT status FROM lock_convert('k', 'alice-1');
SELECT lock_extend_all('alice-1', '20 min'), lock_release_all('alice-1'), lock_release_all('alice-1');
SELECT lock_try_release('k', 'alice-1'), lock_is_held('k', 'alice-1'), locked FROM lock_status('k');
SELECT status FROM lock_acquire('k', '10 min', 'alice-1');
SELECT status FROM lock_convert('k', 'alice-1', 'shared');
SELECT lock_release('k', 'alice-1');
SELECT lock_try_release('k', 'alice-1'), lock_is_held('k', 'alice-1'), locked FROM lock_status('k');

--
-- To the same mode: nothing is written
--
SELECT g.status FROM lock_acquire('x', '10 min', 'alice-1', holder => 'Alice') g;
SELECT g.status FROM lock_acquire('s', '10 min', 'alice-1', 'shared', holder => 'Alice') g;
SELECT g.status FROM lock_acquire('s', '20 min', 'bob-1', 'shared', holder => 'Bob') g;
SELECT t.fingerprint() AS before \gset
BEGIN;
SELECT s.* FROM lock_convert('x', 'alice-1') g, t.show(g) s;
SELECT s.* FROM lock_convert('x', 'alice-1', 'exclusive', '1 min') g, t.show(g) s;
SELECT s.* FROM lock_convert('s', 'alice-1', 'shared') g, t.show(g) s;
SELECT * FROM t.left_open();
COMMIT;
SELECT t.fingerprint() = :'before' AS unchanged;
SELECT g.fencing_token = l.fencing_token AS same_token FROM lock_convert('s', 'alice-1', 'shared') g, app_lock l WHERE l.key = 's' AND l.owner = 'alice-1';
-- atomic_lock.on_reacquire does not apply to conversions
SET atomic_lock.on_reacquire = error;
SELECT status, mode FROM lock_convert('x', 'alice-1', 'shared');
SELECT status, mode FROM lock_convert('x', 'alice-1', 'shared');
SELECT status, mode FROM lock_convert('x', 'alice-1');
RESET atomic_lock.on_reacquire;

-- Refused
--
-- because others share the key
SELECT t.fingerprint() AS before \gset
SELECT t.raises($$SELECT lock_convert('s', 'alice-1')$$);
SELECT t.raises($$SELECT lock_convert('s', 'bob-1')$$);
SELECT t.timeout($$SELECT lock_convert('s', 'alice-1', wait => '20 ms')$$);
\set VERBOSITY sqlstate
SELECT lock_convert('s', 'alice-1');
\set VERBOSITY default
BEGIN;
SELECT t.code($$SELECT lock_convert('s', 'alice-1')$$), t.code($$SELECT lock_convert('s', 'alice-1', wait => '5 ms')$$);
SELECT * FROM t.left_open();
COMMIT;
SELECT t.fingerprint() = :'before' AS unchanged;
SELECT status FROM lock_acquire('s', '15 min', 'carol-1', 'shared', holder => 'Carol');
SELECT t.raises($$SELECT lock_convert('s', 'alice-1')$$) ~ '"s" is held by Bob and 1 other\n' AS of_the_others;
-- granted once the others have released
SELECT lock_release('s', 'bob-1'), lock_release('s', 'carol-1');
SELECT status, mode FROM lock_convert('s', 'alice-1');
-- an expired sharer does not block
SELECT g.status FROM lock_acquire('short', '10 min', 'alice-1', 'shared') g;
SELECT b.status, b.mode, b.acquired_at < a.expires_at AS since_before
FROM lock_acquire('short', '100 ms', 'bob-1', 'shared') a, LATERAL lock_convert(a.key, 'alice-1', wait => '1 min') b;
SELECT lock_try_release('short', 'bob-1') AS bob;
SELECT * FROM t.live('short');
-- unless its lock_delay still runs
SELECT status FROM lock_convert('short', 'alice-1', 'shared');
SELECT g.status FROM lock_acquire('short', '20 ms', 'bob-1', 'shared', holder => 'Bob') g;
SELECT t.expire('short', 'bob-1');
SET atomic_lock.lock_delay = '1 h';
SELECT split_part(t.raises($$SELECT lock_convert('short', 'alice-1')$$), E'\n', 1) AS answer;
RESET atomic_lock.lock_delay;
SELECT status FROM lock_convert('short', 'alice-1');

-- owners that hold nothing
CREATE FUNCTION t.convert(k text, o text) RETURNS TABLE (mode text, answer text, and_wait boolean) LANGUAGE sql AS $$
	SELECT m, t.raises(format('SELECT lock_convert(%L, %L, %L)', k, o, m)), t.raises(format('SELECT lock_convert(%L, %L, %L)', k, o, m)) = t.raises(format('SELECT lock_convert(%L, %L, %L, ''1 min'')', k, o, m))
	FROM unnest(ARRAY['exclusive', 'shared']) m
$$;
SELECT * FROM t.convert('never', 'alice-1');
SELECT * FROM t.convert('x', 'bob-1');
SELECT status FROM lock_convert('s', 'alice-1', 'shared');
SELECT * FROM t.convert('s', 'dora-1');
SELECT lock_release('x', 'alice-1');
SELECT * FROM t.convert('x', 'alice-1');
SELECT * FROM t.convert('x', 'bob-1');
SELECT g.status FROM lock_acquire('x', '20 ms', 'alice-1') g;
SELECT t.expire('x');
SELECT * FROM t.convert('x', 'alice-1');
SELECT g.status FROM lock_acquire('x', '1 hour', 'bob-1', holder => 'Bob') g;
SELECT * FROM t.convert('x', 'alice-1');
SELECT force_release('x', 'why');
SELECT * FROM t.convert('x', 'bob-1');
-- a former sharer, while others still share
SELECT g.status FROM lock_acquire('s', '1 hour', 'bob-1', 'shared') g;
SELECT lock_release('s', 'bob-1');
SELECT * FROM t.convert('s', 'bob-1');
-- the expired lease was not revived
SELECT locked FROM lock_status('x');

-- bad input is refused whatever the state of the lock
SELECT a, split_part(t.raises(format('SELECT lock_convert(%s)', a)), E'\n', 1) AS answer
FROM unnest(ARRAY['NULL, ''o''', '''''', '''s''', '''s'', NULL', '''s'', ''''', '''s'', repeat(''x'', 256)', 'repeat(''x'', 1025), ''o''', '''s'', ''alice-1'', NULL', '''s'', ''alice-1'', ''x''', '''s'', ''alice-1'', ''''',
	'''s'', ''alice-1'', ''shared'', NULL', '''s'', ''alice-1'', ''shared'', ''-1 s''', '''s'', ''alice-1'', ''exclusive'', ''6 min''', '''s'', ''alice-1'', ''exclusive'', ''1 month''', '''s'', ''alice-1'', ''exclusive'', ''5 min''',
	'''never'', ''alice-1'', ''x''', '''never'', ''alice-1'', wait => ''6 min''']) WITH ORDINALITY u(a, i) ORDER BY i;
SET atomic_lock.max_wait = 0;
SELECT t.code($$SELECT lock_convert('s', 'alice-1', wait => '1 ms')$$) AS wait, t.code($$SELECT lock_convert('s', 'alice-1', wait => '0')$$) AS no_wait;
RESET atomic_lock.max_wait;
SET atomic_lock.max_claims_per_transaction = 1;
BEGIN;
SELECT status FROM lock_acquire('one', '1 min', 'alice-1');
SELECT t.code($$SELECT lock_convert('s', 'alice-1')$$);
ROLLBACK;
RESET atomic_lock.max_claims_per_transaction;
BEGIN READ ONLY;
SELECT t.raises($$SELECT lock_convert('s', 'alice-1')$$);
SELECT t.code($$SELECT lock_convert('s', 'alice-1', 'shared')$$), t.code($$SELECT lock_convert('never', 'alice-1')$$);
COMMIT;
-- max_lifetime: a conversion prolongs nothing, so it is not refused
SET atomic_lock.max_lifetime = '1 ms';
SELECT status, mode FROM lock_convert('s', 'alice-1');
SELECT status, mode FROM lock_convert('s', 'alice-1', 'shared');
RESET atomic_lock.max_lifetime;

--
-- Transactions
--
SELECT fencing_token AS token FROM lock_status('s') \gset
BEGIN;
SELECT status, mode FROM lock_convert('s', 'alice-1');
SELECT status FROM lock_try_acquire('s', owner => 'bob-1', mode => 'shared');
ROLLBACK;
SELECT mode, fencing_token = :token AS same_token FROM lock_status('s');
SELECT status FROM lock_try_acquire('s', '10 min', 'bob-1', 'shared');
SELECT lock_release('s', 'bob-1');
BEGIN;
SAVEPOINT a;
SELECT status, mode FROM lock_convert('s', 'alice-1');
SAVEPOINT b;
SELECT status, mode FROM lock_convert('s', 'alice-1', 'shared');
ROLLBACK TO b;
SELECT mode FROM lock_status('s');
SELECT status FROM lock_try_acquire('s', owner => 'bob-1', mode => 'shared');
ROLLBACK TO a;
SELECT mode, fencing_token = :token AS same_token FROM lock_status('s');
SELECT status FROM lock_try_acquire('s', '10 min', 'bob-1', 'shared');
SELECT t.code($$SELECT lock_convert('s', 'alice-1')$$);
COMMIT;
SELECT mode, holders FROM lock_status('s');
SELECT lock_release('s', 'bob-1');
-- acquire, convert and release in one transaction, and in one statement
BEGIN;
SELECT status, mode FROM lock_acquire('tx', '10 min', 'alice-1', 'shared');
SELECT status, mode FROM lock_convert('tx', 'alice-1');
SELECT lock_extend('tx', 'alice-1', '1 hour') > clock_timestamp() + interval '59 min' AS extended;
SELECT status, mode FROM lock_convert('tx', 'alice-1', 'shared');
COMMIT;
SELECT mode, ttl_remaining > '59 min' AS extended, lock_release('tx', 'alice-1') FROM lock_status('tx');
SELECT (lock_acquire('one', '1 min', 'alice-1', 'shared')).status AS a, (lock_convert('one', 'alice-1')).mode AS b, (lock_try_acquire('one', '1 min', 'bob-1', 'shared')).status AS c,
	(lock_convert('one', 'alice-1', 'shared')).mode AS d, (lock_try_acquire('one', '1 min', 'bob-1', 'shared')).status AS e, lock_release('one', 'alice-1') AS f, (lock_convert('one', 'bob-1')).mode AS g, lock_release('one', 'bob-1') AS h;
-- a release that is rolled back, and a conversion after it
BEGIN;
SELECT lock_release('s', 'alice-1');
SELECT t.code($$SELECT lock_convert('s', 'alice-1')$$);
ROLLBACK;
SELECT mode FROM lock_convert('s', 'alice-1');
-- a converted holding can be stolen and forced, and a sweep leaves it
SELECT g.status, g.mode FROM lock_steal('s', 'dba-1', 'why') g;
SELECT g.status, g.mode FROM lock_convert('s', 'dba-1', 'shared') g;
SELECT lock_sweep() >= 0 AS swept, lock_is_held('s', 'dba-1');
SELECT force_release('s', 'why'), lock_try_release('s', 'dba-1');
-- a prepared conversion
SELECT current_setting('max_prepared_transactions')::int > 0 AS twophase \gset
\if :twophase
SELECT status FROM lock_acquire('2pc', '10 min', 'alice-1', holder => 'Alice');
BEGIN;
SELECT status, mode FROM lock_convert('2pc', 'alice-1', 'shared');
PREPARE TRANSACTION 'regress_al_convert';
SELECT mode FROM lock_status('2pc');
SELECT status FROM lock_try_acquire('2pc', '10 min', 'bob-1', 'shared');
COMMIT PREPARED 'regress_al_convert';
SELECT status FROM lock_try_acquire('2pc', '10 min', 'bob-1', 'shared');
SELECT mode, holders FROM lock_status('2pc');
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
		answer := concat_ws(' ', answer, (lock_convert(k, 'alice-1')).mode, (lock_try_acquire(k, owner => 'bob-1', mode => 'shared')).status, (lock_convert(k, 'alice-1')).status,
			(lock_convert(k, 'alice-1', 'shared')).mode, (lock_try_acquire(k, owner => 'bob-1', mode => 'shared')).status, t.code(format('SELECT lock_convert(%L, ''alice-1'')', k)),
			lock_try_release(k, 'bob-1'), (lock_convert(k, 'alice-1')).mode, lock_try_release(k, 'alice-1'), t.code(format('SELECT lock_convert(%L, ''alice-1'')', k)));
	END LOOP;
	RETURN answer;
END
$$;
:at_every_level

-- Messages show keys and labels with control characters escaped, and no owner.
SELECT g.status FROM lock_acquire(E'nasty\n', '10 min', 'secret-1', 'shared', holder => E'Al\rice') g;
SELECT g.status FROM lock_acquire(E'nasty\n', '20 min', 'secret-2', 'shared', holder => E'B\tob') g;
SELECT split_part(a, E'\n', 1) AS answer, a ~ 'secret' AS owner_shown FROM unnest(ARRAY[
	t.raises($$SELECT lock_convert(E'nasty\n', 'secret-1')$$), t.timeout($$SELECT lock_convert(E'nasty\n', 'secret-1', wait => '1 ms')$$), t.raises($$SELECT lock_convert(E'nasty\n', 'secret-3')$$)]) a;
