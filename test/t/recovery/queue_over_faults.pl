# The line for a key over crashes, restarts and a promotion.
#
# Properties: tickets, their order and numbers, and a current offer survive an immediate
# stop and a promotion; a later ticket gets a higher number; no stranger jumps the line with
# the first call after the restart, whichever database it is in, whether the
# library is preloaded or not, and whether the key is offered or only has
# tickets; a ticket that was prepared before the crash counts when it is committed; tickets
# of a key without a current offer are visible on a standby.  recovery/flush shows
# that acknowledged tickets are durable.
#
# Turns red when: tickets are kept in memory; the filter of keys that may have tickets is
# believed before the tickets were counted, in any database, or they are counted by a
# snapshot, which overlooks prepared ones; it is believed on a standby; numbers begin anew.

use strict;
use warnings FATAL => 'all';
use AtomicLockQueue;
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('queue_primary');
$node->init(allows_streaming => 1);
$node->append_conf(
	'postgresql.conf', q{
log_statement = none
autovacuum = off
max_prepared_transactions = 5
shared_preload_libraries = 'atomic_lock'
atomic_lock.sweep_interval = 0
});
$node->start;
$node->safe_psql('postgres', 'CREATE DATABASE two');
my @databases = ('postgres', 'two');
$node->safe_psql($_, 'CREATE EXTENSION atomic_lock') for @databases;

# A line with everything that must survive
my $line = q{SELECT key, place, holder, queued_at, expires_at, offer, offered_until, ticket FROM lock_queue ORDER BY key, place};

# In a session with synchronous_commit = off: key "offered" is offered to One, "line"
# is free and has tickets, "held" is held and has tickets, "prepared" gets a ticket later.
sub make_lines
{
	my ($server, $database) = @_;
	my $psql = session($server, 'Holder', $database);

	ask($psql, q{SET synchronous_commit = off});
	foreach my $key ('offered', 'line', 'held', 'prepared')
	{
		ask($psql, qq{SELECT lock_acquire('$key', '1 hour', 'holder')});
		next if $key eq 'prepared';
		ask($psql, qq{SELECT lock_enqueue('$key', lower('$_'), '$_', '1 hour')}) foreach 'One', 'Two';
	}
	ask($psql, qq{BEGIN; SELECT lock_enqueue('prepared', 'one', 'One', '1 hour'); PREPARE TRANSACTION '$database'});
	ask($psql, q{SELECT lock_release('offered', 'holder')});
	# An expiry makes no offer.
	ask($psql, q{SELECT lock_extend('line', 'holder', '1 ms')});
	poll($psql, q{SELECT NOT locked FROM lock_status('line')});
	# A commit that is flushed, since the release was not
	ask($psql, q{RESET synchronous_commit; CREATE TABLE flushed (); DROP TABLE flushed});
	end($psql);
	return;
}

# The lines are unchanged, and no stranger jumps them.  The session of $psql makes the first
# call since the server was started.
sub check_lines
{
	my ($server, $how, $database, $before) = @_;
	my $psql = session($server, 'Stranger', $database);

	$how = "$how, $database";
	is(ask($psql, try_as('stranger', 'offered')), 'held|One', "$how: a stranger cannot acquire an offered key");
	is(ask($psql, try_as('stranger', 'line')), 'held|One', '... nor a free key with tickets');
	is(ask($psql, q{SELECT count(*) FROM lock_try_acquire_all(ARRAY['free', 'line'], owner => 'stranger') WHERE status = 'acquired'}), '0', '... nor in a set');
	is(ask($psql, $line), $before, '... tickets, order, numbers and the offer are unchanged');
	is(ask($psql, q{SELECT place, ticket > (SELECT max(ticket) FROM lock_queue WHERE holder <> 'Three') FROM lock_enqueue('line', 'three', 'Three')}), '3|t', '... a new ticket is the last');
	is(ask($psql, q{SELECT place, ticket = (SELECT ticket FROM lock_queue WHERE key = 'line' AND holder = 'Two') FROM lock_enqueue('line', 'two', 'Two')}), '2|t', '... a renewed ticket keeps its position');
	is(ask($psql, try_as('two', 'offered')), 'held|One', '... the second in line has to wait');
	is(ask($psql, try_as('one', 'offered')), 'acquired|', '... the first in line acquires the offered key');
	is(ask($psql, try_as('one', 'line')), 'acquired|', '... and the free key');
	ask($psql, qq{SELECT lock_release('$_', 'one')}) foreach 'offered', 'line';
	is(line_of($psql, 'line'), 'Two* Three', '... and a release offers the key to the next');
	ask($psql, q{SELECT lock_release('held', 'holder')});
	is(line_of($psql, 'held'), 'One* Two', '... also the release of a lease from before');

	ask($psql, qq{COMMIT PREPARED '$database'});
	ask($psql, q{SELECT lock_extend('prepared', 'holder', '1 ms')});
	poll($psql, q{SELECT NOT locked FROM lock_status('prepared')});
	is(ask($psql, try_as('stranger', 'prepared')), 'held|One', '... a prepared ticket counts when it is committed');
	is(ask($psql, try_as('one', 'prepared')), 'acquired|', '... and its owner acquires the key');
	ask($psql, 'TRUNCATE app_lock, app_lock_queue');
	end($psql);
	return;
}

