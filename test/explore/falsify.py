"""Checks that the rules of judge.py notice: each falsified outcome must break its rule, and the
true one none."""

import sys
from dataclasses import replace

import judge
import scenarios

SCENARIO = scenarios.named('a: extend* x acquire @expiry')
BLOCK = scenarios.named('a: assert[tx]* x acquire')
LIVE, OTHER = ('exclusive', False, True, 'a', 't0', 4), ('exclusive', False, True, 'b', 't1', 4)
SHARED = ('shared', False, True, 'b', 't1', 4)
TICKET = ('q0', 'c', False)
TRUE = judge.Outcome(((('extended',),), (('held', 'exclusive', 'a', None),)),
                     judge.Final(rows=(LIVE,), line=(), status=(True, 'exclusive', 'a', 1, 0, False), claims=0, history=(('t0', None),),
                                 grown=0, audit=None, written=0, is_closed=None, probe='held'))
# A waiter and a ticket; a path that waits with a claim
WAITS = scenarios.named('a: wait x enqueue')
QUEUED = judge.Outcome(((('acquired', 'exclusive', 'a', 't0'),), (('queued', 2, 0, 'q0'),)), replace(TRUE.final, line=(('q0', 'b', False),)))
PATH, KEPT = scenarios.named('a,ticket b: path_wait x steal[tx]'), scenarios.named('b: path_wait x extend*')
PATH_WAITS = judge.Outcome(((('blocked',),), (('extended',),)), replace(TRUE.final, claims=1))
# Calls with a limit of two holders, and beside calls without one
CROWDS = ('sc: share2 x share2', 'places: share x share', 'sc: share2 x share', 'sc: share2 x path')
FREE = {'rows': (), 'history': (), 'status': (False, None, None, None, None, False)}


def outcome(answers=None, **final):
    return judge.Outcome(answers or TRUE.answers, replace(TRUE.final, **final))


FALSE = {
    'two have the key': outcome(rows=(LIVE, OTHER), history=(('t0', None), ('t1', None))),
    'an owner has it twice': outcome(rows=(LIVE, LIVE)),
    'a call never ends': outcome((TRUE.answers[0], (('endless',),))),
    'a waiter has not been woken': outcome((TRUE.answers[0], (('overslept',),))),
    'a claim is left': outcome(claims=1),
    'a free key cannot be had': outcome(**FREE),
    'a free key is not offered': outcome(**FREE, line=(TICKET,)),
    'somebody waits for a free key': outcome((TRUE.answers[0], (('blocked',),)), **FREE),
    'a holder has a ticket': outcome(line=(('q0', 'a', False),)),
    'a token was given twice': outcome(2 * ((('acquired', 'exclusive', 'a', 't0'),),)),
    'the history differs from the rows': outcome(history=()),
    'a place that cannot be': outcome((TRUE.answers[0], (('queued', 0, 0, 'q0'),))),
    'unexpected error': outcome((TRUE.answers[0], (('error', 'XX000'),))),
    'the counters do not add up': outcome(grown=1),
}


def sharers(a, b, how=(None, None), mode='shared', **change):
    """a and b have got the key with these tokens; how: the ends of their leases"""
    rows = sorted(((*SHARED[:3], 'a', a, 4), (*SHARED[:3], 'b', b, 4)), key=lambda row: row[4])
    final = replace(TRUE.final, rows=tuple(rows), history=tuple(sorted(((a, how[0]), (b, how[1])))))
    return judge.Outcome(((('acquired', mode, 'a', a),), (('acquired', 'shared', 'b', b),)), replace(final, **change))


def differ(one, other):
    return judge.without_order(one) != judge.without_order(other)


