# The sweep as a job of pg_cron.
#
# Takes a minute: before its version 1.5 pg_cron knows nothing shorter.
#
# Properties: lock_schedule_sweep() makes one job per database and role, by
# default of every minute, which runs as the one who called it, and works
# whatever the schema of the extension and its own search_path; called again, it
# changes the schedule and no more; lock_unschedule_sweep() ends it and says
# whether there was one; all this also where pg_cron is in another database, with
# the rights of the caller there; what pg_cron says, is passed on; where it is
# not, that is an error that says what to do, also where somebody has made a
# schema that looks like it, of whose functions none is called.
#
# Turns red when: the job is found by its command, or by anybody's; the name of
# the function is not qualified, or not quoted; the functions of pg_cron are
# looked up by name; the worker in the other database is a superuser's.

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

# What a job says, with the schema of the extension
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
# No pg_cron, yet
#
foreach my $psql ($watch, $other)
{
	foreach my $call ('lock_schedule_sweep()', q{lock_schedule_sweep('*/5 * * * *')}, 'lock_unschedule_sweep()')
	{
		like(reply($psql, "SELECT $call"), qr/^ERROR:  55000: +extension "pg_cron" is not installed in database "postgres"\nHINT:  .*CREATE EXTENSION pg_cron/, "$call without pg_cron");
	}
}

# Somebody has prepared something where pg_cron is not.
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
	like(reply($other, "SELECT public.$_()"), qr/^ERROR:  55000: .*pg_cron/, "$_ is not taken in by a schema named cron, with the path $path") for ('lock_schedule_sweep', 'lock_unschedule_sweep');
}
ask($other, 'RESET search_path');

#
# A job
#
ask($watch, q{
CREATE EXTENSION pg_cron;
GRANT USAGE ON SCHEMA "odd ""'Schema", cron TO dba;
SELECT lock_grant_access('dba', 'admin')});
ask($other, q{SELECT lock_grant_access('dba', 'admin'), lock_grant_access('nobody', 'admin')});
note 'pg_cron ' . ask($watch, q{SELECT extversion FROM pg_extension WHERE extname = 'pg_cron'});
is(ask($_, 'SELECT lock_unschedule_sweep()'), 'f', 'nothing to unschedule') for ($watch, $other);
my $id = ask($watch, 'SELECT lock_schedule_sweep()');
like($id, qr/^\d+$/, 'scheduled');
my $job = q{SELECT jobid, schedule, command, database, username, active, jobname FROM cron.job};
is(ask($watch, $job), qq{$id|* * * * *|$here|postgres|$user|t|atomic_lock sweep of postgres}, '... a job of pg_cron');

my $dba = session($node, 'Dba');
ask($dba, q{SET SESSION AUTHORIZATION dba; SET search_path = pg_temp});
my $own = ask($dba, q{SELECT "odd ""'Schema".lock_schedule_sweep()});
isnt($own, $id, 'another role has another job');
is(ask($watch, "$job WHERE jobid = $own"), qq{$own|* * * * *|$here|postgres|dba|t|atomic_lock sweep of postgres}, '... that is its own');
my $nobody = session($node, 'Nobody');
ask($nobody, 'SET SESSION AUTHORIZATION nobody');
like(reply($nobody, q{SELECT "odd ""'Schema".lock_schedule_sweep()}), qr/^ERROR:  42501/, 'not for everybody');
ask($watch, q{GRANT USAGE ON SCHEMA "odd ""'Schema" TO nobody});
like(reply($nobody, "SELECT \"odd \"\"'Schema\".$_()"), qr/^ERROR:  42501: +permission denied for function $_/, "... $_") for ('lock_schedule_sweep', 'lock_unschedule_sweep');

