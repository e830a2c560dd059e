-- Clients have keys of their own, so that every acquire is granted.
\set n random(0, :keys - 1) / :clients * :clients + :client_id
SELECT owner FROM lock_acquire('order:' || :n) \gset
SELECT lock_release('order:' || :n, :owner);
