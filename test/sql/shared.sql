\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- Mode shared: any number of readers, or one writer
--
-- Properties: readers keep writers out and nobody else; each has a lease of its
-- own, with an owner, a token, an expiry, a label and meta of its own, and ends
-- it for itself; a writer is told the reader whose lease lasts longest and how
-- many more there are; a reader whose lease ran out or who released is in
-- nobody's way; what is over leaves its row to the next reader.
--
-- Turns red when: a writer is let in while a reader's lease is live, or kept out
-- by one that is not; one reader's release, extension or expiry touches another;
-- one owner has a key twice; rows of readers pile up.

-- What a writer is told, and what it could be told
CREATE VIEW t.readers AS SELECT key, mode, owner, holder, released, expires_at <= clock_timestamp() AS expired FROM app_lock ORDER BY key, fencing_token;

--
-- Together
--
SELECT fencing_token AS alice, acquired_at AS alice_since, expires_at AS alice_until
FROM lock_acquire('k', '10 min', 'alice-1', 'shared', '0', 'Alice', '{"a": 1}', 'lease') \gset
SELECT s.*, fencing_token > :alice AS token_rises FROM lock_acquire('k', '30 min', 'bob-1', mode => 'shared', holder => 'Bob', meta => '{"b": 2}') g, t.show(g) s;
SELECT fencing_token AS bob, acquired_at AS bob_since, expires_at AS bob_until FROM app_lock WHERE key = 'k' AND owner = 'bob-1' \gset
SELECT s.*, fencing_token > :bob AS token_rises FROM lock_try_acquire('k', '20 min', 'carol-1', mode => 'shared', holder => 'Carol') g, t.show(g) s;
-- with an owner to be generated, and the length of the setting
SELECT s.* FROM lock_acquire('k', mode => 'shared', holder => 'Guest') g, t.show(g) s;
SELECT key, mode, holder, released, expired FROM t.readers;
SELECT count(DISTINCT slot) AS slots, min(slot) > 0 AS above_zero FROM app_lock;
-- what Alice has did not change
SELECT fencing_token = :alice AS same_token, acquired_at = :'alice_since' AS same_since, expires_at = :'alice_until' AS same_until, meta FROM app_lock WHERE owner = 'alice-1';

-- A writer is refused, and told the one that lasts longest and how many more.
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
-- it is another who lasts longest now
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
-- Looking
--
SELECT lock_is_held('k', 'alice-1') AS alice, lock_is_held('k', 'bob-1') AS bob, lock_is_held('k', 'carol-1') AS carol, lock_is_held('k', 'dora-1') AS dora;
SELECT lock_holder('k');
-- one row for a key: the one that lasts longest
SELECT key, locked, mode, owner, holder, fencing_token = :bob AS token, acquired_at = :'bob_since' AS since, expires_at = :'bob_until' AS until,
	ttl_remaining BETWEEN '28 min' AND '30 min' AS remaining, lifetime, holders, coalesce(waiters, 0) AS waiters, pid, meta FROM lock_status('k');
