\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- lock_set_policy, lock_drop_policy, lock_policies, lock_policy: the rules for a key
--
-- Properties: each rule for a key comes from the policy with the longest prefix that has this
-- rule, otherwise from the setting. Prefixes are compared byte by byte. A policy replaces the
-- one with the same prefix; invalid policies are refused. A policy that is set, dropped, rolled
-- back or written by hand applies from the next call of the same transaction, at every
-- isolation level.
--
-- policy_times.sql, policy_closed.sql, policy_limits.sql and policy_roles.sql test the effect
-- on other calls.
--
-- Turns red when: a shorter prefix wins, or a longer one without the rule; a policy applies to
-- a key that does not begin with its prefix; a policy applies after its rollback; a change of
-- the table by hand is missed.
DROP ROLE IF EXISTS regress_al_a, regress_al_b;
CREATE ROLE regress_al_a;
CREATE ROLE regress_al_b;

--
-- No policy: settings
--
SELECT * FROM lock_policies;
SELECT * FROM lock_policy('k') \gx
SELECT lock_drop_policy(''), lock_drop_policy('k');
SET atomic_lock.default_ttl = '7 min';
SET atomic_lock.max_ttl = '2 h';
SET atomic_lock.max_wait = 0;
SET atomic_lock.max_lifetime = '1 d';
SET atomic_lock.lock_delay = '3 s';
SELECT default_ttl, max_ttl, max_wait, max_lifetime, lock_delay, min_hold, prefixes FROM lock_policy('k');
RESET ALL;

--
-- Each rule, and several prefixes merged
--
SELECT lock_set_policy('', '1 min', '2 min', '3 s', '4 min', '5 s', '6 s', 7, 8, ARRAY['regress_al_a']::regrole[], true, true);
SELECT lock_set_policy('a', max_holders => 1);
SELECT lock_set_policy('a:b', default_ttl => '61 s', max_lifetime => '0', history => false, roles => ARRAY['regress_al_b', 'regress_al_a', 'regress_al_b']::regrole[]);
SELECT lock_set_policy('a:b:', '90 s', '1 day 1 microsecond', '0', '2 d', '0', '0', 2147483647, 1, ARRAY[current_user]::regrole[], true, false);
SELECT lock_set_policy('nothing');
SELECT prefix, default_ttl, max_ttl, max_wait, max_lifetime, lock_delay, min_hold, max_holders, max_keys_per_role AS role, CASE prefix WHEN 'a:b:' THEN ARRAY[current_user]::regrole[] = roles ELSE roles = ARRAY['regress_al_a', 'regress_al_b']::regrole[] END AS roles, history, notify FROM lock_policies;
CREATE FUNCTION t.policy(k text) RETURNS text LANGUAGE sql AS $$
	SELECT concat_ws(' | ', default_ttl, max_ttl, max_wait, coalesce(max_lifetime::text, 'no end'), lock_delay, min_hold, max_holders, max_keys_per_role,
		(SELECT array_agg(CASE r WHEN current_user::regrole THEN 'me' ELSE r::text END ORDER BY r::text) FROM unnest(roles) r), history, notify) FROM lock_policy(k)
