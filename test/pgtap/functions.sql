-- Every function: signature, names and defaults of arguments, result, and execution properties.
--
-- Turns red when: a function, argument or default changes unnoticed; a function that writes
-- becomes cheap, strict, leakproof or parallel safe; a function resolves names by the caller's
-- search_path.
\set ECHO none
SET client_min_messages = warning;
BEGIN;
CREATE EXTENSION IF NOT EXISTS pgtap;
CREATE EXTENSION IF NOT EXISTS atomic_lock;
SET LOCAL IntervalStyle = 'postgres';

CREATE TEMP TABLE expected (name text, arguments text, result text, volatility text, parallel text, language text, definer boolean);
INSERT INTO expected VALUES
	('lock_acquire', 'key text, ttl interval DEFAULT NULL::interval, owner text DEFAULT NULL::text, mode text DEFAULT ''exclusive''::text, wait interval DEFAULT ''00:00:00''::interval, holder text DEFAULT NULL::text, meta jsonb DEFAULT NULL::jsonb, lifetime text DEFAULT ''lease''::text, max_holders integer DEFAULT NULL::integer, on_reacquire text DEFAULT NULL::text',
		'lock_grant', 'volatile', 'unsafe', 'c', false),
	('lock_try_acquire', 'key text, ttl interval DEFAULT NULL::interval, owner text DEFAULT NULL::text, mode text DEFAULT ''exclusive''::text, wait interval DEFAULT ''00:00:00''::interval, holder text DEFAULT NULL::text, meta jsonb DEFAULT NULL::jsonb, lifetime text DEFAULT ''lease''::text, max_holders integer DEFAULT NULL::integer, on_reacquire text DEFAULT NULL::text',
		'lock_grant', 'volatile', 'unsafe', 'c', false),
	('lock_acquire_all', 'keys text[], ttl interval DEFAULT NULL::interval, owner text DEFAULT NULL::text, mode text DEFAULT ''exclusive''::text, wait interval DEFAULT ''00:00:00''::interval, holder text DEFAULT NULL::text, meta jsonb DEFAULT NULL::jsonb, max_holders integer DEFAULT NULL::integer, modes text[] DEFAULT NULL::text[]',
		'SETOF lock_grant', 'volatile', 'unsafe', 'c', false),
	('lock_try_acquire_all', 'keys text[], ttl interval DEFAULT NULL::interval, owner text DEFAULT NULL::text, mode text DEFAULT ''exclusive''::text, wait interval DEFAULT ''00:00:00''::interval, holder text DEFAULT NULL::text, meta jsonb DEFAULT NULL::jsonb, max_holders integer DEFAULT NULL::integer, modes text[] DEFAULT NULL::text[]',
		'SETOF lock_grant', 'volatile', 'unsafe', 'c', false),
	('lock_acquire_path', 'path text, ttl interval DEFAULT NULL::interval, owner text DEFAULT NULL::text, wait interval DEFAULT ''00:00:00''::interval, holder text DEFAULT NULL::text, meta jsonb DEFAULT NULL::jsonb, separator text DEFAULT ''/''::text',
		'SETOF lock_grant', 'volatile', 'unsafe', 'c', false),
	('lock_try_acquire_path', 'path text, ttl interval DEFAULT NULL::interval, owner text DEFAULT NULL::text, wait interval DEFAULT ''00:00:00''::interval, holder text DEFAULT NULL::text, meta jsonb DEFAULT NULL::jsonb, separator text DEFAULT ''/''::text',
		'SETOF lock_grant', 'volatile', 'unsafe', 'c', false),
	('lock_release_path', 'path text, owner text DEFAULT NULL::text, separator text DEFAULT ''/''::text', 'bigint', 'volatile', 'unsafe', 'c', false),
	('lock_path', 'path text, separator text DEFAULT ''/''::text', 'text[]', 'immutable', 'safe', 'c', false),
	('lock_convert', 'key text, owner text DEFAULT NULL::text, mode text DEFAULT ''exclusive''::text, wait interval DEFAULT ''00:00:00''::interval', 'lock_grant', 'volatile', 'unsafe', 'c', false),
	('lock_transfer', 'key text, owner text, new_owner text, holder text DEFAULT NULL::text, ttl interval DEFAULT NULL::interval', 'lock_grant', 'volatile', 'unsafe', 'c', false),
	('lock_try_convert', 'key text, owner text DEFAULT NULL::text, mode text DEFAULT ''exclusive''::text, wait interval DEFAULT ''00:00:00''::interval', 'lock_grant', 'volatile', 'unsafe', 'c', false),
	('lock_try_transfer', 'key text, owner text, new_owner text, holder text DEFAULT NULL::text, ttl interval DEFAULT NULL::interval', 'lock_grant', 'volatile', 'unsafe', 'c', false),
	('lock_transfer_all', 'owner text, new_owner text, holder text DEFAULT NULL::text', 'bigint', 'volatile', 'unsafe', 'c', false),
	('lock_heartbeat', 'keys text[] DEFAULT NULL::text[], owner text DEFAULT NULL::text, ttl interval DEFAULT NULL::interval, OUT key text, OUT status text, OUT expires_at timestamp with time zone, OUT ttl_remaining interval', 'SETOF record', 'volatile', 'unsafe', 'c', false),
	('lock_held', 'owner text DEFAULT NULL::text, OUT key text, OUT mode text, OUT lifetime text, OUT fencing_token bigint, OUT acquired_at timestamp with time zone, OUT expires_at timestamp with time zone, OUT ttl_remaining interval, OUT meta jsonb', 'SETOF record', 'stable', 'unsafe', 'c', false),
	('lock_release', 'key text, owner text DEFAULT NULL::text', 'boolean', 'volatile', 'unsafe', 'c', false),
	('lock_try_release', 'key text, owner text DEFAULT NULL::text', 'text', 'volatile', 'unsafe', 'c', false),
	('lock_release_all', 'owner text DEFAULT NULL::text', 'bigint', 'volatile', 'unsafe', 'c', false),
	('lock_extend', 'key text, owner text DEFAULT NULL::text, ttl interval DEFAULT NULL::interval', 'timestamp with time zone', 'volatile', 'unsafe', 'c', false),
	('lock_try_extend', 'key text, owner text DEFAULT NULL::text, ttl interval DEFAULT NULL::interval', 'timestamp with time zone', 'volatile', 'unsafe', 'c', false),
	('lock_extend_all', 'owner text DEFAULT NULL::text, ttl interval DEFAULT NULL::interval', 'bigint', 'volatile', 'unsafe', 'c', false),
	('lock_assert', 'key text, owner text DEFAULT NULL::text', 'bigint', 'volatile', 'unsafe', 'c', false),
	('lock_assert_fence', 'key text, fencing_token bigint, owner text DEFAULT NULL::text', 'void', 'volatile', 'unsafe', 'c', false),
	('lock_fetch', 'row_type anyelement, id text, ttl interval DEFAULT NULL::interval, owner text DEFAULT NULL::text, wait interval DEFAULT ''00:00:00''::interval, key text DEFAULT NULL::text, holder text DEFAULT NULL::text, expect jsonb DEFAULT NULL::jsonb', 'SETOF anyelement', 'volatile', 'unsafe', 'c', false),
	('lock_is_held', 'key text, owner text DEFAULT NULL::text', 'boolean', 'stable', 'unsafe', 'c', false),
	('lock_holder', 'key text', 'text', 'stable', 'unsafe', 'c', false),
	('lock_status', 'key text', 'lock_state', 'stable', 'unsafe', 'c', false),
	('lock_status', '', 'SETOF lock_state', 'stable', 'unsafe', 'c', false),
	('lock_waiters', 'OUT key text, OUT place integer, OUT holder text, OUT since timestamp with time zone, OUT blocked_by text, OUT mode text, OUT pid integer, OUT blocking_pid integer',
		'SETOF record', 'stable', 'unsafe', 'c', false),
	('lock_explain', 'key text', 'text', 'stable', 'unsafe', 'c', false),
	('lock_channel', 'key text', 'text', 'stable', 'unsafe', 'c', false),
	('lock_ask', 'key text, message text DEFAULT NULL::text', 'integer', 'volatile', 'unsafe', 'c', false),
	('lock_enqueue', 'key text, owner text DEFAULT NULL::text, holder text DEFAULT NULL::text, offer interval DEFAULT NULL::interval, keep interval DEFAULT NULL::interval, ttl interval DEFAULT NULL::interval, meta jsonb DEFAULT NULL::jsonb', 'lock_place', 'volatile', 'unsafe', 'c', false),
	('lock_leave', 'key text, owner text DEFAULT NULL::text', 'boolean', 'volatile', 'unsafe', 'c', false),
	('lock_queue', 'OUT key text, OUT place integer, OUT holder text, OUT queued_at timestamp with time zone, OUT offered_until timestamp with time zone, OUT expires_at timestamp with time zone, OUT offer interval, OUT role name, OUT ticket bigint',
		'SETOF record', 'stable', 'unsafe', 'c', false),
	('lock_key', 'VARIADIC parts text[]', 'text', 'immutable', 'safe', 'c', false),
	('lock_key', 'VARIADIC parts "any"', 'text', 'stable', 'safe', 'c', false),
	('lock_partition', 'key text, partitions integer', 'integer', 'immutable', 'safe', 'c', false),
	('lock_set_policy', 'prefix text, default_ttl interval DEFAULT NULL::interval, max_ttl interval DEFAULT NULL::interval, max_wait interval DEFAULT NULL::interval, max_lifetime interval DEFAULT NULL::interval, lock_delay interval DEFAULT NULL::interval, min_hold interval DEFAULT NULL::interval, max_holders integer DEFAULT NULL::integer, max_keys_per_role integer DEFAULT NULL::integer, roles regrole[] DEFAULT NULL::regrole[], history boolean DEFAULT NULL::boolean, notify boolean DEFAULT NULL::boolean',
		'void', 'volatile', 'unsafe', 'c', false),
	('lock_drop_policy', 'prefix text', 'boolean', 'volatile', 'unsafe', 'c', false),
	('lock_policy', 'key text, OUT default_ttl interval, OUT max_ttl interval, OUT max_wait interval, OUT max_lifetime interval, OUT lock_delay interval, OUT min_hold interval, OUT max_holders integer, OUT max_keys_per_role integer, OUT roles regrole[], OUT history boolean, OUT notify boolean, OUT prefixes jsonb',
		'record', 'stable', 'unsafe', 'c', false),
	('lock_held_at', 'key text, at timestamp with time zone, OUT mode text, OUT fencing_token bigint, OUT owner_digest text, OUT holder text, OUT role name, OUT client_addr inet, OUT application text, OUT acquired_at timestamp with time zone, OUT ended_at timestamp with time zone, OUT ended_by text',
		'SETOF record', 'stable', 'unsafe', 'c', false),
	('app_lock_keep_own', '', 'trigger', 'volatile', 'unsafe', 'c', false),
	('app_lock_policy_changed', '', 'trigger', 'volatile', 'unsafe', 'c', false),
	('force_release', 'key text, reason text, fencing_token bigint DEFAULT NULL::bigint', 'boolean', 'volatile', 'unsafe', 'c', false),
	('lock_force_release', 'key text, reason text, fencing_token bigint DEFAULT NULL::bigint', 'boolean', 'volatile', 'unsafe', 'c', false),
	('lock_try_force_release', 'key text, reason text, fencing_token bigint DEFAULT NULL::bigint', 'text', 'volatile', 'unsafe', 'c', false),
	('lock_steal', 'key text, new_owner text, reason text, ttl interval DEFAULT NULL::interval, holder text DEFAULT NULL::text, fencing_token bigint DEFAULT NULL::bigint', 'lock_grant', 'volatile', 'unsafe', 'c', false),
	('lock_sweep', 'max_rows bigint DEFAULT NULL::bigint', 'bigint', 'volatile', 'unsafe', 'c', false),
	('lock_schedule_sweep', 'schedule text DEFAULT ''* * * * *''::text', 'bigint', 'volatile', 'unsafe', 'plpgsql', false),
	('lock_unschedule_sweep', '', 'boolean', 'volatile', 'unsafe', 'plpgsql', false),
	('lock_sweeper_status', 'OUT database name, OUT status text, OUT last_swept_at timestamp with time zone, OUT last_removed bigint, OUT last_duration interval, OUT hint text', 'SETOF record', 'volatile', 'unsafe', 'c', false),
	('lock_stats', 'OUT database name, OUT grants bigint, OUT regrants bigint, OUT refusals bigint, OUT timeouts bigint, OUT deadlocks bigint, OUT releases bigint, OUT extends bigint, OUT expirations bigint, OUT steals bigint, OUT forced bigint, OUT sweeps bigint, OUT swept bigint, OUT waits bigint, OUT total_wait interval, OUT longest_wait interval, OUT since timestamp with time zone, OUT guard_refusals bigint', 'SETOF record', 'volatile', 'unsafe', 'c', false),
	('lock_stats_reset', '', 'void', 'volatile', 'unsafe', 'c', false),
	('lock_contention', 'OUT key text, OUT refusals bigint, OUT waits bigint, OUT total_wait interval, OUT longest_wait interval, OUT last_at timestamp with time zone', 'SETOF record', 'volatile', 'unsafe', 'c', false),
	('app_lock_longest_wait', 'key text', 'interval', 'volatile', 'unsafe', 'c', false),
	('app_lock_count_waiters', 'key text', 'integer', 'volatile', 'unsafe', 'c', false),
	('lock_guard', '', 'trigger', 'volatile', 'unsafe', 'c', false),
	('lock_protect', 'relation regclass, key_template text, events text[] DEFAULT ''{update,delete}''::text[], separator text DEFAULT NULL::text', 'void', 'volatile', 'unsafe', 'c', false),
	('lock_unprotect', 'relation regclass', 'void', 'volatile', 'unsafe', 'c', false),
	('app_lock_guard_problem', 'relation regclass, guard name', 'text', 'stable', 'safe', 'c', false),
	('lock_grant_access', 'role regrole, level text', 'void', 'volatile', 'unsafe', 'sql', true),
	('lock_revoke_access', 'role regrole, level text', 'void', 'volatile', 'unsafe', 'sql', true),
	('app_lock_prevent_writing', 'function text', 'void', 'volatile', 'unsafe', 'c', false),
	('app_lock_begin_script', '', 'void', 'volatile', 'unsafe', 'c', false),
	('app_lock_repeat_access', '', 'void', 'volatile', 'unsafe', 'c', false),
	('app_lock_refresh_access', '', 'void', 'volatile', 'unsafe', 'plpgsql', false),
	('app_lock_supervisor', '', 'void', 'immutable', 'safe', 'sql', false),
	('app_lock_change_access', 'role regrole, level text, granting boolean', 'void', 'volatile', 'unsafe', 'plpgsql', false);

