\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- lock_fetch with "expect": the lock is taken only if the row has these values
--
-- Properties: the row is compared as it is under the lock, by the equality of each column's type
-- and with nulls equal. If it differs, LK012 names the columns, and none of the values. Then no
-- new lock is left, and a former holding has its former end. A caller without SELECT learns
-- nothing, not even which columns exist, and an invisible row gives no row.
--
-- Turns red when: a lock stays after LK012, or a holding is extended; a null differs from a
-- null; a value is shown; a bad object is noticed only once the lock is free; code of another
-- role runs.

CREATE TYPE t.mood AS ENUM ('fine', 'so, so');
CREATE TYPE t.pair AS (x int, y text);
CREATE DOMAIN t.sku AS varchar(9) CHECK (VALUE ~ '-');
CREATE DOMAIN t.needed AS int NOT NULL;
CREATE TABLE t.items (gone int, id int PRIMARY KEY, name text, price numeric(9,2), size float8, mood t.mood, sku t.sku, tags text[], pair t.pair, at timestamptz, doc json, docb jsonb, place point, bytes bytea, code char(4), need t.needed, twice int GENERATED ALWAYS AS (id * 2) STORED, "Odd ""Col" int);
ALTER TABLE t.items DROP gone;
INSERT INTO t.items (id, name, price, size, mood, sku, tags, pair, at, doc, docb, place, bytes, code, need)
VALUES (1, 'secret', 1.50, 'NaN', 'so, so', 'X-1', '{a,NULL}', '(1,y)', '2026-01-01 12:00+00', '{"a":1}', '{"a": 1.0}', '(0.1,2)', '\x01', 'ab', 7), (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 8);
-- The answer for the first row, and what ann holds after it
CREATE FUNCTION t.expect(e text, id text DEFAULT '1') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text := t.raises(format('SELECT lock_fetch(NULL::t.items, %L, owner => ''ann'', expect => %L)', id, e));
	found	bigint;
BEGIN
	IF answer = 'no error' THEN
		SELECT count(*) INTO found FROM lock_fetch(NULL::t.items, id, owner => 'ann', expect => e::jsonb);
		answer := found || ' row, ' || lock_release_all('ann') || ' lock';
	END IF;
	RETURN answer || coalesce('; left: ' || (SELECT string_agg(key, ', ') FROM lock_held('ann')), '');
END
$$;

--
-- Equality
--
SELECT t.expect('{}') AS nothing, t.expect(NULL) AS absent, t.expect('{"name": "secret", "price": 1.5, "need": 7}') AS several;
SELECT t.expect('{"name": "other"}');
SELECT t.expect('{"name": "other", "price": 1.50, "Odd \"Col": 3, "tags": []}');
-- each type: equal values that are written otherwise
SELECT e, t.expect(e) FROM unnest(ARRAY['{"id": "01"}', '{"price": "1.500"}', '{"size": "NaN"}', '{"mood": "so, so"}', '{"sku": "X-1"}', '{"tags": ["a", null]}', '{"pair": {"x": 1, "y": "y"}}', '{"at": "2026-01-01 14:00+02"}',
	'{"docb": {"a": 1}}', '{"bytes": "\\x01"}', '{"code": "ab  "}', '{"twice": 2}', '{"place": "(0.1, 2)"}', '{"Odd \"Col": null}', '{"name": "secret", "name": "secret"}']) WITH ORDINALITY u (e, i) ORDER BY i;
