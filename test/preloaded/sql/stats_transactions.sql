\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/../sql/include/setup.sql'
\set include :srcdir '/../sql/include/counted.sql'
\i :setup
-- lock_stats: counts of transactions, and the equation
--
-- Properties: a grant or an end counts when its transaction commits, and not at all after a
-- rollback. A refusal counts at once, even if its transaction rolls back. After a long series
-- of calls the counters agree with the answers, and grants = releases + expirations + forced +
-- holdings that are not released.
--
-- Turns red when: a grant counts before the commit; a grant undone by a savepoint counts.
SELECT lock_stats_reset();
SELECT t.counted() AS since_the_reset, t.adds_up();

--
-- Transactions
--
SELECT status FROM lock_acquire('a', '1 hour', 'alice-1');
:counted
-- not before the commit
BEGIN;
SELECT status FROM lock_acquire('b', '1 hour', 'alice-1');
SELECT lock_extend('a', 'alice-1') IS NOT NULL AS extended;
:counted
COMMIT;
:counted
-- rolled back: only the refusals count
BEGIN;
SELECT status FROM lock_acquire('c', '1 hour', 'alice-1');
SELECT status FROM lock_acquire('c', '1 hour', 'alice-1');
SELECT lock_extend('a', 'alice-1') IS NOT NULL AS extended, lock_release('b', 'alice-1');
SELECT status FROM lock_try_acquire('a', '1 hour', 'bob-1');
SELECT status FROM lock_try_acquire('a', '1 hour', 'bob-1', wait => '10 ms');
SELECT force_release('a', 'why');
SELECT (lock_steal('d', 'dba-1', 'why')).status, (lock_acquire('e', owner => 'alice-1', lifetime => 'transaction')).status;
SELECT count(*) FROM lock_acquire_all(ARRAY['f', 'g'], owner => 'alice-1');
ROLLBACK;
:counted
SELECT t.adds_up();
-- refused, by an error that aborts the transaction
BEGIN;
SELECT status FROM lock_acquire('c', '1 hour', 'alice-1');
\set VERBOSITY sqlstate
SELECT lock_acquire('a', '1 hour', 'bob-1');
\set VERBOSITY default
COMMIT;
:counted
-- savepoints
BEGIN;
SAVEPOINT s1;
SELECT status FROM lock_acquire('c', '1 hour', 'alice-1');
SELECT lock_release('a', 'alice-1');
SELECT status FROM lock_try_acquire('b', '1 hour', 'bob-1');
ROLLBACK TO s1;
SELECT status FROM lock_acquire('d', '1 hour', 'alice-1');
SAVEPOINT s2;
SELECT status FROM lock_acquire('e', '1 hour', 'alice-1');
SAVEPOINT s3;
SELECT status FROM lock_acquire('f', '1 hour', 'alice-1');
SELECT status FROM lock_acquire('t', owner => 'alice-1', lifetime => 'transaction');
RELEASE s3;
ROLLBACK TO s2;
SELECT status FROM lock_acquire('g', '1 hour', 'alice-1'), lock_extend('a', 'alice-1');
RELEASE s2;
COMMIT;
:counted
SELECT t.adds_up();
-- a tree of savepoints, many of them rolled back; returns the number of grants that remain
CREATE FUNCTION t.nest(k text, depth int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	n	int := 0;
	m	int;
BEGIN
	FOR i IN 1..3 LOOP
		IF random() < 0.6 THEN
			n := n + (lock_acquire(k || i)).acquired::int;
		END IF;
		BEGIN
			m := CASE WHEN depth > 0 THEN t.nest(k || i, depth - 1) ELSE 0 END;
			IF random() < 0.3 THEN
				RAISE SQLSTATE 'RB000';
			END IF;
			n := n + m;
		EXCEPTION
			WHEN SQLSTATE 'RB000' THEN NULL;
		END;
	END LOOP;
	RETURN n;
END
$$;
BEGIN;
SELECT setseed(0.6), t.nest('nest ', 5) AS granted \gset
COMMIT;
SELECT :granted > 10 AS many, count(*) = :granted AS rows FROM app_lock WHERE key LIKE 'nest%';
SELECT t.counted() = 'grants ' || :granted AS counted;
SELECT t.adds_up();
-- acquired and released
BEGIN;
SELECT (lock_acquire('h', '1 hour', 'alice-1')).status, lock_release('h', 'alice-1'), (lock_acquire('h', '1 hour', 'bob-1')).status, force_release('h', 'why');
COMMIT;
:counted
BEGIN;
SELECT (lock_acquire('h', '1 hour', 'alice-1')).status, lock_release('h', 'alice-1');
ROLLBACK;
:counted
SELECT t.adds_up();
-- expired within its own transaction, and acquired again
BEGIN;
SELECT status FROM lock_acquire('own', '20 ms', 'alice-1');
SELECT t.expire('own');
SELECT status FROM lock_acquire('own', '1 hour', 'bob-1');
COMMIT;
:counted
SELECT t.adds_up();
-- a sweep that is rolled back has removed nothing
SELECT status FROM lock_acquire('undone', '20 ms', 'alice-1');
SELECT t.expire('undone');
:counted
BEGIN;
SELECT lock_sweep(1000);
ROLLBACK;
SELECT t.counted() ~ 'swept|expirations' AS anything_swept;
SELECT lock_sweep(1000);
:counted
SELECT t.adds_up();
-- in two phases: counted at PREPARE, since the session does not learn of the outcome
BEGIN;
SELECT (lock_acquire('p', '1 hour', 'alice-1')).status, lock_release('a', 'alice-1'), lock_extend('b', 'alice-1') IS NOT NULL AS extended, (lock_acquire('q', owner => 'alice-1', lifetime => 'transaction')).status;
PREPARE TRANSACTION 'al_stats';
:counted
COMMIT PREPARED 'al_stats';
:counted
SELECT t.adds_up();
BEGIN;
SELECT (lock_acquire('p2', '1 hour', 'alice-1')).status;
PREPARE TRANSACTION 'al_stats';
:counted
ROLLBACK PREPARED 'al_stats';
:counted

--
-- A long sequence of calls, counted both by the counters and from the answers
--
TRUNCATE app_lock;
SELECT lock_stats_reset();
-- With all verbs, only the equation is checked.
CREATE PROCEDURE t.story(steps int, all_verbs boolean) LANGUAGE plpgsql AS $$
DECLARE
	names	text[] := ARRAY['grants', 'regrants', 'releases', 'extends', 'refusals'];
	told	int[] := '{0,0,0,0,0}';
	pending	int[];		-- of the open transaction; refusals count at once
	word	text;
	n		int;
	k		text;
	o		text;
	p		text;
	mode	text;
	at		timestamptz;
	since	timestamptz;
BEGIN
	PERFORM setseed(0.1706);
	FOR i IN 1 .. steps LOOP
		pending := '{0,0,0,0}';
		FOR j IN 1 .. 1 + random() * 3 LOOP
			k := 'k' || floor(random() * 6);
			o := (ARRAY['alice-1', 'bob-1', 'carol-1', 'dave-1'])[1 + floor(random() * 4)];
			p := (ARRAY['alice-1', 'bob-1', 'carol-1', 'dave-1'])[1 + floor(random() * 4)];
			mode := (ARRAY['exclusive', 'shared'])[1 + floor(random() * 2)];
			n := NULL;
			at := clock_timestamp();
			BEGIN
				CASE floor(random() * CASE WHEN all_verbs THEN 20 ELSE 12 END)
					WHEN 0, 1, 2 THEN SELECT status, acquired_at INTO word, since FROM lock_try_acquire(k, '1 hour', o, mode);
					WHEN 3 THEN SELECT status, acquired_at INTO word, since FROM lock_try_acquire(k, '1 ms', o, mode);
					WHEN 4 THEN SELECT status, acquired_at INTO word, since FROM lock_try_acquire(k, owner => o, mode => mode, lifetime => 'session');
					WHEN 5 THEN SELECT status, acquired_at INTO word, since FROM lock_try_acquire_all(ARRAY[k, k], '1 hour', o, mode);
					WHEN 6, 7 THEN word := lock_try_release(k, o);
					WHEN 8 THEN word := CASE WHEN lock_try_extend(k, o, '1 hour') IS NOT NULL THEN 'extended' END;
					WHEN 9 THEN SELECT status, acquired_at INTO word, since FROM lock_steal(k, o, 'story', '10 ms');
					WHEN 10 THEN word := lock_force_release(k, 'story');
					WHEN 11 THEN word := lock_sweep(3);
					WHEN 12, 13 THEN word := (lock_transfer(k, o, p)).status;
					WHEN 14, 15 THEN word := (lock_convert(k, o, mode)).status;
					WHEN 16, 17, 18 THEN word := (lock_try_acquire(k, owner => o, mode => mode, lifetime => 'transaction')).status;
					ELSE word := lock_release_all(o);
				END CASE;
				n := CASE word WHEN 'acquired' THEN CASE WHEN since >= at THEN 1 ELSE 2 END WHEN 'reacquired' THEN 2
					WHEN 'released' THEN 3 WHEN 'extended' THEN 4 WHEN 'held' THEN 5 END;
				IF random() < 0.2 THEN
					RAISE SQLSTATE 'RB000';
				ELSIF n < 5 THEN
					pending[n] := pending[n] + 1;
				END IF;
			EXCEPTION
				WHEN OTHERS THEN
					IF SQLSTATE !~ '^(RB000|LK00[2-59]|55P03)$' THEN
						RAISE;
					END IF;
			END;
			IF n = 5 THEN
				told[n] := told[n] + 1;
			END IF;
		END LOOP;
		IF random() < 0.2 THEN
			ROLLBACK;
		ELSE
			COMMIT;
			FOR n IN 1 .. 4 LOOP
				told[n] := told[n] + pending[n];
			END LOOP;
		END IF;
		IF NOT t.adds_up() THEN
			RAISE 'does not add up after step %', i;
		END IF;
	END LOOP;
	FOR n IN 1 .. CASE WHEN all_verbs THEN 0 ELSE 5 END LOOP
		IF told[n] <> (SELECT value FROM t.counter WHERE name = names[n]) THEN
			RAISE '% answers of %', told[n], names[n];
		END IF;
	END LOOP;
END
$$;
CALL t.story(1000, false);
CALL t.story(1000, true);
SELECT name, value > 0 AS any FROM t.counter ORDER BY place;
SELECT t.adds_up();
SELECT lock_sweep(1000) >= 0 AS swept;
SELECT t.adds_up();
