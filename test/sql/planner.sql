\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- Locks that a statement takes, depending on its plan
--
-- Properties: in a scan of one table, a condition on a column is evaluated before a function
-- that takes a lock, whatever the order in the text, the size of the table and the verb. The
-- forms that doc/howto-sql.md recommends lock what they should. The forms that it warns of lock more,
-- or nothing.
--
-- Turns red when: a function that takes a lock costs no more than a condition; a version of
-- PostgreSQL plans one of these forms differently, so that the document must change.

CREATE TABLE t.docs (id int PRIMARY KEY, folder int, title text, prio int);
INSERT INTO t.docs SELECT i, i % 10, 'title ' || i, 100 - i FROM generate_series(1, 100) i;
CREATE TABLE t.small (id int, title text);
INSERT INTO t.small VALUES (1, 'a'), (2, 'b'), (3, 'c');
ANALYZE t.docs, t.small;

-- The number of rows that the statement returns or changes, and of locks that it leaves
CREATE FUNCTION t.locks(stmt text, OUT "rows" bigint, OUT locks bigint) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE stmt;
	GET DIAGNOSTICS "rows" = ROW_COUNT;
	locks := (SELECT count(*) FROM lock_held('w'));
	PERFORM lock_release_all('w');
END
$$;

--
-- A scan of one table: conditions on columns come first
--
SELECT s.stmt, l.* FROM (VALUES
	(1, $$SELECT FROM t.docs WHERE (lock_try_acquire('d:' || id, owner => 'w')).acquired AND id = 5$$),
	(2, $$SELECT FROM t.docs WHERE (lock_try_acquire('d:' || id, owner => 'w')).acquired AND folder = 5$$),
	(3, $$SELECT FROM t.docs WHERE (lock_try_acquire('d:' || id, owner => 'w')).acquired AND folder = 5 AND title LIKE '%5' LIMIT 1$$),
	(4, $$SELECT FROM t.small WHERE (lock_try_acquire('d:' || id, owner => 'w')).acquired AND title ~ 'b' AND id + 1 = 3$$),
	(5, $$SELECT FROM t.docs WHERE lock_acquire('d:' || id, owner => 'w') IS NOT NULL AND lower(title) = upper(title)$$),
	(6, $$UPDATE t.docs SET prio = 0 WHERE (lock_try_acquire('d:' || id, owner => 'w')).acquired AND folder = 5$$),
	(7, $$DELETE FROM t.docs WHERE (lock_try_acquire('d:' || id, owner => 'w')).acquired AND title = 'none'$$),
	(8, $$SELECT FROM t.docs WHERE (lock_enqueue('d:' || id, 'w')).status = 'acquired' AND folder = 5$$)
) s (n, stmt), t.locks(s.stmt) l ORDER BY s.n;

--
-- The recommended forms of doc/howto-sql.md: one of many, a batch, the locks of a list
--
SELECT s.stmt, l.* FROM (VALUES
	(1, $$SELECT FROM (SELECT id FROM t.docs ORDER BY prio) d CROSS JOIN LATERAL lock_try_acquire('d:' || d.id, owner => 'w') l WHERE l.acquired LIMIT 1$$),
	(2, $$SELECT FROM (SELECT id FROM t.docs ORDER BY prio LIMIT 7) d CROSS JOIN LATERAL lock_try_acquire('d:' || d.id, owner => 'w') l WHERE l.acquired$$),
	(3, $$SELECT FROM lock_try_acquire_all(ARRAY(SELECT 'd:' || id FROM t.docs WHERE folder = 3), owner => 'w')$$),
	(4, $$WITH d AS MATERIALIZED (SELECT id FROM t.docs JOIN t.small USING (id) WHERE folder = 3)
SELECT FROM d WHERE (lock_try_acquire('d:' || id, owner => 'w')).acquired$$),
	(5, $$SELECT FROM lock_acquire('d:1', owner => 'w') WHERE acquired$$)
) s (n, stmt), t.locks(s.stmt) l ORDER BY s.n;
-- One of many skips keys of other owners.
SELECT count(*) FROM generate_series(91, 100) i CROSS JOIN LATERAL lock_acquire('d:' || i, owner => 'other');
SELECT d.id, l.key FROM (SELECT id FROM t.docs ORDER BY prio) d CROSS JOIN LATERAL lock_try_acquire('d:' || d.id, owner => 'w') l WHERE l.acquired LIMIT 1;
SELECT lock_release_all('w'), lock_release_all('other');

--
-- The forms that doc/howto-sql.md warns of
--
SELECT s.stmt, l.* FROM (VALUES
	-- the condition is evaluated for each row, and then the rows are sorted
	(1, $$SELECT FROM (SELECT id FROM t.docs WHERE (lock_try_acquire('d:' || id, owner => 'w')).acquired ORDER BY prio LIMIT 1) s$$),
	-- a condition on the row is evaluated below the join
	(2, $$SELECT FROM t.docs d JOIN t.small s ON s.title = d.title WHERE (lock_try_acquire('d:' || d.id, owner => 'w')).acquired$$),
	-- nothing needs the result of the call
	(3, $$SELECT EXISTS (SELECT lock_acquire('d:1', owner => 'w'))$$),
	(4, $$WITH l AS (SELECT lock_acquire('d:1', owner => 'w')) SELECT 1$$),
	-- a condition that is estimated to cost more comes later
	(5, $$SELECT FROM t.small s WHERE (lock_try_acquire('d:' || id, owner => 'w')).acquired AND (SELECT sum(x.id * s.id) FROM generate_series(1, 100000) x (id)) < 0$$)
) s (n, stmt), t.locks(s.stmt) l ORDER BY s.n;
-- One call for each column: the second call finds the lock of the first
SELECT acquired, status FROM (SELECT (lock_try_acquire('d:1', owner => 'w')).* OFFSET 0) s;
SELECT acquired, status FROM (SELECT (lock_try_acquire('d:2')).* OFFSET 0) s;