-- and others
SELECT e, substring(t.expect(e) FROM 'LK012|Columns.*') AS answer FROM unnest(ARRAY['{"id": 2}', '{"price": 1.51}', '{"size": 0}', '{"mood": "fine"}', '{"sku": "x-1"}', '{"tags": ["a"]}', '{"pair": {"x": 1, "y": null}}', '{"at": "2026-01-01 12:00+01"}', '{"docb": {}}', '{"bytes": "\\x02"}', '{"code": "b"}', '{"twice": 1}', '{"place": "(0.1,3)"}']) WITH ORDINALITY u (e, i) ORDER BY i;
-- a type without equality compares as text: json, whose blanks count
SELECT t.expect('{"doc": {"a": 1}}') ~ '^LK012.*"doc"' AS blanks;
UPDATE t.items SET doc = '{"a": 1}' WHERE id = 1;
SELECT t.expect('{"doc": {"a":1}}');
-- ... whatever the session shows of numbers
SET extra_float_digits = -15;
SELECT t.expect('{"place": "(0.1000000001,2)"}') ~ '^LK012.*"place"' AS differs;
RESET extra_float_digits;
-- nulls
SELECT t.expect('{"name": null}') ~ '^LK012' AS value, t.expect('{"name": null, "price": null, "tags": null, "pair": null, "doc": null}', '2') AS nulls, t.expect('{"name": ""}', '2') ~ '^LK012' AS empty, t.expect('{"docb": null}', '2') AS json_null;
-- a collation that is not deterministic
CREATE COLLATION t.ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TABLE t.words (id int PRIMARY KEY, word text COLLATE t.ci);
INSERT INTO t.words VALUES (1, 'Word');
SELECT word FROM lock_fetch(NULL::t.words, '1', owner => 'ann', expect => '{"word": "WORD"}');
SELECT lock_release_all('ann');

--
-- What stays
--
SELECT t.fingerprint() AS before \gset
BEGIN;
SELECT t.expect('{"name": "other"}') ~ '^LK012' AS stale;
SELECT * FROM t.left_open();
COMMIT;
SELECT t.fingerprint() = :'before' AS unchanged, (lock_status('items:1')).locked;
-- an error that is not caught
SELECT id FROM lock_fetch(NULL::t.items, '1', owner => 'ann', expect => '{"name": "other"}');
SELECT count(*) FROM lock_held('ann');
-- a former holding, in both modes and all lifetimes
CREATE FUNCTION t.kept(acquire text, OUT answer text, OUT same boolean) LANGUAGE plpgsql AS $$
DECLARE
	was	lock_state;
	now	lock_state;
BEGIN
	EXECUTE format('SELECT lock_acquire(''items:1'', owner => ''ann'', %s)', acquire);
	was := lock_status('items:1');
	answer := left(t.raises($q$SELECT lock_fetch(NULL::t.items, '1', '2 hours', 'ann', holder => 'new', expect => '{"name": "other"}')$q$), 5);
	now := lock_status('items:1');
	same := (now.mode, now.lifetime, now.fencing_token, now.acquired_at, now.expires_at, now.holder, now.pid) IS NOT DISTINCT FROM (was.mode, was.lifetime, was.fencing_token, was.acquired_at, was.expires_at, was.holder, was.pid);
	PERFORM lock_release('items:1', 'ann');
END
$$;
SELECT a, k.answer, k.same FROM unnest(ARRAY['ttl => ''1 hour''', 'mode => ''shared''', 'lifetime => ''session''', 'lifetime => ''transaction''', 'lifetime => ''transaction'', mode => ''shared''']) a, t.kept(a) k;
-- a place in the line
SELECT status FROM lock_acquire('items:1', '1 hour', 'bob');
SELECT status FROM lock_enqueue('items:1', 'ann');
SELECT lock_release('items:1', 'bob');
SELECT t.expect('{"name": "other"}') ~ '^LK012' AS stale, (SELECT count(*) FROM lock_queue WHERE key = 'items:1') AS places;
SELECT lock_leave('items:1', 'ann');
-- one that matches extends it as usual
SELECT status FROM lock_acquire('items:1', '1 hour', 'ann');
SELECT id FROM lock_fetch(NULL::t.items, '1', '2 hours', 'ann', expect => '{"name": "secret"}');
SELECT round(extract(epoch FROM ttl_remaining)) AS seconds, lock_release_all('ann') FROM lock_status('items:1');
-- no such row
SELECT count(*), (lock_status('items:9')).locked FROM lock_fetch(NULL::t.items, '9', owner => 'ann', expect => '{"name": "other"}');
-- a chosen key; all rows of an inheritance tree
SELECT t.raises($$SELECT lock_fetch(NULL::t.items, '1', owner => 'ann', key => 'mine', expect => '{"price": 2}')$$);
CREATE TABLE t.heir () INHERITS (t.words);
INSERT INTO t.heir VALUES (1, 'third');
SELECT t.code($$SELECT lock_fetch(NULL::t.words, '1', owner => 'ann', expect => '{"word": "third"}')$$), t.code($$SELECT lock_fetch(NULL::t.words, '1', owner => 'ann', expect => '{"id": 1}')$$) AS both;
-- a path: no folder stays
SELECT lock_protect('t.items', 'shop/{sku}/{id}', separator => '/');
SELECT t.expect('{"name": "other"}'), t.expect('{"name": "secret"}');
SELECT lock_unprotect('t.items');
-- the answers of each isolation level
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT t.expect('{"name": "secret"}'), t.expect('{"name": "other"}') ~ '^LK012' AS stale;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT t.expect('{"name": "other"}') ~ '^LK012' AS stale;
UPDATE t.items SET name = 'own change' WHERE id = 1;
SELECT t.expect('{"name": "own change"}');
ROLLBACK;

