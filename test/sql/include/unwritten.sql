-- Included by tests of lifetime transaction: whether anything was written, and the claims.
CREATE FUNCTION t.written(OUT no_live_row boolean, OUT no_transaction_id boolean) LANGUAGE sql AS $$
	SELECT NOT EXISTS (SELECT FROM app_lock WHERE NOT released AND expires_at > clock_timestamp()), pg_current_xact_id_if_assigned() IS NULL
$$;
CREATE FUNCTION t.claims() RETURNS bigint LANGUAGE sql AS $$
	SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND objsubid BETWEEN 1706 AND 1711 AND mode <> 'AccessShareLock'
$$;
-- The process in a message differs from run to run, and may look like a SQLSTATE.
CREATE FUNCTION t.refused(stmt text) RETURNS text LANGUAGE sql AS $$
	SELECT regexp_replace(replace(t.raises(stmt), 'process ' || pg_backend_pid(), 'process <this>'), 'waited for [0-9]+ ms', 'waited for <n> ms')
$$;
