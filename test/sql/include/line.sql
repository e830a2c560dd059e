-- Included by tests of the line for a key: owners in line, and holders.

-- lock_enqueue and lock_try_acquire by name: the label is the name, and the owner is made from
-- it.
CREATE FUNCTION t.enter(k text, who text, offer interval DEFAULT NULL, keep interval DEFAULT NULL, OUT status text, OUT place integer, OUT holder text) RETURNS record LANGUAGE sql AS $$
	SELECT status, place, holder FROM lock_enqueue(k, lower(who) || '-1', who, offer, keep)
$$;
CREATE FUNCTION t.take(k text, who text, ttl interval DEFAULT '1 hour') RETURNS text LANGUAGE sql AS $$
	SELECT status || coalesce(' ' || holder, '') FROM lock_try_acquire(k, ttl, lower(who) || '-1', holder => who)
$$;
-- The line, with the ticket that has the offer
CREATE FUNCTION t.line(k text) RETURNS text LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_catalog, pg_temp AS $$
	SELECT string_agg(place || ' ' || holder || CASE WHEN offered_until > clock_timestamp() THEN ' (offered)' ELSE '' END, ', ' ORDER BY place) FROM lock_queue WHERE key = k
$$;
-- Wait until a ticket has ended.
CREATE FUNCTION t.gone(k text, who text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1..100000 LOOP
		IF NOT EXISTS (SELECT FROM lock_queue WHERE key = k AND holder = who) THEN RETURN true; END IF;
		PERFORM pg_sleep(0.005);
	END LOOP;
	RAISE 'the place of % for "%" does not expire', who, k;
END
$$;
