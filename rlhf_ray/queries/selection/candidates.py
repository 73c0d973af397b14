"""The interface of a selection: it scores candidate pairs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.data.comparisons import numbers_of
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Fragments


def _no_pairs() -> IntArray:
    return np.zeros((0, 2), dtype=np.int64)


@dataclass(frozen=True)
class Candidates:
    """Candidate pairs to select from.

    Attributes:
        index: ``[m, 2]`` int64: positions of each pair's left and right fragment in ``fragments``.
        fragments: the ``n`` fragments.
        returns: ``[members, n]`` float32: each ensemble member's predicted return of each fragment, on the likelihood's scale:
            the difference of two is the pair's logit. None before the first reward version.
        count: number of pairs wanted, at least 1: those with the highest scores are asked about.
        asked: ``[k, 2]`` int64: the pairs asked earlier whose fragments are both still in ``fragments``, as positions there.
        label_noise: the share of random answers that the newest fit found; 0 before the first.
    """

    index: IntArray
    fragments: Fragments
    returns: FloatArray | None
    count: int = 1
    asked: IntArray = field(default_factory=_no_pairs)
    label_noise: float = 0.0

    @cached_property
    def logits(self) -> FloatArray:
        """``[members, m]`` float32: each member's log odds that the left fragment of each pair is preferred.

        Raises:
            SettingError: there is no reward model yet.
        """
        if self.returns is None:
            raise SettingError(
                "preferences.selection reads candidates.logits before there is a reward model: set its needs_reward to True to ask "
                "about random pairs until then, or check candidates.returns for None."
            )
        logits: FloatArray = self.returns[:, self.index[:, 0]] - self.returns[:, self.index[:, 1]]
        return logits

    @cached_property
    def probabilities(self) -> FloatArray:
        """``[members, m]`` float32: each member's probability that the left fragment of each pair is preferred.

        Raises:
            SettingError: there is no reward model yet.
        """
        probabilities: FloatArray = 1.0 / (1.0 + np.exp(-np.clip(self.logits, -50.0, 50.0)))
        return probabilities


class Selection(Protocol):
    """Scores candidate pairs. The pairs with the highest scores are asked about.

    The constructor of a custom selection may take ``reward_model``, the `RewardModelSettings`.
    """

    needs_reward: bool
    """Whether scores use the ensemble's predictions. If so, random pairs are asked about until there is a reward model."""

    def score(self, candidates: Candidates, rng: np.random.Generator) -> FloatArray:
        """Score each candidate.

        Args:
            candidates: the ``m`` candidate pairs.
            rng: source of randomness.

        Returns:
            ``[m]`` float: higher is better. Earlier candidates win ties.
        """
        ...


def best(selection: Selection, candidates: Candidates, count: int, rng: np.random.Generator) -> IntArray:
    """Return the positions of the ``count`` candidates with the highest scores, best first; earlier candidates win ties.

    Raises:
        SettingError: the selection doesn't return one number per candidate.
    """
    scored = selection.score(candidates, rng)
    scores = numbers_of(scored)
    if scores is None or scores.shape != (len(candidates.index),) or np.isnan(scores).any():
        nan = "" if scores is None or not np.isnan(scores).any() else ", some of them NaN"
        what = f"{type(scored).__name__}, not numbers" if scores is None else f"scores of shape {scores.shape}{nan}"
        raise SettingError(
            f"preferences.selection is {type(selection).__name__}, and for {len(candidates.index)} candidate pairs it returned "
            f"{what}: it must return one number per candidate."
        )
    order: IntArray = np.argsort(-scores, kind="stable")
    return order[:count]


def choose(selection: Selection, candidates: Candidates, count: int, rng: np.random.Generator) -> IntArray:
    """Return the ``count`` candidates with the highest scores, ``[min(count, m), 2]``; earlier candidates win ties."""
    return candidates.index[best(selection, candidates, count, rng)]
