\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\set include :srcdir '/sql/include/forrst.sql'
\i :setup
-- sql/compat/forrst.sql: the functions that lock_forrst calls, and the rights of a call
--
-- Properties:
-- - The registered function runs with the caller's rights, the caller's search_path and the
--   lock's owner.
-- - The function may change its lock, its settings or its transaction: lock_forrst still
--   releases the lock, restores the settings, and leaves nothing of a failed call.
-- - Cancels, assertion failures, serialization failures and deadlocks are raised.
-- - No object in the caller's search_path, or in the schema of the extension, is used in place
--   of PostgreSQL's or the extension's.
-- - A call releases only a lock that it acquired.
--
-- Turns red when: WHEN OTHERS becomes WHEN QUERY_CANCELED OR OTHERS; the owner or the path is
-- not restored; a function or operator used in the call is not qualified.

-- A registered function whose writes, settings, locks and errors each test chooses
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
-- Shown after each answer, in a statement of its own: whether the key is locked, the rows
-- written, and settings
\set after 'SELECT (lock_status(''lock:does:k'')).locked, (SELECT count(*) FROM billing.payment) AS written, current_setting(''atomic_lock.owner'') AS owner, current_setting(''search_path'') AS search_path; DELETE FROM billing.payment;'
SET search_path = t, public;
SET atomic_lock.owner = 'before';
SELECT t.ask(t.does('{"owner": "o"}', $$SELECT to_jsonb(ARRAY[current_setting('atomic_lock.owner'), current_setting('search_path'), lock_is_held('lock:does:k')::text, (lock_status('lock:does:k')).owner])$$)); :after
SELECT t.ask(t.does(NULL, $$SELECT to_jsonb(current_setting('atomic_lock.owner'))$$)); :after
-- After an error or exception, the function's writes are undone and the lock is released
SELECT t.ask(t.does('{}', $$SELECT 1/0$$)); :after
SELECT t.ask(t.does('{}', $$DO 'BEGIN RAISE ''no such invoice''; END'$$)); :after
SELECT t.ask(t.does('{}', $$DO 'BEGIN RAISE out_of_memory; END'$$)); :after
SELECT t.ask(t.does('{}', $$DO 'BEGIN RAISE ''mine'' USING ERRCODE = ''LK003''; END'$$)); :after
SELECT t.ask(t.does('{}', 'COMMIT')); :after
SELECT t.ask(t.does('{}', $$DO 'BEGIN ROLLBACK; END'$$)); :after
SELECT t.ask(t.does('{"owner": "o", "auto_release": false}', $$SELECT 1/0$$)); :after
-- The next call with that owner shares the existing lock, and does not release what it did not
-- acquire.
SELECT t.ask(t.does('{"owner": "o"}', 'SELECT to_jsonb(1)')); :after
SELECT t.ask(t.does('{"owner": "o"}', $$SELECT 1/0$$)); :after
SELECT lock_release_all('o');
-- These errors are raised, so that everything is undone.
SELECT t.raises(format('SELECT t.ask(%L)', t.does('{}', $$DO 'BEGIN RAISE serialization_failure USING MESSAGE = ''again''; END'$$))); :after
SELECT t.raises(format('SELECT t.ask(%L)', t.does('{"auto_release": false}', $$DO 'BEGIN RAISE deadlock_detected USING MESSAGE = ''again''; END'$$))); :after
\set VERBOSITY sqlstate
SELECT t.ask(t.does('{}', $$DO 'BEGIN ASSERT false; END'$$)); :after
SET statement_timeout = '50ms'\; SELECT t.ask(t.does('{}', 'SELECT pg_sleep(300)'));
\set VERBOSITY default
:after
-- The function changes its settings
SELECT t.ask(t.does('{}', $$SELECT set_config('atomic_lock.owner', 'mine', true)$$, $$SELECT to_jsonb(set_config('search_path', 'mallory, pg_catalog', true))$$)); :after
SELECT t.ask(t.does('{}', 'RESET atomic_lock.owner', 'SELECT to_jsonb(current_setting(''atomic_lock.owner''))'));
-- RESET has this effect in any function.
SELECT current_setting('atomic_lock.owner') AS owner;
-- The function changes its lock
SELECT t.ask(t.does('{"owner": "o"}', $$SELECT to_jsonb(lock_release('lock:does:k', 'o'))$$)); :after
SELECT t.ask(t.does('{"owner": "o"}', $$SELECT to_jsonb((lock_acquire('lock:does:k', '1 hour', 'o')).status)$$)); :after
SELECT t.ask(t.does('{"owner": "o", "auto_release": false}', $$SELECT to_jsonb((lock_transfer('lock:does:k', 'o', 'heir')).status)$$)); :after
SELECT lock_release_all('heir');
-- A nested call: without the outer owner it is refused, at once or after a wait; with that
-- owner it succeeds, and leaves the lock to the outer call.
SELECT t.ask(t.does('{}', format('SELECT api.lock_forrst(%L)', t.does('{}', 'SELECT to_jsonb(1)')))) AS ask \gset
SELECT :'ask'::jsonb->'errors'->0->'code' AS code; :after
SELECT t.ask(t.does('{}', format('SELECT api.lock_forrst(%L)', t.does('{"block": {"value": 20, "unit": "millisecond"}}', 'SELECT to_jsonb(1)')))) AS ask \gset
SELECT :'ask'::jsonb->'errors'->0->'code' AS code; :after
SELECT t.ask(t.does('{"owner": "o"}', format('SELECT api.lock_forrst(%L)', t.does('{"owner": "o"}', 'SELECT to_jsonb(1)')), $$SELECT to_jsonb(lock_is_held('lock:does:k'))$$)); :after

