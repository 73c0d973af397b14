"""Run `make test` and `make test-slow` with the arithmetic of many machines, and record what failed where.

    nice python benchmarks/arithmetics.py            # takes hours; a cell that was run is kept, so that it goes on where it stopped
    nice python benchmarks/arithmetics.py --failed   # runs the files of what failed again, after it was mended
    nice python benchmarks/arithmetics.py --anew     # forgets what was run

A machine is a set of kernels (benchmarks/kernels.py) or a JITTER of 1 to 9; each with both meanings of ``precision: auto``.
The first cell and those of other kernels run all tests. JITTER and PRECISION change only what benchmarks/hooks/sitecustomize.py
changes. A test in which it has nothing to change is the same test, so those cells run the others alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.cells import kept, write
from benchmarks.kernels import PRECISIONS
from benchmarks.record import ROOT, about

NAME = "arithmetics"
FIRST = f"own/{PRECISIONS[0]}"
REACHED = ROOT / "build" / "arithmetics_reached.json"
"""By test, the initials of what fired in the first cell."""
MACHINES = {name: (name, "") for name in ("own", "avx2", "sse")} | {
    f"jitter {k}": ("own", str(k)) for k in range(1, 10)
}
"""Kernels and JITTER of each."""
CELLS = [f"{machine}/{precision}" for precision in PRECISIONS for machine in MACHINES]
PYTEST = ("-m", "pytest", "-p", "outcomes", "-q", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")


def tests_of(cell: str) -> list[str] | None:
    """The tests that the cell can change, against cells before it; None for all."""
    machine, precision = cell.split("/")
    needed = ("J" if MACHINES[machine][1] else "") + ("P" if precision != PRECISIONS[0] else "")
    if not needed:
        return None
    if not REACHED.exists():
        raise SystemExit(f"Run {FIRST} first (with --anew): it records which tests {cell} can change.")
    reached = json.loads(REACHED.read_text())
    return [test for test, initials in reached.items() if set(needed) <= set(initials)]


def run(cell: str, only: list[str] | None, files: list[str]) -> dict[str, Any]:
    """What came of each test: of ``only`` these, of ``files`` or all."""
    machine, precision = cell.split("/")
    kernels, jitter = MACHINES[machine]
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"JITTER": jitter, "PRECISION": precision, "OMP_NUM_THREADS": "1", "FIRED": ""}
        environment["OUTCOMES"] = outcomes = f"{folder}/outcomes.json"
        if only is not None:
            environment["ONLY"] = f"{folder}/only.json"
            Path(environment["ONLY"]).write_text(json.dumps(only))
        command = [sys.executable, "benchmarks/kernels.py", kernels, *PYTEST, "-m", "not soak", *files]
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=sys.stderr)
        if done.returncode > 1:
            raise SystemExit(f"{cell}: pytest ended with {done.returncode}")
        return dict(json.loads(Path(outcomes).read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--failed",
        action="store_true",
        help="run again, in its cell, each file in which a test failed",
    )
    parser.add_argument("--anew", action="store_true", help="forget what was run")
    parser.add_argument("--cells", nargs="+", choices=CELLS, metavar="CELL", help="only these: sse/float32")
    options = parser.parse_args()
    if options.anew:
        write(NAME, {**about(), "cells": {}})
    for cell in options.cells or CELLS:
        known = kept(NAME).get(cell)
        if known and not (options.failed and known["left"]):
            continue
        began = time.monotonic()
        files = sorted({test.partition("::")[0] for test in known["left"]}) if known else []
        tests = run(cell, None if known else tests_of(cell), files)
        if cell == FIRST and not known:
            REACHED.parent.mkdir(exist_ok=True)
            REACHED.write_text(json.dumps({test: found["fired"] for test, found in tests.items()}))
        failed = {test: found["failed"] for test, found in sorted(tests.items()) if found["failed"]}
        here = known or {"commit": about()["commit"], "tests": len(tests), "failed": failed}
        here |= {"left": sorted(failed), "last_commit": about()["commit"]}
        write(NAME, {**about(), "cells": kept(NAME) | {cell: here}})
        print(
            f"{cell}: {len(failed)} of {len(tests)} failed ({time.monotonic() - began:.0f} s)",
            *failed,
            sep="\n  ",
            flush=True,
        )


if __name__ == "__main__":
    main()
