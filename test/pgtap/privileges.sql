-- Nobody may do anything until lock_grant_access says so.
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

-- What a role may do with tables and views
CREATE FUNCTION pg_temp.may_with(r text) RETURNS text[] LANGUAGE sql AS $$
	SELECT coalesce(array_agg(c.relname || ' ' || p ORDER BY c.relname, p), '{}') FROM member_relation c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) p
	WHERE c.relkind IN ('r', 'v') AND has_table_privilege(r, c.oid, p)
$$;
-- What becomes of a statement of that role
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
-- Before 17 waiters are in a queue only where the module is preloaded, which it is not here.
CREATE FUNCTION pg_temp.allowed() RETURNS text LANGUAGE sql AS $$
	SELECT CASE WHEN current_setting('server_version_num')::int < 170000 THEN '55000' ELSE '00000' END
$$;

SELECT plan(54);

SELECT isnt_empty('SELECT FROM member_function', 'there are functions to look at');
SELECT is_empty('SELECT pg_describe_object(classid, objid, 0) FROM member m WHERE classid <> ''pg_type''::regclass
	AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = m.objid AND c.relkind = ''c'') AND NOT EXISTS (SELECT FROM pg_init_privs i WHERE i.classoid = m.classid AND i.objoid = m.objid)',
	'privileges at the start are noted for everything, so that update scripts know what is new');
SELECT is_empty('SELECT p.oid::regprocedure FROM member_function p WHERE p.proacl IS NULL', 'no function has default privileges, which include PUBLIC');
SELECT is_empty('SELECT p.oid::regprocedure FROM member_function p, aclexplode(p.proacl) a WHERE a.grantee = 0', 'no function may be executed by PUBLIC');
SELECT is_empty('SELECT p.oid::regprocedure FROM member_function p, aclexplode(p.proacl) a WHERE a.grantee <> p.proowner', 'nor by anybody but the owner');
SELECT is_empty('SELECT c.oid::regclass FROM member_relation c, aclexplode(coalesce(c.relacl, acldefault(CASE c.relkind WHEN ''S'' THEN ''s'' ELSE ''r'' END::"char", c.relowner))) a WHERE a.grantee <> c.relowner', 'no relation has rights for anybody but the owner');
SELECT is_empty('SELECT attrelid::regclass, attname FROM pg_attribute WHERE attrelid IN (SELECT oid FROM member_relation) AND attacl IS NOT NULL', 'no column has rights of its own');
SELECT is(pg_temp.may('regress_al_fresh'), '{}', 'a new role may execute nothing');
SELECT is_empty($$SELECT c.oid::regclass, p FROM member_relation c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) p
	WHERE c.relkind IN ('r', 'v') AND has_table_privilege('regress_al_fresh', c.oid, p)$$, 'a new role has no right on any table or view');
SELECT is_empty($$SELECT c.oid::regclass, p FROM member_relation c, unnest(ARRAY['SELECT', 'USAGE', 'UPDATE']) p
	WHERE c.relkind = 'S' AND has_sequence_privilege('regress_al_fresh', c.oid, p)$$, 'a new role has no right on any sequence');

SELECT lock_grant_access('regress_al_fresh', 'user') \g /dev/null
SELECT is(pg_temp.may('regress_al_fresh'), '{"lock_acquire(text,interval,text,text,interval,text,jsonb,text,integer,text)","lock_acquire_all(text[],interval,text,text,interval,text,jsonb,integer,text[])","lock_acquire_path(text,interval,text,interval,text,jsonb,text)","lock_ask(text,text)","lock_assert(text,text)","lock_assert_fence(text,bigint,text)",lock_channel(text),"lock_convert(text,text,text,interval)","lock_enqueue(text,text,text,interval,interval)","lock_extend(text,text,interval)","lock_extend_all(text,interval)","lock_fetch(anyelement,text,interval,text,interval,text,text)","lock_heartbeat(text[],text,interval)",lock_held(text),"lock_holder(text)","lock_is_held(text,text)","lock_key(\"any\")","lock_key(text[])","lock_leave(text,text)","lock_partition(text,integer)","lock_path(text,text)","lock_policy(text)","lock_release(text,text)","lock_release_all(text)","lock_release_path(text,text,text)","lock_status(text)","lock_transfer(text,text,text,text,interval)","lock_transfer_all(text,text,text)","lock_try_acquire(text,interval,text,text,interval,text,jsonb,text,integer,text)","lock_try_acquire_all(text[],interval,text,text,interval,text,jsonb,integer,text[])","lock_try_acquire_path(text,interval,text,interval,text,jsonb,text)","lock_try_convert(text,text,text,interval)","lock_try_extend(text,text,interval)","lock_try_release(text,text)","lock_try_transfer(text,text,text,text,interval)"}',
	'level user: the functions for applications');
