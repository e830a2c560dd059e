# Many clients at once: scripts for pgbench, and pgbench in the background.

package AtomicLockLoad;

use strict;
use warnings FATAL => 'all';
use Exporter 'import';
use IPC::Run;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(pgbench_script start_pgbench);

# A file with a script for pgbench, for -f
sub pgbench_script
{
	my ($node, $name, $sql) = @_;
	my $file = $node->basedir . "/$name.pgbench";

	append_to_file($file, $sql);
	return $file;
}

# Start pgbench, whose output and errors go to $$output.
sub start_pgbench
{
	my ($node, $output, @args) = @_;

	$$output = '';
	return IPC::Run::start([ 'pgbench', '-n', @args, $node->connstr('postgres') ], '<', \undef, '>', $output, '2>&1');
}

1;
