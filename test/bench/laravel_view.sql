-- peers/laravel.sql on the view of sql/compat/laravel.sql
\set n random(0, :keys - 1) / :clients * :clients + :client_id
\set owner random(1000000000000000, 9999999999999999)
\set expiration :now + 300
INSERT INTO laravel.cache_locks ("key", "owner", "expiration") VALUES ('laravel_order:' || :n, :owner, :expiration);
\set lottery random(1, 100)
\if :lottery <= 2
DELETE FROM laravel.cache_locks WHERE "expiration" <= :now;
\endif
DELETE FROM laravel.cache_locks WHERE "key" = 'laravel_order:' || :n AND "owner" = :owner;
