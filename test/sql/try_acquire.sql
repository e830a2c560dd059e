\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- lock_try_acquire: like lock_acquire, but a refusal is an answer
--
-- Properties: a free key is granted as by lock_acquire. A refusal is a row with the holder's
-- label and lease, without owner and token, and writes nothing. Invalid arguments still raise.
--
-- Turns red when: a refusal raises, writes, or shows owner or token; an invalid argument gets
-- an answer.
--

-- Free: granted as by lock_acquire.
SELECT s.* FROM lock_try_acquire('order:1') g, t.show(g) s;
SELECT s.* FROM lock_try_acquire('order:2', '90 s', 'alice-1', 'exclusive', '0', 'Alice', '{"a": 1}', 'lease') g, t.show(g) s;

-- Held: the holder, and when its lease began and ends; neither owner nor token.
SELECT s.* FROM lock_try_acquire('order:2', owner => 'bob-1', holder => 'Bob') g, t.show(g) s;
SELECT s.* FROM lock_try_acquire('order:2') g, t.show(g) s;
SELECT g.acquired_at = s.acquired_at AS since, g.expires_at = s.expires_at AS until
FROM lock_try_acquire('order:2') g, lock_status('order:2') s;

-- Bad arguments raise all the same, whether the key is free or held.
SELECT k, a, t.code(format('SELECT lock_try_acquire(%L, %s)', k, a))
FROM unnest(ARRAY['order:2', 'free']) k,
	unnest(ARRAY['ttl => ''0''', 'owner => ''''', 'mode => ''x''', 'mode => NULL',
		'wait => ''-1 s''', 'wait => ''1 h''', 'lifetime => ''x''', 'holder => repeat(''x'', 256)']) a ORDER BY 1, 2;

-- A refusal changes nothing, nor do a thousand of them.
SELECT t.fingerprint() AS before \gset
BEGIN;
SELECT count(*) FILTER (WHERE acquired) AS granted, count(DISTINCT status) AS statuses
FROM generate_series(1, 1000) i, LATERAL lock_try_acquire('order:' || 1 + i % 2, owner => 'bob-' || i);
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_transaction_id;
COMMIT;
SELECT t.fingerprint() = :'before' AS unchanged;

-- Expired and released keys are free.
SELECT acquired FROM lock_try_acquire('short', '20 ms', 'alice-1');
SELECT t.expire('short');
SELECT s.* FROM lock_try_acquire('short', owner => 'bob-1') g, t.show(g) s;
SELECT lock_release('short', 'bob-1');
SELECT s.* FROM lock_try_acquire('short', owner => 'alice-1') g, t.show(g) s;

-- Many keys at once, then the same keys again.
SELECT count(*) AS granted, count(DISTINCT fencing_token) AS tokens, count(DISTINCT owner) AS owners
FROM generate_series(1, 500) i, LATERAL lock_try_acquire('many:' || i) WHERE acquired;
SELECT count(*) FILTER (WHERE acquired) AS granted, count(*) FILTER (WHERE status = 'held') AS held
FROM generate_series(1, 500) i, LATERAL lock_try_acquire('many:' || i);

-- The answer can be stored and used later.
CREATE TABLE grants OF lock_grant;
INSERT INTO grants SELECT * FROM lock_try_acquire('stored', '1 min', 'alice-1', holder => 'Alice');
SELECT s.* FROM grants g, t.show(g) s;
SELECT lock_release(key, owner) FROM grants;
DROP TABLE grants;
