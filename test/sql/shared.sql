\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- Mode shared: any number of sharers, or one exclusive holder
--
-- Properties: sharers exclude exclusive holders only. Each sharer has a lease of its own, with
-- its own owner, token, expiry, label and meta, and ends it independently. A refused exclusive
-- request sees the label of the sharer whose lease lasts longest, and the number of the others.
-- lock_status shows each sharer, and the caller's own first.
--
-- Turns red when: an exclusive request is granted beside a live sharer, or refused because of
-- an expired one; a release or extension changes another sharer's lease; a caller without the
-- right sees an owner.
--
-- shared_expiry tests ends of leases by time, shared_owner the holdings of one owner,
-- shared_limits the limits, shared_force calls of administrators, and shared_transactions
-- transactions.
--
-- The rows of each sharer, from which refusals are made
CREATE VIEW t.readers AS SELECT key, mode, owner, holder, released, expires_at <= clock_timestamp() AS expired FROM app_lock ORDER BY key, fencing_token;

--
-- Together
--
SELECT fencing_token AS alice, acquired_at AS alice_since, expires_at AS alice_until
FROM lock_acquire('k', '10 min', 'alice-1', 'shared', '0', 'Alice', '{"a": 1}', 'lease') \gset
SELECT s.*, fencing_token > :alice AS token_rises FROM lock_acquire('k', '30 min', 'bob-1', mode => 'shared', holder => 'Bob', meta => '{"b": 2}') g, t.show(g) s;
SELECT fencing_token AS bob, acquired_at AS bob_since, expires_at AS bob_until FROM app_lock WHERE key = 'k' AND owner = 'bob-1' \gset
SELECT s.*, fencing_token > :bob AS token_rises FROM lock_try_acquire('k', '20 min', 'carol-1', mode => 'shared', holder => 'Carol') g, t.show(g) s;
-- with a generated owner, and the ttl of the setting
SELECT s.* FROM lock_acquire('k', mode => 'shared', holder => 'Guest') g, t.show(g) s;
SELECT key, mode, holder, released, expired FROM t.readers;
SELECT count(DISTINCT slot) AS slots, min(slot) > 0 AS above_zero FROM app_lock;
-- Alice's lease has not changed
SELECT fencing_token = :alice AS same_token, acquired_at = :'alice_since' AS same_since, expires_at = :'alice_until' AS same_until, meta FROM app_lock WHERE owner = 'alice-1';

-- An exclusive request is refused; the error names the sharer whose lease lasts longest, and
-- the number of others.
SELECT t.raises($$SELECT lock_acquire('k', owner => 'dora-1')$$);
SELECT t.raises($$SELECT lock_acquire('k')$$) ~ 'held by Bob and 3 others' AS so_told;
SELECT s.acquired, s.status, s.key, s.mode, s.owner, s.token, s.waited, s.holder, g.acquired_at = :'bob_since' AS since, g.expires_at = :'bob_until' AS until
FROM lock_try_acquire('k', owner => 'dora-1', holder => 'Dora') g, t.show(g) s;
SELECT lock_release('k', 'carol-1');
SELECT t.raises($$SELECT lock_acquire('k', owner => 'dora-1')$$) ~ '"k" is held by Bob and 2 others\n' AS two;
SELECT lock_release('k', owner) FROM app_lock WHERE holder = 'Guest';
SELECT t.raises($$SELECT lock_acquire('k', owner => 'dora-1')$$) ~ '"k" is held by Bob and 1 other\n' AS one;
-- and after a wait
SELECT regexp_replace(t.raises($$SELECT lock_acquire('k', owner => 'dora-1', wait => '20 ms')$$), 'waited for [0-9]+ ms', 'waited for <n> ms');
SELECT status, mode, holder, waited >= '20 ms' AS waited FROM lock_try_acquire('k', owner => 'dora-1', wait => '20 ms');
-- another lease lasts longest now
SELECT lock_extend('k', 'alice-1', '1 hour') > :'bob_until' AS extended;
SELECT t.raises($$SELECT lock_acquire('k', owner => 'dora-1')$$) ~ '"k" is held by Alice and 1 other\n' AS so_told;
SELECT lock_extend('k', 'alice-1', '10 min') < :'bob_until' AS shortened;
SELECT t.raises($$SELECT lock_acquire('k', owner => 'dora-1')$$) ~ '"k" is held by Bob and 1 other\n' AS so_told;

-- A refusal changes nothing.
SELECT t.fingerprint() AS before \gset
BEGIN;
SELECT status FROM lock_try_acquire('k', owner => 'dora-1');
SELECT status FROM lock_try_acquire('k', owner => 'dora-1', wait => '5 ms');
SELECT t.code($$SELECT lock_acquire('k', owner => 'dora-1')$$);
SELECT * FROM t.left_open();
COMMIT;
SELECT t.fingerprint() = :'before' AS unchanged;