SELECT is(pg_temp.may_with('regress_al_fresh'), '{}', 'and no table or view');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT * FROM lock_waiters'), '42501', 'such as lock_waiters');
SELECT is(array_agg(DISTINCT pg_temp.code_as('regress_al_fresh', 'SELECT ' || what)), '{42501}', 'or what tells of places in line') FROM unnest(ARRAY['* FROM lock_queue', 'lock_queue()', '* FROM app_lock_queue']) what;
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT lock_channel(''k''), lock_ask(''k''), (lock_enqueue(''k'', ''o'')).status, lock_leave(''k'', ''o'')'), '00000', 'it may wait in line, and ask');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT lock_waiters()'), '42501', 'nor the function behind it');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT lock_try_acquire_all(ARRAY[''k'']), lock_acquire_all(ARRAY[''j''])'), '00000', 'it may lock sets');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT lock_acquire(''k'', owner => ''o''), lock_assert(''k'', ''o''), lock_assert_fence(''k'', lock_assert(''k'', ''o''), ''o'')'), '00000', 'assert');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT lock_fetch(NULL::pg_temp.another_s, ''1'', owner => ''o'')'), '42501', 'but fetch only what it may read');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT * FROM lock_policy(''k'')'), '00000', 'see what holds for a key');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT (lock_acquire(''k'', owner => ''o'', mode => ''shared'', lifetime => ''session'')).status, (lock_convert(''k'', ''o'')).status, (lock_transfer(''k'', ''o'', ''p'')).status'), '00000', 'in every mode and lifetime, convert and hand over');
SELECT lock_revoke_access('regress_al_fresh', 'user') \g /dev/null
SELECT is(pg_temp.may('regress_al_fresh'), '{}', 'and taken back');
SELECT is(array_agg(DISTINCT pg_temp.code_as('regress_al_fresh', 'SELECT ' || call)), '{42501}', 'with sets, conversion and hand-over')
FROM unnest(ARRAY['lock_acquire_all(ARRAY[''k''])', 'lock_try_acquire_all(ARRAY[''k''])', 'lock_convert(''k'', ''o'')', 'lock_transfer(''k'', ''o'', ''p'')',
	'lock_channel(''k'')', 'lock_ask(''k'')', 'lock_enqueue(''k'', ''o'')', 'lock_leave(''k'', ''o'')',
	'lock_assert(''k'', ''o'')', 'lock_assert_fence(''k'', 1, ''o'')', 'lock_fetch(NULL::pg_temp.another_s, ''1'', owner => ''o'')']) call;
