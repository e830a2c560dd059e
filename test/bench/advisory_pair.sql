\set n random(0, :keys - 1) / :clients * :clients + :client_id
SELECT pg_try_advisory_lock(:n);
SELECT pg_advisory_unlock(:n);
