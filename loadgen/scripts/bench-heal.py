#!/usr/bin/env python3
"""Measures how long the service needs to heal a gap from a snapshot archive, and how fast it goes on after it.

  loadgen/scripts/bench-heal.py [--bin DIR] [--work DIR] [--pairs N] [--changed N] [--memory SIZE] [--out FILE] ENGINE...

`loadgen stream` plays 20,000 events a second and keeps few slots. The service starts on a store of --pairs pairs once its
gap has about --changed accounts that differ, and keeps the slots of the stream. The archive of the gap's end appears after
the stream has passed its slot by about 400,000 events: first an incremental one alone, whose base is the store's slot, and in
a second life a full one. The time counts from the moment that the service has found the archive. The kept slots are then
applied as fast as the service can. Their rate is compared with the one that `loadgen live` measures for a service on a warm
copy of the store that always has more to do.

Prints a JSON line for each engine and kind of archive, which --out appends to a file. Target: healed_s under 60 with a
million differences on 50 million pairs. Exit code 1: a program failed, or digests differ.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from datetime import datetime

from kit import ENGINES, Failed, check, options, tell, used_bytes
from torture_life import Life, write_archives

SLOT_EVENTS = 10_000
RATE = 20_000
SLOTS_A_SECOND = RATE / SLOT_EVENTS
# Slots between the start of the service and that of the archive: the service waits five seconds before it keeps slots.
LEAD_SLOTS = 30
# Slots after the archive's that the stream has reached when the archive appears.
PASSED_SLOTS = 40
# Slots that the stream plays after the archive's.
TAIL_SLOTS = 400
KEPT_SLOTS = 8
# Events on which the usual rate is measured.
FULL_EVENTS = 1_000_000
# Nearly every event changes its account.
CHANGES = ["--change-share", "0.95", "--close-share", "0.05"]
# Of fewer events of kept slots nobody can tell a rate.
RATE_EVENTS_MIN = 300_000
HEALED = "the store is healed"
CAUGHT_UP = "the slots that came during the load are applied"
LOOK_SECONDS = 0.2
TARGET_SECONDS = 60


class Heal(Life):
    """One store that stands before the slots that its stream still has."""

    def __init__(self, args, engine, archive, base, story):
        watched = os.path.join(args.work, "watched")
        delivery = ["--rate", str(RATE), "--replay-slots", str(KEPT_SLOTS), "--no-wait"]
        super().__init__(args, engine, story, delivery, ["--heal-from", watched])
        began = time.monotonic()
        shutil.rmtree(watched, ignore_errors=True)
        os.makedirs(watched)
        self.appears_at = os.path.join(watched, os.path.basename(archive["file"]))
        shutil.copytree(os.path.join(args.work, f"base-{engine}"), self.store)
        self.archive, self.peak_disk_bytes, self.is_over = archive, 0, threading.Event()
        slots_before = archive["slot"] - base - LEAD_SLOTS
        left = slots_before / SLOTS_A_SECOND - (time.monotonic() - began)
        check(left > 0, f"the copy of the store took longer than the gap: left_s={left:.1f}")
        time.sleep(left)

    def watch_disk(self):
        while not self.is_over.wait(LOOK_SECONDS):
            parts = (used_bytes(os.path.join(self.store, part)) for part in ("heal", "spool"))
            self.peak_disk_bytes = max(self.peak_disk_bytes, sum(parts))

    def heal(self):
        """Heals, and returns the row's figures."""
        self.start()
        watch = threading.Thread(target=self.watch_disk)
        watch.start()
        try:
            time.sleep((LEAD_SLOTS + PASSED_SLOTS) / SLOTS_A_SECOND)
            os.link(self.archive["file"], self.appears_at)
            while HEALED not in self.said():
                self.check_runs()
                time.sleep(LOOK_SECONDS)
            while CAUGHT_UP not in self.said():
                self.check_runs()
                time.sleep(LOOK_SECONDS)
            with open(f"/proc/{self.service.pid}/status") as status:
                peak_kib = int(re.search(r"VmHWM:\s+(\d+)", status.read()).group(1))
        finally:
            self.is_over.set()
            watch.join()
        found, applied, healed, caught_up = (self.time_of(words) for words in (
            "compared with a snapshot archive", "the differences are applied", HEALED, CAUGHT_UP))
        slot = int(re.search(r"slot=(\d+)", self.line_of(CAUGHT_UP)).group(1))
        events = (slot - self.archive["slot"]) * SLOT_EVENTS
        check(events >= RATE_EVENTS_MIN, f"too few kept slots to tell a rate: events={events}")
        return {
            "differences": self.metric("solkv_heal_differences"),
            "compared_s": round(applied - found, 1),
            "applied_s": round(healed - applied, 1),
            "healed_s": round(healed - found, 1),
            "caught_up_events": events,
            "caught_up_events_per_s": round(events / (caught_up - healed)),
            "peak_memory_bytes": peak_kib * 1024,
            "peak_disk_bytes": self.peak_disk_bytes,
        }

    def said(self):
        with open(os.path.join(self.args.work, "service.log")) as log:
            return log.read()

    def time_of(self, words):
        """Returns the time of the first line of the log with these words, in seconds."""
        return datetime.fromisoformat(self.line_of(words).split()[0].replace("Z", "+00:00")).timestamp()

    def line_of(self, words):
        return next(line for line in self.said().splitlines() if words in line)


