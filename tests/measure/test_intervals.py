from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score

from rlhf_ray.measure.intervals import (
    linear_correlation,
    mean_interval,
    rank_correlation,
    reward_correlations,
    share_interval,
)
from rlhf_ray.measure.statistics import auc, constant, discoveries, pearson, ranks, spearman
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.probe import ProbeReading, learned_rewards
from rlhf_ray.settings import RewardModelSettings
from tests.made_up import CHOICES, FORCES, IMAGES, VECTORS, some_fragments


@pytest.mark.parametrize(
    ("count", "quantile"), [(2, 12.706), (5, 2.776), (10, 2.262), (31, 2.042)]
)  # any table of Student's t
def test_the_interval_is_students(count: int, quantile: float) -> None:
    values = [float(i * i) for i in range(count)]
    low, high = mean_interval(values) or (0, 0)
    half = quantile * statistics.stdev(values) / count**0.5
    assert low == pytest.approx(statistics.mean(values) - half, rel=1e-3, abs=1e-3 * half)
    assert high == pytest.approx(statistics.mean(values) + half, rel=1e-3)


def test_one_value_has_none_and_equal_ones_no_width() -> None:
    assert mean_interval([3.0]) is None
    assert mean_interval([3.0, 3.0]) == [3.0, 3.0]


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"), [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (8, 10, 0.4902, 0.9433)]
)  # any table of Wilson's interval
def test_a_shares_interval_is_wilsons(successes: int, trials: int, low: float, high: float) -> None:
    found = share_interval(successes, trials)
    assert (found.mean, found.low, found.high) == (
        successes / trials,
        pytest.approx(low, abs=1e-4),
        pytest.approx(high, abs=1e-4),
    )
    assert math.isnan(share_interval(0, 0).mean)


def test_correlations_are_scipys() -> None:
    rng = np.random.default_rng(0)
    first = rng.integers(0, 20, 500).astype(float)  # with ties
    second = first**3 + 500 * rng.normal(size=500)
    assert linear_correlation(first, second).mean == pytest.approx(stats.pearsonr(first, second)[0])
    assert rank_correlation(first, second).mean == pytest.approx(stats.spearmanr(first, second)[0])


def test_values_of_a_group_are_drawn_together() -> None:
    """Ten equal values in a group say no more than one: the interval is as wide as that of the groups."""
    rng = np.random.default_rng(2)
    first, second = rng.normal(size=(2, 30))
    one = linear_correlation(first, second)
    ten = linear_correlation(np.repeat(first, 10), np.repeat(second, 10), np.repeat(np.arange(30), 10))
    assert (ten.mean, ten.low, ten.high) == (pytest.approx(one.mean), pytest.approx(one.low), pytest.approx(one.high))


@pytest.mark.parametrize("values", [[1.0, 1.0, 1.0, 1.0], [1.0, math.nan, 2.0, 3.0]])
def test_a_correlation_with_a_constant_or_unknown_values_is_unknown(values: list[float]) -> None:
    for correlation in (linear_correlation, rank_correlation):
        found = correlation(np.array(values), np.arange(4.0))
        assert math.isnan(found.mean)
        assert found.low is None


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


SOME = st.lists(st.integers(-3, 3), min_size=3, max_size=40).map(lambda values: np.array(values, float))


@given(SOME, st.randoms(use_true_random=False))
def test_as_scipy_and_scikit_learn_with_ties(first: np.ndarray, random: object) -> None:
    second = np.array([random.randint(-2, 2) for _ in first], float)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(ranks(first), stats.rankdata(first))
    if np.ptp(first) and np.ptp(second):
        assert pearson(first, second) == pytest.approx(stats.pearsonr(first, second)[0], abs=1e-9)
        assert spearman(first, second) == pytest.approx(stats.spearmanr(first, second)[0], abs=1e-9)
    if len(np.unique(second > 0)) == 2:
        assert auc(first, second > 0) == pytest.approx(roc_auc_score(second > 0, first))


def test_what_is_not_defined_is_nan_or_what_the_caller_says() -> None:
    same, other = np.full(5, 0.1) + np.arange(5) * 1e-18, np.arange(5.0)
    assert constant(same)
    assert constant(np.zeros(4))
    assert constant(np.zeros(0))
    assert not constant(other)
    for figure in (pearson, spearman):
        for sample in (same, np.array([0, 1, math.nan, 2, 3]), np.array([0, 1, math.inf, 2, 3])):
            assert math.isnan(figure(sample, other))
            assert figure(other, sample, 0.0) == 0.0
    assert math.isnan(auc(other, np.zeros(5, bool)))
    assert auc(other, np.ones(5, bool), 0.5) == 0.5
    assert auc(np.array([0, 1, math.nan, 2, 3]), other > 2, 0.5) == 0.5
    assert math.isnan(ranks(np.array([2.0, math.nan, 1.0]))[1])
    assert ranks(np.array([2.0, math.inf, 1.0])).tolist() == [2, 3, 1]


def test_discoveries_are_those_of_the_threshold_of_benjamini_and_hochberg() -> None:
    p = np.random.default_rng(0).random((6, 5)) ** 4
    flat = np.sort(p, axis=None)
    below = np.flatnonzero(flat <= 0.05 * np.arange(1, 31) / 30)
    np.testing.assert_array_equal(discoveries(p, 0.05), p <= flat[below[-1]])
    assert not discoveries(np.ones((2, 3)), 0.05).any()
    assert discoveries(np.zeros((0, 0)), 0.05).shape == (0, 0)
