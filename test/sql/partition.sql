\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- Keys distributed over several servers
--
-- Properties: lock_partition() is the remainder that PARTITION BY HASH gives for the text in
-- the first braces of a key. With atomic_lock.partitions, every function with a key, and every
-- guard, raises LK010 for a key of another partition, and changes nothing. A server whose
-- partition is not set has none. Existing holdings continue, and their owner can release all of
-- them. A guard shows no key to a role that may not read its columns.
--
-- Turns red when: the hash differs from PostgreSQL's; a new function, or one key of a set, is
-- not checked; the default of atomic_lock.partition admits keys.
DROP ROLE IF EXISTS regress_al_user;
CREATE ROLE regress_al_user;
SELECT lock_grant_access('regress_al_user', 'user');

--
-- The hash
--
CREATE TABLE t.routed (key text COLLATE "C") PARTITION BY HASH (key);
SELECT count(*), count(*) FILTER (WHERE NOT satisfies_hash_partition('t.routed'::regclass, m, lock_partition(k, m), k)) AS wrong,
	count(DISTINCT lock_partition(k, m)) = 13 AS all_partitions
FROM (SELECT (ARRAY[1, 2, 3, 8, 13])[1 + i % 5] AS m,
		CASE i % 3 WHEN 0 THEN 'order:' || i WHEN 1 THEN repeat(md5(i::text), 1 + i % 9) ELSE chr(i % 50000 + 1) || random() END AS k
	FROM generate_series(1, 100000) i) AS s;

-- the text in the first braces, unless it is empty
SELECT k, lock_partition(k, 1000000007) = lock_partition(v, 1000000007) AS equal
FROM (VALUES ('{order:42}:line:7', 'order:42'), ('a{x}b{y}c', 'x'), ('{{x}}', '{x'), ('a}b{x}', 'x'),
	('{}x', '{y}x'), ('{}{x}', 'x'), ('{x', 'x'), ('x}', 'x'), ('{x', '{x'), ('a{é}', 'é')) AS c (k, v);
SELECT satisfies_hash_partition('t.routed'::regclass, 7, lock_partition('{}x', 7), '{}x'::text) AS empty_braces_are_all_of_it;

-- for routers the key may be any text
SELECT lock_partition('', 1), lock_partition(repeat('x', 10000), 1);
SELECT t.raises(c) FROM (VALUES ('SELECT lock_partition(NULL, 4)'), ('SELECT lock_partition(''k'', NULL)'),
	('SELECT lock_partition(''k'', 0)'), ('SELECT lock_partition(''k'', -1)')) AS calls (c);

--
-- Every function with a key
--
CREATE TABLE t.orders (id int PRIMARY KEY, note text);
INSERT INTO t.orders VALUES (1, 'one'), (2, 'two');
CREATE FUNCTION t.call(function regprocedure, key text) RETURNS text LANGUAGE sql AS $$
	SELECT format('SELECT %s(%s)', p.oid::regproc,
		(SELECT string_agg(format('%I => %s', a.name, CASE
			WHEN a.name = 'key' THEN quote_literal($2)
			WHEN a.name = 'keys' THEN format('ARRAY[%L, %L]', $2, 'another of ' || $2)
			WHEN a.type = 'anyelement'::regtype THEN 'NULL::t.orders'
			ELSE format('%L::%s', CASE a.type WHEN 'bigint'::regtype THEN '1' WHEN 'text'::regtype THEN '1' ELSE 'epoch' END, a.type::regtype) END), ', ')
		FROM ROWS FROM (unnest(p.proargnames), unnest(p.proargtypes::oid[])) WITH ORDINALITY AS a (name, type, n)
		WHERE a.n <= p.pronargs - p.pronargdefaults OR a.name IN ('key', 'keys', 'owner') AND a.n <= p.pronargs))
	FROM pg_proc p WHERE p.oid = $1
$$;
CREATE TABLE t.calls AS
SELECT p.oid::regprocedure AS function FROM pg_depend d JOIN pg_proc p ON p.oid = d.objid AND d.classid = 'pg_proc'::regclass
WHERE d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'atomic_lock') AND d.deptype = 'e'
	AND p.proargnames[:p.pronargs] && ARRAY['key', 'keys'] AND p.proname NOT IN ('lock_partition', 'app_lock_longest_wait', 'app_lock_count_waiters');
