/*-------------------------------------------------------------------------
 *
 * report.c
 *		Raising refusals as errors.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: this file turns the outcomes of verbs into errors, so that all functions use the
 * same words.  A message names the key and the holder's label, both with control characters
 * escaped, and never an owner.
 *
 * A refusal is an answer, not a fault, and a busy key causes many.  So refusals stay
 * out of the server log unless log_min_messages is below "warning".
 *
 * A grant in doubt (claim/durability.c) is reported after its commit, where no error may be
 * raised.  So this process raises a WARNING, finishes the commit and then ends.  Our hook
 * makes the message FATAL for the client and the log.  Without the hook, the client would
 * get the warning and lose the connection.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "tcop/tcopprot.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/clock.h"
#include "base/compat.h"
#include "base/errors.h"
#include "base/owner.h"
#include "base/policy.h"
#include "base/settings.h"
#include "base/str.h"
#include "claim/holding.h"
#include "lease/report.h"
#include "lease/state.h"
#include "table/audit.h"
#include "table/history.h"

static emit_log_hook_type previous_emit_log_hook = NULL;
static bool in_doubt = false;	/* this process ends because of a grant in doubt */
static int	doubt_log_level;	/* log_min_messages at that time */

/*
 * emit_log_hook: keep our refusals out of the server log.  Make the report of a doubt FATAL, and
 * keep the message that follows, which blames an administrator, out of the log.
 */
static void
filter_messages(ErrorData *edata)
{
	if (in_doubt && edata->sqlerrcode == ERRCODE_TRANSACTION_RESOLUTION_UNKNOWN)
	{
		edata->elevel = FATAL;
		edata->output_to_server = doubt_log_level <= FATAL;
		edata->output_to_client = MyProcPort != NULL || whereToSendOutput == DestRemote;
	}
	else if (in_doubt && edata->elevel == FATAL &&
			 edata->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN)
		edata->output_to_server = false;
	if (edata->elevel == ERROR && edata->output_to_client &&
		al_log_min_messages() >= WARNING &&
		edata->domain && strcmp(edata->domain, TEXTDOMAIN) == 0 &&
		(edata->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ||
		 ERRCODE_IS_LOCK_CLASS(edata->sqlerrcode)))
		edata->output_to_server = false;
	if (previous_emit_log_hook)
		previous_emit_log_hook(edata);
}

void
al_report_init(void)
{
	previous_emit_log_hook = emit_log_hook;
	emit_log_hook = filter_messages;
}

/* End the connection without reporting success: a grant may be on this server only */
void
al_report_doubt(void)
{
	in_doubt = true;
	doubt_log_level = al_log_min_messages();
	al_set_log_min_messages(WARNING);	/* or the hook may not be called */
	ereport(WARNING,
			(al_errcode(ERRCODE_TRANSACTION_RESOLUTION_UNKNOWN),
			 errmsg("terminating connection because a granted lock might not be on a synchronous standby"),
			 errdetail("The transaction has committed locally, but the wait for synchronous replication ended before a standby confirmed it."),
			 errhint("Connect again and acquire the lock with the same owner: the status is \"reacquired\" if the lock is still held.")));
	al_set_log_min_messages(doubt_log_level);
	whereToSendOutput = DestNone;
	ProcDiePending = true;
	InterruptPending = true;
}

static char *
show_time(TimestampTz time)
{
	return pstrdup(timestamptz_to_str(time));	/* timestamptz_to_str() reuses its buffer */
}

static char *
show_text(text *value)
{
	return al_display(al_string(value));
}

/* The end of a holding, to follow "held" */
static char *
show_end(const AlHolding *holding)
{
	if (holding->lifetime == AL_TRANSACTION)
		return psprintf("until the transaction of process %d ends", holding->pid);
	if (holding->lifetime == AL_LEASE)
		return psprintf("until %s", show_time(holding->expires_at));
	if (holding->expires_at == DT_NOEND)
		return psprintf("until the session of process %d ends", holding->pid);
	return psprintf("until %s, or until the session of process %d ends",
					show_time(holding->expires_at), holding->pid);
}

static char *
show_span(const AlHolding *holding)
{
	return psprintf("The lock is held in %s mode from %s %s.",
					al_is_shared(holding) ? "shared" : "exclusive",
					show_time(holding->acquired_at), show_end(holding));
}

