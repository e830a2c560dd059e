\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- lock_history and lock_held_at: who held a key, from when to when
--
-- Properties:
-- - Under a policy with history, each fencing token of a key has a row: mode, holder and role,
--   when it was granted, when and why it ended, however it began and ended.
-- - Renewals and refusals write nothing, and a rollback removes everything.
-- - An expired lease ended when it expired, whenever that is noticed.
-- - lock_held_at knows the holders at any moment, from the moment of the grant up to, but not
--   including, the end.
-- - A sweep deletes rows that ended longer ago than atomic_lock.history_retention, and no
--   others.
-- - Owners appear only as a digest.
--
-- Turns red when: one way to begin or end a holding is not written, or written twice; an expiry
-- has the time at which it was noticed; lock_held_at shows a holder after its end, or not at
-- its beginning; the row of a present holding is swept.
DROP ROLE IF EXISTS regress_al_a;
CREATE ROLE regress_al_a;
SELECT lock_grant_access('regress_al_a', 'user');
CREATE TABLE t.orders (id int PRIMARY KEY);
INSERT INTO t.orders VALUES (1);

-- Rows in the order of tokens; "next" says whether the next row begins when this one ends.
CREATE VIEW t.history AS
	SELECT key, row_number() OVER w AS n, mode, holder, ended_by, ended_at > acquired_at AS lasted, lead(acquired_at) OVER w = ended_at AS next, encode(sha256(convert_to(lower(holder), 'UTF8')), 'hex') = owner_digest AS digest
	FROM lock_history WINDOW w AS (PARTITION BY key ORDER BY fencing_token);
-- Acquires a key; the holder is the owner with a capital letter.
CREATE FUNCTION t.take(k text, o text, mode text DEFAULT 'exclusive', lifetime text DEFAULT 'lease', ttl interval DEFAULT '1 h') RETURNS text LANGUAGE sql AS $$
	SELECT status FROM lock_try_acquire(k, CASE WHEN lifetime = 'lease' THEN ttl END, o, mode, holder => initcap(o), lifetime => lifetime)
$$;
CREATE FUNCTION t.tokens_match(k text) RETURNS boolean LANGUAGE sql AS $$
	SELECT array_agg(s.fencing_token ORDER BY s.fencing_token) IS NOT DISTINCT FROM (SELECT array_agg(h.fencing_token ORDER BY h.fencing_token) FROM lock_history h WHERE h.key = k AND ended_at IS NULL) FROM lock_status() s WHERE s.key = k
$$;

--
-- Only under a policy with history
--
SELECT lock_set_policy('h:', history => true), lock_set_policy('h:not', history => false), lock_set_policy('h:not:but', history => true);
SELECT k, t.take(k, 'ann') FROM unnest(ARRAY['h:', 'h:1', 'h:not', 'h:not:1', 'h:not:but', 'H:', 'other']) k;
SELECT key, mode, holder, role = current_user AS role, client_addr IS NOT DISTINCT FROM inet_client_addr() AS client_addr, application, acquired_at = (SELECT acquired_at FROM lock_status(h.key)) AS since, fencing_token = (SELECT fencing_token FROM lock_status(h.key)) AS token, ended_at, ended_by FROM lock_history h ORDER BY key COLLATE "C";
SELECT lock_release_all('ann');
SELECT key, ended_by FROM lock_history ORDER BY key COLLATE "C";
-- the session's properties at the time of the grant
SET application_name = 'first';
SET ROLE regress_al_a;
SELECT lock_acquire('h:session', '1 h', 'ann', holder => 'Ann') IS NOT NULL AS acquired;
SET application_name = 'second';
RESET ROLE;
SELECT lock_extend('h:session', 'ann') > now() AS extended, (lock_transfer('h:session', 'ann', 'ben', 'Ben')).status;
SELECT holder, role = current_user AS mine, CASE WHEN role = current_user THEN '' ELSE role END AS role, application, ended_by FROM lock_history WHERE key = 'h:session' ORDER BY fencing_token;
SET application_name = '';
SELECT t.take('h:session 2', 'ann');
SELECT application = '' AS empty FROM lock_history WHERE key = 'h:session 2';

