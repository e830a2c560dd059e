-- A worker that gives back one key and takes the next in the same statement.  What it
-- holds in the end is given back by run_lane.
\set n random(0, :keys - 1) / :clients * :clients + :client_id
SELECT lock_try_release('order:' || :before, 'worker:' || :client_id),
	(lock_acquire('order:' || :n, owner => 'worker:' || :client_id)).fencing_token;
\set before :n
