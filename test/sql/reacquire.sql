\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- lock_acquire is idempotent for an owner
--
-- Properties: an owner that acquires again keeps its grant, token and start. The lease becomes
-- longer or stays as it is, within max_lifetime. Label and meta stay unless passed.
-- on_reacquire = error refuses instead; as an argument it overrides the setting.
--
-- Turns red when: a repetition gives a new token or shortens the lease; a released or expired
-- lease counts as the owner's; on_reacquire applies to another owner.
--
SELECT fencing_token AS token, acquired_at AS since, expires_at AS until
FROM lock_acquire('k', '10 min', 'alice-1', holder => 'Alice', meta => '{"a": 1}') \gset

-- A repetition returns the same grant; a shorter or equal ttl does not shorten it.
SELECT s.*, fencing_token = :token AS same_token, acquired_at = :'since' AS same_since,
	expires_at = :'until' AS same_until
FROM lock_acquire('k', '1 min', 'alice-1') g, t.show(g) s;
SELECT s.*, fencing_token = :token AS same_token, acquired_at = :'since' AS same_since,
	expires_at = :'until' AS same_until
FROM lock_try_acquire('k', '1 min', 'alice-1') g, t.show(g) s;

-- A longer ttl extends the lease, counted from now.
SELECT s.status, fencing_token = :token AS same_token, acquired_at = :'since' AS same_since,
	expires_at >= :'since'::timestamptz + interval '1 hour'
		AND expires_at <= clock_timestamp() + interval '1 hour' AS extended
FROM lock_acquire('k', '1 hour', 'alice-1') g, t.show(g) s;

-- Label and meta stay unless passed.
SELECT holder, meta FROM lock_status('k');
SELECT s.status, s.holder FROM lock_acquire('k', owner => 'alice-1', holder => 'Alice at home') g, t.show(g) s;
SELECT holder, meta FROM lock_status('k');
SELECT s.status, s.holder FROM lock_acquire('k', owner => 'alice-1', meta => '{"b": 2}') g, t.show(g) s;
SELECT holder, meta FROM lock_status('k');
SELECT s.status, s.holder FROM lock_acquire('k', owner => 'alice-1', holder => '') g, t.show(g) s;
SELECT s.status FROM lock_acquire('k', owner => 'alice-1', meta => 'null') g, t.show(g) s;
SELECT meta FROM lock_status('k');

-- Repetitions in one statement and in one transaction.
BEGIN;
SELECT count(*), count(DISTINCT fencing_token) AS tokens, min(status), max(status)
FROM generate_series(1, 5) i, LATERAL lock_acquire('fresh' || i * 0, '1 min', 'alice-1');
SELECT s.status FROM lock_acquire('fresh0', '1 min', 'alice-1') g, t.show(g) s;
COMMIT;

-- The owner may come from the setting, or be a generated one.
SET atomic_lock.owner = 'alice-1';
SELECT s.status FROM lock_acquire('k') g, t.show(g) s;
RESET atomic_lock.owner;
SELECT owner AS generated FROM lock_acquire('generated') \gset
SELECT s.status, g.owner = :'generated' AS same_owner FROM lock_acquire('generated', owner => :'generated') g, t.show(g) s;

-- Owners are compared byte by byte, too.
SELECT o, status FROM unnest(ARRAY['Alice-1', 'alice-1 ', 'alice-', 'alice-10']) o,
	LATERAL lock_try_acquire('k', owner => o);

-- No repetition: the lease had expired, or was released.
SELECT fencing_token AS token FROM lock_acquire('short', '20 ms', 'alice-1') \gset
SELECT t.expire('short');
SELECT s.status, fencing_token > :token AS token_rises FROM lock_acquire('short', '1 min', 'alice-1') g, t.show(g) s;
SELECT lock_release('short', 'alice-1');
SELECT s.status, fencing_token > :token AS token_rises FROM lock_acquire('short', '1 min', 'alice-1') g, t.show(g) s;

-- Reacquiring does not extend a lease beyond max_lifetime: unchanged, no error.
SET atomic_lock.max_lifetime = '1 h';
SELECT acquired_at AS since FROM lock_acquire('old', '30 min', 'alice-1') \gset
SELECT s.status, s.seconds FROM lock_acquire('old', '1 hour', 'alice-1') g, t.show(g) s;
SELECT s.status, s.seconds FROM lock_acquire('old', '1 hour', 'alice-1') g, t.show(g) s;
-- A ttl above max_lifetime is an invalid argument, as for a new lease.
SELECT t.raises($$SELECT lock_acquire('old', '61 min', 'alice-1')$$);
SELECT acquired_at = :'since' AS same_since FROM lock_status('old');
RESET atomic_lock.max_lifetime;

