\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- Policies in every function that changes a lock: times, delays, holders, quotas
--
-- Properties: what a policy rules holds in each function that begins or changes a lease,
-- also for one key of a set, and the error names key and prefix; a ttl that nobody asked
-- for, or asked for whatever an owner has, is made shorter instead; a policy decides
-- where a setting says something else; what is held stays as it is, and its next
-- extension follows the policy; quotas count what is held, each key once.
--
-- Turns red when: one function forgets one rule; a policy breaks a call that passes no
-- ttl; a setting wins; min_hold is counted from the release; a quota counts what is over,
-- or the key that is asked for, or another policy's.
--
-- Roles are in policy_roles.sql, other sessions in iso_policy and iso_quota.
DROP ROLE IF EXISTS regress_al_a, regress_al_b;
CREATE ROLE regress_al_a;
CREATE ROLE regress_al_b;
SELECT lock_grant_access(r, l) FROM unnest(ARRAY['regress_al_a', 'regress_al_b']::regrole[]) r, unnest(ARRAY['user', 'admin']) l;
CREATE TABLE t.orders (id int PRIMARY KEY);
INSERT INTO t.orders VALUES (1);
GRANT SELECT ON t.orders TO PUBLIC;

-- {k} is the key: that prefix with "free" or "held" behind it; {o} its owner
CREATE TABLE t.verbs (n int GENERATED ALWAYS AS IDENTITY, verb text, has text, call text);
INSERT INTO t.verbs (verb, has, call) VALUES
	('acquire', 'free', '(lock_acquire({k}, {t}, {o}, wait => {w})).status'),
	('try_acquire', 'free', '(lock_try_acquire({k}, {t}, {o}, wait => {w})).status'),
	('acquire shared', 'free', '(lock_acquire({k}, {t}, {o}, ''shared'', {w})).status'),
	('acquire for the session', 'free', '(lock_acquire({k}, {t}, {o}, wait => {w}, lifetime => ''session'')).status'),
	('acquire_all', 'free', '(SELECT string_agg(status, '','') FROM lock_acquire_all(ARRAY[''before'', {k}, ''~behind''], {t}, {o}, wait => {w}))'),
	('try_acquire_all', 'free', '(SELECT string_agg(status, '','') FROM lock_try_acquire_all(ARRAY[''before'', {k}, ''~behind''], {t}, {o}, wait => {w}))'),
	('fetch', 'free', '(SELECT id || '' fetched'' FROM lock_fetch(NULL::t.orders, ''1'', {t}, {o}, {w}, {k}))'),
	('steal', 'free', '(lock_steal({k}, {o}, ''test'', {t})).status'),
	('acquire again', 'held', '(lock_acquire({k}, {t}, {o}, wait => {w})).status'),
	('acquire_all again', 'held', '(SELECT string_agg(status, '','') FROM lock_acquire_all(ARRAY[{k}], {t}, {o}, wait => {w}))'),
	('fetch again', 'held', '(SELECT id || '' fetched'' FROM lock_fetch(NULL::t.orders, ''1'', {t}, {o}, {w}, {k}))'),
	('steal from oneself', 'held', '(lock_steal({k}, {o}, ''test'', {t})).status'),
	('convert', 'held', '(lock_convert({k}, {o}, ''shared'', {w})).status'),
	('try_convert', 'held', '(lock_try_convert({k}, {o}, ''shared'', {w})).status'),
	('transfer', 'held', '(lock_transfer({k}, {o}, ''heir'', ttl => {t})).status'),
	('try_transfer', 'held', '(lock_try_transfer({k}, {o}, ''heir'', ttl => {t})).status'),
	('transfer_all', 'held', 'lock_transfer_all({o}, ''heir'') > 0'),
	('extend', 'held', 'lock_extend({k}, {o}, {t}) > now()'),
	('try_extend', 'held', 'lock_try_extend({k}, {o}, {t}) > now()'),
	('extend_all', 'held', 'lock_extend_all({o}, {t}) > 0'),
	('heartbeat', 'held', '(SELECT string_agg(status, '','') FROM lock_heartbeat(ARRAY[{k}], {o}, {t}))'),
	('heartbeat of all', 'held', '(SELECT string_agg(DISTINCT status, '','') FROM lock_heartbeat(NULL, {o}, {t}))'),
	('release', 'held', 'lock_release({k}, {o})'),
	('try_release', 'held', 'lock_try_release({k}, {o})'),
	('release_all', 'held', 'lock_release_all({o}) > 0'),
	('force_release', 'held', 'force_release({k}, ''test'')'),
	('try_force_release', 'held', 'lock_try_force_release({k}, ''test'')');

