# The history of grants whose ends could not be written when they happened: sessions that die,
# and crashes of the server.
#
# Properties: the end of a session is in the history at once when it was orderly, and
# otherwise with the next grant or sweep, as the end of a session or as an expiry,
# whichever came first, at a moment between the last sign of life and the
# restart; lock_held_at knows the end before that; a lease survives a crash, with
# its row in the history; an uncommitted grant never has a row; after crashes under load
# history and app_lock agree: each current grant has a row without an end, and
# each row without an end belongs to a current grant; exclusive grants of a key
# overlap with no other grant.
#
# Turns red when: the end of a session is written with another word or not at all, or
# with the time of its discovery; the history is written by another transaction than
# the one that makes or ends the grant; a grant stays open in the history when its expired
# row is taken over, or by a conversion, transfer or theft.

use strict;
use warnings FATAL => 'all';
use AtomicLockLoad;
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('history_faults');
$node->init(allows_streaming => 1);
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
autovacuum = off
max_connections = 50
max_prepared_transactions = 5
restart_after_crash = on
atomic_lock.sweep_interval = 0
atomic_lock.on_reacquire = extend
});
$node->start;
$node->safe_psql('postgres', q{CREATE EXTENSION atomic_lock; SELECT lock_set_policy('', history => true)});

my ($watch, $holder, $other);
sub connect_all
{
	end(grep { defined } $watch, $holder, $other);
	($watch, $holder, $other) = map { session($node, $_) } ('Watch', 'Holder', 'Other');
	return;
}
connect_all();

