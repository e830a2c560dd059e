\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- lock_assert and lock_assert_fence: confirm a holding and pin it
--
-- Properties: both judge by the state at the moment of the call, in each mode and lifetime. A
-- successful call pins the lease to the end of the (sub)transaction, whatever the clock says,
-- unless that transaction itself ends the lease. Nothing is written, so read-only transactions
-- may call them. A refusal leaves no claim. iso_pin shows what other sessions can do meanwhile.
--
-- Turns red when: a pin outlives its savepoint, or ends with the lease's time; a release does
-- not clear the cached answer; a transaction id is assigned.

CREATE FUNCTION t.assert(k text, o text) RETURNS text LANGUAGE sql AS $$
	SELECT t.code(format('SELECT lock_assert(%L, %L)', k, o))
$$;
-- asks as the owner of that grant, if the table has it
CREATE FUNCTION t.fence(k text, token bigint) RETURNS text LANGUAGE sql AS $$
	SELECT t.code(format('SELECT lock_assert_fence(%L, %s, %L)', k, token, coalesce((SELECT owner FROM app_lock WHERE key = k AND fencing_token = token), 'alice-1')))
$$;

--
-- The answer is the fencing token of the holding
--
SELECT fencing_token AS token FROM lock_acquire('k', '1 hour', 'alice-1', holder => 'Alice') \gset
SELECT lock_assert('k', 'alice-1') = :token AS by_position, lock_assert(key => 'k', owner => 'alice-1') = :token AS by_name;
SET atomic_lock.owner = 'alice-1';
SELECT lock_assert('k') = :token AS by_setting, lock_assert('k', NULL) = :token AS null_is_the_default;
RESET atomic_lock.owner;
SELECT lock_assert_fence('k', :token, 'alice-1') IS NOT NULL AS by_position, lock_assert_fence(key => 'k', fencing_token => :token, owner => 'alice-1') IS NOT NULL AS by_name;
-- in each lifetime and mode
SELECT l, m, g.status, lock_assert(l || m, 'alice-1') = g.fencing_token AS token, t.fence(l || m, g.fencing_token) AS fence, t.assert(l || m, 'bob-1') AS another
FROM unnest(ARRAY['lease', 'session', 'transaction']) l, unnest(ARRAY['exclusive', 'shared']) m, LATERAL lock_acquire(l || m, owner => 'alice-1', mode => m, lifetime => l) g;
-- each sharer
SELECT g.status, lock_assert('shared', o) = g.fencing_token AS token FROM unnest(ARRAY['alice-1', 'bob-1']) o, LATERAL lock_acquire('shared', '1 hour', o, 'shared') g;
-- reacquiring and extending keep the token; converting and transferring replace it
SELECT (lock_acquire('k', '2 hours', 'alice-1')).status, lock_extend('k', 'alice-1') IS NOT NULL AS extended, lock_assert('k', 'alice-1') = :token AS same_token;
SELECT lock_assert('k', 'alice-1') = g.fencing_token AS token, g.fencing_token > :token AS token_rises FROM lock_convert('k', 'alice-1', 'shared') g;
SELECT lock_assert('k', 'bob-1') = g.fencing_token AS token, t.assert('k', 'alice-1') AS former FROM lock_transfer('k', 'alice-1', 'bob-1', 'Bob') g;
SELECT lock_assert('k', 'dba-1') = g.fencing_token AS token, t.assert('k', 'bob-1') AS former FROM lock_steal('k', 'dba-1', 'test', '1 hour', 'Eve') g;

