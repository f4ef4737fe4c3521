#!/usr/bin/env python3
"""Says which of strata's targets the results of bench-strata.sh meet, as a table.

  loadgen/scripts/strata-targets.py FOLDER

FOLDER has the results. A figure is the median of the repeats, with the lowest and the highest. Ratios are of the same repeat where two
things took turns. A target without results is `not measured`. A run of strata that was killed misses every limit, and one of another engine
is left out. Below the table are the notes of runs that are not as they were asked for, the number of those that found the machine busy as
they began (the bench's own loading makes it so, too), and the builds that were measured.
"""

import json
import math
import os
import statistics
import sys

PIECES = ("memory", "before", "cold", "fresh", "loads", "load-300m", "inserts", "updates", "zipfian")
# Beginnings of notes that say that a run is not as it was asked for.
BAD_NOTES = ("killed", "NOT CAPPED", "the cap was exceeded", "the writer fell behind", "partly cached")
# Bounds of strata's documentation: delta runs, debt in percent of the records that make a merge into the base due, and the disk that
# this debt takes beside the base (one and a half times the base, and a group that is written).
RUNS_MAX, DEBT_MAX_PERCENT, DISK_MAX_PERCENT = 37, 300, 260


def lines(folder, name):
    """Returns the lines of one result file; none if it is missing."""
    path = os.path.join(folder, f"{name}.jsonl")
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [json.loads(line) for line in file]


class Runs:
    """The runs of one result file."""

    def __init__(self, folder, name):
        self.runs = lines(folder, name)

    def of(self, of, engine="strata", **wanted):
        """Returns the figure of each repeat of a cell, by its number: infinite where strata was killed."""
        found = {}
        for run in self.runs:
            if engine_of(run) == engine and all(fact(run, name) == value for name, value in wanted.items()):
                is_killed = any(note.startswith("killed") for note in run["notes"])
                value = (math.inf if engine == "strata" else None) if is_killed else of(run)
                if value is not None:
                    found[run["repeat"]] = value
        return found

    def engines(self):
        return sorted({engine_of(run) for run in self.runs})


def engine_of(run):
    return run.get("engine_line") or run["engine"]


def fact(run, name):
    """Returns a fact of a run's workload, or its memory cap as a share of the pairs' bytes."""
    workload = run["workload"]
    if name == "cap":
        return run["cap_bytes"] and round(run["cap_bytes"] / workload["pairs"] / 64, 2)
    if name == "scenario":
        return run["scenario"]
    return workload.get(name, workload["more"].get(name))


def latency(name, op=None):
    """Returns the function that picks a quantile, or the mean, of a run's reads."""

    def pick(run):
        curves = [curve for curve in run["curves"] if (op or "read") in curve["op"] or curve["op"] == "get_many"]
        if not curves:
            return None
        return curves[0]["mean_ns"] if name == "mean" else curves[0]["quantiles_ns"][name]

    return pick


