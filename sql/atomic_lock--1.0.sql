/* sql/atomic_lock--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION atomic_lock" to load this file. \quit

-- The script runs with the schema of the extension in search_path, right after
-- pg_catalog.  The owner of that schema need not be trusted: he may have made a
-- function or an operator there that fits the types of its arguments better than
-- the one in pg_catalog does.  So each function, operator and cast in an
-- expression names pg_catalog, unless the expression runs under the search_path
-- "pg_catalog, pg_temp".  What looks for an operator without naming it, such as
-- IN, BETWEEN, LIKE and CASE x WHEN, is not used elsewhere.  Functions of our own
-- are called with exactly the types of their parameters, because their schema
-- cannot be written here: the macro for it refuses some names that we allow.

------------------------------------------------------------------------------
-- The table.  One row per holding; src/lock_table.c is the only code that
-- reads or writes it and src/lock_table.h mirrors its columns, in this order.
--
-- Slot 0 is the exclusive holding of a key, the slots above are shared ones.
-- No index may contain a column that acquire, extend or release changes, or
-- updates stop being HOT.
------------------------------------------------------------------------------

CREATE TYPE lock_mode AS ENUM ('exclusive', 'shared');

COMMENT ON TYPE lock_mode IS 'exclusive: one owner has the key; shared: any number of them';

-- Columns up to the key have the same place in every row, and that of the key is a
-- multiple of 4, which makes updates cheaper.  Those that a usual lease does not
-- need are last, where they take no space.  A release changes no column's length,
-- so that the row's next version fits where the last one was.
CREATE TABLE app_lock (
	fencing_token	bigint NOT NULL,
	acquired_at		timestamptz NOT NULL,
	expires_at		timestamptz NOT NULL,
	ttl_us			bigint NOT NULL,
	slot			integer NOT NULL,
	mode			lock_mode NOT NULL,
	key				text COLLATE "C" NOT NULL,
	released		boolean NOT NULL DEFAULT false,
	holder			text COLLATE "C" NOT NULL,
	owner			text COLLATE "C",
	owner_hash		integer,
	meta			jsonb,
	pid				integer,
	backend_start	timestamptz,
	CONSTRAINT app_lock_pkey PRIMARY KEY (key, slot)
) USING heap WITH (
	-- a page is pruned once it is full, so room for six versions or so
	fillfactor = 87,
	autovacuum_vacuum_scale_factor = 0.02,
	autovacuum_vacuum_threshold = 500,
	autovacuum_vacuum_cost_delay = 0,
	-- truncation would take a lock that acquires wait for
	vacuum_truncate = false,
	toast.vacuum_truncate = false
);

-- Finds the leases of an owner that the application named.  An acquire of one key
-- that generates an owner does without, and so stays HOT; see src/lock_owner.c.
-- Of several rows in one entry all must be dead before it goes away.
CREATE INDEX app_lock_owner_idx ON app_lock (owner_hash)
	WITH (deduplicate_items = off)
	WHERE owner_hash IS NOT NULL;

-- Texts short enough to stay in the row, whatever meta takes.
ALTER TABLE app_lock
	ALTER COLUMN key SET STORAGE MAIN,
	ALTER COLUMN holder SET STORAGE MAIN,
	ALTER COLUMN owner SET STORAGE MAIN;

COMMENT ON TABLE app_lock IS 'leases of atomic_lock, one row per holding; a lease is live while it is not released and the clock is before expires_at';
COMMENT ON COLUMN app_lock.fencing_token IS 'rises with every grant of the key';
COMMENT ON COLUMN app_lock.acquired_at IS 'when the holding was granted';
COMMENT ON COLUMN app_lock.expires_at IS 'when the lease runs out by itself; once released, when that was';
COMMENT ON COLUMN app_lock.ttl_us IS 'length last asked for, in microseconds; lock_extend repeats it; 0: none';
COMMENT ON COLUMN app_lock.slot IS '0 for the exclusive holding of the key, more for a shared one';
COMMENT ON COLUMN app_lock.key IS 'what is locked, compared byte by byte';
COMMENT ON COLUMN app_lock.mode IS 'exclusive or shared';
COMMENT ON COLUMN app_lock.holder IS 'label of the holder, for people';
COMMENT ON COLUMN app_lock.owner IS 'secret that proves the holding; null after force_release';
COMMENT ON COLUMN app_lock.owner_hash IS 'hash of the last owner that is in the index, kept when the row changes hands to one that is not';
COMMENT ON COLUMN app_lock.released IS 'whether the holding was released';
COMMENT ON COLUMN app_lock.meta IS 'whatever the application keeps with the lease';
COMMENT ON COLUMN app_lock.pid IS 'process id of the session with which the holding ends; null for a lease';
COMMENT ON COLUMN app_lock.backend_start IS 'start of that session, as in pg_stat_activity';

-- The last fencing token; see src/lock_fence.c.
CREATE SEQUENCE app_lock_fence AS bigint NO CYCLE CACHE 1;

COMMENT ON SEQUENCE app_lock_fence IS 'last fencing token; drawn by atomic_lock itself, never by nextval()';

CREATE TABLE lock_audit (
	at						timestamptz NOT NULL,
	action					text NOT NULL,
	key						text COLLATE "C" NOT NULL,
	previous_holder			text,
	previous_owner_digest	text,
	fencing_token			bigint,
	session_role			name NOT NULL,
	acting_role				name NOT NULL,
	client_addr				inet,
	reason					text NOT NULL
) USING heap;

COMMENT ON TABLE lock_audit IS 'one row per holding that was ended by force_release or lock_steal';
COMMENT ON COLUMN lock_audit.at IS 'when it was ended';
COMMENT ON COLUMN lock_audit.action IS 'force_release or lock_steal';
COMMENT ON COLUMN lock_audit.key IS 'which lock';
COMMENT ON COLUMN lock_audit.previous_holder IS 'label of the holder whose lease was ended; null when lock_steal found the key free';
COMMENT ON COLUMN lock_audit.previous_owner_digest IS 'SHA-256 of the owner whose lease was ended, in hex';
COMMENT ON COLUMN lock_audit.fencing_token IS 'fencing token of the lease that was ended';
COMMENT ON COLUMN lock_audit.session_role IS 'role that had logged in';
COMMENT ON COLUMN lock_audit.acting_role IS 'role in effect, after SET ROLE';
COMMENT ON COLUMN lock_audit.client_addr IS 'address of the client; null on a Unix-domain socket';
COMMENT ON COLUMN lock_audit.reason IS 'the reason given';

-- Leases must not come back to life in a restored dump; fencing tokens must
-- go on from there, and the audit trail must be kept.
SELECT pg_catalog.pg_extension_config_dump('app_lock_fence', '');
SELECT pg_catalog.pg_extension_config_dump('lock_audit', '');

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
	holder			text
);

COMMENT ON TYPE lock_grant IS 'answer of an acquire: the new lease, or who has the key';
COMMENT ON COLUMN lock_grant.acquired IS 'whether the caller has the lock now';
COMMENT ON COLUMN lock_grant.status IS 'acquired, reacquired, held, timeout or deadlock';
COMMENT ON COLUMN lock_grant.key IS 'what was asked for';
COMMENT ON COLUMN lock_grant.mode IS 'mode of the holding';
COMMENT ON COLUMN lock_grant.owner IS 'secret that proves the holding; null when refused';
COMMENT ON COLUMN lock_grant.fencing_token IS 'rises with every grant of the key; null when refused';
COMMENT ON COLUMN lock_grant.acquired_at IS 'when the holding was granted';
COMMENT ON COLUMN lock_grant.expires_at IS 'when the lease runs out by itself; null when only its session or transaction ends it';
COMMENT ON COLUMN lock_grant.waited IS 'how long the call waited';
COMMENT ON COLUMN lock_grant.holder IS 'label of the holder, for people';

CREATE FUNCTION lock_acquire(
	key text,
	ttl interval DEFAULT NULL,
	owner text DEFAULT NULL,
	mode text DEFAULT 'exclusive',
	wait interval DEFAULT '0',
	holder text DEFAULT NULL,
	meta jsonb DEFAULT NULL,
	lifetime text DEFAULT 'lease'
) RETURNS lock_grant
AS 'MODULE_PATHNAME', 'atomic_lock_acquire'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_acquire(text, interval, text, text, interval, text, jsonb, text) IS
'take the lock "key" for "ttl" (default atomic_lock.default_ttl); the owner in the answer proves the holding; waits for it up to "wait" in the order of arrival; "mode" is exclusive or shared, "lifetime" is lease, session or transaction; raises 55P03 when somebody else has it or the wait ran out, 40P01 when waiting would close a circle of owners, LK007 when the owner has it and atomic_lock.on_reacquire is error';

CREATE FUNCTION lock_try_acquire(
	key text,
	ttl interval DEFAULT NULL,
	owner text DEFAULT NULL,
	mode text DEFAULT 'exclusive',
	wait interval DEFAULT '0',
	holder text DEFAULT NULL,
	meta jsonb DEFAULT NULL,
	lifetime text DEFAULT 'lease'
) RETURNS lock_grant
AS 'MODULE_PATHNAME', 'atomic_lock_try_acquire'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_try_acquire(text, interval, text, text, interval, text, jsonb, text) IS
'like lock_acquire, but answers status "held", "timeout" or "deadlock" instead of raising';

CREATE FUNCTION lock_acquire_all(
	keys text[],
	ttl interval DEFAULT NULL,
	owner text DEFAULT NULL,
	mode text DEFAULT 'exclusive',
	wait interval DEFAULT '0',
	holder text DEFAULT NULL,
	meta jsonb DEFAULT NULL
) RETURNS SETOF lock_grant
AS 'MODULE_PATHNAME', 'atomic_lock_acquire_all'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_acquire_all(text[], interval, text, text, interval, text, jsonb) IS
'take 1 to 1000 locks for one owner, all or none, in the order of their bytes; "wait" is for the whole set; a row per key, each once; raises like lock_acquire, naming the key in the way';

CREATE FUNCTION lock_try_acquire_all(
	keys text[],
	ttl interval DEFAULT NULL,
	owner text DEFAULT NULL,
	mode text DEFAULT 'exclusive',
	wait interval DEFAULT '0',
	holder text DEFAULT NULL,
	meta jsonb DEFAULT NULL
) RETURNS SETOF lock_grant
AS 'MODULE_PATHNAME', 'atomic_lock_try_acquire_all'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_try_acquire_all(text[], interval, text, text, interval, text, jsonb) IS
'like lock_acquire_all, but instead of raising answers one row, for the key in the way, with status "held", "timeout" or "deadlock"';

CREATE FUNCTION lock_convert(
	key text,
	owner text DEFAULT NULL,
	mode text DEFAULT 'exclusive',
	wait interval DEFAULT '0'
) RETURNS lock_grant
AS 'MODULE_PATHNAME', 'atomic_lock_convert'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_convert(text, text, text, interval) IS
'change what "owner" (default atomic_lock.owner) holds of "key" to another mode without letting go; gives a new fencing token and keeps the rest; raises 55P03 when others share it or the wait ran out, 40P01 when another owner waits to convert it too, LK002, LK003, LK004, LK005';

CREATE FUNCTION lock_transfer(
	key text,
	owner text,
	new_owner text,
	holder text DEFAULT NULL,
	ttl interval DEFAULT NULL
) RETURNS lock_grant
AS 'MODULE_PATHNAME', 'atomic_lock_transfer'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_transfer(text, text, text, text, interval) IS
'hand what "owner" (null: atomic_lock.owner) holds of "key" over to "new_owner" in one step, with a new fencing token, for "ttl" from now (default: its end stays as it is); raises LK002, LK003, LK004, LK005';

CREATE FUNCTION lock_release(key text, owner text DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'atomic_lock_release'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_release(text, text) IS
'end the lease that "owner" (default atomic_lock.owner) has on "key"; true, or raises LK002 not found, LK003 held by another owner, LK004 released before, LK005 expired';

CREATE FUNCTION lock_try_release(key text, owner text DEFAULT NULL)
RETURNS text
AS 'MODULE_PATHNAME', 'atomic_lock_try_release'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_try_release(text, text) IS
'like lock_release, but answers released, not_found, not_owner, already_released or expired';

CREATE FUNCTION lock_release_all(owner text DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'atomic_lock_release_all'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_release_all(text) IS
'end every live lease of "owner" (default atomic_lock.owner) in this database; returns how many';

CREATE FUNCTION lock_extend(key text, owner text DEFAULT NULL, ttl interval DEFAULT NULL)
RETURNS timestamptz
AS 'MODULE_PATHNAME', 'atomic_lock_extend'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_extend(text, text, interval) IS
'extend the lease that "owner" (default atomic_lock.owner) has on "key" to "ttl" from now (default: the length last asked for, never shortening); returns the new expiry, or raises LK002, LK003, LK004, LK005, or LK008 when atomic_lock.max_lifetime is reached';

CREATE FUNCTION lock_try_extend(key text, owner text DEFAULT NULL, ttl interval DEFAULT NULL)
RETURNS timestamptz
AS 'MODULE_PATHNAME', 'atomic_lock_try_extend'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_try_extend(text, text, interval) IS
'like lock_extend, but answers null where it would raise for the state of the lock';

CREATE FUNCTION lock_extend_all(owner text DEFAULT NULL, ttl interval DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'atomic_lock_extend_all'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_extend_all(text, interval) IS
'heartbeat: extend every live lease of "owner" (default atomic_lock.owner) in this database; returns how many were extended';

CREATE FUNCTION lock_assert(key text, owner text DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'atomic_lock_assert'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_assert(text, text) IS
'fencing token of what "owner" (default atomic_lock.owner) holds of "key", or raises LK006; pins it until the transaction ends: nobody can take, release or force it before, even when its time is up; writes nothing';

CREATE FUNCTION lock_assert_fence(key text, fencing_token bigint, owner text DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'atomic_lock_assert_fence'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_assert_fence(text, bigint, text) IS
'raises LK005 unless "owner" (default atomic_lock.owner) holds "key" by the grant that has "fencing_token"; pins it until the transaction ends, as lock_assert does';

CREATE FUNCTION lock_fetch(
	row_type anyelement,
	id text,
	ttl interval DEFAULT NULL,
	owner text DEFAULT NULL,
	wait interval DEFAULT '0',
	key text DEFAULT NULL
) RETURNS SETOF anyelement
AS 'MODULE_PATHNAME', 'atomic_lock_fetch'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;

COMMENT ON FUNCTION lock_fetch(anyelement, text, interval, text, interval, text) IS
'take the lock "key" (default: name of the table and ":" and the primary key) for "owner" (default atomic_lock.owner), then read the row of the table whose row type is given, by its primary key: text, or a JSON object where it has several columns; no such row: no row and no lock; raises what lock_acquire does, 40001 when the transaction cannot see the newest version of the row';

CREATE FUNCTION lock_is_held(key text, owner text DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'atomic_lock_is_held'
LANGUAGE C STABLE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_is_held(text, text) IS
'whether "owner" (default atomic_lock.owner) holds "key"';

CREATE FUNCTION lock_holder(key text)
RETURNS text
AS 'MODULE_PATHNAME', 'atomic_lock_holder'
LANGUAGE C STABLE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_holder(text) IS
'label of the current holder of "key", or null when it is free';

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
	meta			jsonb
);

COMMENT ON TYPE lock_state IS 'state of a key, or one of its holdings; of a free key only key and locked are known, and waiters where there are any';
COMMENT ON COLUMN lock_state.key IS 'what is locked';
COMMENT ON COLUMN lock_state.locked IS 'whether anybody has the key';
COMMENT ON COLUMN lock_state.mode IS 'mode of the holding';
COMMENT ON COLUMN lock_state.owner IS 'secret that proves the holding; null to all but the owner itself and administrators';
COMMENT ON COLUMN lock_state.holder IS 'label of the holder, for people';
COMMENT ON COLUMN lock_state.fencing_token IS 'of the grant; null to all but the owner itself and access level monitor';
COMMENT ON COLUMN lock_state.acquired_at IS 'when the holding was granted';
COMMENT ON COLUMN lock_state.expires_at IS 'when the lease runs out by itself; null when only its session or transaction ends it';
COMMENT ON COLUMN lock_state.ttl_remaining IS 'how long until then';
COMMENT ON COLUMN lock_state.lifetime IS 'lease, session or transaction';
COMMENT ON COLUMN lock_state.holders IS 'how many hold the key';
COMMENT ON COLUMN lock_state.waiters IS 'how many wait for it; null where this server cannot know';
COMMENT ON COLUMN lock_state.pid IS 'backend with which the holding ends; null for a lease';
COMMENT ON COLUMN lock_state.meta IS 'what the holder has to say';

CREATE FUNCTION lock_status(key text) RETURNS lock_state
AS 'MODULE_PATHNAME', 'atomic_lock_status'
LANGUAGE C STABLE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_status(text) IS
'state of "key": always one row; the owner is shown only to the owner itself and to administrators';

CREATE FUNCTION lock_status() RETURNS SETOF lock_state
AS 'MODULE_PATHNAME', 'atomic_lock_status_all'
LANGUAGE C STABLE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_status() IS
'a row for every live holding in this database';

CREATE FUNCTION lock_waiters(
	OUT key text,
	OUT pid integer,
	OUT holder text,
	OUT mode text,
	OUT since timestamptz,
	OUT place integer,
	OUT blocked_by text,
	OUT blocking_pid integer
)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'atomic_lock_waiters'
LANGUAGE C STABLE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_waiters() IS
'a row for every backend of this database that waits for a lock; raises 55000 before PostgreSQL 17 where atomic_lock is not preloaded';

CREATE VIEW lock_waiters AS SELECT * FROM lock_waiters();

COMMENT ON VIEW lock_waiters IS 'backends of this database that wait for a lock, in the order in which they will get it';
COMMENT ON COLUMN lock_waiters.key IS 'what it waits for';
COMMENT ON COLUMN lock_waiters.pid IS 'process id of the waiting backend';
COMMENT ON COLUMN lock_waiters.holder IS 'label of the waiter, to 63 bytes';
COMMENT ON COLUMN lock_waiters.mode IS 'mode that it asks for';
COMMENT ON COLUMN lock_waiters.since IS 'when it began to wait';
COMMENT ON COLUMN lock_waiters.place IS 'place in the queue of the key; 1 is next';
COMMENT ON COLUMN lock_waiters.blocked_by IS 'label of whoever has the lock now; null when it is free or not committed yet';
COMMENT ON COLUMN lock_waiters.blocking_pid IS 'process id of an unfinished transaction that has the key';

CREATE FUNCTION lock_key(VARIADIC parts text[])
RETURNS text
AS 'MODULE_PATHNAME', 'atomic_lock_key'
LANGUAGE C IMMUTABLE PARALLEL SAFE;

COMMENT ON FUNCTION lock_key(text[]) IS
'join parts to a key with ":", escaping ":" and "\" inside a part with "\"; raises 22004 for a null part, 22023 for no parts';

------------------------------------------------------------------------------
-- Functions for DBAs and schedules
------------------------------------------------------------------------------

CREATE FUNCTION force_release(key text, reason text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'atomic_lock_force_release'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION force_release(text, text) IS
'end every holding of "key", whoever has it; audited in lock_audit; true, or raises LK002 when there is none';

CREATE FUNCTION lock_force_release(key text, reason text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'atomic_lock_force_release'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_force_release(text, text) IS
'the same as force_release';

CREATE FUNCTION lock_steal(
	key text,
	new_owner text,
	reason text,
	ttl interval DEFAULT NULL,
	holder text DEFAULT NULL
) RETURNS lock_grant
AS 'MODULE_PATHNAME', 'atomic_lock_steal'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_steal(text, text, text, interval, text) IS
'take "key" over for "new_owner" in one step, whoever has it; audited in lock_audit';

CREATE FUNCTION lock_sweep(max_rows bigint DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'atomic_lock_sweep'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_sweep(bigint) IS
'remove up to "max_rows" (default atomic_lock.sweep_batch) expired leases and keys released longer ago than atomic_lock.released_retention; returns how many; skips rows in use';

CREATE FUNCTION lock_schedule_sweep(schedule text DEFAULT '* * * * *')
RETURNS bigint
AS 'MODULE_PATHNAME', 'atomic_lock_schedule_sweep'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_schedule_sweep(text) IS
'have pg_cron sweep this database as the current role, on "schedule" (default every minute); replaces an earlier schedule; returns the id of the job; where pg_cron is in another database, it is done there at once, whatever becomes of the transaction; raises 55000 without pg_cron';

CREATE FUNCTION lock_unschedule_sweep()
RETURNS boolean
AS 'MODULE_PATHNAME', 'atomic_lock_unschedule_sweep'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_unschedule_sweep() IS
'take back what lock_schedule_sweep did; false where there was nothing; raises 55000 without pg_cron';

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
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_sweeper_status() IS
'whether the background sweep runs, in words, and what to do if not; then a row for each database that was swept since the server started, by it or by lock_sweep';

------------------------------------------------------------------------------
-- What people see.  Counters are in shared memory, from the start of the
-- server on.
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
	OUT since timestamptz
)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'atomic_lock_stats'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_stats() IS
'what has happened to locks, a row for each database; raises 55000 before PostgreSQL 17 where atomic_lock is not preloaded';

CREATE VIEW lock_stats AS SELECT * FROM lock_stats();

COMMENT ON VIEW lock_stats IS 'what has happened to locks since the server started or lock_stats_reset, a row for each database';
COMMENT ON COLUMN lock_stats.database IS 'name of the database; null for all those that found no place of their own';
COMMENT ON COLUMN lock_stats.grants IS 'new holdings that were granted and committed';
COMMENT ON COLUMN lock_stats.regrants IS 'acquires of what the owner had already, and converts';
COMMENT ON COLUMN lock_stats.refusals IS 'acquires that were answered "held"';
COMMENT ON COLUMN lock_stats.timeouts IS 'acquires whose wait ran out';
COMMENT ON COLUMN lock_stats.deadlocks IS 'acquires that were refused because waiting would never have ended';
COMMENT ON COLUMN lock_stats.releases IS 'holdings that their owner ended';
COMMENT ON COLUMN lock_stats.extends IS 'leases extended by lock_extend and its kin';
COMMENT ON COLUMN lock_stats.expirations IS 'holdings that ran out, or whose session ended; counted when the next grant or the sweep finds them';
COMMENT ON COLUMN lock_stats.steals IS 'grants by lock_steal';
COMMENT ON COLUMN lock_stats.forced IS 'holdings that force_release and lock_steal ended';
COMMENT ON COLUMN lock_stats.sweeps IS 'sweeps, by lock_sweep or in the background';
COMMENT ON COLUMN lock_stats.swept IS 'rows that sweeps removed, expired or released long ago';
COMMENT ON COLUMN lock_stats.waits IS 'how often an acquire stood in line for a key';
COMMENT ON COLUMN lock_stats.total_wait IS 'how long they did, together';
COMMENT ON COLUMN lock_stats.longest_wait IS 'how long one did at most';
COMMENT ON COLUMN lock_stats.since IS 'since when all this is counted';

CREATE FUNCTION lock_stats_reset()
RETURNS void
AS 'MODULE_PATHNAME', 'atomic_lock_stats_reset'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_stats_reset() IS
'have lock_stats and lock_contention of this database begin anew; raises 55000 where nothing is counted';

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
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_contention() IS
'keys of this database that were refused or waited for in the last 5 to 10 minutes, most wanted first; about the 256 most wanted of the server are known; raises 55000 before PostgreSQL 17 where atomic_lock is not preloaded';

CREATE VIEW lock_contention AS SELECT * FROM lock_contention();

COMMENT ON VIEW lock_contention IS 'keys of this database that were refused or waited for in the last 5 to 10 minutes, most wanted first';
COMMENT ON COLUMN lock_contention.key IS 'which lock';
COMMENT ON COLUMN lock_contention.refusals IS 'acquires that were answered "held"';
COMMENT ON COLUMN lock_contention.waits IS 'how often an acquire stood in line and does no more';
COMMENT ON COLUMN lock_contention.total_wait IS 'how long they did, together';
COMMENT ON COLUMN lock_contention.longest_wait IS 'how long one did at most';
COMMENT ON COLUMN lock_contention.last_at IS 'when that happened last';

CREATE FUNCTION app_lock_longest_wait(key text)
RETURNS interval
AS 'MODULE_PATHNAME', 'atomic_lock_longest_wait'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION app_lock_longest_wait(text) IS
'internal: how long somebody has been waiting for a key, or null';

CREATE VIEW lock_activity AS
	SELECT s.key,
		s.holder,
		pg_catalog.date_trunc('milliseconds',
			pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) s.acquired_at) AS held_for,
		pg_catalog.date_trunc('milliseconds', s.ttl_remaining) AS time_left,
		s.waiters,
		pg_catalog.date_trunc('milliseconds', app_lock_longest_wait(s.key)) AS longest_wait,
		a.application_name AS application,
		s.pid,
		a.state
	FROM lock_status() s
		-- on a standby pid is that of a process of the primary
		LEFT JOIN pg_catalog.pg_stat_activity a
			ON a.pid OPERATOR(pg_catalog.=) s.pid AND NOT pg_catalog.pg_is_in_recovery()
	ORDER BY longest_wait DESC NULLS LAST, held_for DESC NULLS LAST, s.key;

COMMENT ON VIEW lock_activity IS 'who holds what right now, what is waited for longest first';
COMMENT ON COLUMN lock_activity.key IS 'what is locked';
COMMENT ON COLUMN lock_activity.holder IS 'label of the holder';
COMMENT ON COLUMN lock_activity.held_for IS 'for how long it has been held';
COMMENT ON COLUMN lock_activity.time_left IS 'until the lease runs out; null where only its session or transaction ends it';
COMMENT ON COLUMN lock_activity.waiters IS 'how many wait for it; null where nobody can know';
COMMENT ON COLUMN lock_activity.longest_wait IS 'how long the first of them has been waiting';
COMMENT ON COLUMN lock_activity.application IS 'application_name of the session with which the holding ends; null for a lease';
COMMENT ON COLUMN lock_activity.pid IS 'process id of that session';
COMMENT ON COLUMN lock_activity.state IS 'what that session is doing, as in pg_stat_activity';

------------------------------------------------------------------------------
-- Guards.  The trigger is all that says that a table is protected, so that
-- dumps, renames and new partitions have it too.
------------------------------------------------------------------------------

CREATE FUNCTION lock_guard()
RETURNS trigger
AS 'MODULE_PATHNAME', 'atomic_lock_guard'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_guard() IS
'trigger of tables that lock_protect has protected: raises LK006 unless atomic_lock.owner holds the lock that covers the row in exclusive mode, and pins it; raises 22004 for a null in the key, 55000 for TRUNCATE';

CREATE FUNCTION app_lock_guard_problem(relation regclass, key_template text)
RETURNS text
AS 'MODULE_PATHNAME', 'atomic_lock_guard_problem'
LANGUAGE C STRICT STABLE PARALLEL SAFE;

COMMENT ON FUNCTION app_lock_guard_problem(regclass, text) IS
'internal: why a key template does not fit a table, or null';

CREATE FUNCTION lock_protect(
	relation regclass,
	key_template text,
	events text[] DEFAULT '{update,delete}'
) RETURNS void
AS 'MODULE_PATHNAME', 'atomic_lock_protect'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_protect(regclass, text, text[]) IS
'refuse "events" (of insert, update, delete) on rows of a table unless atomic_lock.owner holds the lock whose key "key_template" makes of the row''s columns, such as order:{id}; for the owner of the table; raises 42703 for an unknown column, 22023 for what is no template';

CREATE FUNCTION lock_unprotect(relation regclass)
RETURNS void
AS 'MODULE_PATHNAME', 'atomic_lock_unprotect'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION lock_unprotect(regclass) IS
'take the guard of lock_protect off a table, its partitions and children; for the owner of the table; raises 42704 when it is not protected';

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
		app_lock_guard_problem(t.tgrelid::pg_catalog.regclass, a.key_template) AS problem
	FROM pg_catalog.pg_trigger t
		LEFT JOIN pg_catalog.pg_trigger p ON p.oid OPERATOR(pg_catalog.=) t.tgparentid
		-- arguments end with a zero byte
		CROSS JOIN LATERAL (SELECT pg_catalog.convert_from(
			pg_catalog.substr(t.tgargs, 1, pg_catalog.length(t.tgargs) OPERATOR(pg_catalog.-) 1),
			pg_catalog.getdatabaseencoding()) AS key_template) a
	WHERE t.tgfoid OPERATOR(pg_catalog.=) 'lock_guard()'::pg_catalog.regprocedure::pg_catalog.oid
		AND (t.tgtype::pg_catalog.int4 OPERATOR(pg_catalog.&) 1) OPERATOR(pg_catalog.<>) 0
		AND t.tgnargs OPERATOR(pg_catalog.=) 1::pg_catalog.int2;

COMMENT ON VIEW lock_guards IS 'tables that lock_protect has protected, partitions included';
COMMENT ON COLUMN lock_guards.relation IS 'the table';
COMMENT ON COLUMN lock_guards.key_template IS 'what makes the key of a row';
COMMENT ON COLUMN lock_guards.events IS 'which of insert, update and delete need the lock';
COMMENT ON COLUMN lock_guards.state IS 'enabled; disabled, replica or always after ALTER TABLE ... TRIGGER';
COMMENT ON COLUMN lock_guards.parent IS 'of a partition: the table that it is protected with';
COMMENT ON COLUMN lock_guards.problem IS 'why every write will fail; null where the template fits the table';

/*
 * Grants and revokes are made by the owner of the extension, so that whoever
 * may call lock_grant_access need not own the functions.
 */
