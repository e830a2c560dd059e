\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- lock_held and lock_heartbeat: an owner's holdings, and their renewal
--
-- Properties: lock_held lists all live holdings of one owner, of every lifetime, by key.
-- lock_heartbeat extends those it can, and gives the status of each key that was asked for,
-- such as lost or forced.
--
-- Turns red when: an ended holding or one of another owner is listed; one lost key makes the
-- heartbeat of the others fail; a heartbeat writes without extending.
--
-- The owner's live holdings in the order of keys; none that has ended or is another owner's
SELECT count(*) FROM unnest(ARRAY['b', 'a', 'ä', 'B', 'released', 'short', 'forced']) k, LATERAL lock_acquire(k, '10 min', 'alice-1', holder => 'Alice', meta => jsonb_build_object('k', k));
SELECT status FROM lock_acquire('shared', '10 min', 'bob-1', 'shared');
SELECT status FROM lock_acquire('shared', '20 min', 'alice-1', 'shared');
SELECT status FROM lock_acquire('session', owner => 'alice-1', lifetime => 'session');
SELECT status FROM lock_acquire('session, for a time', '1 h', 'alice-1', lifetime => 'session');
SELECT lock_release('released', 'alice-1'), t.run_out('short', 'alice-1'), force_release('forced', 'why');
SELECT count(*) AS not_mine FROM generate_series(1, 3) i, LATERAL lock_acquire('other:' || i, '10 min', 'bob-1');
CREATE VIEW t.mine AS
	SELECT h.key, h.mode, h.lifetime, h.fencing_token = s.fencing_token AS token, h.acquired_at = s.acquired_at AS since,
		h.expires_at IS NOT DISTINCT FROM s.expires_at AS until, round(extract(epoch FROM h.ttl_remaining) / 60) AS minutes, h.meta
	FROM lock_held('alice-1') h LEFT JOIN LATERAL (SELECT fencing_token, acquired_at, nullif(expires_at, 'infinity') AS expires_at FROM app_lock WHERE key = h.key AND owner = 'alice-1' AND NOT released) s ON true;
SELECT * FROM t.mine;
SELECT * FROM lock_held('nobody');
SELECT * FROM lock_held('ALICE-1');
-- by the owner in the setting, and by a generated owner
SET atomic_lock.owner = 'bob-1';
SELECT key, mode FROM lock_held();
RESET atomic_lock.owner;
SELECT owner FROM lock_acquire('generated', '10 min') \gset
SELECT key, mode, lifetime FROM lock_held(:'owner');
SELECT status FROM lock_convert('generated', :'owner', 'shared');
SELECT status FROM lock_acquire('generated 2', '10 min', :'owner');
SELECT key, mode, lifetime FROM lock_held(owner => :'owner');
-- a large meta, which is stored outside of the row
SELECT status FROM lock_acquire('large', '10 min', 'carol-1', meta => (SELECT jsonb_agg(md5(i::text)) FROM generate_series(1, 200) i));
SELECT key, jsonb_array_length(meta) FROM lock_held('carol-1');

-- The transaction's own holdings without a row, and its own changes
BEGIN;
SELECT status FROM lock_acquire('tx', owner => 'alice-1', lifetime => 'transaction');
SELECT lock_release('b', 'alice-1');
SAVEPOINT a;
SELECT lock_release('tx', 'alice-1');
SELECT status FROM lock_acquire('later', '1 min', 'alice-1');
SELECT key, lifetime, expires_at IS NULL AS no_end, ttl_remaining IS NULL AS none FROM lock_held('alice-1') WHERE key IN ('b', 'later', 'tx');
ROLLBACK TO a;
SELECT key, lifetime, expires_at IS NULL AS no_end, ttl_remaining IS NULL AS none FROM lock_held('alice-1') WHERE key IN ('b', 'later', 'tx');
-- a holding with lifetime transaction becomes a lease, and is listed as one
SELECT status FROM lock_acquire('tx', '10 min', 'alice-1');
SELECT key, lifetime, expires_at IS NULL AS no_end FROM lock_held('alice-1') WHERE key = 'tx';
COMMIT;
SELECT lock_release('tx', 'alice-1');
-- it agrees with lock_is_held on every key
SELECT count(*) AS wrong FROM (SELECT key FROM app_lock UNION SELECT 'never') k LEFT JOIN lock_held('alice-1') h USING (key) WHERE lock_is_held(k.key, 'alice-1') IS DISTINCT FROM (h.key IS NOT NULL);