SELECT lock_grant_access('regress_al_fresh', 'monitor') \g /dev/null
SELECT is(pg_temp.may('regress_al_fresh'), '{app_lock_count_waiters(text),"app_lock_guard_problem(regclass,name)",app_lock_longest_wait(text),lock_channel(text),lock_contention(),"lock_held_at(text,timestamp with time zone)",lock_holder(text),"lock_is_held(text,text)","lock_key(\"any\")",lock_key(text[]),"lock_partition(text,integer)","lock_path(text,text)",lock_queue(),lock_stats(),lock_status(),lock_status(text),lock_sweeper_status(),lock_waiters()}', 'level monitor: the state of one and of all keys, who waits, what was counted, and what the views need');
SELECT is(pg_temp.may_with('regress_al_fresh'), '{"lock_activity SELECT","lock_contention SELECT","lock_guards SELECT","lock_history SELECT","lock_policies SELECT","lock_queue SELECT","lock_stats SELECT","lock_waiters SELECT"}', 'and reading the views, nothing else');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT * FROM lock_waiters'), pg_temp.allowed(), 'which works');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT lock_waiters()'), pg_temp.allowed(), 'through the function, too');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT * FROM lock_guards'), '00000', 'lock_guards works');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT * FROM ' || v), pg_temp.allowed(), v || ' works') FROM unnest(ARRAY['lock_stats', 'lock_contention']) v;
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT * FROM lock_activity, lock_sweeper_status()'), '00000', 'lock_activity and lock_sweeper_status() work');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT * FROM lock_policies, lock_history, lock_held_at(''k'', now())'), '00000', 'so do lock_policies, lock_history and lock_held_at()');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT * FROM lock_queue'), '00000', 'and lock_queue');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT * FROM app_lock_queue'), '42501', 'but not the table behind it, which has owners');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT * FROM app_lock_policy'), '42501', 'nor the table of policies');
SELECT is(array_agg(DISTINCT pg_temp.code_as('regress_al_fresh', 'SELECT ' || call)), '{42501}', 'but nothing can be reset, swept, scheduled or ruled') FROM unnest(ARRAY['lock_set_policy(''x'', history => true)', 'lock_drop_policy(''x'')', 'lock_stats_reset()', 'lock_sweep()', 'lock_schedule_sweep()', 'lock_unschedule_sweep()']) call;
SELECT lock_revoke_access('regress_al_fresh', 'monitor') \g /dev/null
SELECT is(pg_temp.may('regress_al_fresh'), '{}', 'and taken back');
SELECT is(pg_temp.may_with('regress_al_fresh'), '{}', 'with the views');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT * FROM lock_waiters'), '42501', 'lock_waiters cannot be read any more');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT * FROM lock_guards'), '42501', 'nor lock_guards');
SELECT lock_grant_access('regress_al_fresh', 'admin') \g /dev/null
SELECT is(pg_temp.may('regress_al_fresh'), '{"force_release(text,text,bigint)",lock_drop_policy(text),"lock_force_release(text,text,bigint)","lock_grant_access(regrole,text)",lock_guard(),"lock_protect(regclass,text,text[])","lock_revoke_access(regrole,text)",lock_schedule_sweep(text),"lock_set_policy(text,interval,interval,interval,interval,interval,interval,integer,integer,regrole[],boolean,boolean)",lock_stats_reset(),"lock_steal(text,text,text,interval,text,bigint)",lock_sweep(bigint),"lock_try_force_release(text,text,bigint)",lock_unprotect(regclass),lock_unschedule_sweep()}',
	'level admin: the functions for DBAs');
SELECT is(pg_temp.may_with('regress_al_fresh'), '{"app_lock_queue DELETE","lock_audit DELETE","lock_audit SELECT"}', 'and reading and trimming lock_audit, and deleting places');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT lock_set_policy(''x'', history => true), lock_drop_policy(''x'')'), '00000', 'it sets and drops policies');
SELECT is(array_agg(DISTINCT pg_temp.code_as('regress_al_fresh', 'SELECT * FROM ' || what)), '{42501}', 'but sees none, and no history') FROM unnest(ARRAY['lock_policies', 'lock_policy(''x'')', 'lock_history', 'lock_held_at(''x'', now())']) what;
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT * FROM lock_waiters'), '42501', 'so not lock_waiters');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT lock_waiters()'), '42501', 'nor the function behind it');
SELECT is(pg_temp.code_as('regress_al_fresh', 'SELECT lock_protect(''pg_temp.another_s'', ''{id}'')'), '42501', 'tables of others are not for it to protect');
SELECT is(pg_temp.code_as('regress_al_fresh', 'CREATE TEMP TABLE own (id int); SELECT lock_protect(''own'', ''{id}''), lock_unprotect(''own'')'), '00000', 'its own are');
SELECT lock_revoke_access('regress_al_fresh', 'admin') \g /dev/null
SELECT is(pg_temp.code_as('regress_al_fresh', 'CREATE TEMP TABLE own (id int); SELECT lock_protect(''own'', ''{id}'')'), '42501', 'no longer');
SELECT is(pg_temp.may('regress_al_fresh'), '{}', 'and taken back');
SELECT ok(NOT has_table_privilege('regress_al_fresh', 'lock_audit', 'SELECT'), 'with lock_audit');
SELECT is_empty('SELECT p.oid::regprocedure FROM member_function p, aclexplode(p.proacl) a WHERE a.grantee <> p.proowner', 'no right is left over');
SELECT is_empty('SELECT c.oid::regclass FROM member_relation c, aclexplode(c.relacl) a WHERE a.grantee <> c.relowner', 'nor one on a relation');
SELECT is_empty('SELECT p.oid::regprocedure FROM member_function p, aclexplode(p.proacl) a WHERE a.is_grantable AND a.grantee <> p.proowner', 'nothing is handed out with grant option');

SELECT * FROM finish();
ROLLBACK;
