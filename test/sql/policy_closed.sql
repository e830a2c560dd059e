\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\set include :srcdir '/sql/include/verbs.sql'
\i :setup
-- Policies in every function that changes a lock: lock_delay and min_hold
--
-- Properties: each function refuses a key that a policy keeps closed: for lock_delay after a
-- lease has expired, and until min_hold has passed since the acquire, however the lease ended.
-- Neither a sweep nor a later sharer opens it. A policy overrides a setting.
--
-- Turns red when: one function ignores one rule; min_hold counts from the release; a sweep or
-- another sharer opens the key; a wait ends too early or too late.

--
-- lock_delay
--
SELECT lock_set_policy('delay:', lock_delay => '1 h'), lock_set_policy('delay:none', lock_delay => '0');
SELECT count(lock_acquire(k, '1 ms', 'me')) FROM unnest(ARRAY['delay:free', 'delay:none', 'other']) k;
SELECT t.expire(k) FROM unnest(ARRAY['delay:free', 'delay:none', 'other']) k;
SELECT k, locked, closed_until - a.expires_at AS for FROM unnest(ARRAY['delay:free', 'delay:none', 'other']) k, lock_status(k), LATERAL (SELECT expires_at FROM app_lock l WHERE l.key = k) a ORDER BY k;
SELECT * FROM t.ask_all('delay:', which => '^(.*acquire|.*acquire_all|acquire shared|acquire for the session|fetch|steal)$');
SET atomic_lock.lock_delay = '2 h';
SELECT k, closed_until - a.expires_at AS for FROM unnest(ARRAY['delay:free', 'delay:none', 'other']) k, lock_status(k), LATERAL (SELECT expires_at FROM app_lock l WHERE l.key = k) a ORDER BY k;
RESET atomic_lock.lock_delay;
-- A sweep does not open the key.
SELECT lock_sweep() AS swept, (lock_status('delay:free')).closed_until IS NOT NULL AS closed;
SELECT lock_drop_policy('delay:'), (lock_status('delay:free')).closed_until, (lock_try_acquire('delay:free', owner => 'you')).status;

--
-- min_hold: counted from the acquire, however the lease ends
--
SELECT lock_set_policy('min:', min_hold => '1 h');
CREATE FUNCTION t.min_hold(k text, OUT locked boolean, OUT closed_for interval, OUT exclusive text, OUT shared text, OUT own text) LANGUAGE sql AS $$
	SELECT s.locked, s.closed_until - (SELECT min(acquired_at) FROM app_lock l WHERE l.key = k), t.ask('(lock_try_acquire({k}, owner => ''you'')).status', k, ''), t.ask('(lock_try_acquire({k}, owner => ''you'', mode => ''shared'')).status', k, ''), t.ask('(lock_try_acquire({k}, owner => ''me'')).status', k, '')
	FROM lock_status(k) s
