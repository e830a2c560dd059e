-- The class of doc/examples/laravel
\set n random(0, :keys - 1) / :clients * :clients + :client_id
\set owner random(1000000000000000, 9999999999999999)
SELECT acquired FROM lock_try_acquire('laravel_order:' || :n, make_interval(secs => 300), :owner, wait => make_interval(secs => 0));
SELECT lock_try_release('laravel_order:' || :n, :owner) = 'released';
