"""Explores the answers of two or three sessions whose steps interleave.

Model: real backends stop at each test point (explore.c). A schedule is a string with a letter for
each step: the session that continues to its next point, or * for two hours that pass. A session
continues until its statement ends; a switch before that is a preemption. The explorer tries all
schedules with at most BOUND preemptions, or a random part of them if time is short. Nothing in
the server depends on real time, so a schedule can be replayed.

Judgement: the answers and the final state of a schedule are right if some serial order of the
same statements, or of those that were not refused because of an overlap, has the same. In a
serial order the other sessions wait until a session's statement ends or blocks, and time may pass
at any step. A statement that ended before another one began also comes first in the serial order.
In any case the rules of judge.py must hold.
"""

import argparse
import itertools
import mmap
import os
import random
import re
import select
import struct
import sys
import time
from dataclasses import dataclass

import psycopg2
from psycopg2 import extensions

import judge
import scenarios

LIMIT = float(os.environ.get('PG_TEST_TIMEOUT_DEFAULT') or 180)
HOURS = 7200 * 1000000
LETTERS = 'ABCDEFG'
MANY = 1000000
ENDLESS = 4000            # steps; no schedule that ends has that many: a force makes 500 attempts, each with up to four points
MOST_SEARCHES = 5         # for the serial orders of a scenario
READY, STOPPED, BLOCKED, DONE = 'ready', 'stopped', 'blocked', 'done'

# The state of the schedule's keys at its end; lock_status names the holder that lasts longest
FINAL = """
SELECT (SELECT coalesce(json_agg(json_build_array(mode, released, expires_at > clock_timestamp() AND NOT released AND (pid IS NULL OR EXISTS (SELECT FROM pg_stat_activity a WHERE (a.pid, a.backend_start) = (app_lock.pid, app_lock.backend_start))),
            owner, fencing_token, round(extract(epoch FROM nullif(expires_at, 'infinity') - clock_timestamp()) / 900)) ORDER BY mode, fencing_token), '[]') FROM app_lock WHERE key = '{k}'),
    (SELECT coalesce(json_agg(json_build_array('q' || ticket, (SELECT q.owner FROM app_lock_queue q WHERE q.key = v.key AND q.ticket = v.ticket),
            offered_until IS NOT NULL) ORDER BY ticket), '[]') FROM lock_queue v WHERE key = '{k}'),
    (SELECT json_build_array(locked, mode, CASE WHEN holders > 1 AND holder IN (SELECT holder FROM app_lock WHERE key = '{k}' AND NOT released
                AND expires_at = (SELECT max(expires_at) FROM app_lock WHERE key = '{k}' AND NOT released)) THEN 'the longest' ELSE holder END,
            holders, waiters, pid IS NOT NULL,
            (SELECT count(*) FROM app_lock WHERE key LIKE '{k}_' AND lock_is_held(key, owner))) FROM lock_status('{k}')),
    (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid > 2),
    (SELECT coalesce(json_agg(json_build_array(fencing_token, ended_by) ORDER BY fencing_token), '[]') FROM lock_history WHERE key = '{k}'),
    (SELECT json_build_array(grants - releases - expirations - forced, (SELECT count(*) FROM app_lock WHERE NOT released))
            FROM lock_stats WHERE database = current_database()),
    (SELECT json_agg(coalesce(holder, '?') ORDER BY holder) FROM (SELECT previous_holder AS holder FROM lock_audit WHERE key = '{k}') a),
    (SELECT v FROM explore_doc WHERE id = '{k}'),
    (SELECT clock_timestamp() < closed_until FROM lock_status('{k}'))"""


