-- A path of four parts. All clients share its folders.
\set n random(0, :keys - 1) / :clients * :clients + :client_id
SELECT count(*) FROM lock_acquire_path('path/b/c/' || :n, owner => 'path-' || :client_id);
SELECT lock_release_path('path/b/c/' || :n, 'path-' || :client_id);