-- What is held of a key: the length of its lease as it was last asked for
CREATE FUNCTION t.length(k text) RETURNS text LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_catalog, pg_temp AS $$
	SELECT string_agg('for ' || ttl_us * interval '1 us', ',') FROM app_lock WHERE key = k AND NOT released AND expires_at > clock_timestamp()
$$;
-- What a call answers, and what is held then; undone in any case
CREATE FUNCTION t.ask(call text, prefix text, has text DEFAULT 'held', ttl interval DEFAULT NULL, wait interval DEFAULT '0', o text DEFAULT 'me') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	k		text := prefix || has;
	answer	text;
	d		text;
	h		text;
BEGIN
	EXECUTE 'SELECT ' || replace(replace(replace(replace(call, '{k}', quote_literal(k)), '{o}', quote_literal(o)), '{t}', coalesce(quote_literal(ttl), 'NULL')), '{w}', quote_literal(wait)) INTO answer;
	answer := concat_ws(' ', answer, t.length(k));
	RAISE SQLSTATE 'RB000';
EXCEPTION
	WHEN SQLSTATE 'RB000' THEN
		RETURN answer;
	WHEN OTHERS THEN
		GET STACKED DIAGNOSTICS d = PG_EXCEPTION_DETAIL, h = PG_EXCEPTION_HINT;
		RETURN t.render(SQLSTATE, SQLERRM, d, h);
END
$$;
-- The same of all functions: each answer, and which give it
CREATE FUNCTION t.ask_all(prefix text, t interval DEFAULT NULL, w interval DEFAULT '0', which text DEFAULT '', OUT answer text, OUT functions text) RETURNS SETOF record LANGUAGE sql AS $$
	SELECT answer, string_agg(verb, ', ' ORDER BY n) FROM (SELECT n, verb, t.ask(call, prefix, has, t, w) AS answer FROM t.verbs WHERE verb ~ which OFFSET 0) x GROUP BY answer ORDER BY min(n)