class Session:
    """A connection whose backend stops; "stops" is the value of the setting explore.stops"""

    def __init__(self, explorer, stops):
        self.explorer = explorer
        self.conn = psycopg2.connect(explorer.dsn, async_=1)
        self.wait()
        self.pid = self.conn.info.backend_pid
        self.cursor = self.conn.cursor()
        self.error = None
        self.begin_anew(stops)

    def begin_anew(self, stops):
        # Fill the caches: the lookups of a first call are not part of a schedule.
        for sql in ("SELECT count(*) FROM lock_status('warm')", "SET client_min_messages = error",
                    f"SELECT lock_release('w{self.pid}', 'w') FROM lock_acquire('w{self.pid}', owner => 'w')"):
            self.cursor.execute(sql)
            self.wait()
        self.explorer.must(self, f"SET explore.stops = '{stops}'")

    def wait(self):
        until = time.monotonic() + LIMIT
        while (state := self.conn.poll()) != extensions.POLL_OK:
            sockets = [[self.conn.fileno()], []] if state == extensions.POLL_READ else [[], [self.conn.fileno()]]
            if not any(select.select(*sockets, [], 1)) and time.monotonic() > until:
                raise TimeoutError('no answer')

    def has_answer(self):
        return bool(self.error or select.select([self.conn.fileno()], [], [], 0)[0])

    def send(self, sql):
        self.error = None
        try:
            self.cursor.execute('/*x*/ ' + sql)
            self.conn.poll()
        except psycopg2.Error as error:
            self.error = error

    def answer(self):
        try:
            if self.error:
                raise self.error
            self.wait()
        except psycopg2.Error as error:
            return ('error', error.pgcode)
        if self.cursor.description is None:
            return ('done',)
        rows = self.cursor.fetchall()
        return rows[0] if len(rows) == 1 else tuple(rows)


@dataclass
class Step:
    choice: int
    others: dict        # the alternatives to this step, and whether each is a preemption
    point: str          # the point where the session stood


