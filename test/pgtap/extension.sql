-- The extension as a whole: control file, members, comments, and the tables in dumps.
--
-- Turns red when: an object without a comment, a cast or an event trigger joins the extension;
-- a dump includes leases, or omits the fencing sequence; DROP EXTENSION leaves something.
\set ECHO none
SET client_min_messages = warning;
BEGIN;
CREATE EXTENSION IF NOT EXISTS pgtap;
CREATE EXTENSION IF NOT EXISTS atomic_lock;

CREATE TEMP VIEW member AS
SELECT d.classid, d.objid, pg_describe_object(d.classid, d.objid, 0) AS what, e.oid AS extension FROM pg_depend d
	JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND e.oid = d.refobjid AND e.extname = 'atomic_lock'
WHERE d.deptype = 'e';

SELECT plan(54);

-- The control file
SELECT is((SELECT trusted FROM pg_available_extension_versions WHERE name = 'atomic_lock' AND installed), true, 'the extension is trusted');
SELECT is((SELECT superuser FROM pg_available_extension_versions WHERE name = 'atomic_lock' AND installed), true, 'its script runs as a superuser');
SELECT is((SELECT relocatable FROM pg_available_extension_versions WHERE name = 'atomic_lock' AND installed), false, 'the extension is not relocatable');
SELECT is((SELECT schema::text FROM pg_available_extension_versions WHERE name = 'atomic_lock' AND installed), NULL, 'it can be created in any schema');
SELECT isnt((SELECT comment FROM pg_available_extensions WHERE name = 'atomic_lock'), NULL, 'the control file has a comment');
SELECT is((SELECT extversion FROM pg_extension WHERE extname = 'atomic_lock'), (SELECT default_version FROM pg_available_extensions WHERE name = 'atomic_lock'), 'it is created in its default version');

-- pg_dump includes the sequence that keeps tokens rising, the audit, policies and history, but
-- never a lease
SELECT set_eq($$SELECT o::regclass::text, c FROM pg_extension, unnest(extconfig, extcondition) u (o, c) WHERE extname = 'atomic_lock'$$, $$VALUES
	('app_lock_fence', ''), ('lock_audit', ''), ('lock_history', 'WHERE ended_at IS NOT NULL'),
	('app_lock_policy', ''), ('app_lock_policy_role', 'WHERE role::pg_catalog.text OPERATOR(pg_catalog.!~) ''^[0-9]''')$$,
	'pg_dump includes the fencing sequence, audit, ended history and policies, without rows of dropped roles, and no lease');

-- Kinds of members: no object that could run by itself
SELECT set_eq('SELECT DISTINCT classid::regclass::text FROM member', ARRAY['pg_class', 'pg_proc', 'pg_type'], 'members are relations, functions and types only');
SELECT set_eq($$SELECT tgname, tgrelid::regclass::text, tgfoid::regproc::text, tgtype, tgenabled FROM pg_trigger t JOIN member m ON m.classid = 'pg_proc'::regclass AND m.objid = t.tgfoid$$,
	$$VALUES (name 'app_lock_policy_changed', 'app_lock_policy', 'app_lock_policy_changed', int2 '29', "char" 'A'), ('app_lock_policy_truncated', 'app_lock_policy', 'app_lock_policy_changed', 32, 'A'),
		('app_lock_policy_changed', 'app_lock_policy_role', 'app_lock_policy_changed', 29, 'A'), ('app_lock_policy_truncated', 'app_lock_policy_role', 'app_lock_policy_changed', 32, 'A'),
		('app_lock_keep_own', 'app_lock', 'app_lock_keep_own', 31, 'R'), ('app_lock_keep_own', 'app_lock_queue', 'app_lock_keep_own', 31, 'R'), ('app_lock_keep_own', 'lock_history', 'app_lock_keep_own', 31, 'R')$$,
	'triggers exist after each change of policies, also in a subscription, and before rows of locks in a subscription');
