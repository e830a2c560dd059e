\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- lock_transfer: a live holding goes to another owner, in one step
--
-- Properties: the holding changes its owner atomically and gets a new token. Its end stays
-- unless ttl is passed. The former owner finds it held by another. An owner without a live
-- holding transfers nothing.
--
-- Turns red when: both or neither are owners; the token stays; a lease becomes longer without
-- ttl, or longer than max_lifetime allows; an expired lease is revived; a lease that merges
-- with a session's holding ends with the session.


--
-- A lease
--
SELECT fencing_token AS token, acquired_at AS since, expires_at AS until FROM lock_acquire('k', '10 min', 'alice-1', holder => 'Alice', meta => '{"a": 1}') \gset
SELECT s.acquired, s.status, s.key, s.mode, s.owner, s.waited, s.holder, fencing_token > :token AS token_rises, acquired_at = :'since' AS same_since, acquired_at <= clock_timestamp() AS not_in_future, expires_at = :'until' AS same_until
FROM lock_transfer('k', 'alice-1', 'bob-1', 'Bob') g, t.show(g) s;
SELECT mode, owner, holder, fencing_token > :token AS token_rises, acquired_at = :'since' AS same_since, expires_at = :'until' AS same_until, lifetime, holders, pid, meta FROM lock_status('k');
SELECT count(*) AS live FROM app_lock WHERE key = 'k' AND NOT released;
-- the former owner learns that another holds it
SELECT lock_is_held('k', 'alice-1') AS alice, lock_is_held('k', 'bob-1') AS bob;
SELECT t.raises($$SELECT lock_release('k', 'alice-1')$$);
SELECT t.raises($$SELECT lock_extend('k', 'alice-1')$$);
SELECT t.raises($$SELECT lock_transfer('k', 'alice-1', 'carol-1')$$);
SELECT t.raises($$SELECT lock_convert('k', 'alice-1', 'shared')$$);
SELECT lock_try_release('k', 'alice-1'), lock_try_extend('k', 'alice-1'), lock_extend_all('alice-1'), lock_release_all('alice-1'), status FROM lock_try_acquire('k', owner => 'alice-1');
-- the new owner has full control
SELECT status FROM lock_acquire('k', owner => 'bob-1');
SELECT lock_extend('k', 'bob-1', '20 min') > :'until' AS extended, lock_extend_all('bob-1', '10 min');
SELECT lock_release_all('bob-1');
SELECT lock_try_release('k', 'bob-1') AS bob, lock_try_release('k', 'alice-1') AS alice;
-- the last ttl is transferred, too
SELECT g.status FROM lock_acquire('k', '10 min', 'alice-1') g;
SELECT lock_extend('k', 'alice-1', '1 hour') IS NOT NULL AS extended;
SELECT status FROM lock_transfer('k', 'alice-1', 'bob-1');
SELECT lock_extend('k', 'bob-1') > clock_timestamp() + interval '59 min' AS repeats_an_hour;
-- label: as in an acquire
SELECT g.holder FROM lock_transfer('k', 'bob-1', 'carol-1', holder => '') g WHERE g.holder <> current_setting('application_name');
SELECT g.holder = current_setting('application_name') AS label FROM lock_transfer('k', 'carol-1', 'bob-1') g;
SET application_name = 'order desk 3';
SELECT g.holder FROM lock_transfer('k', 'bob-1', 'carol-1') g;
SET application_name = '';
SELECT g.holder = current_user AS role_name FROM lock_transfer('k', 'carol-1', 'bob-1') g;
RESET application_name;
-- by name, with the owner from the setting
SET atomic_lock.owner = 'bob-1';
SELECT g.owner, g.holder FROM lock_transfer(new_owner => 'carol-1', owner => NULL, key => 'k', holder => 'Carol', ttl => '5 min') g;
RESET atomic_lock.owner;
-- a ttl counts from now, and may be shorter
SELECT expires_at BETWEEN clock_timestamp() + interval '4 min' AND clock_timestamp() + interval '5 min' AS five_minutes FROM lock_status('k');
SELECT g.expires_at - clock_timestamp() BETWEEN '119 min' AND '2 hours' AS two_hours FROM lock_transfer('k', 'carol-1', 'bob-1', ttl => '2 hours') g;
SELECT g.expires_at - clock_timestamp() <= '1 ms' AS a_moment FROM lock_transfer('k', 'bob-1', 'alice-1', 'Alice', '1 ms') g;
SELECT t.expire('k');
SELECT lock_try_release('k', 'alice-1') AS alice, lock_try_release('k', 'bob-1') AS bob;
-- from and to generated owners
SELECT owner FROM lock_acquire('k') \gset
SELECT s.status, s.owner FROM lock_transfer('k', :'owner', gen_random_uuid()::text) g, t.show(g) s;
SELECT lock_try_release('k', :'owner');
SELECT status FROM lock_transfer('k', (SELECT owner FROM app_lock WHERE key = 'k'), 'alice-1');
SELECT lock_release_all('alice-1');

