# The adapters of doc/examples for Symfony's Lock component and OpenStack's tooz, with these libraries.
#
# Properties: a lock excludes others, also direct callers; readers share it, and a lock is
# converted in both directions; a call that waits gets the lock when it is released; a refresh of a lock
# that was ended fails; a key of Symfony goes to another process, and the lock with it.
#
# Skipped where a library is not installed.
#
# Turns red when: an answer of the functions changes; an adapter believes in a lock that is lost.

use strict;
use warnings FATAL => 'all';
use AtomicLockClients;
use AtomicLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = clients_server('adapters');
my %programs = (
	symfony => [ 'pdo', 'php', [ 'php', '-r', q{exit((include 'Symfony/Component/Lock/autoload.php') && extension_loaded('pdo_pgsql') ? 0 : 1);} ], <<'END' ],
<?php
require 'Symfony/Component/Lock/autoload.php';
require getcwd() . '/doc/examples/symfony/AtomicLockStore.php';
use App\Lock\AtomicLockStore;
use Symfony\Component\Lock\{Key, Lock, LockFactory};
use Symfony\Component\Lock\Exception\LockConflictedException;

$db = new PDO($argv[1]);
$store = new AtomicLockStore($db);
$factory = new LockFactory($store);
function say($what, $answer) { echo "$what: ", var_export($answer, true), "\n"; }

$key = new Key('k');
$ann = new Lock($key, $store, 60, false);
[$bob, $cleo] = [$factory->createLock('k', 60, false), $factory->createLock('k')];
say('Ann', $ann->acquire());
say('Bob', $bob->acquire());
say('a direct caller', $db->query("SELECT status FROM lock_try_acquire('k')")->fetchColumn());
say('a minute', $ann->getRemainingLifetime() > 50);
say('Ann shares', $ann->acquireRead());
say('Bob reads', $bob->acquireRead());
say('Ann alone', $ann->acquire());
$bob->release();
say('Ann alone', $ann->acquire());
$there = new Lock(unserialize(serialize($key)), $store, 60, false);
say('in the job', $there->isAcquired());
$there->release();
say('Ann', $ann->isAcquired());
say('Cleo', $cleo->acquire(true));
$db->query("SELECT force_release('k', 'test')");
try {
	$cleo->refresh(30);
} catch (Exception $error) {
	say('refresh', ($error->getPrevious() ?? $error)::class);
}
$wait = "DO 'BEGIN LOOP EXIT WHEN (SELECT waiters > 0 FROM lock_status(''w'')); END LOOP; END'";
$waiting = proc_open(['psql', '-XAtq', '-c', "SELECT lock_acquire('w', '1 h', 'direct')", '-c', $wait, '-c', "SELECT lock_release('w', 'direct')", $argv[2]], [1 => ['pipe', 'w']], $pipes);
fgets($pipes[1]);
say('waits', $factory->createLock('w', 5)->acquire(true));
END
	tooz => [ 'psycopg', 'py', [ $python, '-c', 'import tooz, psycopg_pool' ], <<'END' ]);
import sys
sys.dont_write_bytecode = True
sys.path[:0] = ['doc/examples/tooz', 'clients/python/src']
from urllib.parse import quote
import psycopg
from atomic_lock_driver import AtomicLockDriver
from oslo_utils import netutils
keys = dict(part.split('=') for part in sys.argv[1].split())
url = 'atomic-lock:///%s?host=%s&port=%s&user=%s' % (keys['dbname'], quote(keys['host'], ''), keys['port'], keys['user'])
ann, bob = (AtomicLockDriver(name, netutils.urlsplit(url), {}) for name in (b'ann', b'bob'))
for each in ann, bob:
    each.start()
a, b = ann.get_lock(b'k'), bob.get_lock(b'k')
print('Ann', a.acquire(), 'again', a.acquire(blocking=False), 'Bob', b.acquire(blocking=False), b.acquire(blocking=.1), b.acquire(timeout=.1))
print('released', a.release(), 'again', a.release(), 'Bob', b.acquire(blocking=1), b.release())
print('both share', a.acquire(shared=True), b.acquire(shared=True), 'alone', ann.get_lock(b'k').acquire(blocking=False))
with psycopg.connect(sys.argv[1], autocommit=True) as db:
    db.execute("SELECT force_release('k', 'test')")
print('lost', a.release(), b.release())
with ann.get_lock(b'with') as lock:
    print('in the block', lock.is_still_owner())
print('after it', lock.acquired)
for each in ann, bob:
    each.stop()
END
my %expected = (
	symfony => [ split /\n/, <<'END' ],
Ann: true
Bob: false
a direct caller: 'held'
a minute: true
Ann shares: true
Bob reads: true
Ann alone: false
Ann alone: true
in the job: true
Ann: false
Cleo: true
refresh: 'Symfony\\Component\\Lock\\Exception\\LockConflictedException'
waits: true
END
	tooz => [ split /\n/, <<'END' ]);
Ann True again False Bob False False False
released True again False Bob True True
both share True True alone False
lost False False
in the block True
after it False
END

foreach my $library (sort keys %programs)
{
  SKIP:
	{
		my ($driver, $suffix, $look, $source) = @{ $programs{$library} };
		my $program = PostgreSQL::Test::Utils::tempdir . "/play_$library.$suffix";

		skip "no $library", 1 unless have_driver($driver) && run_log($look);
		append_to_file($program, $source);
		my @program = @{ program_of($node, $driver, $library, $program) };
		is_deeply(lines($node, $library, @program, socket_of($node, $library)), $expected{$library}, $library);
	}
}
log_is_clean($node);
$node->stop;
done_testing();
