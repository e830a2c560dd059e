# Work in a block that has a lock, with atomic_lock on DBD::Pg
#
# perl block.pl 'dbi:Pg:host=...;dbname=...' plays a job, Bob and a DBA.  The database
# needs the extension and the role of setup.sql.
#
# Perl has no good thread for a heartbeat, and a signal is handled only after libpq has
# come back.  So statements that may take long are run asynchronously, with heartbeats
# on another connection while the server works, and step() is called between others.

use strict;
use warnings;
use utf8;
use DBD::Pg qw(:async);
use DBI;
use Digest::SHA qw(hmac_sha256_hex);
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC);

package Lock
{
	sub new
	{
		my ($class, $dsn, $key, $ttl, $holder, $every, $wait) = @_;
		open my $random, '<:raw', '/dev/urandom' or die $!;
		read $random, my $bytes, 16;
		my $lock = bless {
			connection => main::connect_to($dsn),    # a second one, since the work keeps the other busy
			key => $key, ttl => "$ttl s", every => $every, owner => 'job/' . unpack('H*', $bytes) }, $class;

		$lock->{token} = $lock->call(
			'SELECT fencing_token, extract(epoch FROM waited + ttl_remaining)
			 FROM lock_acquire(?, ?, ?, holder => ?, wait => ?)',
			$key, $lock->{ttl}, $lock->{owner}, $holder, "$wait s");
		return $lock;
	}

	# A call that returns the state of the lock, and the seconds that we still have it
	sub call
	{
		my ($lock, $sql, @values) = @_;
		my $asked = main::clock();
		my ($answer, $seconds) = $lock->{connection}->selectrow_array($sql, undef, @values);

		$lock->{until} = $asked + ($seconds // 0);    # counted from before the call
		$lock->{next} = $asked + $lock->{every};
		return $answer;
	}

	# Uses our own clock, so no server can make us wait
	sub is_ours { return main::clock() < $_[0]{until} }

	# Whether the work may go on; a heartbeat, if it is time for one
	sub step
	{
		my ($lock) = @_;

		$lock->{until} = 0
		  if main::clock() >= $lock->{next} && $lock->call(
			'SELECT status, extract(epoch FROM ttl_remaining) FROM lock_heartbeat(ARRAY[?], ?, ?)',
			@$lock{qw(key owner ttl)}) ne 'extended';
		return $lock->is_ours;
	}

	# A statement that may take long, on the connection of the work
	sub run
	{
		my ($lock, $work, $sql, @values) = @_;
		my $statement = $work->prepare($sql, { pg_async => DBD::Pg::PG_ASYNC });

		$statement->execute(@values);
		until ($work->pg_ready)
		{
			if (!$lock->step)
			{
				$work->pg_cancel;
				die "stopped\n";
			}
			select undef, undef, undef, .02;
		}
		$work->pg_result;
		return $statement->fetchrow_array;
	}
}

# The lock of a key for a sub
sub locked
{
	my ($dsn, $key, $ttl, $holder, $block, $every, $wait) = @_;
	my $lock = Lock->new($dsn, $key, $ttl, $holder, $every // $ttl / 3, $wait // 0);
	my $done = eval { $block->($lock); 1 };
	my $error = $@;
	my $answer = one($lock->{connection}, 'SELECT lock_try_release(?, ?)', @$lock{qw(key owner)});

	$lock->{connection}->disconnect;
	die { lost => $answer } if $answer ne 'released';
	die $error if !$done;
	return;
}

# A key that does not show its name to readers without the secret.
# The name has characters: decode bytes first.
sub hidden_key
{
	my ($secret, $name) = @_;

	die "the secret is shorter than 16 bytes\n" if length $secret < 16;
	utf8::encode($name);
	return hmac_sha256_hex($name, $secret);
}

sub clock { return clock_gettime(CLOCK_MONOTONIC) }

sub connect_to
{
	return DBI->connect($_[0], undef, undef, { RaiseError => 1, PrintError => 0 });
}

sub one
{
	my ($connection, $sql, @values) = @_;
	return scalar $connection->selectrow_array($sql, undef, @values);
}

sub wait_until
{
	my ($connection, $sql, @values) = @_;

	until (one($connection, $sql, @values)) { select undef, undef, undef, .02 }
	return;
}

# The driver cancels a call that waits.  The call has not acquired the lock then.
sub wait_and_give_up
{
	my ($connection, $other, $key) = @_;
	my $call = $connection->prepare("SELECT lock_acquire(?, wait => '1 min')", { pg_async => PG_ASYNC });

	$call->execute($key);
	wait_until($other, 'SELECT waiters > 0 FROM lock_status(?)', $key);
	return $connection->pg_cancel ? 'cancelled' : 'acquired';
}

sub say { print join(' ', @_), "\n"; return }

return 1 if caller;    # another program uses the block

# What happens in a night
my $dsn = shift;
my ($work, $bob, $other) = map { connect_to($dsn) } 1 .. 3;

locked($dsn, 'import:7', 600, 'nightly import', sub {
	my ($lock) = @_;

	say('The job has the lock:', $lock->is_ours ? 'go on' : 'stop');
	my $first = one($other, "SELECT expires_at FROM lock_status('import:7')");
	while (!one($other, "SELECT expires_at > ? FROM lock_status('import:7')", $first))
	{
		$lock->run($work, 'SELECT pg_sleep(0.1)');
	}
	say('Its heartbeat: the lease ends later');
	eval { one($bob, "SELECT lock_acquire('import:7')") };
	say('Bob:', $bob->state, $bob->pg_error_field('message_primary'));
	say('Bob waits, and gives up:', wait_and_give_up($bob, $other, 'import:7'));
}, .2);

eval { locked($dsn, 'import:7', 600, 'nightly import', sub { one($work, 'SELECT 1 / 0') }) };
say('The work fails:', $work->state);
say('Its lock:', one($other, "SELECT locked FROM lock_status('import:7')") ? 'held' : 'free');

eval {
	locked($dsn, 'import:7', 600, 'nightly import', sub {
		my ($lock) = @_;

		one($other, "SELECT force_release('import:7', 'it takes too long')");
		$lock->run($work, 'SELECT pg_sleep(600)');
	}, .2);
};
say('A DBA ends the lease, and the work is stopped:', ref $@ ? $@->{lost} : $@);

# Heartbeats that come too late, as after the sleep of a laptop
my ($take, $drop) = (q{SELECT lock_acquire(?, owner => 'bob')}, q{SELECT lock_release(?, 'bob')});
foreach my $overrun ([ 'import:8' ], [ 'import:9', $take ], [ 'import:10', $take, $drop ])
{
	my ($key, @meanwhile) = @$overrun;

	eval {
		locked($dsn, $key, .01, 'nightly import', sub {
			my ($lock) = @_;

			wait_until($other, 'SELECT NOT locked FROM lock_status(?)', $key);
			one($bob, $_, $key) foreach @meanwhile;
			say('Overrun:', $lock->is_ours ? 'go on' : 'stop');
		}, 3600);
	};
	say('At release:', ref $@ ? $@->{lost} : $@);
}

say('Hidden key:', hidden_key('0123456789abcdef', 'patient:Müller'));
eval { hidden_key('0123456789abcde', 'patient:Müller') };
print 'Hidden key: ', $@;
