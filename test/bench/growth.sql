-- Contents of each database of the growth section of test/bench/run: the extension, the table
-- of the hand-written SQL, and ten thousand keys that have been used before, as in a system
-- that has run for a while.

CREATE EXTENSION atomic_lock;
SELECT lock_grant_access('app', 'user'), lock_grant_access('app_relaxed', 'user') \g /dev/null

CREATE TABLE sql_lock (
	key text PRIMARY KEY,
	owner uuid NOT NULL,
	expires_at timestamptz NOT NULL
);
GRANT SELECT, INSERT, UPDATE, DELETE ON sql_lock TO app, app_relaxed;

-- A backend's report of its memory
CREATE TABLE growth_backend (
	what text NOT NULL,
	calls bigint NOT NULL,
	contexts jsonb NOT NULL,
	anonymous bigint NOT NULL
);

\o /dev/null
SELECT format('SELECT count(lock_release(key, owner)) FROM generate_series(%s, %s) n, LATERAL lock_acquire(''pair:'' || n)',
			  n, least(n + 499, :used - 1))
	FROM generate_series(0, :used - 1, 500) n
\gexec
\o
