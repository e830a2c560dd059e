\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\getenv builddir PG_ABS_BUILDDIR
\set setup :srcdir '/sql/include/setup.sql'
\set show :srcdir '/sql/include/told.sql'
\set told :builddir '/results/events.told'
\setenv AL_TOLD :told
\i :setup
-- Events: the notifications on a key's channel
--
-- Properties: each end of a holding, each offer and each request sends one event, at commit; a
-- transaction that is rolled back sends none. Events are sent only if the policy asks for them
-- or the key has tickets. A new grant sends one, without its token, only if the policy asks for
-- it. All payloads have the same fields in the same order, contain no owner, and fit even at
-- their longest. All holders receive every lock_ask.
--
-- Turns red when: an end or a grant sends no event, or two; an event is sent although nothing
-- asks for it,
-- or for a change that was rolled back; a payload contains an owner, is too long or is no JSON;
-- a channel can be computed without the secret of the database.
--
-- psql writes its output to the file :told, and test/sql/include/told.sql shows the events in
-- it.
DROP ROLE IF EXISTS regress_al_a, regress_al_b, "regress_al_Ünïcode ""role""";
CREATE ROLE regress_al_a;
CREATE ROLE regress_al_b;
SELECT lock_grant_access(r, 'user') FROM unnest(ARRAY['regress_al_a', 'regress_al_b']::regrole[]) r;
SET application_name = 'app';

-- Tokens and tickets differ from run to run: name each by its lease or ticket.
CREATE TABLE t.number (n bigint PRIMARY KEY, name text);
CREATE FUNCTION t.take(k text, who text, ttl interval DEFAULT '1 hour', mode text DEFAULT 'exclusive') RETURNS text LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
	WITH g AS (SELECT * FROM lock_try_acquire(k, ttl, lower(who) || '-1', mode, holder => who)),
		i AS (INSERT INTO t.number SELECT fencing_token, 'lease of ' || who FROM g WHERE acquired ON CONFLICT DO NOTHING)
	SELECT status FROM g
$$;
CREATE FUNCTION t.enter(k text, who text, offer interval DEFAULT NULL) RETURNS text LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
	WITH p AS (SELECT * FROM lock_enqueue(k, lower(who) || '-1', who, offer)),
		i AS (INSERT INTO t.number SELECT coalesce(ticket, fencing_token), CASE WHEN ticket IS NULL THEN 'lease of ' ELSE 'place of ' END || who FROM p ON CONFLICT DO NOTHING)
	SELECT status FROM p
$$;
-- The payloads in psql's output; checks that each came on the channel of its key
CREATE FUNCTION t.payloads(heard text, OUT n bigint, OUT channel text, OUT payload text) RETURNS SETOF record LANGUAGE sql AS $$
	SELECT n, m[1], m[2] FROM regexp_matches(heard, 'Asynchronous notification "([^"]*)" with payload "(.*)" received from server process with PID [0-9]+\.', 'gn') WITH ORDINALITY r (m, n)
$$;
CREATE FUNCTION t.told(heard text, OUT event text, OUT key text, OUT holder text, OUT fencing_token text, OUT by text, OUT "from" text, OUT ticket text, OUT until text, OUT reason text) RETURNS SETOF record LANGUAGE sql AS $$
	SELECT e ->> 'event' || CASE WHEN channel <> lock_channel(e ->> 'key') THEN ' on a wrong channel' ELSE '' END
		|| CASE WHEN (e ->> 'at')::timestamptz BETWEEN clock_timestamp() - interval '5 min' AND clock_timestamp() THEN '' ELSE ' at a wrong time' END
		|| CASE WHEN keys = '{event,key,holder,fencing_token,by,from,ticket,until,at,reason}' THEN '' ELSE ' with wrong keys' END
		|| CASE WHEN payload ~ '[a-z]-[1m]' THEN ' with an owner' ELSE '' END,
		e ->> 'key', e ->> 'holder', (SELECT name FROM t.number WHERE number.n = (e ->> 'fencing_token')::bigint),
		replace(e ->> 'by', session_user, 'session user'), e ->> 'from', (SELECT name FROM t.number WHERE number.n = (e ->> 'ticket')::bigint),
		CASE WHEN e ->> 'until' ~ '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)$' THEN CASE WHEN (e ->> 'until')::timestamptz > (e ->> 'at')::timestamptz - interval '1 min' THEN 'later' ELSE 'earlier' END ELSE e ->> 'until' END, e ->> 'reason'
	FROM t.payloads(heard) p, LATERAL (SELECT payload::json AS e, ARRAY(SELECT json_object_keys(payload::json)) AS keys) j
	ORDER BY p.n
