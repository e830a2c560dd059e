#!/usr/bin/env python3
"""test/collisions.py - makes texts with the same hash as another text, for the tests.

PostgreSQL's 64-bit hash of texts (hashtextextended, which is hash_bytes_extended of
src/common/hashfn.c) spreads well, but does not resist attacks: with a known seed it
can be computed backwards.  Its state is three words of 32 bits, and two of them are
the hash.  The third word may have any value; each value leads to other 12 bytes in
the middle of a text.  One in 140,000 is printable, and one in a million needs no
quoting, so the script finds a text in seconds, and there are thousands.

Keys and owners once had such hashes, with seeds that are in the source code.
test/t/access/hash_collisions.pl, load/model.pl, load/random_sql.pl and test/history
use texts of this script, to show that such collisions no longer matter.

  collisions.py key TEXT [COUNT]          other keys with the hash of a key
  collisions.py owner TEXT [COUNT]        other owners with the hash of an owner
  collisions.py holding KEY OWNER KEY2 [COUNT]
                                          owners whose shared holding of KEY2 has
                                          the tag of OWNER's shared holding of KEY
  collisions.py check [PSQL-ARGUMENT...]  whether a server hashes as we do

  --prefix TEXT    begin of the texts, a multiple of 12 bytes
  --suffix TEXT    end of the texts
  --seed N         seed of the hash, in place of the seed of keys or owners
  --without CHARS  characters that the made bytes must not have
"""

import argparse
import random
import subprocess
import sys

SEED_KEY = 0x61746f6d69636b79
SEED_OWNER = 0x61746f6d69636f77

MASK = 0xffffffff
MASK64 = 0xffffffffffffffff
ROUNDS = (4, 6, 8, 16, 19, 4)			# of mix()
FINAL = (14, 11, 25, 16, 4, 14, 24)		# of final()
COMBINE = 0x49a0f4dd15e5a8e3			# of hash_combine64()

# Characters that need quoting in SQL, arrays, Perl, or keys of several parts
AWKWARD = ' \'"\\{},:$@|%`'


def rot(x, k):
    return ((x << k) | (x >> (32 - k))) & MASK


def mix(a, b, c):
    for k in ROUNDS:
        a = (a - c) & MASK
        a ^= rot(c, k)
        c = (c + b) & MASK
        a, b, c = b, c, a
    return a, b, c


def unmix(a, b, c):
    for k in reversed(ROUNDS):
        a, b, c = c, a, b
        c = (c - b) & MASK
        a ^= rot(c, k)
        a = (a + c) & MASK
    return a, b, c


def final(a, b, c):
    for k in FINAL:
        c ^= b
        c = (c - rot(b, k)) & MASK
        a, b, c = b, c, a
    return c, a, b


def unfinal(a, b, c):
    c, a, b = a, b, c
    for k in reversed(FINAL):
        a, b, c = c, a, b
        c = (c + rot(b, k)) & MASK
        c ^= b
    return a, b, c


def words(data):
    """The three words of a block of 12 bytes, or of the rest at the end"""
    if len(data) < 12:
        # the hash does not use the lowest byte of the last word
        data = (data[:8].ljust(8, b'\0') + b'\0' + data[8:]).ljust(12, b'\0')
    return [int.from_bytes(data[i:i + 4], 'little') for i in (0, 4, 8)]


def initial(length, seed):
    a = b = c = (0x9e3779b9 + length + 3923095) & MASK
    if seed == 0:
        return a, b, c
    return mix((a + (seed >> 32)) & MASK, (b + seed) & MASK, c)


def absorb(state, data):
    return [(x + y) & MASK for x, y in zip(state, words(data))]


def unabsorb(state, data):
    return [(x - y) & MASK for x, y in zip(state, words(data))]


def split(data):
    """Whole blocks, and the rest"""
    whole = len(data) - len(data) % 12
    return [data[i:i + 12] for i in range(0, whole, 12)], data[whole:]


def hash_bytes(data, seed):
    """hash_bytes_extended()"""
    state = initial(len(data), seed)
    blocks, rest = split(data)
    for block in blocks:
        state = mix(*absorb(state, block))
    _, b, c = final(*absorb(state, rest))
    return b << 32 | c


def combine(a, b):
    """hash_combine64()"""
    return a ^ ((b + COMBINE + (a << 54) + (a >> 7)) & MASK64)


def uncombine(a, combined):
    """The hash that was combined with a"""
    return ((combined ^ a) - COMBINE - (a << 54) - (a >> 7)) & MASK64


