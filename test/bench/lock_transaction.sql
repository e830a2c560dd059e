\set n random(0, :keys - 1) / :clients * :clients + :client_id
SELECT acquired FROM lock_acquire('order:' || :n, lifetime => 'transaction');
