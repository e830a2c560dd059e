\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- Read-only transactions: functions that write raise at once, others work
--
-- Properties: every function that can write raises 25006, whatever the state of the key, in a
-- transaction that is read-only from the start or later, and in a parallel worker. Functions
-- that read answer as usual.
--
-- Turns red when: a function writes or waits first, or answers instead of raising; a reading
-- function refuses.
--
SELECT acquired FROM lock_acquire('held', '1 hour', 'alice-1', holder => 'Alice');
CREATE TABLE t.writers (id serial, stmt text);
INSERT INTO t.writers (stmt) VALUES ('lock_acquire(''k'')'), ('lock_acquire(''held'')'), ('lock_acquire(''held'', owner => ''alice-1'')'),
	('lock_acquire(''held'', wait => ''5 min'')'), ('lock_try_acquire(''k'')'), ('lock_try_acquire(''held'')'), ('lock_try_acquire(''held'', wait => ''5 min'')'), ('lock_release(''held'', ''alice-1'')'), ('lock_release(''held'', ''bob-1'')'),
	('lock_try_release(''held'', ''alice-1'')'), ('lock_try_release(''never'', ''alice-1'')'), ('lock_release_all(''alice-1'')'), ('lock_release_all(''nobody'')'),
	('lock_extend(''held'', ''alice-1'')'), ('lock_try_extend(''held'', ''alice-1'')'), ('lock_try_extend(''never'', ''alice-1'')'),
	('lock_extend_all(''alice-1'')'), ('lock_extend_all(''nobody'')'), ('force_release(''held'', ''why'')'), ('force_release(''never'', ''why'')'),
	('lock_force_release(''held'', ''why'')'), ('lock_steal(''held'', ''bob-1'', ''why'')'), ('lock_sweep()'),
	('lock_acquire(''k'', mode => ''shared'')'), ('lock_acquire(''k'', lifetime => ''session'')'), ('lock_try_acquire(''k'', lifetime => ''transaction'')'),
	('lock_acquire_all(ARRAY[''j'', ''k''])'), ('lock_try_acquire_all(ARRAY[''held''])'), ('lock_acquire_path(''a/b'')'), ('lock_release_path(''a/b'', ''alice-1'')'), ('lock_convert(''held'', ''alice-1'')'), ('lock_convert(''held'', ''alice-1'', ''shared'')'), ('lock_transfer(''held'', ''alice-1'', ''bob-1'')'),
	('lock_set_policy(''k'', max_ttl => ''1 h'')'), ('lock_drop_policy(''k'')'),
	('lock_grant_access(current_user::regrole, ''user'')'), ('lock_revoke_access(current_user::regrole, ''user'')'),
	('lock_protect(''t.writers'', ''w:{id}'')'), ('lock_unprotect(''t.writers'')'), ('lock_schedule_sweep()'), ('lock_unschedule_sweep()');
BEGIN READ ONLY;
SELECT stmt, t.raises('SELECT ' || stmt) FROM t.writers ORDER BY id;
SELECT locked, owner, holder FROM lock_status('held');
SELECT key FROM lock_status();
SELECT lock_holder('held'), lock_is_held('held', 'alice-1'), lock_is_held('held', 'bob-1'), lock_key('a', 'b');
SELECT count(*) FROM lock_audit;
SELECT prefixes, (SELECT count(*) FROM lock_policies) AS policies, (SELECT count(*) FROM lock_history) AS history, (SELECT count(*) FROM lock_held_at('held', now())) AS held_at FROM lock_policy('held');
COMMIT;

SET default_transaction_read_only = on;
SELECT t.code('SELECT ' || stmt), count(*) FROM t.writers GROUP BY 1;
SELECT locked FROM lock_status('held');
\set VERBOSITY sqlstate
SELECT lock_acquire('k');
SELECT lock_try_release('held', 'alice-1');
\set VERBOSITY default
RESET default_transaction_read_only;

-- made read-only later
BEGIN;
SELECT acquired FROM lock_acquire('k', owner => 'alice-1');
SAVEPOINT s;
SET TRANSACTION READ ONLY;
SELECT t.code('SELECT ' || stmt), count(*) FROM t.writers GROUP BY 1;
SELECT lock_is_held('k', 'alice-1');
ROLLBACK TO s;
SELECT lock_release('k', 'alice-1');
COMMIT;

-- A SERIALIZABLE READ ONLY DEFERRABLE transaction
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE;
SELECT locked FROM lock_status('held');
SELECT t.code('SELECT ' || stmt), count(*) FROM t.writers GROUP BY 1;
COMMIT;

SELECT lock_is_held('held', 'alice-1');
SELECT lock_try_release('k', 'alice-1');

-- A parallel worker cannot write either. Such a call needs a function that is wrongly labelled
-- PARALLEL SAFE.
CREATE FUNCTION t.labelled(stmt text) RETURNS text LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
DECLARE
	answer	text;
BEGIN
	EXECUTE stmt INTO answer;
	RETURN answer;
END $$;
CREATE TABLE t.many AS SELECT FROM generate_series(1, 1000);
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SELECT t.code(format('SELECT t.labelled(%L) FROM t.many', 'SELECT ' || stmt)), count(*) FROM t.writers GROUP BY 1;
