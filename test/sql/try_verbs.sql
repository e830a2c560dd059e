\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- lock_try_convert, lock_try_transfer, lock_transfer_all, lock_try_force_release, and
-- lock_grant.ttl_remaining
--
-- Properties: each answers with a status where its counterpart raises, agrees with it in every
-- situation, and writes nothing when it refuses. ttl_remaining is the time left at the moment
-- of the answer.
--
-- Turns red when: the two forms disagree; a refusal raises or writes; lock_transfer_all misses
-- a holding, or takes an ended one.
--
CREATE FUNCTION t.situation(k text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF k <> 'never' THEN
		PERFORM lock_acquire(k, '10 min', 'alice-1', CASE WHEN k ~ 'shared' THEN 'shared' ELSE 'exclusive' END, holder => 'Alice');
	END IF;
	CASE k
		WHEN 'released' THEN PERFORM lock_release(k, 'alice-1');
		WHEN 'expired' THEN PERFORM t.run_out(k, 'alice-1');
		WHEN 'forced' THEN PERFORM force_release(k, 'why');
		WHEN 'stolen' THEN PERFORM lock_steal(k, 'bob-1', 'why', holder => 'Bob');
		WHEN 'handed over' THEN PERFORM lock_transfer(k, 'alice-1', 'bob-1', 'Bob');
		WHEN 'shared by two' THEN PERFORM lock_acquire(k, '1 hour', 'bob-1', 'shared', holder => 'Bob');
		ELSE NULL;
	END CASE;
END
$$;
CREATE TABLE t.situations (id serial, key text);
INSERT INTO t.situations (key) VALUES ('held'), ('shared'), ('shared by two'), ('never'), ('released'), ('expired'), ('forced'), ('stolen'), ('handed over');
SELECT t.situation(key) FROM t.situations ORDER BY id \g /dev/null

-- Refused: the status, the present holder, and nothing written. The functions that raise agree.
CREATE FUNCTION t.compare(call text, key text) RETURNS TABLE (acquired boolean, status text, mode text, owner text, holder text, token boolean, has_end boolean, remaining boolean, raised text) LANGUAGE plpgsql AS $$
BEGIN
	RETURN QUERY EXECUTE format('SELECT acquired, status, mode, owner, holder, fencing_token > 0, expires_at IS NOT NULL, ttl_remaining IS NOT NULL, %L FROM lock_try_%s', t.code('SELECT lock_' || call), call);
END
$$;
BEGIN;
SELECT s.key, g.* FROM t.situations s, t.compare(format('convert(%L, ''alice-1'', ''exclusive'')', s.key), s.key) g WHERE s.key NOT IN ('held', 'shared') ORDER BY s.id;
SELECT s.key, g.* FROM t.situations s, t.compare(format('transfer(%L, ''alice-1'', ''new-1'', ''New'')', s.key), s.key) g WHERE s.key !~ 'held|shared' ORDER BY s.id;
SELECT g.status, g.waited >= '10 ms' AS waited FROM lock_try_convert('shared by two', 'alice-1', wait => '10 ms') g;
SELECT * FROM t.left_open();
COMMIT;
-- granted
SELECT key, g.* FROM (VALUES (1, 'held', 'shared'), (2, 'held', 'shared'), (3, 'shared', 'exclusive'), (4, 'shared by two', 'shared')) v (i, key, mode), t.compare(format('convert(%L, ''alice-1'', %L)', key, mode), key) g ORDER BY i;
SELECT key, g.* FROM unnest(ARRAY['held', 'shared', 'shared by two']) key, t.compare(format('transfer(%L, ''alice-1'', ''new-1'', ''New'')', key), key) g;
SELECT lock_is_held('held', 'new-1'), lock_is_held('held', 'alice-1'), lock_held.key FROM lock_held('new-1');
-- max_lifetime
SET atomic_lock.max_lifetime = '1 ms';
SELECT g.acquired, g.status, g.mode, g.holder, g.ttl_remaining FROM lock_try_transfer('held', 'new-1', 'alice-1', ttl => '1 ms') g;
RESET atomic_lock.max_lifetime;
-- a holding of a prepared transaction, whose owner is unknown; a ttl for a transaction's
-- holding is an invalid argument
BEGIN;
SELECT status FROM lock_acquire('tx', owner => 'alice-1', lifetime => 'transaction');
SELECT t.code($$SELECT lock_try_transfer('tx', 'alice-1', 'bob-1', ttl => '1 min')$$);
SELECT status, lock_is_held('tx', 'bob-1') FROM lock_try_transfer('tx', 'alice-1', 'bob-1');
COMMIT;
SELECT current_setting('max_prepared_transactions')::int > 0 AS twophase \gset
\if :twophase
BEGIN;
SELECT status FROM lock_acquire('prepared', owner => 'alice-1', lifetime => 'transaction');
PREPARE TRANSACTION 'regress_al_try';
SELECT status, holder, expires_at FROM lock_try_transfer('prepared', 'alice-1', 'bob-1');
SELECT lock_try_force_release('prepared', 'why');
SELECT t.code($$SELECT lock_transfer_all('nobody', 'bob-1')$$) AS others;
ROLLBACK PREPARED 'regress_al_try';
SELECT count(*) AS records FROM lock_audit WHERE key = 'prepared';
\else
\echo max_prepared_transactions is 0
\endif

-- Bad arguments are refused whatever the state of the lock
SELECT a, t.code('SELECT lock_try_transfer(' || a || ')') AS code, t.code('SELECT lock_transfer(' || a || ')') AS same
FROM unnest(ARRAY['NULL, ''o'', ''n''', '''never'', NULL, ''n''', '''never'', ''o'', NULL', '''never'', ''o'', ''''', '''never'', ''o'', repeat(''x'', 256)', '''never'', ''o'', ''n'', repeat(''x'', 256)', '''never'', ''o'', ''n'', NULL, ''25 h''', '''never'', ''o'', ''n''']) WITH ORDINALITY u(a, i) ORDER BY i;
SELECT a, t.code('SELECT lock_try_convert(' || a || ')') AS code, t.code('SELECT lock_convert(' || a || ')') AS same
FROM unnest(ARRAY['NULL, ''o''', '''never''', '''never'', ''''', '''never'', ''o'', NULL', '''never'', ''o'', ''x''', '''never'', ''o'', wait => ''-1''', '''never'', ''o'', wait => ''1 month''', '''never'', ''o''']) WITH ORDINALITY u(a, i) ORDER BY i;
SELECT a, t.code('SELECT lock_try_force_release(' || a || ')') AS code, t.code('SELECT force_release(' || a || ')') AS same
FROM unnest(ARRAY['NULL, ''why''', ''''', ''why''', '''never'', NULL', '''never'', ''''', '''never'', repeat(''x'', 1025)', '''never'', ''why''']) WITH ORDINALITY u(a, i) ORDER BY i;
SELECT a, split_part(t.raises('SELECT lock_transfer_all(' || a || ')'), E'\n', 1) AS answer
FROM unnest(ARRAY['NULL, ''n''', '''o'', NULL', ''''', ''n''', '''o'', ''''', 'repeat(''x'', 256), ''n''', '''o'', repeat(''x'', 256)', '''o'', ''n'', repeat(''x'', 256)', '''o'', ''n''']) WITH ORDINALITY u(a, i) ORDER BY i;
BEGIN READ ONLY;
SELECT t.raises(s) FROM unnest(ARRAY['SELECT lock_try_transfer(''k'', ''o'', ''n'')', 'SELECT lock_try_convert(''k'', ''o'')', 'SELECT lock_transfer_all(''o'', ''n'')', 'SELECT lock_try_force_release(''k'', ''why'')']) s;
COMMIT;

--
-- lock_transfer_all
--
SELECT count(*) FROM generate_series(1, 5) i, LATERAL lock_acquire('all:' || i, '10 min', 'ann', CASE i WHEN 2 THEN 'shared' ELSE 'exclusive' END, holder => 'Ann');
SELECT status FROM lock_acquire('all:2', '1 hour', 'job', 'shared');
SELECT lock_release('all:3', 'ann'), t.run_out('all:4', 'ann');
SELECT count(*) AS others FROM generate_series(1, 2) i, LATERAL lock_acquire('others:' || i, '10 min', 'bea');
CREATE TABLE t.tokens AS SELECT key, fencing_token FROM lock_held('ann');
SELECT lock_transfer_all('ann', 'job', 'nightly job');
SELECT h.key, h.mode, s.holder, h.fencing_token > k.fencing_token AS token_rises, round(extract(epoch FROM h.ttl_remaining) / 60) AS minutes FROM lock_held('job') h LEFT JOIN t.tokens k USING (key), lock_status(h.key) s;
SELECT count(*) AS left FROM lock_held('ann');
SELECT lock_try_release('all:1', 'ann'), lock_transfer_all('ann', 'job'), lock_transfer_all('nobody', 'job');
-- holdings of the transaction; the owner from the setting; a transfer to the same owner
BEGIN;
SELECT status FROM lock_acquire('all:tx', owner => 'job', lifetime => 'transaction');
SET LOCAL atomic_lock.owner = 'job';
SELECT lock_transfer_all(NULL, 'ann', 'Ann');
SELECT key, lifetime FROM lock_held('ann');
SELECT lock_transfer_all('ann', 'ann');
ROLLBACK;
SELECT count(*) AS job, (SELECT count(*) FROM lock_held('ann')) AS ann FROM lock_held('job');
-- the default label
SELECT lock_transfer_all('job', 'ann');
SELECT DISTINCT holder = current_setting('application_name') AS application FROM lock_held('ann') h, lock_status(h.key) WHERE h.mode = 'exclusive';
-- a generated owner
SELECT owner FROM lock_acquire('generated', '10 min') \gset
SELECT lock_transfer_all(:'owner', 'ann'), lock_is_held('generated', 'ann');

--
-- lock_try_force_release
--
TRUNCATE lock_audit;
SELECT status FROM lock_acquire('force', '10 min', 'alice-1', 'shared');
SELECT status FROM lock_acquire('force', '10 min', 'bob-1', 'shared');
SELECT t.fingerprint() AS before \gset
BEGIN;
SELECT lock_try_force_release('never', 'why'), lock_try_force_release('released', 'why'), lock_try_force_release('expired', 'why');
SELECT * FROM t.left_open();
COMMIT;
SELECT t.fingerprint() = :'before' AS unchanged, (SELECT count(*) FROM lock_audit) AS records;
SELECT lock_try_force_release(reason => 'end of day', key => 'force');
SELECT action, key, reason FROM lock_audit;
SELECT lock_try_force_release('force', 'again'), lock_try_release('force', 'alice-1') AS alice, lock_try_release('force', 'bob-1') AS bob;

--
-- The time left, by the clock of the server
--
CREATE FUNCTION t.left_of(g lock_grant) RETURNS text LANGUAGE sql AS $$ SELECT concat_ws(' ', g.status, coalesce(round(extract(epoch FROM g.ttl_remaining) / 60)::text, '-')) $$;
SELECT t.left_of(lock_acquire('time', '10 min', 'alice-1')) AS acquired, t.left_of(lock_acquire('time', '20 min', 'alice-1')) AS reacquired, t.left_of(lock_try_acquire('time', owner => 'bob-1')) AS held,
	t.left_of(lock_convert('time', 'alice-1', 'shared')) AS converted, t.left_of(lock_convert('time', 'alice-1', 'shared')) AS unchanged, t.left_of(lock_transfer('time', 'alice-1', 'bob-1')) AS transferred,
	t.left_of(lock_transfer('time', 'bob-1', 'carol-1', ttl => '5 min')) AS with_ttl, t.left_of(lock_steal('time', 'dba-1', 'why', '30 min')) AS stolen;
SELECT t.left_of(lock_acquire('session', owner => 'alice-1', lifetime => 'session')) AS session, t.left_of(lock_acquire('session', '1 h', 'alice-1', lifetime => 'session')) AS with_ttl,
	t.left_of(lock_acquire('transaction', owner => 'alice-1', lifetime => 'transaction')) AS transaction;
SELECT t.left_of(g) FROM lock_acquire_all('{set:1,set:2}', '15 min', 'alice-1') g;
SELECT t.left_of(g) FROM lock_try_acquire_all('{set:1,set:3}', '15 min', 'bob-1') g;
-- counted at the moment of the answer
SELECT g.ttl_remaining BETWEEN g.expires_at - clock_timestamp() AND '10 min' AS left FROM lock_acquire('moment', '10 min', 'alice-1') g;
