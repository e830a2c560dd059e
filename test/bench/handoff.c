/*-------------------------------------------------------------------------
 *
 * handoff.c
 *		Measures how a lock goes from one session to the next.
 *
 * usage: handoff [-H MEAN_HOLD_US] [-P POLL_MS] MODE WAITERS SECONDS CONNINFO
 *
 * WAITERS + 1 sessions want the same key: one has it, the others wait.  Who
 * gets it holds it for a moment (half to one and a half of the mean, 1 ms),
 * releases it, and asks again as soon as the release is answered.  Modes:
 *
 *		atomic_lock			lock_acquire with "wait", and lock_release
 *		pg_advisory_lock	pg_advisory_lock and pg_advisory_unlock
 *		poll				lock_try_acquire every 100 ms until it is granted;
 *							a session that has released pauses before it asks
 *							again, or it would always get the key itself
 *
 * A hand-over lasts from just before the release is sent until the answer
 * with the next grant is here.  An inversion is a grant to a session while one
 * that asked before it still waits.  At first each asks after the one before
 * it is known to be in the queue.  Later what counts is when the requests were
 * sent, and two that are sent at nearly the same time may reach the server the
 * other way round: therefore also printed is by how much the longest waiter
 * that was overtaken had been ahead.
 *
 * Prints one line with tabs between:
 *
 *		hand-overs, p50, p99 and maximum in microseconds, inversions,
 *		microseconds that somebody overtaken was ahead at most, microseconds
 *		of the longest wait
 *
 * Fails where two sessions have the key at once, where fencing tokens do not
 * rise, and where nobody gets the key for a while.
 *
 * IDENTIFICATION
 *		test/bench/handoff.c
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE				/* ppoll */

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "libpq-fe.h"

#define KEY				"handoff"
#define MAX_SESSIONS	1000

/* Executions until the server has settled on a plan */
#define WARM_UPS		6

/* Nobody may have to wait that long for a key that is free. */
#define HANG_NS			INT64_C(20000000000)

typedef struct Mode
{
	const char *name;
	const char *acquire;		/* NULL: refused */
	const char *release;		/* true: released */
	const char *waiters;		/* how many are in the queue */
	bool		owner;			/* is $2 the owner? */
} Mode;

static const Mode modes[] = {
	{"atomic_lock",
		"SELECT fencing_token FROM lock_acquire($1, '1 min', $2, wait => '4 min')",
		"SELECT lock_release($1, $2)",
	"SELECT waiters FROM lock_status('" KEY "')", true},
	{"pg_advisory_lock",
		"SELECT pg_advisory_lock(hashtext($1))",
		"SELECT pg_advisory_unlock(hashtext($1))",
	"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND NOT granted", false},
	{"poll",
		"SELECT fencing_token FROM lock_try_acquire($1, '1 min', $2)",
		"SELECT lock_release($1, $2)",
	NULL, true},
};

typedef enum State
{
	IDLE,
	ASKING,
	PAUSING,					/* until it asks again */
	HOLDING,
	RELEASING,
} State;

typedef struct Session
{
	PGconn	   *conn;
	State		state;
	PGresult   *result;			/* of the statement under way */
	char		owner[32];
	int64_t		timer;			/* end of PAUSING and HOLDING */
	int64_t		asked;			/* when it asked first; 0: has not yet */
	struct Session *before;		/* those who wait, in the order of asking */
	struct Session *after;
} Session;

static const Mode *mode;
static Session sessions[MAX_SESSIONS];
static int	num_sessions;
static Session *first;			/* of those who wait */
static Session *last;
static Session *holder;
static bool ending;

static int64_t mean_hold = INT64_C(1000000);
static int64_t poll_pause = INT64_C(100000000);

static int64_t released_at;		/* 0: not measured */
static int64_t last_grant;
static int64_t last_token;

static int64_t *times;
static int	num_times;
static int	max_times;
static int64_t inversions;
static int64_t longest_lead;
static int64_t longest_wait;

