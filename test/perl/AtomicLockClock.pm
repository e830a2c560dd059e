# A server whose clock can be set: it gets its time from our own gettimeofday().
# That needs a C compiler and a dynamic linker that respects LD_PRELOAD.

package AtomicLockClock;

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use Exporter 'import';
use PostgreSQL::Test::Utils;
use Time::HiRes qw(time);

our @EXPORT = qw(make_clock start_with_clock clock_is_heeded set_clock pass_hours freeze_clock pace_clock);

my $shim;

# A new clock: the name of a file that sets the time; nothing without a C
# compiler.
my $clocks = 0;

sub make_clock
{
	my $dir = PostgreSQL::Test::Utils::tempdir;
	my $clock = "$dir/clock" . ++$clocks;

	if (!$shim)
	{
		append_to_file("$dir/clock.c", join '', <DATA>);
		$shim = "$dir/clock.so";
		return if system($ENV{CC} || 'cc', '-shared', '-fPIC', '-o', $shim, "$dir/clock.c") != 0;
	}
	append_to_file($clock, pack('q4', (0) x 4));
	return $clock;
}

# Start a server with that clock.
sub start_with_clock
{
	my ($node, $clock) = @_;
	local $ENV{AL_CLOCK} = $clock;
	local $ENV{LD_PRELOAD} = $shim;

	$node->start;
	return;
}

sub clock_is_heeded
{
	my ($psql, $clock) = @_;
	my $heeded;

	set_clock($clock, 3600);
	$heeded = ask($psql, "SELECT clock_timestamp() > to_timestamp(@{[ time() + 1800 ]})") eq 't';
	set_clock($clock, 0);
	return $heeded;
}

sub write_clock
{
	my ($clock, @values) = @_;

	open my $fh, '+<:raw', $clock or die "could not open $clock: $!";
	syswrite($fh, pack('q4', @values)) == 32 or die "could not write $clock: $!";
	close $fh;
	return;
}

# From now on the clock of the server is ahead by this number of seconds.
sub set_clock
{
	my ($clock, $seconds) = @_;
	return write_clock($clock, int($seconds * 1_000_000), 0, 0, 0);
}

# Hours pass at once.
my %ahead;

sub pass_hours
{
	my ($clock, $hours) = @_;
	return set_clock($clock, 3600 * ($ahead{$clock} += $hours));
}

# The clock stops at this moment, in microseconds of the epoch.
sub freeze_clock
{
	my ($clock, $moment) = @_;
	return write_clock($clock, 0, $moment, 0, 0);
}

# The clock is right at this moment, and runs faster by this factor.
sub pace_clock
{
	my ($clock, $pace) = @_;
	return write_clock($clock, 0, 0, int(time() * 1_000_000), int(1000 * $pace) - 1000);
}

1;

__DATA__
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

/* offset, moment at which it stands, moment from which it has a pace, 1000 * (pace - 1) */
static volatile long long *clock_is;

static void __attribute__((constructor)) begin(void)
{
	int fd = open(getenv("AL_CLOCK"), O_RDONLY);
	void *at = fd < 0 ? MAP_FAILED : mmap(NULL, 4 * sizeof(*clock_is), PROT_READ, MAP_SHARED, fd, 0);

	if (at != MAP_FAILED)
		clock_is = at;
}

int gettimeofday(struct timeval *restrict tv, void *restrict tz)
{
	struct timespec ts;
	long long now;

	clock_gettime(CLOCK_REALTIME, &ts);
	now = ts.tv_sec * 1000000LL + ts.tv_nsec / 1000;
	if (clock_is && clock_is[1] != 0)
		now = clock_is[1];
	else if (clock_is)
		now += clock_is[0] + (clock_is[3] != 0 ? (now - clock_is[2]) * clock_is[3] / 1000 : 0);
	tv->tv_sec = now / 1000000;
	tv->tv_usec = now % 1000000;
	return 0;
}
