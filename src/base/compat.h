/*-------------------------------------------------------------------------
 *
 * compat.h
 *		Differences between PostgreSQL versions, and every version switch of the tree.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef AL_BASE_COMPAT_H
#define AL_BASE_COMPAT_H

#if PG_VERSION_NUM < 150000
#error "atomic_lock needs PostgreSQL 15 or later"
#endif

#include "access/genam.h"
#include "access/heapam.h"
#include "access/xact.h"
#include "commands/async.h"
#include "miscadmin.h"
#include "replication/syncrep.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/bufmgr.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/sinvaladt.h"
#include "utils/acl.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "utils/wait_event.h"

#if PG_VERSION_NUM >= 160000
#include "catalog/pg_class.h"
#include "catalog/pg_proc.h"
#include "utils/guc_hooks.h"
#include "varatt.h"
#endif

#if PG_VERSION_NUM >= 170000
#include "storage/dsm_registry.h"
#define AL_HAS_DSM_REGISTRY true
#else
#define AL_HAS_DSM_REGISTRY false
#endif

/* See base/testpoint.h */
#ifdef USE_INJECTION_POINTS
#include "utils/injection_point.h"
#if PG_VERSION_NUM >= 180000
#define AL_INJECTION_POINT(name) INJECTION_POINT(name, NULL)
#else
#define AL_INJECTION_POINT(name) INJECTION_POINT(name)
#endif
#else
#define AL_INJECTION_POINT(name) ((void) 0)
#endif

#ifdef PG_MODULE_MAGIC_EXT
#define AL_MODULE_MAGIC(release) \
	PG_MODULE_MAGIC_EXT(.name = "atomic_lock", .version = release)
#else
#define AL_MODULE_MAGIC(release) PG_MODULE_MAGIC
#endif

/* This goes before "extern". */
#if PG_VERSION_NUM >= 180000
#define AL_NORETURN pg_noreturn
#else
#define AL_NORETURN pg_attribute_noreturn()
#endif

/* Call simple_heap_update(); returns whether the new version needs index entries. */
static inline bool
al_heap_update(Relation rel, ItemPointer tid, HeapTuple tuple)
{
#if PG_VERSION_NUM >= 160000
	TU_UpdateIndexes update_indexes;

	simple_heap_update(rel, tid, tuple, &update_indexes);
	return update_indexes != TU_None;
#else
	simple_heap_update(rel, tid, tuple);
	return !HeapTupleIsHeapOnly(tuple);
#endif
}

static inline IndexScanDesc
al_index_beginscan(Relation rel, Relation index, Snapshot snapshot, int nkeys)
{
#if PG_VERSION_NUM >= 190000
	return index_beginscan(rel, index, snapshot, NULL, nkeys, 0, SO_NONE);
#elif PG_VERSION_NUM >= 180000
	return index_beginscan(rel, index, snapshot, NULL, nkeys, 0);
#else
	return index_beginscan(rel, index, snapshot, nkeys, 0);
#endif
}

/* Delete the tuple; false if that would wait, or if another transaction did it. */
static inline bool
al_heap_try_delete(Relation rel, ItemPointer tid)
{
	TM_FailureData failure;
	CommandId	cid = GetCurrentCommandId(true);

#if PG_VERSION_NUM >= 190000
	return heap_delete(rel, tid, cid, 0, InvalidSnapshot, false, &failure) == TM_Ok;
#else
	return heap_delete(rel, tid, cid, InvalidSnapshot, false, &failure, false) == TM_Ok;
#endif
}

#if PG_VERSION_NUM < 190000
#define PG_SIG_IGN SIG_IGN
#define TupleDescFinalize(desc) ((void) 0)
#endif

static inline bool
al_lock_is_mine(const LOCKTAG *tag, LOCKMODE mode)
{
#if PG_VERSION_NUM >= 170000
	return LockHeldByMe(tag, mode, false);
#else
	return LockHeldByMe(tag, mode);
#endif
}