/* The holders of a key, to follow "lock ... is" */
static char *
show_holders(const AlResult *result)
{
	char	   *holder = show_text(result->holding.holder);

	if (result->others <= 0)
		return psprintf("held by %s", holder);
	if (result->others >= AL_MOST_COUNTED)
		return psprintf("held by %s and at least %d others", holder, AL_MOST_COUNTED);
	return psprintf("held by %s and %d %s", holder, result->others,
					result->others == 1 ? "other" : "others");
}

/* How many seats are taken, to follow "lock ... is" */
static char *
show_full(const AlResult *result)
{
	bool		is_least = result->others + 1 >= AL_MOST_COUNTED && result->max_holders < AL_MOST_COUNTED;

	return psprintf("held by %s%d %s, of at most %d", is_least ? "at least " : "",
					result->others + 1, result->others == 0 ? "owner" : "owners",
					result->max_holders);
}

/* The obstacle of an acquire, to follow "lock ... is" */
static char *
obstacle_message(const AlResult *result)
{
	switch (al_refusal(result))
	{
		case AL_CLAIMED:
			return "held by an unfinished transaction";
		case AL_QUEUED:
			return psprintf(result->kept_until != 0 ? "offered to %s" :
							"about to go to %s, who is waiting for it",
							al_display(al_cstring(result->first)));
		case AL_CLOSED:
			return psprintf(result->holding.released_at != 0 ? "closed after %s released it" :
							"closed after the lease of %s expired",
							show_text(result->holding.holder));
		default:
			return result->is_full ? show_full(result) : show_holders(result);
	}
}

/* The holder that an unfinished transaction has written, as a further sentence; or "" */
static char *
show_claimant(const AlResult *result)
{
	if (result->holding.holder == NULL)
		return "";
	return psprintf("  If it commits, %s has held it since %s.", show_text(result->holding.holder),
					show_time(result->holding.acquired_at));
}

/* The policy whose min_hold keeps a key closed, as a further sentence; or "" */
static char *
show_min_hold(const AlHolding *holding)
{
	const AlPolicy *policy = al_policy_for(holding->key, AL_MIN_HOLD);

	if (policy == NULL || al_closed_until(holding) !=
		al_add_duration(holding->acquired_at, policy->parts[AL_MIN_HOLD]))
		return "";
	return psprintf("  The policy for prefix \"%s\" sets min_hold, counted from when the lock was acquired.",
					al_display(policy->prefix));
}

static char *
obstacle_detail(const AlResult *result)
{
	switch (al_refusal(result))
	{
		case AL_CLAIMED:
			if (result->is_full && result->others + 1 >= result->max_holders)
				return psprintf("%d of at most %d owners hold the lock, one of them until its transaction ends.",
								result->others + 1, result->max_holders);
			if (result->is_full)
				return psprintf("%d of at most %d owners hold the lock, and unfinished transactions may have taken the other seats, such as %s.%s",
								result->others + 1, result->max_holders,
								result->blocker == 0 ? "a prepared one" :
								psprintf("that of process %d", result->blocker),
								show_claimant(result));
			return psprintf("%s has acquired, released or extended the lock and has not committed yet.%s",
							result->blocker == 0 ? "A transaction" :
							psprintf("Process %d", result->blocker),
							show_claimant(result));
		case AL_QUEUED:
			if (result->kept_until == 0)
				return "The lock goes to its waiters first.";
			return psprintf("The lock is kept for this place in line until %s.",
							show_time(result->kept_until));
		case AL_CLOSED:
			return psprintf("The lock was held in %s mode from %s on, and is closed until %s.%s",
							al_is_shared(&result->holding) ? "shared" : "exclusive",
							show_time(result->holding.acquired_at),
							show_time(al_closed_until(&result->holding)),
							show_min_hold(&result->holding));
		default:
			if (!result->is_full)
				return show_span(&result->holding);
			return psprintf("The next seat to become free is that of %s, held %s.",
							show_text(result->holding.holder), show_end(&result->holding));
	}
}

/* The statement that ends an offer; a ticket number is unique in the database */
static char *
show_offer_end(const AlResult *result)
{
	return psprintf("DELETE FROM app_lock_queue WHERE ticket = %lld", (long long) result->ticket);
}

