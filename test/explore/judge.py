"""The rules for answers and final states, whatever the order of the steps."""

import itertools
import json
import re
from dataclasses import astuple, dataclass, replace

REFUSED = {'held', 'held,held', 'pending', 'timeout', 'held_by_owner', 'busy', 'in_transaction'}


def lines_of(path):
    with open(path, encoding='utf-8') as file:
        return [line.rstrip('\n') for line in file if line.strip() and line[0] != '#']


@dataclass(frozen=True)
class Final:
    """Columns as in explore.FINAL"""
    rows: tuple
    line: tuple
    status: tuple
    claims: int
    history: tuple
    grown: int          # the growth of the counters beyond that of the rows
    audit: tuple
    written: int
    is_closed: bool
    probe: str


@dataclass(frozen=True)
class Outcome:
    """The answers of each session, a tuple for each statement, and the final state. Tokens are
    renamed to t0, t1 in their order, tickets to q0, q1, and the key's name is left out, so that
    schedules can be compared"""
    answers: tuple
    final: Final

    @staticmethod
    def of(answers, final, key):
        # A lease may have ended without a sweep; it does not matter which sweep notices.
        over = {row[4] for row in final.rows if not row[1] and not row[2]}
        final = replace(final, rows=[row[:5] + [row[5] if row[2] else None] for row in final.rows],
                        history=[[token, 'over' if token in over else how] for token, how in final.history])
        return renamed(Outcome(tuple(map(tuple, answers)), final), key)

    def __str__(self):
        return '\n'.join([*(f'    {"ABCDEFG"[i]}: {" / ".join(map(str, answers))}' for i, answers in enumerate(self.answers)),
                          *(f'    {name}: {value}' for name, value in vars(self.final).items())])


def flat(value):
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from flat(part)
    else:
        yield value


def renamed(outcome, key=None):
    """Renumbers tokens and tickets"""
    values = list(flat((outcome.answers, astuple(outcome.final))))
    big = sorted({v for v in values if isinstance(v, int) and v > 10 ** 9} | {v for v in values if isinstance(v, str) and re.fullmatch(r't\d+', v)},
                 key=lambda v: v if isinstance(v, int) else int(v[1:]))
    tickets = sorted({v for v in values if isinstance(v, str) and re.fullmatch(r'q\d+', v)}, key=lambda v: int(v[1:]))
    name = {v: f't{i}' for i, v in enumerate(big)} | {v: f'q{i}' for i, v in enumerate(tickets)}

    def of(value):
        if isinstance(value, (tuple, list)):
            return tuple(of(part) for part in value)
        if isinstance(value, str) and value not in name and key:
            return value.replace(key, '')
        if value is None or isinstance(value, bool):
            return value
        return name.get(value, value) if isinstance(value, (int, str)) else str(value)
    return Outcome(of(outcome.answers), Final(*map(of, astuple(outcome.final))))


def without_tickets(answers):
    """The answers without the numbers of tickets, which depend on the tickets that are left"""
    return [tuple('q' if re.fullmatch(r'q\d+', str(value)) else value for value in answer) for answer in answers]


def comparable(scenario, outcome):
    """Without rows that no longer hold the key, since a sweep may come at any time, and without the
    difference between an end that a call or sweep has noted and one that is left to the next"""
    final = outcome.final
    noted = ('session', 'expired') if scenario.clock or 'CLOCK' in scenario.text else ('session',)
    return renamed(replace(outcome, final=replace(final, rows=tuple(row for row in final.rows if row[2]),
                                                  history=tuple((token, 'over' if how in noted else how) for token, how in final.history))))


def is_refused(answer):
    return bool(answer) and (answer[0] in REFUSED or answer[:2] == ('error', '55P03') or answer == ('blocked',))


def precedence(order):
    """The pairs of statements of different sessions of which the first ended before the second began"""
    ended, pairs = [], set()
    for is_begin, i, j in order:
        if is_begin:
            pairs.update(((k, m), (i, j)) for k, m in ended if k != i)
        else:
            ended.append((i, j))
    return frozenset(pairs)


