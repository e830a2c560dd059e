\set n random(0, 7)
INSERT INTO sql_lock AS l (key, owner, expires_at)
	VALUES ('held:' || :n, gen_random_uuid(), clock_timestamp() + interval '5 minutes')
	ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at
	WHERE l.expires_at <= clock_timestamp()
	RETURNING owner;
