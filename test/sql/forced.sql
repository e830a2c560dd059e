\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- The former owner's error after a forced end: by which role, when and why
--
-- Properties: the calls of an owner whose lease was forced or stolen tell it so, with role,
-- time and reason, though the owner has no right on lock_audit. No other owner learns of it.
--
-- Turns red when: an owner hears of another owner's loss, of another key's, or of one before
-- its own release; the error is given after a rollback, or is not given; the look into the
-- audit writes.
--
DROP ROLE IF EXISTS regress_al_user, regress_al_dba;
CREATE ROLE regress_al_user;
CREATE ROLE regress_al_dba;
SELECT lock_grant_access('regress_al_user', 'user'), lock_grant_access('regress_al_dba', 'admin');
SELECT status FROM lock_acquire('k', '10 min', 'alice-1', holder => 'Alice');
SET ROLE regress_al_dba;
SELECT force_release('k', E'Alice is\non holiday');

-- The caller has no right on lock_audit.
SET ROLE regress_al_user;
SELECT t.code('SELECT * FROM lock_audit') AS audit;
CREATE VIEW pg_temp.calls AS SELECT * FROM unnest(ARRAY['lock_release(%L, %L)', 'lock_extend(%L, %L)', 'lock_transfer(%L, %L, ''new-1'')', 'lock_convert(%L, %L)', 'lock_convert(%L, %L, wait => ''1 ms'')', 'lock_assert(%L, %L)', 'lock_assert_fence(%L, 1, %L)']) WITH ORDINALITY u(call, i);
SELECT call, t.raises(format('SELECT ' || call, 'k', 'alice-1')) AS answer FROM calls ORDER BY i;
SELECT lock_try_release('k', 'alice-1') AS release, lock_try_extend('k', 'alice-1') AS extend, lock_release_all('alice-1') AS released, lock_extend_all('alice-1') AS extended, lock_is_held('k', 'alice-1') AS held, (lock_try_convert('k', 'alice-1')).status AS convert, (lock_try_transfer('k', 'alice-1', 'new-1')).status AS transfer;
SELECT status FROM lock_heartbeat('{k}', 'alice-1');
-- other owners hear nothing, nor does this owner for other keys
SELECT call, t.code(format('SELECT ' || call, 'k', 'alice-2')) AS other, t.code(format('SELECT ' || call, 'k2', 'alice-1')) AS other_key FROM calls ORDER BY i;
SELECT lock_try_release('k', 'Alice') AS label, lock_try_release('k', encode(sha256('alice-1'), 'hex')) AS digest, lock_try_release('K', 'alice-1') AS other_key;
-- the present holder
SELECT status FROM lock_acquire('k', '10 min', 'bob-1', holder => 'Bob');
SELECT t.raises($$SELECT lock_release('k', 'alice-1')$$);
SELECT acquired, status, mode, owner, holder, fencing_token, ttl_remaining FROM lock_try_transfer('k', 'alice-1', 'new-1');
SELECT lock_release('k', 'bob-1');
SELECT t.code($$SELECT lock_release('k', 'alice-1')$$) AS alice, t.code($$SELECT lock_release('k', 'bob-1')$$) AS bob;

-- Stolen: the error tells of the last loss.
SELECT status FROM lock_acquire('k', '10 min', 'alice-1', 'shared');
SELECT status FROM lock_acquire('k', '10 min', 'bob-1', 'shared');
SET ROLE regress_al_dba;
SELECT (lock_steal('k', 'dba-1', 'urgent', holder => 'Deputy')).status;
SET ROLE regress_al_user;
SELECT o, t.raises(format('SELECT lock_extend(''k'', %L)', o)) AS answer FROM unnest(ARRAY['alice-1', 'bob-1', 'dba-1', 'eve-1']) o;
-- the owner's own actions after the loss count first
SELECT lock_release('k', 'dba-1');
SELECT status FROM lock_acquire('k', '10 min', 'alice-1');
SELECT lock_release('k', 'alice-1'), lock_try_release('k', 'alice-1');
SELECT status FROM lock_acquire('k', '20 ms', 'bob-1');
SELECT t.expire('k');
SELECT lock_try_release('k', 'bob-1');
-- a transfer is no loss
SELECT status FROM lock_acquire('handed', '10 min', 'alice-1');
SELECT (lock_transfer('handed', 'alice-1', 'bob-1')).status, lock_try_release('handed', 'alice-1');

