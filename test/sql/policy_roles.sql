\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- Policies that reserve keys for roles
--
-- Properties:
-- - A caller that is a member of none of the roles, by PostgreSQL's rules, gets 42501 from
--   every function that changes such a key, whatever the key's state, also if it is one key of
--   many, and nothing changes. For a member the policy makes no difference.
-- - Reading, lock_assert and guards are not refused; nor are force_release and its kin, if the
--   caller has level admin.
-- - The current role counts, so a SECURITY DEFINER function has its owner's. A dropped role
--   admits no one.
--
-- Turns red when: one function does not check; a membership without INHERIT counts, or the
-- session's role; the roles of another policy, or no roles after a drop, admit a caller; a
-- refusal changes something, or reveals the state of the lock.
DROP ROLE IF EXISTS regress_al_a, regress_al_b, regress_al_in, regress_al_of_in, regress_al_noinherit, regress_al_out, regress_al_super, regress_al_dropped;
CREATE ROLE regress_al_a;
CREATE ROLE regress_al_b;
CREATE ROLE regress_al_in IN ROLE regress_al_a;
CREATE ROLE regress_al_of_in IN ROLE regress_al_in;
CREATE ROLE regress_al_noinherit NOINHERIT IN ROLE regress_al_a;
CREATE ROLE regress_al_out;
SELECT count(lock_grant_access(r, l)) FROM unnest(ARRAY['regress_al_a', 'regress_al_b', 'regress_al_in', 'regress_al_of_in', 'regress_al_noinherit', 'regress_al_out']::regrole[]) r, unnest(ARRAY['user', 'monitor', 'admin']) l;
CREATE TABLE t.orders (id int PRIMARY KEY);
INSERT INTO t.orders VALUES (1);
GRANT SELECT ON t.orders TO PUBLIC;

