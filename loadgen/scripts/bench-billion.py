#!/usr/bin/env python3
"""Takes a billion pairs through all that a map of that size meets, in strata.

  loadgen/scripts/bench-billion.py [--bin DIR] [--work DIR] [--pairs N] --out FILE

The steps, each a JSON line of FILE:

- load: pairs of a seed, whose keys come in random order, under 4 GiB
- runs of loadgen/scenarios/billion.toml, in a file of their own beside FILE: cold gets under 1, 4 and 16 GiB, and a stream
- kill: the service is killed within a stream of --events and started again, and the digest of the store is that of the stream
- copy: a copy by links, and one to a file system without room (/dev/shm), which has to be refused
- scrub

Steps that FILE has already are not repeated, so the same command goes on where it was stopped; a load that was stopped begins
again. Fewer pairs get caps that are smaller alike. The store stays in --work until all is done. Exit code 1: a program failed.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

from kit import Failed, Group, built, check, drop_cached, load, options, origin, series, tell, used_bytes

# Bytes of memory for a billion pairs: of the load and of all steps without caps of their own.
CAP_BYTES = 4 << 30
SCENARIO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../scenarios/billion.toml")
KILL_AFTER_SECONDS = 30
ELSEWHERE = "/dev/shm/solkv-billion"


def timed(args, *command):
    """Runs a program under the cap, cold. Returns its exit code, its output and the seconds that it took."""
    group = Group(args.cap)
    drop_cached(args.store)
    try:
        started = time.monotonic()
        done = subprocess.run(
            [os.path.join(args.bin, command[0]), *command[1:]], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            preexec_fn=group.enter,
        )
        return done.returncode, done.stdout + done.stderr, round(time.monotonic() - started, 3)
    finally:
        group.remove()


def live(args, report, *more):
    """Starts `loadgen live` on the store."""
    command = [os.path.join(args.bin, "loadgen"), "live", "--dir", args.store, "--pairs", str(args.pairs), "--seed", "1"]
    command += ["--cap", str(args.cap), "--state", "cold", "--report", report, *more]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def service_of(playing):
    """Returns the process id of the service that `loadgen live` has started; `None` while there is none."""
    try:
        with open(f"/proc/{playing.pid}/task/{playing.pid}/children") as children:
            for child in children.read().split():
                with open(f"/proc/{child}/cmdline") as line:
                    if line.read().split("\0")[0].endswith("/service"):
                        return int(child)
    except OSError:
        pass
    return None


def kill(args):
    """Kills the service within a stream, starts it again and compares the digests."""
    report = os.path.join(args.work, "live.json")
    playing = live(args, report, "--events", str(args.events))
    # The stream's pairs are computed before the service is started, which takes minutes.
    while playing.poll() is None and not service_of(playing):
        time.sleep(1)
    time.sleep(KILL_AFTER_SECONDS)
    service = service_of(playing)
    check(service, f"no service to kill: code={playing.poll()}")
    os.kill(service, signal.SIGKILL)
    said, _ = playing.communicate()
    check(playing.returncode == 1, f"loadgen live did not notice the kill: code={playing.returncode}\n{said}")
    again = live(args, report, "--events", "100000", "--verify")
    said, _ = again.communicate()
    check(again.returncode == 0, f"after the kill: code={again.returncode}\n{said}")
    with open(report) as file:
        told = json.load(file)
    return {"opening": told["opening"], "verified": said.strip().splitlines()[-1], "latency": series(told["latency"])}


def copy(args):
    """Copies the store by links, and to a file system that has no room for it."""
    near = os.path.join(args.work, "copy")
    code, said, seconds = timed(args, "service", "snapshot", "--dir", args.store, "--to", near)
    check(code == 0, said)
    shutil.rmtree(near)
    code, refused, refused_s = timed(args, "service", "snapshot", "--dir", args.store, "--to", ELSEWHERE)
    check(code != 0 and not os.path.exists(ELSEWHERE), f"a copy to {ELSEWHERE} was not refused: {refused}")
    return {"linked_s": seconds, "refused_s": refused_s, "refused": refused.strip().splitlines()[-1]}


def scrub(args):
    code, said, seconds = timed(args, "bootstrap", "scrub", "--dir", args.store)
    check(code == 0, said)
    return {"scrub_s": seconds, "said": said.strip().splitlines()[-1], "store_bytes": used_bytes(args.store)}


def runs(args):
    """Makes the runs of the scenario that its file lacks."""
    root, ending = os.path.splitext(args.out)
    command = [os.path.join(args.bin, "loadgen"), "bench", SCENARIO, "--pairs", str(args.pairs), "--store", args.store]
    command += ["--work", os.path.join(args.work, "runs"), "--out", f"{root}-runs{ending}"]
    if subprocess.run(command, stdin=subprocess.DEVNULL).returncode != 0:
        sys.exit("loadgen bench failed: see above")


def main():
    parser = options(__doc__, "bench-billion")
    parser.add_argument("--pairs", type=int, default=10**9)
    parser.add_argument("--events", type=int, default=10**7, help="events of the stream in which the service is killed")
    parser.add_argument("--out", required=True, help="file that the lines are appended to")
    args = parser.parse_args()
    args.cap, args.hours = CAP_BYTES * args.pairs // 10**9, 3
    args.store = os.path.join(args.work, "store")
    done = set()
    if os.path.exists(args.out):
        with open(args.out) as file:
            done = {json.loads(line)["step"] for line in file}

    def step(name, make):
        if name not in done:
            tell({**origin(built(args.bin)), "step": name, "pairs": args.pairs, "cap_bytes": args.cap, **make()}, args.out)

    def load_anew():
        shutil.rmtree(args.work, ignore_errors=True)
        os.makedirs(args.work)
        return load(args, "strata", args.store, "--slot", "999")

    try:
        step("load", load_anew)
        runs(args)
        step("kill", lambda: kill(args))
        step("copy", lambda: copy(args))
        step("scrub", lambda: scrub(args))
    except Failed as failed:
        sys.exit(str(failed))
    shutil.rmtree(args.work)


if __name__ == "__main__":
    main()
