"""Judges a history: the answers that clients received must fit together.

The checker turns the records into holdings. Each holding has two intervals. The certain interval
lasts from the answer that granted the key until the first request that could have ended the grant
was sent, or until the lease expired. The possible interval lasts from the request until the last
moment at which the grant can have ended. Sorting these intervals, in O(n log n), decides the
following rules:

  exclusion   no two certain intervals of a key overlap, unless both are shared
  order       a grant that was requested after another had been answered has the
              higher fencing token; no token is granted twice
  loss        no answer says that an owner has nothing while the owner certainly has the key
  revival     no call extends, releases or writes under a grant after the last
              moment at which it can have existed
  limits      a request with max_holders was granted at a moment when fewer other
              owners had the key, and was refused when that many can have had it
  retry       a client that repeats an acquire whose answer was lost gets the same grant,
              unless somebody can have ended the grant since
  count       lock_status counts at least the owners that certainly have the key by a
              committed transaction, and at most those that possibly have it
  cause       a key is refused only while another owner can have had it: a call that
              was refused, failed or was undone has left nothing behind
  counters    a guarded counter is the number of writes that committed, unless the clock
              was set back, and an ended lease was live again; every acknowledged
              write is in the journal, and no refused one
  errors      only documented errors occur

lines.py lists what it judges of tickets and offers.

Where policies limit the clients, and ask for history:

  quota       no role gets more keys than the policy allows, and a role is refused a key
              only if it can have had that many
  history     lock_history has each acknowledged grant once, from the call that granted it
              to a call that can have ended it, with the reason of the end; it has no
              grant that was undone; its rows by themselves keep to exclusion and limits

"Certain" means that it survives every fault of the run: a crash may undo a release (which is not
flushed), and a fail-over to a standby that lagged may lose a lease.
"""

import bisect
import hashlib
import heapq
import itertools
import math
import re
from collections import defaultdict

from lines import Lines

# We read the server's clock a little too early or too late.
CLOCK = 0.002
# Numbers of holders in answers end at this number.
MANY = 100

OWNERLESS = ('not_found', 'not_owner', 'already_released', 'expired', 'forced')
NOT_HELD = ('LK002', 'LK003', 'LK004', 'LK005', 'LK006', 'LK009')


class Holding:
    """A grant, until its token or mode changes"""
    __slots__ = ('key', 'owner', 'mode', 'token', 'lifetime', 'client', 'start', 'end',
                 'first', 'last', 'expires', 'record', 'counts', 'anew', 'limit', 'before', 'shown', 'fate')

    def __init__(self, record, key, owner, mode, token, expires, lifetime):
        self.key, self.owner, self.mode, self.token = key, owner, mode, token
        self.lifetime, self.client, self.record = lifetime, record['client'], record
        self.start, self.first = record['comp'], record['inv']
        self.end = self.last = self.expires = expires
        self.counts = self.anew = True
        self.fate = 'done'
        self.limit = None		# max_holders with which the seat was granted, if known
        self.before = None		# the holding that this owner had before, as far as known
        self.shown = math.inf		# the moment from which others see the holding

    def close(self, certain, possible):
        self.end = min(self.end, certain)
        self.last = min(self.last, possible)

    def __str__(self):
        return (f'{self.owner} {self.mode} token {self.token} certain {self.start:.6f} to {self.end:.6f}, '
                f'possible {self.first:.6f} to {self.last:.6f} (call {self.record["id"]})')


class Number:
    """The number of owners at any moment, from intervals (from, to, owner)"""

    def __init__(self, intervals):
        self.of_owner = merged(intervals)
        changes = sorted(change for list_of in self.of_owner.values()
                         for begin, end in list_of for change in ((begin, 1), (end, -1)))
        self.moments = [moment for moment, _ in changes]
        # before all moments, and from each moment on
        self.numbers = list(itertools.accumulate((change for _, change in changes), initial=0))
        self.trees = {}

    def extreme(self, pick, begin, end):
        """The lowest or highest number (pick is min or max) between begin and end"""
        size = len(self.numbers)
        if pick not in self.trees:
            tree = self.trees[pick] = [0] * size + self.numbers
            for i in range(size - 1, 0, -1):
                tree[i] = pick(tree[2 * i], tree[2 * i + 1])
        tree = self.trees[pick]
        left = bisect.bisect_left(self.moments, begin) + size
        right = bisect.bisect_right(self.moments, end) + size + 1
        found = tree[left]
        while left < right:
            if left & 1:
                found = pick(found, tree[left])
                left += 1
            if right & 1:
                right -= 1
                found = pick(found, tree[right])
            left >>= 1
            right >>= 1
        return found

    def lowest(self, begin, end):
        return self.extreme(min, begin, end)

    def highest(self, begin, end):
        return self.extreme(max, begin, end)

    def when(self, number):
        """A moment at which there are more than number, or None"""
        return next((self.moments[i - 1] for i, n in enumerate(self.numbers) if n > number), None)

    def has(self, owner, begin, end):
        """Whether owner is among the owners at any moment between begin and end"""
        list_of = self.of_owner.get(owner, ())
        i = bisect.bisect_left(list_of, (end,))
        return i > 0 and list_of[i - 1][1] > begin


def merged(intervals):
    """owner: [(from, to)], sorted and without overlaps"""
    found = defaultdict(list)
    for begin, end, owner in sorted(intervals):
        if end <= begin:
            continue
        mine = found[owner]
        if mine and mine[-1][1] >= begin:
            mine[-1] = (mine[-1][0], max(mine[-1][1], end))
        else:
            mine.append((begin, end))
    return found


class Others:
    """Finds intervals (from, to, owner) that the call of another owner meets"""

    def __init__(self, intervals):
        list_of = sorted(intervals, key=lambda r: r[0])
        # for each index: the entry with the latest end so far, and the latest of another owner
        best, second, self.ends = None, None, []
        for entry in list_of:
            if best is None or entry[1] > best[1]:
                if best is not None and best[2] != entry[2]:
                    second = best
                best = entry
            elif entry[2] != best[2] and (second is None or entry[1] > second[1]):
                second = entry
            self.ends.append((best, second))
        self.begins = [r[0] for r in list_of]

    def last(self, end):
        """Of the intervals that begin by end, the two of different owners that end last"""
        i = bisect.bisect_right(self.begins, end)
        return self.ends[i - 1] if i > 0 else ()

    def meets(self, owner, begin, end):
        return any(r is not None and r[1] >= begin and r[2] != owner for r in self.last(end))