static const char *
obstacle_hint(const AlResult *result)
{
	AlOutcome	obstacle = result->outcome;

	if (obstacle == AL_HELD && result->holding.lifetime == AL_TRANSACTION)
		obstacle = AL_CLAIMED;
	switch (obstacle)
	{
		case AL_CLAIMED:
			return "Pass \"wait\" to wait for the lock, or retry after the transaction has ended.";
		case AL_QUEUED:
			if (result->kept_until == 0)
				return "Pass \"wait\" to wait for the lock too, or retry later.";
			return psprintf("Pass \"wait\" to wait for the lock too, retry later, or ask an administrator to use %s.",
							show_offer_end(result));
		case AL_CLOSED:
			if (al_policy_for(result->holding.key, AL_MIN_HOLD) ||
				al_policy_for(result->holding.key, AL_LOCK_DELAY))
				return "Pass \"wait\" to wait for the lock, or retry later.  lock_policy(key) shows what keeps a key closed.";
			return "Pass \"wait\" to wait for the lock, or retry later.  atomic_lock.lock_delay keeps a key closed for a while if its lease was not released.";
		default:
			return "Pass \"wait\" to wait for the lock, retry after it is released or expires, or ask an administrator to use force_release.";
	}
}

static char *
nobody_detail(const AlResult *result)
{
	if (result->is_in_use)
		return "An unfinished transaction holds the lock.";
	if (result->kept_until != 0 && result->ticket != 0)
		return psprintf("Nobody holds the lock.  It is offered to %s until %s.",
						al_display(al_cstring(result->first)), show_time(result->kept_until));
	if (result->kept_until != 0)
		return psprintf("Nobody holds the lock.  It is closed until %s.",
						show_time(result->kept_until));
	return "The lock is free, was swept, or was never acquired.";
}

/* The detail of AL_CHANGED: who holds the key now */
static char *
changed_detail(const AlResult *result)
{
	const AlHolding *holding = &result->holding;

	if (holding->holder == NULL)
		return nobody_detail(result);
	return psprintf("It is now %s, in %s mode from %s %s.", show_holders(result),
					al_is_shared(holding) ? "shared" : "exclusive",
					show_time(holding->acquired_at), show_end(holding));
}

static char *
forced_detail(const AlForcedEnd *forced)
{
	return psprintf("Role \"%s\" ended the lease by %s at %s, for the reason \"%s\".",
					forced->role, forced->action, show_time(forced->at),
					show_text(forced->reason));
}

/* Raise 55P03: a transaction holds the key until it ends */
AL_NORETURN static void
raise_in_transaction(const AlKey *key, int pid)
{
	ereport(ERROR,
			(al_errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("lock \"%s\" is held by an unfinished transaction", al_display(key->name)),
			 pid == AL_ROW_LOCKED ? errdetail("The transaction has locked the row of the lock in table app_lock.") :
			 pid != 0 ? errdetail("Process %d holds the lock until its transaction ends.", pid) :
			 errdetail("A prepared transaction holds the lock."),
			 pid == AL_ROW_LOCKED ? errhint("Retry when that transaction has ended.") :
			 pid != 0 ? errhint("Wait for the transaction, or end it with pg_terminate_backend(%d), which needs pg_signal_backend.", pid) :
			 errhint("Find the transaction in pg_prepared_xacts, and use COMMIT PREPARED or ROLLBACK PREPARED.")));
	pg_unreachable();
}

/* Raise 22023: a holding with the lifetime of a transaction cannot have, for example, a ttl */
void
al_raise_no_lease(const char *what)
{
	ereport(ERROR,
			(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("a lock with lifetime \"transaction\" has no %s", what),
			 errdetail("Such a lock has no row, and ends with its transaction.")));
	pg_unreachable();
}

static char *
show_limit(const AlKey *key, AlPolicyPart part, const char *name)
{
	const AlPolicy *policy = al_policy_for(key->name, part);

	if (policy == NULL)
		return psprintf("atomic_lock.%s", name);
	return psprintf("%s of the policy for prefix \"%s\"", name, al_display(policy->prefix));
}

