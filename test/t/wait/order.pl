# Waiting for a lock: which waiter gets it, when, and what others see meanwhile.
#
# Properties: exclusive waiters of different owners get the key in the order in which they
# joined, and an acquire that does not wait overtakes none of them; every end of a holding ends a wait, and not before that end is committed; a wait
# ends by itself when the lease expires or the time to wait has passed; the newest committed
# state decides at every isolation level; a waiter has no lock on app_lock, leaves the queue
# however its call ends, and is shown, with its position, in its own database only.
#
# Turns red when: the key goes to the waiter that looks first, or to the last in the queue;
# an acquire that does not wait ignores the waiters; waiters are woken
# or judge before commit; the end of the lease is read once and kept, although it was
# shortened or taken over; a snapshot decides; app_lock stays open while a waiter
# sleeps; positions are counted over several databases; long keys that differ only in the
# last byte are confused.

use strict;
use warnings FATAL => 'all';
use utf8;
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('wait', @build);
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
autovacuum = off
max_connections = 50
max_prepared_transactions = 10
});
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock; CREATE TABLE data (id int)');
$node->safe_psql('postgres', 'CREATE DATABASE elsewhere');
$node->safe_psql('elsewhere', 'CREATE EXTENSION atomic_lock');

my $watch = session($node, 'Watch');
my $holder = session($node, 'Holder');
my @waiters = map { session($node, "Waiter $_") } (1 .. 10);
my ($one, $two) = @waiters;

# psql's answers are bytes, so texts that are compared with them must be bytes too.
sub bytes
{
	my ($text) = @_;
	utf8::encode($text);
	return $text;
}

sub hold
{
	my ($key) = @_;
	return ask($holder, qq{SELECT status FROM lock_acquire('$key', '1 hour', 'holder')});
}
sub release
{
	my ($key) = @_;
	return ask($holder, qq{SELECT lock_release('$key', 'holder')});
}

# The SQL of an acquire that answers a refusal instead of raising it.  $what are the columns to
# show; the call waits unless $args have no "wait".
sub acquire_sql
{
	my ($key, $what, $args) = @_;
	return "SELECT $what FROM lock_try_acquire('$key', " . ($args || q{'1 hour', 'waiter', wait => '5 min'}) . ')';
}

sub queue_is_empty
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(ask($watch, 'SELECT count(*) FROM lock_waiters'), '0', $name || '... the queue is empty');
	return;
}

queue_is_empty('at the start the queue is empty');
is(ask($watch, acquire_sql('k', 'status, waited')), 'acquired|00:00:00', 'a free key is acquired without a wait');
is(ask($watch, acquire_sql('k', 'status, waited')), 'reacquired|00:00:00', '... and again');
is(ask($watch, acquire_sql('k', 'status, waited', q{owner => 'other'})), 'held|00:00:00', 'a call without "wait" does not wait');
ask($watch, q{SELECT lock_release('k', 'waiter')});

#
# Order
#
# Others pass a waiter that has been due for more than a second.  With AL_TEST_HOOKS,
# test_sleep_cap makes that an hour for the session that judges, and test_pause_at stops a
# waiter.
my $overtaker = session($node, 'Overtaker');
ask($_, q{SET atomic_lock.test_sleep_cap = '1 h'}) for (@build ? ($holder, $overtaker, @waiters) : ());
ask($one, q{SET atomic_lock.test_pause_at = 'woken'}) if @build;
hold('fifo');
foreach my $n (1 .. 10)
{
	queue_up($watch, $waiters[ $n - 1 ],
		qq{SELECT fencing_token, status, waited > '0' FROM lock_acquire('fifo', '1 hour', 'waiter $n', wait => '5 min');
		SELECT lock_release('fifo', 'waiter $n')});
	is(ask($watch, q{SELECT waiters FROM lock_status('fifo')}), $n, "lock_status counts $n") if $n % 3 == 1;
}
is( ask($watch, q{SELECT holder, place, key, mode, blocked_by, blocking_pid, since <= clock_timestamp() AND since > clock_timestamp() - interval '1 hour'
		FROM lock_waiters ORDER BY place}),
	join("\n", map { "Waiter $_|$_|fifo|exclusive|Holder||t" } (1 .. 10)),
	'lock_waiters lists ten waiters by position');
