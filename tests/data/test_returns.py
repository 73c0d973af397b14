"""Returns that are equal but for rounding, whatever the order of their rewards; and none that differ."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.comparisons import differences, rounding, settled, spread_of


def exact(rewards: FloatArray) -> list[Fraction]:
    """The returns without rounding, of rewards that are meant to be decimal numbers."""
    return [sum((Fraction(str(value)) for value in row), Fraction()) for row in rewards.tolist()]


def shuffled(values: list[float], rows: int, seed: int = 0) -> FloatArray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.permutation(values) for _ in range(rows)])


@pytest.mark.parametrize(
    "values",
    [
        [-0.1] * 10 + [1.0],
        [0.1, 0.2, -0.3, 0.7] * 12,
        [1e6, 0.1, -1e6, 0.3],
        [1 / 3, 2 / 3, 1e-9, -5.7] * 250,
        [-0.01] * 100 + [1.0],
    ],
)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_same_rewards_in_another_order_are_a_tie(values: list[float], dtype: type) -> None:
    left, right = (shuffled(values, 40, seed).astype(dtype) for seed in (1, 2))
    assert not differences(left, right).any()
    assert len(set(settled(np.concatenate([left, right])).tolist())) == 1


def test_other_rewards_of_the_same_sum_are_a_tie() -> None:
    left, right = np.array([[0.3, 0.0, 0.0], [0.0, 0.0, 1.0]]), np.array([[0.1, 0.1, 0.1], [0.7, 0.2, 0.1]])
    for dtype in (np.float64, np.float32):  # float32 numbers that a store returns as float64 too
        given = [np.asarray(side, dtype) for side in (left, right)]
        assert not differences(*given).any()
        assert not differences(*(side.astype(np.float64) for side in given)).any()


def test_discounts_that_make_two_returns_equal_are_a_tie() -> None:
    weights = 0.9 ** np.arange(3)
    left, right = np.array([[0.9, 0.0, 0.0]]), np.array([[0.0, 1.0, 0.0]])
    assert not differences(left, right, weights).any()
    assert differences(left, right).round(9).tolist() == [-0.1]


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_different_returns_is_that_of_exact_arithmetic(seed: int) -> None:
    rng = np.random.default_rng(seed)
    left, right = (rng.choice([-0.1, 0.25, 0.7, -3.3, 1e-6, 12.0], (500, 30)) for _ in range(2))
    right[:50] = rng.permuted(left[:50], axis=1)
    expected = [int(np.sign(a - b)) for a, b in zip(exact(left), exact(right), strict=True)]
    assert np.sign(differences(left, right)).astype(int).tolist() == expected
    errors = [abs(float(Fraction(float(got)) - want)) for got, want in zip(left.sum(1), exact(left), strict=True)]
    assert (np.array(errors) <= rounding(left)).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_whole_numbers_are_exact_however_large(dtype: type) -> None:
    left = np.full((1, 100), 65_536, dtype)
    right = left.copy()
    right[0, 3] += 1
    assert differences(left, right).tolist() == [-1.0]


def test_small_differences_of_large_returns_count() -> None:
    left = np.full((1, 50), 0.1)
    right = left + np.eye(1, 50) * 1e-9
    assert differences(left, right)[0] == pytest.approx(-1e-9)
    assert np.isnan(differences(left * np.nan, right)).all()
    assert settled(np.zeros((2, 3))).tolist() == [0.0, 0.0]
    assert settled(np.empty((0, 3))).shape == (0,)


def test_the_spread_is_a_quantile_of_the_distances_of_random_pairs() -> None:
    rng = np.random.default_rng(0)
    for count in (2, 3, 100, 256):
        returns = rng.normal(5.0, 3.0, count)
        apart = [abs(one - other) for i, one in enumerate(returns) for other in returns[:i]]
        assert spread_of(returns) == pytest.approx(np.quantile(apart, 0.95))
    assert spread_of(np.array([])) == spread_of(np.array([3.0])) == spread_of(np.full(1000, 3.0)) == 0.0
    assert np.isnan(spread_of(np.array([1.0, np.nan])))
    # Many: a normal distribution's distances are normal with twice the variance; 1.96 of it has 95 % within.
    many = rng.normal(5.0, 3.0, 50_000)
    assert spread_of(many) == pytest.approx(1.96 * 3.0 * np.sqrt(2), rel=0.02)
    assert spread_of(many) == spread_of(many[::-1])