-- Known within the administrator's transaction, and not if that is rolled back
RESET ROLE;
SELECT status FROM lock_acquire('tx', '10 min', 'alice-1');
BEGIN;
SELECT force_release('tx', 'why'), lock_try_release('tx', 'alice-1');
ROLLBACK;
SELECT lock_try_release('tx', 'alice-1');
-- a holding with lifetime transaction: the audit record is older than its release
BEGIN;
SELECT status FROM lock_acquire('tx', owner => 'alice-1', lifetime => 'transaction');
SELECT force_release('tx', 'why'), lock_try_release('tx', 'alice-1');
COMMIT;
SELECT lock_try_release('tx', 'alice-1');
-- a guard refuses as usual, and tells of the forced end
CREATE TABLE t.doc (id int PRIMARY KEY);
INSERT INTO t.doc VALUES (1);
SELECT lock_protect('t.doc', 'doc:{id}');
SET atomic_lock.owner = 'alice-1';
SELECT status FROM lock_acquire('doc:1', '10 min');
SELECT force_release('doc:1', 'end of day');
SELECT t.raises('UPDATE t.doc SET id = 2');
RESET atomic_lock.owner;

-- The error lasts as long as the audit record; without the index the table is scanned.
SELECT t.code($$SELECT lock_release('doc:1', 'alice-1')$$);
DROP INDEX lock_audit_key_idx;
SELECT t.code($$SELECT lock_release('doc:1', 'alice-1')$$);
DELETE FROM lock_audit;
SELECT t.code($$SELECT lock_release('doc:1', 'alice-1')$$);
-- dropped roles, missing labels, and long texts
CREATE ROLE regress_al_gone SUPERUSER;
SELECT status FROM lock_acquire(repeat('k', 1024), '10 min', repeat('o', 255));
SET ROLE regress_al_gone;
SELECT force_release(repeat('k', 1024), repeat('r', 1024));
RESET ROLE;
DROP ROLE regress_al_gone;
SELECT replace(replace(t.raises($$SELECT lock_release(repeat('k', 1024), repeat('o', 255))$$), repeat('k', 1024), 'k...'), repeat('r', 1024), 'r...');
-- nothing is written, and no claim is left
SELECT t.fingerprint() AS before \gset
BEGIN READ ONLY;
SELECT t.code($$SELECT lock_assert(repeat('k', 1024), repeat('o', 255))$$);
SELECT * FROM t.left_open();
COMMIT;
SELECT t.fingerprint() = :'before' AS unchanged;
CREATE FUNCTION t.story(k text DEFAULT 'level') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text := current_setting('transaction_isolation');
BEGIN
	FOR i IN 1..2 LOOP
		answer := concat_ws(' ', answer, (lock_acquire(k, '10 min', 'zoe-1')).status, force_release(k, 'why'), lock_try_release(k, 'zoe-1'), (lock_try_convert(k, 'zoe-1')).status, t.code(format('SELECT lock_assert(%L, ''zoe-1'')', k)));
	END LOOP;
	RETURN answer;
END
$$;
:at_every_level
SELECT lock_revoke_access('regress_al_user', 'user'), lock_revoke_access('regress_al_dba', 'admin');
REVOKE ALL ON SCHEMA public FROM regress_al_user, regress_al_dba;
DROP OWNED BY regress_al_user, regress_al_dba;
DROP ROLE regress_al_user, regress_al_dba;
