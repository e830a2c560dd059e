"""A connection between a client and its server that breaks at chosen moments.

The connection may break at each call: when the client has sent the call, so that the server never
gets it; or when the server has answered the call in full, so that the call is executed and the
client never knows. The proxy keeps the first row of the lost answer, with which the checker
judges a repeated call.
"""

import os
import random
import select
import shutil
import socket
import struct
import threading
import time


class Proxy:
    """Listens like a server, in a directory of its own"""

    def __init__(self, directory, upstream, seed):
        self.directory, self.upstream = directory, upstream
        self.random = random.Random(seed)
        self.how = None
        self.calm = False
        self.answer = None
        self.cuts = []
        os.makedirs(directory, exist_ok=True)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(f'{directory}/.s.PGSQL.5432')
        self.listener.listen()
        threading.Thread(target=self.serve, daemon=True).start()

    def draw(self):
        """Draws whether the next call gets through"""
        self.answer = None
        dice = self.random.random()
        self.how = None
        if not self.calm and dice < 0.03:
            self.how = 'before' if dice < 0.008 else 'after'

    def unseen(self):
        """The first row of the lost answer, or None"""
        return self.answer

    def close(self):
        self.listener.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def serve(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.connection, args=(client,), daemon=True).start()

    def connection(self, client):
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(self.upstream)
            self.forward(client, server)
        except OSError:
            pass
        finally:
            client.close()
            server.close()

    def forward(self, client, server):
        ready = False		# whether the start-up has finished
        kept = b''
        while True:
            for end in select.select([client, server], [], [])[0]:
                data = end.recv(65536)
                if not data:
                    return
                if end is client:
                    if ready and self.how == 'before':
                        self.cut('before')
                        return
                    server.sendall(data)
                    continue
                kept += data
                whole, messages = self.split(kept)
                ready = ready or any(kind == b'Z' for kind, _ in messages)
                if ready and self.how == 'after':
                    if not any(kind == b'Z' for kind, _ in messages):
                        continue
                    self.answer = self.row(messages)
                    self.cut('after')
                    return
                client.sendall(data)
                kept = kept[whole:]

    def cut(self, how):
        self.how = None
        self.cuts.append((time.monotonic(), how))

    @staticmethod
    def split(data):
        """Returns the length of the complete messages, and the messages"""
        messages, at = [], 0
        while at + 5 <= len(data):
            size = struct.unpack_from('!i', data, at + 1)[0] + 1
            if at + size > len(data):
                break
            messages.append((data[at:at + 1], data[at + 5:at + size]))
            at += size
        return at, messages

    @staticmethod
    def row(messages):
        names, values = [], None
        for kind, body in messages:
            if kind == b'T':
                at = 2
                for _ in range(struct.unpack_from('!h', body)[0]):
                    end = body.index(b'\0', at)
                    names.append(body[at:end].decode())
                    at = end + 1 + 18
            elif kind == b'D' and values is None:
                values, at = [], 2
                for _ in range(struct.unpack_from('!h', body)[0]):
                    size = struct.unpack_from('!i', body, at)[0]
                    at += 4
                    values.append(None if size < 0 else body[at:at + size].decode())
                    at += max(size, 0)
            elif kind == b'E':
                return None
        return dict(zip(names, values)) if values is not None else None
