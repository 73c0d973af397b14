"""95 % intervals over episodes hold the value of many episodes; `benchmarks/coverage.py` measures all of them."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from benchmarks.coverage import FAMILIES, covers, target_of
from rlhf_ray.measure.intervals import (
    BLOCKS,
    CORRELATION,
    POSITIVE,
    SHARE,
    blocks,
    estimate_mean,
    jackknife,
    jackknife_interval,
    jackknife_rows,
    mean_interval,
)

DATA_SETS = 40
LEAST = int(binom.ppf(1e-3, DATA_SETS, 0.93))
"""The fewest hits of an interval that holds in 93 of 100, once in a thousand tests."""


@pytest.mark.parametrize(
    ("kind", "family"), [*(("correlation", family) for family in FAMILIES), ("pairs in order", "drift")]
)
def test_intervals_of_few_episodes_hold_the_value_of_many_and_tell_something(kind: str, family: str) -> None:
    target = target_of(kind, family)
    rows = {episodes: covers(kind, family, episodes, DATA_SETS, target) for episodes in (3, 9)}
    assert all(row["intervals"] == DATA_SETS and row["hold"] >= LEAST for row in rows.values()), rows
    widths = [row["width"] for row in rows.values()]
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.8


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["EPIC", "STARC", "DARD"])
def test_distances_of_few_episodes_hold_the_value_of_many(kind: str) -> None:
    target = target_of(kind, "drift")
    row = covers(kind, "drift", 5, DATA_SETS, target)
    assert row["intervals"] == DATA_SETS, row
    assert row["hold"] >= LEAST, row


def test_fewer_than_three_groups_have_no_interval_and_an_exact_figure_no_width() -> None:
    assert jackknife_interval(0.5, np.array([0.4, 0.6])) == (None, None)
    assert jackknife_interval(0.5, np.array([0.4, 0.6, math.nan])) == (None, None)  # nothing is left without the third
    for bounds, exact in ((SHARE, 0.0), (SHARE, 1.0), (CORRELATION, -1.0), (POSITIVE, 0.0)):
        rounded = np.array([exact, exact, exact + (1e-9 if exact <= 0 else -1e-9)])
        assert jackknife_interval(exact, rounded, bounds=bounds) == (exact, exact)


def test_a_jackknife_of_a_mean_is_students_interval() -> None:
    values = np.random.default_rng(0).normal(size=12)
    low, high = mean_interval(values.tolist()) or (0, 0)
    of_sums = jackknife(lambda sums: sums[:, 0] / sums[:, 1], np.stack([values, np.ones(12)], 1))
    of_rows = jackknife_rows(lambda at: float(values[at].mean()), np.arange(12))
    of_means = estimate_mean(np.repeat(values, 3), np.repeat(np.arange(12), 3))
    for found in (of_sums, of_rows, of_means):
        assert (found.mean, found.low, found.high) == pytest.approx((values.mean(), low, high))


def test_ends_stay_within_the_bounds_and_long_episodes_widen_them() -> None:
    value, without = 0.97, np.array([0.96, 0.99, 0.95, 0.985])
    low, high = jackknife_interval(value, without, bounds=SHARE)
    assert low is not None
    assert high is not None
    assert 0 < low < value < high < 1
    longer = jackknife_interval(value, without, np.array([1000, 10, 10, 10]), SHARE)
    assert longer[0] is not None
    assert longer[1] is not None
    assert longer[0] < low
    assert longer[1] > high


def test_many_groups_share_blocks() -> None:
    numbers = blocks(np.repeat(np.arange(3, 1003), 2))
    assert numbers.max() == BLOCKS - 1
    assert (numbers[::2] == numbers[1::2]).all()
