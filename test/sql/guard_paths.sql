\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- lock_protect with a separator: a write needs one key of the row's path in exclusive mode, and
-- every folder above that one in any mode; lock_fetch acquires the path
--
-- Properties: the exclusive owner of a folder can write everything below it. A holding
-- without the folders above it does not suffice, since another owner may have taken a folder. A
-- write pins all keys that it relies on, and atomic_lock.fencing_token applies to each. An error
-- names the missing key, unless the role may not see it. lock_fetch takes all keys of the path,
-- or none.
--
-- Turns red when: a folder above the exclusive key is not read, or not pinned; a write
-- needs a folder below it; a shared document suffices; lock_fetch leaves a folder locked without a
-- row.

CREATE TABLE t.docs (id int PRIMARY KEY, dir text, name text, note text);
INSERT INTO t.docs VALUES (1, 'a/b', 'c', ''), (2, 'a/b', 'd', ''), (3, '', 'top', ''), (4, 'a//b', 'x', '');
SELECT lock_protect('t.docs', 'site/{dir}/{name}', '{insert,update,delete}', '/');
SELECT relation, key_template, events, state, problem, separator FROM lock_guards;
CREATE FUNCTION t.held(o text) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(key || CASE mode WHEN 'shared' THEN ' (s)' ELSE '' END, ', ') FROM lock_held(o)
$$;
CREATE FUNCTION t.as(o text, stmt text, tokens text DEFAULT '') RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM set_config('atomic_lock.owner', coalesce(o, ''), true), set_config('atomic_lock.fencing_token', coalesce(tokens, ''), true);
	RETURN regexp_replace(t.raises(stmt), 'token \d+', 'token N', 'g');
END
$$;
-- The result of an update of the first row while ann holds these keys; "(s)": shared
CREATE FUNCTION t.with(keys text[], stmt text DEFAULT 'UPDATE t.docs SET note = ''x'' WHERE id = 1') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text;
BEGIN
	PERFORM lock_acquire(replace(k, ' (s)', ''), '1 hour', 'ann', mode => CASE WHEN k LIKE '%(s)' THEN 'shared' ELSE 'exclusive' END, holder => 'Ann') FROM unnest(keys) k;
	answer := t.as('ann', stmt);
	PERFORM lock_release_all('ann');
	RETURN answer;
END
$$;