$$;
SELECT k, t.policy(k) FROM unnest(ARRAY['', 'a', 'b', 'aa', 'a:', 'a:b', 'a:b:', 'a:b:c', 'a:bc', 'nothing', 'A:b:']) k WHERE k <> '';
SELECT k, (SELECT jsonb_object_agg(coalesce(p, '?'), parts) FROM (SELECT p.value #>> '{}' AS p, string_agg(p.key, ' ' ORDER BY p.key) AS parts FROM jsonb_each(prefixes) p GROUP BY 1) x) AS prefixes
FROM unnest(ARRAY['b', 'a', 'a:b', 'a:b:c', 'nothing']) k, lock_policy(k);
-- NULL leaves a rule to other policies, not to the former policy: a new policy replaces the
-- former one as a whole.
SELECT lock_set_policy('a:b:', notify => true);
SELECT * FROM lock_policies WHERE prefix = 'a:b:' \gx
SELECT t.policy('a:b:c');
SELECT lock_set_policy('a:b:');
SELECT t.policy('a:b:c') = t.policy('a:b') AS as_without;
SELECT lock_drop_policy('a:b:'), lock_drop_policy('a:b:') AS again, lock_drop_policy('a:') AS never, lock_drop_policy('A') AS another;
SELECT t.policy('a:b:c') = t.policy('a:b') AS as_without;
SELECT lock_drop_policy('a'), t.policy('a:b:c') AS longer_stays, t.policy('a') = t.policy('b') AS shorter_holds;
SELECT count(lock_drop_policy(prefix)) FROM lock_policies;
SELECT * FROM lock_policies;
SELECT count(*) FROM app_lock_policy;
SELECT default_ttl, prefixes FROM lock_policy('a:b:c');
-- Policies override settings, for longer or shorter times.
SELECT lock_set_policy('', '3 days', '100 days', '1 h', '0', '0');
SET atomic_lock.max_lifetime = '2 h';
SET atomic_lock.lock_delay = '1 h';
SELECT t.policy('k');
RESET ALL;
SELECT lock_drop_policy('');

--
-- Prefixes are bytes
--
SELECT count(lock_set_policy(p, max_holders => n::int)) FROM unnest(ARRAY['ab', 'ab%', 'ab_', 'äb', 'a' || U&'\0308' || 'b', 'ü', '€:', '𝄞', U&'\+10FFFF', E'tab\t', E'"quoted" ''too'' \\ back', E'a\x01', 'a ', ' ', 'Straße', E'new\nline']) WITH ORDINALITY u(p, n);
SELECT to_json(k) AS k, max_holders, prefixes -> 'max_holders' AS prefix FROM unnest(ARRAY['a', 'ab', 'abc', 'ab%', 'ab%c', 'ab_', 'abx', 'AB', 'äb', 'äbc', 'a' || U&'\0308' || 'b', 'ä', 'u', 'ü', 'ü:x', '€', '€:1', '𝄞𝄞', '𝄟', U&'\+10FFFFx', E'tab\tx', 'tab', E'"quoted" ''too'' \\ back', '"quoted"', E'a\x01', E'a\x02', 'a b', ' a', 'Strasse', 'Straßen', E'new\nlines']) k, lock_policy(k);
SELECT count(lock_drop_policy(prefix)) FROM lock_policies;
-- The longest prefixes; one that is longer than any key is refused.
SELECT lock_set_policy(repeat('x', 1024), max_holders => 1), lock_set_policy(repeat('x', 1023), max_holders => 2), lock_set_policy(repeat('é', 512), max_holders => 3);
SELECT n, (lock_policy(repeat('x', n))).max_holders FROM generate_series(1022, 1024) n;
SELECT n, (lock_policy(repeat('é', n))).max_holders FROM generate_series(511, 512) n;
SELECT t.raises(format('SELECT lock_set_policy(%s, max_holders => 1)', p)) FROM unnest(ARRAY['repeat(''x'', 1025)', 'repeat(''é'', 513)', 'NULL']) p;
SELECT t.raises(format('SELECT lock_drop_policy(%s)', p)) FROM unnest(ARRAY['repeat(''x'', 1025)', 'NULL']) p;
SELECT count(lock_drop_policy(prefix)) FROM lock_policies;

-- Many nested policies, each with some of the rules, set in random order: for each key,
-- lock_policy finds what a search through all of them finds.
CREATE FUNCTION t.word(seed int, max int) RETURNS text LANGUAGE sql IMMUTABLE AS $$
	SELECT string_agg((ARRAY['a', 'b', 'ab', 'ä', '€', '𝄞', U&'\+10FFFF', '%', E'\x01', '~'])[1 + ('x' || substr(md5(seed || 'l' || i), 1, 6))::bit(24)::int % 10], '')
	FROM generate_series(1, 1 + ('x' || substr(md5(seed || 'n'), 1, 6))::bit(24)::int % max) i
$$;
CREATE TABLE t.prefixes AS SELECT p, min(n) AS n FROM (SELECT n, coalesce(t.word(n, 4), '') AS p FROM generate_series(1, 3000) n UNION ALL SELECT 0, '') x GROUP BY p;
SELECT count(*) FROM t.prefixes;
SELECT count(lock_set_policy(p, max_ttl => CASE WHEN n % 2 = 0 THEN n + 1 END * interval '1 s', max_holders => CASE WHEN n % 3 = 0 THEN n + 1 END, history => CASE WHEN n % 5 < 2 THEN n % 5 = 0 END)) = count(*) AS set FROM (SELECT * FROM t.prefixes ORDER BY md5(p)) x;
CREATE TABLE t.found AS
SELECT k, (SELECT p.max_ttl FROM lock_policies p WHERE starts_with(k, p.prefix) AND p.max_ttl IS NOT NULL ORDER BY octet_length(p.prefix) DESC LIMIT 1) AS max_ttl,
	(SELECT p.max_holders FROM lock_policies p WHERE starts_with(k, p.prefix) AND p.max_holders IS NOT NULL ORDER BY octet_length(p.prefix) DESC LIMIT 1) AS max_holders,
	(SELECT p.prefix FROM lock_policies p WHERE starts_with(k, p.prefix) AND p.history IS NOT NULL ORDER BY octet_length(p.prefix) DESC LIMIT 1) AS history
FROM (SELECT DISTINCT t.word(-n, 6) AS k FROM generate_series(1, 800) n UNION SELECT p FROM t.prefixes WHERE p <> '' AND n % 4 = 0) x;
SELECT count(*) AS keys, count(DISTINCT f.max_ttl) AS by_policies,
	count(*) FILTER (WHERE p.max_ttl IS DISTINCT FROM f.max_ttl) AS wrong_max_ttl, count(*) FILTER (WHERE p.max_holders IS DISTINCT FROM f.max_holders) AS wrong_max_holders,
	count(*) FILTER (WHERE p.prefixes ->> 'history' IS DISTINCT FROM f.history) AS wrong_history
FROM t.found f, lock_policy(f.k) p;
-- Half of them are dropped
SELECT count(lock_drop_policy(p)) AS dropped FROM t.prefixes WHERE n % 2 = 0;
SELECT count(*) FILTER (WHERE p.max_holders IS DISTINCT FROM (SELECT l.max_holders FROM lock_policies l WHERE starts_with(f.k, l.prefix) AND l.max_holders IS NOT NULL ORDER BY octet_length(l.prefix) DESC LIMIT 1)) AS wrong_max_holders,
	count(*) FILTER (WHERE p.max_holders IS DISTINCT FROM f.max_holders) AS not_as_before
FROM t.found f, lock_policy(f.k) p;
TRUNCATE app_lock_policy;
SELECT count(*) FILTER (WHERE p.prefixes = '{}') = count(*) AS settings FROM t.found f, lock_policy(f.k) p;

--
-- Invalid policies
--
SELECT a, t.raises(format('SELECT lock_set_policy(''k'', %s)', a)) FROM unnest(ARRAY[
	'default_ttl => ''0''', 'default_ttl => ''999 us''', 'default_ttl => ''-1 s''', 'default_ttl => ''1 month''', 'default_ttl => ''36501 d''', 'default_ttl => ''1 year -1 year''',
	'max_ttl => ''0''', 'max_ttl => ''-1 h''', 'max_ttl => ''1 year''', 'max_ttl => ''36500 d 1 us''',
	'max_wait => ''-1 us''', 'max_wait => ''1 month''', 'max_wait => ''36501 d''',
	'max_lifetime => ''-1 s''', 'max_lifetime => ''1 month''', 'max_lifetime => ''999999999 d''',
	'lock_delay => ''-1 s''', 'lock_delay => ''1 month''', 'lock_delay => ''2000000000 d''',
	'min_hold => ''-1 s''', 'min_hold => ''1 month''', 'min_hold => ''36501 d''',
	'max_holders => 0', 'max_holders => -1', 'max_keys_per_role => 0', 'max_keys_per_role => -2147483648',
	'roles => ''{}''', 'roles => ''{NULL}''', 'roles => ''{regress_al_a,NULL}''', 'roles => ''{regress_al_a,4294967295}''', 'roles => ''{-}''', 'roles => ''{regress_al_none}''',
	'default_ttl => ''2 s'', max_ttl => ''1 s''', 'default_ttl => ''2 s'', max_lifetime => ''1999 ms''', 'default_ttl => ''3 s'', max_ttl => ''4 s'', max_lifetime => ''2 s'''
	]) WITH ORDINALITY u(a, n) ORDER BY n;
-- and valid ones at the limits
SELECT a, t.raises(format('SELECT lock_set_policy(''k'', %s)', a)) FROM unnest(ARRAY[
	'default_ttl => ''1 ms'', max_ttl => ''1 ms'', max_lifetime => ''1 ms''', 'default_ttl => ''36500 d'', max_ttl => ''36500 d'', max_wait => ''36500 d'', max_lifetime => ''36500 d'', lock_delay => ''36500 d'', min_hold => ''36500 d''',
	'default_ttl => ''2 s'', max_lifetime => ''0''', 'max_wait => ''0'', lock_delay => ''0'', min_hold => ''0''', 'max_lifetime => ''1 us'', lock_delay => ''1 us'', min_hold => ''1 us'', max_wait => ''1 us''',
	'max_ttl => ''2 h'', max_lifetime => ''1 h''', 'max_holders => 1, max_keys_per_role => 1', 'roles => ''{{regress_al_a},{regress_al_b}}''', 'roles => ''[5:5]={regress_al_a}'''
	]) WITH ORDINALITY u(a, n) ORDER BY n;
-- A default_ttl above the max_ttl of another policy is not refused: the ttl is cut
-- (policy_times.sql).
SELECT lock_set_policy('long', default_ttl => '1 h'), lock_set_policy('longer', max_ttl => '1 min');
SELECT lock_policy('NULL') IS NOT NULL AS null_is_a_text, t.raises('SELECT lock_policy(NULL)'), t.raises('SELECT lock_policy('''')'), t.raises('SELECT lock_policy(repeat(''x'', 1025))');
-- A refused policy leaves the former one in force.
SELECT lock_set_policy('k', max_holders => 3);
SELECT t.code($$SELECT lock_set_policy('k', max_holders => 0)$$), (lock_policy('k')).max_holders;
SELECT t.raises('SELECT app_lock_policy_changed()'), t.raises('SELECT app_lock_keep_own()');
SELECT count(lock_drop_policy(prefix)) FROM lock_policies;

--
-- In transactions
--
BEGIN;
SELECT lock_set_policy('tx', max_holders => 1);
SELECT max_holders FROM lock_policy('tx');
SAVEPOINT a;
SELECT lock_set_policy('tx', max_holders => 2), lock_set_policy('tx:long', max_holders => 3);
SELECT (lock_policy('tx')).max_holders, (lock_policy('tx:long')).max_holders AS longer;
SAVEPOINT b;
SELECT lock_drop_policy('tx'), (lock_policy('tx')).max_holders, (lock_policy('tx:long')).max_holders AS longer;
ROLLBACK TO b;
SELECT (lock_policy('tx')).max_holders, (lock_policy('tx:long')).max_holders AS longer;
ROLLBACK TO a;
SELECT (lock_policy('tx')).max_holders, (lock_policy('tx:long')).max_holders AS longer;
RELEASE a;
SELECT (lock_policy('tx')).max_holders;
ROLLBACK;
SELECT max_holders FROM lock_policy('tx');
-- a block with an exception handler is a savepoint
DO $$
BEGIN
	PERFORM lock_set_policy('tx', max_holders => 1);
	BEGIN
		PERFORM lock_set_policy('tx', max_holders => 2);
		RAISE NOTICE 'in the block: %', (SELECT max_holders FROM lock_policy('tx'));
		RAISE 'undone';
	EXCEPTION WHEN OTHERS THEN NULL;
	END;
	ASSERT (SELECT max_holders FROM lock_policy('tx')) = 1;
END $$;
SELECT max_holders FROM lock_policy('tx');
-- within one statement, each call sees the last change
SELECT n, lock_set_policy('tx', max_holders => n), (lock_policy('tx')).max_holders FROM generate_series(1, 3) n;
SELECT lock_drop_policy('tx');
-- at every isolation level, with an older snapshot
CREATE FUNCTION t.story() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text := current_setting('transaction_isolation');
BEGIN
	FOR i IN 1..2 LOOP
		PERFORM lock_set_policy('level', max_ttl => i * interval '1 s');
		answer := concat_ws(' ', answer, (SELECT max_ttl FROM lock_policy('level')), t.code($c$SELECT lock_acquire('level', '3 s')$c$), (SELECT max_ttl FROM lock_policies WHERE prefix = 'level'));
		answer := concat_ws(' ', answer, lock_drop_policy('level'), lock_drop_policy('level'), (SELECT max_ttl FROM lock_policy('level')), t.code($c$SELECT lock_acquire('level', '3 s')$c$));
		answer := concat_ws(' ', answer, (SELECT count(*) FROM lock_policies));
	END LOOP;
	RETURN answer;
END
$$;
:at_every_level
SELECT current_setting('max_prepared_transactions')::int > 0 AS twophase \gset
\if :twophase
BEGIN;
SELECT lock_set_policy('prepared', max_holders => 5);
PREPARE TRANSACTION 'regress_al_policy';
SELECT max_holders AS not_yet FROM lock_policy('prepared');
COMMIT PREPARED 'regress_al_policy';
SELECT max_holders FROM lock_policy('prepared');
BEGIN;
SELECT lock_drop_policy('prepared');
PREPARE TRANSACTION 'regress_al_policy';
ROLLBACK PREPARED 'regress_al_policy';
SELECT max_holders FROM lock_policy('prepared');
SELECT lock_drop_policy('prepared');
\endif

--
-- Written by hand, as a dump or a subscription does
--
INSERT INTO app_lock_policy (prefix, max_holders) VALUES ('hand', 2);
SELECT max_holders FROM lock_policy('hand');
UPDATE app_lock_policy SET max_holders = 3;
SELECT max_holders FROM lock_policy('hand');
COPY app_lock_policy FROM stdin;
hand:copied	60000000	\N	\N	\N	\N	\N	4	\N	\N	\N	\N
\.
SELECT max_holders, default_ttl FROM lock_policy('hand:copied:1');
BEGIN;
DELETE FROM app_lock_policy WHERE prefix = 'hand:copied';
SELECT max_holders FROM lock_policy('hand:copied:1');
ROLLBACK;
SELECT max_holders FROM lock_policy('hand:copied:1');
BEGIN;
TRUNCATE app_lock_policy;
SELECT prefixes FROM lock_policy('hand:copied:1');
ROLLBACK;
SELECT prefixes FROM lock_policy('hand:copied:1');
SET session_replication_role = replica;
DELETE FROM app_lock_policy WHERE prefix = 'hand:copied';
SELECT max_holders AS in_a_subscription FROM lock_policy('hand:copied:1');
RESET session_replication_role;
-- A role row without a policy row has no effect; a policy that requires roles but has no role
-- rows admits superusers only.
INSERT INTO app_lock_policy_role VALUES ('stray', 'regress_al_a'::regrole);
SELECT roles, prefixes FROM lock_policy('stray');
SELECT prefix, roles FROM lock_policies;
INSERT INTO app_lock_policy (prefix, has_roles) VALUES ('nobody', 1);
SELECT roles, prefixes FROM lock_policy('nobody:1');
SELECT lock_drop_policy('stray') AS stray, lock_drop_policy('nobody') AS nobody;
-- Other DDL leaves the policies unchanged.
SELECT lock_set_policy('ddl', max_holders => 5, roles => '{regress_al_a}');
ALTER TABLE app_lock_policy SET (fillfactor = 50);
CLUSTER app_lock_policy USING app_lock_policy_pkey;
VACUUM FULL app_lock_policy;
REINDEX TABLE app_lock_policy;
SELECT max_holders, roles FROM lock_policy('ddl');
ALTER TABLE app_lock_policy RESET (fillfactor);
BEGIN;
ALTER TABLE app_lock_policy ADD COLUMN more int;
SELECT t.raises($$SELECT lock_policy('ddl')$$);
SELECT t.raises($$SELECT lock_set_policy('ddl')$$);
ROLLBACK;
SELECT max_holders, roles FROM lock_policy('ddl');
-- Policies are dropped with the extension.
BEGIN;
DROP EXTENSION atomic_lock;
CREATE EXTENSION atomic_lock;
SELECT max_holders, prefixes FROM lock_policy('ddl');
SELECT lock_set_policy('ddl', max_holders => 6);
SELECT max_holders FROM lock_policy('ddl');
ROLLBACK;
SELECT max_holders FROM lock_policy('ddl');

DROP ROLE regress_al_a, regress_al_b;
SELECT prefix, regexp_replace(roles::text, '[0-9]+', '<number>') AS roles FROM lock_policies WHERE roles IS NOT NULL;

--
-- If caches are discarded all the time, as servers with assertions can do, a call that reads
-- policies still ends.
--
SELECT set_config('debug_discard_caches', CASE WHEN current_setting('debug_assertions')::boolean THEN '1' ELSE '0' END, false) IN ('0', '1') AS set;
SELECT lock_set_policy('discard', max_holders => 3);
SELECT (lock_acquire('discard', '1 h', 'ann', 'shared')).max_holders, (lock_policy('discard')).max_holders AS ruled, lock_release('discard', 'ann');
RESET debug_discard_caches;
