"""Judges the lines for keys: tickets, for which no connection waits, and offers.

The answers of lock_enqueue and lock_leave, the rows of lock_queue, and the events that a listener
heard become tickets and offers.

A ticket is valid for certain during an interval. The interval begins with the answer to the call
that took the ticket, or to the commit of its transaction. The interval ends before the first
event that can have ended the ticket: its expiry, a call by which its owner may have left the line
or acquired the key, or the end of an offer that the owner did not take. An offer cannot have
begun before the ticket was requested, nor before a row of lock_queue showed the ticket without an
offer; an offer lasts as long as its owner requested. A later answer or row with the same ticket
proves that the ticket was valid until then, except between its old expiry and the answer to the
call that renewed it.

An offer is certain from the moment when a client saw or heard of it, until it expires, its owner
may have taken the key or left the line, or somebody steals the key. The rules:

  offer    while a key is offered to an owner, nobody else is granted the key, has it, or is
           offered it; no ticket is offered the key twice
  place    no ticket is lost: its owner does not get the answer that it has another ticket or
           none, and lock_queue shows the ticket; positions count from 1 in the order of tickets
  line     no grant to an owner that asked after another owner's ticket was acknowledged, if
           that ticket stays valid until the grant

"Certain" means that it survives a crash, as a ticket does. A crash may undo an offer together
with the release that made it.
"""

import math
from collections import defaultdict
from datetime import datetime


class Ticket:
    """A ticket"""
    __slots__ = ('key', 'owner', 'number', 'record', 'inv', 'ack', 'base', 'offer', 'longest', 'end', 'last', 'seen', 'blind', 'gaps')

    def __init__(self, record, number, fate, expires, clock):
        name, _, ended = fate
        self.key, self.owner, self.number, self.record = record['key'], record['owner'], number, record
        self.inv = self.base = record['inv']
        self.ack = ended if name == 'done' else math.inf
        self.offer = self.longest = record['offer']
        self.end = expires - clock
        self.last = ended if name == 'undone' else max(expires + self.longest, ended)
        self.seen = self.blind = 0.0
        self.gaps = []

    def until(self, end=None):
        """The end of the certain interval, without later evidence"""
        return min(self.end if end is None else end, self.base + self.offer)

    def __str__(self):
        return (f'place {self.number} of {self.owner} certain {self.ack:.6f} to {max(self.seen, self.until()):.6f}, '
                f'possible {self.inv:.6f} to {self.last:.6f} (call {self.record["id"]})')


class Offer:
    """An offer of a key to a ticket. Calls that ended before "since" did not end this offer,
    except a steal that ended after "made"."""
    __slots__ = ('begin', 'end', 'until', 'owner', 'number', 'since', 'made')

    def __init__(self, begin, until, owner, number, since, made):
        self.begin, self.end, self.until, self.owner, self.number, self.since, self.made = begin, until, until, owner, number, since, made

    def __str__(self):
        return f'to place {self.number} of {self.owner} from {self.begin:.6f} to {self.end:.6f}, or {self.until:.6f}'