-- or the caller's own
SET atomic_lock.owner = 'alice-1';
SELECT owner, holder, fencing_token = :alice AS token, holders, meta FROM lock_status('k');
SET atomic_lock.owner = 'bob-1';
SELECT owner, holder, holders, meta FROM lock_status('k');
-- which it has no more
SET atomic_lock.owner = 'carol-1';
SELECT owner, holder, holders FROM lock_status('k');
RESET atomic_lock.owner;
-- a row for each holding, and each knows how many there are
SELECT key, locked, mode, owner, holder, fencing_token > 0 AS token, lifetime, holders, pid, meta FROM lock_status() ORDER BY key, holder;
-- one without any rights sees no owner, unless it is the owner
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
-- Each for itself: extend, release
--
SELECT expires_at AS bob_until FROM app_lock WHERE owner = 'bob-1' \gset
SELECT lock_extend('k', 'alice-1', '15 min') BETWEEN clock_timestamp() + interval '14 min' AND clock_timestamp() + interval '15 min' AS extended;
SELECT expires_at = :'bob_until' AS untouched FROM app_lock WHERE owner = 'bob-1';
-- by the length last asked for, which is its own
SELECT lock_extend('k', 'bob-1') BETWEEN clock_timestamp() + interval '29 min' AND clock_timestamp() + interval '30 min' AS extended;
SELECT t.raises($$SELECT lock_extend('k', 'carol-1')$$);
SELECT t.raises($$SELECT lock_extend('k', 'dora-1')$$);
SELECT lock_try_extend('k', 'carol-1'), lock_try_extend('k', 'dora-1');
-- released once, and not again, though others have it still
SELECT t.raises($$SELECT lock_release('k', 'carol-1')$$);
SELECT t.raises($$SELECT lock_release('k', 'dora-1')$$);
SELECT lock_try_release('k', 'carol-1') AS carol, lock_try_release('k', 'dora-1') AS dora;
SELECT lock_release('k', 'bob-1');
SELECT lock_try_release('k', 'bob-1');
SELECT lock_is_held('k', 'alice-1') AS alice, lock_is_held('k', 'bob-1') AS bob, lock_holder('k') AS holder, holders FROM lock_status('k');
SELECT t.raises($$SELECT lock_acquire('k', owner => 'dora-1')$$) ~ '"k" is held by Alice\n' AS one;
-- the last one opens the key
SELECT lock_release('k', 'alice-1');
SELECT locked, holders FROM lock_status('k');
SELECT lock_try_release('k', 'alice-1') AS alice, lock_try_release('k', 'bob-1') AS bob, lock_try_release('k', 'dora-1') AS dora;
SELECT s.* FROM lock_acquire('k', '10 min', 'dora-1', holder => 'Dora') g, t.show(g) s;
-- and now readers are refused
SELECT t.raises($$SELECT lock_acquire('k', owner => 'alice-1', mode => 'shared')$$);
SELECT s.acquired, s.status, s.mode, s.owner, s.holder FROM lock_try_acquire('k', owner => 'alice-1', mode => 'shared') g, t.show(g) s;
SELECT s.acquired, s.status, s.mode, s.holder FROM lock_try_acquire('k', owner => 'alice-1', mode => 'shared', wait => '10 ms') g, t.show(g) s;
-- what readers were told when they released before is as well known as that somebody has it now
SELECT lock_try_release('k', 'eve-1') AS eve, lock_try_extend('k', 'alice-1') IS NULL AS refused;
SELECT lock_release('k', 'dora-1');
SELECT status FROM lock_acquire('k', '10 min', 'alice-1', 'shared');
SELECT lock_release('k', 'alice-1');

--
-- Leases that run out
--
SELECT g.acquired FROM lock_acquire('e', '1 hour', 'alice-1', 'shared', holder => 'Alice') g;
SELECT g.acquired FROM lock_acquire('e', '20 ms', 'bob-1', 'shared', holder => 'Bob') g;
SELECT t.expire('e', 'bob-1');
SELECT holder, holders FROM lock_status('e');
SELECT t.raises($$SELECT lock_acquire('e', owner => 'dora-1')$$) ~ '"e" is held by Alice\n' AS one;
SELECT t.raises($$SELECT lock_release('e', 'bob-1')$$);
SELECT t.raises($$SELECT lock_extend('e', 'bob-1')$$);
SELECT lock_try_release('e', 'bob-1') AS bob, lock_try_extend('e', 'bob-1') AS extended;
-- its row goes to the next reader, and then nobody knows of it any more
SELECT count(*) AS rows FROM app_lock WHERE key = 'e';
SELECT g.acquired FROM lock_acquire('e', '1 hour', 'carol-1', 'shared') g;
SELECT count(*) AS rows FROM app_lock WHERE key = 'e';
SELECT lock_try_release('e', 'bob-1') AS bob;
-- in the way of nobody: all leases ran out
SELECT g.acquired FROM lock_acquire('e2', '1 hour', 'alice-1', 'shared') g;
SELECT g.acquired FROM lock_acquire('e2', '1 hour', 'bob-1', 'shared') g;
SELECT t.run_out('e2', 'alice-1'), t.run_out('e2', 'bob-1');
SELECT locked FROM lock_status('e2');
SELECT lock_try_release('e2', 'alice-1') AS alice, lock_try_release('e2', 'dora-1') AS dora;
SELECT s.status, s.mode FROM lock_acquire('e2', '1 hour', 'dora-1') g, t.show(g) s;
-- expired, and acquired anew by its owner: another grant
SELECT fencing_token AS old FROM lock_acquire('e3', '20 ms', 'alice-1', 'shared', meta => '1') \gset
SELECT t.expire('e3');
SELECT s.status, fencing_token > :old AS token_rises FROM lock_acquire('e3', '1 hour', 'alice-1', 'shared') g, t.show(g) s;
SELECT meta IS NULL AS meta_gone, holders FROM lock_status('e3');
SELECT count(*) AS rows FROM app_lock WHERE key = 'e3';
-- a writer waits until the last of them has run out
SELECT b.status, b.acquired_at >= greatest(a.expires_at, c.expires_at) AS after_their_end
FROM lock_acquire('e4', '40 ms', 'alice-1', 'shared') a, lock_acquire('e4', '120 ms', 'bob-1', 'shared') c, LATERAL lock_acquire(left(a.key || c.key, 2), '1 hour', 'dora-1', wait => '1 min') b;
-- and a reader until the writer has
SELECT b.status, b.mode, b.acquired_at >= a.expires_at AS after_its_end
FROM lock_acquire('e5', '100 ms', 'alice-1') a, LATERAL lock_acquire(a.key, '1 hour', 'bob-1', 'shared', wait => '1 min') b;
-- a reader does not wait for readers
SELECT s.status, s.waited FROM lock_acquire('e5', '1 hour', 'carol-1', 'shared', wait => '1 min') g, t.show(g) s;

