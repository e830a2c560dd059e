\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- lock_grant_access and lock_revoke_access: the access levels user, monitor, supervisor and admin
--
-- Properties: without a grant no role can call any function of the extension. Each level gives
-- exactly the functions and relations listed here, and revoking a level removes exactly what no
-- other level of the role needs.
--
-- Turns red when: a new function is executable by PUBLIC or missing from its level; a user
-- reaches a table; a revoke leaves a privilege behind, or removes one that the role has from
-- elsewhere.
--
DROP ROLE IF EXISTS regress_al_fresh, regress_al_user, regress_al_monitor, regress_al_supervisor, regress_al_admin, "regress_al_'""; $$ Drop";
CREATE ROLE regress_al_fresh;
CREATE ROLE regress_al_user;
CREATE ROLE regress_al_monitor;
CREATE ROLE regress_al_supervisor;
CREATE ROLE regress_al_admin;

-- Functions of the extension that a role may execute
CREATE FUNCTION t.may(r name) RETURNS SETOF text LANGUAGE sql AS $$
	SELECT p.oid::regprocedure::text FROM pg_proc p
		JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
		JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND e.extname = 'atomic_lock'
	WHERE has_function_privilege(r, p.oid, 'EXECUTE') ORDER BY 1
$$;

-- At first neither a new role nor PUBLIC may do anything.
SELECT * FROM t.may('regress_al_fresh');
SELECT p.oid::regprocedure FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
	JOIN pg_extension e ON d.refobjid = e.oid AND e.extname = 'atomic_lock', aclexplode(coalesce(proacl, acldefault('f', proowner))) a
WHERE a.grantee = 0;
SET ROLE regress_al_fresh;
SELECT stmt, t.raises(stmt) FROM unnest(ARRAY[
	$$SELECT lock_acquire('k')$$, $$SELECT lock_try_acquire('k')$$,
	$$SELECT lock_acquire_all(ARRAY['k'])$$, $$SELECT lock_try_acquire_all(ARRAY['k'])$$, $$SELECT lock_convert('k', 'o')$$, $$SELECT lock_transfer('k', 'o', 'p')$$,
	$$SELECT lock_path('k')$$, $$SELECT lock_acquire_path('k')$$, $$SELECT lock_try_acquire_path('k')$$, $$SELECT lock_release_path('k', 'o')$$,
	$$SELECT lock_release('k', 'o')$$, $$SELECT lock_try_release('k', 'o')$$, $$SELECT lock_release_all('o')$$,
	$$SELECT lock_extend('k', 'o')$$, $$SELECT lock_try_extend('k', 'o')$$, $$SELECT lock_extend_all('o')$$,
	$$SELECT lock_assert('k', 'o')$$, $$SELECT lock_assert_fence('k', 1, 'o')$$, $$SELECT lock_fetch(NULL::app_lock, '1')$$,
	$$SELECT lock_is_held('k', 'o')$$, $$SELECT lock_holder('k')$$, $$SELECT lock_status('k')$$, $$SELECT lock_explain('k')$$, $$SELECT lock_status()$$,
	$$SELECT lock_waiters()$$, $$SELECT * FROM lock_waiters$$, $$SELECT * FROM lock_guards$$, $$SELECT app_lock_guard_problem('pg_class', 'x')$$,
	$$SELECT lock_key('k')$$, $$SELECT lock_key('k', 1)$$, $$SELECT force_release('k', 'r')$$, $$SELECT lock_force_release('k', 'r')$$,
	$$SELECT lock_steal('k', 'o', 'r')$$, $$SELECT lock_sweep()$$, $$SELECT lock_schedule_sweep()$$, $$SELECT lock_unschedule_sweep()$$,
	$$SELECT lock_stats()$$, $$SELECT * FROM lock_stats$$, $$SELECT lock_stats_reset()$$, $$SELECT lock_contention()$$, $$SELECT * FROM lock_contention$$,
	$$SELECT * FROM lock_activity$$, $$SELECT lock_sweeper_status()$$, $$SELECT app_lock_longest_wait('k')$$,
	$$SELECT lock_set_policy('k')$$, $$SELECT lock_drop_policy('k')$$, $$SELECT lock_policy('k')$$, $$SELECT * FROM lock_policies$$, $$SELECT * FROM app_lock_policy$$, $$SELECT * FROM lock_history$$, $$SELECT lock_held_at('k', now())$$,
	$$SELECT lock_protect('pg_class', 'x')$$, $$SELECT lock_unprotect('pg_class')$$, $$SELECT lock_guard()$$,
	$$SELECT lock_grant_access('regress_al_fresh', 'admin')$$, $$SELECT lock_revoke_access('regress_al_user', 'user')$$,
	$$SELECT app_lock_change_access('regress_al_fresh', 'admin', true)$$]) stmt;