--
-- Bad objects: before the lock
--
SELECT status FROM lock_acquire('items:1', '1 hour', 'bob', holder => 'Bob');
SELECT e, t.raises(format('SELECT lock_fetch(NULL::t.items, ''1'', owner => ''ann'', expect => %L)', e)) FROM unnest(ARRAY['[]', 'null', '1', '"name"', '{"Name": 1}', '{"": 1}', '{"gone": 1}', '{"........pg.dropped.1........": 1}', '{"ctid": "(0,1)"}', '{"tableoid": 1}', format('{"%s": 1}', repeat('n', 64)), '{"a\nb": 1}',
	'{"id": "x"}', '{"id": 1.5}', '{"id": 99999999999}', '{"sku": "x"}', '{"sku": "far-too-long"}', '{"need": null}', '{"mood": "MOOD"}', '{"tags": "a"}', '{"pair": [1]}', '{"id": {}}', '{']) WITH ORDINALITY u (e, i) ORDER BY i;
SELECT t.code($$SELECT lock_fetch(NULL::t.items, '1', owner => 'ann', expect => '{"name": "secret"}')$$) AS held;
SELECT lock_release('items:1', 'bob');

--
-- Roles
--
DROP ROLE IF EXISTS regress_al_user, regress_al_mallory;
CREATE ROLE regress_al_user;
CREATE ROLE regress_al_mallory;
SELECT lock_grant_access('regress_al_user', 'user'), lock_grant_access('regress_al_mallory', 'user');
-- without SELECT on all columns: 42501, whether or not a column exists, and before the wait
GRANT SELECT (id, name) ON t.items TO regress_al_user;
SELECT status FROM lock_acquire('items:1', '1 hour', 'bob');
SET ROLE regress_al_user;
SELECT e, t.raises(format('SELECT lock_fetch(NULL::t.items, ''1'', owner => ''ann'', wait => ''1 min'', expect => %L)', e)) FROM unnest(ARRAY['{"name": "x"}', '{"price": 1}', '{"none": 1}', '{"id": "x"}', '[]']) e;
RESET ROLE;
SELECT lock_release('items:1', 'bob');
GRANT SELECT ON t.items TO regress_al_user;
-- an invisible row gives no row, whatever is expected, and takes nothing
ALTER TABLE t.items ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON t.items FOR SELECT TO regress_al_user USING (id = 2);
SET ROLE regress_al_user;
SELECT t.expect('{"name": "secret"}') AS right_guess, t.expect('{"name": "other"}') AS wrong_guess, t.expect('{"name": null}', '2') AS visible, t.expect('{"name": "x"}', '2') ~ '^LK012' AS stale;
SELECT fencing_token AS token FROM lock_acquire('items:2', '1 hour', 'ann') \gset
SELECT t.code($$SELECT lock_fetch(NULL::t.items, '2', '2 hours', 'ann', expect => '{"name": "other"}')$$);
SELECT fencing_token = :token AS same_grant, ttl_remaining <= '1 hour' AS not_extended, lock_release_all('ann') FROM lock_held('ann');
RESET ROLE;
ALTER TABLE t.items DISABLE ROW LEVEL SECURITY;
DROP POLICY p ON t.items;
-- code of another role runs as the caller, and may use the lock meanwhile
CREATE SCHEMA mallory AUTHORIZATION regress_al_mallory;
SET ROLE regress_al_mallory;
CREATE FUNCTION mallory.who(x int) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	RAISE NOTICE 'the check of % runs as %', x, current_user;
	IF x = 3 THEN PERFORM public.lock_release_all('ann'); END IF;
	IF x = 4 THEN PERFORM public.lock_acquire('theirs:1', '1 hour', 'ann', mode => 'shared'); END IF;
	RETURN true;
