\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\set include :srcdir '/sql/include/verbs.sql'
\i :setup
-- Policies in every function that changes a lock: max_holders and quotas
--
-- Properties: limits on holders and quotas apply in each function that begins or changes a
-- lease, also to one key of a set, and the error names key and prefix. A quota counts each held
-- key once. A new policy ends no holding. All rules of a policy apply at every isolation level,
-- and for keys with special characters.
--
-- Turns red when: one function ignores one rule; a quota counts an expired lease, the key of
-- the call itself, a key of another policy, or a key of another role.
DROP ROLE IF EXISTS regress_al_a, regress_al_b;
CREATE ROLE regress_al_a;
CREATE ROLE regress_al_b;
SELECT lock_grant_access(r, l) FROM unnest(ARRAY['regress_al_a', 'regress_al_b']::regrole[]) r, unnest(ARRAY['user', 'admin']) l;

--
-- max_holders: the lower limit of the policy's and the caller's
--
SELECT lock_set_policy('seats:', max_holders => 2), lock_set_policy('seats:many', max_holders => 1000);
SELECT who, n, g.status, g.holders, g.max_holders FROM (VALUES ('ann', NULL), ('ben', 1), ('ben', 5), ('cid', NULL), ('cid', 5), ('cid', 2)) v (who, n), LATERAL lock_try_acquire('seats:free', '1 h', who, 'shared', max_holders => n) g;
SELECT t.raises($$SELECT lock_acquire('seats:free', '1 h', 'cid', 'shared')$$);
SELECT t.raises($$SELECT lock_acquire_all(ARRAY['a', 'seats:free'], '1 h', 'cid', 'shared')$$);
SELECT n, g.status, g.max_holders FROM unnest(ARRAY[NULL, 1, 1001]) n, LATERAL lock_try_acquire('seats:many', '1 h', 'o' || n, 'shared', max_holders => n) g;
SELECT t.raises($$SELECT lock_acquire('seats:free', NULL, 'cid', 'shared', lifetime => 'transaction')$$) AS transaction, t.raises($$SELECT lock_try_acquire_all(ARRAY['a', 'seats:free'], '1 h', 'cid', 'shared', '1 ms')$$) AS set, t.code($$SELECT lock_acquire('seats:free', '1 h', 'cid', 'shared', lifetime => 'session')$$) AS session;
SELECT status, max_holders FROM lock_acquire('seats:exclusive', '1 h', 'me');
SELECT status FROM lock_convert('seats:exclusive', 'me', 'shared');
SELECT (lock_try_acquire('seats:exclusive', '1 h', 'you', 'shared')).status, (lock_try_acquire('seats:exclusive', '1 h', 'they', 'shared')).status AS third;
-- An owner keeps its seat, and a released seat is free.
SELECT (lock_try_acquire('seats:free', '1 h', 'ann', 'shared')).status, lock_release('seats:free', 'ben'), (lock_try_acquire('seats:free', '1 h', 'cid', 'shared')).status AS cid;
-- A lower limit ends no holding, and admits no new one
SELECT lock_set_policy('seats:', max_holders => 1);
SELECT (lock_status('seats:free')).holders, (lock_try_acquire('seats:free', '1 h', 'ann', 'shared')).status, lock_release('seats:free', 'ann'), (lock_try_acquire('seats:free', '1 h', 'ann', 'shared')).status AS again;
SELECT count(lock_drop_policy(prefix)) FROM lock_policies;