class Explorer:
    def __init__(self, socket, clock):
        self.dsn = f'host={socket} port=5432 user=postgres dbname=explore'
        self.stops = 'named'
        self.clock = mmap.mmap(os.open(clock, os.O_RDWR), 8)
        self.conn = psycopg2.connect(self.dsn)
        self.conn.autocommit = True
        self.cursor = self.conn.cursor()
        self.ask("SET synchronous_commit = off; SET client_min_messages = error; SET atomic_lock.enforce_guards = off")
        self.ask(f"SET lock_timeout = '{LIMIT} s'")
        self.ask("PREPARE step AS SELECT explore_step($1, $2, $3, $4, $5, $6)")
        self.sessions = []
        self.number = self.schedules = self.steps = self.lost = self.balance = 0
        self.of_sessions = 0        # schedules since sessions have forgotten the keys that they had
        self.has_policies = self.is_lost = False
        # Of the last schedule: its steps; the begins and ends of statements: (begins, session, statement); and the
        # statements that began after time had passed
        self.steps_taken, self.order, self.late = [], [], set()

    def stop_at(self, stops):
        """Sets the points at which sessions stop from now on"""
        self.stops = stops
        while self.sessions:
            self.sessions.pop().conn.close()

    def ask(self, sql):
        self.cursor.execute(sql)
        return self.cursor.fetchone() if self.cursor.description else None

    def pass_time(self, microseconds=HOURS):
        self.clock[:] = struct.pack('q', struct.unpack('q', self.clock[:])[0] + microseconds)

    def step(self, sessions, moving=None, skip=0, how='p', wake=False, limit=LIMIT):
        """Calls explore_step(). Returns the number of points that "moving" reached, and the
        states of the sessions"""
        self.steps += 1
        self.cursor.execute("EXECUTE step(%d, %d, '%s', %s, '{%s}', %d)" % (
            moving.pid if moving else 0, skip, how, wake, ','.join(str(s.pid) for s in sessions), limit * 1000))
        visits, *states = self.cursor.fetchone()[0].split(' ')
        if 'R' in states and limit == LIMIT:
            raise TimeoutError(f'a session does not stop: {states}')
        return int(visits), states

    def begin(self, session, sessions, sql, skip):
        """Sends a statement, the first step of its session"""
        session.send(sql)
        me, until = sessions.index(session), time.monotonic() + LIMIT
        while time.monotonic() < until:
            visits, states = self.step(sessions, session, skip, 's', limit=1)
            if 'R' not in states:
                return visits, states
            # The statement failed before it began, as in an aborted transaction.
            if states[me] == 'R' and session.has_answer() and session.answer()[0] == 'error':
                return self.step(sessions, session)
        raise TimeoutError(f'{sql} does not begin: {states[me]}')

    def walk(self, session, sql=None):
        """Lets a session finish its statement, or end, without the others"""
        until = time.monotonic() + LIMIT
        _, states = self.begin(session, [session], sql, MANY) if sql else self.step([session], session, MANY)
        while states[0][0] not in 'IG':
            self.pass_time(1000)
            if time.monotonic() > until:
                raise TimeoutError('a session does not end')
            _, states = self.step([session], session, MANY)
        return session.answer() if sql else None

    def must(self, session, sql):
        """Lets a session execute a statement that must succeed, without the others"""
        answer = self.walk(session, sql)
        if answer[:1] == ('error',):
            raise RuntimeError(f'{sql}: {answer}')

    def prepare(self, scenario, names):
        while len(self.sessions) < len(scenario.programs):
            self.sessions.append(Session(self, self.stops))
        self.of_sessions += "lifetime => 'session'" in scenario.text
        if self.of_sessions >= 25:
            # A session that has had 64 keys would look at all of them while it gets another.
            self.of_sessions = 0
            for session in self.sessions:
                self.must(session, 'DISCARD ALL')
                session.begin_anew(self.stops)
        tables = ('app_lock', 'app_lock_queue', 'lock_audit', 'lock_history', 'explore_doc')
        if self.schedules % 200 == 1:
            self.ask(f"TRUNCATE {', '.join(tables)}")
        elif scenario.is_alone:
            self.ask('; '.join(f'DELETE FROM {table}' for table in tables))
        if self.has_policies:
            self.ask("DELETE FROM app_lock_policy WHERE prefix <> 'k'")
        self.has_policies = 'lock_set_policy' in scenario.text
        balance, rows = self.ask("SELECT grants - releases - expirations - forced, (SELECT count(*) FROM app_lock WHERE NOT released) FROM lock_stats WHERE database = current_database()") or (0, 0)
        self.balance = balance - rows
        self.ask("INSERT INTO explore_doc VALUES ('{k}', 0)".format(**names))
        for sql in scenario.setup:
            if sql == 'CLOCK':
                self.pass_time()
            else:
                self.ask(sql.format(**names))
        for sql in scenario.third:
            self.must(self.sessions[len(scenario.programs) - 1], sql.format(**names))

    def run(self, scenario, programs, prefix=(), spent=0, bound=MANY, is_shown=False):
        """Follows the schedule prefix, and continues without preemptions. Returns the steps and
        the outcome"""
        self.schedules += 1
        self.number += 1
        self.is_lost = False
        key = f'k{self.number}/'
        names = {'k': key, 'k2': key + '+', **{o: o + key for o in 'abcd'}}
        self.prepare(scenario, names)
        sessions = self.sessions[:len(programs)]
        n = len(programs)
        position = [0] * n
        state = [READY if program else DONE for program in programs]
        point = [''] * n
        answers = [[] for _ in range(n)]
        waits = [False] * n         # pauses until others have acted
        hours = scenario.clock
        current = None
        paid = 0                    # preemptions so far
        is_missed = False           # a sweep must make an offer
        self.steps_taken = steps = []
        # The steps that a prefix chooses. In a serial order these are the ones with a choice that costs nothing, since the number
        # of points in a call may change from run to run.
        self.decisions = decisions = steps if bound > 0 else []
        self.order, self.late = [], set()

        def take(states):
            nonlocal is_missed
            for i, seen in enumerate(states):
                if state[i] in (READY, DONE):
                    continue
                if seen[0] == 'S':
                    state[i], point[i] = STOPPED, seen[1:]
                    waits[i] = point[i] == 'sleep'
                    is_missed = is_missed or point[i] == 'missed'
                elif seen[0] in 'LQ':
                    state[i], point[i] = BLOCKED, seen[0]
                elif seen[0] == 'R':
                    raise TimeoutError(f'session {LETTERS[i]} does not stop')
                else:
                    answers[i].append(sessions[i].answer() if seen[0] == 'I' else ('gone',))
                    self.order.append((False, i, position[i]))
                    position[i] += 1
                    state[i], point[i] = (READY if position[i] < len(programs[i]) else DONE), ''

        while True:
            enabled = [i for i in range(n) if state[i] in (READY, STOPPED)]
            # A session that sleeps in a loop continues after a step of another session.
            enabled = [i for i in enabled if not waits[i]] or enabled
            if hours:
                enabled.append(n)
            if not enabled and is_missed:
                # A transaction could not make an offer, and has notified the launcher.
                is_missed = False
                self.ask('SELECT lock_sweep()')
                take(self.step(sessions)[1])
                continue
            if not enabled or len(steps) > ENDLESS:
                break
            if current is not None and state[current] == BLOCKED:
                current = None
            is_inside = current in enabled and state[current] == STOPPED
            # In a serial order, time may pass within a statement.
            others = {i: int(is_inside and i != current and (bound > 0 or i != n)) for i in enabled}
            choice = current if is_inside else enabled[0]
            if bound == 0:
                others = {i: cost for i, cost in others.items() if cost == 0}
            is_decision = bound > 0 or len(others) > 1
            left = prefix[len(decisions):] if is_decision else ()
            if left:
                if left[0] in others:
                    choice = left[0]
                else:
                    self.is_lost = True
            elif spent >= bound:
                others = {i: cost for i, cost in others.items() if cost == 0}
            # The prefix may lead into a statement that once ended before.
            paid += others.get(choice, 0)
            self.is_lost = self.is_lost or paid > bound
            if bound == 0 and is_decision:
                decisions.append(Step(choice, others, ''))
            if choice == n:
                if not is_inside:
                    current = None
                steps.append(Step(choice, others, ''))
                hours -= 1
                self.pass_time()
                take(self.step(sessions, wake=True)[1])
                continue
            # Combine several steps into one if no other session can wake up meanwhile and the steps
            # are not shown.
            skip = 0
            if not is_shown and BLOCKED not in state:
                if left and bound > 0:
                    skip = max(next((i for i, c in enumerate(left) if c != choice), len(left)) - 1, 0)
                elif spent >= bound and (bound > 0 or not hours):
                    skip = MANY
            current = choice
            me, was = sessions[choice], point[choice]
            if waits[choice]:
                self.pass_time(1000)
            if state[choice] == READY:
                sql = programs[choice][position[choice]].format(**names)
                self.order.append((True, choice, position[choice]))
                if not hours:
                    self.late.add((choice, position[choice]))
                if sql == 'DISCONNECT':
                    me.conn.close()
                    self.sessions.remove(me)
                    state[choice] = 'running'
                    visits, states = self.step(sessions, me, how='d')
                else:
                    state[choice] = 'running'
                    visits, states = self.begin(me, sessions, sql, skip)
            else:
                state[choice] = 'running'
                visits, states = self.step(sessions, me, skip)
            took = max(visits + (states[choice][0] != 'S'), 1)
            waits[choice] = False
            take(states)
            # A step that did more than sleep may have changed the state that others wait for.
            if not waits[choice]:
                waits = [False] * n
            steps.append(Step(choice, others, was))
            steps.extend(Step(choice, {}, '') for _ in range(took - 1))
        for i in range(n):
            if state[i] == BLOCKED and point[i] == 'Q' and self.has_overslept(sessions[i]):
                answers[i].append(('overslept',))
                state[i] = DONE
        final = self.ask(FINAL.format(**names))
        try:
            probe = self.ask(f"SELECT status FROM lock_try_acquire('{key}', owner => 'probe')")[0]
        except psycopg2.Error as error:
            probe = error.pgcode
        for i in range(n):
            if state[i] == BLOCKED:
                answers[i].append(('blocked',) if point[i] == 'Q' else ('waits for a lock',))
            elif state[i] == STOPPED:
                answers[i].append(('endless',))
        self.clear(sessions, state)
        grown = final[5] and final[5][0] - final[5][1] - self.balance
        final = judge.Final(*final[:5], grown, *final[6:], probe)
        return steps, judge.Outcome.of(answers, final, key)

    def has_overslept(self, session):
        """Whether a sleeping call ends when it looks; then it should have been woken"""
        # A waiter looks by itself after a second.
        self.pass_time(2000000)
        _, states = self.step([session], wake=True)
        while states[0][0] == 'S':
            self.pass_time(1000)
            _, states = self.step([session], session, MANY)
        if states[0] != 'I':
            return False
        session.answer()
        return True

    def clear(self, sessions, state):
        """Ends all sessions"""
        for session, how in zip(sessions, state):
            if session in self.sessions and how in (BLOCKED, STOPPED):
                self.ask(f'SELECT pg_cancel_backend({session.pid})')
                self.walk(session)
                session.answer()
        for session in sessions:
            if session in self.sessions and session.conn.info.transaction_status != extensions.TRANSACTION_STATUS_IDLE:
                self.walk(session, 'ROLLBACK')
        while (prepared := self.ask("SELECT gid FROM pg_prepared_xacts LIMIT 1")) is not None:
            self.ask(f"ROLLBACK PREPARED '{prepared[0]}'")

    def search(self, scenario, programs, bound, until=None, dice=None):
        """Yields the choices and outcome of each schedule, and finally None if all were tried"""
        frontier = [((), 0)]
        is_whole = True
        while frontier:
            prefix, spent = frontier.pop(dice.randrange(len(frontier)) if dice else -1)
            if until and prefix and time.monotonic() > until:
                return
            steps, outcome = self.run(scenario, programs, prefix, spent, bound)
            self.lost += self.is_lost
            is_whole = is_whole and not self.is_lost
            choices = tuple(step.choice for step in self.decisions)
            for i in range(len(prefix), len(choices)):
                for other, cost in self.decisions[i].others.items():
                    if other != choices[i] and spent + cost <= bound:
                        frontier.append((choices[:i] + (other,), spent + cost))
            yield tuple(step.choice for step in steps), outcome
        if is_whole:
            yield None


