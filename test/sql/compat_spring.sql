\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- sql/compat/spring.sql: answers to the statements of Spring's DefaultLockRepository, and the
-- reach of a role that has rights on the view alone
--
-- Properties:
-- - Through the view a client gets what lock_try_acquire, lock_try_extend and lock_try_release
--   would give to the owner of that name, as row counts. No time that a client sends takes or
--   deletes the lock of another.
-- - A role sees the locks that it took through the view, whatever functions it calls in its
--   query, and changes no others. The planner's estimates reveal nothing of other roles. A
--   query locks no row of the extension's tables.
-- - The script can be run again. No function planted in the extension's schema is called.
--
-- Turns red when: a count is wrong; a clock ahead ends a lease; an owner is shown to another
-- role; PUBLIC can execute a trigger function; a query for one lock reads all; an estimate
-- depends on another role's CLIENT_ID; a role gets a lock of another role by its CLIENT_ID or
-- by its name; a planted function matches a call better than ours.

\set script :srcdir '/../sql/compat/spring.sql'
DROP SCHEMA IF EXISTS regress_al_shop CASCADE;
DROP ROLE IF EXISTS regress_al_locks, regress_al_web, regress_al_other, regress_al_none;
CREATE ROLE regress_al_locks;
CREATE ROLE regress_al_web;
CREATE ROLE regress_al_other;
CREATE ROLE regress_al_none;
CREATE SCHEMA regress_al_shop;
\set schema regress_al_shop

SELECT lock_grant_access('regress_al_locks', 'user') \g /dev/null
GRANT CREATE, USAGE ON SCHEMA regress_al_shop TO regress_al_locks;
GRANT USAGE ON SCHEMA regress_al_shop TO regress_al_web, regress_al_other, regress_al_none;
\set ECHO none
SET ROLE regress_al_locks;
\set ttl '20 min'
\i :script
-- run again
\i :script
RESET ROLE;
\set ON_ERROR_STOP off
\set ECHO all
GRANT SELECT, INSERT, UPDATE, DELETE ON regress_al_shop.int_lock TO regress_al_web, regress_al_other;

-- The statements of Spring version 7, with the times of a client whose clock is wrong
CREATE FUNCTION t.spring(what text, client text, key text DEFAULT 'k', ttl interval DEFAULT '10 min', clock interval DEFAULT '0', region text DEFAULT 'DEFAULT')
RETURNS bigint LANGUAGE plpgsql SET search_path = regress_al_shop, public AS $$
#variable_conflict use_column
DECLARE
	client_now	timestamp := clock_timestamp() AT TIME ZONE 'UTC' + clock;
	counted		bigint;
BEGIN
	CASE what
		WHEN 'update' THEN UPDATE INT_LOCK SET CLIENT_ID=client, EXPIRED_AFTER=client_now + ttl WHERE REGION=spring.region AND LOCK_KEY=key AND (CLIENT_ID=client OR EXPIRED_AFTER<client_now);
		WHEN 'insert' THEN INSERT INTO INT_LOCK (REGION, LOCK_KEY, CLIENT_ID, CREATED_DATE, EXPIRED_AFTER) VALUES (spring.region, key, client, client_now, client_now + ttl);
		WHEN 'renew' THEN UPDATE INT_LOCK SET EXPIRED_AFTER=client_now + ttl WHERE REGION=spring.region AND LOCK_KEY=key AND CLIENT_ID=client;
		WHEN 'delete' THEN DELETE FROM INT_LOCK WHERE REGION=spring.region AND LOCK_KEY=key AND CLIENT_ID=client;
		WHEN 'close' THEN DELETE FROM INT_LOCK WHERE REGION=spring.region AND CLIENT_ID=client;
		WHEN 'expired' THEN DELETE FROM INT_LOCK WHERE REGION=spring.region AND EXPIRED_AFTER<client_now;
		WHEN 'count' THEN RETURN (SELECT COUNT(REGION) FROM INT_LOCK WHERE REGION=spring.region AND LOCK_KEY=key AND CLIENT_ID=client AND EXPIRED_AFTER>=client_now);
		WHEN 'all' THEN RETURN (SELECT COUNT(REGION) FROM INT_LOCK);
	END CASE;
	GET DIAGNOSTICS counted = ROW_COUNT;
	RETURN counted;
