"""A kind of step on which a reward has the true order backwards, although it has it elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rlhf_ray.data.arrays import BoolArray, FloatArray, IntArray
from rlhf_ray.interpret.reward.over_episodes import OverEpisodes, over_episodes
from rlhf_ray.interpret.reward.strata import Condition, Steps, conditions_on, moved
from rlhf_ray.measure.statistics import spearman
from rlhf_ray.study.figures import DRAWN

CLEAR = 0.5
"""Rank correlation with the true reward: with its whole interval below minus this on such steps, and above it on all others."""
BETTER = 1.2
"""Factor by which a falling line must explain more than any level does: else such steps get too much or too little."""
DRAWS = 200


@dataclass(frozen=True)
class Reversal:
    """Steps on which a reward falls with the true one.

    Attributes:
        condition: what these steps have in common, in words.
        share: their share of the data.
        agreement: rank correlation with the true reward on them.
        elsewhere: on all others.
        chosen: which steps, ``[n]`` bool.
    """

    condition: str
    share: float
    agreement: OverEpisodes
    elsewhere: OverEpisodes
    chosen: BoolArray = field(metadata=DRAWN)


def reversed_where(given: FloatArray, usual: FloatArray, steps: Steps) -> Reversal | None:
    """Find the condition on whose steps a falling line of ``usual`` explains most of the difference from it.

    Args:
        given: the rewards, ``[n]``.
        usual: what steps of the same true rewards usually get, ``[n]``.
        steps: the steps.
    """
    truth = steps.data.rewards
    conditions: Sequence[Condition] = conditions_on(steps) if np.ptp(given) > 0 and np.ptp(usual) > 0 else []
    if not conditions:
        return None

    def explained(masks: BoolArray) -> FloatArray:
        by_level, by_line = _explained(given, usual, masks)
        return np.where(by_line > BETTER * by_level, by_line, 0)

    masks = np.stack([each.mask for each in conditions])
    levels = _explained(given, usual, masks)[0].max()
    gains = explained(masks)
    best = int(gains.argmax())
    if gains[best] <= BETTER * levels:
        return None
    found = moved(conditions[best], np.ones(len(given), bool), lambda masks: int(explained(masks).argmax()))

    def agreement(at: BoolArray) -> OverEpisodes:
        def figure(drawn: IntArray) -> float:
            return spearman(given[at][drawn], truth[at][drawn], 0.0)

        return over_episodes(figure, steps.data.episodes[at], np.random.default_rng(0), DRAWS)

    there, elsewhere = agreement(found.mask), agreement(~found.mask)
    if not (there.below(-CLEAR) and elsewhere.beyond(CLEAR)) or np.isnan(there.low):
        return None
    return Reversal(found.name, float(found.mask.mean()), there, elsewhere, found.mask)


def _explained(given: FloatArray, usual: FloatArray, masks: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return what a level, and what a falling line of ``usual``, explain of the squared difference on the steps of each mask."""
    rows = masks.astype(np.float64)
    count = np.maximum(rows.sum(1), 1)
    given, usual = given - usual.mean(), usual - usual.mean()
    g, u, gg, uu, gu = (rows @ column / count for column in (given, usual, given**2, usual**2, given * usual))
    spread, shared = uu - u**2, gu - g * u
    line = np.where(spread > 1e-12, shared**2 / np.where(spread > 1e-12, spread, 1), 0)
    before, after = gg - 2 * gu + uu, gg - g**2 - line
    return count * (g - u) ** 2, np.where(shared < 0, count * (before - after), 0)
