/*
 * report.h
 *		Refusals in words.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_LEASE_REPORT_H
#define AL_LEASE_REPORT_H

#include "utils/relcache.h"

#include "atomic_lock.h"
#include "base/compat.h"
#include "lease/state.h"

extern void al_report_init(void);
extern void al_report_doubt(void);
AL_NORETURN extern void al_raise(const AlKey *key, const AlResult *result);
AL_NORETURN extern void al_raise_new_owner(const AlKey *key, const AlResult *result);
AL_NORETURN extern void al_raise_no_lease(const char *what);
AL_NORETURN extern void al_raise_not_held(const AlKey *key, const AlResult *result);
AL_NORETURN extern void al_raise_bad_token(const AlKey *key, int64 token,
										   const AlResult *result);
AL_NORETURN extern void al_raise_other_grant(const AlKey *key, AlString owner, Relation table);
AL_NORETURN extern void al_raise_guard(const AlKey *key, const AlResult *result,
									   Relation table, bool is_path);

#endif							/* AL_LEASE_REPORT_H */
