-- All 100 keys of a client at once, sent as a parameter
\if :first
SELECT array_agg('set:' || :client_id || ':' || n) AS names FROM generate_series(0, 99) n \gset
\set first 0
\endif
SELECT count(*) FROM lock_acquire_all(:names, owner => 'set-' || :client_id);
SELECT lock_release_all('set-' || :client_id);
