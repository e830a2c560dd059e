\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
--
-- The settings: types, units, limits, and the roles that may set them
--
-- Properties: each setting accepts exactly its documented values, and only roles with the right
-- level can set it, before the library is loaded, too. An invalid owner is refused, and no
-- error shows it.
--
-- Turns red when: a setting changes its context, default or range; a user sets a limit of the
-- administrator by any way; an unknown name is accepted.
--
DROP ROLE IF EXISTS regress_al_user;
CREATE ROLE regress_al_user;
SELECT lock_grant_access('regress_al_user', 'user');

-- All settings, and their contexts
SELECT name, setting, unit, vartype, context, boot_val, enumvals FROM pg_settings WHERE name LIKE 'atomic\_lock.%' ORDER BY name;
SHOW atomic_lock.default_ttl;
SHOW atomic_lock.max_ttl;
SHOW atomic_lock.max_wait;
SHOW atomic_lock.max_lifetime;
SHOW atomic_lock.lock_delay;
SHOW atomic_lock.released_retention;
SHOW atomic_lock.sweep_interval;
SHOW atomic_lock.sweep_databases;
SELECT name FROM pg_settings WHERE name LIKE 'atomic\_lock.%' AND (short_desc IS NULL OR short_desc = '');

-- Units
SET atomic_lock.default_ttl = 1500;
SHOW atomic_lock.default_ttl;
SET atomic_lock.default_ttl = '90 s';
SHOW atomic_lock.default_ttl;
SET atomic_lock.default_ttl = '2min';
SHOW atomic_lock.default_ttl;
SET atomic_lock.default_ttl = '0.5h';
SHOW atomic_lock.default_ttl;
SET atomic_lock.default_ttl = '1d';
SHOW atomic_lock.default_ttl;
SET atomic_lock.default_ttl = '1ms';
SHOW atomic_lock.default_ttl;
RESET atomic_lock.default_ttl;

-- Below the minimum, above the maximum, not a number, not a unit
SELECT name, min_val,
	t.code(format('SET %s = %L', name, min_val)) AS min,
	t.code(format('SET %s = %L', name, min_val::numeric - 1)) AS below,
	t.code(format('SET %s = %L', name, max_val)) AS max,
	t.code(format('SET %s = %L', name, max_val::numeric + 1)) AS above,
	t.code(format('SET %s = %L', name, '-9223372036854775808')) AS low,
	t.code(format('SET %s = %L', name, '1e300')) AS high,
	t.code(format('SET %s = %L', name, 'NaN')) AS nan,
	t.code(format('SET %s = %L', name, 'infinity')) AS inf,
	t.code(format('SET %s = %L', name, 'soon')) AS text,
	t.code(format('SET %s = %L', name, '')) AS empty,
	t.code(format('SET %s = %L', name, '5 parsecs')) AS unit,
	t.code(format('SET %s = %L', name, '5 kB')) AS bytes
FROM pg_settings WHERE name LIKE 'atomic\_lock.%' AND vartype IN ('integer', 'real') AND context <> 'sighup' ORDER BY name;
-- Settings of the configuration file; ALTER SYSTEM is only tried with values that must fail.
SELECT name, min_val, max_val, t.code(format('SET %s = %L', name, min_val)) AS set FROM pg_settings
WHERE name LIKE 'atomic\_lock.%' AND context = 'sighup' AND vartype <> 'string' ORDER BY name;
\set VERBOSITY sqlstate
ALTER SYSTEM SET atomic_lock.released_retention = -1;
ALTER SYSTEM SET atomic_lock.released_retention = 'long';
ALTER SYSTEM SET atomic_lock.released_retention = '5 kB';
ALTER SYSTEM SET atomic_lock.sweep_batch = 0;
ALTER SYSTEM SET atomic_lock.sweep_batch = -1;
ALTER SYSTEM SET atomic_lock.sweep_batch = 'all';
ALTER SYSTEM SET atomic_lock.sweep_batch = '5 min';
ALTER SYSTEM SET atomic_lock.sweep_interval = -1;
ALTER SYSTEM SET atomic_lock.sweep_interval = '366 d';
ALTER SYSTEM SET atomic_lock.sweep_interval = 'never';
ALTER SYSTEM SET atomic_lock.sweep_interval = '5 kB';
ALTER SYSTEM SET atomic_lock.sweep_databases = 'a,,b';
ALTER SYSTEM SET atomic_lock.sweep_databases = 'a b';
ALTER SYSTEM SET atomic_lock.sweep_databases = '"a';
ALTER SYSTEM SET atomic_lock.sweep_databases = 'a,';
\set VERBOSITY default
-- Words
SELECT name, value, t.code(format('SET %s = %L', name, value)) AS set
FROM (VALUES ('atomic_lock.on_reacquire', 'extend'), ('atomic_lock.on_reacquire', 'error'),
	('atomic_lock.on_reacquire', 'ERROR'), ('atomic_lock.on_reacquire', 'on'), ('atomic_lock.on_reacquire', ''), ('atomic_lock.on_reacquire', '1'),
	('atomic_lock.acquire_durability', 'forced'), ('atomic_lock.acquire_durability', 'session'), ('atomic_lock.acquire_durability', 'relaxed'),
	('atomic_lock.acquire_durability', 'off'), ('atomic_lock.release_durability', 'relaxed'), ('atomic_lock.release_durability', 'session'),
	('atomic_lock.release_durability', 'forced'), ('atomic_lock.release_durability', '')) v(name, value);