--
-- max_keys_per_role: which keys count
--
SELECT lock_set_policy('q:', max_keys_per_role => 2);
-- Each live key counts once, of every lifetime and mode
BEGIN;
SELECT (lock_acquire('q:1', owner => 'me', mode => 'shared', lifetime => 'transaction')).status, (lock_acquire('q:2', owner => 'me', lifetime => 'transaction')).status, t.ask('(lock_acquire({k}, {t}, {o})).status', 'q:', 'free');
-- the same key as a lease, then one of the shares released
SELECT (lock_acquire('q:1', '1 h', owner => 'me')).status, t.code($$SELECT lock_acquire('q:3', owner => 'me')$$) AS full, lock_release('q:2', 'me'), t.code($$SELECT lock_acquire('q:3', owner => 'me')$$) AS room;
ROLLBACK;
SELECT k, t.code(format('SELECT lock_acquire(%L, owner => ''me'', lifetime => ''session'')', k)) AS before, (lock_acquire(k, CASE WHEN k <> 'q:session' THEN interval '1 h' END, 'me', CASE WHEN k ~ 'shared' THEN 'shared' ELSE 'exclusive' END, lifetime => CASE WHEN k ~ 'session' THEN 'session' ELSE 'lease' END)).status FROM unnest(ARRAY['q:session', 'q:1:shared']) k;
SELECT t.code($$SELECT lock_acquire('q:3', owner => 'me')$$) AS full, (lock_convert('q:1:shared', 'me')).status, t.code($$SELECT lock_acquire('q:3', owner => 'me')$$) AS converted, (lock_convert('q:1:shared', 'me', 'shared')).status, t.code($$SELECT lock_acquire('q:3', owner => 'me')$$) AS and_back;
-- Ended holdings do not count: released, expired, forced, or with lifetime transaction
SELECT lock_release('q:session', 'me'), t.code($$SELECT lock_acquire('q:3', owner => 'me')$$) AS released;
SELECT (lock_acquire('q:4', '1 h', 'me')).status, t.run_out('q:4', 'me'), t.code($$SELECT lock_acquire('q:5', owner => 'me')$$) AS expired;
SELECT (lock_acquire('q:5', '1 h', 'me')).status, force_release('q:5', 'test'), t.code($$SELECT lock_acquire('q:6', owner => 'me')$$) AS forced;
SELECT (lock_acquire('q:7', owner => 'me', lifetime => 'transaction')).status;
SELECT t.code($$SELECT lock_acquire('q:8', owner => 'me')$$) AS transaction;
SELECT lock_release_all('me');
-- A set counts as a whole, all or none, and keys that the owner has already count once.
SELECT t.raises($$SELECT lock_acquire_all(ARRAY['q:a', 'q:b', 'q:c'], '1 h', 'me')$$), t.code($$SELECT lock_try_acquire_all(ARRAY['q:a', 'q:b', 'q:c'], '1 h', 'me')$$), (SELECT count(*) FROM lock_held('me')) AS held;
SELECT string_agg(status, ',') FROM lock_acquire_all(ARRAY['q:a', 'q:b', 'r:c'], '1 h', 'me');
SELECT string_agg(status, ',') FROM lock_acquire_all(ARRAY['q:a', 'q:b', 'r:d'], '1 h', 'me');
SELECT t.code($$SELECT lock_try_acquire_all(ARRAY['q:a', 'q:e'], '1 h', 'me')$$);
SELECT lock_release('q:a', 'me');
SELECT string_agg(status, ',') FROM lock_acquire_all(ARRAY['q:b', 'q:e'], '1 h', 'me');
-- A policy counts the keys that it rules, not those of a longer prefix with its own quota.
SELECT lock_set_policy('q:own:', max_keys_per_role => 1), lock_set_policy('q:other:', max_ttl => '1 h');
SELECT t.raises($$SELECT lock_acquire('q:other:1', owner => 'me')$$) AS not_apart, (lock_acquire('q:own:1', '1 h', 'me')).status, t.raises($$SELECT lock_acquire('q:own:2', owner => 'me')$$);
SELECT lock_release('q:b', 'me'), (lock_acquire('q:other:1', '1 h', 'me')).status, t.code($$SELECT lock_acquire('q:f', owner => 'me')$$);
-- by the present policies
SELECT lock_drop_policy('q:own:'), t.raises($$SELECT lock_acquire('q:own:2', owner => 'me')$$), lock_release('q:other:1', 'me'), t.code($$SELECT lock_acquire('q:own:2', owner => 'me')$$) AS still_two;
SELECT lock_set_policy('q:', max_keys_per_role => 3), (lock_acquire('q:own:2', '1 h', 'me')).status, lock_set_policy('q:', max_keys_per_role => 1), t.raises($$SELECT lock_acquire('q:g', owner => 'me')$$), t.code($$SELECT lock_extend('q:own:2', 'me')$$) AS what_it_has_stays;
-- the empty prefix: all keys
TRUNCATE app_lock;
SELECT lock_set_policy('', max_keys_per_role => 50), count(lock_drop_policy(p)) FROM unnest(ARRAY['q:', 'q:other:']) p;
SELECT count((lock_acquire('any ' || n, '1 h', 'me')).status) FROM generate_series(1, 50) n;
SELECT t.raises($$SELECT lock_acquire('any 51', owner => 'me')$$);
SELECT lock_release_all('me'), lock_drop_policy('');
--
-- ... of the role that acquired, with any owners
--
SELECT lock_set_policy('role:', max_keys_per_role => 2), lock_set_policy('role:c', max_keys_per_role => 1);
SET ROLE regress_al_a;
SELECT count(lock_acquire('role:' || k, '1 h', o)) FROM (VALUES ('held', 'me'), ('2', '2')) v (k, o);
SELECT * FROM t.ask_all('role:', which => '^(acquire|acquire_all|acquire (?!again).*|try_acquire.*|fetch|steal)$');
SELECT t.raises($$SELECT lock_acquire('role:free')$$) AS generated, t.raises($$SELECT lock_acquire('role:free', lifetime => 'transaction')$$), t.code($$SELECT lock_acquire('role:c')$$) AS apart, t.code($$SELECT lock_acquire('other')$$) AS other;
SELECT * FROM t.ask_all('role:', which => '^(?!acquire$|acquire_all$|acquire (?!again)|try_acquire|fetch$|steal$)');
SET ROLE regress_al_b;
SELECT t.code($$SELECT lock_acquire('role:b1', '1 h', 'b')$$) AS another_role;
-- A transfer moves the key to the quota of the role that transfers it.
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
-- with a user's index that fits
CREATE INDEX by_role ON app_lock (role, key);
SET ROLE regress_al_b;
SELECT t.code($$SELECT lock_acquire('role:b2', owner => 'b')$$) AS full, lock_release('role:b1', 'b'), t.code($$SELECT lock_acquire('role:b2', owner => 'b')$$) AS room;
RESET ROLE;
DROP INDEX by_role;
-- Prefixes and keys with special characters
SELECT lock_set_policy(E'odd\n"prefix"', max_ttl => '1 h', max_wait => '0', max_keys_per_role => 1, max_holders => 1);
SELECT lock_acquire(E'odd\n"prefix"1', '1 h', 'me', 'shared') IS NOT NULL AS acquired;
SELECT t.raises($$SELECT lock_acquire(E'odd\n"prefix"\r2', '2 h', 'me')$$), t.raises($$SELECT lock_acquire(E'odd\n"prefix"\r2', owner => 'me')$$), t.raises($$SELECT lock_acquire(E'odd\n"prefix"\r2', wait => '1 s')$$);

-- At every isolation level, with an older snapshot
CREATE FUNCTION t.story() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	l		text := current_setting('transaction_isolation');
	answer	text := l;
BEGIN
	PERFORM lock_set_policy(l, max_ttl => '1 h', max_keys_per_role => 2, min_hold => '1 h');
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
