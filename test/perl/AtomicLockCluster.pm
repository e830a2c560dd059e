# Several servers that share the keys, and a proxy before them.

package AtomicLockCluster;

use strict;
use warnings FATAL => 'all';
use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(need_plproxy shards proxy connect_string facade printed printed_file);

# Skips the test if PL/Proxy is not installed
sub need_plproxy
{
	my $share = qx(pg_config --sharedir);

	chomp $share;
	plan skip_all => 'needs PL/Proxy, the package postgresql-N-plproxy' unless -e "$share/extension/plproxy.control";
	return;
}

# $count servers, each with one partition of the keys; "conf" adds settings
sub shards
{
	my ($count, %with) = @_;
	my @shards;

	for my $partition (0 .. $count - 1)
	{
		my $node = PostgreSQL::Test::Cluster->new("shard$partition");

		$node->init(allows_streaming => 1);
		$node->append_conf('postgresql.conf', qq{
shared_preload_libraries = 'atomic_lock'
log_statement = none
} . ($with{conf} // ''));
		$node->start;
		$node->safe_psql('postgres', "ALTER DATABASE postgres SET atomic_lock.partitions = $count; ALTER DATABASE postgres SET atomic_lock.partition = $partition");
		$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');
		push @shards, $node;
	}
	return @shards;
}

sub connect_string
{
	my ($node) = @_;

	return sprintf 'host=%s port=%s dbname=postgres', $node->host, $node->port;
}

# A server with PL/Proxy, whose foreign server "locks" has the map of the shards
sub proxy
{
	my ($name, @shards) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);
	my $map = join ', ', map { "p$_ '" . connect_string($shards[$_]) . "'" } 0 .. $#shards;

	$node->init;
	$node->append_conf('postgresql.conf', "log_statement = none\nclient_connection_check_interval = '1s'");
	$node->start;
	$node->safe_psql(
		'postgres', qq{
			CREATE EXTENSION plproxy;
			CREATE SERVER locks FOREIGN DATA WRAPPER plproxy OPTIONS ($map);
			CREATE USER MAPPING FOR PUBLIC SERVER locks;
		});
	return $node;
}

# The file with the SQL that facade() has installed
sub printed_file
{
	return "$PostgreSQL::Test::Utils::tmp_check/facade_$$.sql";
}

# Output and errors of the generator
sub printed
{
	my ($node, @options) = @_;
	my $share = qx(pg_config --sharedir);
	my $said;

	chomp $share;
	IPC::Run::run(
		[
			'psql', '-X', '-A', '-t', '-d', connect_string($node), '-f', "$share/extension/atomic_lock/plproxy.sql", @options
		],
		'>&', \$said);
	return $said;
}

# Installs the facade of a shard on these nodes
sub facade
{
	my ($shard, @nodes) = @_;
	my $sql = printed($shard);
	my $file = printed_file();

	unlink $file;
	append_to_file($file, $sql);
	system_or_bail('psql', '-X', '-q', '-d', connect_string($_), '-f', $file) for @nodes;
	return;
}

1;
