\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\set include :srcdir '/sql/include/verbs.sql'
\i :setup
-- Policies in every function that changes a lock: default_ttl, max_ttl, max_wait, max_lifetime
--
-- Properties: the times of a policy apply in each function that begins or changes a lease, also
-- to one key of a set, and the error names key and prefix. A ttl that is a default, or that
-- applies to all leases of an owner, is cut instead. A policy overrides a setting. A new policy
-- changes no lease; the next extension follows it.
--
-- Turns red when: one function ignores one rule; a policy makes a call without ttl fail; a
-- setting wins.
--
-- policy_closed tests closed keys, policy_limits limits and quotas, policy_roles roles,
-- iso_policy and iso_quota other sessions.

--
-- default_ttl and max_ttl
--
SELECT status FROM lock_acquire('ttl:held', '5 min', 'me');
SELECT lock_set_policy('ttl:', default_ttl => '7 min', max_ttl => '10 min');
SELECT * FROM t.ask_all('ttl:');
SELECT * FROM t.ask_all('ttl:', '10 min', which => '^(?!.*release|.*convert|transfer_all)');
SELECT * FROM t.ask_all('ttl:', '10 min 1 us', which => '^(?!.*release|.*convert|transfer_all)');
SELECT * FROM t.ask_all('ttl:', '0', which => '^(?!.*release|.*convert|transfer_all)');
SELECT * FROM t.ask_all('ttl:', '1 month', which => '^(?!.*release|.*convert|transfer_all)');
-- Each of several keys is cut to its own limit.
SELECT lock_set_policy('ttl:short', max_ttl => '1 min');
SELECT count(*) FROM lock_acquire_all(ARRAY['ttl:short', 'ttl:long', 'other'], '1 min', 'several');
SELECT key, status, ttl_remaining > '9 min' AS to_10_min, ttl_remaining > '55 min' AS to_1_h FROM lock_heartbeat(NULL, 'several', '1 h') ORDER BY key;
SELECT lock_extend_all('several', '2 h'), (SELECT string_agg(key || ' ' || ttl_us * interval '1 us', ', ' ORDER BY key) FROM app_lock WHERE owner = 'several') AS ttls;
SELECT t.raises($$SELECT lock_extend_all('several', '10 us')$$), t.raises($$SELECT * FROM lock_heartbeat(NULL, 'several', '1 month')$$);
-- A set is refused for one of its keys.
SELECT t.raises($$SELECT lock_acquire_all(ARRAY['s1', 'ttl:1', 's2'], '1 h', 'set')$$);
SELECT t.raises($$SELECT lock_try_acquire_all(ARRAY['s1', 'ttl:short:1', 'ttl:1'], '5 min', 'set')$$);
SELECT count(*) FROM lock_held('set');
-- Defaults are cut: that of the setting, that of a shorter prefix, and the last ttl.
SELECT lock_set_policy('cut', max_ttl => '2 min'), lock_set_policy('cut:default', default_ttl => '9 min');
SELECT k, t.ask('(lock_acquire({k}, owner => {o})).status', k, '') FROM unnest(ARRAY['cut', 'cut:default']) k;
SELECT lock_set_policy('last', max_lifetime => '10 min');
SELECT count(lock_acquire('last ' || n, '9 min', 'me')), count(lock_extend('last ' || n, 'me', '50 min')) FROM generate_series(1, 5) n;
SELECT lock_set_policy('last', max_ttl => '20 min');
SELECT lock_extend('last 1', 'me') IS NOT NULL AS extend, (lock_acquire('last 2', owner => 'me')).status, (SELECT status FROM lock_heartbeat(ARRAY['last 3'], 'me')), (SELECT id FROM lock_fetch(NULL::t.orders, '1', owner => 'me', key => 'last 4'));
SELECT s.key, extract(minutes FROM date_trunc('minutes', s.expires_at - s.acquired_at)) AS minutes FROM generate_series(1, 5) n, lock_status('last ' || n) s;
-- A longer lease stays, and follows the policy when a ttl is passed.
SELECT status FROM lock_acquire('stays', '50 min', 'me');
SELECT lock_set_policy('stays', max_ttl => '20 min'), lock_extend('stays', 'me') - acquired_at AS as_it_is FROM lock_status('stays');
SELECT lock_extend('stays', 'me', '20 min') - acquired_at < '30 min' AS follows_the_policy FROM lock_status('stays');
-- Without a policy for it, a default_ttl setting above max_ttl still is an error.
SET atomic_lock.default_ttl = '2 d';
SELECT t.raises($$SELECT lock_acquire('free')$$), t.ask('(lock_acquire({k}, owner => {o})).status', 'cut', ''), t.ask('(lock_acquire({k}, owner => {o})).status', 'ttl:1', '');
RESET atomic_lock.default_ttl;
-- A policy may allow more than the setting.
SET atomic_lock.max_ttl = '5 min';
SELECT lock_set_policy('more', max_ttl => '3 days');
SELECT t.ask('(lock_acquire({k}, {t}, {o})).status', 'more', '', '3 days'), t.ask('(lock_acquire({k}, {t}, {o})).status', 'less', '', '6 min');
SELECT (lock_acquire('more', '2 h', 'more')).status, (lock_acquire('less', '1 min', 'more')).status AS less;
SELECT lock_extend_all('more', '2 d'), t.length('more') AS more, t.length('less') AS less;
RESET atomic_lock.max_ttl;
SELECT lock_release_all('more'), lock_release_all('several');

