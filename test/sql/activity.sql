\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- lock_activity: who holds what, for people
--
-- Properties: the view has a row for every live holding, of all modes and lifetimes. A holding
-- that ends with a session or transaction is shown with its backend and what the backend does;
-- a lease belongs to no backend.
--
-- Turns red when: a holding is missing, or an ended one is shown; a backend that merely
-- acquired a lease is shown as its holder; an owner is shown. Where waiters poll, the columns
-- about them are null.
CREATE VIEW t.activity AS
	SELECT key, holder, held_for BETWEEN '0' AND '5 min' AS held_for, date_trunc('minute', time_left) AS minutes_left,
		coalesce(waiters, 0) AS waiters, longest_wait, application, pid = pg_backend_pid() AS pid, session_state, mode, lifetime, expires_at IS NOT NULL AS ends, role = current_user AS role, state
	FROM lock_activity;
SET application_name = 'order desk';
SELECT count(*) FROM lock_activity;

-- A lease belongs to no backend, not even in the transaction that acquired it.
BEGIN;
SELECT status FROM lock_acquire('lease', '11 min', 'alice-1', holder => 'Alice');
SELECT * FROM t.activity;
COMMIT;
SELECT * FROM t.activity;
-- a default label is the application name, but no backend is shown
SELECT status FROM lock_acquire('label', '11 min', 'alice-1');
SELECT key, holder, application, pid, session_state FROM lock_activity WHERE key = 'label';

-- Holdings with lifetime session or transaction are shown with their backend.
SELECT status FROM lock_acquire('session', owner => 'alice-1', holder => 'Alice', lifetime => 'session');
SELECT status FROM lock_acquire('session, ttl', '11 min', owner => 'alice-1', holder => 'Alice', lifetime => 'session');
BEGIN;
SELECT status FROM lock_acquire('transaction', owner => 'bob-1', holder => 'Bob', lifetime => 'transaction');
SELECT * FROM t.activity ORDER BY key;
COMMIT;
SELECT count(*) FROM lock_activity WHERE key = 'transaction';

-- Shared: a row for each holder
SELECT count(lock_acquire('shared', '61 min', o, 'shared', holder => o)) FROM unnest(ARRAY['alice-1', 'bob-1']) o;
SELECT status FROM lock_acquire('shared', owner => 'carol-1', mode => 'shared', holder => 'Carol', lifetime => 'session');
BEGIN;
SELECT status FROM lock_acquire('shared', owner => 'dave-1', mode => 'shared', holder => 'Dave', lifetime => 'transaction');
SELECT * FROM t.activity WHERE key = 'shared' ORDER BY holder;
COMMIT;
SELECT holder FROM lock_activity WHERE key = 'shared' ORDER BY holder;

-- Ended holdings are not shown: expired, released, forced, rolled back, or of a session that
-- has ended.
SELECT count(lock_acquire(k, '20 ms', 'alice-1')) FROM unnest(ARRAY['over 1', 'over 2']) k;
SELECT status FROM lock_acquire('over 3', '1 hour', 'alice-1');
SELECT status FROM lock_acquire('over 4', '1 hour', 'alice-1');
SELECT lock_release('over 3', 'alice-1'), force_release('over 4', 'why'), t.expire('over 1'), t.expire('over 2');
BEGIN;
SELECT status FROM lock_acquire('over 5', '1 hour', 'alice-1');
ROLLBACK;
SELECT count(*) FROM lock_activity WHERE key LIKE 'over%';
SELECT count(*) FROM lock_activity a FULL JOIN lock_status() s USING (key, holder) WHERE a.key IS NULL OR s.key IS NULL;
SELECT count(*) > 3 AS some, bool_and(a.fencing_token = s.fencing_token) AS tokens FROM lock_activity a JOIN lock_status() s USING (key, holder);
-- the time since the grant, and the time left
UPDATE app_lock SET acquired_at = acquired_at - interval '2 hours' WHERE key = 'lease';
SELECT held_for BETWEEN '2 hours' AND '2 hours 5 min' AS held_for, time_left BETWEEN '5 min' AND '11 min' AS time_left FROM lock_activity WHERE key = 'lease';
SELECT lock_extend('lease', 'alice-1', '2 hours') IS NOT NULL AS extended;
SELECT held_for > '2 hours' AS held_for, time_left BETWEEN '115 min' AND '2 hours' AS time_left FROM lock_activity WHERE key = 'lease';

-- Keys with waiters come first, then those held longest.
SELECT (array_agg(key))[1] FROM (SELECT key FROM lock_activity) a;

-- In psql, the main columns of the views fit in 80 columns; waiters_and_places.pl tests
-- lock_waiters.
SET IntervalStyle = postgres;
SELECT status, lock_set_policy('doc:', '1 h', '2 h', '10 min', roles => '{pg_monitor}', max_holders => 5) FROM lock_enqueue('session', 'dan-1', 'Dan', '1 h');
CREATE FUNCTION t.width(relation text, last text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	name text;
	widest bigint;
	total bigint := -1;
BEGIN
	FOR name IN SELECT attname FROM pg_attribute WHERE attrelid = relation::regclass AND attnum <= (SELECT attnum FROM pg_attribute WHERE attrelid = relation::regclass AND attname = last) ORDER BY attnum LOOP
		EXECUTE format('SELECT max(length(%I::text)) FROM %I', name, relation) INTO widest;
		total := total + 3 + greatest(length(name), widest);
	END LOOP;
	RETURN total;
END
$$;
SELECT relation, t.width(relation, last) <= 80 AS fits FROM (VALUES ('lock_activity', 'waiters'), ('lock_queue', 'queued_at'), ('lock_policies', 'max_holders')) v (relation, last);
SELECT lock_leave('session', 'dan-1'), lock_drop_policy('doc:');
RESET IntervalStyle;

-- It works in a read-only transaction, and changes nothing.
SELECT t.fingerprint() AS before \gset
BEGIN READ ONLY;
SELECT count(*) > 0 AS any FROM lock_activity;
COMMIT;
SELECT t.fingerprint() = :'before' AS unchanged;
-- No column shows an owner.
SELECT count(*) FROM lock_activity a WHERE a::text ~ '(alice|bob|carol|dave)-1' AND holder !~ '-1$';

-- Monitors can read the view, users cannot.
DROP ROLE IF EXISTS regress_al_monitor, regress_al_user;
CREATE ROLE regress_al_monitor;
CREATE ROLE regress_al_user;
SELECT lock_grant_access('regress_al_monitor', 'monitor'), lock_grant_access('regress_al_user', 'user');
SET ROLE regress_al_user;
SELECT t.code('SELECT * FROM lock_activity');
SET SESSION AUTHORIZATION regress_al_monitor;
SELECT holder, pid IS NOT NULL AS pid FROM lock_activity WHERE key = 'session';
RESET SESSION AUTHORIZATION;
DROP OWNED BY regress_al_monitor, regress_al_user;
DROP ROLE regress_al_monitor, regress_al_user;

-- A process id with another start time is another process, so this holding has ended.
UPDATE app_lock SET backend_start = backend_start - interval '1 day' WHERE key = 'session';
SELECT count(*) FROM lock_activity WHERE key = 'session';
