\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- force_release, lock_try_force_release and lock_steal with a fencing token
--
-- Properties: with a token, the call ends the holding of that grant, of any lifetime, and no
-- other holding of the key. If that grant no longer holds the key, nothing changes, and LK011
-- says who holds it. On a closed key the call lifts only the min_hold of the holding that it
-- ended. lock_steal takes that holding over in its mode, with a new token, and raises LK007 if
-- the new owner holds the key already.
--
-- Turns red when: the token is not compared, or only with one of the holdings; other holders
-- lose their holding; a grant is ended twice; stealing a share makes it exclusive; the former
-- owner, the audit, the history or the first ticket misses the end.
--
-- iso_force_token has the transactions of other sessions.

-- The holders of each key
CREATE VIEW t.held AS
	SELECT key, string_agg(holder || ' ' || mode, ', ' ORDER BY holder) AS holders FROM lock_status() WHERE locked GROUP BY key;
CREATE FUNCTION t.token(k text, who text) RETURNS bigint LANGUAGE sql AS $$
	SELECT fencing_token FROM lock_status() WHERE key = k AND holder = who
$$;
CREATE FUNCTION t.take(k text, who text, mode text DEFAULT 'exclusive', ttl interval DEFAULT '1 hour') RETURNS bigint LANGUAGE sql AS $$
	SELECT fencing_token FROM lock_acquire(k, ttl, lower(who) || '-1', mode, holder => who)
$$;

-- Carol has released the key, and Dave holds it now.
SELECT t.take('k', 'Carol') AS carol \gset
SELECT lock_release('k', 'carol-1');
SELECT t.take('k', 'Dave') AS dave \gset
SELECT t.fingerprint() AS before \gset
SELECT t.raises(format($$SELECT force_release('k', 'Carol has left', %s)$$, :carol));
SELECT t.raises(format($$SELECT lock_force_release('k', 'Carol has left', %s)$$, :carol)) ~ '^LK011' AS refused;
SELECT lock_try_force_release('k', 'Carol has left', :carol);
SELECT t.raises(format($$SELECT lock_steal('k', 'dba-1', 'Carol has left', fencing_token => %s)$$, :carol));
SELECT lock_try_force_release('k', 'no such grant', n) FROM unnest(ARRAY[0, -1, :dave - 1, :dave + 1, 9223372036854775807]) n;
SELECT t.fingerprint() = :'before' AS unchanged, (SELECT count(*) FROM lock_audit) AS audited;
SELECT * FROM t.held;
-- Tokens of another key
SELECT t.take('other', 'Eve') AS eve \gset
SELECT lock_try_force_release('k', 'other key', :eve), lock_try_force_release('other', 'other key', :dave);
SELECT force_release('k', 'Dave has left', :dave);
SELECT * FROM t.held;
SELECT lock_try_release('k', 'dave-1'), lock_try_release('other', 'eve-1');
SELECT t.raises($$SELECT lock_extend('k', 'dave-1')$$);
SELECT action, key, previous_holder, fencing_token = :dave AS token, reason FROM lock_audit;
-- The key is free now.
SELECT t.raises(format($$SELECT force_release('k', 'once more', %s)$$, :dave));
SELECT t.raises($$SELECT force_release('never', 'never acquired', 1)$$);
SELECT lock_try_force_release('k', 'once more', :dave), lock_try_force_release('never', 'why', 1);
-- An extension keeps the grant; a conversion, a transfer and a new acquire make a new one.
SELECT t.take('k', 'Dave') AS dave \gset
SELECT lock_extend('k', 'dave-1') IS NOT NULL AS extended, t.take('k', 'Dave') = :dave AS same;
SELECT lock_convert('k', 'dave-1', 'shared') IS NOT NULL AS converted;
SELECT lock_try_force_release('k', 'before the conversion', :dave);
SELECT t.token('k', 'Dave') AS dave \gset
SELECT lock_transfer('k', 'dave-1', 'fred-1', 'Fred') IS NOT NULL AS transferred;
SELECT lock_try_force_release('k', 'before the transfer', :dave), lock_try_force_release('k', 'Fred', t.token('k', 'Fred'));
-- An expired grant
SELECT t.take('k', 'Dave', ttl => '20 ms') AS dave \gset
SELECT t.expire('k');
SELECT lock_try_force_release('k', 'it has run out', :dave);
SELECT t.raises(format($$SELECT lock_steal('k', 'dba-1', 'it has run out', fencing_token => %s)$$, :dave)) ~ '^LK011' AS refused;
-- NULL ends all holdings.
SELECT t.take('k', 'Dave') IS NOT NULL AS taken;
SELECT force_release('k', 'all', NULL), force_release(fencing_token => :eve, reason => 'by name', key => 'none') FROM (SELECT lock_acquire('none')) x WHERE false;
SELECT force_release('k', 'all', fencing_token => NULL);

