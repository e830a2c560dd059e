-- All of a client's 100 keys at once, which it sends as a parameter
\if :first
SELECT array_agg('set:' || :client_id || ':' || n) AS names FROM generate_series(0, 99) n \gset
\set first 0
\endif
SELECT count(*) FROM lock_acquire_all(:names, owner => 'client-' || :client_id);
SELECT lock_release_all('client-' || :client_id);
