\set n random(0, 7)
UPDATE shedlock SET lock_until = timezone('utc', CURRENT_TIMESTAMP) + make_interval(secs => 300),
	locked_at = timezone('utc', CURRENT_TIMESTAMP), locked_by = 'host-' || :client_id
	WHERE shedlock.name = 'held:' || :n AND shedlock.lock_until <= timezone('utc', CURRENT_TIMESTAMP);
