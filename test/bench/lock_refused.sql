\set n random(0, 7)
SELECT acquired, holder, expires_at FROM lock_try_acquire('held:' || :n);
