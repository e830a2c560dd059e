/*-------------------------------------------------------------------------
 *
 * owner.c
 *		Owners, which prove a holding, and the generated ones among them.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: an owner is a secret.  So no message contains one, and owners are compared
 * in constant time.
 *
 * A generated owner is a UUID v4 with 82 random bits, a block number of 24 bits and a
 * checksum of 16 bits.  The block number has the lower bits of the number of the block
 * where the owner's row was written; all bits are set if the index of owners has the
 * row.  table/owner_rows.c finds rows by the block number.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "mb/pg_wchar.h"

#include "atomic_lock.h"
#include "base/errors.h"
#include "base/hash.h"
#include "base/owner.h"
#include "base/settings.h"
#include "base/str.h"

#define SEED_INDEX	UINT64CONST(0x61746f6d69636f77)

/* Are these the same owner?  The time reveals only the length.  An empty owner equals no owner. */
bool
al_owner_equal(AlString a, AlString b)
{
	uint64		difference = 0;
	int			i = 0;

	if (a.len != b.len || a.len == 0)
		return false;
	for (; i + 8 <= a.len; i += 8)
	{
		uint64		x;
		uint64		y;

		memcpy(&x, a.data + i, 8);
		memcpy(&y, b.data + i, 8);
		difference |= x ^ y;
	}
	for (; i < a.len; i++)
		difference |= (unsigned char) (a.data[i] ^ b.data[i]);
	return difference == 0;
}

/* Does the session present this owner as its own? */
bool
al_owner_is_setting(AlString owner)
{
	return al_owner_setting && owner.len > 0 &&
		al_owner_equal(al_cstring(al_owner_setting), owner);
}

/*
 * Copy the owner that the session presents, because user code may change the setting later; false
 * if the setting is empty.  Raises 22021 for invalid text: the server checks neither the options
 * of a connection request, nor a role's settings that were made in another database.
 */
bool
al_owner_of_session(AlString *owner)
{
	if (al_owner_setting == NULL || al_owner_setting[0] == '\0')
		return false;
	*owner = al_cstring(pstrdup(al_owner_setting));
	if (!al_owner_setting_is_verified && !al_is_text(*owner))
		ereport(ERROR,
				(al_errcode(ERRCODE_CHARACTER_NOT_IN_REPERTOIRE),
				 errmsg("invalid byte sequence for encoding \"%s\" in atomic_lock.owner",
						GetDatabaseEncodingName()),
				 errdetail("The value came with the connection request, or was set in a database with another encoding."),
				 errhint("Set atomic_lock.owner again.")));
	al_owner_setting_is_verified = true;
	return true;
}

static uint64
owner_hash(AlString owner)
{
	AlHash		hash;

	al_hash_for(AL_HASH_OWNERS, owner, &hash);
	return hash.words[0];
}

/* The hash on which an owner's shared holding of a key is claimed */
uint64
al_holding_hash(const AlKey *key, const AlOwner *owner)
{
	uint64		words[3] = {key->hash, key->check, owner->hash};
	AlString	string = {(const char *) words, sizeof(words)};
	AlHash		hash;

	al_hash_for(AL_HASH_HOLDINGS, string, &hash);
	return hash.words[0];
}

static uint32
index_hash(AlString string)
{
	return (uint32) DatumGetUInt64(hash_any_extended((const unsigned char *) string.data,
													 string.len, SEED_INDEX));
}

/*
 * The value of app_lock.owner_hash: the upper half finds all rows of an owner, both halves those
 * of one key.  It has no secret: another copy of the database may read the rows.
 */
int64
al_owner_index_hash(AlString owner, AlString key)
{
	return (int64) ((uint64) index_hash(owner) << 32 | index_hash(key));
}

/* The lowest value that al_owner_index_hash() has for an owner and any key */
int64
al_owner_first_hash(AlString owner)
{
	return (int64) ((uint64) index_hash(owner) << 32);
}

