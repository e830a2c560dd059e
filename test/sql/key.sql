\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- lock_key: one unambiguous text from several values
--
-- Properties: different lists of parts give different keys, since `:` and `\` are escaped.
-- Values of all types are written as a guard's template writes them, under any session setting.
--
-- Turns red when: two lists of parts give the same key; a setting or a cast changes a part;
-- NULL is accepted as a part.
--
SELECT lock_key('order', '42');
SELECT lock_key('order');
SELECT lock_key('a', 'b', 'c', 'd', 'e');

-- : and \ in a part are escaped with \
SELECT lock_key('a:b', 'c'), lock_key('a', 'b:c'), lock_key('a\', 'b'), lock_key('a', '\b'), lock_key('\:', ':\');
SELECT lock_key(':'), lock_key('\'), lock_key('::'), lock_key('\\');

-- Empty parts count.
SELECT lock_key('a', ''), lock_key('', 'a'), lock_key('', ''), lock_key('a', '', 'b');

-- Different parts give different keys: all lists of up to three parts over an alphabet with
-- special characters.
WITH part(p) AS (VALUES (''), ('a'), (':'), ('\'), ('a:'), (':a'), ('\a'), ('a\'), ('\:'), (':\'), ('::'), ('\\')),
	list(l) AS (
		SELECT ARRAY[p] FROM part
		UNION ALL SELECT ARRAY[a.p, b.p] FROM part a, part b
		UNION ALL SELECT ARRAY[a.p, b.p, c.p] FROM part a, part b, part c),
	keys AS (SELECT l, lock_key(VARIADIC l) AS k FROM list WHERE l <> ARRAY[''])
SELECT count(*) AS lists, count(DISTINCT k) AS keys FROM keys;

-- Types that cast to text implicitly
SELECT lock_key('order', 42::text, 'line'::varchar, 'x'::name, 'y'::char(3));
SELECT lock_key(VARIADIC ARRAY['a', 'b']);
SELECT lock_key(VARIADIC ARRAY['a', 'b']::varchar[]::text[]);
SELECT lock_key(VARIADIC '[5:6]={a,b}'::text[]);

-- Other types, written as in the template of a guard, under any session setting
CREATE TYPE t.mood AS ENUM ('fine', 'so:so');
CREATE TYPE t.pair AS (a int, b text);
SELECT lock_key('order', 42), lock_key(42), lock_key(1, 2::bigint, 1.50, true), lock_key('x', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid), lock_key('so:so'::t.mood, 7);
-- char(n) without its trailing blanks
SELECT lock_key('t', 'y'::char(3)), lock_key(0, 'y'::char(3), 'y '::varchar(3), 'y'::"char");
SET DateStyle = German;
SET TimeZone = 'Asia/Tokyo';
SELECT lock_key('d', date '2026-12-31'), lock_key('d', timestamptz '2026-12-31 18:00+00'), lock_key('d', interval '1 day 01:00', 0.1::float8, '\x0a'::bytea);
SELECT lock_key(VARIADIC ARRAY[date '2026-12-31', date '2027-01-01']);
RESET DateStyle;
RESET TimeZone;
SELECT lock_key(VARIADIC ARRAY[1, 2]), lock_key(VARIADIC ARRAY['so:so']::t.mood[]);
-- An array or a row as one part is written as one; NULL inside it is text.
SELECT lock_key('a', ARRAY[1, NULL]), lock_key('a', ROW(1, 'x:y')::t.pair), lock_key('a', ROW(1, 'b'));
-- Text gives the same key as other types.
SELECT lock_key('order', '42') = lock_key('order', 42) AS number, lock_key('x', '2026-12-31 18:00:00+00') = lock_key('x', timestamptz '2026-12-31 19:00+01') AS moment;
-- Parameters without a declared type
PREPARE untyped AS SELECT lock_key('order', $1), lock_key($1, $2), lock_key($1);
EXECUTE untyped('a:b', 42);
PREPARE mixed(int) AS SELECT lock_key('order', $1), lock_key('order', $1, $2::text);
EXECUTE mixed(42, 'x');
DEALLOCATE ALL;

-- Case, spaces and quotes are kept.
SELECT lock_key(' A ', 'a', '''"$$%s');

-- Bad parts
SELECT t.raises($$SELECT lock_key(NULL)$$);
SELECT t.raises($$SELECT lock_key('a', NULL)$$);
SELECT t.raises($$SELECT lock_key(NULL, 'a')$$);
SELECT t.raises($$SELECT lock_key(VARIADIC NULL::text[])$$);
SELECT t.raises($$SELECT lock_key(VARIADIC '{}'::text[])$$);
SELECT t.raises($$SELECT lock_key(VARIADIC ARRAY[NULL]::text[])$$);
SELECT t.code($$SELECT lock_key()$$);
SELECT t.raises($$SELECT lock_key(1, NULL::int)$$);
SELECT t.raises($$SELECT lock_key(VARIADIC NULL::int[])$$);
SELECT t.raises($$SELECT lock_key(VARIADIC '{}'::int[])$$);
SELECT t.raises($$SELECT lock_key(VARIADIC ARRAY[1, NULL])$$);
SELECT t.raises($$SELECT lock_key(VARIADIC ARRAY[[1, 2], [3, 4]])$$);
SELECT t.raises($$SELECT lock_key(VARIADIC 42)$$);

-- Many and long parts take linear time; the length is checked when the key is used.
SELECT octet_length(lock_key(VARIADIC array_agg('x'::text))) FROM generate_series(1, 100000);
SELECT octet_length(lock_key(repeat(':', 100000)));
SELECT t.code($$SELECT lock_acquire(lock_key(repeat(':', 513)))$$);
SELECT t.code($$SELECT lock_acquire(lock_key(repeat(':', 512)))$$);

-- IMMUTABLE with text: usable in an index, and in queries on it.
CREATE TABLE orders (id int, line int);
CREATE INDEX ON orders (lock_key('orders', id::text, line::text));
INSERT INTO orders VALUES (1, 2);
SELECT key, locked FROM orders, lock_status(lock_key('orders', id::text, line::text));
SELECT t.raises('CREATE INDEX ON orders (lock_key(''orders'', id))');
SELECT key FROM orders, lock_status(lock_key('orders', id, line));
DROP TABLE orders;
SELECT s.key, s.status FROM lock_acquire(lock_key('customer', 'a:b')) g, t.show(g) s;
