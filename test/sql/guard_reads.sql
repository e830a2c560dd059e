\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- Reads that need a lock: row level security with lock_is_held and lock_assert
--
-- Properties: a policy shows a row while its key is held, by the present state and not the
-- snapshot's, however the table is read. Hidden rows cannot be written either; a guard on the
-- same table raises an error instead.
--
-- Turns red when: lock_is_held answers from the snapshot, or once for several rows; a reader
-- needs more than level user.

DROP ROLE IF EXISTS regress_al_reader;
CREATE ROLE regress_al_reader;
SELECT lock_grant_access('regress_al_reader', 'user');
CREATE TABLE t.docs (id int PRIMARY KEY, body text);
INSERT INTO t.docs SELECT i, 'text ' || i FROM generate_series(1, 4) i;
GRANT SELECT, INSERT, UPDATE, DELETE ON t.docs TO regress_al_reader;
ALTER TABLE t.docs ENABLE ROW LEVEL SECURITY;
CREATE POLICY held ON t.docs USING (lock_is_held('doc:' || id));
CREATE FUNCTION t.seen() RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(id::text, ' ' ORDER BY id) FROM t.docs
$$;
CREATE FUNCTION t.fetched(arguments text) RETURNS SETOF t.docs LANGUAGE plpgsql AS $$
BEGIN
	RETURN QUERY EXECUTE format('SELECT * FROM lock_fetch(NULL::t.docs, %s)', arguments);
END
$$;
SELECT key, mode, holder FROM lock_acquire('doc:1', '1 hour', 'alice-1', holder => 'Alice') UNION ALL
SELECT key, mode, holder FROM lock_acquire('doc:2', '1 hour', 'alice-1', 'shared', holder => 'Alice') UNION ALL
SELECT key, mode, holder FROM lock_acquire('doc:2', '1 hour', 'bob-1', 'shared', holder => 'Bob') UNION ALL
SELECT key, mode, holder FROM lock_acquire('doc:3', '1 hour', 'bob-1', holder => 'Bob');

-- Rows visible to each owner
SELECT t.seen() AS the_tables_owner;
SET ROLE regress_al_reader;
SELECT t.raises('SELECT * FROM t.docs') AS nobody;
SET atomic_lock.owner = 'alice-1';
SELECT * FROM t.docs ORDER BY id;
SET atomic_lock.owner = 'bob-1';
SELECT * FROM t.docs ORDER BY id;
SET atomic_lock.owner = 'carol-1';
SELECT * FROM t.docs ORDER BY id;
-- by each kind of scan
SET atomic_lock.owner = 'alice-1';
CREATE FUNCTION pg_temp.ways() RETURNS TABLE (way text, ids text) LANGUAGE plpgsql AS $$
BEGIN
	FOREACH way IN ARRAY ARRAY['enable_seqscan', 'enable_indexscan', 'enable_bitmapscan'] LOOP
		SET LOCAL enable_seqscan = off;
		SET LOCAL enable_indexscan = off;
		SET LOCAL enable_bitmapscan = off;
		PERFORM set_config(way, 'on', true);
		ids := (SELECT string_agg(id::text, ' ') FROM t.docs WHERE id > 0);
		RETURN NEXT;
	END LOOP;
END
$$;
SELECT * FROM pg_temp.ways();
SELECT count(*), max(body) FROM t.docs;
SELECT a.id, b.id FROM t.docs a JOIN t.docs b ON a.id <> b.id ORDER BY 1;
-- released or acquired: effective at once, in an old snapshot, in an existing plan, and in the
-- middle of a query
PREPARE p AS SELECT string_agg(id::text, ' ' ORDER BY id) AS ids FROM t.docs;
BEGIN ISOLATION LEVEL REPEATABLE READ;
EXECUTE p;
SELECT lock_release('doc:1');
EXECUTE p;
SELECT status FROM lock_acquire('doc:4', '1 hour');
EXECUTE p;
DECLARE c CURSOR FOR SELECT id FROM t.docs;
FETCH 1 FROM c;
SELECT lock_release('doc:4');
FETCH ALL FROM c;
ROLLBACK;
EXECUTE p;
-- expired
SELECT lock_extend('doc:1', ttl => '1 ms') IS NOT NULL AS extended;
RESET ROLE;
SELECT t.expire('doc:1');
SET ROLE regress_al_reader;
EXECUTE p;

-- Hidden rows are not written, without an error.
SELECT status FROM lock_acquire('doc:1', '1 hour');
UPDATE t.docs SET body = body || '!' RETURNING id;
DELETE FROM t.docs WHERE id = 3 RETURNING id;
SELECT t.code('INSERT INTO t.docs VALUES (9)') AS hidden, (lock_acquire('doc:9')).status, t.code('INSERT INTO t.docs VALUES (9)') AS held, t.code('UPDATE t.docs SET id = 8 WHERE id = 1') AS out_of_sight;
RESET ROLE;
-- With a guard there is an error: a sharer may read, but not write.
SELECT lock_protect('t.docs', 'doc:{id}');
SET ROLE regress_al_reader;
SELECT id, t.state(t.raises('UPDATE t.docs SET body = ''x'' WHERE id = ' || id)) AS update FROM generate_series(1, 4) id;
RESET ROLE;

