-- Keys that do not show their names: HMAC-SHA256 of a name with a secret of at least 16
-- bytes, as the function hidden_key of the block programs makes it.  To be run by psql, in
-- the schema of the application.  A role needs EXECUTE on the function to make keys.
--
-- A secret that is NULL makes a key that is NULL, and no lock (22004).  Pass the secret as
-- a parameter, or it is in pg_stat_activity, and perhaps in the log.  The log may have
-- parameters, too: see "Owners in logs" in doc/settings.md.
CREATE OR REPLACE FUNCTION hidden_key(secret bytea, name text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	key bytea := CASE WHEN length(secret) > 64 THEN sha256(secret) ELSE secret END;
	pads bytea[];
BEGIN
	IF length(secret) < 16 THEN
		RAISE invalid_parameter_value USING MESSAGE = 'the secret is shorter than 16 bytes';
	END IF;
	key := key || decode(repeat('00', 64 - length(key)), 'hex');
	SELECT array_agg(pad ORDER BY mask) INTO pads
	FROM (SELECT mask, string_agg(set_byte('\x00', 0, get_byte(key, i) # mask), '' ORDER BY i) AS pad
		FROM generate_series(0, 63) AS i, (VALUES (54), (92)) AS m(mask) GROUP BY mask) AS p;
	RETURN encode(sha256(pads[2] || sha256(pads[1] || convert_to(name, 'UTF8'))), 'hex');
END
$$;
COMMENT ON FUNCTION hidden_key(bytea, text) IS 'key of a lock that does not tell its name: HMAC-SHA256, in hexadecimal digits';
REVOKE ALL ON FUNCTION hidden_key(bytea, text) FROM PUBLIC;
