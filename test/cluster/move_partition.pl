# A partition moves to another server while its locks are in use.
#
# Properties: by the commands of doc/several-servers.md, a shard behind a proxy moves to a new server
# while clients lock, release and extend through the proxy.  Clients are refused meanwhile,
# for a time that is shown but not judged, and continue without a restart.  No lease is
# lost and no fencing token falls: all leases that were held are held on the new server, with
# their tokens, and can be extended and released by their owners.  Two clients are never inside
# at the same time, neither in their own view nor by the history of grants.  The old server, started
# again by mistake, refuses all keys.
#
# Turns red when: the new server is promoted before it has everything that the old one has
# acknowledged; the old one still grants; a token of the new one is lower than one of the old.

use strict;
use warnings FATAL => 'all';
use AtomicLockCluster;
use AtomicLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_plproxy();
my $python = '/usr/bin/python3';
plan skip_all => 'needs psycopg2' unless run_log([ $python, '-c', 'import psycopg2' ]);

my @shards = shards(2, conf => 'max_wal_senders = 4');
my $proxy = proxy('proxy', @shards);

facade($shards[0], @shards, $proxy);
$_->safe_psql('postgres', q{SELECT lock_set_policy('', history => true)}) for @shards;
$proxy->safe_psql('postgres', 'ALTER DATABASE postgres SET search_path = locks, public');

# Leases that are held throughout
my $lasting = q{FROM generate_series(1, 400) n, lock_acquire('lasting:' || n, '1 h', 'worker-' || n % 10) g};
$proxy->safe_psql('postgres', "SELECT count(*) $lasting");
my $held = q{SELECT string_agg(key || ' ' || fencing_token, E'\n' ORDER BY key) FROM generate_series(0, 9) n, lock_held('worker-' || n)};
my $before = $proxy->safe_psql('postgres', $held);
is(scalar(split /\n/, $before), 400, 'leases are held');

my $program = <<'END';
import collections, json, sys, threading, time
import psycopg2

url, threads = sys.argv[1], int(sys.argv[2])
guard = threading.Lock()
stop = threading.Event()
inside, tokens = {}, collections.defaultdict(int)
faults, refusals = [], collections.Counter()
grants, worst, last = 0, 0, {0: time.monotonic(), 1: time.monotonic()}

def work(me):
    global grants, worst
    connection = psycopg2.connect(url)
    connection.autocommit = True
    cursor = connection.cursor()
    partitions = {}
    for n in range(100000):
        if stop.is_set():
            return
        key, owner = 'key:%d' % (n * 7 % 20), 'client-%d' % me
        def call(sql, *args):
            # As doc/several-servers.md says: repeat with the same owner.
            while True:
                try:
                    cursor.execute(sql, args)
                    return cursor.fetchone()
                except psycopg2.Error as error:
                    refusals[error.pgcode] += 1
                    if error.pgcode not in ('08006', 'LK010'):
                        raise
                    time.sleep(0.02)
        if key not in partitions:
            partitions[key] = call('SELECT lock_partition(%s, 2)', key)[0]
        acquired, token = call("SELECT acquired, fencing_token FROM lock_try_acquire(%s, '1 hour', %s)", key, owner)
        if not acquired:
            continue
        with guard:
            now = time.monotonic()
            if key in inside:
                faults.append('%s: %s beside %s' % (key, owner, inside[key]))
            if token < tokens[key]:
                faults.append('%s: token %d after %d' % (key, token, tokens[key]))
            inside[key], tokens[key] = owner, token
            grants += 1
            if partitions[key] == 0:
                worst = max(worst, now - last[0])
            last[partitions[key]] = now
        if n % 3 == 0:
            call('SELECT lock_extend(%s, %s)', key, owner)
        with guard:
            del inside[key]
        word = call('SELECT lock_try_release(%s, %s)', key, owner)[0]
        # A release whose answer was lost has been done.
        if word not in ('released', 'already_released', 'not_owner', 'not_found'):
            faults.append('%s: %s' % (key, word))