$$;
GRANT SELECT ON t.verbs TO PUBLIC;

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
-- Of several keys, each is capped by its own limit.
SELECT lock_set_policy('ttl:short', max_ttl => '1 min');
SELECT count(*) FROM lock_acquire_all(ARRAY['ttl:short', 'ttl:long', 'other'], '1 min', 'several');
SELECT key, status, ttl_remaining > '9 min' AS to_10_min, ttl_remaining > '55 min' AS to_1_h FROM lock_heartbeat(NULL, 'several', '1 h') ORDER BY key;
SELECT lock_extend_all('several', '2 h'), (SELECT string_agg(key || ' ' || ttl_us * interval '1 us', ', ' ORDER BY key) FROM app_lock WHERE owner = 'several') AS ttls;
SELECT t.raises($$SELECT lock_extend_all('several', '10 us')$$), t.raises($$SELECT * FROM lock_heartbeat(NULL, 'several', '1 month')$$);
-- A set is refused for its one key.
SELECT t.raises($$SELECT lock_acquire_all(ARRAY['s1', 'ttl:1', 's2'], '1 h', 'set')$$);
SELECT t.raises($$SELECT lock_try_acquire_all(ARRAY['s1', 'ttl:short:1', 'ttl:1'], '5 min', 'set')$$);
SELECT count(*) FROM lock_held('set');
-- What nobody asked for is cut: the setting's length, that of a shorter prefix, and the last one.
SELECT lock_set_policy('cut', max_ttl => '2 min'), lock_set_policy('cut:default', default_ttl => '9 min');
SELECT k, t.ask('(lock_acquire({k}, owner => {o})).status', k, '') FROM unnest(ARRAY['cut', 'cut:default']) k;
SELECT lock_set_policy('last', max_lifetime => '10 min');
SELECT count(lock_acquire('last ' || n, '9 min', 'me')), count(lock_extend('last ' || n, 'me', '50 min')) FROM generate_series(1, 5) n;
SELECT lock_set_policy('last', max_ttl => '20 min');
SELECT lock_extend('last 1', 'me') IS NOT NULL AS extend, (lock_acquire('last 2', owner => 'me')).status, (SELECT status FROM lock_heartbeat(ARRAY['last 3'], 'me')), (SELECT id FROM lock_fetch(NULL::t.orders, '1', owner => 'me', key => 'last 4'));
SELECT s.key, extract(minutes FROM date_trunc('minutes', s.expires_at - s.acquired_at)) AS minutes FROM generate_series(1, 5) n, lock_status('last ' || n) s;
-- What is held longer stays so, and follows the policy when a ttl is asked for.
SELECT status FROM lock_acquire('stays', '50 min', 'me');
SELECT lock_set_policy('stays', max_ttl => '20 min'), lock_extend('stays', 'me') - acquired_at AS as_it_is FROM lock_status('stays');
SELECT lock_extend('stays', 'me', '20 min') - acquired_at < '30 min' AS follows_the_policy FROM lock_status('stays');
-- Where a policy says nothing of it, a setting above another one is an error still.
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
-- however it is renewed
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
-- none, by a policy, where the setting has one; and the other way round
SET atomic_lock.max_lifetime = '10 min';
SELECT lock_set_policy('life:long', max_lifetime => '0');
SELECT t.code($$SELECT lock_acquire('life:long', '5 h')$$) AS none, t.raises($$SELECT lock_acquire('x', '5 h')$$) AS setting, t.code($$SELECT lock_acquire('life:short', '11 ms')$$) AS shorter;
RESET atomic_lock.max_lifetime;
SELECT lock_release_all('me') > 0 AS released, count(lock_drop_policy(prefix)) FROM lock_policies;

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
-- A sweep does not open it.
SELECT lock_sweep() AS swept, (lock_status('delay:free')).closed_until IS NOT NULL AS closed;
SELECT lock_drop_policy('delay:'), (lock_status('delay:free')).closed_until, (lock_try_acquire('delay:free', owner => 'you')).status;

