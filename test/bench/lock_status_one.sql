-- One column only, and so not in FROM, where PostgreSQL stores an answer before
-- it reads it.
\set n random(0, 9999)
SELECT (lock_status('held:' || :n)).locked;
