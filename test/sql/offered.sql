\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- A key that nobody holds and nobody gets, since it is offered
--
-- Properties: lock_activity has a row for it, with the label and the role of the place in
-- line, until when the offer lasts, and no fencing token; lock_status() has none; the
-- refusal of an acquire and of force_release name the place, the end of the offer and the
-- statement that ends it; that statement ends it.
--
-- Turns red when: an offered key looks free; it looks held; another place is named; the
-- offer is shown after it was taken, given up or withdrawn, or has run out.
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
-- A refusal says why.
SELECT t.raises($$SELECT lock_acquire('k', owner => 'ann-1')$$);
SELECT regexp_replace(t.raises($$SELECT lock_acquire('k', owner => 'ann-1', wait => '20 ms')$$), '[0-9]+ ms', '<n> ms');
SELECT t.raises($$SELECT force_release('k', 'looks free')$$);
SELECT t.raises($$SELECT force_release('k', 'looks free', 1)$$);
SELECT lock_try_force_release('k', 'looks free'), lock_try_force_release('k', 'looks free', 1);
-- That of others does not.
SELECT t.raises($$SELECT lock_extend('k', 'bob-1')$$);
-- Level monitor sees it, and level admin ends it by the statement of the hint.
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
-- Cid is next, whom nobody has told.
SELECT t.raises($$SELECT lock_acquire('k', owner => 'ann-1')$$);
SELECT t.raises($$SELECT force_release('k', 'looks free')$$);
SELECT lock_sweep() >= 0 AS swept;
SELECT key, holder, state FROM t.activity;
-- It is taken.
SELECT status FROM lock_enqueue('k', 'cid-1');
SELECT key, holder, state, fencing_token > 0 AS token FROM t.activity;
-- It is withdrawn by theft.
SELECT status FROM lock_enqueue('k', 'bob-1', 'Bob', '10 min');
SELECT lock_release('k', 'cid-1');
SELECT key, holder, state FROM t.activity;
SELECT status FROM lock_steal('k', 'dba-1', 'past the line', holder => 'DBA');
SELECT key, holder, state FROM t.activity;
-- It is given up.
SELECT lock_release('k', 'dba-1');
SELECT key, holder, state FROM t.activity;
SELECT lock_leave('k', 'bob-1');
SELECT count(*) FROM lock_activity;
SELECT t.raises($$SELECT force_release('k', 'is free')$$);
-- It has run out.
SELECT status FROM lock_acquire('k', '1 hour', 'ann-1');
SELECT status FROM lock_enqueue('k', 'bob-1', 'Bob', '20 ms');
SELECT lock_release('k', 'ann-1');
SELECT t.lapse('k');
SELECT count(*) FROM lock_activity;
-- A closed key is free to nobody either.
SELECT lock_set_policy('c', min_hold => '1 hour');
SELECT fencing_token AS token FROM lock_acquire('c', owner => 'ann-1') \gset
SELECT lock_release('c', 'ann-1');
SELECT t.raises(format($$SELECT force_release('c', 'is closed', %s)$$, :token));
DROP OWNED BY regress_al_admin, regress_al_monitor;
DROP ROLE regress_al_admin, regress_al_monitor;
