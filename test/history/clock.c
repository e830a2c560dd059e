/*-------------------------------------------------------------------------
 *
 * clock.c
 *	  A clock that steps, for a server that is started with this library in
 *	  LD_PRELOAD: microseconds in a file are added to the time of day, and to the
 *	  monotonic clock too where AL_CLOCK_ALL is set.
 *
 * PostgreSQL asks for the time in signal handlers, as when statement_timeout
 * fires.  So nothing here may use malloc().  libfaketime up to 0.9.10 opens a
 * file with fopen() whenever it is asked, which destroys the heap of a server
 * that is in malloc() when the signal comes.  This library maps the file once,
 * when a program starts.
 *
 *-------------------------------------------------------------------------
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static _Atomic int64_t none;
static _Atomic int64_t *offset_us = &none;
static int	all_clocks;

__attribute__((constructor))
static void
map_offset(void)
{
	const char *path = getenv("AL_CLOCK");
	int			fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void	   *page;

	all_clocks = getenv("AL_CLOCK_ALL") != NULL;
	if (fd < 0)
		return;
	page = mmap(NULL, sizeof(*offset_us), PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (page != MAP_FAILED)
		offset_us = page;
}

int
clock_gettime(clockid_t id, struct timespec *now)
{
	int			result = syscall(SYS_clock_gettime, id, now);
	int64_t		ns;

	if (result != 0 || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE && !(all_clocks && id == CLOCK_MONOTONIC)))
		return result;
	ns = now->tv_nsec + atomic_load(offset_us) * 1000;
	now->tv_sec += ns / 1000000000;
	now->tv_nsec = ns % 1000000000;
	if (now->tv_nsec < 0)
	{
		now->tv_sec--;
		now->tv_nsec += 1000000000;
	}
	return 0;
}

int
gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec precise;

	(void) zone;
	if (clock_gettime(CLOCK_REALTIME, &precise) != 0)
		return -1;
	now->tv_sec = precise.tv_sec;
	now->tv_usec = precise.tv_nsec / 1000;
	return 0;
}

time_t
time(time_t *now)
{
	struct timespec precise;

	if (clock_gettime(CLOCK_REALTIME, &precise) != 0)
		return -1;
	if (now)
		*now = precise.tv_sec;
	return precise.tv_sec;
}