--
-- min_hold: from the acquire on, however it ends
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
-- The stolen key is closed by the steal's own min_hold, which begins anew; who stole a closed key has it.
SELECT (lock_steal('min:given', 'thief', 'test')).status, lock_is_held('min:given', 'thief');
-- No holding that leaves nothing behind
SELECT t.raises($$SELECT lock_acquire('min:free', lifetime => 'transaction')$$), t.code($$SELECT lock_try_acquire('min:free', lifetime => 'transaction', mode => 'shared')$$), t.code($$SELECT lock_try_acquire('min:free', lifetime => 'session', mode => 'shared')$$) AS session;
-- A release that is rolled back, and one that is not yet committed
BEGIN;
SELECT lock_release('min:held', 'me'), (t.min_hold('min:held')).*;
ROLLBACK;
SELECT (t.min_hold('min:held')).*;
-- the end of a session
\c -
SET client_min_messages = warning;
SELECT t.expire(k) FROM unnest(ARRAY['min:session', 'min:shared session']) k;
SELECT k, m.* FROM unnest(ARRAY['min:session', 'min:shared session']) k, t.min_hold(k) m;
-- A sweep leaves them, and takes what is over.
SELECT lock_set_policy('min:keep', min_hold => '3 h');
SELECT count(lock_acquire(k, CASE WHEN k ~ 'expired' THEN interval '1 ms' ELSE '1 h' END, 'me', mode)) FROM unnest(ARRAY['min:keep', 'min:keep expired', 'min:keep forced', 'min:go', 'min:go expired']) k, unnest(ARRAY['exclusive', 'shared']) mode WHERE (mode = 'shared') = (k ~ 'forced');
SELECT t.expire('min:keep expired'), t.expire('min:go expired'), lock_release('min:keep', 'me'), lock_release('min:go', 'me'), force_release('min:keep forced', 'test');
UPDATE app_lock SET acquired_at = acquired_at - interval '2 h', expires_at = expires_at - interval '2 h' WHERE key ~ '^min:(keep|go)';
SELECT lock_sweep() > 0 AS swept;
SELECT key FROM app_lock WHERE key ~ '^min:(keep|go)' ORDER BY 1;
SELECT k, (lock_try_acquire(k, '1 h', 'you')).status FROM unnest(ARRAY['min:keep', 'min:keep expired', 'min:keep forced', 'min:go', 'min:go expired']) k;
-- What is counted is what holds now: shorter, none, longer.
SELECT lock_set_policy('min:', min_hold => '1 ms');
SELECT t.wait_until(acquired_at + interval '1 ms') IS NOT NULL AS past, (lock_try_acquire('min:released', owner => 'you')).status FROM app_lock WHERE key = 'min:released';
SELECT lock_drop_policy('min:');
SELECT k, m.* FROM unnest(ARRAY['min:expired', 'min:held', 'min:session']) k, t.min_hold(k) m;
SELECT lock_acquire('later', '1 h', 'me') IS NOT NULL AS acquired, lock_release('later', 'me'), lock_set_policy('later', min_hold => '2 h');
SELECT (t.min_hold('later')).*;
-- Who waits gets it when that is over, alone or with others in a set.
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
-- Shared leases that are over keep out who wants the key alone, also by a conversion.
SELECT status FROM lock_acquire('soon:4', owner => 'you', wait => '4 min');
SELECT status FROM lock_convert('soon:5', 'you', wait => '4 min');
SELECT clock_timestamp() >= timestamptz :'first' + interval '200 ms' AS after;
-- Who shares it later does not take that away, but an administrator opens the key.
SELECT lock_set_policy('soon', min_hold => '1 h');
SELECT (lock_acquire('soon:6', '1 h', 'me', 'shared')).status, lock_release('soon:6', 'me'), (lock_acquire('soon:6', '1 h', 'you', 'shared')).status AS you, force_release('soon:6', 'test');
SELECT t.code($$SELECT lock_acquire('soon:6')$$), (SELECT closed_until > now() FROM lock_status('soon:6'));
SELECT count(lock_drop_policy(prefix)) FROM lock_policies;

--
-- max_holders: the smaller one of the policy's and the caller's
--
SELECT lock_set_policy('seats:', max_holders => 2), lock_set_policy('seats:many', max_holders => 1000);
SELECT who, n, g.status, g.holders, g.max_holders FROM (VALUES ('ann', NULL), ('ben', 1), ('ben', 5), ('cid', NULL), ('cid', 5), ('cid', 2)) v (who, n), LATERAL lock_try_acquire('seats:free', '1 h', who, 'shared', max_holders => n) g;
SELECT t.raises($$SELECT lock_acquire('seats:free', '1 h', 'cid', 'shared')$$);
SELECT t.raises($$SELECT lock_acquire_all(ARRAY['a', 'seats:free'], '1 h', 'cid', 'shared')$$);
SELECT n, g.status, g.max_holders FROM unnest(ARRAY[NULL, 1, 1001]) n, LATERAL lock_try_acquire('seats:many', '1 h', 'o' || n, 'shared', max_holders => n) g;
SELECT t.code($$SELECT lock_acquire('seats:free', NULL, 'cid', 'shared', lifetime => 'transaction')$$) AS transaction, t.code($$SELECT lock_acquire('seats:free', '1 h', 'cid', 'shared', lifetime => 'session')$$) AS session;
SELECT status, max_holders FROM lock_acquire('seats:exclusive', '1 h', 'me');
SELECT status FROM lock_convert('seats:exclusive', 'me', 'shared');
SELECT (lock_try_acquire('seats:exclusive', '1 h', 'you', 'shared')).status, (lock_try_acquire('seats:exclusive', '1 h', 'they', 'shared')).status AS third;
-- An owner with a place keeps it, and a place that is let go is one.
SELECT (lock_try_acquire('seats:free', '1 h', 'ann', 'shared')).status, lock_release('seats:free', 'ben'), (lock_try_acquire('seats:free', '1 h', 'cid', 'shared')).status AS cid;
-- Fewer now: nobody has to go, and nobody comes in
SELECT lock_set_policy('seats:', max_holders => 1);
SELECT (lock_status('seats:free')).holders, (lock_try_acquire('seats:free', '1 h', 'ann', 'shared')).status, lock_release('seats:free', 'ann'), (lock_try_acquire('seats:free', '1 h', 'ann', 'shared')).status AS again;
SELECT count(lock_drop_policy(prefix)) FROM lock_policies;

