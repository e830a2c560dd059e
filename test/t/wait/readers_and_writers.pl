# Readers and writers that wait in one queue.
#
# Properties: both modes have one queue, in the order of arrival; readers with no writer
# before them get in together, also where one of them is stopped; a reader that comes later
# passes no waiting writer, with or without a wait of its own, but a reader that has the lock
# may keep it; when a waiter leaves the queue, in whatever way, those behind it get
# their turn; an upgrade (a reader that converts to exclusive) goes before other waiters,
# since its share keeps them out anyway; a second upgrade would wait for ever and is refused
# at once; a writer that converts to shared lets the readers at the head of the queue in.  All this
# is true of the folders of paths.
#
# Turns red when: readers get in one after the other; a stream of readers
# keeps a writer out; readers still wait behind a writer that has given up; a writer
# gets in beside a reader; an upgrade waits behind waiters that it blocks, or a view shows it
# behind a ticket; a newcomer gets below a folder that a writer waits for.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = sleeping_server('shared_wait', 'max_connections = 30');

my $watch = session($node, 'Watch');
my %session;
my $number = 0;
my $key;

# A session by its label, which is also its owner
sub by
{
	my ($who) = @_;
	return $session{$who} //= session($node, $who);
}

# Each case has a key of its own.
sub case
{
	my ($name) = @_;
	$key = 'key ' . ++$number;
	note($name);
	return;
}

