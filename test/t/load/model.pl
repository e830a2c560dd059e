# Anything that four sessions may do, in any order, against a model.
#
# A random sequence of calls, in transactions and without, with savepoints,
# disconnects and leases that run out, is played both by the server and by
# test/perl/AtomicLockModel.pm, and each answer and what is to be seen of all
# keys is compared.  SEED in the environment chooses the sequence, AL_STEPS its
# length.
#
# Properties: an answer depends on nothing but who holds the key, in which
# mode, and what unfinished transactions have in hand; what is refused changes
# nothing, takes no transaction id and keeps no claim; tokens of a key rise with
# each grant, also over those that are rolled back, and stay the same with
# whatever is no grant; reacquire, upgrade, conversion, transfer and extension
# keep what they have to; sets are had as a whole or not at all.  Keys and owners
# that were made to have one hash are as different as any others.  A key that is
# asked for with max_holders is had if fewer others have it, committed or not; who
# is refused hears how many they are, and whose end lets one more in; all this also
# where a key has more readers than answers count.
#
# Turns red when: readers and writers share a key; an owner has two holdings of
# it; a refusal writes; a rollback leaves a holding, a claim, or a mode;
# somebody's transaction is looked through; a holding outlives its session or
# transaction, or ends before; a dead holding is revived, or a live one taken;
# a token is given twice or falls; there is one holder more than there may be, or
# a place that nobody gets; keys or owners are told apart by a hash that
# can be inverted.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../../perl";
use AtomicLockModel;
use AtomicLockTest;
use AtomicLockWait;
use List::Util qw(max min);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my @seeds = defined $ENV{SEED} ? split(/\D+/, $ENV{SEED}) : (1706, int(rand(1_000_000)));
my $steps = $ENV{AL_STEPS} || 1500;
# Readers of the crowded key, in a sequence of its own, and where counts end
my $crowd = 150;
my $many = $AtomicLockModel::many;

# Made by test/collisions.py: three keys and two owners have one hash in PostgreSQL,
# with the seeds that were once used for them, and the shared holding of d by the
# fourth owner has what o1's of a has.  It must not matter.
my @keys = ('a', '<tK~W[rLuAXo', '4I/UC?q0[*[>', 'd');
my @owners = ('o1', 'Hxu6XF+jjnmn', 'o3', 'oDtlA<nrP3U!');
my @names = ('Ada', 'Bob', 'Cid', 'Dot');

my $node = PostgreSQL::Test::Cluster->new('model');
$node->init;
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'atomic_lock'\nlog_statement = none\nautovacuum = off\natomic_lock.sweep_interval = 0\nmax_locks_per_transaction = 256\n");
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');
my ($watch, $model, %session, %started, %token, %seen, @trace, $is_crowded);

