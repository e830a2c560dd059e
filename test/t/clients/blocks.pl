# The programs of doc/examples that run a block under a lock, with real drivers.
#
# Properties: the same scenes have the same outcome with each driver (pgx is in pgx.pl): a
# heartbeat beside the work keeps the lease; the statement of a waiter can be
# cancelled; the block releases the lock, also if the work fails; if an
# administrator ends the lease, the work is stopped; a block that ran longer than its
# lease learns that from its own clock, and learns the reason at the release; the clock
# also cancels the work if no heartbeat is answered (PHP and Perl cannot do that); a block that waited longer than its
# lease lasts still gets a full lease.  In the end only Bob, who acquired one of the locks
# meanwhile, holds a lock.  hidden_key gives the same key in SQL and in
# each language, which is HMAC-SHA256, and refuses a secret of 15 bytes.  The examples in
# the style of JustScale and Parse::Lock do what doc/clients.md says: a row that is read
# under its lock, null if there is no row, a proof, an error if one owner locks twice; hosts
# with different secrets do not run side by side, no block runs without a lock, an overrun is warned of.
#
# Turns red when: a heartbeat does not extend, or does not notice that the lease is lost; a
# driver's cancel does not end a wait; a status of lock_try_release changes; a lock is left.

use strict;
use warnings FATAL => 'all';
use Digest::SHA qw(hmac_sha256_hex);
use AtomicLockClients;
use AtomicLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

# An expired lease must not be swept before the block releases it.
my $node = clients_server('blocks', "atomic_lock.sweep_interval = 0\n");
my @drivers = (
	[ 'psycopg2', 'psycopg2', 'block.py' ],
	[ 'jdbc', 'JDBC', 'Block.java' ],
	[ 'pdo', 'PDO', 'block.php' ],
	[ 'ruby', 'ruby-pg', 'block.rb' ],
	[ 'dbd', 'DBD::Pg', 'block.pl' ]);

foreach (@drivers)
{
	my ($driver, $name, $program) = @$_;

  SKIP:
	{
		skip "no $name", 1 unless have_driver($driver);
		is_deeply(lines_of($node, $driver, "with_$driver", "doc/examples/$program"), night(), $name);
		is($node->safe_psql("with_$driver", q{SELECT string_agg(key, ' ') FROM lock_status()}),
			'import:9', "$name: only Bob holds a lock");
	}
}

# PHP's block sets statement_timeout: afterwards the earlier value is restored, also if the block
# lost its lock or left a transaction open
SKIP:
{
	skip 'no PDO', 1 unless have_driver('pdo');
	my $program = PostgreSQL::Test::Utils::tempdir . '/timeout.php';

	append_to_file($program, <<'END');
<?php
require 'doc/examples/block.php';
$work = connect($argv[1]);
$work->exec("SET statement_timeout = '7min'");
try {
	locked($argv[1], $work, 'k', 3600, 'h', function () use ($work) {
		say('Inside:', one($work, 'SHOW statement_timeout'));
		$work->beginTransaction();
		$work->exec("SELECT lock_acquire('left')");
	});
	say('After:', one($work, 'SHOW statement_timeout'));
	locked($argv[1], $work, 'k', 1800, 'h', function () use ($work) {
		say('Inside:', one($work, 'SHOW statement_timeout'));
		one($work, "SELECT force_release('k', 'test')");
		$work->beginTransaction();
		one($work, 'SELECT 1 / 0');
	});
} catch (Lost $lost) {
	say('Lost, after', $lost->getPrevious()->getCode());
}
say('After:', one($work, 'SHOW statement_timeout'));
END
	is_deeply(lines_of($node, 'pdo', 'timeout', $program),
		[ 'Inside: 40min', 'After: 7min', 'Inside: 20min', 'Lost, after 22012', 'After: 7min' ], 'PDO: the time-out is restored');
	is($node->safe_psql('timeout', q{SELECT count(*) FROM app_lock WHERE key = 'left'}), 0, 'PDO: what was left open is rolled back');
}

# The programs hide one of these names; a secret may be longer than a block of the hash.
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

# Heartbeats get no answer until the work's statement is cancelled.  Only the
# clock can cancel that statement: at the end of the lease, when Bob may get the lock.
my %silent = (
	psycopg2 => [ 'py', <<'END' ],
import sys
sys.path.insert(0, 'doc/examples')
import block
dsn = sys.argv[1]
work, other = block.connect(dsn), block.connect(dsn)
block.row(other, 'SELECT pg_advisory_lock(1)')
try:
    with block.locked(dsn, work, 'k', 2, 'h', every=.2) as lock:
        try:
            block.one(work, 'SELECT pg_sleep(600)')
        except block.psycopg2.Error as error:
            print('Work:', error.pgcode, lock.is_ours())
        block.until(other, "SELECT NOT locked FROM lock_status('k')")
        block.row(other, 'SELECT pg_advisory_unlock(1)')
except block.Lost as lost:
    print('At release:', lost)
END
	ruby => [ 'rb', <<'END' ],
require './doc/examples/block'
work, other = Array.new(2) { PG.connect(ARGV[0]) }
row(other, 'SELECT pg_advisory_lock(1)')
begin
  locked(ARGV[0], work, 'k', 2, 'h', every: 0.2) do |lock|
    begin
      one(work, 'SELECT pg_sleep(600)')
    rescue PG::Error => e
      puts "Work: #{sqlstate(e)} #{lock.ours?}"
    end
    wait_until(other, "SELECT NOT locked FROM lock_status('k')")
    row(other, 'SELECT pg_advisory_unlock(1)')
  end
rescue Lost => e
  puts "At release: #{e.message}"
end
END
	jdbc => [ 'java', <<'END' ]);
