/*-------------------------------------------------------------------------
 *
 * fence.c
 *		Fencing tokens: numbers that rise with every grant.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: a token is the next number of the sequence app_lock_fence, drawn while the key is
 * claimed, so a later grant of the key has a higher token.
 *
 * nextval() is not used: it would change lastval() in this session, and it hands out numbers
 * whose WAL is not flushed, which a crash can hand out again.  Here, the sequence is logged
 * DRAW_AHEAD numbers in advance, and that record is flushed before any of them is used.  So no
 * number is drawn twice, even if its transaction rolled back.
 *
 * A copy of the database that lost the last WAL or comes from an older state (a promoted standby,
 * point-in-time recovery, a restored dump, a clone) begins a new epoch.  Its next token is the
 * clock in microseconds since 2000, or the last token plus EPOCH_GAP where the clock is not
 * clearly ahead of it.  All epochs begin like that, and fewer than a million tokens a second are
 * drawn, so the clock is above every token of every copy.  The gap is for a server whose clock is
 * behind: no standby loses a million grants.
 *
 * A copy knows itself by its identity, a hash of the server, its start, the timeline and the
 * database, in the upper half of the sequence's log_cnt.  The lower half says how many numbers
 * WAL still covers.  Neither is dumped, and setval() and ALTER SEQUENCE clear both, so a new
 * epoch begins after those too.
 *
 * Behind its columns, the tuple of the sequence has the secret of the database's hashes
 * (base/hash.c), which no SQL shows and no dump has.  setval() and ALTER SEQUENCE keep it;
 * standbys and physical copies have it with the page.  pg_upgrade --swap makes the sequence anew,
 * while there are no claims; then another secret is made.
 *
 * Locking rules: a content lock on the only page of the sequence, held over a flush of WAL once
 * in DRAW_AHEAD draws and when the secret is made.  Errors raised under it mean that the page is
 * corrupt.  The sequence is written at once, outside of the transaction, so no draw waits for the
 * commit of another transaction.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/generic_xlog.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xlog.h"
#include "commands/sequence.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/timestamp.h"

#include "base/errors.h"
#include "base/hash.h"
#include "table/catalog.h"
#include "table/fence.h"

#define DRAW_AHEAD	(16 * 1024)
#define EPOCH_GAP	(1024 * 1024)
#define CLOCK_LEAD	(16 * 1024)

/* The offset of the secret in the data of the tuple, and the length of that data */
#define SECRET_OFFSET	MAXALIGN(sizeof(FormData_pg_sequence_data))
#define DATA_LENGTH		(SECRET_OFFSET + sizeof(AlHash))

#define LOG_CNT(identity, covered)	((int64) (identity) << 32 | (covered))
#define LOG_CNT_IDENTITY(log_cnt)	((uint32) ((log_cnt) >> 32))
#define LOG_CNT_COVERED(log_cnt)	((uint32) (log_cnt))

/*
 * The identity of this copy of the database; never 0.  The timeline is read each time, because a
 * backend survives the promotion of its standby.  The start of the server distinguishes copies
 * without a new timeline, such as a disk snapshot that is started elsewhere.
 */
static uint32
identity(void)
{
	struct
	{
		uint64		system_identifier;
		TimestampTz server_start;
		uint32		timeline;
		uint32		database;
	}			parts = {GetSystemIdentifier(), PgStartTime, GetWALInsertionTimeLine(), MyDatabaseId};

	/* It fits the signed log_cnt, and is not what setval() leaves there. */
	return (hash_bytes((const unsigned char *) &parts, sizeof(parts)) >> 1) | 1;
}

static Form_pg_sequence_data
sequence_data(Page page)
{
	HeapTupleHeader tuple = (HeapTupleHeader)
		PageGetItem(page, PageGetItemId(page, FirstOffsetNumber));

	return (Form_pg_sequence_data) ((char *) tuple + tuple->t_hoff);
}

/* Log and flush the page as it will be after DRAW_AHEAD more draws; the page is locked */
static void
log_ahead(Relation rel, Buffer buffer, int64 token, uint32 copy)
{
	GenericXLogState *state = GenericXLogStart(rel);
	Form_pg_sequence_data logged;
	XLogRecPtr	lsn;

	logged = sequence_data(GenericXLogRegisterBuffer(state, buffer,
													 GENERIC_XLOG_FULL_IMAGE));
	logged->last_value = token + DRAW_AHEAD;
	logged->is_called = true;
	logged->log_cnt = LOG_CNT(copy, 0);
	lsn = GenericXLogFinish(state);
	if (RelationNeedsWAL(rel))
		XLogFlush(lsn);
}

/*
 * Draw "count" consecutive fencing tokens, and return the first.  For a grant, the caller
 * has claimed the keys.  Raises 2200H when no tokens are left.
 */
