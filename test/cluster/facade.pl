# The facade for PL/Proxy: what one server answers, two behind a proxy answer, too.
#
# Properties: the proxy finds the shard of a key as lock_partition() does; a proxy whose
# map is wrong is refused with LK010, and grants nothing.
#
# Turns red when: a shard grants a key of another one.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use AtomicLockCluster;
use AtomicLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_plproxy();

my @shards = shards(2);
my $proxy = proxy('proxy', @shards);
my $wrong = proxy('wrong', reverse @shards);

for my $node ($proxy, $wrong)
{
	$node->safe_psql(
		'postgres', q{
			CREATE FUNCTION partition(key text) RETURNS integer IMMUTABLE LANGUAGE sql AS $$
				SELECT ((hashtextextended(key COLLATE "C", 8816678312871386365) & 2147483647) + 367372515 & 2147483647)::integer
			$$;
			CREATE FUNCTION status(key text) RETURNS text LANGUAGE plproxy AS $$
				CLUSTER 'locks'; RUN ON partition(key);
				SELECT status FROM public.lock_try_acquire(key, owner => 'me');
			$$;
		});
}
is($proxy->safe_psql('postgres', q{SELECT count(status('key:' || n)) FROM generate_series(1, 200) n}), 200, 'keys find their shards');
is(sqlstate($wrong, q{SELECT status('key:1')}), 'LK010', 'a proxy with another map is refused');
is($_->safe_psql('postgres', 'SELECT count(*) > 50 FROM lock_held(\'me\')'), 't', 'both have keys') for @shards;
log_is_clean($_) for @shards;

done_testing();