CREATE TEMP VIEW actual AS
SELECT p.oid, p.proname::text AS name, pg_get_function_arguments(p.oid) AS arguments, pg_get_function_result(p.oid) AS result,
	CASE p.provolatile WHEN 'i' THEN 'immutable' WHEN 's' THEN 'stable' ELSE 'volatile' END AS volatility,
	CASE p.proparallel WHEN 's' THEN 'safe' WHEN 'r' THEN 'restricted' ELSE 'unsafe' END AS parallel,
	l.lanname::text AS language, p.prosecdef AS definer, p.proisstrict, p.proleakproof, p.prokind, p.proconfig, p.probin, p.proowner, p.pronamespace, e.extowner, e.extnamespace
FROM pg_proc p
	JOIN pg_language l ON l.oid = p.prolang
	JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e' AND d.refclassid = 'pg_extension'::regclass
	JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'atomic_lock';

SELECT plan((SELECT count(*) * 4 + 11 FROM expected)::int);

SELECT set_eq('SELECT name, arguments FROM actual', 'SELECT name, arguments FROM expected', 'functions, arguments and defaults are as listed');

SELECT is(a.result, e.result, format('%s(%s) returns', e.name, left(e.arguments, 30)))
FROM expected e LEFT JOIN actual a USING (name, arguments) ORDER BY e.name, e.arguments;
SELECT is(a.volatility || ' ' || a.parallel, e.volatility || ' ' || e.parallel, format('%s(%s): volatility, parallel safety', e.name, left(e.arguments, 30)))
FROM expected e LEFT JOIN actual a USING (name, arguments) ORDER BY e.name, e.arguments;
SELECT is(a.language, e.language, format('%s(%s): language', e.name, left(e.arguments, 30)))
FROM expected e LEFT JOIN actual a USING (name, arguments) ORDER BY e.name, e.arguments;
SELECT is(a.definer, e.definer, format('%s(%s): security definer', e.name, left(e.arguments, 30)))
FROM expected e LEFT JOIN actual a USING (name, arguments) ORDER BY e.name, e.arguments;

