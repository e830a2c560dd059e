/*-------------------------------------------------------------------------
 *
 * client.h
 *		Functions common to the clients of the benchmark.
 *
 * IDENTIFICATION
 *		test/bench/client.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef BENCH_CLIENT_H
#define BENCH_CLIENT_H

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void die(const char *format,...) __attribute__((noreturn, format(printf, 1, 2)));

static void
die(const char *format,...)
{
	va_list		args;

	fprintf(stderr, "%s: ", program_invocation_short_name);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	/* Other threads are still running; they need what exit() would destroy. */
	_exit(1);
}

static int64_t
now_ns(clockid_t id)
{
	struct timespec t;

	clock_gettime(id, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static long
number(const char *text, long min, long max)
{
	char	   *end;
	long		value = strtol(text, &end, 10);

	if (*text == '\0' || *end != '\0' || value < min || value > max)
		die("\"%s\" is no number from %ld to %ld", text, min, max);
	return value;
}

#endif							/* BENCH_CLIENT_H */
