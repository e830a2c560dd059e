# Random calls of four sessions, in any order, against a model.
#
# A random sequence of calls, in transactions and without, with savepoints,
# disconnects and leases that expire, is played both by the server and by
# test/perl/AtomicLockModel.pm; each answer and the visible state of all
# keys is compared.  SEED in the environment chooses other sequences, AL_STEPS their
# length, AL_KIND the kind.
#
# Properties: an answer depends only on the holders of the key, their
# modes, and the claims of unfinished transactions; a refusal changes
# nothing, takes no transaction id and keeps no claim; tokens of a key rise with
# each grant, also over grants that are rolled back, and stay the same in
# calls that are no grant; reacquire, upgrade, conversion, transfer and extension
# keep what they have to keep; a set is acquired as a whole or not at all.  Keys and owners
# that were made to have one hash are as different as any others.  A call with max_holders
# gets the key if fewer others hold it, committed or not; a refusal shows
# the number of holders, and the holder whose end frees a seat; all this also
# where a key has more readers than answers count.
#
# Some sequences have tickets and offers: an owner without a ticket is behind the owners of
# tickets, in every mode; a key that is released is offered to the first of them,
# if it is free then; an owner that lets its offer lapse loses its position to the next.
#
# Some sequences have paths: a folder is shared by each owner that acquires a key below it by its
# path, and is released with the last such key.
#
# Some sequences have policies, which sessions of several roles set, drop and
# roll back: the longest prefix decides each part of the policy for a key, from the next
# call of every session on; times, positions, quotas and roles are as the policies say, as
# are the keys that stay closed; lock_history has each grant and its end, and
# lock_held_at shows the holders at a former moment.
#
# Turns red when: readers and writers share a key; an owner has two holdings of
# it; a refusal writes; a rollback leaves a holding, a claim, or a mode;
# a call ignores the claims of another transaction; a holding outlives its session or
# transaction, or ends before; a dead holding is revived, or a live one taken;
# a token is given twice or falls; there is one holder more than the limit, or
# a free seat that no waiter gets; keys or owners are distinguished by a hash that
# can be inverted; a call goes by a former policy, by that of another prefix, or by one that
# an unfinished transaction of another session has set; the line is jumped, a ticket is lost
# or kept beside the lock, an offer is made twice, to another than the first, or not at all;
# a folder is released while its owner needs it, or is kept afterwards;
# a quota counts too much or too little; a grant is not in the
# history, is in it twice, or has a wrong end.

use strict;
use warnings FATAL => 'all';
use AtomicLockModel;
use AtomicLockTest;
use AtomicLockWait;
use Digest::SHA qw(sha256_hex);
use List::Util qw(max min);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my @seeds = defined $ENV{SEED} ? split(/\D+/, $ENV{SEED}) : (1706, 1729);
my $steps = $ENV{AL_STEPS} || 1500;
# ... and one kind of sequences: crowd, line, paths or policies
my $kind = $ENV{AL_KIND} || '';
# The readers of the crowded key, in a sequence of its own, and the number where counts end
my $crowd = 150;
my $many = $AtomicLockModel::many;

# Made by test/collisions.py: three keys and two owners have one hash in PostgreSQL,
# with the seeds that were once used for them, and the owner_hash of d and the
# fourth owner equals that of a and o1.  The library must not care.
my @few_keys = ('a', '<tK~W[rLuAXo', '4I/UC?q0[*[>', 'd');
# ... and in sequences with paths, folders and documents
my @path_keys = ('p/', 'p/q/', 'p/q/x', 'p/q/y', 'p/z');
my @keys;
my @owners = ('o1', 'Hxu6XF+jjnmn', 'o3', 'oDtlA<nrP3U!');
my @names = ('Ada', 'Bob', 'Cid', 'Dot');

# With policies there are more keys; Ada is a superuser and the others have roles.
# Prefixes: of keys, others that sort beside them, and one that is longer than its key
my @more_keys = ('da', 'db', '<tK:1');
my %roles = (Bob => 'al_bob', Cid => 'al_cid', Dot => 'al_dot');
my @prefixes = ('', '', 'a', 'd', 'd', 'd', 'da', '<', '<tK', '<tK', '<tK~W[rLuAXo', '<tK~W[rLuAXo+', '<tL', '4', '4I/UC?q0[*[>', '4J');
my $hour = 3600;

my $node = PostgreSQL::Test::Cluster->new('model');
$node->init;
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'atomic_lock'\nlog_statement = none\nautovacuum = off\natomic_lock.sweep_interval = 0\natomic_lock.default_ttl = '45min'\nmax_locks_per_transaction = 256\n");
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');
my ($watch, $model, %session, %started, %token, %seen, @trace, @moments, $is_crowded, $is_ruled, $has_lines, $has_paths);

sub connect_session
{
	my ($name) = @_;

	$session{$name} = session($node, $name);
	ask($session{$name}, "SET SESSION AUTHORIZATION $roles{$name}") if $is_ruled && $roles{$name};
	# A call that would wait for a transaction gets an error, at once.
	ask($session{$name}, q{SET lock_timeout = '1 ms'});
	$started{$name} = "$name " . pid($session{$name});
	$model->{alive}{ $started{$name} } = 1;
	return;
}

sub one_of
{
	return @_ ? $_[ int rand @_ ] : undef;
}

#
# The queries that go with each call
#
my $grant = q{concat_ws('|', 'grant', key, acquired, status, coalesce(mode, '-'), coalesce(owner, '-'), coalesce(fencing_token, 0),
	coalesce(extract(epoch FROM acquired_at), 0), coalesce(extract(epoch FROM expires_at), 'Infinity'), coalesce(holders, 0), coalesce(max_holders, 0))};
