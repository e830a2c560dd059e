# The programs of doc/examples in Go, with pgx 4 or 5, whichever is there.
#
# Properties and reasons to turn red: those of drivers.pl and blocks.pl.  They are here,
# since the compiler takes a minute where nothing is compiled yet.

use strict;
use warnings FATAL => 'all';
use AtomicLockClients;
use AtomicLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'no pgx' unless have_driver('pgx');

# What has run out must not be swept before the block's release hears of it.
my $node = clients_server('pgx', "atomic_lock.sweep_interval = 0\n");

is_deeply(lines_of($node, 'pgx', 'edit_form', go_program('edit_form')), afternoon(), 'the edit form');
is_deeply(lines_of($node, 'pgx', 'block', go_program('block')), night(), 'the block');
is($node->safe_psql('block', q{SELECT string_agg(key, ' ') FROM lock_status()}), 'import:9', 'only Bob has something');

log_is_clean($node);
$node->stop;
done_testing();
