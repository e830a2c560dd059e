"""The scenarios of the explorer: calls of two or three sessions, in states of a key.

A scenario is a state of the key, a program for each session, and how often two hours
may pass.  Programs are lists of SQL; {k} is the key, which is also a folder of the paths {k}d
and {k}e; {a} to {d} are owners.  Each schedule has a new key and new owners.  A lease lasts an hour, and a wait ten hours.
"""

import functools
import itertools
import random
from dataclasses import dataclass, field

ANSWER = 'status, mode, holder, fencing_token'


def acquire(more='', ttl="'1 h'"):
    return lambda o: f"SELECT {ANSWER} FROM lock_try_acquire('{{k}}', {ttl}, '{{{o}}}', holder => '{o}'{more})"


def with_owner(sql):
    return lambda o: sql.replace('{o}', '{' + o + '}').replace('{label}', o).replace('{other}', '{b}' if o == 'a' else '{a}')


def block(call, *after, before=('BEGIN',)):
    return lambda o: [*before, call(o), *(with_owner(sql)(o) for sql in after)]


# The calls of one session. A name with a star needs a holder: the owner has the key in the state,
# or gets the key by another call.
SINGLE = {
    'acquire': acquire(),
    'share': acquire(", mode => 'shared'"),
    'share2': acquire(", mode => 'shared', max_holders => 2"),
    'wait': acquire(", wait => '10 h'"),
    'wait_share': acquire(", mode => 'shared', wait => '10 h'"),
    'once': acquire(", on_reacquire => 'error'"),
    'session': acquire(", lifetime => 'session'", 'NULL'),
    'set': with_owner("SELECT string_agg(status, ',' ORDER BY key), max(fencing_token) FROM "
                      "lock_try_acquire_all(ARRAY['{k}', '{k2}'], '1 h', '{o}', holder => '{label}')"),
    'path': with_owner("SELECT string_agg(status, ',' ORDER BY key), max(fencing_token) FROM "
                       "lock_try_acquire_path('{k}d', '1 h', '{o}', holder => '{label}')"),
    'path_wait': with_owner("SELECT string_agg(status, ',' ORDER BY key), max(fencing_token) FROM "
                            "lock_try_acquire_path('{k}d', '1 h', '{o}', wait => '10 h', holder => '{label}')"),
    'release_path*': with_owner("SELECT lock_release_path('{k}d', '{o}')"),
    'release*': with_owner("SELECT lock_try_release('{k}', '{o}')"),
    'release_all*': with_owner("SELECT lock_release_all('{o}')"),
    'extend*': with_owner("SELECT CASE WHEN lock_try_extend('{k}', '{o}', '3 h') IS NULL THEN 'no' ELSE 'extended' END"),
    'extend_all*': with_owner("SELECT lock_extend_all('{o}', '3 h')"),
    'heartbeat*': with_owner("SELECT status, expires_at IS NULL FROM lock_heartbeat(ARRAY['{k}'], '{o}', '3 h')"),
    'give*': with_owner(f"SELECT {ANSWER} FROM lock_try_transfer('{{k}}', '{{o}}', '{{other}}', 'other')"),
    'transfer*': with_owner(f"SELECT {ANSWER} FROM lock_try_transfer('{{k}}', '{{o}}', '{{d}}', 'd')"),
    'transfer_all*': with_owner("SELECT lock_transfer_all('{o}', '{other}', 'other')"),
    'convert*': with_owner(f"SELECT {ANSWER} FROM lock_try_convert('{{k}}', '{{o}}')"),
    'convert_shared*': with_owner(f"SELECT {ANSWER} FROM lock_try_convert('{{k}}', '{{o}}', 'shared')"),
    'convert_wait*': with_owner(f"SELECT {ANSWER} FROM lock_try_convert('{{k}}', '{{o}}', wait => '10 h')"),
    'force': with_owner("SELECT lock_try_force_release('{k}', 'test')"),
    'steal': with_owner(f"SELECT {ANSWER} FROM lock_steal('{{k}}', '{{o}}', 'test', '1 h', '{{label}}')"),
    'enqueue': with_owner("SELECT status, place, coalesce(fencing_token, 0), 'q' || ticket FROM lock_enqueue('{k}', '{o}', '{label}')"),
    'leave': with_owner("SELECT lock_leave('{k}', '{o}')"),
    'sweep': with_owner("SELECT lock_sweep() >= 0"),
    'assert*': with_owner("SELECT lock_assert('{k}', '{o}')"),
    'write*': with_owner("SELECT explore_write('{k}', '{o}')"),
    'fetch': with_owner("SELECT v FROM lock_fetch(NULL::explore_doc, '{k}', '1 h', '{o}', key => '{k}', holder => '{label}')"),
    'is_held*': with_owner("SELECT lock_is_held('{k}', '{o}')"),
    # A serial order never shows a pending change.
    'status': with_owner("SELECT locked, CASE WHEN locked THEN mode END, CASE WHEN locked THEN holder END, holders FROM lock_status('{k}')"),
}
BLOCKS = {
    **{name + '[tx]' if name[-1] != '*' else name[:-1] + '[tx]*': block(SINGLE[name], 'COMMIT')
       for name in ('acquire', 'wait', 'share', 'set', 'path', 'release_path*', 'release*', 'extend*', 'give*', 'convert*', 'convert_shared*', 'steal', 'force',
                    'enqueue', 'leave', 'assert*', 'write*')},
    'transaction': block(acquire(", lifetime => 'transaction'", 'NULL'), 'COMMIT'),
    'transaction[prepared]': block(acquire(", lifetime => 'transaction'", 'NULL'), "PREPARE TRANSACTION '{o}'", "COMMIT PREPARED '{o}'"),
    'share_transaction': block(acquire(", mode => 'shared', lifetime => 'transaction'", 'NULL'), 'COMMIT'),
    'acquire[rollback]': block(SINGLE['acquire'], 'ROLLBACK'),
    'release[rollback]*': block(SINGLE['release*'], 'ROLLBACK'),
    'acquire[back]': block(SINGLE['acquire'], 'ROLLBACK TO s', 'COMMIT', before=('BEGIN', 'SAVEPOINT s')),
    'wait[back]': block(SINGLE['wait'], 'ROLLBACK TO s', 'COMMIT', before=('BEGIN', 'SAVEPOINT s')),
    'acquire[prepared]': block(SINGLE['acquire'], "PREPARE TRANSACTION '{o}'", "COMMIT PREPARED '{o}'"),
    'release[prepared]*': block(SINGLE['release*'], "PREPARE TRANSACTION '{o}'", "COMMIT PREPARED '{o}'"),
    'session[end]': lambda o: [SINGLE['session'](o), 'DISCONNECT'],
}
CALLS = {**{name: (lambda o, call=call: [call(o)]) for name, call in SINGLE.items()}, **BLOCKS}
# These hand something to the other owner.
GIVES = {'give*', 'give[tx]*', 'transfer_all*'}


