# Helpers of several TAP tests, in addition to PostgreSQL::Test.

package AtomicLockTest;

use strict;
use warnings FATAL => 'all';
use Exporter 'import';
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT = qw(ask sqlstate await_restart log_is_clean copy_installation);

# An answer of a background psql, without its line end, which some versions of
# PostgreSQL::Test leave; dies on an error.
sub ask
{
	my ($psql, $sql) = @_;
	my $answer = $psql->query_safe($sql);

	chomp $answer;
	return $answer;
}

# The SQLSTATE of the error that SQL raises in a session of its own; without an error,
# "no error: " and the messages of psql.
sub sqlstate
{
	my ($node, $sql, $database, @options) = @_;
	my $stderr;

	$node->psql($database // 'postgres', $sql,
		stderr => \$stderr,
		on_error_stop => 1,
		extra_params => [ '-v', 'VERBOSITY=verbose', @options ]);
	return $stderr =~ /^(?:psql:\S+ )?ERROR:  (\w{5}):/m ? $1 : "no error: $stderr";
}

# Waits until a server that crashed accepts connections again. poll_query_until() writes its query
# to a psql that has perhaps ended already, and dies of the broken pipe.
sub await_restart
{
	my ($node) = @_;

	foreach (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return if run_log([ 'pg_isready', '--quiet', '--dbname', $node->connstr('postgres') ]);
		usleep(100_000);
	}
	die 'no restart';
}

# Checks that the log of a server has no line that no test may cause: crashes, failed
# assertions, internal errors.  "also" is a pattern of other lines that it must not have;
# "killed" says that the test itself has killed processes.
sub log_is_clean
{
	my ($node, %with) = @_;
	my $signal = $with{killed} ? qr/terminated by signal (?!9\b)/ : qr/terminated by signal/;
	my $also = $with{also} || qr/(?!)/;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return unlike(slurp_file($node->logfile), qr/PANIC|TRAP|XX000|$signal|$also/, 'nothing unexpected in the log of ' . $node->name);
}

# A copy of the PostgreSQL under test, whose scripts and library may be
# changed: its bindir, sharedir and pkglibdir; nothing if we may not copy
# that installation.
sub copy_installation
{
	my ($name) = @_;
	my ($bin, $share, $lib) = map { my $dir = qx(pg_config --$_); chomp $dir; $dir } qw(bindir sharedir pkglibdir);
	my $root = $bin;
	my $copy = "$PostgreSQL::Test::Utils::tmp_check/${name}_pg";

	$root =~ s{/[^/]*$}{} until $root eq '' || grep({ index($_, "$root/") == 0 } $share, $lib) == 2;
	return if $root eq '' || $root eq '/usr' || !-w "$share/extension";
	system_or_bail('cp', '-a', $root, $copy);
	return map { $copy . substr($_, length $root) } ($bin, $share, $lib);
}

1;
