-- No role can do anything until lock_grant_access grants it a level, and each level is exact.
--
-- Turns red when: a new function or view is open to PUBLIC, missing from its level, or in one
-- level too many; a revoke leaves a privilege.
\set ECHO none
SET client_min_messages = warning;
BEGIN;
CREATE EXTENSION IF NOT EXISTS pgtap;
CREATE EXTENSION IF NOT EXISTS atomic_lock;

CREATE TEMP VIEW member AS
SELECT d.classid, d.objid FROM pg_depend d
	JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND e.oid = d.refobjid AND e.extname = 'atomic_lock'
WHERE d.deptype = 'e';
CREATE TEMP VIEW member_function AS SELECT p.* FROM pg_proc p JOIN member m ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid;
CREATE TEMP VIEW member_relation AS SELECT c.* FROM pg_class c JOIN member m ON m.classid = 'pg_class'::regclass AND m.objid = c.oid;
CREATE ROLE regress_al_fresh;
CREATE TEMP TABLE another_s (id int PRIMARY KEY);

CREATE FUNCTION pg_temp.may(r text) RETURNS text[] LANGUAGE sql AS $$
	SELECT coalesce(array_agg(p.oid::regprocedure::text ORDER BY p.oid::regprocedure::text COLLATE "C"), '{}') FROM member_function p WHERE has_function_privilege(r, p.oid, 'EXECUTE')
$$;

-- Privileges of a role on tables and views
CREATE FUNCTION pg_temp.may_with(r text) RETURNS text[] LANGUAGE sql AS $$
	SELECT coalesce(array_agg(c.relname || ' ' || p ORDER BY c.relname, p), '{}') FROM member_relation c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) p
	WHERE c.relkind IN ('r', 'v') AND has_table_privilege(r, c.oid, p)
$$;
-- The SQLSTATE of a statement run as a role, which is undone
CREATE FUNCTION pg_temp.code_as(r text, stmt text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('SET LOCAL ROLE %I', r);
	EXECUTE stmt;
	RAISE SQLSTATE 'RB000';
EXCEPTION
	WHEN SQLSTATE 'RB000' THEN RETURN '00000';
	WHEN OTHERS THEN RETURN SQLSTATE;
END
$$;
-- Before PostgreSQL 17 shared memory needs the preloaded library, which this server does not
-- have.
CREATE FUNCTION pg_temp.allowed() RETURNS text LANGUAGE sql AS $$
	SELECT CASE WHEN current_setting('server_version_num')::int < 170000 THEN '55000' ELSE '00000' END
$$;

SELECT plan(61);

SELECT isnt_empty('SELECT FROM member_function', 'the extension has functions to check');
SELECT is_empty('SELECT pg_describe_object(classid, objid, 0) FROM member m WHERE classid <> ''pg_type''::regclass
	AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = m.objid AND c.relkind = ''c'') AND NOT EXISTS (SELECT FROM pg_init_privs i WHERE i.classoid = m.classid AND i.objoid = m.objid)',
	'initial privileges are recorded for every member, so that update scripts know new ones');
SELECT is_empty('SELECT p.oid::regprocedure FROM member_function p WHERE p.proacl IS NULL', 'no function has default privileges, which would include PUBLIC');
SELECT is_empty('SELECT p.oid::regprocedure FROM member_function p, aclexplode(p.proacl) a WHERE a.grantee = 0', 'PUBLIC may execute no function');
SELECT is_empty('SELECT p.oid::regprocedure FROM member_function p, aclexplode(p.proacl) a WHERE a.grantee <> p.proowner', 'only the owner may execute the functions');
SELECT is_empty('SELECT c.oid::regclass FROM member_relation c, aclexplode(coalesce(c.relacl, acldefault(CASE c.relkind WHEN ''S'' THEN ''s'' ELSE ''r'' END::"char", c.relowner))) a WHERE a.grantee <> c.relowner', 'only the owner has rights on relations');
SELECT is_empty('SELECT attrelid::regclass, attname FROM pg_attribute WHERE attrelid IN (SELECT oid FROM member_relation) AND attacl IS NOT NULL', 'no column has privileges of its own');
SELECT is(pg_temp.may('regress_al_fresh'), '{}', 'a new role may execute no function');
SELECT is_empty($$SELECT c.oid::regclass, p FROM member_relation c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) p
	WHERE c.relkind IN ('r', 'v') AND has_table_privilege('regress_al_fresh', c.oid, p)$$, 'a new role has no right on any table or view');
