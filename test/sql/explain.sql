\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- lock_explain: what a person wants to know about a key, and what to do about it
--
-- Properties: the text names the state, the first holder, the line and the policies of the key;
-- it has the statement that ends it, or takes it, or asks for it, by the levels of the caller,
-- on one line, and the statement works. With short keys and labels, no line has more than 80
-- columns. Only level monitor sees labels of further people and fencing tokens; nobody sees an
-- owner. The function writes nothing.
--
-- iso_explain.spec tests keys of other transactions, waiters_and_places.pl tests waiters, and
-- hot_standby.pl tests standbys.
--
-- Turns red when: the text tells a wrong state or moment; it shows an owner, or to level user a
-- further label or a token; a key or label gets a line of its own; a statement does not work, or
-- acts on another key.
DROP ROLE IF EXISTS regress_al_user, regress_al_monitor, regress_al_admin, regress_al_none, regress_al_team;
CREATE ROLE regress_al_user;
CREATE ROLE regress_al_monitor;
CREATE ROLE regress_al_admin;
CREATE ROLE regress_al_none;
CREATE ROLE regress_al_team;
SELECT lock_grant_access('regress_al_user', 'user'), lock_grant_access('regress_al_monitor', 'monitor'), lock_grant_access('regress_al_admin', 'user'), lock_grant_access('regress_al_admin', 'admin');
SET application_name = 'order desk';
-- The text, without what differs from run to run. It checks the columns, and looks for owners.
CREATE FUNCTION t.explain(k text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	answer text := public.lock_explain(k);
	line text;
BEGIN
	IF answer ~ '-1\M' THEN
		RAISE 'an owner is shown: %', answer;
	END IF;
	FOREACH line IN ARRAY string_to_array(answer, E'\n') LOOP
		IF length(line) > 80 AND length(k) < 20 THEN
			RAISE 'more than 80 columns: %', line;
		END IF;
		line := regexp_replace(replace(line, format('"%s"', session_user), '"me"'), 'rocess ' || pg_backend_pid(), 'rocess <pid>');
		-- Where waiters poll, their number is not known.
		line := regexp_replace(replace(line, 'Places in line: 0.  This server does not know about calls that wait.', 'Nobody waits for it.'),
			'^(Places in line: [0-9]+[.])  This server does not know about calls that wait.', 'Calls that wait for it: 0.  \1');
		RETURN NEXT regexp_replace(regexp_replace(regexp_replace(t.mask(line), '[0-9]+ (d [0-9]+ h|h [0-9]+ min|min [0-9]+ s|s)\M', '<span>', 'g'), 'token is [0-9]+|token [0-9]+', 'token <n>'), ''', [0-9]+\);', ''', <n>);');
	END LOOP;
END
$$;
-- Runs the statement in the text that has a word before its arguments, and returns its first
-- column. A statement begins in the first column.
CREATE FUNCTION t.run(k text, word text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	statement pg_catalog.text;
	answer pg_catalog.text;
BEGIN
	SELECT line INTO STRICT statement FROM regexp_split_to_table(public.lock_explain(k), E'\n') line WHERE line ~ ('^(SELECT|DELETE)[^(]*' || word);
	IF statement ~ '^DELETE' THEN
		EXECUTE rtrim(statement, ';') || ' RETURNING holder' INTO STRICT answer;
	ELSE
		EXECUTE statement INTO STRICT answer;
	END IF;
	RETURN answer;
END
$$;
-- The text for each of the levels
CREATE FUNCTION t.for_all(k text) RETURNS TABLE (level text, line text) LANGUAGE plpgsql AS $$
BEGIN
	FOREACH level IN ARRAY '{user,monitor,admin}'::text[] LOOP
		EXECUTE 'SET ROLE regress_al_' || level;
		FOR line IN SELECT * FROM t.explain(k) LOOP
			RETURN NEXT;
		END LOOP;
		RESET ROLE;
	END LOOP;
END
$$;
-- The owner of "who" is who-1.
CREATE FUNCTION t.take(k text, who text, mode text DEFAULT 'exclusive', lifetime text DEFAULT 'lease') RETURNS text LANGUAGE sql AS $$
	SELECT status FROM public.lock_try_acquire(k, CASE lifetime WHEN 'lease' THEN interval '1 hour' END, lower(who) || '-1', mode, holder => who, lifetime => lifetime)
$$;

--
-- States, and what each level may do
--
-- Free
SELECT * FROM t.for_all('k');
SET ROLE regress_al_user;
SELECT t.run('k', 'lock_acquire');
RESET ROLE;
SELECT holder FROM lock_status('k');
SELECT t.run('k', 'force_release'), lock_holder('k');

-- Held
SELECT t.take('k', 'Ann');
SELECT t.fingerprint() AS before \gset
SELECT * FROM t.for_all('k');
BEGIN READ ONLY;
SELECT count(*) > 3 AS works FROM t.explain('k');
COMMIT;
SELECT t.fingerprint() = :'before' AS unchanged;
-- the caller's own
SET atomic_lock.owner = 'ann-1';
SELECT * FROM t.explain('k');
SELECT t.run('k', 'lock_release'), lock_holder('k');
RESET atomic_lock.owner;

-- Shared: the statement of a superuser, who has all levels, ends the first holding only.
SELECT t.take('k', 'Ann', 'shared'), t.take('k', 'Ben', 'shared'), t.take('k', 'Cid', 'shared');
SELECT lock_extend('k', 'ben-1', '2 hours') IS NOT NULL AS longest;
SELECT * FROM t.for_all('k');
SELECT t.run('k', 'force_release');
SELECT string_agg(holder, ', ' ORDER BY holder) FROM lock_status();
-- That of an administrator without level monitor ends all.
SET ROLE regress_al_admin;
SELECT t.run('k', 'force_release');
RESET ROLE;
SELECT lock_holder('k');
SELECT count(t.take('k', 'Reader' || n, 'shared')) FROM generate_series(1, 7) n;
SELECT regexp_replace(explain, 'Reader[0-9]', 'Reader<n>') AS explain FROM t.explain('k');
SELECT count(lock_release('k', 'reader' || n || '-1')) FROM generate_series(1, 7) n;
-- Of more than 100 sharers, the number is not known.
SELECT count(t.take('crowd', 'R' || n, 'shared')) FROM generate_series(1, 120) n;
SELECT regexp_replace(explain, 'least 9[0-9]$', 'least <n>') AS explain FROM t.explain('crowd') WHERE explain ~ 'owners|others';
SELECT t.run('crowd', 'force_release'), force_release('crowd', 'all');

-- Until a session or transaction ends
SELECT t.take('k', 'Ann', 'exclusive', 'session');
SELECT * FROM t.for_all('k');
SET ROLE regress_al_admin;
SELECT t.run('k', 'force_release');
RESET ROLE;
SELECT status FROM lock_acquire('k', '1 hour', 'ann-1', holder => 'Ann', lifetime => 'session');
SELECT * FROM t.explain('k');
SELECT lock_release('k', 'ann-1');
-- That is the caller's own: it need not wait for itself.
BEGIN;
SELECT t.take('k', 'Ann', 'exclusive', 'transaction');
SELECT * FROM t.explain('k');
ROLLBACK;
BEGIN;
SELECT t.take('k', 'Ann');
SELECT * FROM t.explain('k');
SELECT lock_release('k', 'ann-1');
SELECT * FROM t.explain('k');
ROLLBACK;
SELECT * FROM t.explain('k');

-- Closed
SELECT lock_set_policy('c:', min_hold => '1 h');
SELECT t.take('c:1', 'Ann');
SELECT lock_release('c:1', 'ann-1');
SELECT * FROM t.for_all('c:1');
SET ROLE regress_al_admin;
SELECT t.run('c:1', 'force_release');
RESET ROLE;
SELECT * FROM t.explain('c:1');
SELECT lock_drop_policy('c:');

-- In line, offered, and passed on. Only administrators may end an offer.
SELECT t.take('k', 'Ann');
SELECT status FROM lock_enqueue('k', 'bob-1', 'Bob', '1 h');
SELECT status FROM lock_enqueue('k', 'cid-1', 'Cid', '1 h');
SELECT * FROM t.for_all('k');
SELECT lock_release('k', 'ann-1');
SELECT * FROM t.for_all('k');
SET ROLE regress_al_user;
SELECT t.run('k', 'lock_enqueue');
SET atomic_lock.owner = 'bob-1';
SELECT * FROM t.explain('k') WHERE explain ~ '^(To|SELECT)';
RESET atomic_lock.owner;
RESET ROLE;
GRANT DELETE ON app_lock_queue TO regress_al_user;
SET ROLE regress_al_user;
SELECT * FROM t.explain('k') WHERE explain ~ 'offer';
RESET ROLE;
REVOKE DELETE ON app_lock_queue FROM regress_al_user;
SET ROLE regress_al_admin;
SELECT t.run('k', 'app_lock_queue');
SELECT * FROM t.explain('k');
RESET ROLE;
DELETE FROM app_lock_queue;
SELECT t.take('k', 'Ann');
SELECT count((lock_enqueue('k', 'dan' || n || '-1', 'Dan' || n)).place) FROM generate_series(1, 7) n;
SELECT * FROM t.explain('k');
DELETE FROM app_lock_queue;

-- A role that was dropped
SET ROLE regress_al_admin;
SELECT t.take('gone', 'Ann');
RESET ROLE;
SELECT * FROM t.explain('gone') WHERE explain ~* 'role';
UPDATE app_lock SET role = 1 WHERE key = 'gone';
SELECT * FROM t.explain('gone') WHERE explain ~* 'role';

--
-- Policies: each that decides a part has a line. Where events are wanted, the holder can be
-- asked.
--
SELECT lock_set_policy('', notify => true, max_wait => '1 h'), lock_set_policy('p:', max_ttl => '2 h'), lock_set_policy('p:1', '1 h', max_lifetime => '0');
SELECT t.take('p:1', 'Ann');
SELECT * FROM t.for_all('p:1');
SET ROLE regress_al_user;
SELECT t.run('p:1', 'lock_ask');
RESET ROLE;
-- All parts: the line is broken. A caller outside the roles gets 42501, unless it has level
-- monitor.
SELECT lock_set_policy('p:1', '1 h', '2 h', '1 h', '0', '0', '0', 7, 7, '{regress_al_team}', true, true);
SET ROLE regress_al_user;
SELECT t.raises($$SELECT lock_explain('p:1')$$);
SET ROLE regress_al_admin;
SELECT t.raises($$SELECT lock_explain('p:1')$$);
SET ROLE regress_al_monitor;
SELECT * FROM t.explain('p:1');
-- A supervisor cannot end the lock of a reserved key.
RESET ROLE;
SELECT lock_grant_access('regress_al_monitor', 'supervisor');
SET ROLE regress_al_monitor;
SELECT line FROM t.explain('p:1') line WHERE line::text ~ 'end it';
SELECT t.raises($$SELECT force_release('p:1', 'test')$$);
-- The text names the policy that reserves it.
RESET ROLE;
SELECT lock_set_policy('p:', roles => '{regress_al_team}'), lock_set_policy('p:2', history => true);
SET ROLE regress_al_monitor;
SELECT * FROM t.explain('p:1') WHERE explain ~ 'reserved';
SELECT * FROM t.explain('p:2') WHERE explain ~ 'olicy|reserved';
RESET ROLE;
SELECT lock_revoke_access('regress_al_monitor', 'supervisor');
GRANT regress_al_team TO regress_al_user;
SET ROLE regress_al_user;
SELECT * FROM t.explain('p:1');
RESET ROLE;
SELECT count(lock_drop_policy(prefix)) FROM lock_policies;

--
-- Keys and labels cannot forge a line, or a statement that acts on another key.
--
CREATE TABLE t.nasty (key text);
INSERT INTO t.nasty VALUES (E'x\nSELECT 1;\r\n'), (''' || force_release(''k'', ''r'') || '''), ('a\''; SELECT 1; --'), ('back\\slash\'), (U&'right\202Eleft\2066x\2069\200F\061C'), (U&'line\2028two\0085three'), (E'e\x1b[2J\x07'),
	(repeat('long ', 200)), ('"quoted"'), (repeat('ö', 512)), ('$$'), (':name :''name'''), ('\gexec'), (E'E''\\x41''');
SELECT count(t.take(key, 'Ann')) FROM t.nasty;
-- control characters, or such of Unicode
CREATE FUNCTION t.control(s text) RETURNS boolean LANGUAGE sql AS $$
	SELECT s ~ E'[\x01-\x09\x0b-\x1f\x7f]' OR s ~ U&'[\0080-\009F\061C\200E\200F\2028-\202E\2066-\2069]'
$$;
SELECT count(*), count(DISTINCT array_length(string_to_array(lock_explain(key), E'\n'), 1)) AS lengths, bool_or(t.control(lock_explain(key))) AS any_control, bool_and(t.control(key)) AS all FROM t.nasty;
SELECT regexp_replace(line, ', [0-9]+\);', ', <n>);') AS line FROM t.nasty, regexp_split_to_table(lock_explain(key), E'\n') line WHERE line ~ '^(Lock|SELECT public)' AND length(line) < 100 ORDER BY key COLLATE "C", line ~ '^SELECT';
SELECT max(length(line)) FROM t.nasty, regexp_split_to_table(lock_explain(key), E'\n') line WHERE line !~ '^SELECT';
-- PostgreSQL 19 has no other strings than standard ones.
SELECT count(set_config(name, 'off', false)) >= 0 AS off FROM pg_settings
	WHERE name IN ('standard_conforming_strings', 'escape_string_warning') AND current_setting('server_version_num')::int < 190000;
SELECT count(t.run(key, 'force_release')) FROM t.nasty WHERE key COLLATE "C" < 'c';
SET standard_conforming_strings = on;
SELECT count(t.run(key, 'force_release')) FROM t.nasty WHERE key COLLATE "C" >= 'c';
SELECT count(lock_holder(key)) AS held, lock_holder('k') FROM t.nasty;
-- Labels, of the first holder and of others
SELECT count(lock_acquire('f', owner => key || '-1', mode => 'shared', holder => key)) FROM t.nasty WHERE octet_length(key) < 250;
SELECT t.control(lock_explain('f')), bool_and(length(line) <= 80 OR line ~ '^  ".*", since') AS columns,
	bool_and(line ~ '^(Lock |The holder|Role |The lease|Its |These|  "|  and|Nobody|Places|No policy|To (wait|end)|SELECT public[.]force_release|SELECT [*] FROM public[.]lock_acquire)') AS known FROM regexp_split_to_table(lock_explain('f'), E'\n') line;
SELECT force_release('f', 'end');
-- A quote does not end the label.
SELECT t.take('q" is free. "', 'x". Role "root');
SELECT * FROM t.explain('q" is free. "') LIMIT 2;
SELECT t.run('q" is free. "', 'force_release');
-- A function of another schema that comes first is not called, and ours need not be in
-- search_path.
CREATE FUNCTION t.force_release(text, text, bigint) RETURNS text LANGUAGE sql AS $$SELECT 'forged'::text$$;
SELECT t.take('s', 'Ann');
SET search_path = t, public;
SELECT t.run('s', 'force_release'), lock_holder('s');
SELECT t.take('s', 'Ann');
SET search_path = t;
SELECT t.run('s', 'force_release'), public.lock_holder('s');
RESET search_path;

--
-- Bad arguments, and a role without a level
--
SELECT call, t.raises('SELECT ' || call) FROM unnest(ARRAY['lock_explain(NULL)', 'lock_explain('''')', 'lock_explain(repeat(''k'', 1025))']) WITH ORDINALITY u (call, n) ORDER BY n;
SET atomic_lock.partitions = 2;
SET atomic_lock.partition = 0;
SELECT k, t.code(format('SELECT lock_explain(%L)', k)) = CASE lock_partition(k, 2) WHEN 0 THEN '00000' ELSE 'LK010' END AS as_the_partition FROM unnest('{a,b,c}'::text[]) k;
RESET atomic_lock.partitions;
RESET atomic_lock.partition;
SET ROLE regress_al_none;
SELECT t.raises($$SELECT lock_explain('k')$$);
RESET ROLE;
DROP OWNED BY regress_al_user, regress_al_monitor, regress_al_admin;
DROP ROLE regress_al_user, regress_al_monitor, regress_al_admin, regress_al_none, regress_al_team;
