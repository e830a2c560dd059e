\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- The tables changed by hand: triggers, rules, row security, indexes, DDL, odd rows
--
-- Properties: calls never run code of a trigger, rule, policy or index on our tables. They keep
-- ordinary B-tree indexes up to date, survive rewrites, and refuse a table or index that they
-- cannot handle, without writing. A wrong row harms its own key only.
--
-- Turns red when: foreign code runs; an index misses rows; a changed table is used as if
-- unchanged; an odd row crashes a call or makes a sweep loop.
--
CREATE TABLE t.log (what text);
CREATE FUNCTION t.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO t.log VALUES (concat_ws(' ', TG_NAME, TG_TABLE_NAME, TG_OP, current_user));
	RETURN coalesce(NEW, OLD);
END
$$;
CREATE FUNCTION t.story() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text;
BEGIN
	answer := concat_ws(' ', (lock_acquire('k', '10 min', 'alice-1', holder => 'Alice', meta => '1')).status, (lock_acquire('k', '10 min', 'alice-1')).status,
		(lock_try_acquire('k', '10 min', 'bob-1')).status, lock_extend('k', 'alice-1') IS NOT NULL, (lock_status('k')).locked, lock_holder('k'),
		(SELECT count(*) FROM lock_status()), lock_try_release('k', 'alice-1'), lock_try_release('k', 'alice-1'), (lock_acquire('k', '10 min')).status,
		lock_release_all('alice-1'), force_release('k', 'why'), (lock_steal('k', 'dba-1', 'why')).status, lock_extend_all('dba-1'), lock_release_all('dba-1'));
	-- An UPDATE would lock the rows because of the trigger for replication, and a sweep skips
	-- locked rows.
	WITH r AS (DELETE FROM app_lock WHERE released RETURNING *)
	INSERT INTO app_lock SELECT fencing_token, acquired_at, expires_at - interval '1 day', ttl_us, slot, mode, role, key, released, holder, owner, owner_hash, meta, pid, backend_start FROM r;
	answer := concat_ws(' ', answer, lock_sweep(), lock_try_release('k', 'dba-1'));
	DELETE FROM lock_audit;
	DELETE FROM app_lock;
	RETURN answer;
END
$$;
SELECT t.story();

-- Triggers and rules on the tables do not run, and row security is ignored.
CREATE TRIGGER b BEFORE INSERT OR UPDATE OR DELETE ON app_lock FOR EACH ROW EXECUTE FUNCTION t.note();
CREATE TRIGGER a AFTER INSERT OR UPDATE OR DELETE ON app_lock FOR EACH ROW EXECUTE FUNCTION t.note();
CREATE TRIGGER s BEFORE INSERT OR UPDATE OR DELETE ON app_lock FOR EACH STATEMENT EXECUTE FUNCTION t.note();
ALTER TABLE app_lock ENABLE ALWAYS TRIGGER b;
CREATE TRIGGER b BEFORE INSERT ON lock_audit FOR EACH ROW EXECUTE FUNCTION t.note();
CREATE TRIGGER a AFTER INSERT ON lock_audit FOR EACH ROW EXECUTE FUNCTION t.note();
SELECT (lock_acquire('k', '10 min', 'alice-1', holder => 'Alice', meta => '1')).status, (lock_acquire('k', '1 hour', 'alice-1')).status AS again, lock_extend('k', 'alice-1') IS NOT NULL AS extended,
	lock_release('k', 'alice-1'), (lock_steal('k', 'dba-1', 'why')).status AS stolen, force_release('k', 'why'), (lock_acquire('x', '1 ms')).status;
