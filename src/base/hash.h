/*
 * hash.h
 *		Hashes of keys and owners that nobody can predict.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_BASE_HASH_H
#define AL_BASE_HASH_H

#include "atomic_lock.h"

/* A hash of 128 bits, or a secret */
typedef struct AlHash
{
	uint64		words[2];
} AlHash;

/* The purpose of a hash; each purpose has a secret of its own */
typedef enum AlHashPurpose
{
	AL_HASH_KEYS,
	AL_HASH_OWNERS,
	AL_HASH_HOLDINGS,
	AL_HASH_QUOTAS,
	AL_HASH_CHANNELS,
	AL_HASH_PURPOSES
} AlHashPurpose;

/* Reads the secret of the database; false if it does not exist yet */
typedef bool (*AlSecretSource) (AlHash *secret);

extern void al_hash_init(AlSecretSource secret_source);
extern void al_hash_bytes(const AlHash *secret, AlString string, AlHash *hash);
extern void al_hash_for(AlHashPurpose purpose, AlString string, AlHash *hash);
extern void al_secret_forget(void);
extern uint32 al_secret_version(void);

#endif							/* AL_BASE_HASH_H */
