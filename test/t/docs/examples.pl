# The examples in the documentation do what they say.
#
# Properties: the ```sql blocks of a document, typed into one session from top to
# bottom, give the output and raise the errors that are shown below them.  A document that
# ends sessions by pg_terminate_backend says which role that needs.
#
# Every document with such blocks has a database of its own.  A block that begins with
# "-- On another connection" is typed into a second session.  In a block, "-- => "
# is a line of output of the statements directly above it (unaligned, as
# psql -At prints it), and "-- ERROR: " an error that they raise.  No other error
# is allowed.  Output is compared only in blocks that show output.
#
# Turns red when: an example needs a state that the session does not have at that place,
# such as an owner that was set for a transaction that has ended; an answer or a
# message changes.

use strict;
use warnings FATAL => 'all';
use AtomicLockClock;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
# The background sweep must not come before that of an example.
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'atomic_lock'\natomic_lock.sweep_interval = 0\n");
# The clock runs at a twentieth of the pace: leases and offers of seconds last for minutes.
my $clock = make_clock() or plan skip_all => 'needs a C compiler';
start_with_clock($node, $clock);
pace_clock($clock, 0.05);

my $count = 0;

foreach my $file ('README.md', glob('doc/*.md'))
{
	my $text = slurp_file($file);
	my $dbname = lc($file) =~ s/\W/_/gr;
	my (@steps, %psql);

	while ($text =~ /^([ ]*)```sql\n(.*?)^\1```$/gms)
	{
		my $block = $2;
		my $line = 1 + (substr($text, 0, $-[2]) =~ tr/\n//);
		my $shows = $block =~ /^\s*-- => /m;
		my $who = $block =~ /^\s*-- On another connection$/m ? 'other' : 'main';

		# A step: statements, and below them their output and errors
		while ($block =~ /\G((?:(?!\s*-- (?:=> |ERROR: )).*\n)+)((?:\s*-- (?:=> |ERROR: ).*\n)*)/g)
		{
			my ($sql, $given) = ($1, $2);

			push @steps,
			  {
				who => $who,
				sql => $sql,
				at => "$file:$line",
				output => $shows ? [ $given =~ /^\s*-- => (.*)$/mg ] : undef,
				errors => [ $given =~ /^\s*-- (ERROR: .*)$/mg ]
			  };
			$line += ($sql . $given) =~ tr/\n//;
		}
	}
	next unless @steps;
	$count++;

	$node->safe_psql('postgres', "CREATE DATABASE $dbname");
	$node->safe_psql($dbname, 'CREATE EXTENSION atomic_lock') unless $file eq 'README.md';
	foreach my $step (@steps)
	{
		my $psql = $psql{ $step->{who} } //= $node->background_psql($dbname, on_error_stop => 0);

		start($psql, $step->{sql});
		my ($output, $errors) = streams($psql);
		is_deeply([ $errors =~ /(ERROR: .*)$/mg ], $step->{errors}, "errors of the example at $step->{at}");
		is_deeply([ grep { $_ ne '' } split(/\n/, $output) ], $step->{output}, "output of the example at $step->{at}")
		  if $step->{output};
	}
	is(reply($psql{main}, q{SELECT 'lasts'}), 'lasts', "the session of $file lasts to the end");
	end(values %psql);
}
cmp_ok($count, '>=', 3, 'documents have examples');

$node->stop;
# A document that tells a DBA to end a session names the role that this needs.
foreach my $file ('README.md', glob('doc/*.md doc/*/*.md doc/*/*.yml'))
{
	my $text = slurp_file($file);

	like($text, qr/pg_signal_backend/, "$file says which role pg_terminate_backend needs") if $text =~ /pg_terminate_backend/;
}

done_testing();