def mean_at_the_end(run):
    """Returns the mean of the absent reads in the last tenth of a load."""
    samples = next(series["samples"] for series in run["series"] if series["op"] == "read_negative")
    last = samples[-max(len(samples) // 10, 1) :]
    return sum(one["mean_ns"] * one["count"] for one in last) / sum(one["count"] for one in last)


def rate(run):
    return run["ops"] / run["elapsed_s"] if run["elapsed_s"] else None


def of_floor(quantile):
    """Returns the function that divides a quantile of a run's reads by that of the floor between them."""

    def pick(run):
        floor = run.get("device_read_ns") if run["workload"]["state"] != "warm" else run.get("memory_read_ns")
        own = latency(quantile)(run)
        return own / floor[quantile] if own and floor else None

    return pick


def of_device(run):
    """Returns the median of a run's reads as a multiple of a read of the device right before the run."""
    return latency("p50")(run) / run["device_read_ns"]["p50"]


def reads_per_get(run):
    reads = run["io"].get("device_reads")
    return reads / run["ops"] if reads is not None and run["ops"] else None


def seconds(run):
    return run["elapsed_s"] or None


def write_amplification(run):
    written, own = run["io"].get("device_write_bytes"), run["io"].get("user_write_bytes")
    return written / own if written and own else None


def with_base_merges(run):
    """Returns the write amplification with the share of a merge into the base, if the run was too short for one. A merge is due once the
    deltas hold half as many records as the base, and writes both."""
    merges = run["engine_stats"].get("base_merges_begun")
    return write_amplification(run) + (0 if merges else 3)


def charged(run):
    """Returns the peak of the memory charged to the run, as a share of its cap."""
    return max(one["charged_bytes"] for one in run["memory"]) / run["cap_bytes"]


def stat(name):
    """Returns the function that picks a statistic of the engine at the end of a run."""
    return lambda run: run.get("engine_stats", {}).get(name)


def ratio(one, other):
    """Returns one divided by other, repeat by repeat."""
    return {repeat: value / other[repeat] for repeat, value in one.items() if other.get(repeat)}


def scaled(values, by):
    return {repeat: value / by for repeat, value in values.items()}


def middle(values):
    return statistics.median(values.values()) if values else None


def shown(values, unit):
    if not values:
        return "not measured"
    number = lambda value: "killed" if math.isinf(value) else f"{value:.3g}"
    ends = f" ({number(min(values.values()))}–{number(max(values.values()))})" if len(values) > 1 else " (1 run)"
    return f"{number(middle(values))}{ends} {unit}".strip()


def row(cell, target, values, limit=None, is_least=False, unit=""):
    """Prints a row; the target is met if the median is within the limit. Without a limit the row has no verdict."""
    verdict = "not measured"
    if limit is None:
        verdict = ""
    elif values:
        held = middle(values) >= limit if is_least else middle(values) <= limit
        verdict = "met" if held else "**missed**"
    print(f"| {cell} | {target} | {shown(values, unit)} | {verdict} |")


def best(runs, of, **wanted):
    """Returns the other engine with the least median, and its figures."""
    others = {engine: runs.of(of, engine, **wanted) for engine in runs.engines() if engine != "strata"}
    others = {engine: values for engine, values in others.items() if values}
    name = min(others, key=lambda engine: middle(others[engine]), default=None)
    return (name, others[name]) if name else ("no other", {})


def loads(folder):
    runs = Runs(folder, "loads")
    own = runs.of(seconds, order="sorted")
    for name, limit, wanted in (("in the order of the source", 5, {"order": None}), ("through the external sort", 1.3, {"order": "sorted"})):
        engine, others = best(runs, seconds, **wanted)
        row(f"50M pairs, shuffled input, settled, beside the best load {name}: {engine}", f"{limit} times faster", ratio(others, own), limit, True)
    row("the same, write amplification", "at most 2.2", runs.of(write_amplification, order="sorted"), 2.2)
    row("the same, inserted by strata in the order of the source, beside its own sorted load: time", "", ratio(runs.of(seconds, order=None), own))
    row("the same: write amplification", "", runs.of(write_amplification, order=None))
    large = dict(enumerate(one for one in lines(folder, "load-300m") if one["is_complete"] and one["is_settled"]))
    of = lambda figure, by: {at: one[figure] / one[by] for at, one in large.items() if one.get(by)}
    row("300M pairs, shuffled input, cap of 1 GiB, settled: time beside the same pairs in key order", "at most 1.3", of("load_s", "sorted_input_s"), 1.3)
    row("the same: anonymous memory at its peak, beside the cap", "at most 1", of("peak_anonymous_bytes", "cap_bytes"), 1)
    row("the same: disk at its peak, spill and all, beside the store", "at most 1.15", of("peak_disk_bytes", "store_bytes"), 1.15)
    mean = {at: one["latency"]["read_negative"]["mean_ns"] / 1e3 for at, one in large.items()}
    row("the same: absent key during the load, mean", "", mean, unit="us")


def inserts(folder):
    runs = Runs(folder, "inserts")
    for cap, name in ((0.06, "1 GiB"), (0.22, "4 GiB")):
        mean = scaled(runs.of(latency("mean", "read_negative"), cap=cap), 1e3)
        row(f"absent key between inserts of 300M pairs in shuffled order, cap of {name}, mean", "under 2 us", mean, 2, unit="us")
        row("the same, in the last tenth", "", scaled(runs.of(mean_at_the_end, cap=cap), 1e3), unit="us")


def fresh(folder):
    runs = Runs(folder, "fresh")
    for state in ("cold", "warm"):
        for name in ("read_positive", "read_negative", "get_many"):
            if (name, state) == ("get_many", "warm"):
                continue
            for quantile in ("mean", "p50", "p99"):
                of = latency(quantile)
                settled = runs.of(of, scenario="strata-settled", name=name, state=state)
                values = ratio(runs.of(of, scenario="strata-fresh", name=name, state=state), settled)
                row(f"{name}, {state}, right after a load, beside the settled store, {quantile}", "within 10%", values, 1.1)
            if state == "cold" and name != "read_negative":
                one, other = (runs.of(of_device, scenario=f"strata-{which}", name=name, state=state) for which in ("fresh", "settled"))
                row("the same, p50, both as multiples of the device's read before the run", "", ratio(one, other))


def memory(folder):
    runs = Runs(folder, "memory")
    warm = {"state": "warm", "floor": None}
    for name, single in (("get_many_absent", "read_negative"), ("get_many", "read_positive")):
        values = ratio(runs.of(rate, name=name, **warm), runs.of(rate, name=single, **warm))
        row(f"{name} of 100 keys, 50M pairs in memory: keys a second, beside gets one by one", "", values)
    p50 = scaled(runs.of(latency("p50"), name="read_positive", **warm), 1e3)
    row("present key, 50M pairs in memory, p50", "", p50, unit="us")
    floor = {"name": "read_negative", "floor": "after each get"}
    row("absent key, 50M pairs in memory, beside a miss in 1 GiB, p50", "at most 1.25", runs.of(of_floor("p50"), **floor), 1.25)


def before(folder):
    """Prints the figures of this build beside those of the earlier commit."""
    rows = lines(folder, "before")

    def of(get, figure, is_this):
        return {row["repeat"]: row[figure] for row in rows if row["get"] == get and (row["build"] == "this") == is_this}

    def beside(get, figure):
        return ratio(of(get, figure, True), of(get, figure, False))

    for get, wanted in (("get_many absent", 5), ("get_many present", 2.5)):
        cell = f"{get}, 100 of 50M pairs in memory: keys a second, beside the earlier commit"
        row(cell, f"{wanted} times", beside(get, "keys_per_s"), wanted, True)
    cell = "get present, 50M pairs in memory, p50, beside the earlier commit"
    row(cell, "0.71 times (0.55 us where it was 0.78)", beside("get present", "p50_ns"), 0.71)
    miss = ratio(of("get absent", "p50_ns", True), of("one miss", "p50_ns", True))
    row("get absent, 50M pairs in memory, p50, beside a miss in as much memory as the first plane", "at most 1.25", miss, 1.25)


def cold(folder):
    runs = Runs(folder, "cold")
    for cap in (0.04, 0.18, 1.4):
        cell = {"cap": cap, "state": "cold"}
        percent = f"cap of {cap * 100:.0f}%"
        row(f"cold present key, {percent}, reads of the device a get", "1.000", runs.of(reads_per_get, **cell), 1.0005)
        row(f"cold present key, {percent}, p50 beside the device's", "at most 1.05", runs.of(of_floor("p50"), **cell), 1.05)
        row(f"cold present key, {percent}, p99 beside the device's", "at most 1.5", runs.of(of_floor("p99"), **cell), 1.5)


def zipfian(folder):
    runs = Runs(folder, "zipfian")
    engine, others = best(runs, latency("mean"), state="steady")
    own = runs.of(latency("mean"), state="steady")
    measured = ", ".join(name for name in runs.engines() if name != "strata")
    cell = f"zipfian 0.99, cap of 4%, after ten minutes, mean, beside the best of {measured}: {engine}"
    row(cell, "2 times better", ratio(others, own), 2, True)


def updates(folder):
    runs = Runs(folder, "updates")
    cell = {"name": "beside", "state": "cold", "floor": None}
    beside, alone = runs.of(latency("p99"), **cell), runs.of(latency("p99"), name="read_positive", state="cold")
    name = "present key beside 10,000 updates a second, 100M pairs, cap of 6%, twenty minutes: p99 beside that without"
    row(name, "at most 2", ratio(beside, alone), 2)
    with_floor = {"name": "beside", "floor": "after each get"}
    for quantile in ("p50", "p99"):
        row(f"{quantile} of such reads, beside that of reads of the device between them", "", runs.of(of_floor(quantile), **with_floor))
    row("the same, write amplification", "at most 9", runs.of(write_amplification, **cell), 9)
    row("the same, with at least the share of the next merge into the base", "at most 9", runs.of(with_base_merges, **cell))
    row("merges into the base begun meanwhile", "", runs.of(stat("base_merges_begun"), **cell))
    row("the same, delta runs at most", f"at most {RUNS_MAX}", runs.of(stat("delta_runs_most"), **cell), RUNS_MAX)
    debt = runs.of(stat("merge_debt_most_percent"), **cell)
    row("the same, debt of merges at most", f"at most {DEBT_MAX_PERCENT}%", debt, DEBT_MAX_PERCENT, unit="%")
    row("the same, charged memory at its peak, beside the cap", "at most 1", runs.of(charged, **cell), 1)
    disk = runs.of(lambda run: run["disk_bytes"] / run["workload"]["pairs"] / 64 * 100, **cell)
    row("the same, disk at the end, of the pairs' bytes", f"at most {DISK_MAX_PERCENT}%", disk, DISK_MAX_PERCENT, unit="%")


def remarks(folder):
    """Prints the notes of runs that are not as they were asked for, and the builds."""
    builds, busy = {}, {}
    for piece in PIECES:
        for run in lines(folder, piece):
            builds.setdefault(run.get("program", "not recorded"), set()).add(piece)
            for note in run.get("notes", []):
                if note.startswith("the machine was busy"):
                    busy[piece] = busy.get(piece, 0) + 1
                if note.startswith(BAD_NOTES) or "at the start, and not" in note:
                    cap = f"{run['cap_bytes'] >> 20} MiB" if run["cap_bytes"] else "no cap"
                    print(f"- {piece}: {engine_of(run)}, {run['workload']['name']}, {cap}, repeat {run['repeat']}: {note}")
    if busy:
        print(f"- the machine was busy at the beginning: {', '.join(f'{piece} {count} runs' for piece, count in busy.items())}")
    for build, pieces in builds.items():
        print(f"- build {build}: {', '.join(sorted(pieces))}")


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    folder = sys.argv[1]
    print("| cell | target | measured | |\n|---|---|---|---|")
    loads(folder)
    inserts(folder)
    fresh(folder)
    memory(folder)
    before(folder)
    cold(folder)
    zipfian(folder)
    updates(folder)
    print()
    remarks(folder)


if __name__ == "__main__":
    main()
