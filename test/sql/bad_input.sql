\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- Bad input is refused with the right SQLSTATE, by all functions alike
--
-- Properties: NULL, and keys, owners, labels, meta, ttl, wait and words beyond their limits are
-- errors in `lock_…` and `lock_try_…` functions, before the state of the lock matters. Values
-- at the limits, and odd characters, are stored unchanged.
--
-- Turns red when: a check is missing or off by one; interval arithmetic overflows; a bad
-- argument changes the lock.
--
SELECT acquired FROM lock_acquire('held', '1 hour', 'alice-1', holder => 'Alice');
CREATE FUNCTION t.check(VARIADIC stmts text[]) RETURNS TABLE (stmt text, answer text) LANGUAGE sql
AS $$SELECT s, split_part(t.raises('SELECT ' || s), E'\n', 1) FROM unnest(stmts) s$$;

-- NULL
SELECT * FROM t.check(
	'lock_acquire(NULL)', 'lock_acquire(''k'', mode => NULL)', 'lock_acquire(''k'', lifetime => NULL)',
	'lock_acquire(''k'', ttl => NULL, owner => NULL, holder => NULL, meta => NULL)',
	'lock_try_acquire(NULL)', 'lock_try_acquire(''k'', mode => NULL)', 'lock_try_acquire(''k'', lifetime => NULL)',
	'lock_try_acquire(''k'', ttl => NULL, owner => NULL, holder => NULL, meta => NULL)',
	'lock_release(NULL, ''o'')', 'lock_release(''k'', NULL)', 'lock_release(NULL, NULL)',
	'lock_try_release(NULL, ''o'')', 'lock_try_release(''k'', NULL)', 'lock_release_all(NULL)',
	'lock_extend(NULL, ''o'')', 'lock_extend(''k'', NULL)', 'lock_extend(''held'', ''alice-1'', NULL)',
	'lock_try_extend(NULL, ''o'')', 'lock_try_extend(''k'', NULL)', 'lock_try_extend(''held'', ''alice-1'', NULL)',
	'lock_extend_all(NULL)', 'lock_extend_all(''o'', NULL)',
	'lock_is_held(NULL, ''o'')', 'lock_is_held(''k'', NULL)', 'lock_holder(NULL)', 'lock_status(NULL)', 'lock_explain(NULL)',
	'lock_path(NULL)', 'lock_acquire_path(NULL)', 'lock_try_acquire_path(''a/b'', separator => NULL)', 'lock_release_path(NULL, ''o'')', 'lock_key(NULL)', 'lock_key(VARIADIC NULL::text[])',
	'force_release(NULL, ''r'')', 'force_release(''k'', NULL)', 'lock_force_release(NULL, ''r'')', 'lock_force_release(''k'', NULL)',
	'lock_steal(NULL, ''o'', ''r'')', 'lock_steal(''k'', NULL, ''r'')', 'lock_steal(''k'', ''o'', NULL)',
	'lock_steal(''k'', ''o'', ''r'', NULL, NULL)', 'lock_sweep(NULL)',
	'lock_acquire_all(NULL)', 'lock_acquire_all(ARRAY[NULL])', 'lock_acquire_all(ARRAY[''k''], mode => NULL)', 'lock_acquire_all(ARRAY[''k''], NULL, NULL, holder => NULL, meta => NULL)',
	'lock_try_acquire_all(NULL)', 'lock_try_acquire_all(ARRAY[''k'', NULL])', 'lock_try_acquire_all(ARRAY[''k''], mode => NULL)', 'lock_try_acquire_all(ARRAY[''k''], NULL, NULL, holder => NULL, meta => NULL)',
	'lock_convert(NULL, ''o'')', 'lock_convert(''k'', NULL)', 'lock_convert(''held'', ''alice-1'', NULL)', 'lock_convert(''held'', ''alice-1'', ''shared'', NULL)',
	'lock_transfer(NULL, ''o'', ''n'')', 'lock_transfer(''k'', NULL, ''n'')', 'lock_transfer(''k'', ''o'', NULL)', 'lock_transfer(''held'', ''alice-1'', ''n'', NULL, NULL)');