/* Raise 55P03: another owner holds the key, or comes first */
AL_NORETURN static void
raise_refused(const AlKey *key, const AlResult *result)
{
	char	   *name = al_display(key->name);

	if (result->outcome == AL_TIMEOUT)
		ereport(ERROR,
				(al_errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("timed out waiting for lock \"%s\", which is %s", name,
						obstacle_message(result)),
				 errdetail("The call waited for %lld ms.  %s", (long long) (result->waited / 1000),
						   obstacle_detail(result)),
				 errhint("Retry, or pass a longer \"wait\", up to %s.",
						 show_limit(key, AL_MAX_WAIT, "max_wait"))));
	ereport(ERROR,
			(al_errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("lock \"%s\" is %s", name, obstacle_message(result)),
			 errdetail_internal("%s", obstacle_detail(result)),
			 errhint("%s", obstacle_hint(result))));
	pg_unreachable();
}

/* Raise LK002 to LK005, LK009 or LK011: the owner, or the named grant, does not hold the key */
AL_NORETURN static void
raise_not_held(const AlKey *key, const AlResult *result)
{
	const AlHolding *holding = &result->holding;
	char	   *name = al_display(key->name);

	switch (result->outcome)
	{
		case AL_NOT_FOUND:
			ereport(ERROR,
					(al_errcode(ERRCODE_LOCK_NOT_FOUND),
					 errmsg("lock \"%s\" is not held", name),
					 errdetail_internal("%s", nobody_detail(result)),
					 result->kept_until == 0 || result->ticket == 0 ? 0 :
					 errhint("To end the offer, use %s.  lock_steal takes the lock past the line.",
							 show_offer_end(result))));
			break;

		case AL_NOT_OWNER:
			ereport(ERROR,
					(al_errcode(ERRCODE_LOCK_OWNERSHIP_MISMATCH),
					 errmsg("lock \"%s\" is %s, not by this owner", name,
							show_holders(result)),
					 errdetail_internal("%s", show_span(holding)),
					 errhint("Pass the owner that lock_acquire returned, or ask an administrator to use force_release.")));
			break;

		case AL_ALREADY_RELEASED:
			ereport(ERROR,
					(al_errcode(ERRCODE_LOCK_ALREADY_RELEASED),
					 errmsg("lock \"%s\" has already been released by this owner", name),
					 errdetail("The lock was released at %s.", show_time(holding->released_at))));
			break;

		case AL_EXPIRED:
			ereport(ERROR,
					(al_errcode(ERRCODE_LOCK_EXPIRED),
					 errmsg("the lease of this owner on lock \"%s\" has expired", name),
					 errdetail("The lease expired at %s.", show_time(holding->expires_at)),
					 errhint("Acquire the lock again, and check what others might have changed in the meantime.")));
			break;

		case AL_FORCED:
			ereport(ERROR,
					(al_errcode(ERRCODE_LOCK_FORCED),
					 errmsg("lock \"%s\" was taken from this owner by force", name),
					 al_refusal(result) == AL_NOT_OWNER ?
					 errdetail("%s  The lock is now %s.", forced_detail(result->forced),
							   show_holders(result)) :
					 errdetail_internal("%s", forced_detail(result->forced)),
					 errhint("Acquire the lock again, and check what others might have changed in the meantime.")));
			break;

		case AL_CHANGED:
			ereport(ERROR,
					(al_errcode(ERRCODE_LOCK_CHANGED),
					 errmsg("lock \"%s\" is no longer held by that grant", name),
					 errdetail_internal("%s", changed_detail(result)),
					 errhint("Look at lock_activity again, and pass the fencing token of what is to be ended.")));
			break;

		default:
			break;
	}
	elog(ERROR, "unexpected outcome of a lock operation: %d", (int) result->outcome);
	pg_unreachable();
}

