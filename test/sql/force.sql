\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- force_release, lock_force_release, lock_steal and lock_audit
--
-- Properties: an administrator ends or takes over any lease, with a reason. One audit record is
-- written in the same transaction, with the holder, the token, a digest of the owner, and both
-- roles. The former owner has lost the lease, and the next grant has a higher token. lock_audit
-- can be read and trimmed, but not changed.
--
-- Turns red when: a forced end is not audited, or is audited although it was rolled back; the
-- record shows an owner; a lease can be forced without a reason.
--
DROP ROLE IF EXISTS regress_al_dba, regress_al_login;
CREATE ROLE regress_al_dba;
CREATE ROLE regress_al_login IN ROLE regress_al_dba;
SELECT lock_grant_access('regress_al_dba', 'admin');
CREATE VIEW t.audit AS
	SELECT action, key, previous_holder, previous_owner_digest, fencing_token > 0 AS token, reason,
		session_role = session_user AS session_role, acting_role = current_user AS acting_role,
		client_addr IS NOT DISTINCT FROM inet_client_addr() AS client_addr,
		at BETWEEN now() - interval '10 min' AND clock_timestamp() AS at
	FROM lock_audit ORDER BY lock_audit.at;

-- There must be a lease to end, and a reason.
SELECT t.raises($$SELECT force_release('k', 'nobody has it')$$);
SELECT fencing_token AS token FROM lock_acquire('k', '10 min', 'alice-1', holder => 'Alice') \gset
SELECT t.fingerprint() AS before \gset
SELECT t.raises($$SELECT force_release('k', NULL)$$);
SELECT t.raises($$SELECT force_release('k', '')$$);
SELECT t.raises($$SELECT force_release('k', repeat('x', 1025))$$);
SELECT t.raises($$SELECT lock_force_release('k', NULL)$$) ~ '^22004' AS refused;
SELECT t.raises($$SELECT force_release(NULL, 'why not')$$);
SELECT t.fingerprint() = :'before' AS unchanged;
SELECT count(*) FROM lock_audit;

-- The lease has ended; the record has the holder, the token and a digest of the owner.
SELECT force_release('k', 'Alice is on holiday');
SELECT * FROM lock_status('k') \gx
SELECT * FROM t.audit \gx
SELECT previous_owner_digest = encode(sha256('alice-1'), 'hex') AS digest, fencing_token = :token AS token FROM lock_audit;
SELECT count(*) AS rows_with_owner FROM lock_audit a WHERE a::text LIKE '%alice-1%';
SELECT count(*) AS rows_with_owner FROM app_lock a WHERE a::text LIKE '%alice-1%';

-- The former owner has lost the lease.
SELECT lock_try_release('k', 'alice-1'), lock_try_extend('k', 'alice-1'), lock_is_held('k', 'alice-1'),
	lock_release_all('alice-1'), lock_extend_all('alice-1');
SELECT t.raises($$SELECT lock_release('k', 'alice-1')$$);
SELECT t.raises($$SELECT lock_extend('k', 'alice-1')$$);
SELECT t.raises($$SELECT force_release('k', 'once more')$$) ~ '^LK002' AS refused;

-- The next grant has a higher token.
SELECT s.status, fencing_token > :token AS token_rises FROM lock_acquire('k', '10 min', 'bob-1', holder => 'Bob') g, t.show(g) s;
SELECT lock_try_release('k', 'alice-1');

-- Nothing to end: released, expired, never acquired
SELECT lock_release('k', 'bob-1');
SELECT t.code($$SELECT force_release('k', 'released')$$);
SELECT acquired FROM lock_acquire('short', '20 ms', 'alice-1');
SELECT t.expire('short');
SELECT t.code($$SELECT force_release('short', 'expired')$$);
SELECT count(*) FROM lock_audit;

