# Laravel's locks, by its own classes: its database store on the view of
# sql/compat/laravel.sql, and the store of doc/examples/laravel.
#
# Properties: get, block, release, forceRelease, restoreLock, isOwnedByCurrentProcess,
# and the features that Laravel builds on them, answer as Laravel documents them, with a role that has
# rights on the view alone, and with the functions.  The store follows its configuration,
# and flushLocks ends only the locks of that store.  Eight processes and two callers of
# the functions lose no update of a counter.  A refusal in a transaction aborts the transaction on the
# view, but not with the functions.  The script can be run again, and says what is
# missing.
#
# Turns red when: Laravel's statements have another outcome on the view; exclusion
# between the view, the class and the functions fails; an error of the class is lost;
# the script leaves half of its objects, or creates them for a role with too many rights.
#
# The view without PHP, and attacks of roles on each other, are in compat_laravel.sql.

use strict;
use warnings FATAL => 'all';
use AtomicLockClients;
use AtomicLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('laravel');
$node->init;
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'atomic_lock'\natomic_lock.max_wait = '1h'\n");
$node->start;

sub script
{
	my ($role, @variables) = @_;
	return compat_script($node, $role, 'laravel', @variables);
}

# The script refuses to run unless the requirements of its header are met.
my $columns = 'SELECT (key, slot, role, released, expires_at, owner, meta) ON app_lock';
$node->safe_psql('postgres', 'CREATE ROLE shop_locks; CREATE ROLE web LOGIN; CREATE ROLE web_direct LOGIN');
like(script('shop_locks', 'prefix=shop_cache_'), qr/ERROR:  the extension atomic_lock is not installed/, 'without the extension');
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');
like(script('shop_locks', 'schema=shop'), qr/ERROR:  no prefix is given/, 'without a prefix');
like(script('shop_locks', 'prefix=shop_cache_'), qr/ERROR:  role "shop_locks" needs level user/, 'without level user');
$node->safe_psql('postgres', q{SELECT lock_grant_access('shop_locks', 'user')});
like(script('shop_locks', 'prefix=shop_cache_', 'schema=shop'), qr/ERROR:  role "shop_locks" needs to read app_lock/, 'without the columns');
$node->safe_psql('postgres', "GRANT $columns TO shop_locks");
like(script('shop_locks', 'prefix=shop_cache_', 'schema=shop'), qr/ERROR:  permission denied for database/, 'without the schema');
like(script('shop_locks', 'prefix=shop_cache_'), qr/ERROR:  permission denied for schema public/, 'in the schema public, if no other is named');
is($node->safe_psql('postgres', q{SELECT to_regnamespace('shop') IS NULL}), 't', 'nothing was created');
$node->safe_psql('postgres', 'GRANT CREATE ON DATABASE postgres TO shop_locks');
is(script('shop_locks', 'prefix=shop_cache_', 'schema=shop'), '', 'with all rights');
like(script('postgres', 'prefix=shop_cache_', 'schema=shop'), qr/ERROR:  role "postgres" may do more than read app_lock/, 'by a superuser');
$node->safe_psql('postgres', 'CREATE ROLE other_locks; GRANT CREATE, USAGE ON SCHEMA shop TO other_locks;'
	  . "GRANT $columns TO other_locks; SELECT lock_grant_access('other_locks', 'user')");
like(script('other_locks', 'prefix=shop_cache_', 'schema=shop'), qr/ERROR:  must be owner of function cache_locks_change/, 'by another role');

# A lock survives a second run; the script warns if a policy forbids a day, Laravel's default.
$node->safe_psql('postgres', q{
	GRANT USAGE ON SCHEMA shop TO web, web_direct;
	GRANT SELECT, INSERT, UPDATE, DELETE ON shop.cache_locks TO web;
	CREATE TABLE shop.cache (key text PRIMARY KEY, value text NOT NULL, expiration bigint NOT NULL);
	CREATE TABLE shop.second_cache (LIKE shop.cache INCLUDING ALL);
	CREATE TABLE shop.counter (n int);
	INSERT INTO shop.counter VALUES (0);
	GRANT SELECT, INSERT, UPDATE, DELETE ON shop.cache, shop.second_cache, shop.counter TO web, web_direct;
	-- it looks by the functions, and needs them for nothing else
	SELECT lock_grant_access('web', 'monitor'), lock_grant_access('web_direct', 'user'),
		lock_set_policy('shop_', max_ttl => '23 hours');
	SET ROLE web;
	INSERT INTO shop.cache_locks VALUES ('shop_cache_kept', 'owner', extract(epoch FROM now()) + 600)});
