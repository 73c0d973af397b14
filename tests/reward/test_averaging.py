"""What a fit publishes: the average of its last weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlhf_ray.data.comparisons import Changes
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.reward.methods import STEPS, WeightAverage
from rlhf_ray.settings import RewardModelSettings
from tests.made_up import FORCES, VECTORS, some_comparisons


def test_the_average_is_the_closed_form() -> None:
    weights = torch.zeros(2)
    average = WeightAverage([weights])
    seen = []
    for step in range(3 * STEPS):
        weights.copy_(torch.tensor([float(step), float(step % 7)]))
        average.add()
        seen.append(weights.clone().numpy())
        if step == 9:
            average.end()
            assert weights.numpy() == pytest.approx(np.mean(seen, 0))  # the first count the same
            average.begin()
            assert weights.numpy() == pytest.approx(seen[-1])
    expected = np.mean(seen[:STEPS], 0)
    for value in seen[STEPS:]:
        expected = expected + (value - expected) / STEPS
    average.end()
    assert weights.numpy() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("settings", [RewardModelSettings(hidden=(8,)), RewardModelSettings(hidden=(8,), dropout=0.1)])
def test_a_restored_trainer_fits_on_from_the_same_weights(settings: RewardModelSettings) -> None:
    some = some_comparisons(30, 5)
    trainers = [RewardTrainer(settings, VECTORS, FORCES, held_out_share=0.1, seed=seed) for seed in (0, 1)]
    trainers[0].comparisons.add(some)
    trainers[0].fit(20)
    trainers[1].load_state(trainers[0].state(), Changes(1, some))
    for trainer in trainers:
        trainer.fit(20)
    one, other = (trainer.ensemble.state() for trainer in trainers)
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_fits_go_on_from_the_weights_not_from_their_average() -> None:
    some = some_comparisons(30, 5)
    settings = RewardModelSettings(hidden=(8,), label_noise=0.0)
    whole, halves = (RewardTrainer(settings, VECTORS, FORCES, held_out_share=0.1, seed=0) for _ in range(2))
    for trainer in (whole, halves):
        trainer.comparisons.add(some)
    whole.fit(40)
    halves.fit(20)
    halves.fit(20)
    one, other = (trainer._average.state()["last"]["0"] for trainer in (whole, halves))
    assert one == pytest.approx(other, abs=1e-6)