def letters(choices, n):
    return ''.join('*' if c == n else LETTERS[c] for c in choices)


class Verdicts:
    """Judges each outcome of a scenario once for each order of its statements"""

    def __init__(self, explorer, scenario):
        self.explorer, self.scenario = explorer, scenario
        self.without = {}
        self.serial = self.orders(())
        self.seen = {}

    def orders(self, calls):
        """The outcomes of all serial orders without these calls, each with the orders that lead to it"""
        if calls not in self.without:
            kept = [[j for j in range(len(program)) if (i, j) not in calls] for i, program in enumerate(self.scenario.programs)]
            programs = [[program[j] for j in js] for program, js in zip(self.scenario.programs, kept)]
            self.without[calls] = {}
            # Where time may pass at each point, a call that reaches fewer points than in the run before loses an order.
            searches = (self.explorer.search(self.scenario, programs, 0) for _ in range(MOST_SEARCHES))
            for _, outcome in itertools.takewhile(bool, itertools.chain.from_iterable(searches)):
                order = [(is_begin, i, kept[i][j]) for is_begin, i, j in self.explorer.order]
                self.without[calls].setdefault(judge.comparable(self.scenario, outcome), set()).add(judge.precedence(order))
        return self.without[calls]

    def complaint(self, outcome):
        """None, or the name of the contradiction, of the last schedule"""
        before = judge.precedence(self.explorer.order)
        if (outcome, before) not in self.seen:
            self.seen[outcome, before] = self.judge(outcome, before)
        return self.seen[outcome, before]

    def is_explained(self, outcome, serial, before, compared):
        told = compared(outcome)
        if any(compared(o) == told and any(judge.is_in_order(before, order) for order in orders) for o, orders in serial.items()):
            return True
        # A call reads the clock once. Before it commits, another call may see that a lease has
        # expired. Then the answers are those of different serial orders.
        return (self.scenario.clock > 0 and any(judge.holders(o) == judge.holders(outcome) for o in serial)
                and all(any(judge.without_tickets(o.answers[i]) == judge.without_tickets(answers) for o in serial) for i, answers in enumerate(outcome.answers)))

    def judge(self, outcome, before):
        broken = judge.broken_rules(self.scenario, outcome)
        if broken:
            return ', '.join(broken)
        compared = judge.without_order if judge.may_swap_tokens(self.scenario, outcome, before) else lambda same: same
        for calls, variant in itertools.product([(), *judge.some_refused(self.scenario, outcome, before)], judge.variants(self.scenario, outcome, before)):
            if self.is_explained(judge.comparable(self.scenario, judge.left_out(variant, calls)), self.orders(calls), before, compared):
                if (self.scenario.is_free and judge.are_all_refused(self.scenario, outcome, before)
                        and not any(judge.are_all_refused(self.scenario, o) for o in self.serial)):
                    return 'all are refused a key that is free'
                return None
        return 'no serial order does that'


