#!/usr/bin/env python3
"""Measures scenarios in several environments by turns: another allocator, huge pages for what is allocated.

  loadgen/scripts/bench-environments.py [--bin DIR] [--work DIR] --out DIR SCENARIO NAME [NAME=VALUE...] [, NAME ...]

Each environment has a name and variables, and the environments are separated by commas as words of their own. Each
repeat runs the whole scenario in one environment after the other, on the same stores. Results are in OUT/NAME.jsonl;
what is there already is not repeated. Prints how each environment compares with the first. Exit code 1: a program
failed. Example:

  bench-environments.py --out results loadgen/scenarios/environments/allocators.toml \\
      glibc , huge GLIBC_TUNABLES=glibc.malloc.hugetlb=1 , jemalloc LD_PRELOAD=/usr/lib/x86_64-linux-gnu/libjemalloc.so.2
"""

import os
import shutil
import subprocess
import sys
import tomllib

from kit import options


def environments(words):
    """Returns the variables of each environment by its name."""
    found, rest = {}, list(words)
    while rest:
        end = rest.index(",") if "," in rest else len(rest)
        name, *variables = rest[:end] or sys.exit("no environment: give a name before each comma")
        if not all("=" in variable for variable in variables):
            sys.exit(f"not a variable: environment={name} variables={variables}: give NAME=VALUE")
        found[name] = dict(variable.split("=", 1) for variable in variables)
        rest = rest[end + 1:]
    return found


def main():
    parser = options(__doc__, "bench-environments")
    parser.add_argument("--out", required=True, help="directory of the results")
    parser.add_argument("scenario", metavar="SCENARIO")
    parser.add_argument("environments", nargs="+", metavar="WORD")
    args = parser.parse_args()
    named = environments(args.environments)
    with open(args.scenario, "rb") as file:
        repeats = tomllib.load(file)["repeats"]
    os.makedirs(args.out, exist_ok=True)
    loadgen = os.path.join(args.bin, "loadgen")
    file_of = {name: os.path.join(args.out, f"{name}.jsonl") for name in named}
    for repeat in range(repeats):
        for name, variables in named.items():
            command = [loadgen, "bench", args.scenario, "--out", file_of[name], "--work", args.work, "--keep"]
            done = subprocess.run(command + ["--repeats", str(repeat + 1)], env={**os.environ, **variables})
            if done.returncode != 0:
                sys.exit(f"loadgen bench failed: code={done.returncode} environment={name}")
    shutil.rmtree(args.work)
    first, *others = named
    for name in others:
        subprocess.run([loadgen, "compare", file_of[first], file_of[name]], check=True)


if __name__ == "__main__":
    main()
