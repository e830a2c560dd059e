/*
 * xact.h
 *		What happens when a transaction ends.
 */
#ifndef AL_XACT_H
#define AL_XACT_H

extern void al_xact_init(void);

#endif							/* AL_XACT_H */
