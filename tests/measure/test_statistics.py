"""The package's statistics against scipy's and scikit-learn's, with ties, and what they say of data that define nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score

from rlhf_ray.measure.statistics import auc, constant, discoveries, pearson, ranks, spearman

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
