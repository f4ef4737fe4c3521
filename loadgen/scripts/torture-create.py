#!/usr/bin/env python3
"""Makes stores of a snapshot archive by `service --create` while a stream runs, kills it, and checks every result.

  loadgen/scripts/torture-create.py [--bin DIR] [--work DIR] [--pairs N] [--kills N] [--seed S] ENGINE...

`loadgen archive` writes the archive of the slot before the stream's first one, and `loadgen stream` plays the slots after
it at a fixed rate. For every engine the first life is not killed, which shows how long the load and the spool's replay
take. Then lives follow until there were --kills kills: in each, one to four starts of the service are killed (SIGKILL)
at random moments within that time, and the last start goes on to the stream's end. The store's digest has to be the
stream's, nothing of spool and spill may be left, and the service has to end with 0.

Prints a line for each life. Exit code 1: a check failed; the last line says which, and how to repeat it.
"""

import os
import shutil
import sys

from kit import ENGINES, Failed, options
from torture_life import Life, kill_lives, write_archives

STORY = ["--events-per-slot", "500", "--unknown-share", "0.05", "--change-share", "0.3", "--close-share", "0.05"]
STORY += ["--skip-every", "11"]
# Slots that the server keeps: all, because a kill may come at any time.
REPLAY_SLOTS = 1_000_000
RATE = 20_000
STREAM_SECONDS = 20
DELIVERY = ["--rate", str(RATE), "--replay-slots", str(REPLAY_SLOTS)]


def live(args, engine, archive, story, moments):
    """Returns the phases of the kills, and the seconds until the last start was done with the spool."""
    life = Life(args, engine, story, DELIVERY, ["--create", "--snapshot", archive])
    try:
        return [life.kill_after(moment) for moment in moments], life.finish()
    finally:
        life.close()


def kill_moments(rng, count, seconds):
    """Half of the kills come within the first quarter, which is mostly the load."""
    return [rng.uniform(0, seconds / rng.choice([1, 4])) for _ in range(count)]


def main():
    parser = options(__doc__, "torture-create")
    parser.add_argument("--pairs", type=int, default=4_000_000)
    parser.add_argument("--kills", type=int, default=20, help="kills for each engine")
    parser.add_argument("--seed", type=int, default=1, help="seed of the archive and of the moments of the kills")
    parser.add_argument("--memory", default="64MiB", help="memory of the engine")
    parser.add_argument("engines", nargs="+", choices=ENGINES)
    args = parser.parse_args()
    os.makedirs(args.work, exist_ok=True)
    story = ["--pairs", str(args.pairs), "--seed", str(args.seed), "--events", str(RATE * STREAM_SECONDS), *STORY]
    engine = args.engines[0]
    try:
        archive = write_archives(args, story, [])[0]["file"]
        for engine in args.engines:
            run = lambda number, moments: live(args, engine, archive, story, moments)
            kill_lives(args, engine, run, kill_moments, "spool gone")
    except Failed as failed:
        again = f"--pairs {args.pairs} --kills {args.kills} --seed {args.seed} --memory {args.memory}"
        print(f"FAILED: {engine}: {failed}\nagain: loadgen/scripts/torture-create.py --bin {args.bin} {again} {engine}")
        print(f"left in {args.work}: archive, store, service.log and stream-*.log")
        sys.exit(1)
    shutil.rmtree(args.work)


if __name__ == "__main__":
    main()