def lease(o, mode='exclusive'):
    return f"SELECT lock_acquire('{{k}}', '1 h', '{{{o}}}', '{mode}', holder => '{o}')"


TICKET = "SELECT lock_enqueue('{k}', '{%s}', '%s')"
PATH = "SELECT count(*) FROM lock_acquire_path('{k}%s', '1 h', '{%s}', holder => '%s')"
POLICY = "SELECT lock_set_policy('{k}', %s)"


@dataclass
class State:
    """What happens before the scenario: SQL, or CLOCK, which lets two hours pass. "third" is a
    session of its own, which executes third[0] before the scenario, and the rest as its program"""
    setup: list
    holders: str = ''
    third: tuple = ()
    is_free: bool = False


STATES = {
    'new': State([], is_free=True),
    'released': State([lease('c'), "SELECT lock_release('{k}', '{c}')"], is_free=True),
    'expired': State([lease('a'), 'CLOCK'], 'a', is_free=True),
    'a': State([lease('a')], 'a'),
    'b': State([lease('b')], 'b'),
    'a+b': State([lease('a', 'shared'), lease('b', 'shared')], 'ab'),
    'path a': State([PATH % ('d', 'a', 'a')], 'a'),
    'path a+b': State([PATH % ('d', 'a', 'a'), PATH % ('e', 'b', 'b')], 'ab'),
    'document a': State(["SELECT lock_acquire('{k}d', '1 h', '{a}', holder => 'a')"], 'a'),
    'sa': State([lease('a', 'shared')], 'a'),
    'sa+old': State([lease('c', 'shared'), 'CLOCK', lease('a', 'shared')], 'a'),
    'sc': State([lease('c', 'shared')]),
    'c': State([lease('c')]),
    'b,ticket a': State([lease('b'), TICKET % ('a', 'a')], 'b'),
    'a,ticket b': State([lease('a'), TICKET % ('b', 'b')], 'a'),
    'a,ticket c': State([lease('a'), TICKET % ('c', 'c')], 'a'),
    'a+b,ticket c': State([lease('a', 'shared'), lease('b', 'shared'), TICKET % ('c', 'c')], 'ab'),
    'offered b': State([lease('a'), TICKET % ('b', 'b'), "SELECT lock_release('{k}', '{a}')"]),
    'offered c': State([lease('a'), TICKET % ('c', 'c'), "SELECT lock_release('{k}', '{a}')"]),
    'closed': State([POLICY % "min_hold => '10 h'", lease('a'), "SELECT lock_release('{k}', '{a}')"]),
    'min_hold': State([POLICY % "min_hold => '10 min'", lease('a')], 'a'),
    'lock_delay': State([POLICY % "lock_delay => '10 min'", lease('a'), 'CLOCK'], 'a'),
    'quota': State([POLICY % 'max_keys_per_role => 1'], is_free=True),
    'quota,a': State([POLICY % 'max_keys_per_role => 1', "SELECT lock_acquire('{k2}', '1 h', '{a}', holder => 'a')"]),
    'places': State([POLICY % 'max_holders => 2', lease('c', 'shared')]),
    'roles': State([POLICY % "roles => '{{explore_other}}'"]),
    'pending': State([], third=(['BEGIN', lease('c')], 'COMMIT')),
    'pending,back': State([], third=(['BEGIN', lease('c')], 'ROLLBACK')),
    'pending share': State([], third=(['BEGIN', lease('c', 'shared')], 'COMMIT')),
    'releasing': State([lease('a')], 'a', third=(['BEGIN', "SELECT lock_release('{k}', '{a}')"], 'COMMIT')),
    'prepared': State([], third=(['BEGIN', lease('c'), "PREPARE TRANSACTION '{c}'"], "COMMIT PREPARED '{c}'")),
}
# States whose leases expire during the scenario
EXPIRING = ('a', 'sa', 'path a', 'a+b', 'sc', 'a,ticket b', 'a,ticket c', 'offered b', 'min_hold')