# The request of a session, without a wait and with one
sub acquire
{
	my ($who, $mode, $more) = @_;
	return "SELECT status, mode, holder FROM lock_try_acquire('$key', '1 hour', '$who', '$mode', holder => '$who'" . ($more // '') . ')';
}
sub try
{
	my ($who, $mode, $more) = @_;
	return ask(by($who), acquire($who, $mode, $more));
}
sub wait_for
{
	my ($who, $mode, $wait) = @_;
	queue_up($watch, by($who), acquire($who, $mode, ", wait => '" . ($wait // '1 h') . "'"));
	return;
}
sub convert
{
	my ($who, $mode, $wait) = @_;
	return "SELECT status, mode, holder FROM lock_convert('$key', '$who', '$mode', '" . ($wait // '1 h') . "')";
}
sub release
{
	my ($who) = @_;
	return ask(by($who), "SELECT lock_release('$key', '$who')");
}

# The waiters in their order, and the holders
sub queue
{
	return ask($watch, "SELECT string_agg(holder || ' ' || mode, ', ' ORDER BY place) FROM lock_waiters WHERE key = '$key'");
}
sub holders
{
	return ask($watch, "SELECT string_agg(holder || ' ' || mode, ', ' ORDER BY holder) FROM lock_status() WHERE key = '$key'");
}

# These waiters have been granted the key.
sub granted
{
	my ($name, $mode, @who) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(answer(by($_)), "acquired|$mode|$_", "$name: $_") for @who;
	return;
}

case('readers behind a writer');
is(try('Writer', 'exclusive'), 'acquired|exclusive|Writer', 'a writer');
wait_for("Reader $_", 'shared') for (1 .. 5);
is(queue(), join(', ', map { "Reader $_ shared" } (1 .. 5)), 'five readers wait');
is(ask($watch, "SELECT count(*) FROM lock_waiters WHERE key = '$key' AND blocked_by = 'Writer'"), 5, '... for the writer');
release('Writer');
granted('readers are let in together', 'shared', map { "Reader $_" } (1 .. 5));
is(holders(), join(', ', map { "Reader $_ shared" } (1 .. 5)), '... and have the lock at the same time');
is(queue(), '', '... and the queue is empty');
release("Reader $_") for (1 .. 5);

case('readers behind a writer, in transactions that stay open');
try('Writer', 'exclusive');
ask(by("Reader $_"), 'BEGIN') for (1 .. 3);
wait_for("Reader $_", 'shared') for (1 .. 3);
release('Writer');
granted('all readers are let in before any of them commits', 'shared', map { "Reader $_" } (1 .. 3));
ask(by("Reader $_"), 'COMMIT') for (1 .. 3);

SKIP:
{
	skip 'needs a build with AL_TEST_HOOKS', 1 unless @build;

	case('a reader that is stopped when it is woken');
	try('Writer', 'exclusive');
	ask(by('Gate'), 'SELECT pg_advisory_lock(1706)');
	ask(by('Reader 1'), q{SET atomic_lock.test_pause_at = 'woken'});
	wait_for("Reader $_", 'shared') for (1 .. 3);
	release('Writer');
	granted('readers do not wait for one that is stopped', 'shared', 'Reader 2', 'Reader 3');
	ask(by('Gate'), 'SELECT pg_advisory_unlock_all()');
	granted('it gets in when it continues', 'shared', 'Reader 1');
	ask(by('Reader 1'), 'RESET atomic_lock.test_pause_at');
}

case('a reader that comes after a writer');
try('Reader 1', 'shared');
wait_for('Writer', 'exclusive');
is(try('Reader 2', 'shared'), 'held||Writer', 'a new reader does not pass a writer that waits');
start(by('Reader 2'), "SELECT lock_acquire('$key', '1 hour', 'Reader 2', 'shared')");
like(answer(by('Reader 2')), qr/^ERROR:  55P03: lock "$key" is about to go to Writer, who is waiting for it\n/, '... and its error says so');
is(try('Reader 2', 'shared', ", wait => '10 ms'"), 'timeout||Writer', '... nor with a short wait');
is(ask(by('Reader 2'), "SELECT status, holder FROM lock_try_acquire('$key', owner => 'Reader 2', mode => 'shared', lifetime => 'transaction')"), 'held|Writer', '... nor with the lifetime of a transaction');
is(ask(by('Reader 2'), "SELECT status, holder FROM lock_try_acquire_all(ARRAY['$key', 'other'], owner => 'Reader 2', mode => 'shared')"), 'held|Writer', '... nor with a set');
is(try('Reader 1', 'shared'), 'reacquired|shared|Reader 1', 'a reader that has the lock may acquire it again');
is(ask(by('Reader 1'), "SELECT lock_extend('$key', 'Reader 1') IS NOT NULL"), 't', '... and may extend it');
is(ask(by('Reader 1'), convert('Reader 1', 'shared', '0')), 'reacquired|shared|Reader 1', '... and convert it to its own mode');
wait_for('Reader 2', 'shared');
wait_for('Reader 3', 'shared');
is(queue(), 'Writer exclusive, Reader 2 shared, Reader 3 shared', 'new readers wait behind the writer');
release('Reader 1');
granted('the writer is first', 'exclusive', 'Writer');
is(queue(), 'Reader 2 shared, Reader 3 shared', '... and the readers continue to wait');
release('Writer');
granted('then the readers', 'shared', 'Reader 2', 'Reader 3');

foreach my $end (
	[ 'its wait runs out', sub { wait_for('Writer', 'exclusive', '700 ms') }, sub { }, qr/^timeout/ ],
	[ 'it is canceled', sub { wait_for('Writer', 'exclusive') }, sub { ask($watch, 'SELECT pg_cancel_backend(' . pid(by('Writer')) . ')') }, qr/^ERROR:  57014/ ],
	[ 'its session is terminated', sub { wait_for('Writer', 'exclusive') }, sub { ask($watch, 'SELECT pg_terminate_backend(' . pid(by('Writer')) . ')') }, qr/57P01/ ])
{
	my ($name, $wait, $give_up, $answer) = @$end;

	case("a writer gives up: $name");
	try('Reader 1', 'shared');
	$wait->();
	wait_for('Reader 2', 'shared');
	wait_for('Reader 3', 'shared');
	$give_up->();
	like(answer(by('Writer')), $answer, "a writer gives up: $name");
	granted('readers behind it get in', 'shared', 'Reader 2', 'Reader 3');
	is(holders(), join(', ', map { "Reader $_ shared" } (1 .. 3)), '... beside the reader that was there');
	end(delete $session{Writer}) if $name =~ /terminated/;
}

case('a queue of readers and writers');
try('Writer', 'exclusive');
wait_for('Reader 1', 'shared');
wait_for('Reader 2', 'shared');
wait_for('Writer 2', 'exclusive');
wait_for('Reader 3', 'shared');
is(queue(), 'Reader 1 shared, Reader 2 shared, Writer 2 exclusive, Reader 3 shared', 'readers and writers wait in the order of arrival');
release('Writer');
granted('the readers before the next writer get in', 'shared', 'Reader 1', 'Reader 2');
is(queue(), 'Writer 2 exclusive, Reader 3 shared', '... and not the reader behind it');
release('Reader 1');
is(queue(), 'Writer 2 exclusive, Reader 3 shared', 'one of two readers releases: the writer still waits');
release('Reader 2');
granted('the other one releases: the writer gets in', 'exclusive', 'Writer 2');
release('Writer 2');
granted('the last reader gets in', 'shared', 'Reader 3');

case('a reader gives up');
try('Writer', 'exclusive');
wait_for('Reader 1', 'shared', '500 ms');
wait_for('Writer 2', 'exclusive');
wait_for('Reader 2', 'shared');
is(answer(by('Reader 1')), 'timeout|exclusive|Writer', 'a reader at the head of the queue gives up');
is(queue(), 'Writer 2 exclusive, Reader 2 shared', '... and the others keep their order');
release('Writer');
granted('then the writer gets in', 'exclusive', 'Writer 2');
release('Writer 2');
granted('then the reader gets in', 'shared', 'Reader 2');

case('an upgrade');
try('Reader 1', 'shared');
try('Reader 2', 'shared');
wait_for('Writer', 'exclusive');
wait_for('Reader 3', 'shared');
queue_up($watch, by('Reader 1'), convert('Reader 1', 'exclusive'));
is(queue(), 'Reader 1 exclusive, Writer exclusive, Reader 3 shared', 'an upgrade is ahead of the writers');
start(by('Reader 2'), convert('Reader 2', 'exclusive'));
like(answer(by('Reader 2')), qr/^ERROR:  40P01: deadlock detected while waiting for lock "$key"\n/, 'a second upgrade is refused at once');
is(try('Reader 2', 'exclusive', ", wait => '1 h'"), 'deadlock|shared|Reader 1', '... by lock_try_acquire, too');
is(try('Reader 2', 'exclusive'), 'held|shared|Reader 1', 'without a wait the answer is held');
is(ask(by('Reader 2'), "SELECT lock_extend('$key', 'Reader 2') IS NOT NULL"), 't', '... and the reader may extend its share');
is(try('Reader 4', 'shared'), 'held||Reader 1', 'a new reader is refused');
is(queue(), 'Reader 1 exclusive, Writer exclusive, Reader 3 shared', '... and the queue is as before');
release('Reader 2');
granted('the upgrade gets in', 'exclusive', 'Reader 1');
is(queue(), 'Writer exclusive, Reader 3 shared', '... and the others continue to wait');
is(ask(by('Reader 1'), convert('Reader 1', 'shared')), 'acquired|shared|Reader 1', 'it converts back to shared');
is(queue(), 'Writer exclusive, Reader 3 shared', '... which lets no reader in behind a writer');
release('Reader 1');
granted('then the writer gets in', 'exclusive', 'Writer');
release('Writer');
granted('then the reader gets in', 'shared', 'Reader 3');

case('an upgrade gives up');
try('Reader 1', 'shared');
try('Reader 2', 'shared');
queue_up($watch, by('Reader 1'), convert('Reader 1', 'exclusive', '700 ms'));
wait_for('Reader 3', 'shared');
like(answer(by('Reader 1')), qr/^ERROR:  55P03: timed out waiting for lock "$key", which is held by Reader 2\n/, 'the wait of an upgrade times out');
granted('a reader behind it gets in', 'shared', 'Reader 3');
is(holders(), join(', ', map { "Reader $_ shared" } (1 .. 3)), '... and all three share the key');
queue_up($watch, by('Reader 2'), convert('Reader 2', 'exclusive'));
release('Reader 1');
is(queue(), 'Reader 2 exclusive', 'now another reader may wait for its upgrade');
release('Reader 3');
granted('the upgrade gets in when the others have released', 'exclusive', 'Reader 2');

case('a writer becomes a reader');
try('Writer', 'exclusive');
wait_for('Reader 1', 'shared');
wait_for('Reader 2', 'shared');
wait_for('Writer 2', 'exclusive');
ask(by('Writer'), 'BEGIN; ' . convert('Writer', 'shared'));
is(queue(), 'Reader 1 shared, Reader 2 shared, Writer 2 exclusive', 'a writer becomes a reader: no other reader gets in before the commit');
ask(by('Writer'), 'COMMIT');
granted('readers at the head of the queue get in', 'shared', 'Reader 1', 'Reader 2');
is(queue(), 'Writer 2 exclusive', '... and the writer waits');
release($_) for ('Writer', 'Reader 1', 'Reader 2');
granted('... until all readers have released', 'exclusive', 'Writer 2');

case('readers that have not committed');
ask(by("Reader $_"), 'BEGIN; ' . acquire("Reader $_", 'shared')) for (1, 2);
wait_for('Writer', 'exclusive');
is(ask($watch, "SELECT blocking_pid IN (" . pid(by('Reader 1')) . ', ' . pid(by('Reader 2')) . ") FROM lock_waiters WHERE key = '$key'"), 't', 'a writer waits for an unfinished reader');
is(try('Reader 3', 'shared'), 'held||Writer', 'a new reader does not pass the writer');
ask(by('Reader 1'), 'ROLLBACK');
ask(by('Reader 2'), 'COMMIT');
is(queue(), 'Writer exclusive', 'one reader is rolled back, the other commits: the writer still waits');
release('Reader 2');
granted('the reader that committed has released', 'exclusive', 'Writer');

case('readers of all lifetimes');
try('Reader 1', 'shared');
ask(by('Reader 2'), "SELECT lock_acquire('$key', owner => 'Reader 2', mode => 'shared', holder => 'Reader 2', lifetime => 'session')");
ask(by('Reader 3'), "BEGIN; SELECT lock_acquire('$key', owner => 'Reader 3', mode => 'shared', holder => 'Reader 3', lifetime => 'transaction')");
is(holders(), join(', ', map { "Reader $_ shared" } (1 .. 3)), 'lock_status shows readers of all lifetimes');
is(ask($watch, "SELECT string_agg(lifetime || ' ' || coalesce(pid::text, ''), ', ' ORDER BY holder) FROM lock_status() WHERE key = '$key'"),
	'lease , session ' . pid(by('Reader 2')) . ', transaction ' . pid(by('Reader 3')), '... with the processes they are bound to');
wait_for('Writer', 'exclusive');
release('Reader 1');
ask(by('Reader 3'), 'COMMIT');
is(queue(), 'Writer exclusive', 'two of three readers have gone: the writer still waits');
end(delete $session{'Reader 2'});
granted('the session has ended', 'exclusive', 'Writer');
release('Writer');

case('a set in the queue');
try('Writer', 'exclusive');
queue_up($watch, by('Reader 1'), "SELECT key, status FROM lock_try_acquire_all(ARRAY['b $key', '$key', 'z $key'], '1 hour', 'Reader 1', 'shared', '1 h')");
wait_for('Writer 2', 'exclusive');
wait_for('Reader 2', 'shared');
is(queue(), 'Reader 1 shared, Writer 2 exclusive, Reader 2 shared', 'a set waits in the queue of the key in the way');
is(ask($watch, "SELECT count(*) FROM lock_waiters WHERE pid = " . pid(by('Reader 1'))), 1, '... and in no other');
is(ask($watch, "SELECT status FROM lock_try_acquire('b $key', owner => 'other')"), 'pending', '... with a claim on the key before that one');
is(ask($watch, "SELECT status FROM lock_try_acquire('b $key', owner => 'other', mode => 'shared')"), 'acquired', '... that readers may share');
release('Writer');
is(answer(by('Reader 1')), "b $key|acquired\n$key|acquired\nz $key|acquired", 'the set gets all of its keys');
is(queue(), 'Writer 2 exclusive, Reader 2 shared', '... before those behind it');
release('Reader 1');
granted('then the writer gets in', 'exclusive', 'Writer 2');
release('Writer 2');
granted('then the reader gets in', 'shared', 'Reader 2');

case('readers whose leases expire');
ask(by('Reader 1'), "SELECT lock_acquire('$key', '1 hour', 'Reader 1', 'shared', holder => 'Reader 1')");
my $until = ask(by('Reader 2'), "SELECT expires_at FROM lock_acquire('$key', '1500 ms', 'Reader 2', 'shared', holder => 'Reader 2')");
queue_up($watch, by('Writer'), "SELECT acquired_at >= '$until' FROM lock_acquire('$key', '1 hour', 'Writer', wait => '1 h')");
release('Reader 1');
is(answer(by('Writer')), 't', 'a writer gets in when the lease of the last reader expires, also if another one would have lasted longer');
release('Writer');
ask(by('Reader 1'), "SELECT lock_acquire('$key', '1 hour', 'Reader 1', 'shared', holder => 'Reader 1')");
$until = ask(by('Reader 2'), "SELECT expires_at FROM lock_acquire('$key', '1 s', 'Reader 2', 'shared', holder => 'Reader 2')");
queue_up($watch, by('Reader 1'), "SELECT clock_timestamp() >= '$until', mode FROM lock_convert('$key', 'Reader 1', wait => '1 h')");
is(answer(by('Reader 1')), 't|exclusive', 'an upgrade gets in when the lease of the other reader expires');
release('Reader 1');
ask(by('Reader 1'), "SELECT lock_acquire('$key', '1 hour', 'Reader 1', 'shared', holder => 'Reader 1')");
wait_for('Writer', 'exclusive');
ask(by('Reader 1'), "SELECT lock_extend('$key', 'Reader 1', '200 ms')");
granted('a reader shortens its lease: the writer gets in', 'exclusive', 'Writer');

case('readers without a row');
foreach my $end ('COMMIT', 'ROLLBACK', 'ROLLBACK TO s', 'release')
{
	ask(by($_), "BEGIN; SAVEPOINT s; SELECT lock_acquire('$key', owner => '$_', mode => 'shared', holder => '$_', lifetime => 'transaction')") for ('Reader 1', 'Reader 2');
	wait_for('Writer', 'exclusive');
	ask(by('Reader 1'), 'ROLLBACK');
	is(queue(), 'Writer exclusive', 'one of two readers is rolled back: the writer still waits');
	ask(by('Reader 2'), $end eq 'release' ? "SELECT lock_release('$key', 'Reader 2'); COMMIT" : $end);
	granted("the last reader without a row ends by $end", 'exclusive', 'Writer');
	ask(by('Reader 2'), 'COMMIT') if $end eq 'ROLLBACK TO s';
	release('Writer');
}

case('a set that gives up its keys');
ask(by('Reader 1'), "SELECT lock_acquire('z $key', '1 hour', 'Reader 1', 'shared')");
queue_up($watch, by('Reader 2'), "SELECT key, status FROM lock_try_acquire_all(ARRAY['$key', 'z $key'], '1 hour', 'Reader 2', wait => '1500 ms')");
wait_for('Writer', 'exclusive');
is(answer(by('Reader 2')), "z $key|timeout", 'the wait of a set times out');
granted('a waiter for a key that the set had claimed gets in', 'exclusive', 'Writer');
release('Writer');
queue_up($watch, by('Reader 2'), "SELECT key, status FROM lock_try_acquire_all(ARRAY['$key', 'z $key'], '1 hour', 'Reader 2', wait => '1 h')");
wait_for('Writer', 'exclusive');
ask($watch, 'SELECT pg_cancel_backend(' . pid(by('Reader 2')) . ')');
like(answer(by('Reader 2')), qr/^ERROR:  57014/, 'a set is cancelled');
granted('a waiter for a key that the set had claimed gets in', 'exclusive', 'Writer');
release('Writer');
ask(by('Reader 1'), "SELECT lock_release('z $key', 'Reader 1')");

case('one owner in several sessions');
try('Reader 1', 'shared');
wait_for('Writer', 'exclusive');
ask(by('Reader 1'), "SELECT lock_transfer('$key', 'Reader 1', 'Writer', 'Writer')");
granted('the share in the way is transferred to the waiter', 'exclusive', 'Writer');
release('Writer');
try('Writer', 'exclusive');
wait_for('Reader 1', 'shared');
queue_up($watch, by('Reader 2'), acquire('Reader 1', 'shared', ", wait => '1 h'"));
queue_up($watch, by('Reader 3'), acquire('Reader 1', 'exclusive', ", wait => '1 h'"));
wait_for('Reader 4', 'shared');
release('Writer');
# One of the first two looks first; the other may look after the third has converted.
like(join(' ', sort map { answer(by($_)) } ('Reader 1', 'Reader 2')),
	qr/^acquired\|shared\|Reader 1 reacquired\|(shared|exclusive)\|Reader 1$/, 'two waits of one owner: one holding');
is(answer(by('Reader 3')), 'acquired|exclusive|Reader 1', 'the third, exclusive wait has become an upgrade');
is(holders(), 'Reader 1 exclusive', '... of the one holding');
release('Reader 1');
granted('then the next owner gets in', 'shared', 'Reader 4');
release('Reader 4');
try('Reader 1', 'shared');
wait_for('Writer', 'exclusive');
queue_up($watch, by('Reader 2'), "SELECT status, mode, holder FROM lock_try_acquire('$key', '1 hour', 'Reader 2', wait => '1 h')");
ask(by('Reader 1'), "SELECT lock_transfer('$key', 'Reader 1', 'Reader 2', 'Reader 2')");
is(answer(by('Reader 2')), 'acquired|exclusive|Reader 2', 'an exclusive waiter that receives a share is an upgrade, and goes before waiters that came earlier');
is(queue(), 'Writer exclusive', '... which continue to wait');
release('Reader 2');
granted('... and get in afterwards', 'exclusive', 'Writer');

case('a writer that is forced out, and readers that are robbed');
try('Writer', 'exclusive');
wait_for('Reader 1', 'shared');
wait_for('Reader 2', 'shared');
wait_for('Writer 2', 'exclusive');
ask($watch, "SELECT force_release('$key', 'test')");
granted('a writer is forced out: the readers get in', 'shared', 'Reader 1', 'Reader 2');
wait_for('Reader 3', 'shared');
ask($watch, "SELECT lock_steal('$key', 'thief', 'test')");
is(queue(), 'Writer 2 exclusive, Reader 3 shared', 'readers are robbed: the queue is as before');
ask($watch, "SELECT lock_release('$key', 'thief')");
granted('the queue is served in its order', 'exclusive', 'Writer 2');
release('Writer 2');
granted('the queue is served in its order', 'shared', 'Reader 3');

case('a writer of a folder');
my $path = sub {
	my ($who, $what, $wait) = @_;
	return "SELECT status, key FROM lock_try_acquire_path('$key/$what', '1 hour', '$who', '" . ($wait // '0') . "', '$who')";
};
is(ask(by('Reader 1'), $path->('Reader 1', 'f/x')), "acquired|$key/\nacquired|$key/f/\nacquired|$key/f/x", 'a document');
queue_up($watch, by('Writer 2'), $path->('Writer 2', 'f/', '1 h'));
is(ask(by('Reader 3'), $path->('Reader 3', 'f/y')), "held|$key/f/", '... a newcomer does not get below the folder that a writer waits for');
is(ask(by('Reader 3'), $path->('Reader 3', 'g')), "acquired|$key/\nacquired|$key/g", '... but beside it');
ask(by('Reader 1'), "SELECT lock_release_path('$key/f/x', 'Reader 1')");
is(answer(by('Writer 2')), "acquired|$key/\nacquired|$key/f/", '... and the writer is next');

case('an upgrade and a ticket');
try("Reader $_", 'shared') for (1, 2);
ask(by('Ticket'), "SELECT lock_enqueue('$key', 'Ticket', 'Ticket')");
queue_up($watch, by('Reader 1'), convert('Reader 1', 'exclusive'));
is(ask($watch, "SELECT place, holder FROM lock_waiters WHERE key = '$key' UNION ALL SELECT place, holder FROM lock_queue WHERE key = '$key'"), "1|Reader 1\n2|Ticket", 'an upgrade is before all tickets, in both views');
is(ask(by('Ticket'), "SELECT status, place FROM lock_enqueue('$key', 'Ticket')"), 'queued|2', '... in the answer of lock_enqueue');
like(ask($watch, "SELECT lock_explain('$key')"), qr/1\. "Reader 1" has waited .*\n *2\. "Ticket" has had a place /, '... and in lock_explain');
release('Reader 2');
granted('... and it is granted first', 'exclusive', 'Reader 1');

# Two sets in opposite order, many times
my $sets = q{DO $$ BEGIN FOR i IN 1..50 LOOP PERFORM lock_acquire_all(ARRAY[KEYS], '1 hour', 'OWNER', i_mode, '1 h') FROM (SELECT CASE i % 3 WHEN 0 THEN 'shared' ELSE 'exclusive' END AS i_mode) m;
	COMMIT; PERFORM lock_release_all('OWNER'); COMMIT; END LOOP; END $$};
my @orders = (q{'m', 'n', 'o'}, q{'o', 'n', 'm'}, q{'n', 'o'}, q{'o', 'm'});
start(by("Set $_"), $sets =~ s/KEYS/$orders[$_]/r =~ s/OWNER/Set $_/gr) for (0 .. $#orders);
is(answer(by("Set $_")), '', "sets of the same keys in other orders do not deadlock: $orders[$_]") for (0 .. $#orders);

# Cycles of readers and writers
case('a cycle');
ask(by("Reader $_"), q{SET deadlock_timeout = '100 ms'}) for (1, 2);
ask(by('Reader 1'), "SELECT lock_acquire('$key a', '1 hour', 'Reader 1', 'shared', holder => 'Reader 1')");
ask(by('Reader 2'), "SELECT lock_acquire('$key b', '1 hour', 'Reader 2', 'shared', holder => 'Reader 2')");
ask(by('Reader 3'), "SELECT lock_acquire('$key b', '1 hour', 'Reader 3', 'shared', holder => 'Reader 3')");
queue_up($watch, by('Reader 1'), "SELECT status FROM lock_try_acquire('$key b', '1 hour', 'Reader 1', wait => '1 h')");
queue_up($watch, by('Reader 2'), "SELECT status FROM lock_try_acquire('$key a', '1 hour', 'Reader 2', wait => '1 h')");
poll($watch, 'SELECT count(*) = 1 FROM lock_waiters');
my $victim = ask($watch, q{SELECT holder FROM lock_waiters}) eq 'Reader 1' ? 'Reader 2' : 'Reader 1';
is(answer(by($victim)), 'deadlock', "two readers that want to write each other's key: one of them ($victim) is refused");
ask(by($victim), "SELECT lock_release_all('$victim')");
ask(by('Reader 3'), "SELECT lock_release_all('Reader 3')");
is(answer(by($victim eq 'Reader 1' ? 'Reader 2' : 'Reader 1')), 'acquired', '... and the other gets its key');

is(ask($watch, 'SELECT count(*) FROM lock_waiters'), 0, 'at the end the queue is empty');
end($watch, values %session);
$node->stop;
done_testing();
