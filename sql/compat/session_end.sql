-- session_end.sql: when a session of the application ends, so do its locks
--
-- Puts triggers on the application's table of sessions.  Where a row is deleted, by a
-- logout or when old sessions are cleared away, the locks of its owner are released, in
-- the same transaction.  Where the id of a session changes, they are handed over.
--
--   table    the table of sessions, with its schema
--   column   the column that the owner is made of; without it, id:
--              Laravel: table=shop.sessions column=id
--              Django: table=shop.django_session column=session_key
--              Spring Session: table=shop.spring_session column=session_id
--   digest   on, the default: the owner is encode(sha256(column), 'hex'), so that an owner
--            that leaks cannot be used to log in.  off: the column is the owner.
--   schema   where the functions are to live; without it, public
--
-- Everything here belongs to the role that runs this, and releases in its name.  That is
-- no superuser.  It needs level user, CREATE on the schema, and TRIGGER on the table and its partitions:
--
--   PGOPTIONS='-c role=shop_locks' psql -d app -v schema=shop -v table=shop.sessions -f session_end.sql
--
-- Policies that reserve keys have to admit it.  A role that deletes sessions needs no
-- privileges here.  Run the script again for another table, and after an update of
-- atomic_lock.
--
-- The triggers neither wait nor fail.  A lock that an unfinished transaction relies on or
-- changes stays with the former id when the id changes.  All of them stay where they are
-- too many for atomic_lock.max_claims_per_transaction, where one may not be handed over,
-- and where the new id has locks already, as where one UPDATE changes several ids.  They
-- end with their leases.  A DELETE that names a partition, and not the table given to this
-- script, calls no trigger, nor does an UPDATE that moves a row to another partition.
--
-- The trigger of DELETE leaves to session_end_rest()
--
-- - a lock that an unfinished transaction relies on or changes, such as a request of
--   this session that is still writing,
-- - locks beyond half of atomic_lock.max_claims_per_transaction,
-- - all locks, if one of them may not be released.
--
-- So call that every minute, by pg_cron or the scheduler of the application, as any role
-- that was granted EXECUTE on it and on session_end_some.  One call tries everything
-- that is left once, and commits after each batch:
--
--   SELECT cron.schedule('* * * * *', 'CALL shop.session_end_rest()');
--
-- A lock that it leaves ends with its lease.  So does a lock of a request that commits after
-- its session has ended: no trigger can see that.  TRUNCATE releases nothing.

\set ON_ERROR_STOP on
\if :{?schema}
\else
	\set schema public
\endif
\if :{?table}
\else
	\set table ''
\endif
\if :{?column}
\else
	\set column id
\endif
\if :{?digest}
\else
	\set digest on
\endif
\if :digest
	\set how digest
\else
	\set how plain
\endif

BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;

-- Check all requirements before anything is created.
SELECT format($script$
DO $atomic_lock$
DECLARE
	locks	text := (SELECT extnamespace::regnamespace FROM pg_extension WHERE extname = 'atomic_lock');
BEGIN
	IF locks IS NULL THEN
		RAISE undefined_object USING
			MESSAGE = 'the extension atomic_lock is not installed in this database',
			HINT = 'CREATE EXTENSION atomic_lock';
	ELSIF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
		RAISE insufficient_privilege USING
			MESSAGE = format('role "%%s" is a superuser', current_user),
			DETAIL = 'The functions of this script run with the rights of the role that makes them.',
			HINT = 'Run this as a role of its own, as it says at the top.';
	ELSIF NOT has_function_privilege(locks || '.lock_try_release(text, text)', 'EXECUTE') THEN
		RAISE insufficient_privilege USING
			MESSAGE = format('role "%%s" needs level user of atomic_lock', current_user),
			HINT = format('SELECT %%s.lock_grant_access(%%L, ''user'')', locks, current_user);
	ELSIF to_regclass(%1$L) IS NULL THEN
		RAISE undefined_table USING
			MESSAGE = format('there is no table "%%s"', %1$L),
			HINT = 'Say psql -v table=..., with the schema and the name of the table of sessions.';
	END IF;
END
$atomic_lock$
$script$, :'table') \gexec

