\set n random(0, :keys - 1) / :clients * :clients + :client_id
SELECT pg_advisory_xact_lock(:n);
