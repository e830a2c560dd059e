-- DefaultLockRepository: acquire() is one transaction, delete() another. The driver sends BEGIN
-- together with the first statement. Keys and clients are UUIDs in text of a fixed length, sent
-- as varchar: as text they could not use the index. "at" and "until" come from the client's
-- clock.
\set n random(0, :keys - 1) / :clients * :clients + :client_id + 100000000000
\set client 200000000000 + :client_id
\startpipeline
BEGIN;
UPDATE int_lock SET client_id = ('b4d9a7c2-31f5-4e08-9c6a-' || :client)::varchar, expired_after = :until
	WHERE region = 'DEFAULT' AND lock_key = ('7f0c5e21-8a64-4d3b-b1e9-' || :n)::varchar
		AND (client_id = ('b4d9a7c2-31f5-4e08-9c6a-' || :client)::varchar OR expired_after < :at);
\endpipeline
INSERT INTO int_lock (region, lock_key, client_id, created_date, expired_after)
	VALUES ('DEFAULT', ('7f0c5e21-8a64-4d3b-b1e9-' || :n)::varchar, ('b4d9a7c2-31f5-4e08-9c6a-' || :client)::varchar, :at, :until);
COMMIT;
\startpipeline
BEGIN;
DELETE FROM int_lock
	WHERE region = 'DEFAULT' AND lock_key = ('7f0c5e21-8a64-4d3b-b1e9-' || :n)::varchar
		AND client_id = ('b4d9a7c2-31f5-4e08-9c6a-' || :client)::varchar;
\endpipeline
COMMIT;