--
-- Rows of what is over are used again.
--
CREATE PROCEDURE t.come_and_go(k text, n int) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1..n LOOP
		PERFORM lock_acquire(k, '1 hour', 'reader-' || i, 'shared');
		COMMIT;
		PERFORM lock_release(k, 'reader-' || i);
		COMMIT;
	END LOOP;
END
$$;
CALL t.come_and_go('rows', 100);
SELECT count(*) <= 2 AS few FROM app_lock WHERE key = 'rows';
-- while others stay
SELECT count(*) FROM generate_series(1, 5) i, LATERAL lock_acquire('rows', '1 hour', 'stays-' || i, 'shared');
CALL t.come_and_go('rows', 100);
SELECT count(*) <= 7 AS few FROM app_lock WHERE key = 'rows';
SELECT holders FROM lock_status('rows');
-- with generated owners, and leases that run out
DO $$
BEGIN
	FOR i IN 1..20 LOOP
		PERFORM lock_acquire('rows 2', '1 ms', mode => 'shared');
		PERFORM pg_sleep(0.002);
	END LOOP;
END
$$;
SELECT count(*) <= 2 AS few FROM app_lock WHERE key = 'rows 2';
-- within one transaction, too
DO $$
BEGIN
	FOR i IN 1..20 LOOP
		PERFORM lock_acquire('rows 3', '1 hour', 'reader-' || i, 'shared');
		PERFORM lock_release('rows 3', 'reader-' || i);
	END LOOP;
END
$$;
SELECT count(*) <= 2 AS few FROM app_lock WHERE key = 'rows 3';
-- readers after a writer, a writer after readers: none of them is told another's
SELECT g.acquired FROM lock_acquire('turns', '1 hour', 'alice-1') g;
SELECT lock_release('turns', 'alice-1');
SELECT g.acquired FROM lock_acquire('turns', '1 hour', 'bob-1', 'shared') g;
SELECT lock_try_release('turns', 'alice-1') AS alice, lock_try_release('turns', 'bob-1') AS bob, lock_try_release('turns', 'bob-1') AS again;
SELECT g.acquired FROM lock_acquire('turns', '1 hour', 'alice-1') g;
SELECT lock_try_release('turns', 'bob-1') AS bob, lock_try_release('turns', 'alice-1') AS alice, lock_try_release('turns', 'alice-1') AS again;
-- the newest that an owner did is what it is told
SELECT g.acquired FROM lock_acquire('newest', '1 hour', 'alice-1') g;
SELECT lock_release('newest', 'alice-1');
SELECT g.acquired FROM lock_acquire('newest', '20 ms', 'alice-1', 'shared') g;
SELECT t.expire('newest');
SELECT lock_try_release('newest', 'alice-1');
SELECT g.acquired FROM lock_acquire('newest', '20 ms', 'alice-1') g;
SELECT t.expire('newest');
SELECT g.acquired FROM lock_acquire('newest', '1 hour', 'alice-1', 'shared') g;
SELECT lock_release('newest', 'alice-1');
SELECT lock_try_release('newest', 'alice-1');
-- many at once
SELECT count(*), count(DISTINCT fencing_token) AS tokens, count(DISTINCT owner) AS owners FROM generate_series(1, 300) i, LATERAL lock_acquire('many', i * interval '1 min', mode => 'shared') WHERE acquired;
SELECT holders FROM lock_status('many');
SELECT count(DISTINCT slot) AS slots, min(slot) > 0 AS above_zero FROM app_lock WHERE key = 'many';
SELECT t.raises($$SELECT lock_acquire('many')$$) ~ ' and at least 100 others\n' AS so_told;