static void
die(const char *format,...)
{
	va_list		args;

	fputs("handoff: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

static int64_t
now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* Raises what the server has raised; "t", a number, an empty string or NULL */
static const char *
value_of(Session *session, PGresult *result)
{
	if (PQresultStatus(result) != PGRES_TUPLES_OK)
		die("%s: %s", mode->name, result ? PQresultErrorMessage(result) : PQerrorMessage(session->conn));
	return PQgetisnull(result, 0, 0) ? NULL : PQgetvalue(result, 0, 0);
}

static void
send_statement(Session *session, const char *name)
{
	const char *values[] = {KEY, session->owner};

	if (!PQsendQueryPrepared(session->conn, name, mode->owner ? 2 : 1, values, NULL, NULL, 0))
		die("%s", PQerrorMessage(session->conn));
}

/* Wait for a statement; returns whether the answer is neither NULL nor false */
static bool
execute(Session *session, const char *name, const char *key)
{
	const char *values[] = {key, session->owner};
	PGresult   *result = PQexecPrepared(session->conn, name, mode->owner ? 2 : 1, values,
										NULL, NULL, 0);
	const char *value = value_of(session, result);
	bool		yes = value && strcmp(value, "f") != 0;

	PQclear(result);
	return yes;
}

static void
join_line(Session *session, int64_t now)
{
	session->asked = now;
	session->before = last;
	session->after = NULL;
	*(last ? &last->after : &first) = session;
	last = session;
}

static void
leave_line(Session *session)
{
	*(session->before ? &session->before->after : &first) = session->after;
	*(session->after ? &session->after->before : &last) = session->before;
	session->asked = 0;
}

static void
ask(Session *session)
{
	if (session->asked == 0)
		join_line(session, now_ns());
	session->state = ASKING;
	send_statement(session, "acquire");
}

static void
hold(Session *session)
{
	holder = session;
	session->state = HOLDING;
	session->timer = now_ns() + (int64_t) (mean_hold * (0.5 + drand48()));
	if (ending)
		session->timer = 0;
}

static void
let_go(Session *session)
{
	holder = NULL;
	session->state = RELEASING;
	released_at = now_ns();
	send_statement(session, "release");
}

static void
granted(Session *session, const char *token, int64_t at)
{
	if (holder)
		die("%s: %s was granted what %s still has", mode->name, session->owner, holder->owner);
	if (*token)
	{
		int64_t		number = strtoll(token, NULL, 10);

		if (number <= last_token)
			die("fencing token %lld after %lld", (long long) number, (long long) last_token);
		last_token = number;
	}

	/* In the end ever fewer wait. */
	if (!ending)
	{
		if (num_times == max_times)
		{
			max_times = max_times ? 2 * max_times : 4096;
			times = realloc(times, max_times * sizeof(*times));
			if (!times)
				die("out of memory");
		}
		times[num_times++] = at - released_at;
	}
	if (session != first)
	{
		int64_t		lead = session->asked - first->asked;

		inversions++;
		if (lead > longest_lead)
			longest_lead = lead;
	}
	if (at - session->asked > longest_wait)
		longest_wait = at - session->asked;
	last_grant = at;
	leave_line(session);
	hold(session);
}

/* A statement has been answered; "at" is when the answer was there. */
static void
answered(Session *session, int64_t at)
{
	const char *value = value_of(session, session->result);

	if (session->state == ASKING && value)
		granted(session, value, at);
	else if (session->state == ASKING || !mode->waiters)
	{
		if (session->state == RELEASING && (!value || *value != 't'))
			die("%s: the release was refused", mode->name);
		session->state = PAUSING;
		session->timer = now_ns() + poll_pause;
	}
	else
	{
		if (!value || *value != 't')
			die("%s: the release was refused", mode->name);
		if (ending)
			session->state = IDLE;
		else
			ask(session);
	}
	PQclear(session->result);
	session->result = NULL;
}

static void
timer_has_come(Session *session)
{
	if (session->state == HOLDING)
		let_go(session);
	else if (!ending)
		ask(session);
	else
	{
		session->state = IDLE;
		if (session->asked)
			leave_line(session);
	}
}

static void
read_answers(Session *session, int64_t at)
{
	if (!PQconsumeInput(session->conn))
		die("%s", PQerrorMessage(session->conn));
	while (session->state != PAUSING && !PQisBusy(session->conn))
	{
		PGresult   *result = PQgetResult(session->conn);

		if (!result)
		{
			if (session->result)
				answered(session, at);
			break;
		}
		PQclear(session->result);
		session->result = result;
	}
}

static void
connect_all(const char *conninfo)
{
	for (int i = 0; i < num_sessions; i++)
	{
		Session    *session = &sessions[i];
		const char *statements[][2] = {{"acquire", mode->acquire}, {"release", mode->release}};
		char		key[sizeof(session->owner) + 8];

		session->conn = PQconnectdb(conninfo);
		if (PQstatus(session->conn) != CONNECTION_OK)
			die("%s", PQerrorMessage(session->conn));
		snprintf(session->owner, sizeof(session->owner), "session %d", i);
		snprintf(key, sizeof(key), "warm up %s", session->owner);
		for (int j = 0; j < 2; j++)
		{
			PGresult   *result = PQprepare(session->conn, statements[j][0], statements[j][1], 0, NULL);

			if (PQresultStatus(result) != PGRES_COMMAND_OK)
				die("%s", PQresultErrorMessage(result));
			PQclear(result);
		}
		for (int j = 0; j < WARM_UPS; j++)
			if (!execute(session, "acquire", key) || !execute(session, "release", key))
				die("%s does not get a key of its own", session->owner);
	}
}

static int
count_waiters(Session *session)
{
	PGresult   *result = PQexec(session->conn, mode->waiters);
	const char *value = value_of(session, result);
	int			count;

	if (!value)
		die("%s: the server has no queue", mode->name);
	count = atoi(value);
	PQclear(result);
	return count;
}

/* One has the key, the others wait in the order of their numbers */
static void
queue_up(void)
{
	if (!execute(&sessions[0], "acquire", KEY))
		die("somebody else has the key");
	for (int i = 1; i < num_sessions; i++)
	{
		Session    *session = &sessions[i];

		if (mode->waiters)
		{
			int64_t		deadline = now_ns() + HANG_NS;

			ask(session);
			while (count_waiters(&sessions[0]) < i)
				if (now_ns() > deadline)
					die("%s does not get into the queue", session->owner);
		}
		else
		{
			join_line(session, now_ns());
			if (execute(session, "acquire", KEY))
				die("two have the key");
			/* As if they had come at any time */
			session->state = PAUSING;
			session->timer = now_ns() + (int64_t) (poll_pause * drand48());
		}
	}
}

static void
run(int64_t duration)
{
	struct pollfd fds[MAX_SESSIONS];
	int64_t		start = now_ns();
	int			busy = num_sessions;

	for (int i = 0; i < num_sessions; i++)
		fds[i] = (struct pollfd) {.fd = PQsocket(sessions[i].conn), .events = POLLIN};

	last_grant = start;
	hold(&sessions[0]);
	while (busy > 0)
	{
		int64_t		now = now_ns();
		int64_t		timer = now + INT64_C(1000000000);
		struct timespec timeout;
		int			ready;

		ending = ending || now - start > duration;
		if (now - last_grant > HANG_NS)
			die("%s: nobody got the key for %d s; %s", mode->name, (int) (HANG_NS / 1000000000),
				holder ? "it was not released" : "it was released");

		busy = 0;
		for (int i = 0; i < num_sessions; i++)
		{
			Session    *session = &sessions[i];

			if (session->state == HOLDING || session->state == PAUSING)
			{
				if (session->timer <= now)
					timer_has_come(session);
				else if (session->timer < timer)
					timer = session->timer;
			}
			if (session->state != IDLE)
				busy++;
		}

		now = now_ns();
		timer = timer > now ? timer - now : 0;
		timeout = (struct timespec) {timer / 1000000000, timer % 1000000000};
		ready = ppoll(fds, num_sessions, &timeout, NULL);
		if (ready < 0 && errno != EINTR)
			die("ppoll: %s", strerror(errno));
		now = now_ns();
		for (int i = 0; i < num_sessions && ready > 0; i++)
		{
			if (fds[i].revents)
			{
				ready--;
				read_answers(&sessions[i], now);
			}
		}
	}
}

static int
compare(const void *a, const void *b)
{
	int64_t		x = *(const int64_t *) a;
	int64_t		y = *(const int64_t *) b;

	return (x > y) - (x < y);
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

int
main(int argc, char **argv)
{
	long		seconds;
	int			c;

	while ((c = getopt(argc, argv, "H:P:")) != -1)
	{
		if (c == 'H')
			mean_hold = number(optarg, 0, 10000000) * INT64_C(1000);
		else if (c == 'P')
			poll_pause = number(optarg, 1, 10000) * INT64_C(1000000);
		else
			exit(1);
	}
	if (argc - optind != 4)
		die("usage: handoff [-H MEAN_HOLD_US] [-P POLL_MS] MODE WAITERS SECONDS CONNINFO");
	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++)
		if (strcmp(modes[i].name, argv[optind]) == 0)
			mode = &modes[i];
	if (!mode)
		die("there is no mode \"%s\"", argv[optind]);
	num_sessions = number(argv[optind + 1], 1, MAX_SESSIONS - 1) + 1;
	seconds = number(argv[optind + 2], 1, 86400);

	connect_all(argv[optind + 3]);
	queue_up();
	run(seconds * INT64_C(1000000000));
	if (num_times == 0)
		die("%s: the key was never handed over", mode->name);

	qsort(times, num_times, sizeof(*times), compare);
#define PERCENTILE(p) (times[(int) ((num_times - 1) * (p))] / 1000.0)
	printf("%d\t%.0f\t%.0f\t%.0f\t%lld\t%.0f\t%.0f\n", num_times,
		   PERCENTILE(0.5), PERCENTILE(0.99), PERCENTILE(1),
		   (long long) inversions, longest_lead / 1000.0, longest_wait / 1000.0);
	for (int i = 0; i < num_sessions; i++)
		PQfinish(sessions[i].conn);
	return 0;
}