$$;
GRANT SELECT, INSERT ON t.number TO PUBLIC;

--
-- Channels
--
SELECT lock_channel('k') ~ '^atomic_lock_[0-9a-f]{32}$' AS name, lock_channel('k') = lock_channel('k') AS same, lock_channel('k') = lock_channel('K') AS other_key,
	(SELECT count(DISTINCT lock_channel('k' || n)) FROM generate_series(1, 1000) n) AS channels, length(lock_channel(repeat('ö', 512))) AS length;
SELECT lock_channel('k') AS before \gset
SET ROLE regress_al_a;
SELECT lock_channel('k') = :'before' AS same_for_all;
RESET ROLE;
SELECT t.raises($$SELECT lock_ask(NULL)$$), t.raises($$SELECT lock_ask('')$$), t.raises($$SELECT lock_ask('k', repeat('m', 1025))$$);
BEGIN READ ONLY;
SELECT lock_channel('k') = :'before' AS read_only, t.raises($$SELECT lock_ask('k')$$);
COMMIT;
SELECT lock_channel('k') AS k, lock_channel('n:k') AS nk, lock_channel('n:other') AS no \gset
LISTEN :"k";
LISTEN :"nk";
LISTEN :"no";

--
-- No event is wanted
--
\o :told
SELECT t.take('k', 'Ann'), lock_release('k', 'ann-1'), t.take('k', 'Ann', '1 ms'), t.expire('k'), t.take('k', 'Bob', '1 ms'), t.expire('k');
SELECT t.take('k', 'Ann'), force_release('k', 'test'), lock_sweep(), lock_ask('k');
\i :show

--
-- Each kind of end, under a policy with notify
--
SELECT lock_set_policy('n:', notify => true);
\o :told
SELECT t.take('n:k', 'Ann'), t.take('n:k', 'Ann'), lock_extend('n:k', 'ann-1');
\i :show
\o :told
SELECT lock_release('n:k', 'ann-1'), t.take('n:k', 'Bob');
SELECT force_release('n:k', 'because'), t.take('n:k', 'Cid');
SELECT (lock_steal('n:k', 'dan-1', 'urgent', holder => 'Dan')).fencing_token AS dan \gset
INSERT INTO t.number VALUES (:dan, 'lease of Dan');
SELECT (lock_transfer('n:k', 'dan-1', 'eve-1', 'Eve')).fencing_token AS eve \gset
INSERT INTO t.number VALUES (:eve, 'lease of Eve');
SELECT lock_release_all('eve-1');
\i :show
-- no event when an owner continues in another mode
\o :told
SELECT t.take('n:k', 'Ann');
SELECT status FROM lock_convert('n:k', 'ann-1', 'shared');
SELECT t.take('n:k', 'Bob', mode => 'shared'), status FROM lock_try_acquire('n:k', NULL, 'ann-1', 'shared', lifetime => 'session');
\i :show
-- several holders
\o :told
SELECT force_release('n:k', 'all of you');
\o
\set heard `cat "$AL_TOLD"`
SELECT * FROM t.told(:'heard') ORDER BY holder;
-- ends of transactions and sessions
\o :told
BEGIN;
INSERT INTO t.number SELECT fencing_token, 'transaction of Ann' FROM lock_acquire('n:k', NULL, 'ann-1', lifetime => 'transaction', holder => 'Ann');
COMMIT;
INSERT INTO t.number SELECT fencing_token, 'session of Ann' FROM lock_acquire('n:k', NULL, 'ann-1', lifetime => 'session', holder => 'Ann');
SELECT lock_try_release('n:k', 'ann-1');
\i :show
-- The next grant or a sweep notices that a lease has expired.
\o :told
SELECT t.take('n:k', 'Ann', '1 ms'), t.expire('n:k');
SELECT t.take('n:k', 'Bob', '1 ms'), t.expire('n:k');
SELECT lock_sweep();
SELECT lock_sweep();
SELECT t.take('n:k', 'Cid', '1 ms'), t.expire('n:k');
SELECT lock_try_force_release('n:k', 'test'), t.take('n:k', 'Dan'), lock_release('n:k', 'dan-1');
\i :show

