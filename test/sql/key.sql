\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- lock_key
--
SELECT lock_key('order', '42');
SELECT lock_key('order');
SELECT lock_key('a', 'b', 'c', 'd', 'e');

-- : and \ in a part are escaped with \
SELECT lock_key('a:b', 'c'), lock_key('a', 'b:c'), lock_key('a\', 'b'), lock_key('a', '\b'), lock_key('\:', ':\');
SELECT lock_key(':'), lock_key('\'), lock_key('::'), lock_key('\\');

-- Empty parts are parts.
SELECT lock_key('a', ''), lock_key('', 'a'), lock_key('', ''), lock_key('a', '', 'b');

-- Different parts give different keys: all lists of up to three parts over a
-- nasty alphabet.
WITH part(p) AS (VALUES (''), ('a'), (':'), ('\'), ('a:'), (':a'), ('\a'), ('a\'), ('\:'), (':\'), ('::'), ('\\')),
	list(l) AS (
		SELECT ARRAY[p] FROM part
		UNION ALL SELECT ARRAY[a.p, b.p] FROM part a, part b
		UNION ALL SELECT ARRAY[a.p, b.p, c.p] FROM part a, part b, part c),
	keys AS (SELECT l, lock_key(VARIADIC l) AS k FROM list WHERE l <> ARRAY[''])
SELECT count(*) AS lists, count(DISTINCT k) AS keys FROM keys;

-- Anything that casts to text in the usual way
SELECT lock_key('order', 42::text, 'line'::varchar, 'x'::name, 'y'::char(3));
SELECT lock_key(VARIADIC ARRAY['a', 'b']);
SELECT lock_key(VARIADIC ARRAY['a', 'b']::varchar[]);
SELECT lock_key(VARIADIC '[5:6]={a,b}'::text[]);

-- Nothing that must not be folded is folded.
SELECT lock_key(' A ', 'a', '''"$$%s');

-- Bad parts
SELECT t.raises($$SELECT lock_key(NULL)$$);
SELECT t.raises($$SELECT lock_key('a', NULL)$$);
SELECT t.raises($$SELECT lock_key(NULL, 'a')$$);
SELECT t.raises($$SELECT lock_key(VARIADIC NULL)$$);
SELECT t.raises($$SELECT lock_key(VARIADIC NULL::text[])$$);
SELECT t.raises($$SELECT lock_key(VARIADIC '{}')$$);
SELECT t.raises($$SELECT lock_key(VARIADIC ARRAY[NULL]::text[])$$);
SELECT t.raises($$SELECT lock_key()$$);

-- Many and large parts in linear time; the result is checked where it is used.
SELECT octet_length(lock_key(VARIADIC array_agg('x'::text))) FROM generate_series(1, 100000);
SELECT octet_length(lock_key(repeat(':', 100000)));
SELECT t.code($$SELECT lock_acquire(lock_key(repeat(':', 513)))$$);
SELECT t.code($$SELECT lock_acquire(lock_key(repeat(':', 512)))$$);

-- IMMUTABLE: usable in an index, and in the place it is meant for.
CREATE TABLE orders (id int, line int);
CREATE INDEX ON orders (lock_key('orders', id::text, line::text));
INSERT INTO orders VALUES (1, 2);
SELECT key, locked FROM orders, lock_status(lock_key('orders', id::text, line::text));
DROP TABLE orders;
SELECT s.key, s.status FROM lock_acquire(lock_key('customer', 'a:b')) g, t.show(g) s;
