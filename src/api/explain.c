/*-------------------------------------------------------------------------
 *
 * explain.c
 *		lock_explain(): the state of a key in words, and the statement to use.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: a person reads the text, and pastes a statement of it.  So each sentence and each
 * statement has a line of its own.  Keys, labels and names come from anybody.  They cannot
 * forge such a line or sentence: they are quoted, quotes and control characters in them are
 * escaped, and a line has one of them, shortened and near its beginning, so that no terminal of
 * 80 columns wraps the line within it.  Only the statements have the whole key, as a literal,
 * and they name our schema.
 *
 * The text never has an owner.  Labels of others than the first holder or the first in line
 * are for those who may list all holdings, and so are fencing tokens.
 *
 * Locking rules: those of status.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "api/args.h"
#include "api/policy.h"
#include "api/status.h"
#include "base/policy.h"
#include "base/settings.h"
#include "base/str.h"
#include "claim/claimed.h"
#include "claim/holding.h"
#include "lease/state.h"
#include "lease/terms.h"
#include "shmem/session.h"
#include "shmem/waiters.h"
#include "table/catalog.h"
#include "table/events.h"
#include "table/tickets.h"

/* Calls and places in line that are listed, and sharers among those that the look has found */
#define MOST_SHOWN		5

typedef struct Explanation
{
	StringInfoData text;
	AlKeyView	view;
	AlLine		line;
	bool		has_line;		/* there are valid tickets */
	TimestampTz closed_until;	/* DT_NOBEGIN: the key is held or open */
	int			pid;			/* as in AlKeyView, or of the transaction that holds the key, or
								 * our own, if our transaction has claimed it */
	bool		is_monitor;
	bool		is_admitted;	/* no policy excludes the caller */
	bool		may_lock;		/* and it has level "user" */
	const char *schema;			/* of the extension, quoted */
	const char *key;			/* as a literal */
} Explanation;

/* Add a line; the format is a literal */
#define say(x, ...) appendStringInfo(&(x)->text, "\n" __VA_ARGS__)

/* A moment, in whole seconds */
static char *
show_time(TimestampTz time)
{
	return pstrdup(timestamptz_to_str(time - time % USECS_PER_SEC));
}

static char *
show_span(int64 microseconds)
{
	int			seconds = (int) Min(Max(microseconds, 0) / USECS_PER_SEC, PG_INT32_MAX);

	if (seconds >= SECS_PER_DAY)
		return psprintf("%d d %d h", seconds / SECS_PER_DAY, seconds % SECS_PER_DAY / SECS_PER_HOUR);
	if (seconds >= SECS_PER_HOUR)
		return psprintf("%d h %d min", seconds / SECS_PER_HOUR,
						seconds % SECS_PER_HOUR / SECS_PER_MINUTE);
	if (seconds >= SECS_PER_MINUTE)
		return psprintf("%d min %d s", seconds / SECS_PER_MINUTE, seconds % SECS_PER_MINUTE);
	return psprintf("%d s", seconds);
}

static void
say_state(Explanation *x)
{
	const AlKeyView *view = &x->view;
	const char *state;

	if (x->pid >= 0 && view->holders == 0)
		state = "claimed by an unfinished transaction";
	else if (view->shown && !al_is_shared(view->shown))
		state = "held in exclusive mode";
	else if (view->shown)
		state = psprintf("held in shared mode by %s%d %s",
						 view->holders >= AL_MOST_COUNTED ? "at least " : "", view->holders,
						 view->holders == 1 ? "owner" : "owners");
	else if (x->closed_until != DT_NOBEGIN)
		state = psprintf("free, and closed for %s", show_span(x->closed_until - view->now));
	else if (x->has_line && x->line.is_offered)
		state = "free, and offered to the first in line";
	else if (x->has_line || al_waiters_count(&view->key) > 0)
		state = "free, and about to go to the first in line";
	else
		state = "free";
	say(x, "Lock %s is %s.", al_quote(view->key.name), state);
	if (x->closed_until != DT_NOBEGIN)
		say(x, "It opens at %s.", show_time(x->closed_until));
}