--
-- Holdings that suffice for a write
--
-- the path, as lock_acquire_path takes it
SELECT count(*) FROM lock_acquire_path('site/a/b/c', '1 hour', 'ann', holder => 'Ann');
SELECT t.as('ann', 'UPDATE t.docs SET note = ''x'' WHERE id = 1');
SELECT t.as('bob', 'UPDATE t.docs SET note = ''x'' WHERE id = 1');
SELECT t.as(NULL, 'UPDATE t.docs SET note = ''x'' WHERE id = 1');
-- another document of the same folder
SELECT t.as('ann', 'UPDATE t.docs SET note = ''x''  WHERE id = 2');
SELECT lock_release_all('ann');
-- an exclusive folder suffices for everything below it, and below nothing is looked at
SELECT k, t.with(k::text[]) FROM unnest(ARRAY['{site/}', '{site/ (s),site/a/}', '{site/ (s),site/a/ (s),site/a/b/}', '{site/,site/a/b/c (s)}', '{site/ (s),site/a/,site/a/b/c (s)}']) k;
SELECT t.with('{site/}', 'UPDATE t.docs SET note = ''x'' WHERE id < 3') AS two_documents, t.with('{site/ (s),site/a/}', 'DELETE FROM t.docs WHERE id = 2') AS deleted;
-- one folder above is missing: the document alone, the folder alone, a gap
SELECT k, t.with(k::text[]) FROM unnest(ARRAY['{site/a/b/c}', '{site/a/b/}', '{site/ (s),site/a/b/c}', '{site/ (s),site/a/ (s),site/a/b/c}', '{site/a/,site/a/b/c}']) k;
-- nothing is exclusive
SELECT t.with('{site/ (s),site/a/ (s),site/a/b/ (s),site/a/b/c (s)}');
SELECT t.with('{site/ (s),site/a/ (s),site/a/b/ (s)}');
-- another owner has a folder above
SELECT status FROM lock_acquire('site/a/', '1 hour', 'bob', holder => 'Bob');
SELECT t.with('{site/ (s),site/a/b/c}');
SELECT lock_release('site/a/', 'bob');
-- holdings of the transaction and of the session
BEGIN;
SELECT status FROM lock_acquire('site/', owner => 'ann', mode => 'shared', lifetime => 'transaction') UNION ALL SELECT status FROM lock_acquire('site/a/', owner => 'ann', lifetime => 'session');
SELECT t.as('ann', 'UPDATE t.docs SET note = ''x'' WHERE id = 1');
COMMIT;
SELECT t.as('ann', 'UPDATE t.docs SET note = ''x'' WHERE id = 1') ~ '^LK006: lock "site/" is not held by this owner' AS after_it, lock_release_all('ann');
-- an update that moves a row needs both paths
SELECT t.with('{site/ (s),site/a/}', 'UPDATE t.docs SET dir = ''z'' WHERE id = 1'), t.with('{site/}', 'UPDATE t.docs SET dir = ''z'' WHERE id = 1') AS both;
SELECT t.with('{site/ (s),site/a/}', 'UPDATE t.docs SET dir = ''a/e'' WHERE id = 1') AS within;
SELECT t.with('{site/ (s),site/a/}', 'INSERT INTO t.docs VALUES (9, ''a/new'', ''x'', '''')') AS inserted, t.with('{site/a/new/x}', 'INSERT INTO t.docs VALUES (9, ''a/new'', ''x'', '''')') ~ '^LK006' AS refused;
-- a row whose key is no path
SELECT t.with('{site/}', 'UPDATE t.docs SET note = ''x'' WHERE id = 3'), t.with('{site/}', 'UPDATE t.docs SET note = ''x'' WHERE id = 4');
SELECT t.with('{site/}', format('UPDATE t.docs SET dir = %L WHERE id = 1', 'a' || repeat('/a', n))) FROM generate_series(29, 30) n;

--
-- Pins: all keys that the write relies on, and no others
--
SELECT count(*) FROM lock_acquire_path('site/a/b/c', '1 hour', 'ann');
SET atomic_lock.owner = 'ann';
CREATE FUNCTION t.pinned() RETURNS bigint LANGUAGE sql AS $$ SELECT count(DISTINCT objid) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND objsubid = 1706 $$;
BEGIN;
UPDATE t.docs SET note = 'written' WHERE id = 1;
SELECT t.pinned() AS pinned_keys;
UPDATE t.docs SET note = 'again' WHERE id = 1;
SELECT t.pinned() AS pinned_keys;
-- the transaction itself releases a folder
SELECT lock_release('site/a/', 'ann');
SELECT t.as('ann', 'UPDATE t.docs SET note = ''x'' WHERE id = 1') ~ '^LK006: lock "site/a/" is not held' AS refused;
ROLLBACK;
BEGIN;
SELECT status FROM lock_acquire('site/a/');
COMMIT;
BEGIN;
UPDATE t.docs SET note = 'by the folder' WHERE id = 1;
SELECT t.pinned() AS pinned_keys;
COMMIT;
RESET atomic_lock.owner;
SELECT lock_release_all('ann');

