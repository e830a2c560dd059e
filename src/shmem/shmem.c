/*-------------------------------------------------------------------------
 *
 * lock_shmem.c
 *		Where our shared memory is: the queue of waiters, what transactions
 *		hold, the hints, and what is counted.
 *
 * Model: it is in main shared memory where the module is preloaded.  Otherwise, from
 * PostgreSQL 17 on, in a dynamic segment that the first session to need it
 * makes, and every session that takes a claim maps.  Before 17 there is no
 * way to get memory after the start of the server; then there is no queue,
 * al_queue() answers NULL, nothing is counted, and each session has hints of
 * its own.
 *
 * The size of the queue follows from the number of backends, so it can never
 * be full; the others have what to do when they are.
 * Nothing in it outlives the server, and nothing has to: app_lock is the
 * truth, the queue only says who is waiting right now.
 *
 * Locking rules: al_queue() may allocate and raise until it has answered
 * once in a session; who writes to app_lock or claims sees to that.  From then on it can
 * be called anywhere, also while a transaction commits.
 *
 * IDENTIFICATION
 *		src/shmem/shmem.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/compat.h"
#include "lock_stat.h"
#include "lock_wait.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/memutils.h"

/* A segment of another layout must have another name. */
#define MEMORY_NAME	"atomic_lock 3"

static shmem_request_hook_type previous_shmem_request_hook = NULL;
static shmem_startup_hook_type previous_shmem_startup_hook = NULL;
static AlQueue *queue = NULL;
static AlShownSet *shown = NULL;
static AlStats *stats = NULL;
static pg_atomic_uint64 *hints = NULL;
static pg_atomic_uint64 *alone = NULL;
static pg_atomic_uint64 *entry_counters = NULL;

#define WORDS			(2 * AL_HINTS + AL_ENTRY_COUNTERS)
#define QUEUE_OFFSET	MAXALIGN(WORDS * sizeof(pg_atomic_uint64))

static Size
shown_offset(void)
{
	return MAXALIGN(add_size(QUEUE_OFFSET + offsetof(AlQueue, slots),
							 mul_size(MaxBackends, sizeof(AlSlot))));
}

static Size
stats_offset(void)
{
	return MAXALIGN(add_size(shown_offset(), mul_size(MaxBackends, sizeof(AlShownSet))));
}

static Size
memory_size(void)
{
	return add_size(stats_offset(), sizeof(AlStats));
}

static void
init_words(pg_atomic_uint64 *words, int count)
{
	for (int i = 0; i < count; i++)
		pg_atomic_init_u64(&words[i], 0);
}

static void
init_memory(void *memory)
{
	AlQueue    *new_queue = (AlQueue *) ((char *) memory + QUEUE_OFFSET);
	AlStats    *new_stats = (AlStats *) ((char *) memory + stats_offset());

	memset(memory, 0, memory_size());
	init_words(memory, WORDS);
	new_queue->tranche = al_new_tranche("atomic_lock");
	LWLockInitialize(&new_queue->lock, new_queue->tranche);
	for (int i = 0; i < AL_BUCKETS; i++)
	{
		pg_atomic_init_u32(&new_queue->buckets[i].waiters, 0);
		new_queue->buckets[i].first = new_queue->buckets[i].last = -1;
	}
	for (int i = 0; i < MaxBackends; i++)
	{
		pg_atomic_init_u32(&new_queue->slots[i].woken, 0);
		pg_atomic_init_u32(&new_queue->slots[i].sweeping, 0);
	}

	LWLockInitialize(&new_stats->lock, new_queue->tranche);
	pg_atomic_init_u64(&new_stats->writable_at, 0);
	pg_atomic_init_u64(&new_stats->left_at, 0);
	for (int i = 0; i < AL_DATABASES; i++)
	{
		AlDatabase *database = &new_stats->databases[i];

		init_words(database->counters, AL_COUNTERS);
		init_words(&database->since, 1);
		init_words(&database->changes, 1);
		init_words(&database->sweep_from, 1);
	}
	for (int i = 0; i < AL_WANTED_SETS * AL_WANTED_WAYS; i++)
	{
		AlWanted   *wanted = &new_stats->wanted[0][0] + i;

		init_words(&wanted->tag, 1);
		init_words(&wanted->window, 1);
		init_words(wanted->refusals, 2);
		init_words(wanted->waits, 2);
		init_words(wanted->waited, 2);
		init_words(wanted->longest, 2);
		init_words(&wanted->last_at, 1);
	}
}

/* This process can use the memory from now on */
static void
attach_memory(void *memory)
{
	hints = memory;
	alone = hints + AL_HINTS;
	entry_counters = alone + AL_HINTS;
	shown = (AlShownSet *) ((char *) memory + shown_offset());
	stats = (AlStats *) ((char *) memory + stats_offset());
	queue = (AlQueue *) ((char *) memory + QUEUE_OFFSET);
	al_register_tranche(queue->tranche, "atomic_lock");
}

static void
request_memory(void)
{
	if (previous_shmem_request_hook)
		previous_shmem_request_hook();
	RequestAddinShmemSpace(memory_size());
}

static void
start_memory(void)
{
	bool		found;
	void	   *memory;

	if (previous_shmem_startup_hook)
		previous_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	memory = ShmemInitStruct(MEMORY_NAME, memory_size(), &found);
	if (!found)
		init_memory(memory);
	LWLockRelease(AddinShmemInitLock);
	attach_memory(memory);
}

void
al_shmem_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		return;
	previous_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_memory;
	previous_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = start_memory;
}

static void
explain_memory(void *arg)
{
	errhint("Free shared memory, or add atomic_lock to shared_preload_libraries: then its memory is had when the server starts.");
}

/*
 * The queue, or NULL where this server cannot have one.  The first call in a
 * session may raise what dynamic shared memory raises (53200, 53100).
 */
AlQueue *
al_queue(void)
{
	ErrorContextCallback explain = {error_context_stack, explain_memory, NULL};

	if (queue || !AL_HAS_DSM_REGISTRY)
		return queue;

	error_context_stack = &explain;
	attach_memory(al_named_dsm_segment(MEMORY_NAME, memory_size(), init_memory));
	error_context_stack = explain.previous;
	return queue;
}

/* What transactions hold, by process number, where there is a queue */
AlShownSet *
al_shown(void)
{
	return shown;
}

/* What is counted, where there is a queue and this session has needed it */
AlStats *
al_stats(void)
{
	return stats;
}

/*
 * The hints of lock_hint.c, or NULL where this session has not needed the
 * queue yet: who only looks at locks shall not fail for lack of memory.
 * Raises 53200 where there is none for those of a session, the first time.
 */
pg_atomic_uint64 *
al_hints(uint32 *count)
{
	if (hints == NULL && !AL_HAS_DSM_REGISTRY)
	{
		hints = MemoryContextAlloc(TopMemoryContext, AL_LOCAL_HINTS * sizeof(pg_atomic_uint64));
		init_words(hints, AL_LOCAL_HINTS);
	}
	*count = alone ? AL_HINTS : AL_LOCAL_HINTS;
	return hints;
}

/*
 * Which keys are known to have one row, or NULL where that cannot be known, or
 * not yet: it must be the same for all sessions.
 */
pg_atomic_uint64 *
al_alone(void)
{
	return alone;
}

/* Counters of entries that the index was given, likewise */
pg_atomic_uint64 *
al_entry_counters(void)
{
	return entry_counters;
}
