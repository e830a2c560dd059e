# The sweep as a job of pg_cron.
#
# Takes a minute: before version 1.5, pg_cron has no shorter interval.
#
# Properties: lock_schedule_sweep() makes one job per database and role, by default for every
# minute, which runs as the role that called it, and works whatever the schema of the
# extension and the role's search_path are; another call changes only the schedule;
# lock_unschedule_sweep() removes the job and says whether there was one; errors of pg_cron are
# passed on; where pg_cron is not in the database, the error has the statement that does
# the same in the database of pg_cron, also where a role has created a schema that looks
# like pg_cron, and none of its functions is called; a superuser's job runs no code of other
# roles.
#
# Turns red when: the job is found by its command, or another role's job is found; the name
# of the function is not qualified, or not quoted; a schema named cron is taken for pg_cron;
# the statement does not name the role; the owners of database, schema and extension are not
# checked.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use AtomicLockSweep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('cron');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock,pg_cron'
log_statement = none
autovacuum = off
max_worker_processes = 20
atomic_lock.sweep_interval = 0
atomic_lock.released_retention = 0
cron.database_name = 'postgres'
cron.use_background_workers = on
});
$node->start;

my $watch = session($node, 'Watch');
my $user = ask($watch, 'SELECT current_user');
ask($watch, q{CREATE SCHEMA "odd ""'Schema"; CREATE EXTENSION atomic_lock SCHEMA "odd ""'Schema"; SET search_path = "odd ""'Schema"});