SELECT is_empty($$SELECT c.oid::regclass, p FROM member_relation c, unnest(ARRAY['SELECT', 'USAGE', 'UPDATE']) p
	WHERE c.relkind = 'S' AND has_sequence_privilege('regress_al_fresh', c.oid, p)$$, 'a new role has no right on any sequence');

SELECT lock_grant_access('regress_al_fresh', 'user') \g /dev/null
SELECT is(pg_temp.may('regress_al_fresh'), '{"lock_acquire(text,interval,text,text,interval,text,jsonb,text,integer,text)","lock_acquire_all(text[],interval,text,text,interval,text,jsonb,integer,text[])","lock_acquire_path(text,interval,text,interval,text,jsonb,text)","lock_ask(text,text)","lock_assert(text,text)","lock_assert_fence(text,bigint,text)",lock_channel(text),"lock_convert(text,text,text,interval)","lock_enqueue(text,text,text,interval,interval,interval,jsonb)",lock_explain(text),"lock_extend(text,text,interval)","lock_extend_all(text,interval)","lock_fetch(anyelement,text,interval,text,interval,text,text,jsonb)","lock_heartbeat(text[],text,interval)",lock_held(text),"lock_holder(text)","lock_is_held(text,text)","lock_key(\"any\")","lock_key(text[])","lock_leave(text,text)","lock_partition(text,integer)","lock_path(text,text)","lock_policy(text)","lock_release(text,text)","lock_release_all(text)","lock_release_path(text,text,text)","lock_status(text)","lock_transfer(text,text,text,text,interval)","lock_transfer_all(text,text,text)","lock_try_acquire(text,interval,text,text,interval,text,jsonb,text,integer,text)","lock_try_acquire_all(text[],interval,text,text,interval,text,jsonb,integer,text[])","lock_try_acquire_path(text,interval,text,interval,text,jsonb,text)","lock_try_convert(text,text,text,interval)","lock_try_extend(text,text,interval)","lock_try_release(text,text)","lock_try_transfer(text,text,text,text,interval)"}',
	'level user: exactly the functions for applications');
SELECT is(pg_temp.may_with('regress_al_fresh'), '{}', 'level user: no table or view');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT * FROM lock_waiters'), '42501', 'level user cannot read lock_waiters');
SELECT is(array_agg(DISTINCT pg_temp.code_as('regress_al_fresh', 'SELECT ' || what)), '{42501}', 'level user cannot see tickets') FROM unnest(ARRAY['* FROM lock_queue', 'lock_queue()', '* FROM app_lock_queue']) what;
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT lock_channel(''k''), lock_ask(''k''), (lock_enqueue(''k'', ''o'')).status, lock_leave(''k'', ''o'')'), '00000', 'level user may enqueue, leave and ask');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT lock_waiters()'), '42501', 'level user cannot call lock_waiters()');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT lock_try_acquire_all(ARRAY[''k'']), lock_acquire_all(ARRAY[''j''])'), '00000', 'level user may lock sets');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT lock_acquire(''k'', owner => ''o''), lock_assert(''k'', ''o''), lock_assert_fence(''k'', lock_assert(''k'', ''o''), ''o'')'), '00000', 'level user may assert');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT lock_fetch(NULL::pg_temp.another_s, ''1'', owner => ''o'')'), '42501', 'lock_fetch needs SELECT on the table');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT * FROM lock_policy(''k'')'), '00000', 'level user may call lock_policy');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT (lock_acquire(''k'', owner => ''o'', mode => ''shared'', lifetime => ''session'')).status, (lock_convert(''k'', ''o'')).status, (lock_transfer(''k'', ''o'', ''p'')).status'), '00000', 'level user may lock in each mode and lifetime, convert and transfer');
SELECT lock_revoke_access('regress_al_fresh', 'user') \g /dev/null
SELECT is(pg_temp.may('regress_al_fresh'), '{}', 'level user is revoked completely');
SELECT is(array_agg(DISTINCT pg_temp.code_as('regress_al_fresh', 'SELECT ' || call)), '{42501}', 'after the revoke, sets, conversions, transfers, asserts, tickets and fetches are refused')
FROM unnest(ARRAY['lock_acquire_all(ARRAY[''k''])', 'lock_try_acquire_all(ARRAY[''k''])', 'lock_convert(''k'', ''o'')', 'lock_transfer(''k'', ''o'', ''p'')',
	'lock_channel(''k'')', 'lock_ask(''k'')', 'lock_enqueue(''k'', ''o'')', 'lock_leave(''k'', ''o'')',
	'lock_assert(''k'', ''o'')', 'lock_assert_fence(''k'', 1, ''o'')', 'lock_fetch(NULL::pg_temp.another_s, ''1'', owner => ''o'')']) call;
