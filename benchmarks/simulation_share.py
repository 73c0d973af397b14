"""Simulation share: how much of EnvPool's own rate a whole training has, on all cores of this machine.

The simulation alone is EnvPool with as many threads as cores, 64 copies and actions drawn before. The training is our PPO
on a learned reward: 64 copies, rollouts of 128 steps, 4 epochs of minibatches of 2,048 steps (settings for simulation that
costs little; the defaults take ten epochs of minibatches of 256), 500 labels in a million steps (WalkerWalk: half a million), as in
B-Pref. Its rate is that of its iterations, reward fits, clips and metrics included; with the command's imports, evaluations and
report it is `whole_command`. `sampling`, `learning` and `fits` are fractions of the iterations' time.

    python benchmarks/simulation_share.py        # about 25 minutes; writes benchmarks/results/simulation_share.json

The two take turns. Nothing else may run.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import envpool
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.intervals import bootstrap
from benchmarks.record import record

TASKS = {"HalfCheetah-v5": 1_048_576, "WalkerWalk-v1": 524_288}
"""Tasks and environment steps."""
COPIES = 64
WORDS = (
    *("--preferences.comparisons", "500", "--ppo.num-envs", str(COPIES)),
    *("--ppo.rollout-length", "128", "--ppo.epochs", "4", "--ppo.minibatch-size", "2048"),
)


def simulation(task: str, seconds: float = 5.0) -> float:
    """Return the environment steps per second of EnvPool alone."""
    pool = envpool.make(task, env_type="gymnasium", num_envs=COPIES, num_threads=os.cpu_count() or 1)
    pool.reset()
    space = pool.action_space
    actions = np.random.default_rng(0).uniform(space.low, space.high, (256, COPIES, *space.shape)).astype(space.dtype)
    for action in actions:
        pool.step(action)
    begun, steps = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        for action in actions:
            pool.step(action)
        steps += len(actions) * COPIES
    return steps / (time.perf_counter() - begun)


def training(task: str, seed: int) -> dict[str, float]:
    """Return the environment steps per second of a training, and what parts have of its iterations' time."""
    program, total = str(Path(sys.executable).with_name("rlhf-ray")), str(TASKS[task])
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        run = ("--total-env-steps", total, "--seed", str(seed), "--run-dir", f"{folder}/run")
        words = (program, "train", f"envpool/{task}", *WORDS, *run)
        subprocess.run(words, check=True, capture_output=True)
        took = time.perf_counter() - begun
        with Path(folder, "run", "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
    first, last = rows[0], rows[-1]
    steps, seconds = (float(last[name]) - float(first[name]) for name in ("env_steps", "seconds"))
    parts = {"sampling": "sampling_seconds", "learning": "learning_seconds", "fits": "fit_seconds"}
    shares = {name: sum(float(row[column] or 0) for row in rows[1:]) / seconds for name, column in parts.items()}
    return {"iterations": steps / seconds, "whole_command": TASKS[task] / took} | shares


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    rows: dict[str, Any] = {}
    for task in TASKS:
        turns = []
        for turn in range(options.turns):
            alone = simulation(task)
            turns.append({"simulation": alone} | training(task, turn))
            print(task, {name: round(value, 2) for name, value in turns[-1].items()}, flush=True)
        rows[task] = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
        for name in ("iterations", "whole_command"):
            shares = [turn[name] / turn["simulation"] for turn in turns]
            rows[task][f"share_{name}"] = {"median": statistics.median(shares), "interval_95": bootstrap(shares)}
    print(rows)
    record("simulation_share", {"turns": options.turns, "words": WORDS, "tasks": rows})


if __name__ == "__main__":
    main()
