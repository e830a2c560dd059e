\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\set include :srcdir '/sql/include/forrst.sql'
\i :setup
-- sql/compat/forrst.sql: the atomic lock extension of the Forrst protocol
--
-- Properties: each example message in the protocol's document gets the answer that the document
-- shows. The answer to a malformed request says what is wrong, and no lock is left. Only a
-- function with a qualified name can be registered.
--
-- Turns red when: a message, code or field differs from the document; a check comes after the
-- lock, or is missing.
--
-- compat_forrst_calls tests the registered functions and their rights.

-- The document's examples, in its order: results of its functions
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
-- The document shows no answer to this request.
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
-- The last example shows only the options.
SELECT t.ask(t.call('payments.charge', '{}', '{ "key": "billing:monthly", "scope": "global", "ttl": { "value": 1, "unit": "hour" } }'));
SELECT status FROM lock_try_acquire('lock:billing:monthly', owner => 'me');

-- The other errors, and which of them may be retried
SELECT t.ask(t.call('fn:' || function, arguments)) FROM (VALUES
	(1, 'release', '{"key": "lock:nobody", "owner": "o"}'::jsonb), (2, 'force-release', '{"key": "lock:nobody"}'),
	(3, 'release', '{"key": "lock:billing:monthly", "owner": "me"}'), (4, 'release', '{"key": "lock:billing:monthly", "owner": "me"}'),
	(5, 'release', '{"key": "lock:billing:report", "owner": "o"}')) AS call (n, function, arguments) ORDER BY n;
SELECT code, api.lock_forrst_is_retryable(code) FROM unnest('{LOCK_ACQUISITION_FAILED,LOCK_TIMEOUT,LOCK_NOT_FOUND,LOCK_OWNERSHIP_MISMATCH,LOCK_ALREADY_RELEASED}'::text[]) code;
-- expires_at is the end of the lease, truncated to seconds.
SELECT clock_timestamp() AS before \gset
SELECT (api.lock_forrst(t.call('payments.charge', '{}', '{"auto_release": false, "owner": "o", "ttl": {"value": 1.5, "unit": "hour"}}'))#>>'{extensions,0,data,expires_at}')::timestamptz AS expires_at \gset
SELECT date_trunc('second', expires_at) = :'expires_at', expires_at BETWEEN :'before'::timestamptz + '90 min' AND clock_timestamp() + '90 min' FROM lock_status('lock:payments.charge:k');
SELECT lock_release_all('o');

-- Malformed requests. None leaves a lock or a claim.
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
-- The answers are the same with a lease, except that ttl has the limit of any lease.
SELECT * FROM t.malformed_answers(false) EXCEPT SELECT * FROM t.malformed_answers(true) ORDER BY changed;
SELECT t.ask(t.call('payments.charge', '{}', jsonb_build_object('ttl', ttl::jsonb, 'auto_release', release))) FROM (VALUES ('{"value": 25, "unit": "hour"}'), ('{"value": 101e3, "unit": "day"}')) AS v (ttl), unnest('{t,f}'::boolean[]) release;
-- Values that are no request at all; two locks in one request; text that is no jsonb
SELECT t.ask(request) FROM (VALUES (NULL::jsonb), ('null'), ('[]'), ('"forrst"'), ('{}')) AS r (request);
SELECT t.ask(jsonb_set(:'req_001', '{extensions,1}', :'req_001'::jsonb#>'{extensions,0}'));
SELECT t.code($$SELECT api.lock_forrst('{"id": "\u0000"}')$$), t.code($$SELECT api.lock_forrst(repeat('[', 100000)::jsonb)$$);
-- Other extensions are ignored, and without ours no lock is taken.
SELECT t.ask(:'req_001'::jsonb || '{"extensions": [{"urn": "urn:forrst:ext:tracing"}]}'), t.ask(:'req_001'::jsonb - 'extensions');
-- Arguments of the extension's own functions
SELECT function, arguments, t.ask(t.call('fn:' || function, arguments)) FROM unnest('{release,force-release,status}'::text[]) function,
	(VALUES (1, '{}'::jsonb), (2, '{"key": null, "owner": "o"}'), (3, '{"key": ["k"], "owner": "o"}'), (4, '{"key": "", "owner": "o"}'), (5, '{"key": "k", "owner": 1}'), (6, '{"key": "k", "owner": ""}'), (7, '{"key": "k"}')) AS a (n, arguments) ORDER BY function, n;

-- Keys with colons: the global key of one call is the function key of another
SELECT t.ask(t.call('payments.charge', '{}', '{"key": "a:b::c", "owner": "o", "auto_release": false}'));
SELECT k, (lock_status(k)).locked FROM unnest('{lock:payments.charge:a:b::c,lock:a:b::c}'::text[]) k;
SELECT t.ask(t.call('payments.charge', '{}', '{"key": "payments.charge:a:b::c", "scope": "global"}'));
SELECT lock_release_all('o');

-- Only functions with qualified names can be registered
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
-- A temporary function would be a different one for each caller.
SELECT t.code(format('INSERT INTO api.forrst_function VALUES (''temp'', %L)', s)) FROM unnest('{pg_temp.f(jsonb),"\"pg_temp\".f(jsonb)","pg_Temp_3 . f(jsonb)"}'::text[]) s;
SELECT name, t.ask(t.call(name, '{"an": "argument"}', '{}')) FROM api.forrst_function WHERE name NOT LIKE '%.%' ORDER BY name COLLATE "C";
SET client_min_messages = warning;
DROP SCHEMA api, billing, mallory CASCADE;
