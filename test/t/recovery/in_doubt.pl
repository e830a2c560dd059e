# A grant in doubt is not acknowledged.
#
# Properties: if synchronous standbys are required and the wait for them ends
# without them, because it is cancelled or the session is terminated, a client
# whose transaction granted or extended a lease gets FATAL with SQLSTATE 08007,
# nothing that looks like success after it, and is disconnected; statements that
# it had sent already do not run.  This holds for every verb that grants, in
# transaction blocks, procedures, the extended protocol and PREPARE, with every
# level of synchronous_commit that waits, and whatever the message and log levels
# are.  The grant is held: the same owner gets "reacquired" when the
# standbys are back.  Releases, reads, locks of a transaction and the work of
# others are acknowledged as PostgreSQL does it, with its WARNING; so is a grant
# when synchronous standbys are no longer required, or not for this grant.
#
# Turns red when: the commit is acknowledged as PostgreSQL does it; the process
# ends before it has sent the reason, or continues afterwards; the level is read after
# it was reset to the session's; a flushed record counts as applied; a
# flag of the transaction stays for the next one.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $python = '/usr/bin/python3';
my $client = <<'END';
import ctypes, sys
how, conninfo, *statements = sys.argv[1:]
if how == 'psycopg2':
    import psycopg2
    connection = psycopg2.connect(conninfo)
    try:
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        connection.commit()
        print('acknowledged', cursor.fetchall())
    except psycopg2.Error as e:
        print(e.pgcode, type(e).__name__, 'closed' if connection.closed else 'open')
    sys.exit()
pq = ctypes.CDLL('libpq.so.5')
for name in 'PQconnectdb', 'PQgetResult':
    getattr(pq, name).restype = ctypes.c_void_p
pq.PQresultErrorField.restype = ctypes.c_char_p
connection = ctypes.c_void_p(pq.PQconnectdb(conninfo.encode()))
no_notice = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)(lambda *args: None)
pq.PQsetNoticeProcessor(connection, no_notice, None)
def send(statement):
    pq.PQsendQueryParams(connection, statement.encode(), 0, None, None, None, None, 0)
def answers(syncs):
    """Print results until an error, or until none is left (with syncs: two empty ones in a row)"""
    nothing = 0
    while nothing < 2:
        result = ctypes.c_void_p(pq.PQgetResult(connection))
        if not result:
            nothing += 1
            if not syncs:
                return
            continue
        nothing = 0
        state = pq.PQresultErrorField(result, ord('C'))
        print(state.decode() if state else 'status %d' % pq.PQresultStatus(result))
        if state:
            sys.exit()
if how == 'extended':
    for statement in statements:
        send(statement)
        answers(False)
else:
    pq.PQenterPipelineMode(connection)
    for statement in statements:
        send(statement)
        pq.PQpipelineSync(connection)
    answers(True)
END

my $node = PostgreSQL::Test::Cluster->new('primary');
$node->init(allows_streaming => 1);
$node->append_conf(
	'postgresql.conf', q{
log_statement = none
autovacuum = off
max_connections = 100
max_prepared_transactions = 10
});
$node->start;
$node->safe_psql(
	'postgres', q{
	CREATE EXTENSION atomic_lock;
	CREATE TABLE doc (id int PRIMARY KEY);
	INSERT INTO doc VALUES (1);
	CREATE TABLE note (what text);
	CREATE PROCEDURE granting(k text) LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM lock_acquire(k, '1 hour', 'secret ' || k);
		COMMIT;
		INSERT INTO note VALUES ('after ' || k);
		COMMIT;
	END $$;
	CREATE FUNCTION definer(k text) RETURNS text LANGUAGE sql SECURITY DEFINER
		SET synchronous_commit = off
		RETURN (lock_acquire(k, '1 hour', 'secret ' || k)).status;
	CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM lock_acquire(NEW.what, '1 hour', 'secret ' || NEW.what);
		RETURN NEW;
	END $$;
	CREATE TABLE noted (what text);
	CREATE CONSTRAINT TRIGGER noted AFTER INSERT ON noted DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION noted();
});

# The running clients, by their application_name
my %running;

