\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- lock_status: the state of one key, or of all that are held
--
-- Properties: one row for a key, in any state; one row for each live holding in the list, with
-- the same values. Owner and token are shown only to the owner, tokens to monitors, too. The
-- role is the one in effect at the grant or transfer.
--
-- Turns red when: an ended lease is shown as held, or its data stays; an owner is shown to
-- another role, an administrator included; the row and the list differ.
--
DROP ROLE IF EXISTS regress_al_user, regress_al_monitor, regress_al_admin, regress_al_both;
CREATE ROLE regress_al_user;
CREATE ROLE regress_al_monitor;
CREATE ROLE regress_al_admin;
CREATE ROLE regress_al_both;
SELECT lock_grant_access('regress_al_user', 'user');
SELECT lock_grant_access('regress_al_monitor', 'monitor');
SELECT lock_grant_access('regress_al_admin', 'admin'), lock_grant_access('regress_al_admin', 'user');
SELECT lock_grant_access('regress_al_both', 'user'), lock_grant_access('regress_al_both', 'monitor');

-- A key that was never acquired
SELECT * FROM lock_status('never') \gx

-- A live lease. Where waiters poll, their number is null.
SELECT fencing_token AS token, acquired_at AS since, expires_at AS until
FROM lock_acquire('k', '10 min', 'alice-1', holder => 'Alice', meta => '{"a": [1, null]}') \gset
SELECT key, locked, mode, owner, holder, fencing_token = :token AS token,
	acquired_at = :'since' AS since, expires_at = :'until' AS until,
	ttl_remaining > interval '9 min' AND ttl_remaining <= interval '10 min' AS remaining,
	lifetime, holders, coalesce(waiters, 0) AS waiters, pid, meta
FROM lock_status('k') \gx

-- Ended: the same answer as for a key that was never acquired
SELECT acquired FROM lock_acquire('short', '20 ms', 'alice-1', meta => '1');
SELECT t.expire('short');
SELECT * FROM lock_status('short') \gx
SELECT acquired FROM lock_acquire('released', '1 min', 'alice-1', meta => '1');
SELECT lock_release('released', 'alice-1');
SELECT * FROM lock_status('released') \gx

-- Always one row
SELECT count(*) FROM lock_status('k');
SELECT count(*) FROM lock_status('never');
SELECT k, s.key, s.locked FROM unnest(ARRAY['k', 'never', 'short']) k, LATERAL lock_status(k) s;
SELECT (lock_status('k')).holder;

-- The list has live holdings only
SELECT acquired FROM lock_acquire('j', '10 min', 'bob-1', holder => 'Bob');
SELECT acquired FROM lock_acquire('l', '10 min', holder => 'Carol');
SELECT key, locked, mode, owner IS NOT NULL AS owner, holder, fencing_token > 0 AS token,
	expires_at - acquired_at AS length, ttl_remaining > '0' AS remaining, lifetime, holders, coalesce(waiters, 0) AS waiters, pid, meta
FROM lock_status() ORDER BY key;
SELECT count(*) FROM lock_status() a JOIN LATERAL lock_status(a.key) b
	ON (a.key, a.locked, a.mode, a.holder, a.fencing_token, a.acquired_at, a.expires_at, a.lifetime, a.holders, a.pending, a.role)
	= (b.key, b.locked, b.mode, b.holder, b.fencing_token, b.acquired_at, b.expires_at, b.lifetime, b.holders, b.pending, b.role)
	AND a.waiters IS NOT DISTINCT FROM b.waiters;
-- wherever a set-returning function is allowed
SELECT (lock_status()).key ORDER BY 1;
SELECT count(*) FROM lock_status() LIMIT 1;
SELECT key FROM ROWS FROM (lock_status(), generate_series(1, 2)) x WHERE key IS NOT NULL ORDER BY 1;

-- A user sees everything but owner and token, and these, too, by presenting the owner.
SET SESSION AUTHORIZATION regress_al_user;
SELECT key, locked, mode, owner, holder, fencing_token = :token AS token, acquired_at = :'since' AS since,
	expires_at = :'until' AS until, lifetime, meta FROM lock_status('k');
SET atomic_lock.owner = 'alice-1';
SELECT key, owner FROM lock_status('k');
SELECT key, owner FROM lock_status('j');
SET atomic_lock.owner = 'ALICE-1';
SELECT key, owner FROM lock_status('k');
RESET atomic_lock.owner;
-- The same holds for the role's own lease: the owner must be presented.
SELECT acquired FROM lock_acquire('mine', '10 min', 'user-1');
SELECT key, owner FROM lock_status('mine');
SELECT t.raises($$SELECT * FROM lock_status()$$);
RESET SESSION AUTHORIZATION;

