\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- lock_acquire: arguments, defaults, the refusal, and leases that have ended
--
-- Properties: each argument and setting has its documented effect and default. A refusal names
-- the holder, never the owner, and writes nothing. A released or expired key is free at once,
-- for a grant with a higher token. Times come from the clock and not from the start of the
-- transaction.
--
-- Turns red when: a default or limit is not applied; an expired lease still refuses; `now()`
-- decides when a lease ends; a refusal writes.
--

-- Key only: generated owner, default ttl, the session's label
SELECT s.* FROM lock_acquire('order:1') g, t.show(g) s;

-- All arguments, by name
SELECT s.* FROM lock_acquire(key => 'order:2', ttl => '90 seconds', owner => 'alice-1',
	mode => 'exclusive', wait => '0', holder => 'Alice, order desk',
	meta => '{"screen": 7}', lifetime => 'lease') g, t.show(g) s;
SELECT meta FROM lock_status('order:2');

-- All arguments, by position
SELECT s.* FROM lock_acquire('order:3', '1 ms', 'bob-1', 'exclusive', '0', 'Bob', '[1, 2]', 'lease') g, t.show(g) s;

-- The longest ttl; a day is 24 hours.
SELECT s.seconds FROM lock_acquire('order:4', '24 hours') g, t.show(g) s;
SELECT s.seconds FROM lock_acquire('order:5', '1 day') g, t.show(g) s;
SELECT s.seconds FROM lock_acquire('order:6', '1 day -23 hours') g, t.show(g) s;

-- A ttl is precise to the microsecond.
SELECT extract(epoch FROM expires_at) - extract(epoch FROM acquired_at) AS seconds
FROM lock_acquire('order:7', '1 hour 0.001001 seconds');

-- Each generated owner is new, and tokens rise.
SELECT a.owner <> b.owner AS owners_differ, a.fencing_token < b.fencing_token AS token_rises
FROM lock_acquire('order:8') a, lock_acquire('order:9') b;

-- NULL stands for the default where there is one; so does an empty label.
SELECT s.* FROM lock_acquire('order:10', NULL, NULL, 'exclusive', '0', NULL, NULL) g, t.show(g) s;
SELECT s.holder FROM lock_acquire('order:11', holder => '') g, t.show(g) s;
SET application_name = 'order desk 3';
SELECT s.holder FROM lock_acquire('order:12') g, t.show(g) s;
SET application_name = '';
SELECT g.holder = current_user AS role_name FROM lock_acquire('order:13') g;
RESET application_name;
SELECT meta FROM lock_status('order:13');

-- Refused because the key is held: the error gives the key, the holder's label, the start, mode
-- and end of the lease, and what to do, but never the owner.
SELECT t.raises($$SELECT lock_acquire('order:2')$$);
SELECT t.raises($$SELECT lock_acquire('order:2', owner => 'bob-1')$$);
\set VERBOSITY sqlstate
SELECT lock_acquire('order:2');
SELECT lock_acquire('order:1', owner => 'bob-1');
\set VERBOSITY default

-- A refusal changes nothing and assigns no transaction id.
SELECT t.fingerprint() AS before \gset
BEGIN;
SELECT t.raises($$SELECT lock_acquire('order:1')$$) ~ '^55P03' AS refused;
ROLLBACK;
BEGIN;
SELECT acquired FROM lock_try_acquire('order:2');
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_transaction_id;
COMMIT;
SELECT t.fingerprint() = :'before' AS unchanged;

-- Keys are compared byte by byte.
SELECT k, s.acquired FROM unnest(ARRAY['Order:2', 'order:2 ', ' order:2', 'order:02', ' ', '  ']) k,
	lock_acquire(k) g, t.show(g) s;

-- An expired lease is free at once for any owner. The new grant has a higher token, and nothing
-- of the old lease remains.
SELECT fencing_token AS old FROM lock_acquire('short', '20 ms', 'alice-1', holder => 'Alice', meta => '{"a": 1}') \gset
SELECT t.expire('short');
SELECT s.*, fencing_token > :old AS token_rises
FROM lock_acquire('short', '1 min', 'bob-1', holder => 'Bob') g, t.show(g) s;
SELECT meta IS NULL AS meta_gone FROM lock_status('short');

-- The same holds for a released lease, and where the former owner acquires again.
SELECT fencing_token AS old FROM lock_status('short') \gset
SELECT lock_release('short', 'bob-1');
SELECT s.*, fencing_token > :old AS token_rises
FROM lock_acquire('short', '20 ms', 'bob-1') g, t.show(g) s;
SELECT fencing_token AS old FROM app_lock WHERE key = 'short' \gset
SELECT t.expire('short');
SELECT s.status, fencing_token > :old AS token_rises
FROM lock_acquire('short', '1 min', 'bob-1') g, t.show(g) s;

