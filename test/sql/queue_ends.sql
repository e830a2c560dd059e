\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\set include :srcdir '/sql/include/line.sql'
\i :setup
--
-- The line for a key: offers that are not taken, places that nobody renews, lock_leave
--
-- Properties: an offer that is not taken costs the place, and the next one may take
-- the key at once.  A place that is not renewed ends, but not while the key is offered
-- to it.  Only its owner can give up a place.  If the key is offered to that place,
-- the next place gets the offer.
--
-- Turns red when: a place outlives its offer or its time; an offer is made to two, or
-- to nobody; owners are not compared; an owner that has lost its place keeps its rank.

--
-- An offer that is not taken
--
SELECT t.take('lapse', 'Ann');
SELECT t.enter('lapse', w, o) FROM (VALUES ('Bob', interval '1 ms'), ('Cid', '1 h'), ('Dan', '1 ms')) v (w, o);
SELECT lock_release('lapse', 'ann-1');
SELECT t.lapse('lapse');
-- Bob has lost the place.  Cid is not offered the key yet, and may take it; nobody else.
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
-- Bob begins at the end.
SELECT lock_leave('lapse', 'bob-1'), t.enter('lapse', 'Bob');
SELECT t.line('lapse'), (SELECT max(ticket) FILTER (WHERE holder = 'Bob') > max(ticket) FILTER (WHERE holder <> 'Bob') FROM lock_queue WHERE key = 'lapse') AS new_ticket;
SELECT t.take('lapse', 'Cid'), lock_release('lapse', 'cid-1');
SELECT t.lapse('lapse');
-- Who leaves although the place is lost lets the next one know.
SELECT lock_leave('lapse', 'dan-1'), t.line('lapse');
SELECT t.line('lapse'), t.take('lapse', 'Bob');
SELECT lock_release('lapse', 'bob-1'), t.take('lapse', 'Zoe');
-- All offers lapse, one after the other, and the key is free.
SELECT t.take('all', 'Ann');
SELECT t.enter('all', w, '1 ms') FROM unnest(ARRAY['Bob', 'Cid']) WITH ORDINALITY u(w, n) ORDER BY n;
SELECT lock_release('all', 'ann-1');
SELECT t.lapse('all');
SELECT lock_sweep() IS NOT NULL AS swept;
SELECT t.lapse('all');
SELECT t.line('all'), t.take('all', 'Zoe'), queued FROM lock_status('all');

--
-- A place that nobody renews
--
SELECT t.take('keep', 'Ann');
SELECT t.enter('keep', 'Bob', keep => '1 ms'), t.gone('keep', 'Bob');
SELECT queued FROM lock_status('keep');
-- While the key is offered to it, it stays.
SELECT t.enter('keep', 'Cid', '1 h', '1 h'), lock_release('keep', 'ann-1');
UPDATE app_lock_queue SET expires_at = clock_timestamp() WHERE key = 'keep' AND ticket > 0;
SELECT t.line('keep'), t.take('keep', 'Ann'), lock_sweep() IS NOT NULL AS swept, t.take('keep', 'Bob'), t.take('keep', 'Cid');
-- Who has lost it begins anew.
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
-- Only the owner can.
SELECT o, lock_leave(k, o) FROM (VALUES ('leave', 'ann-1'), ('leave', 'eve-1'), ('leave', 'Bob'), ('leave', 'BOB-1'), ('leave', 'bob-1 '), ('leave', encode(sha256('bob-1'), 'hex')), ('LEAVE', 'bob-1'), ('leave ', 'bob-1')) v (k, o);
SELECT t.line('leave');
SELECT lock_leave('leave', 'cid-1'), lock_leave('leave', 'cid-1');
SELECT t.line('leave'), lock_release('leave', 'ann-1');
-- To whom it is offered leaves it to the next one.
SELECT t.line('leave'), lock_leave('leave', 'bob-1');
SELECT t.line('leave'), lock_leave('leave', 'dan-1');
SELECT t.line('leave'), t.take('leave', 'Eve');
