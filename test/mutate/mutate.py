"""
test/mutate/mutate.py - makes sampled mutants of src/, and runs tests until one fails.

test/mutate/run calls it below its scratch directory, where it finds
	plain/{src,pg}	the build that is mutated	hooks/{src,pg}	the same with AL_TEST_HOOKS
	cov/{src,pg}	a build with counters of lines, if tests have to be measured
	template		a data directory with the databases of pg_regress
	known			the measurements of former runs
	changed			the lines that a commit has changed, if SINCE names one
At its end it writes the file "tally": the number of killed mutants, and the number of
folders with too few of them.

Model: it tries one mutant at a time.  It compiles the file of the mutant to assembler.  A
mutant with the same assembler as the original changes nothing.  The tests run in stages,
and the first test that fails ends the trial:
1. SQL tests and specifications that reach the line.  The quickest runs first; a test that
   has noticed mutants of this file counts as quicker.
2. The explorer of schedules and the TAP tests, in the order of the table "tap".
A test fails, too, if it does not end or its server crashes.  When a test fails for the
first time, it runs again without the mutant; if that fails, the test does not count.

A test that fails leaves rows and roles behind, so each mutant has a new copy of the data
directory.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter, defaultdict
from pathlib import Path

import mutants as generator

HERE = Path.cwd()
SOURCE = HERE / 'plain/src'
# The share of a folder with fewer than ENOUGH mutants does not count.
ENOUGH, WANTED = 10, 90
NEEDS_COUNTERS = 3  # exit status


def sum_of(*paths):
    return zlib.crc32(b''.join(path.read_bytes() for path in paths))


def files_of(test):
    """A SQL test or a specification, its expected output, and the files that it includes."""
    if test.suffix == '.spec':
        return [test, SOURCE / 'expected' / (test.stem + '.out'), *sorted((test.parent / 'include').iterdir())]
    included = sorted(set(re.findall(r'/sql/include/(\w+\.sql)', test.read_text())))
    return [test, SOURCE / 'expected' / (test.stem + '.out'), *(SOURCE / 'test/sql/include' / name for name in included)]


def run(command, limit, directory=SOURCE, log='test.log', env=None, stop_at=None):
    """Run a command, and end all its processes after limit seconds.  Returns its status, or None if it was ended."""
    with open(HERE / log, 'wb') as output:
        process = subprocess.Popen([str(c) for c in command], cwd=directory, stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.STDOUT, start_new_session=True, env={**os.environ, **(env or {})})
        end = time.monotonic() + limit
        while True:
            try:
                return process.wait(0.2 if stop_at else limit)
            except subprocess.TimeoutExpired:
                found = stop_at and re.search(stop_at, (HERE / log).read_text(errors='replace'), re.M)
                if found or time.monotonic() >= end:
                    # PostgreSQL::Test stops its servers on TERM
                    for sign in (signal.SIGTERM, signal.SIGKILL):
                        try:
                            os.killpg(process.pid, sign)
                            process.wait(10)
                        except (ProcessLookupError, subprocess.TimeoutExpired):
                            pass
                    return 1 if found else None


class Build:
    """One of the builds below the scratch directory."""

    def __init__(self, name, pg_config):
        self.source, self.pg_config = HERE / name / 'src', HERE / name / ('pg' + pg_config)
        self.bin = self.pg_config.parent
        self.library = Path(self.ask('--pkglibdir')) / 'atomic_lock.so'
        self.pgxs = Path(self.ask('--pgxs')).parent.parent
        make = ['make', '-n', 'PG_CONFIG=%s' % self.pg_config, 'with_llvm=no']
        if name == 'hooks':
            make.append('COPT=-DAL_TEST_HOOKS')
        self.compile = self.line(make + ['-B', 'src/init.o'], '-c -o src/init.o')
        self.link = self.line(make + ['-W', 'src/init.o', 'atomic_lock.so'], '-shared')
        self.originals = {}
        shutil.copy(self.source / 'atomic_lock.so', HERE / (name + '.so'))
        self.clean = HERE / (name + '.so')

    def ask(self, what):
        return subprocess.run([self.pg_config, what], check=True, capture_output=True, text=True).stdout.strip()

    def line(self, command, part):
        said = subprocess.run(command, cwd=self.source, check=True, capture_output=True, text=True).stdout
        return next(line for line in said.splitlines() if part in line)

    def assembler(self, file):
        """The file as assembler, or None if it does not compile."""
        command = self.compile.replace('-MMD -MP', '').replace('-c -o src/init.o src/init.c',
                                                              '-g0 -S -o %s/mutant.s %s' % (HERE, file))
        return (HERE / 'mutant.s').read_text() if run(['sh', '-c', command], 120, self.source, 'build.log') == 0 else None

    def mutate(self, mutant):
        """Install a mutant.  Returns True, or the reason why there is none."""
        file = self.source / mutant.file
        text = file.read_text()
        if mutant.file not in self.originals:
            self.originals[mutant.file] = self.assembler(mutant.file)
            if self.originals[mutant.file] is None:
                raise RuntimeError('%s does not compile: %s' % (mutant.file, (HERE / 'build.log').read_text()))
        file.write_text(generator.apply(mutant, text))
        try:
            made = self.assembler(mutant.file)
        finally:
            file.write_text(text)
        if made is None:
            return 'does not compile'
        if made == self.originals[mutant.file]:
            return 'no change'
        link = self.link.replace(' %s.o ' % mutant.file[:-2], ' %s/mutant.o ' % HERE).replace('-o atomic_lock.so', '-o %s/mutant.so' % HERE)
        command = 'gcc -c -o %s/mutant.o %s/mutant.s && %s' % (HERE, HERE, link)
        if run(['sh', '-c', command], 120, self.source, 'build.log') != 0:
            return 'does not compile'
        self.install(HERE / 'mutant.so')
        return True

    def install(self, library):
        shutil.copy(library, str(self.library) + '.new')
        os.replace(str(self.library) + '.new', self.library)


class Server:
    """The server of SQL tests and specifications, with a new copy of the template after each start."""

    data, running = HERE / 'server/data', None

    def start(self, build, settings):
        self.stop()
        shutil.rmtree(HERE / 'server', ignore_errors=True)
        (HERE / 'server').mkdir()
        subprocess.run(['cp', '-RPp', HERE / 'template', self.data], check=True)
        with open(self.data / 'postgresql.conf', 'ab') as file:
            file.write((SOURCE / settings).read_bytes())
        self.build = build
        command = [build.bin / 'pg_ctl', '-D', self.data, '-w', '-t', 60, '-l', HERE / 'server/log', 'start']
        self.running = settings if run(command, 90, HERE, 'start.log') == 0 else None

    def stop(self, mode='immediate'):
        if self.running:
            run([self.build.bin / 'pg_ctl', '-D', self.data, '-m', mode, '-w', '-t', 60, 'stop'], 90, HERE, 'start.log')
        self.running = None


class Tests:
    """SQL tests and specifications, and the lines that they reach."""

    # The folder, the pattern of file names, the settings of the server, and the names, if not all
    kinds = {'regress': ('test', 'sql/*.sql', 'test/preloaded/sql.conf', ()),
             'unloaded': ('test', 'sql/*.sql', 'test/atomic_lock.conf', ('settings', 'events', 'wait', 'limits')),
             'preloaded': ('test/preloaded', 'sql/*.sql', 'test/preloaded/atomic_lock.conf', ()),
             'isolation': ('test', 'specs/*.spec', 'test/preloaded/sql.conf', ())}

    def __init__(self, plain, server):
        self.plain, self.server, self.kills = plain, server, Counter()
        known = json.loads((HERE / 'known').read_text() or '{}')
        self.files = known.get('files', {})
        self.known = {}
        self.missing = []
        for kind, (folder, pattern, _, some) in self.kinds.items():
            for file in sorted((SOURCE / folder).glob(pattern)):
                test = '%s %s' % (kind, file.stem)
                # The test "settings" needs a server that has not loaded the library yet.
                if (some and file.stem not in some) or test == 'regress settings':
                    continue
                now = sum_of(*files_of(file))
                if known.get('tests', {}).get(test, {}).get('sum') == now:
                    self.known[test] = known['tests'][test]
                else:
                    self.missing.append((test, now))

    def run(self, test, limit, build):
        kind, name = test.split()
        folder, _, settings, _ = self.kinds[kind]
        if self.server.running != settings:
            self.server.start(build, settings)
        if not self.server.running:
            return 1
        out = HERE / 'server/out'
        if not out.exists():
            out.mkdir()
            (out / 'expected').symlink_to(SOURCE / 'expected')
        tool = 'isolation/pg_isolation_regress' if kind == 'isolation' else 'regress/pg_regress'
        more = ['--launcher=test/specs/tester'] if kind == 'isolation' else []
        return run([self.plain.pgxs / 'test' / tool, '--inputdir=' + folder, '--outputdir=%s' % out, '--use-existing',
                    '--bindir=%s' % self.plain.bin, '--host=%s/s' % HERE, '--user=postgres', '--dbname=regression', *more,
                    name], limit)

    def measure(self, cov):
        """Measure which lines each test executes that has not been measured."""
        objects = sorted((cov.source / 'src').rglob('*.gcno'))
        for count, (test, now) in enumerate(self.missing):
            for file in (cov.source / 'src').rglob('*.gcda'):
                file.unlink()
            began = time.monotonic()
            status = self.run(test, 300, cov)
            took = time.monotonic() - began
            self.server.stop('fast')
            if status != 0:
                print('%s fails without a mutant, and is left out' % test, flush=True)
                shutil.copytree(HERE / 'server/out', HERE / 'failed' / test, dirs_exist_ok=True, symlinks=True)
                self.known[test] = {'sum': now, 'time': 0, 'reached': {}}
                continue
            reached = defaultdict(lambda: defaultdict(list))
            said = subprocess.run(['gcov', '-t', '-j', *objects], cwd=cov.source, capture_output=True, text=True).stdout
            for line in said.splitlines():
                for file in json.loads(line)['files'] if line.startswith('{') else ():
                    if file['file'].startswith('src/') and file['file'].endswith('.c'):
                        for at in file['lines']:
                            if at['count'] and at.get('function_name'):
                                reached[file['file']][at['function_name']].append(at['line_number'])
                        self.files[file['file']] = [sum_of(SOURCE / file['file']),
                                                    sorted({at['line_number'] for at in file['lines']})]
            self.known[test] = {'sum': now, 'time': round(took, 2), 'reached': reached}
            if count % 20 == 19:
                print('%d of %d measured' % (count + 1, len(self.missing)), flush=True)
        self.server.stop()
        (HERE / 'known').write_text(json.dumps({'files': self.files, 'tests': self.known}))

    def reaching(self, mutant):
        """The tests that reach the line, the most promising first."""
        sum_then, measured = self.files.get(mutant.file, (None, []))
        # A statement counts at its first line
        line = max((at for at in measured if at <= mutant.line), default=0)
        same = sum_then == sum_of(SOURCE / mutant.file)
        found = []
        for test, known in self.known.items():
            reached = known['reached'].get(mutant.file, {})
            # AL_FUNCTION() gives the name "checked_..." to the body
            lines = reached.get(mutant.function, []) + reached.get('checked_' + mutant.function, [])
            if (line in lines) if same else lines:
                found.append((known['time'] / (1 + self.kills[mutant.file, test]), test))
        return [test for _, test in sorted(found)]


class Tap:
    """TAP tests and the explorer.  They need a build with hooks beside the plain one."""

    def __init__(self, plain, hooks, seed):
        self.plain, self.hooks, self.seed = plain, hooks, seed
        self.table = [line.split() for line in (SOURCE / 'test/mutate/tap').read_text().splitlines()
                      if line and not line.startswith('#')]

    def named(self, file):
        names = []
        for prefix, *tests in self.table:
            if file.startswith(prefix):
                names += [test for test in tests if test not in names]
        return names

    def run(self, test, limit, build=None):
        if test == 'explore':
            command = SOURCE / 'test/explore/run'
            if not command.exists():
                return 0
            return run([command, '--seconds', '30', '--first', '--seed', str(self.seed)], limit, env={'AL_EXPLORE_BIN': str(self.hooks.bin)})
        file = next(SOURCE.glob('test/t/*/%s.pl' % test))
        tap, perl = HERE / 'tap', self.plain.pgxs / 'test/perl'
        shutil.rmtree(tap, ignore_errors=True)
        tap.mkdir()
        env = {'PATH': '%s:%s' % (self.plain.bin, os.environ['PATH']), 'AL_HOOKS': str(self.hooks.bin.parent),
               'PGPORT': '65432', 'PG_REGRESS': str(self.plain.pgxs / 'test/regress/pg_regress'), 'TESTDIR': str(tap),
               'TESTDATADIR': str(tap / 'tmp_check'), 'TESTLOGDIR': str(tap / 'tmp_check/log')}
        status = run(['perl', '-Itest/perl', '-I%s' % perl, file], limit, env=env, stop_at='^not ok')
        for pid in tap.rglob('postmaster.pid'):
            run([self.plain.bin / 'pg_ctl', '-D', pid.parent, '-m', 'immediate', '-w', 'stop'], 60, HERE, 'start.log')
        return status


def equivalents():
    """The entries of test/mutate/equivalent: (file, function, operator, number, text of the line)."""
    found = set()
    for block in (SOURCE / 'test/mutate/equivalent').read_text().split('\n\n'):
        lines = [line for line in block.splitlines() if line and not line.startswith('#')]
        if lines:
            file, function, operator, *number = lines[0].split(':')
            found.add((file, function, operator, int(number[0]) if number else 1, lines[1].strip()))
    return found


def choose(options):
    """Returns the mutants to try, and the texts of their files."""
    texts = {str(path.relative_to(SOURCE)): path.read_text() for path in sorted((SOURCE / 'src').rglob('*.c'))}
    every = [m for file, text in texts.items() for m in generator.mutants(file, text)]
    if options.mutant:
        return [m for m in every if any(is_named(m, *one.split(':')) for one in options.mutant.split())], texts
    changed = (HERE / 'changed').read_text().split()
    wanted = options.folders.split()
    every = [m for m in every if (not wanted or folder_of(m.file) in wanted or m.file in wanted) and
             (not options.since or '%s:%d' % (m.file, m.line) in changed)]
    # Take one of each folder in turn
    chance = random.Random(options.seed)
    folders = defaultdict(list)
    for m in every:
        folders[folder_of(m.file)].append(m)
    for group in folders.values():
        chance.shuffle(group)
    spread = [group[i] for i in range(len(every)) for group in folders.values() if i < len(group)]
    return spread, texts


def is_named(mutant, file, *parts):
    number, parts = (int(parts[-1]), parts[:-1]) if parts and parts[-1].isdigit() else (1, parts)
    return (mutant.file, mutant.number) == (file, number) and mutant.operator in parts and \
        all(part in (mutant.function, str(mutant.line), mutant.operator) for part in parts)


def folder_of(file):
    return file.split('/')[1] if file.count('/') > 1 else 'src'


def try_mutant(mutant, plain, hooks, tests, tap, limit, green):
    """Returns the result, and the test that noticed the mutant."""
    result = plain.mutate(mutant)
    if result is not True:
        return result, ''
    reaching = tests.reaching(mutant)
    for stage, names in ((tests, reaching), (tap, tap.named(mutant.file))):
        if stage is tap:
            tests.server.stop()
            if hooks.mutate(mutant) is not True:
                hooks.install(hooks.clean)
        for test in names:
            if not green.get(test, True):
                continue
            seconds = min(limit, 20 + 6 * tests.known[test]['time']) if stage is tests else limit
            status = stage.run(test, seconds, plain)
            if status == 0:
                continue
            tests.kills[mutant.file, test] += 1
            # A test that fails without the mutant, too, does not count.
            if test not in green:
                tests.server.stop()
                for build in (plain, hooks):
                    build.install(build.clean)
                green[test] = stage.run(test, limit, plain) == 0
                tests.server.stop()
            if green[test]:
                return 'killed', test + (' (does not end)' if status is None else '')
            print('%s fails without a mutant' % test, flush=True)
            plain.mutate(mutant)
            hooks.mutate(mutant)
    return 'survived', '%d tests reach it' % len(reaching)


def main():
    parser = argparse.ArgumentParser()
    for option in ('--pg-config', '--mutant', '--folders', '--since'):
        parser.add_argument(option, default='')
    for option in ('--seed', '--sample', '--limit'):
        parser.add_argument(option, type=int)
    options = parser.parse_args()
    chosen, texts = choose(options)
    if not chosen:
        print('\nno mutant was chosen')
        tally(0, 0 if options.since else 1)
    plain, hooks, server = Build('plain', options.pg_config), Build('hooks', options.pg_config), Server()
    tests, tap = Tests(plain, server), Tap(plain, hooks, options.seed)
    if tests.missing:
        if not (HERE / 'cov/src').exists():
            sys.exit(NEEDS_COUNTERS)
        print('Measuring what %d tests reach' % len(tests.missing), flush=True)
        tests.measure(Build('cov', options.pg_config))
    known, tried, results, survivors, green = equivalents(), 0, defaultdict(Counter), [], {}
    lines = {file: text.splitlines() for file, text in texts.items()}
    for mutant in chosen:
        if tried >= (options.sample or len(chosen)):
            break
        line, began = lines[mutant.file][mutant.line - 1].strip(), time.monotonic()
        if (mutant.file, mutant.function, mutant.operator, mutant.number, line) in known and not options.mutant:
            result, how = 'equivalent', ''
        else:
            try:
                result, how = try_mutant(mutant, plain, hooks, tests, tap, options.limit, green)
            finally:
                server.stop()
        tried += result in ('killed', 'survived')
        results[folder_of(mutant.file)][result] += 1
        print('%4d s  %-16s %s  %s' % (time.monotonic() - began, result, generator.name(mutant), how), flush=True)
        if result == 'survived':
            print('        %s' % line, flush=True)
            survivors.append(generator.name(mutant))
    report(results, survivors)


def report(results, survivors):
    bad, killed, of = 0, 0, 0
    print('\n%-8s %8s %16s %9s %10s %6s %8s %6s' % ('folder', 'mutants', 'does not compile', 'no change', 'equivalent', 'killed', 'survived',
                                            'share'))
    for folder, n in sorted(results.items()):
        all_of = n['killed'] + n['survived']
        share = 100 * n['killed'] / all_of if all_of else 100
        low = all_of >= ENOUGH and share < WANTED
        bad += low
        killed, of = killed + n['killed'], of + all_of
        print('%-8s %8d %16d %9d %10d %6d %8d %4.0f %%%s' % (folder, sum(n.values()), n['does not compile'], n['no change'], n['equivalent'],
                                                   n['killed'], n['survived'], share, '  too few' if low else ''))
    if survivors:
        print('\nSurvivors: make mutate MUTANT=... repeats one.  A missing test, or a reason for test/mutate/equivalent')
        print('\n'.join('    ' + name for name in survivors))
    print('\n%d of %d killed' % (killed, of))
    # A survivor is no failure in a folder with enough killed mutants.
    tally(killed, bad)


def tally(passed, failed):
    """Tell test/mutate/run that this is the end."""
    (HERE / 'tally').write_text('%d %d\n' % (passed, failed))
    sys.exit(failed > 0)


main()