SELECT extnamespace::regnamespace AS locks, to_regclass(:'table') AS sessions,
	to_regnamespace(quote_ident(:'schema')) IS NULL AS no_schema
FROM pg_extension WHERE extname = 'atomic_lock' \gset
\if :no_schema
	CREATE SCHEMA :"schema";
\endif

CREATE TABLE IF NOT EXISTS :"schema".session_end_later (
	id			bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	owner		text NOT NULL,
	tried_at	timestamptz
);
COMMENT ON TABLE :"schema".session_end_later IS 'internal: owners whose session has ended, and that may still hold locks';

-- The bodies name both schemas, so that no search_path decides what they call.  Functions
-- of the extension get all their arguments, with their types, because a role that may
-- create in its schema could make others that fit better.
SELECT format($script$

CREATE OR REPLACE FUNCTION %2$I.session_end_owner(session text, how text DEFAULT 'digest')
RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $atomic_lock$
	-- SQL_ASCII may have any bytes.
	SELECT CASE how WHEN 'plain' THEN session ELSE encode(sha256(convert_to(session,
		CASE getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END)), 'hex') END
$atomic_lock$;
COMMENT ON FUNCTION %2$I.session_end_owner(text, text) IS 'the owner that the locks of a session have';

-- A lock that comes into use between the look and the release is waited for no longer
-- than lock_timeout.
CREATE OR REPLACE FUNCTION %2$I.session_end_release(owners text[], most bigint)
RETURNS bigint
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '1ms'
AS $atomic_lock$
	SELECT count(*) FILTER (WHERE %1$s.lock_try_release(l.key, l.owner) = 'released')
	FROM (SELECT h.key, o.owner
		FROM unnest(owners) o(owner), %1$s.lock_held(o.owner) h, %1$s.lock_status(h.key) s
		WHERE h.lifetime <> 'transaction' AND NOT s.pending
		LIMIT most) l
$atomic_lock$;
COMMENT ON FUNCTION %2$I.session_end_release(text[], bigint) IS
'internal: releases the locks of these owners that no unfinished transaction uses, and returns their number';

-- Tries owners that were not tried since then.  A clock that is put back makes no row older,
-- or session_end_rest() would try it for ever.
CREATE OR REPLACE FUNCTION %2$I.session_end_some(since timestamptz DEFAULT clock_timestamp())
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $atomic_lock$
DECLARE
	-- A session that has called no function of the extension may not know the setting.
	most	bigint := (coalesce(current_setting('atomic_lock.max_claims_per_transaction', true), '1000')::bigint + 1) / 2;
	done	bigint := 0;
	tried	bigint := 0;
	later	record;
BEGIN
	FOR later IN
		SELECT l.id, l.owner FROM %2$I.session_end_later l
		WHERE l.tried_at IS NULL OR l.tried_at < since
		ORDER BY l.tried_at NULLS FIRST, l.id LIMIT 50 FOR UPDATE SKIP LOCKED
	LOOP
		tried := tried + 1;
		BEGIN
			done := done + %2$I.session_end_release(ARRAY[later.owner], most - done);
		EXCEPTION
			WHEN lock_not_available OR deadlock_detected OR program_limit_exceeded THEN
				NULL;
			WHEN OTHERS THEN
				RAISE WARNING USING MESSAGE = format('locks of a session that has ended stay until they run out: %%s', SQLERRM);
		END;
		IF NOT EXISTS (SELECT FROM %1$s.lock_held(later.owner)) THEN
			DELETE FROM %2$I.session_end_later l WHERE l.id = later.id;
		ELSIF done < most THEN
			UPDATE %2$I.session_end_later l SET tried_at = greatest(clock_timestamp(), since) WHERE l.id = later.id;
		END IF;
		-- The next transaction may release more of the same owner.
		EXIT WHEN done >= most;
	END LOOP;
	RETURN tried;
END
$atomic_lock$;
COMMENT ON FUNCTION %2$I.session_end_some(timestamptz) IS
'tries to release locks that were left when sessions ended, and returns the number of owners tried';

-- A procedure that commits can have no search_path of its own.
CREATE OR REPLACE PROCEDURE %2$I.session_end_rest()
LANGUAGE plpgsql
AS $atomic_lock$
DECLARE
	start	pg_catalog.timestamptz := pg_catalog.clock_timestamp();
BEGIN
	WHILE %2$I.session_end_some(start) OPERATOR(pg_catalog.>) 0 LOOP
		COMMIT;
	END LOOP;
END
$atomic_lock$;
COMMENT ON PROCEDURE %2$I.session_end_rest() IS
'tries once to release all locks that were left when sessions ended; commits after each batch';

-- A value that is too long for an owner holds nothing.
CREATE OR REPLACE FUNCTION %2$I.session_end_holders(sessions text[], how text)
RETURNS text[]
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $atomic_lock$
	SELECT ARRAY(SELECT o FROM unnest(sessions) e, %2$I.session_end_owner(e, how) o
		WHERE CASE WHEN octet_length(o) BETWEEN 1 AND 255 THEN EXISTS (SELECT FROM %1$s.lock_held(o)) END)
$atomic_lock$;
COMMENT ON FUNCTION %2$I.session_end_holders(text[], text) IS 'internal: the owners of these sessions that hold something';

-- The arguments of the triggers are the column, and "how" of session_end_owner.  format()
-- makes text of a value without a cast, which the owner of its type could have made.
CREATE OR REPLACE FUNCTION %2$I.session_end_deleted()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $atomic_lock$
DECLARE
	ended	text[];
	holders	text[] := '{}';
	session	text;
	fault	text;
BEGIN
	EXECUTE format('SELECT array_agg(format(''%%%%s'', %%I)) FROM gone', TG_ARGV[0]) INTO ended;
	IF ended IS NULL THEN
		RETURN NULL;
	END IF;
	BEGIN
		holders := %2$I.session_end_holders(ended, TG_ARGV[1]);
	EXCEPTION WHEN data_exception THEN
		-- One of them has no owner, such as an id that has no equivalent in UTF-8.
		FOREACH session IN ARRAY ended LOOP
			BEGIN
				holders := holders || %2$I.session_end_holders(ARRAY[session], TG_ARGV[1]);
			EXCEPTION WHEN data_exception THEN
				fault := SQLERRM;
			END;
		END LOOP;
		RAISE WARNING USING MESSAGE = format('locks of sessions that have ended stay until they run out: %%s', fault);
	END;
	IF holders = '{}' THEN
		RETURN NULL;
	END IF;
	BEGIN
		PERFORM %2$I.session_end_release(holders, (current_setting('atomic_lock.max_claims_per_transaction')::bigint + 1) / 2);
	EXCEPTION WHEN OTHERS THEN
		NULL;		-- session_end_rest() tries again
	END;
	INSERT INTO %2$I.session_end_later (owner)
		SELECT o FROM unnest(holders) o WHERE EXISTS (SELECT FROM %1$s.lock_held(o));
	RETURN NULL;
EXCEPTION WHEN OTHERS THEN
	-- A logout must work even if atomic_lock was dropped, or its level revoked.
	RAISE WARNING USING MESSAGE = format('locks of sessions that have ended stay until they run out: %%s', SQLERRM);
	RETURN NULL;
END
$atomic_lock$;
COMMENT ON FUNCTION %2$I.session_end_deleted() IS 'internal: releases the locks of deleted sessions';

CREATE OR REPLACE FUNCTION %2$I.session_end_renamed()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '1ms'
AS $atomic_lock$
DECLARE
	ids		text[];
	former	text;
	heir	text;
BEGIN
	EXECUTE format('SELECT ARRAY[format(''%%%%s'', $1.%%1$I), format(''%%%%s'', $2.%%1$I)]', TG_ARGV[0]) INTO ids USING OLD, NEW;
	former := %2$I.session_end_owner(ids[1], TG_ARGV[1]);
	heir := %2$I.session_end_owner(ids[2], TG_ARGV[1]);
	IF octet_length(former) NOT BETWEEN 1 AND 255 OR octet_length(heir) NOT BETWEEN 1 AND 255
		OR NOT EXISTS (SELECT FROM %1$s.lock_held(former)) THEN
		RETURN NULL;
	ELSIF EXISTS (SELECT FROM %1$s.lock_held(heir)) THEN
		-- One statement has changed several ids: row by row, a lock would pass to the next session.
		RAISE WARNING 'locks of a session that has a new id stay with its former one: another session has that id';
		RETURN NULL;
	END IF;
	-- Labels stay.
	PERFORM %1$s.lock_try_transfer(h.key, former, heir,
			CASE h.mode WHEN 'exclusive' THEN s.holder END, NULL::interval)
	FROM %1$s.lock_held(former) h, %1$s.lock_status(h.key) s
	WHERE h.lifetime <> 'transaction' AND NOT s.pending;
	RETURN NULL;
EXCEPTION WHEN OTHERS THEN
	RAISE WARNING USING MESSAGE = format('locks of a session that has a new id stay with its former one: %%s', SQLERRM);
	RETURN NULL;
END
$atomic_lock$;
COMMENT ON FUNCTION %2$I.session_end_renamed() IS 'internal: hands the locks of a session over to its new id';

-- A role that may execute a trigger function could make it the trigger of its own table.
-- The function does not know the right tables: the script may be run for any table.
REVOKE ALL ON ROUTINE %2$I.session_end_release(text[], bigint), %2$I.session_end_holders(text[], text), %2$I.session_end_some(timestamptz),
	%2$I.session_end_rest(), %2$I.session_end_deleted(), %2$I.session_end_renamed() FROM PUBLIC;

CREATE OR REPLACE TRIGGER session_end_deleted AFTER DELETE ON %3$s
REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT EXECUTE FUNCTION %2$I.session_end_deleted(%4$L, %5$L);

-- It costs nothing where the id stays, as in nearly every request of an application.
CREATE OR REPLACE TRIGGER session_end_renamed AFTER UPDATE ON %3$s
FOR EACH ROW WHEN (OLD.%4$I IS DISTINCT FROM NEW.%4$I)
EXECUTE FUNCTION %2$I.session_end_renamed(%4$L, %5$L);

-- CREATE OR REPLACE does not change the owner of an object.
DO $atomic_lock$
BEGIN
	IF EXISTS (SELECT FROM pg_class WHERE relname = 'session_end_later'
			AND relnamespace = %6$L::regnamespace AND relowner <> quote_ident(current_user)::regrole)
		OR EXISTS (SELECT FROM pg_proc WHERE proname IN ('session_end_owner', 'session_end_release', 'session_end_holders', 'session_end_some',
				'session_end_rest', 'session_end_deleted', 'session_end_renamed')
			AND pronamespace = %6$L::regnamespace AND proowner <> quote_ident(current_user)::regrole) THEN
		RAISE insufficient_privilege USING
			MESSAGE = 'a function or table of this script, whose names begin with session_end_, belongs to another role',
			HINT = 'Drop what this script makes, or run it as the role to which all of it belongs.';
	END IF;
END
$atomic_lock$;

$script$, :'locks', :'schema', :'sessions', :'column', :'how', quote_ident(:'schema')) \gexec

COMMIT;
