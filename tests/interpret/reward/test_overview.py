"""How steps are ordered, ties aside, beside all pairs."""

import numpy as np
import pytest

from rlhf_ray.interpret.reward.steps.overview import _correlations


def of(given, true):
    return _correlations(true, given, np.arange(len(true)) // 20, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("function", "ties"),
    [
        (np.floor, True),
        (np.sign, True),
        (lambda x: np.round(2 * x) / 2, True),
        (lambda x: np.where(x > 1, -1.0, np.floor(x)), False),
    ],
)
def test_ties_are_told_from_pairs_in_another_order(function, ties):
    true = np.random.default_rng(0).normal(size=600)
    given = function(true)
    found = of(given, true)
    one, other = np.triu_indices(len(true), 1)
    alike = np.sign(given[one] - given[other]) * np.sign(true[one] - true[other])
    assert found.pairs.value == pytest.approx((alike.mean() + 1) / 2, abs=0.01)
    assert found.untied.value == pytest.approx((alike > 0).sum() / (alike != 0).sum(), abs=0.01)
    assert found.but_for_ties is ties


def test_without_ties_there_is_nothing_to_leave_out():
    true = np.random.default_rng(0).normal(size=600)
    assert of(true**3, true).untied is None
    assert not of(-true, true).but_for_ties