CREATE FUNCTION app_lock_change_access(role regrole, level text, granting boolean)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	names		name[];
	extension	oid;
	schema		name;
	grantee		text := role::text;
	routine		regprocedure;
	relation	name;
BEGIN
	IF role IS NULL OR level IS NULL THEN
		RAISE null_value_not_allowed USING
			MESSAGE = 'role and level must not be null';
	END IF;
	IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = role) THEN
		RAISE undefined_object USING
			MESSAGE = format('role %s does not exist', role),
			HINT = 'Access can be granted to roles, not to PUBLIC.';
	END IF;

	names := CASE level
		WHEN 'user' THEN ARRAY['lock_acquire', 'lock_try_acquire',
			'lock_acquire_all', 'lock_try_acquire_all', 'lock_convert',
			'lock_transfer', 'lock_release', 'lock_try_release', 'lock_release_all',
			'lock_extend', 'lock_try_extend', 'lock_extend_all',
			'lock_assert', 'lock_assert_fence', 'lock_fetch',
			'lock_is_held', 'lock_holder', 'lock_status', 'lock_key']
		WHEN 'monitor' THEN ARRAY['lock_status', 'lock_waiters', 'app_lock_guard_problem',
			'lock_stats', 'lock_contention', 'lock_sweeper_status',
			'app_lock_longest_wait']
		WHEN 'admin' THEN ARRAY['force_release', 'lock_force_release',
			'lock_steal', 'lock_sweep', 'lock_schedule_sweep',
			'lock_unschedule_sweep', 'lock_stats_reset', 'lock_protect', 'lock_unprotect',
			'lock_guard', 'lock_grant_access', 'lock_revoke_access']
	END;
	IF names IS NULL THEN
		RAISE invalid_parameter_value USING
			MESSAGE = format('invalid access level: "%s"', level),
			HINT = 'Levels are user, monitor and admin.';
	END IF;

	SELECT e.oid, n.nspname INTO STRICT extension, schema
	FROM pg_catalog.pg_extension e
		JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
	WHERE e.extname = 'atomic_lock';
	-- Two who change the same privileges at the same time would get an internal
	-- error of PostgreSQL.
	EXECUTE format('LOCK TABLE %I.lock_audit IN SHARE UPDATE EXCLUSIVE MODE', schema);

	FOR routine IN
		SELECT p.oid
		FROM pg_catalog.pg_proc p
			JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_proc'::regclass
				AND d.objid = p.oid AND d.deptype = 'e'
				AND d.refclassid = 'pg_catalog.pg_extension'::regclass
				AND d.refobjid = extension
		WHERE p.proname = ANY (names)
			-- lock_status(key) is for users, lock_status() for monitors
			AND (p.proname <> 'lock_status' OR (p.pronargs = 0) = (level = 'monitor'))
	LOOP
		EXECUTE CASE WHEN granting
			THEN format('GRANT EXECUTE ON FUNCTION %s TO %s', routine, grantee)
			ELSE format('REVOKE EXECUTE ON FUNCTION %s FROM %s', routine, grantee) END;
	END LOOP;

	FOR relation IN
		SELECT c.relname
		FROM (VALUES ('monitor', 'lock_waiters'), ('monitor', 'lock_guards'),
			('monitor', 'lock_stats'), ('monitor', 'lock_contention'),
			('monitor', 'lock_activity'),
			('admin', 'lock_audit')) AS c (at_level, relname)
		WHERE c.at_level = level
	LOOP
		EXECUTE CASE WHEN granting
			THEN format('GRANT SELECT ON TABLE %I.%I TO %s', schema, relation, grantee)
			ELSE format('REVOKE SELECT ON TABLE %I.%I FROM %s', schema, relation, grantee) END;
	END LOOP;

	-- Others may rely on USAGE of the schema, so it is never revoked.
	IF granting AND NOT has_schema_privilege(role, schema, 'USAGE') THEN
		EXECUTE format('GRANT USAGE ON SCHEMA %I TO %s', schema, grantee);
	END IF;
