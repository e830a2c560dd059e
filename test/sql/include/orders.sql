-- Included by tests of guards: orders and their lines, and what becomes of a statement.

-- What becomes of a statement of that owner (NULL: of none), which is undone
CREATE FUNCTION t.as(o text, stmt text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_catalog.set_config('atomic_lock.owner', coalesce(o, ''), true);
	RETURN t.code(stmt);
END
$$;
CREATE FUNCTION t.told(o text, stmt text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_catalog.set_config('atomic_lock.owner', coalesce(o, ''), true);
	RETURN t.raises(stmt);
END
$$;
-- For an owner and no longer than this statement: the keys, and what becomes of the statement then
CREATE FUNCTION t.with_keys(keys text[], stmt text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text;
BEGIN
	PERFORM lock_acquire_all(keys, '1 hour', 'holder-1');
	answer := t.as('holder-1', stmt);
	PERFORM lock_release_all('holder-1');
	RETURN answer;
END
$$;

CREATE TABLE t.orders (id int PRIMARY KEY, name text UNIQUE, total int);
INSERT INTO t.orders SELECT i, 'order ' || i FROM generate_series(1, 4) i;
-- its lines go by the order's key
CREATE TABLE t.lines (order_id int REFERENCES t.orders ON DELETE CASCADE ON UPDATE CASCADE, line int, text text, PRIMARY KEY (order_id, line));
INSERT INTO t.lines SELECT o, l FROM generate_series(1, 4) o, generate_series(1, 2) l;
CREATE FUNCTION t.content() RETURNS text LANGUAGE sql AS $$
	SELECT md5(string_agg(r, E'\n' ORDER BY r)) FROM (SELECT concat_ws(' ', tableoid, ctid, xmin, o::text) AS r FROM t.orders o UNION ALL SELECT concat_ws(' ', tableoid, ctid, xmin, l::text) FROM t.lines l) c
$$;
