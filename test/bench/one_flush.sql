-- A pair of writes.  Only the first is flushed: the limit for one flush per pair.
\set n random(0, :keys - 1) / :clients * :clients + :client_id
UPDATE bench_row SET n = n + 1 WHERE id = :n;
UPDATE bench_row SET n = n + 1 WHERE id = :n AND set_config('synchronous_commit', 'off', true) IS NOT NULL;
