-- plproxy.sql: one atomic_lock over several servers, behind PL/Proxy
--
-- Each server, a shard, has the extension and one partition of the keys.  A proxy has
-- PL/Proxy, and functions that look and answer like those of the extension: the facade.
-- This script reads the catalog of a shard and prints the facade, so that none of the
-- functions is missing.  Run it again after each ALTER EXTENSION atomic_lock UPDATE.
--
--   psql -X -At -d shard0 -f "$(pg_config --sharedir)/extension/atomic_lock/plproxy.sql" > facade.sql
--   psql -X -d shard0 -f facade.sql      (and so on: on each shard, then on each proxy)
--
--   -v schema=locks    where the facade lives on a proxy; default: locks
--   -v server=locks    foreign server that maps partitions to shards; default: locks
--
-- doc/several-servers.md says how to set up shards and proxies, what behaves differently, and why,
-- and how to let roles in.
--
-- On a shard, facade.sql makes the schema lock_shard.  It has a function for each function
-- of the extension, which calls that one and returns an error as a row, because PL/Proxy
-- closes a connection at an error.  Its caller needs only the access level of the function
-- on the shard.  On a proxy, PL/Proxy wants a superuser to run facade.sql.
--
-- facade.sql may be run again.  It replaces the functions, views and types that it has made
-- in its schema, and keeps their privileges.  If another object depends on one of these, it
-- names that object and changes nothing.

\set ON_ERROR_STOP on
\set QUIET on
\pset format unaligned
\pset tuples_only on
\if :{?schema}
\else
	\set schema locks
\endif
\if :{?server}
\else
	\set server locks
\endif

BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;

SELECT n.nspname AS locks, e.oid AS extension, e.extversion AS version
FROM pg_extension e
	JOIN pg_namespace n ON n.oid = e.extnamespace
WHERE e.extname = 'atomic_lock' \gset

-- How each function is called.  "at": key, on the shard of its key; all, on all shards,
-- where numbers are added up and rows come from all; any, on one of them; sets, as written
-- below; refused.  "late": when a transaction that has written may not call it; "sort":
-- order of rows.
CREATE TEMPORARY TABLE rule (proc text, at text, late text, sort text, detail text, hint text) ON COMMIT DROP;
INSERT INTO rule (proc, at, late, sort) VALUES
	('lock_acquire', 'key', NULL, NULL),
	('lock_try_acquire', 'key', NULL, NULL),
	('lock_convert', 'key', 'mode = ''shared''', NULL),
	('lock_try_convert', 'key', 'mode = ''shared''', NULL),
	('lock_transfer', 'key', 'true', NULL),
	('lock_try_transfer', 'key', 'true', NULL),
	('lock_release', 'key', 'true', NULL),
	('lock_try_release', 'key', 'true', NULL),
	('lock_extend', 'key', NULL, NULL),
	('lock_try_extend', 'key', NULL, NULL),
	('lock_is_held', 'key', NULL, NULL),
	('lock_holder', 'key', NULL, NULL),
	('lock_status', 'key', NULL, NULL),
	('lock_policy', 'key', NULL, NULL),
	('lock_held_at', 'key', NULL, NULL),
	('lock_ask', 'key', NULL, NULL),
	('lock_enqueue', 'key', NULL, NULL),
	('lock_leave', 'key', 'true', NULL),
	('force_release', 'key', 'true', NULL),
	('lock_force_release', 'key', 'true', NULL),
	('lock_try_force_release', 'key', 'true', NULL),
	('lock_steal', 'key', 'true', NULL),
	('lock_acquire_all', 'sets', NULL, NULL),
	('lock_try_acquire_all', 'sets', NULL, NULL),
	('lock_heartbeat', 'sets', NULL, NULL),
	('lock_release_all', 'all', 'true', NULL),
	('lock_extend_all', 'all', NULL, NULL),
	('lock_transfer_all', 'all', 'true', NULL),
	('lock_sweep', 'all', NULL, NULL),
	('lock_stats_reset', 'all', NULL, NULL),
	('lock_status()', 'all', NULL, 'key COLLATE "C"'),
	('lock_held', 'all', NULL, 'key COLLATE "C"'),
	('lock_waiters', 'all', NULL, 'key COLLATE "C", place'),
	('lock_queue', 'all', NULL, 'key COLLATE "C", place'),
	('lock_contention', 'all', NULL, 'total_wait DESC, refusals DESC'),
	('lock_stats', 'all', NULL, NULL),
	('lock_sweeper_status', 'all', NULL, NULL),
	('lock_key', 'any', NULL, NULL),
	('lock_path', 'any', NULL, NULL),
	('lock_partition', 'any', NULL, NULL),
	-- Its arguments can have any types, which only C functions can.
	('lock_key("any")', 'none', NULL, NULL);
INSERT INTO rule (proc, at, detail, hint) VALUES
	('lock_assert', 'refused', 'The proof would end with the call, before the transaction of the proxy does.', 'Compare fencing tokens where the data is, or connect to the shard.'),
	('lock_assert_fence', 'refused', 'The proof would end with the call, before the transaction of the proxy does.', 'Compare fencing tokens where the data is, or connect to the shard.'),
	('lock_fetch', 'refused', 'The row and its lock would be on different servers.', 'Acquire the lock, then read the row.'),
	('lock_guard', 'refused', 'The table and the locks of its rows are on different servers.', 'Compare fencing tokens where the data is.'),
	('lock_protect', 'refused', 'The table and the locks of its rows are on different servers.', 'Compare fencing tokens where the data is.'),
	('lock_unprotect', 'refused', 'The table and the locks of its rows are on different servers.', 'Compare fencing tokens where the data is.'),
	('lock_acquire_path', 'refused', 'The keys of a path may belong to several shards.', 'Pass lock_path(path) to lock_acquire_all, with a mode for each key.'),
	('lock_try_acquire_path', 'refused', 'The keys of a path may belong to several shards.', 'Pass lock_path(path) to lock_try_acquire_all, with a mode for each key.'),
	('lock_release_path', 'refused', 'The keys of a path may belong to several shards.', 'Release each key.'),
	('lock_explain', 'refused', 'The text has statements to use on the shard of the key.', 'Connect to the shard, and call lock_explain there.'),
	('lock_channel', 'refused', 'Events are sent on the shard of the key.', 'Connect to the shard, and LISTEN there.'),
	('lock_set_policy', 'refused', 'Each shard has policies of its own.', 'Connect to each shard, and set the policy there.'),
	('lock_drop_policy', 'refused', 'Each shard has policies of its own.', 'Connect to each shard, and drop the policy there.'),
	('lock_schedule_sweep', 'refused', 'Each shard has a schedule of its own.', 'Connect to each shard, and schedule the sweep there.'),
	('lock_unschedule_sweep', 'refused', 'Each shard has a schedule of its own.', 'Connect to each shard, and end the schedule there.'),
	('lock_grant_access', 'refused', 'Each shard has access levels of its own.', 'Connect to each shard, and grant the level there.  On the proxy, use GRANT.'),
	('lock_revoke_access', 'refused', 'Each shard has access levels of its own.', 'Connect to each shard, and revoke the level there.  On the proxy, use REVOKE.');

