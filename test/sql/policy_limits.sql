\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\set include :srcdir '/sql/include/verbs.sql'
\i :setup
--
-- Policies in every function that changes a lock: max_holders and quotas
--
-- Properties: limits of holders and quotas apply in each function that begins or
-- changes a lease, also to one key of a set, and the error names key and prefix.  A
-- quota counts each key that is held, once.  A new policy ends no holding.  All parts
-- of a policy hold at every isolation level, and for odd names.
--
-- Turns red when: one function forgets one rule; a quota counts an expired lease, the
-- key of the call itself, a key of another policy, or a key of another role.
DROP ROLE IF EXISTS regress_al_a, regress_al_b;
CREATE ROLE regress_al_a;
CREATE ROLE regress_al_b;
SELECT lock_grant_access(r, l) FROM unnest(ARRAY['regress_al_a', 'regress_al_b']::regrole[]) r, unnest(ARRAY['user', 'admin']) l;

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