def safely(me):
    try:
        work(me)
    except Exception as error:
        faults.append(repr(error))

workers = [threading.Thread(target=safely, args=(n,)) for n in range(threads)]
for worker in workers:
    worker.start()
print('begun', flush=True)
for line in iter(sys.stdin.readline, 'end\n'):
    print(json.dumps({'grants': grants}), flush=True)
stop.set()
for worker in workers:
    worker.join()
print(json.dumps({'grants': grants, 'worst': worst, 'refusals': refusals, 'faults': faults[:10]}), flush=True)
END
my ($in, $out, $err) = ('', '', '');
my $clients = IPC::Run::start([ $python, '-c', $program, connect_string($proxy), 4 ], '<', \$in, '>', \$out, '2>', \$err,
	IPC::Run::timeout(10 * $PostgreSQL::Test::Utils::timeout_default));

# Waits until the clients have had $more further grants
sub grants
{
	my ($more) = @_;
	my ($first, $now);

	until (defined $first && $now >= $first + $more)
	{
		$out = '';
		$in .= "?\n";
		$clients->pump until $out =~ /grants": (\d+)/ || $err;
		die $err if $err;
		$now = $1;
		$first //= $now;
	}
	return;
}
$clients->pump until $out =~ /begun/ || $err;
grants(200);

# The commands of doc/several-servers.md
my $old = $shards[0];
my $new = PostgreSQL::Test::Cluster->new('moved');
$old->backup('move');
$new->init_from_backup($old, 'move', has_streaming => 1);
$new->start;
$old->wait_for_catchup($new, 'replay', $old->lsn('flush'));
grants(200);

$old->safe_psql('postgres', 'ALTER DATABASE postgres SET atomic_lock.partition = -1');
$old->stop('fast');
my ($end) = qx(pg_controldata @{[$old->data_dir]}) =~ m{Latest checkpoint location:\s+(\S+)};
ok($new->poll_query_until('postgres', "SELECT pg_last_wal_replay_lsn() > '$end'"), 'the new server has all WAL of the old one');
$new->promote;
is(sqlstate($new, q{SELECT lock_acquire('x')}), 'LK010', '... and is closed, too, before it gets the partition');
$new->safe_psql('postgres', 'ALTER DATABASE postgres SET atomic_lock.partition = 0');
$proxy->safe_psql('postgres', "ALTER SERVER locks OPTIONS (SET p0 '" . connect_string($new) . "')");

grants(400);
# Servers that were started meanwhile have inherited the input, too.
$in .= "end\n";
$clients->finish;
my ($result) = $out =~ /(\{"grants.*"faults".*\})/ or die "no result: $out $err";
note($result);
like($result, qr/"faults": \[\]/, 'two clients are never inside together, and no token falls');
my ($worst) = $result =~ /"worst": ([\d.]+)/;
diag(sprintf 'no grant for %.2f s while the partition moved', $worst);
is($proxy->safe_psql('postgres', $held), $before, 'no lease is lost, each has its token');
is($proxy->safe_psql('postgres', q{SELECT sum(lock_extend_all('worker-' || n)), sum(lock_release_all('worker-' || n)) FROM generate_series(0, 9) n}),
	'400|400', '... and the owners extend and release them');
my $overlaps = q{
	SELECT count(*) FILTER (WHERE acquired_at < before OR fencing_token < token), count(*) > 100
	FROM (SELECT *, lag(ended_at) OVER w AS before, lag(fencing_token) OVER w AS token
		FROM lock_history WHERE key LIKE 'key:%' WINDOW w AS (PARTITION BY key ORDER BY acquired_at)) h};
is($_->safe_psql('postgres', $overlaps), '0|t', 'no overlap in the history of ' . $_->name) for $new, $shards[1];

$old->start;
is(sqlstate($old, q{SELECT lock_acquire('key:' || n) FROM generate_series(0, 9) n WHERE lock_partition('key:' || n, 2) = 0}), 'LK010', 'the old server refuses all keys');
log_is_clean($_) for $new, @shards;

done_testing();