-- The other function name; a reason of 1024 bytes
SELECT acquired FROM lock_acquire('k', '10 min', 'bob-1', holder => 'Bob');
SELECT lock_force_release('k', repeat('x', 1024));
SELECT action, key, previous_holder, octet_length(reason) FROM lock_audit ORDER BY at DESC LIMIT 1;
-- A generated owner
SELECT owner FROM lock_acquire('k') \gset
SELECT lock_force_release(key => 'k', reason => 'by name');
SELECT previous_owner_digest = encode(sha256(:'owner'), 'hex') AS digest FROM lock_audit ORDER BY at DESC LIMIT 1;
\set VERBOSITY sqlstate
SELECT force_release('k', 'nobody has it');
\set VERBOSITY default

-- The record has the role that logged in and the role it acted as
SELECT acquired FROM lock_acquire('k', '10 min', 'bob-1', holder => 'Bob');
SET SESSION AUTHORIZATION regress_al_login;
SET ROLE regress_al_dba;
SELECT force_release('k', 'by a member');
SELECT action, session_role, acting_role FROM lock_audit ORDER BY at DESC LIMIT 1;
SELECT t.code($$DELETE FROM lock_audit$$) AS delete, t.code($$UPDATE lock_audit SET reason = ''$$) AS update,
	t.code($$INSERT INTO lock_audit SELECT * FROM lock_audit$$) AS insert, t.code($$TRUNCATE lock_audit$$) AS truncate;
RESET SESSION AUTHORIZATION;

-- Rolled back: neither ended nor recorded
SELECT acquired FROM lock_acquire('k', '10 min', 'bob-1', holder => 'Bob');
SELECT count(*) AS records FROM lock_audit \gset
BEGIN;
SELECT force_release('k', 'changed my mind');
SELECT locked FROM lock_status('k');
ROLLBACK;
SELECT lock_is_held('k', 'bob-1');
SELECT count(*) = :records AS no_record FROM lock_audit;

--
-- lock_steal
--
TRUNCATE lock_audit;
SELECT fencing_token AS token, expires_at AS until FROM lock_status('k') \gset
SELECT t.fingerprint() AS before \gset
SELECT t.raises($$SELECT lock_steal(NULL, 'dba-1', 'why')$$);
SELECT t.raises($$SELECT lock_steal('k', NULL, 'why')$$);
SELECT t.raises($$SELECT lock_steal('k', '', 'why')$$);
SELECT t.raises($$SELECT lock_steal('k', repeat('x', 256), 'why')$$);
SELECT t.raises($$SELECT lock_steal('k', 'dba-1', NULL)$$);
SELECT t.raises($$SELECT lock_steal('k', 'dba-1', '')$$);
SELECT t.raises($$SELECT lock_steal('k', 'dba-1', repeat('x', 1025))$$);
SELECT t.raises($$SELECT lock_steal('k', 'dba-1', 'why', '25 h')$$);
SELECT t.raises($$SELECT lock_steal('k', 'dba-1', 'why', '1 month')$$);
SELECT t.raises($$SELECT lock_steal('k', 'dba-1', 'why', holder => repeat('x', 256))$$);
SELECT t.fingerprint() = :'before' AS unchanged;
SELECT count(*) FROM lock_audit;

-- Taken over in one step, with a higher token
SELECT s.*, fencing_token > :token AS token_rises
FROM lock_steal('k', 'dba-1', 'Bob is on holiday', '20 min', 'the DBA') g, t.show(g) s;
SELECT * FROM t.audit \gx
SELECT previous_owner_digest = encode(sha256('bob-1'), 'hex') AS digest, fencing_token = :token AS token FROM lock_audit;

-- The former owner learns that another owner has the lease; the new one has full control.
SELECT lock_try_release('k', 'bob-1'), lock_try_extend('k', 'bob-1'), lock_is_held('k', 'bob-1'), lock_release_all('bob-1');
SELECT t.raises($$SELECT lock_release('k', 'bob-1')$$);
SELECT t.raises($$SELECT lock_extend('k', 'bob-1')$$);
SELECT lock_is_held('k', 'dba-1'), lock_extend('k', 'dba-1', '1 hour') IS NOT NULL AS extended, lock_release_all('dba-1');

