\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- Mode shared: the holdings of one owner, of a key and of all keys
--
-- Properties: an owner holds a key once. An acquire in the other mode changes that holding, or
-- is refused while others share. lock_extend_all and lock_release_all include shared holdings,
-- and change no other owner's.
--
-- Turns red when: one owner holds a key twice; its own acquire shortens a lease or draws
-- another token; a refusal changes the holding; a call for all keys of one owner reaches
-- another owner.

--
-- One owner holds a key once
--
SELECT fencing_token AS token, acquired_at AS since, expires_at AS until FROM lock_acquire('own', '10 min', 'alice-1', 'shared', holder => 'Alice', meta => '{"a": 1}') \gset
-- again: the same grant, never shortened
SELECT s.*, fencing_token = :token AS same_token, acquired_at = :'since' AS same_since, expires_at = :'until' AS same_until FROM lock_acquire('own', '1 min', 'alice-1', 'shared') g, t.show(g) s;
SELECT s.status, fencing_token = :token AS same_token, expires_at >= :'since'::timestamptz + interval '1 hour' AS extended FROM lock_acquire('own', '1 hour', 'alice-1', 'shared', holder => 'Alice at home') g, t.show(g) s;
SELECT holder, holders, meta FROM lock_status('own');
SELECT s.status FROM lock_acquire('own', '1 hour', 'alice-1', 'shared', meta => '{"b": 2}') g, t.show(g) s;
SELECT holder, holders, meta FROM lock_status('own');
-- beside other sharers
SELECT g.status FROM lock_acquire('own', '10 min', 'bob-1', 'shared', holder => 'Bob') g;
SELECT s.status, fencing_token = :token AS same_token FROM lock_try_acquire('own', '1 hour', 'alice-1', 'shared', wait => '1 min') g, t.show(g) s;
SELECT holders FROM lock_status('own');
-- requested exclusively while others share: refused, and the share stays
SELECT t.fingerprint() AS before \gset
SELECT t.raises($$SELECT lock_acquire('own', owner => 'alice-1')$$);
SELECT s.acquired, s.status, s.mode, s.owner, s.holder FROM lock_try_acquire('own', owner => 'alice-1') g, t.show(g) s;
SELECT s.acquired, s.status, s.mode, s.holder FROM lock_try_acquire('own', owner => 'alice-1', wait => '10 ms') g, t.show(g) s;
SELECT t.fingerprint() = :'before' AS unchanged;
-- the only sharer becomes exclusive, with a new token and a lease that is no shorter
SELECT lock_release('own', 'bob-1');
SELECT expires_at AS until FROM lock_status('own') \gset
SELECT s.acquired, s.status, s.mode, s.owner, s.holder, fencing_token > :token AS token_rises, acquired_at = :'since' AS same_since, expires_at = :'until' AS same_until
FROM lock_acquire('own', '1 min', 'alice-1') g, t.show(g) s;
SELECT holder, mode, holders, meta FROM lock_status('own');
SELECT count(*) AS live FROM app_lock WHERE key = 'own' AND NOT released AND expires_at > clock_timestamp();
-- requested shared by the exclusive holder: it stays exclusive
SELECT fencing_token AS token FROM lock_status('own') \gset
SELECT s.acquired, s.status, s.mode, fencing_token = :token AS same_token FROM lock_acquire('own', '1 min', 'alice-1', 'shared') g, t.show(g) s;
SELECT s.status, s.mode, expires_at > clock_timestamp() + interval '119 min' AS extended FROM lock_try_acquire('own', '2 hours', 'alice-1', 'shared') g, t.show(g) s;
SELECT status, mode, holder FROM lock_try_acquire('own', owner => 'bob-1', mode => 'shared');
SELECT lock_release('own', 'alice-1');
SELECT lock_try_release('own', 'alice-1'), lock_is_held('own', 'alice-1'), locked FROM lock_status('own');
-- a longer ttl is granted with the mode
SELECT g.status FROM lock_acquire('own 2', '1 min', 'alice-1', 'shared') g;
SELECT s.status, s.mode, expires_at > clock_timestamp() + interval '59 min' AS longer FROM lock_acquire('own 2', '1 hour', 'alice-1', holder => 'Alice', meta => '7') g, t.show(g) s;
SELECT holder, meta FROM lock_status('own 2');
SELECT lock_extend('own 2', 'alice-1') > clock_timestamp() + interval '59 min' AS repeats_an_hour;
-- the lease in the other mode had expired, or was released: an ordinary grant
SELECT g.status, acquired_at AS since FROM lock_acquire('own 3', '20 ms', 'alice-1', 'shared', meta => '1') g \gset
SELECT t.expire('own 3');
SELECT s.status, s.mode, acquired_at > :'since' AS since_now FROM lock_acquire('own 3', '1 hour', 'alice-1') g, t.show(g) s;
SELECT meta IS NULL AS meta_gone FROM lock_status('own 3');
SELECT lock_release('own 3', 'alice-1');
SELECT s.status, s.mode FROM lock_acquire('own 3', '1 hour', 'alice-1', 'shared') g, t.show(g) s;
SELECT count(*) AS live FROM app_lock WHERE key = 'own 3' AND NOT released;

