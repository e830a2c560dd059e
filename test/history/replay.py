"""Replays a recorded history.

Each client sends its recorded calls. A client sends a call only after all calls have been
answered that had been answered before it in the record. This keeps the order that clients could
observe; concurrent calls may interleave in any way again. If an awaited call takes another
course, the client sends its call after a tenth of a second anyway.
"""

import threading
import time

from clients import History, Worker

PATIENCE = 0.1


class Script:
    """A recorded history, and the progress of its replay"""

    def __init__(self, path):
        self.recorded, about = History.load(path)
        self.run, self.seed = about['run'], about['seed']
        records = sorted((r for r in self.recorded.records if r['comp'] is not None), key=lambda r: r['inv'])
        records = [r for r in records if r['client'] != 'judge']
        self.by_client = {}
        for record in records:
            self.by_client.setdefault(record['client'], []).append(record)
        self.begin = records[0]['inv']
        self.seconds = records[-1]['comp'] - self.begin + 10
        # place: index of a record among the answers; before: number of answers before its call
        answers = sorted(records, key=lambda r: r['comp'])
        moments = [r['comp'] for r in answers]
        self.place = {r['id']: i for i, r in enumerate(answers)}
        self.before = {}
        count = 0
        for record in records:
            while count < len(moments) and moments[count] <= record['inv']:
                count += 1
            self.before[record['id']] = count
        self.done = [False] * len(answers)
        self.prefix = 0
        self.condition = threading.Condition()

    def clients(self, run):
        return [Player(run, name, records, self) for name, records in self.by_client.items()]

    def faults(self):
        last = self.begin
        for begin, end, kind, detail in self.recorded.faults:
            yield max(0, begin - last), kind, detail
            last = end

    def answered(self, record):
        with self.condition:
            self.done[self.place[record['id']]] = True
            while self.prefix < len(self.done) and self.done[self.prefix]:
                self.prefix += 1
            self.condition.notify_all()

    def await_turn(self, record):
        with self.condition:
            self.condition.wait_for(lambda: self.prefix >= self.before[record['id']], PATIENCE)


class Player(Worker):
    """A client of the record"""

    def __init__(self, run, name, records, script):
        super().__init__(run, name)
        self.records, self.script = records, script

    def work(self):
        renumbered, tokens = {}, {}
        value = answered = None
        written = False
        for record in self.records:
            self.script.await_turn(record)
            if answered is not None:
                # sleeps as long as the recorded client did
                time.sleep(max(0, min(1, record['inv'] - answered) - 0.001))
            answered = record['comp']
            if record['op'] == 'connect':
                if self.session.conn is not None:
                    self.session.disconnect()		# the recorded connection was lost here
                self.session.connect()
            elif record['op'] == 'disconnect':
                self.session.disconnect()
            elif record['op'] in ('write', 'journal') and not self.session.in_transaction or \
                    record['op'] == 'journal' and not written:
                pass			# its transaction took another course
            else:
                facts = {name: value for name, value in record.items() if name not in (
                    'id', 'client', 'op', 'sql', 'params', 'inv', 'comp', 'outcome', 'rows', 'tag',
                    'sqlstate', 'message', 'unseen')}
                params = list(record['params'])
                if record['op'] == 'journal':
                    params[0] = facts['write'] = renumbered.get(facts['write'], -1)
                if record['op'] == 'fence':
                    params[1] = tokens.get((record['key'], record['owner']), params[1])
                if record['op'] == 'write' and value is not None:
                    params[0] = value + 1
                new = self.session.call(record['op'], record['sql'], *params, **facts)
                renumbered[record['id']] = new['id']
                if record['op'] == 'acquire' and new['outcome'] == 'ok':
                    tokens[record['key'], record['owner']] = new['rows'][0]['fencing_token']
                if record['op'] == 'write':
                    written = new['outcome'] == 'ok'
                if record['op'] == 'write' and written and record['outcome'] != 'ok':
                    # the recorded write was refused, so the record has no journal entry
                    self.session.call('journal', 'INSERT INTO journal VALUES (%s, %s)', new['id'], params[1],
                                      key=record['key'], owner=record['owner'], write=new['id'])
                if record['op'] in ('read', 'fetch') and new['outcome'] == 'ok':
                    value = new['rows'][0]['value']
            self.script.answered(record)
