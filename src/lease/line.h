/*
 * line.h
 *		The line for a key: tickets, which wait without a connection.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_LEASE_LINE_H
#define AL_LEASE_LINE_H

#include "utils/relcache.h"

#include "atomic_lock.h"

extern void al_line_check_offer(const AlKey *key);
extern void al_line_ticket_given_up(const AlKey *key);
extern bool al_line_swept(Relation rel, const AlKey *key);
extern void al_line_ticket_written(const AlKey *key);
extern bool al_line_has_to_offer(void);
extern void al_line_commit(void);
extern void al_line_missed(void);
extern bool al_line_pop_missed(void);
extern void al_line_released(bool committed);
extern void al_line_forget(void);

#endif							/* AL_LEASE_LINE_H */
