\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- lock_extend and lock_try_extend
--
SELECT fencing_token AS token, acquired_at AS since, expires_at AS until
FROM lock_acquire('k', '10 min', 'alice-1', holder => 'Alice', meta => '{"a": 1}') \gset

-- Without a length: the last one again, counted from now, never shorter.
SELECT lock_extend('k', 'alice-1') > :'until' AS later;
SELECT lock_extend('k', 'alice-1') BETWEEN clock_timestamp() + interval '9 min' AND clock_timestamp() + interval '10 min' AS ten_minutes;

-- With one: longer or shorter, counted from now; the token and the rest are kept.
SELECT lock_extend('k', 'alice-1', '1 hour') BETWEEN clock_timestamp() + interval '59 min' AND clock_timestamp() + interval '1 hour' AS an_hour;
SELECT lock_extend('k', 'alice-1', '1 min') BETWEEN clock_timestamp() + interval '50 s' AND clock_timestamp() + interval '1 min' AS a_minute;
SELECT lock_try_extend('k', owner => 'alice-1', ttl => '2 min') BETWEEN clock_timestamp() + interval '110 s' AND clock_timestamp() + interval '2 min' AS two_minutes;
SELECT fencing_token = :token AS same_token, acquired_at = :'since' AS same_since, holder, meta FROM lock_status('k');
-- The length last asked for is what is repeated.
SELECT lock_extend('k', 'alice-1', '30 min') IS NOT NULL;
SELECT lock_extend('k', 'alice-1') > clock_timestamp() + interval '29 min' AS half_an_hour;
SELECT s.status FROM lock_acquire('k', '1 hour', 'alice-1') g, t.show(g) s;
SELECT lock_extend('k', 'alice-1', '5 min') < clock_timestamp() + interval '6 min' AS shortened;
SELECT lock_extend('k', 'alice-1') < clock_timestamp() + interval '6 min' AS still_short;
-- Asking for less than what is left by acquiring again leaves what is left.
SELECT s.status FROM lock_acquire('k', '2 hours', 'alice-1') g, t.show(g) s;
SELECT s.status FROM lock_acquire('k', '1 min', 'alice-1') g, t.show(g) s;
SELECT lock_extend('k', 'alice-1') > clock_timestamp() + interval '119 min' AS not_shortened;

-- Shortened to next to nothing it runs out, and cannot be revived.
SELECT lock_extend('k', 'alice-1', '1 ms') IS NOT NULL;
SELECT t.expire('k');
SELECT t.fingerprint() AS before \gset
SELECT t.raises($$SELECT lock_extend('k', 'alice-1')$$);
SELECT t.raises($$SELECT lock_extend('k', 'alice-1', '1 hour')$$) ~ '^LK005' AS refused;
BEGIN;
SELECT lock_try_extend('k', 'alice-1') IS NULL AS refused;
SELECT lock_try_extend('k', 'alice-1', '1 hour') IS NULL AS refused;
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_transaction_id;
COMMIT;
-- Somebody else's expired lease is no lease.
SELECT t.raises($$SELECT lock_extend('k', 'bob-1')$$);
SELECT lock_try_extend('k', 'bob-1') IS NULL AS refused;
SELECT t.fingerprint() = :'before' AS unchanged;

-- The clock counts, not the start of the transaction.
BEGIN;
SELECT acquired FROM lock_acquire('clock', '1 ms', 'alice-1');
SELECT t.expire('clock');
SELECT lock_try_extend('clock', 'alice-1') IS NULL AS refused, lock_try_release('clock', 'alice-1');
SELECT acquired FROM lock_acquire('clock', '1 min', 'alice-1');
SELECT lock_extend('clock', 'alice-1', '1 hour') >= statement_timestamp() + interval '1 hour' AS from_now;
COMMIT;

-- Held by another owner
SELECT acquired FROM lock_acquire('k', '10 min', 'bob-1', holder => 'Bob');
SELECT t.fingerprint() AS before \gset
SELECT t.raises($$SELECT lock_extend('k', 'alice-1')$$);
SELECT lock_try_extend('k', 'alice-1') IS NULL AS refused;
SELECT t.fingerprint() = :'before' AS unchanged;

-- Released
SELECT lock_release('k', 'bob-1');
SELECT t.raises($$SELECT lock_extend('k', 'bob-1')$$);
SELECT lock_try_extend('k', 'bob-1') IS NULL AS refused;
SELECT t.raises($$SELECT lock_extend('k', 'alice-1')$$);
SELECT lock_try_extend('k', 'alice-1') IS NULL AS refused;

