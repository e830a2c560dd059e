\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- lock_path, lock_acquire_path, lock_try_acquire_path, lock_release_path
--
-- Properties: a call locks a path and shares its folders, all or none. An exclusive folder
-- excludes other owners from all keys below it, and no owner gets a folder exclusively while
-- another owner holds a key below it. A release also releases the folders that its owner no
-- longer needs, and no others. Policies apply to each key of a path. A refusal leaves no trace.
--
-- Turns red when: a folder is not shared, or not released; a folder is released although its
-- owner holds a key below it; an escaped separator splits a path; a key counts as below a
-- folder whose name only begins like it.

CREATE FUNCTION t.held(o text) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(key || CASE mode WHEN 'shared' THEN ' (s)' ELSE '' END, ', ') FROM lock_held(o)
$$;

--
-- lock_path
--
SELECT lock_path('a/b/c'), lock_path('a/b/'), lock_path('a'), lock_path('/a/b'), lock_path('/a/'), lock_path('a/ /b');
SELECT lock_path('site.pages.home', '.'), lock_path('a::b:c::d', '::'), lock_path('straße→haus→tür', '→'), lock_path(':::a', '::');
-- an escaped separator, as lock_key writes it, belongs to the name
SELECT lock_path('a:b\:c:d', ':'), lock_path('a\\:b', ':'), lock_path('a\\\:b', ':'), lock_path('a/b\'), lock_path('\→/a', '/');
SELECT lock_path(lock_key('site', 'a:b', 'page:1'), ':');
SELECT cardinality(lock_path(rtrim(repeat('x/', 32), '/'))) AS most, cardinality(lock_path(repeat('x/', 32))) AS folders, cardinality(lock_path(repeat('ü', 512))) AS one;
SELECT p, t.raises(format('SELECT lock_path(%s)', p)) FROM unnest(ARRAY['NULL', $$'a', NULL$$, $$''$$, $$'/'$$, $$'//a'$$, $$'a//b'$$, $$'a//'$$, $$repeat('x/', 33)$$, $$repeat('x/', 32) || 'x'$$, $$repeat('x', 1025)$$,
	$$'a', ''$$, $$'a', '\'$$, $$'a', '/\'$$, $$'a', '123456789'$$, $$'a:b', ':a'$$]) p;

--
-- Acquiring a path
--
SELECT s.key, s.mode, s.status, s.holder, round(extract(epoch FROM g.expires_at - min(g.acquired_at) OVER ()), 3) AS seconds FROM lock_acquire_path('a/b/c', '1 hour', 'ann', holder => 'Ann') g, t.show(g) s;
-- other keys of the same folders are free
SELECT key, mode, status FROM lock_acquire_path('a/b/d', '1 hour', 'bob', holder => 'Bob');
SELECT key, mode, status FROM lock_acquire_path('a/e', '1 hour', 'bob', holder => 'Bob');
-- the same document, and the folders above it, are held
SELECT s.acquired, s.status, s.key, s.mode, s.owner, s.holder FROM lock_try_acquire_path('a/b/c', owner => 'cid') g, t.show(g) s;
SELECT t.raises($$SELECT lock_acquire_path('a/b/', owner => 'cid')$$);
SELECT acquired, status, key, mode, holders FROM lock_try_acquire_path('a/', owner => 'cid', wait => '5 ms');
SELECT t.held('cid') AS nothing;
-- an exclusive folder excludes others from all keys below it
SELECT key, mode FROM lock_acquire_path('z/y/', '1 hour', 'cid', holder => 'Cid');
SELECT status, key, holder FROM lock_try_acquire_path('z/y/x/w', owner => 'ann');
SELECT status, key, mode FROM lock_acquire_path('z/v', owner => 'ann');
-- the owner of the folder can lock keys below it
SELECT key, mode, status FROM lock_acquire_path('z/y/x', owner => 'cid');
SELECT lock_release_path('z/y/x', 'cid'), t.held('cid');
-- a share of a folder by lock_acquire excludes an exclusive lock of it
SELECT status FROM lock_acquire('z/', owner => 'dot', mode => 'shared');
SELECT status, key FROM lock_try_acquire_path('z/', owner => 'cid');
SELECT lock_release('z/', 'dot'), lock_release_all('cid'), lock_release_all('ann'), lock_release_all('bob');
-- the only owner below a folder can have it exclusively
SELECT key, mode, status FROM lock_acquire_path('a/b/c', owner => 'ann');
SELECT key, mode, status FROM lock_acquire_path('a/', owner => 'ann');
SELECT lock_release_all('ann');
-- a key that begins with the same letters is another key
SELECT count(*) FROM lock_acquire_path('a/bc', owner => 'ann');
SELECT status, key FROM lock_acquire_path('a/b', owner => 'bob');
SELECT lock_release_path('a/b', 'bob'), lock_release_path('a/bc', 'ann');
-- a generated owner; another separator
SELECT count(*), count(DISTINCT owner) AS owners, bool_and(acquired) AS acquired FROM lock_acquire_path('site:a:b', separator => ':');
-- ttl, holder and meta are for all keys
SELECT s.key, round(extract(epoch FROM g.expires_at - min(g.acquired_at) OVER ()), 3) AS seconds, s.holder FROM lock_acquire_path('m/n', '2 min', 'ann', '0', 'Ann', '{"why": 1}') g, t.show(g) s;
SELECT key, meta, ttl_remaining > '1 min' AND ttl_remaining <= '2 min' AS time FROM lock_held('ann');
-- heartbeats and transfers work as for other keys
SELECT key, status FROM lock_heartbeat(lock_path('m/n'), 'ann', '1 hour');
SELECT lock_transfer_all('ann', 'bob'), t.held('bob'), lock_release_path('m/n', 'bob');

-- on_reacquire applies to the path, not to its folders
SET atomic_lock.on_reacquire = 'error';
SELECT count(*) FROM lock_acquire_path('o/p', owner => 'ann');
SELECT count(*) FROM lock_acquire_path('o/q', owner => 'ann');
SELECT status, key FROM lock_try_acquire_path('o/p', owner => 'ann');
SELECT t.raises($$SELECT lock_acquire_path('o/p', owner => 'ann')$$);
RESET atomic_lock.on_reacquire;
SELECT lock_release_all('ann');

--
-- Releasing a path
--
SELECT count(*) FROM lock_acquire_path('a/b/c', owner => 'ann');
SELECT count(*) FROM lock_acquire_path('a/b/d', owner => 'ann');
SELECT count(*) FROM lock_acquire_path('a/e/', owner => 'ann');
SELECT lock_release_path('a/b/c', 'ann'), t.held('ann');
SELECT lock_release_path('a/b/d', 'ann'), t.held('ann');
SELECT lock_release_path('a/e/', 'ann'), t.held('ann');
-- an exclusive folder stays
SELECT count(*) FROM lock_acquire_path('a/b/c', owner => 'ann');
SELECT status FROM lock_acquire('a/b/', owner => 'ann');
SELECT lock_release_path('a/b/c', 'ann'), t.held('ann');
-- a path that is a folder with a held key below it becomes or stays shared
SELECT count(*) FROM lock_acquire_path('a/b/c', owner => 'ann');
SELECT lock_release_path('a/b/', 'ann'), t.held('ann');
SELECT lock_release_path('a/b/', 'ann'), t.held('ann');
SELECT lock_release_path('a/b/c', 'ann'), t.held('ann') AS nothing;
-- a document is not a folder of the keys that begin with its name
SELECT count(*) FROM lock_acquire_path('a/b', owner => 'ann');
SELECT count(*) FROM lock_acquire_path('a/bc', owner => 'ann');
SELECT lock_release_path('a/b', 'ann'), t.held('ann'), lock_release_path('a/bc', 'ann');
-- the owner shares no folder: only the path is released
SELECT status FROM lock_acquire('a/b/c', owner => 'ann');
SELECT lock_release_path('a/b/c', 'ann');
-- a holding with lifetime transaction counts
BEGIN;
SELECT count(*) FROM lock_acquire_path('a/b/c', owner => 'ann');
SELECT status FROM lock_acquire('a/b/d', owner => 'ann', lifetime => 'transaction');
SELECT lock_release_path('a/b/c', 'ann'), t.held('ann');
COMMIT;
SELECT t.held('ann'), lock_release_all('ann');
-- an expired lease does not count
SELECT count(*) FROM lock_acquire_path('a/b/c', owner => 'ann');
SELECT status FROM lock_acquire('a/b/d', '20 ms', 'ann');
SELECT t.expire('a/b/d');
SELECT lock_release_path('a/b/c', 'ann'), t.held('ann') AS nothing;
-- the refusals of lock_release; nothing is released
SELECT count(*) FROM lock_acquire_path('a/b/c', owner => 'ann', holder => 'Ann');
SELECT o, p, t.raises(format('SELECT lock_release_path(%L, %L)', p, o)) FROM (VALUES ('bob', 'a/b/c'), ('ann', 'a/b/x'), ('ann', 'a/b/c/d'), (NULL, 'a/b/c'), ('ann', 'a//b'), ('ann', NULL)) v (o, p);
SELECT t.fingerprint() AS before \gset
BEGIN;
SELECT t.code($$SELECT lock_release_path('a/b/x', 'ann')$$), t.code($$SELECT lock_try_acquire_path('a/b/c', owner => 'bob')$$), t.code($$SELECT lock_try_acquire_path('a/', owner => 'bob')$$);
SELECT * FROM t.left_open();
COMMIT;
SELECT t.fingerprint() = :'before' AS unchanged;
SELECT t.held('ann');
-- after a forced end the folders stay; lock_release_all releases them
SELECT force_release('a/b/c', 'why');
SELECT t.code($$SELECT lock_release_path('a/b/c', 'ann')$$), t.held('ann'), lock_release_all('ann');

--
-- Policies apply to each key
--
SELECT lock_set_policy('pol/', default_ttl => '10 min'), lock_set_policy('pol/short/', default_ttl => '1 min', max_ttl => '2 min'), lock_set_policy('pol/few/', max_keys_per_role => 2);
SELECT s.key, round(extract(epoch FROM g.expires_at - min(g.acquired_at) OVER ()), 3) AS seconds FROM lock_acquire_path('pol/short/x', owner => 'ann') g, t.show(g) s;
SELECT t.raises($$SELECT lock_acquire_path('pol/short/y', '3 min')$$);
SELECT lock_release_path('pol/short/x', 'ann');
-- a folder counts in a quota
SELECT count(*) FROM lock_acquire_path('pol/few/1', owner => 'ann');
SELECT t.raises($$SELECT lock_acquire_path('pol/few/2', owner => 'ann')$$);
SELECT t.held('ann'), lock_release_all('ann');
-- a policy with roles for a folder above
DROP ROLE IF EXISTS regress_al_user;
CREATE ROLE regress_al_user;
SELECT lock_grant_access('regress_al_user', 'user');
SELECT lock_set_policy('pol/', roles => ARRAY[current_user::regrole]);
SET ROLE regress_al_user;
SELECT t.raises($$SELECT lock_acquire_path('pol/x', owner => 'ann')$$), t.code($$SELECT lock_release_path('pol/x', 'ann')$$);
SELECT key, status FROM lock_acquire_path('free/x', owner => 'ann');
SELECT lock_release_path('free/x', 'ann'), lock_path('a/b');
RESET ROLE;
DROP OWNED BY regress_al_user;
DROP ROLE regress_al_user;
-- a policy with max_holders
SELECT lock_set_policy('lim/', max_holders => 1);
SELECT count(*) FROM lock_acquire_path('lim/a', owner => 'ann', holder => 'Ann');
SELECT status, key, holder, holders, max_holders FROM lock_try_acquire_path('lim/b', owner => 'bob');
SELECT t.code($$SELECT lock_acquire_path('lim/b', owner => 'bob', wait => '1 s')$$), lock_release_path('lim/a', 'ann');
SELECT count(lock_drop_policy(prefix)) FROM lock_policies;

-- No lease of a path outlives that of a folder above it.
SELECT count(DISTINCT expires_at) FROM lock_acquire_path('end/a/b/c', '10 min', 'ann');
SELECT lock_release_all('ann'), lock_set_policy('end/', max_lifetime => '1 h'), lock_set_policy('end/a', max_lifetime => '10 h');
SELECT count(*) FROM lock_acquire_path('end/a', '1 h', 'ann');
SELECT max(expires_at) FILTER (WHERE key = 'end/b') <= min(expires_at) FILTER (WHERE key = 'end/') AS in_time FROM lock_acquire_path('end/b', '1 h', 'ann');
SELECT lock_release_all('ann'), count(lock_drop_policy(prefix)) FROM lock_policies;

-- in a read-only transaction
BEGIN READ ONLY;
SELECT t.code($$SELECT lock_acquire_path('a/b')$$), t.code($$SELECT lock_try_acquire_path('a/b')$$), t.code($$SELECT lock_release_path('a/b', 'ann')$$), lock_path('a/b');
COMMIT;
-- bad arguments
SELECT a, t.raises(format('SELECT lock_acquire_path(%s)', a)) FROM unnest(ARRAY['NULL', $$'a/b', '0'$$, $$'a/b', '2 days'$$, $$'a/b', owner => ''$$, $$'a/b', wait => '-1 s'$$, $$'a/b', wait => '1 day'$$, $$'a/b', holder => repeat('x', 256)$$, $$'a//b'$$, $$'a/b', separator => NULL$$, $$'a/b', separator => '\'$$]) a;
SELECT count(*) AS rows FROM lock_status() WHERE key LIKE 'a/%';
