"""Sweep: trials that ASHA may stop, against the same trials run to the end.

Both arms run the same trials: settings drawn from the preset's search space with the same seed, and the same seed in each. Compared
are the environment steps that all trials of an arm took together, and what the best of each is worth: the saved policies of both
play the same fresh episodes, and the interval is that of the mean difference (Student's t, paired by episode; 0 where both chose
the same trial).

    python benchmarks/sweep.py pendulum --trials 16 --total-env-steps 40000

Writes benchmarks/results/sweep_PRESET.json. Must reach: at most 0.5 of the steps, and no difference in the interval's sense.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.record import record

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # no token in the home folder
from rlhf_ray import tune_configs
from rlhf_ray.agents.true_return import play
from rlhf_ray.envs import make_vector_env
from rlhf_ray.measure.intervals import mean_interval
from rlhf_ray.rllib.checkpoint_parts import load_policy
from rlhf_ray.runs.quiet import quiet
from rlhf_ray.runs.train import start_ray
from rlhf_ray.settings import Experiment
from rlhf_ray.sweeps import Plan, sweep
from rlhf_ray.sweeps.results import SweepOutcome

FRESH = 77
"""Seed of the episodes that the best policies are compared on: none that a trial was measured on."""


def arm(plan: Plan, folder: Path) -> tuple[SweepOutcome, float]:
    """Run one arm; what it came to, and the seconds it took."""
    started = time.perf_counter()
    outcome = sweep(plan, folder)
    return outcome, time.perf_counter() - started


def returns(environment: str, trial: Path, episodes: int) -> list[float]:
    """The true return of each of ``episodes`` fresh episodes of a trial's last policy."""
    policy = load_policy(max(trial.glob("checkpoint_*")))
    env = make_vector_env(environment, 20)
    try:
        return [float(value) for value in play(env, policy.best, np.full(20, episodes // 20), FRESH)[0]]
    finally:
        env.close()


def summary(outcome: SweepOutcome, seconds: float) -> dict[str, Any]:
    assert outcome.best is not None
    return {
        "env_steps": sum(trial["env_steps"] for trial in outcome.trials),
        "seconds": seconds,
        "best": outcome.best["settings"],
        "objective": outcome.best["objective"],
        "trials": [
            {name: trial[name] for name in ("status", "objective", "env_steps", "settings", "curve")}
            for trial in outcome.trials
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", choices=tune_configs.names())
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--total-env-steps", type=int, default=None, help="of each trial; the preset's unless given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--episodes", type=int, default=200, help="fresh episodes that the best policies are compared on"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/sweep-benchmark"), help="where the sweeps go")
    options = parser.parse_args()
    module = tune_configs.load(options.preset)
    steps = options.total_env_steps or module.experiment.total_env_steps
    experiment: Experiment = dataclasses.replace(module.experiment, total_env_steps=steps, seed=options.seed)
    quiet()
    start_ray(cpus=2 + experiment.ppo.num_env_runners)
    arms: dict[str, dict[str, Any]] = {}
    played: dict[str, list[float]] = {}
    for name, schedule in (("to the end", "none"), ("asha", "asha")):
        space = tune_configs.search_space(options.preset)
        plan = Plan(experiment, space, trials=options.trials, schedule=schedule, name=options.preset)  # type: ignore[arg-type]
        folder = (options.runs / schedule).absolute()
        outcome, seconds = arm(plan, folder)
        arms[name] = summary(outcome, seconds)
        assert outcome.best is not None
        played[name] = returns(experiment.environment, folder / outcome.best["name"], options.episodes)
    draws = [sorted(json.dumps(trial["settings"]) for trial in arms[name]["trials"]) for name in arms]
    assert draws[0] == draws[1], "the arms drew different settings"
    differences = [asha - whole for asha, whole in zip(played["asha"], played["to the end"], strict=True)]
    mean, interval = statistics.mean(differences), mean_interval(differences)
    assert interval is not None, "one episode has no interval"
    result = {
        "steps_ratio": arms["asha"]["env_steps"] / arms["to the end"]["env_steps"],
        "best_on_fresh_episodes": {name: statistics.mean(values) for name, values in played.items()},
        "difference": mean,
        "difference_interval_95": interval,
        "same_trial": arms["asha"]["best"] == arms["to the end"]["best"],
        "arms": arms,
    }
    record(f"sweep_{options.preset}", result)
    print(
        f"steps: {result['steps_ratio']:.2f} of those of running to the end; the best: {result['best_on_fresh_episodes']}, "
        f"difference {mean:.1f} (95 % interval {interval[0]:.1f} to {interval[1]:.1f})"
    )


if __name__ == "__main__":
    main()
