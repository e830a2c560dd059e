\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- lock_release_all and lock_extend_all: all live leases of one owner
--
-- Properties: both change exactly the owner's live leases, return their number, and write
-- nothing if there are none. Without ttl each lease repeats its own. max_lifetime skips a lease
-- that has no time left.
--
-- Turns red when: a lease of another owner, or an ended one, is changed, also with equal
-- hashes; a live lease is missed.
--
SELECT count(*) FROM generate_series(1, 20) i, LATERAL lock_acquire('a:' || i, '10 min', 'alice-1');
SELECT count(*) FROM generate_series(1, 20) i, LATERAL lock_acquire('b:' || i, '10 min', 'bob-1');
SELECT count(*) FROM generate_series(1, 20) i, LATERAL lock_acquire('g:' || i, '10 min');

-- An owner without leases: 0, and nothing is written.
BEGIN;
SELECT lock_release_all('carol-1'), lock_extend_all('carol-1'), lock_extend_all('carol-1', '1 hour');
SELECT lock_release_all('ALICE-1'), lock_release_all('alice-1 '), lock_release_all('alice');
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_transaction_id;
COMMIT;

-- A heartbeat extends the leases of that owner only.
SELECT lock_extend_all('alice-1', '1 hour');
SELECT left(key, 2) AS keys, count(*) AS count,
	count(*) FILTER (WHERE expires_at > clock_timestamp() + interval '59 min') AS extended
FROM lock_status() GROUP BY 1 ORDER BY 1;
-- without ttl each lease repeats its own
SELECT lock_extend('a:1', 'alice-1', '5 min') IS NOT NULL;
SELECT lock_extend_all('alice-1');
SELECT ttl_remaining < interval '6 min' AS short FROM lock_status('a:1');
SELECT ttl_remaining > interval '59 min' AS long FROM lock_status('a:2');

-- Expired and released leases are neither extended nor released.
SELECT lock_release('a:1', 'alice-1');
SELECT lock_extend('a:2', 'alice-1', '1 ms') IS NOT NULL;
SELECT t.expire('a:2');
SELECT lock_extend_all('alice-1', '1 hour');
SELECT locked FROM lock_status('a:2');
SELECT lock_release_all('alice-1');
SELECT lock_release_all('alice-1');
SELECT lock_try_release('a:1', 'alice-1') AS a1, lock_try_release('a:2', 'alice-1') AS a2, lock_try_release('a:3', 'alice-1') AS a3;
SELECT left(key, 2) AS keys, count(*) AS count FROM lock_status() GROUP BY 1 ORDER BY 1;

-- The owner may come from the setting; without any owner it is an error.
SELECT t.raises($$SELECT lock_release_all()$$);
SELECT t.raises($$SELECT lock_extend_all()$$);
SELECT t.raises($$SELECT lock_release_all(NULL)$$) ~ '^22004' AS refused;
SELECT t.raises($$SELECT lock_extend_all(NULL, '1 min')$$) ~ '^22004' AS refused;
SET atomic_lock.owner = 'bob-1';
SELECT lock_extend_all();
SELECT lock_extend_all(ttl => '2 hours');
SELECT lock_release_all();
RESET atomic_lock.owner;
SELECT t.code($$SELECT lock_extend_all('alice-1', '0')$$) AS zero,
	t.code($$SELECT lock_extend_all('alice-1', '25 h')$$) AS long,
	t.code($$SELECT lock_extend_all('alice-1', '1 month')$$) AS month;

-- A generated owner works, too.
SELECT owner FROM lock_acquire('generated') \gset
SELECT lock_extend_all(:'owner', '1 hour');
SELECT ttl_remaining > interval '59 min' AS extended FROM lock_status('generated');
SELECT lock_acquire('generated 2', owner => :'owner') IS NOT NULL;
SELECT lock_release_all(:'owner');
SELECT locked FROM lock_status('generated');

-- A key that changed its owner belongs to the present owner alone.
SELECT acquired FROM lock_acquire('hands', '10 min', 'alice-1');
SELECT lock_release('hands', 'alice-1');
SELECT acquired FROM lock_acquire('hands', '10 min');
SELECT lock_extend_all('alice-1'), lock_release_all('alice-1');
SELECT locked FROM lock_status('hands');
SELECT acquired FROM lock_acquire('hands 2', '10 min', 'alice-1');
SELECT lock_release('hands 2', 'alice-1');
SELECT acquired FROM lock_acquire('hands 2', '10 min', 'bob-1');
SELECT lock_extend_all('alice-1'), lock_release_all('alice-1');
SELECT lock_extend_all('bob-1'), lock_release_all('bob-1');

-- Owners whose hashes collide are different owners.
SELECT acquired FROM lock_acquire('collision 1', '10 min', 'alice-1');
SELECT acquired FROM lock_acquire('collision 2', '10 min', 'bob-1');
UPDATE app_lock SET owner_hash = (SELECT owner_hash FROM app_lock WHERE key = 'collision 1') WHERE key = 'collision 2';
SELECT lock_extend_all('alice-1', '1 hour');
SELECT ttl_remaining < interval '11 min' AS untouched FROM lock_status('collision 2');
SELECT lock_release_all('alice-1');
SELECT locked FROM lock_status('collision 2');

-- Rolled back, nothing has happened.
SELECT count(*) FROM generate_series(1, 5) i, LATERAL lock_acquire('c:' || i, '10 min', 'carol-1');
BEGIN;
SELECT lock_release_all('carol-1');
SELECT count(*) FILTER (WHERE locked) AS locked FROM generate_series(1, 5) i, LATERAL lock_status('c:' || i);
SAVEPOINT s;
SELECT count(*) FROM generate_series(1, 5) i, LATERAL lock_acquire('c:' || i, '10 min', 'carol-1');
SELECT lock_release_all('carol-1');
ROLLBACK TO s;
SELECT lock_release_all('carol-1');
ROLLBACK;
SELECT count(*) FILTER (WHERE locked) AS locked FROM generate_series(1, 5) i, LATERAL lock_status('c:' || i);

-- max_lifetime: leases that cannot be extended any more are skipped.
SET atomic_lock.max_lifetime = '1 h';
SELECT lock_extend('c:1', 'carol-1', '1 hour') IS NOT NULL;
SELECT lock_extend('c:2', 'carol-1', '1 hour') IS NOT NULL;
SELECT lock_extend_all('carol-1', '1 hour');
SELECT lock_extend_all('carol-1', '1 hour');
RESET atomic_lock.max_lifetime;
SELECT lock_release_all('carol-1');

-- Acquired, extended and released in one statement
SELECT (lock_acquire('one', '1 min', 'dora-1')).status, lock_extend_all('dora-1'), lock_release_all('dora-1'), lock_release_all('dora-1');
