# Listeners and tickets, for the TAP tests of events and the queue.

package AtomicLockQueue;

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use Exporter 'import';
use JSON::PP;
use PostgreSQL::Test::Utils;
use Time::HiRes qw(usleep);

our @EXPORT = qw(listen_to hear heard heard_soon line_of try_as);

# Have a session listen to the events of keys.
sub listen_to
{
	my ($psql, @keys) = @_;

	ask($psql, qq{SELECT format('LISTEN %I', lock_channel('$_')) \\gexec}) foreach @keys;
	return;
}

# The events that a session was sent since its last statement.  Those of earlier commits
# are there, since a commit that notifies signals all listeners before it is answered; but
# events of a commit that was only seen, and not answered, may be missing: see heard_soon().
sub hear
{
	my ($psql) = @_;
	my @payloads = ask($psql, 'SELECT 1') =~ /^Asynchronous notification "atomic_lock_[^"]*" with payload "(.*)" received from/mg;

	return map { JSON::PP->new->decode($_) } @payloads;
}

# The same in words: each event, and its holder
sub heard
{
	my ($psql) = @_;
	return join ', ', map { "$_->{event} " . ($_->{holder} // '-') } hear($psql);
}

# The same, as soon as there is one
sub heard_soon
{
	my ($psql) = @_;
	my $heard;

	for (1 .. 100 * $PostgreSQL::Test::Utils::timeout_default)
	{
		last if ($heard = heard($psql)) ne '';
		usleep(10_000);
	}
	return $heard;
}

# The line for a key: labels in order, with a star at the ticket that has the offer
sub line_of
{
	my ($psql, $key) = @_;
	return ask($psql, qq{SELECT string_agg(holder || CASE WHEN offered_until IS NOT NULL THEN '*' ELSE '' END, ' ' ORDER BY place) FROM lock_queue WHERE key = '$key'});
}

# SQL that tries to acquire a key; its answer is the status and, if it is
# refused, the label of the first in line or the holder.
sub try_as
{
	my ($owner, $key) = @_;
	return qq{SELECT status, CASE WHEN acquired THEN '' ELSE holder END FROM lock_try_acquire('$key', '1 hour', '$owner')};
}

1;
