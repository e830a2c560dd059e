# Many clients at once: scripts for pgbench, pgbench in the background, and rounds of load.

package AtomicLockLoad;

use strict;
use warnings FATAL => 'all';
use Exporter 'import';
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

our @EXPORT = qw(pgbench_script start_pgbench runs_well play_rounds);

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

# Run pgbench; returns whether it ends without an error.
sub runs_well
{
	my ($node, @args) = @_;
	my $run = start_pgbench($node, \my $output, @args);

	return 1 if $run->finish && $output !~ /error:|abort/i;
	diag($output);
	return 0;
}

# Play rounds until $is_enough returns true, and for AL_HISTORY_SECONDS at least.
sub play_rounds
{
	my ($round, $is_enough) = @_;
	my $end = time + ($ENV{AL_HISTORY_SECONDS} || 0);

	for (;;)
	{
		$round->();
		return if time >= $end && $is_enough->();
		die 'the rounds never do enough' if time > $end + 10 * $PostgreSQL::Test::Utils::timeout_default;
	}
}

1;
