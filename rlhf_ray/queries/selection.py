"""Selection: which pairs of fragments to ask about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rlhf_ray.data.arrays import BoolArray, FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.data.registry import Registry


def random_pairs(
    fragments: int, count: int, rng: np.random.Generator, favoured: BoolArray | None = None, share: float = 0.0
) -> IntArray:
    """``count`` different pairs drawn at random from ``fragments`` fragments, no fragment paired with itself.

    A fragment is used again only after all others have been, so that labels are spread over as many clips as there are.

    Args:
        fragments: how many there are.
        count: pairs wanted.
        rng: source of the draws.
        favoured: ``[fragments]`` bool: fragments of which each draw takes one with probability ``share``, however few they
            are; None: no such.
        share: between 0 and 1.

    Returns:
        ``[m, 2]`` int64 positions; ``m < count`` only when fewer than ``count`` different pairs exist.
    """
    if favoured is None or not favoured.any() or favoured.all() or (share == 1.0 and favoured.sum() < 2):
        favoured, share = np.zeros(fragments, dtype=bool), 0.0
    first, rest = _Deck(np.flatnonzero(favoured), rng), _Deck(np.flatnonzero(~favoured), rng)
    if share == 0.0:
        rest = _Deck(np.arange(fragments), rng)
    drawable = len(first.positions) if share == 1.0 else fragments
    count = min(count, drawable * (drawable - 1) // 2)
    pairs: dict[tuple[int, int], tuple[int, int]] = {}
    while len(pairs) < count:
        left = (first if share and rng.random() < share else rest).deal()
        right = (first if share and rng.random() < share else rest).deal(other_than=left)
        if left != right:
            pairs.setdefault((min(left, right), max(left, right)), (left, right))
    return np.array(list(pairs.values()), dtype=np.int64).reshape(-1, 2)


class _Deck:
    """Deals positions in random order, and again in a new order when all have been dealt."""

    def __init__(self, positions: IntArray, rng: np.random.Generator):
        self.positions, self._rng = positions, rng
        self._left: list[int] = []

    def deal(self, other_than: int | None = None) -> int:
        """The next position; where that is ``other_than``, the one after it, if there is another one at all."""
        if not self._left:
            self._left = self._rng.permutation(self.positions).tolist()
            if self._left[0] == other_than:
                self._left.append(self._left.pop(0))
        return self._left.pop(0)


@dataclass(frozen=True)
class Candidates:
    """Pairs that could be asked about.

    Attributes:
        index: ``[m, 2]`` int64: positions of the left and the right fragment of each pair.
        fragments: ``n`` of them, which the positions are of.
        returns: ``[members, n]`` float32: the return that each member of the reward ensemble predicts for each fragment, on the
            likelihood's scale: their difference is a pair's logit. None before the first version.
    """

    index: IntArray
    fragments: Fragments
    returns: FloatArray | None

    @property
    def logits(self) -> FloatArray:
        """``[members, m]``: by each member, the log odds that the left fragment of each pair is preferred.

        Raises:
            SettingError: there is no reward yet.
        """
        if self.returns is None:
            raise SettingError(
                "preferences.selection takes candidates.logits before there is a reward model: set its needs_reward to True, and "
                "random pairs are asked about until then; or look whether candidates.returns is None."
            )
        logits: FloatArray = self.returns[:, self.index[:, 0]] - self.returns[:, self.index[:, 1]]
        return logits


class Selection(Protocol):
    """Scores candidate pairs. Those with the highest scores are asked about."""

    needs_reward: bool
    """Whether it scores by what the ensemble predicts. Before the first version random pairs are asked about instead."""

    def score(self, candidates: Candidates, rng: np.random.Generator) -> FloatArray:
        """How much asking about each candidate is worth, ``[m]`` float; of equals, earlier candidates come first."""
        ...


class Disagreement:
    """The variance, over members, of the predicted probability that left is preferred (Christiano et al. 2017, section 2.2.4)."""

    needs_reward = True

    def score(self, candidates: Candidates, rng: np.random.Generator) -> FloatArray:
        """See `Selection.score`."""
        probabilities = 1.0 / (1.0 + np.exp(-np.clip(candidates.logits, -50.0, 50.0)))
        variance: FloatArray = probabilities.var(axis=0)
        return variance


def choose(selection: Selection, candidates: Candidates, count: int, rng: np.random.Generator) -> IntArray:
    """The ``count`` candidates with the highest scores, ``[min(count, m), 2]``; of equals, earlier ones first."""
    scores = np.asarray(selection.score(candidates, rng))
    unknown = ", some of them NaN" if np.isnan(scores).any() else ""
    if scores.shape != (len(candidates.index),) or unknown:
        raise SettingError(
            f"preferences.selection is {type(selection).__name__}, and for {len(candidates.index)} candidate pairs it gave scores "
            f"of shape {scores.shape}{unknown}: it must give each candidate a number."
        )
    order = np.argsort(-scores, kind="stable")
    return candidates.index[order[:count]]


SELECTIONS: Registry[Selection | None] = Registry(
    "preferences.selection", Selection, {"random": lambda: None, "disagreement": Disagreement}
)
"""By name. Random pairs need no candidates to choose from."""