--
-- One of several sharers
--
SELECT t.take('r', who, 'shared') IS NOT NULL AS shared FROM unnest(ARRAY['Ann', 'Bob', 'Cid']) who;
SELECT lock_acquire('r', owner => 'dan-1', mode => 'shared', holder => 'Dan', lifetime => 'session') IS NOT NULL AS shared;
SELECT t.token('r', 'Bob') AS bob, t.token('r', 'Dan') AS dan \gset
SELECT force_release('r', 'Bob reads for days', :bob);
SELECT * FROM t.held WHERE key = 'r';
SELECT lock_try_release('r', 'bob-1'), lock_is_held('r', 'ann-1'), lock_is_held('r', 'cid-1');
SELECT substring(t.raises(format($$SELECT force_release('r', 'once more', %s)$$, :bob)) FROM 'LK011.* until') AS answer;
SELECT lock_try_force_release('r', 'Dan', :dan);
SELECT * FROM t.held WHERE key = 'r';
-- Its seat is free.
SELECT lock_acquire('n', owner => o, mode => 'shared', holder => o, max_holders => 2) IS NOT NULL AS taken FROM unnest(ARRAY['one', 'two']) o;
SELECT (lock_try_acquire('n', owner => 'three', mode => 'shared', max_holders => 2)).status;
SELECT force_release('n', 'the first', t.token('n', 'one'));
SELECT (lock_try_acquire('n', owner => 'three', mode => 'shared', holder => 'three', max_holders => 2)).status;
SELECT * FROM t.held WHERE key = 'n';
-- Holdings of the calling transaction
BEGIN;
SELECT lock_acquire('r', owner => 'eve-1', mode => 'shared', holder => 'Eve', lifetime => 'transaction') IS NOT NULL AS shared;
SELECT lock_acquire('r', owner => 'fay-1', mode => 'shared', holder => 'Fay', lifetime => 'transaction') IS NOT NULL AS shared;
SELECT force_release('r', 'Eve', t.token('r', 'Eve'));
SELECT * FROM t.held WHERE key = 'r';
SELECT lock_try_release('r', 'eve-1'), lock_is_held('r', 'fay-1');
COMMIT;
BEGIN;
SELECT fencing_token AS token FROM lock_acquire('x', owner => 'eve-1', holder => 'Eve', lifetime => 'transaction') \gset
SELECT lock_try_force_release('x', 'another', :token + 1), lock_try_force_release('x', 'Eve', :token), (lock_status('x')).locked;
COMMIT;
-- Rolled back
SELECT t.token('r', 'Ann') AS ann \gset
BEGIN;
SELECT force_release('r', 'changed my mind', :ann);
ROLLBACK;
SELECT * FROM t.held WHERE key = 'r';
SELECT count(*) FROM lock_audit WHERE reason = 'changed my mind';

--
-- A closed key
--
SELECT lock_set_policy('c', min_hold => '1 hour', history => true, notify => true);
SELECT t.take('c', who, 'shared') IS NOT NULL AS shared FROM unnest(ARRAY['Ann', 'Bob']) who;
SELECT t.token('c', 'Ann') AS ann, t.token('c', 'Bob') AS bob \gset
SELECT lock_release('c', 'ann-1');
-- Ann's min_hold is not lifted by her token, since she has released the key.
SELECT t.raises(format($$SELECT force_release('c', 'Ann', %s)$$, :ann)) ~ '^LK011' AS refused;
SELECT force_release('c', 'Bob', :bob);
SELECT locked, closed_until - clock_timestamp() > '55 min' AS closed FROM lock_status('c');
SELECT t.raises(format($$SELECT force_release('c', 'Bob', %s)$$, :bob)) AS answer;
SELECT force_release('c', 'open it');
SELECT locked, closed_until FROM lock_status('c');
-- Nothing is left of an exclusive holder's min_hold.
SELECT t.take('c2', 'Ann') AS ann \gset
SELECT force_release('c2', 'Ann', :ann);
SELECT locked, closed_until, t.take('c2', 'Bob') IS NOT NULL AS taken FROM lock_status('c2');
SELECT key, holder, ended_by FROM lock_history WHERE ended_at IS NOT NULL ORDER BY acquired_at;