@dataclass
class Scenario:
    name: str
    setup: list
    programs: list
    clock: int = 0
    third: list = field(default_factory=list)
    is_free: bool = False

    def __post_init__(self):
        self.text = ' '.join(sql for program in [self.setup, self.third, *self.programs] for sql in program)
        # A call that concerns more than one key needs an empty table.
        self.is_alone = any(word in self.text for word in ('lock_sweep', 'lock_enqueue', 'lock_set_policy', 'PREPARE'))


def pair(state, x, y, clock=0, same=False):
    """Owner a calls x and owner b calls y; or owner a calls both"""
    s = STATES[state]
    name = f"{state}: {x} x {y}{' of the same owner' if same else ''}{' @expiry' if clock else ''}"
    programs = [CALLS[x]('a'), CALLS[y]('a' if same else 'b')]
    if s.third:
        programs.append([s.third[1]])
    return Scenario(name, s.setup, programs, clock, s.third[0] if s.third else [], s.is_free and not clock)


def is_of_interest(state, x, y, same):
    """Whether a call that needs a holder has one, or may have one"""
    has = [o in STATES[state].holders for o in ('a', 'a' if same else 'b')]
    if x[-1] == '*' and not has[0] and not (y in GIVES and has[1]):
        return False
    if y[-1] == '*' and not has[1] and not (x in GIVES and has[0]):
        return False
    if x in ('status', 'is_held*') and y in ('status', 'is_held*'):
        return False
    # Prepared transactions of one owner have the same name.
    return not (same and 'prepared' in x and 'prepared' in y)


def three():
    """Scenarios in which the order of waiters matters"""
    wait, release, enqueue = SINGLE['wait'], SINGLE['release*'], SINGLE['enqueue']
    programs = {
        'a: release, wait, wait': [[release('a')], [wait('b'), release('b')], [wait('c'), release('c')]],
        'a: release, enqueue, wait': [[release('a')], [enqueue('b')], [wait('c')]],
        'a: force, wait, wait_share': [[SINGLE['force']('a')], [wait('b'), release('b')], [SINGLE['wait_share']('c')]],
        'a: release, acquire, acquire': [[release('a')], [SINGLE['acquire']('b')], [SINGLE['acquire']('c')]],
        'a: release, acquire, enqueue of the same owner': [[release('a')], [SINGLE['acquire']('b')], [enqueue('b')]],
        'new: share2 three times': [[SINGLE['share2'](o)] for o in 'abc'],
        'a+b: convert, release, share': [[SINGLE['convert*']('a')], [release('b')], [SINGLE['share']('c')]],
        'a+b: release, convert, enqueue of the same owner': [[release('a')], [SINGLE['convert*']('b')], [enqueue('b')]],
        'a: extend, acquire, sweep @expiry': [[SINGLE['extend*']('a')], [SINGLE['acquire']('b')], [SINGLE['sweep']('c')]],
        'a: extend, wait, enqueue @expiry': [[SINGLE['extend*']('a')], [wait('b')], [enqueue('c')]],
        'a,ticket b: release, wait, leave': [[release('a')], [SINGLE['leave']('b')], [wait('c')]],
    }
    found = []
    for name, program in programs.items():
        state, clock = STATES[name.partition(':')[0]], int('@expiry' in name)
        found.append(Scenario('3 ' + name, state.setup, program, clock, is_free=state.is_free and not clock))
    return found


@functools.cache
def all_scenarios(seed):
    """Each pair of calls once, in some state; then each pair again in another state, and so on"""
    dice = random.Random(seed)
    found = []
    for x, y in itertools.product(CALLS, CALLS):
        of_pair = []
        for state in STATES:
            for clock in (0, 1) if state in EXPIRING else (0,):
                of_pair += [(state, x, y, clock, same) for same in ((False, True) if x <= y or STATES[state].holders == 'b' else (False,))
                            if is_of_interest(state, x, y, same)]
        dice.shuffle(of_pair)
        # Transactions of several statements take longer, and find less.
        late = dice.random() * (1 + 2 * (x in BLOCKS) + 2 * (y in BLOCKS))
        found += [(turn, late, entry) for turn, entry in enumerate(of_pair)]
    return three() + [pair(*entry) for _, _, entry in sorted(found)]


def named(name):
    return next((s for s in all_scenarios(0) if s.name == name), None)
