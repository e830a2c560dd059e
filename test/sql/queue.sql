\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\set include :srcdir '/sql/include/line.sql'
\i :setup
-- The line for a key: lock_enqueue, lock_queue, and whose turn it is
--
-- Properties: lock_enqueue acquires a key that is free, and otherwise gives a ticket, which
-- each further call of its owner renews. A release offers the key to the first ticket, and the
-- grant ends that ticket.
--
-- Turns red when: an invalid argument is accepted; a renewal moves the ticket to the end of the
-- line; a ticket outlives its grant; the holder of the key gets a ticket.
--
-- queue_ends tests ends of tickets, queue_rollback rollbacks, queue_turns each verb,
-- queue_offers the ways to offer a key, queue_limits policies and limits, queue_owners calls of
-- other owners, iso_line other sessions, and events the payloads.

--
-- Arguments
--
SELECT call, t.raises('SELECT ' || call) FROM unnest(ARRAY[
	'lock_enqueue(NULL)', 'lock_enqueue('''')', 'lock_enqueue(repeat(''k'', 1025))',
	'lock_enqueue(''k'', '''')', 'lock_enqueue(''k'', repeat(''o'', 1025))', 'lock_enqueue(''k'', holder => repeat(''h'', 1025))',
	'lock_enqueue(''k'', offer => ''0'')', 'lock_enqueue(''k'', offer => ''999 us'')', 'lock_enqueue(''k'', offer => ''-1 s'')', 'lock_enqueue(''k'', offer => ''24 h 1 us'')', 'lock_enqueue(''k'', offer => ''1 month'')',
	'lock_enqueue(''k'', keep => ''0'')', 'lock_enqueue(''k'', keep => ''999 us'')', 'lock_enqueue(''k'', keep => ''24 h 1 us'')', 'lock_enqueue(''k'', keep => ''1 year'')',
	'lock_leave(NULL, ''o'')', 'lock_leave('''', ''o'')', 'lock_leave(''k'')', 'lock_leave(''k'', '''')',
	'lock_channel(NULL)', 'lock_channel('''')']) WITH ORDINALITY u(call, n) ORDER BY n;
BEGIN READ ONLY;
SELECT t.raises($$SELECT lock_enqueue('k', 'ann-1')$$), t.raises($$SELECT lock_leave('k', 'ann-1')$$);
SELECT count(*) FROM lock_queue;
COMMIT;
SELECT (SELECT count(*) FROM app_lock), (SELECT count(*) FROM app_lock_queue), (SELECT count(*) FROM lock_queue);

-- The key, or a ticket
--
-- A free key is acquired as by lock_acquire, here with a generated owner.
SELECT status, place, key, expires_at - clock_timestamp() BETWEEN '4 min' AND '5 min' AS five_minutes, ttl_remaining BETWEEN '4 min' AND '5 min' AS five, owner ~ '^[0-9a-f-]{36}$' AS made, fencing_token > 0 AS token, ticket, holder IS NOT NULL AS holder FROM lock_enqueue('free');
SELECT owner FROM lock_enqueue('made') \gset
SELECT mode, lifetime, queued, fencing_token = (lock_enqueue('made', :'owner')).fencing_token AS token FROM lock_status('made');
SELECT status, place, owner = :'owner' AS owner, ticket FROM lock_enqueue('made', :'owner', 'Ann', '1 s', '1 s');
SELECT lock_is_held('made', :'owner'), (SELECT count(*) FROM lock_queue);
-- A held key gives a ticket.
SELECT t.take('k', 'Ann');
SELECT status, place, key, expires_at - clock_timestamp() BETWEEN '59 min' AND '1 h' AS one_hour, ttl_remaining BETWEEN '59 min' AND '1 h' AS hour, owner, fencing_token, ticket > 0 AS ticket, holder FROM lock_enqueue('k', 'bob-1', 'Bob');
SELECT ticket AS bob, queued_at AS bob_since, expires_at AS bob_until FROM lock_queue WHERE key = 'k' \gset
SELECT t.enter('k', 'Cid', '2 min', '3 min');
SELECT owner FROM lock_enqueue('k', holder => 'Dan') \gset
SELECT key, place, holder, role = current_user AS role, queued_at <= clock_timestamp() AS since, date_trunc('minute', expires_at - clock_timestamp() + '30 s') AS kept, offer, offered_until, ticket > :bob AS behind_bob FROM lock_queue;
SELECT queued, holder, pending FROM lock_status('k');
SELECT queued FROM lock_status() WHERE key IN ('k', 'free') ORDER BY key;
SELECT DISTINCT queued FROM unnest(ARRAY['K', 'k ', 'none', 'free']) k, lock_status(k);
-- The owner comes from the setting.
SET atomic_lock.owner = 'Eve-1';
SELECT status, place, owner FROM lock_enqueue('k', NULL, 'Eve');
SELECT status, place, owner FROM lock_enqueue('k');
SELECT lock_leave('k'), lock_leave('k');
RESET atomic_lock.owner;
-- A renewal keeps the position, and each value that is not passed.
SELECT status, place, ticket = :bob AS ticket, holder FROM lock_enqueue('k', 'bob-1', 'Robert', '30 min', '10 min');
SELECT place, holder, queued_at = :'bob_since' AS since, expires_at < :'bob_until' AS shorter, offer FROM lock_queue WHERE ticket = :bob;
SELECT status, place, ticket = :bob AS ticket FROM lock_enqueue('k', 'bob-1', 'Bob');
SELECT expires_at > :'bob_until' AS longer, offer FROM lock_queue WHERE ticket = :bob;
SELECT status, place FROM lock_enqueue('k', :'owner', 'Dan');
SELECT t.line('k');
-- The holder of the key gets no ticket.
SELECT t.enter('k', 'Ann');
SELECT t.line('k');

-- The first ticket's turn
--
-- Bob, Cid and Dan are in line, in this order.
SELECT lock_release('k', 'ann-1'), t.line('k');
SELECT t.line('k');
SELECT offered_until - clock_timestamp() BETWEEN '29 min' AND '30 min' AS thirty_minutes FROM lock_queue WHERE offered_until IS NOT NULL;
SELECT locked, holder, queued FROM lock_status('k');
SELECT lock_holder('k'), lock_is_held('k', 'bob-1');
SELECT t.take('k', 'Ann'), t.take('k', 'Cid'), t.raises($$SELECT lock_acquire('k', '1 h', 'cid-1')$$);
SELECT t.enter('k', 'Cid');
SELECT t.enter('k', 'Ann');
SELECT t.line('k');
SELECT t.take('k', 'Bob'), t.line('k');
SELECT t.line('k');
SELECT queued, holder FROM lock_status('k');
SELECT t.take('k', 'Bob'), lock_leave('k', 'bob-1'), t.enter('k', 'Bob');
-- Cid takes the key with lock_enqueue.
SELECT lock_release('k', 'bob-1');
SELECT t.line('k');
SELECT t.enter('k', 'Cid');
SELECT t.line('k');
-- A generated owner takes it, too.
SELECT lock_release('k', 'cid-1');
SELECT status, holder FROM lock_acquire('k', owner => :'owner', holder => 'Dan');
SELECT lock_release('k', :'owner'), lock_leave('k', 'ann-1');
SELECT t.line('k');
-- The line is empty: any owner can take the key.
SELECT t.take('k', 'Zoe'), lock_release('k', 'zoe-1'), t.line('k');
