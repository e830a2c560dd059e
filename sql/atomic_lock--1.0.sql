/* sql/atomic_lock--1.0.sql */

-- Copyright (c) 2026, atomic_lock contributors

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION atomic_lock" to load this file. \quit

-- The script runs with the schema of the extension in search_path, right after
-- pg_catalog.  The owner of that schema cannot be trusted: the schema may have a
-- function or an operator that fits the argument types better than the one in
-- pg_catalog.  So each function, operator and cast in an expression is qualified with
-- pg_catalog, unless the expression runs under the search_path "pg_catalog, pg_temp".
-- Elsewhere the script avoids syntax that looks up an operator without naming it, such
-- as IN, BETWEEN, LIKE and CASE x WHEN.  Functions of the extension are called with
-- exactly the types of their parameters.  They cannot be qualified: the substitution that
-- CREATE EXTENSION has for that refuses schema names that we allow.

-- The first statement of this script and of each update script.  The rest of the script
-- finds objects by the name of the schema.  So the schema is locked: its owner could
-- rename it and give the name to another one.  And because the script runs as a
-- superuser, it checks that the owner of the extension has the rights it uses.
DO $$
DECLARE
	extension	pg_catalog.pg_extension;
	schema		pg_catalog.name;
BEGIN
	SELECT e.* INTO STRICT extension
	FROM pg_catalog.pg_extension e
	WHERE e.extname OPERATOR(pg_catalog.=) 'atomic_lock'::pg_catalog.name;
	SELECT n.nspname INTO schema
	FROM pg_catalog.pg_namespace n
	WHERE n.oid OPERATOR(pg_catalog.=) extension.extnamespace
	FOR NO KEY UPDATE;
	-- search_path has the name from before the lock; and "$user" means another schema.
	IF pg_catalog.starts_with(pg_catalog.current_setting('search_path'), pg_catalog.concat(pg_catalog.quote_ident(schema::pg_catalog.text), ', '))
		AND schema OPERATOR(pg_catalog.=) pg_catalog.current_schema() THEN
		NULL;
	ELSE
		RAISE object_in_use USING
			MESSAGE = pg_catalog.concat('schema ', pg_catalog.quote_ident(schema::pg_catalog.text), ' cannot have extension "atomic_lock"'),
			DETAIL = 'It is not what its name stands for in search_path, or was renamed at the same time.';
	END IF;
	IF NOT pg_catalog.has_schema_privilege(extension.extowner, extension.extnamespace, 'CREATE')
		OR NOT pg_catalog.has_schema_privilege(extension.extowner, extension.extnamespace, 'USAGE WITH GRANT OPTION') THEN
		RAISE insufficient_privilege USING
			MESSAGE = pg_catalog.concat('permission denied for schema ', pg_catalog.quote_ident(schema::pg_catalog.text)),
			DETAIL = 'The owner of the extension must be able to create objects in its schema, and to let others use it.';
	END IF;
END
$$;

-- The first call of this script and of each update script
CREATE FUNCTION app_lock_begin_script()
RETURNS void
AS 'MODULE_PATHNAME', 'atomic_lock_begin_script'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION app_lock_begin_script() IS
'internal: begins a script: fails if the library is older, waits for transactions that have written, and makes all sessions check their version';

SELECT app_lock_begin_script();

------------------------------------------------------------------------------
-- The table has one row per holding.  Only the code in src/table reads or
-- writes it; src/table/columns.h mirrors its columns, in this order.
--
-- Slot 0 is the exclusive holding of a key; higher slots are shared holdings.
-- No index may contain a column that acquire, extend or release changes, or
-- updates would not be HOT.
------------------------------------------------------------------------------

-- A role that creates a trusted extension may have no rights in a tablespace.
SET LOCAL default_tablespace = '';

CREATE TYPE lock_mode AS ENUM ('exclusive', 'shared');

COMMENT ON TYPE lock_mode IS 'exclusive: one owner has the key; shared: any number of them';

-- Columns up to the key have the same offset in every row, and the key begins at a
-- multiple of 4, which makes updates cheaper.  Columns that most leases do not use come
-- last, where nulls take no space.  A release changes the length of no column, so the
-- next version of the row fits into the space of the last one.
CREATE TABLE app_lock (
	fencing_token	bigint NOT NULL,
	acquired_at		timestamptz NOT NULL,
	expires_at		timestamptz NOT NULL,
	ttl_us			bigint NOT NULL,
	slot			integer NOT NULL,
	mode			lock_mode NOT NULL,
	role			oid NOT NULL,
	key				text COLLATE "C" NOT NULL,
	released		boolean NOT NULL DEFAULT false,
	holder			text COLLATE "C" NOT NULL,
	owner			text COLLATE "C",
	owner_hash		bigint,
	meta			jsonb,
	pid				integer,
	backend_start	timestamptz,
	CONSTRAINT app_lock_pkey PRIMARY KEY (key, slot)
) USING heap WITH (
	-- leaves room for about six row versions; PostgreSQL prunes a full page
	fillfactor = 87,
	autovacuum_vacuum_scale_factor = 0.02,
	autovacuum_vacuum_threshold = 500,
	autovacuum_vacuum_cost_delay = 0,
	-- acquires would wait for the lock of a truncation
	vacuum_truncate = false,
	toast.vacuum_truncate = false
);

-- This index finds the leases of owners that the application has named.  An acquire of
-- one key with a generated owner adds no entry, and so stays HOT; see
-- src/table/owner_rows.c.  Deduplication is off, because an entry for several rows can be
-- removed only when all of them are dead.
CREATE INDEX app_lock_owner_idx ON app_lock (owner_hash)
	WITH (deduplicate_items = off)
	WHERE owner_hash IS NOT NULL;

-- These texts are short, and stay in the row however large meta is.
ALTER TABLE app_lock
	ALTER COLUMN key SET STORAGE MAIN,
	ALTER COLUMN holder SET STORAGE MAIN,
	ALTER COLUMN owner SET STORAGE MAIN;

COMMENT ON TABLE app_lock IS 'holdings of locks, one row each; a lease is live while it is not released and the clock is before expires_at';
COMMENT ON COLUMN app_lock.fencing_token IS 'rises with every grant of the key';
COMMENT ON COLUMN app_lock.acquired_at IS 'when the holding was granted';
COMMENT ON COLUMN app_lock.expires_at IS 'when the lease expires; after a release, when it was released';
COMMENT ON COLUMN app_lock.ttl_us IS 'length that a ttl or a default last gave the lease, in microseconds; lock_extend without ttl repeats it; 0: none';
COMMENT ON COLUMN app_lock.slot IS '0 for the exclusive holding of the key, greater for a shared one';
COMMENT ON COLUMN app_lock.key IS 'what is locked, compared byte by byte';
COMMENT ON COLUMN app_lock.mode IS 'exclusive or shared';
COMMENT ON COLUMN app_lock.role IS 'role that acquired it; no dependency keeps it from being dropped';
COMMENT ON COLUMN app_lock.holder IS 'label of the holder, for people';
COMMENT ON COLUMN app_lock.owner IS 'secret that proves who has the holding; null after force_release; empty in a row that its owner released before a later grant of the key to it';
COMMENT ON COLUMN app_lock.owner_hash IS 'hash of an owner and the key, for the index; kept when the row passes to an owner that is not in the index';
COMMENT ON COLUMN app_lock.released IS 'whether the holding was released';
COMMENT ON COLUMN app_lock.meta IS 'anything that the application keeps with the lease';
COMMENT ON COLUMN app_lock.pid IS 'process id of the session that ends the holding when it exits; null for a lease';
COMMENT ON COLUMN app_lock.backend_start IS 'start of that session, as in pg_stat_activity';

-- The last fencing token; see src/table/fence.c.
CREATE SEQUENCE app_lock_fence AS bigint NO CYCLE CACHE 1;

COMMENT ON SEQUENCE app_lock_fence IS 'last fencing token; atomic_lock draws tokens itself, never with nextval()';

CREATE TABLE lock_audit (
	at						timestamptz NOT NULL,
	action					text NOT NULL,
	key						text COLLATE "C" NOT NULL,
	previous_holder			text,
	previous_owner_digest	text COLLATE "C",
	fencing_token			bigint,
	session_role			name NOT NULL,
	acting_role				name NOT NULL,
	client_addr				inet,
	reason					text NOT NULL,
	id						uuid NOT NULL,
	CONSTRAINT lock_audit_pkey PRIMARY KEY (id)
) USING heap;

-- This index tells a former owner who ended its lease.
CREATE INDEX lock_audit_key_idx ON lock_audit (key, previous_owner_digest);

COMMENT ON TABLE lock_audit IS 'one row per holding that was ended by force_release or lock_steal';
COMMENT ON COLUMN lock_audit.at IS 'when it was ended';
COMMENT ON COLUMN lock_audit.action IS 'force_release or lock_steal';
COMMENT ON COLUMN lock_audit.key IS 'which lock';
COMMENT ON COLUMN lock_audit.previous_holder IS 'label of the holder whose lease was ended; null when lock_steal found the key free';
COMMENT ON COLUMN lock_audit.previous_owner_digest IS 'SHA-256 of the owner whose lease was ended, in hex';
COMMENT ON COLUMN lock_audit.fencing_token IS 'fencing token of the lease that was ended';
COMMENT ON COLUMN lock_audit.session_role IS 'role that logged in';
COMMENT ON COLUMN lock_audit.acting_role IS 'role in effect, after SET ROLE';
COMMENT ON COLUMN lock_audit.client_addr IS 'address of the client; null on a Unix-domain socket';
COMMENT ON COLUMN lock_audit.reason IS 'reason that was given';
COMMENT ON COLUMN lock_audit.id IS 'random identifier of the record, unique over all copies of the database';

-- Policies that lock_set_policy has set.  A null part is left to shorter prefixes and
-- settings.  The roles of a policy have a table of their own: if one of them is missing
-- when a dump is restored, PostgreSQL may restore none of their rows, and has_roles then
-- still keeps all other roles out.  src/table/columns.h mirrors the columns.
CREATE TABLE app_lock_policy (
	prefix				text COLLATE "C" NOT NULL,
	default_ttl_us		bigint,
	max_ttl_us			bigint,
	max_wait_us			bigint,
	max_lifetime_us		bigint,
	lock_delay_us		bigint,
	min_hold_us			bigint,
	max_holders			bigint,
	max_keys_per_role	bigint,
	history				bigint,
	notify				bigint,
	has_roles			bigint,
	CONSTRAINT app_lock_policy_pkey PRIMARY KEY (prefix),
	-- the checks of lock_set_policy, for rows that are written in other ways
	CONSTRAINT app_lock_policy_check CHECK (
		pg_catalog.octet_length(prefix) OPERATOR(pg_catalog.<=) 1024
		AND LEAST(default_ttl_us, max_ttl_us) OPERATOR(pg_catalog.>=) 1000
		AND LEAST(max_wait_us, max_lifetime_us, lock_delay_us, min_hold_us, history, notify, has_roles) OPERATOR(pg_catalog.>=) 0
		AND GREATEST(default_ttl_us, max_ttl_us, max_wait_us, max_lifetime_us, lock_delay_us, min_hold_us) OPERATOR(pg_catalog.<=) 3153600000000000
		AND LEAST(max_holders, max_keys_per_role) OPERATOR(pg_catalog.>=) 1
		AND GREATEST(max_holders, max_keys_per_role) OPERATOR(pg_catalog.<=) 2147483647
		AND GREATEST(history, notify, has_roles) OPERATOR(pg_catalog.<=) 1)
) USING heap;

CREATE TABLE app_lock_policy_role (
	prefix				text COLLATE "C" NOT NULL,
	role				regrole NOT NULL,
	CONSTRAINT app_lock_policy_role_pkey PRIMARY KEY (prefix, role)
) USING heap;