SELECT t.expire('x');
SELECT lock_sweep();
SELECT * FROM t.log;
DROP TRIGGER b ON app_lock;
DROP TRIGGER a ON app_lock;
DROP TRIGGER s ON app_lock;
DROP TRIGGER a ON lock_audit;
DROP TRIGGER b ON lock_audit;
CREATE RULE i AS ON INSERT TO app_lock DO ALSO INSERT INTO t.log VALUES ('rule');
CREATE RULE u AS ON UPDATE TO app_lock DO INSTEAD INSERT INTO t.log VALUES ('rule');
CREATE RULE d AS ON DELETE TO app_lock DO INSTEAD NOTHING;
CREATE RULE i AS ON INSERT TO lock_audit DO INSTEAD NOTHING;
SELECT (lock_acquire('k2', '10 min', 'alice-1')).status, lock_extend('k2', 'alice-1') IS NOT NULL AS extended, force_release('k2', 'why'), (SELECT count(*) FROM lock_audit WHERE key = 'k2') AS records;
SELECT * FROM t.log;
DROP RULE i ON app_lock;
DROP RULE u ON app_lock;
DROP RULE d ON app_lock;
DROP RULE i ON lock_audit;
DROP ROLE IF EXISTS regress_al_user;
CREATE ROLE regress_al_user;
SELECT lock_grant_access('regress_al_user', 'user');
ALTER TABLE app_lock ENABLE ROW LEVEL SECURITY;
ALTER TABLE app_lock FORCE ROW LEVEL SECURITY;
CREATE POLICY nothing ON app_lock USING (t.note() IS NULL);
SELECT acquired FROM lock_acquire('k3', '10 min', 'alice-1', holder => 'Alice');
SET ROLE regress_al_user;
SELECT status, holder FROM lock_try_acquire('k3', '10 min', 'bob-1');
SELECT lock_release('k3', 'alice-1');
SELECT acquired FROM lock_acquire('k3', '10 min', 'bob-1');
SET row_security = off;
SELECT lock_release('k3', 'bob-1');
RESET row_security;
RESET ROLE;
DROP POLICY nothing ON app_lock;
ALTER TABLE app_lock NO FORCE ROW LEVEL SECURITY;
ALTER TABLE app_lock DISABLE ROW LEVEL SECURITY;
DROP OWNED BY regress_al_user;
DROP ROLE regress_al_user;
DELETE FROM app_lock;
DELETE FROM lock_audit;

