"""Adjectives hang on whole intervals: above, below, or not told."""

import math

import numpy as np
import pytest

from rlhf_ray.interpret.reward.over_episodes import OverEpisodes, over_episodes


@pytest.mark.parametrize(
    ("value", "low", "high", "above", "below"),
    [
        (0.82, 0.80, 0.84, False, True),
        (0.95, 0.93, 0.97, True, False),
        (0.91, 0.88, 0.93, None, False),
        (0.88, 0.86, 0.92, None, False),
        (0.95, math.nan, math.nan, None, False),  # too few episodes for an interval: undecided
        (0.82, math.nan, math.nan, None, False),
        (math.nan, math.nan, math.nan, None, False),
    ],
)
def test_a_bound_within_the_interval_decides_nothing(value, low, high, above, below):
    figure = OverEpisodes(value, low, high)
    assert (figure.beyond(0.9), figure.below(0.9)) == (above, below)


def test_the_interval_of_a_mean_is_that_of_the_episodes_means():
    rng = np.random.default_rng(0)
    of_episodes = rng.normal(size=30)
    values, episodes = np.repeat(of_episodes, 10), np.repeat(np.arange(30), 10)
    found = over_episodes(lambda at: float(values[at].mean()), episodes)
    error = of_episodes.std(ddof=1) / np.sqrt(30)
    assert found.value == pytest.approx(of_episodes.mean())
    assert found.high - found.low == pytest.approx(2 * 2.045 * error, rel=0.03)
