/*-------------------------------------------------------------------------
 *
 * handoff.c
 *		Measures how a lock goes from one session to the next.
 *
 * usage: handoff [-H MEAN_HOLD_US] [-P POLL_MS] MODE WAITERS SECONDS CONNINFO
 *
 * WAITERS + 1 sessions want the same key: one holds it, the others wait. The
 * session that gets the key holds it for a moment (1 ms in the mean), releases
 * it, and asks again as soon as the release is answered. Modes:
 *
 *		atomic_lock			lock_acquire with "wait", which generates an owner, and
 *							lock_release
 *		atomic_lock_named	the same, with a fixed owner for each session
 *		pg_advisory_lock	pg_advisory_lock and pg_advisory_unlock
 *		poll				lock_try_acquire every 100 ms until it is granted;
 *							after a release the session pauses before it asks
 *							again, or it would always get the key itself
 *
 * A hand-over lasts from just before the release is sent until the answer with
 * the next grant has arrived. An inversion is a grant to a session while
 * another one still waits that was known to wait before this session asked:
 * two requests sent at nearly the same time may reach the server in either
 * order. Sessions are known to wait once the queue counts all of them; the
 * holder looks once, halfway through. With "poll" a session is known to wait
 * once its first try is refused.
 *
 * Prints one line with tabs between: hand-overs; p50, p99 and maximum in
 * microseconds; inversions; longest wait in microseconds.
 *
 * Fails if two sessions hold the key at once, if fencing tokens do not rise,
 * or if no session gets the key for a while.
 *
 * IDENTIFICATION
 *		test/bench/handoff.c
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE				/* ppoll */

#include <poll.h>
#include <stdbool.h>
#include <string.h>

#include "client.h"
#include "libpq-fe.h"

#define KEY				"handoff"
#define MAX_SESSIONS	1000

/* Executions before the server keeps a plan */
#define WARM_UPS		6

/* A free key must be granted within this time. */
#define HANG_NS			INT64_C(20000000000)

/* Statements have two parameters, the key and the owner. */
typedef struct Mode
{
	const char *name;
	const char *acquire;		/* returns NULL if refused, and the owner, if
								 * generated */
	const char *release;
	const char *count;			/* number of waiters in the queue, if there is
								 * one */
} Mode;

static const Mode modes[] = {
	{
		"atomic_lock",
		"SELECT fencing_token, owner FROM lock_acquire($1, '1 min', wait => '4 min')",
		"SELECT lock_release($1, $2)",
		"SELECT waiters FROM lock_status($1)"
	},
	{
		"atomic_lock_named",
		"SELECT fencing_token FROM lock_acquire($1, '1 min', $2, wait => '4 min')",
		"SELECT lock_release($1, $2)",
		"SELECT waiters FROM lock_status($1)"
	},
	{
		"pg_advisory_lock",
		"SELECT pg_advisory_lock(hashtext($1))",
		"SELECT pg_advisory_unlock(hashtext($1))",
		"SELECT count(*) FROM pg_locks"
		" WHERE locktype = 'advisory' AND objsubid = 1 AND NOT granted"
	},
	{
		"poll",
		"SELECT fencing_token, owner FROM lock_try_acquire($1, '1 min')",
		"SELECT lock_release($1, $2)",
		NULL
	},
};

typedef enum State
{
	IDLE,
	ASKING,
	PAUSING,					/* until it asks again */
	HOLDING,					/* until it looks for waiters */
	LOOKING,
	HOLDING_ON,					/* until it releases */
	RELEASING,
} State;

typedef struct Session
{
	PGconn	   *conn;
	State		state;
	PGresult   *result;			/* of the statement under way */
	char		name[32];
	char		owner[64];		/* its name, or that of its last grant */
	int64_t		timer;			/* end of PAUSING, HOLDING, HOLDING_ON */
	int64_t		asked;			/* when it first asked; 0: does not wait */
	int64_t		known;			/* since when it is known to wait, or 0 */
	struct Session *before;		/* waiting sessions, in the order of asking */
	struct Session *after;
} Session;

static const Mode *mode;
static Session sessions[MAX_SESSIONS];
static int	num_sessions;
static Session *first;			/* of the waiting sessions */
static Session *last;
static Session *holder;
static bool ending;

static int64_t mean_hold = INT64_C(1000000);
static int64_t poll_pause = INT64_C(100000000);

static int64_t released_at;		/* when the last release was sent */
static int64_t last_grant;
static int64_t last_token;

static int64_t *times;
static int	num_times;
static int	max_times;
static int64_t inversions;
static int64_t longest_wait;