sub conninfo
{
	my ($name) = @_;
	return $node->connstr('postgres') . " application_name='$name'";
}

sub launch
{
	my ($name, $stdin, @command) = @_;
	my ($out, $err) = ('', '');

	$running{$name} = { stdout => \$out, stderr => \$err };
	$running{$name}{handle} = IPC::Run::start(\@command, '<', \$stdin, '>', \$out, '2>', \$err,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	$running{$name}{handle}->pump_nb while length $stdin;
}

sub launch_psql
{
	my ($name, $sql) = @_;
	launch($name, $sql, 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-d', conninfo($name));
}

sub waits
{
	my ($name) = @_;
	$node->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = '$name' AND wait_event = 'SyncRep'")
	  or die "$name does not wait for a standby: ${$running{$name}{stdout}}${$running{$name}{stderr}}";
}

sub end_wait
{
	my ($name, $how) = @_;
	waits($name);
	$node->safe_psql('postgres', "SELECT pg_${how}_backend(pid) FROM pg_stat_activity WHERE application_name = '$name'");
}

# The output and the errors of a client that has ended
sub finish
{
	my ($name) = @_;
	my $r = delete $running{$name};

	$r->{handle}->finish;
	return (${ $r->{stdout} }, ${ $r->{stderr} });
}

# The last message of the server to a psql is FATAL 08007.
sub is_in_doubt
{
	my ($name) = @_;
	my ($out, $err) = finish($name);

	like($err, qr/FATAL:  08007: terminating connection because [^\n]*\nDETAIL:  [^\n]*\nHINT:  [^\n]*"reacquired"/,
		"$name: the client gets 08007");
	unlike($out, qr/acquired|after|t$/, '... and nothing that looks like success');
	unlike($err, qr/secret|57P01: terminating/, '... without an owner, and not as if by an administrator');
	like($err, qr/server closed the connection|connection to server was lost/, '... and is disconnected');
}

sub is_acknowledged
{
	my ($name, $expected) = @_;
	my ($out, $err) = finish($name);

	is($out, "$expected\nstill there\n", "$name: is acknowledged");
	return $err;
}
my $still = q{SELECT 'still there';};

# Every verb that grants: name, state before, call; K is the key
my @verbs = (
	[ 'acquire', '', q{(lock_acquire('K', '1 hour', 'secret K')).status} ],
	[ 'try_acquire', '', q{(lock_try_acquire('K', '1 hour', 'secret K')).status} ],
	[ 'acquire_all', '', q{status FROM lock_acquire_all(ARRAY['K', 'K 2'], '1 hour', 'secret K')} ],
	[ 'shared', '', q{(lock_acquire('K', '1 hour', 'secret K', 'shared')).status} ],
	[ 'again', q{lock_acquire('K', '50 minutes', 'secret K')}, q{(lock_acquire('K', '1 hour', 'secret K')).status} ],
	[ 'extend', q{lock_acquire('K', '50 minutes', 'secret K')}, q{lock_extend('K', 'secret K', '1 hour') IS NOT NULL} ],
	[ 'extend_all', q{lock_acquire('K', '50 minutes', 'secret K')}, q{lock_extend_all('secret K', '1 hour') = 1} ],
	[ 'transfer', q{lock_acquire('K', '1 hour', 'other K')}, q{(lock_transfer('K', 'other K', 'secret K')).status} ],
	[ 'convert', q{lock_acquire('K', '1 hour', 'secret K', 'shared')}, q{(lock_convert('K', 'secret K')).status} ],
	[ 'convert_down', q{lock_acquire('K', '1 hour', 'secret K')}, q{(lock_convert('K', 'secret K', 'shared')).status} ],
	[ 'fetch', '', q{id FROM lock_fetch(NULL::doc, '1', '1 hour', 'secret K', key => 'K')} ],
	[ 'steal', q{lock_acquire('K', '1 hour', 'other K')}, q{(lock_steal('K', 'secret K', 'a reason')).status} ]);

my @doubtful;					# keys

foreach my $verb (@verbs)
{
	my ($name, $before) = @$verb;
	next if $before eq '';
	$node->safe_psql('postgres', 'SELECT ' . $before =~ s/K/$_ $name/gr) foreach 'auto', 'block';
}
$node->safe_psql('postgres', "SELECT lock_acquire('to release $_', '1 hour', 'secret')") foreach 'auto', 'session', 'with';
$node->safe_psql('postgres', q{SELECT lock_acquire('to read', '1 hour', 'secret')});

# ---------------------------------------------------------------------------
# The synchronous standby does not exist
# ---------------------------------------------------------------------------

$node->append_conf('postgresql.conf', "synchronous_standby_names = 'nobody'\n");
$node->restart;

foreach my $verb (@verbs)
{
	my ($name, $before, $call) = @$verb;

	foreach my $how ('auto', 'block')
	{
		my $key = "$how $name";
		my $sql = 'SELECT ' . $call =~ s/K/$key/gr;

		launch_psql($key, $how eq 'auto' ? "$sql;\n$still" : "BEGIN;\n$sql \\g /dev/null\nCOMMIT;\n$still");
		push @doubtful, $key;
	}
}

my $acquire = q{SELECT (lock_acquire('K', '1 hour', 'secret K')).status};
my %forms = (
	'a level remote_write' => "SET synchronous_commit = remote_write;\n$acquire;",
	'a level on' => "SET synchronous_commit = on;\n$acquire;",
	'a level remote_apply' => "SET synchronous_commit = remote_apply;\n$acquire;",
	'a level off' => "SET synchronous_commit = off;\n$acquire;",
	'a level local' => "SET synchronous_commit = local;\n$acquire;",
	'the level of the session' => "SET atomic_lock.acquire_durability = session;\n$acquire;",
	'nothing shown' => "SET client_min_messages = error;\n$acquire;",
	'nothing logged' => "SET log_min_messages = panic;\n$acquire;",
	'only fatal logged' => "SET log_min_messages = fatal;\n$acquire;",
	'one query string' => "$acquire \\; INSERT INTO note VALUES ('with K') \\g /dev/null",
	'the next in the string' => "BEGIN \\; $acquire \\; COMMIT \\; INSERT INTO note VALUES ('after K') \\g /dev/null",
	'a savepoint' => "BEGIN; SAVEPOINT s;\n$acquire \\g /dev/null\nRELEASE s; COMMIT;",
	'a DO block' => "DO \$\$ BEGIN PERFORM lock_acquire('K', '1 hour', 'secret K'); END \$\$;",
	'a procedure' => "CALL granting('K');",
	'a definer' => "SELECT definer('K');",
	'a deferred trigger' => "INSERT INTO noted VALUES ('K');",
	'with a release' => "SELECT lock_acquire('K', '1 hour', 'secret K'), lock_release('to release with', 'secret') \\g /dev/null",
	'copied out' => "COPY (SELECT lock_acquire('K', '1 hour', 'secret K')) TO STDOUT \\g /dev/null",
	'a cursor' => "BEGIN; DECLARE c CURSOR FOR $acquire; FETCH c \\g /dev/null\nCOMMIT;",
	'of the session' => "SELECT (lock_acquire('K', '1 hour', 'secret K', lifetime => 'session')).status;",
	'terminated' => "$acquire;");
foreach my $name (sort keys %forms)
{
	launch_psql($name, $forms{$name} =~ s/K/$name/gr . "\n$still");
	push @doubtful, $name unless $name eq 'of the session';
}

# Transactions without a grant that could be lost
my %harmless = (
	'a release' => [ "SET atomic_lock.release_durability = session;\nSELECT lock_release('to release session', 'secret');", 't' ],
	'other work' =>
	  [ "SET atomic_lock.acquire_durability = session; SET synchronous_commit = local;\nSELECT (lock_acquire('before', '1 hour', 'secret')).status;\n"
		. "SET synchronous_commit = on; INSERT INTO note VALUES ('x') RETURNING what;", "acquired\nx" ],
	'a lock of the transaction' =>
	  [ "BEGIN;\nSELECT (lock_acquire('of transaction', owner => 'secret', lifetime => 'transaction')).status;\nINSERT INTO note VALUES ('x');\nCOMMIT;", 'acquired' ],
	'an assertion' => [ "INSERT INTO note SELECT lock_assert('to read', 'secret') RETURNING 'asserted';", 'asserted' ]);
launch_psql($_, "$harmless{$_}[0]\n$still") foreach sort keys %harmless;

# Other clients, if they are installed
my %clients;
if (-x $python && system("$python -c 'import ctypes, psycopg2; ctypes.CDLL(\"libpq.so.5\")' 2>/dev/null") == 0)
{
	%clients = (
		# Some versions of libpq keep only the last error: the connection is lost.
		'psycopg2' => [ [ $acquire ], qr/\A(08007|None) \w+ closed\n\z/ ],
		'extended' => [ [ 'BEGIN', $acquire, 'COMMIT' ], qr/\Astatus 1\nstatus 2\n08007\n\z/ ],
		# Here Sync commits.
		'extended, alone' => [ [ $acquire ], qr/\Astatus 2\n08007\n\z/ ],
		'pipeline' => [ [ $acquire, q{INSERT INTO note VALUES ('after K')} ], qr/\Astatus 2\n08007\n\z/ ]);
	foreach my $name (sort keys %clients)
	{
		my ($how) = $name =~ /^(\w+)/;
		launch($name, '', $python, '-c', $client, $how, conninfo($name), map { s/K/$name/gr } @{ $clients{$name}[0] });
		push @doubtful, $name;
	}
}

my @waiting = sort keys %running;
foreach my $name (@waiting)
{
	waits($name);
}
is( $node->safe_psql(
		'postgres', q{SELECT (lock_try_acquire('auto acquire', owner => 'another')).status}), 'pending',
	'meanwhile another owner is not granted such a key');
end_wait('terminated', 'terminate');
$node->safe_psql('postgres', q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'});
# The procedure would wait again if it continued.
$node->poll_query_until('postgres', q{
	SELECT count(pg_cancel_backend(pid)) = 0 FROM pg_stat_activity WHERE application_name = 'a procedure' AND wait_event = 'SyncRep'})
  or die;

foreach my $name (@waiting)
{
	if ($harmless{$name})
	{
		like(is_acknowledged($name, $harmless{$name}[1]), qr/WARNING:  01000: canceling wait for synchronous replication/,
			'... with a warning');
	}
	elsif ($clients{$name})
	{
		my ($out, $err) = finish($name);
		like($out . $err, $clients{$name}[1], "$name: the client gets 08007");
	}
	else
	{
		is_in_doubt($name);
	}
}

# Commits that do not wait
my $quiet = $node->background_psql('postgres');
ask($quiet, 'SET atomic_lock.acquire_durability = session');
foreach my $level ('off', 'local')
{
	ask($quiet, "SET synchronous_commit = $level");
	is(ask($quiet, "SELECT (lock_acquire('not waited $level', '1 hour', 'secret')).status"), 'acquired', "session, $level: no wait, no doubt");
}
is(ask($quiet, q{RESET atomic_lock.acquire_durability; SELECT lock_release('to release auto', 'secret')}), 't', 'a relaxed release does not wait');
is(ask($quiet, q{SET synchronous_commit = local; SELECT count(*) FROM note WHERE what LIKE 'after%'}), '0', 'no statement ran after a grant in doubt');
$quiet->quit;

# ---------------------------------------------------------------------------
# PREPARE is an answer, too; COMMIT PREPARED is acknowledged as PostgreSQL does it
# ---------------------------------------------------------------------------

launch_psql('prepared', "BEGIN;\nSELECT (lock_acquire('prepared', '1 hour', 'secret prepared')).status \\g /dev/null\nPREPARE TRANSACTION 'p';\n$still");
launch_psql('prepared others', "BEGIN;\nINSERT INTO note VALUES ('prepared');\nPREPARE TRANSACTION 'q';\nSELECT 'prepared';\n$still");
end_wait($_, 'cancel') foreach 'prepared', 'prepared others';
is_in_doubt('prepared');
is_acknowledged('prepared others', 'prepared');
is($node->safe_psql('postgres', q{SELECT string_agg(gid, ' ' ORDER BY gid) FROM pg_prepared_xacts}), 'p q', 'both are prepared');
launch_psql('commit prepared', "COMMIT PREPARED 'p';\nSELECT 'committed';\n$still");
end_wait('commit prepared', 'cancel');
is_acknowledged('commit prepared', 'committed');
push @doubtful, 'prepared';
$node->safe_psql('postgres', q{SET synchronous_commit = local; ROLLBACK PREPARED 'q'});

# ---------------------------------------------------------------------------
# Standbys are no longer required
# ---------------------------------------------------------------------------

launch_psql('not wanted', "$acquire;\n$still");
waits('not wanted');
$node->append_conf('postgresql.conf', "synchronous_standby_names = ''\n");
$node->reload;
is(is_acknowledged('not wanted', 'acquired'), '', '... without a warning');

foreach my $key (@doubtful)
{
	my $mode = $key =~ /shared|down/ ? 'shared' : 'exclusive';

	is($node->safe_psql('postgres', "SELECT (lock_acquire('$key', '1 hour', 'secret $key', '$mode')).status"),
		'reacquired', "$key: the same owner holds it");
}
is($node->safe_psql('postgres', q{SELECT lock_holder('of the session') IS NULL}), 't', 'a lock with lifetime session has ended with its session');

# ---------------------------------------------------------------------------
# A standby that flushes, and does not replay
# ---------------------------------------------------------------------------

$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
$node->append_conf('postgresql.conf', "synchronous_standby_names = 'standby'\n");
$node->reload;
$node->poll_query_until('postgres', q{SELECT sync_state = 'sync' FROM pg_stat_replication}) or die;
my $session = $node->background_psql('postgres', on_error_stop => 0);
ask($session, 'SET synchronous_commit = remote_apply');
is(ask($session, q{SELECT (lock_acquire('caught up', '1 hour', 'secret')).status}), 'acquired', 'no doubt when the standby has confirmed');
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
$standby->poll_query_until('postgres', q{SELECT pg_get_wal_replay_pause_state() = 'paused'}) or die;
foreach my $level ('remote_write', 'on', 'off')
{
	ask($session, "SET synchronous_commit = $level");
	is(ask($session, "SELECT (lock_acquire('flushed $level', '1 hour', 'secret')).status"), 'acquired', "$level: a flush on the standby is enough");
}
launch_psql('not applied', "SET synchronous_commit = remote_apply;\nSELECT (lock_acquire('not applied', '1 hour', 'secret not applied')).status;\n$still");
end_wait('not applied', 'cancel');
is_in_doubt('not applied');
launch_psql('prepared there', "SET synchronous_commit = remote_apply;\nBEGIN;\nSELECT lock_acquire('prepared there', '1 hour', 'secret there') \\g /dev/null\nPREPARE TRANSACTION 'r';\nSELECT 'prepared';\n$still");
is_acknowledged('prepared there', 'prepared');
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
is(ask($session, q{SELECT (lock_acquire('not applied', '1 hour', 'secret not applied')).status}), 'reacquired', 'the repetition is acknowledged when the standby replays again');

# COMMIT PREPARED is acknowledged: a standby has the prepared grant, which holds the key.
$session->quit;
$standby->stop;
launch_psql('lost', "COMMIT PREPARED 'r';\nSELECT 'committed';\n$still");
end_wait('lost', 'cancel');
is_acknowledged('lost', 'committed');
$node->stop('immediate');
$standby->start;
$standby->promote;
is($standby->safe_psql('postgres', q{SELECT (lock_try_acquire('prepared there', owner => 'another')).status}),
	'pending', 'a prepared grant holds the key after a failover');
is( $standby->safe_psql(
		'postgres', "COMMIT PREPARED 'r'; SELECT (lock_acquire('prepared there', '1 hour', 'secret there')).status"),
	'reacquired', '... and can be committed there');

my $log = slurp_file($node->logfile);
unlike($log, qr/PANIC|TRAP|was terminated by signal/, 'the server never crashed');
like($log, qr/FATAL:  terminating connection because/, 'the log has the reason');
# Sessions of the test itself may still be connected when a server is stopped.
unlike($log, qr/^(?!.* in_doubt\.pl FATAL).*FATAL:  terminating connection due to administrator/m, '... and no other message about a termination');

$standby->stop;
done_testing();