# The command of a job, with the schema of the extension
sub command_in
{
	my ($schema) = @_;
	return q{DO '} . "BEGIN WHILE $schema.lock_sweep(1000::pg_catalog.int8) OPERATOR(pg_catalog.=) 1000::pg_catalog.int8 LOOP COMMIT; END LOOP; END" =~ s/'/''/gr . q{'};
}
my ($here, $there) = map { command_in($_) } (q{"odd ""'Schema"}, 'public');

ask($watch, q{CREATE DATABASE other; CREATE ROLE dba LOGIN; CREATE ROLE nobody LOGIN; GRANT CREATE ON DATABASE other TO nobody});
my $other = session($node, 'Other', 'other');
ask($other, 'CREATE EXTENSION atomic_lock');

#
# pg_cron is not installed yet.
#
foreach my $psql ($watch, $other)
{
	foreach my $call ('lock_schedule_sweep()', q{lock_schedule_sweep('*/5 * * * *')}, 'lock_unschedule_sweep()')
	{
		my $database = $psql == $watch ? 'postgres' : 'other';
		like(reply($psql, "SELECT $call"), qr/^ERROR:  55000: +extension "pg_cron" is not installed in database "$database"\nHINT:  .*pg_cron.* run there: SELECT cron\./, "$call without pg_cron");
	}
}

# A role has planted objects in the database without pg_cron.
ask($other, q{
GRANT CREATE ON SCHEMA public TO nobody;
SET SESSION AUTHORIZATION nobody;
CREATE SCHEMA cron;
GRANT USAGE ON SCHEMA cron TO PUBLIC;
CREATE TABLE cron.job (jobid bigint, schedule text, command text, nodename text, nodeport int, database text, username text, active bool, jobname text);
INSERT INTO cron.job VALUES (1, '* * * * *', 'SELECT public.lock_sweep()', '', 0, 'other', session_user, true, 'atomic_lock sweep of other');
DO $$
DECLARE
	f	text;
BEGIN
	FOREACH f IN ARRAY ARRAY['schedule(text, text)', 'schedule(text, text, text)', 'schedule(name, text, text)',
		'schedule_in_database(text, text, text, text, text DEFAULT NULL, boolean DEFAULT true)', 'schedule_in_database(text, text, text, text)',
		'alter_job(bigint, text DEFAULT NULL, text DEFAULT NULL, text DEFAULT NULL, text DEFAULT NULL, boolean DEFAULT NULL)'] LOOP
		EXECUTE format('CREATE FUNCTION cron.%s RETURNS bigint LANGUAGE plpgsql AS $f$ BEGIN RAISE LOG ''captured %% %%'', session_user, current_user; RETURN 1; END $f$', f);
	END LOOP;
	FOREACH f IN ARRAY ARRAY['unschedule(bigint)', 'unschedule(text)', 'unschedule(name)'] LOOP
		EXECUTE format('CREATE FUNCTION cron.%s RETURNS bool LANGUAGE plpgsql AS $f$ BEGIN RAISE LOG ''captured %% %%'', session_user, current_user; RETURN true; END $f$', f);
	END LOOP;
	CREATE RULE r AS ON DELETE TO cron.job DO ALSO SELECT cron.schedule('', '');
END $$;
CREATE SCHEMA trap;
GRANT USAGE ON SCHEMA trap TO PUBLIC;
CREATE FUNCTION trap.lock_sweep(bigint) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RAISE LOG 'captured'; RETURN 0; END $$;
CREATE DOMAIN trap.int8 AS pg_catalog.int8;
DO $$
DECLARE
	op	text;
	arg	text;
	f	text;
BEGIN
	FOREACH arg IN ARRAY ARRAY['integer', 'bigint'] LOOP
		EXECUTE format('CREATE FUNCTION trap.op(bigint, %s) RETURNS boolean LANGUAGE plpgsql AS $f$ BEGIN RAISE LOG ''captured''; RETURN false; END $f$', arg);
		FOREACH op IN ARRAY ARRAY['=', '<>', '<', '>', '<=', '>='] LOOP
			EXECUTE format('CREATE OPERATOR trap.%s (FUNCTION = trap.op, LEFTARG = bigint, RIGHTARG = %s)', op, arg);
		END LOOP;
	END LOOP;
	FOREACH f IN ARRAY ARRAY['', 'integer', 'numeric', 'text'] LOOP
		EXECUTE format('CREATE FUNCTION public.lock_sweep(%s) RETURNS bigint LANGUAGE plpgsql AS $f$ BEGIN RAISE LOG ''captured''; RETURN 0; END $f$', f);
	END LOOP;
END $$;
RESET SESSION AUTHORIZATION;
ALTER DATABASE other SET search_path = trap, pg_catalog, public});
foreach my $path ('DEFAULT', 'cron, public', 'pg_temp, cron, pg_catalog, public')
{
	ask($other, "SET search_path = $path");
	like(reply($other, "SELECT public.$_()"), qr/^ERROR:  55000: .*pg_cron/, "$_ is not misled by a schema named cron, with the path $path") for ('lock_schedule_sweep', 'lock_unschedule_sweep');
}
ask($other, 'RESET search_path');

#
# A job
#
ask($watch, q{
CREATE EXTENSION pg_cron;
GRANT USAGE ON SCHEMA "odd ""'Schema", cron TO dba;
SELECT lock_grant_access('dba', 'admin')});
ask($other, q{SELECT lock_grant_access('dba', 'admin')});
note 'pg_cron ' . ask($watch, q{SELECT extversion FROM pg_extension WHERE extname = 'pg_cron'});
is(ask($watch, 'SELECT lock_unschedule_sweep()'), 'f', 'nothing to unschedule');
my $id = ask($watch, 'SELECT lock_schedule_sweep()');
like($id, qr/^\d+$/, 'a job is scheduled');
my $job = q{SELECT jobid, schedule, command, database, username, active, jobname FROM cron.job};
is(ask($watch, $job), qq{$id|* * * * *|$here|postgres|$user|t|atomic_lock sweep of postgres}, '... pg_cron has it');

my $dba = session($node, 'Dba');
ask($dba, q{SET SESSION AUTHORIZATION dba; SET search_path = pg_temp});
my $own = ask($dba, q{SELECT "odd ""'Schema".lock_schedule_sweep()});
isnt($own, $id, 'another role has another job');
is(ask($watch, "$job WHERE jobid = $own"), qq{$own|* * * * *|$here|postgres|dba|t|atomic_lock sweep of postgres}, '... as its own');
my $nobody = session($node, 'Nobody');
ask($nobody, 'SET SESSION AUTHORIZATION nobody');
like(reply($nobody, q{SELECT "odd ""'Schema".lock_schedule_sweep()}), qr/^ERROR:  42501/, 'a role without rights cannot schedule');
ask($watch, q{GRANT USAGE ON SCHEMA "odd ""'Schema" TO nobody});
like(reply($nobody, "SELECT \"odd \"\"'Schema\".$_()"), qr/^ERROR:  42501: +permission denied for function $_/, "... $_") for ('lock_schedule_sweep', 'lock_unschedule_sweep');

#
# In another database: the hint contains the statement to run.
#
sub hinted
{
	my ($psql, $call) = @_;
	my ($statement) = reply($psql, "SELECT $call") =~ /^ERROR:  55000: .*\nHINT: .*run there: (.*;)$/m;
	return $statement // '';
}
my $far = ask($watch, hinted($other, 'lock_schedule_sweep()'));
is(ask($watch, "$job WHERE jobid = $far"), qq{$far|* * * * *|$there|other|$user|t|atomic_lock sweep of other}, 'a job for another database');
end($dba);
$dba = session($node, 'Dba', 'other');
ask($dba, 'SET SESSION AUTHORIZATION dba');
my $far_own = ask($watch, hinted($dba, 'lock_schedule_sweep()'));
is(ask($watch, "$job WHERE jobid = $far_own"), "$far_own|* * * * *|$there|other|dba|t|atomic_lock sweep of other", '... belongs to the role that asked for it, although a superuser runs the statement');
is(ask($watch, q{SELECT count(*) FROM cron.job}), '4', '... in addition to the others');
is(count_in_log($node, qr/captured/), 0, 'no function of the planted schema cron was called');
ask($nobody, 'RESET SESSION AUTHORIZATION');
ask($watch, 'REVOKE USAGE ON SCHEMA cron FROM dba');
my $stranger = session($node, 'Stranger');
ask($stranger, 'SET SESSION AUTHORIZATION dba');
like(reply($stranger, qq{SELECT "odd ""'Schema".$_()}), qr/^ERROR:  42501: +permission denied for schema cron/, "$_ without a right on pg_cron") for ('lock_schedule_sweep', 'lock_unschedule_sweep');
end($stranger, $nobody);
ask($watch, 'GRANT USAGE ON SCHEMA cron TO dba');

# The jobs run at the next full minute; further checks meanwhile.
is(expire($_, 'cron', 30), '30', 'expired leases') for ($watch, $other);
expire_rows($_, 'cron-more', 2500) for ($watch, $other);
ask($_, q{SELECT lock_acquire('live', '1 hour', 'o')}) for ($watch, $other);

foreach my $bad ([ q{'every now and then'}, qr/invalid schedule/ ], [ q{''}, qr/invalid schedule/ ], [ 'NULL', qr/22004/ ])
{
	like(reply($watch, "SELECT lock_schedule_sweep($bad->[0])"), qr/^ERROR:  (?!XX000).*$bad->[1]/, "not a schedule: $bad->[0]");
}
is(ask($watch, "$job WHERE jobid = $id") =~ s/\|DO .*//r, "$id|* * * * *", '... and the job is unchanged');
like(reply($watch, "SET default_transaction_read_only = on; SELECT $_()"), qr/^ERROR:  25006/, "$_, read-only") for ('lock_schedule_sweep', 'lock_unschedule_sweep');
ask($watch, 'RESET default_transaction_read_only');

#
# The jobs have run.
#
ok(swept($_, 'cron'), 'expired rows are swept') or diag(ask($watch, 'SELECT * FROM cron.job_run_details')) for ($watch, $other);
foreach my $run ([ $id, $user, 'postgres' ], [ $own, 'dba', 'postgres' ], [ $far, $user, 'other' ], [ $far_own, 'dba', 'other' ])
{
	my ($its, $role, $database) = @$run;
	ok(soon($watch, "SELECT count(*) > 0 FROM cron.job_run_details WHERE jobid = $its AND status = 'succeeded' AND username = '$role' AND database = '$database'"), "... the job of $role for $database has succeeded")
	  or diag(ask($watch, 'SELECT * FROM cron.job_run_details'));
}
foreach my $psql ($watch, $other)
{
	is(ask($psql, q{SELECT string_agg(key, ' ') FROM app_lock}), 'live', '... live leases are kept');
	is(ask($psql, q{SELECT swept, sweeps >= 2 FROM lock_stats WHERE database = current_database()}), '2530|t', '... the rows are counted, in more than one batch');
	is(ask($psql, q{SELECT last_swept_at > pg_postmaster_start_time() FROM lock_sweeper_status() WHERE database = current_database()}), 't', '... and lock_sweeper_status shows the sweep');
}

#
# Another schedule, and no schedule
#
my $what = "$job WHERE jobid = $id";
my $before = ask($watch, $what);
my $others = ask($watch, qq{SELECT string_agg(j::text, ',' ORDER BY jobid) FROM cron.job j WHERE jobid <> $id});

is(ask($watch, q{SELECT lock_schedule_sweep('*/5 * * * *')}), $id, 'another schedule for the same job');
is(ask($watch, $what), $before =~ s/\|\* \*/|*\/5 */r, '... is stored');
is(ask($watch, qq{BEGIN; SELECT lock_schedule_sweep('1 * * * *'); ROLLBACK; $what}) =~ s/\|DO .*//r, "$id\n$id|*/5 * * * *", '... unless it is rolled back');
ask($watch, "UPDATE cron.job SET active = false WHERE jobid = $id");
my $new = ask($watch, 'SELECT lock_schedule_sweep()');
is(ask($watch, "$job WHERE jobid = $new"), $before =~ s/^\d+/$new/r, '... an inactive job is replaced by an active one');
is(ask($watch, qq{SELECT string_agg(j::text, ',' ORDER BY jobid) FROM cron.job j WHERE jobid <> $new}), $others, '... and other jobs are unchanged');
is(ask($watch, 'SELECT lock_unschedule_sweep(); SELECT lock_unschedule_sweep()'), "t\nf", 'the job is unscheduled, once');
is(ask($watch, qq{SELECT string_agg(j::text, ',' ORDER BY jobid) FROM cron.job j}), $others, '... other jobs are unchanged, also those of other roles');
is(ask($watch, hinted($dba, 'lock_unschedule_sweep()')), 't', 'a role in another database gets the statement to unschedule');
is(ask($watch, hinted($other, 'lock_unschedule_sweep()')), 't', '... as does a superuser');
end($dba);
$dba = session($node, 'Dba');
ask($dba, 'SET SESSION AUTHORIZATION dba');
is(ask($dba, q{SELECT "odd ""'Schema".lock_unschedule_sweep()}), 't', 'another role unschedules its own job');
is(ask($watch, 'SELECT count(*) FROM cron.job'), '0', 'no job is left');

# Names of databases
my $long = q{it's "} . 'd' x 50;
ask($watch, 'CREATE DATABASE "' . $long =~ s/"/""/r . '" TEMPLATE template0');
my $session = session($node, 'Long', $long);
ask($session, 'CREATE EXTENSION atomic_lock');
my $its = ask($watch, hinted($session, 'lock_schedule_sweep()'));
is(ask($watch, "SELECT database, octet_length(jobname) FROM cron.job WHERE jobid = $its"), "$long|63", 'a long name of a database, with quotes');
is(ask($watch, hinted($session, 'lock_unschedule_sweep()')), 't', '... the job is unscheduled');
end($session);

# A superuser must not schedule functions in a schema that another role owns.
ask($watch, q{CREATE ROLE boss LOGIN; CREATE DATABASE bosses OWNER boss});
my $boss = session($node, 'Boss', 'bosses');
ask($boss, 'CREATE EXTENSION atomic_lock');
like(reply($boss, 'SELECT lock_schedule_sweep()'), qr/^ERROR:  42501: /, 'a superuser is refused in a schema that belongs to no superuser');
ask($boss, q{SELECT lock_grant_access('boss', 'admin'); SET SESSION AUTHORIZATION boss});
like(hinted($boss, 'lock_schedule_sweep()'), qr/, 'bosses', 'boss'\);$/, '... its owner is not');
end($boss);
ask($watch, 'CREATE DATABASE another OWNER boss');
my $another = session($node, 'Another', 'another');
ask($another, 'CREATE SCHEMA ours; CREATE EXTENSION atomic_lock SCHEMA ours');
like(reply($another, 'SELECT ours.lock_schedule_sweep()'), qr/^ERROR:  42501: .*\nDETAIL: +Database "another" belongs to role "boss"/, 'a superuser is refused in a database that belongs to no superuser');
end($another);
ask($watch, 'CREATE DATABASE half; GRANT CREATE ON DATABASE half TO boss');
my $half = session($node, 'Half', 'half');
ask($half, 'CREATE SCHEMA ours; GRANT CREATE, USAGE ON SCHEMA ours TO boss WITH GRANT OPTION; SET ROLE boss; CREATE EXTENSION atomic_lock SCHEMA ours; RESET ROLE');
like(reply($half, 'SELECT ours.lock_schedule_sweep()'), qr/^ERROR:  42501: .*\nDETAIL: +Extension "atomic_lock" belongs to role "boss"/, '... and where the extension belongs to no superuser');
end($half);

# Seconds, if pg_cron has them
if (ask($watch, q{SELECT string_to_array(regexp_replace(extversion, '-.*', ''), '.')::int[] >= '{1,5}' FROM pg_extension WHERE extname = 'pg_cron'}) eq 't')
{
	ask($watch, q{SELECT lock_schedule_sweep('1 seconds')});
	expire($watch, 'second', 5);
	ok(swept($watch, 'second'), 'a job for every second sweeps');
	is(ask($watch, 'SELECT lock_unschedule_sweep()'), 't', '... until it is unscheduled');
}

ask($watch, 'DROP EXTENSION pg_cron');
like(reply($watch, 'SELECT lock_schedule_sweep()'), qr/^ERROR:  55000: .*pg_cron/, 'an error after pg_cron was dropped');
end($watch, $dba, $other);
$node->stop;
log_is_clean($node, also => qr/captured/);

done_testing();
