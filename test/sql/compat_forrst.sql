\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
\set ECHO none
-- Whatever of this is called, says so.
CREATE SCHEMA mallory;
CREATE FUNCTION mallory.captured() RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RAISE 'captured'; END$$;
DO $$
DECLARE
	f	text;
BEGIN
	FOREACH f IN ARRAY ARRAY['set_config(text, text, boolean)', 'current_setting(text)', 'current_setting(text, boolean)', 'format(text, text, text)',
		'format(text, text, text, text)', 'format(text, name, name)', 'jsonb_typeof(jsonb)', 'jsonb_build_object(text, jsonb)', 'jsonb_build_object(text, text)',
		'jsonb_build_object(text, jsonb, text, jsonb)', 'jsonb_build_array(jsonb)', 'jsonb_agg(jsonb)', 'to_regprocedure(text)', 'gen_random_uuid()',
		'concat_ws(text, text, text)', 'concat_ws(text, text, text, text)', 'split_part(text, text, integer)', 'jsonb_array_elements(jsonb)',
		'jsonb_array_length(jsonb)', 'to_char(timestamp, text)', 'timezone(text, timestamptz)', 'floor(numeric)', 'jsonb_strip_nulls(jsonb)',
		'forrst_run(jsonb, text)', 'forrst_error(text, text, jsonb)', 'lock_try_acquire(text, interval, text)', 'lock_try_release(text, text)',
		'parse_ident(text)', 'quote_ident(text)', 'to_regnamespace(text)', 'charge(jsonb)'] LOOP
		EXECUTE format('CREATE FUNCTION mallory.%s RETURNS boolean LANGUAGE sql AS ''SELECT mallory.captured()''', f);
	END LOOP;
	FOREACH f IN ARRAY ARRAY['-> (LEFTARG = jsonb, RIGHTARG = text', '-> (LEFTARG = jsonb, RIGHTARG = integer', '->> (LEFTARG = jsonb, RIGHTARG = text', '|| (LEFTARG = jsonb, RIGHTARG = jsonb',
		'|| (LEFTARG = text, RIGHTARG = text', '~ (LEFTARG = text, RIGHTARG = text', '= (LEFTARG = text, RIGHTARG = text', '<> (LEFTARG = text, RIGHTARG = text', '~~ (LEFTARG = text, RIGHTARG = text',
		'= (LEFTARG = oid, RIGHTARG = oid', '= (LEFTARG = oid, RIGHTARG = regprocedure', '@> (LEFTARG = jsonb, RIGHTARG = jsonb', '+ (LEFTARG = timestamptz, RIGHTARG = interval',
		'>= (LEFTARG = interval, RIGHTARG = interval', '> (LEFTARG = integer, RIGHTARG = integer', '= (LEFTARG = name, RIGHTARG = text'] LOOP
		EXECUTE regexp_replace(f, '^(\S+) \(LEFTARG = (\w+), RIGHTARG = (\w+)', 'CREATE OR REPLACE FUNCTION mallory.op(\2, \3) RETURNS boolean LANGUAGE sql AS ''SELECT mallory.captured()''');
		EXECUTE 'CREATE OPERATOR mallory.' || f || ', FUNCTION = mallory.op)';
	END LOOP;
END
$$;
-- The script itself does not look there, either.
\set forrst :srcdir '/../sql/compat/forrst.sql'
\set schema api
DROP SCHEMA IF EXISTS api, billing CASCADE;
SET search_path = mallory, pg_catalog;
\i :forrst
\set ON_ERROR_STOP off
RESET search_path;
\set ECHO all
--
-- sql/compat/forrst.sql: the atomic lock extension of the Forrst protocol
--
-- Properties: each example message of the protocol's document is answered as it says; a
-- malformed request gets an answer that says what is wrong, and leaves no lock; the
-- registered function runs with the rights, the search_path and the owner that it should
-- have, and with nothing else; what it does to its lock, its settings or its transaction
-- leaves the lock released, the settings put back, and nothing of a failed call behind;
-- cancels, assertions, serialization failures and deadlocks are raised; no object in the
-- caller's search_path, or in the schema of the extension, is used in place of PostgreSQL's
-- or the extension's; a call releases only what it has taken.
--
-- Turns red when: a message, code or field differs from the document; a check comes after
-- the lock, or is left out; WHEN OTHERS becomes WHEN QUERY_CANCELED OR OTHERS; the owner or
-- the path is not put back; a function or operator behind the call is not qualified.