--
-- lock_steal
--
SELECT t.take('s', who, 'shared') IS NOT NULL AS shared FROM unnest(ARRAY['Ann', 'Bob', 'Cid']) who;
SELECT t.token('s', 'Bob') AS bob \gset
SELECT t.raises(format($$SELECT lock_steal('s', 'ann-1', 'has it already', fencing_token => %s)$$, :bob));
SELECT t.raises(format($$SELECT lock_steal('s', 'bob-1', 'from himself', fencing_token => %s)$$, :bob)) ~ '^LK007' AS refused;
SELECT t.raises(format($$SELECT lock_steal('s', 'dan-1', 'too long', '2 days', fencing_token => %s)$$, :bob));
SELECT * FROM t.held WHERE key = 's';
SELECT s.*, fencing_token > :bob AS token_rises FROM lock_steal('s', 'dan-1', 'Bob is ill', '10 min', 'Dan', :bob) g, t.show(g) s;
SELECT * FROM t.held WHERE key = 's';
SELECT lock_try_release('s', 'bob-1'), lock_is_held('s', 'dan-1');
SELECT action, previous_holder, fencing_token = :bob AS token, reason FROM lock_audit WHERE key = 's';
SELECT lock_release('s', 'dan-1');
-- The former row of the new owner is reused.
SELECT s.status, s.mode FROM lock_steal('s', 'bob-1', 'Ann is ill', holder => 'Bob', fencing_token => t.token('s', 'Ann')) g, t.show(g) s;
SELECT * FROM t.held WHERE key = 's';
SELECT count(*) FROM app_lock WHERE key = 's';
-- The exclusive lock
SELECT t.take('e', 'Ann') AS ann \gset
SELECT t.raises(format($$SELECT lock_steal('e', 'ann-1', 'from herself', fencing_token => %s)$$, :ann));
SELECT s.*, fencing_token > :ann AS token_rises FROM lock_steal('e', 'bob-1', 'Ann is ill', holder => 'Bob', fencing_token => :ann) g, t.show(g) s;
SELECT lock_try_release('e', 'ann-1'), lock_try_release('e', 'bob-1'), (SELECT count(*) FROM app_lock WHERE key = 'e') AS rows;
-- A stolen share with lifetime session becomes a lease, as in any theft.
SELECT lock_acquire('e', owner => 'ann-1', mode => 'shared', holder => 'Ann', lifetime => 'session') IS NOT NULL AS shared;
SELECT status, mode FROM lock_steal('e', 'bob-1', 'Ann is ill', holder => 'Bob', fencing_token => t.token('e', 'Ann'));
SELECT lifetime, mode, holder FROM lock_status('e');
-- Policies apply to the new owner.
SELECT t.take('q1', 'Bob') IS NOT NULL AS bob, t.take('q2', 'Ann', 'shared') AS ann \gset
SELECT lock_set_policy('q', max_keys_per_role => 1);
SELECT t.code(format($$SELECT lock_steal('q2', 'bob-1', 'why', fencing_token => %s)$$, :ann));
SELECT * FROM t.held WHERE key ~ '^q';
SELECT lock_drop_policy('q'), lock_drop_policy('c');

--
-- Tickets
--
SELECT t.take('l', who, 'shared') IS NOT NULL AS shared FROM unnest(ARRAY['Ann', 'Bob']) who;
SELECT status, place FROM lock_enqueue('l', 'cid-1', 'Cid');
SELECT force_release('l', 'Ann', t.token('l', 'Ann'));
SELECT offered_until FROM lock_queue WHERE key = 'l';
SELECT force_release('l', 'Bob', t.token('l', 'Bob'));
SELECT offered_until > clock_timestamp() AS offered FROM lock_queue WHERE key = 'l';
SELECT lock_try_force_release('l', 'Bob', 1);
SELECT status FROM lock_enqueue('l', 'cid-1');
SELECT status, mode FROM lock_steal('l', 'dan-1', 'Cid is ill', holder => 'Dan', fencing_token => t.token('l', 'Cid'));
SELECT * FROM t.held WHERE key = 'l';