--
-- One owner has a key once.
--
SELECT fencing_token AS token, acquired_at AS since, expires_at AS until FROM lock_acquire('own', '10 min', 'alice-1', 'shared', holder => 'Alice', meta => '{"a": 1}') \gset
-- again: the same grant, never shortened
SELECT s.*, fencing_token = :token AS same_token, acquired_at = :'since' AS same_since, expires_at = :'until' AS same_until FROM lock_acquire('own', '1 min', 'alice-1', 'shared') g, t.show(g) s;
SELECT s.status, fencing_token = :token AS same_token, expires_at >= :'since'::timestamptz + interval '1 hour' AS extended FROM lock_acquire('own', '1 hour', 'alice-1', 'shared', holder => 'Alice at home') g, t.show(g) s;
SELECT holder, holders, meta FROM lock_status('own');
SELECT s.status FROM lock_acquire('own', '1 hour', 'alice-1', 'shared', meta => '{"b": 2}') g, t.show(g) s;
SELECT holder, holders, meta FROM lock_status('own');
-- with others beside it
SELECT g.status FROM lock_acquire('own', '10 min', 'bob-1', 'shared', holder => 'Bob') g;
SELECT s.status, fencing_token = :token AS same_token FROM lock_try_acquire('own', '1 hour', 'alice-1', 'shared', wait => '1 min') g, t.show(g) s;
SELECT holders FROM lock_status('own');
-- asked for exclusively while others read: refused, and what it has stays
SELECT t.fingerprint() AS before \gset
SELECT t.raises($$SELECT lock_acquire('own', owner => 'alice-1')$$);
SELECT s.acquired, s.status, s.mode, s.owner, s.holder FROM lock_try_acquire('own', owner => 'alice-1') g, t.show(g) s;
SELECT s.acquired, s.status, s.mode, s.holder FROM lock_try_acquire('own', owner => 'alice-1', wait => '10 ms') g, t.show(g) s;
SELECT t.fingerprint() = :'before' AS unchanged;
-- alone: it becomes a writer, with a new token, and its lease is no shorter
SELECT lock_release('own', 'bob-1');
SELECT expires_at AS until FROM lock_status('own') \gset
SELECT s.acquired, s.status, s.mode, s.owner, s.holder, fencing_token > :token AS token_rises, acquired_at = :'since' AS same_since, expires_at = :'until' AS same_until
FROM lock_acquire('own', '1 min', 'alice-1') g, t.show(g) s;
SELECT holder, mode, holders, meta FROM lock_status('own');
SELECT count(*) AS live FROM app_lock WHERE key = 'own' AND NOT released AND expires_at > clock_timestamp();
-- asked for shared: it stays a writer
SELECT fencing_token AS token FROM lock_status('own') \gset
SELECT s.acquired, s.status, s.mode, fencing_token = :token AS same_token FROM lock_acquire('own', '1 min', 'alice-1', 'shared') g, t.show(g) s;
SELECT s.status, s.mode, expires_at > clock_timestamp() + interval '119 min' AS extended FROM lock_try_acquire('own', '2 hours', 'alice-1', 'shared') g, t.show(g) s;
SELECT status, mode, holder FROM lock_try_acquire('own', owner => 'bob-1', mode => 'shared');
SELECT lock_release('own', 'alice-1');
SELECT lock_try_release('own', 'alice-1'), lock_is_held('own', 'alice-1'), locked FROM lock_status('own');
-- a longer ttl is granted with the mode
SELECT g.status FROM lock_acquire('own 2', '1 min', 'alice-1', 'shared') g;
SELECT s.status, s.mode, expires_at > clock_timestamp() + interval '59 min' AS longer FROM lock_acquire('own 2', '1 hour', 'alice-1', holder => 'Alice', meta => '7') g, t.show(g) s;
SELECT holder, meta FROM lock_status('own 2');
SELECT lock_extend('own 2', 'alice-1') > clock_timestamp() + interval '59 min' AS repeats_an_hour;
-- the lease in the other mode had run out, or was released: a grant like any other
SELECT g.status, acquired_at AS since FROM lock_acquire('own 3', '20 ms', 'alice-1', 'shared', meta => '1') g \gset
SELECT t.expire('own 3');
SELECT s.status, s.mode, acquired_at > :'since' AS since_now FROM lock_acquire('own 3', '1 hour', 'alice-1') g, t.show(g) s;
SELECT meta IS NULL AS meta_gone FROM lock_status('own 3');
SELECT lock_release('own 3', 'alice-1');
SELECT s.status, s.mode FROM lock_acquire('own 3', '1 hour', 'alice-1', 'shared') g, t.show(g) s;
SELECT count(*) AS live FROM app_lock WHERE key = 'own 3' AND NOT released;

-- on_reacquire = error: whatever it has and whatever it asks for
SELECT g.status FROM lock_acquire('error x', '1 hour', 'alice-1', 'exclusive', holder => 'Alice') g;
SELECT g.status FROM lock_acquire('error s', '1 hour', 'alice-1', 'shared', holder => 'Alice') g;
SELECT g.status FROM lock_acquire('error s2', '1 hour', 'alice-1', 'shared', holder => 'Alice') g;
SELECT g.status FROM lock_acquire('error s2', '1 hour', 'bob-1', 'shared', holder => 'Bob') g;
SET atomic_lock.on_reacquire = error;
SELECT t.fingerprint() AS before \gset
SELECT k, m, l, split_part(t.raises(format('SELECT lock_acquire(%L, owner => ''alice-1'', mode => %L, lifetime => %L)', k, m, l)), E'\n', 1) AS answer,
	split_part(t.raises(format('SELECT lock_acquire(%L, owner => ''alice-1'', mode => %L, lifetime => %L, wait => ''1 min'')', k, m, l)), E'\n', 1) AS and_wait
