"""Shows that the checker would notice faults that are rare in a run, such as wrong retries. Each
case is a history of a few calls, made by hand, with the expected verdict: nothing, or the kind of
the contradiction."""

import itertools
from datetime import datetime, timezone

from checker import Checker
from clients import History


class Case(History):
    """Calls at given times; each owner is a client of its own"""

    def __init__(self):
        super().__init__()
        self.offset = 0.0
        self.tokens = itertools.count(1)
        self.steps = []

    def call(self, owner, operation, begin, end, outcome='ok', rows=None, **facts):
        self.records.append(dict(
            {'key': 'k', 'owner': owner}, id=next(self.number), client=owner, op=operation, inv=begin, comp=end,
            outcome=outcome, rows=rows, tag=operation.upper(), **facts))
        return self

    def asks(self, owner, begin, end, status='acquired', limit=None, mode='shared', ttl=100, wait=0, lifetime='lease',
             holders=None, max_holders=None, token=None):
        granted = status in ('acquired', 'reacquired')
        return self.call(
            owner, 'acquire', begin, end, 'ok' if granted else 'refused',
            [{'acquired': granted, 'status': status, 'mode': mode, 'key': 'k', 'expires': begin + ttl if granted else None,
              'fencing_token': token or next(self.tokens) if granted else None,
              'since': begin if granted else None, 'holders': holders, 'max_holders': (limit or 0) if max_holders is None else max_holders}],
            mode=mode, lifetime=lifetime, ttl=ttl, wait=wait, limit=limit)

    def loses(self, owner, begin, end, token=1, ttl=100):
        """The acquire succeeds, but the answer is lost"""
        return self.call(owner, 'acquire', begin, end, 'info', mode='shared', lifetime='lease', ttl=ttl, wait=0, limit=None,
                         unseen={'acquired': 't', 'status': 'acquired', 'fencing_token': str(token), 'mode': 'shared',
                                 'expires': str(begin + ttl)})

    def fetches(self, owner, begin, end):
        return self.call(owner, 'fetch', begin, end, rows=[{'value': 1}], mode='exclusive', lifetime='lease', ttl=5, wait=0)

    def releases(self, owner, begin, end):
        return self.call(owner, 'release', begin, end, rows=[{'released': 'released'}])

    def looks(self, begin, end, holders):
        return self.call('looker', 'look', begin, end,
                         rows=[{'locked': holders > 0, 'pending': False, 'mode': 'shared', 'holders': holders or None}])

    def end(self, owner, begin, end, how='commit'):
        return self.call(owner, how, begin, end)

    def enqueues(self, owner, begin, end, ticket, keep=100, offer=50):
        return self.call(owner, 'enqueue', begin, end, mode='exclusive', lifetime='lease', ttl=100, offer=offer, keep=keep,
                         rows=[{'status': 'queued', 'key': 'k', 'mode': 'exclusive', 'ticket': ticket, 'expires': begin + keep}])

    def leaves(self, owner, begin, end, left=True):
        return self.call(owner, 'leave', begin, end, rows=[{'left': left}])

    def lists(self, begin, end, *rows):
        """Rows of lock_queue: ticket, holder, end of the offer"""
        return self.call('looker', 'places', begin, end, rows=[
            {'place': i + 1, 'ticket': ticket, 'holder': holder, 'until': until, 'offer': 50, 'expires': begin + 50}
            for i, (ticket, holder, until) in enumerate(rows)])

    def hears(self, when, ticket, holder, at, until):
        self.events.append((when, 'k', dict(
            {name: datetime.fromtimestamp(moment, timezone.utc).isoformat() for name, moment in (('at', at), ('until', until))},
            event='offered', ticket=ticket, holder=holder)))
        return self

    def writes(self, owner, begin, end):
        """Writes 1 into counter 0"""
        return self.call(owner, 'write', begin, end, params=[1, 0])

    def judged(self):
        records = sorted(self.records, key=lambda r: r['inv'])
        for number, record in enumerate(records):
            record['id'] = number
        self.records = records
        checker = Checker(self, steps=self.steps)
        checker.run()
        journal = [(r['id'], 0) for r in records if r['op'] == 'write']
        checker.counters({0: 1} if journal else {}, journal)
        return {text.split(':')[0] for text in checker.wrong}


