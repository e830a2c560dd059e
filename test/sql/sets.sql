\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- lock_acquire_all and lock_try_acquire_all: several keys, all or none
--
-- Properties: one owner gets every key of the set, each with a token of its own, or none. The
-- answer is a row for each key in byte order, or one row for a blocking key. A refusal leaves
-- nothing behind. An invalid set is reported before any key is locked.
--
-- Turns red when: part of a set is kept; keys are taken in array or collation order; duplicates
-- give two rows, or a refusal by the caller itself; a refusal writes, assigns a transaction id
-- or keeps a claim.

CREATE FUNCTION t.held(prefix text) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(key, ' ' ORDER BY key) FROM lock_status() WHERE starts_with(key, prefix)
$$;

-- Granted
--
-- one row for each key in byte order, whatever the order of the array
SELECT s.* FROM lock_acquire_all(ARRAY['a:2', 'a:10', 'a:1'], '10 min', 'alice-1', 'exclusive', '0', 'Alice', '{"a": 1}') g, t.show(g) s;
SELECT key, owner, holder, meta FROM lock_status() WHERE key LIKE 'a:%' ORDER BY key;
SELECT s.* FROM lock_try_acquire_all(keys => ARRAY['b:2', 'b:10', 'b:1'], ttl => '20 min', owner => 'bob-1', mode => 'shared', wait => '1 min', holder => 'Bob', meta => '[1]') g, t.show(g) s;
SELECT key FROM lock_acquire_all(ARRAY['ä', 'Z', 'a', 'z', 'A', 'a ', 'aa', 'a:', E'\t', '€', '10', '9', '𝄞', 'B'], '1 min', 'order-1');
SELECT lock_release_all('order-1');
-- each key has its own token, all have one owner
SELECT count(*), count(DISTINCT fencing_token) AS tokens, count(DISTINCT owner) AS owners FROM lock_acquire_all(ARRAY['c:1', 'c:2', 'c:3']);
SELECT s.owner, s.seconds, s.holder = current_setting('application_name') AS label FROM lock_try_acquire_all(ARRAY['c:4']) g, t.show(g) s;
-- owner and ttl from the settings
SET atomic_lock.owner = 'session-7';
SET atomic_lock.default_ttl = '2 min';
SELECT s.key, s.owner, s.seconds FROM lock_acquire_all(ARRAY['d:2', 'd:1']) g, t.show(g) s;
RESET atomic_lock.owner;
RESET atomic_lock.default_ttl;
-- NULL is the default
SELECT s.key, s.owner, s.seconds FROM lock_acquire_all(ARRAY['d:3'], NULL, NULL, 'exclusive', '0', NULL, NULL) g, t.show(g) s;
-- duplicates count once
SELECT s.key, s.status FROM lock_acquire_all(ARRAY['e:1', 'e:2', 'e:1', 'e:1', 'e:2'], '1 min', 'alice-1') g, t.show(g) s;
SELECT count(*) FROM app_lock WHERE key LIKE 'e:%';
SELECT s.key, s.status FROM lock_try_acquire_all(array_fill('e:3'::text, ARRAY[1000]), '1 min', 'alice-1') g, t.show(g) s;
SET atomic_lock.on_reacquire = error;
SELECT s.key, s.status FROM lock_acquire_all(ARRAY['e:4', 'e:4'], '1 min', 'alice-1') g, t.show(g) s;
RESET atomic_lock.on_reacquire;
-- arrays with another lower bound
SELECT key FROM lock_acquire_all('[5:6]={f:2,f:1}'::text[], '1 min', 'alice-1');
-- a thousand
SELECT count(*), count(DISTINCT fencing_token) AS tokens, bool_and(acquired) AS acquired FROM lock_acquire_all((SELECT array_agg('thousand:' || i) FROM generate_series(1, 1000) i), '1 min', 'many-1');
SELECT lock_release_all('many-1');
-- the longest keys
SELECT octet_length(key), acquired FROM lock_acquire_all(ARRAY[repeat('x', 1024), repeat('ü', 512)], '1 min', 'many-1');
SELECT lock_release_all('many-1');