class Checker:
    """All the judgements; self.wrong lists the contradictions"""

    def __init__(self, history, crashes=(), failovers=(), steps=(), allowed=(), causes=True, policies=None, roles=None,
                 relaxed=()):
        """crashes: (from, to) in which the server was lost, with the releases that had not been
        flushed; failovers: the same, and no earlier lease is certain; steps: (moment at which the
        server's clock was moved, offset of the clock from then on); allowed: SQLSTATEs that the
        run's faults explain; causes: whether the checker can judge the cause of refusals;
        policies: prefix: limits; roles: those of clients, other than postgres; relaxed: clients
        whose unflushed writes a crash may undo"""
        self.history = history
        self.records = [r for r in history.records if r.get('comp') is not None]
        self.crashes = sorted(crashes)
        self.failovers = sorted(failovers)
        self.steps = sorted(steps)
        self.allowed = set(allowed)
        self.causes = causes
        self.policies = policies or {}
        self.roles = roles or {}
        self.relaxed = relaxed
        self.wrong = []
        self.lines = Lines(self, CLOCK, Others)
        self.holdings = []
        self.keys = {r['key'] for r in self.records if r.get('key')}
        self.possible = defaultdict(list)	# key: (from, to, owner, whether it may hold the key), beside holdings
        self.looks = []
        self.forced = defaultdict(list)		# key: (invoked, ended, done, owner that got the key)
        self.to_prove = []			# (kind, holding, record, key, owner): an answer to check against the holding
        self.refusals = []
        self.beyond = []			# calls that a quota refused
        self.client_of = {}			# owner: client
        self.ended = {}				# (key, token): (word, record) of what its owner did to end it
        self.latest = {}			# (key, owner): the last grant
        self.extended_all = set()		# owners whose leases end at an unknown time
        self.upgraded = set()			# (key, token) of grants that an upgrade may have ended
        self.doubtful = set()			# (key, owner) with calls of unknown effect
        self.unseen = {}			# (key, owner): the record of an acquire whose answer was lost
        self.asked = []				# (that record, record of the repeated call, its row)
        self.in_block = set()			# ids of calls that ended a transaction which cannot have committed
        self.writes = {}			# id of a write: committed (True), not committed (False) or unknown (None)
        self.fate_of = {}			# id of a write: its fate
        self.flushed = [], []			# for each flushing commit: when it was sent; the earliest answer from it on

    def say(self, kind, text, *records):
        self.wrong.append(f'{kind}: {text}' + ''.join(f'\n    {self.show(r)}' for r in records))

    @staticmethod
    def show(record):
        fields = ('id', 'client', 'op', 'key', 'owner', 'inv', 'comp', 'outcome', 'sqlstate', 'rows', 'message')
        return ', '.join(f'{name} {record[name]!r}' for name in fields if record.get(name) is not None)

    def run(self, kinds=None):
        """All judgements, or only those that find the given kinds of contradictions"""
        by_client = defaultdict(list)
        for record in self.records:
            by_client[record['client']].append(record)
        of_clients = [self.with_fates(records) for records in by_client.values()]
        self.flushes(of_clients)
        for pairs in of_clients:
            self.follow(pairs)
        self.cut()
        self.lines.prepare()
        if kinds is None or not kinds <= {'quota', 'history'}:
            self.exclusion()
            self.order()
            self.loss()
            self.number()
            self.limits()
            self.count()
            self.retries()
            self.cause()
            self.lines.run()
            self.errors()
        if self.policies:
            self.quotas()
            self.history_of_grants()
        return self.wrong

    # -- the fate of each call ----------------------------------------------

    def with_fates(self, records):
        """Pairs of record and (fate, invoked, answered) of the call that decided its fate:
        'done', 'undone' or 'unknown'"""
        fates = [None] * len(records)
        block, marks = None, []
        failed = {}			# call: when an error undid its effects
        prepared = None			# [calls, whether certainly prepared, certain until, verb of a finish without answer]
        for i, record in enumerate(records):
            operation, outcome = record['op'], record['outcome']
            if operation == 'begin' and outcome != 'info':
                if outcome == 'ok' and block is None:
                    block, marks = [], []
            elif operation == 'savepoint' and block is not None:
                marks.append(len(block))
            elif operation == 'rollback to' and block is not None and outcome == 'ok' and marks:
                for j in block[marks[-1]:]:
                    fates[j] = ('undone', min(failed.get(j, math.inf), record['inv']), record['comp'])
                del block[marks[-1]:]
            elif operation == 'prepare' and block is not None and \
                    (outcome == 'info' or record.get('tag') == 'PREPARE TRANSACTION'):
                # without an answer, the backend may have ended at any time after its last call
                prepared = [block, outcome == 'ok', math.inf if outcome == 'ok' else records[i - 1]['inv'], None]
                block = None
            elif operation == 'finish' and prepared is not None:
                prepared[2] = min(prepared[2], record['inv'])
                if outcome == 'info':
                    prepared[3] = record['verb']
                elif outcome == 'ok' or record.get('sqlstate') == '42704':
                    fate = 'done' if record['verb'] == 'COMMIT' else 'undone'
                    if outcome == 'error' and prepared[3] is None:
                        # the prepared transaction does not exist
                        fate = 'undone'
                        if self.failovers:
                            fate = 'unknown'
                        elif prepared[1]:
                            self.say('loss', 'what was prepared is gone', record)
                    elif outcome == 'error' and fate == 'done' and not prepared[1]:
                        # committed before, or never prepared
                        fate = 'unknown'
                    for j in prepared[0]:
                        fates[j] = (fate, prepared[2], record['comp'])
                    prepared = None
            elif operation in ('commit', 'rollback', 'prepare', 'disconnect', 'connect') or outcome == 'info':
                if block is not None:
                    if operation == 'commit' and outcome == 'ok' and record.get('tag') == 'COMMIT':
                        fate = 'done'
                    elif operation == 'commit' and outcome == 'info':
                        fate = 'unknown'
                    else:
                        fate = 'undone'
                    # the transaction's holdings are certain until its end was sent
                    certain = record['inv']
                    if outcome == 'info' or operation == 'connect':
                        # The backend may have ended at any time after its last call; the client
                        # learned so later.
                        certain = records[i - 1]['inv']
                    for j in block:
                        fates[j] = (fate, min(failed.get(j, math.inf), certain), self.gone(record))
                    block = None
                    if operation != 'commit':
                        self.in_block.add(record['id'])
                elif outcome == 'info':
                    fates[i] = ('unknown', record['inv'], self.gone(record))
            if block is not None and operation not in ('begin', 'savepoint', 'rollback to'):
                block.append(i)
                if record.get('sqlstate'):
                    for j in block[marks[-1] if marks else 0:]:
                        failed.setdefault(j, record['inv'])
            elif fates[i] is None:
                fates[i] = ('done', record['inv'], record['comp'])
            if outcome == 'info' and fates[i][0] == 'done':
                fates[i] = ('unknown', record['inv'], self.gone(record))
        if prepared is not None:	# the run ended before the prepared transaction did
            for j in prepared[0]:
                fates[j] = ('unknown', min(prepared[2], records[-1]['inv']), math.inf)
        if block:			# the run ended within a transaction
            for j in block:
                fates[j] = ('unknown', records[-1]['inv'], self.gone(records[-1]))
        # no fate: another transaction was prepared before this one was finished, as in a replay
        return [(record, fate or ('unknown', record['inv'], math.inf)) for record, fate in zip(records, fates)]

    def gone(self, record):
        """When the backend had ended, if the connection ended with this call; not before the end
        of faults that had begun"""
        moment = max(record['comp'], record.get('gone', 0))
        return max([moment] + [end for begin, end, _, _ in self.history.faults if begin <= moment])

    def flushes(self, of_clients):
        """Finds acknowledged grants: their flush covers everything that was answered before"""
        found = sorted(fate[1:] for pairs in of_clients for record, fate in pairs
                       if record['op'] in ('acquire', 'acquire_all') and record['outcome'] == 'ok' and fate[0] == 'done' and
                       record['lifetime'] == 'lease' and record['rows'][0]['status'] == 'acquired')
        answers = list(itertools.accumulate((answered for _, answered in reversed(found)), min))
        self.flushed = [sent for sent, _ in found], answers[::-1]

    # -- holdings -----------------------------------------------------------

    def local(self, expires):
        """The moment on our clock at which a lease ends"""
        return math.inf if expires is None else expires - self.history.offset

    def follow(self, records):
        """Makes holdings of one client's records. An owner belongs to one client, so that the
        calls of an owner follow each other."""
        held = {}			# (key, owner): holding that may still exist
        alive = 0.0
        for record, fate in records:
            operation, outcome = record['op'], record['outcome']
            for owner in (record.get('owner'), record.get('heir')):
                self.client_of.setdefault(owner, record['client'])
                if outcome == 'info' or fate[0] == 'unknown' or operation == 'fetch':
                    self.doubtful.update((key, owner) for key in record.get('keys') or [record.get('key')])
            if record.get('sqlstate') == '53400':
                self.beyond.append(record)
            if operation in ('connect', 'disconnect') or outcome == 'info':
                # the session's leases end with it
                end = record['inv'] if operation == 'disconnect' else alive
                if any(kind == 'terminate' and detail[0] == record['client'] and ended >= alive and begun < end
                       for begun, ended, kind, detail in self.history.faults):
                    end = alive		# the client has not noticed yet that its backend was terminated
                for holding in held.values():
                    if holding.lifetime == 'session':
                        holding.close(end, self.gone(record))
                        holding.lifetime = 'ended'
            self.lines.follow(record, fate)
            if operation in ('release', 'release_all', 'extend', 'extend_all', 'convert', 'transfer', 'enqueue'):
                for k in [k for k in self.unseen if k[1] in (record.get('owner'), record.get('heir')) and
                          record.get('key') in (None, k[0])]:
                    del self.unseen[k]		# the grant may have ended, or may be another one now
            if operation == 'enqueue':
                self.enqueued(record, fate, held)
            elif operation in ('acquire', 'acquire_all', 'fetch', 'steal'):
                self.acquired(record, fate, held)
            elif operation == 'convert':
                self.converted(record, fate, held)
            elif operation == 'transfer':
                self.transferred(record, fate, held)
            elif operation in ('release', 'release_all'):
                self.released(record, fate, held)
            elif operation in ('extend', 'extend_all'):
                self.extended(record, fate, held)
            elif operation in ('held', 'assert', 'fence', 'write'):
                self.proven(record, fate, held)
            elif operation == 'force':
                self.forced[record['key']].append((record['inv'], fate[2], outcome == 'ok' and fate[0] == 'done', None))
                self.may_have(record, record['key'], fate[2], 'admin', holds=False)
            elif operation == 'sweep':
                # Its commit may have to wait for a standby.
                for key in self.keys:
                    self.may_have(record, key, fate[2], 'admin', holds=False)
            elif operation == 'look' and outcome == 'ok':
                self.looks.append(record)
            if operation == 'write':
                self.fate_of[record['id']] = fate
                self.writes[record['id']] = None if fate[0] == 'unknown' else fate[0] == 'done' and outcome == 'ok'
            if outcome != 'info':
                alive = record['inv']

    def may_have(self, record, key, until, owner=None, holds=True):
        self.possible[key].append((record['inv'], until, owner or record['owner'], holds))

    def add(self, record, fate, held, key, owner, row, lifetime, before=None):
        holding = Holding(record, key, owner, row['mode'], row['fencing_token'], self.local(row['expires']), lifetime)
        name, certain, possible = fate
        holding.before = before
        if row['status'] == 'acquired' and record['op'] in ('acquire', 'acquire_all'):
            holding.limit = record.get('limit')
        elif row['status'] == 'reacquired' and before is not None and \
                (before.mode, before.token) == (row['mode'], row['fencing_token']):
            holding.limit = before.limit
        if name == 'done' and lifetime != 'transaction':
            holding.shown = possible
        if lifetime == 'transaction':
            holding.close(certain, possible)
        elif name == 'undone':
            holding.close(certain, math.inf)
            holding.last = possible
        elif name == 'unknown':
            holding.end = min(holding.end, certain)
            holding.last = max(holding.last, possible)
        else:
            # until the commit the grant is a claim, even past its expiry
            holding.last = max(holding.last, possible)
        if record['op'] == 'fetch' and lifetime != 'transaction' and name != 'undone':
            holding.last = max(holding.last, record['comp'] + record['ttl'])
        holding.counts = name == 'done'
        holding.fate = name
        holding.anew = row['status'] != 'reacquired'
        self.holdings.append(holding)
        self.latest[key, owner] = holding
        if name != 'undone' and lifetime != 'transaction':
            held[key, owner] = holding

    def acquired(self, record, fate, held):
        keys = record['keys'] if record['op'] == 'acquire_all' else [record['key']]
        owner, mode, outcome = record['owner'], record['mode'], record['outcome']
        if record['op'] == 'steal':
            # a steal ends the grants of others
            self.forced[record['key']].append((record['inv'], fate[2], outcome == 'ok' and fate[0] == 'done', owner))
        if outcome != 'ok':
            for key in keys:
                before = held.get((key, owner))
                until = record['comp']
                self.asked_again(record, {}, self.unseen.pop((key, owner), None))
                if outcome == 'info':
                    until = fate[2] + record['ttl']
                    if before is not None and record['lifetime'] == 'session':
                        before.end = min(before.end, record['inv'])	# the grant may have ended with the session
                    elif before is not None and before.lifetime == 'ended' and before.expires < math.inf and record['lifetime'] == 'lease':
                        until = max(until, before.expires)	# the session's lock may have become a lease before
                    unseen = record.get('unseen')
                    if unseen and unseen.get('acquired') == 't' and record['id'] not in self.in_block and \
                       record['op'] == 'acquire' and record['lifetime'] == 'lease':
                        self.unseen[key, owner] = record
                self.may_have(record, key, until, holds=outcome == 'info')
                if outcome == 'refused':
                    self.refused(record, key, before)
            return
        rows = record['rows']
        if record['op'] == 'fetch':
            # The answer has neither token nor expiry. It does not say whether the owner had the key
            # before; if so, the mode does not change.
            before = held.get((record['key'], owner))
            if before is not None and before.mode == 'shared' and before.last >= record['inv']:
                mode = 'shared'
                self.may_have(record, record['key'], fate[2] + record['ttl'])
            rows = [{'key': record['key'], 'status': 'fetched', 'mode': mode, 'fencing_token': None,
                     'expires': record['inv'] + record['ttl'] + self.history.offset}]
        for row in rows:
            key = row['key']
            self.asked_again(record, row, self.unseen.pop((key, owner), None))
            before = held.get((key, owner))
            lifetime = record['lifetime']
            if row['status'] == 'reacquired':
                self.to_prove.append(('possible', before, record, key, owner))
                self.to_prove.append(('same', before, record, key, owner))
                if lifetime == 'transaction' and before is not None:
                    lifetime = before.lifetime
                    self.relied_on(record, fate, key, owner, row['mode'])
            elif row['status'] == 'acquired' and before is not None and before.mode == mode:
                self.to_prove.append(('certain', before, record, key, owner))
            if before is not None and row['status'] == 'acquired' and record['lifetime'] == 'transaction':
                # Calls with max_holders count the rest of the lease as another holder.
                self.may_have(record, key, fate[2], holds=False)
            if before is not None:
                # If this is undone, the earlier grant continues, which we do not track.
                before.close(record['inv'], fate[2] if fate[0] == 'done' else math.inf)
                if row['status'] == 'acquired' and before.mode != row['mode']:
                    # if that grant still existed
                    self.upgraded.add((key, before.token))
            self.add(record, fate, held, key, owner, row, lifetime, before)

    def enqueued(self, record, fate, held):
        """Like acquired(), unless the call was refused and returned a ticket"""
        if record['outcome'] != 'ok' or record['rows'][0]['status'] != 'queued':
            self.acquired(record, fate, held)
            return
        self.may_have(record, record['key'], record['comp'], holds=False)
        self.refused(record, record['key'], held.get((record['key'], record['owner'])))

    def asked_again(self, record, row, lost):
        """Remembers a call that repeats an acquire whose answer was lost"""
        if lost is None or record['op'] != 'acquire' or record['outcome'] not in ('ok', 'refused') or \
           record['mode'] != lost['mode'] or record['lifetime'] != 'lease':
            return
        if record['comp'] > self.local(float(lost['unseen']['expires'])) - CLOCK:
            return			# the lease may have expired
        self.asked.append((lost, record, row))

    def retries(self):
        """A repeated acquire must get the same grant, unless an administrator ended that grant"""
        for lost, record, row in self.asked:
            unseen = lost['unseen']
            if any(inv < record['comp'] and ended > lost['inv'] for inv, ended, _, _ in self.forced[record['key']]):
                continue
            if row.get('status') != 'reacquired' or row['fencing_token'] != int(unseen['fencing_token']):
                self.say('retry', f'the lost answer was {unseen}', lost, record)

    def converted(self, record, fate, held):
        key, owner = record['key'], record['owner']
        before = held.get((key, owner))
        if record['outcome'] == 'ok':
            row = record['rows'][0]
            self.to_prove.append(('possible', before, record, key, owner))
            if row['status'] == 'reacquired':
                return
            if before is not None:
                before.close(record['inv'], fate[2] if fate[0] == 'done' else math.inf)
                self.ends('converted', before, record, fate)
            self.add(record, fate, held, key, owner, row, before.lifetime if before is not None else 'lease', before)
        elif record['outcome'] == 'info':
            self.may_have(record, key, math.inf if before is None else max(before.last, fate[2]))
            if before is not None:
                before.end = min(before.end, record['inv'])
        else:
            self.may_have(record, key, record['comp'], holds=False)
            if record.get('sqlstate') in NOT_HELD or self.status(record) in OWNERLESS:
                self.told_nothing(record, before)
            elif record['outcome'] == 'refused':
                self.refused(record, key, before)

    def transferred(self, record, fate, held):
        key, owner, heir = record['key'], record['owner'], record['heir']
        before = held.get((key, owner))
        if record['outcome'] == 'ok':
            self.to_prove.append(('possible', before, record, key, owner))
            if before is not None:
                before.close(record['inv'], fate[2] if fate[0] == 'done' else math.inf)
                self.ends('transferred', before, record, fate)
            self.add(record, fate, held, key, heir, record['rows'][0],
                     before.lifetime if before is not None else 'lease')
        elif record['outcome'] == 'info':
            self.may_have(record, key, fate[2] + record['ttl'], heir)
            if before is not None:
                before.end = min(before.end, record['inv'])
        elif record.get('sqlstate') in NOT_HELD:
            self.told_nothing(record, before)

    def ends(self, word, holding, record, fate):
        """Notes that the owner ended a grant, unless the owner got the key anew since"""
        if fate[0] == 'done' and holding.token is not None and self.latest[holding.key, holding.owner] is holding:
            self.ended.setdefault((holding.key, holding.token), (word, record))

    @staticmethod
    def concerned(record, held):
        if 'key' in record:
            return [(record['key'], record['owner'])]
        return [k for k in held if k[1] == record['owner']]

    def released(self, record, fate, held):
        mine = self.concerned(record, held)
        for k in mine:
            before = held.get(k)
            if record['outcome'] == 'ok':
                if record['op'] == 'release':
                    self.to_prove.append(('possible', before, record, *k))
                if before is not None and fate[0] == 'done':
                    before.close(record['inv'], self.after_release(fate, before))
                    if record['op'] == 'release':
                        self.ends('released', before, record, fate)
            if record['outcome'] in ('ok', 'info') and before is not None:
                before.end = min(before.end, record['inv'])
            elif self.says_nothing(record):
                self.told_nothing(record, before)

    def after_release(self, fate, holding):
        """A release that was not flushed may be undone by a crash"""
        return max(fate[2], holding.expires) if self.may_be_undone(fate) else fate[2]

    def may_be_undone(self, fate):
        """Whether a crash came before the next flush"""
        crash = next((begin for begin, end in self.crashes if end >= fate[1]), None)
        sent, answers = self.flushed
        i = bisect.bisect_left(sent, fate[2])
        return crash is not None and not (i < len(sent) and answers[i] <= crash)

    @staticmethod
    def says_nothing(record):
        """Whether the answer says that the owner does not have the key"""
        if record.get('sqlstate') in NOT_HELD:
            return True
        rows = record.get('rows')
        if not isinstance(rows, list) or not rows:
            return False
        row = rows[0]
        return (row.get('released') in OWNERLESS or 'extended' in row and row['extended'] is None
                or row.get('held') is False)

    def extended(self, record, fate, held):
        owner, outcome = record['owner'], record['outcome']
        mine = self.concerned(record, held)
        if record['op'] == 'extend_all':
            self.extended_all.add(owner)
        for k in mine:
            before = held.get(k)
            if outcome == 'ok' and record['op'] == 'extend':
                self.to_prove.append(('possible', before, record, *k))
                new = self.local(record['rows'][0]['extended'])
                if before is None:
                    continue
                later = Holding(before.record, before.key, owner, before.mode, before.token, new, before.lifetime)
                later.counts = later.anew = False
                later.limit = before.limit if before.last >= record['inv'] else None
                later.shown = max(before.shown, fate[2]) if fate[0] == 'done' else math.inf
                later.start, later.first = max(before.start, record['comp']), before.first
                if before.end >= record['inv'] and before.lifetime != 'ended' and fate[0] == 'done':
                    later.start = before.start		# without a gap
                    if before.end >= record['comp']:
                        # otherwise others take the lease for expired until the extension commits
                        later.shown = before.shown
                if fate[0] != 'done':
                    later.end = min(later.end, before.end)
                later.last = max(new, before.last if fate[0] != 'done' else 0, fate[2])
                before.end = min(before.end, record['inv'])
                self.holdings.append(later)
                if self.latest[k] is before:
                    self.latest[k] = later
                held[k] = later
            elif outcome in ('ok', 'info'):
                # the answer says neither which leases were extended nor until when
                if before is not None:
                    before.end = min(before.end, record['inv'] + record['ttl'])
                    before.last = max(before.last, fate[2] + record['ttl'])
            elif self.says_nothing(record):
                self.told_nothing(record, before)

    def proven(self, record, fate, held):
        key, owner = record['key'], record['owner']
        before = held.get((key, owner))
        if record['outcome'] == 'ok':
            self.to_prove.append(('possible', before, record, key, owner))
            if record['op'] == 'write':
                self.relied_on(record, fate, key, owner, 'exclusive')
            elif record['op'] in ('assert', 'fence'):
                token = record['rows'][0]['token'] if record['op'] == 'assert' else record['params'][1]
                if before is not None and before.token == token:
                    self.relied_on(record, fate, key, owner, before.mode)
                else:
                    self.may_have(record, key, fate[2])
        elif record['outcome'] == 'refused' and self.says_nothing(record):
            if record['op'] != 'write' or before is not None and before.mode == 'exclusive':
                self.told_nothing(record, before)
        if record['outcome'] != 'ok' and record['op'] != 'held':
            # the call may have had a claim
            self.may_have(record, key, fate[2] if record['outcome'] == 'info' else record['comp'], holds=False)

    def relied_on(self, record, fate, key, owner, mode):
        """Adds a pin: the transaction relies on the owner's grant, so that nobody else gets the
        key before the transaction ends, even if the lease expires"""
        if fate[2] > record['comp']:
            pin = Holding(record, key, owner, mode, None, fate[1], 'pin')
            pin.last, pin.counts, pin.anew = fate[2], False, False
            self.holdings.append(pin)

    def refused(self, record, key, own):
        """Remembers a refusal that needs a cause"""
        if record.get('sqlstate') == '53400':
            return			# a quota's refusal is judged by quotas()
        rows = record.get('rows')
        if isinstance(rows, list) and rows and rows[0].get('key') not in (None, key):
            return			# another key of the set was held
        if own is not None and record['op'] != 'convert' and (record['mode'] == own.mode):
            self.to_prove.append(('certain', own, record, key, own.owner))
        # A sharer cannot get the key exclusively for a transaction; the refusal then names its own
        # lease.
        names_own = rows[0].get('mode') == 'shared' if isinstance(rows, list) and rows else record.get('sqlstate') == 'LK007'
        by_itself = own is not None and own.mode == 'shared' and own.lifetime in ('lease', 'session') and names_own and \
            record['op'] == 'acquire' and (record['mode'], record['lifetime']) == ('exclusive', 'transaction')
        self.refusals.append((record, key, own if by_itself else None))

    def told_nothing(self, record, holding):
        if holding is not None:
            self.to_prove.append(('certain', holding, record, holding.key, holding.owner))

    # -- the judgements -----------------------------------------------------

    def cut(self):
        """Ends holdings where an administrator, a fail-over or a step of the clock did"""
        forced, longest = {}, {}
        for key, list_of in self.forced.items():
            list_of.sort()
            forced[key] = [f[0] for f in list_of]
            longest[key] = max(f[1] - f[0] for f in list_of)
        for holding in self.holdings:
            if holding.key in forced and holding.lifetime not in ('transaction', 'pin'):
                list_of = self.forced[holding.key]
                # calls sent before the grant may have taken effect later
                i = bisect.bisect_left(forced[holding.key], holding.first - longest[holding.key])
                while i < len(list_of) and list_of[i][0] < holding.end:
                    sent, ended, done, owner = list_of[i]
                    i += 1
                    if ended < holding.first or owner == holding.owner:
                        continue
                    if done and sent > holding.start:
                        holding.last = min(holding.last, ended)
                    holding.end = min(holding.end, sent)
            for begin, end in self.failovers:
                if holding.first < end:		# the grant may have been answered late
                    holding.end = min(holding.end, begin)
                    holding.last = math.inf
            if self.steps:
                i = bisect.bisect_right(self.steps, (holding.start, math.inf))
                if i < len(self.steps):
                    holding.end = min(holding.end, self.steps[i][0])
                off = self.steps[i - 1][1] if i else 0
                if off is None or bisect.bisect_right(self.steps, (holding.first, math.inf)) < i:
                    holding.end = holding.start
                else:
                    holding.end = min(holding.end, holding.expires - off)
                holding.last = math.inf

    def intervals(self):
        """key: (from, to, owner) of all possible holdings"""
        found = defaultdict(list)
        for holding in self.holdings:
            found[holding.key].append((holding.first - CLOCK, holding.last + CLOCK, holding.owner))
        for key, list_of in self.possible.items():
            found[key].extend(entry[:3] for entry in list_of)
        return found

    def number(self):
        """Counts the owners of each key"""
        certainly, seen, possibly = defaultdict(list), defaultdict(list), defaultdict(list)
        alone, calls = defaultdict(list), defaultdict(list)
        for holding in self.holdings:
            key, owner = holding.key, holding.owner
            begin, end = self.certain(holding)
            certainly[key].append((begin, end, owner))
            seen[key].append((max(begin, holding.shown), end, owner))
            interval = (holding.first, holding.last + CLOCK, owner)
            possibly[key].append(interval)
            if holding.mode != 'shared':
                alone[key].append(interval)
            # the call may have made others wait, or be refused
            calls[key].append((holding.record['inv'], holding.record['comp'], owner))
        for key, list_of in self.possible.items():
            for begin, end, owner, holds in list_of:
                (possibly if holds else calls)[key].append((begin, end, owner))
                if holds or owner == 'admin':
                    alone[key].append((begin, end, owner))
        self.certainly = {key: Number(list_of) for key, list_of in certainly.items()}
        self.seen = {key: Number(list_of) for key, list_of in seen.items()}
        self.possibly = {key: Number(list_of) for key, list_of in possibly.items()}
        self.alone = {key: Others(list_of) for key, list_of in alone.items()}
        self.calls = {key: Others(list_of) for key, list_of in calls.items()}
        self.anybody = {key: Others(list_of) for key, list_of in possibly.items()}

    @staticmethod
    def certain(holding):
        return (holding.start, holding.end - CLOCK)

    def exclusion(self):
        by_key = defaultdict(list)
        for holding in self.holdings:
            start, end = self.certain(holding)
            if end > start:
                by_key[holding.key].append((start, end, holding))
        for list_of in by_key.values():
            list_of.sort(key=lambda h: h[0])
            # Keep the latest end of each owner; in each mode the two latest of different owners
            # suffice.
            latest = {'exclusive': [], 'shared': []}
            for start, end, holding in list_of:
                for mode in ('exclusive', 'shared') if holding.mode == 'exclusive' else ('exclusive',):
                    for other_end, other in latest[mode]:
                        if other.owner != holding.owner and other_end > start:
                            self.say('exclusion', f'two hold {holding.key}:\n    {other}\n    {holding}',
                                     other.record, holding.record)
                            break
                mine = latest[holding.mode]
                mine.append((end, holding))
                mine.sort(key=lambda h: -h[0])
                owners, kept = set(), []
                for entry in mine:
                    if entry[1].owner not in owners:
                        owners.add(entry[1].owner)
                        kept.append(entry)
                latest[holding.mode] = kept[:2]

    def order(self):
        by_key = defaultdict(list)
        for holding in self.holdings:
            if holding.counts and holding.token is not None:
                by_key[holding.key].append(holding)
        for key, list_of in by_key.items():
            seen = {}
            for holding in list_of:
                other = seen.setdefault(holding.token, holding)
                if other.owner != holding.owner:
                    self.say('order', f'token {holding.token} of {key} was granted twice', other.record, holding.record)
            anew = sorted((h for h in list_of if h.anew), key=lambda h: h.first)
            answered, highest = [], None
            for holding in anew:
                while answered and answered[0][0] < holding.first:
                    _, _, other = heapq.heappop(answered)
                    if highest is None or other.token > highest.token:
                        highest = other
                if highest is not None and highest.token >= holding.token:
                    self.say('order', f'token {holding.token} of {key} after {highest.token}',
                             highest.record, holding.record)
                heapq.heappush(answered, (holding.start, id(holding), holding))

    def loss(self):
        """Checks answers about the owner's own holdings"""
        by_owner = defaultdict(list)
        for key, list_of in self.intervals().items():
            for begin, end, owner in list_of:
                by_owner[key, owner].append((begin, end))
        had = {}
        for k, list_of in by_owner.items():
            list_of.sort()
            had[k] = [begin for begin, _ in list_of], list(itertools.accumulate((end for _, end in list_of), max))
        for what, holding, record, key, owner in self.to_prove:
            if what == 'possible':
                begins, ends = had.get((key, owner), ((), ()))
                i = bisect.bisect_left(begins, record['inv'])
                if i == 0 or ends[i - 1] < record['inv']:
                    self.say('revival', f'{record["op"]} without or after: {holding}', record)
            elif holding is not None and self.held_through(holding, record):
                if what == 'certain':
                    self.say('loss', f'it has it: {holding}', record, holding.record)
                elif holding.token not in (None, record['rows'][0]['fencing_token']) and record['op'] == 'acquire':
                    self.say('order', f'reacquired with another token: {holding}', record, holding.record)

    def held_through(self, holding, record):
        start, end = self.certain(holding)
        return start <= record['inv'] and record['comp'] <= end

    def limits(self):
        """Checks grants and refusals with max_holders"""
        of_limit = defaultdict(lambda: defaultdict(list))
        for holding in self.holdings:
            if holding.limit is None or holding.mode != 'shared':
                continue
            of_limit[holding.key][holding.limit].append((*self.certain(holding), holding.owner))
            record = holding.record
            if not holding.anew:
                continue
            others = self.certainly[holding.key]
            number = others.lowest(record['inv'], record['comp'])
            number -= others.has(holding.owner, record['inv'], record['comp'])
            if number >= holding.limit:
                self.say('limits', f'{holding.limit} may have {holding.key}, and {number} others had it all the time:\n    {holding}',
                         record)
        for key, limits in of_limit.items():
            # The last owner to get its seat had all the others beside it.
            granted = []
            for limit in sorted(limits):
                granted += limits[limit]
                moment = Number(granted).when(limit)
                if moment is not None:
                    owners = sorted({owner for begin, end, owner in granted if begin <= moment < end})
                    self.say('limits', f'{key} was granted where at most {limit} may have it, and {owners} have it at {moment:.6f}')
        for record in self.records:
            if record['op'] in ('acquire', 'acquire_all') and record['outcome'] == 'ok':
                for row in record['rows']:
                    is_new = row['status'] == 'acquired' and row['mode'] == 'shared'
                    self.number_said(record, row['key'], record.get('limit') if is_new else None)
        for record, key, _ in self.refusals:
            self.number_said(record, key, record.get('limit'))

    def number_said(self, record, key, limit):
        """Checks the number of holders in the answer to an acquire"""
        row = next((row for row in record.get('rows') or () if row['key'] == key), {})
        said = row.get('holders')
        if said is None:
            return
        possibly = self.possibly.get(key)
        most = possibly.highest(record['inv'], record['comp']) if possibly is not None else 0
        if row['max_holders'] != (record.get('limit') or 0):
            self.say('limits', f'another limit than {record.get("limit")}', record)
        elif said > max(MANY, limit or 0) or said > most and not self.steps:
            self.say('limits', f'fewer can have had {key}: {most}', record)
        elif limit is None:
            return
        elif row['acquired'] and not 1 <= said <= limit:
            self.say('limits', 'granted beyond its limit', record)
        elif row['acquired'] and said <= self.seen[key].lowest(record['inv'], record['comp']):
            self.say('limits', f'more have {key}', record)
        elif row['status'] == 'held' and row['mode'] == 'shared' and said < limit:
            # a pending claim, or a waiter, may be about to take the other seats
            self.say('limits', 'refused though fewer have it', record)

    def count(self):
        """Checks the number of holders that lock_status shows"""
        for record in self.looks:
            row, key = record['rows'][0], record['key']
            said = row['holders'] or 0 if row['locked'] else 0
            seen, possibly = self.seen.get(key), self.possibly.get(key)
            least = seen.lowest(record['inv'], record['comp']) if seen is not None else 0
            most = possibly.highest(record['inv'], record['comp']) if possibly is not None else 0
            if said < min(least, MANY) or said > most and not self.steps:
                self.say('count', f'{least} to {most} have {key}', record)

    def cause(self):
        if not self.causes or self.steps:
            return
        index = {key: Others(list_of) for key, list_of in self.intervals().items()}
        nobody = Others(())
        for record, key, shared in self.refusals:
            begin, end, owner = record['inv'], record['comp'], record['owner']
            others = index.get(key, nobody)
            found = shared is not None and shared.last + CLOCK >= begin or others.meets(owner, begin, end)
            if self.lines.in_the_way(key, owner, begin, end):
                continue
            if found and record.get('limit') is not None:
                # an exclusive holder, a call in progress, or that many sharers
                found = self.alone.get(key, nobody).meets(owner, begin, end) or \
                    self.calls.get(key, nobody).meets(owner, begin, end) or \
                    key in self.possibly and self.possibly[key].highest(begin, end) >= record['limit']
            if not found:
                self.say('cause', f'refused though nobody had {key}; last known: {others.last(end)}', record)

    @staticmethod
    def status(record):
        """The reason of a refusal, as lock_try_acquire returns it"""
        if isinstance(record.get('rows'), list) and record['rows']:
            return record['rows'][0].get('status')
        return {'40P01': 'deadlock'}.get(record.get('sqlstate'))

    def of_lines(self):
        return self.lines.summary()

    # -- policies -----------------------------------------------------------

    def rule(self, key, part):
        """The longest prefix whose policy has a limit for this part of a key, and the limit"""
        found = [prefix for prefix in self.policies if key.startswith(prefix) and part in self.policies[prefix]]
        return (max(found, key=len), self.policies[max(found, key=len)][part]) if found else (None, math.inf)

    def role_of_owner(self, owner):
        return self.roles.get(self.client_of.get(owner), 'postgres')

    def role_of(self, record):
        return self.roles.get(record['client'], 'postgres')

    def quotas(self):
        """No role has more keys than a policy allows, nor is refused a key with fewer"""
        certainly, possibly = defaultdict(list), defaultdict(list)
        for holding in self.holdings:
            if holding.lifetime == 'pin' or holding.record['client'] == 'judge':
                continue
            whose = self.rule(holding.key, 'role')[0], self.role_of_owner(holding.owner)
            # Keys that a transaction holds to its end count as one key for other sessions.
            if holding.lifetime != 'transaction':
                certainly[whose].append((*self.certain(holding), holding.key))
            possibly[whose].append((holding.first, holding.last + CLOCK, (holding.key, holding.owner)))
        for key, list_of in self.possible.items():
            for begin, end, owner, _ in list_of:
                possibly[self.rule(key, 'role')[0], self.role_of_owner(owner)].append((begin, end, (key, owner)))
        for (prefix, role), intervals in certainly.items():
            moment = Number(intervals).when(self.policies[prefix]['role']) if prefix is not None else None
            if moment is not None:
                keys = sorted({key for begin, end, key in intervals if begin <= moment < end})
                self.say('quota', f"role {role} may have {self.policies[prefix]['role']} keys with {prefix}, "
                         f'and has {keys} at {moment:.6f}')
        possibly = {whose: Number(intervals) for whose, intervals in possibly.items()}
        for record in self.beyond:
            said = re.search(r'Role "(.*)" holds (\d+) of at most (\d+) keys, by the policy for prefix "(.*)"', record['message'])
            if said is None:
                self.say('quota', 'refused without saying why', record)
                continue
            role, prefix = said[1], said[4]
            most = possibly[prefix, role].highest(record['inv'], record['comp']) if (prefix, role) in possibly else 0
            # A set may want several keys under the quota.
            wanted = len(record['keys']) if record['op'] == 'acquire_all' else 1
            if role != self.role_of(record) or self.policies.get(prefix, {}).get('role') != int(said[3]) or \
               int(said[2]) + wanted <= int(said[3]):
                self.say('quota', 'refused by what is no quota', record)
            elif int(said[2]) > most:
                self.say('quota', f'refused with at most {most} keys', record)

    def history_of_grants(self):
        """Compares lock_history with the holdings"""
        rows = {(row['key'], row['token']): row for row in self.history.grants}
        of_token = defaultdict(list)
        for holding in self.holdings:
            if holding.token is not None and holding.lifetime != 'pin':
                of_token[holding.key, holding.token].append(holding)
        digests = {hashlib.sha256(owner.encode()).hexdigest(): owner for owner in self.client_of if owner}
        for which, row in rows.items():
            owner = digests.get(row['digest'])
            if which not in of_token:
                if owner is None or (row['key'], owner) not in self.doubtful:
                    self.say('history', f'nobody was granted {row}')
            elif all(holding.fate == 'undone' for holding in of_token[which]):
                self.say('history', f'it was undone: {row}', of_token[which][0].record)
        for which, list_of in of_token.items():
            if list_of[0].counts and list_of[0].anew:
                self.recorded_as(list_of, rows.get(which))
        self.by_themselves(rows.values())

    def recorded_as(self, list_of, row):
        """Compares a row with its grant, which may have several holdings"""
        first, record = list_of[0], list_of[0].record
        if row is None:
            self.say('history', f'it does not have {first}', record)
            return
        begin, end, by = self.local(row['begin']), self.local(row['end']), row['by']
        facts = row['mode'], row['digest'], row['role']
        if facts != (first.mode, hashlib.sha256(first.owner.encode()).hexdigest(), self.role_of(record)) or \
           not record['inv'] - CLOCK <= begin <= record['comp'] + CLOCK:
            self.say('history', f'it has {row} for {first}', record)
        if (first.key, first.owner) in self.doubtful:
            return
        # A holding that was undone kept others out until then, but did not change the end.
        certain, possible = max(h.end for h in list_of if h.fate != 'undone'), max(h.last for h in list_of)
        if first.lifetime == 'transaction':
            certain = begin			# it may have been prepared before the commit
        if not certain - CLOCK <= end <= possible + CLOCK:
            self.say('history', f'another end of {first}: {row}', record)
        word, ending = self.ended.get((first.key, first.token), (None, None))
        if word is not None:
            if by != word or not ending['inv'] - CLOCK <= end <= ending['comp'] + CLOCK:
                self.say('history', f'it was {word}: {row}', record, ending)
        elif by not in self.words(list_of):
            self.say('history', f'it cannot have been {by}: {row}', record)
        elif by == 'expired' and first.owner not in self.extended_all and min(abs(end - h.expires) for h in list_of) > CLOCK:
            self.say('history', f'it expired at another time: {row}', record)

    def words(self, list_of):
        """The possible reasons of the end of a grant that its owner did not certainly end"""
        first = list_of[0]
        if first.lifetime == 'transaction':
            return {'transaction', 'released'}
        words = {'expired', 'released'}		# release_all does not say which leases it released
        if (first.key, first.token) in self.upgraded:
            words.add('converted')
        if any(h.lifetime in ('session', 'ended') for h in list_of):
            words.add('session')
        for sent, ended, _, owner in self.forced.get(first.key, ()):
            if ended >= first.first and sent <= max(h.last for h in list_of):
                words.add('forced' if owner is None else 'stolen')
        return words

    def by_themselves(self, rows):
        """Checks the rows of lock_history against each other"""
        by_key, counted = defaultdict(list), defaultdict(list)
        brief = {(holding.key, holding.token) for holding in self.holdings if holding.lifetime == 'transaction'}
        for row in rows:
            if row['end'] < row['begin']:
                self.say('history', f'it ended before it began: {row}')
            by_key[row['key']].append(row)
            # The judge's grants came after the limits had been removed.
            if row['role'] != 'postgres' and row['by'] != 'transaction' and (row['key'], row['token']) not in brief:
                counted[self.rule(row['key'], 'role')[0], row['role']].append((row['begin'], row['end'], row['key']))
        for key, list_of in by_key.items():
            last = {}			# by mode, the row that ended last
            for row in sorted(list_of, key=lambda r: r['token']):
                for mode in ('exclusive', 'shared') if row['mode'] == 'exclusive' else ('exclusive',):
                    if mode in last and last[mode]['end'] > row['begin']:
                        self.say('history', f'two held {key}:\n    {last[mode]}\n    {row}')
                if row['mode'] not in last or row['end'] > last[row['mode']]['end']:
                    last[row['mode']] = row
            _, most = self.rule(key, 'holders')
            sharing = Number((r['begin'], r['end'], r['digest']) for r in list_of if r['mode'] == 'shared')
            if sharing.when(most) is not None:
                self.say('history', f'more than {most} held {key} at {sharing.when(most):.6f}')
        for (prefix, role), intervals in counted.items():
            moment = Number(intervals).when(self.policies[prefix]['role']) if prefix is not None else None
            if moment is not None:
                keys = sorted((begin, end, key) for begin, end, key in intervals if begin <= moment < end)
                self.say('quota', f"lock_history has more than {self.policies[prefix]['role']} keys with {prefix} for role {role}: {keys}")

    def errors(self):
        for record in self.records:
            if record['outcome'] != 'error':
                continue
            state = record['sqlstate']
            if state in self.allowed or state == '25P02' or state == '42704' and record['op'] == 'finish':
                continue
            if state == 'XX000' and '53200' in self.allowed and 'Cannot allocate memory' in record['message']:
                continue		# PostgreSQL's pg_gmtime(), in our SELECT
            self.say('errors', f'SQLSTATE {state}', record)

    def counters(self, counters, journal):
        """counters: value by number; journal: (id of write, number)"""
        number_of = defaultdict(int)
        seen = set()
        for write, number in journal:
            number_of[number] += 1
            if write in seen:
                self.say('counters', f'write {write} is in the journal twice')
            seen.add(write)
            if self.writes.get(write, False) is False:
                self.say('counters', f'write {write} was refused or undone, and is in the journal')
        lost = self.failovers[-1][1] if self.failovers else 0
        record_of = {r['id']: r for r in self.records}
        for write, done in self.writes.items():
            record = record_of[write]
            if record['inv'] < lost or record['client'] in self.relaxed and self.may_be_undone(self.fate_of[write]):
                continue		# like acknowledged leases, the write may be lost
            if done and write not in seen and write in self.journaled():
                self.say('counters', f'write {write} was acknowledged, and is not in the journal')
        for number, value in counters.items():
            if value != number_of[number] and value != number_of[number] - self.revived(number, seen):
                self.say('counters', f'counter {number} is {value} after {number_of[number]} writes')

    def revived(self, number, seen):
        """The number of writes under a lease that had ended by the clock, so that the owner of another write of the same
        value got the key, and that was live again because the clock was set back"""
        writes = [r for r in self.records if r['op'] == 'write' and r['id'] in seen and r['params'][1] == number]
        found = set()
        for late, other in itertools.permutations(writes, 2):
            if late['params'] != other['params'] or late['owner'] == other['owner']:
                continue
            until, grant = self.answer_before(late, 'expires', 'extended'), self.answer_before(other, 'since')
            if until and grant and until[1] <= grant[1] and any(grant[0]['inv'] < moment < late['comp'] for moment, _ in self.steps):
                found.add(late['id'])
        return len(found)

    def answer_before(self, write, *columns):
        """The last answer with such a column that the owner of a write had received about the key: (record, value)"""
        answers = [(r, row[column]) for r in self.records if r['op'] in ('acquire', 'acquire_all', 'extend', 'convert', 'steal', 'transfer')
                   and r['outcome'] == 'ok' and r['comp'] <= write['inv'] and r.get('heir', r['owner']) == write['owner'] for row in r['rows']
                   if row.get('key', r.get('key')) == write['key'] for column in columns if row.get(column)]
        return max(answers, key=lambda answer: answer[0]['comp'], default=None)

    def journaled(self):
        if not hasattr(self, 'with_journal'):
            self.with_journal = {r['write'] for r in self.records if r['op'] == 'journal' and r['outcome'] == 'ok'}
        return self.with_journal
