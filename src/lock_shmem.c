/*-------------------------------------------------------------------------
 *
 * lock_shmem.c
 *		Where the queue of waiters is.
 *
 * Model: in main shared memory where the module is preloaded.  Otherwise, from
 * PostgreSQL 17 on, in a dynamic segment that the first session to need it
 * makes, and every session that takes a claim maps.  Before 17 there is no
 * way to get memory after the start of the server; then there is no queue,
 * and al_queue() answers NULL.
 *
 * Its size follows from the number of backends, so it can never be full.
 * Nothing in it outlives the server, and nothing has to: app_lock is the
 * truth, the queue only says who is waiting right now.
 *
 * Locking rules: al_queue() may allocate and raise until it has answered
 * once in a session; al_claim() and the wait see to that.  From then on it can
 * be called anywhere, also while a transaction commits.
 *
 * IDENTIFICATION
 *		src/lock_shmem.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "lock_wait.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"

/* A segment of another layout must have another name. */
#define QUEUE_NAME	"atomic_lock queue 1"

static shmem_request_hook_type previous_shmem_request_hook = NULL;
static shmem_startup_hook_type previous_shmem_startup_hook = NULL;
static AlQueue *queue = NULL;

static Size
queue_size(void)
{
	return add_size(offsetof(AlQueue, slots), mul_size(MaxBackends, sizeof(AlSlot)));
}

static void
init_queue(void *memory)
{
	AlQueue    *new_queue = memory;

	memset(new_queue, 0, queue_size());
	new_queue->tranche = LWLockNewTrancheId();
	LWLockInitialize(&new_queue->lock, new_queue->tranche);
	for (int i = 0; i < AL_BUCKETS; i++)
	{
		pg_atomic_init_u32(&new_queue->buckets[i].waiters, 0);
		new_queue->buckets[i].first = new_queue->buckets[i].last = -1;
	}
	for (int i = 0; i < MaxBackends; i++)
		pg_atomic_init_u32(&new_queue->slots[i].woken, 0);
}

static void
request_memory(void)
{
	if (previous_shmem_request_hook)
		previous_shmem_request_hook();
	RequestAddinShmemSpace(queue_size());
}

static void
start_memory(void)
{
	bool		found;

	if (previous_shmem_startup_hook)
		previous_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	queue = ShmemInitStruct(QUEUE_NAME, queue_size(), &found);
	if (!found)
		init_queue(queue);
	LWLockRelease(AddinShmemInitLock);
	LWLockRegisterTranche(queue->tranche, "atomic_lock");
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
	queue = al_named_dsm_segment(QUEUE_NAME, queue_size(), init_queue);
	error_context_stack = explain.previous;
	LWLockRegisterTranche(queue->tranche, "atomic_lock");
	return queue;
}