-- Views: rows of all shards, with the partition as the last column
INSERT INTO rule (proc, at, sort) VALUES
	('view lock_activity', 'all', 'longest_wait DESC NULLS LAST, held_for DESC NULLS LAST, key COLLATE "C"'),
	('view lock_waiters', 'all', 'key COLLATE "C", place'),
	('view lock_queue', 'all', 'key COLLATE "C", place'),
	('view lock_contention', 'all', 'total_wait DESC, refusals DESC'),
	('view lock_stats', 'all', 'partition'),
	('view lock_policies', 'all', 'prefix COLLATE "C", partition'),
	-- of tables, which a proxy does not have
	('view lock_guards', 'none', NULL);

-- Settings of the session at a proxy that hold for its calls; the first is always set.
\set settings '{application_name,transaction_read_only,atomic_lock.owner,atomic_lock.default_ttl,atomic_lock.on_reacquire,atomic_lock.release_durability}'

-- Columns as a proxy has them: it may lack a role that a shard has.
CREATE FUNCTION pg_temp.at_proxy(type oid) RETURNS text LANGUAGE sql AS $$
	SELECT replace(format_type(type, NULL), 'regrole', 'text')
$$;

-- list('OUT %s %s, ', ...) of as many numbers
CREATE FUNCTION pg_temp.list(pattern text, names text[], types text[], separator text DEFAULT '') RETURNS text LANGUAGE sql AS $$
	SELECT coalesce(string_agg(format(pattern, n, names[n], types[n]), separator ORDER BY n), '')
	FROM generate_series(1, cardinality(types)) n
$$;

-- A row per function, and per view: arguments in, columns out
CREATE TEMPORARY TABLE func ON COMMIT DROP AS
	SELECT p.oid::integer AS id, p.proname::text AS name, p.proretset AS is_set,
		CASE WHEN t.typrelid <> 0 THEN t.typname::text END AS composite,
		regexp_replace(pg_get_function_arguments(p.oid), '(OUT \w+) regrole', '\1 text', 'g') AS arguments,
		pg_get_function_identity_arguments(p.oid) AS identity,
		oidvectortypes(p.proargtypes) AS signature,
		p.provariadic <> 0 AS is_variadic,
		p.proargnames[1:p.pronargs] AS names,
		ARRAY(SELECT format_type(a, NULL) FROM unnest(p.proargtypes) WITH ORDINALITY x (a, n) ORDER BY n) AS ins,
		o.columns, o.outs, format_type(p.prorettype, NULL) AS returns,
		obj_description(p.oid, 'pg_proc') AS comment
	FROM pg_depend d
		JOIN pg_proc p ON p.oid = d.objid
		JOIN pg_type t ON t.oid = p.prorettype
		CROSS JOIN LATERAL (
			SELECT coalesce(array_agg(c.name ORDER BY c.n), '{}'), coalesce(array_agg(pg_temp.at_proxy(c.type) ORDER BY c.n), '{}')
			FROM (
				SELECT a.attname::text, a.atttypid, a.attnum
				FROM pg_attribute a
				WHERE a.attrelid = t.typrelid AND a.attnum > 0
				UNION ALL
				SELECT p.proargnames[n], p.proallargtypes[n], n
				FROM generate_series(1, cardinality(p.proargmodes)) n
				WHERE p.proargmodes[n] = 'o'
				UNION ALL
				SELECT NULL, p.prorettype, 1
				WHERE t.typrelid = 0 AND coalesce('o' <> ALL (p.proargmodes), true) AND p.prorettype <> 'void'::regtype
			) c (name, type, n)) o (columns, outs)
	WHERE d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
		AND d.refclassid = 'pg_extension'::regclass AND d.refobjid = :extension
		AND p.proname NOT LIKE 'app\_lock%'
	UNION ALL
	SELECT c.oid::integer, 'view ' || c.relname, true, NULL, pg_temp.list('OUT %2$I %3$s', o.columns, o.outs, ', '), '', '', false,
		'{}', '{}', o.columns, o.outs, 'record', obj_description(c.oid, 'pg_class')
	FROM pg_depend d
		JOIN pg_class c ON c.oid = d.objid
		CROSS JOIN LATERAL (
			SELECT array_agg(a.attname::text ORDER BY a.attnum) || 'partition'::text,
				array_agg(pg_temp.at_proxy(a.atttypid) ORDER BY a.attnum) || 'integer'::text
			FROM pg_attribute a
			WHERE a.attrelid = c.oid AND a.attnum > 0) o (columns, outs)
	WHERE d.classid = 'pg_class'::regclass AND d.deptype = 'e' AND c.relkind = 'v'
		AND d.refclassid = 'pg_extension'::regclass AND d.refobjid = :extension;

