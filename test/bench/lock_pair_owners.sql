-- Many workers: a key usually goes to another worker than the last time.
\set n random(0, :keys - 1) / :clients * :clients + :client_id
\set worker random(1, 1000)
SELECT fencing_token FROM lock_acquire('order:' || :n, owner => 'worker:' || :worker) \gset
SELECT lock_release('order:' || :n, 'worker:' || :worker);