def replay(explorer, scenario, schedule):
    n = len(scenario.programs)
    prefix = tuple(n if letter == '*' else LETTERS.index(letter) for letter in schedule)
    return explorer.run(scenario, scenario.programs, prefix, is_shown=True)


def turns(steps):
    """The point of each session when the schedule came to it"""
    return ' '.join(step.point or '-' for i, step in enumerate(steps) if i == 0 or step.choice != steps[i - 1].choice)


def show(scenario, steps, outcome):
    n = len(scenario.programs)
    for sql in scenario.setup + scenario.third:
        print(f'    before: {sql}')
    for i, program in enumerate(scenario.programs):
        print(f'    {LETTERS[i]}: {"; ".join(program)}')
    for step in steps:
        print(f'    {"*" if step.choice == n else LETTERS[step.choice]}  {"two hours pass" if step.choice == n else "from " + step.point if step.point else "begins"}')
    print(f'turns: {turns(steps)}')
    print(outcome)


def complaints_of(explorer, scenario, verdicts, outcome, known):
    """Descriptions of the contradictions of the last schedule"""
    found = [judge.broken_order(scenario, outcome, explorer.order), judge.broken_promise(scenario, outcome, explorer.late), verdicts.complaint(outcome)]
    return [what for what in found if what and not known.explains(scenario, outcome, what)]


