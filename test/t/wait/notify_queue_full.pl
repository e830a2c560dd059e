# Events while the notification queue is full.
#
# A session that listens and stays in a transaction keeps all notifications.  From
# PostgreSQL 17 on the size of the queue is a setting, so that the test can fill it.  Before
# 17 the queue has 8 GB; a build with AL_TEST_HOOKS treats a queue as full that has any
# notification in it.
#
# Properties: grants, releases, the end of a session, sweeps, lock_ask and lock_enqueue
# commit while the queue is nearly full, and the key is offered as usual; their events are
# left out, with one line in the log for each transaction, which says what to do and names
# no key; only events are lost, and the next in line acquires the key; afterwards
# events are sent again.  On 17 and later a NOTIFY of another session fails meanwhile.
#
# Turns red when: a commit is rolled back for its events; the log does not say that they are
# left out.

use strict;
use warnings FATAL => 'all';
use AtomicLockQueue;
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'needs a build with AL_TEST_HOOKS, named by AL_HOOKS' unless $ENV{AL_HOOKS};

my $left_out = qr/LOG:  (\d+) events? of (?:a lock was|locks were) left out\n.*DETAIL:  The notification queue is more than half full\.\n.*HINT:  A session that listens may be in a long transaction/;

sub check_full
{
	my ($node, $how, $is_full) = @_;
	my ($watch, $listener, $holder, $stuck) = map { session($node, $_) } ('Watch', 'Listener', 'Holder', 'Stuck');
	my $lines = 0;

	# Each call leaves out this number of events, in one line of the log.
	my $leaves_out = sub {
		my ($name, $events) = @_;
		my @found = slurp_file($node->logfile) =~ /$left_out/g;
		local $Test::Builder::Level = $Test::Builder::Level + 1;

		is(join(' ', @found[ $lines .. $#found ]), $events, "$how: $name: events are left out");
		$lines = @found;
	};

	listen_to($listener, 'k');
	ask($watch, q{SELECT lock_set_policy('k', notify => true)});
	ask($holder, q{SELECT lock_acquire('k', owner => 'holder', lifetime => 'session')});
	is(heard($listener), 'acquired Holder', 'a grant');
	ask($watch, qq{SELECT lock_enqueue('k', lower('$_'), '$_', '1 hour')}) foreach 'One', 'Two', 'Three', 'Four';
	ask($stuck, 'LISTEN other; BEGIN; SELECT 1');
	$is_full->($watch);

	is(ask($watch, q{SELECT lock_ask('k')}), '1', 'lock_ask');
	$leaves_out->('lock_ask', '1');
	is(ask($watch, q{SELECT status FROM lock_enqueue('k', 'five', 'Five', '1 hour')}), 'queued', 'lock_enqueue');
	end($holder);
	gone($watch, pid($holder));
	$leaves_out->('the end of a session', '2');
	is(line_of($watch, 'k'), 'One* Two Three Four Five', '... the key is offered nevertheless');
	is(ask($watch, q{BEGIN; SELECT status FROM lock_enqueue('k', 'one'); SELECT lock_release('k', 'one'); COMMIT}), "acquired\nt", 'a release in a transaction');
	$leaves_out->('a grant and a release', '3');
	is(line_of($watch, 'k'), 'Two* Three Four Five', '... and the key is offered to the next in line');
	is(ask($watch, try_as('two', 'k')), 'acquired|', '... who acquires it');
	$leaves_out->('the next grant', '1');
	is(ask($watch, q{SELECT lock_release('k', 'two')}), 't', '... and releases it');
	$leaves_out->('the next release', '2');
	is(ask($watch, q{BEGIN; SELECT status FROM lock_try_acquire('k', owner => 'three', lifetime => 'transaction'); COMMIT}), 'acquired', 'a lock for a transaction');
	$leaves_out->('the end of a transaction', '2');
	ask($watch, q{SELECT lock_enqueue('k', 'four'), lock_extend('k', 'four', '1 ms')});
	poll($watch, q{SELECT NOT locked FROM lock_status('k')});
	ask($watch, 'SELECT lock_sweep()');
	$leaves_out->('a grant and a sweep', '1 2');
	is(line_of($watch, 'k'), 'Five*', '... which offers the key');
	unlike(join(' ', slurp_file($node->logfile) =~ /^(.*(?:left out|half full|long transaction).*)$/mg), qr/\bk\b|lower|five/i, 'the log names no key, owner or holder');
	is(heard($listener), '', 'listeners hear nothing');

	ask($stuck, 'COMMIT');
	end($stuck);
	$is_full->($watch, 1);
	ask($watch, q{SELECT lock_enqueue('k', 'five'), lock_release('k', 'five')});
	is(heard($listener), 'acquired Watch, released Watch', '... and events are sent again');
	$leaves_out->('afterwards', '');
	ask($watch, 'TRUNCATE app_lock, app_lock_queue');
	end($watch, $listener);
	return;
}

my $settings = q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
log_min_error_statement = panic
autovacuum = off
atomic_lock.sweep_interval = 0
atomic_lock.test_longest_exit = 1h
};

# On all versions: one notification makes the queue full.
my $node = PostgreSQL::Test::Cluster->new('notify_hooks', install_path => $ENV{AL_HOOKS});
$node->init;
$node->append_conf('postgresql.conf', $settings);
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');
check_full($node, 'full by definition', sub {
	my ($watch, $afterwards) = @_;

	# A few pages, since usage is counted in pages
	ask($watch, q{SELECT pg_notify('other', repeat('x', 7000) || n) FROM generate_series(1, 10) n}) unless $afterwards;
	$node->append_conf('postgresql.conf', 'atomic_lock.test_notify_full = ' . ($afterwards ? '0.5' : '0'));
	$node->reload;
	poll($watch, q{SELECT current_setting('atomic_lock.test_notify_full')::float8 = } . ($afterwards ? '0.5' : '0'));
	cmp_ok(ask($watch, 'SELECT pg_notification_queue_usage()'), '>', 0, 'something is in the queue') unless $afterwards;
});
$node->stop;
log_is_clean($node);

# The queue is really full.
SKIP:
{
	skip 'the notification queue has 8 GB before PostgreSQL 17', 1 if $node->pg_version < 17;
	my $small = PostgreSQL::Test::Cluster->new('notify_small', install_path => $ENV{AL_HOOKS});

	$small->init;
	$small->append_conf('postgresql.conf', $settings . "max_notify_queue_pages = 64\n");
	$small->start;
	$small->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');
	check_full($small, 'full in fact', sub {
		my ($watch, $afterwards) = @_;

		if ($afterwards)
		{
			# A session that has heard all notifications makes room with the next one.
			poll($watch, q{SELECT pg_notification_queue_usage() < 0.5});
			return;
		}
		1 while told($watch, q{SELECT pg_notify('other', repeat('x', 7000) || random())}) !~ /^54000/ && ask($watch, 'SELECT pg_notification_queue_usage() < 0.99') eq 't';
		is(told($watch, q{SELECT pg_notify('other', repeat('x', 7000) || n) FROM generate_series(1, 100) n}), '54000', 'NOTIFY fails in a full queue');
	});
	$small->stop;
	log_is_clean($small);
}
done_testing();
