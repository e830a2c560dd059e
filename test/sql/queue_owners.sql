\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\set include :srcdir '/sql/include/line.sql'
\i :setup
-- The line for a key: other owners' calls, and odd tickets
--
-- Properties: no owner can use, end or prolong the ticket of another, whatever the labels are,
-- and no owner is shown. Names may have any allowed length. A sweep counts the tickets that it
-- removes. An incomplete row that was written by hand harms no other key.
--
-- Turns red when: a label counts as an owner; an owner is shown; a ticket of one key matters
-- for another; a sweep loops over an odd row, or fails at it.
DROP ROLE IF EXISTS regress_al_a, regress_al_b;
CREATE ROLE regress_al_a;
CREATE ROLE regress_al_b;
SELECT lock_grant_access(r, 'user') FROM unnest(ARRAY['regress_al_a', 'regress_al_b']::regrole[]) r;

-- Effects of a ticket on others
--
-- No owner can use, end or prolong another's ticket, whatever the label is.
SELECT t.take('secret', 'Ann');
SELECT status, place FROM lock_enqueue('secret', 'bob-1', 'cid-1');
SELECT status, place FROM lock_enqueue('secret', 'cid-1', 'bob-1');
SELECT status, place FROM lock_enqueue('secret', 'BOB-1', 'bob-1');
SELECT lock_leave('secret', 'cid-1'), t.line('secret');
SELECT lock_release('secret', 'ann-1');
SELECT t.line('secret'), (lock_try_acquire('secret', owner => 'cid-1')).status, (lock_try_acquire('secret', owner => 'BOB-1')).status, (lock_try_acquire('secret', owner => 'bob-1')).status;
-- No role sees an owner.
SET ROLE regress_al_a;
SELECT t.code('SELECT * FROM lock_queue') AS view, t.code('SELECT * FROM lock_queue()') AS function, t.code('SELECT * FROM app_lock_queue') AS table, t.code('DELETE FROM app_lock_queue') AS delete, t.code($$INSERT INTO app_lock_queue VALUES ('k', 1, now())$$) AS insert;
RESET ROLE;
SELECT count(*) FROM lock_queue q WHERE key <> 'secret' AND q::text ~ '-1|[0-9a-f]{8}-';
-- Tickets of other keys do not matter.
SELECT t.take('secrets', 'Zoe'), t.take('SECRET', 'Zoe');
-- Leases and tickets are independent: releasing all leases keeps the tickets.
SELECT t.take('other', 'Ann'), t.enter('other', 'Zoe');
SELECT lock_release_all('zoe-1'), t.line('other');

-- The longest names
SELECT (lock_acquire(repeat('k', 1024), '1 h', repeat('a', 255))).status, (lock_enqueue(repeat('k', 1024), repeat('o', 255), repeat('h', 255))).status;
SELECT length(holder), length(key), (lock_enqueue(key, repeat('o', 254), repeat('ö', 127))).place FROM lock_queue WHERE key LIKE 'kkk%';
SELECT lock_release(repeat('k', 1024), repeat('a', 255));
SELECT (lock_try_acquire(repeat('k', 1024), '1 h', repeat('o', o))).status FROM generate_series(254, 255) o;

-- A sweep counts the tickets that it removes, so calling it until it returns 0 removes all.
SELECT t.take('counted', 'Ann');
SELECT count(t.enter('counted', n)) FROM unnest('{Bob,Cid,Dan,Eve,Zoe}'::text[]) n;
SELECT lock_sweep(1000) IS NOT NULL AS swept;
UPDATE app_lock_queue SET expires_at = clock_timestamp() WHERE key = 'counted';
SELECT lock_sweep(2);
SELECT lock_sweep(2);
SELECT lock_sweep(2);
SELECT lock_sweep(2), t.line('counted');

-- Incomplete tickets written by hand do no harm beyond their key. The key is held, so that
-- shared memory knows of its tickets.
SELECT t.take('odd', 'Ann'), t.enter('odd', 'Bob');
INSERT INTO app_lock_queue (key, ticket, expires_at) VALUES ('odd', 1, 'infinity'), ('odd', 0, clock_timestamp()), ('odd', -9, clock_timestamp());
SELECT place, holder FROM lock_queue WHERE key = 'odd';
SELECT locked FROM lock_status('odd');
SELECT t.enter('odd', 'Bob'), lock_sweep() IS NOT NULL AS swept;
SELECT lock_release('odd', 'ann-1');
SELECT t.take('odd', 'Cid'), lock_leave('odd', 'ann-1'), lock_release_all('ann-1') IS NOT NULL AS released;
DELETE FROM app_lock_queue WHERE key = 'odd' AND ticket = 1;
SELECT lock_sweep() IS NOT NULL AS swept;
SELECT t.line('odd'), t.take('odd', 'Bob');