--
-- atomic_lock.fencing_token
--
CREATE FUNCTION t.tokens(o text, but text DEFAULT '') RETURNS text LANGUAGE sql AS $$ SELECT string_agg(fencing_token::text, ',') FROM lock_held(o) WHERE key <> but $$;
SELECT count(*) FROM lock_acquire_path('site/a/b/c', '1 hour', 'ann');
SELECT t.as('ann', 'UPDATE t.docs SET note = ''x'' WHERE id = 1', t.tokens('ann'));
SELECT t.as('ann', 'UPDATE t.docs SET note = ''x'' WHERE id = 1', t.tokens('ann', 'site/a/'));
SELECT t.as('ann', 'UPDATE t.docs SET note = ''x'' WHERE id = 1', t.tokens('ann', 'site/a/b/c')) ~ '^LK005: lock "site/a/b/c" is held by another grant' AS document;
-- a folder that was lost, edited below, and shared again
SELECT t.tokens('ann') AS tokens \gset
SELECT force_release('site/a/', 'lunch'), lock_release_all('ann');
SELECT count(*) FROM lock_acquire_path('site/a/b/c', '1 hour', 'ann');
SELECT t.as('ann', 'UPDATE t.docs SET note = ''x'' WHERE id = 1', :'tokens') ~ '^LK005' AS refused, t.as('ann', 'UPDATE t.docs SET note = ''x'' WHERE id = 1', t.tokens('ann')) AS with_new_tokens, lock_release_all('ann');

--
-- lock_fetch
--
SELECT note FROM lock_fetch(NULL::t.docs, '1', '1 hour', 'ann', holder => 'Ann');
SELECT t.held('ann'), t.as('ann', 'UPDATE t.docs SET note = ''x'' WHERE id = 1');
SELECT DISTINCT round(extract(epoch FROM ttl_remaining)) AS seconds FROM lock_held('ann');
-- others below the same folders; the same document is refused
SELECT id FROM lock_fetch(NULL::t.docs, '2', owner => 'bob');
SELECT t.held('bob'), t.raises($$SELECT lock_fetch(NULL::t.docs, '1', owner => 'bob', wait => '5 ms')$$) ~ '^55P03.*"site/a/b/c".*Ann' AS refused;
SELECT lock_release_all('bob'), lock_release_path('site/a/b/c', 'ann');
-- an exclusive folder of another owner refuses it, and nothing is left
SELECT status FROM lock_acquire('site/a/', '1 hour', 'bob', holder => 'Bob');
SELECT t.raises($$SELECT lock_fetch(NULL::t.docs, '1', owner => 'ann')$$);
SELECT t.held('ann') AS nothing, lock_release_all('bob');
-- what the owner has keeps its mode and its end
SELECT status FROM lock_acquire('site/a/', '2 hours', 'ann') UNION ALL SELECT status FROM lock_acquire('site/a/b/c', '3 hours', 'ann', mode => 'shared');
SELECT count(*) FROM lock_fetch(NULL::t.docs, '1', owner => 'ann');
SELECT key, mode, round(extract(epoch FROM ttl_remaining)) AS seconds FROM lock_held('ann');
SELECT lock_release_all('ann');
-- on_reacquire is for the document
SET atomic_lock.on_reacquire = error;
SELECT count(*) FROM lock_fetch(NULL::t.docs, '1', owner => 'ann');
SELECT count(*) FROM lock_fetch(NULL::t.docs, '2', owner => 'ann');
SELECT t.state(t.raises($$SELECT lock_fetch(NULL::t.docs, '1', owner => 'ann')$$)) AS again, lock_release_all('ann');
RESET atomic_lock.on_reacquire;
-- all leases get the shortest default; a policy keeps a folder
SELECT lock_set_policy('site/', default_ttl => '10 min'), lock_set_policy('site/a/b/', default_ttl => '2 min');
SELECT count(*) FROM lock_fetch(NULL::t.docs, '1', owner => 'ann');
SELECT DISTINCT round(extract(epoch FROM ttl_remaining)) AS seconds FROM lock_held('ann');
-- without ttl, what the owner has is extended by its last length
SELECT key FROM lock_heartbeat('{site/}', 'ann', '1 hour');
SELECT count(*) FROM lock_fetch(NULL::t.docs, '1', owner => 'ann');
SELECT key, round(extract(epoch FROM ttl_remaining)) AS seconds FROM lock_held('ann');
SELECT lock_release_all('ann'), lock_drop_policy('site/'), lock_drop_policy('site/a/b/');
-- no such row, and a row whose key is no path
SELECT t.fingerprint() AS before \gset
BEGIN;
SELECT count(*) FROM lock_fetch(NULL::t.docs, '99', owner => 'ann');
SELECT t.raises($$SELECT lock_fetch(NULL::t.docs, '4', owner => 'ann')$$);
SELECT * FROM t.left_open();
COMMIT;
SELECT t.fingerprint() = :'before' AS unchanged;
-- a key that the caller chooses is locked alone
SELECT id FROM lock_fetch(NULL::t.docs, '1', owner => 'ann', key => 'site/a/b/c');
SELECT t.held('ann'), lock_release_all('ann');
-- with row security, in a subtransaction
DROP ROLE IF EXISTS regress_al_user;
CREATE ROLE regress_al_user;
SELECT lock_grant_access('regress_al_user', 'user');
GRANT SELECT, UPDATE ON t.docs TO regress_al_user;
ALTER TABLE t.docs ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON t.docs USING (id = 1);
SET ROLE regress_al_user;
SELECT f.id, t.held('ann') FROM (VALUES ('1'), ('2')) v (i) LEFT JOIN LATERAL lock_fetch(NULL::t.docs, i, owner => 'ann') f ON true;
SELECT lock_release_all('ann');
-- no part of the path is shown to a role that may not see the key
SELECT t.as('ann', 'UPDATE t.docs SET note = ''x'' WHERE id = 1');
RESET ROLE;
ALTER TABLE t.docs DISABLE ROW LEVEL SECURITY;
DROP POLICY p ON t.docs;
REVOKE SELECT ON t.docs FROM regress_al_user;
GRANT SELECT (id, name) ON t.docs TO regress_al_user;
SET ROLE regress_al_user;
SELECT t.with('{site/ (s)}') !~ 'site/|a/b' AS hidden, t.state(t.with('{site/ (s)}'));
-- a role that a policy keeps out of a folder
RESET ROLE;
GRANT SELECT ON t.docs TO regress_al_user;
SELECT lock_set_policy('site/a/', roles => ARRAY[current_user::regrole]);
SET ROLE regress_al_user;
SELECT t.raises($$SELECT lock_fetch(NULL::t.docs, '1', owner => 'ann')$$), t.held('ann') AS nothing;
RESET ROLE;
SELECT lock_drop_policy('site/a/');
DROP OWNED BY regress_al_user;
DROP ROLE regress_al_user;