SELECT t.raises($$SET atomic_lock.on_reacquire = 'maybe'$$);
-- An unknown setting
SELECT t.code($$SET atomic_lock.max_tll = '1 h'$$);

-- atomic_lock.owner: 1 to 255 bytes, or none; never shown in an error
SELECT t.raises(format('SET atomic_lock.owner = %L', repeat('s', 256)));
SELECT t.raises(format('SET atomic_lock.owner = %L', repeat('s', 1000000)));
SELECT t.code(format('SET atomic_lock.owner = %L', repeat('s', 255))), t.code($$SET atomic_lock.owner = ''$$);
SELECT t.raises(format('SELECT set_config(%L, repeat(%L, 256), false)', 'atomic_lock.owner', 'secret'));
SELECT t.raises(format('ALTER ROLE regress_al_user SET atomic_lock.owner = %L', repeat('s', 256))) ~ 'sss' AS shown;
SHOW atomic_lock.owner;
-- any bytes
SELECT set_config('atomic_lock.owner', E'a ''"\\\n\t%s;', false) = E'a ''"\\\n\t%s;' AS set;
SELECT owner = E'a ''"\\\n\t%s;' AS same FROM lock_acquire('odd owner');
SELECT lock_is_held('odd owner'), lock_release('odd owner');
RESET atomic_lock.owner;
-- for a transaction
BEGIN;
SET LOCAL atomic_lock.owner = 'local-1';
SELECT owner FROM lock_acquire('local');
SAVEPOINT s;
SET LOCAL atomic_lock.owner = 'local-2';
SELECT status FROM lock_try_acquire('local');
ROLLBACK TO s;
SELECT status FROM lock_try_acquire('local');
COMMIT;
SHOW atomic_lock.owner;
-- for a function
CREATE FUNCTION t.worker() RETURNS text LANGUAGE sql SET atomic_lock.owner = 'worker-1' AS $$SELECT owner FROM lock_acquire('worker')$$;
SELECT t.worker();
SHOW atomic_lock.owner;

-- Settings that a user may set, and those that it may not
SET SESSION AUTHORIZATION regress_al_user;
SELECT name, t.code(format('SET %s = %L', name, boot_val)) AS set,
	t.code(format('SELECT set_config(%L, %L, true)', name, boot_val)) AS set_config
FROM pg_settings WHERE name LIKE 'atomic\_lock.%' ORDER BY name;
SELECT t.raises($$SET atomic_lock.max_ttl = '1000 h'$$);
\set VERBOSITY sqlstate
ALTER SYSTEM SET atomic_lock.sweep_batch = 1;
ALTER DATABASE :"DBNAME" SET atomic_lock.max_ttl = '1000 h';
\set VERBOSITY default
SELECT t.raises($$ALTER ROLE regress_al_user SET atomic_lock.max_ttl = '1000 h'$$);
SELECT t.code($$ALTER ROLE regress_al_user SET atomic_lock.owner = 'me'$$);
SELECT t.code($$CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql SET atomic_lock.max_ttl = '1000 h' AS 'SELECT 1'$$);
RESET SESSION AUTHORIZATION;

-- Values set before the library is loaded are subject to the same rules.
\c -
SET client_min_messages = warning;
SET SESSION AUTHORIZATION regress_al_user;
SET atomic_lock.max_ttl = '1000 h';
SET atomic_lock.lock_delay = '1000 h';
SET atomic_lock.owner = 'early-1';
SET atomic_lock.default_ttl = '10 min';
SELECT owner, expires_at - acquired_at AS length FROM lock_acquire('early');
SHOW atomic_lock.max_ttl;
SHOW atomic_lock.lock_delay;
SELECT t.code($$SELECT lock_acquire('too long', '25 h')$$);
RESET SESSION AUTHORIZATION;
\c -
SET client_min_messages = warning;
SET atomic_lock.sweep_batch = 1;
SET atomic_lock.default_ttl = 'nonsense';
SET atomic_lock.nonsense = 1;
SELECT set_config('atomic_lock.owner', repeat('s', 256), false) IS NOT NULL AS set;
SELECT expires_at - acquired_at AS length FROM lock_acquire('early 2');
SHOW atomic_lock.sweep_batch;
SHOW atomic_lock.owner;

DROP OWNED BY regress_al_user;
DROP ROLE regress_al_user;
