/*-------------------------------------------------------------------------
 *
 * explore.c
 *		A server module that stops sessions at test points, and lets one continue.
 *
 * Model: a session whose setting explore.stops is "named" stops at each AL_TEST_POINT of the
 * source; with "all" it stops also at the points of points.h.  The session of the scheduler calls
 * explore_step(), which lets one session continue, waits until no session runs, and returns
 * the points of all sessions.  So one call is one step of a schedule, and nothing happens
 * between two calls.
 *
 * Locking: each backend has a slot, found by the number of its PGPROC.  A stopped session
 * waits for the semaphore of its slot, and leaves all other fields to the scheduler until the
 * scheduler posts the semaphore.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sched.h>
#include <semaphore.h>

#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "parser/analyze.h"
#include "port/atomics.h"
#include "portability/instr_time.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/shmem.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/wait_event.h"

PG_MODULE_MAGIC;

#if PG_VERSION_NUM >= 170000
#define NUMBER_OF(proc) GetNumberFromPGProc(proc)
#else
#define NUMBER_OF(proc) ((proc)->pgprocno)
#endif

#if PG_VERSION_NUM >= 190000
typedef const JumbleState Jumble;
#else
typedef JumbleState Jumble;
#endif

#define SLOTS 512
#define MOST_SESSIONS 8
#define MARK "/*x*/"

typedef struct Slot
{
	sem_t		go_on;
	pg_atomic_uint32 is_stopped;
	pg_atomic_uint32 statements;	/* statements with the mark that have begun */
	pg_atomic_uint32 visits;	/* points that the statement has reached */
	uint32		pass;			/* points to pass before the next stop */
	uint32		seen;			/* statements that the scheduler has seen begin */
	char		point[64];
} Slot;

typedef bool (*AlTestHook) (const char *point, const char *function);

PGDLLEXPORT void _PG_init(void);
PG_FUNCTION_INFO_V1(explore_step);

static Slot *slots;
static int	stops;
static shmem_request_hook_type next_request;
static shmem_startup_hook_type next_startup;
static post_parse_analyze_hook_type next_analyze;

enum
{
	STOPS_NEVER, STOPS_NAMED, STOPS_ALL
};

static const struct config_enum_entry stops_options[] = {
	{"never", STOPS_NEVER, false},
	{"named", STOPS_NAMED, false},
	{"all", STOPS_ALL, false},
	{NULL, 0, false}
};

/*
 * Must a session stop here in any case?  A loop that sleeps until others act would not end
 * otherwise, and the scheduler needs to know each missed offer.
 */
static bool
is_never_passed(const char *point)
{
	return strcmp(point, "sleep") == 0 || strcmp(point, "missed") == 0;
}

/* Stop here, unless the scheduler has asked to pass this point. */
static bool
stop(const char *point, const char *function)
{
	Slot	   *slot;

	if (stops == STOPS_NEVER || (stops == STOPS_NAMED && function) || MyProc == NULL)
		return false;
	slot = &slots[NUMBER_OF(MyProc)];
	pg_atomic_fetch_add_u32(&slot->visits, 1);
	if (slot->pass > 0 && !is_never_passed(point))
	{
		slot->pass--;
		return false;
	}
	slot->pass = 0;
	snprintf(slot->point, sizeof(slot->point), function ? "%s@%s" : "%s", point, function);
	pg_write_barrier();
	pg_atomic_write_u32(&slot->is_stopped, 1);
	while (sem_wait(&slot->go_on) != 0)
		if (errno != EINTR)
			elog(FATAL, "sem_wait failed: %m");
	return true;
}

/* The scheduler's statements begin with a mark. */
static void
analyze(ParseState *pstate, Query *query, Jumble *jstate)
{
	if (next_analyze)
		next_analyze(pstate, query, jstate);
	if (pstate->p_sourcetext && strncmp(pstate->p_sourcetext, MARK, strlen(MARK)) == 0)
	{
		Slot	   *slot = &slots[NUMBER_OF(MyProc)];

		slot->pass = 0;
		pg_atomic_write_u32(&slot->visits, 0);
		pg_atomic_fetch_add_u32(&slot->statements, 1);
	}
}

