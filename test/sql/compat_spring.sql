\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- sql/compat/spring.sql: what the statements of Spring's DefaultLockRepository are
-- answered, and what a role can do that was granted no more than the view
--
-- Properties: a client gets by the view what lock_try_acquire, lock_try_extend and
-- lock_try_release would give to the owner of that name, and the row counts tell it;
-- no time that a client sends takes away or deletes what another holds.  A role sees
-- what it has locked itself, by the view, whatever functions it calls in its query, and
-- changes nothing else.  No row of the extension's tables is locked by a look.
-- The script can be run again.
--
-- Turns red when: a count is wrong; a clock ahead ends a lease; an owner is shown to
-- another role; a trigger function can be executed by everybody; a look for one lock
-- reads all.

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
-- again
\i :script
RESET ROLE;
\set ON_ERROR_STOP off
\set ECHO all
GRANT SELECT, INSERT, UPDATE, DELETE ON regress_al_shop.int_lock TO regress_al_web, regress_al_other;

-- The statements of version 7, with times of a client whose clock is wrong
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

-- The life of a lock: free, locked, locked again (by the same client, as a thread that
-- has it does), refused to another, renewed, unlocked
SET ROLE regress_al_web;
SELECT t.spring('all', ''), t.spring('update', 'A'), t.spring('insert', 'A'), t.spring('update', 'A'), t.spring('count', 'A'), t.spring('all', '');
SELECT t.spring('update', 'B'), t.spring('insert', 'B'), t.spring('count', 'B'), t.spring('renew', 'B'), t.spring('delete', 'B'), t.spring('close', 'B');
SELECT t.spring('insert', 'B', region => 'NORTH'), t.spring('delete', 'B', region => 'NORTH');
TABLE regress_al_shop.int_lock;
SELECT t.spring('renew', 'A', ttl => '30 min'), t.minutes('k');
SELECT t.spring('update', 'A', ttl => '5 min'), t.minutes('k');
SELECT t.spring('delete', 'A'), t.spring('delete', 'A'), t.spring('all', '');

-- A clock that is wrong by a year and a bit: leases have the length that was asked for.
-- Nobody else's clock ends them.
SELECT t.spring('insert', 'A', clock => '400 days'), t.minutes('k');
SELECT t.spring('renew', 'A', ttl => '30 min', clock => '400 days'), t.minutes('k');
SELECT t.spring('expired', 'B', clock => '9000 days'), t.spring('update', 'B', clock => '9000 days'), t.spring('insert', 'B', clock => '9000 days'), t.spring('count', 'A', clock => '9000 days');
SELECT t.spring('delete', 'A', clock => '-400 days');

-- Before version 7, a client sends no end.
INSERT INTO regress_al_shop.int_lock (region, lock_key, client_id, created_date) VALUES ('DEFAULT', 'k', 'A', '2020-01-01');
SELECT t.minutes('k');
UPDATE regress_al_shop.int_lock SET created_date = '2020-01-02' WHERE region = 'DEFAULT' AND lock_key = 'k' AND client_id = 'A' RETURNING client_id;
SELECT t.minutes('k');
-- one that was updated meanwhile
SELECT t.spring('renew', 'A', ttl => '30 min'), t.minutes('k'), t.spring('delete', 'A');

-- What is over: it cannot be renewed or unlocked, and is cleared away by whoever looks.
SELECT t.spring('insert', 'A', ttl => '1 ms'), t.spring('insert', 'B', 'other', ttl => '1 ms');
RESET ROLE;
SELECT t.expire('int_lock:DEFAULT:k'), t.expire('int_lock:DEFAULT:other');
SET ROLE regress_al_web;
SELECT t.spring('count', 'A'), t.spring('renew', 'A'), t.spring('update', 'A'), t.spring('delete', 'A'), t.spring('close', 'A');
SELECT t.spring('update', 'B'), t.spring('insert', 'B'), t.spring('count', 'B'), t.spring('insert', 'A');
SELECT t.spring('all', ''), t.spring('expired', 'A');
RESET ROLE;
SELECT lock_key, client_id FROM regress_al_shop.int_lock_client;

-- Ended by an administrator; and what direct callers have
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

-- The owner is CLIENT_ID, so guards know a client that presents it.
SET ROLE regress_al_web;
SELECT t.spring('insert', 'A');
RESET ROLE;
SELECT lock_assert('int_lock:DEFAULT:k', 'A') > 0;
SELECT holder, role, meta FROM lock_status('int_lock:DEFAULT:k');

-- Another role sees nothing of it, and changes nothing, not even by functions of its own.
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

-- Errors that Spring does not take for a refusal (that would be classes 22 and 23)
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
-- ON CONFLICT without columns is no error, and needless
INSERT INTO regress_al_shop.int_lock (region, lock_key, client_id, created_date) VALUES ('DEFAULT', 'k', 'B', now()) ON CONFLICT DO NOTHING RETURNING client_id;

-- A look for one lock is a look into the index, and locks nothing.
SELECT trim(p) FROM t.plan($$DELETE FROM regress_al_shop.int_lock WHERE REGION='DEFAULT' AND LOCK_KEY='k' AND CLIENT_ID='A'$$) p WHERE p ~ 'Index Cond|Seq Scan';
BEGIN;
SELECT client_id FROM regress_al_shop.int_lock FOR UPDATE;
SELECT relation::regclass FROM pg_locks WHERE pid = pg_backend_pid() AND mode = 'RowShareLock' ORDER BY relation::regclass::text COLLATE "C";
COMMIT;

-- Where a policy lets nobody but the script's role have the keys
RESET ROLE;
SELECT lock_set_policy('int_lock:', roles => '{regress_al_locks}');
SELECT lock_grant_access('regress_al_other', 'user') \g /dev/null
SET ROLE regress_al_other;
SELECT t.code('SELECT lock_try_acquire(''int_lock:DEFAULT:free'')');
SELECT t.spring('insert', 'C', 'free'), t.spring('close', 'C');
RESET ROLE;
SELECT lock_drop_policy('int_lock:');

-- After DROP EXTENSION ... CASCADE and CREATE EXTENSION
DROP EXTENSION atomic_lock CASCADE;
CREATE EXTENSION atomic_lock;
SELECT lock_grant_access('regress_al_locks', 'user') \g /dev/null
\set ECHO none
SET ROLE regress_al_locks;
\i :script
RESET ROLE;
\set ON_ERROR_STOP off
\set ECHO all
SET ROLE regress_al_web;
SELECT t.spring('count', 'A'), t.spring('insert', 'B'), t.spring('close', 'B');
RESET ROLE;

DROP TABLE fake;
DROP SCHEMA regress_al_shop CASCADE;
SELECT lock_revoke_access(r, 'user') FROM unnest(ARRAY['regress_al_locks', 'regress_al_other']::regrole[]) r \g /dev/null
DROP ROLE regress_al_locks, regress_al_web, regress_al_other, regress_al_none;