COMMENT ON TABLE app_lock_policy IS 'policies for keys with a prefix; lock_set_policy writes it, lock_policies shows it';
COMMENT ON COLUMN app_lock_policy.prefix IS 'the policy is for keys that begin with it';
COMMENT ON COLUMN app_lock_policy.default_ttl_us IS 'length of a lease that is acquired without a ttl, in microseconds';
COMMENT ON COLUMN app_lock_policy.max_ttl_us IS 'longest ttl that a call may ask for, in microseconds';
COMMENT ON COLUMN app_lock_policy.max_wait_us IS 'longest wait that a call may ask for, in microseconds';
COMMENT ON COLUMN app_lock_policy.max_lifetime_us IS 'longest life of a lease, in microseconds; 0: no limit';
COMMENT ON COLUMN app_lock_policy.lock_delay_us IS 'how long a key stays closed after its lease expired or its session ended, in microseconds';
COMMENT ON COLUMN app_lock_policy.min_hold_us IS 'how long a key stays closed after it was acquired, even if it is released sooner, in microseconds';
COMMENT ON COLUMN app_lock_policy.max_holders IS 'how many owners may share a key';
COMMENT ON COLUMN app_lock_policy.max_keys_per_role IS 'how many of these keys a role may hold';
COMMENT ON COLUMN app_lock_policy.history IS '1: lock_history records grants; 0: it does not';
COMMENT ON COLUMN app_lock_policy.notify IS '1: events are sent; 0: they are not';
COMMENT ON COLUMN app_lock_policy.has_roles IS '1: only members of the roles may change the keys';
COMMENT ON TABLE app_lock_policy_role IS 'roles of policies, whose members may change the keys; lock_set_policy writes it, lock_policies shows it';
COMMENT ON COLUMN app_lock_policy_role.prefix IS 'of the policy';
COMMENT ON COLUMN app_lock_policy_role.role IS 'role whose members may change the keys';

CREATE FUNCTION app_lock_policy_changed()
RETURNS trigger
AS 'MODULE_PATHNAME', 'atomic_lock_policy_changed'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION app_lock_policy_changed() IS
'internal: trigger of app_lock_policy that makes all sessions read the policies again';

-- These triggers are for rows that a restore, a subscription or a person writes.  A
-- subscription fires no statement triggers.
CREATE TRIGGER app_lock_policy_changed
	AFTER INSERT OR UPDATE OR DELETE ON app_lock_policy
	FOR EACH ROW EXECUTE FUNCTION app_lock_policy_changed();
CREATE TRIGGER app_lock_policy_truncated
	AFTER TRUNCATE ON app_lock_policy
	FOR EACH STATEMENT EXECUTE FUNCTION app_lock_policy_changed();
CREATE TRIGGER app_lock_policy_changed
	AFTER INSERT OR UPDATE OR DELETE ON app_lock_policy_role
	FOR EACH ROW EXECUTE FUNCTION app_lock_policy_changed();
CREATE TRIGGER app_lock_policy_truncated
	AFTER TRUNCATE ON app_lock_policy_role
	FOR EACH STATEMENT EXECUTE FUNCTION app_lock_policy_changed();
ALTER TABLE app_lock_policy ENABLE ALWAYS TRIGGER app_lock_policy_changed,
	ENABLE ALWAYS TRIGGER app_lock_policy_truncated;
ALTER TABLE app_lock_policy_role ENABLE ALWAYS TRIGGER app_lock_policy_changed,
	ENABLE ALWAYS TRIGGER app_lock_policy_truncated;

-- The lines of keys.  A row with a positive ticket is a ticket: a place in line.  The row
-- with ticket 0 has the last offer of a key: the number of the ticket, and its end.  A row
-- with a negative ticket marks the ticket of that number as void.  No role may read the
-- owners; an admin may delete places.  Like leases, these rows are not dumped.
CREATE TABLE app_lock_queue (
	key				text COLLATE "C" NOT NULL,
	ticket			bigint NOT NULL,
	expires_at		timestamptz NOT NULL,
	queued_at		timestamptz,
	offer_us		bigint,
	offered			bigint,
	role			oid,
	holder			text COLLATE "C",
	owner			text COLLATE "C",
	owner_hash		bigint,
	CONSTRAINT app_lock_queue_pkey PRIMARY KEY (key, ticket)
) USING heap WITH (
	-- like app_lock, because rows come and go
	fillfactor = 87,
	autovacuum_vacuum_scale_factor = 0.02,
	autovacuum_vacuum_threshold = 500,
	autovacuum_vacuum_cost_delay = 0,
	vacuum_truncate = false,
	toast.vacuum_truncate = false
);

-- This index finds the ticket of an owner.
CREATE INDEX app_lock_queue_owner_idx ON app_lock_queue (owner_hash);

COMMENT ON TABLE app_lock_queue IS 'places in line for keys, which lock_queue shows, and offers';
COMMENT ON COLUMN app_lock_queue.key IS 'which lock';
COMMENT ON COLUMN app_lock_queue.ticket IS 'number of the place, which rises in the order of arrival; 0: the offer; negative: the number of a place that has ended';
COMMENT ON COLUMN app_lock_queue.expires_at IS 'when the place is given up, or the offer ends';
COMMENT ON COLUMN app_lock_queue.queued_at IS 'when the place was taken';
COMMENT ON COLUMN app_lock_queue.offer_us IS 'for how long the lock is offered, in microseconds';
COMMENT ON COLUMN app_lock_queue.offered IS 'in row 0: number of the ticket that has the offer';
COMMENT ON COLUMN app_lock_queue.role IS 'role that took the place';
COMMENT ON COLUMN app_lock_queue.holder IS 'label of the client that took the place';
COMMENT ON COLUMN app_lock_queue.owner IS 'secret that proves the right to the place';
COMMENT ON COLUMN app_lock_queue.owner_hash IS 'finds the place of an owner';

CREATE TABLE lock_history (
	key				text COLLATE "C" NOT NULL,
	mode			text NOT NULL,
	fencing_token	bigint NOT NULL,
	owner_digest	text COLLATE "C" NOT NULL,
	holder			text NOT NULL,
	role			name NOT NULL,
	client_addr		inet,
	application		text NOT NULL,
	acquired_at		timestamptz NOT NULL,
	ended_at		timestamptz,
	ended_by		text,
	CONSTRAINT lock_history_pkey PRIMARY KEY (key, fencing_token)
) USING heap WITH (
	-- leaves room for the end of a grant, which is an update
	fillfactor = 70
);

-- The sweep finds old rows by this index.
CREATE INDEX lock_history_acquired_at_idx ON lock_history (acquired_at);

COMMENT ON TABLE lock_history IS 'one row per grant of a key whose policy asks for history; the sweep deletes what ended longer ago than atomic_lock.history_retention';
COMMENT ON COLUMN lock_history.key IS 'which lock';
COMMENT ON COLUMN lock_history.mode IS 'exclusive or shared';
COMMENT ON COLUMN lock_history.fencing_token IS 'fencing token of the grant';
COMMENT ON COLUMN lock_history.owner_digest IS 'SHA-256 of the owner, in hex';
COMMENT ON COLUMN lock_history.holder IS 'label of the holder';
COMMENT ON COLUMN lock_history.role IS 'role that acquired it';
COMMENT ON COLUMN lock_history.client_addr IS 'address of the client; null on a Unix-domain socket';
COMMENT ON COLUMN lock_history.application IS 'application_name of the session that acquired it';
COMMENT ON COLUMN lock_history.acquired_at IS 'when it was granted, converted to this mode or handed over to this owner';
COMMENT ON COLUMN lock_history.ended_at IS 'when the grant ended; null until then; an expiry is written by the next grant or a sweep, but lock_held_at shows it at once';
COMMENT ON COLUMN lock_history.ended_by IS 'why it ended: released, expired, forced, stolen, transferred, converted, session or transaction';

-- A subscriber keeps its own locks; see src/api/replication.c.
CREATE FUNCTION app_lock_keep_own()
RETURNS trigger
AS 'MODULE_PATHNAME', 'atomic_lock_keep_own'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION app_lock_keep_own() IS
'internal: trigger of app_lock, app_lock_queue and lock_history; on a subscriber, it leaves out the rows of the publisher';

CREATE TRIGGER app_lock_keep_own
	BEFORE INSERT OR UPDATE OR DELETE ON app_lock
	FOR EACH ROW EXECUTE FUNCTION app_lock_keep_own();
CREATE TRIGGER app_lock_keep_own
	BEFORE INSERT OR UPDATE OR DELETE ON app_lock_queue
	FOR EACH ROW EXECUTE FUNCTION app_lock_keep_own();
CREATE TRIGGER app_lock_keep_own
	BEFORE INSERT OR UPDATE OR DELETE ON lock_history
	FOR EACH ROW EXECUTE FUNCTION app_lock_keep_own();
ALTER TABLE app_lock ENABLE REPLICA TRIGGER app_lock_keep_own;
ALTER TABLE app_lock_queue ENABLE REPLICA TRIGGER app_lock_keep_own;
ALTER TABLE lock_history ENABLE REPLICA TRIGGER app_lock_keep_own;

-- A dump leaves leases out, so that a restore cannot revive them.  It has the sequence,
-- because fencing tokens must keep rising, and the audit trail.  A grant without an end is
-- left out, because it would never end after a restore.  So is a dropped role: only its
-- number is left, which may belong to another role in the restored database.  The cast
-- to text shows what pg_dump will write, whatever the snapshot of the dump is.
SELECT pg_catalog.pg_extension_config_dump('app_lock_fence', '');
SELECT pg_catalog.pg_extension_config_dump('lock_audit', '');
SELECT pg_catalog.pg_extension_config_dump('app_lock_policy', '');
SELECT pg_catalog.pg_extension_config_dump('app_lock_policy_role',
	$$WHERE role::pg_catalog.text OPERATOR(pg_catalog.!~) '^[0-9]'$$);
SELECT pg_catalog.pg_extension_config_dump('lock_history', 'WHERE ended_at IS NOT NULL');

------------------------------------------------------------------------------
-- Functions for applications
------------------------------------------------------------------------------

CREATE TYPE lock_grant AS (
	acquired		boolean,
	status			text,
	key				text,
	mode			text,
	owner			text,
	fencing_token	bigint,
	acquired_at		timestamptz,
	expires_at		timestamptz,
	waited			interval,
	holder			text,
	ttl_remaining	interval,
	holders			integer,
	max_holders		integer
);

COMMENT ON TYPE lock_grant IS 'answer of an acquire: the granted holding, or the holding in the way';
COMMENT ON COLUMN lock_grant.acquired IS 'whether the caller has the lock now';
COMMENT ON COLUMN lock_grant.status IS 'acquired or reacquired; when refused, why: held, pending, timeout, deadlock, lifetime_exceeded; for calls that need the owner also not_found, not_owner, already_released, expired or forced';
COMMENT ON COLUMN lock_grant.key IS 'requested key';
COMMENT ON COLUMN lock_grant.mode IS 'mode of the holding';
COMMENT ON COLUMN lock_grant.owner IS 'secret that proves who has the holding; null when refused';
COMMENT ON COLUMN lock_grant.fencing_token IS 'rises with every grant of the key; null when refused';
COMMENT ON COLUMN lock_grant.acquired_at IS 'when the holding was granted';
COMMENT ON COLUMN lock_grant.expires_at IS 'when the lease expires; null if only its session or transaction ends it';
COMMENT ON COLUMN lock_grant.waited IS 'how long the call waited';
COMMENT ON COLUMN lock_grant.holder IS 'label of the holder, for people';
COMMENT ON COLUMN lock_grant.ttl_remaining IS 'how long until expires_at, by the clock of the server; null when refused';
COMMENT ON COLUMN lock_grant.holders IS 'number of holders, including the caller once it has the lock; counted when refused as held, and with max_holders; otherwise 0; counting ends at 100, or at max_holders if that is more';
COMMENT ON COLUMN lock_grant.max_holders IS 'maximum number of holders of this request; 0: no limit';