END
$$;
CREATE FUNCTION t.minutes(k text) RETURNS numeric LANGUAGE sql SECURITY DEFINER AS $$
	SELECT round(ttl_us / 60e6) FROM public.app_lock WHERE key = 'int_lock:DEFAULT:' || k AND NOT released
$$;

CREATE FUNCTION t.plan(stmt text) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
	RETURN QUERY EXECUTE 'EXPLAIN ' || stmt;
END
$$;

-- The life of a lock: free, locked, locked again by the same client (as a thread that already
-- has it does), refused to another client, renewed, unlocked
SET ROLE regress_al_web;
SELECT t.spring('all', ''), t.spring('update', 'A'), t.spring('insert', 'A'), t.spring('update', 'A'), t.spring('count', 'A'), t.spring('all', '');
SELECT t.spring('update', 'B'), t.spring('insert', 'B'), t.spring('count', 'B'), t.spring('renew', 'B'), t.spring('delete', 'B'), t.spring('close', 'B');
SELECT t.spring('insert', 'B', region => 'NORTH'), t.spring('delete', 'B', region => 'NORTH');
TABLE regress_al_shop.int_lock;
SELECT t.spring('renew', 'A', ttl => '30 min'), t.minutes('k');
SELECT t.spring('update', 'A', ttl => '5 min'), t.minutes('k');
SELECT t.spring('delete', 'A'), t.spring('delete', 'A'), t.spring('all', '');

-- The client's clock is more than a year wrong: leases still have the length asked for, and no
-- client's clock ends another's lease.
SELECT t.spring('insert', 'A', clock => '400 days'), t.minutes('k');
SELECT t.spring('renew', 'A', ttl => '30 min', clock => '400 days'), t.minutes('k');
SELECT t.spring('expired', 'B', clock => '9000 days'), t.spring('update', 'B', clock => '9000 days'), t.spring('insert', 'B', clock => '9000 days'), t.spring('count', 'A', clock => '9000 days');
SELECT t.spring('delete', 'A', clock => '-400 days');

-- Before version 7, a client sends no end.
INSERT INTO regress_al_shop.int_lock (region, lock_key, client_id, created_date) VALUES ('DEFAULT', 'k', 'A', '2020-01-01');
SELECT t.minutes('k');
UPDATE regress_al_shop.int_lock SET created_date = '2020-01-02' WHERE region = 'DEFAULT' AND lock_key = 'k' AND client_id = 'A' RETURNING client_id;
SELECT t.minutes('k');
-- updated meanwhile by a client of version 7
SELECT t.spring('renew', 'A', ttl => '30 min'), t.minutes('k'), t.spring('delete', 'A');

-- Expired locks cannot be renewed or unlocked; any client's pruning deletes them.
SELECT t.spring('insert', 'A', ttl => '1 ms'), t.spring('insert', 'B', 'other', ttl => '1 ms');
RESET ROLE;
SELECT t.expire('int_lock:DEFAULT:k'), t.expire('int_lock:DEFAULT:other');
SET ROLE regress_al_web;
SELECT t.spring('count', 'A'), t.spring('renew', 'A'), t.spring('update', 'A'), t.spring('delete', 'A'), t.spring('close', 'A');
SELECT t.spring('update', 'B'), t.spring('insert', 'B'), t.spring('count', 'B'), t.spring('insert', 'A');
SELECT t.spring('all', ''), t.spring('expired', 'A');
RESET ROLE;
SELECT lock_key, client_id FROM regress_al_shop.int_lock_client;

