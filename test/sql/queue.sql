\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- The line for a key: lock_enqueue, lock_leave, lock_queue
--
-- Properties: lock_enqueue acquires what can be had, and otherwise gives a place, which
-- each further call of its owner renews; whoever lets go of a key, in whatever way, offers
-- it to the first place; nobody else gets it then, by any verb, in any mode or lifetime, or
-- as a part of a set; an offer that is not taken costs the place, and the next one may
-- take the key at once; a place ends by a grant, lock_leave, time, and by nothing that
-- another owner can do; what is rolled back never was; policies and limits hold.
--
-- Turns red when: one verb jumps the line; an offer is made to two, or to nobody, or for
-- a key that is closed; a place outlives its grant, its offer or its time; a renewal
-- begins at the end of the line; owners are not compared; a limit counts renewals.
--
-- Other sessions are in iso_line, what listeners are told in events.sql.
DROP ROLE IF EXISTS regress_al_a, regress_al_b;
CREATE ROLE regress_al_a;
CREATE ROLE regress_al_b;
SELECT lock_grant_access(r, 'user') FROM unnest(ARRAY['regress_al_a', 'regress_al_b']::regrole[]) r;
CREATE TABLE t.orders (id int PRIMARY KEY);
INSERT INTO t.orders VALUES (1);
GRANT SELECT ON t.orders TO PUBLIC;

-- Somebody enqueues, or holds the key: the label is the owner's name.
CREATE FUNCTION t.enter(k text, who text, offer interval DEFAULT NULL, keep interval DEFAULT NULL, OUT status text, OUT place integer, OUT holder text) RETURNS record LANGUAGE sql AS $$
	SELECT status, place, holder FROM lock_enqueue(k, lower(who) || '-1', who, offer, keep)
$$;
CREATE FUNCTION t.take(k text, who text, ttl interval DEFAULT '1 hour') RETURNS text LANGUAGE sql AS $$
	SELECT status || coalesce(' ' || holder, '') FROM lock_try_acquire(k, ttl, lower(who) || '-1', holder => who)
$$;
-- Who is in line, and to whom the key is offered
CREATE FUNCTION t.line(k text) RETURNS text LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_catalog, pg_temp AS $$
	SELECT string_agg(place || ' ' || holder || CASE WHEN offered_until > clock_timestamp() THEN ' (offered)' ELSE '' END, ', ' ORDER BY place) FROM lock_queue WHERE key = k
