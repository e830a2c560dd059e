-- A possible but unusual variant: the release is not flushed.
\set n random(0, :keys - 1) / :clients * :clients + :client_id
SELECT plpgsql_acquire('order:' || :n, '5 minutes') AS owner \gset
SELECT plpgsql_release_later('order:' || :n, :owner);