SELECT is_empty($$SELECT what FROM member WHERE classid = 'pg_type'::regclass AND objid NOT IN (SELECT reltype FROM pg_class WHERE relname IN ('app_lock', 'lock_audit', 'lock_waiters', 'lock_guards', 'lock_stats', 'lock_contention', 'lock_activity', 'lock_grant', 'lock_state', 'app_lock_policy', 'app_lock_policy_role', 'lock_policies', 'lock_history', 'app_lock_queue', 'lock_queue', 'lock_place')
	UNION ALL SELECT typarray FROM pg_type WHERE typrelid IN (SELECT oid FROM pg_class WHERE relname IN ('app_lock', 'lock_audit', 'lock_waiters', 'lock_guards', 'lock_stats', 'lock_contention', 'lock_activity', 'lock_grant', 'lock_state', 'app_lock_policy', 'app_lock_policy_role', 'lock_policies', 'lock_history', 'app_lock_queue', 'lock_queue', 'lock_place'))
	UNION ALL SELECT unnest(ARRAY[oid, typarray]) FROM pg_type WHERE typname = 'lock_mode')$$, 'the only types are row types and lock_mode');
SELECT is_empty($$SELECT c.oid::regclass FROM member m JOIN pg_cast c ON c.castsource = m.objid OR c.casttarget = m.objid WHERE m.classid = 'pg_type'::regclass$$, 'there are no casts');
SELECT is_empty($$SELECT evtname FROM pg_event_trigger t JOIN member m ON m.classid = 'pg_proc'::regclass AND m.objid = t.evtfoid$$, 'there are no event triggers');

-- Comments on every object
SELECT is_empty($$SELECT what FROM member WHERE classid = 'pg_proc'::regclass AND obj_description(objid, 'pg_proc') IS NULL$$, 'every function has a comment');
SELECT is_empty($$SELECT what FROM member JOIN pg_class c ON c.oid = objid WHERE classid = 'pg_class'::regclass AND c.relkind <> 'c' AND obj_description(objid, 'pg_class') IS NULL$$, 'every table, view and sequence has a comment');
SELECT is_empty($$SELECT typname FROM pg_type t JOIN member m ON m.classid = 'pg_type'::regclass AND m.objid = t.oid
	WHERE (t.typtype <> 'c' OR (SELECT relkind FROM pg_class WHERE oid = t.typrelid) = 'c') AND t.typelem = 0 AND obj_description(t.oid, 'pg_type') IS NULL$$, 'every type has a comment');
SELECT is_empty($$SELECT a.attrelid::regclass, a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid AND c.relkind <> 'S'
	JOIN member m ON m.classid = 'pg_class'::regclass AND m.objid = c.oid OR m.classid = 'pg_type'::regclass AND m.objid = c.reltype AND c.relkind = 'c'
	WHERE a.attnum > 0 AND NOT a.attisdropped AND col_description(a.attrelid, a.attnum) IS NULL$$, 'every column has a comment');

