/*
 * shmem.h
 *		Where our shared memory is.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_SHMEM_SHMEM_H
#define AL_SHMEM_SHMEM_H

#include "port/atomics.h"
#include "storage/lwlock.h"

typedef struct AlShmemPart
{
	Size		size;
	Size		size_per_backend;
	void		(*init) (void *memory); /* called once, with zeroed memory */
	void	  **address;		/* set in each process: the module's pointer */
} AlShmemPart;

extern void al_shmem_init(const AlShmemPart *const *new_parts, int count);
extern bool al_shmem_attach(void);
extern void al_shmem_init_lock(LWLock *lock);
extern void al_shmem_init_words(pg_atomic_uint64 *words, int count);

#endif							/* AL_SHMEM_SHMEM_H */
