-- laravel.sql: the database locks of Laravel, unchanged, on the locks of atomic_lock
--
-- Makes a view "cache_locks" that stands for the table of that name.  Cache::lock(),
-- block(), withoutOverlapping(), funnel() and unique jobs then take leases, which
-- callers of lock_acquire() respect, and whose locks they respect.
--
--   prefix   The view has the keys that begin with it, and no others.  Laravel puts it
--            before every key: 'prefix' in config/cache.php.  Calls of lock_acquire()
--            name the whole key, such as shop_cache_import.
--   schema   where the view is to live; without it, public.  Laravel finds it by the
--            'search_path' of its connection.  A table of that name has to go first.
--
-- Everything here belongs to the role that runs this, and locks in its name.  That is a
-- role which does nothing else, and no superuser: LOCK TABLE cache_locks reaches what
-- the owner of the view may lock.  It needs level user, CREATE on the schema, and to
-- read some columns of app_lock.  A DBA says:
--
--   CREATE ROLE shop_locks;
--   SELECT lock_grant_access('shop_locks', 'user');
--   GRANT SELECT (key, slot, role, released, expires_at, owner, meta) ON app_lock TO shop_locks;
--   GRANT USAGE, CREATE ON SCHEMA shop TO shop_locks;
--
--   PGOPTIONS='-c role=shop_locks' psql -d app -v schema=shop -v prefix=shop_cache_ -f laravel.sql
--
--   GRANT USAGE ON SCHEMA shop TO web;
--   GRANT SELECT, INSERT, UPDATE, DELETE ON shop.cache_locks TO web;
--
-- "web", as which Laravel connects, needs nothing else.  Run the script again after an
-- update of atomic_lock, with another prefix, and where shop_locks gets another name.
-- An update that changes one of these columns fails as long as the views use it:
--
--   DROP VIEW shop.cache_locks, shop.cache_locks_by_role;
--
-- Then update, run the script, and GRANT again.  Leases stay.
--
-- Differences from the table:
--
-- - An owner is shown to the role that took the lock by this view.  All others see ''.
--   So the processes of an application connect as one role; where they cannot:
--   GRANT web TO worker; ALTER ROLE worker SET role = web.
-- - A DELETE of a lock that another role or a direct caller has taken is force_release:
--   shop_locks needs level supervisor for it, and lock_audit has the role that logged in as
--   session_role.  A DELETE of a lock of the same role is a release, also by
--   forceRelease(), which Laravel uses for the normal end of scheduled tasks and unique jobs.
-- - The end of a lease is judged by the server's clock.  "expiration" is always the
--   greatest bigint, so that no clock of a client is late enough to steal a lock, and
--   pruning is answered without a look at the table.
-- - Laravel sends when a lock is to end, by its own clock: keep the clocks together.
--   The end may be up to a minute too late: then the lease has the length max_ttl.
--   Beyond, or where it is in the past, the error is 22023.
-- - Laravel takes every error of an INSERT for a refusal.  The server's log has them.
-- - Locks without seconds, and withoutOverlapping(), last a day.  That is the default of
--   atomic_lock.max_ttl; the script warns where less is allowed.
-- - One transaction can delete atomic_lock.max_claims_per_transaction locks.  With more,
--   flushLocks() raises 54000.
-- - Keys that are shared, or held by a transaction, are refused but not seen.
-- - A role that may read the view may learn from EXPLAIN which keys outside the prefix have
--   a row, because the planner estimates by the statistics of all keys.  It cannot learn
--   owners.  To hide a key, lock a digest of it: see "Hidden keys" in doc/clients.md.
-- - Under REPEATABLE READ and SERIALIZABLE, the view shows what was there when the
--   transaction began, and may raise 40001.  INSERT sees the present state.

\set ON_ERROR_STOP on
\if :{?schema}
\else
	\set schema public
\endif
\if :{?prefix}
\else
	\set prefix ''
\endif

BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;

