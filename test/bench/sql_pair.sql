-- Clients have keys of their own, so that every acquire is granted.
\set n random(0, :keys - 1) / :clients * :clients + :client_id
INSERT INTO sql_lock AS l (key, owner, expires_at)
	VALUES ('order:' || :n, gen_random_uuid(), clock_timestamp() + interval '5 minutes')
	ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at
	WHERE l.expires_at <= clock_timestamp()
	RETURNING owner \gset
DELETE FROM sql_lock WHERE key = 'order:' || :n AND owner = :owner;