-- Keys: 1 to 1024 bytes, however well they compress
CREATE FUNCTION t.noise(n int) RETURNS text LANGUAGE sql
AS $$SELECT left(string_agg(md5(i::text), ''), n) FROM generate_series(1, n / 32 + 1) i$$;
CREATE TABLE t.keys (kind text, key text);
INSERT INTO t.keys SELECT kind || ' ' || n, CASE kind WHEN 'same' THEN repeat('x', n) ELSE t.noise(n) END
FROM unnest(ARRAY['same', 'noise']) kind, unnest(ARRAY[0, 1, 1024, 1025, 2704, 2705, 8191, 1048576]) n;
CREATE TABLE t.calls (call text);
INSERT INTO t.calls VALUES
	('lock_acquire(%s)'), ('lock_try_acquire(%s)'), ('lock_release(%s, ''o'')'), ('lock_try_release(%s, ''o'')'),
	('lock_extend(%s, ''o'')'), ('lock_try_extend(%s, ''o'')'), ('lock_is_held(%s, ''o'')'), ('lock_holder(%s)'), ('lock_status(%s)'), ('lock_explain(%s)'),
	('force_release(%s, ''r'')'), ('lock_force_release(%s, ''r'')'), ('lock_steal(%s, ''o'', ''r'')'),
	('lock_acquire(%s, mode => ''shared'')'), ('lock_acquire(%s, lifetime => ''session'')'), ('lock_acquire(%s, lifetime => ''transaction'')'),
	('lock_acquire_all(ARRAY[''k'', %s])'), ('lock_try_acquire_all(ARRAY[%s, ''k''])'), ('lock_convert(%s, ''o'')'), ('lock_transfer(%s, ''o'', ''n'')');
