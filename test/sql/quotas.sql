\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- Counting the keys of a role: the work it takes, and the locks that it leaves
--
-- Properties: after each call, whatever its answer, no claim on a quota remains, except the
-- lock of a transaction that holds keys without a row. A key that several owners share counts
-- once, with rows and without, and for the role in its row. Users' indexes neither turn a quota
-- off nor change the count, and one that fits is used. All keys of a set are counted at once.
--
-- Turns red when: a claim stays until the end of the transaction, after a grant or a refusal;
-- two owners of one key count as two keys; a scan stops at the wrong end of an index; each key
-- of a set causes a count of its own.
--
-- policy_limits.sql tests the answers at a quota; iso_quota and iso_quota_claims test other
-- sessions.
DROP ROLE IF EXISTS regress_al_a, regress_al_b;
CREATE ROLE regress_al_a;
CREATE ROLE regress_al_b;
SELECT lock_grant_access(r, l) FROM unnest(ARRAY['regress_al_a', 'regress_al_b']::regrole[]) r, unnest(ARRAY['user', 'admin']) l;
CREATE TABLE t.orders (id int PRIMARY KEY);
INSERT INTO t.orders VALUES (1);
CREATE TABLE t.secured (id int PRIMARY KEY);
INSERT INTO t.secured VALUES (1);
ALTER TABLE t.secured ENABLE ROW LEVEL SECURITY;
CREATE POLICY all_rows ON t.secured USING (true);
GRANT SELECT ON t.orders, t.secured TO PUBLIC;

-- Claims
--
-- The modes of this transaction's claims on quotas
CREATE FUNCTION t.claims() RETURNS text LANGUAGE sql AS $$
	SELECT coalesce(string_agg(n || ' ' || mode, ', ' ORDER BY mode), 'none') FROM (SELECT mode, count(*) AS n FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND objsubid = 1711 GROUP BY mode) l