sub connect_session
{
	my ($name) = @_;

	$session{$name} = session($node, $name);
	# Where a call would wait for a transaction it is an error, at once.
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
# What is asked of the server with each call
#
my $grant = q{concat_ws('|', 'grant', key, acquired, status, coalesce(mode, '-'), coalesce(owner, '-'), coalesce(fencing_token, 0),
	coalesce(extract(epoch FROM acquired_at), 0), coalesce(extract(epoch FROM expires_at), 'Infinity'), coalesce(holders, 0), coalesce(max_holders, 0))};
my $traces = q{SELECT 'traces', pg_current_xact_id_if_assigned() IS NULL, (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'),
	(SELECT md5(string_agg(concat_ws('|', ctid, xmin, xmax, a.*), ';' ORDER BY ctid)) FROM app_lock a);};
my $clock = q{SELECT 'clock', extract(epoch FROM clock_timestamp());};
my $view = 'SELECT ' . q{'status', k, locked, coalesce(mode, '-'), coalesce(holders, 0), coalesce(lifetime, '-'), coalesce(fencing_token, 0), CASE WHEN pending THEN 'pending' ELSE coalesce(pid, 0)::text END,
	(SELECT string_agg(o, ' ' ORDER BY o) FROM unnest('{OWNERS}'::text[]) o WHERE lock_is_held(k, o)), current_setting('atomic_lock.owner')
	FROM unnest('{KEYS}'::text[]) k, lock_status(k) ORDER BY k;};
$view =~ s/OWNERS/join(',', @owners)/e;
$view =~ s/KEYS/join(',', @keys)/e;

# ... as seen by somebody
sub view
{
	return 'SET atomic_lock.owner = ' . one_of("''", map { "'$_'" } @owners) . ";\n$view\nRESET atomic_lock.owner;";
}

# Run it, and return its lines by their first column, each a list of the others.
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
		$psql->{run}->pump;
		die 'an answer that does not come' if $psql->{timeout}->is_expired;
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

# What of the answer is not as it should be, as a list of complaints
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
# What a session sees of all keys
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
		# of those who are shown, nobody is also somebody who is not known
		my $unknown = grep { $_->{by} && !defined $_->{owner} } @holdings;
		expect_in($holders, [ map { min($_, $many) } scalar(@holdings) - (@maybe ? $unknown : 0) .. @holdings + @maybe ], "$what holders");
		# the caller's own, or else the one that lasts longest; without those that need not be shown, or with them
		my @own = grep { ($_->{owner} // '') eq $me } @holdings, @maybe;
		if (@holdings > $many && !@own)
		{
			# not all are looked at
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

		# Whether it is known who has the key for another's transaction is not said.
		my %theirs = map { $_->{owner} // '' => 1 } @theirs, @maybe;
		expect_is(join(' ', grep { $live->{$_} || !$theirs{$_} } split / /, $held), join(' ', grep { $live->{$_} } sort @owners), "$what held by");
	}
	expect_is(scalar @{ $lines->{status} || [] }, scalar @keys, 'number of keys');
	return;
}

# How many there are, and may be
sub expect_holders
{
	my ($expected, $answer) = @_;
	my ($least, $most) = map { min($_, max($many, $expected->{limit} // 0)) } @{ $expected->{holders} || [ 0, 0 ] };

	expect($answer->{holders} >= $least && $answer->{holders} <= $most, "holders is $answer->{holders} instead of $least to $most");
	expect_is($answer->{max_holders}, $expected->{limit} // 0, 'max_holders');
	return;
}

#
# A grant: $r is what was asked for
#
sub check_grant
{
	my ($expected, $answer, $r, $clock) = @_;
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

	# when it ends
	my $ttl = $r->{ttl};
	my @window = defined $ttl ? map { $_ + $ttl } @$clock : ('Inf', 'Inf');
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
# A refusal: what it says of who is in the way
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
# What may be asked: SQL, what the model says, and what was asked of a grant
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

# A key, and an owner who has not two holdings of it: what comes of those is not
# said.  Mostly one who has something, and often one that a transaction relies on.
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
sub some_holding
{
	my ($name) = @_;
	my $is_holder = rand() < 0.5;
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

# How many may share it: mostly about as many as do
sub some_limit
{
	my ($key) = @_;
	my $many = grep { $model->is_live($_) } values %{ $model->{held}{$key} || {} };

	return 1 + int rand 4 if $many < 10;
	return one_of(max(1, $many - 3) .. $many + 3, $many + 3, 1, 99 .. 101, 2**31 - 1);
}

# An acquire without ttl is for the default, but for other lifetimes.
sub some_request
{
	my ($name) = @_;
	my $lifetime = one_of('lease', 'lease', 'session', 'transaction', $model->{tx}{$name} ? 'transaction' : ());
	my $ttl = $lifetime eq 'transaction' ? undef : some_ttl();
	my ($key, $owner) = some_holding($name);
	my $mode = one_of('exclusive', 'shared', 'shared', 'shared');
	# an exclusive lock with a limit is none, and so is a limit of nobody
	my $limit = rand() < 0.02 ? ($mode eq 'shared' ? one_of(0, -1) : 1) : $mode eq 'shared' && rand() < 0.6 ? some_limit($key) : undef;

	return {
		key => $key, owner => $owner, mode => $mode, limit => $limit, lifetime => $lifetime,
		session => $started{$name}, asked_ttl => $ttl, ttl => $ttl // ($lifetime eq 'lease' ? 300 : undef),
		on_reacquire => rand() < 0.05 };
}
sub acquire_sql
{
	my ($function, $r) = @_;
	return "SELECT $grant FROM $function('$r->{key}', " . seconds($r->{asked_ttl}) . ", '$r->{owner}', '$r->{mode}', lifetime => '$r->{lifetime}'" . limit_sql($r) . ')';
}
sub limit_sql
{
	my ($r) = @_;
	return defined $r->{limit} ? ", max_holders => $r->{limit}" : rand() < 0.2 ? ', max_holders => NULL' : '';
}

# What is to be expected of it, and how
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
			$r->{ttl} = $r->{asked_ttl} // 300;
			return ("SELECT $grant FROM lock_try_acquire_all('{" . join(',', @{ $r->{keys} }) . "}', " . seconds($r->{asked_ttl}) . ", '$r->{owner}', '$r->{mode}'" . limit_sql($r) . ')',
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
	steal => [ 2, sub {
			my ($name) = @_;
			my $r = { key => one_of(@keys), owner => one_of(@owners), ttl => 7200, lifetime => 'lease' };
			return ("SELECT $grant FROM lock_steal('$r->{key}', '$r->{owner}', 'test', '2 hours')", $model->force($name, $r->{key}, $r), $r);
		} ]);

# Not calls; only where the model says that they make sense
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
	sweep => [ 2, sub { !%{ $model->{tx} } } ]);

# Choose by weight; in the same order for the same seed
sub choose
{
	my ($name) = @_;
	my @weights = ((map { [ $_, $verbs{$_}[0] ] } sort keys %verbs), (map { [ $_, $others{$_}[0] ] } grep { $others{$_}[1]->($name) } sort keys %others));
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
	# lock_try_... raises for a transaction in the way of what would wait, no more
	my $raises = $expected->{may} || $expected->{or} && $verb eq 'acquire' || $expected->{sqlstate} && ($verb !~ /^try_/ || $expected->{sqlstate}[0] =~ /^(55P03|22023)$/);
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
		$wrap ? 'COMMIT;' : '',
		$error ? 'RESET atomic_lock.on_reacquire;' : '',
		view());
	$sqlstate = $lines->{sqlstate}[0][0] // '?';
	push @trace, "$name" . ($in_tx ? ' (in a transaction)' : $wrap ? ' (one transaction)' : '') . ": " . ($error ? 'on_reacquire error: ' : '') . ($sql =~ s/concat_ws.*?\)\) FROM/... FROM/sr)
	  . "\n\t-> " . join(', ', $sqlstate, $lines->{error} =~ /ERROR:  \w+: (.*)/, map { my $kind = $_; map { join ' ', $kind, @$_ } @{ $lines->{$kind} } } grep { /^(grant|released|extended|count|done)$/ } sort keys %$lines);

	my @grants = map { my %g; @g{qw(key acquired status mode owner token acquired_at end holders max_holders)} = @$_; \%g } @{ $lines->{grant} || [] };
	my @clock = map { $_->[0] } @{ $lines->{clock} };

	# what it is; of those who may be counted, some are not
	my $or = @grants && $expected->{or_of} ? $expected->{or_of}{ $grants[0]{key} } : $expected->{or};
	$expected = $or if $or && (@grants ? $grants[0]{acquired} eq 'f' : $sqlstate eq '55P03');
	$refused = !($expected->{apply} || $expected->{all});
	if ($expected->{may} && grep { $_ eq $sqlstate } @{ $expected->{may} })
	{
		$expected = { sqlstate => $expected->{may} };
		$refused = 1;
	}
	if ($verb eq 'try_release')
	{
		$sqlstate = $sqlstates{ $lines->{released}[0][0] // '' } // '?' if $sqlstate eq '00000';
	}
	elsif ($verb eq 'try_extend' && $sqlstate eq '00000' && $expected->{sqlstate})
	{
		# which of them it was is not said
		my @unraised = grep { $_ ne '55P03' } @{ $expected->{sqlstate} };
		$sqlstate = $unraised[0] if @unraised && $lines->{extended}[0][0] eq '';
	}
	$outcome = $sqlstate ne '00000' ? $sqlstate : @grants ? $grants[0]{status} : 'done';
	$seen{"$verb $outcome"}++;
	$seen{"$verb $outcome by a limit"}++ if $expected->{limit} && $refused;
	$seen{"$verb $outcome by a crowd"}++ if $expected->{limit} && @grants && $grants[0]{holders} >= $many;
	$seen{"$verb $outcome within a limit"}++ if $r && $r->{limit} && !$refused;
	if ($expected->{sqlstate})
	{
		expect_in($sqlstate, $expected->{sqlstate}, 'SQLSTATE');
	}
	elsif (!expect_is($sqlstate, '00000', 'SQLSTATE'))
	{
	}
	elsif ($verb eq 'release_all')
	{
		expect_is($lines->{count}[0][0], $expected->{count}, 'count');
	}
	elsif ($verb =~ /extend/)
	{
		my $own = $expected->{own};
		my $ttl = $r->{ttl} // $own->{ttl};
		my @window = $own->{lifetime} eq 'transaction' || !defined $ttl ? ($own->{end}) x 2 : map { $_ + $ttl } @clock;

		@window = map { max($_, $own->{end}) } @window unless defined $r->{ttl};
		expect_near($lines->{extended}[0][0], @window, 'expires_at');
	}
	elsif ($expected->{all})
	{
		expect_is(join(' ', map { "$_->{key} $_->{status}" } @grants), join(' ', map { "$_->{key} $_->{status}[0]" } @{ $expected->{all} }), 'answer')
		  and map { check_grant($expected->{all}[$_], $grants[$_], $r, \@clock) } 0 .. $#grants;
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
			check_grant($expected, $grants[0], $r, \@clock);
		}
	}
	return if @complaints;

	# A refusal leaves nothing.
	if ($refused)
	{
		my ($before, $after) = map { join ' ', @$_ } @{ $lines->{traces} };

		# Some may have been released when it came to what could not be.
		expect_is($after, $before, 'after a refusal: no transaction id, claims, rows') unless $verb eq 'release_all';
	}

	$model->begin($name) unless $in_tx;
	$expected->{apply}->($expected->{count} || !@grants ? { end => $lines->{extended}[0][0] } : $grants[0]) if $expected->{apply};
	if ($expected->{all})
	{
		# what one key does to the model may not depend on another
		$model->acquire($name, { %$r, key => $_->{key}, lifetime => 'lease' })->{apply}->($_) for @grants;
	}
	$model->commit($name) unless $in_tx;
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
			my $r = { key => 'd', owner => $readers[$n], mode => 'shared', lifetime => 'lease', limit => 2 * $crowd, ttl => 3600 + 60 * ($n + 1) };
			my $expected = $model->acquire($name, $r);

			expect_is($grants[$n]{status}, $expected->{status}[0], "status of $readers[$n]") or return;
			check_grant($expected, $grants[$n], $r, \@clock);
			$expected->{apply}->($grants[$n]);
		}
		$model->commit($name);
		check_view($name, $lines);
	}
	else
	{
		@readers = splice @there, int rand @there, 1 + int rand(rand() < 0.2 ? $crowd : 8);
		my $lines = run($name, "SELECT 'released', lock_try_release('d', o) FROM unnest('{" . join(',', @readers) . "}'::text[]) o;\n" . view());

		$trace[-1] .= ': ' . @readers . ' leave';
		expect_is(join(' ', map { $_->[0] } @{ $lines->{released} }), join(' ', ('released') x @readers), "leaving $lines->{error}") or return;
		$model->begin($name);
		$model->release($name, 'd', $_)->{apply}->() for @readers;
		$model->commit($name);
		check_view($name, $lines);
	}
	# The list of all is of all.
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
		end($session{$name});
		gone($watch, pid($session{$name}));
		$model->disconnect($name, $started{$name});
		connect_session($name);
		check_view($name, run($name, view()));
		return;
	}
	if ($verb eq 'sweep')
	{
		my $expired = 0;

		foreach my $rows (values %{ $model->{held} })
		{
			foreach my $row (values %$rows)
			{
				next if $model->is_live($row) || $row->{state} !~ /^(live|expired)$/;
				$expired += $row->{sure};
				%$row = (%$row, state => 'forgotten');
			}
		}
		expect(ask($session{$name}, 'SELECT lock_sweep()') >= $expired, "swept less than $expired");
		return;
	}
	if ($verb eq 'expire')
	{
		# above all those that a transaction relies on
		my $key = one_of(@keys, map { ($_->[0]) x 4 } relied_on());

		$trace[-1] .= " $key";
		foreach my $tx (values %{ $model->{tx} })
		{
			return if grep { !/^(pin|hold)/ } keys %{ $tx->{claims}{$key} || {} };
		}
		ask($watch, "UPDATE app_lock SET expires_at = clock_timestamp() - interval '1 s' WHERE key = '$key' AND expires_at > clock_timestamp()");
		$model->expire($key);
		check_view($name, run($name, view()));
		return;
	}

	my %sql = (begin => 'BEGIN ISOLATION LEVEL ' . one_of('READ COMMITTED', 'REPEATABLE READ'), commit => 'COMMIT', rollback => 'ROLLBACK', savepoint => 'SAVEPOINT s', rollback_to => 'ROLLBACK TO s',
		release_savepoint => 'RELEASE s');
	$model->$verb($name);
	check_view($name, run($name, "$sql{$verb};\n" . view()));
	return;
}

my $played = 0;
foreach my $sequence (@seeds, map { "$_, with a crowd" } @seeds)
{
	my ($seed) = $sequence =~ /^(\d+)/;

	note "SEED=$sequence";
	$is_crowded = $sequence =~ /crowd/;
	srand $seed;
	$model = AtomicLockModel->new;
	%token = ();
	@trace = @complaints = ();
	$watch = session($node, 'Watch');
	connect_session($_) for @names;

	my $step;
	my $last = $is_crowded ? int($steps / 4) : $steps;
	for ($step = 1; $step <= $last && !@complaints; $step++)
	{
		my $name = one_of(@names);
		my $verb = choose($name);

		eval { $verbs{$verb} ? play_verb($name, $verb) : play_other($name, $verb); 1 } or push @complaints, $@;
		if ($step % 4 == 0 && !@complaints)
		{
			my $other = one_of(@names);
			push @trace, "$other looks";
			check_view($other, run($other, view()));
		}
	}
	$played += $step - 1;
	ok(!@complaints, "$last steps of sequence $sequence")
	  or diag("SEED=$sequence, step " . ($step - 1) . ":\n" . join("\n", splice(@trace, -min(25, scalar @trace))) . "\n" . join("\n", @complaints));
	end(values %session);
	poll($watch, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'});
	ask($watch, 'TRUNCATE app_lock, lock_audit');
	end($watch);
}

# Was it worth it?
note join ', ', map { "$_: $seen{$_}" } sort keys %seen;
my @missed = grep { !$seen{$_} } (
	'try_acquire acquired', 'try_acquire reacquired', 'try_acquire held', 'try_acquire pending', 'acquire 55P03', 'acquire LK007',
	(map { ("$_ held by a limit", "$_ pending by a limit", "$_ held by a crowd", "$_ acquired within a limit") } qw(try_acquire try_acquire_all)), 'try_acquire reacquired within a limit', 'try_acquire 22023', 'crowd',
	'try_acquire_all acquired', 'try_acquire_all reacquired', 'try_acquire_all held',
	(map { "try_release $_" } qw(done LK002 LK003 LK004 LK005 LK009 55P03)), (map { "extend $_" } qw(done LK002 LK003 LK004 LK009 55P03)),
	(map { "convert $_" } qw(acquired reacquired LK003 LK004 55P03)), (map { "transfer $_" } qw(acquired LK003 LK004 55P03)),
	(map { "force $_" } qw(done LK002 55P03)), 'steal acquired', 'steal 55P03', 'release_all done', 'release_all 55P03',
	qw(commit rollback rollback_to disconnect expire sweep));
is("@missed", '', 'all kinds of answers came') if $played >= 3000;

$node->stop;
log_is_clean($node);

done_testing();