$$;
SELECT count(lock_acquire('min:' || k, '30 min', 'me', CASE WHEN k ~ 'shared' THEN 'shared' ELSE 'exclusive' END, lifetime => CASE WHEN k ~ 'session' THEN 'session' ELSE 'lease' END)) FROM unnest(ARRAY['released', 'session released', 'all released', 'shared released', 'converted', 'shared converted', 'given', 'extended', 'expired', 'forced', 'shared forced', 'stolen', 'held', 'session', 'shared session']) k;
SELECT lock_release('min:released', 'me'), lock_try_release('min:session released', 'me'), lock_release('min:shared released', 'me'), lock_extend('min:extended', 'me', '40 min') > now() AS extended, lock_release('min:extended', 'me');
SELECT (lock_convert('min:converted', 'me', 'shared')).status, lock_release('min:converted', 'me'), (lock_convert('min:shared converted', 'me')).status, lock_release('min:shared converted', 'me');
SELECT (lock_transfer('min:given', 'me', 'all')).status, (lock_transfer('min:all released', 'me', 'all')).status, lock_release_all('all');
SELECT lock_extend('min:expired', 'me', '1 ms') IS NOT NULL AS shortened, t.expire('min:expired');
SELECT force_release('min:forced', 'test'), force_release('min:shared forced', 'test');
SELECT (lock_steal('min:stolen', 'thief', 'test')).status, lock_release('min:stolen', 'thief');
SELECT status FROM lock_acquire('min:free', '30 min', 'you', 'shared'), LATERAL lock_release(key, 'you');
SELECT k, m.* FROM unnest(ARRAY['released', 'session released', 'all released', 'shared released', 'converted', 'shared converted', 'given', 'extended', 'expired', 'forced', 'shared forced', 'stolen', 'held', 'never']) k, t.min_hold('min:' || k) m;
SELECT * FROM t.ask_all('min:', which => '^(.*acquire|.*acquire_all|acquire shared|acquire for the session|fetch|steal)$');
SELECT status, holder IS NOT NULL AS holder, holders FROM lock_try_acquire('min:released', owner => 'you');
-- Stealing begins a new min_hold. A closed key can be stolen, too.
SELECT (lock_steal('min:given', 'thief', 'test')).status, lock_is_held('min:given', 'thief');
-- Lifetime transaction is refused, since it leaves no row to keep the key closed
SELECT t.raises($$SELECT lock_acquire('min:free', lifetime => 'transaction')$$), t.code($$SELECT lock_try_acquire('min:free', lifetime => 'transaction', mode => 'shared')$$), t.code($$SELECT lock_try_acquire('min:free', lifetime => 'session', mode => 'shared')$$) AS session;
-- A release that is rolled back, and one that is not yet committed
BEGIN;
SELECT lock_release('min:held', 'me'), (t.min_hold('min:held')).*;
ROLLBACK;
SELECT (t.min_hold('min:held')).*;
-- end of the session
\c -
SET client_min_messages = warning;
SELECT t.expire(k) FROM unnest(ARRAY['min:session', 'min:shared session']) k;
SELECT k, m.* FROM unnest(ARRAY['min:session', 'min:shared session']) k, t.min_hold(k) m;
-- A sweep keeps the rows of closed keys, and deletes the others.
SELECT lock_set_policy('min:keep', min_hold => '3 h');
SELECT count(lock_acquire(k, CASE WHEN k ~ 'expired' THEN interval '1 ms' ELSE '1 h' END, 'me', mode)) FROM unnest(ARRAY['min:keep', 'min:keep expired', 'min:keep forced', 'min:go', 'min:go expired']) k, unnest(ARRAY['exclusive', 'shared']) mode WHERE (mode = 'shared') = (k ~ 'forced');
SELECT t.expire('min:keep expired'), t.expire('min:go expired'), lock_release('min:keep', 'me'), lock_release('min:go', 'me'), force_release('min:keep forced', 'test');
UPDATE app_lock SET acquired_at = acquired_at - interval '2 h', expires_at = expires_at - interval '2 h' WHERE key ~ '^min:(keep|go)';
SELECT lock_sweep() > 0 AS swept;
SELECT key FROM app_lock WHERE key ~ '^min:(keep|go)' ORDER BY 1;
SELECT k, (lock_try_acquire(k, '1 h', 'you')).status FROM unnest(ARRAY['min:keep', 'min:keep expired', 'min:keep forced', 'min:go', 'min:go expired']) k;
-- The present policy counts: shorter, none, longer.
SELECT lock_set_policy('min:', min_hold => '1 ms');
SELECT t.wait_until(acquired_at + interval '1 ms') IS NOT NULL AS past, (lock_try_acquire('min:released', owner => 'you')).status FROM app_lock WHERE key = 'min:released';
SELECT lock_drop_policy('min:');
SELECT k, m.* FROM unnest(ARRAY['min:expired', 'min:held', 'min:session']) k, t.min_hold(k) m;
SELECT lock_acquire('later', '1 h', 'me') IS NOT NULL AS acquired, lock_release('later', 'me'), lock_set_policy('later', min_hold => '2 h');
SELECT (t.min_hold('later')).*;
-- A waiter gets the key when it opens, alone or in a set.
SELECT lock_set_policy('soon', min_hold => '1 h');
SELECT count(lock_acquire('soon:' || n, '1 h', 'me', CASE WHEN n > 3 THEN 'shared' ELSE 'exclusive' END)) FROM generate_series(1, 5) n;
SELECT max(acquired_at) AS first FROM generate_series(1, 5) n, lock_status('soon:' || n) \gset
SELECT status FROM lock_acquire('soon:5', '1 h', 'you', 'shared');
SELECT count(lock_release('soon:' || n, 'me')) FROM generate_series(1, 5) n;
SELECT t.timeout($$SELECT lock_acquire('soon:1', owner => 'you', wait => '1 ms')$$);
SELECT t.code(format(c, '1 ms')), c FROM unnest(ARRAY['SELECT lock_acquire(''soon:1'', owner => ''you'', wait => %L)', 'SELECT lock_acquire_all(''{other:2,soon:2}'', owner => ''you'', wait => %L)', 'SELECT lock_fetch(NULL::t.orders, ''1'', owner => ''you'', wait => %L, key => ''soon:3'')',
	'SELECT lock_acquire(''soon:4'', owner => ''you'', wait => %L)', 'SELECT lock_acquire(''soon:4'', owner => ''you'', mode => ''shared'', wait => %L)', 'SELECT lock_convert(''soon:5'', ''you'', wait => %L)']) c;
SELECT lock_set_policy('soon', min_hold => '200 ms');
SELECT status FROM lock_acquire('soon:1', owner => 'you', wait => '4 min');
SELECT string_agg(key || ' ' || status, ', ') AS set FROM lock_acquire_all(ARRAY['soon:2', 'other:2'], owner => 'you', wait => '4 min');
SELECT * FROM lock_fetch(NULL::t.orders, '1', owner => 'you', wait => '4 min', key => 'soon:3');
-- Expired shares keep a closed key from exclusive requests, also by a conversion.
SELECT status FROM lock_acquire('soon:4', owner => 'you', wait => '4 min');
SELECT status FROM lock_convert('soon:5', 'you', wait => '4 min');
SELECT clock_timestamp() >= timestamptz :'first' + interval '200 ms' AS after;
-- A later sharer does not open the key, but an administrator does.
SELECT lock_set_policy('soon', min_hold => '1 h');
SELECT (lock_acquire('soon:6', '1 h', 'me', 'shared')).status, lock_release('soon:6', 'me'), (lock_acquire('soon:6', '1 h', 'you', 'shared')).status AS you, force_release('soon:6', 'test');
SELECT t.code($$SELECT lock_acquire('soon:6')$$), (SELECT closed_until > now() FROM lock_status('soon:6'));
SELECT count(lock_drop_policy(prefix)) FROM lock_policies;