is(ask($watch, 'SELECT array_agg(pid ORDER BY since) = array_agg(pid ORDER BY place) AND array_agg(pid ORDER BY place) = ARRAY['
		. join(', ', map { pid($_) } @waiters) . '] FROM lock_waiters'), 't', '... which is the order in which they joined');

# A key that a transaction has released and not committed was never free to others.
is(ask($holder, q{BEGIN; SELECT lock_release('fifo', 'holder'); } . acquire_sql('fifo', 'status', q{'1 hour', 'holder'}) . '; ROLLBACK'),
	"t\nacquired", 'a transaction acquires again what it has released');
is(ask($watch, q{SELECT lock_holder('fifo'), (SELECT count(*) FROM lock_waiters)}), 'Holder|10', '... and all waiters are still there');

# All waiters are served before a session that tries in a loop without waiting.
ask($watch, q{CREATE TABLE overtaken (token bigint);
CREATE PROCEDURE overtake() LANGUAGE plpgsql AS $$
DECLARE
	g	lock_grant;
BEGIN
	LOOP
		g := lock_try_acquire('fifo', '1 hour', 'overtaker');
		COMMIT;
		IF g.acquired THEN
			INSERT INTO overtaken VALUES (g.fencing_token);
			PERFORM lock_release('fifo', 'overtaker');
			COMMIT;
			RETURN;
		END IF;
	END LOOP;
END $$});
# Waiter 1 stops at "woken", before it looks at the row, until this lock is released.
ask($watch, 'SELECT pg_advisory_lock(1706)');
start($overtaker, 'CALL overtake()');
release('fifo');
SKIP:
{
	skip 'needs a build with AL_TEST_HOOKS', 2 unless @build;
	poll($watch, q{SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = } . pid($one));
	is(ask($holder, acquire_sql('fifo', 'acquired, status, holder, mode, expires_at, owner, fencing_token, waited', q{'1 hour', 'overtaker'})),
		'f|held|Waiter 1|||||00:00:00', 'an acquire that does not wait does not overtake a waiter');
	like(reply($holder, q{SELECT lock_acquire('fifo', '1 hour', 'overtaker')}),
		qr/^ERROR:  55P03: lock "fifo" is about to go to Waiter 1, who is waiting for it\nDETAIL:  The lock goes to its waiters first\.\nHINT:  .*wait/,
		'... and its error says so');
}
ask($watch, 'SELECT pg_advisory_unlock_all()');
my @answers = map { answer($_) } @waiters;
is(answer($overtaker), '', 'the session that does not wait gets the key at last');
my @tokens = map { /^(\d+)\|/ ? $1 : 0 } @answers;
like($_, qr/^\d+\|acquired\|t\nt$/, 'a waiter is granted the key after a wait') for @answers;
is("@tokens", join(' ', sort { $a <=> $b } @tokens), 'ten waiters get the key in the order in which they came');
cmp_ok(ask($watch, 'SELECT min(token) FROM overtaken'), '>', $tokens[9], '... and before the session that does not wait');
is(ask($watch, q{SELECT waiters FROM lock_status('fifo')}), '', '... lock_status of a free key shows no waiters');
queue_is_empty();
end($overtaker);
ask($_, 'RESET atomic_lock.test_sleep_cap; RESET atomic_lock.test_pause_at') for (@build ? ($holder, @waiters) : ());

# Two waits of one owner: the second finds the lease of the first.
hold('same');
queue_up($watch, $one, acquire_sql('same', 'status, fencing_token'));
queue_up($watch, $two, acquire_sql('same', 'status, fencing_token'));
release('same');
my ($token) = answer($one) =~ /^acquired\|(\d+)$/;
is(answer($two), "reacquired|$token", 'two waits of one owner: one lease');
ask($one, q{SELECT lock_release('same', 'waiter')});