/* "t", a number, an empty string or NULL */
static const char *
value_of(Session *session, PGresult *result)
{
	if (PQresultStatus(result) != PGRES_TUPLES_OK)
		die("%s: %s", mode->name, result ? PQresultErrorMessage(result) : PQerrorMessage(session->conn));
	return PQgetisnull(result, 0, 0) ? NULL : PQgetvalue(result, 0, 0);
}

static void
take_owner(Session *session, PGresult *result)
{
	if (PQnfields(result) > 1 && !PQgetisnull(result, 0, 1))
		snprintf(session->owner, sizeof(session->owner), "%s", PQgetvalue(result, 0, 1));
}

static void
send_statement(Session *session, const char *name)
{
	const char *values[] = {KEY, session->owner};

	if (!PQsendQueryPrepared(session->conn, name, 2, values, NULL, NULL, 0))
		die("%s", PQerrorMessage(session->conn));
}

/* Wait for the answer to a statement: NULL and false are 0, other text is 1 */
static long
execute(Session *session, const char *name, const char *key)
{
	const char *values[] = {key, session->owner};
	PGresult   *result = PQexecPrepared(session->conn, name, 2, values,
										NULL, NULL, 0);
	const char *value = value_of(session, result);
	long		answer = 0;

	take_owner(session, result);
	if (value)
		answer = *value >= '0' && *value <= '9' ? strtol(value, NULL, 10) : *value != 'f';
	PQclear(result);
	return answer;
}

/* Half to one and a half of a mean, so that sessions do not run in step */
static int64_t
about(int64_t mean)
{
	return (int64_t) (mean * (0.5 + drand48()));
}

static void
join_line(Session *session, int64_t now)
{
	session->asked = now;
	session->known = 0;
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
		join_line(session, now_ns(CLOCK_MONOTONIC));
	session->state = ASKING;
	send_statement(session, "acquire");
}

static void
hold(Session *session, State state, int64_t mean)
{
	holder = session;
	session->state = state;
	session->timer = ending ? 0 : now_ns(CLOCK_MONOTONIC) + about(mean);
}

static void
look(Session *session)
{
	session->state = LOOKING;
	send_statement(session, "count");
}

/* The holder has learned the number of waiters. */
static void
looked(int count)
{
	int64_t		now = now_ns(CLOCK_MONOTONIC);

	for (Session *session = first; session; session = session->after)
		count--;
	for (Session *session = first; session && count == 0; session = session->after)
		if (session->known == 0)
			session->known = now;
}

static void
let_go(Session *session)
{
	holder = NULL;
	session->state = RELEASING;
	released_at = now_ns(CLOCK_MONOTONIC);
	send_statement(session, "release");
}

static void
granted(Session *session, const char *token, int64_t at)
{
	if (holder)
		die("%s: %s was granted what %s still has", mode->name, session->name, holder->name);
	if (*token)
	{
		int64_t		number = strtoll(token, NULL, 10);

		if (number <= last_token)
			die("fencing token %lld after %lld", (long long) number, (long long) last_token);
		last_token = number;
	}

	/* At the end the number of waiters falls. */
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
	for (Session *other = first; other != session; other = other->after)
	{
		if (other->known != 0 && other->known < session->asked)
		{
			inversions++;
			break;
		}
	}
	if (at - session->asked > longest_wait)
		longest_wait = at - session->asked;
	last_grant = at;
	leave_line(session);
	if (mode->count)
		hold(session, HOLDING, mean_hold / 2);
	else
		hold(session, HOLDING_ON, mean_hold);
}

/* A statement was answered; "at" is the time of the answer. */
static void
answered(Session *session, int64_t at)
{
	const char *value = value_of(session, session->result);

	if (session->state == LOOKING)
	{
		looked(number(value ? value : "", 0, MAX_SESSIONS));
		hold(session, HOLDING_ON, mean_hold / 2);
	}
	else if (session->state == ASKING && value)
	{
		take_owner(session, session->result);
		granted(session, value, at);
	}
	else if (session->state == ASKING)
	{
		if (session->known == 0)
			session->known = now_ns(CLOCK_MONOTONIC);
		session->state = PAUSING;
		session->timer = now_ns(CLOCK_MONOTONIC) + poll_pause;
	}
	else
	{
		if (!value || *value != 't')
			die("%s: %s could not release the key", mode->name, session->name);
		if (ending)
			session->state = IDLE;
		else if (mode->count)
			ask(session);
		else
		{
			session->state = PAUSING;
			session->timer = now_ns(CLOCK_MONOTONIC) + about(poll_pause);
		}
	}
	PQclear(session->result);
	session->result = NULL;
}