SELECT lock_grant_access('regress_al_fresh', 'monitor') \g /dev/null
SELECT is(pg_temp.may('regress_al_fresh'), '{app_lock_count_waiters(text),"app_lock_guard_problem(regclass,name)",app_lock_longest_wait(text),lock_channel(text),lock_contention(),lock_explain(text),"lock_held_at(text,timestamp with time zone)",lock_holder(text),"lock_is_held(text,text)","lock_key(\"any\")",lock_key(text[]),"lock_partition(text,integer)","lock_path(text,text)",lock_queue(),lock_stats(),lock_status(),lock_status(text),lock_sweeper_status(),lock_waiters()}', 'level monitor: exactly the functions for states, waiters and counters, and those that the views call');
SELECT is(pg_temp.may_with('regress_al_fresh'), '{"lock_activity SELECT","lock_contention SELECT","lock_guards SELECT","lock_history SELECT","lock_policies SELECT","lock_queue SELECT","lock_stats SELECT","lock_waiters SELECT"}', 'level monitor: SELECT on the views, and nothing else');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT * FROM lock_waiters'), pg_temp.allowed(), 'level monitor can read lock_waiters');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT lock_waiters()'), pg_temp.allowed(), 'level monitor can call lock_waiters()');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT * FROM lock_guards'), '00000', 'level monitor can read lock_guards');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT * FROM ' || v), pg_temp.allowed(), v || ' can be read by level monitor') FROM unnest(ARRAY['lock_stats', 'lock_contention']) v;
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT * FROM lock_activity, lock_sweeper_status()'), '00000', 'level monitor can read lock_activity and lock_sweeper_status()');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT * FROM lock_policies, lock_history, lock_held_at(''k'', now())'), '00000', 'level monitor can read lock_policies, lock_history and lock_held_at()');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT * FROM lock_queue'), '00000', 'level monitor can read lock_queue');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT * FROM app_lock_queue'), '42501', 'level monitor cannot read app_lock_queue, which has owners');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT * FROM app_lock_policy'), '42501', 'level monitor cannot read app_lock_policy');
SELECT is(array_agg(DISTINCT pg_temp.code_as('regress_al_fresh', 'SELECT ' || call)), '{42501}', 'level monitor cannot reset counters, sweep, schedule, or set policies') FROM unnest(ARRAY['lock_set_policy(''x'', history => true)', 'lock_drop_policy(''x'')', 'lock_stats_reset()', 'lock_sweep()', 'lock_schedule_sweep()', 'lock_unschedule_sweep()']) call;
SELECT lock_revoke_access('regress_al_fresh', 'monitor') \g /dev/null
SELECT is(pg_temp.may('regress_al_fresh'), '{}', 'level monitor is revoked completely');
SELECT is(pg_temp.may_with('regress_al_fresh'), '{}', 'no view is left to it');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT * FROM lock_waiters'), '42501', 'after the revoke, lock_waiters cannot be read');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT * FROM lock_guards'), '42501', 'after the revoke, lock_guards cannot be read');
SELECT lock_grant_access('regress_al_fresh', 'admin') \g /dev/null
SELECT is(pg_temp.may('regress_al_fresh'), '{"force_release(text,text,bigint)",lock_drop_policy(text),"lock_force_release(text,text,bigint)","lock_grant_access(regrole,text)",lock_guard(),"lock_protect(regclass,text,text[],text)","lock_revoke_access(regrole,text)",lock_schedule_sweep(text),"lock_set_policy(text,interval,interval,interval,interval,interval,interval,integer,integer,regrole[],boolean,boolean)",lock_stats_reset(),"lock_steal(text,text,text,interval,text,bigint)",lock_sweep(bigint),"lock_try_force_release(text,text,bigint)",lock_unprotect(regclass),lock_unschedule_sweep()}',
	'level admin: exactly the functions for DBAs');
