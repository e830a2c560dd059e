-- Tables and roles for the lanes of test/bench/run.

CREATE EXTENSION atomic_lock;

-- "app" has the recommended settings; "app_relaxed" accepts that a crash loses the latest
-- leases.
CREATE ROLE app LOGIN;
CREATE ROLE app_relaxed LOGIN;
ALTER ROLE app_relaxed SET synchronous_commit = off;
ALTER ROLE app_relaxed SET atomic_lock.acquire_durability = 'session';
SELECT lock_grant_access('app', 'user'), lock_grant_access('app_relaxed', 'user') \g /dev/null

-- The best hand-written SQL: one statement to acquire, one to release, and only the primary key
-- as index.
CREATE TABLE sql_lock (
	key text PRIMARY KEY,
	owner uuid NOT NULL,
	expires_at timestamptz NOT NULL
);

-- For two commits of one row each: the least that a lock in a table costs if it flushes both.
CREATE TABLE bench_row (
	id integer PRIMARY KEY,
	n bigint NOT NULL
) WITH (fillfactor = 90);

GRANT SELECT, INSERT, UPDATE, DELETE ON sql_lock, bench_row TO app, app_relaxed;

-- For from_row.sql
CREATE SEQUENCE bench_sequence;
GRANT SELECT ON bench_sequence TO app;

-- Ten thousand keys are held all the time, as in a working system. The refused lanes ask for a
-- few of them.
INSERT INTO sql_lock
	SELECT 'held:' || n, gen_random_uuid(), clock_timestamp() + interval '1 day'
	FROM generate_series(0, 9999) n;
SELECT format('SELECT count(*) FROM generate_series(%s, %s) n, LATERAL lock_acquire(''held:'' || n, ttl => ''24 hours'', owner => ''holder:'' || n)',
			  n, n + 499)
	FROM generate_series(0, 9999, 500) n
\o /dev/null
\gexec
\o

-- All keys have been used before, as in a system that has run for a while.
INSERT INTO bench_row SELECT n, 0 FROM generate_series(0, :keys + 1000) n;
SELECT format('SELECT count(*) FROM generate_series(%s, %s) n, LATERAL lock_acquire(''order:'' || n, ttl => ''1 ms'')',
			  n, n + 499)
	FROM generate_series(0, :keys, 500) n
\o /dev/null
\gexec
\o

-- Laravel's locks on this extension. The held ones were acquired through the view.
CREATE ROLE laravel_locks;
SELECT lock_grant_access('laravel_locks', 'user') \g /dev/null
GRANT SELECT (key, slot, role, released, expires_at, owner, meta) ON app_lock TO laravel_locks;
CREATE SCHEMA laravel AUTHORIZATION laravel_locks;
SET ROLE laravel_locks;
\set schema laravel
\set prefix laravel_
\ir ../../sql/compat/laravel.sql
RESET ROLE;
GRANT USAGE ON SCHEMA laravel TO app;
GRANT SELECT, INSERT, UPDATE, DELETE ON laravel.cache_locks TO app;
SET ROLE app;
INSERT INTO laravel.cache_locks SELECT 'laravel_held:' || n, 1000000000000000 + n, extract(epoch FROM now()) + 86400
	FROM generate_series(0, 7) n;
RESET ROLE;
SELECT format('SELECT count(*) FROM generate_series(%s, %s) n, LATERAL lock_acquire(''laravel_order:'' || n, ttl => ''1 ms'')',
			  n, n + 499)
	FROM generate_series(0, :keys, 500) n
\o /dev/null
\gexec
\o

VACUUM ANALYZE;
