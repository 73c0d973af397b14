"""Proxies: parts that a reward looks at in place of others, which go with them and which the true reward looks at.

Where two features nearly always go together, an exchange of one in a stand-in for the true reward tells little: forests use both.
But each adds something to everything else of a step, its own part, and only what the true reward looks at does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.association import NEEDED, added
from rlhf_ray.interpret.reward.findings import CLEAR, Cause, Findings
from rlhf_ray.interpret.reward.over_episodes import OverEpisodes
from rlhf_ray.interpret.effects.regions import Regions
from rlhf_ray.measure.statistics import spearman

ALIKE = 0.7
"""Rank correlation from which one feature may stand for another: half of the variance is shared."""


@dataclass(frozen=True)
class Proxy:
    """A feature that the reward looks at in place of another.

    Attributes:
        cause: the feature that the reward looks at.
        of: the feature that it ignores.
        correlation: rank correlation of the two.
        adds: what the first adds to everything else that tells the true reward: a share of its variance, R².
        needed: the same of the second.
    """

    cause: Cause
    of: str
    correlation: float
    adds: OverEpisodes
    needed: OverEpisodes


def proxies(found: Findings, data: Transitions, regions: Regions) -> Iterator[Proxy]:
    """Yield causes that stand for a feature that the reward ignores and the true reward needs.

    Args:
        found: what moves the reward.
        data: steps with recorded true rewards.
        regions: features.
    """
    ignored = [i for i, name in enumerate(regions.names) if name in found.ignored]
    for cause in found.causes:
        if len(cause.regions) > 1 or cause.effect.moves < CLEAR:
            continue
        alike = {other: _alike(data, regions, cause.regions[0], other) for other in ignored}
        nearest = max(alike, key=lambda other: abs(alike[other]), default=None)
        if nearest is None or abs(alike[nearest]) < ALIKE:
            continue
        both = added(data, regions, (cause.mask, regions.masks[nearest]))
        if both is not None and both[1].low > max(NEEDED, both[0].high):
            yield Proxy(cause, regions.names[nearest], alike[nearest], *both)


def _alike(data: Transitions, regions: Regions, first: int, second: int) -> float:
    one, other = (data.next_observations[:, regions.masks[i]][:, 0] for i in (first, second))
    return spearman(one, other, 0.0)