-- Calls are refused while an index exists that would run code, or that we do not maintain.
CREATE FUNCTION t.index_code(text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$BEGIN INSERT INTO t.log VALUES ('index'); RETURN $1; END$$;
CREATE FUNCTION t.with_index(text) RETURNS TABLE (ddl text, acquire text, other text, healed text) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE $1;
	ddl := $1;
	acquire := t.raises('SELECT lock_acquire(''k'')');
	other := (SELECT string_agg(DISTINCT t.code('SELECT ' || f), ' ') FROM unnest(ARRAY['lock_try_acquire(''k'')', 'lock_release(''k'', ''o'')', 'lock_try_release(''k'', ''o'')', 'lock_extend(''k'', ''o'')',
		'lock_release_all(''o'')', 'lock_extend_all(''o'')', 'force_release(''k'', ''r'')', 'lock_steal(''k'', ''o'', ''r'')', 'lock_sweep()']) f);
	DROP INDEX own_index;
	healed := t.story();
	RETURN NEXT;
END
$$;
SELECT * FROM t.with_index('CREATE INDEX own_index ON app_lock (lower(key))') \gx
SELECT * FROM t.with_index('CREATE INDEX own_index ON app_lock (t.index_code(key))') \gx
SELECT * FROM t.with_index('CREATE UNIQUE INDEX own_index ON app_lock (key) WHERE NOT released') \gx
SELECT * FROM t.with_index('CREATE INDEX own_index ON app_lock (key) WHERE t.index_code(key) = key') \gx
SELECT * FROM t.with_index('CREATE INDEX own_index ON app_lock USING hash (key)') \gx
SELECT * FROM t.with_index('CREATE INDEX own_index ON app_lock USING brin (expires_at)') \gx
SELECT * FROM t.with_index('CREATE INDEX own_index ON app_lock USING gin (meta)') \gx
SELECT * FROM t.log;
-- a constraint with such an index
ALTER TABLE app_lock ADD CONSTRAINT own_constraint UNIQUE (fencing_token) DEFERRABLE;
SELECT t.raises('SELECT lock_acquire(''k'')');
ALTER TABLE app_lock DROP CONSTRAINT own_constraint;
SELECT t.story();
ALTER TABLE app_lock ADD CONSTRAINT own_constraint EXCLUDE USING btree (fencing_token WITH =);
SELECT t.raises('SELECT lock_acquire(''k'')');
ALTER TABLE app_lock DROP CONSTRAINT own_constraint;
SELECT t.story();
-- the same for indexes on the other tables
SELECT acquired FROM lock_acquire('k', '10 min', 'alice-1');
CREATE INDEX own_index ON lock_audit (lower(key));
SELECT t.raises('SELECT force_release(''k'', ''why'')');
SELECT t.code('SELECT lock_steal(''k'', ''dba-1'', ''why'')') AS steal, lock_extend('k', 'alice-1') IS NOT NULL AS extend;
DROP INDEX own_index;
CREATE INDEX own_index ON lock_audit (at) WHERE t.index_code(key) = key;
SELECT t.code('SELECT force_release(''k'', ''why'')');
DROP INDEX own_index;
CREATE INDEX own_index ON lock_audit (at);
SELECT force_release('k', 'why');
DROP INDEX own_index;
SELECT t.story();
SELECT * FROM t.log;
-- After a rollback the index does not matter.
BEGIN;
CREATE INDEX own_index ON app_lock (lower(key));
SELECT t.code('SELECT lock_acquire(''k'')');
ROLLBACK;
SELECT t.story();

-- Plain indexes are kept up to date.
CREATE INDEX own_index ON app_lock (expires_at);
CREATE INDEX own_index_2 ON app_lock (holder, key DESC NULLS FIRST) INCLUDE (mode);
SELECT t.story();
SELECT count(*) FROM generate_series(1, 50) i, LATERAL lock_acquire('i:' || i, '10 min', 'alice-' || i % 3, holder => 'H' || i % 7);
SELECT count(*) FROM generate_series(1, 50) i, LATERAL lock_extend('i:' || i, 'alice-' || i % 3, '1 hour');
SELECT lock_release_all('alice-1');
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SELECT count(*) FROM app_lock WHERE expires_at > clock_timestamp() + interval '59 min';
SELECT count(*), count(*) FILTER (WHERE released) FROM app_lock WHERE holder = 'H3';
SELECT count(*) FROM app_lock WHERE expires_at < clock_timestamp() + interval '30 min';
RESET enable_seqscan;
RESET enable_bitmapscan;
DROP INDEX own_index, own_index_2;
SELECT lock_release_all('alice-0') + lock_release_all('alice-2');
DELETE FROM app_lock;

-- The table is rewritten and its indexes are rebuilt: the session continues.
SELECT fencing_token AS token FROM lock_acquire('kept', '10 min', 'alice-1') \gset
REINDEX TABLE app_lock;
SELECT lock_extend('kept', 'alice-1') IS NOT NULL AS extended, status FROM lock_try_acquire('kept');
REINDEX TABLE CONCURRENTLY app_lock;
SELECT lock_extend('kept', 'alice-1') IS NOT NULL AS extended, status FROM lock_try_acquire('kept');
VACUUM FULL app_lock;
SELECT lock_extend('kept', 'alice-1') IS NOT NULL AS extended, status FROM lock_try_acquire('kept');
CLUSTER app_lock USING app_lock_pkey;
VACUUM (FREEZE, ANALYZE) app_lock;
SELECT lock_extend('kept', 'alice-1') IS NOT NULL AS extended, status FROM lock_try_acquire('kept');
ALTER INDEX app_lock_pkey RENAME TO other_name;
SELECT lock_extend('kept', 'alice-1') IS NOT NULL AS extended, status FROM lock_try_acquire('kept');
ALTER INDEX other_name RENAME TO app_lock_pkey;
ALTER TABLE app_lock SET (fillfactor = 50);
SELECT fencing_token = :token AS same_token FROM lock_status('kept');
SELECT t.story() FROM lock_release('kept', 'alice-1') r;
TRUNCATE app_lock;
SELECT status, fencing_token > :token AS token_rises FROM lock_acquire('kept', '10 min', 'alice-1');
-- in one transaction with leases
BEGIN;
SELECT acquired FROM lock_acquire('in', '10 min', 'alice-1');
TRUNCATE app_lock;
SELECT acquired FROM lock_acquire('in', '10 min', 'bob-1');
ROLLBACK;
SELECT locked FROM lock_status('in');
SELECT lock_is_held('kept', 'alice-1');

-- A table with another structure raises an error instead of wrong answers.
BEGIN;
ALTER TABLE app_lock ADD COLUMN note text;
SELECT t.raises('SELECT lock_acquire(''k'')');
SELECT t.code('SELECT lock_status(''k'')'), t.code('SELECT lock_status()'), t.code('SELECT lock_holder(''k'')'), t.code('SELECT lock_sweep()');
ROLLBACK;
BEGIN;
ALTER TABLE app_lock RENAME COLUMN owner TO holder_2;
SELECT t.code('SELECT lock_acquire(''k'')');
ROLLBACK;
BEGIN;
ALTER TABLE app_lock ALTER COLUMN fencing_token TYPE numeric;
SELECT t.code('SELECT lock_acquire(''k'')');
ROLLBACK;
-- any enum type with the two modes works, in any order
BEGIN;
ALTER TABLE app_lock ALTER COLUMN mode TYPE text;
SELECT t.code('SELECT lock_acquire(''k'')');
ROLLBACK;
CREATE TYPE t.half AS ENUM ('shared');
CREATE TYPE t.other_way AS ENUM ('shared', 'exclusive');
BEGIN;
ALTER TABLE app_lock ALTER COLUMN mode TYPE t.half USING 'shared';
SELECT t.code('SELECT lock_acquire(''k'')');
ROLLBACK;
BEGIN;
ALTER TABLE app_lock ALTER COLUMN mode TYPE t.other_way USING mode::text::t.other_way;
SELECT acquired FROM lock_acquire('k', mode => 'shared');
SELECT mode FROM app_lock WHERE key IN ('k', 'kept') ORDER BY key;
ROLLBACK;
-- only a byte-wise collation is accepted
CREATE COLLATION t.other FROM "POSIX";
BEGIN;
ALTER TABLE app_lock ALTER COLUMN key TYPE text COLLATE t.other;
SELECT t.code('SELECT lock_acquire(''k'')'), t.code('SELECT lock_holder(''k'')');
ROLLBACK;
BEGIN;
ALTER TABLE app_lock DROP CONSTRAINT app_lock_pkey, ADD PRIMARY KEY (fencing_token);
SELECT t.code('SELECT lock_acquire(''k'')');
ROLLBACK;
BEGIN;
ALTER TABLE app_lock SET UNLOGGED;
SELECT t.code('SELECT lock_acquire(''k'')'), t.code('SELECT lock_holder(''k'')');
ROLLBACK;
BEGIN;
ALTER TABLE app_lock RENAME TO other_lock;
CREATE VIEW app_lock AS SELECT * FROM other_lock;
SELECT t.raises('SELECT lock_acquire(''k'')');
ROLLBACK;
BEGIN;
ALTER SEQUENCE app_lock_fence RENAME TO other_fence;
SELECT t.raises('SELECT lock_acquire(''k'')');
ROLLBACK;
BEGIN;
ALTER SEQUENCE app_lock_fence RENAME TO other_fence;
CREATE TABLE app_lock_fence AS SELECT * FROM other_fence;
SELECT t.raises('SELECT lock_acquire(''k'')');
ROLLBACK;
BEGIN;
ALTER TABLE app_lock DROP CONSTRAINT app_lock_pkey;
SELECT t.raises('SELECT lock_acquire(''k'')');
ROLLBACK;
BEGIN;
ALTER TABLE lock_audit ADD COLUMN note text;
SELECT t.code('SELECT force_release(''kept'', ''why'')');
ROLLBACK;
BEGIN;
ALTER TABLE lock_audit SET UNLOGGED;
SELECT t.code('SELECT force_release(''kept'', ''why'')');
ROLLBACK;
BEGIN;
ALTER TABLE lock_audit DROP COLUMN reason;
SELECT t.code('SELECT lock_steal(''kept'', ''dba-1'', ''why'')');
ROLLBACK;
BEGIN;
ALTER TABLE lock_audit RENAME TO other_audit;
SELECT t.raises('SELECT force_release(''kept'', ''why'')');
ROLLBACK;
SELECT t.code('DROP TABLE app_lock'), t.code('DROP FUNCTION lock_release(text, text)'), t.code('DROP TYPE lock_grant'), t.code('ALTER EXTENSION atomic_lock SET SCHEMA t');
SELECT lock_is_held('kept', 'alice-1');

-- Rows written by hand do no harm beyond their key.
UPDATE app_lock SET owner = NULL WHERE key = 'kept';
SELECT locked, owner, holder = '' AS label FROM lock_status('kept');
SELECT locked, owner FROM lock_status() WHERE key = 'kept';
SELECT lock_is_held('kept', 'alice-1'), lock_try_release('kept', 'alice-1'), lock_try_extend('kept', 'alice-1'), lock_release_all('alice-1'), (lock_try_acquire('kept', owner => 'alice-1')).status;
SELECT force_release('kept', 'a row without an owner');
SELECT key, previous_owner_digest FROM lock_audit;
INSERT INTO app_lock (fencing_token, acquired_at, expires_at, ttl_us, slot, role, key, mode, holder, owner) VALUES (1, 'infinity', 'infinity', 9223372036854775807, 0, 0, 'infinite', 'exclusive', 'x', 'alice-1'),
	(2, '-infinity', '-infinity', -9223372036854775808, 0, 0, 'minus infinite', 'exclusive', 'x', 'alice-1'),
	(3, now(), now() + interval '1 hour', 0, 0, 0, 'no length', 'exclusive', 'x', 'alice-1'),
	(4, now(), now() + interval '1 hour', -1, 0, 0, 'negative length', 'exclusive', 'x', 'alice-1'),
	(5, '4714-11-24 00:00:00+00 BC', '294276-12-31 23:59:59.999999+00', 1, 0, 0, 'long', 'exclusive', 'x', 'alice-1');
SELECT k, (lock_status(k)).locked, t.code(format('SELECT lock_acquire(%L)', k)) AS acquire, t.code(format('SELECT lock_acquire(%L, owner => %L)', k, 'alice-1')) AS reacquire,
	t.code(format('SELECT lock_extend(%L, %L)', k, 'alice-1')) AS extend, t.code(format('SELECT lock_extend(%L, %L, %L)', k, 'alice-1', '1 hour')) AS extend_to,
	t.code(format('SELECT lock_release(%L, %L)', k, 'alice-1')) AS release, t.code(format('SELECT force_release(%L, %L)', k, 'why')) AS force
FROM unnest(ARRAY['infinite', 'minus infinite', 'no length', 'negative length', 'long']) k;
SET atomic_lock.lock_delay = '1 d';
SET atomic_lock.max_lifetime = '1 d';
SELECT k, t.code(format('SELECT lock_acquire(%L)', k)) AS acquire, t.code(format('SELECT lock_extend(%L, %L)', k, 'alice-1')) AS extend
FROM unnest(ARRAY['infinite', 'minus infinite', 'no length', 'negative length', 'long']) k;
SELECT lock_sweep() >= 0 AS swept;
RESET atomic_lock.lock_delay;
RESET atomic_lock.max_lifetime;
SELECT lock_sweep() >= 0 AS swept;
SELECT count(*) FROM lock_status() WHERE key IN ('infinite', 'minus infinite', 'no length', 'negative length', 'long');
-- a folder that its owner shares, and another owner has exclusively
SELECT count(*) FROM lock_acquire_path('by hand/doc', owner => 'ann');
INSERT INTO app_lock (fencing_token, acquired_at, expires_at, ttl_us, slot, role, key, mode, holder, owner) VALUES (6, now(), now() + interval '1 hour', 1, 0, 0, 'by hand/', 'exclusive', 'x', 'bob');
SET statement_timeout = '1 min';
SELECT lock_release_path('by hand/doc', 'ann');
-- shares that an index does not have as their owner's, or that are in a wrong slot
SELECT g.status FROM lock_acquire('by hand 1', owner => 'ann', mode => 'shared') g;
SELECT g.status FROM lock_acquire('by hand 2', owner => 'ann', mode => 'shared') g;
SELECT g.status FROM lock_acquire('by hand 3', owner => 'ann', mode => 'shared') g;
SELECT g.status FROM lock_acquire('by hand 4', owner => 'ann', mode => 'shared') g;
SELECT g.status FROM lock_acquire('by hand 5', owner => 'ann', mode => 'shared') g;
UPDATE app_lock SET owner_hash = NULL WHERE key IN ('by hand 1', 'by hand 2');
UPDATE app_lock SET owner = 'bob' WHERE key = 'by hand 3';
UPDATE app_lock SET slot = -7 WHERE key IN ('by hand 4', 'by hand 5');
SELECT g.status FROM lock_acquire('by hand 6', owner => 'ann', mode => 'shared') g;
SELECT lock_release('by hand 6', 'ann');
UPDATE app_lock SET slot = -7 WHERE key = 'by hand 6';
SELECT lock_try_force_release('by hand 1', 'why', fencing_token) FROM app_lock WHERE key = 'by hand 1';
SELECT g.status, (lock_status('by hand 2')).holders FROM app_lock, lock_steal('by hand 2', 'bob', 'why', fencing_token => app_lock.fencing_token) g WHERE app_lock.key = 'by hand 2';
SET atomic_lock.max_lifetime = '1 d';
SELECT g.status FROM lock_try_acquire('by hand 3', owner => 'bob', mode => 'shared', lifetime => 'transaction') g;
SELECT t.code($$SELECT lock_transfer('by hand 4', 'ann', 'bob')$$);
SELECT g.status FROM lock_try_acquire('by hand 5', owner => 'ann', mode => 'shared') g;
RESET atomic_lock.max_lifetime;
SELECT g.status FROM lock_acquire('by hand 6', owner => 'bob', mode => 'shared') g;
SELECT g.status FROM lock_try_acquire('by hand 6', owner => 'cid') g;
DELETE FROM app_lock WHERE key LIKE 'by hand %';
-- an end without a reason in the history
SELECT lock_set_policy('by hand', history => true);
SELECT fencing_token FROM lock_acquire('by hand 7', owner => 'ann') \gset
SELECT lock_release('by hand 7', 'ann');
UPDATE lock_history SET ended_by = NULL WHERE key = 'by hand 7';
SELECT g.status FROM lock_acquire('by hand 7', owner => 'ann') g;
CREATE TABLE t.by_hand (k text PRIMARY KEY);
SELECT lock_protect('t.by_hand', '{k}', '{insert}');
SET atomic_lock.fencing_token = :fencing_token;
SET atomic_lock.owner = 'ann';
SELECT t.code($$INSERT INTO t.by_hand VALUES ('by hand 7')$$);
RESET atomic_lock.fencing_token;
RESET atomic_lock.owner;
SELECT lock_release('by hand 7', 'ann'), lock_drop_policy('by hand');
-- locks of a session that have lost their owners
SELECT g.status FROM lock_acquire('lost 1', owner => 'ann', lifetime => 'session', mode => 'shared') g;
SELECT g.status FROM lock_acquire('lost 1', owner => 'bob', lifetime => 'session', mode => 'shared') g;
SELECT g.status FROM lock_acquire('lost 2', owner => 'ann', lifetime => 'session') g;
UPDATE app_lock SET owner = NULL WHERE key LIKE 'lost %';
DISCARD ALL;
SELECT k, (lock_status(k)).locked FROM unnest(ARRAY['lost 1', 'lost 2']) k;
SELECT g.status FROM lock_acquire('lost 3', owner => 'ann', lifetime => 'session') g;
UPDATE app_lock SET owner = NULL WHERE key = 'lost 3';
\c -
SELECT g.status FROM lock_try_acquire('lost 3', owner => 'ann', wait => '1 min') g;
