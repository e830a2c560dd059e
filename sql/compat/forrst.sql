-- forrst.sql: the atomic lock extension of the Forrst protocol, urn:forrst:ext:atomicLock
--
--   psql -d app -v schema=api -f "$(pg_config --sharedir)/extension/atomic_lock/forrst.sql"
--
-- Without schema=, the objects go into the schema forrst.  It is created if it is missing;
-- nobody else should have CREATE in it.  The script may be run again.
--
-- lock_forrst(request jsonb) takes the lock that a request asks for, calls the function that
-- it names, releases the lock and returns the answer.  Functions have to be registered:
--
--   INSERT INTO api.forrst_function VALUES ('payments.charge', 'billing.charge(jsonb)');
--
-- They take the "arguments" of the call and return jsonb, and are not temporary.  They run
-- with the rights and the search_path of the caller.  So the owner of that table decides which
-- code callers run: give it to a role that they trust, and do not call lock_forrst as a
-- superuser if that role is not one.
--
-- Callers need USAGE on the schema, the access level "user" of atomic_lock, EXECUTE on the
-- registered functions, and for force-release the level "supervisor".
--
-- doc/libraries.md says what differs from the document of the protocol.

\set ON_ERROR_STOP on
\if :{?schema}
\else
	\set schema forrst
\endif

BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL client_min_messages = warning;

-- Check all requirements before anything is created.
DO $atomic_lock$
BEGIN
	IF NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'atomic_lock') THEN
		RAISE undefined_object USING
			MESSAGE = 'the extension atomic_lock is not installed in this database',
			HINT = 'CREATE EXTENSION atomic_lock';
	END IF;
END
$atomic_lock$;
SELECT extnamespace::regnamespace AS locks, to_regnamespace(quote_ident(:'schema')) IS NULL AS no_schema
FROM pg_extension WHERE extname = 'atomic_lock' \gset
\if :no_schema
	CREATE SCHEMA :"schema";
\endif

-- Signatures are text: a column of the type regprocedure would stop pg_upgrade.
CREATE TABLE IF NOT EXISTS :"schema".forrst_function (
	name		text PRIMARY KEY,
	signature	text NOT NULL CHECK (signature LIKE '%(jsonb)' AND cardinality(parse_ident(left(signature, -7))) = 2
		AND (parse_ident(left(signature, -7)))[1] NOT LIKE 'pg\_temp%')
);
COMMENT ON TABLE :"schema".forrst_function IS 'functions that lock_forrst may call';
COMMENT ON COLUMN :"schema".forrst_function.name IS 'name in requests';
COMMENT ON COLUMN :"schema".forrst_function.signature IS 'schema.function(jsonb), which returns jsonb';
GRANT SELECT ON :"schema".forrst_function TO PUBLIC;