-- each lease can be extended and released separately
SELECT lock_extend('a:1', 'alice-1', '1 hour') > clock_timestamp() + interval '59 min' AS extended, lock_release('a:1', 'alice-1');
SELECT lock_extend_all('bob-1', '1 hour'), lock_release_all('bob-1');

-- anywhere in a query
SELECT (lock_acquire_all(ARRAY['g:2', 'g:1'], '1 min', 'alice-1')).key;
SELECT key FROM lock_acquire_all(ARRAY['g:4', 'g:3'], '1 min', 'alice-1') LIMIT 1;
SELECT t.held('g:');
SELECT k, g.key, g.status FROM unnest(ARRAY['h', 'i']) k, LATERAL lock_acquire_all(ARRAY[k || ':2', k || ':1'], '1 min', 'alice-1') g;
BEGIN;
DECLARE c CURSOR FOR SELECT key FROM lock_acquire_all(ARRAY['j:2', 'j:1', 'j:3'], '1 min', 'alice-1');
FETCH 1 FROM c;
SELECT t.held('j:');
CLOSE c;
COMMIT;
SELECT t.held('j:');

--
-- Some keys are already the owner's
--
SELECT fencing_token AS token, acquired_at AS since, expires_at AS until FROM lock_acquire('own:2', '10 min', 'alice-1', holder => 'Alice', meta => '1') \gset
SELECT s.key, s.status, s.holder, CASE g.key WHEN 'own:2' THEN fencing_token = :token AND acquired_at = :'since' AND expires_at = :'until' END AS same FROM lock_acquire_all(ARRAY['own:3', 'own:2', 'own:1'], '1 min', 'alice-1') g, t.show(g) s;
SELECT s.key, s.status FROM lock_acquire_all(ARRAY['own:3', 'own:2', 'own:1'], '1 hour', 'alice-1', holder => 'Alice at home') g, t.show(g) s;
SELECT key, holder, ttl_remaining > '59 min' AS extended, meta FROM lock_status() WHERE key LIKE 'own:%' ORDER BY key;
-- one key is shared by the owner and requested exclusively
SELECT g.status FROM lock_acquire('own:4', '1 hour', 'alice-1', 'shared') g;
SELECT s.key, s.status, s.mode FROM lock_acquire_all(ARRAY['own:5', 'own:4'], '1 min', 'alice-1') g, t.show(g) s;
SELECT s.key, s.status, s.mode FROM lock_acquire_all(ARRAY['own:6', 'own:5'], '1 min', 'alice-1', 'shared') g, t.show(g) s;
-- on_reacquire = error
SET atomic_lock.on_reacquire = error;
SELECT split_part(t.raises($$SELECT * FROM lock_acquire_all(ARRAY['own:9', 'own:2', 'own:0'], '1 min', 'alice-1')$$), E'\n', 1) AS answer;
SELECT s.acquired, s.status, s.key, s.mode, s.owner, s.holder FROM lock_try_acquire_all(ARRAY['own:9', 'own:2', 'own:0'], '1 min', 'alice-1') g, t.show(g) s;
RESET atomic_lock.on_reacquire;
SELECT t.held('own:');

