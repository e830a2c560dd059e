# atomic_lock.lock_delay: a holding that ended without a release leaves its key closed.
#
# Properties: after a lease has expired, and after the end of a session that held
# the key (disconnected, terminated, killed with a crash of the server, or on the primary
# before a promotion), no owner gets the key for lock_delay.  The delay counts from the end
# of the holding or, where the server cannot know that, from the moment when it accepts
# writes again.  An acquire is refused at once, or waits; no sweep opens the key earlier, by
# hand or in the background.  No release of any kind closes a key.  None of this needs the
# preload.
#
# Turns red when: the row of a dead session counts as free; its end is counted
# from the first look at it, or from expires_at, which is infinite; it is
# counted from the start of the server; the sweep removes the row too early; a release
# closes the key.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use AtomicLockSweep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $settings = q{
log_statement = none
autovacuum = off
restart_after_crash = on
max_prepared_transactions = 5
atomic_lock.lock_delay = '1h'
};
my $node = PostgreSQL::Test::Cluster->new('lock_delay');
$node->init(allows_streaming => 1);
$node->append_conf('postgresql.conf', $settings . q{
shared_preload_libraries = 'atomic_lock'
atomic_lock.sweep_interval = '50ms'
});
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');

my ($watch, $holder, $one);

sub connect_all
{
	my ($server) = @_;
	end(grep { defined } $watch, $holder, $one);
	($watch, $holder, $one) = map { session($server, $_) } ('Watch', 'Holder', 'One');
	return;
}

sub is_closed
{
	my ($name, $key) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(ask($one, qq{SELECT status FROM lock_try_acquire('$key', '1 hour', 'one')}), 'held', "$name: closed");
	is(ask($one, qq{SELECT status FROM lock_try_acquire('$key', '1 hour', 'holder')}), 'held', '... also for the former owner');
	is(ask($watch, q{SELECT lock_sweep(), lock_sweep()}), '0|0', '... a sweep removes nothing');
	is(ask($watch, qq{SELECT count(*) FROM app_lock WHERE key = '$key'}), '1', '... the row is there');
	is(ask($one, qq{SELECT status FROM lock_try_acquire('$key', '1 hour', 'one', wait => '20 ms')}), 'timeout', '... and a call can wait for it');
	return;
}

# The hour of the delay counts from a moment between $since and $known.
# A session whose lock_delay has passed since $known gets the key.
sub opens
{
	my ($name, $key, $since, $known) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(ask($one, "SELECT closed_until - interval '1 hour' BETWEEN '$since' AND '$known' FROM lock_status('$key')"), 't', "$name: closed for an hour after the end");
	is(ask($one, "SELECT set_config('atomic_lock.lock_delay', floor(1000 * extract(epoch FROM clock_timestamp() - '$known'::timestamptz)) || 'ms', false) IS NULL; SELECT status FROM lock_try_acquire('$key', '1 hour', 'one'); RESET atomic_lock.lock_delay"),
		"f\nacquired", '... open to a session whose lock_delay has passed');
	is(ask($one, qq{SELECT lock_release('$key', 'one'); SELECT status FROM lock_try_acquire('$key', '1 hour', 'one'); SELECT lock_release('$key', 'one')}), "t\nacquired\nt", '... and open at once after a release');
	return;
}

sub now
{
	return ask($watch, 'SELECT clock_timestamp()');
}

sub for_session
{
	my ($key, $more) = @_;
	return "SELECT lock_acquire('$key', owner => 'holder', lifetime => 'session'" . ($more || '') . ')';
}

