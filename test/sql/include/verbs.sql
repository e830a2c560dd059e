-- Included by tests of policies: each function that begins or changes a lease, and its answer
-- for keys of a prefix.
CREATE TABLE t.orders (id int PRIMARY KEY);
INSERT INTO t.orders VALUES (1);
GRANT SELECT ON t.orders TO PUBLIC;

-- {k} is the key: a prefix followed by "free" or "held"; {o} is the owner
CREATE TABLE t.verbs (n int GENERATED ALWAYS AS IDENTITY, verb text, has text, call text);
INSERT INTO t.verbs (verb, has, call) VALUES
	('acquire', 'free', '(lock_acquire({k}, {t}, {o}, wait => {w})).status'),
	('try_acquire', 'free', '(lock_try_acquire({k}, {t}, {o}, wait => {w})).status'),
	('acquire shared', 'free', '(lock_acquire({k}, {t}, {o}, ''shared'', {w})).status'),
	('acquire for the session', 'free', '(lock_acquire({k}, {t}, {o}, wait => {w}, lifetime => ''session'')).status'),
	('acquire_all', 'free', '(SELECT string_agg(status, '','') FROM lock_acquire_all(ARRAY[''before'', {k}, ''~behind''], {t}, {o}, wait => {w}))'),
	('try_acquire_all', 'free', '(SELECT string_agg(status, '','') FROM lock_try_acquire_all(ARRAY[''before'', {k}, ''~behind''], {t}, {o}, wait => {w}))'),
	('fetch', 'free', '(SELECT id || '' fetched'' FROM lock_fetch(NULL::t.orders, ''1'', {t}, {o}, {w}, {k}))'),
	('steal', 'free', '(lock_steal({k}, {o}, ''test'', {t})).status'),
	('acquire again', 'held', '(lock_acquire({k}, {t}, {o}, wait => {w})).status'),
	('acquire_all again', 'held', '(SELECT string_agg(status, '','') FROM lock_acquire_all(ARRAY[{k}], {t}, {o}, wait => {w}))'),
	('fetch again', 'held', '(SELECT id || '' fetched'' FROM lock_fetch(NULL::t.orders, ''1'', {t}, {o}, {w}, {k}))'),
	('steal from oneself', 'held', '(lock_steal({k}, {o}, ''test'', {t})).status'),
	('convert', 'held', '(lock_convert({k}, {o}, ''shared'', {w})).status'),
	('try_convert', 'held', '(lock_try_convert({k}, {o}, ''shared'', {w})).status'),
	('transfer', 'held', '(lock_transfer({k}, {o}, ''heir'', ttl => {t})).status'),
	('try_transfer', 'held', '(lock_try_transfer({k}, {o}, ''heir'', ttl => {t})).status'),
	('transfer_all', 'held', 'lock_transfer_all({o}, ''heir'') > 0'),
	('extend', 'held', 'lock_extend({k}, {o}, {t}) > now()'),
	('try_extend', 'held', 'lock_try_extend({k}, {o}, {t}) > now()'),
	('extend_all', 'held', 'lock_extend_all({o}, {t}) > 0'),
	('heartbeat', 'held', '(SELECT string_agg(status, '','') FROM lock_heartbeat(ARRAY[{k}], {o}, {t}))'),
	('heartbeat of all', 'held', '(SELECT string_agg(DISTINCT status, '','') FROM lock_heartbeat(NULL, {o}, {t}))'),
	('release', 'held', 'lock_release({k}, {o})'),
	('try_release', 'held', 'lock_try_release({k}, {o})'),
	('release_all', 'held', 'lock_release_all({o}) > 0'),
	('force_release', 'held', 'force_release({k}, ''test'')'),
	('try_force_release', 'held', 'lock_try_force_release({k}, ''test'')');

-- The last ttl of each live lease of a key
CREATE FUNCTION t.length(k text) RETURNS text LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_catalog, pg_temp AS $$
	SELECT string_agg('for ' || ttl_us * interval '1 us', ',') FROM app_lock WHERE key = k AND NOT released AND expires_at > clock_timestamp()
$$;
-- The answer of a call, and the lease after it; undone in any case
CREATE FUNCTION t.ask(call text, prefix text, has text DEFAULT 'held', ttl interval DEFAULT NULL, wait interval DEFAULT '0', o text DEFAULT 'me') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	k		text := prefix || has;
	answer	text;
	d		text;
	h		text;
BEGIN
	EXECUTE 'SELECT ' || replace(replace(replace(replace(call, '{k}', quote_literal(k)), '{o}', quote_literal(o)), '{t}', coalesce(quote_literal(ttl), 'NULL')), '{w}', quote_literal(wait)) INTO answer;
	answer := concat_ws(' ', answer, t.length(k));
	RAISE SQLSTATE 'RB000';
EXCEPTION
	WHEN SQLSTATE 'RB000' THEN
		RETURN answer;
	WHEN OTHERS THEN
		GET STACKED DIAGNOSTICS d = PG_EXCEPTION_DETAIL, h = PG_EXCEPTION_HINT;
		RETURN t.render(SQLSTATE, SQLERRM, d, h);
END
$$;
-- The answers of all functions, with the functions that gave each
CREATE FUNCTION t.ask_all(prefix text, t interval DEFAULT NULL, w interval DEFAULT '0', which text DEFAULT '', OUT answer text, OUT functions text) RETURNS SETOF record LANGUAGE sql AS $$
	SELECT answer, string_agg(verb, ', ' ORDER BY n) FROM (SELECT n, verb, t.ask(call, prefix, has, t, w) AS answer FROM t.verbs WHERE verb ~ which OFFSET 0) x GROUP BY answer ORDER BY min(n)
$$;
GRANT SELECT ON t.verbs TO PUBLIC;
