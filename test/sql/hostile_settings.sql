\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- No setting of a session changes an answer
--
-- Properties: one sequence of calls answers the same under each of these settings of
-- PostgreSQL, set in the session or as defaults of the database. Functions that write are never
-- run in a parallel worker.
--
-- Turns red when: a time, interval or text in C or SQL depends on a setting; a function is
-- marked parallel safe although it writes.
--
DROP ROLE IF EXISTS regress_al_user;
CREATE ROLE regress_al_user;
CREATE FUNCTION t.story(k text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	pg_catalog.text[] := '{}';
	g		public.lock_grant;
	s		record;
BEGIN
	g := public.lock_acquire(k, '1 day', 'alice-1', holder => 'Alice', meta => '{"a": "b\\c", "n": 1.50}');
	answer := pg_catalog.array_append(answer, pg_catalog.concat_ws(' ', g.status, g.owner, g.mode, EXTRACT(epoch FROM g.expires_at) OPERATOR(pg_catalog.-) EXTRACT(epoch FROM g.acquired_at)));
	g := public.lock_try_acquire(k, '90 min', owner => 'bob-1');
	answer := pg_catalog.array_append(answer, pg_catalog.concat_ws(' ', g.acquired, g.status, g.owner, g.fencing_token, g.holder));
	g := public.lock_try_acquire('busy', owner => 'bob-1', wait => '2 ms');
	answer := pg_catalog.array_append(answer, pg_catalog.concat_ws(' ', g.acquired, g.status, g.owner, g.fencing_token, g.holder, EXTRACT(epoch FROM g.waited) OPERATOR(pg_catalog.>=) 0.002));
	answer := pg_catalog.array_append(answer, t.raises(pg_catalog.format('SELECT public.lock_acquire(%L)', k)));
	answer := pg_catalog.array_append(answer, t.raises(pg_catalog.format('SELECT public.lock_release(%L, ''bob-1'')', k)));
	answer := pg_catalog.array_append(answer, t.raises(pg_catalog.format('SELECT public.lock_acquire(%L, ''1 day 1 us'')', k)));
	answer := pg_catalog.array_append(answer, t.code(pg_catalog.format('SELECT public.lock_extend(%L, ''alice-1'', ''1 mon'')', k)));
	answer := pg_catalog.array_append(answer, pg_catalog.concat_ws(' ', public.lock_try_release(k, 'bob-1'), public.lock_is_held(k, 'alice-1'), public.lock_is_held(k, 'bob-1'), public.lock_holder(k),
		public.lock_extend(k, 'alice-1', '2 hours') IS NOT NULL, public.lock_try_extend(k, 'bob-1') IS NULL, public.lock_extend_all('alice-1')));
	s := public.lock_status(k);
	answer := pg_catalog.array_append(answer, pg_catalog.concat_ws(' ', s.locked, s.mode, s.holder, s.lifetime, s.meta, EXTRACT(epoch FROM s.ttl_remaining) OPERATOR(pg_catalog.>) 7000));
	answer := pg_catalog.array_append(answer, (SELECT pg_catalog.count(*) FROM public.lock_status() x WHERE x.key OPERATOR(pg_catalog.=) k)::pg_catalog.text);
	answer := pg_catalog.array_append(answer, pg_catalog.concat_ws(' ', public.lock_release(k, 'alice-1'), public.lock_try_release(k, 'alice-1'), (public.lock_acquire(k, '1 hour', 'alice-1')).status,
		public.lock_release_all('alice-1'), (public.lock_acquire(k)).acquired, public.force_release(k, 'why'), (public.lock_steal(k, 'dba-1', 'why', '5 ms')).status));
	PERFORM t.expire(k);
	answer := pg_catalog.array_append(answer, pg_catalog.concat_ws(' ', public.lock_try_release(k, 'dba-1'), public.lock_sweep(), public.lock_try_release(k, 'dba-1')));
	answer := pg_catalog.array_append(answer, public.lock_key('a:b', 'c\d', ''));
	PERFORM public.lock_grant_access('regress_al_user', 'user'), public.lock_grant_access('regress_al_user', 'admin');
	answer := pg_catalog.array_append(answer, pg_catalog.concat_ws(' ', pg_catalog.has_function_privilege('regress_al_user', 'public.lock_holder(text)', 'EXECUTE'), pg_catalog.has_table_privilege('regress_al_user', 'public.lock_audit', 'SELECT')));
	PERFORM public.lock_revoke_access('regress_al_user', 'user'), public.lock_revoke_access('regress_al_user', 'admin');
	answer := pg_catalog.array_append(answer, pg_catalog.concat_ws(' ', pg_catalog.has_function_privilege('regress_al_user', 'public.lock_holder(text)', 'EXECUTE'), pg_catalog.has_table_privilege('regress_al_user', 'public.lock_audit', 'SELECT')));
	RETURN pg_catalog.array_to_string(answer, E'\n');
END
$$;
SELECT acquired FROM lock_acquire('busy', '1 day', 'zoe-1', holder => 'Zoe');
SELECT t.story('plain');
SELECT t.story('plain') AS plain \gset

CREATE TABLE t.settings (id serial, name text, value text);
INSERT INTO t.settings (name, value) VALUES
	('DateStyle', 'ISO, YMD'), ('DateStyle', 'German'), ('DateStyle', 'SQL, DMY'), ('DateStyle', 'Postgres, MDY'),
	('IntervalStyle', 'postgres'), ('IntervalStyle', 'sql_standard'), ('IntervalStyle', 'iso_8601'), ('IntervalStyle', 'postgres_verbose'),
	('TimeZone', 'UTC'), ('TimeZone', 'Pacific/Kiritimati'), ('TimeZone', 'America/St_Johns'), ('TimeZone', '<+1337>-13:37'), ('TimeZone', 'America/St_Johns'), ('TimeZone', '-2.5'),
	('lc_messages', 'C'), ('lc_time', 'C'), ('search_path', ''), ('search_path', 't, pg_temp'), ('search_path', 'nowhere'), ('search_path', 'pg_catalog'),
	('enable_indexscan', 'off'), ('enable_bitmapscan', 'off'), ('enable_indexonlyscan', 'off'), ('enable_seqscan', 'off'), ('enable_sort', 'off'), ('enable_material', 'off'),
	('jit', 'on'), ('jit_above_cost', '0'), ('jit_inline_above_cost', '0'), ('row_security', 'off'), ('plan_cache_mode', 'force_generic_plan'), ('plan_cache_mode', 'force_custom_plan'),
	('default_transaction_isolation', 'serializable'), ('extra_float_digits', '-15'), ('bytea_output', 'escape'), ('standard_conforming_strings', 'off'), ('escape_string_warning', 'off'),
	('backslash_quote', 'off'), ('transform_null_equals', 'on'), ('array_nulls', 'off'), ('quote_all_identifiers', 'on'), ('default_with_oids', 'off'),
	('synchronous_commit', 'off'), ('synchronous_commit', 'local'), ('synchronous_commit', 'remote_apply'), ('work_mem', '64kB'), ('lock_timeout', '1ms'), ('deadlock_timeout', '1ms'),
	('session_replication_role', 'replica'), ('check_function_bodies', 'off'), ('default_toast_compression', 'pglz'), ('default_text_search_config', 'pg_catalog.simple'),
	('debug_parallel_query', 'on'), ('debug_parallel_query', 'regress'), ('force_parallel_mode', 'on'), ('force_parallel_mode', 'regress'), ('parallel_setup_cost', '0'), ('parallel_tuple_cost', '0'), ('min_parallel_table_scan_size', '0'),
	('wal_compression', 'on'), ('wal_consistency_checking', 'all'), ('track_functions', 'all'), ('track_activities', 'off'), ('debug_print_plan', 'off'), ('client_min_messages', 'error'), ('log_statement', 'all'),
	('xmloption', 'content'), ('default_table_access_method', 'heap'), ('temp_tablespaces', ''), ('default_tablespace', ''), ('icu_validation_level', 'error'), ('allow_system_table_mods', 'on'),
	('createrole_self_grant', 'set'), ('vacuum_freeze_min_age', '0'), ('gin_fuzzy_search_limit', '1'), ('effective_io_concurrency', '0'), ('stats_fetch_consistency', 'none'), ('exit_on_error', 'off'),
	('atomic_lock.default_ttl', '23 h'), ('atomic_lock.acquire_durability', 'session'), ('atomic_lock.release_durability', 'session');
-- From PostgreSQL 19 on it cannot be turned off.
DELETE FROM t.settings WHERE name = 'standard_conforming_strings' AND current_setting('server_version_num')::int >= 190000;
-- Settings under which the answer differs, or that cannot be set; settings that this version
-- lacks are skipped
CREATE FUNCTION t.compare(name text, value text, plain text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	old		pg_catalog.text := pg_catalog.current_setting(name, true);
	answer	pg_catalog.text;
BEGIN
	IF old IS NULL THEN
		RETURN plain;
	END IF;
	PERFORM pg_catalog.set_config(name, value, false);
	answer := t.story('plain');
	PERFORM pg_catalog.set_config(name, old, false);
	RETURN answer;
EXCEPTION WHEN OTHERS THEN
	RETURN pg_catalog.concat(SQLSTATE, ' ', SQLERRM);
END
$$;
SELECT name, value, answer FROM (SELECT name, value, t.compare(name, value, :'plain') AS answer FROM t.settings ORDER BY id OFFSET 0) x WHERE answer <> :'plain';

-- Settings that take effect at the start of a session or transaction only
ALTER DATABASE :"DBNAME" SET default_transaction_isolation = 'repeatable read';
ALTER DATABASE :"DBNAME" SET search_path = '';
ALTER DATABASE :"DBNAME" SET quote_all_identifiers = on;
ALTER DATABASE :"DBNAME" SET atomic_lock.default_ttl = '7 min';
\c -
SET client_min_messages = warning;
SHOW transaction_isolation;
SELECT t.story('plain') OPERATOR(pg_catalog.=) :'plain' AS same;
SELECT expires_at OPERATOR(pg_catalog.-) acquired_at AS length FROM public.lock_acquire('k');
ALTER DATABASE :"DBNAME" RESET default_transaction_isolation;
ALTER DATABASE :"DBNAME" RESET search_path;
ALTER DATABASE :"DBNAME" RESET quote_all_identifiers;
ALTER DATABASE :"DBNAME" RESET atomic_lock.default_ttl;
\c -
SET client_min_messages = warning;

-- Parallel queries: a function that may not run in a worker makes the plan serial.
CREATE TABLE t.big AS SELECT i FROM generate_series(1, 20000) i;
ANALYZE t.big;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET max_parallel_workers_per_gather = 2;
CREATE FUNCTION t.is_parallel(q text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	line	text;
BEGIN
	FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || q LOOP
		IF line ~ 'Gather' THEN
			RETURN true;
		END IF;
	END LOOP;
	RETURN false;
END
$$;
SELECT t.is_parallel('SELECT count(*) FROM t.big WHERE i % 7 = 0') AS plain, t.is_parallel('SELECT count(*) FROM t.big WHERE lock_key(i::text) = ''x''') AS lock_key, t.is_parallel('SELECT count(*) FROM t.big WHERE lock_key(i) = ''x''') AS lock_key_any;
-- a worker writes times in UTC, too
SELECT count(*) FROM t.big WHERE i <= 100 AND lock_key(i, to_timestamp(i)) LIKE '%+00';
SELECT f FROM unnest(ARRAY['lock_try_acquire(i::text) IS NULL', 'lock_try_release(i::text, ''o'') IS NULL', 'lock_try_extend(i::text, ''o'') IS NULL', 'lock_release_all(''o'') = i', 'lock_extend_all(''o'') = i',
	'lock_acquire(i::text) IS NULL', 'lock_release(i::text, ''o'')', 'lock_extend(i::text, ''o'') IS NULL', 'force_release(i::text, ''r'')', 'lock_force_release(i::text, ''r'')', 'lock_steal(i::text, ''o'', ''r'') IS NULL', 'lock_sweep() = i',
	'lock_is_held(i::text, ''o'')', 'lock_holder(i::text) IS NULL', '(lock_status(i::text)).locked']) f WHERE t.is_parallel('SELECT count(*) FROM t.big WHERE ' || f);
SELECT count(*) FROM t.big WHERE i <= 30 AND (lock_try_acquire('p:' || i, owner => 'alice-1')).acquired;
SELECT count(*) FROM t.big WHERE i <= 50 AND lock_is_held('p:' || i, 'alice-1');
SELECT lock_release_all('alice-1');

DROP OWNED BY regress_al_user;
DROP ROLE regress_al_user;
