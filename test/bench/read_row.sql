\set n random(0, 9999)
SELECT owner, expires_at FROM sql_lock WHERE key = 'held:' || :n;