#
# From another database
#
my $far = ask($other, 'SELECT lock_schedule_sweep()');
is(ask($watch, "$job WHERE jobid = $far"), qq{$far|* * * * *|$there|other|$user|t|atomic_lock sweep of other}, 'a job of another database than that of pg_cron');
is(ask($watch, q{SELECT count(*) FROM cron.job}), '3', '... beside the others');
end($dba, $nobody);
($dba, $nobody) = map { session($node, $_, 'other') } ('Dba', 'Nobody');
ask($dba, 'SET SESSION AUTHORIZATION dba');
ask($nobody, 'SET SESSION AUTHORIZATION nobody');
# The hint is what to run.
my ($denied, $far_function) = (qr/^ERROR:  42501: +permission denied for pg_cron in database "postgres"\nHINT: +Run there: /, 'cron.schedule_in_database(text,text,text,text,text,boolean)');
like(reply($nobody, 'SELECT lock_unschedule_sweep()'), qr/${denied}GRANT USAGE ON SCHEMA cron TO nobody;\n/, 'a role with no rights on pg_cron may not unschedule');
my $hint = reply($nobody, 'SELECT lock_schedule_sweep()');
like($hint, qr/${denied}GRANT USAGE ON SCHEMA cron TO nobody; GRANT EXECUTE ON FUNCTION \Q$far_function\E TO nobody;\n/, '... nor schedule');
ask($watch, 'ALTER ROLE nobody RENAME TO "No "" body"');
like(reply($nobody, 'SELECT lock_unschedule_sweep()'), qr/TO "No "" body";\n/, '... under any name');
ask($watch, 'ALTER ROLE "No "" body" RENAME TO nobody');
ask($watch, $hint =~ s/.*Run there: (.*?;)\n.*/$1/sr);
my $hinted = ask($nobody, 'SELECT lock_schedule_sweep()');
is(ask($watch, "$job WHERE jobid = $hinted") =~ s/DO .*?'\|/|/r, "$hinted|* * * * *||other|nobody|t|atomic_lock sweep of other", '... until somebody runs what the hint says');
is(ask($nobody, 'SELECT lock_unschedule_sweep()'), 't', '... then it may do both');
ask($watch, "REVOKE EXECUTE ON FUNCTION $far_function FROM nobody; REVOKE USAGE ON SCHEMA cron FROM nobody; REVOKE SELECT ON cron.job FROM PUBLIC; REVOKE EXECUTE ON FUNCTION cron.unschedule(bigint) FROM PUBLIC");
like(reply($nobody, 'SELECT lock_unschedule_sweep()'), qr/${denied}GRANT USAGE ON SCHEMA cron TO nobody; GRANT EXECUTE ON FUNCTION cron.unschedule\(bigint\) TO nobody; GRANT SELECT ON TABLE cron.job TO nobody;\n/, '... of whatever is missing');
ask($watch, 'GRANT SELECT ON cron.job TO PUBLIC; GRANT EXECUTE ON FUNCTION cron.unschedule(bigint) TO PUBLIC');
like(reply($dba, 'SELECT lock_schedule_sweep()'), qr/${denied}GRANT EXECUTE ON FUNCTION \Q$far_function\E TO dba;\n/, 'a role that may not schedule in other databases');
is(ask($watch, "SELECT count(*) FROM cron.job; GRANT EXECUTE ON FUNCTION $far_function TO dba"), '3', '... does not');
my $far_own = ask($dba, 'SELECT lock_schedule_sweep()');
is(ask($watch, "$job WHERE jobid = $far_own"), qq{$far_own|* * * * *|$there|other|dba|t|atomic_lock sweep of other}, '... but one that may');
ask($watch, 'REVOKE CONNECT ON DATABASE postgres FROM PUBLIC');
like(reply($dba, 'SELECT lock_schedule_sweep()'), qr/^ERROR:  42501: .*database "postgres"\nDETAIL: .*\nHINT: +Run: GRANT CONNECT ON DATABASE postgres TO dba;/, 'a role that may not connect there');
ask($watch, 'GRANT CONNECT ON DATABASE postgres TO PUBLIC');
is(count_in_log($node, qr/captured/), 0, 'nothing of the other schema cron was called');

# They run at the next full minute; meanwhile, the rest.
is(expire($_, 'cron', 30), '30', 'leases that run out') for ($watch, $other);
expire_rows($_, 'cron-more', 2500) for ($watch, $other);
ask($_, q{SELECT lock_acquire('live', '1 hour', 'o')}) for ($watch, $other);

foreach my $case ([ $watch, $id ], [ $other, $far ])
{
	my ($psql, $its) = @$case;
	my $name = $psql == $watch ? 'here' : 'from another database';

	foreach my $bad ([ q{'every now and then'}, qr/invalid schedule/ ], [ q{''}, qr/invalid schedule/ ], [ 'NULL', qr/22004/ ], [ q{repeat('*', 300)}, qr/22023/ ])
	{
		like(reply($psql, "SELECT lock_schedule_sweep($bad->[0])"), qr/^ERROR:  (?!XX000).*$bad->[1]/, "$name: no schedule: $bad->[0]");
	}
	is(ask($watch, "$job WHERE jobid = $its") =~ s/\|DO .*//r, "$its|* * * * *", '... and nothing changes');
	like(reply($psql, q{SET default_transaction_read_only = on; SELECT lock_schedule_sweep()}), qr/^ERROR:  25006/, "$name: read-only");
	like(reply($psql, q{SELECT lock_unschedule_sweep()}), qr/^ERROR:  25006/, '... nor unscheduled');
	ask($psql, 'RESET default_transaction_read_only');
}

#
# The jobs have run.
#
ok(swept($_, 'cron'), 'expired rows are gone') or diag(ask($watch, 'SELECT * FROM cron.job_run_details')) for ($watch, $other);
foreach my $run ([ $id, $user, 'postgres' ], [ $own, 'dba', 'postgres' ], [ $far, $user, 'other' ], [ $far_own, 'dba', 'other' ])
{
	my ($its, $role, $database) = @$run;
	ok(soon($watch, "SELECT count(*) > 0 FROM cron.job_run_details WHERE jobid = $its AND status = 'succeeded' AND username = '$role' AND database = '$database'"), "... the job of $role for $database has succeeded")
	  or diag(ask($watch, 'SELECT * FROM cron.job_run_details'));
}
foreach my $psql ($watch, $other)
{
	is(ask($psql, q{SELECT string_agg(key, ' ') FROM app_lock}), 'live', '... what is live is there');
	is(ask($psql, q{SELECT swept, sweeps >= 2 FROM lock_stats WHERE database = current_database()}), '2530|t', '... it is counted, more than one batch');
	is(ask($psql, q{SELECT last_swept_at > pg_postmaster_start_time() FROM lock_sweeper_status() WHERE database = current_database()}), 't', '... and shown');
}

#
# Another schedule, and none
#
foreach my $case ([ $watch, $id, $own ], [ $other, $far, $far_own ])
{
	my ($psql, $its, $of_dba) = @$case;
	my $name = $psql == $watch ? 'here' : 'from another database';
	my $what = "$job WHERE jobid = $its";
	my $before = ask($watch, $what);
	my $others = ask($watch, qq{SELECT string_agg(j::text, ',' ORDER BY jobid) FROM cron.job j WHERE jobid <> $its});

	is(ask($psql, q{SELECT lock_schedule_sweep('*/5 * * * *')}), $its, "$name: another schedule, of the same job");
	is(ask($watch, $what), $before =~ s/\|\* \*/|*\/5 */r, '... which it has now');
	if ($psql == $watch)
	{
		is(ask($psql, qq{BEGIN; SELECT lock_schedule_sweep('1 * * * *'); ROLLBACK; $what}) =~ s/\|DO .*//r, "$its\n$its|*/5 * * * *", '... unless it is rolled back');
	}
	ask($watch, "UPDATE cron.job SET active = false WHERE jobid = $its");
	my $new = ask($psql, 'SELECT lock_schedule_sweep()');
	is(ask($watch, "$job WHERE jobid = $new"), $before =~ s/^\d+/$new/r, '... where somebody has made it inactive, there is one that is active');
	is(ask($watch, qq{SELECT string_agg(j::text, ',' ORDER BY jobid) FROM cron.job j WHERE jobid <> $new}), $others, '... in its place, and other jobs are as they were');
	is(ask($psql, 'SELECT lock_unschedule_sweep(); SELECT lock_unschedule_sweep()'), "t\nf", "$name: unscheduled, once");
	is(ask($watch, qq{SELECT string_agg(j::text, ',' ORDER BY jobid) FROM cron.job j}), $others, '... which leaves other jobs alone, also those of other roles');
	isnt(ask($psql, 'SELECT lock_schedule_sweep()'), $its, '... scheduled again, a new job');
	is(ask($psql, 'SELECT lock_unschedule_sweep()'), 't', '... and unscheduled');
}
is(ask($dba, q{SELECT lock_unschedule_sweep()}), 't', 'another role unschedules its own');
my $dba_there = $dba;
$dba = session($node, 'Dba');
ask($dba, 'SET SESSION AUTHORIZATION dba');
is(ask($dba, q{SELECT "odd ""'Schema".lock_unschedule_sweep()}), 't', '... here too');
is(ask($watch, 'SELECT count(*) FROM cron.job'), '0', 'no job is left');

#
# What a role has set is not for the worker in the other database.
#
ask($watch, q{CREATE ROLE grp; GRANT grp TO dba});
foreach my $setting ('role = grp', 'default_transaction_read_only = on', q{default_transaction_isolation = 'serializable'}, q{search_path = 'pg_temp'})
{
	ask($watch, "ALTER ROLE dba SET $setting");
	$far_own = ask($dba_there, 'SELECT lock_schedule_sweep()');
	is(ask($watch, "$job WHERE jobid = $far_own"), "$far_own|* * * * *|$there|other|dba|t|atomic_lock sweep of other", "ALTER ROLE SET $setting: scheduled");
	is(ask($dba_there, 'SELECT lock_unschedule_sweep()'), 't', '... unscheduled');
	ask($watch, 'ALTER ROLE dba RESET ALL');
}

# Who calls waits for the worker, which waits; the one does not outlive the other.
foreach my $what ('cancel', 'terminate')
{
	my $caller = session($node, 'Caller', 'other');
	my $worker = q{FROM pg_stat_activity WHERE backend_type = 'atomic_lock scheduler'};

	my $locker = session($node, 'Locker');
	ask($locker, 'BEGIN; LOCK cron.job IN ACCESS EXCLUSIVE MODE');
	start($caller, 'SELECT lock_schedule_sweep()');
	poll($watch, "SELECT count(*) = 1 $worker AND wait_event_type = 'Lock'");
	is(ask($watch, "SELECT datname, usename, query <> '' $worker"), "postgres|$user|t", 'a worker in the other database');
	ask($watch, "SELECT pg_${what}_backend(@{[ pid($caller) ]})");
	like(answer($caller), $what eq 'cancel' ? qr/57014/ : qr/57P01/, "$what: who called is gone");
	ok(soon($watch, "SELECT count(*) = 0 $worker"), '... so is the worker');
	ask($locker, 'COMMIT');
	is(ask($watch, 'SELECT count(*) FROM cron.job'), '0', '... and no job is made');
	end($caller, $locker);
}
end($dba_there);

#
# Names
#
my @long = ('d' x 50 . '_one', 'd' x 50 . '_two', 'e' x 42, 'e' x 43);
ask($watch, "CREATE DATABASE $_ TEMPLATE template0") for @long;
my (%job_of, %session_of);
foreach my $database (@long)
{
	$session_of{$database} = session($node, 'Long', $database);
	ask($session_of{$database}, 'CREATE EXTENSION atomic_lock');
	$job_of{$database} = ask($session_of{$database}, 'SELECT lock_schedule_sweep()');
}
is(ask($watch, q{SELECT string_agg(database, ' ' ORDER BY jobid), count(DISTINCT jobname), max(octet_length(jobname)) < 64 FROM cron.job}), join(' ', @long) . '|4|t', 'long names of databases: a job each');
is(ask($session_of{$_}, q{SELECT lock_schedule_sweep('*/7 * * * *')}), $job_of{$_}, '... which is found again') for @long;
is(ask($session_of{ $long[0] }, 'SELECT lock_unschedule_sweep(); SELECT lock_unschedule_sweep()'), "t\nf", '... ends');
is(ask($watch, q{SELECT string_agg(database, ' ' ORDER BY jobid) FROM cron.job}), join(' ', @long[1 .. 3]), '... alone');
is(ask($session_of{$_}, 'SELECT lock_unschedule_sweep()'), 't', '... and the others') for @long[1 .. 3];
my ($old, $renamed) = ($long[1], $long[1] =~ s/two$/six/r);
$job_of{$old} = ask($session_of{$old}, 'SELECT lock_schedule_sweep()');
end(values %session_of);
ask($watch, "ALTER DATABASE $old RENAME TO $renamed");
my $session = session($node, 'Long', $renamed);
my $new = ask($session, 'SELECT lock_schedule_sweep()');
is(ask($watch, "SELECT database FROM cron.job WHERE jobid = $new"), $renamed, 'a database that is renamed, and scheduled again');
is(ask($session, 'SELECT lock_unschedule_sweep()'), 't', '... unscheduled');
is(ask($watch, 'SELECT count(*) FROM cron.job'), '0', '... no job is left');
end($session);

# A schema that is somebody's is not one whose functions a superuser has run.
ask($watch, q{CREATE ROLE boss LOGIN; CREATE DATABASE bosses OWNER boss});
my $boss = session($node, 'Boss', 'bosses');
ask($boss, 'CREATE EXTENSION atomic_lock');
like(reply($boss, 'SELECT lock_schedule_sweep()'), qr/^ERROR:  42501: /, 'a schema that belongs to no superuser: not for a superuser');
is(ask($watch, 'SELECT count(*) FROM cron.job'), '0', '... no job');
ask($watch, 'GRANT USAGE ON SCHEMA cron TO boss; GRANT EXECUTE ON FUNCTION cron.schedule_in_database TO boss');
ask($boss, q{SELECT lock_grant_access('boss', 'admin'); SET SESSION AUTHORIZATION boss});
is(ask($boss, 'SELECT lock_schedule_sweep() > 0; SELECT lock_unschedule_sweep()'), "t\nt", '... but for its owner');
end($boss);
ask($watch, 'CREATE DATABASE another OWNER boss');
my $another = session($node, 'Another', 'another');
ask($another, 'CREATE SCHEMA ours; CREATE EXTENSION atomic_lock SCHEMA ours');
like(reply($another, 'SELECT ours.lock_schedule_sweep()'), qr/^ERROR:  42501: .*\nDETAIL: +Database "another" belongs to role "boss"/, 'a database that belongs to no superuser: not for a superuser');
end($another);
ask($watch, 'CREATE DATABASE half; GRANT CREATE ON DATABASE half TO boss');
my $half = session($node, 'Half', 'half');
ask($half, 'CREATE SCHEMA ours; GRANT CREATE, USAGE ON SCHEMA ours TO boss WITH GRANT OPTION; SET ROLE boss; CREATE EXTENSION atomic_lock SCHEMA ours; RESET ROLE');
like(reply($half, 'SELECT ours.lock_schedule_sweep()'), qr/^ERROR:  42501: .*\nDETAIL: +Extension "atomic_lock" belongs to role "boss"/, '... nor where the extension does not');
end($half);

SKIP:
{
	skip 'needs UTF-8', 4 if ask($watch, 'SHOW server_encoding') ne 'UTF8';
	ask($watch, q{CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'});
	my $latin = session($node, 'Latin', 'latin');
	ask($latin, 'SET client_encoding = UTF8');
	ask($latin, q{CREATE SCHEMA "b\xc3\xa4se"; CREATE EXTENSION atomic_lock SCHEMA "b\xc3\xa4se"; SET search_path = "b\xc3\xa4se"} =~ s/\\x(..)/chr(hex $1)/ger);
	my $its = ask($latin, 'SELECT lock_schedule_sweep()');
	is(ask($watch, qq{SELECT position(U&' "b\\00E4se".lock_sweep(' in command) > 0, database FROM cron.job WHERE jobid = $its}), 't|latin', 'another encoding: a command in that of pg_cron');
	like(reply($latin, q{SELECT lock_schedule_sweep('b\xc3\xa4h')} =~ s/\\x(..)/chr(hex $1)/ger), qr/^ERROR:  .*invalid schedule: b(?:\xc3\xa4|\x{e4})h/, '... and the error in ours');
	is(ask($latin, 'SELECT lock_unschedule_sweep()'), 't', '... unscheduled');
	is(ask($watch, 'SELECT count(*) FROM cron.job'), '0', '... none is left');
	end($latin);
}

# Seconds, where pg_cron knows them
if (ask($watch, q{SELECT string_to_array(regexp_replace(extversion, '-.*', ''), '.')::int[] >= '{1,5}' FROM pg_extension WHERE extname = 'pg_cron'}) eq 't')
{
	foreach my $psql ($watch, $other)
	{
		ask($psql, q{SELECT lock_schedule_sweep('1 seconds')});
		expire($psql, 'second', 5);
		ok(swept($psql, 'second'), 'every second');
		is(ask($psql, 'SELECT lock_unschedule_sweep()'), 't', '... until it is unscheduled');
	}
}

# It is elsewhere now, and what is left here is not in use; and dropped.
end($watch, $dba, $nobody, $other);
$node->append_conf('postgresql.conf', q{cron.database_name = 'other'});
$node->restart;
($watch, $other) = map { session($node, $_, lc $_ eq 'other' ? 'other' : 'postgres') } ('Watch', 'Other');
ask($watch, q{SET search_path = "odd ""'Schema"});
like(reply($watch, 'SELECT lock_schedule_sweep()'), qr/^ERROR:  55000: +extension "pg_cron" is not installed in database "other"/, 'cron.database_name has changed');
ask($other, 'DROP SCHEMA cron CASCADE; CREATE EXTENSION pg_cron');
$id = ask($watch, 'SELECT lock_schedule_sweep()');
is(ask($other, $job), "$id|* * * * *|$here|postgres|$user|t|atomic_lock sweep of postgres", '... scheduled there');
is(ask($watch, 'SELECT count(*) FROM cron.job'), '0', '... not here');
is(ask($watch, 'SELECT lock_unschedule_sweep()'), 't', '... and unscheduled');
ask($other, 'DROP EXTENSION pg_cron');
like(reply($_, 'SELECT lock_schedule_sweep()'), qr/^ERROR:  55000: .*pg_cron/, 'pg_cron is dropped') for ($watch, $other);
end($watch, $other);
$node->stop;
log_is_clean($node, also => qr/captured/);

done_testing();