--
-- A mode for each key
--
SELECT s.key, s.status, s.mode FROM lock_acquire_all(ARRAY['m:2', 'm:1', 'm:3'], '1 min', 'alice-1', modes => ARRAY['shared', 'exclusive', 'shared']) g, t.show(g) s;
-- "modes" replaces "mode"; a key that is given twice has one mode
SELECT s.key, s.status, s.mode FROM lock_acquire_all(ARRAY['m:5', 'm:4', 'm:5'], '1 min', 'alice-1', 'shared', modes => ARRAY['exclusive', 'shared', 'exclusive']) g, t.show(g) s;
-- other readers can share the shared keys only
SELECT key, status, mode FROM lock_try_acquire_all(ARRAY['m:2', 'm:3', 'm:4'], '1 min', 'bob-1', modes => '{shared,shared,shared}') ORDER BY key;
SELECT status, key FROM lock_try_acquire_all(ARRAY['m:2', 'm:1'], '1 min', 'bob-1', modes => '{shared,shared}');
SELECT status, key FROM lock_try_acquire_all(ARRAY['m:9', 'm:2'], '1 min', 'bob-1', modes => '{shared,exclusive}');
SELECT status, key, waited >= '5 ms' AS waited FROM lock_try_acquire_all(ARRAY['m:9', 'm:2'], '1 min', 'bob-1', wait => '5 ms', modes => '{shared,exclusive}');
-- a generated owner has all keys
SELECT count(*), count(DISTINCT owner) AS owners, string_agg(mode, ' ' ORDER BY key) AS modes FROM lock_acquire_all(ARRAY['m:6', 'm:7', 'm:8'], modes => '{shared,exclusive,shared}');
-- the owner's own holdings: a share becomes exclusive, an exclusive lock stays exclusive
SELECT s.key, s.status, s.mode FROM lock_acquire_all(ARRAY['m:1', 'm:3'], '1 min', 'alice-1', modes => ARRAY['shared', 'shared']) g, t.show(g) s;
SELECT lock_release('m:3', 'bob-1');
SELECT s.key, s.status, s.mode FROM lock_acquire_all(ARRAY['m:1', 'm:3'], '1 min', 'alice-1', modes => ARRAY['shared', 'exclusive']) g, t.show(g) s;
-- max_holders applies to the shared keys
SELECT s.key, s.mode, g.holders, g.max_holders FROM lock_acquire_all(ARRAY['l:1', 'l:2'], '1 min', 'alice-1', max_holders => 1, modes => ARRAY['shared', 'exclusive']) g, t.show(g) s;
SELECT status, key, mode FROM lock_try_acquire_all(ARRAY['l:1', 'l:3'], '1 min', 'bob-1', max_holders => 1, modes => ARRAY['shared', 'exclusive']);
SELECT t.raises($$SELECT lock_acquire_all(ARRAY['l:4', 'l:3'], modes => ARRAY['exclusive', 'exclusive'], max_holders => 1)$$);
SELECT t.raises($$SELECT lock_acquire_all(ARRAY['l:4', 'l:3'], modes => ARRAY['exclusive', 'shared'], max_holders => 1, wait => '1 s')$$);
-- invalid modes
SELECT m, t.raises(format('SELECT lock_acquire_all(ARRAY[''n:1'', ''n:2'', ''n:1''], modes => %s)', m))
FROM unnest(ARRAY[$$'{}'$$, $$'{shared}'$$, $$'{shared,shared,shared,shared}'$$, $$'{{shared},{shared},{shared}}'$$, $$'{shared,NULL,shared}'$$, $$'{shared,Shared,shared}'$$, $$'{shared,exclusive,exclusive}'$$, $$'shared'$$]) m;
SELECT t.held('n:'), lock_release_all('alice-1') > 0 AS released, lock_release_all('bob-1') > 0 AS released;

