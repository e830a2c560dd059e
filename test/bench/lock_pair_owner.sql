-- A worker with a name of its own.
\set n random(0, :keys - 1) / :clients * :clients + :client_id
SELECT fencing_token FROM lock_acquire('order:' || :n, owner => 'worker:' || :client_id) \gset
SELECT lock_release('order:' || :n, 'worker:' || :client_id);
