/*-------------------------------------------------------------------------
 *
 * init.c
 *		The start of the module in each process.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: the module need not be preloaded; a call of one of its functions loads it.
 * This file registers everything that a session needs, and hands to the lower layers
 * the functions that read our tables for them.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/compat.h"
#include "base/hash.h"
#include "base/policy.h"
#include "base/settings.h"
#include "base/testpoint.h"
#include "claim/tx_holdings.h"
#include "guard/protect.h"
#include "lease/report.h"
#include "lease/session_end.h"
#include "shmem/contention.h"
#include "shmem/hint.h"
#include "shmem/session.h"
#include "shmem/shmem.h"
#include "shmem/sole.h"
#include "shmem/stat.h"
#include "shmem/tickets.h"
#include "shmem/waiters.h"
#include "sweep/launcher.h"
#include "sweep/worker.h"
#include "table/catalog.h"
#include "table/fence.h"
#include "table/policies.h"
#include "xact.h"

AL_MODULE_MAGIC("1.0.0");

PGDLLEXPORT void _PG_init(void);

/* The parts of our shared memory, in this order */
static const AlShmemPart *const shmem_parts[] = {
	&al_hint_part,
	&al_sole_part,
	&al_waiters_part,
	&al_tx_part,
	&al_session_part,
	&al_stat_part,
	&al_contention_part,
	&al_sweeper_part
};

void
_PG_init(void)
{
	al_test_init();
	al_settings_init();
	al_shmem_init(shmem_parts, lengthof(shmem_parts));
	al_hash_init(al_fence_secret);
	al_policy_init(al_policies_read);
	al_catalog_init();
	al_tickets_forget();
	al_report_init();
	al_xact_init();
	al_session_end_init();
	al_protect_init();
	al_launcher_init();
}