$$;
-- Wait until a place is over.
CREATE FUNCTION t.gone(k text, who text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1..100000 LOOP
		IF NOT EXISTS (SELECT FROM lock_queue WHERE key = k AND holder = who) THEN RETURN true; END IF;
		PERFORM pg_sleep(0.005);
	END LOOP;
	RAISE 'the place of % for "%" does not expire', who, k;
END
$$;

--
-- Arguments
--
SELECT call, t.raises('SELECT ' || call) FROM unnest(ARRAY[
	'lock_enqueue(NULL)', 'lock_enqueue('''')', 'lock_enqueue(repeat(''k'', 1025))',
	'lock_enqueue(''k'', '''')', 'lock_enqueue(''k'', repeat(''o'', 1025))', 'lock_enqueue(''k'', holder => repeat(''h'', 1025))',
	'lock_enqueue(''k'', offer => ''0'')', 'lock_enqueue(''k'', offer => ''999 us'')', 'lock_enqueue(''k'', offer => ''-1 s'')', 'lock_enqueue(''k'', offer => ''24 h 1 us'')', 'lock_enqueue(''k'', offer => ''1 month'')',
	'lock_enqueue(''k'', keep => ''0'')', 'lock_enqueue(''k'', keep => ''999 us'')', 'lock_enqueue(''k'', keep => ''24 h 1 us'')', 'lock_enqueue(''k'', keep => ''1 year'')',
	'lock_leave(NULL, ''o'')', 'lock_leave('''', ''o'')', 'lock_leave(''k'')', 'lock_leave(''k'', '''')',
	'lock_channel(NULL)', 'lock_channel('''')']) WITH ORDINALITY u(call, n) ORDER BY n;
BEGIN READ ONLY;
SELECT t.raises($$SELECT lock_enqueue('k', 'ann-1')$$), t.raises($$SELECT lock_leave('k', 'ann-1')$$);
SELECT count(*) FROM lock_queue;
COMMIT;
SELECT (SELECT count(*) FROM app_lock), (SELECT count(*) FROM app_lock_queue), (SELECT count(*) FROM lock_queue);

--
-- The key, or a place
--
-- A free key is acquired, as lock_acquire would, for an owner that is made.
SELECT status, place, key, expires_at - clock_timestamp() BETWEEN '4 min' AND '5 min' AS five_minutes, ttl_remaining BETWEEN '4 min' AND '5 min' AS five, owner ~ '^[0-9a-f-]{36}$' AS made, fencing_token > 0 AS token, ticket, holder IS NOT NULL AS holder FROM lock_enqueue('free');
SELECT owner FROM lock_enqueue('made') \gset
SELECT mode, lifetime, queued, fencing_token = (lock_enqueue('made', :'owner')).fencing_token AS token FROM lock_status('made');
SELECT status, place, owner = :'owner' AS owner, ticket FROM lock_enqueue('made', :'owner', 'Ann', '1 s', '1 s');
SELECT lock_is_held('made', :'owner'), (SELECT count(*) FROM lock_queue);
-- One that is held is not.
SELECT t.take('k', 'Ann');
SELECT status, place, key, expires_at - clock_timestamp() BETWEEN '59 min' AND '1 h' AS one_hour, ttl_remaining BETWEEN '59 min' AND '1 h' AS hour, owner, fencing_token, ticket > 0 AS ticket, holder FROM lock_enqueue('k', 'bob-1', 'Bob');
SELECT ticket AS bob, queued_at AS bob_since, expires_at AS bob_until FROM lock_queue WHERE key = 'k' \gset
SELECT t.enter('k', 'Cid', '2 min', '3 min');
SELECT owner FROM lock_enqueue('k', holder => 'Dan') \gset
SELECT key, place, holder, role = current_user AS role, queued_at <= clock_timestamp() AS since, date_trunc('minute', expires_at - clock_timestamp() + '30 s') AS kept, offer, offered_until, ticket > :bob AS behind_bob FROM lock_queue;
SELECT queued, holder, pending FROM lock_status('k');
SELECT queued FROM lock_status() WHERE key IN ('k', 'free') ORDER BY key;
SELECT DISTINCT queued FROM unnest(ARRAY['K', 'k ', 'none', 'free']) k, lock_status(k);
-- The setting names the owner.
SET atomic_lock.owner = 'Eve-1';
SELECT status, place, owner FROM lock_enqueue('k', NULL, 'Eve');
SELECT status, place, owner FROM lock_enqueue('k');
SELECT lock_leave('k'), lock_leave('k');
RESET atomic_lock.owner;
-- A renewal keeps the place, and what it is not given.
SELECT status, place, ticket = :bob AS ticket, holder FROM lock_enqueue('k', 'bob-1', 'Robert', '30 min', '10 min');
SELECT place, holder, queued_at = :'bob_since' AS since, expires_at < :'bob_until' AS shorter, offer FROM lock_queue WHERE ticket = :bob;
SELECT status, place, ticket = :bob AS ticket FROM lock_enqueue('k', 'bob-1', 'Bob');
SELECT expires_at > :'bob_until' AS longer, offer FROM lock_queue WHERE ticket = :bob;
SELECT status, place FROM lock_enqueue('k', :'owner', 'Dan');
SELECT t.line('k');
-- Who holds the key needs no place.
SELECT t.enter('k', 'Ann');
SELECT t.line('k');

--
-- Whose turn it is
--
-- Bob, Cid and Dan are in line.  Bob comes first.
SELECT lock_release('k', 'ann-1'), t.line('k');
SELECT t.line('k');
SELECT offered_until - clock_timestamp() BETWEEN '29 min' AND '30 min' AS thirty_minutes FROM lock_queue WHERE offered_until IS NOT NULL;
SELECT locked, holder, queued FROM lock_status('k');
SELECT lock_holder('k'), lock_is_held('k', 'bob-1');
SELECT t.take('k', 'Ann'), t.take('k', 'Cid'), t.raises($$SELECT lock_acquire('k', '1 h', 'cid-1')$$);
SELECT t.enter('k', 'Cid');
SELECT t.enter('k', 'Ann');
SELECT t.line('k');
SELECT t.take('k', 'Bob'), t.line('k');
SELECT t.line('k');
SELECT queued, holder FROM lock_status('k');
SELECT t.take('k', 'Bob'), lock_leave('k', 'bob-1'), t.enter('k', 'Bob');
-- Cid takes it by lock_enqueue.
SELECT lock_release('k', 'bob-1');
SELECT t.line('k');
SELECT t.enter('k', 'Cid');
SELECT t.line('k');
-- A generated owner does, too.
SELECT lock_release('k', 'cid-1');
SELECT status, holder FROM lock_acquire('k', owner => :'owner', holder => 'Dan');
SELECT lock_release('k', :'owner'), lock_leave('k', 'ann-1');
SELECT t.line('k');
-- The line is empty: anybody takes it.
SELECT t.take('k', 'Zoe'), lock_release('k', 'zoe-1'), t.line('k');

--
-- An offer that is not taken
--
SELECT t.take('lapse', 'Ann');
SELECT t.enter('lapse', w, o) FROM (VALUES ('Bob', interval '1 ms'), ('Cid', '1 h'), ('Dan', '1 ms')) v (w, o);
SELECT lock_release('lapse', 'ann-1');
SELECT t.lapse('lapse');
-- Bob has lost the place.  Cid is not offered the key yet, and may take it; nobody else.
SELECT t.line('lapse'), queued FROM lock_status('lapse');
SELECT t.take('lapse', 'Ann'), t.take('lapse', 'Bob'), t.take('lapse', 'Dan');
BEGIN;
SELECT t.take('lapse', 'Cid'), t.line('lapse');
ROLLBACK;
-- A sweep makes the next offer, once.
SELECT t.line('lapse'), lock_sweep() IS NOT NULL AS swept;
SELECT t.line('lapse'), (SELECT count(*) FROM app_lock_queue WHERE key = 'lapse') AS rows;
SELECT offered_until AS until FROM lock_queue WHERE key = 'lapse' AND holder = 'Cid' \gset
SELECT lock_sweep() IS NOT NULL AS swept;
SELECT lock_leave('lapse', 'dan-1'), t.enter('lapse', 'Dan', '1 ms');
SELECT offered_until = :'until' AS same FROM lock_queue WHERE key = 'lapse' AND holder = 'Cid';
-- Bob begins at the end.
SELECT lock_leave('lapse', 'bob-1'), t.enter('lapse', 'Bob');
SELECT t.line('lapse'), (SELECT max(ticket) FILTER (WHERE holder = 'Bob') > max(ticket) FILTER (WHERE holder <> 'Bob') FROM lock_queue WHERE key = 'lapse') AS new_ticket;
SELECT t.take('lapse', 'Cid'), lock_release('lapse', 'cid-1');
SELECT t.lapse('lapse');
-- Who leaves although the place is lost lets the next one know.
SELECT lock_leave('lapse', 'dan-1'), t.line('lapse');
SELECT t.line('lapse'), t.take('lapse', 'Bob');
SELECT lock_release('lapse', 'bob-1'), t.take('lapse', 'Zoe');
-- All offers lapse, one after the other, and the key is free.
SELECT t.take('all', 'Ann');
SELECT t.enter('all', w, '1 ms') FROM unnest(ARRAY['Bob', 'Cid']) WITH ORDINALITY u(w, n) ORDER BY n;
SELECT lock_release('all', 'ann-1');
SELECT t.lapse('all');
SELECT lock_sweep() IS NOT NULL AS swept;
SELECT t.lapse('all');
SELECT t.line('all'), t.take('all', 'Zoe'), queued FROM lock_status('all');

--
-- A place that nobody renews
--
SELECT t.take('keep', 'Ann');
SELECT t.enter('keep', 'Bob', keep => '1 ms'), t.gone('keep', 'Bob');
SELECT queued FROM lock_status('keep');
-- While the key is offered to it, it stays.
SELECT t.enter('keep', 'Cid', '1 h', '1 h'), lock_release('keep', 'ann-1');
UPDATE app_lock_queue SET expires_at = clock_timestamp() WHERE key = 'keep' AND ticket > 0;
SELECT t.line('keep'), t.take('keep', 'Ann'), lock_sweep() IS NOT NULL AS swept, t.take('keep', 'Bob'), t.take('keep', 'Cid');
-- Who has lost it begins anew.
SELECT t.enter('keep', 'Dan');
SELECT t.enter('keep', 'Bob');
SELECT t.line('keep');
SELECT t.enter('keep', 'Dan', keep => '1 ms'), t.gone('keep', 'Dan');
SELECT t.line('keep'), lock_release('keep', 'cid-1');
SELECT t.line('keep'), t.take('keep', 'Dan');

--
-- Leaving
--
SELECT t.take('leave', 'Ann');
SELECT t.enter('leave', w) FROM unnest(ARRAY['Bob', 'Cid', 'Dan']) WITH ORDINALITY u(w, n) ORDER BY n;
-- Only the owner can.
SELECT o, lock_leave(k, o) FROM (VALUES ('leave', 'ann-1'), ('leave', 'eve-1'), ('leave', 'Bob'), ('leave', 'BOB-1'), ('leave', 'bob-1 '), ('leave', encode(sha256('bob-1'), 'hex')), ('LEAVE', 'bob-1'), ('leave ', 'bob-1')) v (k, o);
SELECT t.line('leave');
SELECT lock_leave('leave', 'cid-1'), lock_leave('leave', 'cid-1');
SELECT t.line('leave'), lock_release('leave', 'ann-1');
-- To whom it is offered leaves it to the next one.
SELECT t.line('leave'), lock_leave('leave', 'bob-1');
SELECT t.line('leave'), lock_leave('leave', 'dan-1');
SELECT t.line('leave'), t.take('leave', 'Eve');

--
-- What is rolled back
--
SELECT t.take('undo', 'Ann');
BEGIN;
SELECT t.enter('undo', 'Bob');
SELECT t.line('undo');
ROLLBACK;
SELECT t.line('undo');
BEGIN;
SELECT t.enter('undo', 'Bob');
SAVEPOINT a;
SELECT t.enter('undo', 'Cid'), lock_leave('undo', 'bob-1'), lock_release('undo', 'ann-1');
SELECT t.line('undo');
ROLLBACK TO a;
SELECT t.line('undo');
COMMIT;
SELECT t.line('undo'), lock_is_held('undo', 'ann-1');
BEGIN;
SELECT lock_leave('undo', 'bob-1'), t.line('undo');
ROLLBACK;
BEGIN;
SELECT lock_release('undo', 'ann-1');
ROLLBACK;
SELECT t.line('undo');
-- What the transaction has released is its own until the commit, which offers it.
BEGIN;
SELECT lock_release('undo', 'ann-1'), t.line('undo');
SELECT t.line('undo'), t.take('undo', 'Ann');
SAVEPOINT a;
SELECT lock_release('undo', 'ann-1');
RELEASE a;
COMMIT;
SELECT t.line('undo');
-- A grant that is rolled back leaves the offer as it was.
BEGIN;
SELECT t.take('undo', 'Bob'), t.line('undo');
SELECT t.line('undo');
ROLLBACK;
SELECT t.line('undo'), t.take('undo', 'Ann');
SELECT t.take('undo', 'Bob'), t.line('undo');
-- released, and enqueued behind oneself, in one transaction
SELECT t.enter('undo', 'Cid');
BEGIN;
SELECT lock_release('undo', 'bob-1'), t.enter('undo', 'Eve'), lock_release('undo', 'eve-1');
COMMIT;
SELECT t.line('undo');
BEGIN;
SELECT t.take('undo', 'Cid'), lock_release('undo', 'cid-1');
COMMIT;
SELECT t.line('undo'), t.take('undo', 'Ann');

--
-- Nobody jumps the line, and whose turn it is has the key by every verb
--
CREATE TABLE t.verbs (n int GENERATED ALWAYS AS IDENTITY, call text);
INSERT INTO t.verbs (call) VALUES
	('(lock_acquire({k}, {t}, {o})).status'),
	('(lock_acquire({k}, {t}, {o}, wait => ''5 ms'')).status'),
	('(lock_acquire({k}, {t}, {o}, ''shared'')).status'),
	('(lock_acquire({k}, NULL, {o}, lifetime => ''session'')).status'),
	('(lock_acquire({k}, NULL, {o}, lifetime => ''transaction'')).status'),
	('(lock_try_acquire({k}, {t}, {o})).status'),
	('(lock_try_acquire({k}, {t}, {o}, wait => ''5 ms'')).status'),
	('(lock_try_acquire({k}, {t}, {o}, ''shared'')).status'),
	('(lock_try_acquire({k}, {t}, {o}, ''shared'', ''5 ms'')).status'),
	('(lock_try_acquire({k}, {t}, {o}, ''shared'', max_holders => 5)).status'),
	('(lock_try_acquire({k}, {t}, {o}, lifetime => ''session'')).status'),
	('(lock_try_acquire({k}, NULL, {o}, lifetime => ''transaction'')).status'),
	('(lock_try_acquire({k}, NULL, {o}, ''shared'', lifetime => ''transaction'')).status'),
	('(SELECT string_agg(status, '','') FROM lock_acquire_all(ARRAY[''before'', {k}, ''~behind''], {t}, {o}))'),
	('(SELECT string_agg(status, '','') FROM lock_try_acquire_all(ARRAY[''before'', {k}, ''~behind''], {t}, {o}))'),
	('(SELECT string_agg(status, '','') FROM lock_try_acquire_all(ARRAY[''before'', {k}, ''~behind''], {t}, {o}, wait => ''5 ms''))'),
	('(SELECT string_agg(status, '','') FROM lock_try_acquire_all(ARRAY[''before'', {k}], {t}, {o}, ''shared''))'),
	('(SELECT id || '' fetched'' FROM lock_fetch(NULL::t.orders, ''1'', {t}, {o}, key => {k}))'),
	('(lock_enqueue({k}, {o})).status');
-- What a call answers; undone in any case
CREATE FUNCTION t.ask(call text, k text, who text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text;
BEGIN
	EXECUTE 'SELECT ' || replace(replace(replace(call, '{k}', quote_literal(k)), '{o}', quote_literal(lower(who) || '-1')), '{t}', '''1 h''') INTO answer;
	RAISE SQLSTATE 'RB000';
EXCEPTION
	WHEN SQLSTATE 'RB000' THEN
		RETURN answer;
	WHEN OTHERS THEN
		RETURN SQLSTATE;
END
$$;
CREATE FUNCTION t.all(k text, OUT call text, OUT eve text, OUT cid text, OUT bob text) RETURNS SETOF record LANGUAGE sql AS $$
	SELECT call, t.ask(call, k, 'Eve'), t.ask(call, k, 'Cid'), t.ask(call, k, 'Bob') FROM t.verbs ORDER BY n
$$;
-- Eve is not in line, Cid comes second.  The key is offered to Bob.
SELECT t.take('jump', 'Ann'), t.enter('jump', 'Bob'), t.enter('jump', 'Cid');
SELECT lock_release('jump', 'ann-1');
SELECT * FROM t.all('jump');
-- Its lease has expired, and nobody has offered it.
SELECT t.take('jump 2', 'Ann'), t.enter('jump 2', 'Bob'), t.enter('jump 2', 'Cid');
SELECT t.run_out('jump 2', 'ann-1');
SELECT t.line('jump 2');
SELECT * FROM t.all('jump 2');
-- An offer has lapsed.
SELECT t.take('jump 3', 'Ann'), t.enter('jump 3', 'Dan', '1 ms'), t.enter('jump 3', 'Bob'), t.enter('jump 3', 'Cid');
SELECT lock_release('jump 3', 'ann-1');
SELECT t.lapse('jump 3');
SELECT * FROM t.all('jump 3');
SELECT t.line(k) FROM unnest(ARRAY['jump', 'jump 2', 'jump 3']) k;

--
-- Shared
--
SELECT status FROM unnest(ARRAY['ann', 'eve']) w, LATERAL lock_acquire('share', '1 hour', w || '-1', 'shared', holder => initcap(w));
SELECT t.enter('share', 'Bob');
SELECT (lock_try_acquire('share', '1 hour', 'zoe-1', 'shared')).status, (lock_try_acquire('share', '1 hour', 'zoe-1', 'shared', max_holders => 9)).status, (lock_try_acquire('share', '1 hour', 'zoe-1', 'shared', lifetime => 'session')).status;
SELECT (lock_try_acquire('share', '1 hour', 'ann-1', 'shared')).status, lock_extend('share', 'ann-1') IS NOT NULL AS extend;
-- who shares it and waits to have it alone, and asks for the share again, waits on
SELECT t.enter('share', 'Ann'), (lock_try_acquire('share', '1 hour', 'ann-1', 'shared')).status;
SELECT t.line('share'), lock_leave('share', 'ann-1');
SELECT lock_release('share', 'ann-1');
SELECT t.line('share'), t.take('share', 'Bob'), (lock_try_acquire('share', '1 hour', 'ann-1', 'shared')).status;
-- who holds it changes its mode
SELECT (lock_try_convert('share', 'eve-1')).status;
SELECT (lock_try_convert('share', 'eve-1', 'shared')).status;
SELECT (lock_try_acquire('share', '1 hour', 'zoe-1', 'shared')).status;
SELECT t.line('share'), lock_release('share', 'eve-1');
SELECT t.line('share');
-- who comes next may share it, and loses the place
SELECT status, mode FROM lock_acquire('share', '1 hour', 'bob-1', 'shared');
SELECT (lock_try_acquire('share', '1 hour', 'zoe-1', 'shared')).status;
SELECT t.line('share');

--
-- Each way to let go of a key offers it
--
CREATE FUNCTION t.both(k text, how text) RETURNS text LANGUAGE sql AS $$
	SELECT (lock_acquire(k, NULL, 'ann-1', lifetime => how, holder => 'Ann')).status || ' ' || (SELECT status FROM t.enter(k, 'Bob'))
$$;
SELECT how, t.both('go ' || how, how) FROM unnest(ARRAY['lease', 'session']) how;
SELECT lock_release('go ' || how, 'ann-1') FROM unnest(ARRAY['lease', 'session']) how;
BEGIN;
SELECT t.both('go transaction', 'transaction'), t.both('go released', 'transaction');
SELECT lock_release('go released', 'ann-1'), t.line('go released');
COMMIT;
SELECT t.both('go ' || how, 'lease') FROM unnest(ARRAY['all', 'try', 'force', 'heartbeat']) how;
SELECT lock_try_release('go try', 'ann-1'), force_release('go force', 'test');
SELECT lock_extend('go heartbeat', 'ann-1', '1 ms') IS NOT NULL AS short;
SELECT t.expire('go heartbeat'), lock_release_all('ann-1');
SELECT t.both('go discard', 'session');
DISCARD ALL;
SET client_min_messages = warning;
SELECT k.key, t.line(k.key) FROM (SELECT DISTINCT key FROM lock_queue WHERE key LIKE 'go %') k ORDER BY key;
-- An expired lease is offered by the sweep.
SELECT lock_sweep() IS NOT NULL AS swept, t.line('go heartbeat');
SELECT t.line('go heartbeat');

--
-- What passes a key on without the line
--
SELECT t.take('hand', 'Ann'), t.enter('hand', 'Bob'), t.enter('hand', 'Cid');
SELECT (lock_transfer('hand', 'ann-1', 'eve-1', 'Eve')).status;
SELECT t.line('hand'), lock_holder('hand');
-- to somebody in line, who needs no place then
SELECT (lock_transfer('hand', 'eve-1', 'cid-1', 'Cid')).status;
SELECT t.line('hand'), lock_holder('hand');
SELECT t.enter('hand', 'Ann');
SELECT lock_transfer_all('cid-1', 'ann-1', 'Ann');
SELECT t.line('hand'), lock_holder('hand');
BEGIN;
SELECT t.enter('hand', 'Cid');
SELECT (lock_transfer('hand', 'ann-1', 'cid-1', 'Cid')).status, t.line('hand');
COMMIT;
SELECT t.line('hand');
SELECT (lock_steal('hand', 'eve-1', 'test', holder => 'Eve')).status;
SELECT t.line('hand'), t.enter('hand', 'Cid');
SELECT (lock_steal('hand', 'cid-1', 'test', holder => 'Cid')).status;
SELECT t.line('hand'), lock_release('hand', 'cid-1');
SELECT t.line('hand');
-- A key that is offered is stolen, too.  The place stays, and is offered the key anew.
SELECT (lock_steal('hand', 'eve-1', 'test', holder => 'Eve')).status;
SELECT t.line('hand'), t.enter('hand', 'Bob', '1 h'), force_release('hand', 'test');
BEGIN;
SELECT (lock_steal('hand', 'eve-1', 'test', holder => 'Eve')).status, t.line('hand');
SELECT t.line('hand');
ROLLBACK;
SELECT t.line('hand');
SELECT (lock_steal('hand', 'eve-1', 'test', holder => 'Eve')).status;
UPDATE app_lock_queue SET expires_at = clock_timestamp() WHERE key = 'hand' AND ticket = 0;
SELECT t.line('hand'), t.take('hand', 'Bob'), force_release('hand', 'test');
SELECT t.line('hand');
-- Who steals it and was offered it has it.
SELECT (lock_steal('hand', 'bob-1', 'test', holder => 'Bob')).status, lock_release('hand', 'bob-1');
SELECT t.line('hand'), t.enter('hand', 'Bob');
-- There is nothing to force then.
SELECT t.enter('hand', 'Ann'), lock_release('hand', 'bob-1');
SELECT lock_try_force_release('hand', 'test'), t.line('hand'), t.take('hand', 'Ann');

--
-- A key that is closed
--
SELECT lock_set_policy('closed:hold', min_hold => '1 h'), lock_set_policy('closed:delay', lock_delay => '1 h');
SELECT t.take('closed:hold', 'Ann'), t.take('closed:delay', 'Ann', '1 ms');
SELECT t.expire('closed:delay'), t.enter('closed:hold', 'Bob'), t.enter('closed:delay', 'Bob');
SELECT lock_release('closed:hold', 'ann-1'), lock_sweep() IS NOT NULL AS swept;
SELECT t.line('closed:hold'), t.line('closed:delay');
SELECT t.enter('closed:hold', 'Cid'), t.enter('closed:delay', 'Cid');
SELECT lock_set_policy('closed:hold', min_hold => '1 ms'), lock_set_policy('closed:delay', lock_delay => '1 ms');
SELECT count(t.wait_until(closed_until)) FROM unnest(ARRAY['closed:hold', 'closed:delay']) k, lock_status(k);
-- Who comes first may take it.  A sweep offers it.
SELECT t.line('closed:hold'), t.take('closed:hold', 'Cid'), t.take('closed:delay', 'Cid'), t.take('closed:hold', 'Bob');
SELECT lock_sweep() IS NOT NULL AS swept;
SELECT t.line('closed:delay'), t.take('closed:delay', 'Cid'), t.take('closed:delay', 'Bob');
SELECT lock_drop_policy('closed:hold'), lock_drop_policy('closed:delay');

--
-- Policies and limits
--
-- A role that a policy leaves out cannot stand in line.
SELECT lock_set_policy('roles:', roles => ARRAY['regress_al_a'::regrole]);
SET ROLE regress_al_b;
SELECT t.raises($$SELECT lock_enqueue('roles:free', 'bob-1')$$);
SET ROLE regress_al_a;
SELECT t.take('roles:k', 'Ann');
SET ROLE regress_al_b;
SELECT t.raises($$SELECT lock_enqueue('roles:k', 'bob-1')$$);
SELECT lock_leave('roles:k', 'bob-1');
SET ROLE regress_al_a;
SELECT t.enter('roles:k', 'Bob');
-- It knows the owner's secret, and still gets nothing.
SET ROLE regress_al_b;
SELECT t.code($$SELECT lock_enqueue('roles:k', 'bob-1')$$) AS renew, t.code($$SELECT lock_acquire('roles:k', owner => 'bob-1')$$) AS acquire;
RESET ROLE;
SELECT place, holder, role FROM lock_queue WHERE key LIKE 'roles:%';
-- max_ttl: what nobody asked for is cut
SELECT lock_set_policy('ttl:', max_ttl => '10 s');
SELECT t.take('ttl:k', 'Ann', '10 s'), t.enter('ttl:k', 'Bob');
SELECT offer, expires_at - queued_at BETWEEN '9 s' AND '11 s' AS kept FROM lock_queue WHERE key = 'ttl:k';
SELECT t.raises($$SELECT lock_enqueue('ttl:k', 'cid-1', offer => '11 s')$$), t.raises($$SELECT lock_enqueue('ttl:k', 'cid-1', keep => '10 s 1 us')$$);
SELECT t.enter('ttl:k', 'Cid', '10 s', '10 s');
-- no default_ttl that max_lifetime leaves: as lock_acquire
SELECT lock_set_policy('life:', max_lifetime => '2 min', max_ttl => '2 min');
SELECT t.take('life:k', 'Ann', '2 min'), t.enter('life:k', 'Bob'), t.enter('life:free', 'Bob');
-- quotas: where nobody gets one more key, nobody gets a place
SELECT lock_set_policy('quota:', max_keys_per_owner => 1);
SELECT t.take('quota:1', 'Ann'), t.take('quota:2', 'Bob');
SELECT t.raises($$SELECT lock_enqueue('quota:2', 'ann-1')$$);
SELECT t.enter('quota:2', 'Cid');
SELECT lock_set_policy('quota:', max_keys_per_role => 2);
SET ROLE regress_al_a;
SELECT t.take('quota:3', 'Eve'), t.take('quota:4', 'Eve');
SELECT t.raises($$SELECT lock_enqueue('quota:2', 'eve-1')$$);
SELECT t.enter('quota:4', 'Eve');
RESET ROLE;
SELECT lock_drop_policy('quota:');
-- max_queue_places: of a role, for a key
SELECT t.take('many', 'Ann'), t.take('secret 2', 'Zoe');
SET atomic_lock.max_queue_places = 2;
SELECT t.enter('many', 'Bob'), t.enter('many', 'Cid');
SELECT t.raises($$SELECT lock_enqueue('many', 'dan-1')$$);
SELECT t.enter('many', 'Cid'), t.enter('many', 'Bob'), t.enter('secret 2', 'Dan');
SET ROLE regress_al_a;
SELECT t.enter('many', 'Dan');
RESET ROLE;
SELECT lock_leave('many', 'bob-1'), t.enter('many', 'Eve'), t.code($$SELECT lock_enqueue('many', 'bob-1')$$);
-- places that are over do not count
SELECT t.enter('many', 'Eve', keep => '1 ms'), t.gone('many', 'Eve'), t.enter('many', 'Fay');
SET atomic_lock.max_queue_places = 0;
SELECT t.code($$SELECT lock_enqueue('many', 'gus-1')$$) AS none, t.enter('many', 'Fay'), t.enter('many, free', 'Gus');
RESET atomic_lock.max_queue_places;
SET ROLE regress_al_a;
SELECT t.code('SET atomic_lock.max_queue_places = 5');
RESET ROLE;
SELECT t.line('many');

--
-- What a place does to others
--
-- Nobody takes, ends or prolongs the place of another owner, whatever is in the label.
SELECT t.take('secret', 'Ann');
SELECT status, place FROM lock_enqueue('secret', 'bob-1', 'cid-1');
SELECT status, place FROM lock_enqueue('secret', 'cid-1', 'bob-1');
SELECT status, place FROM lock_enqueue('secret', 'BOB-1', 'bob-1');
SELECT lock_leave('secret', 'cid-1'), t.line('secret');
SELECT lock_release('secret', 'ann-1');
SELECT t.line('secret'), (lock_try_acquire('secret', owner => 'cid-1')).status, (lock_try_acquire('secret', owner => 'BOB-1')).status, (lock_try_acquire('secret', owner => 'bob-1')).status;
-- No owner is shown, to nobody.
SET ROLE regress_al_a;
SELECT t.code('SELECT * FROM lock_queue') AS view, t.code('SELECT * FROM lock_queue()') AS function, t.code('SELECT * FROM app_lock_queue') AS table, t.code('DELETE FROM app_lock_queue') AS delete, t.code($$INSERT INTO app_lock_queue VALUES ('k', 1, now())$$) AS insert;
RESET ROLE;
SELECT count(*) FROM lock_queue q WHERE key <> 'secret' AND q::text ~ '-1|[0-9a-f]{8}-';
-- Places of other keys do not matter.
SELECT t.take('secrets', 'Zoe'), t.take('SECRET', 'Zoe');
-- Leases and places go separate ways: what an owner has does not free its place.
SELECT t.take('other', 'Ann'), t.enter('other', 'Zoe');
SELECT lock_release_all('zoe-1'), t.line('other');

-- The longest names
SELECT (lock_acquire(repeat('k', 1024), '1 h', repeat('a', 255))).status, (lock_enqueue(repeat('k', 1024), repeat('o', 255), repeat('h', 255))).status;
SELECT length(holder), length(key), (lock_enqueue(key, repeat('o', 254), repeat('ö', 127))).place FROM lock_queue WHERE key LIKE 'kkk%';
SELECT lock_release(repeat('k', 1024), repeat('a', 255));
SELECT (lock_try_acquire(repeat('k', 1024), '1 h', repeat('o', o))).status FROM generate_series(254, 255) o;

-- A sweep counts the places that it removes, so that whoever calls it until it returns 0
-- has removed all.
SELECT t.take('counted', 'Ann');
SELECT count(t.enter('counted', n)) FROM unnest('{Bob,Cid,Dan,Eve,Zoe}'::text[]) n;
SELECT lock_sweep(1000) IS NOT NULL AS swept;
UPDATE app_lock_queue SET expires_at = clock_timestamp() WHERE key = 'counted';
SELECT lock_sweep(2);
SELECT lock_sweep(2);
SELECT lock_sweep(2);
SELECT lock_sweep(2), t.line('counted');

-- Places that somebody wrote by hand, and that lack something, do no harm beyond their key.
-- Somebody holds it, so that the first place of all is one that is known to shared memory.
SELECT t.take('odd', 'Ann'), t.enter('odd', 'Bob');
INSERT INTO app_lock_queue (key, ticket, expires_at) VALUES ('odd', 1, 'infinity'), ('odd', 0, clock_timestamp()), ('odd', -9, clock_timestamp());
SELECT place, holder FROM lock_queue WHERE key = 'odd';
SELECT locked FROM lock_status('odd');
SELECT t.enter('odd', 'Bob'), lock_sweep() IS NOT NULL AS swept;
SELECT lock_release('odd', 'ann-1');
SELECT t.take('odd', 'Cid'), lock_leave('odd', 'ann-1'), lock_release_all('ann-1') IS NOT NULL AS released;
DELETE FROM app_lock_queue WHERE key = 'odd' AND ticket = 1;
SELECT lock_sweep() IS NOT NULL AS swept;
SELECT t.line('odd'), t.take('odd', 'Bob');