-- A free key is granted, and recorded without a former holder.
SELECT s.* FROM lock_steal('never', 'dba-1', 'just in case') g, t.show(g) s;
SELECT acquired FROM lock_steal('short', 'dba-1', 'expired', '20 ms');
SELECT acquired FROM lock_steal('k', 'dba-1', 'released', '20 ms');
SELECT action, key, previous_holder, previous_owner_digest, fencing_token, reason FROM lock_audit ORDER BY at OFFSET 1;
-- A stolen lease expires like any other.
SELECT t.expire('short');
SELECT t.code($$SELECT lock_extend('short', 'dba-1')$$);

-- Stealing from oneself: a new grant, with a new token
SELECT fencing_token AS token FROM lock_status('never') \gset
SELECT s.status, fencing_token > :token AS token_rises FROM lock_steal('never', 'dba-1', 'from myself') g, t.show(g) s;
SELECT count(*) FROM lock_audit WHERE previous_owner_digest = encode(sha256('dba-1'), 'hex');
SELECT count(*) FROM app_lock WHERE key = 'never';

-- Default owner and label
SET atomic_lock.owner = 'session-7';
SELECT s.* FROM lock_steal('never', NULL, 'owner from the setting') g, t.show(g) s;
RESET atomic_lock.owner;

-- Rolled back
BEGIN;
SELECT acquired FROM lock_steal('never', 'dba-1', 'changed my mind');
ROLLBACK;
SELECT lock_is_held('never', 'session-7'), lock_is_held('never', 'dba-1');
SELECT count(*) FROM lock_audit WHERE reason = 'changed my mind';

-- By name
SELECT acquired, owner, holder FROM lock_steal(reason => 'by name', key => 'never', new_owner => 'dba-2', holder => 'DBA 2', ttl => '1 min');

-- meta belongs to the lease, not to the key.
SELECT acquired FROM lock_acquire('meta', '10 min', 'alice-1', meta => '1');
SELECT acquired FROM lock_steal('meta', 'dba-1', 'why');
SELECT meta IS NULL AS gone FROM lock_status('meta');

-- Stealing and other calls in one statement
SELECT (lock_acquire('one', '1 min', 'alice-1')).status, (lock_steal('one', 'dba-1', 'why')).status,
	force_release('one', 'why'), (lock_steal('one', 'dba-2', 'why')).status, lock_try_release('one', 'dba-1'), lock_try_release('one', 'dba-2');

-- Records have an id, which logical replication needs. An administrator can delete records, but
-- not change or add any.
SELECT count(*) > 10 AS many, count(DISTINCT id) = count(*) AS distinct, bool_and(uuid_send(id) <> '\x00000000000000000000000000000000') AS filled FROM lock_audit;
SET client_min_messages = error;
CREATE PUBLICATION regress_al_all FOR ALL TABLES;
SET client_min_messages = warning;
SET SESSION AUTHORIZATION regress_al_dba;
DELETE FROM lock_audit WHERE at < now() - interval '1 day' OR key = 'one' RETURNING action, key, reason;
SELECT t.raises(stmt) AS answer, stmt FROM unnest(ARRAY['INSERT INTO lock_audit SELECT * FROM lock_audit', 'UPDATE lock_audit SET reason = $$$$', 'UPDATE lock_audit SET id = gen_random_uuid()', 'SELECT FROM lock_audit FOR UPDATE', 'TRUNCATE lock_audit']) stmt;
DELETE FROM lock_audit;
RESET SESSION AUTHORIZATION;
DROP PUBLICATION regress_al_all;
SELECT acquired FROM lock_steal('after', 'dba-1', 'goes on');
SELECT action, key, reason FROM lock_audit;

DROP OWNED BY regress_al_dba, regress_al_login;
DROP ROLE regress_al_login, regress_al_dba;
