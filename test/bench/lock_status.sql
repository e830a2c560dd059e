\set n random(0, 9999)
SELECT locked, holder, expires_at FROM lock_status('held:' || :n);