--
-- Ends
--
SELECT t.take('h:released ' || v, 'ann', CASE WHEN v = 'shared' THEN 'shared' ELSE 'exclusive' END, CASE v WHEN 'session' THEN 'session' ELSE 'lease' END), v FROM unnest(ARRAY['one', 'try', 'all', 'shared', 'session']) v;
SELECT lock_release('h:released one', 'ann'), lock_try_release('h:released try', 'ann'), lock_release('h:released shared', 'ann'), lock_release('h:released session', 'ann');
SELECT lock_release_all('ann');
SELECT key, n, mode, holder, ended_by, lasted, digest FROM t.history WHERE key ~ 'released' ORDER BY 1, 2;
SELECT bool_and(h.ended_at = l.expires_at) AS when_it_was_released FROM lock_history h JOIN app_lock l USING (key) WHERE key ~ 'released';
-- expired: noticed by the next grant, a steal, or a sweep
SELECT t.take('h:expired ' || v, 'ann', CASE WHEN v ~ 'shared' THEN 'shared' ELSE 'exclusive' END, ttl => '2 ms') FROM unnest(ARRAY['taken', 'shared', 'shared taken', 'stolen', 'swept', 'shared swept']) v;
SELECT t.expire('h:expired ' || v) FROM unnest(ARRAY['taken', 'shared', 'shared taken', 'stolen', 'swept', 'shared swept']) v;
CREATE TABLE t.expired AS SELECT key, fencing_token, expires_at FROM app_lock WHERE key ~ 'expired';
SELECT DISTINCT ended_at, ended_by FROM lock_history WHERE key ~ 'expired';
SELECT t.take('h:expired taken', 'ben'), t.take('h:expired shared', 'ben'), t.take('h:expired shared taken', 'ben', 'shared'), (lock_steal('h:expired stolen', 'ben', 'test', holder => 'Ben')).status;
SELECT t.take('h:expired taken', 'ann', 'shared') AS refused;
SELECT key, n, mode, holder, ended_by, h.ended_at = e.expires_at AS at_its_end FROM (SELECT *, row_number() OVER (PARTITION BY key ORDER BY fencing_token) AS n FROM lock_history) h LEFT JOIN t.expired e USING (key, fencing_token) WHERE key ~ 'expired' ORDER BY key, n;
SELECT lock_sweep() > 0 AS swept;
SELECT key, ended_by, e.expires_at = h.ended_at AS at_its_end FROM lock_history h JOIN t.expired e USING (key, fencing_token) WHERE key ~ 'swept|expired shared$' ORDER BY key;
-- forced, stolen
SELECT t.take('h:forced', 'ann'), t.take('h:forced shared', 'ann', 'shared'), t.take('h:forced shared', 'ben', 'shared'), t.take('h:stolen', 'ann'), t.take('h:stolen shared', 'ann', 'shared'), t.take('h:stolen shared', 'ben', 'shared'), t.take('h:stolen own', 'ann');
SELECT force_release('h:forced', 'test'), lock_try_force_release('h:forced shared', 'test'), count((lock_steal('h:' || k, 'cid', 'test', holder => 'Cid')).status) FROM unnest(ARRAY['stolen', 'stolen shared', 'stolen free']) k;
SELECT (lock_steal('h:stolen own', 'ann', 'test', holder => 'Ann')).status, lock_try_release('h:stolen', 'ann'), lock_try_release('h:forced', 'ann');
SELECT * FROM t.history WHERE key ~ 'forced|stolen' AND key !~ 'expired' ORDER BY key, n;
-- transferred
SELECT t.take('h:given', 'ann'), t.take('h:given shared', 'ann', 'shared'), t.take('h:given shared', 'ben', 'shared'), t.take('h:merged', 'ann', 'shared'), t.take('h:merged', 'ben', 'shared'), t.take('h:merged', 'cid', 'shared'), t.take('h:given all', 'dan'), t.take('h:given all 2', 'dan'), t.take('h:given session', 'ann', lifetime => 'session');
SELECT (lock_transfer('h:given', 'ann', 'ben', 'Ben')).status, (lock_transfer('h:given shared', 'ann', 'cid', 'Cid')).status, (lock_transfer('h:merged', 'ann', 'ben', 'Ben')).status, lock_transfer_all('dan', 'eve', 'Eve'), (lock_try_transfer('h:given session', 'ann', 'ben', 'Ben')).status, (lock_try_transfer('h:given', 'ann', 'x')).status AS refused;
SELECT (lock_transfer('h:given', 'ben', 'ben', 'Ben')).status AS to_itself;
SELECT * FROM t.history WHERE key ~ 'given|merged' ORDER BY key, n;
SELECT k, t.tokens_match(k) FROM unnest(ARRAY['h:given', 'h:given shared', 'h:merged', 'h:given all', 'h:given all 2', 'h:given session']) k;
-- converted, also by an acquire in the other mode
SELECT t.take('h:converted', 'ann'), t.take('h:converted by acquire', 'ann', 'shared'), t.take('h:converted session', 'ann', 'shared', 'session');
SELECT (lock_convert('h:converted', 'ann', 'shared')).mode, (lock_convert('h:converted', 'ann', 'shared')).mode AS again, (lock_convert('h:converted', 'ann')).mode, t.take('h:converted by acquire', 'ann'), (lock_convert('h:converted session', 'ann')).status, lock_release('h:converted', 'ann');
SELECT * FROM t.history WHERE key ~ 'converted' ORDER BY key, n;
-- lifetime transaction, with all the ways to end such a holding early
BEGIN;
SELECT k, t.take('h:tx ' || k, 'ann', CASE WHEN k ~ 'shared' THEN 'shared' ELSE 'exclusive' END, 'transaction') FROM unnest(ARRAY['committed', 'committed shared', 'released', 'converted', 'given', 'given to share, shared', 'leased', 'forced', 'stolen', 'undone']) k;
SELECT t.take('h:tx given to share, shared', 'ben', 'shared') AS share;
SELECT t.take('h:tx committed', 'ann', lifetime => 'transaction') AS again, lock_release('h:tx released', 'ann'), (lock_convert('h:tx converted', 'ann', 'shared')).mode, (lock_transfer('h:tx given', 'ann', 'ben', 'Ben')).status, (lock_transfer('h:tx given to share, shared', 'ann', 'ben', 'Ben')).status, t.take('h:tx leased', 'ann'), force_release('h:tx forced', 'test'), (lock_steal('h:tx stolen', 'ben', 'test', holder => 'Ben')).status;
SAVEPOINT s;
SELECT lock_release('h:tx committed', 'ann'), lock_release('h:tx undone', 'ann'), t.take('h:tx undone 2', 'ann', lifetime => 'transaction');
ROLLBACK TO s;
SELECT key, count(*) FROM lock_history WHERE key ~ 'h:tx' AND ended_at IS NULL GROUP BY 1 ORDER BY 1;
COMMIT;
SELECT * FROM t.history WHERE key ~ 'h:tx' ORDER BY key, n;
SELECT k, t.tokens_match('h:tx ' || k) FROM unnest(ARRAY['committed', 'given to share, shared', 'leased', 'stolen']) k;
-- under a policy set in the same transaction
BEGIN;
SELECT lock_set_policy('tx later', history => true), t.take('tx later', 'ann', lifetime => 'transaction');
COMMIT;
SELECT * FROM t.history WHERE key ~ '^tx' ORDER BY key, n;
-- lifetime session
SELECT t.take('h:session end', 'ann', lifetime => 'session'), t.take('h:session end shared', 'ann', 'shared', 'session'), t.take('h:session end shared', 'ben', 'shared'), (lock_acquire('h:session expired', '2 ms', 'ann', holder => 'Ann', lifetime => 'session')).status, t.take('h:session leased', 'ann', lifetime => 'session'), t.take('h:session leased', 'ann') AS as_a_lease;
SELECT t.expire('h:session expired');
\c -
SET client_min_messages = warning;
SELECT t.expire('h:session end'), t.expire('h:session end shared', 'ann');
SELECT count(t.take(k, 'cid')) FROM unnest(ARRAY['h:session end', 'h:session end shared', 'h:session expired']) k;
SELECT key, n, mode, holder, ended_by, lasted FROM t.history WHERE key ~ 'session (end|expired|leased)' ORDER BY key, n;
-- Grants by sets, and by lock_fetch
SELECT count(*) FROM lock_acquire_all(ARRAY['h:set 1', 'h:set 2', 'set 3'], '1 h', 'ann', holder => 'Ann');
SELECT id FROM lock_fetch(NULL::t.orders, '1', '1 h', 'ann', key => 'h:fetched', holder => 'Ann');
SELECT count(*) FROM lock_try_acquire_all(ARRAY['h:set 0', 'h:set 1'], '1 h', 'ben');
SELECT count(*) FROM lock_fetch(NULL::t.orders, '2', '1 h', 'ann', key => 'h:no row');
SELECT key, mode, holder, ended_by FROM t.history WHERE key ~ 'h:(set|fetched|no row)' ORDER BY key;

