#!/usr/bin/env python3
"""Compares gets in memory of this strata with those of an earlier commit, in turns.

  loadgen/scripts/bench-before.py [--work DIR] [--commit COMMIT] [--pairs N] [--repeats N] [--out FILE]

Checks --commit out beside this tree, builds strata's example `gets` of this tree against both, and runs the two by turns, each
first in every second repeat. Both load --pairs pairs in key order and bring them into memory. Prints a JSON line for each kind of
get of each run: `build` is the commit, or "this"; `pages_percent` is the memory of the pages, of the pairs' bytes. --out is
written once all repeats are done. The default commit is the last one before gets fetched the memory of all runs and of many keys
at once.
"""

import argparse
import json
import os
import subprocess
import sys

from kit import origin

# Percentiles of a get, and keys a second, as the example prints them.
FIGURES = ("p50_ns", "p99_ns", "keys_per_s")
COMMIT = "0865469f3895c22b881e1dbc7e18e3b4a1292c6e"
EXAMPLE = "engines/strata/examples/gets.rs"
KINDS = ("get absent", "get present", "get_many absent", "get_many present", "one miss")


def build(tree, target, package):
    """Builds the example in a tree and returns its path."""
    command = ["cargo", "build", "--quiet", "--locked", "--release", "-p", package, "--example", "gets"]
    if subprocess.run(command, cwd=tree, env={**os.environ, "CARGO_TARGET_DIR": target}).returncode != 0:
        sys.exit(f"cannot build the example of {tree}")
    return os.path.join(target, "release", "examples", "gets")


def words(line):
    """Returns the words NAME=VALUE of a line."""
    return dict(word.split("=") for word in line.split() if "=" in word)


def run(name, example, program, args, repeat):
    """Runs an example once and returns its figures as lines."""
    command = [example, "--pairs", str(args.pairs), "--runs", "0", "--dir", os.path.join(args.work, "store")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"the example of {name} failed: code={done.returncode}\n{done.stderr}")
    lines, texts, made = done.stdout.splitlines(), [], origin(program)
    pages_percent = words(next(line for line in lines if line.startswith("warm:")))["pages_percent"]
    for kind in KINDS:
        figures = words(next(line for line in lines if line.startswith(f"  {kind} ")))
        row = {**made, "build": name, "repeat": repeat, "pairs": args.pairs, "pages_percent": float(pages_percent), "get": kind}
        texts.append(json.dumps(row | {figure: float(figures[figure]) for figure in FIGURES}))
        print(texts[-1], flush=True)
    return texts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", default="/tmp/solkv-before", help="directory for the checkout, its build, and the stores")
    parser.add_argument("--commit", default=COMMIT)
    parser.add_argument("--pairs", type=int, default=50_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", help="file for the lines")
    args = parser.parse_args()
    args.work = os.path.abspath(args.work)
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    tree = os.path.join(args.work, "tree")
    os.makedirs(args.work, exist_ok=True)
    if not os.path.isdir(tree):
        subprocess.run(["git", "clone", "--quiet", here, tree], check=True)
    subprocess.run(["git", "checkout", "--quiet", "--force", args.commit], cwd=tree, check=True)
    with open(os.path.join(here, EXAMPLE)) as example:
        text = example.read().replace("solkv_engine_strata", "engine_strata")
    with open(os.path.join(tree, EXAMPLE), "w") as example:
        example.write(text)
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(here, "target"))
    examples = [
        (args.commit[:12], build(tree, os.path.join(args.work, "target"), "engine-strata")),
        ("this", build(here, target, "solkv-engine-strata")),
    ]
    described = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True, check=True)
    program, texts = described.stdout.strip(), []
    for repeat in range(args.repeats):
        for name, example in examples if repeat % 2 == 0 else reversed(examples):
            texts += run(name, example, program, args, repeat)
    if args.out:
        with open(args.out, "w") as out:
            out.writelines(text + "\n" for text in texts)


if __name__ == "__main__":
    main()