-- Guards let the function write with the right key, and refuse other writers and other keys.
CREATE TABLE billing.invoice (id int PRIMARY KEY, n int);
INSERT INTO billing.invoice VALUES (1, 0), (2, 0);
SELECT lock_protect('billing.invoice', 'lock:does:{id}');
SELECT t.ask(t.does('{"key": "1"}', 'UPDATE billing.invoice SET n = n + 1 WHERE id = 1 RETURNING to_jsonb(n)')), t.ask(t.does('{"key": "1"}', 'UPDATE billing.invoice SET n = n + 1 WHERE id = 2 RETURNING to_jsonb(n)')),
	t.ask(t.does(NULL, 'UPDATE billing.invoice SET n = n + 1 WHERE id = 1 RETURNING to_jsonb(n)'));
SELECT * FROM billing.invoice ORDER BY id;
RESET search_path;
RESET atomic_lock.owner;
DELETE FROM billing.payment;

-- No object in the caller's path or temporary schema is used, whatever its name.
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
-- ... although these objects do raise when something calls them.
SET search_path = mallory, pg_catalog;
SELECT concat_ws('a', 'b', 'c');
RESET search_path;

-- Functions planted in the schema of the extension are not used either.
SELECT format('CREATE FUNCTION public.%s RETURNS boolean LANGUAGE sql AS $f$SELECT mallory.captured()$f$', f)
FROM unnest(ARRAY['lock_try_acquire(key text, ttl text, owner text, wait interval, lifetime text)', 'lock_try_acquire(key text, ttl interval, owner text, wait interval)',
	'lock_try_acquire(text, text, text, text, interval, text, jsonb, text, integer)', 'lock_try_release(text, anyelement)', 'lock_status(anyelement)',
	'lock_is_held(text, anyelement)', 'lock_try_force_release(text, anyelement)', 'lock_try_force_release(text, text)']) f \gexec
DISCARD PLANS;
SET t.path = 'pg_catalog';
SELECT t.answers() = :'answers' AS same;
SELECT t.raises($$SELECT lock_try_acquire('k', NULL, 'o', wait => '0', lifetime => 'transaction')$$);
SELECT format('DROP FUNCTION %s', oid::regprocedure) FROM pg_catalog.pg_proc WHERE pronamespace = 'public'::regnamespace AND prosrc = 'SELECT mallory.captured()' ORDER BY oid \gexec

-- Both the lock and the function need the caller's rights.
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
-- An owner is shown only to a caller that presents it; a wrong owner learns no more than from
-- the extension.
SELECT t.ask(t.call('fn:status', '{"key": "lock:taken"}')) LIKE '%another%', t.ask(t.call('fn:status', '{"key": "lock:taken", "owner": "guess"}')) LIKE '%owner%', t.ask(t.call('fn:status', '{"key": "lock:taken", "owner": "another"}')) LIKE '%another%';
SELECT t.ask(t.call('fn:release', '{"key": "lock:taken", "owner": "guess"}')), lock_try_release('lock:taken', 'guess');
RESET ROLE;
SET ROLE regress_al_stranger;
SELECT t.ask(t.does('{}', 'SELECT to_jsonb(1)')), t.ask(t.call('fn:status', '{"key": "lock:taken"}')), t.ask(t.does(NULL, 'SELECT to_jsonb(current_user)'));
RESET ROLE;
-- Refusals by a policy, in the policy's words
SELECT lock_set_policy('lock:long', max_ttl => '1 min'), lock_set_policy('lock:held', min_hold => '1 min'), lock_set_policy('lock:ours', roles => '{regress_al_stranger}');
SET ROLE regress_al_user;
SELECT t.ask(t.call('payments.charge', '{}', jsonb_build_object('scope', 'global', 'key', k, 'auto_release', k <> 'long', 'ttl', '{"value": 1, "unit": "hour"}'::jsonb))) FROM unnest('{long,held,ours}'::text[]) k;
RESET ROLE;
-- All other errors are raised.
SELECT lock_set_policy('lock:few', max_keys_per_role => 1);
SELECT t.ask(t.call('payments.charge', '{}', '{"scope": "global", "key": "few-1", "owner": "o", "auto_release": false}'));
SELECT t.code(format('SELECT t.ask(%L)', t.call('payments.charge', '{}', '{"scope": "global", "key": "few-2", "owner": "o"}')));
BEGIN READ ONLY;
SELECT t.ask(t.call('payments.charge', '{}')), t.code(format('SELECT t.ask(%L)', t.call('payments.charge', '{}', '{}')));
COMMIT;
SET client_min_messages = warning;
DROP SCHEMA api, billing, mallory CASCADE;
DROP OWNED BY regress_al_user, regress_al_stranger;
DROP ROLE regress_al_user, regress_al_stranger;