sub all_ways
{
	my ($server, $how) = @_;

	connect_all($server);
	ask($watch, 'TRUNCATE app_lock');

	# A lease
	my $end = ask($holder, q{SELECT expires_at FROM lock_acquire('lease', '50 ms', 'holder')});
	poll($watch, q{SELECT NOT locked FROM lock_status('lease')});
	is_closed("$how: a lease that expired", 'lease');
	opens("$how: a lease that expired", 'lease', $end, $end);
	$end = ask($holder, q{SELECT lock_acquire('lease', '1 hour', 'holder') IS NOT NULL; SELECT lock_extend('lease', 'holder', '20 ms')}) =~ s/^t\n//r;
	poll($watch, q{SELECT NOT locked FROM lock_status('lease')});
	opens("$how: a lease that was extended, and expired", 'lease', $end, $end);

	# Ends that close no key
	foreach my $release (
		[ 'lock_release', q{SELECT lock_acquire('clean', '1 hour', 'holder'); SELECT lock_release('clean', 'holder')} ],
		[ 'lock_release_all', q{SELECT lock_acquire('clean', '1 hour', 'holder'); SELECT lock_release_all('holder')} ],
		[ 'lock_release of a lock for the session', for_session('clean') . q{; SELECT lock_release('clean', 'holder')} ],
		[ 'force_release', q{SELECT lock_acquire('clean', '1 hour', 'holder'); SELECT force_release('clean', 'test')} ],
		[ 'ROLLBACK', q{BEGIN; SELECT lock_acquire('clean', '1 hour', 'holder'); ROLLBACK} ],
		[ 'the end of a transaction', q{BEGIN; SELECT lock_acquire('clean', owner => 'holder', lifetime => 'transaction'); COMMIT} ],
		[ 'a release after an extension', q{SELECT lock_acquire('clean', '1 hour', 'holder'), lock_extend('clean', 'holder', '2 hours'); SELECT lock_release('clean', 'holder')} ])
	{
		my ($name, $sql) = @$release;

		ask($holder, $sql);
		is(ask($one, q{SELECT status FROM lock_try_acquire('clean', '1 hour', 'one'); SELECT lock_release('clean', 'one')}), "acquired\nt", "$how: open after $name");
	}

	# The end of a reader closes the key to writers only.
	ask($holder, q{SELECT lock_acquire('read', '20 ms', 'holder', 'shared')});
	poll($watch, q{SELECT NOT locked FROM lock_status('read')});
	is(ask($one, q{SELECT status FROM lock_try_acquire('read', '1 hour', 'one', 'shared'); SELECT lock_release('read', 'one'); SELECT status FROM lock_try_acquire('read', '1 hour', 'one')}), "acquired\nt\nheld", "$how: the end of a reader closes the key to writers, not to readers");

	# The end of a session
	foreach my $death ('terminate', 'disconnect', 'DISCARD ALL', 'client killed')
	{
		my $key = $death =~ s/ /-/gr;
		my $pid = pid($holder);

		ask($holder, for_session($key));
		my $since = now();
		$death eq 'terminate' ? ask($watch, "SELECT pg_terminate_backend($pid)")
		  : $death eq 'DISCARD ALL' ? ask($holder, $death)
		  : $death eq 'disconnect' ? end($holder)
		  : $holder->{run}->signal('KILL');
		gone($watch, $pid) if $death ne 'DISCARD ALL';
		my $known = now();
		is_closed("$how: a session, $death", $key);
		opens("$how: a session, $death", $key, $since, $known);
		next if $death eq 'DISCARD ALL';
		end($holder);
		$holder = session($server, 'Holder');
	}

	# A session whose lease had expired before the session ended
	$end = ask($holder, q{SELECT expires_at FROM lock_acquire('both', '50 ms', 'holder', lifetime => 'session')});
	poll($watch, q{SELECT NOT locked FROM lock_status('both')});
	my $pid = pid($holder);
	end($holder);
	gone($watch, $pid);
	is_closed("$how: a session whose lease had expired before it ended", 'both');
	opens("$how: a session whose lease had expired before it ended", 'both', $end, now());

	# Sessions that cannot clear a row at their end, because another transaction has claimed it
	$holder = session($server, 'Holder');
	ask($holder, for_session('left'));
	ask($one, q{BEGIN; SELECT lock_extend('left', 'holder')});
	my $since = now();
	$pid = pid($holder);
	end($holder);
	gone($watch, $pid);
	my $known = now();
	ask($one, 'ROLLBACK');
	is_closed("$how: a session that could not clear its row", 'left');
	$holder = session($server, 'Holder');
	ask($holder, for_session('later'));
	ask($one, q{BEGIN; SELECT lock_extend('later', 'holder')});
	$pid = pid($holder);
	end($holder);
	gone($watch, $pid);
	ask($one, 'ROLLBACK');
	SKIP:
	{
		skip 'the time of a death is known in shared memory only', 3 if $how =~ /^not/ && $server->pg_version < 17;
		opens("$how: ... also when another session could not clear its row since", 'left', $since, $known);
	}
	is_closed("$how: ... whose key is closed, too", 'later');

	# Sessions whose holding is prepared when they end
	$holder = session($server, 'Holder');
	ask($holder, 'BEGIN; ' . for_session('prepared') . q{; PREPARE TRANSACTION 'p'});
	$since = now();
	$pid = pid($holder);
	end($holder);
	gone($watch, $pid);
	ask($one, q{COMMIT PREPARED 'p'});
	$known = now();
	is_closed("$how: a session whose prepared transaction ends after it", 'prepared');
	opens("$how: a session whose prepared transaction ends after it", 'prepared', $since, $known) unless $how =~ /^not/ && $server->pg_version < 17;
	$holder = session($server, 'Holder');

	# A crash
	ask($holder, q{SELECT lock_acquire('lives', '1 hour', 'holder'); SELECT lock_acquire('short', '1 ms', 'holder'); SELECT lock_acquire('given', '1 hour', 'holder'); SELECT lock_release('given', 'holder')});
	foreach my $death ('kill the session', 'kill another', 'stop immediate', 'stop fast')
	{
		my $key = $death =~ s/ /-/gr;

		ask($holder, for_session($key));
		ask($holder, for_session("$key-ttl", q{, ttl => '2 hours'}));
		my $since = now();
		if ($death =~ /kill/)
		{
			my $offset = -s $server->logfile;
			kill 'KILL', pid($death =~ /session/ ? $holder : $watch);
			end($watch, $holder, $one);
			$server->wait_for_log(qr/all server processes terminated; reinitializing/, $offset);
			await_restart($server);
		}
		else
		{
			end($watch, $one);
			$server->stop($death =~ s/stop //r);
			$server->start;
		}
		connect_all($server);
		is_closed("$how: $death", $_) for ($key, "$key-ttl");
		# Without preloading, PostgreSQL 17 and later know the end from the first look on.
		my $known = now();
		opens("$how: $death", $_, $since, $known) for ($key, "$key-ttl");
		is(ask($one, q{SELECT lock_is_held('lives', 'holder'); SELECT status FROM lock_try_acquire('short', '1 hour', 'one')}), "t\nheld", '... a lease is still held, the key of an expired one is still closed');
		is(ask($one, q{SELECT status FROM lock_try_acquire('given', '1 hour', 'one'); SELECT lock_release('given', 'one')}), "acquired\nt", '... the key of a released lease is open');
	}
	return;
}

all_ways($node, 'preloaded');

# A promotion
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
ask($holder, for_session('before') . '; SELECT ' . q{lock_acquire('ended', '1 hour', 'holder'); SELECT lock_release('ended', 'holder')});
ask($holder, q{SELECT lock_acquire('lease', '1 ms', 'holder')});
$node->wait_for_catchup($standby);
my $reader = session($standby, 'Reader');
$node->stop('immediate');
my $since = ask($reader, 'SELECT clock_timestamp()');
$standby->promote;
poll($reader, 'SELECT NOT pg_is_in_recovery()');
connect_all($standby);
my $known = now();
is_closed('the lock of a session, after a promotion', 'before');
is_closed('a lease that expired before a promotion', 'lease');
opens('the lock of a session, after a promotion', 'before', $since, $known);
is(ask($one, q{SELECT status FROM lock_try_acquire('ended', '1 hour', 'one')}), 'acquired', 'the key of a lease that was released before a promotion is open');
end($reader);

# The background sweep keeps the rows of closed keys, and removes them when the keys are open.
ask($watch, 'TRUNCATE app_lock');
ask($holder, for_session('left') . q{; SELECT lock_acquire('lease', '1 ms', 'holder')});
end($holder);
$holder = session($standby, 'Holder');
my $sweeps = ask($watch, q{SELECT last_swept_at FROM lock_sweeper_status() WHERE database = 'postgres'}) || '-infinity';
configure($standby, $watch, q{atomic_lock.released_retention = 0});
ask($holder, q{SELECT lock_acquire('passed', '1 hour', 'holder'); SELECT lock_release('passed', 'holder')});
ok(soon($watch, q{SELECT count(*) = 0 FROM app_lock WHERE key = 'passed'}), 'a background sweep has run');
is(ask($watch, q{SELECT string_agg(key, ' ' ORDER BY key) FROM app_lock}), 'lease left', '... and keeps the rows of closed keys');
configure($standby, $watch, q{atomic_lock.lock_delay = '1ms'});
ok(soon($watch, q{SELECT count(*) = 0 FROM app_lock}), '... until the keys are open');
end($watch, $holder, $one);
$standby->stop;

# Without preloading
$node->append_conf('postgresql.conf', q{shared_preload_libraries = ''});
$node->start;
($watch, $holder, $one) = ();
all_ways($node, 'not preloaded');
end($watch, $holder, $one);
$node->stop;
log_is_clean($_, killed => 1) for ($node, $standby);

done_testing();