/*
 * Describe the process whose unfinished transaction concerns the key, or else the session that
 * holds the key, as far as the caller may see it
 */
static void
say_process(Explanation *x)
{
	const AlHolding *shown = x->view.shown;
	int			pid = x->pid > 0 ? x->pid : shown ? shown->pid : 0;
	char		application[NAMEDATALEN];
	const char *state = pid > 0 ? al_session_show(pid, application) : NULL;

	if (shown && x->view.holders > 0 && shown->lifetime == AL_TRANSACTION && shown->pid == x->pid)
		;						/* say_end() has said it */
	else if (x->pid == 0)
		say(x, "A prepared transaction has it, changes it, or relies on it.");
	else if (x->pid > 0 && x->view.holders > 0)
		say(x, "Process %d changes it, or relies on it, in an unfinished transaction.", pid);
	if (state && state[0] != '\0')
		say(x, "Process %d is %s.", pid, state);
	if (state && application[0] != '\0')
		say(x, "Its application is %s.", al_quote(al_cstring(application)));
}

static void
say_end(Explanation *x, const AlHolding *holding)
{
	const char *what = holding->lifetime == AL_SESSION ? "session" : "transaction";

	if (holding->lifetime != AL_LEASE && holding->pid == 0)
		say(x, "It ends with a prepared transaction.");
	else if (holding->lifetime != AL_LEASE)
		say(x, "It ends with the %s of process %d%s.", what, holding->pid,
			   RecoveryInProgress() ? " of the primary" : "");
	if (holding->expires_at != DT_NOEND)
		say(x, "%s ends at %s, in %s.", holding->lifetime == AL_LEASE ? "The lease" : "Or it",
			   show_time(holding->expires_at), show_span(holding->expires_at - x->view.now));
}

static void
say_holder(Explanation *x)
{
	const AlHolding *holding = x->view.shown;
	char	   *role = al_role_name(holding->role);

	say(x, "%s%s is %s.", x->view.holders == 0 ? "If that commits, the holder" : "The holder",
		   x->view.is_own ? ", which is this session's owner," :
		   x->view.holders > 1 ? " that keeps it longest" : "",
		   holding->holder ? al_quote(al_string(holding->holder)) : "not known");
	if (holding->holder)		/* al_tx_by_others() does not know all */
		say(x, "%s acquired it at %s, %s ago.",
			   role ? psprintf("Role %s", al_quote(al_cstring(role))) : "A dropped role",
			   show_time(holding->acquired_at), show_span(x->view.now - holding->acquired_at));
	if (x->view.holders > 0)
		say_end(x, holding);
	if (x->is_monitor && holding->holder)
		say(x, "Its fencing token is %lld.", (long long) holding->fencing_token);
}

/* In the order of grants */
static int
compare_holdings(const ListCell *a, const ListCell *b)
{
	int64		x = ((const AlHolding *) lfirst(a))->fencing_token;
	int64		y = ((const AlHolding *) lfirst(b))->fencing_token;

	return x < y ? -1 : x > y;
}

/* The other holders of a shared key */
static void
say_sharers(Explanation *x)
{
	int			said = 0;
	ListCell   *cell;

	list_sort(x->view.holdings, compare_holdings);
	foreach(cell, x->view.holdings)
	{
		const AlHolding *holding = lfirst(cell);

		if (holding == x->view.shown || said == MOST_SHOWN)
			continue;
		if (said++ == 0)
			say(x, "These share it, too:");
		if (holding->holder == NULL)
			say(x, "  a transaction of process %d", holding->pid);
		else
			say(x, "  %s, since %s, fencing token %lld",
				   al_quote(al_string(holding->holder)), show_time(holding->acquired_at),
				   (long long) holding->fencing_token);
	}
	if (x->view.holders - 1 > said)
		say(x, "  and others: %s%d", x->view.holders >= AL_MOST_COUNTED ? "at least " : "",
			   x->view.holders - 1 - said);
}

