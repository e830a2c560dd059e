/*-------------------------------------------------------------------------
 *
 * lock_hash.c
 *		Hashes of keys and owners, which nobody can foresee.
 *
 * Model: claims are heavyweight locks, whose tags have room for 64 bits, and
 * everybody can read the tags in pg_locks.  If a hash could be computed, or
 * derived from the tags of other keys, anybody could construct a key that makes
 * the users of another one wait.  So the hash is SipHash-2-4, a function that is
 * made for this: whoever does not have its secret learns nothing about the hash
 * of one text from the hashes of any others.
 *
 * The secret is the database's.  It is made at random when the extension is
 * created, and kept where SQL does not reach it (lock_fence.c).  Claims of
 * prepared transactions outlive a restart, and so does the secret.  Keys, owners
 * and holdings have hashes of their own, by secrets that are derived from it.
 *
 * A key has 128 bits.  The first 64 are its "hash", by which it is claimed and
 * looked for.  The others are its "check", which is shown to nobody, for what has
 * no room for the text of a key.
 *
 * The column app_lock.owner_hash has another hash, without a secret: rows may be
 * read by another copy of the database (logical replication), and what the index
 * finds is compared with the owner in any case.
 *
 * Locking: the secret is read under AccessShareLock on the sequence app_lock_fence,
 * by the first hash of a session and after each invalidation of the sequence.
 * Whoever has claims, or is about to take one, has a lock on app_lock, so nobody can
 * drop the extension, and the secret stays.  An extension that is created again has
 * another secret.
 *
 * IDENTIFICATION
 *		src/base/hash.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "atomic_lock.h"
#include "common/hashfn.h"
#include "lock_wait.h"
#include "port/pg_bswap.h"
#ifdef AL_TEST_HOOKS
#include "fmgr.h"
#include "utils/builtins.h"
#endif

#define SEED_OWNER	UINT64CONST(0x61746f6d69636f77)

/* What is hashed; each has a secret of its own */
typedef enum Purpose
{
	KEYS,
	OWNERS,
	HOLDINGS,
	PURPOSES
} Purpose;

static AlHash secrets[PURPOSES];
static bool secrets_known = false;
static uint32 times_forgotten = 0;

#ifdef AL_TEST_HOOKS
int			al_test_hash_bits = 64;
#endif

static inline uint64
rotate_left(uint64 word, int bits)
{
	return word << bits | word >> (64 - bits);
}

/* SipRound, as often as it says */
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

/*
 * SipHash-2-4 with 128 bits of output, by Jean-Philippe Aumasson and Daniel J.
 * Bernstein: the same numbers on every platform.
 */
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

/* The secret may be another one from now on */
void
al_secret_forget(void)
{
	secrets_known = false;
	times_forgotten++;
}

/* What was hashed while this had another value may have another hash by now */
uint32
al_secret_version(void)
{
	return times_forgotten;
}

/*
 * The secret for a purpose.  Raises 42704 where the extension is not installed.
 * A standby, on which nobody has claims, may not have one yet; then any will do.
 */
static const AlHash *
secret_for(Purpose purpose)
{
	if (!secrets_known)
	{
		/* An invalidation that arrives while it is read is not lost. */
		uint32		before = times_forgotten;
		AlHash		secret = {{0, 0}};
		bool		found = al_fence_secret(&secret);

		for (int i = 0; i < PURPOSES; i++)
		{
			char		number = (char) i;
			AlString	label = {&number, 1};

			al_hash_bytes(&secret, label, &secrets[i]);
		}
		secrets_known = found && before == times_forgotten;
	}
	return &secrets[purpose];
}

/* Zero means "none" everywhere. */
static inline uint64
shown_hash(uint64 hash)
{
#ifdef AL_TEST_HOOKS
	if (al_test_hash_bits < 64)
		hash &= (UINT64CONST(1) << al_test_hash_bits) - 1;
#endif
	return hash != 0 ? hash : 1;
}

void
al_key_init(AlKey *key, AlString name)
{
	AlHash		hash;

	al_hash_bytes(secret_for(KEYS), name, &hash);
	key->name = name;
	key->hash = shown_hash(hash.words[0]);
	key->check = hash.words[1];
}

/*
 * Raise 55000 unless a key still has the hash that it had, after app_lock was closed
 * for a while: somebody may have created the extension again.
 */
void
al_key_recheck(const AlKey *key)
{
	AlKey		now;

	al_key_init(&now, key->name);
	if (now.hash != key->hash || now.check != key->check)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE), al_hide_owners(),
				 errmsg("extension \"atomic_lock\" was created again during the call"),
				 errhint("Retry the statement.")));
}

uint64
al_owner_hash(AlString owner)
{
	AlHash		hash;

	al_hash_bytes(secret_for(OWNERS), owner, &hash);
	return shown_hash(hash.words[0]);
}

/* What the shared holding of an owner is claimed on */
uint64
al_holding_hash(const AlKey *key, const AlOwner *owner)
{
	uint64		words[3] = {key->hash, key->check, owner->hash};
	AlString	string = {(const char *) words, sizeof(words)};
	AlHash		hash;

	al_hash_bytes(secret_for(HOLDINGS), string, &hash);
	return hash.words[0] != 0 ? hash.words[0] : 1;
}

/* app_lock.owner_hash of an owner */
int32
al_owner_index_hash(AlString owner)
{
	return (int32) DatumGetUInt64(hash_any_extended((const unsigned char *) owner.data,
													owner.len, SEED_OWNER));
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
