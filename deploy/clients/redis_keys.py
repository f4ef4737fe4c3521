"""Looks keys up with redis-py over the Redis protocol and over gRPC, and compares the two at equal slots.

Usage: redis_keys.py HOST:PORT|unix:PATH REDIS_PORT REDIS_SOCKET KEYS.csv, with the modules generated from proto/solkv/v1 in PYTHONPATH.
"""

import csv
import sys

import base58
import redis

from follow import connect
from solkv.v1 import kv_pb2, kv_pb2_grpc

BATCH = 100


def compare(client, kv, keys, in_base58):
    """Compares batches until one was answered at the same slot over both protocols. Returns the number of values compared."""
    encode = base58.b58encode if in_base58 else lambda key: key
    compared = 0
    for at in range(0, len(keys), BATCH):
        asked = keys[at : at + BATCH]
        for _ in range(1000):
            over_grpc = kv.GetMany(kv_pb2.GetManyRequest(keys=asked))
            values, slot = client.execute_command("SOLKV.MGET", *map(encode, asked))
            if slot == over_grpc.slot:
                break
        else:
            raise AssertionError("no slot that both answered at")
        expected = [encode(entry.value) if entry.HasField("value") else None for entry in over_grpc.entries]
        assert values == expected, (asked, values, expected)
        compared += len(values)
    return compared


def main():
    target, port, socket, file = sys.argv[1:]
    with open(file, newline="") as rows:
        keys = [base58.b58decode(row[0]) for row in csv.reader(rows) if len(row) == 2 and row[0] != "key"]
    assert len(keys) >= 1000, len(keys)
    keys += [b"\xff" * 31 + bytes([n]) for n in range(100)]
    kv = kv_pb2_grpc.KvStub(connect(target))
    for protocol in (2, 3):
        for pool in ({"port": int(port)}, {"unix_socket_path": socket}):
            client = redis.Redis(protocol=protocol, **pool)
            assert client.ping()
            compared = compare(client, kv, keys, False) + compare(client, kv, keys, True)
            present = [key for key in keys[:500] if client.get(key) is not None]
            assert client.exists(*keys[:500]) >= len(present) * 0.9
            pipe = client.pipeline(transaction=False)
            for key in keys:
                pipe.get(key)
            assert len(pipe.execute()) == len(keys)
            try:
                client.set(keys[0], b"x")
                raise AssertionError("the map is only read")
            except redis.ResponseError as refused:
                assert "unknown command" in str(refused), refused
            print(f"protocol {protocol}, {list(pool)[0]}: {compared} values equal gRPC's, hits {client.info()['keyspace_hits']}")


main()
