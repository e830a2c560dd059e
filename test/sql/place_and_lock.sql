\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- The ticket of an owner that gets the lock in another way, or whose offered key is stolen
--
-- Properties: an owner that gets the key exclusively, by any verb, has no ticket for it any
-- more. A transaction that shares a key admits no one past the line, except in place of a share
-- that it has released. If an offered key is stolen, the ticket stays, however long the thief
-- holds the key, and gets a new offer.
--
-- Turns red when: a ticket survives an upgrade or conversion, and keeps the key from others
-- after the release; a shared key counts as taken, or one released share as several; an offer
-- that could not be taken costs the ticket.


--
-- A sharer waits in line for the exclusive lock, and upgrades
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

-- A transaction that pins or has acquired a share admits no one past the line; in place of a
-- share that it has released it may take one.
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
-- An offered key is stolen
--
SELECT status FROM lock_acquire('k', owner => 'ann-1');
SELECT status, place FROM lock_enqueue('k', 'bob-1', 'Bob');
SELECT status, place FROM lock_enqueue('k', 'cid-1', 'Cid');
SELECT lock_release('k', 'ann-1');
SELECT place, holder, offered_until IS NOT NULL AS offered FROM lock_queue;
SELECT status FROM lock_steal('k', 'dot-1', 'why');
-- for longer than the offer lasts
UPDATE app_lock_queue SET expires_at = clock_timestamp() - interval '1 s' WHERE ticket = 0;
SELECT place, holder, offered_until IS NOT NULL AS offered FROM lock_queue;
SELECT lock_release('k', 'dot-1');
SELECT place, holder, offered_until IS NOT NULL AS offered FROM lock_queue;
-- An offer that has ended before the theft has cost its ticket.
UPDATE app_lock_queue SET expires_at = clock_timestamp() - interval '1 s' WHERE ticket = 0;
SELECT status FROM lock_steal('k', 'dot-1', 'why');
SELECT place, holder, offered_until IS NOT NULL AS offered FROM lock_queue;
SELECT lock_release('k', 'dot-1');
SELECT place, holder, offered_until IS NOT NULL AS offered FROM lock_queue;