SELECT kind, string_agg(DISTINCT t.code(format('SELECT ' || call, quote_literal(key))), ' ') AS codes, count(*) AS calls
FROM t.keys, t.calls GROUP BY kind ORDER BY min(octet_length(key)), kind;
SELECT key = t.noise(1024) AS same, octet_length(key) FROM lock_acquire(t.noise(1024));
SELECT locked, key = t.noise(1024) AS same FROM lock_status(t.noise(1024));
SELECT t.raises(format('SELECT lock_acquire(%L)', repeat('x', 1025)));
SELECT t.raises('SELECT lock_acquire('''')');
SELECT force_release(t.noise(1024), 'end of test');

-- Owners: 1 to 255 bytes
TRUNCATE t.calls;
INSERT INTO t.calls VALUES
	('lock_acquire(''k'', owner => %s)'), ('lock_try_acquire(''k'', owner => %s)'), ('lock_release(''k'', %s)'), ('lock_try_release(''k'', %s)'),
	('lock_release_all(%s)'), ('lock_extend(''k'', %s)'), ('lock_try_extend(''k'', %s)'), ('lock_extend_all(%s)'), ('lock_is_held(''k'', %s)'),
	('lock_steal(''k'', %s, ''r'')'), ('lock_acquire_all(ARRAY[''k''], owner => %s)'), ('lock_try_acquire_all(ARRAY[''k''], owner => %s)'), ('lock_convert(''k'', %s)'),
	('lock_transfer(''k'', %s, ''n'')'), ('lock_transfer(''k'', ''o'', %s)');
SELECT n, string_agg(DISTINCT t.code(format('SELECT ' || call, quote_literal(repeat('s', n)))), ' ') AS codes, count(*) AS calls
FROM t.calls, unnest(ARRAY[0, 1, 255, 256, 1048576]) n GROUP BY n ORDER BY n;
SELECT count(*) AS shown FROM t.calls, unnest(ARRAY[1, 255, 256, 1048576]) n
WHERE t.raises(format('SELECT ' || call, quote_literal(repeat('s', n)))) ~ 'sss';

-- Labels: up to 255 bytes
SELECT n, t.code(format('SELECT lock_acquire(''k'', holder => repeat(''x'', %s))', n)) AS acquire,
	t.code(format('SELECT lock_try_acquire(''k'', holder => repeat(''x'', %s))', n)) AS try_acquire,
	t.code(format('SELECT lock_steal(''k'', ''o'', ''r'', holder => repeat(''x'', %s))', n)) AS steal,
	t.code(format('SELECT lock_acquire_all(ARRAY[''k''], holder => repeat(''x'', %s))', n)) AS acquire_all, t.code(format('SELECT lock_transfer(''held'', ''alice-1'', ''n'', repeat(''x'', %s))', n)) AS transfer,
	t.code(format('SELECT lock_acquire(''held'', owner => ''alice-1'', holder => repeat(''x'', %s))', n)) AS reacquire
FROM unnest(ARRAY[0, 1, 255, 256, 1048576]) n;

-- meta: up to 8 kB, however well it compresses
SELECT n, t.code(format('SELECT lock_acquire(''k'', meta => to_jsonb(repeat(''x'', %s)))', n)) AS same,
	t.code(format('SELECT lock_acquire(''k'', meta => to_jsonb(t.noise(%s)))', n)) AS noise,
	t.code(format('SELECT lock_acquire_all(ARRAY[''k''], meta => to_jsonb(t.noise(%s)))', n)) AS acquire_all, t.code(format('SELECT lock_acquire(''k'', mode => ''shared'', meta => to_jsonb(t.noise(%s)))', n)) AS shared,
	t.code(format('SELECT lock_acquire(''held'', owner => ''alice-1'', meta => to_jsonb(t.noise(%s)))', n)) AS reacquire
FROM unnest(ARRAY[0, 1, 8000, 8300, 1048576]) n;
SELECT t.raises($$SELECT lock_acquire('k', meta => to_jsonb(repeat('x', 1000000)))$$);
SELECT t.code($$SELECT lock_acquire('k', meta => '{"a": ')$$) AS not_json;
SELECT m, meta FROM unnest(ARRAY['null', 'true', '""', '[]', '{}']::jsonb[]) WITH ORDINALITY u(m, i),
	LATERAL lock_acquire('meta ' || i, meta => m) g, LATERAL lock_status(g.key);
-- stored in full, and deleted with its lease
SELECT acquired FROM lock_acquire('toast', '1 hour', 'alice-1', meta => to_jsonb(t.noise(8000)));
SELECT meta #>> '{}' = t.noise(8000) AS same FROM lock_status('toast');
SELECT lock_extend('toast', 'alice-1') IS NOT NULL AS extended;
SELECT meta #>> '{}' = t.noise(8000) AS same FROM lock_status('toast');
SELECT status FROM lock_acquire('toast', '1 hour', 'alice-1');
SELECT meta #>> '{}' = t.noise(8000) AS same FROM lock_status() WHERE key = 'toast';
SELECT status FROM lock_acquire('toast', '1 hour', 'alice-1', meta => to_jsonb(t.noise(7999)));
SELECT meta #>> '{}' = t.noise(7999) AS same FROM lock_status('toast');
SELECT lock_release('toast', 'alice-1');
SELECT meta IS NULL AS gone FROM app_lock WHERE key = 'toast';
UPDATE app_lock SET expires_at = expires_at - interval '2 hours' WHERE released AND key = 'toast';
SELECT lock_sweep() AS swept;

-- ttl: 1 ms to max_ttl, without overflow
CREATE TABLE t.ttl (id serial, ttl interval);
INSERT INTO t.ttl (ttl) VALUES ('0'), ('1 us'), ('999 us'), ('1 ms'), ('1.001 ms'), ('1 s'), ('23:59:59.999999'), ('24:00'), ('1 day'),
	('24:00:00.000001'), ('1 day 1 us'), ('-1 us'), ('-1 s'), ('-1 day'), ('1 day -23:59:59.999'), ('1 day -24:00'), ('-1 day 25:00'), ('2 days -24:00'),
	('1 mon'), ('-1 mon'), ('1 mon -30 days'), ('1 mon -30 days 1 hour'), ('1 year'), ('178956970 years'), ('-178956970 years'), ('178956970 years 7 mons'),
	('2147483647 days'), ('-2147483648 days'), ('2562047788:00:54.775807'), ('-2562047788:00:54.775807'),
	('2147483647 days 2562047788:00:54.775807'), ('-2147483648 days -2562047788:00:54.775807'),
	(interval '-2562047788:00:54.775807' - interval '1 us'), (interval '-2147483648 days -2562047788:00:54.775807' - interval '1 us'),
	('106751991 days'), ('106751992 days'), ('213503982 days 8:01:50.551616'), ('-213503982 days -8:01:48.551616'), ('-106751991 days -4:00:54.775808'), ('106751991 days 4:00:54.775808');
CREATE FUNCTION t.with_ttl(call text, id int) RETURNS text LANGUAGE sql
AS $$SELECT t.code(format('SELECT ' || call || ' FROM t.ttl WHERE id = %s', id))$$;
SELECT ttl, t.with_ttl('lock_acquire(''k'', ttl)', id) AS acquire, t.with_ttl('lock_try_acquire(''held'', ttl)', id) AS try_acquire,
	t.with_ttl('lock_extend(''held'', ''alice-1'', ttl)', id) AS extend, t.with_ttl('lock_try_extend(''held'', ''bob-1'', ttl)', id) AS try_extend,
	t.with_ttl('lock_extend_all(''nobody'', ttl)', id) AS extend_all, t.with_ttl('lock_steal(''k'', ''o'', ''r'', ttl)', id) AS steal,
	t.with_ttl('lock_acquire_all(ARRAY[''k''], ttl)', id) AS acquire_all, t.with_ttl('lock_transfer(''held'', ''alice-1'', ''n'', ttl => ttl)', id) AS transfer, t.with_ttl('lock_acquire(''k'', ttl, lifetime => ''session'')', id) AS session
FROM t.ttl ORDER BY id;
SELECT * FROM t.check('lock_acquire(''k'', ''0'')', 'lock_acquire(''k'', ''25 hours'')', 'lock_acquire(''k'', ''1 month'')', 'lock_acquire(''k'', ''2147483647 days 2562047788:00:54.775807'')');
-- infinity: not an interval before PostgreSQL 17, and never a valid ttl
SELECT i, t.code(format('SELECT lock_acquire(''k'', %L)', i)) = CASE WHEN current_setting('server_version_num')::int < 170000 THEN '22007' ELSE '22023' END AS refused
FROM unnest(ARRAY['infinity', '-infinity']) i;
-- the longest lease that settings can allow
SELECT set_config('atomic_lock.max_ttl', (SELECT max_val FROM pg_settings WHERE name = 'atomic_lock.max_ttl'), false) IS NOT NULL AS set;
SELECT t.with_ttl('lock_acquire(''k'', ttl)', id) AS code, count(*) FROM t.ttl GROUP BY 1 ORDER BY 1;
SELECT t.code('SELECT lock_acquire(''k'', ''2147483647 ms'')') AS longest, t.code('SELECT lock_acquire(''k'', ''106751991 days'')') AS over;
SELECT t.code('SELECT lock_steal(''k'', ''o'', ''r'', ''2147483647 ms'')') AS longest;
SELECT set_config('atomic_lock.lock_delay', (SELECT max_val FROM pg_settings WHERE name = 'atomic_lock.lock_delay'), false) IS NOT NULL AS set;
BEGIN;
SELECT acquired, expires_at > acquired_at AS later FROM lock_acquire('longest', (SELECT make_interval(secs => max_val::float / 1000) FROM pg_settings WHERE name = 'atomic_lock.max_ttl'), 'o');
SELECT lock_extend('longest', 'o') > clock_timestamp() AS later;
SELECT lock_sweep();
ROLLBACK;
RESET atomic_lock.max_ttl;
RESET atomic_lock.lock_delay;

-- wait: 0 to max_wait
SELECT wait, t.code(format('SELECT lock_acquire(''k'', wait => %L)', wait)) AS acquire, t.code(format('SELECT lock_try_acquire(''k'', wait => %L)', wait)) AS try_acquire,
	t.code(format('SELECT lock_acquire_all(ARRAY[''k''], wait => %L)', wait)) AS acquire_all, t.code(format('SELECT lock_convert(''held'', ''alice-1'', ''shared'', %L)', wait)) AS convert
FROM unnest(ARRAY['0', '1 us', '1 s', '5 min', '5 min 1 us', '1 day', '-1 us', '-1 day', '1 day -24:00', '1 mon', '-1 mon', '1 mon -30 days',
	'178956970 years', '2147483647 days 2562047788:00:54.775807', '-2147483648 days -2562047788:00:54.775807']) wait;
SELECT t.code('SELECT lock_acquire(''k'', wait => ''infinity'')') = CASE WHEN current_setting('server_version_num')::int < 170000 THEN '22007' ELSE '22023' END AS refused;

-- Words are case-sensitive and matched as a whole.
SELECT w, t.code(format('SELECT lock_acquire(''k'', mode => %L)', w)) AS mode, t.code(format('SELECT lock_acquire_all(ARRAY[''k''], mode => %L)', w)) AS mode_of_set, t.code(format('SELECT lock_convert(''held'', ''alice-1'', %L)', w)) AS convert, t.code(format('SELECT lock_acquire(''k'', lifetime => %L)', w)) AS lifetime
FROM unnest(ARRAY['exclusive', 'shared', 'lease', 'session', 'transaction', '', ' ', 'EXCLUSIVE', 'Lease', 'exclusive ', 'exclusiv', 'exclusives', repeat('x', 1000000)]) WITH ORDINALITY u(w, i)
WHERE length(w) < 100 OR t.code(format('SELECT lock_acquire(''k'', mode => %L)', w)) <> '22023' ORDER BY i;
SELECT length(t.raises(format('SELECT lock_acquire(''k'', mode => %L)', repeat('x', 1000000)))) < 1000 AS short;
SELECT * FROM t.check(E'lock_acquire(''k'', mode => E''a\\nb'')');

-- Keys are stored unchanged,
CREATE TABLE t.odd (key text);
INSERT INTO t.odd VALUES ('%s%n%d%x'), ('''"`'), ('\'), ('\\x41'), ('$$'), ('$1'), ('{a,b}'), ('(a,b)'), ('a;b--c/*'), ('NULL'), (' '), ('    '), ('-'), ('0'), (E'\t'), (E'a\nb');
SELECT quote_literal(odd.key) AS key, g.key = odd.key AS same, s.key = odd.key AND s.locked AS status, lock_holder(odd.key) AS holder,
	t.code(format('SELECT lock_acquire(%L)', odd.key)) AS again, lock_release(odd.key, g.owner) AS released
FROM t.odd, LATERAL lock_acquire(odd.key, holder => 'label ' || odd.key) g, LATERAL lock_status(odd.key) s;
-- so are owners and labels
SELECT bool_and(g.owner = odd.key AND g.holder = odd.key AND lock_is_held('k' || odd.key, odd.key) AND lock_release('k' || odd.key, odd.key)) AS same
FROM t.odd, LATERAL lock_acquire('k' || odd.key, owner => odd.key, holder => odd.key) g;
SELECT acquired FROM lock_acquire('%s%n', holder => '%n %d');
SELECT t.raises($$SELECT lock_acquire('%s%n')$$);
SELECT force_release('%s%n', '%s%n%d');
SELECT reason FROM lock_audit ORDER BY at DESC LIMIT 1;

-- PostgreSQL itself refuses invalid text.
SELECT t.code($$SELECT lock_acquire(E'a\000b')$$) IN ('22021', '22P05') AS nul_refused, t.code($$SELECT lock_acquire(chr(0))$$) AS chr, t.code($$SELECT lock_acquire('\x6100'::bytea)$$) AS bytea;

-- Arguments of other types that convert to text
CREATE DOMAIN t.code_key AS varchar(20) CHECK (VALUE <> '');
SELECT lock_holder('typed'), (lock_acquire('typed'::varchar, '1 min'::interval, 'o'::name, 'exclusive'::char(9), '0'::interval, 'H'::t.code_key, '1'::jsonb, 'lease'::varchar)).status;
SELECT lock_is_held('typed'::t.code_key, 'o'::char(3)), lock_extend('typed'::name, 'o'::t.code_key, '00:01'::time::interval) IS NOT NULL AS extended,
	locked, lock_release('typed'::char(8), 'o'::varchar) FROM lock_status('typed'::name);
SELECT * FROM t.check('lock_acquire(42)', 'lock_acquire(''k'', 5)', 'lock_acquire(''k'', ''5'')', 'lock_acquire(''k'', ''soon'')', 'lock_acquire(true)', 'lock_sweep(1.5)', 'lock_sweep(''many'')', 'lock_sweep(1::smallint)', 'lock_acquire()', 'lock_release()', 'lock_acquire(''k'', colour => ''red'')');
PREPARE p AS SELECT s.status FROM lock_try_acquire($1, $2, $3, $4, $5, $6, $7, $8) g, t.show(g) s;
EXECUTE p('prepared', '1 min', 'o', 'exclusive', '0', 'H', 'null', 'lease');
EXECUTE p('prepared', NULL, 'o', 'exclusive', '0', NULL, NULL, 'lease');
EXECUTE p('prepared', NULL, NULL, 'exclusive', '0', NULL, NULL, 'lease');
DEALLOCATE p;

-- Arrays for lock_key
SELECT * FROM t.check('lock_key(VARIADIC ''{}''::text[])', 'lock_key(VARIADIC ''{NULL}''::text[])', 'lock_key(VARIADIC ''{a,NULL,b}''::text[])',
	'lock_key(VARIADIC ''{{a,b},{c,d}}''::text[])', 'lock_key(VARIADIC ''{a,a}''::text[])', 'lock_key(VARIADIC ''{}''::int[])', 'lock_key(VARIADIC ''{a}'')', 'lock_key(VARIADIC ''a'')', 'lock_key(1, NULL)');

-- None of these calls has changed anything.
SELECT owner, holder, locked FROM lock_status('held');
SELECT locked FROM lock_status('k');