-- Check all requirements before anything is created.
SELECT format($script$
DO $$
DECLARE
	locks	text := (SELECT extnamespace::regnamespace FROM pg_extension WHERE extname = 'atomic_lock');
BEGIN
	IF %1$L = '' THEN
		RAISE invalid_parameter_value USING
			MESSAGE = 'no prefix is given',
			HINT = 'Say psql -v prefix=..., with the prefix that Laravel has in config/cache.php.';
	ELSIF locks IS NULL THEN
		RAISE undefined_object USING
			MESSAGE = 'the extension atomic_lock is not installed in this database',
			HINT = 'CREATE EXTENSION atomic_lock';
	ELSIF NOT has_function_privilege(locks || '.lock_try_release(text, text)', 'EXECUTE') THEN
		RAISE insufficient_privilege USING
			MESSAGE = format('role "%%s" needs level user of atomic_lock', current_user),
			HINT = format('SELECT %%s.lock_grant_access(%%L, ''user'')', locks, current_user);
	ELSIF NOT (SELECT bool_and(has_column_privilege(locks || '.app_lock', c, 'SELECT'))
		FROM unnest('{key,slot,role,released,expires_at,owner,meta}'::text[]) c) THEN
		RAISE insufficient_privilege USING
			MESSAGE = format('role "%%s" needs to read app_lock', current_user),
			HINT = format('GRANT SELECT (key, slot, role, released, expires_at, owner, meta) ON %%s.app_lock TO %%I', locks, current_user);
	ELSIF has_table_privilege(locks || '.app_lock', 'UPDATE, DELETE, TRUNCATE') THEN
		RAISE insufficient_privilege USING
			MESSAGE = format('role "%%s" may do more than read app_lock', current_user),
			DETAIL = 'Whoever may change cache_locks could lock that table by it.',
			HINT = 'Run this as a role of its own, as it says at the top.';
	END IF;
END
$$
$script$, :'prefix') \gexec

SELECT extnamespace::regnamespace AS locks, to_regnamespace(quote_ident(:'schema')) IS NULL AS no_schema
FROM pg_extension WHERE extname = 'atomic_lock' \gset
\if :no_schema
	CREATE SCHEMA :"schema";
\endif