-- The bodies name both schemas, so that no search_path decides what they call.  Functions
-- of the extension get all their arguments, with their types, because a role that may
-- create in its schema could make others that fit better.
SELECT format($script$

CREATE OR REPLACE FUNCTION %2$I.forrst_duration(duration jsonb) RETURNS interval
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN duration->'value' BETWEEN '0' AND '1e9' THEN (duration->>'value')::float8 END *
	CASE duration->>'unit' WHEN 'millisecond' THEN interval '1 ms' WHEN 'second' THEN interval '1 s'
		WHEN 'minute' THEN interval '1 min' WHEN 'hour' THEN interval '1 h' WHEN 'day' THEN interval '24 h' END;
COMMENT ON FUNCTION %2$I.forrst_duration(jsonb) IS 'the interval for {"value": 5, "unit": "second"}; NULL if it is malformed';

CREATE OR REPLACE FUNCTION %2$I.forrst_time(moment timestamptz) RETURNS text
LANGUAGE sql STABLE
RETURN to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"');
COMMENT ON FUNCTION %2$I.forrst_time(timestamptz) IS 'ISO 8601 in UTC, cut to seconds';

CREATE OR REPLACE FUNCTION %2$I.forrst_error(code text, message text, details jsonb DEFAULT NULL) RETURNS jsonb
LANGUAGE sql STABLE
RETURN jsonb_build_object('result', NULL, 'errors', jsonb_build_array(jsonb_build_object('code', code, 'message', message) ||
	CASE WHEN details IS NULL THEN '{}' ELSE jsonb_build_object('details', details) END));
COMMENT ON FUNCTION %2$I.forrst_error(text, text, jsonb) IS 'part of an answer that tells of an error';

CREATE OR REPLACE FUNCTION %2$I.lock_forrst_is_retryable(code text) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN code IN ('LOCK_ACQUISITION_FAILED', 'LOCK_TIMEOUT', 'INTERNAL_ERROR');
COMMENT ON FUNCTION %2$I.lock_forrst_is_retryable(text) IS 'whether a request that lock_forrst answered with this error may be repeated';

-- The functions of the protocol's extension itself
CREATE OR REPLACE FUNCTION %2$I.forrst_manage(function text, arguments jsonb, request_id text) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $atomic_lock$
DECLARE
	key		text := arguments->>'key';
	owner	text := arguments->>'owner';
	about	jsonb := jsonb_build_object('key', key);
	status	text;
	state	%1$s.lock_state;
BEGIN
	CASE
		WHEN jsonb_typeof(arguments->'key') IS DISTINCT FROM 'string' OR jsonb_typeof(arguments->'owner') <> 'string'
			OR (function = 'release' AND owner IS NULL) THEN
			RAISE invalid_parameter_value USING MESSAGE = 'key and owner must be strings';
		WHEN function = 'release' THEN
			status := %1$s.lock_try_release(key, owner);
			-- A call in progress holds the lock.
			state := %1$s.lock_status(key);
			IF status = 'not_found' AND (state.locked OR state.pending) THEN
				status := 'not_owner';
			END IF;
		WHEN function = 'force-release' THEN
			status := %1$s.lock_try_force_release(key, 'Forrst request ' || left(request_id, 100), NULL::bigint);
		ELSE
			state := %1$s.lock_status(key);
			RETURN jsonb_build_object('result', about || CASE WHEN NOT (state.locked OR state.pending) THEN '{"locked": false}'
				ELSE jsonb_strip_nulls(jsonb_build_object('locked', true,
					'owner', CASE WHEN owner IS NULL THEN state.owner WHEN %1$s.lock_is_held(key, owner) THEN owner END,
					'acquired_at', %2$I.forrst_time(state.acquired_at), 'expires_at', %2$I.forrst_time(state.expires_at),
					'ttl_remaining', floor(extract(epoch FROM state.ttl_remaining)))) END);
	END CASE;
	RETURN CASE status
		WHEN 'released' THEN jsonb_build_object('result', about || jsonb '{"released": true}' ||
			CASE function WHEN 'release' THEN jsonb '{}' ELSE '{"forced": true}' END)
		WHEN 'not_owner' THEN %2$I.forrst_error('LOCK_OWNERSHIP_MISMATCH', 'Lock is owned by a different process', about)
		WHEN 'already_released' THEN %2$I.forrst_error('LOCK_ALREADY_RELEASED', 'Lock was already released', about)
		WHEN 'pending' THEN %2$I.forrst_error('LOCK_ACQUISITION_FAILED', 'Lock is held by a call in progress', about)
		ELSE %2$I.forrst_error('LOCK_NOT_FOUND', 'Lock does not exist or already expired', about) END;
END
$atomic_lock$;
COMMENT ON FUNCTION %2$I.forrst_manage(text, jsonb, text) IS 'what lock_forrst answers to release, force-release and status';

CREATE OR REPLACE FUNCTION %2$I.forrst_run(request jsonb, path text) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $atomic_lock$
DECLARE
	envelope	jsonb := jsonb_build_object('protocol', request->'protocol', 'id', request->'id');
	function	text := request->'call'->>'function';
	arguments	jsonb := coalesce(request->'call'->'arguments', '{}');
	extensions	jsonb := coalesce(request->'extensions', '[]');
	entry		jsonb := '{"urn": "urn:forrst:ext:atomicLock"}';
	entries		jsonb;
	options		jsonb;
	fault		text;
	malformed	text := 'INVALID_REQUEST';
	statement	text;
	full_key	text;
	ttl			interval;
	owner		text;
	lock		%1$s.lock_grant;
	before		text := current_setting('atomic_lock.owner', true);
	about		jsonb;
	answer		jsonb;
BEGIN
	-- Find all faults of the request before the lock is taken.
	BEGIN
		IF jsonb_typeof(extensions) = 'array' THEN
			entries := (SELECT jsonb_agg(e) FROM jsonb_array_elements(extensions) e WHERE e @> entry);
		END IF;
		IF jsonb_typeof(entries->0->'options') = 'object' THEN
			options := '{"scope": "function", "auto_release": true, "block": {"value": 0, "unit": "second"}}' || (entries->0->'options');
			ttl := %2$I.forrst_duration(options->'ttl');
		END IF;
		fault := CASE
			WHEN request->'protocol'->>'name' IS DISTINCT FROM 'forrst' THEN 'the protocol must be forrst'
			WHEN jsonb_typeof(request->'id') IS DISTINCT FROM 'string' OR request->>'id' = '' THEN 'id must be a string'
			WHEN jsonb_typeof(request->'call'->'function') IS DISTINCT FROM 'string' THEN 'function must be a string'
			WHEN jsonb_typeof(arguments) <> 'object' THEN 'arguments must be an object'
			WHEN jsonb_typeof(extensions) <> 'array' THEN 'extensions must be an array'
			WHEN EXISTS (SELECT FROM jsonb_array_elements(extensions) e
				WHERE jsonb_typeof(e->'urn') IS DISTINCT FROM 'string') THEN 'each extension must have a urn'
			WHEN entries IS NULL THEN NULL
			WHEN jsonb_array_length(entries) > 1 THEN 'no more than one lock may be asked for'
			WHEN options IS NULL THEN 'options must be an object'
			WHEN jsonb_typeof(options->'key') IS DISTINCT FROM 'string' OR options->>'key' = '' THEN 'key must be a string'
			WHEN NOT coalesce(ttl BETWEEN '1 ms' AND '100 years', false) THEN 'ttl must be a duration'
			WHEN %2$I.forrst_duration(options->'block') IS NULL THEN 'block must be a duration'
			WHEN options->'scope' NOT IN ('"function"', '"global"') THEN 'scope must be function or global'
			WHEN jsonb_typeof(options->'auto_release') <> 'boolean' THEN 'auto_release must be a boolean'
			WHEN jsonb_typeof(options->'owner') <> 'string' THEN 'owner must be a string' END;
		IF fault IS NOT NULL THEN
			RAISE invalid_parameter_value USING MESSAGE = fault;
		ELSIF function ~ '^urn:cline:forrst:ext:atomic-lock:fn:(release|force-release|status)$' THEN
			malformed := 'INVALID_ARGUMENTS';
			RETURN envelope || %2$I.forrst_manage(split_part(function, ':', 7), arguments, request->>'id');
		END IF;
		SELECT format('SELECT %%I.%%I($1)', n.nspname, p.proname) INTO statement
		FROM %2$I.forrst_function f
			JOIN pg_proc p ON p.oid = to_regprocedure(f.signature)
			JOIN pg_namespace n ON n.oid = p.pronamespace
		WHERE f.name = function AND p.prokind = 'f' AND p.prorettype = 'jsonb'::regtype AND NOT p.proretset;
		IF NOT FOUND THEN
			RETURN envelope || %2$I.forrst_error('FUNCTION_NOT_FOUND', 'Function is not registered, or does not exist',
				jsonb_build_object('function', function));
		END IF;
		IF options IS NOT NULL THEN
			full_key := concat_ws(':', 'lock', CASE options->>'scope' WHEN 'function' THEN function END, options->>'key');
			owner := coalesce(options->>'owner', gen_random_uuid()::text);
			lock := CASE WHEN (options->'auto_release')::boolean
				THEN %1$s.lock_try_acquire(full_key, NULL::interval, owner, 'exclusive'::text, %2$I.forrst_duration(options->'block'),
					NULL::text, NULL::jsonb, 'transaction'::text, NULL::integer, NULL::text)
				ELSE %1$s.lock_try_acquire(full_key, ttl, owner, 'exclusive'::text, %2$I.forrst_duration(options->'block'),
					NULL::text, NULL::jsonb, 'lease'::text, NULL::integer, NULL::text) END;
		END IF;
	EXCEPTION
		WHEN data_exception THEN
			RETURN envelope || %2$I.forrst_error(malformed, SQLERRM);
		WHEN insufficient_privilege THEN
			RETURN envelope || %2$I.forrst_error('FORBIDDEN', SQLERRM);
	END;

	about := jsonb_build_object('key', options->'key', 'scope', options->'scope');
	IF lock.acquired THEN
		entry := entry || jsonb_build_object('data', about || jsonb_build_object('acquired', true, 'owner', owner,
			'expires_at', %2$I.forrst_time(coalesce(lock.expires_at, lock.acquired_at + ttl))));
		envelope := envelope || jsonb_build_object('extensions', jsonb_build_array(entry));
	ELSIF lock.status = 'timeout' THEN
		RETURN envelope || %2$I.forrst_error('LOCK_TIMEOUT', format('Lock acquisition timed out after %%s %%s%%s', options->'block'->>'value',
			options->'block'->>'unit', CASE options->'block'->>'value' WHEN '1' THEN '' ELSE 's' END),
			about || jsonb_build_object('full_key', full_key, 'waited', options->'block'));
	ELSIF options IS NOT NULL THEN
		entry := entry || jsonb_build_object('data', jsonb_build_object('key', options->'key', 'acquired', false));
		RETURN envelope || jsonb_build_object('extensions', jsonb_build_array(entry)) ||
			%2$I.forrst_error('LOCK_ACQUISITION_FAILED', 'Unable to acquire lock', about || jsonb_build_object('full_key', full_key));
	END IF;

	BEGIN
		PERFORM set_config('atomic_lock.owner', coalesce(owner, before), true), set_config('search_path', path, true);
		EXECUTE statement INTO answer USING arguments;
		-- The path is still that of the caller, or what the function has made of it.
		PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
		PERFORM set_config('atomic_lock.owner', before, true);
		answer := jsonb_build_object('result', answer);
	EXCEPTION
		WHEN transaction_rollback THEN
			RAISE;
		WHEN OTHERS THEN
			answer := %2$I.forrst_error('INTERNAL_ERROR', SQLERRM, jsonb_build_object('sqlstate', SQLSTATE));
	END;
	-- A lock that the owner had before the call stays.
	IF (options->'auto_release')::boolean AND lock.status <> 'reacquired' THEN
		PERFORM %1$s.lock_try_release(full_key, owner);
	END IF;
	RETURN envelope || answer;
END
$atomic_lock$;
COMMENT ON FUNCTION %2$I.forrst_run(jsonb, text) IS 'what lock_forrst does; the registered function is called with this search_path';

CREATE OR REPLACE FUNCTION %2$I.lock_forrst(request jsonb) RETURNS jsonb
LANGUAGE sql VOLATILE
RETURN %2$I.forrst_run(request, current_setting('search_path'));
COMMENT ON FUNCTION %2$I.lock_forrst(jsonb) IS
'answers a request of the Forrst protocol: takes the lock that it asks for, calls the registered function that it names, releases the lock';

-- CREATE OR REPLACE does not change the owner of an object.
DO $atomic_lock$
BEGIN
	IF EXISTS (SELECT FROM pg_class WHERE relname = 'forrst_function'
			AND relnamespace = %3$L::regnamespace AND relowner <> quote_ident(current_user)::regrole)
		OR EXISTS (SELECT FROM pg_proc WHERE proname IN ('forrst_duration', 'forrst_time', 'forrst_error',
				'lock_forrst_is_retryable', 'forrst_manage', 'forrst_run', 'lock_forrst')
			AND pronamespace = %3$L::regnamespace AND proowner <> quote_ident(current_user)::regrole) THEN
		RAISE insufficient_privilege USING
			MESSAGE = 'a function or table of this script, whose names have forrst in them, belongs to another role',
			HINT = 'Drop what this script makes, or run it as the role to which all of it belongs.';
	END IF;
END
$atomic_lock$;

$script$, :'locks', :'schema', quote_ident(:'schema')) \gexec

COMMIT;
