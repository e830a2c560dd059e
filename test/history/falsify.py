"""Shows that the checker would notice each kind of fault: takes a history without contradictions
and makes one answer wrong, in each way that the checker knows."""

import copy
from datetime import datetime, timedelta

from checker import Checker

TRIES = 60		# a wrong answer need not contradict another record


def autocommit(records):
    """Calls outside of transaction blocks"""
    inside = {}
    for record in records:
        client = record['client']
        if record['op'] == 'begin':
            inside[client] = True
        elif record['op'] in ('commit', 'rollback', 'connect', 'disconnect'):
            inside[client] = False
        elif not inside.get(client):
            yield record


def is_lease(record):
    return record['op'] == 'acquire' and record['lifetime'] == 'lease' and record['client'] != 'judge'


def granted_twice(record, rows):
    """A refusal becomes a grant: another owner holds the key"""
    if is_lease(record) and record['outcome'] == 'refused' and rows and record['mode'] == 'exclusive':
        record['outcome'] = 'ok'
        record['rows'] = [dict(rows[0], acquired=True, status='acquired', mode='exclusive', fencing_token=1 << 52,
                               expires=2e10, key=record['key'])]
        return True
    return False


def token_falls(record, rows):
    if is_lease(record) and record['outcome'] == 'ok' and rows[0]['status'] == 'acquired':
        rows[0]['fencing_token'] = 7
        return True
    return False


def denied(record, rows):
    """A holder gets the answer that it does not have the key"""
    if record['op'] in ('release', 'held') and record['outcome'] == 'ok':
        record['outcome'] = 'refused'
        record['rows'] = [{'released': 'not_found', 'held': False}]
        return True
    return False


def revived(record, rows):
    """A client that never had the key releases it"""
    if record['op'] == 'release' and record['owner'].endswith('x') and rows and 'released' in rows[0]:
        record['outcome'], rows[0]['released'] = 'ok', 'released'
        return True
    return False


def nobody_there(record, rows):
    """A refusal of a free key, at the end of the run"""
    if is_judges(record) and record['limit'] is None:
        record['outcome'] = 'refused'
        record['rows'] = [dict(rows[0], acquired=False, status='held', owner=None, fencing_token=None)]
        return True
    return False


def is_judges(record):
    return record['client'] == 'judge' and record['op'] == 'acquire' and record['outcome'] == 'ok'


def is_limited(record):
    return is_lease(record) and record['limit'] is not None


def one_more(record, rows):
    """A grant beyond max_holders"""
    if is_limited(record) and record['outcome'] == 'refused' and rows and rows[0]['holders'] >= record['limit']:
        record['outcome'] = 'ok'
        record['rows'] = [dict(rows[0], acquired=True, status='acquired', mode='shared', fencing_token=1 << 52,
                               expires=2e10, key=record['key'], holders=record['limit'])]
        return True
    return False


def at_once(record, rows):
    """A grant that was answered at once, before a seat became free"""
    if is_limited(record) and record['outcome'] == 'ok' and rows[0]['status'] == 'acquired' and \
       record['comp'] > record['inv'] + 0.02:
        record['comp'] = record['inv'] + 0.001
        return True
    return False


def fewer_allowed(record, rows):
    """A grant with a smaller max_holders"""
    if is_limited(record) and record['outcome'] == 'ok' and rows[0]['status'] == 'acquired' and record['limit'] > 1:
        record['limit'] = rows[0]['max_holders'] = rows[0]['holders'] = 1
        return True
    return False


def place_there(record, rows):
    """A refusal though a seat was free"""
    if is_judges(record) and record['limit'] is not None:
        record['outcome'] = 'refused'
        record['rows'] = [dict(rows[0], acquired=False, status='held', owner=None, fencing_token=None,
                               holders=record['limit'])]
        return True
    return False


def place_unseen(record, rows):
    """The same, as "pending" with no holders"""
    if place_there(record, rows):
        record['rows'][0].update(status='pending', holders=0)
        return True
    return False


def miscounted(record, rows):
    """lock_status leaves a holder out"""
    if record['op'] == 'look' and record['outcome'] == 'ok' and rows[0]['locked'] and rows[0]['holders'] > 1:
        rows[0]['holders'] -= 1
        return True
    return False


def counted_twice(record, rows):
    if record['op'] == 'look' and record['outcome'] == 'ok' and rows[0]['locked']:
        rows[0]['holders'] *= 2
        return True
    return False


def another_error(record, rows):
    if record['op'] == 'release' and record['outcome'] == 'refused':
        record['outcome'], record['sqlstate'] = 'error', '40001'
        return True
    return False


def key_too_many(record, rows):
    """A grant beyond a quota"""
    if is_lease(record) and record.get('sqlstate') == '53400':
        record['outcome'], record['sqlstate'] = 'ok', None
        record['rows'] = [{'acquired': True, 'status': 'acquired', 'mode': record['mode'], 'fencing_token': 1 << 52, 'expires': 2e10,
                           'key': record['key'], 'holders': None, 'max_holders': 0}]
        return True
    return False


def quota_unseen(record, rows):
    """A refusal by a quota that is not used up"""
    if is_lease(record) and record['outcome'] == 'ok' and rows[0]['status'] == 'acquired':
        record['outcome'], record['sqlstate'], record['rows'] = 'refused', '53400', None
        record['message'] = 'Role "blue" holds 4 of at most 4 keys, by the policy for prefix "k:"'
        return True
    return False


def jumped(record, rows, expires=0):
    """A short grant to a client that asked after others in line"""
    if record['op'] == 'acquire' and record['client'] != 'judge' and record['outcome'] == 'refused' and rows:
        record['outcome'] = 'ok'
        record['rows'] = [dict(rows[0], acquired=True, status='acquired', mode=record['mode'], fencing_token=1 << 52,
                               expires=expires, key=record['key'])]
        return True
    return False