--
-- Refusals say what there is instead, and show no owner
--
CREATE FUNCTION t.situation(k text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF k <> 'never' THEN
		PERFORM lock_acquire(k, '1 hour', 'secret-1', holder => 'Alice');
	END IF;
	CASE k
		WHEN 'released' THEN PERFORM lock_release(k, 'secret-1');
		WHEN 'released, and Bob' THEN PERFORM lock_release(k, 'secret-1'), lock_acquire(k, '1 hour', 'secret-2', holder => 'Bob');
		WHEN 'expired' THEN PERFORM t.run_out(k, 'secret-1');
		WHEN 'expired, and Bob' THEN PERFORM t.run_out(k, 'secret-1'); PERFORM lock_acquire(k, '1 hour', 'secret-2', holder => 'Bob');
		WHEN 'forced' THEN PERFORM force_release(k, 'test');
		WHEN 'stolen' THEN PERFORM lock_steal(k, 'secret-2', 'test', holder => 'Eve');
		WHEN 'handed over' THEN PERFORM lock_transfer(k, 'secret-1', 'secret-2', 'Bob');
		WHEN 'swept' THEN PERFORM t.run_out(k, 'secret-1'); PERFORM lock_sweep();
		WHEN 'shared by two' THEN PERFORM lock_transfer(k, 'secret-1', 'secret-2', 'Bob'), lock_convert(k, 'secret-2', 'shared'), lock_acquire(k, '2 hours', 'secret-3', 'shared', holder => 'Carol');
		ELSE NULL;
	END CASE;
END
$$;
CREATE TABLE t.situations (id serial, key text);
INSERT INTO t.situations (key) VALUES ('swept'), ('never'), ('released'), ('released, and Bob'), ('expired'), ('expired, and Bob'), ('forced'), ('stolen'), ('handed over'), ('shared by two'), (E'nasty\n\x07');
SELECT t.situation(key) FROM t.situations ORDER BY id \g /dev/null
SELECT t.assert(E'nasty\n\x07', 'secret-1') AS has_it, t.raises($$SELECT lock_assert(E'nasty\n\x07', 'secret-9')$$);
DELETE FROM t.situations WHERE key ~ 'nasty';
SELECT fencing_token AS newest FROM app_lock ORDER BY 1 DESC LIMIT 1 \gset
SELECT key, t.raises(format('SELECT lock_assert(%L, ''secret-1'')', key)) AS answer FROM t.situations ORDER BY id;
-- lock_assert_fence: with the token of the former grant, of the newest ended one, and of none
SELECT s.key, left(a, 5) AS code, a ~ '[0-9]{6,}' AS tells_a_token FROM t.situations s, t.raises(format('SELECT lock_assert_fence(%L, 1, ''secret-1'')', s.key)) a ORDER BY id;
SELECT s.key, min(t.fence(s.key, l.fencing_token)) FILTER (WHERE l.fencing_token IS NOT NULL) AS newest, string_agg(DISTINCT t.fence(s.key, x), ' ') AS others
FROM t.situations s LEFT JOIN LATERAL (SELECT max(fencing_token) AS fencing_token FROM app_lock WHERE key = s.key) l ON true,
	unnest(ARRAY[0, -1, l.fencing_token - 2, l.fencing_token + 1, :newest + 1, 9223372036854775807, -9223372036854775808]) x
WHERE x IS NOT NULL
GROUP BY s.id, 1 ORDER BY s.id;
SELECT key FROM t.situations, unnest(ARRAY['lock_assert(%L, ''secret-9'')', 'lock_assert_fence(%L, 1, ''secret-9'')']) call WHERE t.raises(format('SELECT ' || call, key)) ~ 'secret';
-- each sharer's token is accepted; tokens of grants before the sharing are not
SELECT fencing_token AS writer FROM lock_acquire('fence', '1 hour', 'alice-1') \gset
SELECT fencing_token AS alice FROM lock_convert('fence', 'alice-1', 'shared') \gset
SELECT t.fence('fence', :alice) AS alice, t.fence('fence', :writer) AS writer;
SELECT fencing_token AS bob FROM lock_acquire('fence', '1 hour', 'bob-1', 'shared') \gset
SELECT t.fence('fence', :alice) AS alice, t.fence('fence', :bob) AS bob, t.fence('fence', :writer) AS writer, t.fence('fence', :bob + 1) AS later;
SELECT lock_release('fence', 'bob-1'), t.fence('fence', :alice) AS alice, t.fence('fence', :bob) AS bob;
SELECT fencing_token AS newest FROM lock_convert('fence', 'alice-1') \gset
SELECT t.fence('fence', :newest) AS newest, t.fence('fence', :alice) AS alice, t.fence('fence', :bob) AS bob;
-- the owner must match, too; secrecy.sql has more
SET atomic_lock.owner = 'zoe-1';
SELECT t.code(format('SELECT lock_assert_fence(''shared'', %s)', fencing_token)) FROM app_lock WHERE key = 'shared' ORDER BY fencing_token DESC LIMIT 1;
RESET atomic_lock.owner;

-- Bad arguments are refused whatever the state of the lock
SELECT a, split_part(t.raises('SELECT lock_assert(' || a || ')'), E'\n', 1) AS answer
FROM unnest(ARRAY['NULL, ''o''', '''''', '''shared''', '''shared'', NULL', '''shared'', ''''', '''shared'', repeat(''x'', 256)', 'repeat(''x'', 1025), ''o''']) WITH ORDINALITY u(a, i) ORDER BY i;
SELECT a, split_part(t.raises('SELECT lock_assert_fence(' || a || ')'), E'\n', 1) AS answer
FROM unnest(ARRAY['NULL, 1, ''o''', '''shared'', NULL, ''o''', ''''', 1, ''o''', 'repeat(''x'', 1025), 1, ''o''', '''shared'', 1', '''shared'', 1, NULL', '''shared'', 1, ''''', '''shared'', 1, repeat(''x'', 256)']) WITH ORDINALITY u(a, i) ORDER BY i;
-- tokens that do not exist
SELECT f, t.code(format('SELECT lock_assert_fence(''k'', %s, ''dba-1'')', f)) AS code FROM unnest(ARRAY['0', '-1', '9223372036854775807', '-9223372036854775808']) f;

--
-- Nothing is written
--
SELECT fencing_token AS token FROM lock_acquire('k', '1 hour', 'dba-1') \gset
SELECT t.fingerprint() AS before \gset
BEGIN READ ONLY;
SELECT lock_assert('k', 'dba-1') = :token AS token, lock_assert_fence('k', :token, 'dba-1') IS NOT NULL AS fence, lock_assert('shared', 'bob-1') > 0 AS shared;
SELECT claims > 0 AS pinned, no_transaction_id FROM t.left_open();
COMMIT;
BEGIN;
SAVEPOINT a;
SELECT lock_assert('k', 'dba-1') = :token AS token;
SAVEPOINT b;
SELECT lock_assert_fence('k', :token, 'dba-1') IS NOT NULL AS fence;
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_transaction_id;
COMMIT;
-- a refusal writes nothing either, and leaves no claim
BEGIN READ ONLY;
SELECT t.assert(key, 'secret-1'), t.fence(key, 1), count(*) FROM t.situations GROUP BY 1, 2;
DO $$
BEGIN
	PERFORM lock_assert('k', 'alice-1');
EXCEPTION WHEN SQLSTATE 'LK006' THEN
	NULL;
END
$$;
SELECT * FROM t.left_open();
COMMIT;
SELECT t.fingerprint() = :'before' AS unchanged;
-- for each row of a statement, any number of times
SELECT count(*), count(DISTINCT lock_assert('k', 'dba-1')) FROM generate_series(1, 10000);

-- The pin
--
-- it outlives the lease, and ends with the transaction
SELECT status FROM lock_acquire('pin', '1 hour', 'alice-1', holder => 'Alice');
BEGIN;
SELECT lock_assert('pin', 'alice-1') AS token \gset
SELECT t.run_out('pin', 'alice-1');
SELECT lock_assert('pin', 'alice-1') = :token AS still, t.fence('pin', :token) AS fence;
COMMIT;
SELECT t.assert('pin', 'alice-1'), t.fence('pin', :token) AS fence;
-- the pin of lock_assert_fence does so, too, and that of a shared holding
SELECT fencing_token AS token FROM lock_acquire('pin', '1 hour', 'alice-1', 'shared') \gset
BEGIN;
SELECT lock_assert_fence('pin', :token, 'alice-1') IS NOT NULL AS pinned;
SELECT t.run_out('pin', 'alice-1');
SELECT t.fence('pin', :token) AS still;
ROLLBACK;
BEGIN;
SELECT lock_assert('pin', 'alice-1') = :token AS pinned;
SELECT t.run_out('pin', 'alice-1');
SELECT lock_assert('pin', 'alice-1') = :token AS still;
ROLLBACK;
SELECT lock_release('pin', 'alice-1');
-- a refused owner is refused again
SELECT status FROM lock_acquire('pin', '1 hour', 'alice-1');
BEGIN;
SELECT t.run_out('pin', 'alice-1');
SELECT t.assert('pin', 'alice-1'), t.assert('pin', 'alice-1');
ROLLBACK;
-- the pin of one owner is no use to another
BEGIN;
SELECT lock_assert('pin', 'alice-1') > 0 AS pinned, t.assert('pin', 'bob-1') AS bob;
ROLLBACK;

-- Savepoints: a pin is gone when its savepoint is rolled back, and kept when that is released
BEGIN;
SELECT lock_assert('pin', 'alice-1') > 0 AS pinned;
SAVEPOINT a;
SELECT lock_assert('pin', 'alice-1') > 0 AS again;
ROLLBACK TO a;
SELECT t.run_out('pin', 'alice-1');
SELECT t.assert('pin', 'alice-1') AS pinned_before;
ROLLBACK;
BEGIN;
SAVEPOINT a;
SELECT lock_assert('pin', 'alice-1') > 0 AS pinned;
ROLLBACK TO a;
SELECT claims FROM t.left_open();
SELECT t.run_out('pin', 'alice-1');
SELECT t.assert('pin', 'alice-1') AS pinned_within;
ROLLBACK;
BEGIN;
SAVEPOINT a;
SAVEPOINT b;
SELECT lock_assert('pin', 'alice-1') > 0 AS pinned;
RELEASE b;
SELECT t.run_out('pin', 'alice-1');
SELECT t.assert('pin', 'alice-1') AS pinned_within_released;
ROLLBACK TO a;
SELECT claims FROM t.left_open();
SELECT t.run_out('pin', 'alice-1');
SELECT t.assert('pin', 'alice-1') AS undone_further_out;
ROLLBACK;
-- two pins, the first of them rolled back
BEGIN;
SAVEPOINT a;
SELECT lock_assert('pin', 'alice-1') > 0 AS pinned;
ROLLBACK TO a;
SELECT lock_assert('pin', 'alice-1') > 0 AS pinned;
RELEASE a;
SELECT t.run_out('pin', 'alice-1');
SELECT t.assert('pin', 'alice-1') AS pinned_after;
ROLLBACK;
-- in a savepoint, for a key that the transaction had acquired before
BEGIN;
SELECT status FROM lock_acquire('new pin', '1 hour', 'alice-1');
SAVEPOINT a;
SELECT lock_assert('new pin', 'alice-1') > 0 AS pinned;
RELEASE a;
SELECT t.run_out('new pin', 'alice-1');
SELECT t.assert('new pin', 'alice-1') AS pinned_within_released;
ROLLBACK;
-- a block that fails
BEGIN;
DO $$
BEGIN
	PERFORM lock_assert('pin', 'alice-1');
	RAISE 'out';
EXCEPTION WHEN raise_exception THEN
	PERFORM t.run_out('pin', 'alice-1');
	RAISE WARNING 'pinned in the block: %', t.assert('pin', 'alice-1');
END
$$;
ROLLBACK;
-- rolling back to the savepoint closes a cursor, and ends the pin that the cursor made
BEGIN;
SAVEPOINT a;
DECLARE c CURSOR FOR SELECT lock_assert('pin', 'alice-1') > 0 AS pinned FROM generate_series(1, 3);
FETCH 1 FROM c;
ROLLBACK TO a;
SELECT t.run_out('pin', 'alice-1');
SELECT t.assert('pin', 'alice-1') AS pinned_by_a_cursor;
ROLLBACK;

-- The transaction itself ends the pinned lease, or changes it
BEGIN;
SELECT lock_assert('pin', 'alice-1') AS token \gset
SAVEPOINT a;
SELECT lock_release('pin', 'alice-1'), t.assert('pin', 'alice-1') AS released, t.fence('pin', :token) AS fence;
SELECT status, lock_assert('pin', 'alice-1') = fencing_token AS token, t.fence('pin', :token) AS fence FROM lock_acquire('pin', '1 hour', 'alice-1');
ROLLBACK TO a;
SELECT lock_assert('pin', 'alice-1') = :token AS release_undone, t.fence('pin', :token) AS fence;
SELECT (lock_transfer('pin', 'alice-1', 'bob-1')).owner, t.assert('pin', 'alice-1') AS handed_over, t.assert('pin', 'bob-1') AS to_bob, t.fence('pin', :token) AS fence;
ROLLBACK TO a;
SELECT lock_assert('pin', 'alice-1') = :token AS transfer_undone, t.assert('pin', 'bob-1') AS bob;
SELECT force_release('pin', 'test'), t.assert('pin', 'alice-1') AS forced, t.fence('pin', :token) AS fence;
ROLLBACK TO a;
SELECT lock_assert('pin', 'alice-1') = :token AS force_undone;
SELECT (lock_steal('pin', 'dba-1', 'test')).owner, t.assert('pin', 'alice-1') AS stolen, t.assert('pin', 'dba-1') AS by_the_dba;
ROLLBACK TO a;
SELECT lock_assert('pin', 'alice-1') = :token AS steal_undone;
SELECT mode, lock_assert('pin', 'alice-1') = fencing_token AS token_of_the_conversion, t.fence('pin', :token) AS fence FROM lock_convert('pin', 'alice-1', 'shared');
ROLLBACK TO a;
SELECT lock_assert('pin', 'alice-1') = :token AS conversion_undone, mode FROM lock_status('pin');
SELECT lock_release_all('alice-1') > 0 AS released, t.assert('pin', 'alice-1');
ROLLBACK TO a;
SELECT t.run_out('pin', 'alice-1');
SELECT lock_assert('pin', 'alice-1') = :token AS still_pinned;
COMMIT;
-- expired, then acquired again by the same transaction: a new grant
SELECT status FROM lock_acquire('pin', '1 hour', 'alice-1');
BEGIN;
SELECT lock_assert('pin', 'alice-1') AS token \gset
SELECT t.run_out('pin', 'alice-1');
SAVEPOINT a;
SELECT status, fencing_token > :token AS token_rises, lock_assert('pin', 'alice-1') = fencing_token AS token, t.fence('pin', :token) AS fence FROM lock_acquire('pin', '1 hour', 'alice-1');
ROLLBACK TO a;
SELECT acquired AS bob, (t.assert('pin', 'alice-1') = '00000') AS alice FROM lock_try_acquire('pin', '1 hour', 'bob-1');
ROLLBACK TO a;
SELECT lock_assert('pin', 'alice-1') = :token AS undone;
ROLLBACK;
-- lifetime session
BEGIN;
SELECT status FROM lock_acquire('session', owner => 'alice-1', lifetime => 'session');
SELECT lock_assert('session', 'alice-1') > 0 AS pinned;
COMMIT;
SELECT t.assert('session', 'alice-1');
DISCARD ALL;
SET client_min_messages = warning;
SELECT t.assert('session', 'alice-1');
-- lifetime transaction needs no pin, and ends with its savepoint
BEGIN;
SAVEPOINT a;
SELECT lock_assert('transaction', 'alice-1') = fencing_token AS token FROM lock_acquire('transaction', owner => 'alice-1', lifetime => 'transaction');
ROLLBACK TO a;
SELECT t.assert('transaction', 'alice-1');
SELECT status, lock_assert('transaction', 'alice-1') = fencing_token AS token, lock_release('transaction', 'alice-1') AS released FROM lock_acquire('transaction', owner => 'alice-1', lifetime => 'transaction');
SELECT t.assert('transaction', 'alice-1');
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_transaction_id;
COMMIT;

-- Each pinned key counts once towards max_claims_per_transaction.
SET atomic_lock.max_claims_per_transaction = 2;
SELECT count(*) FROM generate_series(1, 2) i, LATERAL lock_acquire('max:' || i, '1 hour', 'alice-1');
SELECT status FROM lock_acquire('max:3', '1 hour', 'alice-1');
BEGIN;
SELECT count(lock_assert('max:' || 1 + i % 2, 'alice-1')) FROM generate_series(1, 20) i;
SELECT t.raises($$SELECT lock_assert('max:3', 'alice-1')$$);
SELECT t.fence('max:3', fencing_token) FROM app_lock WHERE key = 'max:3';
COMMIT;
RESET atomic_lock.max_claims_per_transaction;

-- A prepared transaction keeps its pins until it is committed or rolled back.
SELECT current_setting('max_prepared_transactions')::int > 0 AS twophase \gset
\if :twophase
SELECT lock_sweep() > 0 AS swept, status FROM lock_acquire('2pc', '1 hour', 'alice-1', holder => 'Alice');
BEGIN;
SELECT lock_assert('2pc', 'alice-1') AS token \gset
PREPARE TRANSACTION 'regress_al_assert';
SELECT t.run_out('2pc', 'alice-1');
SET lock_timeout = '20 ms';
SELECT status FROM lock_try_acquire('2pc', '1 hour', 'bob-1');
SELECT lock_sweep(), t.code($$SELECT force_release('2pc', 'test')$$) AS force, t.code($$SELECT lock_steal('2pc', 'dba-1', 'test')$$) AS steal, t.assert('2pc', 'alice-1') AS alice;
COMMIT PREPARED 'regress_al_assert';
SELECT t.assert('2pc', 'alice-1') AS alice, status FROM lock_try_acquire('2pc', '1 hour', 'bob-1');
BEGIN;
SELECT lock_assert('2pc', 'bob-1') > 0 AS pinned;
PREPARE TRANSACTION 'regress_al_assert';
SELECT lock_assert('2pc', 'bob-1') > 0 AS pins_are_shared, t.code($$SELECT lock_release('2pc', 'bob-1')$$) AS release;
ROLLBACK PREPARED 'regress_al_assert';
SELECT lock_release('2pc', 'bob-1');
RESET lock_timeout;
\else
\echo max_prepared_transactions is 0
\endif

-- At every isolation level, with an old snapshot
CREATE FUNCTION t.story(k text DEFAULT 'level') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text := concat_ws(' ', current_setting('transaction_isolation'), t.assert(k, 'alice-1'));
BEGIN
	FOR i IN 1..2 LOOP
		PERFORM lock_acquire(k, '1 hour', 'alice-1');
		answer := concat_ws(' ', answer, t.assert(k, 'alice-1'), t.assert(k, 'bob-1'), lock_assert(k, 'alice-1') = (lock_status(k)).fencing_token, t.run_out(k, 'alice-1'), t.assert(k, 'alice-1'),
			(lock_acquire(k, '1 hour', 'alice-1')).status, lock_release(k, 'alice-1'), t.assert(k, 'alice-1'));
	END LOOP;
	RETURN answer;
END
$$;
:at_every_level