--
-- Grants: by each function that grants, and by those only
--
CREATE TABLE t.page (id int PRIMARY KEY);
INSERT INTO t.page VALUES (1);
SELECT lock_channel('n:1') AS n1, lock_channel('n:2') AS n2 \gset
LISTEN :"n1";
LISTEN :"n2";
\o :told
SELECT (lock_acquire('n:k', '1 h', 'ann-1', holder => 'Ann')).status, (lock_try_acquire('n:k', '1 h', 'bob-1', holder => 'Bob')).status, lock_release('n:k', 'ann-1');
SELECT (lock_enqueue('n:k', 'bob-1', 'Bob')).status, lock_release('n:k', 'bob-1');
SELECT (lock_acquire('n:k', '1 h', 'cid-1', 'shared', holder => 'Cid')).status, (lock_acquire('n:k', '1 h', 'dan-1', 'shared', holder => 'Dan', lifetime => 'session')).status, lock_release('n:k', 'cid-1'), lock_release('n:k', 'dan-1');
SELECT count(*) FROM lock_acquire_all(ARRAY['n:1', 'k', 'n:2'], '1 h', 'ann-1', holder => 'Ann');
SELECT lock_release_all('ann-1'), count(*) FROM lock_acquire_path('n:1/2', '1 h', 'ann-1', holder => 'Ann');
SELECT id FROM lock_fetch(NULL::t.page, '1', '1 h', 'eve-1', key => 'n:2', holder => 'Eve');
SELECT (lock_steal('n:2', 'fay-1', 'urgent', holder => 'Fay')).status;
SELECT lock_release_all('ann-1'), lock_release_all('fay-1');
\o
\set heard `cat "$AL_TOLD"`
SELECT event, key, holder, fencing_token IS NULL AS no_token, by, "from", ticket, until, reason, count(*) FROM t.told(:'heard') WHERE event ~ 'acquired|stolen' GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9 ORDER BY 2, 3, 1;
-- what an owner does with a lock that it has is no grant; nor is a lock that ends with the commit
\o :told
SELECT (lock_acquire('n:k', '1 h', 'ann-1', holder => 'Ann')).status;
\i :show
\o :told
SELECT (lock_acquire('n:k', '2 h', 'ann-1')).status, (lock_enqueue('n:k', 'ann-1')).status, (lock_acquire('n:k', '1 h', 'ann-1', lifetime => 'session')).status, (lock_acquire('n:k', owner => 'ann-1', lifetime => 'transaction')).status, lock_extend('n:k', 'ann-1'), (lock_convert('n:k', 'ann-1', 'shared')).status, (lock_convert('n:k', 'ann-1')).status;
SELECT (lock_transfer('n:k', 'ann-1', 'bob-1', 'Bob')).status, lock_release('n:k', 'bob-1');
SELECT (lock_acquire('n:k', owner => 'ann-1', holder => 'Ann', lifetime => 'transaction')).status;
\i :show
-- a lock of a transaction that becomes a lease: as it is, and in the other mode
\o :told
BEGIN;
SELECT (lock_acquire('n:k', owner => 'ann-1', holder => 'Ann', lifetime => 'transaction')).status;
SELECT (lock_acquire('n:k', '1 h', 'ann-1')).status;
COMMIT;
SELECT lock_release('n:k', 'ann-1');
BEGIN;
SELECT (lock_acquire('n:k', owner => 'bob-1', holder => 'Bob', lifetime => 'transaction')).status;
SELECT (lock_acquire('n:k', '1 h', 'bob-1', 'shared')).status;
COMMIT;
SELECT lock_release('n:k', 'bob-1');
\o
\set heard `cat "$AL_TOLD"`
SELECT event, holder FROM t.told(:'heard');
-- taken and released in one transaction, and taken again
\o :told
BEGIN;
SELECT (lock_acquire('n:k', '1 h', 'ann-1', holder => 'Ann')).status, lock_release('n:k', 'ann-1'), (lock_acquire('n:k', '1 h', 'ann-1', holder => 'Ann again')).status;
COMMIT;
SELECT lock_release('n:k', 'ann-1');
\o
\set heard `cat "$AL_TOLD"`
SELECT event, holder FROM t.told(:'heard');
-- a refusal, a grant that is rolled back, and a key whose tickets alone want events
\o :told
SELECT t.take('n:k', 'Ann');
\o :told
SELECT (lock_try_acquire('n:k', owner => 'bob-1')).status;
BEGIN;
SELECT (lock_steal('n:k', 'bob-1', 'undone')).status;
ROLLBACK;
BEGIN;
SAVEPOINT a;
SELECT (lock_acquire('n:other', owner => 'bob-1')).status;
ROLLBACK TO a;
COMMIT;
SELECT t.take('k', 'Ann'), t.enter('k', 'Bob'), t.enter('k', 'Cid'), lock_release('k', 'ann-1');
SELECT t.enter('k', 'Bob');
\i :show
\o :told
SELECT lock_leave('k', 'cid-1'), lock_release('k', 'bob-1'), lock_release('n:k', 'ann-1');
\o
-- a policy that sends none for some keys of a prefix
SELECT lock_set_policy('n:quiet', notify => false), lock_channel('n:quiet') AS nq \gset
LISTEN :"nq";
\o :told
SELECT t.take('n:quiet', 'Ann'), lock_release('n:quiet', 'ann-1'), lock_drop_policy('n:quiet');
\i :show
DROP TABLE t.page;

