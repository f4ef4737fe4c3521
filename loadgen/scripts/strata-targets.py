#!/usr/bin/env python3
"""Says which of strata's targets the results of bench-strata.sh meet, as a table.

  loadgen/scripts/strata-targets.py FOLDER

FOLDER has the results. A figure is the median of the repeats, with the lowest and the highest. Ratios are of the same repeat where two
things took turns. A target without results is `not measured`.
"""

import json
import os
import statistics
import sys


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
        """Returns the figure of each repeat of a cell, by its number."""
        found = {}
        for run in self.runs:
            if run["engine"] == engine and all(fact(run, name) == value for name, value in wanted.items()):
                value = of(run)
                if value is not None:
                    found[run["repeat"]] = value
        return found

    def engines(self):
        return sorted({run["engine"] for run in self.runs})


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


def ratio(one, other):
    """Returns one divided by other, repeat by repeat."""
    return {repeat: value / other[repeat] for repeat, value in one.items() if other.get(repeat)}


def middle(values):
    return statistics.median(values.values()) if values else None


def shown(values, unit):
    if not values:
        return "not measured"
    ends = f" ({min(values.values()):.3g}–{max(values.values()):.3g})" if len(values) > 1 else " (1 run)"
    return f"{middle(values):.3g}{ends} {unit}".strip()


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
    own_pair = middle(own)
    large = [one for one in lines(folder, "load-300m") if one["is_complete"]]
    times = {at: one["load_s"] / one["loaded_pairs"] * 50e6 / own_pair for at, one in enumerate(large)} if own_pair else {}
    row("300M pairs, cap of 1 GiB: time a pair, beside that of 50M pairs without a cap", "at most 1.3", times, 1.3)
    disk = {at: one["peak_disk_bytes"] / one["store_bytes"] for at, one in enumerate(large)}
    row("the same: disk at its peak, beside the store", "at most 1.15", disk, 1.15)


def inserts(folder):
    runs = Runs(folder, "inserts")
    for cap, name in ((0.06, "1 GiB"), (0.22, "4 GiB")):
        mean = runs.of(latency("mean", "read_negative"), cap=cap)
        row(f"absent key between inserts of 300M pairs in shuffled order, cap of {name}, mean", "under 2 us", {k: v / 1e3 for k, v in mean.items()}, 2, unit="us")


def fresh(folder):
    runs = Runs(folder, "fresh")
    for state in ("cold", "warm"):
        for name in ("read_positive", "read_negative", "get_many"):
            for quantile in ("mean", "p50", "p99"):
                of = latency(quantile)
                settled = runs.of(of, scenario="strata-settled", name=name, state=state)
                values = ratio(runs.of(of, scenario="strata-fresh", name=name, state=state), settled)
                if (name, state) != ("get_many", "warm"):
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
    p50 = {k: v / 1e3 for k, v in runs.of(latency("p50"), name="read_positive", **warm).items()}
    row("present key, 50M pairs in memory, p50", "", p50, unit="us")
    row("absent key in memory, beside a miss of the caches, p50", "at most 1.25", runs.of(of_floor("p50"), name="read_negative", floor="after each get"), 1.25)


def before(folder):
    """Prints the figures of this build beside those of the earlier commit."""
    rows = lines(folder, "before")

    def of(get, figure, is_this):
        return {row["repeat"]: row[figure] for row in rows if row["get"] == get and (row["build"] == "this") == is_this}

    def beside(get, figure):
        return ratio(of(get, figure, True), of(get, figure, False))

    for get, wanted in (("get_many absent", 5), ("get_many present", 2.5)):
        row(f"{get}, 100 of 50M pairs in memory: keys a second, beside the earlier commit", f"{wanted} times", beside(get, "keys_per_s"), wanted, True)
    row("get present, 50M pairs in memory, p50, beside the earlier commit", "0.71 times (0.55 us where it was 0.78)", beside("get present", "p50_ns"), 0.71)
    miss = ratio(of("get absent", "p50_ns", True), of("one miss", "p50_ns", True))
    row("get absent, 50M pairs in memory, p50, beside a miss in as much memory as the first plane", "at most 1.25", miss, 1.25)


def cold(folder):
    runs = Runs(folder, "cold")
    for cap in (0.04, 0.18, 1.4):
        percent = f"cap of {cap * 100:.0f}%"
        row(f"cold present key, {percent}, reads of the device a get", "1.000", runs.of(reads_per_get, cap=cap), 1.0005)
        row(f"cold present key, {percent}, p50 beside the device's", "at most 1.05", runs.of(of_floor("p50"), cap=cap), 1.05)
        row(f"cold present key, {percent}, p99 beside the device's", "at most 1.5", runs.of(of_floor("p99"), cap=cap), 1.5)


def zipfian(folder):
    runs = Runs(folder, "zipfian")
    engine, others = best(runs, latency("mean"))
    row(f"zipfian 0.99, cap of 4%, after ten minutes, mean, beside the best other: {engine}", "2 times better", ratio(others, runs.of(latency("mean"))), 2, True)


def updates(folder):
    runs = Runs(folder, "updates")
    beside, alone = runs.of(latency("p99"), name="beside"), runs.of(latency("p99"), name="read_positive")
    row("present key beside 10,000 updates a second, 100M pairs, cap of 6%, twenty minutes: p99 beside that without", "at most 2", ratio(beside, alone), 2)
    row("the same, write amplification", "at most 9", runs.of(write_amplification, name="beside"), 9)


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


if __name__ == "__main__":
    main()