RESET ROLE;

-- The four levels
SELECT lock_grant_access('regress_al_user', 'user');
SELECT * FROM t.may('regress_al_user');
SELECT lock_grant_access('regress_al_monitor', 'monitor');
SELECT * FROM t.may('regress_al_monitor');
SELECT lock_grant_access('regress_al_supervisor', 'supervisor');
SELECT * FROM t.may('regress_al_supervisor');
SELECT lock_grant_access('regress_al_admin', 'admin');
SELECT * FROM t.may('regress_al_admin');
SELECT * FROM t.may('regress_al_fresh');
-- granting twice equals granting once
SELECT lock_grant_access('regress_al_user', 'user');
SELECT count(*) FROM t.may('regress_al_user');

-- Relations: monitors may read the views; administrators may also read and trim lock_audit.
SELECT role, rel, string_agg(priv, ', ' ORDER BY priv)
FROM unnest(ARRAY['regress_al_fresh', 'regress_al_user', 'regress_al_monitor', 'regress_al_supervisor', 'regress_al_admin']) role,
	unnest(ARRAY['app_lock', 'lock_audit', 'lock_waiters', 'lock_guards', 'lock_stats', 'lock_contention', 'lock_activity', 'app_lock_policy', 'app_lock_policy_role', 'lock_policies', 'lock_history']) rel,
	unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) priv
WHERE has_table_privilege(role, rel, priv) GROUP BY 1, 2 ORDER BY 1, 2;
SELECT role, priv
FROM unnest(ARRAY['regress_al_fresh', 'regress_al_user', 'regress_al_monitor', 'regress_al_supervisor', 'regress_al_admin']) role,
	unnest(ARRAY['SELECT', 'UPDATE', 'USAGE']) priv
WHERE has_sequence_privilege(role, 'app_lock_fence', priv);
SELECT role, rel FROM unnest(ARRAY['regress_al_fresh', 'regress_al_user', 'regress_al_monitor', 'regress_al_supervisor']) role,
	unnest(ARRAY['app_lock', 'lock_audit', 'lock_waiters', 'lock_guards', 'lock_stats', 'lock_contention', 'lock_activity']) rel
WHERE has_any_column_privilege(role, rel, 'SELECT, INSERT, UPDATE, REFERENCES');

-- A user can lock, but cannot reach the tables in any way,
GRANT CREATE ON SCHEMA t TO regress_al_user;
SET SESSION AUTHORIZATION regress_al_user;
SELECT s.status FROM lock_acquire('k', '10 min', 'alice-1', holder => 'Alice') g, t.show(g) s;
SELECT lock_holder('k'), lock_is_held('k', 'alice-1'), lock_extend('k', 'alice-1') IS NOT NULL AS extended, lock_assert('k', 'alice-1') > 0 AS asserted, t.code('SELECT lock_assert_fence(''k'', 1, ''alice-1'')') AS fence;
SELECT (lock_convert('k', 'alice-1', 'shared')).mode, (lock_acquire('k', '10 min', 'bob-1', 'shared')).status, (lock_transfer('k', 'bob-1', 'carol-1')).owner, lock_release('k', 'carol-1'), (lock_convert('k', 'alice-1')).mode;
SELECT key, status, lock_release(key, owner) FROM lock_acquire_all(ARRAY['set 2', 'set 1']);
SELECT key, status FROM lock_try_acquire_all(ARRAY['set', 'k']);
SELECT l, (lock_acquire(l, owner => 'alice-1', lifetime => l)).status, lock_release(l, 'alice-1') FROM unnest(ARRAY['session', 'transaction']) l;
SELECT t.raises(stmt) AS answer, count(*) FROM unnest(ARRAY['app_lock', 'lock_audit']) rel,
	unnest(ARRAY['SELECT * FROM %s', 'SELECT count(*) FROM %s', 'SELECT FROM %s FOR UPDATE',
		'INSERT INTO %s DEFAULT VALUES', 'DELETE FROM %s', 'TRUNCATE %s',
		'LOCK %s IN ACCESS SHARE MODE', 'LOCK %s IN ACCESS EXCLUSIVE MODE']) s,
	format(s, rel) stmt GROUP BY 1 ORDER BY 1;