FROM unnest(ARRAY['error x', 'error s', 'error s2']) k, unnest(ARRAY['exclusive', 'shared']) m, unnest(ARRAY['lease', 'session', 'transaction']) l ORDER BY 1, 2, 3;
SELECT k, m, l, g.acquired, g.status, g.mode, g.owner, g.holder, g.waited
FROM unnest(ARRAY['error x', 'error s', 'error s2']) k, unnest(ARRAY['exclusive', 'shared']) m, unnest(ARRAY['lease', 'session', 'transaction']) l,
	LATERAL lock_try_acquire(k, owner => 'alice-1', mode => m, lifetime => l) g ORDER BY 1, 2, 3;
SELECT t.raises($$SELECT lock_acquire('error s', owner => 'alice-1', mode => 'shared')$$);
SELECT t.fingerprint() = :'before' AS unchanged;
-- it is about what is live, and about this owner
SELECT g.status FROM lock_acquire('error s', '1 hour', 'bob-1', 'shared') g;
SELECT lock_release('error s', 'alice-1');
SELECT g.status FROM lock_acquire('error s', '1 hour', 'alice-1', 'shared') g;
RESET atomic_lock.on_reacquire;

--
-- Arguments and limits are the same for readers.
--
SELECT a, split_part(t.raises(format('SELECT lock_acquire(''args'', mode => ''shared'', %s)', a)), E'\n', 1) AS answer
FROM unnest(ARRAY['ttl => ''0''', 'ttl => ''25 h''', 'ttl => ''1 month''', 'ttl => ''1 day''', 'owner => ''''', 'owner => repeat(''x'', 256)', 'holder => repeat(''x'', 256)', 'holder => repeat(''x'', 255)',
	'wait => ''-1 s''', 'wait => ''6 min''', 'meta => to_jsonb(repeat(''x'', 10000))', 'meta => ''null''', 'lifetime => NULL', 'lifetime => ''x''', 'lifetime => ''lease''']) WITH ORDINALITY u(a, i) ORDER BY i;
SELECT t.raises($$SELECT lock_acquire('args', mode => 'Shared')$$);
SELECT t.code(format('SELECT lock_acquire(%L, mode => ''shared'')', repeat('x', n))), n FROM unnest(ARRAY[0, 1024, 1025]) n;
SELECT locked FROM lock_status('args');
-- max_lifetime
SET atomic_lock.max_lifetime = '1 h';
SELECT t.code($$SELECT lock_acquire('life', '61 min', 'alice-1', 'shared')$$);
SELECT s.status, s.seconds FROM lock_acquire('life', '30 min', 'alice-1', 'shared') g, t.show(g) s;
SELECT s.status, s.seconds FROM lock_acquire('life', '1 h', 'alice-1', 'shared') g, t.show(g) s;
SELECT t.code($$SELECT lock_extend('life', 'alice-1')$$), t.code($$SELECT lock_extend('life', 'alice-1', '10 min')$$), expires_at = acquired_at + interval '1 h' AS to_its_end FROM app_lock WHERE key = 'life';
-- a writer has lived as long as the reader it was
SELECT s.status, s.mode, s.seconds FROM lock_acquire('life', '1 h', 'alice-1') g, t.show(g) s;
RESET atomic_lock.max_lifetime;
-- lock_delay: nobody may write before a reader that ran out has had its delay
SELECT g.status FROM lock_acquire('delay', '20 ms', 'alice-1', 'shared', holder => 'Alice') g;
SELECT t.expire('delay');
SET atomic_lock.lock_delay = '1 h';
SELECT t.raises($$SELECT lock_acquire('delay', '1 hour', 'bob-1')$$);
SELECT status FROM lock_try_acquire('delay', '1 hour', 'alice-1');
SELECT lock_sweep();
-- a clean release needs none
SELECT g.status FROM lock_acquire('delay 2', '1 hour', 'alice-1', 'shared') g;
SELECT lock_release('delay 2', 'alice-1');
SELECT g.status FROM lock_acquire('delay 2', '1 hour', 'bob-1') g;
-- one of two ran out; the other is in the way, and then the delay of the first
SELECT g.status FROM lock_acquire('delay 3', '20 ms', 'alice-1', 'shared', holder => 'Alice') g;
SELECT g.status FROM lock_acquire('delay 3', '1 hour', 'bob-1', 'shared', holder => 'Bob') g;
SELECT t.expire('delay 3', 'alice-1');
SELECT split_part(t.raises($$SELECT lock_acquire('delay 3', '1 hour', 'carol-1')$$), E'\n', 1) AS answer;
SELECT lock_release('delay 3', 'bob-1');
SELECT split_part(t.raises($$SELECT lock_acquire('delay 3', '1 hour', 'carol-1')$$), E'\n', 1) AS answer;
-- a writer that ran out keeps readers out as well
SELECT g.status FROM lock_acquire('delay 4', '20 ms', 'alice-1', holder => 'Alice') g;
SELECT t.expire('delay 4');
SELECT split_part(t.raises($$SELECT lock_acquire('delay 4', '1 hour', 'bob-1', 'shared')$$), E'\n', 1) AS answer;
-- over
SET atomic_lock.lock_delay = '10 ms';
SELECT pg_sleep(0.02);
SELECT k, g.status FROM unnest(ARRAY['delay', 'delay 3', 'delay 4']) k, LATERAL lock_acquire(k, '1 hour', 'dora-1') g;
RESET atomic_lock.lock_delay;
-- max_claims_per_transaction counts keys, not readers
SET atomic_lock.max_claims_per_transaction = 2;
BEGIN;
SELECT count(*) FROM generate_series(1, 5) i, LATERAL lock_acquire('claim 1', '1 hour', 'reader-' || i, 'shared');
SELECT g.status FROM lock_acquire('claim 2', '1 hour', 'reader-1', 'shared') g;
SELECT t.code($$SELECT lock_acquire('claim 3', '1 hour', 'reader-1', 'shared')$$);
ROLLBACK;
RESET atomic_lock.max_claims_per_transaction;

