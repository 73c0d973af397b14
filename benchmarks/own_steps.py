"""Own steps: does learning stay the same with rollouts as arrays and gradient steps of our own, beside RLlib's runner and learner?

Pendulum from comparisons, the preset's settings, several seeds in both arms. Compared is the true return at the end of training,
the mean of the last eight iterations: that of the most probable actions, which the final evaluation plays, varies more, since
such a policy sometimes never starts to swing.

    python benchmarks/own_steps.py --seeds 18      # half an hour for each core; writes benchmarks/results/own_steps.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.intervals import bootstrap
from benchmarks.record import ROOT, record

FIRST_SEED, LAST_ITERATIONS = 400, 8

RLLIB = """
import sys
import rlhf_ray.rllib.learner as learner, rlhf_ray.rllib.ppo as ppo
ppo.uses_fast_path = learner.uses_fast_path = lambda *arguments: False
from rlhf_ray.cli import main
main()
"""
"""Runs the command line with RLlib's env runner and gradient steps."""

ARMS = {"ours": ["-m", "rlhf_ray"], "RLlib's": ["-c", RLLIB]}
TRAIN = ["train", "pendulum", "--evaluation-episodes", "1"]


def final_return(arm: str, seed: int) -> float:
    """Train, and return the true return of the last iterations."""
    with tempfile.TemporaryDirectory(prefix="own-steps") as folder:
        words = [*TRAIN, "--seed", str(seed), "--run-dir", f"{folder}/run"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *ARMS[arm], *words], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-500:])
        rows = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    return statistics.mean(row["true_return_mean"] for row in rows[-LAST_ITERATIONS:])


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=18)
    options = parser.parse_args()
    outcome: dict[str, Any] = {arm: {"returns": []} for arm in ARMS}
    for seed in range(FIRST_SEED, FIRST_SEED + options.seeds):
        for arm in ARMS:
            outcome[arm]["returns"].append(final_return(arm, seed))
        print(seed, *(round(outcome[arm]["returns"][-1]) for arm in ARMS), flush=True)
    for arm, found in outcome.items():
        found |= {"mean": statistics.mean(found["returns"]), "interval_95": bootstrap(found["returns"], np.mean)}
        print(arm, found["mean"], found["interval_95"])
    record("own_steps", outcome)


if __name__ == "__main__":
    main()