def run(command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    check(done.returncode == 0, f"{command[0]}: code={done.returncode}\n{done.stdout}{done.stderr}")


def load(args, engine, base):
    store = os.path.join(args.work, f"base-{engine}")
    command = [os.path.join(args.bin, "bootstrap"), "--engine", engine, "--order", "sorted", "--dir", store]
    command += ["--slot", str(base), "--extract", "account-owner", "--pairs", str(args.pairs), "--seed", "1"]
    run(command + (["--memory", args.memory] if args.memory else []))


def usual_rate(args, engine):
    """Returns the events a second of a service on a copy of the store that always has more to do."""
    copy, report = os.path.join(args.work, "copy"), os.path.join(args.work, "report.json")
    shutil.copytree(os.path.join(args.work, f"base-{engine}"), copy)
    story = ["--pairs", str(args.pairs), "--seed", "1", "--events", str(FULL_EVENTS), "--events-per-slot", str(SLOT_EVENTS)]
    run([os.path.join(args.bin, "loadgen"), "live", "--dir", copy, "--state", "warm", *story, *CHANGES, "--report", report])
    shutil.rmtree(copy)
    with open(report) as file:
        return json.load(file)["events_per_s"]


def measure(args, engine, kind, archive, base, story):
    life = Heal(args, engine, archive, base, story)
    try:
        row = {"engine": engine, "archive": kind, "pairs": args.pairs, "archive_bytes": os.path.getsize(archive["file"])}
        row.update(life.heal())
        life.finish()
        return row
    finally:
        life.close()


def main():
    parser = options(__doc__, "bench-heal")
    parser.add_argument("engines", nargs="+", metavar="ENGINE", choices=ENGINES)
    parser.add_argument("--pairs", type=int, default=50_000_000)
    parser.add_argument("--changed", type=int, default=1_000_000, help="accounts that differ, about")
    parser.add_argument("--memory", help="memory of the engine; its default share without this")
    parser.add_argument("--out", help="file that the lines are appended to")
    args = parser.parse_args()
    shutil.rmtree(args.work, ignore_errors=True)
    os.makedirs(args.work)
    gap_slots = max(args.changed // SLOT_EVENTS, LEAD_SLOTS + 60)
    events = (gap_slots + TAIL_SLOTS) * SLOT_EVENTS
    story = ["--pairs", str(args.pairs), "--seed", "1", "--events", str(events), "--events-per-slot", str(SLOT_EVENTS)]
    story += CHANGES
    try:
        base, alone = write_archives(args, story, ["--incremental-slots", str(gap_slots)])
        os.remove(base["file"])
        kept = os.path.join(args.work, os.path.basename(alone["file"]))
        alone["file"] = os.rename(alone["file"], kept) or kept
        full = write_archives(args, story, ["--slots-after", str(gap_slots)])[0]
        for engine in args.engines:
            load(args, engine, base["slot"])
            usual = usual_rate(args, engine)
            for kind, archive in (("incremental", alone), ("full", full)):
                row = measure(args, engine, kind, archive, base["slot"], story)
                row["usual_events_per_s"] = round(usual)
                row["is_within_target"] = row["healed_s"] < TARGET_SECONDS
                tell(row, args.out)
            shutil.rmtree(os.path.join(args.work, f"base-{engine}"))
    except Failed as failed:
        sys.exit(f"FAILED: {failed}\nleft in {args.work}")
    shutil.rmtree(args.work)


if __name__ == "__main__":
    main()