def is_in_order(before, serial):
    """Whether no statement comes before one that had ended when it began"""
    return before.isdisjoint((late, early) for early, late in serial)


def refused(outcome):
    return [(i, j) for i, answers in enumerate(outcome.answers) for j, answer in enumerate(answers) if is_refused(answer)]


def overlaps(one, other, before):
    return one[0] != other[0] and (one, other) not in before and (other, one) not in before


def has_unlimited_share(scenario):
    """Whether a call may share the key beside any number of holders, since a limit belongs to the call or the policy"""
    calls = [sql for sql in itertools.chain(*scenario.programs) if 'acquire' in sql and ("'shared'" in sql or '_path(' in sql)]
    return not any('max_holders' in sql for sql in scenario.setup) and any('max_holders' not in sql for sql in calls)


def tokens_of(value):
    """The tokens in answers or rows, in their order there"""
    return [part for part in flat(value) if re.fullmatch(r't\d+', str(part))]


def may_swap_tokens(scenario, outcome, before):
    """Whether the tokens of sharers may come in another order than their calls. Sharers without a limit do not wait for each
    other, so they may; but not if one call ended before the other began"""
    token = {(i, j): int(value[1:]) for i, answers in enumerate(outcome.answers) for j, answer in enumerate(answers) for value in tokens_of(answer)
             if answer[0] in ('acquired', 'acquired,acquired')}
    return has_unlimited_share(scenario) and all(token[one] < token[other] for one, other in before if one in token and other in token)


def without_order(outcome):
    """The outcome without the order of tokens that sharers got one after the other"""
    final = outcome.final
    answers = list(itertools.chain(*outcome.answers))
    shared = set(tokens_of([row for row in final.rows if row[0] == 'shared']
                           + [a for a in answers if a[:2] == ('acquired', 'shared') or a[:1] == ('acquired,acquired',)]))
    shared -= set(tokens_of([a for a in answers if a[:1] == ('reacquired',)]))
    # Sharers with neighbouring tokens form a group; each other token is one of its own.
    tokens = sorted(set(tokens_of((outcome.answers, final.rows, final.history))), key=lambda token: int(token[1:]))
    group = {token: 2 * sum(other not in shared for other in tokens[:i]) + (token in shared) for i, token in enumerate(tokens)}
    rows, name = sorted(final.rows, key=lambda row: str(row[3])), {}
    for token in tokens_of((outcome.answers, rows, final.history)):
        name.setdefault(token, f'{group[token]}.{len(name)}')

    def of(value):
        return tuple(map(of, value)) if isinstance(value, (tuple, list)) else name.get(value, value)
    return Outcome(of(outcome.answers), replace(final, rows=of(rows), history=tuple(sorted(of(final.history), key=str))))


def variants(scenario, outcome, before):
    """The outcome, and outcomes with differences that serial orders do not show"""
    statements = [(i, j) for i, answers in enumerate(outcome.answers) for j in range(len(answers))]
    waiting = [(i, j) for i, j in statements if 'wait =>' in scenario.programs[i][j]]
    queued = [(i, j) for i, j in statements if outcome.answers[i][j][:1] == ('queued',)]

    def places(call, answer):
        # lock_enqueue counts the calls that wait at that moment. One that overlaps may wait for its claim, or join before
        # the ticket is committed. It does not count a ticket that is not committed yet.
        if answer[:1] != ('queued',):
            return [answer]
        uncertain, uncounted = (sum(overlaps(call, other, before) for other in others) for others in (waiting, queued))
        return [('queued', place, *answer[2:]) for place in range(max(1, answer[1] - uncertain), answer[1] + uncertain + uncounted + 1)]

    # A set claims the keys that its owner has last. If the owner loses one meanwhile, the call waits for that with the other's claim.
    may_lose = scenario.clock or any(word in scenario.text for word in ('release', 'force', 'steal', 'transfer'))
    is_set = may_lose and any('_path(' in scenario.programs[i][j] and outcome.answers[i][j] == ('blocked',) for i, j in waiting)
    claims = {outcome.final.claims, 0 if is_set and outcome.final.claims == 1 else outcome.final.claims}
    each = [itertools.product(*(places((i, j), answer) for j, answer in enumerate(answers))) for i, answers in enumerate(outcome.answers)]
    for answers, kept in itertools.product(itertools.product(*each), claims):
        yield replace(outcome, answers=answers, final=replace(outcome.final, claims=kept))


