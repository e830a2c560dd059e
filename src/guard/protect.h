/*
 * protect.h
 *		Putting a guard on a table.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_GUARD_PROTECT_H
#define AL_GUARD_PROTECT_H

extern void al_protect_init(void);

#endif							/* AL_GUARD_PROTECT_H */
