/*
 * session.h
 *		Which sessions still run, and when the others ended at the latest.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_SHMEM_SESSION_H
#define AL_SHMEM_SESSION_H

#include "shmem/shmem.h"

extern const AlShmemPart al_session_part;

extern bool al_session_is_alive(int pid, TimestampTz backend_start);
extern const char *al_session_show(int pid, char *application);
extern TimestampTz al_session_begin(void);
extern TimestampTz al_session_ended_by(int pid, TimestampTz backend_start, TimestampTz expires_at);
extern void al_session_left(void);

#endif							/* AL_SHMEM_SESSION_H */