\set VERBOSITY sqlstate
COPY app_lock TO STDOUT;
COPY lock_audit TO STDOUT;
\set VERBOSITY default
SELECT t.code(stmt), count(*) FROM unnest(ARRAY['app_lock', 'lock_audit']) rel,
	unnest(ARRAY['CREATE INDEX ON %s ((1))', 'DROP TABLE %s', 'REINDEX TABLE %s',
		'CREATE RULE r AS ON INSERT TO %s DO INSTEAD NOTHING', 'CREATE POLICY p ON %s',
		'CREATE TRIGGER r BEFORE INSERT ON %s EXECUTE FUNCTION suppress_redundant_updates_trigger()',
		'ALTER TABLE %s ENABLE ROW LEVEL SECURITY', 'ALTER TABLE %s ADD x int', 'COMMENT ON TABLE %s IS NULL',
		'GRANT SELECT ON %s TO regress_al_user']) s,
	format(s, rel) stmt GROUP BY 1 ORDER BY 1;
SELECT t.raises(stmt) FROM unnest(ARRAY[
	$$UPDATE app_lock SET owner = 'me'$$, $$UPDATE app_lock SET expires_at = now()$$,
	$$UPDATE lock_audit SET reason = ''$$,
	$$CREATE TABLE t.r (key text, slot int, FOREIGN KEY (key, slot) REFERENCES app_lock)$$,
	$$SELECT nextval('app_lock_fence')$$, $$SELECT setval('app_lock_fence', 1)$$, $$SELECT * FROM app_lock_fence$$,
	$$ALTER SEQUENCE app_lock_fence RESTART$$,
	$$CREATE TABLE t.c () INHERITS (app_lock)$$,
	$$ALTER FUNCTION lock_release(text, text) OWNER TO regress_al_user$$,
	$$CREATE OR REPLACE FUNCTION lock_key(VARIADIC parts text[]) RETURNS text LANGUAGE sql AS 'SELECT NULL::text'$$,
	$$ALTER EXTENSION atomic_lock UPDATE$$, $$DROP EXTENSION atomic_lock$$]) stmt;
-- nor any function of the other levels.
CREATE TABLE t.mine (id int);
SELECT t.code(stmt) AS code, stmt FROM unnest(ARRAY[
	$$SELECT lock_status()$$, $$SELECT lock_waiters()$$, $$SELECT * FROM lock_waiters$$, $$SELECT * FROM lock_guards$$,
	$$SELECT lock_fetch(NULL::app_lock, '{"key": "k", "slot": 0}', owner => 'o')$$, $$SELECT lock_protect('t.mine', 'x')$$, $$SELECT lock_unprotect('t.mine')$$, $$CREATE TRIGGER r BEFORE UPDATE ON t.mine FOR EACH ROW EXECUTE FUNCTION lock_guard('x')$$,
	$$SELECT force_release('k', 'r')$$, $$SELECT lock_force_release('k', 'r')$$,
	$$SELECT lock_steal('k', 'o', 'r')$$, $$SELECT lock_sweep()$$, $$SELECT lock_schedule_sweep()$$, $$SELECT lock_unschedule_sweep()$$, $$SELECT lock_stats_reset()$$,
	$$SELECT * FROM lock_stats$$, $$SELECT * FROM lock_contention$$, $$SELECT * FROM lock_activity$$, $$SELECT lock_sweeper_status()$$, $$SELECT app_lock_longest_wait('k')$$,
	$$SELECT lock_grant_access('regress_al_user', 'admin')$$, $$SELECT lock_revoke_access('regress_al_admin', 'admin')$$,
	$$SELECT app_lock_change_access('regress_al_user', 'admin', true)$$, $$SELECT app_lock_supervisor()$$]) stmt;