void
al_owner_init(AlOwner *owner, AlString name)
{
	Assert(name.len <= AL_MAX_OWNER_BYTES);
	owner->name = name;
	owner->generated = owner->in_index = false;
	owner->hash = owner_hash(name);
}

#define UUID_BYTES	16
#define UUID_CHARS	36

static uint16
uuid_checksum(const unsigned char *uuid)
{
	return (uint16) DatumGetUInt32(hash_any(uuid, UUID_BYTES - 2));
}

/* Make an owner for a row in this block, or one for the index of owners (owner->in_index) */
void
al_owner_generate(AlOwner *owner, BlockNumber block)
{
	static const char hex[] = "0123456789abcdef";
	static unsigned char pool[32 * UUID_BYTES]; /* a call costs more than its bytes */
	static int	left = 0;
	unsigned char uuid[UUID_BYTES];
	char	   *out = palloc(UUID_CHARS);
	uint16		checksum;
	uint32		block_bits = block % AL_OWNER_BLOCKS;

	Assert(owner->generated);
	if (left == 0)
	{
		if (!pg_strong_random(pool, sizeof(pool)))
			ereport(ERROR,
					(al_errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random values")));
		left = sizeof(pool);
	}
	left -= UUID_BYTES;
	memcpy(uuid, pool + left, UUID_BYTES);
	explicit_bzero(pool + left, UUID_BYTES);
	if (block_bits == AL_OWNER_IN_INDEX)
		owner->in_index = true;
	if (owner->in_index)
		block_bits = AL_OWNER_IN_INDEX;
	uuid[6] = (uuid[6] & 0x0f) | 0x40;	/* version 4 */
	uuid[8] = (uuid[8] & 0x3f) | 0x80;	/* variant of RFC 9562 */
	uuid[11] = block_bits >> 16;
	uuid[12] = block_bits >> 8 & 0xff;
	uuid[13] = block_bits & 0xff;
	checksum = uuid_checksum(uuid);
	uuid[14] = checksum >> 8;
	uuid[15] = checksum & 0xff;

	owner->name.data = out;
	owner->name.len = UUID_CHARS;
	for (int i = 0; i < UUID_BYTES; i++)
	{
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*out++ = '-';
		*out++ = hex[uuid[i] >> 4];
		*out++ = hex[uuid[i] & 0x0f];
	}
	/* A holding that is found only by its block is claimed by its key alone. */
	owner->hash = owner->in_index ? owner_hash(owner->name) : 0;
}

/*
 * Could al_owner_generate() have made this owner?  Also true for one in 65536 other UUIDs.  Sets
 * "block_bits" to the block number in the owner.
 */
bool
al_owner_read_block(AlString owner, uint32 *block_bits)
{
	unsigned char uuid[UUID_BYTES];
	const char *in = owner.data;

	if (owner.len != UUID_CHARS)
		return false;
	for (int i = 0; i < UUID_BYTES; i++)
	{
		unsigned char byte = 0;

		if ((i == 4 || i == 6 || i == 8 || i == 10) && *in++ != '-')
			return false;
		for (int nibble = 0; nibble < 2; nibble++, in++)
		{
			if (*in >= '0' && *in <= '9')
				byte = byte << 4 | (*in - '0');
			else if (*in >= 'a' && *in <= 'f')
				byte = byte << 4 | (*in - 'a' + 10);
			else
				return false;
		}
		uuid[i] = byte;
	}
	*block_bits = (uint32) uuid[11] << 16 | uuid[12] << 8 | uuid[13];
	return uuid_checksum(uuid) == (uuid[14] << 8 | uuid[15]);
}

/* Is this the block number in a generated owner? */
bool
al_owner_names_block(const AlOwner *owner, BlockNumber block)
{
	uint32		block_bits;

	return al_owner_read_block(owner->name, &block_bits) && block_bits == block % AL_OWNER_BLOCKS;
}
