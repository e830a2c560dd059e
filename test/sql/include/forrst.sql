-- Included by tests of sql/compat/forrst.sql: the script, created among hostile functions and
-- operators, requests, and a registered function.

-- Each of these objects raises an error if it is used.
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
-- The script does not use them either.
\set forrst :srcdir '/../sql/compat/forrst.sql'
\set schema api
DROP SCHEMA IF EXISTS api, billing CASCADE;
SET search_path = mallory, pg_catalog;
\i :forrst
\set ON_ERROR_STOP off
RESET search_path;

-- Times and generated owners differ from run to run. A time must have this format, an owner
-- must be a UUID of version 4, and the rest of half an hour must be less than that.
CREATE FUNCTION t.fixed(message jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
	SELECT regexp_replace(regexp_replace(regexp_replace(message::text,
		'"[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9]Z"', '"<time>"', 'g'),
		'"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"', '"<uuid v4>"', 'g'),
		'"ttl_remaining": (1[0-7][0-9]{2}|[1-9][0-9]{0,2}|0)(?=[,}])', '"ttl_remaining": "<less than 1800>"')::jsonb
$$;
-- The differences from the document, if any
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
-- In short: the result, or the code and message of the error
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