RESET SESSION AUTHORIZATION;

-- A monitor can see holders and waiters, and change nothing. Where waiters poll, the server
-- does not know them, and the monitor gets that error.
SET SESSION AUTHORIZATION regress_al_monitor;
SELECT key, owner, holder FROM lock_status();
SELECT stmt, CASE WHEN answer ~ '^55000: [^\n]* not available on this server\nDETAIL: [^\n]*\nHINT: ' AND current_setting('server_version_num')::int < 170000
		THEN 'no error' ELSE answer END AS answer
FROM unnest(ARRAY['SELECT * FROM lock_guards', 'SELECT * FROM lock_waiters', 'SELECT lock_waiters()', 'SELECT * FROM lock_stats', 'SELECT lock_stats()', 'SELECT * FROM lock_contention', 'SELECT lock_contention()',
	'SELECT * FROM lock_activity', 'SELECT lock_sweeper_status()', 'SELECT app_lock_longest_wait(''k'')', 'SELECT lock_stats_reset()', 'SELECT lock_sweep()', 'SELECT lock_schedule_sweep()', 'DELETE FROM lock_stats', 'INSERT INTO lock_waiters DEFAULT VALUES', 'DELETE FROM lock_waiters']) stmt, t.raises(stmt) answer;
SELECT (lock_status('k')).holder, lock_holder('k'), lock_is_held('k', 'alice-1'), lock_key('order', '42');
SELECT t.code(stmt) AS code, stmt FROM unnest(ARRAY['SELECT lock_acquire(''k'')', 'SELECT lock_acquire_all(ARRAY[''k''])', 'SELECT lock_try_acquire_all(ARRAY[''k''])', 'SELECT lock_convert(''k'', ''alice-1'')', 'SELECT lock_transfer(''k'', ''alice-1'', ''o'')', 'SELECT lock_assert(''k'', ''alice-1'')', 'SELECT lock_assert_fence(''k'', 1, ''o'')', 'SELECT lock_fetch(NULL::app_lock, ''1'')', 'SELECT lock_protect(''t.mine'', ''x'')', 'SELECT * FROM app_lock', 'SELECT * FROM lock_audit',
	'DROP VIEW lock_waiters', 'CREATE OR REPLACE VIEW lock_waiters AS SELECT 1']) stmt;
RESET SESSION AUTHORIZATION;

-- A supervisor can end locks of others and take them over, but neither lock by itself, nor look,
-- nor change policies or access.
SET SESSION AUTHORIZATION regress_al_supervisor;
SELECT (lock_steal('k2', 'heir-1', 'taken over', holder => 'Heir')).status, (lock_steal('k2', 'heir-2', 'taken again')).holder, force_release('k2', 'ended'), lock_try_force_release('k2', 'ended twice');
SELECT t.code(stmt) AS code, stmt FROM unnest(ARRAY[
	'SELECT lock_acquire(''k2'')', 'SELECT lock_release(''k2'', ''heir-1'')', 'SELECT lock_extend(''k'', ''alice-1'')', 'SELECT lock_enqueue(''k2'')', 'SELECT lock_channel(''k2'')', 'SELECT lock_ask(''k'')',
	'SELECT lock_status(''k'')', 'SELECT lock_status()', 'SELECT lock_holder(''k'')', 'SELECT lock_is_held(''k'', ''alice-1'')', 'SELECT lock_key(''k'')', 'SELECT * FROM lock_activity', 'SELECT * FROM lock_waiters', 'SELECT * FROM lock_queue', 'SELECT * FROM lock_history', 'SELECT * FROM lock_policies', 'SELECT lock_policy(''k'')', 'SELECT * FROM lock_stats', 'SELECT lock_sweeper_status()',
	'SELECT * FROM lock_audit', 'DELETE FROM lock_audit', 'DELETE FROM app_lock_queue', 'SELECT key FROM app_lock_queue', 'SELECT * FROM app_lock', 'SELECT lock_set_policy(''k'', history => true)', 'SELECT lock_drop_policy(''k'')', 'SELECT lock_sweep()', 'SELECT lock_schedule_sweep()', 'SELECT lock_unschedule_sweep()', 'SELECT lock_stats_reset()', 'SELECT lock_protect(''t.mine'', ''x'')', 'SELECT lock_unprotect(''t.mine'')',
	'SELECT lock_grant_access(''regress_al_supervisor'', ''admin'')', 'SELECT lock_revoke_access(''regress_al_admin'', ''admin'')', 'SELECT app_lock_change_access(''regress_al_supervisor'', ''admin'', true)', 'SELECT app_lock_repeat_access()',
	'SELECT app_lock_supervisor()', 'GRANT EXECUTE ON FUNCTION app_lock_supervisor() TO PUBLIC']) stmt;
