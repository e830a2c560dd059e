\set ECHO none
\getenv srcdir PG_ABS_SRCDIR
\set setup :srcdir '/sql/include/setup.sql'
\i :setup
-- lock_schedule_sweep and lock_unschedule_sweep, without pg_cron
--
-- Properties: the error says what to install, or which statement to run in the database of
-- pg_cron. Arguments are checked all the same. Objects that merely look like pg_cron are not
-- called.
--
-- Turns red when: a schema "cron" passes for pg_cron, so that the role that created it runs
-- code with the rights of an administrator.
SELECT count(*) FROM pg_extension WHERE extname = 'pg_cron';
SELECT stmt, replace(replace(t.raises(stmt), current_database(), '<this>'), quote_literal(current_user), '<me>') AS answer FROM unnest(ARRAY['SELECT lock_schedule_sweep()', 'SELECT lock_schedule_sweep(''*/5 * * * *'')', 'SELECT lock_unschedule_sweep()']) stmt;

-- Arguments
SELECT stmt, replace(replace(t.raises(stmt), current_database(), '<this>'), quote_literal(current_user), '<me>') AS answer FROM unnest(ARRAY['SELECT lock_schedule_sweep(NULL)', 'SELECT lock_schedule_sweep('''')']) stmt;

-- Privileges
DROP ROLE IF EXISTS regress_al_user, regress_al_monitor, regress_al_admin;
CREATE ROLE regress_al_user;
CREATE ROLE regress_al_monitor;
CREATE ROLE regress_al_admin;
SELECT lock_grant_access('regress_al_user', 'user'), lock_grant_access('regress_al_monitor', 'monitor'), lock_grant_access('regress_al_admin', 'admin');
CREATE FUNCTION t.code_as(r text, stmt text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text;
BEGIN
	EXECUTE format('SET LOCAL ROLE %I', r);
	answer := t.code(stmt);
	RESET ROLE;
	RETURN answer;
END
$$;
SELECT r, t.code_as(r, 'SELECT lock_schedule_sweep()') AS schedule, t.code_as(r, 'SELECT lock_unschedule_sweep()') AS unschedule
FROM unnest(ARRAY['regress_al_user', 'regress_al_monitor', 'regress_al_admin']) r;

-- In a read-only transaction: the same errors
BEGIN READ ONLY;
SELECT t.code('SELECT lock_schedule_sweep()') IN ('55000', '25006') AS refused, t.code('SELECT lock_unschedule_sweep()') IN ('55000', '25006') AS refused;
ROLLBACK;

-- Objects that only look like pg_cron
CREATE SCHEMA cron;
CREATE TABLE cron.ran (what text);
CREATE TABLE cron.job (jobid bigint, schedule text, command text, nodename text, nodeport int, database text, username text, active boolean, jobname text);
INSERT INTO cron.job SELECT 1, '* * * * *', 'SELECT lock_sweep()', '', 5432, current_database(), current_user, true, 'atomic_lock sweep of ' || current_database();
CREATE FUNCTION cron.trap(VARIADIC text[]) RETURNS bigint LANGUAGE sql AS $$INSERT INTO cron.ran VALUES ($1[1]); SELECT 1::bigint$$;
CREATE FUNCTION cron.schedule(text, text) RETURNS bigint LANGUAGE sql AS 'SELECT cron.trap(''schedule'')';
CREATE FUNCTION cron.schedule(text, text, text) RETURNS bigint LANGUAGE sql AS 'SELECT cron.trap(''schedule'')';
CREATE FUNCTION cron.schedule_in_database(text, text, text, text, text DEFAULT NULL, boolean DEFAULT true) RETURNS bigint LANGUAGE sql AS 'SELECT cron.trap(''schedule_in_database'')';
CREATE FUNCTION cron.alter_job(bigint, text DEFAULT NULL, text DEFAULT NULL, text DEFAULT NULL, text DEFAULT NULL, boolean DEFAULT NULL) RETURNS void LANGUAGE sql AS 'SELECT cron.trap(''alter_job'')';
CREATE FUNCTION cron.unschedule(text) RETURNS boolean LANGUAGE sql AS 'SELECT cron.trap(''unschedule'') = 1';
CREATE FUNCTION cron.unschedule(bigint) RETURNS boolean LANGUAGE sql AS 'SELECT cron.trap(''unschedule'') = 1';
SELECT t.code('SELECT lock_schedule_sweep()') AS schedule, t.code('SELECT lock_unschedule_sweep()') AS unschedule;
SELECT * FROM cron.ran;
SELECT count(*) FROM cron.job;
DROP SCHEMA cron CASCADE;

DROP OWNED BY regress_al_user, regress_al_monitor, regress_al_admin;
DROP ROLE regress_al_user, regress_al_monitor, regress_al_admin;
