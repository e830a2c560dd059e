/*-------------------------------------------------------------------------
 *
 * shmem.c
 *		Where our shared memory is.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: each module has a part of the memory, states its size, initializes it, and keeps a
 * pointer to it.  init.c lists the parts.
 *
 * A preloaded module has its memory in main shared memory.  Otherwise, from PostgreSQL 17 on, the
 * memory is a dynamic segment, which the first session that needs it creates, and each session
 * that claims a key maps.  Before 17, nothing can be allocated after the start of the server:
 * waiters have no queue, nothing is counted, and each session has its own hints.
 *
 * Without preloading, sessions may have different versions of the library.  So a small segment,
 * which is the same for all versions, names the layout of the memory.  A session with another
 * layout raises 55000 until a restart: it cannot work without the memory, since the other
 * sessions believe what is there.
 *
 * All sizes are known at the start, so no part runs out of memory later.  The memory need not
 * outlive the server, because app_lock is the truth.
 *
 * Locking rules: al_shmem_attach() may allocate and raise until it has succeeded once in a
 * session.  Every session calls it before it claims a key or writes to app_lock.  After that it
 * may be called anywhere, even during a commit.  All our LWLocks are in one tranche.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"

#include "base/compat.h"
#include "base/errors.h"
#include "shmem/shmem.h"

/* Raise this number with each change of the content of a part, or of its meaning. */
#define LAYOUT	7

#define MEMORY_NAME	"atomic_lock"
#define LAYOUT_NAME	"atomic_lock layout"

/* Names the layout of the dynamic segment.  This struct never changes. */
typedef struct Layout
{
	uint64		number;
	uint64		size;
} Layout;

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
static int	tranche;			/* of the LWLocks, while the memory is initialized */

static Size
part_size(const AlShmemPart *part)
{
	return MAXALIGN(add_size(part->size, mul_size(MaxBackends, part->size_per_backend)));
}

static Size
memory_size(void)
{
	Size		size = MAXALIGN(sizeof(Header));

	for (int i = 0; i < part_count; i++)
		size = add_size(size, part_size(parts[i]));
	return size;
}

static void
init_memory(void *memory)
{
	char	   *part = (char *) memory + MAXALIGN(sizeof(Header));

	memset(memory, 0, memory_size());
	((Header *) memory)->tranche = tranche = al_new_tranche("atomic_lock");
	for (int i = 0; i < part_count; i++)
	{
		parts[i]->init(part);
		part += part_size(parts[i]);
	}
	Assert(part == (char *) memory + memory_size());
}

static void
attach_memory(void *memory)
{
	char	   *part = (char *) memory + MAXALIGN(sizeof(Header));

	Assert(MAXALIGN(memory) == (uintptr_t) memory);
	Assert(((Header *) memory)->tranche >= LWTRANCHE_FIRST_USER_DEFINED);

	al_register_tranche(((Header *) memory)->tranche, "atomic_lock");
	for (int i = 0; i < part_count; i++)
	{
		*parts[i]->address = part;
		part += part_size(parts[i]);
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

void
al_shmem_init(const AlShmemPart *const *new_parts, int count)
{
	Assert(parts == NULL && count > 0);
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
init_layout(void *memory)
{
	*(Layout *) memory = (Layout) {LAYOUT, memory_size()};
}

static void
explain_memory(void *arg)
{
	errhint("Free shared memory, or add atomic_lock to shared_preload_libraries, so that its memory is allocated when the server starts.");
}

/*
 * Attach to the memory; false if this server cannot have any.  The first call in a session may
 * raise the errors of dynamic shared memory (53200, 53100), and 55000.
 */
bool
al_shmem_attach(void)
{
	ErrorContextCallback explain = {error_context_stack, explain_memory, NULL};
	const Layout *layout;

	if (is_attached || !AL_HAS_DSM_REGISTRY)
		return is_attached;

	error_context_stack = &explain;
	layout = al_named_dsm_segment(LAYOUT_NAME, sizeof(Layout), init_layout);
	if (layout->number == LAYOUT && layout->size == memory_size())
		attach_memory(al_named_dsm_segment(MEMORY_NAME, memory_size(), init_memory));
	error_context_stack = explain.previous;
	al_trace(DEBUG1, "dynamic shared memory has layout %llu, this library has layout %d",
			 (unsigned long long) layout->number, LAYOUT);
	if (!is_attached)
		ereport(ERROR,
				(al_errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("shared memory of atomic_lock was made by another version of its library"),
				 errhint("Restart the server.")));
	return true;
}

/* Initialize an LWLock; only for the init function of a part. */
void
al_shmem_init_lock(LWLock *lock)
{
	Assert(tranche >= LWTRANCHE_FIRST_USER_DEFINED);
	LWLockInitialize(lock, tranche);
}

void
al_shmem_init_words(pg_atomic_uint64 *words, int count)
{
	for (int i = 0; i < count; i++)
		pg_atomic_init_u64(&words[i], 0);
}