--
-- A change that is rolled back sends no event
--
\o :told
SELECT t.take('n:k', 'Ann');
BEGIN;
SELECT lock_release('n:k', 'ann-1');
ROLLBACK;
BEGIN;
SAVEPOINT a;
SELECT force_release('n:k', 'undone');
ROLLBACK TO a;
SELECT t.take('n:other', 'Bob');
SAVEPOINT b;
SELECT lock_release('n:other', 'bob-1');
RELEASE b;
SAVEPOINT c;
SAVEPOINT d;
SELECT t.take('n:other', 'Cid'), lock_release('n:other', 'cid-1');
RELEASE d;
ROLLBACK TO c;
\echo none so far
COMMIT;
DO $$ BEGIN PERFORM lock_release('n:k', 'ann-1'); RAISE 'undone'; EXCEPTION WHEN OTHERS THEN NULL; END $$;
\i :show
\o :told
SELECT lock_is_held('n:k', 'ann-1'), lock_release('n:k', 'ann-1');
\i :show

--
-- A key with tickets
--
\o :told
SELECT t.take('k', 'Ann'), t.enter('k', 'Bob'), t.enter('k', 'Cid', '1 ms');
SELECT lock_release('k', 'ann-1');
\i :show
\o :told
SELECT t.take('k', 'Bob'), lock_leave('k', 'bob-1');
SELECT lock_release('k', 'bob-1');
SELECT t.lapse('k'), lock_sweep();
\i :show
-- no events once the last ticket is gone
\o :told
SELECT t.take('k', 'Ann'), lock_release('k', 'ann-1');
\i :show
-- a ticket that is given up, and offers by a sweep
\o :told
SELECT t.take('k', 'Ann', '40 s'), t.enter('k', 'Bob'), t.enter('k', 'Cid', '1 ms'), t.enter('k', 'Dan');
SELECT lock_sweep();
SELECT t.run_out('k', 'ann-1');
SELECT lock_sweep();
SELECT lock_leave('k', 'bob-1');
SELECT t.lapse('k'), lock_sweep();
SELECT lock_sweep(), lock_leave('k', 'dan-1');
\i :show
-- rolled back
\o :told
SELECT t.take('k', 'Ann'), t.enter('k', 'Bob');
BEGIN;
SELECT lock_release('k', 'ann-1');
ROLLBACK;
BEGIN;
SELECT t.enter('k', 'Cid'), lock_leave('k', 'bob-1');
ROLLBACK;
\i :show
SELECT lock_leave('k', 'bob-1'), lock_release('k', 'ann-1');

