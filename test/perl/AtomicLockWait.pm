# Sessions that wait for locks, for the TAP tests of waiting.

package AtomicLockWait;

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use Exporter 'import';
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT = qw(@build sleeping_server session start streams answer reply told end gone poll is_waiting queue_up pid play_endings);

# The arguments for PostgreSQL::Test::Cluster->new that choose a build with AL_TEST_HOOKS, if there is one
our @build = $ENV{AL_HOOKS} ? (install_path => $ENV{AL_HOOKS}) : ();

# A server whose waiters, in a build with AL_TEST_HOOKS, sleep for an hour unless they are
# woken: a lost wake-up is a wait that does not end.  No sweep wakes them, either.
sub sleeping_server
{
	my ($name, $settings, %init) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name, @build);

	note @build ? 'a build with hooks' : 'waiters look again every second';
	$node->init(%init);
	$node->append_conf(
		'postgresql.conf', qq{
shared_preload_libraries = 'atomic_lock'
log_statement = none
autovacuum = off
deadlock_timeout = 1h
atomic_lock.max_wait = 1h
max_prepared_transactions = 10
atomic_lock.sweep_interval = 0
$settings
});
	$node->append_conf('postgresql.conf', "atomic_lock.test_sleep_cap = 1h\n") if @build;
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');
	return $node;
}

# A background psql.  The label is its application_name, and so the label of its locks
# and waits.  Errors are shown with their SQLSTATE.
sub session
{
	my ($node, $label, $database) = @_;
	my $psql = $node->background_psql($database || 'postgres', on_error_stop => 0);

	# The timeout applies to each answer, not to the life of the session.
	$psql->set_query_timer_restart;
	$psql->{al_pid} = ask($psql, "\\set VERBOSITY verbose\nSET application_name = '$label'; SET client_min_messages = error; SELECT pg_backend_pid()");
	$psql->{al_sent} = 0;
	return $psql;
}

# Process id of its backend
sub pid
{
	my ($psql) = @_;
	return $psql->{al_pid};
}

# Send SQL, and do not wait for its end.
sub start
{
	my ($psql, $sql) = @_;
	my $number = ++$psql->{al_sent};

	$psql->{timeout}->start;
	$psql->{stdin} .= "$sql\n;\n\\echo 'end of $number'\n\\warn 'end of $number'\n";
	$psql->{run}->pump_nb;
	return;
}

# The output of the SQL that was last started, and its errors, once it has ended, also if
# it ended because the session is gone
sub streams
{
	my ($psql) = @_;
	my $end = qr/end of $psql->{al_sent}\r?\n/;
	my ($out, $err);

	$psql->{timeout}->start;
	while (!($psql->{stdout} =~ $end && $psql->{stderr} =~ $end))
	{
		# When psql is no longer pumpable, its last output is in the buffers.
		last unless $psql->{run}->pumpable;
		my $pumped = eval { $psql->{run}->pump };
		die 'an answer that does not come' if $psql->{timeout}->is_expired;
		last unless $pumped;
	}
	($out, $err) = @{$psql}{ 'stdout', 'stderr' };
	$psql->{stdout} = $psql->{stderr} = '';
	s/$end// for ($out, $err);
	$err =~ s/^psql:\S+ //mg;
	return ($out, $err);
}

# The answer of the SQL that was last started, or its errors
sub answer
{
	my ($out, $err) = streams(@_);

	$out =~ s/\n\z//;
	return $err ne '' ? $err : $out;
}

# Send SQL, and wait for its answer, or its errors.  Unlike ask(), reply() survives an
# error.
sub reply
{
	my ($psql, $sql) = @_;

	start($psql, $sql);
	return answer($psql);
}

# The answer of SQL, or the SQLSTATE of its error
sub told
{
	my ($psql, $sql) = @_;
	my $reply = reply($psql, $sql);

	return $reply =~ /^(?:ERROR|FATAL):  (\w{5}):/m ? $1 : $reply;
}

