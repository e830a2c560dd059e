# The programs of doc/examples in Go, with pgx 4 or 5, whichever is installed.
#
# Properties and reasons to turn red: those of drivers.pl and blocks.pl.  The Go programs have a test
# of their own because the compiler takes a minute if nothing is compiled yet.

use strict;
use warnings FATAL => 'all';
use AtomicLockClients;
use AtomicLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'no pgx' unless have_driver('pgx');

# An expired lease must not be swept before the block releases it.
my $node = clients_server('pgx', "atomic_lock.sweep_interval = 0\n");

is_deeply(lines_of($node, 'pgx', 'edit_form', go_program('edit_form')), afternoon(), 'the edit form');
is_deeply(lines_of($node, 'pgx', 'block', go_program('block')), night(), 'the block');
is($node->safe_psql('block', q{SELECT string_agg(key, ' ') FROM lock_status()}), 'import:9', 'only Bob holds a lock');

is_deeply(long_waits($node, 'long_waits', pgx => [ go_program('block', <<'END') ]), { pgx => [ 'go on', 'ended: <nil>' ] },
package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

func main() {
	err := Locked(context.Background(), os.Args[1], "pgx", 10*time.Second, time.Hour, 5*time.Minute, "h",
		func(ctx context.Context, owner, token string) error {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second): // a timer that was set for the past has fired by then
			}
			fmt.Println(goOn(ctx))
			return nil
		})
	fmt.Println("ended:", err)
}
END
	'a block that waited longer than its lease lasts');

log_is_clean($node);
$node->stop;
done_testing();