static void
timer_has_come(Session *session)
{
	if (session->state == HOLDING)
		look(session);
	else if (session->state == HOLDING_ON)
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
	while (!PQisBusy(session->conn))
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
		const char *statements[][2] = {
			{"acquire", mode->acquire},
			{"release", mode->release},
			{"count", mode->count}
		};
		const Oid	types[] = {25, 25}; /* text */
		char		key[sizeof(session->name) + 8];

		session->conn = PQconnectdb(conninfo);
		if (PQstatus(session->conn) != CONNECTION_OK)
			die("%s", PQerrorMessage(session->conn));
		snprintf(session->name, sizeof(session->name), "session %d", i);
		snprintf(session->owner, sizeof(session->owner), "%s", session->name);
		snprintf(key, sizeof(key), "warm up %s", session->name);
		for (int j = 0; j < 3 && statements[j][1]; j++)
		{
			PGresult   *result = PQprepare(session->conn, statements[j][0], statements[j][1],
											   2, types);

			if (PQresultStatus(result) != PGRES_COMMAND_OK)
				die("%s", PQresultErrorMessage(result));
			PQclear(result);
		}
		for (int j = 0; j < WARM_UPS; j++)
			if (!execute(session, "acquire", key) || !execute(session, "release", key))
				die("%s does not get a key of its own", session->name);
	}
}

/* The first session has the key, the others wait in numerical order */
static void
queue_up(void)
{
	if (!execute(&sessions[0], "acquire", KEY))
		die("somebody else has the key");
	for (int i = 1; i < num_sessions; i++)
	{
		Session    *session = &sessions[i];
		int64_t		deadline = now_ns(CLOCK_MONOTONIC) + HANG_NS;

		if (mode->count)
		{
			ask(session);
			while (execute(&sessions[0], "count", KEY) < i)
				if (now_ns(CLOCK_MONOTONIC) > deadline)
					die("%s: %s does not get into the queue", mode->name, session->name);
		}
		else
		{
			join_line(session, now_ns(CLOCK_MONOTONIC));
			if (execute(session, "acquire", KEY))
				die("two have the key");
			/* As if they had arrived at random times */
			session->state = PAUSING;
			session->timer = now_ns(CLOCK_MONOTONIC) + (int64_t) (poll_pause * drand48());
		}
		session->known = now_ns(CLOCK_MONOTONIC);
	}
}

static void
run(int64_t duration)
{
	struct pollfd fds[MAX_SESSIONS];
	int64_t		start = now_ns(CLOCK_MONOTONIC);
	int			busy = num_sessions;

	for (int i = 0; i < num_sessions; i++)
		fds[i] = (struct pollfd) {.fd = PQsocket(sessions[i].conn), .events = POLLIN};

	last_grant = start;
	hold(&sessions[0], HOLDING_ON, mean_hold);
	while (busy > 0)
	{
		int64_t		now = now_ns(CLOCK_MONOTONIC);
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

			if (session->state == HOLDING || session->state == HOLDING_ON ||
				session->state == PAUSING)
			{
				if (session->timer <= now)
					timer_has_come(session);
				else if (session->timer < timer)
					timer = session->timer;
			}
			if (session->state != IDLE)
				busy++;
		}

		now = now_ns(CLOCK_MONOTONIC);
		timer = timer > now ? timer - now : 0;
		timeout = (struct timespec) {timer / 1000000000, timer % 1000000000};
		ready = ppoll(fds, num_sessions, &timeout, NULL);
		if (ready < 0 && errno != EINTR)
			die("ppoll: %s", strerror(errno));
		now = now_ns(CLOCK_MONOTONIC);
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

	srand48(now_ns(CLOCK_MONOTONIC));
	connect_all(argv[optind + 3]);
	queue_up();
	run(seconds * INT64_C(1000000000));
	if (num_times == 0)
		die("%s: the key was never handed over", mode->name);

	qsort(times, num_times, sizeof(*times), compare);
#define PERCENTILE(p) (times[(int) ((num_times - 1) * (p))] / 1000.0)
	printf("%d\t%.0f\t%.0f\t%.0f\t%lld\t%.0f\n", num_times,
		   PERCENTILE(0.5), PERCENTILE(0.99), PERCENTILE(1),
		   (long long) inversions, longest_wait / 1000.0);
	for (int i = 0; i < num_sessions; i++)
		PQfinish(sessions[i].conn);
	return 0;
}
