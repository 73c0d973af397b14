"""Sampling: environment steps per CPU second of PPO's env runner, beside RLlib's own and Stable-Baselines3's rollouts.

All arms step the same copies of the same environment with a policy of the same shape (two hidden layers of 64 units), draw actions
from it and keep what PPO needs of each step. Counted are the environment's steps, resets not. SB3 collects into its buffer, values
included, which the others leave to the learner.

One process, one thread, CPU time. A turn runs each arm for as many steps, in an order that changes; the first turn is not counted.

    python benchmarks/sampling.py            # 3 CPU minutes; writes benchmarks/results/sampling.json
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.intervals import in_turns, ratio
from benchmarks.record import record
from rlhf_ray.rllib.env_runner import ArrayEnvRunner, EnvRunner
from rlhf_ray.rllib.reference import ReferencePPOConfig
from rlhf_ray.settings import Experiment, PPOSettings

CASES = (("CartPole-v1", 64, 32), ("CartPole-v1", 8, 256), ("Pendulum-v1", 8, 200))
"""Environment, copies, and steps of each in a rollout."""


def of_rllib(kind: type, environment: str, copies: int, steps: int) -> Callable[[], int]:
    """Return a function that samples a rollout with an env runner of this kind, and returns its number of steps."""
    ppo = PPOSettings(num_envs=copies, rollout_length=steps, minibatch_size=min(128, copies * steps))
    config = ReferencePPOConfig.from_experiment(Experiment(environment=environment, ppo=ppo))
    config.validate()
    runner = kind(config=config, worker_index=0, num_workers=0)

    def sample() -> int:
        count = sum(map(len, runner.sample()))
        runner.get_metrics()  # or what it knows of each episode piles up
        return count

    return sample


def of_sb3(environment: str, copies: int, steps: int) -> Callable[[], int]:
    """Return a function that collects a rollout with Stable-Baselines3, and returns its number of steps."""
    agent = PPO("MlpPolicy", make_vec_env(environment, copies, vec_env_cls=DummyVecEnv), n_steps=steps, batch_size=128)
    _, callback = agent._setup_learn(10**9, None)

    def sample() -> int:
        agent.collect_rollouts(agent.env, callback, agent.rollout_buffer, n_rollout_steps=steps)
        return copies * steps

    return sample


def rate(sample: Callable[[], int], wanted: int) -> float:
    """Return the steps per CPU second of at least ``wanted`` steps."""
    begun, count = time.process_time(), 0
    while count < wanted:
        count += sample()
    return count / (time.process_time() - begun)


def measure(environment: str, copies: int, steps: int, turns: int, wanted: int) -> dict[str, Any]:
    """Return what `turns` turns after the first one gave."""
    arms = {
        "ours": of_rllib(ArrayEnvRunner, environment, copies, steps),
        "rllib": of_rllib(EnvRunner, environment, copies, steps),
        "sb3": of_sb3(environment, copies, steps),
    }
    rates = in_turns({name: partial(rate, arm, wanted) for name, arm in arms.items()}, turns)
    row: dict[str, Any] = {"environment": environment, "copies": copies, "rollout_length": steps}
    for name, each in rates.items():
        row[name] = statistics.median(each)
        if name != "ours":
            row[f"times_{name}"] = ratio(rates["ours"], each)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=8, help="turns that are counted")
    parser.add_argument("--steps", type=int, default=16_000, help="steps of each arm in a turn")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for case in CASES:
        rows.append(measure(*case, options.turns, options.steps))
        print(rows[-1], flush=True)
    record("sampling", {"steps_of_each_turn": options.steps, "turns": options.turns, "rows": rows})


if __name__ == "__main__":
    main()
