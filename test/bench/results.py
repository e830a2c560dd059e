"""Reads the results of a benchmark, bench_results/*.tsv, for report and plots.py.

Any file, and any lane in it, may be missing: a peer was not available, or only some sections ran.
The functions then return None, or an empty list.

Ratios are medians of those within each round, as in test/bench/run, so that other load affects
both sides.
"""

import csv
import re
import statistics
from collections import defaultdict
from pathlib import Path

# Names of lanes that their file does not name
TITLES = {
    'lock_pair': 'atomic_lock',
    'lock_pair_one': 'atomic_lock, one column',
    'lock_pair_owner': 'atomic_lock, owner named',
    'lock_pair_owners': 'atomic_lock, owners changing',
    'lock_next': 'atomic_lock, with the next',
    'lock_pipeline': 'atomic_lock, in a pipeline',
    'lock_shared': 'atomic_lock, 10 keys shared',
    'lock_relaxed_one': 'atomic_lock, one column',
    'lock_transaction': 'atomic_lock',
    'lock_refused': 'atomic_lock',
    'lock_refused_one': 'atomic_lock, one column',
    'lock_set': 'lock_acquire_all, lock_release_all',
    'lock_path': 'a path of four parts',
    'sql_four': 'four keys of a set',
    'lock_status': 'lock_status(key)',
    'lock_status_one': 'lock_status(key), one column',
    'lock_is_held': 'lock_is_held(key, owner)',
    'sql_pair': 'hand-written SQL',
    'sql_refused': 'hand-written SQL, ON CONFLICT',
    'sql_singles': 'an acquire for each key',
    'plpgsql_pair': 'hand-written PL/pgSQL',
    'laravel_pair': 'Laravel DatabaseLock',
    'shedlock_pair': 'ShedLock',
    'spring_pair': 'Spring JdbcLockRegistry',
    'pglock_pair': 'cirello pglock',
    'redis_default': 'Redis, default',
    'redis_always': 'Redis, appendfsync always',
    'etcd': 'etcd',
    'advisory_pair': 'pg_advisory_lock',
    'advisory': 'pg_advisory_lock',
    'pg_advisory_lock': 'pg_advisory_lock',
    'sql_advisory': 'pg_advisory_xact_lock',
    'read_row': 'a SELECT of the row',
    'roundtrip': 'SELECT 1',
    'from_row': 'a row of a built-in function, in FROM',
    'updates': 'two one-row UPDATEs',
    'one_flush': 'a flushed UPDATE, one that is not',
    'one_write': 'one UPDATE and SELECT 1',
    'atomic_lock': 'atomic_lock',
    'atomic_lock_named': 'atomic_lock, owner named',
    'atomic_lock_relaxed': 'atomic_lock, nothing flushed',
    'poll': 'a try every 100 ms',
    'sql': 'hand-written SQL',
    'document': 'a path below the key',
    'share': 'share and release',
    'refused': 'refused, asked for exclusively',
    'status': 'lock_status(key)',
    'is_held': 'lock_is_held(key, owner)',
}
# The lane that each lane with policies is compared with
POLICIES = {'none': None, 'few': 'none', 'many': 'none', 'history': 'none',
            'flushed': None, 'flushed_history': 'flushed', 'refused': None}
# Without locks, or without leases: for comparison
YARDSTICKS = ('roundtrip', 'from_row', 'updates', 'one_flush', 'one_write', 'advisory', 'sql_advisory', 'pg_advisory')
FLOOR = ('updates', 'one_flush', 'one_write')
NOT_TABLES = ('redis', 'etcd')
DURABLE, WAYS, RELAXED = ('durable',), ('ways',), ('relaxed', 'memory')


def base(lane):
    """The lane without its durability: the statements it sends"""
    name = re.sub(r'_relaxed$', '', lane)
    return name + '_pair' if name != lane and name + '_pair' in TITLES else name


def kind(lane):
    """ours, yardstick, table or other: the kind of peer"""
    if lane.startswith(('lock_', 'atomic_lock')):
        return 'ours'
    if lane.startswith(YARDSTICKS):
        return 'yardstick'
    return 'other' if lane.startswith(NOT_TABLES) else 'table'


def durable(lane):
    """Judged by the lane's name; groups, if any, tell it more exactly"""
    return not lane.endswith('_relaxed') and not lane.startswith(('redis_default', 'advisory', 'pg_advisory'))


def number(text):
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def ratio(mine, theirs):
    """The ratio of two {round: value}"""
    both = [mine[r] / theirs[r] for r in mine if mine[r] is not None and theirs.get(r)]
    if both:
        return statistics.median(both)
    mine, theirs = median(mine.values()), median(theirs.values())
    return mine / theirs if mine is not None and theirs else None


class Lane:
    """The results of a lane with one number of clients (or waiters)"""

    def __init__(self):
        self.rates, self.p50s, self.p99s, self.rest = {}, {}, {}, defaultdict(list)

    rate = property(lambda self: median(self.rates.values()))
    p50 = property(lambda self: median(self.p50s.values()))
    p99 = property(lambda self: median(self.p99s.values()))