/* The calls and places in line for the key, in the order of their turns */
static void
say_people(Explanation *x)
{
	List	   *tickets = al_tickets_list(x->view.key.name, true, false, MOST_SHOWN);
	int			count;
	int			next = 0;
	int			place = 0;
	AlWaiter   *waiters = al_waiters_list(&count);

	if (count > 1)
		qsort(waiters, count, sizeof(AlWaiter), al_waiter_compare);
	while (place < MOST_SHOWN && (next < count || tickets != NIL))
	{
		const AlWaiter *waiter = next < count ? &waiters[next] : NULL;
		const AlTicket *ticket = tickets != NIL ? linitial(tickets) : NULL;

		if (waiter && !al_string_equal(al_waiter_key(waiter).name, x->view.key.name))
			next++;
		else if (waiter && (ticket == NULL || waiter->is_upgrade || waiter->arrival <= ticket->number))
		{
			next++;
			say(x, "  %d. %s has waited since %s in process %d.", ++place,
				   al_quote(al_cstring(waiter->holder)), show_time(waiter->since), waiter->pid);
		}
		else if (ticket)
		{
			tickets = list_delete_first(tickets);
			say(x, "  %d. %s has had a place since %s.", ++place,
				   al_quote(al_string(ticket->holder)), show_time(ticket->queued_at));
		}
	}
}

static void
say_line(Explanation *x)
{
	int			waiters = RecoveryInProgress() ? -1 : al_waiters_count(&x->view.key);

	if (waiters < 0)
		say(x, "Places in line: %d.  This server does not know about calls that wait.",
			   x->view.queued);
	else if (waiters == 0 && x->view.queued == 0)
		say(x, "Nobody waits for it.");
	else
		say(x, "Calls that wait for it: %d.  Places in line: %d.", waiters, x->view.queued);
	if (x->is_monitor && (waiters > 0 || x->view.queued > 0))
		say_people(x);
	/* Others see the label in the refusals of a key that is free otherwise. */
	if (x->view.shown || !x->has_line ||
		(!x->is_monitor && (x->pid >= 0 || x->closed_until != DT_NOBEGIN)))
		return;
	say(x, "The first place is that of %s.", al_quote(al_string(x->line.first.holder)));
	if (x->line.is_offered)
		say(x, "It has the offer until %s, for %s.", show_time(x->line.until),
			   show_span(x->line.until - x->view.now));
}

/* Add a line with a purpose, and one with the statement, which names an object of our schema */
#define say_statement(x, what, before, object, ...) \
	say(x, "%s\n" before "%s." object, what, (x)->schema, __VA_ARGS__)

/* The statement that ends the transaction, for one that does not end */
static void
say_end_transaction(Explanation *x)
{
	if (x->pid == MyProcPid)
		say(x, "That unfinished transaction is the one of this session.");
	else if (x->pid > 0)
	{
		say(x, "If that transaction does not end, its role or pg_signal_backend can end it:");
		say(x, "SELECT pg_catalog.pg_terminate_backend(%d);", x->pid);
	}
	else
	{
		say(x, "If that transaction does not end, find it, and use ROLLBACK PREPARED:");
		say(x, "SELECT * FROM pg_catalog.pg_prepared_xacts ORDER BY prepared;");
	}
}

/* The statement to take the key, to wait for it, or to ask its holder */
static void
say_request(Explanation *x)
{
	const AlKeyView *view = &x->view;

	if (view->shown == NULL && x->pid < 0 && x->closed_until == DT_NOBEGIN &&
		(!x->has_line || x->line.mine.number == x->line.first.number) &&
		al_waiters_count(&view->key) <= 0)
		say_statement(x, "To take it:", "SELECT * FROM ", "lock_acquire(%s);", x->key);
	else if (view->shown == NULL && x->has_line)
		say_statement(x, "To stand in line:", "SELECT * FROM ", "lock_enqueue(%s);", x->key);
	else if (view->holders > 0 && al_event_is_wanted(&view->key))
		say_statement(x, "To ask for it:", "SELECT ", "lock_ask(%s, 'message');", x->key);
	else
		say_statement(x, "To wait for it:", "SELECT * FROM ", "lock_acquire(%s, wait => NULL);", x->key);
}