-- Times and generated owners differ from run to run.  A time has to have this format, an
-- owner to be a UUID of version 4, and what remains of half an hour to be less than that.
CREATE FUNCTION t.fixed(message jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
	SELECT regexp_replace(regexp_replace(regexp_replace(message::text,
		'"[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9]Z"', '"<time>"', 'g'),
		'"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"', '"<uuid v4>"', 'g'),
		'"ttl_remaining": (1[0-7][0-9]{2}|[1-9][0-9]{0,2}|0)(?=[,}])', '"ttl_remaining": "<less than 1800>"')::jsonb
$$;
-- What differs from the document, if anything does
CREATE FUNCTION t.as_document(request jsonb, answer jsonb, part text DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	given	jsonb := api.lock_forrst(request);
BEGIN
	IF part IS NOT NULL THEN
		IF given - part IS DISTINCT FROM request - 'call' THEN
			RETURN 'envelope: ' || given;
		END IF;
		given := given->part;
	END IF;
	RETURN CASE WHEN t.fixed(given) = t.fixed(answer) THEN 'as in the document' ELSE t.fixed(given)::text END;
END
$$;
-- A call of a function of the extension
CREATE FUNCTION t.call(function text, arguments jsonb, lock jsonb DEFAULT NULL) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
	SELECT jsonb_strip_nulls(jsonb_build_object('protocol', '{"name": "forrst", "version": "0.1.0"}'::jsonb, 'id', 'req_x',
		'call', jsonb_build_object('function', regexp_replace(function, '^fn:', 'urn:cline:forrst:ext:atomic-lock:fn:'), 'arguments', arguments),
		'extensions', CASE WHEN lock IS NOT NULL THEN jsonb_build_array(jsonb_build_object('urn', 'urn:forrst:ext:atomicLock',
			'options', '{"key": "k", "ttl": {"value": 30, "unit": "second"}}' || lock)) END))
$$;
-- In short: the result, or the code of the error with its message
CREATE FUNCTION t.short(answer jsonb) RETURNS text LANGUAGE sql IMMUTABLE AS $$
	SELECT CASE WHEN answer ? 'errors' THEN concat_ws(' ', answer->'errors'->0->>'code', answer->'errors'->0->'details'->>'sqlstate') || ': ' || (answer->'errors'->0->>'message')
		ELSE t.fixed(answer->'result')::text END
$$;
CREATE FUNCTION t.ask(request jsonb) RETURNS text LANGUAGE sql AS 'SELECT t.short(api.lock_forrst(request))';
GRANT USAGE ON SCHEMA api TO PUBLIC;

CREATE SCHEMA billing;
GRANT USAGE ON SCHEMA billing TO PUBLIC;
CREATE TABLE billing.payment (n int);
GRANT ALL ON billing.payment TO PUBLIC;
CREATE FUNCTION billing.charge(arguments jsonb) RETURNS jsonb LANGUAGE sql AS $$SELECT '{"charge_id": "ch_abc", "status": "succeeded"}'::jsonb$$;
CREATE FUNCTION billing.report(jsonb) RETURNS jsonb LANGUAGE sql AS $$SELECT to_jsonb('report of ' || ($1->>'month'))$$;
INSERT INTO api.forrst_function VALUES ('payments.charge', 'billing.charge(jsonb)'), ('billing.generateReport', 'billing.report(jsonb)');

-- The examples of the document, in its order: the results of its functions
SELECT t.short(api.lock_forrst(t.call('payments.charge', '{}',
	'{"key": "user:123", "ttl": {"value": 30, "unit": "minute"}, "owner": "uuid-abc-123", "auto_release": false}')));
SELECT t.as_document(t.call('fn:status', '{"key": "lock:payments.charge:user:123", "owner": "uuid-abc-123"}'), '{
"key": "lock:payments.charge:user:123",
"locked": true,
"owner": "uuid-abc-123",
"acquired_at": "2024-03-15T10:00:00Z",
"expires_at": "2024-03-15T10:30:00Z",
"ttl_remaining": 1200
}', 'result');
SELECT t.as_document(t.call('fn:release', '{"key": "lock:payments.charge:user:123", "owner": "uuid-abc-123"}'), '{
"released": true,
"key": "lock:payments.charge:user:123"
}', 'result');
SELECT t.as_document(t.call('fn:status', '{"key": "lock:payments.charge:user:123"}'), '{
"key": "lock:payments.charge:user:123",
"locked": false
}', 'result');
-- A call with its answer
SELECT $${
"protocol": { "name": "forrst", "version": "0.1.0" },
"id": "req_001",
"call": {
"function": "payments.charge",
"version": "1.0.0",
"arguments": {
"user_id": "user_123",
"amount": 100
}
},
"extensions": [
{
"urn": "urn:forrst:ext:atomicLock",
"options": {
"key": "user:123",
"ttl": { "value": 30, "unit": "second" }
}
}
]
}$$ AS req_001 \gset
SELECT t.as_document(:'req_001', '{
"protocol": { "name": "forrst", "version": "0.1.0" },
"id": "req_001",
"result": {
"charge_id": "ch_abc",
"status": "succeeded"
},
"extensions": [
{
"urn": "urn:forrst:ext:atomicLock",
"data": {
"key": "user:123",
"acquired": true,
"owner": "550e8400-e29b-41d4-a716-446655440000",
"scope": "function",
"expires_at": "2024-03-15T10:30:30Z"
}
}
]
}');
-- The document has no answer to this one.
SELECT $${
"protocol": { "name": "forrst", "version": "0.1.0" },
"id": "req_002",
"call": {
"function": "billing.generateReport",
"version": "1.0.0",
"arguments": {
"month": "2024-03"
}
},
"extensions": [
{
"urn": "urn:forrst:ext:atomicLock",
"options": {
"key": "billing:report",
"ttl": { "value": 1, "unit": "hour" },
"scope": "global",
"block": { "value": 5, "unit": "second" },
"auto_release": false
}
}
]
}$$ AS req_002 \gset
SELECT t.as_document(:'req_002', '{"protocol": {"name": "forrst", "version": "0.1.0"}, "id": "req_002", "result": "report of 2024-03", "extensions":
	[{"urn": "urn:forrst:ext:atomicLock", "data": {"key": "billing:report", "acquired": true, "owner": "550e8400-e29b-41d4-a716-446655440000", "scope": "global", "expires_at": "2024-03-15T10:30:30Z"}}]}');
SELECT acquired FROM lock_acquire('lock:payments.charge:user:123');
SELECT t.as_document(jsonb_set(:'req_001', '{id}', '"req_003"'), '{
"protocol": { "name": "forrst", "version": "0.1.0" },
"id": "req_003",
"result": null,
"errors": [{
"code": "LOCK_ACQUISITION_FAILED",
"message": "Unable to acquire lock",
"details": {
"key": "user:123",
"scope": "function",
"full_key": "lock:payments.charge:user:123"
}
}],
"extensions": [
{
"urn": "urn:forrst:ext:atomicLock",
"data": {
"key": "user:123",
"acquired": false
}
}
]
}');
SELECT t.as_document(jsonb_set(:'req_002', '{id}', '"req_004"'), '{
"protocol": { "name": "forrst", "version": "0.1.0" },
"id": "req_004",
"result": null,
"errors": [{
"code": "LOCK_TIMEOUT",
"message": "Lock acquisition timed out after 5 seconds",
"details": {
"key": "billing:report",
"scope": "global",
"full_key": "lock:billing:report",
"waited": { "value": 5, "unit": "second" }
}
}]
}');
SELECT t.as_document('{
"protocol": { "name": "forrst", "version": "0.1.0" },
"id": "req_release",
"call": {
"function": "urn:cline:forrst:ext:atomic-lock:fn:release",
"version": "1.0.0",
"arguments": {
"key": "lock:billing:report",
"owner": "550e8400-e29b-41d4-a716-446655440000"
}
}
}', '{
"protocol": { "name": "forrst", "version": "0.1.0" },
"id": "req_release",
"result": null,
"errors": [{
"code": "LOCK_OWNERSHIP_MISMATCH",
"message": "Lock is owned by a different process",
"details": {
"key": "lock:billing:report"
}
}]
}');
SELECT t.as_document(t.call('fn:force-release', '{"key": "lock:billing:report"}'), '{
"released": true,
"key": "lock:billing:report",
"forced": true
}', 'result');
-- The last example has options alone.
SELECT t.ask(t.call('payments.charge', '{}', '{ "key": "billing:monthly", "scope": "global", "ttl": { "value": 1, "unit": "hour" } }'));
SELECT status FROM lock_try_acquire('lock:billing:monthly', owner => 'me');

-- The other errors, and which are to be repeated
SELECT t.ask(t.call('fn:' || function, arguments)) FROM (VALUES
	(1, 'release', '{"key": "lock:nobody", "owner": "o"}'::jsonb), (2, 'force-release', '{"key": "lock:nobody"}'),
	(3, 'release', '{"key": "lock:billing:monthly", "owner": "me"}'), (4, 'release', '{"key": "lock:billing:monthly", "owner": "me"}'),
	(5, 'release', '{"key": "lock:billing:report", "owner": "o"}')) AS call (n, function, arguments) ORDER BY n;
SELECT code, api.lock_forrst_is_retryable(code) FROM unnest('{LOCK_ACQUISITION_FAILED,LOCK_TIMEOUT,LOCK_NOT_FOUND,LOCK_OWNERSHIP_MISMATCH,LOCK_ALREADY_RELEASED}'::text[]) code;
-- expires_at is the end of the lease, cut to seconds.
SELECT clock_timestamp() AS before \gset
SELECT (api.lock_forrst(t.call('payments.charge', '{}', '{"auto_release": false, "owner": "o", "ttl": {"value": 1.5, "unit": "hour"}}'))#>>'{extensions,0,data,expires_at}')::timestamptz AS expires_at \gset
SELECT date_trunc('second', expires_at) = :'expires_at', expires_at BETWEEN :'before'::timestamptz + '90 min' AND clock_timestamp() + '90 min' FROM lock_status('lock:payments.charge:k');
SELECT lock_release_all('o');

-- Requests that are no requests.  None leaves a lock, or so much as a claim.
CREATE TABLE t.malformed (n int GENERATED ALWAYS AS IDENTITY, path text[], value jsonb);
INSERT INTO t.malformed (path, value)
SELECT path::text[], value FROM (VALUES
	(1, '{protocol}'), (2, '{protocol,name}'), (3, '{id}'), (4, '{call}'), (5, '{call,function}'), (6, '{call,arguments}'), (7, '{extensions}'), (8, '{extensions,0}'), (9, '{extensions,0,urn}'),
	(10, '{extensions,0,options}'), (11, '{extensions,0,options,key}'), (12, '{extensions,0,options,ttl}'), (13, '{extensions,0,options,ttl,value}'), (14, '{extensions,0,options,ttl,unit}'),
	(15, '{extensions,0,options,block}'), (16, '{extensions,0,options,block,value}'), (17, '{extensions,0,options,scope}'), (18, '{extensions,0,options,owner}'), (19, '{extensions,0,options,auto_release}')) AS p (n, path),
	(VALUES (1, NULL::jsonb), (2, 'null'), (3, '""'), (4, '7'), (5, '{}'), (6, '[["function"]]')) AS v (m, value) ORDER BY n, m;
INSERT INTO t.malformed (path, value) VALUES
	('{protocol,name}', '"Forrst"'), ('{call,arguments}', 'true'), ('{extensions}', '[null]'), ('{extensions}', '["urn:forrst:ext:atomicLock"]'),
	('{extensions,0,urn}', '["urn:forrst:ext:atomicLock"]'), ('{extensions,0,options}', '[{"key": "k", "ttl": {"value": 30, "unit": "second"}}]'),
	('{extensions,0,options,scope}', '"Global"'), ('{extensions,0,options,auto_release}', '"false"'),
	('{extensions,0,options,ttl,value}', '-1'), ('{extensions,0,options,ttl,value}', '0'), ('{extensions,0,options,ttl,value}', '"NaN"'), ('{extensions,0,options,ttl,value}', '1e308'), ('{extensions,0,options,ttl,value}', '1e400'),
	('{extensions,0,options,ttl,value}', '1e14'), ('{extensions,0,options,ttl,value}', '1e-9'), ('{extensions,0,options,ttl,unit}', '"month"'), ('{extensions,0,options,ttl,unit}', '"seconds"'),
	('{extensions,0,options,block,value}', '-1'), ('{extensions,0,options,block,value}', '1e9'), ('{extensions,0,options,block,unit}', '"fortnight"'),
	('{extensions,0,options,key}', to_jsonb(repeat('k', 1100))), ('{extensions,0,options,owner}', to_jsonb(repeat('o', 300))),
	('{call,function}', '"billing.charge(jsonb)"'), ('{call,function}', '"payments.charge(jsonb); DROP TABLE billing.payment"'), ('{call,function}', '"urn:cline:forrst:ext:atomic-lock:fn:acquire"'),
	('{call,function}', '"urn:cline:forrst:ext:atomic-lock:fn:release\n"'), ('{call,function}', '"PAYMENTS.CHARGE"'), ('{call,function}', to_jsonb(repeat('f', 100000)));
CREATE FUNCTION t.malformed_answers(auto_release boolean, OUT changed text, OUT answer text) RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE
	good	jsonb := t.call('payments.charge', '{}', jsonb_build_object('owner', 'o', 'auto_release', auto_release, 'block', '{"value": 0, "unit": "second"}'::jsonb));
	bad		t.malformed;
	claims	bigint;
BEGIN
	FOR bad IN SELECT * FROM t.malformed ORDER BY n LOOP
		claims := (t.left_open()).claims;
		answer := left(t.ask(CASE WHEN bad.value IS NULL THEN good #- bad.path ELSE jsonb_set(good, bad.path, bad.value) END), 100);
		IF answer NOT LIKE '{%' AND (claims < (t.left_open()).claims OR EXISTS (SELECT FROM public.lock_held('o'))) THEN
			answer := answer || ' (BUT THERE IS A LOCK)';
		END IF;
		changed := bad.path::text || coalesce(' = ' || left(bad.value::text, 40), '');
		RETURN NEXT;
		PERFORM public.lock_try_force_release('lock:payments.charge:k', 'test');
	END LOOP;
END
$$;
SELECT answer, count(*), string_agg(changed, E'\n') AS changed FROM t.malformed_answers(true) GROUP BY answer ORDER BY answer COLLATE "C";
-- With a lease it is the same, but that ttl has the limit of any lease.
SELECT * FROM t.malformed_answers(false) EXCEPT SELECT * FROM t.malformed_answers(true) ORDER BY changed;
SELECT t.ask(t.call('payments.charge', '{}', jsonb_build_object('ttl', ttl::jsonb, 'auto_release', release))) FROM (VALUES ('{"value": 25, "unit": "hour"}'), ('{"value": 101e3, "unit": "day"}')) AS v (ttl), unnest('{t,f}'::boolean[]) release;
-- What is no request at all; two locks; what jsonb does not take
SELECT t.ask(request) FROM (VALUES (NULL::jsonb), ('null'), ('[]'), ('"forrst"'), ('{}')) AS r (request);
SELECT t.ask(jsonb_set(:'req_001', '{extensions,1}', :'req_001'::jsonb#>'{extensions,0}'));
SELECT t.code($$SELECT api.lock_forrst('{"id": "\u0000"}')$$), t.code($$SELECT api.lock_forrst(repeat('[', 100000)::jsonb)$$);
-- Other extensions are for others, and without ours there is no lock.
SELECT t.ask(:'req_001'::jsonb || '{"extensions": [{"urn": "urn:forrst:ext:tracing"}]}'), t.ask(:'req_001'::jsonb - 'extensions');
-- Arguments of the extension's own functions
SELECT function, arguments, t.ask(t.call('fn:' || function, arguments)) FROM unnest('{release,force-release,status}'::text[]) function,
	(VALUES (1, '{}'::jsonb), (2, '{"key": null, "owner": "o"}'), (3, '{"key": ["k"], "owner": "o"}'), (4, '{"key": "", "owner": "o"}'), (5, '{"key": "k", "owner": 1}'), (6, '{"key": "k", "owner": ""}'), (7, '{"key": "k"}')) AS a (n, arguments) ORDER BY function, n;

-- Keys with colons, and that of one function which is that of another
SELECT t.ask(t.call('payments.charge', '{}', '{"key": "a:b::c", "owner": "o", "auto_release": false}'));
SELECT k, (lock_status(k)).locked FROM unnest('{lock:payments.charge:a:b::c,lock:a:b::c}'::text[]) k;
SELECT t.ask(t.call('payments.charge', '{}', '{"key": "payments.charge:a:b::c", "scope": "global"}'));
SELECT lock_release_all('o');

-- What can be registered: functions, by qualified names
SELECT t.code(format('INSERT INTO api.forrst_function VALUES (''f'', %L)', signature)), signature
FROM unnest(ARRAY['charge(jsonb)', 'billing.charge', 'billing.charge(json)', 'x.billing.charge(jsonb)', 'billing.charge(jsonb); DROP TABLE billing.payment', 'billing.charge(jsonb); DROP FUNCTION x(jsonb)',
	'billing."charge(jsonb)', 'billing.charge(jsonb,jsonb)', '(jsonb)', '', NULL]) signature;
CREATE PROCEDURE billing.a_procedure(jsonb) LANGUAGE sql AS 'SELECT 1';
CREATE AGGREGATE billing.an_aggregate(jsonb) (SFUNC = pg_catalog.jsonb_concat, STYPE = jsonb);
CREATE FUNCTION billing.a_set(jsonb) RETURNS SETOF jsonb LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION billing.of_two(jsonb, int) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION billing.a_text(jsonb) RETURNS text LANGUAGE sql AS 'SELECT ''text''';
CREATE FUNCTION billing."Odd ""%s"" $1;"(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION billing.has_default(jsonb, int DEFAULT 1) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION billing.a_null(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb';
INSERT INTO api.forrst_function SELECT f, 'billing.' || f || '(jsonb)' FROM unnest('{a_procedure,an_aggregate,a_set,of_two,has_default,a_text,a_null,not_there}'::text[]) f
	UNION ALL VALUES ('odd', 'billing."Odd ""%s"" $1;"(jsonb)'), ('no schema', 'nowhere.f(jsonb)');
-- A temporary function is another one for each caller.
SELECT t.code(format('INSERT INTO api.forrst_function VALUES (''temp'', %L)', s)) FROM unnest('{pg_temp.f(jsonb),"\"pg_temp\".f(jsonb)","pg_Temp_3 . f(jsonb)"}'::text[]) s;
SELECT name, t.ask(t.call(name, '{"an": "argument"}', '{}')) FROM api.forrst_function WHERE name NOT LIKE '%.%' ORDER BY name COLLATE "C";

-- What a registered function does: its writes, settings, locks and errors
CREATE FUNCTION billing.does(arguments jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	answer	jsonb;
BEGIN
	INSERT INTO billing.payment VALUES (1);
	FOR i IN 0 .. jsonb_array_length(arguments->'sql') - 1 LOOP
		IF arguments->'sql'->>i LIKE '%to_jsonb%' THEN
			EXECUTE arguments->'sql'->>i INTO answer;
		ELSE
			EXECUTE arguments->'sql'->>i;
		END IF;
	END LOOP;
	RETURN answer;
END
$$;
INSERT INTO api.forrst_function VALUES ('does', 'billing.does(jsonb)');
CREATE FUNCTION t.does(lock jsonb, VARIADIC sql text[]) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$SELECT t.call('does', jsonb_build_object('sql', to_jsonb(sql)), lock)$$;
-- The answer, then in a statement of its own: is it locked, what was written, and settings
\set after 'SELECT (lock_status(''lock:does:k'')).locked, (SELECT count(*) FROM billing.payment) AS written, current_setting(''atomic_lock.owner'') AS owner, current_setting(''search_path'') AS search_path; DELETE FROM billing.payment;'
SET search_path = t, public;
SET atomic_lock.owner = 'before';
SELECT t.ask(t.does('{"owner": "o"}', $$SELECT to_jsonb(ARRAY[current_setting('atomic_lock.owner'), current_setting('search_path'), lock_is_held('lock:does:k')::text, (lock_status('lock:does:k')).owner])$$)); :after
SELECT t.ask(t.does(NULL, $$SELECT to_jsonb(current_setting('atomic_lock.owner'))$$)); :after
-- Errors and exceptions: what it wrote is undone, the lock released
SELECT t.ask(t.does('{}', $$SELECT 1/0$$)); :after
SELECT t.ask(t.does('{}', $$DO 'BEGIN RAISE ''no such invoice''; END'$$)); :after
SELECT t.ask(t.does('{}', $$DO 'BEGIN RAISE out_of_memory; END'$$)); :after
SELECT t.ask(t.does('{}', $$DO 'BEGIN RAISE ''mine'' USING ERRCODE = ''LK003''; END'$$)); :after
SELECT t.ask(t.does('{}', 'COMMIT')); :after
SELECT t.ask(t.does('{}', $$DO 'BEGIN ROLLBACK; END'$$)); :after
SELECT t.ask(t.does('{"owner": "o", "auto_release": false}', $$SELECT 1/0$$)); :after
-- The next call with that owner has it, too, and does not release what it has not taken.
SELECT t.ask(t.does('{"owner": "o"}', 'SELECT to_jsonb(1)')); :after
SELECT t.ask(t.does('{"owner": "o"}', $$SELECT 1/0$$)); :after
SELECT lock_release_all('o');
-- Those are raised, so that all is undone.
SELECT t.raises(format('SELECT t.ask(%L)', t.does('{}', $$DO 'BEGIN RAISE serialization_failure USING MESSAGE = ''again''; END'$$))); :after
SELECT t.raises(format('SELECT t.ask(%L)', t.does('{"auto_release": false}', $$DO 'BEGIN RAISE deadlock_detected USING MESSAGE = ''again''; END'$$))); :after
\set VERBOSITY sqlstate
SELECT t.ask(t.does('{}', $$DO 'BEGIN ASSERT false; END'$$)); :after
SET statement_timeout = '50ms'\; SELECT t.ask(t.does('{}', 'SELECT pg_sleep(300)'));
\set VERBOSITY default
:after
-- What it does to its settings
SELECT t.ask(t.does('{}', $$SELECT set_config('atomic_lock.owner', 'mine', true)$$, $$SELECT to_jsonb(set_config('search_path', 'mallory, pg_catalog', true))$$)); :after
SELECT t.ask(t.does('{}', 'RESET atomic_lock.owner', 'SELECT to_jsonb(current_setting(''atomic_lock.owner''))'));
-- That is what RESET does in any function.
SELECT current_setting('atomic_lock.owner') AS owner;
-- What it does to its lock
SELECT t.ask(t.does('{"owner": "o"}', $$SELECT to_jsonb(lock_release('lock:does:k', 'o'))$$)); :after
SELECT t.ask(t.does('{"owner": "o"}', $$SELECT to_jsonb((lock_acquire('lock:does:k', '1 hour', 'o')).status)$$)); :after
SELECT t.ask(t.does('{"owner": "o", "auto_release": false}', $$SELECT to_jsonb((lock_transfer('lock:does:k', 'o', 'heir')).status)$$)); :after
SELECT lock_release_all('heir');
-- A call within the call: without its owner it is refused, at once or after a wait; with it, it leaves the lock to the outer one.
SELECT t.ask(t.does('{}', format('SELECT api.lock_forrst(%L)', t.does('{}', 'SELECT to_jsonb(1)')))) AS ask \gset
SELECT :'ask'::jsonb->'errors'->0->'code' AS code; :after
SELECT t.ask(t.does('{}', format('SELECT api.lock_forrst(%L)', t.does('{"block": {"value": 20, "unit": "millisecond"}}', 'SELECT to_jsonb(1)')))) AS ask \gset
SELECT :'ask'::jsonb->'errors'->0->'code' AS code; :after
SELECT t.ask(t.does('{"owner": "o"}', format('SELECT api.lock_forrst(%L)', t.does('{"owner": "o"}', 'SELECT to_jsonb(1)')), $$SELECT to_jsonb(lock_is_held('lock:does:k'))$$)); :after

-- Guards let the function write, and refuse others, and it where it has another key.
CREATE TABLE billing.invoice (id int PRIMARY KEY, n int);
INSERT INTO billing.invoice VALUES (1, 0), (2, 0);
SELECT lock_protect('billing.invoice', 'lock:does:{id}');
SELECT t.ask(t.does('{"key": "1"}', 'UPDATE billing.invoice SET n = n + 1 WHERE id = 1 RETURNING to_jsonb(n)')), t.ask(t.does('{"key": "1"}', 'UPDATE billing.invoice SET n = n + 1 WHERE id = 2 RETURNING to_jsonb(n)')),
	t.ask(t.does(NULL, 'UPDATE billing.invoice SET n = n + 1 WHERE id = 1 RETURNING to_jsonb(n)'));
SELECT * FROM billing.invoice ORDER BY id;
RESET search_path;
RESET atomic_lock.owner;
DELETE FROM billing.payment;

-- Nothing in the caller's path or temporary schema is used, whatever it is called.
CREATE FUNCTION t.answers() RETURNS text LANGUAGE plpgsql SET search_path = public, pg_catalog AS $$
DECLARE
	request	jsonb;
	answers	text := '';
BEGIN
	FOREACH request IN ARRAY ARRAY[t.call('payments.charge', '{}', '{"owner": "o"}'), t.call('payments.charge', '{}', '{"owner": "o", "auto_release": false, "scope": "global"}'),
		t.call('payments.charge', '{}', '{"owner": "p", "auto_release": false, "scope": "global"}'), t.call('payments.charge', '{}', '{"owner": "p", "scope": "global", "block": {"value": 1, "unit": "millisecond"}}'),
		t.call('fn:status', '{"key": "lock:k", "owner": "o"}'), t.call('fn:release', '{"key": "lock:k", "owner": "p"}'), t.call('fn:release', '{"key": "lock:k", "owner": "o"}'), t.call('fn:force-release', '{"key": "lock:k"}'),
		t.call('fails', '{}', '{}'), t.call('fails', '{}'), t.call('nobody', '{}', '{}'), t.call('payments.charge', '{}', '{"ttl": 1}')] LOOP
		PERFORM set_config('search_path', current_setting('t.path'), true);
		request := api.lock_forrst(request);
		PERFORM pg_catalog.set_config('search_path', 'public, pg_catalog', true);
		answers := answers || t.fixed(request) || E'\n';
	END LOOP;
	RETURN answers;
END
$$;
CREATE FUNCTION billing.fails(jsonb) RETURNS jsonb LANGUAGE plpgsql AS 'BEGIN RAISE division_by_zero; END';
INSERT INTO api.forrst_function VALUES ('fails', 'billing.fails(jsonb)');
SET t.path = 'pg_catalog';
SELECT t.answers() AS answers \gset
CREATE TEMP TABLE forrst_function (name text, signature text);
CREATE TEMP TABLE pg_proc (oid oid);
CREATE FUNCTION pg_temp.charge(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT to_jsonb(mallory.captured())';
SET t.path = 'mallory, pg_temp, pg_catalog';
SELECT t.answers() = :'answers' AS same, length(:'answers') > 1000 AS much;
-- ... and who calls what is planted, is told.
SET search_path = mallory, pg_catalog;
SELECT concat_ws('a', 'b', 'c');
RESET search_path;

-- Nor is what somebody may make in the schema of the extension.
SELECT format('CREATE FUNCTION public.%s RETURNS boolean LANGUAGE sql AS $f$SELECT mallory.captured()$f$', f)
FROM unnest(ARRAY['lock_try_acquire(key text, ttl text, owner text, wait interval, lifetime text)', 'lock_try_acquire(key text, ttl interval, owner text, wait interval)',
	'lock_try_acquire(text, text, text, text, interval, text, jsonb, text, integer)', 'lock_try_release(text, anyelement)', 'lock_status(anyelement)',
	'lock_is_held(text, anyelement)', 'lock_try_force_release(text, anyelement)', 'lock_try_force_release(text, text)']) f \gexec
DISCARD PLANS;
SET t.path = 'pg_catalog';
SELECT t.answers() = :'answers' AS same;
SELECT t.raises($$SELECT lock_try_acquire('k', NULL, 'o', wait => '0', lifetime => 'transaction')$$);
SELECT format('DROP FUNCTION %s', oid::regprocedure) FROM pg_catalog.pg_proc WHERE pronamespace = 'public'::regnamespace AND prosrc = 'SELECT mallory.captured()' ORDER BY oid \gexec

-- Rights: those of the caller, for the lock as for the function
DROP ROLE IF EXISTS regress_al_user, regress_al_stranger;
CREATE ROLE regress_al_user;
CREATE ROLE regress_al_stranger;
SELECT lock_grant_access('regress_al_user', 'user');
INSERT INTO api.forrst_function VALUES ('secret', 'billing.secret(jsonb)');
CREATE FUNCTION billing.secret(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
REVOKE EXECUTE ON FUNCTION billing.secret FROM PUBLIC;
SELECT (lock_acquire('lock:taken', '1 hour', 'another')).acquired;
SET ROLE regress_al_user;
SELECT t.ask(t.does('{}', 'SELECT to_jsonb(current_user)')), t.ask(t.call('secret', '{}', '{}')), t.ask(t.does('{}', 'CREATE TABLE billing.mine ()'));
SELECT t.code(sql), sql FROM unnest(ARRAY['INSERT INTO api.forrst_function VALUES (''mine'', ''pg_temp.mine(jsonb)'')', 'UPDATE api.forrst_function SET signature = ''pg_temp.mine(jsonb)''', 'DELETE FROM api.forrst_function', 'TRUNCATE api.forrst_function',
	'CREATE FUNCTION api.mine() RETURNS int LANGUAGE sql AS ''SELECT 1''', 'ALTER FUNCTION api.lock_forrst(jsonb) SET search_path = public']) sql;
SELECT t.ask(t.call('fn:force-release', '{"key": "lock:taken"}'));
-- An owner is shown to who presents it, and a wrong one is told no more than the extension tells.
SELECT t.ask(t.call('fn:status', '{"key": "lock:taken"}')) LIKE '%another%', t.ask(t.call('fn:status', '{"key": "lock:taken", "owner": "guess"}')) LIKE '%owner%', t.ask(t.call('fn:status', '{"key": "lock:taken", "owner": "another"}')) LIKE '%another%';
SELECT t.ask(t.call('fn:release', '{"key": "lock:taken", "owner": "guess"}')), lock_try_release('lock:taken', 'guess');
RESET ROLE;
SET ROLE regress_al_stranger;
SELECT t.ask(t.does('{}', 'SELECT to_jsonb(1)')), t.ask(t.call('fn:status', '{"key": "lock:taken"}')), t.ask(t.does(NULL, 'SELECT to_jsonb(current_user)'));
RESET ROLE;
-- What a policy refuses, in its words
SELECT lock_set_policy('lock:long', max_ttl => '1 min'), lock_set_policy('lock:held', min_hold => '1 min'), lock_set_policy('lock:ours', roles => '{regress_al_stranger}');
SET ROLE regress_al_user;
SELECT t.ask(t.call('payments.charge', '{}', jsonb_build_object('scope', 'global', 'key', k, 'auto_release', k <> 'long', 'ttl', '{"value": 1, "unit": "hour"}'::jsonb))) FROM unnest('{long,held,ours}'::text[]) k;
RESET ROLE;
-- All else is raised.
SELECT lock_set_policy('lock:few', max_keys_per_owner => 1);
SELECT t.ask(t.call('payments.charge', '{}', '{"scope": "global", "key": "few-1", "owner": "o", "auto_release": false}'));
SELECT t.code(format('SELECT t.ask(%L)', t.call('payments.charge', '{}', '{"scope": "global", "key": "few-2", "owner": "o"}')));
BEGIN READ ONLY;
SELECT t.ask(t.call('payments.charge', '{}')), t.code(format('SELECT t.ask(%L)', t.call('payments.charge', '{}', '{}')));
COMMIT;
SET client_min_messages = warning;
DROP SCHEMA api, billing, mallory CASCADE;
DROP OWNED BY regress_al_user, regress_al_stranger;
DROP ROLE regress_al_user, regress_al_stranger;
