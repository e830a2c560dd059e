-- One column only, and so not in FROM, where PostgreSQL stores an answer before
-- it reads it.
\set n random(0, 7)
SELECT (lock_try_acquire('held:' || :n)).acquired;
