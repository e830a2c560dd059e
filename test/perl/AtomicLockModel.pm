# What atomic_lock is to answer, for the property test: sessions, their
# transactions, and who holds what, in plain data.
#
# A holding is a hash: owner, mode, lifetime, session (for lifetime session),
# token, acquired_at, end (seconds, or Inf), ttl, and state: "live", "released",
# "expired", "forced", or "forgotten" where it is no row of this owner any more.
# Committed holdings are in {held}{key}{owner}, dead ones too: they tell their owner
# what became of them, for sure until the key is granted anew and its row may have
# been used.  What earlier rows told, of which one may still be there, is in {once}.
# Who ever lost a key by force is in {forced}, whatever became of that: it may be told
# so.  A transaction has what it changed in {rows}, what it holds itself in {mine},
# both by key and owner, likewise what it held and others may still see in {ended},
# and its claims.

package AtomicLockModel;

use strict;
use warnings FATAL => 'all';
use List::Util qw(max min);
use Storable qw(dclone);

# Of more holders than this, not all are looked at.
our $many = 100;

sub new
{
	my ($class) = @_;
	return bless { held => {}, tx => {}, alive => {} }, $class;
}

#
# Transactions
#
sub begin
{
	my ($self, $s) = @_;
	$self->{tx}{$s} = { rows => {}, mine => {}, ended => {}, claims => {}, said => {}, saved => [] };
	return;
}

sub commit
{
	my ($self, $s) = @_;
	my $rows = (delete $self->{tx}{$s})->{rows};

	foreach my $key (keys %$rows)
	{
		$self->{held}{$key}{$_} = $rows->{$key}{$_} for keys %{ $rows->{$key} };
	}
	return;
}

sub rollback
{
	my ($self, $s) = @_;
	delete $self->{tx}{$s};
	return;
}

sub savepoint
{
	my ($self, $s) = @_;
	my $tx = $self->{tx}{$s};
	my $saved = delete $tx->{saved};

	push @$saved, dclone($tx);
	$tx->{saved} = $saved;
	return;
}

sub rollback_to
{
	my ($self, $s) = @_;
	my $saved = $self->{tx}{$s}{saved};

	$self->{tx}{$s} = dclone($saved->[-1]);
	$self->{tx}{$s}{saved} = $saved;
	return;
}

sub release_savepoint
{
	my ($self, $s) = @_;
	pop @{ $self->{tx}{$s}{saved} };
	return;
}

#
# Who holds what, as a session sees it
#
sub is_live
{
	my ($self, $h) = @_;
	return $h->{state} eq 'live' && ($h->{lifetime} ne 'session' || $self->{alive}{ $h->{session} });
}

# Rows of a key, dead ones too
sub rows
{
	my ($self, $s, $key) = @_;
	return { %{ $self->{held}{$key} || {} }, %{ $self->{tx}{$s}{rows}{$key} || {} } } if $self->{tx}{$s};
	return { %{ $self->{held}{$key} || {} } };
}

# Live holdings of a key but for those of others' transactions, by owner; an
# own one for the transaction is what counts.
sub live
{
	my ($self, $s, $key) = @_;
	my $rows = $self->rows($s, $key);
	my %live = map { $_ => $rows->{$_} } grep { $self->is_live($rows->{$_}) } keys %$rows;

	%live = (%live, %{ $self->{tx}{$s}{mine}{$key} || {} }) if $self->{tx}{$s};
	return \%live;
}

# Has an owner a row and, beside it, something for the transaction?
sub has_both
{
	my ($self, $s, $key, $owner) = @_;
	my $row = $self->rows($s, $key)->{$owner};
	return $self->{tx}{$s} && $self->{tx}{$s}{mine}{$key}{$owner} && $row && $self->is_live($row);
}

# A transaction ends what it holds itself, for others when it commits.
sub end
{
	my ($self, $s, $key, $owner) = @_;
	my $h = delete $self->{tx}{$s}{mine}{$key}{$owner};

	$self->{tx}{$s}{ended}{$key}{$owner} = $h if $h;
	return;
}

