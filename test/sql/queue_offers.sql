\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\set include :srcdir '/sql/include/line.sql'
\i :setup
-- The line for a key: calls that offer a key, and calls that pass it on past the line
--
-- Properties: each way to end a holding offers the key to the first ticket. A transfer or a
-- theft gives the key to one owner, ends that owner's ticket, and leaves the other tickets
-- unchanged. A key that a policy keeps closed is offered when it opens.
--
-- Turns red when: one way to end a holding makes no offer; a closed key is offered; a transfer
-- or theft loses a ticket, or leaves one to the owner that has the key.

--
-- Each way to release a key offers it
--
CREATE FUNCTION t.both(k text, how text) RETURNS text LANGUAGE sql AS $$
	SELECT (lock_acquire(k, NULL, 'ann-1', lifetime => how, holder => 'Ann')).status || ' ' || (SELECT status FROM t.enter(k, 'Bob'))
$$;
SELECT how, t.both('go ' || how, how) FROM unnest(ARRAY['lease', 'session']) how;
SELECT lock_release('go ' || how, 'ann-1') FROM unnest(ARRAY['lease', 'session']) how;
BEGIN;
SELECT t.both('go transaction', 'transaction'), t.both('go released', 'transaction');
SELECT lock_release('go released', 'ann-1'), t.line('go released');
COMMIT;
SELECT t.both('go ' || how, 'lease') FROM unnest(ARRAY['all', 'try', 'force', 'heartbeat']) how;
SELECT lock_try_release('go try', 'ann-1'), force_release('go force', 'test');
SELECT lock_extend('go heartbeat', 'ann-1', '1 ms') IS NOT NULL AS short;
SELECT t.expire('go heartbeat'), lock_release_all('ann-1');
SELECT t.both('go discard', 'session');
DISCARD ALL;
SET client_min_messages = warning;
SELECT k.key, t.line(k.key) FROM (SELECT DISTINCT key FROM lock_queue WHERE key LIKE 'go %') k ORDER BY key;
-- A sweep offers the key of an expired lease.
SELECT lock_sweep() IS NOT NULL AS swept, t.line('go heartbeat');
SELECT t.line('go heartbeat');

--
-- Calls that pass a key on past the line
--
SELECT t.take('hand', 'Ann'), t.enter('hand', 'Bob'), t.enter('hand', 'Cid');
SELECT (lock_transfer('hand', 'ann-1', 'eve-1', 'Eve')).status;
SELECT t.line('hand'), lock_holder('hand');
-- to an owner in line, whose ticket ends
SELECT (lock_transfer('hand', 'eve-1', 'cid-1', 'Cid')).status;
SELECT t.line('hand'), lock_holder('hand');
SELECT t.enter('hand', 'Ann');
SELECT lock_transfer_all('cid-1', 'ann-1', 'Ann');
SELECT t.line('hand'), lock_holder('hand');
BEGIN;
SELECT t.enter('hand', 'Cid');
SELECT (lock_transfer('hand', 'ann-1', 'cid-1', 'Cid')).status, t.line('hand');
COMMIT;
SELECT t.line('hand');
SELECT (lock_steal('hand', 'eve-1', 'test', holder => 'Eve')).status;
SELECT t.line('hand'), t.enter('hand', 'Cid');
SELECT (lock_steal('hand', 'cid-1', 'test', holder => 'Cid')).status;
SELECT t.line('hand'), lock_release('hand', 'cid-1');
SELECT t.line('hand');
-- An offered key can be stolen. The ticket stays, and gets a new offer later.
SELECT (lock_steal('hand', 'eve-1', 'test', holder => 'Eve')).status;
SELECT t.line('hand'), t.enter('hand', 'Bob', '1 h'), force_release('hand', 'test');
BEGIN;
SELECT (lock_steal('hand', 'eve-1', 'test', holder => 'Eve')).status, t.line('hand');
SELECT t.line('hand');
ROLLBACK;
SELECT t.line('hand');
SELECT (lock_steal('hand', 'eve-1', 'test', holder => 'Eve')).status;
UPDATE app_lock_queue SET expires_at = clock_timestamp() WHERE key = 'hand' AND ticket = 0;
SELECT t.line('hand'), t.take('hand', 'Bob'), force_release('hand', 'test');
SELECT t.line('hand');
-- The owner with the offer may steal the key, too.
SELECT (lock_steal('hand', 'bob-1', 'test', holder => 'Bob')).status, lock_release('hand', 'bob-1');
SELECT t.line('hand'), t.enter('hand', 'Bob');
-- An offered key has no holding to force.
SELECT t.enter('hand', 'Ann'), lock_release('hand', 'bob-1');
SELECT lock_try_force_release('hand', 'test'), t.line('hand'), t.take('hand', 'Ann');

--
-- A closed key
--
SELECT lock_set_policy('closed:hold', min_hold => '1 h'), lock_set_policy('closed:delay', lock_delay => '1 h');
SELECT t.take('closed:hold', 'Ann'), t.take('closed:delay', 'Ann', '1 ms');
SELECT t.expire('closed:delay'), t.enter('closed:hold', 'Bob'), t.enter('closed:delay', 'Bob');
SELECT lock_release('closed:hold', 'ann-1'), lock_sweep() IS NOT NULL AS swept;
SELECT t.line('closed:hold'), t.line('closed:delay');
SELECT t.enter('closed:hold', 'Cid'), t.enter('closed:delay', 'Cid');
SELECT lock_set_policy('closed:hold', min_hold => '1 ms'), lock_set_policy('closed:delay', lock_delay => '1 ms');
SELECT count(t.wait_until(closed_until)) FROM unnest(ARRAY['closed:hold', 'closed:delay']) k, lock_status(k);
-- The first in line may take the key once it opens. A sweep offers it.
SELECT t.line('closed:hold'), t.take('closed:hold', 'Cid'), t.take('closed:delay', 'Cid'), t.take('closed:hold', 'Bob');
SELECT lock_sweep() IS NOT NULL AS swept;
SELECT t.line('closed:delay'), t.take('closed:delay', 'Cid'), t.take('closed:delay', 'Bob');
SELECT lock_drop_policy('closed:hold'), lock_drop_policy('closed:delay');
