import math
import statistics

import numpy as np
import pytest
from scipy import stats

from rlhf_ray.measure.intervals import linear_correlation, mean_interval, rank_correlation, share_interval


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


def test_an_interval_of_a_correlation_covers_it_as_often_as_it_says() -> None:
    rng, covered = np.random.default_rng(1), 0
    for _ in range(200):
        first = rng.normal(size=100)
        found = linear_correlation(first, 0.6 * first + 0.8 * rng.normal(size=100))
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 0.6 <= found.high
    assert covered > 180


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
