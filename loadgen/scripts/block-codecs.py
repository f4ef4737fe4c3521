#!/usr/bin/env python3
"""Says what a codec would save in RocksDB's data blocks: blocks of 4 KiB in RocksDB's layout, as a sorted load of 10M pairs has them,
are compressed with deflate, and those are counted that RocksDB would keep compressed. Prints a table. No codec is compiled into RocksDB
here, so nothing of RocksDB is measured."""

import bisect
import itertools
import random
import zlib

PAIRS = 10_000_000
BLOCK_BYTES = 4096
RESTART_EVERY = 16
BLOCKS = 200
# RocksDB's own: a block is kept compressed if it has at most so many bytes of each 1024 (max_compressed_bytes_per_kb).
KEPT_OF_1024 = 896
# What follows a key at the bottommost level: sequence number 0 and the kind of the entry.
TRAILER = bytes([1, 0, 0, 0, 0, 0, 0, 0])

rng = random.Random(1)


def keys():
    """Neighbouring keys of 10M uniform ones, without an end."""
    at = rng.randrange(1 << 62)
    while True:
        at += int(rng.expovariate(PAIRS / 2**64))
        yield at.to_bytes(8, "big") + rng.randbytes(24)


def block(value):
    """The bytes of one block: entries with the length of the prefix that is shared with the key before, and the restarts."""
    out, restarts, before = bytearray(), [], b""
    for count, key in enumerate(keys()):
        if len(out) + 4 * len(restarts) >= BLOCK_BYTES:
            break
        shared = 0
        if count % RESTART_EVERY == 0:
            restarts.append(len(out))
        else:
            shared = next(at for at in range(33) if at == 32 or key[at] != before[at])
        out += bytes([shared, 40 - shared, 32]) + key[shared:] + TRAILER + value()
        before = key
    return bytes(out) + b"".join(at.to_bytes(4, "little") for at in restarts + [len(restarts)])


def owners(count):
    """Values that repeat: owners with Zipf's weights of exponent 0.99."""
    weights = list(itertools.accumulate((rank + 1) ** -0.99 for rank in range(count)))
    made = {}

    def value():
        rank = bisect.bisect(weights, rng.random() * weights[-1])
        return made.setdefault(rank, rng.randbytes(32))

    return value


def main():
    print("| values | level | bytes that are left | blocks that RocksDB would keep compressed |")
    print("|---|---|---|---|")
    kinds = [("unique", lambda: rng.randbytes(32)), ("500,000 owners", owners(500_000)), ("3,000 owners", owners(3_000))]
    for name, value in kinds:
        blocks = [block(value) for _ in range(BLOCKS)]
        raw = sum(map(len, blocks))
        for level in (1, 6):
            sizes = [len(zlib.compress(each, level)) for each in blocks]
            kept = sum(size * 1024 <= len(each) * KEPT_OF_1024 for size, each in zip(sizes, blocks))
            print(f"| {name} | {level} | {sum(sizes) / raw:.3f} | {kept} of {BLOCKS} |")


main()
