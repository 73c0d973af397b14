"""What the members of an ensemble are fitted to: bootstrap weights, and that no member touches another."""

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray.reward import comparison_set
from rlhf_ray.reward.comparison_set import bootstrap_weights
from tests.made_up import CHOICES, FORCES, IMAGES, VECTORS, some_comparisons
from tests.reward.test_trainer import CERTAIN, SMALL, _same, _trainer


@pytest.mark.parametrize("switch", [{"bootstrap": False}, {"ensemble_size": 1}])
def test_without_bootstrap_every_comparison_counts_once(
    monkeypatch: pytest.MonkeyPatch, switch: dict[str, Any]
) -> None:
    settings = dataclasses.replace(SMALL, **switch)
    comparisons = some_comparisons(10)
    plain = _trainer(settings, comparisons)
    plain.fit(5)
    monkeypatch.setattr(
        comparison_set, "bootstrap_weights", lambda ids, members: np.ones((members, len(ids)), np.float32)
    )
    ones = _trainer(dataclasses.replace(settings, bootstrap=True, ensemble_size=settings.ensemble_size), comparisons)
    ones.fit(5)
    assert _same(plain, ones)


def test_each_members_sample_is_four_fifths_of_the_comparisons_and_adds_little_noise() -> None:
    ids = [str(i) for i in range(20_000)]
    weights = bootstrap_weights(ids, 3)
    assert weights.shape == (3, 20_000)
    assert weights.dtype == np.float32
    assert set(weights.ravel().tolist()) == {0.0, 1.25}
    assert np.abs((weights > 0).mean(1) - 0.8).max() < 4 * np.sqrt(0.8 * 0.2 / 20_000)
    assert np.abs(np.corrcoef(weights) - np.eye(3)).max() < 0.03
    # The variance of a mean of weighted gradients, times that of plain ones.
    assert (weights**2).mean() / weights.mean() ** 2 == pytest.approx(1.25, abs=0.01)


def test_bootstrap_weights_stay_when_comparisons_are_added_or_reordered() -> None:
    ids = [str(i) for i in range(50)]
    weights = bootstrap_weights(ids, 2)
    assert np.array_equal(bootstrap_weights(ids[:20], 2), weights[:, :20])
    assert np.array_equal(bootstrap_weights(ids[::-1], 2), weights[:, ::-1])
    assert np.array_equal(bootstrap_weights(ids, 5)[:2], weights)


@pytest.mark.parametrize(("observations", "actions"), [(VECTORS, FORCES), (IMAGES, CHOICES)])
def test_members_do_not_touch_each_other(
    monkeypatch: pytest.MonkeyPatch, observations: gym.spaces.Box, actions: gym.Space[Any]
) -> None:
    comparisons = some_comparisons(10, 3, observations=observations, actions=actions)
    states = []
    for factor in (1.0, 3.0):

        def weights(ids: Any, members: int, factor: float = factor) -> Any:
            drawn = bootstrap_weights(ids, members)
            drawn[1] *= np.arange(len(ids)) ** factor
            return drawn

        monkeypatch.setattr(comparison_set, "bootstrap_weights", weights)
        # Without an estimate of errors, for which members judge each other's comparisons.
        trainer = _trainer(CERTAIN, comparisons, observations=observations, actions=actions)
        trainer.fit(5)
        states.append(trainer.ensemble.state())
    one, other = states
    for name in one:
        if name.startswith("networks.convolutions"):
            same = np.array_equal(one[name], other[name])
            assert same == (not name.startswith("networks.convolutions.1.")), name
        elif one[name].ndim:  # one value per member
            assert np.array_equal(one[name][[0, 2]], other[name][[0, 2]]), name
            if name != "networks.head.layers.2.bias":  # no comparison depends on the last bias
                assert not np.array_equal(one[name][1], other[name][1]), name