-- A monitor sees all leases and no owner.
SET SESSION AUTHORIZATION regress_al_monitor;
SELECT key, owner, holder FROM lock_status() ORDER BY key;
SELECT owner, holder, fencing_token IS NOT NULL AS token FROM lock_status('k');
SET atomic_lock.owner = 'bob-1';
SELECT key, owner FROM lock_status() ORDER BY key;
RESET atomic_lock.owner;
RESET SESSION AUTHORIZATION;
SET SESSION AUTHORIZATION regress_al_both;
SELECT key, owner FROM lock_status('k');
SELECT count(*) AS leases, count(owner) AS owners FROM lock_status();
RESET SESSION AUTHORIZATION;

-- Nor does an administrator see the owner.
SET SESSION AUTHORIZATION regress_al_admin;
SELECT key, owner FROM lock_status('k');
SELECT t.raises($$SELECT * FROM lock_status()$$);
RESET SESSION AUTHORIZATION;
SELECT lock_grant_access('regress_al_admin', 'monitor');
SET SESSION AUTHORIZATION regress_al_admin;
SELECT count(*) AS leases, count(owner) AS owners FROM lock_status();
RESET SESSION AUTHORIZATION;
SELECT lock_revoke_access('regress_al_admin', 'admin');
SET SESSION AUTHORIZATION regress_al_admin;
SELECT count(*) AS leases, count(owner) AS owners FROM lock_status();
SELECT key, owner FROM lock_status('k');
RESET SESSION AUTHORIZATION;

-- The current role counts: a superuser after SET ROLE to a user is a user.
SET ROLE regress_al_user;
SELECT key, owner FROM lock_status('k');
RESET ROLE;

-- The role that acquired or transferred the lock: the current one at that time
CREATE ROLE regress_al_gone;
SELECT lock_grant_access('regress_al_gone', 'user');
SET SESSION AUTHORIZATION regress_al_gone;
SELECT acquired FROM lock_acquire('role', '10 min', 'user-1');
SELECT acquired FROM lock_acquire('role, shared', '10 min', 'user-1', 'shared');
SELECT acquired FROM lock_acquire('role, session', owner => 'user-1', lifetime => 'session');
SELECT count(*) FROM lock_acquire_all(ARRAY['role, set'], '10 min', 'user-1');
RESET SESSION AUTHORIZATION;
SET ROLE regress_al_user;
SELECT acquired FROM lock_acquire('role, shared', '10 min', 'user-2', 'shared');
SELECT status, (lock_status('role')).role FROM lock_acquire('role', '20 min', 'user-1');
SELECT status, (lock_status('role')).role FROM lock_convert('role', 'user-1', 'shared');
BEGIN;
SELECT status, s.role FROM lock_acquire('role, transaction', owner => 'user-1', lifetime => 'transaction') g, lock_status(g.key) s;
SET LOCAL ROLE NONE;
SELECT key, role FROM lock_status() WHERE key LIKE 'role%' ORDER BY key, role;
SELECT key, role, state FROM lock_activity WHERE key LIKE 'role%' ORDER BY key, role;
COMMIT;
RESET ROLE;
SELECT status, s.role = current_user AS role FROM lock_transfer('role', 'user-1', 'user-1') g, lock_status(g.key) s;
SELECT status, s.role = current_user AS role FROM lock_steal('role, set', 'user-1', 'why') g, lock_status(g.key) s;
-- the role may be dropped, and its locks continue
SELECT lock_revoke_access('regress_al_gone', 'user');
DROP OWNED BY regress_al_gone;
DROP ROLE regress_al_gone;
SELECT key, role IS NULL AS dropped, locked FROM lock_status('role, session');
SELECT key, holder, role FROM lock_activity WHERE key = 'role, shared' ORDER BY role;
SELECT lock_release_all('user-1'), lock_release_all('user-2');

-- No lease left
SELECT lock_release_all('alice-1'), lock_release_all('bob-1'), force_release('l', 'end of test');
SELECT * FROM lock_status();

DROP OWNED BY regress_al_user, regress_al_monitor, regress_al_admin, regress_al_both;
DROP ROLE regress_al_user, regress_al_monitor, regress_al_admin, regress_al_both;