SELECT 'order:' || min(i) FILTER (WHERE lock_partition('order:' || i, 4) = 1) AS here,
	'order:' || min(i) FILTER (WHERE lock_partition('order:' || i, 4) = 2) AS elsewhere
FROM generate_series(1, 100) i \gset
SELECT :'here' AS here, :'elsewhere' AS elsewhere;

-- Turned off: no function refuses the key.
SELECT function FROM t.calls WHERE t.code(t.call(function, :'elsewhere')) = 'LK010';
SELECT (lock_acquire(:'elsewhere', '1 hour', 'alice-1')).status;
SELECT md5(string_agg(a::text, ',' ORDER BY key)) AS before FROM app_lock a \gset

SET atomic_lock.partitions = 4;
SELECT string_agg(DISTINCT t.code(t.call('lock_status(text)', 'order:' || i)), ',') AS not_told FROM generate_series(1, 100) i;
SET atomic_lock.partition = 1;
SELECT function, t.code(t.call(function, :'elsewhere')) FROM t.calls ORDER BY function::text COLLATE "C";
SELECT function FROM t.calls WHERE t.code(t.call(function, :'here')) = 'LK010' AND function::text !~ 'text\[\]';
SELECT t.raises(t.call('lock_acquire(text,interval,text,text,interval,text,jsonb,text,integer,text)', :'elsewhere'));
SELECT t.raises(format('SELECT lock_acquire_all(ARRAY[%L, %L], owner => ''bob-1'')', :'here', :'elsewhere')) AS one_of_a_set;
SELECT t.raises('SELECT lock_acquire_all(ARRAY[''{order:1}:line:1'', ''{order:1}:line:2''])') AS kept_together;
SELECT md5(string_agg(a::text, ',' ORDER BY key)) = :'before' AS nothing_changed FROM app_lock a;

-- Holdings from before
SELECT key FROM lock_held('alice-1');
SELECT c, t.code(c) FROM (VALUES ('SELECT lock_heartbeat(owner => ''alice-1'')'), ('SELECT lock_extend_all(''alice-1'')'),
	('SELECT lock_transfer_all(''alice-1'', ''heir'')'), ('SELECT lock_release_all(''alice-1'')')) AS calls (c);
SELECT lock_release_all('alice-1');

-- Without a partition every function refuses.
SET atomic_lock.partition = -1;
SELECT count(*) - count(*) FILTER (WHERE t.code(t.call(function, :'here')) = 'LK010') AS not_refused FROM t.calls;
SELECT t.raises(t.call('lock_is_held(text,text)', :'here'));

-- A partition number beyond the number of partitions
SET atomic_lock.partition = 4;
SELECT t.code(t.call('lock_status(text)', :'here')), t.code(t.call('lock_status(text)', :'elsewhere'));

-- The extension can be created on such a server.
SET client_min_messages = warning;
DROP EXTENSION atomic_lock;
CREATE EXTENSION atomic_lock;
SHOW atomic_lock.partitions;
SELECT lock_grant_access('regress_al_user', 'user');

--
-- Guards and default keys
--
SET atomic_lock.partition = 1;
SELECT lock_protect('t.orders', 'order:{id}');
SELECT t.raises('UPDATE t.orders SET note = '''' WHERE id = 1'), t.raises('UPDATE t.orders SET note = '''' WHERE id = 2');
SELECT t.state(t.raises('SELECT lock_fetch(NULL::t.orders, ''1'', owner => ''o'')')) AS one, t.state(t.raises('SELECT lock_fetch(NULL::t.orders, ''2'', owner => ''o'')')) AS two;
-- A role that may write a row but not read its key does not see the key.
GRANT UPDATE (note), SELECT (note) ON t.orders TO regress_al_user;
SET ROLE regress_al_user;
SELECT t.raises('UPDATE t.orders SET note = ''''');
-- Only a superuser can set the partition.
SELECT t.code('SET atomic_lock.partition = 2'), t.code('SET atomic_lock.partitions = 0');
RESET ROLE;
DROP TABLE t.orders;
DROP OWNED BY regress_al_user;
DROP ROLE regress_al_user;
