-- JdbcLockProvider with usingDbTime(), for a lock whose row exists, as it does from the first
-- use on: rows are never deleted.
\set n random(0, :keys - 1) / :clients * :clients + :client_id
UPDATE shedlock SET lock_until = timezone('utc', CURRENT_TIMESTAMP) + make_interval(secs => 300),
	locked_at = timezone('utc', CURRENT_TIMESTAMP), locked_by = 'host-' || :client_id
	WHERE shedlock.name = 'order:' || :n AND shedlock.lock_until <= timezone('utc', CURRENT_TIMESTAMP);
UPDATE shedlock SET lock_until = CASE WHEN locked_at + make_interval(secs => 0) > timezone('utc', CURRENT_TIMESTAMP)
	THEN locked_at + make_interval(secs => 0) ELSE timezone('utc', CURRENT_TIMESTAMP) END
	WHERE name = 'order:' || :n AND locked_by = 'host-' || :client_id;