def main():
    broken = [f'the true outcome breaks: {rule}' for rule in judge.broken_rules(SCENARIO, TRUE)]
    broken += [f'nobody notices: {rule}' for rule, false in FALSE.items() if rule not in judge.broken_rules(SCENARIO, false)]
    told = outcome((TRUE.answers[0], (('acquired', 'exclusive', 'b', 't1'),)), rows=(OTHER,), history=(('t1', None),))
    far = replace(QUEUED, answers=(QUEUED.answers[0], (('queued', 3, 0, 'q0'),)))
    if ['a place that cannot be' in judge.broken_rules(WAITS, o) for o in (QUEUED, far)] != [False, True]:
        broken.append('nobody notices a place that is too far')
    three = outcome(rows=tuple((*SHARED[:3], owner, f't{i}', 4) for i, owner in enumerate('abc')))
    if ['more than max_holders' in judge.broken_rules(scenarios.named(name), three) for name in CROWDS] != [True, True, False, False]:
        broken.append('nobody notices a holder too many, or one too many is seen where a call has no limit')
    if judge.broken_promise(SCENARIO, TRUE, set()) or not judge.broken_promise(SCENARIO, told, set()):
        broken.append('broken_promise() does not tell a lease that was lost')
    relied = judge.Outcome(((('done',), (None,), ('done',)), (('acquired', 'exclusive', 'b', 't1'),)), TRUE.final)
    order = [(True, 0, 0), (False, 0, 0), (True, 0, 1), (False, 0, 1), (True, 1, 0), (False, 1, 0), (True, 0, 2), (False, 0, 2)]
    if not judge.broken_order(BLOCK, relied, order) or judge.broken_order(BLOCK, relied, order[:4] + order[6:] + order[4:6]):
        broken.append('broken_order() does not tell a grant before the commit')
    folder = scenarios.named('path a+b: assert[tx]* x transfer*')
    shared, alone = (judge.Outcome((relied.answers[0], (('acquired', mode, 'd', 't1'),)), TRUE.final) for mode in ('shared', 'exclusive'))
    if judge.broken_order(folder, shared, order) or not judge.broken_order(folder, alone, order):
        broken.append('broken_order() does not tell the mode of a folder')
    first, second = judge.precedence(order[:4] + order[6:] + order[4:6]), judge.precedence(order[4:6] + order[:4] + order[6:])
    if not judge.is_in_order(first, first) or judge.is_in_order(first, second):
        broken.append('is_in_order() does not tell a serial order that contradicts the schedule')
    apart = frozenset([((0, 0), (1, 0))])
    if list(judge.some_refused(SCENARIO, TRUE, apart)) or not list(judge.some_refused(SCENARIO, TRUE, frozenset())):
        broken.append('some_refused() does not tell a refusal that overlaps no call')
    if list(judge.variants(WAITS, QUEUED, apart)) != [QUEUED] or {o.answers[1][0][1] for o in judge.variants(WAITS, QUEUED, frozenset())} != {1, 2, 3}:
        broken.append('variants() does not tell a wait that overlaps lock_enqueue')
    line = judge.Outcome(((('queued', 1, 0, 'q0'),), (('queued', 1, 0, 'q1'),)), QUEUED.final)
    if [sorted(tuple(a[0][1] for a in o.answers) for o in judge.variants(scenarios.named('c: enqueue x enqueue'), line, b)) for b in (frozenset(), apart)] \
            != [[(1, 1), (1, 2), (2, 1), (2, 2)], [(1, 1)]]:
        broken.append('variants() does not tell a ticket that is not committed')
    if list(judge.variants(PATH, TRUE, frozenset())) != [TRUE] or [len(list(judge.variants(s, PATH_WAITS, frozenset()))) for s in (PATH, KEPT)] != [2, 1]:
        broken.append('variants() does not tell a path that waits')
    crowd, over = sharers('t1', 't0'), (None, 'over')
    lower = replace(sharers('t0', 't1', mode='exclusive'), final=replace(crowd.final, rows=((*SHARED[:3], 'b', 't1', 4),)))
    higher = replace(sharers('t1', 't0', mode='exclusive'), final=replace(crowd.final, rows=((*SHARED[:3], 'b', 't0', 4),)))
    again = [replace(o, answers=((('reacquired', 'shared', 'a', o.answers[0][0][3]),), o.answers[1])) for o in (crowd, sharers('t0', 't1'))]
    if (differ(sharers('t0', 't1'), crowd) or differ(sharers('t0', 't1', over), sharers('t1', 't0', over))
            or not all(differ(*pair) for pair in (
                (sharers('t0', 't1', over), sharers('t1', 't0', over[::-1])), (sharers('t0', 't1', over), crowd), (lower, higher), again,
                (sharers('t1', 't0', rows=crowd.final.rows[:1]), crowd), (sharers('t1', 't0', status=(False,)), crowd),
                (sharers('t1', 't0', history=(('t0', None), ('t0', None))), crowd),
                (replace(crowd, answers=((('acquired', 'shared', 'a', 't0'),), crowd.answers[1])), crowd)))):
        broken.append('without_order() tells the order of sharers, or not another difference')
    two_paths = [judge.Outcome(((('acquired,acquired', a),), (('acquired,acquired', b),)), crowd.final) for a, b in (('t10', 't9'), ('t9', 't10'))]
    if ([judge.may_swap_tokens(scenarios.named(name), crowd, frozenset()) for name in CROWDS] != [False, False, True, True]
            or [judge.may_swap_tokens(scenarios.named(CROWDS[3]), o, apart) for o in (crowd, *two_paths, again[0])] != [False, False, True, True]):
        broken.append('may_swap_tokens() does not tell sharers that did not wait for each other')
    folder = scenarios.named('path a+b: force x path_wait')
    below = judge.Outcome(((('released',),), (('blocked',),)), replace(TRUE.final, **FREE))
    if [judge.broken_rules(s, replace(below, final=replace(below.final, status=(*FREE['status'], n)))) for s, n in ((folder, 2), (folder, 0), (WAITS, 2))] \
            != [[], ['somebody waits for a free key'], ['somebody waits for a free key']]:
        broken.append('nobody tells a path that waits for another key')
    ended = replace(QUEUED, final=replace(QUEUED.final, line=(), rows=(OTHER,)))
    got = replace(ended, answers=((('acquired', 'exclusive', 'b', 't1'),), QUEUED.answers[1]))
    if [any((1, 0) in calls for calls in judge.some_refused(WAITS, o, frozenset())) for o in (QUEUED, ended, got)] != [False, False, True]:
        broken.append('some_refused() does not tell a ticket that a grant has ended')
    own, offered = scenarios.named('releasing: assert* x enqueue of the same owner'), (('q0', 'a', True),)
    at_once = judge.Outcome(((('error', 'LK006'),), (('queued', 1, 0, 'q0'),)), replace(TRUE.final, **FREE, line=offered))
    false = [(own, replace(at_once, final=replace(at_once.final, **change)), frozenset())
             for change in ({'rows': (LIVE,)}, {'line': (('q0', 'a', False),)}, {'line': (('q0', 'b', True),)}, {'probe': 'acquired'})]
    false += [(own, at_once, apart), (scenarios.named('a: enqueue x status of the same owner'), replace(at_once, answers=at_once.answers[::-1]), frozenset()),
              (scenarios.named('a: assert* x enqueue'), replace(at_once, final=replace(at_once.final, line=(('q0', 'b', True),))), frozenset())]
    if not judge.is_offered_at_once(own, at_once, (1, 0), frozenset()) or any(judge.is_offered_at_once(s, o, (i, 0), before) for s, o, before in false for i in (0, 1)):
        broken.append('is_offered_at_once() does not tell a ticket for a free key')
    both = replace(at_once, answers=((('pending', None, None, None),), at_once.answers[1]))
    if [judge.are_all_refused(own, o) for o in (at_once, both)] != [False, True]:
        broken.append('are_all_refused() does not tell a ticket for a free key')
    if judge.left_out(at_once, [(1, 0)]).final != replace(TRUE.final, **FREE, probe='acquired') or judge.left_out(at_once, [(0, 0)]).final != at_once.final:
        broken.append('left_out() does not leave out the ticket')
    print('\n'.join(broken) or 'all falsified outcomes are noticed')
    return int(bool(broken))


if __name__ == '__main__':
    sys.exit(main())