my $traces = q{SELECT 'traces', pg_current_xact_id_if_assigned() IS NULL, (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'),
	(SELECT md5(string_agg(concat_ws('|', ctid, xmin, xmax, a.*), ';' ORDER BY ctid)) FROM app_lock a);};
my $clock = q{SELECT 'clock', extract(epoch FROM clock_timestamp());};
my $view = 'SELECT ' . q{'status', k, locked, coalesce(mode, '-'), coalesce(holders, 0), coalesce(lifetime, '-'), coalesce(fencing_token, 0), CASE WHEN pending THEN 'pending' ELSE coalesce(pid, 0)::text END,
	(SELECT string_agg(o, ' ' ORDER BY o) FROM unnest('{OWNERS}'::text[]) o WHERE lock_is_held(k, o)), current_setting('atomic_lock.owner')
	FROM unnest('{KEYS}'::text[]) k, lock_status(k) ORDER BY k;};
my @durations = qw(default_ttl max_ttl max_wait max_lifetime lock_delay min_hold);
my @numbers = qw(max_holders max_keys_per_role);
my $policies = q{SELECT 'policy', k, } . join(', ', (map { "extract(epoch FROM $_)" } @durations), @numbers) . q{,
	array_to_string(ARRAY(SELECT r::text FROM unnest(roles) r ORDER BY 1), ' '), roles IS NULL, history, notify,
	(SELECT string_agg(p.key || ' ' || p.value, ' ' ORDER BY p.key) FROM jsonb_each_text(prefixes) p)
	FROM unnest('{KEYS}'::text[]) k, lock_policy(k);
	SELECT 'closed', k, coalesce(extract(epoch FROM closed_until), 0) FROM unnest('{KEYS}'::text[]) k, lock_status(k) WHERE NOT locked AND NOT pending;};
my $lines = q{SELECT 'line', k, queued, (SELECT string_agg(concat_ws(' ', place, ticket, holder, CASE WHEN offered_until IS NOT NULL THEN 'offered' END), ', ' ORDER BY place) FROM lock_queue q WHERE q.key = k)
	FROM unnest('{KEYS}'::text[]) k, lock_status(k);
	SELECT 'since', key, fencing_token, extract(epoch FROM acquired_at) FROM app_lock WHERE fencing_token > 0;};
$view =~ s/OWNERS/join(',', @owners)/e;

# The state as a session sees it
sub view
{
	my $sql = join "\n", $view, $is_ruled ? $policies : (), $has_lines ? $lines : ();

	$sql =~ s/KEYS/join(',', @keys)/ge;
	return join("\n", 'SET atomic_lock.owner = ' . one_of("''", map { "'$_'" } @owners) . ';', $sql, 'RESET atomic_lock.owner;', $is_ruled ? history_sql() : ());
}

# Ask for the holders of a key at a former moment.
sub history_sql
{
	my ($key, $at) = (one_of(@keys), one_of(@moments));

	return () unless $at && rand() < 0.3;
	return "SELECT 'asked', '$key', $at; SELECT 'at', fencing_token, coalesce(ended_by, '-') FROM lock_held_at('$key', to_timestamp(0) + $at * interval '1 s');";
}

# Run SQL, and return its lines by their first column, each as the list of its other columns.
sub run
{
	my ($name, $sql) = @_;
	my $psql = $session{$name};
	my $end;
	my %lines;

	start($psql, $sql);
	$end = qr/end of $psql->{al_sent}\n/;
	while (!($psql->{stdout} =~ $end && $psql->{stderr} =~ $end))
	{
		die "session $name is gone: $psql->{stderr}" unless $psql->{run}->pumpable;
		eval { $psql->{run}->pump; 1 } or die "$name does not get an answer to $sql\n$@";
		die "$name does not get an answer to $sql\n" if $psql->{timeout}->is_expired;
	}
	foreach my $line (grep { $_ ne '' && !/$end/ } split /^/, $psql->{stdout})
	{
		chomp $line;
		my ($kind, @columns) = split /\|/, $line, -1;
		push @{ $lines{$kind} }, \@columns;
	}
	$psql->{stderr} =~ s/$end//;
	$lines{error} = $psql->{stderr};
	$psql->{stdout} = $psql->{stderr} = '';
	return \%lines;
}

# The differences between the answer and the expectation, as a list of complaints
my @complaints;
sub expect
{
	my ($is, $what) = @_;
	push @complaints, $what unless $is;
	return $is;
}
sub expect_is
{
	my ($is, $expected, $what) = @_;
	return expect($is eq $expected, "$what is $is instead of $expected");
}
sub expect_in
{
	my ($is, $expected, $what) = @_;
	return expect(scalar(grep { $_ eq $is } @$expected), "$what is $is instead of " . join(' or ', @$expected));
}
sub expect_near
{
	my ($is, $low, $high, $what) = @_;
	return expect($is == $low || $is == $high || $is >= $low - 1e-5 && $is <= $high + 1e-5, "$what is $is instead of $low to $high");
}

#
# The view of a session on all keys
#
sub pid_of
{
	my ($name, $h) = @_;

	return 0 if $h->{lifetime} eq 'lease';
	return $h->{lifetime} eq 'session' ? (split / /, $h->{session})[1] : pid($session{ $h->{by} // $name });
}
sub check_view
{
	my ($name, $lines) = @_;

	$model->{known}{$name} = $model->{policies};

	foreach my $line (@{ $lines->{status} })
	{
		my ($key, $locked, $mode, $holders, $lifetime, $token, $pid, $held, $me) = @$line;
		my $live = $model->live($name, $key);
		my $rows = $model->rows($name, $key);
		my @theirs = $model->theirs($name, $key);
		my @holdings = (values %$live, map { $rows->{$_} } grep { $model->has_both($name, $key, $_) } keys %$rows);
		my $what = "$key, as $name sees it,";

		@theirs = () if grep { $_->{lifetime} ne 'transaction' && $_->{mode} eq 'exclusive' } @holdings;
		push @holdings, @theirs;
		my @maybe = $model->maybe_theirs($name, $key);
		@maybe = () unless @holdings;
		expect_is($pid eq 'pending' ? 't' : 'f', $model->is_pending($name, $key) ? 't' : 'f', "$what pending") or next;
		expect_is($locked, @holdings ? 't' : 'f', "$what locked") or next;
		next unless @holdings;
		# An unknown owner is not one of the shown holders.
		my $unknown = grep { $_->{by} && !defined $_->{owner} } @holdings;
		expect_in($holders, [ map { min($_, $many) } scalar(@holdings) - (@maybe ? $unknown : 0) .. @holdings + @maybe ], "$what holders");
		# The caller's own holding, or else the one that lasts longest, with or without those that need not be shown
		my @own = grep { ($_->{owner} // '') eq $me } @holdings, @maybe;
		if (@holdings > $many && !@own)
		{
			# the call looks at some of them only
			@own = (@holdings, @maybe);
		}
		elsif (!grep { !$_->{by} } @own)
		{
			foreach my $these ([@holdings], [ @holdings, @maybe ])
			{
				my $last = max(map { $_->{end} } @$these);
				push @own, grep { $_->{end} == $last } @$these;
			}
		}
		my @shown = map { join ' ', @{$_}{qw(mode lifetime token)}, $pid eq 'pending' ? $pid : pid_of($name, $_) } @own;
		expect_in("$mode $lifetime $token $pid", \@shown, "$what the holding that is shown to '$me'");

		# Whether the owner of another transaction's holding is known is not checked.
		my %theirs = map { $_->{owner} // '' => 1 } @theirs, @maybe;
		expect_is(join(' ', grep { $live->{$_} || !$theirs{$_} } split / /, $held), join(' ', grep { $live->{$_} } sort @owners), "$what held by");
	}
	expect_is(scalar @{ $lines->{status} || [] }, scalar @keys, 'number of keys');
	check_policies($name, $lines) if $is_ruled;
	check_lines($name, $lines) if $has_lines;
	return;
}

# The tickets of a key, in their order
sub check_lines
{
	my ($name, $lines) = @_;

	foreach my $line (@{ $lines->{line} })
	{
		my ($key, $queued, $places) = @$line;
		my $expected = $model->look_at_line($name, $key);
		my @valid = @{ $expected->{valid} };
		my $offered = $expected->{is_offered} ? $expected->{first}{number} : 0;

		expect_is($queued, scalar @valid, "$key, as $name sees it, queued");
		expect_is($places, join(', ', map { join ' ', $_ + 1, @{ $valid[$_] }{qw(number owner)}, $valid[$_]{number} == $offered ? 'offered' : () } 0 .. $#valid), "the line for $key, as $name sees it,");
		$seen{'a line with an offer'}++ if $offered;
		$seen{'a long line'}++ if @valid > 2;
	}
	expect_is(scalar @{ $lines->{line} || [] }, scalar @keys, 'number of lines');
	return;
}

# The answers of lock_policy(), the moments until which keys are closed, and former holders
sub check_policies
{
	my ($name, $lines) = @_;

	foreach my $line (@{ $lines->{policy} })
	{
		my ($key, @parts) = @$line;
		my $prefixes = pop @parts;
		my @named = (@durations, @numbers, 'roles', '', 'history', 'notify');
		my @ruled = sort grep { $_ && defined(($model->rule($name, $key, $_))[0]) } @named;

		foreach my $i (0 .. $#parts)
		{
			my ($value) = $model->rule($name, $key, $named[$i] || 'roles');

			$value = $model->value($name, $key, $named[$i]) if $i < @durations;
			$value = undef if $named[$i] eq 'max_lifetime' && !$value;
			# a role that was dropped is shown by its number
			$value = join ' ', sort map { /(.*) (\d+)/ ? ($2 eq $model->{oid}{$1} ? $1 : $2) : $_ } @$value if $named[$i] eq 'roles' && $value;
			$value = $value ? 'f' : 't' if !$named[$i];
			$value = $value ? 't' : 'f' if $named[$i] =~ /^(?:history|notify)$/;
			expect($i < @durations && defined $value && $parts[$i] ne '' ? $parts[$i] == $value : $parts[$i] eq ($value // ''), "$named[$i] of $key for $name is $parts[$i] instead of " . ($value // 'null'));
		}
		expect_is($prefixes, join(' ', map { "$_ " . ($model->rule($name, $key, $_))[1] } @ruled), "prefixes of $key for $name");
	}
	expect_is(scalar @{ $lines->{policy} || [] }, scalar @keys, 'number of rows of lock_policy()');

	foreach my $line (@{ $lines->{closed} })
	{
		my ($key, $until) = @$line;
		my ($closed, $maybe) = $model->closing($name, $key, 0);
		my @until = grep { defined $_->{over_at} || $_->{how} eq 'released' } @$closed;

		expect($until > 0, "$key, as $name sees it, is open in spite of $closed->[0]{how} $closed->[0]{token}") if @$closed;
		expect_is($until, 0, "$key, as $name sees it, closed until") unless @$closed || @$maybe;
		expect_near($until, (max(map { $model->closed_until($name, $key, $_) } @until)) x 2, "$key, as $name sees it, closed until") if @until && @until == @$closed && !@$maybe;
	}

	foreach my $asked (@{ $lines->{asked} })
	{
		my ($key, $at) = @$asked;
		my %at = map { @$_ } @{ $lines->{at} || [] };

		check_held_at($name, $key, $at, \%at);
	}
	return;
}

# Is a moment before the begin or end of a grant?  Undefined: it cannot be decided.
sub is_before
{
	my ($at, $clock) = @_;
	return $at < $clock->[0] - 1e-5 ? 1 : $at > $clock->[1] + 1e-5 ? 0 : undef;
}

# How a grant has ended, or an empty list.  A lease that ends with its session looks expired to
# calls that find it later.
sub ends
{
	my ($name, $key, $grant) = @_;
	my ($row) = grep { ($_->{token} // '') eq $grant->{token} } values %{ $model->rows($name, $key) };
	my $lost = $grant->{lost} || ($row && $row->{state} eq 'live' && !$model->is_live($row) ? 'session' : undef);

	return $grant->{by} if $grant->{by};
	return grep { defined } $lost, $lost && $lost eq 'session' && $grant->{since} < ($model->{forgotten}{$key} // 0) ? 'expired' : ();
}

sub check_held_at
{
	my ($name, $key, $at, $held) = @_;
	my $history = $model->history($name, $key);

	$seen{ %$held ? 'held at' : 'free at' }++;
	foreach my $token (keys %$history)
	{
		my $grant = $history->{$token};
		my $end = $grant->{end} || $grant->{lost_at};
		my @is = (is_before($at, $grant->{begin}), $end ? is_before($at, $end) : 1);
		my $by = delete $held->{$token};

		my @ends = ends($name, $key, $grant);

		next if grep({ !defined } @is) || $grant->{is_unknown} || !$end && @ends;
		# The session of the holding has ended, but the caller's transaction has given it another lifetime.
		next if $grant->{lost} && grep { ($_->{token} // '') eq $token && $model->is_live($_) } values %{ $model->rows($name, $key) };
		# An end that was not written may be unknown.
		next if !defined $by && $grant->{lost} && $grant->{since} < ($model->{forgotten}{$key} // 0);
		expect_is(defined $by ? 'held' : 'not held', !$is[0] && $is[1] ? 'held' : 'not held', "$key at $at, as $name is told, by token $token,");
		expect_in($by, @ends ? \@ends : ['-'], "end of token $token of $key") if defined $by;
	}
	expect(!%$held, "$key at $at, as $name is told, was held by token " . join(' ', keys %$held));
	return;
}

# lock_history has each grant, its end, and the reason of the end.
sub check_history
{
	my ($is_swept) = @_;
	my %digest = map { sha256_hex($_) => $_ } @owners;
	my %grants;

	foreach my $line (split /\n/, ask($watch, q{SELECT key, fencing_token, mode, owner_digest, role, extract(epoch FROM acquired_at), extract(epoch FROM ended_at), ended_by FROM lock_history ORDER BY fencing_token}))
	{
		my ($key, $token, $mode, $digest, $role, $begin, $end, $by) = split /\|/, $line, -1;
		my $grant = $model->{history}{$key}{$token};

		$grants{$key}{$token} = 1;
		expect($grant, "lock_history has a grant of $key that was not: $line") or next;
		expect_is($mode, $grant->{mode}, "mode of token $token of $key");
		expect_is($digest{$digest} // '?', $grant->{owner}, "owner of token $token of $key");
		expect_is($role, $grant->{role} // 'postgres', "role of token $token of $key");
		expect_near($begin, @{ $grant->{begin} }, "begin of token $token of $key");
		next if $grant->{is_unknown};
		if ($grant->{by})
		{
			expect_is($by, $grant->{by}, "end of token $token of $key");
			expect_near($end, @{ $grant->{end} }, "moment of the end of token $token of $key");
		}
		elsif (my @ends = ends('', $key, $grant))
		{
			# An end is written when a call finds it, if that has to happen before the sweep.
			expect_in($by, [ @ends, $is_swept && $grant->{lost} && $grant->{since} > ($model->{forgotten}{$key} // 0) ? () : '' ], "end of token $token of $key");
			# The test may let a lease expire before it began.
			expect_near($end, $grant->{lost_at}[0], max($grant->{begin}[1], $grant->{lost_at}[1]), "moment of the end of token $token of $key") if $by && $grant->{lost};
		}
		else
		{
			expect_is("$by$end", '', "end of token $token of $key, which has not ended,");
		}
		$seen{ 'ended by ' . ($by || 'nobody') }++ if $is_swept;
	}
	foreach my $key (keys %{ $model->{history} })
	{
		expect($grants{$key}{$_}, "lock_history does not have token $_ of $key") for sort keys %{ $model->{history}{$key} };
	}
	return;
}

# The number of holders, and the limit
sub expect_holders
{
	my ($expected, $answer) = @_;
	my ($least, $most) = map { min($_, max($many, $expected->{limit} // 0)) } @{ $expected->{holders} || [ 0, 0 ] };

	expect($answer->{holders} >= $least && $answer->{holders} <= $most, "holders is $answer->{holders} instead of $least to $most");
	expect_is($answer->{max_holders}, $expected->{limit} // 0, 'max_holders');
	return;
}

#
# A grant; $r is the request
#
sub check_grant
{
	my ($name, $expected, $answer, $r, $clock) = @_;
	my $own = $expected->{own};
	my ($token, $end, $at) = @{$answer}{qw(token end acquired_at)};
	my $before = $token{ $answer->{key} } // 0;

	expect_is($answer->{mode}, $expected->{mode}, 'mode');
	expect_holders($expected, $answer);
	expect_is($answer->{owner}, $r->{new_owner} // $r->{owner}, 'owner');
	if ($answer->{status} eq 'acquired')
	{
		expect($token > $before, "token $token of $answer->{key} is not above $before");
		$token{ $answer->{key} } = $token;
	}
	else
	{
		expect_is($token, $own->{token}, 'token');
	}
	expect_is($at, $expected->{acquired_at} // $own->{acquired_at}, 'acquired_at') if $own;

	# the end of the lease
	my $ttl = exists $expected->{ttl} ? $expected->{ttl} : $r->{ttl};
	my $life = $expected->{is_transfer} ? $expected->{limit_of_life} : ($r->{lifetime} // '') eq 'transaction' ? 'Inf' : $model->end_of_life($name, $answer->{key}, $at);
	my @window = map { min($_, $life) } defined $ttl ? map { $_ + $ttl } @$clock : ('Inf', 'Inf');
	if ($expected->{is_convert} || $answer->{status} eq 'reacquired' && !defined $r->{lifetime})
	{
		@window = ($own->{end}) x 2;
	}
	elsif ($expected->{is_transfer})
	{
		@window = ($own->{end}) x 2 if !defined $ttl;
		@window = map { $expected->{join}->($_) } @window if $expected->{join};
	}
	elsif ($own)
	{
		@window = ($own->{end}) x 2 if $r->{lifetime} eq 'transaction';
		@window = map { max($_, $own->{end}) } @window if $own->{lifetime} ne 'transaction' && ($own->{end} != 'Inf' || $r->{lifetime} eq 'session');
	}
	expect_near($end, @window, 'expires_at');
	return;
}

#
# An extension
#
sub check_extended
{
	my ($expected, $end, $clock, $is_asked) = @_;
	my $own = $expected->{own};
	my $ttl = $expected->{ttl};
	my @window = $ttl ? map { $_ + $ttl } @{$clock}[ 0, 1 ] : ($own->{end}) x 2;

	@window = map { max($_, $own->{end}) } @window unless $is_asked;
	expect_near($end, (map { min($_, $expected->{limit_of_life} // 'Inf') } @window), 'expires_at');
	return;
}

# Extensions of some keys
sub check_beats
{
	my ($expected, $beats, $clock) = @_;
	my %words = (42501 => 'denied', LK002 => 'not_found', LK003 => 'not_owner', LK004 => 'already_released', LK005 => 'expired', LK008 => 'lifetime_exceeded', LK009 => 'forced', '55P03' => 'pending');

	expect_is(join(' ', map { $_->[0] } @$beats), join(' ', map { $_->{key} } @{ $expected->{beats} }), 'keys') or return;
	foreach my $i (0 .. $#$beats)
	{
		my ($key, $status, $end) = @{ $beats->[$i] };
		my $beat = $expected->{beats}[$i];

		$seen{"beat $status"}++;
		if ($beat->{apply})
		{
			expect_is($status, 'extended', "status of $key") and check_extended($beat, $end, $clock, defined $expected->{ttl});
			next;
		}
		expect_in($status, [ map { $words{$_} } @{ $beat->{sqlstate} } ], "status of $key");
	}
	return;
}

#
# A refusal: its description of the holder in the way
#
sub check_refusal
{
	my ($expected, $answer) = @_;

	expect_is("$answer->{owner} $answer->{token}", '- 0', 'owner and token');
	expect_holders($answer->{status} eq 'held' ? $expected : { limit => $expected->{limit}, holders => $expected->{counted} }, $answer) if $answer->{status} ne 'held' || $expected->{holders};
	return if $answer->{status} ne 'held' || !$expected->{holders};
	expect_in(join(' ', @{$answer}{qw(mode acquired_at end)}), [ map { join ' ', @{$_}{qw(mode acquired_at end)} } @{ $expected->{named} } ], 'the holding in the way')
	  if $expected->{named};
	return;
}

#
# The random calls: SQL, the expected answer of the model, and the request
#
sub text
{
	my ($value) = @_;
	return defined $value ? "'$value'" : 'NULL';
}
sub seconds
{
	my ($value) = @_;
	return defined $value ? "'$value s'" : 'NULL';
}
sub some_ttl
{
	return rand() < 0.4 ? undef : 3600 * (1 + int rand 9);
}

# A key, and an owner that does not have two holdings of it: the model does not say what
# happens to two.  Mostly an owner with a holding, often one that a transaction relies on.
sub relied_on
{
	my @relied;

	foreach my $tx (map { $model->{tx}{$_} || () } @names)
	{
		foreach my $key (@keys)
		{
			push @relied, map { /^(?:pin|hold):(.*)/ ? [ $key, $1 ] : () } sort keys %{ $tx->{claims}{$key} || {} };
		}
	}
	return @relied;
}
sub some_in_line
{
	my ($name) = @_;
	my ($key, $owner) = (one_of(@keys), one_of(@owners));
	my @places = $model->places_in_line($name, $key);

	$owner = one_of(map { $_->{owner} } @places) if @places && rand() < 0.4;
	return ($key, $owner) unless $model->has_both($name, $key, $owner);
	return some_in_line($name);
}
sub some_holding
{
	my ($name) = @_;
	my $is_holder = rand() < 0.5;

	if ($has_lines && rand() < 0.15)
	{
		# The owner whose turn it is
		my ($key, $owner) = some_in_line($name);
		my $first = $model->look_at_line($name, $key)->{first};

		$owner = $first->{owner} if $first && !$model->has_both($name, $key, $first->{owner});
		return ($key, $owner);
	}
	my $relied = rand() < 0.2 ? one_of(relied_on()) : undef;

	return @$relied if $relied && !$model->has_both($name, @$relied);

	for (;;)
	{
		my ($key, $owner) = (one_of(@keys, $is_crowded ? ('d') x @keys : ()), one_of(@owners));

		if ($is_holder)
		{
			my $live = $model->live($name, $key);

			$owner = one_of(grep { $live->{$_} } @owners);
			$is_holder = rand() < 0.9;
			next unless $owner;
		}
		return ($key, $owner) unless $model->has_both($name, $key, $owner);
	}
}

# Does another transaction hold a key for this owner?
sub in_other_transaction
{
	my ($name, $owner) = @_;
	return grep { ($_->{owner} // '') eq $owner } map { $model->theirs($name, $_) } @keys;
}

# An owner and a path.  For a release: one that the model can judge.  It does not know the token of
# a folder that becomes shared, nor whether the call still sees a holding that a transaction has ended.
sub some_path
{
	my ($name, $is_release) = @_;

	for (;;)
	{
		my ($last, $owner) = some_holding($name);
		my $other = $is_release && rand() < 0.4 ? one_of(grep { in_other_transaction($name, $_) } @owners) : undef;
		my @held = $other ? grep { $model->live($name, $_)->{$other} } @path_keys : ();
		($last, $owner) = (one_of(@held), $other) if @held;
		my @path = grep { m{/$} && index($last, $_) == 0 && $_ ne $last } @path_keys;
		my $own = $model->live($name, $last)->{$owner};

		next if grep { $model->has_both($name, $_, $owner) } @path;
		next if $is_release && ($model->below($name, $owner, 'p/', [], 1) != $model->below($name, $owner, 'p/', [])
			|| $last =~ m{/$} && $own && $own->{mode} eq 'exclusive' && $model->below($name, $owner, $last, []));
		return ($owner, @path, $last);
	}
}

# A limit: mostly about as many as share the key
sub some_limit
{
	my ($key) = @_;
	my $many = grep { $model->is_live($_) } values %{ $model->{held}{$key} || {} };

	return 1 + int rand 4 if $many < 10;
	return one_of(max(1, $many - 3) .. $many + 3, $many + 3, 1, 99 .. 101, 2**31 - 1);
}

# An acquire without ttl uses the default, if its lifetime is that of a lease.
sub some_request
{
	my ($name) = @_;
	my $lifetime = one_of('lease', 'lease', 'session', 'transaction', $model->{tx}{$name} ? 'transaction' : ());
	my ($key, $owner) = some_holding($name);
	my $mode = one_of('exclusive', 'shared', 'shared', 'shared');
	# max_holders with an exclusive mode is an error, as is a limit below 1
	my $limit = rand() < 0.02 ? ($mode eq 'shared' ? one_of(0, -1) : 1) : $mode eq 'shared' && rand() < 0.6 ? some_limit($key) : undef;

	$limit = undef if $has_lines || $lifetime eq 'transaction' && rand() < 0.9;
	# Others count a transaction as one sharer, so here it shares a key for one owner only.
	$lifetime = 'lease' if $model->{tx}{$name} && grep { $_ ne $owner } keys %{ $model->{tx}{$name}{mine}{$key} || {} };
	my $ttl = $lifetime eq 'transaction' ? undef : some_ttl();

	return {
		key => $key, owner => $owner, mode => $mode, limit => $limit, lifetime => $lifetime, wait => some_wait($name, $key),
		session => $started{$name}, asked_ttl => $ttl, ttl => $ttl // ($lifetime eq 'lease' ? 2700 : undef),
		on_reacquire => rand() < 0.05 };
}
sub acquire_sql
{
	my ($function, $r) = @_;
	return "SELECT $grant FROM $function('$r->{key}', " . seconds($r->{asked_ttl}) . ", '$r->{owner}', '$r->{mode}', lifetime => '$r->{lifetime}'" . limit_sql($r) . wait_sql($r) . ')';
}
sub limit_sql
{
	my ($r) = @_;
	return defined $r->{limit} ? ", max_holders => $r->{limit}" : rand() < 0.2 ? ', max_holders => NULL' : '';
}

# Only a call that a policy forbids to wait asks for a wait.
sub wait_sql
{
	my ($r) = @_;
	return defined $r->{wait} ? ", wait => '$r->{wait} s'" : '';
}
sub some_wait
{
	my ($name, $key) = @_;
	return $is_ruled && $model->value($name, $key, 'max_wait') < 1 && rand() < 0.1 ? 1 : undef;
}

#
# Policies
#
sub some_roles
{
	my @roles = ('al_bob', 'al_cid', 'al_team', 'al_team', $model->{oid}{al_gone} ? "al_gone $model->{oid}{al_gone}" : ());
	return [ sort keys %{ { map { one_of(@roles) => 1 } 0 .. int rand 2 } } ];
}

sub some_policy
{
	my %some = (
		default_ttl => sub { $hour * one_of(0.5, 0.75, 2, 4) },
		max_ttl => sub { $hour * one_of(1, 3, 5) },
		max_wait => sub { one_of(0, 0, 60) },
		max_lifetime => sub { $hour * one_of(0, 2, 4) },
		lock_delay => sub { $hour * one_of(0, 1, 1) },
		min_hold => sub { $hour * one_of(0, 1) },
		(map { $_ => sub { one_of(1, 1, 2, 2, 3) } } @numbers),
		roles => \&some_roles,
		history => sub { int(rand() < 0.8) },
		notify => sub { int rand 2 });
	my %often = (history => 0.6, roles => 0.1, min_hold => 0.15, max_keys_per_role => 0.6);

	return { map { rand() < ($often{$_} // 0.25) ? ($_ => $some{$_}->()) : () } sort keys %some };
}

sub policy_sql
{
	my ($prefix, $policy) = @_;
	my @arguments = ($prefix);

	foreach my $part (sort keys %$policy)
	{
		my $value = $policy->{$part};

		$value = "'$value s'" if grep { $_ eq $part } @durations;
		$value = $value ? 'true' : 'false' if $part =~ /^(?:history|notify)$/;
		$value = "'{" . join(',', map { s/ .*//r } @$value) . "}'::regrole[]" if $part eq 'roles';
		push @arguments, "$part => $value";
	}
	return "SELECT 'done', lock_set_policy(" . join(', ', @arguments) . ')';
}

# A policy that is refused
sub bad_policy
{
	return one_of(
		[ '22004', q{NULL, history => true} ], [ '22023', q{repeat('p', 1025)} ], [ '22023', q{'a', max_holders => 0} ], [ '22023', q{'a', max_keys_per_role => -1} ], [ '22023', q{'a', default_ttl => '2 h', max_ttl => '1 h'} ],
		[ '22023', q{'a', default_ttl => '2 h', max_lifetime => '1 h'} ], [ '22023', q{'a', lock_delay => '-1 s'} ], [ '22023', q{'a', min_hold => '1 month'} ], [ '22023', q{'a', max_ttl => '0'} ], [ '22023', q{'', roles => '{}'} ],
		[ '22004', q{'', roles => '{NULL}'} ], [ '42704', q{'', roles => '{4294967294}'} ]);
}

# The expected answer
sub expected_of
{
	my ($name, $verb, $r) = @_;

	return { sqlstate => ['22023'] } if defined $r->{limit} && ($r->{limit} < 1 || $r->{mode} eq 'exclusive');
	return $model->$verb($name, $r);
}
my %sqlstates = (released => '00000', not_found => 'LK002', not_owner => 'LK003', already_released => 'LK004', expired => 'LK005', forced => 'LK009');

my %verbs = (
	try_acquire => [ 30, sub {
			my ($name) = @_;
			my $r = some_request($name);
			return (acquire_sql('lock_try_acquire', $r), expected_of($name, 'acquire', $r), $r);
		} ],
	acquire => [ 6, sub {
			my ($name) = @_;
			my $r = some_request($name);
			my $expected = expected_of($name, 'acquire', $r);

			$expected = { sqlstate => [ $expected->{is_own} ? 'LK007' : '55P03' ] } if $expected->{status} && !$expected->{apply};
			$expected->{or} = { sqlstate => ['55P03'] } if $expected->{or};
			return (acquire_sql('lock_acquire', $r), $expected, $r);
		} ],
	try_acquire_all => [ 6, sub {
			my ($name) = @_;
			my $r = { %{ some_request($name) }, lifetime => 'lease' };

			$r->{keys} = [ grep { !$model->has_both($name, $_, $r->{owner}) } $r->{key}, map { one_of(@keys) } 1 .. int rand 4 ];
			$r->{ttl} = $r->{asked_ttl} // 2700;
			$r->{modes} = { map { $_ => one_of('exclusive', 'shared') } @{ $r->{keys} } } if rand() < 0.4 && ($r->{limit} // 1) > 0 && $r->{mode} eq 'shared';
			$r->{modes}{ $r->{keys}[0] } = 'shared' if $r->{modes} && @{ $r->{keys} };
			$seen{ 'a set of modes' . (defined $r->{limit} ? ' with a limit' : '') }++ if $r->{modes};
			return ("SELECT $grant FROM lock_try_acquire_all('{" . join(',', @{ $r->{keys} }) . "}', " . seconds($r->{asked_ttl}) . ", '$r->{owner}', '$r->{mode}'" . limit_sql($r) . wait_sql($r)
				  . ($r->{modes} ? ", modes => '{" . join(',', @{ $r->{modes} }{ @{ $r->{keys} } }) . "}'" : '') . ')',
				expected_of($name, 'acquire_all', $r), $r);
		} ],
	try_release => [ 14, sub {
			my ($name) = @_;
			my ($key, $owner) = some_holding($name);
			return ("SELECT 'released', lock_try_release('$key', '$owner')", $model->release($name, $key, $owner));
		} ],
	release => [ 4, sub {
			my ($name) = @_;
			my ($key, $owner) = some_holding($name);
			return ("SELECT 'done', lock_release('$key', '$owner')", $model->release($name, $key, $owner));
		} ],
	extend => [ 6, sub {
			my ($name) = @_;
			my ($key, $owner, $ttl) = (some_holding($name), some_ttl());
			return ("SELECT 'extended', extract(epoch FROM lock_extend('$key', '$owner', " . seconds($ttl) . '))', $model->extend($name, $key, $owner, $ttl), { ttl => $ttl });
		} ],
	try_extend => [ 4, sub {
			my ($name) = @_;
			my ($key, $owner, $ttl) = (some_holding($name), some_ttl());
			return ("SELECT 'extended', extract(epoch FROM lock_try_extend('$key', '$owner', " . seconds($ttl) . '))', $model->extend($name, $key, $owner, $ttl), { ttl => $ttl });
		} ],
	convert => [ 10, sub {
			my ($name) = @_;
			my ($key, $owner, $mode) = (some_holding($name), one_of('exclusive', 'shared'));
			return ("SELECT $grant FROM lock_convert('$key', '$owner', '$mode')", $model->convert($name, $key, $owner, $mode), { owner => $owner });
		} ],
	transfer => [ 8, sub {
			my ($name) = @_;
			my ($key, $owner, $new_owner, $ttl) = (some_holding($name), one_of(@owners), some_ttl());

			$new_owner = $owner if $model->has_both($name, $key, $new_owner);
			return ("SELECT $grant FROM lock_transfer('$key', '$owner', '$new_owner', ttl => " . seconds($ttl) . ')',
				$model->transfer($name, $key, $owner, $new_owner, $ttl), { owner => $owner, new_owner => $new_owner, ttl => $ttl });
		} ],
	release_all => [ 3, sub {
			my ($name) = @_;
			my ($key, $owner) = some_holding($name);
			return ("SELECT 'count', lock_release_all('$owner')", $model->release_all($name, $owner));
		} ],
	force => [ 3, sub {
			my ($name) = @_;
			my $key = one_of(@keys);
			return ("SELECT 'done', force_release('$key', 'test')", $model->force($name, $key));
		} ],
	force_one => [ 4, sub {
			my ($name) = @_;
			my ($key, $owner) = some_holding($name);
			my $own = $model->live($name, $key)->{$owner};
			my $token = $own && rand() < 0.8 ? $own->{token} : 1;
			return ("SELECT 'done', force_release('$key', 'test', $token)", $model->force_one($name, $key, $owner, $token));
		} ],
	steal => [ 2, sub {
			my ($name) = @_;
			my $r = { key => one_of(@keys), owner => one_of(@owners), ttl => 7200, asked_ttl => 7200, lifetime => 'lease' };
			return ("SELECT $grant FROM lock_steal('$r->{key}', '$r->{owner}', 'test', '2 hours')", $model->force($name, $r->{key}, $r), $r);
		} ],

	# The calls for paths
	try_acquire_path => [ 20, sub {
			my ($name) = @_;
			my ($owner, @path) = some_path($name);
			my $ttl = some_ttl();
			my $r = { keys => \@path, owner => $owner, asked_ttl => $ttl, ttl => $ttl // 2700, lifetime => 'lease', is_path => 1, on_reacquire => rand() < 0.1, modes => { map { $_ => $_ eq $path[-1] ? 'exclusive' : 'shared' } @path } };
			return ("SELECT $grant FROM lock_try_acquire_path('$path[-1]', " . seconds($ttl) . ", '$owner')", $model->acquire_all($name, $r), $r);
		}, 3 ],
	release_path => [ 20, sub {
			my ($name) = @_;
			my ($owner, @path) = some_path($name, 1);
			my $expected = $model->release_path($name, $owner, @path);

			$seen{'release_path beside a transaction'}++ if $expected->{apply} && in_other_transaction($name, $owner);
			return ("SELECT 'count', lock_release_path('$path[-1]', '$owner')", $expected);
		}, 3 ],

	# The calls for tickets
	enqueue => [ 40, sub {
			my ($name) = @_;
			my ($key, $owner) = some_in_line($name);
			my $ttl = one_of(undef, 7200, 3600);
			my $r = { key => $key, owner => $owner, mode => 'exclusive', lifetime => 'lease', asked_ttl => $ttl, ttl => $ttl // 2700 };
			my $arguments = $ttl ? ", ttl => '$ttl s'" : '';
			return ("SELECT 'placed', status, coalesce(place, 0), key, owner, coalesce(fencing_token, 0), coalesce(ticket, 0), extract(epoch FROM expires_at) FROM lock_enqueue('$key', '$owner', '$owner', '1 hour', '2 hours'$arguments)",
				$model->enqueue($name, $r), $r);
		}, 2 ],
	leave => [ 8, sub {
			my ($name) = @_;
			my ($key, $owner) = some_in_line($name);
			return ("SELECT 'left', lock_leave('$key', '$owner')", $model->leave($name, $key, $owner));
		}, 2 ],

	# The calls in sequences with policies
	heartbeat => [ 4, sub {
			my ($name) = @_;
			my ($key, $owner, $ttl) = (some_holding($name), some_ttl());
			my @beats = sort keys %{ { map { $_ => 1 } $key, map { one_of(@keys) } 1 .. int rand 3 } };
			my @expected = map { { key => $_, %{ $model->extend($name, $_, $owner, defined $ttl ? min($ttl, $model->value($name, $_, 'max_ttl')) : undef) } } } @beats;
			my $sql = "SELECT 'beat', key, status, coalesce(extract(epoch FROM expires_at), 'Infinity') FROM lock_heartbeat('{" . join(',', @beats) . "}', '$owner', " . seconds($ttl) . ')';
			my %codes = map { map { $_ => 1 } @{ $_->{sqlstate} || [] } } @expected;

			return ($sql, { beats => \@expected, owner => $owner, may => $codes{'55P03'} ? ['55P03'] : undef, ttl => $ttl,
					apply => sub { my ($answer) = @_; $_->{apply} && $_->{apply}->({ end => $answer->{beats}{ $_->{key} } }) for @expected } });
		}, 1 ],
	set_policy => [ 12, sub {
			my ($name) = @_;
			my ($prefix, $policy) = (one_of(@prefixes), some_policy());
			my $is_bad = ($policy->{default_ttl} // 0) > ($policy->{max_ttl} // 'Inf') || ($policy->{default_ttl} // 0) > ($policy->{max_lifetime} || 'Inf');

			if (rand() < 0.1)
			{
				my ($code, $arguments) = @{ bad_policy() };
				return ("SELECT lock_set_policy($arguments)", { sqlstate => [$code] });
			}
			return (policy_sql("'$prefix'", $policy), $is_bad ? { sqlstate => ['22023'] } : $model->change_policies($name, sub { $_[0]{$prefix} = $policy }));
		}, 1 ],
	drop_policy => [ 7, sub {
			my ($name) = @_;
			my $policies = $model->policies($name);
			my $prefix = one_of(@prefixes, keys %$policies ? ((sort keys %$policies) x 4) : ());
			my $expected = $model->change_policies($name, sub { delete $_[0]{$prefix} });

			$expected->{dropped} = $policies->{$prefix} ? 't' : 'f';
			# or by SQL, as a superuser may, whose statement sees its snapshot
			return ("WITH p AS (DELETE FROM app_lock_policy WHERE prefix = '$prefix' RETURNING prefix), r AS (DELETE FROM app_lock_policy_role WHERE prefix = '$prefix') SELECT 'dropped', count(*) > 0 FROM p", $expected)
			  if $name eq 'Ada' && !$model->{tx}{$name} && rand() < 0.3;
			return ("SELECT 'dropped', lock_drop_policy('$prefix')", $expected);
		}, 1 ]);

# Steps that are no calls; only where the model says that they make sense
my %others = (
	begin => [ 8, sub { !$model->{tx}{ $_[0] } } ],
	commit => [ 14, sub { $model->{tx}{ $_[0] } } ],
	rollback => [ 6, sub { $model->{tx}{ $_[0] } } ],
	savepoint => [ 10, sub { $model->{tx}{ $_[0] } } ],
	rollback_to => [ 8, sub { $model->{tx}{ $_[0] } && @{ $model->{tx}{ $_[0] }{saved} } } ],
	release_savepoint => [ 4, sub { $model->{tx}{ $_[0] } && @{ $model->{tx}{ $_[0] }{saved} } } ],
	disconnect => [ 1, sub { 1 } ],
	crowd => [ 6, sub { $is_crowded && !$model->{tx}{ $_[0] } && !grep { $_->{claims}{d} } values %{ $model->{tx} } } ],
	expire => [ 4, sub { 1 } ],
	sweep => [ 2, sub { !%{ $model->{tx} } } ],
	lapse => [ 3, sub { $has_lines } ],
	run_out => [ 3, sub { $has_lines } ],
	role => [ 1, sub { $is_ruled } ],
	member => [ 2, sub { $is_ruled } ]);

# Choose by weight; the same order for the same seed
sub choose
{
	my ($name) = @_;
	my @weights = ((map { [ $_, $verbs{$_}[0] ] } grep { !$verbs{$_}[2] || (undef, $is_ruled, $has_lines, $has_paths)[ $verbs{$_}[2] ] } sort keys %verbs), (map { [ $_, $others{$_}[0] ] } grep { $others{$_}[1]->($name) } sort keys %others));
	my $dice = 0;

	$dice += $_->[1] for @weights;
	$dice = rand $dice;
	foreach my $weight (@weights)
	{
		return $weight->[0] if ($dice -= $weight->[1]) < 0;
	}
	return $weights[-1][0];
}

#
# One step
#
sub play_verb
{
	my ($name, $verb) = @_;
	my ($sql, $expected, $r) = $verbs{$verb}[1]->($name);
	my $in_tx = $model->{tx}{$name};
	my $wrap = !$in_tx && rand() < 0.4;
	# lock_try_... raises only where another call would wait for a transaction
	my $raises = $expected->{may} || $expected->{or} && $verb eq 'acquire' || $expected->{sqlstate} && ($verb !~ /^try_/ || $expected->{sqlstate}[0] =~ /^(55P03|22023|42501|53400)$/);
	my $guard = ($in_tx || $wrap) && $raises;
	my $error = $r && $r->{on_reacquire} ? "SET atomic_lock.on_reacquire = 'error';" : '';
	my ($lines, $sqlstate, $outcome, $refused);

	$lines = run($name, join "\n",
		$error,
		$wrap ? 'BEGIN;' : '',
		$guard ? 'SAVEPOINT guard;' : '',
		$clock, $traces,
		"$sql;",
		"\\echo sqlstate|:SQLSTATE",
		$guard ? "\\if :ERROR\nROLLBACK TO guard;\n\\endif\nRELEASE guard;" : '',
		$traces, $clock,
		$wrap ? "COMMIT;\n$clock" : '',
		$error ? 'RESET atomic_lock.on_reacquire;' : '',
		view());
	$sqlstate = $lines->{sqlstate}[0][0] // '?';
	push @trace, "$name" . ($in_tx ? ' (in a transaction)' : $wrap ? ' (one transaction)' : '') . ": " . ($error ? 'on_reacquire error: ' : '') . ($sql =~ s/(?:concat_ws.*?\)\)|'placed'.*) FROM/... FROM/sr)
	  . "\n\t-> " . join(', ', $sqlstate, $lines->{error} =~ /ERROR:  \w+: (.*)/, map { my $kind = $_; map { join ' ', $kind, @$_ } @{ $lines->{$kind} } } grep { /^(grant|released|extended|count|done|beat|dropped|placed|left)$/ } sort keys %$lines);

	my @grants = map { my %g; @g{qw(key acquired status mode owner token acquired_at end holders max_holders)} = @$_; \%g } @{ $lines->{grant} || [] };
	my @clock = map { $_->[0] } @{ $lines->{clock} };
	my $has_written = $expected->{has_written};
	my %placed;

	@placed{qw(status place key owner token ticket end)} = @$_ for @{ $lines->{placed} || [] };
	if (%placed && $placed{status} ne 'queued')
	{
		my ($since) = map { $_->[2] } grep { $_->[0] eq $placed{key} && $_->[1] == $placed{token} } @{ $lines->{since} };

		push @grants, { %placed, acquired => 't', mode => 'exclusive', acquired_at => $since // 0, holders => 0, max_holders => 0 };
	}

	@moments = splice @moments, max(0, @moments - 60);
	push @moments, @clock;

	# The expected answer; others may or may not be counted
	my $or = @grants && $expected->{or_of} ? $expected->{or_of}{ $grants[0]{key} } : $expected->{or};
	$expected = $or if $or && (@grants ? $grants[0]{acquired} eq 'f' : $sqlstate eq '55P03');
	$refused = !($expected->{apply} || $expected->{all});
	if ($expected->{may} && grep { $_ eq $sqlstate } @{ $expected->{may} })
	{
		$expected = { sqlstate => $expected->{may} };
		$refused = 1;
		$seen{'may be refused'}++;
	}
	if ($verb eq 'try_release')
	{
		$sqlstate = $sqlstates{ $lines->{released}[0][0] // '' } // '?' if $sqlstate eq '00000';
	}
	elsif ($verb eq 'try_extend' && $sqlstate eq '00000' && $expected->{sqlstate})
	{
		# it does not say which of the reasons it was
		my @unraised = grep { $_ ne '55P03' } @{ $expected->{sqlstate} };
		$sqlstate = $unraised[0] if @unraised && $lines->{extended}[0][0] eq '';
	}
	$outcome = $sqlstate ne '00000' ? $sqlstate : @grants ? $grants[0]{status} : $placed{status} // 'done';
	$seen{"$verb $outcome behind a line"}++ if $expected->{is_behind};
	$seen{"$verb $outcome"}++;
	$seen{"$verb $outcome by a limit"}++ if $expected->{limit} && $refused;
	$seen{"$verb $outcome by a crowd"}++ if $expected->{limit} && @grants && $grants[0]{holders} >= $many;
	$seen{"$verb $outcome within a limit"}++ if $r && $r->{limit} && !$refused;
	$seen{"$outcome under policies"}++ if $is_ruled;
	$seen{'a closed key'}++ if $expected->{closed};
	if ($expected->{sqlstate})
	{
		expect_in($sqlstate, $expected->{sqlstate}, 'SQLSTATE');
	}
	elsif (!expect_is($sqlstate, '00000', 'SQLSTATE'))
	{
	}
	elsif (%placed && !@grants)
	{
		expect_in('queued', $expected->{status}, 'status') or return;
		expect_in($placed{place}, [ $expected->{place} - $expected->{ending} .. $expected->{place} ], 'place');
		expect_is($placed{ticket}, $expected->{number}, 'ticket') if $expected->{number};
		expect($placed{ticket} > ($token{''} // 0), "ticket $placed{ticket} is not above " . ($token{''} // 0)) unless $expected->{number};
		$token{''} = $placed{ticket} unless $expected->{number};
		expect_near($placed{end}, (map { $_ + 7200 } @clock[ 0, 1 ]), 'expires_at');
		@grants = ({ %placed, acquired => 't' });
	}
	elsif ($verb eq 'leave')
	{
		expect_is($lines->{left}[0][0], $expected->{left}, 'whether it had a ticket');
	}
	elsif ($verb =~ /^release_(?:all|path)$/)
	{
		expect_is($lines->{count}[0][0], $expected->{count}, 'count');
	}
	elsif ($verb eq 'drop_policy')
	{
		expect_is($lines->{dropped}[0][0], $expected->{dropped}, 'whether there was a policy');
	}
	elsif ($verb eq 'heartbeat')
	{
		check_beats($expected, $lines->{beat} || [], \@clock);
	}
	elsif ($verb =~ /extend/)
	{
		check_extended($expected, $lines->{extended}[0][0], \@clock, defined $r->{ttl});
	}
	elsif ($expected->{all})
	{
		expect_is(join(' ', map { "$_->{key} $_->{status}" } @grants), join(' ', map { "$_->{key} $_->{status}[0]" } @{ $expected->{all} }), 'answer')
		  and map { check_grant($name, $expected->{all}[$_], $grants[$_], $r, \@clock) } 0 .. $#grants;
	}
	elsif ($expected->{status} && $verb ne 'force')
	{
		expect_is(scalar @grants, 1, 'number of rows') or return;
		expect_in($grants[0]{status}, $expected->{status}, 'status') or return;
		expect_is($grants[0]{acquired}, $refused ? 'f' : 't', 'acquired');
		expect_is($grants[0]{key}, $expected->{key}, 'the key in the way') if $expected->{key};
		if ($refused)
		{
			check_refusal($expected, $grants[0]);
		}
		else
		{
			check_grant($name, $expected, $grants[0], $r, \@clock);
		}
	}
	return if @complaints;

	# A refusal leaves no trace.
	if ($refused)
	{
		my ($before, $after) = map { join ' ', @$_ } @{ $lines->{traces} };

		# release_all and heartbeat may have changed other keys before they met the refusal.
		# A statement that was rolled back may have taken a transaction id.
		expect_is($after, $before, 'after a refusal: no transaction id, claims, rows') unless $verb =~ /^(?:release_all|heartbeat)$/ || $has_written && $sqlstate ne '00000';
	}

	$model->begin($name) unless $in_tx;
	$model->{known}{$name} = $model->{policies};
	$_->{clock} = [ @clock[ 0, 1 ] ] for @grants;
	$expected->{apply}->($expected->{count} || !@grants ? { end => $lines->{extended}[0][0], clock => [ @clock[ 0, 1 ] ], beats => { map { @{$_}[ 0, 2 ] } @{ $lines->{beat} || [] } } } : $grants[0]) if $expected->{apply};
	if ($expected->{all})
	{
		# the effect of one key on the model must not depend on another
		$model->acquire($name, $model->of_key($r, $_->{key}))->{apply}->($_) for @grants;
	}
	$model->commit($name, [ @clock[ 0, -1 ] ]) unless $in_tx;
	check_view($name, $lines);
	return;
}

# Readers come to the crowded key, or leave it.
sub play_crowd
{
	my ($name) = @_;
	my $live = $model->live($name, 'd');
	my @there = grep { /^r/ && $live->{$_} } sort keys %$live;
	my @readers;

	if (@there < $crowd / 2)
	{
		return if grep { $_->{mode} eq 'exclusive' } values %$live;
		@readers = grep { !$live->{$_} } map { "r$_" } 1 .. $crowd;
		my $lines = run($name, "$clock\nSELECT $grant FROM unnest('{" . join(',', @readers) . q[}'::text[]) WITH ORDINALITY r (o, n), lock_try_acquire('d', n * interval '1 min' + '1 hour', o, 'shared', max_holders => ]
			  . 2 * $crowd . ");\n$clock\n" . view());
		my @clock = map { $_->[0] } @{ $lines->{clock} };
		my @grants = map { my %g; @g{qw(key acquired status mode owner token acquired_at end holders max_holders)} = @$_; \%g } @{ $lines->{grant} || [] };

		$trace[-1] .= ': ' . @grants . " come $lines->{error}";
		expect_is(scalar @grants, scalar @readers, 'readers that came') or return;
		$model->begin($name);
		foreach my $n (0 .. $#grants)
		{
			my $r = { key => 'd', owner => $readers[$n], mode => 'shared', lifetime => 'lease', limit => 2 * $crowd, asked_ttl => 3600 + 60 * ($n + 1) };
			my $expected = $model->acquire($name, $r);

			expect_is($grants[$n]{status}, $expected->{status}[0], "status of $readers[$n]") or return;
			check_grant($name, $expected, $grants[$n], $r, \@clock);
			$expected->{apply}->({ %{ $grants[$n] }, clock => \@clock });
		}
		$model->commit($name, \@clock);
		check_view($name, $lines);
	}
	else
	{
		@readers = splice @there, int rand @there, 1 + int rand(rand() < 0.2 ? $crowd : 8);
		my $lines = run($name, "SELECT 'released', lock_try_release('d', o) FROM unnest('{" . join(',', @readers) . "}'::text[]) o;\n" . view());

		$trace[-1] .= ': ' . @readers . ' leave';
		expect_is(join(' ', map { $_->[0] } @{ $lines->{released} }), join(' ', ('released') x @readers), "leaving $lines->{error}") or return;
		$model->begin($name);
		$model->release($name, 'd', $_)->{apply}->({ clock => [ 0, 0 ] }) for @readers;
		$model->commit($name, [ 0, 0 ]);
		check_view($name, $lines);
	}
	# lock_status() without a key lists all of them.
	expect_is(ask($watch, q{SELECT count(*) FROM lock_status() WHERE key = 'd' AND locked}), scalar keys %{ $model->live($name, 'd') }, 'rows of lock_status()');
	return;
}

sub play_other
{
	my ($name, $verb) = @_;

	push @trace, "$name: $verb";
	$seen{$verb}++;
	return play_crowd($name) if $verb eq 'crowd';
	if ($verb eq 'disconnect')
	{
		disconnect_session($name);
		connect_session($name);
		check_view($name, run($name, view()));
		return;
	}
	if ($verb eq 'sweep')
	{
		my $expired = $model->sweep;

		expect(ask($session{$name}, 'SELECT lock_sweep()') >= $expired, "swept less than $expired");
		return;
	}
	if ($verb eq 'lapse')
	{
		my $key = one_of(@keys);

		# A thief may be about to end the offer.
		return if grep { $_->{no_offer}{$key} } values %{ $model->{tx} };
		ask($watch, "UPDATE app_lock_queue SET expires_at = clock_timestamp() - interval '1 s' WHERE key = '$key' AND ticket = 0");
		$trace[-1] .= " $key";
		$seen{'lapse of an offer'}++ if $model->look_at_line('', $key)->{is_offered};
		$model->lapse($key);
		check_view($name, run($name, view()));
		return;
	}
	if ($verb eq 'run_out')
	{
		my $key = one_of(@keys);
		my $place = one_of(grep { my $row = $_->{row}; !grep { $_->{out_of_line}{$key}{$row} } values %{ $model->{tx} } } $model->places_in_line('', $key));

		return unless $place;
		ask($watch, "UPDATE app_lock_queue SET expires_at = clock_timestamp() - interval '1 s' WHERE key = '$key' AND ticket = $place->{number}");
		$trace[-1] .= " $key $place->{number} of $place->{owner}";
		$model->run_out($key, $place->{number});
		check_view($name, run($name, view()));
		return;
	}
	if ($verb eq 'expire')
	{
		# above all the keys that a transaction relies on
		my $key = one_of(@keys, map { ($_->[0]) x 4 } relied_on());

		$trace[-1] .= " $key";
		foreach my $tx (values %{ $model->{tx} })
		{
			return if grep { !/^(pin|hold)/ } keys %{ $tx->{claims}{$key} || {} };
		}
		my ($at, $epoch) = split /\|/, ask($watch, q{SELECT t, extract(epoch FROM t) FROM (SELECT clock_timestamp() - interval '1 s' AS t OFFSET 0) c});
		ask($watch, "UPDATE app_lock SET expires_at = '$at' WHERE key = '$key' AND expires_at > clock_timestamp()");
		$model->expire($key, $epoch);
		check_view($name, run($name, view()));
		return;
	}

	if ($verb eq 'role')
	{
		change_role();
		check_view($name, run($name, view()));
		return;
	}
	if ($verb eq 'member')
	{
		my $members = $model->{member}{al_cid};

		ask($watch, $members->{al_team} ? 'REVOKE al_team FROM al_cid' : 'GRANT al_team TO al_cid');
		$members->{al_team} = !$members->{al_team};
		return;
	}

	my %sql = (begin => 'BEGIN ISOLATION LEVEL ' . one_of('READ COMMITTED', 'REPEATABLE READ'), commit => 'COMMIT', rollback => 'ROLLBACK', savepoint => 'SAVEPOINT s', rollback_to => 'ROLLBACK TO s',
		release_savepoint => 'RELEASE s');
	my $lines = run($name, "$clock\n$sql{$verb};\n$clock\n" . view());
	$model->$verb($name, [ map { $_->[0] } @{ $lines->{clock} } ]);
	check_view($name, $lines);
	return;
}

# A role is dropped, or another role with its name is created.
sub change_role
{
	if ($model->{oid}{al_gone})
	{
		delete $model->{member}{al_bob}{"al_gone $model->{oid}{al_gone}"};
		$model->{oid}{al_gone} = '';
		ask($watch, 'DROP ROLE al_gone');
		return;
	}
	ask($watch, 'CREATE ROLE al_gone ROLE al_bob');
	$model->{oid}{al_gone} = ask($watch, q{SELECT 'al_gone'::regrole::oid});
	$model->{member}{al_bob}{"al_gone $model->{oid}{al_gone}"} = 1;
	return;
}

sub disconnect_session
{
	my ($name) = @_;
	my $before = ask($watch, 'SELECT extract(epoch FROM clock_timestamp())');

	end($session{$name});
	gone($watch, pid($session{$name}));
	$model->disconnect($name, $started{$name}, [ $before, ask($watch, 'SELECT extract(epoch FROM clock_timestamp())') ]);
	return;
}

# Al_dot is a member of al_team, and inherits none of its privileges.
$node->safe_psql('postgres', join ';', 'CREATE ROLE al_team', 'CREATE ROLE al_bob', 'CREATE ROLE al_cid', 'CREATE ROLE al_dot NOINHERIT', 'GRANT al_team TO al_bob, al_dot',
	map { my $role = $_; ("GRANT SELECT ON app_lock TO $role", map { "SELECT lock_grant_access('$role', '$_')" } qw(user monitor admin)) } sort values %roles);

# Answers that must occur, or the sequences show too little
my @kinds = (
	'try_acquire acquired', 'try_acquire reacquired', 'try_acquire held', 'try_acquire pending', 'acquire 55P03', 'acquire LK007',
	(map { ("$_ held by a limit", "$_ pending by a limit", "$_ held by a crowd", "$_ acquired within a limit") } qw(try_acquire try_acquire_all)), 'try_acquire reacquired within a limit', 'try_acquire 22023', 'crowd',
	(map { "try_acquire_path $_" } qw(acquired reacquired held pending held_by_owner)), (map { "release_path $_" } qw(done LK003 LK004 55P03)),
	'try_acquire_all acquired', 'try_acquire_all reacquired', 'try_acquire_all held', 'a set of modes', 'a set of modes with a limit',
	(map { "try_release $_" } qw(done LK002 LK003 LK004 LK005 LK009 55P03)), (map { "extend $_" } qw(done LK002 LK003 LK004 LK009 55P03)),
	(map { "convert $_" } qw(acquired reacquired LK003 LK004 55P03)), (map { "transfer $_" } qw(acquired LK003 LK004 55P03)),
	(map { "force $_" } qw(done LK002 55P03)), 'steal acquired', 'steal 55P03', 'release_all done', 'release_all 55P03',
	qw(commit rollback rollback_to disconnect expire sweep),
	(map { "enqueue $_" } qw(queued acquired reacquired 55P03)), 'leave done', 'try_acquire held behind a line', 'try_acquire_all held behind a line', 'a line with an offer', 'a long line', 'lapse of an offer', 'run_out',
	(map { "$_ under policies" } qw(42501 53400 22023)), 'a closed key', 'set_policy done', 'set_policy 55P03', 'drop_policy done', 'heartbeat done', 'held at', 'free at', (map { "ended by $_" } qw(released transaction)), qw(role member));

my ($played, $more) = (0, 0);
my @sequences = (@seeds, map({ "$_, with a crowd" } @seeds), map({ "$_, in line" } @seeds), map({ "$_, of paths" } @seeds), map { "$_, under policies" } @seeds);
while (defined(my $sequence = shift @sequences))
{
	my ($seed) = $sequence =~ /^(\d+)/;

	next if $sequence !~ /$kind/;
	note "SEED=$sequence";
	$is_crowded = $sequence =~ /crowd/;
	$is_ruled = $sequence =~ /policies/;
	$has_lines = $sequence =~ /line/;
	$has_paths = $sequence =~ /paths/;
	@keys = ($has_paths ? @path_keys : @few_keys, $is_ruled ? @more_keys : ());
	srand $seed;
	$model = AtomicLockModel->new;
	$model->{role} = \%roles if $is_ruled;
	$model->{member} = { al_bob => { al_bob => 1, al_team => 1 }, al_cid => { al_cid => 1 }, al_dot => { al_dot => 1 } };
	@moments = ();
	%token = ();
	@trace = @complaints = ();
	$watch = session($node, 'Watch');
	connect_session($_) for @names;

	my $step;
	my $last = $is_crowded ? int($steps / 4) : $is_ruled ? int($steps / 3) : int($steps / 2);
	for ($step = 1; $step <= $last && !@complaints; $step++)
	{
		my $name = one_of(@names);
		my $verb = choose($name);

		eval { $verbs{$verb} ? play_verb($name, $verb) : play_other($name, $verb); 1 } or push @complaints, $@;
		check_history(0) if $is_ruled && $step % 100 == 0 && !@complaints;
		if ($step % 4 == 0 && !@complaints)
		{
			my $other = one_of(@names);
			push @trace, "$other looks";
			check_view($other, run($other, view()));
		}
	}
	$played += $step - 1;
	end_ruled() if $is_ruled && !@complaints;
	ok(!@complaints, "$last steps of sequence $sequence")
	  or diag("SEED=$sequence, step " . ($step - 1) . ":\n" . join("\n", splice(@trace, -min(25, scalar @trace))) . "\n" . join("\n", @complaints));
	end(values %session);
	poll($watch, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'});
	ask($watch, 'TRUNCATE app_lock, app_lock_queue, lock_audit, lock_history, app_lock_policy, app_lock_policy_role; DROP ROLE IF EXISTS al_gone; REVOKE al_team FROM al_cid');
	end($watch);
	# Some of these answers are rare.
	push @sequences, map { $seeds[-1] + $more . $_ } '', ', with a crowd', ', in line', ', of paths', ', under policies'
	  if !@sequences && !$kind && !@complaints && $played >= 3000 && grep({ !$seen{$_} } @kinds) && $more++ < 5;
}

# A sweep writes the ends of expired leases, if history is still turned on.
sub end_ruled
{
	disconnect_session($_) for @names;
	check_history(0);
	ask($watch, q{BEGIN; SELECT count(lock_drop_policy(prefix)) FROM lock_policies; SELECT lock_set_policy('', history => true); COMMIT});
	ask($watch, 'SELECT lock_sweep()');
	check_history(1);
	return;
}

note join ', ', map { "$_: $seen{$_}" } sort keys %seen;
is(join(' ', grep { !$seen{$_} } @kinds), '', 'all kinds of answers occurred') if $played >= 3000 && !$kind;

$node->stop;
log_is_clean($node);

done_testing();
