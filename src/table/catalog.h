/*
 * catalog.h
 *		Finding and opening the objects of the extension in this database.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_TABLE_CATALOG_H
#define AL_TABLE_CATALOG_H

#include "fmgr.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"

/* The head of an SQL function: first the versions of library and extension are compared */
#define AL_FUNCTION(function) \
	PG_FUNCTION_INFO_V1(function); \
	static Datum checked_##function(PG_FUNCTION_ARGS); \
	Datum \
	function(PG_FUNCTION_ARGS) \
	{ \
		al_check_version(); \
		return checked_##function(fcinfo); \
	} \
	static Datum \
	checked_##function(PG_FUNCTION_ARGS)

extern void al_catalog_init(void);
extern void al_check_version(void);
extern void al_begin_script(void);
extern Oid	al_guard_function(void);
extern Datum al_mode_value(bool is_shared);
extern Relation al_open_app_lock(LOCKMODE lockmode);
extern Relation al_open_policies(LOCKMODE lockmode);
extern Relation al_open_policy_roles(LOCKMODE lockmode);
extern Relation al_open_history(LOCKMODE lockmode);
extern Relation al_open_queue(LOCKMODE lockmode);
extern void al_prevent_writing(const char *function);
extern Relation al_open_for_writing(const char *function);
extern bool al_is_installed(void);
extern Relation al_open_now(bool *missing);
extern Relation al_open_fence(LOCKMODE lockmode);
extern Relation al_open_audit_now(void);
extern Relation al_open_history_now(void);
extern Relation al_open_audit(LOCKMODE lockmode);
extern bool al_is_monitor(void);
extern bool al_may_call(const char *function, const Oid *types, int count);
extern bool al_is_user(void);
extern bool al_is_admin(void);

#endif							/* AL_TABLE_CATALOG_H */
