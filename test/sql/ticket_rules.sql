\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- Combinations of grants, tickets, forced ends, lock_delay, min_hold and policies
--
-- Properties: those of the table in "Tickets and offers" of doc/concepts.md. force_release() opens a
-- key, whatever keeps it closed, and offers it. A ticket whose role a policy excludes is
-- skipped, and served again once the role is admitted. A release before the owner's last grant
-- does not determine the status of that grant. A ticket for a key that its owner holds is no
-- further key under a quota.
--
-- Turns red when: a forced end leaves the key closed, or makes no offer; a ticket of an
-- excluded role gets an offer, or blocks others; a heartbeat reports a lost lease as released.
--
-- iso_place_owner tests an owner that acquires the key and a ticket in two sessions.

CREATE FUNCTION t.line(k text) RETURNS text LANGUAGE sql AS $$
	SELECT coalesce(string_agg(place || ' ' || holder || CASE WHEN offered_until IS NULL THEN '' ELSE ' (offered)' END, ', ' ORDER BY place), 'nobody') FROM lock_queue WHERE key = k
$$;

--
-- A forced end opens the key, and offers it
--
SELECT lock_set_policy('hold:', min_hold => '1 hour'), lock_set_policy('delay:', lock_delay => '1 hour'), lock_set_policy('both:', min_hold => '1 hour', lock_delay => '1 hour');
CREATE TABLE t.closed AS SELECT p || k AS key, p, k FROM unnest(ARRAY['hold:', 'delay:', 'both:']) p, unnest(ARRAY['released', 'expired', 'shared, expired', 'beside a share', 'session']) k;
SELECT count(lock_acquire(key, '1 hour', 'ann-1', mode => CASE WHEN k ~ 'share' THEN 'shared' ELSE 'exclusive' END, lifetime => CASE k WHEN 'session' THEN 'session' ELSE 'lease' END)) FROM t.closed;
SELECT count(lock_acquire(key, '1 hour', 'eve-1', mode => 'shared')) FROM t.closed WHERE k = 'beside a share';
SELECT count(t.run_out(key, 'ann-1')) FROM t.closed WHERE k <> 'released';
SELECT count(lock_release(key, 'ann-1')) FROM t.closed WHERE k = 'released';
SELECT count(lock_enqueue(key, 'bob-1', 'Bob')) FROM t.closed WHERE p || k <> 'delay:released';
SELECT c.key, t.line(c.key), closed_until IS NOT NULL AS closed, t.code(format('SELECT force_release(%L, ''why'')', c.key)) AS undone FROM t.closed c, lock_status(c.key) ORDER BY c.key COLLATE "C";
SELECT count(force_release(key, 'why')) FROM t.closed WHERE p || k <> 'delay:released';
SELECT c.key, t.line(c.key), s.closed_until IS NOT NULL AS closed FROM t.closed c, lock_status(c.key) s ORDER BY c.key COLLATE "C";
SELECT count(*), count(*) FILTER (WHERE a.status = 'acquired') AS acquired FROM t.closed c, lock_try_acquire(c.key, owner => 'bob-1') a;
-- there is nothing left to end
SELECT t.raises($$SELECT force_release('hold:free', 'why')$$);
SELECT lock_release_all('bob-1') > 0 AS released;

--
-- Roles that a policy excludes
--
CREATE ROLE regress_al_member;
CREATE ROLE regress_al_group ROLE regress_al_member;
CREATE ROLE regress_al_outsider;
SELECT lock_grant_access(r, 'user') FROM unnest(ARRAY['regress_al_member', 'regress_al_outsider']::regrole[]) r;
SELECT status FROM lock_acquire('pol:1', owner => 'ann-1', holder => 'Ann');
SET ROLE regress_al_outsider;
SELECT status, place FROM lock_enqueue('pol:1', 'out-1', 'Out', offer => '1 day');
SET ROLE regress_al_member;
SELECT status, place FROM lock_enqueue('pol:1', 'mem-1', 'Mem');
RESET ROLE;
SELECT lock_set_policy('pol:', roles => '{regress_al_group}');
SELECT t.line('pol:1'), queued FROM lock_status('pol:1');
SELECT lock_release('pol:1', 'ann-1');
SELECT t.line('pol:1');
SET ROLE regress_al_member;
SELECT status FROM lock_try_acquire('pol:1', owner => 'mem-1');
SELECT lock_release('pol:1', 'mem-1');
-- no ticket is first any more, so others may acquire the key, and sweeps do not keep looking at
-- it
SELECT status FROM lock_try_acquire('pol:1', owner => 'mem-2');
SELECT lock_release('pol:1', 'mem-2');
RESET ROLE;
SELECT lock_sweep(1000) >= 0 AS swept, t.line('pol:1');
-- a ticket of a dropped role is not served either, though the policy names the role
CREATE ROLE regress_al_gone;
SELECT lock_grant_access('regress_al_gone', 'user');
SELECT status FROM lock_acquire('gone:1', owner => 'ann-1');
SET ROLE regress_al_gone;
SELECT status FROM lock_enqueue('gone:1', 'gone-1', 'Gone');
RESET ROLE;
SELECT lock_set_policy('gone:', roles => '{regress_al_gone,regress_al_group}');
SELECT t.line('gone:1');
DROP OWNED BY regress_al_gone;
DROP ROLE regress_al_gone;
SELECT lock_release('gone:1', 'ann-1'), t.line('gone:1');
-- an offer made before the policy does not keep the key for an excluded ticket
SELECT lock_drop_policy('pol:');
SELECT lock_sweep(1000) >= 0 AS swept, t.line('pol:1');
SELECT status FROM lock_try_acquire('pol:1', owner => 'ann-1');
SELECT lock_set_policy('pol:', roles => '{regress_al_group}');
SELECT status FROM lock_try_acquire('pol:1', owner => 'ann-1');
SELECT t.line('pol:1');
-- the excluded role may still leave; a superuser's tickets are always served
SELECT status FROM lock_enqueue('pol:1', 'sup-1', 'Super');
SELECT t.line('pol:1');
SET ROLE regress_al_outsider;
SELECT lock_leave('pol:1', 'out-1');
SET ROLE regress_al_member;
SELECT status FROM lock_enqueue('pol:1', 'mem-1', 'Mem');
RESET ROLE;
-- a membership that is revoked and granted again
REVOKE regress_al_group FROM regress_al_member;
SELECT t.line('pol:1');
GRANT regress_al_group TO regress_al_member;
SELECT t.line('pol:1');
SELECT lock_leave('pol:1', 'sup-1'), lock_release('pol:1', 'ann-1');
SELECT t.line('pol:1');