-- Bad owners; read-only transactions; nothing is written.
SELECT a, split_part(t.raises('SELECT * FROM lock_held(' || a || ')'), E'\n', 1) AS answer FROM unnest(ARRAY['', 'NULL', '''''', 'repeat(''x'', 256)', 'repeat(''x'', 255)']) WITH ORDINALITY u(a, i) ORDER BY i;
SELECT t.fingerprint() AS before \gset
BEGIN READ ONLY;
SELECT count(*) FROM lock_held('alice-1');
SELECT * FROM t.left_open();
SELECT t.code($$SELECT * FROM lock_heartbeat(owner => 'alice-1')$$);
COMMIT;
SELECT t.fingerprint() = :'before' AS unchanged;

--
-- lock_heartbeat: the status of each key
--
CREATE FUNCTION t.beat(keys text[], o text, ttl interval DEFAULT NULL, OUT key text, OUT status text, OUT minutes numeric, OUT exact boolean) RETURNS SETOF record LANGUAGE sql AS $$
	SELECT b.key, b.status, round(extract(epoch FROM b.ttl_remaining) / 60),
		b.expires_at IS NOT DISTINCT FROM (SELECT s.expires_at FROM lock_held(o) s WHERE s.key = b.key)
	FROM lock_heartbeat(keys, o, ttl) b
