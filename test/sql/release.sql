\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- lock_release and lock_try_release: who may end a lease, and the answers
--
-- Properties: only the owner of a live lease ends it. Every other case has its own status or
-- SQLSTATE: held by another, already released, expired, not found. A refusal writes nothing. A
-- released row keeps its size, so that updates stay on the page.
--
-- Turns red when: another owner can release; a case gets another answer; a refusal writes; a
-- released row changes its size.
--
SELECT acquired FROM lock_acquire('k', '10 min', 'alice-1', holder => 'Alice');

-- The lease of another owner
SELECT t.fingerprint() AS before \gset
BEGIN;
SELECT lock_try_release('k', 'bob-1');
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_transaction_id;
COMMIT;
SELECT t.raises($$SELECT lock_release('k', 'bob-1')$$);
SELECT t.raises($$SELECT lock_release('k', 'ALICE-1')$$) ~ '^LK003' AS refused;
SELECT t.fingerprint() = :'before' AS unchanged;

-- The caller's own, and again
SELECT lock_release('k', 'alice-1');
SELECT locked FROM lock_status('k');
SELECT t.fingerprint() AS before \gset
SELECT lock_try_release('k', 'alice-1');
SELECT t.raises($$SELECT lock_release('k', 'alice-1')$$);
-- Released before by another owner: not found
SELECT lock_try_release('k', 'bob-1');
SELECT t.raises($$SELECT lock_release('k', 'bob-1')$$);
SELECT t.fingerprint() = :'before' AS unchanged;

-- Never acquired
SELECT lock_try_release('never', 'alice-1');
SELECT t.raises($$SELECT lock_release('never', 'alice-1')$$);

-- Expired: the caller's own, and another owner's
SELECT acquired FROM lock_acquire('short', '20 ms', 'alice-1');
SELECT t.expire('short');
SELECT t.fingerprint() AS before \gset
SELECT lock_try_release('short', 'alice-1');
SELECT t.raises($$SELECT lock_release('short', 'alice-1')$$);
SELECT lock_try_release('short', 'bob-1');
SELECT t.raises($$SELECT lock_release('short', 'bob-1')$$);
SELECT t.fingerprint() = :'before' AS unchanged;

-- Expired, and acquired by another owner since
SELECT acquired FROM lock_acquire('short', '10 min', 'bob-1', holder => 'Bob');
SELECT lock_try_release('short', 'alice-1');
SELECT t.raises($$SELECT lock_release('short', 'alice-1')$$);
-- and released by that owner: nothing is known of the former owner
SELECT lock_try_release('short', 'bob-1');
SELECT lock_try_release('short', 'alice-1');
SELECT lock_try_release('short', 'bob-1');

-- The error as an application gets it
\set VERBOSITY sqlstate
SELECT lock_release('never', 'alice-1');
SELECT lock_release('k', 'alice-1');
SELECT acquired FROM lock_acquire('k', '10 min', 'bob-1', holder => 'Bob');
SELECT lock_release('k', 'alice-1');
SELECT acquired FROM lock_acquire('expired', '20 ms', 'alice-1');
SELECT t.expire('expired');
SELECT lock_release('expired', 'alice-1');
\set VERBOSITY default

-- The owner may come from the setting; without any owner it is an error.
SELECT t.raises($$SELECT lock_release('k')$$);
SELECT t.raises($$SELECT lock_try_release('k')$$);
SELECT t.raises($$SELECT lock_try_release('k', NULL)$$);
SELECT t.raises($$SELECT lock_release('k', '')$$);
SET atomic_lock.owner = 'bob-1';
SELECT lock_try_release('k');
SELECT lock_try_release('k');
SELECT lock_try_release('k', 'alice-1');
RESET atomic_lock.owner;

-- A generated owner works like any other.
SELECT owner FROM lock_acquire('generated') \gset
SELECT lock_try_release('generated', upper(:'owner'));
SELECT lock_release('generated', :'owner');
SELECT lock_try_release('generated', :'owner');

-- Acquire and release in a loop: the same session, key and owner.
DO $$
DECLARE
	token	bigint := 0;
	g		lock_grant;
BEGIN
	FOR i IN 1..50 LOOP
		g := lock_acquire('cycle', '1 min', 'alice-1');
		ASSERT g.status = 'acquired' AND g.fencing_token > token, format('round %s: %s', i, g);
		token := g.fencing_token;
		ASSERT lock_release('cycle', 'alice-1');
		ASSERT lock_try_release('cycle', 'alice-1') = 'already_released';
	END LOOP;
END
$$;
SELECT count(*) AS rows FROM app_lock WHERE key = 'cycle';

-- Released and swept: not found
SELECT lock_try_release('cycle', 'alice-1');
UPDATE app_lock SET expires_at = expires_at - interval '2 hours' WHERE released AND key = 'cycle';
SELECT lock_sweep() > 0 AS swept;
SELECT lock_try_release('cycle', 'alice-1');

-- A released row keeps its size: its next version fits in its place.
SELECT FROM lock_acquire('as long', '1 min', 'alice-1');
SELECT pg_column_size(l) AS held_size FROM app_lock l WHERE key = 'as long' \gset
SELECT lock_release('as long', 'alice-1');
SELECT pg_column_size(l) = :held_size AS same_size, ttl_us, released FROM app_lock l WHERE key = 'as long';
SELECT expires_at - acquired_at AS ttl FROM lock_acquire('as long', '2 min', 'alice-1');
SELECT pg_column_size(l) = :held_size AS same_size, ttl_us, NOT released AS held FROM app_lock l WHERE key = 'as long';
