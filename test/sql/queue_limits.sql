\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\set include :srcdir '/sql/include/line.sql'
\i :setup
-- The line for a key: policies and limits
--
-- Properties: a role that a policy excludes gets no ticket. max_ttl limits offer and keep, and
-- cuts ttl. The lease has ttl and meta of the call that acquires it. A role whose quota is used
-- up gets no ticket. max_queue_places limits the tickets of a role for one key.
--
-- Turns red when: one of these rules admits a caller that it excludes; a limit counts renewals
-- or expired tickets; a role uses the ticket of another.
DROP ROLE IF EXISTS regress_al_a, regress_al_b;
CREATE ROLE regress_al_a;
CREATE ROLE regress_al_b;
SELECT lock_grant_access(r, 'user') FROM unnest(ARRAY['regress_al_a', 'regress_al_b']::regrole[]) r;

-- Policies and limits
--
-- An excluded role gets no ticket.
SELECT lock_set_policy('roles:', roles => ARRAY['regress_al_a'::regrole]);
SET ROLE regress_al_b;
SELECT t.raises($$SELECT lock_enqueue('roles:free', 'bob-1')$$);
SET ROLE regress_al_a;
SELECT t.take('roles:k', 'Ann');
SET ROLE regress_al_b;
SELECT t.raises($$SELECT lock_enqueue('roles:k', 'bob-1')$$);
SELECT lock_leave('roles:k', 'bob-1');
SET ROLE regress_al_a;
SELECT t.enter('roles:k', 'Bob');
-- Knowing the owner of a ticket does not help the role.
SET ROLE regress_al_b;
SELECT t.code($$SELECT lock_enqueue('roles:k', 'bob-1')$$) AS renew, t.code($$SELECT lock_acquire('roles:k', owner => 'bob-1')$$) AS acquire;
RESET ROLE;
SELECT place, holder, role FROM lock_queue WHERE key LIKE 'roles:%';
-- max_ttl: default values are cut
SELECT lock_set_policy('ttl:', max_ttl => '10 s');
SELECT t.take('ttl:k', 'Ann', '10 s'), t.enter('ttl:k', 'Bob');
SELECT offer, expires_at - queued_at BETWEEN '9 s' AND '11 s' AS kept FROM lock_queue WHERE key = 'ttl:k';
SELECT t.raises($$SELECT lock_enqueue('ttl:k', 'cid-1', offer => '11 s')$$), t.raises($$SELECT lock_enqueue('ttl:k', 'cid-1', keep => '10 s 1 us')$$);
SELECT t.enter('ttl:k', 'Cid', '10 s', '10 s');
-- ttl and meta are those of the call that acquires: not of an earlier one, nor of other acquires
CREATE FUNCTION t.turn(k text, who text, ttl interval DEFAULT NULL, meta jsonb DEFAULT NULL) RETURNS text LANGUAGE sql AS $$
	SELECT concat_ws(' ', p.status, CASE WHEN p.ticket IS NULL THEN (SELECT round(extract(epoch FROM p.ttl_remaining) / 10) * 10 || ' s') END)
	FROM lock_enqueue(k, lower(who) || '-1', who, ttl => ttl, meta => meta) p
$$;
CREATE FUNCTION t.lease(k text) RETURNS text LANGUAGE sql AS $$
	SELECT concat_ws(' ', s.holder, round(extract(epoch FROM s.ttl_remaining) / 10) * 10, s.meta) FROM lock_status(k) s