--
-- Nothing is written for renewals, refusals and rollbacks
--
SELECT t.take('h:quiet', 'ann'), t.take('h:quiet shared', 'ann', 'shared'), t.take('h:quiet session', 'ann', lifetime => 'session');
CREATE FUNCTION t.history_is() RETURNS text LANGUAGE sql AS $$SELECT md5(string_agg(concat_ws(' ', h.ctid, h.xmin, h.xmax, h::text), E'\n' ORDER BY key, fencing_token)) FROM lock_history h$$;
SELECT t.history_is() AS before \gset
SELECT t.take('h:quiet', 'ann') AS again, t.take('h:quiet shared', 'ann', 'shared') AS again, t.take('h:quiet', 'ben') AS refused, t.take('h:quiet shared', 'ben') AS refused, lock_extend('h:quiet', 'ann', '2 h') > now() AS extended, lock_extend_all('ann', '3 h') > 2 AS all, (SELECT count(*) FROM lock_heartbeat(owner => 'ann')) > 2 AS beat,
	(SELECT id FROM lock_fetch(NULL::t.orders, '1', owner => 'ann', key => 'h:quiet')) AS fetched, t.take('h:quiet', 'ann', lifetime => 'session') AS session, lock_try_release('h:quiet', 'ben'), lock_assert('h:quiet', 'ann') > 0 AS asserted, lock_is_held('h:quiet', 'ann');
