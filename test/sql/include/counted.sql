-- Included by tests of lock_stats: the changes of the counters.

-- The counters that have changed since the last call
CREATE VIEW t.counter AS
	SELECT c.* FROM lock_stats s, unnest(
		ARRAY['grants', 'regrants', 'refusals', 'timeouts', 'deadlocks', 'releases', 'extends', 'expirations', 'steals', 'forced', 'sweeps', 'swept', 'waits'],
		ARRAY[grants, regrants, refusals, timeouts, deadlocks, releases, extends, expirations, steals, forced, sweeps, swept, waits]) WITH ORDINALITY c(name, value, place)
	WHERE s.database = current_database();
CREATE TABLE t.seen (name text, value bigint);
CREATE FUNCTION t.counted() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text;
BEGIN
	SELECT string_agg(name || ' ' || c.value - coalesce(s.value, 0), ', ' ORDER BY c.place) INTO answer
	FROM t.counter c LEFT JOIN t.seen s USING (name) WHERE c.value <> coalesce(s.value, 0);
	DELETE FROM t.seen;
	INSERT INTO t.seen SELECT name, value FROM t.counter;
	RETURN coalesce(answer, 'nothing');
END
$$;
\set counted 'SELECT t.counted();'
-- Runs queries, each in a transaction of its own, and records its answer or SQLSTATE and the
-- counters it changed
CREATE TABLE t.played (n int, query text, answer text, counted text);
CREATE PROCEDURE t.play(VARIADIC queries text[]) LANGUAGE plpgsql AS $$
DECLARE
	answer	text;
BEGIN
	DELETE FROM t.played;
	PERFORM t.counted();
	FOR i IN 1 .. cardinality(queries) LOOP
		BEGIN
			EXECUTE 'SELECT ' || queries[i] INTO answer;
		EXCEPTION
			WHEN OTHERS THEN answer := SQLSTATE;
		END;
		COMMIT;
		INSERT INTO t.played VALUES (i, queries[i], answer, t.counted());
		COMMIT;
	END LOOP;
END
$$;
\set played 'SELECT query, answer, counted FROM t.played ORDER BY n;'

-- Every grant has ended, or its holding has a row that is not released
CREATE FUNCTION t.adds_up() RETURNS boolean LANGUAGE sql AS $$
	SELECT grants = releases + expirations + forced + (SELECT count(*) FROM app_lock WHERE NOT released)
	FROM lock_stats WHERE database = current_database()
$$;