/* Maximum number of pages in the notification queue */
#if PG_VERSION_NUM >= 170000
#define AL_NOTIFY_QUEUE_PAGES	max_notify_queue_pages
#else
#define AL_NOTIFY_QUEUE_PAGES	(8192 * 128)
#endif

/* Prune a page, whose buffer is pinned and not locked */
static inline void
al_page_prune(Relation rel, Buffer buffer)
{
#if PG_VERSION_NUM >= 190000
	Buffer		map = InvalidBuffer;

	Assert(BufferIsValid(buffer));
	heap_page_prune_opt(rel, buffer, &map, false);
	if (BufferIsValid(map))
		ReleaseBuffer(map);
#else
	Assert(BufferIsValid(buffer));
	heap_page_prune_opt(rel, buffer);
#endif
}

static inline int
al_new_tranche(const char *name)
{
#if PG_VERSION_NUM >= 190000
	return LWLockNewTrancheId(name);
#else
	return LWLockNewTrancheId();
#endif
}

/* Tell this process the name of a tranche; from 19 on, all processes know it. */
static inline void
al_register_tranche(int tranche, const char *name)
{
#if PG_VERSION_NUM < 190000
	LWLockRegisterTranche(tranche, name);
#endif
}

static inline int
al_log_min_messages(void)
{
#if PG_VERSION_NUM >= 190000
	return log_min_messages[MyBackendType];
#else
	return log_min_messages;
#endif
}

static inline void
al_set_log_min_messages(int level)
{
#if PG_VERSION_NUM >= 190000
	log_min_messages[MyBackendType] = level;
#else
	log_min_messages = level;
#endif
}

/*
 * Are there synchronous standbys to wait for?  The answer is certain only under SyncRepLock.  The
 * field was a bool before the minor releases of May 2025.  Since then it has two flags; the first
 * says whether the second is valid.  The server may be older or newer than our headers.
 */
static inline bool
al_standbys_wanted(void)
{
	static int	version = 0;
	uint8		status;
	bool		has_flags;

#ifdef SYNC_STANDBY_DEFINED
	status = *(volatile uint8 *) &WalSndCtl->sync_standbys_status;
#else
	status = *(volatile uint8 *) &WalSndCtl->sync_standbys_defined;
#endif
	if (version == 0)
		version = (int) strtol(GetConfigOption("server_version_num", false, false), NULL, 10);
	has_flags = version >= 180000 || version % 10000 >= 13 ||
		(version >= 160000 && version % 10000 >= (version >= 170000 ? 5 : 9));
	if (!has_flags)
		return status != 0;
	if ((status & 1) == 0)
		return SyncRepStandbyNames && SyncRepStandbyNames[0] != '\0';
	return (status & 2) != 0;
}

static inline bool
al_may_execute(Oid function, Oid role)
{
#if PG_VERSION_NUM >= 160000
	return object_aclcheck(ProcedureRelationId, function, role,
						   ACL_EXECUTE) == ACLCHECK_OK;
#else
	return pg_proc_aclcheck(function, role, ACL_EXECUTE) == ACLCHECK_OK;
#endif
}

/* Has this transaction created the table, or replaced storage that a rollback would bring back? */
static inline bool
al_has_new_storage(Relation rel)
{
#if PG_VERSION_NUM >= 160000
	SubTransactionId first = rel->rd_firstRelfilelocatorSubid;
#else
	SubTransactionId first = rel->rd_firstRelfilenodeSubid;
#endif

	return rel->rd_createSubid != InvalidSubTransactionId ||
		first != InvalidSubTransactionId;
}

static inline struct config_generic **
al_all_settings(int *count)
{
#if PG_VERSION_NUM >= 160000
	return get_guc_variables(count);
#else
	*count = GetNumConfigOptions();
	return get_guc_variables();
#endif
}

