"""The tax: CPU time per environment step of PreferencePPO against plain RLlib PPO on the true reward, with the same settings.

Both are built in one process and one Ray session and then train in turn, a few iterations at a time (ABBA), to the end of the
preset's budget. Counted is the CPU time of this process and of everything it started, so that the ring's actors (clip cutting,
selection, teacher, store, reward fits) are in PreferencePPO's, and Ray's own idle processes in both. Neither the start nor
the first turn of each counts.

    python benchmarks/ppo_tax.py pendulum
    python benchmarks/ppo_tax.py cartpole

Writes benchmarks/results/ppo_tax_PRESET.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from ray.rllib.algorithms.ppo import PPOConfig

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.intervals import in_turns, ratio
from benchmarks.record import record
from rlhf_ray import tune_configs
from rlhf_ray.rllib import PreferencePPOConfig
from rlhf_ray.rllib.config import register_environment
from rlhf_ray.rllib.policy import policy_spec
from rlhf_ray.rllib.ppo import apply_ppo
from rlhf_ray.runs.quiet import quiet
from rlhf_ray.runs.train import start_ray
from rlhf_ray.settings import Experiment


def cpu_seconds() -> float:
    """CPU seconds, user and system, of this process and everything it started that still runs."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def plain_ppo(experiment: Experiment) -> Any:
    """RLlib's PPO on the true reward, with the same settings and the same policy network."""
    config = PPOConfig()
    register_environment(config, experiment.environment)
    config.environment(experiment.environment)
    apply_ppo(config, experiment.ppo, experiment.total_env_steps)
    config.rl_module(rl_module_spec=policy_spec(experiment.ppo))
    config.debugging(seed=experiment.seed, log_level="ERROR")
    return config.build_algo()


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", choices=tune_configs.names())
    parser.add_argument("--turns", type=int, default=10, help="turns of each that are counted")
    parser.add_argument("--total-env-steps", type=int, default=None, help="another budget than the preset's")
    options = parser.parse_args()
    experiment: Experiment = tune_configs.load(options.preset).experiment
    if options.total_env_steps:
        experiment = dataclasses.replace(experiment, total_env_steps=options.total_env_steps)
    quiet()
    start_ray(cpus=2)
    arms = {"preferences": PreferencePPOConfig.from_experiment(experiment).build_algo(), "plain": plain_ppo(experiment)}
    budget = experiment.total_env_steps - experiment.resolved_fragments().initial_env_steps
    iterations = budget // experiment.ppo.iteration_env_steps // (1 + options.turns)

    def turn(algorithm: Any) -> float:
        before = cpu_seconds()
        for _ in range(iterations):
            algorithm.train()
        return (cpu_seconds() - before) / (iterations * experiment.ppo.iteration_env_steps)

    spent = in_turns({name: partial(turn, algorithm) for name, algorithm in arms.items()}, options.turns)
    ring = arms["preferences"].ring
    comparisons, versions = ring.answered, ring.version
    for algorithm in arms.values():
        algorithm.stop()
    found = ratio(spent["preferences"], spent["plain"])
    outcome = {
        "preset": options.preset,
        "ratio": sum(spent["preferences"]) / sum(spent["plain"]),
        "ratio_median_of_turns": found["median"],
        "interval_95_of_median": found["interval_95"],
        "microseconds_per_step": {name: 1e6 * statistics.mean(values) for name, values in spent.items()},
        "turns": spent,
        "env_steps_of_each": iterations * options.turns * experiment.ppo.iteration_env_steps,
        "comparisons": comparisons,
        "reward_fits": versions,
    }
    record(f"ppo_tax_{options.preset}", outcome)
    print(json.dumps({name: value for name, value in outcome.items() if name != "turns"}, indent=1))


if __name__ == "__main__":
    main()
