"""Fits learn what the answers say, and nothing else: judged on pairs that they have not seen."""

from __future__ import annotations

from typing import Any

from rlhf_ray.settings import RewardModelSettings
from tests.made_up import CHOICES, IMAGES, beats, more_right, opposite, right_about, some_comparisons
from tests.reward.fits import trainer_of

SMALL = RewardModelSettings(hidden=(8,), batch_size=8, normalize_inputs="none")


def test_a_fit_learns_a_linear_reward_from_200_comparisons() -> None:
    seen, unseen = some_comparisons(200, 10), some_comparisons(500, 10, seed=1)
    trainers = [trainer_of(RewardModelSettings(), seen, seed=seed) for seed in range(2)]
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
            trainer = trainer_of(SMALL, opposite(seen) if turned else seen, seed=seed, **spaces)
            trainer.fit(30)
            fits.append(right_about(unseen, trainer.ensemble))
    assert more_right(right[False], right[True])