RESET SESSION AUTHORIZATION;
SELECT has_function_privilege('regress_al_fresh', 'app_lock_supervisor()', 'EXECUTE') AS passed_on;
SELECT action, key, previous_holder, reason, session_role, acting_role FROM lock_audit WHERE key = 'k2' ORDER BY at;
DELETE FROM lock_audit WHERE key = 'k2';

-- An administrator can force releases, and grant and revoke access.
SET SESSION AUTHORIZATION regress_al_admin;
SELECT force_release('k', 'by an administrator');
SELECT action, key, previous_holder, reason, session_role, acting_role FROM lock_audit;
SELECT acquired FROM lock_steal('k', 'dba-1', 'by an administrator', '1 ms');
SELECT lock_sweep() >= 0 AS swept, t.code('SELECT lock_stats_reset()') ~ '^(00000|55000)$' AS reset, t.code('SELECT lock_schedule_sweep()') AS schedule;
SELECT t.code($$SELECT lock_acquire('k')$$) AS acquire, t.code($$SELECT lock_status()$$) AS status, t.code($$SELECT * FROM lock_waiters$$) AS waiters, t.code($$SELECT * FROM lock_guards$$) AS guards, t.code($$SELECT * FROM lock_stats$$) AS stats, t.code($$SELECT lock_sweeper_status()$$) AS sweeper, t.code($$SELECT lock_protect('t.mine', 'x')$$) AS another_s_table;
SELECT lock_grant_access('regress_al_fresh', 'user');
SELECT lock_grant_access('regress_al_fresh', 'monitor');
RESET SESSION AUTHORIZATION;
SELECT count(*) FROM t.may('regress_al_fresh');
SET SESSION AUTHORIZATION regress_al_admin;
SELECT lock_revoke_access('regress_al_fresh', 'user');
RESET SESSION AUTHORIZATION;
SELECT * FROM t.may('regress_al_fresh');
-- Levels do not imply one another, in either direction.
SELECT lock_revoke_access('regress_al_fresh', 'monitor');
SELECT * FROM t.may('regress_al_fresh');
SELECT has_table_privilege('regress_al_fresh', 'lock_waiters', 'SELECT');
SELECT lock_grant_access('regress_al_fresh', 'admin'), lock_grant_access('regress_al_fresh', 'user');
SELECT lock_revoke_access('regress_al_fresh', 'admin');
SELECT count(*) FROM t.may('regress_al_fresh');
SELECT has_table_privilege('regress_al_fresh', 'lock_audit', 'SELECT');
-- A supervisor that was an administrator keeps what supervisors have, and the other way round.
SELECT lock_revoke_access('regress_al_fresh', 'user'), lock_grant_access('regress_al_fresh', 'admin'), lock_grant_access('regress_al_fresh', 'supervisor');
SELECT count(*) FROM t.may('regress_al_fresh');
SELECT lock_revoke_access('regress_al_fresh', 'admin');
SELECT * FROM t.may('regress_al_fresh');
SELECT lock_grant_access('regress_al_fresh', 'admin'), lock_revoke_access('regress_al_fresh', 'supervisor');
SELECT count(*), bool_or(f ~ 'supervisor') AS marked FROM t.may('regress_al_fresh') f;
SELECT lock_revoke_access('regress_al_fresh', 'admin');
SELECT * FROM t.may('regress_al_fresh');
-- A right that was granted by hand is no level, and goes with one.
GRANT EXECUTE ON FUNCTION force_release TO regress_al_fresh;
SELECT app_lock_repeat_access();
SELECT * FROM t.may('regress_al_fresh');
SELECT lock_grant_access('regress_al_fresh', 'supervisor'), lock_revoke_access('regress_al_fresh', 'supervisor');
SELECT * FROM t.may('regress_al_fresh');
-- app_lock_repeat_access() grants a new function to the roles of the level.
REVOKE EXECUTE ON FUNCTION lock_steal FROM regress_al_supervisor;
SELECT app_lock_repeat_access();
SELECT has_function_privilege('regress_al_supervisor', 'lock_steal(text, text, text, interval, text, bigint)', 'EXECUTE') AS again;
SELECT lock_grant_access('regress_al_fresh', 'user');
-- Revoking a level twice, or one that was never granted, does nothing.
SELECT lock_revoke_access('regress_al_fresh', 'user'), lock_revoke_access('regress_al_fresh', 'user'), lock_revoke_access('regress_al_fresh', 'admin');
SELECT count(*) FROM t.may('regress_al_fresh');
-- A grant survives when the role that made it loses its own level.
SELECT lock_grant_access('regress_al_fresh', 'user');
SELECT lock_revoke_access('regress_al_admin', 'admin');
SELECT count(*) AS fresh FROM t.may('regress_al_fresh');
SELECT count(*) AS admin FROM t.may('regress_al_admin');

