-- Clients have keys of their own, so that every acquire is granted. The function is not in
-- FROM, where PostgreSQL would store the answer before reading it.
\set n random(0, :keys - 1) / :clients * :clients + :client_id
SELECT (lock_acquire('order:' || :n)).owner \gset
SELECT lock_release('order:' || :n, :owner);