SELECT t.history_is() = :'before' AS unchanged;
BEGIN;
SELECT t.take('h:undone', 'ann'), t.take('h:undone tx', 'ann', lifetime => 'transaction'), lock_release('h:quiet', 'ann'), (lock_convert('h:quiet shared', 'ann')).mode, (lock_transfer('h:quiet session', 'ann', 'ben')).status, (SELECT count(*) FROM lock_history WHERE key ~ 'undone|quiet') AS rows_within;
ROLLBACK;
SELECT count(*) FROM lock_history WHERE key ~ 'h:undone';
SELECT key, mode, holder, ended_by FROM t.history WHERE key ~ 'quiet' ORDER BY key;
BEGIN;
SELECT t.take('h:partly', 'ann');
SAVEPOINT s;
SELECT (lock_transfer('h:partly', 'ann', 'ben', 'Ben')).status, lock_release('h:partly', 'ben');
ROLLBACK TO s;
SELECT (lock_transfer('h:partly', 'ann', 'cid', 'Cid')).status;
COMMIT;
SELECT * FROM t.history WHERE key = 'h:partly' ORDER BY n;
SELECT t.tokens_match('h:partly');
-- several grants in one statement
SELECT t.take('h:one', 'ann'), lock_release('h:one', 'ann'), t.take('h:one', 'ben'), (lock_convert('h:one', 'ben', 'shared')).mode, lock_release('h:one', 'ben');
SELECT key, n, mode, holder, ended_by FROM t.history WHERE key = 'h:one' ORDER BY n;
SELECT current_setting('max_prepared_transactions')::int > 0 AS twophase \gset
\if :twophase
BEGIN;
SELECT t.take('h:prepared', 'ann'), t.take('h:prepared tx', 'ann', lifetime => 'transaction'), lock_release('h:quiet session', 'ann');
PREPARE TRANSACTION 'regress_al_history';
SELECT count(*) FROM lock_history WHERE key ~ 'prepared';
COMMIT PREPARED 'regress_al_history';
SELECT key, holder, ended_by FROM t.history WHERE key ~ 'prepared|quiet session' ORDER BY key;
BEGIN;
SELECT t.take('h:prepared 2', 'ann'), lock_release('h:prepared', 'ann');
PREPARE TRANSACTION 'regress_al_history';
ROLLBACK PREPARED 'regress_al_history';
SELECT key, holder, ended_by FROM t.history WHERE key ~ 'prepared' ORDER BY key;
\endif

