"""A reward with its shortcuts held: what is left of it beside the true reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.equivalence import HOLDS
from rlhf_ray.interpret.reward.findings import Cause
from rlhf_ray.interpret.reward.lags import Lag, lag_of
from rlhf_ray.interpret.reward.over_episodes import OverEpisodes, over_episodes
from rlhf_ray.measure.intervals import CORRELATION
from rlhf_ray.measure.statistics import constant, spearman
from rlhf_ray.reward.functions import RewardFunction

OPPOSITE = 0.5
"""Rank correlation with the true reward: with its whole interval below minus this, the rest goes the other way round."""
DRAWS = 100


@dataclass(frozen=True)
class HeldReward:
    """A reward while parts of the observation show their usual value, beside the true reward.

    Attributes:
        names: the parts.
        agreement: rank correlation.
        as_it_is: the same of the reward as it is.
        lag: how it follows the true reward.
    """

    names: tuple[str, ...]
    agreement: OverEpisodes
    as_it_is: float
    lag: Lag

    @property
    def opposite(self) -> bool:
        """Whether what is left orders steps the other way round, which the reward as it is does not."""
        return self.agreement.below(-OPPOSITE) and self.as_it_is > -OPPOSITE

    @property
    def late(self) -> bool:
        """Whether what is left is the true reward of another step."""
        return self.lag.off and self.lag.correlation >= HOLDS**0.5


def held(
    reward: RewardFunction, data: Transitions, causes: Sequence[Cause], rng: np.random.Generator
) -> HeldReward | None:
    """Hold ``causes`` at the median of the data, before and after the step; None if either reward is then constant."""
    mask = np.any([cause.mask for cause in causes], 0)
    usual = np.median(np.concatenate([data.observations, data.next_observations]), 0).astype(data.observations.dtype)
    both = {name: np.where(mask, usual, getattr(data, name)) for name in ("observations", "next_observations")}
    given, truth = reward.of(data.with_(**both)), data.rewards
    if constant(given) or constant(truth):
        return None
    agreement = over_episodes(lambda at: spearman(given[at], truth[at], 0.0), data.episodes, CORRELATION)
    as_it_is = spearman(reward.of(data), truth, 0.0)
    return HeldReward(tuple(cause.name for cause in causes), agreement, as_it_is, lag_of(given, truth, data, rng))