--
-- max_keys_per_owner
--
SELECT lock_set_policy('q:', max_keys_per_owner => 2);
SELECT count(lock_acquire(k, '1 h', 'me')) FROM unnest(ARRAY['q:held', 'q:2']) k;
SELECT * FROM t.ask_all('q:', which => '^(?!transfer|try_transfer)');
SELECT t.ask('(lock_acquire({k}, {t}, {o}, lifetime => ''transaction'')).status', 'q:', 'free');
-- A refusal leaves nothing behind, but for a set, of which keys were granted, and a steal, which has ended a lease.
BEGIN;
SELECT count(*) FROM t.ask_all('q:', which => '^(acquire|try_acquire|acquire shared|acquire for the session|fetch)$');
SELECT * FROM t.left_open();
COMMIT;
-- Others, and other keys
SELECT t.ask('(lock_acquire({k}, owner => {o})).status', 'q:', 'free', o => 'you') AS another_owner, t.ask('(lock_acquire({k}, owner => {o})).status', 'Q:', 'free') AS another_key, t.ask('(lock_acquire({k})).status', 'q:', 'free') AS generated;
-- Who is handed a key has it: to one that has two, one that has one, and one that has this one
SELECT count(lock_acquire('q:' || k, '1 h', o)) FROM (VALUES ('from', 'you'), ('one', 'one')) v (k, o);
SELECT v, t.ask(v, 'q:', 'from', o => 'you') AS to_me FROM unnest(ARRAY['(lock_transfer({k}, {o}, ''me'')).status', '(lock_try_transfer({k}, {o}, ''me'')).status', 'lock_transfer_all({o}, ''me'')', '(lock_transfer({k}, {o}, ''one'')).status', '(lock_steal({k}, ''me'', ''test'')).status']) v;
SELECT (lock_acquire('q:shared', '1 h', 'you', 'shared')).status, (lock_acquire('q:shared', '1 h', 'two', 'shared')).status, (lock_acquire('q:two', '1 h', 'two')).status, t.ask('(lock_transfer({k}, {o}, ''two'')).status', 'q:', 'shared', o => 'you') AS merged;
-- What counts: whatever is live, once for each key, of every lifetime and mode
SELECT lock_release_all('me');
BEGIN;
SELECT (lock_acquire('q:1', owner => 'me', mode => 'shared', lifetime => 'transaction')).status, (lock_acquire('q:2', owner => 'me', lifetime => 'transaction')).status, t.ask('(lock_acquire({k}, {t}, {o})).status', 'q:', 'free');
-- the same key as a lease, then one of them let go
SELECT (lock_acquire('q:1', '1 h', owner => 'me')).status, t.code($$SELECT lock_acquire('q:3', owner => 'me')$$) AS full, lock_release('q:2', 'me'), t.code($$SELECT lock_acquire('q:3', owner => 'me')$$) AS room;
ROLLBACK;
SELECT k, t.code(format('SELECT lock_acquire(%L, owner => ''me'', lifetime => ''session'')', k)) AS before, (lock_acquire(k, CASE WHEN k <> 'q:session' THEN interval '1 h' END, 'me', CASE WHEN k ~ 'shared' THEN 'shared' ELSE 'exclusive' END, lifetime => CASE WHEN k ~ 'session' THEN 'session' ELSE 'lease' END)).status FROM unnest(ARRAY['q:session', 'q:1:shared']) k;
SELECT t.code($$SELECT lock_acquire('q:3', owner => 'me')$$) AS full, (lock_convert('q:1:shared', 'me')).status, t.code($$SELECT lock_acquire('q:3', owner => 'me')$$) AS converted, (lock_convert('q:1:shared', 'me', 'shared')).status, t.code($$SELECT lock_acquire('q:3', owner => 'me')$$) AS and_back;
-- What is over does not count: released, handed over, expired, forced, stolen, of a transaction
SELECT lock_release('q:session', 'me'), t.code($$SELECT lock_acquire('q:3', owner => 'me')$$) AS released;
SELECT (lock_acquire('q:3', '1 h', 'me')).status, (lock_transfer('q:3', 'me', 'heir')).status, t.code($$SELECT lock_acquire('q:4', owner => 'me')$$) AS handed_over;
SELECT (lock_acquire('q:4', '1 h', 'me')).status, t.run_out('q:4', 'me'), t.code($$SELECT lock_acquire('q:5', owner => 'me')$$) AS expired;
SELECT (lock_acquire('q:5', '1 h', 'me')).status, force_release('q:5', 'test'), t.code($$SELECT lock_acquire('q:6', owner => 'me')$$) AS forced;
SELECT (lock_acquire('q:6', '1 h', 'me')).status, (lock_steal('q:6', 'thief', 'test')).status, t.code($$SELECT lock_acquire('q:7', owner => 'me')$$) AS stolen;
SELECT (lock_acquire('q:7', owner => 'me', lifetime => 'transaction')).status;
SELECT t.code($$SELECT lock_acquire('q:8', owner => 'me')$$) AS transaction;
SELECT lock_release_all('me');
-- Sets count as a whole, all or none, and what the owner has of them once.
SELECT t.raises($$SELECT lock_acquire_all(ARRAY['q:a', 'q:b', 'q:c'], '1 h', 'me')$$), t.code($$SELECT lock_try_acquire_all(ARRAY['q:a', 'q:b', 'q:c'], '1 h', 'me')$$), (SELECT count(*) FROM lock_held('me')) AS held;
-- An owner that is generated for a set may have as many as any other.
SELECT t.raises($$SELECT lock_acquire_all(ARRAY['q:i', 'q:j', 'q:k'], '1 h')$$);
SELECT owner AS generated, count(*) FROM lock_acquire_all(ARRAY['q:i', 'q:j'], '1 h') GROUP BY 1 \gset
SELECT :count AS keys, t.code(format('SELECT lock_acquire(''q:l'', owner => %L)', :'generated')), lock_release_all(:'generated');
SELECT string_agg(status, ',') FROM lock_acquire_all(ARRAY['q:a', 'q:b', 'r:c'], '1 h', 'me');
SELECT string_agg(status, ',') FROM lock_acquire_all(ARRAY['q:a', 'q:b', 'r:d'], '1 h', 'me');
SELECT t.code($$SELECT lock_try_acquire_all(ARRAY['q:a', 'q:e'], '1 h', 'me')$$);
SELECT lock_release('q:a', 'me');
SELECT string_agg(status, ',') FROM lock_acquire_all(ARRAY['q:b', 'q:e'], '1 h', 'me');
-- A policy counts the keys that it rules: not those of a longer prefix that has a number of its own.
SELECT lock_set_policy('q:own:', max_keys_per_owner => 1), lock_set_policy('q:other:', max_ttl => '1 h');
SELECT t.raises($$SELECT lock_acquire('q:other:1', owner => 'me')$$) AS not_apart, (lock_acquire('q:own:1', '1 h', 'me')).status, t.raises($$SELECT lock_acquire('q:own:2', owner => 'me')$$);
SELECT lock_release('q:b', 'me'), (lock_acquire('q:other:1', '1 h', 'me')).status, t.code($$SELECT lock_acquire('q:f', owner => 'me')$$);
-- as the policies are now
SELECT lock_drop_policy('q:own:'), t.raises($$SELECT lock_acquire('q:own:2', owner => 'me')$$), lock_release('q:other:1', 'me'), t.code($$SELECT lock_acquire('q:own:2', owner => 'me')$$) AS still_two;
SELECT lock_set_policy('q:', max_keys_per_owner => 3), (lock_acquire('q:own:2', '1 h', 'me')).status, lock_set_policy('q:', max_keys_per_owner => 1), t.raises($$SELECT lock_acquire('q:g', owner => 'me')$$), t.code($$SELECT lock_extend('q:own:2', 'me')$$) AS what_it_has_stays;
-- '' is for all keys; owners with one hash of the key's half, and keys with one beginning
SELECT lock_release_all('me'), lock_set_policy('', max_keys_per_owner => 50), count(lock_drop_policy(p)) FROM unnest(ARRAY['q:', 'q:other:']) p;
SELECT count((lock_acquire('any ' || n, '1 h', 'me')).status) FROM generate_series(1, 50) n;
SELECT t.raises($$SELECT lock_acquire('any 51', owner => 'me')$$), t.code($$SELECT lock_acquire('any 51', owner => 'me2')$$) AS another;
SELECT lock_release_all('me'), lock_drop_policy('');
-- An owner that acquire has generated, and that comes back
SELECT lock_set_policy('q:', max_keys_per_owner => 2);
SELECT owner AS generated FROM lock_acquire('q:g1', '1 h') \gset
SELECT (lock_acquire('q:g2', '1 h', :'generated')).status, t.code(format('SELECT lock_acquire(''q:g3'', owner => %L)', :'generated'));
-- also before there was a quota
SELECT lock_drop_policy('q:');
SELECT owner AS generated FROM lock_acquire('q:h1', '1 h') \gset
SELECT (lock_acquire('q:h2', '1 h', :'generated', 'shared')).status;
SELECT lock_set_policy('q:', max_keys_per_owner => 2);
SELECT regexp_replace(t.raises(format('SELECT lock_acquire(''q:h3'', owner => %L)', :'generated')), '^(53400)?.*\n(DETAIL.*)\n.*', '\1 \2');
SELECT lock_release('q:h1', :'generated'), t.code(format('SELECT lock_acquire(''q:h3'', owner => %L)', :'generated'));
SELECT lock_drop_policy('q:');