foreach my $preload ('atomic_lock', '')
{
	my $how = $preload ? 'preloaded' : 'not preloaded';

	$node->append_conf('postgresql.conf', "shared_preload_libraries = '$preload'");
	foreach my $stop ('immediate', 'fast')
	{
		my %before;

		$node->restart;
		make_lines($node, $_) for @databases;
		$before{$_} = $node->safe_psql($_, $line) for @databases;
		like($before{postgres}, qr/^held\|1\|One\|.*\nheld\|2\|Two\|.*\nline\|1\|One\|.*\nline\|2\|Two\|.*\noffered\|1\|One\|[^|]*\|[^|]*\|[^|]*\|[^|]+\|\d+\noffered\|2\|Two\|/, "$how, $stop: lines");
		$node->stop($stop);
		$node->start;
		check_lines($node, "$how, $stop", $_, $before{$_}) for @databases;
	}
}

#
# Promotion of a standby with shared memory, and of one without
#
foreach my $preload ('', 'atomic_lock')
{
	my $how = 'promoted, ' . ($preload ? 'preloaded' : 'not preloaded');
	my $standby = PostgreSQL::Test::Cluster->new($preload ? 'queue_standby' : 'queue_standby_unloaded');
	my (%before, %reader);

	$node->append_conf('postgresql.conf', "shared_preload_libraries = '$preload'");
	$node->restart;
	$node->backup("backup $preload" =~ tr/ /_/r);
	$standby->init_from_backup($node, "backup $preload" =~ tr/ /_/r, has_streaming => 1);
	$standby->start;
	make_lines($node, $_) for @databases;
	$before{$_} = $node->safe_psql($_, $line) for @databases;
	$node->wait_for_catchup($standby);
	foreach my $database (@databases)
	{
		my $psql = session($standby, 'Reader', $database);

		is(ask($psql, $line), $before{$database}, "$how: the standby shows the line, $database");
		is(ask($psql, q{SELECT string_agg(queued::text, ' ' ORDER BY key) FROM lock_status() WHERE key IN ('held', 'prepared')}), '2 0', '... and its length');
		is(sqlstate($standby, q{SELECT lock_enqueue('held', 'two')}, $database), '25006', '... and refuses to enqueue');
		is(ask($psql, q{SELECT lock_channel('held')}), $node->safe_psql($database, q{SELECT lock_channel('held')}), '... its channel is that of the primary');
		$reader{$database} = $psql;
	}
	$node->stop('immediate');
	$standby->promote;
	poll($reader{postgres}, 'SELECT NOT pg_is_in_recovery()');
	# A session that has read the lines before the promotion
	is(ask($reader{$_}, try_as('reader', 'line')), 'held|One', "$how: a session from before the promotion does not jump the line, $_") for @databases;
	check_lines($standby, $how, $_, $before{$_}) for @databases;
	end(values %reader);
	$standby->stop;
	log_is_clean($standby);
	$node->start;
	foreach my $database (@databases)
	{
		$node->safe_psql($database, "COMMIT PREPARED '$database'");
		$node->safe_psql($database, 'TRUNCATE app_lock, app_lock_queue');
	}
}

$node->stop;
log_is_clean($node);
done_testing();
