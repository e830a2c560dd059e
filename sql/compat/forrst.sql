-- forrst.sql: the atomic lock extension of the Forrst protocol
--
--   psql -v schema=api -f forrst.sql       (where it is to live; without it, forrst)
--
-- lock_forrst(request jsonb) answers a request of the protocol: it takes the lock that
-- the request asks for, calls the function that it names, and releases the lock.
-- The functions are those that the site has registered:
--
--   INSERT INTO api.forrst_function VALUES ('payments.charge', 'billing.charge(jsonb)');
--
-- A registered function has one argument, the "arguments" of the call, and returns
-- jsonb.  It runs with the privileges of the caller, in a subtransaction: where it
-- fails, what it wrote is undone, and its message is answered.  Serialization failures
-- and deadlocks are raised, since the whole transaction has to be repeated.
--
-- While the function runs, atomic_lock.owner is the owner of the lock, so that guards
-- let it write.  A lock that is released after the call has the lifetime of the
-- transaction; its expires_at is when the caller wants it to be over, and nothing ends
-- it before the transaction.
--
-- Callers need the access level "user" of atomic_lock; to force a lock, "admin", too.
-- As the protocol has it, key "b" of function "a" is the global key "a:b".

\set ON_ERROR_STOP on
\if :{?schema}
\else
	\set schema forrst
\endif

BEGIN;

SELECT n.nspname AS locks
FROM pg_catalog.pg_extension e
	JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
WHERE e.extname = 'atomic_lock' \gset

CREATE SCHEMA IF NOT EXISTS :"schema";

-- Signatures are text: a column of type regprocedure would stop pg_upgrade.
CREATE TABLE :"schema".forrst_function (
	name		text PRIMARY KEY,
	signature	text NOT NULL
);
COMMENT ON TABLE :"schema".forrst_function IS 'functions that lock_forrst may call';
COMMENT ON COLUMN :"schema".forrst_function.name IS 'name in requests';
COMMENT ON COLUMN :"schema".forrst_function.signature IS 'schema.function(jsonb), which returns jsonb';
GRANT SELECT ON :"schema".forrst_function TO PUBLIC;