-- The rule of each function; a rule with arguments comes before one for the name
CREATE TEMPORARY TABLE made ON COMMIT DROP AS
	SELECT f.*, r.at, r.late, r.sort, r.detail, r.hint,
		-- what it is called on the other side, where a view is a function, too
		replace(f.name, 'view ', 'view_') AS call,
		CASE WHEN f.name LIKE 'view %' THEN format('(SELECT *, current_setting(''atomic_lock.partition'', true)::integer AS partition FROM %I.%I)', :'locks', substr(f.name, 6))
			ELSE format('%I.%I(%s)', :'locks', f.name,
				pg_temp.list(CASE WHEN f.is_variadic THEN 'VARIADIC a%1$s' ELSE 'a%1$s' END, f.names, f.ins, ', ')) END AS original
	FROM func f
		LEFT JOIN LATERAL (
			SELECT * FROM rule r
			WHERE r.proc IN (f.name, format('%s(%s)', f.name, f.signature))
			ORDER BY length(r.proc) DESC LIMIT 1) r ON true
	ORDER BY f.name, f.signature;

-- How the function on the proxy begins: why it may not be called now, or null
CREATE FUNCTION pg_temp.problem(made, schema text) RETURNS text LANGUAGE sql AS $$
	SELECT CASE WHEN $1.at = 'refused' THEN
		format('ARRAY[''0A000'', %L, %L, %L]', $1.name || '() cannot be called through a proxy', $1.detail, $1.hint)
	WHEN $1.late IS NULL AND NOT $1.names && '{wait,lifetime}' THEN 'NULL'
	ELSE format('%I.app_lock_check(%L, %s, %s, %s)', schema, $1.name,
		-- NULL waits as long as the shard allows
		coalesce('coalesce($' || array_position($1.names, 'wait') || ', interval ''1 day'')', 'NULL'),
		coalesce('$' || array_position($1.names, 'lifetime'), 'NULL'),
		coalesce(replace($1.late, 'mode = ', '$' || coalesce(array_position($1.names, 'mode'), 0) || ' OPERATOR(pg_catalog.=) '), 'NULL')) END
$$;

DO $$
DECLARE
	missing text := (SELECT string_agg(format('%s(%s)', name, identity), ', ') FROM made WHERE at IS NULL);
BEGIN
	IF missing IS NOT NULL THEN
		RAISE EXCEPTION 'plproxy.sql does not say what a proxy does with %', missing;
	END IF;
END
$$;

SELECT format($facade$-- The facade of atomic_lock %1$s for PL/Proxy, printed by plproxy.sql.
-- To be run on each shard, then on each proxy.

\set ON_ERROR_STOP on
BEGIN;
SET LOCAL client_min_messages = warning;
SET LOCAL search_path = pg_catalog, pg_temp;

-- Drop only objects that this script has made before.
CREATE TEMPORARY TABLE granted (object text, name name, acl aclitem[]) ON COMMIT DROP;
DO $$
DECLARE
	is_shard boolean := EXISTS (SELECT FROM pg_extension WHERE extname = 'atomic_lock');
	facade text := CASE WHEN is_shard THEN 'lock_shard' ELSE %3$L END;
	mark text := CASE WHEN is_shard THEN 'atomic_lock as proxies call it; see plproxy.sql' ELSE 'atomic_lock on several servers; see plproxy.sql' END;
	schema regnamespace := to_regnamespace(quote_ident(facade));
	statement text;
BEGIN
	IF is_shard THEN
		-- With the library come its settings.
		PERFORM %4$I.lock_partition('', 1);
	END IF;
	IF is_shard = EXISTS (SELECT FROM pg_extension WHERE extname = 'plproxy') THEN
		RAISE object_not_in_prerequisite_state USING MESSAGE = 'the database must have either atomic_lock or plproxy',
			DETAIL = 'A shard has the one, a proxy has the other.', HINT = 'Use CREATE EXTENSION.';
	ELSIF is_shard AND %1$L <> (SELECT extversion FROM pg_extension WHERE extname = 'atomic_lock') THEN
		RAISE object_not_in_prerequisite_state USING MESSAGE = 'this shard has another version of atomic_lock than %1$s, which the facade is of',
			HINT = 'Update all shards, then let plproxy.sql print the facade again.';
	ELSIF is_shard AND current_setting('atomic_lock.partitions', true) = '0' THEN
		RAISE object_not_in_prerequisite_state USING MESSAGE = 'this shard does not know which partition it has',
			DETAIL = 'It would grant the keys of all others.', HINT = 'Set atomic_lock.partitions and atomic_lock.partition.';
	ELSIF schema IS NULL THEN
		EXECUTE format('CREATE SCHEMA %%I', facade);
		schema := quote_ident(facade)::regnamespace;
	ELSIF obj_description(schema, 'pg_namespace') IS DISTINCT FROM mark
		AND EXISTS (SELECT relnamespace FROM pg_class WHERE relnamespace = schema UNION ALL SELECT pronamespace FROM pg_proc WHERE pronamespace = schema) THEN
		RAISE duplicate_schema USING MESSAGE = format('schema %%I has something else in it', facade),
			HINT = 'The facade takes a schema of its own.  Give plproxy.sql another name: -v schema=...';
	END IF;
	EXECUTE format('COMMENT ON SCHEMA %%I IS %%L', facade, mark);
	INSERT INTO granted
		SELECT 'TABLE ' || oid::regclass, relname, relacl FROM pg_class WHERE relnamespace = schema AND relkind = 'v'
		UNION ALL SELECT 'FUNCTION ' || oid::regprocedure, proname, proacl FROM pg_proc WHERE pronamespace = schema;
	FOR statement IN
		SELECT format('DROP %%s %%s', kind, string_agg(object, ', '))
		FROM (
			SELECT CASE relkind WHEN 'v' THEN 'VIEW' ELSE 'TYPE' END, oid::regclass::text, relname
			FROM pg_class WHERE relnamespace = schema AND relkind IN ('v', 'c')
			UNION ALL SELECT 'FUNCTION', oid::regprocedure::text, proname
			FROM pg_proc WHERE pronamespace = schema) x (kind, object, name)
		WHERE name ~ '^(app_)?lock_|^force_release$' OR is_shard
		GROUP BY kind
		ORDER BY kind = 'TYPE', kind = 'FUNCTION'
	LOOP
		EXECUTE statement;
	END LOOP;
END
$$;
SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'atomic_lock') AS is_shard \gset
\if :is_shard

