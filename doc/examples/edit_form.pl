# An edit form with atomic_lock, on DBD::Pg
#
# perl edit_form.pl 'dbi:Pg:host=...;dbname=...' plays Alice, Bob and a job.  The
# database needs the extension and the table of setup.sql.

use strict;
use warnings;
use DBI;

# One request: a transaction with our owner
sub request
{
	my ($db, $owner, $work) = @_;
	my @answer;

	$db->begin_work;
	if (!eval {
		$db->do(q{SELECT set_config('atomic_lock.owner', ?, true)}, undef, $owner);
		@answer = $work->();
		$db->commit;
		1;
	})
	{
		my $error = $@;
		my @what = ($db->state, $db->pg_error_field('message_primary'));    # as long as it is known

		$db->rollback;
		die { state => $what[0], message => $what[1], error => $error };
	}
	return wantarray ? @answer : $answer[0];
}

# Take the lock, then read.  Without the lock, the form is shown for reading only.
sub open_form
{
	my ($db, $owner, $order, $user) = @_;

	return request($db, $owner, sub {
		my @lock = $db->selectrow_array(q{SELECT status, holder
			FROM lock_try_acquire(lock_key('order', ?), ttl => '5 min', holder => ?)}, undef, $order, $user);
		return (@lock, $db->selectrow_array('SELECT note FROM orders WHERE id = ?', undef, $order));
	});
}

# The page calls this every 100 seconds, a third of the lease.
sub keep_open
{
	my ($db, $owner, $order) = @_;

	return request($db, $owner, sub {
		my ($until) = $db->selectrow_array(q{SELECT lock_try_extend(lock_key('order', ?))}, undef, $order);
		return defined $until ? 'extended' : 'lost';
	});
}

# The guard of the table refuses this without the lock.
sub save
{
	my ($db, $owner, $order, $note) = @_;
	return 'saved'
	  if eval {
		request($db, $owner, sub { $db->do('UPDATE orders SET note = ? WHERE id = ?', undef, $note, $order) });
		1;
	  };
	die $@ if !ref $@ || $@->{state} ne 'LK006';
	return "refused: $@->{message}";
}

# The answer is a word for the result.
sub close_form
{
	my ($db, $owner, $order) = @_;

	return scalar request($db, $owner,
		sub { $db->selectrow_array(q{SELECT lock_try_release(lock_key('order', ?))}, undef, $order) });
}

# From the form to a job.  The job has its own owner, and the form no longer has the lock.
sub hand_over
{
	my ($db, $owner, $order, $job) = @_;

	return scalar request($db, $owner, sub {
		$db->selectrow_array(q{SELECT status FROM lock_transfer(lock_key('order', ?), owner => ?, new_owner => ?,
			holder => 'nightly export', ttl => '10 min')}, undef, $order, $owner, $job);
	});
}

sub say { print join(' ', @_), "\n"; return }

# What happens in an afternoon
my ($alice, $tab2, $bob) = ('session-8f14e45f/tab-1', 'session-8f14e45f/tab-2', 'session-c9f0f895/tab-1');
my @connect = (shift, undef, undef, { RaiseError => 1, PrintError => 0 });
my $db = DBI->connect(@connect);

say('Alice opens 42:', (open_form($db, $alice, 42, 'Alice'))[0]);
say('Alice opens 42 in another tab:', (open_form($db, $tab2, 42, 'Alice'))[ 0, 1 ]);
say('Bob opens 42:', (open_form($db, $bob, 42, 'Bob'))[ 0, 1 ]);
say('Bob saves:', save($db, $bob, 42, 'of Bob'));
say('Alice goes on:', keep_open($db, $alice, 42));
say('Alice saves:', save($db, $alice, 42, 'of Alice'));

# The owner comes with each request, so the application may forget everything.
$db->disconnect;
$db = DBI->connect(@connect);
say('After a restart, Alice goes on:', keep_open($db, $alice, 42));
say('Alice reloads the page:', (open_form($db, $alice, 42, 'Alice'))[0]);

say('Alice hands 42 to a job:', hand_over($db, $alice, 42, 'job-17'));
say('Alice saves:', save($db, $alice, 42, 'of Alice, too late'));
say('The job saves:', save($db, 'job-17', 42, 'exported'));
say('The job ends:', close_form($db, 'job-17', 42));

# Alice goes to lunch; a colleague has her lock ended, and Bob takes it.
say('Alice opens 42:', (open_form($db, $alice, 42, 'Alice'))[0]);
$db->do(q{SELECT force_release('order:42', 'Alice is at lunch')});
say('Bob opens 42:', (open_form($db, $bob, 42, 'Bob'))[0]);
say('Alice goes on:', keep_open($db, $alice, 42));
say('Alice saves:', save($db, $alice, 42, 'of Alice, after lunch'));
say('Alice closes:', close_form($db, $alice, 42));
say('Bob closes:', close_form($db, $bob, 42));

say('The order is now:', $db->selectrow_array('SELECT note FROM orders WHERE id = 42'));
$db->disconnect;
