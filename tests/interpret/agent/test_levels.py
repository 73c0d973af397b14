"""Distinct levels: of a world with few, the sample is these."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhf_ray.data.arrays import Array
from rlhf_ray.interpret.agent.subject import AgentSubject
from rlhf_ray.measure.intervals import MeanEstimate, estimate_difference, estimate_mean, weighted_contrast
from tests.agents.test_play import agent_of
from tests.interpret.agent.corridor import Corridors


class FewCorridors(Corridors):
    """Corridors of ``kinds`` different levels."""

    kinds = 5

    def reset(self, levels: Sequence[int]) -> Array:
        return super().reset([level % self.kinds + 7 for level in levels])


def test_levels_with_the_same_content_are_one() -> None:
    subject = AgentSubject(agent_of("gru", False), "Few", batches=FewCorridors)
    levels = np.array([0, 5, 1, 6, 12, 0, 3, 4])
    drawn = [np.random.default_rng(level % 5 + 7) for level in levels]
    what = np.array([(int(rng.integers(3, 7)), int(rng.integers(2))) for rng in drawn])
    groups = subject.groups(levels)
    for first in range(len(levels)):
        for second in range(len(levels)):
            assert (groups[first] == groups[second]) == (what[first] == what[second]).all()
    assert len(np.unique(AgentSubject(agent_of("gru", False), "All", batches=Corridors).groups(range(60)))) == 8


def test_differences_between_cells_have_the_widths_of_their_formula() -> None:
    rng = np.random.default_rng(0)
    values, chosen = rng.normal(0.0, 1.0, 800), np.arange(800) % 4 == 0
    values[chosen] += 1.0

    def width(estimate: MeanEstimate) -> float:
        assert estimate.low is not None
        assert estimate.high is not None
        return estimate.high - estimate.low

    one = estimate_difference(values, chosen)
    error = np.sqrt(values[chosen].var() / 200 + values[~chosen].var() / 600)
    np.testing.assert_allclose(one.mean, values[chosen].mean() - values[~chosen].mean())
    np.testing.assert_allclose(width(one) / (2 * 1.96 * error), 1.0, atol=0.1)
    # Every value a group of two: nothing is gained by counting it twice.
    twice = estimate_difference(np.repeat(values, 2), np.repeat(chosen, 2), np.repeat(np.arange(800), 2))
    np.testing.assert_allclose([twice.mean, width(twice)], [one.mean, width(one)])
    wide, narrow = estimate_mean(values, tests=10), estimate_mean(values)
    np.testing.assert_allclose(width(wide) / width(narrow), 2.807 / 1.96, rtol=0.08)  # z of 0.9975
    assert np.isnan(weighted_contrast(values, np.zeros((800, 2)), np.array([1.0, -1.0])).mean)
