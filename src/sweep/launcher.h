/*
 * launcher.h
 *		The launcher of the background sweep.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_SWEEP_LAUNCHER_H
#define AL_SWEEP_LAUNCHER_H

extern int64 al_sweep_interval(void);
extern void al_launcher_init(void);
extern void al_launcher_tell_missed(void);
extern bool al_launcher_is_registered(void);
extern bool al_launcher_leaves_out(Oid database);

#endif							/* AL_SWEEP_LAUNCHER_H */
