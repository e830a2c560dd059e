# The answers that atomic_lock must give, for the property test: sessions, their
# transactions, and the holdings of all owners, in plain data.
#
# A holding is a hash: owner, mode, lifetime, session (for lifetime session),
# token, acquired_at, end (seconds, or Inf), ttl, and state: "live", "released",
# "expired", "forced", or "forgotten" if it is no longer a row of this owner.
# Committed holdings are in {held}{key}{owner}, dead ones too: a dead row tells its owner
# how the holding ended.  That is certain until the key is granted again; that grant may
# have reused the row.  {once} has the refusals of earlier rows, since one of these
# rows may still exist.  {forced} has every owner that ever lost a key by force, since it may be
# refused for that reason at any time later.  A transaction has the rows that it changed in
# {rows}, its own holdings with lifetime transaction in {mine}, both by key and owner, those of
# them that it ended and others may still see in {ended}, and its claims.
#
# Policies are in {policies}{prefix}{part}, durations in seconds; a transaction that
# has changed a policy has a copy of all of them, as it sees them.  {role} has the role of each
# session, {member}{role} the roles that a role is a member of.  Ended holdings that may keep
# their key closed are in {over}{key}, by slot: 0 for the exclusive holding, the token for a
# shared one; {history}{key}{token} has the row of lock_history for a grant.  Transactions have
# their own changes of {over} and {history}.
#
# Tickets in the line for a key are in {line}{key} by the number of their row, each a hash:
# row, number, owner, role, and is_over if it has expired.  A transaction has in
# {in_line} the tickets that it has written, and in {out_of_line} the rows that it has deleted.
# {offer}{key} is the last offer: the number of the ticket, and is_over.  A commit makes offers
# of the keys in {let_go}{session}{key}; a rollback to a savepoint does not remove keys there.

package AtomicLockModel;

use strict;
use warnings FATAL => 'all';
use List::Util qw(max min);
use Storable qw(dclone);

# With more holders than this, the extension does not look at all of them.
our $many = 100;

# Keys that have had a ticket since the server started: other keys need no check.
my %ever_in_line;

sub new
{
	my ($class) = @_;
	return bless { held => {}, tx => {}, alive => {}, policies => {}, role => {}, member => {}, over => {}, history => {}, time => 0 }, $class;
}

#
# Transactions
#
sub begin
{
	my ($self, $s) = @_;
	$self->{tx}{$s} = { rows => {}, mine => {}, ended => {}, claims => {}, said => {}, over => {}, history => {}, counted => {}, in_line => {}, out_of_line => {}, tickets => {}, saved => [] };
	delete $self->{let_go}{$s};
	return;
}

