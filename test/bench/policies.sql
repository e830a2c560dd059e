-- The database of the policies section of test/bench/run.

CREATE EXTENSION atomic_lock;
SELECT lock_grant_access('app', 'user'), lock_grant_access('app_relaxed', 'user') \g /dev/null

-- Each run starts with a VACUUM, and none runs during it.
ALTER TABLE app_lock SET (autovacuum_enabled = false, toast.autovacuum_enabled = false);
ALTER TABLE lock_history SET (autovacuum_enabled = false, toast.autovacuum_enabled = false);

-- All keys have been used before.
\o /dev/null
SELECT format('SELECT count(lock_release(key, owner)) FROM generate_series(%s, %s) n,
			  LATERAL lock_acquire(''tenant-'' || (10000 + n %% 10000) || '':'' || n)', n, n + 499)
	FROM generate_series(0, :keys - 1, 500) n
\gexec

-- Keys that are refused
SELECT count(*) FROM generate_series(0, 7) n, LATERAL lock_acquire('held:' || n, '24 hours', 'holder:' || n);
\o

-- A refusal is an error, which would end pgbench.
CREATE FUNCTION refused(key text, owner text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM lock_acquire(key, owner => owner);
	RAISE 'lock "%" was granted', key;
EXCEPTION WHEN lock_not_available THEN
	NULL;
END $$;

ANALYZE app_lock;