-- to oneself: a grant with a new token
SELECT fencing_token AS token FROM lock_acquire('k', '10 min', 'alice-1', holder => 'Alice', meta => '1') \gset
SELECT s.status, s.owner, s.holder, fencing_token > :token AS token_rises FROM lock_transfer('k', 'alice-1', 'alice-1', 'Alice too') g, t.show(g) s;
SELECT holder, holders, meta FROM lock_status('k');
SELECT lock_release('k', 'alice-1'), lock_try_release('k', 'alice-1');

--
-- A shared holding
--
SELECT fencing_token AS alice, expires_at AS until FROM lock_acquire('s', '10 min', 'alice-1', 'shared', holder => 'Alice', meta => '"a"') \gset
SELECT g.status FROM lock_acquire('s', '20 min', 'bob-1', 'shared', holder => 'Bob', meta => '"b"') g;
SELECT s.acquired, s.status, s.mode, s.owner, s.holder, fencing_token > :alice AS token_rises, expires_at = :'until' AS same_until FROM lock_transfer('s', 'alice-1', 'carol-1', 'Carol') g, t.show(g) s;
SELECT mode, owner, holder, holders, meta FROM lock_status() WHERE key = 's' ORDER BY holder;
SELECT lock_try_release('s', 'alice-1') AS alice, lock_try_extend('s', 'alice-1') AS extended;
SELECT status, holder FROM lock_try_acquire('s', owner => 'dora-1');
-- to another sharer: the two merge
SELECT fencing_token AS newest FROM app_lock WHERE owner = 'carol-1' \gset
SELECT s.acquired, s.status, s.mode, s.owner, fencing_token > :newest AS token_rises FROM lock_transfer('s', 'carol-1', 'bob-1', 'Bob') g, t.show(g) s;
SELECT mode, owner, holder, holders FROM lock_status() WHERE key = 's' ORDER BY holder;
SELECT lock_is_held('s', 'bob-1') AS bob, lock_is_held('s', 'carol-1') AS carol, lock_try_release('s', 'carol-1') AS released;
SELECT status, mode FROM lock_convert('s', 'bob-1');
SELECT status, mode FROM lock_convert('s', 'bob-1', 'shared');
SELECT lock_release('s', 'bob-1'), lock_try_release('s', 'bob-1') AS again, lock_holder('s');
SELECT lock_release_all('bob-1');
-- and never end before either of the two would have
SELECT g.status FROM lock_acquire('s', '1 hour', 'alice-1', 'shared') g;
SELECT g.status FROM lock_acquire('s', '1 min', 'bob-1', 'shared') g;
SELECT s.ttl_remaining > '59 min' AS long FROM lock_transfer('s', 'bob-1', 'alice-1') g, LATERAL lock_status(g.key) s;
SELECT lock_release('s', 'alice-1'), lock_holder('s');