-- The comments of functions tell what a caller must know.
SELECT matches(obj_description('lock_acquire(text,interval,text,text,interval,text,jsonb,text,integer,text)'::regprocedure, 'pg_proc'), 'waits.*"wait".*order of arrival.*55P03.*wait ran out.*40P01', 'comment of lock_acquire: length and order of waits, errors');
SELECT matches(obj_description('lock_try_acquire(text,interval,text,text,interval,text,jsonb,text,integer,text)'::regprocedure, 'pg_proc'), '"held", "held_by_owner", "pending", "timeout", "deadlock" or "lifetime_exceeded"', 'comment of lock_try_acquire: answers of a refusal');
SELECT matches(obj_description('lock_acquire_all(text[],interval,text,text,interval,text,jsonb,integer,text[])'::regprocedure, 'pg_proc'), '1 to 1000.*all or none.*order of their bytes.*"wait".*whole set.*raises', 'comment of lock_acquire_all: number and order of keys, all or none, length of waits, errors');
SELECT matches(obj_description('lock_try_acquire_all(text[],interval,text,text,interval,text,jsonb,integer,text[])'::regprocedure, 'pg_proc'), 'lock_acquire_all', 'comment of lock_try_acquire_all: refers to lock_acquire_all');
SELECT matches(obj_description('lock_convert(text,text,text,interval)'::regprocedure, 'pg_proc'), 'without letting go.*new fencing token.*55P03.*40P01.*LK002', 'comment of lock_convert: what changes and what stays, errors');
SELECT matches(obj_description('lock_transfer(text,text,text,text,interval)'::regprocedure, 'pg_proc'), 'new_owner', 'comment of lock_transfer: the new owner');
SELECT matches(col_description('lock_grant'::regclass, (SELECT attnum FROM pg_attribute WHERE attrelid = 'lock_grant'::regclass AND attname = 'status')), 'acquired or reacquired.*held, pending, timeout, deadlock, lifetime_exceeded.*not_found, not_owner, already_released, expired or forced', 'comment of lock_grant.status: all values');
SELECT matches(col_description('lock_grant'::regclass, (SELECT attnum FROM pg_attribute WHERE attrelid = 'lock_grant'::regclass AND attname = 'waited')), 'waited', 'comment of lock_grant.waited');
SELECT matches(obj_description('lock_waiters()'::regprocedure, 'pg_proc'), '55000 before PostgreSQL 17.*not preloaded', 'comment of lock_waiters(): servers on which it raises');
SELECT matches(obj_description('lock_waiters'::regclass, 'pg_class'), 'this database.*order', 'comment of lock_waiters: database and order of waiters');
SELECT matches(obj_description('lock_assert(text,text)'::regprocedure, 'pg_proc'), 'LK006.*pins it until the transaction ends.*writes nothing', 'comment of lock_assert: errors, length of the pin');
SELECT matches(obj_description('lock_assert_fence(text,bigint,text)'::regprocedure, 'pg_proc'), 'LK005.*pins it', 'comment of lock_assert_fence: errors, and that it pins');
SELECT matches(obj_description('lock_fetch(anyelement,text,interval,text,interval,text,text,jsonb)'::regprocedure, 'pg_proc'), 'JSON object.*no row and no lock.*separator.*LK012.*42703.*40001', 'comment of lock_fetch: how to name the row, a missing row, paths, expected values, errors');
SELECT matches(obj_description('lock_protect(regclass,text,text[],text)'::regprocedure, 'pg_proc'), 'insert, update, delete.*order:\{id\}.*separator.*owner of the table.*42703.*22023', 'comment of lock_protect: events, template, separator, privileges, errors');
SELECT matches(obj_description('lock_unprotect(regclass)'::regprocedure, 'pg_proc'), 'partitions and children.*42704', 'comment of lock_unprotect: partitions and children, errors');
SELECT matches(obj_description('lock_guard()'::regprocedure, 'pg_proc'), 'LK006.*exclusive.*pins.*22004.*55000', 'comment of lock_guard(): errors');
SELECT matches(obj_description('lock_grant_access(regrole,text)'::regprocedure, 'pg_proc'), 'monitor \([^)]*lock_waiters', 'comment of lock_grant_access: level for lock_waiters');
SELECT matches(obj_description('lock_grant_access(regrole,text)'::regprocedure, 'pg_proc'), 'supervisor \([^)]*force_release and lock_steal.*admin \([^)]*force_release', 'comment of lock_grant_access: levels for ending locks of others');
SELECT matches(obj_description('lock_sweep(bigint)'::regprocedure, 'pg_proc'), 'max_rows.*sweep_batch.*expired.*released_retention.*skips', 'comment of lock_sweep: number and kinds of rows');
SELECT matches(obj_description('lock_schedule_sweep(text)'::regprocedure, 'pg_proc'), 'pg_cron.*55000', 'comment of lock_schedule_sweep: needs pg_cron, errors');
SELECT matches(obj_description('lock_unschedule_sweep()'::regprocedure, 'pg_proc'), 'pg_cron|lock_schedule_sweep', 'comment of lock_unschedule_sweep: the job that it removes');
SELECT matches(obj_description('lock_stats()'::regprocedure, 'pg_proc'), '55000 before PostgreSQL 17.*not preloaded', 'comment of lock_stats(): servers on which it raises');
SELECT matches(obj_description('lock_contention()'::regprocedure, 'pg_proc'), '55000 before PostgreSQL 17.*not preloaded', 'comment of lock_contention(): servers on which it raises');
SELECT matches(obj_description((f || '(text)')::regprocedure, 'pg_proc'), '^internal', f || ': the comment says that it is internal') FROM unnest(ARRAY['app_lock_longest_wait', 'app_lock_count_waiters']) f;
SELECT matches(obj_description('lock_grant_access(regrole,text)'::regprocedure, 'pg_proc'), 'monitor \([^)]*lock_stats.*admin \([^)]*sweep', 'comment of lock_grant_access: level for lock_stats');
SELECT matches(obj_description('lock_grant_access(regrole,text)'::regprocedure, 'pg_proc'), 'monitor \([^)]*lock_policies, lock_history, lock_held_at.*admin \([^)]*policies', 'comment of lock_grant_access: levels for reading and setting policies');
SELECT matches(obj_description('lock_set_policy(text,interval,interval,interval,interval,interval,interval,integer,integer,regrole[],boolean,boolean)'::regprocedure, 'pg_proc'), 'begin with "prefix".*1024 bytes.*in place of.*shorter prefixes.*next call.*22004.*22023.*42704', 'comment of lock_set_policy: keys, replacement, null, when it is in force, errors');
SELECT matches(obj_description('lock_drop_policy(text)'::regprocedure, 'pg_proc'), 'exactly this prefix.*false', 'comment of lock_drop_policy: prefix, result');
SELECT matches(obj_description('lock_policy(text)'::regprocedure, 'pg_proc'), 'one row.*longest prefix.*setting.*null is no limit.*"prefixes"', 'comment of lock_policy: policies that decide, null');
SELECT matches(obj_description('lock_enqueue(text,text,text,interval,interval,interval,jsonb)'::regprocedure, 'pg_proc'), 'lock_acquire.*place in line.*renews.*offer.*1 min.*keep.*1 h.*max_ttl.*ttl, cut to max_ttl and max_lifetime, and meta.*53400.*42501.*22023', 'comment of lock_enqueue: grant or ticket, its duration, errors');
SELECT matches(obj_description('lock_leave(text,text)'::regprocedure, 'pg_proc'), 'false.*22004', 'comment of lock_leave: result, errors');
SELECT matches(obj_description('lock_ask(text,text)'::regprocedure, 'pg_proc'), 'how many.*1024 bytes.*42501', 'comment of lock_ask: result, length of the message, errors');
SELECT matches(obj_description('lock_explain(text)'::regprocedure, 'pg_proc'), 'which statement.*only for access level monitor, owners never.*22004.*22023.*42501', 'comment of lock_explain: statement, what it shows to whom, errors');
SELECT matches(obj_description('lock_channel(text)'::regprocedure, 'pg_proc'), 'LISTEN.*22004', 'comment of lock_channel: its use with LISTEN, errors');
SELECT matches(obj_description('lock_grant_access(regrole,text)'::regprocedure, 'pg_proc'), 'monitor \([^)]*lock_queue', 'comment of lock_grant_access: level for lock_queue');
SELECT matches(obj_description('lock_held_at(text,timestamp with time zone)'::regprocedure, 'pg_proc'), '"at".*expired.*policy with history.*leaves out', 'comment of lock_held_at: holders shown, and the policy it needs');

-- DROP EXTENSION removes everything.
DROP EXTENSION atomic_lock;
SELECT is_empty($$SELECT proname FROM pg_proc WHERE proname ~ '^(app_)?lock_|^force_release' AND pronamespace = 'public'::regnamespace
	UNION ALL SELECT relname FROM pg_class WHERE relname ~ '^(app_lock|lock_audit|lock_waiters|lock_guards|lock_stats|lock_contention|lock_activity|lock_grant|lock_state|lock_policies|lock_history|lock_queue|lock_place)'$$, 'DROP EXTENSION leaves nothing behind');

SELECT * FROM finish();
ROLLBACK;
