\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- A place in line, when its owner gets the lock in another way, or the lock is stolen
--
-- Properties: whoever gets the key alone has no place in its line any more, whichever verb
-- it was; a transaction that shares a key lets nobody past its line, except in place of who
-- released a share in it; whoever was offered a key that was stolen keeps its place, however
-- long the thief has the key, and is offered it again.
--
-- Turns red when: an upgrade or a conversion leaves the place there, for which the key is
-- kept from others when it is let go of; a key that is shared counts as taken, or one share
-- that is released as many; an offer that could not be taken costs the place.


--
-- Who shares the key waits in line to have it alone, and upgrades
--
SELECT (lock_acquire('k', owner => 'ann-1', mode => 'shared')).status AS ann, (lock_acquire('k', owner => 'bob-1', mode => 'shared', holder => 'Bob')).status AS bob;
SELECT status, place FROM lock_enqueue('k', 'bob-1', 'Bob');
SELECT status, place FROM lock_enqueue('k', 'cid-1', 'Cid');
SELECT lock_release('k', 'ann-1');
SELECT status FROM lock_enqueue('k', 'bob-1', 'Bob');
SELECT place, holder, offered_until FROM lock_queue;
SELECT lock_release('k', 'bob-1');
SELECT place, holder, offered_until IS NOT NULL AS offered FROM lock_queue;
SELECT lock_leave('k', 'cid-1');

-- the same by lock_convert
SELECT (lock_acquire('k', owner => 'ann-1', mode => 'shared')).status AS ann, (lock_acquire('k', owner => 'bob-1', mode => 'shared', holder => 'Bob')).status AS bob;
SELECT status FROM lock_enqueue('k', 'bob-1', 'Bob');
SELECT lock_release('k', 'ann-1');
SELECT status FROM lock_convert('k', 'bob-1', 'exclusive');
SELECT count(*) AS places FROM lock_queue;
SELECT lock_release('k', 'bob-1');

-- A transaction that relies on a share, or has got one, lets nobody pass who is in line; in
-- place of one that it has released, it may take one.
SELECT (lock_acquire('k', owner => 'ann-1', mode => 'shared')).status AS ann, (lock_acquire('k', owner => 'eve-1', mode => 'shared', holder => 'Eve')).status AS eve;
SELECT status FROM lock_enqueue('k', 'bob-1', 'Bob');
BEGIN;
SELECT lock_assert('k', 'ann-1') IS NOT NULL AS pinned, lock_extend('k', 'ann-1') IS NOT NULL AS extended;
SELECT status, holder FROM lock_try_acquire('k', owner => 'dot-1', mode => 'shared');
SELECT lock_release('k', 'ann-1');
SELECT status FROM lock_try_acquire('k', owner => 'dot-1', mode => 'shared');
SELECT status, holder FROM lock_try_acquire('k', owner => 'zoe-1', mode => 'shared');
ROLLBACK;
SELECT lock_leave('k', 'bob-1'), lock_release('k', 'ann-1'), lock_release('k', 'eve-1');
BEGIN;
SELECT status FROM lock_acquire('k', owner => 'ann-1', mode => 'shared');
SELECT status, place FROM lock_enqueue('k', 'bob-1', 'Bob');
SELECT status, holder FROM lock_try_acquire('k', owner => 'dot-1', mode => 'shared');
ROLLBACK;


--
-- A key that is offered is stolen
--
SELECT status FROM lock_acquire('k', owner => 'ann-1');
SELECT status, place FROM lock_enqueue('k', 'bob-1', 'Bob');
SELECT status, place FROM lock_enqueue('k', 'cid-1', 'Cid');
SELECT lock_release('k', 'ann-1');
SELECT place, holder, offered_until IS NOT NULL AS offered FROM lock_queue;
SELECT status FROM lock_steal('k', 'dot-1', 'why');
-- for longer than the offer
UPDATE app_lock_queue SET expires_at = clock_timestamp() - interval '1 s' WHERE ticket = 0;
SELECT place, holder, offered_until IS NOT NULL AS offered FROM lock_queue;
SELECT lock_release('k', 'dot-1');
SELECT place, holder, offered_until IS NOT NULL AS offered FROM lock_queue;
-- An offer that is over when the key is stolen has cost its place.
UPDATE app_lock_queue SET expires_at = clock_timestamp() - interval '1 s' WHERE ticket = 0;
SELECT status FROM lock_steal('k', 'dot-1', 'why');
SELECT place, holder, offered_until IS NOT NULL AS offered FROM lock_queue;
SELECT lock_release('k', 'dot-1');
SELECT place, holder, offered_until IS NOT NULL AS offered FROM lock_queue;
