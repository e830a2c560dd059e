/*-------------------------------------------------------------------------
 *
 * atomic_lock.h
 *		Types, settings and prototypes, grouped by source file.
 *
 * Words, the same in SQL, C and documentation: a lock is a key held by one or
 * more owners; a lease is a holding with an expiry; an owner is the text that
 * proves a holding; a holder is a label for people; a fencing token is a
 * number that rises with every grant of a key; a claim is what an unfinished
 * transaction has on a key.
 *
 * All durations are in microseconds.
 *
 * IDENTIFICATION
 *		src/atomic_lock.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef ATOMIC_LOCK_H
#define ATOMIC_LOCK_H

#include <math.h>

#include "datatype/timestamp.h"
#include "fmgr.h"
#include "nodes/pg_list.h"
#include "storage/block.h"
#include "storage/itemptr.h"
#include "storage/lock.h"
#include "utils/guc.h"
#include "utils/relcache.h"

/* Marks our messages; see lock_report.c */
#undef TEXTDOMAIN
#define TEXTDOMAIN "atomic_lock"

/*
 * Part of each of our ereports: the statement and the context, which the
 * server would log with it, may have owners in them.
 */
#define al_hide_owners() (errhidestmt(true), errhidecontext(true))

#define AL_MAX_KEY_BYTES	1024
#define AL_MAX_OWNER_BYTES	255
#define AL_MAX_HOLDER_BYTES 255
#define AL_MAX_META_BYTES	8192
#define AL_MAX_REASON_BYTES 1024
#define AL_MIN_TTL			INT64CONST(1000)
#define AL_MAX_KEYS			1000	/* of a set */

/* What ends a holding, if nobody does it before */
typedef enum AlLifetime
{
	AL_LEASE,					/* its time */
	AL_SESSION,					/* the session, or its time if it has one */
	AL_TRANSACTION				/* the transaction; has no row */
} AlLifetime;

/* Bytes that are not terminated, such as those of a text datum */
typedef struct AlString
{
	const char *data;
	int			len;
} AlString;

/* A hash of 128 bits, or the secret of one; see lock_hash.c */
typedef struct AlHash
{
	uint64		words[2];
} AlHash;

typedef struct AlKey
{
	AlString	name;
	uint64		hash;			/* what claims are taken on */
	uint64		check;			/* with the hash, what stands for the name */
} AlKey;

typedef struct AlOwner
{
	AlString	name;
	bool		generated;		/* made for this grant, known to nobody else */
	bool		in_index;		/* generated, and yet in the index of owners */
	uint64		hash;			/* finds its waits; part of that of its holdings */
} AlOwner;

/* What makes values of a type parts of keys; see lock_key.c */
typedef struct AlPart
{
	FmgrInfo	output;
	bool		is_plain;
} AlPart;

typedef enum AlReacquire
{
	AL_REACQUIRE_EXTEND,
	AL_REACQUIRE_ERROR
} AlReacquire;

typedef enum AlAcquireDurability
{
	AL_ACQUIRE_FORCED,
	AL_ACQUIRE_SESSION
} AlAcquireDurability;

typedef enum AlReleaseDurability
{
	AL_RELEASE_RELAXED,
	AL_RELEASE_SESSION
} AlReleaseDurability;

/* atomic_lock.c */
extern char *al_owner_setting;
extern double al_default_ttl_ms;
extern double al_max_ttl_ms;
extern double al_max_wait_ms;
extern double al_max_lifetime_ms;
extern double al_lock_delay_ms;
extern double al_released_retention_ms;
extern int	al_on_reacquire;
extern int	al_acquire_durability;
extern int	al_release_durability;
extern double al_sweep_interval_ms;
extern char *al_sweep_databases;
extern int	al_sweep_batch;
extern int	al_max_claims;
extern bool al_enforce_guards;

#define AL_MS_TO_US(ms) ((int64) rint((ms) * 1000.0))

/* sweep_worker.c */
extern bool al_lock_database(Oid database);

/* sweeper.c */
extern void al_sweeper_init(void);
extern bool al_sweep_databases_check_hook(char **newval, void **extra, GucSource source);

/* lock_key.c */
extern AlString al_string(text *datum);
extern AlString al_cstring(const char *cstring);
extern bool al_string_equal(AlString a, AlString b);
extern text *al_string_text(AlString string);
extern int	al_clip_length(AlString string, int size);
extern char *al_display(AlString string);
extern AlString al_check_key(AlString name);
extern int	al_key_compare(const AlKey *a, const AlKey *b);
extern void al_key_arg(FunctionCallInfo fcinfo, int argno, AlKey *key);
extern AlKey *al_keys_arg(FunctionCallInfo fcinfo, int argno, int *count);
extern void al_owner_arg(FunctionCallInfo fcinfo, int argno, AlOwner *owner);
extern void al_owner_arg_or_new(FunctionCallInfo fcinfo, int argno,
								AlOwner *owner);
extern void al_new_owner_arg(FunctionCallInfo fcinfo, int argno, AlOwner *owner);
extern void al_owner_init(AlOwner *owner, AlString name);
extern bool al_owner_equal(AlString a, AlString b);
extern bool al_owner_is_setting(AlString owner);
extern bool al_owner_of_session(AlString *owner);
extern int64 al_ttl_arg(FunctionCallInfo fcinfo, int argno);
extern int64 al_wait_arg(FunctionCallInfo fcinfo, int argno);
extern bool al_mode_arg(FunctionCallInfo fcinfo, int argno);
extern text *al_mode_text(bool is_shared);
extern AlLifetime al_lifetime_arg(FunctionCallInfo fcinfo, int argno);
extern const char *al_lifetime_name(AlLifetime lifetime);
extern text *al_holder_arg(FunctionCallInfo fcinfo, int argno);
extern text *al_holder_default(void);
extern text *al_reason_arg(FunctionCallInfo fcinfo, int argno);
extern struct varlena *al_meta_arg(FunctionCallInfo fcinfo, int argno);
extern void al_part_init(AlPart *part, Oid type);
extern char *al_part_text(AlPart *part, Datum value);
extern void al_owner_assign_hook(const char *newval, void *extra);
extern bool al_owner_check_hook(char **newval, void **extra, GucSource source);

