-- Included by tests of lock_protect: a table, and the result of a statement as an owner.
CREATE FUNCTION t.as(o text, stmt text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM set_config('atomic_lock.owner', coalesce(o, ''), true);
	RETURN t.raises(stmt);
END
$$;
-- The result of a statement while an owner holds the key, for this statement only
CREATE FUNCTION t.with_key(k text, stmt text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text;
BEGIN
	PERFORM lock_acquire(k, '1 hour', 'holder-1', holder => 'Holder');
	answer := t.as('holder-1', stmt);
	PERFORM lock_release(k, 'holder-1');
	RETURN answer;
END
$$;
-- The triggers of guards in PostgreSQL's catalog
CREATE FUNCTION t.triggers(r regclass) RETURNS TABLE (tgname name, tgenabled "char", def text) LANGUAGE sql AS $$
	SELECT tgname, tgenabled, regexp_replace(pg_get_triggerdef(oid), '^CREATE TRIGGER ', '') FROM pg_trigger WHERE tgrelid = r AND tgname LIKE '~%' ORDER BY 1
$$;

CREATE TABLE t.orders (id int PRIMARY KEY, name text, "Odd ""Col" int, twice int GENERATED ALWAYS AS (id * 2) STORED);
INSERT INTO t.orders VALUES (1, 'one', 7), (2, 'two', 8);