def owner_of_ticket(sql):
    owner = re.search(r"lock_enqueue\('{k}', '{(\w)}'", sql)
    return owner and owner[1]


def is_ended_by_grant(scenario, outcome, call):
    """Whether the call took a ticket that a grant to the same owner has ended"""
    i, j = call
    answer, owner = outcome.answers[i][j], owner_of_ticket(scenario.programs[i][j])
    return (answer[:1] == ('queued',) and answer[3] not in [ticket[0] for ticket in outcome.final.line]
            and any(row[2] and row[3] == owner and row[4] in granted(outcome) for row in outcome.final.rows))


def is_offered_at_once(scenario, outcome, call, before):
    """Whether the call took a ticket for a key that is free, since another call of the owner claimed
    the key meanwhile, and the key is offered to the ticket"""
    i, j = call
    answer, final, owner = outcome.answers[i][j], outcome.final, owner_of_ticket(scenario.programs[i][j])
    return (answer[:1] == ('queued',) and not any(row[2] for row in final.rows)
            and final.line == ((answer[3], owner, True),) and final.probe == 'held'
            and any(re.search('lock_(?!status|is_held|sweep)', sql) and f"'{{{owner}}}'" in sql and overlaps(call, (k, m), before)
                    for k, program in enumerate(scenario.programs) for m, sql in enumerate(program)))


def some_refused(scenario, outcome, before):
    """Sets of refused calls that overlapped others, and should have had no effect; small sets first"""
    statements = [(i, j) for i, answers in enumerate(outcome.answers) for j in range(len(answers))]
    calls = [call for call in statements
             if (is_refused(outcome.answers[call[0]][call[1]]) or is_ended_by_grant(scenario, outcome, call)
                 or is_offered_at_once(scenario, outcome, call, before))
             and any(overlaps(call, other, before) for other in statements)]
    return itertools.chain.from_iterable(itertools.combinations(calls, r) for r in range(1, len(calls) + 1))


def are_all_refused(scenario, outcome, before=frozenset()):
    offered = [(i, j) for i, answers in enumerate(outcome.answers) for j in range(len(answers)) if is_offered_at_once(scenario, outcome, (i, j), before)]
    return len(refused(outcome) + offered) == len([a for a in itertools.chain(*outcome.answers) if a != ('done',)]) > 1


def left_out(outcome, calls):
    final = outcome.final
    if any(outcome.answers[i][j][3:] == (ticket[0],) for ticket in final.line for i, j in calls):
        final = replace(final, line=(), probe='acquired')
    return Outcome(tuple(tuple(answer for j, answer in enumerate(answers) if (i, j) not in calls)
                         for i, answers in enumerate(outcome.answers)), final)


