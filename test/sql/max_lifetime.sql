\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- atomic_lock.max_lifetime: a limit on how long a key is kept from others
--
-- Properties:
-- - acquired_at is the time since which the key has not been free. Transferring, converting, or
--   releasing and acquiring again in one transaction does not change it, by one owner or by two
--   in turn, in any mode and lifetime.
-- - No call moves the end of a holding with a row past acquired_at + max_lifetime. If no time
--   is left, a grant that would have ended already is refused, and nothing is written.
-- - A new life begins when others could have had the key: in the next transaction, or by force,
--   which is audited.
--
-- Turns red when: a verb or a pair of verbs begins a new life although the key was never free;
-- lowering the limit shortens an existing holding.

CREATE TABLE t.doc (id int PRIMARY KEY);
INSERT INTO t.doc VALUES (1);


-- True if the statement raises LK008; otherwise its effects stay.
CREATE FUNCTION t.refused(stmt text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE stmt;
	RETURN false;
EXCEPTION WHEN SQLSTATE 'LK008' THEN
	RETURN true;
END
$$;

--
-- Transferred
--
SET atomic_lock.max_lifetime = '1 h';
SELECT acquired_at AS since, expires_at AS until FROM lock_acquire('k', '30 min', 'alice-1') \gset
SELECT status, acquired_at = :'since' AS same_since, expires_at = :'until' AS same_until FROM lock_transfer('k', 'alice-1', 'bob-1');
SELECT status, acquired_at = :'since' AS same_since, expires_at = :'until' AS same_until FROM lock_transfer('k', 'bob-1', 'bob-1');
SELECT status, acquired_at = :'since' AS same_since, expires_at > :'until' AS extended, expires_at < :'since'::timestamptz + interval '1 h' AS within FROM lock_transfer('k', 'bob-1', 'bob-1', ttl => '40 min');
SELECT status, acquired_at = :'since' AS same_since, expires_at = :'since'::timestamptz + interval '1 h' AS to_its_end FROM lock_transfer('k', 'bob-1', 'alice-1', ttl => '1 h');
SELECT status, acquired_at = :'since' AS same_since, expires_at = :'since'::timestamptz + interval '1 h' AS to_its_end FROM lock_transfer('k', 'alice-1', 'bob-1');
-- so a transfer gains no time
SELECT t.code($$SELECT lock_extend('k', 'bob-1', '1 h')$$), t.code($$SELECT lock_extend('k', 'bob-1')$$), lock_extend_all('bob-1', '1 h');
-- but it can lose some
SELECT acquired_at = :'since' AS same_since, expires_at < :'until' AS shortened FROM lock_transfer('k', 'bob-1', 'alice-1', ttl => '1 min');
SELECT acquired_at = :'since' AS same_since, expires_at > :'until' AS longer, expires_at <= :'since'::timestamptz + interval '1 h' AS within FROM lock_transfer('k', 'alice-1', 'alice-1', ttl => '1 h');
-- each sharer
SELECT acquired_at AS alice FROM lock_acquire('shared', '30 min', 'alice-1', 'shared') \gset
SELECT acquired_at AS bob FROM lock_acquire('shared', '50 min', 'bob-1', 'shared') \gset
SELECT acquired_at = :'alice' AS same_since FROM lock_transfer('shared', 'alice-1', 'carol-1');
SELECT acquired_at = :'alice' AS same_since, expires_at = acquired_at + interval '1 h' AS to_its_end FROM lock_transfer('shared', 'carol-1', 'carol-1', ttl => '1 h');
-- two holdings merged into one count from the earlier beginning
SELECT acquired_at = :'alice' AS of_the_first, expires_at <= acquired_at + interval '1 h' AS within FROM lock_transfer('shared', 'bob-1', 'carol-1');
SELECT acquired_at AS dora FROM lock_acquire('shared', '30 min', 'dora-1', 'shared') \gset
SELECT acquired_at = :'alice' AS of_the_first, expires_at <= acquired_at + interval '1 h' AS within FROM lock_transfer('shared', 'carol-1', 'dora-1', ttl => '1 h');
-- merging an older and a newer holding adds no time to the older, and takes none from the
-- former holding of the new owner
CREATE FUNCTION t.age(k text, o text) RETURNS void LANGUAGE sql AS $$UPDATE app_lock SET acquired_at = acquired_at - interval '40 min', expires_at = expires_at - interval '40 min' WHERE key = k AND owner = o$$;
SELECT count(lock_acquire(k, '1 h', o, 'shared')) FROM unnest('{join-1,join-2}'::text[]) k, unnest('{alice-1,bob-1}'::text[]) o;
SELECT t.age('join-1', 'alice-1'), t.age('join-2', 'bob-1');
SELECT key, expires_at = acquired_at + interval '1 h' AS to_the_end_of_the_older, expires_at - acquired_at BETWEEN '1 h 40 min' AND '1 h 41 min' AS to_that_of_bob
FROM unnest('{join-1,join-2}'::text[]) k, LATERAL lock_transfer(k, 'alice-1', 'bob-1') g ORDER BY key;
-- round a cycle
SELECT acquired_at AS since FROM lock_acquire('round', '1 h', 'o-0') \gset
SELECT count(*), bool_and(g.acquired_at = :'since' AND g.expires_at <= :'since'::timestamptz + interval '1 h') AS same_since FROM generate_series(0, 49) i, LATERAL lock_transfer('round', 'o-' || i, 'o-' || i + 1, ttl => '1 h') g;
-- lifetimes session and transaction
SELECT acquired_at AS since, expires_at AS until FROM lock_acquire('session', owner => 'alice-1', lifetime => 'session') \gset
SELECT acquired_at = :'since' AS same_since, expires_at = :'until' AS same_until FROM lock_transfer('session', 'alice-1', 'bob-1');
SELECT acquired_at = :'since' AS same_since, expires_at <= :'until' AS within FROM lock_transfer('session', 'bob-1', 'alice-1', ttl => '1 h');
BEGIN;
SELECT acquired_at AS since FROM lock_acquire('transaction', owner => 'alice-1', lifetime => 'transaction') \gset
SELECT acquired_at = :'since' AS same_since, expires_at FROM lock_transfer('transaction', 'alice-1', 'bob-1');
SELECT acquired_at = :'since' AS same_since, expires_at FROM lock_transfer('transaction', 'bob-1', 'bob-1');
COMMIT;
-- without a limit acquired_at is the same
RESET atomic_lock.max_lifetime;
SELECT acquired_at AS since FROM lock_acquire('unlimited', '1 h', 'alice-1') \gset
SELECT acquired_at = :'since' AS same_since, expires_at > :'since'::timestamptz + interval '2 h' AS extended FROM lock_transfer('unlimited', 'alice-1', 'bob-1', ttl => '3 h');

-- After the limit is lowered, existing grants keep their end and are not extended.
SELECT acquired_at AS since, expires_at AS until FROM lock_acquire('lowered', '10 h', 'alice-1') \gset
SELECT expires_at AS shared_until FROM lock_acquire('lowered, shared', '10 h', 'alice-1', 'shared') \gset
SELECT acquired_at AS session_since FROM lock_acquire('lowered, session', owner => 'alice-1', lifetime => 'session') \gset
SET atomic_lock.max_lifetime = '1 h';
SELECT acquired_at = :'since' AS same_since, expires_at = :'until' AS same_until FROM lock_transfer('lowered', 'alice-1', 'bob-1');
SELECT acquired_at = :'since' AS same_since, expires_at = :'until' AS same_until FROM lock_transfer('lowered', 'bob-1', 'bob-1');
SELECT expires_at = :'shared_until' AS same_until FROM lock_transfer('lowered, shared', 'alice-1', 'bob-1');
SELECT acquired_at = :'session_since' AS same_since, expires_at FROM lock_transfer('lowered, session', 'alice-1', 'bob-1');
SET atomic_lock.max_lifetime = '1 ms';
SELECT t.wait_until(:'session_since'::timestamptz + interval '1 ms');
SELECT acquired_at = :'since' AS same_since, expires_at = :'until' AS same_until FROM lock_transfer('lowered', 'bob-1', 'alice-1');
SELECT expires_at = :'shared_until' AS same_until FROM lock_transfer('lowered, shared', 'bob-1', 'alice-1');
SELECT acquired_at = :'session_since' AS same_since, expires_at FROM lock_transfer('lowered, session', 'bob-1', 'alice-1');
-- a ttl beyond the used-up lifetime is refused, and takes nothing away
SELECT k, t.refused(format('SELECT lock_transfer(%L, ''alice-1'', ''bob-1'', ttl => ''1 ms'')', k)) AS refused, locked, CASE lifetime WHEN 'lease' THEN expires_at IN (:'until', :'shared_until') ELSE expires_at IS NULL END AS same_until
FROM unnest(ARRAY['lowered', 'lowered, shared', 'lowered, session']) k, LATERAL (SELECT FROM t.wait_until(clock_timestamp() + interval '2 ms')) w, LATERAL lock_status(k);
RESET atomic_lock.max_lifetime;
SELECT lock_release_all('alice-1') > 0 AS alice, lock_release_all('bob-1') > 0 AS bob;
DELETE FROM app_lock;

--
-- Every verb and every pair of verbs, by one owner and by two in turn, within one transaction
-- and with a commit after each: the key is never free. K is the key, O its present owner, P the
-- other owner, T a ttl.
--
CREATE TABLE t.verbs (id serial PRIMARY KEY, verb text, sql text, for_transaction boolean DEFAULT false);
INSERT INTO t.verbs (verb, sql) VALUES
	('acquire', 'SELECT lock_acquire(K, T, O)'),
	('acquire, shared', 'SELECT lock_acquire(K, T, O, ''shared'')'),
	('try to acquire', 'SELECT lock_try_acquire(K, T, O)'),
	('acquire for the session', 'SELECT lock_acquire(K, owner => O, lifetime => ''session'')'),
	('acquire for the session and a time', 'SELECT lock_acquire(K, T, O, lifetime => ''session'')'),
	('acquire for the transaction, too', 'SELECT lock_acquire(K, owner => O, mode => ''shared'', lifetime => ''transaction'')'),
	('acquire a set', 'SELECT lock_acquire_all(ARRAY[K], T, O)'),
	('try to acquire a set', 'SELECT lock_try_acquire_all(ARRAY[K], T, O)'),
	('fetch', 'SELECT lock_fetch(NULL::t.doc, ''1'', T, O, key => K)'),
	('convert to shared', 'SELECT lock_convert(K, O, ''shared'')'),
	('convert', 'SELECT lock_convert(K, O)'),
	('transfer', 'SELECT lock_transfer(K, O, P)'),
	('transfer with a ttl', 'SELECT lock_transfer(K, O, P, ttl => T)'),
	('transfer there and back', 'SELECT lock_transfer(K, O, P, ttl => T); SELECT lock_transfer(K, P, O, ttl => T)'),
	('transfer to oneself', 'SELECT lock_transfer(K, O, O)'),
	('transfer to oneself with a ttl', 'SELECT lock_transfer(K, O, O, ttl => T)'),
	('extend', 'SELECT lock_extend(K, O)'),
	('extend with a ttl', 'SELECT lock_extend(K, O, T)'),
	('try to extend', 'SELECT lock_try_extend(K, O, T)'),
	('extend all', 'SELECT lock_extend_all(O, T)'),
	('assert', 'SELECT lock_assert(K, O)'),
	('release and acquire', 'SELECT lock_release(K, O); SELECT lock_acquire(K, T, O)'),
	('release and try to acquire', 'SELECT lock_try_release(K, O); SELECT lock_try_acquire(K, T, P)'),
	('release, the other acquires', 'SELECT lock_release(K, O); SELECT lock_acquire(K, T, P)'),
	('release, the other shares', 'SELECT lock_release(K, O); SELECT lock_acquire(K, T, P, ''shared'')'),
	('release and share', 'SELECT lock_release(K, O); SELECT lock_acquire(K, T, O, ''shared'')'),
	('release and acquire for the session', 'SELECT lock_release(K, O); SELECT lock_acquire(K, owner => O, lifetime => ''session'')'),
	('release, the other shares for the session', 'SELECT lock_release(K, O); SELECT lock_acquire(K, T, P, ''shared'', lifetime => ''session'')'),
	('release and acquire a set', 'SELECT lock_release(K, O); SELECT lock_acquire_all(ARRAY[K], T, P)'),
	('release and fetch', 'SELECT lock_release(K, O); SELECT lock_fetch(NULL::t.doc, ''1'', T, P, key => K)'),
	('release all and acquire', 'SELECT lock_release_all(O); SELECT lock_acquire(K, T, O)'),
	('release and acquire twice', 'SELECT lock_release(K, O); SELECT lock_acquire(K, T, P); SELECT lock_release(K, P); SELECT lock_acquire(K, T, O)'),
	('release, acquire for the transaction, then a lease', 'SELECT lock_release(K, O); SELECT lock_acquire(K, owner => P, lifetime => ''transaction''); SELECT lock_acquire(K, T, P)'),
	('release, share for the transaction, then for the session', 'SELECT lock_release(K, O); SELECT lock_acquire(K, owner => O, mode => ''shared'', lifetime => ''transaction''); SELECT lock_acquire(K, owner => O, mode => ''shared'', lifetime => ''session'')'),
	('run out and acquire', 'SELECT lock_assert(K, O); SELECT t.run_out(K, O); SELECT lock_acquire(K, T, O)'),
	('run out, the other acquires', 'SELECT lock_assert(K, O); SELECT t.run_out(K, O); SELECT lock_acquire(K, T, P)'),
	('a savepoint rolled back', 'SELECT t.code(''SELECT lock_release(K, O); SELECT lock_acquire(K, T, P)'')'),
	('release, what follows rolled back', 'SELECT lock_release(K, O); SELECT t.code(''SELECT lock_acquire(K, T, P)''); SELECT lock_acquire(K, T, P)');
INSERT INTO t.verbs (verb, sql, for_transaction) VALUES
	('release and acquire for the transaction', 'SELECT lock_release(K, O); SELECT lock_acquire(K, owner => O, lifetime => ''transaction'')', true),
	('release, the other shares for the transaction', 'SELECT lock_release(K, O); SELECT lock_acquire(K, owner => P, mode => ''shared'', lifetime => ''transaction'')', true);
-- Runs one verb and returns its SQLSTATE.
CREATE FUNCTION t.arg(name text) RETURNS text LANGUAGE sql AS $$SELECT current_setting('t.arg_' || name)$$;
CREATE FUNCTION t.step(sql text, k text, length text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	o	text := CASE WHEN lock_is_held(k, 'bob-1') AND NOT lock_is_held(k, 'alice-1') THEN 'bob-1' ELSE 'alice-1' END;
	p	text := CASE o WHEN 'alice-1' THEN 'bob-1' ELSE 'alice-1' END;
BEGIN
	PERFORM set_config('t.arg_K', k, false), set_config('t.arg_O', o, false), set_config('t.arg_P', p, false), set_config('t.arg_T', length, false);
	sql := regexp_replace(regexp_replace(sql, '\m[KOP]\M', 't.arg($q$\&$q$)', 'g'), '\mT\M', 't.arg($q$T$q$)::interval', 'g');
	BEGIN
		EXECUTE sql;
		RETURN '00000';
	EXCEPTION WHEN OTHERS THEN
		RETURN SQLSTATE;
	END;
END
$$;
-- Allowed errors: a ttl for a transaction's holding, an exclusive request by its sharer, and a
-- grant beyond the limit. A transaction's holding does not expire.
CREATE FUNCTION t.wrong(k text, code text, since timestamptz) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	s	lock_state := lock_status(k);
	most	timestamptz := since + current_setting('atomic_lock.max_lifetime')::interval;
BEGIN
	RETURN CASE
		WHEN code NOT IN ('00000', '22023', 'LK007', 'LK008') AND NOT (code = '55P03' AND s.lifetime = 'transaction') THEN code
		WHEN NOT s.locked THEN 'lost'
		WHEN s.acquired_at > since THEN 'a new life'
		WHEN s.acquired_at < since THEN 'older than it is'
		WHEN s.lifetime <> 'transaction' AND s.expires_at IS NULL THEN 'no end'
		WHEN s.expires_at > most THEN 'beyond its end'
	END;
END
$$;
CREATE TABLE t.starts (id serial, start text, sql text);
INSERT INTO t.starts (start, sql) VALUES
	('a lease', 'SELECT lock_acquire(K, T, O)'),
	('a shared lease', 'SELECT lock_acquire(K, T, O, ''shared'')'),
	('for the session', 'SELECT lock_acquire(K, owner => O, lifetime => ''session'')'),
	('shared for the session', 'SELECT lock_acquire(K, T, O, ''shared'', lifetime => ''session'')'),
	('for the transaction', 'SELECT lock_acquire(K, owner => O, lifetime => ''transaction'')'),
	('shared for the transaction', 'SELECT lock_acquire(K, owner => O, mode => ''shared'', lifetime => ''transaction'')');
CREATE TABLE t.wrongs (mode text, start text, verb text, after text, answer text);
-- All pairs of verbs for the first kind of holding, and a quarter of the pairs for each other
-- kind
CREATE PROCEDURE t.play(mode text) LANGUAGE plpgsql AS $$
DECLARE
	commits	boolean := mode <> 'one transaction';
	r		record;
	k		text;
	since	timestamptz;
	answer	text;
	verb	text;
BEGIN
	FOR r IN SELECT s.id, s.start, s.sql, a.verb AS verb_1, a.sql AS sql_1, b.verb AS verb_2, b.sql AS sql_2, row_number() OVER () AS number
		FROM t.starts s, t.verbs a, t.verbs b
		WHERE (s.id = 1 OR (s.id + a.id + b.id) % 4 = 0) AND NOT (commits AND (s.start ~ 'transaction' OR a.for_transaction OR b.for_transaction))
		ORDER BY s.id, a.id, b.id LOOP
		k := mode || ' ' || r.number;
		verb := 'none';
		answer := nullif(t.step(r.sql, k, '30 min'), '00000');
		since := (lock_status(k)).acquired_at;
		IF commits THEN
			COMMIT;
		END IF;
		IF answer IS NULL THEN
			verb := r.verb_1;
			answer := t.wrong(k, t.step(r.sql_1, k, '40 min'), since);
		END IF;
		IF commits THEN
			COMMIT;
		END IF;
		IF answer IS NULL THEN
			verb := r.verb_2;
			answer := t.wrong(k, t.step(r.sql_2, k, '1 h'), since);
		END IF;
		IF answer IS NOT NULL THEN
			INSERT INTO t.wrongs VALUES (mode, r.start, verb, CASE verb WHEN r.verb_2 THEN r.verb_1 END, answer);
		END IF;
		COMMIT;
		PERFORM lock_release_all('alice-1'), lock_release_all('bob-1');
		-- Released rows would slow down each search by owner.
		DELETE FROM app_lock;
		COMMIT;
	END LOOP;
END
$$;
SET atomic_lock.max_lifetime = '1 h';
CALL t.play('one transaction');
CALL t.play('a commit after each');
SELECT mode, verb, answer, count(*), min(start || coalesce(', ' || after, '')) AS example FROM t.wrongs GROUP BY mode, verb, answer ORDER BY mode, verb, answer;
DELETE FROM app_lock;

--
-- Repeated until the lifetime is used up: the key is not kept any longer
--
CREATE PROCEDURE t.keep(k text, start text, commits boolean, OUT steps int, OUT answer text) LANGUAGE plpgsql AS $$
DECLARE
	most	interval := current_setting('atomic_lock.max_lifetime');
	since	timestamptz;
	s		lock_state;
	verbs	text[] := ARRAY(SELECT sql FROM t.verbs WHERE NOT for_transaction ORDER BY id);
	before	timestamptz;
BEGIN
	steps := 0;
	PERFORM t.step(start, k, '1 ms');
	-- at first the lease may end at any time
	PERFORM t.step('SELECT lock_acquire(K, T, O, ''shared'')', k, most::text);
	since := coalesce((lock_status(k)).acquired_at, clock_timestamp() - most);
	LOOP
		IF commits THEN
			COMMIT;
		END IF;
		steps := steps + 1;
		before := clock_timestamp();
		PERFORM t.step(verbs[1 + (steps * 7) % cardinality(verbs)], k, most::text);
		s := lock_status(k);
		answer := CASE
			WHEN s.locked AND s.acquired_at < since THEN 'older than it is'
			WHEN s.locked AND s.acquired_at > since AND NOT commits THEN 'a new life'
			WHEN s.locked AND s.acquired_at > since AND s.acquired_at < since + most THEN 'a new life before the end of the first'
			WHEN s.locked AND s.expires_at > s.acquired_at + most THEN 'beyond its end'
			WHEN NOT s.locked AND clock_timestamp() < since + most - interval '5 ms' THEN 'lost'
		END;
		EXIT WHEN answer IS NOT NULL OR before > since + most * 1.2;
	END LOOP;
	IF NOT commits AND s.locked AND s.lifetime <> 'transaction' THEN
		answer := coalesce(answer, 'still held');
	END IF;
	COMMIT;
	PERFORM lock_release_all('alice-1'), lock_release_all('bob-1');
END
$$;
SET atomic_lock.max_lifetime = '200 ms';
CREATE PROCEDURE t.keep_all(commits boolean) LANGUAGE plpgsql AS $$
DECLARE
	s		record;
	steps	int;
	answer	text;
BEGIN
	FOR s IN SELECT * FROM t.starts WHERE start !~ 'transaction' ORDER BY id LOOP
		CALL t.keep('keep ' || s.id || commits, s.sql, commits, steps, answer);
		RAISE WARNING '%, %: %', s.start, CASE WHEN commits THEN 'a commit after each' ELSE 'one transaction' END, coalesce(answer, 'kept within its time');
	END LOOP;
END
$$;
CALL t.keep_all(false);
CALL t.keep_all(true);
DELETE FROM app_lock;

--
-- No lifetime left
--
CREATE FUNCTION t.ask(k text, o text) RETURNS TABLE (call text, answer text) LANGUAGE sql AS $$
	SELECT c, t.code(format('SELECT ' || c, k, o)) FROM unnest(ARRAY[
		'lock_acquire(%1$L, owner => %2$L, ttl => ''300 ms'')', 'lock_acquire(%1$L, owner => %2$L, mode => ''shared'', ttl => ''300 ms'')', 'lock_acquire(%1$L, owner => %2$L, lifetime => ''session'')', 'lock_acquire(%1$L, owner => %2$L, ttl => ''1 ms'', lifetime => ''session'')',
		'lock_acquire_all(ARRAY[%1$L], owner => %2$L, ttl => ''300 ms'')', 'lock_fetch(NULL::t.doc, ''1'', owner => %2$L, ttl => ''300 ms'', key => %1$L)', 'lock_acquire(%1$L, owner => %2$L, wait => ''10 ms'', ttl => ''300 ms'')']) c
$$;
CREATE FUNCTION t.try(k text, o text) RETURNS text LANGUAGE sql AS $$
	SELECT concat_ws(' ', (lock_try_acquire(k, '300 ms', o)).status, (lock_try_acquire(k, '300 ms', o, 'shared')).status, (lock_try_acquire(k, owner => o, lifetime => 'session')).status, (SELECT status FROM lock_try_acquire_all(ARRAY[k], '300 ms', o)))
$$;
RESET atomic_lock.max_lifetime;
SELECT lock_acquire(k, '1 h', 'alice-1', m) IS NOT NULL AS acquired FROM (VALUES ('released', 'exclusive'), ('released, shared', 'shared'), ('ran out', 'exclusive'), ('ran out, shared', 'shared')) v(k, m);
SELECT count(*) FROM lock_acquire('released, session', owner => 'alice-1', lifetime => 'session');
SELECT max(acquired_at) AS since FROM app_lock \gset
BEGIN;
SELECT lock_release('released', 'alice-1'), lock_release('released, shared', 'alice-1'), lock_release('released, session', 'alice-1');
SELECT lock_assert('ran out', 'alice-1') > 0 AS pinned, lock_assert('ran out, shared', 'alice-1') > 0 AS pinned;
SELECT acquired_at AS tx_since FROM lock_acquire('transaction', owner => 'alice-1', lifetime => 'transaction') \gset
SELECT count(*) FROM lock_acquire('transaction, shared', owner => 'alice-1', mode => 'shared', lifetime => 'transaction');
SELECT count(*) FROM lock_acquire('new', '1 h', 'alice-1');
SELECT count(t.run_out(k, 'alice-1')) FROM unnest(ARRAY['ran out', 'ran out, shared', 'new']) k;
SET atomic_lock.max_lifetime = '300 ms';
SELECT t.wait_until(clock_timestamp() + interval '300 ms');
SELECT t.fingerprint() AS before \gset
SELECT k, o, string_agg(DISTINCT answer, ' ') AS raised, t.try(k, o) AS answered, count(*) AS calls
FROM unnest(ARRAY['released', 'released, shared', 'released, session', 'ran out', 'ran out, shared', 'new']) WITH ORDINALITY u(k, i), unnest(ARRAY['alice-1', 'bob-1']) o, t.ask(k, o) GROUP BY i, k, o ORDER BY i, o;
-- a transaction's holding is not replaced by a lease that would have ended already, and
-- continues; lock_fetch leaves it unchanged
SELECT k, string_agg(DISTINCT answer, ' ') AS raised, t.try(k, 'alice-1') AS answered, t.code(format('SELECT lock_assert(%L, ''alice-1'')', k)) AS still_held, lifetime
FROM unnest(ARRAY['transaction']) k, t.ask(k, 'alice-1'), lock_status(k) GROUP BY 1, 5;
SELECT t.code($$SELECT lock_acquire('transaction, shared', '300 ms', 'alice-1', 'shared')$$), (lock_try_acquire('transaction, shared', '300 ms', 'alice-1')).status, mode, lifetime FROM lock_status('transaction, shared');
SELECT t.raises($$SELECT lock_acquire('released', '300 ms', 'alice-1')$$) ~ '^LK008: ' AS raised;
SELECT t.fingerprint() = :'before' AS unchanged;
-- the transaction may still hold the key with lifetime transaction
SELECT status, acquired_at <= :'since' AS same_since FROM lock_acquire('released', owner => 'bob-1', lifetime => 'transaction');
COMMIT;
-- a new life in the next transaction, since others could have had the key
SELECT k, status, acquired_at > :'since' AS since_now, expires_at <= acquired_at + interval '300 ms' AS within
FROM unnest(ARRAY['released', 'released, shared', 'released, session', 'ran out', 'ran out, shared', 'new', 'transaction', 'transaction, shared']) WITH ORDINALITY u(k, i), LATERAL lock_acquire(k, '300 ms', 'alice-1') ORDER BY i;
-- released in one transaction, acquired again in the next
SET atomic_lock.max_lifetime = '1 h';
SELECT acquired_at AS since FROM lock_acquire('next', '1 h', 'alice-1') \gset
BEGIN;
SELECT lock_release('next', 'alice-1');
COMMIT;
SELECT acquired_at > :'since' AS since_now FROM lock_acquire('next', '1 h', 'alice-1');
-- a grant that is rolled back does not count
SELECT acquired_at AS since FROM lock_status('next') \gset
BEGIN;
SAVEPOINT a;
SELECT lock_release('next', 'alice-1');
SELECT acquired_at = :'since' AS same_since FROM lock_acquire('next', '1 h', 'bob-1');
ROLLBACK TO a;
SELECT acquired_at = :'since' AS same_since, lock_is_held('next', 'alice-1') AS alice FROM lock_status('next');
ROLLBACK;
-- a session's holding that is older than the limit cannot become a lease,
RESET atomic_lock.max_lifetime;
SELECT acquired_at AS since FROM lock_acquire('session', owner => 'alice-1', lifetime => 'session') \gset
SELECT t.wait_until(:'since'::timestamptz + interval '20 ms');
SET atomic_lock.max_lifetime = '20 ms';
SELECT t.fingerprint() AS before \gset
SELECT t.raises($$SELECT lock_acquire('session', '10 ms', 'alice-1')$$) ~ '^LK008: ' AS raised, (lock_try_acquire('session', '10 ms', 'alice-1')).status, t.code($$SELECT lock_extend('session', 'alice-1', '10 ms')$$), lock_try_extend('session', 'alice-1', '10 ms');
SELECT t.fingerprint() = :'before' AS unchanged, locked, lifetime, expires_at, acquired_at = :'since' AS same_since FROM lock_status('session');
-- but continues as a session's holding
SELECT status, expires_at, acquired_at = :'since' AS same_since FROM lock_acquire('session', owner => 'alice-1', lifetime => 'session');
SELECT lock_release('session', 'alice-1');
RESET atomic_lock.max_lifetime;

-- neither a sweep of the pinned lease nor another sharer that joined earlier begins a new life
SELECT acquired_at AS since FROM lock_acquire('swept', '1 h', 'alice-1') \gset
BEGIN;
SELECT lock_assert('swept', 'alice-1') > 0 AS pinned, t.run_out('swept', 'alice-1');
SET atomic_lock.max_lifetime = '500 ms';
SELECT t.wait_until(:'since'::timestamptz + interval '501 ms');
SELECT lock_sweep() >= 0 AS swept;
SELECT t.code($$SELECT lock_acquire('swept', '500 ms', 'alice-1')$$), t.code($$SELECT lock_acquire('swept', '500 ms', 'bob-1')$$);
COMMIT;
SELECT status FROM lock_acquire('swept', '500 ms', 'alice-1');
BEGIN;
SELECT acquired_at AS since FROM lock_acquire('taken', owner => 'alice-1', lifetime => 'transaction') \gset
SELECT t.wait_until(:'since'::timestamptz + interval '501 ms');
SELECT mode FROM lock_convert('taken', 'alice-1', 'shared');
SELECT t.code($$SELECT lock_acquire('taken', '500 ms', 'bob-1', 'shared')$$);
COMMIT;
RESET atomic_lock.max_lifetime;

--
-- Force begins a new life, and is audited
--
SET atomic_lock.max_lifetime = '20 ms';
BEGIN;
SELECT acquired_at AS since FROM lock_acquire('force', owner => 'alice-1', lifetime => 'transaction') \gset
SELECT t.wait_until(:'since'::timestamptz + interval '20 ms');
SELECT force_release('force', 'test');
SELECT acquired_at > :'since' AS since_now FROM lock_acquire('force', '20 ms', 'alice-1');
COMMIT;
SELECT t.expire('force');
RESET atomic_lock.max_lifetime;
SELECT acquired_at AS since FROM lock_acquire('force', '1 h', 'bob-1') \gset
SET atomic_lock.max_lifetime = '1 h';
SELECT acquired_at > :'since' AS since_now, expires_at = acquired_at + interval '1 h' AS an_hour FROM lock_steal('force', 'dba-1', 'test', '1 h');
BEGIN;
SELECT acquired_at AS since FROM lock_acquire('steal', '1 h', 'alice-1') \gset
SELECT lock_release('steal', 'alice-1');
SELECT acquired_at > :'since' AS since_now FROM lock_steal('steal', 'dba-1', 'test', '1 h');
COMMIT;
SELECT action, count(*) FROM lock_audit GROUP BY 1 ORDER BY 1;
