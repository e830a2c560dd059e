-- spring.sql: the JDBC locks of Spring Integration, unchanged, on the locks of atomic_lock
--
-- Makes a view "int_lock" that stands for the table INT_LOCK.  DefaultLockRepository,
-- JdbcLockRegistry and leader election then take leases, which callers of
-- lock_acquire() respect, and whose locks they respect.  Versions 5 to 7 do.
--
--   schema   where the view is to live; without it, public.  Spring finds it by the
--            search_path of its role, or with repository.setPrefix("shop.INT_").  A
--            table of that name has to go first.
--   ttl      length of the leases of clients before version 7, which do not tell it:
--            give it what setTimeToLive() gives them; without it, 10s, as in Spring.
--
-- A lock has the key lock_key('int_lock', region, lock_key).  Spring makes lock_key of
-- the application's name for the lock, and int_lock_key() does the same:
--
--   SELECT lock_acquire(shop.int_lock_key('orders'));
--
-- Everything here belongs to the role that runs this, and locks in its name.  That is a
-- role which does nothing else, and no superuser.  It needs level user, and CREATE on
-- the schema:
--
--   CREATE ROLE shop_locks;
--   SELECT lock_grant_access('shop_locks', 'user');
--   GRANT CREATE, USAGE ON SCHEMA shop TO shop_locks;
--
--   PGOPTIONS='-c role=shop_locks' psql -d app -v schema=shop -f spring.sql
--
--   GRANT SELECT, INSERT, UPDATE, DELETE ON shop.int_lock TO web;
--
-- "web", as which Spring connects, needs nothing else.  Run the script again after an
-- update of atomic_lock, or where that was dropped and created again.
--
-- A role with USAGE on the schema can test whether a CLIENT_ID that it guesses has a
-- lock: all roles may execute int_lock_end(), which the view needs.  Spring's own
-- CLIENT_ID is a UUID.  One that you pass to DefaultLockRepository has to be as hard to
-- guess.
--
-- As with the table, a role that may delete or update can also say LOCK TABLE int_lock IN
-- ACCESS EXCLUSIVE MODE.  It stops the clients of all roles until the transaction ends.
--
-- Differences from the table:
--
-- - The owner of a lock is its CLIENT_ID.  A role sees what was locked by this role and
--   through this view.  So the processes of an application connect as one role; where
--   they cannot: ALTER ROLE worker SET role = web.
-- - The end of a lease is judged by the server's clock.  CREATED_DATE and EXPIRED_AFTER
--   are infinity while the client has the lock, and -infinity once it has lost it, so
--   that no clock of a client is late enough to steal a lock, or to delete it.
-- - unlock() and renew() of an expired lock fail.  In the table, they succeed until another
--   client takes the lock.
-- - A refusal is no error: INSERT inserts no row.  A ttl that is too long is an error
--   of class 53, since Spring would take 22023 for a refusal, and try again for ever.
-- - INSERT does not wait for a DELETE that is not committed: it inserts no row.
-- - close() deletes at most atomic_lock.max_claims_per_transaction locks, or raises 54000.
-- - ON CONFLICT DO NOTHING, which Spring proposes as a hint for PostgreSQL, is not
--   needed, and does no harm.

\set ON_ERROR_STOP on
\if :{?schema}
\else
	\set schema public
\endif
\if :{?ttl}
\else
	\set ttl 10s
\endif

BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;

-- Check all requirements before anything is created.
DO $$
DECLARE
	locks	text := (SELECT extnamespace::regnamespace FROM pg_extension WHERE extname = 'atomic_lock');
BEGIN
	IF locks IS NULL THEN
		RAISE undefined_object USING
			MESSAGE = 'the extension atomic_lock is not installed in this database',
			HINT = 'CREATE EXTENSION atomic_lock';
	ELSIF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
		RAISE insufficient_privilege USING
			MESSAGE = format('role "%s" is a superuser', current_user),
			DETAIL = 'The functions of this script run with the rights of the role that makes them.',
			HINT = 'Run this as a role of its own, as it says at the top.';
	ELSIF NOT has_function_privilege(locks || '.lock_try_release(text, text)', 'EXECUTE') THEN
		RAISE insufficient_privilege USING
			MESSAGE = format('role "%s" needs level user of atomic_lock', current_user),
			HINT = format('SELECT %s.lock_grant_access(%L, ''user'')', locks, current_user);
	END IF;