int64
al_fence_draw(int count)
{
	Relation	rel = al_open_fence(RowExclusiveLock);
	Buffer		buffer = ReadBuffer(rel, 0);
	Form_pg_sequence_data data;
	int64		token;
	int64		last;
	uint32		copy = identity();
	uint32		covered;
	bool		is_new_epoch = false;

	Assert(count > 0 && count <= DRAW_AHEAD && copy != 0);
	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	data = sequence_data(BufferGetPage(buffer));
	token = data->last_value;
	if (token > PG_INT64_MAX - EPOCH_GAP - DRAW_AHEAD - count)
	{
		UnlockReleaseBuffer(buffer);
		ereport(ERROR,
				(al_errcode(ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED),
				 errmsg("fencing tokens are exhausted"),
				 errdetail("The sequence \"app_lock_fence\" has reached its maximum value.")));
	}
	token++;
	covered = LOG_CNT_COVERED(data->log_cnt);

	/*
	 * As in nextval(), the first draw after a checkpoint has to log, because replay starts there.
	 * Unlike there, the buffer is marked dirty before the look at the redo pointer: a checkpoint
	 * that moves it meanwhile waits for our lock and writes this draw.
	 */
	MarkBufferDirty(buffer);
	if (LOG_CNT_IDENTITY(data->log_cnt) != copy)
	{
		TimestampTz clock = GetCurrentTimestamp();

		token = clock > token + CLOCK_LEAD ? clock : token + EPOCH_GAP;
		covered = 0;
		is_new_epoch = true;
	}
	last = token + count - 1;
	if (covered < (uint32) count || PageGetLSN(BufferGetPage(buffer)) <= GetRedoRecPtr())
	{
		log_ahead(rel, buffer, last, copy);
		covered = DRAW_AHEAD;
	}
	else
		covered -= count;

	/* wal_level = minimal, and this transaction made it: nothing is covered */
	if (!RelationNeedsWAL(rel))
		covered = 0;
	Assert(last >= token && covered <= DRAW_AHEAD);
	data->log_cnt = LOG_CNT(copy, covered);
	data->last_value = last;
	data->is_called = true;

	UnlockReleaseBuffer(buffer);
	relation_close(rel, NoLock);
	if (is_new_epoch)
		al_trace(DEBUG1, "fencing tokens begin a new epoch at %lld", (long long) token);
	return token;
}

/* Copy the secret from the page, which is locked; false: there is none yet. */
static bool
read_secret(Page page, AlHash *secret)
{
	ItemId		item = PageGetItemId(page, FirstOffsetNumber);
	HeapTupleHeader tuple = (HeapTupleHeader) PageGetItem(page, item);

	if (ItemIdGetLength(item) != tuple->t_hoff + DATA_LENGTH)
		return false;
	memcpy(secret, (char *) tuple + tuple->t_hoff + SECRET_OFFSET, sizeof(AlHash));
	return true;
}

/* Write a secret behind the columns, and flush it before it is used; the page is locked. */
static void
write_secret(Relation rel, Buffer buffer, const AlHash *secret)
{
	GenericXLogState *state = GenericXLogStart(rel);
	Page		page = GenericXLogRegisterBuffer(state, buffer, GENERIC_XLOG_FULL_IMAGE);
	ItemId		item = PageGetItemId(page, FirstOffsetNumber);
	HeapTupleHeader tuple = (HeapTupleHeader) PageGetItem(page, item);
	PGAlignedBlock longer = {0};
	Size		length = tuple->t_hoff + DATA_LENGTH;
	XLogRecPtr	lsn;

	memcpy(longer.data, tuple, ItemIdGetLength(item));
	memcpy(longer.data + tuple->t_hoff + SECRET_OFFSET, secret, sizeof(AlHash));
	if (!PageIndexTupleOverwrite(page, FirstOffsetNumber, longer.data, length))
		elog(ERROR, "no room for a secret in sequence \"%s\"", RelationGetRelationName(rel));
	/* Replay of this image must not bring back tokens drawn since the last one. */
	sequence_data(page)->log_cnt = 0;
	lsn = GenericXLogFinish(state);
	if (RelationNeedsWAL(rel))
		XLogFlush(lsn);
}

/* Read or make the secret of the hashes; false: a standby has none yet.  Raises 42704. */
bool
al_fence_secret(AlHash *secret)
{
	Relation	rel = al_open_fence(AccessShareLock);
	Buffer		buffer = ReadBuffer(rel, 0);
	AlHash		fresh;
	bool		found;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	found = read_secret(BufferGetPage(buffer), secret);
	UnlockReleaseBuffer(buffer);
	relation_close(rel, AccessShareLock);

	if (!found && !RecoveryInProgress())
	{
		/* This waits for an unfinished ALTER SEQUENCE, which has copied the page. */
		rel = al_open_fence(RowExclusiveLock);
		buffer = ReadBuffer(rel, 0);
		if (!pg_strong_random(&fresh, sizeof(fresh)))
			ereport(ERROR,
					(al_errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random values")));
		LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
		/* Another session may have made it meanwhile. */
		if (!read_secret(BufferGetPage(buffer), secret))
		{
			write_secret(rel, buffer, &fresh);
			*secret = fresh;
		}
		found = true;
		UnlockReleaseBuffer(buffer);
		relation_close(rel, RowExclusiveLock);
		al_trace(DEBUG1, "the sequence app_lock_fence had no secret for hashes");
	}
	return found;
}