class Lines:
    """What the checker knows about lines"""

    def __init__(self, checker, clock, others):
        self.checker, self.clock, self.others = checker, clock, others
        self.tickets = {}		# by number
        self.of_owner = defaultdict(list)	# (key, owner): all its tickets
        self.mine = {}			# (key, owner): the ticket that the owner may have now
        self.asked = defaultdict(list)	# (key, owner): (from, to) in which the owner may have had another ticket
        self.moves = defaultdict(list)	# (key, owner): (from, to) of calls that may have ended a ticket
        self.vague = set()		# (key, owner) that may have unknown tickets
        self.proofs = []		# (ticket, its end as known then, record, text): a contradiction if the ticket is valid
        self.views = []			# (record, whether inside a transaction)
        self.blocks = {}		# client: keys that its open transaction has touched
        self.again = set()		# ids of further calls for such a key
        self.offers = defaultdict(list)	# key: Offer
        self.judged = self.grants = 0

    # -- the answers ------------------------------------------------------------

    def follow(self, record, fate):
        """Processes one call; the calls of a client come in their order"""
        operation, outcome, client = record['op'], record['outcome'], record['client']
        if operation == 'begin' and outcome == 'ok':
            self.blocks.setdefault(client, set())
        elif operation in ('commit', 'rollback', 'prepare', 'connect', 'disconnect') or outcome == 'info':
            self.blocks.pop(client, None)
        keys = record.get('keys') or [record.get('key')]
        block = self.blocks.get(client)
        if block and not block.isdisjoint(keys):
            self.again.add(record['id'])
        queued = operation == 'enqueue' and outcome == 'ok' and record['rows'][0]['status'] == 'queued'
        if block is not None and outcome == 'ok' and not queued and operation not in ('look', 'places', 'held', 'leave'):
            block.update(keys)
        if queued:
            self.queued(record, fate)
        elif operation == 'leave':
            self.left(record, fate)
        elif operation in ('enqueue', 'acquire', 'acquire_all', 'fetch', 'steal', 'transfer', 'convert') and \
                outcome in ('ok', 'info'):
            for key in keys:
                self.moved(record, fate, key, record.get('heir') or record['owner'])
        elif operation == 'places' and outcome == 'ok':
            self.views.append((record, block is not None))

    def queued(self, record, fate):
        row, k = record['rows'][0], (record['key'], record['owner'])
        number, expires = row['ticket'], self.checker.local(row['expires'])
        known = self.mine.get(k)
        if known is not None and known.number == number:
            known.seen = max(known.seen, record['inv'])
            # Others see the old expiry until the renewal commits.
            if fate[0] != 'undone' and known.end < fate[2]:
                known.gaps.append((known.end, fate[2]))
            known.offer, known.longest = min(known.offer, record['offer']), max(known.longest, record['offer'])
            if fate[0] == 'done' and known.end >= fate[2] or fate[2] == record['comp']:
                known.end = expires - self.clock
            elif fate[0] == 'unknown':
                known.end = min(known.end, expires - self.clock)
            if fate[0] != 'undone':
                known.last = max(known.last, expires + known.longest, fate[2])
            return
        if known is not None:
            self.proofs.append((known, known.end, record, 'its owner is told of another'))
        other = self.tickets.get(number)
        if other is not None and other.ack < math.inf and fate[0] == 'done':
            self.checker.say('line', f'{number} is given again: {other}', record, other.record)
        ticket = Ticket(record, number, fate, expires, self.clock)
        if fate[0] == 'undone':
            self.asked[k].append((ticket.inv, ticket.last))
        else:
            self.mine[k] = ticket
            self.of_owner[k].append(ticket)
            if other is None or other.ack == math.inf:
                self.tickets[number] = ticket

    def left(self, record, fate):
        k = record['key'], record['owner']
        known = self.mine.get(k)
        if record['outcome'] not in ('ok', 'info'):
            return
        self.moves[k].append((record['inv'], fate[2]))
        said = record['outcome'] == 'ok' and record['rows'][0]['left']
        if known is None:
            if said and k not in self.vague and not any(begin <= record['comp'] and record['inv'] <= end for begin, end in self.asked[k]):
                self.checker.say('place', f'{k[1]} has left the line for {k[0]} without a place', record)
            return
        if record['outcome'] == 'ok' and not said:
            self.proofs.append((known, known.end, record, 'its owner is told that it has none'))
        known.end = min(known.end, record['inv'])
        self.over(k, known, record, fate)

    def moved(self, record, fate, key, owner):
        """Processes a call that may have acquired the key and so ended the ticket"""
        k = key, owner
        self.moves[k].append((record['inv'], fate[2]))
        known = self.mine.get(k)
        if record['op'] == 'enqueue' and record['outcome'] == 'info':
            self.vague.add(k)
            self.asked[k].append((record['inv'], fate[2] + record['keep'] + record['offer']))
        if known is not None:
            known.end = min(known.end, record['inv'])
            self.over(k, known, record, fate)

    def over(self, k, known, record, fate):
        """The owner ended the ticket, unless that is undone"""
        if fate[0] != 'done' or record['outcome'] != 'ok':
            known.blind = max(known.blind, fate[2])
            if record['outcome'] == 'info' and record['op'] == 'enqueue':
                known.last = max(known.last, fate[2] + record['keep'] + record['offer'])
        elif record.get('lifetime') != 'transaction' or not self.checker.crashes:
            known.last = min(known.last, fate[2])
            del self.mine[k]

    # -- the judgements ---------------------------------------------------------

    def prepare(self):
        """Combines the facts before the judgements"""
        for record, _ in self.views:
            for row in record['rows']:
                self.is_there(record, row)
        for when, key, event in self.checker.history.events:
            if event['event'] == 'offered':
                made = self.moment(event['at'])
                self.offers[key].append(Offer(when, self.moment(event['until']), event['holder'], event['ticket'], made, made))
        by_key = defaultdict(list)
        for k, list_of in self.of_owner.items():
            by_key[k[0]] += [t for t in list_of if t.ack < math.inf]
        self.by_key = by_key
        self.certain = {key: self.others((t.ack, self.until(t), t.owner) for t in list_of) for key, list_of in by_key.items()}
        possible = defaultdict(list)
        for k, list_of in self.asked.items():
            possible[k[0]] += [(begin, end, k[1]) for begin, end in list_of]
        for k, list_of in self.of_owner.items():
            possible[k[0]] += [(t.inv, t.last, k[1]) for t in list_of]
        self.possible = {key: self.others(list_of) for key, list_of in possible.items()}

    def moment(self, text):
        return self.checker.local(datetime.fromisoformat(text).timestamp())

    def is_there(self, record, row):
        """Processes a row of lock_queue"""
        ticket = self.tickets.get(row['ticket'])
        if ticket is not None and ticket.owner == row['holder']:
            ticket.seen = max(ticket.seen, record['inv'])
            if row['until'] is None:
                ticket.base = max(ticket.base, record['inv'])
        if row['until'] is not None:
            until = self.checker.local(row['until'])
            # Its owner may have requested another length of offers since.
            made = until - max(row['offer'], ticket.longest if ticket is not None else math.inf)
            self.offers[record['key']].append(Offer(record['comp'], until, row['holder'], row['ticket'], record['inv'], made))

    @staticmethod
    def until(ticket):
        return max(ticket.seen, ticket.until())

    def valid(self, ticket, begin, end):
        """Whether the ticket was valid from begin to end. Later evidence does not count across a
        crash."""
        if ticket is None or ticket.ack > begin or end > self.until(ticket) or \
           any(first <= end and begin <= last for first, last in ticket.gaps):
            return False
        return end <= ticket.until() or not self.crashed(begin, ticket.seen)

    def crashed(self, begin, end):
        return any(lost <= end and back >= begin for lost, back in self.checker.crashes)

    def run(self):
        if self.checker.steps or self.checker.failovers:
            return
        self.lost()
        self.cut()
        self.offered()
        self.jumped()

    def lost(self):
        for ticket, end, record, text in self.proofs:
            sure = max(ticket.seen if not self.crashed(record['inv'], ticket.seen) else 0, ticket.until(end))
            if ticket.ack <= record['inv'] and ticket.blind < record['inv'] and record['comp'] <= sure:
                self.checker.say('place', f'{text}: {ticket}', record, ticket.record)
        waiting = {key: sorted(list_of, key=lambda t: -t.ack) for key, list_of in self.by_key.items()}
        active = defaultdict(list)
        for record, inside in sorted(self.views, key=lambda v: v[0]['inv']):
            key, there = record['key'], {row['ticket'] for row in record['rows']}
            while waiting.get(key) and waiting[key][-1].ack <= record['inv']:
                active[key].append(waiting[key].pop())
            active[key] = [t for t in active[key] if self.until(t) >= record['inv']]
            for ticket in active[key]:
                if ticket.number not in there and self.valid(ticket, record['inv'], record['comp']) and \
                   not (inside and self.checker.client_of.get(ticket.owner) == record['client']):
                    self.checker.say('place', f'lock_queue does not have it: {ticket}', record, ticket.record)
            rows = sorted(record['rows'], key=lambda row: row['place'])
            if [row['ticket'] for row in rows] != sorted(there) or \
               any(row['place'] <= i or i and row['place'] <= rows[i - 1]['place'] for i, row in enumerate(rows)):
                self.checker.say('place', 'they are not in their order', record)

    def cut(self):
        """Ends offers at the first event that can have ended them"""
        for key, list_of in self.offers.items():
            for offer in list_of:
                ends = [begin for begin, end in self.moves.get((key, offer.owner), ())
                        if end >= offer.since - self.clock and begin < offer.until]
                ends += [begin for begin, end, _, thief in self.checker.forced.get(key, ())
                         if thief is not None and end >= offer.made - self.clock and begin < offer.until]
                ends += [lost for lost, back in self.checker.crashes if back >= offer.since - self.clock]
                offer.end = min([offer.until - self.clock] + ends)

    def offered(self):
        held = defaultdict(list)
        for holding in self.checker.holdings:
            begin, end = self.checker.certain(holding)
            if end > begin:
                held[holding.key].append((begin, end, holding.owner))
        held = {key: self.others(list_of) for key, list_of in held.items()}
        nobody = self.others(())
        for key, list_of in self.offers.items():
            self.twice(key, list_of)
            before = None, None		# the two of different tickets that end last
            for offer in sorted((o for o in list_of if o.end > o.begin), key=lambda o: o.begin):
                for other in before:
                    if other is not None and other.number != offer.number and other.end > offer.begin:
                        self.checker.say('offer', f'{key} was offered to two:\n    {other}\n    {offer}')
                if before[0] is None or offer.end > before[0].end:
                    before = offer, before[1] if before[0] is None or before[0].number == offer.number else before[0]
                elif offer.number != before[0].number and (before[1] is None or offer.end > before[1].end):
                    before = before[0], offer
                if held.get(key, nobody).meets(offer.owner, offer.begin, offer.end):
                    self.checker.say('offer', f'{key} was held by another while it was offered {offer}: {held[key].last(offer.end)}')
        during = {key: self.others((o.begin, o.end, o.owner) for o in list_of) for key, list_of in self.offers.items()}
        for holding in self.new_grants():
            record = holding.record
            for r in during.get(holding.key, nobody).last(record['inv']):
                if r is not None and r[1] >= record['comp'] and r[2] != holding.owner:
                    self.checker.say('offer', f'{holding.key} was granted while it was offered to {r[2]} from {r[0]:.6f} to {r[1]:.6f}:'
                                     f'\n    {holding}', record)

    def twice(self, key, list_of):
        """A ticket ends with its offer, so it gets no second offer, unless the key was stolen"""
        first = {}
        for offer in sorted(list_of, key=lambda o: o.begin):
            other = first.setdefault(offer.number, offer)
            if abs(offer.until - other.until) > self.clock and not self.crashed(other.made, offer.begin) and \
               not any(thief is not None and end >= other.made - self.clock and begin <= offer.begin
                       for begin, end, _, thief in self.checker.forced.get(key, ())):
                self.checker.say('offer', f'{key} was offered twice:\n    {other}\n    {offer}')

    def new_grants(self):
        """The grants for which the owner had to wait for its turn"""
        for holding in self.checker.holdings:
            record, before = holding.record, holding.before
            if holding.anew and record['op'] in ('acquire', 'acquire_all', 'fetch', 'enqueue') and \
               record['id'] not in self.again and holding.lifetime != 'pin' and \
               (before is None or before.last < record['inv'] - self.clock):
                yield holding

    def since(self, key, owner, moment):
        """The earliest begin of a ticket that the owner may have at that moment"""
        had = self.asked.get((key, owner), []) + [(t.inv, t.last) for t in self.of_owner.get((key, owner), ())]
        return min((begin for begin, end in had if end >= moment), default=moment)

    def jumped(self):
        nobody = self.others(())
        for holding in self.new_grants():
            record, key = holding.record, holding.key
            begin = min(record['inv'], self.since(key, holding.owner, record['inv']))
            self.grants += 1
            found = self.certain.get(key, nobody).last(begin)
            if any(r is not None and r[1] >= record['inv'] for r in found):
                self.judged += 1
            for r in found:
                if r is None or r[1] < record['comp'] or r[2] == holding.owner:
                    continue
                ticket = next(t for t in self.of_owner[key, r[2]] if (t.ack, self.until(t)) == r[:2])
                if self.valid(ticket, record['inv'], record['comp']):
                    self.checker.say('line', f'{key} was granted to who asked for it after {ticket}:\n    {holding}', record, ticket.record)

    # -- for others -------------------------------------------------------------

    def in_the_way(self, key, owner, begin, end):
        """Whether another owner may have been in line before this one asked"""
        if key not in self.possible:
            return False
        first = end
        for ticket in self.of_owner.get((key, owner), ()):
            if self.valid(ticket, begin, end):
                first = min(first, ticket.ack)
        return self.possible[key].meets(owner, begin, first)

    def summary(self):
        offers = len({(key, offer.number) for key, list_of in self.offers.items() for offer in list_of})
        return f'{len(self.tickets)} places, {offers} offers, {self.judged} of {self.grants} grants behind places'