def broken_rules(scenario, outcome):
    """Names of the broken rules"""
    final = outcome.final
    live = [row for row in final.rows if row[2]]
    blocked = [answers for answers in outcome.answers if answers and answers[-1] == ('blocked',)]
    offers = [ticket for ticket in final.line if ticket[2]]
    is_free = not live and not final.status[0]
    # A path may wait for the key below, which status[6] counts.
    waits_below = any(final.status[6:]) and any(answers[-1:] == (('blocked',),) and '_path(' in program[len(answers) - 1]
                                                for program, answers in zip(scenario.programs, outcome.answers))
    rules = {
        'two have the key': len(live) > 1 and any(row[0] == 'exclusive' for row in live),
        'an owner has it twice': len({row[3] for row in live}) < len(live),
        'more than max_holders': len(live) > 2 and 'max_holders' in scenario.text and not has_unlimited_share(scenario),
        'a call never ends': any(answer in (('waits for a lock',), ('endless',)) for answers in outcome.answers for answer in answers),
        'a waiter has not been woken': any(('overslept',) in answers for answers in outcome.answers),
        'a claim is left': final.claims and not blocked,
        'a free key cannot be had': is_free and not final.line and not blocked and not final.is_closed
                                    and final.probe not in ('acquired', '53400') and 'roles' not in scenario.text,
        'a free key is not offered': is_free and final.line and not offers and not final.is_closed,
        'somebody waits for a free key': is_free and blocked and not final.line and not final.is_closed and not waits_below,
        'a holder has a ticket': any(ticket[1] == row[3] for ticket in final.line for row in live if row[0] == 'exclusive'),
        'a token was given twice': len(set(granted(outcome))) < len(granted(outcome)),
        'the history differs from the rows': not {row[4] for row in live} <= {t for t, how in final.history if how in (None, 'over')} <= {row[4] for row in final.rows if not row[1]},
        'a place that cannot be': any(a[:1] == ('queued',) and not 1 <= a[1] <= scenario.text.count('lock_enqueue') + scenario.text.count('wait =>')
                                      for answers in outcome.answers for a in answers),
        'unexpected error': any(a[0] == 'error' and a[1][:2] in ('42', '22', 'XX') and a[1] not in ('42501', '22023', '42704') for answers in outcome.answers for a in answers if a),
        'the counters do not add up': final.grown != 0,
    }
    return [rule for rule, is_broken in rules.items() if is_broken]


def holders(outcome):
    """The owners that have the key, and their modes"""
    return sorted(row[:1] + row[3:4] for row in outcome.final.rows if row[2])


def broken_promise(scenario, outcome, late):
    """A call that began after the leases had expired, or that extended a lease beyond that time,
    has the key unless a call of the scenario takes the key away. "late" has the calls that began
    then: (session, statement)"""
    if not scenario.clock or any(word in scenario.text for word in ('release', 'force', 'steal', 'transfer', 'ROLLBACK', 'DISCONNECT', "lifetime => 'transaction'")):
        return None
    owners = {row[3] for row in outcome.final.rows if row[2]}
    for i, answers in enumerate(outcome.answers):
        for j, answer in enumerate(answers):
            is_told = answer[:1] == ('extended',) or ((i, j) in late and len(answer) == 4 and answer[0] in ('acquired', 'reacquired'))
            if is_told and ('a' if 'same owner' in scenario.name else 'abc'[i]) not in owners:
                return 'a call was told of a lease that it has not'
    return None


def is_grant(answer):
    return len(answer) == 4 and answer[0] == 'acquired'


def broken_order(scenario, outcome, order):
    """If a transaction has acquired a key, or has proved its lease, no other owner is granted the
    key before the transaction commits. No serial order shows a violation: the answers are those
    of a grant after the commit"""
    if 'same owner' in scenario.name:
        return None
    # In these scenarios a session may lose the key before its grant is answered.
    has_old_grants = scenario.clock or any(word in scenario.text for word in ('lock_steal', 'lock_try_force', 'transfer'))
    for at, (is_begin, i, j) in enumerate(order):
        sql, answer = scenario.programs[i][j], outcome.answers[i][j]
        is_proof = answer[:1] != ('error',) and ('lock_assert' in sql or 'explore_write' in sql)
        if is_begin or len(scenario.programs[i]) == 1 or not (is_proof or (is_grant(answer) and not has_old_grants)):
            continue
        # A path shares its folder.
        is_shared = any(word in ' '.join(scenario.setup) for word in ("'shared'", '_path(')) if is_proof else answer[1] == 'shared'
        for is_next_begin, k, m in order[at + 1:]:
            # Its next statement releases the key, or is the COMMIT.
            if k == i and is_next_begin and not scenario.programs[i][m].startswith('PREPARE'):
                break
            other = outcome.answers[k][m]
            # A session may hand the key to the owner that relies on it.
            if not is_next_begin and k != i and is_grant(other) and other[2] != 'other' and not (is_shared and other[1] == 'shared'):
                return 'a key was granted that a transaction relies on'
    return None


def granted(outcome):
    """Tokens of grants that callers received as new"""
    return [answer[3] for answers in outcome.answers for answer in answers
            if is_grant(answer) and isinstance(answer[3], str) and answer[3][0] == 't']
