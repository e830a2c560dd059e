\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
\set ECHO none
\set laravel :srcdir '/../sql/compat/laravel.sql'
-- created as the header of the script says
DROP SCHEMA IF EXISTS shop, evil CASCADE;
DROP ROLE IF EXISTS regress_al_locks, regress_al_web, regress_al_worker, regress_al_direct;
CREATE ROLE regress_al_locks;
CREATE ROLE regress_al_web;
CREATE ROLE regress_al_worker;
CREATE ROLE regress_al_direct;
SELECT lock_grant_access('regress_al_locks', 'user'), lock_grant_access('regress_al_direct', 'user') \g /dev/null
GRANT SELECT (key, slot, role, released, expires_at, owner, meta) ON app_lock TO regress_al_locks;
CREATE SCHEMA shop;
GRANT CREATE, USAGE ON SCHEMA shop TO regress_al_locks;
GRANT USAGE ON SCHEMA shop TO regress_al_web, regress_al_worker;
SET ROLE regress_al_locks;
\set schema shop
\set prefix shop_cache_
\i :laravel
\i :laravel
\set ON_ERROR_STOP off
RESET ROLE;
GRANT SELECT, INSERT, UPDATE, DELETE ON shop.cache_locks TO regress_al_web, regress_al_worker;
-- The number of rows that a statement changes
CREATE FUNCTION t.changes(stmt text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	n	bigint;
BEGIN
	EXECUTE stmt;
	GET DIAGNOSTICS n = ROW_COUNT;
	RETURN n;
END
$$;
CREATE FUNCTION t.ttl(k text) RETURNS interval LANGUAGE sql SECURITY DEFINER AS 'SELECT (public.lock_status(k)).ttl_remaining';
-- Clocks are compared in seconds. Leases last for hours, so that none ends during the test on a
-- slow machine.
SELECT floor(extract(epoch FROM now()))::bigint AS now \gset
\set ECHO all
-- sql/compat/laravel.sql: the view for Laravel's database locks, with the statements that
-- Laravel sends
--
-- Properties:
-- - Each statement has the same outcome as on Laravel's table, judged by the server's clock.
-- - A role with rights on the view alone takes, extends and releases locks of its prefix. Of
--   owners, it sees only those of locks that its own role took through the view: errors,
--   functions in WHERE and transferred locks reveal no others.
-- - It locks no row, uses only its own keys, and no object of its own is called, nor one
--   planted in the extension's schema.
-- - Pruning reads nothing, and a query for one key reads that key only.
--
-- Turns red when: an owner is shown or usable across roles, also to a role that got the name of
-- another; a planted function matches a call better than ours; a client judges the end of a
-- lease; a forced release is not audited, or not refused; the planner cannot see through the
-- view.

SET SESSION AUTHORIZATION regress_al_web;
SET search_path = shop;
--
-- acquire(), refresh(), release()
--
INSERT INTO cache_locks ("key", "owner", "expiration") VALUES ('shop_cache_a', 'web-1', :now + 3600);
SELECT t.raises(format('INSERT INTO cache_locks ("key", "owner", "expiration") VALUES (''shop_cache_a'', ''web-2'', %s)', :now + 3600));
-- reacquiring one's own lock; a client whose clock is a hundred years ahead, or without end,
-- steals nothing
SELECT o, now, t.changes(format('UPDATE cache_locks SET "owner" = %L, "expiration" = %s WHERE "key" = ''shop_cache_a'' AND ("owner" = %1$L OR "expiration" <= %s)', o, :now + 7200, :now + later))
	FROM (VALUES ('web-1', 'now', 0), ('web-2', 'now', 0), ('web-2', 'ahead', 3155760000), ('web-2', 'endless', 9223372036854775807 - :now)) v(o, now, later);
SELECT o, t.changes(format('UPDATE cache_locks SET "expiration" = %s WHERE "key" = ''shop_cache_a'' AND "owner" = %L AND "expiration" > %s', :now + 14400, o, :now)) AS refreshed,
	t.changes(format('DELETE FROM cache_locks WHERE "expiration" <= %s', :now + 3155760000)) AS pruned
	FROM unnest('{web-1,web-2}'::text[]) o;
SELECT * FROM cache_locks WHERE "key" = 'shop_cache_a' AND "expiration" > :now LIMIT 1;
SELECT t.ttl('shop_cache_a') BETWEEN '2 h 5 min' AND '4 h' AS refreshed;
SELECT o, t.changes(format('DELETE FROM cache_locks WHERE "key" = ''shop_cache_a'' AND "owner" = %L', o)) AS released
	FROM unnest('{web-2,web-1,web-1}'::text[]) o;
SELECT * FROM cache_locks WHERE "key" = 'shop_cache_a';
-- INSERT by the owner reacquires; forceRelease() of one's own lock is a release
INSERT INTO cache_locks VALUES ('shop_cache_a', 'web-1', :now + 3600);
INSERT INTO cache_locks VALUES ('shop_cache_a', 'web-1', :now + 7200);
SELECT t.changes('DELETE FROM cache_locks WHERE "key" = ''shop_cache_a''');
-- a client's clock that is behind or ahead: a lease that is one second too long gets max_ttl
SELECT error, t.raises(format('INSERT INTO cache_locks VALUES (''shop_cache_b'', ''web-1'', %s)', e)) ~ u.error AS is_so
	FROM unnest(ARRAY[:now - 60, 0, :now + 86430, :now + 90000, 9223372036854775807],
		ARRAY['^22023: .* over at once.*DETAIL: .* [0-9]+[.]', '^22023: .* over at once', '^no error', '^22023: ttl must be between', '^22008']) u(e, error);
INSERT INTO cache_locks VALUES ('shop_cache_day', 'web-1', :now + 86401);
-- keys outside the prefix, and null; no owner
SELECT t.raises(format('INSERT INTO cache_locks VALUES (%L, %L, %s)', k, o, :now + 3600))
	FROM (VALUES ('other_cache_a', 'web-1'), ('shop_cache', 'web-1'), ('SHOP_CACHE_a', 'web-1'), (NULL, 'web-1'), ('shop_cache_c', NULL), ('shop_cache_c', ''), ('shop_cache_c', repeat('x', 256))) v(k, o);
-- unsupported statements
SELECT t.code(s) FROM unnest(ARRAY[
	$$INSERT INTO cache_locks VALUES ('shop_cache_c', 'web-1', 1) ON CONFLICT DO NOTHING$$,
	'TRUNCATE cache_locks',
	'LOCK TABLE cache_locks',
	'LOCK TABLE cache_locks IN ROW EXCLUSIVE MODE',
	'SELECT * FROM cache_locks_by_role',
	$$INSERT INTO cache_locks_by_role VALUES ('shop_cache_c', 'web-1', 1, 'regress_al_worker')$$,
	$$SELECT public.lock_acquire('shop_cache_c')$$,
	'SELECT * FROM public.app_lock']) s;
SELECT s, t.changes('UPDATE cache_locks SET ' || s || ' WHERE "key" = ''shop_cache_day''') FROM unnest(ARRAY['"key" = ''shop_cache_c''', '"owner" = ''web-2''', '"owner" = NULL']) s;

--
-- Others: another role of the view, and a direct caller of the functions
--
SET SESSION AUTHORIZATION regress_al_direct;
SET search_path = public;
SELECT key, locked, holder, lifetime, ttl_remaining > '23:00' AS long, role, meta - 'roleid' AS meta, meta->>'roleid' = 'regress_al_web'::regrole::oid::text AS roleid FROM lock_status('shop_cache_day');
SELECT status FROM lock_try_acquire('shop_cache_day', owner => 'direct-1');
SELECT status FROM lock_acquire('shop_cache_direct', owner => 'direct-1', holder => 'Dora', meta => '{"role": "regress_al_web"}');
SELECT status FROM lock_acquire('other_cache_a', owner => 'direct-1');
SELECT status FROM lock_acquire('shop_cache_shared', owner => 'direct-1', mode => 'shared');
-- a transferred lock keeps its meta, and its new owner is not shown
SET SESSION AUTHORIZATION regress_al_web;
INSERT INTO shop.cache_locks VALUES ('shop_cache_handed', 'web-1', :now + 3600);
SET SESSION AUTHORIZATION regress_al_direct;
SELECT status FROM lock_transfer('shop_cache_handed', 'web-1', 'direct-2', 'Dora');
SET SESSION AUTHORIZATION regress_al_worker;
SET search_path = shop;
INSERT INTO cache_locks VALUES ('shop_cache_worker', 'worker-1', :now + 3600);
SELECT "key", "owner" FROM cache_locks ORDER BY "key";
SET SESSION AUTHORIZATION regress_al_web;
SELECT "key", "owner" FROM cache_locks ORDER BY "key";
SELECT "key", "owner" FROM cache_locks WHERE "owner" ~ 'direct|worker' OR "key" !~ 'shop_cache_' OR "key" = 'other_cache_a';
-- what the view shows cannot be used to change locks of others
SELECT k, t.code(format('INSERT INTO cache_locks VALUES (%L, ''web-9'', %s)', k, :now + 3600)) AS insert,
	t.code(format('DELETE FROM cache_locks WHERE "key" = %L', k)) AS delete
	FROM unnest('{shop_cache_direct,shop_cache_handed,shop_cache_worker,shop_cache_shared}'::text[]) k;
SELECT t.raises($$DELETE FROM cache_locks WHERE "key" = 'shop_cache_worker'$$);
SELECT s, t.changes(s) FROM unnest(ARRAY[
	'UPDATE cache_locks SET "expiration" = 9 WHERE "key" <> ''shop_cache_day''',
	'UPDATE cache_locks SET "owner" = '''', "expiration" = 9 WHERE "owner" = ''''',
	'UPDATE cache_locks SET "owner" = ''web-9'', "expiration" = 9 WHERE "owner" = ''''',
	'DELETE FROM cache_locks WHERE "owner" = ''worker-1'' OR "owner" = ''direct-1''']) s;
-- nor can a function that the planner calls first because it is cheap
CREATE FUNCTION pg_temp.told(VARIADIC text[]) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS $$
BEGIN
	IF array_to_string($1, ',') ~ 'direct-|worker-|other' THEN RAISE 'told: %', $1; END IF;
	RETURN true;
END $$;
SET enable_indexscan = off;
SET enable_indexonlyscan = off;
SET enable_bitmapscan = off;
SELECT count(*) FROM cache_locks WHERE pg_temp.told("key");
SELECT count(*) FROM cache_locks WHERE pg_temp.told("key", "owner", cache_locks::text);
RESET enable_indexscan;
RESET enable_indexonlyscan;
RESET enable_bitmapscan;
SELECT t.changes('DELETE FROM cache_locks WHERE pg_temp.told("key", "owner") AND "key" = ''shop_cache_nobody''');
-- a role that knows a lock's owner, as a queued job does, can take over the lock
SET SESSION AUTHORIZATION regress_al_worker;
INSERT INTO cache_locks VALUES ('shop_cache_day', 'web-1', :now + 3600);
SELECT "owner" FROM cache_locks WHERE "key" = 'shop_cache_day';
DELETE FROM cache_locks WHERE "key" = 'shop_cache_day' AND "owner" = 'web-1';

-- a role that gets the name of another role sees none of its owners
RESET SESSION AUTHORIZATION;
ALTER ROLE regress_al_worker RENAME TO regress_al_former;
CREATE ROLE regress_al_worker;
GRANT USAGE ON SCHEMA shop TO regress_al_worker;
GRANT SELECT ON shop.cache_locks TO regress_al_worker;
SET SESSION AUTHORIZATION regress_al_worker;
SELECT "key", "owner" FROM shop.cache_locks WHERE "key" = 'shop_cache_worker';
SET SESSION AUTHORIZATION regress_al_former;
SELECT "key", "owner" FROM shop.cache_locks WHERE "key" = 'shop_cache_worker';
RESET SESSION AUTHORIZATION;
DROP OWNED BY regress_al_worker;
DROP ROLE regress_al_worker;
ALTER ROLE regress_al_former RENAME TO regress_al_worker;
SET search_path = shop;

--
-- If the view's owner has level supervisor, DELETE ends locks of others by force
--
RESET SESSION AUTHORIZATION;
SELECT public.lock_grant_access('regress_al_locks', 'supervisor') \g /dev/null
SET SESSION AUTHORIZATION regress_al_web;
SELECT k, t.changes(format('DELETE FROM cache_locks WHERE "key" = %L', k)) FROM unnest('{shop_cache_direct,shop_cache_worker}'::text[]) k;
SELECT "key" FROM cache_locks ORDER BY 1;
RESET SESSION AUTHORIZATION;
SET search_path = public;
SELECT action, key, previous_holder, session_role, acting_role, reason FROM lock_audit ORDER BY key;
SELECT lock_try_release('shop_cache_direct', 'direct-1'), lock_try_release('shop_cache_worker', 'worker-1'), lock_try_release('shop_cache_day', 'web-1');
SELECT lock_revoke_access('regress_al_locks', 'supervisor') \g /dev/null

--
-- No object of the caller is called, and no row is locked
--
CREATE SCHEMA evil AUTHORIZATION regress_al_web;
SET SESSION AUTHORIZATION regress_al_web;
GRANT USAGE ON SCHEMA evil TO PUBLIC;
SET search_path = evil, pg_temp, shop, pg_catalog;
CREATE FUNCTION evil.oops(text, text) RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RAISE 'called as %', current_user; END$$;
CREATE FUNCTION evil.starts_with(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT evil.oops($1, $2)';
CREATE FUNCTION evil.jsonb_build_object(text, text) RETURNS jsonb LANGUAGE sql AS 'SELECT to_jsonb(evil.oops($1, $2))';
CREATE FUNCTION evil.to_timestamp(bigint) RETURNS timestamptz LANGUAGE sql AS $$SELECT now() WHERE evil.oops('', '')$$;
CREATE FUNCTION evil.current_setting(text) RETURNS text LANGUAGE sql AS $$SELECT $1 WHERE evil.oops('', '')$$;
CREATE OPERATOR evil.<> (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.oops);
CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.oops);
CREATE OPERATOR evil.^@ (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.oops);
CREATE DOMAIN evil.text AS pg_catalog.text CHECK (evil.oops('', ''));
CREATE DOMAIN evil.interval AS pg_catalog.interval CHECK (evil.oops('', ''));
CREATE TEMP TABLE cache_locks_by_role (key text);
INSERT INTO shop.cache_locks VALUES ('shop_cache_a', 'web-1', :now + 3600);
SELECT "owner" FROM shop.cache_locks WHERE "key" OPERATOR(pg_catalog.=) 'shop_cache_a';
UPDATE shop.cache_locks SET "expiration" = :now + 7200 WHERE "key" OPERATOR(pg_catalog.=) 'shop_cache_a';
DELETE FROM shop.cache_locks WHERE "key" OPERATOR(pg_catalog.=) 'shop_cache_a';
DROP TABLE cache_locks_by_role;
RESET search_path;
-- the trigger function is useless on other tables
CREATE TABLE evil.mine (key text, owner text, expiration bigint, role text);
SELECT t.code('CREATE TRIGGER mine BEFORE INSERT ON evil.mine FOR EACH ROW EXECUTE FUNCTION shop.cache_locks_change()');
RESET SESSION AUTHORIZATION;
GRANT EXECUTE ON FUNCTION shop.cache_locks_change() TO regress_al_web;
SET SESSION AUTHORIZATION regress_al_web;
CREATE TRIGGER mine BEFORE INSERT ON evil.mine FOR EACH ROW EXECUTE FUNCTION shop.cache_locks_change();
SELECT t.raises(format('INSERT INTO evil.mine VALUES (''shop_cache_a'', ''web-1'', %s, ''regress_al_worker'')', :now + 3600));
SELECT t.raises('SELECT shop.cache_locks_change()') ~ '^0A000' AS trigger_only;
RESET SESSION AUTHORIZATION;
INSERT INTO shop.cache_locks SELECT 'shop_cache_' || n, 'o', :now + 3600 FROM generate_series(1, 500) n;
SELECT t.fingerprint() AS before \gset
SET SESSION AUTHORIZATION regress_al_web;
BEGIN;
SELECT count(*) FROM (SELECT FROM shop.cache_locks FOR UPDATE) s;
SELECT "key" FROM shop.cache_locks WHERE "key" = 'shop_cache_handed' FOR UPDATE;
SELECT "key" FROM shop.cache_locks WHERE "key" = 'shop_cache_handed' FOR SHARE NOWAIT;
RESET SESSION AUTHORIZATION;
SELECT "key" FROM shop.cache_locks WHERE "key" = 'shop_cache_handed' FOR UPDATE;
SELECT t.fingerprint() = :'before' AS as_before, pg_current_xact_id_if_assigned() IS NULL AS wrote_nothing;
COMMIT;

--
-- Rows read: none to prune, one for a key; also with a generic plan.
--
-- The planner reads the first and the last row of the table's index.
--
ANALYZE app_lock;
SET plan_cache_mode = force_generic_plan;
PREPARE prune AS DELETE FROM shop.cache_locks WHERE "expiration" <= $1;
PREPARE look AS SELECT * FROM shop.cache_locks WHERE "key" = $1 AND "expiration" > $2 LIMIT 1;
PREPARE mine AS SELECT count(*) FROM shop.cache_locks WHERE "key" = $1 AND ("owner" = $2 OR "expiration" <= $3);
CREATE FUNCTION t.rows_read(stmt text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	before	bigint := (SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relid = 'app_lock'::regclass);
BEGIN
	EXECUTE stmt;
	RETURN (SELECT seq_tup_read + idx_tup_fetch - before FROM pg_stat_xact_user_tables WHERE relid = 'app_lock'::regclass);
END
$$;
BEGIN;
SELECT t.rows_read(format('EXECUTE prune (%s)', :now)) < 20 AS prune;
SELECT t.rows_read(format('EXECUTE look (''shop_cache_7'', %s)', :now)) < 20 AS look;
SELECT t.rows_read(format('EXECUTE mine (''shop_cache_7'', ''x'', %s)', :now)) < 20 AS mine;
SELECT t.rows_read(format('DELETE FROM shop.cache_locks WHERE "expiration" <= %s', :now)) < 20 AS prune;
SELECT t.rows_read('SELECT FROM shop.cache_locks WHERE "key" = ''other_cache_a''') < 20 AS not_of_the_prefix;
SELECT t.rows_read('SELECT FROM shop.cache_locks') > 500 AS everything;
COMMIT;

--
-- Expired locks are not shown
--
DEALLOCATE ALL;
RESET plan_cache_mode;
SELECT t.run_out('shop_cache_7', 'o');
SELECT (SELECT count(*) FROM shop.cache_locks WHERE "key" = 'shop_cache_7'),
	t.changes('DELETE FROM shop.cache_locks WHERE "key" = ''shop_cache_7''');

--
-- flushLocks()
--
SET atomic_lock.max_claims_per_transaction = 100;
SET ROLE regress_al_web;
SELECT t.raises('DELETE FROM shop.cache_locks');
RESET ROLE;
SELECT t.raises('DELETE FROM shop.cache_locks WHERE "owner" <> ''''');
DELETE FROM shop.cache_locks WHERE "key" IN (SELECT "key" FROM shop.cache_locks WHERE "owner" <> '' LIMIT 100);
RESET atomic_lock.max_claims_per_transaction;
DELETE FROM shop.cache_locks WHERE "owner" <> '';

--
-- After the extension was dropped and created again, with an untrusted search_path
--
\set ECHO none
DROP EXTENSION atomic_lock CASCADE;
CREATE EXTENSION atomic_lock;
SELECT lock_grant_access('regress_al_locks', 'user') \g /dev/null
GRANT SELECT (key, slot, role, released, expires_at, owner, meta) ON app_lock TO regress_al_locks;
-- with functions that another role has planted in the extension's schema
CREATE FUNCTION t.plant(signature text, result text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('CREATE FUNCTION public.%s RETURNS %s LANGUAGE plpgsql AS $f$BEGIN RAISE %L; END$f$', signature, result, 'called: ' || signature);
	EXECUTE format('ALTER FUNCTION public.%s DEPENDS ON EXTENSION atomic_lock', regexp_replace(signature, ' DEFAULT [^,)]*', '', 'g'));
END
$$;
SELECT t.plant(s, r) FROM (VALUES
	('lock_try_acquire(text, interval, text, text DEFAULT NULL, interval DEFAULT NULL, text DEFAULT NULL)', 'public.lock_grant'),
	('lock_try_acquire(key text, ttl interval, owner text, meta jsonb DEFAULT NULL, holder text DEFAULT NULL)', 'public.lock_grant'),
	('lock_try_acquire(key text, ttl interval, owner text, holder name)', 'public.lock_grant'),
	('lock_try_acquire(text, interval, text, text, text, text, text, text, text)', 'public.lock_grant'),
	('lock_try_release(text, anyelement)', 'text'),
	('lock_try_force_release(text, text)', 'text'),
	('lock_try_force_release(text, name)', 'text'),
	('lock_policy(name)', 'public.app_lock_policy'),
	('lock_policy(character varying)', 'public.app_lock_policy')) v(s, r) \g /dev/null
SET ROLE regress_al_locks;
SET search_path = evil, public, pg_catalog;
\i :laravel
\set ON_ERROR_STOP off
RESET search_path;
RESET ROLE;
GRANT SELECT, INSERT, UPDATE, DELETE ON shop.cache_locks TO regress_al_web;
\set ECHO all
SET ROLE regress_al_web;
INSERT INTO shop.cache_locks VALUES ('shop_cache_a', 'web-1', :now + 3600);
SELECT "key", "owner" FROM shop.cache_locks;
UPDATE shop.cache_locks SET "expiration" = :now + 7200 WHERE "key" = 'shop_cache_a';
DELETE FROM shop.cache_locks WHERE "key" = 'shop_cache_a';
INSERT INTO shop.cache_locks VALUES ('shop_cache_a', 'web-1', :now + 3600);
RESET ROLE;
SELECT lock_grant_access('regress_al_locks', 'supervisor') \g /dev/null
-- a forced release
DELETE FROM shop.cache_locks WHERE "key" = 'shop_cache_a' RETURNING "owner";
DROP SCHEMA shop, evil CASCADE;
DROP OWNED BY regress_al_locks, regress_al_web, regress_al_worker, regress_al_direct;
DROP ROLE regress_al_locks, regress_al_web, regress_al_worker, regress_al_direct;
