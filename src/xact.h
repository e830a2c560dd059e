/*
 * xact.h
 *		The order of steps at the end of a transaction.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_XACT_H
#define AL_XACT_H

extern void al_xact_init(void);

#endif							/* AL_XACT_H */
