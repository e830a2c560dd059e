/*-------------------------------------------------------------------------
 *
 * lock_fence.c
 *		Fencing tokens: numbers that rise with every grant.
 *
 * Model: a token is the next number of the sequence app_lock_fence, drawn
 * while the key is claimed, so that two grants of a key draw in the order in
 * which they are granted.
 *
 * nextval() is not used, for two reasons: it would change what lastval()
 * answers the session, which some drivers rely on, and it hands out numbers
 * whose WAL is not flushed, which a crash can hand out again.  Here the
 * sequence is logged DRAW_AHEAD numbers in advance and that record is flushed
 * before any of them is used, so a number that anybody has seen never comes
 * back, committed or not.  The relation stays an ordinary sequence for
 * pg_dump, setval() and ALTER SEQUENCE.
 *
 * What a sequence does not survive is a copy of the database that misses the
 * last WAL: a promoted standby, a point-in-time recovery, a restored dump, a
 * clone.  There a new epoch begins, whose first token is above all that any
 * other copy has handed out:
 *
 *		the later of last value + EPOCH_GAP and the clock in microseconds
 *
 * The gap is for a copy that lost what came last; no standby lags by four
 * billion grants.  The clock is for a copy that does not know of epochs which
 * the original began since: as long as fewer than a million tokens a second
 * are drawn, an epoch that began earlier is still below.  Tokens stay below
 * 2^53, the integers of JavaScript, for two centuries.
 *
 * The sequence app_lock_epoch remembers in which identity (server, timeline,
 * database) the last epoch began.  It is not dumped.  Like the numbers it is
 * written at once and not undone by a rollback, so nobody waits for anybody.
 *
 * Locking rules: content locks on the only page of each sequence,
 * app_lock_epoch before app_lock_fence, held over a flush of WAL once per
 * epoch and once in DRAW_AHEAD draws, and never over an ereport.
 *
 * IDENTIFICATION
 *		src/lock_fence.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/generic_xlog.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xlog.h"
#include "atomic_lock.h"
#include "commands/sequence.h"
#include "common/hashfn.h"
#include "compat.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/timestamp.h"

#define DRAW_AHEAD	1024
#define EPOCH_GAP	(INT64CONST(1) << 32)

/* A sequence whose page is pinned and locked */
typedef struct LockedSequence
{
	Relation	rel;
	Buffer		buffer;
	Form_pg_sequence_data data;
} LockedSequence;

/* Timeline for which this backend knows that an epoch has begun; 0: none */
static TimeLineID known_timeline = 0;

/* The relation cache says that something changed */
void
al_fence_forget_epoch(void)
{
	known_timeline = 0;
}

static Form_pg_sequence_data
sequence_data(Page page)
{
	HeapTupleHeader tuple = (HeapTupleHeader)
		PageGetItem(page, PageGetItemId(page, FirstOffsetNumber));

	return (Form_pg_sequence_data) ((char *) tuple + tuple->t_hoff);
}

static void
lock_sequence(LockedSequence *seq, Relation rel)
{
	seq->rel = rel;
	seq->buffer = ReadBuffer(rel, 0);
	LockBuffer(seq->buffer, BUFFER_LOCK_EXCLUSIVE);
	seq->data = sequence_data(BufferGetPage(seq->buffer));
}

static void
unlock_sequence(LockedSequence *seq)
{
	UnlockReleaseBuffer(seq->buffer);
	relation_close(seq->rel, NoLock);
}

/* Make "value" the last one, durably */
static void
log_value(LockedSequence *seq, int64 value)
{
	GenericXLogState *state = GenericXLogStart(seq->rel);
	Form_pg_sequence_data logged;
	XLogRecPtr	lsn;

	logged = sequence_data(GenericXLogRegisterBuffer(state, seq->buffer,
													 GENERIC_XLOG_FULL_IMAGE));
	logged->last_value = value;
	logged->is_called = true;
	logged->log_cnt = 0;
	lsn = GenericXLogFinish(state);
	if (RelationNeedsWAL(seq->rel))
		XLogFlush(lsn);
}

/* What makes this copy of the database different from all others */
static int64
identity(TimeLineID timeline)
{
	struct
	{
		uint64		system_identifier;
		uint32		timeline;
		uint32		database;
	}			parts = {GetSystemIdentifier(), timeline, MyDatabaseId};
	uint64		hash = hash_bytes_extended((const unsigned char *) &parts, sizeof(parts), 0);

	/* what setval() and ALTER SEQUENCE accept too: 2 and up, 1 is a new one */
	return (int64) (hash >> 1) | 2;
}

/* Begin an epoch unless one has begun in this identity */
static void
begin_epoch(TimeLineID timeline)
{
	LockedSequence epoch;
	Relation	fence_rel = al_open_fence(RowExclusiveLock);

	lock_sequence(&epoch, al_open_epoch(RowExclusiveLock));
	if (epoch.data->last_value != identity(timeline))
	{
		LockedSequence fence;
		int64		last;

		lock_sequence(&fence, fence_rel);
		last = fence.data->is_called ? fence.data->last_value : 0;
		if (last < PG_INT64_MAX - EPOCH_GAP)
			log_value(&fence, Max(last + EPOCH_GAP, GetCurrentTimestamp()));
		UnlockReleaseBuffer(fence.buffer);
		log_value(&epoch, identity(timeline));
	}
	unlock_sequence(&epoch);
	relation_close(fence_rel, NoLock);
	known_timeline = timeline;
}

/*
 * The fencing token of a grant.  The caller has the key claimed for taking.
 * Raises 2200H when there are no more tokens.
 */
int64
al_fence_next(void)
{
	TimeLineID	timeline = GetWALInsertionTimeLine();
	LockedSequence fence;
	int64		token;

	/* A backend lives on when its standby is promoted. */
	if (known_timeline != timeline)
		begin_epoch(timeline);

	lock_sequence(&fence, al_open_fence(RowExclusiveLock));
	token = fence.data->last_value;
	if (token >= PG_INT64_MAX - DRAW_AHEAD)
	{
		unlock_sequence(&fence);
		ereport(ERROR,
				(errcode(ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED),
				 errmsg("fencing tokens are exhausted"),
				 errdetail("The sequence \"app_lock_fence\" has reached its end.")));
	}
	if (fence.data->is_called)
		token++;

	/*
	 * As in nextval(), the first draw after a checkpoint has to log: replay
	 * starts there and would not see what was logged before.
	 */
	if (!fence.data->is_called || fence.data->log_cnt < 1 ||
		PageGetLSN(BufferGetPage(fence.buffer)) <= GetRedoRecPtr())
	{
		log_value(&fence, token + DRAW_AHEAD);
		fence.data->log_cnt = DRAW_AHEAD;
	}
	else
		fence.data->log_cnt--;
	fence.data->last_value = token;
	fence.data->is_called = true;
	MarkBufferDirty(fence.buffer);
	unlock_sequence(&fence);
	return token;
}
