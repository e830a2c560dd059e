-- Four keys of an owner. lock_release_all would read its released rows, too, and take longer each time.
\set n random(0, :keys - 1) / :clients * :clients + :client_id
SELECT count(*) FROM lock_acquire_all(ARRAY['four/' || :n, 'four/b/' || :client_id, 'four/c/' || :client_id, 'four/d/' || :client_id], owner => 'four-' || :client_id);
SELECT lock_release('four/' || :n, 'four-' || :client_id), lock_release('four/b/' || :client_id, 'four-' || :client_id), lock_release('four/c/' || :client_id, 'four-' || :client_id), lock_release('four/d/' || :client_id, 'four-' || :client_id);