/* Raise the error for a refusal; the result must be a refusal */
void
al_raise(const AlKey *key, const AlResult *result)
{
	const AlHolding *holding = &result->holding;
	char	   *name = al_display(key->name);

	Assert(!al_is_granted(result));
	switch (result->outcome)
	{
		case AL_HELD:
		case AL_CLAIMED:
		case AL_CLOSED:
		case AL_QUEUED:
		case AL_TIMEOUT:
			raise_refused(key, result);
			break;

		case AL_DEADLOCK:
			ereport(ERROR,
					(al_errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
					 errmsg("deadlock detected while waiting for lock \"%s\"", name),
					 errdetail_internal("%s", result->cycle),
					 errhint("Release the locks that you hold, and retry.  There are no deadlocks if everyone acquires locks in the same order.")));
			break;

		case AL_HELD_BY_OWNER:
			ereport(ERROR,
					(al_errcode(ERRCODE_LOCK_DOUBLE_ACQUIRE),
					 errmsg("lock \"%s\" is already held by this owner", name),
					 errdetail("The lock is held in %s mode by %s, from %s %s.",
							   al_is_shared(holding) ? "shared" : "exclusive",
							   show_text(holding->holder),
							   show_time(holding->acquired_at), show_end(holding)),
					 al_on_reacquire == AL_REACQUIRE_ERROR ?
					 errhint("Use lock_extend to keep it longer, lock_convert to change its mode, or set atomic_lock.on_reacquire to \"extend\".") :
					 errhint("Use lock_extend to keep it longer, or lock_convert to change its mode.")));
			break;

		case AL_LIFETIME_EXCEEDED:
			ereport(ERROR,
					(al_errcode(ERRCODE_LOCK_LIFETIME_EXCEEDED),
					 errmsg("the lease on lock \"%s\" cannot be extended any further", name),
					 errdetail("The lease began at %s and ends at %s; %s allows no later end.",
							   show_time(holding->acquired_at), show_time(holding->expires_at),
							   show_limit(key, AL_MAX_LIFETIME, "max_lifetime")),
					 errhint("Release the lock, if it is held, and acquire it in another transaction.")));
			break;

		case AL_IN_TRANSACTION:
			raise_in_transaction(key, result->blocker);
			break;

		case AL_NO_LEASE:
			al_raise_no_lease("ttl");
			break;

		case AL_NOT_FOUND:
		case AL_NOT_OWNER:
		case AL_ALREADY_RELEASED:
		case AL_EXPIRED:
		case AL_FORCED:
		case AL_CHANGED:
			raise_not_held(key, result);
			break;

		case AL_DENIED:
		case AL_ACQUIRED:
		case AL_REACQUIRED:
		case AL_RELEASED:
		case AL_EXTENDED:
			break;
	}
	elog(ERROR, "unexpected outcome of a lock operation: %d", (int) result->outcome);
}

/* Raise LK007: the new owner of a stolen holding already holds the key */
void
al_raise_new_owner(const AlKey *key, const AlResult *result)
{
	ereport(ERROR,
			(al_errcode(ERRCODE_LOCK_DOUBLE_ACQUIRE),
			 errmsg("lock \"%s\" is already held by the new owner", al_display(key->name)),
			 errdetail_internal("%s", show_span(&result->holding)),
			 errhint("To end the other holding, use force_release with its fencing token.")));
	pg_unreachable();
}

/* The detail for an owner that does not hold a key, or not in the mode that it needs */
static char *
missing_detail(const AlResult *result)
{
	const AlHolding *holding = &result->holding;

	switch (result->outcome)
	{
		case AL_NOT_OWNER:
			return show_span(holding);
		case AL_ALREADY_RELEASED:
			return psprintf("This owner released the lock at %s.", show_time(holding->released_at));
		case AL_EXPIRED:
			return psprintf("The lease of this owner expired at %s.",
							show_time(holding->expires_at));
		case AL_FORCED:
			return forced_detail(result->forced);
		case AL_HELD_BY_OWNER:
			return "This owner holds the lock in shared mode, which does not allow writes.";
		default:
			return nobody_detail(result);
	}
}

/* The message for an owner that does not hold a key, to follow "lock ... is" */
static char *
missing_message(const AlResult *result)
{
	if (al_refusal(result) == AL_NOT_OWNER)
		return psprintf("%s, not by this owner", show_holders(result));
	if (result->outcome == AL_HELD_BY_OWNER)
		return "not held in exclusive mode by this owner";
	return "not held by this owner";
}

/*
 * Raise LK006: an owner does not hold a key; LK009: an administrator ended the holding; 55P03: a
 * transaction may hold the key for that owner
 */
void
al_raise_not_held(const AlKey *key, const AlResult *result)
{
	if (result->outcome == AL_IN_TRANSACTION || result->outcome == AL_FORCED)
		al_raise(key, result);
	ereport(ERROR,
			(al_errcode(ERRCODE_LOCK_NOT_HELD),
			 errmsg("lock \"%s\" is %s", al_display(key->name), missing_message(result)),
			 errdetail_internal("%s", missing_detail(result)),
			 errhint("Acquire the lock, and check what others might have changed in the meantime.")));
	pg_unreachable();
}

/*
 * Raise LK005: a fencing token is not that of the owner's grant (result NULL), or the owner
 * does not hold the key; or 55P03, as al_raise_not_held() does
 */
