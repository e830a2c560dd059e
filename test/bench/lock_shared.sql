-- All clients share the same ten keys.
\set n random(0, 9)
SELECT acquired FROM lock_acquire('shared:' || :n, owner => 'client-' || :client_id, mode => 'shared');
SELECT lock_release('shared:' || :n, 'client-' || :client_id);
