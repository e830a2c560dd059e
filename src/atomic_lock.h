/*
 * atomic_lock.h
 *		Words, limits, and the few types that every layer needs.
 */
#ifndef ATOMIC_LOCK_H
#define ATOMIC_LOCK_H

#include "datatype/timestamp.h"

#define AL_MAX_KEY_BYTES	1024
#define AL_MAX_OWNER_BYTES	255
#define AL_MAX_HOLDER_BYTES 255
#define AL_MAX_META_BYTES	8192
#define AL_MAX_REASON_BYTES 1024
#define AL_MIN_TTL			INT64CONST(1000)
#define AL_MAX_KEYS			1000	/* of a set */

/* What ends a holding, if nobody does it before */
typedef enum AlLifetime
{
	AL_LEASE,					/* its time */
	AL_SESSION,					/* the session, or its time if it has one */
	AL_TRANSACTION				/* the transaction; has no row */
} AlLifetime;

/* Bytes that are not terminated, such as those of a text datum */
typedef struct AlString
{
	const char *data;
	int			len;
} AlString;

typedef struct AlKey
{
	AlString	name;
	uint64		hash;			/* what claims are taken on */
	uint64		check;			/* with the hash, what stands for the name */
} AlKey;

typedef struct AlOwner
{
	AlString	name;
	bool		generated;		/* made for this grant, known to nobody else */
	bool		in_index;		/* generated, and yet in the index of owners */
	uint64		hash;			/* finds its waits; part of that of its holdings */
} AlOwner;

/* The slot of the exclusive holding; those of shared ones are above. */
#define AL_SLOT_EXCLUSIVE	0

#endif							/* ATOMIC_LOCK_H */