END
$$;

COMMENT ON FUNCTION app_lock_change_access(regrole, text, boolean) IS
'internal: what lock_grant_access and lock_revoke_access do';

CREATE FUNCTION lock_grant_access(role regrole, level text)
RETURNS void
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
	SELECT app_lock_change_access(role, level, true);
END;

COMMENT ON FUNCTION lock_grant_access(regrole, text) IS
'let "role" use the functions of a level: user (locking), monitor (lock_status of all keys, lock_activity, lock_waiters, lock_stats, lock_contention, lock_sweeper_status, lock_guards), admin (force_release, lock_steal, lock_audit, sweeps and their schedule, lock_stats_reset, guards, granting)';

CREATE FUNCTION lock_revoke_access(role regrole, level text)
RETURNS void
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
	SELECT app_lock_change_access(role, level, false);
END;

COMMENT ON FUNCTION lock_revoke_access(regrole, text) IS
'take back what lock_grant_access gave for a level';

-- The first hash of a key makes the secret of this database; see src/lock_hash.c.
SELECT lock_holder('key'::pg_catalog.text);

------------------------------------------------------------------------------
-- Nobody may do anything until lock_grant_access says so: take back what
-- PUBLIC has of functions, and what ALTER DEFAULT PRIVILEGES gave to others.
------------------------------------------------------------------------------