SELECT is(pg_temp.may_with('regress_al_fresh'), '{"app_lock_queue DELETE","lock_audit DELETE","lock_audit SELECT"}', 'level admin: SELECT and DELETE on lock_audit, DELETE on app_lock_queue');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT lock_set_policy(''x'', history => true), lock_drop_policy(''x'')'), '00000', 'level admin may set and drop policies');
SELECT is(array_agg(DISTINCT pg_temp.code_as('regress_al_fresh', 'SELECT * FROM ' || what)), '{42501}', 'level admin cannot see policies or history') FROM unnest(ARRAY['lock_policies', 'lock_policy(''x'')', 'lock_history', 'lock_held_at(''x'', now())']) what;
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT * FROM lock_waiters'), '42501', 'level admin cannot read lock_waiters');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT lock_waiters()'), '42501', 'level admin cannot call lock_waiters()');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT lock_protect(''pg_temp.another_s'', ''{id}'')'), '42501', 'level admin cannot protect the table of another role');
SELECT is(pg_temp.code_as('regress_al_fresh', 'CREATE TEMP TABLE own (id int); SELECT lock_protect(''own'', ''{id}''), lock_unprotect(''own'')'), '00000', 'level admin can protect its own table');
SELECT lock_revoke_access('regress_al_fresh', 'admin') \g /dev/null
SELECT is(pg_temp.code_as('regress_al_fresh', 'CREATE TEMP TABLE own (id int); SELECT lock_protect(''own'', ''{id}'')'), '42501', 'after the revoke, it cannot protect its own table');
SELECT is(pg_temp.may('regress_al_fresh'), '{}', 'level admin is revoked completely');
SELECT ok(NOT has_table_privilege('regress_al_fresh', 'lock_audit', 'SELECT'), 'after the revoke, lock_audit cannot be read');
SELECT lock_grant_access('regress_al_fresh', 'supervisor') \g /dev/null
SELECT is(pg_temp.may('regress_al_fresh'), '{app_lock_supervisor(),"force_release(text,text,bigint)","lock_force_release(text,text,bigint)","lock_steal(text,text,text,interval,text,bigint)","lock_try_force_release(text,text,bigint)"}',
	'level supervisor: exactly the functions that end and take over locks of others');
SELECT is(pg_temp.may_with('regress_al_fresh'), '{}', 'level supervisor: no table or view');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT (lock_steal(''k'', ''o'', ''r'')).status, force_release(''k'', ''r''), lock_try_force_release(''k'', ''r'')'), '00000', 'level supervisor may end and take over locks');
SELECT is(array_agg(DISTINCT pg_temp.code_as('regress_al_fresh', 'SELECT ' || what)), '{42501}', 'level supervisor can neither look, nor set policies, nor grant') FROM unnest(ARRAY['lock_status(''k'')', '* FROM lock_activity', '* FROM lock_audit', 'lock_set_policy(''x'', history => true)', 'lock_grant_access(''regress_al_fresh'', ''admin'')', 'lock_sweep()', 'lock_acquire(''k'')']) what;
SELECT lock_grant_access('regress_al_fresh', 'admin'), lock_revoke_access('regress_al_fresh', 'admin') \g /dev/null
SELECT is(cardinality(pg_temp.may('regress_al_fresh')), 5, 'revoking level admin leaves level supervisor');
SELECT lock_grant_access('regress_al_fresh', 'admin'), lock_revoke_access('regress_al_fresh', 'supervisor') \g /dev/null
SELECT is(cardinality(pg_temp.may('regress_al_fresh')), 15, 'revoking level supervisor leaves level admin');
SELECT lock_revoke_access('regress_al_fresh', 'admin') \g /dev/null
SELECT is(pg_temp.may('regress_al_fresh'), '{}', 'both levels are revoked completely');
SELECT is_empty('SELECT p.oid::regprocedure FROM member_function p, aclexplode(p.proacl) a WHERE a.grantee <> p.proowner', 'no privilege on a function is left');
SELECT is_empty('SELECT c.oid::regclass FROM member_relation c, aclexplode(c.relacl) a WHERE a.grantee <> c.relowner', 'no privilege on a relation is left');
SELECT is_empty('SELECT p.oid::regprocedure FROM member_function p, aclexplode(p.proacl) a WHERE a.is_grantable AND a.grantee <> p.proowner', 'no privilege has the grant option');

SELECT * FROM finish();
ROLLBACK;
