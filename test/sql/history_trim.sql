\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- A sweep trims ended rows of lock_history among rows of present holdings
--
-- Properties: rows of present holdings are kept, however many and however old, with a policy
-- for history or without, and do not stop a sweep from trimming as many ended rows as it may.
-- Rows whose end was never written, because no policy asked for it, are trimmed by the age of
-- their beginning. The memory used is that of one row.
--
-- Turns red when: a present holding counts as trimmed, or is trimmed; a sweep gives up after
-- some rows; memory grows with each row.
--
-- history.sql tests the retention, sweep/history_retention the background sweep.
SELECT lock_set_policy('h:', history => true), lock_set_policy('u:', history => true);
-- Present holdings of each kind, 200 days old
SELECT count(lock_acquire(p || k, '1 h', 'o' || n, m)) FROM unnest('{h:,u:}'::text[]) p, (SELECT 'exclusive' || n, 'exclusive', n FROM generate_series(1, 60) n UNION ALL SELECT 'shared', 'shared', n FROM generate_series(1, 60) n) l (k, m, n);
SELECT count(lock_acquire(p || 'session', owner => 'me', lifetime => 'session')) FROM unnest('{h:,u:}'::text[]) p;
-- Holdings that ended 100 days ago and one day ago, and some that have expired unnoticed
SELECT count(lock_acquire(p || k || n, '1 h', 'past')) FROM unnest('{h:,u:}'::text[]) p, unnest('{old,new}'::text[]) k, generate_series(1, 5) n;
SELECT lock_release_all('past');
SELECT count(lock_acquire(p || 'expired' || n, '1 ms', 'past')) FROM unnest('{h:,u:}'::text[]) p, generate_series(1, 3) n;
SELECT count(t.expire(p || 'expired' || n)) FROM unnest('{h:,u:}'::text[]) p, generate_series(1, 3) n;
UPDATE lock_history SET acquired_at = now() - interval '200 d';
UPDATE lock_history SET ended_at = now() - CASE WHEN key ~ 'old' THEN interval '100 d' ELSE '1 d' END, acquired_at = acquired_at + interval '1 d' WHERE ended_at IS NOT NULL;
-- No policy asks for history of the keys "u:" any more.
SELECT lock_drop_policy('u:');
CREATE VIEW t.kept AS SELECT substring(key FROM '..') AS prefix, regexp_replace(substring(key FROM 3), '\d+$', '') AS what, count(*), count(ended_at) AS ended FROM lock_history GROUP BY 1, 2 ORDER BY 1, 2;
SELECT * FROM t.kept;
-- The sweep begins with rows of app_lock: those of expired leases, three of which no policy
-- asks about.
SELECT lock_sweep(6);
CREATE VIEW t.trimmable AS SELECT count(*) FROM lock_history WHERE key ~ 'old|u:expired';
TABLE t.trimmable;
SELECT lock_sweep(1);
TABLE t.trimmable;
SELECT lock_sweep(3);
TABLE t.trimmable;
SELECT lock_sweep(100);
SELECT lock_sweep(1000) AS again;
SELECT * FROM t.kept;
-- When the present holdings end, that is written where a policy asks for it; the other ends are
-- known while app_lock has their rows.
SELECT count(lock_release(key, 'o' || n)) FROM generate_series(1, 60) n, unnest(ARRAY['h:exclusive' || n, 'u:exclusive' || n, 'h:shared', 'u:shared']) key;
SELECT lock_release_all('me');
SELECT lock_sweep(1000);
DELETE FROM app_lock;
-- A new policy with history brings back nothing.
SELECT lock_set_policy('u:', history => true);
SELECT lock_sweep(1000) AS of_whose_end_nobody_knows;
SELECT * FROM t.kept;

--
-- Memory: that of one row, however many rows and sharers there are
--
TRUNCATE lock_history, app_lock;
SELECT lock_set_policy('crowd', history => true);
SELECT count(lock_acquire('crowd', '1 h', 'o' || n, 'shared')) FROM generate_series(1, 400) n;
SELECT lock_drop_policy('crowd');
UPDATE lock_history SET acquired_at = now() - interval '200 d';
INSERT INTO lock_history (key, mode, fencing_token, owner_digest, holder, role, application, acquired_at) SELECT 'lost ' || n, 'exclusive', n, '', 'x', 'x', '', now() - interval '100 d' FROM generate_series(1, 5000) n;
CREATE FUNCTION t.peak() RETURNS bigint LANGUAGE sql AS $$
	SELECT substring(pg_read_file('/proc/self/status', 0, 10000, true) FROM 'VmPeak:\s+(\d+)')::bigint
$$;
\c -
SET client_min_messages = warning;
CREATE TABLE t.peaks AS SELECT t.peak() AS kilobytes FROM lock_status('crowd');
SELECT lock_sweep(10000);
SELECT count(*) FROM lock_history;
SELECT t.peak() - kilobytes < 40000 IS NOT false AS small FROM t.peaks;
