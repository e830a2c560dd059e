/*
 * line.h
 *		The line for a key: tickets, which wait without a connection.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_LEASE_LINE_H
#define AL_LEASE_LINE_H

#include "atomic_lock.h"

extern void al_line_let_go(const AlKey *key);
extern void al_line_left(const AlKey *key);
extern void al_line_swept(const AlKey *key);
extern void al_line_ticket_written(const AlKey *key);
extern bool al_line_has_let_go(void);
extern void al_line_commit(void);
extern void al_line_missed(void);
extern bool al_line_take_missed(void);
extern void al_line_released(bool committed);
extern void al_line_forget(void);

#endif							/* AL_LEASE_LINE_H */