CREATE FUNCTION lock_acquire(
	key text,
	ttl interval DEFAULT NULL,
	owner text DEFAULT NULL,
	mode text DEFAULT 'exclusive',
	wait interval DEFAULT '0',
	holder text DEFAULT NULL,
	meta jsonb DEFAULT NULL,
	lifetime text DEFAULT 'lease',
	max_holders integer DEFAULT NULL,
	on_reacquire text DEFAULT NULL
) RETURNS lock_grant
AS 'MODULE_PATHNAME', 'atomic_lock_acquire'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_acquire(text, interval, text, text, interval, text, jsonb, text, integer, text) IS
'takes the lock "key" for "ttl" (default atomic_lock.default_ttl); waits for it for up to "wait" (null: as long as max_wait allows), in the order of arrival; "mode" is exclusive or shared, and with "max_holders" no more owners than that share it; "lifetime" is lease, session, or without "max_holders" transaction; returns the holding, whose owner proves who has it; raises 55P03 if somebody else has the lock or the wait ran out, 40P01 if waiting would close a cycle of owners, LK007 if the owner has the lock and "on_reacquire" (default atomic_lock.on_reacquire) is error';

CREATE FUNCTION lock_try_acquire(
	key text,
	ttl interval DEFAULT NULL,
	owner text DEFAULT NULL,
	mode text DEFAULT 'exclusive',
	wait interval DEFAULT '0',
	holder text DEFAULT NULL,
	meta jsonb DEFAULT NULL,
	lifetime text DEFAULT 'lease',
	max_holders integer DEFAULT NULL,
	on_reacquire text DEFAULT NULL
) RETURNS lock_grant
AS 'MODULE_PATHNAME', 'atomic_lock_try_acquire'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_try_acquire(text, interval, text, text, interval, text, jsonb, text, integer, text) IS
'like lock_acquire, but returns status "held", "held_by_owner", "pending", "timeout", "deadlock" or "lifetime_exceeded" instead of raising an error';

CREATE FUNCTION lock_acquire_all(
	keys text[],
	ttl interval DEFAULT NULL,
	owner text DEFAULT NULL,
	mode text DEFAULT 'exclusive',
	wait interval DEFAULT '0',
	holder text DEFAULT NULL,
	meta jsonb DEFAULT NULL,
	max_holders integer DEFAULT NULL,
	modes text[] DEFAULT NULL
) RETURNS SETOF lock_grant
AS 'MODULE_PATHNAME', 'atomic_lock_acquire_all'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_acquire_all(text[], interval, text, text, interval, text, jsonb, integer, text[]) IS
'takes 1 to 1000 locks for one owner, all or none, in the order of their bytes; "modes" has a mode for each key, in place of "mode"; "wait" is for the whole set, and does not go with "max_holders"; returns one row per distinct key; raises what lock_acquire raises, naming the key in the way';

CREATE FUNCTION lock_try_acquire_all(
	keys text[],
	ttl interval DEFAULT NULL,
	owner text DEFAULT NULL,
	mode text DEFAULT 'exclusive',
	wait interval DEFAULT '0',
	holder text DEFAULT NULL,
	meta jsonb DEFAULT NULL,
	max_holders integer DEFAULT NULL,
	modes text[] DEFAULT NULL
) RETURNS SETOF lock_grant
AS 'MODULE_PATHNAME', 'atomic_lock_try_acquire_all'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_try_acquire_all(text[], interval, text, text, interval, text, jsonb, integer, text[]) IS
'like lock_acquire_all, but instead of raising an error returns one row, for the key in the way, with status "held", "pending", "timeout", "deadlock" or "lifetime_exceeded"';

CREATE FUNCTION lock_acquire_path(
	path text,
	ttl interval DEFAULT NULL,
	owner text DEFAULT NULL,
	wait interval DEFAULT '0',
	holder text DEFAULT NULL,
	meta jsonb DEFAULT NULL,
	separator text DEFAULT '/'
) RETURNS SETOF lock_grant
AS 'MODULE_PATHNAME', 'atomic_lock_acquire_path'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_acquire_path(text, interval, text, interval, text, jsonb, text) IS
'takes the lock "path" and shares each folder above it, which lock_path names, all or none, with leases of one length; returns one row per key; raises what lock_acquire_all raises, 22023 for more than 32 parts or an empty one';

CREATE FUNCTION lock_try_acquire_path(
	path text,
	ttl interval DEFAULT NULL,
	owner text DEFAULT NULL,
	wait interval DEFAULT '0',
	holder text DEFAULT NULL,
	meta jsonb DEFAULT NULL,
	separator text DEFAULT '/'
) RETURNS SETOF lock_grant
AS 'MODULE_PATHNAME', 'atomic_lock_try_acquire_path'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_try_acquire_path(text, interval, text, interval, text, jsonb, text) IS
'like lock_acquire_path, but instead of raising an error for the state of a lock returns one row, for the key in the way, with status "held", "held_by_owner", "pending", "timeout", "deadlock" or "lifetime_exceeded"';

CREATE FUNCTION lock_convert(
	key text,
	owner text DEFAULT NULL,
	mode text DEFAULT 'exclusive',
	wait interval DEFAULT '0'
) RETURNS lock_grant
AS 'MODULE_PATHNAME', 'atomic_lock_convert'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_convert(text, text, text, interval) IS
'converts what "owner" (default atomic_lock.owner) holds of "key" to another mode without letting go; gives a new fencing token and keeps the rest; raises 55P03 if others share the key or the wait ran out, 40P01 if another owner waits to convert too, LK002, LK003, LK004, LK005 and LK009 as lock_release does';

CREATE FUNCTION lock_try_convert(
	key text,
	owner text DEFAULT NULL,
	mode text DEFAULT 'exclusive',
	wait interval DEFAULT '0'
) RETURNS lock_grant
AS 'MODULE_PATHNAME', 'atomic_lock_try_convert'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_try_convert(text, text, text, interval) IS
'like lock_convert, but instead of raising an error for the state of the lock returns acquired = false, and in status why: held, timeout, deadlock, pending, not_found, not_owner, already_released, expired or forced';

CREATE FUNCTION lock_transfer(
	key text,
	owner text,
	new_owner text,
	holder text DEFAULT NULL,
	ttl interval DEFAULT NULL
) RETURNS lock_grant
AS 'MODULE_PATHNAME', 'atomic_lock_transfer'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_transfer(text, text, text, text, interval) IS
'hands what "owner" (null: atomic_lock.owner) holds of "key" over to "new_owner" in one step, with a new fencing token, for "ttl" from now (default: until the same end); raises LK002, LK003, LK004, LK005 and LK009 as lock_release does';

CREATE FUNCTION lock_try_transfer(
	key text,
	owner text,
	new_owner text,
	holder text DEFAULT NULL,
	ttl interval DEFAULT NULL
) RETURNS lock_grant
AS 'MODULE_PATHNAME', 'atomic_lock_try_transfer'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_try_transfer(text, text, text, text, interval) IS
'like lock_transfer, but instead of raising an error for the state of the lock returns acquired = false, and in status why: not_found, not_owner, already_released, expired, forced, lifetime_exceeded or pending';