--
-- Refused: one row for a blocking key, and no effect
--
SELECT acquired_at AS since, expires_at AS until FROM lock_acquire('r:3', '1 hour', 'bob-1', holder => 'Bob') \gset
SELECT g.status FROM lock_acquire('r:5', '1 hour', 'carol-1', 'shared', holder => 'Carol') g;
SELECT t.raises($$SELECT * FROM lock_acquire_all(ARRAY['r:4', 'r:3', 'r:2', 'r:1'], owner => 'alice-1')$$);
SELECT t.raises($$SELECT * FROM lock_acquire_all(ARRAY['r:6', 'r:5'], owner => 'alice-1')$$);
\set VERBOSITY sqlstate
SELECT * FROM lock_acquire_all(ARRAY['r:4', 'r:3'], owner => 'alice-1');
\set VERBOSITY default
SELECT s.acquired, s.status, s.key, s.mode, s.owner, s.token, s.waited, s.holder, g.acquired_at = :'since' AS since, g.expires_at = :'until' AS until
FROM lock_try_acquire_all(ARRAY['r:4', 'r:3', 'r:2', 'r:1'], owner => 'alice-1') g, t.show(g) s;
SELECT s.acquired, s.status, s.key, s.mode, s.owner, s.holder FROM lock_try_acquire_all(ARRAY['r:6', 'r:5', 'r:4'], owner => 'alice-1') g, t.show(g) s;
-- several blocking keys: still one row
SELECT count(*), bool_and(key IN ('r:3', 'r:5')) AS one_of_them FROM lock_try_acquire_all(ARRAY['r:5', 'r:3', 'r:1'], owner => 'alice-1');
-- depending on the mode
SELECT s.acquired, s.status, s.key FROM lock_try_acquire_all(ARRAY['r:6', 'r:5', 'r:4'], '1 min', 'alice-1', 'shared') g, t.show(g) s;
SELECT lock_release_all('alice-1') > 0 AS released;
SELECT s.acquired, s.status, s.key FROM lock_try_acquire_all(ARRAY['r:6', 'r:5', 'r:4', 'r:3'], '1 min', 'alice-1', 'shared') g, t.show(g) s;
SELECT t.held('r:');
-- a set of one
SELECT s.acquired, s.status, s.key, s.holder FROM lock_try_acquire_all(ARRAY['r:3']) g, t.show(g) s;
-- nothing is left in a transaction that continues
SELECT t.fingerprint() AS before \gset
BEGIN;
SELECT status FROM lock_try_acquire_all(ARRAY['r:1', 'r:2', 'r:3', 'r:4'], owner => 'alice-1');
SELECT status FROM lock_try_acquire_all(ARRAY['r:1', 'r:2', 'r:3', 'r:4'], owner => 'alice-1', wait => '5 ms');
SELECT status FROM lock_try_acquire_all(ARRAY['r:1', 'r:2', 'r:3', 'r:4', 'r:5'], mode => 'shared');
SELECT t.code($$SELECT * FROM lock_acquire_all(ARRAY['r:1', 'r:2', 'r:3', 'r:4'], owner => 'alice-1')$$);
SELECT * FROM t.left_open();
SELECT count(*) AS rows FROM app_lock WHERE key IN ('r:1', 'r:2', 'r:4');
COMMIT;
SELECT t.fingerprint() = :'before' AS unchanged;
-- earlier holdings of the transaction stay unchanged
BEGIN;
SELECT fencing_token AS token FROM lock_acquire('r:1', '1 min', 'alice-1') \gset
SELECT status, key FROM lock_try_acquire_all(ARRAY['r:1', 'r:2', 'r:3'], '1 hour', 'alice-1');
SELECT fencing_token = :token AS same_token, ttl_remaining < '2 min' AS not_extended FROM lock_status('r:1');
SELECT claims FROM t.left_open();
SELECT status, key FROM lock_try_acquire_all(ARRAY['r:1', 'r:2'], '1 min', 'alice-1');
COMMIT;
SELECT t.held('r:');
SELECT lock_release_all('alice-1') > 0 AS released;
-- an upgrade and a grant are undone with the rest
SELECT fencing_token AS token FROM lock_acquire('r:2', '1 min', 'alice-1', 'shared') \gset
SELECT status, key FROM lock_try_acquire_all(ARRAY['r:1', 'r:2', 'r:3'], '1 hour', 'alice-1');
SELECT mode, fencing_token = :token AS same_token FROM lock_status('r:2');
SELECT lock_release_all('alice-1') > 0 AS released;
-- a thousand attempts
SELECT t.fingerprint() AS before \gset
BEGIN;
SELECT count(*), count(DISTINCT key) AS keys, bool_or(acquired) AS acquired FROM generate_series(1, 1000) i, LATERAL lock_try_acquire_all(ARRAY['r:1', 'r:2:' || i, 'r:3']);
SELECT * FROM t.left_open();
COMMIT;
SELECT t.fingerprint() = :'before' AS unchanged;
SELECT t.held('r:');

