-- A worker that releases one key and acquires the next in the same statement. run_lane releases
-- its last key.
\set n random(0, :keys - 1) / :clients * :clients + :client_id
SELECT lock_try_release('order:' || :before, 'worker:' || :client_id),
	(lock_acquire('order:' || :n, owner => 'worker:' || :client_id)).fencing_token;
\set before :n