DO $$
DECLARE
	revoke	text;
BEGIN
	-- operators of the schema we are created in may be anybody's
	PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
	FOR revoke IN
		SELECT format('REVOKE ALL ON %s FROM %s', o.object,
			CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
		FROM pg_extension e
			JOIN pg_depend d
				ON d.refclassid = 'pg_extension'::regclass
				AND d.refobjid = e.oid AND d.deptype = 'e'
			JOIN (
				SELECT 'pg_proc'::regclass, p.oid,
					'FUNCTION ' || p.oid::regprocedure, p.proowner,
					coalesce(p.proacl, acldefault('f', p.proowner))
				FROM pg_proc p
				UNION ALL
				SELECT 'pg_class'::regclass, c.oid,
					CASE c.relkind WHEN 'S' THEN 'SEQUENCE ' ELSE 'TABLE ' END || c.oid::regclass,
					c.relowner, c.relacl
				FROM pg_class c
				WHERE c.relkind IN ('r', 'v', 'S')
			) o (classid, oid, object, owner, acl)
				ON o.classid = d.classid AND o.oid = d.objid
			CROSS JOIN LATERAL aclexplode(o.acl) a
		WHERE e.extname = 'atomic_lock' AND a.grantee <> o.owner
		GROUP BY o.object, a.grantee
	LOOP
		EXECUTE revoke;
	END LOOP;
END
$$;
