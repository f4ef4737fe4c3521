#!/usr/bin/env python3
"""Loads snapshot archives into engines, kills the loads, and checks every result against the archives' digests.

  loadgen/scripts/torture-archive.py [--bin DIR] [--work DIR] [--pairs N] [--kills N] [--seed S] ENGINE...

`loadgen archive` writes a full archive and an incremental one, with every oddity that it knows, and says the digest of
the map in each. For every engine:

  full         a load of the full archive: the digest, the peak of memory, the peak of disk
  both         the same of the full archive and the incremental one, and `verify`
  kill         loads of both that are killed (SIGKILL) at random places and go on with --resume, until they are complete

Each life of `kill` is one load: its first process is killed while it reads or while it fills the store, by turns, and its
second process anywhere. Prints a line for each check. Exit code 1: a check failed; the last line says which, and how to
repeat it.

Bounds (RUNBOOK.md, "Memory and disk of a load"): memory is the peak of RssAnon, sampled, because pages of mapped files belong to
the page cache; disk is the sum of the store and its work directory, sampled.
"""

import os
import random
import re
import shutil
import subprocess
import sys
import time

from kit import ENGINES, Failed, options, used_bytes

MIB = 1 << 20
SAMPLE_SECONDS = 0.1
EXTRACT = "token-owner"
EVENTS_PER_SLOT = 2000

# Bytes, as in bootstrap/src/layout.rs and bootstrap/src/limits.rs.
PACKED_VERSION_BYTES = 64
SPILL_BYTES = 73
STORE_BYTES = {"strata": 75, "lmdb": 90, "redb": 90, "rocksdb": 120}
STORE_BYTES_MOST = 120
# The part of the store that is in the spill as well, and the part of the spill that is merged before the others.
TWICE = 1 / 64 + 1 / 32
COMBINED = 1 / 7
ALLOCATED_AHEAD = 64 * MIB
PROGRAM = 48 * MIB
CHUNKS = 128 * MIB
MEMTABLES = {"rocksdb": 128 * MIB}
READER = 24 * MIB
READER_FILE = 200


class Load:
    """One process of `bootstrap`, watched until it ends."""

    def __init__(self, args, engine, archives, store):
        self.store = store
        command = [os.path.join(args.bin, "bootstrap"), "load", "--engine", engine, "--dir", store, "--resume"]
        command += ["--extract", EXTRACT, "--memory", args.memory, "--sort-memory", args.sort_memory, "--input", archives[0]]
        self.command = command + (["--incremental", archives[1]] if len(archives) > 1 else [])
        self.anon_bytes = self.resident_bytes = self.disk_bytes = 0
        self.reading_seconds = None

    def run(self, kill_seconds=None):
        """Returns (exit code or None if killed, output, seconds)."""
        started = time.monotonic()
        with open(self.store + ".out", "w+b") as out:
            child = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
            killed = False
            while True:
                passed = time.monotonic() - started
                pause = SAMPLE_SECONDS if kill_seconds is None else min(SAMPLE_SECONDS, kill_seconds - passed)
                try:
                    child.wait(max(pause, 0.001))
                    break
                except subprocess.TimeoutExpired:
                    self.sample(child.pid, time.monotonic() - started)
                if kill_seconds is not None and time.monotonic() - started >= kill_seconds:
                    killed = child.poll() is None
                    child.kill()
                    child.wait()
                    break
            seconds = time.monotonic() - started
            out.seek(0)
            text = out.read().decode(errors="replace")
        os.remove(self.store + ".out")
        return (None if killed and child.returncode == -9 else child.returncode), text, seconds

    def sample(self, pid, passed):
        try:
            with open(f"/proc/{pid}/status") as status:
                fields = dict(line.split(":", 1) for line in status)
            self.anon_bytes = max(self.anon_bytes, kilobytes(fields.get("RssAnon")))
            self.resident_bytes = max(self.resident_bytes, kilobytes(fields.get("VmHWM")))
        except OSError:
            pass
        self.disk_bytes = max(self.disk_bytes, used_bytes(self.store, self.store + ".work"))
        if self.reading_seconds is None and os.path.exists(os.path.join(self.store, "bootstrap.toml")):
            self.reading_seconds = passed


def kilobytes(field):
    return int(field.split()[0]) * 1024 if field else 0


def size_bytes(text):
    number, unit = re.fullmatch(r"(\d+)(KiB|MiB|GiB)", text).groups()
    return int(number) << {"KiB": 10, "MiB": 20, "GiB": 30}[unit]


def mib(size):
    return f"{size / MIB:.0f}MiB"


def check(holds, text):
    print(("ok    " if holds else "WRONG ") + text, flush=True)
    if not holds:
        raise Failed(text)


