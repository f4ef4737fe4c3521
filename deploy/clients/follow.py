"""Lists the services by reflection, looks a key up, and follows the feed from a copy of the map, checking every seq.

Usage: follow.py HOST:PORT|unix:PATH PAIRS CHANGES, with the modules generated from proto/solkv/v1 in PYTHONPATH.
"""

import sys
import time

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from solkv.v1 import feed_pb2, feed_pb2_grpc, kv_pb2, kv_pb2_grpc


def connect(target):
    # Over a Unix socket grpcio would send the path as the authority, which HTTP/2 does not allow.
    options = [("grpc.default_authority", "localhost")] if target.startswith("unix:") else []
    channel = grpc.insecure_channel(target, options=options)
    grpc.channel_ready_future(channel).result(timeout=30)
    return channel


def check_reflection(channel):
    database = ProtoReflectionDescriptorDatabase(channel)
    services = set(database.get_services())
    assert {"solkv.v1.Kv", "solkv.v1.Feed", "grpc.health.v1.Health"} <= services, services
    methods = DescriptorPool(database).FindServiceByName("solkv.v1.Kv").methods
    print("services:", ", ".join(sorted(services)))
    print("methods of Kv:", ", ".join(method.name for method in methods))


def follow(channel, pairs, changes):
    """The map after so many changes, in two subscriptions: the second begins where the first was left."""
    feed = feed_pb2_grpc.FeedStub(channel)
    held, seq, feed_id, first, dumped = {}, None, None, None, None
    request = feed_pb2.SubscribeRequest(dump_then_tail=feed_pb2.DumpThenTail())
    for part in (changes // 2, changes):
        call = feed.Subscribe(request)
        for message in call:
            kind = message.WhichOneof("kind")
            if kind == "started":
                assert feed_id in (None, message.started.feed_id)
                feed_id = message.started.feed_id
            elif kind == "dump_pairs":
                packed = message.dump_pairs.packed_pairs
                for at in range(0, len(packed), 64):
                    held[packed[at : at + 32]] = packed[at + 32 : at + 64]
                dumped = message.dump_pairs.through_key
            elif kind == "dump_end":
                assert message.dump_end.pairs >= pairs * 0.9
                seq = first = message.dump_end.seq
            elif kind == "changes":
                for change in message.changes.changes:
                    # During a dump only changes of keys already dumped arrive; after it, all changes.
                    assert change.key <= dumped if seq is None else change.seq == seq + 1, (change.seq, seq)
                    old = change.old_value if change.HasField("old_value") else None
                    assert held.get(change.key) == old
                    if change.HasField("new_value"):
                        held[change.key] = change.new_value
                    else:
                        del held[change.key]
                    seq = None if seq is None else change.seq
            if seq is not None and seq - first >= part:
                break
        call.cancel()
        request = feed_pb2.SubscribeRequest(from_seq=seq + 1, feed_id=feed_id)
    return held, seq


def main():
    target, pairs, changes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    channel = connect(target)
    check_reflection(channel)
    kv = kv_pb2_grpc.KvStub(channel)
    started = time.monotonic()
    held, seq = follow(channel, pairs, changes)
    print(f"followed to seq={seq}: {len(held)} pairs held, {time.monotonic() - started:.1f} s")
    key = next(iter(held))
    print("a lookup:", kv.Get(kv_pb2.GetRequest(key=key)).value.hex())
    assert len(kv.GetMany(kv_pb2.GetManyRequest(keys=[key, b"\0" * 31 + b"\1"])).entries) == 2


if __name__ == "__main__":
    main()
