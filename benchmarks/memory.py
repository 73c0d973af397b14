"""Memory: that of a run and everything it started, while environment steps and clips flow by the million.

The asynchronous ring on CartPoleFixed, with few gradient steps for each environment step, so that many flow. Every few seconds the
memory of the run's process and of all that it started is read (PSS: shared pages counted once), in two halves after a warm-up: they
have to be the same but for a few percent.

    python benchmarks/memory.py --total-env-steps 2000000

Writes benchmarks/results/memory.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.record import record
from rlhf_ray import tune_configs
from rlhf_ray.rllib import PreferencePPOConfig
from rlhf_ray.runs.quiet import quiet
from rlhf_ray.runs.train import start_ray

EVERY_S = 5.0
"""Seconds between two looks: counting shared pages is slow."""


def memory_mb() -> dict[str, float]:
    """MB (PSS) of this process and of each kind of process it started."""
    found: dict[str, float] = {}
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            name = (
                " ".join(process.cmdline()).split(":")[-1].split(".")[0].strip()
                if process.pid != psutil.Process().pid
                else "run"
            )
            name = name if name.isalpha() else "Ray itself"
            found[name] = found.get(name, 0.0) + process.memory_full_info().pss / 2**20
        except psutil.Error:
            continue
    return found


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--total-env-steps", type=int, default=2_000_000)
    parser.add_argument("--warm-up", type=float, default=0.25, help="share of the steps before memory counts")
    options = parser.parse_args()
    experiment = tune_configs.load("cartpole").experiment
    experiment = dataclasses.replace(
        experiment,
        total_env_steps=options.total_env_steps,
        preferences=dataclasses.replace(experiment.preferences, mode="asynchronous", comparisons=2_000, rounds=200),
        ppo=dataclasses.replace(experiment.ppo, num_envs=32, minibatch_size=4_000, epochs=1),
    )
    quiet()
    start_ray(cpus=2)
    algorithm = PreferencePPOConfig.from_experiment(experiment).build_algo()
    rows: list[dict[str, float]] = []
    looked = 0.0
    while not algorithm.finished:
        algorithm.train()
        if time.monotonic() - looked > EVERY_S:
            looked = time.monotonic()
            memory = memory_mb()
            rows.append({"env_steps": algorithm.env_steps, "total": sum(memory.values()), **memory})
    comparisons = algorithm.ring.answered
    algorithm.stop()
    warm = [row for row in rows if row["env_steps"] >= options.warm_up * options.total_env_steps]
    first, last = warm[: len(warm) // 2], warm[len(warm) // 2 :]
    outcome = {
        "env_steps": options.total_env_steps,
        "comparisons": comparisons,
        "growth": statistics.median(r["total"] for r in last) / statistics.median(r["total"] for r in first) - 1.0,
        "growth_of_each": {
            name: statistics.median(r.get(name, 0.0) for r in last) - statistics.median(r.get(name, 0.0) for r in first)
            for name in warm[-1]
            if name != "env_steps"
        },
        "rows": rows,
    }
    record("memory", outcome)
    print(json.dumps({name: value for name, value in outcome.items() if name != "rows"}, indent=1))


if __name__ == "__main__":
    main()
