-- lock_next in a pipeline: two statements, sent together as one transaction.
\set n random(0, :keys - 1) / :clients * :clients + :client_id
\startpipeline
SELECT lock_try_release('order:' || :before, 'worker:' || :client_id);
SELECT fencing_token FROM lock_acquire('order:' || :n, owner => 'worker:' || :client_id);
\endpipeline
\set before :n