--
-- lock_held_at
--
SELECT clock_timestamp() AS before \gset
SELECT acquired_at AS a1 FROM lock_acquire('h:at', '1 h', 'ann', holder => 'Ann') \gset
SELECT t.wait_until(:'a1');
SELECT status FROM lock_transfer('h:at', 'ann', 'ben', 'Ben');
SELECT max(acquired_at) AS a2 FROM lock_history WHERE key = 'h:at' \gset
SELECT t.wait_until(:'a2');
SELECT lock_release('h:at', 'ben');
SELECT max(ended_at) AS a3 FROM lock_history WHERE key = 'h:at' \gset
SELECT t.wait_until(:'a3');
SELECT acquired_at AS a4 FROM lock_acquire('h:at', '1 h', 'cid', 'shared', holder => 'Cid') \gset
SELECT t.wait_until(:'a4');
SELECT acquired_at AS a5 FROM lock_acquire('h:at', '1 h', 'dan', 'shared', holder => 'Dan') \gset
SELECT t.wait_until(:'a5');
SELECT lock_release('h:at', 'cid');
SELECT max(ended_at) AS a6 FROM lock_history WHERE key = 'h:at' \gset
SELECT name, (SELECT string_agg(concat_ws(' ', mode, holder, ended_by), ', ' ORDER BY holder) FROM lock_held_at('h:at', at)) AS holders
FROM (VALUES (1, '-infinity'::timestamptz, 'ever before'), (2, :'before', 'before'), (3, timestamptz :'a1' - interval '1 us', 'just before'), (4, :'a1', 'acquired'), (5, timestamptz :'a2' - interval '1 us', 'just before the transfer'), (6, :'a2', 'transferred'),
	(7, timestamptz :'a3' - interval '1 us', 'just before the release'), (8, :'a3', 'released'), (9, timestamptz :'a4' - interval '1 us', 'in between'), (10, :'a4', 'shared'), (11, timestamptz :'a5' - interval '1 us', 'by one'), (12, :'a5', 'by two'), (13, timestamptz :'a6' - interval '1 us', 'still'), (14, :'a6', 'by the other'), (15, clock_timestamp(), 'now')) v (n, at, name) ORDER BY n;