--
-- max_wait
--
SELECT status FROM lock_acquire('wait:held', '5 min', 'me');
SELECT lock_set_policy('wait:', max_wait => '1 s'), lock_set_policy('wait:none', max_wait => '0'), lock_set_policy('wait:long', max_wait => '1 h');
SELECT * FROM t.ask_all('wait:', w => '1 s', which => 'acquire|convert|fetch');
SELECT * FROM t.ask_all('wait:', w => '1.000001 s', which => 'acquire|convert|fetch');
SELECT t.code($$SELECT lock_acquire('wait:none', wait => '1 us')$$), t.code($$SELECT lock_acquire('wait:none')$$) AS none, t.code($$SELECT lock_acquire('wait:long', wait => '1 h')$$) AS beyond_the_setting, t.code($$SELECT lock_acquire('x', wait => '1 h')$$) AS setting;
SELECT t.raises($$SELECT lock_acquire('wait:1', wait => '-1 us')$$), t.raises($$SELECT lock_acquire('wait:1', wait => '1 month')$$);
SELECT t.raises($$SELECT lock_try_acquire_all(ARRAY['s1', 'wait:1', 's2'], wait => '2 s')$$);

--
-- max_lifetime
--
SELECT lock_set_policy('life:', max_lifetime => '1 h');
SELECT status FROM lock_acquire('life:held', '1 h', 'me');
SELECT * FROM t.ask_all('life:', which => '^(?!.*release|transfer_all)');
SELECT * FROM t.ask_all('life:', '61 min', which => '^(?!.*release|.*convert|transfer_all)');
SELECT t.raises($$SELECT lock_extend('life:held', 'me', '50 min')$$) AS shorter, t.raises($$SELECT lock_extend('life:held', 'me', '2 h')$$) AS beyond;
-- by every way to renew
SELECT count(lock_acquire('life:' || v, '59 min', v)) FROM unnest(ARRAY['acquire', 'fetch', 'extend', 'extend_all', 'heartbeat', 'transfer']) v;
SELECT (lock_acquire('life:acquire', '1 h', 'acquire')).status, (SELECT id FROM lock_fetch(NULL::t.orders, '1', '1 h', 'fetch', key => 'life:fetch')), lock_extend('life:extend', 'extend', '1 h') IS NOT NULL AS extend, lock_extend_all('extend_all', '1 h'), (SELECT status FROM lock_heartbeat(ARRAY['life:heartbeat'], 'heartbeat', '1 h')), (lock_transfer('life:transfer', 'transfer', 'heir', ttl => '1 h')).status;
SELECT key, expires_at - acquired_at AS length FROM lock_status() WHERE key ~ '^life:[a-z_]' ORDER BY key;
SELECT s.expires_at = g.acquired_at + interval '1 h' AS session FROM lock_acquire('life:session', owner => 'me', lifetime => 'session') g, LATERAL lock_status(g.key) s;
-- LK008 names the policy
SELECT status FROM lock_acquire('life:over', '1 h', 'over');
SELECT lock_set_policy('life:', max_lifetime => '10 ms');
SELECT t.wait_until(acquired_at + interval '10 ms') IS NOT NULL AS past FROM lock_status('life:over');
SELECT t.raises($$SELECT lock_extend('life:over', 'over', '2 h')$$), lock_try_extend('life:over', 'over'), (SELECT status FROM lock_heartbeat(NULL, 'over')), t.code($$SELECT lock_transfer('life:over', 'over', 'o', ttl => '5 ms')$$) AS transfer;
SELECT lock_is_held('life:over', 'over') AS stays;
-- a policy without a limit overrides a setting with one, and vice versa
SET atomic_lock.max_lifetime = '10 min';
SELECT lock_set_policy('life:long', max_lifetime => '0');
SELECT t.code($$SELECT lock_acquire('life:long', '5 h')$$) AS none, t.raises($$SELECT lock_acquire('x', '5 h')$$) AS setting, t.code($$SELECT lock_acquire('life:short', '11 ms')$$) AS shorter;
RESET atomic_lock.max_lifetime;
SELECT lock_release_all('me') > 0 AS released, count(lock_drop_policy(prefix)) FROM lock_policies;
