"""Errors of the package: a class for each SQLSTATE of the extension.

No message has an owner.  Errors of PostgreSQL and of the connection that are not of the
extension, such as 57014 (cancelled) and 22023 (a wrong argument), are those of psycopg.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import psycopg


class LockError(Exception):
    """The base class of the package's errors"""

    sqlstate: str | None = None
    key: str | None = None
    detail: str | None = None
    hint: str | None = None

    def __init__(self, message: str = '', **what: Any):
        super().__init__(message)
        self.__dict__.update(what)


class LockHeld(LockError):
    """Another owner has the lock, or comes first"""

    sqlstate = '55P03'
    status: str = 'held'  # pending: an unfinished transaction has it; timeout: the wait ran out
    holder: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    mode: str | None = None
    holders: int = 0  # how many, where they were counted
    max_holders: int = 0


class LockDeadlock(LockError):
    """To wait would close a cycle of owners.  Release what you hold, and begin again"""

    sqlstate = '40P01'


class LockLost(LockError):
    """The owner does not hold the lock, or not any more.  `reason` says in a word what has become of it"""

    reason: str = 'lost'
    by: str | None = None  # the role that ended it by force
    why: str | None = None
    at: str | None = None


class LockNotFound(LockLost):
    """The lock is free; this owner may have lost it long ago"""

    sqlstate, reason = 'LK002', 'not_found'


class LockNotOwner(LockLost):
    """Another owner has it"""

    sqlstate, reason = 'LK003', 'not_owner'


class LockReleased(LockLost):
    """This owner released it before"""

    sqlstate, reason = 'LK004', 'already_released'


class LockExpired(LockLost):
    """The lease ran out; from `assert_` and guards: the owner has the lock by another grant"""

    sqlstate, reason = 'LK005', 'expired'


class LockNotHeld(LockLost):
    """A guard, or `assert_`, found that the owner does not hold it"""

    sqlstate, reason = 'LK006', 'not_held'


class LockForced(LockLost):
    """An administrator ended it: `by` whom, `at` what time, and `why`"""

    sqlstate, reason = 'LK009', 'forced'


class LockAlreadyHeld(LockError):
    """The owner has it already, and atomic_lock.on_reacquire is "error\""""

    sqlstate = 'LK007'


class LockLifetimeExceeded(LockError):
    """max_lifetime allows no later end"""

    sqlstate = 'LK008'


class LockElsewhere(LockError):
    """The key belongs to a partition that another server has"""

    sqlstate = 'LK010'


class LockChanged(LockError):
    """The grant that an administrator named does not hold the key any more"""

    sqlstate = 'LK011'


class LockStale(LockError):
    """lock_fetch with `expect`: the row has other values.  `detail` names the columns"""

    sqlstate = 'LK012'


class LockDenied(LockError):
    """A policy reserves the key for other roles, or the role has no access"""

    sqlstate = '42501'


class LockQuota(LockError):
    """The role holds as many keys, or has as many places in line, as it may"""

    sqlstate = '53400'


class ExtensionError(LockError):
    """The extension is missing in the database, or older than this package, or its library is of another version"""

    sqlstate = '55000'


def _leaves(cls: type[LockError]) -> list[type[LockError]]:
    return [cls] + [leaf for sub in cls.__subclasses__() for leaf in _leaves(sub)]


CLASSES: dict[str | None, type[LockError]] = {cls.sqlstate: cls for cls in _leaves(LockError) if cls.sqlstate}
LOST = {cls.reason: cls for cls in CLASSES.values() if issubclass(cls, LockLost)}
STATUS = {'held_by_owner': LockAlreadyHeld, 'lifetime_exceeded': LockLifetimeExceeded, 'deadlock': LockDeadlock}
FORCED = re.compile(r'Role "(?P<by>.*?)" ended the lease by \w+ at (?P<at>.*?), for the reason "(?P<why>.*)"\.', re.DOTALL)


def translate(error: psycopg.Error, key: str | None = None) -> Exception:
    """The package's error for psycopg's, or that error itself, without frames that have the owner in a variable

    Without a key, the error may be that of any statement.  Then it is ours only if its SQLSTATE is one of the extension's own.
    """
    cls = CLASSES.get(error.sqlstate)
    if cls is None or key is None and not str(error.sqlstate).startswith('LK'):
        return error.with_traceback(None)
    what = {'key': key, 'detail': error.diag.message_detail, 'hint': error.diag.message_hint}
    if cls is LockForced and (match := FORCED.search(what['detail'] or '')):
        what |= match.groupdict()
    return cls(error.diag.message_primary or str(error), **what)


def refused(key: str, answer: Any) -> LockError:
    """The error of a refused acquire"""
    if answer.status in STATUS:
        return STATUS[answer.status](f'lock "{key}": {answer.status}', key=key)
    by = answer.holder or 'an unfinished transaction' if answer.mode or answer.status == 'pending' else answer.holder
    others = f' and {answer.holders - 1} other{"s" if answer.holders > 2 else ""}' if answer.holders > 1 and by else ''
    return LockHeld(
        f'lock "{key}" is held by {by}{others}' if by else f'lock "{key}" is held, or closed for a while',
        key=key, status=answer.status, holder=answer.holder, since=answer.since, until=answer.until,
        mode=answer.mode, holders=answer.holders, max_holders=answer.max_holders)


def may_pass(error: psycopg.Error) -> bool:
    """Whether the answer was lost, or a failover is the reason: the call may be repeated with the same owner"""
    state = error.sqlstate
    if state is None:
        # A pool that gets no connection has been patient itself.
        return (isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
                and type(error).__module__.partition('.')[0] == 'psycopg')
    return state.startswith(('08', '57P')) or state == '25006'