-- Never taken
SELECT t.raises($$SELECT lock_extend('never', 'alice-1')$$);
SELECT lock_try_extend('never', 'alice-1') IS NULL AS refused;

-- The error as an application gets it
\set VERBOSITY sqlstate
SELECT lock_extend('never', 'alice-1');
SELECT lock_extend('k', 'bob-1');
\set VERBOSITY default

-- The owner may come from the setting.
SELECT acquired FROM lock_acquire('k', '10 min', 'alice-1');
SELECT t.raises($$SELECT lock_extend('k')$$);
SELECT t.raises($$SELECT lock_try_extend('k')$$);
SET atomic_lock.owner = 'alice-1';
SELECT lock_extend('k') > clock_timestamp() AS extended;
SELECT lock_try_extend('k', ttl => '1 hour') > clock_timestamp() + interval '59 min' AS extended;
RESET atomic_lock.owner;

-- The length is checked as for an acquire.
SELECT ttl, t.raises(format('SELECT lock_extend(%L, %L, %L)', 'k', 'alice-1', ttl)),
	t.code(format('SELECT lock_try_extend(%L, %L, %L)', 'k', 'alice-1', ttl)) AS try
FROM unnest(ARRAY['0', '-1 s', '999 us', '1 ms', '24 hours', '24:00:00.000001', '1 month', '178956970 years']) ttl;
-- A ttl from before a lower max_ttl is not repeated in silence, nor cut.
SELECT acquired FROM lock_acquire('long', '20 hours', 'alice-1');
SET atomic_lock.max_ttl = '1 h';
SELECT t.code($$SELECT lock_extend('long', 'alice-1', '20 hours')$$);
RESET atomic_lock.max_ttl;

--
-- atomic_lock.max_lifetime
--
SET atomic_lock.max_lifetime = '1 h';
SELECT acquired_at AS since FROM lock_acquire('life', '30 min', 'alice-1') \gset
-- within it
SELECT lock_extend('life', 'alice-1', '50 min') < :'since'::timestamptz + interval '1 hour' AS within;
-- up to it
SELECT lock_extend('life', 'alice-1', '1 hour') = :'since'::timestamptz + interval '1 hour' AS capped;
-- not beyond it
SELECT t.fingerprint() AS before \gset
SELECT t.raises($$SELECT lock_extend('life', 'alice-1', '1 hour')$$);
SELECT t.raises($$SELECT lock_extend('life', 'alice-1', '2 hours')$$) ~ '^LK008' AS refused;
SELECT t.raises($$SELECT lock_extend('life', 'alice-1')$$) ~ '^LK008' AS refused;
SELECT lock_try_extend('life', 'alice-1', '1 hour') IS NULL AS refused;
SELECT lock_try_extend('life', 'alice-1') IS NULL AS refused;
SELECT t.fingerprint() = :'before' AS unchanged;
-- wrong owners are told nothing about it
SELECT t.code($$SELECT lock_extend('life', 'bob-1', '1 hour')$$);
-- but it may be shortened
SELECT lock_extend('life', 'alice-1', '1 min') < clock_timestamp() + interval '61 s' AS shortened;
-- and then extended again
SELECT lock_extend('life', 'alice-1', '1 hour') = :'since'::timestamptz + interval '1 hour' AS capped;
\set VERBOSITY sqlstate
SELECT lock_extend('life', 'alice-1', '1 hour');
\set VERBOSITY default
-- lowered below what the lease has: nothing to gain, nothing taken away
SELECT expires_at AS until FROM lock_status('life') \gset
SET atomic_lock.max_lifetime = '10 min';
SELECT t.code($$SELECT lock_extend('life', 'alice-1')$$);
SELECT t.code($$SELECT lock_extend('life', 'alice-1', '20 min')$$);
SELECT expires_at = :'until' AS unchanged FROM lock_status('life');
RESET atomic_lock.max_lifetime;
-- without the limit there is none
SELECT lock_extend('life', 'alice-1', '2 hours') > :'since'::timestamptz + interval '2 hours' AS extended;

-- Extending many times leaves one row.
SELECT count(*) FROM generate_series(1, 100) i WHERE lock_extend('k', 'alice-1', i * interval '1 min') IS NOT NULL;
SELECT count(*) FROM app_lock WHERE key = 'k';