--
-- All that an owner has
--
SELECT lock_release_all('alice-1') > 0 AS released;
SELECT count(*) FROM generate_series(1, 3) i, LATERAL lock_acquire('all s:' || i, '10 min', 'alice-1', 'shared');
SELECT count(*) FROM generate_series(1, 2) i, LATERAL lock_acquire('all x:' || i, '10 min', 'alice-1');
SELECT count(*) FROM generate_series(1, 3) i, LATERAL lock_acquire('all s:' || i, '10 min', 'bob-1', 'shared');
SELECT lock_extend_all('alice-1', '1 hour');
SELECT owner, count(*), bool_and(expires_at > clock_timestamp() + interval '59 min') AS extended FROM app_lock WHERE key LIKE 'all %' GROUP BY 1 ORDER BY 1;
SELECT lock_release('all s:1', 'alice-1');
SELECT lock_release_all('alice-1');
SELECT key, holder IS NOT NULL AS held, holders FROM lock_status() WHERE key LIKE 'all %' ORDER BY key;
SELECT lock_release_all('alice-1'), lock_release_all('bob-1');
-- of an owner that was generated
SELECT owner FROM lock_acquire('all g', mode => 'shared') \gset
SELECT g.status FROM lock_acquire('all g', '1 hour', 'bob-1', 'shared') g;
SELECT lock_extend_all(:'owner', '1 hour'), lock_release_all(:'owner'), lock_release_all(:'owner'), lock_release_all('bob-1');

--
-- By force: all of them, each with a record of its own
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
-- by one of them
TRUNCATE lock_audit;
SELECT g.status FROM lock_acquire('steal 2', '10 min', 'alice-1', 'shared', holder => 'Alice') g;
SELECT g.status FROM lock_acquire('steal 2', '20 min', 'bob-1', 'shared', holder => 'Bob') g;
SELECT s.status, s.mode, s.owner FROM lock_steal('steal 2', 'alice-1', 'why') g, t.show(g) s;
SELECT action, key, previous_holder FROM lock_audit ORDER BY previous_holder;
SELECT mode, holders FROM lock_status('steal 2');
SELECT lock_try_release('steal 2', 'bob-1') AS bob, lock_release('steal 2', 'alice-1') AS alice, lock_try_release('steal 2', 'alice-1') AS again;

