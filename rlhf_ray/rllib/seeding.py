"""Seeding: a random stream of its own for every environment, env runner and learner, and new ones at a given iteration."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from ray.rllib.algorithms.algorithm import Algorithm

from rlhf_ray.data.seeds import number_of, sequence
from rlhf_ray.envs.classic_control import ArrayVectorEnv
from rlhf_ray.envs.envpool import EnvPoolVectorEnv
from rlhf_ray.rllib.rllib_internals import begin_episodes, learner_index

_SEED_EACH = SyncVectorEnv, AsyncVectorEnv, ArrayVectorEnv, EnvPoolVectorEnv
"""Vector environments whose `reset` takes a list with each copy's seed. Gymnasium promises only that it takes one number."""


def reset_and_reseed(algorithm: Algorithm, seed: int, iteration: int) -> None:
    """Start new episodes in all environments, and give all processes the random streams of ``iteration``.

    RLlib's checkpoints contain neither environments nor generators. An algorithm that does this at regular iterations can resume
    there: a restored run and an uninterrupted one give the same result.
    """
    for group in (algorithm.env_runner_group, algorithm.eval_env_runner_group):
        if group is not None:
            group.foreach_env_runner(lambda runner: begin_runner(runner, seed, iteration), local_env_runner=True)
    seed_learners(algorithm, seed, iteration)
    seed_process(sequence(seed, "algorithm", iteration))


def begin_runner(runner: Any, seed: int, iteration: int = 0, *, unused: bool = False) -> None:
    """Start new episodes in an env runner, with its random streams of ``iteration``; ``unused``: with ones that no seed gives."""
    process = "evaluation" if runner.config.in_evaluation else "env runners"
    number = runner.worker_index or 0
    seeds = np.random.SeedSequence() if unused else sequence(seed, process, iteration, number)
    of_process, copies, of_environment = seeds.spawn(3)
    if number:  # 0 is in the algorithm's process, which has a stream already
        seed_process(of_process)
    begin_episodes(runner, copies, of_environment)


def seed_learners(algorithm: Algorithm, seed: int, iteration: int = 0) -> None:
    """Give each learner with a process of its own the random stream of ``iteration``. RLlib gives all of them the same."""

    def seed_one(learner: Any) -> None:
        seed_process(sequence(seed, "learners", iteration, learner_index(learner)))

    if algorithm.learner_group.is_remote:
        algorithm.learner_group.foreach_learner(seed_one)


def seed_process(seeds: np.random.SeedSequence) -> None:
    """Seed all global generators of this process."""
    number = number_of(seeds)
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def seeds_of_copies(env: Any, seeds: np.random.SeedSequence) -> int | Sequence[int]:
    """Return what to seed a vector environment's reset with: each copy's own seed, or one number if it takes no list.

    Each call returns other seeds, so environments that are made again don't replay their episodes.
    """
    numbers = [number_of(seed) for seed in seeds.spawn(env.num_envs)]
    return numbers if isinstance(env.unwrapped, _SEED_EACH) else numbers[0]