$$;
-- The answer of a call or the SQLSTATE of its error, and the claims that it leaves
CREATE FUNCTION t.try(call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text;
BEGIN
	BEGIN
		EXECUTE 'SELECT ' || call INTO answer;
	EXCEPTION WHEN OTHERS THEN
		answer := SQLSTATE;
	END;
	RETURN answer || ': ' || t.claims();
END
$$;
SELECT lock_set_policy('', max_keys_per_role => 20), lock_set_policy('n:', max_keys_per_role => 1, min_hold => '1 h'), lock_set_policy('d:', lock_delay => '1 h');
SELECT count(lock_acquire(k, '1 h', 'you')) FROM unnest(ARRAY['yours', 'yours too', 'd:yours']) k;
SELECT count(lock_acquire('shared', '1 h', o, 'shared')) FROM unnest(ARRAY['you too', 'him']) o;
SELECT (lock_acquire('d:closed', '1 ms', 'him')).status, (lock_acquire('d:over', '1 ms', 'him')).status;
SELECT t.expire('d:closed'), t.expire('d:over');
-- A call without a savepoint, in a transaction that continues
CREATE FUNCTION t.run(call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text;
BEGIN
	EXECUTE 'SELECT ' || call INTO answer;
	RETURN concat_ws(': ', answer, t.claims());
END
$$;
CREATE TABLE t.calls (n int GENERATED ALWAYS AS IDENTITY, call text);
-- granted, or calls about existing holdings
INSERT INTO t.calls (call) VALUES
	('(lock_acquire(''a'', ''1 h'', ''me'')).status'),
	('(lock_acquire(''a'', ''2 h'', ''me'')).status'),
	('(lock_acquire(''a'', owner => ''me'', lifetime => ''transaction'')).status'),
	('(lock_acquire(''a'', owner => ''me'', lifetime => ''session'')).status'),
	('(lock_convert(''a'', ''me'', ''shared'')).status'),
	('(lock_acquire(''a'', ''1 h'', ''me'')).status'),
	('(lock_convert(''a'', ''me'', ''exclusive'', ''1 ms'')).status'),
	('lock_extend(''a'', ''me'', ''3 h'') > now()'),
	('lock_try_extend(''a'', ''me'') > now()'),
	('lock_extend_all(''me'')'),
	('(SELECT string_agg(status, '','') FROM lock_heartbeat(NULL, ''me''))'),
	('(lock_acquire(''shared'', ''1 h'', ''me'', ''shared'')).status'),
	('(lock_transfer(''shared'', ''me'', ''him'')).status'),
	('(lock_transfer(''a'', ''me'', ''us'')).status'),
	('lock_transfer_all(''us'', ''me'')'),
	('(lock_steal(''a'', ''me'', ''test'')).status'),
	('(lock_steal(''yours too'', ''me'', ''test'')).status'),
	('(lock_acquire(''generated'')).status'),
	('(lock_acquire(''generated and shared'', mode => ''shared'')).status'),
	('(SELECT string_agg(status, '','') FROM lock_acquire_all(ARRAY[''c'', ''b'', ''generated 1''], ''1 h'', ''us too''))'),
	('(SELECT string_agg(status, '','') FROM lock_acquire_all(ARRAY[''yours too'', ''d''], ''1 h'', ''me''))'),
	('lock_release_all(''me'') + lock_release_all(''us too'')'),
	('(SELECT string_agg(status, '','') FROM lock_acquire_all(ARRAY[''a'', ''b'', ''c''], ''1 h'', ''me''))'),
	('(SELECT string_agg(status, '','') FROM lock_acquire_all(ARRAY[''generated 2'', ''generated 3'']))'),
	('lock_release(''c'', ''me'')'),
	('force_release(''b'', ''test'')'),
	('(SELECT id FROM lock_fetch(NULL::t.orders, ''1'', owner => ''me''))'),
	('(SELECT id FROM lock_fetch(NULL::t.orders, ''1'', owner => ''me''))'),
	('(SELECT id FROM lock_fetch(NULL::t.orders, ''2'', owner => ''me''))'),
	('(SELECT id FROM lock_fetch(NULL::t.orders, ''2'', owner => ''me'', wait => ''1 ms''))'),
	('lock_release_all(''me'')'),
	('(SELECT id FROM lock_fetch(NULL::t.secured, ''1'', owner => ''me''))'),
	('(SELECT id FROM lock_fetch(NULL::t.secured, ''1'', owner => ''me''))'),
	('(SELECT id FROM lock_fetch(NULL::t.secured, ''2'', owner => ''me''))'),
	('lock_release_all(''me'')');
-- refused
INSERT INTO t.calls (call) VALUES
	('(lock_try_acquire(''yours'', ''1 h'', ''me'')).status'),
	('(lock_try_acquire(''yours'', ''1 h'', ''me'', ''shared'', wait => ''1 ms'')).status'),
	('(lock_try_acquire(''yours'', owner => ''me'', lifetime => ''transaction'')).status'),
	('(lock_try_acquire(''yours'', owner => ''me'', lifetime => ''transaction'', wait => ''1 ms'')).status'),
	('(lock_try_acquire(''shared'', ''1 h'', ''me'', ''shared'', max_holders => 2)).status'),
	('(lock_try_acquire(''shared'', ''1 h'', ''me'', ''shared'', max_holders => 2, wait => ''1 ms'')).status'),
	('(lock_try_acquire(''d:closed'', ''1 h'', ''me'')).status'),
	('(lock_try_acquire(''d:closed'', owner => ''me'', lifetime => ''transaction'', wait => ''1 ms'')).status'),
	('(SELECT string_agg(status, '','') FROM lock_try_acquire_all(ARRAY[''a'', ''yours'', ''z''], ''1 h'', ''me''))'),
	('(SELECT string_agg(status, '','') FROM lock_try_acquire_all(ARRAY[''a'', ''yours'', ''z''], ''1 h'', ''me'', wait => ''1 ms''))'),
	('(lock_try_convert(''shared'', ''him'', ''exclusive'')).status'),
	('(lock_try_convert(''shared'', ''him'', ''exclusive'', ''1 ms'')).status'),
	('(lock_try_convert(''shared'', ''me'', ''exclusive'')).status'),
	('lock_try_extend(''yours'', ''me'') IS NULL'),
	('lock_try_extend(''d:over'', ''him'') IS NULL'),
	('(lock_try_transfer(''yours'', ''me'', ''him'')).status'),
	('lock_try_release(''yours'', ''me'')');
BEGIN;
SELECT call, t.run(call) AS leaves FROM (SELECT * FROM t.calls ORDER BY n) c;
ROLLBACK;
-- the same with a savepoint that is released
BEGIN;
SELECT string_agg(DISTINCT substring(t.try(call) FROM '[^:]*$'), ',') AS leave FROM (SELECT * FROM t.calls ORDER BY n) c;
ROLLBACK;
-- errors that a savepoint catches
BEGIN;
SELECT count(lock_acquire(k, '1 h', 'me')) FROM unnest(ARRAY['a', 'b', 'c']) k;
SELECT count(lock_acquire('r:' || n, '1 h', 'o' || n)) FROM generate_series(1, 13) n;
SELECT call, t.try(call) AS leaves FROM unnest(ARRAY[
	'lock_acquire(''z'', ''1 h'', ''me'')', 'lock_try_acquire(''z'', owner => ''me'', lifetime => ''transaction'')',
	'lock_acquire(''z'', ''1 h'', ''r'')', 'lock_acquire(''too many for the role'')', 'lock_acquire(''too many for the role'', ''1 h'', ''r2'', wait => ''1 s'')',
	'(SELECT count(*) FROM lock_acquire_all(ARRAY[''v'', ''w''], ''1 h'', ''t''))',
	'(SELECT count(*) FROM lock_acquire_all(ARRAY[''1'', ''2'', ''3'', ''4'']))', '(SELECT count(*) FROM lock_acquire_all(ARRAY[''n:1'', ''n:2''], ''1 h'', ''t''))',
	'(SELECT id FROM lock_fetch(NULL::t.orders, ''1'', owner => ''me''))', '(SELECT id FROM lock_fetch(NULL::t.secured, ''1'', owner => ''me''))',
	'lock_acquire(''n:1'', owner => ''t'', lifetime => ''transaction'')', 'lock_acquire(''yours'', ''1 h'', ''t'')', 'lock_convert(''a'', ''t'')', 'lock_extend(''d:over'', ''him'')']) call;
SELECT count(*) FROM lock_held('me');
ROLLBACK;
-- A transaction that holds keys without a row keeps a lock on each quota
BEGIN;
SELECT call, t.run(call) AS leaves FROM unnest(ARRAY[
	'(lock_acquire(''a'', owner => ''me'', lifetime => ''transaction'')).status', '(lock_acquire(''a'', owner => ''me'', lifetime => ''transaction'')).status', '(lock_convert(''a'', ''me'', ''shared'')).status',
	'(lock_acquire(''b'', owner => ''me'', mode => ''shared'', lifetime => ''transaction'')).status', '(lock_acquire(''c'', ''1 h'', ''me'')).status', '(lock_acquire(''b'', owner => ''me'', lifetime => ''transaction'')).status',
	'(lock_try_acquire(''yours'', owner => ''me'', lifetime => ''transaction'')).status', 'lock_extend(''b'', ''me'') IS NOT NULL', '(lock_transfer(''b'', ''me'', ''us'')).status',
	'(lock_acquire(''a'', ''1 h'', ''me'')).status', 'lock_release(''b'', ''us'')']) call;
SAVEPOINT s;
SELECT t.run('(lock_acquire(''g'', owner => ''they'', lifetime => ''transaction'')).status') AS leaves;
ROLLBACK TO s;
SELECT t.claims();
COMMIT;
SELECT t.claims();
-- no claims without a quota
SELECT count(lock_drop_policy(prefix)), lock_release_all('me') IS NULL FROM lock_policies;
BEGIN;
SELECT t.run('(lock_acquire(''z'', ''1 h'', ''me'')).status') AS lease, t.run('(lock_acquire(''y'', owner => ''me'', lifetime => ''transaction'')).status') AS transaction;
ROLLBACK;
TRUNCATE app_lock;

--
-- A key that several owners share counts once for their role
--
SELECT lock_set_policy('r:', max_keys_per_role => 2);
BEGIN;
SELECT (lock_acquire('r:1', owner => 'a', mode => 'shared', lifetime => 'transaction')).status, (lock_acquire('r:1', owner => 'b', mode => 'shared', lifetime => 'transaction')).status AS again, (lock_acquire('r:1', '1 h', 'c', 'shared')).status AS with_a_row;
SELECT (lock_acquire('r:2', owner => 'a', mode => 'shared', lifetime => 'transaction')).status;
SELECT t.raises('SELECT lock_acquire(''r:3'', owner => ''a'', lifetime => ''transaction'')') AS without_a_row, t.code('SELECT lock_acquire(''r:3'', ''1 h'', ''a'')') AS with_a_row;
SELECT (lock_acquire('r:2', '1 h', 'd', 'shared')).status, (lock_acquire('r:1', owner => 'd', mode => 'shared', lifetime => 'transaction')).status AS yet_again;
-- The key counts until the last owner has released it.
SELECT lock_release('r:2', 'd'), t.code('SELECT lock_acquire(''r:3'', ''1 h'', ''a'')');
SELECT lock_release('r:2', 'a'), t.code('SELECT lock_acquire(''r:3'', ''1 h'', ''a'')');
SELECT lock_release('r:1', 'a'), lock_release('r:1', 'c'), (lock_acquire('r:3', '1 h', 'a')).status, t.code('SELECT lock_acquire(''r:4'', ''1 h'', ''a'')');
ROLLBACK;
-- with rows only; and for another role
SELECT count(lock_acquire('r:' || n % 2, '1 h', 'o' || n, 'shared')) FROM generate_series(1, 10) n;
SELECT t.code('SELECT lock_acquire(''r:3'', ''1 h'', ''a'')') AS refused;
SET ROLE regress_al_a;
SELECT (lock_acquire('r:1', '1 h', 'a', 'shared')).status, (lock_acquire('r:3', '1 h', 'a')).status AS of_another_role, t.code('SELECT lock_acquire(''r:4'', ''1 h'', ''a'')') AS third;
RESET ROLE;
TRUNCATE app_lock;
-- A holding that becomes a lease counts for the role that acquired it.
SET ROLE regress_al_b;
SELECT count(lock_acquire('r:' || n, '1 h', 'b')) FROM generate_series(1, 2) n;
BEGIN;
SET LOCAL ROLE regress_al_a;
SELECT (lock_acquire('r:3', owner => 'x', mode => 'shared', lifetime => 'transaction')).status, (lock_acquire('r:4', owner => 'x', mode => 'exclusive', lifetime => 'transaction')).status;
SET LOCAL ROLE regress_al_b;
SELECT (lock_acquire('r:3', '1 h', 'x', 'exclusive')).status AS more, (lock_acquire('r:4', '1 h', 'x')).status AS as_much;
COMMIT;
RESET ROLE;
SELECT role, string_agg(key, ',' ORDER BY key) AS keys FROM lock_status() GROUP BY role ORDER BY role;
TRUNCATE app_lock;

-- Users' indexes
--
-- Keys of the prefix, before it and after it, of this role and of another
SELECT lock_set_policy('m:', max_keys_per_role => 3);
SELECT count(lock_acquire(k, '1 h', 'o')) FROM unnest(ARRAY['a', 'M:', 'm', 'm.', 'm:B', 'm:a', 'n', 'z']) k;
SET ROLE regress_al_a;
SELECT count(lock_acquire(k, '1 h', 'o')) FROM unnest(ARRAY['b', 'm:A', 'm:b', 'm:ä', 'y']) k;
RESET ROLE;
-- Two of three are held: there is room for one more, not for two.
\set count_with 'SELECT t.code($$SELECT lock_acquire(''m:c'', ''1 h'', ''o'')$$) AS one_more, t.code($$SELECT lock_acquire_all(''{m:c,m:d}'', ''1 h'', ''o'')$$) AS two_more, count(pg_stat_force_next_flush()) > 0 AS counted; SELECT indexrelname AS index, idx_scan > 0 AS used FROM pg_stat_user_indexes WHERE indexrelname ~ ''^own'' ORDER BY 1; DROP INDEX own;'
CREATE INDEX own ON app_lock (role, key);
:count_with
CREATE UNIQUE INDEX own ON app_lock (role, key, slot) INCLUDE (owner);
:count_with
CREATE INDEX own ON app_lock (role, key DESC);
:count_with
CREATE INDEX own ON app_lock (role DESC, key);
:count_with
CREATE INDEX own ON app_lock (role DESC, key DESC);
:count_with
CREATE INDEX own ON app_lock (role, key COLLATE "und-x-icu");
:count_with
CREATE INDEX own ON app_lock (role) INCLUDE (key);
:count_with
CREATE INDEX own ON app_lock (key, role);
:count_with
CREATE INDEX own ON app_lock (role, slot, key);
:count_with
-- of two, the one that fits
CREATE INDEX own_that_fits ON app_lock (role, key);
CREATE INDEX own ON app_lock (role, key DESC);
:count_with
DROP INDEX own_that_fits;
TRUNCATE app_lock;

-- A set
--
-- The number of index scans, and of rows found, when an owner of 200 keys acquires a set of 50:
-- without a quota, and with one
SELECT count(lock_drop_policy(prefix)) FROM lock_policies;
SELECT lock_set_policy('r:', max_keys_per_role => 250);
SELECT p, (SELECT count(*) FROM lock_acquire_all((SELECT array_agg(p || n) FROM generate_series(1, 200) n), '1 h', 'owner of ' || p)) AS keys, count(pg_stat_force_next_flush()) > 0 AS counted FROM unnest('{n:,r:}'::text[]) p GROUP BY p ORDER BY p;
CREATE TABLE t.looks (p text, index text, scans bigint, rows bigint);
\set look 'INSERT INTO t.looks SELECT :''p'', indexrelname, idx_scan, idx_tup_read FROM pg_stat_user_indexes WHERE relname = ''app_lock'';'
\set set_of_50 :look ' SELECT count(*) AS acquired, count(pg_stat_force_next_flush()) > 0 AS counted FROM lock_acquire_all((SELECT array_agg(:''p'' || ''more '' || n) FROM generate_series(1, 50) n), ''1 h'', ''owner of '' || :''p''); ' :look
\set p n:
:set_of_50
\set p r:
:set_of_50
CREATE VIEW t.cost AS SELECT p, index, max(scans) - min(scans) AS scans, max(rows) - min(rows) AS rows FROM t.looks GROUP BY p, index;
SELECT c.p, c.index, c.scans - n.scans AS more_scans, c.rows - n.rows AS more_rows FROM t.cost c JOIN t.cost n ON n.index = c.index AND n.p = 'n:' WHERE c.p <> 'n:' ORDER BY 1, 2;
SELECT p, t.code(format('SELECT lock_acquire(%L, ''1 h'', %L)', p || 'last', 'owner of ' || p)) AS one_more FROM unnest('{n:,r:}'::text[]) p ORDER BY p;

DROP OWNED BY regress_al_a, regress_al_b;
DROP ROLE regress_al_a, regress_al_b;
