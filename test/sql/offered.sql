\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- A free key that other callers cannot get because it is offered
--
-- Properties: lock_activity has a row for the key, with label and role of the ticket, the end
-- of the offer, and no fencing token; lock_status() has none. The errors of lock_acquire and
-- force_release name the ticket, the end of the offer, and the statement that ends it; that
-- statement works.
--
-- Turns red when: an offered key looks free or held; the wrong ticket is named; an offer is
-- shown after it was taken, given up or withdrawn, or has expired.
DROP ROLE IF EXISTS regress_al_admin, regress_al_monitor;
CREATE ROLE regress_al_admin;
CREATE ROLE regress_al_monitor;
SELECT lock_grant_access('regress_al_admin', 'admin'), lock_grant_access('regress_al_monitor', 'monitor');
CREATE VIEW t.activity AS
	SELECT key, holder, state, mode, lifetime, time_left BETWEEN '9 min' AND '10 min' AS ten_minutes, expires_at, held_for, pid, role = current_user AS role, fencing_token FROM lock_activity;

SELECT status FROM lock_acquire('k', '1 hour', 'ann-1', holder => 'Ann');
SELECT status, place FROM lock_enqueue('k', 'bob-1', 'Bob', '10 min');
SELECT status, place FROM lock_enqueue('k', 'cid-1', 'Cid', '5 min');
SELECT key, holder, state FROM t.activity;
SELECT lock_release('k', 'ann-1');
SELECT a.key, a.holder, state, mode, lifetime, ten_minutes, a.expires_at = q.offered_until AS until, held_for, pid, a.role, fencing_token FROM t.activity a JOIN lock_queue q ON q.place = 1;
SELECT count(*) FROM lock_status();
SELECT locked, holder, queued FROM lock_status('k');
-- A refusal names the ticket and the end of the offer.
SELECT t.raises($$SELECT lock_acquire('k', owner => 'ann-1')$$);
SELECT regexp_replace(t.raises($$SELECT lock_acquire('k', owner => 'ann-1', wait => '20 ms')$$), '[0-9]+ ms', '<n> ms');
SELECT t.raises($$SELECT force_release('k', 'looks free')$$);
SELECT t.raises($$SELECT force_release('k', 'looks free', 1)$$);
SELECT lock_try_force_release('k', 'looks free'), lock_try_force_release('k', 'looks free', 1);
-- Errors about the caller's own holding do not.
SELECT t.raises($$SELECT lock_extend('k', 'bob-1')$$);
-- Level monitor sees the offer, and level admin ends it with the statement in the hint.
SET ROLE regress_al_monitor;
SELECT holder, state FROM lock_activity;
RESET ROLE;
SET ROLE regress_al_admin;
DO $$
DECLARE
	hint text;
BEGIN
	PERFORM force_release('k', 'looks free');
EXCEPTION WHEN SQLSTATE 'LK002' THEN
	GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
	EXECUTE substring(hint FROM 'DELETE FROM [^.]*');
END
$$;
RESET ROLE;
SELECT count(*) FROM lock_activity;
SELECT holder, place FROM lock_queue;
-- Cid is next, and has no offer yet.
SELECT t.raises($$SELECT lock_acquire('k', owner => 'ann-1')$$);
SELECT t.raises($$SELECT force_release('k', 'looks free')$$);
SELECT lock_sweep() >= 0 AS swept;
SELECT key, holder, state FROM t.activity;
-- The offer is taken.
SELECT status FROM lock_enqueue('k', 'cid-1');
SELECT key, holder, state, fencing_token > 0 AS token FROM t.activity;
-- A theft withdraws the offer.
SELECT status FROM lock_enqueue('k', 'bob-1', 'Bob', '10 min');
SELECT lock_release('k', 'cid-1');
SELECT key, holder, state FROM t.activity;
SELECT status FROM lock_steal('k', 'dba-1', 'past the line', holder => 'DBA');
SELECT key, holder, state FROM t.activity;
-- The ticket is given up.
SELECT lock_release('k', 'dba-1');
SELECT key, holder, state FROM t.activity;
SELECT lock_leave('k', 'bob-1');
SELECT count(*) FROM lock_activity;
SELECT t.raises($$SELECT force_release('k', 'is free')$$);
-- The offer has expired.
SELECT status FROM lock_acquire('k', '1 hour', 'ann-1');
SELECT status FROM lock_enqueue('k', 'bob-1', 'Bob', '20 ms');
SELECT lock_release('k', 'ann-1');
SELECT t.lapse('k');
SELECT count(*) FROM lock_activity;
-- A closed key is free for no owner either.
SELECT lock_set_policy('c', min_hold => '1 hour');
SELECT fencing_token AS token FROM lock_acquire('c', owner => 'ann-1') \gset
SELECT lock_release('c', 'ann-1');
SELECT t.raises(format($$SELECT force_release('c', 'is closed', %s)$$, :token));
DROP OWNED BY regress_al_admin, regress_al_monitor;
DROP ROLE regress_al_admin, regress_al_monitor;
