\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- Keys, owners and labels are bytes, whatever the encoding and collation
--
-- Properties: limits count bytes. Keys that differ in any byte are different keys, whatever the
-- collation of the argument. Escapes and control characters work beside multibyte characters,
-- and a client in another encoding addresses the same key.
--
-- Turns red when: a collation, case or normalization makes two keys equal; a limit counts
-- characters; a text is cut within a character.
--
SELECT getdatabaseencoding() <> 'UTF8' AS skip \gset
\if :skip
\echo the database is not in UTF8
\quit
\endif
-- Limits are bytes, not characters.
SELECT what, octet_length(key) AS bytes, t.code(format('SELECT lock_acquire(%L)', key)) AS code
FROM (VALUES ('2 x 512', repeat(U&'\00E9', 512)), ('2 x 512 + 1', repeat(U&'\00E9', 512) || 'x'), ('2 x 513', repeat(U&'\00E9', 513)),
	('3 x 341', repeat(U&'\20AC', 341)), ('3 x 341 + 1', repeat(U&'\20AC', 341) || 'x'), ('3 x 341 + 2', repeat(U&'\20AC', 341) || 'xx'),
	('3 x 342', repeat(U&'\20AC', 342)), ('4 x 256', repeat(U&'\+10FFFF', 256)), ('4 x 257', repeat(U&'\+10FFFF', 257))) v(what, key);
SELECT n, t.code(format('SELECT lock_acquire(''k'', owner => %L)', repeat(U&'\00E9', n))) AS even, t.code(format('SELECT lock_acquire(''k'', owner => %L)', repeat(U&'\00E9', n) || 'x')) AS odd,
	t.code(format('SELECT lock_acquire(''k'', holder => %L)', repeat(U&'\00E9', n))) AS even_holder, t.code(format('SELECT lock_acquire(''k'', holder => %L)', repeat(U&'\00E9', n) || 'x')) AS odd_holder,
	t.code(format('SET atomic_lock.owner = %L', repeat(U&'\00E9', n) || 'x')) AS setting
FROM unnest(ARRAY[126, 127, 128]) n;

-- Different bytes are different keys: composed and decomposed, case, width, invisible
-- characters.
CREATE TABLE t.keys (id serial, key text);
INSERT INTO t.keys (key) VALUES (U&'caf\00E9'), (U&'cafe\0301'), (U&'CAF\00C9'), ('cafe'), (U&'caf\00E9 '), (U&'\FEFFcaf\00E9'), (U&'caf\200D\00E9'), (U&'caf\00E9\200B'),
	(U&'\FF43\FF41\FF46\00E9'), (U&'\202Ecaf\00E9'), (U&'stra\00DFe'), ('strasse'), (U&'STRASSE'), (U&'\0130'), (U&'\0131'), ('i'), ('I'), (U&'\+10FFFF'), (U&'\+01F512'),
	(U&'\00A0'), (' '), (U&'\3000'), (U&'\AC00'), (U&'\1100\1161'), (U&'\FB01'), ('fi');
SELECT count(*) FILTER (WHERE acquired) AS granted, count(*) AS keys, count(*) FILTER (WHERE g.key = k.key) AS same
FROM t.keys k, LATERAL lock_try_acquire(k.key, '1 hour', 'o ' || k.key, holder => k.key) g;
SELECT count(*) FILTER (WHERE status = 'held') AS held FROM t.keys k, LATERAL lock_try_acquire(k.key) g;
SELECT count(*) AS pairs FROM t.keys a, t.keys b WHERE lock_is_held(a.key, 'o ' || b.key);
SELECT count(*) AS labels FROM t.keys k WHERE lock_holder(k.key) = k.key;
SELECT count(*) AS released FROM t.keys k WHERE lock_release(k.key, 'o ' || k.key);

-- The collation of the argument or its column does not matter.
DO $$
BEGIN
	CREATE COLLATION t.ignore_case (provider = icu, locale = 'und-u-ks-level1', deterministic = false);
EXCEPTION WHEN OTHERS THEN
	CREATE COLLATION t.ignore_case FROM "C";
END
$$;
CREATE TABLE t.cased (id serial, key text COLLATE t.ignore_case);
INSERT INTO t.cased (key) VALUES ('Order'), ('order'), ('ORDER'), (U&'\00F6rder');
SELECT count(*) AS granted FROM t.cased c, LATERAL lock_acquire(c.key, owner => 'o' || c.key) g;
SELECT count(*) AS pairs FROM t.cased a, t.cased b WHERE lock_is_held(a.key, 'o' || b.key);
SELECT locked FROM lock_status('oRDER' COLLATE t.ignore_case);
SELECT lock_is_held('Order' COLLATE t.ignore_case, 'oorder' COLLATE t.ignore_case);
SELECT lock_release_all('oORDER' COLLATE t.ignore_case);
SELECT lock_key('a' COLLATE t.ignore_case, 'A') COLLATE "C" = 'a:A' AS joined;
SELECT count(*) AS released FROM t.cased c, LATERAL lock_release_all('o' || c.key COLLATE "C") n WHERE n = 1;

-- Escaping works beside multibyte characters.
SELECT lock_key(U&'\00E9:\20AC', U&'\+01F512\\') = U&'\00E9\\:\20AC:\+01F512\\\\' AS joined;

-- Two-byte control characters in labels are escaped, other characters are shown.
SELECT acquired FROM lock_acquire(U&'caf\00E9\0085', holder => U&'\009B31mJos\00E9');
SELECT t.raises(U&'SELECT lock_acquire(''caf\00E9\0085'')') LIKE U&'%lock "caf\00E9\\\\xc2\\\\x85" is held by \\\\xc2\\\\x9b31mJos\00E9%' AS escaped;

-- A client with another encoding addresses the same key.
SELECT acquired FROM lock_acquire(U&'gr\00FCn', '1 hour', 'alice-1');
SET client_encoding = LATIN1;
SELECT locked FROM lock_status(E'gr\u00FCn');
RESET client_encoding;
SELECT t.code($$SELECT lock_acquire(E'\xff')$$) AS ff, t.code($$SELECT lock_acquire(E'\xc3')$$) AS cut, t.code($$SELECT lock_acquire(E'\xed\xa0\x80')$$) AS surrogate;

-- Some clients see a backslash or a quote in other characters, and rows in runs of blanks:
-- lock_explain escapes them in statements.
SET client_encoding = SJIS;
SELECT line FROM string_to_table(lock_explain(U&'\00A5''; x  y'), E'\n') line WHERE line ~ 'lock_acquire';
RESET client_encoding;
