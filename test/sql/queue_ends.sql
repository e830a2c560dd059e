\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\set include :srcdir '/sql/include/line.sql'
\i :setup
-- The line for a key: missed offers, tickets that are not renewed, lock_leave
--
-- Properties: a missed offer costs the ticket, and the next owner may take the key at once. A
-- ticket that is not renewed ends, but not while the key is offered to it. Only its owner can
-- give up a ticket. If that ticket has the offer, the next one gets it.
--
-- Turns red when: a ticket outlives its offer or its time; two tickets or none get the offer;
-- owners are not compared; an owner keeps its position after losing the ticket.

--
-- A missed offer
--
SELECT t.take('lapse', 'Ann');
SELECT t.enter('lapse', w, o) FROM (VALUES ('Bob', interval '1 ms'), ('Cid', '1 h'), ('Dan', '1 ms')) v (w, o);
SELECT lock_release('lapse', 'ann-1');
SELECT t.lapse('lapse');
-- Bob has lost the ticket. Cid has no offer yet, and may take the key; others may not.
SELECT t.line('lapse'), queued FROM lock_status('lapse');
SELECT t.take('lapse', 'Ann'), t.take('lapse', 'Bob'), t.take('lapse', 'Dan');
BEGIN;
SELECT t.take('lapse', 'Cid'), t.line('lapse');
ROLLBACK;
-- A sweep makes the next offer, once.
SELECT t.line('lapse'), lock_sweep() IS NOT NULL AS swept;
SELECT t.line('lapse'), (SELECT count(*) FROM app_lock_queue WHERE key = 'lapse') AS rows;
SELECT offered_until AS until FROM lock_queue WHERE key = 'lapse' AND holder = 'Cid' \gset
SELECT lock_sweep() IS NOT NULL AS swept;
SELECT lock_leave('lapse', 'dan-1'), t.enter('lapse', 'Dan', '1 ms');
SELECT offered_until = :'until' AS same FROM lock_queue WHERE key = 'lapse' AND holder = 'Cid';
-- Bob starts again at the end.
SELECT lock_leave('lapse', 'bob-1'), t.enter('lapse', 'Bob');
SELECT t.line('lapse'), (SELECT max(ticket) FILTER (WHERE holder = 'Bob') > max(ticket) FILTER (WHERE holder <> 'Bob') FROM lock_queue WHERE key = 'lapse') AS new_ticket;
SELECT t.take('lapse', 'Cid'), lock_release('lapse', 'cid-1');
SELECT t.lapse('lapse');
-- lock_leave offers the key to the next ticket, though the caller's ticket has ended already.
SELECT lock_leave('lapse', 'dan-1'), t.line('lapse');
SELECT t.line('lapse'), t.take('lapse', 'Bob');
SELECT lock_release('lapse', 'bob-1'), t.take('lapse', 'Zoe');
-- All offers end one after the other, and the key is free.
SELECT t.take('all', 'Ann');
SELECT t.enter('all', w, '1 ms') FROM unnest(ARRAY['Bob', 'Cid']) WITH ORDINALITY u(w, n) ORDER BY n;
SELECT lock_release('all', 'ann-1');
SELECT t.lapse('all');
SELECT lock_sweep() IS NOT NULL AS swept;
SELECT t.lapse('all');
SELECT t.line('all'), t.take('all', 'Zoe'), queued FROM lock_status('all');

--
-- A ticket that is not renewed
--
SELECT t.take('keep', 'Ann');
SELECT t.enter('keep', 'Bob', keep => '1 ms'), t.gone('keep', 'Bob');
SELECT queued FROM lock_status('keep');
-- A ticket with an offer stays.
SELECT t.enter('keep', 'Cid', '1 h', '1 h'), lock_release('keep', 'ann-1');
UPDATE app_lock_queue SET expires_at = clock_timestamp() WHERE key = 'keep' AND ticket > 0;
SELECT t.line('keep'), t.take('keep', 'Ann'), lock_sweep() IS NOT NULL AS swept, t.take('keep', 'Bob'), t.take('keep', 'Cid');
-- An owner that lost its ticket starts again at the end.
SELECT t.enter('keep', 'Dan');
SELECT t.enter('keep', 'Bob');
SELECT t.line('keep');
SELECT t.enter('keep', 'Dan', keep => '1 ms'), t.gone('keep', 'Dan');
SELECT t.line('keep'), lock_release('keep', 'cid-1');
SELECT t.line('keep'), t.take('keep', 'Dan');

--
-- Leaving
--
SELECT t.take('leave', 'Ann');
SELECT t.enter('leave', w) FROM unnest(ARRAY['Bob', 'Cid', 'Dan']) WITH ORDINALITY u(w, n) ORDER BY n;
-- Only the owner can leave.
SELECT o, lock_leave(k, o) FROM (VALUES ('leave', 'ann-1'), ('leave', 'eve-1'), ('leave', 'Bob'), ('leave', 'BOB-1'), ('leave', 'bob-1 '), ('leave', encode(sha256('bob-1'), 'hex')), ('LEAVE', 'bob-1'), ('leave ', 'bob-1')) v (k, o);
SELECT t.line('leave');
SELECT lock_leave('leave', 'cid-1'), lock_leave('leave', 'cid-1');
SELECT t.line('leave'), lock_release('leave', 'ann-1');
-- If the owner with the offer leaves, the next ticket gets the offer.
SELECT t.line('leave'), lock_leave('leave', 'bob-1');
SELECT t.line('leave'), lock_leave('leave', 'dan-1');
SELECT t.line('leave'), t.take('leave', 'Eve');
