\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- Triggers that fire after a guard: no row is stored that the guard has not checked
--
-- Properties: if a BEFORE ROW trigger fires after the guard for one of the guard's events,
-- writes raise 55000, lock_protect() refuses the table, and lock_guards.problem names the
-- trigger. This holds for every name, for partitions and children, whenever the trigger was
-- created. Other triggers change nothing.
--
-- Turns red when: triggers are ordered differently from PostgreSQL's firing order; triggers of
-- partitions are ignored; a trigger that does not fire for the event, or never fires, stops
-- writes.

CREATE TABLE t.docs (id int, tenant text, note text, PRIMARY KEY (id, tenant));
INSERT INTO t.docs VALUES (1, 'a', ''), (2, 'b', '');
CREATE FUNCTION t.move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF TG_OP = 'DELETE' THEN
		RETURN old;
	END IF;
	new.tenant := 'b';
	RETURN new;
END
$$;
-- The result of a statement by the owner of tenant a, which is undone
CREATE FUNCTION t.as(stmt text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_catalog.set_config('atomic_lock.owner', 'alice-1', true);
	RETURN t.code(stmt);
END
$$;
SELECT key FROM lock_acquire('docs:a', '1 hour', 'alice-1');

--
-- Names sort by their bytes
--
CREATE FUNCTION t.named(name text) RETURNS TABLE (written text, problem text, refused text) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM lock_protect('t.docs', 'docs:{tenant}');
	EXECUTE format('CREATE TRIGGER %I BEFORE UPDATE ON t.docs FOR EACH ROW EXECUTE FUNCTION t.move()', name);
	RETURN QUERY SELECT t.as('UPDATE t.docs SET note = ''x'' WHERE id = 1'), (SELECT g.problem FROM lock_guards g),
		t.code($q$SELECT lock_protect('t.docs', 'docs:{tenant}')$q$);
	EXECUTE format('DROP TRIGGER %I ON t.docs', name);
END
$$;
-- before the guard, which sees the new tenant
SELECT name, n.* FROM unnest(ARRAY['a', 'zz', '}', '~', '~a', '~atomic_lock_guar', '~atomic_lock_guarD', '~Z']) name, t.named(name) n;
-- after the guard
SELECT name, n.* FROM unnest(ARRAY['ändern', '~b', '~~', '~atomic_lock_guard2', '~atomic_lock_guard ', '☃', 'é"; DROP', rpad('~b', 63, 'x')]) name, t.named(name) n;
-- the complete errors
CREATE TRIGGER "ändern" BEFORE INSERT OR UPDATE ON t.docs FOR EACH ROW EXECUTE FUNCTION t.move();
SELECT t.raises('UPDATE t.docs SET note = ''x'' WHERE id = 1');
SELECT t.raises($$SELECT lock_protect('t.docs', 'docs:{tenant}')$$);
-- the hint's advice works
ALTER TRIGGER "ändern" ON t.docs RENAME TO move;
SELECT t.as('UPDATE t.docs SET note = ''x'' WHERE id = 1'), t.code($$SELECT lock_protect('t.docs', 'docs:{tenant}')$$), (SELECT count(problem) FROM lock_guards) AS problems;
ALTER TRIGGER move ON t.docs RENAME TO "ändern";
-- every way to write; INSERT passes, since the guard does not include it
SELECT stmt, t.as(stmt) FROM unnest(ARRAY['INSERT INTO t.docs VALUES (3, ''a'')', 'UPDATE t.docs SET note = ''x''', 'DELETE FROM t.docs WHERE id = 1', 'INSERT INTO t.docs VALUES (2, ''b'') ON CONFLICT (id, tenant) DO UPDATE SET note = ''x''',
	'MERGE INTO t.docs d USING (VALUES (1)) v (id) ON d.id = v.id WHEN MATCHED THEN UPDATE SET note = ''x''', 'MERGE INTO t.docs d USING (VALUES (1)) v (id) ON d.id = v.id WHEN MATCHED THEN DELETE']) stmt;
-- a guard that is not enforced refuses nothing
SET atomic_lock.enforce_guards = off;
SELECT t.code('UPDATE t.docs SET note = ''x'' WHERE id = 1');
RESET atomic_lock.enforce_guards;

--
-- Only triggers that could change the row count
--
CREATE FUNCTION t.made(definition text) RETURNS TABLE (written text, problems bigint, refused text) LANGUAGE plpgsql AS $$
BEGIN
	DROP TRIGGER IF EXISTS "ändern" ON t.docs;
	PERFORM lock_protect('t.docs', 'docs:{tenant}', '{update}');
	EXECUTE format('CREATE TRIGGER "ändern" %s EXECUTE FUNCTION t.move()', definition);
	RETURN QUERY SELECT t.as('UPDATE t.docs SET note = ''x'' WHERE id = 1'), (SELECT count(g.problem) FROM lock_guards g),
		t.code($q$SELECT lock_protect('t.docs', 'docs:{tenant}', '{update}')$q$);
END
$$;
SELECT d, m.* FROM unnest(ARRAY['BEFORE INSERT ON t.docs FOR EACH ROW', 'BEFORE DELETE ON t.docs FOR EACH ROW', 'AFTER UPDATE ON t.docs FOR EACH ROW', 'BEFORE UPDATE ON t.docs FOR EACH STATEMENT',
	'BEFORE UPDATE OF tenant ON t.docs FOR EACH ROW', 'BEFORE UPDATE ON t.docs FOR EACH ROW WHEN (old.id = 2)', 'BEFORE DELETE OR UPDATE ON t.docs FOR EACH ROW']) d, t.made(d) m;
-- a guard created by hand changes no row, and a renamed guard is one
CREATE OR REPLACE TRIGGER "ändern" BEFORE UPDATE ON t.docs FOR EACH ROW EXECUTE FUNCTION lock_guard('docs:{tenant}');
SELECT t.as('UPDATE t.docs SET note = ''x'' WHERE id = 1');
DROP TRIGGER "ändern" ON t.docs;
CREATE TRIGGER move BEFORE UPDATE ON t.docs FOR EACH ROW EXECUTE FUNCTION t.move();
ALTER TRIGGER "~atomic_lock_guard" ON t.docs RENAME TO guard;
SELECT t.as('UPDATE t.docs SET note = ''x'' WHERE id = 1'), problem FROM lock_guards;
ALTER TRIGGER guard ON t.docs RENAME TO "~atomic_lock_guard";
-- states: which of the two fire in one session, such as a subscription's
ALTER TRIGGER move ON t.docs RENAME TO "ändern";
CREATE FUNCTION t.states(guard text, other text) RETURNS TABLE (origin text, replica text, problems bigint) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('ALTER TABLE t.docs %s TRIGGER "~atomic_lock_guard", %s TRIGGER "ändern"', guard, other);
	origin := t.as('UPDATE t.docs SET note = ''x'' WHERE id = 1');
	SET LOCAL session_replication_role = replica;
	replica := t.as('UPDATE t.docs SET note = ''x'' WHERE id = 1');
	SET LOCAL session_replication_role = origin;
	SELECT count(g.problem) INTO problems FROM lock_guards g;
	RETURN NEXT;
END
$$;
SELECT g AS guard, o AS other, s.* FROM unnest(ARRAY['ENABLE', 'ENABLE ALWAYS', 'ENABLE REPLICA', 'DISABLE']) g, unnest(ARRAY['ENABLE', 'ENABLE ALWAYS', 'ENABLE REPLICA', 'DISABLE']) o, t.states(g, o) s;
DROP TABLE t.docs;

--
-- Partitions and children
--
CREATE TABLE t.part (id int, tenant text) PARTITION BY RANGE (id);
CREATE TABLE t.part_1 PARTITION OF t.part FOR VALUES FROM (0) TO (10);
CREATE TABLE t.part_2 (tenant text, id int NOT NULL);
ALTER TABLE t.part ATTACH PARTITION t.part_2 FOR VALUES FROM (10) TO (20);
INSERT INTO t.part VALUES (1, 'a'), (11, 'a');
CREATE TRIGGER "ändern" BEFORE UPDATE ON t.part_2 FOR EACH ROW EXECUTE FUNCTION t.move();
SELECT t.raises($$SELECT lock_protect('t.part', 'docs:{tenant}')$$), (SELECT count(*) FROM lock_guards) AS guards;
DROP TRIGGER "ändern" ON t.part_2;
SELECT lock_protect('t.part', 'docs:{tenant}');
CREATE TRIGGER "ändern" BEFORE UPDATE ON t.part_2 FOR EACH ROW EXECUTE FUNCTION t.move();
SELECT t.as('UPDATE t.part SET id = 2 WHERE id = 1') AS another_partition, t.as('UPDATE t.part SET id = 12 WHERE id = 11') AS this_one, t.as('UPDATE t.part SET id = 2 WHERE id = 11') AS out_of_it;
SELECT relation, problem FROM lock_guards ORDER BY relation::text COLLATE "C";
DROP TRIGGER "ändern" ON t.part_2;
-- a trigger on the parent, and one in a partition attached later
CREATE TRIGGER "ändern" BEFORE UPDATE ON t.part FOR EACH ROW EXECUTE FUNCTION t.move();
SELECT relation, problem FROM lock_guards ORDER BY relation::text COLLATE "C";
DROP TRIGGER "ändern" ON t.part;
CREATE TABLE t.part_3 (id int, tenant text);
CREATE TRIGGER "ändern" BEFORE UPDATE ON t.part_3 FOR EACH ROW EXECUTE FUNCTION t.move();
ALTER TABLE t.part ATTACH PARTITION t.part_3 FOR VALUES FROM (20) TO (30);
INSERT INTO t.part VALUES (21, 'a');
SELECT t.as('UPDATE t.part SET id = 22 WHERE id = 21'), problem FROM lock_guards WHERE relation = 't.part_3'::regclass;
DROP TABLE t.part;

-- a row that moves to a partition passes the BEFORE INSERT triggers there after the guard
CREATE TABLE t.moved (id int, tenant text) PARTITION BY RANGE (id);
CREATE TABLE t.moved_1 PARTITION OF t.moved FOR VALUES FROM (0) TO (10);
CREATE TABLE t.moved_2 PARTITION OF t.moved FOR VALUES FROM (10) TO (20);
CREATE TRIGGER a BEFORE INSERT ON t.moved_2 FOR EACH ROW EXECUTE FUNCTION t.move();
INSERT INTO t.moved VALUES (1, 'a');
SELECT t.raises($$SELECT lock_protect('t.moved', 'docs:{tenant}')$$);
SELECT t.code($$SELECT lock_protect('t.moved', 'docs:{tenant}', '{delete}')$$) AS no_update, t.code($$SELECT lock_protect('t.moved_2', 'docs:{tenant}')$$) AS alone;
-- the hint's advice works: the row is checked as it is stored
SELECT lock_protect('t.moved', 'docs:{tenant}', '{insert,update,delete}');
SELECT t.as('UPDATE t.moved SET id = 11') AS moved, t.as('UPDATE t.moved SET id = 2') AS stays, (SELECT count(problem) FROM lock_guards) AS problems;
DROP TRIGGER a ON t.moved_2;
SELECT lock_protect('t.moved', 'docs:{tenant}');
CREATE TRIGGER a BEFORE INSERT ON t.moved_2 FOR EACH ROW EXECUTE FUNCTION t.move();
SELECT relation, problem FROM lock_guards ORDER BY relation::text COLLATE "C";
DROP TABLE t.moved;

CREATE TABLE t.parent (id int, tenant text);
CREATE TABLE t.child () INHERITS (t.parent);
INSERT INTO t.parent VALUES (1, 'a');
INSERT INTO t.child VALUES (2, 'a');
CREATE TRIGGER "ändern" BEFORE UPDATE ON t.child FOR EACH ROW EXECUTE FUNCTION t.move();
SELECT t.raises($$SELECT lock_protect('t.parent', 'docs:{tenant}')$$), (SELECT count(*) FROM lock_guards) AS guards;
DROP TRIGGER "ändern" ON t.child;
SELECT lock_protect('t.parent', 'docs:{tenant}');
CREATE TRIGGER "ändern" BEFORE UPDATE ON t.child FOR EACH ROW EXECUTE FUNCTION t.move();
SELECT t.as('UPDATE ONLY t.parent SET id = 3') AS parent, t.as('UPDATE t.parent SET id = 3') AS both;
SELECT relation, problem FROM lock_guards ORDER BY relation::text COLLATE "C";

-- a template that no longer fits is reported first
ALTER TABLE t.parent RENAME tenant TO customer;
SELECT relation, problem FROM lock_guards ORDER BY relation::text COLLATE "C";
SELECT app_lock_guard_problem('t.parent', 'nothing') IS NULL AS no_such_trigger, app_lock_guard_problem('t.child', 'ändern') IS NULL AS another_trigger, app_lock_guard_problem(0, '~atomic_lock_guard') IS NULL AS no_such_table;
