\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- max_holders: a limit on the owners that share a key
--
-- Properties: a key is granted while fewer than max_holders others hold it, in any lifetime and
-- however they got it. Each caller's own limit decides. Ended holdings do not count. An owner
-- with a seat keeps it and takes no second one. A refusal writes nothing, and gives the number
-- of holders, the limit, and the holder whose seat becomes free first. All answers stay right
-- for a key with many holders.
--
-- Turns red when: one owner too many or too few is admitted; an ended holding counts; an owner
-- takes two seats; the answer names another holder than the one whose end makes room; one
-- sharer among many is not found, or one that has released is.

CREATE VIEW t.live AS SELECT key, count(*) FROM app_lock WHERE NOT released AND expires_at > clock_timestamp() GROUP BY key;
CREATE FUNCTION t.seat(k text, who text, n integer, ttl interval DEFAULT '1 hour', lifetime text DEFAULT 'lease',
	OUT status text, OUT holder text, OUT holders integer, OUT max_holders integer, OUT "end" boolean)
RETURNS record LANGUAGE sql AS $$
	SELECT g.status, g.holder, g.holders, g.max_holders, g.expires_at IS NOT DISTINCT FROM (SELECT max(a.expires_at) FROM app_lock a WHERE a.key = k AND a.holder = g.holder AND NOT released)
	FROM lock_try_acquire(k, CASE WHEN lifetime = 'lease' THEN ttl END, who, 'shared', holder => initcap(who), lifetime => lifetime, max_holders => n) g
$$;

--
-- Arguments
--
SELECT f, t.raises('SELECT ' || f) FROM unnest(ARRAY[
	'lock_acquire(''k'', mode => ''shared'', max_holders => 0)',
	'lock_acquire(''k'', mode => ''shared'', max_holders => -1)',
	'lock_acquire(''k'', max_holders => 1)',
	'lock_try_acquire(''k'', mode => ''shared'', max_holders => 0)',
	'lock_try_acquire(''k'', mode => ''exclusive'', max_holders => 3)',
	'lock_acquire_all(''{k}'', mode => ''shared'', max_holders => 0)',
	'lock_acquire_all(''{k}'', max_holders => 2)',
	'lock_try_acquire_all(''{k}'', mode => ''shared'', max_holders => -5)',
	'lock_try_acquire_all(''{k}'', max_holders => 2147483647)',
	-- refused: a lock without a row, and a set that would keep seats while it waits
	'lock_acquire(''k'', mode => ''shared'', lifetime => ''transaction'', max_holders => 2)',
	'lock_try_acquire(''k'', mode => ''shared'', lifetime => ''transaction'', max_holders => 2)',
	'lock_acquire_all(''{j,k}'', mode => ''shared'', wait => ''1 ms'', max_holders => 2)',
	'lock_try_acquire_all(''{j,k}'', mode => ''shared'', wait => NULL, max_holders => 2)']) f;
SELECT status, holders, max_holders FROM lock_acquire('arguments', owner => 'a', mode => 'shared', max_holders => 2147483647);
SELECT status, holders, max_holders FROM lock_acquire('arguments', owner => 'b', mode => 'shared', max_holders => NULL);
SELECT status, holders, max_holders FROM lock_acquire('arguments 2', owner => 'b', max_holders => NULL);
SELECT count(*) FROM app_lock;

--
-- As many holders as seats
--
SELECT who, s.* FROM unnest(ARRAY['ann', 'ben', 'cid', 'dan']) WITH ORDINALITY w(who, n), LATERAL t.seat('k', who, 3, interval '1 hour' - n * interval '1 min') s ORDER BY n;
SELECT t.raises($$SELECT lock_acquire('k', '1 hour', 'dan', 'shared', max_holders => 3)$$);
SELECT t.raises($$SELECT lock_acquire('k', '1 hour', 'dan', 'shared', '20 ms', max_holders => 3)$$) ~ '^55P03: timed out waiting for lock "k", which is held by 3 owners, of at most 3\n' AS timed_out;
-- a refusal writes nothing
BEGIN;
SELECT status FROM t.seat('k', 'dan', 3);
SELECT pg_current_xact_id_if_assigned();
COMMIT;
-- other limits
SELECT n, s.* FROM unnest(ARRAY[1, 2, 4]) n, LATERAL t.seat('k', 'dan', n) s ORDER BY n;
SELECT n, s.* FROM generate_series(1, 5) n, LATERAL t.seat('k', 'eve', n) s ORDER BY n;
SELECT s.* FROM t.seat('k', 'fay', 5) s;
-- without a limit
SELECT status, holders, max_holders FROM lock_acquire('k', '1 hour', 'fay', 'shared', holder => 'Fay');
SELECT s.* FROM t.seat('k', 'gus', 6) s;
SELECT s.* FROM t.seat('k', 'gus', 7) s;
SELECT holders FROM lock_status('k');
-- the holder whose end makes room under a limit of two among seven: the second to last
SELECT holder FROM t.seat('k', 'hal', 2);
SELECT holder, expires_at FROM lock_status() WHERE key = 'k' ORDER BY expires_at DESC OFFSET 1 LIMIT 1 \gset second_
SELECT holder = :'second_holder' AS second_to_last, expires_at = :'second_expires_at' AS its_end FROM lock_try_acquire('k', '1 hour', 'hal', 'shared', max_holders => 2);
-- an exclusive request is unaffected
SELECT status, holders, max_holders FROM lock_try_acquire('k', '1 hour', 'hal');
SELECT status, holder, holders, max_holders FROM lock_try_acquire('arguments 2', '1 hour', 'hal', 'shared', max_holders => 5);