-- The clock decides, not the start of the transaction.
BEGIN;
SELECT pg_sleep(0.03);
SELECT acquired_at >= now() + interval '30 ms' AS acquired_later,
	expires_at >= now() + interval '1 min 30 ms' AS expires_later,
	acquired_at <= clock_timestamp() AS not_in_future
FROM lock_acquire('clock', '1 min');
COMMIT;

-- A lease that is acquired and expires within one transaction is free in that transaction.
BEGIN;
SELECT acquired FROM lock_acquire('in one', '20 ms', 'alice-1');
SELECT t.expire('in one');
SELECT acquired, owner FROM lock_acquire('in one', '1 min', 'bob-1');
COMMIT;
SELECT lock_is_held('in one', 'bob-1');

-- A day is 24 hours even if daylight saving time begins in 12 hours.
SELECT set_config('TimeZone', format('AAA0BBB,%s/%s,%s/0', d, h, (d + 100) % 365), false) IS NOT NULL AS set
FROM (SELECT extract(doy FROM at)::int - 1 AS d, extract(hour FROM at) AS h
	FROM (SELECT now() AT TIME ZONE 'UTC' + interval '12 hours') y (at)) x;
SELECT now() + interval '1 day' <> now() + interval '24 hours' AS clock_is_put_forward;
SELECT s.seconds FROM lock_acquire('zone', '1 day') g, t.show(g) s;
SELECT extract(epoch FROM ttl_remaining) BETWEEN 86000 AND 86400 AS remaining FROM lock_status('zone');
RESET TimeZone;

-- Defaults come from settings.
SET atomic_lock.default_ttl = '2 min';
SELECT s.seconds FROM lock_acquire('default ttl') g, t.show(g) s;
SET atomic_lock.default_ttl = '25 h';
SELECT t.raises($$SELECT lock_acquire('too long by default')$$);
RESET atomic_lock.default_ttl;
SET atomic_lock.max_ttl = '10 s';
SELECT t.raises($$SELECT lock_acquire('too long', '10.000001 s')$$);
SELECT s.seconds FROM lock_acquire('just right', '10 s') g, t.show(g) s;
RESET atomic_lock.max_ttl;
SET atomic_lock.owner = 'session-7';
SELECT s.owner FROM lock_acquire('default owner') g, t.show(g) s;
SELECT s.owner FROM lock_acquire('given owner', owner => 'alice-1') g, t.show(g) s;
SELECT s.status, s.owner FROM lock_acquire('default owner') g, t.show(g) s;
SET atomic_lock.owner = '';
SELECT s.owner FROM lock_acquire('no default owner') g, t.show(g) s;
RESET atomic_lock.owner;

-- A ttl longer than max_lifetime is refused.
SET atomic_lock.max_lifetime = '1 min';
SELECT t.raises($$SELECT lock_acquire('too long', '61 s')$$);
SELECT t.raises($$SELECT lock_acquire('too long')$$);
SELECT s.seconds FROM lock_acquire('lifetime', '1 min') g, t.show(g) s;
RESET atomic_lock.max_lifetime;

-- All modes and lifetimes; see shared.sql, session.sql and transaction.sql.
SELECT m, l, s.status, s.mode, s.seconds, lock_try_release('any', 'alice-1') FROM unnest(ARRAY['exclusive', 'shared']) m, unnest(ARRAY['lease', 'session', 'transaction']) l,
	LATERAL lock_acquire('any', owner => 'alice-1', mode => m, lifetime => l) g, t.show(g) s;

-- The error for an invalid word lists the valid ones.
SELECT t.raises($$SELECT lock_acquire('new', mode => 'update')$$);
SELECT t.raises($$SELECT lock_acquire('new', lifetime => 'for ever')$$);
SELECT t.raises($$SELECT lock_acquire('new', wait => '5 min 1 ms')$$);
SELECT t.raises($$SELECT lock_acquire('new', wait => '-1 ms')$$);
SELECT t.raises($$SELECT lock_acquire('new', ttl => '0')$$);
SELECT t.raises($$SELECT lock_acquire('new', ttl => '1 month')$$);
SELECT t.raises($$SELECT lock_acquire('')$$);
SELECT t.raises($$SELECT lock_acquire(NULL)$$);
SELECT t.raises($$SELECT lock_acquire('new', owner => '')$$);
SELECT t.raises($$SELECT lock_acquire('new', holder => repeat('x', 256))$$);
SELECT t.raises($$SELECT lock_acquire('new', meta => to_jsonb(repeat('x', 10000)))$$);
SELECT locked FROM lock_status('new');