--
-- The sweep
--
SELECT lock_sweep() >= 0 AS swept;
SELECT force_release(key, 'end of test') FROM (SELECT DISTINCT key FROM lock_status()) k;
UPDATE app_lock SET expires_at = expires_at - interval '2 hours' WHERE released;
SELECT lock_sweep(100000) >= 0 AS swept;
SELECT count(*) FROM app_lock;
SELECT g.status FROM lock_acquire('sweep', '1 hour', 'alice-1', 'shared') g;
SELECT g.status FROM lock_acquire('sweep', '1 hour', 'bob-1', 'shared') g;
SELECT g.status FROM lock_acquire('sweep', '1 hour', 'carol-1', 'shared') g;
SELECT g.status FROM lock_acquire('sweep', '1 hour', 'dora-1', 'shared') g;
SELECT lock_release('sweep', 'dora-1');
SELECT t.run_out('sweep', 'bob-1'), t.run_out('sweep', 'carol-1');
SELECT lock_sweep();
SELECT owner, released FROM t.readers;
SELECT lock_try_release('sweep', 'bob-1') AS bob, lock_try_release('sweep', 'dora-1') AS dora, holders FROM lock_status('sweep');
UPDATE app_lock SET expires_at = expires_at - interval '2 hours' WHERE released AND owner = 'dora-1';
SELECT lock_sweep();
SELECT owner FROM t.readers;
SELECT lock_try_release('sweep', 'dora-1') AS dora;
-- several in a batch, and no more than it may have
SELECT count(*) FROM generate_series(1, 6) i, LATERAL lock_acquire('sweep', '1 hour', 'reader-' || i, 'shared');
SELECT count(t.run_out('sweep', 'reader-' || i)) FROM generate_series(1, 6) i;
SELECT lock_sweep(4), lock_sweep(4), lock_sweep(4);
SELECT owner FROM t.readers;
-- all that there was
SELECT lock_extend('sweep', 'alice-1', '1 ms') IS NOT NULL AS extended;
SELECT t.expire('sweep');
SELECT lock_sweep();
SELECT count(*) FROM app_lock;
SELECT lock_try_release('sweep', 'alice-1');
-- a key whose sweep was rolled back
SELECT g.status FROM lock_acquire('sweep', '20 ms', 'alice-1', 'shared') g;
SELECT t.expire('sweep');
BEGIN;
SELECT lock_sweep();
SELECT g.status FROM lock_acquire('sweep', '1 hour', 'bob-1', 'shared') g;
ROLLBACK;
SELECT lock_try_release('sweep', 'alice-1');
SELECT lock_sweep();

--
-- Transactions and savepoints
--
-- two readers in one transaction, and a writer among them
BEGIN;
SELECT g.status FROM lock_acquire('tx', '1 hour', 'alice-1', 'shared', holder => 'Alice') g;
SELECT g.status FROM lock_acquire('tx', '30 min', 'bob-1', 'shared', holder => 'Bob') g;
SELECT status, holder FROM lock_try_acquire('tx', owner => 'carol-1');
SELECT t.raises($$SELECT lock_acquire('tx', owner => 'carol-1')$$);
SELECT lock_release('tx', 'alice-1'), lock_release('tx', 'bob-1');
SELECT status FROM lock_try_acquire('tx', '1 hour', 'carol-1');
SELECT status, mode FROM lock_try_acquire('tx', '1 hour', 'alice-1', 'shared');
COMMIT;
SELECT mode, holders, lock_is_held('tx', 'carol-1') AS carol FROM lock_status('tx');
SELECT lock_release('tx', 'carol-1');
-- rolled back
BEGIN;
SELECT fencing_token AS token FROM lock_acquire('tx', '1 hour', 'alice-1', 'shared') \gset
ROLLBACK;
SELECT locked, lock_try_release('tx', 'alice-1') FROM lock_status('tx');
SELECT status, fencing_token > :token AS token_rises FROM lock_acquire('tx', '1 hour', 'alice-1', 'shared');
BEGIN;
SELECT g.status FROM lock_acquire('tx', '1 hour', 'bob-1', 'shared') g;
SELECT lock_release('tx', 'alice-1');
SELECT lock_extend('tx', 'bob-1', '2 hours') IS NOT NULL AS extended;
ROLLBACK;
SELECT holders, lock_is_held('tx', 'alice-1') AS alice, lock_is_held('tx', 'bob-1') AS bob FROM lock_status('tx');
-- a savepoint
BEGIN;
SAVEPOINT a;
SELECT g.status FROM lock_acquire('tx', '1 hour', 'bob-1', 'shared') g;
SAVEPOINT b;
SELECT g.status FROM lock_acquire('tx', '1 hour', 'carol-1', 'shared') g;
SELECT lock_release('tx', 'alice-1');
SELECT holders FROM lock_status('tx');
ROLLBACK TO b;
SELECT holders FROM lock_status('tx');
RELEASE a;
COMMIT;
SELECT o, lock_is_held('tx', o) FROM unnest(ARRAY['alice-1', 'bob-1', 'carol-1']) o;
-- a reader becomes a writer in a savepoint that is undone
SELECT lock_release('tx', 'bob-1');
SELECT fencing_token AS token, expires_at AS until FROM lock_status('tx') \gset
BEGIN;
SAVEPOINT a;
SELECT status, mode FROM lock_acquire('tx', '2 hours', 'alice-1');
SELECT status, mode FROM lock_try_acquire('tx', '2 hours', 'bob-1', 'shared');
ROLLBACK TO a;
SELECT mode, fencing_token = :token AS same_token, expires_at = :'until' AS same_until FROM lock_status('tx');
SELECT status, mode FROM lock_try_acquire('tx', '2 hours', 'bob-1', 'shared');
COMMIT;
SELECT mode, holders FROM lock_status('tx');
-- blocks that fail
DO $$
BEGIN
	FOR i IN 1..20 LOOP
		BEGIN
			PERFORM lock_acquire('block', '1 hour', 'reader-' || i, 'shared');
			IF i % 2 = 0 THEN
				RAISE 'out';
			END IF;
		EXCEPTION WHEN raise_exception THEN
			NULL;
		END;
	END LOOP;
