/*
 * atomic_lock.h
 *		Words, limits, and the few types that every layer needs.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef ATOMIC_LOCK_H
#define ATOMIC_LOCK_H

#include "datatype/timestamp.h"

#define AL_MAX_KEY_BYTES	1024
#define AL_MAX_OWNER_BYTES	255
#define AL_MAX_HOLDER_BYTES 255
#define AL_MAX_MESSAGE_BYTES	1024
#define AL_MAX_META_BYTES	8192
#define AL_MAX_REASON_BYTES 1024
#define AL_MIN_TTL			INT64CONST(1000)	/* microseconds */
#define AL_NO_TTL			PG_INT64_MIN	/* none is asked for */
#define AL_LONGEST_WAIT		PG_INT64_MIN	/* as long as max_wait allows */
#define AL_MAX_KEYS			1000	/* in a set */

/* What ends a holding that nobody ends earlier */
typedef enum AlLifetime
{
	AL_LEASE,					/* its expiry */
	AL_SESSION,					/* the session, or an expiry if it has one */
	AL_TRANSACTION				/* the transaction; such a holding has no row */
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
	uint64		hash;			/* claims are taken on it */
	uint64		check;			/* hash and check together stand for the name */
} AlKey;

typedef struct AlOwner
{
	AlString	name;
	bool		generated;		/* made for this grant, so nobody else knows it */
	bool		in_index;		/* generated, but in the index of owners */
	uint64		hash;			/* finds its waits; see al_holding_hash() */
} AlOwner;

/* The slot of the exclusive holding; shared holdings have higher slots. */
#define AL_SLOT_EXCLUSIVE	0
#define AL_SLOT_FIRST_SHARED	1

#endif							/* ATOMIC_LOCK_H */
