# The SQL tests again, on a server that has atomic_lock preloaded.
#
# make installcheck runs test/sql without preload, because everything has to work
# so.  Before PostgreSQL 17 there is then no shared memory, and waits poll.  Here
# there is, and all must give the same answers.
#
# Turns red when: an answer depends on whether the library is preloaded;
# deadlocks are not counted; lock_activity shows nobody who waits.

use strict;
use warnings FATAL => 'all';
use File::Basename;
use File::Copy;
use FindBin;
use lib "$FindBin::RealBin/../../perl";
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../../..";
my $node = PostgreSQL::Test::Cluster->new('loaded');
$node->init;
$node->append_conf('postgresql.conf', slurp_file("$top/test/atomic_lock.conf"));
# Rows stay until a test sweeps them.
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'atomic_lock'\natomic_lock.sweep_databases = 'none'\nlog_statement = none\n");
$node->start;

# Before the first use of the library settings are judged in another way: they
# are in settings.sql, for servers that have not loaded it.
my @tests = grep { $_ ne 'settings' } map { basename($_, '.sql') } sort glob("$top/test/sql/*.sql");

my $dir = PostgreSQL::Test::Utils::tempdir;
mkdir "$dir/expected" or die $!;
foreach my $test (@tests)
{
	copy("$top/expected/$test.out", "$dir/expected/") or die "expected/$test.out: $!";
}

my $bindir = $node->config_data('--bindir');
chdir $dir or die $!;
my ($out, $err) = ('', '');
my $ok = IPC::Run::run(
	[
		$ENV{PG_REGRESS}, "--bindir=$bindir", "--inputdir=$top/test", '--outputdir=.', '--host', $node->host, '--port', $node->port,
		'--dbname=contrib_regression', '--load-extension=atomic_lock', '--encoding=UTF8', @tests
	], '>', \$out, '2>', \$err);
chdir $top or die $!;
is(() = $out =~ /^(?:test \S+ +\.\.\. ok|ok )/mg, scalar @tests, 'all of the SQL tests pass');
ok($ok, 'pg_regress is content') or diag($out, $err, -e "$dir/regression.diffs" ? slurp_file("$dir/regression.diffs") : '');

#
# What it takes two to see: those who wait, and deadlocks
#
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');
my ($one, $two, $watch) = map { session($node, $_) } qw(one two watch);
my $counted = q{SELECT deadlocks, waits, refusals, timeouts, grants FROM lock_stats WHERE database = 'postgres'};

ask($one, q{SELECT lock_acquire('quiet', '1 hour', 'one')});
ask($one, q{SELECT lock_acquire('k', '1 hour', o, 'shared') FROM unnest(ARRAY['one', 'two']) o});
ask($watch, 'SELECT lock_stats_reset()');
queue_up($watch, $one, q{SELECT (lock_convert('k', 'one', wait => '3 min')).status});
is( ask($watch, q{SELECT string_agg(concat_ws(' ', key, waiters, longest_wait >= '0'), ', ') FROM lock_activity}),
	'k 1 t, k 1 t, quiet 0', 'lock_activity: what is waited for comes first');
poll($watch, q{SELECT bool_and(longest_wait > '50 ms') FROM lock_activity WHERE key = 'k'});
pass('... for how long');
like(answer(do { start($two, q{SELECT lock_convert('k', 'two', wait => '3 min')}); $two }), qr/40P01/, 'two that want to be alone: one is refused');
is(ask($watch, $counted), '1|0|0|0|0', '... which is counted');
ask($two, q{SELECT lock_release('k', 'two')});
is(answer($one), 'acquired', '... the other has waited');
is(ask($watch, $counted), '1|1|0|0|0', '... which is counted, too');

end($one, $two, $watch);
$node->stop;
done_testing();