-- lock_ask
--
-- without a holder
\o :told
SELECT lock_ask('k'), lock_ask('k', 'anybody?');
\i :show
SELECT t.take('k', 'Ann');
\o :told
SET ROLE regress_al_a;
SELECT lock_ask('k', 'Please?');
\i :show
-- the same key again, another role, and another key
\o :told
SELECT lock_ask('n:k'), lock_ask('k', 'now!');
SET ROLE regress_al_b;
SET application_name = '';
SELECT lock_ask('k') AS another_role;
SET ROLE regress_al_a;
SET application_name = 'app';
SELECT t.take('n:k', 'Bob'), lock_ask('n:k', 'another key');
\i :show
-- A role that the policy does not admit may not ask.
RESET ROLE;
SELECT lock_set_policy('n:', notify => true, roles => ARRAY['regress_al_a'::regrole]);
SET ROLE regress_al_b;
SELECT t.raises($$SELECT lock_ask('n:k')$$);
RESET ROLE;
SELECT lock_set_policy('n:', notify => true);
-- all holders of a shared key get the request
SELECT lock_release('k', 'ann-1'), t.take('k', 'Ann', mode => 'shared'), t.take('k', 'Bob', mode => 'shared');
\o :told
SELECT lock_ask('k', 'both');
\i :show
SELECT (SELECT count(*) FROM generate_series(1, 300) n, lock_acquire('k', '1 h', 'many-' || n, 'shared'));
\o :told
SELECT lock_ask('k') AS many \gset
SELECT force_release('k', 'test'), lock_release('n:k', 'bob-1');
\i :show
SELECT :many >= 100 AS many;

-- Long texts
--
-- a key of control characters, each of which takes six bytes in JSON, and the longest labels
\set worst `printf '\001'`
CREATE ROLE "regress_al_Ünïcode ""role""";
SELECT lock_grant_access('"regress_al_Ünïcode ""role"""', 'user');
SELECT lock_set_policy('', notify => true);
SELECT repeat(:'worst', 1024) AS key, repeat(:'worst', 255) AS label, lock_channel(repeat(:'worst', 1024)) AS c \gset
LISTEN :"c";
\o :told
SELECT (lock_acquire(:'key', '1 h', 'ann-1', holder => :'label')).status;
SET ROLE "regress_al_Ünïcode ""role""";
SELECT lock_ask(:'key', repeat(:'worst', 1024));
RESET ROLE;
SELECT force_release(:'key', repeat('ö', 512));
\o
\set heard `cat "$AL_TOLD"`
SELECT n, octet_length(payload) BETWEEN 7000 AND 7999 AS long, e ->> 'event', e ->> 'key' = :'key' AS key, length(e ->> 'holder') BETWEEN 40 AND 70 AND starts_with(:'label', e ->> 'holder') AS label,
	e ->> 'by' = session_user AS by_me, CASE WHEN e ->> 'by' <> session_user THEN e ->> 'by' END AS by, length(e ->> 'reason') BETWEEN 10 AND 511 AS cut, trim(e ->> 'reason', 'ö' || :'worst') AS reason
FROM t.payloads(:'heard') p, LATERAL (SELECT payload::json) j (e) ORDER BY n;
-- a message that fits is not cut, and quotes, backslashes and line ends are escaped
\o :told
SELECT (lock_acquire('n:k', '1 h', 'ann-1', holder => repeat('h', 255))).status;
SELECT lock_ask('n:k', repeat('m', 1024));
SET ROLE regress_al_a;
SELECT lock_ask('n:k', E'"quoted" \\ back\\slash\nline {"event":"released"}');
RESET ROLE;
\o
\set heard `cat "$AL_TOLD"`
SELECT length(e ->> 'holder'), length(e ->> 'reason'), CASE WHEN length(e ->> 'reason') < 100 THEN e ->> 'reason' END AS reason FROM t.payloads(:'heard') p, LATERAL (SELECT payload::json) j (e) ORDER BY n;
\o :told
SELECT force_release('n:k', 'test'), lock_drop_policy('');
\o

--
-- A new extension gives the key another channel
--
SELECT lock_channel('k') = :'before' AS still;
DROP EXTENSION atomic_lock;
CREATE EXTENSION atomic_lock;
SELECT lock_channel('k') = :'before' AS same;
UNLISTEN *;
DROP OWNED BY "regress_al_Ünïcode ""role""";
DROP ROLE "regress_al_Ünïcode ""role""";