# End sessions, also those that are already gone.
sub end
{
	foreach my $psql (@_)
	{
		$psql->{timeout}->start;
		eval { $psql->quit };
	}
	return;
}

# Ask until the answer is "t".
sub poll
{
	my ($psql, $sql) = @_;
	my $tries = 100 * $PostgreSQL::Test::Utils::timeout_default;

	while (ask($psql, $sql) ne 't')
	{
		die "never true: $sql" if --$tries < 0;
		usleep(10_000);
	}
	return;
}

# Wait until a backend has ended.
sub gone
{
	my ($psql, $pid) = @_;

	poll($psql, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid");
	return;
}

# Is the backend of a session in the queue, as another session sees it?
sub is_waiting
{
	my ($watch, $psql) = @_;
	return ask($watch, "SELECT count(*) FROM lock_waiters WHERE pid = $psql->{al_pid}") eq '1';
}

# Start SQL that waits for a lock, and return when its backend is in the queue (or when the query $waits
# is true), or has been in it: on a busy machine a short wait may end before this session looks.
sub queue_up
{
	my ($watch, $psql, $sql, $waits) = @_;
	$waits //= "SELECT count(*) = 1 FROM lock_waiters WHERE pid = $psql->{al_pid}";

	start($psql, $sql);
	while (ask($watch, $waits) ne 't')
	{
		last if !$psql->{run}->pumpable;
		eval { $psql->{run}->pump_nb; 1 } or last;
		last if $psql->{stdout} =~ /end of $psql->{al_sent}\n/;
		die 'a wait that does not begin' if $psql->{timeout}->is_expired;
		usleep(10_000);
	}
	return;
}

# The ways that a key becomes free: name, SQL of the holder before
# a session waits for KEY, the session that then ends the holding (the holder or another), and
# its SQL.  If one of the answers is a moment, the key is not free before the last of these moments.
# A lease that is short from the beginning may end before the wait begins.
sub endings
{
	my $acquire = q{SELECT lock_acquire('KEY', '1 hour', 'holder')};
	my $short = q{SELECT expires_at FROM lock_acquire('KEY', '400 ms', 'holder')};
	my $clock = 'SELECT clock_timestamp()';

	return (
		[ 'release', $acquire, 'holder', q{SELECT lock_release('KEY', 'holder')} ],
		[ 'lock_release_all', $acquire, 'holder', q{SELECT lock_release_all('holder')} ],
		[ 'release by another session', $acquire, 'other', q{SELECT lock_try_release('KEY', 'holder')} ],
		[ 'release at commit', $acquire, 'holder', qq{BEGIN; SELECT lock_release('KEY', 'holder'); $clock; COMMIT} ],
		[ 'release in a savepoint, at commit', $acquire, 'holder',
			qq{BEGIN; SAVEPOINT s; SELECT lock_release('KEY', 'holder'); RELEASE s; $clock; COMMIT} ],
		[ 'release, rolled back and done again', $acquire, 'holder',
			qq{BEGIN; SAVEPOINT s; SELECT lock_release('KEY', 'holder'); ROLLBACK TO s; SELECT lock_release('KEY', 'holder'); $clock; COMMIT} ],
		[ 'release of what was extended in the transaction', "BEGIN; $acquire; SAVEPOINT s", 'holder',
			qq{SELECT lock_extend('KEY', 'holder', '2 hours'); RELEASE s; SELECT lock_release('KEY', 'holder'); $clock; COMMIT} ],
		[ 'force_release', $acquire, 'other', q{SELECT force_release('KEY', 'test')} ],
		[ 'lock_steal and release', $acquire, 'other', q{SELECT lock_steal('KEY', 'thief', 'test'); SELECT lock_release('KEY', 'thief')} ],
		[ 'lock_steal, whose lease runs out', $acquire, 'other', q{SELECT expires_at FROM lock_steal('KEY', 'thief', 'test', '300 ms')} ],
		[ 'expiry', $short, 'other', 'SELECT 1' ],
		[ 'expiry of a lease that was granted meanwhile', "BEGIN; $short", 'holder', 'COMMIT' ],
		[ 'expiry after extension', $short, 'holder', q{SELECT lock_try_extend('KEY', 'holder', '600 ms')} ],
		[ 'a shorter lease', $acquire, 'holder', q{SELECT lock_extend('KEY', 'holder', '300 ms')} ],
		[ 'a shorter lease, then released', $acquire, 'holder', q{SELECT lock_extend('KEY', 'holder', '30 min') IS NOT NULL; SELECT lock_release('KEY', 'holder')} ],
		[ 'an extension rolled back', $short, 'holder', q{BEGIN; SELECT lock_try_extend('KEY', 'holder', '1 hour') IS NULL; ROLLBACK} ],
		[ 'rollback of an acquire', "BEGIN; $acquire", 'holder', "$clock; ROLLBACK" ],
		[ 'error after an acquire', "BEGIN; $acquire", 'holder', 'SELECT 1 / 0' ],
		[ 'ROLLBACK TO SAVEPOINT of an acquire', "BEGIN; SAVEPOINT s; $acquire", 'holder', "$clock; ROLLBACK TO s" ],
		[ 'ROLLBACK TO an outer SAVEPOINT', "BEGIN; SAVEPOINT r; SAVEPOINT s; $acquire; RELEASE s; SAVEPOINT t", 'holder', "$clock; ROLLBACK TO r" ],
		[ 'rollback of an acquire, after that of another savepoint',
			"BEGIN; SAVEPOINT s; $acquire; RELEASE s; SAVEPOINT t; ROLLBACK TO t", 'holder', "$clock; ROLLBACK" ],
		[ 'a release in a transaction that acquired it', "BEGIN; $acquire", 'holder', qq{SELECT lock_release('KEY', 'holder'); $clock; COMMIT} ],
		[ 'a procedure that commits', $acquire, 'holder',
			q{DO $$ BEGIN PERFORM lock_release('KEY', 'holder'); COMMIT; PERFORM lock_acquire('KEY-other', '1 hour', 'holder'); END $$} ],
		[ 'end of a session', "BEGIN; $acquire", 'holder', '\q' ],
		[ 'termination of a session', "BEGIN; $acquire", 'other', 'SELECT clock_timestamp(), pg_terminate_backend(PID)' ]);
}

# Play all endings, each with a key of its own.  $wait is called with the key
# and must start the wait of $waiter, as owner "waiter"; $check is called with the name of the
# ending and the answers of its SQL, and must fetch the answer of the waiter.  $mode, if
# given, is the mode of the holder.  Returns the session of the holder, which may be a new one.
sub play_endings
{
	my ($node, $holder, $waiter, $other, $wait, $check, $mode) = @_;
	my $number = 0;

	foreach my $ending (endings())
	{
		my ($name, $before, $who, $sql) = @$ending;
		my $key = join('-', 'ending', $mode // (), ++$number);
		my $ends = $who eq 'holder' ? $holder : $other;

		s/(lock_acquire\('KEY', '[^']+', 'holder')/$1, '$mode'/g for ($mode ? ($before, $sql) : ());
		($before, $sql) = map { s/KEY/$key/gr =~ s/PID/pid($holder)/er } ($before, $sql);
		$before = ask($holder, $before);
		$wait->($key);
		start($ends, $sql);
		$check->($name, "$before\n" . answer($ends));
		ask($waiter, qq{SELECT lock_try_release('$key', 'waiter')});
		if ($name =~ /of a session/)
		{
			end($holder);
			$holder = session($node, 'Holder');
		}
		ask($holder, q{ROLLBACK; SELECT lock_release_all('holder')});
	}
	return $holder;
}

1;