class Results:
    def __init__(self, directory):
        self.directory, self.used = Path(directory), []
        # By file: a lane may have different titles
        self.titles, self.groups = defaultdict(dict), {}
        self.setting = {row['name']: row['value'] for row in self.read('setting.tsv')}
        self.lanes = self.read_lanes()
        self.hotset = self.read_runs('hotset.tsv', 'lane', 'clients', 'per_s', ('inversions',))
        self.handoff = self.read_runs('handoff.tsv', 'mode', 'waiters', 'handovers',
                                      ('handovers', 'inversions', 'longest_wait_us'))
        self.readers = self.read_runs('readers.tsv', 'lane', 'readers', 'per_s', ('max_holders',))
        self.policies = self.read_policies()
        self.queue, self.fills = self.read_queue(), self.read_fills()
        self.sweeps = [row for row in self.read('sweep.tsv') if row['what'] == 'expired']
        self.growth = self.read_growth()

    def read(self, name):
        path = self.directory / name
        if not path.exists():
            return []
        with path.open(encoding='utf-8', newline='') as file:
            rows = list(csv.DictReader(file, delimiter='\t', quoting=csv.QUOTE_NONE))
        if rows:
            self.used.append(path)
        return rows

    def read_lanes(self):
        """{(lane, clients): Lane}; the summary says which, the runs add the rounds"""
        lanes, last = defaultdict(Lane), ''
        for row in self.read('summary.tsv'):
            lane, clients = row['lane'], int(row['clients'])
            # The least that any durable lock costs belongs to the durable group
            self.groups[lane] = 'durable' if lane in FLOOR else row['group']
            last = self.call('summary.tsv', lane, row.get('title'), last)
            lanes[lane, clients].rates = {0: number(row['tps'])}
            lanes[lane, clients].p50s = {0: number(row['p50_us'])}
            lanes[lane, clients].p99s = {0: number(row['p99_us'])}
        rounds = defaultdict(dict)
        for row in self.read('runs.tsv'):
            rounds[row['lane'], int(row['clients'])][int(row['round'])] = number(row['tps'])
        for key, rates in rounds.items():
            if key in lanes:
                lanes[key].rates = rates
        return dict(lanes)

    def call(self, file, lane, title, last):
        """The title of a lane in a file; "... every ms" is the previous one with another end, and
        "the same" is replaced, since tables are sorted"""
        titles = self.titles[file.partition('.')[0]]
        if title and title.startswith(('the same', '...')):
            title = TITLES.get(lane) or TITLES.get(base(lane)) or title
        if title and lane not in titles:
            if title.startswith('...'):
                title = f'{last.rpartition(",")[0] or last}, {title[3:].strip()}'
            titles[lane] = title
        return titles.get(lane, last)

    def read_runs(self, file, lane, clients, rate, rest):
        runs, last = defaultdict(Lane), ''
        for row in self.read(file):
            run, r = runs[row[lane], int(row[clients])], int(row['round'])
            last = self.call(file, row[lane], row.get('title'), last)
            run.rates[r], run.p50s[r], run.p99s[r] = (number(row.get(c)) for c in (rate, 'p50_us', 'p99_us'))
            for column in rest:
                if number(row.get(column)) is not None:
                    run.rest[column].append(number(row[column]))
        return dict(runs)

    def read_policies(self):
        """{lane: Lane}; "read" has no rates, but ms and bytes"""
        lanes = defaultdict(Lane)
        for row in self.read('policies.tsv'):
            lane, r = lanes[row['lane']], int(row['round'])
            if row['lane'] in POLICIES:
                lane.rates[r], lane.p50s[r], lane.p99s[r] = (number(row[c]) for c in ('per_s', 'p50_us', 'p99_us'))
            for column in ('ms', 'bytes'):
                lane.rest[column].append(number(row[column]))
        return dict(lanes)

    def read_queue(self):
        """{(mode, number): Lane}; "p99s" are p90s, and rates are the number of overtaken users,
        the mean of "line_..." in us, or pairs of "plain" and "notify" a second"""
        lanes = defaultdict(Lane)
        for row in self.read('queue.tsv'):
            lane, r = lanes[row['mode'], int(row['number'])], int(row['round'])
            lane.p50s[r], lane.p99s[r], lane.rates[r] = (number(row[c]) for c in ('p50_us', 'p90_us', 'overtaken'))
        return dict(lanes)

    def read_fills(self):
        """{(role, clients): {fill: Lane}}"""
        fills = defaultdict(lambda: defaultdict(Lane))
        for row in self.read('fill.tsv'):
            lane = fills[row['role'], int(row['clients'])][row['fill']]
            lane.rates[int(row['round'])] = number(row['per_s'])
            for column in ('pairs', 'prunes', 'hot', 'not_hot'):
                lane.rest[column].append(number(row[column]) or 0)
        return dict(fills)

    def read_growth(self):
        """{(section, what, unit): {x: {round: [value]}}}"""
        growth = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
        for row in self.read('growth.tsv'):
            x, value = number(row['x']), number(row['value'])
            if x is not None and value is not None:
                growth[row['section'], row['what'], row['unit']][x][row['round']].append(value)
        return {key: dict(sorted(points.items())) for key, points in growth.items()}

    def title(self, lane, measured='summary'):
        return self.titles[measured].get(lane) or TITLES.get(lane) or TITLES.get(base(lane)) or lane.replace('_', ' ')

    def clients(self, groups=None):
        return sorted({c for lane, c in self.lanes if groups is None or self.groups[lane] in groups})

    def usual_clients(self, groups=None):
        """8, if it was measured"""
        numbers = self.clients(groups)
        return 8 if 8 in numbers or not numbers else numbers[-1]

    def of(self, groups, clients=None):
        """The lanes of some groups, sorted by speed if clients are given"""
        names = [lane for lane in self.groups if self.groups[lane] in groups]
        if clients is not None:
            names.sort(key=lambda lane: -(self.rate(lane, clients) or 0))
        return names

    def rate(self, lane, clients):
        return self.lanes[lane, clients].rate if (lane, clients) in self.lanes else None

    def times(self, mine, theirs, clients):
        """The rate of one lane divided by that of another"""
        if (mine, clients) not in self.lanes or (theirs, clients) not in self.lanes:
            return None
        return ratio(self.lanes[mine, clients].rates, self.lanes[theirs, clients].rates)

    def hardest(self, runs, ours, clients, peers):
        """(our rate divided by the peer's, peer), for the peer with the lowest ratio"""
        found = []
        for peer in peers:
            if (ours, clients) in runs and (peer, clients) in runs:
                times_peer = ratio(runs[ours, clients].rates, runs[peer, clients].rates)
                if times_peer is not None:
                    found.append((times_peer, peer))
        return min(found, default=(None, None))

    def shared(self, lane):
        """The numbers of sharers that a lane was run with, in ascending order"""
        return sorted(readers for name, readers in self.readers if name == lane)

    def shared_times(self, lane, readers):
        """Its rate divided by that with the fewest sharers, or without a limit"""
        base = ('unlimited', readers) if lane == 'limited' else (lane, min(self.shared(lane)))
        return ratio(self.readers[lane, readers].rates, self.readers[base].rates) if base in self.readers else None

    def policy_times(self, lane):
        """Its rate divided by that of the lane it is compared with"""
        other = POLICIES[lane]
        return ratio(self.policies[lane].rates, self.policies[other].rates) if {lane, other} <= set(self.policies) else None

    def curve(self, section, what, unit):
        """[(x, median over the rounds)]"""
        points = self.growth.get((section, what, unit), {})
        return [(x, median(v for values in rounds.values() for v in values)) for x, rounds in points.items()]

    def grown(self, section, what, unit):
        """The value at the greatest x, or None"""
        points = self.curve(section, what, unit)
        return points[-1][1] if points else None

    def grown_times(self, section, mine, theirs, unit):
        """The ratio to theirs, at the greatest x of ours"""
        points = [self.growth.get((section, what, unit)) for what in (mine, theirs)]
        if None in points or max(points[0]) not in points[1]:
            return None
        at = max(points[0])
        return ratio(*({r: median(values) for r, values in p[at].items()} for p in points))

    def whats(self, section, unit):
        """The lanes of a section, ours first"""
        names = [what for s, what, u in self.growth if (s, u) == (section, unit)]
        return sorted(names, key=lambda what: (kind(what) != 'ours', names.index(what)))