def explore(explorer, scenario, bound, seconds, known, dice):
    """Returns complaints, each with the first schedule, and whether all schedules were tried"""
    before, lost, complete, complaints = explorer.schedules, explorer.lost, False, {}
    verdicts = Verdicts(explorer, scenario)
    until = time.monotonic() + seconds
    for found in explorer.search(scenario, scenario.programs, bound, until, dice):
        if found is None:
            complete = True
            break
        choices, outcome = found
        for complaint in complaints_of(explorer, scenario, verdicts, outcome, known):
            complaints.setdefault(complaint, (letters(choices, len(scenario.programs)), outcome))
    if os.environ.get('AL_EXPLORE_VERBOSE'):
        print(f'  {scenario.name}: {explorer.schedules - before} schedules{"" if complete else ", cut"}, {len(verdicts.serial)} serial, {len(verdicts.seen)} outcomes, {explorer.lost - lost} lost', flush=True)
    return complaints, complete


def replay_found(explorer, path, known, report):
    """Replays earlier findings: lines "SCENARIO <tab> SCHEDULE <tab> TURNS <tab> WHAT WAS WRONG" """
    for name, schedule, expected, _ in (line.split('\t') for line in judge.lines_of(path)):
        scenario = scenarios.named(name)
        verdicts = Verdicts(explorer, scenario)
        steps, outcome = replay(explorer, scenario, schedule)
        is_lost, seen = explorer.is_lost, turns(steps[:len(schedule)])
        complaints = {what: (schedule, outcome) for what in complaints_of(explorer, scenario, verdicts, outcome, known)}
        if is_lost or seen != expected:
            complaints[f'the schedule does not lead to "{expected}" any more, but to "{seen}"'] = (schedule, outcome)
        report(scenario, complaints)


class Known:
    """Accepted deviations: lines "SCENARIO <tab> COMPLAINT <tab> REASON", the first two are
    patterns"""

    def __init__(self, path):
        self.lines = [(*(re.compile(part, re.DOTALL) for part in parts[:2]), parts[2]) for parts in (line.split('\t') for line in judge.lines_of(path))]
        self.used = {reason: 0 for _, _, reason in self.lines}

    def explains(self, scenario, outcome, complaint):
        for name, what, reason in self.lines:
            if name.fullmatch(scenario.name) and what.search(f'{complaint}: {outcome}'):
                self.used[reason] += 1
                return True
        return False