# Does an owner hold a key by another transaction?
sub elsewhere
{
	my ($self, $s, $key, $owner) = @_;
	return grep { ($_->{owner} // '') eq $owner } $self->theirs($s, $key), $self->maybe_theirs($s, $key);
}

# What others' transactions held, and may still be shown to hold
sub maybe_theirs
{
	my ($self, $s, $key) = @_;
	my @maybe;

	foreach my $other (grep { $_ ne $s } keys %{ $self->{tx} })
	{
		my $mine = $self->{tx}{$other}{mine}{$key} || {};
		my $ended = $self->{tx}{$other}{ended}{$key} || {};

		push @maybe, map { { %{ $ended->{$_} }, by => $other } } grep { !$mine->{$_} } keys %$ended;
	}
	return @maybe;
}

# What others' transactions hold; of some only the mode is known.
sub theirs
{
	my ($self, $s, $key) = @_;
	my @theirs;

	foreach my $other (grep { $_ ne $s && $self->{tx}{$_}{said}{$key} } keys %{ $self->{tx} })
	{
		my @mine = values %{ $self->{tx}{$other}{mine}{$key} || {} };
		@mine = ({ mode => $self->{tx}{$other}{said}{$key}, lifetime => 'transaction', end => 'Inf', token => 0 }) unless @mine;
		push @theirs, map { { %$_, by => $other } } @mine;
	}
	return @theirs;
}

# Has another transaction a claim on a key, without holding it to its end?
sub is_pending
{
	my ($self, $s, $key) = @_;
	return grep { $_ ne $s && %{ $self->{tx}{$_}{claims}{$key} || {} } && !$self->{tx}{$_}{said}{$key} } keys %{ $self->{tx} };
}

# Do claims of other transactions keep a session from one?  Modes: take; extend
# (the exclusive holding) and hold (it, so that it stays, even if it runs out);
# share, renew and pin, which are the same for the shared holding of one owner.
sub is_claimed
{
	my ($self, $s, $key, $mode, $owner) = @_;
	my %meets = (
		take => {},
		extend => { hold => 1 },
		share => { share => 1, renew => 1, pin => 1 },
		renew => { share => 1, renew => 1, pin => 1 },
		pin => { share => 1, renew => 1, pin => 1 },
		hold => { extend => 1, hold => 1 });

	foreach my $other (grep { $_ ne $s } keys %{ $self->{tx} })
	{
		my $claims = $self->{tx}{$other}{claims}{$key} || {};
		return 1 if grep { !$meets{$mode}{ (split /:/)[0] } } keys %$claims;
		return 1 if $mode =~ /^(share|renew)$/ && ($claims->{"share:$owner"} || $claims->{"renew:$owner"});
		return 1 if $mode eq 'share' && $claims->{"pin:$owner"} || $mode eq 'pin' && $claims->{"share:$owner"};
	}
	return 0;
}

# How many of the owners that transactions of others have something of a key for may
# have it when those end, at least, and who of them these may be.  A transaction may
# commit, roll back, or go back to a savepoint.
sub come_to_have
{
	my ($self, $s, $key, $owner) = @_;
	my $before = $self->{held}{$key} || {};
	my $number = 0;
	my %owners;

	foreach my $tx (map { $self->{tx}{$_} } grep { $_ ne $s } keys %{ $self->{tx} })
	{
		my @states = map { { %{ $_->{rows}{$key} || {} }, %{ $_->{mine}{$key} || {} } } } $tx, @{ $tx->{saved} };
		my @touched = grep { $_ ne $owner } keys %{ { map { %$_ } @states } };

		$owners{$_} = 1 for @touched;
		$number += max(map { my %state = (%$before, %$_); scalar grep { $state{$_} && $self->is_live($state{$_}) } @touched } {}, @states);
	}
	return ($number, \%owners);
}

# Who else has a place of a shared key, or may get one when another transaction
# ends: how many owners must be counted, and may be, how many are shown to hold it, at
# least and at most, and their holdings in the order of their ends.
sub places
{
	my ($self, $s, $key, $owner) = @_;
	my $live = $self->live($s, $key);
	my @theirs = $self->theirs($s, $key);
	my @maybe = $self->maybe_theirs($s, $key);
	my @held = sort { $a->{end} <=> $b->{end} } (map { $live->{$_} } grep { $_ ne $owner } keys %$live), @theirs;
	my @known = grep { defined } map { $_->{owner} } @held;
	my %known = map { $_ => 1 } @known;
	my %owners = %known;
	my ($must, $touched) = $self->come_to_have($s, $key, $owner);
	my $twice = 0;
	my (%relied, %over);

	foreach my $tx (map { $self->{tx}{$_} } grep { $_ ne $s } keys %{ $self->{tx} })
	{
		my ($rows, $mine, $ended) = map { $_->{$key} || {} } @{$tx}{qw(rows mine ended)};

		foreach my $claim (keys %{ $tx->{claims}{$key} || {} })
		{
			$owners{$1} = 1 if $claim =~ /^(?:share|renew|pin):(.+)/s && $1 ne $owner;
			$relied{$1} = 1 if $claim =~ /^pin:(.+)/s && $1 ne $owner;
			# beside what it was handed over, an owner may have a row that has expired
			$over{$1} = 1 if $claim =~ /^(?:share|renew|pin):(.+)/s && $1 ne $owner && $self->{once}{$key}{$1}{LK005};
		}
		# What a transaction has held itself counts until it ends, whatever became of it.
		$twice += keys(%$ended) + grep { $rows->{$_} } keys %$mine;
	}
	$must += grep { $_ ne $owner && !$touched->{$_} } keys %$live;
	# what is over, and is relied on
	$must += grep { my $row = $self->{held}{$key}{$_}; $row && $row->{state} =~ /^(?:live|expired)$/ && !$self->is_live($row) && !$touched->{$_} } keys %relied;
	# Beside who has it alone, nobody else need be seen.
	my $least = keys(%known) + (@maybe ? 0 : @held - @known);
	$least = 1 if grep { !$_->{by} && $_->{mode} eq 'exclusive' } @held;
	return {
		must => $must,
		may => keys(%owners) + $twice + keys %over,
		least => $least,
		most => @held + @maybe,
		maybe => scalar @maybe,
		held => \@held };
}

# Of them, those who have it alone: to share it, nobody else is in the way.
sub places_alone
{
	my ($places) = @_;
	my @alone = grep { $_->{mode} eq 'exclusive' } @{ $places->{held} };

	return { %$places, least => min($places->{least}, scalar @alone), most => @alone + $places->{maybe}, held => \@alone };
}

# What a refusal by a number of holders, or by one that excludes, tells of it: the
# holding whose end makes the key free for who asks, or lets one more in.
sub in_the_way
{
	my ($places, $limit, $is_excluded) = @_;
	my @held = @{ $places->{held} };
	my @rows = grep { !$_->{by} } @held;
	my $is_exact = $places->{least} == @held && $places->{most} == @held && @held <= max($many, $limit // 0);
	my @first = $is_exact ? $held[ @held - ($is_excluded ? 1 : $limit) ] : ();

	# Where there are others, nobody is asked for what ends with a transaction.
	push @first, $rows[-1] if @first && @rows && $is_excluded;
	return (
		holders => [ $is_excluded && @rows ? scalar @rows : $places->{least}, $places->{most} ],
		limit => $limit,
		named => @first && !(grep { !defined $_->{owner} } @first) ? [ map { my $end = $_->{end}; grep { $_->{end} == $end } @held } @first ] : undef);
}

sub claim
{
	my ($self, $s, $key, $mode, $owner) = @_;
	$self->{tx}{$s}{claims}{$key}{"$mode:$owner"} = 1;
	return;
}

sub put
{
	my ($self, $s, $key, $owner, %change) = @_;
	my $old = $self->rows($s, $key)->{$owner} || {};

	$self->{once}{$key}{$owner}{ $old->{state} eq 'released' ? 'LK004' : 'LK005' } = 1
	  if $old->{state} && !$self->is_live($old) && $old->{state} =~ /^(?:live|expired|released)$/;
	return $self->{tx}{$s}{rows}{$key}{$owner} = { %$old, owner => $owner, state => 'live', sure => 1, %change };
}

# A grant may have used the row of anything dead.  Nobody is less sure after a
# rollback than before it, but that does not matter.
sub reuse
{
	my ($self, $s, $key) = @_;
	$_->{sure} = 0 for grep { !$self->is_live($_) } values %{ $self->rows($s, $key) };
	return;
}

# Why an owner may not do anything with a key: the possible answers, as SQLSTATEs
sub refusals
{
	my ($self, $s, $key, $owner) = @_;
	my $row = $self->rows($s, $key)->{$owner};
	my $others = %{ $self->live($s, $key) } ? 'LK003' : 'LK002';

	my @forced = $self->{forced}{$key}{$owner} ? 'LK009' : ();

	return ($others, @forced) unless $row;
	# A row of before may still be there.
	return ($others, @forced, sort keys %{ $self->{once}{$key}{$owner} || {} }) if $row->{state} eq 'forgotten';
	return 'LK009' if $row->{state} eq 'forced';
	my $own = $row->{state} eq 'released' ? 'LK004' : 'LK005';
	return $row->{sure} ? ($own, $self->{forced_mine}{$key}{$owner} ? 'LK009' : ()) : ('LK004', 'LK005', $others, @forced);
}

#
# Verbs.  Each returns what may be answered: {status} or {sqlstate}, a list of
# which one must come, and where it is a grant or changes something, {apply}, to
# be called with the answer, and {same} or {min} for what is known of it.
#
sub acquire
{
	my ($self, $s, $r) = @_;
	my ($key, $owner) = @{$r}{qw(key owner)};
	my $live = $self->live($s, $key);
	my $own = $live->{$owner};
	my @rest = ((map { $live->{$_} } grep { $_ ne $owner } keys %$live), $self->theirs($s, $key));
	my $upgrade = $own && $own->{mode} eq 'shared' && $r->{mode} eq 'exclusive';
	my $mode = $own && !$upgrade ? $own->{mode} : $r->{mode};
	my $in_tx = $own && $own->{lifetime} eq 'transaction';
	my $is_kept = $own && !$upgrade && $r->{lifetime} eq 'transaction';
	my $claim = $is_kept ? ($mode eq 'shared' ? 'pin' : 'hold') : $mode eq 'shared' ? 'share' : $own && !$upgrade && !$in_tx ? 'extend' : 'take';

	return { status => ['held'], is_own => 1, limit => $r->{limit} } if $own && $r->{on_reacquire};
	return { status => ['held'], is_own => 1 } if $upgrade && $r->{lifetime} eq 'transaction' && !$in_tx;
	my $places = $self->places($s, $key, $owner);
	my $limit = $own ? undef : $r->{limit};

	if ((!$own || $upgrade) && grep { $mode eq 'exclusive' || $_->{mode} eq 'exclusive' } @rest)
	{
		# Places are counted before a transaction is met that has the key alone.
		my $is_counted = $limit && $mode eq 'shared' && !grep { !$_->{by} && $_->{mode} eq 'exclusive' } @rest;

		return { status => ['held'], in_the_way($mode eq 'shared' ? places_alone($places) : $places, $r->{limit}, 1) }
		  if !$is_counted || max(@{$places}{qw(may most)}) < $limit;
		return { status => [qw(held pending)], limit => $limit, holders => [ 1, $places->{most} ], counted => [ 0, $places->{most} ] }
		  if $places->{least} < $limit;
	}
	return { status => ['held'], in_the_way($places, $limit) } if $limit && $places->{least} >= $limit;
	# Who shares the key again is as good as anybody else who does, if that can be.
	$claim = 'renew' if $claim eq 'share' && $own && !$in_tx && ($r->{limit} || $self->is_claimed($s, $key, $claim, $owner));
	# What a transaction holds by its lifetime is held, but it may be another claim that is met.
	return { status => [ 'pending', ('held') x !!($self->theirs($s, $key) || $self->maybe_theirs($s, $key)) ], limit => $r->{limit}, counted => $limit && [ 0, $places->{most} ] }
	  if !($is_kept && $in_tx) && $self->is_claimed($s, $key, $claim, $owner);
	# Places that others are about to take may be free again.
	my $is_full = $limit && { status => [ 'pending', ('held') x ($places->{most} >= $limit) ], in_the_way($places, $limit), counted => [ @{$places}{qw(least most)} ] };
	return $is_full if $is_full && $places->{must} >= $limit;
	return {
		status => [ $own && !$upgrade ? 'reacquired' : 'acquired' ],
		or => $is_full && $places->{may} >= $limit ? $is_full : undef,
		mode => $mode,
		own => $own,
		is_new => !$own || $upgrade,
		limit => $r->{limit},
		holders => $limit ? [ $places->{least} + 1, $places->{most} + 1 ] : [ 0, 0 ],
		apply => sub {
			my ($answer) = @_;
			my $tx = $self->{tx}{$s};
			my %h = (mode => $mode, token => $answer->{token}, acquired_at => $answer->{acquired_at}, end => $answer->{end});

			$self->claim($s, $key, $claim, $owner) unless $is_kept && $in_tx;
			return if $is_kept;
			if ($r->{lifetime} eq 'transaction')
			{
				$tx->{said}{$key} = $mode unless $tx->{said}{$key} && $tx->{said}{$key} eq 'exclusive';
				$tx->{mine}{$key}{$owner} = { %h, owner => $owner, lifetime => 'transaction', state => 'live' };
				return;
			}
			$self->reuse($s, $key) if !$own || $in_tx || $upgrade;
			$self->end($s, $key, $owner);
			$self->put($s, $key, $owner, %h, lifetime => $r->{lifetime}, session => $r->{session}, ttl => $r->{ttl});
		}
	};
}

# All or nothing
sub acquire_all
{
	my ($self, $s, $r) = @_;
	my @keys = sort keys %{ { map { $_ => 1 } @{ $r->{keys} } } };
	my (@expected, %or);

	foreach my $key (@keys)
	{
		my $expected = $self->acquire($s, { %$r, key => $key, lifetime => 'lease' });
		return { %$expected, key => $key, or_of => \%or } unless $expected->{apply};
		$or{$key} = { %{ $expected->{or} }, key => $key } if $expected->{or};
		push @expected, { %$expected, key => $key };
	}
	return { all => \@expected, or_of => \%or };
}

# What an owner does with what it has: $claim for an exclusive holding
sub own
{
	my ($self, $s, $key, $owner, $claim) = @_;
	my $own = $self->live($s, $key)->{$owner};

	unless ($own)
	{
		my @elsewhere = $self->elsewhere($s, $key, $owner);
		my @unknown = grep { !defined $_->{owner} } $self->theirs($s, $key);
		my @refusals = $self->refusals($s, $key, $owner);

		# It is waited for, or if others need not be shown it any more, it may be.
		my @written = map { $self->{tx}{$_}{rows}{$key}{$owner} // () } grep { $_ ne $s } keys %{ $self->{tx} };
		return { sqlstate => ['55P03'] } if grep { ($_->{owner} // '') eq $owner } $self->theirs($s, $key);
		return { sqlstate => ['55P03'] } if grep { $self->is_live($_) } @written;
		return { sqlstate => [ '55P03', @refusals ] } if @elsewhere || @unknown || @written;
		return { sqlstate => \@refusals };
	}
	$claim = $claim eq 'extend' ? 'renew' : 'share' if $own->{mode} eq 'shared' && $claim ne 'convert';
	$claim = 'take' if $claim eq 'convert';
	return { sqlstate => ['55P03'] } if $own->{lifetime} ne 'transaction' && $self->is_claimed($s, $key, $claim, $owner);
	return { own => $own, claim => sub { $self->claim($s, $key, $claim, $owner) if $own->{lifetime} ne 'transaction' } };
}

sub release
{
	my ($self, $s, $key, $owner) = @_;
	my $expected = $self->own($s, $key, $owner, 'take');

	return $expected if $expected->{sqlstate};
	$expected->{apply} = sub {
		$expected->{claim}->();
		$self->end($s, $key, $owner);
		$self->put($s, $key, $owner, state => 'released') if $self->rows($s, $key)->{$owner} && $self->is_live($self->rows($s, $key)->{$owner});
	};
	return $expected;
}

sub extend
{
	my ($self, $s, $key, $owner, $ttl) = @_;
	my $expected = $self->own($s, $key, $owner, 'extend');

	return $expected if $expected->{sqlstate};
	$expected->{apply} = sub {
		my ($answer) = @_;

		$expected->{claim}->();
		return if $expected->{own}{lifetime} eq 'transaction';
		$self->put($s, $key, $owner, end => $answer->{end}, ttl => $ttl // $expected->{own}{ttl});
	};
	return $expected;
}

sub convert
{
	my ($self, $s, $key, $owner, $mode) = @_;
	my $own = $self->live($s, $key)->{$owner};
	my $expected = $own && $own->{mode} eq $mode ? { own => $own } : $self->own($s, $key, $owner, 'convert');
	my $live = $self->live($s, $key);

	return $expected if $expected->{sqlstate};
	return { status => ['reacquired'], mode => $mode, own => $own, apply => sub { } } if $own->{mode} eq $mode;
	return { sqlstate => ['55P03'] } if $mode eq 'exclusive' && (keys %$live > 1 || $self->theirs($s, $key));
	return { sqlstate => ['55P03'] } if $mode eq 'exclusive' && $self->is_claimed($s, $key, 'take');
	return {
		status => ['acquired'], mode => $mode, own => $own, is_convert => 1,
		apply => sub {
			my ($answer) = @_;
			my %h = (mode => $mode, token => $answer->{token});

			if ($own->{lifetime} eq 'transaction')
			{
				$self->claim($s, $key, 'take', '') if $mode eq 'exclusive';
				$self->{tx}{$s}{said}{$key} = 'exclusive' if $mode eq 'exclusive';
				$self->{tx}{$s}{mine}{$key}{$owner} = { %$own, %h };
				return;
			}
			$expected->{claim}->();
			$self->reuse($s, $key);
			$self->put($s, $key, $owner, %h);
		}
	};
}

sub transfer
{
	my ($self, $s, $key, $owner, $new_owner, $ttl) = @_;
	my $expected = $self->own($s, $key, $owner, 'take');
	my $own = $expected->{own};
	my $other = $self->rows($s, $key)->{$new_owner};
	my $in_tx = $own && $own->{lifetime} eq 'transaction';

	return $expected if $expected->{sqlstate};
	return { sqlstate => ['22023'] } if $in_tx && defined $ttl;
	return { sqlstate => ['55P03'] } if $owner ne $new_owner && $own->{mode} eq 'shared' && $self->is_claimed($s, $key, 'share', $new_owner);
	$other = undef if $owner eq $new_owner || $other && !$self->is_live($other);

	# Two that become one have the stronger lifetime, and the later end that there is.
	my $join = sub {
		my ($end) = @_;
		my $later = max($end, $other->{end});

		return $other->{end} if $in_tx;
		return $own->{lifetime} ne $other->{lifetime} && $later == 'Inf' ? min($end, $other->{end}) : $later;
	};
	my $since = !$other ? $own->{acquired_at} : $in_tx ? $other->{acquired_at} : min($own->{acquired_at}, $other->{acquired_at});
	return {
		status => ['acquired'], mode => $own->{mode}, own => $own, other => $other, is_transfer => 1,
		acquired_at => $since, join => $other && $join,
		apply => sub {
			my ($answer) = @_;
			my $tx = $self->{tx}{$s};
			my %h = (%$own, owner => $new_owner, token => $answer->{token}, acquired_at => $answer->{acquired_at}, end => $answer->{end});

			$self->claim($s, $key, 'share', $new_owner) if $own->{mode} eq 'shared' && $owner ne $new_owner;
			if ($in_tx)
			{
				# it is the new owner's, or has become what that has
				$self->end($s, $key, $owner);
				$tx->{mine}{$key}{$new_owner} = \%h unless $other;
				# what the new owner has is more than that
				$self->put($s, $key, $new_owner, %h{qw(token acquired_at end)}) if $other;
				return;
			}
			$expected->{claim}->();
			if ($other)
			{
				# a lease if one of them is, otherwise what the new owner's session has
				my $is_lease = grep { $_->{lifetime} eq 'lease' } $own, $other;

				@h{qw(lifetime session)} = $is_lease ? ('lease', undef) : @{$other}{qw(lifetime session)};
				$h{ttl} //= $other->{ttl};
			}
			$h{ttl} = $ttl if defined $ttl;
			$self->end($s, $key, $new_owner);
			$self->put($s, $key, $owner, state => 'forgotten') if $owner ne $new_owner;
			$self->put($s, $key, $new_owner, %h);
		}
	};
}

# Keys where an owner holds something
sub keys_of
{
	my ($self, $s, $owner) = @_;
	my %keys = map { $_ => 1 } keys %{ $self->{held} }, $self->{tx}{$s} ? (keys %{ $self->{tx}{$s}{rows} }, keys %{ $self->{tx}{$s}{mine} }) : ();

	return grep { $self->live($s, $_)->{$owner} } sort keys %keys;
}

sub release_all
{
	my ($self, $s, $owner) = @_;
	my @expected = map { $self->release($s, $_, $owner) } $self->keys_of($s, $owner);

	return { sqlstate => ['55P03'] } if grep { $_->{sqlstate} } @expected;

	# It also looks at rows that are over, and waits for what the owner has of these keys
	# in another transaction.
	my %rows = map { $_ => $self->rows($s, $_)->{$owner} } keys %{ $self->{held} };
	my @dead = grep { $rows{$_} && !$self->is_live($rows{$_}) } keys %rows;
	my @over = grep { $rows{$_}{state} =~ /^(?:live|expired)$/ } @dead;
	my @maybe = (@over, grep { $self->{once}{$_}{$owner}{LK005} } @dead);
	my %over = map { $_ => "@{ $self->own($s, $_, $owner, 'take')->{sqlstate} || [] }" } @maybe;

	return { sqlstate => ['55P03'] } if grep { $over{$_} eq '55P03' && $rows{$_}{sure} } @over;
	return {
		count => scalar @expected,
		may => (grep { /55P03/ } values %over) ? ['55P03'] : undef,
		apply => sub { $_->{apply}->() for @expected }
	};
}

# End all holdings; for a thief, if there is one
sub force
{
	my ($self, $s, $key, $thief) = @_;
	my $live = $self->live($s, $key);

	return { sqlstate => ['55P03'] } if $self->theirs($s, $key) || $self->is_claimed($s, $key, 'take');
	return { sqlstate => ['LK002'] } unless %$live || $thief;
	return {
		status => ['acquired'], mode => 'exclusive', is_new => 1,
		apply => sub {
			my ($answer) = @_;
			my $rows = $self->rows($s, $key);

			$self->claim($s, $key, 'take', '');
			$self->{forced}{$key}{$_} = 1 for keys %$live;
			$self->{forced_mine}{$key}{$_} = 1 for keys %{ $self->{tx}{$s}{mine}{$key} || {} };
			$self->end($s, $key, $_) for sort keys %{ $self->{tx}{$s}{mine}{$key} || {} };
			$self->put($s, $key, $_, state => 'forced') for grep { $self->is_live($rows->{$_}) } keys %$rows;
			return unless $thief;
			$self->reuse($s, $key);
			$self->put($s, $key, $thief->{owner}, mode => 'exclusive', lifetime => 'lease', token => $answer->{token},
				acquired_at => $answer->{acquired_at}, end => $answer->{end}, ttl => $thief->{ttl});
		}
	};
}

#
# What is not done by a verb
#
sub expire
{
	my ($self, $key) = @_;
	$_->{state} eq 'live' and $_->{state} = 'expired' for values %{ $self->{held}{$key} || {} };
	return;
}

sub disconnect
{
	my ($self, $s, $session) = @_;
	delete $self->{tx}{$s};
	delete $self->{alive}{$session};
	return;
}

1;