void
al_raise_bad_token(const AlKey *key, int64 token, const AlResult *result)
{
	if (result && result->outcome == AL_IN_TRANSACTION)
		raise_in_transaction(key, result->blocker);
	ereport(ERROR,
			(al_errcode(ERRCODE_LOCK_EXPIRED),
			 errmsg("fencing token %lld is not valid for lock \"%s\"", (long long) token,
					al_display(key->name)),
			 result ? errdetail_internal("%s", missing_detail(result)) :
			 errdetail("This owner holds the lock by a grant with another fencing token."),
			 errhint("Acquire the lock again, and check what others might have changed in the meantime.")));
	pg_unreachable();
}

/* The end of a grant in atomic_lock.fencing_token, as a sentence, as far as it is known */
static char *
former_grant_detail(const AlKey *key, AlString owner_name)
{
	AlOwner		owner;
	const AlForcedEnd *forced;
	ListCell   *cell;

	al_owner_init(&owner, owner_name);
	forced = al_audit_find(key, &owner);
	foreach(cell, al_session_tokens())
	{
		int64		token = *(int64 *) lfirst(cell);
		TimestampTz ended_at;
		char	   *ended_by;

		CHECK_FOR_INTERRUPTS();
		if (forced && forced->fencing_token == token)
			return forced_detail(forced);
		ended_by = al_history_find_end(key, owner_name, token, &ended_at);
		if (ended_by)
			return psprintf("The grant with fencing token %lld ended at %s (%s).",
							(long long) token, show_time(ended_at), ended_by);
	}
	return "The fencing token of this grant is not in atomic_lock.fencing_token.";
}

/*
 * Raise LK005: the owner holds the key by a grant that is not in atomic_lock.fencing_token.
 * "table": the guarded table, or NULL.  The key is NULL if the role may not see it.
 */
void
al_raise_other_grant(const AlKey *key, AlString owner, Relation table)
{
	Assert(key != NULL || table != NULL);
	ereport(ERROR,
			(al_errcode(ERRCODE_LOCK_EXPIRED),
			 key ? errmsg("lock \"%s\" is held by another grant of this owner", al_display(key->name)) :
			 errmsg("the lock that covers a row of table \"%s\" is held by another grant of this owner",
					RelationGetRelationName(table)),
			 key ? errdetail_internal("%s", former_grant_detail(key, owner)) : 0,
			 errhint("Read the locked data again, and set atomic_lock.fencing_token to the token of the new grant."),
			 table ? errtable(table) : 0));
	pg_unreachable();
}

/*
 * Raise LK006: an owner does not hold the key of a guarded row, or only shares it
 * (AL_HELD_BY_OWNER); or 55P03.  "key" is NULL if the role may not see it, "result" without an
 * owner.  With "is_path", the row needs the key's path.
 */
void
al_raise_guard(const AlKey *key, const AlResult *result, Relation table, bool is_path)
{
	char	   *lock = key ? psprintf("lock \"%s\"", al_display(key->name)) :
		psprintf("the lock that covers a row of table \"%s\"", RelationGetRelationName(table));
	bool		is_shared = result && result->outcome == AL_HELD_BY_OWNER;

	if (key && result && result->outcome == AL_IN_TRANSACTION)
		raise_in_transaction(key, result->blocker);
	ereport(ERROR,
			(al_errcode(ERRCODE_LOCK_NOT_HELD),
			 result == NULL ? errmsg("%s is not held by this session", lock) :
			 key == NULL ? errmsg("%s is not held by this owner", lock) :
			 errmsg("%s is %s", lock, missing_message(result)),
			 result == NULL ? errdetail("The setting atomic_lock.owner is empty.") :
			 key == NULL ? 0 :
			 errdetail_internal("%s", missing_detail(result)),
			 is_shared ?
			 errhint("Table \"%s\" is protected.  Use lock_convert to hold the lock in exclusive mode.",
					 RelationGetRelationName(table)) :
			 is_path ?
			 errhint("Table \"%s\" is protected.  Acquire the path of the row with lock_acquire_path, and set atomic_lock.owner to its owner in the transaction.",
					 RelationGetRelationName(table)) :
			 errhint("Table \"%s\" is protected.  Acquire the lock, and set atomic_lock.owner to its owner in the transaction.",
					 RelationGetRelationName(table)),
			 errtable(table)));
	pg_unreachable();
}
