\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- lock_extend and lock_try_extend: the new end of a lease
--
-- Properties: with ttl the new end is the present time (not the start of the transaction) plus
-- ttl, later or earlier than before; token, start, label and meta stay. Without ttl the last
-- length is repeated. Only the owner of a live lease can extend, and max_lifetime caps the end.
--
-- Turns red when: an expired or foreign lease is extended; an extension ends after
-- max_lifetime, or one that would end before it is refused; a refused call writes; extending
-- adds rows.
--
SELECT fencing_token AS token, acquired_at AS since, expires_at AS until
FROM lock_acquire('k', '10 min', 'alice-1', holder => 'Alice', meta => '{"a": 1}') \gset

-- Without ttl: the last ttl again, counted from now. That this never shortens the lease is
-- tested below, after the reacquires.
SELECT lock_extend('k', 'alice-1') > :'until' AS later;
SELECT lock_extend('k', 'alice-1') BETWEEN clock_timestamp() + interval '9 min' AND clock_timestamp() + interval '10 min' AS ten_minutes;

-- With ttl: longer or shorter, counted from now; the token and the rest are kept.
SELECT lock_extend('k', 'alice-1', '1 hour') BETWEEN clock_timestamp() + interval '59 min' AND clock_timestamp() + interval '1 hour' AS an_hour;
SELECT lock_extend('k', 'alice-1', '1 min') BETWEEN clock_timestamp() + interval '50 s' AND clock_timestamp() + interval '1 min' AS a_minute;
SELECT lock_try_extend('k', owner => 'alice-1', ttl => '2 min') BETWEEN clock_timestamp() + interval '110 s' AND clock_timestamp() + interval '2 min' AS two_minutes;
SELECT fencing_token = :token AS same_token, acquired_at = :'since' AS same_since, holder, meta FROM lock_status('k');
-- The last ttl asked for is repeated.
SELECT lock_extend('k', 'alice-1', '30 min') IS NOT NULL;
SELECT lock_extend('k', 'alice-1') > clock_timestamp() + interval '29 min' AS half_an_hour;
SELECT s.status FROM lock_acquire('k', '1 hour', 'alice-1') g, t.show(g) s;
SELECT lock_extend('k', 'alice-1', '5 min') < clock_timestamp() + interval '6 min' AS shortened;
SELECT lock_extend('k', 'alice-1') < clock_timestamp() + interval '6 min' AS still_short;
-- Reacquiring with a shorter ttl keeps the end, and so does extending without ttl after that.
SELECT s.status FROM lock_acquire('k', '2 hours', 'alice-1') g, t.show(g) s;
SELECT s.status FROM lock_acquire('k', '1 min', 'alice-1') g, t.show(g) s;
SELECT lock_extend('k', 'alice-1') > clock_timestamp() + interval '119 min' AS not_shortened;

-- A lease shortened to 1 ms expires, and cannot be revived.
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
-- Only an expired lease of another owner is left: LK002, as for a free key.
SELECT t.raises($$SELECT lock_extend('k', 'bob-1')$$);
SELECT lock_try_extend('k', 'bob-1') IS NULL AS refused;
SELECT t.fingerprint() = :'before' AS unchanged;

-- The clock decides, not the start of the transaction.
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

-- Never acquired
SELECT t.raises($$SELECT lock_extend('never', 'alice-1')$$);
SELECT lock_try_extend('never', 'alice-1') IS NULL AS refused;

-- The SQLSTATE, without t.raises()
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

-- ttl has the range that it has in lock_acquire: 1 ms to max_ttl.
SELECT ttl, t.raises(format('SELECT lock_extend(%L, %L, %L)', 'k', 'alice-1', ttl)),
	t.code(format('SELECT lock_try_extend(%L, %L, %L)', 'k', 'alice-1', ttl)) AS try
FROM unnest(ARRAY['0', '-1 s', '999 us', '1 ms', '24 hours', '24:00:00.000001', '1 month', '178956970 years']) ttl;
-- max_ttl was lowered after the grant: an explicit ttl above it is refused, not cut.
SELECT acquired FROM lock_acquire('long', '20 hours', 'alice-1');
SET atomic_lock.max_ttl = '1 h';
SELECT t.code($$SELECT lock_extend('long', 'alice-1', '20 hours')$$);
RESET atomic_lock.max_ttl;

--
-- atomic_lock.max_lifetime
--
SET atomic_lock.max_lifetime = '1 h';
SELECT acquired_at AS since FROM lock_acquire('life', '30 min', 'alice-1') \gset
-- an end before the limit
SELECT lock_extend('life', 'alice-1', '50 min') < :'since'::timestamptz + interval '1 hour' AS within;
-- a later end is cut to the limit
SELECT lock_extend('life', 'alice-1', '1 hour') = :'since'::timestamptz + interval '1 hour' AS capped;
-- at the limit, each extension is refused
SELECT t.fingerprint() AS before \gset
SELECT t.raises($$SELECT lock_extend('life', 'alice-1', '1 hour')$$);
SELECT t.raises($$SELECT lock_extend('life', 'alice-1', '2 hours')$$) ~ '^LK008' AS refused;
SELECT t.raises($$SELECT lock_extend('life', 'alice-1')$$) ~ '^LK008' AS refused;
SELECT lock_try_extend('life', 'alice-1', '1 hour') IS NULL AS refused;
SELECT lock_try_extend('life', 'alice-1') IS NULL AS refused;
SELECT t.fingerprint() = :'before' AS unchanged;
-- another owner gets LK003, not LK008
SELECT t.code($$SELECT lock_extend('life', 'bob-1', '1 hour')$$);
-- shortening is allowed
SELECT lock_extend('life', 'alice-1', '1 min') < clock_timestamp() + interval '61 s' AS shortened;
-- and then extending again
SELECT lock_extend('life', 'alice-1', '1 hour') = :'since'::timestamptz + interval '1 hour' AS capped;
\set VERBOSITY sqlstate
SELECT lock_extend('life', 'alice-1', '1 hour');
\set VERBOSITY default
-- max_lifetime is lowered so that the lease already ends after the limit: a later end is
-- refused, and the present end stays
SELECT expires_at AS until FROM lock_status('life') \gset
SET atomic_lock.max_lifetime = '10 min';
SELECT t.code($$SELECT lock_extend('life', 'alice-1')$$);
SELECT t.code($$SELECT lock_extend('life', 'alice-1', '20 min')$$);
SELECT expires_at = :'until' AS unchanged FROM lock_status('life');
RESET atomic_lock.max_lifetime;
-- without max_lifetime there is no limit
SELECT lock_extend('life', 'alice-1', '2 hours') > :'since'::timestamptz + interval '2 hours' AS extended;

-- Extending many times leaves one row.
SELECT count(*) FROM generate_series(1, 100) i WHERE lock_extend('k', 'alice-1', i * interval '1 min') IS NOT NULL;
SELECT count(*) FROM app_lock WHERE key = 'k';