# ---------------------------------------------------------------------------
# Numbers, as people read them
# ---------------------------------------------------------------------------

NONE = '–'


def whole(value):
    """Three digits that mean something"""
    if value is None:
        return NONE
    if value < 1000:
        return f'{value:.3g}' if value < 100 else f'{value:.0f}'
    step = 10 ** (len(str(int(value))) - 3)
    return f'{round(value / step) * step:,.0f}'


def exact(value):
    return NONE if value is None else f'{value:,.0f}'


def ms(us):
    return NONE if us is None else plain_ms(us / 1000)


def plain_ms(value):
    if value is None:
        return NONE
    if value >= 1000:
        return whole(value)
    return f'{value:.{3 if value < 0.1 else 2 if value < 10 else 1 if value < 100 else 0}f}'


def times(value):
    return NONE if value is None else f'{value:.{2 if value < 10 else 1 if value < 100 else 0}f}'


def small(value):
    return NONE if value is None else f'{value:.3f}'


def size(value):
    if value is None:
        return NONE
    for unit in ('bytes', 'kB', 'MB'):
        if value < 1000 or unit == 'MB':
            return f'{value:.{0 if unit == "bytes" or value >= 100 else 1}f} {unit}'
        value /= 1000


def count(value):
    """Of clients, cycles, locks: 1k, 2M"""
    for limit, unit in ((1e6, 'M'), (1e3, 'k')):
        if value >= limit:
            return f'{value / limit:.3g}{unit}'
    return f'{value:g}'