-- lock_fetch sees the row thanks to the lock that it acquires
SELECT lock_release_all('alice-1') > 0 AS released;
SET ROLE regress_al_reader;
SELECT id FROM lock_fetch(NULL::t.docs, '1', key => 'doc:1');
SELECT lock_is_held('doc:1'), t.seen();
SELECT t.raises($$SELECT * FROM lock_fetch(NULL::t.docs, '3', key => 'doc:3')$$) ~ '^55P03: lock "doc:3" is held by Bob\n' AS of_bob;
-- ... but with another key or owner than the policy's it does not, and leaves no lock; nor if
-- there is no row
SELECT call, (SELECT count(*) FROM t.fetched(call)) AS rows FROM unnest(ARRAY['''4'', key => ''docs:4''', '''4'', key => ''doc:4'', owner => ''zoe-1''', '''9'', key => ''doc:9''', '''9'', key => ''doc:9'', wait => ''1 min''']) call;
SELECT key FROM lock_status('doc:4') WHERE locked UNION ALL SELECT key FROM lock_status('docs:4') WHERE locked UNION ALL SELECT key FROM lock_status('doc:9') WHERE locked;
-- ... undone with its savepoint or block, otherwise kept
BEGIN;
SAVEPOINT a;
SELECT id FROM lock_fetch(NULL::t.docs, '4', key => 'doc:4');
ROLLBACK TO a;
SELECT lock_is_held('doc:4'), t.seen();
DO $$
DECLARE
	n	integer;
BEGIN
	BEGIN
		SELECT id INTO n FROM lock_fetch(NULL::t.docs, '4', key => 'doc:4');
		RAISE 'out';
	EXCEPTION WHEN raise_exception THEN
		RAISE WARNING '% was fetched, and is held: %', n, lock_is_held('doc:4');
	END;
END
$$;
SAVEPOINT b;
SELECT id FROM lock_fetch(NULL::t.docs, '4', key => 'doc:4');
RELEASE b;
SELECT count(*) FROM lock_fetch(NULL::t.docs, '9', key => 'doc:9');
COMMIT;
SELECT lock_is_held('doc:4'), lock_is_held('doc:9'), t.seen(), lock_release('doc:4');
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT t.seen();
SELECT id FROM lock_fetch(NULL::t.docs, '4', key => 'doc:4');
SELECT t.seen(), lock_release('doc:4');
COMMIT;
RESET ROLE;

-- A policy that hides rows from sessions without an owner, instead of raising
ALTER POLICY held ON t.docs USING (CASE current_setting('atomic_lock.owner', true) WHEN '' THEN false ELSE lock_is_held('doc:' || id) END);
SET ROLE regress_al_reader;
RESET atomic_lock.owner;
SELECT count(*) FROM t.docs;
SET atomic_lock.owner = 'bob-1';
SELECT t.seen();
RESET ROLE;
-- A policy that raises an error for the row: no lock is left
ALTER POLICY held ON t.docs USING (CASE WHEN lock_is_held('doc:' || id) THEN 1 / (id - 4) IS NOT NULL ELSE false END);
SET ROLE regress_al_reader;
SELECT t.code($$SELECT * FROM lock_fetch(NULL::t.docs, '4', key => 'doc:4')$$) AS raises, (lock_status('doc:4')).locked;
BEGIN;
SAVEPOINT a;
\set VERBOSITY sqlstate
SELECT * FROM lock_fetch(NULL::t.docs, '4', key => 'doc:4');
\set VERBOSITY default
ROLLBACK TO a;
SELECT claims, (lock_status('doc:4')).locked FROM t.left_open();
COMMIT;
RESET ROLE;
-- A policy with lock_assert raises, and pins the key of each row read until the transaction
-- ends
ALTER POLICY held ON t.docs USING (lock_assert('doc:' || id) IS NOT NULL);
SET ROLE regress_al_reader;
BEGIN READ ONLY;
SELECT id FROM t.docs WHERE id = 3;
SELECT t.code('SELECT * FROM t.docs') AS all_of_them, t.code('SELECT * FROM t.docs WHERE id = 4') AS free;
SELECT claims > 0 AS pinned, no_transaction_id FROM t.left_open();
COMMIT;
RESET atomic_lock.owner;
RESET ROLE;
-- Without level user the policy cannot be evaluated.
SELECT lock_revoke_access('regress_al_reader', 'user');
SET ROLE regress_al_reader;
SET atomic_lock.owner = 'bob-1';
SELECT t.code('SELECT * FROM t.docs');
RESET atomic_lock.owner;
RESET ROLE;

DROP OWNED BY regress_al_reader;
DROP ROLE regress_al_reader;
