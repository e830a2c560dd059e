/*-------------------------------------------------------------------------
 *
 * errors.h
 *		SQLSTATEs of atomic_lock.
 *
 * Class LK is ours.  Where PostgreSQL has a condition that fits (55P03,
 * 40P01, 22023, 54000 ...) that one is used.
 *
 * IDENTIFICATION
 *		src/base/errors.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef ATOMIC_LOCK_ERRORS_H
#define ATOMIC_LOCK_ERRORS_H

#define ERRCODE_LOCK_NOT_FOUND				MAKE_SQLSTATE('L','K','0','0','2')
#define ERRCODE_LOCK_OWNERSHIP_MISMATCH		MAKE_SQLSTATE('L','K','0','0','3')
#define ERRCODE_LOCK_ALREADY_RELEASED		MAKE_SQLSTATE('L','K','0','0','4')
#define ERRCODE_LOCK_EXPIRED				MAKE_SQLSTATE('L','K','0','0','5')
#define ERRCODE_LOCK_NOT_HELD				MAKE_SQLSTATE('L','K','0','0','6')
#define ERRCODE_LOCK_DOUBLE_ACQUIRE			MAKE_SQLSTATE('L','K','0','0','7')
#define ERRCODE_LOCK_LIFETIME_EXCEEDED		MAKE_SQLSTATE('L','K','0','0','8')

#define ERRCODE_IS_LOCK_CLASS(code) \
	(ERRCODE_TO_CATEGORY(code) == ERRCODE_TO_CATEGORY(ERRCODE_LOCK_NOT_FOUND))

#endif							/* ATOMIC_LOCK_ERRORS_H */