/* lock_hash.c */
extern void al_hash_bytes(const AlHash *secret, AlString string, AlHash *hash);
extern void al_secret_forget(void);
extern uint32 al_secret_version(void);
extern void al_key_init(AlKey *key, AlString name);
extern void al_key_recheck(const AlKey *key);
extern uint64 al_owner_hash(AlString owner);
extern uint64 al_holding_hash(const AlKey *key, const AlOwner *owner);
extern int32 al_owner_index_hash(AlString owner);

/* lock_owner.c; see also lock_table.h */
extern void al_owner_generate(AlOwner *owner, BlockNumber block);
extern bool al_owner_looks_generated(AlString owner);
extern bool al_owner_names_block(const AlOwner *owner, BlockNumber block);

/* lock_catalog.c */
extern void al_catalog_init(void);
extern Relation al_open_app_lock(LOCKMODE lockmode);
extern Oid	al_app_lock_oid(void);
extern Relation al_open_for_writing(const char *function);
extern Relation al_open_now(bool *missing);
extern char *al_schema_name(void);
extern bool al_is_installed(void);
extern Relation al_open_fence(LOCKMODE lockmode);
extern Relation al_open_audit(LOCKMODE lockmode);
extern Datum al_mode_value(bool is_shared);
extern bool al_is_admin(void);
extern bool al_is_monitor(void);

/* lock_claim.c */

/* What a claim on a key is for; see lock_claim.c */
typedef enum AlClaimMode
{
	AL_CLAIM_PIN,				/* to rely on a holding */
	AL_CLAIM_SHARE,				/* to begin or end a shared holding */
	AL_CLAIM_SHARE_EXTEND,
	AL_CLAIM_EXTEND,			/* the exclusive holding */
	AL_CLAIM_TAKE				/* anything else */
} AlClaimMode;

typedef struct AlClaim
{
	uint64		hash;			/* of the key; 0: nothing is claimed */
	uint64		holding;		/* of the shared holding, or 0 */
	AlClaimMode mode;
	bool		is_pin;			/* even if the mode is stronger */
	bool		first;			/* of this key in the transaction */
} AlClaim;

extern void al_claim(AlClaim *claim, const AlKey *key, const AlOwner *owner,
					 AlClaimMode mode);
extern bool al_claim_try(AlClaim *claim, const AlKey *key, const AlOwner *owner,
						 AlClaimMode mode);
extern void al_claim_holding(const AlKey *key, const AlOwner *owner);
extern bool al_claim_may_share(const AlClaim *claim);
extern bool al_claim_is_others(uint64 hash);
extern bool al_claim_is_extended(const AlKey *key, const AlOwner *owner, bool is_shared);
extern void al_claim_drop(const AlClaim *claim);
extern void al_claim_transaction(const AlKey *key, bool is_shared);
extern List *al_claim_transactions(uint64 hash, bool is_exclusive);
extern bool al_claim_upgrade(const AlKey *key);
extern void al_claim_upgrade_end(const AlKey *key);
extern int	al_claim_rival(const AlClaim *claim);
extern List *al_claim_rivals(uint64 hash);

/*
 * What the transaction has pinned: a holding, which nobody else can end before
 * the transaction has.  See lock_pin.c.
 */
typedef struct AlPin
{
	struct AlPin *next;			/* of a key with the same hash */
	int64		fencing_token;
	int32		slot;
	uint64		seen;			/* al_xact_changes() when it was last looked at */
	AlString	key;
	AlString	owner;
} AlPin;

/* lock_hint.c */
extern bool al_hint_get(uint64 key_hash, int32 slot, ItemPointer tid);
extern void al_hint_set(uint64 key_hash, int32 slot, ItemPointer tid);
extern bool al_known_alone(const AlKey *key);
extern void al_set_alone(const AlKey *key, bool is_alone);
extern uint64 al_entries_made(const AlKey *key);
extern void al_entry_made(const AlKey *key);

/* lock_fence.c */
extern int64 al_fence_draw(int count);
extern bool al_fence_secret(AlHash *secret);

/* lock_xact.c */
extern void al_xact_init(void);
extern void al_xact_before_claim(uint64 hash);
extern void al_xact_claimed(uint64 hash, bool is_pin);
extern void al_xact_unclaimed(uint64 hash, bool is_pin);
extern bool al_xact_is_claimed(uint64 hash);
extern bool al_xact_is_changing(uint64 hash);
extern int	al_xact_claims(void);
extern AlPin *al_xact_pins(uint64 hash);
extern void al_xact_pinned(uint64 hash, AlPin *pin, TimestampTz held_until);
extern uint64 al_xact_changes(void);
extern void al_xact_changed(void);
extern void al_xact_written(uint64 hash, int32 slot, ItemPointer row);
extern void al_xact_granted(const AlKey *key, const AlOwner *owner, TimestampTz held_until);
extern void al_xact_before_release(void);
extern void al_xact_released(void);

#endif							/* ATOMIC_LOCK_H */
