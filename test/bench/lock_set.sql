-- All of a client's 100 keys at once
SELECT count(*) FROM lock_acquire_all(ARRAY(SELECT 'set:' || :client_id || ':' || n FROM generate_series(0, 99) n), owner => 'client-' || :client_id);
SELECT lock_release_all('client-' || :client_id);
