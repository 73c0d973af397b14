"""Fits learn what the answers say, and nothing else: judged on pairs that they have not seen."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.settings import RewardModelSettings
from tests.made_up import CHOICES, FORCES, IMAGES, VECTORS, beats, more_right, opposite, right_about, some_comparisons

SMALL = RewardModelSettings(hidden=(8,), batch_size=8, normalize_inputs="none")


def _trainer(
    settings: RewardModelSettings,
    comparisons: Comparisons,
    seed: int,
    observations: gym.spaces.Box = VECTORS,
    actions: gym.Space[Any] = FORCES,
) -> RewardTrainer:
    trainer = RewardTrainer(settings, observations, actions, held_out_share=0.0, seed=seed)
    trainer.comparisons.add(comparisons)
    return trainer


def test_a_fit_learns_a_linear_reward_from_200_comparisons() -> None:
    seen, unseen = some_comparisons(200, 10), some_comparisons(500, 10, seed=1)
    trainers = [_trainer(RewardModelSettings(), seen, seed) for seed in range(2)]
    for trainer in trainers:
        trainer.fit(200)
    assert beats(0.75, [right_about(seen, trainer.ensemble) for trainer in trainers])
    assert beats(0.75, [right_about(unseen, trainer.ensemble) for trainer in trainers])


def test_a_fit_learns_from_images() -> None:
    spaces: Any = {"observations": IMAGES, "actions": CHOICES}
    seen, unseen = some_comparisons(24, 3, **spaces), some_comparisons(200, 3, seed=1, **spaces)
    right: dict[bool, list[Any]] = {False: [], True: []}
    for seed in range(2):
        for turned, fits in right.items():
            trainer = _trainer(SMALL, opposite(seen) if turned else seen, seed, **spaces)
            trainer.fit(30)
            fits.append(right_about(unseen, trainer.ensemble))
    assert more_right(right[False], right[True])