-- The bodies name both schemas, so that no search_path decides what they call.
SELECT pg_catalog.format($script$

CREATE FUNCTION %2$I.forrst_duration(value jsonb)
RETURNS interval
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF jsonb_typeof(value->'value') = 'number' AND (value->>'value')::numeric BETWEEN 0 AND 1e9
		AND value->>'unit' IN ('millisecond', 'second', 'minute', 'hour', 'day') THEN
		-- a day of a lease has 24 hours
		RETURN make_interval(secs => (value->>'value')::float8 * CASE value->>'unit'
			WHEN 'millisecond' THEN 0.001 WHEN 'second' THEN 1 WHEN 'minute' THEN 60
			WHEN 'hour' THEN 3600 ELSE 86400 END);
	END IF;
	RAISE invalid_parameter_value USING
		MESSAGE = 'a duration must be an object with value and unit',
		HINT = 'The units are millisecond, second, minute, hour and day.';
END
$$;

COMMENT ON FUNCTION %2$I.forrst_duration(jsonb) IS
'the interval that {"value": n, "unit": "second"} stands for; raises 22023';

CREATE FUNCTION %2$I.forrst_time(at timestamptz)
RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
RETURN to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"');

COMMENT ON FUNCTION %2$I.forrst_time(timestamptz) IS
'ISO 8601 in UTC, cut to seconds';

CREATE FUNCTION %2$I.forrst_error(code text, message text, details jsonb DEFAULT NULL)
RETURNS jsonb
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
RETURN jsonb_build_object('result', NULL, 'errors', jsonb_build_array(
	jsonb_build_object('code', code, 'message', message) ||
	CASE WHEN details IS NULL THEN '{}' ELSE jsonb_build_object('details', details) END));

COMMENT ON FUNCTION %2$I.forrst_error(text, text, jsonb) IS
'the part of an answer that tells of an error';

CREATE FUNCTION %2$I.lock_forrst_is_retryable(code text)
RETURNS boolean
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
RETURN code IN ('LOCK_ACQUISITION_FAILED', 'LOCK_TIMEOUT');

COMMENT ON FUNCTION %2$I.lock_forrst_is_retryable(text) IS
'may the request succeed if it is repeated? The messages of the protocol do not say it';

-- The functions of the extension itself: release, force-release, status
CREATE FUNCTION %2$I.forrst_lock_call(function text, arguments jsonb, request_id text)
RETURNS jsonb
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	key		text := arguments->>'key';
	owner	text := arguments->>'owner';
	about	jsonb := jsonb_build_object('key', key);
	status	text;
	state	%1$I.lock_state;
BEGIN
	IF key IS NULL OR (function = 'release' AND owner IS NULL) THEN
		RETURN %2$I.forrst_error('INVALID_ARGUMENTS',
			CASE WHEN key IS NULL THEN 'key is missing' ELSE 'owner is missing' END);
	END IF;
	CASE function
		WHEN 'release' THEN
			status := %1$I.lock_try_release(key, owner);
		WHEN 'force-release' THEN
			status := %1$I.lock_try_force_release(key, 'Forrst request ' || coalesce(request_id, ''));
			about := about || '{"forced": true}';
		WHEN 'status' THEN
			state := %1$I.lock_status(key);
			RETURN jsonb_build_object('result', jsonb_build_object('key', key, 'locked', state.locked) ||
				CASE WHEN NOT state.locked THEN '{}' ELSE jsonb_strip_nulls(jsonb_build_object(
					-- only who has the owner is shown it
					'owner', CASE WHEN owner IS NULL THEN state.owner
						WHEN %1$I.lock_is_held(key, owner) THEN owner END,
					'acquired_at', %2$I.forrst_time(state.acquired_at),
					'expires_at', %2$I.forrst_time(state.expires_at),
					'ttl_remaining', floor(extract(epoch FROM state.ttl_remaining))::bigint)) END);
	END CASE;
	RETURN CASE status
		WHEN 'released' THEN jsonb_build_object('result', '{"released": true}' || about)
		WHEN 'not_owner' THEN %2$I.forrst_error('LOCK_OWNERSHIP_MISMATCH',
			'Lock is owned by a different process', about)
		WHEN 'already_released' THEN %2$I.forrst_error('LOCK_ALREADY_RELEASED',
			'Lock was already released', about)
		WHEN 'pending' THEN %2$I.forrst_error('LOCK_ACQUISITION_FAILED',
			'A call that has the lock is in progress', about - 'forced')
		ELSE %2$I.forrst_error('LOCK_NOT_FOUND', 'Lock does not exist or already expired', about - 'forced') END;
EXCEPTION
	-- what a call in progress holds has no owner that others could name
	WHEN lock_not_available THEN
		RETURN %2$I.forrst_error('LOCK_OWNERSHIP_MISMATCH', 'Lock is owned by a different process', about);
END
$$;

COMMENT ON FUNCTION %2$I.forrst_lock_call(text, jsonb, text) IS
'what lock_forrst answers to release, force-release and status';

CREATE FUNCTION %2$I.forrst_run(request jsonb, search_path text)
RETURNS jsonb
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
<<called>>
DECLARE
	envelope	jsonb := jsonb_build_object('protocol', request->'protocol', 'id', request->'id');
	name		text := request->'call'->>'function';
	arguments	jsonb := coalesce(request->'call'->'arguments', '{}');
	urn			text := 'urn:forrst:ext:atomicLock';
	options		jsonb := (SELECT e->'options'
		FROM jsonb_array_elements(CASE WHEN jsonb_typeof(request->'extensions') = 'array'
			THEN request->'extensions' ELSE '[]' END) e
		WHERE e->>'urn' = urn LIMIT 1);
	key			text := options->>'key';
	scope		text := coalesce(options->>'scope', 'function');
	releases	boolean;
	ttl			interval;
	block		interval;
	full_key	text;
	search_path	text := forrst_run.search_path;
	target		regprocedure;
	target_name	text;
	lock		%1$I.lock_grant;
	previous	text := current_setting('atomic_lock.owner', true);
	owner		text;
	answer		jsonb;
	about		jsonb;
BEGIN
	-- Whatever is wrong with the request is found before a lock is taken.
	IF request->'protocol'->>'name' IS DISTINCT FROM 'forrst' OR name IS NULL
		OR jsonb_typeof(arguments) <> 'object' THEN
		RETURN envelope || %2$I.forrst_error('INVALID_REQUEST', 'Not a call of the Forrst protocol');
	END IF;
	IF name LIKE 'urn:cline:forrst:ext:atomic-lock:fn:%%' THEN
		name := substr(name, length('urn:cline:forrst:ext:atomic-lock:fn:') + 1);
		IF name IN ('release', 'force-release', 'status') THEN
			RETURN envelope || %2$I.forrst_lock_call(name, arguments, request->>'id');
		END IF;
	END IF;
	target := to_regprocedure((SELECT f.signature FROM %2$I.forrst_function f WHERE f.name = called.name));
	IF target IS NULL OR NOT EXISTS (
		SELECT FROM pg_proc p
		WHERE p.oid = target AND p.prokind = 'f' AND p.proargtypes = '3802'::oidvector
			AND p.prorettype = 'jsonb'::regtype AND NOT p.proretset) THEN
		RETURN envelope || %2$I.forrst_error('FUNCTION_NOT_FOUND', 'Function is not registered',
			jsonb_build_object('function', name));
	END IF;

	target_name := target::oid::regproc::text;

	IF options IS NOT NULL THEN
		BEGIN
			ttl := %2$I.forrst_duration(options->'ttl');
			block := CASE WHEN options ? 'block' THEN %2$I.forrst_duration(options->'block') ELSE '0' END;
			releases := coalesce((options->>'auto_release')::boolean, true);
			IF key IS NULL OR scope NOT IN ('function', 'global') THEN
				RAISE invalid_parameter_value USING MESSAGE = 'key is missing, or scope is neither function nor global';
			END IF;
		EXCEPTION WHEN data_exception THEN
			RETURN envelope || %2$I.forrst_error('INVALID_REQUEST', SQLERRM);
		END;
		owner := coalesce(options->>'owner', gen_random_uuid()::text);
		full_key := 'lock:' || CASE scope WHEN 'function' THEN name || ':' ELSE '' END || key;
		about := jsonb_build_object('key', key, 'scope', scope, 'full_key', full_key);
		lock := %1$I.lock_try_acquire(full_key, CASE WHEN NOT releases THEN ttl END, owner, wait => block,
			lifetime => CASE WHEN releases THEN 'transaction' ELSE 'lease' END);
		IF NOT lock.acquired THEN
			RETURN envelope || CASE WHEN options ? 'block' THEN
				%2$I.forrst_error('LOCK_TIMEOUT',
					format('Lock acquisition timed out after %%s %%s%%s', options->'block'->>'value',
						options->'block'->>'unit', CASE options->'block'->>'value' WHEN '1' THEN '' ELSE 's' END),
					about || jsonb_build_object('waited', options->'block'))
				ELSE %2$I.forrst_error('LOCK_ACQUISITION_FAILED', 'Unable to acquire lock', about) ||
					jsonb_build_object('extensions', jsonb_build_array(jsonb_build_object('urn', urn,
						'data', jsonb_build_object('key', key, 'acquired', false)))) END;
		END IF;
		envelope := envelope || jsonb_build_object('extensions', jsonb_build_array(jsonb_build_object(
			'urn', urn, 'data', jsonb_build_object('key', key, 'acquired', true, 'owner', owner, 'scope', scope,
				'expires_at', %2$I.forrst_time(coalesce(lock.expires_at, lock.acquired_at + ttl))))));
		PERFORM set_config('atomic_lock.owner', owner, true);
	END IF;

	BEGIN
		PERFORM set_config('search_path', called.search_path, true);
		EXECUTE format('SELECT %%s($1)', target_name) INTO answer USING arguments;
		answer := jsonb_build_object('result', answer);
	EXCEPTION
		WHEN transaction_rollback THEN
			RAISE;
		WHEN OTHERS THEN
			answer := %2$I.forrst_error('INTERNAL_ERROR', SQLERRM, jsonb_build_object('sqlstate', SQLSTATE));
	END;
	PERFORM set_config('search_path', 'pg_catalog, pg_temp', true);
	IF options IS NOT NULL THEN
		PERFORM set_config('atomic_lock.owner', previous, true);
		IF releases THEN
			PERFORM %1$I.lock_try_release(full_key, owner);
		END IF;
	END IF;
	RETURN envelope || answer;
END
$$;

COMMENT ON FUNCTION %2$I.forrst_run(jsonb, text) IS
'what lock_forrst does; the function is called with this search_path';

CREATE FUNCTION %2$I.lock_forrst(request jsonb)
RETURNS jsonb
LANGUAGE sql VOLATILE
BEGIN ATOMIC
	SELECT %2$I.forrst_run(request, pg_catalog.current_setting('search_path'));
END;

COMMENT ON FUNCTION %2$I.lock_forrst(jsonb) IS
'answers a request of the Forrst protocol: takes the lock that it asks for, calls the registered function that it names, releases the lock';

$script$, :'locks', :'schema') \gexec

COMMIT;
