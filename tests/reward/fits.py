"""Reward trainers with comparisons, for several files of tests. Not a test itself."""

from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.settings import RewardModelSettings
from tests.made_up import FORCES, VECTORS


def trainer_of(
    settings: RewardModelSettings,
    comparisons: Comparisons | None = None,
    *,
    held_out_share: float = 0.0,
    seed: int = 0,
    observations: gym.spaces.Box = VECTORS,
    actions: gym.Space[Any] = FORCES,
) -> RewardTrainer:
    trainer = RewardTrainer(settings, observations, actions, held_out_share=held_out_share, seed=seed)
    if comparisons is not None:
        trainer.comparisons.add(comparisons)
    return trainer


def same(one: RewardTrainer, other: RewardTrainer) -> bool:
    """Whether weights, normalisers and version are the same bit for bit."""
    mine, theirs = one.ensemble.state(), other.ensemble.state()
    return mine.keys() == theirs.keys() and all(np.array_equal(mine[name], theirs[name]) for name in mine)