-- Locks ended by an administrator, and locks of direct callers
SELECT force_release(regress_al_shop.int_lock_key('orders', 'R:1'), 'none') FROM lock_try_acquire('int_lock:R\:1:12c500ed-0b78-3910-9fb4-6af0f246be87');
SELECT regress_al_shop.int_lock_key('3F2A0000-0000-4000-8000-000000000001');
SELECT force_release('int_lock:DEFAULT:k', 'why');
SELECT status FROM lock_try_acquire('int_lock:DEFAULT:k', owner => 'secret', holder => 'Dan');
SET ROLE regress_al_web;
SELECT t.spring('count', 'B'), t.spring('renew', 'B'), t.spring('delete', 'B'), t.spring('update', 'B'), t.spring('insert', 'B');
TABLE regress_al_shop.int_lock;
SELECT t.spring('expired', 'B');
TABLE regress_al_shop.int_lock;
RESET ROLE;
SELECT lock_release('int_lock:DEFAULT:k', 'secret');

-- The owner is CLIENT_ID, so a client passes a guard by presenting it.
SET ROLE regress_al_web;
SELECT t.spring('insert', 'A');
RESET ROLE;
SELECT lock_assert('int_lock:DEFAULT:k', 'A') > 0;
SELECT holder, role, meta FROM lock_status('int_lock:DEFAULT:k');