def make_archives(args):
    slots = max(2, args.pairs // 20 // EVENTS_PER_SLOT)
    made = subprocess.run(
        [os.path.join(args.bin, "loadgen"), "archive", "--out", os.path.join(args.work, "archives"), "--seed", str(args.seed)]
        + ["--pairs", str(args.pairs), "--extract", EXTRACT, "--slots-after", str(slots), "--incremental-slots", str(slots)]
        + ["--events", str(EVENTS_PER_SLOT * slots * 4), "--events-per-slot", str(EVENTS_PER_SLOT)]
        + ["--change-share", "0.3", "--close-share", "0.1"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )
    if made.returncode != 0:
        raise Failed(f"loadgen archive: {made.stdout}{made.stderr}")
    lines = [line for line in made.stdout.splitlines() if " file=" in line]
    print("\n".join(lines), flush=True)
    fields = [dict(part.split("=", 1) for part in line.split() if "=" in part) for line in lines]
    return [{**found, "file": found["file"], "files": int(found["files"])} for found in fields]


def bounds(args, engine, archives):
    """Returns the stated bounds of memory and disk."""
    memory, sort = size_bytes(args.memory), size_bytes(args.sort_memory)
    reading = sort + PROGRAM + READER + READER_FILE * sum(archive["files"] for archive in archives)
    filling = memory + sort // 2 + CHUNKS + PROGRAM + MEMTABLES.get(engine, 0)
    versions = sum(os.path.getsize(archive["file"]) for archive in archives) / PACKED_VERSION_BYTES
    store, spill = versions * STORE_BYTES.get(engine, STORE_BYTES_MOST), versions * SPILL_BYTES * (1 + COMBINED)
    return max(reading, filling), max(store, spill) + store * TWICE + ALLOCATED_AHEAD


def check_digest(args, what, store, archive):
    command = [os.path.join(args.bin, "bootstrap"), "info", "--digest", "--dir", store]
    info = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"digest=(\S+)", info.stdout)
    complete = "load=complete" in info.stdout and f"slot={archive['slot']}" in info.stdout
    check(
        complete and found and found[1] == archive["digest"],
        f"{what}: digest={found and found[1]} expected={archive['digest']} slot={archive['slot']} complete={complete}",
    )


def check_load(args, what, engine, archives):
    """Loads without a kill; returns the load and its seconds."""
    store = os.path.join(args.work, "store")
    remove(store)
    load = Load(args, engine, [archive["file"] for archive in archives], store)
    code, text, seconds = load.run()
    check(code == 0, f"{what}: loaded seconds={seconds:.1f} code={code}" + ("" if code == 0 else f": {text}"))
    check_digest(args, what, store, archives[-1])
    memory, disk = bounds(args, engine, archives)
    check(
        load.anon_bytes <= memory,
        f"{what}: memory peak_anon={mib(load.anon_bytes)} bound={mib(memory)} peak_with_mapped={mib(load.resident_bytes)}",
    )
    check(load.disk_bytes <= disk, f"{what}: disk peak={mib(load.disk_bytes)} bound={mib(disk)}")
    return load, seconds


def check_verify(args, what, archives):
    command = [os.path.join(args.bin, "bootstrap"), "verify", "--dir", os.path.join(args.work, "store")]
    command += ["--input", archives[0]["file"], "--incremental", archives[1]["file"]]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    said = done.stdout.strip().splitlines()[-1:] or [done.stderr.strip()]
    check(done.returncode == 0 and said[0].startswith("equal"), f"{what}: verify {said[0]}")


def place(store):
    """Says how far a killed load had come."""
    if os.path.exists(os.path.join(store, "bootstrap.toml")):
        return "filling"
    work = store + ".work"
    runs = len([name for name in os.listdir(work) if name.startswith("run-")]) if os.path.isdir(work) else 0
    return f"reading runs={runs}"


def check_kills(args, engine, archives, reading_seconds, seconds):
    store, kills, life = os.path.join(args.work, "store"), 0, 0
    while kills < args.kills:
        life += 1
        rng = random.Random(f"{args.seed} {engine} {life}")
        parts = [(0, reading_seconds), (reading_seconds, seconds)]
        moments = [rng.uniform(*parts[life % 2]), rng.uniform(0, seconds)][: args.kills - kills]
        what = f"{engine} kill life={life}"
        remove(store)
        places = []
        for moment in [*moments, None]:
            load = Load(args, engine, [archive["file"] for archive in archives], store)
            code, text, _ = load.run(moment)
            if code is not None:
                check(code == 0, f"{what}: after={places} code={code}" + ("" if code == 0 else f": {text}"))
                break
            places.append(f"{moment:.2f}s {place(store)}")
        kills += len(places)
        check_digest(args, f"{what} killed={places}", store, archives[-1])
        check(not os.path.exists(store + ".work"), f"{what}: nothing is left of the spill")
        if life > 10 * args.kills:
            raise Failed(f"{engine}: the loads are too short to be killed: kills={kills}: give more --pairs")
    return kills


def remove(store):
    for made in (store, store + ".work"):
        shutil.rmtree(made, ignore_errors=True)


def main():
    parser = options(__doc__, "torture-archive")
    parser.add_argument("--pairs", type=int, default=20_000_000)
    parser.add_argument("--kills", type=int, default=10, help="kills of each engine's loads")
    parser.add_argument("--seed", type=int, default=1, help="seed of the archives and of the places of the kills")
    parser.add_argument("--memory", default="128MiB", help="memory of the engine")
    parser.add_argument("--sort-memory", default="64MiB", help="memory for sorting")
    parser.add_argument("engines", nargs="+", choices=ENGINES)
    args = parser.parse_args()
    os.makedirs(args.work, exist_ok=True)
    engine = args.engines[0]
    try:
        archives = make_archives(args)
        for engine in args.engines:
            check_load(args, f"{engine} full", engine, archives[:1])
            load, seconds = check_load(args, f"{engine} both", engine, archives)
            check_verify(args, f"{engine} both", archives)
            reading_seconds = load.reading_seconds or seconds / 2
            kills = check_kills(args, engine, archives, reading_seconds, seconds)
            print(f"ok    {engine}: kills={kills}", flush=True)
    except Failed as failed:
        again = f"--pairs {args.pairs} --kills {args.kills} --seed {args.seed}"
        sizes = f"--memory {args.memory} --sort-memory {args.sort_memory}"
        print(f"FAILED: {failed}\nagain: loadgen/scripts/torture-archive.py --bin {args.bin} {again} {sizes} {engine}")
        print(f"left in {args.work}: archives and the store")
        sys.exit(1)
    shutil.rmtree(args.work)


if __name__ == "__main__":
    main()
