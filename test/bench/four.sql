-- Four keys of an owner.
\set n random(0, :keys - 1) / :clients * :clients + :client_id
SELECT count(*) FROM lock_acquire_all(ARRAY['four/' || :n, 'four/b/' || :client_id, 'four/c/' || :client_id, 'four/d/' || :client_id], owner => 'client-' || :client_id);
SELECT lock_release_all('client-' || :client_id);
