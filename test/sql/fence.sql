\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- Fencing tokens: every grant has a higher token than all before it
--
-- Properties: tokens rise over every way to end and begin a lease, over sessions, rollbacks,
-- TRUNCATE, checkpoints, a lost or restored sequence and a new extension. A lease keeps its
-- token while it lives. Drawing a token does not disturb lastval() or currval(). When the
-- numbers are used up, grants fail and everything else still works.
--
-- Turns red when: a token is given twice or falls; the sequence can cycle; a grant is made
-- without a token.
--

-- Tokens rise with every grant of a key, however the previous grant ended.
CREATE TABLE t.tokens (id serial, how text, token bigint);
INSERT INTO t.tokens (how, token) SELECT 'first', fencing_token FROM lock_acquire('k', '10 min', 'alice-1');
SELECT lock_release('k', 'alice-1');
INSERT INTO t.tokens (how, token) SELECT 'after release', fencing_token FROM lock_acquire('k', '5 ms', 'alice-1');
SELECT t.expire('k');
INSERT INTO t.tokens (how, token) SELECT 'after expiry', fencing_token FROM lock_acquire('k', '5 ms', 'bob-1');
SELECT t.expire('k');
SELECT lock_sweep();
INSERT INTO t.tokens (how, token) SELECT 'after sweep', fencing_token FROM lock_acquire('k', '10 min', 'alice-1');
SELECT force_release('k', 'why');
INSERT INTO t.tokens (how, token) SELECT 'after force_release', fencing_token FROM lock_acquire('k', '10 min', 'alice-1');
INSERT INTO t.tokens (how, token) SELECT 'steal', fencing_token FROM lock_steal('k', 'bob-1', 'why');
INSERT INTO t.tokens (how, token) SELECT 'steal from oneself', fencing_token FROM lock_steal('k', 'bob-1', 'why');
BEGIN;
SELECT force_release('k', 'why');
SELECT fencing_token AS undone FROM lock_acquire('k', '10 min', 'alice-1') \gset
ROLLBACK;
INSERT INTO t.tokens (how, token) VALUES ('undone', :undone);
SELECT force_release('k', 'why');
INSERT INTO t.tokens (how, token) SELECT 'after rollback', fencing_token FROM lock_acquire('k', '10 min', 'alice-1');
TRUNCATE app_lock;
INSERT INTO t.tokens (how, token) SELECT 'after truncate', fencing_token FROM lock_acquire('k', '10 min', 'alice-1');
\c -
SET client_min_messages = warning;
SELECT lock_release('k', 'alice-1');
INSERT INTO t.tokens (how, token) SELECT 'in another session', fencing_token FROM lock_acquire('k', '10 min', 'alice-1');
CHECKPOINT;
SELECT lock_release('k', 'alice-1');
INSERT INTO t.tokens (how, token) SELECT 'after checkpoint', fencing_token FROM lock_acquire('k', '10 min', 'alice-1');
SELECT how, token > lag(token, 1, 0::bigint) OVER (ORDER BY id) AS rises FROM t.tokens ORDER BY id;

-- A lease keeps its token while it lives.
SELECT DISTINCT token = max AS same FROM (SELECT max(token) FROM t.tokens) m,
	(SELECT fencing_token FROM lock_acquire('k', owner => 'alice-1') UNION ALL SELECT (lock_status('k')).fencing_token FROM lock_extend('k', 'alice-1', '1 hour')
	UNION ALL SELECT fencing_token FROM app_lock WHERE key = 'k') t(token);

-- Tokens of different keys differ, too; those of one statement rise in order.
SELECT count(DISTINCT fencing_token) AS tokens, bool_and(rises) AS in_order
FROM (SELECT fencing_token, fencing_token > lag(fencing_token, 1, 0::bigint) OVER (ORDER BY i) AS rises FROM generate_series(1, 800) i, LATERAL lock_acquire('many:' || i) g) x;
-- tokens still rise when the numbers that were logged ahead are used up
SELECT count(DISTINCT fencing_token) AS tokens, min(fencing_token) > (SELECT max(fencing_token) FROM app_lock WHERE key LIKE 'many:%') AS higher
FROM (SELECT fencing_token FROM generate_series(1, 900) i, LATERAL lock_acquire('more:' || i)) x;

-- The caller's lastval() and currval() do not change.
\c -
SET client_min_messages = warning;
SELECT acquired FROM lock_acquire('lastval', '10 min', 'alice-1');
SELECT t.code('SELECT lastval()') AS lastval, t.code('SELECT currval(''app_lock_fence'')') AS currval;
CREATE SEQUENCE own START 77;
SELECT nextval('own');
SELECT count(*) FROM generate_series(1, 10) i, LATERAL lock_acquire('lastval:' || i);
SELECT lastval(), currval('own');
-- nor does a transaction that has drawn numbers of its own suffer
BEGIN;
SELECT nextval('own');
SELECT acquired FROM lock_acquire('both', '10 min', 'alice-1');
SELECT nextval('own'), lastval();
COMMIT;
DROP SEQUENCE own;