/* The statement that ends the holding, the closure or the offer by force */
static void
say_force(Explanation *x)
{
	static const Oid types[] = {TEXTOID, TEXTOID, INT8OID};
	const AlKeyView *view = &x->view;
	bool		has_token = x->is_monitor && view->shown && view->shown->holder;
	bool		is_offer = !view->shown && x->closed_until == DT_NOBEGIN;
	bool		may = is_offer ? al_is_admin() :
		al_may_call("force_release", types, lengthof(types)) && al_terms_may_force(&view->key);
	const char *what = is_offer ? "end the offer" : view->shown == NULL ? "open it" :
		view->holders == 1 ? "end it" : has_token ? "end that one" : "end all of them";

	if (is_offer && !(x->has_line && x->line.is_offered))
		return;
	what = psprintf("%s %s:", may ? "To" : is_offer ? "An administrator can" :
					"Somebody with level supervisor or admin can", what);
	if (is_offer)
		say_statement(x, what, "DELETE FROM ", "app_lock_queue WHERE ticket = %lld;",
					  (long long) x->line.first.number);
	else
		say_statement(x, what, "SELECT ", "force_release(%s, 'reason'%s);", x->key, !has_token ? "" :
					  psprintf(", %lld", (long long) view->shown->fencing_token));
}

static void
say_statements(Explanation *x)
{
	const AlKeyView *view = &x->view;
	bool		is_own = view->is_own && x->may_lock;

	if (RecoveryInProgress())
		say(x, "This server is a standby.  Statements that change the lock work on the primary.");
	if (is_own)
		say_statement(x, "To release it:", "SELECT ", "lock_release(%s);", x->key);
	else if (x->may_lock && x->pid != MyProcPid)
		say_request(x);
	/* force_release() refuses what a transaction holds, and what is not held yet. */
	if (!is_own && (view->holders > 0 ? view->shown->lifetime != AL_TRANSACTION : x->pid < 0))
		say_force(x);
	if (x->pid >= 0)
		say_end_transaction(x);
}

/* lock_explain(key): lines of text */
AL_FUNCTION(atomic_lock_explain)
{
	Relation	rel = al_open_app_lock(AccessShareLock);
	Explanation x = {.closed_until = DT_NOBEGIN, .is_monitor = al_is_monitor()};
	AlKeyView  *view = &x.view;
	AlOwner		owner = {.name = al_cstring(al_owner_setting ? al_owner_setting : "")};

	al_key_arg(fcinfo, 0, &view->key);
	if (!x.is_monitor)
		al_terms_admit(&view->key);
	initStringInfo(&x.text);
	al_key_view(view);
	/* The policies may have changed while it looked, and stay as they are from now on. */
	x.is_admitted = al_terms_is_admitted(&view->key);
	if (view->shown && (view->holders == 0 ||
						(view->pid < 0 && view->shown->lifetime == AL_TRANSACTION)))
		x.pid = view->shown->pid;
	else
		x.pid = view->pid < 0 && al_claimed_has(view->key.hash) ? MyProcPid : view->pid;
	if (view->shown == NULL)
		x.closed_until = al_key_closed_until(rel, &view->key);
	x.has_line = al_tickets_look(&view->key, &owner, &x.line);
	x.may_lock = x.is_admitted && al_is_user();
	x.schema = quote_identifier(get_namespace_name(RelationGetNamespace(rel)));
	x.key = al_literal(view->key.name);
	table_close(rel, AccessShareLock);

	say_state(&x);
	if (view->shown)
		say_holder(&x);
	say_process(&x);
	if (x.is_monitor)
		say_sharers(&x);
	say_line(&x);
	al_policies_explain(&x.text, view->key.name);
	if (!x.is_admitted)
		say(&x, "Prefix %s is reserved for roles, and the current role is not one of them.",
				al_quote(al_policy_for(view->key.name, AL_ROLES)->prefix));
	say_statements(&x);
	PG_RETURN_TEXT_P(cstring_to_text(x.text.data + 1));
}