--
-- An owner that has a seat
--
SELECT s.* FROM t.seat('k', 'ann', 1) s;
SELECT t.raises($$SET LOCAL atomic_lock.on_reacquire = 'error'; SELECT lock_acquire('k', '1 hour', 'ann', 'shared', max_holders => 9)$$) ~ '^LK007' AS told;
SELECT count FROM t.live WHERE key = 'k';
SELECT s.status FROM lock_acquire('own', '1 hour', 'ann') s;
SELECT s.* FROM t.seat('own', 'ann', 1) s;
SELECT mode, holders FROM lock_status('own');

--
-- Ends that free a seat
--
SELECT who, (t.seat('room', who, 3)).status FROM unnest(ARRAY['ann', 'ben', 'cid']) who;
SELECT lock_release('room', 'ann'), (t.seat('room', 'dan', 3)).status AS released, (t.seat('room', 'ann', 3)).status AS again;
SELECT lock_extend('room', 'ben', '1 ms') IS NOT NULL AS shortened, t.expire('room', 'ben'), (t.seat('room', 'ann', 3)).status AS expired, (t.seat('room', 'ben', 3)).status AS again;
SELECT force_release('room', 'test'), (t.seat('room', 'ben', 1)).status AS forced, (t.seat('room', 'ann', 1)).status AS again;
SELECT (lock_transfer('room', 'ben', 'ann')).status, (t.seat('room', 'cid', 1)).status AS handed_over, (t.seat('room', 'ben', 2)).status AS comes_back;
SELECT (lock_transfer('room', 'ben', 'ann')).status, (t.seat('room', 'cid', 2)).status AS merged, (t.seat('room', 'dan', 2)).status AS again;
SELECT lock_release('room', 'cid'), (lock_convert('room', 'ann', 'exclusive')).status, (t.seat('room', 'dan', 9)).status AS exclusive, (lock_convert('room', 'ann', 'shared')).status, (t.seat('room', 'dan', 1)).status AS one, (t.seat('room', 'dan', 2)).status AS two;
SELECT (lock_steal('room', 'thief', 'test')).status, (t.seat('room', 'dan', 9)).status AS stolen, lock_release('room', 'thief'), (t.seat('room', 'dan', 1)).status AS then;
SELECT (lock_extend('room', 'dan', '2 hours') > now()), (t.seat('room', 'ann', 1)).status AS extended;

--
-- In one transaction
--
BEGIN;
SELECT who, (lock_acquire('transaction', owner => who, mode => 'shared', lifetime => 'transaction', holder => who)).status FROM unnest(ARRAY['ann', 'ben']) who;
SAVEPOINT s;
SELECT who, s.* FROM unnest(ARRAY['cid', 'dan']) who, LATERAL t.seat('transaction', who, 3) s;
ROLLBACK TO s;
SELECT s.* FROM t.seat('transaction', 'dan', 3, lifetime => 'session') s;
SELECT s.* FROM t.seat('transaction', 'eve', 3) s;
SELECT lock_release('transaction', 'ann');
SELECT s.* FROM t.seat('transaction', 'eve', 3) s;
COMMIT;
SELECT (t.seat('transaction', who, 3)).status FROM unnest(ARRAY['fay', 'gus']) who;