static void
request(void)
{
	if (next_request)
		next_request();
	RequestAddinShmemSpace(sizeof(Slot) * SLOTS);
}

static void
startup(void)
{
	bool		found;

	if (next_startup)
		next_startup();
	slots = ShmemInitStruct("explore", sizeof(Slot) * SLOTS, &found);
	if (found)
		return;
	if (ProcGlobal->allProcCount > SLOTS)
		elog(FATAL, "explore has room for %d processes only", SLOTS);
	memset(slots, 0, sizeof(Slot) * SLOTS);
	for (int i = 0; i < SLOTS; i++)
	{
		if (sem_init(&slots[i].go_on, 1, 0) != 0)
			elog(FATAL, "sem_init failed: %m");
		pg_atomic_init_u32(&slots[i].is_stopped, 0);
		pg_atomic_init_u32(&slots[i].statements, 0);
		pg_atomic_init_u32(&slots[i].visits, 0);
	}
}

void
_PG_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		elog(ERROR, "explore must be in shared_preload_libraries");
	DefineCustomEnumVariable("explore.stops", "Sets at which points this session stops.", NULL,
							 &stops, STOPS_NEVER, stops_options, PGC_USERSET, 0, NULL, NULL, NULL);
	next_request = shmem_request_hook;
	shmem_request_hook = request;
	next_startup = shmem_startup_hook;
	shmem_startup_hook = startup;
	next_analyze = post_parse_analyze_hook;
	post_parse_analyze_hook = analyze;
	*(AlTestHook *) find_rendezvous_variable("atomic_lock_test_hook") = stop;
}

/* The state of a session, as the letter that goes into the answer */
typedef enum
{
	STOPPED = 'S',				/* at a point */
	IN_LOCK = 'L',				/* waits for a heavyweight lock */
	IN_QUEUE = 'Q',				/* sleeps in the queue of a key */
	IDLE = 'I',
	GONE = 'G',
	RUNS = 'R'
} State;

static State
state_of(int pid)
{
	PGPROC	   *proc = BackendPidGetProc(pid);
	volatile PGPROC *now = proc;
	uint32		event;

	if (proc == NULL)
		return GONE;
	if (pg_atomic_read_u32(&slots[NUMBER_OF(proc)].is_stopped))
	{
		pg_read_barrier();
		return STOPPED;
	}
	if (now->waitLock != NULL)
		return IN_LOCK;
	event = now->wait_event_info;
	if ((event & 0xFF000000) == PG_WAIT_EXTENSION)
		return now->procLatch.is_set ? RUNS : IN_QUEUE;
	return event == WAIT_EVENT_CLIENT_READ ? IDLE : RUNS;
}

static void
go_on(Slot *slot, uint32 pass)
{
	slot->pass = pass;
	pg_atomic_write_u32(&slot->is_stopped, 0);
	pg_memory_barrier();
	sem_post(&slot->go_on);
}

/* The state of the session whose step this is.  It runs until it has passed its number of points. */
static State
state_of_moving(int pid, char how, uint32 visits, uint32 pass)
{
	PGPROC	   *proc = BackendPidGetProc(pid);
	State		state = state_of(pid);
	Slot	   *slot;
	uint32		came;

	if (proc == NULL)
		return GONE;
	if (state != IDLE && state != STOPPED)
		return state;
	if (how == 'd')
		return state == IDLE ? RUNS : state;
	if (how != 's')
		return state;
	slot = &slots[NUMBER_OF(proc)];
	came = pg_atomic_read_u32(&slot->visits) - visits;
	if (pg_atomic_read_u32(&slot->statements) == slot->seen)
	{
		/* Before its statement the session may stop at a point while it processes invalidations. */
		if (state == STOPPED)
			go_on(slot, 0);
		return RUNS;
	}
	if (state == IDLE || came > pass || is_never_passed(slot->point))
		return state;
	go_on(slot, pass - came);
	return RUNS;
}

