\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- lock_path, lock_acquire_path, lock_try_acquire_path, lock_release_path
--
-- Properties: a path is locked with its folders shared, all or none, so that whoever has
-- a folder exclusively has all that is below it, and nobody gets a folder while somebody
-- else has something below it; a release gives back the folders that are needed no
-- longer, and no others; policies hold for each key of a path; a refusal leaves nothing.
--
-- Turns red when: a folder is not shared, or not released; a folder below which the owner
-- holds something is released; a part of a path is split in an escaped separator; one
-- folder takes keys beside it for its own.

CREATE FUNCTION t.held(o text) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(key || CASE mode WHEN 'shared' THEN ' (s)' ELSE '' END, ', ') FROM lock_held(o)
$$;

--
-- lock_path
--
SELECT lock_path('a/b/c'), lock_path('a/b/'), lock_path('a'), lock_path('/a/b'), lock_path('/a/'), lock_path('a/ /b');
SELECT lock_path('site.pages.home', '.'), lock_path('a::b:c::d', '::'), lock_path('straße→haus→tür', '→'), lock_path(':::a', '::');
-- a separator that is escaped is a part of the name, as lock_key writes it
SELECT lock_path('a:b\:c:d', ':'), lock_path('a\\:b', ':'), lock_path('a\\\:b', ':'), lock_path('a/b\'), lock_path('\→/a', '/');
SELECT lock_path(lock_key('site', 'a:b', 'page:1'), ':');
SELECT cardinality(lock_path(rtrim(repeat('x/', 32), '/'))) AS most, cardinality(lock_path(repeat('x/', 32))) AS folders, cardinality(lock_path(repeat('ü', 512))) AS one;
SELECT p, t.raises(format('SELECT lock_path(%s)', p)) FROM unnest(ARRAY['NULL', $$'a', NULL$$, $$''$$, $$'/'$$, $$'//a'$$, $$'a//b'$$, $$'a//'$$, $$repeat('x/', 33)$$, $$repeat('x/', 32) || 'x'$$, $$repeat('x', 1025)$$,
	$$'a', ''$$, $$'a', '\'$$, $$'a', '/\'$$, $$'a', '123456789'$$, $$'a:b', ':a'$$]) p;

--
-- Taking one
--
SELECT s.key, s.mode, s.status, s.holder, s.seconds FROM lock_acquire_path('a/b/c', '1 hour', 'ann', holder => 'Ann') g, t.show(g) s;
-- beside it, and in it, there is room
SELECT key, mode, status FROM lock_acquire_path('a/b/d', '1 hour', 'bob', holder => 'Bob');
SELECT key, mode, status FROM lock_acquire_path('a/e', '1 hour', 'bob', holder => 'Bob');
-- for the same document, and for folders above it, there is not
SELECT s.acquired, s.status, s.key, s.mode, s.owner, s.holder FROM lock_try_acquire_path('a/b/c', owner => 'cid') g, t.show(g) s;
SELECT t.raises($$SELECT lock_acquire_path('a/b/', owner => 'cid')$$);
SELECT acquired, status, key, mode, holders FROM lock_try_acquire_path('a/', owner => 'cid', wait => '5 ms');
SELECT t.held('cid') AS nothing;
-- an exclusive folder is everything below it
SELECT key, mode FROM lock_acquire_path('z/y/', '1 hour', 'cid', holder => 'Cid');
SELECT status, key, holder FROM lock_try_acquire_path('z/y/x/w', owner => 'ann');
SELECT status, key, mode FROM lock_acquire_path('z/v', owner => 'ann');
-- the owner of the folder has it, and what is below
SELECT key, mode, status FROM lock_acquire_path('z/y/x', owner => 'cid');
SELECT lock_release_path('z/y/x', 'cid'), t.held('cid');
-- a reader of a folder, by hand, is one below it
SELECT status FROM lock_acquire('z/', owner => 'dot', mode => 'shared');
SELECT status, key FROM lock_try_acquire_path('z/', owner => 'cid');
SELECT lock_release('z/', 'dot'), lock_release_all('cid'), lock_release_all('ann'), lock_release_all('bob');
-- it becomes exclusive for the only one who has something below
SELECT key, mode, status FROM lock_acquire_path('a/b/c', owner => 'ann');
SELECT key, mode, status FROM lock_acquire_path('a/', owner => 'ann');
SELECT lock_release_all('ann');
-- keys that only look like it are others
SELECT count(*) FROM lock_acquire_path('a/bc', owner => 'ann');
SELECT status, key FROM lock_acquire_path('a/b', owner => 'bob');
SELECT lock_release_path('a/b', 'bob'), lock_release_path('a/bc', 'ann');
-- an owner that is made up; a separator
SELECT count(*), count(DISTINCT owner) AS owners, bool_and(acquired) AS acquired FROM lock_acquire_path('site:a:b', separator => ':');
-- what the whole set gets
SELECT s.key, s.seconds, s.holder FROM lock_acquire_path('m/n', '2 min', 'ann', '0', 'Ann', '{"why": 1}') g, t.show(g) s;
SELECT key, meta, ttl_remaining > '1 min 59 s' AS time FROM lock_held('ann');
-- kept and handed over like others
SELECT key, status FROM lock_heartbeat(lock_path('m/n'), 'ann', '1 hour');
SELECT lock_transfer_all('ann', 'bob'), t.held('bob'), lock_release_path('m/n', 'bob');

-- on_reacquire is for the path, not for its folders
SET atomic_lock.on_reacquire = 'error';
SELECT count(*) FROM lock_acquire_path('o/p', owner => 'ann');
SELECT count(*) FROM lock_acquire_path('o/q', owner => 'ann');
SELECT status, key FROM lock_try_acquire_path('o/p', owner => 'ann');
SELECT t.raises($$SELECT lock_acquire_path('o/p', owner => 'ann')$$);
RESET atomic_lock.on_reacquire;
SELECT lock_release_all('ann');

--
-- Releasing one
--
SELECT count(*) FROM lock_acquire_path('a/b/c', owner => 'ann');
SELECT count(*) FROM lock_acquire_path('a/b/d', owner => 'ann');
SELECT count(*) FROM lock_acquire_path('a/e/', owner => 'ann');
SELECT lock_release_path('a/b/c', 'ann'), t.held('ann');
SELECT lock_release_path('a/b/d', 'ann'), t.held('ann');
SELECT lock_release_path('a/e/', 'ann'), t.held('ann');
-- a folder that is held exclusively stays
SELECT count(*) FROM lock_acquire_path('a/b/c', owner => 'ann');
SELECT status FROM lock_acquire('a/b/', owner => 'ann');
SELECT lock_release_path('a/b/c', 'ann'), t.held('ann');
-- one below which there is something becomes shared, or stays so
SELECT count(*) FROM lock_acquire_path('a/b/c', owner => 'ann');
SELECT lock_release_path('a/b/', 'ann'), t.held('ann');
SELECT lock_release_path('a/b/', 'ann'), t.held('ann');
SELECT lock_release_path('a/b/c', 'ann'), t.held('ann') AS nothing;
-- a document is no folder of what begins with its name
SELECT count(*) FROM lock_acquire_path('a/b', owner => 'ann');
SELECT count(*) FROM lock_acquire_path('a/bc', owner => 'ann');
SELECT lock_release_path('a/b', 'ann'), t.held('ann'), lock_release_path('a/bc', 'ann');
-- where it holds no folder, the path is all
SELECT status FROM lock_acquire('a/b/c', owner => 'ann');
SELECT lock_release_path('a/b/c', 'ann');
-- what is held until the transaction ends counts
BEGIN;
SELECT count(*) FROM lock_acquire_path('a/b/c', owner => 'ann');
SELECT status FROM lock_acquire('a/b/d', owner => 'ann', lifetime => 'transaction');
SELECT lock_release_path('a/b/c', 'ann'), t.held('ann');
COMMIT;
SELECT t.held('ann'), lock_release_all('ann');
-- a lease that has run out does not
SELECT count(*) FROM lock_acquire_path('a/b/c', owner => 'ann');
SELECT status FROM lock_acquire('a/b/d', '20 ms', 'ann');
SELECT t.expire('a/b/d');
SELECT lock_release_path('a/b/c', 'ann'), t.held('ann') AS nothing;
-- refused as lock_release is, and nothing is released
SELECT count(*) FROM lock_acquire_path('a/b/c', owner => 'ann', holder => 'Ann');
SELECT o, p, t.raises(format('SELECT lock_release_path(%L, %L)', p, o)) FROM (VALUES ('bob', 'a/b/c'), ('ann', 'a/b/x'), ('ann', 'a/b/c/d'), (NULL, 'a/b/c'), ('ann', 'a//b'), ('ann', NULL)) v (o, p);
SELECT t.fingerprint() AS before \gset
BEGIN;
SELECT t.code($$SELECT lock_release_path('a/b/x', 'ann')$$), t.code($$SELECT lock_try_acquire_path('a/b/c', owner => 'bob')$$), t.code($$SELECT lock_try_acquire_path('a/', owner => 'bob')$$);
SELECT * FROM t.left_open();
COMMIT;
SELECT t.fingerprint() = :'before' AS unchanged;
SELECT t.held('ann');
-- ended by force: the folders stay for lock_release_all
SELECT force_release('a/b/c', 'why');
SELECT t.code($$SELECT lock_release_path('a/b/c', 'ann')$$), t.held('ann'), lock_release_all('ann');

--
-- Policies hold for each key
--
SELECT lock_set_policy('pol/', default_ttl => '10 min'), lock_set_policy('pol/short/', default_ttl => '1 min', max_ttl => '2 min'), lock_set_policy('pol/few/', max_keys_per_role => 2);
SELECT s.key, s.seconds FROM lock_acquire_path('pol/short/x', owner => 'ann') g, t.show(g) s;
SELECT t.raises($$SELECT lock_acquire_path('pol/short/y', '3 min')$$);
SELECT lock_release_path('pol/short/x', 'ann');
-- a folder counts for a quota, too
SELECT count(*) FROM lock_acquire_path('pol/few/1', owner => 'ann');
SELECT t.raises($$SELECT lock_acquire_path('pol/few/2', owner => 'ann')$$);
SELECT t.held('ann'), lock_release_all('ann');
-- roles of a folder above
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
-- a limit
SELECT lock_set_policy('lim/', max_holders => 1);
SELECT count(*) FROM lock_acquire_path('lim/a', owner => 'ann', holder => 'Ann');
SELECT status, key, holder, holders, max_holders FROM lock_try_acquire_path('lim/b', owner => 'bob');
SELECT t.code($$SELECT lock_acquire_path('lim/b', owner => 'bob', wait => '1 s')$$), lock_release_path('lim/a', 'ann');
SELECT count(lock_drop_policy(prefix)) FROM lock_policies;

-- in a read-only transaction
BEGIN READ ONLY;
SELECT t.code($$SELECT lock_acquire_path('a/b')$$), t.code($$SELECT lock_try_acquire_path('a/b')$$), t.code($$SELECT lock_release_path('a/b', 'ann')$$), lock_path('a/b');
COMMIT;
-- bad arguments
SELECT a, t.raises(format('SELECT lock_acquire_path(%s)', a)) FROM unnest(ARRAY['NULL', $$'a/b', '0'$$, $$'a/b', '2 days'$$, $$'a/b', owner => ''$$, $$'a/b', wait => '-1 s'$$, $$'a/b', wait => '1 day'$$, $$'a/b', holder => repeat('x', 256)$$, $$'a//b'$$, $$'a/b', separator => NULL$$, $$'a/b', separator => '\'$$]) a;
SELECT count(*) AS rows FROM lock_status() WHERE key LIKE 'a/%';
