# The examples in the documentation do what they say.
#
# Every ```sql block of README.md, doc/reference.md and doc/guards.md is run, in order, on one
# server.  In a block, "-- => " is a line of output that the statements above
# it must give (unaligned, as psql -At prints it), and "-- ERROR: " an error
# that must occur; no other output is looked at in blocks without "-- => ",
# and no other error is allowed in any.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'atomic_lock'");
$node->start;

foreach my $file ('README.md', 'doc/reference.md', 'doc/guards.md')
{
	my $text = slurp_file($file);
	my $dbname = lc($file) =~ s/\W/_/gr;
	my $count = 0;

	$node->safe_psql('postgres', "CREATE DATABASE $dbname");
	$node->safe_psql($dbname, 'CREATE EXTENSION atomic_lock')
	  unless $file eq 'README.md';

	while ($text =~ /^([ ]*)```sql\n(.*?)^\1```$/gms)
	{
		my $block = $2;
		my $line = 1 + (substr($text, 0, $-[2]) =~ tr/\n//);
		my @expected = $block =~ /^\s*-- => (.*)$/gm;
		my @errors = $block =~ /^\s*-- (ERROR: .*)$/gm;
		my ($stdout, $stderr) = ('', '');

		$node->psql(
			$dbname, $block,
			stdout => \$stdout,
			stderr => \$stderr,
			on_error_stop => 0);
		is(join("\n", $stderr =~ /(ERROR: .*)$/gm),
			join("\n", @errors), "errors of the example at $file:$line");
		is(join("\n", grep { $_ ne '' } split(/\n/, $stdout)),
			join("\n", @expected), "output of the example at $file:$line")
		  if @expected;
		$count++;
	}
	cmp_ok($count, '>', 5, "$file has examples");
}

$node->stop;
done_testing();
