# Outputs that show owners, and the settings that prevent it.
#
# Properties: those of "Owners in logs" in doc/settings.md.  Owners
# that are parameters are logged by log_statement and log_min_duration_statement,
# also for named prepared statements, unless log_parameter_max_length is 0;
# with an error only if log_parameter_max_length_on_error is set; and never with an
# error of atomic_lock.  An owner in the text of a statement is logged with PostgreSQL's
# own errors, unless the role's settings prevent it.  pg_stat_activity shows the
# text, pg_stat_statements the text of SET.
#
# Turns red when: an error of atomic_lock shows its statement or its parameters; a later
# PostgreSQL logs more, or less.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('owners_in_logs');
$node->init;
# PostgreSQL::Test logs all statements.
$node->append_conf('postgresql.conf', q{
shared_preload_libraries = 'atomic_lock, pg_stat_statements'
log_statement = none
});
$node->start;
$node->safe_psql('postgres', q{
CREATE EXTENSION atomic_lock;
CREATE EXTENSION pg_stat_statements;
CREATE ROLE order_desk LOGIN;
SELECT lock_grant_access('order_desk', 'user');
SELECT lock_acquire('held', owner => 'other', ttl => '1 hour');
});

my $number = 0;
my $error = q{SELECT lock_try_release('held', %s), 1 / (random() < 0)::int;};
my $release = q{SELECT lock_release('held', %s);};

# Does the log show the owner that a
# statement contains?
sub logged
{
	my ($sql, $mode) = @_;
	my $owner = 'tell-nobody-' . ++$number;
	my $from = -s $node->logfile;

	if ($mode eq 'text')
	{
		$node->psql('postgres', sprintf($sql, "'$owner'"), extra_params => [ '-U', 'order_desk' ], on_error_stop => 0);
	}
	else
	{
		my $script = "$PostgreSQL::Test::Utils::tmp_check/owner_$number.sql";

		append_to_file($script, sprintf($sql, ':owner'));
		$node->run_log([ 'pgbench', '-n', '-t', '1', '-M', $mode, '-D', "owner=$owner", '-f', $script,
				'-h', $node->host, '-p', $node->port, '-U', 'order_desk', 'postgres' ]);
	}
	my $log = substr(slurp_file($node->logfile), $from);
	return index($log, $owner) >= 0 ? 'shown' : 'hidden';
}

# The settings that a superuser makes for the role
sub order_desk
{
	$node->safe_psql('postgres', join('', 'ALTER ROLE order_desk RESET ALL;', map { "ALTER ROLE order_desk SET $_;" } @_));
}

is(logged($release, 'text'), 'hidden', 'an error of atomic_lock does not show the text');
order_desk('log_parameter_max_length_on_error = -1');
is(logged($release, 'extended'), 'hidden', '... nor parameters');
order_desk();

# The context of a message of PL/pgSQL has the statement, with the owner.
order_desk('log_min_messages = debug1');
is(logged(q{DO $do$BEGIN PERFORM lock_acquire('up', owner => %1$s, mode => 'shared'); PERFORM lock_convert('up', owner => %1$s); END$do$;}, 'text'), 'hidden', 'a debug message does not show the statement around it');
like(slurp_file($node->logfile), qr/DEBUG:.*"up"/, '... and was there');
order_desk();
$node->safe_psql('postgres', 'SELECT pg_stat_statements_reset()');

is(logged($error, 'text'), 'shown', 'an error of PostgreSQL shows the text');
is(logged($error, 'extended'), 'hidden', '... but not parameters');
order_desk('log_parameter_max_length_on_error = -1');
is(logged($error, 'extended'), 'shown', '... unless log_parameter_max_length_on_error is set');

foreach my $mode ('extended', 'prepared')
{
	foreach my $setting (q{log_statement = 'all'}, 'log_min_duration_statement = 0')
	{
		order_desk($setting);
		is(logged($release =~ s/lock_release/lock_try_release/r, $mode), 'shown', "$setting shows parameters, $mode");
		order_desk($setting, 'log_parameter_max_length = 0');
		is(logged($release =~ s/lock_release/lock_try_release/r, $mode), 'hidden',
			"... not with log_parameter_max_length = 0, $mode");
	}
}

# auto_explain, with settings of its own
my @explain = (q{session_preload_libraries = 'auto_explain'}, 'auto_explain.log_min_duration = 0');
my $explained = $release =~ s/lock_release/lock_try_release/r;
order_desk(@explain);
is(logged($explained, 'text'), 'shown', 'auto_explain shows the text');
is(logged($explained, 'extended'), $node->pg_version < 16 ? 'hidden' : 'shown', '... and since PostgreSQL 16 parameters');
order_desk(@explain, 'auto_explain.log_parameter_max_length = 0') if $node->pg_version >= 16;
is(logged($explained, 'extended'), 'hidden', '... unless auto_explain.log_parameter_max_length is 0');

# The document's settings for drivers that send no parameters, on a
# server that logs everything
my ($advice) = slurp_file('doc/settings.md') =~ /^```\n((?:ALTER ROLE order_desk SET .*\n)+)```$/m;
ok($advice, 'the document has settings for a role');
order_desk();
$node->append_conf('postgresql.conf', "log_statement = all\nlog_min_duration_statement = 0\n");
$node->reload;
is(logged($error, 'text'), 'shown', 'a server that logs statements shows the text');
$node->safe_psql('postgres', $advice);
is(logged($error, 'text'), 'hidden', '... but not of a role with these settings');
is(logged(q{SELECT set_config('atomic_lock.owner', %s, false);}, 'text'), 'hidden', '... nor its statement that sets the owner');

# Views that show statements
my $desk = $node->background_psql('postgres', extra_params => [ '-U', 'order_desk' ]);
my $last = q{SELECT query ~ 'tell-nobody' FROM pg_stat_activity WHERE usename = 'order_desk' AND backend_type = 'client backend'};
ask($desk, q{SET atomic_lock.owner = 'tell-nobody'});
is($node->safe_psql('postgres', $last), 't', 'pg_stat_activity shows the last text');
ask($desk, q{SELECT lock_try_release('held')});
is($node->safe_psql('postgres', $last), 'f', '... and no former text');
ask($desk, q{SELECT set_config('atomic_lock.owner', 'tell-nobody', false)});
ask($desk, q{SELECT lock_try_release('held', 'tell-nobody')});
$desk->quit;
is($node->safe_psql('postgres', q{SELECT string_agg(query, ';') FROM pg_stat_statements WHERE query ~ 'tell-nobody'}),
	$node->pg_version < 18 ? q{SET atomic_lock.owner = 'tell-nobody'} : '', 'pg_stat_statements keeps the text of SET only');

log_is_clean($node);
$node->stop;
done_testing();
