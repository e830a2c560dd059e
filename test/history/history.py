"""Runs histories and judges them; see README.md in this directory."""

import argparse
import os
import sys
import time
import traceback

import faults
import patroni
from replay import Script

RUNS = {**faults.RUNS, **patroni.RUNS}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--bin', required=True, help='directory of the PostgreSQL programs')
    parser.add_argument('--directory', required=True, help='where servers live')
    parser.add_argument('--keep', required=True, help='where the histories of failed runs go')
    parser.add_argument('--seed', type=int)
    parser.add_argument('--seconds', type=float, default=6)
    parser.add_argument('--minutes', type=float, default=0, help='go on with other seeds for so long')
    parser.add_argument('--runs', default=' '.join(faults.RUNS))
    parser.add_argument('--replay')
    parser.add_argument('--tally', required=True)
    options = parser.parse_args()

    # libpq writes there what a dying server reports
    log = os.open(f'{options.directory}/harness.log', os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)

    script = Script(options.replay) if options.replay else None
    seed = options.seed
    if script is not None:
        names, seed = [script.run], script.seed
    else:
        names = options.runs.split()
        if seed is None:
            seed = int.from_bytes(os.urandom(3), 'big')
    began = time.monotonic()
    passed, failed = 0, 0
    while True:
        for name in names:
            right = one(name, seed, options, script)
            if right is not None:
                passed += right
                failed += not right
            if 0 < options.minutes * 60 < time.monotonic() - began:
                break
        if options.minutes * 60 <= time.monotonic() - began:
            break
        seed += 1
    with open(options.tally, 'w', encoding='utf-8') as tally:
        tally.write(f'{passed} {failed}\n')
    sys.exit(1 if failed else 0)


def one(name, seed, options, script):
    """Returns whether the run passed; None if it is impossible here"""
    run = RUNS[name](options.bin, options.directory, seed, options.seconds, script)
    reason = run.impossible()
    if reason:
        print(f'skipped {name}: {reason}', flush=True)
        return None
    began = time.monotonic()
    wrong = []
    try:
        wrong = run.run()
    except Exception:			# of the harness, or of a server that does not answer
        wrong = run.wrong + ['harness: ' + traceback.format_exc()]
    took = time.monotonic() - began
    print(f'{"not ok" if wrong else "ok"} {name}, seed {seed}, {took:.0f} s: {run.summary()}', flush=True)
    if wrong:
        path = f'{options.keep}/{name}-{seed}.jsonl'
        os.makedirs(options.keep, exist_ok=True)
        run.history.save(path, run=name, seed=seed, seconds=options.seconds)
        for text in wrong[:12]:
            print(f'  {text}')
        if len(wrong) > 12:
            print(f'  ... and {len(wrong) - 12} more')
        if script is None:
            print(f'  again: test/history/run --runs {name} --seed {seed} --seconds {options.seconds:g}')
            print(f'  or, in the order in which it happened: test/history/run --replay test_results/history/{name}-{seed}.jsonl', flush=True)
    return not wrong


if __name__ == '__main__':
    main()