--
-- max_keys_per_role: the one that acquired, whoever the owners are
--
SELECT lock_set_policy('role:', max_keys_per_role => 2), lock_set_policy('role:c', max_keys_per_role => 1);
SET ROLE regress_al_a;
SELECT count(lock_acquire('role:' || k, '1 h', o)) FROM (VALUES ('held', 'me'), ('2', '2')) v (k, o);
SELECT * FROM t.ask_all('role:', which => '^(acquire|acquire_all|acquire (?!again).*|try_acquire.*|fetch|steal)$');
SELECT t.raises($$SELECT lock_acquire('role:free')$$) AS generated, t.raises($$SELECT lock_acquire('role:free', lifetime => 'transaction')$$), t.code($$SELECT lock_acquire('role:c')$$) AS apart, t.code($$SELECT lock_acquire('other')$$) AS other;
SELECT * FROM t.ask_all('role:', which => '^(?!acquire$|acquire_all$|acquire (?!again)|try_acquire|fetch$|steal$)');
SET ROLE regress_al_b;
SELECT t.code($$SELECT lock_acquire('role:b1', '1 h', 'b')$$) AS another_role;
-- A transfer passes the key to the role that hands it over, which the holder's role then loses.
SELECT count(lock_acquire('role:b' || n, '1 h', 'b')) FROM generate_series(1, 2) n;
SELECT t.raises($$SELECT lock_transfer('role:held', 'me', 'b')$$), t.code($$SELECT lock_transfer_all('me', 'b')$$), t.code($$SELECT lock_steal('role:held', 'b', 'test')$$), t.code($$SELECT lock_transfer('role:b1', 'b', 'c')$$) AS its_own;
SELECT lock_release('role:b2', 'b'), (lock_transfer('role:held', 'me', 'b')).status, t.code($$SELECT lock_acquire('role:b2', owner => 'b')$$) AS full;
SET ROLE regress_al_a;
SELECT t.code($$SELECT lock_acquire('role:free')$$) AS room, (lock_acquire('role:free', '1 h', 'a', 'shared')).status, t.code($$SELECT lock_acquire('role:free2', '1 h', 'a', 'shared')$$) AS full;
-- one key, several owners
SELECT count(lock_acquire('role:free', '1 h', 'a' || n, 'shared')) FROM generate_series(1, 5) n;
SELECT lock_release('role:2', '2'), t.code($$SELECT lock_acquire('role:4')$$) AS one_key_counts_once;
RESET ROLE;
-- A superuser has a quota, too.
SELECT t.raises($$SELECT lock_acquire('role:s' || n) FROM generate_series(1, 3) n$$) ~ '^53400' AS superuser;
-- by an index that somebody has made for it
CREATE INDEX by_role ON app_lock (role, key);
SET ROLE regress_al_b;
SELECT t.code($$SELECT lock_acquire('role:b2', owner => 'b')$$) AS full, lock_release('role:b1', 'b'), t.code($$SELECT lock_acquire('role:b2', owner => 'b')$$) AS room;
RESET ROLE;
DROP INDEX by_role;
-- Both quotas, and another prefix for each
SELECT lock_set_policy('both:', max_keys_per_role => 3), lock_set_policy('both:x', max_keys_per_owner => 1);
SET ROLE regress_al_a;
SELECT k, o, t.code(format('SELECT lock_acquire(%L, owner => %L)', k, o)) AS before, (lock_acquire(k, '1 h', o)).status FROM (VALUES ('both:x1', 'o1'), ('both:y1', 'o1'), ('both:x2', 'o2')) v (k, o);
SELECT split_part(t.raises($$SELECT lock_acquire('both:x3', owner => 'o1')$$), E'\n', 2) AS both_full, split_part(t.raises($$SELECT lock_acquire('both:x3', owner => 'o3')$$), E'\n', 2) AS role_full, lock_release('both:y1', 'o1'), split_part(t.raises($$SELECT lock_acquire('both:x3', owner => 'o1')$$), E'\n', 2) AS owner_full, t.raises($$SELECT lock_acquire('both:x3', owner => 'o3')$$) AS neither;
RESET ROLE;

