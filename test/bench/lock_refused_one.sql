-- One column only, and so not in FROM, where PostgreSQL would store the answer before reading
-- it.
\set n random(0, 7)
SELECT (lock_try_acquire('held:' || :n)).acquired;