sub for_session
{
	my ($key, $more) = @_;
	return "SELECT lock_acquire('$key', owner => 'me', lifetime => 'session'" . ($more // '') . ')';
}
sub now
{
	return ask($watch, 'SELECT clock_timestamp()');
}

# The last grant of a key in the history, and its holder at a moment by lock_held_at
sub row
{
	my ($key) = @_;
	return ask($watch, "SELECT holder, mode, ended_by FROM lock_history WHERE key = '$key' ORDER BY fencing_token DESC LIMIT 1");
}
sub held_at
{
	my ($key, $at) = @_;
	return ask($watch, "SELECT holder, ended_by FROM lock_held_at('$key', '$at')");
}
# Did the grant end in between?
sub ended_between
{
	my ($key, $from, $to, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(ask($watch, qq{SELECT ended_at BETWEEN '$from' AND '$to' FROM lock_history WHERE key = '$key' ORDER BY fencing_token LIMIT 1}), 't', "$name: the time of its end")
	  or diag(ask($watch, "TABLE lock_history") . "\n$from $to");
	return;
}

#
# Ends of a session: orderly, and by a signal
#
foreach my $end (
	[ 'the end of a session', sub { end($holder) } ],
	[ 'DISCARD ALL', sub { ask($holder, 'DISCARD ALL') } ],
	[ 'pg_terminate_backend', sub { ask($watch, 'SELECT pg_terminate_backend(' . pid($holder) . ')') } ],
	[ 'the death of the client', sub { $holder->{run}->signal('KILL') } ])
{
	my ($name, $how) = @$end;
	my $key = $name =~ s/ /_/gr;

	ask($holder, for_session($key) . '; ' . for_session("$key.shared", q{, mode => 'shared'}) . '; ' . for_session("$key.ttl", q{, ttl => '1 hour'}));
	ask($holder, qq{SELECT lock_acquire('$key.lease', '1 hour', 'me')});
	my $before = now();
	$how->();
	gone($watch, pid($holder)) unless $name eq 'DISCARD ALL';
	my $after = now();
	foreach my $k ($key, "$key.shared", "$key.ttl")
	{
		is(row($k), 'Holder|' . ($k =~ /shared/ ? 'shared' : 'exclusive') . '|session', "$name ends $k in the history");
		ended_between($k, $before, $after, $k);
		is(held_at($k, $before), 'Holder|session', '... it was held before that');
		is(held_at($k, $after), '', '... and not after it');
	}
	is(row("$key.lease"), 'Holder|exclusive|', '... a lease stays held');
	ask($watch, qq{SELECT lock_release('$key.lease', 'me')});
	connect_all();
}

# The session cannot write the end of its grant, because a transaction has claimed the key.
# The next grant of the key, or a sweep, writes the end.
foreach my $who ('grant', 'sweep')
{
	ask($holder, for_session("left-$who"));
	ask($other, qq{BEGIN; SELECT lock_extend('left-$who', 'me')});
	my $before = now();
	end($holder);
	gone($watch, pid($holder));
	my $after = now();
	ask($other, 'ROLLBACK');
	is(row("left-$who"), 'Holder|exclusive|', 'a session could not write the end of its grant');
	is(held_at("left-$who", $before), 'Holder|session', '... lock_held_at knows the end');
	is(held_at("left-$who", $after), '', '... and its time');
	ask($watch, $who eq 'sweep' ? 'SELECT lock_sweep()' : qq{SELECT lock_acquire('left-grant', '1 hour', 'you')});
	is(ask($watch, qq{SELECT ended_by FROM lock_history WHERE key = 'left-$who' ORDER BY fencing_token LIMIT 1}), 'session', "... a $who writes it");
	ended_between("left-$who", $before, $after, '... with its own time');
	connect_all();
}

#
# A crash
#
sub crash
{
	my ($pid) = @_;
	my $offset = -s $node->logfile;

	kill 'KILL', $pid;
	ok($node->wait_for_log(qr/database system is ready to accept connections/, $offset), 'the server is back');
	end($watch, $holder, $other);
	($watch, $holder, $other) = ();
	$node->poll_query_until('postgres', 'SELECT true') or die 'no restart';
	connect_all();
	return;
}
ask($holder, for_session('k') . '; ' . for_session('short', q{, ttl => '20 ms'}) . '; ' . for_session('long', q{, ttl => '1 hour'}) . '; ' . for_session('swept'));
ask($holder, q{SELECT lock_acquire('lease', '1 hour', 'me'), lock_acquire('expired', '20 ms', 'me')});
ask($other, q{BEGIN; SELECT lock_acquire('prepared', '1 hour', 'me'), lock_acquire('prepared.t', owner => 'me', lifetime => 'transaction'); PREPARE TRANSACTION 'p'});
poll($watch, q{SELECT NOT (s).locked AND NOT (e).locked FROM lock_status('short') s, lock_status('expired') e});
ask($watch, 'CHECKPOINT');
# Other keys, in a transaction that the crash ends.  Another commit flushes its WAL.
ask($holder, q{BEGIN; SELECT lock_acquire('open', '1 hour', 'me'), lock_acquire('open.t', owner => 'me', lifetime => 'transaction'), lock_release('lease', 'me')});
ask($watch, q{SELECT lock_acquire('other', '1 hour', 'you')});
my $tokens = ask($watch, q{SELECT key, fencing_token FROM app_lock WHERE key IN ('lease', 'other') ORDER BY key});
my $before = now();
crash(pid($holder));
my $after = now();

is(ask($watch, q{SELECT key, ended_by FROM lock_history WHERE key IN ('k', 'short', 'long', 'lease', 'expired', 'other', 'swept') ORDER BY key}),
	"expired|\nk|\nlease|\nlong|\nother|\nshort|\nswept|", 'a crash leaves grants without an end');
is(ask($watch, q{SELECT count(*) FROM lock_history WHERE key LIKE 'open%'}), '0', '... and no row of an uncommitted grant');
is(ask($watch, q{SELECT key, fencing_token FROM lock_history WHERE key IN ('lease', 'other') ORDER BY key}), $tokens, '... leases stay held with their tokens');
is(held_at($_->[0], $before), $_->[1], "... lock_held_at, before it: $_->[0]")
  for ([ k => 'Holder|session' ], [ long => 'Holder|session' ], [ swept => 'Holder|session' ], [ short => '' ], [ expired => '' ], [ lease => 'Holder|' ], [ open => '' ], [ 'open.t' => '' ]);
is(held_at($_->[0], $after), $_->[1], "... and after it: $_->[0]")
  for ([ k => '' ], [ long => '' ], [ swept => '' ], [ short => '' ], [ expired => '' ], [ lease => 'Holder|' ], [ other => 'Watch|' ]);
is(ask($watch, q{SELECT h.key, a.ended_by FROM lock_history h, lock_held_at(h.key, h.acquired_at) a WHERE h.key IN ('short', 'expired') ORDER BY 1}), "expired|expired\nshort|expired", '... and it knows expiries from before the crash');
ask($watch, qq{SELECT lock_acquire('$_', '1 hour', 'you')}) for ('k', 'short', 'long', 'expired');
ask($watch, 'SELECT lock_sweep()');
is(ask($watch, q{SELECT key, ended_by FROM lock_history WHERE holder = 'Holder' AND key IN ('k', 'short', 'long', 'expired', 'swept') ORDER BY key}),
	"expired|expired\nk|session\nlong|session\nshort|expired\nswept|session", 'the next grant or sweep writes the ends');
ended_between($_, $before, $after, $_) for ('k', 'long', 'swept');
is(ask($watch, q{SELECT bool_and(ended_at - acquired_at = '20 ms') FROM lock_history WHERE holder = 'Holder' AND key IN ('short', 'expired')}), 't', '... and expiries with their own time');
ask($watch, q{SELECT lock_release('lease', 'me')});
is(row('lease'), 'Holder|exclusive|released', 'a release of the lease ends its row');

# A prepared grant is written to the history when it commits, with its own times.
is(ask($watch, q{SELECT count(*) FROM lock_history WHERE key LIKE 'prepared%'}), '0', 'a prepared grant is not in the history yet');
ask($watch, q{COMMIT PREPARED 'p'});
is(ask($watch, q{SELECT key, holder, ended_by FROM lock_history WHERE key LIKE 'prepared%' ORDER BY key}), "prepared|Other|\nprepared.t|Other|transaction", '... until it is committed');
is(ask($watch, q{SELECT lock_release('prepared', 'me')}) . ' ' . row('prepared'), 't Other|exclusive|released', '... and a release ends its lease');

#
# Crashes under load
#
my %load = (
	single => q{SELECT lock_try_acquire('k' || :k, '20 ms', :me);
SELECT lock_try_extend('k' || :k, :me, '1 hour');
SELECT lock_try_release('k' || :k, :me);
},
	shared => q{SELECT lock_try_acquire('k' || :k, '5 ms', :me, 'shared');
SELECT lock_try_convert('k' || :k, :me, 'exclusive');
SELECT lock_try_convert('k' || :k, :me, 'shared');
SELECT lock_try_transfer('k' || :k, :me, 'heir');
},
	forced => q{SELECT lock_try_force_release('k' || :k, 'test');
SELECT lock_try_acquire('k' || :k, '1 hour', :me);
SELECT lock_steal('free' || :client_id, :me, 'test');
},
	lifetimes => q{BEGIN;
SELECT lock_try_acquire('k' || :k, owner => :me, lifetime => 'transaction');
SELECT lock_try_acquire('s' || :k, owner => :me, lifetime => 'session');
SAVEPOINT s;
SELECT lock_try_acquire('k' || :k, owner => :me, mode => 'shared');
ROLLBACK TO s;
SELECT lock_try_transfer('k' || :k, :me, 'heir');
COMMIT;
SELECT lock_release_all('heir');
},
	set => q{SELECT lock_try_acquire_all(ARRAY['k' || :k, 'k' || (:k + 1)], '5 ms', :me);
SELECT lock_sweep();
});
my $agree = q{
WITH live AS (
	SELECT key, fencing_token, mode::text, encode(sha256(convert_to(owner, 'UTF8')), 'hex') COLLATE "C" AS digest FROM app_lock WHERE NOT released
), open AS (
	SELECT key, fencing_token, mode, owner_digest AS digest FROM lock_history WHERE ended_at IS NULL
)
SELECT 'no row: ' || l::text FROM live l WHERE NOT EXISTS (SELECT FROM open o WHERE o = l)
UNION ALL SELECT 'no lease: ' || o::text FROM open o WHERE NOT EXISTS (SELECT FROM live l WHERE l = o)
UNION ALL SELECT 'ends before it begins: ' || h::text FROM lock_history h WHERE ended_at < acquired_at
UNION ALL SELECT 'no word: ' || h::text FROM lock_history h WHERE (ended_at IS NULL) <> (ended_by IS NULL)
UNION ALL SELECT 'overlap: ' || a::text || ' ' || b::text FROM lock_history a JOIN lock_history b ON b.key = a.key AND b.fencing_token > a.fencing_token
	WHERE (a.mode = 'exclusive' OR b.mode = 'exclusive') AND coalesce(a.ended_at, 'infinity') > b.acquired_at
		-- an expiry counts from its own time, also if it is not written yet
		AND NOT EXISTS (SELECT FROM app_lock l WHERE l.key = a.key AND l.fencing_token = a.fencing_token AND l.expires_at <= b.acquired_at)
LIMIT 5};
is(ask($watch, $agree), '', 'history and app_lock agree');
foreach my $round (1 .. 3)
{
	my ($output, $run, @files);

	foreach my $name (sort keys %load)
	{
		push @files, '-f', pgbench_script($node, "$name-$round", "\\set k random(1, 12)\n" . $load{$name} =~ s/:me/'o:client_id'/gr);
	}
	{
		local $ENV{PGAPPNAME} = 'load';
		$run = start_pgbench($node, \$output, '-c', 8, '-T', 600, @files);
	}
	my $grants = ask($watch, q{SELECT coalesce(sum(grants), 0) FROM lock_stats});
	poll($watch, "SELECT sum(grants) - $grants > 1500 FROM lock_stats");
	if ($round == 2)
	{
		crash(ask($watch, q{SELECT pid FROM pg_stat_activity WHERE application_name = 'load' LIMIT 1}));
		$run->finish;
	}
	else
	{
		$node->stop('immediate');
		$run->finish;
		end($watch, $holder, $other);
		($watch, $holder, $other) = ();
		$node->start;
		connect_all();
	}
	unlike($output =~ s/^.*(?:because of crash|server closed|terminat|unexpectedly|perhaps|before or while|aborted|incorrect|WARNING|DETAIL|HINT|immediate shutdown).*$//rmg, qr/ERROR:/, "crash $round under load: no error before it") or diag($output);
	is(ask($watch, $agree), '', '... history and app_lock agree');
	cmp_ok(ask($watch, 'SELECT count(DISTINCT ended_by) FROM lock_history'), '>=', 6, '... the history has at least six kinds of ends');
}

end($watch, $holder, $other);
$node->stop;
log_is_clean($node, killed => 1);
done_testing();