-- To another sharer, in every lifetime and with every end
--
-- The merged holding is a lease if one of the two was. It ends when the later of those with an
-- end would have, and keeps the meta of either.
CREATE TABLE t.kinds (id int, kind text, lifetime text, ttl interval, meta jsonb);
INSERT INTO t.kinds VALUES (1, 'a lease', 'lease', '1 h', '"lease"'), (2, 'a short lease', 'lease', '10 min', NULL), (3, 'session', 'session', NULL, '"session"'), (4, 'session, 2 h', 'session', '2 h', NULL);
CREATE FUNCTION t.merge(a t.kinds, b t.kinds, OUT lifetime text, OUT ends text, OUT pid boolean, OUT holders int, OUT token_rises boolean, OUT same_since boolean, OUT meta text, OUT repeats text, OUT released text) LANGUAGE plpgsql AS $$
DECLARE
	k		text := a.kind || ' to ' || b.kind;
	x		lock_grant := lock_acquire(k, a.ttl, 'alice-1', 'shared', holder => 'Alice', meta => a.meta, lifetime => a.lifetime);
	y		lock_grant := lock_acquire(k, b.ttl, 'bob-1', 'shared', holder => 'Bob', meta => b.meta, lifetime => b.lifetime);
	g		lock_grant := lock_transfer(k, 'alice-1', 'bob-1', 'Bob');
	s		app_lock;
	again	timestamptz;
BEGIN
	SELECT * INTO STRICT s FROM app_lock l WHERE l.key = k AND NOT l.released;
	holders := (lock_status(k)).holders;
	lifetime := (lock_status(k)).lifetime;
	pid := s.pid = pg_backend_pid();
	ends := CASE WHEN s.expires_at = 'infinity' THEN 'never'
		WHEN s.expires_at = x.expires_at AND s.expires_at >= coalesce(y.expires_at, '-infinity') THEN 'as Alice''s'
		WHEN s.expires_at = y.expires_at AND s.expires_at >= coalesce(x.expires_at, '-infinity') THEN 'as Bob''s'
		ELSE 'elsewhere' END;
	token_rises := g.fencing_token > greatest(x.fencing_token, y.fencing_token) AND g.fencing_token = s.fencing_token;
	same_since := s.acquired_at = least(x.acquired_at, y.acquired_at);
	meta := CASE WHEN coalesce(a.meta, b.meta) IS NULL THEN CASE WHEN s.meta IS NULL THEN 'none' END WHEN s.meta IN (a.meta, b.meta) THEN 'kept' END;
	again := lock_extend(k, 'bob-1');
	repeats := CASE WHEN again = 'infinity' THEN 'infinity' WHEN again < s.expires_at THEN 'shortened' WHEN again > clock_timestamp() + interval '2 h' THEN 'too much' WHEN again > s.expires_at THEN 'its length' ELSE 'its end' END;
	released := concat_ws(' ', lock_try_release(k, 'alice-1'), lock_try_release(k, 'bob-1'), lock_try_release(k, 'bob-1'), lock_holder(k));
