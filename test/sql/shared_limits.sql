\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- Mode shared: arguments and limits
--
-- Properties: arguments are checked as for exclusive requests. max_lifetime, lock_delay and
-- max_claims_per_transaction apply to sharers, too: a delay begins when a sharer's lease
-- expires, and claims count keys.
--
-- Turns red when: an invalid argument passes in mode shared; a limit does not apply to a
-- sharer; an exclusive request is granted before a sharer's delay has passed.

--
-- Arguments and limits are the same for sharers
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
-- converting to exclusive does not begin a new lifetime
SELECT s.status, s.mode, s.seconds FROM lock_acquire('life', '1 h', 'alice-1') g, t.show(g) s;
RESET atomic_lock.max_lifetime;
-- lock_delay: no exclusive grant before the delay of an expired sharer has passed
SELECT g.status FROM lock_acquire('delay', '20 ms', 'alice-1', 'shared', holder => 'Alice') g;
SELECT t.expire('delay');
SET atomic_lock.lock_delay = '1 h';
SELECT t.raises($$SELECT lock_acquire('delay', '1 hour', 'bob-1')$$);
SELECT status FROM lock_try_acquire('delay', '1 hour', 'alice-1');
SELECT lock_sweep();
-- no delay after a release
SELECT g.status FROM lock_acquire('delay 2', '1 hour', 'alice-1', 'shared') g;
SELECT lock_release('delay 2', 'alice-1');
SELECT g.status FROM lock_acquire('delay 2', '1 hour', 'bob-1') g;
-- one of two expired: first the other sharer blocks, then the delay
SELECT g.status FROM lock_acquire('delay 3', '20 ms', 'alice-1', 'shared', holder => 'Alice') g;
SELECT g.status FROM lock_acquire('delay 3', '1 hour', 'bob-1', 'shared', holder => 'Bob') g;
SELECT t.expire('delay 3', 'alice-1');
SELECT split_part(t.raises($$SELECT lock_acquire('delay 3', '1 hour', 'carol-1')$$), E'\n', 1) AS answer;
SELECT lock_release('delay 3', 'bob-1');
SELECT split_part(t.raises($$SELECT lock_acquire('delay 3', '1 hour', 'carol-1')$$), E'\n', 1) AS answer;
-- an expired exclusive lease delays sharers, too
SELECT g.status FROM lock_acquire('delay 4', '20 ms', 'alice-1', holder => 'Alice') g;
SELECT t.expire('delay 4');
SELECT split_part(t.raises($$SELECT lock_acquire('delay 4', '1 hour', 'bob-1', 'shared')$$), E'\n', 1) AS answer;
-- after the delays
SET atomic_lock.lock_delay = '10 ms';
SELECT pg_sleep(0.02);
SELECT k, g.status FROM unnest(ARRAY['delay', 'delay 3', 'delay 4']) k, LATERAL lock_acquire(k, '1 hour', 'dora-1') g;
RESET atomic_lock.lock_delay;
-- max_claims_per_transaction counts keys, not sharers
SET atomic_lock.max_claims_per_transaction = 2;
BEGIN;
SELECT count(*) FROM generate_series(1, 5) i, LATERAL lock_acquire('claim 1', '1 hour', 'reader-' || i, 'shared');
SELECT g.status FROM lock_acquire('claim 2', '1 hour', 'reader-1', 'shared') g;
SELECT t.code($$SELECT lock_acquire('claim 3', '1 hour', 'reader-1', 'shared')$$);
ROLLBACK;
RESET atomic_lock.max_claims_per_transaction;
