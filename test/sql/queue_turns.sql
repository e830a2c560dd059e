\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\set include :srcdir '/sql/include/line.sql'
\i :setup
-- The line for a key: no verb jumps it
--
-- Properties: while a ticket is first in line, no other caller gets the key by any verb, in any
-- mode or lifetime, or as part of a set. The ticket's owner gets it by each verb. This holds
-- for an offered key, for one whose lease has expired, and after a missed offer. Sharers stand
-- in the same line.
--
-- Turns red when: one verb jumps the line, or refuses the first in line; a sharer joins others
-- ahead of a ticket for exclusive mode.
CREATE TABLE t.orders (id int PRIMARY KEY);
INSERT INTO t.orders VALUES (1);

--
-- No caller jumps the line, and the owner whose turn it is gets the key by every verb
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
-- The answer of a call, which is undone in any case
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
-- The lease has expired, and the key is not offered yet.
SELECT t.take('jump 2', 'Ann'), t.enter('jump 2', 'Bob'), t.enter('jump 2', 'Cid');
SELECT t.run_out('jump 2', 'ann-1');
SELECT t.line('jump 2');
SELECT * FROM t.all('jump 2');
-- An offer was missed.
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
-- a sharer that waits for exclusive mode, and asks for its share again, keeps waiting
SELECT t.enter('share', 'Ann'), (lock_try_acquire('share', '1 hour', 'ann-1', 'shared')).status;
SELECT t.line('share'), lock_leave('share', 'ann-1');
SELECT lock_release('share', 'ann-1');
SELECT t.line('share'), t.take('share', 'Bob'), (lock_try_acquire('share', '1 hour', 'ann-1', 'shared')).status;
-- the holder may change its mode
SELECT (lock_try_convert('share', 'eve-1')).status;
SELECT (lock_try_convert('share', 'eve-1', 'shared')).status;
SELECT (lock_try_acquire('share', '1 hour', 'zoe-1', 'shared')).status;
SELECT t.line('share'), lock_release('share', 'eve-1');
SELECT t.line('share');
-- the next in line may also share the key, and loses the ticket
SELECT status, mode FROM lock_acquire('share', '1 hour', 'bob-1', 'shared');
SELECT (lock_try_acquire('share', '1 hour', 'zoe-1', 'shared')).status;
SELECT t.line('share');