--
-- Sets
--
SELECT key, status, holders, max_holders FROM lock_acquire_all(ARRAY['s 1', 's 2', 's 3'], '1 hour', 'ann', 'shared', max_holders => 2);
SELECT s.status FROM t.seat('s 2', 'ben', 2) s;
SELECT key, status, holder, holders, max_holders FROM lock_try_acquire_all(ARRAY['s 1', 's 2', 's 3'], '1 hour', 'cid', 'shared', max_holders => 2);
SELECT t.raises($$SELECT lock_acquire_all(ARRAY['s 1', 's 2', 's 3'], '1 hour', 'cid', 'shared', max_holders => 2)$$) ~ '^55P03: lock "s 2" is held by 2 owners, of at most 2\n' AS told;
SELECT key, status, holders, max_holders FROM lock_try_acquire_all(ARRAY['s 0', 's 1', 's 3'], '1 hour', 'ann', 'shared', max_holders => 1);
SELECT key, count FROM t.live WHERE key LIKE 's %' ORDER BY key COLLATE "C";

--
-- Many sharers: counting, and finding one of them
--
SELECT count(*) FROM generate_series(1, 150) i, LATERAL t.seat('many', 'reader ' || i, 150, i * interval '1 min') s WHERE s.status = 'acquired' AND s.holders = i;
SELECT s.* FROM t.seat('many', 'ann', 150) s;
SELECT holders, max_holders, holder LIKE 'Reader %' AS one_of_them FROM lock_try_acquire('many', owner => 'ann', mode => 'shared', max_holders => 120);
SELECT holders, max_holders FROM lock_try_acquire('many', owner => 'ann');
SELECT holders FROM lock_status('many');
SELECT count(*) FROM lock_status() WHERE key = 'many';
SELECT bool_and(lock_is_held('many', 'reader ' || i)) AS all_held, bool_or(lock_is_held('many', 'ann')) AS ann FROM generate_series(1, 150) i;
SET atomic_lock.owner = 'reader 7';
SELECT owner, holder, holders FROM lock_status('many');
SELECT lock_holder('many');
RESET atomic_lock.owner;
SELECT count(*) FROM generate_series(1, 150, 3) i WHERE lock_release('many', 'reader ' || i);
SELECT bool_and(lock_is_held('many', 'reader ' || i) = (i % 3 <> 1)) AS right FROM generate_series(1, 150) i;
SELECT lock_try_release('many', 'reader 1') AS again, lock_try_release('many', 'reader x') AS never, lock_extend('many', 'reader 2', '1 hour') > now() AS extended;
SELECT s.status, s.holders FROM t.seat('many', 'ann', 101) s;
SELECT s.status, s.holders FROM t.seat('many', 'ben', 101) s;
-- rows of ended holdings are reused
SELECT count(*) FROM generate_series(1, 49) i, LATERAL t.seat('many', 'guest ' || i, 150) s WHERE s.status = 'acquired';
SELECT count(*) FROM t.live WHERE count = 150 AND key = 'many';
SELECT count(*) < 190 AS few FROM app_lock WHERE key = 'many';
-- only one of the sharers is left, wherever its row is
DELETE FROM app_lock WHERE key = 'many' AND owner <> 'reader 77';
SELECT status, holder, holders FROM lock_try_acquire('many');
SELECT lock_release('many', 'reader 77');
SELECT status FROM lock_try_acquire('many', '1 hour', 'zoe');
SELECT lock_release('many', 'zoe');
SELECT count(*) FROM generate_series(1, 150) i, LATERAL lock_acquire('gone', '1 hour', 'reader ' || i, 'shared');
SELECT lock_release('gone', owner) FROM app_lock WHERE key = 'gone' AND owner <> 'reader 42' \g /dev/null
SELECT status, holder, holders FROM lock_try_acquire('gone');
SELECT holders, holder FROM lock_status('gone');
SELECT status, holders FROM lock_try_acquire('gone', mode => 'shared', max_holders => 1);
SELECT (lock_convert('gone', 'reader 42')).status;
SELECT lock_is_held('gone', 'reader 42'), lock_release('gone', 'reader 42');
-- an exclusive request learns which of many expired holders keeps the key closed
SELECT count(*) FROM generate_series(1, 120) i, LATERAL lock_acquire('closed', '1 hour', 'reader ' || i, 'shared', holder => 'Reader ' || i);
UPDATE app_lock SET expires_at = now() - interval '1 s' * (CASE owner WHEN 'reader 99' THEN 1 ELSE 2 END) WHERE key = 'closed';
SET atomic_lock.lock_delay = '60 min';
SELECT status, holder FROM lock_try_acquire('closed');
SELECT status FROM lock_try_acquire('closed', '1 hour', 'new', 'shared', max_holders => 1);
RESET atomic_lock.lock_delay;