def report_tally(path, passed, failed):
    with open(path, 'w', encoding='utf-8') as tally:
        tally.write(f'{passed} {failed}\n')


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--socket', required=True)
    parser.add_argument('--clock', required=True)
    parser.add_argument('--tally', required=True)
    parser.add_argument('--scenario', default='', help='only those that match this pattern')
    parser.add_argument('--schedule', help='replay this one')
    parser.add_argument('--minutes', type=float)
    parser.add_argument('--bound', type=int, default=2)
    parser.add_argument('--seconds', type=float, default=150)
    parser.add_argument('--seed', type=int, default=random.randrange(1000000))
    parser.add_argument('--stops', default='named', choices=('named', 'all'))
    parser.add_argument('--first', action='store_true', help='end at the first failure')
    args = parser.parse_args()
    if args.minutes:
        args.seconds = 60 * args.minutes
    here = os.path.dirname(os.path.abspath(__file__))
    explorer = Explorer(args.socket, args.clock)
    known = Known(f'{here}/known')
    wanted = scenarios.all_scenarios(args.seed)
    if args.scenario:
        wanted = [s for s in wanted if s.name == args.scenario] or [s for s in wanted if re.search(args.scenario, s.name)]
    if not wanted:
        sys.exit(f'no scenario is named {args.scenario}')
    if args.schedule is not None:
        scenario = wanted[0]
        explorer.stop_at(args.stops)
        verdicts = Verdicts(explorer, scenario)
        steps, outcome = replay(explorer, scenario, args.schedule)
        for serial in verdicts.serial:
            print('serial:', serial, sep='\n')
        show(scenario, steps, outcome)
        complaints = complaints_of(explorer, scenario, verdicts, outcome, known)
        print('complaint:', ', '.join(complaints) or 'none')
        report_tally(args.tally, int(not complaints), int(bool(complaints)))
        return int(bool(complaints))
    print(f'seed {args.seed}', flush=True)
    began = time.monotonic()
    passed, failed = 0, 0

    def report(scenario, complaints):
        nonlocal passed, failed
        passed, failed = passed + (not complaints), failed + bool(complaints)
        for complaint, (schedule, outcome) in complaints.items():
            print(f'not ok: {complaint}\n  make explore SCENARIO="{scenario.name}" SCHEDULE={schedule}{" STOPS=" + args.stops if args.stops != "named" else ""}\n{outcome}', flush=True)

    if not args.scenario:
        replay_found(explorer, f'{here}/schedules', known, report)
    explorer.stop_at(args.stops)
    cut, parts = 0, []        # parts: of the schedules of each scenario, those that could not be followed
    for scenario in wanted:
        if time.monotonic() - began > args.seconds or (failed and args.first):
            break
        dice = random.Random(args.seed)
        schedules, lost = explorer.schedules, explorer.lost
        try:
            complaints, complete = explore(explorer, scenario, args.bound, max(2, args.seconds / min(len(wanted), 1000)), known, dice)
            cut += not complete
        except Exception:
            taken = letters([step.choice for step in explorer.steps_taken], len(scenario.programs))
            print(f'not ok: the server or a session failed\n  make explore SCENARIO="{scenario.name}" SCHEDULE={taken}', flush=True)
            raise
        parts.append((explorer.lost - lost) / (explorer.schedules - schedules))
        report(scenario, complaints)
    print(f'{passed + failed} of {len(wanted)} scenarios ({cut} cut short), {explorer.schedules} schedules, {explorer.steps} steps, '
          f'{explorer.lost} that could not be followed, {time.monotonic() - began:.0f} s')
    # The mean of several, since some scenarios lose many, and a slow machine has few others
    if len(parts) > 1 and explorer.lost > 100 and sum(parts) / len(parts) > 0.05:
        print(f'not ok: in the mean, {sum(parts) / len(parts):.0%} of the schedules of a scenario could not be followed')
        failed += 1
    for reason, times in known.used.items():
        print(f'known, {times} times: {reason}')
    report_tally(args.tally, passed, failed)
    return int(failed > 0)


if __name__ == '__main__':
    sys.exit(main())
