# Three servers under Patroni, with clients that continue when a primary is lost.
#
# Properties: with the settings of doc/failover.md, over a switchover, a killed server, a
# lost host, and a synchronous standby and a Patroni that are stopped, no acknowledged
# change is lost, whatever synchronous_commit the client has; tokens rise; guarded
# counters are exact; a prepared transaction keeps its key until it is committed at the new primary,
# and its owner holds it after that; the sweep continues there; without the password of Patroni, its
# REST API changes nothing, but patronictl does, with the same file; an orphaned primary
# acknowledges no grant, answers as doc/failover.md says, and comes back without the locks that
# it granted.  test/history/patroni.py runs the servers; the checker of the histories judges.
# No process is left.
#
# Turns red when: a grant is acknowledged that no standby has; a promoted standby
# issues tokens again or does not sweep; settings of doc/failover.md for etcd, Patroni, HAProxy
# or libpq do not do what it says.  test/t/clients/failover.pl has its strings for other clients, and the
# errors that its program does not repeat.

use strict;
use warnings FATAL => 'all';
use Cwd qw(abs_path);
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;

foreach my $program (qw(/usr/bin/patroni /usr/bin/etcd /usr/sbin/haproxy))
{
	plan skip_all => "needs $program" unless -x $program;
}
plan skip_all => 'needs psycopg2' unless run_log([ '/usr/bin/python3', '-c', 'import psycopg2, yaml' ]);

my $scratch = abs_path(PostgreSQL::Test::Utils::tempdir_short());
my $kept = $PostgreSQL::Test::Utils::log_path;
chomp(my $bin = `pg_config --bindir`);

my ($out, $err) = ('', '');
IPC::Run::run(
	[   # history.py ends all servers also if this test is killed.
		'setpriv', '--pdeathsig', 'TERM', '/usr/bin/python3', '-B', 'test/history/history.py', '--runs', 'patroni', '--bin', $bin,
		'--directory', $scratch, '--keep', $kept, '--tally', "$scratch/tally",
		$ENV{SEED} ? ('--seed', $ENV{SEED}) : () ],
	'>', \$out, '2>', \$err);
note($out);
like($out, qr/\Aok patroni/, 'no acknowledged change is lost') or diag("$out$err");
system("cp $scratch/*.log $kept") unless $out =~ /\Aok/;

my @left;
for (1 .. $PostgreSQL::Test::Utils::timeout_default)
{
	@left = grep { index(readlink("$_/cwd") // '', $scratch) == 0 } glob '/proc/[0-9]*';
	last unless @left;
	sleep 1;
}
is("@left", '', '... and no process is left');

done_testing();