$$;
SELECT * FROM t.beat(ARRAY['shared', 'never', 'b', 'a', 'forced', 'other:1', 'released', 'short', 'session', 'session, for a time', 'a', 'B'], 'alice-1');
SELECT * FROM t.beat(NULL, 'alice-1', '30 min');
SELECT * FROM t.beat(NULL, 'nobody');
SELECT * FROM t.beat(ARRAY['a'], 'bob-1');
SELECT * FROM t.beat(NULL, :'owner', '30 min');
-- stolen, and swept
SELECT lock_steal('B', 'bob-1', 'Alice is ill') IS NOT NULL AS stolen, t.run_out('a', 'alice-1'), lock_sweep() > 0 AS swept;
SELECT * FROM t.beat(ARRAY['a', 'B'], 'alice-1');
-- owner from the setting; arguments by name; each lease repeats its own ttl
SET atomic_lock.owner = 'alice-1';
SELECT key, status, round(extract(epoch FROM ttl_remaining) / 60) AS minutes FROM lock_heartbeat();
SELECT key, status, round(extract(epoch FROM ttl_remaining) / 60) AS minutes FROM lock_heartbeat(ttl => '20 min', keys => '{shared}');
RESET atomic_lock.owner;
-- holdings with lifetime transaction
BEGIN;
SELECT status FROM lock_acquire('tx', owner => 'alice-1', lifetime => 'transaction');
SELECT * FROM lock_heartbeat('{tx}', 'alice-1', '1 min');
SELECT key, status FROM lock_heartbeat(NULL, 'alice-1');
ROLLBACK;
-- max_lifetime is used up: status held
SET atomic_lock.max_lifetime = '1 h';
SELECT status FROM lock_acquire('life', '1 h', 'dora-1');
SELECT b.status, b.expires_at = s.expires_at AS until, b.ttl_remaining > '59 min' AS remaining FROM lock_heartbeat('{life}', 'dora-1', '1 h') b, lock_status('life') s;
RESET atomic_lock.max_lifetime;
-- a holding whose owner is unknown, in a prepared transaction: not extended, and not lost
SELECT current_setting('max_prepared_transactions')::int > 0 AS twophase \gset
\if :twophase
BEGIN;
SELECT status FROM lock_acquire('prepared', owner => 'dora-1', lifetime => 'transaction');
PREPARE TRANSACTION 'regress_al_held';
SELECT key, status, expires_at IS NULL AS no_end FROM lock_heartbeat('{life,prepared}', 'dora-1');
ROLLBACK PREPARED 'regress_al_held';
\else
\echo max_prepared_transactions is 0
\endif
-- a heartbeat that extends nothing writes nothing
SELECT t.fingerprint() AS before \gset
BEGIN;
SELECT key, status, expires_at, ttl_remaining FROM lock_heartbeat('{never,a,B,forced}', 'alice-1');
SELECT * FROM t.left_open();
COMMIT;
SELECT t.fingerprint() = :'before' AS unchanged;
-- rolled back with the transaction
SELECT expires_at AS until FROM lock_status('life') \gset
BEGIN;
SELECT key, status FROM lock_heartbeat('{life}', 'dora-1', '2 h');
ROLLBACK;
SELECT expires_at = :'until' AS undone FROM lock_status('life');
-- bad arguments are refused, whatever there is to extend
SELECT a, split_part(t.raises('SELECT * FROM lock_heartbeat(' || a || ')'), E'\n', 1) AS answer
FROM unnest(ARRAY['', 'NULL, NULL', '''{}'', ''o''', '''{x,NULL}'', ''o''', '''{{x},{y}}'', ''o''', '''{""}'', ''o''', 'ARRAY[repeat(''x'', 1025)], ''o''', 'ARRAY(SELECT i::text FROM generate_series(1, 1001) i), ''o''',
	'''{x}''', '''{x}'', ''''', '''{x}'', repeat(''x'', 256)', '''{x}'', ''o'', ''0''', '''{x}'', ''o'', ''25 h''', '''{x}'', ''o'', ''1 month''', 'NULL, ''o'', ''0''', 'ARRAY(SELECT i::text FROM generate_series(1, 1000) i), ''o''']) WITH ORDINALITY u(a, i) ORDER BY i;

-- At every isolation level, with an old snapshot
CREATE FUNCTION t.story(k text DEFAULT 'level') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text := current_setting('transaction_isolation');
BEGIN
	FOR i IN 1..2 LOOP
		answer := concat_ws(' ', answer, (lock_acquire(k, '10 min', 'zoe-1')).status, (SELECT string_agg(key || '/' || mode, ',') FROM lock_held('zoe-1')),
			(SELECT string_agg(status, ',') FROM lock_heartbeat(owner => 'zoe-1')), (lock_convert(k, 'zoe-1', 'shared')).status, (SELECT string_agg(key || '/' || mode, ',') FROM lock_held('zoe-1')),
			lock_release(k, 'zoe-1'), (SELECT count(*) FROM lock_held('zoe-1')), (SELECT string_agg(status, ',') FROM lock_heartbeat(ARRAY[k, 'level 2'], 'zoe-1')));
	END LOOP;
	RETURN answer;
END
$$;
:at_every_level

-- Privileges
DROP ROLE IF EXISTS regress_al_user, regress_al_none;
CREATE ROLE regress_al_user;
CREATE ROLE regress_al_none;
SELECT lock_grant_access('regress_al_user', 'user');
SET ROLE regress_al_user;
SELECT count(*) FROM lock_held('alice-1');
SELECT key, status FROM lock_heartbeat('{life,forced}', 'dora-1');
SET ROLE regress_al_none;
SELECT t.code($$SELECT * FROM lock_held('alice-1')$$), t.code($$SELECT * FROM lock_heartbeat(NULL, 'alice-1')$$);
RESET ROLE;
SELECT lock_revoke_access('regress_al_user', 'user');
REVOKE ALL ON SCHEMA public FROM regress_al_user;
DROP ROLE regress_al_user, regress_al_none;
