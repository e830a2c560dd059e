\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- Error messages escape control characters, and never contain an owner
--
-- Properties: each refusal has its SQLSTATE, in PostgreSQL's message style, and gives the key,
-- the holder's label and mode, and the start and end of the lease. Keys, labels and words are
-- escaped, so that no one can forge a line of the log.
--
-- Turns red when: a message shows an owner or a raw control character, lacks the key, or has
-- another SQLSTATE; a forced end leaves no line in the log.
--

-- Keys and labels with line ends, escape sequences and bells cannot forge a line of the log.
SELECT acquired FROM lock_acquire(E'a\nLOG:  b\r\t\x1b[31m\x07\x7f\x01z', '10 min', 'secret-1', holder => E'Bob\r\nERROR:  \x1b[0m"\\n');
SELECT t.raises($$SELECT lock_acquire(E'a\nLOG:  b\r\t\x1b[31m\x07\x7f\x01z')$$);
SELECT t.raises($$SELECT lock_acquire(E'a\nLOG:  b\r\t\x1b[31m\x07\x7f\x01z', owner => 'secret-2')$$) ~ 'secret' AS owner_shown;
-- Quotes, backslashes and percent signs are shown unchanged.
SELECT acquired FROM lock_acquire('"%s\n''', '10 min', 'secret-1', holder => '%d "x" \t');
SELECT t.raises($$SELECT lock_acquire('"%s\n''')$$);

-- Every error, for a key and label with control characters, asked for by the owner and by
-- another.
SET application_name = 'secret-4';
CREATE FUNCTION t.situation(s text, k text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM lock_try_release(k, 'secret-1'), lock_try_release(k, 'secret-2'), lock_try_release(k, 'secret-3');
	IF s = 'held' THEN
		PERFORM lock_acquire(k, '10 min', 'secret-1', holder => E'Bob\n');
	ELSIF s = 'expired' THEN
		PERFORM lock_acquire(k, '5 ms', 'secret-1', holder => E'Bob\n');
		PERFORM t.expire(k);
	ELSIF s = 'released' THEN
		PERFORM lock_acquire(k, '5 min', 'secret-1', holder => E'Bob\n');
		PERFORM lock_release(k, 'secret-1');
	ELSIF s = 'forced' THEN
		PERFORM lock_acquire(k, '5 min', 'secret-1', holder => E'Bob\n');
		PERFORM force_release(k, 'why');
	ELSIF s = 'stolen' THEN
		PERFORM lock_acquire(k, '5 min', 'secret-1', holder => E'Bob\n');
		PERFORM lock_steal(k, 'secret-3', 'why', holder => E'Eve\r');
	ELSIF s = 'old' THEN
		PERFORM lock_acquire(k, '1 hour', 'secret-1', holder => E'Bob\n');
		SET LOCAL atomic_lock.max_lifetime = '1 h';
	ELSIF s = 'reacquire' THEN
		PERFORM lock_acquire(k, '1 hour', 'secret-1', holder => E'Bob\n');
		SET LOCAL atomic_lock.on_reacquire = error;
	END IF;
END
$$;
CREATE FUNCTION t.answers(s text) RETURNS TABLE (o text, call text, answer text) LANGUAGE plpgsql AS $$
DECLARE
	k	text := E'k\n' || s;
BEGIN
	PERFORM t.situation(s, k);
	FOREACH o IN ARRAY ARRAY['secret-1', 'secret-2'] LOOP
		FOREACH call IN ARRAY ARRAY['lock_acquire(%L, ''1 hour'', %L)', 'lock_acquire(key => %L, ttl => ''1 hour'', owner => %L, wait => ''1 ms'')', 'lock_release(%L, %L)', 'lock_extend(%L, %L, ''1 hour'')'] LOOP
			answer := t.raises('SELECT ' || format(call, k, o));
			RETURN NEXT;
		END LOOP;
	END LOOP;
	RETURN;
END
$$;
SELECT s AS situation, CASE o WHEN 'secret-1' THEN 'owner' ELSE 'other' END AS by, split_part(call, '(', 1) || CASE WHEN call ~ 'wait' THEN ' and wait' ELSE '' END AS call, t.state(answer) AS code
FROM unnest(ARRAY['held', 'expired', 'released', 'forced', 'stolen', 'never', 'reacquire', 'old']) WITH ORDINALITY u(s, i), LATERAL t.answers(s) ORDER BY i, o, 3;
RESET application_name;
CREATE TABLE t.said AS SELECT s, a.* FROM unnest(ARRAY['held', 'expired', 'released', 'forced', 'stolen', 'never', 'reacquire', 'old']) s, LATERAL t.answers(s) a;
SELECT count(*) AS owners_shown FROM t.said WHERE answer ~ 'secret';
SELECT count(*) AS control_characters FROM t.said WHERE regexp_replace(answer, E'\nDETAIL: |\nHINT: ', '', 'g') ~ '[\x01-\x1f\x7f]';
SELECT count(*) AS without_key FROM t.said WHERE answer <> 'no error' AND answer !~ 'lock "k\\x0a';
-- Messages follow PostgreSQL's style.
SELECT DISTINCT answer FROM t.said WHERE split_part(answer, E'\n', 1) ~ '(\.$|^.....: [A-Z])' OR answer ~ 'DETAIL: [^A-Z<]' OR answer ~ 'HINT: [^A-Z]' OR answer ~ '(DETAIL|HINT): [^\n]*[^.\n](\n|$)';
-- Refusals give the holder, its mode, and when its lease began and ends.
SELECT DISTINCT t.state(answer) AS code FROM t.said WHERE answer ~ 'DETAIL: [^\n]*<time> (until|and ends at) <time>' ORDER BY 1;

-- A wait that timed out has another message than a refusal without a wait.
SELECT s AS situation, t.mask(regexp_replace(answer, 'waited for [0-9]+ ms', 'waited for <n> ms')) AS answer FROM t.said WHERE call ~ 'wait' AND answer ~ '^55P03' ORDER BY s;

-- A key of maximum length is shown in full.
SELECT acquired FROM lock_acquire(repeat(E'\n', 1024), '10 min', holder => repeat(E'\t', 255));
SELECT replace(replace(split_part(t.raises($$SELECT lock_acquire(repeat(E'\n', 1024))$$), E'\n', 1), repeat('\x0a', 1024), '...'), repeat('\x09', 255), '...') AS message;

-- Invalid words are escaped, too.
SELECT t.raises($$SELECT lock_acquire('k', mode => E'x\ny')$$);
SELECT t.raises($$SELECT lock_acquire('k', lifetime => E'x\x1by')$$);

-- force_release and lock_steal leave a line in the log.
DROP ROLE IF EXISTS U&"regress_al_ad\0009min";
CREATE ROLE U&"regress_al_ad\0009min";
SELECT lock_grant_access(E'"regress_al_ad\tmin"', 'admin');
SET ROLE U&"regress_al_ad\0009min";
SELECT acquired FROM lock_steal(E'k\n', 'secret-1', E'a\nb', holder => E'Eve\r');
SET client_min_messages = log;
\set VERBOSITY terse
SELECT force_release(E'k\n', E'a\n\x1b%s"b"') AS forced;
SELECT acquired FROM lock_steal(E'k\n', 'secret-1', E'a\nb');
\set VERBOSITY default
SET client_min_messages = warning;
RESET ROLE;
DROP OWNED BY U&"regress_al_ad\0009min";
DROP ROLE U&"regress_al_ad\0009min";
