# The programs of doc/examples with a block that has a lock, with real drivers.
#
# Properties: the same night has the same outcome with each driver (pgx is in pgx.pl): a
# heartbeat beside the work keeps the lease; the statement of somebody who waits is
# cancelled; the block lets go of the lock, also where the work fails; where an
# administrator ends the lease, the work is stopped; a block that has run longer than its
# lease is told by its own clock, and at the release what became of the lock.  In the end
# only who took a lock meanwhile has one.  hidden_key makes the same key in SQL and in
# each language, which is HMAC-SHA256, and refuses a secret of 15 bytes.  The examples in
# the manner of JustScale and Parse::Lock do what doc/clients.md says: a row that is read
# under its lock, null where there is none, a proof, an error for who locks twice; hosts
# with different secrets that do not work side by side, no block without a lock, a warning.
#
# Turns red when: a heartbeat does not extend, or does not notice; a driver's way to cancel
# does not end a wait; the words of lock_try_release change; a lock is left.

use strict;
use warnings FATAL => 'all';
use Digest::SHA qw(hmac_sha256_hex);
use FindBin;
use lib "$FindBin::RealBin/../../perl";
use AtomicLockClients;
use AtomicLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

# What has run out must not be swept before the block's release hears of it.
my $node = clients_server('blocks', "atomic_lock.sweep_interval = 0\n");
my @drivers = (
	[ 'psycopg', 'psycopg 3', 'block.py', 'psycopg' ],
	[ 'psycopg2', 'psycopg2', 'block.py', 'psycopg2' ],
	[ 'pg', 'node-postgres', 'block.js' ],
	[ 'jdbc', 'JDBC', 'Block.java' ],
	[ 'pdo', 'PDO', 'block.php' ],
	[ 'ruby', 'ruby-pg', 'block.rb' ],
	[ 'dbd', 'DBD::Pg', 'block.pl' ]);

foreach (@drivers)
{
	my ($driver, $name, $program, @arguments) = @$_;

  SKIP:
	{
		skip "no $name", 1 unless have_driver($driver);
		is_deeply(lines_of($node, $driver, "with_$driver", "doc/examples/$program", @arguments), night(), $name);
		is($node->safe_psql("with_$driver", q{SELECT string_agg(key, ' ') FROM lock_status()}),
			'import:9', "$name: only Bob has something");
	}
}

# PHP's block, which sets a time-out: that of before is there again, also where the block
# overran, and where it left a transaction open
SKIP:
{
	skip 'no PDO', 1 unless have_driver('pdo');
	my $program = PostgreSQL::Test::Utils::tempdir . '/timeout.php';

	append_to_file($program, <<'END');
<?php
require 'doc/examples/block.php';
$work = connect($argv[1]);
$work->exec("SET statement_timeout = '7s'");
try {
	locked($argv[1], $work, 'k', 30, 'h', function () use ($work) {
		say('Inside:', one($work, 'SHOW statement_timeout'));
		$work->beginTransaction();
		$work->exec("SELECT lock_acquire('left')");
	});
	say('After:', one($work, 'SHOW statement_timeout'));
	locked($argv[1], $work, 'k', .01, 'h', function (Lock $lock) use ($work) {
		say('Inside:', one($work, 'SHOW statement_timeout'));
		while ($lock->isOurs())
			usleep(1000);
		$work->beginTransaction();
		one($work, 'SELECT 1 / 0');
	});
} catch (Lost $lost) {
	say('Lost, after', $lost->getPrevious()->getCode());
}
say('After:', one($work, 'SHOW statement_timeout'));
END
	is_deeply(lines_of($node, 'pdo', 'timeout', $program),
		[ 'Inside: 20s', 'After: 7s', 'Inside: 1s', 'Lost, after 22012', 'After: 7s' ], 'PDO: the time-out');
	is($node->safe_psql('timeout', q{SELECT count(*) FROM app_lock WHERE key = 'left'}), 0, 'PDO: what was left open is rolled back');
}

# That of the programs is one of these keys; a secret may be longer than a block of the hash.
my $name = "patient:M\xc3\xbcller";
$node->safe_psql('postgres', slurp_file('doc/examples/hidden_keys.sql'));
foreach my $secret ('0123456789abcdef', map { join '', map { chr(1 + int rand 255) } 1 .. $_ } 63, 64, 65, 200)
{
	is( $node->safe_psql('postgres', sprintf(q{SELECT hidden_key('\x%s', '%s')}, unpack('H*', $secret), $name)),
		hmac_sha256_hex($name, $secret),
		sprintf 'hidden_key in SQL, with a secret of %d bytes', length $secret);
}
is(sqlstate($node, q{SELECT hidden_key('0123456789abcde', 'x')}), '22023', 'and one of 15 bytes is refused');

SKIP:
{
	skip 'no node-postgres', 1 unless have_driver('pg');
	is_deeply(lines_of($node, 'pg', 'justscale', 'doc/examples/justscale.js'), [ split /\n/, <<'END' ], 'JustScale');
Read before: new - under the lock: of Bob
DoubleLockError: lock "order:42" is already held by this owner
Another request: 55P03
No such order: null
Without a proof: save() needs a Locked
With a proof that is over: LK006
The order is now: of Bob, approved
END
	is($node->safe_psql('justscale', 'SELECT count(*) FROM lock_status()'), 0, 'JustScale: nothing is held');
}

SKIP:
{
	skip 'no ruby-pg', 1 unless have_driver('ruby');
	is_deeply(lines_of($node, 'ruby', 'parse_lock', 'doc/examples/parse_lock.rb'), [ split /\n/, <<'END' ], 'Parse::Lock');
Host 1 does not start yet: it cannot prove that it has the secret of host 2
Host 1 starts: acquired
Host 2 starts: reacquired
Host 3 does not start: it cannot prove that it has the secret of host 2
Host 4 does not start: the secret is shorter than 16 bytes
The block has its token: true
Another worker: could not acquire cron:nightly-rollup within 0 s
[ParseLock] import:7 ran longer than its ttl of 0.01 s: expired
Without the database: the block is not called
END
	is($node->safe_psql('parse_lock', q{SELECT string_agg(key, ' ') FROM lock_status()}),
		'parse-lock:secret', 'Parse::Lock: nothing else is held');
	is($node->safe_psql('parse_lock', q{SELECT count(*) FROM app_lock WHERE key ~ 'rollup|import'}), 0, 'and no name is shown');
}

log_is_clean($node);
$node->stop;
done_testing();
