/*
 * asked.h
 *		How often somebody asks for a key.
 */
#ifndef AL_SHMEM_ASKED_H
#define AL_SHMEM_ASKED_H

#include "atomic_lock.h"
#include "shmem/shmem.h"

extern const AlShmemPart al_asked_part;

extern bool al_asked_note(const AlKey *key, Oid role);

#endif							/* AL_SHMEM_ASKED_H */