CREATE FUNCTION lock_transfer_all(owner text, new_owner text, holder text DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'atomic_lock_transfer_all'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_transfer_all(text, text, text) IS
'hands everything that "owner" (null: atomic_lock.owner) holds in this database over to "new_owner", each with a new fencing token and until the same end; returns how many holdings';

CREATE FUNCTION lock_release(key text, owner text DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'atomic_lock_release'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_release(text, text) IS
'ends the lease that "owner" (default atomic_lock.owner) has on "key" and returns true; raises LK002 if nobody has it, LK003 if another owner has it, LK004 if this owner released it before, LK005 if it expired, LK009 if an administrator ended it';

CREATE FUNCTION lock_try_release(key text, owner text DEFAULT NULL)
RETURNS text
AS 'MODULE_PATHNAME', 'atomic_lock_try_release'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_try_release(text, text) IS
'like lock_release, but returns released, not_found, not_owner, already_released, expired or forced; raises 55P03 if a transaction holds the key, and it is not known for whom';

CREATE FUNCTION lock_release_all(owner text DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'atomic_lock_release_all'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_release_all(text) IS
'releases everything that "owner" (default atomic_lock.owner) holds in this database; returns how many holdings';

CREATE FUNCTION lock_release_path(path text, owner text DEFAULT NULL, separator text DEFAULT '/')
RETURNS bigint
AS 'MODULE_PATHNAME', 'atomic_lock_release_path'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_release_path(text, text, text) IS
'releases "path", and each folder above it that "owner" (default atomic_lock.owner) shares and below which it holds nothing else, as lock_held shows it; returns how many; where "path" is a folder below which the owner holds something, converts it to shared; raises what lock_release raises for "path"';

CREATE FUNCTION lock_extend(key text, owner text DEFAULT NULL, ttl interval DEFAULT NULL)
RETURNS timestamptz
AS 'MODULE_PATHNAME', 'atomic_lock_extend'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_extend(text, text, interval) IS
'extends the lease that "owner" (default atomic_lock.owner) has on "key" to "ttl" from now (default: the length that was last asked for, never shortening it); returns its new end; raises LK002, LK003, LK004, LK005 and LK009 as lock_release does, LK008 if atomic_lock.max_lifetime is reached';

CREATE FUNCTION lock_try_extend(key text, owner text DEFAULT NULL, ttl interval DEFAULT NULL)
RETURNS timestamptz
AS 'MODULE_PATHNAME', 'atomic_lock_try_extend'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_try_extend(text, text, interval) IS
'like lock_extend, but returns null instead of raising an error for the state of the lock, except 55P03 if a transaction holds the key, and it is not known for whom';

CREATE FUNCTION lock_extend_all(owner text DEFAULT NULL, ttl interval DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'atomic_lock_extend_all'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_extend_all(text, interval) IS
'heartbeat: extends every live lease of "owner" (default atomic_lock.owner) in this database; returns how many were extended';

CREATE FUNCTION lock_heartbeat(
	keys text[] DEFAULT NULL,
	owner text DEFAULT NULL,
	ttl interval DEFAULT NULL,
	OUT key text,
	OUT status text,
	OUT expires_at timestamptz,
	OUT ttl_remaining interval
)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'atomic_lock_heartbeat'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_heartbeat(text[], text, interval) IS
'extends what "owner" (default atomic_lock.owner) holds of 1 to 1000 "keys" (default: everything), each to "ttl" from now as lock_extend does; returns a row per distinct key, in the order of their bytes, with status extended, expired, forced, not_owner, already_released, not_found, lifetime_exceeded, pending, or denied if a policy reserves the key for other roles; raises no error for the state of a lock';

CREATE FUNCTION lock_assert(key text, owner text DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'atomic_lock_assert'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_assert(text, text) IS
'returns the fencing token of the holding that "owner" (default atomic_lock.owner) has of "key"; raises LK006 if the owner does not hold the key, LK009 if an administrator ended the holding; pins it until the transaction ends: until then no other session can take, release or force it, even after it expires; writes nothing';

CREATE FUNCTION lock_assert_fence(key text, fencing_token bigint, owner text DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'atomic_lock_assert_fence'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_assert_fence(text, bigint, text) IS
'raises LK005 unless "owner" (default atomic_lock.owner) holds "key" by the grant with "fencing_token"; pins it until the transaction ends, as lock_assert does';

CREATE FUNCTION lock_fetch(
	row_type anyelement,
	id text,
	ttl interval DEFAULT NULL,
	owner text DEFAULT NULL,
	wait interval DEFAULT '0',
	key text DEFAULT NULL,
	holder text DEFAULT NULL,
	expect jsonb DEFAULT NULL
) RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'atomic_lock_fetch'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000 ROWS 1;

COMMENT ON FUNCTION lock_fetch(anyelement, text, interval, text, interval, text, text, jsonb) IS
'takes the lock "key" (default: what the template of the table''s guard makes of the row; without a guard, what lock_key makes of the table''s name and the primary key) for "owner" (default atomic_lock.owner), then reads the row with primary key "id" of the table that has "row_type"; "id" is text, or a JSON object if the key has several columns; if there is no such row, returns no row and no lock is held; what "owner" holds already keeps its mode and lifetime; where the guard has a separator, shares the folders above the key; with "expect", a JSON object, raises LK012 and takes nothing unless the row has the values of its members; raises what lock_acquire raises, 42703 for a member that is no column, 22004 for a null in a column of the template, 40001 if the transaction cannot see the newest version of the row';

CREATE FUNCTION lock_is_held(key text, owner text DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'atomic_lock_is_held'
LANGUAGE C STABLE PARALLEL UNSAFE COST 10;

COMMENT ON FUNCTION lock_is_held(text, text) IS
'returns whether "owner" (default atomic_lock.owner) holds "key"';

CREATE FUNCTION lock_held(
	owner text DEFAULT NULL,
	OUT key text,
	OUT mode text,
	OUT lifetime text,
	OUT fencing_token bigint,
	OUT acquired_at timestamptz,
	OUT expires_at timestamptz,
	OUT ttl_remaining interval,
	OUT meta jsonb
)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'atomic_lock_held'
LANGUAGE C STABLE PARALLEL UNSAFE COST 10;

COMMENT ON FUNCTION lock_held(text) IS
'returns a row for each key that "owner" (default atomic_lock.owner) holds in this database, in the order of their bytes; expires_at and ttl_remaining are null if only its session or transaction ends it';

CREATE FUNCTION lock_holder(key text)
RETURNS text
AS 'MODULE_PATHNAME', 'atomic_lock_holder'
LANGUAGE C STABLE PARALLEL UNSAFE COST 10;

COMMENT ON FUNCTION lock_holder(text) IS
'returns the label of the current holder of "key", or null if it is free';

CREATE TYPE lock_state AS (
	key				text,
	locked			boolean,
	mode			text,
	owner			text,
	holder			text,
	fencing_token	bigint,
	acquired_at		timestamptz,
	expires_at		timestamptz,
	ttl_remaining	interval,
	lifetime		text,
	holders			integer,
	waiters			integer,
	pid				integer,
	meta			jsonb,
	pending			boolean,
	role			name,
	closed_until	timestamptz,
	queued			integer
);

COMMENT ON TYPE lock_state IS 'state of a key, or one of its holdings; for a free key, all but key, locked, pending, closed_until and queued are null, and waiters if there are none';
COMMENT ON COLUMN lock_state.key IS 'what is locked';
COMMENT ON COLUMN lock_state.locked IS 'whether anybody holds the key; not yet, if its transaction is unfinished';
COMMENT ON COLUMN lock_state.mode IS 'mode of the holding';
COMMENT ON COLUMN lock_state.owner IS 'secret that proves who has the holding; null to all but the owner itself';
COMMENT ON COLUMN lock_state.holder IS 'label of the holder, for people';
COMMENT ON COLUMN lock_state.fencing_token IS 'fencing token of the grant; null to all but the owner itself and access level monitor';
COMMENT ON COLUMN lock_state.acquired_at IS 'when the holding was granted';
COMMENT ON COLUMN lock_state.expires_at IS 'when the lease ends by itself; null if only its session or transaction ends it';
COMMENT ON COLUMN lock_state.ttl_remaining IS 'how long until then';
COMMENT ON COLUMN lock_state.lifetime IS 'lease, session or transaction';
COMMENT ON COLUMN lock_state.holders IS 'how many owners hold the key; lock_status(key) stops counting at 100';
COMMENT ON COLUMN lock_state.waiters IS 'how many wait for the key; null if this server cannot know';
COMMENT ON COLUMN lock_state.pid IS 'process id of the unfinished transaction, or else of the backend that ends the holding when it exits; null for a lease and a prepared transaction';
COMMENT ON COLUMN lock_state.meta IS 'what the holder keeps with the lease';
COMMENT ON COLUMN lock_state.pending IS 'whether an unfinished transaction of another session has acquired, released or changed it, or relies on it';
COMMENT ON COLUMN lock_state.role IS 'role that acquired it; null if it was dropped';
COMMENT ON COLUMN lock_state.closed_until IS 'until when min_hold or lock_delay keeps a free key closed; null if it is not closed';
COMMENT ON COLUMN lock_state.queued IS 'how many have a place in line, from lock_enqueue';

CREATE FUNCTION lock_status(key text) RETURNS lock_state
AS 'MODULE_PATHNAME', 'atomic_lock_status'
LANGUAGE C STABLE PARALLEL UNSAFE COST 10;

COMMENT ON FUNCTION lock_status(text) IS
'returns the state of "key", always one row; shows the owner only to the owner itself';

CREATE FUNCTION lock_status() RETURNS SETOF lock_state
AS 'MODULE_PATHNAME', 'atomic_lock_status_all'
LANGUAGE C STABLE PARALLEL UNSAFE COST 10;

COMMENT ON FUNCTION lock_status() IS
'returns a row for every live holding in this database, and for every key that an unfinished transaction has acquired';

CREATE FUNCTION lock_explain(key text)
RETURNS text
AS 'MODULE_PATHNAME', 'atomic_lock_explain'
LANGUAGE C STABLE PARALLEL UNSAFE COST 10;

COMMENT ON FUNCTION lock_explain(text) IS
'says in a few lines for people who holds "key", since when and until when, who waits, which policy applies, and which statement takes it, asks for it or ends it; labels of further people and fencing tokens only for access level monitor, owners never; raises 22004 for null, 22023 for a bad key, 42501 where a policy reserves the key for others, unless the caller has level monitor';

CREATE FUNCTION lock_waiters(
	OUT key text,
	OUT place integer,
	OUT holder text,
	OUT since timestamptz,
	OUT blocked_by text,
	OUT mode text,
	OUT pid integer,
	OUT blocking_pid integer
)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'atomic_lock_waiters'
LANGUAGE C STABLE PARALLEL UNSAFE COST 10;

COMMENT ON FUNCTION lock_waiters() IS
'returns a row for every backend of this database that waits for a lock; raises 55000 before PostgreSQL 17 if atomic_lock is not preloaded';

CREATE VIEW lock_waiters AS SELECT * FROM lock_waiters();

COMMENT ON VIEW lock_waiters IS 'backends of this database that wait for a lock, in the order of the line';
COMMENT ON COLUMN lock_waiters.key IS 'key that the backend waits for';
COMMENT ON COLUMN lock_waiters.place IS 'place in line for the key, with those of lock_queue; 1 is next';
COMMENT ON COLUMN lock_waiters.holder IS 'label of the waiter, up to 63 bytes';
COMMENT ON COLUMN lock_waiters.since IS 'when it began to wait';
COMMENT ON COLUMN lock_waiters.blocked_by IS 'label of the holder, or of a place in line before the waiter; null if it is not known, or no one is in the way';
COMMENT ON COLUMN lock_waiters.mode IS 'requested mode';
COMMENT ON COLUMN lock_waiters.pid IS 'process id of the waiting backend';
COMMENT ON COLUMN lock_waiters.blocking_pid IS 'process id of an unfinished transaction that has a claim on the key';

CREATE FUNCTION lock_channel(key text)
RETURNS text
AS 'MODULE_PATHNAME', 'atomic_lock_channel'
LANGUAGE C STABLE PARALLEL UNSAFE COST 10;

COMMENT ON FUNCTION lock_channel(text) IS
'returns the name of the channel to LISTEN on for events of a key; it changes when the extension is created anew; raises 22004 for null, 42501 where a policy reserves the key for others, unless the caller has level monitor';

CREATE FUNCTION lock_ask(
	key		text,
	message	text DEFAULT NULL
)
RETURNS integer
AS 'MODULE_PATHNAME', 'atomic_lock_ask'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_ask(text, text) IS
'tells those who hold a key and listen on its channel that somebody wants it, and returns how many hold it, up to 100; message: at most 1024 bytes; raises 42501 where a policy reserves the key for others';

CREATE TYPE lock_place AS (
	status			text,
	place			integer,
	key				text,
	expires_at		timestamptz,
	ttl_remaining	interval,
	owner			text,
	fencing_token	bigint,
	ticket			bigint,
	holder			text
);

COMMENT ON TYPE lock_place IS 'what lock_enqueue returns';
COMMENT ON COLUMN lock_place.status IS 'acquired or reacquired, if the owner has the lock now; queued, if it has a place in line';
COMMENT ON COLUMN lock_place.place IS 'place in line; 1 is next; null if the owner has the lock';
COMMENT ON COLUMN lock_place.key IS 'which lock';
COMMENT ON COLUMN lock_place.expires_at IS 'when the lease ends, or the place is given up';
COMMENT ON COLUMN lock_place.ttl_remaining IS 'how long that is from now, by the clock of the server';
COMMENT ON COLUMN lock_place.owner IS 'proves the right to the place or the lease; keep it secret';
COMMENT ON COLUMN lock_place.fencing_token IS 'fencing token of the lease; null for a place';
COMMENT ON COLUMN lock_place.ticket IS 'number of this place in the event "offered"; null if the owner has the lock';
COMMENT ON COLUMN lock_place.holder IS 'label of the holder, or of the first in line; null if it is not known';

CREATE FUNCTION lock_enqueue(
	key		text,
	owner	text DEFAULT NULL,
	holder	text DEFAULT NULL,
	offer	interval DEFAULT NULL,
	keep	interval DEFAULT NULL,
	ttl		interval DEFAULT NULL,
	meta	jsonb DEFAULT NULL
)
RETURNS lock_place
AS 'MODULE_PATHNAME', 'atomic_lock_enqueue'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_enqueue(text, text, text, interval, interval, interval, jsonb) IS
'acquires a lock as lock_acquire does, or takes a place in line for it that needs no connection, or renews that; owner: null for the setting, or else one is made; offer: for how long the lock is kept for this place when its turn comes (1 min); keep: for how long the place is kept unless it is renewed (1 h); both up to max_ttl; ttl, cut to max_ttl and max_lifetime, and meta: of the lease, if this call acquires it; raises 53400 for too many places, 42501 where a policy reserves the key for others, 22023 for bad values';

CREATE FUNCTION lock_leave(
	key		text,
	owner	text DEFAULT NULL
)
RETURNS boolean
AS 'MODULE_PATHNAME', 'atomic_lock_leave'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_leave(text, text) IS
'gives up the place of an owner in the line for a lock; false: it had none; raises 22004 without an owner';

CREATE FUNCTION lock_queue(
	OUT key text,
	OUT place integer,
	OUT holder text,
	OUT queued_at timestamptz,
	OUT offered_until timestamptz,
	OUT expires_at timestamptz,
	OUT offer interval,
	OUT role name,
	OUT ticket bigint
)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'atomic_lock_queue'
LANGUAGE C STABLE PARALLEL UNSAFE COST 10;

COMMENT ON FUNCTION lock_queue() IS
'returns a row for every place in line that lock_enqueue has given in this database';

CREATE VIEW lock_queue AS SELECT * FROM lock_queue();

COMMENT ON VIEW lock_queue IS 'places in line for locks that no connection waits for, by key, the next one first; lock_waiters shows those who wait in a call';
COMMENT ON COLUMN lock_queue.key IS 'key that is wanted';
COMMENT ON COLUMN lock_queue.place IS 'place in line, with those who wait in a call; 1 is next';
COMMENT ON COLUMN lock_queue.holder IS 'label of the client that has the place';
COMMENT ON COLUMN lock_queue.queued_at IS 'when it was taken';
COMMENT ON COLUMN lock_queue.offered_until IS 'until when the lock is kept for it; null if that was not offered yet';
COMMENT ON COLUMN lock_queue.expires_at IS 'when it is given up unless it is renewed';
COMMENT ON COLUMN lock_queue.offer IS 'for how long the lock is kept for it when its turn comes';
COMMENT ON COLUMN lock_queue.role IS 'role that took it; null if it was dropped';
COMMENT ON COLUMN lock_queue.ticket IS 'number of the place; places with lower numbers come first';

CREATE FUNCTION lock_key(VARIADIC parts text[])
RETURNS text
AS 'MODULE_PATHNAME', 'atomic_lock_key'
LANGUAGE C IMMUTABLE PARALLEL SAFE;

COMMENT ON FUNCTION lock_key(text[]) IS
'joins parts to a key with ":", escaping ":" and a backslash inside a part with a backslash; raises 22004 for a null part, 22023 for no parts';

-- STABLE, because the text of some values is in the catalog, such as labels of enums
CREATE FUNCTION lock_key(VARIADIC parts "any")
RETURNS text
AS 'MODULE_PATHNAME', 'atomic_lock_key_any'
LANGUAGE C STABLE PARALLEL SAFE;

COMMENT ON FUNCTION lock_key("any") IS
'the same for parts of any types, each written as templates of guards write it, whatever the session has set: dates are ISO, timestamps UTC; stable and not immutable, since the text of enums and names is in the catalog';

CREATE FUNCTION lock_path(path text, separator text DEFAULT '/')
RETURNS text[]
AS 'MODULE_PATHNAME', 'atomic_lock_path'
LANGUAGE C IMMUTABLE PARALLEL SAFE;

COMMENT ON FUNCTION lock_path(text, text) IS
'the keys of the folders above "path", which end with the separator, and "path" itself, in the order of their bytes; a separator behind an odd number of backslashes does not split; raises 22004 for a null, 22023 for more than 32 parts, an empty part, or a separator that has a backslash or is longer than 8 bytes';

CREATE FUNCTION lock_partition(key text, partitions integer)
RETURNS integer
AS 'MODULE_PATHNAME', 'atomic_lock_partition'
LANGUAGE C IMMUTABLE PARALLEL SAFE;

COMMENT ON FUNCTION lock_partition(text, integer) IS
'returns the partition of a key, from 0 to partitions - 1: the remainder of PARTITION BY HASH (key) for the text in the first braces of the key, or for the whole key if it has no braces or they are empty; raises 22004 for a null, 22023 for less than one partition';

------------------------------------------------------------------------------
-- Policies, and the history that they ask for
------------------------------------------------------------------------------

CREATE FUNCTION lock_set_policy(
	prefix text,
	default_ttl interval DEFAULT NULL,
	max_ttl interval DEFAULT NULL,
	max_wait interval DEFAULT NULL,
	max_lifetime interval DEFAULT NULL,
	lock_delay interval DEFAULT NULL,
	min_hold interval DEFAULT NULL,
	max_holders integer DEFAULT NULL,
	max_keys_per_role integer DEFAULT NULL,
	roles regrole[] DEFAULT NULL,
	history boolean DEFAULT NULL,
	notify boolean DEFAULT NULL
) RETURNS void
AS 'MODULE_PATHNAME', 'atomic_lock_set_policy'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_set_policy(text, interval, interval, interval, interval, interval, interval, integer, integer, regrole[], boolean, boolean) IS
'says what holds for all keys that begin with "prefix" (up to 1024 bytes; empty: all keys), in place of the policy that this prefix had; null leaves a part to the policies of shorter prefixes, and then to the settings; in force for all sessions at their next call after the commit; max_keys_per_role costs a look at each row under the prefix, at each new holding, unless there is an index of app_lock on (role, key); raises 22004 for a null prefix or role, 22023 for a part out of range, 42704 for an unknown role';

CREATE FUNCTION lock_drop_policy(prefix text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'atomic_lock_drop_policy'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_drop_policy(text) IS
'drops the policy of exactly this prefix and returns true; returns false if no policy has this prefix';

CREATE FUNCTION lock_policy(
	key text,
	OUT default_ttl interval,
	OUT max_ttl interval,
	OUT max_wait interval,
	OUT max_lifetime interval,
	OUT lock_delay interval,
	OUT min_hold interval,
	OUT max_holders integer,
	OUT max_keys_per_role integer,
	OUT roles regrole[],
	OUT history boolean,
	OUT notify boolean,
	OUT prefixes jsonb
)
AS 'MODULE_PATHNAME', 'atomic_lock_policy'
LANGUAGE C STABLE PARALLEL UNSAFE COST 10;

COMMENT ON FUNCTION lock_policy(text) IS
'returns what holds for "key", always one row: by the policy with the longest prefix that says something about the part, or else by a setting; null is no limit; "prefixes" has the prefix for each part that a policy decides';

CREATE VIEW lock_policies AS
	SELECT p.prefix,
		CASE WHEN p.has_roles OPERATOR(pg_catalog.=) 1::pg_catalog.int8 THEN ARRAY(
			SELECT r.role FROM app_lock_policy_role r
			WHERE r.prefix OPERATOR(pg_catalog.=) p.prefix
			ORDER BY r.role::pg_catalog.oid USING OPERATOR(pg_catalog.<)) END AS roles,
		pg_catalog.justify_hours(p.default_ttl_us OPERATOR(pg_catalog.*) '1 microsecond'::pg_catalog.interval) AS default_ttl,
		pg_catalog.justify_hours(p.max_ttl_us OPERATOR(pg_catalog.*) '1 microsecond'::pg_catalog.interval) AS max_ttl,
		pg_catalog.justify_hours(p.max_wait_us OPERATOR(pg_catalog.*) '1 microsecond'::pg_catalog.interval) AS max_wait,
		p.max_holders::pg_catalog.int4 AS max_holders,
		pg_catalog.justify_hours(p.max_lifetime_us OPERATOR(pg_catalog.*) '1 microsecond'::pg_catalog.interval) AS max_lifetime,
		pg_catalog.justify_hours(p.lock_delay_us OPERATOR(pg_catalog.*) '1 microsecond'::pg_catalog.interval) AS lock_delay,
		pg_catalog.justify_hours(p.min_hold_us OPERATOR(pg_catalog.*) '1 microsecond'::pg_catalog.interval) AS min_hold,
		p.max_keys_per_role::pg_catalog.int4 AS max_keys_per_role,
		p.history OPERATOR(pg_catalog.=) 1::pg_catalog.int8 AS history,
		p.notify OPERATOR(pg_catalog.=) 1::pg_catalog.int8 AS notify
	FROM app_lock_policy p
	ORDER BY p.prefix;

COMMENT ON VIEW lock_policies IS 'policies that lock_set_policy has set, a row for each prefix; null is left to shorter prefixes and settings';
COMMENT ON COLUMN lock_policies.prefix IS 'of the keys that the policy is for; empty: all keys';
COMMENT ON COLUMN lock_policies.roles IS 'roles whose members may change the keys; a number stands for a role that was dropped';
COMMENT ON COLUMN lock_policies.default_ttl IS 'length of a lease that is acquired without a ttl';
COMMENT ON COLUMN lock_policies.max_ttl IS 'longest ttl that a call may ask for';
COMMENT ON COLUMN lock_policies.max_wait IS 'longest wait that a call may ask for';
COMMENT ON COLUMN lock_policies.max_holders IS 'how many owners may share a key';
COMMENT ON COLUMN lock_policies.max_lifetime IS 'longest life of a lease, with all its extensions and transfers; 0: no limit';
COMMENT ON COLUMN lock_policies.lock_delay IS 'how long a key stays closed after its lease expired or its session ended';
COMMENT ON COLUMN lock_policies.min_hold IS 'how long a key stays closed after it was acquired, even if it is released sooner';
COMMENT ON COLUMN lock_policies.max_keys_per_role IS 'how many of these keys a role may hold';
COMMENT ON COLUMN lock_policies.history IS 'whether lock_history records grants';
COMMENT ON COLUMN lock_policies.notify IS 'whether events are sent';

CREATE FUNCTION lock_held_at(
	key text,
	at timestamptz,
	OUT mode text,
	OUT fencing_token bigint,
	OUT owner_digest text,
	OUT holder text,
	OUT role name,
	OUT client_addr inet,
	OUT application text,
	OUT acquired_at timestamptz,
	OUT ended_at timestamptz,
	OUT ended_by text
)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'atomic_lock_held_at'
LANGUAGE C STABLE PARALLEL UNSAFE COST 10;

COMMENT ON FUNCTION lock_held_at(text, timestamptz) IS
'returns the rows of lock_history for the grants of "key" that lasted at the moment "at", with ended_at and ended_by also where nobody has noticed yet that a lease expired; needs a policy with history; leaves out grants that ended while there was none';

------------------------------------------------------------------------------
-- Functions for DBAs and schedules
------------------------------------------------------------------------------

CREATE FUNCTION force_release(key text, reason text, fencing_token bigint DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'atomic_lock_force_release'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION force_release(text, text, bigint) IS
'ends every holding of "key", of any owner, and opens it if min_hold keeps it closed; or with a fencing token, ends the holding that this grant made and no other; records that in lock_audit and returns true; raises LK002 if the key is free, LK011 if that grant does not hold it any more, 55P03 if an unfinished transaction has it, 42501 where a policy reserves the key for others and the caller has not level admin';

CREATE FUNCTION lock_force_release(key text, reason text, fencing_token bigint DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'atomic_lock_force_release'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_force_release(text, text, bigint) IS
'another name of force_release';

CREATE FUNCTION lock_try_force_release(key text, reason text, fencing_token bigint DEFAULT NULL)
RETURNS text
AS 'MODULE_PATHNAME', 'atomic_lock_try_force_release'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_try_force_release(text, text, bigint) IS
'like force_release, but returns released, not_found, changed if the grant with that fencing token does not hold the key any more, or pending if an unfinished transaction has the key';

CREATE FUNCTION lock_steal(
	key text,
	new_owner text,
	reason text,
	ttl interval DEFAULT NULL,
	holder text DEFAULT NULL,
	fencing_token bigint DEFAULT NULL
) RETURNS lock_grant
AS 'MODULE_PATHNAME', 'atomic_lock_steal'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_steal(text, text, text, interval, text, bigint) IS
'takes "key" over for "new_owner" in one step, from any owner; or with a fencing token, the holding that this grant made, in its mode, and no other; records it in lock_audit; raises 55P03 if an unfinished transaction has the key, and with a token LK011 if that grant does not hold the key any more, LK007 if "new_owner" holds it already, and 42501 where a policy reserves the key for others';

CREATE FUNCTION lock_sweep(max_rows bigint DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'atomic_lock_sweep'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_sweep(bigint) IS
'removes up to "max_rows" (default atomic_lock.sweep_batch) expired leases, keys that were released longer ago than atomic_lock.released_retention, expired places in line, and rows of lock_history that are older than atomic_lock.history_retention; returns how many; skips rows in use; also offers free keys to the next in line, and sends events that are due';

/*
 * Jobs of pg_cron run as the role that created them.  Any role may have created a schema
 * "cron", so these functions use its objects only if it belongs to the extension pg_cron.
 */
CREATE FUNCTION lock_schedule_sweep(schedule text DEFAULT '* * * * *')
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE COST 1000
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	job		name := 'atomic_lock sweep of ' || current_database();
	body	text;
	problem	text;
BEGIN
	IF schedule IS NULL THEN
		RAISE null_value_not_allowed USING
			MESSAGE = 'schedule must not be null',
			HINT = 'Use lock_unschedule_sweep to end scheduled sweeps.';
	ELSIF current_setting('transaction_read_only')::boolean THEN
		RAISE read_only_sql_transaction USING
			MESSAGE = 'cannot execute lock_schedule_sweep() in a read-only transaction';
	END IF;
	-- 22021 where it is not even text
	PERFORM convert_from(convert_to(schedule, getdatabaseencoding()), getdatabaseencoding());

	-- The job's session may have any search_path, so all names are qualified.
	SELECT format('BEGIN WHILE %I.lock_sweep(1000::pg_catalog.int8) OPERATOR(pg_catalog.=) '
			'1000::pg_catalog.int8 LOOP COMMIT; END LOOP; END', n.nspname),
		(SELECT format('%s belongs to role "%s", which could make the job run other code as superuser.',
				o.name, r.rolname)
			FROM (VALUES (format('Database "%s"', d.datname), d.datdba),
					('Extension "atomic_lock"', e.extowner),
					(format('Schema "%s"', n.nspname),
						CASE n.nspowner WHEN 'pg_database_owner'::regrole THEN d.datdba ELSE n.nspowner END)
				) o (name, owner)
				JOIN pg_catalog.pg_roles r ON r.oid = o.owner AND NOT r.rolsuper
				JOIN pg_catalog.pg_roles me ON me.rolname = CURRENT_USER AND me.rolsuper
			LIMIT 1)
	INTO body, problem
	FROM pg_catalog.pg_extension e
		JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
		JOIN pg_catalog.pg_database d ON d.datname = current_database()
	WHERE e.extname = 'atomic_lock';
	IF problem IS NOT NULL THEN
		RAISE insufficient_privilege USING
			MESSAGE = 'superusers cannot schedule sweeps of this database',
			DETAIL = problem,
			HINT = 'Use SET ROLE to become a role that has access level admin and is not a superuser.';
	END IF;

	IF NOT EXISTS (
		SELECT FROM pg_catalog.pg_extension e
			JOIN pg_catalog.pg_depend d
				ON d.refclassid = 'pg_catalog.pg_extension'::regclass
				AND d.refobjid = e.oid AND d.deptype = 'e'
				AND d.classid = 'pg_catalog.pg_namespace'::regclass
			JOIN pg_catalog.pg_namespace n ON n.oid = d.objid
		WHERE e.extname = 'pg_cron' AND n.nspname = 'cron'
	) THEN
		RAISE object_not_in_prerequisite_state USING
			MESSAGE = format('extension "pg_cron" is not installed in database "%s"', current_database()),
			HINT = format('Run CREATE EXTENSION pg_cron, or add atomic_lock to shared_preload_libraries, '
				'so that the server sweeps by itself.  Where pg_cron is in another database, run there: '
				'SELECT cron.schedule_in_database(%L, %L, %L, %L, %L);',
				job, schedule, format('DO %L', body), current_database(), CURRENT_USER);
	END IF;
	-- cron.schedule() would leave an inactive job inactive.
	PERFORM cron.unschedule(j.jobid)
	FROM cron.job j
	WHERE j.jobname = job AND j.username = CURRENT_USER AND NOT j.active;
	RETURN cron.schedule(job::text, schedule, format('DO %L', body));
END
$$;

COMMENT ON FUNCTION lock_schedule_sweep(text) IS
'has pg_cron sweep this database as the current role, on "schedule" (default every minute); replaces an earlier schedule; returns the id of the job; raises 55000 where pg_cron is not in this database, and the hint has the statement to run in the database where it is';

CREATE FUNCTION lock_unschedule_sweep()
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE COST 1000
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	job		name := 'atomic_lock sweep of ' || current_database();
	ended	bigint;
BEGIN
	IF current_setting('transaction_read_only')::boolean THEN
		RAISE read_only_sql_transaction USING
			MESSAGE = 'cannot execute lock_unschedule_sweep() in a read-only transaction';
	ELSIF NOT EXISTS (
		SELECT FROM pg_catalog.pg_extension e
			JOIN pg_catalog.pg_depend d
				ON d.refclassid = 'pg_catalog.pg_extension'::regclass
				AND d.refobjid = e.oid AND d.deptype = 'e'
				AND d.classid = 'pg_catalog.pg_namespace'::regclass
			JOIN pg_catalog.pg_namespace n ON n.oid = d.objid
		WHERE e.extname = 'pg_cron' AND n.nspname = 'cron'
	) THEN
		RAISE object_not_in_prerequisite_state USING
			MESSAGE = format('extension "pg_cron" is not installed in database "%s"', current_database()),
			HINT = format('Where pg_cron is in another database, run there: '
				'SELECT cron.unschedule(jobid) FROM cron.job WHERE jobname = %L AND username = %L;',
				job, CURRENT_USER);
	END IF;
	SELECT count(cron.unschedule(j.jobid)) INTO ended
	FROM cron.job j
	WHERE j.jobname = job AND j.username = CURRENT_USER;
	RETURN ended > 0;
END
$$;

COMMENT ON FUNCTION lock_unschedule_sweep() IS
'removes the job that lock_schedule_sweep created; returns whether it existed; raises 55000 if pg_cron is not in this database';

CREATE FUNCTION lock_sweeper_status(
	OUT database name,
	OUT status text,
	OUT last_swept_at timestamptz,
	OUT last_removed bigint,
	OUT last_duration interval,
	OUT hint text
)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'atomic_lock_sweeper_status'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10;

COMMENT ON FUNCTION lock_sweeper_status() IS
'returns a row that says in words whether the background sweep runs, and what to do if not; then a row for each database that it or lock_sweep has swept since the server started, or that atomic_lock.sweep_databases leaves out';

------------------------------------------------------------------------------
-- Views for people.  The counters are in shared memory and begin when the
-- server starts.
------------------------------------------------------------------------------

CREATE FUNCTION lock_stats(
	OUT database name,
	OUT grants bigint,
	OUT regrants bigint,
	OUT refusals bigint,
	OUT timeouts bigint,
	OUT deadlocks bigint,
	OUT releases bigint,
	OUT extends bigint,
	OUT expirations bigint,
	OUT steals bigint,
	OUT forced bigint,
	OUT sweeps bigint,
	OUT swept bigint,
	OUT waits bigint,
	OUT total_wait interval,
	OUT longest_wait interval,
	OUT since timestamptz,
	OUT guard_refusals bigint
)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'atomic_lock_stats'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10;

COMMENT ON FUNCTION lock_stats() IS
'returns counters of acquires, releases, waits and sweeps, a row for each database; raises 55000 before PostgreSQL 17 if atomic_lock is not preloaded';

CREATE VIEW lock_stats AS SELECT * FROM lock_stats();

COMMENT ON VIEW lock_stats IS 'counters of acquires, releases, waits and sweeps since the server started or lock_stats_reset was called, a row for each database';
COMMENT ON COLUMN lock_stats.database IS 'name of the database; null for all databases that found no place of their own';
COMMENT ON COLUMN lock_stats.grants IS 'new holdings that were granted and committed';
COMMENT ON COLUMN lock_stats.regrants IS 'acquires of keys that the owner already held, and conversions';
COMMENT ON COLUMN lock_stats.refusals IS 'acquires that answered or raised "held", and calls of lock_enqueue that answered "queued"';
COMMENT ON COLUMN lock_stats.timeouts IS 'acquires whose wait ran out';
COMMENT ON COLUMN lock_stats.deadlocks IS 'acquires that were refused because their wait would have closed a cycle';
COMMENT ON COLUMN lock_stats.releases IS 'holdings that their owner released, and those that ended with their transaction';
COMMENT ON COLUMN lock_stats.extends IS 'leases that were extended; a heartbeat counts each';
COMMENT ON COLUMN lock_stats.expirations IS 'holdings that ran out, or whose session ended; counted when the next grant or the sweep finds them';
COMMENT ON COLUMN lock_stats.steals IS 'grants by lock_steal';
COMMENT ON COLUMN lock_stats.forced IS 'holdings that force_release and lock_steal ended';
COMMENT ON COLUMN lock_stats.sweeps IS 'sweeps, by lock_sweep or in the background';
COMMENT ON COLUMN lock_stats.swept IS 'rows that sweeps removed, expired or released long ago';
COMMENT ON COLUMN lock_stats.waits IS 'waits of acquires in the queue of a key';
COMMENT ON COLUMN lock_stats.total_wait IS 'how long these waits lasted together';
COMMENT ON COLUMN lock_stats.longest_wait IS 'how long the longest of them lasted';
COMMENT ON COLUMN lock_stats.since IS 'when counting began';
COMMENT ON COLUMN lock_stats.guard_refusals IS 'writes that guards refused because the lock of the row was not held';

CREATE FUNCTION lock_stats_reset()
RETURNS void
AS 'MODULE_PATHNAME', 'atomic_lock_stats_reset'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_stats_reset() IS
'starts counting from zero in lock_stats and lock_contention, for this database; raises 55000 if nothing is counted';

CREATE FUNCTION lock_contention(
	OUT key text,
	OUT refusals bigint,
	OUT waits bigint,
	OUT total_wait interval,
	OUT longest_wait interval,
	OUT last_at timestamptz
)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'atomic_lock_contention'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10;

COMMENT ON FUNCTION lock_contention() IS
'returns keys of this database that were refused or waited for in the last 5 to 10 minutes, most contended first; the server knows about the 256 most contended keys of all databases; raises 55000 before PostgreSQL 17 if atomic_lock is not preloaded';

CREATE VIEW lock_contention AS SELECT * FROM lock_contention();

COMMENT ON VIEW lock_contention IS 'keys of this database that were refused or waited for in the last 5 to 10 minutes, most contended first';
COMMENT ON COLUMN lock_contention.key IS 'which lock';
COMMENT ON COLUMN lock_contention.refusals IS 'acquires that answered or raised "held"';
COMMENT ON COLUMN lock_contention.waits IS 'waits of acquires in the queue that have ended';
COMMENT ON COLUMN lock_contention.total_wait IS 'how long these waits lasted together';
COMMENT ON COLUMN lock_contention.longest_wait IS 'how long the longest of them lasted';
COMMENT ON COLUMN lock_contention.last_at IS 'when the key was last refused, or a wait for it ended';

CREATE FUNCTION app_lock_longest_wait(key text)
RETURNS interval
AS 'MODULE_PATHNAME', 'atomic_lock_longest_wait'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION app_lock_longest_wait(text) IS
'internal: returns how long the longest waiter for a key has been waiting, or null';

CREATE FUNCTION app_lock_count_waiters(key text)
RETURNS integer
AS 'MODULE_PATHNAME', 'atomic_lock_count_waiters'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION app_lock_count_waiters(text) IS
'internal: returns how many wait for a key, or null if this server cannot know';

CREATE VIEW lock_activity AS
	SELECT s.key,
		CASE WHEN s.pending THEN 'pending' ELSE 'held' END AS state,
		s.holder,
		pg_catalog.date_trunc('milliseconds',
			pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) s.acquired_at) AS held_for,
		pg_catalog.date_trunc('milliseconds', s.ttl_remaining) AS time_left,
		s.waiters,
		pg_catalog.date_trunc('milliseconds', app_lock_longest_wait(s.key)) AS longest_wait,
		s.mode,
		s.lifetime,
		a.application_name AS application,
		s.pid,
		a.state AS session_state,
		s.expires_at,
		s.role,
		s.fencing_token
	FROM lock_status() s
		-- on a standby, pid is a process of the primary
		LEFT JOIN pg_catalog.pg_stat_activity a
			ON a.pid OPERATOR(pg_catalog.=) s.pid AND NOT pg_catalog.pg_is_in_recovery()
	UNION ALL
	SELECT q.key,
		'offered'::pg_catalog.text,
		q.holder,
		NULL::pg_catalog.interval,
		pg_catalog.date_trunc('milliseconds',
			q.offered_until OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp()),
		app_lock_count_waiters(q.key),
		pg_catalog.date_trunc('milliseconds', app_lock_longest_wait(q.key)),
		'exclusive'::pg_catalog.text,
		NULL::pg_catalog.text,
		NULL::pg_catalog.text,
		NULL::pg_catalog.int4,
		NULL::pg_catalog.text,
		q.offered_until,
		q.role,
		NULL::pg_catalog.int8
	FROM lock_queue() q
	WHERE q.offered_until IS NOT NULL
	ORDER BY longest_wait DESC NULLS LAST, held_for DESC NULLS LAST, key;

COMMENT ON VIEW lock_activity IS 'keys that are held, acquired by an unfinished transaction, or offered; the longest wait comes first, then the longest holding';
COMMENT ON COLUMN lock_activity.key IS 'what is locked';
COMMENT ON COLUMN lock_activity.state IS 'held; or pending, if an unfinished transaction has acquired, released or changed it, or relies on it; or offered, if it is free and kept for a place in line';
COMMENT ON COLUMN lock_activity.holder IS 'label of the holder, or of the place in line that has the offer';
COMMENT ON COLUMN lock_activity.held_for IS 'for how long it has been held; null if it is offered';
COMMENT ON COLUMN lock_activity.time_left IS 'how long until the lease or the offer expires; null if only its session or transaction ends it';
COMMENT ON COLUMN lock_activity.waiters IS 'how many wait for the key; null if this server cannot know';
COMMENT ON COLUMN lock_activity.longest_wait IS 'how long the longest waiter has been waiting';
COMMENT ON COLUMN lock_activity.mode IS 'exclusive or shared';
COMMENT ON COLUMN lock_activity.lifetime IS 'lease, session or transaction; null for an offer';
COMMENT ON COLUMN lock_activity.application IS 'application_name of the session that ends the holding when it exits, or of the unfinished transaction; null for a lease';
COMMENT ON COLUMN lock_activity.pid IS 'process id of that session';
COMMENT ON COLUMN lock_activity.session_state IS 'what that session is doing, as in pg_stat_activity';
COMMENT ON COLUMN lock_activity.expires_at IS 'when the lease or the offer ends by itself; null if only its session or transaction ends it';
COMMENT ON COLUMN lock_activity.role IS 'role that acquired it, or took the place in line; null if it was dropped';
COMMENT ON COLUMN lock_activity.fencing_token IS 'fencing token of the grant, null for an offer; with it, force_release and lock_steal end this holding and no other';

------------------------------------------------------------------------------
-- Guards.  The trigger is the only record that a table is protected, so dumps,
-- renames and new partitions keep the protection.
------------------------------------------------------------------------------

CREATE FUNCTION lock_guard()
RETURNS trigger
AS 'MODULE_PATHNAME', 'atomic_lock_guard'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_guard() IS
'trigger function of tables that lock_protect has protected: raises LK006 unless atomic_lock.owner holds the lock that covers the row, in exclusive mode, and pins the lock; for a guard with a separator, raises LK006 unless that owner holds one key of the path in exclusive mode and all folders above it in any mode, and pins these; raises 22004 for a null in a column of the key, 55000 for TRUNCATE';

CREATE FUNCTION app_lock_guard_problem(relation regclass, guard name)
RETURNS text
AS 'MODULE_PATHNAME', 'atomic_lock_guard_problem'
LANGUAGE C STRICT STABLE PARALLEL SAFE;

COMMENT ON FUNCTION app_lock_guard_problem(regclass, name) IS
'internal: returns why each write that the guard of a table fires for will fail, or null';

CREATE FUNCTION lock_protect(
	relation regclass,
	key_template text,
	events text[] DEFAULT '{update,delete}',
	separator text DEFAULT NULL
) RETURNS void
AS 'MODULE_PATHNAME', 'atomic_lock_protect'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_protect(regclass, text, text[], text) IS
'refuses "events" (of insert, update, delete) on rows of a table unless atomic_lock.owner holds the lock whose key "key_template" makes of the row''s columns, such as order:{id}; with "separator" (1 to 8 bytes), the key is a path, and the owner must hold one of its keys in exclusive mode and all folders above that one in any mode; only the owner of the table may call it; raises 42703 for an unknown column, 22023 for an invalid template or separator, 55000 where a BEFORE ROW trigger fires after the guard';

CREATE FUNCTION lock_unprotect(relation regclass)
RETURNS void
AS 'MODULE_PATHNAME', 'atomic_lock_unprotect'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000;

COMMENT ON FUNCTION lock_unprotect(regclass) IS
'takes the guard of lock_protect off a table, its partitions and children; only the owner of the table may call it; raises 42704 if the table is not protected';

CREATE VIEW lock_guards AS
	SELECT t.tgrelid::pg_catalog.regclass AS relation,
		a.key_template,
		pg_catalog.array_remove(ARRAY[
			CASE WHEN (t.tgtype::pg_catalog.int4 OPERATOR(pg_catalog.&) 4) OPERATOR(pg_catalog.<>) 0 THEN 'insert' END,
			CASE WHEN (t.tgtype::pg_catalog.int4 OPERATOR(pg_catalog.&) 16) OPERATOR(pg_catalog.<>) 0 THEN 'update' END,
			CASE WHEN (t.tgtype::pg_catalog.int4 OPERATOR(pg_catalog.&) 8) OPERATOR(pg_catalog.<>) 0 THEN 'delete' END],
			NULL) AS events,
		CASE WHEN t.tgenabled OPERATOR(pg_catalog.=) 'O' THEN 'enabled'
			WHEN t.tgenabled OPERATOR(pg_catalog.=) 'D' THEN 'disabled'
			WHEN t.tgenabled OPERATOR(pg_catalog.=) 'R' THEN 'replica'
			WHEN t.tgenabled OPERATOR(pg_catalog.=) 'A' THEN 'always' END AS state,
		p.tgrelid::pg_catalog.regclass AS parent,
		app_lock_guard_problem(t.tgrelid::pg_catalog.regclass, t.tgname) AS problem,
		a.separator
	FROM pg_catalog.pg_trigger t
		LEFT JOIN pg_catalog.pg_trigger p ON p.oid OPERATOR(pg_catalog.=) t.tgparentid
		-- each argument ends with a zero byte
		CROSS JOIN LATERAL (SELECT pg_catalog."position"(t.tgargs, pg_catalog.decode('00', 'hex')) AS zero) z
		CROSS JOIN LATERAL (SELECT pg_catalog.convert_from(
				pg_catalog.substr(t.tgargs, 1, z.zero OPERATOR(pg_catalog.-) 1),
				pg_catalog.getdatabaseencoding()) AS key_template,
			CASE WHEN t.tgnargs OPERATOR(pg_catalog.=) 2::pg_catalog.int2 THEN pg_catalog.convert_from(
				pg_catalog.substr(t.tgargs, z.zero OPERATOR(pg_catalog.+) 1,
					pg_catalog.length(t.tgargs) OPERATOR(pg_catalog.-) z.zero OPERATOR(pg_catalog.-) 1),
				pg_catalog.getdatabaseencoding()) END AS separator) a
	WHERE t.tgfoid OPERATOR(pg_catalog.=) 'lock_guard()'::pg_catalog.regprocedure::pg_catalog.oid
		AND (t.tgtype::pg_catalog.int4 OPERATOR(pg_catalog.&) 1) OPERATOR(pg_catalog.<>) 0
		AND (t.tgnargs OPERATOR(pg_catalog.=) 1::pg_catalog.int2 OR t.tgnargs OPERATOR(pg_catalog.=) 2::pg_catalog.int2);

COMMENT ON VIEW lock_guards IS 'tables that lock_protect has protected, partitions included';
COMMENT ON COLUMN lock_guards.relation IS 'the table';
COMMENT ON COLUMN lock_guards.key_template IS 'template that makes the key of a row';
COMMENT ON COLUMN lock_guards.events IS 'which of insert, update and delete need the lock';
COMMENT ON COLUMN lock_guards.state IS 'enabled; disabled, replica or always after ALTER TABLE ... TRIGGER';
COMMENT ON COLUMN lock_guards.parent IS 'for a partition, the table whose guard it inherits';
COMMENT ON COLUMN lock_guards.problem IS 'why every guarded write will fail: the template does not fit the table, or another trigger fires after the guard; null if all is well';
COMMENT ON COLUMN lock_guards.separator IS 'what separates the parts of a path in the key; null if the guard looks at the key alone';

/*
 * Grants or revokes a level.  It runs as the owner of the functions, so a role that may
 * call lock_grant_access need not own them.
 */
CREATE FUNCTION app_lock_change_access(role regrole, level text, granting boolean)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	names		name[];
	sibling_names	name[];
	sibling_marker	text;
	extension	oid;
	schema		name;
	grantee		text := role::text;
	routine		regprocedure;
	relation	name;
	privileges	text;
	is_table	boolean;
	is_kept		boolean;
	had_any		boolean;
	is_owner	boolean;
	has_usage	boolean;
BEGIN
	IF role IS NULL OR level IS NULL THEN
		RAISE null_value_not_allowed USING
			MESSAGE = 'role and level must not be null';
	END IF;
	IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = role) THEN
		RAISE undefined_object USING
			MESSAGE = format('role %s does not exist', role);
	END IF;

	-- Each level, the level that shares functions with it, and a function by which a role with
	-- the level is recognized, as in src/api/access.c
	WITH levels (level, sibling, marker, functions) AS (VALUES
		('user', 'monitor', 'lock_release_all(text)', ARRAY['lock_acquire', 'lock_try_acquire',
			'lock_acquire_all', 'lock_try_acquire_all', 'lock_acquire_path', 'lock_try_acquire_path',
			'lock_release_path', 'lock_convert', 'lock_try_convert',
			'lock_transfer', 'lock_try_transfer', 'lock_transfer_all',
			'lock_release', 'lock_try_release', 'lock_release_all',
			'lock_extend', 'lock_try_extend', 'lock_extend_all', 'lock_heartbeat', 'lock_held',
			'lock_assert', 'lock_assert_fence', 'lock_fetch',
			'lock_is_held', 'lock_holder', 'lock_status', 'lock_explain', 'lock_key', 'lock_path', 'lock_partition', 'lock_policy',
			'lock_channel', 'lock_ask', 'lock_enqueue', 'lock_leave']),
		('monitor', 'user', 'lock_status()', ARRAY['lock_status', 'lock_waiters', 'app_lock_guard_problem',
			'lock_is_held', 'lock_holder', 'lock_explain', 'lock_key', 'lock_path', 'lock_partition', 'lock_held_at',
			'lock_stats', 'lock_contention', 'lock_sweeper_status',
			'app_lock_longest_wait', 'app_lock_count_waiters', 'lock_queue', 'lock_channel']),
		('supervisor', 'admin', 'app_lock_supervisor()', ARRAY['force_release', 'lock_force_release', 'lock_try_force_release',
			'lock_steal', 'app_lock_supervisor']),
		('admin', 'supervisor', 'lock_grant_access(regrole, text)', ARRAY['force_release', 'lock_force_release', 'lock_try_force_release',
			'lock_steal', 'lock_sweep', 'lock_schedule_sweep',
			'lock_unschedule_sweep', 'lock_stats_reset', 'lock_protect', 'lock_unprotect',
			'lock_guard', 'lock_set_policy', 'lock_drop_policy',
			'lock_grant_access', 'lock_revoke_access']))
	SELECT l.functions, o.functions, o.marker INTO names, sibling_names, sibling_marker
	FROM levels l JOIN levels o ON o.level = l.sibling
	WHERE l.level = app_lock_change_access.level;
	IF names IS NULL THEN
		-- 22021 where it is not even text
		PERFORM convert_from(convert_to(level, getdatabaseencoding()), getdatabaseencoding());
		RAISE invalid_parameter_value USING
			MESSAGE = format('invalid access level: "%s"', level),
			HINT = 'Valid levels are user, monitor, supervisor and admin.';
	END IF;

	-- This lock keeps the name of the schema from passing to another one until the end of
	-- the transaction.  Without it, two sessions that change the same privileges at the same
	-- time would also get an internal error of PostgreSQL.
	SELECT e.oid, n.nspname, e.extowner = role, has_schema_privilege(e.extowner, n.oid, 'USAGE WITH GRANT OPTION')
	INTO STRICT extension, schema, is_owner, has_usage
	FROM pg_catalog.pg_extension e
		JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
	WHERE e.extname = 'atomic_lock'
	FOR NO KEY UPDATE OF n;

	had_any := EXISTS (
		SELECT FROM pg_catalog.pg_proc p
			JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_proc'::regclass
				AND d.objid = p.oid AND d.deptype = 'e'
				AND d.refclassid = 'pg_catalog.pg_extension'::regclass
				AND d.refobjid = extension,
			aclexplode(p.proacl) a
		WHERE p.proname = ANY (names) AND a.grantee = role);

	-- A role that keeps the other level keeps the functions that both have: those that look at
	-- single keys, and those that end locks of others.
	is_kept := NOT granting AND EXISTS (
		SELECT FROM pg_catalog.pg_proc p, aclexplode(p.proacl) a
		WHERE a.grantee = role AND p.oid = to_regprocedure(quote_ident(schema) || '.' || sibling_marker));

	-- A role may have got its right WITH GRANT OPTION by hand.  CASCADE revokes the rights
	-- that it has passed on, too, or the role could make its own right irrevocable.
	FOR routine IN
		SELECT p.oid
		FROM pg_catalog.pg_proc p
			JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_proc'::regclass
				AND d.objid = p.oid AND d.deptype = 'e'
				AND d.refclassid = 'pg_catalog.pg_extension'::regclass
				AND d.refobjid = extension
		WHERE p.proname = ANY (names)
			-- The owner of the extension can add a procedure to it.
			AND p.prokind = 'f'
			-- lock_status() belongs to level monitor only.
			AND (p.proname <> 'lock_status' OR p.pronargs > 0 OR level = 'monitor')
			AND NOT (is_kept AND p.pronargs > 0 AND p.proname = ANY (sibling_names))
	LOOP
		EXECUTE CASE WHEN granting
			THEN format('GRANT EXECUTE ON FUNCTION %s TO %s', routine, grantee)
			ELSE format('REVOKE EXECUTE ON FUNCTION %s FROM %s CASCADE', routine, grantee) END;
	END LOOP;

	-- VACUUM FULL, CLUSTER and ALTER TABLE change the same row of pg_class as GRANT.  A lock
	-- that conflicts with theirs avoids that internal error of PostgreSQL.
	FOR relation, privileges, is_table IN
		SELECT c.relname, c.privileges, EXISTS (
			SELECT FROM pg_catalog.pg_class r
			WHERE r.oid = to_regclass(format('%I.%I', schema, c.relname)) AND r.relkind = 'r')
		FROM (VALUES ('monitor', 'lock_waiters', 'SELECT'), ('monitor', 'lock_guards', 'SELECT'),
			('monitor', 'lock_stats', 'SELECT'), ('monitor', 'lock_contention', 'SELECT'),
			('monitor', 'lock_activity', 'SELECT'), ('monitor', 'lock_policies', 'SELECT'),
			('monitor', 'lock_history', 'SELECT'), ('monitor', 'lock_queue', 'SELECT'),
			('admin', 'app_lock_queue', 'SELECT (key, ticket, expires_at, queued_at, offered, role, holder), DELETE'),
			('admin', 'lock_audit', 'SELECT, DELETE'),
			-- pg_dump reads these, and a restore writes them.
			('owner', 'lock_audit', 'INSERT'), ('owner', 'lock_history', 'SELECT, INSERT'),
			('owner', 'app_lock_policy', 'SELECT, INSERT'), ('owner', 'app_lock_policy_role', 'SELECT, INSERT'),
			('owner', 'app_lock_fence', 'SELECT, UPDATE')) AS c (at_level, relname, privileges)
		WHERE c.at_level = level
			OR c.at_level = 'owner' AND (is_owner OR NOT granting AND level = 'admin')
	LOOP
		IF is_table THEN
			EXECUTE format('LOCK TABLE %I.%I IN SHARE UPDATE EXCLUSIVE MODE', schema, relation);
		END IF;
		EXECUTE CASE WHEN granting
			THEN format('GRANT %s ON TABLE %I.%I TO %s', privileges, schema, relation, grantee)
			ELSE format('REVOKE %s ON TABLE %I.%I FROM %s CASCADE', privileges, schema, relation, grantee) END;
	END LOOP;

	-- USAGE on the schema is granted if the owner of the extension may grant it.  It is
	-- revoked, because it would keep the role from being dropped, except in three cases:
	-- another privilege in the schema does so anyway; the role had nothing of the level; or
	-- the role may pass USAGE on, which a grant by this function does not allow.
	IF NOT has_usage THEN
		NULL;
	ELSIF granting AND NOT has_schema_privilege(role, schema, 'USAGE') THEN
		EXECUTE format('GRANT USAGE ON SCHEMA %I TO %s', schema, grantee);
	ELSIF NOT granting AND had_any AND EXISTS (
			SELECT FROM pg_catalog.pg_namespace n, aclexplode(n.nspacl) a
			WHERE n.nspname = schema AND a.grantee = role AND n.nspowner <> role
				AND a.privilege_type = 'USAGE' AND NOT a.is_grantable)
		AND NOT EXISTS (
			SELECT FROM pg_catalog.pg_shdepend d,
				pg_identify_object(d.classid, d.objid, d.objsubid) o (type, place)
			WHERE d.refclassid = 'pg_catalog.pg_authid'::regclass AND d.refobjid = role
				AND d.dbid = (SELECT b.oid FROM pg_catalog.pg_database b WHERE b.datname = current_database())
				AND o.place = quote_ident(schema))
	THEN
		EXECUTE format('REVOKE USAGE ON SCHEMA %I FROM %s', schema, grantee);
	END IF;

	-- Otherwise the owner would lose rights that pg_dump needs.  The error undoes it all.
	IF NOT granting AND is_owner THEN
		RAISE invalid_parameter_value USING
			MESSAGE = 'access cannot be revoked from the owner of the extension';
	END IF;
END
$$;

COMMENT ON FUNCTION app_lock_change_access(regrole, text, boolean) IS
'internal: grants or revokes a level, for lock_grant_access and lock_revoke_access';

CREATE FUNCTION app_lock_prevent_writing(function text)
RETURNS void
AS 'MODULE_PATHNAME', 'atomic_lock_prevent_writing'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION app_lock_prevent_writing(text) IS
'internal: raises 25006 in a read-only transaction, and 25000 in a parallel worker';

CREATE FUNCTION app_lock_supervisor()
RETURNS void
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
END;

COMMENT ON FUNCTION app_lock_supervisor() IS
'internal: does nothing; a role that may execute it has level supervisor';

CREATE FUNCTION lock_grant_access(role regrole, level text)
RETURNS void
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 1000
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
	SELECT app_lock_prevent_writing('lock_grant_access()'::text);
	SELECT app_lock_change_access(role, level, true);
END;

COMMENT ON FUNCTION lock_grant_access(regrole, text) IS
'grants "role" an access level: user (locking), monitor (looking at one key and at all, lock_activity, lock_waiters, lock_queue, lock_stats, lock_contention, lock_sweeper_status, lock_guards, lock_policies, lock_history, lock_held_at), supervisor (force_release and lock_steal, for the keys that policies do not reserve for others), admin (force_release, lock_steal, reading and trimming lock_audit, deleting places from app_lock_queue, sweeps and their schedule, lock_stats_reset, guards, policies, granting); no level includes another one';

CREATE FUNCTION lock_revoke_access(role regrole, level text)
RETURNS void
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER COST 1000
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
	SELECT app_lock_prevent_writing('lock_revoke_access()'::text);
	SELECT app_lock_change_access(role, level, false);
END;

COMMENT ON FUNCTION lock_revoke_access(regrole, text) IS
'revokes the access level from "role", and USAGE on the schema if the role has nothing else there';

CREATE FUNCTION app_lock_repeat_access()
RETURNS void
AS 'MODULE_PATHNAME', 'atomic_lock_repeat_access'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION app_lock_repeat_access() IS
'internal: grants each level again to the roles that have it, as if no script of an extension were running';

/*
 * The last call of this script and of each update script leaves new objects to the roles
 * that have their level.  It revokes privileges of PUBLIC on new functions, and those that
 * ALTER DEFAULT PRIVILEGES gave.  PostgreSQL records in pg_init_privs the privileges that
 * a script left on each object, so an object without such a record is new.
 */
CREATE FUNCTION app_lock_refresh_access()
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	revoke	text;
BEGIN
	FOR revoke IN
		SELECT format('REVOKE ALL ON %s FROM %s', o.object,
			string_agg(DISTINCT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END, ', '))
		FROM pg_catalog.pg_extension e
			JOIN pg_catalog.pg_depend d
				ON d.refclassid = 'pg_catalog.pg_extension'::regclass
				AND d.refobjid = e.oid AND d.deptype = 'e'
			JOIN (
				SELECT 'pg_catalog.pg_proc'::regclass, p.oid, 'ROUTINE ' || p.oid::regprocedure,
					p.proowner, p.proacl
				FROM pg_catalog.pg_proc p
				UNION ALL
				SELECT 'pg_catalog.pg_class'::regclass, c.oid,
					CASE c.relkind WHEN 'S' THEN 'SEQUENCE ' ELSE 'TABLE ' END || c.oid::regclass,
					c.relowner, c.relacl
				FROM pg_catalog.pg_class c
				WHERE c.relkind IN ('r', 'v', 'S')
			) o (classid, oid, object, owner, acl)
				ON o.classid = d.classid AND o.oid = d.objid
			CROSS JOIN LATERAL (SELECT 0::oid UNION ALL SELECT x.grantee FROM aclexplode(o.acl) x) a (grantee)
		WHERE e.extname = 'atomic_lock' AND a.grantee <> o.owner
			AND NOT EXISTS (
				SELECT FROM pg_catalog.pg_init_privs i
				WHERE i.classoid = d.classid AND i.objoid = d.objid AND i.objsubid = 0)
		GROUP BY o.object
	LOOP
		EXECUTE revoke;
	END LOOP;

	EXECUTE format('SELECT %I.app_lock_repeat_access()',
		(SELECT n.nspname FROM pg_catalog.pg_extension e
			JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
		WHERE e.extname = 'atomic_lock'));
END
$$;

COMMENT ON FUNCTION app_lock_refresh_access() IS
'internal: ends a script: revokes new objects from PUBLIC, and grants them to the roles that have their level';

-- The first hash of a key makes the secret of this database; see src/base/hash.c.
-- With 0 partitions, this server accepts any key.
SET LOCAL atomic_lock.partitions = 0;
SELECT lock_holder('key'::pg_catalog.text);

-- Roles have no access until lock_grant_access gives it.
SELECT app_lock_refresh_access();
