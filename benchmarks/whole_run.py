"""A whole training, beside the same training by an earlier commit: CPU seconds of all processes, each as a command of its own.

The default is about a fifth of the preset moving_dot, of its steps, comparisons and rounds. The earlier commit, from before
rollouts became arrays, is checked out to a temporary folder and runs with the libraries of today. Arms take turns, AB, BA; the
first turn is not counted.

    python benchmarks/whole_run.py              # 8 turns: 25 minutes; writes benchmarks/results/whole_run.json
    python benchmarks/whole_run.py --turns 2    # a look
    python benchmarks/whole_run.py --turns 2 cartpole --total-env-steps 50000    # another training
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import ctypes
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.intervals import ratio
from benchmarks.record import ROOT, record
from benchmarks.start import PR_SET_CHILD_SUBREAPER, follow

BEFORE = "530b25d"
TRAINING = ("moving_dot", "--total-env-steps", "32000", "--preferences.comparisons", "64")
TRAINING += ("--preferences.initial-comparisons", "13", "--preferences.rounds", "5")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--before", default=BEFORE, help="the earlier commit")
    # All other words are those after `rlhf-ray train`.
    options, words = parser.parse_known_args()
    training = tuple(words) or TRAINING
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory(prefix="before") as folder:
        earlier = Path(folder, "tree")
        subprocess.run(["git", "worktree", "add", "--detach", earlier, options.before], cwd=ROOT, check=True)
        try:
            outcome = _compare({"before": earlier, "now": ROOT}, training, options.turns)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", earlier], cwd=ROOT, check=True)
    outcome |= {"training": shlex.join(training), "before": options.before}
    print(json.dumps(outcome["now_over_before"], indent=1))
    if options.turns >= 8 and (training, options.before) == (TRAINING, BEFORE):
        record("whole_run", outcome)


def _compare(trees: dict[str, Path], training: Sequence[str], turns: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {arm: [] for arm in trees}
    for turn in range(turns + 1):
        for arm in list(trees) if turn % 2 else list(trees)[::-1]:
            with tempfile.TemporaryDirectory(prefix="whole") as folder:
                run = ["-m", "rlhf_ray", "train", *training, "--seed", str(turn), "--run-dir", f"{folder}/run"]
                # The folder of the code, ahead of an installed package.
                words = ["env", f"--chdir={trees[arm]}", f"PYTHONPATH={trees[arm]}", sys.executable, *run]
                found = follow(words, Path(folder))
            if turn:
                seconds[arm].append(found["cpu_seconds"])
            print(f"turn {turn}: {arm}: {found['cpu_seconds']:.1f} CPU s, {found['wall_seconds']:.1f} s", flush=True)
    return {"cpu_seconds": seconds, "now_over_before": ratio(seconds["now"], seconds["before"])}


if __name__ == "__main__":
    main()