#
# All ways to end a wait with a grant
#
$holder = play_endings(
	$node, $holder, $one, $two,
	sub {
		my ($key) = @_;

		queue_up($watch, $one, acquire_sql($key, q{status, acquired_at, waited <= clock_timestamp() - statement_timestamp() + interval '1 s', holder}));
	},
	sub {
		my ($name, $answer) = @_;
		my ($status, $acquired_at, $rest) = split /\|/, answer($one), 3;
		my ($moment) = $answer =~ /.*^(\d{4}-\d\d-\d\d [^|\n]*)/ms;

		is("$status|" . ($rest // ''), 'acquired|t|Waiter 1', "granted: $name");
		is(ask($watch, "SELECT '$acquired_at'::timestamptz >= '$moment'"), 't', '... and not before') if $moment;
	});
queue_is_empty('after all endings nobody is left in the queue');

# The session that runs COMMIT PREPARED or ROLLBACK PREPARED releases the locks, but does not
# know the claims and wakes no waiter: waiters look again within a second.
foreach my $end ('COMMIT', 'ROLLBACK')
{
	my ($before, $in) = $end eq 'COMMIT' ? (q{SELECT lock_acquire('2pc', '1 hour', 'holder')}, q{lock_release('2pc', 'holder')}) :
	  ('', q{lock_acquire('2pc', '1 hour', 'holder')});
	my $moment;

	ask($holder, "$before; BEGIN; SELECT $in; PREPARE TRANSACTION 'prepared'");
	queue_up($watch, $one, acquire_sql('2pc', q{acquired_at, status, acquired_at < clock_timestamp()}));
	is(ask($watch, q{SELECT blocked_by, blocking_pid FROM lock_waiters}), 'Holder|', "prepared: the blocker is shown without a process");
	$moment = ask($two, qq{SELECT clock_timestamp(); $end PREPARED 'prepared'});
	like(my $answer = answer($one), qr/\|acquired\|t$/, "$end PREPARED by another session is noticed by the waiter");
	is(ask($watch, "SELECT '" . $answer =~ s/\|.*//r . "'::timestamptz >= '$moment'"), 't', '... and not before');
	ask($one, q{SELECT lock_release('2pc', 'waiter')});
}

# Neither an extension nor the commit of another lock ends the wait, which times out.
hold('stays');
queue_up($watch, $one, acquire_sql('stays', 'status, holder, waited >= interval \'300 ms\'', q{'1 hour', 'waiter', wait => '300 ms'}));
is(ask($holder, q{SELECT lock_extend('stays', 'holder') IS NOT NULL, (lock_acquire('stays-2', owner => 'holder')).status}), 't|acquired', 'while a call waits, the holder extends, and acquires another key');
ask($holder, q{SELECT lock_release('stays-2', 'holder')});
is(answer($one), 'timeout|Holder|t', 'the wait times out, after its whole time');
queue_is_empty();
is(ask($watch, q{SELECT waiters FROM lock_status('stays')}), '0', '... also in lock_status');
is(ask($watch, acquire_sql('stays', 'acquired, status, mode, owner, fencing_token, holder, acquired_at < expires_at, waited >= interval \'20 ms\'', q{owner => 'x', wait => '20 ms'})),
	'f|timeout|exclusive|||Holder|t|t', '... the answer of a time-out names the holder');
start($one, q{SELECT lock_acquire('stays', wait => '20 ms')});
like(answer($one), qr/^ERROR:  55P03: timed out waiting for lock "stays", which is held by Holder\nDETAIL:  The call waited for \d+ ms\.  The lock is held in exclusive mode from .* until .*\.\nHINT:  /,
	'... as does the error of lock_acquire');
ask($holder, q{BEGIN; SELECT lock_acquire('claimed', owner => 'holder')});
start($one, q{SELECT lock_acquire('claimed', wait => '20 ms')});
like(answer($one), qr/^ERROR:  55P03: timed out waiting for lock "claimed", which is held by an unfinished transaction\nDETAIL:  The call waited for \d+ ms\.  Process @{[pid($holder)]} has/,
	'... which names the process of an unfinished transaction');
ask($holder, 'ROLLBACK');
release('stays');
is(ask($one, acquire_sql('stays', 'status, waited')), 'acquired|00:00:00', '... and the key can be acquired later');
ask($one, q{SELECT lock_release('stays', 'waiter')});

# A key that stays closed for a while after its lease expired opens by itself, too.
is( ask($one, q{SET atomic_lock.lock_delay = '300 ms'; SELECT lock_acquire('delay', '50 ms', 'holder') IS NOT NULL;
		WITH before AS MATERIALIZED (SELECT expires_at FROM app_lock WHERE key = 'delay')
		SELECT g.status, g.acquired_at >= b.expires_at + interval '300 ms' FROM before b, lock_try_acquire('delay', owner => 'waiter', wait => '5 min') g;
		RESET atomic_lock.lock_delay}),
	"t\nacquired|t", 'a wait ends when atomic_lock.lock_delay has passed');
ask($one, q{SELECT lock_release('delay', 'waiter')});

#
# Isolation levels: the grant rests on a state that is newer than the snapshot.
#
foreach my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
{
	foreach my $case ([ 'release', q{SELECT lock_acquire('KEY', '1 hour', 'holder')}, q{SELECT lock_release('KEY', 'holder')} ],
		[ 'rollback', q{BEGIN; SELECT lock_acquire('KEY', '1 hour', 'holder')}, 'ROLLBACK' ],
		[ 'expiry', q{SELECT lock_acquire('KEY', '300 ms', 'holder')}, 'SELECT 1' ])
	{
		my ($name, $before, $sql) = @$case;
		my $key = "$name at $level";
		my $seen;

		s/KEY/$key/ for ($before, $sql);
		$seen = ask($one, "BEGIN ISOLATION LEVEL $level; SELECT count(*) FROM data");
		ask($holder, $before);
		queue_up($watch, $one, acquire_sql($key, 'status'));
		ask($two, 'INSERT INTO data VALUES (1)');
		ask($holder, $sql);
		is(answer($one), 'acquired', "$level: granted after $name, on a row that its snapshot does not see");
		is(ask($one, 'SELECT count(*) FROM data'), $level eq 'READ COMMITTED' ? $seen + 1 : $seen, '... while the transaction keeps its snapshot');
		is(ask($one, "SELECT lock_is_held('$key', 'waiter'); COMMIT"), 't', '... the lease is there');
		is(ask($two, acquire_sql($key, 'status', q{owner => 'x'})), 'held', '... after commit too, for others');
		ask($one, qq{SELECT lock_release('$key', 'waiter')});
	}
}
queue_is_empty();

#
# Transactions of the waiter
#
hold('sub');
queue_up($watch, $one, 'BEGIN; SAVEPOINT s; ' . acquire_sql('sub', 'status'));
queue_up($watch, $two, acquire_sql('sub', 'status', q{owner => 'two', wait => '5 min'}));
release('sub');
is(answer($one), 'acquired', 'a wait in a savepoint');
is(ask($watch, "SELECT pid, place, blocking_pid FROM lock_waiters"), pid($two) . '|1|' . pid($one), '... the next waits for its transaction');
is(ask($one, 'ROLLBACK TO s; SELECT 1'), '1', '... the savepoint is rolled back');
is(answer($two), 'acquired', '... the next acquires the key, before the transaction ends');
ask($one, 'COMMIT');
start($one, q{BEGIN; SAVEPOINT s; SELECT lock_acquire('sub', wait => '20 ms')});
like(answer($one), qr/^ERROR:  55P03: timed out/, 'a time-out in a savepoint');
is(ask($one, q{ROLLBACK TO s; SELECT status FROM lock_acquire('other', owner => 'waiter'); COMMIT; SELECT lock_release('other', 'waiter')}),
	"acquired\nt", '... and its transaction can acquire another key');
start($one, q{DO $$ BEGIN PERFORM lock_acquire('sub', wait => '20 ms'); EXCEPTION WHEN lock_not_available THEN PERFORM lock_acquire('other', owner => 'waiter'); END $$});
is(answer($one), '', 'a time-out in an exception block');
is(ask($watch, q{SELECT lock_holder('other')}), 'Waiter 1', '... whose handler acquires another key');
queue_is_empty();
ask($one, q{SELECT lock_release('other', 'waiter')});
ask($two, q{SELECT lock_release('sub', 'two')});

# Two waits in one statement
ask($holder, q{SELECT lock_acquire('first', '1 hour', 'holder'), lock_acquire('second', '1 hour', 'holder')});
queue_up($watch, $one, q{SELECT string_agg((lock_acquire(k, '1 hour', 'waiter', wait => '5 min')).status, ' ') FROM unnest('{first,second}'::text[]) k});
release('first');
poll($watch, q{SELECT key = 'second' FROM lock_waiters});
release('second');
is(answer($one), 'acquired acquired', 'two waits in one statement');
is(ask($one, q{SELECT lock_release_all('waiter')}), '2', '... two leases');

#
# The waiter has no lock on the table.
#
hold('table');
queue_up($watch, $one, acquire_sql('table', 'status'));
is(ask($two, q{BEGIN; LOCK TABLE app_lock IN ACCESS EXCLUSIVE MODE NOWAIT; SELECT 'locked'; COMMIT}), 'locked', 'app_lock can be locked while a call waits');
is(ask($two, "SELECT count(*) FROM pg_locks WHERE pid = @{[pid($one)]} AND relation = 'app_lock'::regclass"), '0', '... the waiter has no lock on it');
ask($two, 'VACUUM FULL app_lock; REINDEX TABLE app_lock');
release('table');
is(answer($one), 'acquired', '... and is granted the key, in a table that was rewritten');
ask($one, q{SELECT lock_release('table', 'waiter')});

$node->safe_psql('postgres', 'CREATE DATABASE dropped');
$node->safe_psql('dropped', 'CREATE EXTENSION atomic_lock');
my ($dropping, $disappointed) = map { session($node, $_, 'dropped') } ('Dropping', 'Disappointed');
ask($dropping, q{SELECT lock_acquire('k', '1 hour')});
queue_up($dropping, $disappointed, q{SELECT lock_acquire('k', wait => '5 min')});
ask($dropping, 'DROP EXTENSION atomic_lock');
like(answer($disappointed), qr/^ERROR:  (?!XX)\w{5}: .*atomic_lock/, 'DROP EXTENSION does not wait for waiters; their calls fail');
ask($dropping, 'CREATE EXTENSION atomic_lock');
is(ask($dropping, q{SELECT count(*) FROM lock_waiters}), '0', '... and the queue is empty');
is(ask($disappointed, q{SELECT status FROM lock_acquire('k', '1 hour', 'me', wait => '5 min')}), 'acquired', '... after CREATE EXTENSION the same session can acquire the key');
end($dropping, $disappointed);

#
# Waiters in lock_waiters and lock_status
#

# Long keys that differ only in the last byte, and labels that are too long for the queue and
# are cut inside a run of two-byte characters
my $start = 'x' . 'ü' x 80;
my @long = map { $start . $_ } ('a', 'b');
my $label = 'ü' x 40;
my $short_label = bytes('ü' x 31);
hold(bytes($_)) for @long;
queue_up($watch, $one, bytes(acquire_sql($long[0], 'status', qq{owner => 'one', wait => '5 min', holder => '$label'})));
queue_up($watch, $two, bytes(acquire_sql($long[1], 'status', qq{owner => 'two', wait => '5 min', holder => '$label'})));
is( ask($watch, bytes(qq{SELECT key IN ('$long[0]', '$long[1]'), octet_length(holder), holder, place, blocked_by, blocking_pid FROM lock_waiters ORDER BY key})),
	join("\n", ("t|62|$short_label|1|Holder|") x 2),
	'long keys are shown whole, long labels cut after a character');
is(ask($watch, bytes("SELECT string_agg(waiters::text, ' ') FROM lock_status()")), '1 1', '... and keys that begin alike are counted apart');
release(bytes($long[1]));
is(answer($two), 'acquired', '... each waiter waits for its own key only');
is(ask($watch, bytes("SELECT waiters FROM lock_status('$long[0]')")), '1', '... the other continues to wait');
release(bytes($long[0]));
is(answer($one), 'acquired', '... until its own key is released');
ask($one, q{SELECT lock_release_all('one'), lock_release_all('two')});

# A key that has no lease yet
ask($holder, bytes(qq{BEGIN; SELECT lock_acquire('$long[0]-new')}));
queue_up($watch, $one, bytes(acquire_sql("$long[0]-new", 'status')));
is(ask($watch, bytes(qq{SELECT key = '$long[0]-new', blocked_by, blocking_pid FROM lock_waiters})),
	't|Holder|' . pid($holder), 'a new key is shown whole, and blocked by a process');
is(ask($watch, bytes(qq{SELECT locked, waiters FROM lock_status('$long[0]-new')})), 'f|1', '... lock_status counts its waiter');
ask($holder, 'ROLLBACK');
is(answer($one), 'acquired', '... granted');
ask($one, bytes(qq{SELECT lock_release('$long[0]-new', 'waiter')}));

# Control characters; an empty application_name; a label given by the caller
hold('labels');
queue_up($watch, $one, acquire_sql('labels', 'holder', q{owner => 'a', wait => '5 min', holder => E'A\nB'}));
queue_up($watch, $two, q{SET application_name = ''; } . acquire_sql('labels', 'status', q{owner => 'b', wait => '5 min'}));
is(ask($watch, q{SELECT string_agg(quote_literal(holder), ' ' ORDER BY place) = quote_literal(E'A\nB') || ' ' || quote_literal(current_user) FROM lock_waiters}),
	't', 'labels of waiters are those that their leases will have');
ask($watch, "SELECT pg_cancel_backend(pid) FROM lock_waiters");
like(answer($_), qr/^ERROR:  57014/, '... cancelled') for ($one, $two);
ask($two, q{SET application_name = 'Waiter 2'});
release('labels');

# In another database the same key is another lock.
my $elsewhere = session($node, 'Elsewhere', 'elsewhere');
my $there = session($node, 'There', 'elsewhere');
hold('both');
ask($elsewhere, q{SELECT lock_acquire('both', '1 hour', 'me')});
queue_up($watch, $one, acquire_sql('both', 'status'));
is(ask($elsewhere, q{SELECT count(*), (SELECT waiters FROM lock_status('both')) FROM lock_waiters}), '0|0', 'waiters of another database are not shown');
queue_up($elsewhere, $there, acquire_sql('both', 'status'));
is(ask($elsewhere, q{SELECT holder, place, blocked_by FROM lock_waiters}), 'There|1|Elsewhere', '... each database shows and numbers only its own waiters');
is(ask($watch, q{SELECT holder, place, blocked_by FROM lock_waiters}), 'Waiter 1|1|Holder', '... seen from the first database, too');
ask($elsewhere, q{SELECT lock_release('both', 'me')});
is(answer($there), 'acquired', '... a release there wakes the waiter there');
is(ask($there, q{SELECT lock_release('both', 'waiter'); SELECT status FROM lock_try_acquire('both', owner => 'x')}), "t\nacquired", '... and no waiter is in the way there');
ok(is_waiting($watch, $one), '... while the waiter here continues to wait');
release('both');
is(answer($one), 'acquired', '... until the key is released here');
ask($one, q{SELECT lock_release('both', 'waiter')});
end($elsewhere, $there);

# Many keys, released by one transaction
my @keys = map { "many-$_" } (1 .. 10);
ask($holder, q{SELECT count(lock_acquire('many-' || n, '1 hour', 'holder')) FROM generate_series(1, 10) n});
queue_up($watch, $waiters[$_], acquire_sql($keys[$_], 'status, key')) for (0 .. 9);
is(ask($watch, q{SELECT count(*), count(DISTINCT key), min(place), max(place), string_agg(DISTINCT blocked_by, ' ') FROM lock_waiters}), '10|10|1|1|Holder', 'ten waiters for ten keys');
is(ask($holder, q{SELECT lock_release_all('holder')}), '10', '... released in one transaction');
is(join(' ', map { answer($_) } @waiters), join(' ', map { "acquired|$_" } @keys), '... each waiter is granted its key');
is(ask($watch, q{SELECT lock_release_all('waiter')}), '10', '... and each has one lease');

# pg_stat_activity
hold('event');
queue_up($watch, $one, acquire_sql('event', 'status'));
poll($watch, "SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = " . pid($one));
is(ask($watch, 'SELECT wait_event FROM pg_stat_activity WHERE pid = ' . pid($one)),
	$node->pg_version >= 17 ? 'AtomicLock' : 'Extension', 'pg_stat_activity shows that the session waits for a lock');
release('event');
is(answer($one), 'acquired', '... granted');
ask($one, q{SELECT lock_release('event', 'waiter')});

# Privileges
ask($watch, q{CREATE ROLE monitor; CREATE ROLE app; SELECT lock_grant_access('monitor', 'monitor'), lock_grant_access('app', 'user')});
is(ask($watch, 'SET ROLE monitor; SELECT count(*) FROM lock_waiters; RESET ROLE'), '0', 'monitors may read lock_waiters, which is empty now');
foreach my $relation ('lock_waiters', 'lock_waiters()')
{
	start($watch, "SET ROLE app; SELECT count(*) FROM $relation");
	like(answer($watch), qr/^ERROR:  42501:/, "users do not see $relation");
	ask($watch, 'RESET ROLE');
}

queue_is_empty('at the end the queue is empty');
is(ask($watch, 'SELECT count(*) FROM lock_status()'), '0', '... and no lease is left');
end(@waiters, $holder, $watch);
$node->stop;
log_is_clean($node, also => qr/could not serialize|concurrently (?:updated|deleted)/);

done_testing();