-- Lowering the setting does not shorten existing leases.
SELECT s.seconds FROM lock_acquire('older', '2 hours', 'alice-1') g, t.show(g) s;
SET atomic_lock.max_lifetime = '1 h';
SELECT s.status, s.seconds FROM lock_acquire('older', '1 min', 'alice-1') g, t.show(g) s;
RESET atomic_lock.max_lifetime;

-- A policy that closes the key later does not refuse owners their own shares.
SELECT acquired FROM lock_acquire('closed', owner => 'alice-1');
SELECT lock_release('closed', 'alice-1');
SELECT acquired FROM lock_acquire('closed', owner => 'bob-1', mode => 'shared');
SELECT lock_set_policy('closed', min_hold => '1 hour');
SELECT s.status FROM lock_acquire('closed', owner => 'bob-1', mode => 'shared') g, t.show(g) s;
SELECT s.status FROM lock_try_acquire('closed', owner => 'alice-1', mode => 'shared') g, t.show(g) s;
SELECT lock_drop_policy('closed');

-- on_reacquire = error
SET atomic_lock.on_reacquire = error;
SELECT t.fingerprint() AS before \gset
SELECT t.raises($$SELECT lock_acquire('k', owner => 'alice-1')$$);
SELECT s.acquired, s.status, s.owner, s.token FROM lock_try_acquire('k', owner => 'alice-1') g, t.show(g) s;
SELECT t.raises($$SELECT lock_acquire('k', owner => 'bob-1')$$);
SELECT t.fingerprint() = :'before' AS unchanged;
\set VERBOSITY sqlstate
SELECT lock_acquire('k', owner => 'alice-1');
\set VERBOSITY default
-- It applies to live leases only.
SELECT acquired FROM lock_acquire('short2', '20 ms', 'alice-1');
SELECT t.expire('short2');
SELECT s.status FROM lock_acquire('short2', '1 min', 'alice-1') g, t.show(g) s;
SELECT lock_release('short2', 'alice-1');
SELECT s.status FROM lock_acquire('short2', '1 min', 'alice-1') g, t.show(g) s;
RESET atomic_lock.on_reacquire;

-- Reacquiring with a longer ttl sets the ttl that lock_extend repeats.
SELECT s.status FROM lock_acquire('length', '1 min', 'alice-1') g, t.show(g) s;
SELECT s.status FROM lock_acquire('length', '1 hour', 'alice-1') g, t.show(g) s;
SELECT lock_extend('length', 'alice-1') > clock_timestamp() + interval '59 min' AS repeats_an_hour;

--
-- The argument on_reacquire overrides the setting
--
SELECT status FROM lock_acquire('arg', owner => 'alice-1', holder => 'Alice');
CREATE FUNCTION t.asked(setting text, argument text, o text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM set_config('atomic_lock.on_reacquire', setting, true);
	RETURN t.raises(format('SELECT lock_acquire(%L, owner => %L, on_reacquire => %L)', 'arg', o, argument)) || ' / '
		|| (SELECT concat_ws(' ', acquired, status, holder) FROM lock_try_acquire('arg', owner => o, on_reacquire => argument));
END
$$;
SELECT s AS setting, coalesce(a, 'NULL') AS argument, t.asked(s, a, 'alice-1') AS mine FROM unnest(ARRAY['extend', 'error']) s, unnest(ARRAY['extend', 'error', NULL]) a;
SELECT t.state(t.asked('error', 'error', 'bob-1')) AS of_another;
SELECT t.raises($$SELECT lock_acquire('arg', owner => 'alice-1', on_reacquire => 'Error')$$), t.state(t.raises($$SELECT lock_try_acquire('arg', on_reacquire => '')$$));
-- it applies to every request: shared, or with lifetime transaction
SELECT status FROM lock_try_acquire('arg', owner => 'alice-1', mode => 'shared', on_reacquire => 'error') UNION ALL SELECT status FROM lock_try_acquire('arg', owner => 'alice-1', lifetime => 'transaction', on_reacquire => 'error');
SET atomic_lock.on_reacquire = error;
SELECT key, acquired, status FROM lock_try_acquire_all('{arg,other}', owner => 'alice-1');
SELECT lock_is_held('other', 'alice-1');
RESET atomic_lock.on_reacquire;