--
-- A transaction's holding that becomes a lease
--
SELECT status FROM lock_acquire('tx', owner => 'ann-1');
SELECT status FROM lock_enqueue('tx', 'bob-1', 'Bob');
SELECT lock_release('tx', 'ann-1');
BEGIN;
SELECT status FROM lock_acquire('tx', owner => 'bob-1', lifetime => 'transaction');
SELECT status FROM lock_acquire('tx', owner => 'bob-1');
COMMIT;
SELECT t.line('tx');

--
-- A release before the last grant does not determine its status
--
CREATE FUNCTION t.lost(k text, first text, second text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM lock_acquire(k, '1 hour', 'job-17', mode => first);
	PERFORM lock_release(k, 'job-17');
	PERFORM lock_acquire(k, '1 hour', 'job-17', mode => second);
	PERFORM t.run_out(k, 'job-17');
	PERFORM lock_sweep(1000);
	RETURN (SELECT status FROM lock_heartbeat(ARRAY[k], 'job-17'));
END
$$;
SELECT a, b, t.lost(a || b, a, b) FROM unnest(ARRAY['shared', 'exclusive']) a, unnest(ARRAY['shared', 'exclusive']) b;
-- also after a transfer or theft, and while the released share still closes the key
CREATE FUNCTION t.lost_again(k text, first text, second text, verb text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM lock_acquire(k, '1 hour', 'job-18', mode => first);
	PERFORM lock_release(k, 'job-18');
	PERFORM lock_acquire(k, '1 hour', 'job-17', mode => second);
	IF verb = 'transfer' THEN
		PERFORM lock_transfer(k, 'job-17', 'job-18');
	ELSE
		PERFORM lock_steal(k, 'job-18', 'why', fencing_token => CASE WHEN verb = 'steal one' THEN (SELECT fencing_token FROM lock_status(k)) END);
	END IF;
	PERFORM t.run_out(k, 'job-18');
	PERFORM lock_sweep(1000);
	RETURN (SELECT status FROM lock_heartbeat(ARRAY[k], 'job-18'));
END
$$;
SELECT v AS verb, a, b, t.lost_again(v || a || b, a, b, v) FROM unnest(ARRAY['transfer', 'steal', 'steal one']) v, unnest(ARRAY['shared', 'exclusive']) a, unnest(ARRAY['shared', 'exclusive']) b;
SELECT lock_set_policy('m', min_hold => '300 ms');
SELECT status FROM lock_acquire('m', '1 hour', 'job-17', 'shared');
SELECT lock_release('m', 'job-17');
SELECT status FROM lock_acquire('m', '1 hour', 'job-17', 'shared');
SELECT t.run_out('m', 'job-17');
SELECT t.wait_until(clock_timestamp() + interval '310 ms');
SELECT lock_sweep(1000) > 0 AS swept;
SELECT status FROM lock_heartbeat('{m}', 'job-17');
-- ... but it keeps the key closed
SELECT lock_set_policy('h', min_hold => '1 hour');
SELECT t.lost('h', 'shared', 'shared'), t.code($$SELECT lock_acquire('h', owner => 'ann-1')$$);

--
-- Quotas of roles
--
SELECT lock_set_policy('q:', max_keys_per_role => 1);
SET ROLE regress_al_member;
SELECT status FROM lock_acquire('q:k', owner => 's1', mode => 'shared') UNION ALL SELECT status FROM lock_acquire('q:k', owner => 's2', mode => 'shared');
SELECT status, place FROM lock_enqueue('q:k', 's1', 'One');
SELECT status, place FROM lock_enqueue('q:k', 's1', 'One');
SELECT t.state(t.raises($$SELECT lock_enqueue('q:k', 's3')$$)) AS no_holder, t.state(t.raises($$SELECT lock_acquire('q:other', owner => 's1')$$)) AS one_more;
SELECT lock_release('q:k', 's2');
SELECT status FROM lock_try_acquire('q:k', owner => 's1');
RESET ROLE;
DROP OWNED BY regress_al_member, regress_al_outsider;
SELECT lock_drop_policy('pol:');
DROP ROLE regress_al_member, regress_al_group, regress_al_outsider;
