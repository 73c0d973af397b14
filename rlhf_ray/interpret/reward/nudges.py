"""Noise: how much of a reward changes between steps that are nearly the same.

A reward is a function, so noise in it is one too: of digits that no task has. Numbers of an observation are nudged by a hundredth
of their spread; what that changes, no agent can follow.
"""

from __future__ import annotations

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.over_episodes import OverEpisodes, over_episodes
from rlhf_ray.measure.intervals import SHARE
from rlhf_ray.reward.functions import RewardFunction

NEAR = 0.01
"""Standard deviation of a nudge, in those of the number. A threshold in the middle of a normal number is crossed by 0.3 % of steps,
which is 0.6 % of the variance; a sine with three periods in four standard deviations changes by 0.1 %."""
NOISY, ONLY = 0.05, 0.9
"""Shares of the variance from which a reward is noisy, and is noise alone, with the whole interval: eight thresholds stay below."""
VALUES = 20
"""A number of at most so many values is a choice, and is not nudged."""
DRAWS = 200


def nudged(data: Transitions, of: Transitions, rng: np.random.Generator) -> Transitions | None:
    """Return steps with each number of their observations moved by about `NEAR` of its spread, alike before and after the step.

    Numbers stay between the least and the largest of ``of``: outside, the reward may not be defined.

    Args:
        data: the steps to move.
        of: steps that tell the spreads.
        rng: draws the nudges.

    Returns:
        None if observations have no numbers to move.
    """
    if of.observations.dtype.kind != "f" or of.observations.ndim != 2 or len(of) < 2:
        return None
    many = np.array([len(np.unique(column)) > VALUES for column in of.observations.T])
    spread = NEAR * of.observations.std(0, dtype=np.float64) * many
    if not spread.any():
        return None
    by = rng.normal(size=data.observations.shape) * spread
    seen = of.observations, of.next_observations
    low, high = np.minimum(*(each.min(0) for each in seen)), np.maximum(*(each.max(0) for each in seen))
    moved = {
        name: np.clip(getattr(data, name) + by, low, high).astype(data.observations.dtype)
        for name in ("observations", "next_observations")
    }
    return data.with_(**moved)


def noise_share(reward: RewardFunction, data: Transitions, rng: np.random.Generator) -> OverEpisodes | None:
    """Measure the share of a reward's variance that is not told by steps that are nearly the same; None if that can't be asked.

    Two draws of independent noise differ by twice its variance.
    """
    moved = nudged(data, data, rng)
    if moved is None:
        return None
    given = reward.of(data)
    half: FloatArray = (reward.of(moved) - given) ** 2 / 2 / max(float(given.var()), 1e-300)
    return over_episodes(lambda at: float(half[at].mean()), data.episodes, SHARE)