SELECT is_empty('SELECT name FROM actual WHERE proisstrict AND name <> ''app_lock_guard_problem''', 'no function is strict, except the one that lock_guards calls: NULL arguments must raise');
-- PostgreSQL evaluates cheap conditions first, so a condition on a column must be cheaper than
-- a lock.
SELECT is_empty($$SELECT name, procost FROM actual JOIN pg_proc USING (oid)
	WHERE name NOT LIKE 'app\_lock\_%' AND procost <> CASE
		WHEN name IN ('lock_key', 'lock_path', 'lock_partition', 'lock_guard') THEN 1
		WHEN volatility = 'stable' OR name IN ('lock_stats', 'lock_contention', 'lock_sweeper_status') THEN 10
		ELSE 1000 END$$, 'cost is 1000 for functions that write, 10 for those that read, 1 for those that build keys');
SELECT is_empty('SELECT name FROM actual WHERE proleakproof', 'no function is leakproof');
SELECT is_empty('SELECT name FROM actual WHERE prokind <> ''f''', 'all are functions, not procedures or aggregates');
SELECT is_empty('SELECT name FROM actual WHERE definer AND proconfig IS DISTINCT FROM ''{"search_path=pg_catalog, pg_temp"}''::text[]', 'SECURITY DEFINER functions set a safe search_path');
SELECT is_empty('SELECT name FROM actual WHERE language IN (''plpgsql'', ''sql'') AND proconfig IS DISTINCT FROM ''{"search_path=pg_catalog, pg_temp"}''::text[]', 'functions in SQL and PL/pgSQL set a safe search_path');
SELECT is_empty('SELECT name FROM actual WHERE language = ''c'' AND (definer OR proconfig IS NOT NULL)', 'C functions run as the caller and set nothing');
SELECT is_empty('SELECT name FROM actual WHERE language = ''c'' AND probin <> ''$libdir/atomic_lock''', 'C functions come from $libdir/atomic_lock');
SELECT is_empty('SELECT name FROM actual WHERE proowner <> extowner OR pronamespace <> extnamespace', 'all functions are in the schema of the extension and owned by its owner');
-- bodies parsed at CREATE EXTENSION cannot be captured later
SELECT is_empty('SELECT name FROM actual JOIN pg_proc p USING (oid) WHERE language = ''sql'' AND p.prosqlbody IS NULL', 'functions in SQL have parsed bodies, so that names cannot be captured later');

SELECT * FROM finish();
ROLLBACK;