-- The functions that they call have access levels.
GRANT USAGE ON SCHEMA lock_shard TO PUBLIC;

-- The settings of the session at the proxy apply to the call.  The connection is not shared.
CREATE FUNCTION lock_shard.set(settings text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	names text[] := %2$L;
	here text := concat_ws(' of ', current_setting('atomic_lock.partition', true), current_setting('atomic_lock.partitions', true));
BEGIN
	-- A proxy that asks all shards says which it takes this one for.
	IF settings[cardinality(names) + 1] <> here THEN
		RAISE USING ERRCODE = 'LK010', MESSAGE = format('this server has partition %%s, not %%s', here, settings[cardinality(names) + 1]),
			HINT = 'Correct the list of servers that the proxy has.';
	END IF;
	PERFORM set_config('application_name', settings[1], false);
	-- Answers are text, which the proxy reads as these styles.
	PERFORM set_config('datestyle', 'ISO', false), set_config('intervalstyle', 'postgres', false);
	FOR i IN 2 .. cardinality(names) LOOP
		IF settings[i] <> '' THEN
			PERFORM set_config(names[i], settings[i], true);
		END IF;
	END LOOP;
END
$$;
$facade$, :'version', :'settings', :'schema', :'locks');

-- On a shard: what a set has taken, each key as it had it until a moment, null: if at all
SELECT format($facade$
CREATE FUNCTION lock_shard.give_back(owner text, keys text[], moments timestamptz[], shared text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
	k text;
BEGIN
	FOR k IN
		SELECT DISTINCT h.key
		FROM %1$I.lock_held(owner) h
			JOIN unnest(keys, moments) x (key, moment) ON x.key = h.key AND coalesce(x.moment = h.expires_at, true)
	LOOP
		IF k = ANY (shared) THEN
			PERFORM %1$I.lock_try_convert(k, owner, 'shared');
		ELSE
			PERFORM %1$I.lock_try_release(k, owner);
		END IF;
	END LOOP;
END
$$;
$facade$, :'locks');

-- On a shard: NAME(settings, arguments) -> problem, columns
SELECT format($facade$
CREATE FUNCTION lock_shard.%1$I(settings text[]%2$s, OUT problem text[]%3$s) RETURNS %4$s
LANGUAGE plpgsql AS $$
DECLARE
	state text; message text; detail text; hint text;
BEGIN
	IF settings[1] OPERATOR(pg_catalog.<>) pg_catalog.current_setting('application_name')
		OR pg_catalog.current_setting('intervalstyle') OPERATOR(pg_catalog.<>) 'postgres'
		OR NOT pg_catalog.starts_with(pg_catalog.current_setting('datestyle'), 'ISO')
		OR pg_catalog.array_to_string(settings[2:], '') OPERATOR(pg_catalog.<>) '' THEN
		PERFORM lock_shard.set(settings);
	END IF;
	%5$s
-- PL/Proxy would take a cancel that was made here for one of its own, and wait for ever.
EXCEPTION WHEN query_canceled OR assert_failure OR OTHERS THEN
	GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
		detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	-- An internal error belongs into the log of this server.
	IF pg_catalog.left(state, 2) OPERATOR(pg_catalog.=) ANY ('{XX,58}') THEN
		RAISE;
	END IF;
	problem := ARRAY[state, message, detail, hint];%6$s
END
$$;
$facade$,
	call, pg_temp.list(', a%s %3$s', names, ins), pg_temp.list(', OUT c%s %3$s', columns, outs),
	CASE WHEN is_set THEN 'SETOF record' WHEN outs = '{}' THEN 'text[]' ELSE 'record' END,
	CASE WHEN is_set THEN
		format('RETURN QUERY SELECT NULL::text[], %s FROM %s f;', pg_temp.list('f.%2$I::%3$s', columns, outs, ', '), original)
	WHEN outs = '{}' THEN format('PERFORM %s;', original)
	ELSE format('SELECT f.* INTO %s FROM %s f;', pg_temp.list('c%s', columns, outs, ', '), original) END,
	CASE WHEN is_set THEN E'\n\tRETURN NEXT;' END)
FROM made WHERE at NOT IN ('refused', 'none');

SELECT format($facade$
\else

-- How many partitions there are
CREATE FUNCTION %1$I.app_lock_partitions() RETURNS integer
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	partitions integer := (SELECT count(*) FROM pg_foreign_server s, unnest(s.srvoptions) o
		WHERE s.srvname = %2$L AND o ~ '^p(artition_)?[0-9]+=');
BEGIN
	IF partitions = 0 OR partitions & (partitions - 1) <> 0 THEN
		PERFORM %1$I.app_lock_raise(ARRAY['55000',
			format('server "%%s" must have a power of two of partitions, not %%s', %2$L, partitions), NULL,
			'Use CREATE SERVER or ALTER SERVER with options p0, p1 and so on.']);
	END IF;
	RETURN partitions;
END
$$;

-- The partition of a key is the lower bits of the result of lock_partition().
CREATE FUNCTION %1$I.app_lock_hash(key text) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
	SELECT (((pg_catalog.hashtextextended(
		CASE WHEN pg_catalog.strpos(key COLLATE "C", '{') OPERATOR(pg_catalog.>) 0 THEN
			coalesce(pg_catalog.substring(key COLLATE "C", '^[^{]*[{]([^}]+)[}]'), key)
		ELSE coalesce(key, '') END COLLATE "C", 8816678312871386365)
		OPERATOR(pg_catalog.&) 2147483647::bigint) OPERATOR(pg_catalog.+) 367372515::bigint)
		OPERATOR(pg_catalog.&) 2147483647::bigint)::integer
$$;

-- The settings of the session that the shard has to know
CREATE FUNCTION %1$I.app_lock_settings() RETURNS text[]
LANGUAGE sql STABLE AS $$
	SELECT ARRAY[%5$s]
$$;

-- The same for a call of all shards, with the number that this one should have
CREATE FUNCTION %1$I.app_lock_settings(shard integer) RETURNS text[]
LANGUAGE sql STABLE AS $$
	SELECT %1$I.app_lock_settings() OPERATOR(pg_catalog.||) pg_catalog.concat_ws(' of ', shard, %1$I.app_lock_partitions())
$$;

-- Raises a problem as an error: SQLSTATE, message, detail and hint.  As on one server, the
-- log has no refusals, and no statements, which may contain owners.  Only a superuser can
-- keep them out.
CREATE FUNCTION %1$I.app_lock_raise(problem text[]) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET log_min_error_statement = panic SET log_error_verbosity = terse AS $$
BEGIN
	IF (problem[1] = '55P03' OR problem[1] COLLATE "C" LIKE 'LK%%') AND current_setting('log_min_messages') !~ 'debug|info|notice' THEN
		PERFORM set_config('log_min_messages', 'panic', true);
	END IF;
	IF coalesce(problem[3], '') = '' AND coalesce(problem[4], '') = '' THEN
		RAISE USING ERRCODE = problem[1], MESSAGE = problem[2];
	ELSIF coalesce(problem[3], '') = '' THEN
		RAISE USING ERRCODE = problem[1], MESSAGE = problem[2], HINT = problem[4];
	ELSIF coalesce(problem[4], '') = '' THEN
		RAISE USING ERRCODE = problem[1], MESSAGE = problem[2], DETAIL = problem[3];
	END IF;
	RAISE USING ERRCODE = problem[1], MESSAGE = problem[2], DETAIL = problem[3], HINT = problem[4];
END
$$;

-- The problem that an error of PL/Proxy is
CREATE FUNCTION %1$I.app_lock_failed(state text, message text, detail text, hint text) RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT CASE WHEN is_lost THEN ARRAY['08006', 'the server that has the partition cannot be reached', text,
			'Repeat the call with the same owner when the server is back.  Whether it has done the call before is not known.']
		ELSE ARRAY[state, text, regexp_replace(detail, '^Remote detail: ', ''), regexp_replace(hint, '^Remote hint: ', '')] END
	FROM (SELECT regexp_replace(message, '^(PL/Proxy function )?\S+\(\d+\): (\[[^]]*\] )?(REMOTE \S+: )?', ''),
		state LIKE '08%%' AND state <> '08007' OR state IN ('57P01', '57P02', '57P03')
		OR state = 'XX000' AND message ~ '^PL/Proxy function .*(\[|timeout)|REMOTE \(null\)') m (text, is_lost)
$$;

-- Why a transaction may not call a function through a proxy
CREATE FUNCTION %1$I.app_lock_check(function text, wait interval, lifetime text, late boolean) RETURNS text[]
LANGUAGE sql STABLE AS $$
	SELECT CASE WHEN lifetime OPERATOR(pg_catalog.=) ANY ('{session,transaction}') THEN
		ARRAY['0A000', pg_catalog.format('a lock that is acquired through a proxy cannot have lifetime "%%s"', lifetime),
			'It would end with the call, or with a connection that many share.',
			'Acquire a lease, or connect to the server that has the partition.']
	WHEN wait OPERATOR(pg_catalog.>) '0'::interval
		AND pg_catalog.current_setting('client_connection_check_interval') OPERATOR(pg_catalog.=) '0' THEN
		ARRAY['55000', 'cannot wait for a lock through a proxy that does not notice when its client is gone',
			'The lock might be granted to a client that is not there any more.',
			'Set client_connection_check_interval on the proxy, such as to ''1s''.']
	WHEN late AND pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
		ARRAY['25001', pg_catalog.concat(function, '() cannot be called through a proxy by a transaction that has written'),
			'Others would see it before the transaction commits, and a rollback would not undo it.',
			'Commit the transaction first.']
	END
$$;

SELECT %1$I.app_lock_partitions() \g /dev/null
SELECT pg_catalog.getdatabaseencoding() = %3$L AS same \gset
\if :same
\else
	SELECT %1$I.app_lock_raise(ARRAY['55000', 'the databases of proxy and shard must have the same encoding', 'That of the shard is %4$s.', NULL]);
\endif
$facade$, :'schema', :'server', getdatabaseencoding(), getdatabaseencoding(),
	(SELECT string_agg(format(CASE n WHEN 'transaction_read_only' THEN 'nullif(pg_catalog.current_setting(%L), ''off'')'
		ELSE 'pg_catalog.current_setting(%L, true)' END, n), E',\n\t\t' ORDER BY i)
		FROM unnest(:'settings'::text[]) WITH ORDINALITY x (n, i)));

SELECT format(E'\nCREATE TYPE %I.%I AS (%s);\nCOMMENT ON TYPE %1$I.%2$I IS %4$L;', :'schema', t.typname,
	string_agg(format('%I %s', a.attname, pg_temp.at_proxy(a.atttypid)), ', ' ORDER BY a.attnum), obj_description(t.oid, 'pg_type'))
FROM pg_depend d
	JOIN pg_type t ON t.oid = d.objid
	JOIN pg_class c ON c.oid = t.typrelid AND c.relkind = 'c'
	JOIN pg_attribute a ON a.attrelid = c.oid
WHERE d.classid = 'pg_type'::regclass AND d.deptype = 'e'
	AND d.refclassid = 'pg_extension'::regclass AND d.refobjid = :extension
GROUP BY t.oid, t.typname;

-- On a proxy: the call of each that is on a shard
SELECT format($facade$
CREATE FUNCTION %1$I.app_lock_on_shard_%2$s(shard integer, settings text[]%3$s, OUT problem text[]%4$s) RETURNS %5$s
LANGUAGE plproxy AS $$
	CLUSTER %6$L; RUN ON shard;
	SELECT problem%7$s FROM lock_shard.%2$s(settings%8$s);
$$;
$facade$,
	:'schema', call, pg_temp.list(', a%s %3$s', names, ins), pg_temp.list(', OUT c%s %3$s', columns, outs),
	CASE WHEN is_set THEN 'SETOF record' WHEN outs = '{}' THEN 'text[]' ELSE 'record' END,
	:'server', pg_temp.list(', c%s', columns, outs), pg_temp.list(', a%s', names, ins))
FROM made WHERE at NOT IN ('refused', 'none');

-- The functions that applications call
SELECT format($facade$
CREATE FUNCTION %1$I.%2$I(%3$s) RETURNS %4$s
LANGUAGE plpgsql%9$s AS $$
#variable_conflict use_column
DECLARE
	al_problem text[]; al_row record; al_state text; al_message text; al_detail text; al_hint text;
BEGIN
	al_problem := %5$s;
	IF al_problem IS NULL THEN
		BEGIN
			%6$s
		EXCEPTION WHEN OTHERS THEN
			GET STACKED DIAGNOSTICS al_state = RETURNED_SQLSTATE, al_message = MESSAGE_TEXT,
				al_detail = PG_EXCEPTION_DETAIL, al_hint = PG_EXCEPTION_HINT;
			al_problem := %1$I.app_lock_failed(al_state COLLATE "C", al_message, al_detail, al_hint);
		END;
	END IF;
	PERFORM %1$I.app_lock_raise(al_problem);
END
$$;
COMMENT ON FUNCTION %1$I.%2$I(%7$s) IS %8$L;
$facade$,
	:'schema', CASE WHEN name LIKE 'view %' THEN 'app_lock_' || call ELSE name END, arguments,
	CASE WHEN is_set THEN 'SETOF ' ELSE '' END || CASE WHEN composite IS NULL THEN returns ELSE format('%I.%I', :'schema', composite) END,
	problem,
	CASE WHEN at = 'refused' THEN 'NULL;'
	WHEN NOT is_set THEN
		format($$SELECT * INTO al_row FROM %1$I.app_lock_on_shard_%2$s(%3$s, %1$I.app_lock_settings()%4$s);
			al_problem := al_row.problem;
			IF al_problem IS NULL THEN
				%5$s
			END IF;$$, :'schema', call,
			CASE at WHEN 'key' THEN format('%I.app_lock_hash($1)', :'schema') ELSE 'pg_catalog.pg_backend_pid()' END, args,
			CASE WHEN composite IS NOT NULL THEN
				format('RETURN ROW(%s)::%I.%I;', pg_temp.list('al_row.c%s', columns, outs, ', '), :'schema', composite)
			WHEN columns[1] IS NOT NULL THEN pg_temp.list('%2$I := al_row.c%1$s; ', columns, outs) || 'RETURN;'
			ELSE 'RETURN al_row.c1;' END)
	ELSE
		format($$RETURN QUERY SELECT %1$s
				FROM generate_series(%7$s) s
					CROSS JOIN LATERAL %2$I.app_lock_on_shard_%3$s(s, %2$I.app_lock_settings(%8$s)%4$s) r (problem, %5$s)
				WHERE r.problem IS NULL OR %2$I.app_lock_raise(r.problem)
				ORDER BY %6$s;
			RETURN;$$, pg_temp.list('r.%2$I', columns, outs, ', '), :'schema', call, args,
			pg_temp.list('%2$I', columns, outs, ', '), coalesce(sort, 's'),
			format(CASE at WHEN 'key' THEN '%1$I.app_lock_hash($1), %1$I.app_lock_hash($1)' ELSE '0, %1$I.app_lock_partitions() - 1' END, :'schema'),
			CASE at WHEN 'all' THEN 's' END)
	END,
	identity, comment,
	-- Functions that are called most have qualified names instead, which cost less.  PL/Proxy sends a
	-- moment and an interval as the session shows it, which the shard may take for another one.
	CASE WHEN is_set THEN ' SET search_path = pg_catalog, pg_temp' ELSE '' END
		|| CASE WHEN 'timestamp with time zone' = ANY (ins) THEN ' SET datestyle = ''ISO''' ELSE '' END
		|| CASE WHEN 'interval' = ANY (ins) THEN ' SET intervalstyle = ''postgres''' ELSE '' END)
FROM made, LATERAL (SELECT pg_temp.list(', $%s', names, ins), pg_temp.problem(made, :'schema')) x (args, problem)
WHERE at IN ('key', 'any', 'refused') OR at = 'all' AND is_set;

-- All shards are called, also where one fails.
SELECT format($facade$
CREATE FUNCTION %1$I.%2$I(%3$s) RETURNS %4$s
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET intervalstyle = 'postgres' AS $$
DECLARE
	al_problem text[]; al_row record; al_state text; al_message text; al_detail text; al_hint text; al_sum bigint := 0;
BEGIN
	al_problem := %5$s;
	IF al_problem IS NULL THEN
		FOR al_shard IN 0 .. %1$I.app_lock_partitions() - 1 LOOP
			BEGIN
				SELECT * INTO al_row FROM %1$I.app_lock_on_shard_%2$s(al_shard, %1$I.app_lock_settings(al_shard)%6$s);
				al_problem := coalesce(al_problem, al_row.problem);
				%7$s
			EXCEPTION WHEN OTHERS THEN
				GET STACKED DIAGNOSTICS al_state = RETURNED_SQLSTATE, al_message = MESSAGE_TEXT,
					al_detail = PG_EXCEPTION_DETAIL, al_hint = PG_EXCEPTION_HINT;
				al_problem := coalesce(al_problem, %1$I.app_lock_failed(al_state COLLATE "C", al_message, al_detail, al_hint));
			END;
		END LOOP;
		IF al_problem IS NULL THEN
			RETURN %8$s;
		END IF;
	END IF;
	PERFORM %1$I.app_lock_raise(al_problem);
END
$$;
COMMENT ON FUNCTION %1$I.%2$I(%9$s) IS %10$L;
$facade$,
	:'schema', name, arguments, returns, pg_temp.problem(made, :'schema'), pg_temp.list(', $%s', names, ins),
	CASE returns WHEN 'bigint' THEN 'al_sum := al_sum + coalesce(al_row.c1, 0);' END,
	CASE returns WHEN 'bigint' THEN 'al_sum' END, identity, comment)
FROM made WHERE at = 'all' AND NOT is_set;

-- Sets: shard after shard, each with its keys, in the same order by everybody
SELECT format($facade$
CREATE FUNCTION %1$I.app_lock_parts(keys text[], modes text[] DEFAULT NULL, OUT shard integer, OUT part text[], OUT part_modes text[]) RETURNS SETOF record
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
	partitions integer := %1$I.app_lock_partitions();
	bad text[] := (SELECT ARRAY[k] FROM unnest(keys) k WHERE k IS NULL OR octet_length(k) NOT BETWEEN 1 AND 1024 LIMIT 1);
BEGIN
	-- A shard reports faults of the keys.
	IF bad IS NOT NULL OR keys IS NULL OR coalesce(array_ndims(keys), 0) <> 1 OR cardinality(keys) > 1000 THEN
		RETURN QUERY SELECT 0, CASE WHEN array_ndims(keys) = 1 AND cardinality(keys) <= 1000 THEN bad ELSE keys END, NULL::text[];
	ELSIF array_ndims(modes) <> 1 OR cardinality(modes) <> cardinality(keys) THEN
		RETURN QUERY SELECT %1$I.app_lock_hash(k) & (partitions - 1), ARRAY[k], '{}'::text[] FROM unnest(keys) k LIMIT 1;
	ELSE
		RETURN QUERY SELECT %1$I.app_lock_hash(k) & (partitions - 1), array_agg(k), CASE WHEN modes IS NOT NULL THEN array_agg(m) END
			FROM unnest(keys, modes) u (k, m) GROUP BY 1 ORDER BY 1;
	END IF;
END
$$;

-- Release the locks of the set, except those that the owner has acquired again since.
CREATE FUNCTION %1$I.app_lock_on_shard_give_back(shard integer, owner text, keys text[], moments timestamptz[], shared text[]) RETURNS void
LANGUAGE plproxy AS $$
	CLUSTER %6$L; RUN ON shard;
	SELECT lock_shard.give_back(owner, keys, moments, shared);
$$;

CREATE FUNCTION %1$I.app_lock_give_back(owner text, grants %1$I.lock_grant[], asked text[], shared text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
DECLARE
	r record;
BEGIN
	FOR r IN
		SELECT %1$I.app_lock_hash(key) & (%1$I.app_lock_partitions() - 1) AS shard, array_agg(key) AS keys, array_agg(expires_at) AS moments
		FROM (
			SELECT key, expires_at FROM unnest(grants)
			UNION ALL SELECT k, NULL FROM unnest(asked) k) x
		GROUP BY 1
	LOOP
		BEGIN
			PERFORM %1$I.app_lock_on_shard_give_back(r.shard, owner, r.keys, r.moments, shared);
		EXCEPTION WHEN OTHERS THEN
			-- The ttl ends it.
			NULL;
		END;
	END LOOP;
END
$$;

CREATE FUNCTION %1$I.app_lock_take(function text, %3$s)
RETURNS SETOF %1$I.lock_grant
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET intervalstyle = 'postgres' AS $$
#variable_conflict use_variable
DECLARE
	problem text[] := %1$I.app_lock_check(function, coalesce(wait, interval '1 day'), NULL, NULL);
	state text; message text; detail text; hint text;
	settings text[] := %1$I.app_lock_settings();
	began timestamptz := clock_timestamp();
	waited interval := '0';
	-- All shards have to know the same one.
	set_owner text := nullif(current_setting('atomic_lock.owner', true), '');
	name text := coalesce(owner, set_owner, gen_random_uuid()::text);
	is_known boolean := coalesce(owner, set_owner) IS NOT NULL;
	parts record; r record;
	first integer; last integer;
	shared text[] := '{}';		-- keys that the owner shared before
	taken %1$I.lock_grant[] := '{}';	-- grants of what it did not have
	asked text[] := '{}';		-- keys of which there is no answer yet
	grants %1$I.lock_grant[] := '{}';
	last_grants %1$I.lock_grant[] := '{}';
	g %1$I.lock_grant;
	refused %1$I.lock_grant;
BEGIN
	IF problem IS NOT NULL THEN
		PERFORM %1$I.app_lock_raise(problem);
	END IF;
	SELECT min(p.shard), max(p.shard) INTO first, last FROM %1$I.app_lock_parts(keys, modes) p;
	BEGIN
		-- After a wait, the shards before the last are called once more, so that their leases
		-- are as long as those of the last.
		<<shards>>
		FOR parts IN
			SELECT p.*, again FROM %1$I.app_lock_parts(keys, modes) p, unnest('{false,true}'::boolean[]) again
			WHERE NOT again OR p.shard <> last
			ORDER BY again, p.shard
		LOOP
			IF parts.again THEN
				EXIT WHEN waited = '0';
				grants := CASE WHEN parts.shard <> first THEN grants END;
				%4$s := 'extend';
			ELSIF first = last THEN
				NULL;
			ELSIF NOT is_known THEN
				-- No other caller can repeat the call and rely on its locks.
				asked := parts.part;
			ELSIF mode = 'exclusive' OR modes IS NOT NULL THEN
				shared := shared || ARRAY(SELECT h.c1 FROM %1$I.app_lock_on_shard_lock_held(parts.shard, settings, name) h WHERE h.c2 = 'shared');
			END IF;
			-- One budget of wait for all of them
			FOR r IN EXECUTE format('SELECT * FROM %%I.%%I($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)', %5$L, 'app_lock_on_shard_' || function)
				USING parts.shard, settings, parts.part, ttl, name, mode,
					CASE WHEN parts.again THEN '0' WHEN wait > '0' THEN greatest(wait - (clock_timestamp() - began), '1 ms') ELSE wait END,
					holder, meta, max_holders, parts.part_modes
			LOOP
				asked := '{}';
				problem := r.problem;
				EXIT shards WHEN problem IS NOT NULL;
				g := ROW(%2$s)::%1$I.lock_grant;
				IF NOT g.acquired THEN
					refused := g;
					EXIT shards;
				ELSIF parts.again AND g.key IN (SELECT x.key FROM unnest(taken) x) THEN
					g.status := 'acquired';
				END IF;
				IF g.status = 'acquired' THEN
					taken := taken || g;
				END IF;
				IF parts.shard = last THEN
					last_grants := last_grants || g;
				ELSE
					grants := grants || g;
				END IF;
			END LOOP;
			-- Each row has it.
			waited := waited + g.waited;
		END LOOP;
	EXCEPTION
		WHEN query_canceled THEN
			PERFORM %1$I.app_lock_give_back(name, taken, asked, shared);
			RAISE;
		WHEN OTHERS THEN
			GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
				detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
			problem := %1$I.app_lock_failed(state, message, detail, hint);
	END;
	IF problem IS NULL AND refused.key IS NULL THEN
		FOR g IN SELECT * FROM unnest(grants || last_grants) x ORDER BY x.key COLLATE "C" LOOP
			g.waited := waited;
			RETURN NEXT g;
		END LOOP;
		RETURN;
	END IF;
	PERFORM %1$I.app_lock_give_back(name, taken, asked, shared);
	IF problem IS NOT NULL THEN
		PERFORM %1$I.app_lock_raise(problem);
	END IF;
	refused.waited := waited + refused.waited;
	RETURN NEXT refused;
END
$$;
$facade$, :'schema', pg_temp.list('r.c%s', columns, outs, ', '), regexp_replace(arguments, ' DEFAULT [^,]*', '', 'g'),
	format('settings[%s]', array_position(:'settings'::text[], 'atomic_lock.on_reacquire')), :'schema', :'server')
FROM made WHERE name = 'lock_acquire_all';

SELECT format($facade$
CREATE FUNCTION %1$I.%2$I(%3$s) RETURNS SETOF %1$I.lock_grant
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
	SELECT * FROM %1$I.app_lock_take(%2$L COLLATE "C"%4$s)
$$;
COMMENT ON FUNCTION %1$I.%2$I(%5$s) IS %6$L;
$facade$, :'schema', name, arguments, pg_temp.list(', $%s', names, ins), identity, comment)
FROM made WHERE name IN ('lock_acquire_all', 'lock_try_acquire_all');

SELECT format($facade$
CREATE FUNCTION %1$I.app_lock_beat(%2$s) RETURNS SETOF record
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET intervalstyle = 'postgres' AS $$
DECLARE
	al_problem text[]; al_row record; al_part record; al_state text; al_message text; al_detail text; al_hint text;
BEGIN
	-- All shards are called, also where one fails.
	FOR al_part IN
		SELECT p.shard, p.part FROM %1$I.app_lock_parts($1) p WHERE $1 IS NOT NULL
		UNION ALL SELECT s, NULL FROM generate_series(0, %1$I.app_lock_partitions() - 1) s WHERE $1 IS NULL
	LOOP
		BEGIN
			FOR al_row IN SELECT * FROM %1$I.app_lock_on_shard_lock_heartbeat(al_part.shard, %1$I.app_lock_settings(al_part.shard), al_part.part, $2, $3) LOOP
				al_problem := coalesce(al_problem, al_row.problem);
				CONTINUE WHEN al_row.problem IS NOT NULL;
				%3$s
				RETURN NEXT;
			END LOOP;
		EXCEPTION WHEN OTHERS THEN
			GET STACKED DIAGNOSTICS al_state = RETURNED_SQLSTATE, al_message = MESSAGE_TEXT,
				al_detail = PG_EXCEPTION_DETAIL, al_hint = PG_EXCEPTION_HINT;
			al_problem := coalesce(al_problem, %1$I.app_lock_failed(al_state COLLATE "C", al_message, al_detail, al_hint));
		END;
	END LOOP;
	IF al_problem IS NOT NULL THEN
		PERFORM %1$I.app_lock_raise(al_problem);
	END IF;
END
$$;
CREATE FUNCTION %1$I.lock_heartbeat(%2$s) RETURNS SETOF record
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
	SELECT b.* FROM %1$I.app_lock_beat($1, $2, $3) b ORDER BY b.key COLLATE "C"
$$;
COMMENT ON FUNCTION %1$I.lock_heartbeat(%4$s) IS %5$L;
$facade$, :'schema', arguments, pg_temp.list('%2$I := al_row.c%1$s;', columns, outs, ' '), identity, comment)
FROM made WHERE name = 'lock_heartbeat';

SELECT format($facade$
CREATE VIEW %1$I.%2$I AS SELECT * FROM %1$I.app_lock_%3$s();
COMMENT ON VIEW %1$I.%2$I IS %4$L;
$facade$, :'schema', substr(name, 6), call, comment)
FROM made WHERE name LIKE 'view %' AND at = 'all';

SELECT format($facade$
-- Keep the privileges from before, also where arguments have changed.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA %1$I FROM PUBLIC;
DO $$
DECLARE
	statement text;
BEGIN
	FOR statement IN
		SELECT format('GRANT %%s ON %%s TO %%s%%s', a.privilege_type, n.object,
			CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END, CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' END)
		FROM granted g
			JOIN (
				SELECT 'TABLE ' || oid::regclass, relname, relowner FROM pg_class WHERE relnamespace = %2$L::regnamespace AND relkind = 'v'
				UNION ALL SELECT 'FUNCTION ' || oid::regprocedure, proname, proowner FROM pg_proc WHERE pronamespace = %2$L::regnamespace) n (object, name, owner)
				ON n.name = g.name AND (n.object = g.object OR CASE WHEN g.object ~ '^FUNCTION' THEN to_regprocedure(substr(g.object, 10)) IS NULL END),
			aclexplode(g.acl) a
		WHERE a.grantee <> n.owner
	LOOP
		EXECUTE statement;
	END LOOP;
END
$$;
\endif
COMMIT;
$facade$, :'schema', quote_ident(:'schema'));
COMMIT;