END
$$;
CREATE DOMAIN mallory.checked AS int CHECK (mallory.who(VALUE));
CREATE TABLE mallory.theirs (id int PRIMARY KEY, x mallory.checked);
CREATE FUNCTION mallory.captured() RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RAISE 'captured'; END$$;
DO $$
DECLARE
	f	text;
BEGIN
	FOREACH f IN ARRAY ARRAY['text', 'integer', 'numeric', 'jsonb', 'point'] LOOP
		EXECUTE format('CREATE FUNCTION mallory.op(%s, %1$s) RETURNS boolean LANGUAGE sql AS ''SELECT mallory.captured()''', f);
		EXECUTE format('CREATE OPERATOR mallory.= (FUNCTION = mallory.op, LEFTARG = %s, RIGHTARG = %1$s)', f);
	END LOOP;
	CREATE FUNCTION mallory.jsonb_populate_record(anyelement, jsonb) RETURNS anyelement LANGUAGE sql AS 'SELECT $1 FROM mallory.captured()';
END
$$;
GRANT USAGE ON SCHEMA mallory TO PUBLIC;
RESET ROLE;
SET search_path = mallory, pg_catalog;
SELECT f.id FROM public.lock_fetch(NULL::t.items, '1', owner => 'ann', expect => '{"id": 1, "name": "secret", "price": 1.5, "docb": {"a": 1}, "place": "(0.1,2)"}') f;
RESET search_path;
SELECT lock_release_all('ann');
SET client_min_messages = notice;
INSERT INTO mallory.theirs VALUES (1, 3);
GRANT SELECT ON mallory.theirs TO regress_al_user;
SET ROLE regress_al_user;
SELECT id FROM lock_fetch(NULL::mallory.theirs, '1', owner => 'ann', expect => '{"x": 3}');
SELECT lock_release_all('ann');
SELECT id FROM lock_fetch(NULL::mallory.theirs, '1', owner => 'ann', expect => '{"x": 4}');
SELECT key, mode FROM lock_held('ann');
RESET ROLE;
SET client_min_messages = warning;
DROP SCHEMA mallory CASCADE;
DROP OWNED BY regress_al_user, regress_al_mallory;
DROP ROLE regress_al_user, regress_al_mallory;

-- The check of a domain renames a column of the table.
CREATE FUNCTION pg_temp.rename_column(v int) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
	IF current_setting('regress_al.rename', true) = '1' THEN
		PERFORM set_config('regress_al.rename', '0', false);
		EXECUTE 'ALTER TABLE renamed RENAME c TO c2';
		PERFORM count(*) FROM pg_class, pg_namespace;
	END IF;
	RETURN true;
END$$;
CREATE DOMAIN pg_temp.renames AS int CHECK (pg_temp.rename_column(value));
CREATE TEMP TABLE renamed (id int PRIMARY KEY, c pg_temp.renames);
INSERT INTO renamed VALUES (1, 1);
SET regress_al.rename = '1';
SELECT t.code($$SELECT * FROM lock_fetch(NULL::renamed, '1', owner => 'ann', expect => '{"c": 1}')$$), current_setting('regress_al.rename');
