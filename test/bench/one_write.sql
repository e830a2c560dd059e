\set n random(0, :keys - 1) / :clients * :clients + :client_id
UPDATE bench_row SET n = n + 1 WHERE id = :n;
SELECT 1;