-- Another role sees none of these locks and changes none, not even with functions of its own,
CREATE FUNCTION t.leak(client text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS $$
BEGIN
	RAISE WARNING 'client %', client;
	RETURN true;
END
$$;
SET ROLE regress_al_other;
SELECT t.spring('all', ''), t.spring('update', 'A'), t.spring('insert', 'B'), t.spring('renew', 'A'), t.spring('delete', 'A');
SELECT * FROM regress_al_shop.int_lock WHERE t.leak(client_id);
DELETE FROM regress_al_shop.int_lock WHERE t.leak(client_id);
SELECT t.raises('TABLE regress_al_shop.int_lock_client');
SELECT t.raises('TABLE regress_al_shop.int_lock_by_role');
SELECT t.raises('INSERT INTO regress_al_shop.int_lock (region, lock_key, client_id, role) VALUES (''DEFAULT'', ''r'', ''C'', ''regress_al_web'')');
CREATE TEMP TABLE fake (LIKE regress_al_shop.int_lock);
SELECT t.raises('CREATE TRIGGER fake BEFORE INSERT ON fake FOR EACH ROW EXECUTE FUNCTION regress_al_shop.int_lock_change()');
-- nor could a role that may execute the trigger function
RESET ROLE;
GRANT EXECUTE ON FUNCTION regress_al_shop.int_lock_change() TO regress_al_other;
SET ROLE regress_al_other;
CREATE TRIGGER fake BEFORE INSERT ON fake FOR EACH ROW EXECUTE FUNCTION regress_al_shop.int_lock_change();
SELECT t.raises('INSERT INTO fake (region, lock_key, client_id) VALUES (''DEFAULT'', ''r'', ''C'')');
DROP TRIGGER fake ON fake;
SELECT t.spring('insert', 'C', 'o');
SELECT client_id FROM regress_al_shop.int_lock;
SET ROLE regress_al_none;
SELECT t.raises('TABLE regress_al_shop.int_lock');
SELECT t.raises('INSERT INTO regress_al_shop.int_lock (region, lock_key, client_id, created_date) VALUES (''DEFAULT'', ''r'', ''C'', now())');
SET ROLE regress_al_web;
SELECT t.leak(client_id) FROM regress_al_shop.int_lock;

-- A client may not move a lock to another key, region or client.
UPDATE regress_al_shop.int_lock SET lock_key = 'moved' RETURNING lock_key;
UPDATE regress_al_shop.int_lock SET client_id = 'B' RETURNING client_id;

-- Errors outside of classes 22 and 23, which Spring would take for a refusal
SELECT t.raises($$SELECT t.spring('insert', 'B', 'long', '25 hours')$$);
SELECT t.code($$SELECT t.spring('renew', 'A', ttl => '25 hours')$$);
RESET ROLE;
SELECT lock_set_policy('int_lock:', max_lifetime => '1 hour');
SET ROLE regress_al_web;
SELECT t.code($$SELECT t.spring('insert', 'B', 'long', '2 hours')$$), t.spring('insert', 'B', 'short', '-1 s');
RESET ROLE;
SELECT lock_drop_policy('int_lock:'), t.expire('int_lock:DEFAULT:short');
SET ROLE regress_al_web;
SELECT t.spring('expired', 'B'), t.spring('all', '');
-- ON CONFLICT without columns is accepted, though not needed
INSERT INTO regress_al_shop.int_lock (region, lock_key, client_id, created_date) VALUES ('DEFAULT', 'k', 'B', now()) ON CONFLICT DO NOTHING RETURNING client_id;

-- A query for one lock uses the index, and locks nothing.
SELECT trim(p) FROM t.plan($$DELETE FROM regress_al_shop.int_lock WHERE REGION='DEFAULT' AND LOCK_KEY='k' AND CLIENT_ID='A'$$) p WHERE p ~ 'Index Cond|Seq Scan';
BEGIN;
SELECT client_id FROM regress_al_shop.int_lock FOR UPDATE;
SELECT relation::regclass FROM pg_locks WHERE pid = pg_backend_pid() AND mode = 'RowShareLock' ORDER BY relation::regclass::text COLLATE "C";
COMMIT;

-- A policy admits only the script's role
RESET ROLE;
SELECT lock_set_policy('int_lock:', roles => '{regress_al_locks}');
SELECT lock_grant_access('regress_al_other', 'user') \g /dev/null
SET ROLE regress_al_other;
SELECT t.code('SELECT lock_try_acquire(''int_lock:DEFAULT:free'')');
SELECT t.spring('insert', 'C', 'free'), t.spring('close', 'C');
RESET ROLE;
SELECT lock_drop_policy('int_lock:');

-- Estimates do not reveal the clients of other roles, even with statistics.
SET ROLE regress_al_web;
INSERT INTO regress_al_shop.int_lock SELECT 'w' || n, 'DEFAULT', CASE n % 2 WHEN 0 THEN '3' ELSE '7' END || repeat('-web', 8) FROM generate_series(1, 200) n;
SET ROLE regress_al_other;
INSERT INTO regress_al_shop.int_lock SELECT 'o' || n, 'DEFAULT', 'other' FROM generate_series(1, 200) n;
RESET ROLE;
SELECT attstattarget FROM pg_attribute WHERE attrelid = 'regress_al_shop.int_lock_client'::regclass AND attname = 'client_id';
ALTER TABLE regress_al_shop.int_lock_client ALTER client_id SET STATISTICS 100;
ANALYZE regress_al_shop.int_lock_client;
CREATE FUNCTION t.estimate(condition text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	plan	json;
BEGIN
	EXECUTE 'EXPLAIN (FORMAT JSON) SELECT * FROM regress_al_shop.int_lock WHERE ' || condition INTO plan;
	RETURN concat_ws(' ', plan->0->'Plan'->>'Plan Rows', plan->0->'Plan'->>'Total Cost');
END
$$;
SET ROLE regress_al_other;
SELECT op, count(DISTINCT t.estimate(format('client_id %s %L', op, c)))
	FROM unnest('{<,=,^@}'::text[]) op, unnest(ARRAY['0', '3', '3' || repeat('-web', 8), '5', '9', 'z']) c
	GROUP BY op ORDER BY op COLLATE "C";

-- With the CLIENT_ID of another role, that role's lock is neither taken nor shortened.
SELECT t.raises($$SELECT t.spring('insert', '3' || repeat('-web', 8), 'w2', '1 s')$$);
SELECT t.spring('update', '3' || repeat('-web', 8), 'w2', '1 s'), t.spring('delete', '3' || repeat('-web', 8), 'w2');
SET ROLE regress_al_web;
SELECT t.spring('insert', '3' || repeat('-web', 8), 'w2', '30 min'), t.minutes('w2');
SELECT t.spring('delete', '3' || repeat('-web', 8), 'w2');
RESET ROLE;

-- A role that gets the name of another role sees none of its locks.
ALTER ROLE regress_al_web RENAME TO regress_al_former;
CREATE ROLE regress_al_web;
GRANT USAGE ON SCHEMA regress_al_shop TO regress_al_web;
GRANT SELECT, INSERT, UPDATE, DELETE ON regress_al_shop.int_lock TO regress_al_web;
SET ROLE regress_al_web;
SELECT t.spring('all', '');
SET ROLE regress_al_former;
SELECT t.spring('all', '') > 100;
RESET ROLE;
DROP OWNED BY regress_al_web;
DROP ROLE regress_al_web;
ALTER ROLE regress_al_former RENAME TO regress_al_web;

-- A lock of a partition that has moved to another server has ended here.
SELECT lock_partition('int_lock:DEFAULT:w3', 2) AS partition \gset
SET ROLE regress_al_web;
SELECT count(*) AS before FROM regress_al_shop.int_lock \gset
RESET ROLE;
SET atomic_lock.partitions = 2;
SET atomic_lock.partition = :partition;
SELECT count(*) AS here FROM regress_al_shop.int_lock_client WHERE role = 'regress_al_web'::regrole AND lock_partition('int_lock:' || region || ':' || lock_key, 2) = :partition \gset
SET ROLE regress_al_web;
SELECT :here < :before AS some_moved, count(*) = :before AS all_seen, count(*) FILTER (WHERE expired_after = 'infinity') = :here AS held_here FROM regress_al_shop.int_lock;
SELECT t.spring('expired', '');
SELECT count(*) = :here AS others_pruned FROM regress_al_shop.int_lock;
RESET ROLE;
RESET atomic_lock.partitions;
RESET atomic_lock.partition;

-- After DROP EXTENSION ... CASCADE and CREATE EXTENSION
DROP EXTENSION atomic_lock CASCADE;
CREATE EXTENSION atomic_lock;
SELECT lock_grant_access('regress_al_locks', 'user') \g /dev/null
-- with functions that another role has planted in the extension's schema
CREATE FUNCTION t.plant(signature text, result text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('CREATE FUNCTION public.%s RETURNS %s LANGUAGE plpgsql AS $f$BEGIN RAISE %L; END$f$', signature, result, 'called: ' || signature);
	EXECUTE format('ALTER FUNCTION public.%s DEPENDS ON EXTENSION atomic_lock', regexp_replace(signature, ' DEFAULT [^,)]*', '', 'g'));
END
$$;
SELECT t.plant(s, r) FROM (VALUES
	('lock_key(text, text, text)', 'text'),
	('lock_key(anyarray)', 'text'),
	('lock_try_acquire(text, interval, text, text DEFAULT NULL, interval DEFAULT NULL, text DEFAULT NULL)', 'public.lock_grant'),
	('lock_try_acquire(key text, ttl interval, owner text, meta jsonb DEFAULT NULL, holder text DEFAULT NULL)', 'public.lock_grant'),
	('lock_try_acquire(key text, ttl interval, owner text, holder name)', 'public.lock_grant'),
	('lock_try_acquire(text, interval, text, text, text, text, text, text, text)', 'public.lock_grant'),
	('lock_try_release(text, anyelement)', 'text'),
	('lock_policy(name)', 'public.app_lock_policy'),
	('lock_policy(character varying)', 'public.app_lock_policy')) v(s, r) \g /dev/null
\set ECHO none
SET ROLE regress_al_locks;
\i :script
RESET ROLE;
\set ON_ERROR_STOP off
\set ECHO all
SET ROLE regress_al_web;
SELECT t.spring('count', 'A'), t.spring('insert', 'B'), t.spring('renew', 'B'), t.spring('close', 'B');
RESET ROLE;
SELECT regress_al_shop.int_lock_key('orders');
RESET ROLE;

DROP TABLE fake;
DROP SCHEMA regress_al_shop CASCADE;
SELECT lock_revoke_access(r, 'user') FROM unnest(ARRAY['regress_al_locks', 'regress_al_other']::regrole[]) r \g /dev/null
DROP ROLE regress_al_locks, regress_al_web, regress_al_other, regress_al_none;