END
$$;
SELECT a.kind AS alice, b.kind AS bob, m.lifetime, ends, pid, m.holders, m.token_rises AS token, same_since AS since, m.meta, m.released FROM t.kinds a, t.kinds b, t.merge(a, b) m ORDER BY a.id, b.id;
-- lock_extend repeats a ttl that one of them had; a session's holding without an end does not
-- count
SELECT a.kind AS alice, b.kind AS bob, m.repeats FROM t.kinds a, t.kinds b, t.merge(a, b) m WHERE a.ttl IS NULL OR b.ttl IS NULL ORDER BY a.id, b.id;
SELECT count(*) FROM t.kinds a, t.kinds b, t.merge(a, b) m WHERE a.ttl > '0' AND b.ttl > '0' AND m.repeats IN ('its length', 'its end');
-- with a ttl
SELECT a.kind AS alice, b.kind AS bob, s.lifetime, s.ttl_remaining > '3 h' AS extended, s.holders
FROM t.kinds a, t.kinds b, LATERAL (SELECT 'ttl ' || a.kind || ' to ' || b.kind AS k OFFSET 0) n, LATERAL lock_acquire(k, a.ttl, 'alice-1', 'shared', lifetime => a.lifetime) x, LATERAL lock_acquire(x.key, b.ttl, 'bob-1', 'shared', lifetime => b.lifetime) y,
	LATERAL lock_transfer(y.key, 'alice-1', 'bob-1', ttl => '4 h') g, LATERAL lock_status(g.key) s ORDER BY a.id, b.id;
-- a transaction's holding merges into the new owner's lease or session holding
BEGIN;
SELECT b.kind AS bob, s.lifetime, s.holders, s.expires_at IS NOT DISTINCT FROM y.expires_at AS same_until, g.fencing_token > greatest(x.fencing_token, y.fencing_token) AS token_rises
FROM t.kinds b, LATERAL lock_acquire('transaction to ' || b.kind, owner => 'alice-1', mode => 'shared', lifetime => 'transaction') x, LATERAL lock_acquire(x.key, b.ttl, 'bob-1', 'shared', meta => b.meta, lifetime => b.lifetime) y,
	LATERAL lock_transfer(y.key, 'alice-1', 'bob-1') g, LATERAL lock_status(g.key) s ORDER BY b.id;
COMMIT;
SELECT b.kind AS bob, s.lifetime, s.holders, s.meta IS NOT DISTINCT FROM b.meta AS same_meta FROM t.kinds b, lock_status('transaction to ' || b.kind) s ORDER BY b.id;
-- and a holding with a row absorbs the new owner's holding of the transaction
BEGIN;
SELECT a.kind AS alice, g.expires_at IS NOT DISTINCT FROM x.expires_at AS same_until
FROM t.kinds a, LATERAL lock_acquire(a.kind || ' to transaction', a.ttl, owner => 'alice-1', mode => 'shared', lifetime => a.lifetime) x, LATERAL lock_acquire(x.key, owner => 'bob-1', mode => 'shared', lifetime => 'transaction') y,
	LATERAL lock_transfer(y.key, 'alice-1', 'bob-1') g ORDER BY a.id;
COMMIT;
SELECT a.kind AS alice, s.lifetime, s.holders, lock_is_held(s.key, 'bob-1') AS bob FROM t.kinds a, lock_status(a.kind || ' to transaction') s ORDER BY a.id;
-- at the end of the session, leases continue
SELECT lock_release_all('bob-1') > 0 AS released;
SELECT count(*) FROM t.kinds a, t.kinds b, LATERAL lock_acquire('end of ' || a.kind || ' to ' || b.kind, a.ttl, 'alice-1', 'shared', lifetime => a.lifetime) x, LATERAL lock_acquire(x.key, b.ttl, 'bob-1', 'shared', lifetime => b.lifetime) y, LATERAL lock_transfer(y.key, 'alice-1', 'bob-1') g;
BEGIN;
SELECT count(*) FROM t.kinds a, LATERAL lock_acquire('end of ' || a.kind || ' alone', a.ttl, 'alice-1', 'shared', lifetime => a.lifetime) x, LATERAL lock_transfer(x.key, 'alice-1', 'bob-1') g;
COMMIT;
SELECT pg_backend_pid() AS former \gset
\c -
SET client_min_messages = warning;
SELECT set_config('t.former', :'former', false) IS NOT NULL AS noted;
DO $$BEGIN WHILE EXISTS (SELECT FROM pg_stat_activity WHERE pid = current_setting('t.former')::int) LOOP PERFORM pg_sleep(0.01), pg_stat_clear_snapshot(); END LOOP; END$$;
SELECT a.kind AS alice, b.kind AS bob, lock_is_held('end of ' || a.kind || ' to ' || b.kind, 'bob-1') AS held FROM t.kinds a, t.kinds b ORDER BY a.id, b.id;
SELECT a.kind AS alice, lock_is_held('end of ' || a.kind || ' alone', 'bob-1') AS held FROM t.kinds a ORDER BY a.id;
SELECT lock_release_all('bob-1') AS leases;