-- A member has the access of its role.
GRANT regress_al_user TO regress_al_monitor;
SET ROLE regress_al_monitor;
SELECT acquired FROM lock_acquire('member', '1 min', 'alice-1');
RESET ROLE;

-- Privileges shared by two levels remain while the role has either.
SELECT lock_grant_access('regress_al_fresh', 'user'), lock_grant_access('regress_al_fresh', 'monitor'), lock_revoke_access('regress_al_fresh', 'user');
SELECT * FROM t.may('regress_al_fresh');
SELECT lock_grant_access('regress_al_fresh', 'user'), lock_revoke_access('regress_al_fresh', 'monitor');
SELECT * FROM t.may('regress_al_fresh');
SELECT lock_revoke_access('regress_al_fresh', 'user');
SELECT * FROM t.may('regress_al_fresh');

-- Granting a level grants USAGE on a schema that the role could not use,
CREATE SCHEMA hidden;
DROP EXTENSION atomic_lock CASCADE;
CREATE EXTENSION atomic_lock SCHEMA hidden;
SELECT has_schema_privilege('regress_al_fresh', 'hidden', 'USAGE') AS before;
SELECT hidden.lock_grant_access('regress_al_fresh', 'user');
SELECT has_schema_privilege('regress_al_fresh', 'hidden', 'USAGE') AS after, has_schema_privilege('regress_al_fresh', 'hidden', 'CREATE') AS creating;
SET ROLE regress_al_fresh;
SELECT acquired FROM hidden.lock_acquire('k');
RESET ROLE;
SELECT hidden.lock_revoke_access('regress_al_fresh', 'user');
SELECT has_schema_privilege('regress_al_fresh', 'hidden', 'USAGE') AS kept;
-- ... and revoking takes USAGE back unless the role still has another level there, or a
-- privilege on a function, table or column.
CREATE TABLE hidden.own (id int);
CREATE FUNCTION t.closed(stmt text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM hidden.lock_grant_access('regress_al_fresh', 'user');
	EXECUTE stmt;
	PERFORM hidden.lock_revoke_access('regress_al_fresh', 'user');
	RETURN CASE WHEN has_schema_privilege('regress_al_fresh', 'hidden', 'USAGE') THEN 'open' ELSE 'closed' END;
END
$$;
SELECT stmt, t.closed(stmt) FROM unnest(ARRAY[
	$$SELECT 'nothing'$$,
	$$SELECT hidden.lock_grant_access('regress_al_fresh', 'monitor')$$,
	$$SELECT hidden.lock_revoke_access('regress_al_fresh', 'monitor')$$,
	$$GRANT EXECUTE ON FUNCTION hidden.lock_sweep TO regress_al_fresh$$,
	$$REVOKE EXECUTE ON FUNCTION hidden.lock_sweep FROM regress_al_fresh$$,
	$$GRANT UPDATE ON hidden.own TO regress_al_fresh$$,
	$$REVOKE UPDATE ON hidden.own FROM regress_al_fresh; GRANT SELECT (id) ON hidden.own TO regress_al_fresh$$,
	$$REVOKE SELECT (id) ON hidden.own FROM regress_al_fresh; ALTER TABLE hidden.own OWNER TO regress_al_fresh$$,
	$$ALTER TABLE hidden.own OWNER TO CURRENT_USER; GRANT CREATE ON SCHEMA hidden TO regress_al_fresh$$,
	$$REVOKE CREATE ON SCHEMA hidden FROM regress_al_fresh$$]) stmt;
-- The owner of the schema keeps its rights; so does a role that has them through another role.
ALTER SCHEMA hidden OWNER TO regress_al_fresh;
SELECT t.closed('SELECT 1');
ALTER SCHEMA hidden OWNER TO CURRENT_USER;
GRANT USAGE ON SCHEMA hidden TO regress_al_user;
GRANT regress_al_user TO regress_al_fresh;
SELECT t.closed('SELECT 1');
SELECT nspacl::text ~ 'regress_al_fresh' AS own_right FROM pg_namespace WHERE nspname = 'hidden';
REVOKE regress_al_user FROM regress_al_fresh;
REVOKE USAGE ON SCHEMA hidden FROM regress_al_user;

-- A role whose levels have been revoked can be dropped.
CREATE FUNCTION t.droppable(levels text[]) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	CREATE ROLE regress_al_gone;
	PERFORM hidden.lock_grant_access('regress_al_gone', l) FROM unnest(levels) l;
	PERFORM hidden.lock_revoke_access('regress_al_gone', l) FROM unnest(levels) l;
	DROP ROLE regress_al_gone;
	RETURN 'dropped';
END
$$;
SELECT levels, t.droppable(levels::text[]) FROM unnest(ARRAY['{user}', '{monitor}', '{supervisor}', '{admin}', '{user,monitor,supervisor,admin}', '{supervisor,admin}', '{admin,monitor,user,monitor}']) levels;
DROP EXTENSION atomic_lock;
DROP SCHEMA hidden CASCADE;
CREATE EXTENSION atomic_lock;

-- Bad arguments
SELECT t.raises($$SELECT lock_grant_access('regress_al_fresh', 'root')$$);
SELECT t.raises($$SELECT lock_revoke_access('regress_al_fresh', 'root')$$);
SELECT t.raises($$SELECT lock_grant_access('regress_al_fresh', '')$$) ~ '^22023' AS refused;
SELECT t.raises($$SELECT lock_grant_access('regress_al_fresh', 'USER')$$) ~ '^22023' AS refused;
SELECT t.raises($$SELECT lock_grant_access('regress_al_fresh', NULL)$$);
SELECT t.raises($$SELECT lock_grant_access(NULL, 'user')$$);
SELECT t.raises($$SELECT lock_revoke_access(NULL, NULL)$$);
SELECT t.raises($$SELECT lock_grant_access('regress_al_nobody', 'user')$$);
SELECT t.raises($$SELECT lock_grant_access('public', 'user')$$);
SELECT t.raises($$SELECT lock_grant_access('PUBLIC', 'user')$$) ~ '^42704' AS refused;
SELECT t.raises($$SELECT lock_grant_access('-', 'user')$$);
SELECT t.raises($$SELECT lock_grant_access(0, 'user')$$);
SELECT t.raises($$SELECT lock_grant_access(4294967295, 'user')$$);
SELECT t.raises($$SELECT lock_grant_access(4294967294, 'admin')$$);
SELECT * FROM t.may('regress_al_fresh');

-- Role names that need quotes
CREATE ROLE "regress_al_'""; $$ Drop";
SELECT lock_grant_access('"regress_al_''""; $$ Drop"', 'admin');
SELECT count(*) FROM t.may('regress_al_''"; $$ Drop');
SELECT lock_revoke_access('"regress_al_''""; $$ Drop"', 'admin');
SELECT count(*) FROM t.may('regress_al_''"; $$ Drop');

-- A role can be dropped while its leases exist; they stay, and an administrator can end them.
SELECT lock_grant_access('regress_al_fresh', 'user'), lock_grant_access('regress_al_fresh', 'admin');
SET SESSION AUTHORIZATION regress_al_fresh;
SELECT acquired FROM lock_acquire('left', '1 hour', 'fresh-1', holder => 'fresh');
RESET SESSION AUTHORIZATION;
DROP OWNED BY regress_al_fresh;
DROP ROLE regress_al_fresh;
SELECT lock_holder('left');
SELECT force_release('left', 'the role is gone');

-- PostgreSQL's predefined roles give no level. A role that may read all data can read owners,
-- too.
CREATE ROLE regress_al_fresh;
GRANT pg_monitor, pg_signal_backend TO regress_al_fresh;
SELECT count(*) FROM t.may('regress_al_fresh');
SELECT has_table_privilege('regress_al_fresh', 'app_lock', 'SELECT') AS app_lock, has_table_privilege('regress_al_fresh', 'lock_waiters', 'SELECT') AS waiters;
GRANT pg_read_all_data TO regress_al_fresh;
SELECT count(*) FROM t.may('regress_al_fresh');
SELECT priv, has_table_privilege('regress_al_fresh', 'app_lock', priv) AS app_lock, has_table_privilege('regress_al_fresh', 'lock_audit', priv) AS audit FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) priv;
DROP ROLE regress_al_fresh;