import java.sql.*;
public class Silent {
	public static void main(String[] args) throws Exception {
		Connection work = DriverManager.getConnection(args[0]), other = DriverManager.getConnection(args[0]);
		Block.row(other, "SELECT pg_advisory_lock(1)");
		try (Block.Lock lock = new Block.Lock(args[0], work, "k", 2, "h", .2, 0)) {
			try {
				Block.row(work, "SELECT pg_sleep(600)");
			} catch (SQLException error) {
				System.out.println("Work: " + error.getSQLState() + " " + lock.isOurs());
			}
			Block.until(other, "SELECT NOT locked FROM lock_status('k')");
			Block.row(other, "SELECT pg_advisory_unlock(1)");
		} catch (Block.Lost lost) {
			System.out.println("At release: " + lost.getMessage());
		}
	}
}
END

# Blocks that wait longer than their lease lasts get a full lease.
my %patient = (
	psycopg2 => [ 'py', <<'END' ],
import sys
sys.path.insert(0, 'doc/examples')
import block
dsn = sys.argv[1]
with block.locked(dsn, block.connect(dsn), 'psycopg2', 10, 'h', every=3600, wait=300) as lock:
    print('go on' if lock.is_ours() else 'stop')
END
	ruby => [ 'rb', <<'END' ],
require './doc/examples/block'
locked(ARGV[0], PG.connect(ARGV[0]), 'ruby', 10, 'h', every: 3600, wait: 300) { |lock| puts lock.ours? ? 'go on' : 'stop' }
END
	pdo => [ 'php', <<'END' ],
<?php
require 'doc/examples/block.php';
locked($argv[1], connect($argv[1]), 'pdo', 10, 'h', fn($lock) => say($lock->isOurs() ? 'go on' : 'stop'), 3600, 300);
END
	dbd => [ 'pl', <<'END' ],
require './doc/examples/block.pl';
locked($ARGV[0], 'dbd', 10, 'h', sub { print $_[0]->is_ours ? "go on\n" : "stop\n" }, 3600, 300);
END
	jdbc => [ 'java', <<'END' ]);
import java.sql.*;
public class Patient {
	public static void main(String[] args) throws Exception {
		try (Connection work = DriverManager.getConnection(args[0]);
				Block.Lock lock = new Block.Lock(args[0], work, "jdbc", 10, "h", 3600, 300)) {
			System.out.println(lock.isOurs() ? "go on" : "stop");
		}
	}
}
END
my (%programs, %go_on);
foreach my $driver (grep { have_driver($_) } sort keys %patient)
{
	my $scratch = PostgreSQL::Test::Utils::tempdir;
	my ($suffix, $source) = @{ $patient{$driver} };

	append_to_file("$scratch/Patient.$suffix", $source);
	system_or_bail('javac', '-cp', $jdbc, '-d', $scratch, 'doc/examples/Block.java', "$scratch/Patient.java") if $driver eq 'jdbc';
	$programs{$driver} = $driver eq 'jdbc' ? [ '-cp', "$jdbc:$scratch", 'Patient' ] : ["$scratch/Patient.$suffix"];
	$go_on{$driver} = ['go on'];
}
SKIP:
{
	skip 'no driver', 1 unless %programs;
	is_deeply(long_waits($node, 'long_waits', %programs), \%go_on, 'blocks that waited for longer than their lease');
}

# Each new database has this function in schema order_desk.  The programs connect as user order_desk, so
# they call it instead of the extension's lock_heartbeat.
$node->safe_psql('template1', <<'END');
CREATE SCHEMA order_desk AUTHORIZATION order_desk;
CREATE FUNCTION order_desk.lock_heartbeat(text[], text, interval, OUT status text, OUT ttl_remaining interval)
LANGUAGE sql AS 'SELECT pg_advisory_xact_lock_shared(1); SELECT $$extended$$::text, $3';
END
$node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = 'template1'})
  or die 'template1 is in use';
foreach my $driver (sort keys %silent)
{
  SKIP:
	{
		skip "no $driver", 1 unless have_driver($driver);
		my $scratch = PostgreSQL::Test::Utils::tempdir;
		my ($suffix, $source) = @{ $silent{$driver} };
		my @program = ("$scratch/Silent.$suffix");

		append_to_file($program[0], $source);
		if ($driver eq 'jdbc')
		{
			system_or_bail('javac', '-cp', $jdbc, '-d', $scratch, 'doc/examples/Block.java', @program);
			@program = ('-cp', "$jdbc:$scratch", 'Silent');
		}
		my @lines = map { lc } @{ lines_of($node, $driver, "silent_$driver", @program) };
		is_deeply(\@lines, [ 'work: 57014 false', 'at release: expired' ],
			"$driver: the work is cancelled at the end of the lease if heartbeats get no answer");
	}
}

log_is_clean($node);
$node->stop;
done_testing();