like(script('shop_locks', 'prefix=shop_cache_', 'schema=shop'),
	qr/WARNING:  locks that last a day.* 23:00:00\nHINT:  SELECT lock_set_policy\('shop_cache_', max_ttl => '1 day'/, 'where a day is too long');
$node->safe_psql('postgres', q{SELECT lock_drop_policy('shop_')});
is(script('shop_locks', 'prefix=shop_cache_', 'schema=shop'), '', '... and where a day is allowed');
is($node->safe_psql('postgres', q{SET ROLE web; DELETE FROM shop.cache_locks WHERE key = 'shop_cache_kept' RETURNING owner}),
	'owner', 'a lock is kept when the script runs again');

# Runs a part of laravel.php and reports its results
sub laravel
{
	my ($driver, $what, $user) = @_;
	my ($stdout, $stderr);

	run_timed([ 'php', 'test/t/clients/laravel.php', $driver, $what, $node->host, $node->port, 'postgres', $user ],
		'<', \undef, '>', \$stdout, '2>', \$stderr);
	note($stderr) if $stderr ne '';
	my @lines = split /\n^(?=ok|not ok|end)/m, $stdout;
	is(chomp_of(pop @lines), 'end', "$driver, $what: the program ran to its end");
	ok($_ =~ /^ok/, "$driver, $what: " . $_ =~ s/^(not )?ok //r) foreach @lines;
	return;
}
sub chomp_of { my ($line) = @_; chomp $line; return $line; }

# Eight processes of this driver, and two callers of the functions
sub count_up
{
	my ($driver, $user) = @_;
	my (@php, @out, $said);
	my $script = $node->basedir . "/count.sql";

	open my $file, '>', $script or die;
	print $file <<'END';
SELECT owner FROM lock_acquire('shop_cache_counter', '10 min', wait => '1 hour') \gset
SELECT n + 1 AS n FROM shop.counter \gset
UPDATE shop.counter SET n = :n;
SELECT lock_release('shop_cache_counter', :owner);
END
	close $file;
	$node->safe_psql('postgres', 'UPDATE shop.counter SET n = 0');
	foreach my $n (0 .. 7)
	{
		push @php, [ 'php', 'test/t/clients/laravel.php', $driver, 'count_up', $node->host, $node->port, 'postgres', $user ],
			'<', \undef, '>', \$out[$n], '&';
	}
	ok( run_timed(@php, [ 'pgbench', '-n', '-M', 'prepared', '-c', 2, '-t', 50, '-f', $script, '-U', 'web_direct', $node->connstr('postgres') ],
			'<', \undef, '>', \$said, '2>&1'),
		"$driver: two callers of the functions, beside eight processes") or diag($said);
	is_deeply([ map { /^ok counted$/m && /^end$/m ? 1 : $_ } @out ], [ (1) x 8 ], "$driver: eight processes");
	is($node->safe_psql('postgres', 'SELECT n FROM shop.counter'), 8 * 25 + 2 * 50, "$driver: no update is lost");
	return;
}

SKIP:
{
	skip 'no Laravel', 1 unless -d '/usr/share/php/Illuminate/Cache' && run_log([ 'php', '-r', 'exit(extension_loaded("pdo_pgsql") ? 0 : 1);' ]);

	laravel('database', $_, 'web') foreach qw(calls deploys uses transaction);
	is($node->safe_psql('postgres', 'SELECT count(*) FROM lock_audit'), 0, 'no call of Laravel is audited as a forced release');
	$node->safe_psql('postgres', q{SELECT lock_release(key, owner) FROM app_lock WHERE NOT released AND expires_at > now()});

	laravel('atomic_lock', 'denied', 'web_direct');
	$node->safe_psql('postgres', q{SELECT lock_grant_access('web_direct', 'supervisor'), lock_grant_access('web_direct', 'monitor');
		-- for the test itself
		GRANT EXECUTE ON FUNCTION lock_set_policy, lock_drop_policy TO web_direct});
	laravel('atomic_lock', $_, 'web_direct') foreach qw(calls deploys uses transaction configured);
	cmp_ok($node->safe_psql('postgres', q{SELECT count(*) FROM lock_audit WHERE acting_role = 'web_direct' AND reason = 'forceRelease of Laravel'}),
		'>=', 2, 'forced releases of the class are audited');

	count_up('database', 'web');
	count_up('atomic_lock', 'web_direct');
}

log_is_clean($node);
$node->stop;
done_testing();
