-- The database of the readers section of test/bench/run: for each number in :readers, a key
-- with that number of sharers.

CREATE EXTENSION atomic_lock;
SELECT lock_grant_access('app_relaxed', 'user') \g /dev/null

-- Each run starts with a VACUUM, and none runs during it.
ALTER TABLE app_lock SET (autovacuum_enabled = false, toast.autovacuum_enabled = false);

\o /dev/null
SELECT format('SELECT count(*) FROM generate_series(%2$s, %3$s) n,
			  LATERAL lock_acquire(''readers:%1$s/'', ''24 hours'', ''reader:%1$s:'' || n, ''shared'')',
			  readers, n, least(n + 499, readers))
	FROM unnest(:'readers'::int[]) readers, generate_series(1, readers, 500) n
	ORDER BY readers, n
\gexec
\o

ANALYZE app_lock;