SELECT h.mode, h.fencing_token = s.fencing_token AS token, owner_digest = encode(sha256('dan'), 'hex') AS digest, h.holder, h.role = s.role AS role, client_addr IS NOT DISTINCT FROM inet_client_addr() AS client_addr, application, h.acquired_at = s.acquired_at AS since, ended_at, ended_by FROM lock_held_at('h:at', now()) h, lock_status('h:at') s;
-- An expiry is known at once, with the same time as when it is noticed later.
SELECT acquired_at AS e1, expires_at AS e2 FROM lock_acquire('h:lapsed', '5 ms', 'ann', holder => 'Ann') \gset
SELECT t.expire('h:lapsed');
SELECT (SELECT concat_ws(' ', ended_at, ended_by, 'open') FROM lock_history WHERE key = 'h:lapsed') AS in_the_table, h.holder, h.ended_by, ended_at = :'e2' AS when FROM lock_held_at('h:lapsed', timestamptz :'e2' - interval '1 us') h;
SELECT (SELECT count(*) FROM lock_held_at('h:lapsed', :'e1')) AS first, (SELECT count(*) FROM lock_held_at('h:lapsed', :'e2')) AS last, (SELECT count(*) FROM lock_held_at('h:lapsed', now())) AS now;
SELECT t.take('h:lapsed', 'ben');
SELECT (SELECT concat_ws(' ', ended_at = :'e2', ended_by) FROM lock_history WHERE key = 'h:lapsed' AND holder = 'Ann') AS in_the_table, h.holder, h.ended_by FROM lock_held_at('h:lapsed', timestamptz :'e2' - interval '1 us') h;
SELECT holder, ended_by FROM lock_held_at('h:lapsed', now());
-- moments in the future: the leases that will still be live
SELECT (SELECT string_agg(holder, ',') FROM lock_held_at('h:lapsed', clock_timestamp() + interval '50 min')) AS in_50_minutes, (SELECT string_agg(holder, ',') FROM lock_held_at('h:lapsed', clock_timestamp() + interval '61 min')) AS in_61;
-- sharers, some of which have expired
SELECT count(lock_acquire('h:crowd', CASE WHEN n % 2 = 0 THEN interval '2 ms' ELSE '1 h' END, 'o' || n, 'shared', holder => 'O' || n)) FROM generate_series(1, 40) n;
SELECT max(acquired_at) AS full FROM lock_history WHERE key = 'h:crowd' \gset
SELECT max(expires_at) AS later FROM app_lock WHERE key = 'h:crowd' AND expires_at < now() + interval '1 min' \gset
SELECT t.wait_until(:'later');
SELECT count(*), count(ended_at), string_agg(DISTINCT ended_by, ',') FROM lock_held_at('h:crowd', clock_timestamp());
SELECT count(*) >= 20 AS lasting, bool_and(ended_at > :'full') AS until_later FROM lock_held_at('h:crowd', :'full');
-- a holding with lifetime session ends with the session, even before that is noticed
SELECT t.take('h:dead', 'ann', lifetime => 'session');
SELECT clock_timestamp() AS alive, pg_backend_pid() AS pid \gset
\c -
SET client_min_messages = warning;
SELECT t.expire('h:dead');
SELECT holder, ended_by, ended_at > :'alive' AS after FROM lock_held_at('h:dead', :'alive');
SELECT count(*) FROM lock_held_at('h:dead', clock_timestamp());
-- a lease of an unfinished transaction is visible to that transaction alone; with an older
-- snapshot
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM lock_held_at('h:mine', 'now');
SELECT t.take('h:mine', 'ann'), t.wait_until(clock_timestamp());
SELECT holder FROM lock_held_at('h:mine', clock_timestamp());
COMMIT;
SELECT t.raises('SELECT lock_held_at(NULL, now())'), t.raises('SELECT lock_held_at(''h:at'', NULL)'), t.raises('SELECT lock_held_at('''', now())');
SELECT count(*) FROM lock_held_at('never', now());
-- Ends while no policy asked for history are left out; grants in that time are unknown.
SELECT t.take('gap 1', 'ann'), lock_set_policy('gap', history => true), t.take('gap 2', 'ann'), t.take('gap 3', 'ann');
SELECT clock_timestamp() AS during \gset
SELECT lock_release('gap 1', 'ann'), lock_drop_policy('gap'), lock_release('gap 2', 'ann');
SELECT key, holder, ended_by FROM t.history WHERE key ~ 'gap' ORDER BY key;
SELECT k, (SELECT string_agg(holder || ' ' || coalesce(ended_by, 'now'), ',') FROM lock_held_at(k, :'during')) FROM unnest(ARRAY['gap 1', 'gap 2', 'gap 3']) k;
SELECT t.take('gap 2', 'ben');
SELECT k, (SELECT string_agg(holder || ' ' || coalesce(ended_by, 'now'), ',') FROM lock_held_at(k, :'during')) FROM unnest(ARRAY['gap 1', 'gap 2', 'gap 3']) k;

--
-- At every isolation level, with an old snapshot
--
CREATE FUNCTION t.story() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	k		text := 'h:' || current_setting('transaction_isolation');
	answer	text := '';
BEGIN
	PERFORM t.take(k, 'ann'), t.take(k || ' tx', 'ann', lifetime => 'transaction');
	PERFORM lock_convert(k, 'ann', 'shared'), lock_transfer(k, 'ann', 'ben', 'Ben'), lock_release(k, 'ben'), lock_release(k || ' tx', 'ann');
	PERFORM t.take(k, 'cid');
	RETURN k || ' ' || (SELECT string_agg(concat_ws(' ', mode, holder, ended_by), ', ' ORDER BY fencing_token) FROM lock_history WHERE key = k)
		|| '; ' || (SELECT string_agg(holder, ',') FROM lock_held_at(k, clock_timestamp())) || '; ' || (SELECT string_agg(ended_by, ',') FROM lock_history WHERE key = k || ' tx');
END
$$;
:at_every_level

--
-- atomic_lock.history_retention: 90 days
--
TRUNCATE lock_history;
SELECT t.take('h:old ' || n, 'ann'), CASE WHEN n < 8 THEN lock_release('h:old ' || n, 'ann') END FROM generate_series(1, 9) n;
SELECT lock_sweep() >= 0 AS swept;
SELECT count(*) FROM lock_history;
UPDATE lock_history SET acquired_at = acquired_at - interval '100 d', ended_at = ended_at - interval '91 d' WHERE key IN ('h:old 1', 'h:old 2', 'h:old 3', 'h:old 8');
UPDATE lock_history SET acquired_at = acquired_at - interval '100 d', ended_at = ended_at - interval '89 d' WHERE key IN ('h:old 4', 'h:old 5');
-- in batches, the oldest first
UPDATE lock_history SET acquired_at = acquired_at - interval '1 d' WHERE key = 'h:old 2';
SELECT lock_sweep(1) >= 0 AS swept, (SELECT string_agg(right(key, 1), ',' ORDER BY key) FROM lock_history) AS before;
SELECT string_agg(right(key, 1), ',' ORDER BY key) AS one_less FROM lock_history;
SELECT lock_sweep(1000) >= 0 AS swept;
SELECT string_agg(right(key, 1), ',' ORDER BY key) AS what_is_kept FROM lock_history WHERE key ~ 'old';
SELECT holder FROM lock_held_at('h:old 8', now() - interval '95 d');
-- in the transaction of the sweep
UPDATE lock_history SET acquired_at = acquired_at - interval '100 d', ended_at = ended_at - interval '91 d' WHERE key = 'h:old 6';
BEGIN;
SELECT lock_sweep() >= 0 AS swept, (SELECT count(*) FROM lock_history WHERE key = 'h:old 6') AS before;
SELECT count(*) FROM lock_history WHERE key = 'h:old 6';
ROLLBACK;
SELECT count(*) FROM lock_history WHERE key = 'h:old 6';
-- also if no policy asks for history any more
SELECT count(lock_drop_policy(prefix)) FROM lock_policies;
SELECT lock_sweep() >= 0 AS swept;
SELECT count(*) FROM lock_history WHERE key = 'h:old 6';

-- rows that will never get an end: released while no policy asked for history, or the lock's
-- row is gone
SELECT lock_set_policy('lost', history => true);
SELECT t.take('lost ' || n, 'ann') FROM generate_series(1, 5) n;
SELECT lock_drop_policy('lost');
SELECT lock_release('lost ' || n, 'ann') FROM generate_series(1, 2) n;
SELECT t.take('lost ' || n, 'ben') FROM generate_series(1, 2) n;
DELETE FROM app_lock WHERE key = 'lost 3';
UPDATE lock_history SET acquired_at = acquired_at - interval '89 d' WHERE key ~ 'lost';
SELECT lock_sweep() >= 0 AS swept, (SELECT count(*) FROM lock_history WHERE key ~ 'lost' AND ended_at IS NULL) AS before;
SELECT string_agg(key, ',' ORDER BY key) AS what_is_kept FROM lock_history WHERE key ~ 'lost';
UPDATE lock_history SET acquired_at = acquired_at - interval '2 d' WHERE key ~ 'lost';
SELECT lock_sweep() >= 0 AS swept;
SELECT string_agg(key, ',' ORDER BY key) AS what_is_kept FROM lock_history WHERE key ~ 'lost';
-- the configured retention applies
\set ECHO none
ALTER SYSTEM SET atomic_lock.history_retention = '80 d';
SELECT pg_reload_conf() AS reloaded \gset
SELECT 'SELECT CASE WHEN current_setting(''atomic_lock.history_retention'') <> ''80d'' THEN pg_sleep(' || n * 0.01 || ') END'
FROM generate_series(1, 200) n
\o /dev/null
\gexec
\o
\set ECHO all
SHOW atomic_lock.history_retention;
SELECT lock_sweep() >= 0 AS swept;
SELECT string_agg(right(key, 1), ',' ORDER BY key) AS what_is_kept FROM lock_history WHERE key ~ 'old';
\set ECHO none
ALTER SYSTEM RESET atomic_lock.history_retention;
SELECT pg_reload_conf() AS reloaded \gset
SELECT 'SELECT CASE WHEN current_setting(''atomic_lock.history_retention'') = ''80d'' THEN pg_sleep(' || n * 0.01 || ') END'
FROM generate_series(1, 200) n
\o /dev/null
\gexec
\o
\set ECHO all
SHOW atomic_lock.history_retention;

-- Opening a closed key does not change the history.
SELECT lock_set_policy('closed', history => true);
SELECT lock_acquire('closed:1', '1 h', 'ann') IS NOT NULL AS acquired, lock_acquire('closed:2', '1 h', 'ann') IS NOT NULL AS acquired;
SELECT lock_set_policy('closed', min_hold => '1 h', history => false);
SELECT lock_release('closed:1', 'ann'), lock_extend('closed:2', 'ann', '1 ms') IS NOT NULL AS extended, pg_sleep(0.01) IS NOT NULL AS expired, clock_timestamp() AS since \gset
SELECT force_release('closed:1', 'test'), force_release('closed:2', 'test');
SELECT lock_set_policy('closed', history => true);
SELECT count(*) FROM lock_held_at('closed:1', :'since');
SELECT count(*) FROM lock_held_at('closed:2', :'since');

--
-- No owner in it
--
SELECT lock_set_policy('', history => true);
BEGIN;
SELECT lock_acquire('secret 1', '1 h', 'hush-1') IS NOT NULL, lock_acquire('secret 2', owner => 'hush-2', mode => 'shared', lifetime => 'transaction') IS NOT NULL, lock_transfer('secret 1', 'hush-1', 'hush-3') IS NOT NULL;
COMMIT;
SELECT owner AS generated FROM lock_acquire('secret 3', '1 h') \gset
SELECT count(*) FILTER (WHERE h::text ~ 'hush' OR strpos(h::text, :'generated') > 0) AS shown, count(*) FILTER (WHERE owner_digest IN (encode(sha256('hush-1'), 'hex'), encode(sha256('hush-2'), 'hex'), encode(sha256('hush-3'), 'hex'), encode(sha256(convert_to(:'generated', 'UTF8')), 'hex'))) AS digests FROM lock_history h WHERE key ~ 'secret';
SELECT count(*) FILTER (WHERE h::text ~ 'hush') AS shown, count(*) FROM lock_held_at('secret 1', clock_timestamp()) h;
-- A dropped role keeps its name; a long key and holder
SET ROLE regress_al_a;
SELECT lock_acquire(repeat('ä', 512), '1 h', repeat('o', 255), holder => repeat('ü', 127)) IS NOT NULL AS acquired, lock_acquire('of a', '1 h', 'ann') IS NOT NULL;
RESET ROLE;
DROP OWNED BY regress_al_a;
DROP ROLE regress_al_a;
SELECT lock_release('of a', 'ann'), (SELECT (lock_convert(repeat('ä', 512), repeat('o', 255), 'shared')).mode);
SELECT left(key, 5) AS key, length(key), length(holder), CASE WHEN role = current_user THEN 'me' ELSE regexp_replace(role, '^[0-9]+$', '<number>') END AS role, ended_by FROM lock_history WHERE key = 'of a' OR length(key) = 512 ORDER BY fencing_token;