def two():
    """a and b have the two seats, until 100"""
    return Case().asks('a', 0, 1, limit=2).asks('b', 1, 2, limit=2)


def relied(how='assert'):
    """a has the only seat until 5, and relies on the lease in an open transaction"""
    case = Case().asks('a', 0, 1, limit=1, ttl=5).end('a', 1, 2, 'begin')
    if how == 'assert':
        case.call('a', 'assert', 2, 3, rows=[{'token': 1}])
    elif how == 'fence':
        case.call('a', 'fence', 2, 3, rows=[{}], params=('k', 1, 'a'))
    elif how == 'again':
        case.asks('a', 2, 3, 'reacquired', limit=1, ttl=3, lifetime='transaction', token=1)
    return case


def ended(client):
    """b's session ends before c is granted the key; b notices only when it disconnects. The
    backend of client was terminated."""
    case = Case().asks('a', 0, 1, limit=2).asks('b', 1, 2, limit=2, lifetime='session')
    case.faults.append((3, 4, 'terminate', [client, 0.1, 'atomic_lock']))
    return case.asks('c', 5, 6, limit=2).end('b', 8, 9, 'disconnect')


def set_back(ttl, moment, is_set=False):
    """a's lease ends by the clock, b gets the key for its transaction, the clock is set back, a writes what b has written"""
    case = Case().asks('a', 0, 1, mode='exclusive', ttl=ttl).end('b', 3, 4, 'begin').asks('b', 5, 6, mode='exclusive', lifetime='transaction') \
        .writes('b', 7, 8).end('b', 9, 10).writes('a', 13, 14)
    case.steps += [(moment, None), (moment + 0.1, -20)]
    if is_set:
        first = case.records[0]
        first.update(op='acquire_all', keys=['j', first.pop('key')], rows=[dict(first['rows'][0], key='j', expires=100), *first['rows']])
    return case


def lined(offer=50, keep=100):
    """a has the key, b and c are in line; then a releases the key"""
    return Case().asks('a', 0, 1, mode='exclusive').enqueues('b', 2, 3, 10, offer=offer, keep=keep).enqueues('c', 4, 5, 11) \
        .releases('a', 6, 7)


