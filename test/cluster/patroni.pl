# Three servers under Patroni, and clients that go on while a primary is lost.
#
# Properties: with the settings of doc/ha.md, over a switchover, a server that is killed, a
# host that is lost, a synchronous standby and a Patroni that stand still, nothing that was
# acknowledged is gone, whatever synchronous_commit the client has; tokens rise; guarded
# counters are exact; what was prepared has its key until it is committed at the new primary,
# and then; the sweep goes on there; who has no password of Patroni changes nothing by its
# REST API, and patronictl does, by the same file; the primary that is orphaned
# acknowledges no grant, answers what doc/ha.md says it does, and has come back without what
# it granted.  What runs is test/history/patroni.py; the checker of the histories judges.
# No process is left.
#
# Turns red when: a grant is acknowledged that no standby has; a standby that was promoted
# gives out tokens again or does not sweep; settings of doc/ha.md for etcd, Patroni, HAProxy
# or libpq do not do what it says.  Its strings for other clients, and what its program does
# not repeat, are in test/t/clients/failover.pl.

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
	[   # It ends all servers also when we are killed.
		'setpriv', '--pdeathsig', 'TERM', '/usr/bin/python3', '-B', 'test/history/history.py', '--runs', 'patroni', '--bin', $bin,
		'--directory', $scratch, '--keep', $kept, '--tally', "$scratch/tally",
		$ENV{SEED} ? ('--seed', $ENV{SEED}) : () ],
	'>', \$out, '2>', \$err);
note($out);
like($out, qr/\Aok patroni/, 'nothing that was acknowledged is gone') or diag("$out$err");
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