--
-- Reading functions
--
SELECT lock_is_held('k', 'alice-1') AS alice, lock_is_held('k', 'bob-1') AS bob, lock_is_held('k', 'carol-1') AS carol, lock_is_held('k', 'dora-1') AS dora;
SELECT lock_holder('k');
-- one row for the key: the holding that lasts longest
SELECT key, locked, mode, owner, holder, fencing_token = :bob AS token, acquired_at = :'bob_since' AS since, expires_at = :'bob_until' AS until,
	ttl_remaining BETWEEN '28 min' AND '30 min' AS remaining, lifetime, holders, coalesce(waiters, 0) AS waiters, pid, meta FROM lock_status('k');
-- or the caller's own
SET atomic_lock.owner = 'alice-1';
SELECT owner, holder, fencing_token = :alice AS token, holders, meta FROM lock_status('k');
SET atomic_lock.owner = 'bob-1';
SELECT owner, holder, holders, meta FROM lock_status('k');
-- which has released
SET atomic_lock.owner = 'carol-1';
SELECT owner, holder, holders FROM lock_status('k');
RESET atomic_lock.owner;
-- one row for each holding, each with the number of holders
SELECT key, locked, mode, owner, holder, fencing_token > 0 AS token, lifetime, holders, pid, meta FROM lock_status() ORDER BY key, holder;
-- a role without further rights sees no owner, unless it presents it
DROP ROLE IF EXISTS regress_al_user;
CREATE ROLE regress_al_user;
SELECT lock_grant_access('regress_al_user', 'user'), lock_grant_access('regress_al_user', 'monitor');
SET ROLE regress_al_user;
SELECT owner, holder, holders FROM lock_status('k');
SELECT owner, holder, holders FROM lock_status() ORDER BY holder;
SET atomic_lock.owner = 'alice-1';
SELECT owner, holder, holders FROM lock_status('k');
SELECT owner, holder, holders FROM lock_status() ORDER BY holder;
RESET atomic_lock.owner;
RESET ROLE;
DROP OWNED BY regress_al_user;
DROP ROLE regress_al_user;

--
-- Each sharer extends and releases its own lease
--
SELECT expires_at AS bob_until FROM app_lock WHERE owner = 'bob-1' \gset
SELECT lock_extend('k', 'alice-1', '15 min') BETWEEN clock_timestamp() + interval '14 min' AND clock_timestamp() + interval '15 min' AS extended;
SELECT expires_at = :'bob_until' AS untouched FROM app_lock WHERE owner = 'bob-1';
-- by its own last ttl
SELECT lock_extend('k', 'bob-1') BETWEEN clock_timestamp() + interval '29 min' AND clock_timestamp() + interval '30 min' AS extended;
SELECT t.raises($$SELECT lock_extend('k', 'carol-1')$$);
SELECT t.raises($$SELECT lock_extend('k', 'dora-1')$$);
SELECT lock_try_extend('k', 'carol-1'), lock_try_extend('k', 'dora-1');
-- released once and not again, although others still hold the key
SELECT t.raises($$SELECT lock_release('k', 'carol-1')$$);
SELECT t.raises($$SELECT lock_release('k', 'dora-1')$$);
SELECT lock_try_release('k', 'carol-1') AS carol, lock_try_release('k', 'dora-1') AS dora;
SELECT lock_release('k', 'bob-1');
SELECT lock_try_release('k', 'bob-1');
SELECT lock_is_held('k', 'alice-1') AS alice, lock_is_held('k', 'bob-1') AS bob, lock_holder('k') AS holder, holders FROM lock_status('k');
SELECT t.raises($$SELECT lock_acquire('k', owner => 'dora-1')$$) ~ '"k" is held by Alice\n' AS one;
-- the last release frees the key
SELECT lock_release('k', 'alice-1');
SELECT locked, holders FROM lock_status('k');
SELECT lock_try_release('k', 'alice-1') AS alice, lock_try_release('k', 'bob-1') AS bob, lock_try_release('k', 'dora-1') AS dora;
SELECT s.* FROM lock_acquire('k', '10 min', 'dora-1', holder => 'Dora') g, t.show(g) s;
-- now sharers are refused
SELECT t.raises($$SELECT lock_acquire('k', owner => 'alice-1', mode => 'shared')$$);
SELECT s.acquired, s.status, s.mode, s.owner, s.holder FROM lock_try_acquire('k', owner => 'alice-1', mode => 'shared') g, t.show(g) s;
SELECT s.acquired, s.status, s.mode, s.holder FROM lock_try_acquire('k', owner => 'alice-1', mode => 'shared', wait => '10 ms') g, t.show(g) s;
-- the answer to a former sharer who released: another owner holds the key, or it was released
SELECT lock_try_release('k', 'eve-1') AS eve, lock_try_extend('k', 'alice-1') IS NULL AS refused;
SELECT lock_release('k', 'dora-1');
SELECT status FROM lock_acquire('k', '10 min', 'alice-1', 'shared');
SELECT lock_release('k', 'alice-1');