$$;
SELECT t.turn('turn:1', 'Ann', '40 s', '{"n": 1}'), t.lease('turn:1');
SELECT t.turn('turn:1', 'Bob', '30 s', '{"n": 2}'), t.turn('turn:1', 'Cid', '30 s', '{"n": 3}'), t.turn('turn:1', 'Dan', '30 s', '{"n": 4}'), t.lease('turn:1');
SELECT lock_release('turn:1', 'ann-1'), t.turn('turn:1', 'Bob', '2 min', '{"n": 5}'), t.lease('turn:1');
SELECT lock_release('turn:1', 'bob-1'), t.turn('turn:1', 'Cid'), t.lease('turn:1');
SELECT lock_release('turn:1', 'cid-1'), (lock_acquire('turn:1', owner => 'dan-1', holder => 'Dan')).status, t.lease('turn:1');
-- an owner that has the lock: as in lock_acquire
SELECT t.turn('turn:1', 'Dan', '20 min', '{"n": 6}'), t.lease('turn:1');
SELECT t.turn('turn:1', 'Dan', '1 min'), t.lease('turn:1');
-- ttl is cut to max_ttl and max_lifetime, by setting or policy, also where that has become shorter
SELECT t.turn('turn:2', 'Ann', '99 days'), t.turn('ttl:free', 'Ann', '1 h', '{"n": 1}'), t.lease('ttl:free');
SELECT t.turn('turn:3', 'Ann', '1 h'), t.turn('turn:3', 'Bob', '1 h');
SELECT lock_set_policy('turn:3', max_ttl => '50 s'), lock_release('turn:3', 'ann-1'), t.turn('turn:3', 'Bob', '1 h');
SELECT lock_set_policy('turn:4', max_lifetime => '1 min');
SELECT t.turn('turn:4', 'Ann', '90 s'), t.lease('turn:4'), t.turn('turn:4', 'Bob', '90 s');
SELECT lock_set_policy('turn:4', max_lifetime => '50 s'), lock_release('turn:4', 'ann-1'), t.turn('turn:4', 'Bob', '90 s');
-- bad values are refused where a ticket is taken, too, and leave none
SELECT v, k, split_part(t.raises(format('SELECT lock_enqueue(%L, ''eve-1'', %s)', k, v)), E'\n', 1)
FROM unnest(ARRAY['ttl => ''0''', 'ttl => ''-1 s''', 'ttl => ''1 mon''', 'ttl => ''999 us''', 'ttl => ''2000000000 days''', 'meta => to_jsonb(repeat(''x'', 8200))']) v, unnest(ARRAY['turn:1', 'turn:free']) k;
SELECT count(*) FROM lock_queue WHERE key ~ '^turn:' AND holder <> 'Dan';
SELECT locked FROM lock_status('turn:free');
SELECT count(lock_drop_policy(prefix)) FROM lock_policies WHERE prefix ~ '^turn:';
-- default_ttl above max_lifetime is cut as in lock_acquire
SELECT lock_set_policy('life:', max_lifetime => '2 min', max_ttl => '2 min');
SELECT t.take('life:k', 'Ann', '2 min'), t.enter('life:k', 'Bob'), t.enter('life:free', 'Bob');
-- quotas: a role that may get no further key gets no ticket
SELECT t.take('quota:2', 'Bob');
SELECT lock_set_policy('quota:', max_keys_per_role => 2);
SET ROLE regress_al_a;
SELECT t.take('quota:3', 'Eve'), t.take('quota:4', 'Eve');
SELECT t.raises($$SELECT lock_enqueue('quota:2', 'eve-1')$$);
SELECT t.enter('quota:4', 'Eve');
RESET ROLE;
SELECT lock_drop_policy('quota:');
-- max_queue_places: per role and key
SELECT t.take('many', 'Ann'), t.take('secret 2', 'Zoe');
SET atomic_lock.max_queue_places = 2;
SELECT t.enter('many', 'Bob'), t.enter('many', 'Cid');
SELECT t.raises($$SELECT lock_enqueue('many', 'dan-1')$$);
SELECT t.enter('many', 'Cid'), t.enter('many', 'Bob'), t.enter('secret 2', 'Dan');
SET ROLE regress_al_a;
SELECT t.enter('many', 'Dan');
RESET ROLE;
SELECT lock_leave('many', 'bob-1'), t.enter('many', 'Eve'), t.code($$SELECT lock_enqueue('many', 'bob-1')$$);
-- ended tickets do not count
SELECT t.enter('many', 'Eve', keep => '1 ms'), t.gone('many', 'Eve'), t.enter('many', 'Fay');
SET atomic_lock.max_queue_places = 0;
SELECT t.code($$SELECT lock_enqueue('many', 'gus-1')$$) AS none, t.enter('many', 'Fay'), t.enter('many, free', 'Gus');
RESET atomic_lock.max_queue_places;
SET ROLE regress_al_a;
SELECT t.code('SET atomic_lock.max_queue_places = 5');
RESET ROLE;
SELECT t.line('many');