def texts(wanted, seed, prefix=b'', suffix=b'', without=AWKWARD):
    """Printable texts with a hash: 12 bytes between prefix and suffix"""
    if len(prefix) % 12 != 0:
        raise ValueError('the prefix must be a multiple of 12 bytes long')
    good = {c for c in range(0x20, 0x7f) if chr(c) not in without}
    state = initial(len(prefix) + 12 + len(suffix), seed)
    for block in split(prefix)[0]:
        state = mix(*absorb(state, block))
    x, y, z = state
    blocks, rest = split(suffix)
    # the same texts each time
    start = random.Random(f'{wanted}/{seed}/{prefix}/{suffix}').getrandbits(32)
    for free in range(start, start + (1 << 32)):
        a, b, c = unabsorb(unfinal(free & MASK, wanted >> 32, wanted & MASK), rest)
        for block in reversed(blocks):
            a, b, c = unabsorb(unmix(a, b, c), block)
        a, b, c = unmix(a, b, c)
        # most candidates fail at the first byte or two
        a = (a - x) & MASK
        if a & 0xff not in good or a >> 8 & 0xff not in good or a >> 16 & 0xff not in good:
            continue
        text = b''.join(word.to_bytes(4, 'little')
                        for word in (a, (b - y) & MASK, (c - z) & MASK))
        if good.issuperset(text):
            yield prefix + text + suffix


def sql_literal(data):
    return "'" + data.decode('ascii').replace("'", "''") + "'"


def check(arguments):
    """Compares our hashes of texts of all lengths, and of constructed texts, with a server's"""
    generator = random.Random(1706)
    asked = []
    for length in range(0, 80):
        text = bytes(generator.choices(range(0x20, 0x7f), k=length))
        asked += [(text, seed) for seed in (0, SEED_KEY, SEED_OWNER)]
    for prefix, suffix in ((b'', b''), (b'twelve bytes', b''), (b'twelve bytes', b'and a suffix'),
                           (b'', b'a tail'), (b'', b'a longer tail, more')):
        made = next(texts(hash_bytes(b'a key', SEED_KEY), SEED_KEY, prefix, suffix))
        if hash_bytes(made, SEED_KEY) != hash_bytes(b'a key', SEED_KEY):
            sys.exit(f'{made!r} has another hash')
        asked.append((made, SEED_KEY))
    for _ in range(100):
        a, b = generator.getrandbits(64), generator.getrandbits(64)
        if uncombine(a, combine(a, b)) != b:
            sys.exit(f'{a} and {b} are not what was combined')
    values = ', '.join(f'({sql_literal(text)}, {seed}::bigint, '
                       f'{(hash_bytes(text, seed) ^ 1 << 63) - (1 << 63)}::bigint)' for text, seed in asked)
    sql = ('SET standard_conforming_strings = on; SELECT text FROM (VALUES ' + values + ') AS v (text, seed, hash) '
           'WHERE hashtextextended(text COLLATE "C", seed) <> hash')
    answer = subprocess.run(['psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', *arguments], input=sql.encode(),
                            stdout=subprocess.PIPE, check=True).stdout
    if answer:
        sys.exit('the server has other hashes of:\n' + answer.decode())
    print(f'{len(asked)} texts have the hashes that the server says')


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('kind', choices=('key', 'owner', 'holding', 'check'))
    parser.add_argument('text', nargs='*')
    parser.add_argument('--prefix', default='')
    parser.add_argument('--suffix', default='')
    parser.add_argument('--seed', type=lambda text: int(text, 0))
    parser.add_argument('--without', default=AWKWARD)
    if sys.argv[1:2] == ['check']:
        check(sys.argv[2:])
        return
    args = parser.parse_args()
    least = 3 if args.kind == 'holding' else 1
    if not least <= len(args.text) <= least + 1:
        parser.error(f'{args.kind} takes {least} or {least + 1} arguments')
    given = [text.encode() for text in args.text[:least]]
    count = int(args.text[least]) if len(args.text) > least else 1
    seed = args.seed if args.seed is not None else SEED_KEY if args.kind == 'key' else SEED_OWNER
    if args.kind == 'holding':
        key, owner, key2 = given
        tag = combine(hash_bytes(key, SEED_KEY), hash_bytes(owner, SEED_OWNER))
        wanted = uncombine(hash_bytes(key2, SEED_KEY), tag)
    else:
        wanted = hash_bytes(given[0], seed)
    for text in texts(wanted, seed, args.prefix.encode(), args.suffix.encode(), args.without):
        if args.kind == 'holding' or text != given[0]:
            print(text.decode(), flush=True)
            count -= 1
        if count <= 0:
            break


if __name__ == '__main__':
    main()
