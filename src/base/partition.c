/*-------------------------------------------------------------------------
 *
 * partition.c
 *		Which server a key belongs to.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: several servers can share the keys, with one partition each.  Routers send each
 * call to the server of its key.  If two routers disagreed, two servers would grant the
 * same key.  So a server refuses keys of other partitions, and refuses all keys while its
 * own partition is not set.
 *
 * The partition of a key is that of a table PARTITION BY HASH (key), so routers can have
 * PostgreSQL compute it.  As in Redis Cluster, only the text in the first braces of a key
 * is hashed, unless it is empty, so the keys of a set can be kept on one server.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/partition.h"
#include "common/hashfn.h"

#include "base/errors.h"
#include "base/partition.h"
#include "base/str.h"

/* The partition of a key, from 0 to partitions - 1 */
int
al_partition_of(AlString key, int partitions)
{
	const char *end = key.data + key.len;
	const char *open = memchr(key.data, '{', key.len);
	const char *close = open ? memchr(open, '}', end - open) : NULL;
	uint64		hash;

	Assert(partitions > 0);
	if (close && close > open + 1)
		key = (AlString) {open + 1, close - open - 1};

	/* The same as compute_partition_hash_value() */
	hash = DatumGetUInt64(hash_any_extended((const unsigned char *) key.data, key.len,
											HASH_PARTITION_SEED));
	return (int) (hash_combine64(0, hash) % (uint64) partitions);
}

/* Raise LK010 for a key of another partition; name the key if the role may see it */
void
al_raise_partition(AlString key, bool may_see)
{
	Assert(al_is_elsewhere(key));
	ereport(ERROR,
			(al_errcode(ERRCODE_LOCK_WRONG_PARTITION),
			 may_see ?
			 errmsg("lock \"%s\" belongs to partition %d of %d, which this server does not have",
					al_display(key), al_partition_of(key, al_partitions), al_partitions) :
			 errmsg("the lock belongs to a partition that this server does not have"),
			 al_partition < 0 ?
			 errdetail("This server has no partition at present.") :
			 errdetail("This server has partition %d.", al_partition),
			 errhint("Connect to the server that has the partition. If a partition has moved, the router's map is out of date.")));
}