-- on_reacquire = error: for each holding and each request
SELECT g.status FROM lock_acquire('error x', '1 hour', 'alice-1', 'exclusive', holder => 'Alice') g;
SELECT g.status FROM lock_acquire('error s', '1 hour', 'alice-1', 'shared', holder => 'Alice') g;
SELECT g.status FROM lock_acquire('error s2', '1 hour', 'alice-1', 'shared', holder => 'Alice') g;
SELECT g.status FROM lock_acquire('error s2', '1 hour', 'bob-1', 'shared', holder => 'Bob') g;
SET atomic_lock.on_reacquire = error;
SELECT t.fingerprint() AS before \gset
SELECT k, m, l, split_part(t.raises(format('SELECT lock_acquire(%L, owner => ''alice-1'', mode => %L, lifetime => %L)', k, m, l)), E'\n', 1) AS answer,
	split_part(t.raises(format('SELECT lock_acquire(%L, owner => ''alice-1'', mode => %L, lifetime => %L, wait => ''1 min'')', k, m, l)), E'\n', 1) AS and_wait
FROM unnest(ARRAY['error x', 'error s', 'error s2']) k, unnest(ARRAY['exclusive', 'shared']) m, unnest(ARRAY['lease', 'session', 'transaction']) l ORDER BY 1, 2, 3;
SELECT k, m, l, g.acquired, g.status, g.mode, g.owner, g.holder, g.waited
FROM unnest(ARRAY['error x', 'error s', 'error s2']) k, unnest(ARRAY['exclusive', 'shared']) m, unnest(ARRAY['lease', 'session', 'transaction']) l,
	LATERAL lock_try_acquire(k, owner => 'alice-1', mode => m, lifetime => l) g ORDER BY 1, 2, 3;
SELECT t.raises($$SELECT lock_acquire('error s', owner => 'alice-1', mode => 'shared')$$);
SELECT t.fingerprint() = :'before' AS unchanged;
-- it applies to live holdings of this owner only
SELECT g.status FROM lock_acquire('error s', '1 hour', 'bob-1', 'shared') g;
SELECT lock_release('error s', 'alice-1');
SELECT g.status FROM lock_acquire('error s', '1 hour', 'alice-1', 'shared') g;
RESET atomic_lock.on_reacquire;

--
-- All holdings of an owner
--
SELECT lock_release_all('alice-1') > 0 AS released;
SELECT count(*) FROM generate_series(1, 3) i, LATERAL lock_acquire('all s:' || i, '10 min', 'alice-1', 'shared');
SELECT count(*) FROM generate_series(1, 2) i, LATERAL lock_acquire('all x:' || i, '10 min', 'alice-1');
SELECT count(*) FROM generate_series(1, 3) i, LATERAL lock_acquire('all s:' || i, '10 min', 'bob-1', 'shared');
SELECT lock_extend_all('alice-1', '1 hour');
SELECT owner, count(*), bool_and(expires_at > clock_timestamp() + interval '59 min') AS extended FROM app_lock WHERE key LIKE 'all %' GROUP BY 1 ORDER BY 1;
SELECT lock_release('all s:1', 'alice-1');
SELECT lock_release_all('alice-1');
SELECT key, holder IS NOT NULL AS held, holders FROM lock_status() WHERE key LIKE 'all %' ORDER BY key;
SELECT lock_release_all('alice-1'), lock_release_all('bob-1');
-- of a generated owner
SELECT owner FROM lock_acquire('all g', mode => 'shared') \gset
SELECT g.status FROM lock_acquire('all g', '1 hour', 'bob-1', 'shared') g;
SELECT lock_extend_all(:'owner', '1 hour'), lock_release_all(:'owner'), lock_release_all(:'owner'), lock_release_all('bob-1');