--
-- Waiting
--
SELECT t.timeout($$SELECT * FROM lock_acquire_all(ARRAY['r:4', 'r:3', 'r:2'], owner => 'alice-1', wait => '20 ms')$$);
SELECT acquired, status, key, mode, holder, waited >= '20 ms' AS waited FROM lock_try_acquire_all(ARRAY['r:4', 'r:3', 'r:2'], owner => 'alice-1', wait => '20 ms');
SELECT t.held('r:');
-- free: at once
SELECT key, status, waited FROM lock_acquire_all(ARRAY['w:2', 'w:1'], '1 min', 'alice-1', wait => '1 min');
SELECT lock_release_all('alice-1');
-- until the blocking leases have expired, wherever in the order they are
SELECT b.key, b.status, b.acquired_at >= a.expires_at AS after_its_end
FROM lock_acquire('w:1', '100 ms', 'bob-1') a, LATERAL lock_acquire_all(ARRAY[a.key, 'w:2', 'w:0'], '1 hour', 'alice-1', wait => '1 min') b WHERE b.key = 'w:1';
SELECT t.held('w:');
SELECT lock_release_all('alice-1');
SELECT b.key, b.status, b.acquired_at >= CASE b.key WHEN a.key THEN a.expires_at WHEN c.key THEN c.expires_at ELSE b.acquired_at END AS after_its_end
FROM lock_acquire('w:3', '60 ms', 'bob-1') a, lock_acquire('w:1', '120 ms', 'carol-1', 'shared') c, LATERAL lock_acquire_all(ARRAY[a.key, c.key, 'w:2', 'w:0'], '1 hour', 'alice-1', wait => '1 min') b;
SELECT lock_release_all('alice-1');
-- one time-out for the whole set
SELECT b.status, b.key, b.waited >= '60 ms' AS waited FROM lock_acquire('w:1', '30 ms', 'bob-1') a, lock_acquire('w:2', '1 hour', 'carol-1') c, LATERAL lock_try_acquire_all(ARRAY[a.key, c.key], owner => 'alice-1', wait => '60 ms') b;
SELECT t.held('w:');
SELECT lock_release_all('carol-1');
-- lock_delay
SELECT g.status FROM lock_acquire('w:1', '20 ms', 'bob-1', holder => 'Bob') g;
SELECT t.expire('w:1');
SET atomic_lock.lock_delay = '1 h';
SELECT split_part(t.raises($$SELECT * FROM lock_acquire_all(ARRAY['w:1', 'w:0'])$$), E'\n', 1) AS answer;
SELECT status, key, holder FROM lock_try_acquire_all(ARRAY['w:1', 'w:0']);
RESET atomic_lock.lock_delay;

--
-- Bad input is reported before any key is locked
--
CREATE FUNCTION t.bad(VARIADIC args text[]) RETURNS TABLE (args text, acquire text, try_acquire text) LANGUAGE sql
AS $$SELECT a, split_part(t.raises(format('SELECT * FROM lock_acquire_all(%s)', a)), E'\n', 1), t.code(format('SELECT * FROM lock_try_acquire_all(%s)', a)) FROM unnest(args) a$$;
SELECT * FROM t.bad('NULL', '''{}''', '''{NULL}''', '''{z:1,NULL,z:2}''', '''{z:1,z:2,NULL}''', '''{{z:1,z:2},{z:3,z:4}}''', '''{{z:1}}''', '''{z:1,""}''', '''{z:1,z:2}''');
SELECT n, split_part(t.raises(format('SELECT * FROM lock_acquire_all((SELECT array_agg(''z:'' || i) FROM generate_series(1, %s) i))', n)), E'\n', 1) AS acquire,
	t.code(format('SELECT * FROM lock_try_acquire_all((SELECT array_agg(''z:'' || i) FROM generate_series(1, %s) i))', n)) AS try_acquire FROM unnest(ARRAY[1000, 1001, 100000]) n;
