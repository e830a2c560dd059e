/*-------------------------------------------------------------------------
 *
 * hash.c
 *		Hashes of keys and owners that nobody can predict.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: claims are heavyweight locks whose tags, which every role can read in pg_locks, hold 64
 * bits of hash.  A role that could compute a hash could construct a key that makes the users of
 * another key wait.  So the hash is SipHash-2-4: without the secret, known hashes say nothing
 * about the hash of any other text.
 *
 * 1. CREATE EXTENSION makes a random secret for the database, and keeps it where SQL cannot reach
 *    it (table/fence.c).  It outlives a restart, as claims of prepared transactions do.
 * 2. Each purpose (keys, owners, holdings, ...) has a secret derived from that one.
 * 3. The hash of a key has 128 bits.  The first 64, its "hash", are in tags and find the key.
 *    The others, its "check", are never shown; they help to tell keys apart where there is no
 *    room for their text.
 *
 * Locking: the first hash of a session, and the first one after an invalidation of the sequence
 * app_lock_fence, reads the secret under AccessShareLock on that sequence.  A transaction that
 * has a claim, or is about to take one, has a lock on app_lock.  So the extension cannot be
 * dropped and created again, with another secret, under a claim.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "port/pg_bswap.h"

#include "atomic_lock.h"
#include "base/compat.h"
#include "base/errors.h"
#include "base/hash.h"
#include "base/settings.h"
#include "base/str.h"

static AlHash secrets[AL_HASH_PURPOSES];
static AlSecretSource source = NULL;
static bool secrets_known = false;
static uint32 times_forgotten = 0;

static inline uint64
rotate_left(uint64 word, int bits)
{
	return word << bits | word >> (64 - bits);
}

static inline void
mix(uint64 *v, int rounds)
{
	for (int i = 0; i < rounds; i++)
	{
		v[0] += v[1];
		v[2] += v[3];
		v[1] = rotate_left(v[1], 13) ^ v[0];
		v[3] = rotate_left(v[3], 16) ^ v[2];
		v[0] = rotate_left(v[0], 32);
		v[2] += v[1];
		v[0] += v[3];
		v[1] = rotate_left(v[1], 17) ^ v[2];
		v[3] = rotate_left(v[3], 21) ^ v[0];
		v[2] = rotate_left(v[2], 32);
	}
}

static inline uint64
read_word(const char *data)
{
	uint64		word;

	memcpy(&word, data, sizeof(word));
#ifdef WORDS_BIGENDIAN
	word = pg_bswap64(word);
#endif
	return word;
}

/* SipHash-2-4 with 128 bits of output, by Jean-Philippe Aumasson and Daniel J. Bernstein */
void
al_hash_bytes(const AlHash *secret, AlString string, AlHash *hash)
{
	uint64		v[4] = {
		UINT64CONST(0x736f6d6570736575) ^ secret->words[0],
		UINT64CONST(0x646f72616e646f6d) ^ secret->words[1] ^ 0xee,
		UINT64CONST(0x6c7967656e657261) ^ secret->words[0],
		UINT64CONST(0x7465646279746573) ^ secret->words[1]
	};
	const char *data = string.data;
	int			left = string.len;
	uint64		last = (uint64) string.len << 56;

	for (; left >= 8; data += 8, left -= 8)
	{
		uint64		word = read_word(data);

		v[3] ^= word;
		mix(v, 2);
		v[0] ^= word;
	}
	for (int i = 0; i < left; i++)
		last |= (uint64) (unsigned char) data[i] << (8 * i);
	v[3] ^= last;
	mix(v, 2);
	v[0] ^= last;

	v[2] ^= 0xee;
	mix(v, 4);
	hash->words[0] = v[0] ^ v[1] ^ v[2] ^ v[3];
	v[1] ^= 0xdd;
	mix(v, 4);
	hash->words[1] = v[0] ^ v[1] ^ v[2] ^ v[3];
}

void
al_hash_init(AlSecretSource secret_source)
{
	Assert(secret_source != NULL);
	source = secret_source;
}

/* Read the secret again before the next hash, because it may have changed */
void
al_secret_forget(void)
{
	secrets_known = false;
	times_forgotten++;
}

/* Counts calls of al_secret_forget(): a hash made at another value may be out of date */
uint32
al_secret_version(void)
{
	return times_forgotten;
}

/*
 * The secret for a purpose.  Raises 42704 if the extension is not installed.  Zeroes on a standby
 * without a secret, where there are no claims.
 */
static const AlHash *
secret_for(AlHashPurpose purpose)
{
	Assert(purpose < AL_HASH_PURPOSES);
	if (!secrets_known)
	{
		/* An invalidation may arrive during the read. */
		uint32		before = times_forgotten;
		AlHash		secret = {{0, 0}};
		bool		found;

		Assert(source != NULL && IsTransactionState() && CritSectionCount == 0);
		found = source(&secret);
		for (int i = 0; i < AL_HASH_PURPOSES; i++)
		{
			char		number = (char) i;
			AlString	label = {&number, 1};

			al_hash_bytes(&secret, label, &secrets[i]);
		}
		secrets_known = found && before == times_forgotten;
		al_trace(DEBUG2, "hash secret of the database %s",
				 secrets_known ? "read" : found ? "changed while it was read" : "does not exist yet");
	}
	return &secrets[purpose];
}

/* Hash bytes for a purpose.  The first word is never 0, which means "none".  Raises 42704. */
void
al_hash_for(AlHashPurpose purpose, AlString string, AlHash *hash)
{
	al_hash_bytes(secret_for(purpose), string, hash);
#ifdef AL_TEST_HOOKS
	if (al_test_hash_bits < 64 && purpose != AL_HASH_HOLDINGS)
		hash->words[0] &= (UINT64CONST(1) << al_test_hash_bits) - 1;
#endif
	if (hash->words[0] == 0)
		hash->words[0] = 1;
}

#ifdef AL_TEST_HOOKS
PG_FUNCTION_INFO_V1(atomic_lock_test_hash);

/* atomic_lock_test_hash(secret bytea, string text): the hash, as bytes */
Datum
atomic_lock_test_hash(PG_FUNCTION_ARGS)
{
	bytea	   *result = palloc(VARHDRSZ + sizeof(AlHash));
	AlHash		secret;
	AlHash		hash;

	memcpy(&secret, VARDATA_ANY(PG_GETARG_BYTEA_PP(0)), sizeof(secret));
	al_hash_bytes(&secret, al_string(PG_GETARG_TEXT_PP(1)), &hash);
	SET_VARSIZE(result, VARHDRSZ + sizeof(AlHash));
	memcpy(VARDATA(result), &hash, sizeof(hash));
	PG_RETURN_BYTEA_P(result);
}
#endif