-- The sequence can be read like any other; drawing from it leaves a gap.
SELECT fencing_token AS token FROM lock_acquire('gap') \gset
SELECT nextval('app_lock_fence') > :token AS drawn, nextval('app_lock_fence') > :token AS drawn;
SELECT fencing_token > :token + 2 AS rises FROM lock_acquire('gap 2');
SELECT last_value > :token AS last_value, is_called FROM app_lock_fence;
SELECT data_type, start_value, min_value, max_value, increment_by, cycle, cache_size FROM pg_sequences WHERE sequencename = 'app_lock_fence';

-- No number is given twice: in another session, another transaction, or after a rollback.
BEGIN;
SELECT fencing_token AS undone FROM lock_acquire('undone') \gset
ROLLBACK;
SELECT fencing_token > :undone AS rises FROM lock_acquire('undone');
\c -
SET client_min_messages = warning;
SELECT fencing_token > :undone + 1 AS rises FROM lock_acquire('undone 2');

-- An extension that is dropped and created again continues above all tokens it ever gave in
-- this database,
SELECT max(fencing_token) AS token FROM app_lock \gset
DROP EXTENSION atomic_lock CASCADE;
CREATE EXTENSION atomic_lock;
SELECT fencing_token > :token AS rises, fencing_token AS token FROM lock_acquire('again', owner => 'alice-1') \gset
\echo :rises
SELECT lock_release('again', 'alice-1');
-- even if that transaction is rolled back
BEGIN;
DROP EXTENSION atomic_lock CASCADE;
CREATE EXTENSION atomic_lock;
SELECT fencing_token > :token AS rises, fencing_token AS token FROM lock_acquire('again', owner => 'alice-1') \gset
\echo :rises
ROLLBACK;
SELECT lock_try_release('again', 'alice-1');

-- If the sequence went back or was restored from elsewhere, a new epoch begins above every
-- token ever given.
SELECT max(fencing_token) AS token FROM app_lock \gset
SELECT setval('app_lock_fence', 1);
SELECT fencing_token AS next FROM lock_acquire('restored') \gset
SELECT :next > :token AS rises;
ALTER SEQUENCE app_lock_fence RESTART;
SELECT fencing_token > :next AS rises, fencing_token AS next FROM lock_acquire('restarted') \gset
\echo :rises
SELECT setval('app_lock_fence', 1, false);
\c -
SET client_min_messages = warning;
SELECT fencing_token > :next AS rises, fencing_token AS next FROM lock_acquire('another session') \gset
\echo :rises
-- where the clock would give a lower number, a wide gap serves instead
SELECT setval('app_lock_fence', 5000000000000000);
SELECT fencing_token AS next FROM lock_acquire('clock behind') \gset
SELECT :next > 5000000000000000 + 1000000 AS far_above;
SELECT setval('app_lock_fence', :next) = :next AS set;
SELECT fencing_token > :next + 1000000 AS far_above, fencing_token AS next FROM lock_acquire('clock behind 2') \gset
\echo :far_above
-- the jump happens once for all sessions
SELECT fencing_token - :next AS step FROM lock_acquire('step 1');
\c -
SET client_min_messages = warning;
SELECT fencing_token - :next AS step FROM lock_acquire('step 2');
CHECKPOINT;
SELECT fencing_token - :next AS step FROM lock_acquire('step 3');
-- and a rollback does not undo it
BEGIN;
SELECT setval('app_lock_fence', :next + 100) = :next + 100 AS set;
SELECT fencing_token AS undone FROM lock_acquire('undone 3') \gset
ROLLBACK;
SELECT fencing_token - :undone AS step FROM lock_acquire('undone 3');

-- When the sequence ends, no more grants are made; calls that need no token still work.
SELECT acquired FROM lock_acquire('held', '10 min', 'alice-1');
SELECT setval('app_lock_fence', 9223372036853710830) > 0 AS set;
CREATE FUNCTION t.exhaust() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	token	bigint;
	last	bigint := 9223372036853710830;
BEGIN
	FOR i IN 1..1030 LOOP
		token := (lock_acquire('last', '10 min', 'alice-1')).fencing_token;
		ASSERT token > last, 'a token that does not rise';
		last := token;
		PERFORM lock_release('last', 'alice-1');
	END LOOP;
	RETURN 'no end';
EXCEPTION WHEN sequence_generator_limit_exceeded THEN
	RETURN CASE WHEN last > 9223372036853710830 THEN 'some, then no more' ELSE 'none' END;
END
$$;
SELECT t.exhaust();
SELECT t.exhaust();
SELECT t.raises('SELECT lock_acquire(''too late'')');
SELECT t.code('SELECT lock_try_acquire(''too late'')') AS try, t.code('SELECT lock_steal(''held'', ''bob-1'', ''why'')') AS steal, t.code('SELECT lock_acquire(''too late'')') AS again;
SELECT (lock_status('too late')).locked, (SELECT count(*) FROM app_lock WHERE key = 'too late') AS rows;
SELECT status FROM lock_acquire('held', owner => 'alice-1');
SELECT status FROM lock_try_acquire('held', owner => 'bob-1');
SELECT lock_extend('held', 'alice-1') IS NOT NULL AS extended, lock_release('held', 'alice-1');
SELECT setval('app_lock_fence', 9223372036854775807) > 0 AS set;
SELECT t.code('SELECT lock_acquire(''too late'')');
\c -
SET client_min_messages = warning;
SELECT t.code('SELECT lock_acquire(''too late'')') AS another_session;