SELECT t.code('SELECT * FROM lock_acquire_all(array_fill(''z:1''::text, ARRAY[1001]))') AS duplicates;
SELECT split_part(t.raises($$SELECT * FROM lock_acquire_all(ARRAY['z:1', repeat('x', 1025), 'z:2'])$$), E'\n', 1) AS acquire, t.code($$SELECT * FROM lock_try_acquire_all(ARRAY['z:1', 'z:2', repeat('x', 1048576)])$$) AS try_acquire;
-- the other arguments are checked as in lock_acquire
SELECT * FROM t.bad('''{z:1}'', ''0''', '''{z:1}'', ''25 h''', '''{z:1}'', ''1 month''', '''{z:1}'', owner => ''''', '''{z:1}'', owner => repeat(''x'', 256)', '''{z:1}'', mode => NULL', '''{z:1}'', mode => ''x''', 
	'''{z:1}'', wait => ''-1 s''', '''{z:1}'', wait => ''6 min''', '''{z:1}'', holder => repeat(''x'', 256)', '''{z:1}'', meta => to_jsonb(repeat(''x'', 10000))');
-- also if the set would be refused anyway
SELECT * FROM t.bad('''{r:3,NULL}''', '''{r:3,""}''', '''{r:3}'', ''0''', '''{r:3}'', mode => ''x''');
-- arrays of other types
SELECT * FROM t.bad('''{z:1}''::varchar[]', '''{z:1}''::name[]', '''z:1''', '''{1,2}''::int[]', '''z:1''::text', '''{z:1''', '''{z:1}'', lifetime => ''session''');
SET atomic_lock.max_lifetime = '1 min';
SELECT * FROM t.bad('''{z:1}''', '''{z:1}'', ''1 min''');
RESET atomic_lock.max_lifetime;
SELECT t.held('z:'), count(*) AS rows FROM app_lock WHERE key LIKE 'z:%';
-- more keys than a transaction may claim
SET atomic_lock.max_claims_per_transaction = 3;
SELECT * FROM t.bad('''{z:1,z:2,z:3}''', '''{z:1,z:2,z:3,z:4}''', '''{z:1,z:2,z:3,z:3}''');
BEGIN;
SELECT count(*) FROM lock_acquire_all(ARRAY['z:1', 'z:2'], '1 min', 'alice-1');
SELECT * FROM t.bad('''{z:3,z:4}''', '''{z:2,z:3}'', owner => ''alice-1''');
SELECT status, key FROM lock_try_acquire_all(ARRAY['r:3', 'r:2'], '1 min', 'alice-1');
SELECT status, key FROM lock_try_acquire_all(ARRAY['z:3'], '1 min', 'alice-1');
ROLLBACK;
RESET atomic_lock.max_claims_per_transaction;
-- read-only transactions
BEGIN READ ONLY;
SELECT t.raises($$SELECT * FROM lock_acquire_all(ARRAY['z:1'])$$), t.raises($$SELECT * FROM lock_try_acquire_all(ARRAY['r:3'])$$);
COMMIT;

--
-- Transactions
--
BEGIN;
SELECT count(*) FROM lock_acquire_all(ARRAY['t:1', 't:2'], '1 min', 'alice-1');
ROLLBACK;
SELECT t.held('t:');
BEGIN;
SELECT count(*) FROM lock_acquire_all(ARRAY['t:1', 't:2'], '1 min', 'alice-1');
SAVEPOINT s;
SELECT count(*) FROM lock_acquire_all(ARRAY['t:2', 't:3'], '1 min', 'alice-1', holder => 'Alice');
SELECT lock_release('t:1', 'alice-1');
SELECT t.held('t:');
ROLLBACK TO s;
SELECT t.held('t:');
SELECT claims FROM t.left_open();
COMMIT;
SELECT t.held('t:');
-- an error undoes its block; earlier locks stay
DO $$
BEGIN
	PERFORM lock_acquire_all(ARRAY['t:4', 't:5'], '1 min', 'alice-1');
	BEGIN
		PERFORM lock_acquire_all(ARRAY['t:5', 't:6', 'r:3'], '1 hour', 'alice-1');
	EXCEPTION WHEN lock_not_available THEN
		PERFORM lock_acquire_all(ARRAY['t:7'], '1 min', 'alice-1');
	END;
END
$$;
SELECT t.held('t:');
SELECT lock_release_all('alice-1') > 0 AS released;
-- another owner in the same transaction
BEGIN;
SELECT count(*) FROM lock_acquire_all(ARRAY['t:1', 't:2'], '1 min', 'alice-1', holder => 'Alice');
SELECT status, key, holder FROM lock_try_acquire_all(ARRAY['t:2', 't:3'], '1 min', 'bob-1');
SELECT count(*) FROM lock_acquire_all(ARRAY['t:4', 't:3'], '1 min', 'bob-1', 'shared');
SELECT lock_release_all('alice-1'), lock_release_all('bob-1');
COMMIT;
SELECT t.held('t:');
-- keys of an unfinished transaction
SELECT current_setting('max_prepared_transactions')::int > 0 AS twophase \gset
\if :twophase
BEGIN;
SELECT count(*) FROM lock_acquire_all(ARRAY['2pc:1', '2pc:2'], '10 min', 'bob-1', holder => 'Bob');
PREPARE TRANSACTION 'regress_al_sets';
BEGIN;
SELECT status, key, mode, holder FROM lock_try_acquire_all(ARRAY['2pc:2', '2pc:0'], '1 min', 'alice-1');
SELECT status, key, mode, holder FROM lock_try_acquire_all(ARRAY['2pc:2', '2pc:0'], '1 min', 'alice-1', wait => '10 ms');
SELECT split_part(t.raises($$SELECT * FROM lock_acquire_all(ARRAY['2pc:0', '2pc:1'])$$), E'\n', 1) AS answer;
SELECT * FROM t.left_open();
COMMIT;
ROLLBACK PREPARED 'regress_al_sets';
SELECT count(*) FROM lock_acquire_all(ARRAY['2pc:2', '2pc:0', '2pc:1'], '1 min', 'alice-1');
SELECT lock_release_all('alice-1');
\else
\echo max_prepared_transactions is 0
\endif

-- At every isolation level, with an old snapshot
CREATE FUNCTION t.story(k text DEFAULT 'l') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text := current_setting('transaction_isolation');
BEGIN
	FOR i IN 1..2 LOOP
		answer := concat_ws(' ', answer, (SELECT string_agg(key || ' ' || status, ' ') FROM lock_acquire_all(ARRAY[k || 2, k || 1], '10 min', 'alice-1')),
			(SELECT string_agg(key || ' ' || status, ' ') FROM lock_try_acquire_all(ARRAY[k || 3, k || 1], '10 min', 'bob-1')),
			(SELECT string_agg(key || ' ' || status, ' ') FROM lock_try_acquire_all(ARRAY[k || 2, k || 1], '10 min', 'alice-1')), lock_release_all('alice-1'),
			(SELECT string_agg(key || ' ' || status, ' ') FROM lock_try_acquire_all(ARRAY[k || 3, k || 1], '10 min', 'bob-1', 'shared')), lock_release_all('bob-1'));
	END LOOP;
	RETURN answer;
END
$$;
:at_every_level

-- Level user is needed
DROP ROLE IF EXISTS regress_al_user;
CREATE ROLE regress_al_user;
SET ROLE regress_al_user;
SELECT t.code($$SELECT * FROM lock_acquire_all(ARRAY['u:1'])$$), t.code($$SELECT * FROM lock_try_acquire_all(ARRAY['u:1'])$$), t.code($$SELECT lock_convert('u:1', 'o')$$), t.code($$SELECT lock_transfer('u:1', 'o', 'p')$$);
RESET ROLE;
SELECT lock_grant_access('regress_al_user', 'user');
SET ROLE regress_al_user;
SELECT key, status FROM lock_acquire_all(ARRAY['u:2', 'u:1'], '1 min', 'o');
SELECT key, status FROM lock_try_acquire_all(ARRAY['u:2', 'u:1'], '1 min', 'p');
SELECT (lock_convert('u:1', 'o', 'shared')).mode, (lock_transfer('u:1', 'o', 'p')).owner, lock_release_all('o'), lock_release_all('p');
RESET ROLE;
DROP OWNED BY regress_al_user;
DROP ROLE regress_al_user;