/*
 * explore_step(pid int, pass int, how "char", wake boolean, pids int[], limit_ms int) -> text
 *
 * Let a session continue (0: none), pass some points, and stop at the next.  "how" is "p" if
 * the session is stopped at a point, "s" if the scheduler has sent it a statement, and "d" if
 * its client has disconnected.  With "wake", sleeping sessions look at the clock.  Returns when
 * no session runs, or after limit_ms.  The answer has the number of points that the session
 * reached in this step, and then for each session its state and its point.
 */
Datum
explore_step(PG_FUNCTION_ARGS)
{
	PGPROC	   *proc = PG_GETARG_INT32(0) ? BackendPidGetProc(PG_GETARG_INT32(0)) : NULL;
	Slot	   *slot = proc ? &slots[NUMBER_OF(proc)] : NULL;
	uint32		pass = PG_GETARG_INT32(1);
	char		how = PG_GETARG_CHAR(2);
	bool		wake = PG_GETARG_BOOL(3);
	ArrayType  *array = PG_GETARG_ARRAYTYPE_P(4);
	double		limit = PG_GETARG_INT32(5);
	int		   *pids = (int *) ARR_DATA_PTR(array);
	int			n = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	uint32		visits = 0;
	int			calm = 0;
	State		states[MOST_SESSIONS];
	StringInfoData answer;
	instr_time	start;

	if (n > MOST_SESSIONS)
		elog(ERROR, "too many sessions");
	/* A statement that begins sets the number of visits to 0. */
	if (slot && how != 's')
		visits = pg_atomic_read_u32(&slot->visits);
	if (slot && how == 'p' && pg_atomic_read_u32(&slot->is_stopped))
		go_on(slot, pass);
	for (int i = 0; wake && i < n; i++)
		if (state_of(pids[i]) == IN_QUEUE && (proc = BackendPidGetProc(pids[i])) != NULL)
			SetLatch(&proc->procLatch);

	INSTR_TIME_SET_CURRENT(start);
	for (int round = 0; calm < 2; round++)
	{
		bool		runs = false;
		instr_time	now;

		CHECK_FOR_INTERRUPTS();
		for (int i = 0; i < n; i++)
		{
			states[i] = pids[i] == PG_GETARG_INT32(0) ?
				state_of_moving(pids[i], how, visits, pass) : state_of(pids[i]);
			runs |= states[i] == RUNS;
		}
		/* A woken session may have been read between two states. */
		calm = runs ? 0 : calm + 1;
		if (!runs)
			continue;
		INSTR_TIME_SET_CURRENT(now);
		INSTR_TIME_SUBTRACT(now, start);
		if (INSTR_TIME_GET_MILLISEC(now) > limit)
			break;
		if (round < 50)
			sched_yield();
		else
			pg_usleep(30);
	}

	initStringInfo(&answer);
	appendStringInfo(&answer, "%u", slot ? pg_atomic_read_u32(&slot->visits) - visits : 0);
	if (slot && calm >= 2)
		slot->seen = pg_atomic_read_u32(&slot->statements);
	for (int i = 0; i < n; i++)
	{
		proc = states[i] == GONE ? NULL : BackendPidGetProc(pids[i]);
		/* A session that others wake stops at the next point. */
		if (proc && states[i] != RUNS)
			slots[NUMBER_OF(proc)].pass = 0;
		appendStringInfo(&answer, " %c%s", states[i],
						 proc && states[i] == STOPPED ? slots[NUMBER_OF(proc)].point : "");
	}
	PG_RETURN_TEXT_P(cstring_to_text(answer.data));
}