CASES = (
    # the order of the line
    ('', lined().hears(7.5, 10, 'b', 6.5, 56.5).asks('b', 8, 9, mode='exclusive')),
    ('', lined().asks('b', 6.5, 9, mode='exclusive')),
    ('line', lined().asks('c', 8, 9, mode='exclusive')),
    ('line', lined().asks('d', 8, 9, mode='shared', ttl=0)),
    ('line', lined().asks('d', 3.5, 9, mode='exclusive', wait=9)),
    ('', lined().asks('d', 2.5, 9, mode='exclusive', wait=9)),
    ('', lined(offer=1).asks('c', 8, 9, mode='exclusive')),
    ('line', lined(offer=1).enqueues('b', 20, 21, 10).asks('c', 8, 9, mode='exclusive', ttl=1)),
    ('', lined(keep=3).asks('c', 8, 9, mode='exclusive')),
    ('', lined().leaves('b', 7, 8).asks('c', 7.5, 9, mode='exclusive')),
    ('line', lined().leaves('b', 9, 10).asks('c', 7.5, 9, mode='exclusive', ttl=0)),
    ('line', lined().leaves('b', 7, 8).asks('d', 7.5, 9, mode='exclusive')),
    ('', lined().end('b', 7, 8, 'begin').leaves('b', 8, 9).end('b', 9, 10).asks('c', 8.5, 12, mode='exclusive')),
    ('', lined().end('b', 7, 8, 'begin').leaves('b', 8, 9).end('b', 9, 10, 'rollback')
     .lists(11, 12, (10, 'b', None), (11, 'c', None))),
    ('', lined(keep=3).enqueues('b', 4.9, 7.5, 10).asks('c', 7, 8, mode='exclusive', ttl=0)),
    ('line', lined(keep=3).enqueues('b', 4.5, 4.8, 10).asks('c', 7, 8, mode='exclusive', ttl=0)),
    # offers
    ('offer', lined().hears(7.5, 10, 'b', 6.5, 56.5).asks('c', 8, 9, mode='exclusive', ttl=0)),
    ('offer', lined().hears(7.5, 10, 'b', 6.5, 56.5).hears(8, 11, 'c', 7.9, 57.9)),
    ('offer', lined().hears(7.5, 10, 'b', 6.5, 56.5).hears(60, 10, 'b', 59.5, 99)),
    ('', lined().hears(7.5, 10, 'b', 6.5, 56.5).call('t', 'steal', 8, 9, mode='exclusive', lifetime='lease', ttl=1, rows=[
        {'acquired': True, 'status': 'acquired', 'mode': 'exclusive', 'key': 'k', 'expires': 9.5, 'fencing_token': 99}])
     .hears(10, 10, 'b', 9.6, 12)),
    ('', lined(offer=1).hears(7.5, 10, 'b', 6.5, 7.5).hears(8, 11, 'c', 7.9, 57.9)),
    ('', lined().hears(7.5, 10, 'b', 6.5, 56.5).leaves('b', 7.6, 8).hears(8, 11, 'c', 7.9, 57.9)),
    ('', lined().hears(9.5, 10, 'b', 6.5, 56.5).asks('b', 7.5, 7.6, mode='exclusive').releases('b', 7.7, 7.8).hears(9.5, 11, 'c', 7.75, 57.75)),
    ('', lined().hears(7.5, 10, 'b', 6.5, 56.5).call('t', 'steal', 8, 9, mode='exclusive', lifetime='lease', ttl=9, rows=[
        {'acquired': True, 'status': 'acquired', 'mode': 'exclusive', 'key': 'k', 'expires': 17, 'fencing_token': 99}])),
    ('offer', lined().lists(7.5, 8, (10, 'b', 56.5), (11, 'c', None)).asks('d', 9, 10, mode='exclusive', ttl=0)),
    ('', lined().lists(7.5, 9.5, (10, 'b', 56.5), (11, 'c', None)).asks('b', 7, 8, mode='exclusive').releases('b', 8.1, 8.2)
     .hears(9, 11, 'c', 8.15, 58.15).asks('c', 9.1, 9.2, mode='exclusive')),
    # lost tickets
    ('place', lined().enqueues('b', 20, 21, 12)),
    ('', lined(offer=1).enqueues('b', 20, 21, 12)),
    ('place', lined().leaves('b', 20, 21, False)),
    ('', lined(keep=3).leaves('b', 20, 21, False)),
    ('place', lined().lists(8, 9, (11, 'c', None))),
    ('place', lined().lists(8, 9, (11, 'c', None), (10, 'b', None))),
    ('', lined().lists(8, 9, (10, 'b', None), (11, 'c', None)).asks('b', 9, 10, mode='exclusive').lists(9.5, 11, (11, 'c', None))),
    ('place', Case().leaves('b', 1, 2)),
    # refusals because of a line
    ('', lined().asks('d', 8, 9, 'held', mode='exclusive')),
    ('', lined().leaves('b', 7.1, 8.1).asks('c', 8, 9, 'held', mode='exclusive', holders=0)),
    ('cause', lined().leaves('b', 7.1, 7.2).asks('c', 8, 9, 'held', mode='exclusive', holders=0)),
    ('cause', Case().enqueues('b', 2, 3, 10)),
    ('cause', lined().leaves('b', 7, 8).leaves('c', 7, 8).asks('d', 9, 10, 'held', mode='exclusive')),
    # max_holders
    ('', two()),
    ('limits', two().asks('c', 3, 4, limit=2)),
    ('limits', two().asks('c', 3, 4, limit=1)),
    ('', two().asks('c', 3, 4, limit=3).asks('d', 5, 6)),
    ('limits', two().asks('c', 3, 4, limit=3).asks('d', 5, 6).asks('e', 7, 8, limit=4)),
    ('', two().asks('c', 3, 4, limit=3).asks('d', 5, 6).asks('e', 7, 8, limit=5)),
    ('exclusion', two().asks('c', 3, 4, mode='exclusive')),
    ('limits', Case().asks('a', 0, 1, mode='exclusive').asks('b', 2, 3, limit=1)),
    # a fetch does not change the mode of a lease that the owner has
    ('', Case().asks('a', 0, 1).asks('b', 1, 2).fetches('a', 3, 4)),
    ('exclusion', Case().asks('a', 0, 1, ttl=2).asks('b', 1, 2).fetches('a', 3, 4)),
    # the grant may have come before or after the release or expiry
    ('', two().releases('b', 5, 6).asks('c', 3, 7, limit=2)),
    ('', two().releases('b', 5, 6).asks('c', 5.5, 7, limit=2)),
    ('limits', two().releases('b', 5, 6).asks('c', 3, 4, limit=2)),
    ('', Case().asks('a', 0, 1, limit=2, ttl=3).asks('b', 1, 2, limit=2).asks('c', 2.5, 4, limit=2)),
    ('limits', Case().asks('a', 0, 1, limit=2, ttl=5).asks('b', 1, 2, limit=2).asks('c', 2.5, 4, limit=2)),
    # overlapping calls; one grant must have been the last
    ('limits', Case().asks('a', 0, 5, limit=2).asks('b', 1, 5, limit=2).asks('c', 2, 5, limit=2)),
    ('limits', Case().asks('a', 0, 5, limit=1).asks('b', 1, 5, limit=2).asks('c', 2, 5, limit=2)),
    ('', Case().asks('a', 0, 5, limit=1).asks('b', 1, 5, limit=2).asks('c', 2, 5, limit=3)),
    ('limits', Case().asks('a', 0, 5, limit=1).asks('b', 1, 5, limit=1)),
    ('', Case().asks('a', 0, 5, limit=1).asks('b', 1, 5)),
    # reacquired or extended: the same seat
    ('', two().asks('b', 3, 4, 'reacquired', limit=1, token=2).asks('a', 5, 6, 'reacquired', limit=2, token=1)),
    ('limits', two().asks('b', 3, 4, 'reacquired', limit=2, token=2).asks('c', 5, 6, limit=2)),
    ('limits', Case().asks('a', 0, 1, limit=1, ttl=10)
     .call('a', 'extend', 2, 3, rows=[{'extended': 50.0}], ttl=48).asks('b', 20, 21, limit=1)),
    ('', Case().asks('a', 0, 1, limit=1, ttl=10)
     .call('a', 'extend', 2, 3, rows=[{'extended': 50.0}], ttl=48).asks('b', 51, 52, limit=1)),
    # transactions
    ('', Case().end('a', 0, 1, 'begin').asks('a', 1, 2, limit=1).end('a', 3, 4, 'rollback').asks('b', 3.5, 5, limit=1)),
    ('limits', Case().end('a', 0, 1, 'begin').asks('a', 1, 2, limit=1).end('a', 6, 7, 'rollback').asks('b', 3.5, 5, limit=1)),
    ('', Case().end('a', 0, 1, 'begin').asks('a', 1, 2, limit=1, lifetime='transaction').end('a', 6, 7)
     .asks('b', 8, 9, limit=1)),
    ('limits', Case().end('a', 0, 1, 'begin').asks('a', 1, 2, limit=1, lifetime='transaction').end('a', 6, 7)
     .asks('b', 3, 4, limit=1)),
    # a transaction relies on the lease after its expiry
    ('', relied().end('a', 10, 11).asks('b', 12, 13, limit=1)),
    ('', relied().end('a', 10, 11).asks('b', 8, 13, limit=1)),
    ('limits', relied().end('a', 10, 11).asks('b', 8, 9, limit=1)),
    ('exclusion', relied().end('a', 10, 11).asks('b', 8, 9, mode='exclusive')),
    ('', relied().end('a', 10, 11).asks('b', 8, 9, limit=2)),
    ('', relied().end('a', 10, 11).asks('b', 8, 9, 'pending', limit=1, holders=0)),
    ('cause', relied().end('a', 10, 11).asks('b', 12, 13, 'pending', limit=1, holders=0)),
    # the same with a lost answer to the commit: the transaction ended at an unknown moment
    ('', relied('fence').call('a', 'commit', 10, 11, 'info').asks('b', 8, 9, 'pending', limit=1, holders=0)),
    ('', relied('fence').call('a', 'commit', 10, 11, 'info').asks('b', 8, 9, limit=1)),
    ('cause', relied('fence').call('a', 'commit', 10, 11, 'info').asks('b', 12, 13, 'pending', limit=1, holders=0)),
    ('limits', relied('again').end('a', 10, 11, 'rollback').asks('b', 8, 9, limit=1)),
    ('limits', relied('fence').end('a', 10, 11, 'rollback').asks('b', 8, 9, limit=1)),
    ('', relied('').end('a', 10, 11).asks('b', 8, 9, limit=1)),
    # so does a call that finds its lease forced
    ('', Case().asks('a', 0, 1).call('a', 'assert', 2, 6, 'refused', sqlstate='LK009').call('admin', 'force', 3, 4)
     .asks('b', 5, 5.5, 'pending')),
    ('cause', Case().asks('a', 0, 1).call('a', 'assert', 2, 6, 'refused', sqlstate='LK009').call('admin', 'force', 3, 4)
     .asks('b', 7, 8, 'pending')),
    # the lock of a session may have become a lease by an acquire whose answer was lost
    ('', Case().asks('a', 0, 1, lifetime='session').loses('a', 2, 3, ttl=1).end('a', 4, 5, 'connect').asks('b', 50, 51, 'held', holders=1)),
    ('cause', Case().asks('a', 0, 1, lifetime='session').loses('a', 2, 3, ttl=1).end('a', 4, 5, 'connect').asks('b', 110, 111, 'held')),
    # the number of holders in an answer
    ('', two().asks('c', 3, 4, limit=3, holders=3).asks('d', 5, 6).asks('b', 7, 8, 'reacquired', limit=1, holders=0, token=2)),
    ('limits', two().asks('c', 3, 4, limit=3, holders=4)),
    ('limits', two().asks('c', 3, 4, limit=3, holders=2)),
    ('limits', two().asks('c', 3, 4, limit=5, holders=4)),
    ('limits', two().asks('c', 3, 4, limit=3, holders=3, max_holders=4)),
    ('', two().asks('c', 3, 4, 'held', limit=2, holders=2)),
    ('', two().asks('c', 3, 4, 'held', limit=1, holders=2)),
    ('', two().asks('c', 3, 4, 'held', mode='exclusive', holders=2)),
    ('limits', two().asks('c', 3, 4, 'held', mode='exclusive', holders=3)),
    ('limits', two().asks('c', 3, 4, 'held', limit=3, holders=3)),
    ('limits', two().asks('c', 3, 4, 'held', limit=3, holders=2)),
    ('', two().releases('b', 3, 6).asks('c', 3, 5, 'timeout', limit=2, holders=1, wait=1)),
    ('limits', two().asks('c', 3, 4, 'held', limit=2, holders=3)),
    ('limits', two().asks('c', 3, 4, 'held', limit=2, holders=2, max_holders=1)),
    # refusals because of holders
    ('limits', two().releases('b', 5, 6).asks('c', 7, 8, 'held', limit=2, holders=2)),
    ('cause', two().releases('b', 5, 6).asks('c', 7, 8, 'pending', limit=2)),
    ('', two().releases('b', 5, 6).asks('c', 5, 8, 'pending', limit=2)),
    ('cause', two().asks('c', 3, 4, 'pending', limit=3)),
    ('', two().asks('c', 3, 4, 'pending', limit=3).asks('d', 3, 4, 'timeout', mode='exclusive')),
    # the number of holders in lock_status
    ('', two().looks(3, 4, 2).looks(0.5, 0.6, 0).looks(0.5, 0.6, 1).looks(1.5, 1.6, 1)),
    ('count', two().looks(3, 4, 1)),
    ('count', two().looks(3, 4, 0)),
    ('count', two().looks(3, 4, 3)),
    ('', two().releases('b', 5, 6).looks(5.5, 7, 1).looks(5.5, 7, 2)),
    ('count', two().releases('b', 5, 6).looks(6.5, 7, 2)),
    ('', Case().end('a', 0, 1, 'begin').asks('a', 1, 2, limit=1).looks(3, 4, 0).looks(3, 4, 1).end('a', 6, 7).looks(8, 9, 1)),
    ('count', Case().end('a', 0, 1, 'begin').asks('a', 1, 2, limit=1).end('a', 6, 7).looks(8, 9, 0)),
    ('', ended('b')),
    ('limits', ended('a')),
    # an ended lease is live again
    ('', set_back(4, 11)),
    ('', set_back(4, 11, is_set=True)),
    ('counters', set_back(4, 2)),
    ('counters', set_back(15, 11)),
    # a server that dies ends a transaction before its client sends the next call
    ('', Case().end('a', 0, 1, 'begin').asks('a', 1, 2, mode='exclusive', lifetime='transaction').call('a', 'prepare', 6, 7, 'info')
     .asks('b', 3, 4, mode='exclusive')),
    ('exclusion', Case().end('a', 0, 1, 'begin').asks('a', 1, 2, mode='exclusive', lifetime='transaction').call('a', 'read', 5, 5.5)
     .call('a', 'prepare', 6, 7, 'info').asks('b', 3, 4, mode='exclusive')),
    # retries after a lost answer
    ('', Case().loses('a', 0, 1).end('a', 1, 2, 'connect').asks('a', 3, 4, 'reacquired', token=1)),
    ('retry', Case().loses('a', 0, 1).end('a', 1, 2, 'connect').asks('a', 3, 4, token=2)),
    ('', Case().end('a', 0, 0.1, 'begin').loses('a', 0.2, 1).end('a', 1, 2, 'connect').asks('a', 3, 4, token=2)),
    ('', Case().loses('a', 0, 1).end('a', 1, 2, 'connect').releases('a', 2, 2.5).asks('a', 3, 4, token=2)),
    ('retry', Case().loses('a', 0, 1).end('a', 1, 2, 'connect').call('a', 'release', 2, 2.5, key='j', rows=[{'released': 'released'}])
     .asks('a', 3, 4, token=2)),
    ('', Case().loses('a', 0, 1).call('admin', 'force', 2, 2.5).end('a', 1, 2, 'connect').asks('a', 3, 4, token=2)))


def misjudged():
    """Returns the cases in which the checker finds too little or too much"""
    wrong = []
    for number, (expected, case) in enumerate(CASES):
        found = case.judged()
        if expected not in found if expected else found:
            wrong.append(f'case {number}: {expected or "nothing"} expected, found {sorted(found)}')
    return wrong


if __name__ == '__main__':
    print('\n'.join(misjudged()) or f'{len(CASES)} cases are judged right')
