"""The compared fragments of a report."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.runs.report.clips import show_pairs
from rlhf_ray.settings import RewardModelSettings
from tests.made_up import FORCES, VECTORS, some_comparisons


def test_learned_returns_are_sums_of_the_rewards_that_predict_returns() -> None:
    torch.manual_seed(0)
    ensemble = RewardEnsemble(VECTORS, FORCES, RewardModelSettings(hidden=(8,), ensemble_size=3))
    ensemble.reward_mean.copy_(torch.tensor([40.0, -7.0, 3.0]))  # far from the likelihood's scale
    ensemble.reward_std.copy_(torch.tensor([2.0, 0.5, 9.0]))
    comparisons = some_comparisons(3)
    sides = (comparisons.pairs.left, comparisons.pairs.right)
    shown = show_pairs(comparisons, ensemble, 3)
    assert len(shown) == 3
    for i, pair in enumerate(shown):
        for side, of in zip((pair.left, pair.right), sides, strict=True):
            seen, ended = of.observations[i], np.arange(of.length) == of.length - 1
            steps = ensemble.predict(seen[:-1], of.actions[i], seen[1:], ended & of.terminated[i])
            assert side.learned_return == pytest.approx(steps.sum(), abs=1e-4)
