# What several TAP tests need beside PostgreSQL::Test.

package AtomicLockTest;

use strict;
use warnings FATAL => 'all';
use Exporter 'import';
use PostgreSQL::Test::Utils;

our @EXPORT = qw(ask copy_installation);

# An answer of a background psql, without its line end, which some versions of
# PostgreSQL::Test leave; dies on an error.
sub ask
{
	my ($psql, $sql) = @_;
	my $answer = $psql->query_safe($sql);

	chomp $answer;
	return $answer;
}

# A copy of the PostgreSQL that is tested, whose scripts and library may be
# changed: its bindir, sharedir and pkglibdir; nothing where that is not ours to
# copy.
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
