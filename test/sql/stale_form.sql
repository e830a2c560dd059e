\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- atomic_lock.fencing_token: a form that was open while another owner edited cannot save over
-- that, even if its owner has acquired the lock again
--
-- Properties: if the setting is not empty, a guard and lock_assert() accept the owner's grant
-- only if its token is in the list. Otherwise they raise LK005, which tells the owner, and no
-- one else, how the former grant ended. Keys that the owner does not hold raise LK006 or LK009
-- as usual. An invalid list raises 22023 where it is used, and nowhere else.
--
-- Turns red when: an existing pin skips the check; a token of a rolled-back setting counts; a
-- role that may not see the row's key gets it in the error.

CREATE TABLE t.docs (id int PRIMARY KEY, note text);
INSERT INTO t.docs VALUES (1, ''), (2, '');
SELECT lock_protect('t.docs', 'doc:{id}');
CREATE TABLE t.tokens (name text PRIMARY KEY, token bigint);
CREATE FUNCTION t.acquire(name text, key text, owner text) RETURNS void LANGUAGE sql AS $$
	INSERT INTO t.tokens SELECT name, fencing_token FROM lock_acquire(key, '1 hour', owner, holder => initcap(owner))
$$;
-- The result of a statement with this owner and these tokens, which is undone
CREATE FUNCTION t.as(o text, tokens text, stmt text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM set_config('atomic_lock.owner', o, true), set_config('atomic_lock.fencing_token', tokens, true);
	RETURN regexp_replace(t.raises(stmt), 'token \d+', 'token N', 'g');
END
$$;
CREATE FUNCTION t.token(n text) RETURNS text LANGUAGE sql AS $$ SELECT token::text FROM t.tokens WHERE name = n $$;

SELECT t.acquire('first', 'doc:1', 'ann'), t.acquire('two', 'doc:2', 'ann');
-- the token of the grant, alone and in a list of all tokens of the form
SELECT o.tokens, t.as('ann', o.value, 'UPDATE t.docs SET note = ''x'' WHERE id = 1') AS guard, t.as('ann', o.value, 'SELECT lock_assert(''doc:1'')') AS assert
FROM (VALUES ('none', ''), ('its own', t.token('first')), ('both', t.token('two') || ',' || t.token('first')), ('with blanks', format(' %s , %s ', t.token('first'), t.token('two')))) o (tokens, value);
-- a whole form
SELECT t.as('ann', t.token('two') || ',' || t.token('first'), 'UPDATE t.docs SET note = ''x''') AS both, t.as('ann', t.token('two'), 'UPDATE t.docs SET note = ''x''') AS one_of_them;
-- Bob edits meanwhile, and Ann acquires again
SELECT force_release('doc:1', 'lunch');
SELECT t.acquire('bob', 'doc:1', 'bob');
SELECT t.as('ann', t.token('first'), 'UPDATE t.docs SET note = ''x'' WHERE id = 1') AS guard, t.as('ann', t.token('first'), 'SELECT lock_assert(''doc:1'')') AS assert;
SELECT lock_release('doc:1', 'bob');
SELECT t.acquire('again', 'doc:1', 'ann');
SELECT t.as('ann', t.token('first'), 'UPDATE t.docs SET note = ''x'' WHERE id = 1') AS guard;
SELECT t.as('ann', t.token('first'), 'SELECT lock_assert(''doc:1'')') AS assert;
SELECT t.as('ann', t.token('again'), 'UPDATE t.docs SET note = ''x'' WHERE id = 1') AS anew, t.as('ann', '', 'UPDATE t.docs SET note = ''x'' WHERE id = 1') AS asks_for_none;
-- a token of another key or another owner reveals nothing of the former grant
SELECT t.as('ann', t.token('two'), 'SELECT lock_assert(''doc:1'')') AS assert;
SELECT t.as('ann', t.token('bob'), 'SELECT lock_assert(''doc:1'')') AS assert;
-- an owner without the lock
SELECT t.as('carl', t.token('again'), 'UPDATE t.docs SET note = ''x'' WHERE id = 1') AS guard;
-- shared
SELECT lock_release('doc:1', 'ann');
INSERT INTO t.tokens SELECT 'shared', fencing_token FROM lock_acquire('doc:1', '1 hour', 'ann', mode => 'shared');
SELECT t.as('ann', t.token('first'), 'SELECT lock_assert(''doc:1'')') ~ '^LK005' AS assert, t.as('ann', t.token('shared'), 'SELECT lock_assert(''doc:1'')') AS its_own, t.as('ann', t.token('shared'), 'UPDATE t.docs SET note = ''x'' WHERE id = 1') AS guard;
SELECT lock_release('doc:1', 'ann');

-- the history tells the owner how the former grant ended
SELECT lock_set_policy('doc:', history => true);
SELECT t.acquire('kept', 'doc:1', 'ann'); SELECT lock_release('doc:1', 'ann');
SELECT t.acquire('other', 'doc:1', 'bob'); SELECT lock_release('doc:1', 'bob');
SELECT t.acquire('now', 'doc:1', 'ann');
SELECT t.as('ann', t.token('two') || ',' || t.token('kept'), 'SELECT lock_assert(''doc:1'')') AS assert;
SELECT t.as('ann', t.token('other'), 'SELECT lock_assert(''doc:1'')') AS of_another_owner;

-- in one transaction: a pin is checked again, and rolling back a savepoint restores the setting
BEGIN;
SELECT set_config('atomic_lock.owner', 'ann', true);
UPDATE t.docs SET note = 'pinned' WHERE id = 1;
SELECT t.state(t.raises($$SELECT lock_assert('doc:1')$$)) AS pinned;
SAVEPOINT a;
SELECT set_config('atomic_lock.fencing_token', t.token('kept'), true) = t.token('kept') AS set;
SELECT t.state(t.raises($$SELECT lock_assert('doc:1')$$)) AS assert, t.state(t.raises('UPDATE t.docs SET note = ''x'' WHERE id = 1')) AS guard;
SELECT set_config('atomic_lock.fencing_token', t.token('now'), true) = t.token('now') AS set;
SELECT t.state(t.raises($$SELECT lock_assert('doc:1')$$)) AS assert;
SELECT set_config('atomic_lock.fencing_token', t.token('kept'), true) = t.token('kept') AS set;
SELECT t.state(t.raises($$SELECT lock_assert('doc:1')$$)) AS assert;
ROLLBACK TO a;
SELECT t.state(t.raises($$SELECT lock_assert('doc:1')$$)) AS taken_back;
ROLLBACK;

-- lock_assert_fence() uses its own token, and other functions ignore the setting
SELECT t.as('ann', '1', format($$SELECT lock_assert_fence('doc:1', %s)$$, t.token('now'))) AS fence, t.as('ann', '1', $$SELECT lock_extend('doc:1')$$) AS extend, t.as('ann', 'x', $$SELECT lock_acquire('doc:1')$$) AS acquire;

-- invalid lists
SELECT v AS value, t.as('ann', v, 'SELECT lock_assert(''doc:1'')') AS answer FROM unnest(ARRAY['x', ' ', ',', '1,', ',1', '1,,2', '1 2', '1;2', '0', '-1', '1.0', '1e3', '0x10', '9223372036854775808', '99999999999999999999999', '{1,2}', 'ä']) v;
SELECT t.as('ann', '9223372036854775807,+1, 2', 'SELECT lock_assert(''doc:1'')') ~ '^LK005' AS valid;
SELECT t.as('ann', t.token('now') || ',x', 'UPDATE t.docs SET note = ''x'' WHERE id = 1') AS guard, t.as('ann', 'x', 'SELECT lock_assert(''free'')') ~ '^LK006' AS not_used;
SET atomic_lock.fencing_token = 1, 2;
SHOW atomic_lock.fencing_token;
RESET atomic_lock.fencing_token;

-- a role that may not see the key gets the name of the table
CREATE ROLE regress_al_blind;
GRANT USAGE ON SCHEMA t TO regress_al_blind;
GRANT UPDATE (note) ON t.docs TO regress_al_blind;
BEGIN;
SELECT set_config('atomic_lock.owner', 'ann', true), set_config('atomic_lock.fencing_token', '1', true);
SET ROLE regress_al_blind;
UPDATE t.docs SET note = 'x';
ROLLBACK;
DROP OWNED BY regress_al_blind;
DROP ROLE regress_al_blind;