static inline bool
al_is_table_owner(Oid relid)
{
#if PG_VERSION_NUM >= 160000
	return object_ownercheck(RelationRelationId, relid, GetUserId());
#else
	return pg_class_ownercheck(relid, GetUserId());
#endif
}

/*
 * The process that runs a transaction, or NULL.  A prepared transaction keeps the virtual id of
 * the backend that prepared it, which may run another one by now.
 */
static inline PGPROC *
al_vxid_proc(VirtualTransactionId vxid)
{
	PGPROC	   *proc;

#if PG_VERSION_NUM >= 170000
	if (vxid.procNumber == INVALID_PROC_NUMBER)
		return NULL;
	proc = ProcNumberGetProc(vxid.procNumber);
	if (proc == NULL || proc->vxid.lxid != vxid.localTransactionId)
		return NULL;
#else
	if (vxid.backendId == InvalidBackendId)
		return NULL;
	proc = BackendIdGetProc(vxid.backendId);
	if (proc == NULL || proc->lxid != vxid.localTransactionId)
		return NULL;
#endif
	return proc;
}

static inline PgBackendStatus *
al_backend_entries(void)
{
	Assert(MyBEEntry != NULL);
#if PG_VERSION_NUM >= 170000
	return MyBEEntry - MyProcNumber;
#else
	return MyBEEntry - (MyBackendId - 1);
#endif
}

/*
 * When the server became writable, as far as a process without our shared memory knows.  Before
 * 17 never too early and rarely more than a little late.  From 17 on too early on a promoted
 * standby, but there, only a process that has no claim calls this.
 */
static inline TimestampTz
al_writable_since(void)
{
#if PG_VERSION_NUM >= 170000
	return PgStartTime;
#else
	return al_backend_entries()[MaxBackends + WalWriterProcess].st_proc_start_timestamp;
#endif
}

/* libpq/libpq.h declares this, but needs headers that are often not installed. */
extern bool pq_check_connection(void);

static inline int
al_my_proc_number(void)
{
	Assert(MyProc != NULL);
#if PG_VERSION_NUM >= 170000
	return MyProcNumber;
#else
	return MyProc->pgprocno;
#endif
}

static inline uint32
al_wait_event(void)
{
#if PG_VERSION_NUM >= 170000
	static uint32 event = 0;

	if (event == 0)
		event = WaitEventExtensionNew("AtomicLock");
	return event;
#else
	return PG_WAIT_EXTENSION;
#endif
}

/* The wait event of the sweep's launcher and workers while they rest */
static inline uint32
al_sweeper_wait_event(void)
{
#if PG_VERSION_NUM >= 170000
	static uint32 event = 0;

	if (event == 0)
		event = WaitEventExtensionNew("AtomicLockSweeper");
	return event;
#else
	return PG_WAIT_EXTENSION;
#endif
}

/* DROP DATABASE and similar commands may terminate a worker with this flag. */
#ifdef BGWORKER_INTERRUPTIBLE
#define AL_BGWORKER_INTERRUPTIBLE BGWORKER_INTERRUPTIBLE
#else
#define AL_BGWORKER_INTERRUPTIBLE 0
#endif

#if PG_VERSION_NUM >= 190000
static inline void
al_init_segment(void *memory, void *init)
{
	((void (*) (void *)) init) (memory);
}
#endif

/* A dynamic segment shared by all sessions; NULL without AL_HAS_DSM_REGISTRY */
static inline void *
al_named_dsm_segment(const char *name, Size size, void (*init) (void *memory))
{
#if PG_VERSION_NUM >= 190000
	bool		found;

	return GetNamedDSMSegment(name, size, al_init_segment, &found, (void *) init);
#elif PG_VERSION_NUM >= 170000
	bool		found;

	return GetNamedDSMSegment(name, size, init, &found);
#else
	return NULL;
#endif
}

#endif							/* AL_BASE_COMPAT_H */
