#!/usr/bin/env python3
"""Measures lookups from outside in a cold store under a memory cap: one client, then 64, with single gets and with batches.

  loadgen/scripts/bench-cold-lookups.py [--bin DIR] [--work DIR] [--pairs N] [--cap BYTES] [--out FILE] ENGINE...

For each engine and each kind of client the service is started anew on the store, cold, in a cgroup of --cap bytes, for which
this needs permission. `loadgen query` then keeps one request under way for each connection over the Unix socket, and
verifies the answers. Prints a JSON line for each, with keys a second, which --out appends to a file. Exit code 1: a
program failed.
"""

import json
import os
import shutil
import subprocess
import sys
import time

from kit import Group, drop_cached, engine_options, free_port, load_sorted, tell

# Connections, and keys of a request.
CLIENTS = [(1, 1), (64, 1), (1, 100), (64, 100)]
SECONDS = 5
START_SECONDS_MAX = 60


def start(args, engine, store, group, log):
    socket = os.path.join(args.work, "sock")
    command = [os.path.join(args.bin, "service"), "run", "--engine", engine, "--dir", store, "--extract", "account-owner"]
    # Nothing listens on the stream's port: the service serves lookups and keeps trying to connect.
    command += ["--geyser", f"http://127.0.0.1:{free_port()}", "--listen", f"127.0.0.1:{free_port()}", "--uds", socket]
    command += ["--metrics", f"127.0.0.1:{free_port()}", "--warm-up", "off"]
    drop_cached(store)
    service = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, preexec_fn=group.enter)
    began = time.monotonic()
    while not os.path.exists(socket):
        if service.poll() is not None or time.monotonic() - began > START_SECONDS_MAX:
            sys.exit(f"the service does not serve: engine={engine}: see service.log")
        time.sleep(0.05)
    return service, socket


def measure(args, engine):
    shutil.rmtree(args.work, ignore_errors=True)
    os.makedirs(args.work)
    store = os.path.join(args.work, "store")
    load_sorted(args, engine, store)
    for connections, batch in CLIENTS:
        group = Group(args.cap)
        with open(os.path.join(args.work, "service.log"), "ab") as log:
            service, socket = start(args, engine, store, group, log)
            try:
                out = os.path.join(args.work, "query.jsonl")
                query = [os.path.join(args.bin, "loadgen"), "query", "--uds", socket, "--pairs", str(args.pairs), "--rate", "max"]
                query += ["--connections", str(connections), "--in-flight", "1", "--batch", str(batch), "--time", f"{SECONDS}s"]
                done = subprocess.run(query + ["--out", out], stdin=subprocess.DEVNULL, capture_output=True, text=True)
                if done.returncode != 0:
                    sys.exit(f"loadgen query failed: code={done.returncode}\n{done.stdout}{done.stderr}")
                with open(out) as file:
                    row = json.loads(file.readlines()[-1])
            finally:
                service.terminate()
                service.wait()
                group.remove()
        tell({"engine": engine, "pairs": args.pairs, "cap_bytes": args.cap, "connections": connections, "batch": batch,
              "query": row}, args.out)


def main():
    parser = engine_options(__doc__, "bench-cold-lookups", pairs=50_000_000)
    parser.add_argument("--cap", type=int, default=192_000_000, help="memory of the service in bytes")
    args = parser.parse_args()
    for engine in args.engines:
        measure(args, engine)
    shutil.rmtree(args.work)


if __name__ == "__main__":
    main()
