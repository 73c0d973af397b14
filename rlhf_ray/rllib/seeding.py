"""Seeding: makes what follows depend on nothing but the weights and a seed, in every process of an algorithm."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.algorithm import Algorithm

from rlhf_ray.rllib.rllib_internals import begin_episodes


def begin_anew(algorithm: Algorithm, seed: Sequence[int]) -> None:
    """Have all environments begin new episodes and all generators start from ``seed``.

    RLlib keeps neither environments nor generators in its checkpoints. An algorithm that begins anew now and then can be
    continued from there: one that was restored and one that never stopped come to the same.
    """

    def begin_runner(runner: Any) -> None:
        number = _seed_process([*seed, runner.worker_index])
        begin_episodes(runner, number)

    algorithm.env_runner_group.foreach_env_runner(begin_runner, local_env_runner=True)
    if algorithm.learner_group.is_remote:
        algorithm.learner_group.foreach_learner(lambda learner: _seed_process(seed))
    _seed_process(seed)


def _seed_process(seed: Sequence[int]) -> int:
    """Seed every global generator of this process; the number it is done with."""
    number = int(np.random.SeedSequence(list(seed)).generate_state(1)[0] >> 1)
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)
    return number
