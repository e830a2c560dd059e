/*-------------------------------------------------------------------------
 *
 * shmem.c
 *		Where our shared memory is.
 *
 * Model: the memory consists of parts, one for each module that has something
 * there.  Each module says how large its part is, initializes it, and keeps a
 * pointer to it; init.c lists them.
 *
 * The memory is in main shared memory where the module is preloaded.  Otherwise,
 * from PostgreSQL 17 on, it is in a dynamic segment that the first session to
 * need it creates, and every session that takes a claim maps.  Before 17 there is
 * no way to get memory after the start of the server.  Then there is no memory:
 * nobody is queued, nothing is counted, and each session has hints of its own.
 *
 * Sizes follow from the number of backends or are fixed, so that no part can run
 * out of memory later.  Nothing here outlives the server, and nothing has to:
 * app_lock is the truth.
 *
 * Locking rules: al_shmem_attach() may allocate and raise until it has answered
 * once in a session.  Whoever writes to app_lock or claims a key calls it before.
 * From then on it may be called anywhere, also while a transaction commits.  All
 * our LWLocks are in one tranche.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"

#include "base/compat.h"
#include "shmem/shmem.h"

/* A segment of another layout must have another name. */
#define MEMORY_NAME	"atomic_lock 4"

/* At the start of the memory, before the parts */
typedef struct Header
{
	int			tranche;
} Header;

static shmem_request_hook_type previous_shmem_request_hook = NULL;
static shmem_startup_hook_type previous_shmem_startup_hook = NULL;
static const AlShmemPart *const *parts;
static int	part_count;
static bool is_attached = false;
static int	tranche;			/* while the memory is initialized */

static Size
memory_size(void)
{
	Size		size = MAXALIGN(sizeof(Header));

	for (int i = 0; i < part_count; i++)
		size = add_size(size, MAXALIGN(parts[i]->size()));
	return size;
}

static void
init_memory(void *memory)
{
	char	   *place = (char *) memory + MAXALIGN(sizeof(Header));

	memset(memory, 0, memory_size());
	((Header *) memory)->tranche = tranche = al_new_tranche("atomic_lock");
	for (int i = 0; i < part_count; i++)
	{
		parts[i]->init(place);
		place += MAXALIGN(parts[i]->size());
	}
}

/* This process can use the memory from now on. */
static void
attach_memory(void *memory)
{
	char	   *place = (char *) memory + MAXALIGN(sizeof(Header));

	al_register_tranche(((Header *) memory)->tranche, "atomic_lock");
	for (int i = 0; i < part_count; i++)
	{
		parts[i]->attach(place);
		place += MAXALIGN(parts[i]->size());
	}
	is_attached = true;
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

/* The module is loaded, and keeps these parts in shared memory. */
void
al_shmem_init(const AlShmemPart *const *new_parts, int count)
{
	parts = new_parts;
	part_count = count;
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
	errhint("Free shared memory, or add atomic_lock to shared_preload_libraries, so that its memory is allocated when the server starts.");
}

/*
 * Attach to the memory; false where this server cannot have any.  The first call
 * in a session may raise what dynamic shared memory raises (53200, 53100).
 */
bool
al_shmem_attach(void)
{
	ErrorContextCallback explain = {error_context_stack, explain_memory, NULL};

	if (is_attached || !AL_HAS_DSM_REGISTRY)
		return is_attached;

	error_context_stack = &explain;
	attach_memory(al_named_dsm_segment(MEMORY_NAME, memory_size(), init_memory));
	error_context_stack = explain.previous;
	return true;
}

/* Initialize a lock of a part, in its init function. */
void
al_shmem_init_lock(LWLock *lock)
{
	LWLockInitialize(lock, tranche);
}

/* Likewise words */
void
al_shmem_init_words(pg_atomic_uint64 *words, int count)
{
	for (int i = 0; i < count; i++)
		pg_atomic_init_u64(&words[i], 0);
}