END
$$;

SELECT extnamespace::regnamespace AS locks, to_regnamespace(quote_ident(:'schema')) IS NULL AS no_schema
FROM pg_extension WHERE extname = 'atomic_lock' \gset
\if :no_schema
	CREATE SCHEMA :"schema";
\endif

-- The clients that have locked by the view.  The extension knows which still have the lock.
CREATE TABLE IF NOT EXISTS :"schema".int_lock_client (
	region		text,
	lock_key	text,
	client_id	text NOT NULL,
	role		oid NOT NULL,
	ahead		interval,
	PRIMARY KEY (region, lock_key)
);
COMMENT ON TABLE :"schema".int_lock_client IS 'internal: clients that have taken locks by int_lock';
COMMENT ON COLUMN :"schema".int_lock_client.role IS 'role of the client; its oid, since a name may go to another role';
COMMENT ON COLUMN :"schema".int_lock_client.ahead IS 'how far the clock of the client is ahead of ours; null before version 7';

-- Estimates of the planner show statistics to all roles.
ALTER TABLE :"schema".int_lock_client ALTER COLUMN client_id SET STATISTICS 0;

-- The bodies name both schemas, so that no search_path decides what they call.  Calls
-- into the extension's schema have all arguments, of the exact types, so functions of
-- other roles there are never called, even if they can make a call ambiguous.
SELECT format($script$

CREATE OR REPLACE FUNCTION %2$I.int_lock_key(name text, region text DEFAULT 'DEFAULT')
RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	-- UUIDConverter: the name if it is a UUID, else nameUUIDFromBytes() of it
	SELECT %1$s.lock_key(VARIADIC ARRAY['int_lock', region, lower(CASE
		WHEN name ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN name
		ELSE overlay(overlay(d PLACING '3' FROM 13 FOR 1)
			PLACING substr('89ab', 1 + (('x' || substr(d, 17, 1))::bit(4)::integer & 3), 1) FROM 17 FOR 1)::uuid::text END)]::text[])
	FROM md5(convert_to(name, 'UTF8')) d
$$;
COMMENT ON FUNCTION %2$I.int_lock_key(text, text) IS
'the key that JdbcLockRegistry.obtain(name) locks in a region';

CREATE OR REPLACE FUNCTION %2$I.int_lock_end(region text, lock_key text, client_id text)
RETURNS timestamp
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	RETURN CASE WHEN %1$s.lock_is_held(%1$s.lock_key(VARIADIC ARRAY['int_lock', region, lock_key]::text[]), client_id)
		THEN 'infinity' ELSE '-infinity' END;
EXCEPTION
	WHEN SQLSTATE 'LK010' THEN
		RETURN '-infinity';		-- its partition has moved to another server
END
$$;
COMMENT ON FUNCTION %2$I.int_lock_end(text, text, text) IS
'internal: infinity if this client has the lock, -infinity if it has not';

CREATE OR REPLACE FUNCTION %2$I.int_lock_change()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	key		text := %1$s.lock_key(VARIADIC ARRAY['int_lock',
							coalesce(OLD.region, NEW.region), coalesce(OLD.lock_key, NEW.lock_key)]::text[]);
	utc		timestamp := clock_timestamp() AT TIME ZONE 'UTC';
	ttl		interval;
	longest	interval;
	granted	%1$s.lock_grant;
BEGIN
	-- A role that may execute this function could make it the trigger of its own table.
	IF TG_RELID <> %5$L::regclass THEN
		RAISE insufficient_privilege USING MESSAGE = 'this is no trigger for other tables than int_lock';
	END IF;

	CASE TG_OP
		WHEN 'INSERT' THEN
			ttl := greatest(coalesce(NEW.expired_after - NEW.created_date, %3$L), '1 ms');
			SELECT least(p.max_ttl, p.max_lifetime) INTO longest FROM %1$s.lock_policy(key) p;
			IF ttl > longest THEN
				RAISE configuration_limit_exceeded USING
					MESSAGE = format('a lock for %%s is too long', ttl),
					DETAIL = format('Lock "%%s" may be held for %%s.', key, longest);
			END IF;
			-- An unfinished transaction may be deleting the row of an expired lock.  Writing
			-- the row would wait for that transaction, with a claim on the key.  The row of a
			-- live lock is not locked here, so its DELETE does not wait for attempts.
			BEGIN
				PERFORM FROM %2$I.int_lock_client c
				WHERE c.region = NEW.region AND c.lock_key = NEW.lock_key AND NOT %1$s.lock_is_held(key, c.client_id)
				FOR UPDATE NOWAIT;
			EXCEPTION
				WHEN lock_not_available THEN
					RETURN NULL;
			END;
			granted := %1$s.lock_try_acquire(key, ttl, NEW.client_id, 'exclusive'::text, '0'::interval,
				coalesce(nullif(current_setting('application_name'), ''), pg_get_userbyid(NEW.role)::text),
				NULL::jsonb, 'lease'::text, NULL::integer, NULL::text);
			IF NOT granted.acquired THEN
				RETURN NULL;
			END IF;
			INSERT INTO %2$I.int_lock_client AS c
			VALUES (NEW.region, NEW.lock_key, NEW.client_id, NEW.role,
				CASE WHEN NEW.expired_after IS NOT NULL THEN NEW.created_date - utc END)
			ON CONFLICT (region, lock_key) DO UPDATE
				SET client_id = excluded.client_id, role = excluded.role, ahead = excluded.ahead
				WHERE c.role = excluded.role OR granted.status <> 'reacquired';
			IF NOT FOUND THEN
				RAISE insufficient_privilege USING
					MESSAGE = format('lock "%%s" was taken by this client as another role', key);
			END IF;

		WHEN 'UPDATE' THEN
			-- This is another client that takes an expired lock.  Spring tries INSERT next.
			IF (NEW.region, NEW.lock_key, NEW.client_id) IS DISTINCT FROM (OLD.region, OLD.lock_key, OLD.client_id) THEN
				RETURN NULL;
			END IF;
			-- Without a new end, a lease gets the length that it has.
			IF NEW.expired_after <> OLD.expired_after THEN
				SELECT greatest(NEW.expired_after - utc - c.ahead, '1 ms') INTO ttl
				FROM %2$I.int_lock_client c
				WHERE c.region = OLD.region AND c.lock_key = OLD.lock_key AND c.ahead IS NOT NULL;
			END IF;
			IF %1$s.lock_try_extend(key, OLD.client_id, ttl) IS NULL THEN
				RETURN NULL;
			END IF;

		WHEN 'DELETE' THEN
			IF OLD.expired_after = 'infinity' THEN
				IF %1$s.lock_try_release(key, OLD.client_id) <> 'released' THEN
					RETURN NULL;
				END IF;
				DELETE FROM %2$I.int_lock_client c
				WHERE c.region = OLD.region AND c.lock_key = OLD.lock_key;
				RETURN OLD;
			END IF;
			-- Delete the row of an expired lock, unless a client has taken or is taking the lock.
			DELETE FROM %2$I.int_lock_client c
			WHERE c.region = OLD.region AND c.lock_key = OLD.lock_key AND %2$I.int_lock_end(c.region, c.lock_key, c.client_id) < 'infinity'
				AND c.ctid = ANY (ARRAY(
					SELECT l.ctid FROM %2$I.int_lock_client l
					WHERE l.region = OLD.region AND l.lock_key = OLD.lock_key FOR UPDATE SKIP LOCKED));
			RETURN NULL;
	END CASE;
	RETURN NEW;
END
$$;
REVOKE ALL ON FUNCTION %2$I.int_lock_change() FROM PUBLIC;
COMMENT ON FUNCTION %2$I.int_lock_change() IS 'internal: carries out a change of int_lock';

-- SELECT ... FOR UPDATE does not lock rows of a WITH query.  The planner inlines it, so a
-- search for one lock uses the index.  CASE hides client_id from the planner, whose
-- estimates would reveal the values of other roles.
CREATE OR REPLACE VIEW %2$I.int_lock_by_role (lock_key, region, client_id, created_date, expired_after, role)
WITH (security_barrier) AS
WITH client AS (
	SELECT c.lock_key, c.region, CASE c.role WHEN quote_ident(current_user)::regrole THEN c.client_id END AS client_id, e.at, c.role
	FROM %2$I.int_lock_client c, %2$I.int_lock_end(c.region, c.lock_key, c.client_id) e(at)
	WHERE c.role = quote_ident(current_user)::regrole
)
SELECT lock_key, region, client_id, at, at, role FROM client;
COMMENT ON VIEW %2$I.int_lock_by_role IS 'internal: int_lock, and the role that took a lock';

-- An INSERT into int_lock cannot name the role: it is the current one.
ALTER VIEW %2$I.int_lock_by_role ALTER COLUMN role SET DEFAULT quote_ident(current_user)::regrole;

CREATE OR REPLACE TRIGGER int_lock_change
INSTEAD OF INSERT OR UPDATE OR DELETE ON %2$I.int_lock_by_role
FOR EACH ROW EXECUTE FUNCTION %2$I.int_lock_change();

CREATE OR REPLACE VIEW %2$I.int_lock AS
SELECT lock_key, region, client_id, created_date, expired_after FROM %2$I.int_lock_by_role;
COMMENT ON VIEW %2$I.int_lock IS 'the JDBC locks of Spring Integration, as leases of atomic_lock';
COMMENT ON COLUMN %2$I.int_lock.lock_key IS 'what is locked, as a UUID';
COMMENT ON COLUMN %2$I.int_lock.region IS 'part of the name; DEFAULT, unless setRegion() was called';
COMMENT ON COLUMN %2$I.int_lock.client_id IS 'secret that proves who has the lock';
COMMENT ON COLUMN %2$I.int_lock.created_date IS 'infinity while the client has the lock, -infinity once it has lost it';
COMMENT ON COLUMN %2$I.int_lock.expired_after IS 'the same; to be written: when the lock ends';

-- CREATE OR REPLACE does not change the owner of an object.
DO $$
DECLARE
	policy	record := %1$s.lock_policy('int_lock:'::text);
BEGIN
	IF EXISTS (SELECT FROM pg_class WHERE relname IN ('int_lock', 'int_lock_by_role', 'int_lock_client')
			AND relnamespace = %4$L::regnamespace AND relowner <> quote_ident(current_user)::regrole)
		OR EXISTS (SELECT FROM pg_proc WHERE proname IN ('int_lock_key', 'int_lock_end', 'int_lock_change')
			AND pronamespace = %4$L::regnamespace AND proowner <> quote_ident(current_user)::regrole) THEN
		RAISE insufficient_privilege USING
			MESSAGE = 'a function or relation of this script, whose names begin with int_lock, belongs to another role',
			HINT = 'Drop what this script makes, or run it as the role to which all of it belongs.';
	END IF;
	IF %3$L::interval > least(policy.max_ttl, policy.max_lifetime) THEN
		RAISE invalid_parameter_value USING
			MESSAGE = format('ttl is %%s, and keys may be held for %%s', %3$L, least(policy.max_ttl, policy.max_lifetime)),
			HINT = 'SELECT lock_set_policy(''int_lock:'', max_ttl => ...), or setTimeToLive() and psql -v ttl=...';
	END IF;
END
$$;

$script$, :'locks', :'schema', :'ttl', quote_ident(:'schema'), format('%I.int_lock_by_role', :'schema')) \gexec

COMMIT;