def granted_though_offered(record, rows):
    return jumped(record, rows)


def place_lost(record, rows):
    """An owner that renews its ticket gets another one"""
    if record['op'] == 'enqueue' and record['outcome'] == 'ok' and rows[0]['status'] == 'queued':
        rows[0]['ticket'] += 1 << 50
        return True
    return False


def leaves_nothing(record, rows):
    """An owner that leaves the line gets the answer that it has no ticket"""
    if record['op'] == 'leave' and record['outcome'] == 'ok' and rows[0]['left']:
        rows[0]['left'] = False
        return True
    return False


def unlisted(record, rows):
    """lock_queue leaves a ticket out"""
    if record['op'] == 'places' and record['outcome'] == 'ok' and rows:
        del rows[-1]
        return True
    return False


# These change events, a list of (when, key, event). "place" and "other" are indexes of offers.

def offered_to_two(events, place, other):
    """A key is offered to a second owner during an offer"""
    when, key, event = events[place]
    events.append((when + 0.0005, key, dict(event, ticket=events[other][2]['ticket'], holder='another')))


def offered_twice(events, place, _):
    """A key is offered again to the same ticket"""
    when, key, event = events[place]
    events.append((when + 0.0005, key, dict(event, until=(datetime.fromisoformat(event['until']) + timedelta(seconds=0.1)).isoformat())))


# These change rows of lock_history, sorted by token. "place" is an index.

def unrecorded(rows, place):
    """A grant without a row"""
    del rows[place]


def never_granted(rows, place):
    """A row without a grant"""
    rows[place] = dict(rows[place], token=1 << 52)


def ended_otherwise(rows, place):
    """Another reason of the end"""
    rows[place]['by'] = 'forced' if rows[place]['by'] == 'released' else 'released'


def ended_early(rows, place):
    """An end while the owner certainly had the key"""
    rows[place]['end'] = rows[place]['begin']


def ended_late(rows, place):
    """An end after the next owner got the key"""
    rows[place]['end'] += 3


def another_owner(rows, place):
    rows[place]['digest'] = rows[place - 1]['digest']


CALLS = (('exclusion', granted_twice), ('order', token_falls), ('loss', denied), ('revival', revived),
        ('cause', nobody_there), ('errors', another_error), ('limits', one_more), ('limits', at_once),
        ('limits', fewer_allowed), ('limits', place_there), ('cause', place_unseen),
        ('count', miscounted), ('count', counted_twice))
LINES = (('line', jumped), ('offer', granted_though_offered), ('place', place_lost), ('place', leaves_nothing), ('place', unlisted))
POLICIES = (('quota', key_too_many), ('quota', quota_unseen))
EVENTS = (offered_to_two, offered_twice)
GRANTS = (('history', unrecorded), ('history', never_granted), ('history', ended_otherwise), ('history', ended_early),
          ('history', ended_late), ('quota', ended_late), ('history', another_owner))


def falsify(history, counters, journal, rng, ways, **how):
    """Returns two lists: what the checker did not notice, and what it noticed, with counts"""
    unnoticed, noticed = [], []
    if not journal or len(history.grants) == 1:
        return ['what has not happened'], []

    def judge(records, counters, journal, kind, grants=history.grants, events=history.events):
        changed = copy.copy(history)
        changed.records, changed.grants, changed.events = records, grants, events
        checker = Checker(changed, **how)
        checker.run({kind})
        checker.counters(counters, journal)
        return {text.split(':')[0] for text in checker.wrong}

    simple = {record['id'] for record in autocommit(history.records)}
    for kind, way in ways:
        tried = found = 0
        places = list(range(len(history.records)))
        rng.shuffle(places)
        for place in places:
            original = history.records[place]
            if original['id'] not in simple or original.get('comp') is None:
                continue
            record = copy.deepcopy(original)
            rows = record.get('rows')
            if not way(record, rows if isinstance(rows, list) else None):
                continue
            tried += 1
            found += kind in judge(history.records[:place] + [record] + history.records[place + 1:],
                                   counters, journal, kind)
            if found or tried == TRIES:
                break
        (noticed if found else unnoticed).append(f'{way.__name__} {found}/{tried}')
    for kind, way in GRANTS if history.grants else ():
        for tried in range(1, TRIES + 1):
            grants = [dict(row) for row in sorted(history.grants, key=lambda row: row['token'])]
            way(grants, rng.randrange(1, len(grants)))
            if kind in judge(history.records, counters, journal, kind, grants):
                noticed.append(f'{way.__name__} 1/{tried}')
                break
        else:
            unnoticed.append(f'{way.__name__} 0/{TRIES}')
    offers = [place for place, (_, _, event) in enumerate(history.events) if event['event'] == 'offered']
    for way in EVENTS if offers else ():
        for tried in range(1, TRIES + 1):
            events = list(history.events)
            way(events, rng.choice(offers), rng.choice(offers))
            if 'offer' in judge(history.records, counters, journal, 'offer', events=events):
                noticed.append(f'{way.__name__} 1/{tried}')
                break
        else:
            unnoticed.append(f'{way.__name__} 0/{TRIES}')
    write = journal[rng.randrange(len(journal))]
    fewer = [entry for entry in journal if entry is not write]
    for what, values, entries in (
            ('lost update', counters, fewer),
            ('wrong counter', {n: v + (n == write[1]) for n, v in counters.items()}, journal)):
        (noticed if 'counters' in judge(history.records, values, entries, 'counters') else unnoticed).append(what)
    return unnoticed, noticed
