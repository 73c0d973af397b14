"""Correlations of a learned with the true reward, and what reward versions say about a fixed set of fragments."""

import math

import numpy as np
import pytest
from scipy import stats

from rlhf_ray.measure.intervals import reward_correlations
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.probe import ProbeReading, learned_rewards
from rlhf_ray.settings import RewardModelSettings
from tests.made_up import CHOICES, FORCES, IMAGES, VECTORS, some_fragments


def test_steps_and_returns_are_correlated_apart() -> None:
    rng = np.random.default_rng(0)
    true = rng.normal(size=(50, 4))
    shaping = rng.normal(size=(50, 5))
    learned = 3 * true + 7 + 2 * np.diff(shaping, axis=1)
    found = reward_correlations(learned, true)
    assert found.fragments == 50
    assert found.steps_linear.mean == pytest.approx(stats.pearsonr(learned.ravel(), true.ravel())[0])
    assert found.steps_rank.mean == pytest.approx(stats.stats.spearmanr(learned.ravel(), true.ravel())[0])
    assert found.returns_linear.mean == pytest.approx(stats.pearsonr(learned.sum(1), true.sum(1))[0])
    assert found.returns_rank.mean == pytest.approx(stats.stats.spearmanr(learned.sum(1), true.sum(1))[0])
    assert found.returns_linear.mean > found.steps_linear.mean  # most shaping cancels
    assert reward_correlations(3 * true + 7, true).steps_linear.mean == pytest.approx(1.0)


def test_unknown_true_rewards_have_no_correlation() -> None:
    found = reward_correlations(np.random.default_rng(0).normal(size=(5, 3)), np.full((5, 3), math.nan))
    assert math.isnan(found.steps_linear.mean)
    assert math.isnan(found.returns_rank.mean)
    with pytest.raises(ValueError, match="fragments, length"):
        reward_correlations(np.zeros((5, 3)), np.zeros((5, 4)))


@pytest.mark.parametrize("weight", [0.0, -1.5])
@pytest.mark.parametrize(("observations", "actions", "network"), [(VECTORS, FORCES, "mlp"), (IMAGES, CHOICES, "cnn")])
def test_rewards_of_fragments_are_those_of_their_steps(observations, actions, network, weight) -> None:  # type: ignore[no-untyped-def]
    ensemble = RewardEnsemble(observations, actions, RewardModelSettings(network=network, hidden=(8,)))
    ensemble.reward_mean.fill_(0.5)
    ensemble.reward_std.fill_(2.0)
    ensemble.deviation_weight.fill_(weight)
    clips = some_fragments(6, 4, observations=observations, actions=actions)
    found = learned_rewards(ensemble, clips)
    for step in range(4):
        terminated = clips.terminated if step == 3 else np.zeros(6, bool)
        steps = (clips.observations[:, step], clips.actions[:, step], clips.observations[:, step + 1], terminated)
        assert found[:, step] == pytest.approx(ensemble.predict(*steps), abs=1e-5)


def test_a_versions_scale_and_origin_leave_gain_and_order_as_they_are() -> None:
    ensemble = RewardEnsemble(VECTORS, FORCES, RewardModelSettings(hidden=(8,)))
    probe, behaviour = some_fragments(20, seed=1), some_fragments(20, seed=2)
    first = ProbeReading.of(ensemble, probe)
    gain = first.gain(float(learned_rewards(ensemble, behaviour).mean()))
    ensemble.reward_mean.add_(3.0)
    ensemble.reward_std.mul_(5.0)
    second = ProbeReading.of(ensemble, probe)
    assert second.mean != pytest.approx(first.mean)
    assert second.gain(float(learned_rewards(ensemble, behaviour).mean())) == pytest.approx(gain, abs=1e-4)
    assert second.drift(first) == pytest.approx(0.0, abs=1e-9)
    assert ProbeReading(2, -first.returns, 0.0, 1.0).drift(first) == pytest.approx(2.0)
    assert first.truth(probe) == pytest.approx(stats.spearmanr(first.returns, probe.returns())[0])
    assert math.isnan(ProbeReading(1, np.zeros(20), 0.0, 0.0).gain(1.0))


def test_true_returns_that_differ_by_rounding_only_have_no_order() -> None:
    rng = np.random.default_rng(0)
    true = np.stack([rng.permutation([-0.1] * 9 + [1.0]) for _ in range(40)])
    learned = rng.normal(size=true.shape)
    found = reward_correlations(learned, true, intervals=False)
    assert np.isnan([found.returns_linear.mean, found.returns_rank.mean]).all()
    true[:20, 0] += 0.3
    found = reward_correlations(learned, true, intervals=False)
    scipy_s = stats.spearmanr(learned.sum(1), np.repeat([1.0, 0.0], 20)).statistic
    assert found.returns_rank.mean == pytest.approx(scipy_s)
