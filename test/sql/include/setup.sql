-- Included by every regression test: short output, a new extension, and helper functions.
\pset format unaligned
\pset footer off
SET client_min_messages = warning;
DROP EXTENSION IF EXISTS atomic_lock CASCADE;
DROP SCHEMA IF EXISTS t CASCADE;
CREATE EXTENSION atomic_lock;
CREATE SCHEMA t;
GRANT USAGE ON SCHEMA t TO PUBLIC;

-- Times and tickets differ from run to run.
CREATE FUNCTION t.mask(s text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
	SELECT regexp_replace(regexp_replace(regexp_replace(s, 'ticket = [0-9]+', 'ticket = <number>', 'g'),
		'[A-Z][a-z]{2} [A-Z][a-z]{2} +[0-9]{1,2} [0-9:]{8}([.][0-9]+)? [0-9]{4} [A-Z]+',
		'<time>', 'g'),
		'[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9:]{8}([.][0-9]+)?( ?[A-Z]{3,4}|[+-][0-9]{2}(:[0-9]{2})*)?',
		'<time>', 'g')
$$;

-- The complete error of a statement, which is undone in any case. It does not depend on
-- search_path, which the statement may test.
CREATE FUNCTION t.render(state text, message text, detail text, hint text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
	SELECT t.mask(concat_ws(E'\n', state || ': ' || message,
		'DETAIL: ' || nullif(detail, ''), 'HINT: ' || nullif(hint, '')))
$$;
CREATE FUNCTION t.raises(stmt text) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
	d	pg_catalog.text;
	h	pg_catalog.text;
BEGIN
	BEGIN
		EXECUTE stmt;
		RAISE SQLSTATE 'RB000';
	EXCEPTION
		WHEN SQLSTATE 'RB000' THEN
			RETURN 'no error';
		WHEN OTHERS THEN
			GET STACKED DIAGNOSTICS d = PG_EXCEPTION_DETAIL, h = PG_EXCEPTION_HINT;
			RETURN t.render(SQLSTATE, SQLERRM, d, h);
	END;
END
$$;

-- Its SQLSTATE, 00000 if it succeeds; undone in any case.
CREATE FUNCTION t.state(answer text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
	SELECT CASE answer WHEN 'no error' THEN '00000' ELSE left(answer, 5) END
$$;
CREATE FUNCTION t.code(stmt text) RETURNS text
LANGUAGE plpgsql
AS $$
BEGIN
	RETURN t.state(t.raises(stmt));
END
$$;

-- The answer of an acquire, without the parts that differ from run to run.
CREATE FUNCTION t.show(g anyelement,
	OUT acquired boolean, OUT status text, OUT key text, OUT mode text,
	OUT owner text, OUT token boolean, OUT seconds numeric,
	OUT waited interval, OUT holder text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	acquired := g.acquired;
	status := g.status;
	key := g.key;
	mode := g.mode;
	owner := regexp_replace(g.owner,
		'^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$',
		'<uuid v4>');
	token := g.fencing_token > 0;
	seconds := round(extract(epoch FROM g.expires_at)
					 - extract(epoch FROM g.acquired_at), 3);
	waited := g.waited;
	holder := g.holder;
END
$$;

-- Wait until the lease of a key, or of one of its owners, has expired.
CREATE FUNCTION t.expire(k text, o text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	FOR i IN 1..100000 LOOP
		IF public.lock_holder(k) IS NULL OR (o IS NOT NULL AND NOT public.lock_is_held(k, o)) THEN
			RETURN;
		END IF;
		PERFORM pg_sleep(0.005);
	END LOOP;
	RAISE 'the lease of "%" does not run out', k;
END
$$;

-- Wait until the clock has passed a moment.
CREATE FUNCTION t.wait_until(moment timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	WHILE clock_timestamp() <= moment LOOP
		PERFORM pg_sleep(0.001);
	END LOOP;
END
$$;
-- Wait until no offer of a key is valid.
CREATE FUNCTION t.lapse(k text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1..100000 LOOP
		IF NOT EXISTS (SELECT FROM lock_queue WHERE key = k AND offered_until IS NOT NULL) THEN RETURN true; END IF;
		PERFORM pg_sleep(0.005);
	END LOOP;
	RAISE 'the offer of "%" does not lapse', k;
END
$$;
-- Make an owner's lease expire now, pinned or not: extending can shorten, too.
CREATE FUNCTION t.run_out(k text, o text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	until	timestamptz := lock_extend(k, o, '1 ms');
BEGIN
	IF until < 'infinity' THEN
		PERFORM t.wait_until(until);
	END IF;
	RETURN true;
END
$$;

-- Changes with every byte of the table, row locks included.
CREATE FUNCTION t.fingerprint() RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	RETURN (SELECT md5(string_agg(concat_ws(' ', l.ctid, l.xmin, l.xmax, l::text), E'\n' ORDER BY l.key, l.slot))
			FROM public.app_lock l);
END
$$;

-- Like t.raises(), without the number of milliseconds waited.
CREATE FUNCTION t.timeout(stmt text) RETURNS text LANGUAGE sql AS $$
	SELECT regexp_replace(t.raises(stmt), 'waited for [0-9]+ ms', 'waited for <n> ms')
$$;

-- The locks and transaction id that this transaction has: claims of all our classes.
CREATE FUNCTION t.left_open(OUT claims bigint, OUT no_transaction_id boolean) LANGUAGE sql AS $$
	SELECT count(*), pg_current_xact_id_if_assigned() IS NULL FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND objsubid BETWEEN 1706 AND 1711
$$;

-- Runs a test's function t.story() at every isolation level, with a snapshot taken before:
-- write  :at_every_level
\set story ' SELECT count(*) > 0 AS snapshot FROM pg_class; SELECT t.story(); COMMIT;'
\set at_every_level 'BEGIN ISOLATION LEVEL READ COMMITTED;' :story 'BEGIN ISOLATION LEVEL REPEATABLE READ;' :story 'BEGIN ISOLATION LEVEL SERIALIZABLE;' :story

-- A file of this directory that only some tests need; they set its path in the variable include
\if :{?include}
\i :include
\endif
\set ECHO all
