/*
 * errors.h
 *		SQLSTATEs of atomic_lock.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Class LK is ours.  Where a condition of PostgreSQL fits, that one is used.
 */
#ifndef AL_BASE_ERRORS_H
#define AL_BASE_ERRORS_H

/* lease/report.c recognizes our messages by the text domain. */
#undef TEXTDOMAIN
#define TEXTDOMAIN "atomic_lock"

#define ERRCODE_LOCK_NOT_FOUND				MAKE_SQLSTATE('L','K','0','0','2')
#define ERRCODE_LOCK_OWNERSHIP_MISMATCH		MAKE_SQLSTATE('L','K','0','0','3')
#define ERRCODE_LOCK_ALREADY_RELEASED		MAKE_SQLSTATE('L','K','0','0','4')
#define ERRCODE_LOCK_EXPIRED				MAKE_SQLSTATE('L','K','0','0','5')
#define ERRCODE_LOCK_NOT_HELD				MAKE_SQLSTATE('L','K','0','0','6')
#define ERRCODE_LOCK_DOUBLE_ACQUIRE			MAKE_SQLSTATE('L','K','0','0','7')
#define ERRCODE_LOCK_LIFETIME_EXCEEDED		MAKE_SQLSTATE('L','K','0','0','8')
#define ERRCODE_LOCK_FORCED					MAKE_SQLSTATE('L','K','0','0','9')
#define ERRCODE_LOCK_WRONG_PARTITION		MAKE_SQLSTATE('L','K','0','1','0')
#define ERRCODE_LOCK_CHANGED				MAKE_SQLSTATE('L','K','0','1','1')
#define ERRCODE_LOCK_STALE					MAKE_SQLSTATE('L','K','0','1','2')

/* Every message of ours uses this: the statement and the context in the log may contain owners. */
#define al_hide_owners() (errhidestmt(true), errhidecontext(true))

/* Every error of ours uses this in place of errcode(). */
#define al_errcode(sqlstate) (errcode(sqlstate), al_hide_owners())

/*
 * A debug message.  It names a key only where the caller has named that key: a client that sets
 * client_min_messages sees it too, and a guard may hide its key.
 */
#define al_trace(level, ...) \
	ereport(level, (al_hide_owners(), errmsg_internal(__VA_ARGS__)))

#define ERRCODE_IS_LOCK_CLASS(code) \
	(ERRCODE_TO_CATEGORY(code) == ERRCODE_TO_CATEGORY(ERRCODE_LOCK_NOT_FOUND))

#endif							/* AL_BASE_ERRORS_H */
