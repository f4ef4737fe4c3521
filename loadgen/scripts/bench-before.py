#!/usr/bin/env python3
"""Compares this tree with another commit: both are built, and their runs of the same scenarios take turns.

  loadgen/scripts/bench-before.py --commit COMMIT --out DIR [--work DIR] [--repeats N] SCENARIO... [-- OPTION...]

COMMIT is checked out below --work and built there by its own `make build`. For each repeat of each scenario both builds run
`loadgen bench` once; which one is first changes with every repeat. Scenarios are those of this tree, and an OPTION is one of `loadgen
bench`, such as --engine strata. The results are DIR/before.jsonl and DIR/after.jsonl. Runs that are there already are not repeated. At the
end `loadgen compare` of this tree judges the two, repeat by repeat. Exit code 1: a build or a run failed.
"""

import argparse
import os
import subprocess
import sys

HERE = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))


def run(command, **more):
    if subprocess.run(command, **more).returncode != 0:
        sys.exit(f"failed: {' '.join(command)}")


def check_out(commit, tree):
    """Brings the commit into `tree`, which is a clone of this repository."""
    if not os.path.isdir(tree):
        run(["git", "clone", "--quiet", HERE, tree])
    run(["git", "fetch", "--quiet", "origin"], cwd=tree)
    run(["git", "checkout", "--quiet", "--force", commit], cwd=tree)


def build(tree, work):
    """Builds the programs of a tree and returns their folder."""
    programs, target = os.path.join(work, "programs"), os.path.join(work, "target")
    own = {"CARGO_TARGET_DIR": target} if tree != HERE else {}
    run(["make", "--no-print-directory", "build", f"BIN={programs}"], cwd=tree, env=os.environ | own, stdout=sys.stderr)
    # A commit before BIN was a variable leaves its programs in its target alone.
    return os.path.join(target, "release") if own else programs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", required=True, help="what this tree is compared with")
    parser.add_argument("--out", required=True, help="directory for the results")
    parser.add_argument("--work", default="/tmp/solkv-before", help="directory for the checkout, both builds and the stores")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("scenarios", nargs="+", metavar="SCENARIO")
    own, options = sys.argv[1:], []
    if "--" in own:
        own, options = own[: own.index("--")], own[own.index("--") + 1 :]
    args = parser.parse_args(own)
    work = {name: os.path.join(os.path.abspath(args.work), name) for name in ("before", "after")}
    for folder in (args.out, *work.values()):
        os.makedirs(folder, exist_ok=True)
    tree = os.path.join(work["before"], "tree")
    check_out(args.commit, tree)
    programs = {"before": build(tree, work["before"]), "after": build(HERE, work["after"])}
    results = {name: os.path.join(args.out, f"{name}.jsonl") for name in work}
    for scenario in args.scenarios:
        for repeat in range(args.repeats):
            for name in ("before", "after") if repeat % 2 == 0 else ("after", "before"):
                # --repeats counts those that the file has already, so each call adds one.
                command = [os.path.join(programs[name], "loadgen"), "bench", scenario, "--repeats", str(repeat + 1), "--keep"]
                run([*command, "--work", os.path.join(work[name], "stores"), "--out", results[name], *options], stdout=sys.stderr)
    run([os.path.join(programs["after"], "loadgen"), "compare", results["before"], results["after"]])


if __name__ == "__main__":
    main()
