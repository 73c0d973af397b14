"""Cap: how many environment steps per second the run's own process allows, whatever the number of env runners.

An asynchronous run of a preset with its own epochs and minibatches. The CPU time that the run's process takes per environment step,
after the first iterations, is what no further env runner can help: its inverse is the cap. With a learner of its own
(``num_learners=1``), the run's process moves references only.

    python benchmarks/cap.py                 # pendulum: 1 and 2 env runners, without and with a learner of its own
    python benchmarks/cap.py --preset cartpole

Writes benchmarks/results/cap_PRESET.json. Each row is the median of turns of one run, with its bootstrap 95 % interval.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported

import argparse
import dataclasses
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.intervals import bootstrap
from benchmarks.record import record
from rlhf_ray import tune_configs
from rlhf_ray.rllib.choice import preference_config
from rlhf_ray.runs.quiet import quiet
from rlhf_ray.runs.train import start_ray

ARMS = ((1, 0), (2, 0), (1, 1), (2, 1))
"""Env runners and learner actors of each row."""

WARM_UP = 6
"""Iterations of each run that are not counted: the first fit, and torch's first steps."""


def build(preset: str, env_runners: int, learners: int, folder: str, iterations: int) -> Any:
    """The algorithm of a row."""
    of = tune_configs.load(preset).experiment
    ppo = dataclasses.replace(of.ppo, num_env_runners=env_runners, num_learners=learners)
    preferences = dataclasses.replace(of.preferences, mode="asynchronous")
    experiment = dataclasses.replace(of, ppo=ppo, preferences=preferences, total_env_steps=10**9)
    steps = of.resolved_fragments().initial_env_steps + iterations * ppo.iteration_env_steps * max(1, env_runners)
    experiment = dataclasses.replace(experiment, total_env_steps=steps)
    return preference_config(experiment).preferences(store=folder).build_algo()


def turn(algorithm: Any, iterations: int) -> dict[str, float]:
    """Train for some iterations: CPU seconds of this process and wall seconds, by environment step."""
    steps, cpu, wall = algorithm.env_steps, time.process_time(), time.perf_counter()
    for _ in range(iterations):
        algorithm.train()
    taken = algorithm.env_steps - steps
    return {"cpu": (time.process_time() - cpu) / taken, "wall": (time.perf_counter() - wall) / taken}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=tune_configs.names(), default="pendulum")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=6, help="of a turn")
    options = parser.parse_args()
    quiet()
    start_ray(cpus=16)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="cap") as folder:
        for env_runners, learners in ARMS:
            name = f"{env_runners}-{learners}"
            total = WARM_UP + options.turns * options.iterations + 4
            algorithm = build(options.preset, env_runners, learners, f"{folder}/{name}", total)
            turn(algorithm, WARM_UP)
            found = [turn(algorithm, options.iterations) for _ in range(options.turns)]
            algorithm.stop()
            caps = [1.0 / each["cpu"] for each in found]
            row = {
                "env_runners": env_runners,
                "learners": learners,
                "cap": statistics.median(caps),
                "interval_95": bootstrap(caps),
                "reached": statistics.median(1.0 / each["wall"] for each in found),
                "turns": found,
            }
            rows.append(row)
            cap, (low, high) = row["cap"], row["interval_95"]
            print(
                f"{env_runners} env runners, {learners} learners: cap {cap:,.0f} steps/s ({low:,.0f} to {high:,.0f}), "
                f"reached {row['reached']:,.0f}",
                flush=True,
            )
    record(f"cap_{options.preset}", {"rows": rows})


if __name__ == "__main__":
    main()