END
$$;
SELECT holders FROM lock_status('block');
-- in one statement
SELECT (lock_acquire('one', '1 min', 'alice-1', 'shared')).status AS a, (lock_acquire('one', '1 min', 'bob-1', 'shared')).status AS b, (lock_try_acquire('one', '1 min', 'carol-1')).status AS c,
	lock_release('one', 'alice-1') AS d, (lock_try_acquire('one', '1 min', 'bob-1')).mode AS e, (lock_try_acquire('one', '1 min', 'alice-1', 'shared')).status AS f, lock_release('one', 'bob-1') AS g, lock_holder('one') AS h;

-- Read-only transactions
BEGIN READ ONLY;
SELECT t.raises($$SELECT lock_acquire('ro', mode => 'shared')$$);
SELECT t.code($$SELECT lock_try_acquire('ro', mode => 'shared')$$), t.code($$SELECT lock_try_acquire('tx', owner => 'alice-1', mode => 'shared')$$);
SELECT mode, holders FROM lock_status('tx');
COMMIT;

-- Two-phase commit: what a prepared transaction reads, others may read, and nobody may write.
SELECT current_setting('max_prepared_transactions')::int > 0 AS twophase \gset
\if :twophase
BEGIN;
SELECT g.status FROM lock_acquire('2pc', '10 min', 'alice-1', 'shared', holder => 'Alice') g;
PREPARE TRANSACTION 'regress_al_shared';
SELECT status, holder FROM lock_try_acquire('2pc', '10 min', 'bob-1', 'shared', holder => 'Bob');
SELECT status, holder FROM lock_try_acquire('2pc', '10 min', 'carol-1');
SELECT lock_release('2pc', 'bob-1');
SELECT status, holder FROM lock_try_acquire('2pc', '10 min', 'carol-1');
SELECT locked FROM lock_status('2pc');
COMMIT PREPARED 'regress_al_shared';
SELECT holder, holders FROM lock_status('2pc');
SELECT status, holder FROM lock_try_acquire('2pc', '10 min', 'carol-1');
-- a release of one of two
SELECT status FROM lock_acquire('2pc', '10 min', 'bob-1', 'shared', holder => 'Bob');
BEGIN;
SELECT lock_release('2pc', 'bob-1');
PREPARE TRANSACTION 'regress_al_shared';
SELECT status FROM lock_try_acquire('2pc', '10 min', 'carol-1');
SELECT status FROM lock_try_acquire('2pc', '10 min', 'dora-1', 'shared');
ROLLBACK PREPARED 'regress_al_shared';
SELECT lock_is_held('2pc', 'alice-1') AS alice, lock_is_held('2pc', 'bob-1') AS bob, lock_is_held('2pc', 'dora-1') AS dora;
\else
\echo max_prepared_transactions is 0
\endif

-- Every isolation level, with a snapshot that is old
CREATE FUNCTION t.story(k text DEFAULT 'level') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text := current_setting('transaction_isolation');
	g		lock_grant;
BEGIN
	FOR i IN 1..2 LOOP
		g := lock_acquire(k, '10 min', 'alice-1', 'shared');
		answer := concat_ws(' ', answer, g.status, (lock_try_acquire(k, owner => 'bob-1', mode => 'shared')).status, (lock_try_acquire(k, owner => 'carol-1')).status, (lock_try_acquire(k, owner => 'alice-1')).status,
			(lock_status(k)).holders, lock_is_held(k, 'alice-1'), lock_extend(k, 'alice-1', '1 hour') > g.expires_at,
			lock_try_release(k, 'bob-1'), lock_try_release(k, 'bob-1'), (lock_try_acquire(k, owner => 'alice-1')).mode, (lock_try_acquire(k, owner => 'bob-1', mode => 'shared')).status,
			lock_try_release(k, 'alice-1'), lock_try_release(k, 'alice-1'));
		g := lock_acquire(k, '5 ms', 'alice-1', 'shared');
		PERFORM t.expire(k);
		answer := concat_ws(' ', answer, lock_try_release(k, 'alice-1'), (lock_acquire(k, owner => 'bob-1', mode => 'shared')).status, force_release(k, 'test'), lock_try_release(k, 'bob-1'));
	END LOOP;
	RETURN answer;
END
$$;
:at_every_level
