-- One column only, and so not in FROM, where PostgreSQL would store the answer before reading
-- it.
\set n random(0, 9999)
SELECT (lock_status('held:' || :n)).locked;