-- Names with characters that would disturb
SELECT lock_set_policy(E'odd\n"prefix"', max_ttl => '1 h', max_wait => '0', max_keys_per_owner => 1, max_holders => 1);
SELECT lock_acquire(E'odd\n"prefix"1', '1 h', 'me', 'shared') IS NOT NULL AS acquired;
SELECT t.raises($$SELECT lock_acquire(E'odd\n"prefix"\r2', '2 h', 'me')$$), t.raises($$SELECT lock_acquire(E'odd\n"prefix"\r2', owner => 'me')$$), t.raises($$SELECT lock_acquire(E'odd\n"prefix"\r2', wait => '1 s')$$);

-- At every isolation level, with a snapshot that is older
CREATE FUNCTION t.story() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	l		text := current_setting('transaction_isolation');
	answer	text := l;
BEGIN
	PERFORM lock_set_policy(l, max_ttl => '1 h', max_keys_per_owner => 2, min_hold => '1 h');
	answer := concat_ws(' ', answer, (lock_acquire(l || 1, '1 h', 'me')).status, (lock_acquire(l || 2, '1 h', 'me')).status, t.code(format('SELECT lock_acquire(%L, owner => ''me'')', l || 3)), lock_release(l || 1, 'me'));
	answer := concat_ws(' ', answer, (lock_try_acquire(l || 1, owner => 'me')).status, (lock_acquire(l || 3, '1 h', 'me')).status, t.code(format('SELECT lock_extend(%L, ''me'', ''2 h'')', l || 3)));
	PERFORM lock_drop_policy(l);
	answer := concat_ws(' ', answer, (lock_try_acquire(l || 1, owner => 'me')).status, lock_extend(l || 3, 'me', '2 h') > now(), lock_release_all('me'));
	RETURN answer;
END
$$;
:at_every_level
DROP OWNED BY regress_al_a, regress_al_b;
DROP ROLE regress_al_a, regress_al_b;
