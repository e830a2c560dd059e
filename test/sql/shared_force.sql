\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- Mode shared: force_release and lock_steal
--
-- Properties: both end the leases of all sharers, and write an audit record for each. A sharer
-- that steals the key holds it exclusively.
--
-- Turns red when: one of several sharers stays; a sharer has no record, or an expired one has;
-- an earlier lease becomes live again.

--
-- Forced: all of them, each with an audit record
--
TRUNCATE lock_audit;
SELECT fencing_token AS alice FROM lock_acquire('force', '10 min', 'alice-1', 'shared', holder => 'Alice') \gset
SELECT fencing_token AS bob FROM lock_acquire('force', '20 min', 'bob-1', 'shared', holder => 'Bob') \gset
SELECT g.status FROM lock_acquire('force', '20 min', 'carol-1', 'shared', holder => 'Carol') g;
SELECT g.status FROM lock_acquire('force', '20 ms', 'dora-1', 'shared', holder => 'Dora') g;
SELECT lock_release('force', 'carol-1');
SELECT t.expire('force', 'dora-1');
BEGIN;
SELECT force_release('force', 'changed my mind');
SELECT locked FROM lock_status('force');
ROLLBACK;
SELECT holders FROM lock_status('force');
SELECT force_release('force', 'end of day');
SELECT * FROM lock_status('force') \gx
SELECT action, key, previous_holder, previous_owner_digest = encode(sha256(convert_to(lower(previous_holder) || '-1', 'UTF8')), 'hex') AS digest,
	fencing_token IN (:alice, :bob) AS token, reason FROM lock_audit ORDER BY previous_holder;
SELECT o, lock_try_release('force', o), lock_try_extend('force', o), lock_is_held('force', o) FROM unnest(ARRAY['alice-1', 'bob-1']) o;
SELECT t.raises($$SELECT lock_release('force', 'alice-1')$$);
SELECT t.code($$SELECT force_release('force', 'again')$$);
SELECT lock_extend_all('alice-1'), lock_release_all('alice-1');
SELECT s.status, fencing_token > :bob AS token_rises FROM lock_acquire('force', '10 min', 'eve-1') g, t.show(g) s;
-- stolen from all of them
TRUNCATE lock_audit;
SELECT g.status FROM lock_acquire('steal', '10 min', 'alice-1', 'shared', holder => 'Alice') g;
SELECT fencing_token AS bob FROM lock_acquire('steal', '20 min', 'bob-1', 'shared', holder => 'Bob') \gset
SELECT s.*, fencing_token > :bob AS token_rises FROM lock_steal('steal', 'dba-1', 'why', '5 min', 'the DBA') g, t.show(g) s;
SELECT action, key, previous_holder, reason FROM lock_audit ORDER BY previous_holder;
SELECT mode, holder, holders FROM lock_status('steal');
SELECT lock_try_release('steal', 'alice-1') AS alice, lock_try_release('steal', 'bob-1') AS bob, lock_release('steal', 'dba-1') AS dba;
-- stolen by one of them
TRUNCATE lock_audit;
SELECT g.status FROM lock_acquire('steal 2', '10 min', 'alice-1', 'shared', holder => 'Alice') g;
SELECT g.status FROM lock_acquire('steal 2', '20 min', 'bob-1', 'shared', holder => 'Bob') g;
SELECT s.status, s.mode, s.owner FROM lock_steal('steal 2', 'alice-1', 'why') g, t.show(g) s;
SELECT action, key, previous_holder FROM lock_audit ORDER BY previous_holder;
SELECT mode, holders FROM lock_status('steal 2');
SELECT lock_try_release('steal 2', 'bob-1') AS bob, lock_release('steal 2', 'alice-1') AS alice, lock_try_release('steal 2', 'alice-1') AS again;
