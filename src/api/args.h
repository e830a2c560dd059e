/*
 * args.h
 *		Arguments of SQL functions, checked.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_API_ARGS_H
#define AL_API_ARGS_H

#include "fmgr.h"
#include "utils/jsonb.h"

#include "atomic_lock.h"
#include "base/path.h"
#include "base/settings.h"

extern void al_raise_null(const char *what);
extern void al_key_arg(FunctionCallInfo fcinfo, int argno, AlKey *key);
extern AlKey *al_keys_arg(FunctionCallInfo fcinfo, int argno, int *count);
extern bool *al_modes_arg(FunctionCallInfo fcinfo, int argno, int keys_argno, const AlKey *keys,
						  int count, bool is_shared);
extern void al_path_arg(FunctionCallInfo fcinfo, int argno, int separator_argno, AlPath *path);
extern AlKey *al_path_keys(const AlPath *path);
extern void al_owner_arg(FunctionCallInfo fcinfo, int argno, AlOwner *owner);
extern void al_new_owner_arg(FunctionCallInfo fcinfo, int argno, AlOwner *owner);
extern void al_owner_arg_or_new(FunctionCallInfo fcinfo, int argno, AlOwner *owner);
extern int64 al_ttl_arg(FunctionCallInfo fcinfo, int argno);
extern int64 al_wait_arg(FunctionCallInfo fcinfo, int argno);
extern AlReacquire al_on_reacquire_arg(FunctionCallInfo fcinfo, int argno);
extern bool al_mode_arg(FunctionCallInfo fcinfo, int argno);
extern int	al_max_holders_arg(FunctionCallInfo fcinfo, int argno, bool is_shared);
extern text *al_word_text(text **kept, const char *word);
extern text *al_mode_text(bool is_shared);
extern AlLifetime al_lifetime_arg(FunctionCallInfo fcinfo, int argno);
extern const char *al_lifetime_name(AlLifetime lifetime);
extern text *al_holder_arg(FunctionCallInfo fcinfo, int argno);
extern text *al_holder_default(void);
extern text *al_reason_arg(FunctionCallInfo fcinfo, int argno);
extern text *al_message_arg(FunctionCallInfo fcinfo, int argno);
extern void al_check_json(Jsonb *json, const char *what);
extern struct varlena *al_meta_arg(FunctionCallInfo fcinfo, int argno);

#endif							/* AL_API_ARGS_H */