--
-- Refused
--
CREATE FUNCTION t.transfer(k text, o text) RETURNS text LANGUAGE sql AS $$
	SELECT t.raises(format('SELECT lock_transfer(%L, %L, ''new-1'')', k, o))
$$;
SELECT g.status FROM lock_acquire('x', '10 min', 'bob-1', holder => 'Bob') g;
SELECT t.fingerprint() AS before \gset
BEGIN;
SELECT t.transfer('never', 'alice-1');
SELECT t.transfer('x', 'alice-1');
SELECT t.transfer('s', 'alice-1');
SELECT * FROM t.left_open();
COMMIT;
SELECT t.fingerprint() = :'before' AS unchanged;
SELECT g.status FROM lock_acquire('short', '20 ms', 'alice-1') g;
SELECT t.expire('short');
SELECT t.transfer('short', 'alice-1');
SELECT t.transfer('short', 'bob-1');
SELECT force_release('x', 'why');
SELECT t.transfer('x', 'bob-1');
SELECT g.status FROM lock_acquire('x', '10 min', 'bob-1', 'shared', holder => 'Bob') g;
SELECT g.status FROM lock_acquire('x', '10 min', 'alice-1', 'shared', holder => 'Alice') g;
SELECT lock_release('x', 'alice-1');
SELECT t.transfer('x', 'alice-1');
SELECT t.transfer('x', 'dora-1');
\set VERBOSITY sqlstate
SELECT lock_transfer('x', 'alice-1', 'new-1');
\set VERBOSITY default
-- bad input is refused whatever the state of the lock
SELECT a, split_part(t.raises(format('SELECT lock_transfer(%s)', a)), E'\n', 1) AS answer
FROM unnest(ARRAY['NULL, ''bob-1'', ''n''', ''''', ''bob-1'', ''n''', 'repeat(''x'', 1025), ''o'', ''n''', '''x'', NULL, ''n''', '''x'', '''', ''n''', '''x'', repeat(''o'', 256), ''n''', '''x'', ''bob-1'', NULL', '''x'', ''bob-1'', ''''', '''x'', ''bob-1'', repeat(''n'', 256)', '''x'', ''bob-1'', repeat(''n'', 255)',
	'''x'', ''bob-1'', ''n'', repeat(''h'', 256)', '''x'', ''bob-1'', ''n'', repeat(''h'', 255)', '''x'', ''bob-1'', ''n'', ttl => ''0''', '''x'', ''bob-1'', ''n'', ttl => ''25 h''', '''x'', ''bob-1'', ''n'', ttl => ''1 month''', '''x'', ''bob-1'', ''n'', NULL, NULL',
	'''never'', ''o'', NULL', '''never'', ''o'', ''n'', ttl => ''0''', '''x'', ''bob-1''']) WITH ORDINALITY u(a, i) ORDER BY i;
-- the new owner must be passed; the setting is not used
SET atomic_lock.owner = 'session-7';
SELECT t.raises($$SELECT lock_transfer('x', 'bob-1', NULL)$$);
RESET atomic_lock.owner;
BEGIN READ ONLY;
SELECT t.raises($$SELECT lock_transfer('x', 'bob-1', 'n')$$);
SELECT t.code($$SELECT lock_transfer('never', 'bob-1', 'n')$$);
COMMIT;
SET atomic_lock.max_claims_per_transaction = 1;
BEGIN;
SELECT status FROM lock_acquire('one', '1 min', 'alice-1');
SELECT t.code($$SELECT lock_transfer('x', 'bob-1', 'n')$$);
ROLLBACK;
RESET atomic_lock.max_claims_per_transaction;
-- on_reacquire applies to acquires only
SET atomic_lock.on_reacquire = error;
SELECT g.status FROM lock_transfer('x', 'bob-1', 'alice-1') g;
SELECT g.status FROM lock_transfer('x', 'alice-1', 'bob-1') g;
RESET atomic_lock.on_reacquire;
-- max_lifetime: the lifetime continues with the new owner; max_lifetime.sql has more
SET atomic_lock.max_lifetime = '1 h';
SELECT g.status FROM lock_acquire('life', '1 h', 'alice-1') g;
SELECT t.code($$SELECT lock_transfer('life', 'alice-1', 'bob-1', ttl => '61 min')$$);
SELECT s.status, s.seconds FROM lock_transfer('life', 'alice-1', 'bob-1', ttl => '1 h') g, t.show(g) s;
SELECT expires_at <= acquired_at + interval '1 h' AS within FROM lock_transfer('life', 'bob-1', 'alice-1');
SELECT t.code($$SELECT lock_extend('life', 'alice-1', '1 h')$$);
RESET atomic_lock.max_lifetime;
-- lock_delay applies to acquires only
SET atomic_lock.lock_delay = '1 h';
SELECT g.status FROM lock_transfer('life', 'alice-1', 'bob-1') g;
RESET atomic_lock.lock_delay;

--
-- Transactions
--
SELECT fencing_token AS token FROM lock_acquire('tx', '10 min', 'alice-1', holder => 'Alice') \gset
BEGIN;
SELECT status FROM lock_transfer('tx', 'alice-1', 'bob-1', 'Bob');
SELECT lock_is_held('tx', 'alice-1') AS alice, lock_is_held('tx', 'bob-1') AS bob;
ROLLBACK;
SELECT lock_is_held('tx', 'alice-1') AS alice, lock_is_held('tx', 'bob-1') AS bob, holder, fencing_token = :token AS same_token FROM lock_status('tx');
BEGIN;
SAVEPOINT a;
SELECT status FROM lock_transfer('tx', 'alice-1', 'bob-1', 'Bob');
SAVEPOINT b;
SELECT status FROM lock_transfer('tx', 'bob-1', 'carol-1', 'Carol');
SELECT lock_release('tx', 'carol-1');
ROLLBACK TO b;
SELECT holder FROM lock_status('tx');
RELEASE a;
COMMIT;
SELECT lock_is_held('tx', 'alice-1') AS alice, lock_is_held('tx', 'bob-1') AS bob, lock_is_held('tx', 'carol-1') AS carol, holder FROM lock_status('tx');
-- acquired, transferred and released in one statement
SELECT (lock_acquire('one', '1 min', 'alice-1')).status AS a, (lock_transfer('one', 'alice-1', 'bob-1')).status AS b, lock_try_release('one', 'alice-1') AS c, (lock_transfer('one', 'bob-1', 'carol-1')).owner AS d, lock_release('one', 'carol-1') AS e;
-- through fifty owners, each with a new token
SELECT status FROM lock_acquire('round', '10 min', 'o-0');
SELECT count(*), count(DISTINCT g.fencing_token) AS tokens, bool_and(g.acquired) AS acquired FROM generate_series(0, 49) i, LATERAL lock_transfer('round', 'o-' || i, 'o-' || i + 1) g;
SELECT owner, count(*) OVER () AS rows FROM app_lock WHERE key = 'round';
-- a transferred exclusive holding is converted, stolen and forced like any other
SELECT (lock_convert('round', 'o-50', 'shared')).mode, (lock_transfer('round', 'o-50', 'o-51')).mode, (lock_convert('round', 'o-51')).mode;
TRUNCATE lock_audit;
SELECT force_release('round', 'why');
SELECT action, previous_owner_digest = encode(sha256('o-51'), 'hex') AS digest FROM lock_audit;
-- a transfer is no forced end
SELECT g.status FROM lock_transfer('tx', 'bob-1', 'carol-1') g;
SELECT count(*) FROM lock_audit;
SELECT current_setting('max_prepared_transactions')::int > 0 AS twophase \gset
\if :twophase
BEGIN;
SELECT g.status FROM lock_transfer('tx', 'carol-1', 'dora-1', 'Dora') g;
PREPARE TRANSACTION 'regress_al_transfer';
SELECT lock_is_held('tx', 'carol-1') AS carol, lock_is_held('tx', 'dora-1') AS dora, status FROM lock_try_acquire('tx', owner => 'dora-1');
COMMIT PREPARED 'regress_al_transfer';
SELECT lock_is_held('tx', 'carol-1') AS carol, lock_is_held('tx', 'dora-1') AS dora, status FROM lock_try_acquire('tx', owner => 'dora-1');
\else
\echo max_prepared_transactions is 0
\endif

-- At every isolation level, with an old snapshot
CREATE FUNCTION t.story(k text DEFAULT 'level') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text := current_setting('transaction_isolation');
BEGIN
	FOR i IN 1..2 LOOP
		answer := concat_ws(' ', answer, (lock_acquire(k, '10 min', 'alice-1')).status, (lock_transfer(k, 'alice-1', 'bob-1')).status, (lock_try_acquire(k, owner => 'alice-1')).status,
			lock_is_held(k, 'bob-1'), lock_try_release(k, 'alice-1'), (lock_transfer(k, 'bob-1', 'alice-1')).owner, lock_try_release(k, 'alice-1'), t.code(format('SELECT lock_transfer(%L, ''alice-1'', ''bob-1'')', k)));
	END LOOP;
	RETURN answer;
END
$$;
:at_every_level

-- Messages show keys and labels with control characters escaped, and no owner.
SELECT g.status FROM lock_acquire(E'nasty\n', '10 min', 'secret-1', holder => E'Al\rice') g;
SELECT split_part(a, E'\n', 1) AS answer, a ~ 'secret' AS owner_shown FROM unnest(ARRAY[t.raises($$SELECT lock_transfer(E'nasty\n', 'secret-2', 'secret-3')$$), t.raises($$SELECT lock_transfer(E'nasty\r', 'secret-2', 'secret-3')$$)]) a;

-- The new owner's ticket for the key ends.
SELECT g.status FROM lock_acquire('line', owner => 'alice-1', holder => 'Alice') g;
SELECT e.status, e.place FROM unnest(ARRAY['bob-1', 'carol-1']) o, lock_enqueue('line', o, o) e;
SELECT g.status FROM lock_transfer('line', 'alice-1', 'bob-1', 'Bob') g;
SELECT holder, place FROM lock_queue WHERE key = 'line';
BEGIN;
SELECT lock_release('line', 'bob-1');
SELECT g.status FROM lock_acquire('line', owner => 'dave-1', lifetime => 'transaction') g;
SELECT g.status FROM lock_transfer('line', 'dave-1', 'carol-1') g;
SELECT count(*) FROM lock_queue WHERE key = 'line';
COMMIT;
SELECT g.status FROM lock_acquire('shared line', owner => 'erin-1', mode => 'shared') g;
BEGIN;
SELECT g.status FROM lock_acquire('shared line', owner => 'frank-1', mode => 'shared', lifetime => 'transaction') g;
SELECT e.status FROM lock_enqueue('shared line', 'erin-1') e;
SELECT g.status FROM lock_transfer('shared line', 'frank-1', 'erin-1') g;
SELECT count(*) FROM lock_queue WHERE key = 'shared line';
COMMIT;