# $clock: the earliest and the latest time of the commit.  A commit does not look for new policies.
sub commit
{
	my ($self, $s, $clock) = @_;
	my $mine = $self->{tx}{$s}{mine};
	my $tx;

	foreach my $key (keys %$mine)
	{
		local $self->{policies} = $self->{known}{$s} || $self->{policies};
		$self->history_end($s, $key, $_, 'transaction', $clock) for values %{ $mine->{$key} };
	}
	$tx = delete $self->{tx}{$s};
	foreach my $pair ([ held => $tx->{rows} ], [ over => $tx->{over} ], [ history => $tx->{history} ])
	{
		my ($name, $changed) = @$pair;

		foreach my $key (keys %$changed)
		{
			$self->{$name}{$key}{$_} = $changed->{$key}{$_} for keys %{ $changed->{$key} };
		}
	}
	$self->{policies} = $tx->{policies} if $tx->{policies};
	$self->commit_line($s, $tx);

	# A session may have ended while a transaction had an uncommitted change of its holding.
	foreach my $key (keys %{ $tx->{rows} })
	{
		foreach my $row (values %{ $tx->{rows}{$key} })
		{
			my $grant = $self->{history}{$key}{ $row->{token} // 0 };

			$self->lose_session($key, $row);
			# ... unless the transaction has made a lease of it before.
			delete @{$grant}{qw(lost lost_at)} if $grant && $self->is_live($row);
		}
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
# The line for a key
#

# The tickets that a session sees, in their order; some have expired
sub places_in_line
{
	my ($self, $s, $key) = @_;
	my $tx = $self->{tx}{$s} || {};
	my %rows = (%{ $self->{line}{$key} || {} }, %{ $tx->{in_line}{$key} || {} });

	return sort { $a->{number} <=> $b->{number} } map { $rows{$_} } grep { !$tx->{out_of_line}{$key}{$_} && !$self->{void}{$key}{ $rows{$_}{number} } && !$tx->{void}{$key}{ $rows{$_}{number} } } keys %rows;
}

# The valid tickets, the first of them, whether the key is offered to the first, the ticket
# of an owner, and the ticket whose offer has expired
sub look_at_line
{
	my ($self, $s, $key, $owner) = @_;
	my $offer = $self->{tx}{$s} && $self->{tx}{$s}{no_offer}{$key} ? undef : $self->{offer}{$key};
	my @places = $self->places_in_line($s, $key);
	my ($offered) = grep { $offer && $_->{number} == $offer->{number} } @places;
	my ($lapsed) = $offered && $offer->{is_over} ? $offered : ();
	my @valid = grep { $self->admits($s, $key, $_->{role}) } grep { $offered && $_ == $offered ? !$offer->{is_over} : !$_->{is_over} } @places;
	my ($mine) = grep { defined $owner && $_->{owner} eq $owner } @valid;
	my $is_offered = grep { $offered && $_ == $offered } @valid;

	return { valid => \@valid, first => $is_offered ? $offered : $valid[0], is_offered => $is_offered, lapsed => $lapsed, mine => $mine };
}

# Would this owner overtake another ticket if it got the key?
sub is_behind
{
	my ($self, $s, $key, $owner) = @_;
	my $line = $self->look_at_line($s, $key, $owner);
	my ($first, $mine) = @{$line}{qw(first mine)};

	return $first && !($mine && $mine->{number} == $first->{number}) && ($line->{is_offered} || !$mine || $first->{number} < $mine->{number});
}

# Is another session about to delete a row?
sub is_leaving
{
	my ($self, $s, $key, $place) = @_;
	return grep { $_ ne $s && $self->{tx}{$_}{out_of_line}{$key}{ $place->{row} } } keys %{ $self->{tx} };
}

# Delete a row; if another session is about to delete it, the number does not come back, even if
# that session rolls back.
sub leave_line
{
	my ($self, $s, $key, $place) = @_;

	$self->{tx}{$s}{void}{$key}{ $place->{number} } = 1 if $self->is_leaving($s, $key, $place);
	$self->{tx}{$s}{out_of_line}{$key}{ $place->{row} } = 1 unless $self->is_leaving($s, $key, $place);
	return 1;
}

# End the tickets of an owner, also those that other sessions of the owner are about to write.
# Sessions that want a ticket then wait for this one.
sub drop_places
{
	my ($self, $s, $key, $owner) = @_;
	my @mine = grep { $_->{owner} eq $owner } $self->places_in_line($s, $key);
	my @pending = grep { $_->{owner} eq $owner } map { values %{ $self->{tx}{$_}{in_line}{$key} || {} } } grep { $_ ne $s } keys %{ $self->{tx} };

	$self->leave_line($s, $key, $_) for @mine;
	$self->{tx}{$s}{void}{$key}{ $_->{number} } = 1 for @pending;
	$self->{tx}{$s}{tickets}{$key}{$owner} = 1 if (@mine || @pending) && !$self->is_place_claimed($s, $key, $owner);
	return @mine + @pending;
}

# Has another session of the owner taken or released the key, and not committed yet?
sub is_in_hand
{
	my ($self, $s, $key, $owner) = @_;
	my @rows = map { $self->{tx}{$_}{rows}{$key} || {} } grep { $_ ne $s } keys %{ $self->{tx} };

	return grep { $_->{$owner} && $_->{$owner}{state} =~ /^(?:live|released)$/ } @rows;
}

# Does another session of the same owner have a claim on its ticket?
sub is_place_claimed
{
	my ($self, $s, $key, $owner) = @_;
	return grep { $_ ne $s && $self->{tx}{$_}{tickets}{$key}{$owner} } keys %{ $self->{tx} };
}

sub let_go
{
	my ($self, $s, $key) = @_;

	$self->{let_go}{$s}{$key} = 1 if $ever_in_line{$key};
	return;
}

# A released key is offered to the first ticket in line.
sub make_offer
{
	my ($self, $key) = @_;
	my $line = $self->look_at_line('', $key);
	my $lapsed = $line->{lapsed};

	return if $line->{is_offered} || %{ $self->live('', $key) } || grep { %{ $_->{claims}{$key} || {} } } values %{ $self->{tx} };
	# The owner of the lapsed ticket may just be giving it up.
	$self->{void}{$key}{ $lapsed->{number} } = 1 if $lapsed;
	$self->{offer}{$key} = $line->{first} ? { number => $line->{first}{number} } : undef;
	return;
}

sub commit_line
{
	my ($self, $s, $tx) = @_;

	foreach my $key (keys %{ $tx->{in_line} })
	{
		$self->{line}{$key}{$_} = $tx->{in_line}{$key}{$_} for keys %{ $tx->{in_line}{$key} };
	}
	foreach my $key (keys %{ $tx->{out_of_line} })
	{
		delete @{ $self->{line}{$key} }{ keys %{ $tx->{out_of_line}{$key} } };
	}
	foreach my $key (keys %{ $tx->{void} || {} })
	{
		$self->{void}{$key}{$_} = 1 for keys %{ $tx->{void}{$key} };
	}
	delete @{ $self->{offer} }{ keys %{ $tx->{no_offer} || {} } };
	$self->make_offer($_) for sort keys %{ delete $self->{let_go}{$s} || {} };
	return;
}

sub enqueue
{
	my ($self, $s, $r) = @_;
	my ($key, $owner) = @{$r}{qw(key owner)};
	my $expected = $self->acquire($s, $r);
	my $apply = $expected->{apply};
	my $claim = sub { $self->{tx}{$s}{tickets}{$key}{$owner} = 1 };

	return $expected if $expected->{sqlstate};
	return { sqlstate => ['55P03'] } if $self->is_place_claimed($s, $key, $owner);
	return { %$expected, apply => sub { $claim->(); $apply->(@_) } } if $apply;
	return { sqlstate => ['LK007'] } if $expected->{is_own};

	my $line = $self->look_at_line($s, $key, $owner);
	my $mine = $line->{mine};
	return {
		may => $self->is_in_hand($s, $key, $owner) ? ['55P03'] : undef,
		status => ['queued'], number => $mine && $mine->{number},
		# Tickets that others are about to end may no longer count.
		ending => scalar(grep { my $number = $_->{number}; grep { $_ ne $s && $self->{tx}{$_}{void}{$key}{$number} } keys %{ $self->{tx} } } @{ $line->{valid} }),
		place => 1 + grep({ !$mine || $_ < $mine->{number} } map { $_->{number} } @{ $line->{valid} }),
		apply => sub {
			my ($answer) = @_;
			my $place = { row => ++$self->{time}, number => $answer->{ticket}, owner => $owner, end => $answer->{end}, role => $mine ? $mine->{role} : $self->{role}{$s} };

			$claim->();
			$self->drop_places($s, $key, $owner);
			$self->{tx}{$s}{in_line}{$key}{ $place->{row} } = $place;
			$ever_in_line{$key} = 1;
			# A session that releases the key meanwhile does not see this ticket.
			$self->let_go($s, $key);
		}
	};
}

sub leave
{
	my ($self, $s, $key, $owner) = @_;
	my $mine = $self->look_at_line($s, $key, $owner)->{mine};

	return { left => 'f', apply => sub { } } unless %ever_in_line;
	return { sqlstate => ['55P03'] } if $self->is_place_claimed($s, $key, $owner);
	return {
		left => $mine ? 't' : 'f',
		apply => sub {
			return unless $self->drop_places($s, $key, $owner);
			$self->{tx}{$s}{tickets}{$key}{$owner} = 1;
			$self->let_go($s, $key);
		}
	};
}

# Time passes: the offer of a key expires, or one of its tickets
sub lapse
{
	my ($self, $key) = @_;

	$self->{offer}{$key}{is_over} = 1 if $self->{offer}{$key};
	return;
}

sub run_out
{
	my ($self, $key, $number) = @_;

	$_->{is_over} = 1 for grep { $_->{number} == $number } values %{ $self->{line}{$key} };
	return;
}

# Expired tickets are removed, and free keys are offered.
sub sweep_lines
{
	my ($self) = @_;

	foreach my $key (keys %{ { %{ $self->{line} || {} }, %{ $self->{offer} || {} } } })
	{
		my $line = $self->look_at_line('', $key);
		my $number = $self->{offer}{$key} ? $self->{offer}{$key}{number} : 0;
		my @gone = grep { $_->{is_over} && $_->{number} != $number } values %{ $self->{line}{$key} };

		delete @{ $self->{line}{$key} }{ map { $_->{row} } @gone };
		$self->make_offer($key);
	}
	return;
}

#
# Policies
#

# All policies, as a session sees them
sub policies
{
	my ($self, $s) = @_;
	return $self->{tx}{$s} && $self->{tx}{$s}{policies} || $self->{policies};
}

# The value that the policies set for a part of a key, and the prefix of the policy that sets it; an
# empty list if no policy does
sub rule
{
	my ($self, $s, $key, $part) = @_;
	my $policies = $self->policies($s);

	foreach my $prefix (map { substr $key, 0, $_ } reverse 0 .. length $key)
	{
		return ($policies->{$prefix}{$part}, $prefix) if $policies->{$prefix} && defined $policies->{$prefix}{$part};
	}
	return;
}

my %settings = (default_ttl => 2700, max_ttl => 86400, max_wait => 300, max_lifetime => 0, lock_delay => 0, min_hold => 0);

# ... or the setting, if there is one for this part
sub value
{
	my ($self, $s, $key, $part) = @_;
	my ($value) = $self->rule($s, $key, $part);

	return $value // $settings{$part};
}

# The latest end of a holding that was acquired at a moment
sub end_of_life
{
	my ($self, $s, $key, $acquired_at) = @_;
	my $life = $self->value($s, $key, 'max_lifetime');

	return $life ? $acquired_at + $life : 'Inf';
}

# May a session change a key?
sub is_admitted
{
	my ($self, $s, $key) = @_;
	return $self->admits($s, $key, $self->{role}{$s});
}

# ... a role, by the policies that a session sees; undef: a superuser
sub admits
{
	my ($self, $s, $key, $role) = @_;
	my ($roles) = $self->rule($s, $key, 'roles');

	return !$roles || !defined $role || grep { $self->{member}{$role}{$_} } @$roles;
}

# Change policies: $change is applied to a copy of them.  No other session can change policies until the
# transaction ends.
sub change_policies
{
	my ($self, $s, $change) = @_;

	return { sqlstate => ['55P03'] } if grep { $_ ne $s && $self->{tx}{$_}{policies} } keys %{ $self->{tx} };
	return {
		apply => sub {
			$self->{tx}{$s}{policies} = dclone($self->policies($s));
			$change->($self->{tx}{$s}{policies});
			$self->forget_history;
		}
	};
}

# If no policy asks for history now, the end of open grants may remain unknown.
sub forget_history
{
	my ($self) = @_;

	foreach my $key (keys %{ $self->{history} }, map { keys %{ $_->{history} } } values %{ $self->{tx} })
	{
		$self->{forgotten}{$key} = ++$self->{time} if grep { !($self->rule($_, $key, 'history'))[0] } '', keys %{ $self->{tx} };
	}
	return;
}

# The result of the policies for a request: an SQLSTATE, or ttl and limit
sub terms
{
	my ($self, $s, $r) = @_;
	my $key = $r->{key};
	my ($max_ttl, $max_lifetime) = map { $self->value($s, $key, $_) } qw(max_ttl max_lifetime);
	my $ttl = $r->{asked_ttl};
	my ($most) = $r->{mode} eq 'shared' ? $self->rule($s, $key, 'max_holders') : ();

	return { sqlstate => ['42501'] } unless $self->is_admitted($s, $key);
	return { sqlstate => ['22023'] } if defined $r->{wait} && $r->{wait} > $self->value($s, $key, 'max_wait');
	return { sqlstate => ['22023'] } if defined $ttl && ($ttl > $max_ttl || $max_lifetime && $ttl > $max_lifetime);
	return { sqlstate => ['22023'] } if $r->{lifetime} eq 'transaction' && $self->value($s, $key, 'min_hold');
	# A ttl that the request does not give is cut as a policy demands.
	$ttl = min($self->value($s, $key, 'default_ttl'), $max_ttl, $max_lifetime || 'Inf') if !defined $ttl && $r->{lifetime} eq 'lease';
	$most = min(grep { defined } $r->{limit}, $most);
	return { sqlstate => ['22023'] } if defined $most && $r->{lifetime} eq 'transaction' && $r->{mode} eq 'shared';
	return { ttl => $ttl, limit => $most };
}

#
# Ended holdings that keep their key closed
#

# As a session sees it
sub over
{
	my ($self, $s, $key) = @_;
	return { %{ $self->{over}{$key} || {} }, $self->{tx}{$s} ? %{ $self->{tx}{$s}{over}{$key} || {} } : () };
}

# Records a holding that has ended in {over}; $how: "released" or "expired"
sub bury
{
	my ($self, $where, $key, $h, $how, $end) = @_;

	$where->{over}{$key}{ slot($h) } = { %$h, how => $how, over_at => $end, is_there => 1 };
	return;
}

# The index of a holding in {over}
sub slot
{
	my ($h) = @_;
	return $h->{mode} eq 'shared' ? $h->{token} : 0;
}

# The moment until which an ended holding keeps its key closed, by the policies of a session: 0,
# or Inf if that is not known.  min_hold and lock_delay last longer than a test.
sub closed_until
{
	my ($self, $s, $key, $over) = @_;
	my $delay = $self->value($s, $key, 'lock_delay');

	return max($self->min_held_until($s, $key, $over), $over->{how} eq 'expired' && $delay ? ($over->{over_at} // 'Inf') + $delay : 0);
}

sub min_held_until
{
	my ($self, $s, $key, $over) = @_;
	my $min_hold = $self->value($s, $key, 'min_hold');

	return $min_hold ? $over->{acquired_at} + $min_hold : 0;
}

# The ended holdings that close a key to an exclusive or shared request: those that certainly do,
# and those that may
sub closing
{
	my ($self, $s, $key, $is_shared, $own) = @_;
	my $over = $self->over($s, $key);
	my $rows = $self->rows($s, $key);
	my @slots = grep { $over->{$_} && (!$is_shared || !$_) && $self->closed_until($s, $key, $over->{$_}) } sort keys %$over;

	# The remains of an owner's former share do not delay its next one.
	@slots = grep { !$own || !$_ || $over->{$_}{owner} ne $own || $self->min_held_until($s, $key, $over->{$_}) } @slots;
	my @dead = grep { $_->{state} eq 'live' && !$self->is_live($_) && (!$is_shared || $_->{mode} eq 'exclusive') && $self->closed_until($s, $key, { %$_, how => 'expired' }) } values %$rows;

	return ([ map { $over->{$_} } grep { $over->{$_}{is_there} } @slots ], [ (map { $over->{$_} } grep { !$over->{$_}{is_there} } @slots), @dead ]);
}

# A holding gets a row, and so the remains of former holdings are gone.
sub settle
{
	my ($self, $s, $key, $mode) = @_;
	my $over = $self->over($s, $key);
	my $changed = $self->{tx}{$s}{over}{$key} ||= {};

	if ($mode eq 'exclusive')
	{
		$changed->{0} = undef;
		return;
	}
	# any of those that do not keep the key closed
	$changed->{$_} = { %{ $over->{$_} }, is_there => 0 } for grep { $_ && $over->{$_} && !$self->closed_until($s, $key, $over->{$_}) } keys %$over;
	return;
}

#
# Quotas
#

# The number of other keys that a role holds under the policy that governs this key, at least and
# at most.  Keys that another transaction has released count, since it may roll back, and so
# may keys that it held before.  $before has the keys of the same set that are granted earlier.
sub others_held
{
	my ($self, $s, $key, $role, $before) = @_;
	my $part = 'max_keys_per_role';
	my (undef, $prefix) = $self->rule($s, $key, $part);
	my @others = map { $self->{tx}{$_} } grep { $_ ne $s } keys %{ $self->{tx} };
	my $is_its = sub { grep { ($_->{role} // '') eq $role && $self->is_live($_) } @_ };
	my %before = map { $_ => 1 } @{ $before || [] };
	my %keys = map { $_ => 1 } keys %before, keys %{ $self->{held} }, map { (keys %{ $_->{rows} }, keys %{ $_->{mine} }) } values %{ $self->{tx} };
	my ($must, $may) = (0, 0);

	foreach my $other (grep { $_ ne $key && (($self->rule($s, $_, $part))[1] // '-') eq $prefix } keys %keys)
	{
		if ($before{$other} || $is_its->(values %{ $self->live($s, $other) }, map { values %{ $_->{rows}{$other} || {} } } @others))
		{
			$must++;
		}
		elsif (grep { $_->{seen}{$other}{$role} } @others)
		{
			$may++;
		}
	}
	# A transaction that has held keys without a row counts as one key until it ends.
	$may += grep { $_->{counted}{$prefix}{$role} } @others;
	return ($must, $must + $may);
}

# Does a quota forbid that a role gets one more key, besides the earlier keys of its set?
sub beyond_quota
{
	my ($self, $s, $key, $before) = @_;
	my ($limit) = $self->rule($s, $key, 'max_keys_per_role');
	my ($must, $most) = defined $limit ? $self->others_held($s, $key, $self->{role}{$s} // '', $before) : return {};

	return { sqlstate => ['53400'] } if $must >= $limit;
	return $most >= $limit ? { may => ['53400'] } : {};
}

# A holding counts from now on; a holding without a row counts until the transaction ends.
sub count
{
	my ($self, $s, $key, $h) = @_;
	my (undef, $prefix) = $self->rule($s, $key, 'max_keys_per_role');
	my $role = $h->{role} // '';

	if ($h->{lifetime} ne 'transaction')
	{
		$self->{tx}{$s}{seen}{$key}{$role} = 1;
	}
	elsif (defined $prefix)
	{
		$self->{tx}{$s}{counted}{$prefix}{$role} = 1;
	}
	return;
}

#
# History
#

# The rows of lock_history for a key, as a session sees them
sub history
{
	my ($self, $s, $key) = @_;
	return { %{ $self->{history}{$key} || {} }, $self->{tx}{$s} ? %{ $self->{tx}{$s}{history}{$key} || {} } : () };
}

# A grant begins; $clock: the earliest and the latest time of the grant
sub history_begin
{
	my ($self, $s, $key, $h, $clock) = @_;

	return unless ($self->rule($s, $key, 'history'))[0];
	$self->{tx}{$s}{history}{$key}{ $h->{token} } =
	  { map({ $_ => $h->{$_} } qw(token mode owner role)), begin => $clock, since => ++$self->{time} };
	return;
}

# A grant ends.  For a holding with lifetime transaction, the whole row is written then.
sub history_end
{
	my ($self, $s, $key, $h, $by, $clock) = @_;
	my $changed = $self->{tx}{$s}{history}{$key} ||= {};
	my $grant = $self->history($s, $key)->{ $h->{token} };

	$self->let_go($s, $key);
	$self->{tx}{$s}{freed}{$key}++ if $by =~ /^(?:released|forced|stolen)$/;
	if (!($self->rule($s, $key, 'history'))[0])
	{
		$changed->{ $h->{token} } = { %$grant, is_unknown => 1 } if $grant;
		return;
	}
	return if !$grant && $h->{lifetime} ne 'transaction';
	$grant ||= { map({ $_ => $h->{$_} } qw(token mode owner role)), begin => $h->{granted}, since => ++$self->{time} };
	$changed->{ $h->{token} } = { %$grant, by => $by, end => $clock } unless $grant->{is_unknown};
	return;
}

# A committed holding expires, or its session ends: the session that notices it writes that down.
sub lose
{
	my ($self, $key, $h, $how, $clock) = @_;
	my $grant = $self->{history}{$key}{ $h->{token} };

	@{$grant}{qw(lost lost_at)} = ($how, $clock) if $grant && !$grant->{by} && !$grant->{lost};
	$self->bury($self, $key, $h, 'expired', $clock->[0] == $clock->[1] ? $clock->[0] : undef);
	return;
}

#
# The holdings as a session sees them
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

# Live holdings of a key, except those of other transactions, by owner.  Of an
# owner's row and its holding with lifetime transaction, the latter counts.
sub live
{
	my ($self, $s, $key) = @_;
	my $rows = $self->rows($s, $key);
	my %live = map { $_ => $rows->{$_} } grep { $self->is_live($rows->{$_}) } keys %$rows;

	%live = (%live, %{ $self->{tx}{$s}{mine}{$key} || {} }) if $self->{tx}{$s};
	return \%live;
}

# Has an owner a row and, besides it, a holding with lifetime transaction?
sub has_both
{
	my ($self, $s, $key, $owner) = @_;
	my $row = $self->rows($s, $key)->{$owner};
	return $self->{tx}{$s} && $self->{tx}{$s}{mine}{$key}{$owner} && $row && $self->is_live($row);
}

# A transaction ends one of its own holdings, which others see when it commits.
sub end
{
	my ($self, $s, $key, $owner) = @_;
	my $h = delete $self->{tx}{$s}{mine}{$key}{$owner};

	$self->{tx}{$s}{ended}{$key}{$owner} = $h if $h;
	return;
}

# Does an owner hold a key through another transaction?
sub elsewhere
{
	my ($self, $s, $key, $owner) = @_;
	return grep { ($_->{owner} // '') eq $owner } $self->theirs($s, $key), $self->maybe_theirs($s, $key);
}

# Holdings that other transactions have ended, but others may still see
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

# Holdings of other transactions; of some only the mode is known
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

# Has another transaction a claim on a key, without a holding with lifetime transaction?
sub is_pending
{
	my ($self, $s, $key) = @_;
	return grep { $_ ne $s && %{ $self->{tx}{$_}{claims}{$key} || {} } && !$self->{tx}{$_}{said}{$key} } keys %{ $self->{tx} };
}

# Do claims of other transactions keep a session from a claim?  Modes: take; extend
# (the exclusive holding) and hold (pin the exclusive holding, so that it stays, even if it expires);
# share, renew and pin, the same for the shared holding of one owner.
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

# The owners whose holdings of a key other transactions have changed: how many of them must be
# counted, and the set of owners that may hold the key when these transactions end.  A transaction may
# commit, roll back, or roll back to a savepoint.
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

# The seats of other owners of a shared key, also those that they may get when another transaction
# ends: how many owners must be counted, and may be counted, how many are shown as holders, at
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
	my $known = @known;
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
			# besides a holding that was transferred to it, an owner may have an expired row
			$over{$1} = 1 if $claim =~ /^(?:share|renew|pin):(.+)/s && $1 ne $owner && ($self->{once}{$key}{$1}{LK005} || ($self->{held}{$key}{$1} || { state => '' })->{state} eq 'expired');
		}
		# An own holding of a transaction counts until the transaction ends, even if it was ended.
		$twice += keys(%$ended) + grep { $rows->{$_} } keys %$mine;
	}
	# An expired row that the caller's own transaction relies on may be a seat, too.
	foreach my $row (map { /^pin:(.+)/s ? $self->rows($s, $key)->{$1} || () : () } $self->{tx}{$s} ? keys %{ $self->{tx}{$s}{claims}{$key} || {} } : ())
	{
		$owners{ $row->{owner} } = 1 if $row->{state} =~ /^(?:live|expired)$/ && !$self->is_live($row);
	}
	$must += grep { $_ ne $owner && !$touched->{$_} } keys %$live;
	# expired rows on which transactions rely
	$must += grep { my $row = $self->{held}{$key}{$_}; $row && $row->{state} =~ /^(?:live|expired)$/ && !$self->is_live($row) && !$touched->{$_} } keys %relied;
	# If a transaction has held the key exclusively, its present seats are not counted.
	@known = map { $_->{owner} } grep { !$_->{by} } @held if grep { $_ ne $s && ($self->{tx}{$_}{said}{$key} // '') eq 'exclusive' } keys %{ $self->{tx} };
	# Besides an exclusive holder, no other owner needs to be seen.
	my $least = @known < $known ? @known : keys(%known) + (@maybe ? 0 : @held - @known);
	$least = 1 if grep { !$_->{by} && $_->{mode} eq 'exclusive' } @held;
	return {
		must => $must,
		may => keys(%owners) + $twice + keys %over,
		least => $least,
		most => @held + @maybe,
		maybe => scalar @maybe,
		held => \@held };
}

# Only the exclusive holders of these: no other holder excludes a shared request.
sub places_alone
{
	my ($places) = @_;
	my @alone = grep { $_->{mode} eq 'exclusive' } @{ $places->{held} };

	return { %$places, least => min($places->{least}, scalar @alone), most => @alone + $places->{maybe}, held => \@alone };
}

# The details of a refusal by the number of holders, or by an exclusive holder: the
# holding whose end makes the key free for the caller, or frees a seat.
sub in_the_way
{
	my ($places, $limit, $is_excluded) = @_;
	my @held = @{ $places->{held} };
	my @rows = grep { !$_->{by} } @held;
	my $is_exact = $places->{least} == @held && $places->{most} == @held && @held <= max($many, $limit // 0);
	my @first = $is_exact ? $held[ @held - ($is_excluded ? 1 : $limit) ] : ();

	# If there are other holders, the extension need not look for one that ends with a transaction.
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
	# The session of this holding may end meanwhile.
	$self->{tx}{$s}{over}{$key}{ slot($old) } = undef if $old->{state} && $self->is_live($old);
	my $new = $self->{tx}{$s}{rows}{$key}{$owner} = { %$old, owner => $owner, state => 'live', sure => 1, %change };
	$self->count($s, $key, $new) if $new->{state} eq 'live';
	return $new;
}

# A grant may have reused the row of any dead holding.  A rollback undoes that, but the model
# need not know it.
sub reuse
{
	my ($self, $s, $key) = @_;
	$_->{sure} = 0 for grep { !$self->is_live($_) } values %{ $self->rows($s, $key) };
	return;
}

# The refusals that an owner may get for a key, as SQLSTATEs
sub refusals
{
	my ($self, $s, $key, $owner) = @_;
	my $row = $self->rows($s, $key)->{$owner};
	my $others = %{ $self->live($s, $key) } ? 'LK003' : 'LK002';

	my @forced = $self->{forced}{$key}{$owner} ? 'LK009' : ();

	return ($others, @forced) unless $row;
	# An earlier row may still exist.
	return ($others, @forced, sort keys %{ $self->{once}{$key}{$owner} || {} }) if $row->{state} eq 'forgotten';
	return 'LK009' if $row->{state} eq 'forced';
	my $own = $row->{state} eq 'released' ? 'LK004' : 'LK005';
	return $row->{sure} ? ($own, $self->{forced_mine}{$key}{$owner} ? 'LK009' : ()) : ('LK004', 'LK005', $others, @forced);
}

#
# Verbs.  Each returns the allowed answers: {status} or {sqlstate}, a list
# that must contain the answer; if the call grants or changes something, {apply}, to
# be called with the answer, and {same} or {min} with the facts known of it.
#
sub acquire
{
	my ($self, $s, $asked) = @_;
	my $expected = $self->acquire_in_turn($s, $asked);
	my $apply = $expected->{apply};

	# An owner that gets the key, or has it exclusively, has no ticket for it any more.
	return $expected unless $apply && ($expected->{is_new} || $expected->{mode} eq 'exclusive');
	return { %$expected, apply => sub { $apply->(@_); $self->drop_places($s, @{$asked}{qw(key owner)}) } };
}

sub acquire_in_turn
{
	my ($self, $s, $asked) = @_;
	my $terms = $self->terms($s, $asked);
	my $r = { %$asked, %$terms };
	my ($key, $owner) = @{$r}{qw(key owner)};
	my $own = $self->live($s, $key)->{$owner};
	my ($expected, $closed, $maybe, $quota);

	return $terms if $terms->{sqlstate};
	$expected = $self->acquire_open($s, $r);
	return $expected if $own && ($expected->{is_own} || $own->{mode} eq 'exclusive' || $r->{mode} eq 'shared');

	# Rows are checked before the claims of transactions.
	($closed, $maybe) = $self->closing($s, $key, $r->{mode} eq 'shared', $own && $owner);
	return { status => ['held'], limit => $r->{limit}, closed => scalar @$closed } if @$closed && !$self->is_in_the_way($s, $r);
	$quota = $expected->{apply} && !$own && !$r->{is_of_set} ? $self->beyond_quota($s, $key) : {};
	if (@$maybe && $expected->{apply})
	{
		my $or = $expected->{or} || { limit => $r->{limit} };
		$expected->{or} = { limit => $or->{limit}, counted => $or->{counted}, status => [ 'held', @{ $or->{status} || [] } ] };
	}
	elsif (@$maybe && !$self->is_in_the_way($s, $r))
	{
		$expected = { %$expected, status => [ 'held', @{ $expected->{status} } ], holders => undef, named => undef };
	}
	return $quota->{sqlstate} ? { %$quota, or => $expected->{or} } : { %$expected, %$quota };
}

# Has another owner a row that excludes this request?
sub is_in_the_way
{
	my ($self, $s, $r) = @_;
	my $live = $self->live($s, $r->{key});

	return grep { $_ ne $r->{owner} && ($r->{mode} eq 'exclusive' || $live->{$_}{mode} eq 'exclusive') } keys %$live;
}

# ... if the key is not closed and no quota is used up
sub acquire_open
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

	return { status => ['held_by_owner'], is_own => 1, limit => $r->{limit} } if $own && $r->{on_reacquire};
	return { status => ['held_by_owner'], is_own => 1 } if $upgrade && $r->{lifetime} eq 'transaction' && !$in_tx;
	# Rows are checked before the line, and the line before claims.  A transaction that had the key
	# exclusively, or has released it, has not given the key to the line yet.
	my $tx = $self->{tx}{$s} || {};
	my $is_kept_back = ($tx->{freed}{$key} || 0) > 0 || grep { /^take:/ } keys %{ $tx->{claims}{$key} || {} };

	return { status => ['held'], is_behind => 1 }
	  if !$own && !$self->is_in_the_way($s, $r) && !$is_kept_back && $self->is_behind($s, $key, $owner);
	my $places = $self->places($s, $key, $owner);
	my $limit = $own ? undef : $r->{limit};

	if ((!$own || $upgrade) && grep { $mode eq 'exclusive' || $_->{mode} eq 'exclusive' } @rest)
	{
		# Seats are counted before the claim of a transaction with the exclusive lock is checked.
		my $is_counted = $limit && $mode eq 'shared' && !grep { !$_->{by} && $_->{mode} eq 'exclusive' } @rest;

		return { status => ['held'], in_the_way($mode eq 'shared' ? places_alone($places) : $places, $r->{limit}, 1) }
		  if !$is_counted || max(@{$places}{qw(may most)}) < $limit;
		return { status => [qw(held pending)], limit => $limit, holders => [ 0, $places->{most} ], counted => [ 0, $places->{most} ] }
		  if $places->{least} < $limit;
	}
	return { status => ['held'], in_the_way($places, $limit) } if $limit && $places->{least} >= $limit;
	# A repeated share counts like the share of another owner, if that is possible.
	$claim = 'renew' if $claim eq 'share' && $own && !$in_tx && ($r->{limit} || %ever_in_line || $self->is_claimed($s, $key, $claim, $owner));
	# A holding with lifetime transaction leads to "held", but the call may meet another claim.
	return { status => [ 'pending', ('held') x !!($self->theirs($s, $key) || $self->maybe_theirs($s, $key)) ], limit => $r->{limit}, counted => $limit && [ 0, $places->{most} ] }
	  if !($is_kept && $in_tx) && $self->is_claimed($s, $key, $claim, $owner);
	# Seats that others are about to take may become free again.
	my $is_full = $limit && { status => [ 'pending', ('held') x ($places->{most} >= $limit) ], in_the_way($places, $limit), counted => [ @{$places}{qw(least most)} ] };
	return $is_full if $is_full && $places->{must} >= $limit;
	return {
		status => [ $own && !$upgrade ? 'reacquired' : 'acquired' ],
		or => $is_full && $places->{may} >= $limit ? $is_full : undef,
		mode => $mode,
		own => $own,
		ttl => $r->{ttl},
		is_new => !$own || $upgrade,
		limit => $r->{limit},
		holders => $limit ? [ $places->{least} + 1, $places->{most} + 1 ] : [ 0, 0 ],
		apply => sub {
			my ($answer) = @_;
			my $tx = $self->{tx}{$s};
			# A holding stays with the role that acquired it.
			my %h = (mode => $mode, token => $answer->{token}, acquired_at => $answer->{acquired_at}, end => $answer->{end}, role => ($own || { role => $self->{role}{$s} })->{role});

			$self->claim($s, $key, $claim, $owner) unless $is_kept && $in_tx;
			return if $is_kept;
			$tx->{freed}{$key}-- unless $own;
			$self->history_end($s, $key, $own, 'converted', $answer->{clock}) if $upgrade;
			if ($r->{lifetime} eq 'transaction')
			{
				$tx->{said}{$key} = $mode unless $tx->{said}{$key} && $tx->{said}{$key} eq 'exclusive';
				$tx->{mine}{$key}{$owner} = { %h, owner => $owner, lifetime => 'transaction', state => 'live', granted => $answer->{clock} };
				$self->count($s, $key, $tx->{mine}{$key}{$owner}) unless $own;
				return;
			}
			if (!$own || $in_tx || $upgrade)
			{
				$self->reuse($s, $key);
				$self->settle($s, $key, $mode);
			}
			$self->end($s, $key, $owner);
			$self->put($s, $key, $owner, %h, lifetime => $r->{lifetime}, session => $r->{session}, ttl => $r->{ttl});
			$self->history_begin($s, $key, $self->rows($s, $key)->{$owner}, $in_tx && !$upgrade ? $own->{granted} : $answer->{clock})
			  if !$own || $in_tx || $upgrade;
		}
	};
}

# The request for one key of a set
sub of_key
{
	my ($self, $r, $key) = @_;
	my $mode = $r->{modes} ? $r->{modes}{$key} : $r->{mode};

	# An owner that has a folder already has no reason for an error.
	return { %$r, key => $key, mode => $mode, limit => $mode eq 'shared' ? $r->{limit} : undef, lifetime => 'lease', is_of_set => 1, on_reacquire => $r->{on_reacquire} && !($r->{is_path} && $mode eq 'shared') };
}

# All or nothing
sub acquire_all
{
	my ($self, $s, $r) = @_;
	my @keys = sort keys %{ { map { $_ => 1 } @{ $r->{keys} } } };
	my (@expected, %or, @new, %quota);

	foreach my $key (@keys)
	{
		my $terms = $self->terms($s, $self->of_key($r, $key));
		return $terms if $terms->{sqlstate};
	}
	foreach my $key (@keys)
	{
		my $expected = $self->acquire($s, $self->of_key($r, $key));
		return { %$expected, key => $key, or_of => \%or } unless $expected->{apply};
		$or{$key} = { %{ $expected->{or} }, key => $key } if $expected->{or};
		push @expected, { %$expected, key => $key };
	}
	# Keys that are granted count for the keys after them.
	foreach my $expected (grep { !$_->{own} } @expected)
	{
		my $beyond = $self->beyond_quota($s, $expected->{key}, \@new);
		return { %$beyond, or_of => \%or, has_written => 1 } if $beyond->{sqlstate};
		%quota = (%quota, %$beyond);
		push @new, $expected->{key};
	}
	return { all => \@expected, or_of => \%or, %quota, has_written => 1 };
}

# An owner's call on its own holding; $claim is the claim on an exclusive one
sub own
{
	my ($self, $s, $key, $owner, $claim) = @_;
	my $own = $self->live($s, $key)->{$owner};

	return { sqlstate => ['42501'] } unless $self->is_admitted($s, $key);
	unless ($own)
	{
		my @elsewhere = $self->elsewhere($s, $key, $owner);
		my @unknown = grep { !defined $_->{owner} } $self->theirs($s, $key);
		my @refusals = $self->refusals($s, $key, $owner);

		# The call waits for a holding in another transaction; if others no longer see it, the call may wait.
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
		my ($answer) = @_;
		my $row = $self->rows($s, $key)->{$owner};

		$expected->{claim}->();
		$self->history_end($s, $key, $expected->{own}, 'released', $answer->{clock});
		$self->end($s, $key, $owner);
		return unless $row && $self->is_live($row);
		$self->drop_places($s, $key, $owner) if $expected->{own}{mode} eq 'exclusive';
		$self->put($s, $key, $owner, state => 'released');
		$self->bury($self->{tx}{$s}, $key, $row, 'released');
	};
	return $expected;
}

sub extend
{
	my ($self, $s, $key, $owner, $ttl) = @_;
	my $own = $self->live($s, $key)->{$owner};
	my ($max_ttl, $life) = map { $self->value($s, $key, $_) } qw(max_ttl max_lifetime);
	my ($expected, $limit, $length);

	return { sqlstate => ['42501'] } unless $self->is_admitted($s, $key);
	return { sqlstate => ['22023'] } if defined $ttl && $ttl > $max_ttl;
	$expected = $self->own($s, $key, $owner, 'extend');
	return $expected if $expected->{sqlstate};
	if ($own->{lifetime} ne 'transaction')
	{
		$length = $expected->{ttl} = $ttl // min($own->{ttl} // 0, $max_ttl);
		$limit = $expected->{limit_of_life} = $self->end_of_life($s, $key, $own->{acquired_at});
		# The maximal lifetime is used up, perhaps because a policy limits it.  All limits here are
		# hours, and no test lasts that long.
		return { sqlstate => ['LK008'] }
		  if $life && $limit <= $own->{end} + 1e-5 && ($length >= $life || !defined $ttl && $own->{end} > $limit + 1e-5);
	}
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
	return { sqlstate => ['42501'] } unless $self->is_admitted($s, $key);
	my $expected = $own && $own->{mode} eq $mode ? { own => $own } : $self->own($s, $key, $owner, 'convert');
	my $live = $self->live($s, $key);

	return $expected if $expected->{sqlstate};
	return { status => ['reacquired'], mode => $mode, own => $own, apply => sub { $self->drop_places($s, $key, $owner) if $mode eq 'exclusive' } } if $own->{mode} eq $mode;
	return { sqlstate => ['55P03'] } if $mode eq 'exclusive' && (keys %$live > 1 || $self->theirs($s, $key));
	return { sqlstate => ['55P03'] } if $mode eq 'exclusive' && $self->is_claimed($s, $key, 'take');
	my ($closed, $maybe) = $mode eq 'exclusive' ? $self->closing($s, $key, 0, $owner) : ([], []);
	return { sqlstate => ['55P03'], closed => scalar @$closed } if @$closed;
	return {
		status => ['acquired'], mode => $mode, own => $own, is_convert => 1,
		may => @$maybe ? ['55P03'] : undef,
		apply => sub {
			my ($answer) = @_;
			my %h = (mode => $mode, token => $answer->{token});

			$self->history_end($s, $key, $own, 'converted', $answer->{clock});
			if ($own->{lifetime} eq 'transaction')
			{
				$self->claim($s, $key, 'take', '') if $mode eq 'exclusive';
				$self->{tx}{$s}{said}{$key} = 'exclusive' if $mode eq 'exclusive';
				$self->{tx}{$s}{mine}{$key}{$owner} = { %$own, %h, granted => $answer->{clock} };
				$self->drop_places($s, $key, $owner);
				return;
			}
			$expected->{claim}->();
			$self->drop_places($s, $key, $owner);
			$self->reuse($s, $key);
			$self->settle($s, $key, $_) for 'exclusive', $mode;
			$self->put($s, $key, $owner, %h);
			$self->history_begin($s, $key, $self->rows($s, $key)->{$owner}, $answer->{clock});
		}
	};
}

sub transfer
{
	my ($self, $s, $key, $owner, $new_owner, $ttl) = @_;
	my $terms = $self->terms($s, { key => $key, mode => 'exclusive', lifetime => '', asked_ttl => $ttl });
	return $terms if $terms->{sqlstate};
	my $expected = $self->own($s, $key, $owner, 'take');
	my $own = $expected->{own};
	my $other = $self->rows($s, $key)->{$new_owner};
	my $in_tx = $own && $own->{lifetime} eq 'transaction';

	return $expected if $expected->{sqlstate};
	return { sqlstate => ['22023'] } if $in_tx && defined $ttl;
	return { sqlstate => ['55P03'] } if $owner ne $new_owner && $own->{mode} eq 'shared' && $self->is_claimed($s, $key, 'share', $new_owner);
	$other = undef if $owner eq $new_owner || $other && !$self->is_live($other);
	# A holding that joins a lease of the new owner is no new one.
	my $quota = $in_tx && $other ? {} : $self->beyond_quota($s, $key);
	return $quota if $quota->{sqlstate};

	# Two holdings that become one have the stronger lifetime, and the later end that they have.
	my $join = sub {
		my ($end) = @_;
		my $later = max($end, $other->{end});

		return $other->{end} if $in_tx;
		$later = min($end, $other->{end}) if $own->{lifetime} ne $other->{lifetime} && $later == 'Inf';
		return min($later, max($self->end_of_life($s, $key, min($own->{acquired_at}, $other->{acquired_at})), $other->{end}));
	};
	my $since = !$other ? $own->{acquired_at} : min($own->{acquired_at}, $other->{acquired_at});
	return {
		%$quota,
		status => ['acquired'], mode => $own->{mode}, own => $own, other => $other, is_transfer => 1,
		acquired_at => $since, join => $other && $join, limit_of_life => $self->end_of_life($s, $key, $own->{acquired_at}),
		apply => sub {
			my ($answer) = @_;
			my $tx = $self->{tx}{$s};
			my %h = (%$own, owner => $new_owner, token => $answer->{token}, acquired_at => $answer->{acquired_at}, end => $answer->{end}, role => $self->{role}{$s});
			my $mine = $tx->{mine}{$key}{$new_owner};

			$self->drop_places($s, $key, $new_owner);
			$self->claim($s, $key, 'share', $new_owner) if $own->{mode} eq 'shared' && $owner ne $new_owner;
			$self->history_end($s, $key, $_, 'transferred', $answer->{clock}) for $own, $other || (), $mine && $owner ne $new_owner ? $mine : ();
			if ($in_tx)
			{
				# the new owner gets the holding, or the holding joins the new owner's row
				$self->end($s, $key, $owner);
				if (!$other)
				{
					$tx->{mine}{$key}{$new_owner} = { %h, granted => $answer->{clock} };
					$self->count($s, $key, $tx->{mine}{$key}{$new_owner});
					return;
				}
				# the new owner's row lasts longer than this holding
				$self->put($s, $key, $new_owner, %h{qw(token acquired_at end)});
				$self->history_begin($s, $key, $self->rows($s, $key)->{$new_owner}, $answer->{clock});
				return;
			}
			$expected->{claim}->();
			if ($other)
			{
				# a lease if one of them is a lease, otherwise the new owner's lifetime
				my $is_lease = grep { $_->{lifetime} eq 'lease' } $own, $other;

				@h{qw(lifetime session)} = $is_lease ? ('lease', undef) : @{$other}{qw(lifetime session)};
				$h{ttl} //= $other->{ttl};
			}
			$h{ttl} = $ttl if defined $ttl;
			$self->end($s, $key, $new_owner);
			$self->put($s, $key, $owner, state => 'forgotten') if $owner ne $new_owner;
			$self->put($s, $key, $new_owner, %h);
			$self->history_begin($s, $key, $self->rows($s, $key)->{$new_owner}, $answer->{clock});
		}
	};
}

# Keys on which an owner has a holding
sub keys_of
{
	my ($self, $s, $owner) = @_;
	my %keys = map { $_ => 1 } keys %{ $self->{held} }, $self->{tx}{$s} ? (keys %{ $self->{tx}{$s}{rows} }, keys %{ $self->{tx}{$s}{mine} }) : ();

	return grep { $self->live($s, $_)->{$owner} } sort keys %keys;
}

sub release_all
{
	my ($self, $s, $owner) = @_;
	my @expected = map { $self->release($s, $_, $owner) } grep { $self->is_admitted($s, $_) } $self->keys_of($s, $owner);

	return { sqlstate => ['55P03'] } if grep { $_->{sqlstate} } @expected;

	# The call also looks at ended rows, and waits for holdings of the owner on these keys
	# in another transaction.
	my %rows = map { $_ => $self->rows($s, $_)->{$owner} } grep { $self->is_admitted($s, $_) } keys %{ $self->{held} };
	my @dead = grep { $rows{$_} && !$self->is_live($rows{$_}) } keys %rows;
	my @over = grep { $rows{$_}{state} =~ /^(?:live|expired)$/ } @dead;
	my @maybe = (@over, grep { $self->{once}{$_}{$owner}{LK005} } @dead);
	my %over = map { $_ => "@{ $self->own($s, $_, $owner, 'take')->{sqlstate} || [] }" } @maybe;

	return { sqlstate => ['55P03'] } if grep { $over{$_} eq '55P03' && $rows{$_}{sure} } @over;
	return {
		count => scalar @expected,
		may => (grep { /55P03/ } values %over) ? ['55P03'] : undef,
		apply => sub { my ($answer) = @_; $_->{apply}->($answer) for @expected }
	};
}

# The owner's holdings below a folder, except of some keys.  Others may still see holdings that
# have ended in a transaction.
sub below
{
	my ($self, $s, $owner, $folder, $except, $with_ended) = @_;
	my %keys = map { $_ => 1 } keys %{ $self->{held} }, map { (keys %{ $_->{rows} }, keys %{ $_->{mine} }, keys %{ $_->{ended} }) } values %{ $self->{tx} };
	my %except = map { $_ => 1 } @$except;

	return grep {
		my $key = $_;
		!$except{$key} && $key ne $folder && index($key, $folder) == 0 && ($self->live($s, $key)->{$owner}
			|| grep { ($_->{owner} // '') eq $owner } $self->theirs($s, $key), $with_ended ? $self->maybe_theirs($s, $key) : ())
	} keys %keys;
}

# Release the last of these keys, and each folder above it that the owner shares and needs no more.
sub release_path
{
	my ($self, $s, $owner, @path) = @_;
	my %own = map { $_ => $self->own($s, $_, $owner, 'take') } @path;
	my $last = $path[-1];
	my $is_shared = sub { my $own = $own{ $_[0] }{own}; $own && $own->{mode} eq 'shared' };
	my @refusals = map { join ' ', @{ $own{$_}{sqlstate} || [] } } @path;
	my @waits = grep { /55P03/ } @refusals;
	my (@gone, @released);

	return { sqlstate => ['55P03'] } if grep { $_ eq '55P03' } @refusals;
	return { sqlstate => [ @{ $own{$last}{sqlstate} }, ('55P03') x @waits ] } if $own{$last}{sqlstate};
	foreach my $key (reverse @path)
	{
		last if $key =~ m{/$} && $self->below($s, $owner, $key, \@gone) || $key ne $last && $own{$key}{own} && !$is_shared->($key);
		push @gone, $key;
		push @released, $key if $own{$key}{own};
	}
	return {
		count => scalar @released,
		may => @waits ? ['55P03'] : undef,
		apply => sub {
			my ($answer) = @_;
			my %is_released = map { $_ => 1 } @released;

			$own{$_}{claim}->() for grep { $own{$_}{own} && !$is_released{$_} } @path;
			$self->release($s, $_, $owner)->{apply}->($answer) for @released;
		}
	};
}

# End the holding of one owner, by a fencing token: that of its holding, or of a
# grant that does not hold the key
sub force_one
{
	my ($self, $s, $key, $owner, $token) = @_;
	my $own = $self->live($s, $key)->{$owner};
	my $claim = $own && $own->{mode} eq 'shared' ? 'share' : 'take';

	# Not all holdings of other transactions show their tokens.
	return { sqlstate => [ 'LK011', grep({ !defined $_->{owner} } $self->theirs($s, $key)) ? '55P03' : () ] }
	  unless $own && $own->{token} == $token;
	return { sqlstate => ['55P03'] } if $self->is_claimed($s, $key, $claim, $owner);
	return {
		has_written => 1,
		apply => sub {
			my ($answer) = @_;
			my $row = $self->rows($s, $key)->{$owner};

			$self->claim($s, $key, $claim, $owner);
			$self->history_end($s, $key, $own, 'forced', $answer->{clock});
			$self->{forced}{$key}{$owner} = 1;
			$self->{forced_mine}{$key}{$owner} = 1 if $own->{lifetime} eq 'transaction';
			$self->end($s, $key, $owner);
			$self->put($s, $key, $owner, state => 'forced') if $row && $self->is_live($row);
		}
	};
}

# End all holdings of a key; $thief, if given, gets the key
sub force
{
	my ($self, $s, $key, $thief) = @_;
	my $live = $self->live($s, $key);
	my $terms = $thief ? $self->terms($s, { %$thief, mode => 'exclusive' }) : {};
	my ($closing, $perhaps) = $self->closing($s, $key, 0);

	return $terms if $terms->{sqlstate};
	return { sqlstate => ['55P03'] } if $self->theirs($s, $key) || $self->is_claimed($s, $key, 'take');
	return { sqlstate => ['LK002'] } unless %$live || $thief || @$closing || @$perhaps;
	my $quota = $thief ? $self->beyond_quota($s, $key) : {};
	return { %$quota, has_written => 1 } if $quota->{sqlstate};
	# It suffices to open a closed key, if the closing row still exists.
	my @may = (@{ $quota->{may} || [] }, %$live || $thief || @$closing ? () : 'LK002');
	return {
		may => @may ? \@may : undef,
		has_written => 1,
		status => ['acquired'], mode => 'exclusive', is_new => 1,
		apply => sub {
			my ($answer) = @_;
			my $rows = $self->rows($s, $key);

			$self->claim($s, $key, 'take', '');
			$self->history_end($s, $key, $_, $thief ? 'stolen' : 'forced', $answer->{clock}) for values %$live;
			$self->{forced}{$key}{$_} = 1 for keys %$live;
			$self->{forced_mine}{$key}{$_} = 1 for keys %{ $self->{tx}{$s}{mine}{$key} || {} };
			$self->end($s, $key, $_) for sort keys %{ $self->{tx}{$s}{mine}{$key} || {} };
			$self->put($s, $key, $_, state => 'forced') for grep { $self->is_live($rows->{$_}) } keys %$rows;
			foreach my $over (@$closing, @$perhaps)
			{
				my ($owner) = grep { ($rows->{$_}{token} // '') eq $over->{token} } keys %$rows;

				$self->put($s, $key, $owner, state => 'forgotten') if defined $owner;
				$self->{tx}{$s}{over}{$key}{ slot($over) } = undef;
			}
			return unless $thief;
			# The ticket with the offer is still the first.
			$self->{tx}{$s}{no_offer}{$key} = 1 if $self->look_at_line($s, $key)->{is_offered};
			$self->drop_places($s, $key, $thief->{owner});
			$self->reuse($s, $key);
			$self->settle($s, $key, 'exclusive');
			$self->put($s, $key, $thief->{owner}, mode => 'exclusive', lifetime => 'lease', token => $answer->{token},
				acquired_at => $answer->{acquired_at}, end => $answer->{end}, ttl => $thief->{ttl}, role => $self->{role}{$s});
			$self->history_begin($s, $key, $self->rows($s, $key)->{ $thief->{owner} }, $answer->{clock});
		}
	};
}

#
# Events that no verb causes
#
sub expire
{
	my ($self, $key, $at) = @_;

	# This row may also be left from a session that has ended.
	$_->{is_unknown} = 1 for grep { ($_->{lost} // '') eq 'session' && !$_->{by} } values %{ $self->{history}{$key} || {} };
	foreach my $row (grep { $_->{state} eq 'live' } values %{ $self->{held}{$key} || {} })
	{
		$self->lose($key, $row, 'expired', [ $at, $at ]) if $self->is_live($row);
		$row->{state} = 'expired';
	}
	return;
}

sub disconnect
{
	my ($self, $s, $session, $clock) = @_;

	delete $self->{tx}{$s};
	# Holdings on which other transactions have a claim do not end before those end.
	my @let_go = grep { $self->ends_with_session($_, $session) } keys %{ $self->{held} };
	delete $self->{alive}{$session};
	$self->{gone}{$session} = $clock;
	foreach my $key (keys %{ $self->{held} })
	{
		$self->lose_session($key, $_) for values %{ $self->{held}{$key} };
	}
	$self->make_offer($_) for grep { $ever_in_line{$_} } @let_go;
	return;
}

# Does the end of a session end its holding of a key?
sub ends_with_session
{
	my ($self, $key, $session) = @_;
	my @rows = grep { $_->{state} eq 'live' && $_->{lifetime} eq 'session' && $_->{session} eq $session } values %{ $self->{held}{$key} };

	return grep { !$self->is_claimed('', $key, $_->{mode} eq 'shared' ? 'share' : 'take', $_->{owner}) } @rows;
}

sub lose_session
{
	my ($self, $key, $row) = @_;

	return if $row->{state} ne 'live' || $self->is_live($row);
	$self->lose($key, $row, 'session', $self->{gone}{ $row->{session} });
	$row->{state} = 'expired';
	return;
}

# All ended rows that do not keep their key closed are removed.
sub sweep
{
	my ($self) = @_;
	my $expired = 0;

	foreach my $key (keys %{ $self->{held} })
	{
		my $over = $self->{over}{$key} || {};

		foreach my $row (values %{ $self->{held}{$key} })
		{
			my $grave = $over->{ slot($row) };

			next if $self->is_live($row) || $row->{state} !~ /^(live|expired)$/;
			next if $self->closed_until('', $key, { %{ $grave || {} }, %$row, how => 'expired', over_at => 0 });
			$expired += $row->{sure};
			%$row = (%$row, state => 'forgotten');
		}
		$over->{$_}{is_there} = 0 for grep { $over->{$_} && !$self->closed_until('', $key, $over->{$_}) } keys %$over;
	}
	$self->sweep_lines;
	return $expired;
}

1;
