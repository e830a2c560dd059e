-- The settings, their defaults, types and contexts.
--
-- Turns red when: a setting is added or removed, or changes its default, type or context,
-- without a change here.
\set ECHO none
SET client_min_messages = warning;
BEGIN;
CREATE EXTENSION IF NOT EXISTS pgtap;
CREATE EXTENSION IF NOT EXISTS atomic_lock;
LOAD 'atomic_lock';

SELECT plan(83);

CREATE TEMP TABLE expected (name text PRIMARY KEY, value text, context text, vartype text);
INSERT INTO expected VALUES
	('atomic_lock.owner', '', 'user', 'string'),
	('atomic_lock.fencing_token', '', 'user', 'string'),
	('atomic_lock.default_ttl', '5min', 'user', 'real'),
	('atomic_lock.max_ttl', '1d', 'superuser', 'real'),
	('atomic_lock.max_wait', '5min', 'superuser', 'real'),
	('atomic_lock.max_lifetime', '0', 'superuser', 'real'),
	('atomic_lock.on_reacquire', 'extend', 'user', 'enum'),
	('atomic_lock.lock_delay', '0', 'superuser', 'real'),
	('atomic_lock.acquire_durability', 'forced', 'superuser', 'enum'),
	('atomic_lock.release_durability', 'relaxed', 'user', 'enum'),
	('atomic_lock.enforce_guards', 'on', 'superuser', 'bool'),
	('atomic_lock.released_retention', '1h', 'sighup', 'real'),
	('atomic_lock.history_retention', '90d', 'sighup', 'real'),
	('atomic_lock.sweep_batch', '1000', 'sighup', 'integer'),
	('atomic_lock.sweep_interval', '1min', 'sighup', 'real'),
	('atomic_lock.sweep_databases', '*', 'sighup', 'string'),
	('atomic_lock.max_claims_per_transaction', '1000', 'superuser', 'integer'),
	('atomic_lock.max_queue_places', '10000', 'superuser', 'integer'),
	('atomic_lock.partitions', '0', 'superuser', 'integer'),
	('atomic_lock.partition', '-1', 'superuser', 'integer');

SELECT set_eq($$SELECT name FROM pg_settings WHERE name LIKE 'atomic\_lock.%'$$, 'SELECT name FROM expected', 'the settings are as listed');
SELECT is(current_setting(name, true), value, name || ': default') FROM expected ORDER BY name;
SELECT is(s.context, e.context, e.name || ': context') FROM expected e LEFT JOIN pg_settings s USING (name) ORDER BY name;
SELECT is(s.vartype, e.vartype, e.name || ': type') FROM expected e LEFT JOIN pg_settings s USING (name) ORDER BY name;
SELECT isnt(s.short_desc, '', e.name || ': has a description') FROM expected e LEFT JOIN pg_settings s USING (name) ORDER BY name;
SELECT is_empty($$SELECT name FROM pg_settings WHERE name LIKE 'atomic\_lock.%' AND vartype = 'real' AND unit IS DISTINCT FROM 'ms'$$, 'durations are in milliseconds');
SELECT throws_ok('SET atomic_lock.no_such_setting = 1', '42602', NULL, 'the prefix atomic_lock is reserved');

SELECT * FROM finish();
ROLLBACK;