--
-- lock_protect
--
-- an escaped separator, as values are written, does not split
CREATE TABLE t.colon (id int PRIMARY KEY, name text);
INSERT INTO t.colon VALUES (1, 'x:y');
SELECT lock_protect('t.colon', 'c:{name}:{id}', separator => ':');
SELECT count(*) FROM lock_fetch(NULL::t.colon, '1', owner => 'ann');
SELECT t.held('ann'), t.as('ann', 'DELETE FROM t.colon'), lock_release_all('ann');
-- it replaces the separator, and takes it away
SELECT lock_protect('t.colon', '{name}/{id}', separator => '::');
SELECT separator FROM lock_guards WHERE relation = 't.colon'::regclass;
SELECT lock_protect('t.colon', '{name}/{id}', separator => NULL);
SELECT separator IS NULL AS none FROM lock_guards WHERE relation = 't.colon'::regclass;
SELECT t.with(ARRAY['x\:y/1'], 'DELETE FROM t.colon') AS key_alone;
-- bad separators, and templates that make no paths
SELECT s, t.raises(format('SELECT lock_protect(''t.colon'', ''x/{id}'', separator => %L)', s)) FROM unnest(ARRAY['', '\', '/\', '123456789', '→→→']) s;
SELECT p, t.raises(format('SELECT lock_protect(''t.colon'', %L, separator => ''/'')', p)) FROM unnest(ARRAY['/', '//{id}', 'x//{id}', '{id}//', repeat('x/', 32) || '{id}', repeat('x/', 31) || '{id}', '/{id}/', '{id}']) p;
SELECT t.code($$SELECT lock_protect('t.colon', 'x→{id}', separator => '→')$$) AS utf8, t.code($$SELECT lock_protect('t.colon', 'abc{id}', separator => 'a')$$) AS a_letter, t.code($$SELECT lock_protect('t.colon', 'x'', ''{id}', '{update}', ''', ''')$$) AS quotes;
SELECT t.raises('SELECT lock_protect(''t.colon'', ''x'', separator => ''\''); SELECT 1') ~ 'backslash' AS refused, (SELECT key_template FROM lock_guards WHERE relation = 't.colon'::regclass) AS unchanged;
-- partitions inherit it, and problems are shown
CREATE TABLE t.part (id int, dir text) PARTITION BY RANGE (id);
CREATE TABLE t.part_1 PARTITION OF t.part FOR VALUES FROM (0) TO (10);
SELECT lock_protect('t.part', 'p/{dir}/{id}', '{insert,update,delete}', '/');
CREATE TABLE t.part_2 PARTITION OF t.part FOR VALUES FROM (10) TO (20);
SELECT relation, separator, parent FROM lock_guards WHERE relation::text LIKE 't.part%' ORDER BY 1;
SELECT t.with('{p/ (s),p/x/}', 'INSERT INTO t.part VALUES (1, ''x''), (11, ''x'')') AS folder, t.with('{p/x/1}', 'INSERT INTO t.part VALUES (1, ''x'')') ~ 'lock "p/" is not held' AS alone;
ALTER TABLE t.part RENAME dir TO folder;
SELECT relation, problem FROM lock_guards WHERE relation::text LIKE 't.part%' ORDER BY 1;
-- triggers that lock_protect did not make
CREATE TABLE t.made (id int);
CREATE TRIGGER "~atomic_lock_guard" BEFORE INSERT ON t.made FOR EACH ROW EXECUTE FUNCTION lock_guard('x/{id}', '');
SELECT problem, separator, t.raises('INSERT INTO t.made VALUES (1)') FROM lock_guards WHERE relation = 't.made'::regclass;
CREATE OR REPLACE TRIGGER "~atomic_lock_guard" BEFORE INSERT ON t.made FOR EACH ROW EXECUTE FUNCTION lock_guard('x//{id}', '/');
SELECT problem, separator, t.raises('INSERT INTO t.made VALUES (1)') FROM lock_guards WHERE relation = 't.made'::regclass;
-- TRUNCATE and unprotect
SELECT t.code('TRUNCATE t.part'), lock_unprotect('t.part'), t.code('TRUNCATE t.part') AS after;

-- A row whose last name is empty would be a folder.
CREATE TABLE unnamed (id int PRIMARY KEY, dir text, name text);
SELECT lock_protect('unnamed', 'docs:{dir}:{name}', '{insert,update,delete}', ':');
SELECT t.raises($$INSERT INTO unnamed VALUES (1, 'a', '')$$), count(*) FROM lock_acquire_path('docs:a:', owner => 'ann', separator => ':');
SELECT set_config('atomic_lock.owner', 'ann', false), t.raises($$INSERT INTO unnamed VALUES (1, 'a', '')$$), t.raises($$INSERT INTO unnamed VALUES (1, 'a', 'b')$$);
RESET atomic_lock.owner;
SELECT lock_release_all('ann');
DROP TABLE unnamed;

-- A second lock_fetch extends no lease beyond that of a folder above it.
CREATE TABLE page (id int PRIMARY KEY, name text);
INSERT INTO page VALUES (1, 'x');
SELECT lock_protect('page', 'end/{name}', separator => '/');
SELECT lock_set_policy('end/', max_lifetime => '1 h'), lock_set_policy('end/x', max_lifetime => '10 h');
SELECT id FROM lock_fetch(NULL::page, '1', '30 min', 'ann');
SELECT id FROM lock_fetch(NULL::page, '1', '1 h', 'ann');
SELECT max(expires_at) <= min(expires_at) AS in_time FROM lock_held('ann');
SELECT lock_release_all('ann'), count(lock_drop_policy(prefix)) FROM lock_policies WHERE prefix LIKE 'end/%';
DROP TABLE page;
