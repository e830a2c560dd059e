-- DatabaseLock::acquire() and release(). The owner, 16 random characters in Laravel, is a
-- random number here; "now" is the client's clock.
\set n random(0, :keys - 1) / :clients * :clients + :client_id
\set owner random(1000000000000000, 9999999999999999)
\set expiration :now + 300
INSERT INTO cache_locks ("key", "owner", "expiration") VALUES ('order:' || :n, :owner, :expiration);
\set lottery random(1, 100)
\if :lottery <= 2
DELETE FROM cache_locks WHERE "expiration" <= :now;
\endif
DELETE FROM cache_locks WHERE "key" = 'order:' || :n AND "owner" = :owner;