-- {k} is the key: a prefix followed by "free" or "held". Some calls for several holdings have
-- changed the first ones when they raise; that is rolled back.
CREATE TABLE t.verbs (n int GENERATED ALWAYS AS IDENTITY, kind text, has text, call text);
GRANT SELECT ON t.verbs TO PUBLIC;
INSERT INTO t.verbs (kind, has, call) VALUES
	('changes', 'free', '(lock_acquire({k}, owner => ''me'')).status'),
	('changes', 'free', '(lock_acquire({k})).status'),
	('changes', 'free', '(lock_try_acquire({k}, owner => ''me'', wait => ''1 min'')).status'),
	('changes', 'free', '(lock_acquire({k}, owner => ''me'', mode => ''shared'', max_holders => 2)).status'),
	('changes', 'free', '(lock_acquire({k}, owner => ''me'', lifetime => ''session'')).status'),
	('changes', 'free', '(lock_acquire({k}, owner => ''me'', lifetime => ''transaction'')).status'),
	('changes', 'free', '(SELECT string_agg(status, '','') FROM lock_acquire_all(ARRAY[''before'', {k}, ''~behind''], owner => ''me''))'),
	('changes', 'free', '(SELECT string_agg(status, '','') FROM lock_try_acquire_all(ARRAY[''before'', {k}, ''~behind''], owner => ''me''))'),
	('changes', 'free', '(SELECT id || '' fetched'' FROM lock_fetch(NULL::t.orders, ''1'', owner => ''me'', key => {k}))'),
	('changes', 'free', '(lock_steal({k}, ''me'', ''test'')).status'),
	('changes', 'free', 'lock_try_release({k}, ''me'')'),
	('changes', 'free', 'lock_try_extend({k}, ''me'') > now()'),
	('changes', 'free', '(lock_try_convert({k}, ''me'')).status'),
	('changes', 'free', '(lock_try_transfer({k}, ''me'', ''heir'')).status'),
	('several', 'free', '(SELECT string_agg(status, '','') FROM lock_heartbeat(ARRAY[''before'', {k}], ''me''))'),
	('changes', 'held', '(lock_acquire({k}, owner => ''me'')).status'),
	('changes', 'held', '(lock_try_acquire({k}, owner => ''you'')).status'),
	('changes', 'held', '(lock_acquire({k}, owner => ''me'', lifetime => ''transaction'')).status'),
	('several', 'held', '(SELECT string_agg(status, '','') FROM lock_acquire_all(ARRAY[''other'', {k}], owner => ''me''))'),
	('changes', 'held', '(SELECT id || '' fetched'' FROM lock_fetch(NULL::t.orders, ''1'', owner => ''me'', key => {k}))'),
	('changes', 'held', '(lock_steal({k}, ''you'', ''test'')).status'),
	('changes', 'held', '(lock_convert({k}, ''me'', ''shared'')).status'),
	('changes', 'held', '(lock_convert({k}, ''me'')).status'),
	('changes', 'held', '(lock_try_convert({k}, ''me'', ''shared'')).status'),
	('changes', 'held', '(lock_transfer({k}, ''me'', ''heir'')).status'),
	('changes', 'held', '(lock_try_transfer({k}, ''me'', ''heir'')).status'),
	('several', 'held', 'lock_transfer_all(''me'', ''heir'')'),
	('changes', 'held', 'lock_extend({k}, ''me'') > now()'),
	('changes', 'held', 'lock_try_extend({k}, ''me'') > now()'),
	('several', 'held', 'lock_extend_all(''me'')'),
	('several', 'held', '(SELECT string_agg(status, '','') FROM lock_heartbeat(ARRAY[''other'', {k}], ''me''))'),
	('several', 'held', '(SELECT string_agg(status, '','') FROM lock_heartbeat(owner => ''me''))'),
	('changes', 'held', 'lock_release({k}, ''me'')'),
	('changes', 'held', 'lock_try_release({k}, ''me'')'),
	('changes', 'held', 'lock_try_release({k}, ''you'')'),
	('several', 'held', 'lock_release_all(''me'')'),
	('reads', 'held', 'lock_is_held({k}, ''me'')'),
	('reads', 'held', 'lock_holder({k}) <> '''''),
	('reads', 'held', '(lock_status({k})).locked'),
	('reads', 'held', '(SELECT count(*) FROM lock_status())'),
	('reads', 'held', '(SELECT count(*) FROM lock_held(''me''))'),
	('reads', 'held', '(SELECT prefixes FROM lock_policy({k}))'),
	('reads', 'held', '(SELECT count(*) FROM lock_held_at({k}, now()))'),
	('reads', 'held', 'lock_assert({k}, ''me'') > 0'),
	('reads', 'held', 'lock_assert_fence({k}, (lock_status({k})).fencing_token, ''me'') IS NOT NULL'),
	('reads', 'held', 'lock_transfer_all(''nobody'', ''me'')'),
	('reads', 'held', 'lock_release_all(''nobody'')'),
	('reads', 'held', 'lock_sweep()'),
	('forces', 'held', 'force_release({k}, ''test'')'),
	('forces', 'held', 'lock_force_release({k}, ''test'')'),
	('forces', 'held', 'lock_try_force_release({k}, ''test'')'),
	('forces', 'free', 'lock_try_force_release({k}, ''test'')');

-- The answer of a call, which is undone in any case
CREATE FUNCTION t.ask(call text, prefix text, has text DEFAULT 'held') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text;
	d		text;
	h		text;
BEGIN
	EXECUTE 'SELECT ' || replace(call, '{k}', quote_literal(prefix || has)) INTO answer;
	RAISE SQLSTATE 'RB000';
EXCEPTION
	WHEN SQLSTATE 'RB000' THEN
		RETURN coalesce(answer, '-');
	WHEN OTHERS THEN
		GET STACKED DIAGNOSTICS d = PG_EXCEPTION_DETAIL, h = PG_EXCEPTION_HINT;
		RETURN t.render(SQLSTATE, SQLERRM, d, h);
END
$$;
-- The answers of all functions of a kind
CREATE FUNCTION t.ask_all(which text, prefix text, OUT answer text, OUT times bigint) RETURNS SETOF record LANGUAGE sql AS $$
	SELECT answer, count(*) FROM (SELECT n, t.ask(call, prefix, has) AS answer FROM t.verbs WHERE kind ~ which OFFSET 0) x GROUP BY answer ORDER BY min(n)
$$;
-- The number of changing functions that refuse the role, and the answers of the others
CREATE FUNCTION t.refused(prefix text, kinds text DEFAULT 'changes|several', OUT refused bigint, OUT others text) LANGUAGE sql AS $$
	SELECT count(*) FILTER (WHERE answer ~ '^42501: permission denied for lock "'), string_agg(call || ' ' || answer, ', ') FILTER (WHERE answer !~ '^42501: permission denied for lock "')
	FROM (SELECT call, t.ask(call, prefix, has) AS answer FROM t.verbs WHERE kind ~ kinds OFFSET 0) x
$$;
CREATE FUNCTION t.count_denied(prefix text) RETURNS bigint LANGUAGE sql AS $$
	SELECT count(*) FROM (SELECT t.ask(call, prefix, has) AS answer FROM t.verbs WHERE kind <> 'forces' OFFSET 0) x WHERE answer ~ '^42501'
$$;

--
-- In every function
--
SELECT lock_set_policy('r:', roles => '{regress_al_a}');
SELECT count(lock_acquire(k, '1 h', 'me', holder => 'Me')) FROM unnest(ARRAY['r:held', 'other']) k;
-- A call for one key, or to acquire a set, leaves nothing behind.
SELECT t.fingerprint() AS before \gset
SET ROLE regress_al_out;
BEGIN;
SELECT * FROM t.refused('r:', 'changes');
SELECT * FROM t.left_open();
COMMIT;
RESET ROLE;
SELECT t.fingerprint() = :'before' AS unchanged;
SET ROLE regress_al_out;
SELECT * FROM t.ask_all('changes|several', 'r:');
SELECT call, t.ask(call, 'r:', has) FROM t.verbs WHERE kind IN ('reads', 'forces') ORDER BY n;
RESET ROLE;
-- A member gets the same answers as any caller without such a policy.
CREATE VIEW t.difference AS SELECT r.call, t.ask(r.call, 'r:', r.has) AS reserved, t.ask(r.call, 'x:', r.has) AS other FROM t.verbs r WHERE r.kind <> 'forces' AND r.call ~ '\{k\}' AND r.call !~ 'lock_policy|lock_held_at';
GRANT SELECT ON t.difference TO PUBLIC;
SELECT status FROM lock_acquire('x:held', '1 h', 'me', holder => 'Me');
SET ROLE regress_al_in;
SELECT count(*), count(*) FILTER (WHERE regexp_replace(reserved, 'r:', 'x:', 'g') <> other) AS different, count(*) FILTER (WHERE reserved ~ '^42501') AS denied FROM t.difference;
SELECT * FROM t.ask_all('forces', 'r:');
RESET ROLE;

-- Supervisors: a policy excludes them from ending locks, too
CREATE ROLE regress_al_super;
SELECT lock_grant_access('regress_al_super', 'supervisor');
INSERT INTO t.verbs (kind, has, call) VALUES
	('token', 'held', 'force_release({k}, ''test'', 1)'),
	('token', 'held', 'lock_try_force_release({k}, ''test'', 1)'),
	('token', 'held', '(lock_steal({k}, ''you'', ''test'', fencing_token => 1)).status');
CREATE FUNCTION t.ends(prefix text, OUT call text, OUT answer text) RETURNS SETOF record LANGUAGE sql AS $$
	SELECT call || ' ' || has, t.ask(call, prefix, has) FROM t.verbs WHERE kind ~ 'forces|token' OR call ~ 'steal' ORDER BY n
$$;
SELECT t.fingerprint() AS before \gset
SET ROLE regress_al_super;
BEGIN;
SELECT * FROM t.ends('r:');
SELECT * FROM t.left_open();
COMMIT;
RESET ROLE;
SELECT t.fingerprint() = :'before' AS unchanged;
SET ROLE regress_al_super;
SELECT answer, count(*) FROM t.ends('x:') GROUP BY answer ORDER BY 1;
-- bad arguments are reported first
SELECT t.code($$SELECT force_release('r:held', '')$$) AS reason, t.code($$SELECT lock_try_force_release(NULL, 'test')$$) AS key, t.code($$SELECT lock_steal('r:held', 'you', NULL)$$) AS no_reason;
RESET ROLE;
-- not with a right that was granted by hand, either; but as a member, or with level admin
GRANT EXECUTE ON FUNCTION force_release TO regress_al_b;
SELECT lock_revoke_access('regress_al_b', 'admin');
GRANT EXECUTE ON FUNCTION force_release TO regress_al_b;
SET ROLE regress_al_b;
SELECT t.ask('force_release({k}, ''test'')', 'r:');
RESET ROLE;
SELECT lock_grant_access('regress_al_b', 'admin');
GRANT regress_al_a TO regress_al_super;
SET ROLE regress_al_super;
SELECT * FROM t.ends('r:');
RESET ROLE;
REVOKE regress_al_a FROM regress_al_super;
SELECT lock_grant_access('regress_al_super', 'admin');
SET ROLE regress_al_super;
SELECT * FROM t.ends('r:');
RESET ROLE;
SELECT lock_revoke_access('regress_al_super', 'admin');
-- A function of an administrator is the administrator.
CREATE FUNCTION t.by_admin(k text) RETURNS text LANGUAGE sql SECURITY DEFINER AS $$SELECT t.ask('force_release({k}, ''test'')', k, '')$$;
ALTER FUNCTION t.by_admin OWNER TO regress_al_out;
SET ROLE regress_al_super;
SELECT t.by_admin('r:held'), t.code($$SELECT force_release('r:held', 'test')$$);
RESET ROLE;
DROP FUNCTION t.by_admin;
DELETE FROM t.verbs WHERE kind = 'token';

-- Membership
--
-- the role itself, a member, a member of a member; not a member that needs SET ROLE
SET ROLE regress_al_a;
SELECT t.count_denied('r:') AS itself;
SET ROLE regress_al_of_in;
SELECT t.count_denied('r:') AS of_a_member;
SET ROLE regress_al_noinherit;
SELECT pg_has_role('regress_al_a', 'USAGE') AS usage, pg_has_role('regress_al_a', 'MEMBER') AS member, * FROM t.refused('r:');
RESET ROLE;
SET SESSION AUTHORIZATION regress_al_noinherit;
SELECT t.ask('(lock_try_acquire({k})).status', 'r:', 'free') ~ '^42501' AS before;
SET ROLE regress_al_a;
SELECT t.count_denied('r:') AS after_set_role;
RESET SESSION AUTHORIZATION;
-- a superuser, though a member of no role
SELECT t.count_denied('r:') AS superuser;
-- A superuser after SET ROLE is that role.
SET ROLE regress_al_b;
SELECT * FROM t.refused('r:');
RESET ROLE;
-- present memberships count
GRANT regress_al_a TO regress_al_b;
SET ROLE regress_al_b;
SELECT t.count_denied('r:') AS granted;
RESET ROLE;
REVOKE regress_al_a FROM regress_al_b;
SET ROLE regress_al_b;
SELECT refused FROM t.refused('r:');
RESET ROLE;
-- SECURITY DEFINER: the owner of the function counts
CREATE FUNCTION t.by_a(k text) RETURNS text LANGUAGE sql SECURITY DEFINER AS $$SELECT t.ask('(lock_try_acquire({k})).status', k, '')$$;
CREATE FUNCTION t.by_out(k text) RETURNS text LANGUAGE sql SECURITY DEFINER AS $$SELECT t.ask('(lock_try_acquire({k})).status', k, '')$$;
ALTER FUNCTION t.by_a OWNER TO regress_al_a;
ALTER FUNCTION t.by_out OWNER TO regress_al_out;
SET ROLE regress_al_out;
SELECT t.by_a('r:1') AS by_a, split_part(t.by_out('r:1'), ':', 1) AS by_out;
SET ROLE regress_al_in;
SELECT t.by_a('r:1') AS by_a, split_part(t.by_out('r:1'), ':', 1) AS by_out;
RESET ROLE;
SELECT t.by_a('r:1') AS by_a, split_part(t.by_out('r:1'), ':', 1) AS by_out;

--
-- Only the longest policy with roles counts
--
SELECT lock_set_policy('', roles => '{regress_al_b}'), lock_set_policy('r:both', roles => '{regress_al_a,regress_al_b}'), lock_set_policy('r:other', max_ttl => '1 h'), lock_set_policy('r:b', roles => '{regress_al_b}');
CREATE VIEW t.may AS SELECT current_user AS role, string_agg(k || ' ' || CASE t.ask('(lock_try_acquire({k})).status', k, '') WHEN 'acquired' THEN 'yes' ELSE 'no' END, ', ' ORDER BY k) FROM unnest(ARRAY['x', 'r', 'r:', 'r:1', 'r:b', 'r:bo', 'r:both', 'r:other']) k;
GRANT SELECT ON t.may TO PUBLIC;
SET ROLE regress_al_a;
TABLE t.may;
SELECT t.raises($$SELECT lock_acquire('r:b')$$), t.raises($$SELECT lock_acquire('x')$$);
SET ROLE regress_al_b;
TABLE t.may;
SET ROLE regress_al_out;
TABLE t.may;
RESET ROLE;
-- one refused key of a set, of all of an owner's leases, or of a heartbeat: nothing is done
SELECT count(lock_drop_policy(p)) FROM unnest(ARRAY['', 'r:both', 'r:b']) p;
SELECT count(*) FROM lock_acquire_all(ARRAY['all 1', 'r:all', 'z all'], '1 h', 'all');
SET ROLE regress_al_out;
SELECT t.raises($$SELECT lock_acquire_all(ARRAY['all 2', 'r:2', 'z all 2'])$$);
SELECT split_part(a, E'\n', 1), v FROM unnest(ARRAY['lock_release_all(''all'')', 'lock_extend_all(''all'', ''2 h'')', 'lock_transfer_all(''all'', ''heir'')', 'lock_heartbeat(owner => ''all'', ttl => ''2 h'')', 'lock_heartbeat(''{z all,all 1,r:all}'', ''all'', ''2 h'')']) v, LATERAL t.raises('SELECT ' || v) a;
SELECT lock_heartbeat('{z all,all 1}', 'all') IS NOT NULL AS without_it, lock_try_extend('all 1', 'all') > now() AS one;
RESET ROLE;
SELECT count(*) FROM lock_held('all');
-- bad arguments are reported first, then the missing role, and nothing about the state
SET ROLE regress_al_out;
SELECT t.code($$SELECT lock_acquire(NULL)$$) AS null_key, t.code($$SELECT lock_acquire('r:1', mode => 'x')$$) AS mode, t.code($$SELECT lock_acquire('r:1', '0')$$) AS ttl, t.code($$SELECT lock_release('r:1', 'nobody')$$) AS not_found, t.code($$SELECT lock_acquire('r:held', wait => '1 min')$$) AS wait;
RESET ROLE;
-- Guards: a role may write a row without being able to change its lock.
CREATE TABLE t.guarded (id int PRIMARY KEY, note text);
INSERT INTO t.guarded VALUES (1, 'one');
SELECT lock_protect('t.guarded', 'r:guarded:{id}');
GRANT ALL ON t.guarded TO regress_al_out;
SELECT status FROM lock_acquire('r:guarded:1', '1 h', 'me');
SET ROLE regress_al_out;
SET atomic_lock.owner = 'me';
UPDATE t.guarded SET note = 'two' WHERE id = 1;
SELECT t.ask('lock_try_release({k})', 'r:guarded:1', '') ~ '^42501' AS not_released;
RESET atomic_lock.owner;
RESET ROLE;
TABLE t.guarded;
-- A holding stays when a policy excludes its role, and the role can change it no more until it
-- ends.
SET ROLE regress_al_out;
SELECT status FROM lock_acquire('later', '1 h', 'me');
BEGIN;
SELECT status FROM lock_acquire('later tx', owner => 'me', lifetime => 'transaction');
RESET ROLE;
SELECT lock_set_policy('later', roles => '{regress_al_a}');
SET ROLE regress_al_out;
SELECT k, lock_is_held(k, 'me'), t.code(format('SELECT lock_release(%L, ''me'')', k)) AS release, t.code(format('SELECT lock_extend(%L, ''me'')', k)) AS extend FROM unnest(ARRAY['later', 'later tx']) k;
COMMIT;
SET ROLE regress_al_a;
SELECT lock_release('later', 'me');
RESET ROLE;

--
-- Dropped roles
--
CREATE ROLE regress_al_dropped;
SELECT lock_grant_access('regress_al_dropped', 'user');
SELECT lock_set_policy('d:', roles => '{regress_al_dropped}'), lock_set_policy('d:two', roles => '{regress_al_dropped,regress_al_a}');
SET ROLE regress_al_dropped;
SELECT t.ask('(lock_try_acquire({k})).status', k, '') FROM unnest(ARRAY['d:1', 'd:two']) k;
RESET ROLE;
DROP OWNED BY regress_al_dropped;
DROP ROLE regress_al_dropped;
-- the policy admits no one in its place, and a new role with its name is another role
CREATE ROLE regress_al_dropped;
SELECT lock_grant_access('regress_al_dropped', 'user');
SET ROLE regress_al_dropped;
SELECT split_part(t.ask('(lock_try_acquire({k})).status', k, ''), ':', 1) FROM unnest(ARRAY['d:1', 'd:two', 'free']) k;
SET ROLE regress_al_a;
SELECT split_part(t.ask('(lock_try_acquire({k})).status', k, ''), ':', 1) FROM unnest(ARRAY['d:1', 'd:two']) k;
RESET ROLE;
SELECT t.ask('(lock_try_acquire({k})).status', 'd:1', '') AS superuser;
SELECT prefix, regexp_replace(roles::text, '[0-9]+', '<number>') AS roles FROM lock_policies WHERE prefix ~ '^d';
SELECT regexp_replace((lock_policy('d:1')).roles::text, '[0-9]+', '<number>') AS roles, (lock_policy('d:1')).prefixes;
-- The number of the dropped role is refused.
SELECT t.code(format('SELECT lock_set_policy(''d:'', roles => %L)', roles)) FROM lock_policies WHERE prefix = 'd:';
-- DROP OWNED BY a role removes no policy.
SELECT lock_set_policy('d:', roles => '{regress_al_b}');
DROP OWNED BY regress_al_b;
SELECT prefix, roles FROM lock_policies WHERE prefix = 'd:';
-- PUBLIC is no role; a role without LOGIN or with an odd name is one
SELECT t.raises($$SELECT lock_set_policy('d:', roles => '{public}')$$);
-- The role that sets a policy need not be a member of the policy's roles.
SET ROLE regress_al_out;
SELECT lock_set_policy('d:', roles => '{regress_al_b}'), lock_drop_policy('d:two');
RESET ROLE;

-- At every isolation level, in a session that has used the lock before
CREATE FUNCTION t.story() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text := current_setting('transaction_isolation');
BEGIN
	PERFORM set_config('role', 'regress_al_out', true);
	answer := concat_ws(' ', answer, (lock_acquire('level', '1 h', 'me')).status);
	PERFORM set_config('role', 'none', true);
	PERFORM lock_set_policy('level', roles => '{regress_al_a}');
	PERFORM set_config('role', 'regress_al_out', true);
	answer := concat_ws(' ', answer, t.code($c$SELECT lock_release('level', 'me')$c$));
	PERFORM set_config('role', 'none', true);
	GRANT regress_al_a TO regress_al_out;
	PERFORM set_config('role', 'regress_al_out', true);
	answer := concat_ws(' ', answer, lock_try_release('level', 'me'));
	PERFORM set_config('role', 'none', true);
	REVOKE regress_al_a FROM regress_al_out;
	PERFORM lock_drop_policy('level');
	RETURN answer;
END
$$;
:at_every_level
SELECT count(lock_drop_policy(prefix)) FROM lock_policies;
DROP FUNCTION t.by_a, t.by_out;
DROP OWNED BY regress_al_a, regress_al_b, regress_al_in, regress_al_of_in, regress_al_noinherit, regress_al_out, regress_al_super, regress_al_dropped;
DROP ROLE regress_al_a, regress_al_b, regress_al_in, regress_al_of_in, regress_al_noinherit, regress_al_out, regress_al_super, regress_al_dropped;
