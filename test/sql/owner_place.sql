\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- How the leases of a generated owner are found: in the block encoded in the owner, by the
-- index, or by a scan of the table
--
-- Properties: a generated owner encodes the block of its row, or that the index has the row.
-- All its leases are found, each once, although rows move, change hands or are rolled back,
-- with no more reads than necessary.
--
-- Turns red when: a lease is missed or counted twice after VACUUM FULL, CLUSTER, TRUNCATE or a
-- longer row; a lookup reads more than the block or the index.
--
-- The block in a generated owner; NULL means that the index has the row
CREATE FUNCTION t.place(owner text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
	SELECT nullif(('x' || substr(replace(owner, '-', ''), 23, 6))::bit(24)::bigint, x'ffffff'::bigint)
$$;
-- Whether this is right, for each row
CREATE VIEW t.places AS
	SELECT key, mode, owner, released, owner_hash IS NOT NULL AS in_index, t.place(owner) IS NULL AS says_index,
		t.place(owner) = (ctid::text::point)[0] AS in_place
	FROM app_lock;
-- The function's answer, and the number of scans: of the table, of one block or all
CREATE FUNCTION t.scans(stmt text, OUT answer text, OUT scans bigint) LANGUAGE plpgsql AS $$
DECLARE
	before	bigint := pg_stat_get_xact_numscans('app_lock'::regclass);
BEGIN
	EXECUTE stmt INTO answer;
	scans := pg_stat_get_xact_numscans('app_lock'::regclass) - before;
END
$$;
CREATE FUNCTION t.extend_all(owner text) RETURNS record LANGUAGE sql AS $$SELECT t.scans(format('SELECT lock_extend_all(%L, ''1 hour'')', owner))$$;
CREATE FUNCTION t.release_all(owner text) RETURNS record LANGUAGE sql AS $$SELECT t.scans(format('SELECT lock_release_all(%L)', owner))$$;

-- One key: its block is read as long as the row is there, even released.
SELECT owner FROM lock_acquire('one') \gset
SELECT in_index, says_index, in_place FROM t.places;
SELECT t.extend_all(:'owner') AS extended, t.extend_all(:'owner') AS again;
SELECT t.release_all(:'owner') AS released, t.release_all(:'owner') AS again, t.extend_all(:'owner') AS extended;
SELECT locked FROM lock_status('one');
-- The former owner of the row has nothing.
SELECT owner AS next FROM lock_acquire('one') \gset
SELECT t.extend_all(:'owner') AS extended, t.release_all(:'owner') AS released;
SELECT t.extend_all(:'next') AS extended, t.release_all(:'next') AS released;
-- lifetime session
SELECT owner FROM lock_acquire('one', lifetime => 'session') \gset
SELECT in_index, says_index, in_place FROM t.places;
SELECT t.release_all(:'owner') AS released;

-- Wherever a row is stored, its owner says so: pages fill up, and rows go to other pages. If
-- the owner does not name a block, the index has the row.
CREATE FUNCTION t.meta(i int) RETURNS jsonb LANGUAGE sql AS $$SELECT to_jsonb(repeat('m', i * 7919 % 1900))$$;
CREATE FUNCTION t.astray() RETURNS bigint LANGUAGE sql AS $$
	SELECT count(*) FROM t.places WHERE NOT released AND CASE WHEN says_index THEN NOT in_index ELSE NOT in_place END
$$;
-- Releases all holdings one by one: their number, whether each took at most one block read, and
-- whether most were found by their block
CREATE FUNCTION t.release_each(OUT count bigint, OUT no_more boolean, OUT by_block boolean) LANGUAGE plpgsql AS $$
DECLARE
	held	record;
	call	record;
	blocks	bigint := 0;
BEGIN
	count := 0;
	no_more := true;
	FOR held IN SELECT owner, says_index FROM t.places WHERE NOT released ORDER BY key LOOP
		call := t.scans(format('SELECT lock_release_all(%L)', held.owner));
		count := count + call.answer::bigint;
		no_more := no_more AND call.scans = CASE WHEN held.says_index THEN 0 ELSE 1 END;
		blocks := blocks + call.scans;
	END LOOP;
	by_block := blocks > count * 0.8;
END
$$;
SELECT count(lock_acquire('many:' || i, holder => repeat('h', 1 + i % 255), meta => t.meta(i))) FROM generate_series(1, 400) i;
SELECT pg_relation_size('app_lock') > 20 * 8192 AS many_pages, t.astray();
SELECT * FROM t.release_each();
DO $$
BEGIN
	FOR i IN 201..600 LOOP
		PERFORM lock_acquire('many:' || i, holder => repeat('h', 1 + i % 200), meta => t.meta(i + 300));
		COMMIT;
	END LOOP;
END
$$;
SELECT t.astray();
SELECT * FROM t.release_each();
DELETE FROM app_lock WHERE key LIKE '%3';
VACUUM app_lock;
SELECT count(lock_acquire('many:' || i, meta => t.meta(i + 600))) FROM generate_series(1, 700) i;
SELECT t.astray(), (SELECT bool_or(says_index) FROM t.places WHERE NOT released) AS some_in_index;
SELECT * FROM t.release_each();

-- A row that moves later is found by a scan of the table.
TRUNCATE app_lock;
SELECT count(lock_acquire('before:' || i, holder => repeat('h', 200))) FROM generate_series(1, 100) i;
SELECT owner FROM lock_acquire('moves') \gset
SELECT in_index, in_place FROM t.places WHERE key = 'moves';
DELETE FROM app_lock WHERE key <> 'moves';
VACUUM FULL app_lock;
SELECT in_index, in_place FROM t.places;
SELECT t.extend_all(:'owner') AS extended, t.release_all(:'owner') AS released, t.release_all(:'owner') AS again;
SELECT locked FROM lock_status('moves');
SELECT owner FROM lock_acquire('moves') \gset
SELECT count(lock_acquire('beside:' || i, holder => repeat('h', 200))) FROM generate_series(1, 100) i;
CLUSTER app_lock USING app_lock_pkey;
SELECT in_index, in_place FROM t.places WHERE key = 'moves';
SELECT t.extend_all(:'owner') AS extended, t.release_all(:'owner') AS released;
-- moved by an update that found no room on its page
TRUNCATE app_lock;
SELECT owner FROM lock_acquire('moves') \gset
SELECT count(lock_acquire('beside:' || i, holder => repeat('h', 200))) FROM generate_series(1, 100) i;
SELECT in_index, in_place FROM t.places WHERE key = 'moves';
SELECT status FROM lock_acquire('moves', owner => :'owner', meta => to_jsonb(repeat('m', 1700)));
SELECT in_index, in_place FROM t.places WHERE key = 'moves';
SELECT t.extend_all(:'owner') AS extended, t.release_all(:'owner') AS released;
-- a table with fewer blocks than the owner says
SELECT owner FROM lock_acquire('after all') \gset
SELECT t.place(:'owner') > 0 AS later_block;
TRUNCATE app_lock;
SELECT t.extend_all(:'owner') AS extended, t.release_all(:'owner') AS released;

-- An owner presented again for other keys has all of them, each once.
SELECT owner FROM lock_acquire('made') \gset
SELECT count(lock_acquire('more:' || i, '10 min', :'owner')) FROM generate_series(1, 5) i;
SELECT key, in_index, in_place FROM t.places ORDER BY key;
SELECT t.extend_all(:'owner') AS extended;
SELECT count(*) FROM lock_status() WHERE ttl_remaining > interval '59 min';
SELECT count(lock_acquire('other:' || i, '10 min', 'alice-1')) FROM generate_series(1, 5) i;
SELECT lock_release('more:1', :'owner');
SELECT t.release_all(:'owner') AS released, t.release_all(:'owner') AS again;
SELECT string_agg(key, ' ' ORDER BY key) FROM lock_status();
-- another row has taken the place of the first
SELECT owner FROM lock_acquire('made') \gset
SELECT count(lock_acquire('more:' || i, '10 min', :'owner')) FROM generate_series(1, 5) i;
SELECT lock_release('made', :'owner');
SELECT acquired FROM lock_acquire('made', '10 min', 'alice-1');
SELECT t.extend_all(:'owner') AS extended, t.release_all(:'owner') AS released, t.release_all(:'owner') AS again;
-- all rows have moved
SELECT owner FROM lock_acquire('away') \gset
SELECT count(lock_acquire('more:' || i, '10 min', :'owner')) FROM generate_series(1, 5) i;
SELECT count(lock_acquire('a:' || i, '10 min', 'alice-1', holder => repeat('h', 200))) FROM generate_series(1, 100) i;
CLUSTER app_lock USING app_lock_pkey;
SELECT in_place FROM t.places WHERE key = 'away';
SELECT t.extend_all(:'owner') AS extended, t.release_all(:'owner') AS released, t.release_all(:'owner') AS again;
-- only the first row has moved
TRUNCATE app_lock;
SELECT owner FROM lock_acquire('away') \gset
SELECT count(lock_acquire('more:' || i, '10 min', :'owner')) FROM generate_series(1, 5) i;
SELECT count(lock_acquire('a:' || i, '10 min', 'alice-1', holder => repeat('h', 200))) FROM generate_series(1, 100) i;
SELECT status FROM lock_acquire('away', owner => :'owner', meta => to_jsonb(repeat('m', 1700)));
SELECT key, in_index, in_place FROM t.places WHERE owner = :'owner' ORDER BY key;
SELECT t.extend_all(:'owner') AS extended, t.release_all(:'owner') AS released, t.release_all(:'owner') AS again;
-- the first key, acquired again by the owner that was generated for it
TRUNCATE app_lock;
SELECT owner FROM lock_acquire('made') \gset
SELECT lock_release('made', :'owner'), (lock_acquire('made', '10 min', :'owner')).status, (lock_acquire('more', '10 min', :'owner')).status;
SELECT key, in_index FROM t.places ORDER BY key;
SELECT t.extend_all(:'owner') AS extended, t.release_all(:'owner') AS released;
-- converted, there and back, and transferred
SELECT owner FROM lock_acquire('made') \gset
SELECT status FROM lock_convert('made', :'owner', 'shared');
SELECT t.extend_all(:'owner') AS extended;
SELECT status FROM lock_convert('made', :'owner', 'exclusive');
SELECT t.extend_all(:'owner') AS extended;
SELECT status FROM lock_transfer('made', :'owner', 'alice-1');
SELECT t.extend_all(:'owner') AS extended, t.release_all(:'owner') AS released, lock_release_all('alice-1') AS by_alice;

-- Sets and shared holdings are in the index, so they are found without a scan of the table.
TRUNCATE app_lock;
SELECT DISTINCT owner FROM lock_acquire_all(ARRAY['s:1', 's:2', 's:3']) \gset
SELECT owner AS reader FROM lock_acquire('read', mode => 'shared') \gset
SELECT owner AS reader_2 FROM lock_acquire('read', mode => 'shared') \gset
SELECT owner AS single FROM lock_acquire('single') \gset
SELECT key, mode, in_index, says_index, in_place FROM t.places ORDER BY key;
SELECT t.extend_all(:'owner') AS set, t.extend_all(:'reader') AS reader, t.extend_all(:'reader_2') AS reader_2, t.extend_all(:'single') AS single;
SELECT lock_release('s:2', :'owner');
SELECT t.release_all(:'owner') AS set, t.release_all(:'reader') AS reader, t.release_all(:'reader_2') AS reader_2, t.release_all(:'single') AS single;
SELECT t.release_all(:'owner') AS set, t.release_all(:'reader') AS reader, t.release_all(:'reader_2') AS reader_2, t.release_all(:'single') AS single;
-- in rows that another owner had used without an index entry
SELECT DISTINCT owner FROM lock_acquire_all(ARRAY['single', 's:1']) \gset
SELECT key, in_index, says_index FROM t.places WHERE key IN ('s:1', 'single') ORDER BY key;
SELECT t.release_all(:'owner') AS set;
-- and vice versa: a hash that is not this owner's stays in the row
SELECT owner FROM lock_acquire('s:1') \gset
SELECT key, in_index, says_index, in_place FROM t.places WHERE key = 's:1';
SELECT t.extend_all(:'owner') AS extended, t.release_all(:'owner') AS released;
-- of a holding with lifetime transaction, which has no row until it becomes a lease
BEGIN;
SELECT owner FROM lock_acquire('transaction', lifetime => 'transaction') \gset
SELECT t.place(:'owner') IS NULL AS says_index;
SELECT status FROM lock_acquire('transaction 2', owner => :'owner', lifetime => 'transaction');
SELECT status FROM lock_acquire('transaction 2', owner => :'owner', lifetime => 'session');
SELECT t.extend_all(:'owner') AS extended, t.release_all(:'owner') AS released, t.release_all(:'owner') AS again;
COMMIT;

-- Rolled back
BEGIN;
SELECT owner AS gone FROM lock_acquire('rolled back') \gset
ROLLBACK;
SELECT t.extend_all(:'gone') AS extended, t.release_all(:'gone') AS released;
BEGIN;
SAVEPOINT s;
SELECT owner AS gone_2 FROM lock_acquire('rolled back') \gset
ROLLBACK TO s;
SELECT owner FROM lock_acquire('rolled back') \gset
SELECT t.extend_all(:'gone_2') AS gone, t.extend_all(:'owner') AS extended;
SAVEPOINT s2;
SELECT t.release_all(:'owner') AS released;
ROLLBACK TO s2;
COMMIT;
SELECT t.extend_all(:'gone_2') AS gone, t.extend_all(:'owner') AS extended, t.release_all(:'owner') AS released;
-- an owner whose row was rolled back
SELECT count(lock_acquire('more:' || i, '10 min', :'gone')) FROM generate_series(1, 5) i;
SELECT t.extend_all(:'gone') AS extended, t.release_all(:'gone') AS released, t.release_all(:'gone') AS again;

-- A uuid that we did not generate: only the index is searched.
SELECT acquired FROM lock_acquire('own', '10 min', '11111111-2222-4333-8444-555555555555');
SELECT t.extend_all('11111111-2222-4333-8444-555555555555') AS extended, t.release_all('11111111-2222-4333-8444-555555555555') AS released;

-- At every isolation level
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT owner FROM lock_acquire('level') \gset
SELECT count(lock_acquire('level:' || i, '10 min', :'owner')) FROM generate_series(1, 3) i;
SELECT t.extend_all(:'owner') AS extended, t.release_all(:'owner') AS released;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT owner FROM lock_acquire('level') \gset
SELECT count(lock_acquire('level:' || i, '10 min', :'owner')) FROM generate_series(1, 3) i;
SELECT t.extend_all(:'owner') AS extended, t.release_all(:'owner') AS released;
COMMIT;
