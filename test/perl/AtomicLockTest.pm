# What several TAP tests need beside PostgreSQL::Test.

package AtomicLockTest;

use strict;
use warnings FATAL => 'all';
use Exporter 'import';

our @EXPORT = qw(ask);

# An answer of a background psql, without its line end, which some versions of
# PostgreSQL::Test leave; dies on an error.
sub ask
{
	my ($psql, $sql) = @_;
	my $answer = $psql->query_safe($sql);

	chomp $answer;
	return $answer;
}

1;