-- The bodies name both schemas, so that no search_path decides what they call.  Calls
-- into the extension's schema have all arguments, of the exact types, so functions of
-- other roles there are never called, even if they can make a call ambiguous.
SELECT format($script$

CREATE OR REPLACE FUNCTION %2$I.cache_locks_change()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	ttl		interval;
	longest	interval;
BEGIN
	-- A role that may execute this function could make it the trigger of its own table.
	IF TG_RELID <> %4$L::regclass THEN
		RAISE insufficient_privilege USING MESSAGE = 'this is no trigger for other tables than cache_locks';
	END IF;

	IF TG_OP = 'DELETE' THEN
		IF OLD.owner <> '' THEN
			IF %1$s.lock_try_release(OLD.key, OLD.owner) <> 'released' THEN
				RETURN NULL;
			END IF;
		ELSIF NOT has_function_privilege(%6$L, 'EXECUTE') THEN
			RAISE insufficient_privilege USING
				MESSAGE = format('lock "%%s" was not taken by this role', OLD.key),
				HINT = format('It can be ended by force if role "%%s" has level supervisor of atomic_lock.', current_user);
		ELSE
			CASE %1$s.lock_try_force_release(OLD.key, 'DELETE FROM cache_locks'::text, NULL::bigint)
				WHEN 'released' THEN
				WHEN 'pending' THEN
					RAISE lock_not_available USING MESSAGE = format('lock "%%s" is in use by an unfinished transaction', OLD.key);
				ELSE RETURN NULL;
			END CASE;
		END IF;
		RETURN OLD;
	END IF;

	IF TG_OP = 'UPDATE' THEN
		-- Laravel gives an expired lock to another owner.  The view has no expired locks.
		IF OLD.owner = '' OR (NEW.key, NEW.owner) IS DISTINCT FROM (OLD.key, OLD.owner) THEN
			RETURN NULL;
		END IF;
	ELSIF starts_with(NEW.key, %3$L) IS NOT TRUE OR NEW.owner IS NULL OR NEW.expiration IS NULL THEN
		RAISE invalid_parameter_value USING
			MESSAGE = format('cache_locks takes no key "%%s"', NEW.key),
			HINT = format('Its keys begin with "%%s", and it needs an owner and an expiration.', %3$L);
	END IF;

	ttl := to_timestamp(NEW.expiration) - clock_timestamp();
	longest := (%1$s.lock_policy(NEW.key)).max_ttl;
	IF ttl > longest AND ttl <= longest + '1 minute' THEN
		ttl := longest;
	ELSIF ttl <= '0' THEN
		RAISE invalid_parameter_value USING
			MESSAGE = format('lock "%%s" would be over at once', NEW.key),
			DETAIL = format('The clock of the server is %%s s ahead of its expiration.', -extract(epoch FROM ttl)),
			HINT = 'Compare the clocks of the client and the server.';
	END IF;

	IF TG_OP = 'UPDATE' THEN
		IF %1$s.lock_try_extend(NEW.key, NEW.owner, ttl) IS NULL THEN
			RETURN NULL;
		END IF;
	ELSIF NOT (%1$s.lock_try_acquire(NEW.key, ttl, NEW.owner, 'exclusive'::text, '0'::interval,
			coalesce(nullif(current_setting('application_name'), ''), pg_get_userbyid(NEW.role::oid)::text),
			jsonb_build_object('role', pg_get_userbyid(NEW.role::oid), 'roleid', NEW.role),
			'lease'::text, NULL::integer, NULL::text)).acquired THEN
		RAISE unique_violation USING MESSAGE = format('lock "%%s" is held', NEW.key);
	END IF;
	RETURN NEW;
END
$$;
REVOKE ALL ON FUNCTION %2$I.cache_locks_change() FROM PUBLIC;
COMMENT ON FUNCTION %2$I.cache_locks_change() IS 'internal: carries out a change of cache_locks';

-- SELECT ... FOR UPDATE does not lock rows of a WITH query.  The planner inlines it, so a
-- search for one key uses the index.
CREATE OR REPLACE VIEW %2$I.cache_locks_by_role (key, owner, expiration, role)
WITH (security_barrier) AS
WITH lease AS (
	SELECT l.key, l.owner, CASE WHEN pg_get_userbyid(l.role) = %7$L THEN l.meta->>'roleid' END AS role
	FROM %1$s.app_lock l
	WHERE l.slot = 0 AND NOT l.released AND l.expires_at > statement_timestamp() AND l.key ^@ %3$L
)
SELECT key, CASE role WHEN quote_ident(current_user)::regrole::oid::text THEN owner ELSE '' END, 9223372036854775807, role
FROM lease;
COMMENT ON VIEW %2$I.cache_locks_by_role IS 'internal: cache_locks, and the role that took a lock';

-- An INSERT into cache_locks cannot name the role: it is the current one.  It is kept by
-- its oid, since a name may go to another role.
ALTER VIEW %2$I.cache_locks_by_role ALTER COLUMN role SET DEFAULT quote_ident(current_user)::regrole::oid::text;

CREATE OR REPLACE TRIGGER cache_locks_change
INSTEAD OF INSERT OR UPDATE OR DELETE ON %2$I.cache_locks_by_role
FOR EACH ROW EXECUTE FUNCTION %2$I.cache_locks_change();

CREATE OR REPLACE VIEW %2$I.cache_locks AS
SELECT key, owner, expiration FROM %2$I.cache_locks_by_role;
COMMENT ON VIEW %2$I.cache_locks IS 'the database locks of Laravel, as leases of atomic_lock';
COMMENT ON COLUMN %2$I.cache_locks.key IS 'what is locked';
COMMENT ON COLUMN %2$I.cache_locks.owner IS 'secret that proves who has the lock; empty for all but the role that took it here';
COMMENT ON COLUMN %2$I.cache_locks.expiration IS 'write: when the lock ends, in seconds since 1970; read: always the greatest bigint, so that no lock seems to have expired';

-- CREATE OR REPLACE does not change the owner of an object.
DO $$
DECLARE
	policy	record := %1$s.lock_policy(%3$L::text);
BEGIN
	IF EXISTS (SELECT FROM pg_class WHERE relname IN ('cache_locks', 'cache_locks_by_role')
			AND relnamespace = %5$L::regnamespace AND relowner <> quote_ident(current_user)::regrole)
		OR EXISTS (SELECT FROM pg_proc WHERE proname = 'cache_locks_change'
			AND pronamespace = %5$L::regnamespace AND proowner <> quote_ident(current_user)::regrole) THEN
		RAISE insufficient_privilege USING
			MESSAGE = 'a function or view of this script, whose names begin with cache_locks, belongs to another role',
			HINT = 'Drop what this script makes, or run it as the role to which all of it belongs.';
	END IF;
	-- A lock of Laravel's own default lasts a day.
	IF least(policy.max_ttl, policy.max_lifetime) < '24:00:00' THEN
		RAISE WARNING USING
			MESSAGE = format('locks that last a day, as Laravel''s do by default, will not be granted: keys may be held for %%s',
				least(policy.max_ttl, policy.max_lifetime)),
			HINT = format('SELECT lock_set_policy(%%L, max_ttl => ''1 day'', max_lifetime => ''0'')', %3$L);
	END IF;
END
$$;

$script$, :'locks', :'schema', :'prefix', format('%I.cache_locks_by_role', :'schema'),
	quote_ident(:'schema'), :'locks' || '.lock_try_force_release(text, text, bigint)', current_user) \gexec

COMMIT;
