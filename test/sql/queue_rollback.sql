\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\set include :srcdir '/sql/include/line.sql'
\i :setup
-- The line for a key: transactions and savepoints that are rolled back
--
-- Properties: a rollback undoes a ticket, the end of a ticket, an offer and a grant. A
-- transaction keeps a key that it has released until it commits, and the commit makes the
-- offer.
--
-- Turns red when: a rollback leaves a ticket or an offer, or loses one; a key is offered before
-- the commit.

--
-- Rollbacks
--
SELECT t.take('undo', 'Ann');
BEGIN;
SELECT t.enter('undo', 'Bob');
SELECT t.line('undo');
ROLLBACK;
SELECT t.line('undo');
BEGIN;
SELECT t.enter('undo', 'Bob');
SAVEPOINT a;
SELECT t.enter('undo', 'Cid'), lock_leave('undo', 'bob-1'), lock_release('undo', 'ann-1');
SELECT t.line('undo');
ROLLBACK TO a;
SELECT t.line('undo');
COMMIT;
SELECT t.line('undo'), lock_is_held('undo', 'ann-1');
BEGIN;
SELECT lock_leave('undo', 'bob-1'), t.line('undo');
ROLLBACK;
BEGIN;
SELECT lock_release('undo', 'ann-1');
ROLLBACK;
SELECT t.line('undo');
-- A released key belongs to the transaction until the commit, which offers it.
BEGIN;
SELECT lock_release('undo', 'ann-1'), t.line('undo');
SELECT t.line('undo'), t.take('undo', 'Ann');
SAVEPOINT a;
SELECT lock_release('undo', 'ann-1');
RELEASE a;
COMMIT;
SELECT t.line('undo');
-- A grant that is rolled back leaves the offer as it was.
BEGIN;
SELECT t.take('undo', 'Bob'), t.line('undo');
SELECT t.line('undo');
ROLLBACK;
SELECT t.line('undo'), t.take('undo', 'Ann');
SELECT t.take('undo', 'Bob'), t.line('undo');
-- released, and queued for again by another owner, in one transaction
SELECT t.enter('undo', 'Cid');
BEGIN;
SELECT lock_release('undo', 'bob-1'), t.enter('undo', 'Eve'), lock_release('undo', 'eve-1');
COMMIT;
SELECT t.line('undo');
BEGIN;
SELECT t.take('undo', 'Cid'), lock_release('undo', 'cid-1');
COMMIT;
SELECT t.line('undo'), t.take('undo', 'Ann');
