/*
 * durability.h
 *		How durable the commit of a transaction is.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_CLAIM_DURABILITY_H
#define AL_CLAIM_DURABILITY_H

extern void al_durability_before_commit(bool prepare);
extern void al_durability_after_commit(bool prepare);
extern void al_durability_at_end(void);
extern bool al_durability_is_in_doubt(void);
extern void al_durability_granted(void);
extern void al_durability_before_release(void);
extern void al_durability_released(void);

#endif							/* AL_CLAIM_DURABILITY_H */