DROP OWNED BY regress_al_user, regress_al_monitor, regress_al_supervisor, regress_al_admin, "regress_al_'""; $$ Drop";
DROP ROLE regress_al_user, regress_al_monitor, regress_al_supervisor, regress_al_admin, "regress_al_'""; $$ Drop";

-- Revoking a level keeps USAGE if the role had no level before or may grant USAGE to others.
-- The access of the extension's owner stays.
CREATE ROLE regress_al_other;
CREATE ROLE regress_al_next;
GRANT USAGE ON SCHEMA public TO regress_al_other;
SELECT lock_revoke_access('regress_al_other', 'user');
SELECT count(*) FROM pg_namespace, aclexplode(nspacl) a WHERE nspname = 'public' AND a.grantee = 'regress_al_other'::regrole;
GRANT USAGE ON SCHEMA public TO regress_al_other WITH GRANT OPTION;
SELECT lock_grant_access('regress_al_other', 'user');
SET ROLE regress_al_other;
GRANT USAGE ON SCHEMA public TO regress_al_next;
RESET ROLE;
GRANT EXECUTE ON FUNCTION lock_extend TO regress_al_other WITH GRANT OPTION;
SET ROLE regress_al_other;
GRANT EXECUTE ON FUNCTION lock_extend TO regress_al_next;
RESET ROLE;
SELECT lock_revoke_access('regress_al_other', 'user');
SELECT count(*) FROM t.may('regress_al_other');
DROP OWNED BY regress_al_other, regress_al_next;
DROP ROLE regress_al_other, regress_al_next;
\set SHOW_CONTEXT never
SELECT lock_revoke_access(current_user::regrole, 'admin');

-- A procedure that somebody has added to the extension does not count as one of its functions.
BEGIN;
CREATE PROCEDURE lock_leave() LANGUAGE plpgsql AS 'BEGIN END';
ALTER EXTENSION atomic_lock ADD PROCEDURE lock_leave();
CREATE ROLE regress_al_added;
SELECT lock_grant_access('regress_al_added', 'user'), has_function_privilege('regress_al_added', 'lock_leave(text, text)', 'EXECUTE');
SELECT app_lock_refresh_access();
ROLLBACK;
