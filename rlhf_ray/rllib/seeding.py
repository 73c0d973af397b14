"""Seeding: resets all processes of an algorithm so that the future depends only on the weights and a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.algorithm import Algorithm

from rlhf_ray.rllib.rllib_internals import begin_episodes


def begin_anew(algorithm: Algorithm, seed: Sequence[int]) -> None:
    """Start new episodes in all environments and reseed all random generators from ``seed``.

    RLlib's checkpoints contain neither environments nor generators. An algorithm that does this at regular iterations can resume
    there: a restored run and an uninterrupted one give the same result.
    """

    def begin_runner(runner: Any) -> None:
        number = _seed_process([*seed, runner.worker_index])
        begin_episodes(runner, number)

    algorithm.env_runner_group.foreach_env_runner(begin_runner, local_env_runner=True)
    if algorithm.learner_group.is_remote:
        algorithm.learner_group.foreach_learner(lambda learner: _seed_process(seed))
    _seed_process(seed)


def _seed_process(seed: Sequence[int]) -> int:
    """Seed all global generators of this process; return the derived seed."""
    number = int(np.random.SeedSequence(list(seed)).generate_state(1)[0] >> 1)
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)
    return number
