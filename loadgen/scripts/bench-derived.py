#!/usr/bin/env python3
"""Measures derived stores: their load, their size, their requests, and the ingest beside them.

  loadgen/scripts/bench-derived.py [--bin DIR] [--asked PROGRAM] [--work DIR] [--pairs N] [--events N] [--out FILE] ENGINE...

Three times for each engine: with as many wallets as a tenth of the pairs, of which the largest has about a tenth of all pairs (zipfian),
with a wallet for four pairs (four), and with a value for each pair (unique), as a stream has them. Steps, each a JSON line:

- load: a sorted load, then `bootstrap derive`: seconds and bytes on disk
- ingest (unique): a stream at full speed, of which 5% and 100% of the events change a pair, on a copy of the store: without derived stores, with
  `values`, with `history` as well; events a second until the map has all, and the seconds until the derived stores have all
- asked: gets, keys of a value and values of the past, without a service, from memory and cold with a sixteenth of the store as memory

Exit code 1: a program failed, or a derived store differs from its map.
"""

import json
import os
import shutil
import subprocess
import sys
import time

from kit import Group, Service, check, drop_cached, engine_options, free_port, origin, built, tell, used_bytes, Failed

SHAPES = {"zipfian": "zipfian:1.1:{tenth}", "four": "zipfian:0.01:{fourth}", "unique": "unique"}
SHARES = (0.05, 1.0)
FIRST_SLOT = 999
EVENTS_PER_SLOT = 2000
LOOK_SECONDS = 0.1
WAIT_SECONDS_MAX = 1800


def run(args, *command):
    started = time.monotonic()
    done = subprocess.run([os.path.join(args.bin, command[0]), *command[1:]], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    check(done.returncode == 0, f"{command}: code={done.returncode}\n{done.stdout}{done.stderr}")
    return time.monotonic() - started, done.stdout




def load(args, engine, shape, base):
    values = SHAPES[shape].format(tenth=args.pairs // 10, fourth=args.pairs // 4)
    load_s, _ = run(args, "bootstrap", "load", "--engine", engine, "--order", "sorted", "--dir", base, "--slot", str(FIRST_SLOT),
                    "--pairs", str(args.pairs), "--seed", "1", "--values", values)
    map_bytes = used_bytes(base)
    derive_s, _ = run(args, "bootstrap", "derive", "--dir", base)
    values_bytes = used_bytes(os.path.join(base, "derived"))
    return {"load_s": round(load_s, 1), "derive_s": round(derive_s, 1), "times": round((load_s + derive_s) / load_s, 2),
            "map_bytes_a_pair": round(map_bytes / args.pairs, 1), "values_bytes_a_pair": round(values_bytes / args.pairs, 1)}


def ingest(args, engine, share, stores, store):
    """Returns the rate of a stream at full speed, and how late the derived stores are."""
    port, group = free_port(), Group(None)
    slots = args.events // EVENTS_PER_SLOT
    children = []
    with open(os.path.join(args.work, "service.log"), "wb") as log:
        try:
            command = [os.path.join(args.bin, "loadgen"), "stream", "--listen", f"127.0.0.1:{port}"]
            command += ["--pairs", str(args.pairs), "--seed", "1"]
            command += ["--events", str(args.events), "--events-per-slot", str(EVENTS_PER_SLOT), "--change-share", str(share), "--close-share", "0",
                        "--linger", "1h", "--extract", "account-owner"]
            children.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log))
            more = ["--history-slots", "1000000"] if "history" in stores else []
            drop_cached(store)
            service = Service(args, engine, store, port, group, log, more)
            children.append(service.process)
            started = over = rate = None
            deadline = time.monotonic() + WAIT_SECONDS_MAX
            while time.monotonic() < deadline:
                check(children[0].poll() is None, f"the stream has ended: see {args.work}/service.log")
                time.sleep(LOOK_SECONDS)
                slot, now = service.slot(), time.monotonic()
                if slot and slot > FIRST_SLOT and started is None:
                    started, first = now, slot
                if started and slot and slot >= FIRST_SLOT + slots:
                    over = over or now
                    rate = (slot - first) * EVENTS_PER_SLOT / (over - started)
                    lags = [service.metric(f'solkv_derived_lag{{store="{name}"}}') for name in stores]
                    if all(lag == 0 for lag in lags):
                        service.stop()
                        return {"events_per_s": round(rate), "late_s": round(now - over, 1)}
            sys.exit(f"the stream did not end within {WAIT_SECONDS_MAX} s: see service.log")
        finally:
            for child in children:
                child.kill()
                child.wait()


def measure(args, engine, shape):
    base = os.path.join(args.work, "base")
    shutil.rmtree(args.work, ignore_errors=True)
    os.makedirs(args.work)
    row = {**origin(built(args.bin)), "engine": engine, "pairs": args.pairs, "events": args.events, "values": shape}
    tell({**row, "step": "load", **load(args, engine, shape, base)}, args.out)
    store = base
    for share in SHARES if shape == "unique" else ():
        store = os.path.join(args.work, "store")
        # The last one is asked, so it has both.
        for stores in ((), ("values",), ("values", "history")):
            shutil.rmtree(store, ignore_errors=True)
            shutil.copytree(base, store)
            if not stores:
                shutil.rmtree(os.path.join(store, "derived"))
            line = {"step": "ingest", "change_share": share, "stores": stores, **ingest(args, engine, share, stores, store)}
            if stores:
                run(args, "bootstrap", "derive", "--dir", store, "--check")
            if "history" in stores:
                changes = json.loads(run(args, "bootstrap", "info", "--dir", store, "--json")[1])["seq"] - args.pairs
                history = used_bytes(os.path.join(store, "derived", "history"))
                line |= {"changes": changes, "history_bytes_a_change": round(history / max(changes, 1), 1)}
            tell({**row, **line}, args.out)
    for state, more in (("memory", []), ("cold", ["--cold", "--memory-mib", str(max(used_bytes(store) >> 24, 32)), "--requests", "20000"])):
        drop_cached(store)
        done = subprocess.run([args.asked, "--dir", store, *more], capture_output=True, text=True)
        check(done.returncode == 0, f"asked failed: code={done.returncode}\n{done.stderr}")
        tell({**row, "step": "asked", "state": state, **json.loads(done.stdout)}, args.out)


def main():
    parser = engine_options(__doc__, "bench-derived", pairs=20_000_000)
    parser.add_argument("--events", type=int, default=2_000_000, help="events of each stream")
    parser.add_argument("--asked", default="target/release/examples/asked", help="the example of solkv-derived")
    args = parser.parse_args()
    try:
        for engine in args.engines:
            for shape in SHAPES:
                measure(args, engine, shape)
    except Failed as failed:
        sys.exit(str(failed))
    shutil.rmtree(args.work)


if __name__ == "__main__":
    main()
