-- Included by tests of guards: orders and their lines, and the result of a statement as an
-- owner.

-- The result of a statement by that owner (NULL: none), which is undone
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
-- The result of a statement while an owner holds the keys, for this statement only
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
-- lines belong to the key of their order
CREATE TABLE t.lines (order_id int REFERENCES t.orders ON DELETE CASCADE ON UPDATE CASCADE, line int, text text, PRIMARY KEY (order_id, line));
INSERT INTO t.lines SELECT o, l FROM generate_series(1, 4) o, generate_series(1, 2) l;
CREATE FUNCTION t.content() RETURNS text LANGUAGE sql AS $$
	SELECT md5(string_agg(r, E'\n' ORDER BY r)) FROM (SELECT concat_ws(' ', tableoid, ctid, xmin, o::text) AS r FROM t.orders o UNION ALL SELECT concat_ws(' ', tableoid, ctid, xmin, l::text) FROM t.lines l) c
$$;
